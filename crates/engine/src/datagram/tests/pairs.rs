use super::*;

#[test]
fn a_tunnel_carries_datagrams_of_any_length_in_order() {
    let (running, at) = run(tunnel(echo()), OutboundProtocol::Direct, 1);
    let (one, two) = (socket(), socket());
    check_echo(&one, at, &mixed_lens());
    check_echo(&two, at, &mixed_lens());
    let count = u64::try_from(mixed_lens().len()).unwrap() * 2;
    let status = eventually(&running, |status| status.down == count);
    assert_eq!((status.up, status.flows, status.begun), (count, 2, 2));
    assert!(status.dropped.is_empty(), "{status:?}");
    running.end();
}

#[test]
fn clients_get_their_own_answers() {
    let (running, at) = run(tunnel(echo()), OutboundProtocol::Direct, 2);
    let clients: Vec<_> = (0..50).map(|_| socket()).collect();
    for round in 0..20_u8 {
        for (n, client) in (0..).zip(&clients) {
            client.send_to(&[n, round], at).unwrap();
        }
        for (n, client) in (0..).zip(&clients) {
            let mut bytes = [0; 10];
            let len = client.recv(&mut bytes).unwrap();
            assert_eq!(bytes[..len], [n, round]);
        }
    }
    assert_eq!(eventually(&running, |status| status.down == 1000).flows, 50);
    running.end();
}

#[test]
fn names_are_resolved_once_and_the_first_datagrams_wait() {
    let target = echo();
    let name = Target::new(b"localhost", target.port()).unwrap();
    let inbound = InboundProtocol::Tunnel { target: name, transports: Transports::Udp };
    let (running, at) = run(inbound, OutboundProtocol::Direct, 1);
    check_echo(&socket(), at, &[10, 20, 30, 40, 50]);
    running.end();
}

#[test]
fn an_unreachable_target_ends_its_flow() {
    let dead = adit_testkit::unused_addr();
    let (running, at) = run(tunnel(dead), OutboundProtocol::Direct, 1);
    let client = socket();
    client.send_to(b"nobody there", at).unwrap();
    eventually(&running, |status| status.up == 1);
    client.send_to(b"nobody there", at).unwrap();
    let status = eventually(&running, |status| status.unreachable == 1);
    assert_eq!((status.flows, status.begun), (0, 1));
    running.end();
}

#[test]
fn shadowsocks_both_ends_every_generation() {
    for method in [
        "none",
        "aes-256-cfb",
        "aes-128-gcm",
        "chacha20-ietf-poly1305",
        "2022-blake3-aes-128-gcm",
        "2022-blake3-chacha20-poly1305",
    ] {
        let (far, server_at) = run(server(method), OutboundProtocol::Direct, 1);
        let (near, at) = run(tunnel(echo()), client(method, server_at), 1);
        let one = socket();
        check_echo(&one, at, &mixed_lens());
        check_echo(&socket(), at, &mixed_lens());
        // Noise from somewhere else is counted, and harms nobody.
        socket().send_to(&[7; 100], server_at).unwrap();
        socket().send_to(b"", server_at).unwrap();
        check_echo(&one, at, &[5, 5, 5]);
        for running in [near, far] {
            let status = eventually(&running, |status| status.flows >= 2);
            assert!(status.flows <= 3 && !status.dropped.contains_key("system"), "{method}: {status:?}");
            running.end();
        }
    }
}

#[test]
fn an_inbound_whose_outbound_carries_no_datagrams_is_refused() {
    let error = start(&config(tunnel(LOOPBACK), OutboundProtocol::Reject, 1)).unwrap_err();
    assert!(matches!(error, crate::StartError::Build { .. }), "{error:?}");
}

/// Asks for an association and returns the connection that keeps it, and its port.
pub(super) fn associate(at: SocketAddr) -> (TcpStream, SocketAddr) {
    #[expect(clippy::disallowed_methods, reason = "an application of the test")]
    let mut stream = TcpStream::connect(at).unwrap();
    stream.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
    stream.write_all(&[5, 1, 0]).unwrap();
    let mut reply = [0; 12];
    stream.read_exact(&mut reply[..2]).unwrap();
    stream.write_all(&[5, 3, 0, 1, 0, 0, 0, 0, 0, 0]).unwrap();
    stream.read_exact(&mut reply[..10]).unwrap();
    assert_eq!(reply[..4], [5, 0, 0, 1]);
    let ip = Ipv4Addr::new(reply[4], reply[5], reply[6], reply[7]);
    (stream, SocketAddr::from((ip, u16::from_be_bytes([reply[8], reply[9]]))))
}

pub(super) fn socks_datagram(target: SocketAddr, payload: &[u8]) -> Vec<u8> {
    let target = Target::from(target);
    let mut bytes = vec![0; adit_proto::socks::header_len(&target)];
    adit_proto::socks::emit_header(&target, &mut bytes);
    bytes.extend(payload);
    bytes
}

fn check_socks(running: &Running, at: SocketAddr) {
    let (stream, port) = associate(at);
    let client = socket();
    let mut bytes = [0; 2000];
    for (n, target) in [echo(), echo(), echo()].into_iter().enumerate() {
        let payload = vec![u8::try_from(n).unwrap(); 1000 + n];
        client.send_to(&socks_datagram(target, &payload), port).unwrap();
        let len = client.recv(&mut bytes).unwrap();
        let (source, start) = adit_proto::socks::parse_datagram(&bytes[..len]).unwrap();
        assert_eq!((source, &bytes[start..len]), (target.into(), &payload[..]));
    }
    // Full cone: any socket that learns the port may answer.
    let (target, other) = (socket(), socket());
    client.send_to(&socks_datagram(addr(&target), b"knock"), port).unwrap();
    let (_, outside) = target.recv_from(&mut bytes).unwrap();
    other.send_to(b"hello", outside).unwrap();
    let len = client.recv(&mut bytes).unwrap();
    let (source, start) = adit_proto::socks::parse_datagram(&bytes[..len]).unwrap();
    assert_eq!((source, &bytes[start..len]), (addr(&other).into(), &b"hello"[..]));
    // The association ends with its connection.
    drop(stream);
    eventually(running, |status| status.flows == 0);
    client.send_to(&socks_datagram(addr(&target), b"late"), port).unwrap();
    target.set_read_timeout(Some(Duration::from_millis(300))).unwrap();
    assert!(target.recv_from(&mut bytes).is_err());
}

#[test]
fn socks_associations_are_full_cones_and_end_with_their_connection() {
    let (running, at) = run(local(), OutboundProtocol::Direct, 2);
    check_socks(&running, at);
    let status = eventually(&running, |status| status.flows == 0);
    assert_eq!((status.begun, status.up, status.down), (1, 4, 4));
    running.end();
}

#[test]
fn a_server_that_is_gone_ends_the_flow_of_all_targets() {
    let dead = adit_testkit::unused_addr();
    let (running, at) = run(local(), client("aes-128-gcm", dead), 1);
    let (_stream, port) = associate(at);
    let client = socket();
    for (n, target) in (1..).zip([echo(), echo()]) {
        client.send_to(&socks_datagram(target, b"nobody there"), port).unwrap();
        // The second one learns what became of the first.
        eventually(&running, |status| status.up == n);
    }
    let status = eventually(&running, |status| status.unreachable == 1);
    assert_eq!((status.flows, status.begun), (0, 1));
    running.end();
}

#[test]
fn socks_over_shadowsocks() {
    let (far, server_at) = run(server("2022-blake3-aes-128-gcm"), OutboundProtocol::Direct, 1);
    let (near, at) = run(local(), client("2022-blake3-aes-128-gcm", server_at), 1);
    // The datagram of the other socket comes back through the server as well.
    check_socks(&near, at);
    near.drain();
    far.end();
}
