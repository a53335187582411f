//! The listening sockets and a service manager: a stub in the place of systemd takes messages and descriptors, and passes
//! them to the next process.

use std::io::{Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixDatagram;
use std::process::{Command, Stdio};

use crate::support::{Dir, PATIENCE, Running, echo, round_trip, socks5};
use crate::upgrade::{Successors, is_alive, wait_until};

/// The manager's end of the socket for messages.
struct Manager(UnixDatagram);

impl Manager {
    fn new(dir: &Dir) -> Self {
        let socket = UnixDatagram::bind(dir.path().join("notify")).unwrap();
        socket.set_read_timeout(Some(PATIENCE)).unwrap();
        Self(socket)
    }

    /// The next message that begins so; others before it are left out.
    fn next(&self, begin: &str) -> String {
        let mut bytes = [0; 1000];
        loop {
            let len = self.0.recv(&mut bytes).unwrap_or_else(|error| panic!("{begin}: {error}"));
            let text = String::from_utf8_lossy(&bytes[..len]);
            if text.starts_with(begin) {
                return text.into_owned();
            }
        }
    }
}

fn config(dir: &Dir, addresses: &[&str]) {
    let mut text = "state = \"off\"\n[admin]\nsocket = \"adit.sock\"\n[[outbound]]\nname = \"direct\"\nprotocol = \"direct\"\n".to_owned();
    let kinds = [
        "protocol = \"socks\"",
        "protocol = \"shadowsocks\"\nmethod = \"aes-128-gcm\"\npassword = \"k\"\nnetwork = \"tcp-and-udp\"",
    ];
    for (at, (address, kind)) in addresses.iter().zip(kinds).enumerate() {
        text += &format!(
            "[[inbound]]\nname = \"in-{at}\"\nlisten = \"{address}\"\noutbound = \"direct\"\n{kind}\n"
        );
    }
    dir.file("adit.toml", &format!("cores = 1\n{text}"));
}

fn notified(dir: &Dir) -> Command {
    let mut command = dir.adit(&["run", "-c", "adit.toml"]);
    command.env("NOTIFY_SOCKET", dir.path().join("notify")).env("FDSTORE", "64");
    command
}

#[test]
fn sockets_are_left_with_the_manager_and_the_new_process_is_named() {
    let dir = Dir::new();
    let manager = Manager::new(&dir);
    let [first, second] = [0; 2].map(|_| adit_testkit::unused_addr().to_string());
    config(&dir, &[&first, &second]);
    let running = Running::start(notified(&dir));
    // Two sockets for streams, one for datagrams, and the control socket.
    let mut stored: Vec<String> = (0..4).map(|_| manager.next("FDSTORE=1")).collect();
    manager.next("READY=1");
    stored.sort();
    stored.dedup();
    assert_eq!(stored.len(), 4, "{stored:?}");
    for kind in ["adit.tcp.0.", "adit.udp.0.", "adit.unix.0."] {
        assert!(stored.iter().any(|text| text.contains(kind)), "{stored:?}");
    }
    // A socket that a reload closes is taken back.
    config(&dir, &[&first]);
    let (status, _, err) = dir.run(&["reload", "-c", "adit.toml"]);
    assert_eq!(status, 0, "{err}");
    for _ in 0..2 {
        let gone = manager.next("FDSTOREREMOVE=1");
        let name = gone.split_once('\n').unwrap().1;
        assert!(stored.iter().any(|text| text.ends_with(name)), "{gone}");
    }
    let (status, out, err) = dir.run(&["upgrade", "-c", "adit.toml"]);
    assert_eq!(status, 0, "{err}");
    let mut successors = Successors::default();
    let pid = successors.note(&out);
    let text = manager.next("MAINPID=");
    assert!(text.starts_with(&format!("MAINPID={}\nREADY=1\nSTATUS=process {}", pid, pid)), "{text}");
    assert!(manager.next("FDSTORE=1").contains("adit."), "the new process leaves its sockets too");
    manager.next("READY=1");
    let mut running = running;
    wait_until("the old process has nothing to finish", || !running.is_running());
    assert!(is_alive(pid));
    let mut stream = socks5(first.parse().unwrap(), "127.0.0.1", echo().port());
    round_trip(&mut stream, 1000);
}

/// `systemctl restart`: the manager holds the socket while nobody serves. A client that comes meanwhile waits.
#[test]
fn a_restart_refuses_nobody() {
    let dir = Dir::new();
    let target = echo();
    let socket = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = socket.local_addr().unwrap();
    config(&dir, &[&address.to_string()]);
    // Of a socket unit, whose name is its own.
    for name in ["adit.socket", "x:y"] {
        let waiting = TcpStream::connect(address).unwrap();
        let mut command = dir.command(
            "/bin/sh",
            &[
                "-c",
                "exec 3<&0 </dev/null; export LISTEN_PID=$$ LISTEN_FDS=1; exec \"$0\" run -c adit.toml",
                env!("CARGO_BIN_EXE_adit"),
            ],
        );
        command.env("LISTEN_FDNAMES", name).stdin(Stdio::from(OwnedFd::from(socket.try_clone().unwrap())));
        let mut running = Running::start(command);
        running.line("sockets of the service manager");
        waiting.set_read_timeout(Some(PATIENCE)).unwrap();
        let mut stream = waiting;
        stream.write_all(&[5, 1, 0]).unwrap();
        let mut choice = [0; 2];
        stream.read_exact(&mut choice).unwrap();
        assert_eq!(choice, [5, 0], "the connection that waited");
        round_trip(&mut socks5(address, "127.0.0.1", target.port()), 1000);
        drop(stream);
        running.signal("TERM");
        wait_until("it ends", || !running.is_running());
    }
    // A number of another process is none of ours.
    let mut command = dir.adit(&["run", "-c", "adit.toml"]);
    command.env("LISTEN_PID", "1").env("LISTEN_FDS", "1");
    let running = Running::start(command);
    assert!(running.line("error").contains("cannot listen"), "{}", running.log());
}
