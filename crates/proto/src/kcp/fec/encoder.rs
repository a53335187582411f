use std::time::{Duration, Instant};

use super::code::{Code, accumulate};
use super::{HEADER_LEN, SHARD_AT, Shards, TYPE_DATA, TYPE_PARITY};

/// A group whose last packet comes this long after the one before gets no parity: what it would repair has been sent
/// again by then (kcp-go since 5.6.10).
const STALE: Duration = Duration::from_millis(500);

/// Groups that get all of their parity when it begins, so that receivers with other groups, or none, can learn the size
/// from them.
const SHOWN: u32 = 8;

/// Every so many groups another one does.
const SHOWN_AGAIN: u32 = 64;

/// The sending side: numbers data packets and sums up parity while they pass.
///
/// The number of parity packets of a group may change from group to group ([`FecEncoder::set_level`]). For receivers
/// the rest has been lost on the way; numbers go on as if all had been sent.
#[derive(Debug)]
pub struct FecEncoder {
    shards: Shards,
    code: Code,
    seqid: u32,
    /// Parity packets that groups are to get, and the current one gets.
    level: usize,
    given: usize,
    /// Groups since there was none.
    groups: u32,
    /// Sums of the current group; those of a full one, while `ready > 0`.
    parity: Vec<Vec<u8>>,
    /// Parity packets of the last group that have not been given out.
    ready: usize,
    last_at: Option<Instant>,
}

impl FecEncoder {
    /// A counter at 0.
    pub fn new(shards: Shards) -> Self {
        Self {
            shards,
            code: Code::new(shards.data(), shards.parity()),
            seqid: 0,
            level: shards.parity(),
            given: 0,
            groups: 0,
            parity: vec![Vec::new(); shards.parity()],
            ready: 0,
            last_at: None,
        }
    }

    /// The size of its groups.
    pub fn shards(&self) -> Shards {
        self.shards
    }

    /// From the next group on, so many parity packets of each are sent: all of them at most, and with 0 packets need no
    /// header. Parity that waited in [`FecEncoder::poll_parity`] is gone.
    pub fn set_level(&mut self, level: usize) {
        self.skip_parity();
        self.level = level.min(self.shards.parity());
        if self.level == 0 && !self.is_within() {
            self.groups = 0;
            self.parity.iter_mut().for_each(|sum| *sum = Vec::new());
        }
    }

    /// Parity packets that each group is to get.
    pub fn level(&self) -> usize {
        self.level
    }

    /// Whether the next data packet has to be sealed: parity is sent, or a group has begun.
    pub fn is_on(&self) -> bool {
        self.level > 0 || self.is_within()
    }

    fn is_within(&self) -> bool {
        self.ready == 0 && self.place() > 0
    }

    fn place(&self) -> usize {
        (self.seqid % self.shards.total()) as usize
    }

    /// Writes the header of a data packet: `packet` is [`HEADER_LEN`] bytes of room, then the KCP bytes. Afterwards
    /// [`FecEncoder::poll_parity`] has to be called until it gives nothing: what it holds is lost with the next packet.
    ///
    /// # Panics
    /// If `packet` is shorter than the header or longer than a size field can tell.
    pub fn seal(&mut self, packet: &mut [u8], now: Instant) {
        self.skip_parity();
        let size = u16::try_from(packet.len() - SHARD_AT).expect("datagrams are shorter than 64 KiB");
        packet[SHARD_AT..HEADER_LEN].copy_from_slice(&size.to_le_bytes());
        let place = self.place();
        if place == 0 {
            self.begin_group();
        }
        packet[..SHARD_AT].copy_from_slice(&self.header(TYPE_DATA));
        let sums = self.parity[..self.given].iter_mut().enumerate();
        accumulate(sums.map(|(i, sum)| (self.code.coefficient(i, place), sum)), &packet[SHARD_AT..]);
        if place + 1 == self.shards.data() {
            self.ready = self.shards.parity();
            if self.last_at.is_some_and(|last| place > 0 && now.saturating_duration_since(last) >= STALE) {
                self.skip_parity();
            }
        }
        self.last_at = Some(now);
    }

    fn begin_group(&mut self) {
        self.parity.iter_mut().for_each(Vec::clear);
        let is_shown = self.groups < SHOWN || self.groups.is_multiple_of(SHOWN_AGAIN);
        self.given = if is_shown && self.level > 0 { self.shards.parity() } else { self.level };
        self.groups = self.groups.wrapping_add(1);
    }

    /// Appends the next parity packet that is due to `out`; false if there is none.
    pub fn poll_parity(&mut self, out: &mut Vec<u8>) -> bool {
        let row = self.shards.parity() - self.ready;
        if self.ready == 0 || row >= self.given {
            return false;
        }
        self.ready -= 1;
        out.extend(self.header(TYPE_PARITY));
        out.extend(&self.parity[row]);
        true
    }

    /// Length of the longest parity packet that is due.
    pub fn parity_len(&self) -> usize {
        SHARD_AT + self.parity[0].len()
    }

    /// Keeps groups aligned when parity is not sent.
    fn skip_parity(&mut self) {
        for _ in 0..std::mem::take(&mut self.ready) {
            self.advance();
        }
    }

    fn header(&mut self, kind: u16) -> [u8; SHARD_AT] {
        let mut header = [0; SHARD_AT];
        header[..4].copy_from_slice(&self.advance().to_le_bytes());
        header[4..].copy_from_slice(&kind.to_le_bytes());
        header
    }

    fn advance(&mut self) -> u32 {
        let seqid = self.seqid;
        self.seqid = (seqid + 1) % self.shards.wrap();
        seqid
    }

    #[cfg(test)]
    pub(super) fn set_group(&mut self, group: u32) {
        self.seqid = group * self.shards.total();
    }
}
