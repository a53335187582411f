//! Every key of the files with values of wrong types.

use adit_model::Config;
use adit_model::diagnostic::Diagnostics;

use super::{SnellProgram, parse};

/// Values of all types, empty ones among them.
const VALUES: [&str; 11] = ["zz", "7", "-1", "1.5", "true", "false", "a, b", ",", "", "\"\"", "{}"];

/// Every key of a server that goes with the others.
const SERVER: &str = "[snell-server]
listen = 127.0.0.1:9
psk = 0123456789abcdef
obfs = http
udp = false
quic = false
ipv6 = true
dns-ip-preference = prefer-ipv4
egress-interface = eth9
dns = 192.0.2.53
tfo = true
version = 4
brutal = true
brutal-mbps = 33
brutal-cwnd-gain = 25
";

/// The rest of them.
const OTHER_SERVER: &str = "[snell-server]
psk = 0123456789abcdef
version = 6
mode = unshaped
pacing-mbps = 44
brutal-mbps = 33
brutal-cwnd-gain = 25
ipv6 = false
";

/// Every key of a client, and of the capture of a whole machine.
const CLIENT: &str = "[snell-client]
listen = 127.0.0.1:9
server = a.example:1
psk = 0123456789abcdef
obfs = tls
obfs-host = b.example
udp = false
quic = auto
reuse = true
version = 4
tfo = true
brutal = true
brutal-mbps = 33
brutal-cwnd-gain = 25
[snell-tun]
enable = true
interface = tun9
mtu = 1400
fake-ip-range = 198.18.0.0/16
exclude-uid = 9
ipv6 = true
ipv6-probe-target = 192.0.2.1:443
ipv6-probe-interval = 90s
direct-ip = 10.0.0.0/8
direct-domain = c.example
upstream-dns = 192.0.2.53
lan = eth8
";

/// The rest of them.
const OTHER_CLIENT: &str = "[snell-client]
server = a.example:1
psk = 0123456789abcdef
version = 6
mode = unshaped
pacing-mbps = 44
[snell-tun]
enable = false
";

/// Values that are obeyed by changing nothing: they say what holds without the key, or without another one.
const MEANT: &[(&str, &str)] = &[
    ("udp", "true"),
    ("udp", "7"),
    ("quic", "true"),
    ("quic", "false"),
    ("ipv6", "true"),
    ("brutal", "false"),
    ("tfo", "false"),
    ("reuse", "false"),
    ("enable", "false"),
    // An error about a missing server is at the section.
    ("server", ""),
    ("server", "\"\""),
];

fn load(program: SnellProgram, text: &str) -> (Option<Config>, Diagnostics) {
    match parse(program, None, "s.conf", text) {
        Ok(loaded) => (Some(loaded.config), loaded.diagnostics),
        Err(found) => (None, found),
    }
}

/// A text with another value at a line, which counts from 0, or without the line.
fn with(sample: &str, line: usize, value: Option<&str>) -> String {
    let mut out = String::new();
    for (n, text) in sample.lines().enumerate() {
        let (key, _) = text.split_once(" = ").unwrap_or((text, ""));
        match value {
            None if n == line => {}
            Some(value) if n == line => out.push_str(&format!("{key} = {value}\n")),
            _ => out.push_str(&format!("{text}\n")),
        }
    }
    out
}

#[test]
fn every_key_of_a_wrong_type_is_obeyed_or_reported() {
    let mut lost = String::new();
    for (program, sample) in [
        (SnellProgram::Server, SERVER),
        (SnellProgram::Server, OTHER_SERVER),
        (SnellProgram::Client, CLIENT),
        (SnellProgram::Client, OTHER_CLIENT),
    ] {
        let (config, found) = load(program, sample);
        assert!(config.is_some(), "{found}");
        for (n, line) in sample.lines().enumerate() {
            let Some((key, usual)) = line.split_once(" = ") else { continue };
            let (nothing, _) = load(program, &with(sample, n, None));
            for value in VALUES.into_iter().filter(|value| *value != usual && !MEANT.contains(&(key, value)))
            {
                let (config, found) = load(program, &with(sample, n, Some(value)));
                let is_reported = found.iter().any(|finding| finding.line == n + 1 && finding.key == key);
                if !is_reported && config == nothing {
                    lost.push_str(&format!("{} {key} = {value}\n", program.name()));
                }
            }
        }
    }
    assert!(lost.is_empty(), "neither obeyed nor reported:\n{lost}");
}

#[test]
fn the_samples_have_every_key_that_a_reader_knows() {
    // The table in the documentation of the module is what a person sees, so it must name them, too.
    let text = include_str!("mod.rs").to_owned() + include_str!("tun/mod.rs");
    let samples = [SERVER, OTHER_SERVER, CLIENT, OTHER_CLIENT].concat();
    for source in [
        include_str!("snell_to_model.rs"),
        include_str!("pace.rs"),
        include_str!("tun/mod.rs"),
        include_str!("version.rs"),
    ] {
        for call in [
            "keys.flag(\"",
            "keys.list(\"",
            "keys.parsed(\"",
            "self.flag(\"",
            "self.parsed(\"",
            "self.take(\"",
        ] {
            for rest in source.split(call).skip(1) {
                let key = rest.split('"').next().expect("a split has a first part");
                assert!(samples.contains(&format!("\n{key} = ")), "no sample has {key}");
                assert!(text.contains(&format!("`{key}`")), "the documentation has no {key}");
            }
        }
    }
}

#[test]
fn keys_given_twice_or_in_the_wrong_section_are_reported() {
    for (program, text, want) in [
        (
            SnellProgram::Server,
            "[snell-server]\npsk = abc\nudp = true\nudp = false\n",
            "s.conf:4:1: warning: udp: given twice",
        ),
        (
            SnellProgram::Server,
            "udp = false\n[snell-server]\npsk = abc\n",
            "s.conf:1:1: warning: udp: stands outside",
        ),
        (
            SnellProgram::Server,
            "[snell-server]\npsk = abc\nreuse = true\n",
            "s.conf:3:1: warning: reuse: unknown key",
        ),
        (
            SnellProgram::Client,
            "[snell-client]\npsk = abc\nserver = a:1\nexclude-uid = 9\n",
            "s.conf:4:1: warning: exclude-uid: unknown key",
        ),
        // A capture that nobody switches on.
        (
            SnellProgram::Client,
            "[snell-client]\npsk = abc\nserver = a:1\n[snell-tun]\nenable = maybe\n",
            "s.conf:5:1: warning: enable: neither true nor false",
        ),
    ] {
        let (config, found) = load(program, text);
        assert!(config.is_some() && found.to_string().contains(want), "{want}: {found}");
    }
}
