//! The server: WebSockets of proxies in, one TCP connection per stream of a client out.
//!
//! ```text
//! proxy ─ WebSocket ─ prologue, chunks ─▶ hub ─▶ KCP, smux ─▶ stream ─▶ target
//! ```
//!
//! A session belongs to its client's name and not to a WebSocket: a client that loses its proxy comes back by another one
//! and goes on. WebSockets are served on every event loop; sessions live on as many of them as there are instances.

mod addresses;
mod port;
mod target;

#[cfg(test)]
mod tests;

use std::net::{SocketAddr, TcpListener};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use adit_engine::Shares;
use adit_engine::StreamJoiner;
use adit_engine::{MemoryStatus, PacketPort as _, SessionServer};
use adit_model::{Kcp, SNOWFLAKE_MTU, SnowflakeServer};
use adit_net::listen::{ListenOptions, listen_many};
use adit_net::rt::{self, Cores, Signal, Signals, Stop, Stopper, Stream};

pub(crate) use self::addresses::address_of;
use self::addresses::{CAPACITY, client_of};
pub(crate) use self::port::Door;
use super::SnowflakeError;

/// Seconds of a line about client addresses.
const PERIOD_S: u64 = 86_400;
/// Time that open streams have when the process is told to stop.
const DRAIN: Duration = Duration::from_secs(2);

/// State that all event loops share.
struct Shared {
    settings: SnowflakeServer,
    door: Arc<Door>,
    /// Streams of the period, and those among them whose client's address is known.
    counted: Mutex<(u64, u64)>,
    sessions: SessionServer,
}

impl Shared {
    fn new(settings: &SnowflakeServer) -> Result<Self, SnowflakeError> {
        let total = settings.total_memory;
        let total = total.unwrap_or_else(|| Shares::of_process().carriers);
        let door = Door::new(settings.tls.as_ref(), settings.instances.max(1), total);
        Ok(Self {
            door: Arc::new(door.map_err(SnowflakeError::Tls)?),
            counted: Mutex::default(),
            sessions: SessionServer::new(&"snowflake".into(), &kcp(settings), total),
            settings: settings.clone(),
        })
    }

    /// Says how much memory sessions hold, and how much they may hold.
    fn tell_memory(&self) {
        let MemoryStatus { used, peak, most } = self.sessions.memory();
        let (sessions, largest) = self.sessions.largest();
        let session_memory = self.settings.session_memory;
        tracing::info!(
            sessions,
            largest,
            session_memory,
            used,
            peak,
            total_memory = most,
            "bytes that sessions hold or have reserved"
        );
    }
}

/// Settings of sessions with upstream's clients.
fn kcp(settings: &SnowflakeServer) -> Kcp {
    Kcp {
        // Upstream sends 1,400 bytes, which its proxies put into two packets of SCTP each.
        mtu: SNOWFLAKE_MTU,
        memory: settings.session_memory,
        stream_buffer: settings.stream_buffer,
        ..Kcp::for_snowflake()
    }
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
    let (stopper, stop) = Stopper::new();
    let shared = Arc::new(Shared::new(settings)?);
    let (cores, addr) = start(&shared, &stop)?;
    let waited = Cores::block_on(async {
        let mut signals = Signals::new()?;
        ready(addr);
        let signalled = async {
            loop {
                match signals.next().await {
                    Signal::Stop => return,
                    Signal::User => shared.tell_memory(),
                    Signal::Upgrade => {}
                    Signal::Reload => {
                        if let Err(error) = shared.door.reload() {
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
fn start(shared: &Arc<Shared>, stop: &Stop) -> Result<(Cores, SocketAddr), SnowflakeError> {
    let settings = &shared.settings;
    let count = settings.instances.max(1);
    let listeners = listen_many(settings.listen, &ListenOptions::default(), count)?;
    let addr = listeners.addr;
    let mut cores = Cores::default();
    for (at, listener) in listeners.sockets.into_iter().enumerate() {
        let (shared, stop) = (shared.clone(), stop.clone());
        let main = move || core(shared, at, listener, stop);
        cores.start(format!("snowflake-{at}"), main).map_err(SnowflakeError::Loop)?;
    }
    Ok((cores, addr))
}

/// One event loop: its sessions, and the WebSockets that it accepts.
async fn core(shared: Arc<Shared>, at: usize, listener: TcpListener, stop: Stop) {
    let joiner = StreamJoiner::default();
    let streams = shared.clone();
    let take = move |stream: Stream, peer: SocketAddr| {
        let (shared, joiner) = (streams.clone(), joiner.clone());
        rt::spawn_local(async move { relay(&shared, stream, peer, &joiner).await });
    };
    let served = shared.clone();
    // A task each: to be woken costs the loop's first future a system call, and a look at the sockets.
    rt::spawn_local(async move {
        if let Err(error) = served.sessions.serve(served.door.hub(at), take).await {
            tracing::error!(%error, "sessions ended");
        }
    });
    if at == 0 {
        rt::spawn_local(tell_counts(shared.clone()));
    }
    let (door, mut ending) = (shared.door.clone(), stop.clone());
    rt::spawn_local(async move {
        if let Err(error) = door.serve(at, listener, Box::new(|| Box::new(())), stop).await {
            tracing::error!(%error, "the port is not served");
        }
    });
    ending.ending().await;
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

/// One stream of a client: joined with the target until both have ended.
async fn relay(shared: &Shared, stream: Stream, peer: SocketAddr, joiner: &StreamJoiner) {
    let client = client_of(peer);
    let address = client.and_then(|client| shared.door.find(client));
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
    joiner.join(stream, target).await;
}
