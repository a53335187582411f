//! Answers that come again, from an attacker between client and server.

use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::thread;

use super::support::{
    Service, addrs, client, connect, method, password, run_clients, run_servers, server, wait_for,
};

/// Passes the first connection on to `server`, answers the second with what the first was answered, and the third with
/// its own request.
fn tamperer(server: SocketAddr) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let at = listener.local_addr().unwrap();
    thread::spawn(move || {
        let mut recorded = Vec::new();
        for (n, near) in listener.incoming().flatten().enumerate() {
            if n == 0 {
                recorded = pass_on(near, connect(server));
            } else {
                let mut request = vec![0; 4096];
                let len = (&near).read(&mut request).unwrap();
                let answer = if n == 1 { &recorded[..] } else { &request[..len] };
                (&near).write_all(answer).unwrap();
                // Until the client gives up.
                (&near).read_to_end(&mut request).ok();
            }
        }
    });
    at
}

fn pass_on(near: TcpStream, far: TcpStream) -> Vec<u8> {
    let (mut from, mut to) = (near.try_clone().unwrap(), far.try_clone().unwrap());
    let up = thread::spawn(move || {
        std::io::copy(&mut from, &mut to).ok();
        to.shutdown(Shutdown::Write).ok();
    });
    let mut answer = Vec::new();
    (&far).read_to_end(&mut answer).ok();
    (&near).write_all(&answer).ok();
    near.shutdown(Shutdown::Write).ok();
    up.join().unwrap();
    answer
}

#[test]
fn an_answer_is_taken_once() {
    let echo = Service::echo();
    for name in ["aes-128-gcm", "chacha20-ietf-poly1305", "2022-blake3-aes-128-gcm"] {
        let (m, p) = (method(name), password(method(name), 1));
        let servers = run_servers([server(m, &p)]);
        let clients = run_clients([client(tamperer(addrs(&servers)[0]), m, &p)], echo.addr);
        let ask = || {
            let mut stream = connect(addrs(&clients)[0]);
            stream.write_all(b"question").unwrap();
            // The client may have refused the answer by now.
            stream.shutdown(Shutdown::Write).ok();
            let mut answer = Vec::new();
            stream.read_to_end(&mut answer).ok();
            answer
        };
        assert_eq!(ask(), b"question", "{name}");
        assert_eq!(ask(), b"", "{name}: the same answer again");
        assert_eq!(ask(), b"", "{name}: the request for an answer");
        wait_for("all are over", || clients.status().inbounds[0].open == 0);
        clients.end();
        servers.end();
    }
}
