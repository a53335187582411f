//! The name in a ClientHello.
//!
//! ```text
//! record:     22 | version u16 | length u16 | fragment of messages
//! message:    1 | length u24 | version u16 | random 32 | session id u8.. | cipher suites u16.. | methods u8.. | extensions u16..
//! extension:  type u16 | length u16 | data; type 0: list u16 of { 0 | name u16.. }
//! ```

use super::{MAX_STREAM, name};

const RECORD_HEADER_LEN: usize = 5;
/// Longest fragment of a record: RFC 8446 section 5.1.
const MAX_FRAGMENT: usize = 1 << 14;
/// Most gaps in a message; clients that shuffle their hello make about ten.
const MAX_GAPS: usize = 64;
const HANDSHAKE: u8 = 22;
const CLIENT_HELLO: u8 = 1;
const SERVER_NAME: u16 = 0;
const HOST_NAME: u8 = 0;

/// Kinds of first bytes.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum HelloKind {
    /// The beginning of a hello, perhaps.
    More,
    /// A hello, with the host that it names.
    Name(Option<Box<str>>),
    /// Something else.
    Not,
}

/// Whether a record with a hello begins here.
pub(super) fn is_hello(bytes: &[u8]) -> bool {
    matches!(bytes, [HANDSHAKE, 3, _, _, _, CLIENT_HELLO, ..])
}

/// A hello that is cut into records.
pub(super) fn of_records(bytes: &[u8]) -> HelloKind {
    let mut message = Vec::new();
    let mut rest = bytes;
    loop {
        // As far as it has come, the header must be one.
        if rest.first().is_some_and(|kind| *kind != HANDSHAKE) || rest.get(1).is_some_and(|major| *major != 3)
        {
            return HelloKind::Not;
        }
        let Some((header, body)) = rest.split_first_chunk::<RECORD_HEADER_LEN>() else {
            return HelloKind::More;
        };
        let len = usize::from(u16::from_be_bytes([header[3], header[4]]));
        if len == 0 || len > MAX_FRAGMENT {
            return HelloKind::Not;
        }
        let fragment = &body[..len.min(body.len())];
        message.extend_from_slice(fragment);
        match of_message(&message) {
            HelloKind::More if fragment.len() == len => rest = &body[len..],
            found @ (HelloKind::More | HelloKind::Name(_) | HelloKind::Not) => return found,
        }
    }
}

/// A hello without records.
pub(super) fn of_message(bytes: &[u8]) -> HelloKind {
    if bytes.first().is_some_and(|kind| *kind != CLIENT_HELLO) {
        return HelloKind::Not;
    }
    let Some((header, body)) = bytes.split_first_chunk::<4>() else { return HelloKind::More };
    let len = u32::from_be_bytes([0, header[1], header[2], header[3]]) as usize;
    if len > MAX_STREAM {
        return HelloKind::Not;
    }
    let body = &body[..len.min(body.len())];
    if body.first().is_some_and(|major| *major != 3) {
        return HelloKind::Not;
    }
    match server_name(body, body.len() == len) {
        Some(found) => HelloKind::Name(found),
        None if body.len() < len => HelloKind::More,
        None => HelloKind::Not,
    }
}

/// The name in the body of a hello, which may be cut unless it `is_whole`: the outer `None` says that something is
/// missing.
fn server_name(body: &[u8], is_whole: bool) -> Option<Option<Box<str>>> {
    let mut body = Reader(body);
    body.take(2 + 32)?;
    let session = body.u8()?;
    body.take(session.into())?;
    let suites = body.u16()?;
    body.take(suites.into())?;
    let methods = body.u8()?;
    body.take(methods.into())?;
    if body.0.is_empty() {
        // A hello may end here.
        return is_whole.then_some(None);
    }
    let mut left = usize::from(body.u16()?);
    while left > 0 {
        let (kind, len) = (body.u16()?, body.u16()?);
        let data = body.take(len.into())?;
        if kind == SERVER_NAME {
            return Some(host_name(data));
        }
        left = left.checked_sub(4 + usize::from(len))?;
    }
    Some(None)
}

fn host_name(data: &[u8]) -> Option<Box<str>> {
    let mut list = Reader(data);
    list.u16()?;
    while let Some(kind) = list.u8() {
        let len = list.u16()?;
        let value = list.take(len.into())?;
        if kind == HOST_NAME {
            return name(value);
        }
    }
    None
}

struct Reader<'a>(&'a [u8]);

impl<'a> Reader<'a> {
    fn take(&mut self, len: usize) -> Option<&'a [u8]> {
        let (taken, rest) = self.0.split_at_checked(len)?;
        self.0 = rest;
        Some(taken)
    }

    fn u8(&mut self) -> Option<u8> {
        self.take(1).map(|bytes| bytes[0])
    }

    fn u16(&mut self) -> Option<u16> {
        self.take(2).map(|bytes| u16::from_be_bytes([bytes[0], bytes[1]]))
    }
}

/// A message that comes in pieces, in any order; at most [`MAX_STREAM`] bytes of it.
#[derive(Debug, Default)]
pub(super) struct Pieces {
    bytes: Vec<u8>,
    /// Ranges that have come: sorted, with gaps between them.
    have: Vec<(usize, usize)>,
}

impl Pieces {
    /// Takes a piece in, unless the message has too many gaps. Bytes behind the limit are forgotten; of bytes that came before, the first ones stand.
    pub(super) fn put(&mut self, offset: u64, piece: &[u8]) {
        let Ok(start) = usize::try_from(offset) else { return };
        if start >= MAX_STREAM || piece.is_empty() || self.have.len() >= MAX_GAPS {
            return;
        }
        let end = (start + piece.len()).min(MAX_STREAM);
        if self.bytes.len() < end {
            self.bytes.resize(end, 0);
        }
        let mut at = start;
        let known: Vec<(usize, usize)> = self.have.clone();
        for (from, to) in known.into_iter().chain([(end, end)]) {
            let from = from.min(end);
            if at < from {
                self.bytes[at..from].copy_from_slice(&piece[at - start..from - start]);
            }
            at = at.max(to);
        }
        self.have.push((start, end));
        self.have.sort_unstable();
        let mut merged: Vec<(usize, usize)> = Vec::with_capacity(self.have.len());
        for (from, to) in self.have.drain(..) {
            match merged.last_mut() {
                Some(last) if from <= last.1 => last.1 = last.1.max(to),
                _ => merged.push((from, to)),
            }
        }
        self.have = merged;
    }

    /// The message so far: its kind, and the name once it is complete.
    pub(super) fn hello(&self) -> HelloKind {
        match self.have.first() {
            Some((0, end)) => of_message(&self.bytes[..*end]),
            _ => HelloKind::More,
        }
    }
}
