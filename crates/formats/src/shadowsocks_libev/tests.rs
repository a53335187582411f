use std::time::Duration;

use adit_model::{
    AddressFamilies, Captured, CapturedBy, ClientCover, InboundProtocol, KeyForm, Level, ObfsClient,
    ObfsServer, OutboundProtocol, Secret, ServerCover, ShadowsocksClient, ShadowsocksServer, Transports,
};
use proptest::prelude::*;

use super::*;
use crate::shadowsocks::setup::{Control, ManagerAddress};

/// The files that Debian 12 ships in `/etc/shadowsocks-libev`, keys and kinds of values alike.
const DEBIAN: &str = "{\n    \"server\":[\"::1\", \"127.0.0.1\"],\n    \"mode\":\"tcp_and_udp\",\n    \"server_port\":8388,\n    \
    \"local_port\":1080,\n    \"password\":\"60jsKDQuuneN\",\n    \"timeout\":86400,\n    \"method\":\"chacha20-ietf-poly1305\"\n}\n";
const DEBIAN_OBFS: &str = "{\n    \"server\":\"127.0.0.1\",\n    \"server_port\":8388,\n    \"local_port\":1080,\n    \
    \"password\":\"\",\n    \"timeout\":60,\n    \"method\":\"chacha20-ietf-poly1305\",\n    \"mode\":\"tcp_and_udp\",\n    \
    \"fast_open\":true,\n    \"plugin\":\"obfs-server\",\n    \"plugin_opts\":\"obfs=tls;failover=127.0.0.1:8443;fast-open\"\n}\n";

fn read_flags(program: LibevProgram, line: &str) -> LibevFlags {
    match flags(program, line.split_whitespace().map(Into::into)) {
        Ok(LibevInvocation::Run(flags)) => *flags,
        Ok(LibevInvocation::Help) => panic!("help: {line}"),
        Err(found) => panic!("{found}"),
    }
}

fn run(program: LibevProgram, line: &str, file: Option<&str>) -> Result<ShadowsocksSetup, Diagnostics> {
    load(program, &read_flags(program, line), file.map(|text| ("t.json", text)))
}

fn good(program: LibevProgram, line: &str, file: Option<&str>) -> ShadowsocksSetup {
    match run(program, line, file) {
        Ok(setup) => {
            crate::shadowsocks::check_setup(file.unwrap_or_default(), &setup);
            setup
        }
        Err(found) => panic!("{line}\n{found}"),
    }
}

fn server(setup: &ShadowsocksSetup) -> &ShadowsocksServer {
    let InboundProtocol::Shadowsocks(server) = &setup.config.inbounds[0].protocol else {
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
fn a_file_of_another_program_is_named() {
    let file = Some(("t.json", "{\"port_password\":{\"8388\":\"p\"}}"));
    let found = load(LibevProgram::Server, &LibevFlags::default(), file).unwrap_err().to_string();
    assert!(found.contains("hint: port_password is ss-manager's: ss-manager -c t.json"), "{found}");
}

#[test]
fn debians_file_for_a_server() {
    let setup = good(LibevProgram::Server, "-c f", Some(DEBIAN));
    assert!(setup.diagnostics.is_empty(), "{}", setup.diagnostics);
    assert_eq!(listen(&setup), ["[::1]:8388", "127.0.0.1:8388"]);
    let server = server(&setup);
    assert_eq!(server.key.method().name(), "chacha20-ietf-poly1305");
    assert_eq!((server.key.key().text().expose(), server.transports), ("60jsKDQuuneN", Transports::Both));
    assert_eq!(setup.config.limits.idle, Some(Duration::from_secs(86_400)));
    assert_eq!(setup.config.udp.idle, Duration::from_secs(86_400));
    assert_eq!(setup.config.outbounds[0].dial.timeout, Duration::from_secs(10));
    assert_eq!(setup.config.outbounds[0].dial.family, AddressFamilies::PreferV4);
}

#[test]
fn debians_file_for_a_client() {
    let setup = good(LibevProgram::Local, "", Some(DEBIAN));
    assert!(setup.diagnostics.is_empty(), "{}", setup.diagnostics);
    assert_eq!(listen(&setup), ["127.0.0.1:1080"]);
    let OutboundProtocol::Group(group) = &setup.config.outbounds[0].protocol else { panic!("no group") };
    assert_eq!(group.members.iter().map(|m| &*m.outbound).collect::<Vec<_>>(), ["server-1", "server-2"]);
    assert_eq!(client(&setup, 1).server.to_string(), "[::1]:8388");
    assert_eq!(client(&setup, 2).server.to_string(), "127.0.0.1:8388");
}

#[test]
fn debians_file_for_a_plugin() {
    let setup = good(LibevProgram::Server, "", Some(DEBIAN_OBFS));
    let ServerCover::Plugin(plugin) = &server(&setup).cover else { panic!("no plugin") };
    assert_eq!(&*plugin.options, "obfs=tls;failover=127.0.0.1:8443;fast-open");
    assert!(setup.config.inbounds[0].socket.fast_open);
    // ss-server takes an empty password too: the key is that of no bytes at all.
    assert_eq!(server(&setup).key.key().form(), KeyForm::Base64);
    assert_eq!(server(&setup).key.key().text().expose(), "1B2M2Y8AsgTpgAmY7PhCflmtsk7zzb4Cl/BbOVgnRT8=");
    assert_eq!(
        setup.diagnostics.to_string(),
        "t.json:5:16: warning: password: empty, so everybody knows it\n  hint: choose a password\n"
    );
}

#[test]
fn flags_count_more_than_the_file() {
    const FILE: &str = "{\"server\":\"1.1.1.1\",\"server_port\":\"1\",\"password\":\"file\",\"timeout\":\"5\",\"mode\":\"udp_only\",\
        \"method\":\"aes-128-gcm\",\"local_address\":\"127.0.0.2\",\"local_port\":2}";
    let setup = good(LibevProgram::Local, "", Some(FILE));
    assert_eq!(listen(&setup), ["127.0.0.2:2"]);
    assert_eq!(
        (client(&setup, 0).server.to_string(), client(&setup, 0).transports),
        ("1.1.1.1:1".into(), Transports::Udp)
    );
    assert_eq!(setup.config.outbounds[0].dial.timeout, Duration::from_secs(5));
    assert_eq!(setup.config.udp.idle, Duration::from_secs(60));
    let line = "-c f -s 2.2.2.2 -s [::2]:9 -p 3 -k one --password flag -m aes-256-gcm -l4 -b ::1 -t 20 -uv -6 --fast-open";
    let setup = good(LibevProgram::Local, line, Some(FILE));
    assert_eq!(listen(&setup), ["[::1]:4"]);
    let servers = [1, 2].map(|n| client(&setup, n).server.to_string());
    assert_eq!(servers, ["2.2.2.2:3", "[::2]:9"]);
    let one = client(&setup, 1);
    assert_eq!((one.key.text().expose(), one.key.method().name()), ("flag", "aes-256-gcm"));
    assert_eq!(one.transports, Transports::Both);
    let dial = &setup.config.outbounds[1].dial;
    assert_eq!(
        (dial.timeout, dial.family, dial.fast_open),
        (Duration::from_secs(10), AddressFamilies::Any, true)
    );
    assert_eq!(setup.config.log.level, Level::Debug);
}

#[test]
fn a_server_of_flags_alone() {
    let line = "--reuse-port -p 1 -k x -U -f /run/p -a nobody -n 1024 -d 1.1.1.1,::1 -i eth0 --acl a.acl --manager-address /run/m --mtu 1400";
    let setup = good(LibevProgram::Server, line, None);
    assert_eq!(listen(&setup), ["0.0.0.0:1"]);
    assert!(setup.config.inbounds[0].socket.reuse_port);
    assert_eq!(server(&setup).transports, Transports::Udp);
    let process = &setup.process;
    assert_eq!((process.daemonize, process.pid_file.as_deref()), (true, Some(Path::new("/run/p"))));
    assert_eq!((process.user.as_deref(), process.open_files), (Some("nobody"), Some(1024)));
    assert_eq!(setup.acl.as_deref(), Some(Path::new("a.acl")));
    assert_eq!(setup.control, Control::Report(ManagerAddress::Unix("/run/m".into())));
    assert_eq!(setup.config.udp.mtu, Some(1400));
    let dial = &setup.config.outbounds[0].dial;
    assert_eq!((dial.egress.interface.as_deref(), dial.dns.len()), (Some("eth0"), 2));
    let file = "{\"local_address\":\"192.0.2.1\",\"local_ipv4_address\":\"192.0.2.2\",\"local_ipv6_address\":\"2001:db8::2\"}";
    let setup = good(LibevProgram::Server, "-p 1 -k x", Some(file));
    let sources: Vec<_> = setup.config.outbounds[0].dial.egress.sources().map(|ip| ip.to_string()).collect();
    assert_eq!(sources, ["192.0.2.2", "2001:db8::2"]);
    let line = "-s 127.0.0.1:5 -s ::1 -p 6 -m aes-128-gcm --key AAAAAAAAAAAAAAAAAAAAAA";
    let setup = good(LibevProgram::Server, line, None);
    assert_eq!(listen(&setup), ["127.0.0.1:5", "[::1]:6"]);
    assert_eq!(server(&setup).key.key().form(), KeyForm::Base64);
}

#[test]
fn a_tunnel_and_obfs() {
    let line = "-s a.example -p 1 -l 2 -k x -L [::1]:53 --plugin obfs-local --plugin-opts obfs=http;obfs-host=b.example";
    let setup = good(LibevProgram::Tunnel, line, None);
    let InboundProtocol::Tunnel { target, .. } = &setup.config.inbounds[0].protocol else {
        panic!("no tunnel")
    };
    assert_eq!(target.to_string(), "[::1]:53");
    assert_eq!(client(&setup, 0).cover, ClientCover::Obfs(ObfsClient::Http("b.example".into())));
    for (line, want) in [
        ("--plugin obfs-local --plugin-opts obfs=tls", Some(ObfsClient::Tls("cloudfront.net".into()))),
        (
            "--plugin obfs-local --plugin-opts obfs=tls;fast-open",
            Some(ObfsClient::Tls("cloudfront.net".into())),
        ),
        ("--plugin obfs-local --plugin-opts obfs=http;obfs-uri=/x", None),
        ("--plugin /usr/bin/obfs-local --plugin-opts obfs=tls", None),
        ("--plugin obfs-local", None),
        ("--plugin= --plugin-opts obfs=tls", Some(ObfsClient::Off)),
    ] {
        let setup = good(LibevProgram::Local, &format!("-s a -p 1 -l 2 -k x {line}"), None);
        let cover = &client(&setup, 0).cover;
        match want {
            Some(obfs) => assert_eq!(*cover, ClientCover::Obfs(obfs), "{line}"),
            None => assert!(matches!(cover, ClientCover::Plugin(_)), "{line}"),
        }
    }
    let setup = good(LibevProgram::Server, "-p 1 -k x --plugin obfs-server --plugin-opts obfs=http", None);
    assert_eq!(server(&setup).cover, ServerCover::Obfs(ObfsServer::Http));
}

#[test]
fn a_manager() {
    const FILE: &str = "{\"port_password\":{\"28991\":\"a\",\"28992\":5},\"method\":\"aes-128-gcm\"}";
    let line = "--manager-address 127.0.0.1:28777 -D /tmp/wd -s 127.0.0.1 -s ::1 -u --executable ss-server";
    let setup = good(LibevProgram::Manager, line, Some(FILE));
    assert_eq!(listen(&setup), ["127.0.0.1:28991", "[::1]:28991", "127.0.0.1:28992", "[::1]:28992"]);
    assert_eq!(setup.diagnostics.len(), 1, "--executable has no effect");
    let Control::Manage(manager) = &setup.control else { panic!("no manager") };
    assert_eq!(manager.address, Some(ManagerAddress::Udp("127.0.0.1:28777".parse().unwrap())));
    let mut add = crate::shadowsocks::manager::Add::new(1, Secret::new("p"));
    let inbound = manager.server(&add).unwrap();
    let InboundProtocol::Shadowsocks(server) = &inbound.protocol else { panic!() };
    assert_eq!((server.transports, server.key.method().name()), (Transports::Both, "aes-128-gcm"));
    add.method = Some("nope".into());
    assert_eq!(manager.server(&add), Err("unrecognized method \"nope\"".into()));
    let bare = good(LibevProgram::Manager, "", Some("{}"));
    assert!(bare.config.inbounds.is_empty());
}

#[test]
fn warnings_name_key_and_line() {
    for (keys, want) in [
        ("\"colour\":1", "t.json:2:1: warning: colour: unknown key, so it has no effect\n"),
        ("\"pasword\":1", "hint: did you mean `password`?"),
        ("\"mode\":\"zz\"", "t.json:2:8: warning: mode: unknown mode: zz, so tcp_only is used\n"),
        ("\"password\":\"y\"", "2:1: warning: password: given twice; the last one counts\n"),
        ("\"dscp\":{\"80\":\"EF\"}", "warning: dscp: not in this build yet"),
        (
            "\"local_address\":\"::1\"",
            "warning: local_address: sends from ::1, so nothing but this machine is reached\n",
        ),
        (
            "\"local_address\":\"lan\"",
            "warning: local_address: no address to send from, so it has no effect\n",
        ),
        ("\"timeout\":\"5s\"", "warning: timeout: no whole number of seconds, so 60 is used\n"),
        ("\"reuse_port\":true,\"auth\":false,\"plugin\":null,\"no_delay\":true,\"workdir\":\"x\",", ""),
    ] {
        let text = format!("{{\"server_port\":1,\"password\":\"hunter2\",\n{keys}}}");
        let setup = good(LibevProgram::Server, "", Some(&text));
        let found = setup.diagnostics.to_string();
        assert_eq!(setup.diagnostics.len(), usize::from(!want.is_empty()), "{found}");
        assert!(found.contains(want), "wanted {want}\nfound {found}");
        assert_eq!(setup.strict().is_err(), !want.is_empty());
    }
    let setup = good(LibevProgram::Local, "-s a -p 1 -k x -l 2 -b 0.0.0.0 operand", None);
    let found = setup.diagnostics.to_string();
    assert!(found.contains("ss-local -b: everybody who reaches this port can use it"), "{found}");
    assert!(!found.contains("operand\n") && setup.diagnostics.len() == 2, "{found}");
}

#[test]
fn errors_come_at_once_with_their_places() {
    for (program, line, file, wants) in [
        (
            LibevProgram::Server,
            "",
            None,
            &[
                "command line: server_port: missing\n  hint: give -p, or server_port in the file\n",
                "password: missing",
            ][..],
        ),
        (
            LibevProgram::Local,
            "",
            Some("{\"server\":\"a\"}"),
            &["t.json:1:1: local_port: missing", "server_port: missing", "password: missing"],
        ),
        (LibevProgram::Local, "-p 1 -l 2 -k x", None, &["command line: server: missing"]),
        (LibevProgram::Tunnel, "-s a -p 1 -l 2 -k x", None, &["tunnel_address: missing\n  hint: give -L"]),
        (LibevProgram::Tunnel, "-s a -p 1 -l 2 -k x -L 1.2.3.4", None, &["ss-tunnel -L: port is missing"]),
        (
            LibevProgram::Server,
            "-p x -k x -m zz",
            None,
            &["ss-server -p: no port: x", "ss-server -m: unknown method: zz"],
        ),
        (
            LibevProgram::Server,
            "-p 1 -k x -s www.example",
            None,
            &["ss-server -s: no address of this machine: www.example\n  hint: write an address"],
        ),
        (LibevProgram::Server, "-p 1 -k x -s ::1 -s ::1", None, &["ss-server -s: listed twice: [::1]:1"]),
        (
            LibevProgram::Server,
            "-p 1 --key AAAA -m aes-128-gcm",
            None,
            &["ss-server --key: key 1 for aes-128-gcm must be 16 bytes"],
        ),
        (LibevProgram::Server, "", Some("[1]"), &["t.json:1:1: expected an object, found a list"]),
        (LibevProgram::Server, "", Some("{ // x\n}"), &["t.json:1:3: this dialect has no comments"]),
        (
            LibevProgram::Server,
            "",
            Some(
                "{\"server_port\":1.5,\n\"fast_open\":\"true\",\n\"mtu\":\"1400\",\n\"timeout\":true,\n\"auth\":true}",
            ),
            &[
                "t.json:1:16: server_port: expected a text or a whole number, found a number",
                "2:13: fast_open: expected true or false, found a text",
                "3:7: mtu: expected a number, found a text",
                "4:11: timeout: expected a text or a whole number, found a truth value",
                "5:8: auth: one-time authentication is gone",
            ],
        ),
        (
            LibevProgram::Manager,
            "",
            Some("{\"port_password\":{\"0\":\"hunter2\",\"1\":\"hunter2\",\"1\":\"hunter2\"}}"),
            &[
                "t.json:1:19: port_password[0]: the key is not a port number",
                "port_password[2]: port listed twice: 1",
            ],
        ),
    ] {
        let found = run(program, line, file).unwrap_err();
        crate::read::loaded::assert_inside(file.unwrap_or_default(), &found);
        let found = found.to_string();
        for want in wants {
            assert!(found.contains(want), "wanted {want}\nfound {found}");
        }
        assert!(!found.contains("hunter2"));
    }
}

#[test]
fn flags_that_are_none() {
    for (program, line, want) in [
        (
            LibevProgram::Server,
            "-Z",
            "command line: ss-server -Z: no such flag\n  hint: -h lists the flags\n",
        ),
        (LibevProgram::Server, "-L a:1", "ss-server -L: no such flag"),
        (LibevProgram::Manager, "-p 1", "ss-manager -p: no such flag"),
        (LibevProgram::Local, "-T", "ss-local -T: no such flag"),
        (LibevProgram::Redir, "-i eth0", "ss-redir -i: no such flag"),
        (LibevProgram::Server, "-c", "ss-server -c: a value must follow"),
        (LibevProgram::Server, "--m 1", "ss-server --m: more than one flag begins so"),
        (LibevProgram::Server, "-A", "ss-server -A: one-time authentication is gone"),
    ] {
        let found = flags(program, line.split_whitespace().map(Into::into)).unwrap_err().to_string();
        assert!(found.contains(want), "wanted {want}\nfound {found}");
    }
    for line in ["-h", "--help", "-vh", "-h -Z", "-uh -c"] {
        let asked = flags(LibevProgram::Server, line.split_whitespace().map(Into::into));
        assert!(matches!(asked, Ok(LibevInvocation::Help)), "{line}");
    }
    assert!(read_flags(LibevProgram::Server, "").is_bare && !read_flags(LibevProgram::Server, "-v").is_bare);
    for program in LibevProgram::ALL {
        let text = usage(program);
        assert!(text.starts_with(&format!("usage: {} ", program.name())));
        assert_eq!(text.contains("-L "), program == LibevProgram::Tunnel);
    }
}

#[test]
fn default_files() {
    let paths = default_paths(None, Some(Path::new("/u")));
    assert_eq!(paths[0], Path::new("/u/.config/shadowsocks-libev/config.json"));
    assert_eq!(paths[1], Path::new("/etc/shadowsocks-libev/config.json"));
    let paths = default_paths(Some(Path::new("/x")), None);
    assert_eq!(paths[0], Path::new("/x/shadowsocks-libev/config.json"));
}

#[test]
fn no_slip_shows_a_key() {
    let text = DEBIAN.replace("60jsKDQuuneN", "hunter2");
    for cut in 0..text.len() {
        let slipped = format!("{}{}", &text[..cut], &text[cut + 1..]);
        for program in [LibevProgram::Server, LibevProgram::Local] {
            let found = match run(program, "", Some(&slipped)) {
                Ok(setup) => setup.diagnostics,
                Err(found) => found,
            };
            assert!(!found.to_string().contains("hunter2"), "{found}\n{slipped}");
        }
    }
    let flags = read_flags(LibevProgram::Server, "-k hunter2 --key hunter2 -p 1");
    assert!(!format!("{flags:?}").contains("hunter2"));
    assert!(!format!("{:?}", good(LibevProgram::Server, "-k hunter2 -p 1", None)).contains("hunter2"));
}

/// Pieces from which nearly right files are made.
const PIECES: &[&str] = &[
    "\"server\":",
    "\"a\",",
    "[\"::1\",\"a:1\"],",
    "\"server_port\":1,",
    "\"password\":\"é\",",
    "\"password\":\"\",",
    "\"local_port\":\"2\",",
    "\"key\":\"AAAA\",",
    "\"method\":\"aes-128-gcm\",",
    "\"method\":\"2022-blake3-aes-128-gcm\",",
    "\"mode\":\"tcp_and_udp\",",
    "\"plugin\":\"p\",",
    "\"plugin\":\"obfs-local\",",
    "\"plugin_opts\":\"obfs=http\",",
    "\"port_password\":{\"1\":\"a\"},",
    "\"tunnel_address\":\"a:1\",",
    "{",
    "}",
    ":",
    ",",
    "\"",
    "1",
    "null,",
    "\\",
    "\n",
    "true,",
    "\"nameserver\":\"1.1.1.1\",",
    "\"user\":\"u\",",
    "\"x\":1,",
];

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn any_bytes(data in proptest::collection::vec(any::<u8>(), 0..200)) {
        fuzz_libev(&data);
    }

    #[test]
    fn nearly_right_files(pieces in proptest::collection::vec(proptest::sample::select(PIECES), 0..12)) {
        let text = pieces.concat();
        fuzz_libev(text.as_bytes());
        fuzz_libev(format!("{{\"server\":\"::1\",\"server_port\":1,\"password\":\"p\",\"local_port\":2,\"tunnel_address\":\"a:1\",{text}}}").as_bytes());
    }
}

#[test]
fn redir_takes_what_the_firewall_brings() {
    for (flags, by, transports) in [
        ("", CapturedBy::Redirect, Transports::Tcp),
        ("-u", CapturedBy::Redirect, Transports::Both),
        ("-T -u", CapturedBy::Tproxy, Transports::Both),
        ("-U", CapturedBy::Redirect, Transports::Udp),
    ] {
        let setup = good(LibevProgram::Redir, &format!("-s a -p 1 -l 2 -b 0.0.0.0 -k x {flags}"), None);
        let inbound = &setup.config.inbounds[0];
        let captured = Captured { by, transports };
        assert_eq!(inbound.protocol, InboundProtocol::Captured(captured), "{flags}");
        assert_eq!((&*inbound.name, inbound.listen[0].to_string().as_str()), ("redir", "0.0.0.0:2"));
        assert_eq!(setup.diagnostics.iter().count(), 0, "it serves nobody who asks it directly");
        assert_eq!(setup.config.udp.idle.as_secs(), 600);
    }
}
