//! sing-box's `userkey`, both ways, in every version that it has: `ADIT_SING_BOX` or `sing-box` in the path.

use adit_config::model::{SnellMode, SnellVersion, SnellVersions};
use adit_testkit::peer::{Peer, sing_box};
use adit_testkit::unused_addr;

use super::{Scheme, client, key, of, server, status, unlimited};
use crate::common::{Setup, Target, expect_pattern, send_pattern, socks5, wait_for, within};

const V6: SnellVersion = SnellVersion::V6(SnellMode::Default);
const UNSHAPED: SnellVersion = SnellVersion::V6(SnellMode::Unshaped);

fn mode(version: SnellVersion) -> String {
    version.mode().map_or_else(String::new, |mode| format!(r#","mode":"{}""#, mode.name()))
}

#[test]
#[ignore = "interop: needs sing-box"]
fn clients_of_sing_box_are_told_apart() {
    within(100, || {
        let Some(program) = sing_box() else { return };
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
                    let _peer = Peer::with_config(&program, &["run", "-c"], &config, at);
                    for _ in 0..2 {
                        let target = Target::new(|stream| {
                            expect_pattern(&stream, 1, 5000);
                            send_pattern(&stream, 2, 70_000).unwrap();
                        });
                        let (stream, code) = socks5(at, &target.addr.ip().to_string(), target.addr.port());
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
        let Some(program) = sing_box() else { return };
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
            let _peer = Peer::with_config(&program, &["run", "-c"], &config, at);
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
