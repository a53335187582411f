use crate::support::{Dir, PSK, Running, echo, finish, link, round_trip, socks5};

#[test]
fn opensnell_files_move_bytes_under_the_old_names() {
    let dir = Dir::new();
    let server = format!(
        "; the file as the package ships it\n[snell-server]\nlisten = 127.0.0.1:0\npsk = {PSK}\nobfs = http\n\
         brutal = true\nbrutal-mbps = 900\nipv6 = true\ndns = 127.0.0.1\ncolour = red\n"
    );
    let path = dir.file("snell-server.conf", &server);
    let server =
        Running::start(dir.command(link(&dir, "snell-server"), &["-c", path.to_str().unwrap(), "-v"]));
    let client = format!(
        "[snell-client]\nlisten = 127.0.0.1:0\nserver = {}\npsk = {PSK}\nobfs = http\nobfs-host = bing.com\nreuse = true\n",
        server.address()
    );
    dir.file("client.conf", &client);
    let client = Running::start(dir.command(link(&dir, "snell-client"), &["-c=client.conf"]));
    let target = echo();
    for _ in 0..3 {
        let mut stream = socks5(client.address(), "127.0.0.1", target.port());
        round_trip(&mut stream, 2_000_000);
    }
    let at = |line: usize| format!("at={}:{line}:1", path.display());
    let line = server.line("unknown key");
    assert!(line.starts_with("time=") && line.contains(" level=WARN msg=\"unknown key, "), "{line}");
    assert!(line.contains(&at(10)) && line.contains(" key=colour"), "{line}");
    if !has_brutal() {
        server.line("brutal is not to be had");
        assert_eq!(server.log().matches("brutal is not to be had").count(), 1);
    }
    assert!(server.line("effective DNS").contains("servers=127.0.0.1:53"));
    assert_eq!(server.log().matches("unknown key").count(), 1);
    let line = server.line("msg=listening");
    assert!(line.contains(" level=INFO ") && line.contains("inbound=snell-server"), "{line}");
    for running in [client, server] {
        running.signal("TERM");
        let (status, log) = running.end();
        assert_eq!(status.code(), Some(0), "{log}");
    }
}

#[test]
fn an_official_file_runs() {
    let dir = Dir::new();
    let listen = if adit_testkit::has_ipv6() { "127.0.0.1:0,[::1]:0" } else { "127.0.0.1:0" };
    let text = format!(
        "[snell-server]\nlisten = {listen}\npsk = {PSK}\nipv6 = false\ndns-ip-preference = ipv4-only\n"
    );
    dir.file("s.conf", &text);
    let server = Running::start(dir.adit(&["snell-server", "-c", "s.conf", "-l", "notify"]));
    server.address();
    assert!(!server.log().contains("level=WARN msg=\"unknown"), "{}", server.log());
    server.signal("INT");
    assert_eq!(server.end().0.code(), Some(0));
}

/// Whether the kernel has the congestion control of the module tcp-brutal.
fn has_brutal() -> bool {
    let names = std::fs::read_to_string("/proc/sys/net/ipv4/tcp_available_congestion_control");
    names.is_ok_and(|names| names.split_whitespace().any(|name| name == "brutal"))
}

#[test]
fn a_container_needs_no_file() {
    if std::path::Path::new("/etc/snell-server/snell-server.conf").exists() {
        return;
    }
    let dir = Dir::new();
    let mut server = dir.adit(&["snell-server"]);
    server.env("SNELL_LISTEN", "127.0.0.1:0").env("SNELL_PSK", PSK).env("SNELL_OBFS", "http");
    let server = Running::start(server);
    let text = format!(
        "[snell-client]\nlisten = 127.0.0.1:0\nserver = {}\npsk = {PSK}\nobfs = http\n",
        server.address()
    );
    dir.file("client.conf", &text);
    let client = Running::start(dir.adit(&["snell-client", "-c", "client.conf"]));
    round_trip(&mut socks5(client.address(), "127.0.0.1", echo().port()), 100_000);
    for running in [client, server] {
        running.signal("TERM");
        assert_eq!(running.end().0.code(), Some(0));
    }
    let mut bad = dir.adit(&["snell-server"]);
    bad.env("SNELL_OBFS", "on");
    let (status, out, err) = finish(bad, "");
    assert!(status == 1 && err.contains("unknown value: on"), "{err}");
    assert!(err.contains("key=SNELL_OBFS"), "{err}");
    let key = out.strip_prefix("SNELL_PSK is not set, a new key for this run: ").unwrap().trim_end();
    assert!(key.len() == 32 && !err.contains(key), "{out}");
}

#[test]
fn exit_statuses() {
    let dir = Dir::new();
    let run = |args: &[&str]| dir.run(&[&["snell-server"], args].concat());
    let (status, out, _) = run(&["-h"]);
    assert!(status == 0 && out.starts_with("usage: snell-server "), "{out}");
    let (status, _, err) = run(&["-x"]);
    assert!(status == 2 && err.contains("snell-server -x: no such flag"), "{err}");
    let (status, _, err) = run(&["-c", "none.conf"]);
    assert!(status == 1 && err.contains("level=ERROR msg=\"cannot read: "), "{err}");
    dir.file("v6.conf", "[snell-server]\npsk = twelve bytes\nmode = default\nversion = 4\n");
    let (status, _, err) = run(&["-c", "v6.conf"]);
    assert!(status == 1 && err.contains("only version 6 has modes"), "{err}");
    assert!(err.contains("at=v6.conf:3:1"), "{err}");
    dir.file("s.conf", "[snell-server]\npsk = k\nlisten = 192.0.2.1:1\n");
    let (status, _, err) = finish(dir.command(link(&dir, "snell-server"), &["-c", "s.conf"]), "");
    assert!(status == 1 && err.contains("cannot listen on 192.0.2.1:1"), "{err}");
}
