//! A stream in what looks like a TLS 1.2 session, resumed by ticket.
//!
//! ```text
//! C->S, once (n: length of the ticket, h: length of the host; integers big-endian; offsets and sizes in bytes)
//!     0  16 03 01 | 212+n+h 2                              record
//!     5  01 00 | 208+n+h 2                                 client hello
//!     9  03 03 | unix time 4 | random 28 | 20 | id 32
//!    76  00 38 | suites 56 | 01 00 | 79+n+h 2              compression, length of the extensions
//!   138  00 23 | n 2 | first n bytes of stream             session ticket
//! 142+n  00 00 | h+5 2 | h+3 2 | 00 | h 2 | host h         server name
//! 151+n+h  66 bytes that never change                      point formats, groups, signatures, EtM, EMS
//! S->C, once
//!     0  16 03 01 00 5b | 02 00 00 57 | 03 03 | unix time 4 | random 28 | 20 | id 32
//!    76  cc a8 00 00 00 ff 01 00 01 00 00 17 00 00 00 0b 00 02 01 00
//!    96  14 03 03 00 01 01                                 change cipher spec
//!   102  16 03 03 | length 2 | first bytes of stream
//! Then in both directions
//!     0  17 03 03 | length 2 | stream, at most 16384
//! ```
//!
//! Source: simple-obfs 0.0.5 and OpenSnell, observed; Surge puts at most 1024 bytes into the ticket, OpenSnell up to
//! 16384. Readers of other programs check none of it. This one checks every length that says the same twice, and
//! hands out parts of a record as they come: nothing is authenticated here that would need the whole.

use std::ops::Range;
use std::time::Instant;

use crate::buf::RecvBuf;
use crate::wire::{Layer, Opened, Plan, Rng, Room, WireError};

/// Longest payload of a record that is sent, in bytes (RFC 8446, section 5.1). Any length is read.
const MAX_RECORD: usize = 16_384;
/// Most bytes that the ticket of a client hello carries (Surge's choice); more go into a record behind it.
const MAX_TICKET: usize = 1024;
/// Longest host: the length fields would allow more, names do not.
const MAX_HOST: usize = 255;

const RECORD_HEADER: usize = 5;
/// A client hello up to the ticket's data.
const HELLO_HEAD: usize = 142;
/// Offset of the extensions' length in it.
const EXTENSIONS_AT: usize = 136;
/// The server name extension without the name.
const NAME_HEAD: usize = 9;
/// The bytes after the name.
const HELLO_END: [u8; 66] = [
    0x00, 0x0b, 0x00, 0x04, 0x03, 0x01, 0x00, 0x02, // point formats
    0x00, 0x0a, 0x00, 0x0a, 0x00, 0x08, 0x00, 0x1d, 0x00, 0x17, 0x00, 0x19, 0x00, 0x18, // groups
    0x00, 0x0d, 0x00, 0x20, 0x00, 0x1e, 0x06, 0x01, 0x06, 0x02, 0x06, 0x03, 0x05, 0x01, 0x05, 0x02, 0x05,
    0x03, 0x04, 0x01, 0x04, 0x02, 0x04, 0x03, 0x03, 0x01, 0x03, 0x02, 0x03, 0x03, 0x02, 0x01, 0x02, 0x02,
    0x02, 0x03, // signature algorithms
    0x00, 0x16, 0x00, 0x00, // encrypt then MAC
    0x00, 0x17, 0x00, 0x00, // extended master secret
];
/// A client hello without ticket and host.
const HELLO_REST: usize = HELLO_HEAD + NAME_HEAD + HELLO_END.len();
/// Cipher suites behind their length, then compression methods.
const SUITES: [u8; 60] = [
    0x00, 0x38, 0xc0, 0x2c, 0xc0, 0x30, 0x00, 0x9f, 0xcc, 0xa9, 0xcc, 0xa8, 0xcc, 0xaa, 0xc0, 0x2b, 0xc0,
    0x2f, 0x00, 0x9e, 0xc0, 0x24, 0xc0, 0x28, 0x00, 0x6b, 0xc0, 0x23, 0xc0, 0x27, 0x00, 0x67, 0xc0, 0x0a,
    0xc0, 0x14, 0x00, 0x39, 0xc0, 0x09, 0xc0, 0x13, 0x00, 0x33, 0x00, 0x9d, 0x00, 0x9c, 0x00, 0x3d, 0x00,
    0x3c, 0x00, 0x35, 0x00, 0x2f, 0x00, 0xff, 0x01, 0x00,
];
/// A server's answer up to the length of its first record: hello, change cipher spec, record type and version.
const ANSWER_HEAD: usize = 105;
const ANSWER_START: [u8; 11] = [0x16, 3, 1, 0, 0x5b, 2, 0, 0, 0x57, 3, 3];
/// From offset 76 of the answer on: suite, compression, extensions; change cipher spec; the first record.
const ANSWER_END: [u8; 29] = [
    0xcc, 0xa8, 0x00, 0x00, 0x00, 0xff, 0x01, 0x00, 0x01, 0x00, 0x00, 0x17, 0x00, 0x00, 0x00, 0x0b, 0x00,
    0x02, 0x01, 0x00, 0x14, 3, 3, 0, 1, 1, 0x16, 3, 3,
];

/// The moment and the random parts of a hello.
#[derive(Debug)]
struct Random {
    unix_time: u32,
    random: [u8; 28],
    id: [u8; 32],
}

impl Random {
    fn draw(unix_time: u32, rng: &mut dyn Rng) -> Self {
        let mut drawn = Self { unix_time, random: [0; 28], id: [0; 32] };
        rng.fill(&mut drawn.random);
        rng.fill(&mut drawn.id);
        drawn
    }

    /// Time, random, id behind its length: 65 bytes.
    fn emit(&self, out: &mut [u8]) {
        out[..4].copy_from_slice(&self.unix_time.to_be_bytes());
        out[4..32].copy_from_slice(&self.random);
        out[32] = 0x20;
        out[33..65].copy_from_slice(&self.id);
    }
}

/// The client's end.
#[derive(Debug)]
pub struct TlsObfsClient {
    host: Box<str>,
    hello: Option<Random>,
    reader: Reader,
}

impl TlsObfsClient {
    /// A connection that has sent nothing, begun `unix_time` seconds after 1970 (as TLS has it: modulo 2^32).
    ///
    /// # Panics
    /// If `host` has more than 255 bytes; configurations hold no such host.
    pub fn new(host: &str, unix_time: u32, rng: &mut dyn Rng) -> Self {
        assert!(host.len() <= MAX_HOST, "obfs host of {} bytes", host.len());
        let hello = Some(Random::draw(unix_time, rng));
        Self { host: host.into(), hello, reader: Reader::new(State::Answer) }
    }

    /// Bytes behind the ticket: the other extensions.
    fn tail_len(&self) -> usize {
        NAME_HEAD + self.host.len() + HELLO_END.len()
    }

    /// Lays a hello with a ticket of `ticket_len` bytes around that part of `block`, which begins at `at`.
    fn emit_hello(&self, hello: &Random, block: &mut [u8], at: usize, ticket_len: usize) {
        let (n, h) = (ticket_len, self.host.len());
        let head = &mut block[at - HELLO_HEAD..at];
        head[..3].copy_from_slice(&[0x16, 3, 1]);
        put_u16(head, 3, HELLO_REST - RECORD_HEADER + n + h);
        head[5..7].copy_from_slice(&[1, 0]);
        put_u16(head, 7, HELLO_REST - RECORD_HEADER - 4 + n + h);
        head[9..11].copy_from_slice(&[3, 3]);
        hello.emit(&mut head[11..76]);
        head[76..EXTENSIONS_AT].copy_from_slice(&SUITES);
        put_u16(head, EXTENSIONS_AT, HELLO_REST - EXTENSIONS_AT - 2 + n + h);
        head[138..140].copy_from_slice(&[0, 0x23]);
        put_u16(head, 140, n);

        let tail = &mut block[at + n..at + n + self.tail_len()];
        tail[..2].fill(0);
        put_u16(tail, 2, h + 5);
        put_u16(tail, 4, h + 3);
        tail[6] = 0;
        put_u16(tail, 7, h);
        tail[NAME_HEAD..NAME_HEAD + h].copy_from_slice(self.host.as_bytes());
        tail[NAME_HEAD + h..].copy_from_slice(&HELLO_END);
    }
}

impl Layer for TlsObfsClient {
    fn plan(&self, _now: Instant) -> Plan {
        let rest = Room { head: RECORD_HEADER, tail: 0, max_payload: MAX_RECORD };
        if self.hello.is_none() {
            return Plan { first: rest, rest };
        }
        // A payload that outgrows the ticket has the tail and a record header in its middle, and no tail behind it.
        let head = HELLO_HEAD + self.tail_len() + RECORD_HEADER;
        Plan { first: Room { head, tail: self.tail_len(), max_payload: MAX_RECORD }, rest }
    }

    fn seal(
        &mut self,
        block: &mut [u8],
        payload: Range<usize>,
        _now: Instant,
    ) -> Result<Range<usize>, WireError> {
        let Some(hello) = self.hello.take() else { return Ok(seal_record(block, payload)) };
        if payload.len() <= MAX_TICKET {
            self.emit_hello(&hello, block, payload.start, payload.len());
            return Ok(payload.start - HELLO_HEAD..payload.end + self.tail_len());
        }
        // Only the ticket moves, at most a kibibyte; the rest stays where it is.
        let ticket = payload.start..payload.start + MAX_TICKET;
        let at = payload.start - RECORD_HEADER - self.tail_len();
        block.copy_within(ticket.clone(), at);
        self.emit_hello(&hello, block, at, MAX_TICKET);
        let record = seal_record(block, ticket.end..payload.end);
        Ok(at - HELLO_HEAD..record.end)
    }

    fn has_pending(&self) -> bool {
        self.hello.is_some()
    }

    fn open(&mut self, wire: &mut RecvBuf, _now: Instant) -> Result<Opened, WireError> {
        self.reader.open(wire)
    }

    fn handle_transport_end(&mut self, unread: usize) -> Result<(), WireError> {
        self.reader.handle_transport_end(unread)
    }
}

/// The server's end.
#[derive(Debug)]
pub struct TlsObfsServer {
    hello: Option<Random>,
    reader: Reader,
}

impl TlsObfsServer {
    /// A connection that has received nothing, accepted `unix_time` seconds after 1970.
    pub fn new(unix_time: u32, rng: &mut dyn Rng) -> Self {
        Self { hello: Some(Random::draw(unix_time, rng)), reader: Reader::new(State::Hello) }
    }
}

impl Layer for TlsObfsServer {
    fn plan(&self, _now: Instant) -> Plan {
        let rest = Room { head: RECORD_HEADER, tail: 0, max_payload: MAX_RECORD };
        let head = if self.hello.is_some() { ANSWER_HEAD + 2 } else { RECORD_HEADER };
        Plan { first: Room { head, ..rest }, rest }
    }

    fn seal(
        &mut self,
        block: &mut [u8],
        payload: Range<usize>,
        _now: Instant,
    ) -> Result<Range<usize>, WireError> {
        let Some(hello) = self.hello.take() else { return Ok(seal_record(block, payload)) };
        let start = payload.start - ANSWER_HEAD - 2;
        let head = &mut block[start..payload.start];
        head[..11].copy_from_slice(&ANSWER_START);
        hello.emit(&mut head[11..76]);
        head[76..ANSWER_HEAD].copy_from_slice(&ANSWER_END);
        put_u16(head, ANSWER_HEAD, payload.len());
        Ok(start..payload.end)
    }

    fn has_pending(&self) -> bool {
        self.hello.is_some()
    }

    fn open(&mut self, wire: &mut RecvBuf, _now: Instant) -> Result<Opened, WireError> {
        self.reader.open(wire)
    }

    fn handle_transport_end(&mut self, unread: usize) -> Result<(), WireError> {
        self.reader.handle_transport_end(unread)
    }
}

fn put_u16(out: &mut [u8], at: usize, value: usize) {
    let value = u16::try_from(value).expect("lengths stay far below 64 KiB");
    out[at..at + 2].copy_from_slice(&value.to_be_bytes());
}

fn read_u16(bytes: &[u8], at: usize) -> usize {
    u16::from_be_bytes([bytes[at], bytes[at + 1]]).into()
}

fn seal_record(block: &mut [u8], payload: Range<usize>) -> Range<usize> {
    if payload.is_empty() {
        return payload;
    }
    let start = payload.start - RECORD_HEADER;
    let head = &mut block[start..payload.start];
    head[..3].copy_from_slice(&[0x17, 3, 3]);
    put_u16(head, 3, payload.len());
    start..payload.end
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    /// In front of the client's hello, up to the ticket.
    Hello,
    /// In its ticket, of which `left` bytes have not come; `rest` bytes follow up to the end of the record.
    Ticket { left: usize, rest: usize },
    /// Behind the ticket; that many bytes follow.
    HelloEnd(usize),
    /// In front of the server's answer.
    Answer,
    /// In front of a record.
    Header,
    /// In a record of which that many bytes have not come.
    Record(usize),
}

#[derive(Debug)]
struct Reader {
    state: State,
}

impl Reader {
    fn new(state: State) -> Self {
        Self { state }
    }

    fn open(&mut self, wire: &mut RecvBuf) -> Result<Opened, WireError> {
        loop {
            let missing = match self.state {
                State::Hello => self.on_hello(wire)?,
                State::HelloEnd(len) => self.on_hello_end(wire, len)?,
                State::Answer => self.on_answer(wire)?,
                State::Header => self.on_header(wire)?,
                State::Ticket { left: 0, rest } => {
                    self.state = State::HelloEnd(rest);
                    0
                }
                State::Record(0) => {
                    self.state = State::Header;
                    0
                }
                State::Ticket { left, .. } | State::Record(left) => match take(wire, left) {
                    Some(range) => return Ok(Opened::Payload(self.advance(range))),
                    None => 1,
                },
            };
            if missing > 0 {
                return Ok(Opened::NeedMore(missing));
            }
        }
    }

    /// Counts `range` as handed out.
    fn advance(&mut self, range: Range<usize>) -> Range<usize> {
        match &mut self.state {
            State::Ticket { left, .. } | State::Record(left) => *left -= range.len(),
            State::Hello | State::HelloEnd(_) | State::Answer | State::Header => {}
        }
        range
    }

    /// These and the other `on_*` return how many bytes they miss at least; 0: the state has moved on.
    fn on_hello(&mut self, wire: &mut RecvBuf) -> Result<usize, WireError> {
        let unread = wire.unread();
        check(unread, 0, &[0x16, 3], "start of tls obfs hello")?;
        if unread.len() < HELLO_HEAD {
            // A prober shows itself with the first bytes: do not ask for the whole hello before looking at them.
            return Ok(if unread.len() < 2 { 2 - unread.len() } else { HELLO_HEAD - unread.len() });
        }
        check(unread, 5, &[1, 0], "tls obfs handshake type")?;
        check(unread, 138, &[0, 0x23], "first tls obfs extension")?;
        let record = read_u16(unread, 3);
        let ticket = read_u16(unread, 140);
        let lengths =
            [(7, record.checked_sub(4)), (EXTENSIONS_AT, record.checked_sub(EXTENSIONS_AT + 2 - 5))];
        for (at, expected) in lengths {
            let got = read_u16(unread, at);
            if expected != Some(got) {
                return Err(WireError::Malformed { what: "length in tls obfs hello", got: got as u64 });
            }
        }
        // The length of the host follows from the length that is left for the other extensions; see on_hello_end.
        let rest = (RECORD_HEADER + record).checked_sub(HELLO_HEAD + ticket);
        let Some(rest) = rest.filter(|&rest| rest >= NAME_HEAD + HELLO_END.len()) else {
            return Err(WireError::Malformed { what: "ticket length in tls obfs hello", got: ticket as u64 });
        };
        wire.consume(HELLO_HEAD);
        self.state = State::Ticket { left: ticket, rest };
        Ok(0)
    }

    fn on_hello_end(&mut self, wire: &mut RecvBuf, len: usize) -> Result<usize, WireError> {
        let unread = wire.unread();
        if unread.len() < len {
            return Ok(len - unread.len());
        }
        let host = len - NAME_HEAD - HELLO_END.len();
        for (at, expected) in [(0, 0), (2, host + 5), (4, host + 3), (7, host)] {
            let got = read_u16(unread, at);
            if got != expected {
                return Err(WireError::Malformed { what: "server name in tls obfs hello", got: got as u64 });
            }
        }
        wire.consume(len);
        self.state = State::Header;
        Ok(0)
    }

    fn on_answer(&mut self, wire: &mut RecvBuf) -> Result<usize, WireError> {
        let unread = wire.unread();
        check(unread, 0, &ANSWER_START[..6], "start of tls obfs answer")?;
        check(unread, 96, &ANSWER_END[20..], "end of tls obfs answer")?;
        if unread.len() < ANSWER_HEAD + 2 {
            return Ok(ANSWER_HEAD + 2 - unread.len());
        }
        self.state = State::Record(read_u16(unread, ANSWER_HEAD));
        wire.consume(ANSWER_HEAD + 2);
        Ok(0)
    }

    fn on_header(&mut self, wire: &mut RecvBuf) -> Result<usize, WireError> {
        let unread = wire.unread();
        check(unread, 0, &[0x17, 3, 3], "tls obfs record")?;
        if unread.len() < RECORD_HEADER {
            return Ok(RECORD_HEADER - unread.len());
        }
        self.state = State::Record(read_u16(unread, 3));
        wire.consume(RECORD_HEADER);
        Ok(0)
    }

    fn handle_transport_end(&self, unread: usize) -> Result<(), WireError> {
        match self.state {
            State::Header | State::Record(0) if unread == 0 => Ok(()),
            State::Header | State::Record(_) => Err(WireError::Truncated { what: "tls obfs record" }),
            State::Hello | State::Ticket { .. } | State::HelloEnd(_) => {
                Err(WireError::Truncated { what: "tls obfs hello" })
            }
            State::Answer => Err(WireError::Truncated { what: "tls obfs answer" }),
        }
    }
}

/// Consumes up to `len` bytes; `None` if there are none.
fn take(wire: &mut RecvBuf, len: usize) -> Option<Range<usize>> {
    let len = len.min(wire.unread().len());
    let range = wire.position()..wire.position() + len;
    wire.consume(len);
    (!range.is_empty()).then_some(range)
}

/// Compares as many of the bytes at `at` with `expected` as there are.
fn check(bytes: &[u8], at: usize, expected: &[u8], what: &'static str) -> Result<(), WireError> {
    let found = bytes.get(at..).unwrap_or_default();
    match found.iter().zip(expected).find(|(got, want)| got != want) {
        Some((&got, _)) => Err(WireError::Malformed { what, got: got.into() }),
        None => Ok(()),
    }
}

/// Any bytes open to the same payload, or fail, whole as cut in two.
#[doc(hidden)]
pub fn fuzz_obfs_tls(data: &[u8]) {
    let Some((&choice, data)) = data.split_first() else { return };
    let reader = || Reader::new([State::Hello, State::Answer, State::Header][usize::from(choice % 3)]);
    let (first, second) = data.split_at(usize::from(choice / 3).min(data.len()));
    let whole = read_all(reader(), &[data]);
    assert_eq!(read_all(reader(), &[first, second]), whole, "cut at {}", first.len());
}

fn read_all(mut reader: Reader, pieces: &[&[u8]]) -> Result<Vec<u8>, WireError> {
    let mut wire = RecvBuf::with_len(pieces.iter().map(|piece| piece.len()).sum());
    let mut payload = Vec::new();
    for piece in pieces {
        wire.extend(piece);
        while let Opened::Payload(range) = reader.open(&mut wire)? {
            payload.extend_from_slice(&wire.block()[range]);
        }
    }
    Ok(payload)
}
