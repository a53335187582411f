//! A flow: one socket towards the subject, and what keeps its way open.

use std::net::{Ipv4Addr, SocketAddr, TcpStream, UdpSocket};
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use adit_sys::udp::{set_receive_buffer, set_send_buffer};
use anyhow::{Context, Result, bail, ensure};

use super::datagram::{Datagram, Kind};
use super::sink::{Reading, Sink};
use super::wrap::Wrap;
use crate::link::{FAR, Site};
use crate::load;
use crate::subject::Entry;

/// Largest datagram of the lab, wrapping included.
pub const MAX_LEN: usize = 2048;

/// Address at which flows enter, and their target.
#[derive(Debug, Clone)]
pub struct Way {
    /// The subject's entry.
    pub address: SocketAddr,
    /// The protocol that listens there.
    pub entry: Entry,
    /// The lab's target.
    pub target: SocketAddr,
    /// The cipher, if the entry is a server that the lab speaks to itself.
    pub method: Option<String>,
    /// The link, if there is one; the target is at its far end.
    pub site: Option<Arc<Site>>,
}

impl Way {
    /// The way to the target without a subject.
    #[must_use]
    pub fn straight(&self) -> Self {
        let address = match self.site {
            Some(_) => SocketAddr::from((FAR, self.target.port())),
            None => self.target,
        };
        Self { address, entry: Entry::Tunnel, ..self.clone() }
    }

    /// Starts the target's sink, where the target is.
    ///
    /// # Errors
    /// As [`Sink::start`].
    pub fn sink(&self, reading: Reading, epoch: Instant) -> Result<Sink> {
        let start = || Sink::start(self.target, reading, epoch);
        self.site.as_ref().map_or_else(start, |site| site.network.far.within(start))
    }
}

/// One flow of datagrams.
#[derive(Debug)]
pub struct Flow {
    /// The socket, connected to the subject.
    pub socket: UdpSocket,
    /// The wrapping of its datagrams.
    pub wrap: Wrap,
    number: u32,
    next: u64,
    epoch: Instant,
    /// SOCKS5: the association lasts as long as this.
    _control: Option<TcpStream>,
}

impl Flow {
    /// Opens flow `number` to `target`; times count from `epoch`.
    ///
    /// # Errors
    /// If the subject refuses it or no socket is to be had.
    pub fn open(way: &Way, number: u32, target: SocketAddr, epoch: Instant) -> Result<Self> {
        let (address, wrap, control) = match way.entry {
            Entry::Tunnel => {
                ensure!(target == way.target, "a tunnel leads to one target alone");
                (way.address, Wrap::plain(target)?, None)
            }
            Entry::Socks5 => {
                let (control, address) = load::associate(way.address).context("SOCKS5 association")?;
                (address, Wrap::socks5(target)?, Some(control))
            }
            Entry::Shadowsocks => {
                let method = way.method.as_deref().context("no method named")?;
                (way.address, Wrap::shadowsocks(target, method, fresh_seed(number))?, None)
            }
        };
        let from = if address.ip().is_loopback() { Ipv4Addr::LOCALHOST } else { Ipv4Addr::UNSPECIFIED };
        let socket = UdpSocket::bind((from, 0)).context("open a datagram socket")?;
        set_receive_buffer(&socket, 4 << 20)?;
        set_send_buffer(&socket, 4 << 20)?;
        socket.connect(address)?;
        Ok(Self { socket, wrap, number, next: 0, epoch, _control: control })
    }

    /// Bytes on the wire of a datagram of `len` bytes.
    #[must_use]
    pub fn wire_len(&self, len: usize) -> usize {
        let (head, tail) = self.wrap.room();
        head + len + tail
    }

    /// Datagrams made so far.
    #[must_use]
    pub fn made(&self) -> u64 {
        self.next
    }

    /// Takes back the last `count` datagrams: the kernel had no room for them.
    pub fn take_back(&mut self, count: u64) {
        self.next = self.next.saturating_sub(count);
    }

    /// Writes the next datagram into `bytes`, [`Self::wire_len`] of them.
    ///
    /// # Errors
    /// If the cipher fails.
    pub fn fill(&mut self, bytes: &mut [u8], kind: Kind, now: SystemTime) -> Result<()> {
        let (head, tail) = self.wrap.room();
        let end = bytes.len() - tail;
        let time = u64::try_from(self.epoch.elapsed().as_nanos()).unwrap_or(u64::MAX);
        Datagram { kind, flow: self.number, number: self.next, time }.emit(&mut bytes[head..end]);
        self.next += 1;
        self.wrap.seal(bytes, now)
    }

    /// Sends one datagram of `len` bytes.
    ///
    /// # Errors
    /// If the kernel refuses it.
    pub fn send(&mut self, len: usize, kind: Kind) -> Result<()> {
        let mut bytes = [0; MAX_LEN];
        let wire = self.wire_len(len);
        self.fill(&mut bytes[..wire], kind, SystemTime::now())?;
        self.socket.send(&bytes[..wire]).context("send")?;
        Ok(())
    }

    /// Waits for an answer until the socket's read timeout; gives it with the nanoseconds since it was sent.
    ///
    /// # Errors
    /// If the answer is not one, or the socket fails.
    pub fn receive(&self) -> Result<Option<(Datagram, u64)>> {
        let mut bytes = [0; MAX_LEN];
        let len = match self.socket.recv(&mut bytes) {
            Ok(len) => len,
            Err(error) if is_timeout(&error) => return Ok(None),
            Err(error) => return Err(error).context("receive"),
        };
        let now = u64::try_from(self.epoch.elapsed().as_nanos()).unwrap_or(u64::MAX);
        let Some(datagram) = self.wrap.open(&bytes[..len]).and_then(Datagram::parse) else {
            bail!("wrong content in an answer of {len} bytes");
        };
        ensure!(datagram.flow == self.number, "an answer of another flow: {}", datagram.flow);
        Ok(Some((datagram, now.saturating_sub(datagram.time))))
    }

    /// Sends and waits until one answer came back, so that every address is known on the way.
    ///
    /// # Errors
    /// If none comes.
    pub fn greet(&mut self, len: usize) -> Result<()> {
        self.socket.set_read_timeout(Some(Duration::from_millis(300)))?;
        for _ in 0..20 {
            self.send(len, Kind::Echo)?;
            if self.receive()?.is_some() {
                return Ok(());
            }
        }
        bail!("no answer to 20 datagrams of {len} bytes")
    }
}

fn is_timeout(error: &std::io::Error) -> bool {
    matches!(error.kind(), std::io::ErrorKind::WouldBlock | std::io::ErrorKind::TimedOut)
}

/// A seed that no run before had: servers remember sessions.
fn fresh_seed(number: u32) -> u64 {
    let nanos = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default().as_nanos();
    u64::try_from(nanos & u128::from(u64::MAX)).unwrap_or_default() ^ u64::from(number) << 48
}
