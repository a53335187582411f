//! Scenarios: which subjects, which measures, how much of them.

use std::fs;
use std::path::Path;

use anyhow::{Context, Result, bail};
use serde::Deserialize;

/// A scenario; every field may be left out of a file and is then that of [`Scenario::quick`].
#[derive(Debug, Clone, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields, default)]
pub struct Scenario {
    /// Its name.
    pub name: String,
    /// Names of the subjects, in the order of the tables.
    pub subjects: Vec<String>,
    /// Names of the measures, in the order of the tables.
    pub measures: Vec<String>,
    /// Number of repetitions of everything.
    pub rounds: usize,
    /// The subjects to compare with, separated by commas, or `none`. A name without a method stands for the
    /// method of the row.
    pub baseline: String,
    /// Seconds over which bulk bytes count.
    pub seconds: f64,
    /// Fresh connections.
    pub connections: usize,
    /// Connections for the time to the first byte.
    pub first_byte: usize,
    /// Idle connections.
    pub idle: usize,
    /// Bytes of each transfer.
    pub transfer: u32,
    /// Seconds after opening and after closing idle connections before memory is read.
    pub settle: u64,
    /// Datagrams per second of bulk flows.
    pub udp_rate: f64,
    /// The method that is 100 percent in tables of methods; none: no such tables.
    pub by_method: Option<String>,
    /// Subjects that do the same work, separated by spaces, one family each: the first is compared with the others.
    pub families: Vec<String>,
    /// The links over which everything is measured, one after the other; none: without one.
    pub links: Vec<String>,
}

impl Default for Scenario {
    fn default() -> Self {
        Self::quick()
    }
}

pub(crate) fn names(text: &str) -> Vec<String> {
    text.split_whitespace().map(str::to_owned).collect()
}

impl Scenario {
    /// A look that takes a minute or two.
    #[must_use]
    pub fn quick() -> Self {
        Self {
            name: "quick".into(),
            subjects: names("direct floor-plain floor-aead adit-snell sing-box-snell5 opensnell"),
            measures: names("down1 down8 up8 get8 conn latency base"),
            rounds: 3,
            baseline: "floor-aead".into(),
            seconds: 1.0,
            connections: 1000,
            first_byte: 200,
            idle: 9000,
            transfer: 10_000_000,
            settle: 5,
            udp_rate: 40_000.0,
            by_method: None,
            families: Vec::new(),
            links: Vec::new(),
        }
    }

    /// Everything that the project's bars are decided by.
    #[must_use]
    pub fn full() -> Self {
        Self {
            name: "full".into(),
            subjects: names(
                "direct floor-plain floor-aead adit-snell adit-snell-reuse sing-box-snell5 sing-box-snell5-reuse \
                 sing-box-ss opensnell opensnell-reuse",
            ),
            measures: names(
                "base down1 down8 down64 up1 up8 get1 get2 get4 get8 get64 put1 put2 put4 put8 put64 conn conn8 conn64 \
                 latency first-byte ping1 ping8 calls idle1000 idle",
            ),
            rounds: 5,
            seconds: 1.5,
            connections: 2000,
            first_byte: 300,
            ..Self::quick()
        }
    }

    /// Shadowsocks over TCP: adit against the programs whose place it takes.
    #[must_use]
    pub fn shadowsocks() -> Self {
        Self {
            name: "shadowsocks".into(),
            subjects: names(
                "adit-ss:2022-blake3-aes-128-gcm ss-rust:2022-blake3-aes-128-gcm sing-box-ss:2022-blake3-aes-128-gcm \
                 adit-ss:aes-128-gcm ss-rust:aes-128-gcm ss-libev:aes-128-gcm \
                 adit-ss:chacha20-ietf-poly1305 ss-rust:chacha20-ietf-poly1305 ss-libev:chacha20-ietf-poly1305",
            ),
            measures: names("down1 down8 up1 up8 conn base idle"),
            rounds: 5,
            baseline: "ss-rust,sing-box-ss,ss-libev".into(),
            connections: 2000,
            ..Self::quick()
        }
    }

    /// The figures of the tables in README.md.
    #[must_use]
    pub fn readme() -> Self {
        Self {
            name: "readme".into(),
            subjects: names(
                "floor-aead adit-snell sing-box-snell5 opensnell \
                 adit-ss:aes-128-gcm ss-rust:aes-128-gcm sing-box-ss:aes-128-gcm ss-libev:aes-128-gcm",
            ),
            measures: names("base down1 down8 up8 conn first-byte busy-connect2 idle1000"),
            rounds: 5,
            baseline: "none".into(),
            ..Self::quick()
        }
    }

    /// Streams against every program of the field that the lab knows, each with the same work: as Snell 5 and 6, as
    /// Shadowsocks at both ends, as a client with a file of Clash, and without any protocol.
    #[must_use]
    pub fn everybody() -> Self {
        const FAMILIES: [&str; 6] = [
            "adit-snell sing-box-snell5 opensnell snell-rs",
            "adit-snell6 sing-box-snell6 snell-rs6",
            "adit-ss:aes-128-gcm ss-rust:aes-128-gcm ss-libev:aes-128-gcm sing-box-ss:aes-128-gcm mihomo-ss:aes-128-gcm",
            "adit-ss:2022-blake3-aes-128-gcm ss-rust:2022-blake3-aes-128-gcm sing-box-ss:2022-blake3-aes-128-gcm \
             mihomo-ss:2022-blake3-aes-128-gcm",
            "adit-clash-ss@ss-rust:aes-128-gcm mihomo-ss@ss-rust:aes-128-gcm meow-ss:aes-128-gcm",
            "adit-clash-direct mihomo-direct meow-direct",
        ];
        Self {
            name: "everybody".into(),
            subjects: std::iter::once("direct floor-plain floor-aead")
                .chain(FAMILIES)
                .flat_map(names)
                .collect(),
            measures: names("base down1 down8 up8 conn latency busy-connect2 idle1000"),
            rounds: 5,
            baseline: "none".into(),
            families: FAMILIES.map(str::to_owned).to_vec(),
            ..Self::quick()
        }
    }

    /// The same program with one event loop and with two.
    #[must_use]
    pub fn loops() -> Self {
        Self {
            name: "loops".into(),
            subjects: names("adit-loops:1 adit-loops:2"),
            measures: names("down8 up8 conn8 udp-bulk1400"),
            rounds: 7,
            baseline: "adit-loops:1".into(),
            udp_rate: 20_000.0,
            ..Self::quick()
        }
    }

    /// Every cipher of Shadowsocks that more than one program knows.
    #[must_use]
    pub fn ciphers() -> Self {
        const PROGRAMS: [&str; 3] = ["adit-ss", "ss-rust", "ss-libev"];
        const METHODS: &str = "aes-256-ctr aes-128-ctr aes-192-ctr aes-128-cfb aes-192-cfb aes-256-cfb rc4-md5 \
            camellia-128-cfb camellia-256-cfb chacha20 chacha20-ietf salsa20 bf-cfb \
            aes-128-gcm aes-192-gcm aes-256-gcm chacha20-ietf-poly1305 xchacha20-ietf-poly1305 \
            2022-blake3-aes-128-gcm 2022-blake3-aes-256-gcm 2022-blake3-chacha20-poly1305";
        let of_method = |method: &str| PROGRAMS.map(|program| format!("{program}:{method}"));
        Self {
            name: "ciphers".into(),
            subjects: METHODS.split_whitespace().flat_map(of_method).collect(),
            measures: names("down1 up1"),
            baseline: "ss-rust,ss-libev".into(),
            by_method: Some("aes-256-ctr".into()),
            ..Self::quick()
        }
    }

    /// One flow of datagrams through tunnels.
    #[must_use]
    pub fn udp() -> Self {
        Self {
            name: "udp".into(),
            subjects: names(
                "floor-datagrams adit-ss-tunnel:2022-blake3-aes-128-gcm ss-rust-tunnel:2022-blake3-aes-128-gcm \
                 sing-box-ss-tunnel:2022-blake3-aes-128-gcm \
                 adit-ss-tunnel:aes-128-gcm ss-rust-tunnel:aes-128-gcm ss-libev-tunnel:aes-128-gcm \
                 adit-ss-tunnel:chacha20-ietf-poly1305 ss-rust-tunnel:chacha20-ietf-poly1305 \
                 ss-libev-tunnel:chacha20-ietf-poly1305",
            ),
            measures: names(
                "udp-bulk64 udp-bulk1400 udp-bulk64-gso udp-bulk1400-gso udp-max64 udp-max1400 udp-low64",
            ),
            rounds: 5,
            baseline: "ss-rust-tunnel,ss-libev-tunnel".into(),
            ..Self::quick()
        }
    }

    /// Datagrams that enter by SOCKS5: exchanges, many flows, time.
    #[must_use]
    pub fn udp_socks() -> Self {
        Self {
            name: "udp-socks".into(),
            subjects: names(
                "adit-ss:2022-blake3-aes-128-gcm ss-rust:2022-blake3-aes-128-gcm sing-box-ss:2022-blake3-aes-128-gcm \
                 adit-ss:aes-128-gcm ss-rust:aes-128-gcm ss-libev:aes-128-gcm",
            ),
            measures: names("udp-echo64 udp-echo1400 udp-scatter512 udp-latency64 udp-jitter1400 udp-idle"),
            rounds: 5,
            baseline: "ss-rust,sing-box-ss,ss-libev".into(),
            ..Self::quick()
        }
    }

    /// More datagrams than a server can carry.
    #[must_use]
    pub fn udp_overload() -> Self {
        Self {
            name: "udp-overload".into(),
            subjects: names(
                "adit-ss-server:2022-blake3-aes-128-gcm ss-rust-server:2022-blake3-aes-128-gcm \
                 sing-box-ss-server:2022-blake3-aes-128-gcm adit-ss-server:aes-128-gcm ss-libev-server:aes-128-gcm",
            ),
            measures: names("udp-over64 udp-over1400"),
            baseline: "ss-rust-server,ss-libev-server".into(),
            ..Self::quick()
        }
    }

    /// The subjects that `adit audit` compares: every generation of Snell and Shadowsocks, with and without
    /// obfuscation, and plain TLS.
    #[must_use]
    pub fn audit() -> Self {
        Self {
            name: "audit".into(),
            subjects: names(
                "adit-snell adit-snell-obfs-http adit-snell-obfs-tls adit-snell6 adit-snell6-unshaped \
                 opensnell opensnell-obfs-http sing-box-snell5 sing-box-snell5-obfs sing-box-snell6 \
                 adit-ss:aes-256-ctr adit-ss:aes-128-gcm adit-ss:2022-blake3-aes-128-gcm \
                 ss-libev:aes-256-ctr ss-libev:aes-128-gcm ss-rust:aes-128-gcm ss-rust:2022-blake3-aes-128-gcm \
                 sing-box-ss:2022-blake3-aes-128-gcm \
                 adit-ss-obfs-http adit-ss-obfs-tls ss-libev-obfs-http ss-libev-obfs-tls sing-box-https",
            ),
            measures: names("first-byte conn"),
            baseline: "sing-box-https".into(),
            ..Self::quick()
        }
    }

    /// Streams over the path of the tables of kcptun's users: 100 Mbit/s, a queue of one round trip, and loss.
    #[must_use]
    pub fn links() -> Self {
        Self {
            name: "links".into(),
            subjects: names("direct-cubic direct-bbr adit-snell adit-ss adit-kcp kcptun"),
            measures: names("path-down1 path-up1 path-ping path-share"),
            baseline: "kcptun".into(),
            seconds: 12.0,
            links: names(
                "100mbit,rtt=100ms,queue=1250kB 100mbit,rtt=100ms,loss=1%,queue=1250kB 100mbit,rtt=100ms,loss=5%,queue=1250kB",
            ),
            ..Self::quick()
        }
    }

    /// KCP over the same path: adit and kcptun at either end.
    #[must_use]
    pub fn kcp() -> Self {
        Self {
            name: "kcp".into(),
            subjects: names("adit-kcp kcptun adit-kcp@kcptun kcptun@adit-kcp"),
            ..Self::links()
        }
    }

    /// The best that kcptun's flags can do: downloads over a fixed grid of them, once.
    #[must_use]
    pub fn kcp_grid() -> Self {
        let mut subjects = names("adit-kcp kcptun");
        for window in [1024, 8192, 65535] {
            // Version 1 has no windows of its own.
            for (version, buffer) in [(1, 2 << 20), (2, 2 << 20), (2, 16 << 20)] {
                for parity in ["10/3", "0/0"] {
                    subjects.push(format!("kcptun-grid:{window}/{version}/{buffer}/{parity}"));
                }
            }
        }
        Self {
            name: "kcp-grid".into(),
            subjects,
            measures: names("path-down1"),
            rounds: 1,
            baseline: "adit-kcp".into(),
            ..Self::links()
        }
    }

    /// Snowflake with the buffers of smux that a report of 2021 asks about: downloads over its usual path, by loss. Clients
    /// and servers that were built anew with other buffers are named by `--program`.
    #[must_use]
    pub fn snowflake() -> Self {
        Self {
            name: "snowflake".into(),
            subjects: names(
                "snowflake snowflake-proxied snowflake-debian-client snowflake-debian-proxy snowflake-debian \
                 snowflake-upstream snowflake-smux1 snowflake-64k snowflake-256k snowflake-16m",
            ),
            measures: names("path-down1"),
            baseline: "snowflake-upstream".into(),
            links: names("50mbit,rtt=100ms 50mbit,rtt=100ms,loss=1% 50mbit,rtt=100ms,loss=3%"),
            ..Self::links()
        }
    }

    /// The ready-made scenarios.
    #[must_use]
    pub fn all() -> Vec<Self> {
        vec![
            Self::quick(),
            Self::full(),
            Self::shadowsocks(),
            Self::readme(),
            Self::everybody(),
            Self::loops(),
            Self::ciphers(),
            Self::udp(),
            Self::udp_socks(),
            Self::udp_overload(),
            Self::audit(),
            Self::links(),
            Self::kcp(),
            Self::kcp_grid(),
            Self::snowflake(),
        ]
    }

    /// The ready-made scenario of that name, or the one in that file.
    ///
    /// # Errors
    /// If there is neither, or the file is not a scenario.
    pub fn find(name: &str) -> Result<Self> {
        let mut all = Self::all();
        if let Some(at) = all.iter().position(|scenario| scenario.name == name) {
            return Ok(all.swap_remove(at));
        }
        if Path::new(name).is_file() {
            let text = fs::read_to_string(name).with_context(|| format!("read {name}"))?;
            return toml_edit::de::from_str(&text).with_context(|| format!("scenario in {name}"));
        }
        let names: Vec<&str> = all.iter().map(|scenario| scenario.name.as_str()).collect();
        bail!("unknown scenario: {name}\nhint: {} or a file", names.join(", "))
    }
}
