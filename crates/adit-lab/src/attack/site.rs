//! The server under attack and the client of its users.

use std::fs;
use std::net::{SocketAddr, TcpStream, UdpSocket};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use super::local;
use crate::process::{descriptors, memory};
use crate::subject::free_port;

const KEY: &str = "a key for the lab";
/// Longest wait for a program to listen.
const PATIENCE: Duration = Duration::from_secs(20);

/// The memory and descriptors that the server holds.
#[derive(Debug, Clone, Copy)]
pub(super) struct Usage {
    pub(super) rss_kib: u64,
    pub(super) descriptors: usize,
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
        let folder = std::env::temp_dir().join(format!("adit-attack-{}-{number}", std::process::id()));
        fs::create_dir_all(&folder).context("make a folder")?;
        fs::write(folder.join("adit.toml"), config)?;
        let log = fs::File::create(folder.join("log"))?;
        let child = Command::new("sh")
            .args(["-c", &format!("{first} exec \"$0\" run -c \"$1\"")])
            .arg(adit)
            .arg(folder.join("adit.toml"))
            .stdin(Stdio::null())
            .stdout(log.try_clone()?)
            .stderr(log)
            .spawn()
            .with_context(|| format!("start {}", adit.display()))?;
        Ok(Self { child, folder })
    }

    fn wait_for(&self, port: SocketAddr) -> Result<()> {
        let since = Instant::now();
        while since.elapsed() < PATIENCE {
            if TcpStream::connect(port).is_ok() {
                return Ok(());
            }
            thread::sleep(Duration::from_millis(50));
        }
        let log = fs::read_to_string(self.folder.join("log")).unwrap_or_default();
        bail!("nothing listens on {port}: {log}");
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
        let name = format!("adit-attack-{}-{}", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed));
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

/// A program under attack, in a control group where one can be made.
pub(super) struct Held {
    program: Program,
    group: Option<Group>,
}

impl Held {
    /// Starts `adit run` in the calling thread's network, with a limit of descriptors and of memory. A group that cannot be
    /// made is reported and left out.
    pub(super) fn start(adit: &Path, config: &str, limit: Option<u64>, bytes: Option<u64>) -> Result<Self> {
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

    /// Waits until its log has this text.
    pub(super) fn wait_for_line(&self, text: &str) -> Result<()> {
        let since = Instant::now();
        loop {
            let log = fs::read_to_string(self.program.folder.join("log")).unwrap_or_default();
            if log.contains(text) {
                return Ok(());
            }
            if since.elapsed() > PATIENCE {
                bail!("it does not say {text:?}: {log}");
            }
            thread::sleep(Duration::from_millis(50));
        }
    }

    fn pid(&self) -> u32 {
        self.program.child.id()
    }

    pub(super) fn usage(&self) -> Result<Usage> {
        Ok(Usage { rss_kib: memory(self.pid())?.rss, descriptors: descriptors(self.pid())? })
    }

    /// Looks until `over`; the most of each.
    pub(super) fn watch(&self, over: &AtomicBool) -> Usage {
        let mut peak = Usage { rss_kib: 0, descriptors: 0 };
        while !over.load(Ordering::Relaxed) {
            if let Ok(now) = self.usage() {
                peak.rss_kib = peak.rss_kib.max(now.rss_kib);
                peak.descriptors = peak.descriptors.max(now.descriptors);
            }
            thread::sleep(Duration::from_millis(200));
        }
        peak
    }

    /// The most memory that its group ever held, kernel memory included.
    pub(super) fn group_peak(&self) -> Option<u64> {
        let group = self.group.as_ref()?;
        fs::read_to_string(group.folder.join(group.peak)).ok()?.trim().parse().ok()
    }

    pub(super) fn is_alive(&self) -> bool {
        // A process that was killed stays as one without memory.
        i32::try_from(self.pid()).is_ok_and(|pid| kill(Pid::from_raw(pid), None::<Signal>).is_ok())
            && memory(self.pid()).is_ok()
    }
}

/// The server.
pub(super) struct Server {
    pub(super) held: Held,
    pub(super) shadowsocks: SocketAddr,
    pub(super) snell: SocketAddr,
    pub(super) kcp: SocketAddr,
    /// Metrics, and the control interface of mihomo.
    pub(super) http: [SocketAddr; 2],
}

impl Server {
    /// Starts it with a limit of descriptors and of memory.
    pub(super) fn start(adit: &Path, limit: Option<u64>, bytes: Option<u64>) -> Result<Self> {
        let [shadowsocks, snell, kcp, http, clash] =
            [free_port()?, free_port()?, free_port()?, free_port()?, free_port()?].map(local);
        let config = format!(
            "[admin]\nhttp = \"{http}\"\nclash = \"{clash}\"\n[[inbound]]\nname = \"ss\"\nprotocol = \"shadowsocks\"\nlisten = \"{shadowsocks}\"\n\
             method = \"aes-128-gcm\"\npassword = \"{KEY}\"\nnetwork = \"tcp-and-udp\"\n\
             allow-private = true\n[[inbound]]\nname = \"snell\"\nprotocol = \"snell\"\nlisten = \"{snell}\"\nversion = 5\npsk = \"{KEY}\"\n\
             allow-private = true\n[[inbound]]\nname = \"kcp\"\nprotocol = \"shadowsocks\"\nlisten = \"{kcp}\"\n\
             method = \"aes-128-gcm\"\npassword = \"{KEY}\"\ncarrier = \"kcp\"\ncarrier-key = \"{KEY}\"\n\
             allow-private = true\n"
        );
        let held = Held::start(adit, &config, limit, bytes)?;
        held.program.wait_for(shadowsocks)?;
        Ok(Self { held, shadowsocks, snell, kcp, http: [http, clash] })
    }
}

/// The client of the users, and of those who record.
pub(super) struct Client {
    _program: Program,
    /// SOCKS ports, one by Shadowsocks and one by Snell.
    pub(super) users: [SocketAddr; 2],
    /// Takes datagrams that go to the first recorder, sealed.
    pub(super) tunnel: SocketAddr,
    /// A SOCKS port that leads over KCP to the second recorder.
    pub(super) kcp: SocketAddr,
}

impl Client {
    /// Starts it; datagrams of the tunnel are for `sink`.
    pub(super) fn start(
        adit: &Path,
        server: &Server,
        sink: SocketAddr,
        recorders: &[UdpSocket; 2],
    ) -> Result<Self> {
        let ports = [free_port()?, free_port()?, free_port()?, free_port()?].map(local);
        let [a, b, tunnel, kcp] = ports;
        let [first, second] = [recorders[0].local_addr()?, recorders[1].local_addr()?];
        let Server { shadowsocks, snell, .. } = server;
        let ss = |name: &str, server: SocketAddr| {
            format!(
                "[[outbound]]\nname = \"{name}\"\nprotocol = \"shadowsocks\"\nserver = \"{server}\"\n\
                 method = \"aes-128-gcm\"\npassword = \"{KEY}\"\n"
            )
        };
        let socks = |listen: SocketAddr, outbound: &str| {
            format!("[[inbound]]\nprotocol = \"socks\"\nlisten = \"{listen}\"\noutbound = \"{outbound}\"\n")
        };
        let config = [
            socks(a, "ss"),
            socks(b, "snell"),
            socks(kcp, "kcp"),
            format!(
                "[[inbound]]\nprotocol = \"tunnel\"\nlisten = \"{tunnel}\"\ntarget = \"{sink}\"\n\
                 network = \"udp\"\noutbound = \"recorded\"\n"
            ),
            ss("ss", *shadowsocks),
            ss("recorded", first),
            "network = \"tcp-and-udp\"\n".to_owned(),
            ss("kcp", second),
            format!("carrier = \"kcp\"\ncarrier-key = \"{KEY}\"\n"),
            format!(
                "[[outbound]]\nname = \"snell\"\nprotocol = \"snell\"\nserver = \"{snell}\"\nversion = 5\n\
                 psk = \"{KEY}\"\nreuse = false\n"
            ),
        ];
        let program = Program::start(adit, &config.concat(), "")?;
        program.wait_for(b)?;
        Ok(Self { _program: program, users: [a, b], tunnel, kcp })
    }
}
