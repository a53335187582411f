//! Drives [`Layer`]s as the relay does, and holds them to their contract.

use std::time::Instant;

use adit_proto::buf::RecvBuf;
use adit_proto::wire::{Layer, Opened, WireError};

/// A byte that sealing must not find by chance; the free space around payloads is filled with it.
const FILLER: u8 = 0xa5;

/// The result of opening a stream.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Received {
    /// All payload.
    pub payload: Vec<u8>,
    /// The peer ended its direction in band.
    pub ended: bool,
    /// Bytes that were left unread.
    pub unread: usize,
}

/// Seals `data` as one write, cut as the layer's plan says, and returns the wire bytes.
///
/// # Panics
/// If the layer fails, or writes outside the room that its plan asked for.
pub fn seal_write(layer: &mut dyn Layer, data: &[u8], now: Instant) -> Vec<u8> {
    let plan = layer.plan(now);
    let mut wire = Vec::new();
    let (mut room, mut rest) = (plan.first, data);
    loop {
        let (piece, later) = rest.split_at(rest.len().min(room.max_payload));
        let guard = 16;
        let start = guard + room.head;
        let mut block = vec![FILLER; start + piece.len() + room.tail + guard];
        block[start..start + piece.len()].copy_from_slice(piece);
        let frame = layer.seal(&mut block, start..start + piece.len(), now).expect("sealing works");
        let outside = [&block[..guard], &block[block.len() - guard..]].concat();
        assert!(outside.iter().all(|&byte| byte == FILLER), "sealing wrote outside the planned room");
        assert!(
            frame.is_empty() || (frame.start >= guard && frame.end <= block.len() - guard),
            "frame: {frame:?}"
        );
        wire.extend_from_slice(&block[frame]);
        (room, rest) = (plan.rest, later);
        if rest.is_empty() {
            break;
        }
    }
    layer.finish_write(now);
    wire
}

/// Opens `pieces` one after the other, compacting the buffer before each.
///
/// # Errors
/// The layer's.
///
/// # Panics
/// If the layer asks for no bytes, or reports a range outside the buffer.
pub fn open_pieces<'a>(
    layer: &mut dyn Layer,
    pieces: impl IntoIterator<Item = &'a [u8]>,
    now: Instant,
) -> Result<Received, WireError> {
    let mut wire = RecvBuf::with_len(0);
    let mut payload = Vec::new();
    for piece in pieces {
        let mut larger = RecvBuf::with_len(wire.unread().len() + piece.len());
        larger.extend(wire.unread());
        larger.extend(piece);
        wire = larger;
        loop {
            match layer.open(&mut wire, now)? {
                Opened::NeedMore(0) => panic!("a layer that needs no more bytes must not ask for them"),
                Opened::NeedMore(_) => break,
                Opened::Payload(range) => {
                    assert!(range.end <= wire.position(), "payload must have been consumed: {range:?}");
                    payload.extend_from_slice(&wire.block()[range]);
                }
                Opened::End => return Ok(Received { payload, ended: true, unread: wire.unread().len() }),
            }
        }
    }
    Ok(Received { payload, ended: false, unread: wire.unread().len() })
}

/// Opens `wire` whole, cut in two at every offset, and byte by byte, each time with a layer fresh from `make`;
/// all must give the same, which is returned.
///
/// # Errors
/// The layer's, if every split gives it.
///
/// # Panics
/// If any split gives something else.
pub fn check_splits(
    mut make: impl FnMut() -> Box<dyn Layer>,
    wire: &[u8],
    now: Instant,
) -> Result<Received, WireError> {
    let whole = open_pieces(make().as_mut(), [wire], now);
    for at in 0..=wire.len() {
        let (first, second) = wire.split_at(at);
        assert_eq!(open_pieces(make().as_mut(), [first, second], now), whole, "cut at {at}");
    }
    assert_eq!(open_pieces(make().as_mut(), wire.chunks(1), now), whole, "byte by byte");
    whole
}

/// Every prefix of `wire` opens without an error to a prefix of the payload of the whole.
///
/// # Panics
/// If one does not.
pub fn check_truncations(mut make: impl FnMut() -> Box<dyn Layer>, wire: &[u8], now: Instant) {
    let whole = open_pieces(make().as_mut(), [wire], now).expect("the whole opens");
    for len in 0..wire.len() {
        let part = open_pieces(make().as_mut(), [&wire[..len]], now).expect("a prefix opens");
        assert!(whole.payload.starts_with(&part.payload), "truncated to {len}");
    }
}
