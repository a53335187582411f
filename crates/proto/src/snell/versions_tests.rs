//! Clients and servers of every version, face to face.

use std::sync::Arc;

use proptest::prelude::*;

use super::tests::{TestRng, connect, now, read, write, write_end};
use super::*;
use crate::buf::RecvBuf;
use crate::wire::{Layer, Rng, Target, WireError};

const PSK: &[u8] = b"adit-v6-vector-0003";

fn formats(psk: &SnellPsk) -> [(&'static str, Format); 6] {
    let profile = Arc::new(Profile::new(psk, &mut TestRng(7)));
    [
        ("v1", Format::V1),
        ("v2", Format::V2),
        ("v4", Format::V4),
        ("shaped", Format::Shaped(profile)),
        ("unshaped", Format::Unshaped),
        ("raw", Format::UnsafeRaw),
    ]
}

fn any(psk: &SnellPsk) -> Accepts {
    Accepts::Any(Arc::new(Profile::new(psk, &mut TestRng(8))))
}

fn client(format: Format, psk: &SnellPsk, rng: &mut TestRng) -> SnellClientStream {
    SnellClientStream::speaking(format, psk.clone(), &psk.derive_own(rng), rng)
}

/// Waits for the request and makes the server ready to answer.
fn request(
    server: &mut SnellServerStream,
    wire: &mut RecvBuf,
    psk: &SnellPsk,
    rng: &mut TestRng,
) -> SnellRequest {
    match server.poll_request(wire).unwrap() {
        Progress::Request(request) => {
            server.set_own_key(&psk.derive_own(rng), rng);
            request
        }
        Progress::NeedMore(len) => panic!("{len} bytes are missing"),
    }
}

/// The formats that a server takes, and the clients that it understands.
fn pairs(psk: &SnellPsk) -> Vec<(String, Accepts, Format)> {
    let mut pairs = Vec::new();
    for (name, format) in formats(psk) {
        pairs.push((format!("{name} to {name}"), Accepts::Only(format.clone()), format.clone()));
        if matches!(name, "v4" | "shaped" | "unshaped") {
            pairs.push((format!("{name} to any"), any(psk), format));
        }
    }
    pairs
}

#[test]
fn three_exchanges_on_one_connection() {
    let (at, psk) = (now(), SnellPsk::new(PSK));
    for (name, accepts, format) in pairs(&psk) {
        let mut rng = TestRng(1);
        let mut client = client(format, &psk, &mut rng);
        let mut server = SnellServerStream::accepting(accepts, psk.clone());
        let (mut up, mut down) = (RecvBuf::with_len(1 << 20), RecvBuf::with_len(1 << 20));
        for round in 0..3_u8 {
            let question = vec![round; 30_000 * usize::from(round)];
            client.start(&connect(true));
            up.extend(&write(&mut client, &question, at));
            if round == 0 {
                assert_eq!(request(&mut server, &mut up, &psk, &mut rng), connect(true), "{name}");
            } else {
                assert_eq!(server.poll_request(&mut up).unwrap(), Progress::Request(connect(true)), "{name}");
            }
            assert_eq!(read(&mut server, &mut up, at).unwrap(), (question, false), "{name}");
            server.accept();
            let answer = vec![0xA0 + round; 70_000];
            down.extend(&write(&mut server, &answer, at));
            down.extend(&write_end(&mut server, at));
            assert_eq!(read(&mut client, &mut down, at).unwrap(), (answer, true), "{name}");
            up.extend(&write_end(&mut client, at));
            assert_eq!(read(&mut server, &mut up, at).unwrap(), (vec![], true), "{name}");
            assert!(client.is_idle() && server.next_exchange(), "{name}");
            assert!(up.unread().is_empty() && down.unread().is_empty(), "{name}");
            up.compact();
            down.compact();
        }
        assert!(client.is_authenticated());
        let marks = matches!(&*name, "v4 to v4" | "v4 to any" | "shaped to shaped" | "shaped to any");
        assert_eq!(client.server_is_adit(), marks, "{name}");
    }
}

#[test]
fn every_split_point_of_a_request() {
    let (at, psk) = (now(), SnellPsk::new(PSK));
    for (name, accepts, format) in pairs(&psk) {
        let mut rng = TestRng(2);
        let mut client = client(format, &psk, &mut rng);
        client.start(&connect(false));
        let stream = write(&mut client, b"early", at);
        // Each detection costs derivations: every third point will do there.
        let step = if matches!(accepts, Accepts::Any(_)) { 3 } else { 1 };
        for cut in (0..stream.len()).step_by(step) {
            let mut server = SnellServerStream::accepting(accepts.clone(), psk.clone());
            let mut wire = RecvBuf::with_len(stream.len());
            wire.extend(&stream[..cut]);
            match server.poll_request(&mut wire).unwrap() {
                Progress::NeedMore(len) => assert!(len > 0 && len <= stream.len() - cut, "{name}: {cut}"),
                Progress::Request(_) => panic!("{name}: {cut}"),
            }
            assert!(server.handle_transport_end(wire.unread().len()).is_err(), "{name}: {cut}");
            wire.extend(&stream[cut..]);
            assert_eq!(request(&mut server, &mut wire, &psk, &mut rng), connect(false), "{name}: {cut}");
            assert_eq!(
                read(&mut server, &mut wire, at).unwrap(),
                (b"early".to_vec(), false),
                "{name}: {cut}"
            );
            server.handle_transport_end(0).unwrap();
        }
    }
}

/// A client of another version, mode or key never gets as far as a request, and nothing panics on the way.
#[test]
fn what_does_not_fit_is_refused() {
    let (at, psk, other) = (now(), SnellPsk::new(PSK), SnellPsk::new(b"another key of good length"));
    let mut rng = TestRng(3);
    let servers = formats(&psk).map(|(name, format)| (name, Accepts::Only(format)));
    for (server_name, accepts) in servers.into_iter().chain([("any", any(&psk))]) {
        for (key, right) in [(&psk, true), (&other, false)] {
            for (client_name, format) in formats(key) {
                let fits = match server_name {
                    "any" => right && matches!(client_name, "v4" | "unshaped" | "shaped"),
                    // Without padding, v4's frames and unshaped ones are the same: the server of v4 reads them.
                    "v4" => right && matches!(client_name, "v4" | "unshaped"),
                    "raw" => client_name == "raw",
                    name => right && name == client_name,
                };
                let mut client = client(format, key, &mut rng);
                client.start(&connect(true));
                let stream = write(&mut client, &[1; 300], at);
                let mut server = SnellServerStream::accepting(accepts.clone(), psk.clone());
                let result = server.poll_request(&mut RecvBuf::from_bytes(&stream));
                let got_request = matches!(result, Ok(Progress::Request(_)));
                assert_eq!(got_request, fits, "{client_name} to {server_name}: {result:?}");
            }
        }
    }
}

/// Random bytes of any length: a server asks for more up to its threshold, and fails in one way behind it.
#[test]
fn garbage_of_every_length() {
    let (psk, mut rng) = (SnellPsk::new(PSK), TestRng(4));
    let mut garbage = [0; 400];
    rng.fill(&mut garbage);
    let formats = formats(&psk);
    let Format::Shaped(profile) = &formats[3].1 else { panic!("shaped") };
    let shaped_len = profile.opening_len();
    let threshold = |name: &str| match name {
        "v1" | "v2" => 34,
        "v4" | "unshaped" => 39,
        "raw" => 7,
        _ => shaped_len,
    };
    let servers = formats.iter().map(|(name, format)| (*name, Accepts::Only(format.clone())));
    for (name, accepts) in servers.chain([("any", any(&psk))]) {
        for len in 0..garbage.len() {
            let mut server = SnellServerStream::accepting(accepts.clone(), psk.clone());
            let mut wire = RecvBuf::from_bytes(&garbage[..len]);
            let derives_at = if name == "any" { 39 } else { threshold(name) };
            assert_eq!(server.would_derive(len), name != "raw" && len >= derives_at, "{name}: {len}");
            match server.poll_request(&mut wire) {
                Ok(Progress::NeedMore(missing)) => {
                    assert!(len + missing <= threshold(name), "{name}: {len} + {missing}");
                    assert_eq!(server.has_tried(), name == "any" && len >= 39, "{len}");
                }
                Ok(Progress::Request(_)) => panic!("{name}: {len}"),
                Err(WireError::Authentication { .. }) => assert!(len >= threshold(name), "{name}: {len}"),
                Err(error) => assert!(name == "raw", "{name}: {len}: {error:?}"),
            }
            assert!(server.peer_salt().is_none());
        }
    }
}

/// Both directions have the same shape: a server that hears its own answer refuses it as no request.
#[test]
fn reflected_answers_are_refused() {
    let (at, psk, mut rng) = (now(), SnellPsk::new(PSK), TestRng(5));
    for (name, format) in formats(&psk) {
        let mut client = client(format.clone(), &psk, &mut rng);
        client.start(&connect(true));
        let question = write(&mut client, b"hello", at);
        let mut server = SnellServerStream::accepting(Accepts::Only(format.clone()), psk.clone());
        request(&mut server, &mut RecvBuf::from_bytes(&question), &psk, &mut rng);
        server.accept();
        let answer = write(&mut server, b"hello", at);
        let mut victims = vec![Accepts::Only(format)];
        if matches!(name, "v4" | "shaped" | "unshaped") {
            victims.push(any(&psk));
        }
        for accepts in victims {
            let mut server = SnellServerStream::accepting(accepts, psk.clone());
            let error = server.poll_request(&mut RecvBuf::from_bytes(&answer)).unwrap_err();
            assert_eq!(error, WireError::Malformed { what: "request version", got: 0 }, "{name}");
        }
        if name == "raw" {
            continue;
        }
        let error = read(&mut client, &mut RecvBuf::from_bytes(&question), at).unwrap_err();
        assert_eq!(error, WireError::Replayed { what: "own salt" }, "{name}");
    }
}

/// A server that does not know whether it is v4 or unshaped answers so that both understand.
#[test]
fn answers_to_unpadded_clients_suit_two_versions() {
    let (at, psk, mut rng) = (now(), SnellPsk::new(PSK), TestRng(6));
    let mut sender = client(Format::Unshaped, &psk, &mut rng);
    sender.start(&connect(true));
    let question = write(&mut sender, b"hello", at);
    let mut server = SnellServerStream::accepting(any(&psk), psk.clone());
    request(&mut server, &mut RecvBuf::from_bytes(&question), &psk, &mut rng);
    server.accept();
    let answer = write(&mut server, &[3; 100_000], at);
    for format in [Format::Unshaped, Format::V4] {
        let mut receiver = client(format, &psk, &mut rng);
        receiver.start(&connect(true));
        let opened = read(&mut receiver, &mut RecvBuf::from_bytes(&answer), at);
        assert_eq!(opened.unwrap(), (vec![3; 100_000], false));
    }
}

/// A request is never cut over frames, however little the first frame should hold.
#[test]
fn long_requests_stay_whole() {
    let (at, mut rng) = (now(), TestRng(9));
    for n in 0..20 {
        let psk = SnellPsk::new(format!("a pre-shared key {n}").as_bytes());
        let format = Format::Shaped(Arc::new(Profile::new(&psk, &mut rng)));
        let mut sender = client(format.clone(), &psk, &mut rng);
        let long = SnellRequest {
            client_id: vec![b'u'; 255],
            ..SnellRequest::connect(Target::new("h".repeat(255).as_bytes(), 443).unwrap(), true)
        };
        sender.start(&long);
        let stream = write(&mut sender, &[0; 5000], at);
        let mut server = SnellServerStream::accepting(Accepts::Only(format), psk.clone());
        let mut wire = RecvBuf::from_bytes(&stream);
        assert_eq!(request(&mut server, &mut wire, &psk, &mut rng), long);
        assert_eq!(read(&mut server, &mut wire, at).unwrap().0.len(), 5000);
        assert!(!sender.has_pending());
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    #[test]
    fn any_writes_and_any_pieces_round_trip(
        writes in prop::collection::vec(0_usize..70_000, 1..6),
        piece in 1_usize..9000,
        seed: u64,
    ) {
        let (mut rng, at) = (TestRng(seed), now());
        let psk = SnellPsk::new(&seed.to_le_bytes());
        for (name, accepts, format) in pairs(&psk) {
            let mut client = client(format, &psk, &mut rng);
            client.start(&connect(true));
            let (mut plain, mut sent) = (Vec::new(), Vec::new());
            for &len in &writes {
                let mut payload = vec![0; len];
                rng.fill(&mut payload);
                sent.extend(write(&mut client, &payload, at));
                plain.extend(payload);
            }
            sent.extend(write_end(&mut client, at));
            let mut server = SnellServerStream::accepting(accepts, psk.clone());
            let mut wire = RecvBuf::with_len(sent.len());
            let (mut opened, mut ended, mut requested) = (Vec::new(), false, false);
            for bytes in sent.chunks(piece) {
                wire.extend(bytes);
                if !requested {
                    requested = matches!(server.poll_request(&mut wire).unwrap(), Progress::Request(_));
                }
                if requested {
                    let (payload, end) = read(&mut server, &mut wire, at).unwrap();
                    opened.extend(payload);
                    ended |= end;
                }
            }
            prop_assert!(ended, "{}", name);
            prop_assert_eq!(&opened, &plain, "{}", name);
        }
    }

    #[test]
    fn arbitrary_streams_are_the_same_whole_and_in_pieces(bytes in prop::collection::vec(0_u8.., 0..700)) {
        snell_fuzz::fuzz_versions(&bytes, now());
    }
}

#[test]
fn a_candidate_opens_what_is_its_own_and_nothing_else() {
    let (at, psk, other) = (now(), SnellPsk::new(PSK), SnellPsk::new(b"adit-v6-vector-0004"));
    for (name, accepts, format) in pairs(&psk).into_iter().filter(|(name, ..)| !name.starts_with("raw")) {
        let mut rng = TestRng(3);
        let mut client = client(format, &psk, &mut rng);
        client.start(&connect(true));
        let sent = write(&mut client, b"early", at);
        let candidates = CandidateKey::all(&accepts, &psk);
        let opened: Vec<_> = candidates.iter().filter_map(|candidate| candidate.open(&sent)).collect();
        let [opening] = &opened[..] else { panic!("{name}: {} of them open it", opened.len()) };
        let foreign = match &accepts {
            Accepts::Any(_) => any(&other),
            Accepts::Only(Format::Shaped(_)) => {
                Accepts::Only(Format::Shaped(Arc::new(Profile::new(&other, &mut TestRng(9)))))
            }
            only @ Accepts::Only(_) => only.clone(),
        };
        for candidate in CandidateKey::all(&foreign, &other) {
            assert!(candidate.open(&sent).is_none(), "{name}");
        }
        for candidate in &candidates {
            assert!(candidate.opening_len() <= CandidateKey::MAX_LEN);
            for len in 0..candidate.opening_len() {
                assert!(candidate.open(&sent[..len.min(sent.len())]).is_none(), "{name}: {len} bytes");
            }
        }
        // It goes on as a server that has found its key by itself, for every split.
        for split in [0, 1, 40, sent.len() - 1] {
            let (mut server, mut wire) = (SnellServerStream::opened(opening), RecvBuf::with_len(4096));
            assert!(!server.would_derive(4096) && server.peer_salt().is_none());
            wire.extend(&sent[..split]);
            if let Progress::Request(_) = server.poll_request(&mut wire).unwrap() {
                panic!("{name}: a request of {split} bytes");
            }
            wire.extend(&sent[split..]);
            let request = request(&mut server, &mut wire, &psk, &mut rng);
            assert!(matches!(request.command, SnellCommand::Connect { reusable: true, .. }), "{name}");
            assert!(server.peer_salt().is_some(), "{name}");
        }
    }
}
