use std::time::Duration;

use adit_model::{
    AddressFamilies, Config, Inbound, InboundProtocol, LocalProtocols, ObfsClient, ObfsServer,
    OutboundProtocol, Pace, SnellClient, SnellMode, SnellServer, SnellVersion, SnellVersions,
};
use proptest::prelude::*;

use super::*;

fn load(program: SnellProgram, text: &str) -> Loaded {
    match parse(program, None, "t.conf", text) {
        Ok(loaded) => loaded,
        Err(found) => panic!("{found}\n{text}"),
    }
}

fn server(keys: &str) -> Loaded {
    load(SnellProgram::Server, &format!("[snell-server]\npsk = secret\n{keys}"))
}

fn client(keys: &str) -> Loaded {
    load(SnellProgram::Client, &format!("[snell-client]\nserver = a.example:1\npsk = secret\n{keys}"))
}

fn snell_server(config: &Config) -> (&Inbound, &SnellServer) {
    let InboundProtocol::Snell(server) = &config.inbounds[0].protocol else { panic!("not snell") };
    (&config.inbounds[0], server)
}

fn snell_client(config: &Config) -> &SnellClient {
    let OutboundProtocol::Snell(client) = &config.outbounds[0].protocol else { panic!("not snell") };
    client
}

#[test]
fn server_defaults() {
    let loaded = server("");
    assert!(loaded.diagnostics.is_empty());
    let (inbound, snell) = snell_server(&loaded.config);
    assert_eq!(inbound.listen, ["0.0.0.0:2333".parse().unwrap()]);
    assert_eq!((snell.psk.common().unwrap().expose(), snell.obfs), ("secret", ObfsServer::Off));
    let dial = &loaded.config.outbounds[0].dial;
    assert_eq!(
        (dial.family, dial.timeout, dial.fast_open),
        (AddressFamilies::Any, Duration::from_secs(5), false)
    );
    assert_eq!(loaded.config.limits.idle, None);
    assert_eq!(loaded.config.log.level, Level::Info);
}

#[test]
fn server_values() {
    let loaded = server(
        "listen = ::0:6160, 0.0.0.0:6160\nobfs = tls\nipv6 = off\negress-interface = eth0\n\
         dns = 1.1.1.1, [::1]:54\ntfo = yes\nversion = 5\n",
    );
    let warning = loaded.diagnostics.to_string();
    assert_eq!(loaded.diagnostics.len(), 1, "{warning}");
    assert!(warning.contains("eth0 is for outgoing connections alone"), "{warning}");
    let loopback = server("listen = 127.0.0.1:6160, [::1]:6160\negress-interface = eth0\n");
    assert_eq!(loopback.diagnostics.to_string(), "", "nobody else reaches these listeners");
    let (inbound, snell) = snell_server(&loaded.config);
    assert_eq!(inbound.listen, ["[::]:6160".parse().unwrap(), "0.0.0.0:6160".parse().unwrap()]);
    assert_eq!(inbound.socket.interface, None);
    assert!(inbound.socket.fast_open);
    assert_eq!(snell.obfs, ObfsServer::Tls);
    let dial = &loaded.config.outbounds[0].dial;
    assert_eq!((dial.family, dial.egress.interface.as_deref()), (AddressFamilies::V4Only, Some("eth0")));
    let dns: Vec<String> = dial.dns.iter().map(ToString::to_string).collect();
    assert_eq!(dns, ["1.1.1.1:53", "[::1]:54"]);
    assert!(dial.fast_open);
}

#[test]
fn client_defaults_and_values() {
    let loaded = client("");
    assert!(loaded.diagnostics.is_empty());
    let inbound = &loaded.config.inbounds[0];
    assert_eq!(inbound.listen, ["127.0.0.1:1080".parse().unwrap()]);
    let InboundProtocol::Local(local) = &inbound.protocol else { panic!("not local") };
    assert_eq!(local.accepts, LocalProtocols::Mixed);
    assert_eq!(loaded.config.outbounds[0].dial.timeout, Duration::from_secs(8));
    assert!(!snell_client(&loaded.config).reuse);
    let loaded = client("obfs = http\nreuse = true\nversion = v4\ntfo = 1\n");
    let snell = snell_client(&loaded.config);
    assert_eq!((snell.reuse, &snell.obfs), (true, &ObfsClient::Http("a.example".into())));
    assert!(loaded.config.outbounds[0].dial.fast_open && !loaded.config.inbounds[0].socket.fast_open);
    let loaded = client("obfs = tls\nobfs-host = b.example\n");
    assert_eq!(snell_client(&loaded.config).obfs, ObfsClient::Tls("b.example".into()));
}

#[test]
fn address_families() {
    for (keys, want) in [
        ("", AddressFamilies::Any),
        ("dns-ip-preference = default\n", AddressFamilies::Any),
        ("dns-ip-preference = prefer-ipv6\n", AddressFamilies::Any),
        ("dns-ip-preference = prefer-ipv4\n", AddressFamilies::PreferV4),
        ("dns-ip-preference = ipv4-only\n", AddressFamilies::V4Only),
        ("dns-ip-preference = ipv6-only\n", AddressFamilies::V6Only),
        ("ipv6 = false\ndns-ip-preference = prefer-ipv6\n", AddressFamilies::V4Only),
        ("ipv6 = false\n", AddressFamilies::V4Only),
    ] {
        let loaded = server(keys);
        assert!(loaded.diagnostics.is_empty(), "{keys}{}", loaded.diagnostics);
        assert_eq!(loaded.config.outbounds[0].dial.family, want, "{keys}");
    }
    let text = "[snell-server]\npsk = k\nipv6 = false\ndns-ip-preference = ipv6-only\n";
    let found = parse(SnellProgram::Server, None, "t.conf", text).unwrap_err().to_string();
    assert!(found.starts_with("t.conf:4:1: dns-ip-preference: ipv6 = false leaves"), "{found}");
}

/// The versions of a file, and their meaning.
#[test]
fn versions_and_modes() {
    use SnellVersion::{V1, V2, V3, V4, V5, V6};
    let only = SnellVersions::Only;
    for (keys, want) in [
        ("", only(V5)),
        ("version = 4\n", only(V4)),
        ("version = V5\n", only(V5)),
        ("mode = default\n", only(V6(SnellMode::Default))),
        ("mode = unshaped\n", only(V6(SnellMode::Unshaped))),
        ("version = 6\n", only(V6(SnellMode::Default))),
        ("version = 6\nmode = unsafe-raw\nlisten = 127.0.0.1:1\n", only(V6(SnellMode::UnsafeRaw))),
        ("version = auto\n", SnellVersions::Auto),
    ] {
        let text = format!("[snell-server]\npsk = twelve bytes\n{keys}");
        let loaded = parse(SnellProgram::Server, None, "t.conf", &text).unwrap();
        assert!(loaded.diagnostics.is_empty(), "{keys}{}", loaded.diagnostics);
        let InboundProtocol::Snell(server) = &loaded.config.inbounds[0].protocol else { panic!("a server") };
        assert_eq!(server.versions, want, "{keys}");
    }
    for (keys, want, reuse) in [
        ("", V5, false),
        ("version = 1\n", V1, false),
        ("version = 2\n", V2, true),
        ("version = v3\n", V3, false),
        ("mode = unsafe-raw\nreuse = true\n", V6(SnellMode::UnsafeRaw), true),
        ("version = 6\nmode = unshaped\n", V6(SnellMode::Unshaped), false),
    ] {
        let text = format!("[snell-client]\npsk = twelve bytes\nserver = a:1\n{keys}");
        let loaded = parse(SnellProgram::Client, None, "t.conf", &text).unwrap();
        assert!(loaded.diagnostics.is_empty(), "{keys}{}", loaded.diagnostics);
        let client = snell_client(&loaded.config);
        assert_eq!((client.version, client.reuse), (want, reuse), "{keys}");
    }
}

#[test]
fn versions_modes_keys_and_obfs_that_contradict_each_other() {
    for (program, keys, want) in [
        (SnellProgram::Server, "mode = shaped\n", "4:1: mode: unknown value: shaped"),
        (SnellProgram::Server, "mode = default\nversion = 5\n", "4:1: mode: only version 6 has modes"),
        (SnellProgram::Server, "mode = default\nversion = auto\n", "4:1: mode: only version 6 has modes"),
        (SnellProgram::Client, "mode = default\nversion = 4\n", "4:1: mode: only version 6 has modes"),
        (SnellProgram::Server, "mode = default\nobfs = http\n", "5:1: obfs: version 6 has no obfs"),
        (SnellProgram::Client, "version = 6\nobfs = tls\n", "5:1: obfs: version 6 has no obfs"),
        (SnellProgram::Server, "version = auto\nobfs = http\n", "5:1: obfs: version 6 has no obfs"),
        (SnellProgram::Client, "version = 7\n", "4:1: version: no version of Snell"),
    ] {
        let text = format!("[{}]\npsk = twelve bytes\nserver = a:1\n{keys}", program.name());
        let found = parse(program, None, "t.conf", &text).unwrap_err().to_string();
        assert!(found.contains(want), "{found}");
    }
    for program in [SnellProgram::Server, SnellProgram::Client] {
        let text = format!("[{}]\npsk = too short\nserver = a:1\nmode = default\n", program.name());
        let found = parse(program, None, "t.conf", &text).unwrap_err().to_string();
        assert!(found.contains("2:1: psk: version 6 wants 12 to 255 bytes"), "{found}");
    }
}

#[test]
fn warnings_name_key_and_line() {
    for (program, keys, want) in [
        (
            SnellProgram::Server,
            "pks = x\n",
            "3:1: warning: pks: unknown key, so it has no effect\n  hint: did you mean `psk`?",
        ),
        (SnellProgram::Server, "colour = red\n", "3:1: warning: colour: unknown key"),
        (SnellProgram::Server, "udp = maybe\n", "udp: neither true nor false, so true is used"),
        (SnellProgram::Server, "udp = false\nquic = no\nbrutal = 0\nbrutal-mbps = 5\n", ""),
        (
            SnellProgram::Server,
            "brutal-mbps = 5\n",
            "3:1: warning: brutal-mbps: has no effect without brutal",
        ),
        (SnellProgram::Server, "mode =\n", "3:1: warning: mode: empty, so it counts as not written"),
        (SnellProgram::Server, "quic = 1\n", ""),
        (SnellProgram::Client, "server = b:1\nudp = 0\nquic = auto\n", ""),
        (SnellProgram::Server, "brutal = on\nbrutal-mbps = 100\n", ""),
        (
            SnellProgram::Server,
            "dns-ip-preference = prefer-ipv5\n",
            "unknown value, so it has no effect: prefer-ipv5",
        ),
        (
            SnellProgram::Server,
            "version = 7\n",
            "3:1: warning: version: unknown version, so 4 and 5 are served",
        ),
        (SnellProgram::Server, "version = 3\n", "3:1: warning: version: only version 3 is served then"),
        (
            SnellProgram::Client,
            "server = b:1\nversion = 3\nreuse = true\n",
            "5:1: warning: reuse: version 3 never",
        ),
        (
            SnellProgram::Server,
            "ipv6 = maybe\n",
            "3:1: warning: ipv6: neither true nor false, so true is used",
        ),
        (SnellProgram::Server, "[extra]\nx = 1\n", "3:1: warning: [extra]: unknown section"),
        (SnellProgram::Server, "[snell-client]\nx = 1\n", ""),
        (SnellProgram::Client, "server = b:1\nlisten = 0.0.0.0:1080\n", "4:1: warning: listen: everybody"),
        (SnellProgram::Client, "server = b:1\ndns = 1.1.1.1\n", "4:1: warning: dns: unknown key"),
        (SnellProgram::Client, "server = b:1\n[snell-tun]\nenable = false\nmtu = 9000\n", ""),
        (SnellProgram::Server, "[snell-tun]\nenable = true\n", ""),
    ] {
        let loaded = load(program, &format!("[{}]\npsk = secret\n{keys}", program.name()));
        let text = loaded.diagnostics.to_string();
        assert_eq!(loaded.diagnostics.len(), usize::from(!want.is_empty()), "{keys}{text}");
        assert!(text.contains(want), "{text}");
        assert_eq!(loaded.strict().is_err(), !want.is_empty());
    }
    let loaded = load(SnellProgram::Server, "udp = 1\nkey = secret\n[snell-server]\npsk = %(key)s\n");
    assert_eq!(
        loaded.diagnostics.to_string(),
        "t.conf:1:1: warning: udp: stands outside [snell-server], so it has no effect\n"
    );
    assert_eq!(snell_server(&loaded.config).1.psk.common().unwrap().expose(), "secret");
}

#[test]
fn rates() {
    let brutal = |mbps, gain| Some(Pace { mbps, brutal: Some(gain) });
    for (keys, want) in [
        ("", None),
        ("brutal = false\nbrutal-mbps = x\nbrutal-cwnd-gain = 500\n", None),
        ("brutal = true\nbrutal-mbps = 100\n", brutal(100, 15)),
        ("brutal = 1\nbrutal-mbps = 1\nbrutal-cwnd-gain = 20\n", brutal(1, 20)),
        ("brutal = yes\nbrutal-mbps = 7\nbrutal-cwnd-gain = -3\n", brutal(7, 15)),
        ("brutal = yes\nbrutal-mbps = 7\nbrutal-cwnd-gain = x\n", brutal(7, 15)),
        ("pacing-mbps = 40\n", Some(Pace { mbps: 40, brutal: None })),
    ] {
        let server = load(SnellProgram::Server, &format!("[snell-server]\npsk = k\n{keys}"));
        let client = load(SnellProgram::Client, &format!("[snell-client]\npsk = k\nserver = a:1\n{keys}"));
        assert_eq!(server.config.inbounds[0].socket.pace, want, "{keys}");
        assert_eq!(client.config.outbounds[0].dial.pace, want, "{keys}");
        assert_eq!(
            (server.config.outbounds[0].dial.pace, client.config.inbounds[0].socket.pace),
            (None, None)
        );
    }
    for (keys, want) in [
        ("brutal = true\n", "t.conf:3:1: brutal: there is no rate\n  hint: write brutal-mbps = 100"),
        ("brutal = true\nbrutal-mbps = 0\n", "t.conf:4:1: brutal-mbps: no rate: 0\n"),
        ("brutal = true\nbrutal-mbps = -1\n", "t.conf:4:1: brutal-mbps: no rate: -1\n"),
        (
            "brutal = 1\nbrutal-mbps = 5\nbrutal-cwnd-gain = 4\n",
            "5:1: brutal-cwnd-gain: the module takes 5 to 80",
        ),
        ("brutal = 1\nbrutal-mbps = 5\npacing-mbps = 5\n", "5:1: pacing-mbps: `brutal-mbps` sets the same"),
        ("pacing-mbps = fast\n", "3:1: pacing-mbps: no rate: fast"),
    ] {
        let text = format!("[snell-server]\npsk = k\n{keys}");
        let found = parse(SnellProgram::Server, None, "t.conf", &text).unwrap_err();
        assert!(found.to_string().contains(want), "{found}");
        assert_eq!(found.len(), 1, "{found}");
    }
}

#[test]
fn errors_come_at_once_with_their_places() {
    for (program, text, wants) in [
        (SnellProgram::Server, "", &["t.conf:1:1: there is no section [snell-server]"][..]),
        (
            SnellProgram::Server,
            "\n[Snell-Server]\npsk = x\n",
            &["2:1: there is no section [snell-server]\n  hint: write [snell-server]"],
        ),
        (SnellProgram::Server, "[snell-server]\n", &["1:1: psk: missing"]),
        (SnellProgram::Server, "[snell-server]\npsk = #x\n", &["2:1: psk: it is empty"]),
        (
            SnellProgram::Server,
            "[snell-server]\nPSK = x\n",
            &["psk: missing", "PSK: unknown key", "did you mean `psk`?"],
        ),
        (
            SnellProgram::Server,
            "[snell-server]\nlisten = 1,:1,:1\nobfs = none\ndns = dns.google\nabc = 1\n",
            &[
                "2:1: listen: port is missing: 1\n",
                "2:1: listen: listed twice: [::]:1",
                "3:1: obfs: unknown value: none",
                "4:1: dns: bad",
                "1:1: psk: missing",
                "5:1: warning: abc",
            ],
        ),
        (
            SnellProgram::Client,
            "[snell-client]\npsk = x\nlisten = off\n",
            &["1:1: server: missing", "3:1: listen: a client needs a local port"],
        ),
        (
            SnellProgram::Client,
            "[snell-client]\npsk = x\nserver = a\nversion = 9\n",
            &["3:1: server: port is missing", "4:1: version: no version of Snell"],
        ),
        (
            SnellProgram::Client,
            "[snell-client]\npsk = x\nserver = a:1\nobfs = http\nobfs-host = `a b`\n",
            &["5:1: obfs-host: host holds"],
        ),
        (SnellProgram::Server, "[snell-server]\npsk = x\nwhat\nthat\n", &["3:1: no `=`", "4:1: no `=`"]),
    ] {
        let found = parse(program, None, "t.conf", text).unwrap_err();
        crate::read::loaded::assert_inside(text, &found);
        for want in wants {
            assert!(found.to_string().contains(want), "wanted {want}\nfound {found}");
        }
    }
}

#[test]
fn no_key_is_ever_shown() {
    for text in [
        "[snell-server]\npsk = hunter2 # x\nlisten = %(psk)s\nobfs = %(psk)s\ndns = %(psk)s\negress-interface = %(psk)s-long-long\n",
        "[snell-client]\npsk = hunter2\nserver = %(psk)s:x\nlisten = %(psk)s\nversion = %(psk)s\n",
        "[snell-server]\npsk hunter2\n",
        "[snell-server]\npsk = `hunter2\n",
        "psk = hunter2\n",
    ] {
        for program in [SnellProgram::Server, SnellProgram::Client] {
            let found = parse(program, None, "t.conf", text).unwrap_err();
            assert!(!found.to_string().contains("hunter2"), "{found}");
        }
    }
    let loaded = server("");
    assert!(!format!("{loaded:?}").contains("secret"));
}

#[test]
fn no_slip_shows_a_key() {
    for (program, text) in [
        (
            SnellProgram::Server,
            "[snell-server]\nlisten=:1\npsk=hunter2\nobfs = off\ndns = 1.1.1.1\npsk = hunter2\nversion = 5\n",
        ),
        (
            SnellProgram::Client,
            "[snell-client]\nserver = a:1\npsk = hunter2\nlisten = :1\npsk=hunter2\nudp = 0\npsk = `hunter2`\n",
        ),
    ] {
        for cut in 0..text.len() {
            let slipped = format!("{}{}", &text[..cut], &text[cut + 1..]);
            let found = match parse(program, None, "t", &slipped) {
                Ok(loaded) => loaded.diagnostics,
                Err(found) => found,
            };
            assert!(!found.to_string().contains("hunter2"), "{found}\n{slipped}");
        }
    }
}

#[test]
fn floods_end_soon() {
    let references = format!("[snell-server]\npsk = {}\n", "%(".repeat(400_000));
    parse(SnellProgram::Server, None, "t", &references).unwrap_err();
    let outside: String = (0..50_000).map(|i| format!("k{i}=%(k{i})s\n")).collect();
    parse(SnellProgram::Server, None, "t", &format!("{outside}[snell-server]\npsk = x\n")).unwrap();
    let unknown: String = (0..100_000).map(|i| format!("k{i}=\n")).collect();
    parse(SnellProgram::Server, None, "t", &format!("[snell-server]\npsk = x\n{unknown}")).unwrap();
}

#[test]
fn a_cut_key_is_noticed() {
    let loaded = load(SnellProgram::Server, "[snell-server]\npsk = ab#cd\n");
    assert_eq!(snell_server(&loaded.config).1.psk.common().unwrap().expose(), "ab");
    assert!(loaded.diagnostics.to_string().contains("2:1: warning: psk: `#` and `;` start a comment"));
}

#[test]
fn the_level_comes_from_the_flags() {
    let loaded = parse(SnellProgram::Server, Some(Level::Debug), "t", "[snell-server]\npsk = x").unwrap();
    assert_eq!(loaded.config.log.level, Level::Debug);
}

/// Pieces from which nearly right files are made.
const PIECES: &[&str] = &[
    "[snell-server]\n",
    "[snell-client]\n",
    "[DEFAULT]\n",
    "psk",
    "=",
    " = ",
    "k\n",
    "listen = ",
    ":1,",
    "[::1]:2\n",
    "server = a:1\n",
    "obfs = http\n",
    "obfs-host = ",
    "é",
    "`",
    "\"\"\"",
    "\\\n",
    "\\",
    "#",
    ";",
    "%(",
    "psk)s",
    "\n",
    "egress-interface = eth0\n",
    "dns = 1.1.1.1,::1\n",
    "\u{feff}",
    "\r\n",
    "tfo = y\n",
    "[",
    "]",
    "\"",
    "version = 4\n",
];

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn any_bytes(data in proptest::collection::vec(any::<u8>(), 0..200)) {
        fuzz_ini(&data);
    }

    #[test]
    fn nearly_right_files(pieces in proptest::collection::vec(proptest::sample::select(PIECES), 0..30)) {
        let text = pieces.concat();
        fuzz_ini(text.as_bytes());
        fuzz_ini(format!("[snell-client]\npsk = k\nserver = a:1\n[snell-server]\npsk = k\n{text}").as_bytes());
    }
}
