//! sing-box's `userkey`, both ways, in every version that it has: `ADIT_SING_BOX` or `sing-box` in the path.

use adit_model::{SnellMode, SnellVersion, SnellVersions};
use adit_testkit::peer::sing_box;

use super::{Scheme, client, key, of, server, status, unlimited};
use crate::common::{Setup, Target, expect_pattern, send_pattern, wait_for, within};
use crate::sing_box::{SingBox, fields};

const V6: SnellVersion = SnellVersion::V6(SnellMode::Default);
const UNSHAPED: SnellVersion = SnellVersion::V6(SnellMode::Unshaped);

#[test]
#[ignore = "interop: needs sing-box"]
fn clients_of_sing_box_are_told_apart() {
    within(100, || {
        let Some(program) = sing_box() else { return };
        for version in [SnellVersion::V5, V6, UNSHAPED] {
            for reuse in [false, true] {
                let auto = Setup { versions: SnellVersions::Auto, ..of(version) };
                for setup in [of(version), auto] {
                    let server = server(&setup, Scheme::Named, unlimited(&["ann", "bob"]));
                    let fields = format!(r#"{},"userkey":"{}""#, fields(version, true), key("bob"));
                    let client = SingBox::client(&program, server.addr, &fields, reuse);
                    for _ in 0..2 {
                        let target = Target::new(|stream| {
                            expect_pattern(&stream, 1, 5000);
                            send_pattern(&stream, 2, 70_000).unwrap();
                        });
                        let stream = client.tunnel(target.addr);
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
        for version in [SnellVersion::V5, V6, UNSHAPED] {
            let setup = of(version);
            let users =
                ["ann", "bob"].map(|name| format!(r#"{{"name":"{name}","userkey":"{}"}}"#, key(name)));
            let fields = format!(r#"{},"users":[{}]"#, fields(version, false), users.join(","));
            let server = SingBox::server(&program, &fields);
            let target = Target::echo();
            let setup = Setup { half_close: adit_model::HalfClose::Late, ..setup };
            for name in ["ann", "bob"] {
                let client = client(&setup, Scheme::Named, name, server.addr);
                for _ in 0..3 {
                    let stream = client.tunnel(target.addr);
                    send_pattern(&stream, 1, 20_000).unwrap();
                    expect_pattern(&stream, 1, 20_000);
                }
            }
            // Without the right one nothing comes back.
            let bad = client(&setup, Scheme::Named, "mallory", server.addr);
            let stream = bad.tunnel(target.addr);
            send_pattern(&stream, 1, 100).unwrap();
            let mut byte = [0];
            assert!(!matches!(std::io::Read::read(&mut &stream, &mut byte), Ok(1)), "{version:?}");
        }
    });
}
