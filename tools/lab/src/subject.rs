//! Subjects: the programs under test, described by data and run as child processes.

mod running;
mod words;

use std::collections::BTreeMap;
use std::fs;
use std::net::Ipv4Addr;
use std::path::PathBuf;
use std::sync::Arc;

pub use adit_demo::path::Entry;
use anyhow::{Context, Result};
use serde::Deserialize;

use crate::link::{FAR, Site};

pub use running::{Running, clean_up_on_signals};
use words::SERVER;
pub(crate) use words::{free_port, loopback};

/// Description of a subject: one file under `bench/subjects`.
///
/// In arguments, environment and files these words are replaced: `{host}` the server's address, loopback unless there
/// is a link, `{port:NAME}` a free port (the same for the same name), `{dir}` the directory with the files, `{target}`
/// and `{target-port}` the lab's target as the server sees it, `{method}` and `{password}` a Shadowsocks method and a
/// password that it accepts, `{method.N}` the part N of a method with slashes, from 0. The port called `entry` is where
/// the load goes.
#[derive(Debug, Clone, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct Subject {
    /// Short name for tables and options.
    pub name: String,
    /// One line for people.
    pub about: String,
    /// The protocol at the entry port.
    pub entry: Entry,
    /// The method that `{method}` stands for unless the subject is named as `NAME:METHOD`.
    #[serde(default)]
    pub method: Option<String>,
    /// The methods that it knows; empty: unknown, every method is tried.
    #[serde(default)]
    pub methods: Vec<String>,
    /// Of methods with slashes, the values that each part may have; empty: unknown, everything is tried.
    #[serde(default)]
    pub parts: Vec<Vec<String>>,
    /// The congestion control of TCP that it is measured with; only over a link, whose networks have their own.
    #[serde(default)]
    pub congestion: Option<String>,
    /// Measures that make no sense for this subject, each with the reason.
    #[serde(default)]
    pub skip: BTreeMap<String, String>,
    /// Whether it carries datagrams.
    #[serde(default)]
    pub udp: bool,
    /// A command that prints the counters of what it dropped, as JSON.
    #[serde(default)]
    pub drops: Option<Drops>,
    /// Whether data after a half-close is promised; the integrity check leaves half-closes out if not.
    #[serde(default = "yes")]
    pub half_close: bool,
    /// The processes, in the order in which they start. None at all: the load goes straight to the target.
    #[serde(default)]
    pub process: Vec<Process>,
}

/// A command that prints what a subject dropped: every number under a key `dropped` in its JSON is added up.
#[derive(Debug, Clone, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct Drops {
    /// The program, found as those of the processes.
    pub program: String,
    /// Its arguments.
    pub args: Vec<String>,
}

/// One process of a subject. Over a link, those with the role `server` run at its far end, and those that say so.
#[derive(Debug, Clone, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct Process {
    /// Its role in the pair: `server` or `client` appear in tables.
    pub role: String,
    /// The program's name, looked up in the options and then in `PATH`; `@lab` is this program itself.
    pub program: String,
    /// Its arguments.
    #[serde(default)]
    pub args: Vec<String>,
    /// Additional environment.
    #[serde(default)]
    pub env: BTreeMap<String, String>,
    /// Name of the port that is open once the process is ready; without one nothing is waited for.
    #[serde(default)]
    pub ready: String,
    /// Whether it runs at the far end of a link, in any role.
    #[serde(default)]
    pub far: bool,
    /// Words in what it writes, behind which the address of the entry stands: it chooses the port itself.
    #[serde(default)]
    pub announces: Option<String>,
    /// Whether that is a port for datagrams alone.
    #[serde(default)]
    pub datagrams: bool,
    /// Seconds until that port must be open.
    #[serde(default = "ten")]
    pub deadline: u64,
    /// Milliseconds that it takes nothing for after its port is open.
    #[serde(default)]
    pub settle: u64,
    /// Files to write into `{dir}` before the start: name and content.
    #[serde(default)]
    pub files: BTreeMap<String, String>,
}

impl Process {
    /// Whether it runs at the far end of a link.
    #[must_use]
    pub fn is_far(&self) -> bool {
        self.far || self.role == SERVER
    }
}

fn yes() -> bool {
    true
}

fn ten() -> u64 {
    10
}

impl Subject {
    /// Reads a description in TOML.
    ///
    /// # Errors
    /// If it is not one; the message names the line.
    pub fn parse(text: &str) -> Result<Self> {
        Ok(toml_edit::de::from_str(text)?)
    }

    /// Why this subject cannot run here: a program that is not there, or a method that it does not know.
    #[must_use]
    pub fn obstacle(&self, programs: &Programs) -> Option<String> {
        if let Some(method) = self.method.as_deref().filter(|method| !self.knows(method)) {
            return Some(format!("no such method: {method}"));
        }
        if let Some(congestion) = &self.congestion {
            let known = fs::read_to_string("/proc/sys/net/ipv4/tcp_available_congestion_control");
            if !known.is_ok_and(|known| known.split_whitespace().any(|name| name == congestion)) {
                return Some(format!("the kernel has no such congestion control: {congestion}"));
            }
            if programs.site().is_none() {
                return Some("its congestion control can be chosen over a link alone: --link".to_owned());
            }
        }
        let programs = self.process.iter().find(|process| programs.find(&process.program).is_none());
        programs.map(|process| format!("no such program: {}", process.program))
    }

    fn knows(&self, method: &str) -> bool {
        let knows_parts = || {
            method.split('/').zip(&self.parts).all(|(part, known)| known.iter().any(|known| known == part))
        };
        (self.methods.is_empty() || self.methods.iter().any(|known| known == method)) && knows_parts()
    }

    /// The same subject with another method, called `NAME:METHOD`.
    #[must_use]
    pub fn with_method(&self, method: &str) -> Self {
        Self { name: format!("{}:{method}", self.name), method: Some(method.to_owned()), ..self.clone() }
    }
}

impl Subject {
    /// The client of this one and the server of `other`, called `CLIENT@SERVER`, with the server's method.
    ///
    /// # Errors
    /// If either lacks that half.
    pub fn at(&self, other: &Self) -> Result<Self> {
        let half = |of: &Self, is_server: bool| {
            let mut found = of.process.iter().filter(|process| (process.role == SERVER) == is_server);
            let missing = || format!("{} has no {}", of.name, if is_server { SERVER } else { "client" });
            found.next().cloned().with_context(missing)
        };
        Ok(Self {
            name: format!("{}@{}", self.name, other.name),
            about: format!("{}; {}", self.about, other.about),
            method: other.method.clone(),
            methods: [self.methods.as_slice(), &other.methods].concat(),
            parts: common(&self.parts, &other.parts),
            half_close: self.half_close && other.half_close,
            udp: self.udp && other.udp,
            drops: None,
            process: vec![half(other, true)?, half(self, false)?],
            ..self.clone()
        })
    }
}

/// The parts that both know; a subject that lists nothing knows everything.
fn common(one: &[Vec<String>], other: &[Vec<String>]) -> Vec<Vec<String>> {
    match (one, other) {
        ([], known) | (known, []) => known.to_vec(),
        _ => {
            let both = |(one, other): (&Vec<String>, &Vec<String>)| {
                one.iter().filter(|part| other.contains(part)).cloned().collect()
            };
            one.iter().zip(other).map(both).collect()
        }
    }
}

/// A password for `method`: 2022 methods want a key of their own length in base64.
fn password(method: &str) -> &'static str {
    if method.starts_with("2022-blake3-aes-128") {
        "AAECAwQFBgcICQoLDA0ODw=="
    } else if method.starts_with("2022-") {
        "AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh8="
    } else {
        "LabLoopbackPsk0123456789abcdefgh"
    }
}

/// The ready-made subjects.
///
/// # Panics
/// If one of the files that were compiled in is wrong; a test reads them all.
#[must_use]
pub fn builtin() -> Vec<Subject> {
    const FILES: &[&str] = &[
        include_str!("../../../bench/subjects/direct.toml"),
        include_str!("../../../bench/subjects/direct-bbr.toml"),
        include_str!("../../../bench/subjects/direct-cubic.toml"),
        include_str!("../../../bench/subjects/floor-plain.toml"),
        include_str!("../../../bench/subjects/floor-rested.toml"),
        include_str!("../../../bench/subjects/floor-aead.toml"),
        include_str!("../../../bench/subjects/floor-datagrams.toml"),
        include_str!("../../../bench/subjects/adit-snell.toml"),
        include_str!("../../../bench/subjects/adit-snell-reuse.toml"),
        include_str!("../../../bench/subjects/adit-snell6.toml"),
        include_str!("../../../bench/subjects/adit-snell6-auto.toml"),
        include_str!("../../../bench/subjects/adit-snell6-unshaped.toml"),
        include_str!("../../../bench/subjects/adit-native.toml"),
        include_str!("../../../bench/subjects/adit-loops.toml"),
        include_str!("../../../bench/subjects/adit-datagrams.toml"),
        include_str!("../../../bench/subjects/adit-datagrams-no-gather.toml"),
        include_str!("../../../bench/subjects/adit-snell-obfs-http.toml"),
        include_str!("../../../bench/subjects/adit-snell-obfs-tls.toml"),
        include_str!("../../../bench/subjects/sing-box-snell5.toml"),
        include_str!("../../../bench/subjects/sing-box-snell5-reuse.toml"),
        include_str!("../../../bench/subjects/sing-box-snell5-obfs.toml"),
        include_str!("../../../bench/subjects/sing-box-snell6.toml"),
        include_str!("../../../bench/subjects/sing-box-ss.toml"),
        include_str!("../../../bench/subjects/sing-box-ss-tunnel.toml"),
        include_str!("../../../bench/subjects/adit-ss-server.toml"),
        include_str!("../../../bench/subjects/ss-rust-server.toml"),
        include_str!("../../../bench/subjects/ss-libev-server.toml"),
        include_str!("../../../bench/subjects/sing-box-ss-server.toml"),
        include_str!("../../../bench/subjects/adit-ss.toml"),
        include_str!("../../../bench/subjects/adit-ss-obfs-http.toml"),
        include_str!("../../../bench/subjects/adit-ss-obfs-tls.toml"),
        include_str!("../../../bench/subjects/adit-ss-tunnel.toml"),
        include_str!("../../../bench/subjects/ss-rust.toml"),
        include_str!("../../../bench/subjects/ss-rust-tunnel.toml"),
        include_str!("../../../bench/subjects/ss-libev.toml"),
        include_str!("../../../bench/subjects/ss-libev-obfs-http.toml"),
        include_str!("../../../bench/subjects/ss-libev-obfs-tls.toml"),
        include_str!("../../../bench/subjects/ss-libev-tunnel.toml"),
        include_str!("../../../bench/subjects/opensnell.toml"),
        include_str!("../../../bench/subjects/opensnell-reuse.toml"),
        include_str!("../../../bench/subjects/snell-rs.toml"),
        include_str!("../../../bench/subjects/snell-rs6.toml"),
        include_str!("../../../bench/subjects/adit-kcp.toml"),
        include_str!("../../../bench/subjects/kcptun.toml"),
        include_str!("../../../bench/subjects/kcptun-grid.toml"),
        include_str!("../../../bench/subjects/opensnell-obfs-http.toml"),
        include_str!("../../../bench/subjects/sing-box-https.toml"),
        include_str!("../../../bench/subjects/mihomo-ss.toml"),
        include_str!("../../../bench/subjects/mihomo-direct.toml"),
        include_str!("../../../bench/subjects/meow-ss.toml"),
        include_str!("../../../bench/subjects/meow-direct.toml"),
        include_str!("../../../bench/subjects/adit-clash-ss.toml"),
        include_str!("../../../bench/subjects/adit-clash-direct.toml"),
        include_str!("../../../bench/subjects/adit-ssr.toml"),
        include_str!("../../../bench/subjects/ssr-fork.toml"),
        include_str!("../../../bench/subjects/ssr-python.toml"),
        include_str!("../../../bench/subjects/ssr-libev.toml"),
        include_str!("../../../bench/subjects/ssr-native.toml"),
        include_str!("../../../bench/subjects/snowflake.toml"),
        include_str!("../../../bench/subjects/snowflake-proxied.toml"),
        include_str!("../../../bench/subjects/snowflake-debian-client.toml"),
        include_str!("../../../bench/subjects/snowflake-debian-proxy.toml"),
        include_str!("../../../bench/subjects/snowflake-debian.toml"),
        include_str!("../../../bench/subjects/snowflake-upstream.toml"),
        include_str!("../../../bench/subjects/snowflake-64k.toml"),
        include_str!("../../../bench/subjects/snowflake-256k.toml"),
        include_str!("../../../bench/subjects/snowflake-16m.toml"),
        include_str!("../../../bench/subjects/snowflake-smux1.toml"),
    ];
    FILES.iter().map(|text| Subject::parse(text).expect("compiled-in subject is valid")).collect()
}

/// The lab itself, as a child process calls it.
#[derive(Debug, Clone)]
pub struct Helper {
    /// The executable.
    pub program: PathBuf,
}

/// Paths of programs, and the networks in which they run.
#[derive(Debug, Clone)]
pub struct Programs {
    helper: Helper,
    given: BTreeMap<String, PathBuf>,
    site: Option<Arc<Site>>,
}

impl Programs {
    /// Programs at the paths `given` by name, all others in `PATH`.
    #[must_use]
    pub fn new(helper: Helper, given: BTreeMap<String, PathBuf>) -> Self {
        Self { helper, given, site: None }
    }

    /// The same programs with the servers at the far end of a link.
    #[must_use]
    pub fn across(self, site: Arc<Site>) -> Self {
        Self { site: Some(site), ..self }
    }

    /// The link, if there is one.
    #[must_use]
    pub fn site(&self) -> Option<&Arc<Site>> {
        self.site.as_ref()
    }

    /// Address of servers.
    fn host(&self) -> Ipv4Addr {
        if self.site.is_some() { FAR } else { Ipv4Addr::LOCALHOST }
    }

    /// The path of the program `name`, if it exists.
    #[must_use]
    pub fn find(&self, name: &str) -> Option<PathBuf> {
        if name == "@lab" {
            return Some(self.helper.program.clone());
        }
        if let Some(path) = self.given.get(name) {
            return path.is_file().then(|| path.clone());
        }
        if name.contains('/') {
            let path = PathBuf::from(name);
            return path.is_file().then_some(path);
        }
        std::env::split_paths(&std::env::var_os("PATH")?)
            .map(|dir| dir.join(name))
            .find(|path| path.is_file())
    }
}

#[cfg(test)]
mod tests {
    use super::running::{announced, sum_dropped};
    use super::words::{Words, loopback};
    use super::*;

    #[test]
    fn builtin_subjects_are_valid() {
        let all = builtin();
        let mut names: Vec<&str> = all.iter().map(|subject| subject.name.as_str()).collect();
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), all.len());
        for subject in &all {
            let words = Words::new(subject, loopback(1), Ipv4Addr::LOCALHOST).unwrap();
            let is_told = subject.process.iter().any(|process| process.announces.is_some());
            let has_entry = is_told || words.ports.contains_key("entry");
            assert!(subject.process.is_empty() || has_entry, "{}", subject.name);
            for process in &subject.process {
                let is_known = process.ready.is_empty() || words.ports.contains_key(&process.ready);
                assert!(is_known, "{}: {}", subject.name, process.ready);
                for text in process.args.iter().chain(process.files.values()) {
                    let filled = words.fill(text).unwrap();
                    assert!(
                        !["{port:", "{dir}", "{method", "{host}"].iter().any(|word| filled.contains(word)),
                        "{filled}"
                    );
                }
            }
        }
    }

    #[test]
    fn an_entry_is_announced_in_a_whole_line() {
        let words = "CMETHOD snowflake socks5 ";
        let log = "VERSION 1\nCMETHOD snowflake socks5 127.0.0.1:34519\nCMETHODS DONE\n";
        assert_eq!(announced(log, words), Some("127.0.0.1:34519".parse().unwrap()));
        assert_eq!(announced("CMETHOD snowflake socks5 127.0.0.1:345", words), None);
        assert_eq!(announced("CMETHOD snowflake socks5 soon\n", words), None);
    }

    #[test]
    fn methods_change_files_and_name() {
        let all = builtin();
        let named = all.iter().find(|subject| subject.name == "ss-libev").unwrap();
        let other = named.with_method("aes-128-cfb");
        assert_eq!(other.name, "ss-libev:aes-128-cfb");
        let filled = Words::new(&other, loopback(1), Ipv4Addr::LOCALHOST)
            .unwrap()
            .fill("{method} {password}")
            .unwrap();
        assert_eq!(filled, "aes-128-cfb LabLoopbackPsk0123456789abcdefgh");
        assert!(password("2022-blake3-aes-128-gcm").len() < password("2022-blake3-aes-256-gcm").len());
        assert!(!named.with_method("2022-blake3-aes-128-gcm").knows("2022-blake3-aes-128-gcm"));
    }

    #[test]
    fn halves_of_two_subjects_make_one() {
        let all = builtin();
        let named = |name: &str| all.iter().find(|subject| subject.name == name).unwrap();
        let both = named("adit-snell").at(named("opensnell")).unwrap();
        let programs: Vec<&str> = both.process.iter().map(|process| process.program.as_str()).collect();
        assert_eq!(
            (both.name.as_str(), programs),
            ("adit-snell@opensnell", vec!["opensnell-server", "adit"])
        );
        assert!(!both.half_close);
        assert!(named("direct").at(named("opensnell")).is_err());
    }

    #[test]
    fn parts_of_a_method_are_known_by_both_halves() {
        let all = builtin();
        let named = |name: &str| all.iter().find(|subject| subject.name == name).unwrap();
        let pair = named("ssr-fork").at(named("adit-ssr")).unwrap();
        assert!(pair.knows("aes-128-cfb/auth_chain_a/plain"));
        assert!(!pair.knows("aes-128-cfb/auth_chain_b/plain"));
        assert!(!pair.knows("aes-128-cfb/auth_chain_a/random_head"));
        let mut python = named("ssr-python").clone();
        python.parts[0].retain(|method| method != "none");
        assert!(!named("ssr-fork").at(&python).unwrap().knows("none/origin/plain"));
    }

    #[test]
    fn dropped_numbers_are_added_up() {
        let text =
            r#"{"a": 5, "in": [{"dropped": {"full": 2, "kernel": 3}}, {"dropped": 4}], "dropped": null}"#;
        assert_eq!(sum_dropped(&serde_json::from_str(text).unwrap(), false), 9.0);
    }

    #[test]
    fn unknown_fields_are_named() {
        let error = Subject::parse("name = 'x'\nabout = ''\nentry = 'tunnel'\ncolour = 1\n").unwrap_err();
        assert!(format!("{error:#}").contains("colour"), "{error:#}");
    }
}
