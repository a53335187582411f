//! The table of sessions against a naive one, by random datagrams.

use std::collections::BTreeMap;
use std::sync::LazyLock;
use std::task::{Poll, Waker};

use adit_model::{Kcp, KcpParity, Secret};
use adit_net::rt::{CarrierStream as _, Cores};
use adit_net::udp::Socket;
use adit_proto::kcp::crypt::KcpMethod;
use adit_proto::kcp::fec;
use proptest::prelude::*;

use super::super::Memory;
use super::super::stream::CarriedStream;
use super::*;

/// One arrival or event; they come in any order.
#[derive(Debug, Clone)]
enum Step {
    /// A segment of a conversation of this peer, with this number.
    Segment(u8, u32, u32),
    /// Parity, which names no conversation.
    Parity(u8),
    /// A datagram that does not open.
    Unopened(u8),
    /// The peer has gone.
    Gone(u8),
    /// The driver's turn.
    Work,
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        8 => (0..6_u8, 0..3_u32, 0..2_u32).prop_map(|(peer, conv, number)| Step::Segment(peer, conv, number)),
        1 => (0..6_u8).prop_map(Step::Parity),
        1 => (0..6_u8).prop_map(Step::Unopened),
        2 => (0..6_u8).prop_map(Step::Gone),
        3 => Just(Step::Work),
    ]
}

/// The expected content of the table: for each peer its conversation, and whether that has gone.
#[derive(Default)]
struct Model {
    sessions: BTreeMap<u8, (u32, bool)>,
    begun: u64,
    malformed: u64,
}

impl Model {
    fn apply(&mut self, step: &Step) {
        match *step {
            Step::Segment(peer, conv, number) => match self.sessions.get(&peer) {
                Some((known, _)) if *known == conv => {}
                // In the middle of a conversation that nobody knows here.
                Some(_) if number != 0 => self.malformed += 1,
                Some(_) | None => {
                    self.begun += 1;
                    self.sessions.insert(peer, (conv, false));
                }
            },
            Step::Parity(peer) => self.malformed += u64::from(!self.sessions.contains_key(&peer)),
            Step::Unopened(_) => {}
            Step::Gone(peer) => {
                self.sessions.entry(peer).and_modify(|session| session.1 = true);
            }
            Step::Work => self.sessions.retain(|_, (_, is_gone)| !*is_gone),
        }
    }
}

/// Deriving its keys takes longer than a case.
static SHARED: LazyLock<Arc<CarrierShared>> = LazyLock::new(shared);

fn shared() -> Arc<CarrierShared> {
    let mut config = Kcp::new(Secret::new("model"), KcpMethod::Null);
    config.parity = KcpParity::Off;
    Arc::new(CarrierShared::new(&"model".into(), &config))
}

/// Sessions, those begun, and datagrams that made no sense.
fn counters() -> (i64, u64, u64) {
    let metrics = &SHARED.metrics;
    (metrics.sessions.value(), metrics.passive_opens.value(), metrics.malformed.value())
}

fn address(peer: u8) -> SocketAddr {
    // Answers go to where nobody listens.
    SocketAddr::from(([127, 66, 66, 1 + peer], 9))
}

fn driver() -> Driver {
    driver_with(SHARED.clone(), 64 << 20, Some(Box::new(|_, _| {})))
}

/// A driver whose sessions share `memory` bytes; without `accept` they are those of a client.
#[expect(clippy::disallowed_methods, reason = "a test has its own socket")]
fn driver_with(shared: Arc<CarrierShared>, memory: usize, accept: Option<Accept>) -> Driver {
    let context = Context::new(Rc::default(), Arc::new(Memory::new(memory)));
    let socket = std::net::UdpSocket::bind("127.0.0.1:0").unwrap();
    let link = CarrierSocket::Udp(Socket::from_std(socket).unwrap());
    Driver::new(shared, context, link, accept).unwrap()
}

/// A question for the window: it belongs to a conversation and carries nothing.
fn segment(conv: u32, number: u32) -> Vec<u8> {
    let mut out = Vec::from(conv.to_le_bytes());
    out.extend([83, 0, 128, 0, 0, 0, 0, 0]);
    out.extend(number.to_le_bytes());
    out.extend([0; 8]);
    out
}

fn apply(driver: &mut Driver, step: &Step) {
    let mut take = |peer: u8, payload: &[u8]| {
        driver.take(address(peer), None, payload, rt::now());
    };
    match *step {
        Step::Segment(peer, conv, number) => take(peer, &segment(conv, number)),
        Step::Parity(peer) => {
            let kind = fec::TYPE_PARITY.to_le_bytes();
            take(peer, &[&[0; 4][..], &kind, &[0; 40]].concat());
        }
        Step::Unopened(peer) => driver.refuse(address(peer), rt::now()),
        Step::Gone(peer) => {
            if let Some(handle) = driver.sessions.get(&address(peer)) {
                handle.session.borrow_mut().fail(SessionFailure::Gone);
                handle.touch();
            }
        }
        Step::Work => driver.work(),
    }
}

/// Compares the table, its counters, its timers and the account of memory with the model.
fn check(driver: &Driver, model: &Model, before: (i64, u64, u64)) -> Result<(), TestCaseError> {
    let conv = |peer: u8| {
        let handle = driver.sessions.get(&address(peer))?;
        let session = handle.session.borrow();
        Some((session.arq.conv(), session.is_over()))
    };
    for peer in 0..6 {
        prop_assert_eq!(conv(peer), model.sessions.get(&peer).copied(), "peer {}", peer);
    }
    let sessions = i64::try_from(model.sessions.len()).unwrap();
    prop_assert_eq!(counters(), (before.0 + sessions, before.1 + model.begun, before.2 + model.malformed));
    prop_assert!(driver.reported.len() <= model.sessions.len());
    for ((at, number), handle) in &driver.timers {
        let current = driver.sessions.get(&handle.peer).is_some_and(|current| Rc::ptr_eq(current, handle));
        prop_assert!(current, "a timer of a session that has ended");
        prop_assert_eq!((Some(*at), *number), (handle.due_at.get(), handle.session.borrow().number));
    }
    let charged = |peer: u8| driver.sessions.get(&address(peer)).map_or(0, |handle| handle.charged.get());
    let all: usize = (0..6).map(charged).sum();
    prop_assert_eq!(driver.context.memory.status().used, all);
    prop_assert!((0..6).all(|peer| charged(peer) == 0 || charged(peer) >= RESERVED));
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 48, failure_persistence: None, ..ProptestConfig::default() })]
    #[test]
    fn it_does_what_a_naive_table_does(steps in proptest::collection::vec(step(), 0..120)) {
        Cores::block_on(async {
            let (mut driver, mut model, before) = (driver(), Model::default(), counters());
            let memory = driver.context.memory.clone();
            for step in steps.iter().chain([&Step::Work]) {
                apply(&mut driver, step);
                model.apply(step);
                check(&driver, &model, before)?;
            }
            prop_assert!(driver.desk.busy.borrow().is_empty());
            drop(driver);
            prop_assert_eq!(memory.status().used, 0);
            Ok(())
        }).unwrap()?;
    }
}

/// Every stream is given more than the whole budget before the driver has its first turn, and again after each.
#[test]
fn writers_reserve_before_they_queue() {
    const MOST: usize = 16 << 20;
    Cores::block_on(async {
        let mut driver = driver_with(shared(), MOST, None);
        let memory = driver.context.memory.clone();
        let streams: Vec<_> = (0..100_u8)
            .map(|peer| {
                let handle = driver.begin(address(peer), peer.into(), rt::now());
                let id = handle.session.borrow_mut().open().unwrap();
                CarriedStream::new(handle, id)
            })
            .collect();
        let (block, mut context) = (vec![0; 256 << 10], std::task::Context::from_waker(Waker::noop()));
        let mut queued = vec![0; streams.len()];
        for _ in 0..4 {
            for (stream, queued) in streams.iter().zip(&mut queued) {
                while let Poll::Ready(sent) = stream.poll_send(&mut context, &block) {
                    *queued += sent.unwrap();
                }
            }
            driver.work();
        }
        let status = memory.status();
        assert!(status.peak <= MOST && status.used > MOST / 2, "{status:?}");
        assert!(queued.iter().all(|queued| *queued >= RESERVED / 8), "{queued:?}");
    })
    .unwrap();
}
