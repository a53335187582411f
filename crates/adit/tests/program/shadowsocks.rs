use std::net::{SocketAddr, TcpStream};

use adit_testkit::unused_addr;

use crate::support::{Dir, PATIENCE, Running, echo, finish, link, round_trip, socks5};

/// The file that Debian ships, with every key of it.
const DEBIAN: &str = "{\n    \"server\":[\"::1\", \"127.0.0.1\"],\n    \"mode\":\"tcp_and_udp\",\n    \
    \"server_port\":8388,\n    \"local_port\":1080,\n    \"password\":\"60jsKDQuuneN\",\n    \"timeout\":86400,\n    \
    \"method\":\"chacha20-ietf-poly1305\"\n}\n";

const KEY: &str = "MDEyMzQ1Njc4OWFiY2RlZg==";

fn through(proxy: SocketAddr) {
    let target = echo();
    for _ in 0..2 {
        round_trip(&mut socks5(proxy, "127.0.0.1", target.port()), 1_000_000);
    }
}

fn stop(running: Running) -> String {
    running.signal("TERM");
    let (status, log) = running.end();
    assert_eq!(status.code(), Some(0), "{log}");
    log
}

#[test]
fn debians_file_moves_bytes_under_the_names_of_libev() {
    if !adit_testkit::has_ipv6() {
        return;
    }
    let dir = Dir::new();
    dir.file("config.json", DEBIAN);
    // The clients' checks are to reach nobody outside this machine.
    let dns = unused_addr().ip().to_string();
    let line = ["-c", "config.json", "-p", "0", "-u", "-v", "-d", &dns];
    let server = Running::start(dir.command(link(&dir, "ss-server"), &line));
    // The first of both addresses, which is the one that the client uses.
    let port = server.address().port().to_string();
    assert!(server.line("listening").contains("[::1]:"));
    assert!(server.line("clients may reach private addresses").contains("as the replaced programs do"));
    let local = Running::start(
        dir.command(link(&dir, "ss-local"), &["-c", "config.json", &format!("-p{port}"), "-l0"]),
    );
    through(local.address());
    let target = echo();
    let target = target.to_string();
    let line = ["ss-tunnel", "-c", "config.json", "-p", &port, "-l", "0", "-L", &target];
    let tunnel = Running::start(dir.adit(&line));
    let mut stream = TcpStream::connect(tunnel.address()).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    round_trip(&mut stream, 100_000);
    drop(stream);
    for running in [tunnel, local] {
        let log = stop(running);
        assert!(!log.contains("WARN") && !log.contains("datagrams"), "{log}");
        assert!(!log.contains("60jsKDQuuneN"), "{log}");
    }
    let log = stop(server);
    assert!(!log.contains("datagrams"), "{log}");
}

#[test]
fn debians_file_with_obfs() {
    let dir = Dir::new();
    let file = |plugin: &str, options: &str| {
        format!(
            "{{\"server\":\"127.0.0.1\",\"server_port\":8388,\"local_port\":1080,\"password\":\"barfoo!\",\
             \"timeout\":60,\"method\":\"aes-256-gcm\",\"mode\":\"tcp_only\",\"fast_open\":false,\"workers\":1,\
             \"plugin\":\"{plugin}\",\"plugin_opts\":\"{options}\",\n\"colour\":\"red\"}}"
        )
    };
    dir.file("server.json", &file("obfs-server", "obfs=http"));
    dir.file("local.json", &file("obfs-local", "obfs=http;obfs-host=www.bing.com"));
    let server = Running::start(dir.adit(&["ss-server", "-c", "server.json", "-p", "0"]));
    let port = server.address().port().to_string();
    let local = Running::start(dir.adit(&["ss-local", "-c", "local.json", "-p", &port, "-l", "0"]));
    through(local.address());
    let line = server.line("colour");
    assert!(line.contains("WARN") && line.contains("server.json:2:1"), "{line}");
    stop(local);
    stop(server);
}

#[test]
fn flags_and_json5_move_bytes_under_the_names_of_rust() {
    let dir = Dir::new();
    let (to, at) = (unused_addr(), unused_addr());
    let (ip, port) = (to.ip(), to.port());
    let server = format!(
        "// JSON5\n{{\n  servers: [{{\n    server: '{ip}', server_port: {port}, mode: 'tcp_and_udp',\n    \
         method: '2022-blake3-aes-128-gcm', password: '${{KEY}}',\n  }},],\n  colour: 'red',\n}}\n"
    );
    let path = dir.file("server.json5", &server);
    let mut command = dir.command(link(&dir, "ssserver"), &["--config", path.to_str().unwrap()]);
    command.env("KEY", KEY);
    let server = Running::start(command);
    assert_eq!(server.address(), to);
    let line = server.line("colour");
    assert!(line.contains("WARN") && line.contains("server.json5:7:3"), "{line}");
    let (to, at) = (to.to_string(), at.to_string());
    let line = ["-b", &at, "-s", &to, "-m", "2022-blake3-aes-128-gcm", "-k", KEY];
    let local = Running::start(dir.command(link(&dir, "sslocal"), &line));
    through(local.address());
    let log = stop(local);
    assert!(!log.contains(KEY), "{log}");
    let url = format!("ss://2022-blake3-aes-128-gcm:MDEyMzQ1Njc4OWFiY2RlZg%3D%3D@{to}");
    let line = ["local", "--server-url", &url, "-b", &at];
    let local = Running::start(dir.command(link(&dir, "ssservice"), &line));
    through(local.address());
    stop(local);
    let log = stop(server);
    assert!(!log.contains("datagrams"), "{log}");
}

#[test]
fn statuses_of_libev() {
    let dir = Dir::new();
    let run = |name: &str, line: &str| {
        let args: Vec<&str> = std::iter::once(name).chain(line.split_whitespace()).collect();
        let mut command = dir.adit(&args);
        command.env("XDG_CONFIG_HOME", dir.path());
        finish(command, "")
    };
    dir.file("bad.json", "{\"server_port\": 1,}}");
    let server = "-s 127.0.0.1 -p 0 -k hunter2";
    for (name, line, status, says) in [
        ("ss-server", "-h".to_owned(), 0, "usage: ss-server "),
        ("ss-server", "-x".to_owned(), 1, "ss-server -x: no such flag"),
        ("ss-local", "-s 192.0.2.1 -p 1 -k hunter2".to_owned(), 1, "local_port"),
        ("ss-server", "-c none.json".to_owned(), 255, "cannot read: "),
        ("ss-server", "-c bad.json".to_owned(), 255, "bad.json:1:"),
        ("ss-server", "-s 192.0.2.1 -p 1 -k hunter2".to_owned(), 255, "cannot listen on 192.0.2.1:1"),
        ("ss-server", format!("{server} --acl f"), 255, "cannot read: "),
        ("ss-manager", "--manager-address none/m".to_owned(), 255, "cannot listen on none/m"),
        ("ss-server", format!("{server} -a no-such-user"), 255, "key=user"),
        ("ss-server", format!("{server} -f none/pid"), 255, "cannot write pid file none/pid"),
    ] {
        let (found, out, err) = run(name, &line);
        assert_eq!(found, status, "{name} {line}\n{out}{err}");
        assert!(format!("{out}{err}").contains(says), "{name} {line}\n{out}{err}");
        assert!(!err.contains("hunter2"), "{err}");
    }
}

#[test]
fn statuses_of_rust() {
    let dir = Dir::new();
    let run = |line: &str| {
        let args: Vec<&str> = line.split_whitespace().collect();
        let mut command = dir.adit(&args);
        command.env("XDG_CONFIG_HOME", dir.path()).env("XDG_CONFIG_DIRS", dir.path());
        command.env_remove("SS_SERVER_PASSWORD");
        finish(command, "")
    };
    dir.file(
        "bad.json5",
        "{servers: [{server: '127.0.0.1', server_port: 1, method: 'zzz', password: 'hunter2'}]}",
    );
    let server = "ssserver -s 127.0.0.1:1 -m aes-128-gcm -k hunter2";
    let local = "sslocal -b 127.0.0.1:1";
    for (line, status, says) in [
        ("sslocal --help".to_owned(), 0, "usage: sslocal "),
        ("ssserver -V".to_owned(), 0, "ssserver (adit "),
        ("sslocal -x".to_owned(), 2, "sslocal -x: no such flag"),
        ("sslocal".to_owned(), 64, "no local port is given"),
        ("ssserver -s 127.0.0.1:1 -m aes-128-gcm".to_owned(), 64, "the password is missing"),
        ("ssserver -c none.json".to_owned(), 78, "cannot read: "),
        ("ssserver -c bad.json5".to_owned(), 78, "bad.json5:1:"),
        (format!("{server} --acl f"), 78, "cannot read: "),
        ("ssmanager -m aes-128-gcm".to_owned(), 64, "key=manager_address"),
        (format!("{local} --online-config-url http://a:b@example.com/"), 78, "key=online_config"),
        ("ssserver -s 192.0.2.1:1 -m aes-128-gcm -k hunter2".to_owned(), 70, "cannot listen on 192.0.2.1:1"),
        ("ssservice".to_owned(), 2, "usage: ssservice "),
        ("ssservice manager".to_owned(), 64, "key=manager_address"),
        ("ssservice genkey -m zzz".to_owned(), 2, "unknown method"),
        ("ssurl".to_owned(), 2, "usage: ssurl "),
        ("ssurl -d http://hunter2".to_owned(), 78, "does not begin with ss://"),
    ] {
        let (found, out, err) = run(&line);
        assert_eq!(found, status, "{line}\n{out}{err}");
        assert!(format!("{out}{err}").contains(says), "{line}\n{out}{err}");
        assert!(!err.contains("hunter2"), "{err}");
    }
    let (status, key, _) = run("ssservice genkey -m 2022-blake3-aes-128-gcm");
    assert!(status == 0 && key.len() == 25, "{key}");
}

#[test]
fn links_and_back() {
    let dir = Dir::new();
    let text = format!(
        "{{servers: [{{server: '192.0.2.1', server_port: 8388, method: 'aes-128-gcm', password: 'test'}},\n\
         {{server: '2001:db8::1', server_port: 443, method: '2022-blake3-aes-128-gcm', password: '{KEY}',\n\
         plugin: 'obfs-local', plugin_opts: 'obfs=tls', remarks: 'home'}}]}}"
    );
    dir.file("servers.json5", &text);
    let (status, out, err) = finish(dir.command(link(&dir, "ssurl"), &["-e", "servers.json5"]), "");
    assert_eq!(status, 0, "{err}");
    let links: Vec<&str> = out.lines().collect();
    let want = [
        "ss://YWVzLTEyOC1nY206dGVzdA@192.0.2.1:8388",
        "ss://2022-blake3-aes-128-gcm:MDEyMzQ1Njc4OWFiY2RlZg%3D%3D@[2001:db8::1]:443/?plugin=obfs%2Dlocal%3Bobfs%3Dtls#home",
    ];
    assert_eq!(links, want, "{err}");
    for (i, link) in want.iter().enumerate() {
        let (status, file, err) = dir.run(&["ssurl", "-d", link]);
        assert_eq!(status, 0, "{err}");
        let back: serde_json::Value = serde_json::from_str(&file).unwrap();
        assert_eq!(back["server"], ["192.0.2.1", "2001:db8::1"][i]);
        let path = dir.file("back.json", &file);
        let (status, again, _) = dir.run(&["ssurl", "--encode", path.to_str().unwrap()]);
        assert_eq!((status, again.trim_end()), (0, link.trim_end_matches("#home")));
        let (_, pictured, _) = dir.run(&["ssurl", "-c", "-d", link]);
        assert!(pictured.starts_with(&file) && pictured.contains('▄'), "{pictured}");
    }
    let (status, out, _) = dir.run(&["ssurl", "-c", "-e", "servers.json5"]);
    assert!(status == 0 && out.contains(want[0]) && out.contains('█'), "{out}");
}
