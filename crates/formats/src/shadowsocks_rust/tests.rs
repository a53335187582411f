use std::time::Duration;

use adit_model::{
    AddressFamilies, ClientCover, InboundProtocol, Level, LocalProtocols, ObfsClient, OutboundProtocol,
    ReplayPolicy, ServerCover, ShadowsocksClient, ShadowsocksServer, TcpOptions, Transports,
};
use proptest::prelude::*;

use super::*;
use crate::shadowsocks::setup::{Control, ManagerAddress};

const OUTSIDE: RustSurroundings<'static> = RustSurroundings {
    variable: &|name| match name {
        "SS_SERVER_PASSWORD" => Some(Zeroizing::new("from SS_SERVER_PASSWORD".to_owned())),
        "MINE" => Some(Zeroizing::new("from MINE".to_owned())),
        _ => None,
    },
    file: &|path| {
        let text = match path.to_str() {
            Some("socks.json") => {
                "{\"password\":{\"users\":[{\"user_name\":\"ann\",\"password\":\"hunter2\"}]}}"
            }
            Some("http.json") => "{basic:{users:[{user_name:'bob',password:'hunter2'}]}}",
            Some("none.json") => "{}",
            _ => return Err(Diagnostic::error(&"other.json".into(), "", "cannot read: gone")),
        };
        Ok(Zeroizing::new(text.to_owned()))
    },
};

/// The two examples of shadowsocks-rust 1.25, keys and kinds of values alike.
const EXAMPLE: &str = "{\n \"server\": \"127.0.0.1\",\n \"server_port\": 8388,\n \"local_port\": 1080,\n \
    \"local_address\": \"127.0.0.1\",\n \"password\": \"password\",\n \"timeout\": 300,\n \"method\": \"aes-256-gcm\"\n}\n";
const EXTENDED: &str = "{\"locals\": [{\"local_address\": \"127.0.0.1\", \"local_port\": 1080},\
    {\"local_address\": \"127.0.0.1\", \"local_port\": 3128, \"protocol\": \"http\"},\
    {\"local_address\": \"127.0.0.1\", \"local_port\": 53, \"protocol\": \"tunnel\", \"forward_address\": \"8.8.8.8\", \"forward_port\": 53}],\
    \"servers\": [{\"server\": \"127.0.0.1\", \"server_port\": 8384, \"password\": \"password-svr2\", \"method\": \"chacha20-ietf-poly1305\"},\
    {\"server\": \"127.0.0.1\", \"server_port\": 8385, \"password\": \"password-svr3\", \"method\": \"aes-128-gcm\"}]}";

fn read_flags(program: RustProgram, line: &str) -> RustFlags {
    match flags(program, line.split_whitespace().map(Into::into)) {
        Ok(RustInvocation::Run(flags)) => *flags,
        Ok(RustInvocation::Help | RustInvocation::Version) => panic!("help: {line}"),
        Err(found) => panic!("{found}"),
    }
}

fn run(
    program: RustProgram,
    line: &str,
    file: Option<&str>,
) -> Result<ShadowsocksSetup, (Exit, Diagnostics)> {
    load(program, &read_flags(program, line), file.map(|text| ("t.json", text)), OUTSIDE)
}

fn good(program: RustProgram, line: &str, file: Option<&str>) -> ShadowsocksSetup {
    match run(program, line, file) {
        Ok(setup) => {
            crate::shadowsocks::check_setup(file.unwrap_or_default(), &setup);
            setup
        }
        Err((_, found)) => panic!("{line}\n{found}"),
    }
}

fn server(setup: &ShadowsocksSetup, index: usize) -> &ShadowsocksServer {
    let InboundProtocol::Shadowsocks(server) = &setup.config.inbounds[index].protocol else {
        panic!("no server")
    };
    server
}

fn client(setup: &ShadowsocksSetup, index: usize) -> &ShadowsocksClient {
    let OutboundProtocol::Shadowsocks(client) = &setup.config.outbounds[index].protocol else {
        panic!("no client")
    };
    client
}

fn listen(setup: &ShadowsocksSetup) -> Vec<String> {
    setup.config.inbounds.iter().flat_map(|i| &i.listen).map(ToString::to_string).collect()
}

#[test]
fn a_list_of_hosts_is_named() {
    let text = "{\"server\":[\"::1\"],\"server_port\":1,\"password\":\"p\",\"method\":\"aes-128-gcm\"}";
    let outside = RustSurroundings { variable: &|_| None, file: &crate::read::source::read };
    let found = load(RustProgram::Server, &RustFlags::default(), Some(("t.json", text)), outside);
    let found = found.unwrap_err().1.to_string();
    assert!(found.contains("hint: a list is shadowsocks-libev's: adit ss-server -c t.json"), "{found}");
}

#[test]
fn the_example_for_both_ends() {
    let setup = good(RustProgram::Local, "", Some(EXAMPLE));
    assert!(setup.diagnostics.is_empty(), "{}", setup.diagnostics);
    assert_eq!(listen(&setup), ["127.0.0.1:1080"]);
    let one = client(&setup, 0);
    assert_eq!((one.server.to_string(), one.transports), ("127.0.0.1:8388".into(), Transports::Tcp));
    assert_eq!(setup.config.outbounds[0].dial.timeout, Duration::from_secs(300));
    assert_eq!(setup.config.udp.idle, Duration::from_secs(300));
    let setup = good(RustProgram::Server, "", Some(EXAMPLE));
    assert!(setup.diagnostics.is_empty(), "{}", setup.diagnostics);
    assert_eq!(listen(&setup), ["127.0.0.1:8388"]);
    assert_eq!(server(&setup, 0).key.key().text().expose(), "password");
    assert_eq!(server(&setup, 0).cover, ServerCover::default());
}

#[test]
fn the_extended_example() {
    let setup = good(RustProgram::Local, "", Some(EXTENDED));
    assert!(setup.diagnostics.is_empty(), "{}", setup.diagnostics);
    assert_eq!(listen(&setup), ["127.0.0.1:1080", "127.0.0.1:3128", "127.0.0.1:53"]);
    let kinds = setup.config.inbounds.iter().map(|inbound| match &inbound.protocol {
        InboundProtocol::Local(local) => format!("{:?}", local.accepts),
        InboundProtocol::Tunnel { target, .. } => target.to_string(),
        InboundProtocol::Captured(captured) => format!("{captured:?}"),
        InboundProtocol::Snell(_)
        | InboundProtocol::Shadowsocks(_)
        | InboundProtocol::Ssr(_)
        | InboundProtocol::Dns(_)
        | InboundProtocol::Obfs(_)
        | InboundProtocol::Tun(_) => panic!(),
    });
    assert_eq!(kinds.collect::<Vec<_>>(), ["Mixed", "Http", "8.8.8.8:53"]);
    let OutboundProtocol::Group(group) = &setup.config.outbounds[0].protocol else { panic!("no group") };
    assert_eq!(group.members.len(), 2);
    assert_eq!(client(&setup, 2).server.port, 8385);
    let setup = good(RustProgram::Server, "", Some(EXTENDED));
    assert_eq!(listen(&setup), ["127.0.0.1:8384", "127.0.0.1:8385"]);
}

#[test]
fn a_file_with_everything() {
    const FILE: &str = "// JSON5\n{\n  mode: 'tcp_and_udp', timeout: 7, udp_timeout: 60, udp_max_associations: 5, udp_mtu: 1400,\n\
        nofile: 10, ipv6_first: true, fast_open: true, no_delay: true, acl: 'a.acl', version: 1,\n\
        outbound_bind_interface: 'eth0', outbound_bind_addr: '192.0.2.1', outbound_fwmark: 0x20, dns: 'udp://1.1.1.1:54,8.8.8.8',\n\
        balancer: {max_server_rtt: 3, check_interval: 20, check_best_interval: 5},\n\
        security: {replay_attack: {policy: 'detect'}}, log: {level: 2, format: {without_time: true}},\n\
        runtime: {mode: 'single_thread'},\n\
        online_config: {config_url: 'https://x.example/token', update_interval: 60, allowed_plugins: ['p']},\n\
        locals: [{local_port: 1080, socks5_auth_config_path: 'socks.json'},\n\
          {local_port: 8080, protocol: 'http', acl: 'b.acl', http_auth_config_path: 'http.json', mode: 'tcp_only'},\n\
          {local_port: 9, disabled: true}],\n\
        shadowsocks: [{address: 'a.example', port: 0x20FB, method: 'none', remarks: 'one', tcp_weight: 0.5, udp_weight: 0},\n\
          {server: '::1', server_port: 2, method: 'AES-128-GCM', password: '${MINE}', name: 'one', mode: 'tcp_only',\n\
           plugin: 'obfs-local', plugin_opts: 'obfs=tls;obfs-host=b.example', id: 'x', timeout: 9, outbound_bind_addr: '2001:db8::1', outbound_fwmark: 0},\n\
          {server: 'c', server_port: 3, method: 'aes-128-gcm', password: 'p', plugin: 'v2ray', plugin_args: ['-x'], plugin_mode: 'tcp_and_udp'},\n\
          {server: 'd', server_port: 4, method: 'aes-128-gcm', password: 'p', disabled: true, plugin: ''}],\n}";
    let setup = good(RustProgram::Local, "", Some(FILE));
    assert_eq!(setup.diagnostics.len(), 0, "{}", setup.diagnostics);
    assert_eq!(listen(&setup), ["[::1]:1080", "[::1]:8080"]);
    assert_eq!(setup.acl_of[&setup.config.inbounds[1].name], Path::new("b.acl"));
    let InboundProtocol::Local(local) = &setup.config.inbounds[0].protocol else { panic!() };
    assert_eq!((local.accepts, &*local.users[0].name), (LocalProtocols::Mixed, "ann"));
    let OutboundProtocol::Group(group) = &setup.config.outbounds[0].protocol else { panic!("no group") };
    let weights: Vec<_> = group.members.iter().map(|m| (&*m.outbound, m.tcp_weight, m.udp_weight)).collect();
    assert_eq!(weights, [("one", 50, 0), ("server-2", 100, 100), ("server-3", 100, 100)]);
    assert_eq!(
        [group.check.interval, group.check.interval_in_use, group.check.timeout].map(|span| span.as_secs()),
        [20, 5, 3]
    );
    let names: Vec<_> = setup.config.outbounds.iter().map(|o| &*o.name).collect();
    assert_eq!(names, ["servers", "one", "server-2", "server-3"]);
    assert_eq!(client(&setup, 1).server.to_string(), "a.example:8443");
    let two = client(&setup, 2);
    assert_eq!((two.key.text().expose(), two.transports), ("from MINE", Transports::Tcp));
    assert_eq!(two.cover, ClientCover::Obfs(ObfsClient::Tls("b.example".into())));
    let ClientCover::Plugin(plugin) = &client(&setup, 3).cover else { panic!("no plugin") };
    assert_eq!((plugin.args.len(), plugin.transports), (1, Transports::Both));
    let dial = &setup.config.outbounds[2].dial;
    assert_eq!((dial.timeout.as_secs(), dial.dns.len(), dial.fast_open), (9, 2, true));
    let egress = &dial.egress;
    assert_eq!(
        (dial.family, egress.interface.as_deref(), egress.mark),
        (AddressFamilies::Any, Some("eth0"), Some(32))
    );
    let source = |at: usize| {
        setup.config.outbounds[at].dial.egress.sources().map(|ip| ip.to_string()).collect::<Vec<_>>()
    };
    assert_eq!((source(1), source(2)), (vec!["192.0.2.1".to_owned()], vec!["2001:db8::1".to_owned()]));
    let config = &setup.config;
    assert_eq!((config.log.level, config.log.time, config.cores), (Level::Trace, false, Some(1)));
    assert_eq!(setup.config.udp.flows, 5);
    assert_eq!(setup.online[0].interval.as_secs(), 60);
    assert!(!format!("{setup:?}").contains("token"));
    let file =
        FILE.replace("address: 'a.example'", "address: '::2'").replace("server: 'c'", "server: '0.0.0.0'");
    let setup = good(RustProgram::Server, "", Some(&file));
    assert_eq!(listen(&setup), ["[::2]:8443", "[::1]:2", "0.0.0.0:3"]);
    assert_eq!(server(&setup, 0).replay, ReplayPolicy::Report);
    assert_eq!(
        (server(&setup, 0).transports, server(&setup, 1).transports),
        (Transports::Both, Transports::Tcp)
    );
    assert_eq!(setup.config.outbounds.len(), 2, "one for each way of dialling");
}

#[test]
fn users_of_a_server() {
    const FILE: &str = "{servers: [{server: '::', server_port: 1, method: '2022-blake3-aes-128-gcm',\n\
        password: 'AAAAAAAAAAAAAAAAAAAAAA==', users: [{name: 'ann', password: 'AQAAAAAAAAAAAAAAAAAAAA=='}]}]}";
    assert_eq!(server(&good(RustProgram::Server, "", Some(FILE)), 0).key.users().len(), 1);
    let (exit, found) =
        run(RustProgram::Server, "", Some(&FILE.replace("AQAAAAAAAAAAAAAAAAAAAA==", "AQ"))).unwrap_err();
    assert_eq!(exit, Exit::Config);
    assert!(found.to_string().contains("must be 16 bytes"), "{found}");
}

#[test]
fn flags_alone() {
    let line = "-b 127.0.0.1:1080 -U -s a.example:8388 -m aes-256-gcm -k p --timeout 5 --plugin p --plugin-opts a=b \
                --tcp-fast-open -vv --log-without-time -n 5 -a nobody --daemonize-pid /p --worker-threads 3 --acl x";
    let setup = good(RustProgram::Local, line, None);
    assert!(setup.diagnostics.is_empty(), "{}", setup.diagnostics);
    assert_eq!((client(&setup, 0).transports, setup.config.cores), (Transports::Both, Some(3)));
    assert_eq!((setup.config.log.level, setup.config.log.time), (Level::Trace, false));
    assert!(setup.process.daemonize && setup.process.user.as_deref() == Some("nobody"));
    let setup =
        good(RustProgram::Local, "-b [::1]:1 -u --server-url ss://YWVzLTEyOC1nY206dGVzdA@h:1#n", None);
    assert_eq!(
        (client(&setup, 0).key.text().expose(), client(&setup, 0).transports),
        ("test", Transports::Udp)
    );
    assert_eq!(&*setup.config.outbounds[0].name, "n");
    let setup =
        good(RustProgram::Server, "-s [::]:8388 -m aes-128-gcm -u --manager-address 127.0.0.1:6", None);
    assert_eq!(server(&setup, 0).key.key().text().expose(), "from SS_SERVER_PASSWORD");
    assert_eq!(server(&setup, 0).transports, Transports::Udp);
    assert!(matches!(setup.control, Control::Report(ManagerAddress::Udp(_))));
    let line = "-s 127.0.0.1 -m aes-128-gcm -U --manager-addr /m --manager-server-mode standalone";
    let setup = good(RustProgram::Manager, line, None);
    let Control::Manage(manager) = &setup.control else { panic!("no manager") };
    assert_eq!((manager.method.name(), manager.transports), ("aes-128-gcm", Transports::Both));
    assert_eq!(manager.hosts, ["127.0.0.1".parse::<std::net::IpAddr>().unwrap()]);
    let setup = good(
        RustProgram::Local,
        "-b 127.0.0.1:1 --online-config-url https://x --online-config-allowed-plugin p",
        None,
    );
    assert_eq!(setup.config.outbounds[0].protocol, OutboundProtocol::Reject);
    assert_eq!(setup.online.len(), 1);
}

#[test]
fn options_of_tcp() {
    const SERVER: &str = "server: '127.0.0.1', server_port: 1, method: 'aes-128-gcm', password: 'p'";
    let tcp =
        |setup: &ShadowsocksSetup| (setup.config.inbounds[0].socket.tcp, setup.config.outbounds[0].dial.tcp);
    let secs = |s| TcpOptions { keep_alive: Duration::from_secs(s), ..TcpOptions::default() };
    let file = format!("{{{SERVER}, local_port: 1, keep_alive: 5, mptcp: true}}");
    let both = TcpOptions { multipath: true, ..secs(5) };
    for program in [RustProgram::Local, RustProgram::Server] {
        let setup = good(program, "", Some(&file));
        assert!(setup.diagnostics.is_empty(), "{}", setup.diagnostics);
        assert_eq!(tcp(&setup), (both, both));
    }
    let line = "--tcp-keep-alive 7 --inbound-send-buffer-size 1 --inbound-recv-buffer-size 2 \
                --outbound-send-buffer-size 3 --outbound-recv-buffer-size 4";
    let (came, made) = tcp(&good(RustProgram::Local, line, Some(&format!("{{{SERVER}, local_port: 1}}"))));
    assert_eq!(came, TcpOptions { send_buffer: Some(1), receive_buffer: Some(2), ..secs(7) });
    assert_eq!(made, TcpOptions { send_buffer: Some(3), receive_buffer: Some(4), ..secs(7) });
    let (came, made) = tcp(&good(RustProgram::Server, "--mptcp", Some(&file.replace(", mptcp: true", ""))));
    assert_eq!((came, made), (both, both));
}

#[test]
fn findings() {
    const SERVER: &str = "server: 'h', server_port: 1, method: 'aes-128-gcm', password: 'hunter2'";
    for (program, line, file, exit, want) in [
        (
            RustProgram::Server,
            "",
            "",
            Exit::Usage,
            "command line: servers: no server is given\n  hint: give --server-addr",
        ),
        (RustProgram::Local, "", "", Exit::Usage, "local_address: no local port is given"),
        (RustProgram::Local, "-b ::1:1", "", Exit::Config, "sslocal -b: no host and port: ::1:1"),
        (RustProgram::Manager, "", "", Exit::Usage, "manager_address: missing"),
        (RustProgram::Server, "", "{}", Exit::Config, "t.json:1:1: servers: no server is given"),
        (RustProgram::Server, "", "{\n  a: }", Exit::Config, "t.json:2:6: no value where one must be"),
        (RustProgram::Server, "", "{server: 'h', S}", Exit::Config, "server: given twice"),
        (
            RustProgram::Server,
            "",
            "{server_port: 1}",
            Exit::Config,
            "server: server, server_port, method and password stand together",
        ),
        (
            RustProgram::Server,
            "",
            "{S, mode: 'x'}",
            Exit::Config,
            "mode: unknown mode: x\n  hint: write tcp_only",
        ),
        (RustProgram::Server, "", "{S}", Exit::Config, "server: no address of this machine: h"),
        (
            RustProgram::Server,
            "",
            "{servers: [{server: '::'}]}",
            Exit::Config,
            "t.json:1:12: servers[0].method: missing",
        ),
        (
            RustProgram::Server,
            "",
            "{servers: [{S, server_port: '1'}]}",
            Exit::Config,
            "servers[0].server_port: expected a number, found a text",
        ),
        (RustProgram::Local, "", "{S, local_address: '::1'}", Exit::Config, "local_port: missing"),
        (
            RustProgram::Local,
            "",
            "{S, local_port: 1, outbound_proxy: 'socks5://x'}",
            Exit::Config,
            "outbound_proxy: not in this build",
        ),
        (
            RustProgram::Local,
            "",
            "{servers: [{S, acl: 'x'}], local_port: 1}",
            Exit::Flag,
            "warning: servers[0].acl: a client's lists belong to its local ports, so it has no effect",
        ),
        (
            RustProgram::Local,
            "",
            "{S, locals: [{local_port: 1, protocol: 'tunnel'}]}",
            Exit::Config,
            "locals[0].forward_address: missing",
        ),
        (
            RustProgram::Local,
            "",
            "{S, locals: [{local_port: 1, protocol: 'dns'}]}",
            Exit::Config,
            "locals[0].local_dns_address: missing",
        ),
        (
            RustProgram::Local,
            "",
            "{S, locals: [{local_port: 1, socks5_auth_config_path: 'gone.json'}]}",
            Exit::Config,
            "other.json: cannot read: gone",
        ),
        (
            RustProgram::Local,
            "",
            "{S, locals: [{local_port: 1, socks5_auth_config_path: 'none.json'}]}",
            Exit::Config,
            "lists no users",
        ),
        (
            RustProgram::Local,
            "",
            "{S, server: '0.0.0.0', local_port: 1}",
            Exit::Config,
            "server: an address to listen on",
        ),
        (RustProgram::Local, "", "{S, local_port: 1, balancer: {check_interval: 1}}", Exit::Flag, ""),
        (
            RustProgram::Local,
            "",
            "{S, local_port: 1, colour: 1, servrs: []}",
            Exit::Flag,
            "hint: did you mean `servers`?",
        ),
        (
            RustProgram::Local,
            "",
            "{S, local_port: 1, keep_alive: 0}",
            Exit::Config,
            "keep_alive: no whole number from 1 to 32767",
        ),
        (
            RustProgram::Local,
            "--inbound-recv-buffer-size 0",
            "{S, local_port: 1}",
            Exit::Config,
            "--inbound-recv-buffer-size: no whole number from 1 to 1073741823",
        ),
        (
            RustProgram::Local,
            "",
            "{S, local_port: 1, dns: 'google_tls'}",
            Exit::Flag,
            "so the system's name servers are asked",
        ),
        (
            RustProgram::Local,
            "--vpn",
            "{S, local_port: 1}",
            Exit::Flag,
            "sslocal --vpn: not in this build yet",
        ),
        (
            RustProgram::Local,
            "",
            "{S, local_port: 1, local_address: '0.0.0.0'}",
            Exit::Flag,
            "local_address: everybody who reaches",
        ),
    ] {
        let file = (!file.is_empty()).then(|| file.replacen('S', SERVER, 1));
        let (code, found) = match run(program, line, file.as_deref()) {
            Ok(setup) => (Exit::Flag, setup.diagnostics),
            Err(failed) => failed,
        };
        crate::read::loaded::assert_inside(file.as_deref().unwrap_or_default(), &found);
        let found = found.to_string();
        assert_eq!(code, exit, "{line} {file:?}\n{found}");
        assert!(found.contains(want), "wanted {want}\nfound {found}");
        assert!(!found.contains("hunter2"), "{found}");
    }
}

#[test]
fn flags_that_are_none() {
    for (program, line, want) in [
        (
            RustProgram::Local,
            "--nope",
            "command line: sslocal --nope: no such flag\n  hint: --help lists the flags\n",
        ),
        (RustProgram::Server, "--protocol socks", "ssserver --protocol: no such flag"),
        (RustProgram::Local, "-k x", "sslocal -k: needs --server-addr too"),
        (RustProgram::Local, "-s a:1", "sslocal -s: needs --encrypt-method too"),
        (RustProgram::Manager, "--plugin-opts x", "needs --plugin too"),
        (RustProgram::Server, "-s a:1 -m none -u -U", "-u: cannot stand with -U"),
        (RustProgram::Local, "-n 1 -n 2", "sslocal -n: given twice"),
        (RustProgram::Local, "x", "an argument belongs to no flag"),
    ] {
        let found = flags(program, line.split_whitespace().map(Into::into)).unwrap_err().to_string();
        assert!(found.contains(want), "wanted {want}\nfound {found}");
    }
    assert!(matches!(flags(RustProgram::Local, ["-V".into()]), Ok(RustInvocation::Version)));
    assert!(matches!(flags(RustProgram::Local, ["-vh".into()]), Ok(RustInvocation::Help)));
    for program in RustProgram::ALL {
        assert_eq!(usage(program).contains("--server-url"), program == RustProgram::Local);
    }
    assert_eq!(service("local"), Some(Service::Program(RustProgram::Local)));
    assert_eq!((service("genkey"), service("x")), (Some(Service::Key), None));
}

#[test]
fn ssurl() {
    let read = |line: &str| url(line.split_whitespace().map(Into::into));
    assert!(matches!(read("-e f -c"), Ok(Url::Encode { qr: true, .. })));
    assert!(matches!(read("--decode ss://x"), Ok(Url::Decode { qr: false, .. })));
    assert!(matches!(read("-h"), Ok(Url::Help)));
    for line in ["", "-e a -d b", "-x", "a"] {
        assert!(read(line).is_err(), "{line}");
    }
}

#[test]
fn links_become_files() {
    let link = "ss://aes-256-gcm:pass%40%22word@[2001:db8::1]:443/?plugin=p%3Ba%3Db";
    let profile = crate::shadowsocks::sip002::parse(link).unwrap();
    let setup = good(RustProgram::Local, "-b 127.0.0.1:1", Some(&emit(&profile)));
    let one = client(&setup, 0);
    assert_eq!((&one.server, &one.key), (&profile.server, &profile.key));
    assert_eq!(one.cover, ClientCover::Plugin(profile.plugin.unwrap()));
}

#[test]
fn generated_keys_fit() {
    struct Zeros;
    impl adit_proto::wire::Rng for Zeros {
        fn fill(&mut self, out: &mut [u8]) {
            out.fill(0);
        }
    }
    for method in ShadowsocksMethod::all() {
        assert!(crate::shadowsocks::key(method, generate_key(method, &mut Zeros)).is_ok(), "{method}");
    }
}

#[test]
fn default_files() {
    let paths = default_paths(RustProgram::Local, Path::new("/w"), None, Some(Path::new("/h")), None);
    let paths: Vec<_> = paths.iter().map(|path| path.to_str().unwrap()).collect();
    assert_eq!(
        paths,
        [
            "/w/local.json",
            "/w/config.json",
            "/h/.config/shadowsocks-rust/local.json",
            "/h/.config/shadowsocks-rust/config.json",
            "/etc/xdg/shadowsocks-rust/local.json",
            "/etc/xdg/shadowsocks-rust/config.json",
            "/etc/shadowsocks-rust/local.json",
            "/etc/shadowsocks-rust/config.json",
        ]
    );
}

#[test]
fn no_slip_shows_a_key() {
    let text = EXAMPLE.replace(": \"password\"", ": \"hunter2\"");
    for cut in 0..text.len() {
        let slipped = format!("{}{}", &text[..cut], &text[cut + 1..]);
        for program in RustProgram::ALL {
            let found = match run(program, "", Some(&slipped)) {
                Ok(setup) => setup.diagnostics,
                Err((_, found)) => found,
            };
            assert!(!found.to_string().contains("hunter2"), "{found}\n{slipped}");
        }
    }
    let flags = read_flags(RustProgram::Local, "-s a:1 -m none -k hunter2");
    assert!(!format!("{flags:?}").contains("hunter2"));
}

/// Pieces from which nearly right files are made.
const PIECES: &[&str] = &[
    "server: '::1',",
    "server_port: 1,",
    "password: 'é',",
    "method: 'aes-128-gcm',",
    "method: 'none',",
    "local_port: 2,",
    "locals: [",
    "servers: [",
    "],",
    "{",
    "},",
    "protocol: 'http',",
    "protocol: 'dns',",
    "protocol: 'fake-dns',",
    "local_dns_address: '::1',",
    "fake_dns_ipv4_network: '10.0.0.0/8',",
    "mode: 'tcp_and_udp',",
    "plugin: 'p',",
    "plugin: 'obfs-local',",
    "plugin_opts: 'obfs=http',",
    "manager_address: '/m',",
    "users: [],",
    "tcp_weight: .005,",
    "remarks: 'servers',",
    "// x\n",
    "'",
    "1",
    "null,",
    "socks5_auth_config_path: 'x',",
    "online_config: {config_url: 'http://x'},",
    "dns: 'google',",
    "timeout: 0,",
    "disabled: true,",
    "udp_weight: 1,",
];

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn any_bytes(data in proptest::collection::vec(any::<u8>(), 0..200)) {
        fuzz_rust(&data);
    }

    #[test]
    fn nearly_right_files(pieces in proptest::collection::vec(proptest::sample::select(PIECES), 0..12)) {
        const SERVER: &str = "server: '::1', server_port: 1, method: 'aes-128-gcm', password: 'p',";
        let text = pieces.concat();
        fuzz_rust(text.as_bytes());
        fuzz_rust(format!("{{{SERVER} local_port: 2, {text}}}").as_bytes());
        fuzz_rust(format!("{{{SERVER} local_port: 2, servers: [{{{SERVER}{text}}}], locals: [{{local_port: 3, {text}}}]}}").as_bytes());
    }
}

#[test]
fn servers_as_links() {
    let of = |text: &str| profiles("t.json", text, OUTSIDE).map_err(|found| found.to_string());
    let (found, warnings) = of(EXTENDED).unwrap();
    let servers: Vec<String> = found.iter().map(|profile| profile.server.to_string()).collect();
    assert_eq!(
        (servers, warnings.is_empty()),
        (vec!["127.0.0.1:8384".into(), "127.0.0.1:8385".into()], true)
    );
    assert!(of("{}").unwrap_err().contains("no server is given"));
    let bad = "{server: 'a b', server_port: 1, method: 'aes-128-gcm', password: 'hunter2'}";
    let problem = of(bad).unwrap_err();
    assert!(problem.contains("server") && !problem.contains("hunter2"), "{problem}");
}

#[test]
fn an_interface_is_a_local_port_of_its_own() {
    let tun = |line: &str, text: &str| {
        let setup = good(RustProgram::Local, line, Some(text));
        assert!(setup.diagnostics.is_empty(), "{}", setup.diagnostics);
        let inbound = setup.config.inbounds.iter().find(|inbound| inbound.listen.is_empty()).unwrap().clone();
        let InboundProtocol::Tun(tun) = inbound.protocol else { panic!() };
        let v4 = tun.v4.map(|v4| format!("{}/{}", v4.address(), v4.prefix()));
        let v6 = tun.v6.map(|v6| format!("{}/{}", v6.address(), v6.prefix()));
        (tun.name, tun.mtu, v4, v6)
    };
    let server = "server: 'a.example', server_port: 1, password: 'p', method: 'aes-256-gcm'";
    let text = format!(
        "{{{server}, locals: [{{protocol: 'tun', tun_interface_name: 'ss0', \
         tun_interface_address: '10.255.0.1/24', tun_interface_destination: '10.255.0.2/24'}}, \
         {{local_port: 1080}}]}}"
    );
    assert_eq!(tun("", &text), ("ss0".into(), 1500, Some("10.255.0.1/24".into()), None));
    let text = format!("{{{server}, locals: [{{protocol: 'tun', tun_interface_address: 'fd00::1/64'}}]}}");
    assert_eq!(tun("", &text), ("tun%d".into(), 1500, None, Some("fd00::1/64".into())));
    let text = format!("{{{server}}}");
    let line =
        "--local-addr 127.0.0.1:1 --protocol tun --tun-interface-name x --tun-interface-address 10.0.0.1/30";
    assert_eq!(tun(line, &text), ("x".into(), 1500, Some("10.0.0.1/30".into()), None));
    for (keys, want) in [
        ("tun_interface_address: '10.0.0.1/32'", "locals[0].tun_interface_address: the next address, which"),
        ("tun_interface_address: '10.0.0.1'", "locals[0].tun_interface_address: no address/prefix"),
        ("tun_interface_name: 'a/b'", "locals[0].tun_interface_name: no name of an interface"),
        (
            "tun_interface_destination: '10.0.0.1'",
            "locals[0].tun_interface_destination: no address in the prefix",
        ),
        ("tun_device_fd_from_path: '/x'", "locals[0].tun_device_fd_from_path: not in this build"),
    ] {
        let text = format!("{{{server}, locals: [{{protocol: 'tun', {keys}}}]}}");
        let (_, found) = run(RustProgram::Local, "", Some(&text)).unwrap_err();
        assert!(found.to_string().contains(want), "{keys}: {found}");
    }
}

#[test]
fn lines_go_to_the_place_that_is_written() {
    let with = |log: &str| {
        let file = format!(
            "{{server: '127.0.0.1', server_port: 1, password: 'a long pass phrase', method: 'aes-256-gcm', log: {{{log}}}}}"
        );
        let setup = good(RustProgram::Server, "", Some(&file));
        (setup.config.log.clone(), setup.process.syslog, setup.diagnostics.to_string())
    };
    let (log, _, found) = with("writers: [{file: {directory: '/var/log/ss', max_files: 5}}]");
    assert_eq!(
        (log.file.as_deref(), log.keep, &*found),
        (Some(Path::new("/var/log/ss/ssserver.log")), 5, "")
    );
    let (log, _, found) = with(
        "writers: [{file: {directory: '/l', prefix: 'ss-rust', suffix: 'txt', rotation: 'daily', level: 1, format: {without_time: true}}}]",
    );
    assert_eq!(
        (log.file.as_deref(), log.level, log.time),
        (Some(Path::new("/l/ss-rust.txt")), Level::Debug, false)
    );
    assert!(found.contains("log.writers[0].file.rotation: another file is begun"), "{found}");
    let (log, is_system, found) = with("level: 1, writers: [{console: {}}, {syslog: {identity: 'x'}}]");
    assert!(log.file.is_none() && is_system && log.level == Level::Debug);
    assert!(found.contains("lines go to one place: the system's log"), "{found}");
    let (_, _, found) = with("writers: []");
    assert!(found.contains("standard error all the same"), "{found}");
    let file = "{server: '::', server_port: 1, password: 'x', method: 'aes-256-gcm', log: {writers: [{file: {prefix: 'a/b'}}]}}";
    let found = run(RustProgram::Server, "", Some(file)).unwrap_err().1.to_string();
    assert!(found.contains("file.directory: missing") && found.contains("without folders"), "{found}");
}

#[test]
fn names_are_split_by_the_access_list() {
    let setup = good(
        RustProgram::Local,
        "",
        Some(
            "{server: '192.0.2.1', server_port: 1, password: 'p', method: 'aes-128-gcm', locals: [\
             {protocol: 'dns', local_address: '0.0.0.0', local_port: 53, mode: 'udp_only', local_dns_address: '192.0.2.53', \
              remote_dns_address: 'dns.example', remote_dns_port: 5353, client_cache_size: 5},\
             {protocol: 'dns', local_port: 54, local_dns_address: '192.0.2.53', local_dns_port: 55},\
             {protocol: 'fake-dns', local_port: 55, fake_dns_record_expire_duration: 20, \
              fake_dns_ipv4_network: '10.255.0.0/16', fake_dns_ipv6_network: 'fd00::/64', fake_dns_database_path: 'db'}]}",
        ),
    );
    let servers = setup.config.inbounds.iter().map(|inbound| {
        let InboundProtocol::Dns(server) = &inbound.protocol else { panic!("{}", inbound.name) };
        server
    });
    let servers: Vec<&adit_model::DnsInbound> = servers.collect();
    let shown = |servers: &[std::sync::Arc<adit_model::Upstream>]| {
        let all = servers.iter().map(|server| format!("{} {:?}", server.server, server.through.as_deref()));
        all.collect::<Vec<_>>()
    };
    assert_eq!(shown(&servers[0].direct), ["192.0.2.53:53 None"]);
    assert_eq!(shown(&servers[0].upstreams), ["dns.example:5353 Some(\"server\")"]);
    assert_eq!((servers[0].transports, servers[0].fake), (Transports::Udp, false));
    assert!(!servers[0].allow.is_empty() && servers[1].allow.is_empty(), "private networks, and nobody else");
    assert_eq!(shown(&servers[1].direct), ["192.0.2.53:55 None"]);
    assert_eq!(shown(&servers[1].upstreams), ["8.8.8.8:53 Some(\"server\")"]);
    assert_eq!((servers[1].transports, servers[2].fake), (Transports::Both, true));
    let fake = setup.config.dns.fake.clone().unwrap();
    assert_eq!(
        (fake.v4.to_string(), fake.v6.unwrap().to_string()),
        ("10.255.0.0/16".into(), "fd00::/64".into())
    );
    assert_eq!(
        (fake.ttl.as_secs(), fake.store, fake.filter.len()),
        (20, adit_model::FakeStore::At("db".into()), 0)
    );
    // Questions of datagrams go to the server in streams.
    let OutboundProtocol::Shadowsocks(client) = &setup.config.outbounds[0].protocol else {
        panic!("no server")
    };
    assert_eq!(client.transports, Transports::Tcp);

    let one = |locals: &str| {
        let text = format!(
            "{{server: '192.0.2.1', server_port: 1, password: 'p', method: 'aes-128-gcm', locals: [{locals}]}}"
        );
        run(RustProgram::Local, "", Some(&text))
    };
    let fake =
        one("{protocol: 'fake-dns', local_port: 55}, {local_port: 1080}").unwrap().config.dns.fake.unwrap();
    assert_eq!(
        (fake.v4.to_string(), fake.v6.unwrap().to_string()),
        ("172.16.0.0/12".into(), "fc00::/7".into())
    );
    assert_eq!((fake.ttl.as_secs(), fake.store), (10, adit_model::FakeStore::Usual));
    for (locals, want) in [
        (
            "{protocol: 'dns', local_port: 1, local_dns_address: '/run/dns.sock'}",
            "local_dns_address: not an IP address",
        ),
        (
            "{protocol: 'fake-dns', local_port: 1, fake_dns_ipv4_network: 'fd00::/64'}",
            "fake_dns_ipv4_network: not a network of IPv4",
        ),
        (
            "{protocol: 'fake-dns', local_port: 1}, {protocol: 'fake-dns', local_port: 2, fake_dns_ipv4_network: '10.0.0.0/8'}",
            "locals[1].protocol: two ports of protocol fake-dns",
        ),
    ] {
        let found = one(locals).unwrap_err().1.to_string();
        assert!(found.contains(want), "{found}");
    }
}

#[test]
fn names_by_flags() {
    let server = "-s 192.0.2.1:1 -m aes-128-gcm -k p -b 127.0.0.1:53";
    let line =
        format!("{server} --protocol dns --local-dns-addr 192.0.2.53:54 --remote-dns-addr dns.example:55");
    let setup = good(RustProgram::Local, &line, None);
    let InboundProtocol::Dns(port) = &setup.config.inbounds[0].protocol else { panic!("no port") };
    assert_eq!(port.direct[0].server.to_string(), "192.0.2.53:54");
    assert_eq!(port.upstreams[0].server.to_string(), "dns.example:55");
    let line = format!(
        "{server} --protocol fake-dns --fake-dns-ipv4-network 10.1.0.0/16 --fake-dns-ipv6-network fd01::/64 \
         --fake-dns-record-expire-duration 3 --fake-dns-database-path db"
    );
    let fake = good(RustProgram::Local, &line, None).config.dns.fake.unwrap();
    assert_eq!((fake.v4.to_string(), fake.ttl.as_secs()), ("10.1.0.0/16".into(), 3));
    let found =
        run(RustProgram::Local, &line.replace("fd01::/64", "10.1.0.0/16"), None).unwrap_err().1.to_string();
    assert!(found.contains("--fake-dns-ipv6-network: not a network of IPv6"), "{found}");
}
