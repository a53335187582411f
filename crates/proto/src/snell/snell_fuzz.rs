//! Entry points for fuzzing: arbitrary bytes in arbitrary pieces must give the same result as in one piece.

use super::kdf::{SnellDirectionKey, SnellPsk};
use super::{
    Accepts, Format, MAX_LONG_FRAME_LEN, Profile, Progress, SnellClientStream, SnellCommand, SnellRequest,
    SnellServerStream,
};
use crate::buf::RecvBuf;
use crate::wire::{Layer, Opened, Rng, WireError};
use std::sync::Arc;
use std::time::Instant;

const PSK: &[u8] = b"adit-vector-psk-0001";

struct Zeros;

impl Rng for Zeros {
    fn fill(&mut self, out: &mut [u8]) {
        out.fill(0);
    }
}

fn own_key() -> SnellDirectionKey {
    SnellDirectionKey { salt: [0x55; 16], key: [7; 16], rest: [0; 16] }
}

/// A request parser that must consume what it says and survive everything else.
pub fn fuzz_request(data: &[u8]) {
    let Ok(Some((request, used))) = SnellRequest::parse(data) else { return };
    assert!(used <= data.len());
    let mut again = Vec::new();
    request.emit(&mut again);
    let (parsed, _) = SnellRequest::parse(&again).expect("emitted requests are legal").expect("and whole");
    match (&parsed.command, &request.command) {
        (SnellCommand::Invalid { reusable: one, .. }, SnellCommand::Invalid { reusable: other, .. }) => {
            assert_eq!((one, &parsed.client_id), (other, &request.client_id));
        }
        _ => assert_eq!(parsed, request),
    }
}

/// First byte: piece length; the rest: a stream that a server opens.
pub fn fuzz_server(data: &[u8], now: Instant) {
    let Some((&piece, stream)) = data.split_first() else { return };
    let accepts = || Accepts::Only(Format::V4);
    let whole = serve(accepts(), stream, stream.len().max(1), now);
    assert_eq!(serve(accepts(), stream, usize::from(piece).max(1), now), whole);
}

/// First byte: piece length; the rest: a stream that a client opens.
pub fn fuzz_client(data: &[u8], now: Instant) {
    let Some((&piece, stream)) = data.split_first() else { return };
    let whole = ask(Format::V4, stream, stream.len().max(1), now);
    assert_eq!(ask(Format::V4, stream, usize::from(piece).max(1), now), whole);
}

/// First byte: piece length; second byte: version, or detection; the rest: a stream that a server and a client open.
pub fn fuzz_versions(data: &[u8], now: Instant) {
    let [piece, version, stream @ ..] = data else { return };
    let piece = usize::from(*piece).max(1);
    let profile = Arc::new(Profile::new(&SnellPsk::new(PSK), &mut Zeros));
    let formats =
        [Format::V1, Format::V2, Format::Shaped(profile.clone()), Format::Unshaped, Format::UnsafeRaw];
    let format = formats.get(usize::from(*version) % (formats.len() + 1)).cloned();
    let accepts = || format.clone().map_or_else(|| Accepts::Any(profile.clone()), Accepts::Only);
    let whole = serve(accepts(), stream, stream.len().max(1), now);
    assert_eq!(serve(accepts(), stream, piece, now), whole);
    if let Some(format) = format {
        let whole = ask(format.clone(), stream, stream.len().max(1), now);
        assert_eq!(ask(format, stream, piece, now), whole);
    }
}

type Outcome = (Option<SnellRequest>, Vec<u8>, bool, Option<WireError>);

fn serve(accepts: Accepts, stream: &[u8], piece: usize, now: Instant) -> Outcome {
    let mut server = SnellServerStream::accepting(accepts, SnellPsk::new(PSK));
    let mut wire = RecvBuf::with_len(stream.len() + MAX_LONG_FRAME_LEN);
    let mut out: Outcome = (None, Vec::new(), false, None);
    for bytes in stream.chunks(piece) {
        wire.extend(bytes);
        if out.0.is_none() {
            match server.poll_request(&mut wire) {
                Ok(Progress::NeedMore(_)) => continue,
                Ok(Progress::Request(request)) => out.0 = Some(request),
                Err(error) => {
                    out.3 = Some(error);
                    return out;
                }
            }
        }
        if !drain(&mut server, &mut wire, &mut out, now) {
            return out;
        }
    }
    out
}

fn ask(format: Format, stream: &[u8], piece: usize, now: Instant) -> Outcome {
    let mut client = SnellClientStream::speaking(format, SnellPsk::new(PSK), &own_key(), &mut Zeros);
    client.start(&SnellRequest::connect("example.com:80".parse().expect("a target"), true));
    let mut wire = RecvBuf::with_len(stream.len() + MAX_LONG_FRAME_LEN);
    let mut out: Outcome = (None, Vec::new(), false, None);
    for bytes in stream.chunks(piece) {
        wire.extend(bytes);
        if !drain(&mut client, &mut wire, &mut out, now) {
            return out;
        }
    }
    out
}

/// Opens all there is; false when the direction is over.
fn drain(layer: &mut dyn Layer, wire: &mut RecvBuf, out: &mut Outcome, now: Instant) -> bool {
    loop {
        match layer.open(wire, now) {
            Ok(Opened::NeedMore(len)) => {
                assert!(len > 0);
                return true;
            }
            Ok(Opened::Payload(range)) => out.1.extend(&wire.block()[range]),
            Ok(Opened::End) => {
                out.2 = true;
                return false;
            }
            Err(error) => {
                out.3 = Some(error);
                return false;
            }
        }
    }
}
