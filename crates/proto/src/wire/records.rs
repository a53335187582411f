//! Records of what passes for TLS application data: the stream of an obfs, cut and headed.
//!
//! ```text
//!   17 03 03 | len u16be | stream
//! ```

use std::iter;
use std::ops::Range;

use super::{Opened, Plan, Room, WireError};
use crate::buf::RecvBuf;

/// Bytes in front of a record's payload.
pub(crate) const RECORD_HEAD: usize = 5;
/// Longest payload of one call of [`seal_records`], in bytes: more than any layer inside makes of a block.
const MAX_SEALED: usize = 80 * 1024;
const APPLICATION_DATA: u8 = 0x17;

/// Room for records of up to `max_record` bytes each, behind `head` bytes that leave in front of the first one.
pub(crate) fn records_plan(head: usize, max_record: usize) -> Plan {
    let heads = RECORD_HEAD * MAX_SEALED.div_ceil(max_record);
    let rest = Room { head: heads, tail: 0, max_payload: MAX_SEALED };
    Plan { first: Room { head: head + heads, ..rest }, rest }
}

/// Cuts the payload into records of up to `max_record` bytes (at most 65535), and puts `head` in front of them. A payload
/// without bytes stays as it is, without `head`. The first record has up to `first_record` bytes (at most `max_record`); if
/// that is less than `max_record`, it takes [`RECORD_HEAD`] bytes of room more.
///
/// The payload is taken as a whole, since a layer inside works faster on much at once. Its last record stays where it is,
/// the others move towards the front, by the heads behind them.
pub(crate) fn seal_records(
    block: &mut [u8],
    head: &[u8],
    payload: Range<usize>,
    (first_record, max_record): (usize, usize),
) -> Range<usize> {
    if payload.is_empty() {
        return payload;
    }
    let first_end = payload.end.min(payload.start + first_record);
    let mut at = payload.start - RECORD_HEAD * (1 + (payload.end - first_end).div_ceil(max_record));
    let start = at - head.len();
    block[start..at].copy_from_slice(head);
    let rest = (first_end..payload.end).step_by(max_record);
    let rest = rest.map(|from| from..payload.end.min(from + max_record));
    for piece in iter::once(payload.start..first_end).chain(rest) {
        let len = u16::try_from(piece.len()).expect("records are shorter than 64 KiB");
        let data_at = at + RECORD_HEAD;
        if data_at != piece.start {
            block.copy_within(piece.clone(), data_at);
        }
        block[at..at + 3].copy_from_slice(&[APPLICATION_DATA, 3, 3]);
        block[at + 3..data_at].copy_from_slice(&len.to_be_bytes());
        at = data_at + piece.len();
    }
    start..at
}

/// The records of one direction, handed out as they come: nothing authenticates them as a whole.
#[derive(Debug, Default)]
pub(crate) struct Records {
    /// Bytes of the present record that have not come.
    left: usize,
}

impl Records {
    /// The next payload, of a record of up to `max_record` bytes.
    ///
    /// # Errors
    /// [`WireError::Malformed`] for a record of another type, or a longer one.
    pub(crate) fn open(&mut self, wire: &mut RecvBuf, max_record: usize) -> Result<Opened, WireError> {
        let bad = |what, got: usize| WireError::Malformed { what, got: got as u64 };
        while self.left == 0 {
            let unread = wire.unread();
            if let Some(kind) = unread.first().filter(|kind| **kind != APPLICATION_DATA) {
                return Err(bad("type of a tls record", (*kind).into()));
            }
            if unread.len() < RECORD_HEAD {
                return Ok(Opened::NeedMore(RECORD_HEAD - unread.len()));
            }
            self.left = u16::from_be_bytes([unread[3], unread[4]]).into();
            if self.left > max_record {
                return Err(bad("length of a tls record", self.left));
            }
            wire.consume(RECORD_HEAD);
        }
        let len = self.left.min(wire.unread().len());
        if len == 0 {
            return Ok(Opened::NeedMore(1));
        }
        let start = wire.position();
        wire.consume(len);
        self.left -= len;
        Ok(Opened::Payload(start..start + len))
    }

    /// The transport has ended with `unread` bytes of no record left.
    ///
    /// # Errors
    /// [`WireError::Truncated`] when the end cuts a record.
    pub(crate) fn handle_transport_end(&self, unread: usize) -> Result<(), WireError> {
        if self.left == 0 && unread == 0 { Ok(()) } else { Err(WireError::Truncated { what: "tls record" }) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MAX_RECORD: usize = 10_240;

    /// Around the borders of records, and the longest payload, whose heads must fit into the room.
    #[test]
    fn payloads_are_cut_and_come_back() {
        let lens = [0, 1, MAX_RECORD - 1, MAX_RECORD, MAX_RECORD + 1, 3 * MAX_RECORD, 64_872, MAX_SEALED];
        for len in lens {
            check_cut(len, MAX_RECORD, 51);
        }
        for len in [999, 1000, 1001].into_iter().chain(lens) {
            check_cut(len, 1000, 51 + RECORD_HEAD);
        }
    }

    /// `room` is what is asked for in front of the first record.
    fn check_cut(len: usize, first_record: usize, room: usize) {
        let head = [7; 51];
        let room = records_plan(room, MAX_RECORD).first;
        let data: Vec<u8> = (0..len).map(|n| (n % 251).to_le_bytes()[0]).collect();
        let mut block = [vec![0; room.head], data.clone()].concat();
        let sealed = seal_records(&mut block, &head, room.head..room.head + len, (first_record, MAX_RECORD));
        let wire = &block[sealed];
        if len == 0 {
            return assert!(wire.is_empty());
        }
        assert!(wire[..head.len()] == head, "{len}");
        let heads = 1 + len.saturating_sub(first_record).div_ceil(MAX_RECORD);
        assert_eq!(wire.len(), head.len() + len + RECORD_HEAD * heads, "{len}");
        let first = len.min(first_record).to_be_bytes();
        assert_eq!(wire[head.len() + 3..head.len() + RECORD_HEAD], first[first.len() - 2..], "{len}");
        let (mut buf, mut records) = (RecvBuf::from_bytes(&wire[head.len()..]), Records::default());
        let mut opened: Vec<u8> = Vec::new();
        while let Opened::Payload(range) = records.open(&mut buf, MAX_RECORD).unwrap() {
            opened.extend(&buf.block()[range]);
        }
        assert!(opened == data, "{len}");
        assert_eq!(records.handle_transport_end(buf.unread().len()), Ok(()));
    }

    #[test]
    fn wrong_records_are_refused() {
        let open = |wire: &[u8]| Records::default().open(&mut RecvBuf::from_bytes(wire), 1000);
        assert!(matches!(open(&[0x16]), Err(WireError::Malformed { got: 0x16, .. })));
        assert!(matches!(open(&[0x17, 3, 3, 3, 0xe9]), Err(WireError::Malformed { got: 1001, .. })));
        assert_eq!(open(&[0x17, 3, 3, 3, 0xe8]), Ok(Opened::NeedMore(1)));
        assert_eq!(open(&[0x17, 3, 3, 0, 0]), Ok(Opened::NeedMore(5)), "an empty one is passed over");
    }
}
