//! The local port's HTTP side, end to end on loopback: straight to the target, and through a Snell server.

use std::io::{BufRead, BufReader, ErrorKind, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use adit_engine::{Running, Status, start};
use adit_model::{
    Config, Dial, HalfClose, Inbound, InboundProtocol, Limits, Local, LocalProtocols, ObfsClient, ObfsServer,
    Outbound, OutboundProtocol, Quic, Reply, Secret, SnellClient, SnellServer, SnellVersion, SnellVersions,
    SocketOptions, User, UserLimits,
};
use adit_testkit::{unused_addr, wait_for};

/// No test may take longer.
const TEST_DEADLINE: Duration = Duration::from_secs(300);
/// No single read or write may.
const IO_DEADLINE: Duration = Duration::from_secs(60);
const MIB: usize = 1 << 20;

/// A proxy, and the server behind it if there is one.
struct Proxy {
    addr: SocketAddr,
    running: Vec<Running>,
}

impl Proxy {
    fn status(&self) -> Status {
        self.running.last().unwrap().status()
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        for running in self.running.drain(..) {
            running.end();
        }
    }
}

fn run(protocol: InboundProtocol, out: OutboundProtocol) -> (Running, SocketAddr) {
    let config = Config {
        cores: Some(1),
        limits: Limits { drain: Duration::ZERO, ..Limits::default() },
        inbounds: vec![Inbound {
            name: "in".into(),
            listen: vec!["127.0.0.1:0".parse().unwrap()],
            socket: SocketOptions::default(),
            outbound: "out".into(),
            allow_private: true,
            protocol,
        }],
        outbounds: vec![Outbound {
            name: "out".into(),
            dial: Dial { dns: vec![name_server().into()], ..Dial::default() },
            protocol: out,
        }],
        ..Config::default()
    };
    let running = start(&config).unwrap();
    let addr = running.addresses()[0].1;
    (running, addr)
}

/// A name server that knows no names.
fn name_server() -> SocketAddr {
    let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
    let addr = socket.local_addr().unwrap();
    thread::spawn(move || {
        let mut bytes = [0; 1500];
        while let Ok((len, peer)) = socket.recv_from(&mut bytes) {
            bytes[2] |= 0x80;
            bytes[3] = 0x83;
            // The question alone comes back.
            bytes[10..12].fill(0);
            let end = 12 + bytes[12..len].iter().position(|&byte| byte == 0).unwrap() + 5;
            drop(socket.send_to(&bytes[..end], peer));
        }
    });
    addr
}

fn local(users: &[(&str, &str)]) -> InboundProtocol {
    InboundProtocol::Local(Local {
        accepts: LocalProtocols::Mixed,
        users: users
            .iter()
            .map(|(name, password)| User::from(((*name).into(), Secret::new(*password))))
            .collect(),
        reply: Reply::Early,
        open_to: Vec::new(),
    })
}

fn direct(users: &[(&str, &str)]) -> Proxy {
    let (running, addr) = run(local(users), OutboundProtocol::Direct);
    Proxy { addr, running: vec![running] }
}

/// A local port with one user, ann, whose password is p.
fn limited(limits: UserLimits) -> Proxy {
    let InboundProtocol::Local(mut local) = local(&[("ann", "p")]) else { unreachable!("it is one") };
    local.users[0].limits = limits;
    let (running, addr) = run(InboundProtocol::Local(local), OutboundProtocol::Direct);
    Proxy { addr, running: vec![running] }
}

fn snell() -> Proxy {
    let psk = Secret::new("a key for tests");
    let server = InboundProtocol::Snell(SnellServer {
        psk: psk.clone().into(),
        versions: SnellVersions::default(),
        obfs: ObfsServer::Off,
        udp: true,
        quic: false,
    });
    let (server, addr) = run(server, OutboundProtocol::Direct);
    let client = OutboundProtocol::Snell(SnellClient {
        server: addr.into(),
        psk,
        client_id: None,
        version: SnellVersion::default(),
        obfs: ObfsClient::Off,
        reuse: true,
        half_close: HalfClose::On,
        udp: true,
        quic: Quic::Off,
    });
    let (client, addr) = run(local(&[]), client);
    Proxy { addr, running: vec![server, client] }
}

/// Runs `test` in time, over each way out.
fn both_ways(test: impl Fn(&Proxy) + Send + 'static) {
    within(move || {
        test(&direct(&[]));
        test(&snell());
    });
}

fn within(test: impl FnOnce() + Send + 'static) {
    let (done, wait) = mpsc::channel();
    let thread = thread::spawn(move || {
        test();
        done.send(()).unwrap();
    });
    match wait.recv_timeout(TEST_DEADLINE) {
        Err(mpsc::RecvTimeoutError::Timeout) => panic!("the test hangs"),
        Ok(()) | Err(mpsc::RecvTimeoutError::Disconnected) => thread.join().unwrap(),
    }
}

/// A target whose every connection is served by `serve`, which gets its number.
struct Origin {
    addr: SocketAddr,
    connections: Arc<AtomicUsize>,
}

impl Origin {
    fn new(serve: impl Fn(Peer, usize) + Send + Sync + 'static) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let addr = listener.local_addr().unwrap();
        let connections = Arc::new(AtomicUsize::new(0));
        let (serve, count) = (Arc::new(serve), connections.clone());
        thread::spawn(move || {
            for stream in listener.incoming() {
                let (serve, number) = (serve.clone(), count.fetch_add(1, Ordering::SeqCst));
                thread::spawn(move || serve(Peer::new(stream.unwrap()), number));
            }
        });
        Self { addr, connections }
    }

    /// One that answers every request with what `answer` says.
    fn answering(answer: impl Fn(&Message) -> String + Send + Sync + 'static) -> Self {
        Self::new(move |mut peer, _| {
            while let Some(request) = peer.request() {
                peer.send(answer(&request));
            }
        })
    }

    fn connections(&self) -> usize {
        self.connections.load(Ordering::SeqCst)
    }
}

/// One end of a connection.
struct Peer {
    stream: TcpStream,
    reader: BufReader<TcpStream>,
}

#[derive(Debug)]
struct Message {
    /// With its empty line.
    head: String,
    body: Vec<u8>,
}

impl Message {
    fn status(&self) -> &str {
        self.head.split(' ').nth(1).unwrap()
    }

    fn has(&self, text: &str) -> bool {
        self.head.contains(text)
    }

    fn text(&self) -> &str {
        std::str::from_utf8(&self.body).unwrap()
    }
}

impl Peer {
    fn new(stream: TcpStream) -> Self {
        stream.set_read_timeout(Some(IO_DEADLINE)).unwrap();
        stream.set_write_timeout(Some(IO_DEADLINE)).unwrap();
        stream.set_nodelay(true).unwrap();
        let reader = BufReader::new(stream.try_clone().unwrap());
        Self { stream, reader }
    }

    fn connect(proxy: &Proxy) -> Self {
        Self::new(TcpStream::connect(proxy.addr).unwrap())
    }

    fn send(&mut self, bytes: impl AsRef<[u8]>) {
        self.stream.write_all(bytes.as_ref()).unwrap();
    }

    fn get(&mut self, origin: &Origin, path: &str) -> Message {
        self.send(format!("GET http://{}{path} HTTP/1.1\r\nHost: x\r\n\r\n", origin.addr));
        self.response()
    }

    /// `None` at the end of the connection.
    fn head(&mut self) -> Option<String> {
        let mut head = String::new();
        while !head.ends_with("\r\n\r\n") {
            match self.reader.read_line(&mut head) {
                Ok(0) if head.is_empty() => return None,
                Err(error) if error.kind() == ErrorKind::ConnectionReset && head.is_empty() => return None,
                Ok(0) => panic!("ended inside a head: {head}"),
                Ok(_) => {}
                Err(error) => panic!("{error} behind {head}"),
            }
        }
        Some(head)
    }

    fn body(&mut self, head: &str) -> Option<Vec<u8>> {
        let mut body = Vec::new();
        if let Some(length) = head.split("Content-Length: ").nth(1) {
            body.resize(length.split("\r\n").next().unwrap().parse().unwrap(), 0);
            self.reader.read_exact(&mut body).unwrap();
        } else if head.contains("Transfer-Encoding: chunked") {
            loop {
                let mut line = String::new();
                self.reader.read_line(&mut line).unwrap();
                let size = usize::from_str_radix(line.trim_end(), 16).unwrap();
                let start = body.len();
                body.resize(start + size, 0);
                self.reader.read_exact(&mut body[start..]).unwrap();
                self.reader.read_line(&mut line).unwrap();
                if size == 0 {
                    break;
                }
            }
        } else {
            return None;
        }
        Some(body)
    }

    fn request(&mut self) -> Option<Message> {
        let head = self.head()?;
        let body = self.body(&head).unwrap_or_default();
        Some(Message { head, body })
    }

    fn response(&mut self) -> Message {
        let head = self.head().expect("a response");
        let body = self.body(&head).unwrap_or_else(|| self.rest());
        Message { head, body }
    }

    /// Everything up to the end.
    fn rest(&mut self) -> Vec<u8> {
        let mut bytes = Vec::new();
        self.reader.read_to_end(&mut bytes).unwrap();
        bytes
    }

    fn exactly(&mut self, len: usize) -> Vec<u8> {
        let mut bytes = vec![0; len];
        self.reader.read_exact(&mut bytes).unwrap();
        bytes
    }

    /// Waits for the connection's end, orderly or not.
    fn is_ended(&mut self) -> bool {
        match self.reader.read(&mut [0]) {
            Ok(0) => true,
            Ok(_) => false,
            Err(error) => error.kind() == ErrorKind::ConnectionReset,
        }
    }
}

fn ok(body: &str) -> String {
    format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n{body}", body.len())
}

fn pattern(len: usize) -> Vec<u8> {
    (0..len).map(|at| u8::try_from(at % 251).unwrap()).collect()
}

fn first_line(request: &Message) -> String {
    request.head.split("\r\n").next().unwrap().to_owned()
}

#[test]
fn requests_on_one_connection() {
    both_ways(|proxy| {
        let origin = Origin::answering(|request| match request.head.split(' ').nth(1).unwrap() {
            "/chunked" => {
                "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n2\r\nde\r\n0\r\n\r\n".into()
            }
            "/none" => "HTTP/1.1 204 No Content\r\n\r\n".into(),
            "/head" => "HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\n".into(),
            _ => ok(&request.head),
        });
        let mut client = Peer::connect(proxy);
        let answer = client.get(&origin, "/a?b");
        assert_eq!(answer.text(), format!("GET /a?b HTTP/1.1\r\nHost: {}\r\n\r\n", origin.addr));
        assert_eq!(client.get(&origin, "/chunked").text(), "abcde");
        client.send(format!("HEAD http://{}/head HTTP/1.1\r\n\r\n", origin.addr));
        assert!(client.head().unwrap().contains("Content-Length: 5"));
        client.send(format!("GET http://{}/none HTTP/1.1\r\n\r\n", origin.addr));
        assert!(client.head().unwrap().starts_with("HTTP/1.1 204"));
        assert_eq!(client.get(&origin, "/last").status(), "200");
        assert_eq!(origin.connections(), 1, "the connection to the target is used again");
        client.send(format!("GET http://{}/ HTTP/1.1\r\nConnection: close\r\n\r\n", origin.addr));
        assert!(client.response().has("Connection: close\r\n"));
        assert!(client.is_ended());
        let inbound = &proxy.status().inbounds[0];
        assert_eq!(inbound.requests, 6);
        assert!(inbound.up_bytes > 200 && inbound.down_bytes > 200, "{inbound:?}");
        assert!(inbound.refused.values().all(|count| *count == 0), "{inbound:?}");
    });
}

#[test]
fn two_hosts_and_a_pipeline() {
    both_ways(|proxy| {
        let origins = ["one", "two"].map(|name| Origin::answering(move |_| ok(name)));
        let mut client = Peer::connect(proxy);
        for _ in 0..3 {
            assert_eq!(client.get(&origins[0], "/").text(), "one");
            assert_eq!(client.get(&origins[1], "/").text(), "two");
        }
        let [one, two] = [origins[0].addr, origins[1].addr];
        client.send(format!(
            "POST http://{one}/ HTTP/1.1\r\nContent-Length: 4\r\n\r\nbodyGET http://{two}/ HTTP/1.1\r\n\r\n\
             GET http://{one}/ HTTP/1.1\r\n\r\n"
        ));
        assert_eq!([(); 3].map(|()| client.response().text().to_owned()), ["one", "two", "one"]);
        // One of which only the beginning comes with the request in front of it.
        client.send(format!("GET http://{one}/ HTTP/1.1\r\n\r\nGET http://{two}/ HT"));
        assert_eq!(client.response().text(), "one");
        client.send("TP/1.1\r\n\r\n");
        assert_eq!(client.response().text(), "two");
    });
}

#[test]
fn uploads() {
    both_ways(|proxy| {
        let origin = Origin::answering(|request| {
            assert_eq!(request.body, pattern(MIB));
            ok(&first_line(request))
        });
        let mut client = Peer::connect(proxy);
        let next = format!("GET http://{}/next HTTP/1.1\r\n", origin.addr);
        client.send(format!("POST http://{}/ HTTP/1.1\r\nContent-Length: {MIB}\r\n\r\n", origin.addr));
        client.send(pattern(MIB));
        assert_eq!(client.response().text(), "POST / HTTP/1.1");
        client.send(format!("PUT http://{}/ HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n", origin.addr));
        for part in pattern(MIB).chunks(70_001) {
            client.send(format!("{:x}\r\n", part.len()));
            client.send(part);
            client.send("\r\n");
        }
        // The next request comes in the same segment as the end of the body.
        client.send(format!("0\r\n\r\n{next}"));
        assert_eq!(client.response().text(), "PUT / HTTP/1.1");
        client.send(format!("Content-Length: {MIB}\r\n\r\n"));
        client.send(pattern(MIB));
        assert_eq!(client.response().text(), "GET /next HTTP/1.1");
    });
}

#[test]
fn bodies_in_both_directions_at_once() {
    both_ways(|proxy| {
        let origin = Origin::new(|mut peer, _| {
            peer.head().unwrap();
            peer.send(format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n", 4 * MIB));
            let mut left = 4 * MIB;
            while left > 0 {
                let len = left.min(60_000);
                let bytes = peer.exactly(len);
                peer.send(bytes);
                left -= len;
            }
        });
        let mut client = Peer::connect(proxy);
        client.send(format!("POST http://{}/ HTTP/1.1\r\nContent-Length: {}\r\n\r\n", origin.addr, 4 * MIB));
        let mut sender = client.stream.try_clone().unwrap();
        let sending = thread::spawn(move || sender.write_all(&pattern(4 * MIB)).unwrap());
        let answer = client.response();
        assert!(answer.has("Connection: close"), "answered before the request was whole: {}", answer.head);
        assert!(answer.body == pattern(4 * MIB));
        sending.join().unwrap();
        assert!(client.is_ended());
    });
}

#[test]
fn permission_to_continue() {
    both_ways(|proxy| {
        let origin = Origin::new(|mut peer, _| {
            let head = peer.head().unwrap();
            assert!(head.contains("Expect: 100-continue\r\n"));
            if head.starts_with("POST /no") {
                return peer.send("HTTP/1.1 417 No\r\nContent-Length: 0\r\n\r\n");
            }
            peer.send("HTTP/1.1 103 Early Hints\r\nLink: x\r\n\r\nHTTP/1.1 100 Continue\r\n\r\n");
            let body = peer.body(&head).unwrap();
            peer.send(ok(std::str::from_utf8(&body).unwrap()));
        });
        let mut client = Peer::connect(proxy);
        let head = |path| {
            let addr = origin.addr;
            format!("POST http://{addr}{path} HTTP/1.1\r\nContent-Length: 5\r\nExpect: 100-continue\r\n\r\n")
        };
        client.send(head("/yes"));
        assert!(client.head().unwrap().starts_with("HTTP/1.1 103"));
        assert!(client.head().unwrap().starts_with("HTTP/1.1 100"));
        client.send("hello");
        assert_eq!(client.response().text(), "hello");
        client.send(head("/no"));
        let answer = client.response();
        assert_eq!(answer.status(), "417");
        assert!(answer.has("Connection: close"));
        assert!(client.is_ended());
    });
}

#[test]
fn an_answer_in_the_middle_of_the_body() {
    both_ways(|proxy| {
        let origin = Origin::new(|mut peer, _| {
            peer.head().unwrap();
            peer.exactly(1000);
            peer.send("HTTP/1.1 413 Too Much\r\nContent-Length: 2\r\nConnection: close\r\n\r\nno");
            peer.stream.shutdown(Shutdown::Write).unwrap();
            drop(peer.rest());
        });
        let mut client = Peer::connect(proxy);
        client.send(format!("POST http://{}/ HTTP/1.1\r\nContent-Length: {MIB}\r\n\r\n", origin.addr));
        client.send(&pattern(MIB)[..10_000]);
        let answer = client.response();
        assert_eq!((answer.status(), answer.text()), ("413", "no"));
        assert!(answer.has("Connection: close"));
        assert!(client.is_ended());
    });
}

#[test]
fn switching_protocols() {
    both_ways(|proxy| {
        let origin = Origin::new(|mut peer, _| {
            let head = peer.head().unwrap();
            assert!(head.contains("Connection: Upgrade\r\nUpgrade: echo\r\n"), "{head}");
            peer.send(
                "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: echo\r\n\r\nwelcome",
            );
            let bytes = peer.exactly(10);
            peer.send(bytes);
            let rest = peer.rest();
            peer.send(rest);
        });
        let mut client = Peer::connect(proxy);
        client.send(format!(
            "GET http://{}/ HTTP/1.1\r\nConnection: Upgrade\r\nUpgrade: echo\r\n\r\nearly",
            origin.addr
        ));
        assert!(client.head().unwrap().starts_with("HTTP/1.1 101"));
        assert_eq!(client.exactly(7), b"welcome");
        client.send("later");
        assert_eq!(client.exactly(10), b"earlylater");
        client.send("last");
        client.stream.shutdown(Shutdown::Write).unwrap();
        assert_eq!(client.rest(), b"last");
    });
}

#[test]
fn tunnels() {
    both_ways(|proxy| {
        let origin = Origin::new(|mut peer, _| {
            let bytes = peer.exactly(5);
            peer.send(bytes);
            let rest = peer.rest();
            peer.send(rest);
        });
        let plain = Origin::answering(|_| ok("plain"));
        let mut client = Peer::connect(proxy);
        assert_eq!(client.get(&plain, "/").text(), "plain");
        client.send(format!("CONNECT {} HTTP/1.1\r\nHost: x\r\n\r\nearly", origin.addr));
        assert_eq!(client.head().unwrap(), "HTTP/1.1 200 Connection established\r\n\r\n");
        assert_eq!(client.exactly(5), b"early");
        client.send("more");
        client.stream.shutdown(Shutdown::Write).unwrap();
        assert_eq!(client.rest(), b"more");
    });
}

#[test]
fn targets_that_cannot_be_reached() {
    both_ways(|proxy| {
        let mut client = Peer::connect(proxy);
        for target in [unused_addr().to_string(), "nowhere.example".into()] {
            client.send(format!("GET http://{target}/ HTTP/1.1\r\n\r\n"));
            let answer = client.response();
            assert_eq!((answer.status(), answer.text()), ("502", "502 Bad Gateway\n"), "{target}");
            assert!(!answer.has("Connection: close"));
            // The body of a failed request is read and thrown away.
            client.send(format!("POST http://{target}/ HTTP/1.1\r\nContent-Length: 5\r\n\r\nhello"));
            assert_eq!(client.response().status(), "502");
        }
        let origin = Origin::answering(|_| ok("good"));
        assert_eq!(client.get(&origin, "/").text(), "good", "the connection goes on");
        // A large body: the answer arrives all the same. Over Snell most of it may be on its way before the server says
        // that it reached nobody; what is left is then worth reading, and the connection goes on.
        client.send(format!("POST http://{}/ HTTP/1.1\r\nContent-Length: {MIB}\r\n\r\n", unused_addr()));
        client.send(pattern(MIB));
        let answer = client.response();
        assert_eq!(answer.status(), "502");
        if !answer.has("Connection: close") {
            assert_eq!(client.get(&origin, "/").text(), "good");
        }
    });
}

#[test]
fn refused_bodies_that_are_not_worth_reading() {
    within(|| {
        let proxy = direct(&[]);
        let mut client = Peer::connect(&proxy);
        client.send(format!("POST http://{}/ HTTP/1.1\r\nContent-Length: {MIB}\r\n\r\n", unused_addr()));
        client.send(pattern(MIB));
        let answer = client.response();
        assert!(answer.status() == "502" && answer.has("Connection: close"), "{}", answer.head);
        assert_eq!(client.rest(), b"");
    });
}

#[test]
fn credentials() {
    within(|| {
        let proxy = direct(&[("user", "secret")]);
        let origin = Origin::answering(|request| ok(&request.head));
        let mut client = Peer::connect(&proxy);
        client.send(format!("POST http://{}/ HTTP/1.1\r\nContent-Length: 5\r\n\r\nhello", origin.addr));
        let answer = client.response();
        assert_eq!(answer.status(), "407");
        assert!(answer.has("Proxy-Authenticate: Basic realm=\"adit\"") && !answer.has("Connection: close"));
        let with = |credentials| {
            let addr = origin.addr;
            format!("GET http://{addr}/ HTTP/1.1\r\nProxy-Authorization: Basic {credentials}\r\n\r\n")
        };
        client.send(with("dXNlcjp3cm9uZw=="));
        assert_eq!(client.response().status(), "407");
        client.send(with("dXNlcjpzZWNyZXQ="));
        let answer = client.response();
        assert_eq!(answer.status(), "200");
        assert!(!answer.text().contains("Proxy-Authorization"), "{}", answer.text());
        client.send(format!("CONNECT {} HTTP/1.1\r\n\r\n", origin.addr));
        assert_eq!(client.response().status(), "407");
        assert_eq!(proxy.status().inbounds[0].refused["authentication"], 3);
        // A body that waits for permission does not come.
        client.send(format!(
            "POST http://{}/ HTTP/1.1\r\nExpect: 100-continue\r\nContent-Length: 5\r\n\r\n",
            origin.addr
        ));
        assert!(client.response().has("Connection: close"));
        assert_eq!(origin.connections(), 1);
    });
}

#[test]
fn bad_requests() {
    within(|| {
        let proxy = direct(&[]);
        let own = proxy.addr;
        let long = format!("GET http://a/ HTTP/1.1\r\nX: {}\r\n\r\n", "x".repeat(70_000));
        let many = format!("GET http://a/ HTTP/1.1\r\n{}\r\n", "X: y\r\n".repeat(129));
        for (request, status) in [
            ("GET http://a/ HTTP/1.1\r\nbad field\r\n\r\n".to_owned(), "400"),
            ("GET https://a/ HTTP/1.1\r\n\r\n".into(), "400"),
            ("GET ftp://a/ HTTP/1.1\r\n\r\n".into(), "501"),
            (
                "POST http://a/ HTTP/1.1\r\nContent-Length: 1\r\nTransfer-Encoding: chunked\r\n\r\n".into(),
                "400",
            ),
            ("GET / HTTP/1.1\r\nHost: a\r\n\r\n".into(), "400"),
            (format!("POST / HTTP/1.1\r\nHost: {own}\r\n\r\n"), "404"),
            (format!("GET http://{own}/ HTTP/1.1\r\n\r\n"), "508"),
            (format!("CONNECT localhost:{} HTTP/1.1\r\n\r\n", own.port()), "508"),
            (long, "431"),
            (many, "431"),
        ] {
            let mut client = Peer::connect(&proxy);
            client.send(&request);
            assert_eq!(client.response().status(), status, "{request:.60}");
            client.stream.shutdown(Shutdown::Write).unwrap();
            assert!(client.is_ended());
        }
        // A body that is none.
        let origin = Origin::new(|mut peer, _| drop(peer.head()));
        let mut client = Peer::connect(&proxy);
        let addr = origin.addr;
        client.send(format!("POST http://{addr}/ HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\nx\r\n"));
        assert_eq!(client.response().status(), "400");
        assert!(client.is_ended());
    });
}

/// Each protocol of a local port has an answer for a request that asks for nothing, with a user's name and without; the end
/// comes with it.
#[test]
fn a_request_for_nothing_is_answered_with_the_end() {
    within(|| {
        let (open, closed) = (direct(&[]), direct(&[("ann", "p")]));
        let greeting = [&b"\x05\x01\x00"[..], b"\x05\x00"];
        let login = [&b"\x05\x01\x02\x01\x03ann\x01p"[..], b"\x05\x02\x01\x00"];
        let socks5: [(&[u8], u8); 8] = [
            (b"\x05\x01\x00\x03\x03a b\x00\x50", 1),
            (b"\x05\x01\x00\x03\x03a\0b\x00\x50", 1),
            (b"\x05\x01\x00\x03\x00\x00\x50", 1),
            (b"\x05\x01\x00\x03\x01.\x00\x50", 1),
            (b"\x05\x01\x00\x02\x7f\x00\x00\x01\x00\x50", 8),
            (b"\x05\x02\x00\x01\x7f\x00\x00\x01\x00\x50", 7),
            (b"\x05\x09\x00\x01\x7f\x00\x00\x01\x00\x50", 7),
            (b"\x05\x01\x00\x01\x7f\x00\x00\x01\x00\x00", 4),
        ];
        let answer = |proxy: &Proxy, request: &[u8]| {
            let mut client = Peer::connect(proxy);
            client.send(request);
            client.rest()
        };
        for (proxy, [hello, welcome]) in [(&open, greeting), (&closed, login)] {
            for (request, code) in socks5 {
                let got = answer(proxy, &[hello, request].concat());
                let code_at = welcome.len() + 1;
                assert!(got.starts_with(welcome) && got.get(code_at) == Some(&code), "{request:?}: {got:?}");
            }
        }
        for request in [
            &b"\x04\x01\x00\x50\x00\x00\x00\x01u\0a b\0"[..],
            b"\x04\x02\x00\x50\x7f\x00\x00\x01u\0",
            b"\x04\x01\x00\x00\x7f\x00\x00\x01u\0",
        ] {
            let got = answer(&open, request);
            assert!(got.starts_with(&[0, 0x5b]), "{request:?}: {got:?}");
        }
        for (request, status) in [
            ("CONNECT a b:80 HTTP/1.1\r\n\r\n", "400"),
            ("CONNECT a\0b:80 HTTP/1.1\r\n\r\n", "400"),
            ("CONNECT :80 HTTP/1.1\r\n\r\n", "400"),
            ("CONNECT 127.0.0.1:0 HTTP/1.1\r\n\r\n", "5"),
            ("GET http://a b/ HTTP/1.1\r\n\r\n", "400"),
            ("GET http://[x/ HTTP/1.1\r\n\r\n", "400"),
        ] {
            let got = String::from_utf8(answer(&open, request.as_bytes())).unwrap();
            assert!(got.starts_with(&format!("HTTP/1.1 {status}")), "{request:?}: {got}");
        }
    });
}

/// Directly and behind a tunnel, and by each name of the port. A page under another name is not for others to read.
#[test]
fn a_browser_that_opens_the_port_gets_a_page() {
    both_ways(|proxy| {
        let port = proxy.addr.port();
        let mut client = Peer::connect(proxy);
        for host in [proxy.addr.to_string(), format!("localhost:{port}")] {
            client.send(format!("GET / HTTP/1.1\r\nHost: {host}\r\n\r\n"));
            let answer = client.response();
            assert_eq!(answer.status(), "200", "{host}");
            assert!(answer.has("Content-Type: text/html; charset=utf-8"), "{}", answer.head);
            assert!(answer.text().contains(&format!("curl -x http://{} ", proxy.addr)), "{}", answer.text());
            client.send(format!("GET /favicon.ico HTTP/1.1\r\nHost: {host}\r\n\r\n"));
            assert_eq!(client.response().status(), "404", "{host}");
        }
        client.send(format!("GET / HTTP/1.1\r\nHost: rebound.example:{port}\r\n\r\n"));
        assert_eq!(client.response().status(), "400");
    });
}

#[test]
fn slow_heads() {
    within(|| {
        let proxy = direct(&[]);
        let mut client = Peer::connect(&proxy);
        client.send("GET http://a/ HTTP/1.1\r\n");
        assert_eq!(client.response().status(), "408");
        assert_eq!(proxy.status().inbounds[0].refused["deadline"], 1);
    });
}

#[test]
fn a_client_that_leaves() {
    both_ways(|proxy| {
        let (seen, wait) = mpsc::channel();
        let origin = Origin::new(move |mut peer, number| {
            peer.head().unwrap();
            if number == 1 {
                peer.send("HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\npart");
            }
            seen.send(()).unwrap();
            assert!(peer.is_ended());
            seen.send(()).unwrap();
        });
        for _ in 0..2 {
            let mut client = Peer::connect(proxy);
            client.send(format!("GET http://{}/ HTTP/1.1\r\n\r\n", origin.addr));
            wait.recv_timeout(IO_DEADLINE).unwrap();
            drop(client);
            wait.recv_timeout(IO_DEADLINE).expect("the target's connection ends, too");
        }
        // One that only has nothing more to say gets its answer.
        let (go, gone) = mpsc::channel();
        let gone = std::sync::Mutex::new(gone);
        let origin = Origin::new(move |mut peer, _| {
            peer.head().unwrap();
            gone.lock().unwrap().recv_timeout(IO_DEADLINE).unwrap();
            peer.send(ok("late"));
        });
        let mut client = Peer::connect(proxy);
        client.send(format!("GET http://{}/ HTTP/1.1\r\n\r\n", origin.addr));
        client.stream.shutdown(Shutdown::Write).unwrap();
        // A proxy that took the end for a departure would have closed by then.
        thread::sleep(Duration::from_millis(300));
        go.send(()).unwrap();
        assert_eq!(client.response().text(), "late");
        assert!(client.is_ended());
        // Or as many as it has asked for.
        let origin = Origin::answering(|request| ok(&first_line(request)));
        let mut client = Peer::connect(proxy);
        let get = |path| format!("GET http://{}{path} HTTP/1.1\r\n\r\n", origin.addr);
        client.send(get("/1") + &get("/2") + &get("/3"));
        client.stream.shutdown(Shutdown::Write).unwrap();
        for number in 1..=3 {
            assert_eq!(client.response().text(), format!("GET /{number} HTTP/1.1"));
        }
        assert!(client.is_ended());
    });
}

#[test]
fn truncated_responses() {
    both_ways(|proxy| {
        let origin = Origin::new(|mut peer, number| {
            peer.head().unwrap();
            peer.send(match number {
                0 => "HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\npart",
                1 => "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n4\r\npart\r\n",
                _ => "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n4\r\npart\r\nnone\r\n",
            });
        });
        for _ in 0..3 {
            let mut client = Peer::connect(proxy);
            client.send(format!("GET http://{}/ HTTP/1.1\r\n\r\n", origin.addr));
            // The reset may overtake what was sent in front of it.
            let mut bytes = Vec::new();
            let error = client.reader.read_to_end(&mut bytes).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::ConnectionReset);
        }
        // Without any response there is something to be said.
        for answer in ["", "HTTP/1.1 200 O", "SSH-2.0-x\r\n\r\n", "HTTP/1.1 100 Continue\r\n\r\n"] {
            let origin = Origin::new(move |mut peer, _| {
                peer.head().unwrap();
                peer.send(answer);
            });
            let mut client = Peer::connect(proxy);
            client.send(format!("GET http://{}/ HTTP/1.0\r\n\r\n", origin.addr));
            assert_eq!(client.response().status(), "502", "{answer}");
        }
        let flood = "HTTP/1.1 102 Processing\r\n\r\n".repeat(1000);
        let origin = Origin::answering(move |_| flood.clone());
        let mut client = Peer::connect(proxy);
        client.send(format!("GET http://{}/ HTTP/1.0\r\n\r\n", origin.addr));
        assert_eq!(client.response().status(), "502");
    });
}

#[test]
fn slow_and_old_targets() {
    both_ways(|proxy| {
        let origin = Origin::new(|mut peer, number| {
            while let Some(head) = peer.head() {
                let answer =
                    "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n2\r\nde\r\n0\r\n\r\n";
                if head.starts_with("GET /old") {
                    peer.send("HTTP/1.0 200 OK\r\n\r\n");
                    return peer.send(pattern(300_000));
                }
                for byte in answer.as_bytes().chunks(if number == 0 { 1 } else { 7 }) {
                    peer.send(byte);
                    thread::sleep(Duration::from_millis(5));
                }
            }
        });
        let mut client = Peer::connect(proxy);
        assert_eq!(client.get(&origin, "/").text(), "abcde");
        assert_eq!(client.get(&origin, "/").text(), "abcde");
        let answer = client.get(&origin, "/old");
        assert!(answer.has("Connection: close") && answer.body == pattern(300_000), "{}", answer.head);
        // A client that knows no chunks.
        let mut client = Peer::connect(proxy);
        client.send(format!("GET http://{}/ HTTP/1.0\r\n\r\n", origin.addr));
        assert_eq!(client.response().text(), "abcde");
    });
}

#[test]
fn large_downloads_to_a_slow_reader() {
    both_ways(|proxy| {
        let origin = Origin::new(|mut peer, _| {
            while peer.head().is_some() {
                peer.send(format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n", 8 * MIB));
                peer.send(pattern(8 * MIB));
            }
        });
        let mut client = Peer::connect(proxy);
        for _ in 0..2 {
            client.send(format!("GET http://{}/ HTTP/1.1\r\n\r\n", origin.addr));
            thread::sleep(Duration::from_millis(200));
            assert!(client.response().body == pattern(8 * MIB));
        }
        assert_eq!(origin.connections(), 1);
    });
}

#[test]
fn kept_connections_that_are_closed() {
    both_ways(|proxy| {
        // The first connection closes after its response, the second one instead of a second response.
        let origin = Origin::new(|mut peer, number| {
            peer.head().unwrap();
            peer.send(ok(&number.to_string()));
            if number == 1 {
                drop(peer.head());
            }
        });
        let mut client = Peer::connect(proxy);
        assert_eq!(client.get(&origin, "/").text(), "0");
        // The end reaches the proxy; behind the next request, it would do no harm.
        thread::sleep(Duration::from_millis(200));
        assert_eq!(client.get(&origin, "/").text(), "1");
        assert_eq!(client.get(&origin, "/").text(), "2");
        // A request that must not be done twice takes a connection of its own.
        client.send(format!("POST http://{}/ HTTP/1.1\r\nContent-Length: 0\r\n\r\n", origin.addr));
        assert_eq!(client.response().text(), "3");
    });
}

#[test]
fn snell_connections_are_used_again() {
    within(|| {
        let proxy = snell();
        let origins = ["one", "two"].map(|name| Origin::answering(move |_| ok(name)));
        let closing = Origin::new(|mut peer, _| {
            peer.head().unwrap();
            peer.send("HTTP/1.1 200 OK\r\n\r\nall");
        });
        // One belongs to the client; the others have been given back.
        let given_back = |count| {
            wait_for("connections that are given back", || proxy.status().outbounds[0].idle == count);
        };
        let mut client = Peer::connect(&proxy);
        for round in 0..3 {
            for (index, origin) in origins.iter().enumerate() {
                client.get(origin, "/");
                given_back(i64::from(round + index > 0));
            }
        }
        assert_eq!(client.get(&closing, "/").text(), "all");
        given_back(2);
        let mut client = Peer::connect(&proxy);
        client.get(&origins[0], "/");
        let outbound = &proxy.status().outbounds[0];
        assert_eq!((outbound.dialled, outbound.reused), (2, 6), "{outbound:?}");
    });
}

/// One request with a connection of its own, as ann; everything that comes back.
fn ask_as_ann(proxy: &Proxy, target: SocketAddr, body: &str) -> String {
    let mut stream = TcpStream::connect(proxy.addr).unwrap();
    let len = body.len();
    let request = format!(
        "POST http://{target}/ HTTP/1.1\r\nHost: {target}\r\nProxy-Authorization: Basic YW5uOnA=\r\n\
         Content-Length: {len}\r\nConnection: close\r\n\r\n{body}"
    );
    stream.write_all(request.as_bytes()).unwrap();
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer).ok();
    String::from_utf8_lossy(&answer).into_owned()
}

#[test]
fn users_of_a_local_port_are_counted_and_limited() {
    within(|| {
        let origin = Origin::answering(|_| {
            format!("HTTP/1.1 200 OK\r\nContent-Length: 5000\r\n\r\n{}", "x".repeat(5000))
        });
        let proxy = limited(UserLimits { quota: Some(20_000), ..UserLimits::default() });
        let ann = || proxy.status().inbounds[0].users[0].clone();
        assert!(ask_as_ann(&proxy, origin.addr, &"y".repeat(3000)).ends_with("xxxx"));
        let used = ann();
        assert!((3000..3500).contains(&used.up_bytes) && (5000..5500).contains(&used.down_bytes), "{used:?}");
        assert_eq!((used.requests, used.used_bytes), (1, used.up_bytes + used.down_bytes));
        for _ in 0..4 {
            ask_as_ann(&proxy, origin.addr, &"y".repeat(3000));
        }
        let used = ann();
        assert_eq!(used.limited.as_deref(), Some("quota used up"));
        assert!((20_000..24_000).contains(&used.used_bytes), "{used:?}");
        assert!(ask_as_ann(&proxy, origin.addr, "").starts_with("HTTP/1.1 403 "));
        let expired =
            limited(UserLimits { expires: "2020-01-01T00:00:00Z".parse().ok(), ..UserLimits::default() });
        assert!(ask_as_ann(&expired, origin.addr, "").starts_with("HTTP/1.1 403 "));
        let mut tunnel = TcpStream::connect(expired.addr).unwrap();
        let head = format!(
            "CONNECT {0} HTTP/1.1\r\nHost: {0}\r\nProxy-Authorization: Basic YW5uOnA=\r\n\r\n",
            origin.addr
        );
        tunnel.write_all(head.as_bytes()).unwrap();
        let mut answer = [0; 13];
        tunnel.read_exact(&mut answer).unwrap();
        assert_eq!(&answer, b"HTTP/1.1 403 ");
        // SOCKS5 with a password (RFC 1929), up to the reply: 2 is "not allowed".
        let mut socks = TcpStream::connect(expired.addr).unwrap();
        let mut reply = [0; 4];
        socks.write_all(&[5, 1, 2]).unwrap();
        socks.read_exact(&mut reply[..2]).unwrap();
        socks.write_all(b"\x01\x03ann\x01p").unwrap();
        socks.read_exact(&mut reply[..2]).unwrap();
        assert_eq!(reply[..2], [1, 0]);
        socks.write_all(&[5, 1, 0, 1, 127, 0, 0, 1, 0, 1]).unwrap();
        socks.read_exact(&mut reply).unwrap();
        assert_eq!(reply[..2], [5, 2]);
    });
}
