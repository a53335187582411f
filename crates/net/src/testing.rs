//! Scripted names for the tests of this crate.

use std::cell::RefCell;
use std::collections::HashMap;
use std::future::pending;
use std::net::IpAddr;
use std::rc::Rc;
use std::task::{Context, Poll};
use std::time::Duration;

use adit_model::AddressFamilies;
use tokio::time::sleep;

use crate::race::Race;
use crate::resolve::{Answers, Resolve, ResolveError};

/// Waits until `condition` holds, for up to two minutes, while the event loop goes on.
///
/// # Panics
/// If it does not, with `what` was waited for.
pub(crate) async fn until(what: &str, mut condition: impl AsyncFnMut() -> bool) {
    let limit = crate::rt::now() + Duration::from_secs(120);
    while !condition().await {
        assert!(crate::rt::now() < limit, "still not true: {what}");
        sleep(Duration::from_millis(2)).await;
    }
}

/// Record types: 1 is A, 28 is AAAA.
pub(crate) const A: u16 = 1;
pub(crate) const AAAA: u16 = 28;

/// Reply to a question.
#[derive(Debug, Clone)]
pub(crate) enum TestReply {
    /// These addresses.
    Ips(Vec<IpAddr>),
    /// No record of this type.
    Empty,
    /// The reply within, after a while.
    Late(Duration, Box<Self>),
    /// Nothing at all.
    Silence,
}

/// Replies by name and type. Questions without one are about a name that does not exist.
#[derive(Debug, Default)]
pub(crate) struct NameServer(Rc<RefCell<HashMap<(String, u16), TestReply>>>);

impl NameServer {
    pub(crate) fn set(&self, name: &str, kind: u16, reply: TestReply) {
        self.0.borrow_mut().insert((name.to_owned(), kind), reply);
    }

    pub(crate) fn set_ips(&self, name: &str, kind: u16, ips: &[&str]) {
        self.set(name, kind, TestReply::Ips(ips.iter().map(|ip| ip.parse().unwrap()).collect()));
    }

    pub(crate) fn resolver(&self) -> Rc<dyn Resolve> {
        Rc::new(Self(self.0.clone()))
    }
}

impl Resolve for NameServer {
    fn start(&self, name: &str, family: AddressFamilies) -> Box<dyn Answers> {
        let kinds: &[u16] = match family {
            AddressFamilies::Any | AddressFamilies::PreferV4 => &[AAAA, A],
            AddressFamilies::V4Only => &[A],
            AddressFamilies::V6Only => &[AAAA],
        };
        let mut pending = Race::new();
        for kind in kinds {
            let reply = self.0.borrow().get(&(name.to_owned(), *kind)).cloned();
            pending.push(answer(reply));
        }
        Box::new(Scripted { pending, error: ResolveError::NotFound })
    }
}

async fn answer(reply: Option<TestReply>) -> Result<Vec<IpAddr>, ResolveError> {
    match reply {
        Some(TestReply::Ips(ips)) => Ok(ips),
        Some(TestReply::Empty) => Err(ResolveError::NoAddress),
        Some(TestReply::Late(delay, reply)) => {
            // The reply takes its time.
            sleep(delay).await;
            Box::pin(answer(Some(*reply))).await
        }
        Some(TestReply::Silence) => pending().await,
        None => Err(ResolveError::NotFound),
    }
}

struct Scripted {
    pending: Race<'static, Result<Vec<IpAddr>, ResolveError>>,
    error: ResolveError,
}

impl Answers for Scripted {
    fn poll_next(&mut self, cx: &mut Context<'_>) -> Poll<Option<Vec<IpAddr>>> {
        loop {
            match std::task::ready!(self.pending.poll_next(cx)) {
                Some(Ok(ips)) => return Poll::Ready(Some(ips)),
                Some(Err(error)) => self.error = error,
                None => return Poll::Ready(None),
            }
        }
    }

    fn error(&mut self) -> ResolveError {
        self.error.clone()
    }
}

/// Runs a test that looks at the clock, on an event loop of its own; again if it fails, see [`adit_testkit::in_time`].
pub(crate) fn in_time(test: impl AsyncFn()) {
    adit_testkit::in_time(|| {
        let builder = &mut tokio::runtime::Builder::new_current_thread();
        let runtime = builder.enable_all().build_local(tokio::runtime::LocalOptions::default()).unwrap();
        runtime.block_on(test());
    });
}
