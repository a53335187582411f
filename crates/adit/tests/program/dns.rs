//! A port that answers questions, and requests for the fake addresses that it gives.

use std::io::{Read, Write};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpStream, UdpSocket};
use std::sync::Arc;
use std::sync::atomic::{AtomicU16, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use crate::support::{Dir, PATIENCE, Running, echo, round_trip, socks5};

const A: u16 = 1;
const PTR: u16 = 12;
const TXT: u16 = 16;
const AAAA: u16 = 28;
const HTTPS: u16 = 65;

/// An answer: its code, whether it was cut, and the data of its records of the type that was asked for.
#[derive(Debug, PartialEq, Eq)]
struct Answer {
    code: u8,
    is_cut: bool,
    records: Vec<Vec<u8>>,
}

impl Answer {
    fn ips(&self) -> Vec<IpAddr> {
        let ip = |data: &Vec<u8>| match <[u8; 4]>::try_from(&**data) {
            Ok(octets) => IpAddr::from(Ipv4Addr::from(octets)),
            Err(_) => Ipv6Addr::from(<[u8; 16]>::try_from(&**data).unwrap()).into(),
        };
        self.records.iter().map(ip).collect()
    }
}

fn labels(name: &str) -> Vec<u8> {
    let mut out = Vec::new();
    for label in name.split('.').filter(|label| !label.is_empty()) {
        out.push(u8::try_from(label.len()).unwrap());
        out.extend(label.as_bytes());
    }
    out.push(0);
    out
}

fn question(name: &str, kind: u16, edns: Option<u16>) -> Vec<u8> {
    let mut out = vec![0x12, 0x34, 1, 0, 0, 1, 0, 0, 0, 0, 0, u8::from(edns.is_some())];
    out.extend(labels(name));
    out.extend([kind.to_be_bytes(), [0, 1]].concat());
    if let Some(size) = edns {
        out.extend([&[0, 0, 41][..], &size.to_be_bytes(), &[0; 6]].concat());
    }
    out
}

/// Skips a name and gives where it ends.
fn skip_name(bytes: &[u8], mut at: usize) -> usize {
    while bytes[at] != 0 {
        if bytes[at] & 0xc0 != 0 {
            return at + 2;
        }
        at += 1 + usize::from(bytes[at]);
    }
    at + 1
}

fn read_answer(question: &[u8], bytes: &[u8]) -> Answer {
    let end = skip_name(question, 12) + 4;
    assert_eq!(bytes[..2], question[..2], "the id");
    assert_eq!((bytes[2] & 0xf9, bytes[3] & 0x80), (0x81, 0x80), "an answer: RD as it was asked, and RA");
    if bytes[5] == 1 {
        assert_eq!(bytes[12..end], question[12..end], "the question, as it was written");
    }
    let count = u16::from_be_bytes([bytes[6], bytes[7]]);
    let (mut at, mut records) = (end, Vec::new());
    for _ in 0..count {
        at = skip_name(bytes, at);
        let len = usize::from(u16::from_be_bytes([bytes[at + 8], bytes[at + 9]]));
        if bytes[at..at + 2] == question[end - 4..end - 2] {
            records.push(bytes[at + 10..at + 10 + len].to_vec());
        }
        at += 10 + len;
    }
    Answer { code: bytes[3] & 15, is_cut: bytes[2] & 2 != 0, records }
}

/// Asks over UDP from a socket that takes answers from the address alone that it asks.
fn ask(server: SocketAddr, name: &str, kind: u16) -> Answer {
    ask_with(server, &question(name, kind, Some(1232)))
}

fn ask_with(server: SocketAddr, question: &[u8]) -> Answer {
    let bytes = exchange(server, question).expect("an answer");
    read_answer(question, &bytes)
}

fn exchange(server: SocketAddr, question: &[u8]) -> Option<Vec<u8>> {
    let socket = UdpSocket::bind(if server.is_ipv4() { "0.0.0.0:0" } else { "[::]:0" }).unwrap();
    socket.connect(server).unwrap();
    socket.set_read_timeout(Some(PATIENCE)).unwrap();
    socket.send(question).unwrap();
    let mut buffer = [0; 4096];
    let len = socket.recv(&mut buffer).ok()?;
    Some(buffer[..len].to_vec())
}

/// Asks several questions over one TCP connection, in two pieces each.
fn ask_tcp(server: SocketAddr, questions: &[(&str, u16)]) -> Vec<Answer> {
    let mut stream = TcpStream::connect(server).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    stream.set_nodelay(true).unwrap();
    let mut answers = Vec::new();
    for (name, kind) in questions {
        let question = question(name, *kind, None);
        let len = u16::try_from(question.len()).unwrap().to_be_bytes();
        stream.write_all(&len[..1]).unwrap();
        stream.write_all(&[&len[1..], &question].concat()).unwrap();
        let mut len = [0; 2];
        stream.read_exact(&mut len).unwrap();
        let mut bytes = vec![0; u16::from_be_bytes(len).into()];
        stream.read_exact(&mut bytes).unwrap();
        answers.push(read_answer(&question, &bytes));
    }
    answers
}

/// A name server that gives 127.0.0.1 to every name, two texts, and nothing else.
fn name_server() -> SocketAddr {
    let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
    let address = socket.local_addr().unwrap();
    thread::spawn(move || {
        let mut buffer = [0; 1500];
        while let Ok((len, peer)) = socket.recv_from(&mut buffer) {
            let end = skip_name(&buffer, 12) + 4;
            assert!(end <= len);
            let mut answer = buffer[..end].to_vec();
            let kind = u16::from_be_bytes([buffer[end - 4], buffer[end - 3]]);
            let texts = [vec![b'x'; 200], vec![b'y'; 200], vec![b'z'; 200]];
            let texts: Vec<Vec<u8>> = texts.iter().map(|text| [&[200][..], text].concat()).collect();
            let data: Vec<Vec<u8>> = match kind {
                A => vec![vec![127, 0, 0, 1]],
                TXT => texts,
                _ => Vec::new(),
            };
            answer[2..12].copy_from_slice(&[
                0x81,
                0x80,
                0,
                1,
                0,
                u8::try_from(data.len()).unwrap(),
                0,
                0,
                0,
                0,
            ]);
            for data in data {
                answer.extend([0xc0, 0x0c]);
                answer.extend([kind.to_be_bytes(), [0, 1], [0, 0], [0, 60]].concat());
                answer.extend(u16::try_from(data.len()).unwrap().to_be_bytes());
                answer.extend(data);
            }
            socket.send_to(&answer, peer).unwrap();
        }
    });
    address
}

struct Site {
    dir: Dir,
    running: Option<Running>,
}

impl Site {
    fn new() -> Self {
        Self::with("[dns.fake]\nrange6 = \"fd00:adf::/64\"\nfilter = [\"default\", \"+.real.test\"]\n")
    }

    /// A site with these lines in `[dns]` or behind it.
    fn with(dns: &str) -> Self {
        let dir = Dir::new();
        let upstream = name_server();
        dir.file(
            "adit.toml",
            &format!(
                "[dns]\ndisable-browser-doh = true\n{dns}\
                 [[dns.upstream]]\nserver = \"{upstream}\"\n\
                 [[inbound]]\nname = \"names\"\nprotocol = \"dns\"\nlisten = \"0.0.0.0:0\"\n\
                 [[inbound]]\nname = \"local\"\nprotocol = \"mixed\"\nlisten = \"127.0.0.1:0\"\n\
                 [[outbound]]\nname = \"direct\"\nprotocol = \"direct\"\n\
                 [[rule]]\ndomain-suffix = \"blocked.test\"\nreject = \"protocol\"\n"
            ),
        );
        let mut site = Self { dir, running: None };
        site.start();
        site
    }

    fn start(&mut self) {
        self.running = Some(Running::start(self.dir.adit(&["run", "-c", "adit.toml"])));
    }

    fn running(&self) -> &Running {
        self.running.as_ref().unwrap()
    }

    fn port(&self, inbound: &str) -> u16 {
        let line = self.running().line(&format!("inbound={inbound} "));
        let address: SocketAddr = line.split("address=").nth(1).unwrap().trim().parse().unwrap();
        address.port()
    }

    fn names(&self) -> SocketAddr {
        SocketAddr::from(([127, 0, 0, 1], self.port("names")))
    }

    fn local(&self) -> SocketAddr {
        SocketAddr::from(([127, 0, 0, 1], self.port("local")))
    }
}

fn fake(answer: &Answer) -> IpAddr {
    assert_eq!((answer.code, answer.records.len()), (0, 1), "{answer:?}");
    answer.ips()[0]
}

/// The code of the reply to a SOCKS5 request.
fn refused(proxy: SocketAddr, target: SocketAddr) -> u8 {
    let mut stream = TcpStream::connect(proxy).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    stream.write_all(&[5, 1, 0]).unwrap();
    let mut choice = [0; 2];
    stream.read_exact(&mut choice).unwrap();
    stream.write_all(&request(1, target)).unwrap();
    let mut reply = [0; 4];
    stream.read_exact(&mut reply).unwrap();
    reply[1]
}

fn request(command: u8, target: SocketAddr) -> Vec<u8> {
    let mut out = vec![5, command, 0];
    match target.ip() {
        IpAddr::V4(ip) => out.extend([&[1][..], &ip.octets()].concat()),
        IpAddr::V6(ip) => out.extend([&[4][..], &ip.octets()].concat()),
    }
    out.extend(target.port().to_be_bytes());
    out
}

#[test]
fn questions_of_every_type_are_answered() {
    let site = Site::new();
    let names = site.names();
    let first = fake(&ask(names, "www.example.com", A));
    assert_eq!(first.to_string(), "198.18.128.16");
    let empty = Answer { code: 0, is_cut: false, records: Vec::new() };
    let missing = Answer { code: 3, ..ask(names, "www.example.com", HTTPS) };
    let real = |answer: &Answer| (answer.code, answer.ips());
    let loopback = (0, vec![IpAddr::from([127, 0, 0, 1])]);
    let mut all = Vec::new();
    let questions = [
        ("WWW.example.com", A),
        ("www.example.com", AAAA),
        ("www.example.com", HTTPS),
        ("16.128.18.198.in-addr.arpa", PTR),
        ("99.128.18.198.in-addr.arpa", PTR),
        ("use-application-dns.net", A),
        ("www.real.test", A),
        ("www.real.test", AAAA),
    ];
    all.push(questions.map(|(name, kind)| ask(names, name, kind)).into_iter().collect::<Vec<_>>());
    all.push(ask_tcp(names, &questions));
    for answers in &all {
        assert_eq!(fake(&answers[0]), first);
        assert_eq!(fake(&answers[1]).to_string(), "fd00:adf::10");
        assert_eq!(answers[2], empty);
        assert_eq!(answers[3].records, [labels("www.example.com")]);
        assert_eq!((&answers[4], &answers[5]), (&missing, &missing));
        assert_eq!(real(&answers[6]), loopback);
        assert_eq!(answers[7], empty);
    }
    // Others are asked for, and cut to the client's size over UDP alone.
    let texts = |answer: &Answer| (answer.code, answer.is_cut, answer.records.len());
    assert_eq!(texts(&ask(names, "www.example.com", TXT)), (0, false, 3));
    let short = ask_with(names, &question("www.example.com", TXT, None));
    assert!(short.is_cut && short.records.len() < 3, "512 bytes");
    assert_eq!(texts(&ask_tcp(names, &[("www.example.com", TXT)])[0]), (0, false, 3));
    // A reply comes from the address that was asked: the socket takes no other.
    for ip in [[127, 0, 0, 2], [127, 9, 9, 9]] {
        let there = SocketAddr::from((ip, names.port()));
        assert_eq!(fake(&ask(there, "www.example.com", A)), first);
        assert_eq!(real(&ask(there, "late.real.test", A)), loopback, "also one that somebody was asked for");
    }
    // Messages that are no questions.
    let code = |bytes: &[u8]| exchange(names, bytes).map(|answer| answer[3] & 15);
    let good = question("a.test", A, None);
    let with = |at: usize, byte: u8| {
        let mut bytes = good.clone();
        bytes[at] = byte;
        bytes
    };
    assert_eq!(code(&good), Some(0));
    assert_eq!(code(&with(good.len() - 1, 3)), Some(4), "another class");
    assert_eq!(code(&with(5, 2)), Some(1), "two questions");
    assert_eq!(code(&with(2, 0x29)), Some(4), "an update");
    let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
    socket.connect(names).unwrap();
    socket.set_read_timeout(Some(Duration::from_millis(300))).unwrap();
    socket.send(&with(2, 0x81)).unwrap();
    assert!(socket.recv(&mut [0; 64]).is_err(), "an answer gets none");
}

/// Questions that come by thousands gather, and one behind a pause is answered as ever.
#[test]
fn questions_by_thousands_are_answered_and_so_is_one_behind_a_pause() {
    const ROUNDS: u16 = 3;
    const QUESTIONS: u16 = 2000;
    let site = Site::new();
    let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
    socket.connect(site.names()).unwrap();
    socket.set_read_timeout(Some(PATIENCE)).unwrap();
    for _ in 0..ROUNDS {
        let (receiver, begin) = (socket.try_clone().unwrap(), Instant::now());
        let received = Arc::new(AtomicU16::new(0));
        let count = received.clone();
        let reader = thread::spawn(move || {
            let mut ids: Vec<u16> = Vec::new();
            let mut buffer = [0; 512];
            while ids.len() < usize::from(QUESTIONS) {
                let len = receiver.recv(&mut buffer).expect("every question has an answer");
                assert!(len > 12);
                ids.push(u16::from_be_bytes([buffer[0], buffer[1]]));
                count.fetch_add(1, Ordering::Relaxed);
            }
            ids
        });
        for n in 0..QUESTIONS {
            // Two every 0.2 ms, unless the machine is slow: few are under way, so that the kernel drops none.
            let is_early = || begin.elapsed() < Duration::from_micros(100) * u32::from(n);
            while is_early() || n - received.load(Ordering::Relaxed) > 100 {
                thread::sleep(Duration::from_micros(50));
            }
            let mut message = question(&format!("name{}.example.com", n % 50), A, None);
            message[..2].copy_from_slice(&n.to_be_bytes());
            socket.send(&message).unwrap();
        }
        let mut ids = reader.join().unwrap();
        ids.sort_unstable();
        assert_eq!(ids, (0..QUESTIONS).collect::<Vec<_>>());
        thread::sleep(Duration::from_millis(30));
        fake(&ask(site.names(), "behind.example.com", A));
    }
}

#[test]
fn a_fake_address_is_its_name() {
    let mut site = Site::new();
    let target = echo();
    let of = |site: &Site, name: &str, kind: u16| fake(&ask(site.names(), name, kind));
    let (good, blocked) = (of(&site, "echo.test", A), of(&site, "a.blocked.test", A));
    let six = of(&site, "echo.test", AAAA);
    for round in 0..2 {
        let local = site.local();
        round_trip(&mut socks5(local, &good.to_string(), target.port()), 100_000);
        assert_eq!(refused(local, SocketAddr::new(six, target.port())), 0, "by IPv6 too, round {round}");
        assert_eq!(refused(local, SocketAddr::new(blocked, 80)), 2, "the rule for its name holds");
        let unmapped = SocketAddr::from(([198, 18, 200, 1], target.port()));
        assert_eq!(refused(local, unmapped), 4, "no name: host unreachable");
        let datagram = |to: SocketAddr| udp_round_trip(local, to);
        let there = udp_echo();
        for ip in [good, six] {
            let to = SocketAddr::new(ip, there.port());
            assert_eq!(datagram(to), Some(to), "the answer is from the address that was asked");
        }
        assert_eq!(datagram(SocketAddr::new(blocked, there.port())), None);
        assert_eq!(datagram(SocketAddr::new(unmapped.ip(), there.port())), None);
        // Killed: names keep their addresses, though nobody could tidy up.
        site.running().signal("KILL");
        site.running.take();
        site.start();
        assert_eq!(of(&site, "another.test", A).to_string(), ["198.18.128.18", "198.18.128.18"][round]);
    }
    assert_eq!((of(&site, "echo.test", A), of(&site, "a.blocked.test", A)), (good, blocked));
}

/// Fifteen names fit. The next one takes the place of the one that was asked for or connected to least recently; a name
/// with an open connection keeps its address.
#[test]
fn the_name_that_rests_longest_makes_room() {
    let site = Site::with("[dns.fake]\nrange = \"10.77.0.0/27\"\n");
    let target = echo();
    let of = |name: &str| fake(&ask(site.names(), name, A)).to_string();
    let at = |number: usize| format!("10.77.0.{}", 16 + number);
    for number in 0..15 {
        assert_eq!(of(&format!("n{number}.test")), at(number));
    }
    let mut held = socks5(site.local(), &at(2), target.port());
    round_trip(&mut held, 100);
    assert_eq!(of("N0.Test"), at(0), "asked for");
    round_trip(&mut socks5(site.local(), &at(1), target.port()), 100);
    let pid = site.running().pid().to_string();
    let open =
        || serde_json::from_str::<serde_json::Value>(&site.dir.run(&["conns", "--json", "--pid", &pid]).1);
    adit_testkit::wait_for("that connection has ended, and gives its address back", || {
        open().unwrap().as_array().unwrap().len() == 1
    });
    // A name that makes room is the oldest one when it comes back.
    for (name, number) in [("new3", 3), ("new4", 4), ("n3", 5), ("new6", 6)] {
        assert_eq!(of(&format!("{name}.test")), at(number), "{name}");
    }
    assert_eq!(of("n7.test"), at(7), "it is there still");
    let others: Vec<String> = (0..30).map(|n| of(&format!("other{n}.test"))).collect();
    assert!(!others.contains(&at(2)), "{others:?}");
    let (first, second) = others[..28].split_at(14);
    assert_eq!(first, second, "in turn, the fourteen that nobody holds");
    let order = [8, 9, 10, 11, 12, 13, 14, 0];
    assert_eq!(first[..8], order.map(at), "as they were used");
    round_trip(&mut held, 100);
    drop(held);
    let freed = |at: &String| (0..15).map(|n| of(&format!("last{n}.test"))).any(|other| other == *at);
    let until = Instant::now() + PATIENCE;
    while !freed(&at(2)) {
        assert!(Instant::now() < until, "the address of a connection that has ended is free");
    }
}

/// Without a file names begin anew, and an address that an application still holds is refused.
#[test]
fn without_a_file_fake_addresses_end_with_the_process() {
    let mut site = Site::with("[dns.fake]\nstore = \"off\"\n");
    let target = echo();
    let names = ["a.test", "b.test", "c.test"];
    let old = names.map(|name| fake(&ask(site.names(), name, A)));
    site.running().signal("KILL");
    site.running.take();
    site.start();
    assert_eq!(fake(&ask(site.names(), "z.test", A)), old[0], "the first address of the range");
    round_trip(&mut socks5(site.local(), &old[0].to_string(), target.port()), 10);
    for ip in &old[1..] {
        assert_eq!(refused(site.local(), SocketAddr::new(*ip, target.port())), 4, "{ip}: host unreachable");
    }
}

/// Datagrams that come in a stream have the names of their fake targets too.
#[test]
fn datagrams_in_a_stream_go_to_the_names_of_fake_addresses() {
    let site = Site::with(
        "[dns.fake]\n[[inbound]]\nname = \"server\"\nprotocol = \"snell\"\nlisten = \"127.0.0.1:0\"\n\
         psk = \"a key of a test\"\nallow-private = true\n",
    );
    let good = fake(&ask(site.names(), "echo.test", A));
    let client = format!(
        "[[inbound]]\nprotocol = \"mixed\"\nlisten = \"127.0.0.1:0\"\n[[outbound]]\nprotocol = \"snell\"\n\
         server = \"127.0.0.1:{}\"\npsk = \"a key of a test\"\n",
        site.port("server")
    );
    site.dir.file("client.toml", &client);
    let client = Running::start(site.dir.adit(&["run", "-c", "client.toml"]));
    let there = udp_echo();
    let to = SocketAddr::new(good, there.port());
    assert_eq!(
        udp_round_trip(client.address(), to),
        Some(to),
        "the answer is from the address that was asked"
    );
    assert_eq!(udp_round_trip(client.address(), there), Some(there), "others are as they were");
    let unmapped = SocketAddr::from(([198, 18, 200, 1], there.port()));
    assert_eq!(udp_round_trip(client.address(), unmapped), None);
}

/// A request for an address that was answered is judged by its name, and goes to the address.
#[test]
fn names_behind_real_addresses_are_seen_by_rules() {
    let site = Site::with("reverse-map = true\n");
    let (target, there) = (echo(), udp_echo());
    let local = site.local();
    round_trip(&mut socks5(local, "127.0.0.1", target.port()), 10);
    // All names have one address here: the last one that was asked for counts.
    for (name, is_refused) in [("a.blocked.test", true), ("good.test", false), ("b.blocked.test", true)] {
        let answer = ask(site.names(), name, A);
        assert_eq!(answer.ips(), [IpAddr::from([127, 0, 0, 1])]);
        assert_eq!(refused(local, target), if is_refused { 2 } else { 0 }, "{name}");
        assert_eq!(udp_round_trip(local, there), (!is_refused).then_some(there), "{name}");
    }
}

/// A target that sends datagrams back.
fn udp_echo() -> SocketAddr {
    let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
    let address = socket.local_addr().unwrap();
    thread::spawn(move || {
        let mut buffer = [0; 1500];
        while let Ok((len, peer)) = socket.recv_from(&mut buffer) {
            socket.send_to(&buffer[..len], peer).unwrap();
        }
    });
    address
}

/// The source of the answer to a datagram through a SOCKS5 proxy.
fn udp_round_trip(proxy: SocketAddr, target: SocketAddr) -> Option<SocketAddr> {
    let mut stream = TcpStream::connect(proxy).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    stream.write_all(&[5, 1, 0]).unwrap();
    stream.read_exact(&mut [0; 2]).unwrap();
    stream.write_all(&request(3, SocketAddr::from(([0, 0, 0, 0], 0)))).unwrap();
    let mut reply = [0; 10];
    stream.read_exact(&mut reply).unwrap();
    assert_eq!(reply[1], 0);
    let relay = SocketAddr::from(([127, 0, 0, 1], u16::from_be_bytes([reply[8], reply[9]])));
    let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
    socket.set_read_timeout(Some(Duration::from_millis(700))).unwrap();
    let mut message = request(0, target);
    message[0] = 0;
    message.extend(b"datagram");
    let (mut buffer, mut found) = ([0; 1500], None);
    // The name may have to be looked up for the first one.
    for _ in 0..2 {
        socket.send_to(&message, relay).unwrap();
        if let Ok((len, _)) = socket.recv_from(&mut buffer) {
            assert!(buffer[..len].ends_with(b"datagram"));
            let (ip, at): (IpAddr, usize) = match buffer[3] {
                1 => (<[u8; 4]>::try_from(&buffer[4..8]).unwrap().into(), 8),
                _ => (<[u8; 16]>::try_from(&buffer[4..20]).unwrap().into(), 20),
            };
            found = Some(SocketAddr::new(ip, u16::from_be_bytes([buffer[at], buffer[at + 1]])));
        }
    }
    found
}

/// Processor time of a process in microseconds, of 10 ms each.
fn processor_us(pid: u32) -> u64 {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap();
    let fields: Vec<&str> = stat.rsplit(')').next().unwrap().split_whitespace().collect();
    (fields[11].parse::<u64>().unwrap() + fields[12].parse::<u64>().unwrap()) * 10_000
}

/// `cargo test -p adit --test program -- --ignored --nocapture dns::bench`; a release build is what counts.
#[test]
#[ignore = "a measurement of 10 seconds"]
fn bench_fake_answers() {
    const RATE: u32 = 10_000;
    const SECONDS: u32 = 5;
    let site = Site::new();
    let (names, pid) = (site.names(), site.running().pid());
    for share in ["known", "new"] {
        let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
        socket.connect(names).unwrap();
        socket.set_read_timeout(Some(Duration::from_secs(1))).unwrap();
        let receiver = socket.try_clone().unwrap();
        let total = RATE * SECONDS;
        let begin = Instant::now();
        let reader = thread::spawn(move || {
            let (mut buffer, mut got) = ([0; 512], Vec::new());
            while got.len() < total as usize && receiver.recv(&mut buffer).is_ok() {
                got.push((u16::from_be_bytes([buffer[0], buffer[1]]), begin.elapsed()));
            }
            got
        });
        let before = processor_us(pid);
        let mut sent = Vec::new();
        for n in 0..total {
            let due = Duration::from_secs(1) * n / RATE;
            while begin.elapsed() < due {
                thread::sleep(Duration::from_micros(50));
            }
            let name = format!("name{}.example.com", if share == "new" { n } else { n % 100 });
            let mut question = question(&name, A, None);
            question[..2].copy_from_slice(&u16::try_from(n).unwrap().to_be_bytes());
            sent.push(begin.elapsed());
            socket.send(&question).unwrap();
        }
        let got = reader.join().unwrap();
        let used = processor_us(pid) - before;
        let mut late: Vec<Duration> =
            got.iter().map(|(n, at)| at.saturating_sub(sent[usize::from(*n)])).collect();
        late.sort_unstable();
        println!(
            "{share} names: {} of {total} answers, {:.1} us of processor time each, p50 {:?}, p99 {:?}",
            got.len(),
            used as f64 / got.len() as f64,
            late[late.len() / 2],
            late[late.len() * 99 / 100]
        );
        // A debug build says nothing about the bounds; nor does a busy machine.
        if !cfg!(debug_assertions) {
            assert_eq!(got.len(), total as usize, "{share} names: questions without an answer");
            let (each, p99) = (used / u64::from(total), late[late.len() * 99 / 100]);
            assert!(each <= 25, "{share} names: {each} us of processor time");
            assert!(p99 < Duration::from_millis(1), "{share} names: p99 {p99:?}");
        }
    }
}
