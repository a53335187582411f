use std::collections::VecDeque;

use super::rto::Rto;
use super::segment::before;
use super::{PER_SEGMENT, SEGMENT_HEADER_LEN};

/// So many losses in a row are more of the same gap.
const GAP: u32 = 4;

/// Segments under way up to which one that ends the queue is a lone one.
const LONE: usize = 2;

/// Buffers that are kept for reuse while data flows.
const SPARE: usize = 64;

/// The sending half: what is queued, what is under way, and what of it is believed lost.
///
/// ```text
///   una                edge              una + slots.len()
///    | acked, or a hole  | no news yet     | queue: not numbered
/// ```
#[derive(Debug)]
pub(super) struct ArqSender {
    una: u32,
    slots: VecDeque<Slot>,
    /// Pieces of at most a segment, not sent.
    queue: VecDeque<Vec<u8>>,
    queued: usize,
    /// Behind the highest number that has been acknowledged.
    edge: u32,
    /// Numbers below `edge` that have not been acknowledged, in order.
    holes: VecDeque<u32>,
    /// To be sent again.
    due: VecDeque<(u32, Loss)>,
    /// No segment times out before.
    timeout_us: u64,
    /// Bytes, headers included, that are neither acknowledged nor believed lost.
    in_flight: usize,
    spare: Vec<Vec<u8>>,
}

/// A segment that has been sent.
#[derive(Debug)]
struct Slot {
    data: Vec<u8>,
    fate: Fate,
    sent: Sent,
    timeout_us: u64,
    rto_ms: u32,
    /// Acknowledgements of later segments since this was last sent.
    overtaken: u32,
    transmissions: u32,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Fate {
    InFlight,
    Lost,
    Acked,
}

/// When a segment was last sent.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Sent {
    pub(super) at_us: u64,
    pub(super) ts: u32,
    /// Bytes that had been delivered by then.
    pub(super) delivered: u64,
}

/// Why a segment is sent again.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Loss {
    /// Later ones have been acknowledged.
    Overtaken,
    /// Nothing has been heard in time.
    Timeout,
    /// It has just been sent again, and that may be lost too.
    Doubt,
}

/// The segment to send next.
pub(super) struct Outgoing<'a> {
    pub(super) sn: u32,
    pub(super) data: &'a [u8],
    /// Why it is sent for another time, if it is.
    pub(super) loss: Option<Loss>,
    /// Number of times that it has been sent, with this time.
    pub(super) transmissions: u32,
}

/// The segments that one datagram has acknowledged.
#[derive(Debug, Default)]
pub(super) struct Delivery {
    pub(super) bytes: usize,
    /// Of those acknowledged, the one that was sent last. Those that were sent again do not count unless it is known
    /// which transmission has arrived: rounds would end before they began.
    pub(super) newest: Option<Sent>,
    /// Nothing is missing before what it acknowledges.
    pub(super) in_order: bool,
    /// When the oldest of them was sent, in that case: what it took longer than a round trip, it waited to be acknowledged.
    pub(super) oldest_us: Option<u64>,
}

/// Bytes, headers included, that are newly believed lost.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub(super) struct Overtaken {
    pub(super) bytes: usize,
    /// Without those that only make a gap longer: an acknowledgement that was lost leaves long ones, and so do bursts.
    pub(super) scattered: usize,
}

impl ArqSender {
    pub(super) fn new() -> Self {
        Self {
            una: 0,
            slots: VecDeque::new(),
            queue: VecDeque::new(),
            queued: 0,
            edge: 0,
            holes: VecDeque::new(),
            due: VecDeque::new(),
            timeout_us: u64::MAX,
            in_flight: 0,
            spare: Vec::new(),
        }
    }

    /// Segments between the oldest that is not acknowledged and the next number.
    pub(super) fn span(&self) -> usize {
        self.slots.len()
    }

    /// Segments in the queue.
    pub(super) fn queue_len(&self) -> usize {
        self.queue.len()
    }

    /// Bytes in the queue.
    pub(super) fn queued(&self) -> usize {
        self.queued
    }

    /// Whether everything below what has been acknowledged is.
    pub(super) fn is_whole(&self) -> bool {
        self.holes.is_empty()
    }

    pub(super) fn una(&self) -> u32 {
        self.una
    }

    pub(super) fn in_flight(&self) -> usize {
        self.in_flight
    }

    /// Bytes held, sent or not.
    pub(super) fn held(&self) -> usize {
        self.queued + self.slots.iter().map(|slot| slot.data.len()).sum::<usize>()
    }

    /// The same with what keeping them costs, counted as if all segments had `mss` bytes.
    pub(super) fn footprint(&self, mss: usize) -> usize {
        self.queued + self.slots.len() * (mss + PER_SEGMENT) + self.queue.len() * PER_SEGMENT
    }

    /// Cuts `data` to pieces of `mss` bytes; with `top_up` the last piece of the queue is filled first.
    pub(super) fn enqueue(&mut self, mut data: &[u8], mss: usize, top_up: bool) {
        self.queued += data.len();
        if top_up && let Some(last) = self.queue.back_mut() {
            let (head, rest) = data.split_at(data.len().min(mss.saturating_sub(last.len())));
            last.extend(head);
            data = rest;
        }
        for piece in data.chunks(mss) {
            let mut buffer = self.spare.pop().unwrap_or_default();
            buffer.extend(piece);
            self.queue.push_back(buffer);
        }
    }

    /// Everything below `una` has been received. True if that is news.
    pub(super) fn advance(&mut self, una: u32, delivery: &mut Delivery) -> bool {
        let count = una.wrapping_sub(self.una) as usize;
        if count == 0 || count > self.slots.len() {
            return false;
        }
        for _ in 0..count {
            let Some(slot) = self.slots.pop_front() else { break };
            let sent = (slot.transmissions == 1).then_some(slot.sent);
            if delivery.in_order && slot.fate == Fate::InFlight && delivery.oldest_us.is_none() {
                delivery.oldest_us = sent.map(|sent| sent.at_us);
            }
            self.settle(slot.fate, slot.data.len(), sent, delivery);
            self.release(slot.data);
        }
        self.una = una;
        if before(self.edge, una) {
            self.edge = una;
        }
        while self.holes.front().is_some_and(|sn| before(*sn, una)) {
            self.holes.pop_front();
        }
        if self.slots.is_empty() {
            self.timeout_us = u64::MAX;
            self.due.clear();
        }
        true
    }

    /// The transmission of `sn` at `ts` has been received. Returns when that was, if it was the latest, and whether
    /// the news is new.
    pub(super) fn acknowledge(&mut self, sn: u32, ts: u32, delivery: &mut Delivery) -> (bool, Option<Sent>) {
        let at = sn.wrapping_sub(self.una) as usize;
        let Some(slot) = self.slots.get_mut(at).filter(|slot| slot.fate != Fate::Acked) else {
            return (false, None);
        };
        let data = std::mem::take(&mut slot.data);
        let fate = slot.fate;
        let sent = Some(slot.sent).filter(|sent| sent.ts == ts);
        slot.fate = Fate::Acked;
        self.settle(fate, data.len(), sent, delivery);
        self.release(data);
        self.note_edge(sn);
        (true, sent)
    }

    fn settle(&mut self, fate: Fate, len: usize, sent: Option<Sent>, delivery: &mut Delivery) {
        if fate == Fate::Acked {
            return;
        }
        let bytes = len + SEGMENT_HEADER_LEN;
        delivery.bytes += bytes;
        if let Some(sent) = sent
            && delivery.newest.is_none_or(|newest| newest.at_us < sent.at_us)
        {
            delivery.newest = Some(sent);
        }
        if fate == Fate::InFlight {
            self.in_flight -= bytes;
        }
    }

    fn note_edge(&mut self, sn: u32) {
        if before(sn, self.edge) {
            let una = self.una;
            let key = sn.wrapping_sub(una);
            if let Ok(at) = self.holes.binary_search_by_key(&key, |hole| hole.wrapping_sub(una)) {
                self.holes.remove(at);
            }
            return;
        }
        while self.edge != sn {
            let slot = &self.slots[self.edge.wrapping_sub(self.una) as usize];
            if slot.fate != Fate::Acked {
                self.holes.push_back(self.edge);
            }
            self.edge = self.edge.wrapping_add(1);
        }
        self.edge = sn.wrapping_add(1);
    }

    /// Counts the acknowledgements of one datagram, `(sn, ts)`, against every hole that was sent no later. Returns
    /// those that have been overtaken `limit` times.
    pub(super) fn overtake(&mut self, acks: &mut [(u32, u32)], limit: u32) -> Overtaken {
        let una = self.una;
        // The highest first: most holes are done after `limit` of them.
        acks.sort_unstable_by_key(|ack| std::cmp::Reverse(ack.0.wrapping_sub(una).cast_signed()));
        let mut found = Overtaken::default();
        // The last one, and how many there were in a row.
        let mut gap = (una, 0);
        for &hole in &self.holes {
            let slot = &mut self.slots[hole.wrapping_sub(una) as usize];
            if slot.fate != Fate::InFlight {
                continue;
            }
            for &(sn, ts) in acks.iter() {
                if slot.overtaken >= limit || !before(hole, sn) {
                    break;
                }
                slot.overtaken += u32::from(!before(ts, slot.sent.ts));
            }
            if slot.overtaken >= limit {
                slot.fate = Fate::Lost;
                let bytes = slot.data.len() + SEGMENT_HEADER_LEN;
                self.in_flight -= bytes;
                self.due.push_back((hole, Loss::Overtaken));
                gap = (hole, if hole == gap.0.wrapping_add(1) { gap.1 + 1 } else { 1 });
                found.bytes += bytes;
                found.scattered += if gap.1 <= GAP { bytes } else { 0 };
            }
        }
        found
    }

    /// Takes what has been overtaken once for lost.
    pub(super) fn hurry(&mut self) -> Overtaken {
        self.overtake(&mut [], 1)
    }

    /// Finds segments that have timed out. True if there are any.
    pub(super) fn expire(&mut self, now_us: u64) -> bool {
        if now_us < self.timeout_us {
            return false;
        }
        self.timeout_us = u64::MAX;
        let mut found = false;
        for (sn, slot) in (0..).map(|i: u32| self.una.wrapping_add(i)).zip(&mut self.slots) {
            if slot.fate != Fate::InFlight {
                continue;
            }
            if slot.timeout_us > now_us {
                self.timeout_us = self.timeout_us.min(slot.timeout_us);
                continue;
            }
            slot.fate = Fate::Lost;
            self.in_flight -= slot.data.len() + SEGMENT_HEADER_LEN;
            self.due.push_back((sn, Loss::Timeout));
            found = true;
        }
        found
    }

    /// Takes all that is under way for lost.
    pub(super) fn lose_all(&mut self) {
        for (sn, slot) in (0..).map(|i: u32| self.una.wrapping_add(i)).zip(&mut self.slots) {
            if slot.fate == Fate::InFlight {
                slot.fate = Fate::Lost;
                self.due.push_back((sn, Loss::Overtaken));
            }
        }
        self.in_flight = 0;
        self.timeout_us = u64::MAX;
    }

    /// When [`ArqSender::expire`] may find something.
    pub(super) fn timeout_us(&self) -> Option<u64> {
        (self.timeout_us != u64::MAX).then_some(self.timeout_us)
    }

    /// Segments that may wait to be sent again; exact when it is 0, or after [`ArqSender::has_due`].
    pub(super) fn due_len(&self) -> usize {
        self.due.len()
    }

    /// Whether something waits to be sent again.
    pub(super) fn has_due(&mut self) -> bool {
        while let Some(&(sn, loss)) = self.due.front() {
            let at = sn.wrapping_sub(self.una) as usize;
            let is_due = |slot: &Slot| match loss {
                Loss::Doubt => slot.fate != Fate::Acked,
                Loss::Overtaken | Loss::Timeout => slot.fate == Fate::Lost,
            };
            if self.slots.get(at).is_some_and(is_due) {
                return true;
            }
            self.due.pop_front();
        }
        false
    }

    /// Whether what is next to be sent again has been sent again before, and has been overtaken.
    pub(super) fn was_lost_again(&self) -> bool {
        let Some(&(sn, Loss::Overtaken)) = self.due.front() else { return false };
        self.slots.get(sn.wrapping_sub(self.una) as usize).is_some_and(|slot| slot.transmissions > 1)
    }

    /// Length of the payload that [`ArqSender::send_again`], or else [`ArqSender::send_new`], would send.
    pub(super) fn next_len(&mut self) -> Option<usize> {
        if self.has_due() {
            let (sn, _) = self.due.front()?;
            return self.slots.get(sn.wrapping_sub(self.una) as usize).map(|slot| slot.data.len());
        }
        self.queue.front().map(Vec::len)
    }

    /// Sends the first lost segment again; with `twice` yet another time behind all others that are due.
    pub(super) fn send_again(&mut self, sent: Sent, rto: &Rto, twice: bool) -> Option<Outgoing<'_>> {
        if !self.has_due() {
            return None;
        }
        let (sn, loss) = self.due.pop_front()?;
        let slot = &mut self.slots[sn.wrapping_sub(self.una) as usize];
        slot.rto_ms = match loss {
            Loss::Overtaken | Loss::Doubt => rto.current_ms(),
            Loss::Timeout => rto.after_timeout_ms(slot.rto_ms),
        };
        if slot.fate == Fate::Lost {
            slot.fate = Fate::InFlight;
            self.in_flight += slot.data.len() + SEGMENT_HEADER_LEN;
        }
        if twice && loss != Loss::Doubt {
            self.due.push_back((sn, Loss::Doubt));
        }
        slot.overtaken = 0;
        slot.transmissions += 1;
        slot.sent = sent;
        slot.timeout_us = sent.at_us + u64::from(slot.rto_ms) * 1000;
        self.timeout_us = self.timeout_us.min(slot.timeout_us);
        Some(Outgoing { sn, data: &slot.data, loss: Some(loss), transmissions: slot.transmissions })
    }

    /// Numbers the first piece of the queue and sends it.
    pub(super) fn send_new(&mut self, sent: Sent, rto: &Rto) -> Option<Outgoing<'_>> {
        let data = self.queue.pop_front()?;
        self.queued -= data.len();
        self.in_flight += data.len() + SEGMENT_HEADER_LEN;
        let sn = self.una.wrapping_add(u32::try_from(self.slots.len()).expect("windows have 16 bits"));
        // Nothing follows that could overtake it.
        let is_lone = self.queue.is_empty() && self.slots.len() < LONE;
        let rto_ms = if is_lone { rto.lone_ms() } else { rto.current_ms() };
        let timeout_us = sent.at_us + u64::from(rto_ms) * 1000;
        self.timeout_us = self.timeout_us.min(timeout_us);
        let fate = Fate::InFlight;
        self.slots.push_back(Slot { data, fate, sent, timeout_us, rto_ms, overtaken: 0, transmissions: 1 });
        let data = &self.slots.back()?.data;
        Some(Outgoing { sn, data, loss: None, transmissions: 1 })
    }

    /// Whether nothing is under way, and more is kept than an idle session needs.
    pub(super) fn could_rest(&self) -> bool {
        self.slots.is_empty() && self.queue.is_empty() && self.spare.len() > SPARE / 32
    }

    /// Gives that back.
    pub(super) fn rest(&mut self) {
        self.spare.truncate(SPARE / 32);
        self.slots.shrink_to(SPARE / 4);
        self.queue.shrink_to(SPARE);
        self.holes.shrink_to(SPARE);
        self.due.shrink_to(SPARE);
    }

    fn release(&mut self, mut buffer: Vec<u8>) {
        if self.spare.len() < SPARE && buffer.capacity() > 0 {
            buffer.clear();
            self.spare.push(buffer);
        }
    }

    #[cfg(test)]
    pub(super) fn spare(&self) -> usize {
        self.spare.len()
    }

    #[cfg(test)]
    pub(super) fn start_at(&mut self, sn: u32) {
        (self.una, self.edge) = (sn, sn);
    }
}
