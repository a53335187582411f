//! Tests of delays: a HEAD through an outbound, timed from before its connection to the head of the response.

use std::cell::{OnceCell, RefCell};
use std::collections::VecDeque;
use std::future::{Future, poll_fn};
use std::pin::Pin;
use std::rc::Rc;
use std::sync::Arc;
use std::task::Poll;
use std::time::{Duration, Instant};

use adit_model::{DelayTest, Tag, WebUrl, expects};
use adit_net::probe::{self, ProbeError};
use adit_net::rt;
use adit_net::tls::{Roots, TlsConnector};
use thiserror::Error;

use super::board::{Board, Verdict};
use super::state::{ChoiceMember, MemberKind};
use super::{Choice, ChoiceShared};
use crate::dns::Dns;
use crate::stream::Outbounds;

/// Tests of one round that run at the same time; as many as mihomo's.
const AT_ONCE: usize = 10;
/// A test that another group has begun so shortly before is not begun again.
const PAUSE: Duration = Duration::from_secs(1);

/// Why a test has no delay.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
pub enum DelayError {
    /// There is no outbound of this name.
    #[error("no such outbound")]
    Missing,
    /// The address is none that can be asked.
    #[error("not a valid address")]
    Address,
    /// No response came in time.
    #[error("timeout")]
    Timeout,
    /// There was no connection, or no response.
    #[error("the test failed")]
    Failed,
    /// The process ends.
    #[error("the process is ending")]
    Ending,
}

/// A test that is asked for.
#[derive(Debug, Clone)]
pub(crate) struct CheckRequest {
    url: WebUrl,
    /// The address as it was written: results are kept under it.
    text: Box<str>,
    expected: Vec<(u16, u16)>,
    unified: bool,
    timeout: Duration,
}

impl CheckRequest {
    /// # Errors
    /// [`DelayError::Address`].
    pub(crate) fn new(test: &DelayTest) -> Result<Self, DelayError> {
        Ok(Self {
            url: WebUrl::parse(&test.url).map_err(|_| DelayError::Address)?,
            text: test.url.clone(),
            expected: test.expected.clone(),
            unified: test.unified,
            timeout: test.timeout,
        })
    }
}

/// Tests outbounds from one core.
pub(crate) struct Tester {
    outbounds: Rc<Outbounds>,
    dns: Rc<Dns>,
    board: Arc<Board>,
    /// Made for the first address that asks for TLS.
    tls: OnceCell<Option<TlsConnector>>,
}

impl Tester {
    /// Tests `outbounds`, and notes the results on `board`.
    pub(crate) fn new(outbounds: Rc<Outbounds>, dns: Rc<Dns>, board: Arc<Board>) -> Self {
        Self { outbounds, dns, board, tls: OnceCell::new() }
    }

    /// The delay of an outbound in milliseconds, at least 1. The result is noted.
    ///
    /// # Errors
    /// [`DelayError`].
    pub(crate) async fn test(&self, name: &Tag, asked: &CheckRequest) -> Result<u32, DelayError> {
        if self.outbounds.get(name).is_none() {
            return Err(DelayError::Missing);
        }
        let record = self.board.record(name);
        let probe = Box::pin(self.probe(name, asked));
        let result = rt::timeout(asked.timeout, probe).await.unwrap_or(Err(DelayError::Timeout));
        let verdict = match result {
            Ok((status, time)) if expects(&asked.expected, status) => Verdict::Good(time),
            Ok((_, time)) => Verdict::Unexpected(time),
            Err(_) => Verdict::Failed,
        };
        let noted = record.note(&asked.text, verdict, rt::unix_time());
        tracing::debug!(outbound = &**name, delay_ms = noted, "delay test");
        result.map(|_| noted)
    }

    async fn probe(&self, name: &Tag, asked: &CheckRequest) -> Result<(u16, Duration), DelayError> {
        let begun = rt::now();
        let tls = if asked.url.tls { Some(self.tls().ok_or(DelayError::Failed)?) } else { None };
        let stream = self.dns.stream_through(name, &asked.url.target).await;
        let stream = stream.map_err(|error| {
            tracing::debug!(outbound = &**name, %error, "delay test");
            DelayError::Failed
        })?;
        let head = Box::pin(probe::head(stream, &asked.url, tls, begun, asked.unified)).await;
        head.map_err(|error: ProbeError| {
            tracing::debug!(outbound = &**name, %error, "delay test");
            DelayError::Failed
        })
    }

    fn tls(&self) -> Option<&TlsConnector> {
        let connector = || TlsConnector::new(&Roots::System, &[b"http/1.1"]).ok();
        self.tls.get_or_init(connector).as_ref()
    }
}

/// Tests all members of a group, some at a time; `is_forced` also those that another group has just had tested. Gives the
/// delays of members that responded.
pub(crate) async fn test_group(
    tester: &Rc<Tester>,
    group: &ChoiceShared,
    asked: &CheckRequest,
    is_forced: bool,
) -> Vec<(Tag, u32)> {
    let roster = group.roster();
    let now = rt::now();
    let is_due = |member: &&ChoiceMember| match member.nature {
        MemberKind::Pass | MemberKind::Refusing | MemberKind::Dead { .. } => false,
        MemberKind::Group | MemberKind::Leaf { .. } => {
            let mark = member.record().mark(&asked.text);
            is_forced || mark.begin(now, PAUSE)
        }
    };
    let names = roster.members.iter().filter(is_due).map(|member| member.name.clone()).collect();
    test_names(tester, names, asked).await
}

/// Tests these outbounds, some at a time. Gives the delays of those that responded.
async fn test_names(tester: &Rc<Tester>, names: VecDeque<Tag>, asked: &CheckRequest) -> Vec<(Tag, u32)> {
    let workers = names.len().min(AT_ONCE);
    let (left, found) = (RefCell::new(names), RefCell::new(Vec::new()));
    let work = || async {
        loop {
            let Some(name) = left.borrow_mut().pop_front() else { return };
            if let Ok(delay) = tester.test(&name, asked).await {
                found.borrow_mut().push((name, delay));
            }
        }
    };
    all((0..workers).map(|_| Box::pin(work()) as Pin<Box<dyn Future<Output = ()> + '_>>).collect()).await;
    found.into_inner()
}

/// Drives all futures to their ends.
async fn all(mut futures: Vec<Pin<Box<dyn Future<Output = ()> + '_>>>) {
    poll_fn(|cx| {
        futures.retain_mut(|future| future.as_mut().poll(cx).is_pending());
        if futures.is_empty() { Poll::Ready(()) } else { Poll::Pending }
    })
    .await;
}

/// Tests the members of a group for as long as it is polled: once at the start, then by time, and before their time when
/// connections fail or members change.
pub(crate) async fn check_group(group: Rc<Choice>, tester: Rc<Tester>) {
    let shared = group.shared();
    loop {
        let test = shared.roster().model.test.clone();
        let asked = CheckRequest::new(&test).ok().filter(|_| test.interval.is_some());
        if let Some(asked) = &asked {
            Box::pin(test_group(&tester, shared, asked, false)).await;
        }
        wait(shared, test.interval.filter(|_| asked.is_some()), test.lazy).await;
    }
}

/// Tests the entries of a list for as long as it is polled: once at the start, then by time. A lazy list rests while no
/// group that has one of the entries is used: `is_used` tells whether one was within so long.
pub(crate) async fn check_list(
    members: Vec<Tag>,
    test: DelayTest,
    is_used: impl Fn(Duration) -> bool,
    tester: Rc<Tester>,
) {
    let (Ok(asked), Some(interval)) = (CheckRequest::new(&test), test.interval) else { return };
    loop {
        let now = rt::now();
        // Those that a group has had tested lately are as good as tested.
        let pause = (interval / 2).max(PAUSE);
        let is_due = |name: &&Tag| tester.board.record(name).mark(&asked.text).begin(now, pause);
        let names = members.iter().filter(is_due).cloned().collect();
        Box::pin(test_names(&tester, names, &asked)).await;
        rt::sleep(interval).await;
        while test.lazy && !is_used(interval) {
            rt::sleep(interval).await;
        }
    }
}

/// Waits for the time of the next round, or for a reason to test before it. A lazy group waits on while nobody uses it.
async fn wait(shared: &ChoiceShared, interval: Option<Duration>, lazy: bool) {
    let woken = || poll_fn(|cx| shared.poll_woken(cx));
    let Some(interval) = interval else { return woken().await };
    let mut until: Instant = rt::now() + interval;
    loop {
        let is_woken = rt::race(
            async {
                woken().await;
                true
            },
            async {
                rt::sleep_until(until).await;
                false
            },
        );
        if is_woken.await || !lazy || shared.is_used_within(interval, rt::now()) {
            return;
        }
        until += interval;
    }
}
