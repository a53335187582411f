//! The server's reasons for refusing a client.

use adit_proto::ssr::protocol::State;
use adit_proto::ssr::{Refusal, SsrKey, SsrProtocol, ssr_fuzz};
use adit_proto::wire::Rng;

use crate::ssr::support::{Bad, NOW_S, Script, Setup, now, shake};

fn authenticating() -> impl Iterator<Item = SsrProtocol> {
    let none =
        [SsrProtocol::Origin, SsrProtocol::VerifyDeflate, SsrProtocol::VerifySimple, SsrProtocol::VerifySha1];
    SsrProtocol::all().filter(move |protocol| !none.contains(protocol))
}

/// The state of a server behind what a client of `client` sends first.
fn outcome(client: &Setup, server: &Setup, unix_s: u64) -> State {
    let mut sender = client.client(&client.client_config(), unix_s, 6);
    let mut receiver = server.server();
    let first = sender.send(b"payload");
    let result = receiver.receive(&first);
    let state = receiver.state();
    assert_eq!(result.is_err(), matches!(state, State::Refused(_)), "{state:?}");
    if result.is_err() {
        assert!(receiver.out.is_empty(), "nothing is answered");
    }
    state
}

#[test]
fn wrong_password() {
    for protocol in authenticating() {
        let server = Setup::new("none", protocol.name(), "plain");
        let key = SsrKey::from_password("none".parse().unwrap(), b"other");
        let client = Setup::with_key(key, protocol.name(), "plain");
        assert_eq!(outcome(&client, &server, NOW_S), State::Refused(Refusal::WrongKey), "{protocol}");
    }
}

#[test]
fn wrong_clock() {
    for protocol in authenticating().filter(|protocol| *protocol != SsrProtocol::AuthSha1V2) {
        let window_s: u32 = if protocol == SsrProtocol::AuthSha1 { 3600 } else { 86_400 };
        let setup = || Setup::new("aes-128-ctr", protocol.name(), "plain");
        let edge = i64::from(window_s);
        for (offset, is_good) in
            [(0, true), (edge, true), (-edge, true), (edge + 1, false), (-edge - 1, false)]
        {
            let unix_s = NOW_S.checked_add_signed(offset).unwrap();
            let expected = if is_good {
                State::Authenticated { user: None }
            } else {
                State::Refused(Refusal::Clock { offset_s: offset, window_s })
            };
            assert_eq!(outcome(&setup(), &setup(), unix_s), expected, "{protocol} {offset}");
        }
    }
}

#[test]
fn unknown_user_and_wrong_secret() {
    for protocol in SsrProtocol::all().filter(|protocol| protocol.has_users()) {
        let setup = |user| {
            Setup::new("aes-128-ctr", protocol.name(), "plain").with_users(user, &[(1, "one"), (2, "two")])
        };
        let server = setup(None);
        let result = |user| outcome(&setup(Some(user)), &server, NOW_S);
        assert_eq!(result((2, "two")), State::Authenticated { user: Some(2) });
        assert_eq!(result((3, "two")), State::Refused(Refusal::UnknownUser { id: 3 }));
        assert_eq!(result((2, "one")), State::Refused(Refusal::WrongSecret { id: 2 }), "{protocol}");
    }
}

#[test]
fn replays() {
    for protocol in authenticating() {
        let setup = Setup::new("aes-128-ctr", protocol.name(), "plain");
        let first = setup.client(&setup.client_config(), NOW_S, 6).send(b"payload");
        assert!(setup.server().receive(&first).is_ok());
        let mut again = setup.server();
        assert!(again.receive(&first).is_err());
        assert_eq!(again.state(), State::Refused(Refusal::Replay), "{protocol}");
    }
}

/// A flipped bit anywhere in the first flight is found, and never yields another payload.
#[test]
fn one_flipped_bit() {
    for protocol in authenticating() {
        let setup = || Setup::new("none", protocol.name(), "plain");
        let good = setup().client(&setup().client_config(), NOW_S, 6).send(b"payload");
        let plain = setup().server().receive(&good).unwrap();
        for at in 0..good.len() {
            let mut bad = good.clone();
            bad[at] ^= 1 << (at % 8);
            if let Ok(got) = setup().server().receive(&bad) {
                assert!(plain.starts_with(&got) && got.len() < plain.len(), "{protocol}: byte {at}");
            }
        }
    }
}

#[test]
fn truncations_wait() {
    for protocol in authenticating() {
        let setup = || Setup::new("none", protocol.name(), "plain");
        let good = setup().client(&setup().client_config(), NOW_S, 6).send(b"payload");
        let plain = setup().server().receive(&good).unwrap();
        for cut in 0..good.len() {
            let got = setup().server().receive(&good[..cut]).unwrap();
            assert!(plain.starts_with(&got) && got.len() < plain.len(), "{protocol}: cut to {cut}");
        }
    }
}

#[test]
fn obfs_refuse_what_is_none() {
    for obfs in ["http_simple", "http_post", "random_head", "tls1.2_ticket_auth", "tls1.2_ticket_fastauth"] {
        let mut server = Setup::new("aes-128-ctr", "auth_chain_a", obfs).server();
        let Err(Bad::Refused(refusal)) = server.receive(&[0x55; 40]) else { panic!("{obfs}") };
        assert!(matches!(refusal, Refusal::Obfs { .. }), "{obfs}: {refusal}");
    }
}

#[test]
fn tls_hellos_are_checked() {
    let setup = Setup::new("aes-128-ctr", "origin", "tls1.2_ticket_auth");
    let hello = |setup: &Setup, unix_s| {
        let mut client = setup.client(&setup.client_config(), unix_s, 3);
        client.receive(&[]).unwrap();
        std::mem::take(&mut client.out)
    };
    let refusal = |hello: &[u8]| match setup.server().receive(hello) {
        Err(Bad::Refused(refusal)) => refusal,
        other => panic!("{other:?}"),
    };
    let good = hello(&setup, NOW_S);
    assert!(setup.server().receive(&good).is_ok());
    assert_eq!(refusal(&good), Refusal::Replay);
    let other = Setup::new("aes-256-ctr", "origin", "tls1.2_ticket_auth");
    assert_eq!(refusal(&hello(&other, NOW_S)), Refusal::WrongKey);
    assert!(matches!(refusal(&hello(&setup, NOW_S + 86_401)), Refusal::Clock { offset_s: 86_401, .. }));
    for at in 0..76 {
        let mut bad = hello(&setup, NOW_S + 5);
        bad[at] ^= 1;
        // Lengths wait for more, and a session id may be longer.
        if ![3, 4, 43].contains(&at) {
            refusal(&bad);
        }
    }
    // A client finds a server that does not hold the key.
    let mut client = setup.client(&setup.client_config(), NOW_S + 9, 4);
    client.receive(&[]).unwrap();
    let mut server = setup.server();
    server.receive(&client.out).unwrap();
    // Up to the end of the session id: what comes behind is not signed by every server.
    for at in 0..76 {
        let mut bad = server.out.clone();
        bad[at] ^= 1;
        let mut client = setup.client(&setup.client_config(), NOW_S + 9, 4);
        let result = client.receive(&bad);
        assert!(result.is_err() || !client.is_ready(), "byte {at}");
    }
    assert!(shake(&mut setup.client(&setup.client_config(), NOW_S + 11, 4), &mut setup.server()).is_ok());
}

/// Random bytes, and random changes of good ones, break nothing.
#[test]
fn noise() {
    let mut rng = Script::seeded(11);
    for _ in 0..3000 {
        let mut data = vec![0; rng.below(300) as usize];
        rng.fill(&mut data);
        ssr_fuzz::fuzz_protocol(&data, now());
        ssr_fuzz::fuzz_obfs(&data, now());
        ssr_fuzz::fuzz_packets(&data);
        adit_proto::goquiet::fuzz_goquiet(&data);
    }
}

/// Any byte of a good stream is changed: what still comes out is a beginning of what was sent, or has other lengths for a
/// protocol that does not authenticate; and nothing panics.
#[test]
fn changed_streams() {
    let mut rng = Script::seeded(12);
    for protocol in SsrProtocol::all() {
        let setup = || Setup::new("none", protocol.name(), "plain");
        let mut client = setup().client(&setup().client_config(), NOW_S, 6);
        let good: Vec<u8> =
            [&b"one"[..], &[7; 900], &[8; 3000]].iter().flat_map(|piece| client.send(piece)).collect();
        let plain = setup().server().receive(&good).expect("a good stream");
        for _ in 0..60 {
            let mut bad = good.clone();
            let at = rng.below(u32::try_from(bad.len()).expect("small")) as usize;
            bad[at] ^= 1 << rng.below(8);
            let mut server = setup().server();
            let got = server.receive(&bad);
            if authenticating().any(|it| it == protocol) {
                assert!(
                    got.is_err() || got.is_ok_and(|got| plain.starts_with(&got)),
                    "{protocol}: byte {at}"
                );
            }
        }
    }
}
