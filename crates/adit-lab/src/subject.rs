//! Subjects: the programs under test, described by data and run as child processes.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::fs::{self, File};
use std::io::{Read, Seek, SeekFrom};
use std::net::{Ipv4Addr, SocketAddr, SocketAddrV4, TcpListener, TcpStream, UdpSocket};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow, bail, ensure};
use nix::sys::signal::{SigSet, Signal, killpg};
use nix::unistd::Pid;
use serde::{Deserialize, Serialize};

use crate::link::{FAR, Site};
use crate::process;

/// How the load generator enters a subject.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Entry {
    /// A SOCKS5 server without authentication.
    Socks5,
    /// A plain port that leads to the fixed target.
    Tunnel,
    /// A Shadowsocks server, to which the lab itself sends datagrams.
    Shadowsocks,
}

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
    /// What listens at the entry port.
    pub entry: Entry,
    /// The method that `{method}` stands for unless the subject is named as `NAME:METHOD`.
    #[serde(default)]
    pub method: Option<String>,
    /// The methods that it knows; empty: unknown, every method is tried.
    #[serde(default)]
    pub methods: Vec<String>,
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

/// One process of a subject. Over a link, those with the role `server` run at its far end.
#[derive(Debug, Clone, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct Process {
    /// What it is in the pair: `server` or `client` appear in tables.
    pub role: String,
    /// The program's name, looked up in the options and then in `PATH`; `@lab` is this program itself.
    pub program: String,
    /// Its arguments.
    #[serde(default)]
    pub args: Vec<String>,
    /// Additional environment.
    #[serde(default)]
    pub env: BTreeMap<String, String>,
    /// Name of the port that is open once the process is ready.
    pub ready: String,
    /// Whether that is a port for datagrams alone.
    #[serde(default)]
    pub datagrams: bool,
    /// Seconds until that port must be open.
    #[serde(default = "ten")]
    pub deadline: u64,
    /// Files to write into `{dir}` before the start: name and content.
    #[serde(default)]
    pub files: BTreeMap<String, String>,
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
        self.methods.is_empty() || self.methods.iter().any(|known| known == method)
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
            half_close: self.half_close && other.half_close,
            udp: self.udp && other.udp,
            drops: None,
            process: vec![half(other, true)?, half(self, false)?],
            ..self.clone()
        })
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
        include_str!("../../../bench/subjects/floor-aead.toml"),
        include_str!("../../../bench/subjects/floor-datagrams.toml"),
        include_str!("../../../bench/subjects/adit-snell.toml"),
        include_str!("../../../bench/subjects/adit-snell-reuse.toml"),
        include_str!("../../../bench/subjects/adit-snell6.toml"),
        include_str!("../../../bench/subjects/adit-snell6-auto.toml"),
        include_str!("../../../bench/subjects/adit-snell6-unshaped.toml"),
        include_str!("../../../bench/subjects/adit-native.toml"),
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
        include_str!("../../../bench/subjects/opensnell-obfs-http.toml"),
        include_str!("../../../bench/subjects/sing-box-https.toml"),
        include_str!("../../../bench/subjects/adit-kcp.toml"),
        include_str!("../../../bench/subjects/kcptun.toml"),
        include_str!("../../../bench/subjects/kcptun-grid.toml"),
    ];
    FILES.iter().map(|text| Subject::parse(text).expect("compiled-in subject is valid")).collect()
}

/// How a child process calls this program: path, and the words that lead to the lab's commands.
#[derive(Debug, Clone)]
pub struct Helper {
    /// The executable.
    pub program: PathBuf,
    /// Words before the lab's own subcommand, such as `bench`.
    pub prefix: Vec<OsString>,
}

/// Where programs are found, and where they run.
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

    /// Where servers are reached.
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

/// A running subject. Dropping it kills every process of it and removes its files.
#[derive(Debug)]
pub struct Running {
    /// Where the load goes.
    pub address: SocketAddr,
    /// What listens there.
    pub entry: Entry,
    name: String,
    dir: PathBuf,
    children: Vec<Started>,
    link: Option<u16>,
    drops: Option<(PathBuf, Vec<String>)>,
    site: Option<Arc<Site>>,
}

/// One started process, leader of its own process group.
#[derive(Debug)]
struct Started {
    role: String,
    child: Child,
    log: PathBuf,
}

impl Running {
    /// Starts the processes of `subject` one after the other and waits until each listens. `target` is
    /// where tunnels lead.
    ///
    /// # Errors
    /// If a program is missing, ends early or opens no port in time; the message holds the last lines that it wrote.
    pub fn start(subject: &Subject, programs: &Programs, target: SocketAddr) -> Result<Self> {
        Self::start_tapped(subject, programs, target, &mut Ok)
    }

    /// As [`Self::start`]. `tap` is told the port of the first process, once that listens, and gives the one that the
    /// others take for it.
    ///
    /// # Errors
    /// As [`Self::start`], and those of `tap`.
    pub fn start_tapped(
        subject: &Subject,
        programs: &Programs,
        target: SocketAddr,
        tap: &mut dyn FnMut(u16) -> Result<u16>,
    ) -> Result<Self> {
        let mut words = Words::new(subject, target, programs.host())?;
        let address = match words.ports.get("entry") {
            Some(&port) => {
                let opens = subject.process.iter().find(|process| process.ready == "entry");
                address(opens.map_or("client", |process| &process.role), port, programs)
            }
            None => {
                ensure!(subject.process.is_empty(), "subject {} uses no {{port:entry}}", subject.name);
                SocketAddr::from((programs.host(), target.port()))
            }
        };
        let mut running = Self {
            address,
            entry: subject.entry,
            name: subject.name.clone(),
            dir: words.dir.clone(),
            children: Vec::new(),
            link: subject.process.first().and_then(|first| words.ports.get(&first.ready)).copied(),
            drops: None,
            site: programs.site.clone(),
        };
        if let (Some(site), Some(congestion)) = (&programs.site, &subject.congestion) {
            site.network.set_congestion(Some(congestion))?;
        }
        if let Some(drops) = &subject.drops {
            let program = programs.find(&drops.program).context("no program for the counters of drops")?;
            let args = drops.args.iter().map(|arg| words.fill(arg)).collect::<Result<_>>()?;
            running.drops = Some((program, args));
        }
        watch(|watched| watched.dirs.push(running.dir.clone()));
        fs::create_dir_all(&running.dir).with_context(|| format!("create {}", running.dir.display()))?;
        for process in &subject.process {
            running
                .start_process(process, programs, &words)
                .with_context(|| format!("start the {} of {}", process.role, subject.name))?;
            if let Some(port) = words.ports.get_mut(&process.ready).filter(|_| running.children.len() == 1) {
                *port = tap(*port)?;
            }
        }
        Ok(running)
    }

    fn start_process(&mut self, process: &Process, programs: &Programs, words: &Words) -> Result<()> {
        let program = programs
            .find(&process.program)
            .with_context(|| format!("no such program: {}", process.program))?;
        for (name, content) in &process.files {
            let path = self.dir.join(name);
            fs::write(&path, words.fill(content)?).with_context(|| format!("write {}", path.display()))?;
        }
        let log = self.dir.join(format!("{}.log", process.role));
        let output = File::create(&log).with_context(|| format!("create {}", log.display()))?;
        // The guard sees to it that the process dies with this thread, whatever ends it.
        let mut command = Command::new(&programs.helper.program);
        command.args(&programs.helper.prefix).arg("guard");
        let site = programs.site.as_ref().filter(|_| process.role == SERVER);
        if let Some(site) = site {
            command.arg("--network").arg(site.network.far.path());
        }
        command.arg("--").arg(program);
        if process.program == "@lab" {
            command.args(&programs.helper.prefix);
        }
        for arg in &process.args {
            command.arg(words.fill(arg)?);
        }
        for (name, value) in &process.env {
            command.env(name, words.fill(value)?);
        }
        command.stdin(Stdio::null()).stdout(output.try_clone()?).stderr(output).process_group(0);
        let child = command.spawn().with_context(|| format!("run {}", programs.helper.program.display()))?;
        watch(|watched| watched.groups.push(child.id()));
        self.children.push(Started { role: process.role.clone(), child, log });
        let port =
            *words.ports.get(&process.ready).with_context(|| format!("unknown port: {}", process.ready))?;
        let address = address(&process.role, port, programs);
        let open = |pid: u32| {
            if process.datagrams {
                return process::has_datagram_port(pid, port);
            }
            let connect = || Ok(TcpStream::connect_timeout(&address, Duration::from_millis(200))?);
            // From where the server is: the link carries nothing for it.
            site.map_or_else(connect, |site| site.network.far.within(connect)).is_ok()
        };
        self.wait_until_open(&open, port, Duration::from_secs(process.deadline))
    }

    fn wait_until_open(&mut self, open: &dyn Fn(u32) -> bool, port: u16, patience: Duration) -> Result<()> {
        let deadline = Instant::now() + patience;
        loop {
            self.alive()?;
            if self.children.last().is_some_and(|child| open(child.child.id())) {
                return self.alive();
            }
            if Instant::now() > deadline {
                let log = self.children.last().map_or_else(String::new, |child| tail(&child.log));
                bail!("port {port} is not open after {patience:?}{log}");
            }
            thread::sleep(Duration::from_millis(10));
        }
    }

    /// Checks that every process still runs.
    ///
    /// # Errors
    /// If one has ended; the message holds its last lines.
    pub fn alive(&mut self) -> Result<()> {
        for child in &mut self.children {
            if let Some(status) = child.child.try_wait()? {
                return Err(anyhow!(
                    "the {} of {} ended: {status}{}",
                    child.role,
                    self.name,
                    tail(&child.log)
                ));
            }
        }
        Ok(())
    }

    /// Datagrams that the subject itself says it dropped, or knows the kernel dropped; `None` if it does not say.
    ///
    /// # Errors
    /// If the command for it fails.
    pub fn dropped(&self) -> Result<Option<f64>> {
        let Some((program, args)) = &self.drops else { return Ok(None) };
        let output = Command::new(program).args(args).output().context("ask for the counters of drops")?;
        let text = String::from_utf8_lossy(&output.stderr);
        ensure!(output.status.success(), "the counters of drops: {}: {}", output.status, text.trim());
        let value = serde_json::from_slice(&output.stdout).context("read the counters of drops")?;
        Ok(Some(sum_dropped(&value, false)))
    }

    /// The port of the process that started first: what lies between the two halves of a pair.
    ///
    /// # Errors
    /// If there are not two processes.
    pub fn link(&self) -> Result<u16> {
        self.link.filter(|_| self.children.len() > 1).context("nothing lies between fewer than two processes")
    }

    /// The link between the two halves, if there is one.
    #[must_use]
    pub fn site(&self) -> Option<&Arc<Site>> {
        self.site.as_ref()
    }

    /// Whether there is any process to measure.
    #[must_use]
    pub fn has_processes(&self) -> bool {
        !self.children.is_empty()
    }

    /// The roles and the processes that belong to each, children of the started program included.
    ///
    /// # Errors
    /// If `/proc` cannot be read.
    pub fn roles(&self) -> Result<Vec<(&str, Vec<u32>)>> {
        self.children
            .iter()
            .map(|child| Ok((child.role.as_str(), process::members(child.child.id())?)))
            .collect()
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        for child in &mut self.children {
            kill_group(child.child.id());
            child.child.wait().ok();
        }
        if let Some(site) = &self.site {
            // The next subject that names one sets it again.
            site.network.set_congestion(None).ok();
        }
        fs::remove_dir_all(&self.dir).ok();
        let groups: Vec<u32> = self.children.iter().map(|child| child.child.id()).collect();
        watch(|watched| {
            watched.groups.retain(|group| !groups.contains(group));
            watched.dirs.retain(|dir| *dir != self.dir);
        });
    }
}

/// The sum of the numbers in `value` below a key `dropped`.
fn sum_dropped(value: &serde_json::Value, below: bool) -> f64 {
    if let Some(map) = value.as_object() {
        return map.iter().map(|(key, item)| sum_dropped(item, below || key == "dropped")).sum();
    }
    if let Some(items) = value.as_array() {
        return items.iter().map(|item| sum_dropped(item, below)).sum();
    }
    value.as_f64().filter(|_| below).unwrap_or(0.0)
}

/// What an interrupt must clean up.
#[derive(Default)]
struct Watched {
    groups: Vec<u32>,
    dirs: Vec<PathBuf>,
}

static WATCHED: Mutex<Watched> = Mutex::new(Watched { groups: Vec::new(), dirs: Vec::new() });

fn watch(change: impl FnOnce(&mut Watched)) {
    change(&mut WATCHED.lock().unwrap_or_else(std::sync::PoisonError::into_inner));
}

fn kill_group(group: u32) {
    if let Ok(group) = i32::try_from(group) {
        killpg(Pid::from_raw(group), Signal::SIGKILL).ok();
    }
}

/// From here on an interrupt, hang-up or termination of this program kills the subjects first. To be
/// called before other threads exist.
///
/// # Errors
/// If the signals cannot be blocked.
pub fn clean_up_on_signals() -> Result<()> {
    let mut signals = SigSet::empty();
    for signal in [Signal::SIGINT, Signal::SIGTERM, Signal::SIGHUP] {
        signals.add(signal);
    }
    signals.thread_block().context("block signals")?;
    thread::Builder::new().name("signals".into()).spawn(move || {
        if let Ok(signal) = signals.wait() {
            watch(|watched| {
                watched.groups.iter().copied().for_each(kill_group);
                for dir in &watched.dirs {
                    fs::remove_dir_all(dir).ok();
                }
            });
            std::process::exit(128 + signal as i32);
        }
    })?;
    Ok(())
}

/// The role of processes at the far end of a link.
const SERVER: &str = "server";

/// Where a port of a process with that role is reached.
fn address(role: &str, port: u16, programs: &Programs) -> SocketAddr {
    if role == SERVER { SocketAddr::from((programs.host(), port)) } else { loopback(port) }
}

/// Values of the placeholders for one start.
struct Words {
    ports: BTreeMap<String, u16>,
    dir: PathBuf,
    target: SocketAddr,
    host: Ipv4Addr,
    method: Option<String>,
}

impl Words {
    fn new(subject: &Subject, target: SocketAddr, host: Ipv4Addr) -> Result<Self> {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let count = COUNT.fetch_add(1, Ordering::Relaxed);
        let dir = std::env::temp_dir().join(format!("adit-lab-{}-{count}", std::process::id()));
        let mut ports = BTreeMap::new();
        for process in &subject.process {
            let texts = process.args.iter().chain(process.files.values()).chain(process.env.values());
            for name in texts.flat_map(|text| port_names(text)) {
                if !ports.contains_key(name) {
                    ports.insert(name.to_owned(), free_port()?);
                }
            }
        }
        Ok(Self { ports, dir, target, host, method: subject.method.clone() })
    }

    fn fill(&self, text: &str) -> Result<String> {
        let dir = self.dir.to_str().context("temporary directory is not UTF-8")?;
        let mut filled = text
            .replace("{dir}", dir)
            .replace("{host}", &self.host.to_string())
            .replace("{target}", &self.target.to_string())
            .replace("{target-port}", &self.target.port().to_string());
        if let Some(method) = &self.method {
            filled = filled.replace("{method}", method).replace("{password}", password(method));
            for (number, part) in method.split('/').enumerate() {
                filled = filled.replace(&format!("{{method.{number}}}"), part);
            }
        }
        for (name, port) in &self.ports {
            filled = filled.replace(&format!("{{port:{name}}}"), &port.to_string());
        }
        Ok(filled)
    }
}

fn port_names(text: &str) -> impl Iterator<Item = &str> {
    text.split("{port:").skip(1).filter_map(|rest| rest.split_once('}').map(|(name, _)| name))
}

fn loopback(port: u16) -> SocketAddr {
    SocketAddr::V4(SocketAddrV4::new(Ipv4Addr::LOCALHOST, port))
}

/// A port that nobody listens on, below the range from which the kernel takes ports for outgoing
/// connections: one from that range could be taken before the program binds it.
pub(crate) fn free_port() -> Result<u16> {
    const FIRST: u32 = 18_000;
    const COUNT: u32 = 14_000;
    static NEXT: AtomicU32 = AtomicU32::new(0);
    for _ in 0..COUNT {
        let step = NEXT.fetch_add(1, Ordering::Relaxed);
        let offset = (std::process::id().wrapping_mul(97)).wrapping_add(step) % COUNT;
        let port = u16::try_from(FIRST + offset).context("port out of range")?;
        if TcpListener::bind(loopback(port)).is_ok() && UdpSocket::bind(loopback(port)).is_ok() {
            return Ok(port);
        }
    }
    bail!("no free port from {FIRST} to {}", FIRST + COUNT - 1)
}

/// The end of a log, as an addition to an error message.
fn tail(path: &Path) -> String {
    const MOST: u64 = 2000;
    let read = || -> std::io::Result<String> {
        let mut file = File::open(path)?;
        let len = file.metadata()?.len();
        file.seek(SeekFrom::Start(len.saturating_sub(MOST)))?;
        let mut bytes = Vec::new();
        file.read_to_end(&mut bytes)?;
        Ok(String::from_utf8_lossy(&bytes).into_owned())
    };
    match read() {
        Ok(text) if text.trim().is_empty() => "; it wrote nothing".to_owned(),
        Ok(text) => format!("; it wrote:\n{}", text.trim_end()),
        Err(error) => format!("; its log cannot be read: {error}"),
    }
}

#[cfg(test)]
mod tests {
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
            assert!(subject.process.is_empty() || words.ports.contains_key("entry"), "{}", subject.name);
            for process in &subject.process {
                assert!(words.ports.contains_key(&process.ready), "{}: {}", subject.name, process.ready);
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
