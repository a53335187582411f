//! The packets of the interface on the core that reads it.

use std::collections::HashSet;
use std::io::{self, IoSlice};
use std::net::{IpAddr, SocketAddr};
use std::ops::Range;
use std::os::fd::OwnedFd;
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use adit_model::Tag;
use adit_net::rt;
use adit_net::tun::TunSocket;
use adit_net::udp::divert::Led;
use adit_net::udp::{DatagramBatch, Outgoing, Sent};
use adit_proto::ip::offload::{LEN as OFFLOAD_LEN, Offload, OffloadKind};
use adit_proto::ip::{self, IpHeader, icmp, tcp, udp};
use adit_proto::wire::{Host, Target};

use super::Shared;
use super::inbound_udp::AnswerSources;
use super::own::{Echo, Own};
use crate::counters::InboundMetrics;
use crate::datagram::{DatagramPort, DropReason, FlowTick, Peer};
use crate::log_throttle::LogThrottle;

/// Packets that one call reads at most, and bytes after which it reads no more: the loop looks at its sockets again.
const PACKETS: usize = 32;
const BYTES: usize = 256 * 1024;

/// Port of name servers.
pub(super) const DNS: u16 = 53;

/// Most datagrams of one packet, as the kernel has it for sockets.
const SEGMENTS: usize = 64;

/// Refusals per second, of all kinds together: Linux answers as many with ICMP (`net.ipv4.icmp_msgs_per_sec`).
const REFUSALS: u32 = 1000;

/// The addresses that segments are led to, in one family.
#[derive(Debug, Clone, Copy)]
struct Link {
    /// The listener.
    own: SocketAddr,
    /// The neighbour, whose ports stand for mappings.
    neighbour: IpAddr,
}

/// The interface: datagrams for the engine, and streams for the kernel.
pub(super) struct TunPort {
    socket: Rc<TunSocket>,
    shared: Arc<Shared>,
    own: Own,
    v4: Option<Link>,
    v6: Option<Link>,
    name: Tag,
    metrics: Arc<InboundMetrics>,
    sources: AnswerSources,
    /// Refusals that may still be sent in this second.
    refusals: u32,
    /// Identification of the next packet.
    id: u16,
    fragments: LogThrottle,
    /// A process before this one has streams or clients.
    has_earlier: bool,
    /// The interface has been removed.
    gone: Option<io::Error>,
}

/// A packet's headers, read.
struct Packet {
    offload: Offload,
    header: IpHeader,
}

impl TunPort {
    /// The interface behind `socket`, whose listeners are `listening`; under the name and counters of its inbound.
    pub(super) fn new(
        socket: TunSocket,
        shared: Arc<Shared>,
        listening: &[SocketAddr],
        name: Tag,
        metrics: Arc<InboundMetrics>,
        sources: AnswerSources,
        own: Own,
    ) -> Self {
        // Flows of an earlier process go on.
        let earlier = socket.earlier_peers();
        let is_live = |is_v6, port| shared.stand_in(is_v6, port).is_some_and(|peer| earlier.contains(&peer));
        shared.nat().take_over(&socket.take_led(), is_live);
        let has_earlier = !earlier.is_empty();
        let link = |is_v6: bool| {
            let own = *listening.iter().find(|own| own.is_ipv6() == is_v6)?;
            Some(Link { own, neighbour: shared.neighbour(is_v6)? })
        };
        Self {
            v4: link(false),
            v6: link(true),
            socket: Rc::new(socket),
            shared,
            own,
            name,
            metrics,
            sources,
            refusals: REFUSALS,
            id: 0,
            fragments: LogThrottle::default(),
            has_earlier,
            gone: None,
        }
    }

    #[cfg(test)]
    pub(super) fn take_gone(&mut self) -> bool {
        self.gone.take().is_some()
    }

    /// Bytes in front of a packet.
    fn front(&self) -> usize {
        if self.socket.has_header() { OFFLOAD_LEN } else { 0 }
    }

    /// Reads what waits, as one batch.
    fn poll_read(&mut self, cx: &mut Context<'_>, batch: &mut DatagramBatch) -> Poll<io::Result<()>> {
        batch.begin_packets();
        let (mut slot, mut bytes) = (0, 0);
        for packet in 0..PACKETS {
            let Some(place) = batch.packet_slot(slot, self.front()) else { break };
            let read = match self.socket.poll_read(cx, &mut batch.block[place.clone()]) {
                Poll::Ready(read) => read?,
                Poll::Pending if packet > 0 => return Poll::Ready(Ok(())),
                Poll::Pending => return Poll::Pending,
            };
            slot += usize::from(self.take(batch, slot, place.start..place.start + read));
            bytes += read;
            if bytes >= BYTES {
                break;
            }
        }
        batch.set_full(true);
        Poll::Ready(Ok(()))
    }

    /// Takes the packet that was read into slot `at`, with its header of offload, at `range`. True if its datagrams are for
    /// the engine.
    fn take(&mut self, batch: &mut DatagramBatch, at: usize, range: Range<usize>) -> bool {
        let Some(bytes) = batch.block.get_mut(range.clone()) else { return false };
        let offload = if self.socket.has_header() {
            bytes.first_chunk().map(Offload::parse)
        } else {
            Some(Offload::default())
        };
        let front = self.front();
        let parsed = offload.zip(bytes.get(front..).and_then(|packet| IpHeader::parse(packet).ok()));
        let Some((offload, header)) = parsed else {
            self.metrics.datagrams.dropped.malformed.add(1);
            return false;
        };
        // Groups of hosts ask for nothing that can be carried, and the kernel sends such packets by itself.
        if !header.is_to_a_host() || !header.is_from_a_host() {
            return false;
        }
        let packet = Packet { offload, header };
        if packet.header.is_fragment {
            self.log_fragment();
            return false;
        }
        match packet.header.protocol {
            ip::TCP => self.take_segment(bytes, &packet),
            ip::UDP => return self.take_datagrams(batch, at, range.start + front, &packet),
            _ => self.take_other(bytes, &packet),
        }
        false
    }

    fn log_fragment(&self) {
        self.metrics.datagrams.dropped.too_big.add(1);
        if let Some(count) = self.fragments.due(rt::now()) {
            tracing::info!(
                inbound = &*self.name,
                count,
                "fragments of datagrams that are larger than the interface's mtu: they are dropped"
            );
        }
    }

    /// Leads a segment to the listener, or the listener's to its client.
    fn take_segment(&mut self, bytes: &mut [u8], packet: &Packet) {
        let front = self.front();
        let Packet { offload, header } = packet;
        let segment = tcp::TcpSegment::parse(&bytes[front..], header);
        let fits = offload.fits(header.payload.start, tcp::CHECKSUM_AT)
            && matches!(offload.kind(), OffloadKind::One | OffloadKind::Tcp);
        let Some(segment) = segment.ok().filter(|_| fits) else {
            self.metrics.datagrams.dropped.malformed.add(1);
            return;
        };
        let Some((from, to)) = self.lead(packet, &segment) else { return };
        if tcp::rewrite(&mut bytes[front..], header, offload.is_partial(), from, to).is_err() {
            return;
        }
        if let Some(head) = bytes.first_chunk_mut().filter(|_| front > 0) {
            *head = offload.with_header_len(header.payload.start + segment.header_len).emit();
        }
        self.write(&bytes[..front + header.payload.end]);
    }

    /// The new ends of a segment; `None` if it goes nowhere, which its sender has been told.
    fn lead(&mut self, packet: &Packet, segment: &tcp::TcpSegment) -> Option<(SocketAddr, SocketAddr)> {
        let header = &packet.header;
        let (from, to) = segment.ends(header);
        let link = if header.is_v6() { self.v6 } else { self.v4 };
        let Some(link) = link else {
            self.reset(header, segment);
            return None;
        };
        if from == link.own && to.ip() == link.neighbour {
            let (client, target) = self.shared.nat().incoming(header.is_v6(), to.port())?;
            return Some((target, client));
        }
        let is_ours = to.ip() == link.neighbour || to.ip() == link.own.ip();
        let port = if is_ours || to.port() == 0 {
            None
        } else {
            self.shared.nat().outgoing((from, to), segment.is_opening())
        };
        let Some(port) = port else {
            self.reset(header, segment);
            return None;
        };
        Some((SocketAddr::new(link.neighbour, port), link.own))
    }

    /// Hands the datagrams of a packet that begins at `start` of the block to the engine.
    fn take_datagrams(
        &mut self,
        batch: &mut DatagramBatch,
        at: usize,
        start: usize,
        packet: &Packet,
    ) -> bool {
        let Packet { offload, header } = packet;
        let bytes = &batch.block[start..];
        let stride = match offload.kind() {
            OffloadKind::One => Some(0),
            OffloadKind::Udp => Some(usize::from(offload.segment_len)).filter(|stride| *stride > 0),
            OffloadKind::Tcp | OffloadKind::Other(_) => None,
        };
        let fits = offload.fits(header.payload.start, udp::CHECKSUM_AT);
        let datagram = udp::UdpDatagram::parse(bytes, header).ok().filter(|datagram| {
            // The kernel completes what it calls partial, and has not looked at what it forwards.
            fits && (offload.is_trusted() || datagram.is_intact(bytes, header))
        });
        let (Some(stride), Some(datagram)) = (stride, datagram) else {
            self.metrics.datagrams.dropped.malformed.add(1);
            return false;
        };
        let ends = datagram.ends(header);
        if ends.1.port() == 0 {
            return false;
        }
        let payload = start + datagram.payload.start..start + datagram.payload.end;
        if ends.1.port() == DNS && self.own.names.is_some() {
            let bytes = &batch.block[payload];
            for message in bytes.chunks(if stride == 0 { bytes.len().max(1) } else { stride }) {
                self.own.answer_name(&self.socket, ends, message, &self.metrics);
            }
            return false;
        }
        batch.push_payload(at, ends, header.class, payload, stride);
        true
    }

    /// Answers a question for an echo, and refuses those for others.
    fn take_other(&mut self, bytes: &mut [u8], packet: &Packet) {
        let front = self.front();
        let header = &packet.header;
        let Some(whole) = bytes.get_mut(front..front + header.payload.end) else { return };
        let is_here = match icmp::echo_number(whole, header).filter(|_| icmp::is_intact(whole, header)) {
            Some(_) if self.shared.owns(header.destination) => true,
            Some(number) => {
                let message = &whole[header.payload.clone()];
                let ends = (header.source, header.destination);
                match self.own.echo(&self.socket, ends, number, message, &self.name) {
                    Echo::Here => true,
                    Echo::Asked | Echo::Dropped => return,
                    Echo::Refused => false,
                }
            }
            None => false,
        };
        if is_here && icmp::answer_echo(whole, header) {
            if let Some(head) = bytes.first_chunk_mut().filter(|_| front > 0) {
                *head = Offload::default().emit();
            }
            return self.write(&bytes[..front + header.payload.end]);
        }
        self.answer(|out| icmp::unreachable(out, &bytes[front..], header, icmp::Reason::Host));
    }

    fn reset(&mut self, header: &IpHeader, segment: &tcp::TcpSegment) {
        self.answer(|out| tcp::reset(out, header, segment));
    }

    /// Writes the refusal that `emit` makes, within the rate.
    fn answer(&mut self, emit: impl FnOnce(&mut [u8]) -> Option<usize>) {
        let Some(left) = self.refusals.checked_sub(1) else { return };
        let front = self.front();
        let mut out = [0; OFFLOAD_LEN + icmp::MAX_LEN];
        if let Some(len) = emit(&mut out[front..]) {
            self.refusals = left;
            self.write(&out[..front + len]);
        }
    }

    fn write(&self, bytes: &[u8]) {
        if let Err(error) = self.socket.write(bytes) {
            tracing::trace!(inbound = &*self.name, %error, "packet dropped");
            self.metrics.datagrams.dropped.system.add(1);
        }
    }

    /// Writes datagrams of one source and client, all of the same length but for the last.
    fn write_group(&mut self, source: SocketAddr, block: &[u8], group: &[Outgoing]) -> io::Result<()> {
        let id = self.id;
        self.id = self.id.wrapping_add(u16::try_from(group.len()).unwrap_or(1));
        write_group(&self.socket, source, id, block, group)
    }
}

/// Writes one datagram of `source` for `to`.
///
/// # Errors
/// When the packet would be too long; the system's error.
pub(super) fn write_datagram(
    socket: &TunSocket,
    source: SocketAddr,
    to: SocketAddr,
    bytes: &[u8],
) -> io::Result<()> {
    let whole = Outgoing { key: 0, to, from: None, class: 0, start: 0, len: bytes.len() };
    write_group(socket, source, 0, bytes, &[whole])
}

/// Writes datagrams of one source and client, all of the same length but for the last; `id` is that of their packets.
fn write_group(
    socket: &TunSocket,
    source: SocketAddr,
    id: u16,
    block: &[u8],
    group: &[Outgoing],
) -> io::Result<()> {
    let (first, front) = (&group[0], if socket.has_header() { OFFLOAD_LEN } else { 0 });
    let len = group.iter().map(|datagram| datagram.len).sum();
    let mut head = [0; OFFLOAD_LEN + udp::MAX_HEADERS];
    let made = udp::emit_headers(&mut head[front..], source, first.to, first.class, id, len);
    let ip_len = made.ok_or(io::ErrorKind::InvalidInput)?;
    let headers = front..front + ip_len + udp::HEADER_LEN;
    let bytes = |datagram: &Outgoing| &block[datagram.start..datagram.start + datagram.len];
    if front > 0 {
        let segment_len = if group.len() > 1 { u16::try_from(first.len).unwrap_or(0) } else { 0 };
        head[..OFFLOAD_LEN].copy_from_slice(&Offload::datagrams(ip_len, segment_len).emit());
    } else {
        udp::complete(&mut head[headers.clone()], ip_len, bytes(first));
    }
    let mut parts = [IoSlice::new(&[]); SEGMENTS + 1];
    parts[0] = IoSlice::new(&head[..headers.end]);
    for (part, datagram) in parts[1..].iter_mut().zip(group) {
        *part = IoSlice::new(bytes(datagram));
    }
    socket.write_parts(&parts[..=group.len()])
}

/// Number of the first of `datagrams`, with their sources, that leave as one packet: from one source to one client, all of
/// one length but the last, which may be shorter, but not empty.
fn group_len(datagrams: &[Outgoing], sources: &[SocketAddr], takes_segments: bool) -> usize {
    let (Some(first), Some(source)) = (datagrams.first(), sources.first()) else { return 0 };
    if !takes_segments || first.len == 0 {
        return 1;
    }
    let most = SEGMENTS.min((ip::MAX_LEN - udp::MAX_HEADERS) / first.len).max(1);
    let mut count = 1;
    for (next, other) in datagrams.iter().zip(sources).take(most).skip(1) {
        let is_same = (next.to, next.class, other) == (first.to, first.class, source);
        if !is_same || next.len == 0 || next.len > first.len {
            break;
        }
        count += 1;
        if next.len < first.len {
            break;
        }
    }
    count
}

impl DatagramPort for TunPort {
    fn poll_receive(
        &mut self,
        cx: &mut Context<'_>,
        batch: &mut DatagramBatch,
        lost: &mut u64,
    ) -> Poll<io::Result<()>> {
        if let Some(error) = self.gone.take() {
            return Poll::Ready(Err(error));
        }
        let received = match ready!(self.socket.poll_passed(cx, batch))? {
            true => Poll::Ready(Ok(())),
            false => self.poll_read(cx, batch),
        };
        if received.is_ready() {
            self.socket.divert(batch, lost);
        }
        received
    }

    fn pass_on(&mut self, pair: OwnedFd, peers: &[SocketAddr]) -> io::Result<Vec<Led>> {
        self.socket.pass_on(pair, peers)?;
        Ok(self.shared.nat().led())
    }

    /// The clients of earlier processes, and streams by the addresses that stand for them.
    fn earlier_peers(&self) -> HashSet<SocketAddr> {
        let mut peers = self.socket.earlier_peers();
        let nat = self.shared.nat();
        peers.extend(nat.live().filter_map(|(is_v6, port)| self.shared.stand_in(is_v6, port)));
        peers
    }

    fn follow_earlier(&mut self) -> usize {
        let left = self.socket.follow_earlier();
        if self.has_earlier {
            let peers = self.socket.earlier_peers();
            let is_left =
                |is_v6, port| self.shared.stand_in(is_v6, port).is_some_and(|peer| peers.contains(&peer));
            self.shared.nat().release_earlier(is_left);
            self.has_earlier = left > 0;
        }
        left + self.own.waiting()
    }

    fn keep_peers(&mut self, current: HashSet<SocketAddr>) {
        self.socket.keep_peers(current);
    }

    fn send(&mut self, batch: &mut DatagramBatch, datagrams: &[Outgoing]) -> Sent {
        let mut report = Sent::default();
        let known: Vec<SocketAddr> = {
            let mut sources = self.sources.borrow_mut();
            // An answer that was sealed and is not among the datagrams went nowhere.
            let found = datagrams.iter().map_while(|datagram| {
                std::iter::from_fn(|| sources.pop_front()).find(|(start, _)| *start == datagram.start)
            });
            found.map(|(_, source)| source).collect()
        };
        self.sources.borrow_mut().clear();
        let mut at = 0;
        while at < known.len() {
            let count = group_len(&datagrams[at..known.len()], &known[at..], self.socket.takes_segments());
            let group = &datagrams[at..at + count];
            match self.write_group(known[at], &batch.block, group) {
                Ok(()) => report.sent += count,
                Err(error) => {
                    tracing::trace!(inbound = &*self.name, %error, "datagrams dropped");
                    report.failed += count;
                }
            }
            at += count;
        }
        report.failed += datagrams.len() - known.len();
        report
    }

    fn tick(&mut self, _: FlowTick) {
        self.refusals = REFUSALS;
        self.shared.nat().tick();
        self.own.sweep();
        self.gone = self.socket.check().err();
    }

    fn refuse(&mut self, peer: Peer, target: &Target, reason: &DropReason) {
        let is_refused = matches!(
            reason,
            DropReason::Rule
                | DropReason::Blocked
                | DropReason::Private(_)
                | DropReason::Unresolved
                | DropReason::Unmapped
        );
        let Host::Ip(ip) = target.host else { return };
        if !is_refused {
            return;
        }
        // The datagram itself may have been overwritten; its headers are all that its sender looks at.
        let mut packet = [0; udp::MAX_HEADERS];
        let to = SocketAddr::new(ip, target.port);
        let Some(ip_len) = udp::emit_headers(&mut packet, peer.at, to, 0, 0, 0) else { return };
        let packet = &packet[..ip_len + udp::HEADER_LEN];
        let Ok(header) = IpHeader::parse(packet) else { return };
        self.answer(|out| icmp::unreachable(out, packet, &header, icmp::Reason::Port));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn outgoing(lens: &[usize]) -> Vec<Outgoing> {
        let to = SocketAddr::from(([192, 0, 2, 1], 9));
        lens.iter().map(|len| Outgoing { key: 0, to, from: None, class: 0, start: 0, len: *len }).collect()
    }

    #[test]
    fn groups_have_one_source_and_one_length() {
        let source = SocketAddr::from(([198, 51, 100, 1], 53));
        for (lens, count) in [
            (&[][..], 0),
            (&[5], 1),
            (&[5, 5, 4, 5], 3),
            (&[5, 6], 1),
            (&[5, 0], 1),
            (&[0, 0], 1),
            (&[1400; 80], 46),
            (&[9; 80], 64),
            (&[65_487, 65_487], 1),
        ] {
            assert_eq!(group_len(&outgoing(lens), &vec![source; lens.len()], true), count, "{lens:?}");
        }
        assert_eq!(group_len(&outgoing(&[5, 5]), &[source; 2], false), 1);
        let mut others = [source; 3];
        others[2].set_port(54);
        assert_eq!(group_len(&outgoing(&[5, 5, 5]), &others, true), 2);
        let mut marked = outgoing(&[5, 5, 5]);
        marked[1].class = 1;
        assert_eq!(group_len(&marked, &[source; 3], true), 1);
    }
}
