use std::path::PathBuf;
use std::time::Duration;

use adit_model::map::Map;
use adit_model::{
    AddressFamilies, AdminHttp, Captured, CapturedBy, ClientCover, ControlSocket, Day, Egress, Expiry,
    HalfClose, InboundProtocol, Kcp, KcpClient, KcpParity, KeyForm, Level, Limits, Local, LocalProtocols,
    Log, ObfsClient, ObfsServer, Pace, Plugin, Quic, Reply, SNELL_MODES, Secret, ServerCover,
    ShadowsocksClient, ShadowsocksKey, ShadowsocksServer, ShadowsocksServerKey, SnellClient, SnellKeys,
    SnellServer, SnellVersion, SnellVersions, SocketOptions, StateFile, TcpOptions, Udp, User, UserLimits,
    Users,
};
use adit_proto::kcp::crypt::KcpMethod;
use adit_proto::kcp::fec::Shards;
use proptest::prelude::*;

use super::*;
use crate::read::value::MAX_LISTEN;

const HEAD: &str = "[[inbound]]\nprotocol = \"mixed\"\nlisten = \"127.0.0.1:1080\"\n";
const SNELL_OUT: &str = "[[outbound]]\nprotocol = \"snell\"\nserver = \"a.example:1\"\npsk = \"k\"\n";
const SS: &str = "[[outbound]]\nprotocol = \"shadowsocks\"\nserver = \"a.example:1\"\npassword = \"MDEyMzQ1Njc4OWFiY2RlZg==\"\n";
const SNELL_IN: &str = "[[inbound]]\nprotocol = \"snell\"\nlisten = \":1\"\npsk = \"k\"\n";

fn load(text: &str) -> Config {
    match parse("t.toml", text) {
        Ok(loaded) => loaded.config,
        Err(found) => panic!("{found}\n{text}"),
    }
}

fn rejected(text: &str) -> String {
    match parse("t.toml", text) {
        Ok(_) => panic!("accepted: {text}"),
        Err(found) => {
            crate::read::loaded::assert_inside(text, &found);
            found.to_string()
        }
    }
}

#[test]
fn the_least_file() {
    let config = load(HEAD);
    assert_eq!(config.inbounds.len(), 1);
    assert_eq!(&*config.inbounds[0].name, "mixed");
    assert_eq!(config.outbounds.len(), 1);
    assert_eq!(config.outbounds[0].protocol, OutboundProtocol::Direct);
    assert_eq!(config.log, Log::default());
    assert_eq!(config.limits, Limits::default());
}

#[test]
fn the_example_is_valid() {
    let config = load(EXAMPLE);
    assert_eq!((config.inbounds.len(), config.outbounds.len()), (12, 15));
    assert_eq!(config.inbounds[0].outbound, "home");
    assert_eq!(config.inbounds[2].outbound, "direct");
    assert_eq!(config.inbounds[1].listen[0].to_string(), "[::]:1081");
    assert_eq!(load(&to_toml(&config)), config);
    // Every line that is commented out is a valid choice as well.
    let on = EXAMPLE.replace("# cores", "cores").replace("# allow-lan", "allow-lan");
    load(&on.replace("# interface", "interface").replace("# geoip", "geoip"));
    assert_eq!((config.rules.len(), config.sets.len()), (4, 1));
}

#[test]
fn groups() {
    const TWO: &str =
        "[[inbound]]\nprotocol = \"mixed\"\nlisten = \"127.0.0.1:1\"\n[[outbound]]\nprotocol = \"group\"\n";
    const REST: &str =
        "\n[[outbound]]\nprotocol = \"direct\"\n[[outbound]]\nname = \"no\"\nprotocol = \"reject\"\n";
    let with = |keys: &str| parse("t.toml", &format!("{TWO}{keys}{REST}"));
    let config =
        with("members = [{ name = \"no\" }, { name = \"direct\", tcp-weight = 0 }]\ncheck-interval = \"5s\"")
            .unwrap()
            .config;
    let OutboundProtocol::Group(group) = &config.outbounds[0].protocol else { panic!("not a group") };
    let members: Vec<_> = group.members.iter().map(|m| (&*m.outbound, m.tcp_weight, m.udp_weight)).collect();
    assert_eq!(members, [("no", 100, 100), ("direct", 0, 100)]);
    assert_eq!(group.check.interval_in_use.as_secs(), 5);
    assert_eq!(load(&to_toml(&config)), config);
    for (keys, want) in [
        ("", "4:1: outbound[0].members: missing"),
        ("members = []", "6:11: outbound[0].members: the group has no members"),
        (
            "members = [{ name = \"dirct\" }]",
            "6:21: outbound[0].members[0].name: no such outbound: dirct\n  hint: did you mean `direct`?",
        ),
        ("members = [{ name = \"group\" }]", "a group cannot hold a group"),
        ("members = [{ name = \"no\" }, { name = \"no\" }]", "one of them is listed twice"),
        ("members = [{ name = \"no\", tcp-weight = 101 }]", "not from 0 to 100"),
        (
            "members = [{ name = \"no\" }]\ncheck-url = \"https://a\"",
            "https is not supported here: use http://",
        ),
        ("members = [{ name = \"no\" }]\ncheck-url = \"ftp://a\"", "the address must begin with http:// or"),
        ("members = [{ name = \"no\" }]\ncheck-dns = \"a\"", "bad name server: a"),
        ("members = [{ name = \"no\" }]\ncheck-timeout = \"0s\"", "must be greater than 0"),
        ("members = [{ name = \"no\" }]\ncheck-interval-in-use = \"1m\"", "longer than check-interval"),
        ("members = [{ name = \"no\" }]\ntimeout = \"1m\"", "protocol group has no such key"),
    ] {
        let found = with(keys).unwrap_err().to_string();
        assert!(found.contains(want), "wanted {want}\nfound {found}");
    }
}

#[test]
fn values() {
    let text = format!(
        "cores = 2\n[log]\nlevel = \"trace\"\nformat = \"json\"\ntime = false\n[limits]\nidle = \"off\"\n{SNELL_OUT}\
         name = \"out\"\nobfs = \"tls\"\nreuse = true\nhalf-close = \"on\"\nversion = 4\nipv6 = false\n\
         egress-interface = \"eth0\"\nbind-address = [\"192.0.2.1\", \"2001:db8::1\"]\nfwmark = 7\ndns = \"1.1.1.1\"\ntimeout = \"1m\"\n{SNELL_IN}obfs = \"http\"\noutbound = \"out\"\n"
    );
    let config = load(&text);
    assert_eq!((config.cores, config.log.level, config.limits.idle), (Some(2), Level::Trace, None));
    let outbound = &config.outbounds[0];
    let OutboundProtocol::Snell(client) = &outbound.protocol else { panic!("not snell") };
    assert_eq!(client.obfs, ObfsClient::Tls("a.example".into()));
    assert_eq!((client.reuse, client.half_close), (true, HalfClose::On));
    assert_eq!(outbound.dial.family, AddressFamilies::V4Only);
    let egress = &outbound.dial.egress;
    assert_eq!((egress.interface.as_deref(), egress.mark), (Some("eth0"), Some(7)));
    assert_eq!(
        (egress.v4.unwrap().to_string(), egress.v6.unwrap().to_string()),
        ("192.0.2.1".into(), "2001:db8::1".into())
    );
    assert_eq!(outbound.dial.dns[0].to_string(), "1.1.1.1:53");
    assert_eq!(outbound.dial.timeout, Duration::from_secs(60));
}

#[test]
fn inline_and_dotted_forms_are_read_alike() {
    let inline =
        "log = { level = \"warn\" }\ninbound = [{ protocol = \"mixed\", listen = \"127.0.0.1:1080\" }]\n";
    let dotted = format!("log.level = \"warn\"\n{HEAD}");
    assert_eq!(load(inline), load(&dotted));
}

#[test]
fn omitted_names_are_made_unique() {
    let config = load(&format!("{HEAD}{}{SNELL_IN}name = \"mixed-2\"\n", HEAD.replace("1080", "1081")));
    let names: Vec<&str> = config.inbounds.iter().map(|i| &*i.name).collect();
    assert_eq!(names, ["mixed", "mixed-3", "mixed-2"]);
}

#[test]
fn errors_name_place_and_remedy() {
    let lan = "[[inbound]]\nprotocol = \"socks\"\nlisten = [\"127.0.0.1:1\", \":2\"]\n";
    for (text, wants) in [
        (String::new(), &["t.toml:1:1: inbound: there is none"][..]),
        ("a = ".into(), &["t.toml:1:"]),
        (
            format!("{HEAD}lsiten = 1\n"),
            &["t.toml:4:1: inbound[0].lsiten: unknown key\n  hint: did you mean `listen`?"],
        ),
        (
            format!("{HEAD}psk = \"x\"\n"),
            &["4:1: inbound[0].psk: protocol mixed has no such key\n  hint: it belongs to snell"],
        ),
        (
            format!("{HEAD}reply = \"soon\"\n"),
            &["4:9: inbound[0].reply: unknown value: soon\n  hint: write one of early, connected"],
        ),
        (
            format!("{HEAD}outbound = \"dirct\"\n"),
            &["4:12: inbound[0].outbound: no such outbound: dirct\n  hint: did you mean `direct`?"],
        ),
        (format!("{HEAD}{HEAD}"), &["6:10: inbound[1].listen: 127.0.0.1:1080 is taken by inbound[0]"]),
        (
            format!("{HEAD}name = \"a\"\n{SNELL_IN}name = \"a\"\n"),
            &["9:8: inbound[1].name: the name is taken: a"],
        ),
        (
            lan.into(),
            &[
                "3:26: inbound[0].listen: everybody who reaches [::]:2 could use this proxy\n  hint: add users",
            ],
        ),
        (SNELL_IN.replace("\"k\"", "\"\""), &["4:7: inbound[0].psk: empty"]),
        (SNELL_IN.replace("psk", "#"), &["1:1: inbound[0].psk: missing"]),
        (
            format!("{SNELL_IN}obfs = \"none\"\n"),
            &["5:8: inbound[0].obfs: unknown value: none\n  hint: write one of off, http, tls"],
        ),
        (
            "[[inbound]]\nprotocol = \"tunnel\"\nlisten = \":1\"\n".into(),
            &["1:1: inbound[0].target: missing"],
        ),
        (format!("{}users = []\n", HEAD.replace("127.0.0.1", "")), &["3:10: inbound[0].listen: everybody"]),
        ("[[inbound]]\nprotocol = \"mixed\"\nlisten = []\n".into(), &["3:10: inbound[0].listen: empty"]),
        ("[[inbound]]\nlisten = \":1\"\n".into(), &["1:1: inbound[0].protocol: missing"]),
        ("[[inbound]]\nprotocol = \"mixed\"\n".into(), &["1:1: inbound[0].listen: missing"]),
        (
            "[[inbound]]\nprotocol = \"mixed\"\nlisten = 1080\n".into(),
            &["3:10: inbound[0].listen: expected a text in quotes, found integer"],
        ),
        (
            format!("{HEAD}users = [{{ name = \"a:b\", password = \"\" }}]\n"),
            &["users[0].name: a colon", "users[0].password: empty"],
        ),
        (
            format!("{HEAD}{SNELL_OUT}timeout = 10\n"),
            &["8:11: outbound[0].timeout: a duration needs a unit\n  hint: write \"10s\" for seconds"],
        ),
        (
            format!("{HEAD}{SNELL_OUT}timeout = \"0s\"\n"),
            &["8:11: outbound[0].timeout: timeout must be greater than 0"],
        ),
        (format!("{HEAD}{SNELL_OUT}version = 7\n"), &["8:11: outbound[0].version: not from 1 to 6"]),
        (
            format!("{HEAD}{SNELL_OUT}version = 6\n"),
            &["7:7: outbound[0].psk: version 6 wants 12 to 255 bytes\n  hint: `adit key`"],
        ),
        (
            format!("{HEAD}{}version = 6\nobfs = \"tls\"\n", SNELL_OUT.replace("\"k\"", "\"twelve bytes\"")),
            &["9:8: outbound[0].obfs: version 6 has no obfs\n  hint: leave it out"],
        ),
        (
            format!("{HEAD}{SNELL_OUT}version = 5\nmode = \"unshaped\"\n"),
            &["9:8: outbound[0].mode: only version 6 has modes\n  hint: write version = 6 as well"],
        ),
        (
            format!("{HEAD}{SNELL_OUT}mode = \"shaped\"\n"),
            &[
                "8:8: outbound[0].mode: unknown value: shaped\n  hint: write one of default, unshaped, unsafe-raw",
            ],
        ),
        (
            format!("{HEAD}{SNELL_OUT}version = 2\nreuse = false\n"),
            &["9:9: outbound[0].reuse: version 2 always reuses connections"],
        ),
        (
            format!("{HEAD}{SNELL_OUT}version = 3\nreuse = true\n"),
            &["9:9: outbound[0].reuse: version 3 never reuses connections"],
        ),
        (
            format!(
                "{}version = \"auto\"\nmode = \"unsafe-raw\"\n",
                SNELL_IN.replace("\"k\"", "\"twelve bytes\"")
            ),
            &["6:8: inbound[0].mode: version = \"auto\" takes default and unshaped\n  hint: leave it out"],
        ),
        (
            format!("{SNELL_IN}version = \"auto\"\n"),
            &["4:7: inbound[0].psk: version 6 wants 12 to 255 bytes"],
        ),
        (
            format!("{}version = 6\nmode = \"unsafe-raw\"\n", SNELL_IN.replace("\"k\"", "\"twelve bytes\"")),
            &["3:10: inbound[0].listen: unsafe-raw asks for no key: everybody who reaches"],
        ),
        (format!("{HEAD}{SNELL_OUT}obfs-host = \"h\"\n"), &["8:13: outbound[0].obfs-host: obfs is off"]),
        (
            format!("{HEAD}{SNELL_OUT}obfs = \"http\"\nobfs-host = \"a\\r\\nb\"\n"),
            &["9:13: outbound[0].obfs-host: host holds"],
        ),
        (
            format!("{HEAD}{SNELL_OUT}ipv6 = true\nfamily = \"any\"\n"),
            &["8:8: outbound[0].ipv6: `family` sets the same"],
        ),
        (
            format!("{HEAD}[[outbound]]\nprotocol = \"reject\"\ndns = []\n"),
            &["6:1: outbound[0].dns: protocol reject has no such key"],
        ),
        (
            format!("cores = 0\n{HEAD}[limits]\nidle = \"0s\"\n"),
            &["1:9: cores: not from 1 to 1024", "6:8: limits.idle: ends every"],
        ),
        (
            format!("{HEAD}{SS}method = \"aes-128-gmc\"\n"),
            &["unknown method: aes-128-gmc\n  hint: did you mean `aes-128-gcm`?"],
        ),
        (format!("{HEAD}{SS}method = \"none\"\nkey = \"x\"\n"), &["outbound[0].key: stands for password"]),
        (
            format!("{HEAD}{SS}method = \"2022-blake3-aes-256-gcm\"\n"),
            &[
                "outbound[0].password: key 1 for 2022-blake3-aes-256-gcm must be 32 bytes, got: 16\n  hint: 2022-blake3-aes-256-gcm needs 32 bytes in base64: `adit key 2022-blake3-aes-256-gcm` makes them",
            ],
        ),
        (
            format!("{HEAD}{SS}method = \"none\"\nplugin = \"p\"\nobfs = \"tls\"\n"),
            &["outbound[0].obfs: the plugin carries the stream already"],
        ),
        (
            format!("{HEAD}{SS}method = \"none\"\nplugin-options = \"p\"\n"),
            &["outbound[0].plugin-options: no plugin is set"],
        ),
        (format!("log = 1\n{HEAD}"), &["1:7: log: expected a table, found integer"]),
        ("inbound = [1]\n".into(), &["1:12: inbound[0]: expected a table"]),
    ] {
        let found = rejected(&text);
        for want in wants {
            assert!(found.contains(want), "wanted {want}\nfound {found}");
        }
    }
}

#[test]
fn all_errors_come_at_once() {
    let found =
        rejected("cores = 0\nbogus = 1\n[[inbound]]\nprotocol = \"mixed\"\nlisten = \"x\"\nreply = 1\n");
    assert_eq!(found.matches("t.toml:").count(), 4, "{found}");
    assert!(!found.contains("there is none"));
}

#[test]
fn no_key_is_ever_shown() {
    for text in [
        "psk = \"hunter2hunter2\n",
        "[[inbound]]\nprotocol = \"snell\"\npsk = \"hunter2hunter2\" x\n",
        "[[inbound]]\nprotocol = \"snell\"\npsk = [\"hunter2hunter2\"]\n",
        "[[inbound]]\nprotocol = \"mixed\"\npsk = \"hunter2hunter2\"\nusers = [\"a:hunter2hunter2\"]\n",
    ] {
        assert!(!rejected(text).contains("hunter2"), "{text}");
    }
    let config = load(&SNELL_IN.replace("\"k\"", "\"hunter2\""));
    assert!(!format!("{config:?}").contains("hunter2"));
}

#[test]
fn no_slip_shows_a_key() {
    let text = format!(
        "{HEAD}users = [{{ name = \"a\", password = \"hunter2\" }}]\n{}[[inbound]]\nlisten = \":2\"\n\
         psk = \"hunter2\"\nprotocol = \"snell\"\n",
        SNELL_OUT.replace("\"k\"", "\"hunter2\"")
    );
    load(&text);
    for cut in 0..text.len() {
        let slipped = format!("{}{}", &text[..cut], &text[cut + 1..]);
        if let Err(found) = parse("t.toml", &slipped) {
            crate::read::loaded::assert_inside(&slipped, &found);
            assert!(!found.to_string().contains("hunter2"), "{found}\n{slipped}");
        }
    }
}

#[test]
fn a_flood_of_errors_ends_soon() {
    let keys: String = (0..60_000).map(|i| format!("k{i}=1,")).collect();
    let text = format!("{HEAD}users = [{{ {}a=1 }}]\n", keys);
    assert!(rejected(&text).ends_with("more not shown\n"));
}

#[test]
fn sizes_are_bounded() {
    let long = format!("{HEAD}#{}", "x".repeat(MAX_LEN));
    assert_eq!(parse("t.toml", &long).unwrap_err().to_string(), "t.toml: longer than 16384 KiB\n");
    let listen: Vec<String> = (0..=MAX_LISTEN).map(|i| format!("\"127.0.0.1:{}\"", i + 1)).collect();
    let text = format!("[[inbound]]\nprotocol = \"mixed\"\nlisten = [{}]\n", listen.join(","));
    assert!(rejected(&text).contains("more than 64 entries"));
    let deep = format!("a = {}{}", "[".repeat(5000), "]".repeat(5000));
    rejected(&deep);
    rejected(&format!("{}b = 1", "a.".repeat(5000)));
}

fn words() -> impl Strategy<Value = String> {
    proptest::string::string_regex("[a-zA-Z0-9 #=;,'\"\\\\`%()${}éß中😀\u{7f}\n\t-]{1,24}").unwrap()
}

fn plain(max: usize) -> impl Strategy<Value = Box<str>> {
    proptest::string::string_regex(&format!("[a-z0-9é\"\\\\ -]{{1,{max}}}")).unwrap().prop_map(Into::into)
}

fn host() -> impl Strategy<Value = Box<str>> {
    proptest::string::string_regex("[a-z]{1,9}(\\.[a-z0-9-]{1,5}){0,2}[a-z]").unwrap().prop_map(Into::into)
}

fn target() -> impl Strategy<Value = adit_proto::wire::Target> {
    (host(), 1..=u16::MAX)
        .prop_map(|(host, port)| adit_proto::wire::Target::new(host.as_bytes(), port).unwrap())
}

fn interface_name() -> impl Strategy<Value = Option<Box<str>>> {
    proptest::option::of(proptest::string::string_regex("[a-z0-9.@-]{1,15}").unwrap().prop_map(Into::into))
}

fn log_strategy() -> impl Strategy<Value = Log> {
    let level = proptest::sample::select(rows::LEVELS).prop_map(|(_, level)| level);
    let format = proptest::sample::select(rows::FORMATS).prop_map(|(_, format)| format);
    let file = proptest::option::of("/[a-z ]{1,9}");
    let max_size = Log::MIN_MAX_SIZE..1 << 40;
    (level, format, any::<(bool, bool)>(), file, max_size, 0_u8..=100).prop_map(
        |(level, format, (time, destinations), file, max_size, keep)| Log {
            level,
            format,
            time,
            destinations,
            file: file.map(PathBuf::from),
            max_size,
            keep,
        },
    )
}

fn limits_strategy() -> impl Strategy<Value = Limits> {
    let idle = proptest::option::of(1_u64..10_000_000);
    let memory = proptest::option::of(Limits::MIN_CARRIER_MEMORY..1 << 40);
    (
        idle,
        0_u64..100_000_000,
        (0_u64..100_000, 0_u64..1_000_000),
        proptest::option::of(1_usize..10_000),
        proptest::option::of(1_usize..1000),
        memory,
    )
        .prop_map(|(idle, drain, (answered, unanswered), total, per, carrier_memory)| Limits {
            idle: idle.map(Duration::from_millis),
            drain: Duration::from_millis(drain),
            half_close: Duration::from_millis(answered),
            half_close_unanswered: Duration::from_millis(unanswered),
            unauthenticated: total,
            unauthenticated_per_source: per,
            carrier_memory,
        })
}

fn udp_strategy() -> impl Strategy<Value = Udp> {
    let mtu = proptest::option::of(576_u16..);
    (60_000_u64..10_000_000, 1_usize..10_000, any::<(bool, bool, bool)>(), 0_u8..64, mtu).prop_map(
        |(idle, flows, (ecn, fragment, gather), dscp, mtu)| Udp {
            idle: Duration::from_millis(idle),
            flows,
            ecn,
            dscp,
            fragment,
            mtu,
            gather,
        },
    )
}

fn egress_strategy() -> impl Strategy<Value = Egress> {
    let v4 = proptest::option::of((1_u32..0xe000_0000).prop_map(std::net::Ipv4Addr::from));
    let v6 = proptest::option::of((1_u128 << 124..1 << 126).prop_map(std::net::Ipv6Addr::from));
    (interface_name(), v4, v6, proptest::option::of(1_u32..)).prop_map(|(interface, v4, v6, mark)| Egress {
        interface,
        v4,
        v6,
        mark,
    })
}

fn dial_strategy() -> impl Strategy<Value = Dial> {
    let family = proptest::sample::select(rows::FAMILIES).prop_map(|(_, family)| family);
    let dns = proptest::collection::vec((any::<std::net::IpAddr>(), 1..=u16::MAX), 0..3);
    let carrier = proptest::option::of((kcp_strategy(), target(), 1_usize..1024));
    let open = (any::<bool>(), tcp_strategy());
    (family, egress_strategy(), dns, open, 1_u64..10_000_000, carrier).prop_map(
        |(family, egress, dns, (fast_open, tcp), timeout, carrier)| Dial {
            family,
            egress,
            dns: dns.into_iter().map(|server| SocketAddr::from(server).into()).collect(),
            fast_open,
            tcp,
            timeout: Duration::from_millis(timeout),
            carrier: carrier.map(|(kcp, server, sessions)| {
                Box::new(KcpClient { sessions, ..KcpClient::new(kcp, server) })
            }),
            ..Dial::default()
        },
    )
}

fn tcp_strategy() -> impl Strategy<Value = TcpOptions> {
    let buffer = || proptest::option::of(1..=TcpOptions::MAX_BUFFER);
    (1_u64..=32_767, buffer(), buffer(), any::<bool>()).prop_map(
        |(keep_alive, send_buffer, receive_buffer, multipath)| TcpOptions {
            keep_alive: Duration::from_secs(keep_alive),
            send_buffer,
            receive_buffer,
            multipath,
        },
    )
}

fn kcp_strategy() -> impl Strategy<Value = Kcp> {
    let crypt = proptest::sample::select(&KcpMethod::ALL[..]);
    let parity = (0_usize..100, 0_usize..100).prop_map(|numbers| match numbers {
        (0, _) => KcpParity::Off,
        (data, parity) => Shards::new(data, parity).map_or(KcpParity::Measured, KcpParity::Fixed),
    });
    let version = proptest::sample::select(rows::link::VERSIONS).prop_map(|(_, version)| version);
    (words(), crypt, parity, 128_usize..=1500, any::<bool>(), version).prop_map(
        |(key, crypt, parity, mtu, compression, version)| Kcp {
            parity,
            mtu,
            compression,
            version,
            ..Kcp::new(Secret::new(key), crypt)
        },
    )
}

#[test]
fn carriers() {
    let text = |keys: &str| {
        format!(
            "[[inbound]]\nprotocol = \"tunnel\"\nlisten = \":1\"\ntarget = \"a:1\"\n\n[[outbound]]\n\
             protocol = \"direct\"\n{keys}"
        )
    };
    let good = "carrier = \"kcp\"\ncarrier-key = \"k\"\ncarrier-server = \"b:2\"\ncarrier-parity = \"4/2\"\n";
    let config = parse("t.toml", &text(good)).unwrap().config;
    let carrier = config.outbounds[0].dial.carrier.as_ref().unwrap();
    let parity = KcpParity::Fixed(Shards::new(4, 2).unwrap());
    assert_eq!((carrier.server.to_string(), carrier.kcp.parity), ("b:2".into(), parity));
    assert_eq!((carrier.kcp.crypt, carrier.half_close), (KcpMethod::Aes128Gcm, false));
    for (keys, want) in [
        ("carrier = \"kcp\"\ncarrier-key = \"k\"\n", "outbound[0].carrier-server: missing"),
        ("carrier = \"kcp\"\ncarrier-server = \"b:2\"\n", "outbound[0].carrier-key: missing"),
        ("carrier-mtu = 1000\n", "outbound[0].carrier-mtu: no carrier is set, so this key has no effect"),
        ("carrier = \"quic\"\n", "outbound[0].carrier: "),
    ] {
        let found = parse("t.toml", &text(keys)).unwrap_err().to_string();
        assert!(found.contains(want), "{found}");
    }
}

#[test]
fn snowflake_is_a_carrier() {
    let inbound = |keys: &str| {
        format!(
            "[[inbound]]\nprotocol = \"shadowsocks\"\nlisten = \":1\"\nmethod = \"aes-256-gcm\"\npassword = \"p\"\n\
             {keys}\n[[outbound]]\nprotocol = \"direct\"\n"
        )
    };
    let outbound = |keys: &str| {
        format!(
            "[[inbound]]\nprotocol = \"tunnel\"\nlisten = \":1\"\ntarget = \"a:1\"\n\n[[outbound]]\n\
             protocol = \"shadowsocks\"\nserver = \"a:1\"\nmethod = \"aes-256-gcm\"\npassword = \"p\"\n\
             carrier = \"snowflake\"\nsnowflake-broker = \"https://b.example/x\"\n{keys}"
        )
    };
    let config = parse("t.toml", &outbound("snowflake-ice = \"stun:s.example\"\n")).unwrap().config;
    let carrier = config.outbounds[0].dial.carrier.as_ref().unwrap();
    assert_eq!(carrier.server.to_string(), "b.example:443");
    assert_eq!(carrier.snowflake.as_ref().unwrap().ice[0].to_string(), "s.example:3478");
    assert!(!config.carries_datagrams("outbound"), "streams alone");
    let names = config.server_names();
    assert!(["b.example", "s.example"].iter().all(|name| names.contains(*name)), "{names:?}");
    for (text, want) in [
        (
            outbound("network = \"tcp-and-udp\"\n"),
            "outbound[0].network: carrier = \"snowflake\" carries streams",
        ),
        (outbound("plugin = \"x\"\n"), "outbound[0].plugin: a plugin takes the place of TCP"),
        (outbound("carrier-key = \"k\"\n"), "outbound[0].carrier-key: another carrier is set"),
        (
            outbound("snowflake-ice = \"turn:a:1\"\n"),
            "outbound[0].snowflake-ice: \"turn:a:1\" is no STUN server",
        ),
        (outbound("snowflake-max = 0\n"), "outbound[0].snowflake-max: not from 1 to 64"),
        (
            outbound("snowflake-utls-imitate = \"netscape\"\n"),
            "outbound[0].snowflake-utls-imitate: unknown name",
        ),
        (outbound("pacing-mbps = 3\n"), "outbound[0].pacing-mbps: a carrier has a pace of its own"),
        (
            outbound("").replace("snowflake-broker = \"https://b.example/x\"", ""),
            "outbound[0].snowflake-broker: missing",
        ),
        (inbound("carrier = \"snowflake\"\n"), "inbound[0].snowflake-certificate: missing"),
        (
            inbound("carrier = \"snowflake\"\nsnowflake-tls = \"acme\"\n"),
            "inbound[0].snowflake-acme-names: missing",
        ),
        (
            inbound("carrier = \"snowflake\"\nsnowflake-tls = \"acme\"\nsnowflake-certificate = \"/a\"\n"),
            "inbound[0].snowflake-certificate: snowflake-tls is acme",
        ),
        (
            inbound("carrier = \"snowflake\"\nsnowflake-acme-folder = \"/a\"\n"),
            "inbound[0].snowflake-acme-folder: snowflake-tls is files",
        ),
        (
            inbound("carrier = \"snowflake\"\nsnowflake-tls = \"acme\"\nsnowflake-acme-names = \"../x\"\n"),
            "inbound[0].snowflake-acme-names: \"../x\" is no name",
        ),
        (
            inbound("carrier = \"snowflake\"\nsnowflake-tls = \"off\"\nsnowflake-certificate = \"/a\"\n"),
            "inbound[0].snowflake-certificate: snowflake-tls is off",
        ),
        (inbound("snowflake-tls = \"off\"\n"), "inbound[0].snowflake-tls: no carrier is set"),
        (
            inbound("carrier = \"snowflake\"\nsnowflake-tls = \"off\"\nnetwork = \"udp\"\n"),
            "inbound[0].network: carrier = \"snowflake\" carries streams",
        ),
        // Ports of DNS take datagrams unless they are told otherwise.
        (
            "[[inbound]]\nprotocol = \"dns\"\nlisten = \":1\"\ncarrier = \"snowflake\"\nsnowflake-tls = \"off\"\n\
             [[outbound]]\nprotocol = \"direct\"\n"
                .to_owned(),
            "inbound[0].network: carrier = \"snowflake\" carries streams alone\n  hint: write network = \"tcp\"",
        ),
    ] {
        let found = parse("t.toml", &text).unwrap_err().to_string();
        assert!(found.contains(want), "{want}\n{found}");
    }
}

fn client_strategy() -> impl Strategy<Value = SnellClient> {
    let obfs = prop_oneof![
        Just(ObfsClient::Off),
        host().prop_map(ObfsClient::Http),
        host().prop_map(ObfsClient::Tls)
    ];
    let half_close = prop_oneof![Just(HalfClose::Auto), Just(HalfClose::On), Just(HalfClose::Late)];
    let quic = prop_oneof![Just(Quic::Auto), Just(Quic::On), Just(Quic::Off), Just(Quic::Block)];
    let switches = (any::<bool>(), any::<bool>(), half_close, quic);
    (target(), words(), snell_version(), obfs, switches).prop_map(
        |(server, psk, version, obfs, (reuse, udp, half_close, quic))| SnellClient {
            server,
            psk: snell_psk(psk, &version.psk_lens()),
            client_id: None,
            version,
            obfs: if version.has_obfs() { obfs } else { ObfsClient::Off },
            reuse: version.fixed_reuse().unwrap_or(reuse),
            half_close,
            udp,
            quic,
        },
    )
}

fn snell_version() -> impl Strategy<Value = SnellVersion> {
    let mode = proptest::sample::select(SNELL_MODES).prop_map(|(_, mode)| mode);
    (1_u8..=6, mode).prop_map(|(number, mode)| SnellVersion::new(number, mode).unwrap())
}

fn snell_psk(text: String, lens: &std::ops::RangeInclusive<usize>) -> Secret {
    Secret::new(if lens.contains(&text.len()) { text } else { text + "and something more" })
}

fn snell_server(
    psk: String,
    version: Option<SnellVersion>,
    obfs: ObfsServer,
    (udp, quic): (bool, bool),
) -> SnellServer {
    let versions = version.map_or(SnellVersions::Auto, SnellVersions::Only);
    let obfs = if versions.has_obfs() { obfs } else { ObfsServer::Off };
    SnellServer { psk: snell_psk(psk, &versions.psk_lens()).into(), versions, obfs, udp, quic }
}

fn user_limits() -> impl Strategy<Value = UserLimits> {
    let size = || proptest::option::of(1..=1_u64 << 60);
    let most = || proptest::option::of(1..=1_u32 << 20);
    let day = (0..100_000_u64).prop_map(|day| Expiry::from(Day::of(day * 86_400)));
    let time =
        (0..24_u32, 0..60_u32).prop_map(|(h, m)| format!("2031-05-06T{h:02}:{m:02}:59Z").parse().unwrap());
    let expires = proptest::option::of(prop_oneof![day, time]);
    (size(), proptest::option::of(1..=28_u8), expires, size(), most(), most()).prop_map(
        |(quota, reset_day, expires, rate, connections, addresses)| UserLimits {
            quota,
            reset_day: quota.and(reset_day),
            expires,
            rate,
            connections,
            addresses,
        },
    )
}

/// Users with limits, and whether they name themselves.
fn snell_users() -> impl Strategy<Value = Option<(bool, Vec<User>)>> {
    let user = (plain(9), words(), user_limits()).prop_map(|(name, key, limits)| User {
        name: name.into(),
        key: snell_psk(key, &(12..=255)),
        limits,
    });
    proptest::option::of((any::<bool>(), proptest::collection::vec(user, 1..4)))
}

fn with_users(psk: SnellKeys, users: Option<(bool, Vec<User>)>, versions: SnellVersions) -> SnellKeys {
    let Some((named, users)) = users else { return psk };
    match (Users::new(users), psk) {
        (Ok(users), SnellKeys::Common(psk)) if named || !versions.is_sealed() => SnellKeys::Named(psk, users),
        (Ok(users), _) => SnellKeys::Each(users),
        (Err(_), psk) => psk,
    }
}

fn shadowsocks_key() -> impl Strategy<Value = ShadowsocksKey> {
    let form = proptest::sample::select(&[KeyForm::Password, KeyForm::Base64][..]);
    let old = ["none", "aes-256-cfb", "aes-128-gcm", "table"].map(|name| name.parse().unwrap());
    let old = (proptest::sample::select(old.to_vec()), words(), form).prop_map(|(method, text, form)| {
        let text = if form == KeyForm::Base64 { "A".repeat(44) } else { text };
        ShadowsocksKey::new(method, Secret::new(text), form).unwrap()
    });
    let new = Just("2022-blake3-aes-128-gcm".parse().unwrap()).prop_map(|method| {
        ShadowsocksKey::new(method, Secret::new(KEY), KeyForm::Password).expect("16 bytes")
    });
    prop_oneof![old, new]
}

const KEY: &str = "MDEyMzQ1Njc4OWFiY2RlZg==";

fn plugin() -> impl Strategy<Value = Plugin> {
    let options = prop_oneof![Just("".into()), plain(20)];
    let transports = proptest::sample::select(rows::TRANSPORTS).prop_map(|(_, transports)| transports);
    (plain(9), options, proptest::collection::vec(plain(5), 0..3), transports)
        .prop_map(|(program, options, args, transports)| Plugin { program, options, args, transports })
}

fn shadowsocks_client() -> impl Strategy<Value = ShadowsocksClient> {
    let cover = prop_oneof![
        Just(ClientCover::default()),
        host().prop_map(|host| ClientCover::Obfs(ObfsClient::Tls(host))),
        plugin().prop_map(ClientCover::Plugin),
    ];
    let transports = proptest::sample::select(rows::TRANSPORTS).prop_map(|(_, transports)| transports);
    (target(), shadowsocks_key(), transports, cover)
        .prop_map(|(server, key, transports, cover)| ShadowsocksClient { server, key, transports, cover })
}

fn shadowsocks_server() -> impl Strategy<Value = ShadowsocksServer> {
    let obfs = proptest::sample::select(rows::OBFS).prop_map(|(_, obfs)| ServerCover::Obfs(obfs));
    let cover = prop_oneof![obfs, plugin().prop_map(ServerCover::Plugin)];
    let transports = proptest::sample::select(rows::TRANSPORTS).prop_map(|(_, transports)| transports);
    let replay = proptest::sample::select(rows::REPLAY).prop_map(|(_, replay)| replay);
    let user = |(name, limits): (Box<str>, UserLimits)| User {
        name: name.into(),
        key: Secret::new("A".repeat(22)),
        limits,
    };
    let users = proptest::option::of((plain(9), user_limits()).prop_map(user));
    (shadowsocks_key(), users, transports, cover, replay).prop_map(
        |(key, users, transports, cover, replay)| {
            let users = users.filter(|_| key.text().expose() == KEY);
            let key = ShadowsocksServerKey::with_users(key, users.into_iter().collect::<Vec<_>>()).unwrap();
            ShadowsocksServer { key, transports, cover, replay }
        },
    )
}

fn outbound_strategy() -> impl Strategy<Value = Outbound> {
    let protocol = prop_oneof![
        Just(OutboundProtocol::Direct),
        Just(OutboundProtocol::Reject),
        client_strategy().prop_map(OutboundProtocol::Snell),
        shadowsocks_client().prop_map(OutboundProtocol::Shadowsocks)
    ];
    (plain(20), dial_strategy(), protocol, pace_strategy()).prop_map(|(name, mut dial, protocol, pace)| {
        let has_server = matches!(protocol, OutboundProtocol::Snell(_) | OutboundProtocol::Shadowsocks(_));
        dial.pace = pace.filter(|_| has_server && dial.carrier.is_none());
        let dial = if protocol == OutboundProtocol::Reject { Dial::default() } else { dial };
        Outbound { name: Tag::from(&*name), dial, protocol }
    })
}

fn pace_strategy() -> impl Strategy<Value = Option<Pace>> {
    let pace = (Pace::MBPS, proptest::option::of(Pace::GAINS));
    proptest::option::of(pace.prop_map(|(mbps, brutal)| Pace { mbps, brutal }))
}

fn local_strategy() -> impl Strategy<Value = Local> {
    let accepts =
        prop_oneof![Just(LocalProtocols::Socks), Just(LocalProtocols::Http), Just(LocalProtocols::Mixed)];
    let users =
        proptest::collection::btree_map(plain(9), (words().prop_map(Secret::new), user_limits()), 0..3);
    let reply = prop_oneof![Just(Reply::Early), Just(Reply::Connected)];
    (accepts, users, reply).prop_map(|(accepts, users, reply)| Local {
        accepts,
        users: users
            .into_iter()
            .map(|(name, (key, limits))| User { name: name.into(), key, limits })
            .collect(),
        reply,
        open_to: Vec::new(),
    })
}

fn inbound_strategy() -> impl Strategy<Value = Inbound> {
    let obfs = proptest::sample::select(rows::OBFS).prop_map(|(_, obfs)| obfs);
    let transports = proptest::sample::select(rows::TRANSPORTS).prop_map(|(_, transports)| transports);
    let protocol = prop_oneof![
        local_strategy().prop_map(InboundProtocol::Local),
        (words(), proptest::option::of(snell_version()), obfs, any::<(bool, bool)>(), snell_users())
            .prop_map(|(psk, version, obfs, switches, users)| {
                let mut server = snell_server(psk, version, obfs, switches);
                server.psk = with_users(server.psk, users, server.versions);
                InboundProtocol::Snell(server)
            }),
        shadowsocks_server().prop_map(InboundProtocol::Shadowsocks),
        (target(), transports)
            .prop_map(|(target, transports)| InboundProtocol::Tunnel { target, transports }),
        (any::<bool>(), proptest::sample::select(rows::TRANSPORTS)).prop_map(
            |(redirects, (_, transports))| {
                let by = if redirects { CapturedBy::Redirect } else { CapturedBy::Tproxy };
                InboundProtocol::Captured(Captured { by, transports })
            }
        ),
    ];
    let listen = proptest::collection::vec(any::<std::net::IpAddr>(), 1..3);
    let carrier = proptest::option::of(kcp_strategy());
    let socket = (any::<(bool, bool)>(), tcp_strategy(), interface_name(), carrier, pace_strategy());
    (plain(20), listen, socket, any::<u8>(), protocol).prop_map(
        |(name, listen, ((fast_open, reuse_port), tcp, interface, carrier, pace), outbound, protocol)| {
            let serves = matches!(protocol, InboundProtocol::Snell(_) | InboundProtocol::Shadowsocks(_));
            let pace = pace.filter(|_| serves && carrier.is_none());
            Inbound {
                name: Tag::from(&*name),
                listen: listen.into_iter().map(|ip| SocketAddr::new(ip, 0)).collect(),
                socket: SocketOptions {
                    fast_open,
                    tcp,
                    interface,
                    unix: None,
                    reuse_port,
                    carrier: carrier.map(Box::new),
                    pace,
                },
                // Put in its place by `make_valid`.
                outbound: outbound.to_string().into(),
                allow_private: !serves || outbound % 2 == 0,
                protocol,
            }
        },
    )
}

#[test]
fn private_targets_of_servers() {
    let of = |text: &str| load(text).inbounds[0].allow_private;
    assert!(of(HEAD), "local ports are not restricted");
    assert!(!of(SNELL_IN) && !of(&format!("{SNELL_IN}allow-private = false\n")));
    let allowed = load(&format!("{SNELL_IN}allow-private = true\n"));
    assert!(allowed.inbounds[0].allow_private);
    assert!(to_toml(&allowed).contains("\nallow-private = true\n"));
    assert!(!to_toml(&load(HEAD)).contains("allow-private"), "no key of local ports");
    for (text, want) in [
        (
            format!("{HEAD}allow-private = true\n"),
            "4:1: inbound[0].allow-private: protocol mixed has no such key",
        ),
        (format!("{SNELL_IN}allow-private = 1\n"), "5:17: inbound[0].allow-private: expected true or false"),
    ] {
        let found = rejected(&text);
        assert!(found.contains(want), "{found}");
    }
}

#[test]
fn rates_of_servers_and_clients() {
    let text = |keys: &str| {
        format!(
            "[[inbound]]\nprotocol = \"snell\"\nlisten = \":1\"\npsk = \"k\"\n{keys}\n[[outbound]]\n\
             protocol = \"snell\"\nserver = \"a:1\"\npsk = \"k\"\n{keys}"
        )
    };
    for (keys, want) in [
        ("pacing-mbps = 100\n", Pace { mbps: 100, brutal: None }),
        ("brutal-mbps = 1\n", Pace { mbps: 1, brutal: Some(15) }),
        ("brutal-mbps = 1000000\nbrutal-cwnd-gain = 80\n", Pace { mbps: 1_000_000, brutal: Some(80) }),
    ] {
        let config = load(&text(keys));
        assert_eq!((config.inbounds[0].socket.pace, config.outbounds[0].dial.pace), (Some(want), Some(want)));
    }
    assert_eq!(Pace { mbps: 100, brutal: None }.bytes_per_second(), 12_500_000);
    let kcp = "carrier = \"kcp\"\ncarrier-key = \"k\"\npacing-mbps = 1\n";
    for (keys, want) in [
        ("pacing-mbps = 0\n", "t.toml:5:15: inbound[0].pacing-mbps: not from 1 to 1000000"),
        ("pacing-mbps = 1.5\n", "t.toml:5:15: inbound[0].pacing-mbps: expected a number, found float"),
        (
            "brutal-mbps = 5\npacing-mbps = 5\n",
            "t.toml:6:15: inbound[0].pacing-mbps: `brutal-mbps` sets the same",
        ),
        ("brutal-cwnd-gain = 9\n", "t.toml:5:20: inbound[0].brutal-cwnd-gain: no rate is set"),
        ("brutal-mbps = 5\nbrutal-cwnd-gain = 81\n", "inbound[0].brutal-cwnd-gain: not from 5 to 80"),
        (kcp, "t.toml:7:15: inbound[0].pacing-mbps: a carrier has a pace of its own"),
    ] {
        let found = parse("t.toml", &text(keys)).unwrap_err().to_string();
        assert!(found.contains(want), "{found}");
    }
    let found =
        parse("t.toml", "[[inbound]]\nprotocol = \"mixed\"\nlisten = \"127.0.0.1:1\"\npacing-mbps = 1\n");
    assert!(found.unwrap_err().to_string().contains("protocol mixed has no such key"));
}

#[test]
fn users_of_a_snell_server_have_keys_and_limits() {
    let head = "[[inbound]]\nprotocol = \"snell\"\nlisten = \":1\"\n";
    let users = "users = [{ name = \"ann\", password = \"key of ann\" }, { name = \"bob\", password = \"key of bob\", \
                 quota = \"1500MB\", reset-day = 28, expires = \"2030-12-31\", rate = \"1MiB\", connections = 7, \
                 addresses = 2 }]\n";
    let keys = |text: &str| {
        let InboundProtocol::Snell(server) = &load(text).inbounds[0].protocol else { panic!("{text}") };
        server.psk.clone()
    };
    let SnellKeys::Each(each) = keys(&format!("{head}{users}")) else { panic!("a key each") };
    let limits = UserLimits {
        quota: Some(1_500_000_000),
        reset_day: Some(28),
        expires: "2030-12-31".parse().ok(),
        rate: Some(1 << 20),
        connections: Some(7),
        addresses: Some(2),
    };
    assert_eq!((each.all()[0].limits, each.all()[1].limits), (UserLimits::default(), limits));
    let named = keys(&format!("{head}psk = \"p\"\n{users}"));
    assert_eq!((named.common(), named.users()), (Some(&Secret::new("p")), each.all()));
    assert!(matches!(keys(&format!("{head}psk = \"p\"\nusers = []\n")), SnellKeys::Common(_)));
    let raw = "version = 6\nmode = \"unsafe-raw\"\nallow-lan = true\n";
    for (text, want) in [
        (users.replace("key of bob", "key of ann"), "inbound[0].users: the key of user 1 is another one's"),
        (users.replace("\"bob\"", "\"ann\""), "inbound[0].users[1].name: this user is listed twice"),
        (users.replace("1500MB", "1500 apples"), "inbound[0].users[1].quota: bad number of bytes: 1500..."),
        (users.replace("1500MB", "0"), "inbound[0].users[1].quota: bad number of bytes: 0"),
        (users.replace("quota = \"1500MB\", ", ""), "inbound[0].users[1].reset-day: no quota is set"),
        (users.replace("12-31", "12-32"), "inbound[0].users[1].expires: not a date as 2030-12-31, or"),
        (users.replace("= 7", "= 0"), "inbound[0].users[1].connections: not from 1"),
        (users.replace("rate", "server"), "inbound[0].users[1].server: protocol snell has no such key"),
        (format!("{raw}{users}"), "inbound[0].users: unsafe-raw uses no key"),
        (format!("version = 6\n{users}"), "inbound[0].users: version 6 wants passwords of 12 to 255 bytes"),
    ] {
        let found = parse("t", &format!("{head}{text}")).unwrap_err().to_string();
        assert!(found.contains(want), "{found}");
        assert!(!found.contains("key of ann") && !found.contains("key of bob"), "{found}");
    }
}

#[test]
fn users_of_a_local_port_have_the_same_limits() {
    let load = |rest: &str| {
        let text = format!(
            "[[inbound]]\nprotocol = \"socks\"\nlisten = \":1\"\nusers = [{{ name = \"ann\", password = \"p\", {rest} }}]\n"
        );
        let config = parse("t", &text).map_err(|found| found.to_string())?.config;
        let InboundProtocol::Local(local) = &config.inbounds[0].protocol else { panic!("{text}") };
        Ok::<_, String>(local.users[0].limits)
    };
    let instant: Option<Expiry> = "2030-12-31T18:00:00Z".parse().ok();
    for expires in ["\"2030-12-31T18:00:00Z\"", "2030-12-31T18:00:00Z", "2030-12-31 20:30:00+02:30"] {
        let limits =
            load(&format!("quota = \"1GB\", reset-day = 3, rate = \"1MB\", expires = {expires}")).unwrap();
        let want = UserLimits {
            quota: Some(1_000_000_000),
            reset_day: Some(3),
            expires: instant,
            rate: Some(1_000_000),
            ..UserLimits::default()
        };
        assert_eq!(limits, want);
    }
    assert_eq!(load("expires = 2030-12-31").unwrap().expires, "2030-12-31".parse().ok());
    for (rest, want) in [
        ("expires = 2030-12-31T18:00:00", "users[0].expires: the time zone is missing"),
        ("expires = 18:00:00", "users[0].expires: not a date"),
        ("expires = 5", "users[0].expires: expected a text in quotes"),
        ("server = \"a:1\"", "users[0].server: protocol mixed has no such key"),
    ] {
        let found = load(rest).unwrap_err();
        assert!(found.contains(want), "{found}");
    }
}

#[test]
fn a_relay_names_a_server_for_each_user() {
    let head = "[[inbound]]\nprotocol = \"shadowsocks\"\nlisten = \"127.0.0.1:8388\"\n\
                method = \"2022-blake3-aes-128-gcm\"\npassword = \"AAAAAAAAAAAAAAAAAAAAAA==\"\n";
    let user =
        |name: &str, key: &str, rest: &str| format!("{{ name = \"{name}\", password = \"{key}\"{rest} }}");
    let server = ", server = \"next.example:443\"";
    let (one, two) = ("AQAAAAAAAAAAAAAAAAAAAA==", "AgAAAAAAAAAAAAAAAAAAAA==");
    let text = format!("{head}users = [{}, {}]\n", user("a", one, server), user("b", two, server));
    let config = load(&text);
    let InboundProtocol::Shadowsocks(relay) = &config.inbounds[0].protocol else { panic!("no server") };
    assert_eq!((relay.key.users().len(), relay.key.hops().len()), (2, 2));
    assert_eq!(relay.key.hops()[0].to_string(), "next.example:443");
    assert_eq!(load(&to_toml(&config)), config);
    for text in [
        format!("{head}users = [{}, {}]\n", user("a", one, server), user("b", two, "")),
        format!("{head}obfs = \"http\"\nusers = [{}]\n", user("a", one, server)),
    ] {
        let found = parse("t", &text).unwrap_err().to_string();
        assert!(found.contains("users: if one user has a server of its own"), "{found}");
    }
}

fn config_strategy() -> impl Strategy<Value = Config> {
    let inbounds = proptest::collection::vec(inbound_strategy(), 1..4);
    let outbounds = proptest::collection::vec(outbound_strategy(), 1..4);
    let admin = proptest::option::of("/[a-z ]{1,9}");
    let http = proptest::option::of((1..=u16::MAX, any::<bool>()))
        .prop_map(|http| http.map(|(port, per_user)| (([127, 0, 0, 1], port).into(), per_user)));
    let cores = proptest::option::of(1_usize..1000);
    let state = prop_oneof![
        Just(StateFile::Usual),
        Just(StateFile::Off),
        "/[a-z ]{1,9}".prop_map(|path| StateFile::At(path.into()))
    ];
    (log_strategy(), (admin, http, state), cores, limits_strategy(), udp_strategy(), inbounds, outbounds)
        .prop_map(|(log, (admin, http, state), cores, limits, udp, inbounds, outbounds)| Config {
            log,
            admin: admin.map_or(ControlSocket::Usual, |path| ControlSocket::At(path.into())),
            admin_http: http.map(|(addr, per_user)| AdminHttp {
                listen: addr,
                token: None,
                per_user,
                outline: per_user,
            }),
            state,
            cores,
            limits,
            acl: None,
            acl_of: Map::new(),
            udp,
            dns: adit_model::Dns::default(),
            plugin_user: None,
            inbounds,
            outbounds,
            ..Config::default()
        })
        .prop_map(make_valid)
}

/// Names unique, addresses distinct, references inside the list.
fn make_valid(mut config: Config) -> Config {
    for (i, outbound) in config.outbounds.iter_mut().enumerate() {
        outbound.name = format!("{}{i}", outbound.name).into();
    }
    let mut port = 1;
    for (i, inbound) in config.inbounds.iter_mut().enumerate() {
        inbound.name = format!("{}{i}", inbound.name).into();
        let number: usize = inbound.outbound.parse().unwrap();
        inbound.outbound = config.outbounds[number % config.outbounds.len()].name.clone();
        for addr in &mut inbound.listen {
            addr.set_port(port);
            port += 1;
        }
    }
    config
}

/// Pieces from which nearly right files are made.
const PIECES: &[&str] = &[
    "[[inbound]]\n",
    "[[outbound]]\n",
    "[log]\n",
    "[limits]\n",
    "protocol = \"",
    "mixed\"\n",
    "snell\"\n",
    "direct\"\n",
    "listen = ",
    "\":1\"\n",
    "[\":1\", \"[::1]:2\"]\n",
    "psk = \"é\"\n",
    "users = ",
    "[{name=\"a\",password=\"b\"}]\n",
    "allow-lan = true\n",
    "server = \"a:1\"\n",
    "idle = \"off\"\n",
    "1",
    "\"",
    "\n",
    "=",
    "é",
    "obfs = \"tls\"\n",
    "\"\"\"",
    "{",
    "}",
    "inbound.",
    "a.b.c = 1\n",
    "\u{feff}",
    "\r",
    "#",
];

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn what_is_written_is_read_again(config in config_strategy()) {
        let text = to_toml(&config);
        prop_assert_eq!(load(&text), config);
    }

    #[test]
    fn any_bytes(data in proptest::collection::vec(any::<u8>(), 0..200)) {
        fuzz_native(&data);
    }

    #[test]
    fn nearly_right_files(pieces in proptest::collection::vec(proptest::sample::select(PIECES), 0..24)) {
        fuzz_native(pieces.concat().as_bytes());
    }
}

#[test]
fn datagrams_of_snell() {
    let out = |keys: &str| {
        let config = load(&format!("{HEAD}{SNELL_OUT}{keys}"));
        let OutboundProtocol::Snell(client) = &config.outbounds[0].protocol else { panic!("{keys}") };
        (client.udp, client.quic)
    };
    for (keys, want) in [
        ("", (true, Quic::Auto)),
        ("udp = false\n", (false, Quic::Auto)),
        ("udp-relay = false\nquic = \"on\"\n", (false, Quic::On)),
        ("quic = \"off\"\n", (true, Quic::Off)),
        ("block-quic = \"on\"\n", (true, Quic::Block)),
        ("block-quic = \"off\"\n", (true, Quic::On)),
        ("block-quic = \"auto\"\n", (true, Quic::Auto)),
    ] {
        assert_eq!(out(keys), want, "{keys}");
    }
    let text = rejected(&format!("{HEAD}{SNELL_OUT}udp = true\nudp-relay = true\n"));
    assert!(text.contains("udp-relay: `udp` sets the same"), "{text}");
    let text = rejected(&format!("{HEAD}{SNELL_OUT}quic = \"on\"\nblock-quic = \"on\"\n"));
    assert!(text.contains("block-quic: `quic` sets the same"), "{text}");
    let config = load(&format!("{SNELL_IN}quic = false\n"));
    let InboundProtocol::Snell(server) = &config.inbounds[0].protocol else { panic!() };
    assert_eq!((server.udp, server.quic), (true, false));
}

/// The examples of docs/rules.md are whole files.
#[test]
fn examples_of_the_page_about_rules() {
    let page = include_str!("../../../../docs/rules.md");
    let blocks: Vec<&str> =
        page.split("```toml\n").skip(1).map(|rest| rest.split("```").next().unwrap()).collect();
    assert_eq!(blocks.len(), 6);
    for block in blocks {
        let loaded = parse("adit.toml", block).unwrap_or_else(|found| panic!("{found}\n{block}"));
        assert!(loaded.diagnostics.is_empty(), "{}\n{block}", loaded.diagnostics);
    }
}
