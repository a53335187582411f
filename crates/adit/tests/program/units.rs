//! The command lines of Debian's units for shadowsocks-libev 3.3.5, and its example files, as they are.

use std::net::{SocketAddr, TcpStream};
use std::process::Command;

use adit_testkit::unused_addr;

use crate::support::{Dir, PATIENCE, Running, echo, finish, link, round_trip, socks5};

/// `ExecStart=` of the units; `%i` is the instance, which is the name of the file.
const UNITS: [(&str, &str); 4] = [
    ("shadowsocks-libev.service", "/usr/bin/ss-server -c $CONFFILE $DAEMON_ARGS"),
    ("shadowsocks-libev-server@.service", "/usr/bin/ss-server -c /etc/shadowsocks-libev/%i.json"),
    ("shadowsocks-libev-local@.service", "/usr/bin/ss-local -c /etc/shadowsocks-libev/%i.json"),
    ("shadowsocks-libev-tunnel@.service", "/usr/bin/ss-tunnel -c /etc/shadowsocks-libev/%i.json"),
];

/// The example with a plugin, which leaves the password to the administrator.
const OBFS: &str = "{\n    \"server\":\"127.0.0.1\",\n    \"server_port\":8388,\n    \"local_port\":1080,\n    \
    \"password\":\"\",\n    \"timeout\":60,\n    \"method\":\"chacha20-ietf-poly1305\",\n    \
    \"mode\":\"tcp_and_udp\",\n    \"fast_open\":true,\n    \"plugin\":\"obfs-server\",\n    \
    \"plugin_opts\":\"obfs=tls;failover=127.0.0.1:8443;fast-open\"\n}\n";

/// A line as systemd expands it, with the folders of a test and nothing else in the environment.
fn started(dir: &Dir, line: &str, instance: &str) -> Command {
    let (folder, file) = (dir.path().to_str().unwrap(), dir.path().join(format!("{instance}.json")));
    let line = line.replace("$CONFFILE", file.to_str().unwrap()).replace("$DAEMON_ARGS", "");
    let line = line.replace("%i", instance).replace("/etc/shadowsocks-libev", folder);
    let mut words = line.split_whitespace();
    let name = words.next().unwrap().strip_prefix("/usr/bin/").unwrap();
    let path = dir.path().join(name);
    let program = if path.exists() { path } else { link(dir, name) };
    let mut command = dir.command(program, &words.collect::<Vec<_>>());
    command.env_clear().env("PATH", "/usr/bin:/bin").current_dir("/");
    command.env("XDG_RUNTIME_DIR", dir.path());
    command
}

#[test]
fn the_units_start_what_they_started() {
    let dir = Dir::new();
    let (server, target) = (unused_addr(), echo());
    for (unit, line) in UNITS {
        let (local, is_server) = (unused_addr(), line.contains("ss-server"));
        // Of a server it would be the address that it connects from.
        let local_address =
            if is_server { String::new() } else { format!("\"local_address\":\"{}\",", local.ip()) };
        let file = format!(
            "{{\n    \"server\":[\"{}\"],\n    \"mode\":\"tcp_and_udp\",\n    \"server_port\":{},\n    \
             {local_address}\n    \"local_port\":{},\n    \"password\":\"leHFDRWnzCKg\",\n    \
             \"tunnel_address\":\"{target}\",\n    \"timeout\":86400,\n    \
             \"method\":\"chacha20-ietf-poly1305\"\n}}\n",
            server.ip(),
            server.port(),
            local.port(),
        );
        dir.file("config.json", &file);
        let started = Running::start(started(&dir, line, "config"));
        let at = if is_server { server } else { local };
        assert_eq!(started.address(), at, "{unit}");
        // These units have no place for a replay file, unlike adit's own.
        let warned = started.log().matches("WARN").count();
        let of_state = started.log().matches("WARN no state directory").count();
        assert_eq!(
            (warned, of_state),
            (usize::from(is_server), usize::from(is_server)),
            "{unit}: {}",
            started.log()
        );
        let rest = if is_server { None } else { Some(server_of(&dir)) };
        if line.contains("ss-tunnel") {
            let mut stream = TcpStream::connect(at).unwrap();
            stream.set_read_timeout(Some(PATIENCE)).unwrap();
            round_trip(&mut stream, 10_000);
        } else {
            let client = if is_server { Some(client_of(&dir, server)) } else { None };
            let proxy = client.as_ref().map_or(at, Running::address);
            round_trip(&mut socks5(proxy, "127.0.0.1", target.port()), 10_000);
        }
        started.signal("TERM");
        let (status, log) = started.end();
        assert_eq!(status.code(), Some(0), "{unit}: {log}");
        assert!(!log.contains("leHFDRWnzCKg"), "{unit}: {log}");
        drop(rest);
    }
}

/// The server that the same file describes.
fn server_of(dir: &Dir) -> Running {
    let running = Running::start(started(dir, UNITS[1].1, "config"));
    running.address();
    running
}

fn client_of(dir: &Dir, server: SocketAddr) -> Running {
    let (ip, port) = (server.ip().to_string(), server.port().to_string());
    Running::start(dir.adit(&["ss-local", "-s", &ip, "-p", &port, "-l", "0", "-k", "leHFDRWnzCKg"]))
}

#[test]
fn the_examples_are_good() {
    let dir = Dir::new();
    dir.file("config-obfs.json", OBFS);
    let (status, out, err) = finish(dir.adit(&["check", "--as", "ss-server", "config-obfs.json"]), "");
    assert_eq!(status, 0, "{out}{err}");
    assert!(out.contains("server: Shadowsocks on 127.0.0.1:8388"), "{out}");
    let warnings: Vec<&str> = out.lines().filter(|line| line.contains("warning")).collect();
    // A second one says so on a machine without the plugin.
    let others =
        warnings.iter().filter(|line| !line.contains("not found in the folders of PATH: obfs-server"));
    assert_eq!(others.count(), 1, "the password is empty: {out}");
}

#[test]
#[ignore = "full suite: needs the files of Debian's package"]
fn the_lines_are_those_of_the_package() {
    for (unit, line) in UNITS {
        let text = std::fs::read_to_string(format!("/lib/systemd/system/{unit}")).unwrap();
        let start = text.lines().find_map(|line| line.strip_prefix("ExecStart="));
        assert_eq!(start, Some(line), "{unit}");
    }
    let dir = Dir::new();
    for example in ["config.json", "config-obfs.json"] {
        let path = format!("/etc/shadowsocks-libev/{example}");
        let (status, out, err) = finish(dir.adit(&["check", "--as", "ss-server", &path]), "");
        assert_eq!(status, 0, "{out}{err}");
    }
}
