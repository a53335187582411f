//! Datagrams over Snell: in streams, and QUIC behind envelopes.

use adit_model::{
    ObfsClient, ObfsServer, Quic, SNELL_MODES, SnellClient, SnellServer, SnellVersion, SnellVersions,
};
use adit_proto::buf::RecvBuf;
use adit_proto::snell::udp::{self, envelope};
use adit_proto::snell::{SnellClientStream, SnellCommand, SnellPsk, SnellRequest};
use adit_proto::wire::{Layer, Opened};

use super::*;
use crate::rng::OsRng;

pub(super) const PSK: &str = "datagrams-psk-0123456789";

pub(super) fn snell_server(obfs: ObfsServer) -> SnellServer {
    SnellServer {
        psk: Secret::new(PSK).into(),
        versions: SnellVersions::default(),
        obfs,
        udp: true,
        quic: false,
    }
}

fn snell_in() -> InboundProtocol {
    InboundProtocol::Snell(snell_server(ObfsServer::Off))
}

pub(super) fn snell_client(server: SocketAddr, obfs: ObfsClient) -> SnellClient {
    SnellClient {
        server: server.into(),
        psk: Secret::new(PSK),
        client_id: None,
        version: SnellVersion::default(),
        obfs,
        reuse: true,
        half_close: adit_model::HalfClose::On,
        udp: true,
        quic: Quic::Off,
    }
}

fn snell_out(server: SocketAddr) -> OutboundProtocol {
    OutboundProtocol::Snell(snell_client(server, ObfsClient::Off))
}

#[test]
fn every_version_that_has_datagrams_carries_them() {
    let modes = SNELL_MODES.iter().map(|(_, mode)| SnellVersion::V6(*mode));
    for version in [SnellVersion::V3, SnellVersion::V4, SnellVersion::V5].into_iter().chain(modes) {
        let server = SnellServer { versions: SnellVersions::Only(version), ..snell_server(ObfsServer::Off) };
        let (far, server_at) = run(InboundProtocol::Snell(server), OutboundProtocol::Direct, 1);
        let reuse = version.fixed_reuse().unwrap_or(true);
        let client = SnellClient { version, reuse, ..snell_client(server_at, ObfsClient::Off) };
        let (near, at) = run(tunnel(echo()), OutboundProtocol::Snell(client), 1);
        println!("{version:?}");
        // A datagram is one frame, and those of version 3 hold 16 KiB.
        let lens: Vec<usize> = mixed_lens().into_iter().filter(|len| *len < 16_000).collect();
        check_echo(&socket(), at, &lens);
        near.end();
        far.end();
    }
    for version in [SnellVersion::V1, SnellVersion::V2] {
        let reuse = version.fixed_reuse().unwrap_or(true);
        let client = SnellClient { version, reuse, ..snell_client(LOOPBACK, ObfsClient::Off) };
        let config = config(tunnel(LOOPBACK), OutboundProtocol::Snell(client), 1);
        assert!(start(&config).is_err(), "{version:?} carries none");
    }
}

/// A Snell server that takes QUIC; each on an address of its own, for TCP and UDP must have one port.
fn quic_server(cores: usize) -> (Running, SocketAddr) {
    let inbound = InboundProtocol::Snell(SnellServer { quic: true, ..snell_server(ObfsServer::Off) });
    let mut config = config(inbound, OutboundProtocol::Direct, cores);
    config.inbounds[0].listen = vec![adit_testkit::unused_addr()];
    let running = start(&config).unwrap();
    let at = running.addresses()[0].1;
    (running, at)
}

pub(super) fn lens() -> Vec<usize> {
    mixed_lens().into_iter().filter(|len| *len <= udp::max_request_payload(&LOOPBACK.into())).collect()
}

#[test]
fn streams_carry_datagrams_of_any_length_in_order_under_every_obfs() {
    let host = || "www.example.com".into();
    for (server, client) in [
        (ObfsServer::Off, ObfsClient::Off),
        (ObfsServer::Http, ObfsClient::Http(host())),
        (ObfsServer::Tls, ObfsClient::Tls(host())),
    ] {
        let inbound = InboundProtocol::Snell(snell_server(server));
        let (far, server_at) = run(inbound, OutboundProtocol::Direct, 1);
        let outbound = OutboundProtocol::Snell(snell_client(server_at, client));
        let (near, at) = run(tunnel(echo()), outbound, 1);
        let (one, two) = (socket(), socket());
        check_echo(&one, at, &lens());
        check_echo(&two, at, &lens());
        let count = u64::try_from(lens().len()).unwrap() * 2;
        for running in [&near, &far] {
            let status = eventually(running, |status| status.down == count);
            assert_eq!((status.up, status.flows, status.begun), (count, 2, 2), "{server:?}");
            assert!(status.dropped.is_empty(), "{server:?} {status:?}");
        }
        near.end();
        eventually(&far, |status| status.flows == 0);
        far.end();
    }
}

#[test]
fn socks_associations_over_snell_are_full_cones() {
    let (far, server_at) = run(snell_in(), OutboundProtocol::Direct, 1);
    let (near, at) = run(local(), snell_out(server_at), 1);
    check_socks_cone(at);
    let status = eventually(&near, |status| status.flows == 0);
    assert_eq!((status.begun, status.up, status.down), (1, 4, 4));
    eventually(&far, |status| status.flows == 0);
    near.drain();
    far.drain();
}

/// Several targets, an answer from another address, and the end of the association.
fn check_socks_cone(at: SocketAddr) {
    let (stream, port) = pairs::associate(at);
    let client = socket();
    let mut bytes = [0; 2000];
    for (n, target) in (0..).zip([echo(), echo(), echo()]) {
        let payload = [n; 1000];
        client.send_to(&pairs::socks_datagram(target, &payload), port).unwrap();
        let len = client.recv(&mut bytes).unwrap();
        let (source, start) = adit_proto::socks::parse_datagram(&bytes[..len]).unwrap();
        assert_eq!((source, &bytes[start..len]), (target.into(), &payload[..]));
    }
    let (target, other) = (socket(), socket());
    client.send_to(&pairs::socks_datagram(addr(&target), b"knock"), port).unwrap();
    let (_, outside) = target.recv_from(&mut bytes).unwrap();
    other.send_to(b"hello", outside).unwrap();
    let len = client.recv(&mut bytes).unwrap();
    let (source, start) = adit_proto::socks::parse_datagram(&bytes[..len]).unwrap();
    assert_eq!((source, &bytes[start..len]), (addr(&other).into(), &b"hello"[..]));
    drop(stream);
}

#[test]
fn names_are_resolved_by_the_server_and_one_that_is_none_costs_its_datagram_alone() {
    let (far, server_at) = run(snell_in(), OutboundProtocol::Direct, 1);
    let (near, at) = run(local(), snell_out(server_at), 1);
    let (_stream, port) = pairs::associate(at);
    let (client, target) = (socket(), echo());
    let send = |host: &str, to: u16| {
        let name = Target::new(host.as_bytes(), to).unwrap();
        let mut datagram = vec![0; adit_proto::socks::header_len(&name)];
        adit_proto::socks::emit_header(&name, &mut datagram);
        datagram.extend(host.as_bytes());
        client.send_to(&datagram, port).unwrap();
    };
    send("nowhere.invalid", target.port());
    send("localhost", target.port());
    let mut bytes = [0; 100];
    let len = client.recv(&mut bytes).unwrap();
    let (source, start) = adit_proto::socks::parse_datagram(&bytes[..len]).unwrap();
    assert_eq!((source, &bytes[start..len]), (target.into(), &b"localhost"[..]));
    let status = eventually(&far, |status| status.dropped.contains_key("unresolved"));
    assert_eq!((status.flows, status.up), (1, 1), "{status:?}");
    near.end();
    far.end();
}

#[test]
fn a_target_that_is_not_there_costs_its_datagrams_alone() {
    let (far, server_at) = run(snell_in(), OutboundProtocol::Direct, 1);
    let (near, at) = run(local(), snell_out(server_at), 1);
    let (_stream, port) = pairs::associate(at);
    let (client, target, dead) = (socket(), echo(), addr(&socket()));
    let mut bytes = [0; 100];
    for _ in 0..3 {
        client.send_to(&pairs::socks_datagram(dead, b"nobody"), port).unwrap();
        client.send_to(&pairs::socks_datagram(target, b"somebody"), port).unwrap();
        let len = client.recv(&mut bytes).unwrap();
        assert_eq!(&bytes[len - 8..len], b"somebody");
    }
    let status = eventually(&far, |status| status.down == 3);
    assert_eq!((status.flows, status.begun), (1, 1), "{status:?}");
    near.end();
    far.end();
}

#[test]
fn the_longest_datagrams_pass_and_longer_ones_are_counted() {
    let (far, server_at) = run(snell_in(), OutboundProtocol::Direct, 1);
    let (near, at) = run(tunnel(echo()), snell_out(server_at), 1);
    let client = socket();
    let most = udp::max_request_payload(&LOOPBACK.into());
    assert_eq!(most, 16_374);
    check_echo(&client, at, &[most, 0, most - 1]);
    client.send_to(&vec![7; most + 1], at).unwrap();
    let status = eventually(&near, |status| status.dropped.contains_key("too-big"));
    assert_eq!((status.up, status.begun), (3, 1));
    check_echo(&client, at, &[1]);
    near.end();
    far.end();

    // Answers have a shorter header.
    let target = socket();
    let (far, server_at) = run(snell_in(), OutboundProtocol::Direct, 1);
    let (near, at) = run(tunnel(addr(&target)), snell_out(server_at), 1);
    client.send_to(b"ask", at).unwrap();
    let mut bytes = vec![0; 20_000];
    let (_, outside) = target.recv_from(&mut bytes).unwrap();
    let most = udp::max_answer_payload(LOOPBACK);
    for len in [most + 1, most] {
        target.send_to(&vec![9; len], outside).unwrap();
    }
    assert_eq!(client.recv(&mut bytes).unwrap(), most);
    eventually(&far, |status| status.dropped.get("too-big") == Some(&1));
    near.end();
    far.end();
}

#[test]
fn a_server_without_datagrams_says_so_and_is_asked_again_later() {
    let inbound = InboundProtocol::Snell(SnellServer { udp: false, ..snell_server(ObfsServer::Off) });
    let (far, server_at) = run(inbound, OutboundProtocol::Direct, 1);
    let (near, at) = run(tunnel(echo()), snell_out(server_at), 1);
    let client = socket();
    client.send_to(b"one", at).unwrap();
    // Data after the refusal goes no further.
    let refused = |running: &Running| running.status().inbounds[0].refused.get("unsupported").copied();
    adit_testkit::wait_for("the refusal", || refused(&far) == Some(1));
    for _ in 0..6000 {
        client.send_to(b"two", at).unwrap();
        if seen(&near).dropped.contains_key("no-server") {
            break;
        }
        thread::sleep(Duration::from_millis(10));
    }
    assert!(seen(&near).dropped.contains_key("no-server"), "{:?}", seen(&near));
    near.end();
    far.end();
}

#[test]
fn servers_pass_datagrams_on_to_servers() {
    let (last, last_at) = run(snell_in(), OutboundProtocol::Direct, 1);
    let (middle, middle_at) = run(snell_in(), snell_out(last_at), 1);
    let (near, at) = run(tunnel(echo()), snell_out(middle_at), 1);
    check_echo(&socket(), at, &lens());
    near.end();
    middle.end();
    last.end();

    let (last, last_at) = run(server("aes-128-gcm"), OutboundProtocol::Direct, 1);
    let (middle, middle_at) = run(snell_in(), client("aes-128-gcm", last_at), 1);
    let (near, at) = run(tunnel(echo()), snell_out(middle_at), 1);
    check_echo(&socket(), at, &lens());
    near.end();
    middle.end();
    last.end();
}

#[test]
fn other_inbounds_lead_to_streams_too() {
    let (far, server_at) = run(snell_in(), OutboundProtocol::Direct, 1);
    for method in ["aes-128-gcm", "2022-blake3-aes-128-gcm"] {
        let (middle, middle_at) = run(server(method), snell_out(server_at), 1);
        let (near, at) = run(tunnel(echo()), client(method, middle_at), 1);
        check_echo(&socket(), at, &lens());
        near.end();
        middle.end();
    }
    far.end();
}

/// A client made by hand, to send what ours never would.
struct ByHand {
    stream: TcpStream,
    client: SnellClientStream,
    wire: RecvBuf,
}

impl ByHand {
    #[expect(clippy::disallowed_methods, reason = "a client of the test")]
    fn connect(server: SocketAddr) -> Self {
        let stream = TcpStream::connect(server).unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
        stream.set_nodelay(true).unwrap();
        let psk = SnellPsk::new(PSK.as_bytes());
        let mut client = SnellClientStream::new(psk.clone(), &psk.derive_own(&mut OsRng), &mut OsRng);
        client.start(&SnellRequest { command: SnellCommand::Udp, client_id: b"id".to_vec() });
        Self { stream, client, wire: RecvBuf::with_len(1 << 16) }
    }

    fn frame(&mut self, payload: &[u8]) -> Vec<u8> {
        let now = adit_testkit::epoch();
        let room = self.client.plan(now).first;
        let mut block = vec![0; room.head + payload.len() + room.tail];
        let range = room.head..room.head + payload.len();
        block[range.clone()].copy_from_slice(payload);
        let sealed = self.client.seal(&mut block, range, now).unwrap();
        block[sealed].to_vec()
    }

    fn datagram(&mut self, target: SocketAddr, payload: &[u8]) -> Vec<u8> {
        let target = Target::from(target);
        let mut bytes = vec![0; udp::request_len(&target)];
        udp::emit_request(&target, &mut bytes);
        bytes.extend(payload);
        self.frame(&bytes)
    }

    /// The payload of the next frame; `None` at the end of the stream.
    fn next(&mut self) -> Option<Vec<u8>> {
        loop {
            match self.client.open(&mut self.wire, adit_testkit::epoch()).unwrap() {
                Opened::Payload(range) => return Some(self.wire.block()[range].to_vec()),
                Opened::End => return None,
                Opened::NeedMore(_) => {}
            }
            let len = self.stream.read(self.wire.free_mut()).unwrap();
            if len == 0 {
                return None;
            }
            self.wire.filled(len);
        }
    }
}

#[test]
fn boundaries_hold_however_the_stream_is_cut() {
    let (far, at) = run(snell_in(), OutboundProtocol::Direct, 1);
    let target = echo();
    for piece in [usize::MAX, 1, 7, 100] {
        let mut peer = ByHand::connect(at);
        // The request shares its segment with datagrams, some of them empty.
        let mut bytes = peer.frame(&[]);
        for payload in [&b"one"[..], b"", b"three"] {
            bytes.extend(peer.datagram(target, payload));
        }
        for part in bytes.chunks(piece.min(bytes.len())) {
            peer.stream.write_all(part).unwrap();
        }
        assert_eq!(peer.next().unwrap(), b"", "the reply has a frame of its own");
        for payload in [&b"one"[..], b"", b"three"] {
            let frame = peer.next().unwrap();
            let (source, start) = udp::parse_answer(&frame).unwrap();
            assert_eq!((source, &frame[start..]), (target, payload), "{piece}");
        }
        // A zero chunk is the end.
        let mut block = [0; 100];
        let end = Layer::seal_end(&mut peer.client, &mut block, 0, adit_testkit::epoch());
        assert_eq!(end.unwrap(), 0..0, "an exchange of command 6 ends with its stream");
        peer.stream.shutdown(std::net::Shutdown::Write).unwrap();
        assert_eq!(peer.next(), None);
    }
    eventually(&far, |status| status.flows == 0);
    far.end();
}

#[test]
fn a_datagram_that_is_not_legal_ends_the_association() {
    let (far, at) = run(snell_in(), OutboundProtocol::Direct, 1);
    let target = echo();
    for bad in [&[2, 0, 4, 127, 0, 0, 1, 0, 9][..], &[1, 0, 5, 0], &[1, 0, 4, 127, 0], &[1]] {
        let mut peer = ByHand::connect(at);
        let mut bytes = peer.frame(&[]);
        bytes.extend(peer.datagram(target, b"before"));
        bytes.extend(peer.frame(bad));
        peer.stream.write_all(&bytes).unwrap();
        // A reset follows, which may overtake the reply.
        let mut rest = Vec::new();
        drop(peer.stream.read_to_end(&mut rest));
    }
    let status = eventually(&far, |status| status.flows == 0 && status.begun == 4);
    assert_eq!(status.up, 4, "{status:?}");
    far.end();
}

fn envelope_for(target: SocketAddr, inner: &[u8]) -> Vec<u8> {
    envelope_of(PSK, b"", target, inner)
}

/// An envelope under `psk`, of the user with this client id.
pub(super) fn envelope_of(psk: &str, client_id: &[u8], target: SocketAddr, inner: &[u8]) -> Vec<u8> {
    let psk = SnellPsk::new(psk.as_bytes());
    let target = Target::from(target);
    let room = envelope::room(&target, client_id);
    let mut block = vec![0; room.head + inner.len() + room.tail];
    let range = room.head..room.head + inner.len();
    block[range.clone()].copy_from_slice(inner);
    let sealed = envelope::seal(&psk.derive_own(&mut OsRng), &target, client_id, &mut block, range).unwrap();
    block[sealed].to_vec()
}

/// The first datagram of a QUIC client.
pub(super) fn initial(fill: u8) -> Vec<u8> {
    let mut packet = vec![0xc3, 0, 0, 0, 1, 8, 1, 2, 3, 4, 5, 6, 7, 8, 0, 0, 0x44, 0x9e];
    packet.resize(1200, fill);
    packet
}

pub(super) fn exchange(client: &UdpSocket, to: SocketAddr, datagram: &[u8]) -> Vec<u8> {
    client.send_to(datagram, to).unwrap();
    let mut bytes = vec![0; 2000];
    let len = client.recv(&mut bytes).unwrap();
    bytes.truncate(len);
    bytes
}

#[test]
fn envelopes_open_a_way_and_replays_and_wrong_keys_meet_silence() {
    let (far, at) = quic_server(1);
    let (target, client) = (echo(), socket());
    // A datagram that is no envelope is not answered.
    for noise in [&b""[..], &[7; 54], &[7; 55], &initial(1)] {
        client.send_to(noise, at).unwrap();
    }
    let first = envelope_for(target, &initial(1));
    assert_eq!(exchange(&client, at, &first), initial(1));
    for raw in [&b"\x43short"[..], b"", b"\x03without the fixed bit", &initial(2)] {
        assert_eq!(exchange(&client, at, raw), raw);
    }
    // A recording opens nothing, from anywhere.
    let other = socket();
    other.send_to(&first, at).unwrap();
    let status = eventually(&far, |status| status.dropped.contains_key("replay"));
    assert_eq!(
        (status.begun, status.up, status.dropped.get("authentication")),
        (1, 5, Some(&2)),
        "{status:?}"
    );
    // A second envelope is unwrapped, and one for another target moves the way.
    assert_eq!(exchange(&client, at, &envelope_for(target, &initial(3))), initial(3));
    let moved = socket();
    client.send_to(&envelope_for(addr(&moved), &initial(4)), at).unwrap();
    let mut bytes = [0; 2000];
    let (len, outside) = moved.recv_from(&mut bytes).unwrap();
    assert_eq!(bytes[..len], initial(4));
    // Only where the way leads to may answer.
    socket().send_to(b"not me", outside).unwrap();
    moved.send_to(b"me", outside).unwrap();
    let len = client.recv(&mut bytes).unwrap();
    assert_eq!(&bytes[..len], b"me");
    let status = eventually(&far, |status| status.dropped.get("authentication") == Some(&3));
    assert_eq!((status.flows, status.begun), (1, 2), "{status:?}");
    far.end();
}

/// The recorded run of QUIC mode opens here as it did there; its target's port may belong to anybody on this machine.
#[test]
fn a_recorded_envelope_opens() {
    let captures = adit_testkit::load("snell/captures.json");
    let run = captures["captures"].as_array().unwrap().iter().find(|run| run["name"] == "quic-proxy-udp");
    let run = run.unwrap();
    let inbound = InboundProtocol::Snell(SnellServer {
        psk: Secret::new(run["psk"].as_str().unwrap()).into(),
        quic: true,
        ..snell_server(ObfsServer::Off)
    });
    let mut config = config(inbound, OutboundProtocol::Direct, 1);
    config.inbounds[0].listen = vec![adit_testkit::unused_addr()];
    let running = start(&config).unwrap();
    let (at, client) = (running.addresses()[0].1, socket());
    for event in run["events"].as_array().unwrap().iter().filter(|event| event["dir"] == "c2s").take(2) {
        client.send_to(&adit_testkit::hex(event["data"].as_str().unwrap()), at).unwrap();
    }
    let status = eventually(&running, |status| status.begun == 1);
    assert_eq!(status.dropped.values().sum::<u64>(), 1, "{status:?}");
    running.end();
}

fn quic_out(server: SocketAddr, quic: Quic) -> OutboundProtocol {
    OutboundProtocol::Snell(SnellClient { quic, ..snell_client(server, ObfsClient::Off) })
}

#[test]
fn quic_goes_raw_and_the_rest_over_the_stream() {
    let (far, server_at) = quic_server(1);
    let (near, at) = run(local(), quic_out(server_at, Quic::Auto), 1);
    let (_stream, port) = pairs::associate(at);
    let (client, one, two) = (socket(), echo(), echo());
    let ask = |target: SocketAddr, payload: &[u8]| {
        let bytes = exchange(&client, port, &pairs::socks_datagram(target, payload));
        let (source, start) = adit_proto::socks::parse_datagram(&bytes).unwrap();
        assert_eq!((source, &bytes[start..]), (target.into(), payload));
    };
    // Two connections of QUIC from one socket of the application, and other datagrams beside them.
    for target in [one, two] {
        ask(target, &initial(1));
        ask(target, b"\x40raw");
    }
    let status = eventually(&near, |status| status.down == 4);
    assert_eq!((status.flows, status.begun), (2, 2), "{status:?}");
    ask(echo(), b"not quic");
    let status = eventually(&near, |status| status.down == 5);
    assert_eq!((status.flows, status.begun), (3, 3), "{status:?}");
    let status = eventually(&far, |status| status.down == 5);
    assert_eq!((status.flows, status.begun), (3, 3), "{status:?}");
    near.end();
    far.end();
}

#[test]
fn quic_may_be_blocked_or_go_over_the_stream() {
    let (far, server_at) = run(snell_in(), OutboundProtocol::Direct, 1);
    let (near, at) = run(tunnel(echo()), quic_out(server_at, Quic::Block), 1);
    let client = socket();
    client.send_to(&initial(1), at).unwrap();
    eventually(&near, |status| status.dropped.get("blocked") == Some(&1));
    assert_eq!(exchange(&client, at, b"\x40other"), b"\x40other");
    near.end();
    let (near, at) = run(tunnel(echo()), quic_out(server_at, Quic::Off), 1);
    assert_eq!(exchange(&client, at, &initial(1)), initial(1));
    near.end();
    far.end();
}

/// The server takes no QUIC: its client finds out, and what follows goes over the stream.
#[test]
fn a_server_that_answers_no_quic_is_noticed() {
    let (far, server_at) = run(snell_in(), OutboundProtocol::Direct, 1);
    let (near, at) = run(tunnel(echo()), quic_out(server_at, Quic::Auto), 1);
    let client = socket();
    client.set_read_timeout(Some(Duration::from_millis(350))).unwrap();
    let mut bytes = [0; 2000];
    for _ in 0..40 {
        client.send_to(&initial(1), at).unwrap();
        if client.recv(&mut bytes).is_ok() {
            near.end();
            return far.end();
        }
    }
    panic!("no answer: {:?} {:?}", seen(&near), seen(&far));
}
