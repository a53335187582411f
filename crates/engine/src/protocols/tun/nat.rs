//! The mappings of streams: which client and target stand behind a port of the interface's neighbour.
//!
//! A mapping begins with a SYN, is held while its connection is served, and is kept a while longer for what the kernel still
//! sends. Both families have tables of their own, with a port for each of their slots; when all ports are taken, mappings
//! make room whose connections are over, then those that were never accepted, and never others.

use std::collections::BTreeMap;
use std::net::SocketAddr;

use adit_net::udp::divert::Led;

use crate::datagram::{FlowId, FlowTable, FlowTick};

/// The lowest port of mappings: those below are for services.
pub(super) const FIRST_PORT: u16 = 10_000;
/// Most mappings of a family.
pub(super) const MOST: u16 = u16::MAX - FIRST_PORT;

/// Seconds without a segment for a connection that is not accepted: the kernel repeats its answer to a SYN for 63.
const OPENING_IDLE: FlowTick = 75;
/// Seconds without a segment for a connection that is over: the kernel remembers it for 60 (`TCP_TIMEWAIT_LEN`).
const CLOSING_IDLE: FlowTick = 65;

const OPENING: usize = 0;
const OPEN: usize = 1;
const CLOSING: usize = 2;
/// Those that make room, in this order.
const GIVING_WAY: &[usize] = &[CLOSING, OPENING];

/// Client and target.
pub(super) type Ends = (SocketAddr, SocketAddr);

/// Names a mapping for as long as it lives.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct StreamId {
    is_v6: bool,
    id: FlowId,
}

#[derive(Debug)]
pub(super) struct Nat {
    v4: FlowTable<Ends, Mapping, 3>,
    v6: FlowTable<Ends, Mapping, 3>,
    now: FlowTick,
}

#[derive(Debug, Default)]
struct Mapping {
    /// Accepted connections that are not over; two at most times when a client begins anew from the same port.
    held: u32,
    /// One of them belongs to a process before this one.
    is_earlier: bool,
    /// All of them are over, and there was one.
    is_over: bool,
}

impl Default for Nat {
    fn default() -> Self {
        Self::with_room_for(MOST)
    }
}

impl Nat {
    /// A table for so many mappings of each family, [`MOST`] at most.
    fn with_room_for(most: u16) -> Self {
        let table = || {
            FlowTable::new(most.min(MOST).into(), [OPENING_IDLE, FlowTick::MAX, CLOSING_IDLE])
                .with_unproven(GIVING_WAY)
        };
        Self { v4: table(), v6: table(), now: 0 }
    }

    fn table(&mut self, is_v6: bool) -> &mut FlowTable<Ends, Mapping, 3> {
        if is_v6 { &mut self.v6 } else { &mut self.v4 }
    }

    /// The port of a client's segment. A mapping begins only if the segment `may_begin` one; `None` if there is none.
    pub(super) fn outgoing(&mut self, ends: Ends, may_begin: bool) -> Option<u16> {
        let now = self.now;
        let table = self.table(ends.1.is_ipv6());
        if let Some(id) = table.find(&ends) {
            table.touch(id, now);
            if may_begin && let Some(mapping) = table.get_mut(id).filter(|mapping| mapping.held == 0) {
                mapping.is_over = false;
                table.set_class(id, OPENING, now);
            }
            return port(id);
        }
        if !may_begin {
            return None;
        }
        if table.is_full() && table.evict_one_unanswered().is_none() {
            return None;
        }
        let (id, evicted) = table.insert(ends, Mapping::default(), OPENING, now);
        debug_assert!(evicted.is_none(), "there was room");
        port(id)
    }

    /// Client and target of a segment for a port.
    pub(super) fn incoming(&mut self, is_v6: bool, port: u16) -> Option<Ends> {
        let now = self.now;
        let table = self.table(is_v6);
        let id = table.at(slot(port)?)?;
        table.touch(id, now);
        table.entry(id).map(|(ends, _)| *ends)
    }

    /// The mapping of a connection that has been accepted from a port. It lives until [`Nat::close`].
    pub(super) fn accept(&mut self, is_v6: bool, port: u16) -> Option<(StreamId, Ends)> {
        let now = self.now;
        let table = self.table(is_v6);
        let id = table.at(slot(port)?)?;
        let (ends, mapping) = table.entry(id)?;
        let ends = *ends;
        mapping.held += 1;
        mapping.is_over = false;
        table.set_class(id, OPEN, now);
        Some((StreamId { is_v6, id }, ends))
    }

    /// A connection is over.
    pub(super) fn close(&mut self, stream: StreamId) {
        let now = self.now;
        let table = self.table(stream.is_v6);
        let Some(mapping) = table.get_mut(stream.id) else { return };
        mapping.held = mapping.held.saturating_sub(1);
        if mapping.held == 0 {
            mapping.is_over = true;
            table.set_class(stream.id, CLOSING, now);
        }
    }

    /// All mappings, for another process that leads their segments from now on.
    pub(super) fn led(&self) -> Vec<Led> {
        let all = [&self.v4, &self.v6].into_iter().flat_map(FlowTable::entries);
        all.filter_map(|(id, ends, ..)| Some((port(id)?, ends.0, ends.1))).collect()
    }

    /// The ports of those that are not over, each with whether it is of IPv6.
    pub(super) fn live(&self) -> impl Iterator<Item = (bool, u16)> {
        let all = [(false, &self.v4), (true, &self.v6)].into_iter();
        all.flat_map(|(is_v6, table)| {
            let live = table.entries().filter(|(_, _, mapping, _)| !mapping.is_over);
            live.filter_map(move |(id, ..)| Some((is_v6, port(id)?)))
        })
    }

    /// Takes over the mappings of a process before this one, into an empty table. Those that are not over there are held
    /// for it until [`Nat::release_earlier`].
    pub(super) fn take_over(&mut self, led: &[Led], is_live: impl Fn(bool, u16) -> bool) {
        let now = self.now;
        for is_v6 in [false, true] {
            let own = led
                .iter()
                .filter(|(_, client, target)| client.is_ipv6() == is_v6 && target.is_ipv6() == is_v6);
            let slots = own.filter_map(|(port, client, target)| Some((slot(*port)?, (*client, *target))));
            let slots: BTreeMap<u32, Ends> = slots.collect();
            let table = self.table(is_v6);
            let Some((last, _)) = slots.last_key_value().filter(|_| table.len() == 0) else { continue };
            // Slots are given out in their order, so the gaps are filled for a moment.
            let mut gaps = Vec::new();
            for at in 0..=*last {
                let gap = (SocketAddr::from(([0; 4], 0)), SocketAddr::from((at.to_be_bytes(), 0)));
                let ends = slots.get(&at).copied();
                let is_live = ends.is_some() && port_of(at).is_some_and(|port| is_live(is_v6, port));
                let (held, class) = if is_live { (1, OPEN) } else { (0, CLOSING) };
                let mapping = Mapping { held, is_earlier: is_live, is_over: !is_live };
                let (id, _) = table.insert(ends.unwrap_or(gap), mapping, class, now);
                if ends.is_none() {
                    gaps.push(id);
                }
            }
            for id in gaps {
                table.remove(id);
            }
        }
    }

    /// Lets go of the mappings of a process before this one, but for those that `is_left` there.
    pub(super) fn release_earlier(&mut self, is_left: impl Fn(bool, u16) -> bool) {
        for is_v6 in [false, true] {
            let table = self.table(is_v6);
            let earlier = table.entries().filter(|(_, _, mapping, _)| mapping.is_earlier);
            let gone = earlier.filter(|(id, ..)| !port(*id).is_some_and(|port| is_left(is_v6, port)));
            let gone: Vec<FlowId> = gone.map(|(id, ..)| id).collect();
            for id in gone {
                if let Some(mapping) = self.table(is_v6).get_mut(id) {
                    mapping.is_earlier = false;
                }
                self.close(StreamId { is_v6, id });
            }
        }
    }

    /// A second has passed.
    pub(super) fn tick(&mut self) {
        self.now = self.now.wrapping_add(1);
        let now = self.now;
        for table in [&mut self.v4, &mut self.v6] {
            while table.expire_one(now).is_some() {}
        }
    }
}

fn port(id: FlowId) -> Option<u16> {
    port_of(id.index())
}

fn port_of(slot: u32) -> Option<u16> {
    u16::try_from(slot).ok().and_then(|slot| FIRST_PORT.checked_add(slot))
}

fn slot(port: u16) -> Option<u32> {
    port.checked_sub(FIRST_PORT).map(u32::from)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Small, so that it is full most of the time.
    const ROOM: u16 = 4;

    fn ends(number: u8) -> Ends {
        let (client, target) = if number.is_multiple_of(2) {
            (format!("192.0.2.1:{}", 1000 + u16::from(number)), "198.51.100.1:443")
        } else {
            (format!("[2001:db8::1]:{}", 1000 + u16::from(number)), "[2001:db8:1::1]:443")
        };
        (client.parse().unwrap(), target.parse().unwrap())
    }

    fn is_v6(number: u8) -> bool {
        !number.is_multiple_of(2)
    }

    #[derive(Debug, Clone, Copy)]
    enum Step {
        Open(u8),
        Send(u8),
        Accept(u8),
        Close(u8),
        Tick(u8),
    }

    fn steps() -> impl Strategy<Value = Vec<Step>> {
        let step = prop_oneof![
            4 => (0..16_u8).prop_map(Step::Open),
            2 => (0..16_u8).prop_map(Step::Send),
            3 => (0..16_u8).prop_map(Step::Accept),
            3 => (0..16_u8).prop_map(Step::Close),
            1 => (0..90_u8).prop_map(Step::Tick),
        ];
        prop::collection::vec(step, 0..200)
    }

    /// Mapping as the model has it.
    #[derive(Debug)]
    struct Known {
        port: u16,
        streams: Vec<StreamId>,
        last: u32,
        is_over: bool,
    }

    proptest! {
        /// Ports are never shared, held mappings never go, others go when their time is over and not before unless the
        /// table is full.
        #[test]
        fn as_the_model(steps in steps()) {
            let mut nat = Nat::with_room_for(ROOM);
            let mut known: BTreeMap<u8, Known> = BTreeMap::new();
            let mut now = 0_u32;
            for step in steps {
                match step {
                    Step::Open(number) => {
                        let port = nat.outgoing(ends(number), true);
                        let family = |other: &u8| is_v6(*other) == is_v6(number);
                        let is_held = |known: &Known| !known.streams.is_empty();
                        let held = known.iter().filter(|(other, known)| family(other) && is_held(known)).count();
                        if let Some(found) = known.get_mut(&number) {
                            prop_assert_eq!(port, Some(found.port));
                            found.last = now;
                            found.is_over &= !found.streams.is_empty();
                        } else if let Some(port) = port {
                            // The one that had the port has made room.
                            known.retain(|other, known| !(family(other) && known.port == port && !is_held(known)));
                            let is_taken = known.iter().any(|(other, known)| family(other) && known.port == port);
                            prop_assert!(!is_taken, "{} is held", port);
                            known.insert(number, Known { port, streams: vec![], last: now, is_over: false });
                        } else {
                            prop_assert_eq!(held, usize::from(ROOM), "refused although some could make room");
                        }
                    }
                    Step::Send(number) => {
                        let port = nat.outgoing(ends(number), false);
                        prop_assert_eq!(port, known.get(&number).map(|found| found.port));
                        if let Some(found) = known.get_mut(&number) {
                            found.last = now;
                            let back = nat.incoming(is_v6(number), found.port);
                            prop_assert_eq!(back, Some(ends(number)));
                        }
                    }
                    Step::Accept(number) => {
                        let Some(found) = known.get_mut(&number) else { continue };
                        let (stream, behind) = nat.accept(is_v6(number), found.port).unwrap();
                        prop_assert_eq!(behind, ends(number));
                        found.streams.push(stream);
                        found.last = now;
                    }
                    Step::Close(number) => {
                        let Some(found) = known.get_mut(&number) else { continue };
                        let Some(stream) = found.streams.pop() else { continue };
                        nat.close(stream);
                        if found.streams.is_empty() {
                            (found.last, found.is_over) = (now, true);
                        }
                    }
                    Step::Tick(seconds) => {
                        for _ in 0..seconds {
                            nat.tick();
                            now += 1;
                        }
                        known.retain(|_, known| {
                            let idle = if known.is_over { CLOSING_IDLE } else { OPENING_IDLE };
                            !known.streams.is_empty() || now - known.last <= idle
                        });
                    }
                }
                prop_assert_eq!(nat.v4.len() + nat.v6.len(), known.len());
                for (number, found) in &known {
                    // Looked up without counting as a segment.
                    let table = nat.table(is_v6(*number));
                    let id = table.at(slot(found.port).unwrap()).unwrap();
                    prop_assert_eq!(table.entry(id).map(|(behind, _)| *behind), Some(ends(*number)));
                }
            }
        }
    }

    #[test]
    fn another_process_leads_the_same_ports() {
        let mut old = Nat::default();
        let ports: Vec<u16> = (0..10).map(|number| old.outgoing(ends(number), true).unwrap()).collect();
        let at = |number: u8| ports[usize::from(number)];
        let accept = |nat: &mut Nat, number: u8| nat.accept(is_v6(number), at(number)).unwrap().0;
        let streams: Vec<StreamId> = (0..8).map(|number| accept(&mut old, number)).collect();
        // 0 is over, 2 is forgotten, 8 and 9 have not been accepted yet.
        old.close(streams[2]);
        (0..=CLOSING_IDLE).for_each(|_| old.tick());
        for number in [8, 9] {
            old.outgoing(ends(number), true);
        }
        old.close(streams[0]);
        assert_eq!(old.incoming(false, at(2)), None);
        let live: Vec<(bool, u16)> = old.live().collect();
        assert_eq!(live.len(), 8, "{live:?}");
        let mut new = Nat::default();
        new.take_over(&old.led(), |is_v6, port| live.contains(&(is_v6, port)));
        for number in 0..10 {
            let behind = new.incoming(is_v6(number), at(number));
            assert_eq!(behind, (number != 2).then(|| ends(number)), "{number}");
        }
        // The gap is for the next one, and those that are held stay however long they are still.
        assert_eq!(new.outgoing(ends(20), true), Some(at(2)));
        let ninth = accept(&mut new, 9);
        (0..=OPENING_IDLE).for_each(|_| new.tick());
        let left: Vec<u8> =
            (0..10).filter(|number| new.incoming(is_v6(*number), at(*number)).is_some()).collect();
        assert_eq!(left, [1, 3, 4, 5, 6, 7, 8, 9]);
        // The old process says which of them are over; this one's own goes on.
        new.release_earlier(|is_v6, port| (is_v6, port) == (true, at(3)));
        assert_eq!(new.live().collect::<Vec<_>>(), [(true, at(3)), (true, at(9))]);
        (0..=CLOSING_IDLE).for_each(|_| new.tick());
        assert_eq!(new.led().len(), 2);
        new.close(ninth);
        new.release_earlier(|_, _| false);
        assert_eq!(new.live().count(), 0);
        // Into a table that is in use nothing is taken, and neither is what makes no sense.
        new.outgoing(ends(20), true);
        new.take_over(&old.led(), |_, _| true);
        assert_eq!(new.live().count(), 1);
        let (v4, v6) = (ends(0), ends(1));
        let mut odd = Nat::default();
        odd.take_over(&[(FIRST_PORT - 1, v4.0, v4.1), (FIRST_PORT, v4.0, v6.1)], |_, _| true);
        assert_eq!(odd.led(), []);
    }

    #[test]
    fn all_ports_are_used_and_no_more() {
        let mut nat = Nat::default();
        let target: SocketAddr = "198.51.100.1:443".parse().unwrap();
        let client = |number: u16| {
            let [high, low] = number.to_be_bytes();
            SocketAddr::from(([10, 0, high, low], 5000))
        };
        let mut streams = Vec::new();
        for number in 0..MOST {
            let port = nat.outgoing((client(number), target), true).unwrap();
            assert!(port >= FIRST_PORT);
            streams.push(nat.accept(false, port).unwrap().0);
        }
        let other: SocketAddr = "10.255.0.1:1".parse().unwrap();
        assert_eq!(nat.outgoing((other, target), true), None, "all are held");
        nat.close(streams[7]);
        let port = nat.outgoing((other, target), true);
        assert_eq!(port, Some(FIRST_PORT + 7), "one whose connection is over makes room");
        assert_eq!(nat.accept(false, FIRST_PORT + 7).unwrap().1, (other, target));
        nat.close(streams[7]);
        assert_eq!(nat.incoming(false, FIRST_PORT + 7), Some((other, target)), "an old name means nothing");
        assert_eq!((nat.incoming(false, FIRST_PORT - 1), nat.incoming(true, FIRST_PORT)), (None, None));
    }
}
