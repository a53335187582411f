//! A certificate from `pebble`, the certificate authority for tests of Let's Encrypt's makers: fetched, kept, renewed in place.
//!
//! `go install github.com/letsencrypt/pebble/v2/cmd/pebble@latest`, and `pebble-challtestsrv` beside it.

use std::net::SocketAddr;
use std::os::unix::fs::PermissionsExt as _;
use std::process::Stdio;
use std::time::{Duration, Instant};
use std::{fs, thread};

use adit_testkit::peer::Peer;
use adit_testkit::{skipped, unused_addr};

use crate::support::{Dir, Running, finish};

/// Seconds of validity: the last third is for renewal.
const VALID_S: u64 = 45;
const HOST: &str = "bridge.example";

/// The certificate that a server shows, by its fingerprint; none if the handshake fails.
fn shown(dir: &Dir, at: SocketAddr) -> Option<String> {
    let at = at.to_string();
    let line = ["s_client", "-connect", &at, "-servername", HOST, "-showcerts"];
    let (_, text, _) = finish(dir.command("openssl", &line), "");
    text.contains("BEGIN CERTIFICATE").then(|| {
        let (status, print, error) =
            finish(dir.command("openssl", &["x509", "-noout", "-serial", "-ext", "subjectAltName"]), &text);
        assert_eq!(status, 0, "{error}");
        assert!(print.contains("DNS:bridge.example") && print.contains("DNS:other.example"), "{print}");
        print
    })
}

/// Whether all programs are there. Says so if not.
fn has_programs(dir: &Dir) -> bool {
    let is_missing = |program: &&str| {
        let mut command = dir.command(program, &["-help"]);
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).status().is_err()
    };
    let missing = ["pebble", "pebble-challtestsrv", "openssl"].into_iter().find(is_missing);
    if let Some(program) = missing {
        skipped(format_args!("no {program}"));
    }
    missing.is_none()
}

/// Starts the authority, which finds each name at the address of `answers` and asks there; the address of its directory.
fn authority(dir: &Dir, answers: SocketAddr) -> (Peer, Peer, String) {
    let [at, manager, names] = [unused_addr(), unused_addr(), unused_addr()];
    let line = format!(
        "req -x509 -newkey rsa:2048 -nodes -keyout ca.key -out ca.pem -days 2 -subj /CN=localhost \
         -addext subjectAltName=IP:{} -addext basicConstraints=critical,CA:FALSE",
        at.ip()
    );
    let words: Vec<&str> = line.split_ascii_whitespace().collect();
    let (status, _, error) = finish(dir.command("openssl", &words), "");
    assert_eq!(status, 0, "{error}");
    let config = format!(
        "{{\"pebble\":{{\"listenAddress\":\"{at}\",\"managementListenAddress\":\"{manager}\",\
         \"certificate\":\"ca.pem\",\"privateKey\":\"ca.key\",\"httpPort\":{},\"tlsPort\":1,\
         \"keyAlgorithm\":\"ecdsa\",\
         \"profiles\":{{\"default\":{{\"description\":\"short\",\"validityPeriod\":{VALID_S}}}}}}}}}",
        answers.port()
    );
    dir.file("pebble.json", &config);
    let names_text = names.to_string();
    let here = answers.ip().to_string();
    let flags =
        ["-dnsserver", &names_text, "-defaultIPv4", &here, "-defaultIPv6", "", "-http01", "", "-https01", ""];
    let mut command = dir.command("pebble-challtestsrv", &flags);
    let beside = unused_addr();
    command.args(["-tlsalpn01", "", "-doh", "", "-management", &beside.to_string()]);
    let resolver = Peer::start(&mut command, beside);
    // It refuses some nonces, as they do in the wild.
    let mut command = dir.command("pebble", &["-config", "pebble.json", "-dnsserver", &names_text]);
    command.env("PEBBLE_VA_NOSLEEP", "1").env("PEBBLE_WFE_NONCEREJECT", "20");
    (resolver, Peer::start(&mut command, at), format!("https://{at}/dir"))
}

#[test]
#[ignore = "interop: needs pebble, pebble-challtestsrv and openssl; takes a minute"]
fn a_certificate_is_fetched_and_renewed_without_a_restart() {
    let dir = Dir::new();
    if !has_programs(&dir) {
        return;
    }
    let (answers, listen) = (unused_addr(), unused_addr());
    let (_resolver, _pebble, directory) = authority(&dir, answers);
    let (answers, at) = (answers.to_string(), listen.to_string());
    let names = format!("{HOST},other.example");
    let mut words = vec!["snowflake-server", "--acme-hostnames", &names, "--acme-email", "me@example.org"];
    words.extend(["-acme-directory", &directory, "-acme-http", &answers, "-acme-cert-cache", "cache"]);
    words.extend(["-listen", &at, "-target", "127.0.0.1:9"]);
    let mut command = dir.adit(&words);
    command.env("SSL_CERT_FILE", "ca.pem");
    let server = Running::start(command);
    server.line("a new certificate is in use");
    let first = shown(&dir, listen).expect("a certificate");
    for name in [HOST, "acme_account+key"] {
        let mode = fs::metadata(dir.path().join("cache").join(name)).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o600, "{name}");
    }
    let began = Instant::now();
    let mut now = first.clone();
    while now == first {
        assert!(began.elapsed() < Duration::from_secs(2 * VALID_S), "not renewed");
        thread::sleep(Duration::from_secs(1));
        now = shown(&dir, listen).expect("a certificate all the time");
    }
    assert!(began.elapsed() > Duration::from_secs(VALID_S / 3), "renewed at once");
    // A second process goes on with what the first one has kept.
    server.signal("TERM");
    let (status, log) = server.end();
    assert!(status.success() && !log.contains("no certificate was fetched"), "{log}");
    let mut command = dir.adit(&words);
    command.env("SSL_CERT_FILE", "ca.pem");
    let server = Running::start(command);
    server.line("listening on");
    assert_eq!(shown(&dir, listen), Some(now));
}

/// The port of an inbound fetches one as the server does.
#[test]
#[ignore = "interop: needs pebble, pebble-challtestsrv and openssl"]
fn the_port_of_a_carrier_fetches_a_certificate() {
    let dir = Dir::new();
    if !has_programs(&dir) {
        return;
    }
    let (answers, listen) = (unused_addr(), unused_addr());
    let (_resolver, _pebble, directory) = authority(&dir, answers);
    let text = format!(
        "[[inbound]]\nname = \"bridge\"\nprotocol = \"tunnel\"\nlisten = \"{listen}\"\ntarget = \"127.0.0.1:9\"\n\
         carrier = \"snowflake\"\nsnowflake-tls = \"acme\"\nsnowflake-acme-folder = \"cache\"\n\
         snowflake-acme-names = [\"{HOST}\", \"other.example\"]\nsnowflake-acme-directory = \"{directory}\"\n\
         snowflake-acme-http = \"{answers}\"\n[[outbound]]\nprotocol = \"direct\"\n"
    );
    let config = dir.file("adit.toml", &text);
    let mut command = dir.adit(&["run", "-c"]);
    command.arg(&config).env("SSL_CERT_FILE", "ca.pem");
    let server = Running::start(command);
    server.line("a new certificate is in use");
    shown(&dir, listen).expect("a certificate");
}
