use adit_formats::adit_toml;

use crate::support::{Dir, VERSION, finish};

const BROKEN: &str = "\
[log]
level = \"loud\"

[[inbound]]
protocol = \"mixed\"
lsiten = \"127.0.0.1:1080\"

[[outbound]]
protocol = \"snell\"
server = \"example.com\"
";

const SERVER: &str = "\
[[inbound]]
name = \"home\"
protocol = \"snell\"
listen = \"0.0.0.0:6160\"
psk = \"a key\"
";

#[test]
fn help_teaches() {
    let dir = Dir::new();
    let (status, out, err) = dir.run(&["--help"]);
    assert_eq!((status, &*err), (0, ""));
    for word in ["Examples:", "adit demo", "adit run FILE", "snell-server", "status"] {
        assert!(out.contains(word), "{word}: {out}");
    }
    let (status, out, _) = dir.run(&["--version"]);
    assert_eq!((status, out), (0, format!("adit {VERSION}\n")));
    let (status, out, err) = dir.run(&[]);
    assert_eq!((status, &*out), (2, ""));
    assert!(err.contains("Usage: adit"), "{err}");
    assert_eq!(dir.run(&["rnu"]).0, 2);
    assert_eq!(dir.run(&["run", "--log-level", "loud"]).0, 2);
}

#[test]
fn check_reports_everything_at_once() {
    let dir = Dir::new();
    dir.file("adit.toml", BROKEN);
    let (status, out, err) = dir.run(&["check"]);
    assert_eq!((status, &*err), (1, ""));
    let want = "\
adit.toml:2:9: log.level: unknown value: loud
  hint: write one of error, warn, info, debug, trace
adit.toml:4:1: inbound[0].listen: missing
  hint: for instance listen = \"127.0.0.1:1080\"
adit.toml:6:1: inbound[0].lsiten: unknown key
  hint: did you mean `listen`?
adit.toml:8:1: outbound[0].psk: missing
adit.toml:10:10: outbound[0].server: port is missing
  hint: write a host and a port, for instance example.com:443 or [2001:db8::1]:443
";
    assert_eq!(out, want);
    let (status, out, _) = dir.run(&["check", "--json"]);
    let json: serde_json::Value = serde_json::from_str(&out).unwrap();
    assert_eq!((status, json["diagnostics"].as_array().unwrap().len()), (1, 5));
    assert_eq!(json["diagnostics"][2]["line"], 6);
    // `run` says the same, on standard error.
    let (status, out, err) = dir.run(&["run"]);
    assert_eq!((status, &*out, &*err), (1, "", want));
}

#[test]
fn check_of_good_and_missing_files() {
    let dir = Dir::new();
    let (status, out, _) = dir.run(&["check"]);
    assert_eq!(status, 1);
    assert!(out.starts_with("adit.toml: no such file, nor /etc/adit/adit.toml\n  hint: "), "{out}");
    dir.file("adit.toml", &SERVER.replace("a key", crate::support::PSK));
    let (status, out, _) = dir.run(&["check", "--strict"]);
    assert_eq!((status, &*out), (0, "ok\n  home: Snell v4, v5 on 0.0.0.0:6160, out through direct\n"));
    let (status, out, _) = finish(dir.adit(&["check", "-c", "-"]), BROKEN);
    assert_eq!(status, 1);
    assert!(out.starts_with("stdin:2:9: log.level"), "{out}");
}

#[test]
fn check_reads_files_of_other_programs() {
    let dir = Dir::new();
    dir.file("s.conf", "[snell-server]\npsk = k\ncolour = red\n");
    let check = ["check", "--as", "snell-server", "-c", "s.conf"];
    let (status, out, _) = dir.run(&check);
    assert_eq!(status, 0);
    assert!(out.starts_with("s.conf:3:1: warning: colour: unknown key"), "{out}");
    let (status, out, _) = dir.run(&[&check[..], &["--strict"]].concat());
    assert_eq!(status, 1);
    assert!(out.starts_with("s.conf:3:1: colour: unknown key"), "{out}");
}

#[test]
fn keys_are_random() {
    let dir = Dir::new();
    let key = |args: &[&str]| {
        let (status, out, _) = dir.run(&[&["key"], args].concat());
        assert_eq!(status, 0);
        out.trim_end().to_owned()
    };
    let (one, other) = (key(&[]), key(&[]));
    assert_ne!(one, other);
    assert_eq!((one.len(), key(&["--length", "22"]).len()), (32, 22));
    assert!(one.chars().all(|c| c.is_ascii_alphanumeric()), "{one}");
    assert_eq!(dir.run(&["key", "--length", "8"]).0, 2);
}

#[test]
fn shared_lines() {
    let dir = Dir::new();
    dir.file("adit.toml", SERVER);
    let (status, _, err) = dir.run(&["share"]);
    assert_eq!(status, 1);
    assert!(err.contains("inbound home listens on every address") && err.contains("hint: --host"), "{err}");
    let (status, out, _) = dir.run(&["share", "--host", "a.example", "--form", "surge"]);
    let want = "home = snell, a.example, 6160, psk=\"a key\", version=5, reuse=true, udp-relay=true, block-quic=off\n";
    assert_eq!((status, &*out), (0, want));
    let (status, out, _) = dir.run(&["share", "--host", "a.example", "--qr"]);
    assert_eq!(status, 0);
    for word in [want, "  type: snell\n", "\"server_port\": 6160", "[snell-client]", "snell://", "▀", "█"]
    {
        assert!(out.contains(word), "{word}: {out}");
    }
    // On a dark background light is drawn, on a light one dark: each is the other's negative.
    let qr = |flag: &str| dir.run(&["share", "--host", "a.example", "--form", "surge", flag]).1;
    let (dark, light) = (qr("--qr=dark"), qr("--qr=light"));
    let negative = |c: char| match c {
        '█' => ' ',
        ' ' => '█',
        '▀' => '▄',
        '▄' => '▀',
        other => other,
    };
    let (dark, light) = (dark.split_once('\n').unwrap().1, light.split_once('\n').unwrap().1);
    // The last line is half outside of the picture.
    let whole = |text: &str| text.lines().take(10).map(str::to_owned).collect::<Vec<_>>();
    let negative: Vec<String> = whole(dark).iter().map(|line| line.chars().map(negative).collect()).collect();
    assert!(negative == whole(light) && negative.len() == 10 && !light.contains('\u{1b}'), "{light}");
    assert_eq!(dir.run(&["share", "--host", "a.example", "--inbound", "x"]).0, 1);
    assert_eq!(dir.run(&["share", "--form", "x"]).0, 2);
    let shadow = "[[inbound]]\nname = \"s\"\nprotocol = \"shadowsocks\"\nlisten = \"192.0.2.1:1\"\n\
                  method = \"aes-128-gcm\"\npassword = \"p\"\n";
    dir.file("shadow.toml", shadow);
    let (status, out, _) = dir.run(&["share", "-c", "shadow.toml", "--form", "surge"]);
    assert_eq!((status, &*out), (0, "s = ss, 192.0.2.1, 1, encrypt-method=aes-128-gcm, password=\"p\"\n"));
    let (status, out, _) = dir.run(&["share", "-c", "shadow.toml"]);
    assert!(
        status == 0 && out.contains("opensnell has no form for protocol") && out.contains("ss://"),
        "{out}"
    );
    // The client's file is a whole configuration.
    let users = "[[inbound]]\nname = \"s\"\nprotocol = \"snell\"\nlisten = \"192.0.2.1:1\"\npsk = \"k\"\n\
                 users = [{ name = \"ann\", password = \"a\" }, { name = \"bob\", password = \"b\" }]\n";
    dir.file("users.toml", users);
    let (status, out, _) = dir.run(&["share", "-c", "users.toml", "--user", "bob"]);
    assert_eq!(status, 0);
    assert!(out.contains("\"userkey\": \"b\"") && !out.contains("\"userkey\": \"a\""), "{out}");
    assert!(out.contains("# mihomo has no form for user-key: it has no place"), "{out}");
    let (status, _, err) = dir.run(&["share", "-c", "users.toml", "--user", "eve"]);
    assert!(status == 1 && err.contains("no user of that name: eve"), "{err}");
    let (_, file, _) = dir.run(&["share", "--host", "a.example", "--form", "adit"]);
    assert!(adit_toml::parse("client.toml", &file).is_ok(), "{file}");
}

#[test]
fn lines_of_other_clients() {
    let dir = Dir::new();
    let line = "home = snell, a.example, 6160, psk=\"a key\", version=5, block-quic=on\n";
    let (status, toml, err) = finish(dir.adit(&["import", "-"]), line);
    assert_eq!((status, &*err), (0, ""));
    assert!(toml.contains("psk = \"a key\"\n") && toml.contains("block-quic = \"on\"\n"), "{toml}");
    assert_eq!(finish(dir.adit(&["check", "-c", "-"]), &toml).0, 0, "{toml}");
    let (status, from_link, _) = dir.run(&["import", "snell://a%20key@a.example:6160?version=5#home"]);
    assert!(status == 0 && from_link.contains("psk = \"a key\"\n"), "{from_link}");
    dir.file(
        "c.yaml",
        "proxies:\n  - { name: x, type: snell, server: a, port: 1, psk: secret, smux: { enabled: true } }\n",
    );
    let (status, out, err) = dir.run(&["import", "c.yaml"]);
    assert!(status == 1 && out.is_empty() && !err.contains("secret"), "{err}");
    assert!(err.starts_with("c.yaml:2:62: proxies[0].smux: adit has no such setting"), "{err}");
    assert_eq!(dir.run(&["import", "c.yaml", "--form", "v2ray"]).0, 2);
}

#[test]
fn examples_and_conversion_are_valid() {
    let dir = Dir::new();
    let (_, example, _) = dir.run(&["config", "example"]);
    // The set that a rule of the example names.
    dir.file("office.txt", "example.com\n10.0.0.0/8\n");
    assert_eq!(finish(dir.adit(&["check", "-c", "-"]), &example).0, 0);
    let (_, docs, _) = dir.run(&["config", "docs"]);
    assert!(docs.starts_with("### top of the file\n"), "{docs}");
    dir.file("s.conf", "[snell-server]\nlisten = 127.0.0.1:1\npsk = k\ncolour = red\n");
    let (status, toml, err) = dir.run(&["import", "s.conf"]);
    assert_eq!(status, 0);
    assert!(err.starts_with("s.conf:4:1: warning: colour: unknown key"), "{err}");
    assert_eq!(finish(dir.adit(&["check", "-c", "-"]), &toml).0, 0, "{toml}");
    dir.file("both.conf", "[snell-server]\npsk = k\n[snell-client]\npsk = k\nserver = a:1\n");
    assert_eq!(dir.run(&["convert", "both.conf"]).0, 1);
    assert_eq!(dir.run(&["convert", "both.conf", "--as", "snell-client"]).0, 0);
}

#[test]
fn completions_and_manual_pages() {
    let dir = Dir::new();
    for shell in ["bash", "zsh", "fish"] {
        let (status, out, _) = dir.run(&["completions", shell]);
        assert!(status == 0 && out.contains("status"), "{shell}");
    }
    let (status, out, _) = dir.run(&["man"]);
    assert!(status == 0 && out.contains(".TH adit 1"), "{out}");
    assert_eq!(dir.run(&["man", "."]).0, 0);
    assert!(dir.path().join("adit-run.1").exists());
}

#[test]
fn nobody_at_the_socket() {
    let dir = Dir::new();
    let (status, _, err) = dir.run(&["status", "--socket", "none.sock"]);
    assert_eq!(status, 1);
    assert!(err.starts_with("error: no answer on none.sock"), "{err}");
}
