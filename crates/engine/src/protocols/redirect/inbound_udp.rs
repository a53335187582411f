//! Datagrams that the firewall brings. An answer leaves from the address that it came from, which is not one of this
//! machine: each such source has a socket, and a bounded number of them is kept.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::io;
use std::net::SocketAddr;
use std::ops::Range;

use adit_model::Tag;
use adit_net::reach::is_own;
use adit_net::udp::{DatagramBatch, Outgoing, Sent, Socket};
use adit_proto::wire::{Host, Room, Target, WireError};

use crate::datagram::{
    Arrival, DatagramTarget, DropReason, FlowClient, FlowTick, OpenedDatagram, PacketInbound, bare_room,
};

/// Sources with a socket of their own, on one core. Applications talk to a few at a time; one more makes room by closing
/// the socket that was used longest ago.
const MAX_SOURCES: usize = 256;
/// Seconds after which a socket that sends nothing is closed.
const IDLE: FlowTick = 60;

/// The datagrams of one listener.
pub(super) struct CapturedPackets {
    name: Tag,
    replies: Replies,
    /// The source of each answer that is sealed and not sent, by its start in the batch.
    sealed: Vec<(usize, SocketAddr)>,
    /// The part of one call that has one source.
    group: Vec<Outgoing>,
}

impl CapturedPackets {
    /// The datagrams of the inbound `name`.
    pub(super) fn new(name: Tag) -> Self {
        Self { name, replies: Replies::default(), sealed: Vec::new(), group: Vec::new() }
    }
}

impl PacketInbound for CapturedPackets {
    fn is_sealed(&self) -> bool {
        false
    }

    /// Those of a network that this machine forwards for, which may write any source.
    fn has_foreign_clients(&self) -> bool {
        true
    }

    fn open(&mut self, arrival: &Arrival, datagram: &mut [u8]) -> Result<Option<OpenedDatagram>, DropReason> {
        self.replies.now = arrival.now;
        let foreign = arrival.original.filter(|original| !is_own(original.ip()));
        let what = WireError::Authentication { what: "target of a datagram that the firewall brought" };
        let target = foreign.ok_or(DropReason::Wire(what))?;
        let client = FlowClient::Address(arrival.peer.at);
        Ok(Some(OpenedDatagram::new(client, DatagramTarget::Own(Target::from(target)), 0..datagram.len())))
    }

    fn room(&mut self, _: &FlowClient, _: &Target) -> Room {
        bare_room()
    }

    fn seal(
        &mut self,
        _: &FlowClient,
        _: &mut [u8],
        payload: Range<usize>,
        source: &Target,
        _: u64,
    ) -> Result<Range<usize>, WireError> {
        let Host::Ip(ip) = source.host else {
            return Err(WireError::Authentication { what: "address of an answer" });
        };
        self.sealed.push((payload.start, SocketAddr::new(ip.to_canonical(), source.port)));
        Ok(payload)
    }

    fn send(&mut self, batch: &mut DatagramBatch, datagrams: &[Outgoing]) -> Option<Sent> {
        let mut report = Sent::default();
        let mut sources = std::mem::take(&mut self.sealed);
        let mut known = sources.iter();
        let mut from = None;
        for datagram in datagrams {
            // Some may have been sealed and not queued; the order is the same.
            let source = known.find(|(start, _)| *start == datagram.start).map(|(_, source)| *source);
            if source != from {
                self.flush(from, batch, &mut report);
                from = source;
            }
            self.group.push(Outgoing { from: None, ..*datagram });
        }
        self.flush(from, batch, &mut report);
        sources.clear();
        self.sealed = sources;
        Some(report)
    }

    fn take_over(&mut self, old: &mut dyn PacketInbound) {
        if let Some(old) = (old as &mut dyn std::any::Any).downcast_mut::<Self>() {
            self.replies = std::mem::take(&mut old.replies);
        }
    }
}

impl CapturedPackets {
    /// Sends the answers of one source.
    fn flush(&mut self, from: Option<SocketAddr>, batch: &mut DatagramBatch, report: &mut Sent) {
        if self.group.is_empty() {
            return;
        }
        let socket = from.ok_or_else(|| io::ErrorKind::NotFound.into());
        match socket.and_then(|from| self.replies.socket(from)) {
            Ok(socket) => report.add(&socket.send(batch, &self.group)),
            Err(error) => {
                report.failed += self.group.len();
                if !std::mem::replace(&mut self.replies.is_logged, true) {
                    let hint = if error.kind() == io::ErrorKind::PermissionDenied {
                        "the process needs CAP_NET_ADMIN as long as it runs"
                    } else {
                        "a program of this machine that has the same port must share it (SO_REUSEADDR)"
                    };
                    tracing::warn!(inbound = &*self.name, %error, hint, "answers cannot be sent from their source");
                }
            }
        }
        self.group.clear();
    }
}

/// The sockets that answers leave from.
#[derive(Default)]
struct Replies {
    sockets: HashMap<SocketAddr, (Socket, FlowTick)>,
    now: FlowTick,
    is_logged: bool,
}

impl Replies {
    fn socket(&mut self, from: SocketAddr) -> io::Result<&Socket> {
        if !self.sockets.contains_key(&from) {
            self.make_room();
        }
        let now = self.now;
        match self.sockets.entry(from) {
            Entry::Occupied(entry) => {
                let (socket, used) = entry.into_mut();
                *used = now;
                Ok(socket)
            }
            Entry::Vacant(entry) => Ok(&entry.insert((Socket::open_from(from)?, now)).0),
        }
    }

    /// Closes sockets that have been idle, and the one that was used longest ago if that is not enough.
    fn make_room(&mut self) {
        let now = self.now;
        self.sockets.retain(|_, (_, used)| now.wrapping_sub(*used) < IDLE);
        if self.sockets.len() >= MAX_SOURCES
            && let Some(oldest) = self
                .sockets
                .iter()
                .max_by_key(|(_, (_, used))| now.wrapping_sub(*used))
                .map(|(from, _)| *from)
        {
            self.sockets.remove(&oldest);
        }
    }
}
