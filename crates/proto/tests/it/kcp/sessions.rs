//! The recorded sessions: every datagram is opened, every stream comes out, and what was counted is found.

use std::collections::{BTreeMap, VecDeque};
use std::path::Path;
use std::time::{Duration, Instant};

use adit_proto::kcp::arq::{self, Arq, ArqSegment, Arrival};
use adit_proto::kcp::crypt::{Crypt, KcpMethod, KcpSecret, Pads, Qpp};
use adit_proto::kcp::fec::{FecDecoder, FecPacketKind, Shards};
use adit_proto::smux::{self, Mux, SmuxEvent, SmuxRole, SmuxVersion, StreamId};
use adit_proto::snappy;
use adit_testkit::{FixedRng, epoch, hex, load, text};
use serde_json::Value;

struct Session {
    name: String,
    file: Value,
}

fn sessions() -> Vec<Session> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../testdata/kcp/sessions");
    let mut names: Vec<String> =
        folder.read_dir().unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
    names.sort();
    assert_eq!(names.len(), 28);
    names.into_iter().map(|name| Session { file: load(&format!("kcp/sessions/{name}")), name }).collect()
}

impl Session {
    fn flag(&self, flags: &str, name: &str) -> Option<&str> {
        let flags = self.file[flags].as_array().unwrap();
        let at = flags.iter().position(|flag| flag == name)?;
        flags.get(at + 1).and_then(Value::as_str)
    }

    fn has(&self, name: &str) -> bool {
        self.file["client_flags"].as_array().unwrap().iter().any(|flag| flag == name)
    }

    fn method(&self) -> KcpMethod {
        KcpMethod::from_name(self.flag("client_flags", "--crypt").unwrap()).unwrap()
    }

    fn version(&self) -> SmuxVersion {
        // The recorded sessions without the flag are of the old program.
        if self.flag("client_flags", "--smuxver") == Some("2") { SmuxVersion::V2 } else { SmuxVersion::V1 }
    }

    /// Datagrams that were delivered: whether from the client, and the bytes.
    fn datagrams(&self) -> Vec<(bool, Vec<u8>)> {
        let packets = self.file["packets"].as_array().unwrap();
        let delivered = packets.iter().filter(|packet| packet["dropped"] != true);
        delivered.map(|packet| (packet["dir"] == "c2s", hex(text(packet, "hex")))).collect()
    }

    fn expected_streams(&self) -> Vec<[Vec<u8>; 2]> {
        let streams = self.file["streams_in_open_order"].as_array().unwrap();
        let both = |stream| [hex(text(stream, "request_hex")), hex(text(stream, "response_hex"))];
        streams.iter().map(both).collect()
    }
}

/// One end, which listens to what the other had sent.
struct End {
    crypt: Crypt,
    fec: FecDecoder,
    arq: Option<Arq>,
    snappy: Option<snappy::SnappyDecoder>,
    mux: Mux,
    pads: Option<Pads>,
    streams: BTreeMap<u32, (Option<Qpp>, Vec<u8>)>,
    recovered: u64,
    /// Answers that are still to be sent on the streams that the peer opens.
    answers: VecDeque<[Vec<u8>; 2]>,
    pending: VecDeque<u8>,
}

impl End {
    fn new(session: &Session, is_server: bool, now: Instant) -> Self {
        let role = if is_server { SmuxRole::Server } else { SmuxRole::Client };
        let key = text(&session.file, "key").as_bytes();
        let settings = smux::SmuxSettings {
            version: session.version(),
            send_buffer: 1 << 20,
            ..smux::SmuxSettings::default()
        };
        let mut mux = Mux::new(role, settings, now);
        let mut answers = session.expected_streams();
        if !is_server {
            // The requests that it had sent, so that answers find their streams, and windows their subject.
            for [request, _] in answers.drain(..) {
                let id = mux.open().unwrap();
                assert_eq!(mux.send(id, &request), request.len());
            }
            mux.poll_transmit(&mut Vec::new(), usize::MAX);
        }
        Self {
            crypt: Crypt::new(session.method(), &KcpSecret::derive(key)),
            fec: FecDecoder::new(Shards::new(10, 3)),
            arq: None,
            snappy: (!session.has("--nocomp")).then(snappy::SnappyDecoder::new),
            mux,
            pads: session.has("--QPP").then(|| Pads::derive(key, 61)),
            streams: BTreeMap::new(),
            recovered: 0,
            answers: answers.into(),
            pending: VecDeque::new(),
        }
    }

    fn handle(&mut self, mut datagram: Vec<u8>, now: Instant) {
        let range = self.crypt.open(&mut datagram).unwrap();
        let packet = self.fec.handle(&datagram[range]).unwrap();
        if let FecPacketKind::Data(bytes) = packet {
            self.handle_kcp(bytes, Arrival::Received, now);
        }
        let mut bytes = Vec::new();
        while self.fec.poll_recovered(&mut bytes) {
            self.recovered += 1;
            self.handle_kcp(&std::mem::take(&mut bytes), Arrival::Recovered, now);
        }
    }

    fn handle_kcp(&mut self, bytes: &[u8], arrival: Arrival, now: Instant) {
        let (segment, _) = ArqSegment::parse(bytes).unwrap();
        let settings = arq::ArqSettings { recv_window: 1024, ..arq::ArqSettings::default() };
        let arq = self.arq.get_or_insert_with(|| Arq::new(segment.conv, settings, now));
        arq.handle_datagram(bytes, arrival, now).unwrap();
        while !arq.peek().is_empty() {
            self.pending.extend(arq.peek());
            let len = arq.peek().len();
            arq.consume(len);
        }
    }

    /// Reads what has come, `piece` bytes at a time.
    fn read(&mut self, piece: usize, now: Instant) {
        let stream: Vec<u8> = self.pending.drain(..).collect();
        for piece in stream.chunks(piece) {
            let mut plain = Vec::new();
            match &mut self.snappy {
                Some(snappy) => {
                    let mut rest = piece;
                    while !rest.is_empty() {
                        let taken = snappy.decode(rest, &mut plain).unwrap();
                        rest = &rest[taken..];
                    }
                }
                None => plain.extend(piece),
            }
            assert_eq!(self.mux.handle_input(&plain).unwrap(), plain.len());
            while let Some(event) = self.mux.poll_event() {
                if let SmuxEvent::Opened(id) = event {
                    let [_, response] = self.answers.pop_front().unwrap();
                    assert_eq!(self.mux.send(id, &response), response.len());
                    self.mux.poll_transmit(&mut Vec::new(), usize::MAX);
                }
                if let SmuxEvent::Opened(id) | SmuxEvent::Readable(id) = event {
                    self.read_stream(id, now);
                }
            }
        }
    }

    fn read_stream(&mut self, id: StreamId, now: Instant) {
        let pads = &self.pads;
        let (qpp, bytes) =
            self.streams.entry(id.get()).or_insert_with(|| (pads.as_ref().map(Pads::stream), Vec::new()));
        let mut out = [0; 777];
        while let smux::SmuxReceived::Bytes(len) = self.mux.recv(id, &mut out, now) {
            if let Some(qpp) = qpp {
                qpp.open(&mut out[..len]);
            }
            bytes.extend(&out[..len]);
        }
    }
}

/// Replays `datagrams`, reading in pieces, and returns the ends: client, server.
fn replay(session: &Session, datagrams: &[(bool, Vec<u8>)], piece: usize) -> [End; 2] {
    let mut now = epoch();
    let mut ends = [End::new(session, false, now), End::new(session, true, now)];
    for (to_server, datagram) in datagrams {
        now += Duration::from_millis(1);
        let end = &mut ends[usize::from(*to_server)];
        end.handle(datagram.clone(), now);
        end.read(piece, now);
    }
    ends
}

fn check(session: &Session, ends: &[End; 2]) {
    let name = &session.name;
    for (at, expected) in session.expected_streams().iter().enumerate() {
        let id = u32::try_from(2 * at + 3).unwrap();
        for (way, end) in [(0, &ends[1]), (1, &ends[0])] {
            let found = end.streams.get(&id).map_or(&[][..], |stream| &stream.1);
            assert!(found == expected[way], "{name}: stream {id}, way {way}: {} bytes", found.len());
        }
    }
}

#[test]
fn every_stream_of_every_session() {
    for session in sessions() {
        let ends = replay(&session, &session.datagrams(), usize::MAX);
        check(&session, &ends);
        let recovered = ends[0].recovered + ends[1].recovered;
        assert_eq!(recovered, session.file["expected"]["data_packets_recovered_by_fec"], "{}", session.name);
        for (flags, end) in [("server_flags", &ends[0]), ("client_flags", &ends[1])] {
            let count = |name, default: &str| session.flag(flags, name).unwrap_or(default).parse().unwrap();
            if let Some(sent) = Shards::new(count("--datashard", "10"), count("--parityshard", "3")) {
                // Short sessions may not show a whole group.
                let learned = end.fec.shards();
                assert!(learned == Some(sent) || learned.is_none(), "{}: {learned:?}", session.name);
            }
        }
    }
}

#[test]
fn every_split() {
    for session in sessions() {
        let datagrams = session.datagrams();
        for piece in [1, 2, 3, 7, 8, 9, 100] {
            check(&session, &replay(&session, &datagrams, piece));
        }
    }
}

#[test]
fn duplicated_and_reordered() {
    for session in sessions() {
        for seed in 0..5 {
            let mut rng = FixedRng::new(seed);
            let mut datagrams = session.datagrams();
            for at in 0..datagrams.len() {
                if rng.unit() < 0.3 {
                    let again = datagrams[at].clone();
                    datagrams.push(again);
                }
                let other = (at + 4).min(datagrams.len() - 1);
                if rng.unit() < 0.3 {
                    datagrams.swap(at, other);
                }
            }
            // In small pieces, so that what is said of an answer is read after it has been sent.
            check(&session, &replay(&session, &datagrams, 8));
        }
    }
}

/// The recording program's counts of segments and frames are found in the bytes.
#[test]
fn counts_of_segments_and_conversations() {
    for session in sessions() {
        let crypt = Crypt::new(session.method(), &KcpSecret::derive(text(&session.file, "key").as_bytes()));
        let mut counts: BTreeMap<String, u64> = BTreeMap::new();
        let mut fec = [FecDecoder::new(None), FecDecoder::new(None)];
        for (to_server, mut datagram) in session.datagrams() {
            let range = crypt.open(&mut datagram).unwrap();
            let fec = &mut fec[usize::from(to_server)];
            let FecPacketKind::Data(mut rest) = fec.handle(&datagram[range]).unwrap() else { continue };
            while !rest.is_empty() {
                let (segment, more) = ArqSegment::parse(rest).unwrap();
                let conversations = session.file["expected"]["conv"].as_array().unwrap();
                assert!(conversations.iter().any(|conv| *conv == segment.conv), "{}", session.name);
                *counts.entry(segment.cmd.to_string()).or_default() += 1;
                rest = more;
            }
        }
        let expected = session.file["expected"]["kcp_segments_seen_by_cmd"].as_object().unwrap();
        for (cmd, expected) in expected {
            // Those that only parity brought back are counted there as well.
            let found = counts.get(cmd).copied().unwrap_or_default();
            let recovered = session.file["expected"]["data_packets_recovered_by_fec"].as_u64().unwrap();
            let expected = expected.as_u64().unwrap();
            assert!(
                found == expected || recovered > 0 && found < expected,
                "{}: {cmd}: {found}, not {expected}",
                session.name
            );
        }
    }
}
