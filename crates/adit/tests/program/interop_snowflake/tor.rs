//! A Tor network of this machine's own, whose one bridge is reached through Snowflake: an authority, three relays, a bridge,
//! and clients.

use std::fs::DirBuilder;
use std::os::unix::fs::DirBuilderExt as _;
use std::process::Command;
use std::time::Duration;

use adit_testkit::in_own_network;

use super::{
    ICE, RELAY, SERVER, TARGET, exchange, has, network, proxy, serve, start_broker, start_proxy, start_stun,
};
use crate::support::{Dir, Running, finish, link, socks5};

const AUTHORITY: &str = "203.0.113.10";
const RELAYS: [(&str, &str); 3] =
    [("one", "203.0.113.11"), ("two", "203.0.113.12"), ("three", "203.0.113.13")];
const BRIDGE: &str = "203.0.113.14";
/// An authority whose votes and consensus come each 10 s.
const VOTES: &str = "AuthoritativeDirectory 1\nV3AuthoritativeDirectory 1\nTestingV3AuthInitialVotingInterval 5\n\
    TestingV3AuthInitialVoteDelay 2\nTestingV3AuthInitialDistDelay 2\nV3AuthVotingInterval 10\nV3AuthVoteDelay 2\n\
    V3AuthDistDelay 2\nTestingDirAuthVoteExit *\nTestingDirAuthVoteGuard *\nTestingMinExitFlagThreshold 0\n";

#[test]
#[ignore = "interop: needs root, iproute2, and tor and coturn of Debian"]
fn a_circuit_of_tor_outlives_its_proxy() {
    let path = "interop_snowflake::tor::a_circuit_of_tor_outlives_its_proxy";
    let needed = ["/usr/sbin/tor", "/usr/bin/tor-gencert", "/usr/bin/turnserver"];
    if !has(&needed) || !in_own_network(path) {
        return;
    }
    network(14);
    let dir = Dir::new();
    let _stun = start_stun(&dir);
    serve();
    let (tor, fingerprint) = Tor::start(&dir);
    let _broker = start_broker(&dir, &link(&dir, "snowflake-broker"), RELAY, &fingerprint);
    // adit in every role. It has the plugin's name as a word behind its own.
    let first = start_proxy(proxy(&dir, "adit", RELAY));
    let adit = env!("CARGO_BIN_EXE_adit");
    let log = dir.path().join("client.log");
    let plugin = format!("{adit} snowflake-client -log {}", log.display());
    let client = tor.client("client", &plugin, &fingerprint, 9050);
    let mut stream = circuit(9050);
    exchange(&mut stream, None);
    // Another proxy takes over in the middle: Debian's, if it is there. Tor does not notice.
    let debian = if has(&["/usr/bin/snowflake-proxy"]) { "debian" } else { "adit" };
    let second = start_proxy(proxy(&dir, debian, RELAY));
    let pause = exchange(&mut stream, Some(&first));
    let log = client.log();
    assert_eq!(log.matches("Bootstrapped 100%").count(), 1, "{log}");
    assert!(log.contains("Managed proxy") && log.contains("connected"), "the plugin speaks to Tor: {log}");
    println!("adit's client and proxy, then {debian}'s proxy: {pause:?} without a byte");
    drop((stream, client));
    if has(&["/usr/bin/snowflake-client"]) {
        // adit's server alone, among Debian's programs.
        let _client = tor.client("client2", "/usr/bin/snowflake-client", &fingerprint, 9051);
        exchange(&mut circuit(9051), None);
        println!("{debian}'s proxy, Debian's client: all bytes");
    }
    drop(second);
}

/// A stream to the target through three relays, the first of which is the bridge.
fn circuit(port: u16) -> std::net::TcpStream {
    let (host, target) = TARGET.split_once(':').unwrap();
    let stream = socks5(([127, 0, 0, 1], port).into(), host, target.parse().unwrap());
    stream.set_read_timeout(Some(Duration::from_secs(90))).unwrap();
    stream
}

/// Authority, relays and bridge, which run until they are dropped.
struct Tor<'a> {
    dir: &'a Dir,
    /// The line of torrc that names the authority.
    authority: String,
    running: Vec<Running>,
}

impl<'a> Tor<'a> {
    /// Starts a network, and returns the bridge's fingerprint once its transport listens and relays have a consensus.
    fn start(dir: &'a Dir) -> (Self, String) {
        let mut tor = Self { dir, authority: String::new(), running: Vec::new() };
        let lines = relay(AUTHORITY) + VOTES + &format!("DirPort {AUTHORITY}:7000\n");
        for (name, _) in [("authority", ""), ("bridge", "")].iter().chain(&RELAYS) {
            // Tor makes its folders itself, but for those that are to hold keys before.
            let keys = dir.path().join(name).join("keys");
            DirBuilder::new().mode(0o700).recursive(true).create(keys).unwrap();
        }
        let identity = tor.certify();
        let placeholder =
            format!("DirAuthority a orport=5000 v3ident={identity} {AUTHORITY}:7000 {}\n", "0".repeat(40));
        let own = tor.fingerprint("authority", &(lines.clone() + &placeholder));
        tor.authority = format!("DirAuthority a orport=5000 v3ident={identity} {AUTHORITY}:7000 {own}\n");
        tor.run("authority", &lines);
        for (name, addr) in RELAYS {
            tor.run(name, &relay(addr));
        }
        let server = link(dir, "snowflake-server");
        let bridge = format!(
            "BridgeRelay 1\nPublishServerDescriptor 0\nAddress {BRIDGE}\nORPort {BRIDGE}:5000 IPv4Only\nSocksPort 0\n\
             ExtORPort auto\nServerTransportPlugin snowflake exec {} -disable-tls -log {}\n\
             ServerTransportListenAddr snowflake {SERVER}\n\
             ServerTransportOptions snowflake num-turbotunnel=2 session-memory=8M\n",
            server.display(),
            dir.path().join("server.log").display()
        );
        let fingerprint = tor.fingerprint("bridge", &(bridge.clone() + &tor.authority));
        tor.run("bridge", &bridge);
        tor.running.last().unwrap().line("Registered server transport 'snowflake' at '203.0.113.2:8081'");
        for relay in &tor.running {
            relay.line("Bootstrapped 100%");
        }
        (tor, fingerprint)
    }

    /// The authority's own key, and the fingerprint of it that all others know.
    fn certify(&self) -> String {
        let words = "--create-identity-key -m 12 -a 203.0.113.10:7000 -i authority/keys/authority_identity_key \
            -s authority/keys/authority_signing_key -c authority/keys/authority_certificate --passphrase-fd 0";
        let words: Vec<&str> = words.split_ascii_whitespace().collect();
        let (status, _, error) = finish(self.dir.command("tor-gencert", &words), "pass\n");
        assert_eq!(status, 0, "{error}");
        let file = self.dir.path().join("authority/keys/authority_certificate");
        let text = std::fs::read_to_string(file).unwrap();
        text.lines().find_map(|line| line.strip_prefix("fingerprint ")).unwrap().to_owned()
    }

    fn command(&self, name: &str, lines: &str) -> Command {
        let folder = self.dir.path().join(name);
        let common = "TestingTorNetwork 1\nLog notice stdout\nAssumeReachable 1\nContactInfo none\n";
        let text = format!("{common}Nickname {name}\nDataDirectory {}\n{lines}", folder.display());
        let file = self.dir.file(&format!("{name}.torrc"), &text);
        self.dir.command("tor", &["--defaults-torrc", "/dev/null", "-f", file.to_str().unwrap()])
    }

    /// The fingerprint of a relay, whose key is made.
    fn fingerprint(&self, name: &str, lines: &str) -> String {
        let mut command = self.command(name, lines);
        command.arg("--list-fingerprint");
        let (status, out, error) = finish(command, "");
        assert_eq!(status, 0, "{out}\n{error}");
        let line = out.lines().find_map(|line| line.strip_prefix(&format!("{name} "))).unwrap();
        line.replace(' ', "")
    }

    fn run(&mut self, name: &str, lines: &str) {
        let lines = format!("{lines}{}", self.authority);
        self.running.push(Running::start(self.command(name, &lines)));
    }

    /// A client that knows the bridge, once it has a circuit.
    fn client(&self, name: &str, plugin: &str, fingerprint: &str, port: u16) -> Running {
        let lines = format!(
            "{}SocksPort 127.0.0.1:{port}\nUseBridges 1\nClientTransportPlugin snowflake exec {plugin}\n\
             Bridge snowflake 192.0.2.3:80 {fingerprint} fingerprint={fingerprint} url=http://203.0.113.1:8080/ \
             ice={ICE}\n",
            self.authority
        );
        let client = Running::start(self.command(name, &lines));
        client.line("(handshake_done)");
        client.line("Bootstrapped 100%");
        client
    }
}

/// A relay that connections may leave the network by, to addresses of this machine too.
fn relay(addr: &str) -> String {
    format!(
        "Address {addr}\nORPort {addr}:5000 IPv4Only\nSocksPort 0\nExitRelay 1\nExitPolicy accept *:*\n\
         ExitPolicyRejectPrivate 0\n"
    )
}
