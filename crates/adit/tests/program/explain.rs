//! `adit explain` and what `adit check` says of rules.

use crate::support::Dir;

const FILE: &str = "\
[[inbound]]
name = \"in\"
protocol = \"mixed\"
listen = \"127.0.0.1:1\"
[[outbound]]
name = \"home\"
protocol = \"direct\"
[[outbound]]
name = \"away\"
protocol = \"snell\"
server = \"a.example:1\"
psk = \"hunter2\"
udp = false
[[outbound]]
name = \"both\"
protocol = \"group\"
members = [{ name = \"home\" }, { name = \"away\" }]
[[set]]
name = \"s\"
path = \"lists/s.txt\"
[[rule]]
port = 25
reject = \"reset\"
[[rule]]
domain-suffix = \"example.com\"
outbound = \"away\"
[[rule]]
set = \"s\"
outbound = \"both\"
";

fn folder() -> Dir {
    let dir = Dir::new();
    dir.file("adit.toml", FILE);
    std::fs::create_dir(dir.path().join("lists")).unwrap();
    dir.file("lists/s.txt", "# offices\n+.example.org\n10.0.0.0/8\n");
    dir
}

#[test]
fn the_way_of_a_request() {
    let dir = folder();
    let explain = |args: &[&str]| {
        let (status, out, err) = dir.run(&[&["explain"], args].concat());
        assert_eq!((status, &*err), (0, ""), "{out}");
        assert!(!out.contains("hunter2"), "{out}");
        out
    };
    let out = explain(&["--to", "www.example.com:443"]);
    let want = "tcp to www.example.com:443, in by in\n  adit.toml:21: no match: port does not hold 443\n  \
                adit.toml:24: match\noutbound: away\n";
    assert_eq!(out, want);
    // Datagrams are refused rather than sent another way.
    let out = explain(&["--to", "www.example.com:443", "--udp"]);
    assert!(out.ends_with("outbound: away\nrefused: the outbound does not carry udp\n"), "{out}");
    let out = explain(&["--to", "a.example:25", "--from", "192.0.2.1"]);
    assert!(out.ends_with("adit.toml:21: match\nrefused: reset\n"), "{out}");
    assert!(out.starts_with("tcp to a.example:25, in by in, from 192.0.2.1\n"), "{out}");
    let out = explain(&["--to", "a.test:80", "--address", "10.0.0.1"]);
    assert!(
        out.ends_with("adit.toml:27: match\noutbound: both\n  one of its members: home, away\n"),
        "{out}"
    );
    let out = explain(&["--to", "a.test:80", "--address", "192.0.2.1", "--udp", "--json"]);
    let answer: serde_json::Value = serde_json::from_str(&out).unwrap();
    assert_eq!((&answer["rule"], &answer["outbound"]), (&serde_json::Value::Null, &"home".into()));
    assert_eq!(answer["passed"][2]["why"], "set does not hold a.test, 192.0.2.1");
}

#[test]
fn sets_that_are_wrong() {
    let dir = folder();
    assert_eq!(dir.run(&["check"]).0, 0);
    dir.file("lists/s.txt", "a.example\n*x.b.example\n");
    for command in [&["check"][..], &["explain", "--to", "a.example:1"]] {
        let (status, out, err) = dir.run(command);
        let said = format!("{out}{err}");
        assert!(
            status == 1 && said.contains("lists/s.txt:2:1: no pattern of a name: *x.b.example\n  "),
            "{said}"
        );
    }
    std::fs::remove_file(dir.path().join("lists/s.txt")).unwrap();
    let (status, out, _) = dir.run(&["check"]);
    assert!(status == 1 && out.contains("adit.toml:20:8: set.path: cannot read lists/s.txt: "), "{out}");
}

#[test]
fn twenty_thousand_rules() {
    let dir = folder();
    let mut text = FILE.to_owned();
    for n in 0..20_000 {
        text.push_str(&format!("[[rule]]\ndomain-suffix = \"n{n}.test\"\noutbound = \"away\"\n"));
    }
    dir.file("adit.toml", &text);
    dir.file("requests", "tcp 192.0.2.1:1 www.n19999.test:443 192.0.2.1\n");
    let (status, out, err) = dir.run(&["explain", "--measure", "requests", "--json"]);
    assert_eq!((status, &*err), (0, ""), "{out}");
    let figures: serde_json::Value = serde_json::from_str(&out).unwrap();
    assert_eq!((&figures["rules"], &figures["matched"]), (&20_003.into(), &1.into()));
}

#[test]
fn private_targets_of_a_server_are_refused_unless_a_key_or_a_rule_allows_them() {
    let server = |more: &str| {
        format!(
            "[[inbound]]\nname = \"in\"\nprotocol = \"snell\"\nlisten = \"127.0.0.1:1\"\npsk = \"hunter2\"\n{more}\
             [[outbound]]\nname = \"home\"\nprotocol = \"direct\"\n\
             [[rule]]\nport = 53\noutbound = \"home\"\n"
        )
    };
    let dir = Dir::new();
    let explain = |text: &str, args: &[&str]| {
        dir.file("adit.toml", text);
        let (status, out, err) = dir.run(&[&["explain"], args].concat());
        assert_eq!((status, &*err), (0, ""), "{out}");
        out
    };
    let (bounded, open) = (server(""), server("allow-private = true\n"));
    for (to, kind) in [
        ("127.0.0.1:80", "127.0.0.1: loopback address"),
        ("[::ffff:10.0.0.1]:80", "10.0.0.1: address of a private network"),
        ("localhost:80", "loopback address"),
        ("255.255.255.255:80", "255.255.255.255: multicast or broadcast address"),
    ] {
        let out = explain(&bounded, &["--to", to]);
        let end = "; allow-private = true in inbound in lets clients reach it\n";
        assert!(out.contains("refused: ") && out.contains(kind) && out.ends_with(end), "{out}");
        assert!(!explain(&open, &["--to", to]).contains("refused"), "{to}");
    }
    assert!(explain(&bounded, &["--to", "127.0.0.1:53", "--udp"]).ends_with("match\noutbound: home\n"));
    assert!(explain(&bounded, &["--to", "192.0.2.1:80"]).ends_with("outbound: home\n"));
    let out = explain(&bounded, &["--to", "a.test:80"]);
    assert!(out.ends_with("  refused if its addresses are private: --address ADDRESS tells\n"), "{out}");
    let out = explain(&bounded, &["--to", "a.test:80", "--address", "192.168.0.1", "--json"]);
    let answer: serde_json::Value = serde_json::from_str(&out).unwrap();
    assert_eq!(answer["private"], "192.168.0.1: address of a private network");
    // An address that may be dialled is enough.
    let out = explain(&bounded, &["--to", "a.test:80", "--address", "10.0.0.1", "--address", "192.0.2.1"]);
    assert!(!out.contains("refused"), "{out}");
}

/// The file's own names and name servers answer, as they would for a connection.
#[test]
fn names_are_looked_up_as_the_file_says() {
    let dir = Dir::new();
    // One exchange of RFC 1035: the question comes back with one address, 10.7.7.7.
    let server = std::net::UdpSocket::bind("127.0.0.1:0").unwrap();
    let at = server.local_addr().unwrap();
    std::thread::spawn(move || {
        let mut bytes = [0; 512];
        while let Ok((len, from)) = server.recv_from(&mut bytes) {
            let name = bytes[12..len].iter().position(|byte| *byte == 0).unwrap() + 13;
            let is_v4 = bytes[name..name + 2] == [0, 1];
            let head = [&bytes[..2], &[0x81, 0x80, 0, 1, 0, u8::from(is_v4), 0, 0, 0, 0]].concat();
            let record: &[u8] = &[0xc0, 12, 0, 1, 0, 1, 0, 0, 0, 60, 0, 4, 10, 7, 7, 7];
            let answer = [&head[..], &bytes[12..name + 4], if is_v4 { record } else { &[] }].concat();
            server.send_to(&answer, from).unwrap();
        }
    });
    let text = format!(
        "[[dns.upstream]]\nserver = \"udp://{at}\"\n[[dns.hosts]]\nname = \"own.test\"\naddress = \"10.8.8.8\"\n\
         [[inbound]]\nname = \"in\"\nprotocol = \"mixed\"\nlisten = \"127.0.0.1:1\"\n\
         [[outbound]]\nname = \"home\"\nprotocol = \"direct\"\n\
         [[rule]]\nprotocol = \"tls\"\noutbound = \"home\"\n\
         [[rule]]\nip-cidr = \"10.7.0.0/16\"\nreject = \"reset\"\n\
         [[rule]]\nip-cidr = \"10.8.0.0/16\"\nreject = \"drop\"\n"
    );
    dir.file("adit.toml", &text);
    let explain = |args: &[&str]| {
        let (status, out, err) = dir.run(&[&["explain"], args].concat());
        assert_eq!((status, &*err), (0, ""), "{out}");
        out
    };
    let out = explain(&["--to", "asked.test:80"]);
    assert!(out.contains("asks for them: 10.7.7.7\n") && out.ends_with("refused: reset\n"), "{out}");
    let out = explain(&["--to", "own.test:80"]);
    assert!(out.contains("asks for them: 10.8.8.8\n") && out.ends_with("refused: drop\n"), "{out}");
    assert!(out.contains("no match: protocol is not known before bytes come\n"), "{out}");
    let out = explain(&["--to", "own.test:80", "--protocol", "tls"]);
    assert!(out.ends_with("match\noutbound: home\n"), "{out}");
}

#[test]
fn files_of_other_programs() {
    let dir = Dir::new();
    dir.file("t.acl", "[bypass_list]\n10.0.0.0/8\n||near.test\n");
    dir.file(
        "ss.json",
        "{\"server\":\"192.0.2.1\",\"server_port\":8388,\"local_port\":1080,\"password\":\"hunter2\",\
         \"method\":\"aes-128-gcm\",\"acl\":\"t.acl\"}",
    );
    dir.file("snell.conf", "[snell-server]\nlisten = 127.0.0.1:1\npsk = hunter2hunter2hunter2\n");
    let explain = |args: &[&str]| {
        let (status, out, err) = dir.run(&[&["explain"], args].concat());
        assert!(!out.contains("hunter2") && !err.contains("hunter2"), "{out}{err}");
        (status, out, err)
    };
    let of = |to: &str| {
        let (status, out, err) = explain(&["--as", "ss-local", "-c", "ss.json", "--to", to]);
        assert_eq!((status, &*err), (0, ""), "{out}");
        out
    };
    assert!(of("a.near.test:80").ends_with("match\noutbound: direct\n"), "{}", of("a.near.test:80"));
    assert!(of("10.1.1.1:80").ends_with("match\noutbound: direct\n"), "{}", of("10.1.1.1:80"));
    let out = of("192.0.2.9:80");
    assert!(out.contains("no rule matches") && !out.ends_with("outbound: direct\n"), "{out}");
    let (status, out, err) = explain(&["--as", "snell-server", "-c", "snell.conf", "--to", "192.0.2.1:80"]);
    assert_eq!((status, &*err), (0, ""), "{out}");
    assert!(out.ends_with("outbound: direct\n"), "{out}");
    let (status, _, err) = explain(&["--as", "sip008", "--to", "192.0.2.1:80"]);
    assert!(status != 0 && err.contains("no file is named"), "{err}");
    let two = ["--as", "ss-local", "-c", "ss.json", "t.acl", "--to", "192.0.2.1:80"];
    assert!(explain(&two).2.contains("name one with -c"));
}
