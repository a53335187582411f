//! Keys of mihomo's file that say who may use a port, which names stand for others, and which name servers are believed.
//! `ADIT_TEST_IN_PLACE=PATH` puts mihomo in the place of adit.

use std::collections::BTreeMap;
use std::io::{Read as _, Write as _};
use std::net::{IpAddr, SocketAddr, TcpStream, UdpSocket};

use adit_testkit::unused_localhost;

use crate::clash_api::{ask, get, is_connected, mihomo, peer};
use crate::clash_differ::name_server;
use crate::support::{Dir, PATIENCE, Running, echo, round_trip, socks5};

struct Core {
    _running: Running,
    _dir: Dir,
    at: SocketAddr,
    mixed: SocketAddr,
}

/// A mihomo with these keys besides its ports.
fn core(keys: &str) -> Core {
    let (dir, at, mixed) = (Dir::new(), unused_localhost(), unused_localhost());
    let text = format!(
        "mixed-port: {}\nexternal-controller: {at}\nsecret: s3cret\nlog-level: debug\n{keys}",
        mixed.port()
    );
    dir.file("config.yaml", &text);
    let running = mihomo(&dir, &[]);
    running.line("RESTful API listening at");
    running.line("proxy listening at");
    Core { _running: running, _dir: dir, at, mixed }
}

/// The answer to a client of SOCKS5 that offers these ways of authentication; empty if the connection is closed.
fn greet(at: SocketAddr, methods: &[u8]) -> Vec<u8> {
    let mut stream = TcpStream::connect(at).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    let hello = [&[5, u8::try_from(methods.len()).unwrap()], methods].concat();
    if stream.write_all(&hello).is_err() {
        return Vec::new();
    }
    let mut answer = vec![0; 2];
    match stream.read_exact(&mut answer) {
        Ok(()) => answer,
        Err(_) => Vec::new(),
    }
}

#[test]
fn clients_are_refused_by_their_addresses() {
    let rest = "rules: ['MATCH,DIRECT']\n";
    for (keys, is_taken) in [
        ("lan-disallowed-ips: [127.0.0.1/32]\n", false),
        ("lan-allowed-ips: [192.168.0.0/16]\n", false),
        ("lan-allowed-ips: [127.0.0.0/8]\nlan-disallowed-ips: [10.0.0.0/8]\n", true),
        ("lan-allowed-ips: [127.0.0.0/8]\nlan-disallowed-ips: [127.0.0.1/32]\n", false),
        ("lan-disallowed-ips: [127.0.0.1/32]\nmode: direct\n", false),
    ] {
        let core = core(&format!("{keys}{rest}"));
        assert_eq!(greet(core.mixed, &[0]), if is_taken { vec![5, 0] } else { vec![] }, "{keys}");
        let shown = get(core.at, "/configs");
        assert_eq!(shown["lan-disallowed-ips"].is_array(), keys.contains("lan-disallowed-ips"), "{shown}");
    }
}

#[test]
fn clients_that_need_no_password() {
    let text = "authentication: ['ann:pw']\nrules: ['MATCH,DIRECT']\n";
    let open = core(&format!("{text}skip-auth-prefixes: [127.0.0.1/8]\n"));
    assert_eq!(greet(open.mixed, &[0]), [5, 0]);
    let mut stream = socks5(open.mixed, "127.0.0.1", echo().port());
    round_trip(&mut stream, 1000);
    assert_eq!(get(open.at, "/configs")["skip-auth-prefixes"][0], "127.0.0.1/8");
    let mut web = TcpStream::connect(open.mixed).unwrap();
    let to = echo();
    write!(web, "CONNECT {to} HTTP/1.1\r\nHost: {to}\r\n\r\n").unwrap();
    let mut answer = [0; 12];
    web.read_exact(&mut answer).unwrap();
    assert_eq!(&answer, b"HTTP/1.1 200");
    let closed = core(&format!("{text}skip-auth-prefixes: [192.168.0.0/16]\n"));
    assert_ne!(greet(closed.mixed, &[0]), [5, 0]);
    assert_eq!(greet(closed.mixed, &[2]), [5, 2]);
}

#[test]
fn names_that_stand_for_others() {
    let core = core(
        "hosts: {alias.test: real.test, real.test: 127.0.0.1, '*.star.test': 127.0.0.1, far.test: none.test}\n\
         dns: {enable: true, nameserver: ['127.0.0.1:1']}\n\
         rules: ['DOMAIN,real.test,DIRECT', 'DOMAIN-SUFFIX,star.test,DIRECT', 'MATCH,REJECT']\n",
    );
    let to = echo();
    for name in ["alias.test", "real.test", "a.star.test"] {
        let mut stream = socks5(core.mixed, name, to.port());
        round_trip(&mut stream, 1000);
        let shown = get(core.at, "/connections");
        let held = shown["connections"].as_array().unwrap();
        let host = held[0]["metadata"]["host"].as_str().unwrap();
        assert_eq!(host, if name == "alias.test" { "real.test" } else { name }, "{shown}");
        drop(stream);
        adit_testkit::wait_for("the end of the connection", || {
            get(core.at, "/connections")["connections"].as_array().is_none_or(Vec::is_empty)
        });
    }
    // Datagrams as well.
    let target = UdpSocket::bind("127.0.0.1:0").unwrap();
    target.set_read_timeout(Some(PATIENCE)).unwrap();
    let mut control = TcpStream::connect(core.mixed).unwrap();
    control.write_all(&[5, 1, 0]).unwrap();
    control.read_exact(&mut [0; 2]).unwrap();
    control.write_all(&[5, 3, 0, 1, 0, 0, 0, 0, 0, 0]).unwrap();
    let mut reply = [0; 10];
    control.read_exact(&mut reply).unwrap();
    let relay = SocketAddr::from(([127, 0, 0, 1], u16::from_be_bytes([reply[8], reply[9]])));
    let client = UdpSocket::bind("127.0.0.1:0").unwrap();
    let port = target.local_addr().unwrap().port().to_be_bytes();
    let datagram = [&[0, 0, 0, 3, 10][..], b"alias.test", &port, b"hello"].concat();
    client.send_to(&datagram, relay).unwrap();
    let mut bytes = [0; 64];
    assert_eq!(target.recv_from(&mut bytes).unwrap().0, 5);
}

fn zone(names: &[(&str, &str)]) -> BTreeMap<String, Vec<IpAddr>> {
    names.iter().map(|(name, ip)| ((*name).to_owned(), vec![ip.parse().unwrap()])).collect()
}

#[test]
fn servers_in_the_place_of_others() {
    let first = name_server(zone(&[
        ("good.test", "10.0.0.1"),
        ("bad.test", "240.0.0.1"),
        ("far.test", "10.0.0.2"),
        ("own.far.test", "10.0.0.3"),
    ]));
    let fallback = name_server(zone(&[
        ("good.test", "192.0.2.1"),
        ("bad.test", "192.0.2.2"),
        ("far.test", "192.0.2.3"),
        ("own.far.test", "192.0.2.4"),
        ("only.test", "192.0.2.5"),
    ]));
    let core = core(&format!(
        "dns: {{enable: true, nameserver: ['127.0.0.1:{first}'], fallback: ['127.0.0.1:{fallback}'], \
         nameserver-policy: {{own.far.test: '127.0.0.1:{first}'}}, \
         fallback-filter: {{geoip: false, ipcidr: [240.0.0.0/4], domain: [+.far.test]}}}}\nrules: ['MATCH,DIRECT']\n"
    ));
    for (name, ip) in [
        ("good.test", "10.0.0.1"),
        ("bad.test", "192.0.2.2"),
        ("far.test", "192.0.2.3"),
        ("own.far.test", "10.0.0.3"),
        ("only.test", "192.0.2.5"),
    ] {
        let answer = get(core.at, &format!("/dns/query?name={name}&type=A"));
        assert_eq!(answer["Answer"][0]["data"], ip, "{name}: {answer}");
    }
}

/// Rules see addresses that are known without a look-up: that of localhost, and those of the system's hosts file.
#[test]
fn addresses_that_are_known_without_a_look_up() {
    let to = echo();
    let rules = "rules: ['IP-CIDR,127.0.0.0/8,DIRECT,no-resolve', 'MATCH,REJECT']\n";
    let passes = |core: &Core, name: &str| is_connected(core.mixed, name, to.port());
    let text = std::fs::read_to_string("/etc/hosts").unwrap_or_default();
    let own = text.lines().filter_map(|line| {
        let mut words = line.split_whitespace();
        words.next().filter(|ip| *ip == "127.0.0.1")?;
        words.find(|name| !name.starts_with('#') && *name != "localhost")
    });
    let own = own.map(str::to_owned).next();
    for (dns, knows_system) in [
        ("", false),
        ("dns: {enable: true, nameserver: ['127.0.0.1:1']}\n", true),
        ("dns: {enable: true, use-system-hosts: false, nameserver: ['127.0.0.1:1']}\n", false),
    ] {
        let core = core(&format!("{dns}{rules}"));
        assert!(passes(&core, "localhost"), "{dns}");
        assert!(!passes(&core, "other.test"), "{dns}");
        if let Some(own) = &own {
            assert_eq!(passes(&core, own), knows_system, "{own} {dns}");
        }
    }
}

/// Lists of names whose servers are others.
#[test]
fn servers_of_lists() {
    let first =
        name_server(zone(&[("a.test", "10.0.0.1"), ("b.test", "10.0.0.2"), ("x.b.test", "10.0.0.3")]));
    let other =
        name_server(zone(&[("a.test", "192.0.2.1"), ("b.test", "192.0.2.2"), ("x.b.test", "192.0.2.3")]));
    let core = core(&format!(
        "dns: {{enable: true, nameserver: ['127.0.0.1:{first}'], \
         nameserver-policy: {{'x.b.test': '127.0.0.1:{first}', 'rule-set:one,two': '127.0.0.1:{other}'}}}}\n\
         rule-providers:\n  one: {{type: inline, behavior: domain, payload: ['none.test']}}\n  \
         two: {{type: inline, behavior: domain, payload: ['+.b.test']}}\nrules: ['MATCH,DIRECT']\n"
    ));
    for (name, ip) in [("a.test", "10.0.0.1"), ("b.test", "192.0.2.2"), ("x.b.test", "10.0.0.3")] {
        let answer = get(core.at, &format!("/dns/query?name={name}&type=A"));
        assert_eq!(answer["Answer"][0]["data"], ip, "{name}: {answer}");
    }
}

/// Questions to name servers that go as the rules say; those for the servers of proxies do not.
#[test]
fn questions_go_as_the_rules_say() {
    let server = name_server(zone(&[("a.test", "10.0.0.1")]));
    for (rule, is_answered) in [("DIRECT", true), ("REJECT", false)] {
        let core = core(&format!(
            "dns: {{enable: true, respect-rules: true, nameserver: ['127.0.0.1:{server}'], \
             proxy-server-nameserver: ['127.0.0.1:{server}']}}\n\
             rules: ['DST-PORT,{server},{rule}', 'MATCH,DIRECT']\n"
        ));
        let answer =
            ask(core.at, "GET", "/dns/query?name=a.test&type=A", &[("Authorization", "Bearer s3cret")], "");
        assert_eq!(answer.body.contains("10.0.0.1"), is_answered, "{rule}: {}", answer.body);
    }
}

/// The mark of a stream, which mihomo does not read.
#[cfg(target_os = "linux")]
#[test]
fn marks_of_streams() {
    if peer().is_some() || !adit_testkit::peer::has("python3") {
        return adit_testkit::skipped("it needs adit and python3");
    }
    let core = core("rules: ['DSCP,46,DIRECT', 'MATCH,REJECT']\n");
    let to = echo();
    // The standard library sets no mark.
    let script = "import socket,sys\n\
                  s=socket.socket(); s.setsockopt(socket.IPPROTO_IP,socket.IP_TOS,int(sys.argv[3])<<2)\n\
                  s.connect(('127.0.0.1',int(sys.argv[1]))); s.sendall(b'\\5\\1\\0'); s.recv(2)\n\
                  s.sendall(b'\\5\\1\\0\\1'+bytes([127,0,0,1])+int(sys.argv[2]).to_bytes(2,'big')); s.recv(10)\n\
                  s.sendall(b'hello'); print(s.recv(5))\n";
    let said = |mark: &str| {
        let (proxy, port) = (core.mixed.port().to_string(), to.port().to_string());
        let output = std::process::Command::new("python3").args(["-c", script, &proxy, &port, mark]).output();
        String::from_utf8(output.unwrap().stdout).unwrap()
    };
    assert!(said("46").contains("hello"));
    assert!(!said("0").contains("hello") && !said("10").contains("hello"));
}

/// A question about a record of a name.
fn question(name: &str, kind: u8) -> Vec<u8> {
    let labels = name.split('.').flat_map(|label| {
        std::iter::once(u8::try_from(label.len()).unwrap()).chain(label.bytes()).collect::<Vec<_>>()
    });
    [&[0x12, 0x34, 1, 0, 0, 1, 0, 0, 0, 0, 0, 0], &*labels.collect::<Vec<_>>(), &[0, 0, kind, 0, 1]].concat()
}

/// A proxy of type `dns` answers for every name server, over both transports, as the port for questions does.
#[test]
fn every_server_is_the_name_service() {
    let server = name_server(zone(&[("a.test", "10.0.0.1"), ("b.test", "10.0.0.2")]));
    for (mode, want) in [("normal", [10, 0, 0, 1]), ("fake-ip", [198, 18, 0, 0])] {
        let core = core(&format!(
            "dns: {{enable: true, enhanced-mode: {mode}, nameserver: ['127.0.0.1:{server}']}}\n\
             hosts: {{known.test: 192.0.2.7}}\nproxies: [{{name: names, type: dns}}]\n\
             proxy-groups: [{{name: G, type: select, proxies: [names]}}]\n\
             rules: ['DST-PORT,53,G', 'MATCH,REJECT']\n"
        ));
        let (_held, relay) = crate::faults::associate(core.mixed);
        let client = UdpSocket::bind("127.0.0.1:0").unwrap();
        client.set_read_timeout(Some(PATIENCE)).unwrap();
        let head = [0, 0, 0, 1, 192, 0, 2, 53, 0, 53];
        let ask = |message: &[u8]| {
            client.send_to(&[&head[..], message].concat(), relay).unwrap();
            let mut bytes = [0; 1500];
            let len = client.recv(&mut bytes).unwrap();
            assert_eq!(bytes[..10], head, "the source of the answer");
            bytes[10..len].to_vec()
        };
        let stream = |message: &[u8]| {
            let mut stream = socks5(core.mixed, "192.0.2.53", 53);
            stream.write_all(&u16::try_from(message.len()).unwrap().to_be_bytes()).unwrap();
            stream.write_all(message).unwrap();
            let mut len = [0; 2];
            stream.read_exact(&mut len).unwrap();
            let mut answer = vec![0; u16::from_be_bytes(len).into()];
            stream.read_exact(&mut answer).unwrap();
            answer
        };
        for answer in [ask(&question("a.test", 1)), stream(&question("a.test", 1))] {
            assert_eq!((answer[0], answer[1], answer[7]), (0x12, 0x34, 1), "{answer:?}");
            assert_eq!(answer[answer.len() - 4..][..2], want[..2], "{mode}: {answer:?}");
        }
        assert!(ask(&question("known.test", 1)).ends_with(&[192, 0, 2, 7]));
        // `dns.ipv6` is off.
        let none = ask(&question("a.test", 28));
        assert_eq!((none[3] & 15, none[7]), (0, 0), "{none:?}");
        // Bytes that are no question are answered by nobody, and the next question is.
        client.send_to(&[&head[..], b"x"].concat(), relay).unwrap();
        assert_eq!(ask(&question("b.test", 1))[7], 1);
    }
}
