//! Rules decide the way of real requests, by streams and by datagrams, and a change of rules holds for the next one.

use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::thread;
use std::time::{Duration, Instant};

use adit_engine::{Running, StartError, start};
use adit_formats::adit_toml;
use adit_model::Config;
use adit_testkit::unused_addr;

const TIME: Duration = Duration::from_secs(120);
/// No answer within this time is silence.
const SILENCE: Duration = Duration::from_millis(700);
/// Replies of RFC 1928, section 6.
const SUCCEEDED: u8 = 0;
const NOT_ALLOWED: u8 = 2;

/// Says its own number to each stream and datagram.
fn target(number: u8) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let addr = listener.local_addr().unwrap();
    let socket = UdpSocket::bind(addr).unwrap();
    thread::spawn(move || {
        for stream in listener.incoming() {
            stream.unwrap().write_all(&[number]).ok();
        }
    });
    thread::spawn(move || {
        let mut bytes = [0; 64];
        while let Ok((_, from)) = socket.recv_from(&mut bytes) {
            socket.send_to(&[number], from).unwrap();
        }
    });
    addr
}

/// A SOCKS port whose requests go nowhere by default, with a direct outbound for rules.
fn config(listen: SocketAddr, rules: &str) -> Config {
    let text = format!(
        "cores = 1\nstate = \"off\"\n[limits]\ndrain = \"100ms\"\n\
         [[inbound]]\nname = \"socks\"\nprotocol = \"socks\"\nlisten = \"{listen}\"\noutbound = \"nowhere\"\n\
         [[outbound]]\nname = \"nowhere\"\nprotocol = \"reject\"\n\
         [[outbound]]\nname = \"home\"\nprotocol = \"direct\"\n{rules}"
    );
    adit_toml::parse("rules.toml", &text).unwrap_or_else(|found| panic!("{found}\n{text}")).config
}

/// The reply to CONNECT, and the target's number; an error where the port resets or says nothing.
fn connect(socks: SocketAddr, host: &str, port: u16) -> std::io::Result<(u8, Option<u8>)> {
    connect_within(TIME, socks, host, port)
}

fn connect_within(
    time: Duration,
    socks: SocketAddr,
    host: &str,
    port: u16,
) -> std::io::Result<(u8, Option<u8>)> {
    let mut stream = TcpStream::connect(socks)?;
    stream.set_read_timeout(Some(TIME))?;
    let mut request = vec![5, 1, 0, 5, 1, 0];
    match host.parse() {
        Ok(std::net::IpAddr::V4(ip)) => {
            request.push(1);
            request.extend(ip.octets());
        }
        Ok(std::net::IpAddr::V6(_)) => unreachable!("not in these tests"),
        Err(_) => {
            request.extend([3, u8::try_from(host.len()).unwrap()]);
            request.extend(host.as_bytes());
        }
    }
    request.extend(port.to_be_bytes());
    stream.write_all(&request)?;
    let mut greeting = [0; 2];
    stream.read_exact(&mut greeting)?;
    stream.set_read_timeout(Some(time))?;
    let mut reply = [0; 10];
    stream.read_exact(&mut reply)?;
    let mut number = [0; 1];
    let has_number = reply[1] == SUCCEEDED && stream.read_exact(&mut number).is_ok();
    Ok((reply[1], has_number.then_some(number[0])))
}

/// An association, and the address for its datagrams.
fn associate(socks: SocketAddr) -> (TcpStream, UdpSocket) {
    let mut stream = TcpStream::connect(socks).unwrap();
    stream.set_read_timeout(Some(TIME)).unwrap();
    stream.write_all(&[5, 1, 0, 5, 3, 0, 1, 0, 0, 0, 0, 0, 0]).unwrap();
    let mut reply = [0; 12];
    stream.read_exact(&mut reply).unwrap();
    assert_eq!(reply[3], SUCCEEDED);
    let port = u16::from_be_bytes([reply[10], reply[11]]);
    let socket = UdpSocket::bind((stream.local_addr().unwrap().ip(), 0)).unwrap();
    socket.connect((socks.ip(), port)).unwrap();
    (stream, socket)
}

/// Expects this number back from `to`, or nothing.
fn check(socket: &UdpSocket, to: SocketAddr, expected: Option<u8>, what: &str) {
    socket.set_read_timeout(Some(if expected.is_some() { TIME } else { SILENCE })).unwrap();
    assert_eq!(ask(socket, to), expected, "{what}");
}

/// The number that comes back from `to`, if anything does.
fn ask(socket: &UdpSocket, to: SocketAddr) -> Option<u8> {
    let SocketAddr::V4(to) = to else { unreachable!("not in these tests") };
    let mut datagram = vec![0, 0, 0, 1];
    datagram.extend(to.ip().octets());
    datagram.extend(to.port().to_be_bytes());
    datagram.push(b'?');
    socket.send(&datagram).unwrap();
    let mut answer = [0; 64];
    match socket.recv(&mut answer) {
        Ok(len) => Some(answer[len - 1]),
        Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) => None,
        Err(error) => panic!("{error:?}"),
    }
}

/// Starts anew at the ports of before: a child that another test starts has a copy of their sockets until it has become
/// its program.
fn run(config: &Config) -> Running {
    let began = Instant::now();
    loop {
        match start(config) {
            Ok(running) => return running,
            Err(StartError::Listen { .. }) if began.elapsed() < TIME => {
                thread::sleep(Duration::from_millis(5))
            }
            Err(error) => panic!("{error}: {error:?}"),
        }
    }
}

#[test]
fn rules_decide_for_streams_and_each_manner_of_refusal_is_its_own() {
    let (allowed, reset, silent, refused) = (target(1), target(2), target(3), target(4));
    let socks = unused_addr();
    let rules = format!(
        "[[rule]]\nport = [{}]\nreject = \"reset\"\n\
         [[rule]]\nport = [{}]\nreject = \"drop\"\n\
         [[rule]]\nport = [{}]\nreject = \"protocol\"\n\
         [[rule]]\ndomain = [\"localhost\"]\noutbound = \"home\"\n\
         [[rule]]\nip-cidr = [\"127.0.0.0/8\"]\nport = [{}]\noutbound = \"home\"\n",
        reset.port(),
        silent.port(),
        refused.port(),
        allowed.port()
    );
    let running = run(&config(socks, &rules));
    assert_eq!(connect(socks, "127.0.0.1", allowed.port()).unwrap(), (SUCCEEDED, Some(1)));
    assert_eq!(connect(socks, "localhost", allowed.port()).unwrap(), (SUCCEEDED, Some(1)));
    assert_eq!(connect(socks, "127.0.0.1", refused.port()).unwrap(), (NOT_ALLOWED, None));
    let error = connect(socks, "127.0.0.1", reset.port()).unwrap_err();
    assert!(matches!(error.kind(), ErrorKind::ConnectionReset | ErrorKind::UnexpectedEof), "{error}");
    let error = connect_within(SILENCE, socks, "127.0.0.1", silent.port()).unwrap_err();
    assert!(matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut), "{error}");
    // No rule: the inbound's outbound refuses.
    assert_eq!(connect(socks, "127.0.0.1", unused_addr().port()).unwrap(), (NOT_ALLOWED, None));
    let status = running.status();
    assert_eq!(status.inbounds[0].refused.get("rule"), Some(&2), "{:?}", status.inbounds[0].refused);
    running.end();
}

#[test]
fn datagrams_of_one_association_take_the_ways_of_their_targets() {
    let (allowed, refused) = (target(5), target(6));
    let socks = unused_addr();
    let rule =
        |port: u16, verdict: &str| format!("[[rule]]\nnetwork = \"udp\"\nport = [{port}]\n{verdict}\n");
    let rules = rule(allowed.port(), "outbound = \"home\"") + &rule(refused.port(), "reject = \"protocol\"");
    // Associations need an outbound that carries datagrams.
    let with_default = |rules: &str| {
        let mut config = config(socks, rules);
        config.inbounds[0].outbound = "home".into();
        config
    };
    let running = run(&with_default(&rules));
    let (_control, socket) = associate(socks);
    check(&socket, allowed, Some(5), "allowed");
    check(&socket, refused, None, "refused");
    check(&socket, allowed, Some(5), "allowed again");
    // The same association, once the rules have changed places.
    let rules = rule(refused.port(), "outbound = \"home\"") + &rule(allowed.port(), "reject = \"protocol\"");
    running.apply(&with_default(&rules)).unwrap();
    check(&socket, refused, Some(6), "the other one");
    check(&socket, allowed, None, "the first one");
    running.end();
}

/// Facts about the client: its program and user, the port that it came to, its way of asking.
#[cfg(target_os = "linux")]
#[test]
fn the_program_of_a_client_decides_for_streams_and_datagrams() {
    use std::os::unix::fs::MetadataExt as _;
    let (at, socks) = (target(7), unused_addr());
    let path = std::env::current_exe().unwrap();
    let name = path.file_name().unwrap().to_string_lossy().to_uppercase();
    let uid = std::fs::metadata("/proc/self").unwrap().uid();
    let facts = [
        (format!("process = \"{name}\""), true),
        ("process = \"another\"".to_owned(), false),
        (format!("process-path = [\"/none\", \"{}\"]", path.display()), true),
        ("process-regex = \"^IT-\"".to_owned(), true),
        ("process-path-regex = \"^/none/\"".to_owned(), false),
        (format!("uid = [{uid}, \"70000-70001\"]"), true),
        (format!("uid = {}", uid + 1), false),
        (format!("inbound-port = {}", socks.port()), true),
        (format!("inbound-port = \"1-{}\"", socks.port() - 1), false),
        ("inbound-type = [\"http\", \"SOCKS5\"]".to_owned(), true),
        ("inbound-type = \"https\"".to_owned(), false),
        ("not = { process = \"another\" }".to_owned(), true),
        // Behind a rule that asks for addresses, and before one.
        ("network = \"tcp\"\nip-cidr = \"192.0.2.0/24\"\nprocess = \"another\"".to_owned(), false),
    ];
    // Everything else is refused; the association needs an outbound that carries datagrams.
    let with = |fact: &str| {
        let end = "[[rule]]\nport = \"1-65535\"\nreject = \"protocol\"\n";
        let mut config = config(socks, &format!("[[rule]]\n{fact}\noutbound = \"home\"\n{end}"));
        config.inbounds[0].outbound = "home".into();
        config
    };
    let running = run(&with("port = 1"));
    for (fact, holds) in &facts {
        running.apply(&with(fact)).unwrap();
        let (reply, number) = connect(socks, "127.0.0.1", at.port()).unwrap();
        let want = if *holds { (SUCCEEDED, Some(7)) } else { (NOT_ALLOWED, None) };
        assert_eq!((reply, number), want, "{fact}");
        let (_control, socket) = associate(socks);
        check(&socket, at, holds.then_some(7), &format!("datagram: {fact}"));
    }
    // Nobody is sought, and nobody is found.
    let mut never = with(&facts[0].0);
    never.find_program = adit_model::rule::FindProgram::Never;
    running.apply(&never).unwrap();
    assert_eq!(connect(socks, "127.0.0.1", at.port()).unwrap(), (NOT_ALLOWED, None));
    running.end();
}

#[test]
fn a_change_of_rules_holds_for_the_next_request_and_cuts_no_stream() {
    let (echo, socks) = (TcpListener::bind("127.0.0.1:0").unwrap(), unused_addr());
    let at = echo.local_addr().unwrap();
    thread::spawn(move || {
        for stream in echo.incoming() {
            let mut stream = stream.unwrap();
            thread::spawn(move || {
                let mut bytes = [0; 16];
                while let Ok(len @ 1..) = stream.read(&mut bytes) {
                    stream.write_all(&bytes[..len]).unwrap();
                }
            });
        }
    });
    let allow = format!("[[rule]]\nport = [{}]\noutbound = \"home\"\n", at.port());
    let running = run(&config(socks, &allow));
    let mut held = TcpStream::connect(socks).unwrap();
    held.set_read_timeout(Some(TIME)).unwrap();
    let port = at.port().to_be_bytes();
    held.write_all(&[5, 1, 0, 5, 1, 0, 1, 127, 0, 0, 1, port[0], port[1]]).unwrap();
    let mut reply = [0; 12];
    held.read_exact(&mut reply).unwrap();
    assert_eq!(reply[3], SUCCEEDED);
    let mut says = |text: &[u8; 4]| {
        held.write_all(text).unwrap();
        let mut back = [0; 4];
        held.read_exact(&mut back).unwrap();
        assert_eq!(&back, text);
    };
    says(b"one.");
    running.apply(&config(socks, "")).unwrap();
    says(b"two.");
    assert_eq!(connect(socks, "127.0.0.1", at.port()).unwrap(), (NOT_ALLOWED, None));
    running.apply(&config(socks, &allow)).unwrap();
    // The target serves one connection alone.
    let reply = || connect_within(SILENCE, socks, "127.0.0.1", at.port());
    adit_testkit::wait_for("it is let through", || reply().is_ok_and(|(reply, _)| reply == SUCCEEDED));
    says(b"last");
    running.end();
}

/// A client whose Shadowsocks server is reached through a Snell server, all in this process.
#[test]
fn an_outbound_dials_through_another() {
    let target = TcpListener::bind("127.0.0.1:0").unwrap();
    let at = target.local_addr().unwrap();
    // Reads to the end, and answers with the number of bytes.
    thread::spawn(move || {
        for stream in target.incoming() {
            let mut stream = stream.unwrap();
            let mut text = Vec::new();
            stream.read_to_end(&mut text).unwrap();
            stream.write_all(format!("{}", text.len()).as_bytes()).unwrap();
        }
    });
    let [snell, shadowsocks, socks] = [(); 3].map(|()| unused_addr());
    let server = format!(
        "cores = 1\nstate = \"off\"\n[limits]\ndrain = \"100ms\"\n\
         [[inbound]]\nprotocol = \"snell\"\nlisten = \"{snell}\"\npsk = \"a key of the tests\"\n\
         allow-private = true\n\
         [[inbound]]\nprotocol = \"shadowsocks\"\nlisten = \"{shadowsocks}\"\nmethod = \"aes-128-gcm\"\n\
         password = \"loopback\"\nallow-private = true\n"
    );
    let client = format!(
        "cores = 1\nstate = \"off\"\n[limits]\ndrain = \"100ms\"\n\
         [[inbound]]\nprotocol = \"socks\"\nlisten = \"{socks}\"\noutbound = \"last\"\n\
         [[outbound]]\nname = \"last\"\nprotocol = \"shadowsocks\"\nserver = \"{shadowsocks}\"\n\
         method = \"aes-128-gcm\"\npassword = \"loopback\"\nthrough = \"first\"\n\
         [[outbound]]\nname = \"first\"\nprotocol = \"snell\"\nserver = \"{snell}\"\npsk = \"a key of the tests\"\n\
         half-close = \"on\"\n"
    );
    let parse =
        |text: &str| adit_toml::parse("t.toml", text).unwrap_or_else(|found| panic!("{found}")).config;
    let (server, client) = (run(&parse(&server)), run(&parse(&client)));
    let mut stream = TcpStream::connect(socks).unwrap();
    stream.set_read_timeout(Some(TIME)).unwrap();
    let port = at.port().to_be_bytes();
    stream.write_all(&[5, 1, 0, 5, 1, 0, 1, 127, 0, 0, 1, port[0], port[1]]).unwrap();
    stream.read_exact(&mut [0; 12]).unwrap();
    stream.write_all(&vec![7; 3_000_000]).unwrap();
    stream.shutdown(std::net::Shutdown::Write).unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    assert_eq!(answer, "3000000");
    let inbounds = server.status().inbounds;
    assert_eq!(inbounds.iter().map(|inbound| inbound.requests).collect::<Vec<_>>(), [1, 1]);
    client.end();
    server.end();
}

#[test]
fn loops_of_outbounds_and_unknown_ones_are_errors_with_their_places() {
    let outbound = |name: &str, through: &str| {
        format!("[[outbound]]\nname = \"{name}\"\nprotocol = \"direct\"\nthrough = \"{through}\"\n")
    };
    let listen = "[[inbound]]\nprotocol = \"socks\"\nlisten = \"127.0.0.1:1\"\n";
    let found = adit_toml::parse("t.toml", &(listen.to_owned() + &outbound("a", "b") + &outbound("b", "a")));
    let text = found.unwrap_err().to_string();
    assert!(text.contains("t.toml:7:11") && text.contains("a loop of outbounds: a -> b -> a"), "{text}");
    let found = adit_toml::parse("t.toml", &(listen.to_owned() + &outbound("home", "hone")));
    let text = found.unwrap_err().to_string();
    assert!(text.contains("t.toml:7:11") && text.contains("no such outbound: hone"), "{text}");
}

/// The first of two QUIC Initial packets (RFC 9001, with the keys of its appendix A): it holds a part of a hello alone.
const INITIAL: &str = "ca00000001088394c8f03e51570800004041031cd8ca46f4119ab27da3272ea54c7e3e7221320b29a9a6e168815c9fb2b4d6\
    f9e9d35c64711a5403fb1d72155f6bfb1125e30f2ed9540177d365db8e8667c777";

/// A TLS record with a hello (RFC 8446, 4.1.2) that names nobody.
fn hello() -> Vec<u8> {
    let body = [&[3, 3][..], &[7; 32], &[0, 0, 2, 0x13, 1, 1, 0]].concat();
    let len = u8::try_from(body.len()).unwrap();
    [&[22, 3, 1, 0, len + 4, 1, 0, 0, len][..], &body].concat()
}

/// Says the last octet of its client's address, and then echoes; on streams it speaks first.
fn speaks_first() -> SocketAddr {
    let octet = |from: SocketAddr| match from {
        SocketAddr::V4(from) => from.ip().octets()[3],
        SocketAddr::V6(_) => unreachable!("not in these tests"),
    };
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let addr = listener.local_addr().unwrap();
    let socket = UdpSocket::bind(addr).unwrap();
    thread::spawn(move || {
        while let Ok((mut stream, from)) = listener.accept() {
            thread::spawn(move || {
                stream.write_all(&[octet(from)]).unwrap();
                let mut bytes = [0; 4096];
                while let Ok(len @ 1..) = stream.read(&mut bytes) {
                    stream.write_all(&bytes[..len]).unwrap();
                }
            });
        }
    });
    thread::spawn(move || {
        let mut bytes = [0; 1500];
        while let Ok((_, from)) = socket.recv_from(&mut bytes) {
            socket.send_to(&[octet(from)], from).unwrap();
        }
    });
    addr
}

/// Two outbounds whose connections come from 127.0.0.1 and 127.0.0.2.
const WAYS: &str = "[[outbound]]\nname = \"one\"\nprotocol = \"direct\"\nbind-address = \"127.0.0.1\"\n\
    [[outbound]]\nname = \"two\"\nprotocol = \"direct\"\nbind-address = \"127.0.0.2\"\n";

/// Requests take the second way if a rule with these keys matches.
fn ways(inbounds: &str, rule: &str) -> Config {
    let head = "cores = 1\nstate = \"off\"\n[limits]\ndrain = \"100ms\"\n";
    let rule =
        if rule.is_empty() { String::new() } else { format!("[[rule]]\n{rule}\noutbound = \"two\"\n") };
    let text = format!("{head}{inbounds}{WAYS}{rule}");
    adit_toml::parse("ways.toml", &text).unwrap_or_else(|found| panic!("{found}\n{text}")).config
}

fn inbound(protocol: &str, listen: SocketAddr, more: &str) -> String {
    format!("[[inbound]]\nprotocol = \"{protocol}\"\nlisten = \"{listen}\"\noutbound = \"one\"\n{more}\n")
}

/// The way that a connection has taken whose application writes these pieces first. All of them come back unchanged.
fn way(mut stream: TcpStream, pieces: &[&[u8]]) -> u8 {
    stream.set_nodelay(true).unwrap();
    stream.set_read_timeout(Some(TIME)).unwrap();
    for (n, piece) in pieces.iter().enumerate() {
        if n > 0 {
            thread::sleep(Duration::from_millis(40));
        }
        stream.write_all(piece).unwrap();
    }
    let mut way = [0];
    stream.read_exact(&mut way).unwrap();
    stream.write_all(b"more").unwrap();
    let want = [&pieces.concat()[..], b"more"].concat();
    let mut back = vec![0; want.len()];
    stream.read_exact(&mut back).unwrap();
    assert_eq!(back, want);
    way[0]
}

/// A connection to `to` through a SOCKS port.
fn by_socks(socks: SocketAddr, to: SocketAddr) -> TcpStream {
    let mut stream = TcpStream::connect(socks).unwrap();
    stream.set_read_timeout(Some(TIME)).unwrap();
    let port = to.port().to_be_bytes();
    stream.write_all(&[5, 1, 0, 5, 1, 0, 1, 127, 0, 0, 1, port[0], port[1]]).unwrap();
    let mut reply = [0; 12];
    stream.read_exact(&mut reply).unwrap();
    assert_eq!(reply[3], SUCCEEDED);
    stream
}

/// The same by CONNECT.
fn by_http(proxy: SocketAddr, to: SocketAddr) -> TcpStream {
    let mut stream = TcpStream::connect(proxy).unwrap();
    stream.set_read_timeout(Some(TIME)).unwrap();
    write!(stream, "CONNECT {to} HTTP/1.1\r\nHost: {to}\r\n\r\n").unwrap();
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        let mut byte = [0];
        stream.read_exact(&mut byte).unwrap();
        head.push(byte[0]);
    }
    assert!(head.starts_with(b"HTTP/1.1 200"), "{}", String::from_utf8_lossy(&head));
    stream
}

#[test]
fn a_rule_tells_a_protocol_by_the_first_bytes() {
    let (to, mixed, tunnel) = (speaks_first(), unused_addr(), unused_addr());
    let inbounds = inbound("mixed", mixed, "") + &inbound("tunnel", tunnel, &format!("target = \"{to}\""));
    let hello = hello();
    let (first, rest) = hello.split_at(hello.len() / 2);
    let pieces: [&[&[u8]]; 5] =
        [&[&hello], &[first, rest], &[&hello, b"and more"], &[b"plain"], &[b"GE", b"PT"]];
    for (rule, ways_of) in [
        ("protocol = \"tls\"", [2, 2, 2, 1, 1]),
        ("or = [{ and = [{ protocol = [\"tls\", \"ssh\"] }] }, { port = 1 }]", [2, 2, 2, 1, 1]),
        ("not = { protocol = \"tls\" }", [1, 1, 1, 2, 2]),
        ("", [1; 5]),
    ] {
        let running = run(&ways(&inbounds, rule));
        for (pieces, want) in pieces.iter().zip(ways_of) {
            assert_eq!(way(by_socks(mixed, to), pieces), want, "socks, {rule} {pieces:?}");
            assert_eq!(way(by_http(mixed, to), pieces), want, "http, {rule} {pieces:?}");
            assert_eq!(way(TcpStream::connect(tunnel).unwrap(), pieces), want, "tunnel, {rule} {pieces:?}");
        }
        // The target speaks first, and the application waits for it.
        let silent = if rule.starts_with("not") { 2 } else { 1 };
        assert_eq!(way(by_socks(mixed, to), &[]), silent, "{rule}");
        assert_eq!(way(TcpStream::connect(tunnel).unwrap(), &[]), silent, "{rule}");
        running.end();
    }
}

#[test]
fn an_application_that_was_answered_before_a_refusal_is_reset() {
    let (to, socks) = (speaks_first(), unused_addr());
    let rule =
        "[[rule]]\nport = 1\nreject = \"protocol\"\n[[rule]]\nprotocol = \"tls\"\nreject = \"protocol\"\n";
    let mut config = config(socks, rule);
    config.inbounds[0].outbound = "home".into();
    let running = run(&config);
    let mut stream = by_socks(socks, to);
    stream.write_all(&hello()).unwrap();
    let error = stream.read(&mut [0]).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::ConnectionReset);
    assert_eq!(way(by_socks(socks, to), &[b"plain"]), 1);
    // Its way does not depend on its protocol: it gets a real answer.
    assert_eq!(connect(socks, "127.0.0.1", 1).unwrap(), (NOT_ALLOWED, None));
    running.end();
}

/// The server sides of each protocol, with what they need on both sides.
#[test]
fn servers_tell_protocols_of_what_their_clients_carry() {
    let to = speaks_first();
    let hello = hello();
    let (first, rest) = hello.split_at(20);
    for (protocol, keys) in [
        ("snell", "psk = \"a key of the tests\""),
        ("shadowsocks", "method = \"aes-128-gcm\"\npassword = \"loopback\""),
        ("ssr", "method = \"aes-256-cfb\"\npassword = \"loopback\""),
    ] {
        let (server, socks) = (unused_addr(), unused_addr());
        let inbounds = inbound(protocol, server, &format!("{keys}\nallow-private = true"));
        let client = format!(
            "cores = 1\nstate = \"off\"\n[limits]\ndrain = \"100ms\"\n\
             [[inbound]]\nprotocol = \"socks\"\nlisten = \"{socks}\"\noutbound = \"far\"\n\
             [[outbound]]\nname = \"far\"\nprotocol = \"{protocol}\"\nserver = \"{server}\"\n{keys}\n"
        );
        let client = adit_toml::parse("t.toml", &client).unwrap_or_else(|found| panic!("{found}\n{client}"));
        let (server, client) = (run(&ways(&inbounds, "protocol = \"tls\"")), run(&client.config));
        for (pieces, want) in [(&[first, rest][..], 2), (&[&hello[..]], 2), (&[b"plain"], 1), (&[], 1)] {
            assert_eq!(way(by_socks(socks, to), pieces), want, "{protocol} {pieces:?}");
        }
        client.end();
        server.end();
    }
}

/// The way that a datagram has taken.
fn ask_with(socket: &UdpSocket, to: SocketAddr, bytes: &[u8]) -> u8 {
    let SocketAddr::V4(to) = to else { unreachable!("not in these tests") };
    socket.set_read_timeout(Some(TIME)).unwrap();
    socket.send(&[&[0, 0, 0, 1][..], &to.ip().octets(), &to.port().to_be_bytes(), bytes].concat()).unwrap();
    let mut answer = [0; 64];
    let len = socket.recv(&mut answer).unwrap();
    answer[len - 1]
}

#[test]
fn a_flow_has_the_protocol_of_its_first_datagram() {
    let (one, two, socks) = (speaks_first(), speaks_first(), unused_addr());
    let inbounds = inbound("socks", socks, "");
    let running = run(&ways(&inbounds, "protocol = \"quic\""));
    let (_control, socket) = associate(socks);
    let initial = adit_testkit::hex(INITIAL);
    assert_eq!(ask_with(&socket, one, &initial), 2);
    assert_eq!(ask_with(&socket, two, b"plain"), 1);
    // Later bytes change nothing, also when the rules have changed and are asked once more.
    assert_eq!(ask_with(&socket, one, b"short header"), 2);
    running.apply(&ways(&inbounds, "port = 1\noutbound = \"one\"\n[[rule]]\nprotocol = \"quic\"")).unwrap();
    assert_eq!(ask_with(&socket, one, b"short header"), 2);
    assert_eq!(ask_with(&socket, two, &initial), 1);
    running.end();
}
