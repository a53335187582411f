//! Every key of the file with values of wrong types.

use super::*;
use crate::walk::{DialectReader, walk};

/// Every key, each on a line of its own. One list has a local port of each protocol.
const SAMPLE: &str = r#"{
    version: 1,
    server: "127.0.0.1", server_port: 8388, method: "aes-256-gcm", password: "secret",
    plugin: "v2ray-plugin", plugin_opts: "server", plugin_args: ["-v"], plugin_mode: "tcp_and_udp",
    mode: "tcp_and_udp", timeout: 9,
    udp_timeout: 400, udp_max_associations: 100, udp_mtu: 1400, outbound_udp_allow_fragmentation: true,
    nofile: 4096, ipv6_first: true, ipv6_only: true, fast_open: true, no_delay: true, mptcp: true, keep_alive: 20,
    dns: "192.0.2.53", dns_cache_size: 9,
    outbound_bind_interface: "eth9", outbound_bind_addr: "192.0.2.1", outbound_fwmark: 3,
    acl: "/a.acl",
    manager_address: "127.0.0.1", manager_port: 9000,
    balancer: {max_server_rtt: 2, check_interval: 20, check_best_interval: 15},
    security: {replay_attack: {policy: "ignore"}},
    online_config: {config_url: "https://a.example/", update_interval: 90, allowed_plugins: ["obfs-local"]},
    log: {
        level: 1, format: {without_time: true}, config_path: "/l.yaml",
        writers: [
            {console: {level: 2, format: {without_time: true}}},
            {file: {
                level: 2, format: {without_time: true}, directory: "/l", rotation: "never", prefix: "p", suffix: "s",
                max_files: 7
            }},
            {syslog: {level: 2, format: {without_time: true}, identity: "i", facility: 1}}
        ]
    },
    runtime: {worker_count: 3, mode: "multi_thread"},
    local_address: "127.0.0.1", local_port: 1080, protocol: "http",
    servers: [
        {
            disabled: false, server: "192.0.2.7", server_port: 8389, method: "2022-blake3-aes-128-gcm",
            password: "MDEyMzQ1Njc4OWFiY2RlZg==", users: [{name: "ann", password: "QUJDREVGR0hJSktMTU5PUA=="}],
            plugin: "obfs-server", plugin_opts: "obfs=http", plugin_args: ["-v"], plugin_mode: "tcp_and_udp",
            remarks: "r", id: "i", mode: "tcp_only", timeout: 8, tcp_weight: 0.5, udp_weight: 0.25,
            outbound_bind_interface: "eth8", outbound_bind_addr: "192.0.2.2", outbound_fwmark: 4,
            outbound_udp_allow_fragmentation: true, acl: "/b.acl"
        },
        {address: "192.0.2.8", port: 8390, method: "aes-128-gcm", password: "p", name: "n"}
    ],
    locals: [
        {
            disabled: false, protocol: "socks", local_address: "127.0.0.1", local_port: 1081, mode: "tcp_and_udp",
            local_udp_address: "127.0.0.1", local_udp_port: 1082, socks5_auth_config_path: "/s.json", acl: "/c.acl"
        },
        {protocol: "http", local_port: 1083, http_auth_config_path: "/h.json"},
        {protocol: "tunnel", local_port: 1084, forward_address: "a.example", forward_port: 53},
        {protocol: "redir", local_port: 1085, tcp_redir: "tproxy", udp_redir: "tproxy"},
        {
            protocol: "dns", local_port: 1086, local_dns_address: "192.0.2.53", local_dns_port: 54,
            remote_dns_address: "192.0.2.54", remote_dns_port: 55, client_cache_size: 7
        },
        {
            protocol: "fake-dns", local_port: 1087, fake_dns_record_expire_duration: 20,
            fake_dns_ipv4_network: "198.18.0.0/16", fake_dns_ipv6_network: "fc01::/64", fake_dns_database_path: "/f"
        },
        {
            protocol: "tun", tun_interface_name: "tun9", tun_interface_address: "10.255.0.1/24",
            tun_interface_destination: "10.255.0.2"
        }
    ]
}"#;

/// Keys that servers of a manager take, which are added later.
const MANAGER: &str = r#"{
    manager_address: "127.0.0.1", manager_port: 9000, method: "aes-256-gcm", mode: "tcp_and_udp", timeout: 9,
    plugin: "v2ray-plugin", plugin_opts: "server", plugin_args: ["-v"], plugin_mode: "tcp_and_udp", acl: "/a.acl",
    fast_open: true, mptcp: true, keep_alive: 20, udp_timeout: 400, outbound_fwmark: 3
}"#;

/// Keys that no file may have with any value.
const REFUSED: &str = r#"{
    server: "127.0.0.1", server_port: 8388, method: "aes-256-gcm", password: "secret",
    outbound_proxy: "socks5://127.0.0.1:1",
    servers: [
        {server: "192.0.2.7", server_port: 8389, method: "aes-256-gcm", password: "p", outbound_proxy: ["http://a:1"]}
    ],
    locals: [{protocol: "tun", tun_device_fd_from_path: "/t"}]
}"#;

/// The other name of a list.
const ALIAS: &str =
    r#"{shadowsocks: [{server: "192.0.2.7", server_port: 8389, method: "aes-256-gcm", password: "p"}]}"#;

const USERS: &str = r#"{"password": {"users": [{"user_name": "a", "password": "b"}]}}"#;

#[test]
fn every_key_of_a_wrong_type_is_obeyed_or_reported() {
    let entry = |program: RustProgram| -> DialectReader<'static, _> {
        let run = move |text: &str| {
            let outside =
                RustSurroundings { variable: &|_| None, file: &|_| Ok(Zeroizing::new(USERS.to_owned())) };
            match load(program, &RustFlags::default(), Some(("c.json", text)), outside) {
                Ok(setup) => {
                    let ShadowsocksSetup { config, process, acl, acl_of, control, online, diagnostics } =
                        setup;
                    (Some((config, process, acl, acl_of, control, online)), diagnostics)
                }
                Err((_, found)) => (None, found),
            }
        };
        (program.name(), Box::new(run))
    };
    let entries = [RustProgram::Local, RustProgram::Server].map(entry);
    let meant = [
        // None, as for the programs.
        ("plugin", "null"),
        ("plugin_opts", "null"),
        ("plugin_args", "null"),
        ("plugin", "\"\""),
        ("plugin_opts", "\"\""),
        ("remarks", "null"),
        ("name", "null"),
        ("id", "null"),
        ("remarks", "\"\""),
        ("name", "\"\""),
        ("id", "\"\""),
        // The whole key is reported.
        ("outbound_proxy[0]", "*"),
        // The method `table`, to which the users do not fit.
        ("servers[0].method", "\"\""),
    ];
    // Files of users, and the list by its other name.
    let elsewhere = ["basic", "password.", "shadowsocks[]."];
    walk(&[SAMPLE, REFUSED, ALIAS], &entries, &meant, &elsewhere);
    // A manager reads the same keys in the same way, and has its own use for some of them.
    walk(&[MANAGER], &[entry(RustProgram::Manager)], &meant, &[""]);
}

#[test]
fn every_key_of_a_file_of_users_of_a_wrong_type_is_obeyed_or_reported() {
    let run = |text: &str| match file::auth_file("s.json", text) {
        Ok(users) => (Some(users), Diagnostics::new()),
        Err(found) => (None, found),
    };
    let basic = USERS.replacen("password", "basic", 1);
    walk(&[USERS, &basic], &[("sslocal", Box::new(run))], &[], &[]);
}
