//! kcptun as Debian has it (20210922), at either end.

use std::net::SocketAddr;
use std::time::Duration;

use adit_model::{Kcp, KcpParity};
use adit_proto::kcp::crypt::KcpMethod;
use adit_proto::kcp::fec::Shards;
use adit_proto::smux::SmuxVersion;

use super::support::{
    addr, client_of_kcptun, echo, has, kcp, kcptun_client, kcptun_server, round_trip, server,
};

const SIZES: [usize; 3] = [1, 30_000, 2_000_000];

/// Methods that Debian's program knows: all but those that came later.
fn crypts() -> impl Iterator<Item = KcpMethod> {
    KcpMethod::ALL.into_iter().filter(|crypt| !matches!(crypt, KcpMethod::Null | KcpMethod::Aes128Gcm))
}

/// The shapes that a crypt is tried in: FEC, smux and compression in turns, all of them for one.
fn shapes(crypt: KcpMethod) -> Vec<Kcp> {
    let all = [SmuxVersion::V1, SmuxVersion::V2].into_iter().flat_map(move |version| {
        [false, true].into_iter().flat_map(move |compression| {
            [KcpParity::Off, KcpParity::Fixed(Shards::USUAL)].into_iter().map(move |parity| Kcp {
                version: Some(version),
                compression,
                parity,
                close_wait: Some(Duration::from_secs(30)),
                ..kcp(crypt)
            })
        })
    });
    let all: Vec<_> = all.collect();
    if crypt == KcpMethod::Aes128 { all } else { vec![all[0].clone(), all[7].clone()] }
}

fn exercise(port: SocketAddr, kcp: &Kcp, which: &str) {
    println!("{which}: {} {:?} {:?} {}", kcp.crypt.name(), kcp.version, kcp.parity, kcp.compression);
    for len in SIZES {
        round_trip(port, len, false);
    }
}

#[test]
#[ignore = "needs kcptun-client"]
fn their_client_our_server() {
    if !has("kcptun-client") {
        return;
    }
    let echo = echo();
    for kcp in crypts().flat_map(shapes) {
        // One server takes both versions.
        let servers = server(&Kcp { version: None, ..kcp.clone() }, echo);
        let (_peer, local) = kcptun_client(addr(&servers), &kcp);
        exercise(local, &kcp, "their client");
        servers.end();
    }
}

#[test]
#[ignore = "needs kcptun-server"]
fn our_client_their_server() {
    if !has("kcptun-server") {
        return;
    }
    let echo = echo();
    for kcp in crypts().flat_map(shapes) {
        let (_peer, listen) = kcptun_server(echo, &kcp);
        let clients = client_of_kcptun(&kcp, listen);
        exercise(addr(&clients), &kcp, "our client");
        clients.end();
    }
}

/// Old peers close a stream as soon as one direction has ended. Our client holds the application's end back, so that
/// the answer comes whole all the same.
#[test]
#[ignore = "needs kcptun-server"]
fn an_answer_survives_the_end_of_its_question() {
    if !has("kcptun-server") {
        return;
    }
    let echo = echo();
    let kcp = Kcp { version: Some(SmuxVersion::V1), ..kcp(KcpMethod::Aes128) };
    let (_peer, listen) = kcptun_server(echo, &kcp);
    let clients = client_of_kcptun(&kcp, listen);
    // The echo never sees an end, so that only the bytes are compared; the end is passed on when ours has gone.
    let mut stream = super::support::connect(addr(&clients));
    let data = super::support::pattern(500_000);
    let (mut writer, sent) = (stream.try_clone().unwrap(), data.clone());
    let write = std::thread::spawn(move || {
        std::io::Write::write_all(&mut writer, &sent).unwrap();
        writer.shutdown(std::net::Shutdown::Write).unwrap();
    });
    let mut back = vec![0; data.len()];
    std::io::Read::read_exact(&mut stream, &mut back).unwrap();
    write.join().unwrap();
    assert!(back == data);
    clients.end();
}
