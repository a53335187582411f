//! Ports that move between one address and the wildcard while the program runs: by the control interface of mihomo, and by
//! SIGHUP.

use std::io::{Read as _, Write as _};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::thread;
use std::time::{Duration, Instant};

use adit_testkit::{unused_addr, unused_port, wait_for};

use crate::support::{Dir, PATIENCE, Running, echo, read_head, round_trip, socks5};

/// Has the program read its file again, until that has an effect: a signal is not heard before the start is over.
fn reload(running: &Running, what: &str, has_effect: impl Fn() -> bool) {
    let until = Instant::now() + PATIENCE;
    for turn in 0_u32.. {
        if turn.is_multiple_of(200) {
            running.signal("HUP");
        }
        if has_effect() {
            return;
        }
        assert!(Instant::now() < until, "{what}: {}", running.log());
        thread::sleep(Duration::from_millis(5));
    }
}

/// An address of this machine that is not the one that narrow ports listen on.
fn is_wide(port: u16) -> bool {
    TcpStream::connect((Ipv4Addr::new(127, 0, 0, 2), port)).is_ok()
}

fn near(port: u16) -> SocketAddr {
    (Ipv4Addr::LOCALHOST, port).into()
}

/// Asks the control interface; the status and the body of the answer.
fn patch(api: SocketAddr, body: &str) -> (u16, String) {
    let mut stream = TcpStream::connect(api).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    let len = body.len();
    write!(stream, "PATCH /configs HTTP/1.1\r\nHost: {api}\r\nConnection: close\r\nContent-Type: application/json\r\nContent-Length: {len}\r\n\r\n{body}").unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    (answer.split(' ').nth(1).unwrap().parse().unwrap(), answer)
}

#[test]
fn allow_lan_and_bind_address_by_the_control_interface() {
    let dir = Dir::new();
    let (port, api, target) = (unused_port(), unused_addr(), echo());
    let text = format!("mixed-port: {port}\nallow-lan: false\nexternal-controller: {api}\nmode: direct\n");
    dir.file("config.yaml", &text);
    let running = Running::start(dir.adit(&["mihomo", "-d", "."]));
    wait_for("the port is open", || {
        TcpStream::connect(near(port)).is_ok() && TcpStream::connect(api).is_ok()
    });
    let mut open = socks5(near(port), "127.0.0.1", target.port());
    for (body, wide) in [
        ("{\"allow-lan\":true}", true),
        ("{\"allow-lan\":false}", false),
        ("{\"allow-lan\":true}", true),
        ("{\"bind-address\":\"127.0.0.1\"}", false),
        ("{\"bind-address\":\"*\"}", true),
        ("{\"allow-lan\":false}", false),
    ] {
        let (status, answer) = patch(api, body);
        assert_eq!(status, 204, "{body}: {answer}");
        assert_eq!(is_wide(port), wide, "{body}");
        round_trip(&mut open, 10_000);
        round_trip(&mut socks5(near(port), "127.0.0.1", target.port()), 1000);
    }
    // A narrow address that nobody has: the port is closed to the network all the same, and the answer says so.
    assert_eq!(patch(api, "{\"allow-lan\":true}").0, 204);
    let (status, answer) = patch(api, "{\"bind-address\":\"203.0.113.77\"}");
    assert!(status == 400 && answer.contains("closed all the same"), "{answer}");
    assert!(!is_wide(port), "the wide socket is open");
    running.line("closed all the same");
    round_trip(&mut open, 10_000);
    // It stays closed when something else changes, and comes back when it is asked to.
    patch(api, "{\"mode\":\"global\"}");
    assert!(!is_wide(port) && TcpStream::connect(near(port)).is_err());
    assert_eq!(patch(api, "{\"bind-address\":\"*\",\"mode\":\"direct\"}").0, 204);
    assert!(is_wide(port));
    round_trip(&mut socks5(near(port), "127.0.0.1", target.port()), 1000);
}

#[test]
fn a_file_of_mihomo_that_is_read_again() {
    let dir = Dir::new();
    let (port, target) = (unused_port(), echo());
    let text = |lan: bool| format!("mixed-port: {port}\nallow-lan: {lan}\nmode: direct\n");
    dir.file("config.yaml", &text(true));
    let running = Running::start(dir.adit(&["mihomo", "-d", "."]));
    wait_for("the port is open", || TcpStream::connect(near(port)).is_ok());
    let mut open = socks5(near(port), "127.0.0.1", target.port());
    for lan in [false, true, false] {
        dir.file("config.yaml", &text(lan));
        reload(&running, "the port has moved", || is_wide(port) == lan);
        round_trip(&mut open, 10_000);
        round_trip(&mut socks5(near(port), "127.0.0.1", target.port()), 1000);
    }
    let log = running.log();
    assert!(!log.contains("taken by"), "{log}");
}

#[test]
fn a_file_of_adit_that_is_read_again() {
    let dir = Dir::new();
    let (port, target) = (unused_port(), echo());
    let text = |listen: &str| {
        let listen = listen.replace('P', &port.to_string());
        format!(
            "cores = 2\n[[inbound]]\nprotocol = \"tunnel\"\nlisten = \"{listen}\"\ntarget = \"{target}\"\noutbound = \"direct\"\n\
             [[outbound]]\nname = \"direct\"\nprotocol = \"direct\"\n"
        )
    };
    dir.file("adit.toml", &text("127.0.0.1:P"));
    let running = Running::start(dir.adit(&["run", "-c", "adit.toml"]));
    wait_for("the port is open", || TcpStream::connect(near(port)).is_ok());
    let mut open = TcpStream::connect(near(port)).unwrap();
    let mut steps = vec![("0.0.0.0:P", true), ("127.0.0.1:P", false)];
    if TcpListener::bind("[::1]:0").is_ok() {
        steps.extend([("[::]:P", true), ("127.0.0.1:P", false), ("[::]:P", true), ("0.0.0.0:P", true)]);
    }
    for (listen, wide) in steps {
        let before = running.log().matches("reloaded: ").count();
        dir.file("adit.toml", &text(listen));
        reload(&running, listen, || {
            running.log().matches("reloaded: ").count() > before && is_wide(port) == wide
        });
        round_trip(&mut open, 10_000);
        round_trip(&mut TcpStream::connect(near(port)).unwrap(), 1000);
    }
    // The narrow address belongs to somebody else: the wide socket closes, and the log says so.
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    dir.file("adit.toml", &text(&taken.local_addr().unwrap().to_string()));
    running.signal("HUP");
    running.line("closed all the same");
    assert!(!is_wide(port));
    round_trip(&mut open, 10_000);
}

/// Sends a request for `path` with the secret over a connection that stays; the status.
fn ask(stream: &mut TcpStream, path: &str, secret: &str) -> u16 {
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    write!(stream, "GET {path} HTTP/1.1\r\nHost: 127.0.0.1\r\nAuthorization: Bearer {secret}\r\n\r\n")
        .unwrap();
    let head = read_head(stream);
    let len = head
        .to_ascii_lowercase()
        .split("content-length: ")
        .nth(1)
        .map_or(0, |rest| rest.lines().next().unwrap().parse().unwrap());
    stream.read_exact(&mut vec![0; len]).unwrap();
    head.split(' ').nth(1).unwrap().parse().unwrap()
}

#[test]
fn ports_of_the_interfaces_follow_their_file() {
    const SECRETS: [&str; 2] = ["0123456789abcdefghijkl", "another-0123456789abcd"];
    // The key, the key of its secret, and a page that needs it; manage speaks TLS.
    for (key, secret_key, page) in [
        ("http", "token", Some("/metrics")),
        ("clash", "clash-secret", Some("/proxies")),
        ("manage", "manage-secret", None),
    ] {
        let (dir, port, server) = (Dir::new(), unused_port(), unused_addr());
        let write = |admin: &str| {
            let text = format!(
                "state = \"state\"\n[admin]\nsocket = \"adit.sock\"\n{admin}\n[[inbound]]\nprotocol = \"shadowsocks\"\n\
                 listen = \"{server}\"\nmethod = \"aes-128-gcm\"\noutbound = \"direct\"\n\
                 users = [{{ name = \"a\", password = \"0123456789abcdef\" }}]\n[[outbound]]\nname = \"direct\"\nprotocol = \"direct\"\n"
            );
            dir.file("adit.toml", &text);
        };
        let admin = |listen: &str, secret: &str| {
            format!("{key} = \"{}\"\n{secret_key} = \"{secret}\"", listen.replace('P', &port.to_string()))
        };
        let reload = |admin: &str| {
            write(admin);
            let (_, out, err) = dir.run(&["reload", "--socket", "adit.sock"]);
            out + &err
        };
        write(&admin("0.0.0.0:P", SECRETS[0]));
        let running = Running::start(dir.adit(&["run", "-c", "adit.toml"]));
        wait_for("the port is open", || TcpStream::connect(near(port)).is_ok());
        wait_for("reloads are taken", || reload(&admin("0.0.0.0:P", SECRETS[0])).contains("no difference"));
        let mut held = TcpStream::connect(near(port)).unwrap();
        for (listen, wide) in
            [("127.0.0.1:P", false), ("0.0.0.0:P", true), ("127.0.0.1:P", false), ("0.0.0.0:P", true)]
        {
            let said = reload(&admin(listen, SECRETS[0]));
            assert!(
                said.contains("settings changed: ") && !said.contains("restart"),
                "{key} {listen}: {said}"
            );
            assert_eq!(is_wide(port), wide, "{key} {listen}: {said}");
            assert!(TcpStream::connect(near(port)).is_ok(), "{key} {listen}: {said}");
            if let Some(page) = page {
                assert_eq!(ask(&mut held, page, SECRETS[0]), 200, "{key} {listen}: a connection of before");
            }
        }
        // Another secret counts at once, for connections of before too.
        reload(&admin("0.0.0.0:P", SECRETS[1]));
        if let Some(page) = page {
            assert_eq!(ask(&mut held, page, SECRETS[0]), 401, "{key}");
            assert_eq!(ask(&mut held, page, SECRETS[1]), 200, "{key}");
        }
        // An address that nobody has: the wide socket closes all the same, and the answer says so.
        let said = reload(&admin("203.0.113.77:P", SECRETS[1]));
        assert!(said.contains("cannot listen at 203.0.113.77:"), "{key}: {said}");
        assert!(!is_wide(port) && TcpStream::connect(near(port)).is_err(), "{key}: {said}");
        let said = reload(&admin("0.0.0.0:P", SECRETS[1]));
        assert!(is_wide(port), "{key}: {said}");
        // From one narrow address to one that nobody has: it stays where it was.
        reload(&admin("127.0.0.1:P", SECRETS[1]));
        let said = reload(&admin("203.0.113.77:P", SECRETS[1]));
        assert!(said.contains("cannot listen at 203.0.113.77:"), "{key}: {said}");
        assert!(TcpStream::connect(near(port)).is_ok() && !is_wide(port), "{key}: {said}");
        // Without its key it closes, and with it it opens again.
        let said = reload("");
        assert!(TcpStream::connect(near(port)).is_err(), "{key}: {said}");
        let said = reload(&admin("0.0.0.0:P", SECRETS[1]));
        assert!(!said.contains("restart") && is_wide(port), "{key}: {said}");
        drop(running);
        // One that was not there at the start waits for the next one, and the answer says so.
        write("");
        let _running = Running::start(dir.adit(&["run", "-c", "adit.toml"]));
        wait_for("reloads are taken", || reload("").contains("no difference"));
        let said = reload(&admin("0.0.0.0:P", SECRETS[1]));
        assert!(said.contains(&format!("needs a restart: admin.{key}")) && !is_wide(port), "{key}: {said}");
    }
}
