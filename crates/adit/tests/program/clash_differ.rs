//! Random targets against mihomo itself: its decisions, as its log tells them, and adit's for the same requests.
//!
//! `ADIT_TEST_MIHOMO=PATH cargo test -p adit --test program clash_differ -- --ignored --nocapture`

mod world;

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use adit_testkit::{skipped, unused_localhost};
use serde_json::{Value, json};

use self::world::{Draw, TARGET_NAMES, USERS, World};
use crate::support::{Dir, PATIENCE, Running};

const GEO: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../testdata/clash/geo");
const SEED: u64 = 20_261_123;
const TARGETS: usize = 5_000;
/// Rules beside those that lead to lists.
const RULES: usize = 220;
/// Requests that wait for their line at the same time.
const AT_ONCE: usize = 16;

/// A request.
struct Case {
    is_udp: bool,
    inbound: usize,
    entry: &'static str,
    user: Option<&'static str>,
    from: Ipv4Addr,
    host: String,
    is_ip: bool,
    port: u16,
    addresses: Vec<IpAddr>,
    /// Its client's port, once it was made.
    at: u16,
    /// The name of its program as mihomo has found it: that of the test, unless another program has the same port.
    program: Option<String>,
}

pub(crate) type Zone = BTreeMap<String, Vec<IpAddr>>;

/// Answers questions about names as the zone says.
pub(crate) fn name_server(zone: Zone) -> u16 {
    let socket = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let port = socket.local_addr().unwrap().port();
    thread::spawn(move || {
        let mut bytes = [0; 1500];
        while let Ok((len, from)) = socket.recv_from(&mut bytes) {
            let (mut name, mut at) = (String::new(), 12);
            while bytes[at] != 0 {
                let end = at + 1 + usize::from(bytes[at]);
                name += &String::from_utf8_lossy(&bytes[at + 1..end]).to_lowercase();
                name.push('.');
                at = end;
            }
            let (kind, end) = (bytes[at + 2], at + 5);
            let found = zone.get(name.trim_end_matches('.')).map(Vec::as_slice).unwrap_or_default();
            let mut out = bytes[..end.min(len)].to_vec();
            out[2..4].copy_from_slice(&[0x81, if found.is_empty() { 0x83 } else { 0x80 }]);
            out[6..12].fill(0);
            for ip in found {
                let data = match ip {
                    IpAddr::V4(ip) if kind == 1 => ip.octets().to_vec(),
                    IpAddr::V6(ip) if kind == 28 => ip.octets().to_vec(),
                    IpAddr::V4(_) | IpAddr::V6(_) => continue,
                };
                out[7] += 1;
                out.extend([0xc0, 12, 0, kind, 0, 1, 0, 0, 2, 0, 0, u8::try_from(data.len()).unwrap()]);
                out.extend(data);
            }
            socket.send_to(&out, from).ok();
        }
    });
    port
}

/// A SOCKS5 proxy that says yes to everything.
fn yes() -> u16 {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let sink = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let [high, low] = sink.local_addr().unwrap().port().to_be_bytes();
    let port = listener.local_addr().unwrap().port();
    thread::spawn(move || {
        let _sink = sink;
        for mut stream in listener.incoming().map_while(Result::ok) {
            thread::spawn(move || {
                stream.set_read_timeout(Some(Duration::from_secs(5))).ok()?;
                let mut bytes = [0; 512];
                let _any = stream.read(&mut bytes).ok()?;
                stream.write_all(&[5, 0]).ok()?;
                let _any = stream.read(&mut bytes).ok()?;
                stream.write_all(&[5, 0, 0, 1, 127, 0, 0, 1, high, low]).ok()?;
                while stream.read(&mut bytes).ok()? > 0 {}
                Some(())
            });
        }
    });
    port
}

/// The file, its lists, and everything that they are about.
fn files(dir: &Dir, draw: &mut Draw, ports: &[u16; 4], server: u16) -> World {
    let mut world = World::default();
    let own = std::env::current_exe().unwrap();
    let program = own.file_name().unwrap().to_str().unwrap().to_owned();
    let folder = own.parent().unwrap().to_str().unwrap().to_owned();
    let in_ports = format!("{}/{}", ports[0], ports[1]);
    let finish = |line: String| {
        let line = line.replace("IN-PORTS", &in_ports).replace("FOLDER", &folder);
        line.replace("PROGRAM", &program)
    };
    let mut lists = String::new();
    for n in 0..3 {
        lists += &format!("  sub-{n}:\n");
        let mut lines: Vec<String> = (0..4 + draw.below(5)).map(|_| world.line(draw)).collect();
        if n > 0 {
            let at = draw.below(lines.len());
            lines.insert(at, format!("SUB-RULE,({}),sub-{}", world.narrow(draw), n - 1));
        }
        lists.extend(lines.into_iter().map(|line| format!("  - {}\n", json!(finish(line)))));
    }
    let mut rules: Vec<String> = (0..RULES).map(|_| world.line(draw)).collect();
    // Rules that hold for much stand behind, so that the others are met.
    let is_broad = |rule: &String| {
        let narrow = [
            "AND,((DOMAIN-K",
            "AND,((DST",
            "AND,((IP-C",
            "DOMAIN",
            "GEOSITE",
            "RULE-SET",
            "GEOIP,cn",
            "GEOIP,jp",
            "IP-ASN",
            "DST-PORT",
            "SRC-PORT",
            "IP-CIDR",
            "IP-SUFFIX",
        ];
        let is_wide = ["GEOSITE,!", "RULE-SET,classic"].iter().any(|wide| rule.starts_with(wide));
        is_wide || !narrow.iter().any(|kind| rule.starts_with(kind))
    };
    for rule in rules.iter_mut().filter(|rule| is_broad(rule)) {
        if draw.chance(85) {
            let (narrow, rest) = (world.narrow(draw), world.logic(draw, 1));
            *rule = format!("AND,(({narrow}),({rest})),{}", draw.one(&TARGET_NAMES));
        }
    }
    rules.sort_by_cached_key(|rule| (is_broad(rule) && !draw.chance(4), draw.next()));
    for n in 0..3 {
        let at = draw.below(rules.len());
        rules
            .insert(at, format!("SUB-RULE,(OR,(({}),({}))),sub-{n}", world.narrow(draw), world.narrow(draw)));
    }
    rules.push("MATCH,G1".to_owned());
    let rules: String = rules.into_iter().map(|rule| format!("- {}\n", json!(finish(rule)))).collect();
    let pattern = |world: &mut World, draw: &mut Draw| {
        let name = world.name(draw);
        format!("{}{name}", draw.one(&["+.", "", ".", "*."]))
    };
    let text: Vec<String> = (0..60).map(|_| pattern(&mut world, draw)).collect();
    dir.file("dom.txt", &(text.join("\n") + "\n"));
    let yaml: String = (0..60).map(|_| format!("  - '{}'\n", pattern(&mut world, draw))).collect();
    dir.file("dom.yaml", &format!("payload:\n{yaml}"));
    let cidr: Vec<String> = (0..40).map(|_| world.network(draw)).collect();
    dir.file("cidr.txt", &(cidr.join("\n") + "\n"));
    let mut classic = String::from("payload:\n");
    for _ in 0..30 {
        let (kind, payload, params) = world.condition(draw, true);
        let is_narrow = kind.starts_with("DOMAIN") || kind.contains("PORT") || kind.contains("IP-");
        if is_narrow && kind != "IN-PORT" && !kind.starts_with("SRC-IP") {
            classic += &format!("  - '{}'\n", finish(format!("{kind},{payload}{params}")));
        }
    }
    dir.file("classic.yaml", &classic);
    let proxy = yes();
    let [p0, p1, p2, api] = ports;
    let users = "users: [{username: ann, password: pw}, {username: bob, password: pw}]";
    dir.file(
        "config.yaml",
        &format!(
            "mode: rule\nlog-level: silent\nipv6: true\nfind-process-mode: always\nexternal-controller: 127.0.0.1:{api}\n\
profile: {{store-selected: false}}
dns: {{enable: true, ipv6: true, use-system-hosts: false, enhanced-mode: normal, default-nameserver: ['127.0.0.1:{server}'], nameserver: ['udp://127.0.0.1:{server}']}}
listeners:
- {{name: in-0, type: socks, listen: 127.0.0.1, port: {p0}, users: []}}
- {{name: in-1, type: mixed, listen: 127.0.0.1, port: {p1}, {users}}}
- {{name: in-2, type: http, listen: 127.0.0.1, port: {p2}, {users}}}
proxies:
- {{name: A, type: socks5, server: 127.0.0.1, port: {proxy}, udp: true}}
- {{name: B, type: socks5, server: 127.0.0.1, port: {proxy}, udp: true}}
- {{name: T, type: socks5, server: 127.0.0.1, port: {proxy}}}
proxy-groups:
- {{name: G1, type: select, proxies: [A, B]}}
- {{name: G2, type: select, proxies: [T, A]}}
- {{name: G3, type: select, proxies: [PASS, A]}}
- {{name: GU, type: select, proxies: [G1], disable-udp: true}}
rule-providers:
  dom-text: {{type: file, behavior: domain, format: text, path: ./dom.txt}}
  dom-yaml: {{type: file, behavior: domain, format: yaml, path: ./dom.yaml}}
  cidr: {{type: file, behavior: ipcidr, format: text, path: ./cidr.txt}}
  classic: {{type: file, behavior: classical, format: yaml, path: ./classic.yaml}}
  inline: {{type: inline, behavior: domain, payload: ['+.inline.alpha1.com', 'x.beta2.net']}}
sub-rules:
{lists}rules:
{rules}"
        ),
    );
    world
}

fn cases(draw: &mut Draw, world: &World) -> Vec<Case> {
    let mut zone = Zone::new();
    let mut all = Vec::with_capacity(TARGETS);
    for _ in 0..TARGETS {
        let (mut host, is_ip) = world.host(draw);
        let addresses = if is_ip {
            Vec::new()
        } else {
            let known = zone.entry(host.clone()).or_insert_with(|| match draw.chance(12) {
                true => Vec::new(),
                false => vec![world.near(draw)],
            });
            known.clone()
        };
        if !is_ip && draw.chance(5) {
            host = host.to_uppercase();
        }
        let is_udp = draw.chance(30);
        let inbound = if is_udp { 0 } else { draw.below(3) };
        let entry = match inbound {
            0 if is_udp || draw.chance(70) => "Socks5",
            0 => "Socks4",
            1 => draw.one(&["Socks5", "Https"]),
            _ => "Https",
        };
        let user = (inbound > 0).then(|| draw.one(&USERS));
        // A request for an address of IPv6 has no form in SOCKS4.
        let entry = if entry == "Socks4" && host.contains(':') { "Socks5" } else { entry };
        // A socket for datagrams is bound to any address of this machine; one for streams takes the usual one.
        let [c, d] = [draw.below(4), 1 + draw.below(5)].map(|n| u8::try_from(n).unwrap());
        let from = if is_udp { Ipv4Addr::new(127, 0, c, d) } else { Ipv4Addr::LOCALHOST };
        let port = match draw.chance(60) {
            true => world.ports[draw.below(world.ports.len())],
            false => [80, 443, 53, 8080][draw.below(4)],
        };
        all.push(Case {
            is_udp,
            inbound,
            entry,
            user,
            from,
            host,
            is_ip,
            port,
            addresses,
            at: 0,
            program: None,
        });
    }
    all
}

/// An address of a SOCKS5 request.
fn socks_address(case: &Case) -> Vec<u8> {
    let mut out = match case.host.parse() {
        Ok(IpAddr::V4(ip)) => [&[1], &ip.octets()[..]].concat(),
        Ok(IpAddr::V6(ip)) => [&[4], &ip.octets()[..]].concat(),
        Err(_) => [&[3, u8::try_from(case.host.len()).unwrap()], case.host.as_bytes()].concat(),
    };
    out.extend(case.port.to_be_bytes());
    out
}

/// The socket of a request, which is to stay until the line has come: the programs find the client by it.
enum Held {
    Stream(#[expect(dead_code, reason = "it is closed by its end")] TcpStream),
    Datagrams(#[expect(dead_code, reason = "it is closed by its end")] UdpSocket),
}

/// Makes a request.
///
/// No two come from one address, which `known` are told: datagrams would belong to an earlier flow, and lines to either.
fn request(case: &mut Case, ports: &[u16; 4], known: &mut BTreeSet<(bool, SocketAddr)>) -> Held {
    let to = SocketAddr::from((Ipv4Addr::LOCALHOST, ports[case.inbound]));
    if case.is_udp {
        let socket = loop {
            let socket = UdpSocket::bind((case.from, 0)).unwrap();
            if known.insert((true, socket.local_addr().unwrap())) {
                break socket;
            }
        };
        case.at = socket.local_addr().unwrap().port();
        let message = [vec![0, 0, 0], socks_address(case), b"hello".to_vec()].concat();
        socket.send_to(&message, to).unwrap();
        return Held::Datagrams(socket);
    }
    let mut stream = loop {
        let stream = TcpStream::connect(to).unwrap();
        if known.insert((false, stream.local_addr().unwrap())) {
            break stream;
        }
    };
    case.at = stream.local_addr().unwrap().port();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    let user = case.user.unwrap_or_default();
    let mut bytes = [0; 512];
    match case.entry {
        "Https" => {
            let host = if case.host.contains(':') { format!("[{}]", case.host) } else { case.host.clone() };
            let at = format!("{host}:{}", case.port);
            // Base64 of `NAME:pw`.
            let login = if user == "ann" { "YW5uOnB3" } else { "Ym9iOnB3" };
            let head =
                format!("CONNECT {at} HTTP/1.1\r\nHost: {at}\r\nProxy-Authorization: Basic {login}\r\n\r\n");
            stream.write_all(head.as_bytes()).unwrap();
        }
        "Socks4" => {
            let mut message = vec![4, 1];
            message.extend(case.port.to_be_bytes());
            match case.host.parse::<Ipv4Addr>() {
                Ok(ip) => message.extend([&ip.octets()[..], &[0]].concat()),
                Err(_) => message.extend([&[0, 0, 0, 1, 0], case.host.as_bytes(), &[0]].concat()),
            }
            stream.write_all(&message).unwrap();
        }
        _ => {
            let method = if user.is_empty() { 0 } else { 2 };
            stream.write_all(&[5, 1, method]).unwrap();
            stream.read_exact(&mut bytes[..2]).unwrap();
            if method == 2 {
                stream.write_all(&[&[1, 3], user.as_bytes(), &[2], &b"pw"[..]].concat()).unwrap();
                stream.read_exact(&mut bytes[..2]).unwrap();
            }
            stream.write_all(&[vec![5, 1, 0], socks_address(case)].concat()).unwrap();
        }
    }
    Held::Stream(stream)
}

fn shown(case: &Case) -> String {
    let Case { host, port, from, at, entry, addresses, .. } = case;
    let network = if case.is_udp { "udp" } else { "tcp" };
    format!("{network} {host}:{port} from {from}:{at} by {entry} {addresses:?}")
}

/// The lines of the log about connections, by network and the client's address.
type Lines = Arc<Mutex<BTreeMap<(bool, SocketAddr), (Option<String>, String)>>>;

/// The rule and the target of a connection: `IPCIDR 10.0.0.0/8 G1`.
fn matched(rest: &str) -> String {
    let said = rest.split_once(' ').map_or(rest, |(_, said)| said);
    let Some((rule, chain)) = said.strip_prefix("match ").and_then(|said| said.rsplit_once(" using ")) else {
        return said.to_owned();
    };
    let target = chain.split('[').next().unwrap_or_default();
    match rule.split_once('(') {
        Some((kind, payload)) => format!("{kind} {} {target}", payload.strip_suffix(')').unwrap_or(payload)),
        None => format!("{rule}  {target}"),
    }
}

/// The same of one that could not be made: `G1 (match IPCIDR/10.0.0.0/8`.
fn failed(dial: &str) -> String {
    let Some((target, rule)) = dial.split_once(" (match ") else { return dial.to_owned() };
    let (kind, payload) = rule.split_once('/').unwrap_or((rule, ""));
    format!("{kind} {payload} {target}")
}

/// Follows the log over the control interface.
fn follow(at: u16) -> Lines {
    let lines = Lines::default();
    let mut stream = TcpStream::connect((Ipv4Addr::LOCALHOST, at)).unwrap();
    stream.write_all(b"GET /logs?level=info HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n").unwrap();
    let found = lines.clone();
    thread::spawn(move || {
        for line in BufReader::new(stream).lines().map_while(Result::ok) {
            let Ok(line) = serde_json::from_str::<Value>(&line) else { continue };
            let Some(text) = line["payload"].as_str() else { continue };
            let (is_udp, rest) = match (text.strip_prefix("[TCP] "), text.strip_prefix("[UDP] ")) {
                (Some(rest), _) => (false, rest),
                (None, Some(rest)) => (true, rest),
                (None, None) => continue,
            };
            let Some((from, rest)) = rest.split_once(" --> ") else { continue };
            // `dial G1 (match IPCIDR/10.0.0.0/8) FROM --> TO error: ..`, or `FROM --> TO match IPCIDR(10.0.0.0/8) using G1[A]`
            let (from, said) = match from.strip_prefix("dial ").and_then(|from| from.rsplit_once(") ")) {
                Some((dial, from)) => (from, failed(dial)),
                None => (from, matched(rest)),
            };
            let (from, program) = from.split_once('(').map_or((from, None), |(from, about)| {
                let name = about.split([',', ')']).next().unwrap_or_default();
                (from, Some(name.to_owned()))
            });
            let Ok(from) = from.parse() else { continue };
            found.lock().unwrap().entry((is_udp, from)).or_insert((program, said));
        }
    });
    lines
}

/// Whether mihomo is as new as the comparison: earlier ones lack a type of rules, and look up the names of datagrams before
/// all rules.
fn is_new(dir: &Dir, peer: &Path) -> bool {
    dir.file("probe.yaml", "rules:\n- DOMAIN-WILDCARD,*.example,DIRECT\n");
    let home = dir.path().to_str().unwrap();
    dir.command(peer, &["-t", "-d", home, "-f", "probe.yaml"]).output().unwrap().status.success()
}

/// mihomo's word for each case.
fn decisions_of_mihomo(dir: &Dir, peer: &Path, cases: &mut [Case], ports: &[u16; 4]) -> Vec<String> {
    let home = dir.path().to_str().unwrap();
    let running = Running::start(dir.command(peer, &["-d", home]));
    let deadline = Instant::now() + PATIENCE;
    while TcpStream::connect((Ipv4Addr::LOCALHOST, ports[3])).is_err() {
        let is_over = running.log().contains("level=fatal");
        assert!(!is_over && Instant::now() < deadline, "mihomo does not start:\n{}", running.log());
        thread::sleep(Duration::from_millis(20));
    }
    // Lists are read behind the ports.
    thread::sleep(Duration::from_secs(2));
    let lines = follow(ports[3]);
    // Its log has to be followed by then.
    thread::sleep(Duration::from_millis(500));
    let (mut found, mut known) = (Vec::with_capacity(cases.len()), BTreeSet::new());
    for batch in cases.chunks_mut(AT_ONCE) {
        let _held: Vec<_> = batch.iter_mut().map(|case| request(case, ports, &mut known)).collect();
        for case in batch {
            let key = (case.is_udp, SocketAddr::from((case.from, case.at)));
            let deadline = Instant::now() + Duration::from_secs(10);
            let (program, said) = loop {
                if let Some(said) = lines.lock().unwrap().remove(&key) {
                    break said;
                }
                assert!(Instant::now() < deadline, "no line about {}", shown(case));
                thread::sleep(Duration::from_millis(1));
            };
            case.program = program;
            found.push(said);
        }
    }
    found
}

/// adit's word, as the same text.
fn decisions_of_adit(dir: &Dir, cases: &[Case], ports: &[u16; 4]) -> Vec<String> {
    let own = std::env::current_exe().unwrap();
    let uid = fs::metadata("/proc/self").unwrap().uid();
    let mut lines = String::new();
    for case in cases {
        let mut line = json!({
            "network": if case.is_udp { "udp" } else { "tcp" },
            "inbound": {
                "name": format!("in-{}", case.inbound), "type": case.entry, "port": ports[case.inbound], "user": case.user,
            },
            "src": case.from, "src_port": case.at, "host": case.host, "port": case.port,
        });
        if let Some(program) = &case.program {
            let is_own = own.ends_with(program);
            let path = if is_own { own.clone() } else { Path::new("/").join(program) };
            (line["process"], line["client_uid"]) = (json!(path), json!(uid));
        }
        if !case.is_ip {
            line["dns"] = json!(case.addresses);
        }
        lines += &format!("{line}\n");
    }
    dir.file("cases.jsonl", &lines);
    let (status, out, err) = dir.run(&["explain", "-c", "config.yaml", "--batch", "cases.jsonl"]);
    assert_eq!(status, 0, "{err}");
    let word = |line: &str| {
        let answer: Value = serde_json::from_str(line).unwrap();
        let text = |key: &str| answer[key].as_str().unwrap_or_default().to_owned();
        let (kind, payload, target) = (text("type"), text("payload"), text("target"));
        if kind.is_empty() { answer.to_string() } else { format!("{kind} {payload} {target}") }
    };
    out.lines().map(word).collect()
}

#[test]
#[ignore = "needs mihomo: ADIT_TEST_MIHOMO=PATH"]
fn random_targets() {
    let Some(peer) = std::env::var_os("ADIT_TEST_MIHOMO").map(PathBuf::from) else { return };
    let dir = Dir::new();
    if !is_new(&dir, &peer) {
        skipped("mihomo is too old: it does not know DOMAIN-WILDCARD");
        return;
    }
    for file in fs::read_dir(GEO).unwrap() {
        let file = file.unwrap();
        fs::copy(file.path(), dir.path().join(file.file_name())).unwrap();
    }
    let seed = std::env::var("ADIT_TEST_SEED").ok().and_then(|seed| seed.parse().ok()).unwrap_or(SEED);
    let mut draw = Draw(seed);
    let ports = std::array::from_fn(|_| unused_localhost().port());
    // The file names the name server, whose zone comes with the requests.
    let server = unused_localhost().port();
    let world = files(&dir, &mut draw, &ports, server);
    let mut cases = cases(&mut draw, &world);
    let zone = cases.iter().filter(|case| !case.is_ip);
    let zone = zone.map(|case| (case.host.to_lowercase(), case.addresses.clone())).collect();
    let actual = name_server(zone);
    let text = fs::read_to_string(dir.path().join("config.yaml")).unwrap();
    dir.file("config.yaml", &text.replace(&format!("127.0.0.1:{server}"), &format!("127.0.0.1:{actual}")));
    let theirs = decisions_of_mihomo(&dir, &peer, &mut cases, &ports);
    let ours = decisions_of_adit(&dir, &cases, &ports);
    let (mut kinds, mut upper, mut others) = (BTreeMap::<String, usize>::new(), 0, Vec::new());
    for ((case, theirs), ours) in cases.iter().zip(&theirs).zip(&ours) {
        let kind = theirs.split(' ').next().unwrap_or_default();
        *kinds.entry(kind.to_owned()).or_default() += 1;
        if theirs == ours {
            continue;
        }
        // mihomo compares some conditions with the name as the client wrote it.
        if case.host.bytes().any(|byte| byte.is_ascii_uppercase()) && !case.is_ip {
            upper += 1;
            continue;
        }
        others.push(format!("{}\n  mihomo {theirs}\n  adit   {ours}", shown(case)));
    }
    let equal = cases.len() - upper - others.len();
    let unknown = cases.iter().filter(|case| case.program.is_none()).count();
    println!("{equal} of {} are the same; {upper} differ by letters in upper case; {kinds:?}", cases.len());
    println!("mihomo did not find the program of {unknown} clients");
    let shown = others.iter().take(20).cloned().collect::<Vec<_>>().join("\n");
    assert!(others.is_empty(), "{} others:\n{shown}", others.len());
    assert!(kinds.len() > 15, "too few types decided: {kinds:?}");
}
