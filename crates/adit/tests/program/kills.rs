//! kill -9 at either end: a transfer that is cut shows as one, and nothing that was recorded is served again.

use std::io::{ErrorKind, Read, Write};
use std::net::{Ipv4Addr, Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, channel};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use crate::support::{Dir, Running, socks5};

/// Name of a pair, and what its two ends have in common; then what the client has besides.
const PAIRS: [(&str, &str, &str); 9] = [
    ("snell4", "protocol = \"snell\"\npsk = \"a key of both ends\"\nversion = 4\n", ""),
    ("snell5", "protocol = \"snell\"\npsk = \"a key of both ends\"\nversion = 5\n", ""),
    ("snell5-reuse", "protocol = \"snell\"\npsk = \"a key of both ends\"\nversion = 5\n", "reuse = true\n"),
    ("snell6", "protocol = \"snell\"\npsk = \"a key of both ends\"\nversion = 6\n", ""),
    ("snell6-reuse", "protocol = \"snell\"\npsk = \"a key of both ends\"\nversion = 6\n", "reuse = true\n"),
    ("aead", "protocol = \"shadowsocks\"\nmethod = \"aes-128-gcm\"\npassword = \"a password\"\n", ""),
    (
        "2022",
        "protocol = \"shadowsocks\"\nmethod = \"2022-blake3-aes-128-gcm\"\npassword = \"AAECAwQFBgcICQoLDA0ODw==\"\n",
        "",
    ),
    (
        "ssr",
        "protocol = \"ssr\"\nmethod = \"aes-256-ctr\"\npassword = \"a password\"\nssr-protocol = \"auth_aes128_md5\"\n",
        "",
    ),
    (
        "kcp",
        "protocol = \"shadowsocks\"\nmethod = \"aes-128-gcm\"\npassword = \"a password\"\ncarrier = \"kcp\"\n\
         carrier-key = \"k\"\n",
        "",
    ),
];

/// A server of all pairs, and a client of all of them with a local port each.
struct Ends {
    dir: Dir,
    ports: Vec<SocketAddr>,
}

impl Ends {
    /// `state` is a line of the server's configuration.
    fn new(state: &str) -> Self {
        let dir = Dir::new();
        let ports: Vec<SocketAddr> = PAIRS.iter().map(|_| adit_testkit::unused_addr()).collect();
        let mut text = state.to_owned();
        for ((name, common, _), port) in PAIRS.iter().zip(&ports) {
            text += &format!(
                "[[inbound]]\nname = \"{name}\"\nlisten = \"{port}\"\noutbound = \"direct\"\nallow-private = true\n{common}"
            );
        }
        text += "[[outbound]]\nname = \"direct\"\nprotocol = \"direct\"\n";
        dir.file("server.toml", &text);
        Self { dir, ports }
    }

    fn server(&self) -> Running {
        let running = Running::start(self.dir.adit(&["run", "-c", "server.toml"]));
        running.line(&format!("inbound={}", PAIRS[PAIRS.len() - 1].0));
        running
    }

    /// A client that reaches the servers at `ports`, and its local ports.
    fn client(&self, ports: &[SocketAddr]) -> (Running, Vec<SocketAddr>) {
        let mut text = String::new();
        for ((name, common, more), port) in PAIRS.iter().zip(ports) {
            text += &format!(
                "[[inbound]]\nname = \"{name}\"\nprotocol = \"mixed\"\nlisten = \"127.0.0.1:0\"\noutbound = \"to-{name}\"\n\
                 [[outbound]]\nname = \"to-{name}\"\nserver = \"{port}\"\n{common}{more}"
            );
        }
        self.dir.file("client.toml", &text);
        let running = Running::start(self.dir.adit(&["run", "-c", "client.toml"]));
        let local = |(name, _, _): &(&str, &str, &str)| {
            let line = running.line(&format!("inbound={name} "));
            line.split("address=").nth(1).unwrap().trim().parse().unwrap()
        };
        let locals = PAIRS.iter().map(local).collect();
        (running, locals)
    }
}

/// A target that serves each connection by `serve`, and how many there were.
fn target(serve: impl Fn(TcpStream) + Send + Sync + 'static) -> (SocketAddr, Arc<AtomicUsize>) {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let (address, count, serve) =
        (listener.local_addr().unwrap(), Arc::<AtomicUsize>::default(), Arc::new(serve));
    let counted = count.clone();
    thread::spawn(move || {
        for stream in listener.incoming().map_while(Result::ok) {
            counted.fetch_add(1, Ordering::SeqCst);
            let serve = serve.clone();
            thread::spawn(move || serve(stream));
        }
    });
    (address, count)
}

/// Writes without end.
fn pour(mut stream: TcpStream) {
    let block = [7; 16_384];
    while stream.write_all(&block).is_ok() {
        thread::sleep(Duration::from_millis(1));
    }
}

/// Reads to the end, and says what it was.
fn end_of(stream: &mut TcpStream) -> End {
    let mut block = vec![0; 65_536];
    loop {
        match stream.read(&mut block) {
            Ok(0) => return Ok(()),
            Ok(_) => {}
            Err(error) => return Err(error.kind()),
        }
    }
}

/// Downloads of all pairs, each with some of it read.
fn downloads(locals: &[SocketAddr], from: SocketAddr) -> Vec<TcpStream> {
    let begin = |local: &SocketAddr| {
        let mut stream = socks5(*local, "127.0.0.1", from.port());
        stream.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
        stream.read_exact(&mut vec![0; 100_000]).unwrap();
        stream
    };
    locals.iter().map(begin).collect()
}

fn check_all_reset(streams: Vec<TcpStream>, what: &str) {
    for ((name, _, _), mut stream) in PAIRS.iter().zip(streams) {
        assert_eq!(end_of(&mut stream), Err(ErrorKind::ConnectionReset), "{name}: {what}");
    }
}

#[test]
fn a_download_that_is_cut_is_reset() {
    let ends = Ends::new("");
    let (source, _) = target(pour);
    for round in 0..3 {
        let server = ends.server();
        let (client, locals) = ends.client(&ends.ports);
        let streams = downloads(&locals, source);
        if round == 0 {
            // The carrier has no connection that could be reset: it takes the session's timeout, which is 30 s.
            server.signal("KILL");
            let begun = Instant::now();
            check_all_reset(streams, "server killed");
            assert!(begun.elapsed() < Duration::from_secs(45), "{:?}", begun.elapsed());
        } else {
            client.signal("KILL");
            check_all_reset(streams, "client killed");
        }
        drop((server, client));
    }
}

/// The end of a stream, as its reader saw it.
type End = Result<(), ErrorKind>;

/// A target, and the events that it has seen: the connection's first byte, which names the pair, and its end.
fn sink() -> (SocketAddr, Receiver<(u8, End)>) {
    let (sender, ends) = channel();
    let sender = Mutex::new(sender);
    let (address, _) = target(move |mut stream| {
        let sender = sender.lock().unwrap().clone();
        stream.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
        let mut first = [0];
        stream.read_exact(&mut first).unwrap();
        stream.write_all(b"!").unwrap();
        sender.send((first[0], end_of(&mut stream))).ok();
    });
    (address, ends)
}

#[test]
fn an_upload_that_is_cut_is_reset() {
    let ends = Ends::new("");
    let (sink, seen) = sink();
    for victim in ["client", "server"] {
        let server = ends.server();
        let (client, locals) = ends.client(&ends.ports);
        let begin = |(n, local): (usize, &SocketAddr)| {
            let mut stream = socks5(*local, "127.0.0.1", sink.port());
            stream.write_all(&[u8::try_from(n).unwrap()]).unwrap();
            stream.read_exact(&mut [0]).unwrap();
            let writer = stream.try_clone().unwrap();
            thread::spawn(move || pour(writer));
            stream
        };
        let streams: Vec<TcpStream> = locals.iter().enumerate().map(begin).collect();
        thread::sleep(Duration::from_millis(200));
        if victim == "client" { &client } else { &server }.signal("KILL");
        for _ in PAIRS {
            let (pair, end) = seen.recv_timeout(Duration::from_secs(60)).unwrap();
            let name = PAIRS[usize::from(pair)].0;
            assert_eq!(end, Err(ErrorKind::ConnectionReset), "{name}: {victim} killed");
        }
        drop((streams, server, client));
    }
}

/// Nothing is cut: half-closes and ends arrive as such, to the last byte, connection after connection.
#[test]
fn an_orderly_end_is_no_reset() {
    let ends = Ends::new("");
    let (echo, _) = target(|stream| {
        let (mut reader, mut writer) = (stream.try_clone().unwrap(), stream);
        std::io::copy(&mut reader, &mut writer).ok();
        writer.shutdown(Shutdown::Write).ok();
    });
    let server = ends.server();
    let (client, locals) = ends.client(&ends.ports);
    for ((name, _, _), local) in PAIRS.iter().zip(&locals) {
        for len in [1, 70_000, 700_000, 10] {
            let mut stream = socks5(*local, "127.0.0.1", echo.port());
            let mut writer = stream.try_clone().unwrap();
            let writing = thread::spawn(move || {
                writer.write_all(&vec![9; len]).unwrap();
                writer.shutdown(Shutdown::Write).unwrap();
            });
            let mut answer = Vec::new();
            let read = stream.read_to_end(&mut answer);
            assert_eq!((read.map_err(|error| error.kind()), answer.len()), (Ok(len), len), "{name}");
            writing.join().unwrap();
        }
    }
    drop((server, client));
}

/// A path for one connection, which keeps what the client sends.
fn recorder(server: SocketAddr) -> (SocketAddr, Arc<Mutex<Vec<u8>>>) {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let (address, kept) = (listener.local_addr().unwrap(), Arc::<Mutex<Vec<u8>>>::default());
    let record = kept.clone();
    thread::spawn(move || {
        let (mut client, _) = listener.accept().unwrap();
        let mut far = TcpStream::connect(server).unwrap();
        let (mut back, mut to) = (far.try_clone().unwrap(), client.try_clone().unwrap());
        thread::spawn(move || std::io::copy(&mut back, &mut to).ok());
        let mut block = [0; 4096];
        while let Ok(len @ 1..) = client.read(&mut block) {
            record.lock().unwrap().extend(&block[..len]);
            if far.write_all(&block[..len]).is_err() {
                return;
            }
        }
    });
    (address, kept)
}

/// Sends recordings to the servers: which of them were served, by the bytes of an answer or a connection to the target.
fn replay(ports: &[SocketAddr], recordings: &[Vec<u8>], dialled: &AtomicUsize) -> Vec<&'static str> {
    let mut served = Vec::new();
    for ((name, _, _), (port, recording)) in PAIRS.iter().zip(ports.iter().zip(recordings)) {
        if *name == "kcp" {
            continue;
        }
        let before = dialled.load(Ordering::SeqCst);
        let mut stream = TcpStream::connect(port).unwrap();
        stream.set_read_timeout(Some(Duration::from_millis(1500))).unwrap();
        stream.write_all(recording).unwrap();
        let is_answered = matches!(stream.read(&mut [0; 100]), Ok(1..));
        if is_answered || dialled.load(Ordering::SeqCst) > before {
            served.push(*name);
        }
    }
    served
}

#[test]
fn nothing_that_was_recorded_is_served_after_a_kill() {
    for (state, is_remembered) in [("", true), ("state = \"off\"\n", false)] {
        let ends = Ends::new(state);
        let (echo, dialled) = target(|stream| {
            let (mut reader, mut writer) = (stream.try_clone().unwrap(), stream);
            std::io::copy(&mut reader, &mut writer).ok();
        });
        let server = ends.server();
        let mut paths = Vec::new();
        let mut kept = Vec::new();
        for ((name, _, _), port) in PAIRS.iter().zip(&ends.ports) {
            let (path, record) = if *name == "kcp" { (*port, Arc::default()) } else { recorder(*port) };
            paths.push(path);
            kept.push(record);
        }
        let (client, locals) = ends.client(&paths);
        for local in &locals {
            let mut stream = socks5(*local, "127.0.0.1", echo.port());
            stream.write_all(b"a request that is recorded").unwrap();
            stream.read_exact(&mut [0; 26]).unwrap();
        }
        let recordings: Vec<Vec<u8>> = kept.iter().map(|record| record.lock().unwrap().clone()).collect();
        assert_eq!(replay(&ends.ports, &recordings, &dialled), [""; 0], "before the restart");
        server.signal("KILL");
        server.end();
        let server = ends.server();
        let served = replay(&ends.ports, &recordings, &dialled);
        if is_remembered {
            assert_eq!(served, [""; 0], "{}", server.log());
            // And once more, after an orderly end.
            server.signal("TERM");
            server.end();
            let server = ends.server();
            assert_eq!(replay(&ends.ports, &recordings, &dialled), [""; 0]);
            let (fresh, locals) = ends.client(&ends.ports);
            let mut stream = socks5(locals[0], "127.0.0.1", echo.port());
            stream.write_all(b"new").unwrap();
            stream.read_exact(&mut [0; 3]).unwrap();
            drop((server, fresh));
        } else {
            assert_eq!(served.len(), PAIRS.len() - 1, "the recordings are good: {served:?}");
        }
        drop(client);
    }
}

#[test]
fn a_replay_file_that_cannot_be_written_is_said_once() {
    let ends = Ends::new("");
    ends.dir.file("adit", "a file where the folder is to be");
    let server = Running::start(ends.dir.adit(&["run", "-c", "server.toml"]));
    server.line("inbound=kcp");
    let log = server.log();
    assert_eq!(log.matches("replays").count() + log.matches("replay file").count(), 1, "{log}");
    drop(server);
    // A damaged one is set aside.
    std::fs::remove_file(ends.dir.path().join("adit")).unwrap();
    drop(ends.server());
    let folder = ends.dir.path().join("adit/users");
    let files = || std::fs::read_dir(&folder).unwrap().map(|entry| entry.unwrap().path());
    let file = files().find(|path| path.extension().is_some_and(|extension| extension == "salts")).unwrap();
    std::fs::write(&file, b"something else").unwrap();
    let server = ends.server();
    server.line("is damaged: recorded connections of before may be served once more");
    assert!(files().any(|path| path.to_string_lossy().contains(".salts.damaged-")));
    drop(server);
}
