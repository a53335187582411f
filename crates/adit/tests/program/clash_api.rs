//! The control interface of mihomo: every recorded request, the secret, pages, streams, and changes.

use std::fs;
use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, Instant};

use adit_testkit::{unused_localhost, wait_for};
use serde_json::Value;

use crate::support::{Dir, PATIENCE, Running, echo, link, read_head, round_trip, socks5};

const FOLDER: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../testdata/clash/api");

/// An answer.
pub(crate) struct Answer {
    pub(crate) status: u16,
    head: String,
    pub(crate) body: String,
}

impl Answer {
    pub(crate) fn json(&self) -> Value {
        serde_json::from_str(&self.body).unwrap_or_else(|_| Value::String(self.body.clone()))
    }

    fn field(&self, name: &str) -> Option<&str> {
        let mut fields = self.head.lines().filter_map(|line| line.split_once(": "));
        fields.find(|(known, _)| known.eq_ignore_ascii_case(name)).map(|(_, value)| value)
    }
}

pub(crate) fn ask(at: SocketAddr, method: &str, path: &str, fields: &[(&str, &str)], body: &str) -> Answer {
    let mut stream = TcpStream::connect(at).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    let mut head = format!("{method} {path} HTTP/1.1\r\nConnection: close\r\n");
    if !fields.iter().any(|(name, _)| *name == "Host") {
        head += &format!("Host: {at}\r\n");
    }
    for (name, value) in fields {
        head += &format!("{name}: {value}\r\n");
    }
    head += &format!("Content-Length: {}\r\n\r\n{body}", body.len());
    stream.write_all(head.as_bytes()).unwrap();
    let mut text = String::new();
    stream.read_to_string(&mut text).unwrap();
    let (head, body) = text.split_once("\r\n\r\n").unwrap();
    let status = head.split(' ').nth(1).unwrap().parse().unwrap();
    let is_chunked = head.to_ascii_lowercase().contains("transfer-encoding: chunked");
    let body = if is_chunked { joined(body) } else { body.to_owned() };
    Answer { status, head: head.to_owned(), body }
}

/// The chunks of a body, one behind the other.
fn joined(mut rest: &str) -> String {
    let mut body = String::new();
    while let Some((len, more)) = rest.split_once("\r\n") {
        let len = usize::from_str_radix(len, 16).unwrap();
        if len == 0 {
            break;
        }
        body += &more[..len];
        rest = &more[len + 2..];
    }
    body
}

pub(crate) fn get(at: SocketAddr, path: &str) -> Value {
    let answer = ask(at, "GET", path, &[("Authorization", "Bearer s3cret")], "");
    assert_eq!(answer.status, 200, "{path}: {}", answer.body);
    answer.json()
}

pub(crate) fn put(at: SocketAddr, method: &str, path: &str, body: &str) -> u16 {
    ask(at, method, path, &[("Authorization", "Bearer s3cret")], body).status
}

/// The recorded origin: 204, 200 ms later for `/slow`, 500 for `/500`, a subscription for `/sub`.
pub(crate) fn origin() -> SocketAddr {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let address = listener.local_addr().unwrap();
    let serve = |mut stream: TcpStream| {
        let mut reader = BufReader::new(stream.try_clone().unwrap());
        let mut head = String::new();
        while reader.read_line(&mut head).unwrap_or(0) > 2 {}
        let list = "c3M6Ly9ZV1Z6TFRFeU9DMW5ZMjA2Y0hjPUAxMjcuMC4wLjE6MSNzdWItc3MK";
        let answer = if head.contains("/sub ") {
            let usage = "upload=1024; download=2048; total=107374182400; expire=1893456000";
            format!(
                "200 OK\r\nsubscription-userinfo: {usage}\r\nContent-Length: {}\r\n\r\n{list}",
                list.len()
            )
        } else if head.contains("/500 ") {
            "500 No\r\nContent-Length: 0\r\n\r\n".to_owned()
        } else {
            if head.contains("/slow ") {
                // A slow target.
                thread::sleep(Duration::from_millis(200));
            }
            "204 No Content\r\n\r\n".to_owned()
        };
        stream.write_all(format!("HTTP/1.1 {answer}").as_bytes()).ok();
    };
    thread::spawn(move || {
        for stream in listener.incoming().map_while(Result::ok) {
            thread::spawn(move || serve(stream));
        }
    });
    address
}

/// The recorded groups and proxies, with ports of this machine.
fn config(controller: SocketAddr, mixed: SocketAddr, origin: SocketAddr, dead: SocketAddr) -> String {
    let (dead, web) = (dead.port(), origin.port());
    format!(
        "mixed-port: {}\nexternal-controller: {controller}\nsecret: s3cret\nmode: rule\nlog-level: info\n\
proxies:
- {{name: p-snell, type: snell, server: 127.0.0.1, port: {dead}, psk: test-psk-000, version: 3, udp: true}}
- {{name: p-ss, type: ss, server: 127.0.0.1, port: {dead}, cipher: aes-128-gcm, password: pw, udp: true}}
- {{name: p-ssr, type: ssr, server: 127.0.0.1, port: {dead}, cipher: aes-256-cfb, password: pw, obfs: plain, protocol: origin, udp: true}}
- {{name: p-socks, type: socks5, server: 127.0.0.1, port: {dead}}}
- {{name: p-http, type: http, server: 127.0.0.1, port: {dead}}}
- {{name: p-direct, type: direct, ip-version: ipv4}}
- {{name: p-dns, type: dns}}
- {{name: p-reject, type: reject}}
proxy-groups:
- {{name: Proxy, type: select, proxies: [p-ss, p-snell, Auto, DIRECT]}}
- {{name: Auto, type: url-test, proxies: [p-socks, p-http, p-direct], url: 'http://127.0.0.1:{web}/generate_204', interval: 300, tolerance: 50}}
- {{name: Fall, type: fallback, proxies: [p-socks, p-http], url: 'http://127.0.0.1:{web}/generate_204', interval: 300, expected-status: 204}}
- {{name: Balance, type: load-balance, strategy: consistent-hashing, proxies: [p-ss, p-ssr], url: 'http://127.0.0.1:{web}/generate_204', interval: 300}}
- {{name: NoUDP, type: select, proxies: [p-snell, p-ss], disable-udp: true, hidden: true, icon: 'data:,x'}}
- {{name: PassGrp, type: select, proxies: [PASS, p-ss]}}
proxy-providers:
  pp-inline:
    type: inline
    override: {{additional-prefix: 'in|'}}
    health-check: {{enable: true, url: 'http://127.0.0.1:{web}/generate_204', interval: 600}}
    payload:
    - {{name: x1, type: ss, server: 127.0.0.1, port: {dead}, cipher: aes-128-gcm, password: pw}}
    - {{name: x2, type: socks5, server: 127.0.0.1, port: {dead}}}
  pp-http:
    type: http
    url: http://127.0.0.1:{web}/sub
    path: ./pp/http.txt
    interval: 3600
    health-check: {{enable: false, url: 'http://127.0.0.1:{web}/generate_204'}}
rule-providers:
  rp-domain: {{type: inline, behavior: domain, payload: ['plain.rp.test', '+.plus.rp.test']}}
  rp-classic: {{type: inline, behavior: classical, payload: ['DOMAIN,one.rc.test', 'DST-PORT,7100']}}
  rp-ip: {{type: inline, behavior: ipcidr, payload: ['198.18.4.0/24']}}
  rp-src: {{type: inline, behavior: ipcidr, payload: ['127.0.9.0/24']}}
sub-rules:
  sub1: ['DOMAIN,a.sub.test,p-ss']
rules:
- DOMAIN,a.exact.test,p-ss
- DOMAIN-SUFFIX,suffix.test,Proxy
- RULE-SET,rp-domain,Proxy
- AND,((DOMAIN-SUFFIX,and.test),(DST-PORT,8080)),p-ss
- SUB-RULE,(DOMAIN-SUFFIX,sub.test),sub1
- IP-CIDR,127.0.0.1/32,DIRECT,no-resolve
- MATCH,Proxy
",
        mixed.port()
    )
}

/// A mihomo with that file.
pub(crate) struct Core {
    pub(crate) running: Running,
    pub(crate) dir: Dir,
    pub(crate) at: SocketAddr,
    pub(crate) mixed: SocketAddr,
    pub(crate) origin: SocketAddr,
    pub(crate) dead: SocketAddr,
}

pub(crate) fn core() -> Core {
    let dir = Dir::new();
    let (at, mixed, origin, dead) = (unused_localhost(), unused_localhost(), origin(), unused_localhost());
    dir.file("config.yaml", &config(at, mixed, origin, dead));
    let running = mihomo(&dir, &[]);
    running.line("RESTful API listening at");
    Core { running, dir, at, mixed, origin, dead }
}

/// The mihomo that takes adit's place, to show whether a test asks for what mihomo does.
pub(crate) fn peer() -> Option<PathBuf> {
    std::env::var_os("ADIT_TEST_IN_PLACE").map(PathBuf::from)
}

/// Says that a test is about what adit alone does, if mihomo is in its place.
pub(crate) fn is_about_adit() -> bool {
    let is_skipped = peer().is_some();
    if is_skipped {
        adit_testkit::skipped("mihomo does something else, with intent of adit");
    }
    is_skipped
}

pub(crate) fn mihomo(dir: &Dir, args: &[&str]) -> Running {
    let home = dir.path().to_str().unwrap().to_owned();
    let is_peer = peer().is_some();
    let program = peer().unwrap_or_else(|| dir.path().join("mihomo"));
    let program = if program.exists() { program } else { link(dir, "mihomo") };
    let mut all = vec!["-d", &home];
    all.extend(args);
    let running = Running::start(dir.command(program, &all));
    if is_peer {
        // It says that it listens before it has its proxies and rules.
        let deadline = Instant::now() + Duration::from_secs(3);
        while !running.log().contains("initial compatible provider default") && Instant::now() < deadline {
            thread::sleep(Duration::from_millis(20));
        }
        // Nothing tells that it is ready.
        thread::sleep(Duration::from_millis(300));
    }
    running
}

/// The kind of a value.
fn kind(value: &Value) -> &'static str {
    match value {
        Value::Null => "null",
        Value::Bool(_) => "bool",
        Value::Number(_) => "number",
        Value::String(_) => "string",
        Value::Array(_) => "array",
        Value::Object(_) => "object",
    }
}

/// Differences in keys and types: none may be missing, more may be there. The items of a list have the shape of one of
/// the recorded ones.
fn compare(path: &str, want: &Value, got: &Value, found: &mut Vec<String>) {
    match (want, got) {
        (Value::Object(want), Value::Object(got)) => {
            for (key, want) in want {
                match got.get(key) {
                    Some(got) => compare(&format!("{path}.{key}"), want, got, found),
                    None => found.push(format!("{path}.{key} is missing")),
                }
            }
        }
        (Value::Array(want), Value::Array(got)) => {
            for (n, got) in got.iter().enumerate() {
                let fits = |want: &Value| {
                    let mut found = Vec::new();
                    compare("", want, got, &mut found);
                    found.is_empty()
                };
                if !want.is_empty() && !want.iter().any(fits) {
                    found.push(format!("{path}[{n}] has another shape: {got}"));
                }
            }
        }
        // A list or text that is not there is null.
        (Value::Null, Value::Array(_) | Value::String(_) | Value::Null) => {}
        (Value::Array(_), Value::Null) => {}
        _ if kind(want) == kind(got) => {}
        _ => found.push(format!("{path}: {} instead of {}", kind(got), kind(want))),
    }
}

/// Requests whose answers differ with intent: newer versions of mihomo have these paths, and a delay is never 0.
fn is_other(file: &str, method: &str, path: &str) -> bool {
    path.starts_with("/storage/")
        || path == "/cache/dns/flush" && method == "POST"
        // A delay of 0, which mihomo takes for a failure, is chance.
        || file == "proxy_delay.json" && path.contains("p-direct/delay?url=http") && path.ends_with("generate_204&timeout=2000")
        || file == "proxy_delay.json" && path.contains("%2F500&timeout=2000")
        // These tests have no name servers: see dns.rs. mihomo looks at nothing else then.
        || file == "dns_query.json" && peer().is_some()
        || file == "dns_query.json" && !path.contains("BOGUS") && !path.ends_with("type=a")
        // The recorded proxies were stand-ins that answer, or swallow; here nothing listens.
        || path.starts_with("/group/Auto/delay") && path.ends_with("timeout=2000")
        || path.contains("sub-ss/healthcheck")
        || path.contains("sub-ssr") || path.contains("26299")
}

#[test]
fn every_recorded_request_has_its_shape() {
    let core = core();
    wait_for("the subscription", || {
        get(core.at, "/providers/proxies")["providers"]["pp-http"]["proxies"]
            .as_array()
            .is_some_and(|all| !all.is_empty())
    });
    let (web, dead) = (core.origin.port().to_string(), core.dead.port().to_string());
    let mut files: Vec<_> = fs::read_dir(FOLDER).unwrap().map(|file| file.unwrap().path()).collect();
    files.sort();
    let (mut count, mut found) = (0, Vec::new());
    for file in &files {
        let name = file.file_name().unwrap().to_str().unwrap();
        let text = fs::read_to_string(file).unwrap().replace("26203", &web).replace("26201", &dead);
        let records: Value = serde_json::from_str(&text).unwrap();
        let records = records.as_array().cloned().unwrap_or_else(|| vec![records]);
        for record in &records {
            let request = &record["request"];
            let (method, path) = (request["method"].as_str().unwrap(), request["path"].as_str().unwrap());
            // adit keeps an entry that it does not speak as a dead one.
            let is_foreign = request["body"].as_str().is_some_and(|body| body.contains("vmessx"));
            if is_foreign || is_other(name, method, path) {
                continue;
            }
            let fields: Vec<(&str, &str)> = request["headers"]
                .as_object()
                .unwrap()
                .iter()
                .map(|(name, value)| (name.as_str(), value.as_str().unwrap()))
                .collect();
            let answer = ask(core.at, method, path, &fields, request["body"].as_str().unwrap_or_default());
            count += 1;
            let place = format!("{name}: {method} {path}");
            if u64::from(answer.status) != record["status"].as_u64().unwrap() {
                found.push(format!(
                    "{place}: status {} instead of {}: {}",
                    answer.status, record["status"], answer.body
                ));
                continue;
            }
            for (field, want) in record["headers"].as_object().unwrap() {
                let is_exact =
                    field.starts_with("Access-Control") || matches!(field.as_str(), "Content-Type" | "Allow");
                let got = answer.field(field);
                let is_same = if is_exact { got == want.as_str() } else { got.is_some() };
                if !is_same && !matches!(field.as_str(), "Content-Length" | "Transfer-Encoding") {
                    found.push(format!("{place}: {field}: {got:?} instead of {want}"));
                }
            }
            if name != "connections.json" && record["body"] != "" {
                compare(&place, &record["body"], &answer.json(), &mut found);
            }
        }
    }
    // The subscription here has one entry.
    found.retain(|one| !one.ends_with("sub-ssr is missing"));
    assert!(count > 90, "{count} requests");
    assert!(found.is_empty(), "{} differ:\n{}", found.len(), found.join("\n"));
}

/// A WebSocket's first texts.
pub(crate) fn frames(at: SocketAddr, path: &str, count: usize) -> Vec<String> {
    let mut stream = websocket(at, path);
    (0..count).map(|_| frame(&mut stream)).collect()
}

pub(crate) fn websocket(at: SocketAddr, path: &str) -> TcpStream {
    let (status, stream) = upgrade(at, path, "");
    assert_eq!(status, 101, "{path}");
    stream
}

fn upgrade(at: SocketAddr, path: &str, fields: &str) -> (u16, TcpStream) {
    let mut stream = TcpStream::connect(at).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    let head = format!(
        "GET {path} HTTP/1.1\r\nHost: {at}\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\
         Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n{fields}\r\n"
    );
    stream.write_all(head.as_bytes()).unwrap();
    let head = read_head(&mut stream);
    (head.split(' ').nth(1).unwrap().parse().unwrap(), stream)
}

pub(crate) fn frame(stream: &mut TcpStream) -> String {
    let mut head = [0; 2];
    stream.read_exact(&mut head).unwrap();
    assert_eq!(head[0], 0x81, "a text");
    let len = match head[1] {
        126 => {
            let mut len = [0; 2];
            stream.read_exact(&mut len).unwrap();
            u16::from_be_bytes(len).into()
        }
        127 => {
            let mut len = [0; 8];
            stream.read_exact(&mut len).unwrap();
            usize::try_from(u64::from_be_bytes(len)).unwrap()
        }
        len => len.into(),
    };
    let mut text = vec![0; len];
    stream.read_exact(&mut text).unwrap();
    String::from_utf8(text).unwrap()
}

#[test]
fn connections_have_their_rule_and_chain_and_can_be_closed() {
    let core = core();
    let target = echo();
    let mut logs = websocket(core.at, "/logs?token=s3cret");
    let mut stream = socks5(core.mixed, "127.0.0.1", target.port());
    round_trip(&mut stream, 1000);
    let opened = std::iter::repeat_with(|| frame(&mut logs)).find(|line| line.contains("[TCP]")).unwrap();
    let want = format!("--\\u003e {target} match IPCIDR(127.0.0.1/32) using DIRECT");
    assert!(opened.contains("\"type\":\"info\"") && opened.contains(&want), "{opened}");
    let all = get(core.at, "/connections");
    let one = &all["connections"][0];
    assert_eq!(one["chains"][0], "DIRECT", "{all}");
    assert_eq!((&one["rule"], &one["rulePayload"]), (&"IPCIDR".into(), &"127.0.0.1/32".into()));
    assert_eq!((&one["upload"], &one["download"]), (&1000.into(), &1000.into()));
    // mihomo counts the downloads of its lists, too.
    for total in ["uploadTotal", "downloadTotal"] {
        let bytes = all[total].as_u64().unwrap();
        assert!(bytes == 1000 || peer().is_some() && bytes > 1000, "{all}");
    }
    let about = &one["metadata"];
    assert_eq!((&about["type"], &about["inboundName"]), (&"Socks5".into(), &"DEFAULT-MIXED".into()));
    assert_eq!((&about["destinationIP"], &about["host"]), (&"127.0.0.1".into(), &"".into()));
    assert_eq!(about["destinationPort"], target.port().to_string());
    // Every recorded key is there, with its type.
    let text = fs::read_to_string(Path::new(FOLDER).join("connections.json")).unwrap();
    let recorded: Value = serde_json::from_str(&text).unwrap();
    let mut found = Vec::new();
    compare("", &recorded["body"], &all, &mut found);
    assert!(found.is_empty(), "{}", found.join("\n"));
    let shown: Value =
        serde_json::from_str(&frames(core.at, "/connections?interval=200&token=s3cret", 2)[1]).unwrap();
    assert_eq!(shown["connections"][0]["id"], one["id"]);
    assert_eq!(shown["connections"][0]["start"], one["start"]);
    let id = one["id"].as_str().unwrap();
    assert_eq!(put(core.at, "DELETE", "/connections/00000000-0000-0000-0000-000000000000", ""), 204);
    round_trip(&mut stream, 10);
    assert_eq!(put(core.at, "DELETE", &format!("/connections/{id}"), ""), 204);
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    assert!(matches!(stream.read(&mut [0; 1]), Ok(0) | Err(_)), "it is closed");
    wait_for("the end of the entry", || get(core.at, "/connections")["connections"].is_null());
}

/// A flow of datagrams is shown as a stream is, and the programs of both.
#[cfg(target_os = "linux")]
#[test]
fn flows_of_datagrams_have_their_rule_chain_and_program() {
    let target = UdpSocket::bind("127.0.0.1:0").unwrap();
    let (at, mixed, to) = (unused_localhost(), unused_localhost(), target.local_addr().unwrap());
    let own = std::env::current_exe().unwrap();
    let name = own.file_name().unwrap().to_str().unwrap();
    let text = format!(
        "mixed-port: {}\nexternal-controller: {at}\nsecret: s3cret\nfind-process-mode: always\n\
proxies: [{{name: d, type: direct}}]\n\
proxy-groups: [{{name: In, type: select, proxies: [d]}}, {{name: Out, type: select, proxies: [In]}}]\n\
rules: [\"NETWORK,tcp,DIRECT\", \"PROCESS-NAME,{name},Out\", \"MATCH,REJECT\"]\n",
        mixed.port()
    );
    let dir = Dir::new();
    dir.file("config.yaml", &text);
    let running = mihomo(&dir, &[]);
    running.line("RESTful API listening at");
    let mut control = TcpStream::connect(mixed).unwrap();
    control.write_all(&[5, 1, 0, 5, 3, 0, 1, 0, 0, 0, 0, 0, 0]).unwrap();
    let mut reply = [0; 12];
    control.read_exact(&mut reply).unwrap();
    let relay = SocketAddr::from(([127, 0, 0, 1], u16::from_be_bytes([reply[10], reply[11]])));
    let client = UdpSocket::bind("127.0.0.1:0").unwrap();
    client.set_read_timeout(Some(PATIENCE)).unwrap();
    let mut datagram = vec![0, 0, 0, 1, 127, 0, 0, 1];
    datagram.extend(to.port().to_be_bytes());
    datagram.extend(b"hello");
    client.send_to(&datagram, relay).unwrap();
    target.set_read_timeout(Some(PATIENCE)).unwrap();
    let (len, from) = target.recv_from(&mut [0; 64]).unwrap();
    assert_eq!(len, 5);
    target.send_to(b"answer!", from).unwrap();
    client.recv(&mut [0; 64]).unwrap();
    let stream = echo();
    let mut held = socks5(mixed, "127.0.0.1", stream.port());
    round_trip(&mut held, 10);
    let all = get(at, "/connections");
    let of = |network: &str| {
        let mut all = all["connections"].as_array().unwrap().iter();
        all.find(|one| one["metadata"]["network"] == network).unwrap_or_else(|| panic!("{network}"))
    };
    let flow = of("udp");
    assert_eq!(flow["chains"], serde_json::json!(["d", "In", "Out"]), "{all}");
    assert_eq!((&flow["rule"], &flow["rulePayload"]), (&"ProcessName".into(), &name.into()));
    assert_eq!((&flow["upload"], &flow["download"]), (&5.into(), &7.into()));
    for one in [flow, of("tcp")] {
        let about = &one["metadata"];
        assert_eq!(about["process"], name, "{all}");
        assert_eq!(about["processPath"], own.to_str().unwrap());
    }
    assert_eq!(get(at, "/configs")["find-process-mode"], "always");
    drop(running);
}

#[test]
fn streams_come_each_second_and_the_sixty_fifth_is_refused() {
    if is_about_adit() {
        return;
    }
    let core = core();
    let at = core.at;
    for path in ["/traffic?token=s3cret", "/memory?token=s3cret"] {
        let texts = frames(at, path, 2);
        assert!(texts[0].ends_with('\n') && texts[0].starts_with('{'), "{texts:?}");
    }
    assert_eq!(upgrade(at, "/traffic?token=wrong", "").0, 401);
    assert_eq!(upgrade(at, "/traffic", "").0, 401);
    assert_eq!(upgrade(at, "/traffic", "Authorization: Bearer s3cret\r\n").0, 101);
    // The places of the streams above come free once their sockets are seen to be closed.
    let mut held = Vec::new();
    wait_for("64 streams", || {
        let (status, stream) = upgrade(at, "/logs?token=s3cret", "");
        if status == 101 {
            held.push(stream);
        }
        status == 503 && held.len() >= 60
    });
    wait_for("a full house", || {
        let (status, stream) = upgrade(at, "/memory?token=s3cret", "");
        if status == 101 {
            held.push(stream);
        }
        held.len() == 64 && status == 503
    });
    assert_eq!(get(at, "/version")["meta"], true);
    held.pop();
    wait_for("a free place", || upgrade(at, "/logs?token=s3cret", "").0 == 101);
    assert_eq!(ask(at, "GET", "/logs?level=nosuch", &[("Authorization", "Bearer s3cret")], "").status, 400);
}

/// Whether a HTTP proxy connects to a target that sends everything back.
pub(crate) fn is_connected(proxy: SocketAddr, host: &str, port: u16) -> bool {
    let mut stream = TcpStream::connect(proxy).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    let ask = format!("CONNECT {host}:{port} HTTP/1.1\r\nHost: x\r\n\r\n");
    stream.write_all(ask.as_bytes()).unwrap();
    stream.write_all(b"ping").ok();
    let mut got = Vec::new();
    let mut bytes = [0; 256];
    while !got.ends_with(b"ping") {
        match stream.read(&mut bytes) {
            Ok(0) | Err(_) => return false,
            Ok(len) => got.extend(&bytes[..len]),
        }
    }
    true
}

#[test]
fn modes_texts_and_levels_change_while_it_runs() {
    let core = core();
    let (at, target) = (core.at, echo());
    let is_open = |host: &str| is_connected(core.mixed, host, target.port());
    assert!(is_open("127.0.0.1"));
    assert!(is_open("localhost"), "its address is known without a look-up");
    assert!(!is_open("www.suffix.test"), "its rule leads to a dead proxy");
    assert_eq!(put(at, "PATCH", "/configs", r#"{"mode":"Direct"}"#), 204);
    assert_eq!(get(at, "/configs")["mode"], "direct");
    assert!(is_open("localhost"));
    assert_eq!(put(at, "PATCH", "/configs", r#"{"mode":"global"}"#), 204);
    assert_eq!(put(at, "PUT", "/proxies/GLOBAL", r#"{"name":"p-reject"}"#), 204);
    assert!(!is_open("127.0.0.1"));
    assert_eq!(put(at, "PATCH", "/configs", r#"{"mode":"rule","log-level":"debug"}"#), 204);
    assert_eq!(get(at, "/configs")["log-level"], "debug");
    assert!(is_open("127.0.0.1"));
    // A new text keeps the port, and the old one holds when the new one is wrong.
    let bad = ask(
        at,
        "PUT",
        "/configs",
        &[("Authorization", "Bearer s3cret")],
        r#"{"payload":"rules: [\"BOGUS,x,DIRECT\"]"}"#,
    );
    assert_eq!(bad.status, 400);
    assert!(bad.body.contains("unsupported rule type: BOGUS"), "{}", bad.body);
    assert!(is_open("127.0.0.1"));
    let text = r#"{"payload":"mixed-port: 1\nexternal-controller: 127.0.0.1:1\nrules: ['MATCH,REJECT']"}"#;
    assert_eq!(put(at, "PUT", "/configs", text), 204);
    assert_eq!(get(at, "/rules")["rules"].as_array().unwrap().len(), 1);
    assert!(!is_open("127.0.0.1"));
    assert_eq!(get(at, "/configs")["mixed-port"], core.mixed.port());
    // SIGHUP goes back to the file.
    core.running.signal("HUP");
    wait_for("the file", || get(at, "/rules")["rules"].as_array().unwrap().len() == 7);
    assert_eq!(get(at, "/configs")["log-level"], "info");
    if peer().is_some() {
        // It drops connections that come while it takes a file.
        wait_for("a connection", || is_open("127.0.0.1"));
    }
    assert!(is_open("127.0.0.1"));
    drop(core.dir);
}

#[test]
fn without_a_secret_other_pages_are_refused() {
    if is_about_adit() {
        return;
    }
    let dir = Dir::new();
    let at = unused_localhost();
    let text = format!("mixed-port: 0\nexternal-controller: 0.0.0.0:{}\nexternal-ui: ui\n", at.port());
    dir.file("config.yaml", &text);
    fs::create_dir(dir.path().join("ui")).unwrap();
    dir.file("ui/index.html", "<p>dashboard");
    let running = mihomo(&dir, &[]);
    let line = running.line("RESTful API listening at");
    assert!(line.contains(&format!("127.0.0.1:{}", at.port())), "{line}");
    assert!(running.log().contains("add the line: secret"), "{}", running.log());
    let foreign = ("Origin", "http://evil.example");
    for (method, path) in [
        ("GET", "/configs"),
        ("PUT", "/configs"),
        ("PATCH", "/configs"),
        ("DELETE", "/connections"),
        ("POST", "/restart"),
        ("OPTIONS", "/configs"),
        ("GET", "/ui/"),
        ("GET", "/nosuch"),
    ] {
        let answer = ask(at, method, path, &[foreign], "{}");
        assert_eq!(answer.status, 403, "{method} {path}");
        assert!(answer.field("Access-Control-Allow-Origin").is_none());
        let answer = ask(at, method, path, &[("Host", "rebound.example")], "{}");
        assert_eq!(answer.status, 403, "{method} {path}");
    }
    assert_eq!(upgrade(at, "/logs", "Origin: http://evil.example\r\n").0, 403);
    assert_eq!(upgrade(at, "/logs", &format!("Origin: http://{at}\r\n")).0, 101);
    let near = ask(at, "GET", "/version", &[("Origin", "http://localhost:5173")], "");
    assert_eq!(
        (near.status, near.field("Access-Control-Allow-Origin")),
        (200, Some("http://localhost:5173"))
    );
    assert_eq!(ask(at, "GET", "/ui", &[], "").field("Location"), Some("/ui/"));
    let page = ask(at, "GET", "/ui/", &[], "");
    assert_eq!((page.status, page.body.as_str()), (200, "<p>dashboard"));
    assert_eq!(ask(at, "GET", "/ui/../config.yaml", &[], "").status, 404);
    assert_eq!(ask(at, "GET", "/ui/%2e%2e/config.yaml", &[], "").status, 404);
    for path in ["/upgrade", "/upgrade/ui", "/configs/geo"] {
        assert_eq!(ask(at, "POST", path, &[], "").status, 501, "{path}");
    }
}

#[test]
fn flags_outrank_the_file_and_a_unix_socket_needs_no_secret() {
    use std::os::unix::net::UnixStream;
    let dir = Dir::new();
    let (at, socket) = (unused_localhost(), dir.path().join("c.sock"));
    dir.file("config.yaml", "mixed-port: 0\nexternal-controller: 127.0.0.1:1\nsecret: other\n");
    let address = at.to_string();
    let flags = ["-ext-ctl", &address, "-secret", "s3cret", "-ext-ctl-unix", socket.to_str().unwrap()];
    let running = mihomo(&dir, &flags);
    running.line("RESTful API unix listening at");
    assert_eq!(get(at, "/version")["meta"], true);
    let mut stream = UnixStream::connect(&socket).unwrap();
    stream.write_all(b"GET /version HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n").unwrap();
    let mut text = String::new();
    stream.read_to_string(&mut text).unwrap();
    assert!(text.starts_with("HTTP/1.1 200") && text.contains("\"meta\":true"), "{text}");
}

#[test]
fn adit_toml_has_the_same() {
    let dir = Dir::new();
    let (at, mixed) = (unused_localhost(), unused_localhost());
    let text = format!(
        "[admin]\nclash = \"{at}\"\nclash-secret = \"s3cret\"\n[[inbound]]\nprotocol = \"mixed\"\nname = \"local\"\n\
         listen = \"{mixed}\"\noutbound = \"direct\"\n[[outbound]]\nname = \"direct\"\nprotocol = \"direct\"\n\
         [[rule]]\ndomain-suffix = \"a.test\"\noutbound = \"direct\"\n"
    );
    dir.file("adit.toml", &text);
    let running = Running::start(dir.adit(&["run", "-c", "adit.toml"]));
    running.line("RESTful API listening at");
    assert_eq!(ask(at, "GET", "/proxies", &[], "").status, 401);
    let proxies = get(at, "/proxies");
    assert_eq!(proxies["proxies"]["GLOBAL"]["all"][0], "direct");
    assert_eq!(get(at, "/configs")["mixed-port"], mixed.port());
    let rule = &get(at, "/rules")["rules"][0];
    assert_eq!(
        (&rule["type"], &rule["payload"], &rule["proxy"]),
        (&"DomainSuffix".into(), &"a.test".into(), &"direct".into())
    );
    assert_eq!(put(at, "PATCH", "/configs", r#"{"mode":"rule"}"#), 204);
    assert_eq!(put(at, "PATCH", "/configs", r#"{"mode":"global"}"#), 400);
}
