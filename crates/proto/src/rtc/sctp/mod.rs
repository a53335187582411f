//! SCTP (RFC 9260) as far as a data channel needs it: one association inside DTLS, reliable and ordered.
//!
//! ```text
//!   messages -- queue -- chunks with numbers -- packets of at most 1228 bytes
//!                           |                       |
//!                        Sender: pace, losses    Receiver: order, acknowledgements
//! ```
//!
//! There is one way between two ends, which ICE watches: no path is chosen here and none is given up. Partial reliability,
//! more than one address, and interleaving are not offered, so that peers do without. Data is handed on in the order of its
//! transmission numbers. A peer that restarts the association is not heard.

mod packet;
mod receiver;
mod sender;

#[cfg(test)]
mod tests;

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use self::packet::{Chunk, HEADER_LEN, MTU, SctpPacket, params, u16_at, u32_at};
pub(super) use self::receiver::Piece;
use self::receiver::SctpReceiver;
use self::sender::SctpSender;
use crate::wire::Rng;

/// Kinds of payload: messages that open a channel, and those of the channel.
pub(super) const DCEP: u32 = 50;
pub(super) const TEXT: u32 = 51;
pub(super) const BINARY: u32 = 53;

/// Pause before a message of the handshake is sent again: at first, and at most.
const FIRST_RETRY_US: u64 = 1_000_000;
const MAX_RETRY_US: u64 = 10_000_000;
/// Streams that a peer may open, and that this end asks for.
const STREAMS: u16 = 1024;
/// Longest cookie that is given back.
const MAX_COOKIE: usize = 1024;
/// Answers that wait to be sent, at most.
const MAX_ANSWERS: usize = 8;

const PARAM_COOKIE: u16 = 7;
const PARAM_RESET: u16 = 13;
const PARAM_RESPONSE: u16 = 16;
const PARAM_EXTENSIONS: u16 = 0x8008;
/// Results of a reset.
const DONE: u32 = 1;
const IN_PROGRESS: u32 = 6;
/// Shortest body of a chunk that begins an association.
const INIT_LEN: usize = 16;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    Idle,
    /// Asked, at this end's own wish.
    Asking,
    /// The other end's cookie has been given back.
    Answering,
    Up,
    Over,
}

/// Something that has happened.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum SctpEvent {
    /// Messages can be sent.
    Connected,
    /// The other end has ended these streams: all, or the one of this number.
    Ended(Option<u16>),
    /// The other end has ended the association.
    Lost,
}

/// One end of an association. Times are of any clock; they only grow.
#[derive(Debug)]
pub(super) struct Association {
    state: State,
    epoch: Instant,
    window: usize,
    tag: u32,
    peer_tag: u32,
    first: u32,
    cookie: [u8; 16],
    peer_cookie: Vec<u8>,
    sender: SctpSender,
    receiver: Option<SctpReceiver>,
    answers: VecDeque<(u8, Vec<u8>)>,
    retry_us: Option<u64>,
    retries: u32,
    asks: bool,
    /// The latest reset of the other end, and its result.
    reset: Option<(u32, u32)>,
    events: VecDeque<SctpEvent>,
}

impl Association {
    /// `window` bytes may wait to be read, and `most` to be sent or acknowledged.
    pub(super) fn new(window: usize, most: usize, rng: &mut dyn Rng, epoch: Instant) -> Self {
        let mut cookie = [0; 16];
        rng.fill(&mut cookie);
        let mut number = || {
            let mut bytes = [0; 4];
            rng.fill(&mut bytes);
            u32::from_be_bytes(bytes)
        };
        let (tag, first) = (number().max(1), number());
        Self {
            state: State::Idle,
            epoch,
            window,
            tag,
            peer_tag: 0,
            first,
            cookie,
            peer_cookie: Vec::new(),
            sender: SctpSender::new(first, most),
            receiver: None,
            answers: VecDeque::new(),
            retry_us: None,
            retries: 0,
            asks: false,
            reset: None,
            events: VecDeque::new(),
        }
    }

    /// Asks the other end for an association, unless it has asked already.
    pub(super) fn connect(&mut self) {
        if self.state == State::Idle {
            self.state = State::Asking;
            self.asks = true;
        }
    }

    pub(super) fn is_up(&self) -> bool {
        self.state == State::Up
    }

    pub(super) fn poll_event(&mut self) -> Option<SctpEvent> {
        self.events.pop_front()
    }

    /// Queues bytes of a stream, which may be joined to others and cut; false if it is not up.
    pub(super) fn send(&mut self, stream: u16, kind: u32, bytes: &[u8]) -> bool {
        if self.is_up() {
            self.sender.push(stream, kind, bytes, kind == BINARY);
        }
        self.is_up()
    }

    /// Bytes that may be queued.
    pub(super) fn room(&self) -> usize {
        self.sender.room()
    }

    /// Bytes that are queued or not acknowledged.
    pub(super) fn buffered(&self) -> usize {
        self.sender.buffered()
    }

    /// The next piece that has come.
    pub(super) fn front(&self) -> Option<&Piece> {
        self.receiver.as_ref()?.front()
    }

    /// Takes it.
    pub(super) fn pop(&mut self) -> Option<Piece> {
        self.receiver.as_mut()?.pop()
    }

    /// Bytes that have come and were not taken, with what keeping them costs.
    pub(super) fn held(&self) -> usize {
        self.receiver.as_ref().map_or(0, SctpReceiver::held)
    }

    /// Chunks that were sent more than once.
    #[cfg(test)]
    pub(super) fn repeated(&self) -> u64 {
        self.sender.repeated
    }

    fn micros(&self, now: Instant) -> u64 {
        u64::try_from(now.saturating_duration_since(self.epoch).as_micros()).unwrap_or(u64::MAX)
    }

    /// Takes a packet. One that is malformed is dropped, as far as it is.
    pub(super) fn handle_packet(&mut self, bytes: &[u8], now: Instant) {
        let now_us = self.micros(now);
        let Some(packet) = SctpPacket::parse(bytes) else { return };
        let tag = packet.tag;
        let mut had_data = false;
        for chunk in packet {
            let is_ours = tag == self.tag && self.state != State::Over;
            match chunk.kind {
                packet::INIT if tag == 0 => return self.handle_init(chunk.body),
                packet::ABORT if is_ours || chunk.flags & 1 == 1 && tag == self.peer_tag && tag != 0 => {
                    self.end();
                }
                _ if !is_ours => return,
                packet::DATA => had_data |= self.handle_data(chunk),
                _ => {
                    if !self.handle_control(chunk, now_us) {
                        break;
                    }
                }
            }
        }
        if let Some(receiver) = &mut self.receiver {
            receiver.end_packet(had_data, now_us);
        }
    }

    fn handle_data(&mut self, chunk: Chunk<'_>) -> bool {
        // The answer to the cookie may come behind what was sent after it.
        let is_known = matches!(self.state, State::Answering | State::Up);
        self.receiver.as_mut().is_some_and(|receiver| is_known && receiver.take(chunk))
    }

    /// False if the rest of the packet is not to be read.
    fn handle_control(&mut self, chunk: Chunk<'_>, now_us: u64) -> bool {
        match chunk.kind {
            packet::INIT_ACK => self.handle_init_ack(chunk.body),
            packet::SACK if self.is_up() => return self.sender.acknowledge(chunk.body, now_us).is_some(),
            packet::HEARTBEAT => self.answer(packet::HEARTBEAT_ACK, chunk.body.to_vec()),
            packet::COOKIE_ECHO if chunk.body == self.cookie && self.receiver.is_some() => {
                self.answer(packet::COOKIE_ACK, Vec::new());
                self.rise();
            }
            packet::COOKIE_ACK if self.state == State::Answering => self.rise(),
            packet::SHUTDOWN => {
                self.answer(packet::SHUTDOWN_ACK, Vec::new());
                self.end();
            }
            packet::SHUTDOWN_ACK | packet::SHUTDOWN_COMPLETE => self.end(),
            packet::RECONFIG if self.is_up() => self.handle_reconfig(chunk.body),
            // The two highest bits tell how to treat what is not known.
            kind => return kind <= packet::SHUTDOWN_COMPLETE || kind & 0x80 != 0,
        }
        true
    }

    fn end(&mut self) {
        if self.state != State::Over {
            self.state = State::Over;
            self.events.push_back(SctpEvent::Lost);
        }
    }

    fn rise(&mut self) {
        if matches!(self.state, State::Up | State::Over) {
            return;
        }
        self.state = State::Up;
        (self.retry_us, self.asks) = (None, false);
        self.peer_cookie = Vec::new();
        self.events.push_back(SctpEvent::Connected);
    }

    fn answer(&mut self, kind: u8, body: Vec<u8>) {
        if self.answers.len() < MAX_ANSWERS && body.len() <= MTU - HEADER_LEN - 4 {
            self.answers.push_back((kind, body));
        }
    }

    /// The other end asks. Both may: either answers with what it has asked itself.
    fn handle_init(&mut self, body: &[u8]) {
        if self.take_peer(body).is_some() {
            let mut answer = self.init();
            packet::push_param(&mut answer, PARAM_COOKIE, &self.cookie);
            self.answer(packet::INIT_ACK, answer);
        }
    }

    fn handle_init_ack(&mut self, body: &[u8]) {
        if self.state != State::Asking || self.take_peer(body).is_none() {
            return;
        }
        let cookie = params(&body[INIT_LEN..]).find(|(kind, _)| *kind == PARAM_COOKIE);
        let Some((_, cookie)) = cookie.filter(|(_, cookie)| cookie.len() <= MAX_COOKIE) else { return };
        self.peer_cookie = cookie.to_vec();
        self.state = State::Answering;
        (self.asks, self.retry_us, self.retries) = (true, None, 0);
    }

    /// The numbers of the other end; none if they make no sense, or are those of another association.
    fn take_peer(&mut self, body: &[u8]) -> Option<()> {
        let (tag, room, first) = (u32_at(body, 0)?, u32_at(body, 4)?, u32_at(body, 12)?);
        if tag == 0 || self.state == State::Over {
            return None;
        }
        if self.receiver.is_some() && self.peer_tag == tag {
            return Some(());
        }
        if !matches!(self.state, State::Idle | State::Asking) {
            return None;
        }
        self.peer_tag = tag;
        self.sender.set_room(room);
        self.receiver = Some(SctpReceiver::new(first, self.window));
        Some(())
    }

    fn init(&self) -> Vec<u8> {
        let mut body = Vec::with_capacity(64);
        body.extend(self.tag.to_be_bytes());
        body.extend(u32::try_from(self.window).unwrap_or(u32::MAX).to_be_bytes());
        body.extend(STREAMS.to_be_bytes());
        body.extend(STREAMS.to_be_bytes());
        body.extend(self.first.to_be_bytes());
        packet::push_param(&mut body, PARAM_EXTENSIONS, &[packet::RECONFIG]);
        body
    }

    fn handle_reconfig(&mut self, body: &[u8]) {
        for (kind, value) in params(body).take(2) {
            if kind == PARAM_RESET
                && let (Some(number), Some(last)) = (u32_at(value, 0), u32_at(value, 8))
            {
                self.handle_reset(number, last, &value[12..]);
            }
        }
    }

    /// The other end will send no more on some streams, up to its number `last`.
    fn handle_reset(&mut self, number: u32, last: u32, streams: &[u8]) {
        let Some(receiver) = &self.receiver else { return };
        let known = self.reset.filter(|(latest, result)| *latest == number && *result == DONE);
        if known.is_none() {
            let result = if receiver.has_all_until(last) { DONE } else { IN_PROGRESS };
            self.reset = Some((number, result));
            if result == DONE {
                let mut streams: Vec<_> = (0..streams.len() / 2).map(|at| u16_at(streams, 2 * at)).collect();
                streams.truncate(usize::from(STREAMS));
                if streams.is_empty() {
                    streams.push(None);
                }
                self.events.extend(streams.into_iter().map(SctpEvent::Ended));
            }
        }
        let result = self.reset.map_or(DONE, |(_, result)| result);
        let mut answer = Vec::new();
        packet::push_param(
            &mut answer,
            PARAM_RESPONSE,
            &[number.to_be_bytes(), result.to_be_bytes()].concat(),
        );
        self.answer(packet::RECONFIG, answer);
    }

    /// Tells the other end that nothing more comes on a stream. Data that is not acknowledged yet may be lost.
    pub(super) fn end_stream(&mut self, stream: u16) {
        if !self.is_up() {
            return;
        }
        let mut value = Vec::with_capacity(14);
        for number in [self.first, self.first.wrapping_sub(1), self.sender.last()] {
            value.extend(number.to_be_bytes());
        }
        value.extend(stream.to_be_bytes());
        let mut body = Vec::new();
        packet::push_param(&mut body, PARAM_RESET, &value);
        self.answer(packet::RECONFIG, body);
    }

    /// Does what is due.
    pub(super) fn handle_timeout(&mut self, now: Instant) {
        let now_us = self.micros(now);
        if self.retry_us.is_some_and(|at_us| at_us <= now_us) {
            self.retry_us = None;
            self.asks = true;
        }
        self.sender.handle_timeout(now_us);
        self.sender.rest();
    }

    /// When there is something to do.
    pub(super) fn poll_timeout(&self) -> Option<Instant> {
        let now = (!self.answers.is_empty() || self.asks).then_some(0);
        let (sender, receiver) = match &self.receiver {
            Some(receiver) if self.is_up() => (self.sender.due_us(), receiver.due_us()),
            _ => (None, None),
        };
        let at_us = [now, self.retry_us, sender, receiver].into_iter().flatten().min()?;
        Some(self.epoch + Duration::from_micros(at_us))
    }

    /// Puts a packet into `out`, which is emptied before; false if there is nothing to send at `now`.
    pub(super) fn poll_packet(&mut self, now: Instant, out: &mut Vec<u8>) -> bool {
        let now_us = self.micros(now);
        packet::begin(out, self.peer_tag);
        self.emit_control(now_us, out);
        if self.is_up() && out.len() == HEADER_LEN {
            if let Some(receiver) = &mut self.receiver {
                receiver.emit(now_us, out);
            }
            while let Some(len) = self.sender.next_len(now_us)
                && out.len() + packet::DATA_HEADER_LEN + len.next_multiple_of(4) <= MTU
            {
                self.sender.emit(now_us, out);
            }
        }
        if out.len() == HEADER_LEN {
            return false;
        }
        packet::finish(out);
        true
    }

    /// Messages of the handshake travel alone.
    fn emit_control(&mut self, now_us: u64, out: &mut Vec<u8>) {
        if let Some((kind, body)) = self.answers.pop_front() {
            return packet::push_chunk(out, kind, 0, &body, &[]);
        }
        if !std::mem::take(&mut self.asks) {
            return;
        }
        match self.state {
            State::Asking => {
                packet::begin(out, 0);
                packet::push_chunk(out, packet::INIT, 0, &self.init(), &[]);
            }
            State::Answering => packet::push_chunk(out, packet::COOKIE_ECHO, 0, &self.peer_cookie, &[]),
            State::Idle | State::Up | State::Over => return,
        }
        self.retry_us = Some(now_us + (FIRST_RETRY_US << self.retries.min(8)).min(MAX_RETRY_US));
        self.retries += 1;
    }
}

/// Any packets, with right checksums or not, of a length byte and four times that many bytes each: nothing panics, and little
/// is held.
#[doc(hidden)]
pub fn fuzz_sctp(data: &[u8], epoch: Instant) {
    struct Ones;
    impl Rng for Ones {
        fn fill(&mut self, out: &mut [u8]) {
            out.fill(1);
        }
    }
    const WINDOW: usize = 8 << 10;
    let Some((&first, mut rest)) = data.split_first() else { return };
    let mut association = Association::new(WINDOW, WINDOW, &mut Ones, epoch);
    if first & 1 == 0 {
        association.connect();
    } else {
        association.receiver = Some(SctpReceiver::new(0x0101_0101, WINDOW));
        association.sender.set_room(1 << 20);
        association.peer_tag = 1;
        association.rise();
    }
    let (mut now, mut out) = (epoch, Vec::new());
    while let Some((&len, more)) = rest.split_first() {
        let (piece, after) = more.split_at(more.len().min(usize::from(len) * 4));
        rest = after;
        let mut packet = piece.to_vec();
        if packet.len() >= HEADER_LEN {
            if first & 2 == 0 {
                packet[4..8].copy_from_slice(&association.tag.to_be_bytes());
            }
            packet::finish(&mut packet);
        }
        association.send(1, BINARY, piece);
        association.handle_packet(&packet, now);
        now += Duration::from_millis(len.into());
        association.handle_timeout(now);
        for _ in 0..64 {
            if !association.poll_packet(now, &mut out) {
                break;
            }
            assert!(out.len() <= MTU);
        }
        while association.poll_event().is_some() {}
        if len & 1 == 0 {
            association.pop();
        }
        assert!(association.held() <= 40 * WINDOW + (1 << 19), "{} bytes", association.held());
        assert!(association.buffered() <= data.len());
    }
}
