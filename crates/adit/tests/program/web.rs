//! Every port of adit that speaks HTTP, and what it takes for a request of its own: one host, no page of another site.

use std::fs;
use std::io::{Read as _, Write as _};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::path::{Path, PathBuf};

use adit_testkit::unused_localhost;

use crate::clash_api::mihomo;
use crate::support::{Dir, PATIENCE, Running};

/// The status of an answer; 0 if there is none.
fn status(at: SocketAddr, line: &str, fields: &str, body: &str) -> u16 {
    let mut stream = TcpStream::connect(at).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    let len = body.len();
    let head = format!("{line}\r\n{fields}Connection: close\r\nContent-Length: {len}\r\n\r\n{body}");
    stream.write_all(head.as_bytes()).unwrap();
    let mut text = Vec::new();
    stream.read_to_end(&mut text).ok();
    let text = String::from_utf8_lossy(&text);
    text.split(' ').nth(1).and_then(|status| status.parse().ok()).unwrap_or(0)
}

/// A port, and what it says to pages.
struct Port {
    name: &'static str,
    at: SocketAddr,
    /// A path that has an answer, and its status.
    path: &'static str,
    good: u16,
    /// Fields without which the path has another answer.
    fields: &'static str,
    /// Whether a host that is another site's is refused, and a page of another site.
    is_guarded: bool,
    _running: Vec<Running>,
    _dir: Dir,
}

fn port(
    name: &'static str,
    at: SocketAddr,
    (path, good): (&'static str, u16),
    (fields, is_guarded): (&'static str, bool),
    (dir, running): (Dir, Vec<Running>),
) -> Port {
    Port { name, at, path, good, fields, is_guarded, _running: running, _dir: dir }
}

fn controller(secret: &str) -> (SocketAddr, Dir, Running) {
    let (dir, at) = (Dir::new(), unused_localhost());
    dir.file("config.yaml", &format!("mixed-port: 0\nexternal-controller: {at}\nmode: direct\n{secret}"));
    let running = mihomo(&dir, &[]);
    running.line("RESTful API listening at");
    (at, dir, running)
}

/// The address behind these words in the log.
fn behind(running: &Running, words: &str) -> SocketAddr {
    let line = running.line(words);
    line.split(words).nth(1).unwrap().split_whitespace().next().unwrap().parse().unwrap()
}

fn local(admin: &str) -> (SocketAddr, SocketAddr, Dir, Running) {
    let (dir, mixed, http) = (Dir::new(), unused_localhost(), unused_localhost());
    let text = format!(
        "[admin]\nhttp = \"{http}\"\n{admin}[[inbound]]\nprotocol = \"mixed\"\nlisten = \"{mixed}\"\n\
         outbound = \"direct\"\n[[outbound]]\nname = \"direct\"\nprotocol = \"direct\"\n"
    );
    dir.file("adit.toml", &text);
    let running = Running::start(dir.adit(&["run", "-c", "adit.toml"]));
    running.line("listening");
    (mixed, http, dir, running)
}

fn ports() -> Vec<Port> {
    let mut ports = Vec::new();
    let (at, dir, running) = controller("");
    ports.push(port("control", at, ("/proxies", 200), ("", true), (dir, vec![running])));
    let (at, dir, running) = controller("secret: s3cret\n");
    let shown = "Authorization: Bearer s3cret\r\n";
    ports.push(port("control with a secret", at, ("/proxies", 200), (shown, false), (dir, vec![running])));
    let (mixed, http, dir, running) = local("");
    ports.push(port("metrics", http, ("/metrics", 200), ("", true), (dir, vec![running])));
    let (_, http, dir, running) = local("token = \"0123456789-a-token\"\n");
    let shown = "Authorization: Bearer 0123456789-a-token\r\n";
    ports.push(port("metrics with a token", http, ("/metrics", 200), (shown, false), (dir, vec![running])));
    let _ = mixed;
    let (mixed, _, dir, running) = local("");
    ports.push(port("the proxy's own page", mixed, ("/", 200), ("", true), (dir, vec![running])));
    let dir = Dir::new();
    let flags = ["snowflake-broker", "-addr", "127.0.0.1:0", "-disable-tls", "-disable-geoip"];
    let broker = Running::start(dir.adit(&flags));
    let at = behind(&broker, "listening on ");
    let (url, metrics) = (format!("http://{at}/"), unused_localhost().port().to_string());
    ports.push(port("broker", at, ("/debug", 200), ("", false), (dir, vec![broker])));
    let dir = Dir::new();
    let flags = [
        "snowflake-proxy",
        "-broker",
        &url,
        "-stun",
        "",
        "-metrics",
        "-metrics-address",
        "127.0.0.1",
        "-metrics-port",
    ];
    let mut command = dir.adit(&flags);
    command.arg(&metrics);
    let proxy = Running::start(command);
    let at = SocketAddr::from((Ipv4Addr::LOCALHOST, metrics.parse().unwrap()));
    adit_testkit::wait_for("the metrics are served", || TcpStream::connect(at).is_ok());
    ports.push(port("Snowflake proxy", at, ("/internal/metrics", 200), ("", true), (dir, vec![proxy])));
    ports
}

#[test]
fn each_port_takes_one_host_and_no_page_of_another_site() {
    for Port { name, at, path, good, fields, is_guarded, .. } in ports() {
        let host = format!("Host: {at}\r\n");
        let ask = |more: &str| status(at, &format!("GET {path} HTTP/1.1"), &format!("{fields}{more}"), "");
        assert_eq!(ask(&host), good, "{name}");
        assert_eq!(ask(&format!("Host: localhost:{}\r\n", at.port())), good, "{name}");
        for bad in [
            String::new(),
            format!("{host}{host}"),
            format!("{host}hOST: {at}\r\n"),
            "Host:\r\n".into(),
            "Host: [::1].evil.com\r\n".into(),
            format!("Host: [::1].evil.com:{}\r\n", at.port()),
            format!("Host: user@{at}\r\n"),
            format!("Host: {at}@evil.com\r\n"),
            format!("Host: {at}/x\r\n"),
            format!("Host: {at}, evil.com\r\n"),
            "Host: 127.0.0.1:0\r\n".into(),
            "Host: 127.0.0.1:65536\r\n".into(),
            "Host: 127.0.0.1:+80\r\n".into(),
            "Host: 999.1.1.1\r\n".into(),
            "Host: a%20b\r\n".into(),
            format!("{host}Origin: http://localhost:80@evil.com\r\n"),
            format!("{host}Origin: http://{at}/\r\n"),
            format!("{host}Origin: http://[::1].evil.com\r\n"),
            format!("{host}Origin: http://localhost:99999\r\n"),
            format!("{host}Origin: http://{at}\r\nOrigin: http://{at}\r\n"),
            format!("{host}Origin: nonsense\r\n"),
        ] {
            assert_eq!(ask(&bad), 400, "{name}: {bad}");
        }
        let absolute = |url: &str, fields: &str| status(at, &format!("GET {url} HTTP/1.1"), fields, "");
        if !name.contains("proxy's") {
            let own = format!("http://{at}{path}");
            assert_eq!(absolute(&own, &format!("{fields}{host}")), good, "{name}");
            assert_eq!(absolute(&own, &format!("{fields}Host: evil.example\r\n")), 400, "{name}");
            let other = format!("http://evil.example{path}");
            assert_eq!(absolute(&other, &format!("{fields}{host}")), 400, "{name}");
        }
        let foreign = [
            "Host: evil.example\r\n".to_owned(),
            format!("Host: evil.example:{}\r\n", at.port()),
            format!("{host}Origin: null\r\n"),
            format!("{host}Origin: http://evil.example\r\n"),
            format!("{host}Origin: http://127.0.0.1.evil.example\r\n"),
            format!("{host}Sec-Fetch-Site: cross-site\r\n"),
            format!("{host}Sec-Fetch-Site: same-site\r\n"),
            format!(
                "{host}Sec-Fetch-Site: cross-site\r\nSec-Fetch-Mode: navigate\r\nSec-Fetch-Dest: iframe\r\n"
            ),
            format!("{host}Referer: http://evil.example/page\r\n"),
        ];
        for (at, of) in foreign.iter().enumerate() {
            let said = ask(of);
            // The page's own port does not know other hosts at all.
            let refused: &[u16] = if name.contains("proxy's") && at < 2 { &[400] } else { &[403] };
            let is_right = if is_guarded { refused.contains(&said) } else { said == good };
            assert!(is_right, "{name}: {said} for {of}");
        }
        for near in [
            format!("{host}Origin: http://{at}\r\nSec-Fetch-Site: same-origin\r\n"),
            format!("{host}Sec-Fetch-Site: none\r\nSec-Fetch-Mode: navigate\r\nSec-Fetch-Dest: document\r\n"),
            format!(
                "{host}Sec-Fetch-Site: cross-site\r\nSec-Fetch-Mode: navigate\r\nSec-Fetch-Dest: document\r\n"
            ),
            format!("{host}Referer: http://{at}/ui/\r\n"),
        ] {
            assert_eq!(ask(&near), good, "{name}: {near}");
        }
    }
}

/// Over TLS the client is curl, which names the host that it is told to.
#[test]
fn the_management_port_takes_one_host() {
    let (dir, at) = (Dir::new(), unused_localhost());
    let secret = "0123456789abcdefghijkl";
    let text = format!(
        "state = \"state\"\n[admin]\nsocket = \"off\"\nmanage = \"{at}\"\nmanage-secret = \"{secret}\"\n[[inbound]]\n\
         name = \"in\"\nprotocol = \"shadowsocks\"\nlisten = \"127.0.0.1:0\"\nmethod = \"chacha20-ietf-poly1305\"\n\
         users = [{{ name = \"first\", password = \"p\" }}]\n"
    );
    dir.file("adit.toml", &text);
    let running = Running::start(dir.adit(&["run", "-c", "adit.toml"]));
    running.line("users can be managed");
    let url = format!("https://{at}/{secret}/server");
    let ask = |host: &str| {
        let flags = ["-sk", "--noproxy", "*", "-o", "/dev/null", "-w", "%{http_code}", "-H", host, &url];
        crate::support::finish(dir.command("curl", &flags), "").1
    };
    assert_eq!(ask("X: y"), "200");
    for host in
        ["Host;", "Host: [::1].evil.com", "Host: user@localhost", "Host: localhost:65536", "Host: 999.1.1.1"]
    {
        assert_eq!(ask(host), "400", "{host}");
    }
}

/// Each place where the program opens a port that speaks HTTP. One that is not in the tables above is to be put there.
#[test]
fn no_port_is_left_out() {
    const OPENED: [(&str, &str); 7] = [
        // Asked by the tables above.
        ("adit/src/api/clash/mod.rs", "Listener::tcp("),
        ("adit/src/api/outline/mod.rs", "Service::listen_beside("),
        ("adit/src/names/snowflake/proxy.rs", "Web::listen("),
        ("engine/src/observe/http.rs", "Web::listen_beside("),
        // The broker's and the probe server's.
        ("snowflake/src/serving.rs", "Service::listen("),
        // A service as the broker's; asked by its own tests, as are WebSockets of Snowflake.
        ("engine/src/acme/mod.rs", "Service::listen("),
        ("snowflake/src/server/port.rs", "WebSocketPort {"),
    ];
    let crates = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap();
    let mut found = Vec::new();
    for name in ["adit/src", "engine/src", "fleet/src", "net/src", "snowflake/src"] {
        sources(&crates.join(name), &mut |path, text| {
            let text = text.split("#[cfg(test)]\nmod tests {").next().unwrap();
            let path = path.strip_prefix(crates).unwrap().to_str().unwrap().to_owned();
            let is_test = path.contains("/tests") || path.ends_with("/bench.rs");
            for opener in [
                "Listener::tcp(",
                "Service::listen(",
                "Web::listen(",
                "Web::listen_beside(",
                "Service::listen_beside(",
                "WebSocketPort {",
                "http_server::serve(",
            ] {
                if !is_test && !path.starts_with("net/") && text.contains(opener) {
                    found.push((path.clone(), opener));
                }
            }
        });
    }
    found.sort();
    let mut known: Vec<_> = OPENED.iter().map(|(path, opener)| ((*path).to_owned(), *opener)).collect();
    known.sort();
    assert_eq!(found, known);
}

fn sources(folder: &Path, each: &mut impl FnMut(&PathBuf, &str)) {
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            sources(&path, each);
        } else if path.extension().is_some_and(|end| end == "rs") {
            each(&path, &fs::read_to_string(&path).unwrap());
        }
    }
}

/// Each path that does something refuses a request that a page elsewhere has a browser send.
#[test]
fn a_page_elsewhere_has_nothing_done_without_a_secret() {
    let inside = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    inside.set_nonblocking(true).unwrap();
    let url = format!("http://{}/x", inside.local_addr().unwrap());
    let (at, _dir, _running) = controller("");
    let host = format!("Host: {at}\r\n");
    let delay = format!("/proxies/DIRECT/delay?timeout=5000&url={url}");
    let upgrade = "Connection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n";
    for (method, path, more) in [
        ("GET", &*delay, ""),
        ("GET", "/group/GLOBAL/delay?timeout=5000&url=http://127.0.0.1:1/", ""),
        ("GET", "/providers/proxies/default/healthcheck", ""),
        ("GET", "/providers/proxies/default/DIRECT/healthcheck?timeout=5000&url=http://127.0.0.1:1/", ""),
        ("GET", "/dns/query?name=a.test", ""),
        ("GET", "/logs", ""),
        ("GET", "/traffic", ""),
        ("GET", "/memory", ""),
        ("GET", "/connections", upgrade),
        ("GET", "/logs", upgrade),
        ("GET", "/version", upgrade),
        ("GET", "/configs", ""),
        ("GET", "/storage/x", ""),
        ("POST", "/cache/fakeip/flush", ""),
        ("POST", "/cache/dns/flush", ""),
        ("POST", "/restart", ""),
        ("POST", "/upgrade", ""),
        ("POST", "/configs/geo", ""),
        ("PUT", "/configs", ""),
        ("PATCH", "/configs", ""),
        ("PUT", "/proxies/GLOBAL", ""),
        ("DELETE", "/proxies/GLOBAL", ""),
        ("PUT", "/providers/proxies/x", ""),
        ("PUT", "/providers/rules/x", ""),
        ("DELETE", "/connections", ""),
        ("DELETE", "/connections/x", ""),
        ("PUT", "/storage/x", ""),
    ] {
        for page in [
            "Sec-Fetch-Site: cross-site\r\n",
            "Sec-Fetch-Site: same-site\r\n",
            "Sec-Fetch-Site: cross-site\r\nSec-Fetch-Mode: no-cors\r\nSec-Fetch-Dest: image\r\n",
            "Origin: http://evil.example\r\nSec-Fetch-Site: cross-site\r\n",
            "Origin: null\r\n",
            "Referer: http://evil.example/\r\n",
        ] {
            let found =
                status(at, &format!("{method} {path} HTTP/1.1"), &format!("{host}{page}{more}"), "{}");
            assert_eq!(found, 403, "{method} {path}: {page}");
        }
    }
    // A link leads a person to what is read, and to nothing else.
    let link = "Sec-Fetch-Site: cross-site\r\nSec-Fetch-Mode: navigate\r\nSec-Fetch-Dest: document\r\n";
    let get =
        |path: &str, page: &str| status(at, &format!("GET {path} HTTP/1.1"), &format!("{host}{page}"), "");
    assert_eq!((get("/configs", link), get(&delay, link), get("/logs", link)), (200, 403, 403));
    assert_eq!(get("/version", "Sec-Fetch-Site: cross-site\r\n"), 200);
    assert!(inside.accept().is_err(), "nothing went inside");
    // Programs, and pages of this interface, have it done.
    assert_eq!(get("/dns/query?name=", "Sec-Fetch-Site: same-origin\r\n"), get("/dns/query?name=", ""));
    let asked = std::thread::spawn(move || {
        inside.set_nonblocking(false).unwrap();
        let (mut stream, _) = inside.accept().unwrap();
        stream.write_all(b"HTTP/1.1 204 No Content\r\n\r\n").unwrap();
    });
    assert_eq!(get(&delay, &format!("Origin: http://{at}\r\nSec-Fetch-Site: same-origin\r\n")), 200);
    asked.join().unwrap();
}

/// With a secret the file says which pages may read.
#[test]
fn a_page_elsewhere_that_knows_the_secret_is_a_dashboard() {
    let (at, _dir, _running) = controller("secret: s3cret\n");
    let ask = |method: &str, path: &str, more: &str| {
        let fields = format!(
            "Host: dash.example\r\nOrigin: https://dash.example\r\nSec-Fetch-Site: cross-site\r\n{more}"
        );
        status(at, &format!("{method} {path} HTTP/1.1"), &fields, "{\"mode\":\"rule\"}")
    };
    let shown = "Authorization: Bearer s3cret\r\n";
    assert_eq!(ask("GET", "/configs", shown), 200);
    assert_eq!(ask("PATCH", "/configs", shown), 204);
    for _ in 0..20 {
        assert_eq!(ask("GET", "/configs", "Authorization: Bearer wrong\r\n"), 401);
        assert_eq!(ask("GET", "/configs", shown), 200, "wrong ones lock nobody out");
    }
}

#[test]
fn values_of_the_wrong_form_change_nothing() {
    let (at, dir, _running) = controller("");
    let ask = |method: &str, path: &str, body: &str| {
        let mut stream = TcpStream::connect(at).unwrap();
        let len = body.len();
        let head = format!(
            "{method} {path} HTTP/1.1\r\nHost: {at}\r\nConnection: close\r\nContent-Length: {len}\r\n\r\n"
        );
        stream.write_all(format!("{head}{body}").as_bytes()).unwrap();
        let mut text = String::new();
        stream.read_to_string(&mut text).unwrap();
        let (head, body) = text.split_once("\r\n\r\n").unwrap();
        (head.split(' ').nth(1).unwrap().to_owned(), body.to_owned())
    };
    let before = ask("GET", "/configs", "").1;
    for (method, body) in [
        ("PATCH", r#"{"bind-address":"999.1.1.1"}"#),
        ("PATCH", r#"{"bind-address":"localhost"}"#),
        ("PATCH", r#"{"bind-address":"127.0.0.1:80"}"#),
        ("PATCH", r#"{"bind-address":7}"#),
        ("PATCH", r#"{"allow-lan":"yes"}"#),
        ("PATCH", r#"{"mixed-port":"7890"}"#),
        ("PATCH", r#"{"mixed-port":70000}"#),
        ("PATCH", r#"{"mode":"none"}"#),
        ("PATCH", r#"{"log-level":"loud"}"#),
        ("PATCH", "[]"),
        ("PUT", r#"{"payload":5}"#),
        ("PUT", r#"{"payload":["a"]}"#),
        ("PUT", r#"{"path":5}"#),
        ("PUT", r#"{"path":{}}"#),
        ("PUT", "5"),
        ("PUT", "{"),
    ] {
        assert_eq!(ask(method, "/configs", body).0, "400", "{method} {body}");
    }
    assert_eq!(ask("PUT", "/proxies/GLOBAL", r#"{"name":5}"#).0, "400");
    // The answers do not tell whether a file outside the folder exists.
    let put = |path: &str| ask("PUT", "/configs", &format!("{{\"path\":\"{path}\"}}"));
    let told: Vec<_> =
        ["/etc/nosuch", "/etc/shadow", "/etc/passwd", "/etc", "/nosuch/x", "/etc/passwd/x"].map(put).into();
    assert_eq!(told[0].0, "400");
    assert!(told.iter().all(|one| *one == told[0]), "{told:?}");
    let within = put(dir.path().join("none.yaml").to_str().unwrap());
    assert!(within.0 == "400" && within.1.contains("no such file"), "{within:?}");
    assert_eq!(ask("GET", "/configs", "").1, before);
}
