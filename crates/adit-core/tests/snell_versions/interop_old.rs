//! With icpz/open-snell, which speaks versions 1 to 3.
//!
//! The binaries are `$ADIT_OLD_SNELL_SERVER` and `$ADIT_OLD_SNELL_CLIENT`; without them these tests say so and pass.

use std::ffi::OsString;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::thread;

use adit_config::model::SnellVersion;
use adit_sys::process::end_with_parent;
use adit_testkit::unused_addr;

use crate::common::{PSK, Target, expect_pattern, mix, send_pattern, socks5, wait_for, within};
use crate::only;

/// A running program; killed when dropped.
struct Old {
    addr: SocketAddr,
    child: Child,
    config: PathBuf,
}

fn program(variable: &str) -> Option<OsString> {
    let program = std::env::var_os(variable);
    if program.is_none() {
        eprintln!("skipped: {variable} names no program");
    }
    program
}

impl Old {
    fn start(program: &OsString, addr: SocketAddr, config: &str) -> Self {
        let path = std::env::temp_dir().join(format!("adit-old-{}-{}.conf", std::process::id(), addr.ip()));
        std::fs::write(&path, config).unwrap();
        let mut command = Command::new(program);
        command.arg("-c").arg(&path).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        let child = end_with_parent(&mut command).spawn().unwrap();
        wait_for("it listens", || TcpStream::connect(addr).is_ok());
        Self { addr, child, config: path }
    }
}

impl Drop for Old {
    fn drop(&mut self) {
        drop(self.child.kill());
        drop(self.child.wait());
        drop(std::fs::remove_file(&self.config));
    }
}

/// A target that sends back as many bytes as it has been told to expect.
fn mirror() -> Target {
    Target::new(|mut stream| {
        let mut len = [0; 4];
        while stream.read_exact(&mut len).is_ok() {
            let mut bytes = vec![0; usize::try_from(u32::from_le_bytes(len)).unwrap()];
            stream.read_exact(&mut bytes).unwrap();
            stream.write_all(&bytes).unwrap();
        }
    })
}

fn many(tunnel: impl Fn(SocketAddr) -> TcpStream + Sync) {
    let target = mirror();
    thread::scope(|scope| {
        for n in 0..20 {
            let (tunnel, target) = (&tunnel, &target);
            scope.spawn(move || {
                for round in 0..5 {
                    let len = usize::try_from(mix(n + round) % 200_000).unwrap();
                    let mut stream = tunnel(target.addr);
                    stream.write_all(&u32::try_from(len).unwrap().to_le_bytes()).unwrap();
                    send_pattern(&stream, n, len).unwrap();
                    expect_pattern(&stream, n, len);
                }
            });
        }
    });
}

#[test]
#[ignore = "needs icpz/open-snell"]
fn interop_old_server() {
    let Some(program) = program("ADIT_OLD_SNELL_SERVER") else { return };
    within(100, move || {
        let addr = unused_addr();
        let server = Old::start(&program, addr, &format!("[snell-server]\nlisten = {addr}\npsk = {PSK}\n"));
        for version in [SnellVersion::V1, SnellVersion::V2, SnellVersion::V3] {
            let client = only(version).client(server.addr);
            many(|target| client.tunnel(target));
            wait_for("nothing is left", || client.open() == 0);
            eprintln!("{version:?}: {:?}", client.out());
        }
    });
}

#[test]
#[ignore = "needs icpz/open-snell"]
fn interop_old_client() {
    let Some(program) = program("ADIT_OLD_SNELL_CLIENT") else { return };
    within(100, move || {
        for (version, number) in [(SnellVersion::V1, 1), (SnellVersion::V2, 2)] {
            let server = only(version).server();
            let addr = unused_addr();
            let config = format!(
                "[snell-client]\nlisten = {addr}\nserver = {}\npsk = {PSK}\nversion = {number}\n",
                server.addr
            );
            let client = Old::start(&program, addr, &config);
            many(|target| {
                let (stream, code) = socks5(client.addr, &target.ip().to_string(), target.port());
                assert_eq!(code, 0);
                stream
            });
            let inbound = &server.running().status().inbounds[0];
            eprintln!("{version:?}: {} connections for {} requests", inbound.accepted, inbound.requests);
        }
    });
}
