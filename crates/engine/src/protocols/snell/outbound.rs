//! The Snell client: connections to a server, and the ones that are kept for further requests.

use super::outbound_udp::SnellPackets;

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::future::poll_fn;
use std::io;
use std::net::IpAddr;
use std::rc::{Rc, Weak};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};

use adit_model::{self as model, SnellClient, Tag};
use adit_net::rt::{self, Pool, Stream};
use adit_proto::snell::{Format, SnellClientStream, SnellCommand, SnellDirectionKey, SnellPsk, SnellRequest};
use adit_proto::wire::Target;

use crate::connections::record::{EndReason, Side};
use crate::datagram::PacketOutbound;
use crate::outbound::connector::end_of_cut;
use crate::outbound::{Connector, OutboundDeps, OutboundFactory};
use crate::protocols::obfs::layer::ClientObfs;
use crate::protocols::snell::format::format;
use crate::protocols::snell::key_supply::KeySupply;
use crate::relay::discard::discard_exchange;
use crate::relay::{Endpoint, HalfClose, Policy, RelayOutcome, Stack};
use crate::rng::OsRng;
use crate::stream::{ConnectTarget, Future, OpenError, OpenedConnection, Outbound, OutboundHandle};

/// Connections kept per core; mihomo and OpenSnell keep as many in all.
const MAX_KEPT: usize = 10;
/// A connection without a request is kept this long: OpenSnell's and mihomo's time.
const KEPT_FOR: Duration = Duration::from_secs(15);
/// After a local abort the server's end is awaited this long before the connection is given up, as OpenSnell does.
const RECLAIM: Duration = Duration::from_millis(500);
/// And no more than this much is thrown away for it; Surge and sing-box stop at the same count.
const RECLAIM_LEN: usize = 0x8_0000;

/// State that a Snell client shares over all cores: its key, and the keys derived ahead.
#[derive(Debug)]
pub(crate) struct SnellShared {
    config: SnellClient,
    keys: Arc<KeySupply>,
    format: Format,
    obfs: ClientObfs,
    /// Whether the server of the latest exchange has shown itself to be adit.
    server_is_adit: AtomicBool,
}

impl SnellShared {
    pub(crate) fn start(config: &SnellClient) -> io::Result<Arc<Self>> {
        let psk = SnellPsk::new(config.psk.expose().as_bytes());
        Ok(Arc::new(Self {
            config: config.clone(),
            format: format(config.version, &psk),
            keys: KeySupply::on_demand(psk),
            obfs: ClientObfs::new(&config.obfs)?,
            server_is_adit: AtomicBool::new(false),
        }))
    }
}

/// A Snell client on one core.
pub(crate) struct SnellOutbound {
    pub(super) connector: Connector,
    pub(super) config: SnellClient,
    shared: Arc<SnellShared>,
    /// This outbound itself, for what outlives a call.
    this: Weak<Self>,
    kept: RefCell<VecDeque<Kept>>,
    is_sweeping: Cell<bool>,
}

struct Kept {
    end: Endpoint,
    until: Instant,
}

impl SnellOutbound {
    fn new(connector: Connector, config: &SnellClient, shared: Arc<SnellShared>) -> Rc<Self> {
        Rc::new_cyclic(|this| Self {
            connector,
            config: config.clone(),
            shared,
            this: this.clone(),
            kept: RefCell::default(),
            is_sweeping: Cell::new(false),
        })
    }

    /// The outbound's name in logs and status.
    pub(crate) fn tag(&self) -> &Tag {
        &self.connector.name
    }

    async fn open(&self, target: &Target, fresh: bool) -> Result<OpenedConnection, OpenError> {
        let kept = if fresh { None } else { self.take_kept(target).await };
        let opened = match kept {
            Some(opened) => opened,
            None => self.start(self.connector.dial(&self.config.server).await?, target),
        };
        Ok(self.connector.settle(opened))
    }

    /// Begins an exchange on a fresh connection.
    fn start(&self, stream: Stream, target: &Target) -> OpenedConnection {
        let keys = &self.shared.keys;
        let format = self.shared.format.clone();
        let mut client = SnellClientStream::speaking(format, keys.psk().clone(), &keys.take(), &mut OsRng);
        let reusable = self.config.reuse;
        client.start(&self.request(SnellCommand::Connect { target: target.clone(), reusable }));
        let stack = Stack::new(client, self.shared.obfs.outer());
        let far = Endpoint { stream, stack: Some(Box::new(stack)), tail: Vec::new() };
        OpenedConnection::new(far, self.policy(false))
    }

    /// The layers of a stream that is to carry datagrams.
    pub(super) fn datagram_stack(&self) -> Box<Stack> {
        let (keys, format) = (&self.shared.keys, self.shared.format.clone());
        let mut client = SnellClientStream::speaking(format, keys.psk().clone(), &keys.take(), &mut OsRng);
        client.start(&self.request(SnellCommand::Udp));
        Box::new(Stack::new(client, self.shared.obfs.outer()))
    }

    fn request(&self, command: SnellCommand) -> SnellRequest {
        SnellRequest { command, client_id: self.client_id().to_vec() }
    }

    /// The id of this user among others with the same key; empty if there is none.
    pub(crate) fn client_id(&self) -> &[u8] {
        self.config.client_id.as_ref().map_or(&[], |id| id.expose().as_bytes())
    }

    /// A fresh key of our own.
    pub(crate) fn take_key(&self) -> SnellDirectionKey {
        self.shared.keys.take()
    }

    fn policy(&self, keep_for_replay: bool) -> Policy {
        let half_close = match self.config.half_close {
            model::HalfClose::On => HalfClose::AtOnce,
            model::HalfClose::Auto if self.shared.server_is_adit.load(Ordering::Relaxed) => HalfClose::AtOnce,
            model::HalfClose::Auto => HalfClose::Auto,
            model::HalfClose::Late => HalfClose::Late,
        };
        Policy { half_close, keep_for_replay, carrier_drops: false }
    }

    /// Begins an exchange on a kept connection, newest first.
    async fn take_kept(&self, target: &Target) -> Option<OpenedConnection> {
        while let Some(mut kept) = self.pop_kept() {
            let usable = poll_fn(|cx| Poll::Ready(check(&mut kept.end, cx))).await;
            let Some(client) =
                kept.end.stack.as_mut().and_then(|stack| stack.protocol::<SnellClientStream>())
            else {
                continue;
            };
            if usable && client.is_idle() {
                client.start(&self.request(SnellCommand::Connect { target: target.clone(), reusable: true }));
                self.connector.metrics.reused.add(1);
                return Some(OpenedConnection::new(kept.end, self.policy(true)));
            }
        }
        None
    }

    fn pop_kept(&self) -> Option<Kept> {
        let now = rt::now();
        let mut queue = self.kept.borrow_mut();
        let kept = queue.pop_back().filter(|kept| kept.until > now);
        if kept.is_none() {
            // The newest is too old: so are all others.
            queue.clear();
        }
        self.connector.metrics.idle.set(queue.len());
        kept
    }

    fn keep(&self, end: Endpoint) {
        let mut queue = self.kept.borrow_mut();
        if queue.len() >= MAX_KEPT {
            queue.pop_front();
        }
        queue.push_back(Kept { end, until: rt::now() + KEPT_FOR });
        self.connector.metrics.idle.set(queue.len());
        if !self.is_sweeping.replace(true) {
            let outbound = self.this.clone();
            rt::spawn_local(async move {
                while let Some(pause) = outbound.upgrade().and_then(|outbound| outbound.sweep()) {
                    rt::sleep(pause).await;
                }
            });
        }
    }

    /// Closes what was kept for too long or has been closed by the server; how long until the next time.
    fn sweep(&self) -> Option<Duration> {
        let now = rt::now();
        let mut queue = self.kept.borrow_mut();
        let mut cx = Context::from_waker(Waker::noop());
        queue.retain_mut(|kept| kept.until > now && check(&mut kept.end, &mut cx));
        self.connector.metrics.idle.set(queue.len());
        if queue.is_empty() {
            queue.shrink_to_fit();
            self.is_sweeping.set(false);
            return None;
        }
        Some(Duration::from_secs(1))
    }

    /// The stream of datagrams is over.
    pub(crate) fn close_datagrams(&self, end: Endpoint, reason: EndReason, pool: &Pool) {
        let outcome =
            RelayOutcome { reason, up: 0, down: 0, replay: None, is_clean: false, near_ended: true };
        self.release(OpenedConnection::new(end, Policy::default()), &outcome, pool);
    }

    fn close(&self, mut opened: OpenedConnection, outcome: &RelayOutcome, pool: &Pool) {
        let far = &mut opened.far;
        let Some(client) = far.stack.as_mut().and_then(|stack| stack.protocol::<SnellClientStream>()) else {
            return;
        };
        self.count_early_close(client, outcome);
        if client.is_idle() && outcome.is_clean {
            return self.keep(opened.far);
        }
        let local_is_gone = matches!(outcome.reason, EndReason::Socket(Side::Near, _));
        if !(self.config.reuse && local_is_gone && outcome.is_clean && client.is_answered()) {
            end_of_cut(&opened, outcome);
        } else {
            let (outbound, pool, mut far) = (self.this.clone(), pool.clone(), opened.far);
            rt::spawn_local(async move {
                if rt::timeout(RECLAIM, reclaim(&mut far, &pool)).await == Ok(true)
                    && let Some(outbound) = outbound.upgrade()
                {
                    outbound.keep(far);
                }
            });
        }
    }

    /// Counts exchanges that the server closed without a reply.
    fn count_early_close(&self, client: &SnellClientStream, outcome: &RelayOutcome) {
        if client.is_authenticated() {
            return self.shared.server_is_adit.store(client.server_is_adit(), Ordering::Relaxed);
        }
        let by_server = match outcome.reason {
            EndReason::Idle
            | EndReason::Crowded
            | EndReason::Kicked
            | EndReason::Stopped
            | EndReason::Limited(_) => false,
            EndReason::Socket(side, _) => side == Side::Far,
            EndReason::Finished | EndReason::Wire(_) => true,
        };
        if by_server {
            self.connector.metrics.early_closes.add(1);
        }
    }
}

impl OutboundFactory for Arc<SnellShared> {
    fn on_core(&self, connector: Connector, around: &OutboundDeps<'_>) -> OutboundHandle {
        let outbound = SnellOutbound::new(connector, &self.config, self.clone());
        let has_datagrams = self.config.udp && self.config.version.has_datagrams();
        let packets = has_datagrams.then(|| {
            let OutboundDeps { model, udp, dns, pool } = around;
            let packets = SnellPackets::new(model, &self.config, udp, dns, &outbound, pool);
            Rc::new(packets) as Rc<dyn PacketOutbound>
        });
        OutboundHandle { outbound, packets }
    }
}

impl Outbound for SnellOutbound {
    fn name(&self) -> &Tag {
        &self.connector.name
    }

    fn is_tunnel(&self) -> bool {
        true
    }

    fn connect<'a>(
        &'a self,
        to: ConnectTarget<'a>,
        fresh: bool,
    ) -> Future<'a, Result<OpenedConnection, OpenError>> {
        Box::pin(self.open(to.target, fresh))
    }

    fn has_replied(&self, opened: &mut OpenedConnection, outcome: &RelayOutcome) -> bool {
        let client = opened.far.stack.as_mut().and_then(|stack| stack.protocol::<SnellClientStream>());
        outcome.down > 0 || client.is_some_and(|client| client.is_authenticated())
    }

    fn release(&self, opened: OpenedConnection, outcome: &RelayOutcome, pool: &Pool) {
        self.close(opened, outcome, pool);
    }

    fn lookup<'a>(&'a self, name: &'a str) -> Future<'a, Option<Vec<IpAddr>>> {
        Box::pin(self.connector.lookup(name))
    }
}

/// Whether a kept connection is still good. Bytes that have come meanwhile (a second zero chunk) are kept.
fn check(end: &mut Endpoint, cx: &mut Context<'_>) -> bool {
    let mut bytes = [0; 64];
    loop {
        match end.stream.poll_recv(cx, &mut bytes) {
            Poll::Pending => return true,
            Poll::Ready(Ok(len)) if len > 0 && end.tail.len() + len <= 256 => {
                end.tail.extend(&bytes[..len]);
                if let Some(stack) = &mut end.stack {
                    stack.defer_received(len);
                }
            }
            Poll::Ready(_) => return false,
        }
    }
}

/// The local side is gone: ends the exchange in order and discards what the server still sends.
async fn reclaim(far: &mut Endpoint, pool: &Pool) -> bool {
    far.send_end(pool).await.is_ok()
        && discard_exchange(far, pool, RECLAIM_LEN).await
        && far
            .stack
            .as_mut()
            .and_then(|stack| stack.protocol::<SnellClientStream>())
            .is_some_and(|client| client.is_idle())
}
