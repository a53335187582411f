//! Entry points for fuzzing: arbitrary bytes in arbitrary pieces must give the same result as in one piece.

use super::kdf::{DirectionKey, Psk};
use super::{Client, MAX_FRAME_LEN, Progress, Request, Server};
use crate::buf::RecvBuf;
use crate::wire::{Layer, Opened, Rng, WireError};
use std::time::Instant;

struct Zeros;

impl Rng for Zeros {
    fn fill(&mut self, out: &mut [u8]) {
        out.fill(0);
    }
}

fn own_key() -> DirectionKey {
    DirectionKey { salt: [0x55; 16], key: [7; 16], mark: [0; 8] }
}

/// A request parser that must consume what it says and survive everything else.
pub fn fuzz_request(data: &[u8]) {
    let Ok(Some((request, used))) = Request::parse(data) else { return };
    assert!(used <= data.len());
    let mut again = Vec::new();
    request.emit(&mut again);
    let (parsed, _) = Request::parse(&again).expect("emitted requests are legal").expect("and whole");
    assert_eq!(parsed, request);
}

/// First byte: piece length; the rest: a stream that a server opens.
pub fn fuzz_server(data: &[u8], now: Instant) {
    let Some((&piece, stream)) = data.split_first() else { return };
    let whole = serve(stream, stream.len().max(1), now);
    assert_eq!(serve(stream, usize::from(piece).max(1), now), whole);
}

/// First byte: piece length; the rest: a stream that a client opens.
pub fn fuzz_client(data: &[u8], now: Instant) {
    let Some((&piece, stream)) = data.split_first() else { return };
    let whole = ask(stream, stream.len().max(1), now);
    assert_eq!(ask(stream, usize::from(piece).max(1), now), whole);
}

type Outcome = (Option<Request>, Vec<u8>, bool, Option<WireError>);

fn serve(stream: &[u8], piece: usize, now: Instant) -> Outcome {
    let mut server = Server::new(Psk::new(b"adit-vector-psk-0001"));
    let mut wire = RecvBuf::with_len(stream.len() + MAX_FRAME_LEN);
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

fn ask(stream: &[u8], piece: usize, now: Instant) -> Outcome {
    let mut client = Client::new(Psk::new(b"adit-vector-psk-0001"), &own_key(), &mut Zeros);
    client.start(&Request::connect("example.com:80".parse().expect("a target"), true));
    let mut wire = RecvBuf::with_len(stream.len() + MAX_FRAME_LEN);
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
