//! A peer that is not a user sees nothing, and costs users nothing.

use std::io::{ErrorKind, Read, Write};
use std::net::{Shutdown, TcpStream};
use std::thread;
use std::time::Duration;

use adit_model::{InboundProtocol, Limits, SnellMode, SnellVersion, SnellVersions, Transports};
use adit_proto::wire::{Host, Target as Destination};
use adit_testkit::in_time;

use super::{SCHEMES, Scheme, client, client_from, of, server, unlimited};
use crate::common::{Pattern, Setup, Target, assert_silent, connect, exchange, wait_for, within};

const V6: SnellVersion = SnellVersion::V6(SnellMode::Default);

/// So long nothing at all must come.
const SILENCE: Duration = Duration::from_secs(2);

#[test]
fn wrong_keys_ids_and_garbage_meet_the_same_silence() {
    within(100, || {
        let auto = Setup { versions: SnellVersions::Auto, ..of(SnellVersion::V5) };
        let mut all = Vec::new();
        for (setup, scheme) in [of(SnellVersion::V5), of(V6), auto]
            .iter()
            .flat_map(|setup| SCHEMES.map(|scheme| (setup, scheme)))
        {
            let server = server(setup, scheme, unlimited(&["ann", "bob"]));
            let good = client(setup, scheme, "ann", server.addr);
            let bad = client(setup, scheme, "mallory", server.addr);
            let none = setup.client(server.addr);
            let target = Target::echo();
            let (mut streams, mut tunnels) = (Vec::new(), Vec::new());
            for (who, proxy) in [("an unknown user", &bad), ("nobody", &none)] {
                let mut stream = proxy.tunnel(target.addr);
                stream.write_all(b"early").unwrap();
                tunnels.push((format!("{setup:?} {scheme:?}: {who}"), stream));
            }
            for len in [1, 38, 39, 62, 63, 100, 294, 295, 1460, 70_000] {
                let mut stream = connect(server.addr);
                stream.write_all(&Pattern::bytes(len as u64, len)).unwrap();
                streams.push((format!("{setup:?} {scheme:?}: {len} bytes"), stream));
            }
            all.push((server, [good, bad, none], target, streams, tunnels));
        }
        // Nothing comes.
        thread::sleep(SILENCE);
        for (_server, [good, ..], target, streams, tunnels) in all {
            for (name, stream) in streams.iter().chain(&tunnels) {
                assert_silent(name, stream);
            }
            exchange(&good.tunnel(target.addr), (1, 20_000), (1, 20_000));
            for (name, mut stream) in streams {
                stream.shutdown(Shutdown::Write).unwrap();
                let read = stream.read(&mut [0; 64]).map_err(|error| error.kind());
                assert_eq!(read, Ok(0), "{name}");
            }
        }
    });
}

/// A user who asks for a host that is none has an answer, and a client that is no user has none.
#[test]
fn a_request_for_nothing_is_answered_for_users_alone() {
    within(60, || {
        for (setup, scheme) in
            [of(SnellVersion::V5), of(V6)].iter().flat_map(|setup| SCHEMES.map(|scheme| (setup, scheme)))
        {
            let server = server(setup, scheme, unlimited(&["ann", "bob"]));
            let target = Destination { host: Host::Name("a b".into()), port: 80 };
            let ask = |name: &str| {
                let from = InboundProtocol::Tunnel { target: target.clone(), transports: Transports::Tcp };
                let client = client_from(setup, scheme, name, server.addr, from);
                let mut stream = connect(client.addr);
                stream.set_read_timeout(Some(Duration::from_secs(30))).unwrap();
                stream.write_all(b"early").unwrap();
                (client, stream)
            };
            let (_client, mut stream) = ask("ann");
            let ended = stream.read(&mut [0; 16]);
            let is_reset = ended.as_ref().is_err_and(|error| error.kind() == ErrorKind::ConnectionReset);
            assert!(is_reset || matches!(ended, Ok(0)), "{setup:?} {scheme:?}: {ended:?}");
            assert_eq!(server.refused("malformed"), 1, "{setup:?} {scheme:?}");
            let (_other, stream) = ask("mallory");
            wait_for("mallory is refused", || server.refused("authentication") == 1);
            assert_silent(&format!("{setup:?} {scheme:?}"), &stream);
        }
    });
}

#[test]
fn known_users_are_served_while_garbage_floods_in() {
    within(100, || {
        let limits = Limits { unauthenticated_per_source: Some(4096), ..Setup::default().limits };
        let setup = Setup { limits, reuse: false, ..of(SnellVersion::V5) };
        let names: Vec<String> = (0..400).map(|n| format!("user{n}")).collect();
        let names: Vec<&'static str> = names.into_iter().map(|name| &*name.leak()).collect();
        let server = server(&setup, Scheme::Each, unlimited(&names));
        let known = client(&setup, Scheme::Each, "user399", server.addr);
        let target = Target::echo();
        // Not known yet, it must not end its direction before it is.
        let mut first = known.tunnel(target.addr);
        first.write_all(b"?").unwrap();
        first.read_exact(&mut [0]).unwrap();
        let garbage: Vec<TcpStream> = (0..300)
            .map(|n| {
                let mut stream = connect(server.addr);
                stream.write_all(&Pattern::bytes(n, 200)).unwrap();
                stream
            })
            .collect();
        for _ in 0..20 {
            exchange(&known.tunnel(target.addr), (1, 1000), (1, 1000));
        }
        // Keys are tried for one after the other, by a quarter of a core; each that fails is refused in silence.
        wait_for("the first are refused", || server.refused("authentication") > 20);
        assert_silent("garbage", &garbage[299]);
        drop(garbage);
    });
}

/// With thousands of keys to try, that takes seconds in a debug build. An end of the client is not kept waiting for it.
#[test]
fn an_end_does_not_wait_for_the_trial_of_keys() {
    within(100, || {
        let setup = Setup { reuse: false, ..of(SnellVersion::V5) };
        let names: Vec<String> = (0..2000).map(|n| format!("user{n}")).collect();
        let names: Vec<&'static str> = names.into_iter().map(|name| &*name.leak()).collect();
        let server = server(&setup, Scheme::Each, unlimited(&names));
        let attempt = |len: usize| {
            let mut stream = connect(server.addr);
            stream.write_all(&Pattern::bytes(len as u64, len)).unwrap();
            let since = std::time::Instant::now();
            stream.shutdown(Shutdown::Write).unwrap();
            stream.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
            let read = stream.read(&mut [0; 64]).map_err(|error| error.kind());
            assert_eq!(read, Ok(0), "{len} bytes");
            assert!(since.elapsed() < Duration::from_millis(500), "{len} bytes: {:?}", since.elapsed());
        };
        for len in [1, 38, 39, 600, 70_000, 200_000] {
            in_time(|| attempt(len));
        }
    });
}
