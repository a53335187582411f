//! A STUN server at two ports, by which clients of Snowflake learn that no NAT is between them and the lab.

use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::thread;

use anyhow::{Context, Result};

/// Of every message (RFC 8489), and what addresses are mixed with.
const COOKIE: [u8; 4] = 0x2112_a442_u32.to_be_bytes();
const BINDING: [u8; 2] = [0, 1];
const SUCCESS: [u8; 2] = [1, 1];
const XOR_MAPPED_ADDRESS: [u8; 2] = [0, 0x20];
const OTHER_ADDRESS: [u8; 2] = [0x80, 0x2c];
const HEAD_LEN: usize = 20;

/// Answers at both addresses until the process ends; each names the other.
pub(crate) fn serve(listen: SocketAddr, other: SocketAddr) -> Result<()> {
    let bind = |at: SocketAddr| UdpSocket::bind(at).with_context(|| format!("listen on {at}"));
    let (first, second) = (bind(listen)?, bind(other)?);
    thread::Builder::new().name("stun".into()).spawn(move || answer(&second, listen))?;
    answer(&first, other)
}

fn answer(socket: &UdpSocket, other: SocketAddr) -> Result<()> {
    let mut buffer = [0; 1500];
    loop {
        let (len, from) = socket.recv_from(&mut buffer)?;
        if let Some(reply) = reply(&buffer[..len], from, other) {
            // One that is lost is asked for again.
            socket.send_to(&reply, from).ok();
        }
    }
}

/// The answer to a binding request over IPv4.
fn reply(request: &[u8], from: SocketAddr, other: SocketAddr) -> Option<Vec<u8>> {
    let head = request.get(..HEAD_LEN).filter(|head| head[..2] == BINDING && head[4..8] == COOKIE)?;
    let mut out = [&SUCCESS[..], &24_u16.to_be_bytes(), &head[4..]].concat();
    for (kind, addr, is_mixed) in [(XOR_MAPPED_ADDRESS, from, true), (OTHER_ADDRESS, other, false)] {
        let IpAddr::V4(ip) = addr.ip() else { return None };
        let mask = if is_mixed { COOKIE } else { [0; 4] };
        let value: Vec<u8> = addr.port().to_be_bytes().into_iter().chain(ip.octets()).collect();
        out.extend(kind);
        out.extend([0, 8, 0, 1]);
        out.extend(
            value.iter().zip([mask[0], mask[1], mask[0], mask[1], mask[2], mask[3]]).map(|(a, b)| a ^ b),
        );
    }
    Some(out)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_answer_names_both_addresses() {
        let request = [&[0, 1, 0, 0][..], &COOKIE, &[7; 12]].concat();
        let (from, other) = ("192.0.2.1:32853".parse().unwrap(), "203.0.113.9:3479".parse().unwrap());
        let reply = reply(&request, from, other).unwrap();
        assert_eq!(reply[..4], [1, 1, 0, 24]);
        assert_eq!(reply[4..20], request[4..]);
        // RFC 5769, section 2.2.
        assert_eq!(reply[20..32], [0, 0x20, 0, 8, 0, 1, 0xa1, 0x47, 0xe1, 0x12, 0xa6, 0x43]);
        assert_eq!(reply[32..], [0x80, 0x2c, 0, 8, 0, 1, 0x0d, 0x97, 203, 0, 113, 9]);
        for len in 0..20 {
            assert_eq!(super::reply(&request[..len], from, other), None);
        }
        assert_eq!(super::reply(&[1; 20], from, other), None);
    }
}
