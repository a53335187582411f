//! Subjects that run: their processes, and what ends them.

use std::fs::{self, File};
use std::io::{Read, Seek, SeekFrom};
use std::net::{SocketAddr, TcpStream};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow, bail, ensure};
use nix::sys::signal::{SigSet, Signal, killpg};
use nix::unistd::Pid;

use super::words::{Words, address};
use super::{Entry, Process, Programs, Subject};
use crate::link::Site;
use crate::process;

/// A running subject. Dropping it kills every process of it and removes its files.
#[derive(Debug)]
pub struct Running {
    /// Address for the load.
    pub address: SocketAddr,
    /// The protocol that listens there.
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
                address(opens.is_some_and(Process::is_far), port, programs)
            }
            None => {
                let is_told = subject.process.iter().any(|process| process.announces.is_some());
                let is_fine = subject.process.is_empty() || is_told;
                ensure!(is_fine, "subject {} uses no {{port:entry}}", subject.name);
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
        fs::create_dir_all(&running.dir)
            .with_context(|| format!("cannot create {}", running.dir.display()))?;
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
            fs::write(&path, words.fill(content)?)
                .with_context(|| format!("cannot write {}", path.display()))?;
        }
        let log = self.dir.join(format!("{}.log", process.role));
        let output = File::create(&log).with_context(|| format!("cannot create {}", log.display()))?;
        // The guard sees to it that the process dies with this thread, for any cause.
        let mut command = Command::new(&programs.helper.program);
        command.arg("guard");
        let site = programs.site.as_ref().filter(|_| process.is_far());
        if let Some(site) = site {
            command.arg("--network").arg(site.network.far.path());
        }
        command.arg("--").arg(program);
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
        if let Some(words) = &process.announces {
            return self.wait_for_entry(words, Duration::from_secs(process.deadline));
        }
        if process.ready.is_empty() {
            return self.alive();
        }
        let port =
            *words.ports.get(&process.ready).with_context(|| format!("unknown port: {}", process.ready))?;
        let address = address(process.is_far(), port, programs);
        let open = |pid: u32| {
            if process.datagrams {
                return process::has_datagram_port(pid, port);
            }
            let connect = || Ok(TcpStream::connect_timeout(&address, Duration::from_millis(200))?);
            // From where the server is: the link carries nothing for it.
            site.map_or_else(connect, |site| site.network.far.within(connect)).is_ok()
        };
        self.wait_until_open(&open, port, Duration::from_secs(process.deadline))?;
        thread::sleep(Duration::from_millis(process.settle));
        self.alive()
    }

    /// Waits until the last process has written the address of the entry behind `words`.
    fn wait_for_entry(&mut self, words: &str, patience: Duration) -> Result<()> {
        let deadline = Instant::now() + patience;
        loop {
            self.alive()?;
            let log = &self.children.last().context("no process")?.log;
            if let Some(address) = announced(&fs::read_to_string(log)?, words) {
                self.address = address;
                return Ok(());
            }
            ensure!(Instant::now() < deadline, "no address behind {words:?} after {patience:?}{}", tail(log));
            thread::sleep(Duration::from_millis(10));
        }
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
        self.link
            .filter(|_| self.children.len() > 1)
            .context("cannot capture a link: the subject has fewer than two processes")
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

/// The address that a whole line of a log names behind `words`.
pub(super) fn announced(log: &str, words: &str) -> Option<SocketAddr> {
    log.split_inclusive('\n').filter(|line| line.ends_with('\n')).find_map(|line| {
        let (_, rest) = line.split_once(words)?;
        rest.split_whitespace().next()?.parse().ok()
    })
}

/// The sum of the numbers in `value` below a key `dropped`.
pub(super) fn sum_dropped(value: &serde_json::Value, below: bool) -> f64 {
    if let Some(map) = value.as_object() {
        return map.iter().map(|(key, item)| sum_dropped(item, below || key == "dropped")).sum();
    }
    if let Some(items) = value.as_array() {
        return items.iter().map(|item| sum_dropped(item, below)).sum();
    }
    value.as_f64().filter(|_| below).unwrap_or(0.0)
}

/// The state that an interrupt must clean up.
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
