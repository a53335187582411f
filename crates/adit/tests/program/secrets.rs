use std::io::{Read, Write};
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;

use crate::run::pair;
use crate::support::{Dir, PSK, Running, echo, link, round_trip, socks5};

/// A name that no resolver knows.
const NAME: &str = "canary-of-the-mine.invalid";

/// The log of server and client while connections succeed and fail.
fn logs(head: &str, flags: &[&str]) -> [(String, u16); 2] {
    let dir = Dir::new();
    let (server, client) = pair(&dir, head, flags);
    let target = echo();
    round_trip(&mut socks5(client.address(), "127.0.0.1", target.port()), 100_000);
    let mut stream = socks5(client.address(), NAME, 443);
    stream.write_all(b"hello").ok();
    stream.read_to_end(&mut Vec::new()).ok();
    [client, server].map(|running| {
        running.signal("TERM");
        let (status, log) = running.end();
        assert_eq!(status.code(), Some(0), "{log}");
        (log, target.port())
    })
}

#[test]
fn no_key_is_logged_even_at_trace() {
    for flags in [&["-vv"][..], &["-vv", "--log-format", "json"]] {
        let logs = logs("", flags);
        for (log, _) in &logs {
            assert!(log.lines().count() > 3, "{log}");
            for part in [PSK, &PSK[..8], &PSK[PSK.len() - 8..]] {
                assert!(!log.contains(part), "{log}");
            }
        }
        // At this level destinations are to be seen: the test would notice a log that is merely silent.
        assert!(logs[1].0.contains(NAME), "{}", logs[1].0);
    }
}

#[test]
fn no_destination_is_logged_at_info() {
    for (log, port) in logs("", &[]) {
        assert!(log.contains("listening") && log.contains("stopped"), "{log}");
        for text in [NAME, &format!(":{port}"), PSK] {
            assert!(!log.contains(text), "{text}: {log}");
        }
    }
    let [_, (server, port)] = logs("[log]\ndestinations = true\n", &[]);
    assert!(server.contains(&format!("127.0.0.1:{port}")), "{server}");
}

fn set_mode(path: &Path, mode: u32) {
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode)).unwrap();
}

/// A file with keys that every user of the machine can read is named at the start of each program, by `check` and by
/// `doctor`; one that nobody else can read is not.
#[test]
fn a_file_with_keys_that_others_can_read_is_named() {
    let dir = Dir::new();
    let native = format!("[[inbound]]\nprotocol = \"snell\"\nlisten = \"127.0.0.1:0\"\npsk = \"{PSK}\"\n");
    let port = adit_testkit::unused_localhost().port();
    let ss = format!(
        "{{\"server\":\"127.0.0.1\",\"server_port\":{port},\"password\":\"{PSK}\",\"method\":\"aes-128-gcm\"}}"
    );
    let clash = "mixed-port: 0\nallow-lan: false\nproxies: [{name: s, type: ss, server: 127.0.0.1, port: 9, cipher: \
                 aes-128-gcm, password: x}]\nrules: ['MATCH,s']\n";
    let opensnell = format!("[snell-server]\nlisten = 127.0.0.1:0\npsk = {PSK}\n");
    let kcp = format!("{{\"listen\":\"127.0.0.1:{port}\",\"target\":\"127.0.0.1:9\",\"key\":\"{PSK}\"}}");
    let said = "every user of this machine can read it, and it holds keys: mode 0644";
    for (program, name, text, flags) in [
        ("adit", "adit.toml", &*native, &["run", "-c"][..]),
        ("ss-server", "config.json", &ss, &["-c"]),
        ("ssserver", "rust.json", &ss, &["-c"]),
        ("snell-server", "snell.conf", &opensnell, &["-c"]),
        ("kcptun-server", "kcp.json", &kcp, &["-c"]),
        ("mihomo", "config.yaml", clash, &["-d", ".", "-f"]),
    ] {
        let path = dir.file(name, text);
        let program = if program == "adit" { env!("CARGO_BIN_EXE_adit").into() } else { link(&dir, program) };
        for mode in [0o644, 0o600] {
            set_mode(&path, mode);
            let args = [flags, &[path.to_str().unwrap()]].concat();
            let running = Running::start(dir.command(&program, &args));
            let first = if name == "config.yaml" { "Initial configuration complete" } else { "listening" };
            running.line(first);
            if mode == 0o644 {
                running.line(said);
                running.line(&format!("chmod 600 {}", path.display()));
            }
            running.signal("TERM");
            let (_, log) = running.end();
            assert_eq!(log.contains(said), mode == 0o644, "{name}: {log}");
        }
    }
    for (name, form) in [("adit.toml", "adit"), ("snell.conf", "snell-server"), ("config.json", "ss-server")]
    {
        let path = dir.path().join(name);
        for (mode, status) in [(0o644, 1), (0o600, 0)] {
            set_mode(&path, mode);
            let as_form = if form == "adit" { vec![] } else { vec!["--as", form] };
            let args = [&["check", "--strict"][..], &as_form, &["-c", name]].concat();
            let (got, out, err) = dir.run(&args);
            assert_eq!((got, out.contains("chmod 600")), (status, mode == 0o644), "{name}: {out}{err}");
        }
    }
    set_mode(&dir.path().join("adit.toml"), 0o644);
    let (_, out, _) = dir.run(&["doctor", "--offline", "-c", "adit.toml"]);
    assert!(out.contains("0644 adit.toml") && out.contains("$ chmod 600 adit.toml"), "{out}");
}
