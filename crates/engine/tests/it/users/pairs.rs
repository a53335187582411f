//! Every user through a server that tells users apart.

use adit_model::{HalfClose, SnellMode, SnellVersion, SnellVersions};

use super::{SCHEMES, Scheme, client, of, server, status, unlimited};
use crate::common::{Setup, Target, exchange, expect_end, expect_pattern, send_pattern, wait_for, within};

const V6: SnellVersion = SnellVersion::V6(SnellMode::Default);

/// Answers any request with a pattern of its own.
fn answering(up: usize, down: usize) -> Target {
    Target::new(move |stream| {
        expect_pattern(&stream, 1, up);
        send_pattern(&stream, 2, down).unwrap();
    })
}

#[test]
fn bytes_are_counted_exactly_and_for_whom_they_are() {
    within(100, || {
        let auto = |version| Setup { versions: SnellVersions::Auto, ..of(version) };
        let setups = [of(SnellVersion::V5), of(V6), auto(SnellVersion::V5), auto(V6), of(SnellVersion::V2)];
        for (setup, scheme) in setups.iter().flat_map(|setup| SCHEMES.map(|scheme| (setup, scheme))) {
            let server = server(setup, scheme, unlimited(&["ann", "bob", "eve"]));
            let clients = ["ann", "bob"].map(|name| client(setup, scheme, name, server.addr));
            for (round, (client, (up, down))) in
                [(&clients[0], (10, 1_000_003)), (&clients[1], (700_001, 1)), (&clients[0], (99, 0))]
                    .into_iter()
                    .enumerate()
            {
                let target = answering(up, down);
                let stream = client.tunnel(target.addr);
                exchange(&stream, (1, up), (2, down));
                assert_eq!(target.panics(), 0, "{setup:?} {scheme:?} {round}");
            }
            let used = |name| {
                let user = status(&server, name);
                (user.up_bytes, user.down_bytes, user.requests)
            };
            wait_for("everything is counted", || used("ann").2 == 2 && used("bob").2 == 1);
            wait_for("what is under way has come", || used("ann").0 == 109 && used("bob").0 == 700_001);
            assert_eq!(used("ann"), (109, 1_000_003, 2), "{setup:?} {scheme:?}");
            assert_eq!(used("bob"), (700_001, 1, 1), "{setup:?} {scheme:?}");
            assert_eq!(used("eve"), (0, 0, 0));
            let all = server.running().status().inbounds.remove(0);
            assert_eq!((all.up_bytes, all.down_bytes), (700_110, 1_000_004));
            drop(clients);
            wait_for("no place is held", || {
                status(&server, "ann").open == 0 && status(&server, "bob").open == 0
            });
        }
    });
}

#[test]
fn connections_are_those_that_are_open() {
    within(100, || {
        let setup = of(SnellVersion::V5);
        let server = server(&setup, Scheme::Each, unlimited(&["ann"]));
        let client = client(&setup, Scheme::Each, "ann", server.addr);
        let target = Target::echo();
        // All at once, more than wait for a trial of keys: the source is not known yet.
        let streams = [(); 12].map(|()| client.tunnel(target.addr));
        for stream in &streams {
            send_pattern(stream, 4, 10).unwrap();
        }
        for stream in &streams {
            expect_pattern(stream, 4, 10);
        }
        assert_eq!(status(&server, "ann").open, 12);
        for stream in streams {
            stream.shutdown(std::net::Shutdown::Write).unwrap();
            expect_end(&stream);
        }
        drop(client);
        wait_for("none is left", || status(&server, "ann").open == 0);
    });
}

#[test]
fn a_user_on_an_old_connection_stays_itself() {
    within(100, || {
        let setup = Setup { half_close: HalfClose::On, ..of(SnellVersion::V4) };
        for scheme in SCHEMES {
            let server = server(&setup, scheme, unlimited(&["ann", "bob"]));
            let client = client(&setup, scheme, "bob", server.addr);
            for _ in 0..5 {
                let target = answering(10, 10);
                exchange(&client.tunnel(target.addr), (1, 10), (2, 10));
                wait_for("the connection is kept", || client.out().idle == 1);
            }
            let bob = status(&server, "bob");
            assert_eq!((bob.requests, bob.up_bytes, bob.down_bytes), (5, 50, 50));
            assert_eq!((client.out().reused, bob.open), (4, 1), "{scheme:?}");
        }
    });
}
