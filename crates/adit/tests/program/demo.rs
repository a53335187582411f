use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::thread;
use std::time::{Duration, Instant};

use crate::support::{Dir, PATIENCE, Running, socks5};

#[test]
fn a_table_and_lines_to_paste() {
    let dir = Dir::new();
    let (status, out, err) = dir.run(&["demo", "--size", "16M", "--seconds", "1"]);
    assert_eq!(status, 0, "{err}");
    let words = [
        "download",
        "upload",
        "first byte",
        "processor",
        "memory, server",
        "home = snell, YOUR-SERVER, 6160, psk=",
        "  type: snell\n",
        "\"server_port\": 6160",
        "[snell-client]",
        "adit run",
    ];
    for word in words {
        assert!(out.contains(word), "{word}: {out}");
    }
}

#[test]
fn for_a_program() {
    let dir = Dir::new();
    let (status, out, err) = dir.run(&["demo", "--size", "4M", "--seconds", "1", "--json"]);
    assert_eq!((status, &*err), (0, ""));
    let json: serde_json::Value = serde_json::from_str(&out).unwrap();
    assert!(json["figures"]["up"]["bytes"].as_u64() > Some(0), "{out}");
    assert!(json["figures"]["server_memory_kib"].as_u64() > Some(0), "{out}");
    assert!(json["lines"]["surge"].is_string(), "{out}");
}

/// The proxy and the site of `PROXY http://SITE/`.
fn addresses(line: &str) -> (SocketAddr, &str) {
    let (proxy, url) = line.trim().split_once(' ').unwrap();
    let site = url.strip_prefix("http://").and_then(|url| url.strip_suffix('/')).unwrap();
    (proxy.parse().unwrap(), site)
}

/// Reads the site's page through the proxy, interrupts the demo, and waits until the proxy is gone.
fn shows_the_page_and_ends(running: Running, (proxy, site): (SocketAddr, &str), mut stream: TcpStream) {
    write!(stream, "GET / HTTP/1.1\r\nHost: {site}\r\n\r\n").unwrap();
    let mut page = String::new();
    stream.read_to_string(&mut page).unwrap();
    assert!(page.contains("<h1>It works</h1>"), "{page}");
    running.signal("INT");
    assert_eq!(running.end().0.code(), Some(0));
    let deadline = Instant::now() + PATIENCE;
    while TcpStream::connect(proxy).is_ok() {
        assert!(Instant::now() < deadline, "the client outlived the demo");
        thread::sleep(Duration::from_millis(10));
    }
}

#[test]
fn kept_for_a_browser() {
    let dir = Dir::new();
    let running = Running::start(dir.adit(&["demo", "--size", "1M", "--seconds", "1", "--keep"]));
    let line = running.line("try: curl -x socks5h://");
    let (_, rest) = line.split_once("socks5h://").unwrap();
    let (proxy, site) = addresses(rest);
    let port = site.parse::<SocketAddr>().unwrap().port();
    let stream = socks5(proxy, "127.0.0.1", port);
    shows_the_page_and_ends(running, (proxy, site), stream);
}

#[test]
#[cfg(target_os = "linux")]
fn snowflake_moves_bytes_and_tells_the_cost_of_each_role() {
    let dir = Dir::new();
    let (status, out, err) = dir.run(&["demo", "snowflake", "--size", "2M", "--seconds", "20", "--json"]);
    assert_eq!((status, &*err), (0, ""));
    let json: serde_json::Value = serde_json::from_str(&out).unwrap();
    for way in ["down", "up"] {
        let direction = &json["figures"][way];
        assert_eq!(direction["bytes"].as_u64(), Some(2 << 20), "{way}: {out}");
        let roles = direction["roles"].as_array().unwrap();
        assert_eq!(
            roles.iter().map(|cost| &cost["role"]).collect::<Vec<_>>(),
            ["client", "proxy", "server", "broker"]
        );
        for cost in &roles[..3] {
            let (cpu, rate) =
                (cost["cpu_ms_per_mb"].as_f64().unwrap(), cost["mb_per_cpu_s"].as_f64().unwrap());
            assert!((cpu * rate / 1000.0 - 1.0).abs() < 1e-6, "{cost}");
        }
        assert!(roles[3]["mb_per_cpu_s"].is_null(), "{out}");
    }
    assert!(json["figures"]["first_byte_ms"].as_f64() > Some(0.0), "{out}");
}

#[test]
#[cfg(target_os = "linux")]
fn snowflake_as_a_table_and_kept() {
    let dir = Dir::new();
    let args = ["demo", "snowflake", "--size", "1M", "--seconds", "20", "--keep"];
    let running = Running::start(dir.adit(&args));
    let line = running.line("try: curl -x socks5h://");
    for word in ["download", "upload", "first byte", "ms/MB", "proxy ", "broker ", "resident"] {
        running.line(word);
    }
    let (_, rest) = line.split_once("socks5h://").unwrap();
    let (proxy, site) = addresses(rest);
    // The server has a target of its own: the name counts for nothing.
    let stream = socks5(proxy, "any.example", 80);
    shows_the_page_and_ends(running, (proxy, site), stream);
}

#[test]
#[cfg(target_os = "linux")]
fn help_of_snowflakes_programs_goes_to_standard_output() {
    let dir = Dir::new();
    for name in ["client", "proxy", "broker", "server", "probetest"].map(|role| format!("snowflake-{role}")) {
        let (status, out, err) = dir.run(&[&name, "-h"]);
        assert_eq!((status, &*err), (0, ""), "{name}");
        assert!(out.contains(&name) && out.contains("-unsafe-logging"), "{name}: {out}");
        assert!(dir.run(&["--help"]).1.contains(&name), "{name}");
    }
}
