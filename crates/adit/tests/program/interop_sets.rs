//! Check 8: compiled sets of names and networks that mihomo and sing-box have written decide as the text that they come from,
//! and mihomo reads those of adit.
//!
//! `ADIT_TEST_MIHOMO=PATH ADIT_SING_BOX=PATH cargo test -p adit --test program interop_sets -- --ignored --nocapture`

use std::ffi::OsString;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use adit_testkit::peer::{program_of, sing_box};
use serde_json::{Value, json};

use crate::support::{Dir, finish};

const SEED: u64 = 20_261_123;
/// Sets of each kind.
const SETS: usize = 50;
const PROBES: usize = 10_000;

/// Numbers that are the same in each run (splitmix64).
struct Draw(u64);

impl Draw {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ z >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ z >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ z >> 31
    }

    fn below(&mut self, n: usize) -> usize {
        usize::try_from(self.next() % n as u64).unwrap()
    }

    fn label(&mut self) -> String {
        let letters = b"abcdeghkmnoqrstuvxz0189-";
        let len = 1 + self.below(6);
        let label: String = (0..len).map(|_| char::from(letters[self.below(letters.len())])).collect();
        if label.starts_with('-') || label.ends_with('-') { "xn--e1a".to_owned() } else { label }
    }

    fn name(&mut self) -> String {
        let mut labels: Vec<String> = (0..1 + self.below(3)).map(|_| self.label()).collect();
        labels.push(["test", "example", "co.test", "b", "cn"][self.below(5)].to_owned());
        labels.join(".")
    }

    fn address(&mut self) -> IpAddr {
        match self.below(3) {
            0 => Ipv6Addr::from((0x2001_0db8_u128 << 96) | u128::from(self.next()) << 30).into(),
            _ => Ipv4Addr::from(u32::try_from(self.next() & 0xffff_ffff).unwrap()).into(),
        }
    }

    /// From 1 to `most`; all orders of magnitude are as likely.
    fn size(&mut self, n: usize, most: usize) -> usize {
        match n {
            0 => 1,
            1 => most,
            _ => {
                let bits = most.ilog2();
                let low = 1 << self.below(usize::try_from(bits).unwrap());
                low + self.below(low)
            }
        }
    }
}

/// A set in its text form and as sing-box's source, and where probes come from.
struct Written {
    text: Vec<String>,
    source: Option<Value>,
    near: Vec<String>,
}

fn names(draw: &mut Draw, n: usize) -> Written {
    // Each third set has patterns that sing-box lacks. They are regular expressions here, which a build for tests tries slowly.
    let is_wide = n % 3 == 2;
    let count = draw.size(n, if is_wide { 512 } else { 200_000 });
    let (mut text, mut near) = (Vec::with_capacity(count), Vec::with_capacity(count));
    let (mut exact, mut suffixes) = (Vec::new(), Vec::new());
    for _ in 0..count {
        let name = draw.name();
        match draw.below(if is_wide { 5 } else { 3 }) {
            0 => {
                exact.push(name.clone());
                text.push(name.clone());
            }
            1 => {
                suffixes.push(name.clone());
                text.push(format!("+.{name}"));
            }
            2 => {
                suffixes.push(format!(".{name}"));
                text.push(format!(".{name}"));
            }
            3 => text.push(format!("*.{name}")),
            _ => text.push(format!("{}.*.{name}", draw.label())),
        }
        near.push(name);
    }
    let mut rule = json!({});
    if !exact.is_empty() {
        rule["domain"] = json!(exact);
    }
    if !suffixes.is_empty() {
        rule["domain_suffix"] = json!(suffixes);
    }
    let source = (!is_wide).then(|| json!({ "version": 1 + n % 3, "rules": [rule] }));
    Written { text, source, near }
}

fn networks(draw: &mut Draw, n: usize) -> Written {
    let count = draw.size(n, 50_000);
    let (mut text, mut near) = (Vec::with_capacity(count), Vec::with_capacity(count));
    for _ in 0..count {
        let ip = draw.address();
        // Wide networks would leave nothing outside of a long list.
        let wide = if count > 5_000 { 22 } else { 9 };
        let prefix = if ip.is_ipv4() { wide + draw.below(33 - wide) } else { 40 + draw.below(89) };
        text.push(format!("{ip}/{prefix}"));
        near.push(format!("{ip}/{prefix}"));
    }
    let source = Some(json!({ "version": 1 + n % 3, "rules": [{ "ip_cidr": text }] }));
    Written { text, source, near }
}

/// A target at, beside or far from an entry.
fn probe(draw: &mut Draw, near: &[String], is_names: bool) -> String {
    let entry = &near[draw.below(near.len())];
    if is_names {
        return match draw.below(8) {
            0 | 1 => entry.clone(),
            2 => format!("{}.{entry}", draw.label()),
            3 => format!("{}.{}.{entry}", draw.label(), draw.label()),
            4 => entry.split_once('.').map_or(entry.as_str(), |(_, rest)| rest).to_owned(),
            5 => format!("x{entry}"),
            6 => entry.to_uppercase(),
            _ => draw.name(),
        };
    }
    let (ip, prefix) = entry.split_once('/').unwrap();
    let (ip, prefix): (IpAddr, u32) = (ip.parse().unwrap(), prefix.parse().unwrap());
    let edge = |low: u128, host: u128, draw: &mut Draw| match draw.below(5) {
        0 => low,
        1 => low | host,
        2 => low.saturating_sub(1),
        3 => (low | host).saturating_add(1),
        _ => low | u128::from(draw.next()) & host,
    };
    match ip {
        _ if draw.below(6) == 0 => draw.address().to_string(),
        IpAddr::V4(ip) => {
            let host = u32::MAX.checked_shr(prefix).unwrap_or(0);
            let found = edge((ip.to_bits() & !host).into(), host.into(), draw);
            Ipv4Addr::from(u32::try_from(found).unwrap_or(u32::MAX)).to_string()
        }
        IpAddr::V6(ip) => {
            let host = u128::MAX.checked_shr(prefix).unwrap_or(0);
            Ipv6Addr::from(edge(ip.to_bits() & !host, host, draw)).to_string()
        }
    }
}

/// mihomo reads a set that adit has compiled as it reads its own.
fn read_back(dir: &Dir, behavior: &str, mihomo: &OsString) {
    let (status, _, err) = dir.run(&["ruleset", "convert", behavior, "text", "set.txt", "own.mrs"]);
    assert_eq!(status, 0, "{err}");
    let dump = |from: &str, to: &str| {
        let words = ["convert-ruleset", behavior, "mrs", from, to];
        let (status, out, err) = finish(dir.command(mihomo, &words), "");
        assert_eq!(status, 0, "{out}{err}");
        std::fs::read_to_string(dir.path().join(to)).unwrap()
    };
    assert!(dump("own.mrs", "own.txt") == dump("set.mrs", "theirs.txt"), "{}", dir.path().display());
}

/// Compiles a set with both peers, and compares the decisions by each form; gives how many probes are in it.
fn compare(draw: &mut Draw, written: &Written, is_names: bool, peers: &[OsString; 2]) -> usize {
    let dir = Dir::new();
    let behavior = if is_names { "domain" } else { "ipcidr" };
    dir.file("set.txt", &(written.text.join("\n") + "\n"));
    let words = ["convert-ruleset", behavior, "text", "set.txt", "set.mrs"];
    let (status, out, err) = finish(dir.command(&peers[0], &words), "");
    assert_eq!(status, 0, "{out}{err}");
    read_back(&dir, behavior, &peers[0]);
    let mut third = "set.txt";
    if let Some(source) = &written.source {
        dir.file("set.json", &source.to_string());
        let words = ["rule-set", "compile", "--output", "set.srs", "set.json"];
        let (status, out, err) = finish(dir.command(&peers[1], &words), "");
        assert_eq!(status, 0, "{out}{err}");
        third = "set.srs";
    }
    let provider = |name: &str, format: &str, path: &str| {
        format!("  {name}: {{type: file, behavior: {behavior}, format: {format}, path: ./{path}}}\n")
    };
    let all = "(RULE-SET,text),(RULE-SET,mrs),(RULE-SET,srs)";
    dir.file(
        "config.yaml",
        &format!(
            "mixed-port: 7890\nrule-providers:\n{}{}{}rules:\n- AND,({all}),REJECT\n- OR,({all}),COMPATIBLE\n- MATCH,DIRECT\n",
            provider("text", "text", "set.txt"),
            provider("mrs", "mrs", "set.mrs"),
            provider("srs", "text", third),
        ),
    );
    let probes: Vec<String> = (0..PROBES).map(|_| probe(draw, &written.near, is_names)).collect();
    let line = |host: &String| format!("{}\n", json!({ "network": "tcp", "host": host, "port": 443 }));
    dir.file("cases", &probes.iter().map(line).collect::<String>());
    let (status, out, err) = dir.run(&["explain", "-c", "config.yaml", "--batch", "cases"]);
    assert_eq!(status, 0, "{err}");
    let targets: Vec<Value> = out.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert_eq!(targets.len(), PROBES);
    let differ = probes.iter().zip(&targets).filter(|(_, answer)| answer["target"] == "COMPATIBLE");
    let differ: Vec<&String> = differ.map(|(probe, _)| probe).collect();
    assert!(differ.is_empty(), "{} of {PROBES} differ: {:?}", differ.len(), &differ[..differ.len().min(10)]);
    targets.iter().filter(|answer| answer["target"] == "REJECT").count()
}

#[test]
#[ignore = "needs mihomo and sing-box"]
fn sets_that_peers_wrote() {
    let (Some(mihomo), Some(sing_box)) = (program_of("ADIT_TEST_MIHOMO"), sing_box()) else { return };
    let (peers, mut draw) = ([mihomo, sing_box], Draw(SEED));
    for n in 0..SETS {
        for is_names in [true, false] {
            let written = if is_names { names(&mut draw, n) } else { networks(&mut draw, n) };
            let inside = compare(&mut draw, &written, is_names, &peers);
            let kind = if is_names { "names" } else { "networks" };
            println!("{} {kind}: {inside} of {PROBES} probes are in the set", written.text.len());
            assert!((100..PROBES - 100).contains(&inside), "{inside} probes are in the set");
        }
    }
}
