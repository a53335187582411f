//! First steps of a person who comes from another program.

use crate::support::{Dir, Running, VERSION, echo, finish, link, round_trip, socks5};

const SERVER: &str =
    "\"server\":\"192.0.2.1\",\"server_port\":8388,\"password\":\"hunter2\",\"method\":\"aes-128-gcm\"";

/// One file of each kind, with a word of the adit.toml that it becomes.
fn files() -> [(&'static str, String, &'static str); 12] {
    let snell = "listen = 127.0.0.1:6160\npsk = hunter2hunter2hunter2\n";
    [
        ("s.conf", format!("[snell-server]\n{snell}"), "protocol = \"snell\""),
        ("bom.conf", format!("\u{feff}[snell-server]\r\n{snell}"), "protocol = \"snell\""),
        ("libev.json", format!("{{{SERVER},\"local_port\":1080}}"), "listen = \"127.0.0.1:1080\""),
        ("server.json", format!("{{{SERVER}}}").replace("192.0.2.1", "0.0.0.0"), "\"0.0.0.0:8388\""),
        ("rust.json", format!("{{servers:[{{{SERVER}}}],locals:[{{local_port:1081}}]}}"), "127.0.0.1:1081"),
        ("sip008.json", format!("{{\"version\":1,\"servers\":[{{{SERVER},\"remarks\":\"home\"}}]}}"), "\"home\""),
        ("kcp.json", "{\"localaddr\":\"127.0.0.1:1\",\"remoteaddr\":\"192.0.2.1:29900\",\"key\":\"hunter2\"}".into(), "kcp"),
        ("kcps.json", "{\"listen\":\"127.0.0.1:29900\",\"target\":\"192.0.2.1:80\",\"key\":\"hunter2\"}".into(), "kcp"),
        ("clash.yaml", "mixed-port: 7890\nproxies:\n- {name: a, type: snell, server: b, port: 1, psk: hunter2hunter2hun}\n".into(), "127.0.0.1:7890"),
        ("surge.conf", "[Proxy]\na = snell, b, 1, psk=hunter2hunter2hun, version=4\n".into(), "version = 4"),
        ("box.json", format!("{{\"outbounds\":[{{\"type\":\"shadowsocks\",\"tag\":\"a\",{SERVER}}}]}}"), "shadowsocks"),
        ("links.txt", "ss://YWVzLTEyOC1nY206aHVudGVyMg@192.0.2.1:8388#a\nvmess://x\n".into(), "shadowsocks"),
    ]
}

#[test]
fn every_kind_of_file_is_recognised() {
    let dir = Dir::new();
    for (name, text, word) in files() {
        dir.file(name, &text);
        let (status, toml, err) = dir.run(&["import", name]);
        assert!(status == 0 && toml.contains(word), "{name}: {toml}{err}");
        assert!(toml.contains("hunter2") && !err.contains("hunter2"), "{name}: {err}");
        // Settings of the whole process are there only where the file's program has others.
        assert!(!toml.contains("[log]"), "{name}: {toml}");
        assert!(!name.ends_with("txt") || !toml.contains("[limits]") && !toml.contains("[udp]"), "{toml}");
        let (status, out, err) = finish(dir.adit(&["check", "-"]), &toml);
        assert_eq!(status, 0, "{name}: {out}{err}\n{toml}");
        let (status, out, _) = dir.run(&["check", name]);
        assert!(status == 0 && out.contains("ok\n"), "{name}: {out}");
    }
    let (status, _, err) = dir.run(&["import", "links.txt"]);
    assert!(status == 0 && err.contains("not vmess"), "{err}");
    let (status, out, err) = dir.run(&["import", "--strict", "links.txt"]);
    assert!(status == 1 && out.is_empty() && err.contains("not vmess"), "{err}");
    let (status, out, _) = dir.run(&["check", "--as", "kcptun-server", "kcps.json"]);
    assert!(status == 0 && out.contains("TCP tunnel on 127.0.0.1:29900"), "{out}");
    let sharing = dir.run(&["share", "s.conf", "--host", "a.example", "--form", "surge"]);
    assert!(sharing.0 == 0 && sharing.1.contains("snell, a.example, 6160"), "{sharing:?}");
}

#[test]
fn what_is_no_configuration_is_told_so() {
    let dir = Dir::new();
    dir.file("garbage", "garbage\n");
    dir.file("sub", "dm1lc3M6Ly94Cg==\n");
    dir.file("both.json", "{\"port_password\":{\"8388\":\"hunter2\"},\"method\":\"aes-128-gcm\"}");
    for (args, want) in [
        (&["import", "garbage"][..], "none of the formats that adit reads"),
        (&["import", "sub"], "adit speaks Snell, Shadowsocks and ShadowsocksR, not vmess"),
        (&["import", "trojan://hunter2@h:1"], "ShadowsocksR, not trojan"),
        (&["import", "https://a.example/hunter2"], "curl -s URL | adit import -"),
        (&["run", "both.json"], "adit ss-manager -c both.json"),
        (&["run", "s.conf", "both.json"], "s.conf: cannot read"),
    ] {
        let (status, out, err) = dir.run(args);
        assert!(status == 1 && out.is_empty() && err.contains(want), "{args:?}: {out}{err}");
        assert!(!err.contains("hunter2"), "{err}");
    }
    dir.file("s.conf", "[snell-server]\nlisten = 127.0.0.1:1\npsk = hunter2hunter2hunter2\n");
    dir.file("other.conf", "[snell-server]\nlisten = 127.0.0.1:2\npsk = hunter2hunter2hunter2\n");
    let (status, _, err) = dir.run(&["run", "s.conf", "other.conf"]);
    assert!(status == 1 && err.contains("a file of another program stands alone"), "{err}");
}

#[test]
fn a_file_of_another_program_runs() {
    let dir = Dir::new();
    dir.file("s.conf", "[snell-server]\nlisten = 127.0.0.1:0\npsk = hunter2hunter2hunter2\n");
    let server = Running::start(dir.adit(&["run", "s.conf"]));
    let port = server.address().port();
    let (status, toml, err) =
        dir.run(&["import", &format!("snell://hunter2hunter2hunter2@127.0.0.1:{port}?version=5")]);
    assert!(status == 0 && err.is_empty() && toml.contains("127.0.0.1:1080"), "{err}");
    dir.file("c.toml", &toml.replace("127.0.0.1:1080", "127.0.0.1:0"));
    let client = Running::start(dir.adit(&["run", "c.toml"]));
    round_trip(&mut socks5(client.address(), "127.0.0.1", echo().port()), 10_000);
}

#[test]
fn names_and_versions() {
    let dir = Dir::new();
    let (status, out, err) = finish(dir.command(link(&dir, "ssr-nat"), &["-c", "config.json"]), "");
    assert_eq!((status, &*out), (1, ""));
    assert!(err.starts_with("ssr-nat is not in this build (its rules are those of iptables)"), "{err}");
    assert_eq!(dir.run(&["ssr-nat"]).0, 1);
    for args in [
        &["snell-server", "--version"][..],
        &["snell-server", "-V"],
        &["snell-server", "-v"],
        &["snell-server", "--v"],
    ] {
        let (status, out, _) = dir.run(args);
        let want = format!("snell-server v5.0.1 (adit {})\n", env!("CARGO_PKG_VERSION"));
        assert_eq!((status, out), (0, want), "{args:?}");
    }
    let version = env!("CARGO_PKG_VERSION");
    for (args, want) in [
        (&["version"][..], format!("adit {VERSION}\n")),
        (&["run", "--version"], format!("adit-run {VERSION}\n")),
        (
            &["ss-server", "--version"],
            format!("ss-server (adit {version}), in the place of shadowsocks-libev 3.3.5\n"),
        ),
    ] {
        let (status, out, _) = dir.run(args);
        assert_eq!((status, out), (0, want), "{args:?}");
    }
    for name in ["ss-server", "snell-client", "ssurl", "kcptun-server", "gq-client", "mihomo"] {
        let (status, out, err) = dir.run(&["help", name]);
        assert!(
            status == 0 && out.starts_with(&format!("usage: {name} ")) && err.is_empty(),
            "{name}: {out}{err}"
        );
    }
    assert!(dir.run(&["ss-local", "-h"]).1.contains("in the place of shadowsocks-libev 3.3.5"));
}

#[test]
fn options_of_the_log_stand_before_a_name() {
    let dir = Dir::new();
    dir.file("s.conf", "[snell-server]\nlisten = 127.0.0.1:0\npsk = hunter2hunter2hunter2\n");
    let server = Running::start(dir.adit(&["-v", "--log-format", "json", "snell-server", "-c", "s.conf"]));
    server.address();
    let lines = server.log();
    assert!(lines.contains("\"level\":\"debug\"") && lines.contains("\"message\":\"listening\""), "{lines}");
    let (status, _, err) = dir.run(&["--log-level", "loud", "snell-server", "-c", "s.conf"]);
    assert!(status == 2 && err.contains("loud"), "{err}");
    let (status, _, err) = dir.run(&["-v", "frobnicate"]);
    assert!(status == 2 && err.contains("frobnicate"), "{err}");
}

#[test]
fn mistakes_in_adit_toml_are_shown() {
    let dir = Dir::new();
    for (text, want) in [
        ("[inbound]\nprotocol = \"mixed\"\n", "hint: write [[inbound]] with two brackets on each side\n"),
        ("[[log]]\nlevel = \"info\"\n", "hint: write [log] with one bracket on each side\n"),
        (
            "[[inbound]]\nprotocol = snell\n",
            "  2 | protocol = snell\n    |            ^\n  hint: put texts in quotes",
        ),
        ("[[inbound]]\npsk = hunter2\n", "  2 | psk = *******\n"),
    ] {
        dir.file("adit.toml", text);
        let (status, out, _) = dir.run(&["check"]);
        assert!(status == 1 && out.contains(want) && !out.contains("hunter2"), "{out}");
    }
    let utf16: Vec<u8> = "\u{feff}[[inbound]]\r\nprotocol = \"mixed\"\r\nlisten = \"127.0.0.1:1\"\r\n"
        .encode_utf16()
        .flat_map(u16::to_le_bytes)
        .collect();
    std::fs::write(dir.path().join("adit.toml"), utf16).unwrap();
    assert_eq!(dir.run(&["check"]).0, 0);
}

#[test]
fn a_form_that_cannot_express_one_server_has_the_others() {
    let dir = Dir::new();
    let shadowsocks = |name: &str, port: u16, more: &str| {
        format!(
            "[[inbound]]\nname = \"{name}\"\nprotocol = \"shadowsocks\"\nlisten = \"192.0.2.1:{port}\"\n\
             method = \"aes-128-gcm\"\npassword = \"p\"\n{more}"
        )
    };
    let plugin = "plugin = \"v2ray-plugin\"\nplugin-options = \"server\"\n";
    dir.file("adit.toml", &(shadowsocks("one", 1, plugin) + &shadowsocks("two", 2, "")));
    let (status, out, err) = dir.run(&["share", "--form", "surge"]);
    assert_eq!((status, &*err), (0, ""), "{out}");
    assert!(
        out.starts_with("# one: surge has no form for plugin") && out.contains("\ntwo = ss, 192.0.2.1, 2,"),
        "{out}"
    );
    dir.file("adit.toml", &shadowsocks("one", 1, plugin));
    let (status, out, err) = dir.run(&["share", "--form", "surge"]);
    assert!(status == 1 && out.is_empty() && err.contains("surge has no form for plugin"), "{out}{err}");
    // Without a link there is no picture of one, and the pictures of others stay.
    let all = shadowsocks("one", 1, plugin) + &shadowsocks("two", 2, "");
    dir.file("adit.toml", &all);
    let (status, out, err) = dir.run(&["share", "--form", "surge", "--qr"]);
    assert_eq!((status, &*err), (0, ""), "{out}");
    assert!(out.contains("# one: no QR code: ") && out.contains('\u{2588}'), "{out}");
}

/// A person who adds the first user to a server of one key gets the line, the link and the picture, and they work.
#[test]
fn a_first_user_of_snell_has_a_line_for_every_client() {
    let dir = Dir::new();
    dir.file(
        "adit.toml",
        "[[inbound]]\nprotocol = \"snell\"\nlisten = \"127.0.0.1:7000\"\nallow-private = true\n\
         psk = \"hunter2hunter2hunter2\" # all of us\n",
    );
    let (status, out, err) = dir.run(&["user", "add", "ann", "--first", "--host", "192.0.2.1"]);
    assert!(status == 0 && out.contains("snell ann = snell, 192.0.2.1, 7000, psk="), "{out}{err}");
    assert!(out.contains("snell://") && !out.contains("has no form"), "{out}");
    let text = std::fs::read_to_string(dir.path().join("adit.toml")).unwrap();
    assert!(text.contains("# all of us") && !text.contains("hunter2"), "{text}");
    let psk = text.split("password = \"").nth(1).and_then(|rest| rest.split('"').next()).unwrap();
    dir.file("adit.toml", &text.replace("7000", "0"));
    let server = Running::start(dir.adit(&["run"]));
    let (_, toml, _) = dir.run(&["import", &format!("snell://{psk}@{}?version=5", server.address())]);
    dir.file("c.toml", &toml.replace("127.0.0.1:1080", "127.0.0.1:0"));
    let client = Running::start(dir.adit(&["run", "c.toml"]));
    round_trip(&mut socks5(client.address(), "127.0.0.1", echo().port()), 10_000);
}

/// A link is a key: it is in no log.
#[test]
fn a_link_that_runs_is_not_written_down() {
    let dir = Dir::new();
    let client = Running::start(dir.adit(&["run", "ss://YWVzLTEyOC1nY206aHVudGVyMg@127.0.0.1:1#a"]));
    client.line(", a link, pid ");
    client.line("address=");
    let log = client.log();
    assert!(!log.contains("aHVudGVyMg"), "{log}");
}

#[test]
fn completions_know_values_and_names() {
    let dir = Dir::new();
    let bash = dir.run(&["completions", "bash"]).1;
    for word in ["kcptun-server", "shadowrocket", "singbox", "sing-box", "debug"] {
        assert!(bash.contains(word) || word == "singbox", "{word}");
    }
    for (command, word) in [("key", "2022-blake3-aes-256-gcm"), ("key", "snell"), ("explain", "ADIT-NET-02")]
    {
        let part = bash.split(&format!("adit__subcmd__{command})")).nth(1).unwrap();
        let values = part.lines().nth(1).unwrap();
        assert!(values.split([' ', '"']).any(|value| value == word), "{command}: {values}");
    }
    let bash = dir.run(&["completions", "bash", "ss-server"]).1;
    assert!(bash.contains("--fast-open") && bash.contains("2022-blake3-aes-128-gcm"), "{bash}");
    assert_eq!(dir.run(&["completions", "bash", "--dir", "."]).0, 0);
    for name in ["adit.bash", "snell-server.bash", "sslocal.bash", "kcptun-client.bash"] {
        assert!(dir.path().join(name).exists(), "{name}");
    }
    assert_eq!(dir.run(&["man", "."]).0, 0);
    for name in ["adit.1", "adit-import.1", "adit.toml.5", "snell-server.1", "ss-tunnel.1"] {
        assert!(dir.path().join(name).exists(), "{name}");
    }
    let page = dir.run(&["man", "--page", "adit.toml"]).1;
    assert!(page.contains(".TH adit.toml 5") && page.contains("half\\-close"), "{page}");
    assert!(dir.run(&["man", "--page", "ss-local"]).1.contains("plugin"));
}
