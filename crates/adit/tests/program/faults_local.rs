//! Faults of this machine: the first line about trouble names the cause.

use std::io::Read as _;
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::os::unix::fs::PermissionsExt as _;
use std::time::Duration;

use crate::faults::{client, first};
use crate::support::{Dir, PSK, Running, echo, link};

/// adit with a limit of the shell.
fn limited(dir: &Dir, limit: &str, file: &str) -> Running {
    let script = format!("{limit} && exec '{}' run -c {file}", env!("CARGO_BIN_EXE_adit"));
    Running::start(dir.command("sh", &["-c", &script]))
}

#[test]
fn a_port_that_is_taken() {
    let dir = Dir::new();
    let taken = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let at = taken.local_addr().unwrap();
    dir.file("a.toml", &format!("[[inbound]]\nprotocol = \"mixed\"\nlisten = \"{at}\"\n"));
    let (status, _, err) = dir.run(&["run", "-c", "a.toml"]);
    let line = err.lines().find(|line| line.starts_with("error: ")).unwrap_or_default();
    assert!(status == 1 && line.contains(&format!("cannot listen on {at}")), "{err}");
    assert!(err.contains("ADIT-SYS-02"), "{err}");
    let (status, out, _) = dir.run(&["explain", "sys-02"]);
    assert!(status == 0 && out.starts_with("ADIT-SYS-02: a port is taken\n"), "{out}");
}

#[test]
fn no_descriptors_left() {
    let dir = Dir::new();
    let silent = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let target = silent.local_addr().unwrap();
    dir.file(
        "a.toml",
        &format!("[[inbound]]\nprotocol = \"tunnel\"\nlisten = \"127.0.0.1:0\"\ntarget = \"{target}\"\n"),
    );
    let running = limited(&dir, "ulimit -n 64", "a.toml");
    let at = running.address();
    let open: Vec<_> = (0..100).map(|_| TcpStream::connect(at)).collect();
    let line = first(&running);
    assert!(line.contains("code=ADIT-SYS-01"), "{line}");
    // An accepted connection, its way out or the listener may be the first that finds none.
    let causes = ["too few descriptors", "cannot accept connections", "Too many open files"];
    assert!(causes.iter().any(|cause| line.contains(cause)), "{line}");
    drop(open);
}

#[test]
fn a_disk_that_is_full() {
    let dir = Dir::new();
    let state = dir.path().join("users.state");
    dir.file(
        "a.toml",
        &format!(
            "state = \"{}\"\n[[inbound]]\nprotocol = \"mixed\"\nname = \"local\"\nlisten = \"127.0.0.1:0\"\n\
             [[inbound.users]]\nname = \"ann\"\npassword = \"long enough a word\"\n",
            state.display()
        ),
    );
    // A write beyond the limit fails as one to a full disk does.
    let running = limited(&dir, "trap '' XFSZ && ulimit -f 0", "a.toml");
    let at = running.line("inbound=local");
    let at: std::net::SocketAddr =
        at.split("address=").nth(1).unwrap().split(' ').next().unwrap().parse().unwrap();
    let mut stream = TcpStream::connect(at).unwrap();
    stream.set_read_timeout(Some(Duration::from_secs(5))).unwrap();
    std::io::Write::write_all(
        &mut stream,
        &[&[5, 1, 2, 1, 3][..], b"ann", &[18], b"long enough a word", &[5, 1, 0, 1, 127, 0, 0, 1, 0, 9]]
            .concat(),
    )
    .unwrap();
    stream.read_exact(&mut [0; 2]).ok();
    let line = first(&running);
    assert!(line.contains("code=ADIT-SYS-03") && line.contains("cannot write the state file"), "{line}");
    assert!(line.contains("File too large"), "{line}");
}

#[test]
fn a_state_file_that_cannot_be_read() {
    let dir = Dir::new();
    std::fs::create_dir(dir.path().join("users.state")).unwrap();
    dir.file(
        "a.toml",
        "state = \"users.state\"\n[[inbound]]\nprotocol = \"mixed\"\nlisten = \"127.0.0.1:0\"\n[[inbound.users]]\n\
         name = \"ann\"\npassword = \"long enough a word\"\n",
    );
    let (status, _, err) = dir.run(&["run", "-c", "a.toml"]);
    let line = err.lines().find(|line| line.starts_with("error: ")).unwrap_or_default();
    assert!(status == 1 && line.contains("state file") && line.contains("users.state"), "{err}");
    assert!(line.contains("not a regular file") && err.contains("ADIT-SYS-04"), "{err}");
}

#[test]
fn a_plugin_that_is_missing_or_ends() {
    let dir = Dir::new();
    let outbound = |plugin: &str| {
        format!(
            "[[outbound]]\nname = \"far\"\nprotocol = \"shadowsocks\"\nserver = \"127.0.0.1:1\"\nmethod = \"aes-256-gcm\"\n\
             password = \"long enough a word\"\nplugin = \"{plugin}\"\n"
        )
    };
    let local = "[[inbound]]\nprotocol = \"mixed\"\nlisten = \"127.0.0.1:0\"\n";
    dir.file("a.toml", &(local.to_owned() + &outbound("v2ray-plugin-that-is-not-there")));
    let (status, _, err) = dir.run(&["run", "-c", "a.toml"]);
    let line = err.lines().find(|line| line.starts_with("error: ")).unwrap_or_default();
    assert!(status == 1 && line.contains("v2ray-plugin-that-is-not-there: cannot be started"), "{err}");
    assert!(line.contains("looked for in the folders of PATH") && err.contains("ADIT-PLUG-02"), "{err}");

    // It ends after a while, and is started again.
    let script = dir.file("plugin", "#!/bin/sh\nsleep 5 &\nwait $!\necho 'no such host' >&2\nexit 3\n");
    std::fs::set_permissions(&script, std::fs::Permissions::from_mode(0o755)).unwrap();
    let running = client(&dir, &outbound(script.to_str().unwrap()));
    let line = first(&running);
    let line = if line.contains("does not listen yet") { running.line("ADIT-PLUG-01") } else { line };
    assert!(line.contains("code=ADIT-PLUG-01") && line.contains("has ended"), "{line}");
    assert!(line.contains("no such host") && line.contains("outbound=far"), "{line}");
}

#[test]
fn a_quota_that_is_used_up_is_told_once() {
    let dir = Dir::new();
    let running = client(
        &dir,
        "name = \"local\"\n[[inbound.users]]\nname = \"ann\"\npassword = \"long enough a word\"\nquota = \"10KiB\"\n\
         [[inbound.users]]\nname = \"bob\"\npassword = \"another long word\"\nexpires = \"2020-01-01\"\n",
    );
    let line = running.line("bob: account expired (2020-01-01)");
    assert!(line.contains(" INFO ") && line.contains("code=ADIT-USER-02"), "{line}");
    let target = echo();
    let mut stream = TcpStream::connect(running.address()).unwrap();
    let port = target.port().to_be_bytes();
    let request =
        [&[5, 1, 2, 1, 3][..], b"ann", &[18], b"long enough a word", &[5, 1, 0, 1, 127, 0, 0, 1], &port];
    std::io::Write::write_all(&mut stream, &request.concat()).unwrap();
    std::io::Write::write_all(&mut stream, &[7; 20_000]).unwrap();
    let line = running.line("ann: quota used up (10 KiB); next reset never");
    assert!(line.contains(" INFO ") && line.contains("code=ADIT-USER-01"), "{line}");
    let log = running.log();
    assert_eq!(log.matches("quota used up").count(), 1, "{log}");
}

#[test]
fn first_lines_tell_what_people_compare() {
    let dir = Dir::new();
    let target = echo();
    let args =
        ["-l", "127.0.0.1:0", "-t", &target.to_string(), "-key", "k", "-crypt", "xtea", "-mode", "fast3"];
    let server = Running::start(dir.command(link(&dir, "kcptun-server"), &args));
    let line = server.line("listening");
    assert!(line.contains("network=udp") && line.contains(&format!("target={target}")), "{line}");
    let settings = |running: &Running| {
        running
            .line("KCP settings")
            .split_once("have: ")
            .unwrap()
            .1
            .split(" name=")
            .next()
            .unwrap()
            .to_owned()
    };
    let remote = server.address().to_string();
    let args = ["-l", "127.0.0.1:0", "-r", &remote, "-key", "k", "-crypt", "xtea"];
    let client = Running::start(dir.command(link(&dir, "kcptun-client"), &args));
    assert!(client.line("listening").contains(&format!("server=\"kcp {remote}\"")), "{}", client.log());
    assert_eq!(settings(&server), settings(&client));
    assert!(settings(&server).starts_with("crypt xtea, nocomp "), "{}", settings(&server));

    let users = "[[inbound.users]]\nname = \"a\"\npassword = \"TestLoopbackPsk0123456789abcdefa\"\n\
                 [[inbound.users]]\nname = \"b\"\npassword = \"TestLoopbackPsk0123456789abcdefb\"\n";
    dir.file("s.toml", &format!("[[inbound]]\nprotocol = \"snell\"\nlisten = \"127.0.0.1:0\"\n{users}"));
    let server = Running::start(dir.adit(&["run", "-c", "s.toml"]));
    let line = server.line("listening");
    assert!(line.contains("users=2") && line.contains("network=tcp"), "{line}");
    let first = server.log().lines().next().unwrap().to_owned();
    let want = format!("adit {}, s.toml, pid {}", env!("CARGO_PKG_VERSION"), server.pid());
    assert!(first.contains(&want), "{first}");
    dir.file(
        "c.toml",
        &format!(
            "[[inbound]]\nprotocol = \"mixed\"\nlisten = \"127.0.0.1:0\"\n[[outbound]]\nprotocol = \"snell\"\n\
             server = \"{}\"\npsk = \"{PSK}\"\n",
            server.address()
        ),
    );
    let client = Running::start(dir.adit(&["run", "-c", "c.toml"]));
    let line = client.line("listening");
    assert!(line.contains(&format!("server=\"snell {}\"", server.address())), "{line}");
}

#[test]
fn the_journal_gets_priorities_and_no_time() {
    let dir = Dir::new();
    dir.file("a.toml", "[[inbound]]\nprotocol = \"mixed\"\nlisten = \"127.0.0.1:0\"\n");
    let script = format!(
        "JOURNAL_STREAM=$(stat -L -c %d:%i /dev/fd/2) exec '{}' run -c a.toml",
        env!("CARGO_BIN_EXE_adit")
    );
    let running = Running::start(dir.command("sh", &["-c", &script]));
    let line = running.line("listening");
    assert!(line.starts_with("<6> INFO listening "), "{line}");
}

#[test]
fn codes_are_explained_and_documented() {
    let dir = Dir::new();
    let (status, out, _) = dir.run(&["explain", "ADIT-NET-02"]);
    assert!(status == 0 && out.lines().all(|line| line.chars().count() <= 80), "{out}");
    assert!(out.contains("getent hosts NAME"), "{out}");
    let (status, _, err) = dir.run(&["explain", "ADIT-NET-99"]);
    assert!(status == 2 && err.contains("no such code"), "{err}");
    for both in
        [&["explain", "NET-02", "--to", "h:1"][..], &["explain"], &["explain", "--to", "h:1", "--batch", "x"]]
    {
        assert_eq!(dir.run(both).0, 2, "exactly one: {both:?}");
    }
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/errors.md");
    let (_, document, _) = dir.run(&["explain", "--codes"]);
    let stored = std::fs::read_to_string(path).unwrap_or_default();
    assert!(stored == document, "docs/errors.md is not what `adit explain --codes` prints");
}
