//! `sniffer` of mihomo's file: names that are read from the first bytes of clients.

use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::thread;
use std::time::{Duration, Instant};

use adit_testkit::{unused_localhost, wait_for};

use crate::clash_api::{get, mihomo, put};
use crate::support::{Dir, PATIENCE, Running, echo, socks5};

/// A mihomo with a port of SOCKS and a controller.
struct Core {
    _running: Running,
    _dir: Dir,
    at: SocketAddr,
    port: SocketAddr,
}

fn core(text: &str) -> Core {
    let (dir, at, port) = (Dir::new(), unused_localhost(), unused_localhost());
    let head = format!("mixed-port: {}\nexternal-controller: {at}\nsecret: s3cret\n", port.port());
    dir.file("config.yaml", &format!("{head}{text}"));
    let running = mihomo(&dir, &[]);
    running.line("RESTful API listening at");
    wait_for("the port", || TcpStream::connect(port).is_ok());
    Core { _running: running, _dir: dir, at, port }
}

fn request(host: &str) -> String {
    format!("GET / HTTP/1.1\r\nHost: {host}\r\n\r\n")
}

/// A connection by SOCKS5, unless it is refused.
fn connect(port: SocketAddr, host: &str, to: u16) -> Option<TcpStream> {
    let mut stream = TcpStream::connect(port).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    let name = [&[5, 1, 0, 5, 1, 0, 3, u8::try_from(host.len()).unwrap()][..], host.as_bytes()].concat();
    stream.write_all(&[&name[..], &to.to_be_bytes()].concat()).unwrap();
    let mut reply = [0; 12];
    stream.read_exact(&mut reply).unwrap();
    (reply[3] == 0).then_some(stream)
}

/// Whether what is sent to `to` comes back.
fn comes_back(port: SocketAddr, to: (&str, u16), bytes: &[u8]) -> Option<TcpStream> {
    let mut stream = connect(port, to.0, to.1)?;
    stream.write_all(bytes).ok()?;
    let mut back = vec![0; bytes.len()];
    stream.read_exact(&mut back).ok()?;
    (back == bytes).then_some(stream)
}

/// A ClientHello for `name`, in one record.
fn hello(name: &str) -> Vec<u8> {
    let short = |len: usize| u16::try_from(len).unwrap().to_be_bytes();
    let name = name.as_bytes();
    let sni = [&[0, 0][..], &short(name.len() + 5), &short(name.len() + 3), &[0], &short(name.len()), name]
        .concat();
    let head = [&[3, 3][..], &[7; 32], &[0, 0, 2, 0x13, 1, 1, 0]].concat();
    let body = [&head[..], &short(sni.len()), &sni].concat();
    let message = [&[1, 0][..], &short(body.len()), &body].concat();
    [&[22, 3, 1][..], &short(message.len()), &message].concat()
}

/// The one connection that is open.
fn shown(core: &Core) -> serde_json::Value {
    get(core.at, "/connections")["connections"][0].clone()
}

/// The name takes the place of the address: nothing listens at 127.0.0.9, but the name leads to 127.0.0.1.
#[test]
fn streams_go_to_the_name() {
    let target = echo().port();
    let core = core(&format!(
        "hosts: {{sniffed.test: 127.0.0.1, other.test: 127.0.0.1}}\n\
         sniffer:\n  enable: true\n  sniff: {{HTTP: {{ports: [{target}]}}}}\n  skip-domain: ['skip.test']\n\
         rules: ['DOMAIN,other.test,REJECT', 'DOMAIN,sniffed.test,DIRECT', 'IP-CIDR,127.0.0.9/32,DIRECT,no-resolve', 'MATCH,REJECT']\n"
    ));
    let held = comes_back(core.port, ("127.0.0.9", target), request("sniffed.test").as_bytes());
    assert!(held.is_some());
    let one = shown(&core);
    assert_eq!((&one["rule"], &one["rulePayload"]), (&"Domain".into(), &"sniffed.test".into()), "{one}");
    assert_eq!(
        (&one["metadata"]["sniffHost"], &one["metadata"]["host"]),
        (&"sniffed.test".into(), &"sniffed.test".into())
    );
    drop(held);
    assert!(
        comes_back(core.port, ("127.0.0.1", target), request("other.test").as_bytes()).is_none(),
        "its rule refuses"
    );
    // A name that is skipped is not used, and neither is one of another protocol.
    let held = comes_back(core.port, ("127.0.0.1", target), request("skip.test").as_bytes());
    assert!(held.is_none(), "no rule is about 127.0.0.1");
    assert!(comes_back(core.port, ("127.0.0.1", target), &hello("sniffed.test")).is_none());
    assert_eq!(get(core.at, "/configs")["sniffing"], true);
    assert_eq!(put(core.at, "PATCH", "/configs", r#"{"sniffing":false}"#), 204);
    assert_eq!(get(core.at, "/configs")["sniffing"], false);
    assert!(comes_back(core.port, ("127.0.0.9", target), request("sniffed.test").as_bytes()).is_none());
    assert_eq!(put(core.at, "PATCH", "/configs", r#"{"sniffing":true}"#), 204);
    assert!(comes_back(core.port, ("127.0.0.9", target), request("sniffed.test").as_bytes()).is_some());
}

/// Without `override-destination` rules see the name and the address, and the stream goes to the address.
#[test]
fn rules_see_the_name_and_the_address() {
    let target = echo().port();
    let core = core(&format!(
        "sniffer:\n  enable: true\n  sniff: {{TLS: {{ports: ['{target}'], override-destination: false}}}}\n  \
         skip-dst-address: ['127.0.0.2/32']\n  force-domain: ['localhost']\n\
         rules: ['DOMAIN,none.test,REJECT', 'DOMAIN-SUFFIX,far.test,DIRECT', 'AND,((DOMAIN,near.test),(IP-CIDR,127.0.0.1/32,no-resolve)),DIRECT', 'MATCH,REJECT']\n"
    ));
    for (host, name, passes) in [
        ("127.0.0.1", "a.far.test", true),
        ("127.0.0.1", "near.test", true),
        ("127.0.0.1", "none.test", false),
        ("127.0.0.1", "unknown.test", false),
        ("localhost", "a.far.test", true),
        ("127.0.0.2", "a.far.test", false),
    ] {
        let held = comes_back(core.port, (host, target), &hello(name));
        assert_eq!(held.is_some(), passes, "{host} {name}");
        if held.is_some() {
            let about = &shown(&core)["metadata"];
            assert_eq!(about["sniffHost"], name, "{about}");
        }
        drop(held);
        wait_for("the end", || get(core.at, "/connections")["connections"].is_null());
    }
}

/// A target that speaks first is waited for, and after some times in vain not at all. mihomo closes such connections.
#[test]
fn a_target_that_speaks_first() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let target = listener.local_addr().unwrap().port();
    thread::spawn(move || {
        for mut stream in listener.incoming().flatten() {
            stream.write_all(b"220 ready").ok();
        }
    });
    let core = core(&format!(
        "sniffer: {{enable: true, sniff: {{TLS: {{ports: [{target}]}}}}}}\nrules: ['MATCH,DIRECT']\n"
    ));
    // Each event loop learns it for itself.
    let mut took = Vec::new();
    while took.len() < 60 && took.last().is_none_or(|took| *took >= Duration::from_millis(290)) {
        let begun = Instant::now();
        let mut stream = socks5(core.port, "127.0.0.1", target);
        let mut greeting = [0; 9];
        stream.read_exact(&mut greeting).unwrap();
        assert_eq!(&greeting, b"220 ready");
        took.push(begun.elapsed());
    }
    assert!(took[..6].iter().all(|took| *took >= Duration::from_millis(290)), "{took:?}");
    assert!(took.iter().any(|took| *took < Duration::from_millis(290)), "{took:?}");
}

/// The name of a flow of QUIC, which takes two datagrams; both arrive.
#[test]
fn names_of_quic() {
    let target = UdpSocket::bind("127.0.0.1:0").unwrap();
    target.set_read_timeout(Some(PATIENCE)).unwrap();
    let to = target.local_addr().unwrap();
    let core = core(&format!(
        "sniffer: {{enable: true, sniff: {{QUIC: {{ports: [{}]}}}}}}\n\
         rules: ['AND,((NETWORK,udp),(DOMAIN,example.com)),DIRECT', 'MATCH,REJECT']\n",
        to.port()
    ));
    let mut control = TcpStream::connect(core.port).unwrap();
    control.write_all(&[5, 1, 0, 5, 3, 0, 1, 0, 0, 0, 0, 0, 0]).unwrap();
    let mut reply = [0; 12];
    control.read_exact(&mut reply).unwrap();
    let relay = SocketAddr::from(([127, 0, 0, 1], u16::from_be_bytes([reply[10], reply[11]])));
    let client = UdpSocket::bind("127.0.0.1:0").unwrap();
    let digit = |text: &str, at: usize| u8::from_str_radix(&text[at..at + 2], 16).unwrap();
    let hello: Vec<Vec<u8>> = include_str!("../../../../testdata/quic/hello-in-two.hex")
        .lines()
        .map(|line| (0..line.len()).step_by(2).map(|at| digit(line, at)).collect())
        .collect();
    for datagram in &hello {
        let mut bytes = vec![0, 0, 0, 1, 127, 0, 0, 1];
        bytes.extend(to.port().to_be_bytes());
        bytes.extend(datagram);
        client.send_to(&bytes, relay).unwrap();
    }
    let mut bytes = [0; 2000];
    let mut got: Vec<Vec<u8>> = (0..2)
        .map(|_| {
            let len = target.recv(&mut bytes).unwrap();
            bytes[..len].to_vec()
        })
        .collect();
    got.sort_by_key(Vec::len);
    assert_eq!(got, hello);
    let one = shown(&core);
    assert_eq!(
        (&one["rule"], &one["metadata"]["sniffHost"]),
        (&"AND".into(), &"example.com".into()),
        "{one}"
    );
    // Datagrams of another kind are not of that name.
    let mut bytes = vec![0, 0, 0, 1, 127, 0, 0, 2];
    bytes.extend(to.port().to_be_bytes());
    bytes.extend(b"other");
    client.send_to(&bytes, relay).unwrap();
    target.set_read_timeout(Some(Duration::from_millis(300))).unwrap();
    assert!(target.recv(&mut [0; 64]).is_err());
}
