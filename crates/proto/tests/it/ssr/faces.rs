//! Client and server face to face.

use adit_proto::ssr::{Obfs, SsrMethod, SsrProtocol};

use crate::ssr::support::{End, NOW_S, Setup, shake, split, target};

fn data(len: usize) -> Vec<u8> {
    (0..len).map(|i| (i * i / 7).to_le_bytes()[0]).collect()
}

/// Sends `sizes` both ways, cut at `cut`.
fn exchange(setup: &Setup, sizes: &[usize], cut: usize, seed: u64, name: &str) {
    let mut client = setup.client(&setup.client_config(), NOW_S, seed);
    let mut server = setup.server();
    shake(&mut client, &mut server).unwrap_or_else(|bad| panic!("{name}: {bad:?}"));
    let (mut up, mut got) = (Vec::new(), Vec::new());
    for &size in sizes {
        let piece = data(size);
        got.extend(pass(&mut client, &mut server, &piece, cut, name));
        up.extend(piece);
    }
    let (to, payload) = split(&got);
    assert_eq!(to, target(), "{name}");
    assert!(payload == up, "{name}: {} of {} bytes", payload.len(), up.len());
    let greeting = std::mem::take(&mut server.out);
    assert!(client.receive(&greeting).expect("a greeting").is_empty(), "{name}");
    for &size in sizes {
        let piece = data(size);
        assert!(pass(&mut server, &mut client, &piece, cut, name) == piece, "{name} down {size}");
    }
}

fn pass(from: &mut End, to: &mut End, piece: &[u8], cut: usize, name: &str) -> Vec<u8> {
    let wire = from.send(piece);
    let parts = wire.chunks(cut);
    parts.flat_map(|part| to.receive(part).unwrap_or_else(|bad| panic!("{name}: {bad:?}"))).collect()
}

const SIZES: [usize; 12] = [1, 0, 5, 400, 1200, 1440, 1441, 1460, 2800, 8101, 40_000, 100_000];

#[test]
fn every_protocol_and_obfs() {
    for protocol in SsrProtocol::all() {
        for obfs in Obfs::all() {
            let name = format!("{protocol} {obfs}");
            let setup = Setup::new("aes-128-ctr", protocol.name(), obfs.name());
            exchange(&setup, &SIZES, 30_000, 3, &name);
            let setup = Setup::new("none", protocol.name(), obfs.name());
            exchange(&setup, &[20, 3000], usize::MAX, 4, &name);
        }
    }
}

#[test]
fn every_method() {
    for method in SsrMethod::all() {
        let setup = Setup::new(method.name(), "auth_aes128_md5", "plain");
        exchange(&setup, &[0, 1, 700, 3000], 100, 8, method.name());
    }
}

#[test]
fn every_split() {
    for protocol in SsrProtocol::all() {
        for cut in [1, 2, 7] {
            let setup = Setup::new("aes-128-ctr", protocol.name(), "http_simple");
            exchange(&setup, &[3, 0, 900], cut, cut as u64, &format!("{protocol} by {cut}"));
            let setup = Setup::new("chacha20-ietf", protocol.name(), "tls1.2_ticket_auth");
            exchange(&setup, &[3, 0, 90], cut, cut as u64, &format!("{protocol} by {cut}"));
        }
    }
}

#[test]
fn many_seeds_give_every_padding() {
    for protocol in SsrProtocol::all().filter(|protocol| *protocol != SsrProtocol::Origin) {
        for seed in 0..20 {
            let setup = Setup::new("rc4-md5", protocol.name(), "plain");
            let size = usize::try_from(seed).unwrap() * 74;
            exchange(&setup, &[size, 0, 2 * size, 1439, 1440], usize::MAX, seed, protocol.name());
        }
    }
}

#[test]
fn users_are_found() {
    for protocol in SsrProtocol::all().filter(|protocol| protocol.has_users()) {
        let table: Vec<(u32, String)> = (0..500).map(|id| (id, format!("secret-{id}"))).collect();
        let table: Vec<(u32, &str)> = table.iter().map(|(id, secret)| (*id, secret.as_str())).collect();
        let setup =
            Setup::new("aes-256-cfb", protocol.name(), "plain").with_users(Some((77, "secret-77")), &table);
        exchange(&setup, &[10, 5000], 999, 1, protocol.name());
    }
}

#[test]
fn compatible_servers_serve_plain_clients() {
    for obfs in Obfs::all().filter(|obfs| obfs.can_be_compatible()) {
        for protocol in SsrProtocol::all().filter(|protocol| protocol.can_be_compatible()) {
            let name = format!("{protocol} {obfs}");
            let mut server = Setup::new("aes-128-ctr", protocol.name(), obfs.name());
            server.is_compatible = true;
            server.server_obfs = server.server_obfs.with_compatible(true);
            exchange(&server, &[30, 2000], usize::MAX, 2, &name);
            let plain = Setup::new("aes-128-ctr", "origin", "plain");
            let (mut client, mut server) = (plain.client(&plain.client_config(), NOW_S, 3), server.server());
            let payload = data(500);
            let got = pass(&mut client, &mut server, &payload, usize::MAX, &name);
            assert!(split(&got) == (target(), payload), "{name}");
            let down = data(300);
            assert!(pass(&mut server, &mut client, &down, usize::MAX, &name) == down, "{name}");
        }
    }
}
