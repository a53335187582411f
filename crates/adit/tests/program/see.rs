//! `status`, `conns`, `kick`, metrics, health, the service manager and the log file, with the program itself.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream, UdpSocket};
use std::os::unix::fs::{FileTypeExt as _, PermissionsExt as _};
use std::os::unix::net::UnixDatagram;
use std::thread;
use std::time::{Duration, Instant};

use adit_testkit::unused_localhost;
use serde_json::Value;

use crate::support::{Dir, PATIENCE, Running, echo, link, round_trip, socks5};

const LOCAL: &str = "[[inbound]]\nname = \"local\"\nprotocol = \"mixed\"\nlisten = \"127.0.0.1:0\"\n";

/// Runs `adit.toml` with these lines before a local inbound.
fn start(dir: &Dir, head: &str) -> (Running, SocketAddr) {
    dir.file("adit.toml", &format!("{head}\n{LOCAL}"));
    let running = Running::start(dir.adit(&["run", "-c", "adit.toml"]));
    let at = running.address();
    (running, at)
}

fn ok(dir: &Dir, args: &[&str]) -> String {
    let (status, out, err) = dir.run(args);
    assert_eq!((status, &*err), (0, ""), "{args:?}: {out}");
    out
}

fn conns(dir: &Dir, args: &[&str]) -> Vec<Value> {
    let out = ok(dir, &[&["conns", "--json"], args].concat());
    serde_json::from_str::<Value>(&out).unwrap().as_array().unwrap().clone()
}

fn wait_for(what: &str, mut condition: impl FnMut() -> bool) {
    let deadline = Instant::now() + PATIENCE;
    while !condition() {
        assert!(Instant::now() < deadline, "{what}");
        thread::sleep(Duration::from_millis(20));
    }
}

#[test]
fn a_process_is_found_without_a_flag_and_its_connections_can_be_ended() {
    let dir = Dir::new();
    let (running, at) = start(&dir, "");
    let target = echo();
    let socket = dir.path().join(format!("adit/adit-{}.sock", running.pid()));
    let found = std::fs::symlink_metadata(&socket).unwrap();
    assert!(found.file_type().is_socket());
    assert_eq!(found.permissions().mode() & 0o777, 0o600);
    let text = ok(&dir, &["status"]);
    assert!(text.contains(&format!("process {}", running.pid())) && text.contains(", ready\n"), "{text}");

    let mut one = socks5(at, "127.0.0.1", target.port());
    let mut two = socks5(at, "localhost", target.port());
    round_trip(&mut one, 1000);
    round_trip(&mut two, 300_000);
    let all = conns(&dir, &[]);
    assert_eq!(all.len(), 2, "{all:?}");
    let of = |name: &str| {
        let target = format!("{name}:{}", target.port());
        all.iter().find(|of| of["target"] == target.as_str()).unwrap_or_else(|| panic!("{all:?}"))
    };
    let (first, second) = (of("127.0.0.1"), of("localhost"));
    assert_eq!((first["up_bytes"].as_u64(), first["down_bytes"].as_u64()), (Some(1000), Some(1000)));
    assert_eq!(second["down_bytes"], 300_000);
    assert_eq!((&first["network"], &first["inbound"]), (&"tcp".into(), &"local".into()));
    assert_eq!(first["source"], one.local_addr().unwrap().to_string());
    assert_eq!(first["outbound"], "direct");
    assert_ne!(first["id"], second["id"]);

    let id = first["id"].to_string();
    assert_eq!(ok(&dir, &["kick", &id]), "1 connection ended\n");
    let ended = one.read(&mut [0; 1]);
    assert!(ended.is_err() || ended.is_ok_and(|len| len == 0), "it is over");
    round_trip(&mut two, 10);
    wait_for("it stays in the list", || conns(&dir, &[]).len() == 1);
    let (status, _, err) = dir.run(&["kick", &id]);
    assert!(status == 1 && err.contains("no open connection of number"), "{err}");
    let (status, _, err) = dir.run(&["kick", "nobody"]);
    assert!(status == 1 && err.contains("no open connection of user nobody"), "{err}");
    drop(two);
    running.signal("TERM");
    assert!(running.end().0.success());
    assert!(!socket.exists());
    let (status, _, err) = dir.run(&["status", "--socket", socket.to_str().unwrap()]);
    assert!(status == 1 && err.contains("no answer on"), "{err}");
}

#[test]
fn connections_of_a_user_over_streams_and_datagrams_are_listed_and_ended() {
    let dir = Dir::new();
    let key = |byte: &str| byte.repeat(22) + "==";
    let users = format!(
        "users = [{{ name = \"ann\", password = \"{}\" }}, {{ name = \"bob\", password = \"{}\" }}]",
        key("A"),
        "QkJCQkJCQkJCQkJCQkJCQg=="
    );
    let method = "method = \"2022-blake3-aes-128-gcm\"";
    let server_key = "Q0NDQ0NDQ0NDQ0NDQ0NDQw==";
    let port = {
        let probe = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        probe.local_addr().unwrap().port()
    };
    let outbound = |name: &str, user: &str| {
        format!(
            "[[outbound]]\nname = \"{name}\"\nprotocol = \"shadowsocks\"\nserver = \"127.0.0.1:{port}\"\n{method}\n\
             password = \"{server_key}:{user}\"\nnetwork = \"tcp-and-udp\"\n"
        )
    };
    let text = format!(
        "[[inbound]]\nname = \"server\"\nprotocol = \"shadowsocks\"\nlisten = \"127.0.0.1:{port}\"\n{method}\n\
         password = \"{server_key}\"\nnetwork = \"tcp-and-udp\"\nallow-private = true\noutbound = \"direct\"\n{users}\n\
         [[inbound]]\nname = \"local-ann\"\nprotocol = \"mixed\"\nlisten = \"127.0.0.1:0\"\noutbound = \"as-ann\"\n\
         [[inbound]]\nname = \"local-bob\"\nprotocol = \"mixed\"\nlisten = \"127.0.0.1:0\"\noutbound = \"as-bob\"\n\
         [[outbound]]\nname = \"direct\"\nprotocol = \"direct\"\n{}{}",
        outbound("as-ann", &key("A")),
        outbound("as-bob", "QkJCQkJCQkJCQkJCQkJCQg==")
    );
    dir.file("adit.toml", &text);
    let running = Running::start(dir.adit(&["run", "-c", "adit.toml"]));
    let local = |name: &str| -> SocketAddr {
        let line = running.line(&format!("inbound={name}"));
        line.split("address=").nth(1).unwrap().trim().parse().unwrap()
    };
    let target = echo();
    let mut ann = socks5(local("local-ann"), "127.0.0.1", target.port());
    let mut bob = socks5(local("local-bob"), "127.0.0.1", target.port());
    round_trip(&mut ann, 5000);
    round_trip(&mut bob, 70);
    let (mut control, datagrams) = datagrams(local("local-ann"));
    let answerer = UdpSocket::bind("127.0.0.1:0").unwrap();
    let to = answerer.local_addr().unwrap();
    let mut packet = vec![0, 0, 0, 1, 127, 0, 0, 1];
    packet.extend(to.port().to_be_bytes());
    packet.extend([7; 100]);
    datagrams.send(&packet).unwrap();
    answerer.set_read_timeout(Some(PATIENCE)).unwrap();
    let (len, from) = answerer.recv_from(&mut [0; 200]).unwrap();
    assert_eq!(len, 100);
    answerer.send_to(&[8; 40], from).unwrap();
    datagrams.set_read_timeout(Some(PATIENCE)).unwrap();
    assert_eq!(datagrams.recv(&mut [0; 200]).unwrap(), 50);

    let mut of_ann = Vec::new();
    wait_for("a stream and a flow of ann", || {
        of_ann = conns(&dir, &["--user", "ann"]);
        of_ann.len() == 2
    });
    let find = |network: &str| of_ann.iter().find(|of| of["network"] == network).unwrap();
    let (stream, flow) = (find("tcp"), find("udp"));
    assert_eq!((&stream["inbound"], &stream["up_bytes"]), (&"server".into(), &5000.into()));
    assert_eq!((flow["up_bytes"].as_u64(), flow["down_bytes"].as_u64()), (Some(100), Some(40)), "{flow}");
    assert_eq!((&flow["target"], &flow["outbound"]), (&to.to_string().into(), &"direct".into()));

    assert_eq!(ok(&dir, &["kick", "ann"]), "2 connections ended\n");
    let ended = ann.read(&mut [0; 1]);
    assert!(ended.is_err() || ended.is_ok_and(|len| len == 0));
    round_trip(&mut bob, 70);
    wait_for("ann is gone", || conns(&dir, &["--user", "ann"]).is_empty());
    assert_eq!(conns(&dir, &["--user", "bob"]).len(), 1);
    // She may come again.
    round_trip(&mut socks5(local("local-ann"), "127.0.0.1", target.port()), 10);
    let text = ok(&dir, &["status", "--users"]);
    assert!(text.contains("\nann ") && text.contains("\nbob "), "{text}");
    control.write_all(b"x").ok();
}

/// A SOCKS5 UDP association: its control connection, and a socket that is connected to the relay.
fn datagrams(proxy: SocketAddr) -> (TcpStream, UdpSocket) {
    let mut control = TcpStream::connect(proxy).unwrap();
    control.write_all(&[5, 1, 0]).unwrap();
    control.read_exact(&mut [0; 2]).unwrap();
    control.write_all(&[5, 3, 0, 1, 0, 0, 0, 0, 0, 0]).unwrap();
    let mut reply = [0; 10];
    control.read_exact(&mut reply).unwrap();
    assert_eq!(reply[..4], [5, 0, 0, 1]);
    let relay = SocketAddr::from(([127, 0, 0, 1], u16::from_be_bytes([reply[8], reply[9]])));
    let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
    socket.connect(relay).unwrap();
    (control, socket)
}

#[test]
fn several_processes_are_listed_and_a_drop_in_name_shows_its_state_alone() {
    let dir = Dir::new();
    let (running, _) = start(&dir, "");
    let server = link(&dir, "ss-server");
    let args = ["-s", "127.0.0.1", "-p", "0", "-k", "a long pass phrase", "-m", "aes-256-gcm"];
    let other = Running::start(dir.command(&server, &args));
    other.line("listening");
    std::fs::remove_file(dir.path().join("adit.toml")).unwrap();
    let text = ok(&dir, &["status"]);
    let lines: Vec<&str> = text.lines().collect();
    assert!(lines[0].starts_with("program"), "{text}");
    assert!(lines.iter().any(|line| line.starts_with("adit ") && line.contains("ready")), "{text}");
    assert!(lines.iter().any(|line| line.starts_with("ss-server ")), "{text}");
    // Other processes of this machine may be listed as well.
    let listed = ok(&dir, &["status", "--json"]);
    let listed =
        listed.lines().map(|line| serde_json::from_str::<Value>(line).unwrap()["pid"].as_u64().unwrap());
    let ours = [running.pid(), other.pid()].map(u64::from);
    assert_eq!(listed.filter(|pid| ours.contains(pid)).count(), 2);
    let (status, _, err) = dir.run(&["conns"]);
    assert!(status == 1 && err.contains("several processes run") && err.contains("--pid"), "{err}");
    let pid = other.pid().to_string();
    assert_eq!(ok(&dir, &["conns", "--pid", &pid]), "no open connections\n");
    let text = ok(&dir, &["status", "--pid", &pid]);
    assert!(text.contains(&format!("process {pid}")), "{text}");
    let socket = dir.path().join(format!("adit/ss-server-{pid}.sock"));
    for args in [&["kick", "1", "--socket"][..], &["reload", "--socket"]] {
        let (status, _, err) = dir.run(&[args, &[socket.to_str().unwrap()]].concat());
        assert!(status == 1 && err.contains("shows the state alone"), "{err}");
    }
    // A socket whose process was killed is taken away by the next process there.
    let pid = running.pid();
    drop(running);
    let left = dir.path().join(format!("adit/adit-{pid}.sock"));
    assert!(left.exists());
    let (_again, _) = start(&dir, "");
    assert!(!left.exists());
    let off = Dir::new();
    let (_running, _) = start(&off, "[admin]\nsocket = \"off\"");
    std::fs::remove_file(off.path().join("adit.toml")).unwrap();
    assert!(!off.path().join("adit").exists());
}

fn get(at: SocketAddr, path: &str, more: &str) -> (u16, String) {
    let mut stream = TcpStream::connect(at).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    let host = if more.contains("Host:") { String::new() } else { format!("Host: {at}\r\n") };
    stream
        .write_all(format!("GET {path} HTTP/1.1\r\n{host}Connection: close\r\n{more}\r\n").as_bytes())
        .unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    let (head, body) = answer.split_once("\r\n\r\n").unwrap_or_else(|| panic!("{answer}"));
    (head[9..12].parse().unwrap(), body.to_owned())
}

/// The count of the series that begins with this text.
fn value(metrics: &str, series: &str) -> u64 {
    let line = metrics.lines().find(|line| line.starts_with(series));
    let line = line.unwrap_or_else(|| panic!("{series}: {metrics}"));
    line.rsplit_once(' ').unwrap().1.parse().unwrap()
}

#[test]
fn metrics_health_and_readiness_over_http() {
    let dir = Dir::new();
    let http = unused_localhost();
    let (running, at) = start(&dir, &format!("[limits]\ndrain = \"20s\"\n[admin]\nhttp = \"{http}\""));
    let target = echo();
    let mut stream = socks5(at, "127.0.0.1", target.port());
    round_trip(&mut stream, 12_345);
    assert_eq!(get(http, "/live", ""), (200, "ok\n".into()));
    assert_eq!(get(http, "/ready", ""), (200, "ok\n".into()));
    let (status, metrics) = get(http, "/metrics", "");
    assert_eq!(status, 200);
    let bytes = "adit_bytes_total{inbound=\"local\",proto=\"tcp\",dir=";
    assert_eq!(value(&metrics, &format!("{bytes}\"up\"}}")), 12_345);
    assert_eq!(value(&metrics, &format!("{bytes}\"down\"}}")), 12_345);
    assert_eq!(value(&metrics, "adit_connections_open{inbound=\"local\"}"), 1);
    assert_eq!(value(&metrics, "adit_dials_total{outbound=\"direct\",result=\"ok\"}"), 1);
    assert!(value(&metrics, "adit_event_loop_lag_seconds_count{core=\"0\"}") >= 1);
    let open =
        get(http, "/metrics", "Accept: application/openmetrics-text;version=1.0.0,text/plain;q=0.5\r\n").1;
    assert!(open.ends_with("\n# EOF\n") && !metrics.contains("# EOF"), "{open}");
    assert_eq!(get(http, "/metrics", "Host: evil.example\r\n").0, 403);
    assert_eq!(get(http, "/else", "").0, 404);
    running.signal("TERM");
    wait_for("it is not ready while it drains", || {
        get(http, "/ready", "") == (503, "draining: no new connections are accepted\n".into())
    });
    assert_eq!(get(http, "/live", "").0, 200);
    let text = ok(&dir, &["status"]);
    assert!(text.contains("not ready\ndraining"), "{text}");
    drop(stream);
    assert!(running.end().0.success());
}

#[test]
fn metrics_want_the_token_and_show_users_where_that_is_asked_for() {
    let dir = Dir::new();
    let http = unused_localhost();
    let token = "0123456789-a-token";
    let (running, at) =
        start(&dir, &format!("[admin]\nhttp = \"{http}\"\ntoken = \"{token}\"\nper-user = true\n"));
    drop(socks5(at, "127.0.0.1", echo().port()));
    assert_eq!(get(http, "/metrics", "").0, 401);
    assert_eq!(get(http, "/metrics", "Authorization: Bearer 0123456789-a-tokeN\r\n").0, 401);
    let (status, text) = get(http, "/metrics", &format!("Authorization: Bearer {token}\r\n"));
    assert_eq!(status, 200);
    assert!(text.contains("# TYPE adit_user_bytes_total counter\n"), "{text}");
    assert_eq!(get(http, "/live", "").0, 200);
    assert!(!running.log().contains(token));
    let (status, _, err) = dir.run(&["run", "-c", "adit.toml"]);
    assert!(status == 1 && err.contains("another process listens there") && !err.contains(token), "{err}");
}

#[test]
fn a_service_manager_hears_when_it_serves_reloads_works_and_ends() {
    let dir = Dir::new();
    let manager = UnixDatagram::bind(dir.path().join("notify")).unwrap();
    manager.set_read_timeout(Some(PATIENCE)).unwrap();
    let next = || {
        let mut buffer = [0; 512];
        let len = manager.recv(&mut buffer).unwrap();
        String::from_utf8_lossy(&buffer[..len]).into_owned()
    };
    // Lines of the watchdog come in between.
    let next_but_alive = || loop {
        let text = next();
        if text != "WATCHDOG=1" {
            return text;
        }
    };
    dir.file("adit.toml", LOCAL);
    let mut command = dir.adit(&["run", "-c", "adit.toml"]);
    command.env("NOTIFY_SOCKET", dir.path().join("notify")).env("WATCHDOG_USEC", "200000");
    command.env_remove("WATCHDOG_PID");
    let running = Running::start(command);
    assert_eq!(next_but_alive(), "READY=1\nSTATUS=listening on 1 address");
    assert_eq!(next(), "WATCHDOG=1");
    running.signal("HUP");
    assert!(next_but_alive().starts_with("RELOADING=1\nMONOTONIC_USEC="));
    assert_eq!(next_but_alive(), "READY=1\nSTATUS=listening on 1 address");
    dir.file("adit.toml", "[[inbound]]\n");
    running.signal("HUP");
    assert!(next_but_alive().starts_with("RELOADING=1\n"));
    let text = next_but_alive();
    assert!(text.starts_with("READY=1\nSTATUS=the last reload was refused: adit.toml:1:"), "{text}");
    running.signal("TERM");
    assert_eq!(next_but_alive(), "STOPPING=1");
    assert!(running.end().0.success());
}

#[test]
fn log_lines_go_to_a_file_that_is_moved_on_when_it_is_full() {
    let dir = Dir::new();
    let log = dir.path().join("adit.log");
    let head = format!("[log]\nfile = {log:?}\nlevel = \"debug\"\nmax-size = \"64KiB\"\nkeep = 1\n");
    dir.file("adit.toml", &format!("{head}{LOCAL}"));
    let running = Running::start(dir.adit(&["run", "-c", "adit.toml"]));
    let read = |path: &std::path::Path| std::fs::read_to_string(path).unwrap_or_default();
    wait_for("the line of the start", || read(&log).contains("listening"));
    let text = read(&log);
    let line = text.lines().find(|line| line.contains("listening")).unwrap();
    let at: SocketAddr = line.rsplit_once("address=").unwrap().1.parse().unwrap();
    let target = echo();
    let full = dir.path().join("adit.log.1");
    wait_for("a second file", || {
        round_trip(&mut socks5(at, "127.0.0.1", target.port()), 1);
        full.exists()
    });
    running.signal("TERM");
    let (status, written) = running.end();
    assert!(status.success());
    assert_eq!(written, "", "nothing goes to standard error");
    assert!(read(&full).len() <= 64 << 10 && read(&full).contains("listening"));
    assert!(read(&log).contains("stopped"));
    dir.file("adit.toml", &format!("[log]\nfile = \"/dev/null/x\"\n{LOCAL}"));
    let running = Running::start(dir.adit(&["run", "-c", "adit.toml"]));
    running.line("cannot write the log file");
}
