use std::io::{Read, Write};
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::thread;
use std::time::{Duration, Instant};

use crate::support::{Dir, PATIENCE, PSK, Running, echo, round_trip, socks5, socks5_on};

/// A server and a client that leads to it, each on a free port, with control sockets.
pub(crate) fn pair(dir: &Dir, head: &str, flags: &[&str]) -> (Running, Running) {
    let inbound = |protocol: &str| {
        format!("[[inbound]]\nname = \"in\"\nprotocol = \"{protocol}\"\nlisten = \"127.0.0.1:0\"\n")
    };
    let admin = |name: &str| format!("[admin]\nsocket = \"{name}.sock\"\n");
    let text =
        format!("{head}{}{}psk = \"{PSK}\"\n", admin("server"), inbound("snell") + "allow-private = true\n");
    dir.file("server.toml", &text);
    let run = |file| Running::start(dir.adit(&[&["run", "-c", file], flags].concat()));
    let server = run("server.toml");
    let to = format!(
        "[[outbound]]\nprotocol = \"snell\"\nserver = \"{}\"\npsk = \"{PSK}\"\nreuse = true\n",
        server.address()
    );
    dir.file("client.toml", &format!("{head}{}{}{to}", admin("client"), inbound("mixed")));
    let client = run("client.toml");
    client.address();
    (server, client)
}

#[test]
fn a_refused_private_target_is_one_warning_that_names_the_key() {
    let dir = Dir::new();
    let port = "listen = \"127.0.0.1:0\"\n";
    dir.file(
        "server.toml",
        &format!("cores = 1\n[[inbound]]\nprotocol = \"snell\"\n{port}psk = \"{PSK}\"\n"),
    );
    let server = Running::start(dir.adit(&["run", "-c", "server.toml"]));
    let to =
        format!("[[outbound]]\nprotocol = \"snell\"\nserver = \"{}\"\npsk = \"{PSK}\"\n", server.address());
    dir.file("client.toml", &format!("[[inbound]]\nprotocol = \"mixed\"\n{port}{to}"));
    let client = Running::start(dir.adit(&["run", "-c", "client.toml"]));
    let target = echo();
    for _ in 0..3 {
        let mut stream = socks5(client.address(), "localhost", target.port());
        stream.write_all(b"hello").ok();
        assert!(!matches!(stream.read(&mut [0; 5]), Ok(1..)), "the target was reached");
    }
    let line = server.line("private target");
    assert!(line.contains("WARN") && line.contains("(loopback address)"), "{line}");
    assert!(line.contains("allow-private = true"), "{line}");
    let log = server.log();
    assert_eq!(log.matches("private target").count(), 1, "{log}");
    assert!(!log.contains("clients may reach") && !log.contains("localhost"), "{log}");
}

#[test]
fn bytes_status_and_an_orderly_end() {
    let dir = Dir::new();
    let (server, client) = pair(&dir, "", &[]);
    let line = server.line("listening");
    assert!(
        line.contains("inbound=in protocol=\"Snell v4, v5\" network=tcp")
            && line.contains(" address=127.0.0.1:"),
        "{line}"
    );
    let target = echo();
    let mut stream = socks5(client.address(), "127.0.0.1", target.port());
    round_trip(&mut stream, 3_000_000);

    let (status, out, err) = dir.run(&["status", "--socket", "server.sock"]);
    assert_eq!((status, &*err), (0, ""));
    for word in ["inbound", "snell", "3.0 MB", "dialled"] {
        assert!(out.contains(word), "{word}: {out}");
    }
    // The socket is found through the configuration too.
    let (status, out, _) = dir.run(&["status", "--json", "-c", "client.toml"]);
    let json: serde_json::Value = serde_json::from_str(&out).unwrap();
    assert_eq!((status, &json["inbounds"][0]["down_bytes"]), (0, &3_000_000.into()));

    // Draining: an open connection goes on, a new one is refused, and the end of the last is the end of all.
    client.signal("TERM");
    client.line("stopping");
    round_trip(&mut stream, 100_000);
    stream.shutdown(std::net::Shutdown::Write).unwrap();
    assert_eq!(stream.read_to_end(&mut Vec::new()).unwrap(), 0);
    drop(stream);
    let (status, log) = client.end();
    assert_eq!(status.code(), Some(0), "{log}");
    assert!(!dir.path().join("client.sock").exists());
    server.signal("INT");
    let (status, log) = server.end();
    assert_eq!(status.code(), Some(0), "{log}");
    assert!(log.contains("stopped"), "{log}");
}

/// Connections that the system has taken when the end begins are in no program's hands yet: closing the port would reset them.
#[test]
fn a_drain_serves_the_connections_that_wait() {
    let dir = Dir::new();
    dir.file("adit.toml", "[[inbound]]\nprotocol = \"socks\"\nlisten = \"127.0.0.1:0\"\n");
    let server = Running::start(dir.adit(&["run", "-c", "adit.toml"]));
    let (at, target) = (server.address(), echo());
    server.signal("STOP");
    let waiting: Vec<TcpStream> = (0..40)
        .map(|_| {
            let mut stream = TcpStream::connect(at).unwrap();
            stream.write_all(&[5, 1, 0]).unwrap();
            stream
        })
        .collect();
    server.signal("TERM");
    server.signal("CONT");
    for stream in waiting {
        let mut stream = socks5_on(stream, "127.0.0.1", target.port());
        round_trip(&mut stream, 1000);
    }
    let (status, log) = server.end();
    assert_eq!(status.code(), Some(0), "{log}");
}

#[test]
fn a_second_signal_ends_at_once() {
    let dir = Dir::new();
    let (_server, mut client) = pair(&dir, "[limits]\ndrain = \"1h\"\n", &[]);
    let target = echo();
    let mut stream = socks5(client.address(), "127.0.0.1", target.port());
    round_trip(&mut stream, 10);
    client.signal("TERM");
    client.line("stopping");
    // Another signal at once would count as the same one.
    thread::sleep(Duration::from_millis(300));
    assert!(client.is_running());
    round_trip(&mut stream, 10);
    let begin = Instant::now();
    client.signal("TERM");
    let (status, log) = client.end();
    assert_eq!(status.code(), Some(0), "{log}");
    assert!(begin.elapsed() < Duration::from_secs(60), "{:?}", begin.elapsed());
    // The connection went with it, in one way or the other.
    stream.write_all(b"x").ok();
    assert_eq!(stream.read(&mut [0; 10]).unwrap_or(0), 0);
}

#[test]
fn the_same_signal_twice_in_a_row_is_one() {
    let dir = Dir::new();
    let (_server, mut client) = pair(&dir, "[limits]\ndrain = \"1h\"\n", &[]);
    let target = echo();
    let mut stream = socks5(client.address(), "127.0.0.1", target.port());
    round_trip(&mut stream, 10);
    // As `timeout` does: to its child, then to the whole group.
    let pid = client.pid();
    let both = format!("kill -TERM {pid}; kill -CONT {pid}; kill -INT {pid}");
    assert!(std::process::Command::new("sh").args(["-c", &both]).status().unwrap().success());
    client.line("stopping");
    // It would have ended by then.
    thread::sleep(Duration::from_millis(300));
    assert!(client.is_running());
    round_trip(&mut stream, 10);
}

#[test]
fn a_shortage_of_descriptors_is_one_warning_on_all_event_loops() {
    let dir = Dir::new();
    dir.file("adit.toml", "cores = 4\n[[inbound]]\nprotocol = \"mixed\"\nlisten = \"127.0.0.1:0\"\n");
    let limited = ["-c", "ulimit -n 80; exec \"$0\" run", env!("CARGO_BIN_EXE_adit")];
    let mut running = Running::start(dir.command("sh", &limited));
    let address = running.address();
    let began = Instant::now();
    // Each takes two descriptors; the stillest ones make room for those that come.
    let target = echo();
    let served: Vec<_> = (0..60).map(|_| socks5(address, "127.0.0.1", target.port())).collect();
    running.line("too few descriptors");
    // Each of these meets the shortage again, on any loop.
    let greeted = (0..40).filter(|_| {
        let mut stream = TcpStream::connect(address).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        stream.write_all(&[5, 1, 0]).is_ok() && stream.read_exact(&mut [0; 2]).is_ok()
    });
    assert!(greeted.count() > 0 && running.is_running());
    running.signal("KILL");
    let (_, log) = running.end();
    // One a minute: a machine that is busy enough takes several.
    let most = 1 + began.elapsed().as_secs() / 60;
    let lines = log.matches("too few descriptors").count();
    assert!((1..=most).contains(&lines.try_into().unwrap()), "{lines} of {most}: {log}");
    drop(served);
}

#[test]
fn a_control_socket_that_cannot_be_made_says_why() {
    let dir = Dir::new();
    dir.file("plain", "not a socket");
    for (path, hint) in [("plain", "it is not a socket"), ("nowhere/s.sock", "create its folder")] {
        let inbound = "[[inbound]]\nprotocol = \"mixed\"\nlisten = \"127.0.0.1:0\"\n";
        dir.file("adit.toml", &format!("[admin]\nsocket = \"{path}\"\n{inbound}"));
        let (status, _, err) = dir.run(&["run"]);
        assert!(status == 1 && err.contains(hint), "{status} {err}");
    }
    assert_eq!(std::fs::read_to_string(dir.path().join("plain")).unwrap(), "not a socket");
}

#[test]
fn interfaces_that_are_not_there_are_named() {
    let dir = Dir::new();
    let inbound = "[[inbound]]\nprotocol = \"mixed\"\nlisten = \"127.0.0.1:0\"\n";
    dir.file("in.toml", &format!("{inbound}interface = \"no-such-if0\"\n"));
    let (status, _, err) = dir.run(&["run", "-c", "in.toml"]);
    assert!(status == 1 && err.contains("hint: this machine has no interface of the name"), "{err}");
    let outbound = "[[outbound]]\nprotocol = \"direct\"\negress-interface = \"no-such-if0\"\n";
    dir.file("out.toml", &format!("{inbound}{outbound}"));
    let running = Running::start(dir.adit(&["run", "-c", "out.toml"]));
    let line = running.line("interface no-such-if0");
    assert!(line.contains("WARN") && line.contains("outbound direct"), "{line}");
}

#[test]
fn a_taken_port_is_named() {
    let dir = Dir::new();
    let taken = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let address = taken.local_addr().unwrap();
    dir.file("adit.toml", &format!("[[inbound]]\nprotocol = \"mixed\"\nlisten = \"{address}\"\n"));
    let (status, _, err) = dir.run(&["run"]);
    assert_eq!(status, 1);
    assert!(err.contains(&format!("error: inbound mixed: cannot listen on {address}")), "{err}");
}

#[test]
fn several_files_add_up_and_levels_follow_the_flags() {
    let dir = Dir::new();
    let file = |name: &str| {
        dir.file(
            &format!("{name}.toml"),
            &format!("[[inbound]]\nname = \"{name}\"\nprotocol = \"mixed\"\nlisten = \"127.0.0.1:0\"\n"),
        );
    };
    file("one");
    file("two");
    let args = ["run", "-c", "one.toml", "two.toml", "-v", "--log-format", "json"];
    let running = Running::start(dir.adit(&args));
    running.line("\"inbound\":\"one\"");
    running.line("\"inbound\":\"two\"");
    running.line("descriptor limit");
    running.signal("TERM");
    let (status, log) = running.end();
    assert_eq!(status.code(), Some(0));
    for line in log.lines() {
        let json: serde_json::Value = serde_json::from_str(line).unwrap_or_else(|_| panic!("{line}"));
        assert!(json["message"].is_string() && json["time"].is_string(), "{line}");
    }
    file("three");
    let text = std::fs::read_to_string(dir.path().join("one.toml")).unwrap();
    dir.file("same.toml", &text);
    let (status, _, err) = dir.run(&["run", "-c", "one.toml", "-c", "same.toml"]);
    assert_eq!(status, 1);
    assert!(err.contains("same.toml: inbound one: another file has an inbound of that name"), "{err}");
}
