//! A file of mihomo of real size: `adit bench run clash`.
//!
//! ```text
//! 4 provider files of 500 proxies, 60 groups over them
//! 5 sets: 200,000 and 60,000 names as text, 100,000 names as YAML, 50,000 networks, 30,000 rules
//! 12,000 rules of all common types, MATCH last; 10,000 requests, half of them drawn from rules and sets
//! ```
//!
//! All of it comes from one seed. Measured are `-t`, the time from the start of the program to the first connection that
//! its port takes, its memory two seconds later, and one decision (`adit explain --measure`). With `--program
//! mihomo=PATH` the same is measured of mihomo, except for the decision.

use std::fmt::Write as _;
use std::fs;
use std::net::{Ipv4Addr, SocketAddr, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use serde::Serialize;

use crate::names::Names;
use crate::process::{self, Memory};
use crate::random::Random;
use crate::subject::free_port;

const SEED: u64 = 3;
const NAMES: Names = Names { words: 3, syllables: 4 };
const PROVIDERS: u32 = 4;
const PROXIES: u32 = 500;
const GROUPS: u32 = 60;
const RULES: u32 = 12_000;
const REQUESTS: u32 = 10_000;
/// Rounds of each measurement; the median counts.
const ROUNDS: usize = 5;
/// Longest wait for a port.
const PATIENCE: Duration = Duration::from_secs(60);

/// Figures of one program.
#[derive(Debug, Serialize)]
struct Figures {
    program: String,
    test_ms: f64,
    ready_ms: f64,
    memory: Memory,
}

/// A folder that goes with its value.
struct Folder(PathBuf);

impl Drop for Folder {
    fn drop(&mut self) {
        // Files that cannot be removed stay in the folder for temporary files.
        fs::remove_dir_all(&self.0).ok();
    }
}

/// A program that ends with its value.
struct Running(Child);

impl Drop for Running {
    fn drop(&mut self) {
        self.0.kill().ok();
        self.0.wait().ok();
    }
}

/// Writes the files, measures, and prints; raw data go to `json`.
///
/// # Errors
/// If files cannot be written or a program fails.
pub(crate) fn run(adit: &Path, mihomo: Option<&Path>, json: Option<&Path>) -> Result<()> {
    let folder = Folder(std::env::temp_dir().join(format!("adit-clash-{}", std::process::id())));
    let port = free_port()?;
    write(&folder.0, port)?;
    let mut all = vec![measure("adit", adit, &["mihomo"], &folder.0, port)?];
    if let Some(mihomo) = mihomo {
        all.push(measure("mihomo", mihomo, &[], &folder.0, port)?);
    }
    for Figures { program, test_ms, ready_ms, memory } in &all {
        let Memory { rss, pss, private_dirty, .. } = memory;
        console::Term::stdout().write_line(&format!(
            "{program}: -t {test_ms:.0} ms, ready in {ready_ms:.0} ms, {rss} KiB resident, {pss} shared out, {private_dirty} own"
        ))?;
    }
    let explain = |more: &[&str]| {
        let mut command = Command::new(adit);
        command.arg("explain").arg("-c").arg(folder.0.join("config.yaml"));
        command.arg("--measure").arg(folder.0.join("requests")).args(more);
        command
    };
    let status = explain(&[]).stderr(Stdio::null()).status()?;
    ensure!(status.success(), "{} explain failed: {status}", adit.display());
    if let Some(path) = json {
        let output = explain(&["--json"]).output()?;
        ensure!(output.status.success(), "{} explain failed: {}", adit.display(), output.status);
        let decision: serde_json::Value = serde_json::from_slice(&output.stdout)?;
        let raw = serde_json::json!({ "programs": all, "decision": decision });
        fs::write(path, format!("{raw}\n")).with_context(|| format!("cannot write {}", path.display()))?;
    }
    Ok(())
}

/// Writes the files alone, for other programs.
///
/// # Errors
/// If files cannot be written.
pub(crate) fn generate(folder: &Path) -> Result<()> {
    write(folder, 17_890)
}

fn command(program: &Path, before: &[&str], folder: &Path) -> Command {
    let mut command = Command::new(program);
    command
        .args(before)
        .arg("-d")
        .arg(folder)
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null());
    command
}

fn measure(name: &str, program: &Path, before: &[&str], folder: &Path, port: u16) -> Result<Figures> {
    let (mut tests, mut starts, mut memories) = (Vec::new(), Vec::new(), Vec::new());
    for _ in 0..ROUNDS {
        let begun = Instant::now();
        let status = command(program, before, folder).arg("-t").status();
        let status = status.with_context(|| format!("run {}", program.display()))?;
        ensure!(status.success(), "{} -t failed: {status}", program.display());
        tests.push(begun.elapsed().as_secs_f64() * 1000.0);
        let begun = Instant::now();
        let running = Running(command(program, before, folder).spawn()?);
        wait_for(port)?;
        starts.push(begun.elapsed().as_secs_f64() * 1000.0);
        thread::sleep(Duration::from_secs(2));
        memories.push(process::memory(running.0.id())?);
    }
    tests.sort_by(f64::total_cmp);
    starts.sort_by(f64::total_cmp);
    memories.sort_by_key(|memory| memory.rss);
    Ok(Figures {
        program: name.to_owned(),
        test_ms: tests[ROUNDS / 2],
        ready_ms: starts[ROUNDS / 2],
        memory: memories[ROUNDS / 2],
    })
}

fn wait_for(port: u16) -> Result<()> {
    let begun = Instant::now();
    let at = SocketAddr::from((Ipv4Addr::LOCALHOST, port));
    while begun.elapsed() < PATIENCE {
        if TcpStream::connect(at).is_ok() {
            return Ok(());
        }
        thread::sleep(Duration::from_millis(2));
    }
    bail!("nobody listens on port {port} after {} s", PATIENCE.as_secs())
}

/// A set: its name, behaviour, format and number of entries.
const SETS: [(&str, &str, &str, u32); 5] = [
    ("large", "domain", "text", 200_000),
    ("medium", "domain", "yaml", 100_000),
    ("small", "domain", "text", 60_000),
    ("networks", "ipcidr", "text", 50_000),
    ("mixed", "classical", "yaml", 30_000),
];

/// Names and addresses that requests are drawn from.
#[derive(Default)]
struct Known {
    names: Vec<String>,
    ips: Vec<Ipv4Addr>,
}

fn write(folder: &Path, port: u16) -> Result<()> {
    fs::create_dir_all(folder).with_context(|| format!("make {}", folder.display()))?;
    let (mut random, mut known) = (Random::new(SEED), Known::default());
    let mut text =
        format!("mixed-port: {port}\nmode: rule\nlog-level: warning\nipv6: true\nproxy-providers:\n");
    for provider in 0..PROVIDERS {
        let file = format!("provider-{provider}.yaml");
        writeln!(text, "  provider-{provider}:\n    type: file\n    path: ./{file}")?;
        fs::write(folder.join(file), proxies(&mut random, provider)?)?;
    }
    text.push_str("rule-providers:\n");
    for (name, behavior, format, count) in SETS {
        let file = format!("{name}.{}", if format == "text" { "txt" } else { "yaml" });
        writeln!(
            text,
            "  {name}:\n    type: file\n    behavior: {behavior}\n    format: {format}\n    path: ./{file}"
        )?;
        let lines = (0..count).map(|_| entry(&mut random, behavior, &mut known)).collect::<Vec<_>>();
        let set = if format == "text" {
            lines.join("\n") + "\n"
        } else {
            lines.iter().fold("payload:\n".to_owned(), |all, line| all + "  - '" + line + "'\n")
        };
        fs::write(folder.join(file), set)?;
    }
    groups(&mut text)?;
    rules(&mut text, &mut random, &mut known)?;
    fs::write(folder.join("config.yaml"), text)?;
    fs::write(folder.join("requests"), requests(&mut random, &known)?)?;
    Ok(())
}

fn proxies(random: &mut Random, provider: u32) -> Result<String> {
    const PLACES: [&str; 8] = ["HK", "JP", "SG", "US", "DE", "TW", "KR", "UK"];
    let mut text = String::from("proxies:\n");
    for n in 0..PROXIES {
        let place = PLACES[random.below(8) as usize];
        let (server, port) = (address(random), 10_000 + random.below(50_000));
        let name = format!("{place} {provider}-{n:03}");
        let rest = match n % 4 {
            0 => "type: snell, psk: 0123456789abcdef, version: 3, udp: true".to_owned(),
            1 => "type: ssr, cipher: aes-256-cfb, password: secret, protocol: auth_aes128_md5, obfs: plain, udp: true"
                .to_owned(),
            _ => format!("type: ss, cipher: aes-128-gcm, password: secret-{n}, udp: true"),
        };
        writeln!(text, "  - {{name: '{name}', server: {server}, port: {port}, {rest}}}")?;
    }
    Ok(text)
}

fn groups(text: &mut String) -> Result<()> {
    const FILTERS: [&str; 6] = ["HK", "JP", "SG", "US|UK", "^D", "(?i)tw|kr"];
    text.push_str("proxy-groups:\n");
    for group in 0..GROUPS {
        let filter = FILTERS[group as usize % FILTERS.len()];
        let kind = ["select", "url-test", "select", "fallback", "load-balance", "select"][group as usize % 6];
        let uses = format!("use: [provider-{}, provider-{}]", group % PROVIDERS, (group + 1) % PROVIDERS);
        let rest = match group {
            0 => "proxies: [group-1, group-2, DIRECT]".to_owned(),
            _ => format!("{uses}, filter: '{filter}', url: 'http://127.0.0.1:1/', interval: 0"),
        };
        writeln!(text, "  - {{name: group-{group}, type: {kind}, {rest}}}")?;
    }
    Ok(())
}

fn rules(text: &mut String, random: &mut Random, known: &mut Known) -> Result<()> {
    text.push_str("rules:\n");
    let sets = SETS.map(|(name, ..)| name);
    for n in 0..RULES - 1 {
        let group = random.below(GROUPS);
        let rule = match n {
            2_000 | 4_000 | 6_000 | 8_000 | 10_000 => {
                format!("RULE-SET,{},group-{group}", sets[(n / 2_000 - 1) as usize])
            }
            _ => rule(random, known, group),
        };
        writeln!(text, "  - '{rule}'")?;
    }
    text.push_str("  - MATCH,group-0\n");
    Ok(())
}

fn rule(random: &mut Random, known: &mut Known, group: u32) -> String {
    let (place, port) = (NAMES.name(random), 1024 + random.below(60_000));
    match random.below(100) {
        0..58 => {
            let rule = format!("DOMAIN-SUFFIX,{place},group-{group}");
            known.names.push(place);
            rule
        }
        58..76 => {
            let rule = format!("DOMAIN,{place},group-{group}");
            known.names.push(place);
            rule
        }
        76..80 => format!("DOMAIN-KEYWORD,{}{},group-{group}", NAMES.word(random), random.below(100)),
        80..94 => {
            let ip = address(random);
            known.ips.push(ip);
            format!("IP-CIDR,{ip}/{},group-{group},no-resolve", 12 + random.below(17))
        }
        94..96 => format!("DST-PORT,{port}-{},REJECT", port + 1),
        96 => format!("SRC-IP-CIDR,10.{}.0.0/16,group-{group}", random.below(256)),
        97 => format!("AND,((DOMAIN-SUFFIX,{place}),(NETWORK,udp)),REJECT"),
        98 => format!("OR,((DOMAIN,{place}),(DST-PORT,{port})),group-{group}"),
        _ => format!("AND,((NOT,((DOMAIN-SUFFIX,{place}))),(DST-PORT,{port})),group-{group}"),
    }
}

fn entry(random: &mut Random, behavior: &str, known: &mut Known) -> String {
    let is_kept = random.below(16) == 0;
    if behavior == "ipcidr" {
        let ip = address(random);
        if is_kept {
            known.ips.push(ip);
        }
        return format!("{ip}/{}", 16 + random.below(13));
    }
    let name = NAMES.name(random);
    if is_kept {
        known.names.push(name.clone());
    }
    let kind = random.below(10);
    if behavior == "domain" {
        return if kind < 7 { format!("+.{name}") } else { name };
    }
    match kind {
        0..6 => format!("DOMAIN-SUFFIX,{name}"),
        6..8 => format!("DOMAIN,{name}"),
        _ => format!("IP-CIDR,{}/24,no-resolve", address(random)),
    }
}

fn requests(random: &mut Random, known: &Known) -> Result<String> {
    let mut text = String::new();
    for n in 0..REQUESTS {
        let network = if random.below(4) == 0 { "udp" } else { "tcp" };
        let client = format!("192.168.1.{}:{}", random.below(256), 32_768 + random.below(28_000));
        let host = match (n % 2, random.below(5)) {
            (0, 0) => known.ips[random.below(u32::try_from(known.ips.len())?) as usize].to_string(),
            (0, _) => {
                format!("www.{}", known.names[random.below(u32::try_from(known.names.len())?) as usize])
            }
            (_, 0) => address(random).to_string(),
            (_, _) => format!("www.{}", NAMES.name(random)),
        };
        writeln!(
            text,
            "{network} {client} {host}:{} {}",
            if random.below(4) == 0 { 80 } else { 443 },
            address(random)
        )?;
    }
    Ok(text)
}

/// An address outside of private networks.
fn address(random: &mut Random) -> Ipv4Addr {
    Ipv4Addr::from(0x0b00_0000 + random.below(0x7000_0000))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_files_are_those_of_the_bar() {
        let folder = Folder(std::env::temp_dir().join(format!("adit-clash-test-{}", std::process::id())));
        write(&folder.0, 1).unwrap();
        let read = |name: &str| fs::read_to_string(folder.0.join(name)).unwrap();
        let config = read("config.yaml");
        let (_, rules) = config.split_once("\nrules:\n").unwrap();
        assert_eq!(rules.lines().count(), RULES as usize);
        assert_eq!(config.matches("- {name: group-").count(), GROUPS as usize);
        let proxies: usize =
            (0..PROVIDERS).map(|n| read(&format!("provider-{n}.yaml")).matches("- {name").count()).sum();
        assert_eq!(proxies, 2_000);
        assert_eq!(read("large.txt").lines().count(), 200_000);
        assert_eq!(rules.matches("RULE-SET,").count(), SETS.len());
    }
}
