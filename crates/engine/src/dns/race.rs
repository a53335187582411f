//! A list of name servers, asked in order but without waiting long for a silent one.

use std::rc::Rc;
use std::time::{Duration, Instant};

use adit_net::race::Race;
use adit_net::resolve::ResolveError;
use adit_net::rt;
use hickory_proto::rr::{Name, RecordType};

use super::message::DnsAnswer;
use super::shared::List;
use super::{Dns, exchange};

/// Time that a server may take before the next one is asked too. Longer than most answers that a server has to fetch
/// first, so that lists in which only the first server knows the internal names work.
const PATIENCE: Duration = Duration::from_secs(1);

/// Time that a later server stays in front once it was quicker than the one before it.
const DEMOTED_FOR: Duration = Duration::from_secs(30);

/// Time for one server, retransmissions and TCP after a truncated answer included.
const SERVER_TIMEOUT: Duration = Duration::from_secs(5);

/// The answer of the first server of `list` that has one. That there is no record is an answer too; a server that fails
/// is passed over.
pub(super) async fn ask(
    dns: &Rc<Dns>,
    list: &List,
    name: &Name,
    kind: RecordType,
) -> Result<DnsAnswer, ResolveError> {
    let (list, servers) = (list.number, dns.shared.present(&list.servers, rt::now()));
    let first = dns.first_of(list).filter(|first| *first < servers.len()).unwrap_or(0);
    let mut order = std::iter::once(first).chain((0..servers.len()).filter(|at| *at != first));
    let ask = |at: usize| {
        let upstream = servers[at].clone();
        async move {
            let exchange = Box::pin(exchange::ask(dns, &upstream, name, kind));
            (at, rt::timeout(SERVER_TIMEOUT, exchange).await.unwrap_or(Err(ResolveError::Timeout)))
        }
    };
    let (mut race, mut failure) = (Race::new(), None);
    let mut left = servers.len();
    loop {
        if race.is_empty() {
            let Some(at) = order.next() else { return Err(failure.unwrap_or(ResolveError::Timeout)) };
            race.push(ask(at));
            left -= 1;
        }
        let result = if left == 0 {
            race.next().await
        } else if let Ok(result) = rt::timeout(PATIENCE, race.next()).await {
            result
        } else {
            if let Some(at) = order.next() {
                race.push(ask(at));
                left -= 1;
            }
            continue;
        };
        match result {
            Some((at, Ok(answer))) => {
                dns.prefer(list, at);
                return Ok(answer);
            }
            Some((at, Err(error))) => {
                tracing::debug!(server = &*servers[at].name, %error, "name server");
                failure = Some(error);
            }
            None => {}
        }
    }
}

impl Dns {
    fn first_of(&self, list: u32) -> Option<usize> {
        let preferred = self.preferred.borrow();
        let (at, since) = preferred.get(&list)?;
        (rt::now().saturating_duration_since(*since) < DEMOTED_FOR).then_some(*at)
    }

    /// A server has answered. The first one of the list is in front again as soon as it is the quicker one.
    fn prefer(&self, list: u32, at: usize) {
        let now: Instant = rt::now();
        let current = self.first_of(list);
        let mut preferred = self.preferred.borrow_mut();
        if at == 0 {
            preferred.remove(&list);
        } else if current != Some(at) {
            preferred.insert(list, (at, now));
        }
    }
}
