//! Files of shadowsocks-libev and shadowsocks-rust, checked and turned into adit's own.

use crate::support::{Dir, Running, echo, finish, round_trip, socks5};

const SERVER: &str =
    "\"server\":\"127.0.0.1\",\"server_port\":8388,\"password\":\"hunter2\",\"method\":\"aes-128-gcm\"";

#[test]
fn files_become_adits_own() {
    let dir = Dir::new();
    let local = format!("{{{SERVER},\"local_port\":1080,\"mode\":\"tcp_and_udp\"}}");
    let two = local.replace("\"127.0.0.1\"", "[\"192.0.2.1\",\"192.0.2.2\"]");
    let rust = format!("{{servers:[{{{SERVER},mode:'tcp_and_udp'}}],locals:[{{local_port:1080}}]}}");
    let list = format!("{{\"version\":1,\"servers\":[{{{SERVER},\"remarks\":\"home\"}}]}}");
    for (name, text, words) in [
        ("ss-server", local.clone(), "protocol = \"shadowsocks\""),
        ("ss-local", local.clone(), "protocol = \"mixed\""),
        ("ss-local", two, "members = "),
        ("ss-tunnel", local.replace('}', ",\"tunnel_address\":\"192.0.2.1:80\"}"), "protocol = \"tunnel\""),
        ("ssserver", rust.clone(), "protocol = \"shadowsocks\""),
        ("sslocal", rust, "protocol = \"mixed\""),
        ("sip008", list, "name = \"home\""),
    ] {
        dir.file("old.json", &text);
        let (status, out, err) = dir.run(&["check", "--as", name, "old.json"]);
        assert!(status == 0 && out.contains("ok\n"), "{name}: {out}{err}");
        let (status, toml, err) = dir.run(&["import", "--as", name, "old.json"]);
        assert_eq!((status, &*err), (0, ""), "{name}");
        let (_, same, hint) = dir.run(&["convert", "--as", name, "old.json"]);
        assert!(same == toml && hint.contains("`adit import`"), "{name}: {hint}");
        assert!(toml.contains(words) && toml.contains("hunter2"), "{name}: {toml}");
        dir.file("adit.toml", &toml);
        let (status, out, err) = dir.run(&["check", "adit.toml"]);
        assert_eq!(status, 0, "{name}: {out}{err}\n{toml}");
    }
}

#[test]
fn what_was_converted_moves_bytes() {
    let dir = Dir::new();
    let server = Running::start(dir.adit(&[
        "ss-server",
        "-s",
        "127.0.0.1",
        "-p",
        "0",
        "-k",
        "k",
        "-m",
        "aes-128-gcm",
    ]));
    let old = format!(
        "{{\"server\":\"127.0.0.1\",\"server_port\":{},\"local_port\":1080,\"password\":\"k\",\"method\":\"aes-128-gcm\"}}",
        server.address().port()
    );
    dir.file("old.json", &old);
    let (_, toml, err) = dir.run(&["import", "--as", "ss-local", "old.json"]);
    dir.file("adit.toml", &toml.replace("127.0.0.1:1080", "127.0.0.1:0"));
    let local = Running::start(dir.adit(&["run", "-c", "adit.toml"]));
    round_trip(&mut socks5(local.address(), "127.0.0.1", echo().port()), 10_000);
    assert_eq!(err, "");
}

#[test]
fn settings_that_adit_toml_lacks_are_named() {
    let dir = Dir::new();
    for (name, key) in [
        ("ss-server", "\"acl\":\"/etc/a.acl\""),
        ("ss-server", "\"manager_address\":\"127.0.0.1:1\""),
        ("ss-server", "\"user\":\"nobody\""),
        ("ss-manager", "\"port_password\":{\"1\":\"hunter2\"}"),
    ] {
        dir.file("old.json", &format!("{{{SERVER},{key}}}"));
        let (status, out, err) = dir.run(&["convert", "--as", name, "old.json"]);
        let word = key.split('"').nth(1).unwrap();
        assert!(
            status == 1 && err.contains(word) && err.contains("no such setting"),
            "{name} {key}: {out}{err}"
        );
        assert!(out.is_empty() && !err.contains("hunter2"), "{out}{err}");
    }
    dir.file("old.json", &format!("{{{SERVER},\"acl\":\"none.acl\"}}"));
    let (status, out, _) = dir.run(&["check", "--as", "ss-server", "old.json"]);
    assert!(status == 1 && out.contains("none.acl"), "{out}");
    dir.file("bad.json", "{\"server_port\":1,,}");
    let (status, out, _) = dir.run(&["check", "--as", "ss-server", "bad.json"]);
    assert!(status == 1 && out.contains("bad.json:1:"), "{out}");
    let (status, _, err) = finish(dir.adit(&["convert", "bad.json"]), "");
    assert!(status == 1 && err.contains("--as"), "{err}");
    let (status, _, err) = dir.run(&["check", "--as", "nobody", "bad.json"]);
    assert!(status == 2 && err.contains("ss-server"), "{err}");
}
