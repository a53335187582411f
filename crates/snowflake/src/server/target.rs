//! The service behind a server: any on TCP, or Tor's extended port.

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::path::Path;
use std::time::Duration;

use adit_model::{Dial, SnowflakeServer, SnowflakeTarget};
use adit_net::dial::Dialer;
use adit_net::files;
use adit_net::rt::{self, Stream};
use adit_proto::snowflake::extor::{
    self, Cookie, DENY, DONE, HASH_LEN, HEADER_LEN, OKAY, SAFE_COOKIE, TRANSPORT, USERADDR,
};
use adit_proto::wire::Rng as _;

use adit_engine::OsRng;

/// Time for the whole exchange with the extended port (goptlib's).
const EXCHANGE_TIME: Duration = Duration::from_secs(5);
/// The transport's name.
const NAME: &[u8] = b"snowflake";
/// Types of authentication that are read at most.
const MAX_TYPES: usize = 256;

/// A connection for a client's stream.
///
/// # Errors
/// The dialler's, or that of the exchange with the extended port.
pub(super) async fn open(settings: &SnowflakeServer, client: Option<IpAddr>) -> io::Result<Stream> {
    let mut dial = Dial::default();
    if let Some((network, prefix)) = settings.source {
        dial.egress.set_source(draw(network, prefix));
    }
    let dialer = Dialer::by_system(&dial);
    let addr = match &settings.target {
        SnowflakeTarget::Plain(addr) | SnowflakeTarget::Extended(addr, _) => *addr,
    };
    let stream: Stream = dialer.dial_addrs(&[addr]).await.map_err(io::Error::other)?.into();
    if let SnowflakeTarget::Extended(_, cookie) = &settings.target {
        let exchange = rt::timeout(EXCHANGE_TIME, exchange(&stream, cookie, client));
        exchange.await.unwrap_or_else(|_| Err(io::ErrorKind::TimedOut.into()))?;
    }
    Ok(stream)
}

/// An address of a network.
fn draw(network: IpAddr, prefix: u8) -> IpAddr {
    let mut random = [0; 16];
    OsRng.fill(&mut random);
    let mix = |bits: u32, fixed: u128, random: u128| {
        let host = bits.saturating_sub(prefix.into());
        let mask = if host >= 128 { u128::MAX } else { (1 << host) - 1 };
        fixed & !mask | random & mask
    };
    let random = u128::from_be_bytes(random);
    match network {
        IpAddr::V4(v4) => {
            let mixed = mix(32, u32::from(v4).into(), random) & u128::from(u32::MAX);
            IpAddr::from(u32::try_from(mixed).unwrap_or_default().to_be_bytes())
        }
        IpAddr::V6(v6) => IpAddr::from(mix(128, u128::from(v6), random).to_be_bytes()),
    }
}

/// Longest file of a cookie, in bytes; one has 64.
const MAX_COOKIE: usize = 4096;

/// Proves who we are, and tells of the client.
async fn exchange(stream: &Stream, cookie: &Path, client: Option<IpAddr>) -> io::Result<()> {
    let file = files::read(cookie, MAX_COOKIE)
        .map_err(|error| io::Error::new(error.kind(), format!("{}: {error}", cookie.display())))?;
    let refused = |what: &str| io::Error::new(io::ErrorKind::InvalidData, what.to_owned());
    let cookie =
        Cookie::parse(&file).ok_or_else(|| refused("the file holds no cookie of an extended port"))?;
    let mut is_known = false;
    for count in 0.. {
        let [kind] = read(stream).await?;
        match kind {
            0 => break,
            _ if count >= MAX_TYPES => return Err(refused("too many types of authentication")),
            kind => is_known |= kind == SAFE_COOKIE,
        }
    }
    if !is_known {
        return Err(refused("the extended port does not offer SAFE_COOKIE"));
    }
    let mut ours = [0; HASH_LEN];
    OsRng.fill(&mut ours);
    stream.send_all(&[&[SAFE_COOKIE][..], &ours].concat()).await?;
    let hash: [u8; HASH_LEN] = read(stream).await?;
    let theirs: [u8; HASH_LEN] = read(stream).await?;
    if !cookie.is_theirs(&hash, &ours, &theirs) {
        return Err(refused("the extended port has another cookie"));
    }
    stream.send_all(&cookie.ours(&ours, &theirs)).await?;
    if read::<1>(stream).await? != [1] {
        return Err(refused("the extended port does not take our proof"));
    }
    let mut commands = Vec::new();
    if let Some(client) = client {
        extor::push_command(&mut commands, USERADDR, SocketAddr::new(client, 1).to_string().as_bytes());
    }
    extor::push_command(&mut commands, TRANSPORT, NAME);
    extor::push_command(&mut commands, DONE, &[]);
    stream.send_all(&commands).await?;
    loop {
        let (kind, len) = extor::parse_header(read::<HEADER_LEN>(stream).await?);
        for _ in 0..len {
            read::<1>(stream).await?;
        }
        match kind {
            OKAY => return Ok(()),
            DENY => return Err(refused("the extended port denies the connection")),
            // Unknown commands are to be passed over.
            _ => {}
        }
    }
}

async fn read<const N: usize>(stream: &Stream) -> io::Result<[u8; N]> {
    let (mut bytes, mut len) = ([0; N], 0);
    while len < N {
        match stream.recv(&mut bytes[len..]).await? {
            0 => return Err(io::ErrorKind::UnexpectedEof.into()),
            more => len += more,
        }
    }
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use adit_net::rt::Cores;

    use super::*;
    use crate::testing::until;

    #[test]
    fn sources_stay_in_their_network() {
        let mut seen = std::collections::BTreeSet::new();
        for _ in 0..200 {
            let IpAddr::V4(v4) = draw("127.0.2.0".parse().unwrap(), 24) else { panic!() };
            assert_eq!(&v4.octets()[..3], [127, 0, 2]);
            seen.insert(v4);
            let IpAddr::V6(v6) = draw("fd00::".parse().unwrap(), 64) else { panic!() };
            assert_eq!(&v6.octets()[..8], [0xfd, 0, 0, 0, 0, 0, 0, 0]);
        }
        assert!(seen.len() > 50, "{}", seen.len());
        assert_eq!(draw("192.0.2.7".parse().unwrap(), 32), "192.0.2.7".parse::<IpAddr>().unwrap());
        draw("::".parse().unwrap(), 0);
        draw("0.0.0.0".parse().unwrap(), 0);
    }

    /// Tor's side of the exchange: what it was told, or nothing when the proof was wrong.
    async fn tor(stream: Stream, key: [u8; 32], verdict: u16) -> Option<Vec<u8>> {
        let file = [&b"! Extended ORPort Auth Cookie !\n"[..], &key].concat();
        let cookie = Cookie::parse(&file).unwrap();
        stream.send_all(&[2, 1, 0]).await.unwrap();
        let [kind] = read(&stream).await.ok()?;
        let (theirs, ours): ([u8; 32], [u8; 32]) = (read(&stream).await.ok()?, [9; 32]);
        assert_eq!(kind, SAFE_COOKIE);
        // The hash of the server's side, from the words of the specification.
        let hash = cookie.server_proof(&theirs, &ours);
        stream.send_all(&[hash, ours].concat()).await.unwrap();
        let proof: [u8; 32] = read(&stream).await.ok()?;
        if proof != cookie.ours(&theirs, &ours) {
            return None;
        }
        stream.send_all(&[1]).await.unwrap();
        let mut told = Vec::new();
        loop {
            let header: [u8; 4] = read(&stream).await.ok()?;
            let (kind, len) = extor::parse_header(header);
            told.extend(header);
            for _ in 0..len {
                told.extend(read::<1>(&stream).await.ok()?);
            }
            if kind == DONE {
                break;
            }
        }
        let mut reply = Vec::new();
        extor::push_command(&mut reply, 0x1002, b"passed over");
        extor::push_command(&mut reply, verdict, b"");
        stream.send_all(&reply).await.unwrap();
        Some(told)
    }

    #[test]
    fn the_extended_port_is_told_of_the_client() {
        let path = std::env::temp_dir().join(format!("adit-extor-{}", std::process::id()));
        std::fs::write(&path, [&b"! Extended ORPort Auth Cookie !\n"[..], &[7; 32]].concat()).unwrap();
        Cores::block_on(async {
            for (key, verdict, client, want) in [
                (
                    7,
                    OKAY,
                    Some("192.0.2.7"),
                    Some(&b"\0\x01\0\x0b192.0.2.7:1\0\x02\0\x09snowflake\0\0\0\0"[..]),
                ),
                (
                    7,
                    OKAY,
                    Some("2001:db8::1"),
                    Some(&b"\0\x01\0\x0f[2001:db8::1]:1\0\x02\0\x09snowflake\0\0\0\0"[..]),
                ),
                (7, OKAY, None, Some(&b"\0\x02\0\x09snowflake\0\0\0\0"[..])),
                (7, DENY, None, Some(&b"\0\x02\0\x09snowflake\0\0\0\0"[..])),
                (8, OKAY, None, None),
            ] {
                let (near, far) = Stream::pair().unwrap();
                let told = std::rc::Rc::new(std::cell::RefCell::new(None));
                let result = told.clone();
                rt::spawn_local(async move {
                    let told = tor(far, [key; 32], verdict).await;
                    *result.borrow_mut() = Some(told);
                });
                let client = client.map(|client| client.parse().unwrap());
                let done = exchange(&near, &path, client).await;
                drop(near);
                until("the other side is done", async || told.borrow().is_some()).await;
                assert_eq!(done.is_ok(), verdict == OKAY && key == 7, "{done:?}");
                assert_eq!(told.take().unwrap().as_deref(), want);
            }
        })
        .unwrap();
        std::fs::remove_file(&path).unwrap();
    }
}
