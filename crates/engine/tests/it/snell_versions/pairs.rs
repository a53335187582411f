//! An adit client and an adit server.

use std::io::{Read, Write};
use std::net::Shutdown;
use std::thread;

use adit_model::{HalfClose, SnellVersion};
use adit_testkit::unused_addr;

use super::{RAW, UNSHAPED, V6, auto, only};
use crate::common::{
    Setup, Target, bulk_both_ways, exchange, expect_end, expect_pattern, mix, send_pattern, wait_for, within,
};

const MIB: usize = 1 << 20;

/// Every version that a client can be told, to a server that takes it alone and to one that tells versions apart.
fn every_kind() -> Vec<Setup> {
    let alone = [SnellVersion::V1, SnellVersion::V2, SnellVersion::V3, SnellVersion::V4, V6, UNSHAPED, RAW];
    let alone = alone.into_iter().map(only);
    let mut all: Vec<Setup> = alone.chain([SnellVersion::V5, V6, UNSHAPED].map(auto)).collect();
    let fresh = all.iter().filter(|setup| setup.version.fixed_reuse().is_none());
    let fresh: Vec<Setup> = fresh.map(|setup| Setup { reuse: false, ..setup.clone() }).collect();
    all.extend(fresh);
    all.into_iter().map(|setup| Setup { half_close: HalfClose::On, ..setup }).collect()
}

#[test]
fn echo_and_reuse() {
    within(100, || {
        for setup in every_kind() {
            setup.pair_after_exchanges();
        }
    });
}

#[test]
fn bulk_in_each_direction() {
    within(100, || {
        for setup in every_kind().into_iter().filter(|setup| setup.reuse || setup.version == SnellVersion::V1)
        {
            let len = 2 * MIB;
            let pair = setup.pair();
            bulk_both_ways(|target| pair.client.tunnel(target), len);
            let both = Target::echo();
            exchange(&pair.client.tunnel(both.addr), (9, MIB / 4), (9, MIB / 4));
        }
    });
}

#[test]
fn many_at_once_of_three_versions_on_one_port() {
    within(100, || {
        let server = Setup { cores: 2, ..auto(V6) }.server();
        let setups = [SnellVersion::V4, V6, UNSHAPED]
            .map(|version| Setup { half_close: HalfClose::On, ..auto(version) });
        let clients = setups.map(|setup| setup.client(server.addr));
        let target = Target::echo();
        thread::scope(|scope| {
            for n in 0..60 {
                let (client, target) = (&clients[usize::try_from(n % 3).unwrap()], &target);
                scope.spawn(move || {
                    let len = usize::try_from(mix(n) % 100_000).unwrap();
                    exchange(&client.tunnel(target.addr), (n, len), (n, len));
                });
            }
        });
        for client in &clients {
            wait_for("nothing is left", || client.open() == 0);
        }
        assert_eq!(server.refused("authentication"), 0);
    });
}

/// A late end loses nothing, whether or not the client can see that the server is adit.
#[test]
fn half_closes() {
    within(100, || {
        for version in [V6, UNSHAPED, SnellVersion::V3] {
            for half_close in [HalfClose::Auto, HalfClose::Late] {
                let pair = Setup { half_close, ..only(version) }.pair();
                let target = Target::new(|mut stream| {
                    let mut request = [0; 4];
                    stream.read_exact(&mut request).unwrap();
                    send_pattern(&stream, 6, 50_000).unwrap();
                });
                for _ in 0..3 {
                    let mut stream = pair.client.tunnel(target.addr);
                    stream.write_all(b"GET!").unwrap();
                    stream.shutdown(Shutdown::Write).unwrap();
                    expect_pattern(&stream, 6, 50_000);
                    expect_end(&stream);
                }
            }
        }
    });
}

#[test]
fn a_target_that_cannot_be_reached() {
    within(60, || {
        for setup in every_kind() {
            let pair = setup.pair();
            let mut stream = pair.client.tunnel(unused_addr());
            drop(stream.write_all(b"GET!"));
            assert!(!matches!(stream.read(&mut [0; 1]), Ok(1..)), "{setup:?}");
            wait_for("nothing is left", || pair.client.open() == 0);
            wait_for("the failure is counted", || pair.server.out().failed == 1);
        }
    });
}
