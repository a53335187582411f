//! adit under a load of the lab's own: a child with its file and log, in a control group where memory is bounded.

use std::fs;
use std::net::{SocketAddr, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde::Serialize;

use crate::process::{descriptors, memory};

/// Longest wait for a program to listen.
const PATIENCE: Duration = Duration::from_secs(20);

/// In its log after a reload.
const RELOADED: &str = "reloaded: ";

/// The memory and descriptors that a program holds.
#[derive(Debug, Clone, Copy, Serialize)]
pub(crate) struct Usage {
    pub(crate) rss_kib: u64,
    /// The part of it that is no file's: heap and stacks.
    pub(crate) anonymous_kib: u64,
    pub(crate) descriptors: usize,
}

/// A child with its files.
struct Program {
    child: Child,
    folder: PathBuf,
}

impl Drop for Program {
    fn drop(&mut self) {
        // It may have ended by itself.
        self.child.kill().ok();
        self.child.wait().ok();
        fs::remove_dir_all(&self.folder).ok();
    }
}

impl Program {
    /// Starts `adit run` with this configuration by way of a shell that runs `first`.
    fn start(adit: &Path, config: &str, first: &str) -> Result<Self> {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let folder = std::env::temp_dir().join(format!("adit-lab-{}-{number}", std::process::id()));
        fs::create_dir_all(&folder).context("make a folder")?;
        fs::write(folder.join("adit.toml"), config)?;
        let log = fs::File::create(folder.join("log"))?;
        let child = Command::new("sh")
            .args(["-c", &format!("{first} exec \"$0\" run -c \"$1\"")])
            .arg(adit)
            .arg(folder.join("adit.toml"))
            // Its state goes with it.
            .env("STATE_DIRECTORY", &folder)
            .env("RUNTIME_DIRECTORY", &folder)
            .stdin(Stdio::null())
            .stdout(log.try_clone()?)
            .stderr(log)
            .spawn()
            .with_context(|| format!("start {}", adit.display()))?;
        Ok(Self { child, folder })
    }

    fn log(&self) -> String {
        fs::read_to_string(self.folder.join("log")).unwrap_or_default()
    }
}

/// A control group with a bound of memory; it is removed when dropped.
struct Group {
    folder: PathBuf,
    peak: &'static str,
}

impl Group {
    /// Makes one, by version 1 or 2; `None` where none can be made.
    fn new(bytes: u64) -> Option<Self> {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let name = format!("adit-lab-{}-{}", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed));
        let kinds = [
            ("/sys/fs/cgroup/memory", "memory.limit_in_bytes", "memory.max_usage_in_bytes"),
            ("/sys/fs/cgroup", "memory.max", "memory.peak"),
        ];
        kinds.into_iter().find_map(|(root, limit, peak)| {
            let folder = Path::new(root).join(&name);
            fs::create_dir(&folder).ok()?;
            let group = Self { folder, peak };
            let limit = group.folder.join(limit);
            (limit.exists() && fs::write(limit, bytes.to_string()).is_ok()).then_some(group)
        })
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        // The kernel takes a moment to see that the last process is gone.
        for _ in 0..50 {
            if fs::remove_dir(&self.folder).is_ok() {
                return;
            }
            thread::sleep(Duration::from_millis(20));
        }
    }
}

/// A running adit, in a control group where one can be made.
pub(crate) struct Held {
    program: Program,
    group: Option<Group>,
}

impl Held {
    /// Starts `adit run` in the calling thread's network, with a limit of descriptors and of memory. A group that cannot be
    /// made is reported and left out.
    pub(crate) fn start(adit: &Path, config: &str, limit: Option<u64>, bytes: Option<u64>) -> Result<Self> {
        let group = bytes.and_then(Group::new);
        if bytes.is_some() && group.is_none() {
            console::Term::stderr().write_line("no control group can be made here: memory is not bounded")?;
        }
        let mut first = String::new();
        if let Some(group) = &group {
            first += &format!("echo $$ > '{}/cgroup.procs' &&", group.folder.display());
        }
        if let Some(limit) = limit {
            first += &format!(" ulimit -n {limit} &&");
        }
        Ok(Self { program: Program::start(adit, config, &first)?, group })
    }

    /// Waits until it listens on `port`.
    pub(crate) fn wait_for_port(&self, port: SocketAddr) -> Result<()> {
        self.wait_until(&format!("nothing listens on {port}"), || TcpStream::connect(port).is_ok())
    }

    /// Waits until its log has this text.
    pub(crate) fn wait_for_line(&self, text: &str) -> Result<()> {
        self.wait_until(&format!("it does not say {text:?}"), || self.program.log().contains(text))
    }

    fn wait_until(&self, trouble: &str, is_so: impl Fn() -> bool) -> Result<()> {
        let since = Instant::now();
        while !is_so() {
            ensure!(since.elapsed() < PATIENCE, "{trouble}: {}", self.program.log());
            thread::sleep(Duration::from_millis(50));
        }
        Ok(())
    }

    /// Has it obey `config` from now on, and waits until its log has said so `count` times.
    pub(crate) fn reload(&self, config: &str, count: usize) -> Result<()> {
        fs::write(self.program.folder.join("adit.toml"), config)?;
        kill(Pid::from_raw(i32::try_from(self.pid())?), Signal::SIGHUP).context("ask for a reload")?;
        self.wait_until("it was not reloaded", || self.program.log().matches(RELOADED).count() >= count)
    }

    /// Its process.
    pub(crate) fn pid(&self) -> u32 {
        self.program.child.id()
    }

    pub(crate) fn usage(&self) -> Result<Usage> {
        let memory = memory(self.pid())?;
        let descriptors = descriptors(self.pid())?;
        Ok(Usage { rss_kib: memory.rss, anonymous_kib: memory.anonymous, descriptors })
    }

    /// Looks until `over`; the most of each.
    pub(crate) fn watch(&self, over: &AtomicBool) -> Usage {
        let mut peak = Usage { rss_kib: 0, anonymous_kib: 0, descriptors: 0 };
        while !over.load(Ordering::Relaxed) {
            if let Ok(now) = self.usage() {
                peak.rss_kib = peak.rss_kib.max(now.rss_kib);
                peak.anonymous_kib = peak.anonymous_kib.max(now.anonymous_kib);
                peak.descriptors = peak.descriptors.max(now.descriptors);
            }
            thread::sleep(Duration::from_millis(200));
        }
        peak
    }

    /// The most memory that its group ever held, kernel memory included.
    pub(crate) fn group_peak(&self) -> Option<u64> {
        let group = self.group.as_ref()?;
        fs::read_to_string(group.folder.join(group.peak)).ok()?.trim().parse().ok()
    }

    pub(crate) fn is_alive(&self) -> bool {
        // A process that was killed stays as one without memory.
        i32::try_from(self.pid()).is_ok_and(|pid| kill(Pid::from_raw(pid), None::<Signal>).is_ok())
            && memory(self.pid()).is_ok()
    }
}
