use std::io;

use super::sessions::Peer;
use super::*;

const METHOD: &str = "aes-128-gcm";
const FLOWS: usize = 64;

/// The next new datagram at the target, and its source.
fn take(target: &UdpSocket) -> (Vec<u8>, SocketAddr) {
    take_that(target, |bytes| bytes != b"recorded").unwrap()
}

fn take_that(target: &UdpSocket, is_meant: impl Fn(&[u8]) -> bool) -> io::Result<(Vec<u8>, SocketAddr)> {
    let mut bytes = [0; 100];
    loop {
        let (len, from) = target.recv_from(&mut bytes)?;
        if is_meant(&bytes[..len]) {
            return Ok((bytes[..len].to_vec(), from));
        }
    }
}

/// Sends until `text` arrives, and says from where: the kernel drops datagrams that find a receive buffer full of
/// recorded ones.
fn flow_of(target: &UdpSocket, text: &[u8], mut send: impl FnMut()) -> SocketAddr {
    target.set_read_timeout(Some(Duration::from_millis(500))).unwrap();
    for _ in 0..60 {
        send();
        if let Ok((_, flow)) = take_that(target, |bytes| bytes == text) {
            return flow;
        }
    }
    panic!("no datagram arrives");
}

/// A datagram without replay protection may be sent again from any number of addresses. Each gets a flow, as a new user
/// does, and none pushes out a user that has gone on after an answer. Whether the target answers makes no difference.
#[test]
fn recorded_datagrams_push_out_nobody_who_has_answered() {
    for answers in [false, true] {
        let mut settings = config(server(METHOD), OutboundProtocol::Direct, 1);
        settings.udp.flows = FLOWS;
        let running = start(&settings).unwrap();
        let at = running.addresses()[0].1;
        let target = socket();
        let recorded_for = if answers { echo() } else { addr(&target) };
        let recorded = Peer::new(METHOD, recorded_for).seal(b"recorded");
        let (mut user, client) = (Peer::new(METHOD, addr(&target)), socket());
        client.send_to(&user.seal(b"one"), at).unwrap();
        let (_, flow) = take(&target);
        target.send_to(b"answer", flow).unwrap();
        client.recv_from(&mut [0; 100]).unwrap();
        client.send_to(&user.seal(b"two"), at).unwrap();
        assert_eq!(take(&target), (b"two".to_vec(), flow));
        // A busy machine drops many of them.
        for _ in 0..300 {
            for n in 0..1_000 {
                socket().send_to(&recorded, at).unwrap();
                if n % 16 == 0 {
                    thread::sleep(Duration::from_millis(1));
                }
            }
            if seen(&running).begun > 3_000 {
                break;
            }
        }
        let status = eventually(&running, |status| status.begun > 3_000);
        assert!(status.flows <= i64::try_from(FLOWS).unwrap(), "{status:?}");
        let same = flow_of(&target, b"three", || drop(client.send_to(&user.seal(b"three"), at)));
        assert_eq!(same, flow);
        // Somebody new is served at once.
        let mut newcomer = Peer::new(METHOD, addr(&target));
        let other = socket();
        let other = flow_of(&target, b"new", || drop(other.send_to(&newcomer.seal(b"new"), at)));
        assert_ne!(other, flow);
        running.end();
    }
}
