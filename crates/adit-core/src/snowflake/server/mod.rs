//! The server: WebSockets of proxies in, one TCP connection per stream of a client out.
//!
//! ```text
//! proxy ─ WebSocket ─ prologue, chunks ─▶ hub ─▶ KCP, smux ─▶ stream ─▶ target
//! ```
//!
//! A session belongs to its client's name and not to a WebSocket: a client that loses its proxy comes back by another one
//! and goes on. WebSockets are served on every event loop; sessions live on as many of them as there are instances.

mod addresses;
mod target;

#[cfg(test)]
mod tests;

use std::cell::Cell;
use std::io;
use std::net::SocketAddr;
use std::rc::Rc;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use adit_config::model::{Kcp, KcpParity, Limits, Secret, SnowflakeServer};
use adit_net::listen::{ListenOptions, listen_many};
use adit_net::rt::{self, Cores, Pool, Signal, Signals, Stop, Stopper, Stream};
use adit_net::tls_server::TlsIdentity;
use adit_net::websocket::{self, Opened, WebSocketPort, WireReader};
use adit_proto::kcp::crypt::Method;
use adit_proto::smux::Version;
use adit_proto::snowflake::encapsulation::{Reader, SERVER_PACKET_LEN, push_packet};
use adit_proto::snowflake::{ClientId, PROLOGUE_LEN, Prologue};

use self::addresses::{CAPACITY, Ring, address_of, client_of, named};
use super::SnowflakeError;
use crate::budget::Budget;
use crate::carrier::{self, Hub, Link, Memory};
use crate::conns::Conns;
use crate::metrics::Traffic;
use crate::relay::{Early, Endpoint, Policy, Relay};

/// Bounds of a WebSocket: peers send 2 KiB to 64 KiB; the buffer is what an idle one costs.
const LIMITS: websocket::Limits =
    websocket::Limits { message: 1 << 20, write: 16 << 10, buffer: 4 << 10, head: 8 << 10 };
/// Bytes of one read of a WebSocket.
const READ: usize = 16 << 10;
/// Time for the first 16 bytes. Clients keep proxies in stock that they have not used yet.
const PROLOGUE_TIME: Duration = Duration::from_secs(600);
/// Without any frame of smux for this long a session ends.
const TIMEOUT: Duration = Duration::from_secs(240);
/// Time that an answer may go on after its client has ended the stream; upstream's clients are gone by then.
const CLOSE_WAIT: Duration = Duration::from_secs(30);
/// Pause between two looks for queues that nobody needs.
const SWEEP: Duration = Duration::from_secs(30);
/// Seconds of a line about client addresses.
const PERIOD_S: u64 = 86_400;
/// Time that open streams have when the process is told to stop.
const DRAIN: Duration = Duration::from_secs(2);

/// State that all event loops share.
struct Shared {
    settings: SnowflakeServer,
    hubs: Vec<Arc<Hub>>,
    ring: Mutex<Ring>,
    /// Streams of the period, and those among them whose client's address is known.
    counted: Mutex<(u64, u64)>,
    memory: Arc<Memory>,
    carrier: Arc<carrier::Shared>,
}

impl Shared {
    fn new(settings: &SnowflakeServer) -> Self {
        let total = settings.total_memory;
        let total = total.unwrap_or_else(|| Budget::new(&Limits::default(), 1).shares().carriers);
        let count = settings.instances.max(1);
        // Half as much again as the sessions have, for packets that wait for WebSockets.
        let queued = total / 2 / count;
        let hubs = (0..count).map(|_| Arc::new(Hub::new(push_packet, queued))).collect();
        Self {
            hubs,
            ring: Mutex::default(),
            counted: Mutex::default(),
            memory: Arc::new(Memory::new(total)),
            carrier: Arc::new(carrier::Shared::new(&"snowflake".into(), &kcp(settings))),
            settings: settings.clone(),
        }
    }

    /// The hub of a client's session.
    fn hub(&self, client: ClientId) -> &Arc<Hub> {
        let number = u64::from_le_bytes(client.0);
        let count = u64::try_from(self.hubs.len()).unwrap_or(1);
        &self.hubs[usize::try_from(number % count).unwrap_or(0)]
    }

    fn ring(&self) -> std::sync::MutexGuard<'_, Ring> {
        self.ring.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Settings of sessions with upstream's clients.
fn kcp(settings: &SnowflakeServer) -> Kcp {
    let mut kcp = Kcp::new(Secret::new(""), Method::Null);
    kcp.version = Some(Version::V2);
    kcp.parity = KcpParity::Off;
    kcp.mtu = 1400;
    kcp.frame_len = 32 << 10;
    kcp.timeout = TIMEOUT;
    kcp.close_wait = Some(CLOSE_WAIT);
    kcp.memory = settings.session_memory;
    kcp.stream_buffer = settings.stream_buffer;
    kcp
}

/// Runs a server until SIGTERM or SIGINT, or until `ended` says so. SIGHUP reads the files of the certificate again.
/// `ready` is told the address once it listens.
///
/// # Errors
/// See [`SnowflakeError`].
pub fn snowflake_server(
    settings: &SnowflakeServer,
    ready: impl FnOnce(SocketAddr),
    ended: impl Future<Output = ()>,
) -> Result<(), SnowflakeError> {
    let tls = settings.tls.as_ref().map(|files| TlsIdentity::load(&files.certificate, &files.key));
    let tls = tls.transpose().map_err(SnowflakeError::Tls)?;
    let (stopper, stop) = Stopper::new();
    let shared = Arc::new(Shared::new(settings));
    let (cores, addr) = start(&shared, tls.clone(), &stop)?;
    let waited = Cores::block_on(async {
        let mut signals = Signals::new()?;
        ready(addr);
        let signalled = async {
            loop {
                match signals.next().await {
                    Signal::Stop => return,
                    Signal::User => {
                        let carrier::MemoryStatus { used, peak, most } = shared.memory.status();
                        tracing::info!(used, peak, most, "bytes that sessions hold or have reserved");
                    }
                    Signal::Upgrade => {}
                    Signal::Reload => {
                        if let Some(Err(error)) = tls.as_ref().map(TlsIdentity::reload) {
                            tracing::warn!(%error, "not reloaded: the certificate that was read before stays");
                        }
                    }
                }
            }
        };
        rt::race(signalled, ended).await;
        stopper.drain();
        rt::sleep(DRAIN).await;
        Ok(())
    });
    stopper.end();
    cores.join();
    waited.and_then(|result| result).map_err(SnowflakeError::Loop)
}

/// Listens, and starts the event loops.
fn start(
    shared: &Arc<Shared>,
    tls: Option<TlsIdentity>,
    stop: &Stop,
) -> Result<(Cores, SocketAddr), SnowflakeError> {
    let settings = &shared.settings;
    let count = settings.instances.max(1);
    let listeners = listen_many(settings.listen, &ListenOptions::default(), count)?;
    let addr = listeners.addr;
    let mut cores = Cores::default();
    for (at, listener) in listeners.sockets.into_iter().enumerate() {
        let (shared, stop) = (shared.clone(), stop.clone());
        let max_connections = most_connections(count);
        let port = WebSocketPort { listener, tls: tls.clone(), limits: LIMITS, max_connections };
        let main = move || core(shared, at, port, stop);
        cores.start(format!("snowflake-{at}"), main).map_err(SnowflakeError::Loop)?;
    }
    Ok((cores, addr))
}

/// WebSockets of one event loop: half of the descriptors, for each has a connection behind it.
fn most_connections(cores: usize) -> usize {
    let limit = adit_net::fd_limit().map_or(1024, |(soft, _)| soft);
    usize::try_from(limit).unwrap_or(1 << 20).min(1 << 20) / 2 / cores
}

/// One event loop: its sessions, and the WebSockets that it accepts.
async fn core(shared: Arc<Shared>, at: usize, port: WebSocketPort, stop: Stop) {
    let context = carrier::Context::new(Rc::new(Cell::new(0)), shared.memory.clone());
    let link = Link::Streams(shared.hubs[at].clone());
    let (pool, conns) = (Pool::new(), Rc::new(Conns::default()));
    let streams = shared.clone();
    let take = move |stream: Stream, peer: SocketAddr| {
        let (shared, pool, conns) = (streams.clone(), pool.clone(), conns.clone());
        rt::spawn_local(async move { relay(&shared, stream, peer, &pool, &conns).await });
    };
    let carrier = shared.carrier.clone();
    let sessions = async move {
        if let Err(error) = Box::pin(carrier::serve(carrier, context, (link, Rc::default()), take)).await {
            tracing::error!(%error, "sessions ended");
        }
    };
    let swept = shared.clone();
    rt::spawn_local(async move {
        loop {
            rt::sleep(SWEEP).await;
            swept.hubs[at].sweep(rt::now());
        }
    });
    if at == 0 {
        rt::spawn_local(tell_counts(shared.clone()));
    }
    let ports = async {
        let served = port.serve(stop.clone(), move |opened| {
            let shared = shared.clone();
            async move { carry(&shared, opened).await }
        });
        if let Err(error) = served.await {
            tracing::error!(%error, "the port is not served");
        }
        // Streams go on until the end.
        stop.clone().ending().await;
    };
    Box::pin(rt::race(sessions, ports)).await;
}

/// Says once a day how many streams had a client's address.
async fn tell_counts(shared: Arc<Shared>) {
    loop {
        rt::sleep(Duration::from_secs(PERIOD_S)).await;
        let (all, known) =
            std::mem::take(&mut *shared.counted.lock().unwrap_or_else(PoisonError::into_inner));
        tracing::info!("in the past {PERIOD_S} s, {known}/{all} connections had client_ip");
    }
}

/// One WebSocket: packets both ways until either side ends.
async fn carry(shared: &Shared, opened: Opened) {
    let Opened { target, mut reader, mut writer, seat, .. } = opened;
    let mut buffer = vec![0; READ];
    let (client, len) = match rt::timeout(PROLOGUE_TIME, prologue(&mut reader, &mut buffer)).await {
        Ok(Ok(Some(found))) => found,
        // A proxy that was never used, or one that a client kept in stock for too long.
        Ok(Ok(None)) | Err(_) => return writer.close().await,
        Ok(Err(problem)) => {
            tracing::info!("{problem}");
            return writer.close().await;
        }
    };
    seat.keep();
    shared.ring().set(client, named(&target));
    let (hub, address) = (shared.hub(client).clone(), address_of(client));
    let attachment = hub.attach(address);
    let sending = async {
        loop {
            let chunks = std::future::poll_fn(|cx| attachment.poll_take(cx)).await;
            writer.send_all(&chunks).await?;
        }
    };
    let receiving = receive(&hub, address, &mut reader, buffer, len);
    let result: io::Result<()> = rt::race(sending, receiving).await;
    if let Err(error) = result {
        tracing::debug!(%client, %error, "WebSocket ended");
    }
    drop(attachment);
    writer.close().await;
}

/// The client's name, and the number of bytes in `buffer`, the prologue's among them. `None` for a stream without any byte.
async fn prologue(reader: &mut WireReader, buffer: &mut [u8]) -> Result<Option<(ClientId, usize)>, String> {
    let mut len = 0;
    loop {
        let part = if len < 8 { "token" } else { "ClientID" };
        let failed = |error: io::Error| format!("reading {part}: {error}");
        match reader.recv(&mut buffer[len..]).await.map_err(failed)? {
            0 if len == 0 => return Ok(None),
            0 => return Err(failed(io::ErrorKind::UnexpectedEof.into())),
            more => len += more,
        }
        match Prologue::parse(&buffer[..len]) {
            Prologue::Complete(client) => return Ok(Some((client, len))),
            Prologue::WrongToken => return Err("Received unsupported oneshot connection".into()),
            Prologue::NeedMore => {}
        }
    }
}

/// Hands the packets of a WebSocket to the hub until it ends; `len` bytes are in `buffer` already.
async fn receive(
    hub: &Hub,
    address: SocketAddr,
    reader: &mut WireReader,
    mut buffer: Vec<u8>,
    len: usize,
) -> io::Result<()> {
    let mut chunks = Reader::new(SERVER_PACKET_LEN);
    let mut filled = PROLOGUE_LEN..len;
    loop {
        let mut bytes = &buffer[filled];
        // The block of packets that came in pieces.
        let mut whole = Vec::new();
        while let Some(packet) = chunks.next(&mut bytes).map_err(io::Error::other)? {
            whole.push(packet.to_vec());
        }
        if !whole.is_empty() {
            hub.push(address, whole.iter().map(Vec::as_slice));
            std::future::poll_fn(|cx| hub.poll_room(cx)).await;
        }
        filled = match reader.recv(&mut buffer).await? {
            0 => return Ok(()),
            len => 0..len,
        };
    }
}

/// One stream of a client: joined with the target until both have ended.
async fn relay(shared: &Shared, stream: Stream, peer: SocketAddr, pool: &Pool, conns: &Rc<Conns>) {
    let client = client_of(peer);
    let address = client.and_then(|client| shared.ring().find(client));
    if address.is_none() {
        tracing::info!("no address in clientID-to-IP map (capacity {CAPACITY})");
    }
    let address = address.flatten();
    {
        let mut counted = shared.counted.lock().unwrap_or_else(PoisonError::into_inner);
        counted.0 += 1;
        counted.1 += u64::from(address.is_some());
    }
    let target = match target::open(&shared.settings, address).await {
        Ok(target) => target,
        Err(error) => {
            tracing::warn!("handleConn: failed to connect to ORPort: {error}");
            return stream.abort_on_close();
        }
    };
    let (mut near, mut far) = (Endpoint::plain(stream), Endpoint::plain(target));
    let (entry, traffic) = (conns.enter(), Traffic::default());
    let (early, policy) = (Early::default(), Policy::default());
    let outcome = Relay::new(&mut near, &mut far, early, pool, &entry, &traffic, policy).await;
    tracing::debug!(up = outcome.up, down = outcome.down, reason = ?outcome.reason, "stream ended");
}
