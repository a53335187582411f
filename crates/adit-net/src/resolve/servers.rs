//! A list of name servers, asked in order but without waiting long for a silent one.

use std::cell::Cell;
use std::error::Error;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use hickory_resolver::TokioResolver;
use hickory_resolver::config::{ConnectionConfig, NameServerConfig, ResolveHosts, ResolverConfig};
use hickory_resolver::net::runtime::TokioRuntimeProvider;
use hickory_resolver::net::{DnsError, NetError};
use hickory_resolver::proto::op::ResponseCode;
use hickory_resolver::proto::rr::{Name, RecordType};
use tokio::time::{Instant, timeout};

use super::ResolveError;
use crate::race::Race;

/// How long a server may take before the next one is asked too. Longer than most answers that a server has to fetch
/// first, so that lists in which only the first server knows the internal names work.
const PATIENCE: Duration = Duration::from_secs(1);

/// How long a later server stays in front once it was quicker than the one before it.
const DEMOTED_FOR: Duration = Duration::from_secs(30);

/// Time for one server, retransmissions and TCP after a truncated answer included.
const SERVER_TIMEOUT: Duration = Duration::from_secs(5);

/// Answers kept per server; one is about half a kibibyte.
const CACHE_ENTRIES: u64 = 1024;

/// Longest time that a missing name is remembered. RFC 2308 section 5 allows hours; a name that has just been created
/// should not take that long to be seen by a proxy.
const MAX_NEGATIVE_TTL: Duration = Duration::from_secs(300);

/// One hickory resolver per server: its own choice among several either asks two at once, or, told to ask one at a
/// time, spends the whole time on a silent first one.
pub(super) struct Servers {
    each: Vec<TokioResolver>,
    /// The server to ask first, if not the first of the list, and since when.
    preferred: Cell<Option<(usize, Instant)>>,
}

impl Servers {
    pub(super) fn new(addrs: &[SocketAddr]) -> Result<Self, ResolveError> {
        let each = addrs.iter().map(|addr| build(*addr)).collect::<Result<_, _>>()?;
        Ok(Self { each, preferred: Cell::new(None) })
    }

    /// Addresses of one type, from the first server that answers. An answer that there are none is an answer too,
    /// and an error here; a server that reports a failure of its own is passed over.
    pub(super) async fn query(&self, name: Name, kind: RecordType) -> Result<Vec<IpAddr>, ResolveError> {
        let mut order = self.order().into_iter();
        let mut race = Race::new();
        let mut failure = None;
        loop {
            if race.is_empty() {
                let Some(server) = order.next() else {
                    return Err(failure.unwrap_or(ResolveError::Timeout));
                };
                race.push(self.ask(server, name.clone(), kind));
            }
            let result = if order.len() == 0 {
                race.next().await
            } else {
                match timeout(PATIENCE, race.next()).await {
                    Ok(result) => result,
                    Err(_) => {
                        order.next().into_iter().for_each(|at| race.push(self.ask(at, name.clone(), kind)));
                        continue;
                    }
                }
            };
            match result {
                Some((server, Ok(ips))) => {
                    self.prefer(server);
                    return Ok(ips);
                }
                Some((server, Err(error @ (ResolveError::NotFound | ResolveError::NoAddress)))) => {
                    self.prefer(server);
                    return Err(error);
                }
                Some((_, Err(error))) => failure = Some(error),
                None => {}
            }
        }
    }

    async fn ask(
        &self,
        server: usize,
        name: Name,
        kind: RecordType,
    ) -> (usize, Result<Vec<IpAddr>, ResolveError>) {
        let result = match self.each[server].lookup(name, kind).await {
            Ok(answer) => {
                // An AAAA record with an IPv4-mapped address would get around a choice of family.
                let plain = |ip: &IpAddr| ip.to_canonical() == *ip;
                let ips = answer.answers().iter().filter_map(|record| record.data.ip_addr());
                let ips: Vec<IpAddr> = ips.filter(plain).collect();
                if ips.is_empty() { Err(ResolveError::NoAddress) } else { Ok(ips) }
            }
            Err(error) => Err(translate(error)),
        };
        (server, result)
    }

    fn order(&self) -> Vec<usize> {
        let preferred = self.preferred.get().filter(|(_, since)| since.elapsed() < DEMOTED_FOR);
        let first = preferred.map_or(0, |(server, _)| server);
        std::iter::once(first).chain((0..self.each.len()).filter(|server| *server != first)).collect()
    }

    fn prefer(&self, server: usize) {
        let current = self.preferred.get();
        if server == 0 {
            self.preferred.set(None);
        } else if current.is_none_or(|(at, since)| at != server || since.elapsed() >= DEMOTED_FOR) {
            self.preferred.set(Some((server, Instant::now())));
        }
    }
}

fn build(addr: SocketAddr) -> Result<TokioResolver, ResolveError> {
    let connections = [ConnectionConfig::udp(), ConnectionConfig::tcp()].map(|mut connection| {
        connection.port = addr.port();
        connection
    });
    let server = NameServerConfig::new(addr.ip(), true, connections.into());
    let config = ResolverConfig::from_parts(None, Vec::new(), vec![server]);
    let mut builder = TokioResolver::builder_with_config(config, TokioRuntimeProvider::default());
    let options = builder.options_mut();
    options.timeout = SERVER_TIMEOUT;
    options.attempts = 0;
    options.edns0 = true;
    options.cache_size = CACHE_ENTRIES;
    options.negative_max_ttl = Some(MAX_NEGATIVE_TTL);
    options.use_hosts_file = ResolveHosts::Never;
    builder.build().map_err(translate)
}

#[allow(clippy::wildcard_enum_match_arm, reason = "the rest of a foreign, growing enum is one case")]
fn translate(error: NetError) -> ResolveError {
    match error {
        NetError::Timeout => ResolveError::Timeout,
        NetError::Dns(DnsError::NoRecordsFound(none)) => match none.response_code {
            ResponseCode::NXDomain => ResolveError::NotFound,
            ResponseCode::NoError => ResolveError::NoAddress,
            code => ResolveError::Server(code.into()),
        },
        NetError::Dns(DnsError::ResponseCode(code)) => ResolveError::Server(code.into()),
        NetError::Io(error) if error.kind() == io::ErrorKind::TimedOut => ResolveError::Timeout,
        NetError::Io(error) => ResolveError::Io(error),
        error => {
            let error: Arc<dyn Error + Send + Sync> = Arc::new(error);
            ResolveError::Other(error)
        }
    }
}
