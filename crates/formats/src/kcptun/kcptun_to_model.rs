//! From options to the model.

use std::net::SocketAddr;
use std::num::NonZeroU64;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use adit_model::diagnostic::{Diagnostic, Diagnostics};
use adit_model::{
    Config, Dial, Inbound, InboundProtocol, Kcp, KcpClient, KcpPace, KcpParity, Limits, MAX_CORES, Outbound,
    OutboundProtocol, Secret, SocketOptions, Tag, Transports,
};
use adit_proto::kcp::crypt::KcpMethod;
use adit_proto::kcp::fec::{self, Shards};
use adit_proto::smux::SmuxVersion;
use adit_proto::wire::{Host, Target};
use zeroize::Zeroizing;

use super::{KcptunProgram, KcptunSetup, KcptunValues, Release, Side};
use crate::read::source::Source;
use crate::read::value::{self, excerpt};

/// The key of those who give none, as both programs spell it.
const DEFAULT_KEY: &str = "it's a secrect";
/// Ports of one range that are listened on, at most.
const MAX_PORTS: u16 = 1024;
/// Bytes of data that a datagram must have room for.
const LEAST_DATA: usize = 16;

/// Makes a setup of flags, of the variable `KCPTUN_KEY`, and of a file with its name.
///
/// # Errors
/// Everything that is wrong.
pub fn load(
    program: KcptunProgram,
    mut flags: KcptunValues,
    key: Option<Zeroizing<String>>,
    file: Option<(&str, &str)>,
) -> Result<KcptunSetup, Diagnostics> {
    flags.default_key(key);
    let name = file.map_or("command line", |(name, _)| name);
    let mut found = Diagnostics::new();
    if let Some((name, text)) = file {
        found = flags.read(program, &Source::new(name, text))?;
    }
    let mut translator = Translator { program, flags, file: name.into(), found };
    let setup = translator.setup();
    if translator.found.has_errors() {
        return Err(translator.found);
    }
    Ok(KcptunSetup { diagnostics: translator.found, ..setup })
}

struct Translator {
    program: KcptunProgram,
    flags: KcptunValues,
    file: Arc<str>,
    found: Diagnostics,
}

impl Translator {
    fn setup(&mut self) -> KcptunSetup {
        if self.flags.is_on("pprof") {
            self.warn("pprof", "a profiler of Go's: it has no effect");
        }
        const MODES: [&str; 5] = ["fast3", "fast2", "fast", "normal", "manual"];
        if let Some(mode) = self.flags.text("mode").filter(|mode| !MODES.contains(mode)) {
            let problem = format!("no such mode, it is taken as manual: {}", excerpt(mode));
            let hint = "modes are fast3, fast2, fast, normal and manual";
            let warning = self.finding("mode", Diagnostic::warning, problem);
            self.found.push(warning.hint(hint));
        }
        let kcp = self.kcp();
        let config = match self.program.side {
            Side::Client => self.client(kcp),
            Side::Server => self.server(kcp),
        };
        let text = |name| self.flags.text(name).filter(|text| !text.is_empty()).map(str::to_owned);
        let log = text("log").map(PathBuf::from);
        let layout = text("snmplog");
        let period = self.seconds("snmpperiod", 60);
        let counters = layout.filter(|_| !period.is_zero()).map(|layout| (layout, period));
        KcptunSetup { config, log, counters, diagnostics: Diagnostics::new() }
    }

    fn client(&mut self, kcp: Kcp) -> Config {
        let listen = self.flags.text("localaddr").unwrap_or(":12948").to_owned();
        let (listen, unix) = match value::listen(&listen) {
            Ok(addr) => (vec![addr], None),
            // A value that cannot be host and port is the path of a socket.
            Err(_) if listen.contains('/') => (Vec::new(), Some(PathBuf::from(&listen))),
            Err(_) if !listen.contains(':') && !listen.is_empty() => {
                let text = format!("no port, so it is the path of a unix socket: {}", excerpt(&listen));
                self.warn("localaddr", text);
                (Vec::new(), Some(PathBuf::from(&listen)))
            }
            Err(problem) => {
                self.problem("localaddr", problem.text, problem.hint.unwrap_or_default());
                (Vec::new(), None)
            }
        };
        let server = self.flags.text("remoteaddr").unwrap_or("vps:29900").to_owned();
        let (server, last_port) = self.range("remoteaddr", &server);
        let sessions = self.number("conn", 1, 1..=65_536);
        let expire = self.seconds("autoexpire", 0);
        let linger = self.seconds("scavengettl", 600);
        let client = KcpClient {
            kcp,
            last_port,
            server: server.clone(),
            sessions,
            expire: (!expire.is_zero()).then_some(expire),
            linger,
            half_close: false,
            snowflake: None,
        };
        let dial = Dial { carrier: Some(Box::new(client)), ..Dial::default() };
        let socket = SocketOptions { unix, ..SocketOptions::default() };
        let mut config = self.config(listen, server, socket, dial);
        // A session is on one core, and one of them is what was asked for.
        config.cores = Some(sessions.min(MAX_CORES));
        config
    }

    fn server(&mut self, mut kcp: Kcp) -> Config {
        kcp.close_wait = Some(self.seconds("closewait", 30));
        let listen = self.flags.text("listen").unwrap_or(":29900").to_owned();
        let listen = self.listen_range(&listen);
        let target = self.flags.text("target").unwrap_or("127.0.0.1:12948").to_owned();
        if target.is_empty() {
            self.problem("target", "empty".into(), "write host:port, or the path of a unix socket".into());
        }
        let (target, unix) = match value::target(&target) {
            Ok(target) => (target, None),
            // A value that is no host and port is the path of a socket.
            Err(_) => {
                (Target { host: Host::Ip([127, 0, 0, 1].into()), port: 1 }, Some(PathBuf::from(target)))
            }
        };
        let socket = SocketOptions { carrier: Some(Box::new(kcp)), ..SocketOptions::default() };
        self.config(listen, target, socket, Dial { unix, ..Dial::default() })
    }

    fn config(&self, listen: Vec<SocketAddr>, target: Target, socket: SocketOptions, dial: Dial) -> Config {
        let protocol = InboundProtocol::Tunnel { target, transports: Transports::Tcp };
        let (name, outbound) = (self.program.name().into(), Tag::from("out"));
        Config {
            // The programs never end a stream that rests.
            limits: Limits { idle: None, ..Limits::default() },
            inbounds: vec![Inbound {
                name,
                listen,
                socket,
                outbound: outbound.clone(),
                allow_private: true,
                protocol,
            }],
            outbounds: vec![Outbound { name: outbound, dial, protocol: OutboundProtocol::Direct }],
            ..Config::default()
        }
    }

    fn kcp(&mut self) -> Kcp {
        let key = Secret::new(self.flags.text("key").unwrap_or(DEFAULT_KEY));
        let crypt = self.crypt();
        let parity = self.parity();
        let seconds = self.number("keepalive", 10, 1..=30);
        let pads = self.number("QPPCount", 61, 1..=65_535);
        let dscp = self.number("dscp", 0, 0..=255);
        let rate = self.count("ratelimit", 0);
        Kcp {
            compression: !self.flags.is_on("nocomp"),
            version: self.version(),
            pads: self.flags.is_on("QPP").then(|| u16::try_from(pads).unwrap_or(u16::MAX)),
            pace: self.pace(),
            ack_no_delay: self.flags.is_on("acknodelay"),
            mtu: self.mtu(crypt, parity),
            send_window: self.window("sndwnd"),
            recv_window: self.window("rcvwnd"),
            parity,
            receive_buffer: self.given("smuxbuf", 1..=i64::MAX >> 1).and_then(|n| usize::try_from(n).ok()),
            stream_buffer: self
                .given("streambuf", 1..=i64::from(i32::MAX))
                .and_then(|n| u32::try_from(n).ok()),
            raw_tcp: self.flags.is_on("tcp"),
            frame_len: self.number("framesize", 8192, 1..=65_535),
            keep_alive: Duration::from_secs(u64::try_from(seconds).unwrap_or(10)),
            rate_limit: NonZeroU64::new(rate),
            class_v4: u8::try_from(dscp << 2 & 0xff).unwrap_or_default(),
            class_v6: u8::try_from(dscp).unwrap_or_default(),
            socket_buffer: Some(self.number("sockbuf", 4 << 20, 1..=1 << 30)),
            ..Kcp::new(key, crypt)
        }
    }

    /// A name that is no cipher means `aes`. The programs do not say so, and another program at the peer might differ.
    fn crypt(&mut self) -> KcpMethod {
        let name = self.flags.text("crypt").unwrap_or("aes").to_owned();
        let is_late = |method| matches!(method, KcpMethod::Null | KcpMethod::Aes128Gcm);
        match KcpMethod::from_name(&name) {
            Some(method) if !(self.program.release == Release::Debian && is_late(method)) => method,
            Some(method) => {
                let text =
                    "later than the program of this name, which takes it for aes; here it is what it says";
                self.warn("crypt", text);
                method
            }
            None => {
                let text = format!("no such cipher, so it is aes: {}", excerpt(&name));
                self.warn("crypt", text);
                KcpMethod::Aes256
            }
        }
    }

    fn version(&mut self) -> Option<SmuxVersion> {
        match (self.flags.number("smuxver"), self.program) {
            (Some(1), _) | (None, KcptunProgram { side: Side::Client, release: Release::Debian }) => {
                Some(SmuxVersion::V1)
            }
            (Some(2), _) | (None, KcptunProgram { side: Side::Client, release: Release::Last }) => {
                Some(SmuxVersion::V2)
            }
            (None, KcptunProgram { side: Side::Server, .. }) => None,
            (Some(other), _) => {
                self.problem("smuxver", format!("unsupported smux version: {other}"), "1 and 2 exist".into());
                None
            }
        }
    }

    fn pace(&mut self) -> KcpPace {
        let mode = self.flags.text("mode").unwrap_or("fast").to_owned();
        let mut number = |name, default| u32::try_from(self.count(name, default)).unwrap_or(u32::MAX);
        let (nodelay, interval, resend, nc) = match mode.as_str() {
            "normal" => (0, 40, 2, 1),
            "fast" => (0, 30, 2, 1),
            "fast2" => (1, 20, 2, 1),
            "fast3" => (1, 10, 2, 1),
            _ => (number("nodelay", 0), number("interval", 50), number("resend", 0), number("nc", 0)),
        };
        KcpPace {
            nodelay: nodelay != 0,
            interval: Duration::from_millis(u64::from(interval.clamp(10, 5000))),
            resend,
            congestion: nc == 0,
        }
    }

    /// 0 in either of them is none; with neither given it follows what is lost.
    fn parity(&mut self) -> KcpParity {
        let (data, parity) = (self.flags.number("datashard"), self.flags.number("parityshard"));
        if data.is_none() && parity.is_none() {
            return KcpParity::Measured;
        }
        let (data, parity) = (data.unwrap_or(10), parity.unwrap_or(3));
        if data <= 0 || parity <= 0 {
            return KcpParity::Off;
        }
        let shards = usize::try_from(data).ok().zip(usize::try_from(parity).ok());
        let shards = shards.and_then(|(data, parity)| Shards::new(data, parity));
        if shards.is_none() {
            self.problem(
                "datashard",
                "more than 256 packets in a group".into(),
                "the usual group is 10 and 3".into(),
            );
        }
        shards.map_or(KcpParity::Off, KcpParity::Fixed)
    }

    fn mtu(&mut self, crypt: KcpMethod, parity: KcpParity) -> usize {
        let given = self.flags.number("mtu").unwrap_or(1350);
        let mtu = match self.program.release {
            Release::Debian if !(50..=1500).contains(&given) => 1400,
            Release::Debian | Release::Last => usize::try_from(given.clamp(0, 1500)).unwrap_or(1500),
        };
        if usize::try_from(given) != Ok(mtu) {
            self.warn("mtu", format!("more than the program takes, so it is {mtu}"));
        }
        let fec = if matches!(parity, KcpParity::Fixed(_)) { fec::HEADER_LEN } else { 0 };
        let headers = crypt.head_len() + crypt.tail_len() + fec + adit_proto::kcp::arq::SEGMENT_HEADER_LEN;
        if mtu < headers + LEAST_DATA {
            self.problem("mtu", format!("too short for {headers} bytes of headers"), "1350 is usual".into());
            return 1350;
        }
        mtu
    }

    /// Segments; a window of 65536 would be told as none.
    fn window(&mut self, name: &'static str) -> Option<u16> {
        let given = self.flags.number(name)?;
        if !(1..=65_535).contains(&given) {
            self.warn(name, format!("not from 1 to 65535, so it is {}", given.clamp(1, 65_535)));
        }
        Some(u16::try_from(given.clamp(1, 65_535)).unwrap_or(u16::MAX))
    }

    fn given(&mut self, name: &'static str, range: std::ops::RangeInclusive<i64>) -> Option<i64> {
        let given = self.flags.number(name)?;
        if !range.contains(&given) {
            let text = format!("not from {} to {}", range.start(), range.end());
            self.problem(name, text, String::new());
            return None;
        }
        Some(given)
    }

    fn number(&mut self, name: &'static str, default: usize, range: std::ops::RangeInclusive<i64>) -> usize {
        self.given(name, range).and_then(|number| usize::try_from(number).ok()).unwrap_or(default)
    }

    fn seconds(&mut self, name: &'static str, default: u64) -> Duration {
        Duration::from_secs(self.count(name, default))
    }

    /// A number that is not negative; one that is counts as 0.
    fn count(&mut self, name: &'static str, default: u64) -> u64 {
        let Some(given) = self.flags.number(name) else { return default };
        u64::try_from(given).unwrap_or_else(|_| {
            self.warn(name, "less than 0, so it is 0");
            0
        })
    }

    /// `host:port`, or `host:first-last`.
    fn range(&mut self, name: &'static str, text: &str) -> (Target, u16) {
        let (head, last) = match text.rsplit_once(':').map(|(host, ports)| (host, ports.split_once('-'))) {
            Some((host, Some((first, last)))) => (format!("{host}:{first}"), last.trim().parse::<u16>().ok()),
            _ => (text.to_owned(), Some(0)),
        };
        match (value::target(&head), last) {
            (Ok(target), Some(last)) => {
                let last = last.max(target.port);
                (target, last)
            }
            (Ok(target), None) => {
                self.problem(name, "bad range of ports".into(), "write host:first-last".into());
                let port = target.port;
                (target, port)
            }
            (Err(problem), _) => {
                self.problem(name, problem.text, problem.hint.unwrap_or_default());
                (Target { host: Host::Ip([127, 0, 0, 1].into()), port: 1 }, 1)
            }
        }
    }

    /// Every port of a range.
    fn listen_range(&mut self, text: &str) -> Vec<SocketAddr> {
        let (head, last) = match text.rsplit_once(':').map(|(host, ports)| (host, ports.split_once('-'))) {
            Some((host, Some((first, last)))) => (format!("{host}:{first}"), last.trim().parse::<u16>().ok()),
            _ => (text.to_owned(), Some(0)),
        };
        match (value::listen(&head), last) {
            (Ok(first), Some(last)) => {
                let last = last.max(first.port());
                if last - first.port() >= MAX_PORTS {
                    let text = format!("more than {MAX_PORTS} ports");
                    self.problem("listen", text, String::new());
                    return vec![first];
                }
                (first.port()..=last).map(|port| SocketAddr::new(first.ip(), port)).collect()
            }
            (Ok(_), None) => {
                self.problem("listen", "bad range of ports".into(), "write address:first-last".into());
                Vec::new()
            }
            (Err(problem), _) => {
                self.problem("listen", problem.text, problem.hint.unwrap_or_default());
                Vec::new()
            }
        }
    }

    /// A finding about an option, at its place in the file if it comes from there.
    fn finding(
        &self,
        name: &'static str,
        kind: fn(&Arc<str>, &'static str, String) -> Diagnostic,
        text: impl Into<String>,
    ) -> Diagnostic {
        let (key, place) = self.flags.place(name);
        kind(&self.file, key, text.into()).at(place)
    }

    fn warn(&mut self, name: &'static str, text: impl Into<String>) {
        let warning = self.finding(name, Diagnostic::warning, text);
        self.found.push(warning);
    }

    fn problem(&mut self, key: &'static str, text: String, hint: String) {
        let error = self.finding(key, Diagnostic::error, text);
        self.found.push(if hint.is_empty() { error } else { error.hint(hint) });
    }
}

/// Fuzz target. First byte: the program; the rest: its file. Its configuration has one way in and one way out.
#[doc(hidden)]
pub fn fuzz_kcptun(data: &[u8]) {
    let Some((&choice, text)) = data.split_first() else { return };
    let side = if choice & 1 == 0 { Side::Client } else { Side::Server };
    let release = if choice & 2 == 0 { Release::Debian } else { Release::Last };
    let text = String::from_utf8_lossy(text);
    match load(KcptunProgram { side, release }, KcptunValues::default(), None, Some(("fuzz.json", &text))) {
        Ok(setup) => {
            assert_eq!((setup.config.inbounds.len(), setup.config.outbounds.len()), (1, 1));
            assert!(!setup.diagnostics.has_errors());
        }
        Err(found) => assert!(found.has_errors()),
    }
}
