//! GoQuiet: a stream in the records of what looks like a resumed TLS 1.2 session, after a keyed client hello.
//!
//! ```text
//! C->S  client hello, 517 bytes, whose random proves the key: see [`hello`]
//! S->C  16 03 03 0051 | server hello (random, the client's session id) | 14 03 03 0001 01 | 16 03 03 0028 random
//! C->S  14 03 03 0001 01 | 16 03 03 0028 random
//! then, both ways
//!       17 03 03 | len u16be | stream                          len 10240 at most where it is sent
//! ```
//!
//! Nothing is enciphered or authenticated but the first 32 random bytes. A client that does not prove the key belongs
//! to a real web server: [`GoQuietServerStream::handshake`] then leaves every byte unread, to be passed on unchanged. Both ends call
//! `handshake` with the bytes that have come, send its output `out` at once, and go on until it returns
//! [`GoQuietHandshake::Done`]; from then on they are
//! layers. Observed from GoQuiet 013cdfd and the SSR libev fork e82f6d1; `docs/protocols/goquiet.md`.

mod hello;

use std::fmt;
use std::ops::Range;
use std::sync::Arc;
use std::time::Instant;

use thiserror::Error;
use zeroize::Zeroizing;

pub use self::hello::{BadServerName, Browser, UnknownBrowser};
use self::hello::{RANDOM_AT, RANDOM_LEN, SESSION_LEN, is_well_formed};
use crate::buf::RecvBuf;
use crate::crypto::stream::{
    BlockCipher, BlockMode, Direction, StreamAlgorithm, StreamCipherKey as CipherKey,
};
use crate::crypto::{Noise, sha256};
use crate::wire::{
    Layer, Opened, Plan, RECORD_HEAD, Records, Rng, SeenProofs, WireError, records_plan, seal_records,
};

/// Seconds in which a proof is good; see [`GoQuietServerConfig::with_tolerance`].
pub const PERIOD_S: u64 = 43_200;
/// Seconds between two tickets, where the configuration does not say otherwise.
pub const DEFAULT_TICKET_S: u64 = 3600;

/// Longest record that is sent (as the original).
const MAX_RECORD: usize = 10_240;
/// Longest record that is read: what TLS allows for enciphered ones.
const MAX_READ: usize = 16_384 + 2048;
/// Longest client hello that is waited for.
const MAX_HELLO: usize = 16_384 + RECORD_HEAD;
const CCS: [u8; 6] = [0x14, 3, 3, 0, 1, 1];
/// In front of 40 random bytes that pass for an enciphered Finished.
const FINISHED_HEAD: [u8; 5] = [0x16, 3, 3, 0, 40];
const FINISHED_LEN: usize = 40;
const ANSWER_HEAD: [u8; 11] = [0x16, 3, 3, 0, 0x51, 2, 0, 0, 0x4d, 3, 3];
const ANSWER_TAIL: [u8; 10] = [0xc0, 0x30, 0x00, 0x00, 0x05, 0xff, 0x01, 0x00, 0x01, 0x00];
/// Proofs that a server remembers at most.
const MAX_SEEN: usize = 1 << 18;

/// The key of both ends, from the text `Key` of a configuration (for an SSR server with `go_quiet`: its password).
#[derive(Clone)]
pub struct GoQuietKey {
    text: Arc<Zeroizing<Box<[u8]>>>,
    cipher: CipherKey,
}

impl GoQuietKey {
    /// Any text.
    pub fn new(text: &[u8]) -> Self {
        let algorithm = StreamAlgorithm::Block(BlockCipher::Aes256, BlockMode::Cfb);
        let cipher = CipherKey::new(algorithm, &*Zeroizing::new(sha256(&[text])));
        Self { text: Arc::new(Zeroizing::new(text.into())), cipher }
    }

    /// The plaintext of a proof for a period.
    fn goal(&self, period: u64) -> [u8; 16] {
        *sha256(&[period.to_string().as_bytes(), &self.text]).first_chunk().expect("16 of 32 bytes")
    }

    /// A client's random.
    fn prove(&self, unix_s: u64, rng: &mut dyn Rng) -> [u8; RANDOM_LEN] {
        let mut random = [0; RANDOM_LEN];
        let (iv, goal) = random.split_at_mut(16);
        rng.fill(iv);
        goal.copy_from_slice(&self.goal(unix_s / PERIOD_S));
        self.cipher.cipher(iv, Direction::Encrypt).apply(goal).expect("16 bytes");
        random
    }

    /// Whether `random` (32 bytes) proves the key in the period of one of `moments`.
    fn is_proof(&self, random: &[u8], moments: &[u64]) -> bool {
        let (iv, sealed) = random.split_at(16);
        let mut goal: [u8; 16] = sealed.try_into().expect("16 of 32 bytes");
        self.cipher.cipher(iv, Direction::Decrypt).apply(&mut goal).expect("16 bytes");
        moments.iter().any(|unix_s| self.goal(unix_s / PERIOD_S) == goal)
    }
}

/// Shows no key material.
impl fmt::Debug for GoQuietKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Key")
    }
}

/// Result of a handshake for the bytes so far.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum GoQuietHandshake {
    /// At least this many further bytes (never 0) are needed.
    NeedMore(usize),
    /// The stream can begin.
    Done,
}

/// State that all connections of one client share.
#[derive(Debug, Clone)]
pub struct GoQuietClientConfig {
    key: GoQuietKey,
    browser: Browser,
    server_name: Box<str>,
    ticket_s: u64,
    ticket_seed: [u8; 32],
}

impl GoQuietClientConfig {
    /// `ticket_s` is `TicketTimeHint` in seconds (never 0): hellos of one process share a ticket for so long. The seed of
    /// tickets comes from `rng`: make one configuration per process.
    ///
    /// # Errors
    /// [`BadServerName`] if the name does not fit into the hello.
    pub fn new(
        key: GoQuietKey,
        browser: Browser,
        server_name: &str,
        ticket_s: u64,
        rng: &mut dyn Rng,
    ) -> Result<Self, BadServerName> {
        browser.check(server_name)?;
        let mut ticket_seed = [0; 32];
        rng.fill(&mut ticket_seed);
        Ok(Self { key, browser, server_name: server_name.into(), ticket_s: ticket_s.max(1), ticket_seed })
    }
}

/// The client's end. Make it when there is something to send: a connection without data makes no handshake.
#[derive(Debug)]
pub struct GoQuietClientStream {
    hello: Option<Vec<u8>>,
    /// Leaves in front of the first record.
    finish: Vec<u8>,
    /// Records of the answer that have not come.
    awaited: u8,
    records: Records,
}

impl GoQuietClientStream {
    /// A connection that has sent nothing, begun at `unix_s`.
    pub fn new(config: &GoQuietClientConfig, unix_s: u64, rng: &mut dyn Rng) -> Self {
        let proof = config.key.prove(unix_s, rng);
        let mut ticket_rng = Noise::draw(&mut Seeded(sha256(&[
            &config.ticket_seed,
            &(unix_s / config.ticket_s).to_be_bytes(),
        ])));
        let hello = config.browser.hello(&proof, &config.server_name, &mut ticket_rng, rng);
        let mut finish = CCS.to_vec();
        put_finished(&mut finish, rng);
        Self { hello: Some(hello), finish, awaited: 3, records: Records::default() }
    }

    /// Sends the hello and waits for three records of any content.
    ///
    /// # Errors
    /// [`WireError::Malformed`] for what is no record of a handshake.
    pub fn handshake(
        &mut self,
        wire: &mut RecvBuf,
        out: &mut Vec<u8>,
    ) -> Result<GoQuietHandshake, WireError> {
        out.extend(self.hello.take().unwrap_or_default());
        while self.awaited > 0 {
            if let Some(missing) = skip_record(wire)? {
                return Ok(GoQuietHandshake::NeedMore(missing));
            }
            self.awaited -= 1;
        }
        Ok(GoQuietHandshake::Done)
    }
}

/// Hands out one seed.
struct Seeded([u8; 32]);

impl Rng for Seeded {
    fn fill(&mut self, out: &mut [u8]) {
        let len = out.len();
        out.copy_from_slice(&self.0[..len]);
    }
}

fn put_finished(out: &mut Vec<u8>, rng: &mut dyn Rng) {
    let mut random = [0; FINISHED_LEN];
    rng.fill(&mut random);
    out.extend(FINISHED_HEAD);
    out.extend(random);
}

/// Throws one record of a handshake away; `Some` says how many bytes are missing.
fn skip_record(wire: &mut RecvBuf) -> Result<Option<usize>, WireError> {
    let unread = wire.unread();
    let bad = |got: usize| WireError::Malformed { what: "record of a GoQuiet handshake", got: got as u64 };
    match unread.first() {
        None => return Ok(Some(RECORD_HEAD)),
        Some(0x14 | 0x16) => {}
        Some(other) => return Err(bad((*other).into())),
    }
    if unread.len() < RECORD_HEAD {
        return Ok(Some(RECORD_HEAD - unread.len()));
    }
    let len = RECORD_HEAD + usize::from(u16::from_be_bytes([unread[3], unread[4]]));
    if len > MAX_READ {
        return Err(bad(len));
    }
    if unread.len() < len {
        return Ok(Some(len - unread.len()));
    }
    wire.consume(len);
    Ok(None)
}

/// State that all connections of one listener share. Clones share their memory.
#[derive(Debug, Clone)]
pub struct GoQuietServerConfig {
    key: GoQuietKey,
    tolerance_s: u64,
    seen: Arc<SeenProofs>,
}

impl GoQuietServerConfig {
    /// A server that accepts proofs of the present period, and of its neighbour within 60 s of the border: clocks differ.
    /// The original accepts none of the neighbour.
    pub fn new(key: GoQuietKey) -> Self {
        Self { key, tolerance_s: 60, seen: Arc::new(SeenProofs::new(2 * PERIOD_S, MAX_SEEN)) }
    }

    /// Sets the tolerance for a client's clock, in seconds, below [`PERIOD_S`].
    #[must_use]
    pub fn with_tolerance(mut self, tolerance_s: u64) -> Self {
        self.tolerance_s = tolerance_s.min(PERIOD_S - 1);
        self
    }
}

/// Why a peer belongs to the web server.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Error)]
pub enum NotOurs {
    /// No client hello.
    #[error("not a TLS client hello")]
    NotTls,
    /// A hello of somebody who does not hold the key, or whose clock is off.
    #[error("the client hello does not prove the key (other key, clock off, or a browser)")]
    NoProof,
    /// A hello that has been accepted before.
    #[error("repeated client hello (a replay)")]
    Replay,
    /// The hello was good, what followed was not: there is no way back to the web server.
    #[error("broken handshake behind a good client hello")]
    Broken,
}

/// The server's end.
#[derive(Debug)]
pub struct GoQuietServerStream {
    config: GoQuietServerConfig,
    unix_s: u64,
    noise: Noise,
    /// Records of the client's finish that have not come; `None` before the hello.
    awaited: Option<u8>,
    records: Records,
}

impl GoQuietServerStream {
    /// A connection that has received nothing, accepted at `unix_s`.
    pub fn new(config: &GoQuietServerConfig, unix_s: u64, rng: &mut dyn Rng) -> Self {
        let (config, noise) = (config.clone(), Noise::draw(rng));
        Self { config, unix_s, noise, awaited: None, records: Records::default() }
    }

    /// Whether the client has proved the key.
    pub fn is_authenticated(&self) -> bool {
        self.awaited.is_some()
    }

    /// Waits for a whole hello (16 KiB at most; the caller bounds the time), answers it, then waits for the client's two
    /// records.
    ///
    /// # Errors
    /// [`NotOurs`]: but for [`NotOurs::Broken`], nothing of `wire` has been consumed, and all of it goes to the web server.
    pub fn handshake(&mut self, wire: &mut RecvBuf, out: &mut Vec<u8>) -> Result<GoQuietHandshake, NotOurs> {
        let mut awaited = match self.awaited {
            Some(awaited) => awaited,
            None => match self.open_hello(wire.unread())? {
                Ok(len) => {
                    let session = wire.unread()[RANDOM_AT + RANDOM_LEN + 1..][..SESSION_LEN].to_vec();
                    self.answer(&session, out);
                    wire.consume(len);
                    2
                }
                Err(missing) => return Ok(GoQuietHandshake::NeedMore(missing)),
            },
        };
        self.awaited = Some(awaited);
        while awaited > 0 {
            if let Some(missing) = skip_record(wire).map_err(|_| NotOurs::Broken)? {
                return Ok(GoQuietHandshake::NeedMore(missing));
            }
            awaited -= 1;
            self.awaited = Some(awaited);
        }
        Ok(GoQuietHandshake::Done)
    }

    /// The length of a good hello; `Err` inside says how many bytes are missing.
    fn open_hello(&self, unread: &[u8]) -> Result<Result<usize, usize>, NotOurs> {
        if unread.iter().zip([0x16, 3]).any(|(got, want)| *got != want) {
            return Err(NotOurs::NotTls);
        }
        if unread.len() < RECORD_HEAD {
            return Ok(Err(RECORD_HEAD - unread.len()));
        }
        let len = RECORD_HEAD + usize::from(u16::from_be_bytes([unread[3], unread[4]]));
        if len > MAX_HELLO {
            return Err(NotOurs::NotTls);
        }
        if unread.len() < len {
            return Ok(Err(len - unread.len()));
        }
        if !is_well_formed(&unread[RECORD_HEAD..len]) {
            return Err(NotOurs::NotTls);
        }
        let random = &unread[RANDOM_AT..RANDOM_AT + RANDOM_LEN];
        let (now, tolerance) = (self.unix_s, self.config.tolerance_s);
        if !self.config.key.is_proof(random, &[now, now.saturating_sub(tolerance), now + tolerance]) {
            return Err(NotOurs::NoProof);
        }
        if !self.config.seen.insert(random, now) {
            return Err(NotOurs::Replay);
        }
        Ok(Ok(len))
    }

    fn answer(&mut self, session: &[u8], out: &mut Vec<u8>) {
        let mut random = [0; RANDOM_LEN];
        self.noise.fill(&mut random);
        out.extend(ANSWER_HEAD);
        out.extend(random);
        out.push(0x20);
        out.extend(session);
        out.extend(ANSWER_TAIL);
        out.extend(CCS);
        put_finished(out, &mut self.noise);
    }
}

macro_rules! layer {
    ($name:ident, $head:expr) => {
        impl Layer for $name {
            fn plan(&self, _now: Instant) -> Plan {
                let head: fn(&Self) -> usize = $head;
                records_plan(head(self), MAX_RECORD)
            }

            fn seal(
                &mut self,
                block: &mut [u8],
                payload: Range<usize>,
                _now: Instant,
            ) -> Result<Range<usize>, WireError> {
                let head = if payload.is_empty() { Vec::new() } else { self.take_head() };
                Ok(seal_records(block, &head, payload, (MAX_RECORD, MAX_RECORD)))
            }

            fn open(&mut self, wire: &mut RecvBuf, _now: Instant) -> Result<Opened, WireError> {
                self.records.open(wire, MAX_READ)
            }

            fn handle_transport_end(&mut self, unread: usize) -> Result<(), WireError> {
                self.records.handle_transport_end(unread)
            }
        }
    };
}

impl GoQuietClientStream {
    fn take_head(&mut self) -> Vec<u8> {
        std::mem::take(&mut self.finish)
    }
}

impl GoQuietServerStream {
    fn take_head(&mut self) -> Vec<u8> {
        Vec::new()
    }
}

layer!(GoQuietClientStream, |client| client.finish.len());
layer!(GoQuietServerStream, |_| 0);

/// Fuzz target: a server refuses any bytes unread, whole as cut in two, unless they prove the key. A client reads any
/// answer and the records behind it alike whole and cut in two.
#[doc(hidden)]
pub fn fuzz_goquiet(data: &[u8]) {
    let Some((&cut, data)) = data.split_first() else { return };
    let run = |pieces: &[&[u8]]| {
        let config = GoQuietServerConfig::new(GoQuietKey::new(b"fuzz"));
        let mut server = GoQuietServerStream::new(&config, 1_800_000_000, &mut Seeded([7; 32]));
        let (mut wire, mut out) = (RecvBuf::with_len(data.len()), Vec::new());
        for piece in pieces {
            wire.extend(piece);
            match server.handshake(&mut wire, &mut out) {
                Ok(GoQuietHandshake::NeedMore(missing)) => assert!(missing > 0),
                Ok(GoQuietHandshake::Done) => return Ok(wire.unread().len()),
                Err(why) => {
                    assert!(
                        why == NotOurs::Broken || wire.position() == 0,
                        "all of it goes to the web server"
                    );
                    return Err(why);
                }
            }
        }
        Ok(usize::MAX)
    };
    let (first, second) = data.split_at(usize::from(cut).min(data.len()));
    assert_eq!(run(&[data]).is_err(), run(&[first, second]).is_err());
    assert_eq!(read_answer(&[data]), read_answer(&[first, second]));
}

/// The payload that a client reads behind its server's answer; `Err` if it finds an error.
fn read_answer(pieces: &[&[u8]]) -> Result<Vec<u8>, ()> {
    struct Sevens;
    impl Rng for Sevens {
        fn fill(&mut self, out: &mut [u8]) {
            out.fill(7);
        }
    }
    let random = &mut Sevens;
    let config = GoQuietClientConfig::new(
        GoQuietKey::new(b"fuzz"),
        Browser::Chrome,
        "a.example",
        DEFAULT_TICKET_S,
        random,
    )
    .expect("a name that fits");
    let mut client = GoQuietClientStream::new(&config, 1_800_000_000, random);
    let mut wire = RecvBuf::with_len(pieces.iter().map(|piece| piece.len()).sum());
    let (mut payload, mut is_done) = (Vec::new(), false);
    for piece in pieces {
        wire.extend(piece);
        is_done =
            is_done || client.handshake(&mut wire, &mut Vec::new()).map_err(drop)? == GoQuietHandshake::Done;
        while is_done
            && let Opened::Payload(range) = client.records.open(&mut wire, MAX_READ).map_err(drop)?
        {
            payload.extend_from_slice(&wire.block()[range]);
        }
    }
    Ok(payload)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn proofs_hold_for_their_period() {
        let key = GoQuietKey::new(b"k");
        let now = 1_800_000_000 / PERIOD_S * PERIOD_S;
        let config = GoQuietServerConfig::new(key.clone());
        let proof = key.prove(now - 1, &mut Seeded([1; 32]));
        let tolerant = |now: u64| key.is_proof(&proof, &[now, now - 60, now + config.tolerance_s]);
        assert!(key.is_proof(&proof, &[now - PERIOD_S]) && !key.is_proof(&proof, &[now]));
        assert!(tolerant(now + 59) && !tolerant(now + 60) && tolerant(now - PERIOD_S - 60));
    }
}
