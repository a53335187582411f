use std::net::{SocketAddr, TcpStream, UdpSocket};
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};

use adit_testkit::unused_localhost;

use crate::support::{Dir, PATIENCE, Running, echo, finish, link, round_trip, signal, socks5};

fn stop(running: Running) -> String {
    running.signal("TERM");
    let (status, log) = running.end();
    assert_eq!(status.code(), Some(0), "{log}");
    log
}

/// A port of 127.0.0.1 that nobody has.
pub(crate) fn free_port() -> u16 {
    unused_localhost().port()
}

/// A target that sends datagrams back.
pub(crate) fn udp_echo() -> SocketAddr {
    let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
    let address = socket.local_addr().unwrap();
    thread::spawn(move || {
        let mut buffer = [0; 2048];
        while let Ok((len, from)) = socket.recv_from(&mut buffer) {
            socket.send_to(&buffer[..len], from).ok();
        }
    });
    address
}

/// Sends datagrams until one comes back; a first one may be lost while sockets are opened.
pub(crate) fn datagrams_come_back(to: SocketAddr, len: usize) {
    let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
    socket.set_read_timeout(Some(Duration::from_millis(500))).unwrap();
    let sent = vec![7; len];
    for _ in 0..240 {
        socket.send_to(&sent, to).unwrap();
        let mut buffer = [0; 2048];
        if let Ok((len, _)) = socket.recv_from(&mut buffer) {
            assert_eq!(&buffer[..len], sent);
            return;
        }
    }
    panic!("no datagram comes back");
}

/// The file of the C client for a user.
fn fork_file(port: u16, password: &str, rest: &str) -> String {
    format!(
        "{{\"server\": \"127.0.0.1\", \"server_port\": {port}, \"local_port\": 0, \"password\": \"{password}\",\n\
         \"mode\": \"tcp_and_udp\", \"timeout\": 60, {rest}}}"
    )
}

/// `u` and `d` of the rows of a database.
fn counted(path: &Path) -> Vec<(u64, u64)> {
    let rows: serde_json::Value = serde_json::from_str(&std::fs::read_to_string(path).unwrap()).unwrap();
    let number = |row: &serde_json::Value, key: &str| row[key].as_u64().unwrap_or_default();
    rows.as_array().unwrap().iter().map(|row| (number(row, "u"), number(row, "d"))).collect()
}

fn wait_until(what: &str, mut is_so: impl FnMut() -> bool) {
    let deadline = Instant::now() + PATIENCE;
    while !is_so() {
        assert!(Instant::now() < deadline, "{what}");
        thread::sleep(Duration::from_millis(20));
    }
}

/// True if `len` bytes go through a port of SOCKS and come back; false if the server does not serve.
pub(crate) fn is_served(local: SocketAddr, target: SocketAddr, len: usize) -> bool {
    use std::io::{Read as _, Write as _};

    let mut stream = socks5(local, "127.0.0.1", target.port());
    // A server that does not know the client says nothing.
    stream.set_read_timeout(Some(Duration::from_secs(3))).unwrap();
    let sent = vec![9; len];
    let mut back = vec![0; len];
    stream.write_all(&sent).is_ok() && stream.read_exact(&mut back).is_ok() && back == sent
}

#[test]
fn a_database_of_users_is_served_and_written() {
    let dir = Dir::new();
    let (ann, bob) = (free_port(), free_port());
    dir.file("userapiconfig.py", "# Config\nUPDATE_TIME = 1\n");
    dir.file(
        "user-config.json",
        "{\"server\": \"127.0.0.1\", /* all */ \"forbidden_ip\": \"\", \"colour\": 1}",
    );
    let rows = format!(
        "[{{\"user\": \"ann\", \"port\": {ann}, \"passwd\": \"hunter2\", \"method\": \"aes-128-ctr\",\n\
         \"protocol\": \"auth_aes128_md5\", \"obfs\": \"http_simple\", \"enable\": 1, \"u\": 1000, \"d\": 0,\n\
         \"transfer_enable\": 10000000, \"sub_id\": \"kept\"}},\n\
         {{\"user\": \"bob\", \"port\": {bob}, \"passwd\": \"hunter3\", \"method\": \"none\", \"enable\": 1,\n\
         \"protocol\": \"auth_chain_a\", \"obfs\": \"plain\", \"transfer_enable\": 300000}}]"
    );
    let path = dir.file("mudb.json", &rows);
    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o640)).unwrap();
    let server = Running::start(dir.command(link(&dir, "ssr-server"), &["-c", "mudb.json"]));
    let line = server.line("colour");
    assert!(line.contains("WARN") && line.contains("user-config.json:1:"), "{line}");
    server.line("sub_id");

    dir.file("ann.json", &fork_file(ann, "hunter2", "\"method\": \"aes-128-ctr\", \"protocol\": \"auth_aes128_md5\", \"obfs\": \"http_simple\", \"obfs_param\": \"a.example\""));
    dir.file("bob.json", &fork_file(bob, "hunter3", "\"method\": \"none\", \"protocol\": \"auth_chain_a\""));
    let local = Running::start(dir.adit(&["ssr-local", "-c", "ann.json", "-l", "0"]));
    let target = echo();
    round_trip(&mut socks5(local.address(), "127.0.0.1", target.port()), 1_000_000);
    let udp_target = udp_echo().to_string();
    let line = ["-c", "ann.json", "-l", "0", "-L", &udp_target];
    let tunnel = Running::start(dir.command(link(&dir, "ssr-tunnel"), &line));
    datagrams_come_back(tunnel.address(), 1000);
    wait_until("the traffic is written", || {
        let (u, d) = counted(&path)[0];
        u >= 1000 + 1_000_000 + 1000 && d >= 1_000_000 + 1000
    });
    let text = std::fs::read_to_string(&path).unwrap();
    assert!(text.contains("\"sub_id\": \"kept\"") && text.contains("},\n{\"user\": \"bob\""), "{text}");
    assert_eq!(std::fs::metadata(&path).unwrap().permissions().mode() & 0o7777, 0o640);

    // Bob's quota ends in the middle of his traffic, and his port is closed then.
    let other = Running::start(dir.adit(&["ssr-local", "-c", "bob.json", "-l", "0"]));
    assert!(is_served(other.address(), target, 1000));
    assert!(!is_served(other.address(), target, 400_000));
    wait_until("the port is closed", || TcpStream::connect(("127.0.0.1", bob)).is_err());
    let (u, d) = counted(&path)[1];
    assert!((300_000..=310_000).contains(&(u + d)), "{u} {d}");

    // Another password holds for Ann within a second, and she keeps what she has used.
    let text = std::fs::read_to_string(&path).unwrap();
    std::fs::write(&path, text.replace("hunter2", "hunter4")).unwrap();
    server.line("has changed");
    let again = Running::start(dir.adit(&["ssr-local", "-c", "ann.json", "-l", "0", "-k", "hunter4"]));
    wait_until("the other password is taken", || is_served(again.address(), target, 100));
    let before = counted(&path)[0];
    assert!(is_served(again.address(), target, 50_000));
    for running in [local, tunnel, other, again] {
        let log = stop(running);
        assert!(!log.contains("hunter"), "{log}");
    }
    let log = stop(server);
    assert!(!log.contains("hunter"), "{log}");
    let (u, d) = counted(&path)[0];
    assert!(
        u >= before.0 + 50_000 && d >= before.1 + 50_000,
        "the rest is written at the end: {u} {d} {before:?}"
    );
    assert_eq!(
        std::fs::read_dir(dir.path())
            .unwrap()
            .filter(|entry| { entry.as_ref().unwrap().file_name().to_string_lossy().ends_with(".tmp") })
            .count(),
        0
    );
}

#[test]
fn users_by_id_on_a_shared_port() {
    let dir = Dir::new();
    let (shared, ann) = (free_port(), free_port());
    dir.file(
        "user-config.json",
        "{\"server\": \"127.0.0.1\", \"forbidden_ip\": \"\", \"method\": \"aes-256-ctr\"}",
    );
    let rows = format!(
        "[{{\"user\": \"all\", \"port\": {shared}, \"passwd\": \"outer\", \"method\": \"aes-128-ctr\", \"enable\": 1,\n\
         \"protocol\": \"auth_aes128_fast\", \"protocol_param\": \"64#\", \"transfer_enable\": 1000}},\n\
         {{\"user\": \"ann\", \"port\": {ann}, \"passwd\": \"hunter2\", \"enable\": 1, \"transfer_enable\": 99999999}}]"
    );
    let path = dir.file("mudb.json", &rows);
    let server = Running::start(dir.adit(&["ssr-server", "-c", "mudb.json"]));
    server.line("and this machine: as the replaced programs do");
    server.line("listening");
    let rest = "\"method\": \"aes-128-ctr\", \"protocol\": \"auth_aes128_fast\"";
    dir.file("shared.json", &fork_file(shared, "outer", rest));
    dir.file("own.json", &fork_file(ann, "hunter2", "\"method\": \"aes-256-ctr\""));
    let by_id = format!("{ann}:hunter2");
    let local = Running::start(dir.adit(&["ssr-local", "-c", "shared.json", "-l", "0", "-G", &by_id]));
    let own = Running::start(dir.adit(&["ssr-local", "-c", "own.json", "-l", "0"]));
    let target = echo();
    assert!(is_served(local.address(), target, 10_000));
    assert!(is_served(own.address(), target, 5_000));
    let log = stop(server);
    assert!(!log.contains("hunter2"), "{log}");
    let rows = counted(&path);
    assert_eq!(rows[0], (0, 0), "the port itself uses nothing");
    assert_eq!(rows[1], (15_000, 15_000), "one account for both ports");
}

#[test]
fn a_list_holds_for_the_users_of_a_database() {
    let dir = Dir::new();
    let (ann, target) = (free_port(), echo());
    let list = |blocked: &str| dir.file("hosts.acl", &format!("[outbound_block_list]\n{blocked}\n"));
    list("127.0.0.1");
    dir.file(
        "user-config.json",
        "{\"server\": \"127.0.0.1\", \"forbidden_ip\": \"\", \"method\": \"aes-256-ctr\", \"acl\": \"hosts.acl\"}",
    );
    dir.file("userapiconfig.py", "UPDATE_TIME = 1\n");
    let row = |port: u16| {
        format!(
            "{{\"user\": \"u{port}\", \"port\": {port}, \"passwd\": \"hunter2\", \"enable\": 1, \"transfer_enable\": 99999999}}"
        )
    };
    dir.file("mudb.json", &format!("[{}]", row(ann)));
    let server = Running::start(dir.adit(&["ssr-server", "-c", "mudb.json"]));
    server.line("listening");
    let client = |port: u16| {
        dir.file("client.json", &fork_file(port, "hunter2", "\"method\": \"aes-256-ctr\""));
        Running::start(dir.adit(&["ssr-local", "-c", "client.json", "-l", "0"]))
    };
    let of_ann = client(ann);
    assert!(!is_served(of_ann.address(), target, 100), "the list names the target");
    let reload = |blocked: &str| {
        list(blocked);
        let before = server.log().matches("reloaded: ").count();
        server.signal("HUP");
        adit_testkit::wait_for("the list is read", || server.log().matches("reloaded: ").count() > before);
    };
    reload("127.0.0.2");
    assert!(is_served(of_ann.address(), target, 100), "{}", server.log());
    // Those who come later have the list as it is now.
    let bob = free_port();
    dir.file("mudb.json", &format!("[{}, {}]", row(ann), row(bob)));
    server.line("the database of users has changed");
    let of_bob = client(bob);
    assert!(is_served(of_bob.address(), target, 100), "{}", server.log());
    reload("127.0.0.1");
    for (name, client) in [("ann", of_ann), ("bob", of_bob)] {
        assert!(!is_served(client.address(), target, 100), "{name}: {}", server.log());
    }
}

#[test]
fn the_python_servers_file_with_ports() {
    let dir = Dir::new();
    let (one, two) = (free_port(), free_port());
    let text = format!(
        "{{\"server\": \"127.0.0.1\", \"method\": \"aes-128-ctr\", \"protocol\": \"auth_sha1_v4\",\n\
         // Ports.\n\"port_password\": {{\"{one}\": \"hunter2\", \"{two}\": [\"hunter3\", \"tls1.2_ticket_auth\", \"auth_aes128_sha1\"]}},\n\
         \"forbidden_ip\": \"127.0.0.9/32\", \"timeout\": 120}}"
    );
    dir.file("user-config.json", &text);
    let (status, out, err) = dir.run(&["check", "--as", "ssr-server"]);
    assert_eq!(status, 0, "{out}{err}");
    assert!(out.contains(&format!("ShadowsocksR on 127.0.0.1:{one}")), "{out}");
    // Without flags the file of its folder is read.
    let server = Running::start(dir.command(link(&dir, "server.py"), &[]));
    server.line(&format!(":{two}"));
    let target = echo();
    for (port, password, rest) in [
        (one, "hunter2", "\"method\": \"aes-128-ctr\", \"protocol\": \"auth_sha1_v4\""),
        (
            two,
            "hunter3",
            "\"method\": \"aes-128-ctr\", \"protocol\": \"auth_aes128_sha1\", \"obfs\": \"tls1.2_ticket_auth\"",
        ),
    ] {
        dir.file("local.json", &fork_file(port, password, rest));
        let local = Running::start(dir.adit(&["ssr-local", "-c", "local.json", "-l", "0"]));
        round_trip(&mut socks5(local.address(), "127.0.0.1", target.port()), 100_000);
        let refused = SocketAddr::from(([127, 0, 0, 9], target.port()));
        let mut stream = socks5(local.address(), "127.0.0.9", refused.port());
        use std::io::Read as _;
        assert!(!matches!(stream.read(&mut [0]), Ok(1..)), "the filter refuses this target");
        stop(local);
    }
    let log = stop(server);
    assert!(!log.contains("hunter"), "{log}");
}

/// The address at which an inbound listens; plugins write lines of their own between those of the program.
fn address_of(running: &Running, inbound: &str) -> SocketAddr {
    let line = running.line(inbound);
    let rest = line.split_once("address=").unwrap_or_else(|| panic!("{line}")).1;
    rest.split(' ').next().unwrap_or_default().parse().unwrap_or_else(|_| panic!("{line}"))
}

/// A SIP003 plugin: adit itself, as a tunnel between the addresses of the environment.
fn plugin(dir: &Dir) -> String {
    let text = format!(
        "#!/bin/sh\nif [ \"$SS_PLUGIN_OPTIONS\" = server ]; then\n\
         from=$SS_REMOTE_HOST:$SS_REMOTE_PORT to=$SS_LOCAL_HOST:$SS_LOCAL_PORT\nelse\n\
         from=$SS_LOCAL_HOST:$SS_LOCAL_PORT to=$SS_REMOTE_HOST:$SS_REMOTE_PORT\nfi\n\
         printf '[[inbound]]\\nprotocol = \"tunnel\"\\nlisten = \"%s\"\\ntarget = \"%s\"\\n' \"$from\" \"$to\" > \"{0}/plugin-$$.toml\"\n\
         echo \"$SS_PLUGIN_OPTIONS\" >> \"{0}/plugins\"\nexec \"{1}\" run -c \"{0}/plugin-$$.toml\"\n",
        dir.path().display(),
        env!("CARGO_BIN_EXE_adit"),
    );
    let path = dir.file("carrier", &text);
    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o755)).unwrap();
    path.to_str().unwrap().to_owned()
}

#[test]
fn plugins_beneath_the_obfs_at_both_ends() {
    let dir = Dir::new();
    let plugin = plugin(&dir);
    let port = free_port().to_string();
    let common = [
        "-p",
        &port,
        "-k",
        "hunter2",
        "-m",
        "aes-256-ctr",
        "-O",
        "auth_aes128_md5",
        "-o",
        "http_post",
        "--plugin",
        &plugin,
    ];
    let server = ["ssr-server", "-s", "127.0.0.1", "--forbidden-ip", "", "--plugin-opts", "server"];
    let server = Running::start(dir.adit(&[&server[..], &common].concat()));
    server.line("listening");
    let local = ["ssr-local", "-s", "127.0.0.1", "-l", "0", "-u", "--plugin-opts", "client"];
    let local = Running::start(dir.adit(&[&local[..], &common].concat()));
    let (address, target) = (address_of(&local, "inbound=local"), echo());
    // Plugins need a moment to listen.
    wait_until("bytes pass both plugins", || is_served(address, target, 10));
    round_trip(&mut socks5(address, "127.0.0.1", target.port()), 300_000);
    let udp_target = udp_echo().to_string();
    let tunnel = ["ssr-tunnel", "-s", "127.0.0.1", "-l", "0", "-U", "-L", &udp_target];
    let tunnel = Running::start(dir.adit(&[&tunnel[..], &common].concat()));
    datagrams_come_back(address_of(&tunnel, "inbound=tunnel"), 500);
    let started = std::fs::read_to_string(dir.path().join("plugins")).unwrap();
    let mut started: Vec<&str> = started.lines().collect();
    started.sort_unstable();
    assert_eq!(started, ["client", "server"], "datagrams go straight to the server, without a plugin");
    for running in [tunnel, local, server] {
        stop(running);
    }
}

#[test]
fn start_stop_and_restart() {
    let dir = Dir::new();
    let port = free_port().to_string();
    let line = |word: &str| {
        let args = [
            "ssr-server",
            "-s",
            "127.0.0.1",
            "-p",
            &port,
            "-k",
            "hunter2",
            "-d",
            word,
            "--pid-file",
            "s.pid",
        ];
        finish(dir.adit(&args), "")
    };
    let number = || std::fs::read_to_string(dir.path().join("s.pid")).unwrap().trim().parse::<u32>().unwrap();
    let (status, _, err) = line("stop");
    assert!(status == 1 && err.contains("no server is running"), "{err}");
    let (status, _, err) = line("start");
    assert_eq!(status, 0, "{err}");
    let first = number();
    let (status, _, err) = line("restart");
    assert_eq!(status, 0, "{err}");
    let second = number();
    assert_ne!(first, second);
    let (status, _, err) = line("stop");
    if status != 0 {
        signal(second, "KILL");
    }
    assert_eq!(status, 0, "{err}");
    assert!(TcpStream::connect(format!("127.0.0.1:{port}")).is_err());
    // The number of a program that is not adit is left alone.
    let mut sleeper = std::process::Command::new("sleep").arg("60").spawn().unwrap();
    dir.file("s.pid", &sleeper.id().to_string());
    let (status, _, err) = line("stop");
    assert!(status == 1 && err.contains("another program"), "{err}");
    assert!(sleeper.try_wait().unwrap().is_none());
    sleeper.kill().unwrap();
    sleeper.wait().unwrap();
}

#[test]
fn statuses() {
    let dir = Dir::new();
    dir.file("bad.json", "{\"server_port\": 1,}}");
    dir.file("bad-mudb.json", "[{]");
    for (line, status, says) in [
        ("ssr-local -h", 0, "usage: ssr-local "),
        ("ssr-server --version", 0, "ssr-server (adit "),
        ("ssr-local -V", 0, "ssr-local (adit "),
        ("ssr-local -x", 1, "ssr-local -x: no such flag"),
        ("ssr-local -s 192.0.2.1 -p 1 -k hunter2", 1, "local_port"),
        ("ssr-local -c none.json", 255, "cannot read: "),
        ("ssr-local -c bad.json", 255, "bad.json:1:"),
        ("ssr-server -c bad.json", 1, "bad.json:1:"),
        ("ssr-server -c bad-mudb.json", 1, "bad-mudb.json:1:"),
        ("ssr-server -p 1", 1, "password"),
        ("ssr-server -s 192.0.2.1 -p 1 -k hunter2", 1, "cannot listen on 192.0.2.1:1"),
        ("ssr-redir -s 192.0.2.1 -p 1 -k hunter2", 1, "local_port"),
        ("ssr-local -s 192.0.2.1 -p 1 -l 1 -k hunter2 -O auth_simple", 1, "every program has removed it"),
    ] {
        let args: Vec<&str> = line.split_whitespace().collect();
        let (found, out, err) = dir.run(&args);
        assert_eq!(found, status, "{line}\n{out}{err}");
        assert!(format!("{out}{err}").contains(says), "{line}\n{out}{err}");
        assert!(!err.contains("hunter2"), "{err}");
    }
}

/// As the Python server does, one without a file keeps loopback to itself, and its start says so.
#[test]
fn a_server_without_a_file_keeps_loopback_to_itself() {
    let dir = Dir::new();
    let server = Running::start(dir.adit(&["ssr-server", "-s", "127.0.0.1", "-p", "0", "-k", "pw"]));
    server.line("and this machine, unless a rule rejects them");
}
