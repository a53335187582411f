//! Answers the questions of clients, as one port is configured: at once where nobody has to be asked.
//!
//! ```text
//!   question ─→ usual form? ─→ browser's test, PTR of the pool, hosts, direct policy, fake ─→ short answer
//!                  │ no                                 │ none of them
//!                  └───────────────→ library ──────────┴─→ list of servers: port's, policy's, or by the rules
//! ```

use std::net::IpAddr;
use std::pin::Pin;
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::time::Instant;

use adit_model::{Dial, DnsInbound};
use adit_net::rt;

use super::fake::Fake;
use super::question::{
    self, AAAA, DnsQuestion, HTTPS, NO_ERROR, NX_DOMAIN, PTR, Read, SERV_FAIL, SVCB, ShortQuestion,
    reverse_address,
};
use super::shared::List;
use super::{Dns, Scope};
use crate::admission::CrowdPlace;

/// The name by which browsers ask whether they are to use their own name servers.
const BROWSERS: &str = "use-application-dns.net";

/// Tells which names are reached without a proxy.
pub(crate) trait DirectNames {
    /// Whether `name` takes the direct route; `None` if that depends on its addresses, which are not given.
    fn is_direct(&self, name: &str, addresses: Option<&[IpAddr]>) -> Option<bool>;
}

/// One port that answers questions, on one core.
pub(crate) struct Answerer {
    pub(super) scope: Scope,
    /// Fake addresses, where this port answers with them.
    fake: Option<Arc<Fake>>,
    pub(super) ipv6: bool,
    /// The servers that names of the direct route are asked for, with the rules.
    pub(super) direct: Option<(Arc<List>, Rc<dyn DirectNames>)>,
}

/// A question that is being asked.
pub(crate) type Asking = Pin<Box<dyn Future<Output = Option<Vec<u8>>>>>;

/// The part of an answer that is known at once.
pub(crate) enum FastAnswer {
    /// It is no question: nothing is answered.
    Nothing,
    /// The answer has been written.
    Written,
    /// Somebody has to be asked; the longest answer over UDP in bytes.
    Ask(usize),
}

impl Answerer {
    /// A port of this configuration; `ways` tells which names are direct.
    pub(crate) fn new(dns: &Rc<Dns>, config: &DnsInbound, ways: Rc<dyn DirectNames>) -> Self {
        let mut scope = dns.scope(&Dial::default());
        if !config.upstreams.is_empty() {
            scope.list = Some(dns.shared.list_of_upstreams(config.upstreams.as_slice().into()));
        }
        let direct = (!config.direct.is_empty())
            .then(|| (dns.shared.list_of_upstreams(config.direct.as_slice().into()), ways));
        let fake = dns.shared.fake.clone().filter(|_| config.fake);
        Self { scope, fake, ipv6: config.ipv6, direct }
    }

    /// A port that asks the servers of `scope` for everything.
    pub(crate) fn plain(scope: Scope) -> Self {
        Self { scope, fake: None, ipv6: true, direct: None }
    }

    /// The same, with fake addresses if there are any.
    pub(crate) fn own(scope: Scope, ipv6: bool) -> Self {
        let fake = scope.dns.shared.fake.clone();
        Self { scope, fake, ipv6, direct: None }
    }

    /// The answer to a message of `client` over a stream or in a datagram; `None` where there is nothing to be answered.
    pub(crate) async fn reply(&self, client: IpAddr, message: &[u8], is_stream: bool) -> Option<Vec<u8>> {
        let mut out = Vec::new();
        match self.answer(message, rt::now(), &mut out) {
            FastAnswer::Nothing => None,
            FastAnswer::Written => Some(out),
            FastAnswer::Ask(max) => {
                let max = if is_stream { usize::from(u16::MAX) } else { max };
                Box::pin(self.query_from(client, message, max)).await
            }
        }
    }

    /// Writes the answer to a message behind what is in `out`, if nobody has to be asked for it.
    pub(crate) fn answer(&self, message: &[u8], now: Instant, out: &mut Vec<u8>) -> FastAnswer {
        match question::read(message) {
            Read::Nothing => FastAnswer::Nothing,
            Read::Refused(code, end) => {
                question::write_refusal(out, message, code, end);
                FastAnswer::Written
            }
            Read::Other => FastAnswer::Ask(512),
            Read::Asked(asked) => match self.answer_question(message, &asked, now, out) {
                true => FastAnswer::Written,
                false => FastAnswer::Ask(asked.max_udp()),
            },
        }
    }

    /// Asks the question of a client: the answer, if the cache knows it.
    pub(crate) fn begin(
        self: &Rc<Self>,
        client: IpAddr,
        message: &[u8],
        max: usize,
    ) -> Result<Option<Vec<u8>>, Asking> {
        let (answerer, message) = (self.clone(), message.to_vec());
        let asking = async move { answerer.query_from(client, &message, max).await };
        let mut asking: Asking = Box::pin(asking);
        match asking.as_mut().poll(&mut Context::from_waker(Waker::noop())) {
            Poll::Ready(answer) => Ok(answer),
            Poll::Pending => Err(asking),
        }
    }

    /// The answer that `asking` gives, or one that says that there is none once the question has had to make room.
    pub(crate) async fn wait(place: CrowdPlace, asking: Asking, message: &[u8]) -> Option<Vec<u8>> {
        match place.unless_out(asking).await {
            Some(answer) => answer,
            None => {
                let mut out = Vec::new();
                Self::write_failure(message, &mut out).then_some(out)
            }
        }
    }

    /// Writes that a question cannot be answered at this time.
    pub(crate) fn write_failure(message: &[u8], out: &mut Vec<u8>) -> bool {
        let Read::Asked(asked) = question::read(message) else { return false };
        question::write(out, message, &asked, &ShortQuestion::None(SERV_FAIL), 0);
        true
    }

    fn answer_question(&self, message: &[u8], asked: &DnsQuestion, now: Instant, out: &mut Vec<u8>) -> bool {
        let Some(name) = asked.name.text() else { return false };
        let dns = &self.scope.dns;
        let mut reply =
            |short: &ShortQuestion<'_>, ttl: u32| question::write(out, message, asked, short, ttl);
        if dns.settings().config.disable_browser_doh && name == BROWSERS {
            reply(&ShortQuestion::None(NX_DOMAIN), 0);
            return true;
        }
        if asked.kind == AAAA && !self.ipv6 {
            reply(&ShortQuestion::None(NO_ERROR), 0);
            return true;
        }
        // An address of the pool says nothing to other name servers, on any port.
        if asked.kind == PTR
            && let Some(fake) = &dns.shared.fake
            && let Some(ip) = reverse_address(name).filter(|ip| fake.holds(*ip))
        {
            match fake.name_of(ip) {
                Some(name) => reply(&ShortQuestion::Name(&name), fake.ttl()),
                None => reply(&ShortQuestion::None(NX_DOMAIN), 0),
            }
            return true;
        }
        let Some(fake) = &self.fake else { return false };
        let settings = dns.settings();
        let name = settings.hosts.last_alias(name).unwrap_or(name);
        if !matches!(asked.kind, question::A | AAAA | HTTPS | SVCB)
            || !fake.is_faked(name)
            || dns.is_fixed(name, now)
            || dns.settings().is_direct(name)
        {
            return false;
        }
        let short = match asked.kind {
            // Addresses in them would lead past the pool.
            HTTPS | SVCB => ShortQuestion::None(NO_ERROR),
            kind => match fake.number(name) {
                None => ShortQuestion::None(SERV_FAIL),
                Some(number) if kind == AAAA => {
                    fake.v6(number).map_or(ShortQuestion::None(NO_ERROR), ShortQuestion::V6)
                }
                Some(number) => ShortQuestion::V4(fake.v4(number)),
            },
        };
        reply(&short, fake.ttl());
        true
    }
}
