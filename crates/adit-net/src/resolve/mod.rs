//! Turns names into addresses.
//!
//! Sources, in this order: addresses in text; `localhost` and names under it (RFC 6761 section 6.3); the hosts file;
//! name servers, given ones or the system's. Names with fewer dots than `ndots` of the system's configuration are
//! tried under its search domains and then as they are; others only as they are, so that no query for a missing
//! name leaves for a search domain.

use std::cell::{Cell, RefCell};
use std::error::Error;
use std::fmt;
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use adit_config::model::Family;
use hickory_resolver::proto::rr::{Name, RecordType};
use thiserror::Error;
use tokio::time::Instant;

use crate::race::Race;

use files::{Hosts, ResolvConf, Stamp, stamp};
use servers::Servers;

mod files;
mod servers;

#[cfg(test)]
mod tests;

/// How often the system's files are looked at for changes; Go's resolver does it at the same pace.
const CHECK_FILES_EVERY: Duration = Duration::from_secs(5);

/// Why a name has no address for us. None of these holds the name: the caller knows it, and logs may not show it.
#[derive(Debug, Clone, Error)]
pub enum ResolveError {
    /// No such name.
    #[error("name not found")]
    NotFound,
    /// The name exists, but has no address of a family that may be used.
    #[error("name has no usable address")]
    NoAddress,
    /// No name server has answered in time.
    #[error("name servers did not answer in time")]
    Timeout,
    /// The name servers report a failure; 2 is SERVFAIL, 5 REFUSED (RFC 1035 section 4.1.1).
    #[error("name server reports a failure: code {0}")]
    Server(u16),
    /// The text cannot be a name.
    #[error("not a valid name")]
    BadName,
    /// Name servers cannot be reached.
    #[error("cannot reach a name server")]
    Io(#[source] Arc<io::Error>),
    /// A name server's answer could not be used.
    #[error("name server answered nonsense")]
    Other(#[source] Arc<dyn Error + Send + Sync>),
}

impl ResolveError {
    /// Of several errors for one name, the one that says most about the name is kept: what might have been an
    /// address outweighs what certainly was none.
    fn weight(&self) -> u8 {
        match self {
            Self::BadName => 0,
            Self::NotFound => 1,
            Self::NoAddress => 2,
            Self::Other(_) | Self::Io(_) => 3,
            Self::Server(_) => 4,
            Self::Timeout => 5,
        }
    }
}

/// Resolves names for one core. It holds nothing but its configuration until the first name that needs more.
pub struct Resolver {
    servers: Vec<SocketAddr>,
    resolv_conf: PathBuf,
    hosts: PathBuf,
    state: RefCell<Option<Rc<State>>>,
}

impl Resolver {
    /// Asks these name servers, or the system's if there are none.
    pub fn new(servers: &[SocketAddr]) -> Self {
        Self::with_files(servers, Path::new("/etc/resolv.conf"), Path::new("/etc/hosts"))
    }

    /// The same with other files.
    pub fn with_files(servers: &[SocketAddr], resolv_conf: &Path, hosts: &Path) -> Self {
        let (resolv_conf, hosts) = (resolv_conf.to_owned(), hosts.to_owned());
        Self { servers: servers.into(), resolv_conf, hosts, state: RefCell::new(None) }
    }

    /// All addresses of `name` that `family` allows, the preferred family first; at least one.
    ///
    /// # Errors
    /// [`ResolveError`].
    pub async fn lookup(&self, name: &str, family: Family) -> Result<Vec<IpAddr>, ResolveError> {
        let mut answers = self.start(name, family);
        let mut all = Vec::new();
        while let Some(ips) = answers.next().await {
            all.extend(ips);
        }
        if all.is_empty() {
            return Err(answers.into_error());
        }
        all.sort_by_key(|ip| !is_preferred(*ip, family));
        Ok(all)
    }

    /// Starts to resolve `name`; both families are asked for at once, and each answer can be had when it arrives.
    pub fn start(&self, name: &str, family: Family) -> Answers {
        if let Ok(ip) = name.parse::<IpAddr>() {
            return Answers::known(&[ip.to_canonical()], family);
        }
        if is_localhost(name) {
            return Answers::known(&[Ipv6Addr::LOCALHOST.into(), Ipv4Addr::LOCALHOST.into()], family);
        }
        let state = match self.state() {
            Ok(state) => state,
            Err(error) => return Answers::failed(error),
        };
        if let Some(ips) = state.hosts.find(name) {
            return Answers::known(ips, family);
        }
        match state.candidates(name) {
            Ok(candidates) => Answers::asked(state, candidates, family),
            Err(error) => Answers::failed(error),
        }
    }

    fn state(&self) -> Result<Rc<State>, ResolveError> {
        let mut slot = self.state.borrow_mut();
        if let Some(state) = slot.as_ref().filter(|state| !state.is_stale(self)) {
            return Ok(Rc::clone(state));
        }
        let state = Rc::new(State::read(self)?);
        *slot = Some(Rc::clone(&state));
        Ok(state)
    }

    fn stamps(&self) -> [Stamp; 2] {
        // Given name servers replace the whole of resolv.conf.
        [if self.servers.is_empty() { stamp(&self.resolv_conf) } else { None }, stamp(&self.hosts)]
    }
}

impl fmt::Debug for Resolver {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Resolver").field("servers", &self.servers).finish_non_exhaustive()
    }
}

/// What is built when the first name comes.
struct State {
    hosts: Hosts,
    servers: Servers,
    search: Vec<Name>,
    ndots: usize,
    stamps: [Stamp; 2],
    checked: Cell<Instant>,
}

impl State {
    fn read(resolver: &Resolver) -> Result<Self, ResolveError> {
        let stamps = resolver.stamps();
        let conf = if resolver.servers.is_empty() {
            ResolvConf::read(&resolver.resolv_conf)
        } else {
            ResolvConf { servers: resolver.servers.clone(), search: Vec::new(), ndots: 1 }
        };
        Ok(Self {
            hosts: Hosts::read(&resolver.hosts),
            servers: Servers::new(&conf.servers)?,
            search: conf.search.iter().filter_map(|domain| absolute(domain).ok()).collect(),
            ndots: conf.ndots,
            stamps,
            checked: Cell::new(Instant::now()),
        })
    }

    fn is_stale(&self, resolver: &Resolver) -> bool {
        if self.checked.get().elapsed() < CHECK_FILES_EVERY {
            return false;
        }
        self.checked.set(Instant::now());
        self.stamps != resolver.stamps()
    }

    /// The absolute names to ask for, in order.
    fn candidates(&self, name: &str) -> Result<Vec<Name>, ResolveError> {
        let last = absolute(name)?;
        let mut names = Vec::new();
        if name.matches('.').count() < self.ndots {
            let relative = parse(name)?;
            names.extend(self.search.iter().filter_map(|domain| relative.clone().append_domain(domain).ok()));
        }
        names.push(last);
        Ok(names)
    }
}

/// The answers for one name, as they arrive.
pub struct Answers {
    state: Option<Rc<State>>,
    kinds: &'static [RecordType],
    /// Names that have not been asked for, the next one last.
    candidates: Vec<Name>,
    pending: Race<'static, Result<Vec<IpAddr>, ResolveError>>,
    ready: Vec<IpAddr>,
    found: bool,
    error: Option<ResolveError>,
}

impl Answers {
    /// The next addresses, never none of them: all of one family, or of both where no server had to be asked. `None`
    /// when there will be no more. Cancelling this loses nothing.
    pub async fn next(&mut self) -> Option<Vec<IpAddr>> {
        loop {
            if !self.ready.is_empty() {
                self.found = true;
                return Some(std::mem::take(&mut self.ready));
            }
            if self.pending.is_empty() && (self.found || !self.ask_next()) {
                return None;
            }
            match self.pending.next().await {
                Some(Ok(ips)) => self.ready = ips,
                Some(Err(error)) => self.note(error),
                None => {}
            }
        }
    }

    /// Why there was no address, after [`Self::next`] has never given one.
    pub fn into_error(self) -> ResolveError {
        self.error.unwrap_or(ResolveError::NoAddress)
    }

    fn known(ips: &[IpAddr], family: Family) -> Self {
        let mut ready: Vec<IpAddr> = ips.iter().copied().filter(|ip| is_allowed(*ip, family)).collect();
        ready.sort_by_key(|ip| !is_preferred(*ip, family));
        Self { ready, ..Self::empty() }
    }

    fn failed(error: ResolveError) -> Self {
        Self { error: Some(error), ..Self::empty() }
    }

    fn asked(state: Rc<State>, mut candidates: Vec<Name>, family: Family) -> Self {
        candidates.reverse();
        let kinds: &[RecordType] = match family {
            // RFC 8305 section 3: AAAA first, and A right behind it.
            Family::Any => &[RecordType::AAAA, RecordType::A],
            Family::PreferV4 => &[RecordType::A, RecordType::AAAA],
            Family::V4Only => &[RecordType::A],
            Family::V6Only => &[RecordType::AAAA],
        };
        Self { state: Some(state), kinds, candidates, ..Self::empty() }
    }

    fn empty() -> Self {
        Self {
            state: None,
            kinds: &[],
            candidates: Vec::new(),
            pending: Race::new(),
            ready: Vec::new(),
            found: false,
            error: None,
        }
    }

    /// Asks for the next candidate and says whether there was one.
    fn ask_next(&mut self) -> bool {
        let (Some(state), Some(name)) = (&self.state, self.candidates.pop()) else { return false };
        for kind in self.kinds {
            let (state, name) = (Rc::clone(state), name.clone());
            self.pending.push(async move { state.servers.query(name, *kind).await });
        }
        true
    }

    fn note(&mut self, error: ResolveError) {
        if self.error.as_ref().is_none_or(|known| known.weight() < error.weight()) {
            self.error = Some(error);
        }
    }
}

impl fmt::Debug for Answers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Answers").field("found", &self.found).finish_non_exhaustive()
    }
}

/// Whether addresses of this kind come first under `family`.
pub(crate) fn is_preferred(ip: IpAddr, family: Family) -> bool {
    match family {
        Family::Any | Family::V6Only => ip.is_ipv6(),
        Family::PreferV4 | Family::V4Only => ip.is_ipv4(),
    }
}

/// Whether `family` lets this address be used.
pub(crate) fn is_allowed(ip: IpAddr, family: Family) -> bool {
    match family {
        Family::Any | Family::PreferV4 => true,
        Family::V4Only => ip.is_ipv4(),
        Family::V6Only => ip.is_ipv6(),
    }
}

fn is_localhost(name: &str) -> bool {
    let last = name.rsplit('.').next().unwrap_or_default();
    last.eq_ignore_ascii_case("localhost")
}

fn absolute(text: &str) -> Result<Name, ResolveError> {
    let mut name = parse(text)?;
    name.set_fqdn(true);
    Ok(name)
}

fn parse(text: &str) -> Result<Name, ResolveError> {
    // A backslash starts an escape in zone files; a name from a proxy request has no business with it.
    if text.is_empty() || text.contains('\\') {
        return Err(ResolveError::BadName);
    }
    let name = if text.is_ascii() { Name::from_ascii(text) } else { Name::from_utf8(text) };
    name.map_err(|_| ResolveError::BadName)
}
