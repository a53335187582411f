//! Outgoing connections, by Happy Eyeballs version 2 (RFC 8305).

use std::collections::VecDeque;
use std::future::pending;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::time::Duration;

use adit_model::{AddressFamilies, Dial, Egress, TcpOptions};
use adit_proto::wire::{Host, Target};
use adit_sys::rate::unpace_local;
use thiserror::Error;
use tokio::net::{TcpSocket, TcpStream};
use tokio::time::{Instant, sleep_until, timeout_at};
use tracing::debug;

use crate::egress;
use crate::options::{Warning, check_fast_open_client, check_multipath, multipath_socket, tune};
use crate::race::Race;
use crate::reach::{Private, Reach};
use crate::resolve::{self, Answers, Resolve, ResolveError, SystemResolver, is_allowed, is_preferred};
use crate::rt;
use crate::unix::UnixStream;

/// Head start of an attempt before the next one; "Connection Attempt Delay" of RFC 8305 section 8.
pub const ATTEMPT_DELAY: Duration = Duration::from_millis(250);

/// Time that addresses of the second family wait for those of the first; "Resolution Delay" of RFC 8305
/// section 8.
pub const RESOLUTION_DELAY: Duration = Duration::from_millis(50);

/// Addresses of one target that are tried at most, per family: a name may list hundreds.
const MAX_ADDRS: usize = 8;

/// Stands for a time-out that is too long to add to the clock.
const FOREVER: Duration = Duration::from_secs(365 * 24 * 3600);

/// Why there is no connection.
#[derive(Debug, Error)]
pub enum DialError {
    /// Port 0 cannot be connected to.
    #[error("port 0 cannot be dialled")]
    Port,
    /// The name has no address for us.
    #[error("cannot resolve the name")]
    Resolve(#[from] ResolveError),
    /// The target is no public address, and nothing else may be dialled. The text does not name the address: clients
    /// see it, and a name may stand for an address that is nobody else's business.
    #[error("the target is a private address ({kind}), which this inbound does not lead to")]
    Private {
        /// The address.
        addr: SocketAddr,
        /// Why it is not public.
        kind: Private,
    },
    /// Time ran out; the address is the last one that was tried.
    #[error("connection to {addr} timed out")]
    Timeout {
        /// The address.
        addr: SocketAddr,
    },
    /// Nobody listens there, or a firewall says so.
    #[error("connection to {addr} refused")]
    Refused {
        /// The address.
        addr: SocketAddr,
        /// The system's error.
        source: io::Error,
    },
    /// There is no way to the address.
    #[error("{addr} is unreachable")]
    Unreachable {
        /// The address.
        addr: SocketAddr,
        /// The system's error.
        source: io::Error,
    },
    /// Any other failure on the way.
    #[error("connection to {addr} failed")]
    Connect {
        /// The address.
        addr: SocketAddr,
        /// The system's error.
        source: io::Error,
    },
    /// The unix socket cannot be connected to.
    #[error("connection to {} failed", path.display())]
    Unix {
        /// Its path.
        path: PathBuf,
        /// The system's error.
        source: io::Error,
    },
    /// We could not make a socket: out of descriptors, or the interface is not there.
    #[error("no socket for a connection to {addr}")]
    Socket {
        /// The address.
        addr: SocketAddr,
        /// The system's error.
        source: io::Error,
    },
}

impl DialError {
    /// The system's error number, if the system is where the error comes from.
    pub fn errno(&self) -> Option<i32> {
        self.io_error().and_then(io::Error::raw_os_error)
    }

    /// The system's error, if there is one.
    pub fn io_error(&self) -> Option<&io::Error> {
        match self {
            Self::Refused { source, .. }
            | Self::Unreachable { source, .. }
            | Self::Connect { source, .. }
            | Self::Unix { source, .. }
            | Self::Socket { source, .. } => Some(source),
            Self::Resolve(ResolveError::Io(source)) => Some(source),
            Self::Port | Self::Resolve(_) | Self::Private { .. } | Self::Timeout { .. } => None,
        }
    }

    /// The address that the error is about.
    pub fn addr(&self) -> Option<SocketAddr> {
        match self {
            Self::Timeout { addr }
            | Self::Private { addr, .. }
            | Self::Refused { addr, .. }
            | Self::Unreachable { addr, .. }
            | Self::Connect { addr, .. }
            | Self::Socket { addr, .. } => Some(*addr),
            Self::Port | Self::Resolve(_) | Self::Unix { .. } => None,
        }
    }

    fn connect(addr: SocketAddr, source: io::Error) -> Self {
        use io::ErrorKind::{
            AddrNotAvailable, ConnectionRefused, HostUnreachable, NetworkDown, NetworkUnreachable, TimedOut,
        };
        let kind = source.kind();
        if kind == ConnectionRefused {
            Self::Refused { addr, source }
        } else if matches!(kind, NetworkUnreachable | HostUnreachable | NetworkDown | AddrNotAvailable) {
            Self::Unreachable { addr, source }
        } else if kind == TimedOut {
            Self::Timeout { addr }
        } else {
            Self::Connect { addr, source }
        }
    }

    /// Of the errors of several attempts the one with most weight is reported: a family that is not routed here says
    /// nothing about the target, an answer from it much, and our own lack of sockets is what has to be mended.
    fn weight(&self) -> u8 {
        match self {
            Self::Port | Self::Resolve(_) => 0,
            Self::Unreachable { .. } => 1,
            Self::Timeout { .. } => 2,
            Self::Connect { .. } | Self::Unix { .. } => 3,
            Self::Refused { .. } => 4,
            Self::Socket { .. } => 5,
            Self::Private { .. } => 6,
        }
    }
}

/// Opens the connections of one outbound, on one core. Clones share their resolver.
#[derive(Debug, Clone)]
pub struct Dialer {
    family: AddressFamilies,
    egress: Egress,
    fast_open: bool,
    tcp: TcpOptions,
    timeout: Duration,
    resolver: Rc<dyn Resolve>,
}

impl Dialer {
    /// A dialer that has names looked up by `resolver`; [`Dial::dns`] is up to that.
    pub fn new(dial: &Dial, resolver: Rc<dyn Resolve>) -> Self {
        let Dial {
            family,
            egress,
            dns: _,
            fast_open,
            tcp,
            timeout,
            carrier: _,
            unix: _,
            pace: _,
            through: _,
        } = dial;
        let (egress, tcp) = (egress.clone(), *tcp);
        Self { family: *family, egress, fast_open: *fast_open, tcp, timeout: *timeout, resolver }
    }

    /// The families that may be used at present.
    fn family(&self) -> AddressFamilies {
        self.resolver.family(self.family)
    }

    /// A dialer that has names looked up by the system. For what connects rarely.
    pub fn by_system(dial: &Dial) -> Self {
        Self::new(dial, Rc::new(SystemResolver))
    }

    /// Options that were asked for and that the system does not give; to be shown to a person, once.
    pub fn warnings(&self) -> Vec<Warning> {
        let fast_open = if self.fast_open { check_fast_open_client() } else { None };
        let multipath = check_multipath(&self.tcp);
        egress::warnings(&self.egress).into_iter().chain(fast_open).chain(multipath).collect()
    }

    /// [`Dial::timeout`].
    pub fn timeout(&self) -> Duration {
        self.timeout
    }

    /// Connects to `target`, within [`Dial::timeout`] for everything. The connection is tuned ([`tune`]).
    ///
    /// With Fast Open, connecting to an address of which the system has a cookie succeeds at once, and the first
    /// write reports what went wrong. Such an address has been reached before.
    ///
    /// # Errors
    /// [`DialError`]; of several failed attempts the one that tells most.
    pub async fn dial(&self, target: &Target) -> Result<TcpStream, DialError> {
        self.dial_within(target, Reach::Anywhere, rt::now()).await
    }

    /// The same to addresses within `reach` alone: each is looked at when it is about to be connected to. It begins at `since`,
    /// from which the time-out counts.
    ///
    /// # Errors
    /// As [`Self::dial`].
    pub async fn dial_within(
        &self,
        target: &Target,
        reach: Reach,
        since: std::time::Instant,
    ) -> Result<TcpStream, DialError> {
        let answers = match &target.host {
            _ if target.port == 0 => return Err(DialError::Port),
            Host::Ip(ip) if !is_allowed(*ip, self.family()) => return Err(ResolveError::NoAddress.into()),
            Host::Ip(ip) => {
                return self.dial_addrs_within(&[SocketAddr::new(*ip, target.port)], reach, since).await;
            }
            Host::Name(name) => self.resolver.start(name, self.family()),
        };
        let mut attempts = Attempts::new(self, target.port, reach);
        attempts.answers = Some(answers);
        attempts.finish(self.deadline(since)).await
    }

    /// The addresses of `target` that may be used, those of the preferred family first, within [`Dial::timeout`].
    ///
    /// # Errors
    /// [`DialError`], when there are none.
    pub async fn resolve(&self, target: &Target) -> Result<Vec<SocketAddr>, DialError> {
        let ips = match &target.host {
            _ if target.port == 0 => return Err(DialError::Port),
            Host::Ip(ip) if !is_allowed(*ip, self.family()) => Vec::new(),
            Host::Ip(ip) => vec![*ip],
            Host::Name(name) => {
                let found = timeout_at(
                    self.deadline(rt::now()),
                    resolve::lookup(&*self.resolver, name, self.family()),
                )
                .await;
                found.unwrap_or(Err(ResolveError::Timeout))?
            }
        };
        if ips.is_empty() {
            return Err(ResolveError::NoAddress.into());
        }
        Ok(ips.into_iter().map(|ip| SocketAddr::new(ip, target.port)).collect())
    }

    /// Connects to the unix socket at `path`, within [`Dial::timeout`].
    ///
    /// # Errors
    /// [`DialError::Unix`].
    pub async fn dial_unix(&self, path: &Path) -> Result<UnixStream, DialError> {
        let connected = timeout_at(self.deadline(rt::now()), UnixStream::connect(path)).await;
        let connected = connected.unwrap_or_else(|_| Err(io::ErrorKind::TimedOut.into()));
        connected.map_err(|source| DialError::Unix { path: path.to_owned(), source })
    }

    /// Connects to the first of `addrs` that answers, the preferred family first and then in turns, within
    /// [`Dial::timeout`] altogether. Addresses of families that are not to be used are left out.
    ///
    /// # Errors
    /// As [`Self::dial`].
    pub async fn dial_addrs(&self, addrs: &[SocketAddr]) -> Result<TcpStream, DialError> {
        self.dial_addrs_within(addrs, Reach::Anywhere, rt::now()).await
    }

    /// The same to those within `reach` alone, from `since` on.
    ///
    /// # Errors
    /// As [`Self::dial`].
    pub async fn dial_addrs_within(
        &self,
        addrs: &[SocketAddr],
        reach: Reach,
        since: std::time::Instant,
    ) -> Result<TcpStream, DialError> {
        if let [addr] = addrs
            && is_allowed(addr.ip(), self.family())
            && addr.port() != 0
        {
            // Nothing to race: most dials are this one.
            let connected = timeout_at(self.deadline(since), self.connect(*addr, reach)).await;
            return connected.unwrap_or(Err(DialError::Timeout { addr: *addr }));
        }
        let mut attempts = Attempts::new(self, 0, reach);
        attempts.add(addrs.iter().copied().filter(|addr| addr.port() != 0));
        if attempts.is_idle() {
            let port = !addrs.is_empty() && addrs.iter().all(|addr| addr.port() == 0);
            return Err(if port { DialError::Port } else { ResolveError::NoAddress.into() });
        }
        attempts.finish(self.deadline(since)).await
    }

    /// The addresses of a name that [`Self::dial`] would try, within [`Dial::timeout`].
    ///
    /// # Errors
    /// [`ResolveError`].
    pub async fn lookup(&self, name: &str) -> Result<Vec<IpAddr>, ResolveError> {
        let looked_up =
            timeout_at(self.deadline(rt::now()), resolve::lookup(&*self.resolver, name, self.family())).await;
        looked_up.unwrap_or(Err(ResolveError::Timeout))
    }

    fn deadline(&self, since: std::time::Instant) -> Instant {
        let since = Instant::from_std(since);
        since.checked_add(self.timeout).unwrap_or(since + FOREVER)
    }

    async fn connect(&self, addr: SocketAddr, reach: Reach) -> Result<TcpStream, DialError> {
        reach.check(addr.ip()).map_err(|kind| DialError::Private { addr, kind })?;
        let socket = self.socket(addr).map_err(|source| DialError::Socket { addr, source })?;
        let stream = socket.connect(addr).await.map_err(|source| DialError::connect(addr, source))?;
        // On loopback a socket whose own port is the one it dials connects to itself when nobody listens there.
        if addr.ip().is_loopback() && stream.local_addr().is_ok_and(|local| local == addr) {
            return Err(DialError::Refused { addr, source: io::ErrorKind::ConnectionRefused.into() });
        }
        Ok(stream)
    }

    fn socket(&self, addr: SocketAddr) -> io::Result<TcpSocket> {
        let multipath = if self.tcp.multipath { multipath_socket(addr).ok() } else { None };
        let socket = match multipath {
            Some(socket) => TcpSocket::from_std_stream(socket.into()),
            None if addr.is_ipv4() => TcpSocket::new_v4()?,
            None => TcpSocket::new_v6()?,
        };
        tune(&socket, &self.tcp)?;
        unpace_local(&socket, addr.ip()).ok();
        egress::apply(&socket, &self.egress)?;
        egress::bind(&socket, &self.egress, addr.ip())?;
        if self.fast_open
            && let Err(error) = adit_sys::tcp::set_fast_open_connect(&socket, true)
        {
            debug!(%error, "cannot use TCP Fast Open");
        }
        Ok(socket)
    }
}

/// The connection attempts for one target.
struct Attempts<'a> {
    dialer: &'a Dialer,
    port: u16,
    reach: Reach,
    /// Addresses that are still to come.
    answers: Option<Box<dyn Answers>>,
    /// Addresses that have not been tried: of the preferred family, and of the other.
    waiting: [VecDeque<SocketAddr>; 2],
    /// The family whose turn it is, as an index into `waiting`.
    turn: usize,
    running: Race<'a, Result<TcpStream, DialError>>,
    /// Number of addresses taken in so far per family, at most [`MAX_ADDRS`].
    taken: [usize; 2],
    /// When the first addresses came.
    first_answer_at: Option<Instant>,
    last_start: Option<(Instant, SocketAddr)>,
    /// An attempt has failed since the last one was started.
    failed: bool,
    error: Option<DialError>,
}

/// The event that [`Attempts::run`] has waited for.
enum Step {
    Answer(Option<Vec<IpAddr>>),
    Outcome(Result<TcpStream, DialError>),
    Start,
}

impl<'a> Attempts<'a> {
    fn new(dialer: &'a Dialer, port: u16, reach: Reach) -> Self {
        Self {
            dialer,
            port,
            reach,
            answers: None,
            waiting: [VecDeque::new(), VecDeque::new()],
            turn: 0,
            running: Race::new(),
            taken: [0, 0],
            first_answer_at: None,
            last_start: None,
            failed: false,
            error: None,
        }
    }

    async fn finish(mut self, deadline: Instant) -> Result<TcpStream, DialError> {
        if let Ok(result) = timeout_at(deadline, self.run()).await {
            return result;
        }
        // An attempt that was still running might have succeeded: that time ran out is then what there is to say.
        match (self.running.is_empty(), self.error, self.last_start) {
            (true, Some(error), _) => Err(error),
            (_, _, Some((_, addr))) => Err(DialError::Timeout { addr }),
            (_, _, None) => Err(ResolveError::Timeout.into()),
        }
    }

    async fn run(&mut self) -> Result<TcpStream, DialError> {
        while !self.is_idle() {
            match self.step().await {
                Step::Answer(Some(ips)) => {
                    let port = self.port;
                    self.add(ips.into_iter().map(|ip| SocketAddr::new(ip, port)));
                }
                Step::Answer(None) => {
                    let answers = self.answers.take();
                    if self.taken == [0, 0]
                        && let Some(mut answers) = answers
                    {
                        return Err(answers.error().into());
                    }
                }
                Step::Outcome(Ok(stream)) => return Ok(stream),
                Step::Outcome(Err(error)) => self.note(error),
                Step::Start => self.start(),
            }
        }
        Err(self.error.take().unwrap_or(DialError::Resolve(ResolveError::NoAddress)))
    }

    /// Waits for the first event. Dropping the other futures loses nothing: their state is kept in `self`.
    async fn step(&mut self) -> Step {
        let start_at = self.next_start();
        tokio::select! {
            biased;
            Some(outcome) = self.running.next() => Step::Outcome(outcome),
            answer = next_answer(&mut self.answers) => Step::Answer(answer),
            () = reach(start_at) => Step::Start,
        }
    }

    /// When the next attempt is due; `None` while there is no address for one.
    fn next_start(&self) -> Option<Instant> {
        if self.waiting.iter().all(VecDeque::is_empty) {
            return None;
        }
        let at_once = Instant::now();
        match (self.last_start, self.first_answer_at) {
            (Some((last, _)), _) if !self.failed && !self.running.is_empty() => Some(last + ATTEMPT_DELAY),
            (Some(_), _) => Some(at_once),
            // RFC 8305 section 3: the other family waits a little for the preferred one.
            (None, Some(first)) if self.waiting[0].is_empty() && self.answers.is_some() => {
                Some(first + RESOLUTION_DELAY)
            }
            (None, _) => Some(at_once),
        }
    }

    fn start(&mut self) {
        let Some(addr) = self.pop() else { return };
        self.last_start = Some((Instant::now(), addr));
        self.failed = false;
        let (dialer, reach) = (self.dialer, self.reach);
        self.running.push(async move { dialer.connect(addr, reach).await });
    }

    /// The next address, the families in turns as long as both have some (RFC 8305 section 4).
    fn pop(&mut self) -> Option<SocketAddr> {
        let from = if self.waiting[self.turn].is_empty() { 1 - self.turn } else { self.turn };
        let addr = self.waiting[from].pop_front()?;
        self.turn = 1 - from;
        Some(addr)
    }

    fn add(&mut self, addrs: impl Iterator<Item = SocketAddr>) {
        let family = self.dialer.family();
        for addr in addrs.filter(|addr| is_allowed(addr.ip(), family)) {
            let of = usize::from(!is_preferred(addr.ip(), family));
            if self.taken[of] < MAX_ADDRS {
                self.taken[of] += 1;
                self.waiting[of].push_back(addr);
            }
        }
        self.first_answer_at.get_or_insert_with(Instant::now);
    }

    fn note(&mut self, error: DialError) {
        self.failed = true;
        if self.error.as_ref().is_none_or(|known| known.weight() <= error.weight()) {
            self.error = Some(error);
        }
    }

    /// Whether there is nothing left to wait for.
    fn is_idle(&self) -> bool {
        self.answers.is_none() && self.running.is_empty() && self.waiting.iter().all(VecDeque::is_empty)
    }
}

async fn next_answer(answers: &mut Option<Box<dyn Answers>>) -> Option<Vec<IpAddr>> {
    match answers {
        Some(answers) => resolve::next_answer(&mut **answers).await,
        None => pending().await,
    }
}

/// A timer would round what is due already up to its next tick, a millisecond.
async fn reach(at: Option<Instant>) {
    match at {
        Some(at) if at <= Instant::now() => {}
        Some(at) => sleep_until(at).await,
        None => pending().await,
    }
}

#[cfg(test)]
mod tests;
