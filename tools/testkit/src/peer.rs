//! Other programs that tests run, and what is there to be run.

use std::ffi::{OsStr, OsString};
use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpListener, UdpSocket};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::thread;

use adit_sys::process::end_with_parent;

use crate::{skipped, unused_addr, wait_for};

/// Another program, killed when dropped or when the test is.
#[derive(Debug)]
pub struct Peer {
    child: Child,
    config: Option<PathBuf>,
}

impl Peer {
    /// Starts `command`, which says nothing, and waits until it listens for TCP on `addr`.
    ///
    /// # Panics
    /// If it cannot be started or does not listen in time.
    pub fn start(command: &mut Command, addr: SocketAddr) -> Self {
        Self::run(command, addr, "tcp", None)
    }

    /// The same for UDP.
    ///
    /// # Panics
    /// As [`Peer::start`].
    pub fn start_udp(command: &mut Command, addr: SocketAddr) -> Self {
        Self::run(command, addr, "udp", None)
    }

    /// Starts `program` with `args` and the path of a file that holds `config`; the file goes with it.
    ///
    /// # Panics
    /// As [`Peer::start`], or if the file cannot be written.
    pub fn with_config(program: &OsStr, args: &[&str], config: &str, addr: SocketAddr) -> Self {
        let name = format!("adit-peer-{}-{}-{}", std::process::id(), addr.ip(), addr.port());
        let path = std::env::temp_dir().join(name);
        std::fs::write(&path, config).expect("a file for the peer");
        Self::run(Command::new(program).args(args).arg(&path), addr, "tcp", Some(path))
    }

    fn run(command: &mut Command, addr: SocketAddr, protocol: &str, config: Option<PathBuf>) -> Self {
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        let child = end_with_parent(command).spawn().expect("a peer that starts");
        let peer = Self { child, config };
        wait_for(&format!("{command:?} listens"), || listens(addr, protocol));
        peer
    }
}

impl Drop for Peer {
    fn drop(&mut self) {
        drop(self.child.kill());
        drop(self.child.wait());
        if let Some(config) = &self.config {
            drop(std::fs::remove_file(config));
        }
    }
}

/// Asked of the system, so that nobody has to accept a connection for it.
fn listens(addr: SocketAddr, protocol: &str) -> bool {
    let SocketAddr::V4(addr) = addr else { panic!("tests listen on IPv4: {addr}") };
    let ip = format!("{:08X}", u32::from_le_bytes(addr.ip().octets()));
    let port = addr.port();
    let zeros = |count: usize| "0".repeat(count);
    // On the address itself or on every one, as a socket of IPv4 or as one of IPv6 that takes both.
    let places = [ip.clone(), zeros(8), format!("{}FFFF0000{ip}", zeros(16)), zeros(32)]
        .map(|place| format!("{place}:{port:04X}"));
    ["", "6"].iter().any(|family| {
        let table = std::fs::read_to_string(format!("/proc/net/{protocol}{family}")).unwrap_or_default();
        table.lines().any(|line| {
            let mut fields = line.split_ascii_whitespace().skip(1);
            let (local, _, state) = (fields.next(), fields.next(), fields.next());
            local.is_some_and(|local| places.iter().any(|place| place == local))
                && (protocol == "udp" || state == Some("0A"))
        })
    })
}

/// sing-box: what `ADIT_SING_BOX` names, or the one in the path. Says so if there is none.
pub fn sing_box() -> Option<OsString> {
    let program = std::env::var_os("ADIT_SING_BOX").unwrap_or_else(|| "sing-box".into());
    let found = Command::new(&program).arg("version").stdout(Stdio::null()).stderr(Stdio::null()).status();
    if found.is_ok_and(|status| status.success()) {
        return Some(program);
    }
    skipped("no sing-box in the path, and ADIT_SING_BOX names none");
    None
}

/// The program that `variable` names. Says so if it names none.
pub fn program_of(variable: &str) -> Option<OsString> {
    let program = std::env::var_os(variable);
    if program.is_none() {
        skipped(format_args!("{variable} names no program"));
    }
    program
}

/// Whether a program is in the path. Says so if not.
pub fn has(program: &str) -> bool {
    let paths = std::env::var_os("PATH").unwrap_or_default();
    let found = std::env::split_paths(&paths).any(|dir| dir.join(program).is_file());
    if !found {
        skipped(format_args!("{program} is not installed"));
    }
    found
}

/// Sends every stream's bytes and every datagram back; a `?` is answered with the port that it came from.
///
/// # Panics
/// If its address is taken.
#[expect(clippy::disallowed_methods, reason = "a plain target")]
pub fn echo() -> SocketAddr {
    let at = unused_addr();
    let (listener, socket) =
        (TcpListener::bind(at).expect("a plain socket"), UdpSocket::bind(at).expect("a plain socket"));
    thread::spawn(move || {
        for mut stream in listener.incoming().flatten() {
            let serve = move || {
                let mut bytes = [0; 4096];
                while let Ok(len @ 1..) = stream.read(&mut bytes) {
                    if stream.write_all(&bytes[..len]).is_err() {
                        return;
                    }
                }
            };
            thread::Builder::new().stack_size(64 * 1024).spawn(serve).expect("a thread");
        }
    });
    thread::spawn(move || {
        let mut bytes = [0; 2048];
        while let Ok((len, from)) = socket.recv_from(&mut bytes) {
            let port = from.port().to_be_bytes();
            let answer = if &bytes[..len] == b"?" { &port[..] } else { &bytes[..len] };
            socket.send_to(answer, from).expect("a plain socket");
        }
    });
    at
}
