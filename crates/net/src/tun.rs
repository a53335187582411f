//! A virtual interface: its packets on an event loop, its address and start.
//!
//! A packet is read and written by one system call each; with offload it stands for many, up to 64 KiB of a stream.

use std::collections::HashSet;
use std::fmt;
use std::fs::File;
use std::io::{self, IoSlice, Read as _, Write as _};
use std::net::{IpAddr, SocketAddr};
use std::os::fd::{AsFd, AsRawFd as _, OwnedFd};
use std::task::{Context, Poll, ready};

use adit_model::Tun;
use adit_sys::tun::{self as sys, Interface, Offload};
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;

use crate::handover::{self, Kept, Kind, Label};
use crate::udp::DatagramBatch;
use crate::udp::detour::Detour;
use crate::udp::divert::Led;

/// Packets that wait to be read. Twice the kernel's usual number: a burst of datagrams comes while the loop has its turn
/// with other flows.
const QUEUE_LEN: u16 = 1000;

/// An interface that is up, not on an event loop yet. It ends when this or its [`TunSocket`] is dropped.
#[derive(Debug)]
pub struct TunDevice {
    interface: Interface,
    /// Its addresses, with the length of the prefix. Without IPv6 on this machine only that of IPv4.
    pub addresses: Vec<(IpAddr, u8)>,
    /// To be shown to a person, once.
    pub warnings: Vec<String>,
    label: Label,
}

/// Whether the interface behind a descriptor of the driver is still there: somebody may have removed it.
///
/// # Errors
/// When it is gone, or was none.
pub fn check(descriptor: &impl AsFd) -> io::Result<()> {
    sys::check(descriptor)
}

/// Whether this process can open the driver of such interfaces.
pub fn has_driver() -> bool {
    std::fs::OpenOptions::new().read(true).write(true).open("/dev/net/tun").is_ok()
}

/// Why there is no interface.
#[derive(Debug)]
pub struct TunError {
    /// The step that failed.
    step: &'static str,
    /// The interface.
    name: Box<str>,
    /// The system's error.
    source: io::Error,
}

impl fmt::Display for TunError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "cannot {} interface {}: {}", self.step, self.name, self.source)?;
        let hint = self.hint();
        if hint.is_empty() { Ok(()) } else { write!(f, "\nhint: {hint}") }
    }
}

impl TunError {
    /// Advice for the user; empty for none.
    fn hint(&self) -> &'static str {
        let kind = self.source.kind();
        if kind == io::ErrorKind::PermissionDenied {
            "it takes CAP_NET_ADMIN: run as root, or once `setcap cap_net_admin+ep` on the program"
        } else if kind == io::ErrorKind::NotFound {
            "there is no /dev/net/tun: `modprobe tun`"
        } else if kind == io::ErrorKind::ResourceBusy {
            "another process holds it: give `interface` another name"
        } else {
            ""
        }
    }
}

impl std::error::Error for TunError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        Some(&self.source)
    }
}

impl From<TunError> for io::Error {
    fn from(error: TunError) -> Self {
        Self::new(error.source.kind(), error)
    }
}

impl TunDevice {
    /// Makes the interface, gives it its addresses and starts it. The prefixes get routes, and nothing else does. One that
    /// was handed over to this process for the same purpose goes on as it is.
    ///
    /// # Errors
    /// [`TunError`]: without the right, without the driver, if somebody else holds the interface, or if an address cannot be
    /// set. IPv6 that the machine does not have is a warning as long as there is an IPv4 address.
    pub fn open(tun: &Tun) -> Result<Self, TunError> {
        let failed = |step| {
            let name = tun.name.clone();
            move |source| TunError { step, name, source }
        };
        let wanted = if tun.offload { Offload::TcpAndUdp } else { Offload::Off };
        let label = label(tun);
        if let Some(file) = handover::take(Kind::Interface, label.key, None, None).pop() {
            let interface = sys::adopt(File::from(file), wanted).map_err(failed("take over"))?;
            return Ok(Self::adopted(interface, tun, label));
        }
        let interface = sys::open_offload(&tun.name, wanted).map_err(failed("make"))?;
        let name = &interface.name;
        prepare(name);
        let (mut addresses, mut warnings) = (Vec::new(), Vec::new());
        if let Some(v4) = tun.v4 {
            let set = sys::set_address_v4(name, v4.address(), v4.prefix());
            set.map_err(failed("give an IPv4 address to"))?;
            addresses.push((v4.address().into(), v4.prefix()));
        }
        sys::start(name, tun.mtu, QUEUE_LEN).map_err(failed("start"))?;
        if let Some(v6) = tun.v6 {
            match sys::set_address_v6(name, v6.address(), v6.prefix()) {
                Ok(()) => addresses.push((v6.address().into(), v6.prefix())),
                Err(source) if addresses.is_empty() => {
                    return Err(failed("give an IPv6 address to")(source));
                }
                Err(error) => warnings.push(format!("interface {name} has no IPv6: {error}")),
            }
        }
        if tun.offload && interface.offload < Offload::TcpAndUdp {
            let missing = if interface.offload == Offload::Off { "offload" } else { "offload of UDP" };
            warnings.push(format!(
                "the kernel gives interface {name} no {missing}: more processor time per byte"
            ));
        }
        Ok(Self { interface, addresses, warnings, label })
    }

    /// An interface that is up already.
    fn adopted(interface: Interface, tun: &Tun, label: Label) -> Self {
        let mut addresses: Vec<(IpAddr, u8)> =
            tun.v4.map(|v4| (v4.address().into(), v4.prefix())).into_iter().collect();
        if let Some(v6) = tun.v6 {
            match sys::set_address_v6(&interface.name, v6.address(), v6.prefix()) {
                // It was there before.
                Err(error) if error.kind() != io::ErrorKind::AlreadyExists => {
                    tracing::debug!(interface = &*interface.name, %error, "no IPv6 address, as before");
                }
                _ => addresses.push((v6.address().into(), v6.prefix())),
            }
        }
        Self { interface, addresses, warnings: Vec::new(), label }
    }

    /// Its name, where the kernel chose the number.
    pub fn name(&self) -> &str {
        &self.interface.name
    }

    /// Its purpose.
    pub fn label(&self) -> Label {
        self.label
    }

    /// A copy for the next process, which keeps the interface.
    ///
    /// # Errors
    /// When there is no descriptor left.
    pub fn keep(&self) -> io::Result<Kept> {
        Kept::new(self.label, &self.interface.file)
    }
}

/// The purpose of an interface: all that cannot change while it is up.
fn label(tun: &Tun) -> Label {
    let Tun { name, v4, v6, mtu, offload, .. } = tun;
    let v4 = v4.map(|v4| format!("{}/{}", v4.address(), v4.prefix())).unwrap_or_default();
    let v6 = v6.map(|v6| format!("{}/{}", v6.address(), v6.prefix())).unwrap_or_default();
    let key = handover::key(&[name, &v4, &v6, &mtu.to_string(), &offload.to_string()]);
    Label { kind: Kind::Interface, key, index: 0 }
}

/// Sets what no system call does. A machine without the files has nothing to set.
fn prepare(name: &str) {
    for (file, value) in [
        // Packets come in with the addresses of applications and targets, to which other interfaces have better routes. The
        // larger of this and that of `all` counts; 2 takes any source that some route leads to.
        (format!("/proc/sys/net/ipv4/conf/{name}/rp_filter"), "2"),
        // No address of its own making: such an address would be a source that applications choose.
        (format!("/proc/sys/net/ipv6/conf/{name}/addr_gen_mode"), "1"),
        (format!("/proc/sys/net/ipv6/conf/{name}/disable_ipv6"), "0"),
    ] {
        if let Err(error) = std::fs::write(&file, value) {
            tracing::debug!(file, %error, "not set");
        }
    }
}

/// An interface on the event loop that made it.
#[derive(Debug)]
pub struct TunSocket {
    fd: AsyncFd<File>,
    name: Box<str>,
    offload: Offload,
    /// Clients and streams of other processes.
    detour: Detour,
}

impl TunSocket {
    /// Puts an interface on the current event loop.
    ///
    /// # Errors
    /// The system's error.
    pub fn new(device: TunDevice) -> io::Result<Self> {
        let Interface { file, name, offload } = device.interface;
        let detour = Detour::of(file.as_raw_fd())?;
        #[expect(deprecated, reason = "sound for a file that owns its descriptor; the successor is unsafe")]
        let fd = AsyncFd::try_with_interest(file, Interest::READABLE)?;
        tracing::debug!(interface = &*name, fd = fd.get_ref().as_raw_fd(), ?offload, "interface is up");
        Ok(Self { fd, name, offload, detour })
    }

    /// Packets of a socket that keeps their boundaries, in the place of an interface, for tests. With a header it takes
    /// all offload.
    ///
    /// # Errors
    /// The system's error.
    #[doc(hidden)]
    pub fn over(socket: std::os::unix::net::UnixDatagram, has_header: bool) -> io::Result<Self> {
        socket.set_nonblocking(true)?;
        let file = File::from(OwnedFd::from(socket));
        let offload = if has_header { Offload::TcpAndUdp } else { Offload::Off };
        let interface = Interface { file, name: "test".into(), offload };
        let label = label(&Tun::default());
        Self::new(TunDevice { interface, addresses: Vec::new(), warnings: Vec::new(), label })
    }

    /// Reads the interface no more: from now on datagrams of `peers` come from another process by `pair`. Packets are
    /// written as before.
    ///
    /// # Errors
    /// The system's error; the interface is read as before then.
    pub fn pass_on(&self, pair: OwnedFd, peers: &[SocketAddr]) -> io::Result<()> {
        self.detour.pass_on(pair, peers)
    }

    /// The datagrams that another process has read for this one. Ready with false when this process reads the interface.
    ///
    /// # Errors
    /// When the other process has ended: nobody reads the interface any more.
    pub fn poll_passed(&self, cx: &mut Context<'_>, batch: &mut DatagramBatch) -> Poll<io::Result<bool>> {
        let received = self.detour.poll_passed(cx, batch);
        if received.is_pending() && self.detour.is_over() {
            let text = format!("the process that read interface {} has ended", self.name);
            return Poll::Ready(Err(io::Error::new(io::ErrorKind::BrokenPipe, text)));
        }
        received
    }

    /// Passes on the datagrams of `batch` that belong to an earlier process; `lost` grows by those that it did not take.
    pub fn divert(&self, batch: &mut DatagramBatch, lost: &mut u64) {
        self.detour.divert(batch, lost);
    }

    /// The clients and streams of processes before this one.
    pub fn earlier_peers(&self) -> HashSet<SocketAddr> {
        self.detour.earlier_peers()
    }

    /// All streams that were there when this process took the interface over, once.
    pub fn take_led(&self) -> Vec<Led> {
        self.detour.take_led()
    }

    /// Learns which clients and streams of processes before this one are gone; call it once a second. Gives the number of
    /// those that are left.
    pub fn follow_earlier(&self) -> usize {
        self.detour.follow_earlier()
    }

    /// Tells the process that reads the interface which clients and streams there still are; call it once a second.
    pub fn keep_peers(&self, current: HashSet<SocketAddr>) {
        self.detour.keep_peers(current);
    }

    /// Its name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Whether a header of offload stands in front of each packet, both ways.
    pub fn has_header(&self) -> bool {
        self.offload > Offload::Off
    }

    /// Whether many datagrams may be written as one packet, and are read so.
    pub fn takes_segments(&self) -> bool {
        self.offload == Offload::TcpAndUdp
    }

    /// Whether the interface is still there. Its removal wakes nobody.
    ///
    /// # Errors
    /// When it is gone.
    pub fn check(&self) -> io::Result<()> {
        sys::check(self.fd.get_ref()).map_err(|error| self.gone(&error))
    }

    fn gone(&self, error: &io::Error) -> io::Error {
        io::Error::new(error.kind(), format!("interface {} is gone: {error}", self.name))
    }

    /// One packet, with its header where there is one; `buffer` holds 65,545 bytes or what comes is cut.
    ///
    /// # Errors
    /// When the interface is gone.
    pub fn poll_read(&self, cx: &mut Context<'_>, buffer: &mut [u8]) -> Poll<io::Result<usize>> {
        loop {
            let mut guard = ready!(self.fd.poll_read_ready(cx))?;
            match self.fd.get_ref().read(buffer) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => guard.clear_ready(),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Poll::Ready(Err(self.gone(&error))),
                read => return Poll::Ready(read),
            }
        }
    }

    /// Writes one packet, with its header where there is one, as if it had come in. It never waits.
    ///
    /// # Errors
    /// The system's error: the packet is lost.
    pub fn write(&self, packet: &[u8]) -> io::Result<()> {
        self.fd.get_ref().write(packet).map(drop)
    }

    /// The same for a packet in parts, at most 1,024.
    ///
    /// # Errors
    /// The system's error: the packet is lost.
    pub fn write_parts(&self, parts: &[IoSlice<'_>]) -> io::Result<()> {
        self.fd.get_ref().write_vectored(parts).map(drop)
    }
}
