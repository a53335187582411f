//! `tls1.2_ticket_auth`, `tls1.2_ticket_fastauth`: a TLS 1.2 session that is resumed by ticket, under a keyed random.
//!
//! ```text
//! client hello, one record
//!   16 03 01 | len | 01 00 len | 03 03 | AUTH 32 | 20 | session id 32 | suites | 01 00 | extensions
//! server's answer, one write
//!   16 03 03 0051 | 02 00 004d | 03 03 | AUTH 32 | 20 | session id 32 | c02f 00 | 0005 ff01 0001 00
//!   perhaps 16 03 03 | len | 04 00 len | ticket        SSRR 3.1.2 leaves the ticket away, not its lengths
//!   14 03 03 0001 01
//!   16 03 03 | 32 or 40 | random | H(all of the answer so far) 10
//! client's finish, in front of its first record
//!   14 03 03 0001 01 | 16 03 03 0020 | random 22 | H(the 33 bytes before) 10
//! then, both ways
//!   17 03 03 | len u16be | stream
//!
//!   AUTH = Unix time u32be | random 18 | H(the 22 bytes before) 10        H = first 10 of HMAC-SHA1(K | session id)
//! ```
//!
//! `tls1.2_ticket_fastauth` has the same bytes; its client sends hello, finish and first record in one flight, once it knows
//! that the server takes them so. Source: `docs/protocols/ssr.md`, 3.5.

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use super::{Shake, SsrHandshake, SsrObfsClientConfig, SsrObfsServerConfig, refuse};
use crate::buf::RecvBuf;
use crate::crypto::{HmacSha1, Noise};
use crate::ssr::refusal::{check_clock, low_32};
use crate::ssr::{Obfs, Refusal, SsrKey};
use crate::wire::{
    Opened, Plan, RECORD_HEAD, Records, Rng, SeenProofs, WireError, records_plan, seal_records,
};

/// Tolerance for a client's clock, in seconds, unless `obfs_param` gives another one.
pub const DEFAULT_WINDOW_S: u32 = 86_400;

/// Longest record that is sent, as long as those of peers. The libev client and shadowsocksr-native hand a whole record to a
/// protocol that keeps up to 8191 bytes of a packet, in a buffer of 16,384 bytes: longer ones end the connection there.
const MAX_RECORD: usize = 4096;
/// Longest record behind a client's finish. shadowsocksr-libev's server reads 2048 bytes and closes unless they have the
/// whole of it.
const FIRST_RECORD: usize = 1024;
/// Any length is read, as peers do.
const MAX_READ: usize = u16::MAX as usize;
const AUTH_LEN: usize = 32;
/// In front of the tag in AUTH.
const AUTH_HEAD: usize = 22;
const ID_LEN: usize = 32;
const TAG_LEN: usize = 10;
/// Offset of AUTH in both hellos, and of the session id's length.
const AUTH_AT: usize = 11;
const ID_AT: usize = AUTH_AT + AUTH_LEN;
/// A server hello, with its record.
const SERVER_HELLO: usize = 86;
const CCS: [u8; 6] = [0x14, 3, 3, 0, 1, 1];
/// Type and length of a ticket's message.
const TICKET_HEAD: usize = 4;
/// In the place of a ticket that is announced, but not sent: the records behind it. Tickets are random.
const BEHIND_NO_TICKET: [u8; 10] = [0x14, 3, 3, 0, 1, 1, 0x16, 3, 3, 0];
/// Longest answer that is accepted, and longest hello.
const MAX_ANSWER: usize = 4096;
/// The client's last two records.
const FINISH_LEN: usize = CCS.len() + RECORD_HEAD + 32;
/// A server takes no hello that is older than its start by more than this and half of the window, in seconds.
const START_SLACK_S: u64 = 1800;

/// Suites behind their length, compression methods.
const SUITES: [u8; 32] = [
    0x00, 0x1c, 0xc0, 0x2b, 0xc0, 0x2f, 0xcc, 0xa9, 0xcc, 0xa8, 0xcc, 0x14, 0xcc, 0x13, 0xc0, 0x0a, 0xc0,
    0x14, 0xc0, 0x09, 0xc0, 0x13, 0x00, 0x9c, 0x00, 0x35, 0x00, 0x2f, 0x00, 0x0a, 0x01, 0x00,
];
const BEFORE_NAME: [u8; 5] = [0xff, 0x01, 0x00, 0x01, 0x00];
/// Extended master secret.
const BEHIND_NAME: [u8; 4] = [0x00, 0x17, 0x00, 0x00];
const BEHIND_TICKET: [u8; 59] = [
    0x00, 0x0d, 0x00, 0x16, 0x00, 0x14, 0x06, 0x01, 0x06, 0x03, 0x05, 0x01, 0x05, 0x03, 0x04, 0x01, 0x04,
    0x03, 0x03, 0x01, 0x03, 0x03, 0x02, 0x01, 0x02, 0x03, // signature algorithms
    0x00, 0x05, 0x00, 0x05, 0x01, 0x00, 0x00, 0x00, 0x00, // status request
    0x00, 0x12, 0x00, 0x00, // signed certificate timestamps
    0x75, 0x50, 0x00, 0x00, // channel id
    0x00, 0x0b, 0x00, 0x02, 0x01, 0x00, // point formats
    0x00, 0x0a, 0x00, 0x06, 0x00, 0x04, 0x00, 0x17, 0x00, 0x18, // groups
];
const SERVER_HELLO_HEAD: [u8; AUTH_AT] = [0x16, 3, 3, 0, 0x51, 2, 0, 0, 0x4d, 3, 3];
const SERVER_HELLO_TAIL: [u8; 10] = [0xc0, 0x2f, 0x00, 0x00, 0x05, 0xff, 0x01, 0x00, 0x01, 0x00];

/// Session id of a client process: drawn once, shared by all connections to all servers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SessionId([u8; ID_LEN]);

impl SessionId {
    /// Draws 32 bytes.
    pub fn draw(rng: &mut dyn Rng) -> Self {
        let mut id = [0; ID_LEN];
        rng.fill(&mut id);
        Self(id)
    }
}

/// The key of both ends' tags.
struct Tags(HmacSha1);

impl Tags {
    fn new(key: &SsrKey, id: &[u8]) -> Self {
        Self(HmacSha1::new(&[key.bytes(), id]))
    }

    fn tag(&self, message: &[u8]) -> [u8; TAG_LEN] {
        *self.0.tag(message).first_chunk().expect("10 of 20 bytes")
    }

    fn auth(&self, unix_s: u64, rng: &mut dyn Rng) -> [u8; AUTH_LEN] {
        let mut auth = [0; AUTH_LEN];
        auth[..4].copy_from_slice(&low_32(unix_s).to_be_bytes());
        rng.fill(&mut auth[4..AUTH_HEAD]);
        let tag = self.tag(&auth[..AUTH_HEAD]);
        auth[AUTH_HEAD..].copy_from_slice(&tag);
        auth
    }

    /// Whether `auth` (32 bytes) was made under this key.
    fn proves(&self, auth: &[u8]) -> bool {
        self.tag(&auth[..AUTH_HEAD]) == auth[AUTH_HEAD..AUTH_LEN]
    }
}

impl std::fmt::Debug for Tags {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Tags")
    }
}

/// Appends `bytes` behind their length in two bytes.
fn put_sized(out: &mut Vec<u8>, bytes: &[u8]) {
    let len = u16::try_from(bytes.len()).expect("parts of a hello stay far below 64 KiB");
    out.extend(len.to_be_bytes());
    out.extend(bytes);
}

fn u16_at(bytes: &[u8], at: usize) -> usize {
    u16::from_be_bytes([bytes[at], bytes[at + 1]]).into()
}

fn client_hello(auth: &[u8; AUTH_LEN], id: &[u8; ID_LEN], host: &str, rng: &mut dyn Rng) -> Vec<u8> {
    let mut name = vec![0];
    put_sized(&mut name, host.as_bytes());
    let mut names = Vec::new();
    put_sized(&mut names, &name);
    let mut ticket = vec![0; 16 * (8 + rng.below(17) as usize)];
    rng.fill(&mut ticket);
    let mut extensions = BEFORE_NAME.to_vec();
    extensions.extend([0, 0]);
    put_sized(&mut extensions, &names);
    extensions.extend(BEHIND_NAME);
    extensions.extend([0x00, 0x23]);
    put_sized(&mut extensions, &ticket);
    extensions.extend(BEHIND_TICKET);
    let mut body = vec![3, 3];
    body.extend(auth);
    body.push(0x20);
    body.extend(id);
    body.extend(SUITES);
    put_sized(&mut body, &extensions);
    let mut message = vec![1, 0];
    put_sized(&mut message, &body);
    let mut record = vec![0x16, 3, 1];
    put_sized(&mut record, &message);
    record
}

/// An address is no server name: the field stays empty.
fn server_name(host: &str) -> &str {
    if host.ends_with(|last: char| last.is_ascii_digit()) { "" } else { host }
}

/// Whether one server takes hello, finish and records in one flight, as its answers have shown. shadowsocksr-native throws
/// away what comes in one read with a hello; shadowsocksr-libev closes.
#[derive(Debug, Default)]
pub(super) struct OneFlight(AtomicBool);

impl OneFlight {
    /// The length of the last record in half of the answers of SSRR and adit, which take one flight. shadowsocksr-native
    /// draws 32 to 39; shadowsocksr-libev has 32, and a tag that is wrong.
    const FINISH_LEN: u8 = 40;

    fn is_known(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }

    /// Looks at a whole answer.
    fn learn(&self, answer: &[u8], tags: &Tags) {
        let Some((signed, tag)) = answer.split_last_chunk::<TAG_LEN>() else { return };
        let head_at = signed.len().checked_sub(RECORD_HEAD + usize::from(Self::FINISH_LEN) - TAG_LEN);
        let is_long = head_at.is_some_and(|at| signed[at..].starts_with(&[0x16, 3, 3, 0, Self::FINISH_LEN]));
        if is_long && tags.tag(signed) == *tag {
            self.0.store(true, Ordering::Relaxed);
        }
    }

    /// A flight has stayed without an answer: another server may be there now.
    fn forget(&self) {
        self.0.store(false, Ordering::Relaxed);
    }
}

/// The client's end.
#[derive(Debug)]
pub(super) struct SsrTlsClient {
    tags: Tags,
    session: Arc<SessionId>,
    hello: Option<Vec<u8>>,
    /// Leaves in front of the first record.
    head: Vec<u8>,
    /// With `tls1.2_ticket_fastauth`.
    one_flight: Option<Arc<OneFlight>>,
    is_eager: bool,
    is_answered: bool,
    records: Records,
}

impl SsrTlsClient {
    pub(super) fn new(config: &SsrObfsClientConfig, unix_s: u64, rng: &mut dyn Rng) -> Self {
        let session = Arc::clone(&config.session);
        let tags = Tags::new(&config.key, &session.0);
        let auth = tags.auth(unix_s, rng);
        let hello = client_hello(&auth, &session.0, server_name(config.host(rng)), rng);
        let finish = finish(&tags, rng);
        let one_flight = (config.kind == Obfs::TlsTicketFastauth).then(|| Arc::clone(&config.one_flight));
        let is_eager = one_flight.as_ref().is_some_and(|one_flight| one_flight.is_known());
        let (hello, head) = if is_eager { (None, [hello, finish].concat()) } else { (Some(hello), finish) };
        Self {
            tags,
            session,
            hello,
            head,
            one_flight,
            is_eager,
            is_answered: false,
            records: Records::default(),
        }
    }

    pub(super) fn handshake(
        &mut self,
        wire: &mut RecvBuf,
        out: &mut Vec<u8>,
    ) -> Result<SsrHandshake, WireError> {
        if self.is_eager {
            return Ok(SsrHandshake::Done);
        }
        out.extend(self.hello.take().unwrap_or_default());
        Ok(self.open_answer(wire)?.map_or(SsrHandshake::Done, SsrHandshake::NeedMore))
    }

    /// Takes the server's answer off `wire`; `Some` says how many bytes are missing.
    fn open_answer(&mut self, wire: &mut RecvBuf) -> Result<Option<usize>, WireError> {
        if self.is_answered {
            return Ok(None);
        }
        let unread = wire.unread();
        for (at, want) in SERVER_HELLO_HEAD.iter().enumerate() {
            match unread.get(at) {
                None => return Ok(Some(SERVER_HELLO - unread.len())),
                Some(got) if got != want => return Err(bad("server hello", *got)),
                Some(_) => {}
            }
        }
        if unread.len() < SERVER_HELLO {
            return Ok(Some(SERVER_HELLO - unread.len()));
        }
        if !self.tags.proves(&unread[AUTH_AT..ID_AT])
            || usize::from(unread[ID_AT]) != ID_LEN
            || unread[ID_AT + 1..ID_AT + 1 + ID_LEN] != self.session.0
        {
            return Err(WireError::Authentication { what: "server hello" });
        }
        let end = match answer_end(unread)? {
            Ok(end) => end,
            Err(missing) => return Ok(Some(missing)),
        };
        // The hello has proven the key. shadowsocksr-libev's server signs its last 10 bytes before it has written them, so
        // that nobody can check its end; the C clients do not look at it.
        if let Some(one_flight) = &self.one_flight {
            one_flight.learn(&unread[..end], &self.tags);
        }
        wire.consume(end);
        self.is_answered = true;
        Ok(None)
    }

    pub(super) fn plan(&self) -> Plan {
        let is_first = !self.head.is_empty();
        records_plan(self.head.len() + if is_first { RECORD_HEAD } else { 0 }, MAX_RECORD)
    }

    pub(super) fn seal(&mut self, block: &mut [u8], payload: Range<usize>) -> Range<usize> {
        if payload.is_empty() {
            return payload;
        }
        let head = std::mem::take(&mut self.head);
        let first = if head.is_empty() { MAX_RECORD } else { FIRST_RECORD };
        seal_records(block, &head, payload, (first, MAX_RECORD))
    }

    pub(super) fn open(&mut self, wire: &mut RecvBuf) -> Result<Opened, WireError> {
        match self.open_answer(wire)? {
            Some(missing) => Ok(Opened::NeedMore(missing)),
            None => self.records.open(wire, MAX_READ),
        }
    }

    pub(super) fn handle_transport_end(&self, unread: usize) -> Result<(), WireError> {
        if self.is_answered { self.records.handle_transport_end(unread) } else { Err(TRUNCATED) }
    }
}

impl Drop for SsrTlsClient {
    fn drop(&mut self) {
        if let Some(one_flight) = &self.one_flight
            && self.is_eager
            && !self.is_answered
        {
            one_flight.forget();
        }
    }
}

const TRUNCATED: WireError = WireError::Truncated { what: "tls handshake" };

fn bad(what: &'static str, got: u8) -> WireError {
    WireError::Malformed { what, got: got.into() }
}

/// The end of the answer: behind the record that follows the change of ciphers. `Err` inside is the number of missing
/// bytes.
///
/// SSRR 3.1.2 announces a ticket in one answer of nine and does not send it. A client that waits for the ticket waits for
/// ever: an answer that goes on in the ticket's place is taken as it is. The tag at its end covers it either way.
fn answer_end(unread: &[u8]) -> Result<Result<usize, usize>, WireError> {
    let mut at = SERVER_HELLO;
    let mut is_changed = false;
    loop {
        let Some(head) = unread.get(at..at + RECORD_HEAD) else {
            return Ok(Err(at + RECORD_HEAD - unread.len()));
        };
        let end = at + RECORD_HEAD + u16_at(head, 3);
        if head[1] != 3 || end > MAX_ANSWER {
            return Err(bad("record of the server's handshake", head[1]));
        }
        if head[0] == 0x16 && !is_changed {
            let ticket_at = at + RECORD_HEAD + TICKET_HEAD;
            let Some(next) = unread.get(ticket_at..ticket_at + BEHIND_NO_TICKET.len()) else {
                return Ok(Err(ticket_at + BEHIND_NO_TICKET.len() - unread.len()));
            };
            if next == BEHIND_NO_TICKET {
                at = ticket_at;
                continue;
            }
        }
        if unread.len() < end {
            return Ok(Err(end - unread.len()));
        }
        match head[0] {
            0x14 => is_changed = true,
            0x16 if is_changed && end - at >= RECORD_HEAD + TAG_LEN => return Ok(Ok(end)),
            0x16 if !is_changed => {}
            other => return Err(bad("record of the server's handshake", other)),
        }
        at = end;
    }
}

fn finish(tags: &Tags, rng: &mut dyn Rng) -> Vec<u8> {
    let mut finish = CCS.to_vec();
    finish.extend([0x16, 3, 3, 0, 32]);
    let mut random = [0; AUTH_HEAD];
    rng.fill(&mut random);
    finish.extend(random);
    let tag = tags.tag(&finish);
    finish.extend(tag);
    finish
}

/// The server's end.
#[derive(Debug)]
pub(super) struct SsrTlsServer {
    /// Until the client's finish has come.
    shaking: Option<Box<Shaking>>,
    records: Records,
}

/// The server's part in the handshake.
#[derive(Debug)]
struct Shaking {
    key: SsrKey,
    is_compatible: bool,
    window_s: u32,
    started_s: u64,
    unix_s: u64,
    seen: Arc<SeenProofs>,
    noise: Noise,
    /// The client has proved the key.
    tags: Option<Tags>,
}

impl SsrTlsServer {
    pub(super) fn new(config: &SsrObfsServerConfig, unix_s: u64, rng: &mut dyn Rng) -> Self {
        let shaking = Shaking {
            key: config.key.clone(),
            is_compatible: config.is_compatible,
            window_s: config.window_s,
            started_s: config.started_s,
            unix_s,
            seen: Arc::clone(&config.seen),
            noise: Noise::draw(rng),
            tags: None,
        };
        Self { shaking: Some(Box::new(shaking)), records: Records::default() }
    }

    pub(super) fn handshake(&mut self, wire: &mut RecvBuf, out: &mut Vec<u8>) -> Result<Shake, Refusal> {
        let Some(shaking) = &mut self.shaking else { return Ok(Shake::Done) };
        let shake = shaking.handshake(wire, out)?;
        if shake == Shake::Done {
            self.shaking = None;
        }
        Ok(shake)
    }

    pub(super) fn plan(&self) -> Plan {
        records_plan(0, MAX_RECORD)
    }

    pub(super) fn seal(&self, block: &mut [u8], payload: Range<usize>) -> Range<usize> {
        seal_records(block, &[], payload, (MAX_RECORD, MAX_RECORD))
    }

    pub(super) fn open(&mut self, wire: &mut RecvBuf) -> Result<Opened, WireError> {
        self.records.open(wire, MAX_READ)
    }

    pub(super) fn handle_transport_end(&self, unread: usize) -> Result<(), WireError> {
        match self.shaking {
            None => self.records.handle_transport_end(unread),
            Some(_) => Err(TRUNCATED),
        }
    }
}

impl Shaking {
    fn handshake(&mut self, wire: &mut RecvBuf, out: &mut Vec<u8>) -> Result<Shake, Refusal> {
        let tags = match self.tags.take() {
            Some(tags) => tags,
            None => match self.open_hello(wire.unread()) {
                Ok(Ok((len, tags))) => {
                    let id = &wire.unread()[ID_AT + 1..ID_AT + 1 + ID_LEN];
                    out.extend(self.answer(&tags, id));
                    wire.consume(len);
                    tags
                }
                Ok(Err(missing)) => return Ok(Shake::NeedMore(missing)),
                Err(refusal) => return refuse(self.is_compatible, refusal),
            },
        };
        let missing = open_finish(&tags, wire);
        self.tags = Some(tags);
        Ok(missing?.map_or(Shake::Done, Shake::NeedMore))
    }

    /// Checks a hello: its length and the client's tags. `Err` inside says how many bytes are missing.
    fn open_hello(&self, unread: &[u8]) -> Result<Result<(usize, Tags), usize>, Refusal> {
        const NOT_TLS: Refusal = Refusal::Obfs { what: "client hello" };
        if unread.iter().zip([0x16, 3, 1]).any(|(got, want)| *got != want) {
            return Err(NOT_TLS);
        }
        if unread.len() < RECORD_HEAD {
            return Ok(Err(RECORD_HEAD - unread.len()));
        }
        let len = RECORD_HEAD + u16_at(unread, 3);
        if !(ID_AT + 1 + ID_LEN..=MAX_ANSWER).contains(&len) {
            return Err(NOT_TLS);
        }
        if unread.len() < len {
            return Ok(Err(len - unread.len()));
        }
        let is_hello = unread[5..7] == [1, 0] && u16_at(unread, 7) == len - 9 && unread[9..11] == [3, 3];
        if !is_hello || usize::from(unread[ID_AT]) < ID_LEN {
            return Err(NOT_TLS);
        }
        let tags = Tags::new(&self.key, &unread[ID_AT + 1..ID_AT + 1 + ID_LEN]);
        let auth = &unread[AUTH_AT..ID_AT];
        if !tags.proves(auth) {
            return Err(Refusal::WrongKey);
        }
        self.check_time(u32::from_be_bytes([auth[0], auth[1], auth[2], auth[3]]))?;
        if !self.seen.insert(&auth[..AUTH_HEAD], self.unix_s) {
            return Err(Refusal::Replay);
        }
        Ok(Ok((len, tags)))
    }

    fn check_time(&self, client_s: u32) -> Result<(), Refusal> {
        if self.window_s == 0 {
            return Ok(());
        }
        check_clock(client_s, self.unix_s, self.window_s)?;
        let earliest = self.started_s.saturating_sub(START_SLACK_S + u64::from(self.window_s / 2));
        let is_old = client_s.wrapping_sub(low_32(earliest)).cast_signed() < 0;
        if earliest > 0 && is_old { Err(Refusal::Replay) } else { Ok(()) }
    }

    fn answer(&mut self, tags: &Tags, id: &[u8]) -> Vec<u8> {
        let mut answer = SERVER_HELLO_HEAD.to_vec();
        answer.extend(tags.auth(self.unix_s, &mut self.noise));
        answer.push(0x20);
        answer.extend(id);
        answer.extend(SERVER_HELLO_TAIL);
        if self.noise.below(9) == 0 {
            let mut ticket = vec![0; 64 + 2 * self.noise.below(164) as usize];
            self.noise.fill(&mut ticket);
            let mut message = vec![4, 0];
            put_sized(&mut message, &ticket);
            answer.extend([0x16, 3, 3]);
            put_sized(&mut answer, &message);
        }
        answer.extend(CCS);
        let finish_len = if self.noise.below(2) == 0 { 32 } else { 40 };
        answer.extend([0x16, 3, 3, 0, finish_len]);
        let mut random = [0; 30];
        let random = &mut random[..usize::from(finish_len) - TAG_LEN];
        self.noise.fill(random);
        answer.extend_from_slice(random);
        let tag = tags.tag(&answer);
        answer.extend(tag);
        answer
    }
}

/// Takes the client's finish off `wire`; `Some` says how many bytes are missing.
fn open_finish(tags: &Tags, wire: &mut RecvBuf) -> Result<Option<usize>, Refusal> {
    const BAD: Refusal = Refusal::Malformed { what: "end of the client's handshake" };
    let unread = wire.unread();
    // Its length is fixed: only the tag can be wrong otherwise.
    let expected = [&CCS[..], &[0x16, 3, 3, 0]].concat();
    if unread.iter().zip(&expected).any(|(got, want)| got != want) {
        return Err(BAD);
    }
    let Some(len) = unread.get(expected.len()) else { return Ok(Some(FINISH_LEN - unread.len())) };
    let end = expected.len() + 1 + usize::from(*len);
    if usize::from(*len) < TAG_LEN {
        return Err(BAD);
    }
    if unread.len() < end {
        return Ok(Some(end - unread.len()));
    }
    let (signed, tag) = unread[..end].split_at(end - TAG_LEN);
    if tags.tag(signed) != *tag {
        return Err(BAD);
    }
    wire.consume(end);
    Ok(None)
}

#[cfg(test)]
mod tests;
