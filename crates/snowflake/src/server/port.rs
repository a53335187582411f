//! The port that proxies come to, and the place where their WebSockets meet the sessions of clients.

use std::io;
use std::net::{IpAddr, SocketAddr, TcpListener};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use adit_engine::keep_certificate;
use adit_engine::{Hold, Hub, PacketPort, PortFuture};
use adit_model::TlsFiles;
use adit_net::reach::private_kind;
use adit_net::rt::{self, Stop};
use adit_net::tls_server::TlsIdentity;
use adit_net::websocket::{self, Opened, WebSocketPort, WireReader};
use adit_proto::snowflake::encapsulation::{Reader, SERVER_PACKET_LEN, push_packet};
use adit_proto::snowflake::{ClientId, PROLOGUE_LEN, Prologue};

use super::addresses::{Ring, address_of, client_of, named};

/// Bounds of a WebSocket: peers send 2 KiB to 64 KiB; the buffer is what an idle one costs.
const LIMITS: websocket::Limits =
    websocket::Limits { message: 1 << 20, write: 16 << 10, buffer: 4 << 10, head: 8 << 10 };
/// Bytes of one read of a WebSocket.
const READ: usize = 16 << 10;
/// Time for the first 16 bytes. Clients keep proxies in stock that they have not used yet.
const PROLOGUE_TIME: Duration = Duration::from_secs(600);
/// Pause between two looks for queues that nobody needs.
const SWEEP: Duration = Duration::from_secs(30);

/// The port of a server, over all event loops.
#[derive(Debug)]
pub(crate) struct Door {
    /// One for each event loop. A client's name tells which one is its own.
    hubs: Vec<Arc<Hub>>,
    ring: Mutex<Ring>,
    tls: Option<TlsIdentity>,
    files: Option<TlsFiles>,
    /// A task sees to it that the certificate stays valid.
    is_kept: AtomicBool,
}

impl Door {
    /// A port with TLS out of these files, or without. `memory` is the bound of all sessions in bytes: packets that wait
    /// for WebSockets get half as much again.
    ///
    /// # Errors
    /// When the files cannot be used.
    pub(crate) fn new(tls: Option<&TlsFiles>, count: usize, memory: usize) -> io::Result<Self> {
        let files = tls.cloned();
        let tls = tls.map(TlsIdentity::open).transpose()?;
        let queued = memory / 2 / count;
        let hubs = (0..count).map(|_| Arc::new(Hub::new(push_packet, queued))).collect();
        Ok(Self { hubs, ring: Mutex::default(), tls, files, is_kept: AtomicBool::new(false) })
    }

    /// Reads the files of the certificate again.
    ///
    /// # Errors
    /// When they cannot be used: the certificate that was read before stays.
    pub(crate) fn reload(&self) -> io::Result<()> {
        self.tls.as_ref().map_or(Ok(()), TlsIdentity::reload)
    }

    /// The address of a client by the word of its proxy: `None` when there is no entry, `Some(None)` when its proxy named
    /// none.
    pub(super) fn find(&self, client: ClientId) -> Option<Option<IpAddr>> {
        self.ring().find(client)
    }

    /// Serves event loop `at`; a certificate that adit fetches is renewed meanwhile.
    async fn run(
        self: Arc<Self>,
        at: usize,
        listener: TcpListener,
        hold: Hold,
        stop: Stop,
    ) -> io::Result<()> {
        let (swept, mut ending) = (self.clone(), stop.clone());
        rt::spawn_local(async move {
            rt::race(ending.ending(), swept.sweep(at)).await;
        });
        let certificate = self.clone().keep(listener.local_addr()?);
        let max_connections = most_connections(self.hubs.len());
        let port = WebSocketPort { listener, tls: self.tls.clone(), limits: LIMITS, max_connections };
        let ending = stop.clone();
        let take = move |opened| {
            let (door, mut ending, held) = (self.clone(), ending.clone(), hold());
            async move {
                rt::race(ending.ending(), carry(&door, opened)).await;
                drop(held);
            }
        };
        rt::race(port.serve(stop, take), certificate).await
    }

    /// Keeps a certificate valid that adit fetches: one task of all that serve the door. Never returns.
    async fn keep(self: Arc<Self>, listen: SocketAddr) -> io::Result<()> {
        if !self.is_kept.swap(true, Ordering::Relaxed) {
            keep_certificate(self.files.as_ref(), self.tls.as_ref(), listen).await;
        }
        std::future::pending().await
    }

    /// Drops queues that nobody needs; the first event loop looks for a new certificate too.
    async fn sweep(&self, at: usize) {
        loop {
            rt::sleep(SWEEP).await;
            self.hubs[at].sweep(rt::now());
            if at == 0
                && let Some(Err(error)) = self.tls.as_ref().map(TlsIdentity::follow)
            {
                tracing::warn!(%error, "the certificate's files have changed and cannot be used");
            }
        }
    }

    /// The hub of a client's session.
    fn hub_of(&self, client: ClientId) -> &Arc<Hub> {
        let number = u64::from_le_bytes(client.0);
        let count = u64::try_from(self.hubs.len()).unwrap_or(1);
        &self.hubs[usize::try_from(number % count).unwrap_or(0)]
    }

    fn ring(&self) -> MutexGuard<'_, Ring> {
        self.ring.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl PacketPort for Door {
    fn hub(&self, at: usize) -> Arc<Hub> {
        self.hubs[at].clone()
    }

    /// The client's address by the word of its proxy, if others can have it; otherwise the session's own.
    fn source(&self, peer: SocketAddr) -> SocketAddr {
        let told = client_of(peer).and_then(|client| self.find(client)).flatten();
        told.filter(|ip| private_kind(*ip).is_none()).map_or(peer, |ip| SocketAddr::new(ip, 1))
    }

    fn serve(self: Arc<Self>, at: usize, listener: TcpListener, hold: Hold, stop: Stop) -> PortFuture {
        Box::pin(self.run(at, listener, hold, stop))
    }
}

/// WebSockets of one event loop: half of the descriptors, for each has a connection behind it.
fn most_connections(cores: usize) -> usize {
    let limit = adit_net::fd_limit().map_or(1024, |(soft, _)| soft);
    usize::try_from(limit).unwrap_or(1 << 20).min(1 << 20) / 2 / cores
}

/// One WebSocket: packets both ways until either side ends.
async fn carry(door: &Door, opened: Opened) {
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
    door.ring().set(client, named(&target));
    let (hub, address) = (door.hub_of(client).clone(), address_of(client));
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
