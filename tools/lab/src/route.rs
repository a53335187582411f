//! Cost of a decision of the router: `adit bench run route`.
//!
//! The rules are those of the project's bar: 40,000 domain entries and 10,000 address ranges in sets, and 500 mixed
//! rules: 200 about port, network and source, 150 of and, or and not, 100 keywords, 50 regular expressions. Half of the
//! targets are drawn from the sets. All of it comes from one seed. The program under test reads the files and measures
//! itself (`adit explain --measure`), since a decision is a thousand times shorter than the start of a process.

use std::fmt::Write as _;
use std::fs;
use std::net::Ipv4Addr;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, ensure};

use crate::names::Names;
use crate::random::Random;

const SEED: u64 = 1;
const HOSTS: Names = Names { words: 2, syllables: 3 };
const NAME_SETS: usize = 8;
const NAMES: usize = 5_000;
const ADDRESS_SETS: usize = 4;
const NETWORKS: usize = 2_500;
const REQUESTS: usize = 10_000;

/// Most requests from one client network; others are what rules about sources name.
const CLIENTS: &str = "192.168.1.";

/// Files of rules, sets and requests in a folder of their own.
struct Files {
    folder: PathBuf,
}

impl Drop for Files {
    fn drop(&mut self) {
        // Files that cannot be removed stay in the folder for temporary files.
        fs::remove_dir_all(&self.folder).ok();
    }
}

/// Makes the rules, has `adit` measure itself with them, and passes on what it prints; raw data go to `json`.
///
/// # Errors
/// If files cannot be written or the program fails.
pub(crate) fn run(adit: &Path, json: Option<&Path>) -> Result<()> {
    let files = Files { folder: std::env::temp_dir().join(format!("adit-route-{}", std::process::id())) };
    fs::create_dir_all(&files.folder).context("make a folder for rules")?;
    write(&files.folder)?;
    let explain = |more: &[&str]| {
        let mut command = Command::new(adit);
        command.arg("explain").arg("-c").arg(files.folder.join("adit.toml"));
        command.arg("--measure").arg(files.folder.join("requests")).args(more);
        command
    };
    let status = explain(&[]).status().with_context(|| format!("run {}", adit.display()))?;
    ensure!(status.success(), "{} explain failed: {status}", adit.display());
    if let Some(path) = json {
        let output = explain(&["--json"]).output()?;
        ensure!(output.status.success(), "{} explain failed: {}", adit.display(), output.status);
        fs::write(path, output.stdout).with_context(|| format!("cannot write {}", path.display()))?;
    }
    Ok(())
}

fn write(folder: &Path) -> Result<()> {
    let mut random = Random::new(SEED);
    let (mut names, mut networks) = (Vec::new(), Vec::new());
    for set in 0..NAME_SETS {
        let mut text = String::new();
        for _ in 0..NAMES {
            let name = HOSTS.name(&mut random);
            let mark = if random.below(2) == 0 { "+." } else { "" };
            writeln!(text, "{mark}{name}")?;
            names.push((name, mark.is_empty()));
        }
        fs::write(folder.join(format!("names-{set}")), text)?;
    }
    for set in 0..ADDRESS_SETS {
        let mut text = String::new();
        for _ in 0..NETWORKS {
            let (ip, prefix) = (address(&mut random), 16 + random.below(13));
            writeln!(text, "{ip}/{prefix}")?;
            networks.push(ip);
        }
        fs::write(folder.join(format!("addresses-{set}")), text)?;
    }
    fs::write(folder.join("adit.toml"), rules(&mut random)?)?;
    fs::write(folder.join("requests"), requests(&mut random, &names, &networks)?)?;
    Ok(())
}

/// All rules, in an order that spreads every kind evenly.
fn rules(random: &mut Random) -> Result<String> {
    let mut text = String::from(
        "[[inbound]]\nname = \"in\"\nprotocol = \"mixed\"\nlisten = \"127.0.0.1:0\"\n\
         [[outbound]]\nname = \"a\"\nprotocol = \"direct\"\n[[outbound]]\nname = \"b\"\nprotocol = \"direct\"\n",
    );
    let mut all: Vec<String> = Vec::new();
    for (kind, count) in [("names", NAME_SETS), ("addresses", ADDRESS_SETS)] {
        for set in 0..count {
            write!(text, "[[set]]\nname = \"{kind}-{set}\"\npath = \"{kind}-{set}\"\n")?;
            all.push(format!("set = \"{kind}-{set}\""));
        }
    }
    all.extend((0..200).map(|n| plain(random, n)));
    all.extend((0..150).map(|n| nested(random, n)));
    all.extend((0..100).map(|_| format!("domain-keyword = \"{}{}\"", HOSTS.word(random), random.below(10))));
    all.extend(
        (0..50)
            .map(|_| format!("domain-regex = '^{}[0-9]+\\.{}\\.'", HOSTS.word(random), HOSTS.word(random))),
    );
    for left in (1..all.len()).rev() {
        let other = random.below(u32::try_from(left + 1)?) as usize;
        all.swap(left, other);
    }
    for rule in all {
        write!(text, "[[rule]]\n{rule}\noutbound = \"b\"\n")?;
    }
    Ok(text)
}

/// A rule about port, network or source.
fn plain(random: &mut Random, n: u32) -> String {
    let port = 1024 + random.below(60_000);
    match n % 4 {
        0 => format!("port = {port}"),
        1 => format!("port = \"{port}-{}\"\nnetwork = \"udp\"", port + random.below(100)),
        2 => format!("source = \"10.{}.{}.0/24\"", random.below(256), random.below(256)),
        _ => format!("source-port = {port}\nsource = \"10.{}.0.0/16\"\nnetwork = \"tcp\"", random.below(256)),
    }
}

/// A rule of and, or and not.
fn nested(random: &mut Random, n: u32) -> String {
    let (name, port) = (HOSTS.name(random), 1024 + random.below(60_000));
    let ip = address(random);
    match n % 3 {
        0 => format!(
            "and = [{{ domain-suffix = \"{name}\" }}, {{ or = [{{ port = {port} }}, {{ network = \"udp\" }}] }}]"
        ),
        1 => format!(
            "or = [{{ domain = \"{name}\" }}, {{ ip-cidr = \"{ip}/24\", resolve = false }}, {{ port = {port} }}]"
        ),
        _ => format!("not = {{ network = \"tcp\" }}\nsource = \"10.{}.0.0/16\"", random.below(256)),
    }
}

fn requests(random: &mut Random, names: &[(String, bool)], networks: &[Ipv4Addr]) -> Result<String> {
    let mut text = String::new();
    for n in 0..REQUESTS {
        let network = if random.below(4) == 0 { "udp" } else { "tcp" };
        let port = if random.below(4) == 0 { 80 } else { 443 };
        let client = format!("{CLIENTS}{}:{}", random.below(256), 32_768 + random.below(28_000));
        let from_sets = n % 2 == 0;
        let host = match (from_sets, random.below(5)) {
            (true, 0) => networks[random.below(u32::try_from(networks.len())?) as usize].to_string(),
            (true, _) => {
                let (name, is_exact) = &names[random.below(u32::try_from(names.len())?) as usize];
                if *is_exact || random.below(2) == 0 { name.clone() } else { format!("www.{name}") }
            }
            (false, 0) => address(random).to_string(),
            (false, _) => format!("www.{}", HOSTS.name(random)),
        };
        // The name's address, if a rule asks for it.
        writeln!(text, "{network} {client} {host}:{port} {}", address(random))?;
    }
    Ok(text)
}

fn address(random: &mut Random) -> Ipv4Addr {
    Ipv4Addr::from(0x0b00_0000 + random.below(0xc000_0000))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_rules_are_those_of_the_bar() {
        let text = rules(&mut Random::new(SEED)).unwrap();
        let count = |what: &str| text.matches(what).count();
        assert_eq!(count("[[rule]]"), 500 + NAME_SETS + ADDRESS_SETS);
        assert_eq!((count("domain-keyword"), count("domain-regex")), (100, 50));
        assert_eq!((NAME_SETS * NAMES, ADDRESS_SETS * NETWORKS), (40_000, 10_000));
        assert_eq!(text, rules(&mut Random::new(SEED)).unwrap());
    }
}
