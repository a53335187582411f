use std::time::Instant;

use crate::support::{Dir, PATIENCE, Running, echo, finish, link, round_trip, round_trip_over};

#[test]
fn a_tunnel_runs_under_the_old_names() {
    let dir = Dir::new();
    let target = echo();
    let server = Running::start(dir.command(
        link(&dir, "kcptun-server"),
        &["-l", "127.0.0.1:0", "-t", &target.to_string(), "-key", "k", "-crypt", "xtea", "-mode", "fast3"],
    ));
    // The file wins over the flag.
    dir.file("c.json", &format!(r#"{{"RemoteAddr": "{}", "crypt": "xtea", "conn": 2}}"#, server.address()));
    let client = Running::start(dir.command(
        link(&dir, "client_linux_amd64"),
        &[
            "-l",
            "127.0.0.1:0",
            "--key=k",
            "-crypt",
            "aes",
            "-c",
            "c.json",
            "-snmplog",
            "s.csv",
            "-snmpperiod",
            "1",
        ],
    ));
    for _ in 0..3 {
        let mut stream = std::net::TcpStream::connect(client.address()).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        round_trip(&mut stream, 200_000);
    }
    client.signal("USR1");
    // The number of sessions depends on the event loops that the kernel gave the connections.
    assert!(client.line("KCP SNMP:&{BytesSent:").contains(" CurrEstab:"), "{}", client.log());
    let until = Instant::now() + PATIENCE;
    let rows = loop {
        let text = std::fs::read_to_string(dir.path().join("s.csv")).unwrap_or_default();
        if text.lines().count() > 1 {
            break text;
        }
        assert!(Instant::now() < until, "no row of counters");
        std::thread::sleep(std::time::Duration::from_millis(20));
    };
    assert!(rows.starts_with("Unix,BytesSent,BytesReceived,"), "{rows}");
    for running in [client, server] {
        running.signal("TERM");
        let (status, log) = running.end();
        assert_eq!(status.code(), Some(0), "{log}");
    }
}

#[test]
fn a_client_listens_on_a_unix_socket() {
    let dir = Dir::new();
    let target = echo();
    let args = ["-l", "127.0.0.1:0", "-t", &target.to_string(), "-crypt", "xor"];
    let server = Running::start(dir.command(link(&dir, "kcptun-server"), &args));
    let name = link(&dir, "kcptun-client");
    let start = || {
        let server = server.address().to_string();
        let args = ["-l", "./local", "-r", &server, "-crypt", "xor", "-conn", "2"];
        let client = Running::start(dir.command(&name, &args));
        assert!(client.line(" listening").contains("./local"), "{}", client.log());
        client
    };
    let path = dir.path().join("local");
    let killed = start();
    drop(killed);
    // Its file is still there, and in nobody's way.
    assert!(path.exists());
    let client = start();
    for _ in 0..3 {
        let mut stream = std::os::unix::net::UnixStream::connect(&path).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        let writer = stream.try_clone().unwrap();
        round_trip_over(&mut stream, writer, 100_000);
    }
    let (status, _, err) = dir.run(&["kcptun-client", "-l", "./local"]);
    assert!(status == 255 && err.contains("cannot listen on ./local"), "{err}");
    client.signal("TERM");
    let (status, log) = client.end();
    assert_eq!(status.code(), Some(0), "{log}");
    assert!(!path.exists());
}

#[test]
fn exit_statuses() {
    let dir = Dir::new();
    let run = |args: &[&str]| dir.run(&[&["kcptun-client"], args].concat());
    let (status, out, _) = run(&["-h"]);
    assert!(status == 0 && out.starts_with("usage: kcptun-client "), "{out}");
    let (status, _, err) = run(&["-foo"]);
    assert!(status == 0 && err.contains("-foo: no such flag"), "{err}");
    let (status, _, err) = run(&["-c", "none.json"]);
    assert!(status == 255 && err.contains("cannot read"), "{err}");
    let (status, _, err) = finish(dir.command(link(&dir, "kcptun-server"), &["-l", "192.0.2.1:1"]), "");
    assert!(status == 255 && err.contains("cannot listen on 192.0.2.1:1"), "{err}");
    let (status, out, _) = run(&["-v"]);
    assert!(status == 0 && out.contains("adit"), "{out}");
}
