//! `carrier = "snowflake"` of both ends, with TLS at the bridge, over proxies of adit and of Debian.

use std::net::TcpStream;
use std::path::PathBuf;
use std::time::Duration;

use adit_testkit::in_own_network;

use super::{
    FINGERPRINT, ICE, TARGET, exchange, has, network, proxy, serve, start_broker, start_proxy, start_stun,
};
use crate::support::{Dir, Running, finish, link};

/// The bridge as proxies reach it.
const RELAY: &str = "wss://203.0.113.2:8081/";
/// Keys that both ends have.
const SHARED: &str = "protocol = \"shadowsocks\"\nmethod = \"2022-blake3-aes-128-gcm\"\n\
    password = \"AAAAAAAAAAAAAAAAAAAAAA==\"\ncarrier = \"snowflake\"\n";

#[test]
#[ignore = "interop: needs root, iproute2, openssl, and snowflake-proxy and coturn of Debian"]
fn debians_proxy_carries_adits_protocols_to_a_port_with_tls() {
    let needed = ["/usr/bin/snowflake-proxy", "/usr/bin/turnserver", "/usr/bin/openssl"];
    let path = "interop_snowflake::carrier::debians_proxy_carries_adits_protocols_to_a_port_with_tls";
    if !has(&needed) || !in_own_network(path) {
        return;
    }
    network(5);
    let dir = Dir::new();
    let certificate = make_certificate(&dir);
    let _stun = start_stun(&dir);
    serve();
    let _broker = start_broker(&dir, &link(&dir, "snowflake-broker"), RELAY, FINGERPRINT);
    let _bridge = start_bridge(&dir);
    let start = |whose| {
        let mut command = proxy(&dir, whose, RELAY);
        command.env("SSL_CERT_FILE", &certificate);
        start_proxy(command)
    };
    let first = start("debian");
    let client = start_client(&dir);
    let mut stream = TcpStream::connect(client.address()).unwrap();
    stream.set_read_timeout(Some(Duration::from_secs(90))).unwrap();
    let usual = exchange(&mut stream, None);
    // adit's proxy takes the place of Debian's, and Debian's that of adit's, in the middle of a transfer.
    let second = start("adit");
    let to_adit = exchange(&mut stream, Some(&first));
    let _third = start("debian");
    let to_debian = exchange(&mut stream, Some(&second));
    println!("longest pauses: {usual:?}; from Debian's proxy to adit's {to_adit:?}; and back {to_debian:?}");
    assert!(to_adit.max(to_debian) <= Duration::from_secs(6), "{to_adit:?}, {to_debian:?}");
}

/// A certificate of the bridge's address, which proxies take for an authority too. Its key lies beside it.
fn make_certificate(dir: &Dir) -> PathBuf {
    let line = "req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -keyout key.pem -out bridge.pem -days 2 \
        -config request";
    let request = "[req]\ndistinguished_name = name\nx509_extensions = more\nprompt = no\n[name]\nCN = bridge\n[more]\n\
        subjectAltName = IP:203.0.113.2\nbasicConstraints = CA:FALSE\n";
    dir.file("request", request);
    let words: Vec<&str> = line.split_ascii_whitespace().collect();
    let (status, _, error) = finish(dir.command("openssl", &words), "");
    assert_eq!(status, 0, "{error}");
    dir.path().join("bridge.pem")
}

fn start_bridge(dir: &Dir) -> Running {
    let text = format!(
        "[[inbound]]\nname = \"bridge\"\nlisten = \"203.0.113.2:8081\"\nallow-private = true\n{SHARED}\
         snowflake-certificate = \"bridge.pem\"\nsnowflake-certificate-key = \"key.pem\"\n"
    );
    start(dir, "bridge.toml", &text)
}

fn start_client(dir: &Dir) -> Running {
    let text = format!(
        "[[inbound]]\nname = \"in\"\nprotocol = \"tunnel\"\nlisten = \"127.0.0.1:0\"\ntarget = \"{TARGET}\"\n\
         outbound = \"flurry\"\n[[outbound]]\nname = \"flurry\"\nserver = \"bridge.example:1\"\n{SHARED}\
         snowflake-broker = \"http://203.0.113.1:8080/\"\nsnowflake-ice = [\"{ICE}\"]\n"
    );
    start(dir, "client.toml", &text)
}

fn start(dir: &Dir, name: &str, text: &str) -> Running {
    dir.file(name, text);
    let running = Running::start(dir.adit(&["run", "-c", name]));
    running.line("listening");
    running
}
