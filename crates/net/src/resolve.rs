//! The interface by which dialling code asks for names. The service that answers is elsewhere; see [`Resolve`].

use std::error::Error;
use std::fmt;
use std::future::poll_fn;
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, ToSocketAddrs as _};
use std::sync::Arc;
use std::task::{Context, Poll};

use adit_model::AddressFamilies;
use thiserror::Error;

use crate::race::Race;

/// Why a name has no address that may be used. No variant holds the name: logs may not show it.
#[derive(Debug, Clone, Error)]
pub enum ResolveError {
    /// The name does not exist.
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
    /// The text is not a domain name.
    #[error("not a valid name")]
    BadName,
    /// Too many names are being asked for at this moment.
    #[error("too many names are being asked for")]
    Busy,
    /// Name servers cannot be reached.
    #[error("cannot reach a name server")]
    Io(#[source] Arc<io::Error>),
    /// The answer of a name server could not be used.
    #[error("unusable answer of a name server")]
    Other(#[source] Arc<dyn Error + Send + Sync>),
}

impl From<io::Error> for ResolveError {
    fn from(error: io::Error) -> Self {
        if error.kind() == io::ErrorKind::TimedOut { Self::Timeout } else { Self::Io(Arc::new(error)) }
    }
}

impl ResolveError {
    /// The weight of an error about a name; of several errors the heaviest is reported. A failure, behind which there
    /// may be an address, outweighs the certainty that there is none.
    pub fn weight(&self) -> u8 {
        match self {
            Self::BadName => 0,
            Self::NotFound => 1,
            Self::NoAddress => 2,
            Self::Other(_) | Self::Io(_) | Self::Busy => 3,
            Self::Server(_) => 4,
            Self::Timeout => 5,
        }
    }
}

/// Finds the addresses of names, on one event loop.
pub trait Resolve: fmt::Debug {
    /// Starts to look `name` up. Both families are asked for at once where `family` allows both.
    fn start(&self, name: &str, family: AddressFamilies) -> Box<dyn Answers>;

    /// The family at present of a dialer whose `own` one may leave it open ([`AddressFamilies::Any`]).
    fn family(&self, own: AddressFamilies) -> AddressFamilies {
        own
    }
}

/// The answers for one name, as they arrive.
pub trait Answers {
    /// The next addresses, at least one; `None` when there will be no more.
    fn poll_next(&mut self, cx: &mut Context<'_>) -> Poll<Option<Vec<IpAddr>>>;

    /// Why there was no address, after [`Answers::poll_next`] has never given one.
    fn error(&mut self) -> ResolveError;
}

/// The next addresses of `answers`. Cancelling this loses nothing.
pub async fn next_answer(answers: &mut dyn Answers) -> Option<Vec<IpAddr>> {
    poll_fn(|cx| answers.poll_next(cx)).await
}

/// All addresses of `name` that `family` allows, the preferred family first; at least one.
///
/// # Errors
/// [`ResolveError`].
pub async fn lookup(
    resolver: &dyn Resolve,
    name: &str,
    family: AddressFamilies,
) -> Result<Vec<IpAddr>, ResolveError> {
    let mut answers = resolver.start(name, family);
    let mut all = Vec::new();
    while let Some(ips) = next_answer(&mut *answers).await {
        all.extend(ips);
    }
    if all.is_empty() {
        return Err(answers.error());
    }
    all.sort_by_key(|ip| !is_preferred(*ip, family));
    Ok(all)
}

/// Answers that are known already, or that will never come.
pub struct KnownAnswers(Result<Vec<IpAddr>, ResolveError>);

impl fmt::Debug for KnownAnswers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Known").finish_non_exhaustive()
    }
}

impl KnownAnswers {
    /// Those of `ips` that `family` allows, the preferred family first.
    pub fn new(ips: &[IpAddr], family: AddressFamilies) -> Self {
        let mut ips: Vec<IpAddr> = ips.iter().copied().filter(|ip| is_allowed(*ip, family)).collect();
        ips.sort_by_key(|ip| !is_preferred(*ip, family));
        Self(Ok(ips))
    }

    /// No answer, for this reason.
    pub fn failed(error: ResolveError) -> Self {
        Self(Err(error))
    }
}

impl Answers for KnownAnswers {
    fn poll_next(&mut self, _: &mut Context<'_>) -> Poll<Option<Vec<IpAddr>>> {
        let ips = self.0.as_mut().map(std::mem::take).unwrap_or_default();
        Poll::Ready(if ips.is_empty() { None } else { Some(ips) })
    }

    fn error(&mut self) -> ResolveError {
        std::mem::replace(&mut self.0, Ok(Vec::new())).err().unwrap_or(ResolveError::NoAddress)
    }
}

/// Names that need no name server: an address in text, and `localhost` with all names under it (RFC 6761 section 6.3).
pub fn literal(name: &str) -> Option<Vec<IpAddr>> {
    if let Ok(ip) = name.parse::<IpAddr>() {
        return Some(vec![ip.to_canonical()]);
    }
    let last = name.strip_suffix('.').unwrap_or(name).rsplit('.').next().unwrap_or_default();
    let is_local = last.eq_ignore_ascii_case("localhost");
    is_local.then(|| vec![Ipv6Addr::LOCALHOST.into(), Ipv4Addr::LOCALHOST.into()])
}

/// The system's own resolver (getaddrinfo), on a thread of its own. It keeps nothing: for what is asked for rarely.
#[derive(Debug, Clone, Copy, Default)]
pub struct SystemResolver;

impl Resolve for SystemResolver {
    fn start(&self, name: &str, family: AddressFamilies) -> Box<dyn Answers> {
        if let Some(ips) = literal(name) {
            return Box::new(KnownAnswers::new(&ips, family));
        }
        let name = name.to_owned();
        let mut asked = Race::new();
        asked.push(async move {
            let found = tokio::task::spawn_blocking(move || (name, 0).to_socket_addrs().map(Vec::from_iter));
            let found = found.await.unwrap_or_else(|_| Err(io::Error::other("the look-up was stopped")));
            found.map(|addrs| addrs.iter().map(|addr| addr.ip()).collect::<Vec<IpAddr>>())
        });
        Box::new(FromSystem { asked, family, error: None })
    }
}

struct FromSystem {
    asked: Race<'static, io::Result<Vec<IpAddr>>>,
    family: AddressFamilies,
    error: Option<ResolveError>,
}

impl Answers for FromSystem {
    fn poll_next(&mut self, cx: &mut Context<'_>) -> Poll<Option<Vec<IpAddr>>> {
        self.asked.poll_next(cx).map(|found| match found? {
            Ok(ips) => {
                let mut known = KnownAnswers::new(&ips, self.family);
                known.0.as_mut().ok().map(std::mem::take).filter(|ips| !ips.is_empty())
            }
            Err(error) => {
                self.error = Some(error.into());
                None
            }
        })
    }

    fn error(&mut self) -> ResolveError {
        self.error.take().unwrap_or(ResolveError::NoAddress)
    }
}

/// Whether addresses of this kind come first under `family`.
pub fn is_preferred(ip: IpAddr, family: AddressFamilies) -> bool {
    match family {
        AddressFamilies::Any | AddressFamilies::V6Only => ip.is_ipv6(),
        AddressFamilies::PreferV4 | AddressFamilies::V4Only => ip.is_ipv4(),
    }
}

/// Whether `family` lets this address be used.
pub fn is_allowed(ip: IpAddr, family: AddressFamilies) -> bool {
    match family {
        AddressFamilies::Any | AddressFamilies::PreferV4 => true,
        AddressFamilies::V4Only => ip.is_ipv4(),
        AddressFamilies::V6Only => ip.is_ipv6(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(flavor = "local")]
    async fn addresses_and_localhost_are_known() {
        let texts = async |name: &str, family| {
            let found = lookup(&SystemResolver, name, family).await.unwrap();
            found.iter().map(IpAddr::to_string).collect::<Vec<_>>()
        };
        assert_eq!(texts("192.0.2.1", AddressFamilies::Any).await, ["192.0.2.1"]);
        assert_eq!(texts("::ffff:192.0.2.1", AddressFamilies::V4Only).await, ["192.0.2.1"]);
        assert_eq!(texts("localhost", AddressFamilies::Any).await, ["::1", "127.0.0.1"]);
        assert_eq!(texts("a.LocalHost.", AddressFamilies::PreferV4).await, ["127.0.0.1", "::1"]);
        assert_eq!(texts("localhost", AddressFamilies::V6Only).await, ["::1"]);
        let none = lookup(&SystemResolver, "192.0.2.1", AddressFamilies::V6Only).await;
        assert!(matches!(none, Err(ResolveError::NoAddress)));
    }
}
