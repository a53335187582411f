//! A process that is to take over and ends, or talks nonsense, at each step: the one that runs goes on as before.

#![allow(clippy::disallowed_methods, reason = "these tests are the world outside")]
#![allow(clippy::unwrap_used, reason = "helpers of tests fail like tests")]

use std::io::{Read as _, Write as _};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::thread;
use std::time::Duration;

use adit_engine::{Giver, HandoverError, start};
use adit_formats::adit_toml::parse;
use adit_net::handover::HandoverLink;

const PATIENCE: Duration = Duration::from_secs(120);

fn echo() -> SocketAddr {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let address = listener.local_addr().unwrap();
    thread::spawn(move || {
        for mut stream in listener.incoming().map_while(Result::ok) {
            thread::spawn(move || std::io::copy(&mut stream.try_clone().unwrap(), &mut stream).ok());
        }
    });
    let socket = UdpSocket::bind(address).unwrap();
    thread::spawn(move || {
        let mut bytes = [0; 2000];
        while let Ok((len, from)) = socket.recv_from(&mut bytes) {
            socket.send_to(&bytes[..len], from).ok();
        }
    });
    address
}

fn connection(tunnel: SocketAddr) -> TcpStream {
    let stream = TcpStream::connect(tunnel).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    stream
}

fn exchange(stream: &mut TcpStream) {
    stream.write_all(b"hello").unwrap();
    let mut back = [0; 5];
    stream.read_exact(&mut back).unwrap();
    assert_eq!(&back, b"hello");
}

fn datagram(socket: &UdpSocket, to: SocketAddr) {
    let mut back = [0; 10];
    // The engine takes part of a millisecond to come back to its socket.
    socket.send_to(b"datagram", to).unwrap();
    assert_eq!(socket.recv(&mut back).unwrap(), 8);
}

/// Runs the other side: it reads so many frames before each of its messages, and ends.
fn attempt(giver: &Giver, script: &[(usize, &[u8])]) -> HandoverError {
    let (ours, theirs) = HandoverLink::pair().unwrap();
    let script: Vec<(usize, Vec<u8>)> = script.iter().map(|(reads, text)| (*reads, text.to_vec())).collect();
    let other = thread::spawn(move || {
        let mut descriptors = Vec::new();
        for (reads, text) in script {
            for _ in 0..reads {
                descriptors.extend(theirs.receive(Some(PATIENCE)).unwrap().1);
            }
            if !text.is_empty() {
                theirs.send(&text, &[]).unwrap();
            }
        }
    });
    let mut has_ended = false;
    let announce = |_: &_| panic!("nobody serves");
    let error = giver.give(ours, PATIENCE, announce, || has_ended = true).unwrap_err();
    other.join().unwrap();
    assert!(has_ended);
    error
}

#[test]
fn a_process_that_ends_at_any_step_changes_nothing() {
    let dir = std::env::temp_dir().join(format!("adit-handover-{}", std::process::id()));
    std::fs::create_dir_all(&dir).unwrap();
    let target = echo();
    let text = format!(
        "cores = 2\nstate = \"{}\"\n[limits]\ndrain = \"100ms\"\n\
         [[inbound]]\nname = \"tunnel\"\nprotocol = \"tunnel\"\nlisten = \"127.0.0.1:0\"\ntarget = \"{target}\"\n\
         network = \"tcp-and-udp\"\noutbound = \"direct\"\n\
         [[inbound]]\nname = \"server\"\nprotocol = \"snell\"\nlisten = \"127.0.0.1:0\"\noutbound = \"direct\"\n\
         users = [ {{ name = \"ann\", password = \"a key of some length\" }} ]\n\
         [[outbound]]\nname = \"direct\"\nprotocol = \"direct\"\n",
        dir.join("users.state").display()
    );
    let config = parse("t.toml", &text).unwrap().config;
    let running = start(&config).unwrap();
    let tunnel = running.addresses()[0].1;
    let mut held = connection(tunnel);
    exchange(&mut held);
    let socket = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    socket.set_read_timeout(Some(PATIENCE)).unwrap();
    datagram(&socket, tunnel);
    let giver = running.giver();
    let prepared = br#"{"message":"prepared"}"#;
    // Two sockets of streams and two of datagrams for the tunnel; all that is taken is passed on.
    let ready = br#"{"message":"ready","taken":[0,1,2,3,4,5,6,7,99]}"#;
    let failed = br#"{"message":"failed","cause":"no such thing"}"#;
    /// The count of messages that are read before each one that is sent, with that one.
    type Script<'a> = &'a [(usize, &'a [u8])];
    let cases: [(Script<'_>, &str); 9] = [
        (&[(0, b"")], "has ended"),
        (&[(2, b"")], "has ended"),
        (&[(2, failed)], "no such thing"),
        (&[(2, b"{}")], "another version"),
        (&[(2, ready)], "wrong time"),
        (&[(2, prepared), (1, b"")], "has ended"),
        (&[(2, prepared), (1, failed)], "no such thing"),
        (&[(2, prepared), (1, ready), (1, b"")], "has ended"),
        (&[(2, prepared), (1, ready), (2, failed)], "no such thing"),
    ];
    for (script, want) in cases {
        let error = attempt(&giver, script);
        let text = if let HandoverError::Link { source, .. } = &error {
            source.to_string()
        } else {
            error.to_string()
        };
        assert!(text.contains(want), "{want}: {text}");
        exchange(&mut held);
        exchange(&mut connection(tunnel));
        datagram(&socket, tunnel);
        let fresh = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        fresh.set_read_timeout(Some(PATIENCE)).unwrap();
        datagram(&fresh, tunnel);
        // The files are locked again.
        assert!(start(&config).is_err(), "{want}");
    }
    drop(held);
    running.drain();
    std::fs::remove_dir_all(&dir).unwrap();
}
