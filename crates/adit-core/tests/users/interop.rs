//! sing-box's `userkey`, both ways, in every version that it has: `ADIT_SING_BOX` or `sing-box` in the path.

use std::ffi::OsString;
use std::net::{SocketAddr, TcpStream};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};

use adit_config::model::{SnellMode, SnellVersion, SnellVersions};
use adit_sys::process::end_with_parent;
use adit_testkit::unused_addr;

use crate::common::{Setup, Target, expect_pattern, send_pattern, socks5, wait_for, within};
use crate::{Scheme, client, key, of, server, status, unlimited};

const V6: SnellVersion = SnellVersion::V6(SnellMode::Default);
const UNSHAPED: SnellVersion = SnellVersion::V6(SnellMode::Unshaped);

struct SingBox {
    addr: SocketAddr,
    child: Child,
    config: PathBuf,
}

fn program() -> Option<OsString> {
    let program = std::env::var_os("ADIT_SING_BOX").unwrap_or_else(|| "sing-box".into());
    let found = Command::new(&program).arg("version").stdout(Stdio::null()).stderr(Stdio::null()).status();
    if found.is_ok_and(|status| status.success()) {
        return Some(program);
    }
    eprintln!("skipped: no sing-box in the path, and ADIT_SING_BOX names none");
    None
}

impl SingBox {
    fn start(program: &OsString, addr: SocketAddr, config: &str) -> Self {
        let path = std::env::temp_dir().join(format!("adit-users-{}-{}.json", std::process::id(), addr.ip()));
        std::fs::write(&path, config).unwrap();
        let mut command = Command::new(program);
        command.arg("run").arg("-c").arg(&path).stdin(Stdio::null());
        let child = end_with_parent(&mut command).spawn().unwrap();
        wait_for("sing-box listens", || TcpStream::connect(addr).is_ok());
        Self { addr, child, config: path }
    }
}

impl Drop for SingBox {
    fn drop(&mut self) {
        drop(self.child.kill());
        drop(self.child.wait());
        drop(std::fs::remove_file(&self.config));
    }
}

fn mode(version: SnellVersion) -> String {
    version.mode().map_or_else(String::new, |mode| format!(r#","mode":"{}""#, mode.name()))
}

#[test]
#[ignore = "interop: needs sing-box"]
fn clients_of_sing_box_are_told_apart() {
    within(100, || {
        let Some(program) = program() else { return };
        for (version, number) in [(SnellVersion::V5, 4), (V6, 6), (UNSHAPED, 6)] {
            for reuse in [false, true] {
                let auto = Setup { versions: SnellVersions::Auto, ..of(version) };
                for setup in [of(version), auto] {
                    let server = server(&setup, Scheme::Named, unlimited(&["ann", "bob"]));
                    let at = unused_addr();
                    let config = format!(
                        r#"{{"log":{{"level":"fatal"}},
                        "inbounds":[{{"type":"mixed","listen":"{}","listen_port":{}}}],
                        "outbounds":[{{"type":"snell","server":"{}","server_port":{},"version":{number},
                        "psk":"{}","userkey":"{}","reuse":{reuse}{}}}]}}"#,
                        at.ip(),
                        at.port(),
                        server.addr.ip(),
                        server.addr.port(),
                        setup.psk,
                        key("bob"),
                        mode(version)
                    );
                    let peer = SingBox::start(&program, at, &config);
                    for _ in 0..2 {
                        let target = Target::new(|stream| {
                            expect_pattern(&stream, 1, 5000);
                            send_pattern(&stream, 2, 70_000).unwrap();
                        });
                        let (stream, code) =
                            socks5(peer.addr, &target.addr.ip().to_string(), target.addr.port());
                        assert_eq!(code, 0);
                        send_pattern(&stream, 1, 5000).unwrap();
                        expect_pattern(&stream, 2, 70_000);
                    }
                    let bob = || status(&server, "bob");
                    wait_for("both are counted", || bob().down_bytes == 140_000);
                    assert_eq!((bob().requests, bob().up_bytes), (2, 10_000), "{version:?} {reuse}");
                    assert_eq!(status(&server, "ann").requests, 0);
                }
            }
        }
    });
}

#[test]
#[ignore = "interop: needs sing-box"]
fn clients_of_ours_name_themselves_to_sing_box() {
    within(100, || {
        let Some(program) = program() else { return };
        for (version, number) in [(SnellVersion::V5, 5), (V6, 6), (UNSHAPED, 6)] {
            let setup = of(version);
            let at = unused_addr();
            let config = format!(
                r#"{{"log":{{"level":"fatal"}},
                "inbounds":[{{"type":"snell","listen":"{}","listen_port":{},"version":{number},"psk":"{}",
                "users":[{{"name":"ann","userkey":"{}"}},{{"name":"bob","userkey":"{}"}}]{}}}],
                "outbounds":[{{"type":"direct"}}]}}"#,
                at.ip(),
                at.port(),
                setup.psk,
                key("ann"),
                key("bob"),
                mode(version)
            );
            let _peer = SingBox::start(&program, at, &config);
            let target = Target::echo();
            let setup = Setup { half_close: adit_config::model::HalfClose::Late, ..setup };
            for name in ["ann", "bob"] {
                let client = client(&setup, Scheme::Named, name, at);
                for _ in 0..3 {
                    let stream = client.tunnel(target.addr);
                    send_pattern(&stream, 1, 20_000).unwrap();
                    expect_pattern(&stream, 1, 20_000);
                }
            }
            // Without the right one nothing comes back.
            let bad = client(&setup, Scheme::Named, "mallory", at);
            let stream = bad.tunnel(target.addr);
            send_pattern(&stream, 1, 100).unwrap();
            let mut byte = [0];
            assert!(!matches!(std::io::Read::read(&mut &stream, &mut byte), Ok(1)), "{version:?}");
        }
    });
}
