//! `adit up` and `adit service` below a root directory.

use std::fs;
use std::net::TcpListener;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;

use adit_formats::adit_toml;

use crate::support::{Dir, Running, finish};

/// A root with systemd, a public address, IPv6 and an active firewall.
fn root(dir: &Dir) -> String {
    for (path, text) in [
        ("root/etc/systemd/system/x", ""),
        (
            "root/proc/net/fib_trie",
            "  |-- 127.0.0.1\n    /32 host LOCAL\n  |-- 203.0.113.9\n    /32 host LOCAL\n",
        ),
        ("root/proc/net/if_inet6", "00000000000000000000000000000001 01 80 10 80       lo\n"),
        ("root/etc/ufw/ufw.conf", "ENABLED=yes\n"),
    ] {
        fs::create_dir_all(dir.path().join(path).parent().unwrap()).unwrap();
        dir.file(path, text);
    }
    dir.path().join("root").to_str().unwrap().to_owned()
}

fn mode(path: &Path) -> u32 {
    fs::metadata(path).unwrap().permissions().mode() & 0o7777
}

#[test]
fn up_twice_keeps_keys_and_ports() {
    let dir = Dir::new();
    let root = root(&dir);
    let (status, out, err) = dir.run(&["up", "--root", &root]);
    assert_eq!((status, &*err), (0, ""), "{out}");
    let config = dir.path().join("root/etc/adit/adit.toml");
    let clients = dir.path().join("root/etc/adit/clients.txt");
    let unit = dir.path().join("root/etc/systemd/system/adit.service");
    assert_eq!((mode(&config), mode(&clients)), (0o600, 0o600));
    let text = fs::read_to_string(&config).unwrap();
    let loaded = adit_toml::parse("adit.toml", &text).unwrap();
    assert!(loaded.diagnostics.is_empty());
    let inbounds = &loaded.config.inbounds;
    let ports: Vec<u16> = inbounds.iter().map(|inbound| inbound.listen[0].port()).collect();
    assert!(ports.iter().all(|port| (10_000..=60_000).contains(port)) && ports[0] != ports[1], "{ports:?}");
    assert!(inbounds.iter().all(|inbound| !inbound.allow_private && inbound.listen.len() == 2));
    // No key reaches a log, and the firewall's rules are named.
    for key in text
        .lines()
        .filter_map(|line| line.strip_prefix("psk = ").or_else(|| line.strip_prefix("password = ")))
    {
        assert!(!out.contains(key.trim_matches('"')), "{out}");
        assert!(fs::read_to_string(&clients).unwrap().contains(key.trim_matches('"')));
    }
    assert!(
        out.contains(&format!("ufw allow {}/udp", ports[1])) && out.contains("/etc/adit/clients.txt"),
        "{out}"
    );
    assert!(fs::read_to_string(&clients).unwrap().contains(&format!("snell, 203.0.113.9, {}", ports[0])));
    assert!(fs::read_to_string(&unit).unwrap().contains(" run -c /etc/adit/adit.toml\n"));
    // Once more, with a listener on one of the ports: nothing is made anew.
    let taken = TcpListener::bind(("0.0.0.0", ports[0])).unwrap();
    let before = (text, fs::read_to_string(&unit).unwrap());
    let (status, out, err) = dir.run(&["up", "--root", &root, "--host", "home.example"]);
    assert_eq!((status, &*err), (0, ""));
    assert!(
        out.starts_with("kept /etc/adit/adit.toml") && out.contains("kept /etc/systemd/system/adit.service"),
        "{out}"
    );
    assert_eq!(before, (fs::read_to_string(&config).unwrap(), fs::read_to_string(&unit).unwrap()));
    assert!(fs::read_to_string(&clients).unwrap().contains("snell, home.example,"));
    drop(taken);
    // The file runs as it is.
    let running = Running::start(dir.adit(&["run", "-c", config.to_str().unwrap()]));
    running.line("listening");
    assert!(!running.log().contains("WARN configuration"), "{}", running.log());
    running.signal("TERM");
    assert!(running.end().0.success());
    let (status, out, _) = dir.run(&["service", "uninstall", "--root", &root]);
    assert!(status == 0 && out.contains("removed /etc/systemd/system/adit.service"), "{out}");
    assert!(!unit.exists() && config.exists());
}

#[test]
fn up_leaves_a_broken_configuration_alone() {
    let dir = Dir::new();
    let root = root(&dir);
    fs::create_dir_all(dir.path().join("root/etc/adit")).unwrap();
    let path = dir.file("root/etc/adit/adit.toml", "[[inbound]]\nprotocol = \"snel\"\n");
    let (status, _, err) = dir.run(&["up", "--root", &root]);
    assert!(status == 1 && err.contains("unknown value: snel"), "{err}");
    assert_eq!(fs::read_to_string(path).unwrap(), "[[inbound]]\nprotocol = \"snel\"\n");
    assert!(!dir.path().join("root/etc/systemd/system/adit.service").exists());
}

#[test]
fn without_an_init_system_the_configuration_is_made() {
    let dir = Dir::new();
    let root = dir.path().join("bare").to_str().unwrap().to_owned();
    let (status, out, err) = dir.run(&["up", "--root", &root]);
    assert_eq!(status, 0, "{err}");
    assert!(err.contains("no known init system") && err.contains("adit run -c /etc/adit/adit.toml"), "{err}");
    assert!(err.contains("hint") && out.contains("127.0.0.1"), "{out}");
    assert!(dir.path().join("bare/etc/adit/adit.toml").exists());
}

#[test]
fn the_service_is_printed_for_each_init_system() {
    let dir = Dir::new();
    for (flag, want) in [
        ("--systemd", "\nNoNewPrivileges=yes\n"),
        ("--openrc", "supervisor=supervise-daemon"),
        ("--procd", "USE_PROCD=1"),
    ] {
        let (status, out, _) = dir.run(&["service", "print", flag]);
        assert!(status == 0 && out.contains(want) && out.contains("run -c /etc/adit/adit.toml"), "{out}");
        if flag != "--systemd" {
            let path = dir.file("script", &out);
            let sh = dir.command("sh", &["-n", path.to_str().unwrap()]);
            assert_eq!(finish(sh, ""), (0, String::new(), String::new()));
        }
    }
    assert_eq!(dir.run(&["service", "print", "--systemd", "--procd"]).0, 2);
}

#[test]
fn keys_fit_their_method() {
    let dir = Dir::new();
    for (method, len) in [
        ("2022-blake3-aes-128-gcm", 24),
        ("2022-blake3-aes-256-gcm", 44),
        ("aes-128-gcm", 32),
        ("snell", 32),
        ("kcptun", 32),
    ] {
        let (status, out, _) = dir.run(&["key", method]);
        assert_eq!((status, out.trim_end().len()), (0, len), "{method}: {out}");
        if method.contains('-') {
            let text = format!(
                "[[inbound]]\nprotocol = \"shadowsocks\"\nlisten = \"127.0.0.1:1\"\nmethod = \"{method}\"\npassword = \"{}\"\n",
                out.trim_end()
            );
            assert!(adit_toml::parse("t", &text).is_ok(), "{text}");
        }
    }
    let (status, _, err) = dir.run(&["key", "rot13"]);
    assert!(status == 2 && err.contains("2022-blake3-aes-128-gcm"), "{err}");
    let (status, _, err) = dir.run(&["key", "2022-blake3-aes-128-gcm", "--length", "40"]);
    assert!(status == 1 && err.contains("fixed"), "{err}");
    let bad = "[[inbound]]\nprotocol = \"shadowsocks\"\nlisten = \"127.0.0.1:1\"\nmethod = \"2022-blake3-aes-256-gcm\"\n\
               password = \"hello world\"\n";
    dir.file("adit.toml", bad);
    let (_, out, _) = dir.run(&["check"]);
    assert!(out.contains("32 bytes in base64: `adit key 2022-blake3-aes-256-gcm`"), "{out}");
}

#[test]
fn check_warns_of_weak_keys_and_loops() {
    let dir = Dir::new();
    let text = "[[inbound]]\nprotocol = \"snell\"\nlisten = \"0.0.0.0:7000\"\npsk = \"what adit key printed\"\n\
                [[outbound]]\nprotocol = \"snell\"\nserver = \"127.0.0.1:7000\"\npsk = \"TwentyFourCharactersLong\"\n";
    dir.file("adit.toml", text);
    let (status, out, _) = dir.run(&["check"]);
    assert_eq!(status, 0);
    assert!(
        out.contains("psk: the key is a placeholder") && out.contains("snell -> snell -> snell"),
        "{out}"
    );
    assert_eq!(dir.run(&["check", "--strict"]).0, 1);
}
