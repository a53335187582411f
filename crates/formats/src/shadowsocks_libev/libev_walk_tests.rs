//! Every key of the file with values of wrong types.

use super::*;
use crate::walk::{DialectReader, walk};

/// Every key of the family, each on a line of its own.
const SAMPLE: &str = r#"{
    "server": ["127.0.0.1", "127.0.0.2:8389"],
    "server_port": 8388,
    "local_address": "127.0.0.1",
    "local_ipv4_address": "192.0.2.1",
    "local_ipv6_address": "2001:db8::1",
    "local_port": 1080,
    "password": "secret",
    "key": "MDEyMzQ1Njc4OWFiY2RlZjAxMjM0NTY3ODlhYmNkZWY=",
    "method": "aes-256-gcm",
    "timeout": 60,
    "user": "nobody",
    "plugin": "v2ray-plugin",
    "plugin_opts": "server",
    "fast_open": true,
    "reuse_port": true,
    "nofile": 4096,
    "nameserver": "192.0.2.53",
    "tunnel_address": "a.example:53",
    "mode": "tcp_and_udp",
    "mtu": 1400,
    "mptcp": true,
    "ipv6_first": true,
    "use_syslog": true,
    "no_delay": true,
    "tcp_tproxy": true,
    "workdir": "/w",
    "acl": "/a.acl",
    "manager_address": "/m.sock",
    "auth": false,
    "dscp": {"8388": "EF"},
    "port_password": {"8388": "one", "8389": "two"}
}"#;

#[test]
fn every_key_of_a_wrong_type_is_obeyed_or_reported() {
    let entry = |program: LibevProgram| -> DialectReader<'static, _> {
        let run = move |text: &str| match load(program, &LibevFlags::default(), Some(("c.json", text))) {
            Ok(setup) => {
                let ShadowsocksSetup { config, process, acl, acl_of, control, online, diagnostics } = setup;
                (Some((config, process, acl, acl_of, control, online)), diagnostics)
            }
            Err(found) => (None, found),
        };
        (program.name(), Box::new(run))
    };
    let entries: Vec<_> = LibevProgram::ALL.into_iter().map(entry).collect();
    let meant = [
        // None, as for the programs.
        ("plugin", "null"),
        ("plugin", "\"\""),
        ("plugin_opts", "null"),
        ("plugin_opts", "\"\""),
        // The whole key is reported.
        ("dscp.8388", "*"),
    ];
    // The password counts without a key alone.
    let sample = SAMPLE.replace("MDEyMzQ1Njc4OWFiY2RlZjAxMjM0NTY3ODlhYmNkZWY=", "");
    let sample = sample.replace("\"key\": \"\"", "\"key\": null");
    walk(&[SAMPLE, &sample], &entries, &meant, &[]);
}
