//! smux, versions 1 and 2: many streams in one.
//!
//! ```text
//! 0 version u8 | 1 command u8 | 2 length u16 | 4 stream u32 | 8 payload          little-endian
//!
//! 0 SYN, 1 FIN, 3 NOP: length 0       2 PSH: data
//! 4 UPD (version 2): consumed u32, window u32: bytes of the stream that have been read in all, and how many more than
//!   these may be sent
//! ```
//!
//! The length comes before the stream. Clients open odd streams from 3, servers even ones from 2; SYN needs no answer
//! and data may follow at once. There is no reset: after FIN all further data of the stream is thrown away. Before the
//! first UPD a sender assumes a window of 262144 bytes. Version 1 has no windows, so that one reader who stands still
//! stops all streams once the session's buffer is full.
//!
//! # The order of calls
//!
//! Bytes of the carrier go to [`Mux::handle_input`], which takes fewer than it was given when the session's buffer is
//! full; offer the rest again after [`Mux::recv`]. Then call [`Mux::poll_event`] until it gives nothing. After any call,
//! and when [`Mux::poll_timeout`] has passed, [`Mux::poll_transmit`] has bytes for the carrier. Ask for few at a time,
//! when the carrier can send them: what it queues, no stream can overtake.
//!
//! # Between two adits
//!
//! No program looks at the stream of a NOP (smux 1.5.16 to 1.5.57). With [`SmuxSettings::signals`] a client begins with a NOP
//! whose stream is `HELLO`, and a server answers one with the same. From then on each end knows that the other keeps
//! reading after FIN, and a NOP with the number of a stream says that its sender has broken that stream off: FIN follows,
//! and the reader gets [`SmuxReceived::Reset`] instead of an end.
//!
//! # Fairness
//!
//! Control frames go first, then streams that had nothing to send and have some of their quantum left, then the others
//! in turn, a quantum each (deficit round robin): a bulk stream does not delay an interactive one by more than one frame.
//!
//! Sources: smux 1.5.16, 1.5.52 and 1.5.57, and recorded sessions of kcptun (`testdata/kcp`).

mod frame;
mod stream;

use std::collections::{BTreeMap, VecDeque};
use std::time::{Duration, Instant};

use self::frame::UPDATE_LEN;
use self::stream::{ASSUMED_WINDOW, Output, Stream, StreamWindow};
use crate::wire::WireError;

pub use self::frame::{FRAME_HEADER_LEN, SmuxCommand, SmuxHeader, SmuxVersion};

/// Bytes that a stream may send in its turn. It is also the most that a frame carries: interactive streams wait
/// for one.
const QUANTUM: usize = 8192;

/// Window of a stream whose window may grow, while there is plenty, in bytes: with less, the first round trips of a
/// long path are spent on asking for more.
const FIRST_WINDOW: u32 = 1 << 20;

/// Bytes that a stream may have waiting to be sent even when the others have used up the rest.
const LEAST_SENDING: usize = 4096;

/// Bytes that a stream costs besides the data that waits in it: here, and in the code that uses it.
const PER_STREAM: usize = 2048;

/// Stream of the NOP by which adit makes itself known: an even number that no session comes to.
const HELLO: u32 = 0x6164_6974;

/// Control frames that may wait for the carrier: twice what every stream could need at once.
const CONTROL_PER_STREAM: usize = 2;

/// Settings of a session.
#[derive(Debug, Clone)]
pub struct SmuxSettings {
    /// Version of the protocol.
    pub version: SmuxVersion,
    /// Longest payload of a frame, 1 to 65535; above 8192 has no effect.
    pub max_frame: usize,
    /// Bytes that may wait for all readers together before the carrier is not read.
    pub receive_buffer: usize,
    /// Window of a new stream, in bytes; at most half of 2^32.
    pub stream_window: u32,
    /// Upper bound to which a window may grow; equal to `stream_window` for one that stays.
    pub max_stream_window: u32,
    /// Bytes that wait in one stream to be sent, at most.
    pub send_buffer: usize,
    /// Bytes that wait in all streams together, at most; each may have 4 KiB even if the others have used up the rest.
    pub send_buffers: usize,
    /// Streams at one time, opened by either side; those of the peer beyond are ended at once.
    pub max_streams: usize,
    /// Between signs of life; zero for none.
    pub keep_alive: Duration,
    /// Without any frame for this long, and up to twice as long, the peer is gone; zero for never.
    pub keep_alive_timeout: Duration,
    /// Whether adit makes itself known to the peer, which other programs do not notice.
    pub signals: bool,
}

impl Default for SmuxSettings {
    fn default() -> Self {
        Self {
            version: SmuxVersion::V2,
            max_frame: QUANTUM,
            receive_buffer: 4 << 20,
            stream_window: ASSUMED_WINDOW,
            max_stream_window: 4 << 20,
            send_buffer: 64 << 10,
            send_buffers: 4 << 20,
            max_streams: 1024,
            keep_alive: Duration::from_secs(10),
            keep_alive_timeout: Duration::from_secs(30),
            signals: false,
        }
    }
}

/// The end of the session that this is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SmuxRole {
    /// Opens odd streams.
    Client,
    /// Opens even streams.
    Server,
}

/// The number of a stream.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct StreamId(u32);

impl StreamId {
    /// As it is on the wire.
    pub fn get(self) -> u32 {
        self.0
    }
}

/// An event of a stream.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SmuxEvent {
    /// The peer has opened it.
    Opened(StreamId),
    /// There is something to read, or the end: [`Mux::recv`] until it gives nothing.
    Readable(StreamId),
    /// There is room again, after [`Mux::send`] has taken less than it was given.
    Writable(StreamId),
}

/// Result of [`Mux::recv`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SmuxReceived {
    /// So many bytes.
    Bytes(usize),
    /// Nothing yet.
    Empty,
    /// The peer sends no more, or the stream does not exist.
    End,
    /// The peer has broken the stream off: what has come is not all.
    Reset,
}

/// One session.
#[derive(Debug)]
pub struct Mux {
    settings: SmuxSettings,
    streams: BTreeMap<u32, Stream>,
    next_id: Option<u32>,
    peer_parity: u32,
    parser: Parser,
    /// Frames without data that wait for the carrier. One UPD per stream: it is made when it leaves.
    control: VecDeque<(SmuxCommand, u32)>,
    /// Streams with something to send that had nothing before and have not used their quantum, and the others.
    fresh: VecDeque<u32>,
    turns: VecDeque<u32>,
    /// Bytes of payload sent in all.
    emitted: u64,
    events: VecDeque<SmuxEvent>,
    /// Bytes that wait for readers.
    unread: usize,
    /// Room that they take.
    reserved: usize,
    /// Bytes that wait to be sent.
    unsent: usize,
    /// Sum of the windows of all streams.
    promised: usize,
    round_trip: Duration,
    next_nop_at: Instant,
    next_check_at: Instant,
    heard: bool,
    gone: bool,
    /// The peer has made itself known as adit.
    peer_signals: bool,
}

/// Position of the input in a frame.
#[derive(Debug)]
enum Parser {
    Header([u8; FRAME_HEADER_LEN], usize),
    Data { stream: u32, left: usize },
    Update { stream: u32, bytes: [u8; UPDATE_LEN], len: usize },
}

impl Parser {
    const START: Self = Self::Header([0; FRAME_HEADER_LEN], 0);
}

impl Mux {
    /// A session that begins at `now`.
    pub fn new(role: SmuxRole, settings: SmuxSettings, now: Instant) -> Self {
        let (next_id, peer_parity) = match role {
            SmuxRole::Client => (3, 0),
            SmuxRole::Server => (2, 1),
        };
        let hello = (role == SmuxRole::Client && settings.signals).then_some((SmuxCommand::Nop, HELLO));
        Self {
            next_nop_at: now + settings.keep_alive,
            next_check_at: now + settings.keep_alive_timeout,
            settings,
            streams: BTreeMap::new(),
            next_id: Some(next_id),
            peer_parity,
            parser: Parser::START,
            control: hello.into_iter().collect(),
            fresh: VecDeque::new(),
            turns: VecDeque::new(),
            emitted: 0,
            events: VecDeque::new(),
            unread: 0,
            reserved: 0,
            unsent: 0,
            promised: 0,
            round_trip: Duration::from_millis(100),
            heard: false,
            gone: false,
            peer_signals: false,
        }
    }

    /// Whether the peer is known to keep reading after FIN, and to tell a break from an end.
    pub fn peer_signals(&self) -> bool {
        self.peer_signals
    }

    /// Whether the peer has broken a stream off.
    pub fn is_reset(&self, id: StreamId) -> bool {
        self.streams.get(&id.0).is_some_and(|stream| stream.reset)
    }

    /// Breaks a stream off: [`Mux::close`], and a peer that is known as adit is told that it was no orderly end.
    pub fn abort(&mut self, id: StreamId) {
        if self.peer_signals && self.streams.get(&id.0).is_some_and(|stream| stream.output != Output::Ended) {
            self.control.push_back((SmuxCommand::Nop, id.0));
        }
        self.close(id);
    }

    /// Opens a stream.
    ///
    /// # Errors
    /// [`WireError::Exhausted`] when there are too many, or numbers have run out: then the session is to be replaced.
    pub fn open(&mut self) -> Result<StreamId, WireError> {
        if self.streams.len() >= self.settings.max_streams {
            return Err(WireError::Exhausted { what: "smux streams" });
        }
        let id = self.next_id.ok_or(WireError::Exhausted { what: "smux stream numbers" })?;
        self.next_id = id.checked_add(2);
        self.control.push_back((SmuxCommand::Syn, id));
        self.add(id);
        Ok(StreamId(id))
    }

    /// Queues the first bytes of `data`; returns how many. None once the direction has been ended.
    pub fn send(&mut self, id: StreamId, data: &[u8]) -> usize {
        let len = data.len().min(self.room(id));
        let Some(stream) = self.streams.get_mut(&id.0) else { return 0 };
        if stream.output != Output::Open {
            return 0;
        }
        stream.sending.extend(&data[..len]);
        stream.starved |= len < data.len();
        self.unsent += len;
        self.schedule(id.0);
        len
    }

    /// Bytes that [`Mux::send`] would take of a stream whose direction is open.
    pub fn room(&self, id: StreamId) -> usize {
        let waiting = self.streams.get(&id.0).map_or(0, |stream| stream.sending.len());
        let shared = self.settings.send_buffers.saturating_sub(self.unsent);
        let own = self.settings.send_buffer.saturating_sub(waiting);
        own.min(shared.max(LEAST_SENDING.saturating_sub(waiting)))
    }

    /// Asks for [`SmuxEvent::Writable`] once there is room again, as [`Mux::send`] does when it takes less than it is given.
    pub fn wait_writable(&mut self, id: StreamId) {
        if let Some(stream) = self.streams.get_mut(&id.0) {
            stream.starved = true;
        }
    }

    /// Whether [`Mux::recv`] would give something, the end included; if not, [`SmuxEvent::Readable`] will come.
    pub fn is_readable(&mut self, id: StreamId) -> bool {
        let Some(stream) = self.streams.get_mut(&id.0) else { return true };
        if stream.receiving.is_empty() && !stream.ended {
            stream.announced = false;
            return false;
        }
        true
    }

    /// Whether the peer has said that it will send no more on a stream, or the stream does not exist.
    pub fn has_ended(&self, id: StreamId) -> bool {
        self.streams.get(&id.0).is_none_or(|stream| stream.ended)
    }

    /// Whether a stream has something to send that the peer's window does not let through.
    pub fn is_held_back(&self, id: StreamId) -> bool {
        self.settings.version == SmuxVersion::V2
            && self.streams.get(&id.0).is_some_and(|stream| {
                !stream.sending.is_empty() && stream.allowance().is_none_or(|allowance| allowance == 0)
            })
    }

    /// Streams for which [`Mux::is_held_back`] holds.
    pub fn held_back(&self) -> usize {
        self.streams.keys().filter(|id| self.is_held_back(StreamId(**id))).count()
    }

    /// The widest window that the peer has been given.
    pub fn widest_window(&self) -> u32 {
        self.streams.values().map(|stream| stream.window.size()).max().unwrap_or_default()
    }

    /// Bytes that wait for readers.
    pub fn unread(&self) -> usize {
        self.unread
    }

    /// Sends no more on a stream, once what is queued has left. Reading goes on; but peers before smux 1.5.54, and the
    /// programs on top of them, close the whole stream when they read its end.
    pub fn finish(&mut self, id: StreamId) {
        if let Some(stream) = self.streams.get_mut(&id.0)
            && stream.output == Output::Open
        {
            stream.output = Output::Ending;
            self.schedule(id.0);
        }
    }

    /// Forgets a stream: data that waits to be read is dropped and later data is thrown away. Queued data is dropped as
    /// well, save by a stream that has been finished before.
    pub fn close(&mut self, id: StreamId) {
        let Some(stream) = self.streams.get_mut(&id.0) else { return };
        self.unread -= stream.receiving.len();
        self.reserved -= stream.receiving.capacity();
        stream.receiving = VecDeque::new();
        stream.ended = true;
        stream.announced = true;
        if stream.output == Output::Open {
            self.unsent -= stream.sending.len();
            stream.sending = VecDeque::new();
            stream.output = Output::Ending;
            self.schedule(id.0);
        }
        self.remove_if_over(id.0);
    }

    /// Reads into `out`.
    pub fn recv(&mut self, id: StreamId, out: &mut [u8], now: Instant) -> SmuxReceived {
        let Some(stream) = self.streams.get_mut(&id.0) else { return SmuxReceived::End };
        if stream.receiving.is_empty() {
            stream.announced = false;
            let found = match (stream.reset, stream.ended) {
                (true, _) => SmuxReceived::Reset,
                (false, true) => SmuxReceived::End,
                (false, false) => SmuxReceived::Empty,
            };
            self.remove_if_over(id.0);
            return found;
        }
        let len = out.len().min(stream.receiving.len());
        let (front, back) = stream.receiving.as_slices();
        let from_front = len.min(front.len());
        out[..from_front].copy_from_slice(&front[..from_front]);
        out[from_front..len].copy_from_slice(&back[..len - from_front]);
        stream.receiving.drain(..len);
        let before = stream.receiving.capacity();
        stream.give_back();
        self.reserved -= before - stream.receiving.capacity();
        self.unread -= len;
        if self.settings.version == SmuxVersion::V2 {
            self.update_window(id.0, len, now);
        }
        SmuxReceived::Bytes(len)
    }

    /// Takes bytes from the carrier; returns how many. Fewer than given means that readers are behind.
    ///
    /// # Errors
    /// [`WireError::Malformed`] for what the format forbids: the session is then over.
    pub fn handle_input(&mut self, input: &[u8]) -> Result<usize, WireError> {
        let mut rest = input;
        while !rest.is_empty() && self.unread < self.settings.receive_buffer {
            let len = match &mut self.parser {
                Parser::Header(bytes, len) => {
                    let taken = fill(bytes, len, rest);
                    if *len == FRAME_HEADER_LEN {
                        let header = SmuxHeader::parse(*bytes, self.settings.version)?;
                        self.handle_header(header);
                    }
                    taken
                }
                Parser::Data { stream, left } => {
                    let taken = rest.len().min(*left);
                    let (stream, is_last) = (*stream, taken == *left);
                    *left -= taken;
                    self.handle_data(stream, &rest[..taken]);
                    if is_last {
                        self.parser = Parser::START;
                    }
                    taken
                }
                Parser::Update { stream, bytes, len } => {
                    let taken = fill(bytes, len, rest);
                    if *len == UPDATE_LEN {
                        let (stream, bytes) = (*stream, *bytes);
                        self.parser = Parser::START;
                        self.handle_update(stream, bytes)?;
                    }
                    taken
                }
            };
            rest = &rest[len..];
        }
        Ok(input.len() - rest.len())
    }

    /// The next event.
    pub fn poll_event(&mut self) -> Option<SmuxEvent> {
        self.events.pop_front()
    }

    /// Appends frames to `out` until it has grown by `enough` bytes; the last frame goes beyond. False if there was
    /// nothing to send.
    pub fn poll_transmit(&mut self, out: &mut Vec<u8>, enough: usize) -> bool {
        let start = out.len();
        while out.len() - start < enough {
            if let Some((command, id)) = self.control.pop_front() {
                self.emit_control(command, id, out);
            } else if !self.emit_next(out) {
                break;
            }
        }
        out.len() > start
    }

    /// Whether [`Mux::poll_transmit`] may have something.
    pub fn has_output(&self) -> bool {
        !(self.control.is_empty() && self.fresh.is_empty() && self.turns.is_empty())
    }

    /// When [`Mux::handle_timeout`] has to be called.
    pub fn poll_timeout(&self) -> Option<Instant> {
        let nop = (!self.settings.keep_alive.is_zero()).then_some(self.next_nop_at);
        let check = (!self.settings.keep_alive_timeout.is_zero()).then_some(self.next_check_at);
        [nop, check].into_iter().flatten().min()
    }

    /// Sends a sign of life if one is due, and looks for the peer's.
    pub fn handle_timeout(&mut self, now: Instant) {
        if !self.settings.keep_alive.is_zero() && now >= self.next_nop_at {
            self.next_nop_at = now + self.settings.keep_alive;
            // One that waits says as much as two.
            if self.control.iter().all(|queued| *queued != (SmuxCommand::Nop, 0)) {
                self.control.push_back((SmuxCommand::Nop, 0));
            }
        }
        if !self.settings.keep_alive_timeout.is_zero() && now >= self.next_check_at {
            self.next_check_at = now + self.settings.keep_alive_timeout;
            // A full buffer is our readers' fault and not the peer's.
            self.gone |= !self.heard && self.unread < self.settings.receive_buffer;
            self.heard = false;
        }
    }

    /// Whether nothing has been heard of the peer for too long: the session is over.
    pub fn is_gone(&self) -> bool {
        self.gone
    }

    /// Sets the round trip that the carrier has measured: the clock of growing windows.
    pub fn set_round_trip(&mut self, round_trip: Duration) {
        self.round_trip = round_trip;
    }

    /// Streams that exist.
    pub fn stream_count(&self) -> usize {
        self.streams.len()
    }

    /// Bytes held in either direction.
    pub fn held(&self) -> usize {
        self.unread + self.unsent
    }

    /// Bytes that it takes, with what keeping them costs; an upper bound that is quickly told.
    pub fn footprint(&self) -> usize {
        self.reserved + self.sending_footprint() + self.streams.len() * PER_STREAM
    }

    /// The part of it that waits for readers: 0 once they have read everything.
    pub fn receiving_footprint(&self) -> usize {
        self.reserved
    }

    /// The part of it that waits to be sent.
    pub fn sending_footprint(&self) -> usize {
        // A queue that grows doubles.
        2 * self.unsent
    }

    /// The window that the peer of a stream is given, if it exists and the version has windows.
    pub fn window(&self, id: StreamId) -> Option<u32> {
        self.streams.get(&id.0).map(|stream| stream.window.size())
    }

    fn add(&mut self, id: u32) {
        let SmuxSettings { stream_window, max_stream_window, receive_buffer, .. } = self.settings;
        let budget = u32::try_from(receive_buffer.saturating_sub(self.promised)).unwrap_or(u32::MAX);
        // The first streams have more, and with too many streams for all to have what is assumed, the others have less:
        // the peer is told at once.
        let generous = FIRST_WINDOW.min(budget / 8).min(max_stream_window);
        let size = stream_window.min(budget.max(stream_window / 16)).max(generous);
        self.promised += size as usize;
        let window = StreamWindow::new(size, self.settings.max_stream_window);
        self.streams.insert(id, Stream::new(window));
        if self.settings.version == SmuxVersion::V2 && size != ASSUMED_WINDOW {
            self.tell_window(id);
        }
    }

    fn tell_window(&mut self, id: u32) {
        if let Some(stream) = self.streams.get_mut(&id)
            && !std::mem::replace(&mut stream.window.is_due, true)
        {
            self.control.push_back((SmuxCommand::Upd, id));
        }
    }

    fn emit_control(&mut self, command: SmuxCommand, id: u32, out: &mut Vec<u8>) {
        let version = self.settings.version;
        if command != SmuxCommand::Upd {
            return SmuxHeader { command, len: 0, stream: id }.emit(version, out);
        }
        let Some(stream) = self.streams.get_mut(&id) else { return };
        stream.window.is_due = false;
        SmuxHeader { command, len: 8, stream: id }.emit(version, out);
        out.extend(stream.window.consumed().to_le_bytes());
        out.extend(stream.window.size().to_le_bytes());
    }

    fn handle_header(&mut self, header: SmuxHeader) {
        self.heard = true;
        let id = header.stream;
        self.parser = match header.command {
            SmuxCommand::Psh if header.len > 0 => Parser::Data { stream: id, left: header.len.into() },
            SmuxCommand::Upd => Parser::Update { stream: id, bytes: [0; UPDATE_LEN], len: 0 },
            SmuxCommand::Psh | SmuxCommand::Syn | SmuxCommand::Fin | SmuxCommand::Nop => Parser::START,
        };
        if header.command == SmuxCommand::Syn {
            self.handle_open(id);
        } else if header.command == SmuxCommand::Fin {
            self.handle_end(id);
        } else if header.command == SmuxCommand::Nop && id != 0 && self.settings.signals {
            self.handle_signal(id);
        }
    }

    fn handle_signal(&mut self, id: u32) {
        if id == HELLO {
            if !std::mem::replace(&mut self.peer_signals, true) && self.peer_parity == 1 {
                self.control.push_back((SmuxCommand::Nop, HELLO));
            }
        } else if self.peer_signals
            && let Some(stream) = self.streams.get_mut(&id)
            && !stream.ended
        {
            stream.reset = true;
            if std::mem::take(&mut stream.starved) {
                self.events.push_back(SmuxEvent::Writable(StreamId(id)));
            }
            self.handle_end(id);
        }
    }

    fn handle_open(&mut self, id: u32) {
        if self.streams.contains_key(&id) || id % 2 != self.peer_parity {
            return;
        }
        if self.streams.len() < self.settings.max_streams {
            self.add(id);
            self.events.push_back(SmuxEvent::Opened(StreamId(id)));
        } else if self.control.len() < CONTROL_PER_STREAM * self.settings.max_streams {
            // Else the peer opens faster than it reads, and will find out by other means.
            self.control.push_back((SmuxCommand::Fin, id));
        }
    }

    fn handle_end(&mut self, id: u32) {
        let Some(stream) = self.streams.get_mut(&id) else { return };
        if !stream.ended {
            stream.ended = true;
            stream.announced = true;
            self.events.push_back(SmuxEvent::Readable(StreamId(id)));
        }
    }

    fn handle_data(&mut self, id: u32, data: &[u8]) {
        let Some(stream) = self.streams.get_mut(&id).filter(|stream| !stream.ended) else { return };
        let before = stream.receiving.capacity();
        stream.receive(data);
        self.reserved += stream.receiving.capacity() - before;
        self.unread += data.len();
        if !std::mem::replace(&mut stream.announced, true) {
            self.events.push_back(SmuxEvent::Readable(StreamId(id)));
        }
    }

    fn handle_update(&mut self, id: u32, bytes: [u8; UPDATE_LEN]) -> Result<(), WireError> {
        let [c0, c1, c2, c3, window @ ..] = bytes;
        let (consumed, window) = (u32::from_le_bytes([c0, c1, c2, c3]), u32::from_le_bytes(window));
        let Some(stream) = self.streams.get_mut(&id) else { return Ok(()) };
        stream.handle_update(consumed, window);
        if stream.allowance().is_none() {
            return Err(WireError::Malformed { what: "smux bytes consumed", got: consumed.into() });
        }
        self.schedule(id);
        Ok(())
    }

    fn update_window(&mut self, id: u32, len: usize, now: Instant) {
        let budget = self.settings.receive_buffer.saturating_sub(self.promised);
        let Some(stream) = self.streams.get_mut(&id) else { return };
        let tell = stream.window.consume(len);
        let more = stream.window.grow(now, self.round_trip, budget);
        self.promised += more;
        if (tell || more > 0) && !stream.ended {
            self.tell_window(id);
        }
    }

    fn remove_if_over(&mut self, id: u32) {
        if self.streams.get(&id).is_some_and(Stream::is_over)
            && let Some(stream) = self.streams.remove(&id)
        {
            self.promised -= stream.window.size() as usize;
        }
    }

    /// Puts a stream in line if it has something that may be sent.
    fn schedule(&mut self, id: u32) {
        let is_limited = self.settings.version == SmuxVersion::V2;
        let Some(stream) = self.streams.get_mut(&id) else { return };
        if stream.scheduled || !can_send(stream, is_limited) {
            return;
        }
        stream.scheduled = true;
        // A stream may use the rest of its quantum ahead of the others; it gets the next one when all of
        // these could have had theirs.
        let round = u64::try_from(QUANTUM * (self.turns.len() + 1)).unwrap_or(u64::MAX);
        if self.emitted - stream.refilled_with >= round {
            stream.deficit = QUANTUM;
            stream.refilled_with = self.emitted;
        }
        if stream.deficit > 0 {
            self.fresh.push_back(id);
        } else {
            self.turns.push_back(id);
        }
    }

    /// Emits a frame of the stream whose turn it is; false if none has anything.
    fn emit_next(&mut self, out: &mut Vec<u8>) -> bool {
        let is_limited = self.settings.version == SmuxVersion::V2;
        loop {
            let is_fresh = !self.fresh.is_empty();
            let line = if is_fresh { &mut self.fresh } else { &mut self.turns };
            let Some(id) = line.pop_front() else { return false };
            let Some(stream) = self.streams.get_mut(&id) else { continue };
            if !can_send(stream, is_limited) {
                stream.scheduled = false;
                continue;
            }
            if stream.deficit == 0 {
                stream.deficit = QUANTUM;
                stream.refilled_with = self.emitted;
                self.turns.push_back(id);
                continue;
            }
            line.push_front(id);
            self.emit_from(id, out);
            return true;
        }
    }

    /// Emits one frame of a stream that can send: data, or its end.
    fn emit_from(&mut self, id: u32, out: &mut Vec<u8>) {
        let (version, max_frame) = (self.settings.version, self.settings.max_frame);
        let Some(stream) = self.streams.get_mut(&id) else { return };
        if stream.sending.is_empty() {
            stream.output = Output::Ended;
            SmuxHeader { command: SmuxCommand::Fin, len: 0, stream: id }.emit(version, out);
            return self.remove_if_over(id);
        }
        let mut len = stream.sending.len().min(max_frame.max(1)).min(stream.deficit);
        if version == SmuxVersion::V2 {
            len = len.min(stream.allowance().unwrap_or_default());
        }
        let wire_len = u16::try_from(len).expect("a quantum fits");
        SmuxHeader { command: SmuxCommand::Psh, len: wire_len, stream: id }.emit(version, out);
        let (front, back) = stream.sending.as_slices();
        let from_front = len.min(front.len());
        out.extend(&front[..from_front]);
        out.extend(&back[..len - from_front]);
        stream.sending.drain(..len);
        self.unsent -= len;
        stream.note_sent(len);
        stream.deficit -= len;
        self.emitted += u64::from(wire_len);
        if stream.sending.is_empty() {
            stream.sending = VecDeque::new();
        }
        let has_room = stream.sending.len() <= self.settings.send_buffer / 2;
        if has_room && std::mem::take(&mut stream.starved) {
            self.events.push_back(SmuxEvent::Writable(StreamId(id)));
        }
    }
}

fn can_send(stream: &Stream, is_limited: bool) -> bool {
    let may_send = !is_limited || stream.allowance().is_some_and(|allowance| allowance > 0);
    match stream.output {
        Output::Ended => false,
        Output::Open => !stream.sending.is_empty() && may_send,
        Output::Ending => stream.sending.is_empty() || may_send,
    }
}

/// Copies what is missing of `bytes`, of which there are `len`; returns how many were taken.
fn fill(bytes: &mut [u8], len: &mut usize, input: &[u8]) -> usize {
    let taken = input.len().min(bytes.len() - *len);
    bytes[*len..*len + taken].copy_from_slice(&input[..taken]);
    *len += taken;
    taken
}

/// First byte: version and length of the pieces; the rest: what a peer sends. Any pieces give the same as the whole, and
/// memory stays bounded.
#[doc(hidden)]
pub fn fuzz_smux(data: &[u8], now: Instant) {
    let Some((&first, input)) = data.split_first() else { return };
    let version = if first & 1 == 0 { SmuxVersion::V1 } else { SmuxVersion::V2 };
    let settings =
        SmuxSettings { version, max_streams: 4, receive_buffer: 1 << 10, ..SmuxSettings::default() };
    let run = |piece: usize| {
        let mut mux = Mux::new(SmuxRole::Server, settings.clone(), now);
        let mut seen = Vec::new();
        for piece in input.chunks(piece) {
            match mux.handle_input(piece) {
                Ok(taken) if taken == piece.len() => {}
                Ok(_) => break,
                Err(error) => {
                    seen.push(Err(error));
                    break;
                }
            }
        }
        let reserved = mux.streams.values().map(|stream| stream.receiving.capacity());
        assert_eq!(reserved.sum::<usize>(), mux.reserved);
        assert!(mux.unread <= settings.receive_buffer + input.len().min(usize::from(u16::MAX)));
        assert!(mux.control.len() <= (CONTROL_PER_STREAM + 1) * settings.max_streams);
        while let Some(event) = mux.poll_event() {
            seen.push(Ok(event));
        }
        let streams: Vec<u32> = mux.streams.keys().copied().collect();
        let full = mux.unread >= settings.receive_buffer;
        (seen, streams, full)
    };
    let whole = run(input.len().max(1));
    let pieces = run(usize::from(first / 2).max(1));
    // A full buffer stops at the end of a piece.
    assert!(whole == pieces || whole.2 || pieces.2);
}

#[cfg(test)]
mod tests;
