//! Settings and facts, and the rules that they make.

use std::io::Write as _;
use std::process::{Command, Stdio};

use adit_formats::adit_toml::parse;
use adit_model::CaptureMode;
use adit_testkit::has_nftables;

use super::*;

const PORTS: ListenedPorts = ListenedPorts { v4: Some(4001), v6: Some(4002) };

fn capture(text: &str) -> Capture {
    let text = format!("[capture]\n{text}\n[[outbound]]\nname = \"home\"\nprotocol = \"direct\"\n");
    parse("t.toml", &text).unwrap().config.capture.unwrap()
}

fn host() -> Host {
    let (links, interface) = (vec!["eth0".into()], "adit0".into());
    Host { has_v6: true, links, interface, has_owners: true, ..Host::default() }
}

fn text(capture: &Capture, ways: CaptureRoutes, host: &Host) -> String {
    ruleset(capture, ways, host).to_string()
}

fn ways(mode: CaptureMode) -> CaptureRoutes {
    let redirect = TcpWay::Redirect(PORTS);
    match mode {
        CaptureMode::Redirect => CaptureRoutes { tcp: redirect, udp: None, dns: None, dns_is_hidden: false },
        CaptureMode::Tproxy => CaptureRoutes {
            tcp: TcpWay::Tproxy(PORTS),
            udp: Some(UdpWay::Tproxy(PORTS)),
            dns: None,
            dns_is_hidden: false,
        },
        CaptureMode::Auto => {
            CaptureRoutes { tcp: redirect, udp: Some(UdpWay::Tun), dns: Some(PORTS), dns_is_hidden: false }
        }
        CaptureMode::Tun => {
            CaptureRoutes { tcp: TcpWay::Tun, udp: Some(UdpWay::Tun), dns: None, dns_is_hidden: false }
        }
    }
}

#[test]
fn redirect_is_one_chain_and_a_guard() {
    let want = "\
ip route add local 127.0.0.1/32 dev eth0 table 2024 protocol 173
ip -6 route add local ::1/128 dev eth0 table 2024 protocol 173
ip rule add pref 8998 lookup 2024 protocol 173
ip -6 rule add pref 8998 lookup 2024 protocol 173
table inet adit {
	set exclude4 { type ipv4_addr; flags interval; elements = { 127.0.0.0-127.255.255.255, 169.254.0.0-169.254.255.255, 224.0.0.0-239.255.255.255, 255.255.255.255 }; }
	set exclude6 { type ipv6_addr; flags interval; elements = { ::1, fe80::-febf:ffff:ffff:ffff:ffff:ffff:ffff:ffff, ff00::-ffff:ffff:ffff:ffff:ffff:ffff:ffff:ffff }; }
	set direct4 { type ipv4_addr; flags timeout; }
	set direct6 { type ipv6_addr; flags timeout; }
	chain out_nat {
		type nat hook output priority -149; policy accept;
		meta mark 0x00002024 return
		fib daddr type local return
		fib daddr type broadcast return
		fib daddr type multicast return
		ip daddr @exclude4 return
		ip6 daddr @exclude6 return
		ip daddr @direct4 return
		ip6 daddr @direct6 return
		meta nfproto ipv4 meta l4proto tcp redirect to :4001
		meta nfproto ipv6 meta l4proto tcp redirect to :4002
	}
	chain guard {
		type filter hook input priority -150; policy accept;
		meta nfproto ipv4 tcp dport 4001 ct status ! dnat reject with tcp reset
		meta nfproto ipv6 tcp dport 4002 ct status ! dnat reject with tcp reset
	}
}
";
    assert_eq!(text(&capture(""), ways(CaptureMode::Redirect), &host()), want);
}

#[test]
fn tproxy_marks_what_leaves_and_hands_over_what_comes_back() {
    let capture = capture("mode = \"tproxy\"\nlan = \"br0\"\nipv6 = false");
    let ports = ListenedPorts { v6: None, ..PORTS };
    let ways = CaptureRoutes {
        tcp: TcpWay::Tproxy(ports),
        udp: Some(UdpWay::Tproxy(ports)),
        dns: None,
        dns_is_hidden: false,
    };
    let text = text(&capture, ways, &host());
    let routing = "\
ip route add local default dev lo table 2023 protocol 173
ip route add local default dev eth0 table 2023 protocol 173
ip rule add pref 8999 fwmark 0x2023 lookup 2023 protocol 173
table inet adit {
";
    assert!(text.starts_with(routing), "{text}");
    let pre = "
	chain pre_mark {
		type filter hook prerouting priority -150; policy accept;
		meta mark 0x00002024 return
		ct direction reply return
		iifname \"lo\" meta mark 0x00002023 meta nfproto ipv4 meta l4proto tcp tproxy ip to 127.0.0.1:4001 accept
		iifname \"lo\" meta mark 0x00002023 meta nfproto ipv4 meta l4proto udp tproxy ip to 127.0.0.1:4001 accept
		iifname != @lan return
		meta l4proto tcp socket transparent 1 meta mark set 0x00002023 accept
		fib daddr type local return
		fib daddr type broadcast return
		fib daddr type multicast return
		ip daddr @exclude4 return
		ip6 daddr @exclude6 return
		ip daddr @direct4 return
		ip6 daddr @direct6 return
		meta nfproto ipv6 return
		meta nfproto ipv4 meta l4proto tcp meta mark set 0x00002023 tproxy ip to 127.0.0.1:4001 accept
		meta nfproto ipv4 meta l4proto udp meta mark set 0x00002023 tproxy ip to 127.0.0.1:4001 accept
	}
	chain out_mark {
		type route hook output priority -150; policy accept;
		meta mark 0x00002024 return
		ct direction reply return
";
    assert!(text.contains(pre), "{text}");
    assert!(text.contains("\t\tmeta l4proto udp meta mark set 0x00002023\n\t}\n}\n"), "{text}");
    assert!(!text.contains("out_nat") && !text.contains("guard"), "{text}");
}

#[test]
fn auto_with_an_interface_is_the_set_of_the_specification() {
    let capture = capture("lan = [\"br0\"]\nexclude-uid = [1000]");
    let host = Host { users: [vec![1000], Vec::new()], ..host() };
    let text = text(&capture, ways(CaptureMode::Auto), &host);
    for part in [
        "ip route add default dev adit0 table 2022 protocol 173\n",
        "ip rule add pref 9001 fwmark 0x2023 lookup 2022 protocol 173\n",
        "ip -6 rule add pref 9001 fwmark 0x2023 lookup 2022 protocol 173\n",
        "net/ipv4/conf/adit0/rp_filter = 2\n",
        "set exclude_uid { type uid; elements = { 1000 }; }",
        "\t\tct direction reply return\n\t\tmeta skuid @exclude_uid return\n\t\ttcp dport 53 return\n\t\tudp dport 53 return\n",
        "\t\tmeta l4proto udp meta mark set 0x00002023\n\t\tmeta l4proto icmp icmp type echo-request meta mark set 0x00002023\n\t\tmeta l4proto ipv6-icmp icmpv6 type echo-request meta mark set 0x00002023\n",
        "\t\tmeta skuid @exclude_uid return\n\t\toifname != \"lo\" meta nfproto ipv4 tcp dport 53 redirect to :4001\n",
        "type nat hook prerouting priority -99; policy accept;\n\t\tiifname != @lan return\n",
        "\t\tmeta nfproto ipv4 udp dport 53 redirect to :4001\n",
        "\t\tiifname \"lo\" return\n\t\tiifname @lan return\n\t\tmeta nfproto ipv4 tcp dport 4001 reject with tcp reset\n",
    ] {
        assert!(text.contains(part), "{part}\nin:\n{text}");
    }
}

#[test]
fn an_interface_alone_takes_rules_of_routing_and_no_table() {
    let host = Host {
        tun_v4: Some((Ipv4Addr::new(172, 19, 0, 1), 30)),
        tun_v6: Some(("fdfe:dcba:9876::1".parse().unwrap(), 126)),
        ..host()
    };
    let want = "\
ip route add default dev adit0 table 2022 congctl cubic protocol 173
ip route add throw 127.0.0.0/8 table 2022 protocol 173
ip route add throw 169.254.0.0/16 table 2022 protocol 173
ip route add throw 224.0.0.0/4 table 2022 protocol 173
ip route add throw 255.255.255.255/32 table 2022 protocol 173
ip -6 route add default dev adit0 table 2022 congctl cubic protocol 173
ip -6 route add throw ::1/128 table 2022 protocol 173
ip -6 route add throw fe80::/10 table 2022 protocol 173
ip -6 route add throw ff00::/8 table 2022 protocol 173
ip rule add pref 9000 fwmark 0x2024 lookup main protocol 173
ip rule add pref 9001 lookup main suppress_prefixlength 0 protocol 173
ip rule add pref 9002 from 0.0.0.0/32 iif lo lookup 2022 protocol 173
ip rule add pref 9002 from 172.19.0.1/30 iif lo lookup 2022 protocol 173
ip rule add pref 9002 iif br0 lookup 2022 protocol 173
ip -6 rule add pref 9000 fwmark 0x2024 lookup main protocol 173
ip -6 rule add pref 9001 from fdfe:dcba:9876::1/126 iif lo lookup 2022 protocol 173
ip -6 rule add pref 9001 from ::/1 iif lo lookup main protocol 173
ip -6 rule add pref 9001 from 8000::/1 iif lo lookup main protocol 173
ip -6 rule add pref 9001 lookup main suppress_prefixlength 0 protocol 173
ip -6 rule add pref 9002 iif lo lookup 2022 protocol 173
ip -6 rule add pref 9002 iif br0 lookup 2022 protocol 173
net/ipv4/conf/adit0/rp_filter = 2
table inet adit {
}
";
    assert_eq!(text(&capture("mode = \"tun\"\nlan = \"br0\""), ways(CaptureMode::Tun), &host), want);
    let host = Host {
        users: [vec![5, 6, 9], vec![1000, 1001]],
        resolvers: vec![101],
        servers: vec!["203.0.113.9".parse().unwrap()],
        fake: vec![Cidr::parse("198.18.128.0/17").unwrap()],
        has_v6: false,
        ..host
    };
    let settings =
        "mode = \"tun\"\nstrict = true\ninclude-address = \"192.0.2.0/24\"\nexclude-address = \"192.0.2.7\"";
    let dns = CaptureRoutes { dns: Some(PORTS), ..ways(CaptureMode::Tun) };
    let text = text(&capture(settings), dns, &host);
    for part in [
        "ip route add 192.0.2.0/24 dev adit0 table 2022 congctl cubic",
        "ip route add 198.18.128.0/17 dev adit0 table 2022 congctl cubic",
        "ip route add unreachable 192.0.2.0/24 table 2022 protocol 173\n",
        "ip route add throw 192.0.2.7/32 table 2022 protocol 173\n",
        "ip route add throw 203.0.113.9/32 table 2022 protocol 173\n",
        "ip rule add pref 9000 iif lo uidrange 5-6 lookup main protocol 173\n",
        "ip rule add pref 9000 iif lo uidrange 9-9 lookup main protocol 173\n",
        "ip rule add pref 9000 iif lo uidrange 101-101 dport 53 lookup main protocol 173\n",
        "ip rule add pref 9001 not dport 53 lookup main suppress_prefixlength 0 protocol 173\n",
        "ip rule add pref 9002 from 0.0.0.0/32 iif lo uidrange 1000-1001 lookup 2022 protocol 173\n",
    ] {
        assert!(text.contains(part), "{part}\nin:\n{text}");
    }
    assert!(!text.contains("default dev adit0"), "{text}");
    let (_, strict) = text.split_once("table inet adit_strict {").unwrap();
    let out =
        "\t\tmeta nfproto ipv4 return\n\t\tmeta mark 0x00002024 return\n\t\tct direction reply return\n";
    assert!(
        strict.contains(out)
            && strict.contains("\t\toifname @interface return\n\t\tip6 daddr @networks6 return\n"),
        "{strict}"
    );
}

/// A local name server that adit asks asks others itself.
#[test]
fn questions_of_own_name_servers_pass() {
    let host = Host { resolvers: vec![101], ..host() };
    let text = text(&capture(""), CaptureRoutes { dns: Some(PORTS), ..ways(CaptureMode::Auto) }, &host);
    let exempt = "\t\tmeta skuid @resolver_uid udp dport 53 return\n\t\tmeta skuid @resolver_uid tcp dport 53 return\n\t\tmeta skuid @resolver_uid tcp dport 853 return\n";
    assert_eq!(text.matches(exempt).count(), 2, "{text}");
}

#[test]
fn selections_are_sets() {
    let capture = capture(
        "include-address = [\"192.0.2.0/25\", \"192.0.2.128/25\"]\nexclude-address = \"198.51.100.0/24\"\n\
         include-interface = \"eth0\"\nexclude-interface = [\"wg1\", \"wg0\", \"wg0\"]\nmark = 7\ncapture-mark = 8",
    );
    let host = Host {
        users: [Vec::new(), vec![5, 6]],
        groups: [vec![27], Vec::new()],
        servers: vec!["203.0.113.9".parse().unwrap(), "2001:db8::9".parse().unwrap()],
        ..host()
    };
    let text = text(&capture, ways(CaptureMode::Redirect), &host);
    for part in [
        "set include4 { type ipv4_addr; flags interval; elements = { 192.0.2.0-192.0.2.255 }; }",
        "set exclude_if { type ifname; elements = { \"wg0\", \"wg1\" }; }",
        "set include_uid { type uid; elements = { 5, 6 }; }",
        "set exclude_gid { type gid; elements = { 27 }; }",
        "198.51.100.0-198.51.100.255, 203.0.113.9, 224.0.0.0",
        "2001:db8::9, fe80::",
        "\t\tmeta mark 0x00000007 return\n\t\tmeta skuid != @include_uid return\n\t\tmeta skgid @exclude_gid return\n\t\toifname @exclude_if return\n\t\toifname != @include_if return\n",
        "\t\tip daddr != @include4 return\n\t\tmeta nfproto ipv6 return\n",
    ] {
        assert!(text.contains(part), "{part}\nin:\n{text}");
    }
}

#[test]
fn strict_refuses_what_would_be_captured() {
    let text = text(&capture("strict = true\nlan = \"br0\""), ways(CaptureMode::Tproxy), &host());
    let (_, strict) = text.split_once("table inet adit_strict {").unwrap();
    let end = "\t\tmeta l4proto tcp reject with tcp reset\n\t\tmeta l4proto udp reject with icmpx admin-prohibited\n\t}\n";
    assert_eq!(strict.matches(end).count(), 2, "{strict}");
    assert!(strict.contains("\t\tmeta mark 0x00002024 return\n\t\tmeta mark 0x00002023 return\n"));
    assert!(strict.contains("type filter hook forward priority 0"));
    let sets = ruleset(&capture("strict = true"), ways(CaptureMode::Redirect), &host()).tables;
    assert_eq!(sets.iter().map(|table| table.has_owner).collect::<Vec<_>>(), [true, false]);
}

#[test]
fn forwarded_traffic_of_all_interfaces() {
    let routed = ["192.168.1.0/24", "fd01::/64"].map(|text| Cidr::parse(text).unwrap());
    let host = Host { tun_v4: Some(("172.19.0.1".parse().unwrap(), 30)), routed: routed.into(), ..host() };
    let rules = |settings: &str| -> Vec<String> {
        let text = text(&capture(settings), ways(CaptureMode::Tun), &host);
        text.lines()
            .filter(|line| line.contains(" rule add "))
            .map(|line| line.replace(" protocol 173", ""))
            .collect()
    };
    let lines = |v4: &[&str], v6: &[&str]| -> Vec<String> {
        let of = |version: &'static str, rules: &[&str]| -> Vec<String> {
            rules.iter().map(|rule| format!("ip {version}rule add pref {rule}")).collect()
        };
        [of("", v4), of("-6 ", v6)].concat()
    };
    let halves = ["9001 from ::/1 iif lo lookup main", "9001 from 8000::/1 iif lo lookup main"];
    let beyond = "9001 lookup main suppress_prefixlength 0";
    assert_eq!(
        rules("mode = \"tun\"\nlan = \"*\"\nexclude-lan = \"wg0\""),
        lines(
            &[
                "9000 fwmark 0x2024 lookup main",
                beyond,
                "9002 not iif lo lookup 2022",
                "9002 from 0.0.0.0/32 iif lo lookup 2022",
                "9002 from 172.19.0.1/30 iif lo lookup 2022",
                "9000 iif wg0 lookup main",
                "9000 iif adit0 lookup main",
            ],
            &[
                "9000 fwmark 0x2024 lookup main",
                halves[0],
                halves[1],
                beyond,
                "9002 lookup 2022",
                "9000 iif wg0 lookup main",
                "9000 iif adit0 lookup main",
            ]
        )
    );
    let own = rules("mode = \"tun\"\nlan = \"*\"\nlocal = false");
    assert!(own.contains(&"ip -6 rule add pref 9002 not iif lo lookup 2022".to_owned()), "{own:?}");
    assert!(!own.iter().any(|rule| rule.contains(" from 0.0.0.0/32 ")), "{own:?}");
    // By the firewall.
    let settings = capture("lan = \"*\"\nexclude-lan = \"wg0\"");
    for (is_hidden, mode) in
        [(true, CaptureMode::Auto), (false, CaptureMode::Auto), (false, CaptureMode::Tproxy)]
    {
        let text = text(&settings, CaptureRoutes { dns_is_hidden: is_hidden, ..ways(mode) }, &host);
        let others =
            "\t\tiifname \"lo\" return\n\t\tiifname \"adit0\" return\n\t\tiifname @exclude_lan return\n";
        assert!(text.contains(others), "{text}");
        assert!(text.contains("\t\tip daddr @routed4 return\n\t\tip6 daddr @routed6 return\n"), "{text}");
        assert!(!text.contains("@lan"), "{text}");
        let guard = "udp dport 4001 ct status ! dnat reject with icmpx admin-prohibited\n";
        assert_eq!(text.contains(guard), is_hidden, "{text}");
    }
    let forwarded = text(&capture("lan = \"*\"\nlocal = false"), ways(CaptureMode::Auto), &host);
    assert!(forwarded.contains("chain pre_nat") && forwarded.contains("chain pre_mark"), "{forwarded}");
    assert!(!forwarded.contains("hook output"), "{forwarded}");
}

#[test]
fn datagrams_that_nothing_carries_are_refused() {
    let ways = CaptureRoutes { udp: Some(UdpWay::Refuse), ..ways(CaptureMode::Redirect) };
    let text = text(&capture(""), ways, &host());
    assert!(text.contains("\t\tmeta l4proto udp reject with icmpx port-unreachable\n"), "{text}");
    assert!(!text.contains("chain out_mark"), "{text}");
}

/// nft(8) takes every text, which the encoder's tests compare with the kernel's form.
#[test]
fn the_text_is_that_of_nft() {
    if !has_nftables() {
        return;
    }
    let settings = [
        "",
        "lan = [\"br0\", \"br1\"]\nstrict = true\nexclude-address = [\"192.0.2.0/24\", \"2001:db8::/32\"]",
        "include-address = \"192.0.2.0/24\"\nexclude-interface = \"wg0\"\nstrict = true",
        "lan = \"*\"\nexclude-lan = [\"wg0\", \"wg1\"]\nstrict = true",
        "lan = \"*\"\nlocal = false\nstrict = true",
    ];
    for text in settings {
        for mode in [CaptureMode::Redirect, CaptureMode::Tproxy, CaptureMode::Auto, CaptureMode::Tun] {
            for dns in [None, Some(PORTS)] {
                let routed = vec![Cidr::parse("192.168.1.0/24").unwrap(), Cidr::parse("fd01::/64").unwrap()];
                let host = Host { routed, ..host() };
                let ways = CaptureRoutes { dns, dns_is_hidden: dns.is_some(), ..ways(mode) };
                let set = ruleset(&capture(text), ways, &host);
                for table in set.tables {
                    let mut command = Command::new("unshare");
                    command.args(["-n", "nft", "-c", "-f", "-"]).stdin(Stdio::piped()).stderr(Stdio::piped());
                    let mut child = command.spawn().unwrap();
                    let text = table.to_string();
                    child.stdin.take().unwrap().write_all(text.as_bytes()).ok();
                    let output = child.wait_with_output().unwrap();
                    let said = String::from_utf8_lossy(&output.stderr);
                    assert!(output.status.success(), "{said}\n{text}");
                }
            }
        }
    }
}
