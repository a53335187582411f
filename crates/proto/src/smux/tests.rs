use adit_testkit::epoch;
use proptest::{prop_assert, prop_assert_eq, proptest};

use super::*;

fn settings(version: SmuxVersion) -> SmuxSettings {
    SmuxSettings { version, ..SmuxSettings::default() }
}

fn pair(settings: &SmuxSettings) -> [Mux; 2] {
    let now = epoch();
    [Mux::new(SmuxRole::Client, settings.clone(), now), Mux::new(SmuxRole::Server, settings.clone(), now)]
}

/// Carries bytes both ways, in pieces, until neither end has any.
fn carry(ends: &mut [Mux; 2], piece: usize) {
    loop {
        let mut moved = false;
        for from in 0..2 {
            let mut wire = Vec::new();
            moved |= ends[from].poll_transmit(&mut wire, usize::MAX);
            for piece in wire.chunks(piece) {
                assert_eq!(ends[1 - from].handle_input(piece).unwrap(), piece.len());
            }
        }
        if !moved {
            return;
        }
    }
}

fn drain(mux: &mut Mux, id: StreamId) -> (Vec<u8>, bool) {
    let mut bytes = Vec::new();
    let mut out = [0; 1000];
    loop {
        match mux.recv(id, &mut out, epoch()) {
            SmuxReceived::Bytes(len) => bytes.extend(&out[..len]),
            SmuxReceived::Empty => return (bytes, false),
            SmuxReceived::End | SmuxReceived::Reset => return (bytes, true),
        }
    }
}

fn frame(command: SmuxCommand, stream: u32, payload: &[u8], version: SmuxVersion) -> Vec<u8> {
    let mut bytes = Vec::new();
    let len = u16::try_from(payload.len()).unwrap();
    SmuxHeader { command, len, stream }.emit(version, &mut bytes);
    bytes.extend(payload);
    bytes
}

#[test]
fn streams_both_ways() {
    for version in [SmuxVersion::V1, SmuxVersion::V2] {
        for piece in [1, 7, 100_000] {
            let mut ends = pair(&settings(version));
            let ids = [ends[0].open().unwrap(), ends[1].open().unwrap(), ends[0].open().unwrap()];
            assert_eq!(ids.map(StreamId::get), [3, 2, 5]);
            for id in ids {
                assert_eq!(ends[0].send(id, b"early"), if id.get() == 2 { 0 } else { 5 });
            }
            carry(&mut ends, piece);
            assert_eq!(ends[1].poll_event(), Some(SmuxEvent::Opened(ids[0])));
            for id in [ids[0], ids[2]] {
                assert_eq!(drain(&mut ends[1], id), (b"early".to_vec(), false));
                assert_eq!(ends[1].send(id, b"answer"), 6);
                ends[1].finish(id);
            }
            carry(&mut ends, piece);
            assert_eq!(drain(&mut ends[0], ids[0]), (b"answer".to_vec(), true));
            // Half closed: this direction goes on.
            assert_eq!(ends[0].send(ids[0], b" more"), 5);
            ends[0].finish(ids[0]);
            carry(&mut ends, piece);
            assert_eq!(drain(&mut ends[1], ids[0]), (b" more".to_vec(), true));
            assert_eq!(ends[0].stream_count(), 2);
        }
    }
}

#[test]
fn windows_stop_and_open() {
    let small = SmuxSettings { stream_window: 1000, max_stream_window: 1000, ..settings(SmuxVersion::V2) };
    let mut ends = pair(&small);
    let id = ends[0].open().unwrap();
    carry(&mut ends, 100);
    assert_eq!(ends[0].send(id, &[7; 5000]), 5000);
    carry(&mut ends, 100);
    assert_eq!(ends[1].unread, 1000, "as much as the window");
    for part in 1..=5 {
        assert_eq!(drain(&mut ends[1], id).0.len(), 1000, "part {part}");
        carry(&mut ends, 100);
    }
    assert_eq!(drain(&mut ends[1], id).0.len(), 0);
}

#[test]
fn windows_grow_for_a_reader_that_keeps_up() {
    let mut ends = pair(&settings(SmuxVersion::V2));
    let id = ends[0].open().unwrap();
    let mut now = epoch();
    for _ in 0..200 {
        ends[0].send(id, &[1; 64 << 10]);
        carry(&mut ends, 4096);
        let mut out = vec![0; 64 << 10];
        while let SmuxReceived::Bytes(_) = ends[1].recv(id, &mut out, now) {}
        now += Duration::from_millis(10);
    }
    assert!(ends[1].window(id).unwrap() > 1 << 20, "{:?}", ends[1].window(id));
    // A slow one gets no more than it had.
    let mut ends = pair(&settings(SmuxVersion::V2));
    let id = ends[0].open().unwrap();
    carry(&mut ends, 4096);
    let first = ends[1].window(id);
    for _ in 0..50 {
        ends[0].send(id, &[1; 64 << 10]);
        carry(&mut ends, 4096);
        ends[1].recv(id, &mut [0; 4096], now);
        now += Duration::from_millis(10);
    }
    assert_eq!(ends[1].window(id), first);
}

#[test]
fn windows_of_many_streams_share_the_buffer() {
    let mut ends = pair(&settings(SmuxVersion::V2));
    for _ in 0..1000 {
        ends[0].open().unwrap();
    }
    carry(&mut ends, 1 << 20);
    let least = ASSUMED_WINDOW as usize / 16;
    assert!(ends[1].promised <= (4 << 20) + 1000 * least, "{}", ends[1].promised);
}

#[test]
fn interactive_streams_pass_bulk() {
    let mut ends = pair(&settings(SmuxVersion::V1));
    let bulk: Vec<StreamId> = (0..8).map(|_| ends[0].open().unwrap()).collect();
    let ping = ends[0].open().unwrap();
    let mut wire = Vec::new();
    for id in &bulk {
        ends[0].send(*id, &[0; 64 << 10]);
    }
    ends[0].poll_transmit(&mut wire, 100_000);
    for round in 0..5 {
        ends[0].send(ping, b"ping");
        let mut wire = Vec::new();
        ends[0].poll_transmit(&mut wire, 1);
        let header = SmuxHeader::parse(wire[..8].try_into().unwrap(), SmuxVersion::V1).unwrap();
        assert_eq!(header.stream, ping.get(), "round {round}");
        ends[0].poll_transmit(&mut wire, 20_000);
    }
    // The bulk streams have had the same, give or take a quantum.
    let left: Vec<usize> = bulk.iter().map(|id| ends[0].streams[&id.get()].sending.len()).collect();
    let (least, most) = (left.iter().min().unwrap(), left.iter().max().unwrap());
    assert!(most - least <= QUANTUM, "{left:?}");
}

#[test]
fn reader_that_stands_still() {
    let mut ends = pair(&SmuxSettings { receive_buffer: 50_000, ..settings(SmuxVersion::V1) });
    let id = ends[0].open().unwrap();
    let mut held_back = 0;
    for _ in 0..10 {
        ends[0].send(id, &[0; 64 << 10]);
        let mut wire = Vec::new();
        ends[0].poll_transmit(&mut wire, usize::MAX);
        held_back += wire.len() - ends[1].handle_input(&wire).unwrap();
    }
    assert!(held_back > 500_000);
    assert!(ends[1].held() <= 50_000 + usize::from(u16::MAX));
    // A peer that never reads: the writer is told how much was taken.
    assert_eq!(ends[0].send(id, &[0; 100_000]), 64 << 10);
    assert_eq!(ends[0].send(id, &[0; 1]), 0);
}

#[test]
fn endless_opening_is_refused() {
    // Windows that stay are not told.
    let settings =
        SmuxSettings { max_streams: 10, max_stream_window: ASSUMED_WINDOW, ..settings(SmuxVersion::V2) };
    let mut mux = Mux::new(SmuxRole::Server, settings, epoch());
    for id in 0..100_000 {
        mux.handle_input(&frame(SmuxCommand::Syn, 2 * id + 1, &[], SmuxVersion::V2)).unwrap();
    }
    assert_eq!(mux.stream_count(), 10);
    assert!(mux.control.len() <= 30);
    let mut wire = Vec::new();
    mux.poll_transmit(&mut wire, usize::MAX);
    assert!(wire.chunks(8).all(|frame| frame[1] == SmuxCommand::Fin as u8));
}

#[test]
fn local_limit_and_last_number() {
    let mut mux =
        Mux::new(SmuxRole::Client, SmuxSettings { max_streams: 1, ..settings(SmuxVersion::V2) }, epoch());
    mux.next_id = Some(u32::MAX);
    let id = mux.open().unwrap();
    assert_eq!(mux.open(), Err(WireError::Exhausted { what: "smux streams" }));
    mux.close(id);
    mux.poll_transmit(&mut Vec::new(), usize::MAX);
    assert_eq!(mux.open(), Err(WireError::Exhausted { what: "smux stream numbers" }));
}

#[test]
fn closing_drops_what_waits() {
    let mut ends = pair(&settings(SmuxVersion::V2));
    let id = ends[0].open().unwrap();
    ends[0].send(id, b"unread");
    carry(&mut ends, 100);
    ends[1].close(id);
    assert_eq!(ends[1].held(), 0);
    carry(&mut ends, 100);
    assert_eq!(ends[1].stream_count(), 0);
    // Late data is thrown away.
    ends[0].send(id, b"late");
    carry(&mut ends, 100);
    assert_eq!(ends[1].held(), 0);
    assert_eq!(drain(&mut ends[0], id), (Vec::new(), true));
    ends[0].close(id);
    carry(&mut ends, 100);
    assert_eq!(ends[0].stream_count(), 0);
    assert_eq!(ends[0].promised, 0);
}

#[test]
fn signs_of_life() {
    let now = epoch();
    let mut mux = Mux::new(SmuxRole::Client, settings(SmuxVersion::V2), now);
    assert_eq!(mux.poll_timeout(), Some(now + Duration::from_secs(10)));
    let mut wire = Vec::new();
    for s in (10..=50).step_by(10) {
        mux.handle_timeout(now + Duration::from_secs(s));
        mux.poll_transmit(&mut wire, 100);
        if s == 20 {
            mux.handle_input(&frame(SmuxCommand::Nop, 0, &[], SmuxVersion::V2)).unwrap();
        }
    }
    assert_eq!(wire, frame(SmuxCommand::Nop, 0, &[], SmuxVersion::V2).repeat(5));
    assert!(!mux.is_gone());
    mux.handle_timeout(now + Duration::from_secs(60));
    assert!(mux.is_gone());
}

#[test]
fn what_the_format_forbids() {
    let read = |bytes: &[u8], version| {
        Mux::new(SmuxRole::Server, settings(version), epoch()).handle_input(bytes).unwrap_err()
    };
    let malformed = |what, got| WireError::Malformed { what, got };
    let nop = frame(SmuxCommand::Nop, 0, &[], SmuxVersion::V1);
    assert_eq!(read(&nop, SmuxVersion::V2), malformed("smux version", 1));
    assert_eq!(read(&[1, 5, 0, 0, 0, 0, 0, 0], SmuxVersion::V1), malformed("smux command", 5));
    assert_eq!(read(&[1, 4, 8, 0, 3, 0, 0, 0], SmuxVersion::V1), malformed("smux command", 4));
    assert_eq!(read(&[2, 4, 7, 0, 3, 0, 0, 0], SmuxVersion::V2), malformed("smux frame length", 7));
    assert_eq!(read(&[2, 0, 1, 0, 3, 0, 0, 0], SmuxVersion::V2), malformed("smux frame length", 1));
    let mut greedy = frame(SmuxCommand::Syn, 3, &[], SmuxVersion::V2);
    greedy.extend(frame(SmuxCommand::Upd, 3, &[1, 0, 0, 0, 0, 0, 1, 0], SmuxVersion::V2));
    assert_eq!(read(&greedy, SmuxVersion::V2), malformed("smux bytes consumed", 1));
}

#[test]
fn writers_are_told_of_room() {
    let mut ends = pair(&settings(SmuxVersion::V1));
    let id = ends[0].open().unwrap();
    assert_eq!(ends[0].send(id, &vec![0; 70_000]), 64 << 10);
    assert_eq!(ends[0].poll_event(), None);
    carry(&mut ends, 1 << 20);
    assert_eq!(ends[0].poll_event(), Some(SmuxEvent::Writable(id)));
    assert_eq!(ends[0].poll_event(), None);
}

proptest! {
    #[test]
    fn any_bytes(data: Vec<u8>) {
        fuzz_smux(&data, epoch());
    }

    /// Frames that are mostly legal reach further than bytes.
    #[test]
    fn any_frames(frames: Vec<(u8, u8, Vec<u8>)>, first: u8) {
        let mut data = vec![first];
        for (command, stream, payload) in frames {
            let command = SmuxCommand::ALL[usize::from(command % 5)];
            let version = if first & 1 == 0 { SmuxVersion::V1 } else { SmuxVersion::V2 };
            let payload = match command {
                SmuxCommand::Psh => payload,
                SmuxCommand::Upd => vec![0; 8],
                SmuxCommand::Syn | SmuxCommand::Fin | SmuxCommand::Nop => Vec::new(),
            };
            data.extend(frame(command, (stream % 16).into(), &payload, version));
        }
        fuzz_smux(&data, epoch());
    }

    #[test]
    fn any_split(len in 0_usize..40_000, piece in 1_usize..5000, v2: bool) {
        let version = if v2 { SmuxVersion::V2 } else { SmuxVersion::V1 };
        let mut ends = pair(&settings(version));
        let id = ends[0].open().unwrap();
        let text: Vec<u8> = (0..len).map(|at| u8::try_from(at % 251).unwrap()).collect();
        prop_assert_eq!(ends[0].send(id, &text), len);
        ends[0].finish(id);
        carry(&mut ends, piece);
        let (read, ended) = drain(&mut ends[1], id);
        prop_assert!(read == text && ended);
    }
}

fn signalling(version: SmuxVersion) -> [Mux; 2] {
    pair(&SmuxSettings { signals: true, ..settings(version) })
}

#[test]
fn adit_knows_adit_and_tells_a_break_from_an_end() {
    for version in [SmuxVersion::V1, SmuxVersion::V2] {
        for piece in [1, 100_000] {
            let mut ends = signalling(version);
            assert!(!ends[0].peer_signals() && !ends[1].peer_signals());
            let ids = [ends[0].open().unwrap(), ends[0].open().unwrap(), ends[0].open().unwrap()];
            carry(&mut ends, piece);
            assert!(ends[0].peer_signals() && ends[1].peer_signals());
            ids.iter().for_each(|id| assert_eq!(ends[1].send(*id, b"a part"), 6));
            carry(&mut ends, piece);
            ends[1].abort(ids[0]);
            ends[1].finish(ids[1]);
            ends[1].close(ids[1]);
            carry(&mut ends, piece);
            assert!(ends[0].is_reset(ids[0]) && !ends[0].is_reset(ids[1]));
            let mut out = [0; 100];
            assert_eq!(ends[0].recv(ids[0], &mut out, epoch()), SmuxReceived::Bytes(6));
            assert_eq!(ends[0].recv(ids[0], &mut out, epoch()), SmuxReceived::Reset);
            assert_eq!(drain(&mut ends[0], ids[1]), (b"a part".to_vec(), true));
            assert_eq!(ends[0].recv(ids[1], &mut out, epoch()), SmuxReceived::End);
            // A half-close is none, and what ends after it is whole.
            ends[0].finish(ids[2]);
            carry(&mut ends, piece);
            assert_eq!(ends[1].send(ids[2], b" and the rest"), 13);
            ends[1].finish(ids[2]);
            carry(&mut ends, piece);
            assert_eq!(drain(&mut ends[0], ids[2]), (b"a part and the rest".to_vec(), true));
            for id in ids {
                ends.iter_mut().for_each(|end| end.close(id));
            }
            carry(&mut ends, piece);
            assert_eq!(ends.each_ref().map(Mux::stream_count), [0, 0]);
        }
    }
}

/// One end without signals, in either place: it neither sends nor heeds any.
#[test]
fn others_see_no_signals() {
    for silent in [0, 1] {
        let mut ends = signalling(SmuxVersion::V1);
        ends[silent] =
            Mux::new([SmuxRole::Client, SmuxRole::Server][silent], settings(SmuxVersion::V1), epoch());
        let id = ends[0].open().unwrap();
        assert_eq!(ends[0].send(id, b"text"), 4);
        carry(&mut ends, 3);
        assert_eq!(drain(&mut ends[1], id), (b"text".to_vec(), false));
        assert!(ends.iter().all(|end| !end.peer_signals()));
        ends[1 - silent].abort(id);
        let mut wire = Vec::new();
        ends[1 - silent].poll_transmit(&mut wire, usize::MAX);
        assert_eq!(wire, frame(SmuxCommand::Fin, id.get(), b"", SmuxVersion::V1));
    }
    // A frame from an end without a greeting is no signal either.
    let mut ends = signalling(SmuxVersion::V1);
    let id = ends[0].open().unwrap();
    let mut wire = Vec::new();
    ends[0].poll_transmit(&mut wire, usize::MAX);
    ends[1].handle_input(&wire[FRAME_HEADER_LEN..]).unwrap();
    ends[1].handle_input(&frame(SmuxCommand::Nop, id.get(), b"", SmuxVersion::V1)).unwrap();
    assert!(!ends[1].is_reset(id));
}
