//! A client of adit's own state machines against the server, over WebSockets that come and go.

use std::cell::RefCell;

use adit_model::SnowflakeTarget;
use adit_net::dial::Dialer;
use adit_net::websocket::{self, WireReader};
use adit_proto::kcp::arq::{Arq, ArqSettings, Arrival};
use adit_proto::smux::{self, Mux, SmuxReceived, SmuxRole, StreamId};
use adit_proto::snowflake::encapsulation::{Reader, push_packet};
use adit_proto::snowflake::{ClientId, Prologue};

use super::*;

/// Bytes of a test's message.
const LEN: usize = 300_000;

fn settings(target: SocketAddr) -> SnowflakeServer {
    SnowflakeServer {
        listen: ([127, 0, 0, 1], 0).into(),
        tls: None,
        target: SnowflakeTarget::Plain(target),
        source: None,
        instances: 1,
        session_memory: SnowflakeServer::SESSION_MEMORY,
        total_memory: Some(64 << 20),
        stream_buffer: None,
        shows_addresses: false,
    }
}

/// A client's session, without a network.
struct Client {
    id: ClientId,
    arq: Arq,
    mux: Mux,
    stream: StreamId,
    pending: Vec<u8>,
}

impl Client {
    fn new(id: u8) -> Self {
        let now = rt::now();
        let settings =
            ArqSettings { send_window: 1024, recv_window: 1024, congestion: false, ..ArqSettings::default() };
        let mut mux = Mux::new(SmuxRole::Client, smux::SmuxSettings::default(), now);
        let stream = mux.open().unwrap();
        Self { id: ClientId([id; 8]), arq: Arq::new(7, settings, now), mux, stream, pending: Vec::new() }
    }

    /// Takes packets, and returns chunks for the server.
    fn turn(&mut self, packets: &[Vec<u8>]) -> Vec<u8> {
        let now = rt::now();
        for packet in packets {
            self.arq.handle_datagram(packet, Arrival::Received, now).unwrap();
        }
        while !self.arq.peek().is_empty() {
            let taken = self.mux.handle_input(self.arq.peek()).unwrap();
            self.arq.consume(taken);
            if taken == 0 {
                break;
            }
        }
        while self.mux.poll_event().is_some() {}
        loop {
            if self.pending.is_empty()
                && (self.arq.room() == 0 || !self.mux.poll_transmit(&mut self.pending, 1))
            {
                break;
            }
            let sent = self.arq.send(&self.pending);
            self.pending.drain(..sent);
            if sent == 0 {
                break;
            }
        }
        let mut chunks = Vec::new();
        loop {
            let mut packet = Vec::new();
            if !self.arq.poll_transmit(now, &mut packet) {
                return chunks;
            }
            push_packet(&mut chunks, &packet);
        }
    }
}

/// A WebSocket of a proxy.
struct Proxy {
    reader: RefCell<(WireReader, Reader)>,
    writer: RefCell<websocket::WireWriter>,
}

impl Proxy {
    async fn open(at: SocketAddr, client: &Client) -> Self {
        let (reader, writer) = websocket::dial_for_tests(at, "/?client_ip=192.0.2.7").await;
        let writer = RefCell::new(writer);
        let reader = RefCell::new((reader, Reader::new(1500)));
        let proxy = Self { reader, writer };
        proxy.send(&Prologue::emit(client.id)).await;
        proxy
    }

    #[expect(clippy::await_holding_refcell_ref, reason = "one task")]
    async fn send(&self, bytes: &[u8]) {
        self.writer.borrow_mut().send_all(bytes).await.unwrap();
    }

    /// Packets that have come within some milliseconds.
    #[expect(clippy::await_holding_refcell_ref, reason = "one task")]
    async fn packets(&self) -> Vec<Vec<u8>> {
        let mut guard = self.reader.borrow_mut();
        let (reader, chunks) = &mut *guard;
        let (mut buffer, mut out) = (vec![0; 64 << 10], Vec::new());
        if let Ok(Ok(len)) = rt::timeout(Duration::from_millis(2), reader.recv(&mut buffer)).await {
            let mut bytes = &buffer[..len];
            while let Some(packet) = chunks.next(&mut bytes).unwrap() {
                out.push(packet.to_vec());
            }
        }
        out
    }
}

/// A service that echoes, and ends when its peer has ended.
fn echo() -> SocketAddr {
    service(async |stream| {
        let mut buffer = vec![0; 64 << 10];
        while let Ok(len) = stream.recv(&mut buffer).await {
            if len == 0 || stream.send_all(&buffer[..len]).await.is_err() {
                break;
            }
        }
        stream.shutdown_write().ok();
    })
}

/// A service that sends without end.
fn fountain() -> SocketAddr {
    service(async |stream| while stream.send_all(&[7; 16 << 10]).await.is_ok() {})
}

/// A service that does this with each of its connections.
fn service<S: AsyncFn(Stream) + Copy + 'static>(serve: S) -> SocketAddr {
    let (listener, _) =
        adit_net::listen::listen(([127, 0, 0, 1], 0).into(), &ListenOptions::default()).unwrap();
    let mut acceptor = adit_net::accept::Acceptor::new(listener);
    let at = acceptor.local_addr().unwrap();
    rt::spawn_local(async move {
        while let Ok((accepted, _)) = acceptor.accept().await {
            rt::spawn_local(async move { serve(Stream::from(accepted)).await });
        }
    });
    at
}

fn message() -> Vec<u8> {
    adit_testkit::pattern(LEN)
}

#[test]
fn a_session_outlives_its_proxies_and_every_byte_comes_back() {
    Cores::block_on(async {
        let (stopper, stop) = Stopper::new();
        let (cores, at) = start(&Arc::new(Shared::new(&settings(echo())).unwrap()), &stop).unwrap();
        let mut client = Client::new(1);
        let (message, mut sent, mut got) = (message(), 0, Vec::<u8>::new());
        let mut proxy = Proxy::open(at, &client).await;
        let (began, mut changes) = (rt::now(), 0);
        while got.len() < LEN {
            assert!(began.elapsed() < Duration::from_secs(120), "{} of {LEN} bytes", got.len());
            sent += client.mux.send(client.stream, &message[sent..]);
            let packets = proxy.packets().await;
            let chunks = client.turn(&packets);
            proxy.send(&chunks).await;
            let mut buffer = vec![0; 64 << 10];
            while let SmuxReceived::Bytes(len) = client.mux.recv(client.stream, &mut buffer, rt::now()) {
                got.extend(&buffer[..len]);
            }
            // Two proxies vanish on the way, with all that they carry.
            if changes < 2 && got.len() > (changes + 1) * LEN / 4 {
                changes += 1;
                proxy = Proxy::open(at, &client).await;
            }
        }
        assert_eq!((changes, got == message), (2, true));
        stopper.end();
        cores.join();
    })
    .unwrap();
}

#[test]
fn other_tokens_are_refused_and_the_port_speaks_websocket_alone() {
    Cores::block_on(async {
        let (stopper, stop) = Stopper::new();
        let (cores, at) =
            start(&Arc::new(Shared::new(&settings(([127, 0, 0, 1], 9).into())).unwrap()), &stop).unwrap();
        let (mut reader, mut writer) = websocket::dial_for_tests(at, "/").await;
        writer.send_all(b"GET / HTTP/1.0").await.unwrap();
        let ended = rt::timeout(Duration::from_secs(60), reader.recv(&mut [0; 16])).await;
        assert!(matches!(ended, Ok(Ok(0) | Err(_))), "{ended:?}");
        let plain: Stream =
            Dialer::by_system(&adit_model::Dial::default()).dial_addrs(&[at]).await.unwrap().into();
        plain.send_all(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n").await.unwrap();
        let mut reply = vec![0; 64];
        let len = plain.recv(&mut reply).await.unwrap();
        assert!(reply[..len].starts_with(b"HTTP/1.1 400 "));
        stopper.end();
        cores.join();
    })
    .unwrap();
}

/// Half of them acknowledge what comes and never read it; the other half do not even take it from their WebSockets.
#[test]
fn clients_that_never_read_hold_no_more_than_the_bound_and_others_are_served() {
    const DEAF: u8 = 64;
    const TOTAL: usize = 16 << 20;
    Cores::block_on(async {
        let (stopper, stop) = Stopper::new();
        let bounds = SnowflakeServer { total_memory: Some(TOTAL), ..settings(fountain()) };
        let shared = Arc::new(Shared::new(&bounds).unwrap());
        let (cores, at) = start(&shared, &stop).unwrap();
        let mut deaf = Vec::new();
        for id in 1..=DEAF {
            let mut client = Client::new(id);
            client.mux.send(client.stream, b"hello");
            let proxy = Proxy::open(at, &client).await;
            proxy.send(&client.turn(&[])).await;
            deaf.push((client, proxy));
        }
        let (began, mut since, mut used) = (rt::now(), rt::now(), 0);
        while since.elapsed() < Duration::from_secs(2) && began.elapsed() < Duration::from_secs(120) {
            for (client, proxy) in &mut deaf[..usize::from(DEAF) / 2] {
                let packets = proxy.packets().await;
                proxy.send(&client.turn(&packets)).await;
            }
            let now = shared.sessions.memory().used;
            if now != std::mem::replace(&mut used, now) {
                since = rt::now();
            }
        }
        let status = shared.sessions.memory();
        assert!(status.peak <= TOTAL && status.used > TOTAL / 2, "{status:?}");
        // One that reads gets its bytes all the same.
        let mut client = Client::new(DEAF + 1);
        client.mux.send(client.stream, b"hello");
        let proxy = Proxy::open(at, &client).await;
        let (began, mut got, mut buffer) = (rt::now(), 0, vec![0; 64 << 10]);
        while got < LEN {
            assert!(began.elapsed() < Duration::from_secs(120), "{got} of {LEN} bytes");
            let packets = proxy.packets().await;
            while let SmuxReceived::Bytes(len) = client.mux.recv(client.stream, &mut buffer, rt::now()) {
                got += len;
            }
            proxy.send(&client.turn(&packets)).await;
        }
        drop(deaf);
        stopper.end();
        cores.join();
    })
    .unwrap();
}
