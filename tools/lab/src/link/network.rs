//! Two networks of the lab's own: the near one, where it and the clients are, and the far one with servers and target.
//!
//! They have no names and no files. This process, its children and their open files hold them, so
//! that the kernel removes them with every interface in them, however the lab ends.

use std::fs::{self, File};
use std::net::Ipv4Addr;
use std::os::fd::AsRawFd;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::thread;

use anyhow::{Context, Result, anyhow, ensure};
use nix::errno::Errno;
use nix::sched::{CloneFlags, setns, unshare};

/// The interface between the two, called the same in both.
pub const INTERFACE: &str = "lab0";
/// Addresses of the interface, from the block for benchmarks (RFC 2544): the far end's and the near one's.
pub const FAR: Ipv4Addr = Ipv4Addr::new(198, 18, 0, 1);
/// See [`FAR`].
pub const NEAR: Ipv4Addr = Ipv4Addr::new(198, 18, 0, 2);

/// Largest buffers of TCP in the two networks, in bytes: more than the longest and fastest path of the project's tables
/// holds, so that the ends are not the limit.
const TCP_BUFFER: &str = "67108864";

/// One network.
#[derive(Debug)]
pub struct Namespace {
    file: File,
}

impl Namespace {
    /// The network of the calling thread.
    fn current() -> Result<Self> {
        Ok(Self { file: File::open("/proc/thread-self/ns/net").context("open a network")? })
    }

    /// A new network, which the calling thread does not enter.
    pub(crate) fn new() -> Result<Self> {
        let make = || {
            separate()?;
            Self::current()
        };
        thread::scope(|scope| scope.spawn(make).join().map_err(|_| anyhow!("work in a network panicked"))?)
    }

    /// Runs `work` on a thread of this network; sockets that it makes belong there, and so do threads and programs that it
    /// starts.
    ///
    /// # Errors
    /// Without the right, and those of `work`.
    pub fn within<T: Send>(&self, work: impl FnOnce() -> Result<T> + Send) -> Result<T> {
        let enter = || {
            setns(&self.file, CloneFlags::CLONE_NEWNET).context("enter a network")?;
            work()
        };
        thread::scope(|scope| scope.spawn(enter).join().map_err(|_| anyhow!("work in a network panicked"))?)
    }

    /// Path by which children of this process find it.
    #[must_use]
    pub fn path(&self) -> PathBuf {
        format!("/proc/{}/fd/{}", std::process::id(), self.file.as_raw_fd()).into()
    }
}

/// Moves the calling thread into the network at `path`.
///
/// # Errors
/// If there is none, or without the right.
pub fn enter(path: &Path) -> Result<()> {
    let file = File::open(path).with_context(|| format!("open the network {}", path.display()))?;
    setns(file, CloneFlags::CLONE_NEWNET).context("enter a network")
}

/// The two networks; nothing joins them yet.
#[derive(Debug)]
pub struct Network {
    /// Namespace of the calling thread.
    pub near: Namespace,
    /// Namespace of servers and the target.
    pub far: Namespace,
}

impl Network {
    /// Makes both and moves the calling thread, and those that it starts later, into the near one.
    ///
    /// # Errors
    /// Without root, or without the program `ip`.
    pub fn enter() -> Result<Self> {
        separate()?;
        let near = Namespace::current()?;
        let far = Namespace::new()?;
        prepare()?;
        far.within(prepare)?;
        Ok(Self { near, far })
    }

    /// Joins the two by a pair of Ethernet interfaces whose packets hold `mtu` bytes and are those of a wire: the kernel
    /// neither merges nor cuts behind it.
    ///
    /// # Errors
    /// If the kernel knows no such interfaces.
    pub fn join(&self, mtu: u32) -> Result<()> {
        let (mtu, far) = (mtu.to_string(), self.far.path());
        let far = far.to_str().context("path of a network")?;
        ip(&[
            "link", "add", INTERFACE, "mtu", &mtu, "type", "veth", "peer", "name", INTERFACE, "mtu", &mtu,
            "netns", far,
        ])?;
        let finish = |address| {
            adit_sys::tun::turn_offload_off(INTERFACE).context("turn offload off")?;
            address_and_up(address)
        };
        finish(NEAR)?;
        self.far.within(|| finish(FAR))
    }

    /// The congestion control of TCP over the link, in both directions; `None`: the kernel's usual one. It goes with the
    /// route, since a network of one's own may not choose every usual one that the kernel has.
    ///
    /// # Errors
    /// If the kernel does not have it, or the link does not exist.
    pub fn set_congestion(&self, name: Option<&str>) -> Result<()> {
        let set = |address: Ipv4Addr| {
            let (block, address) =
                (format!("{}/30", Ipv4Addr::from(FAR.to_bits() & !3)), address.to_string());
            let mut words = vec!["route", "replace", &block, "dev", INTERFACE, "src", &address];
            words.extend(name.iter().flat_map(|name| ["congctl", name]));
            ip(&words)
        };
        set(NEAR)?;
        self.far.within(|| set(FAR))
    }
}

/// Moves the calling thread into a new network.
fn separate() -> Result<()> {
    match unshare(CloneFlags::CLONE_NEWNET) {
        Err(Errno::EPERM) => Err(Errno::EPERM).context("make a network of its own\nhint: it takes root"),
        done => done.context("make a network of its own"),
    }
}

/// Prepares a network before anything runs in it.
fn prepare() -> Result<()> {
    ip(&["link", "set", "lo", "up"])?;
    // One connection's knowledge of the path must not help the next.
    for (name, value) in [
        ("tcp_no_metrics_save", "1".to_owned()),
        ("tcp_rmem", buffers("131072")),
        ("tcp_wmem", buffers("16384")),
    ] {
        let path = format!("/proc/sys/net/ipv4/{name}");
        fs::write(&path, value).with_context(|| format!("write {path}"))?;
    }
    Ok(())
}

fn buffers(usual: &str) -> String {
    format!("4096 {usual} {TCP_BUFFER}")
}

/// Gives the interface in the calling thread's network its address and starts it. The queue holds what a burst of
/// the largest windows brings: the model's queue is the one that drops.
pub(super) fn address_and_up(address: Ipv4Addr) -> Result<()> {
    ip(&["addr", "add", &format!("{address}/30"), "dev", INTERFACE])?;
    ip(&["link", "set", INTERFACE, "txqueuelen", "10000", "up"])
}

/// Runs ip(8) in the calling thread's network.
pub(crate) fn ip(args: &[&str]) -> Result<()> {
    let found = ["/usr/sbin/ip", "/sbin/ip", "/usr/bin/ip", "/bin/ip"].iter().map(PathBuf::from);
    let program = found.into_iter().find(|path| path.is_file()).unwrap_or_else(|| "ip".into());
    let output = Command::new(program).args(args).output().context("run ip (iproute2)")?;
    let text = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success(), "ip {}: {}", args.join(" "), text.trim());
    Ok(())
}
