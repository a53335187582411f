use std::collections::VecDeque;

use super::code::{Code, accumulate, invert};
use super::tuning::Tuning;
use super::{HEADER_LEN, SHARD_AT, Shards, TYPE_DATA, TYPE_OUT_OF_BAND, TYPE_PARITY};
use crate::wire::WireError;

/// Groups that are kept: the newest and those up to three behind (as new kcp-go).
const GROUPS: usize = 4;

/// Bytes of shards that are kept at most, over all groups: two of the usual 10/3 in full datagrams fit ten times over,
/// and a peer that announces groups of 256 gets fewer of them kept.
const MAX_KEPT: usize = 1 << 20;

/// Freed shards that are kept for reuse.
const SPARE: usize = 32;

/// Kind of a packet.
#[derive(Debug, PartialEq, Eq)]
pub enum FecPacketKind<'a> {
    /// KCP bytes, with or without a header around them.
    Data(&'a [u8]),
    /// Parity, which has been kept or was of no use.
    Parity,
    /// Bytes beside the stream, unreliable, for the session `conv`. kcptun never sends any.
    OutOfBand {
        /// The conversation that they belong to.
        conv: u32,
        /// The bytes.
        payload: &'a [u8],
    },
}

/// The receiving side: tells packets apart, and recovers lost ones. It starts without any idea of the sender's groups
/// (or with a guess), learns, and goes on learning when the sender is found to do otherwise.
#[derive(Debug, Default)]
pub struct FecDecoder {
    group: Option<(Shards, Code)>,
    tuning: Tuning,
    /// In no order; few.
    groups: Vec<Group>,
    newest: Option<u32>,
    kept: usize,
    recovered: VecDeque<Vec<u8>>,
    spare: Vec<Vec<u8>>,
}

#[derive(Debug)]
struct Group {
    /// Number of its first packet.
    base: u32,
    /// `None`: not seen.
    shards: Vec<Option<Vec<u8>>>,
    seen: usize,
    /// All data is there, or has been recovered: nothing more to do.
    done: bool,
}

impl FecDecoder {
    /// A decoder that expects groups of `shards` to begin with.
    pub fn new(shards: Option<Shards>) -> Self {
        let mut decoder = Self::default();
        decoder.adopt(shards);
        decoder
    }

    /// The assumed size of the sender's groups.
    pub fn shards(&self) -> Option<Shards> {
        self.group.as_ref().map(|group| group.0)
    }

    /// Takes one packet; afterwards [`FecDecoder::poll_recovered`] may have something to give.
    ///
    /// # Errors
    /// [`WireError::Truncated`] and [`WireError::Malformed`]; the packet is then to be dropped.
    pub fn handle<'a>(&mut self, packet: &'a [u8]) -> Result<FecPacketKind<'a>, WireError> {
        let Some((kind, _)) = field(packet, 4) else {
            return Err(WireError::Truncated { what: "kcp packet" });
        };
        match kind {
            TYPE_DATA => {
                let data = sized(&packet[SHARD_AT..])?;
                self.keep(packet, true);
                Ok(FecPacketKind::Data(data))
            }
            TYPE_PARITY => {
                self.keep(packet, false);
                Ok(FecPacketKind::Parity)
            }
            TYPE_OUT_OF_BAND => match sized(&packet[SHARD_AT..])?.split_first_chunk() {
                Some((conv, payload)) => {
                    Ok(FecPacketKind::OutOfBand { conv: u32::from_le_bytes(*conv), payload })
                }
                None => Err(WireError::Truncated { what: "out-of-band packet" }),
            },
            _ => Ok(FecPacketKind::Data(packet)),
        }
    }

    /// Appends the KCP bytes of the next recovered packet to `out`; false if there is none. The packet did not really
    /// arrive: it says nothing about round trips or the peer's present window.
    pub fn poll_recovered(&mut self, out: &mut Vec<u8>) -> bool {
        let Some(shard) = self.recovered.pop_front() else { return false };
        let data = sized(&shard);
        let fits = data.is_ok();
        out.extend(data.unwrap_or_default());
        self.release(shard);
        fits || self.poll_recovered(out)
    }

    fn keep(&mut self, packet: &[u8], is_data: bool) {
        let (seqid, _) = packet.split_first_chunk().expect("the type lies behind it");
        let seqid = u32::from_le_bytes(*seqid);
        self.tuning.sample(seqid, is_data);
        if !self.agrees(seqid, is_data) {
            self.forget();
            self.adopt(self.tuning.find());
            if !self.agrees(seqid, is_data) {
                self.group = None;
            }
        }
        let Some((shards, _)) = self.group else { return };
        if seqid >= shards.wrap() {
            return;
        }
        let Some(at) = self.group_at(seqid - seqid % shards.total()) else { return };
        let group = &mut self.groups[at];
        let place = (seqid % shards.total()) as usize;
        if group.done || group.shards[place].is_some() {
            return;
        }
        let mut shard = self.spare.pop().unwrap_or_default();
        shard.extend(&packet[SHARD_AT..]);
        self.kept += shard.len();
        group.shards[place] = Some(shard);
        group.seen += 1;
        if group.seen == shards.data() {
            self.complete(at);
        }
    }

    /// Whether `seqid` has a place of that kind in the groups that are believed in.
    fn agrees(&self, seqid: u32, is_data: bool) -> bool {
        self.group.as_ref().is_some_and(|(shards, _)| {
            ((seqid % shards.total()) as usize) < shards.data() && is_data
                || ((seqid % shards.total()) as usize) >= shards.data() && !is_data
        })
    }

    fn adopt(&mut self, shards: Option<Shards>) {
        self.group = shards.map(|shards| (shards, Code::new(shards.data(), shards.parity())));
    }

    /// Bytes that are kept.
    pub fn held(&self) -> usize {
        self.kept
    }

    /// Drops all packets that are kept to repair others with.
    pub fn clear(&mut self) {
        self.forget();
        self.spare.clear();
    }

    fn forget(&mut self) {
        while let Some(group) = self.groups.pop() {
            self.release_group(group);
        }
        self.newest = None;
    }

    /// The group that begins at `base`, unless it is too old.
    fn group_at(&mut self, base: u32) -> Option<usize> {
        if let Some(at) = self.groups.iter().position(|group| group.base == base) {
            return Some(at);
        }
        let shards = self.shards()?;
        let newest = *self.newest.get_or_insert(base);
        let ahead = base.wrapping_sub(newest).cast_signed();
        if ahead > 0 {
            self.newest = Some(base);
        }
        let reach = i32::try_from(shards.total() as usize * (GROUPS - 1)).expect("groups are small");
        if ahead < -reach {
            return None;
        }
        while self.groups.len() >= GROUPS || self.kept > MAX_KEPT && !self.groups.is_empty() {
            self.drop_oldest();
        }
        let places = shards.total() as usize;
        self.groups.push(Group { base, shards: vec![None; places], seen: 0, done: false });
        Some(self.groups.len() - 1)
    }

    fn drop_oldest(&mut self) {
        let newest = self.newest.unwrap_or_default();
        let ages = self.groups.iter().enumerate();
        if let Some((at, _)) = ages.max_by_key(|(_, group)| newest.wrapping_sub(group.base).cast_signed()) {
            let group = self.groups.swap_remove(at);
            self.release_group(group);
        }
    }

    /// Recovers what is missing of a group that has as many packets as it has data packets.
    fn complete(&mut self, at: usize) {
        let Some((shards, code)) = self.group.take() else { return };
        let group = &mut self.groups[at];
        let missing: Vec<usize> = (0..shards.data()).filter(|place| group.shards[*place].is_none()).collect();
        if !missing.is_empty() {
            let found = recover(&group.shards, shards.data(), &code, &missing);
            self.recovered.extend(found);
        }
        group.done = true;
        for place in 0..group.shards.len() {
            if let Some(shard) = self.groups[at].shards[place].take() {
                self.kept -= shard.len();
                self.release(shard);
            }
        }
        self.group = Some((shards, code));
    }

    fn release_group(&mut self, group: Group) {
        for shard in group.shards.into_iter().flatten() {
            self.kept -= shard.len();
            self.release(shard);
        }
    }

    fn release(&mut self, mut shard: Vec<u8>) {
        if self.spare.len() < SPARE {
            shard.clear();
            self.spare.push(shard);
        }
    }
}

/// The missing data shards, in order. With e of them missing, e parity shards less what the present data adds to them
/// are e equations.
fn recover(shards: &[Option<Vec<u8>>], k: usize, code: &Code, missing: &[usize]) -> Vec<Vec<u8>> {
    let used: Vec<usize> =
        (0..shards.len() - k).filter(|row| shards[k + row].is_some()).take(missing.len()).collect();
    let longest = shards.iter().flatten().map(Vec::len).max().unwrap_or_default();
    let mut sums: Vec<Vec<u8>> = used.iter().filter_map(|row| shards[k + row].clone()).collect();
    sums.iter_mut().for_each(|sum| sum.resize(longest, 0));
    for (place, data) in shards[..k].iter().enumerate() {
        let Some(data) = data else { continue };
        accumulate(sums.iter_mut().zip(&used).map(|(sum, row)| (code.coefficient(*row, place), sum)), data);
    }
    let matrix: Vec<u8> =
        used.iter().flat_map(|row| missing.iter().map(|place| code.coefficient(*row, *place))).collect();
    let n = missing.len();
    let Some(inverse) = invert(&matrix, n) else { return Vec::new() };
    let mut found = vec![Vec::new(); n];
    for (column, sum) in sums.iter().enumerate() {
        let rows = found.iter_mut().enumerate();
        accumulate(rows.map(|(row, found)| (inverse[row * n + column], found)), sum);
    }
    found
}

/// The u16 at `at`, and what follows it.
fn field(packet: &[u8], at: usize) -> Option<(u16, &[u8])> {
    let (value, rest) = packet.get(at..)?.split_first_chunk()?;
    Some((u16::from_le_bytes(*value), rest))
}

/// The bytes between the size field that `shard` begins with and the end that it tells.
fn sized(shard: &[u8]) -> Result<&[u8], WireError> {
    let Some((size, _)) = field(shard, 0) else {
        return Err(WireError::Truncated { what: "fec header" });
    };
    let data = shard.get(HEADER_LEN - SHARD_AT..size.into());
    data.ok_or_else(|| WireError::Malformed { what: "fec size", got: size.into() })
}

/// Packets of a length byte and that many bytes each: for all of them, memory stays bounded.
#[doc(hidden)]
pub fn fuzz_decoder(data: &[u8]) {
    let mut decoder = FecDecoder::new(Shards::new(2, 1));
    let mut rest = data;
    let mut out = Vec::new();
    while let Some((&len, more)) = rest.split_first() {
        let (packet, after) = more.split_at(more.len().min(len.into()));
        rest = after;
        if let Ok(FecPacketKind::Data(bytes)) = decoder.handle(packet) {
            assert!(bytes.len() <= packet.len());
        }
        while decoder.poll_recovered(&mut out) {
            assert!(out.len() < 256, "no shard is longer than the longest packet");
            out.clear();
        }
        let kept = decoder.groups.iter().flat_map(|group| group.shards.iter().flatten()).map(Vec::len);
        assert_eq!(kept.sum::<usize>(), decoder.kept);
        assert!(decoder.groups.len() <= GROUPS);
    }
}
