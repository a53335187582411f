use std::ffi::OsString;
use std::path::Path;

use adit_model::{
    Captured, CapturedBy, Config, Inbound, InboundProtocol, OutboundProtocol, SsrClient, SsrServer,
    Transports,
};
use proptest::prelude::*;

use super::*;
use crate::adit_toml::to_toml;
use crate::shadowsocks::setup::Control;
use crate::shadowsocksr::mudb::{Traffic, add_traffic};

fn flags_of(program: SsrProgram, line: &str) -> SsrFlags {
    match flags(program, line.split_whitespace().map(OsString::from)) {
        Ok(SsrInvocation::Run(flags)) => *flags,
        other => panic!("{line}: {other:?}"),
    }
}

fn setup(program: SsrProgram, line: &str, text: &str) -> Result<ShadowsocksSetup, String> {
    let file = Some(("ssr.json", text)).filter(|_| !text.is_empty());
    load(program, &flags_of(program, line), file, None).map_err(|found| found.to_string())
}

fn clients(config: &Config) -> Vec<&SsrClient> {
    let mut all = Vec::new();
    for outbound in &config.outbounds {
        if let OutboundProtocol::Ssr(client) = &outbound.protocol {
            all.push(client);
        }
    }
    all
}

fn servers(config: &Config) -> Vec<(&Inbound, &SsrServer)> {
    let mut all = Vec::new();
    for inbound in &config.inbounds {
        if let InboundProtocol::Ssr(server) = &inbound.protocol {
            all.push((inbound, server));
        }
    }
    all
}

const FORK: &str = r#"{
    // The old form: one server.
    "server": "server.example", "server_port": 8388, "local_address": "127.0.0.1", "local_port": "1080",
    "password": "outer", "method": "aes-256-ctr", "protocol": "auth_aes128_fast", "protocol_param": "1001:ann:key",
    "obfs": "tls1.2_ticket_auth", "obfs_param": "cloud.example", "timeout": 60, "mode": "tcp_and_udp",
    "plugin": "carrier", "plugin_opts": "a=b", "fast_open": true, "nofile": 4096, "auth": false,
}"#;

#[test]
fn the_forks_file() {
    let setup = setup(SsrProgram::Local, "", FORK).unwrap();
    assert!(setup.diagnostics.is_empty(), "{}", setup.diagnostics);
    let clients = clients(&setup.config);
    let client = clients[0];
    assert_eq!(client.server.to_string(), "server.example:8388");
    assert_eq!((client.method.name(), client.protocol.name()), ("aes-256-ctr", "auth_aes128_fast"));
    assert_eq!(client.user.as_ref().map(|(id, key)| (*id, key.expose())), Some((1001, "ann:key")));
    assert_eq!((client.obfs.name(), &*client.obfs_param), ("tls1.2_ticket_auth", "cloud.example"));
    assert_eq!(client.transports, Transports::Both);
    let plugin = client.plugin.as_ref().unwrap();
    assert_eq!((&*plugin.program, &*plugin.options, plugin.transports), ("carrier", "a=b", Transports::Tcp));
    assert!(setup.config.outbounds[0].dial.fast_open);
    assert_eq!(setup.config.inbounds[0].listen, ["127.0.0.1:1080".parse().unwrap()]);
    assert_eq!(setup.process.open_files, Some(4096));
    crate::shadowsocks::check_setup(FORK, &setup);
}

#[test]
fn flags_count_more_than_the_file() {
    let line = "-s other.example -p 1 -l 1081 -k new -m none -O auth_chain_a -G 7:k -o http_post -g a.example \
                -U -b ::1 -t 5 -v -f /run/x.pid -a nobody --plugin p --plugin-opts o -u --host h.example";
    let setup = setup(SsrProgram::Local, line, FORK).unwrap();
    let clients = clients(&setup.config);
    let client = clients[0];
    assert_eq!(client.server.to_string(), "other.example:1");
    assert_eq!((client.password.expose(), client.method.name()), ("new", "none"));
    assert_eq!((client.protocol.name(), client.obfs.name()), ("auth_chain_a", "http_post"));
    assert_eq!((&*client.obfs_param, client.transports), ("a.example", Transports::Both));
    assert_eq!(client.user.as_ref().map(|(id, _)| *id), Some(7));
    assert_eq!(client.plugin.as_ref().map(|plugin| &*plugin.program), Some("p"));
    assert!(setup.process.daemonize);
    assert_eq!(setup.process.pid_file.as_deref(), Some(Path::new("/run/x.pid")));
    assert_eq!(setup.process.user.as_deref(), Some("nobody"));
    assert_eq!(setup.config.inbounds[0].listen, ["[::1]:1081".parse().unwrap()]);
}

#[test]
fn several_servers_in_both_forms() {
    let old = setup(SsrProgram::Local, "-s a -s b:2 -s [::1]:3 -p 1 -l 1 -k p", "").unwrap();
    let names: Vec<String> = clients(&old.config).iter().map(|client| client.server.to_string()).collect();
    assert_eq!(names, ["a:1", "b:2", "[::1]:3"]);
    assert_eq!(clients(&old.config)[0].method.name(), "rc4-md5", "the default of the C client");
    let new = r#"{"local_port": 1, "password": "p", "servers": [
        {"remarks": "one", "server": "a", "server_port": 1, "obfs": "http_simple", "group": "g", "id": "x"},
        {"server": "b", "server_port": 2, "password": "q", "method": "chacha20-ietf", "enable": true, "server_udp_port": 3},
        {"server": "c", "server_port": 3, "enable": false}
    ]}"#;
    let new = setup(SsrProgram::Local, "", new).unwrap();
    let shown: Vec<_> = clients(&new.config)
        .iter()
        .map(|client| format!("{} {} {}", client.server, client.password.expose(), client.obfs.name()))
        .collect();
    assert_eq!(shown, ["a:1 p http_simple", "b:2 q plain"]);
    let found = new.diagnostics.to_string();
    assert!(found.contains("servers[1].server_udp_port") && found.contains("no effect"), "{found}");
    assert_eq!(&*new.config.outbounds[1].name, "one");
}

#[test]
fn tunnels_and_what_is_not_there() {
    let tunnel = setup(SsrProgram::Tunnel, "-s a -p 1 -l 1 -k p -L mail.example:25 -u", "").unwrap();
    let InboundProtocol::Tunnel { target, transports } = &tunnel.config.inbounds[0].protocol else {
        panic!("a tunnel")
    };
    assert_eq!((target.to_string().as_str(), *transports), ("mail.example:25", Transports::Both));
    let redir = setup(SsrProgram::Redir, "-s a -p 1 -l 1 -k p -u", "").unwrap();
    let captured = Captured { by: CapturedBy::Redirect, transports: Transports::Both };
    assert_eq!(redir.config.inbounds[0].protocol, InboundProtocol::Captured(captured));
}

#[test]
fn slips_are_named_with_their_place() {
    let with = |right: &str, wrong: &str| setup(SsrProgram::Local, "", &FORK.replace(right, wrong));
    for (right, wrong, problem) in [
        ("aes-256-ctr", "idea-cfb", "ssr.json:4:"),
        ("aes-256-ctr", "idea-cfb", "no program at hand offers it"),
        ("auth_aes128_fast", "auth_simple", "every program has removed it"),
        ("tls1.2_ticket_auth", "tls_simple", "is not supported"),
        ("aes-256-ctr", "aes-256-cfr", "did you mean `aes-256-cfb`?"),
        ("\"server\": \"server.example\",", "", "missing"),
        ("8388", "0", "port 0 cannot be dialled"),
        ("8388", "99999", "no port: 99999"),
        ("\"1080\"", "\"x\"", "no port: x"),
        ("\"password\": \"outer\"", "\"password\": \"\"", "password: empty"),
        ("1001:ann:key", "1001:", "empty"),
        ("\"timeout\": 60", "\"timeout\": []", "expected a text or a whole number"),
    ] {
        let found = with(right, wrong).map(|_| ()).expect_err(wrong);
        assert!(found.contains(problem), "{wrong}: {found}");
        assert!(!found.contains("outer") && !found.contains("ann:key"), "{found}");
    }
    for (right, wrong, problem) in [
        ("auth_aes128_fast", "verify_sha1", "is spoken as origin"),
        ("aes-256-ctr", "rc4", "repeats its keystream"),
        ("aes-256-ctr", "table", "repeats its keystream"),
        ("aes-256-ctr", "none", "encrypts nothing"),
        ("1001:ann:key", "bob:key", "no number before the colon"),
        ("\"auth\": false", "\"obfs_parm\": \"x\"", "ssr.json:6:"),
        ("\"auth\": false", "\"obfs_parm\": \"x\"", "did you mean `obfs_param`?"),
        ("\"timeout\": 60", "\"timeout\": \"soon\"", "so 60 is used"),
    ] {
        let found = with(right, wrong).expect(wrong).diagnostics.to_string();
        assert!(found.contains(problem), "{wrong}: {found}");
    }
    let origin = with("auth_aes128_fast", "verify_sha1").unwrap();
    assert_eq!(clients(&origin.config)[0].protocol.name(), "origin");
}

#[test]
fn command_lines() {
    let of = |program, line: &str| flags(program, line.split_whitespace().map(OsString::from));
    assert!(matches!(of(SsrProgram::Server, "-h"), Ok(SsrInvocation::Help)));
    assert!(matches!(of(SsrProgram::Server, "--version"), Ok(SsrInvocation::Version)));
    assert!(matches!(of(SsrProgram::Local, "-V"), Ok(SsrInvocation::Version)));
    assert_eq!(flags_of(SsrProgram::Server, "-d stop").daemon, Some(Daemon::Stop));
    assert_eq!(flags_of(SsrProgram::Server, "-d stop").pid_file(), Path::new(ssr_flags::PID_FILE));
    assert!(flags_of(SsrProgram::Server, "").is_bare);
    for (program, line, problem) in [
        (SsrProgram::Server, "-l 1", "no such flag"),
        (SsrProgram::Local, "-d start", "no such flag"),
        (SsrProgram::Local, "-L a:1", "no such flag"),
        (SsrProgram::Server, "-d now", "neither start nor stop nor restart"),
        (SsrProgram::Local, "-p", "a value must follow"),
    ] {
        let found = of(program, line).map(|_| ()).expect_err(line).to_string();
        assert!(found.contains(problem), "{line}: {found}");
    }
    let idle =
        flags_of(SsrProgram::Server, "--workers 4 --log-file x --manager-address y").diagnostics.to_string();
    assert_eq!(idle.matches("so it has no effect").count(), 3, "{idle}");
    for program in SsrProgram::ALL {
        assert!(usage(program).contains("--plugin-opts OPTIONS"), "{}", program.name());
    }
    assert!(usage(SsrProgram::Server).contains("-d WORD") && !usage(SsrProgram::Local).contains("-d WORD"));
}

const SERVER: &str = r#"{
    "server": "0.0.0.0", "server_ipv6": "::", "server_port": 8388, "local_address": "127.0.0.1", "local_port": 1080,
    "password": "m", "method": "aes-128-ctr", "protocol": "auth_aes128_md5",
    "protocol_param": "3#1001:ann,1002:bob", "obfs": "tls1.2_ticket_auth_compatible", "obfs_param": "",
    "speed_limit_per_con": 0, "speed_limit_per_user": 16, /* KiB/s */
    "additional_ports": {}, "additional_ports_only": false,
    "timeout": 120, "udp_timeout": 60, "dns_ipv6": false, "connect_verbose_info": 0,
    "redirect": ["*:8388#www.example:443"], "fast_open": false, "forbidden_port": "1-79,81", "out_bind": "192.0.2.7"
}"#;

#[test]
fn the_python_servers_file() {
    let setup = setup(SsrProgram::Server, "", SERVER).unwrap();
    assert!(setup.diagnostics.is_empty(), "{}", setup.diagnostics);
    let servers = servers(&setup.config);
    let (inbound, server) = servers[0];
    assert_eq!(inbound.listen, ["0.0.0.0:8388".parse().unwrap(), "[::]:8388".parse().unwrap()]);
    assert!(server.obfs_compatible);
    assert_eq!((server.max_clients, server.users.ids()), (3, &[1001, 1002][..]));
    assert_eq!(server.users.users()[0].limits.rate, Some(16 << 10));
    assert_eq!(server.transports, Transports::Both);
    assert_eq!(server.redirect[0].to_string(), "*:8388#www.example:443");
    assert_eq!(setup.config.rules.len(), 2, "ports, and addresses by default");
    assert_eq!(setup.config.outbounds[0].dial.egress.v4, Some("192.0.2.7".parse().unwrap()));
    assert!(to_toml(&setup.config).contains("127.0.0.0/8"));
    crate::shadowsocks::check_setup(SERVER, &setup);
    let open = SERVER.replace("\"timeout\"", "\"forbidden_ip\": \"\", \"timeout\"").replace("1-79,81", "");
    assert!(self::setup(SsrProgram::Server, "", &open).unwrap().config.rules.is_empty());
}

#[test]
fn ports_with_settings_of_their_own() {
    let text = r#"{"method": "aes-256-ctr", "protocol": "origin", "speed_limit_per_user": 1, "port_password": {
        "1001": "ann",
        "1002": ["bob", "http_simple", "auth_sha1_v4_compatible"],
        "1003": {"password": "cat", "method": "none", "protocol": "auth_chain_f", "protocol_param": "9#3600", "out_bind": "192.0.2.1"}
    }}"#;
    let setup = setup(SsrProgram::Server, "", text).unwrap();
    let shown: Vec<String> = servers(&setup.config)
        .iter()
        .map(|(inbound, server)| {
            let owner = server.users.owner().unwrap();
            format!(
                "{} {} {} {} {} {} {:?}",
                inbound.listen[0].port(),
                owner.name,
                server.password.expose(),
                server.method.name(),
                server.protocol.name(),
                server.obfs.name(),
                owner.limits.rate,
            )
        })
        .collect();
    assert_eq!(
        shown,
        [
            "1001 1001 ann aes-256-ctr origin plain Some(1024)",
            "1002 1002 bob aes-256-ctr auth_sha1_v4 http_simple Some(1024)",
            "1003 1003 cat none auth_chain_f plain Some(1024)",
        ]
    );
    assert_eq!(
        (servers(&setup.config)[2].1.max_clients, servers(&setup.config)[2].1.key_interval_s),
        (9, 3600)
    );
    assert!(setup.diagnostics.to_string().contains("port_password[2].out_bind"), "{}", setup.diagnostics);
    crate::shadowsocks::check_setup(text, &setup);
    for (wrong, problem) in [
        (r#"{"port_password": {"x": "p"}}"#, "the key is not a port number"),
        (r#"{"port_password": {"1": "p", "01": "q"}}"#, "listed twice"),
        (r#"{"port_password": {"1": {"method": "none"}}}"#, "missing"),
        (r#"{"password": "p", "protocol": "auth_chain_a", "protocol_param": "2#"}"#, "no database"),
        (
            r#"{"password": "p", "protocol": "auth_chain_a", "protocol_param": "x#1:a"}"#,
            "no number of clients",
        ),
        (
            r#"{"password": "p", "protocol": "auth_chain_a", "protocol_param": "2#1:a,1:b"}"#,
            "given to two users",
        ),
        (r#"{"password": "p", "protocol": "origin", "protocol_param": "2#1:a"}"#, "has no users"),
        (r#"{"password": "p", "forbidden_ip": "10.0.0.0/99"}"#, "no address or network"),
        (r#"{"password": "p", "forbidden_port": "9-1"}"#, "no port or range"),
        (r#"{"password": "p", "server": "0.0.0.0:1"}"#, "has no port"),
        (r#"{"password": "p", "redirect": "(#a"}"#, "bad regular expression"),
        ("[]", "expected an object"),
        ("{", "nothing closes"),
    ] {
        let found = self::setup(SsrProgram::Server, "", wrong).map(|_| ()).expect_err(wrong);
        assert!(found.contains(problem), "{wrong}: {found}");
    }
}

const MUDB: &str = r#"[
    { // Ann has a port of her own.
        "user": "ann", "port": 1001, "passwd": "ann's", "method": "aes-128-ctr", "protocol": "auth_aes128_md5",
        "protocol_param": "", "obfs": "plain", "obfs_param": "", "enable": 1, "u": 100, "d": 200,
        "transfer_enable": 1000, "forbidden_port": "25", "speed_limit_per_user": 8, "speed_limit_per_con": 0
    },
    {"user": "ann", "port": 1002, "passwd": "bob's", "enable": true, "transfer_enable": 9007199254740992},
    {"user": "off", "port": 1003, "passwd": "x", "enable": 0, "transfer_enable": 5},
    {"user": "spent", "port": 1004, "passwd": "x", "enable": 1, "u": 3, "d": 2, "transfer_enable": 5},
    {"user": "shared", "port": 1005, "passwd": "s", "protocol": "auth_chain_a", "method": "none",
        "protocol_param": "16#", "enable": 1, "u": 0, "d": 0, "transfer_enable": 5},
    {"user": "broken", "port": 1006, "passwd": "x", "method": "zzz", "enable": 1, "transfer_enable": 5},
    {"port": 0, "passwd": "x"}, {"port": 1001, "passwd": "x"}, {"port": 1008, "passwd": "x", "u": "many"}
]"#;

fn database(text: &str, file: &str) -> ShadowsocksSetup {
    let flags = SsrFlags::default();
    let setup = load(
        SsrProgram::Server,
        &flags,
        Some(("user-config.json", file)),
        Some((Path::new("mudb.json"), text)),
    );
    setup.unwrap_or_else(|found| panic!("{found}"))
}

#[test]
fn a_database_of_users() {
    let setup = database(MUDB, r#"{"method": "aes-256-ctr", "protocol": "origin", "server": "127.0.0.1"}"#);
    let servers = servers(&setup.config);
    let ports: Vec<u16> = servers.iter().map(|(inbound, _)| inbound.listen[0].port()).collect();
    assert_eq!(ports, [1001, 1002, 1005]);
    let ann = servers[0].1.users.owner().unwrap();
    assert_eq!(
        (&*ann.name, ann.key.expose(), ann.limits.quota, ann.limits.rate),
        ("ann", "ann's", Some(700), Some(8192))
    );
    let bob = servers[1].1.users.owner().unwrap();
    assert_eq!((&*bob.name, servers[1].1.method.name()), ("ann-1002", "aes-256-ctr"));
    let shared = servers[2].1;
    assert_eq!(shared.users.ids(), [1001, 1002, 1006], "everybody who may be served, by port");
    assert_eq!(shared.users.users()[0], *ann, "one account for both ports");
    assert!(servers.iter().all(|(inbound, _)| &**inbound.accounts() == "mudb"));
    assert_eq!(setup.config.rules.len(), 2, "everybody's addresses, Ann's ports");
    let found = setup.diagnostics.to_string();
    for want in [
        "mudb.json:12:",
        "unknown method: zzz, so the entry is left out",
        "no whole number from 1 to 65535",
        "its port is that of an earlier row",
        "expected a number, found a text",
    ] {
        assert!(found.contains(want), "{want}: {found}");
    }
    let Control::Users(database) = setup.control else { panic!("a database") };
    let (rows, _) = database.read(MUDB).unwrap();
    let (config, _) = database.config(&rows, &|row| if row.port == 1001 { 50 } else { 0 });
    let quota = self::servers(&config)[0].1.users.owner().unwrap().limits.quota;
    assert_eq!(quota, Some(750), "what the account has counted is in the file already");
}

#[test]
fn shared_ports_beside_a_database() {
    let file = r##"{"method": "aes-256-ctr", "additional_ports_only": true, "additional_ports": {
        "80": {"passwd": "p", "method": "none", "protocol": "auth_chain_a", "protocol_param": "#"},
        "443": {"passwd": "p", "protocol": "origin"}
    }}"##;
    let setup = database(MUDB, file);
    let shown: Vec<(u16, usize)> = servers(&setup.config)
        .iter()
        .map(|(inbound, server)| (inbound.listen[0].port(), server.users.users().len()))
        .collect();
    assert_eq!(
        shown,
        [(1005, 3), (80, 4), (443, 0)],
        "users by id on the shared ports, and no ports of their own"
    );
    let none = database("[]", file);
    let ports: Vec<_> = servers(&none.config).iter().map(|(inbound, _)| inbound.listen[0].port()).collect();
    assert_eq!(ports, [443], "a shared port without users would serve everybody");
}

#[test]
fn traffic_is_written_into_the_text_as_it_is() {
    let traffic = [
        Traffic { port: 1001, up: 11, down: 22 },
        Traffic { port: 1002, up: 1, down: 2 },
        Traffic { port: 1003, up: 0, down: 0 },
        Traffic { port: 1008, up: 1, down: 0 },
        Traffic { port: 9, up: 1, down: 1 },
    ];
    let written = add_traffic("mudb.json", MUDB, &traffic).unwrap();
    let want = MUDB.replace("\"u\": 100, \"d\": 200", "\"u\": 111, \"d\": 222").replace(
        "{\"user\": \"ann\", \"port\": 1002",
        "{\"d\": 2, \"u\": 1, \"user\": \"ann\", \"port\": 1002",
    );
    assert_eq!(*written, want);
    assert!(
        add_traffic("mudb.json", "{}", &traffic).is_err() && add_traffic("mudb.json", "[", &traffic).is_err()
    );
    check_all(MUDB);
}

#[test]
fn traffic_goes_to_the_row_that_was_read() {
    // The first row of the port cannot be used, so neither is the second.
    check_all(
        "[{\"port\": 1, \"passwd\": \"x\", \"u\": \"many\"}, {\"port\": 1, \"passwd\": \"x\", \"transfer_enable\": 9}]",
    );
}

fn check_all(text: &str) {
    fuzz_ssr(text.as_bytes());
}

#[test]
fn databases_are_told_from_settings() {
    assert!(is_database(MUDB) && is_database(" // x\n/* y */ []"));
    assert!(!is_database(SERVER) && !is_database("") && !is_database("x"));
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn cut_and_changed_files(which in 0..4_usize, at in 0..900_usize, with in "[\\[\\]{}\",:0-9a-z# ]{0,6}") {
        let text = [FORK, SERVER, MUDB, r#"{"port_password": {"1": ["a", "plain", "origin"]}, "password": "p"}"#][which];
        let at = text.char_indices().map(|(at, _)| at).nth(at).unwrap_or(text.len());
        check_all(&text[..at]);
        check_all(&format!("{}{with}{}", &text[..at], &text[at..]));
    }
}
