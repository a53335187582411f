//! Every key of the files with values of wrong types.

use std::path::Path;

use super::*;
use crate::walk::{DialectReader, walk};

/// Every key of clients and servers, each on a line of its own.
const SAMPLE: &str = r#"{
    "server": ["127.0.0.1", "127.0.0.2"],
    "server_ipv6": "::1",
    "server_port": [8388, 8389],
    "local_address": "127.0.0.1",
    "local_port": 1080,
    "password": "secret",
    "method": "aes-128-cfb",
    "protocol": "auth_aes128_md5",
    "protocol_param": "7:key",
    "obfs": "http_simple",
    "obfs_param": "a.example",
    "timeout": 70,
    "udp_timeout": 90,
    "user": "nobody",
    "nofile": 4096,
    "nameserver": "192.0.2.53",
    "tunnel_address": "a.example:53",
    "mode": "udp_only",
    "mtu": 1400,
    "plugin": "obfs-server",
    "plugin_opts": "obfs=http",
    "acl": "/a.acl",
    "fast_open": true,
    "mptcp": true,
    "ipv6_first": true,
    "dns_ipv6": true,
    "forbidden_ip": "10.0.0.0/8",
    "forbidden_port": "25",
    "black_hostname_list": "a.example",
    "speed_limit_per_user": 8,
    "speed_limit_per_con": 9,
    "out_bind": "192.0.2.1",
    "out_bindv6": "2001:db8::1",
    "redirect": ["192.0.2.2:80"],
    "auth": true,
    "connect_verbose_info": 1,
    "ignore_bind": ["10.0.0.0/8"],
    "index": 1,
    "remarks": "r",
    "udp_cache": 64,
    "verbose": true,
    "workers": 1,
    "manager_address": "127.0.0.1:9000",
    "log-file": "/l",
    "pid-file": "/p",
    "udp_over_tcp": true,
    "additional_ports_only": true
}"#;

/// Ports and servers with settings of their own.
const NESTED: &str = r#"{
    "server": "127.0.0.1", "server_port": 8388, "local_port": 1080, "password": "secret", "method": "aes-128-cfb",
    "tunnel_address": "a.example:53",
    "servers": [
        {
            "server": "192.0.2.9", "server_port": 8389, "password": "own", "method": "aes-256-ctr",
            "protocol": "auth_aes128_md5", "protocol_param": "7:key", "obfs": "http_simple", "obfs_param": "b.example",
            "remarks": "r", "enable": true, "id": "i", "group": "g", "udp_over_tcp": true, "server_udp_port": 9
        },
        {"server": "192.0.2.10", "enable": false}
    ],
    "port_password": {
        "8390": "one",
        "8391": ["two", "http_simple", "auth_sha1_v4"],
        "8392": {
            "passwd": "three", "method": "aes-256-ctr", "protocol": "auth_aes128_md5", "protocol_param": "9",
            "obfs": "http_simple", "obfs_param": "c.example", "out_bind": "192.0.2.1", "out_bindv6": "2001:db8::1"
        },
        "8393": {"password": "four"}
    },
    "additional_ports": {"8394": "five"}
}"#;

/// Rows of a database.
const ROWS: &str = r#"[
    {
        "user": "ann", "port": 1001, "passwd": "secret", "method": "aes-256-ctr", "protocol": "auth_aes128_md5",
        "protocol_param": "9", "obfs": "http_simple", "obfs_param": "a.example", "enable": true, "u": 3, "d": 4,
        "transfer_enable": 1000, "forbidden_ip": "10.0.0.0/8", "forbidden_port": "25", "speed_limit_per_user": 8,
        "speed_limit_per_con": 9
    },
    {"port": 1002, "password": "other", "transfer_enable": 1000}
]"#;

fn settings(loaded: Result<ShadowsocksSetup, Diagnostics>) -> (Option<impl PartialEq>, Diagnostics) {
    match loaded {
        Ok(setup) => {
            let ShadowsocksSetup { config, process, acl, acl_of, control, online, diagnostics } = setup;
            (Some((config, process, acl, acl_of, control, online)), diagnostics)
        }
        Err(found) => (None, found),
    }
}

/// Texts that are none, as for the programs.
const MEANT: [(&str, &str); 10] = [
    ("plugin", "null"),
    ("plugin_opts", "null"),
    ("remarks", "null"),
    ("id", "null"),
    ("group", "null"),
    ("plugin", "\"\""),
    ("plugin_opts", "\"\""),
    ("redirect", "\"\""),
    ("protocol_param", "\"\""),
    ("obfs_param", "\"\""),
];

#[test]
fn every_key_of_a_wrong_type_is_obeyed_or_reported() {
    let entry = |program: SsrProgram| -> DialectReader<'static, _> {
        let run =
            move |text: &str| settings(load(program, &SsrFlags::default(), Some(("c.json", text)), None));
        (program.name(), Box::new(run))
    };
    let mut entries: Vec<_> = SsrProgram::ALL.into_iter().map(entry).collect();
    let with_rows = |text: &str| {
        let database = Some((Path::new("mudb.json"), ROWS));
        settings(load(SsrProgram::Server, &SsrFlags::default(), Some(("c.json", text)), database))
    };
    entries.push(("ssr-server with a database", Box::new(with_rows)));
    let mut meant = MEANT.to_vec();
    // Without a meaning, unless their type is one that nobody writes.
    let idle =
        ["connect_verbose_info", "ignore_bind", "ignore_bind[0]", "index", "remarks", "udp_cache", "verbose"];
    for key in idle.into_iter().chain(["workers", "auth", "id", "group"]) {
        meant.extend(["\"zz\"", "\"\"", "7", "true"].map(|value| (key, value)));
    }
    // A switch by a number: on, as it is without the key or with another one.
    meant.extend(["dns_ipv6", "ipv6_first", "additional_ports_only", "enable"].map(|key| (key, "7")));
    // Empty is none.
    let empty =
        ["out_bind", "out_bindv6", "server_ipv6", "black_hostname_list", "forbidden_port", "redirect[0]"];
    meant.extend(empty.map(|key| (key, "\"\"")));
    // An entry that is off is not looked at.
    meant.extend([("servers[1].server", "\"\""), ("servers[1].server", "7")]);
    let of_server = SAMPLE.replace("\"7:key\"", "\"9#7:key\"");
    walk(&[SAMPLE, &of_server, NESTED], &entries, &meant, &["additional_ports[].", "[]."]);
}

#[test]
fn every_key_of_a_row_of_a_wrong_type_is_obeyed_or_reported() {
    let run = |text: &str| {
        settings(load(SsrProgram::Server, &SsrFlags::default(), None, Some((Path::new("mudb.json"), text))))
    };
    // A number that is not 0 is on; an empty filter is none.
    let mut meant = MEANT.to_vec();
    meant.extend([("enable", "7"), ("forbidden_ip", "\"\""), ("forbidden_port", "\"\"")]);
    walk(&[ROWS], &[("ssr-server", Box::new(run))], &meant, &[]);
}
