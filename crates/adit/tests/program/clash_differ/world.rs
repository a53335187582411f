//! Random conditions, rules and targets near them.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// Numbers that are the same in each run (splitmix64).
pub(super) struct Draw(pub(super) u64);

impl Draw {
    pub(super) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ z >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ z >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ z >> 31
    }

    pub(super) fn below(&mut self, n: usize) -> usize {
        usize::try_from(self.next() % n as u64).unwrap()
    }

    pub(super) fn one<'a, T: ?Sized>(&mut self, all: &[&'a T]) -> &'a T {
        all[self.below(all.len())]
    }

    pub(super) fn chance(&mut self, percent: usize) -> bool {
        self.below(100) < percent
    }
}

pub(super) const WORDS: [&str; 10] = ["ads", "cdn", "img", "api", "video", "mail", "news", "x", "go", "shop"];
pub(super) const BASES: [&str; 6] = ["alpha", "beta", "gamma", "delta", "omega", "kappa"];
pub(super) const TOPS: [&str; 6] = ["test", "com", "net", "org", "co.uk", "cn"];
pub(super) const NET4: [[u8; 2]; 5] = [[10, 1], [198, 18], [203, 0], [8, 8], [172, 16]];
/// Names of the lists of the databases in the repository, and one of each kind that is not special there.
pub(super) const SITES: [&str; 4] = ["cn", "shop", "shop@ads", "!cn"];
pub(super) const COUNTRIES: [&str; 5] = ["lan", "cn", "jp", "us", "cloudflare"];
pub(super) const USERS: [&str; 2] = ["ann", "bob"];
pub(super) const TARGET_NAMES: [&str; 9] = ["A", "B", "T", "G1", "G2", "G3", "GU", "REJECT", "PASS"];
/// Lists of the providers.
pub(super) const SETS: [&str; 5] = ["dom-text", "dom-yaml", "cidr", "classic", "inline"];

/// Everything that rules are about, so that requests come near it.
#[derive(Default)]
pub(super) struct World {
    names: Vec<String>,
    networks: Vec<(IpAddr, u8)>,
    pub(super) ports: Vec<u16>,
}

pub(super) fn name(draw: &mut Draw) -> String {
    let mut name = String::new();
    for _ in 0..1 + draw.below(3) {
        name += draw.one(&WORDS);
        if draw.chance(30) {
            name += &draw.below(9).to_string();
        }
        name.push('.');
    }
    name + &base(draw)
}

pub(super) fn base(draw: &mut Draw) -> String {
    format!("{}{}.{}", draw.one(&BASES), draw.below(30), draw.one(&TOPS))
}

pub(super) fn address(draw: &mut Draw) -> IpAddr {
    if draw.chance(25) {
        let low = u128::from(draw.next() % (1 << 20));
        return Ipv6Addr::from((0x2001_0db8_u128 << 96) + (u128::from(draw.next() % 16) << 80) + low).into();
    }
    let [a, b] = NET4[draw.below(NET4.len())];
    let [c, d] = u16::try_from(draw.next() & 0xffff).unwrap().to_be_bytes();
    Ipv4Addr::new(a, b, c, d).into()
}

impl World {
    pub(super) fn name(&mut self, draw: &mut Draw) -> String {
        let name = if draw.chance(60) { name(draw) } else { base(draw) };
        self.names.push(name.clone());
        name
    }

    pub(super) fn network(&mut self, draw: &mut Draw) -> String {
        let ip = address(draw);
        let prefix = match ip {
            IpAddr::V4(_) => [8, 12, 16, 20, 24, 28, 31, 32][draw.below(8)],
            IpAddr::V6(_) => [32, 40, 48, 64, 112, 128][draw.below(6)],
        };
        self.networks.push((ip, prefix));
        format!("{ip}/{prefix}")
    }

    pub(super) fn ports(&mut self, draw: &mut Draw) -> String {
        let mut all = Vec::new();
        for _ in 0..1 + draw.below(3) {
            let first = u16::try_from(1 + draw.below(60_000)).unwrap();
            let last = first + u16::try_from(draw.below(500)).unwrap();
            self.ports.extend([first, last]);
            all.push(match draw.below(3) {
                0 => first.to_string(),
                1 => format!("{first}-{last}"),
                _ => format!("{last}-{first}"),
            });
        }
        all.join("/")
    }

    /// Type, payload and parameters of a condition; within logic without commas and parentheses in it.
    pub(super) fn condition(
        &mut self,
        draw: &mut Draw,
        is_inner: bool,
    ) -> (&'static str, String, &'static str) {
        const KINDS: [&str; 40] = [
            "DOMAIN",
            "DOMAIN",
            "DOMAIN",
            "DOMAIN",
            "DOMAIN-SUFFIX",
            "DOMAIN-SUFFIX",
            "DOMAIN-SUFFIX",
            "DOMAIN-SUFFIX",
            "DOMAIN-KEYWORD",
            "DOMAIN-REGEX",
            "DOMAIN-WILDCARD",
            "GEOSITE",
            "IP-CIDR",
            "IP-CIDR",
            "IP-CIDR",
            "IP-CIDR6",
            "IP-SUFFIX",
            "IP-ASN",
            "GEOIP",
            "GEOIP",
            "SRC-GEOIP",
            "SRC-IP-ASN",
            "SRC-IP-CIDR",
            "SRC-IP-SUFFIX",
            "DST-PORT",
            "DST-PORT",
            "SRC-PORT",
            "IN-PORT",
            "IN-TYPE",
            "IN-USER",
            "IN-NAME",
            "PROCESS-NAME",
            "PROCESS-PATH",
            "PROCESS-NAME-REGEX",
            "NETWORK",
            "DSCP",
            "RULE-SET",
            "RULE-SET",
            "UID",
            "PROCESS-PATH-REGEX",
        ];
        let kind = draw.one(&KINDS);
        let lookup = draw.one(&["", "", ",no-resolve"]);
        let (payload, params) = match kind {
            "DOMAIN" => (self.name(draw), ""),
            "DOMAIN-SUFFIX" => (if draw.chance(50) { base(draw) } else { self.name(draw) }, ""),
            "DOMAIN-KEYWORD" => (format!("{}{}", draw.one(&WORDS), draw.below(9)), ""),
            "DOMAIN-REGEX" if is_inner => (format!("^{}[0-9]+\\.", draw.one(&WORDS)), ""),
            "DOMAIN-REGEX" => {
                let (a, b) = (draw.one(&BASES), draw.one(&BASES));
                let all = [
                    format!("({a}|{b})1\\.(com|net)$"),
                    format!("(?<!x\\.){a}2\\."),
                    format!("^{}[0-9]+\\.", draw.one(&WORDS)),
                ];
                (all[draw.below(3)].clone(), "")
            }
            "DOMAIN-WILDCARD" => {
                let all = [
                    format!("*.{}", base(draw)),
                    format!("{}?.{}", draw.one(&WORDS), base(draw)),
                    format!("{}*.com", draw.one(&WORDS)),
                ];
                (all[draw.below(3)].clone(), "")
            }
            "GEOSITE" => (draw.one(&SITES).to_owned(), ""),
            "IP-CIDR" | "IP-CIDR6" => (self.network(draw), lookup),
            "IP-SUFFIX" => match address(draw) {
                ip @ IpAddr::V4(_) => (format!("{ip}/{}", [4, 8, 16, 24][draw.below(4)]), lookup),
                ip @ IpAddr::V6(_) => (format!("{ip}/{}", [8, 16, 64][draw.below(3)]), lookup),
            },
            "IP-ASN" => (draw.one(&["64500", "64501"]).to_owned(), lookup),
            "GEOIP" => (draw.one(&COUNTRIES).to_owned(), lookup),
            "SRC-GEOIP" => (draw.one(&COUNTRIES[1..]).to_owned(), ""),
            "SRC-IP-ASN" => ("64501".to_owned(), ""),
            "SRC-IP-CIDR" => (format!("127.0.{}.0/{}", draw.below(4), 24 + draw.below(8)), ""),
            "SRC-IP-SUFFIX" => (format!("0.0.0.{}/8", 1 + draw.below(4)), ""),
            "DST-PORT" | "SRC-PORT" => (self.ports(draw), ""),
            "IN-PORT" => ("IN-PORTS".to_owned(), ""),
            "IN-TYPE" => {
                (draw.one(&["HTTP", "HTTPS", "SOCKS4", "SOCKS5", "SOCKS", "HTTPS/SOCKS4"]).to_owned(), "")
            }
            "IN-USER" => (draw.one(&USERS).to_owned(), ""),
            "IN-NAME" => (draw.one(&["in-0", "in-1", "in-2", "in-1/in-2"]).to_owned(), ""),
            "PROCESS-NAME" => (draw.one(&["curl", "wget", "ssh", "PROGRAM"]).to_owned(), ""),
            "PROCESS-PATH" => (draw.one(&["/usr/bin/curl", "/bin/wget", "FOLDER/PROGRAM"]).to_owned(), ""),
            "PROCESS-NAME-REGEX" => (draw.one(&["^w.e", "^cur", "^prog.*-"]).to_owned(), ""),
            "PROCESS-PATH-REGEX" => (draw.one(&["/none/", "/some/", "deps/program"]).to_owned(), ""),
            "UID" => (draw.one(&["65533", "1000-65532", "4000000000"]).to_owned(), ""),
            "NETWORK" => (draw.one(&["tcp", "udp", "UDP"]).to_owned(), ""),
            "DSCP" => (draw.one(&["4-9", "10/46"]).to_owned(), ""),
            "RULE-SET" => (draw.one(&SETS).to_owned(), lookup),
            other => unreachable!("{other}"),
        };
        (kind, payload, params)
    }

    pub(super) fn logic(&mut self, draw: &mut Draw, depth: u8) -> String {
        if depth < 3 && draw.chance(35) || depth == 0 {
            let (kind, count) = [("AND", 2), ("AND", 3), ("OR", 2), ("NOT", 1)][draw.below(4)];
            let parts: Vec<String> =
                (0..count).map(|_| format!("({})", self.logic(draw, depth + 1))).collect();
            return format!("{kind},({})", parts.join(","));
        }
        let (kind, payload, params) = self.condition(draw, true);
        format!("{kind},{payload}{params}")
    }

    /// A condition that holds for few requests.
    pub(super) fn narrow(&mut self, draw: &mut Draw) -> String {
        match draw.below(5) {
            0 | 1 => format!("DOMAIN-KEYWORD,{}", draw.one(&WORDS)),
            2 => format!("DOMAIN-KEYWORD,{}", draw.one(&BASES)),
            3 => format!("IP-CIDR,{}", self.network(draw)),
            _ => format!("DST-PORT,{}", self.ports(draw)),
        }
    }

    pub(super) fn line(&mut self, draw: &mut Draw) -> String {
        let target = draw.one(&TARGET_NAMES);
        if draw.chance(20) {
            return format!("{},{target}", self.logic(draw, 0));
        }
        let (kind, payload, params) = self.condition(draw, false);
        format!("{kind},{payload},{target}{params}")
    }

    pub(super) fn host(&self, draw: &mut Draw) -> (String, bool) {
        match draw.below(100) {
            0..30 => (self.near(draw).to_string(), true),
            30..75 => {
                let name = &self.names[draw.below(self.names.len())];
                let found = match draw.below(4) {
                    0 => name.clone(),
                    1 => format!("{}.{name}", draw.one(&WORDS)),
                    2 => name.split_once('.').map_or(name.as_str(), |(_, rest)| rest).to_owned(),
                    _ => format!("x{name}"),
                };
                (found, false)
            }
            _ => (name(draw), false),
        }
    }

    /// An address in a network of a rule, at its edge, or beside it.
    pub(super) fn near(&self, draw: &mut Draw) -> IpAddr {
        if draw.chance(40) {
            return address(draw);
        }
        let (ip, prefix) = self.networks[draw.below(self.networks.len())];
        let at = draw.below(5);
        let random = u128::from(draw.next()) << 64 | u128::from(draw.next());
        let edge = |low: u128, host: u128, top: u128| match at {
            0 => low,
            1 => low | host,
            2 => low.saturating_sub(1).max(1),
            3 => (low | host).saturating_add(1).min(top),
            _ => low | random & host,
        };
        match ip {
            IpAddr::V4(ip) => {
                let host = u32::MAX.checked_shr(prefix.into()).unwrap_or(0);
                let low = u128::from(ip.to_bits() & !host);
                let found = edge(low, host.into(), u32::MAX.into());
                Ipv4Addr::from(u32::try_from(found.max(1)).unwrap()).into()
            }
            IpAddr::V6(ip) => {
                let host = u128::MAX.checked_shr(prefix.into()).unwrap_or(0);
                Ipv6Addr::from(edge(ip.to_bits() & !host, host, u128::MAX)).into()
            }
        }
    }
}
