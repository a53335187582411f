//! adit as a plugin of Shadowsocks programs: by itself on both ends, with a web server behind it, and under real programs.

use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::path::Path;
use std::process::Command;
use std::sync::mpsc::{Receiver, channel};
use std::thread;
use std::time::{Duration, Instant};

use adit_testkit::{skipped, unused_localhost};

use crate::support::{Dir, PATIENCE, Running, echo, finish, link, round_trip, signal, socks5};

/// `command` with the variables of SIP003.
fn with_ends(mut command: Command, local: SocketAddr, remote: SocketAddr, options: &str) -> Command {
    for (end, addr) in [("LOCAL", local), ("REMOTE", remote)] {
        command.env(format!("SS_{end}_HOST"), addr.ip().to_string());
        command.env(format!("SS_{end}_PORT"), addr.port().to_string());
    }
    command.env("SS_PLUGIN_OPTIONS", options);
    command
}

/// A connection, once somebody listens there.
fn connect(addr: SocketAddr) -> TcpStream {
    let deadline = Instant::now() + PATIENCE;
    loop {
        match TcpStream::connect(addr) {
            Ok(stream) => {
                stream.set_read_timeout(Some(PATIENCE)).unwrap();
                return stream;
            }
            Err(error) => assert!(Instant::now() < deadline, "{addr}: {error}"),
        }
        thread::sleep(Duration::from_millis(10));
    }
}

/// A web server that says what it receives, and answers the first bytes of each connection with `answer`.
fn web(answer: &'static [u8]) -> (SocketAddr, Receiver<Vec<u8>>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let addr = listener.local_addr().unwrap();
    let (said, heard) = channel();
    thread::spawn(move || {
        for mut stream in listener.incoming().map_while(Result::ok) {
            let said = said.clone();
            thread::spawn(move || {
                let (mut bytes, mut is_first) = ([0; 4096], true);
                while let Ok(len @ 1..) = stream.read(&mut bytes) {
                    said.send(bytes[..len].to_vec()).ok();
                    if std::mem::take(&mut is_first) {
                        stream.write_all(answer).ok();
                    }
                }
                // The end, in the place of bytes.
                said.send(Vec::new()).ok();
            });
        }
    });
    (addr, heard)
}

/// Takes `len` bytes of what a web server has received.
fn hear(heard: &Receiver<Vec<u8>>, len: usize) -> Vec<u8> {
    let mut all = Vec::new();
    while all.len() < len {
        let part = heard.recv_timeout(PATIENCE).expect("the web server receives it");
        assert!(!part.is_empty(), "it ended after {} of {len} bytes", all.len());
        all.extend(part);
    }
    all
}

/// A client hello as a browser sends it, without anybody's key.
fn browser_hello() -> Vec<u8> {
    let mut hello = vec![0x16, 3, 1, 2, 0, 1, 0, 1, 0xfc, 3, 3];
    hello.extend((0..32).map(|n| n * 7 + 1));
    hello.push(32);
    hello.extend((0..32).map(|n| n * 5 + 3));
    hello.extend([0, 4, 0x13, 1, 0xc0, 0x2f, 1, 0]);
    let padding = 517 - hello.len() - 6;
    let sized = |len: usize| u16::try_from(len).unwrap().to_be_bytes();
    hello.extend(sized(padding + 4));
    hello.extend([0, 0x15]);
    hello.extend(sized(padding));
    hello.extend(vec![0; padding]);
    assert_eq!(hello.len(), 517);
    hello
}

/// A plugin gets the environment of adit, without the part that is about adit alone.
#[test]
fn a_plugin_gets_no_variable_of_the_service() {
    let dir = Dir::new();
    let seen = dir.path().join("seen");
    let script = format!(
        "#!/bin/sh\nenv >{0}.new\nulimit -Sc >>{0}.new\nmv {0}.new {0}\nexec sleep 600\n",
        seen.display()
    );
    let plugin = dir.file("plugin", &script);
    std::fs::set_permissions(&plugin, std::os::unix::fs::PermissionsExt::from_mode(0o700)).unwrap();
    let config = format!(
        "[[inbound]]\nprotocol = \"mixed\"\nlisten = \"127.0.0.1:0\"\n[[outbound]]\nprotocol = \"shadowsocks\"\n\
         server = \"127.0.0.1:9\"\nmethod = \"aes-128-gcm\"\npassword = \"p\"\nplugin = \"{}\"\n",
        plugin.display()
    );
    let file = dir.file("client.toml", &config);
    let notify = std::os::unix::net::UnixDatagram::bind(dir.path().join("notify")).unwrap();
    let own = [
        ("ADIT_ANYTHING", "own"),
        ("LISTEN_FDNAMES", "own"),
        ("LISTEN_PID", "1"),
        ("WATCHDOG_USEC", "600000000"),
        ("CREDENTIALS_DIRECTORY", "/own"),
        ("INVOCATION_ID", "own"),
        ("NOTIFY_SOCKET", dir.path().join("notify").to_str().unwrap()),
    ]
    .map(|(name, value)| (name, value.to_owned()));
    let mut command = dir.adit(&["run", "-c", file.to_str().unwrap()]);
    command.envs(own.clone()).env("OF_ALL", "kept");
    let running = Running::start(command);
    let deadline = Instant::now() + PATIENCE;
    let text = loop {
        if let Ok(text) = std::fs::read_to_string(&seen) {
            break text;
        }
        assert!(Instant::now() < deadline, "the plugin does not run: {}", running.log());
        thread::sleep(Duration::from_millis(20));
    };
    for (name, _) in own {
        assert!(!text.lines().any(|line| line.starts_with(&format!("{name}="))), "{name}:\n{text}");
    }
    for kept in ["OF_ALL=kept", "SS_REMOTE_HOST=127.0.0.1", "SS_REMOTE_PORT=9"] {
        assert!(text.lines().any(|line| line == kept), "{kept}:\n{text}");
    }
    assert_eq!(text.lines().last(), Some("0"), "no core files");
    drop(notify);
}

#[test]
fn streams_pass_between_both_ends() {
    let dir = Dir::new();
    for (client, client_options, server, server_options) in [
        ("gq-client", "Key=secret;ServerName=www.example.com;Browser=chrome", "gq-server", "Key=secret;"),
        ("gq-client", "key=secret;ServerName=www.example.com;Browser=firefox", "gq-server", "Key=secret;"),
        ("ssr-local", "obfs=go_quiet;param=www.example.com;key=secret", "gq-server", "Key=secret;"),
        ("obfs-local", "obfs=http;obfs-host=www.example.com;fast-open", "obfs-server", "obfs=http;fast-open"),
        ("obfs-local", "obfs=tls;obfs-host=www.example.com;__android_vpn", "obfs-server", "obfs=tls"),
    ] {
        let (target, remote, local) = (echo(), unused_localhost(), unused_localhost());
        // By an argument here, by its own name there.
        let server = with_ends(dir.adit(&[server]), target, remote, server_options);
        let server = Running::start(server);
        let name = dir.path().join(client);
        let path = if name.exists() { name } else { link(&dir, client) };
        let client = with_ends(dir.command(path, &["-V"]), local, remote, client_options);
        let client = Running::start(client);
        connect(remote);
        for len in [1, 3000, 300_000] {
            round_trip(&mut connect(local), len);
        }
        for running in [client, server] {
            running.signal("TERM");
            let (status, log) = running.end();
            assert_eq!(status.code(), Some(0), "{log}");
            assert!(!log.contains("secret"), "{log}");
        }
    }
}

#[test]
fn an_application_that_sends_nothing_makes_no_connection() {
    let dir = Dir::new();
    let server = TcpListener::bind("127.0.0.1:0").unwrap();
    server.set_nonblocking(true).unwrap();
    let local = unused_localhost();
    let options = "Key=secret;ServerName=a.example";
    let _client =
        Running::start(with_ends(dir.adit(&["gq-client"]), local, server.local_addr().unwrap(), options));
    drop(connect(local));
    let silent = connect(local);
    // Nothing comes.
    thread::sleep(Duration::from_millis(300));
    assert!(server.accept().is_err(), "nothing was sent");
    (&silent).write_all(b"x").unwrap();
    server.set_nonblocking(false).unwrap();
    let (mut far, _) = server.accept().unwrap();
    let mut hello = [0; 517];
    far.read_exact(&mut hello).unwrap();
    assert_eq!(hello[..6], [0x16, 3, 1, 2, 0, 1]);
}

#[test]
fn a_browser_reaches_the_web_server() {
    let dir = Dir::new();
    let (web, heard) = web(b"answer");
    let (target, remote) = (echo(), unused_localhost());
    let options = format!("Key=secret;WebServerAddr={web}");
    let server = Running::start(with_ends(dir.adit(&["gq-server"]), target, remote, &options));
    let hello = browser_hello();
    // Another key, no TLS, and a hello that breaks off in its length.
    let mut broken = hello.clone();
    broken[8] ^= 1;
    for bytes in [&hello[..], b"GET / HTTP/1.1\r\nHost: a.example\r\n\r\n", b"x", &broken] {
        let mut client = connect(remote);
        client.write_all(bytes).unwrap();
        // At once: the client has not ended, and sends nothing more before it is answered.
        assert_eq!(hear(&heard, bytes.len()), bytes);
        let mut answer = [0; 6];
        client.read_exact(&mut answer).unwrap();
        assert_eq!(&answer, b"answer");
        // From then on a plain relay.
        client.write_all(b"more\x00\xff").unwrap();
        assert_eq!(hear(&heard, 6), b"more\x00\xff");
        client.shutdown(Shutdown::Write).unwrap();
        assert_eq!(heard.recv_timeout(PATIENCE).unwrap(), b"", "the end is passed on");
        assert_eq!(client.read(&mut answer).unwrap(), 0);
    }
    // A hello in pieces is one hello.
    let mut client = connect(remote);
    client.set_nodelay(true).unwrap();
    for piece in hello.chunks(100) {
        client.write_all(piece).unwrap();
        thread::sleep(Duration::from_millis(20));
    }
    assert_eq!(hear(&heard, hello.len()), hello);
    drop(client);
    assert_eq!(heard.recv_timeout(PATIENCE).unwrap(), b"");
    // A client that goes in the middle of its hello.
    let mut client = connect(remote);
    client.write_all(&hello[..200]).unwrap();
    client.shutdown(Shutdown::Write).unwrap();
    assert_eq!(hear(&heard, 200), hello[..200]);
    let mut answer = [0; 6];
    client.read_exact(&mut answer).unwrap();
    assert!(server.line("does not prove the key").contains("client refused"), "{}", server.log());
    assert_eq!(server.log().matches("client refused").count(), 1, "one line a minute: {}", server.log());
}

/// The bytes that a client of GoQuiet sends first.
fn recorded_hello(dir: &Dir) -> Vec<u8> {
    let server = TcpListener::bind("127.0.0.1:0").unwrap();
    let local = unused_localhost();
    let options = "Key=secret;ServerName=a.example";
    let _client =
        Running::start(with_ends(dir.adit(&["gq-client"]), local, server.local_addr().unwrap(), options));
    connect(local).write_all(b"x").unwrap();
    let mut hello = vec![0; 517];
    server.accept().unwrap().0.read_exact(&mut hello).unwrap();
    hello
}

#[test]
fn a_repeated_hello_reaches_the_web_server() {
    let dir = Dir::new();
    let hello = recorded_hello(&dir);
    let (web, heard) = web(b"answer");
    let remote = unused_localhost();
    let options = format!("Key=secret;WebServerAddr={web}");
    let _server = Running::start(with_ends(dir.adit(&["gq-server"]), echo(), remote, &options));
    let mut first = connect(remote);
    first.write_all(&hello).unwrap();
    let mut answer = [0; 137];
    first.read_exact(&mut answer).unwrap();
    assert_eq!(answer[..5], [0x16, 3, 3, 0, 0x51]);
    // There is no way back behind a good hello.
    first.write_all(b"GET / HTTP/1.1\r\n\r\n").unwrap();
    let mut second = connect(remote);
    second.write_all(&hello).unwrap();
    assert_eq!(hear(&heard, hello.len()), hello);
    assert!(heard.recv_timeout(Duration::from_millis(200)).is_err(), "the first client does not get there");
}

#[test]
fn without_a_web_server_nothing_is_answered() {
    let dir = Dir::new();
    let remote = unused_localhost();
    let server = Running::start(with_ends(dir.adit(&["gq-server"]), echo(), remote, "Key=secret;"));
    server.line("WebServerAddr");
    let mut client = connect(remote);
    client.write_all(b"GET / HTTP/1.1\r\n\r\n").unwrap();
    client.set_read_timeout(Some(Duration::from_millis(500))).unwrap();
    let error = client.read(&mut [0; 1]).unwrap_err();
    assert!(matches!(error.kind(), std::io::ErrorKind::WouldBlock | std::io::ErrorKind::TimedOut), "{error}");
}

#[test]
fn a_client_without_obfs_reaches_the_failover() {
    let dir = Dir::new();
    let (web, heard) = web(b"answer");
    for mode in ["http", "tls"] {
        let remote = unused_localhost();
        let options = format!("obfs={mode};failover={web}");
        let _server = Running::start(with_ends(dir.adit(&["obfs-server"]), echo(), remote, &options));
        let mut client = connect(remote);
        let bytes = b"SSH-2.0-probe\r\n";
        client.write_all(bytes).unwrap();
        assert_eq!(hear(&heard, bytes.len()), bytes);
        let mut answer = [0; 6];
        client.read_exact(&mut answer).unwrap();
        drop(client);
        assert_eq!(heard.recv_timeout(PATIENCE).unwrap(), b"");
    }
}

#[test]
fn an_ssr_server_has_a_fallback_too() {
    let dir = Dir::new();
    let (web, heard) = web(b"answer");
    for (protocol, obfs, request) in [
        ("auth_aes128_md5", "plain", vec![b'x'; 600]),
        ("origin", "http_simple", b"POST /login HTTP/1.1\r\nHost: a.example\r\n\r\n".to_vec()),
        ("auth_chain_a", "tls1.2_ticket_auth", browser_hello()),
        ("origin", "go_quiet", browser_hello()),
    ] {
        let text = format!(
            "[[inbound]]\nprotocol = \"ssr\"\nlisten = \"127.0.0.1:0\"\nmethod = \"aes-128-ctr\"\npassword = \"p\"\n\
             ssr-protocol = \"{protocol}\"\nssr-obfs = \"{obfs}\"\nfallback = \"{web}\"\n"
        );
        let file = dir.file("adit.toml", &text);
        let server = Running::start(dir.adit(&["run", "-c", file.to_str().unwrap()]));
        let mut client = connect(server.address());
        client.write_all(&request).unwrap();
        assert_eq!(hear(&heard, request.len()), request, "{protocol} {obfs}");
        let mut answer = [0; 6];
        client.read_exact(&mut answer).unwrap();
        drop(client);
        assert_eq!(heard.recv_timeout(PATIENCE).unwrap(), b"");
    }
}

#[test]
fn obfs_of_shadowsocksr_under_a_shadowsocks_client() {
    let dir = Dir::new();
    let plugin = link(&dir, "ssr-local");
    for (obfs, method) in [
        ("http_simple", "aes-256-ctr"),
        ("http_post", "aes-128-ctr"),
        ("random_head", "chacha20-ietf"),
        // Its proof is made with a key of 16 bytes.
        ("tls1.2_ticket_auth", "aes-128-ctr"),
    ] {
        let text = format!(
            "[[inbound]]\nprotocol = \"ssr\"\nlisten = \"127.0.0.1:0\"\nmethod = \"{method}\"\npassword = \"p\"\n\
             ssr-obfs = \"{obfs}\"\nallow-private = true\n"
        );
        let file = dir.file("adit.toml", &text);
        let server = Running::start(dir.adit(&["run", "-c", file.to_str().unwrap()]));
        let (port, local, target) = (server.address().port().to_string(), unused_localhost(), echo());
        let own = local.port().to_string();
        let mut client =
            dir.adit(&["ss-local", "-s", "127.0.0.1", "-p", &port, "-l", &own, "-k", "p", "-m", method]);
        let options = format!("obfs={obfs};param=a.example;key=p");
        client.args(["--plugin", plugin.to_str().unwrap(), "--plugin-opts", &options]);
        let _client = Running::start(client);
        connect(local);
        for len in [1, 3000, 300_000] {
            round_trip(&mut socks5(local, "127.0.0.1", target.port()), len);
        }
    }
}

#[test]
fn a_hello_that_stops_reaches_the_web_server_in_time() {
    let dir = Dir::new();
    let (web, heard) = web(b"answer");
    let remote = unused_localhost();
    let options = format!("Key=secret;WebServerAddr={web}");
    let _server = Running::start(with_ends(dir.adit(&["gq-server"]), echo(), remote, &options));
    let silent = connect(remote);
    let mut client = connect(remote);
    let hello = browser_hello();
    client.write_all(&hello[..100]).unwrap();
    assert_eq!(hear(&heard, 100), hello[..100]);
    client.write_all(&hello[100..]).unwrap();
    assert_eq!(hear(&heard, hello.len() - 100), hello[100..]);
    // Nothing is dialled for a client without a byte.
    assert!(heard.recv_timeout(Duration::from_millis(200)).is_err());
    drop(silent);
}

#[test]
fn relayed_clients_make_room_like_all_unauthenticated_ones() {
    let dir = Dir::new();
    let (web, heard) = web(b"answer");
    let text = format!(
        "cores = 1\n[limits]\nunauthenticated-per-source = 2\n[[inbound]]\nprotocol = \"obfs\"\n\
         listen = \"127.0.0.1:0\"\ntarget = \"127.0.0.1:1\"\nobfs = \"go_quiet\"\npassword = \"secret\"\n\
         fallback = \"{web}\"\n"
    );
    let file = dir.file("adit.toml", &text);
    let server = Running::start(dir.adit(&["run", "-c", file.to_str().unwrap()]));
    let mut clients: Vec<TcpStream> = (0..3).map(|_| connect(server.address())).collect();
    for client in &mut clients[1..] {
        client.write_all(b"x").unwrap();
        assert_eq!(hear(&heard, 1), b"x");
        let mut answer = [0; 6];
        client.read_exact(&mut answer).unwrap();
        assert_eq!(&answer, b"answer");
    }
    // The third one is the newest, the first one is gone.
    assert!(!clients[0].read(&mut [0; 1]).is_ok_and(|len| len > 0));
    let mut fourth = connect(server.address());
    fourth.write_all(b"y").unwrap();
    let (mut is_cut, mut is_there) = (false, false);
    while !(is_cut && is_there) {
        match &*heard.recv_timeout(PATIENCE).unwrap() {
            b"" => is_cut = true,
            bytes => is_there = bytes == b"y",
        }
    }
    assert!(!clients[1].read(&mut [0; 1]).is_ok_and(|len| len > 0));
}

#[test]
fn a_plugin_ends_with_its_parent() {
    let dir = Dir::new();
    let local = unused_localhost();
    let adit = env!("CARGO_BIN_EXE_adit");
    let script = format!("'{adit}' gq-client & echo plugin=$!; wait");
    let parent = with_ends(dir.command("sh", &["-c", &script]), local, unused_localhost(), "Key=secret;");
    let parent = Running::start(parent);
    let pid = parent.line("plugin=").trim_start_matches("plugin=").to_owned();
    let _held = connect(local);
    assert!(Path::new("/proc").join(&pid).exists());
    signal(parent.pid(), "KILL");
    let deadline = Instant::now() + PATIENCE;
    let is_alive = || {
        let stat = std::fs::read_to_string(Path::new("/proc").join(&pid).join("stat")).unwrap_or_default();
        // A process that nobody waits for stays as a zombie.
        !stat.is_empty() && !stat.contains(") Z ")
    };
    while is_alive() {
        assert!(Instant::now() < deadline, "plugin {pid} goes on");
        thread::sleep(Duration::from_millis(20));
    }
}

#[test]
fn programs_run_by_themselves() {
    let dir = Dir::new();
    let (target, remote, local) = (echo(), unused_localhost(), unused_localhost());
    let file = dir.file(
        "gq.json",
        r#"{"ServerName":"a.example","Key":"secret","TicketTimeHint":3600,"Browser":"chrome"}"#,
    );
    let (port, own) = (remote.port().to_string(), local.port().to_string());
    let server = dir.adit(&[
        "gq-server",
        "-s",
        "127.0.0.1",
        "-p",
        &port,
        "-r",
        &target.to_string(),
        "-c",
        "Key=secret;",
    ]);
    let _server = Running::start(server);
    let client = ["-s", "127.0.0.1", "-p", &port, "-l", &own, "-c", file.to_str().unwrap()];
    let _client = Running::start(dir.command(link(&dir, "gq-client"), &client));
    connect(remote);
    round_trip(&mut connect(local), 100_000);

    let (status, out, _) = dir.run(&["gq-server", "-v"]);
    assert!(status == 0 && out.starts_with("gq-server (adit "), "{out}");
    let (status, out, _) = dir.run(&["gq-client", "-h"]);
    assert!(status == 0 && out.contains("-c "), "{out}");
    for (args, want) in [
        (&["gq-client", "-l", "1984", "-c", "Key=secret;"][..], "missing"),
        (
            &["gq-client", "-s", "a.example", "-l", "1984", "-c", "Key=secret"],
            "end a list of one option with ;",
        ),
        (
            &["gq-client", "-s", "a.example", "-l", "1984", "-c", "Key=secret;Browser=safari"],
            "unknown browser",
        ),
        (&["gq-server", "-r", "127.0.0.1:1", "-c", "WebServerAddr=a.example:1;"], "Key"),
    ] {
        let (status, out, log) = dir.run(args);
        assert!(status == 1 && out.is_empty() && log.contains(want), "{args:?}: {status} {log}");
        assert!(!log.contains("=secret;"), "{log}");
    }
    let mut half = dir.adit(&["obfs-local"]);
    half.env("SS_LOCAL_HOST", "127.0.0.1").env("SS_LOCAL_PORT", "1");
    let (status, out, log) = finish(half, "");
    assert!(status == 1 && out.is_empty() && log.contains("SS_REMOTE_HOST"), "{log}");
}

/// The first of these programs that is not installed.
pub(crate) fn missing<'p>(programs: &[&'p str]) -> Option<&'p str> {
    let is_missing = |program: &&&str| {
        let command = format!("command -v {program}");
        !Command::new("sh").args(["-c", &command]).output().unwrap().status.success()
    };
    programs.iter().find(is_missing).copied()
}

/// A Shadowsocks server and client, each with a plugin, and bytes that pass through all of them.
fn pass_through(dir: &Dir, server: (&str, &str, &str), client: (&str, &str, &str)) {
    let (remote, local) = (unused_localhost(), unused_localhost());
    let (server_port, local_port) = (remote.port().to_string(), local.port().to_string());
    let args = |program: &str, plugin: &str, options: &str| -> Vec<String> {
        let common = if program.starts_with("ss-") {
            let local = if program == "ss-local" { format!(" -l {local_port}") } else { String::new() };
            format!("-s 127.0.0.1 -p {server_port}{local} -k p -m aes-256-gcm")
        } else {
            let local =
                if program == "sslocal" { format!(" -b 127.0.0.1:{local_port}") } else { String::new() };
            format!("-s 127.0.0.1:{server_port}{local} -k p -m aes-256-gcm")
        };
        let words = common.split(' ').map(str::to_owned);
        words.chain(["--plugin".into(), plugin.into(), "--plugin-opts".into(), options.into()]).collect()
    };
    let start = |(program, plugin, options): (&str, &str, &str)| {
        let args = args(program, plugin, options);
        let args: Vec<&str> = args.iter().map(String::as_str).collect();
        Running::start(dir.command(program, &args))
    };
    let target = echo();
    let (servers, clients) = (start(server), start(client));
    connect(remote);
    connect(local);
    // A plugin may come after the program that started it.
    let deadline = Instant::now() + PATIENCE;
    while !answers(local, target) {
        assert!(Instant::now() < deadline, "{server:?} {client:?}\n{}\n{}", clients.log(), servers.log());
        thread::sleep(Duration::from_millis(50));
    }
    for len in [1, 3000, 1_000_000] {
        round_trip(&mut socks5(local, "127.0.0.1", target.port()), len);
    }
    for running in [clients, servers] {
        running.signal("TERM");
        running.end();
    }
}

fn answers(proxy: SocketAddr, target: SocketAddr) -> bool {
    let mut stream = socks5(proxy, "127.0.0.1", target.port());
    stream.set_read_timeout(Some(Duration::from_secs(2))).unwrap();
    stream.write_all(b"?").is_ok() && stream.read(&mut [0; 1]).is_ok_and(|len| len == 1)
}

/// Each plugin as a real one where there is one, and as a link to adit.
fn under(dir: &Dir, server: &str, client: &str) {
    let own = |name: &str| {
        let path = dir.path().join(name);
        if path.exists() { path } else { link(dir, name) }.to_str().unwrap().to_owned()
    };
    for mode in ["http", "tls"] {
        let (server_options, client_options) =
            (format!("obfs={mode}"), format!("obfs={mode};obfs-host=a.example"));
        for (server_plugin, client_plugin) in [
            ("obfs-server", &*own("obfs-local")),
            (&*own("obfs-server"), "obfs-local"),
            (&*own("obfs-server"), &*own("obfs-local")),
        ] {
            let server = (server, server_plugin, &*server_options);
            pass_through(dir, server, (client, client_plugin, &*client_options));
        }
    }
    for (name, options) in [
        ("gq-client", "Key=secret;ServerName=www.example.com;TicketTimeHint=3600;Browser=firefox"),
        ("ssr-local", "obfs=go_quiet;param=www.example.com;key=secret"),
    ] {
        let server = (server, &*own("gq-server"), "Key=secret;WebServerAddr=127.0.0.1:80");
        pass_through(dir, server, (client, &*own(name), options));
    }
}

#[test]
#[ignore = "needs ss-local, ss-server, obfs-local and obfs-server"]
fn under_shadowsocks_libev() {
    match missing(&["ss-local", "ss-server", "obfs-local", "obfs-server"]) {
        Some(program) => skipped(format_args!("{program} is not installed")),
        None => under(&Dir::new(), "ss-server", "ss-local"),
    }
}

#[test]
#[ignore = "needs sslocal, ssserver, obfs-local and obfs-server"]
fn under_shadowsocks_rust() {
    match missing(&["sslocal", "ssserver", "obfs-local", "obfs-server"]) {
        Some(program) => skipped(format_args!("{program} is not installed")),
        None => under(&Dir::new(), "ssserver", "sslocal"),
    }
}

#[test]
#[ignore = "needs ss-local, ss-server and GoQuiet's gq-client and gq-server"]
fn with_goquiet() {
    if let Some(program) = missing(&["ss-local", "ss-server", "gq-client", "gq-server"]) {
        skipped(format_args!("{program} is not installed"));
        return;
    }
    let dir = Dir::new();
    let own = |name: &str| link(&dir, name).to_str().unwrap().to_owned();
    let (own_server, own_client) = (own("gq-server"), own("gq-client"));
    let options = "Key=secret;ServerName=www.example.com;TicketTimeHint=3600;Browser=chrome";
    for (server, client) in [("gq-server", &*own_client), (&*own_server, "gq-client")] {
        let server = ("ss-server", server, "Key=secret;WebServerAddr=127.0.0.1:80");
        pass_through(&dir, server, ("ss-local", client, options));
    }
}

#[test]
#[ignore = "needs ss-local and ss-server"]
fn a_shadowsocks_program_that_is_killed_takes_its_plugin_along() {
    if let Some(program) = missing(&["ss-local"]) {
        skipped(format_args!("{program} is not installed"));
        return;
    }
    let dir = Dir::new();
    let (local, remote) = (unused_localhost(), unused_localhost());
    let plugin = link(&dir, "gq-client");
    let (port, own) = (remote.port().to_string(), local.port().to_string());
    let args = ["-s", "127.0.0.1", "-p", &port, "-l", &own, "-k", "p", "-m", "aes-256-gcm"];
    let mut command = dir.command("ss-local", &args);
    command.args(["--plugin", plugin.to_str().unwrap(), "--plugin-opts", "Key=secret;"]);
    let parent = Running::start(command);
    connect(local);
    let plugins = || {
        let ours = std::fs::read_dir("/proc").unwrap().flatten().filter(|process| {
            let read = |file: &str| std::fs::read(process.path().join(file)).unwrap_or_default();
            let variable = format!("SS_REMOTE_PORT={port}").into_bytes();
            read("comm") == b"gq-client\n"
                && read("environ").split(|byte| *byte == 0).any(|it| it == variable)
        });
        ours.count()
    };
    let deadline = Instant::now() + PATIENCE;
    while plugins() != 1 {
        assert!(Instant::now() < deadline, "the plugin does not start: {}", parent.log());
        thread::sleep(Duration::from_millis(20));
    }
    // It knows its parent by then.
    parent.line("listening inbound=gq-client");
    signal(parent.pid(), "KILL");
    while plugins() != 0 {
        assert!(Instant::now() < deadline, "the plugin goes on");
        thread::sleep(Duration::from_millis(20));
    }
}
