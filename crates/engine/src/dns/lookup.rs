//! The answers for one name, as they arrive.

use std::collections::VecDeque;
use std::net::IpAddr;
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Context, Poll};

use adit_model::AddressFamilies;
use adit_net::resolve::{Answers, ResolveError};
use adit_net::rt;
use hickory_proto::rr::RecordType;

use super::Dns;
use super::cache::QueryOutcome;
use super::message::Body;
use super::shared::{Begins, Flight, List};

/// A name that a name may stand for, with the servers that are asked for it.
pub(super) type Candidate = (Box<str>, Arc<List>);

/// A look-up by one caller.
pub(super) struct Lookup {
    dns: Rc<Dns>,
    kinds: &'static [RecordType],
    /// Names that have not been asked for, each with its list.
    candidates: VecDeque<Candidate>,
    known: VecDeque<QueryOutcome>,
    waiting: Vec<Arc<Flight>>,
    found: bool,
    error: Option<ResolveError>,
}

impl Lookup {
    pub(super) fn new(dns: Rc<Dns>, candidates: Vec<Candidate>, family: AddressFamilies) -> Self {
        let kinds: &[RecordType] = match family {
            // RFC 8305 section 3: AAAA first, and A right behind it.
            AddressFamilies::Any => &[RecordType::AAAA, RecordType::A],
            AddressFamilies::PreferV4 => &[RecordType::A, RecordType::AAAA],
            AddressFamilies::V4Only => &[RecordType::A],
            AddressFamilies::V6Only => &[RecordType::AAAA],
        };
        let (candidates, known, waiting) = (candidates.into(), VecDeque::new(), Vec::new());
        let mut lookup = Self { dns, kinds, candidates, known, waiting, found: false, error: None };
        lookup.ask_next();
        lookup
    }

    /// Asks for the next candidate and says whether there was one.
    fn ask_next(&mut self) -> bool {
        let Some((name, list)) = self.candidates.pop_front() else { return false };
        for kind in self.kinds {
            match self.dns.begin(&name, &list, *kind, rt::now()) {
                Begins::Known(hit) => self.known.push_back(hit.outcome),
                Begins::Wait(flight) => self.waiting.push(flight),
            }
        }
        true
    }

    fn poll_outcome(&mut self, cx: &mut Context<'_>) -> Option<QueryOutcome> {
        if let Some(outcome) = self.known.pop_front() {
            return Some(outcome);
        }
        for at in 0..self.waiting.len() {
            if let Some(outcome) = self.waiting[at].poll(Some(cx.waker())) {
                self.waiting.remove(at);
                return Some(outcome);
            }
        }
        None
    }

    fn note(&mut self, error: ResolveError) {
        if self.error.as_ref().is_none_or(|known| known.weight() < error.weight()) {
            self.error = Some(error);
        }
    }
}

impl Answers for Lookup {
    fn poll_next(&mut self, cx: &mut Context<'_>) -> Poll<Option<Vec<IpAddr>>> {
        loop {
            match self.poll_outcome(cx) {
                Some(Ok(Body::Addresses(ips))) => {
                    self.found = true;
                    return Poll::Ready(Some(ips.to_vec()));
                }
                Some(Ok(Body::NoName)) => self.note(ResolveError::NotFound),
                Some(Ok(Body::NoRecord | Body::Message(_))) => self.note(ResolveError::NoAddress),
                Some(Err(error)) => self.note(error),
                None if !self.waiting.is_empty() => return Poll::Pending,
                None if self.found || !self.ask_next() => return Poll::Ready(None),
                None => {}
            }
        }
    }

    fn error(&mut self) -> ResolveError {
        self.error.take().unwrap_or(ResolveError::NoAddress)
    }
}
