//! The verdict of the published rule against fully encrypted traffic on the first packets of connections.
//!
//! The rule (Wu and others, USENIX Security 2023, "How the Great Firewall of China Detects and Blocks Fully Encrypted
//! Traffic"; the thresholds agree with nDPI's) looks at the payload of the first segment from client to server that
//! carries any. It may block a connection that no exemption saves.

use std::collections::BTreeMap;
use std::fmt;
use std::fs;
use std::io::Write;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::atomic::Ordering;
use std::thread;
use std::time::{Duration, Instant, SystemTime};

use anyhow::{Context, Result, ensure};
use clap::Args as ClapArgs;
use comfy_table::{ContentArrangement, Table, presets};
use serde::Serialize;

use super::Source;
use super::tap::Tap;
use crate::ProgramArgs;
use crate::frame::Packet;
use crate::load::{self, Path};
use crate::probe::recording::Gathering;
use crate::probe::{self, Probed};
use crate::scenario::Scenario;
use crate::subject::{self, Programs, Running, Subject};
use crate::target::Target;

/// A reason for which the rule lets a connection pass.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Exemption {
    /// Ex1: at most 3.4, or at least 4.6, bits of each byte are set on average.
    Bits,
    /// Ex2: the first six bytes are printable.
    PrintableStart,
    /// Ex3: more than half of the bytes are printable.
    PrintableHalf,
    /// Ex4: more than 20 bytes in a row are printable.
    PrintableRun,
    /// Ex5: it begins like a TLS record.
    Tls,
    /// Ex5: it begins like an HTTP request.
    Http,
}

/// All exemptions in the order of the rule.
pub const ALL: [Exemption; 6] = [
    Exemption::Bits,
    Exemption::PrintableStart,
    Exemption::PrintableHalf,
    Exemption::PrintableRun,
    Exemption::Tls,
    Exemption::Http,
];

impl fmt::Display for Exemption {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Bits => "bits",
            Self::PrintableStart => "printable start",
            Self::PrintableHalf => "printable half",
            Self::PrintableRun => "printable run",
            Self::Tls => "TLS",
            Self::Http => "HTTP",
        })
    }
}

/// Bits set per byte on average.
#[must_use]
pub fn bits_per_byte(first: &[u8]) -> f64 {
    first.iter().map(|byte| f64::from(byte.count_ones())).sum::<f64>() / first.len().max(1) as f64
}

/// The exemptions that hold for the first payload of a connection.
#[must_use]
pub fn exemptions(first: &[u8]) -> Vec<Exemption> {
    let printable = |byte: &u8| (0x20..=0x7e).contains(byte);
    let count = first.iter().filter(|byte| printable(byte)).count();
    let longest = first.split(|byte| !printable(byte)).map(<[u8]>::len).max().unwrap_or(0);
    // In whole numbers, so that a value at the threshold falls on the side that the rule names.
    let bits: usize = first.iter().map(|byte| byte.count_ones() as usize).sum();
    let holds = |exemption: &Exemption| match exemption {
        Exemption::Bits => bits * 10 <= first.len() * 34 || bits * 10 >= first.len() * 46,
        Exemption::PrintableStart => first.len() >= 6 && first[..6].iter().all(printable),
        Exemption::PrintableHalf => count * 2 > first.len(),
        Exemption::PrintableRun => longest > 20,
        Exemption::Tls => matches!(first, [0x16 | 0x17, 3, 0..=9, ..]),
        Exemption::Http => {
            [&b"GET "[..], b"PUT ", b"POST ", b"HEAD "].iter().any(|word| first.starts_with(word))
        }
    };
    if first.is_empty() { Vec::new() } else { ALL.into_iter().filter(holds).collect() }
}

/// The findings at one server port, or for one subject.
#[derive(Debug, Default, Serialize)]
pub struct Finding {
    /// First packets that were looked at.
    pub connections: usize,
    /// Number of first packets that no exemption saves.
    pub not_exempt: usize,
    /// Number of first packets for each exemption; several may hold for one.
    pub exempt: BTreeMap<Exemption, usize>,
    /// Bits per byte: least and most.
    pub bits: Option<(f64, f64)>,
    /// Payload lengths of the first packets: least and most.
    pub lengths: Option<(usize, usize)>,
    /// The server's reaction to probes, if it was probed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub probed: Option<Probed>,
}

impl Finding {
    /// The result in a line: `2 of 2 connections pass, by the rule: bits`.
    fn verdict(&self) -> String {
        let (all, passed) = (self.connections, self.connections - self.not_exempt);
        let by: Vec<String> = self.exempt.keys().map(ToString::to_string).collect();
        let noun = if all == 1 { "connection passes" } else { "connections pass" };
        match (passed, self.not_exempt) {
            (0, _) => format!("0 of {all} {noun}: the rule may block all of them"),
            (_, 0) => format!("{passed} of {all} {noun}, by the rule: {}", by.join(", ")),
            (_, lost) => {
                format!(
                    "{passed} of {all} {noun}, by the rule: {}; it may block the other {lost}",
                    by.join(", ")
                )
            }
        }
    }

    /// Looks at one more first payload.
    pub fn note(&mut self, first: &[u8]) {
        let held = exemptions(first);
        self.connections += 1;
        self.not_exempt += usize::from(held.is_empty());
        for exemption in held {
            *self.exempt.entry(exemption).or_default() += 1;
        }
        let bits = bits_per_byte(first);
        self.bits = Some(self.bits.map_or((bits, bits), |(least, most)| (least.min(bits), most.max(bits))));
        let len = first.len();
        self.lengths = Some(self.lengths.map_or((len, len), |(least, most)| (least.min(len), most.max(len))));
    }
}

/// Judge the first packets of TCP connections by the published rule against fully encrypted traffic, and probe servers.
#[derive(Debug, ClapArgs)]
#[command(arg_required_else_help = true)]
pub struct Args {
    #[command(flatten)]
    source: Source,
    /// Start these subjects (`adit bench --list`) and judge what their clients send, instead of a capture.
    #[arg(long, value_delimiter = ',', conflicts_with_all = ["file", "interface", "probe"])]
    subjects: Vec<String>,
    /// The subjects of this scenario (`adit bench --list`) or scenario file.
    #[arg(long, value_name = "SCENARIO", conflicts_with_all = ["subjects", "file", "interface", "probe"])]
    scenario: Option<String>,
    /// Connections through each subject.
    #[arg(long, default_value_t = 1000, value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    connections: u32,
    #[command(flatten)]
    probing: Probing,
    #[command(flatten)]
    programs: ProgramArgs,
    /// Write the findings as JSON to this file.
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
}

/// The server that is probed, and the extent of the probes.
#[derive(Debug, ClapArgs)]
struct Probing {
    /// Probe this server, which must be yours to probe; what a capture shows of its connections is sent again.
    #[arg(long, value_name = "ADDRESS:PORT")]
    probe: Option<SocketAddr>,
    /// Probe the servers of the subjects as well.
    #[arg(long)]
    probes: bool,
    /// Connections for each probe.
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    probe_connections: u32,
    /// Seconds for which a server is watched behind the last byte of a probe.
    #[arg(long, value_name = "SECONDS", default_value_t = 2.0)]
    patience: f64,
    /// Lengths of random bytes, separated by commas [default: 0 to 64, and some up to 131072].
    #[arg(long, value_delimiter = ',')]
    lengths: Vec<usize>,
}

impl Probing {
    fn plan(&self) -> Result<probe::Plan> {
        /// Longest probe: what fits the buffers of most systems.
        const MOST: usize = 1 << 20;
        /// Servers bound the unauthenticated connections that they keep from one address.
        const AT_ONCE: usize = 16;
        ensure!((0.1..=3600.0).contains(&self.patience), "patience out of range: {}", self.patience);
        let mut lengths = if self.lengths.is_empty() { probe::usual_lengths() } else { self.lengths.clone() };
        lengths.sort_unstable();
        lengths.dedup();
        ensure!(lengths.last().is_none_or(|len| *len <= MOST), "a probe of more than {MOST} bytes");
        let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
        Ok(probe::Plan {
            connections: self.probe_connections as usize,
            patience: Duration::from_secs_f64(self.patience),
            lengths,
            at_once: AT_ONCE,
            seed: u64::try_from(now.as_nanos() & u128::from(u64::MAX)).unwrap_or_default(),
        })
    }
}

/// Prints a finding per server, or per subject.
///
/// # Errors
/// If the source cannot be read, a subject fails, or a file not be written.
pub fn run(args: &Args) -> Result<()> {
    let mut findings: BTreeMap<String, Finding> = BTreeMap::new();
    let mut out = std::io::stdout().lock();
    let plan = args.probing.plan()?;
    let mut failed = Vec::new();
    let subjects = match &args.scenario {
        Some(name) => Scenario::find(name)?.subjects,
        None => args.subjects.clone(),
    };
    if subjects.is_empty() {
        observe(args, &plan, &mut findings)?;
    } else {
        let (all, programs) = (args.programs.subjects()?, args.programs.programs(crate::helper()?));
        subject::clean_up_on_signals()?;
        let probes = args.probing.probes.then_some(&plan);
        let count = subjects.len();
        for (at, name) in subjects.into_iter().enumerate() {
            writeln!(std::io::stderr(), "subject {} of {count}: {name}", at + 1)?;
            let subject = crate::find(&all, &name)?;
            if let Some(reason) = subject.obstacle(&programs) {
                writeln!(out, "skipped: {name}: {reason}")?;
                continue;
            }
            match drive(&subject, &programs, args.connections as usize, probes) {
                Ok(finding) => drop(findings.insert(name, finding)),
                Err(error) => failed.push(format!("{name}: {error:#}")),
            }
        }
    }
    print(&findings, &mut out)?;
    if let Some(path) = &args.json {
        let text = serde_json::to_string_pretty(&findings)?;
        fs::write(path, text).with_context(|| format!("cannot write {}", path.display()))?;
    }
    ensure!(failed.is_empty(), "subjects failed:\n{}", failed.join("\n"));
    Ok(())
}

/// Judges what a capture or an interface shows, if there is one, and probes the server that was named.
fn observe(args: &Args, plan: &probe::Plan, findings: &mut BTreeMap<String, Finding>) -> Result<()> {
    let mut gathering = args.probing.probe.map(Gathering::new);
    if args.source.is_given() {
        let mut note = |packet: &Packet<'_>, _: Duration| {
            if let Some(gathering) = &mut gathering {
                gathering.note(packet);
            }
        };
        let seen = super::see(&args.source, Some(&mut note))?;
        for flow in seen.flows.iter().filter(|flow| flow.protocol == "tcp" && !flow.up.opening.is_empty()) {
            findings.entry(flow.server.to_string()).or_default().note(&flow.up.opening);
        }
    } else {
        ensure!(gathering.is_some(), "a file, --interface, --subjects, --scenario or --probe expected");
    }
    if let (Some(server), Some(gathering)) = (args.probing.probe, gathering) {
        let probed = probe::run(server, plan, &gathering.finish(), &|| None)?;
        findings.entry(server.to_string()).or_default().probed = Some(probed);
    }
    Ok(())
}

/// Sends `connections` requests through `subject`, judges what its client sends to its server, and probes the server if
/// there is a plan for that.
///
/// # Errors
/// If the subject does not start, or does not carry them.
pub fn drive(
    subject: &Subject,
    programs: &Programs,
    connections: usize,
    probes: Option<&probe::Plan>,
) -> Result<Finding> {
    let target = Target::start(Duration::from_secs(20))?;
    let mut tap = None;
    let mut running = Running::start_tapped(subject, programs, target.address(), &mut |port| {
        Ok(tap.insert(Tap::start(port)?).port())
    })?;
    running.link()?;
    let path = Path { address: running.address, entry: running.entry, target: target.address() };
    let tap = tap.context("cannot capture a link: the subject has no two halves")?;
    warm_up(&path, &mut running)?;
    let before = tap.openings().len();
    load::fresh(&path, connections, 1, Duration::ZERO)?;
    let mut finding = Finding::default();
    for opening in tap.openings().into_iter().skip(before) {
        finding.note(&opening);
    }
    if let Some(plan) = probes {
        let dialled = || Some(target.counters().accepted.load(Ordering::Relaxed));
        finding.probed = Some(probe::run(tap.server(), plan, &tap.flights(), &dialled)?);
        running.alive()?;
    }
    Ok(finding)
}

/// One connection that arrives: a plugin may listen before the server behind it does.
fn warm_up(path: &Path, running: &mut Running) -> Result<()> {
    const PATIENCE: Duration = Duration::from_secs(10);
    let deadline = Instant::now() + PATIENCE;
    loop {
        match load::fresh(path, 1, 1, Duration::ZERO) {
            Ok(_) => return Ok(()),
            Err(error) if Instant::now() >= deadline => return Err(error),
            Err(_) => running.alive()?,
        }
        thread::sleep(Duration::from_millis(50));
    }
}

/// Writes a table with a row per finding.
///
/// # Errors
/// If `out` cannot be written.
pub fn print(findings: &BTreeMap<String, Finding>, out: &mut dyn Write) -> Result<()> {
    let mut table = Table::new();
    table.load_style(presets::ASCII_MARKDOWN).set_content_arrangement(ContentArrangement::Disabled);
    let mut header = vec!["of".to_owned(), "connections".to_owned(), "not exempt".to_owned()];
    header.extend(ALL.map(|exemption| exemption.to_string()));
    header.extend(["bits/byte".to_owned(), "first payload B".to_owned()]);
    table.set_header(header);
    for (name, finding) in findings.iter().filter(|(_, finding)| finding.connections > 0) {
        let mut row = vec![name.clone(), finding.connections.to_string(), finding.not_exempt.to_string()];
        row.extend(ALL.map(|exemption| finding.exempt.get(&exemption).copied().unwrap_or(0).to_string()));
        row.push(finding.bits.map_or_else(String::new, |(least, most)| format!("{least:.2}-{most:.2}")));
        row.push(finding.lengths.map_or_else(String::new, |(least, most)| format!("{least}-{most}")));
        table.add_row(row);
    }
    if findings.values().any(|finding| finding.connections > 0) {
        writeln!(out, "{table}")?;
        writeln!(
            out,
            "exempt: this rule lets it pass; not exempt: this rule may block it. It is one rule, published in 2023; who applies \
         which rules today is not known"
        )?;
    }
    for (name, finding) in findings.iter().filter(|(_, finding)| finding.connections > 0) {
        writeln!(out, "{name}: {}", finding.verdict())?;
    }
    for (name, finding) in findings {
        if let Some(probed) = &finding.probed {
            probed.print(name, out)?;
        }
    }
    let probed = findings.iter().filter_map(|(name, finding)| Some((name, finding.probed.as_ref()?)));
    probe::table::compare(probed, out)
}

#[cfg(test)]
mod tests {
    use super::super::file::{Reader, Writer};
    use super::super::flows::Flows;
    use super::*;
    use crate::frame::tests::segment;
    use crate::frame::{Link, parse};

    /// Bytes with four bits set each, none of them printable, that no exemption holds for.
    fn plain(len: usize) -> Vec<u8> {
        [0xc3, 0x87, 0xe1, 0x96].into_iter().cycle().take(len).collect()
    }

    #[test]
    fn nothing_saves_random_bytes() {
        for len in [1, 5, 16, 200, 1460] {
            assert_eq!(exemptions(&plain(len)), [], "{len}");
        }
        assert_eq!(exemptions(&[]), []);
    }

    /// The exemptions of the first packet of a capture of one connection.
    fn captured(first: &[u8]) -> Vec<Exemption> {
        let mut writer = Writer::new(Vec::new()).unwrap();
        // The server's greeting does not count, nor what the client sends later.
        for (from, to, payload) in
            [(443, 40000, &b"220 hello"[..]), (40000, 443, first), (40000, 443, b"GET /")]
        {
            let frame = segment(from, to, 1, 1, 0x18, payload);
            writer.frame(Duration::ZERO, &frame, frame.len()).unwrap();
        }
        let file = writer.finish().unwrap();
        let mut reader = Reader::new(&file[..]).unwrap();
        let mut flows = Flows::default();
        // The SYN says who is the client.
        let syn = segment(40000, 443, 0, 0, 2, &[]);
        flows.note(&parse(Link::Ethernet, &syn).unwrap(), Duration::ZERO);
        while let Some(frame) = reader.next_frame().unwrap() {
            flows.note(&parse(frame.link.unwrap(), frame.bytes).unwrap(), frame.time);
        }
        exemptions(&flows.finish()[0].up.opening)
    }

    /// For each exemption one capture that only it saves, and one that misses it by a byte.
    #[test]
    fn each_exemption_alone_and_missed_by_a_byte() {
        // 100 bytes with 340 bits: 70 of four bits, 30 of two. One byte with one bit more makes 341.
        let mut low = plain(70);
        low.extend([0x81; 30]);
        assert_eq!(captured(&low), [Exemption::Bits]);
        low[99] = 0x83;
        assert_eq!(captured(&low), []);
        // 100 bytes with 460 bits: 70 of four, 30 of six.
        let mut high = plain(70);
        high.extend([0xe7; 30]);
        assert_eq!(captured(&high), [Exemption::Bits]);
        high[99] = 0xc7;
        assert_eq!(captured(&high), []);

        // Letters of four bits, so that the average stays.
        let mut start = plain(60);
        start[..6].fill(b'i');
        assert_eq!(captured(&start), [Exemption::PrintableStart]);
        start[5] = 0x87;
        assert_eq!(captured(&start), []);

        // Every second byte and one more at the end.
        let mut half = plain(61);
        (0..61).step_by(2).for_each(|at| half[at] = b'i');
        assert_eq!(captured(&half), [Exemption::PrintableHalf]);
        half[60] = 0x87;
        assert_eq!(captured(&half), []);

        let mut run = plain(100);
        run[10..31].fill(b'i');
        assert_eq!(captured(&run), [Exemption::PrintableRun]);
        run[30] = 0x87;
        assert_eq!(captured(&run), []);

        for kind in [0x16, 0x17] {
            let mut tls = plain(100);
            tls[..3].copy_from_slice(&[kind, 3, 9]);
            assert_eq!(captured(&tls), [Exemption::Tls]);
            tls[2] = 10;
            assert_eq!(captured(&tls), []);
            tls[1..3].copy_from_slice(&[2, 1]);
            assert_eq!(captured(&tls), []);
        }

        for word in [&b"GET "[..], b"PUT ", b"POST ", b"HEAD "] {
            let mut http = plain(100);
            http[..word.len()].copy_from_slice(word);
            assert_eq!(captured(&http), [Exemption::Http]);
            http[word.len() - 1] = 0x87;
            assert_eq!(captured(&http), []);
        }
    }

    #[test]
    fn findings_add_up() {
        let mut finding = Finding::default();
        finding.note(&plain(100));
        finding.note(b"GET / HTTP/1.1\r\nHost: www.example.com\r\n\r\n");
        finding.note(&[0; 50]);
        assert_eq!((finding.connections, finding.not_exempt), (3, 1));
        assert_eq!(finding.exempt[&Exemption::Http], 1);
        assert_eq!(finding.exempt[&Exemption::Bits], 1);
        assert_eq!(finding.lengths, Some((41, 100)));
        let mut text = Vec::new();
        assert!(
            finding.verdict().starts_with("2 of 3 connections pass, by the rule: "),
            "{}",
            finding.verdict()
        );
        assert!(finding.verdict().ends_with("; it may block the other 1"));
        print(&BTreeMap::from([("x".to_owned(), finding)]), &mut text).unwrap();
        assert!(String::from_utf8(text).unwrap().contains("not exempt"));
    }
}
