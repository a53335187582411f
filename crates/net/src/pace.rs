//! One rate for all TCP connections of a client.
//!
//! The system keeps the rate of a socket (`SO_MAX_PACING_RATE`, or the kernel module tcp-brutal), and [`Pacer`] sees to
//! it that a client's sockets together have no more than one: each has a part of it that depends on how many of them
//! are sending. A connection learns of a new part when it writes, so that no thread touches another's sockets, and there
//! is no timer. Connections at rest take no part.
//!
//! ```text
//! part = rate / max(connections that wrote in this window, in the one before, connections that wait for room)
//! ```

use std::cell::Cell;
use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use adit_model::Pace;
use adit_sys::rate::{Brutal, set_congestion, set_pacing_rate, set_unsent_limit};
use socket2::{Domain, Socket, Type};
use tokio::net::TcpStream;
use tracing::debug;

use crate::options::Warning;

/// Connections that write within one of these, or the one before, share the rate: long enough that every active
/// connection writes in it, short enough that a connection that goes on alone soon has all of it.
const WINDOW: Duration = Duration::from_millis(500);

/// Least part of a connection, in bytes per second: a packet must leave now and then.
const MIN_PART: u64 = 2_000;

/// Bytes that a socket takes ahead of the wire: a sixteenth of a second's bytes, at least this many.
const MIN_UNSENT: u32 = 128 << 10;

/// Loss slows this one less than others (`tcp_bbr` of Linux).
const BBR: &str = "bbr";

/// Paces the connections of one inbound or outbound, on all cores.
#[derive(Debug)]
pub struct Pacer {
    pace: Pace,
    start: Instant,
    clients: Mutex<HashMap<IpAddr, Arc<Client>>>,
}

/// State that the connections of one client share.
#[derive(Debug, Default)]
struct Client {
    /// Number of a window (32 bits), connections that wrote in the one before it (16), and in itself (16).
    writers: AtomicU64,
    /// Connections whose last write the system did not take whole.
    waiting: AtomicU32,
}

/// One connection's part.
#[derive(Debug)]
pub(crate) struct Share {
    pacer: Arc<Pacer>,
    ip: IpAddr,
    client: Arc<Client>,
    /// Whether the kernel module keeps the rate.
    is_brutal: bool,
    /// The last window in which this connection was counted.
    counted: Cell<Option<u32>>,
    is_waiting: Cell<bool>,
    /// The rate that the socket has been told, in bytes per second.
    part: Cell<u64>,
}

impl Pacer {
    /// A pacer that has no clients yet.
    pub fn new(pace: Pace) -> Self {
        Self { pace, start: Instant::now(), clients: Mutex::default() }
    }

    /// Takes a connection in.
    pub(crate) fn join(self: &Arc<Self>, tcp: &TcpStream, ip: IpAddr) -> Share {
        let ip = prefix(ip);
        let client =
            self.clients.lock().unwrap_or_else(PoisonError::into_inner).entry(ip).or_default().clone();
        let is_brutal = self.pace.brutal.is_some() && set_congestion(tcp, Brutal::NAME).is_ok();
        if !is_brutal && let Err(error) = set_congestion(tcp, BBR) {
            debug!(%error, "pacing without bbr");
        }
        let ahead = u32::try_from(self.pace.bytes_per_second() / 16).unwrap_or(u32::MAX).max(MIN_UNSENT);
        if let Err(error) = set_unsent_limit(tcp, ahead) {
            debug!(%error, "no limit of unsent bytes");
        }
        let share = Share {
            pacer: self.clone(),
            ip,
            client,
            is_brutal,
            counted: Cell::new(None),
            is_waiting: Cell::new(false),
            part: Cell::new(u64::MAX),
        };
        if is_brutal {
            // The module's own rate, until then, is 1 Mbit/s.
            share.tell(tcp, self.pace.bytes_per_second());
        }
        share
    }

    fn window(&self) -> u32 {
        let windows = self.start.elapsed().as_millis() / WINDOW.as_millis();
        // Some 68 years of them.
        u32::try_from(windows).unwrap_or(u32::MAX)
    }
}

/// The reason why `pace` cannot be kept as asked for, if there is one.
pub fn check_pace(pace: &Pace) -> Option<Warning> {
    pace.brutal?;
    let socket = Socket::new(Domain::IPV4, Type::STREAM, None).ok()?;
    let error = set_congestion(&socket, Brutal::NAME).err()?;
    Some(Warning::Brutal(error.kind()))
}

impl Share {
    /// Counts the connection among those that send, and tells the socket its part if that is another one now.
    pub(crate) fn before_write(&self, tcp: &TcpStream) {
        self.count(tcp, self.pacer.window());
    }

    fn count(&self, tcp: &TcpStream, window: u32) {
        if self.counted.replace(Some(window)) != Some(window) {
            self.client.count(window);
        }
        let senders = u64::from(self.client.senders(window).max(1));
        let part = (self.pacer.pace.bytes_per_second() / senders).max(MIN_PART);
        if part != self.part.get() {
            self.tell(tcp, part);
        }
    }

    fn tell(&self, tcp: &TcpStream, part: u64) {
        self.part.set(part);
        let told = match self.pacer.pace.brutal {
            Some(gain) if self.is_brutal => Brutal { rate: part.max(Brutal::MIN_RATE), gain }.set(tcp),
            _ => set_pacing_rate(tcp, part),
        };
        if let Err(error) = told {
            debug!(%error, "cannot set the rate of a connection");
        }
    }

    /// Whether the connection `waits` now for the system to take more.
    pub(crate) fn after_write(&self, waits: bool) {
        if self.is_waiting.replace(waits) != waits {
            if waits {
                self.client.waiting.fetch_add(1, Ordering::Relaxed);
            } else {
                self.client.waiting.fetch_sub(1, Ordering::Relaxed);
            }
        }
    }
}

impl Drop for Share {
    fn drop(&mut self) {
        self.after_write(false);
        let mut clients = self.pacer.clients.lock().unwrap_or_else(PoisonError::into_inner);
        // The table's and this one: nobody joins while the table is locked.
        if Arc::strong_count(&self.client) == 2 {
            clients.remove(&self.ip);
        }
    }
}

impl Client {
    /// One more that writes in `window`.
    fn count(&self, window: u32) {
        let one_more = |word| {
            let (before, now) = unpack(word, window);
            let at = window.max(number(word));
            Some(u64::from(at) << 32 | u64::from(before) << 16 | u64::from(now.saturating_add(1)))
        };
        // Never fails: there always is a next word.
        self.writers.fetch_update(Ordering::Relaxed, Ordering::Relaxed, one_more).ok();
    }

    /// Number of connections that share the rate.
    fn senders(&self, window: u32) -> u32 {
        let (before, now) = unpack(self.writers.load(Ordering::Relaxed), window);
        u32::from(before.max(now)).max(self.waiting.load(Ordering::Relaxed))
    }
}

fn number(word: u64) -> u32 {
    u32::try_from(word >> 32).expect("32 bits are left")
}

/// Number of connections that wrote in the window before `window`, and in it. A core whose clock was read a moment
/// earlier may be late.
fn unpack(word: u64, window: u32) -> (u16, u16) {
    let low = |shift: u32| u16::try_from(word >> shift & 0xffff).expect("16 bits are left");
    match window.saturating_sub(number(word)) {
        0 => (low(16), low(0)),
        1 => (low(0), 0),
        _ => (0, 0),
    }
}

/// The unit that counts as one client: an IPv4 address, or an IPv6 /64.
fn prefix(ip: IpAddr) -> IpAddr {
    match ip.to_canonical() {
        IpAddr::V6(ip) => IpAddr::V6((u128::from(ip) >> 64 << 64).into()),
        v4 @ IpAddr::V4(_) => v4,
    }
}

#[cfg(test)]
#[cfg(target_os = "linux")]
mod tests {
    use std::net::Ipv4Addr;

    use adit_sys::rate::pacing_rate;
    use tokio::net::TcpListener;

    use super::*;

    const MBPS: u32 = 80;
    const RATE: u64 = 10_000_000;

    fn pacer(brutal: Option<u32>) -> Arc<Pacer> {
        Arc::new(Pacer::new(Pace { mbps: MBPS, brutal }))
    }

    async fn connection() -> (TcpStream, TcpStream) {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
        let near = TcpStream::connect(listener.local_addr().unwrap()).await.unwrap();
        (near, listener.accept().await.unwrap().0)
    }

    fn ip(last: u8) -> IpAddr {
        Ipv4Addr::new(192, 0, 2, last).into()
    }

    fn rates(sockets: &[&TcpStream]) -> Vec<u64> {
        sockets.iter().map(|socket| pacing_rate(socket).unwrap()).collect()
    }

    #[tokio::test(flavor = "local")]
    async fn connections_of_one_client_share_its_rate() {
        let pacer = pacer(None);
        let ((a, _a), (b, _b), (c, _c)) = (connection().await, connection().await, connection().await);
        let (of_a, of_b) = (pacer.join(&a, ip(1)), pacer.join(&b, ip(1)));
        let of_c = pacer.join(&c, ip(2));
        for window in 0..3 {
            for _ in 0..2 {
                for (share, tcp) in [(&of_a, &a), (&of_b, &b), (&of_c, &c)] {
                    share.count(tcp, window);
                }
            }
            assert_eq!(rates(&[&a, &b, &c]), [RATE / 2, RATE / 2, RATE], "window {window}");
        }
        of_a.count(&a, 3);
        assert_eq!(rates(&[&a]), [RATE / 2], "the other one wrote a moment ago");
        of_a.count(&a, 4);
        assert_eq!(rates(&[&a]), [RATE], "the other one rests");
        of_b.after_write(true);
        of_c.after_write(true);
        of_a.count(&a, 5);
        assert_eq!(rates(&[&a]), [RATE], "there is one that waits, and one that writes: it may be the same");
        of_a.after_write(true);
        of_a.count(&a, 6);
        assert_eq!(rates(&[&a]), [RATE / 2], "both wait, however long");
        drop(of_b);
        of_a.count(&a, 7);
        assert_eq!(rates(&[&a]), [RATE]);
    }

    #[tokio::test(flavor = "local")]
    async fn clients_are_forgotten_with_their_last_connection() {
        let pacer = pacer(None);
        let (tcp, _peer) = connection().await;
        let v6: [IpAddr; 2] = ["2001:db8::1".parse().unwrap(), "2001:db8::2:3".parse().unwrap()];
        let shares = [pacer.join(&tcp, v6[0]), pacer.join(&tcp, v6[1]), pacer.join(&tcp, ip(1))];
        let count = || pacer.clients.lock().unwrap().len();
        assert_eq!(count(), 2, "a /64 is one client");
        drop(shares);
        assert_eq!(count(), 0);
    }

    /// If the module is loaded, this tests that instead.
    #[tokio::test(flavor = "local")]
    async fn without_the_module_its_rate_is_kept_by_pacing() {
        let pacer = pacer(Some(Pace::GAIN));
        let (tcp, _peer) = connection().await;
        let share = pacer.join(&tcp, ip(1));
        share.count(&tcp, 0);
        let warning = check_pace(&pacer.pace);
        assert_eq!(share.is_brutal, warning.is_none());
        if let Some(warning) = warning {
            assert_eq!(rates(&[&tcp]), [RATE]);
            assert!(warning.to_string().contains("load the kernel module tcp-brutal"), "{warning}");
        }
        assert_eq!(check_pace(&Pace { mbps: MBPS, brutal: None }), None);
    }

    #[test]
    fn many_writers_are_counted_without_overflow() {
        let client = Client::default();
        for _ in 0..70_000 {
            client.count(7);
        }
        assert_eq!((client.senders(7), client.senders(8), client.senders(9)), (65_535, 65_535, 0));
        assert_eq!(client.senders(6), 65_535, "a clock that is late sees the same");
    }

    #[test]
    fn clients_are_told_apart_by_prefix() {
        assert_eq!(prefix("::ffff:192.0.2.1".parse().unwrap()), ip(1));
        assert_eq!(prefix("2001:db8:0:1:2::3".parse().unwrap()), "2001:db8:0:1::".parse::<IpAddr>().unwrap());
    }
}
