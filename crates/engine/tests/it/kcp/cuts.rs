//! Ends that are cut, ends that are not, and datagrams that were recorded.

use std::io::{ErrorKind, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpStream, UdpSocket};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use adit_engine::{Running, start};
use adit_model::{Dial, Kcp, KcpClient, SocketOptions};
use adit_net::listen::{ListenOptions, listen_many};
use adit_proto::kcp::crypt::KcpMethod;

use super::support::{
    addr, client, config, connect, destination, echo, kcp, pattern, server, server_status, server_with,
    service, tunnel, wait_for,
};

/// The first bytes that a client has sent.
type First = Arc<Mutex<Option<Vec<u8>>>>;

/// A path to a server that keeps what the client sends first, and can be cut.
struct Path {
    addr: SocketAddr,
    first: First,
    is_cut: Arc<AtomicBool>,
}

impl Path {
    fn to(server: SocketAddr) -> Self {
        let near = UdpSocket::bind("127.0.0.1:0").unwrap();
        let far = UdpSocket::bind("127.0.0.1:0").unwrap();
        far.connect(server).unwrap();
        let (first, is_cut): (First, Arc<AtomicBool>) = Default::default();
        let addr = near.local_addr().unwrap();
        let client: Arc<Mutex<Option<SocketAddr>>> = Arc::default();
        let (back, to, cut) =
            ((near.try_clone().unwrap(), far.try_clone().unwrap()), client.clone(), is_cut.clone());
        thread::spawn(move || {
            let mut bytes = [0; 2048];
            while let Ok(len) = back.1.recv(&mut bytes) {
                if let Some(to) = *to.lock().unwrap()
                    && !cut.load(Ordering::Relaxed)
                {
                    back.0.send_to(&bytes[..len], to).ok();
                }
            }
        });
        let (kept, cut) = (first.clone(), is_cut.clone());
        thread::spawn(move || {
            let mut bytes = [0; 2048];
            while let Ok((len, from)) = near.recv_from(&mut bytes) {
                *client.lock().unwrap() = Some(from);
                kept.lock().unwrap().get_or_insert_with(|| bytes[..len].to_vec());
                if !cut.load(Ordering::Relaxed) {
                    far.send(&bytes[..len]).ok();
                }
            }
        });
        Self { addr, first, is_cut }
    }

    fn cut(&self) {
        self.is_cut.store(true, Ordering::Relaxed);
    }
}

/// Signs of life that are quickly missed.
fn quick() -> Kcp {
    let (keep_alive, timeout) = (Duration::from_millis(500), Duration::from_secs(2));
    Kcp { keep_alive, timeout, ..kcp(KcpMethod::Aes128Gcm) }
}

/// A target that sends without end.
fn source() -> SocketAddr {
    service(|mut stream| {
        let block = pattern(20_000);
        loop {
            stream.write_all(&block)?;
            thread::sleep(Duration::from_millis(2));
        }
    })
}

/// Reads on to the end: how long that took, and what it was.
fn read_to_end(stream: &mut TcpStream) -> (Duration, Result<(), ErrorKind>) {
    let begun = Instant::now();
    let mut block = [0; 65_536];
    loop {
        match stream.read(&mut block) {
            Ok(0) => return (begun.elapsed(), Ok(())),
            Ok(_) => {}
            Err(error) => return (begun.elapsed(), Err(error.kind())),
        }
    }
}

/// A client whose connections may take a second.
fn hasty_client(client: KcpClient) -> Running {
    let nowhere = "127.0.0.1:9".parse().unwrap();
    let dial = Dial { carrier: Some(Box::new(client)), timeout: Duration::from_secs(1), ..Dial::default() };
    let outbound = adit_model::OutboundProtocol::Direct;
    start(&config(tunnel(nowhere), SocketOptions::default(), outbound, dial)).unwrap()
}

#[test]
fn applications_of_a_server_that_is_gone_are_reset_in_time() {
    let servers = server(&quick(), source());
    let path = Path::to(addr(&servers));
    let clients = client(KcpClient::new(quick(), destination(path.addr)));
    let mut reading = connect(addr(&clients));
    reading.read_exact(&mut [0; 100_000]).unwrap();
    // Another one waits, and nothing of it is under way.
    let mut waiting = connect(addr(&clients));
    waiting.write_all(b"x").unwrap();
    waiting.read_exact(&mut [0; 1]).unwrap();
    path.cut();
    for stream in [&mut reading, &mut waiting] {
        let (took, end) = read_to_end(stream);
        assert_eq!(end, Err(ErrorKind::ConnectionReset), "after {took:?}");
        assert!(took < Duration::from_secs(60), "{took:?}");
    }
    // The server's side of it ends as well, and its target is told that it was no orderly end.
    clients.end();
    servers.end();
}

#[test]
fn a_server_that_never_answers_is_given_up_within_the_timeout() {
    let silent = UdpSocket::bind("127.0.0.1:0").unwrap();
    let clients =
        hasty_client(KcpClient::new(kcp(KcpMethod::Aes128Gcm), destination(silent.local_addr().unwrap())));
    let mut stream = connect(addr(&clients));
    stream.write_all(b"a request").unwrap();
    let (took, end) = read_to_end(&mut stream);
    assert_eq!(end, Err(ErrorKind::ConnectionReset), "after {took:?}");
    assert!(took < Duration::from_secs(60), "{took:?}");
    clients.end();
}

/// A target that closes over unread bytes resets the connection.
#[test]
fn a_break_at_the_target_is_one_for_the_application_and_the_reverse() {
    let breaking = service(|mut stream| {
        stream.write_all(b"half of an answer")?;
        // The request is there, and stays unread.
        stream.peek(&mut [0])?;
        Ok(())
    });
    let servers = server(&kcp(KcpMethod::Aes128Gcm), breaking);
    let clients = client(KcpClient::new(kcp(KcpMethod::Aes128Gcm), destination(addr(&servers))));
    let mut stream = connect(addr(&clients));
    stream.write_all(b"a request that is not read").unwrap();
    let (_, end) = read_to_end(&mut stream);
    assert_eq!(end, Err(ErrorKind::ConnectionReset));
    servers.end();
    // An application that does so resets the target.
    let (sender, ends) = std::sync::mpsc::channel();
    let target = service(move |mut stream| {
        stream.write_all(b"unread")?;
        sender.send(read_to_end(&mut stream).1).ok();
        Ok(())
    });
    let servers = server(&kcp(KcpMethod::Aes128Gcm), target);
    let clients_2 = client(KcpClient::new(kcp(KcpMethod::Aes128Gcm), destination(addr(&servers))));
    let mut stream = connect(addr(&clients_2));
    stream.write_all(b"half of a request").unwrap();
    stream.peek(&mut [0]).unwrap();
    drop(stream);
    assert_eq!(ends.recv_timeout(Duration::from_secs(120)).unwrap(), Err(ErrorKind::ConnectionReset));
    [clients, clients_2, servers].into_iter().for_each(Running::end);
}

/// The answer comes when the request has ended, without the wait that other servers need.
#[test]
fn half_close_goes_through_at_once() {
    let after = service(|mut stream| {
        stream.write_all(b"+")?;
        let mut request = Vec::new();
        stream.read_to_end(&mut request)?;
        stream.write_all(&request)?;
        stream.shutdown(Shutdown::Write)
    });
    // A server that would give the answer up after this time, were it not for a client that is adit.
    let kcp = Kcp { close_wait: Some(Duration::ZERO), ..kcp(KcpMethod::Aes128Gcm) };
    let servers = server(&kcp, after);
    let clients = client(KcpClient::new(kcp, destination(addr(&servers))));
    for len in [10, 300_000] {
        let begun = Instant::now();
        let mut stream = connect(addr(&clients));
        stream.read_exact(&mut [0]).unwrap();
        let request = pattern(len);
        stream.write_all(&request).unwrap();
        stream.shutdown(Shutdown::Write).unwrap();
        let mut answer = Vec::new();
        stream.read_to_end(&mut answer).unwrap();
        assert!(answer == request, "{len}");
        assert!(begun.elapsed() < Duration::from_secs(60), "{:?}", begun.elapsed());
    }
    clients.end();
    servers.end();
}

#[test]
fn recorded_datagrams_push_out_nobody_who_has_answered() {
    // Streams of sessions that were pushed out end a little later, here and at the target.
    if !adit_testkit::descriptors(4096) {
        return;
    }
    let kcp = kcp(KcpMethod::Aes128Gcm);
    // Room for a hundred sessions or so.
    let servers = server_with(&kcp, echo(), |config| config.limits.carrier_memory = Some(16 << 20));
    let path = Path::to(addr(&servers));
    let clients = client(KcpClient::new(kcp.clone(), destination(path.addr)));
    let mut user = connect(addr(&clients));
    let mut echoed = [0; 5];
    let mut check = |user: &mut TcpStream| {
        user.write_all(b"hello").unwrap();
        user.read_exact(&mut echoed).unwrap();
        assert_eq!(&echoed, b"hello");
    };
    check(&mut user);
    let recorded = path.first.lock().unwrap().clone().unwrap();
    for n in 0..10_000 {
        UdpSocket::bind("127.0.0.1:0").unwrap().send_to(&recorded, addr(&servers)).unwrap();
        if n % 16 == 0 {
            thread::sleep(Duration::from_millis(4));
        }
        if n % 2_500 == 0 {
            check(&mut user);
        }
    }
    check(&mut user);
    let status = server_status(&servers);
    assert!(status.totals.evicted > 5_000, "{:?}", status.totals);
    assert!(status.totals.sessions < 130, "{:?}", status.totals);
    // And somebody new is served at once.
    let newcomers = client(KcpClient::new(kcp, destination(addr(&servers))));
    let begun = Instant::now();
    check(&mut connect(addr(&newcomers)));
    assert!(begun.elapsed() < Duration::from_secs(60), "{:?}", begun.elapsed());
    [newcomers, clients, servers].into_iter().for_each(Running::end);
}

/// Each recorded datagram makes the server dial. A target that does not answer keeps it at that for a minute, but not
/// beyond the end of the session.
#[test]
fn a_session_that_makes_room_gives_up_the_connection_under_way() {
    let options = ListenOptions { backlog: 0, ..ListenOptions::default() };
    let target = listen_many("127.0.0.1:0".parse().unwrap(), &options, 1).unwrap();
    // The queue of the target is full with these: the system ignores all others.
    let dial = |_| TcpStream::connect_timeout(&target.addr, Duration::from_millis(100)).ok();
    let _inside: Vec<TcpStream> = (0..4).filter_map(dial).collect();
    let kcp = kcp(KcpMethod::Aes128Gcm);
    let servers = server_with(&kcp, target.addr, |config| {
        config.limits.carrier_memory = Some(16 << 20);
        config.outbounds[0].dial.timeout = Duration::from_secs(60);
    });
    let path = Path::to(addr(&servers));
    let clients = client(KcpClient::new(kcp, destination(path.addr)));
    let mut user = connect(addr(&clients));
    user.write_all(b"x").unwrap();
    wait_for("the first datagram", || path.first.lock().unwrap().is_some());
    let recorded = path.first.lock().unwrap().clone().unwrap();
    for n in 0..3_000 {
        UdpSocket::bind("127.0.0.1:0").unwrap().send_to(&recorded, addr(&servers)).unwrap();
        if n % 16 == 0 {
            thread::sleep(Duration::from_millis(4));
        }
    }
    let is_bounded = || {
        let (totals, dials) = (server_status(&servers).totals, servers.status().budget.unwrap().streams);
        totals.evicted > 1_000 && totals.sessions < 130 && dials < 150
    };
    wait_for("the sessions are bounded", is_bounded);
    [clients, servers].into_iter().for_each(Running::end);
}
