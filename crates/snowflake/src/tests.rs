//! Client and proxy together, over the loopback interface: with a broker that hands over offers and answers, and a server
//! that sends back the bytes of each stream.

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, VecDeque};
use std::fmt;
use std::net::SocketAddr;
use std::rc::Rc;
use std::time::{Duration, Instant};

use adit_model::{Dial, SnowflakeClient, SnowflakeProxy, WebUrl};
use adit_net::accept::Acceptor;
use adit_net::dial::Dialer;
use adit_net::listen::{ListenOptions, listen};
use adit_net::rt::{self, Cores, Stream};
use adit_net::websocket::{Limits, Message, WebSocket, accept};
use adit_proto::kcp::arq::{Arq, ArqSettings, Arrival};
use adit_proto::smux::{
    Mux, SmuxEvent, SmuxReceived, SmuxRole, SmuxSettings as MuxSettings, SmuxVersion, StreamId,
};
use adit_proto::snowflake::encapsulation::{Reader, SERVER_PACKET_LEN, push_packet};
use adit_proto::snowflake::messages::{
    AnswerReply, ClientPoll, ClientReply, NO_PROXIES, Nat, PollReply, PollStatus, ProxyAnswer, ProxyPoll,
};
use adit_proto::snowflake::{ClientId, PROLOGUE_LEN, Prologue, Scheme};
use adit_testkit::pattern;

use super::waiter::Waiter;
use super::*;
use crate::testing::until;

/// Keeps what was said.
#[derive(Default)]
struct Said {
    lines: RefCell<Vec<String>>,
    told: RefCell<Vec<String>>,
}

impl Said {
    fn count(&self, part: &str) -> usize {
        self.lines.borrow().iter().filter(|line| line.contains(part)).count()
    }
}

impl Voice for Said {
    fn log(&self, line: fmt::Arguments<'_>) {
        self.lines.borrow_mut().push(line.to_string());
    }

    fn tell(&self, severity: &str, message: &str) {
        self.told.borrow_mut().push(format!("{severity} {message}"));
    }
}

fn listener() -> (Acceptor, SocketAddr) {
    let (listener, _) = listen("127.0.0.1:0".parse().unwrap(), &ListenOptions::default()).unwrap();
    let acceptor = Acceptor::new(listener);
    let at = acceptor.local_addr().unwrap();
    (acceptor, at)
}

/// A proxy's poll that waits, or a client's offer that waits for its answer.
#[derive(Default)]
struct Slot {
    offer: RefCell<Option<String>>,
    answer: RefCell<Option<String>>,
    changed: Waiter,
}

/// A broker with one pool.
#[derive(Default)]
struct Broker {
    waiting: RefCell<VecDeque<Rc<Slot>>>,
    matched: RefCell<BTreeMap<String, Rc<Slot>>>,
    relay: RefCell<String>,
    /// Answers to clients that are made up, and answers to proxies.
    faults: RefCell<VecDeque<String>>,
    poll_faults: RefCell<VecDeque<String>>,
}

impl Broker {
    async fn serve(self: Rc<Self>, mut acceptor: Acceptor) {
        while let Ok((accepted, _)) = acceptor.accept().await {
            let broker = self.clone();
            rt::spawn_local(async move {
                let stream = Stream::from(accepted);
                let Some((path, body)) = Box::pin(request(&stream)).await else { return };
                let text = broker.answer(&path, &body).await;
                let head =
                    format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\nConnection: close\r\n\r\n", text.len());
                stream.send_all((head + &text).as_bytes()).await.ok();
            });
        }
    }

    async fn answer(&self, path: &str, body: &[u8]) -> String {
        match path {
            "/proxy" => {
                let fault = self.poll_faults.borrow_mut().pop_front();
                if let Some(fault) = fault {
                    return fault;
                }
                let poll = ProxyPoll::parse(body, Scheme::Current).unwrap();
                assert_eq!(poll.pattern.as_deref(), Some("$"));
                let slot = Rc::new(Slot::default());
                self.waiting.borrow_mut().push_back(slot.clone());
                let came = rt::timeout(Duration::from_secs(2), slot.changed.wait()).await;
                self.waiting.borrow_mut().retain(|other| !Rc::ptr_eq(other, &slot));
                let offer = slot.offer.borrow_mut().take();
                let Some(offer) = offer.filter(|_| came.is_ok()) else {
                    return PollReply::without_client(PollStatus::NoMatch, 100).emit(Scheme::Current);
                };
                self.matched.borrow_mut().insert(poll.sid, slot);
                let relay = self.relay.borrow().clone();
                let reply = PollReply {
                    status: PollStatus::Match,
                    offer,
                    nat: Some(Nat::Unrestricted),
                    next_poll_ms: 100,
                    relay,
                };
                reply.emit(Scheme::Current)
            }
            "/client" => {
                let fault = self.faults.borrow_mut().pop_front();
                if let Some(fault) = fault {
                    return fault;
                }
                let poll = ClientPoll::parse(body, Scheme::Current).unwrap();
                let slot = self.waiting.borrow_mut().pop_front();
                let Some(slot) = slot else { return ClientReply::Error(NO_PROXIES.to_owned()).emit() };
                *slot.offer.borrow_mut() = Some(poll.offer);
                slot.changed.wake();
                for _ in 0..500 {
                    rt::sleep(Duration::from_millis(10)).await;
                    let answer = slot.answer.borrow_mut().take();
                    if let Some(answer) = answer {
                        return ClientReply::Answer(answer).emit();
                    }
                }
                ClientReply::Error("timed out waiting for answer!".to_owned()).emit()
            }
            "/answer" => {
                let answer = ProxyAnswer::parse(body, Scheme::Current).unwrap();
                let slot = self.matched.borrow_mut().remove(&answer.sid);
                match slot {
                    None => AnswerReply::ClientGone.emit(),
                    Some(slot) => {
                        *slot.answer.borrow_mut() = Some(answer.answer);
                        AnswerReply::Success.emit()
                    }
                }
            }
            other => panic!("{other}"),
        }
    }
}

/// Path and body of a request.
async fn request(stream: &Stream) -> Option<(String, Vec<u8>)> {
    let mut bytes = Vec::new();
    let head = loop {
        if let Some(at) = bytes.windows(4).position(|window| window == b"\r\n\r\n") {
            break at + 4;
        }
        read_more(stream, &mut bytes).await?;
    };
    let text = String::from_utf8_lossy(&bytes[..head]).to_ascii_lowercase();
    let len = text.lines().find_map(|line| line.strip_prefix("content-length: "));
    let len: usize = len.map_or(0, |len| len.trim().parse().unwrap());
    while bytes.len() < head + len {
        read_more(stream, &mut bytes).await?;
    }
    let path = text.split(' ').nth(1)?.to_owned();
    Some((path, bytes.split_off(head)))
}

async fn read_more(stream: &Stream, bytes: &mut Vec<u8>) -> Option<()> {
    let mut block = [0; 1024];
    let len = stream.recv(&mut block).await.ok().filter(|len| *len > 0)?;
    bytes.extend(&block[..len]);
    Some(())
}

/// A client's conversation.
struct Far {
    arq: Arq,
    mux: Mux,
    streams: Vec<StreamId>,
    /// Bytes that could not be sent back yet.
    back: VecDeque<u8>,
}

/// A server that sends back what comes.
#[derive(Default)]
struct Server {
    sessions: RefCell<BTreeMap<ClientId, Rc<RefCell<Far>>>>,
    sockets: Cell<usize>,
    /// Targets of the requests, with `client_ip`.
    asked: RefCell<Vec<String>>,
    /// Open sockets over which a client has spoken close when this grows.
    cuts: Cell<usize>,
    /// The same for those over which none has.
    idle_cuts: Cell<usize>,
}

impl Server {
    async fn serve(self: Rc<Self>, mut acceptor: Acceptor) {
        while let Ok((accepted, _)) = acceptor.accept().await {
            let server = self.clone();
            rt::spawn_local(async move {
                let opened = accept(Stream::from(accepted), Vec::new(), Limits::default()).await;
                let Ok((socket, opening)) = opened else { return };
                server.asked.borrow_mut().push(opening.target);
                server.carry(socket).await;
            });
        }
    }

    async fn carry(&self, mut socket: WebSocket<Stream>) {
        let (mut cuts, idle_cuts) = (self.cuts.get(), self.idle_cuts.get());
        let (mut first, mut far) = (Vec::new(), None::<Rc<RefCell<Far>>>);
        let mut reader = Reader::new(SERVER_PACKET_LEN);
        loop {
            let message = rt::timeout(Duration::from_millis(5), socket.receive()).await;
            let now = rt::now();
            let mut bytes: Vec<u8> = match message {
                Ok(Ok(Some(Message::Binary(bytes)))) => bytes.to_vec(),
                Ok(Ok(Some(Message::Text(text)))) => text.into_bytes(),
                Ok(_) => return,
                Err(_) => Vec::new(),
            };
            if far.is_some() && self.cuts.get() > cuts || far.is_none() && self.idle_cuts.get() > idle_cuts {
                socket.close().await.ok();
                return;
            }
            if far.is_none() {
                first.append(&mut bytes);
                let Prologue::Complete(id) = Prologue::parse(&first) else { continue };
                self.sockets.set(self.sockets.get() + 1);
                cuts = self.cuts.get();
                bytes = first.split_off(PROLOGUE_LEN);
                let known = self.sessions.borrow().get(&id).cloned();
                if known.is_none() && bytes.is_empty() {
                    // The conversation's number comes with the first packet.
                    first = Prologue::emit(id).to_vec();
                    self.sockets.set(self.sockets.get() - 1);
                    continue;
                }
                far = Some(known.unwrap_or_else(|| {
                    // Behind the prefix of a chunk.
                    let at = bytes.iter().position(|byte| byte & 0x80 == 0 || *byte & 0x40 == 0).unwrap_or(0);
                    let prefix = if bytes[0] & 0x40 == 0 { 1 } else { 2 };
                    assert!(at <= prefix);
                    let conv = u32::from_le_bytes(bytes[prefix..prefix + 4].try_into().unwrap());
                    let far = Rc::new(RefCell::new(Far::new(conv, now)));
                    self.sessions.borrow_mut().insert(id, far.clone());
                    far
                }));
            }
            let Some(far) = &far else { continue };
            let out = far.borrow_mut().step(&mut reader, &bytes, now);
            for message in out {
                if socket.send(Message::Binary(message.into())).await.is_err() {
                    return;
                }
            }
        }
    }
}

impl Far {
    fn new(conv: u32, now: Instant) -> Self {
        let settings = ArqSettings {
            interval: Duration::from_millis(10),
            congestion: false,
            send_window: 1024,
            recv_window: 4096,
            ..ArqSettings::default()
        };
        // It says nothing by itself.
        let keep_alive = Duration::from_secs(3600);
        let mux = MuxSettings {
            version: SmuxVersion::V2,
            stream_window: 1 << 20,
            keep_alive,
            keep_alive_timeout: keep_alive,
            ..MuxSettings::default()
        };
        Self {
            arq: Arq::new(conv, settings, now),
            mux: Mux::new(SmuxRole::Server, mux, now),
            streams: Vec::new(),
            back: VecDeque::new(),
        }
    }

    fn step(&mut self, reader: &mut Reader, mut bytes: &[u8], now: Instant) -> Vec<Vec<u8>> {
        while !bytes.is_empty() {
            if let Some(packet) = reader.next(&mut bytes).unwrap() {
                self.arq.handle_datagram(packet, Arrival::Received, now).unwrap();
            }
        }
        while !self.arq.peek().is_empty() {
            let taken = self.mux.handle_input(self.arq.peek()).unwrap();
            self.arq.consume(taken);
        }
        while let Some(event) = self.mux.poll_event() {
            if let SmuxEvent::Opened(id) = event {
                self.streams.push(id);
            }
        }
        for id in self.streams.clone() {
            let mut block = [0; 4096];
            loop {
                match self.mux.recv(id, &mut block, now) {
                    SmuxReceived::Bytes(len) => self.back.extend(&block[..len]),
                    SmuxReceived::End if self.back.is_empty() => {
                        self.mux.finish(id);
                        break;
                    }
                    SmuxReceived::End | SmuxReceived::Empty | SmuxReceived::Reset => break,
                }
            }
            let sent = self.mux.send(id, self.back.make_contiguous());
            self.back.drain(..sent);
        }
        self.mux.handle_timeout(now);
        let (mut out, mut packet) = (Vec::new(), Vec::new());
        loop {
            let mut frames = Vec::new();
            while self.arq.room() > 16_384 && self.mux.poll_transmit(&mut frames, 1) {
                assert_eq!(self.arq.send(&frames), frames.len());
                frames.clear();
            }
            packet.clear();
            if !self.arq.poll_transmit(now, &mut packet) {
                return out;
            }
            let mut message = Vec::new();
            push_packet(&mut message, &packet);
            out.push(message);
        }
    }
}

/// Broker, server, a proxy and a client's port.
struct World {
    broker: Rc<Broker>,
    server: Rc<Server>,
    client: Rc<Said>,
    proxy: Rc<Said>,
    metrics: Rc<ProxyMetrics>,
    port: SocketAddr,
}

fn arguments(settings: &SnowflakeClient, text: &str) -> Result<SnowflakeClient, String> {
    match text {
        "" => Ok(settings.clone()),
        "max=2" => Ok(SnowflakeClient { max: 2, ..settings.clone() }),
        "imitate" => Ok(SnowflakeClient { imitates: Some("hellochrome_auto".into()), ..settings.clone() }),
        _ => Err("no such argument".to_owned()),
    }
}

impl World {
    fn new(relay: impl FnOnce(SocketAddr) -> String) -> Self {
        let (acceptor, at) = listener();
        let broker = Rc::new(Broker::default());
        rt::spawn_local(broker.clone().serve(acceptor));
        let url = WebUrl::parse(&format!("http://{at}/")).unwrap();
        let (acceptor, at) = listener();
        let server = Rc::new(Server::default());
        rt::spawn_local(server.clone().serve(acceptor));
        *broker.relay.borrow_mut() = relay(at);
        let relay = format!("ws://{at}/").into();
        let settings = SnowflakeProxy::on_one_machine(url.clone(), relay);
        let (proxy, metrics) = (Rc::new(Said::default()), Rc::new(ProxyMetrics::default()));
        let run = run_snowflake_proxy(settings, metrics.clone(), proxy.clone());
        rt::spawn_local(async move { Box::pin(run).await.unwrap() });
        let settings = SnowflakeClient { broker: Some(url), keep_local: true, ..SnowflakeClient::default() };
        let (acceptor, port) = listener();
        let client = Rc::new(Said::default());
        let run = run_snowflake_client(acceptor, settings, arguments, client.clone());
        rt::spawn_local(async move { Box::pin(run).await.unwrap() });
        Self { broker, server, client, proxy, metrics, port }
    }

    /// Waits until the client has said this so often.
    async fn wait_for(&self, count: usize, part: &str) {
        let said = async {
            while self.client.count(part) < count {
                rt::sleep(Duration::from_millis(10)).await;
            }
        };
        let in_time = rt::timeout(Duration::from_secs(60), said).await;
        assert!(in_time.is_ok(), "not {count} times {part}: {:?}", self.client.lines.borrow());
    }

    /// A stream through the client's port.
    async fn open(&self, user: &str) -> Result<Stream, Vec<u8>> {
        let dialer = Dialer::by_system(&Dial::default());
        let stream = Stream::from(dialer.dial(&self.port.to_string().parse().unwrap()).await.unwrap());
        if user.is_empty() {
            stream.send_all(&[5, 1, 0]).await.unwrap();
            assert_eq!(exact(&stream, 2).await, [5, 0]);
        } else {
            stream.send_all(&[5, 1, 2]).await.unwrap();
            assert_eq!(exact(&stream, 2).await, [5, 2]);
            let len = u8::try_from(user.len()).unwrap();
            stream.send_all(&[&[1, len], user.as_bytes(), &[1, 0]].concat()).await.unwrap();
            assert_eq!(exact(&stream, 2).await, [1, 0]);
        }
        stream.send_all(&[5, 1, 0, 1, 192, 0, 2, 3, 0, 80]).await.unwrap();
        let reply = exact(&stream, 10).await;
        if reply == [5, 0, 0, 1, 0, 0, 0, 0, 0, 0] { Ok(stream) } else { Err(reply) }
    }
}

async fn exact(stream: &Stream, len: usize) -> Vec<u8> {
    let mut out = vec![0; len];
    let mut at = 0;
    while at < len {
        let got = stream.recv(&mut out[at..]).await.unwrap();
        assert!(got > 0, "{at} of {len} bytes");
        at += got;
    }
    out
}

/// Sends `bytes` and reads as many back.
async fn echo(stream: &Stream, bytes: &[u8]) {
    let send = async {
        stream.send_all(bytes).await.unwrap();
        std::future::pending::<()>().await;
    };
    let read = async {
        assert!(exact(stream, bytes.len()).await == bytes);
    };
    let in_time = rt::timeout(Duration::from_secs(120), rt::race(read, send)).await;
    in_time.expect("the bytes come back");
}

#[test]
fn bytes_go_there_and_back() {
    Cores::block_on(Box::pin(async {
        let world = World::new(|at| format!("ws://{at}/some/path?x=1"));
        let stream = world.open("").await.unwrap();
        echo(&stream, b"hello").await;
        echo(&stream, &pattern(1 << 20)).await;
        // Another connection has a session and a proxy of its own.
        let other = world.open("imitate").await.unwrap();
        echo(&other, &pattern(5000)).await;
        assert_eq!(world.server.sessions.borrow().len(), 2);
        assert!(world.server.asked.borrow().iter().any(|target| target.starts_with("/some/path?")));
        let told = world.client.told.borrow().join("\n");
        assert!(told.contains("notice offer created") && told.contains("notice connected"), "{told}");
        assert!(told.contains("warning utls-imitate=hellochrome_auto is not obeyed"), "{told}");
        for part in ["SOCKS accepted: {", "Rendezvous using Broker at: http://", "WebRTC: DataChannel.OnOpen"]
        {
            assert!(world.client.count(part) > 0, "{part}");
        }
        drop(stream);
        until("both ends are told", async || {
            world.client.count("Handler ended") == 1 && world.proxy.count("datachannelHandler ends") == 1
        })
        .await;
        let summary = world.metrics.summarise(Duration::from_secs(60));
        assert!(summary.contains("there were 2 completed successful connections"), "{summary}");
    }))
    .unwrap();
}

#[test]
fn the_next_proxy_takes_over() {
    Cores::block_on(Box::pin(async {
        let world = World::new(|at| format!("ws://{at}/"));
        let stream = world.open("").await.unwrap();
        echo(&stream, b"hello").await;
        let server = world.server.clone();
        rt::spawn_local(async move {
            // In the middle of the rounds below, which pause for twice as long.
            rt::sleep(Duration::from_millis(300)).await;
            server.cuts.set(1);
        });
        let began_at = rt::now();
        for _ in 0..20 {
            echo(&stream, &pattern(100_000)).await;
            rt::sleep(Duration::from_millis(30)).await;
        }
        assert!(rt::now() - began_at > Duration::from_millis(300));
        assert_eq!(world.server.sessions.borrow().len(), 1, "the session outlives its proxy");
        assert_eq!(world.server.sockets.get(), 2);
        assert_eq!(world.client.count("snowflake assigned"), 2);
    }))
    .unwrap();
}

/// Proxies are given up after 20 s without data, and clients after 30 s: the client's signs of life, which the server
/// acknowledges, keep both from that.
#[test]
#[ignore = "takes 35 s"]
fn an_idle_stream_keeps_its_proxy() {
    Cores::block_on(Box::pin(async {
        let world = World::new(|at| format!("ws://{at}/"));
        let stream = world.open("").await.unwrap();
        echo(&stream, b"hello").await;
        // Longer than a proxy or a client may be silent.
        rt::sleep(Duration::from_secs(35)).await;
        echo(&stream, b"still there").await;
        assert_eq!((world.server.sockets.get(), world.client.count("snowflake assigned")), (1, 1));
        assert_eq!(world.client.count("closing"), 0, "{:?}", world.client.lines.borrow());
        assert_eq!(world.proxy.count("datachannelHandler ends"), 0);
    }))
    .unwrap();
}

/// The proxy at hand is there before the broker is asked for another one.
#[test]
fn of_two_proxies_one_takes_over_and_is_made_up_for() {
    Cores::block_on(Box::pin(async {
        let world = World::new(|at| format!("ws://{at}/"));
        let stream = world.open("max=2").await.unwrap();
        echo(&stream, b"hello").await;
        world.wait_for(1, "At capacity [2/2]").await;
        assert_eq!(world.client.count("snowflake assigned"), 1, "one is in use, and one is at hand");
        // No proxy for a while: a client that has none at hand waits 2 s.
        world.broker.faults.borrow_mut().push_back(ClientReply::Error(NO_PROXIES.to_owned()).emit());
        world.server.cuts.set(1);
        echo(&stream, &pattern(100_000)).await;
        world.wait_for(2, "At capacity [2/2]").await;
        assert!(world.client.count("no snowflake proxies currently available  Retrying") > 0);
        {
            let lines = world.client.lines.borrow();
            let of = |part: &str, nth: usize| {
                let mut all = lines.iter().enumerate().filter(|(_, line)| line.contains(part));
                all.nth(nth).unwrap_or_else(|| panic!("{part}: {lines:?}")).0
            };
            let (second, third) = (of("DataChannel.OnOpen", 1), of("DataChannel.OnOpen", 2));
            let assigned = of("snowflake assigned", 1);
            assert!(second < assigned && assigned < third, "{lines:?}");
        }
        // The one at hand dies without having been used: another one is found, and the stream does not notice.
        // The proxy asks once by itself when it starts.
        while world.server.asked.borrow().len() < 4 {
            rt::sleep(Duration::from_millis(10)).await;
        }
        world.server.idle_cuts.set(1);
        world.wait_for(3, "At capacity [2/2]").await;
        echo(&stream, &pattern(10_000)).await;
        assert_eq!(world.client.count("snowflake assigned"), 2);
        assert_eq!(world.client.count("DataChannel.OnOpen"), 4);
        assert_eq!(world.server.sessions.borrow().len(), 1, "the session outlives its proxies");
    }))
    .unwrap();
}

#[test]
fn brokers_and_arguments_that_are_wrong() {
    // Descriptions of 1 MB end at 100,000 bytes, at either end.
    let long = "a=x ".repeat(250_000);
    Cores::block_on(Box::pin(async {
        let world = World::new(|at| format!("ws://{at}/"));
        world.broker.faults.borrow_mut().extend([
            "{\"error\":\"no snowflake proxies currently available\"}".to_owned(),
            "{\"answer\":\"{\\\"type\\\":\\\"answer\\\",\\\"sdp\\\":\\\"v=0\\\"}\"}".to_owned(),
            format!("{{\"answer\":\"{{\\\"type\\\":\\\"answer\\\",\\\"sdp\\\":\\\"{long}\\\"}}\"}}"),
        ]);
        world.broker.poll_faults.borrow_mut().push_back(format!(
            "{{\"Status\":\"client match\",\"Offer\":\"{{\\\"type\\\":\\\"offer\\\",\\\"sdp\\\":\\\"{long}\\\"}}\",\"NAT\":\"open\"}}"
        ));
        assert_eq!(world.open("nonsense").await.unwrap_err()[..2], [5, 1]);
        assert_eq!(world.client.count("SOCKS accept error: no such argument"), 1);
        let stream = world.open("").await.unwrap();
        echo(&stream, b"hello").await;
        assert_eq!(world.client.count("no snowflake proxies currently available  Retrying"), 1);
        assert_eq!(world.client.count("no usable data channel section  Retrying"), 1);
        assert_eq!(world.client.count("longer than 100000 bytes  Retrying"), 1, "{:?}", world.client.lines.borrow());
        assert_eq!(world.proxy.count("Error polling broker: "), 1, "{:?}", world.proxy.lines.borrow());
        let told = world.client.told.borrow().join("\n");
        assert!(told.contains("notice broker failure no snowflake proxies currently available"), "{told}");
    }))
    .unwrap();
}
