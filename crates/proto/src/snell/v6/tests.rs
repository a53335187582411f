use std::time::{Duration, Instant};

use serde_json::Value;

use super::super::codec::{Format, SnellOpener, SnellSealer};
use super::super::frame::Frame;
use super::super::tests::TestRng;
use super::super::{SnellDirectionKey, SnellPsk};
use super::fill::{Draws, Filler, SALT_BLOCK_SEQ};
use super::profile::{DM, G, Profile, mix64, prf, shuffle_prf};
use super::{V6FrameOpener, V6FrameSealer, frame::put_header};
use crate::buf::RecvBuf;
use crate::crypto::{Aead, AeadAlgorithm, CounterNonce};
use crate::wire::{Rng, WireError};
use std::sync::Arc;

struct Zeros;

impl Rng for Zeros {
    fn fill(&mut self, out: &mut [u8]) {
        out.fill(0);
    }
}

#[expect(clippy::disallowed_methods, reason = "any instant will do")]
fn now() -> Instant {
    Instant::now()
}

fn load(name: &str) -> Value {
    let path = format!("{}/../../testdata/snell-v6/{name}.json", env!("CARGO_MANIFEST_DIR"));
    serde_json::from_str(&std::fs::read_to_string(path).unwrap()).unwrap()
}

fn rows<'a>(value: &'a Value, key: &str) -> &'a Vec<Value> {
    value[key].as_array().unwrap()
}

fn hex(value: &Value) -> Vec<u8> {
    let text = value.as_str().unwrap();
    (0..text.len()).step_by(2).map(|i| u8::from_str_radix(&text[i..i + 2], 16).unwrap()).collect()
}

fn word(value: &Value) -> u64 {
    u64::from_str_radix(value.as_str().unwrap(), 16).unwrap()
}

fn number(value: &Value) -> u64 {
    value.as_u64().unwrap()
}

fn small(value: &Value) -> usize {
    number(value).try_into().unwrap()
}

fn seq(value: &Value) -> u32 {
    number(value).try_into().unwrap()
}

fn psk(row: &Value) -> SnellPsk {
    SnellPsk::new(row["psk"].as_str().unwrap().as_bytes())
}

/// A profile whose filler is that of other programs.
fn expanded(psk: &SnellPsk) -> Arc<Profile> {
    Arc::new(Profile::with_filler(psk, Filler::Expanded))
}

/// Filler as sing-snell makes it: bytes that belong to `label`, `seq` and exactly this length.
pub(super) fn expand(namespace: u64, label: u64, seq: u64, out: &mut [u8]) {
    let mut state = namespace
        ^ seq.wrapping_mul(DM).wrapping_add(0xB57D_E1F3_F82C_B33F)
        ^ label.wrapping_mul(0xA24B_AED4_963E_E407)
        ^ (out.len() as u64).wrapping_mul(0x1656_67B1_9E37_79F9).wrapping_add(0x0D4C_D3E7_B14A_36D7);
    for piece in out.chunks_mut(8) {
        state = state.wrapping_add(G);
        piece.copy_from_slice(&mix64(state).to_le_bytes()[..piece.len()]);
    }
}

#[test]
fn primitive_vectors() {
    let vectors = load("prf");
    for row in rows(&vectors, "vectors") {
        let at = |key: &str| number(&row[key]);
        if let Some(input) = row.get("splitmix64_in") {
            assert_eq!(mix64(word(input)), word(&row["splitmix64_out"]), "{row}");
        } else if let Some(namespace) = row.get("prf32_namespace") {
            let out = prf(word(namespace), at("label"), at("a"), at("b"));
            assert_eq!(u64::from(out), at("out"), "{row}");
        } else if let Some(namespace) = row.get("salt_shuffle_namespace") {
            let out = shuffle_prf(word(namespace), at("domain"), at("index"));
            assert_eq!(u64::from(out), at("out"), "{row}");
        } else {
            let mut out = vec![0; small(&row["len"])];
            expand(word(&row["expand_namespace"]), at("label"), at("seq"), &mut out);
            assert_eq!(out, hex(&row["out"]), "{row}");
        }
    }
}

#[test]
fn profile_vectors() {
    let vectors = load("profiles");
    assert_eq!(rows(&vectors, "profiles").len(), 16);
    for row in rows(&vectors, "profiles") {
        let (name, psk) = (&row["psk"], psk(row));
        assert_eq!(Profile::secret(&psk).to_vec(), hex(&row["secret"]), "{name}");
        let profile = expanded(&psk);
        for (key, value) in [
            ("profile", profile.ns.profile),
            ("prefix", profile.ns.prefix),
            ("motif", profile.ns.motif),
            ("salt", profile.ns.salt),
            ("mix", profile.ns.mix),
            ("chunk", profile.ns.chunk),
            ("write", profile.ns.write),
        ] {
            assert_eq!(value, word(&row["namespaces"][key]), "{name} {key}");
        }
        check_params(row, &profile);
        let places: Vec<u64> = rows(row, "salt_positions").iter().map(number).collect();
        assert_eq!(profile.salt_at.map(u64::from).to_vec(), places, "{name}");
        assert_eq!(profile.mask.to_vec(), hex(&row["salt_mask"]), "{name}");
        for (len, frame) in rows(row, "record_prefix_len_seq0_31").iter().zip(0..) {
            assert_eq!(profile.prefix_len(frame), small(len), "{name} {frame}");
        }
    }
}

fn check_params(row: &Value, profile: &Profile) {
    let (p, params) = (&profile.params, &row["params"]);
    let seen = format!("{p:?}");
    for (key, value) in params.as_object().unwrap() {
        if key == "salt_block_len" {
            assert_eq!(profile.salt_block_len(), small(value));
        } else if let Some(index) = key.strip_prefix('g').and_then(|digit| digit.parse::<usize>().ok()) {
            assert_eq!(p.g[index], number(value), "{key}");
        } else {
            let value = value.to_string().replace(',', ", ");
            assert!(
                seen.contains(&format!(" {key}: {value}")),
                "{}: {key} is not {value}: {seen}",
                row["psk"]
            );
        }
    }
}

#[test]
fn fill_vectors() {
    let vectors = load("profiles");
    for row in rows(&vectors, "profiles") {
        let profile = expanded(&psk(row));
        for sample in rows(row, "fill") {
            let mut out = vec![0; small(&sample["len"])];
            profile.fill(seq(&sample["seq"]), &mut Draws::new(&mut Zeros), &mut out);
            assert_eq!(out, hex(&sample["fill"]), "{} {}", row["psk"], sample["seq"]);
        }
    }
}

/// Random filler keeps the shape that the generator gives.
#[test]
fn drawn_filler_has_the_shape_and_never_repeats() {
    let vectors = load("profiles");
    for row in rows(&vectors, "profiles") {
        let profile = Profile::new(&psk(row), &mut Zeros);
        let mut draws = Draws::new(&mut Zeros);
        let (mut one, mut other) = ([0; 200], [0; 200]);
        profile.fill(3, &mut draws, &mut one);
        profile.fill(3, &mut draws, &mut other);
        assert_ne!(one, other);
        let has_shape = match number(&row["params"]["generator"]) {
            0 => one.iter().chain(&other).all(|byte| byte.count_ones() == one[0].count_ones()),
            1 => one.iter().all(|byte| *byte >= 0x20 && *byte != 0x7F),
            2 => one.iter().all(|byte| byte & 15 < 10),
            _ => one.iter().skip(small(&row["params"]["g6"]) - 3).take(2).all(u8::is_ascii_digit),
        };
        assert!(has_shape, "{}", row["psk"]);
        assert!(profile.has_shape(3, one.iter().copied().enumerate()), "{}", row["psk"]);
    }
}

/// The first bytes of other programs' connections, and of adit's, have the shape of their key and of few others.
#[test]
fn first_bytes_have_the_shape_of_their_key() {
    let (mut firsts, mut random) = (Vec::new(), TestRng(6));
    let captures = load("captures");
    for capture in rows(&captures, "captures") {
        if let Format::Shaped(profile) = format(capture) {
            let streams =
                rows(capture, "connections").iter().flat_map(|one| [&one["c2s_stream"], &one["s2c_stream"]]);
            firsts.extend(
                streams.filter(|stream| stream.is_string()).map(|stream| (profile.clone(), hex(stream))),
            );
        }
    }
    let recorded = firsts.len();
    assert!(recorded > 10, "{recorded}");
    let profiles: Vec<_> = (0..2000)
        .map(|n| {
            Arc::new(Profile::new(&SnellPsk::new(format!("the key of user {n}").as_bytes()), &mut random))
        })
        .collect();
    for (profile, n) in profiles.iter().step_by(20).zip(0_u8..) {
        let key = SnellPsk::new(b"twelve bytes").derive(&[n; 16]);
        let mut sealer = SnellSealer::new(Format::Shaped(profile.clone()), &key, true, &mut random);
        firsts.push((profile.clone(), frame(&mut sealer, b"x", now())));
    }
    for (profile, first) in &firsts {
        if first.len() < profile.opening_len() {
            continue;
        }
        assert!(V6FrameOpener::has_shape(profile, first));
        let others = profiles.iter().filter(|other| V6FrameOpener::has_shape(other, first)).count();
        // Text of one key looks like text of another's.
        assert!(others <= 500, "{others} of 2000");
    }
    let mut bytes = [0; 300];
    random.fill(&mut bytes);
    let likely = profiles.iter().filter(|profile| V6FrameOpener::has_shape(profile, &bytes)).count();
    assert!(likely <= 20, "{likely} of 2000");
}

#[test]
fn mix_vectors() {
    let vectors = load("profiles");
    for row in rows(&vectors, "profiles") {
        let profile = expanded(&psk(row));
        for sample in rows(row, "mix") {
            let (p, c) = (small(&sample["padding_len"]), small(&sample["payload_cipher_len"]));
            let (mut padding, mut cipher) = (vec![0; p], vec![1; c]);
            profile.exchange(seq(&sample["seq"]), &mut padding, &mut cipher);
            let exchanged: Vec<u64> =
                padding.iter().zip(0..).filter(|(byte, _)| **byte == 1).map(|(_, i)| i).collect();
            let wanted: Vec<u64> = rows(sample, "exchanged_indices").iter().map(number).collect();
            assert_eq!(exchanged, wanted, "{}", row["psk"]);
            profile.exchange(seq(&sample["seq"]), &mut padding, &mut cipher);
            assert!(padding.iter().all(|byte| *byte == 0));
        }
    }
}

#[test]
fn policy_vectors() {
    let vectors = load("profiles");
    for row in rows(&vectors, "profiles") {
        let (name, profile) = (&row["psk"], expanded(&psk(row)));
        for sample in rows(row, "chunk_limit__seq_size_limit") {
            // A size of 0 stands for a ramp that has not begun.
            let size =
                if number(&sample[1]) == 0 { profile.params.chunk_initial } else { number(&sample[1]) };
            let limit = profile.ramp_limit(seq(&sample[0]), size);
            assert_eq!(limit, number(&sample[2]), "{name} {sample}");
            let first = profile.payload_limit(0, number(&sample[1]));
            assert!(first <= number(&row["params"]["first_record_cap"]));
        }
        for sample in rows(row, "write_target__seq_framelen_target") {
            let target = profile.write_target(seq(&sample[0]), number(&sample[1]));
            assert_eq!(target, number(&sample[2]), "{name} {sample}");
        }
        for sample in rows(row, "padding_len") {
            let first = sample["first"].as_bool().unwrap();
            let padding = profile.padding_len(seq(&sample["seq"]), small(&sample["payload"]), first);
            assert_eq!(padding, small(&sample["padding"]), "{name} {sample}");
            assert!(padding <= profile.max_padding_len());
        }
    }
}

#[test]
fn salt_vectors() {
    let vectors = load("salts");
    for row in rows(&vectors, "salts") {
        let (psk, salt) = (psk(row), hex(&row["salt"]));
        let profile = expanded(&psk);
        let salt: [u8; 16] = salt.try_into().unwrap();
        let mut block = vec![0; profile.salt_block_len()];
        profile.fill(SALT_BLOCK_SEQ, &mut Draws::new(&mut Zeros), &mut block);
        profile.put_salt(&mut block, &salt);
        assert_eq!(block, hex(&row["block"]), "{}", row["psk"]);
        assert_eq!(profile.read_salt(&block), salt);
        if let Some(foreign) = row.get("foreign_block") {
            assert_eq!(profile.read_salt(&hex(foreign)).to_vec(), hex(&row["foreign_block_salt"]));
        }
        if let Some(key) = row.get("aes_key_of_salt") {
            assert_eq!(psk.derive(&salt).key.to_vec(), hex(key));
        }
    }
}

fn streams() -> Vec<Value> {
    ["streams_small", "streams_reuse_udp", "streams_64k"]
        .iter()
        .flat_map(|file| rows(&load(file), "streams").clone())
        .collect()
}

fn format(row: &Value) -> Format {
    match row["mode"].as_str().unwrap() {
        "default" => Format::Shaped(expanded(&psk(row))),
        "unshaped" => Format::Unshaped,
        "unsafe-raw" => Format::UnsafeRaw,
        other => panic!("{other}"),
    }
}

fn pattern(len: usize) -> Vec<u8> {
    (0..len).map(|i| (7 * i + i / 256).to_le_bytes()[0]).collect()
}

fn data(call: &Value) -> Vec<u8> {
    let mut data = hex(call.get("data").or_else(|| call.get("head")).unwrap());
    data.extend(pattern(call.get("pattern_len").map_or(0, small)));
    data
}

/// One frame with all of `payload`, at the place where the plan wants it.
fn frame(sealer: &mut SnellSealer, payload: &[u8], at: Instant) -> Vec<u8> {
    let room = sealer.plan(0, at).first;
    let mut block = vec![0xEE; room.head + payload.len() + room.tail];
    let place = room.head..room.head + payload.len();
    block[place.clone()].copy_from_slice(payload);
    let sealed = sealer.seal(&mut block, place, at).unwrap();
    sealer.finish_write(at);
    block[sealed].to_vec()
}

fn zero_chunk(sealer: &mut SnellSealer, at: Instant) -> Vec<u8> {
    let room = sealer.plan(0, at).first;
    let mut block = vec![0xEE; room.head + room.tail];
    let sealed = sealer.seal_zero_chunk(&mut block, 0, at).unwrap();
    block[sealed].to_vec()
}

/// The bytes that the program of the vectors sent for these calls, by its rules and with its filler.
fn replay(row: &Value) -> Vec<u8> {
    let (mut at, mut out) = (now(), Vec::new());
    let salt =
        row.get("salt").filter(|salt| salt.is_string()).map_or([0; 16], |salt| hex(salt).try_into().unwrap());
    let format = format(row);
    let is_ramped = matches!(format, Format::Shaped(_));
    let idle = if let Format::Shaped(profile) = &format { profile.params.idle_reset_sec + 1 } else { 0 };
    let mut sealer = SnellSealer::new(format, &psk(row).derive(&salt), false, &mut Zeros);
    for call in rows(row, "calls") {
        match call["call"].as_str().unwrap() {
            "idle" => at += Duration::from_secs(idle),
            "zero" => out.extend(zero_chunk(&mut sealer, at)),
            "datagram" => out.extend(frame(&mut sealer, &data(call), at)),
            _ => {
                let data = data(call);
                let mut rest = &data[..];
                while !rest.is_empty() {
                    let limit = if is_ramped { sealer.plan(0, at).first.max_payload } else { 65535 };
                    let (here, behind) = rest.split_at(rest.len().min(limit));
                    out.extend(frame(&mut sealer, here, at));
                    rest = behind;
                }
            }
        }
    }
    out
}

#[test]
fn streams_are_sealed_byte_for_byte() {
    let streams = streams();
    assert!(streams.len() > 80);
    for row in streams {
        let name = format!("{} {} {} {}", row["name"], row["direction"], row["mode"], row["psk"]);
        let sealed = replay(&row);
        assert_eq!(sealed.len(), small(&row["stream_len"]), "{name}");
        if let Some(stream) = row.get("stream") {
            assert!(sealed == hex(stream), "{name}");
        }
        let digest = aws_lc_rs::digest::digest(&aws_lc_rs::digest::SHA256, &sealed);
        assert_eq!(digest.as_ref(), hex(&row["stream_sha256"]), "{name}");
    }
}

/// Opens a stream cut in pieces of `piece` bytes: frame payloads, empty for zero chunks.
fn open(format: Format, psk: &SnellPsk, stream: &[u8], piece: usize) -> Result<Vec<Vec<u8>>, WireError> {
    let mut opener = SnellOpener::new(format, psk.clone());
    let mut wire = RecvBuf::with_len(stream.len());
    let mut frames = Vec::new();
    for bytes in stream.chunks(piece) {
        wire.extend(bytes);
        loop {
            match opener.open(&mut wire)? {
                Frame::NeedMore(len) => {
                    assert!(len > 0);
                    break;
                }
                Frame::Payload(range) => frames.push(wire.block()[range].to_vec()),
                Frame::ZeroChunk => frames.push(Vec::new()),
            }
        }
    }
    assert_eq!(opener.is_at_boundary(), wire.unread().is_empty());
    Ok(frames)
}

#[test]
fn streams_open_at_every_split() {
    for row in streams() {
        let Some(stream) = row.get("stream").map(hex) else { continue };
        let lens: Vec<usize> =
            rows(&row, "frames").iter().map(|frame| frame.get("payload_len").map_or(0, small)).collect();
        let pieces: &[usize] = if stream.len() > 10_000 {
            &[1 << 20, 1460, 4096]
        } else {
            &[1 << 20, 1, 2, 7, 22, 23, 39, 144, 1460]
        };
        for &piece in pieces {
            let frames = open(format(&row), &psk(&row), &stream, piece).unwrap();
            assert_eq!(frames.iter().map(Vec::len).collect::<Vec<_>>(), lens, "{}", row["name"]);
            for (frame, payload) in rows(&row, "frames").iter().zip(&frames) {
                if let Some(expected) = frame.get("payload") {
                    assert_eq!(*payload, hex(expected));
                }
            }
        }
    }
}

#[test]
fn recorded_connections_open() {
    let captures = load("captures");
    let mut seen = 0;
    for capture in rows(&captures, "captures") {
        for connection in rows(capture, "connections") {
            for side in ["c2s", "s2c"] {
                let Some(stream) = connection.get(format!("{side}_stream")).filter(|s| s.is_string()) else {
                    continue;
                };
                let Some(frames) = connection[format!("{side}_frames")].as_array() else { continue };
                let stream = hex(stream);
                let Ok(opened) = open(format(capture), &psk(capture), &stream, stream.len().max(1)) else {
                    panic!("{} {side}", capture["name"]);
                };
                assert!(
                    opened.len() <= frames.len() && (opened.len() == frames.len() || stream.len() >= 9000)
                );
                seen += opened.len();
            }
        }
    }
    assert!(seen > 100, "{seen}");
}

fn first_of(name: &str, mode: &str) -> Value {
    streams().into_iter().find(|row| row["name"] == name && row["mode"] == mode).unwrap()
}

/// Flips bits in authenticated parts and in others: the filler of the salt block, and the padding of zero chunks.
#[test]
fn flipped_bits() {
    for mode in ["default", "unshaped"] {
        let row = first_of("small-1k-zero", mode);
        let (psk, stream) = (psk(&row), hex(&row["stream"]));
        let frame = &rows(&row, "frames")[0];
        let end = small(&frame["frame_len"]);
        let profile = expanded(&psk);
        let salt: Vec<usize> = profile.salt_at.iter().map(|at| usize::from(*at)).collect();
        for at in 0..end {
            let mut bad = stream[..end].to_vec();
            bad[at] ^= 1;
            let free = mode == "default" && at < profile.salt_block_len() && !salt.contains(&at);
            assert_eq!(open(format(&row), &psk, &bad, bad.len()).is_ok(), free, "{mode}: byte {at}");
        }
        let zero_at = small(&rows(&row, "frames")[2]["offset"]);
        let head = rows(&row, "frames")[2].get("prefix_len").map_or(0, small) + 23;
        for at in zero_at..stream.len() {
            let mut bad = stream.clone();
            bad[at] ^= 0x80;
            assert_eq!(open(format(&row), &psk, &bad, bad.len()).is_ok(), at >= zero_at + head, "{at}");
        }
    }
}

#[test]
fn truncations_leave_no_boundary() {
    for mode in ["default", "unshaped", "unsafe-raw"] {
        let row = first_of("small-1k-zero", mode);
        let (psk, stream) = (psk(&row), hex(&row["stream"]));
        let ends: Vec<usize> = rows(&row, "frames")
            .iter()
            .map(|frame| small(&frame["offset"]) + small(&frame["frame_len"]))
            .collect();
        for len in 0..=stream.len() {
            let mut opener = SnellOpener::new(format(&row), psk.clone());
            let mut wire = RecvBuf::from_bytes(&stream[..len]);
            while !matches!(opener.open(&mut wire).unwrap(), Frame::NeedMore(_)) {}
            let whole = wire.unread().is_empty() && opener.is_at_boundary();
            assert_eq!(whole, ends.contains(&len), "{mode}: cut at {len}");
        }
    }
}

/// A shaped frame by hand, with lengths and filler that no rule would choose.
fn odd_frame(
    profile: &Profile,
    key: &Aead,
    nonce: &mut CounterNonce,
    seq: u32,
    padding: usize,
    payload: &[u8],
) -> Vec<u8> {
    let prefix = vec![0x5A; profile.prefix_len(seq)];
    let mut header = [0; 7];
    put_header(&mut header, padding, payload.len());
    let mut tag = [0; 16];
    key.seal(nonce.advance(), &prefix, &mut header, &mut tag).unwrap();
    let mut out = [&prefix[..], &header, &tag].concat();
    let mut pad = vec![0xA5; padding];
    let mut cipher = payload.to_vec();
    if !payload.is_empty() {
        key.seal(nonce.advance(), &pad, &mut cipher, &mut tag).unwrap();
        cipher.extend(tag);
        profile.exchange(seq, &mut pad, &mut cipher);
    }
    out.extend(pad);
    out.extend(cipher);
    out
}

/// Receivers take any filler and any lengths, at any place.
#[test]
fn foreign_choices_are_accepted() {
    let psk = SnellPsk::new(b"adit-v6-vector-0003");
    let profile = expanded(&psk);
    let salt = [9; 16];
    let key = Aead::new(AeadAlgorithm::Aes128Gcm, &psk.derive(&salt).key);
    let mut nonce = CounterNonce::default();
    let mut stream = vec![0x77; profile.salt_block_len()];
    profile.put_salt(&mut stream, &salt);
    let choices = [(0, 1), (60_000, 22), (65_535, 65_535), (0, 65_535), (0, 0), (65_535, 0), (1, 1), (3, 0)];
    for ((padding, payload), seq) in choices.into_iter().zip(0..) {
        stream.extend(odd_frame(&profile, &key, &mut nonce, seq, padding, &vec![1; payload]));
    }
    for piece in [stream.len(), 1460, 65_536] {
        let frames = open(Format::Shaped(profile.clone()), &psk, &stream, piece).unwrap();
        let lens: Vec<usize> = frames.iter().map(Vec::len).collect();
        assert_eq!(lens, choices.map(|(_, payload)| payload));
    }
}

/// Unshaped and unsafe-raw headers may say nothing but a length.
#[test]
fn bare_headers_are_strict() {
    for (field, at) in [("type", 0), ("reserved", 1), ("reserved", 2), ("padding", 3), ("padding", 4)] {
        let mut header = [4, 0, 0, 0, 0, 0, 5];
        header[at] ^= 1;
        let raw = [&header[..], b"hello"].concat();
        let error = open(Format::UnsafeRaw, &SnellPsk::new(b"key"), &raw, 12).unwrap_err();
        assert!(matches!(error, WireError::Malformed { .. }), "{field}: {error:?}");
        let key = SnellPsk::new(b"key").derive(&[3; 16]);
        let (aead, mut nonce) = (Aead::new(AeadAlgorithm::Aes128Gcm, &key.key), CounterNonce::default());
        let mut tag = [0; 16];
        aead.seal(nonce.advance(), &[], &mut header, &mut tag).unwrap();
        let sealed = [&[3; 16][..], &header, &tag].concat();
        let error = open(Format::Unshaped, &SnellPsk::new(b"key"), &sealed, 39).unwrap_err();
        assert!(matches!(error, WireError::Malformed { .. }), "{field}: {error:?}");
    }
}

/// A wire observer could compare connections: two connections under one key share no filler.
#[test]
fn connections_share_no_filler() {
    let psk = SnellPsk::new(b"adit-v6-vector-0003");
    let profile = Arc::new(Profile::new(&psk, &mut Zeros));
    let open = |n: u8| {
        struct Constant(u8);
        impl Rng for Constant {
            fn fill(&mut self, out: &mut [u8]) {
                out.fill(self.0);
            }
        }
        let key = SnellDirectionKey { salt: [1; 16], key: [1; 16], rest: [0; 16] };
        let sealer = V6FrameSealer::new(profile.clone(), &key, false, &mut Constant(n));
        frame(&mut SnellSealer::Shaped(sealer), b"hello", now())
    };
    let (one, other) = (open(1), open(2));
    let equal = one.iter().zip(&other).filter(|(a, b)| a == b).count();
    // Sixteen masked bytes of one salt, and what chance gives in filler of a few hundred values at most.
    assert!(equal < one.len() / 2, "{equal} of {}", one.len());
    assert_eq!(one.len(), other.len());
}
