//! Datagrams in sessions (SIP022). A session survives a change of its client's address, and may reach another core
//! after that: the core that has the session gets its datagrams.
//!
//! A session is kept while a flow holds it. One that has no flow yet waits in a place of its own, where the next new
//! session takes its turn: a client whose datagrams go nowhere costs no memory.

use std::any::Any;
use std::collections::HashMap;
use std::ops::Range;
use std::sync::Arc;
use std::task::Waker;

use adit_proto::shadowsocks::aead2022::{Aead2022ServerPackets, Session, SessionHeader};
use adit_proto::wire::{Room, Target, WireError};

use crate::datagram::{
    Arrival, DatagramTarget, DropReason, FlowClient, Moved, OpenedDatagram, PacketInbound, Peer,
    SessionOwners, bare_room,
};
use crate::rng::OsRng;
use crate::users::{Account, Accounts};

/// The sessions of one listener on one core.
pub(super) struct SessionPackets {
    packets: Aead2022ServerPackets,
    accounts: Accounts,
    /// Positions of sessions in `slots`, by session number.
    index: HashMap<u64, usize>,
    slots: Vec<Option<Entry>>,
    free: Vec<usize>,
    /// The session of the last datagram: most of the time also that of the next one.
    last: Option<(u64, usize)>,
    /// A session that no flow holds yet.
    new: Option<(u64, Entry)>,
    exchange: (Arc<SessionOwners>, usize),
}

struct Entry {
    session: Box<Session>,
    /// Account of its user, if there are users.
    account: Option<Arc<Account>>,
    /// Address of its client.
    peer: Peer,
    /// Flows that hold it.
    held: usize,
}

impl SessionPackets {
    /// No sessions yet. `exchange` is what the cores of the listener share, with the number of this core.
    pub(super) fn new(
        packets: Aead2022ServerPackets,
        accounts: Accounts,
        exchange: (Arc<SessionOwners>, usize),
    ) -> Self {
        Self {
            packets,
            accounts,
            index: HashMap::new(),
            slots: Vec::new(),
            free: Vec::new(),
            last: None,
            new: None,
            exchange,
        }
    }

    /// The slot of a session that flows hold.
    fn slot(&self, id: u64) -> Option<usize> {
        match self.last {
            Some((last, slot)) if last == id => Some(slot),
            _ => self.index.get(&id).copied(),
        }
    }

    fn find(&mut self, client: &FlowClient) -> Option<&mut Entry> {
        let FlowClient::Session(id) = client else { return None };
        if let Some(slot) = self.slot(*id) {
            self.last = Some((*id, slot));
            return self.slots.get_mut(slot)?.as_mut();
        }
        self.new.as_mut().filter(|(new, _)| new == id).map(|(_, entry)| entry)
    }

    /// Opens a datagram of a session that is here. A datagram that opens is the client's, from any address.
    fn open_known(
        &mut self,
        header: &SessionHeader,
        arrival: &Arrival,
        datagram: &mut [u8],
    ) -> Option<Result<OpenedDatagram, DropReason>> {
        let client = FlowClient::Session(header.session_id());
        let entry = self.find(&client)?;
        Some(entry.session.open(header, datagram, arrival.unix_s).map_err(DropReason::Wire).map(|packet| {
            entry.peer = arrival.peer;
            OpenedDatagram::new(client, DatagramTarget::Own(packet.target), packet.payload)
        }))
    }
}

impl PacketInbound for SessionPackets {
    fn is_sealed(&self) -> bool {
        true
    }

    fn open(&mut self, arrival: &Arrival, datagram: &mut [u8]) -> Result<Option<OpenedDatagram>, DropReason> {
        let header = self.packets.read_header(datagram)?;
        if let Some(opened) = self.open_known(&header, arrival, datagram) {
            return opened.map(Some);
        }
        let id = header.session_id();
        let (exchange, core) = &self.exchange;
        if let Some(owner) = exchange.owner(id).filter(|owner| owner != core) {
            let (header, bytes) = (Box::new(header), datagram.to_vec());
            let moved = Moved { header, bytes, peer: arrival.peer, class: arrival.class };
            return if exchange.post(owner, moved) { Ok(None) } else { Err(DropReason::Mailbox) };
        }
        let mut session = Box::new(self.packets.new_session(&header, &mut OsRng));
        let packet = session.open(&header, datagram, arrival.unix_s)?;
        let account = session.user().and_then(|user| self.accounts.get(user.0)).cloned();
        self.new = Some((id, Entry { session, account, peer: arrival.peer, held: 0 }));
        Ok(Some(OpenedDatagram::new(
            FlowClient::Session(id),
            DatagramTarget::Own(packet.target),
            packet.payload,
        )))
    }

    fn next_moved(&mut self, waker: &Waker) -> Option<Moved> {
        let (exchange, core) = &self.exchange;
        exchange.take(*core, waker)
    }

    fn open_moved(
        &mut self,
        moved: &Moved,
        arrival: &Arrival,
        datagram: &mut [u8],
    ) -> Result<OpenedDatagram, DropReason> {
        let header = moved.header.downcast_ref::<SessionHeader>().ok_or(DropReason::Gone)?;
        self.open_known(header, arrival, datagram).unwrap_or(Err(DropReason::Gone))
    }

    fn account(&self, client: &FlowClient) -> Option<&Arc<Account>> {
        let FlowClient::Session(id) = client else { return None };
        let entry = match self.slot(*id) {
            Some(slot) => self.slots.get(slot)?.as_ref(),
            None => self.new.as_ref().filter(|(new, _)| new == id).map(|(_, entry)| entry),
        };
        entry?.account.as_ref()
    }

    fn peer(&mut self, client: &FlowClient) -> Option<Peer> {
        self.find(client).map(|entry| entry.peer)
    }

    fn take_over(&mut self, old: &mut dyn PacketInbound) {
        let Some(old) = (old as &mut dyn Any).downcast_mut::<Self>() else { return };
        self.index = std::mem::take(&mut old.index);
        self.slots = std::mem::take(&mut old.slots);
        self.free = std::mem::take(&mut old.free);
        self.last = old.last.take();
    }

    fn room(&mut self, client: &FlowClient, source: &Target) -> Room {
        self.find(client).map_or_else(bare_room, |entry| entry.session.room(source))
    }

    fn seal(
        &mut self,
        client: &FlowClient,
        block: &mut [u8],
        payload: Range<usize>,
        source: &Target,
        unix_s: u64,
    ) -> Result<Range<usize>, WireError> {
        let entry = self.find(client).ok_or(WireError::Authentication { what: "session that is over" })?;
        entry.session.seal(block, payload, source, unix_s, &mut OsRng)
    }

    fn rest(&mut self, client: &FlowClient) {
        if let Some(entry) = self.find(client) {
            entry.session.rest();
        }
    }

    fn hold(&mut self, client: &FlowClient) -> Result<(), DropReason> {
        let FlowClient::Session(id) = client else { return Err(DropReason::Gone) };
        if let Some((id, mut entry)) = self.new.take_if(|(new, _)| new == id) {
            entry.held = 1;
            let slot = self.free.pop().unwrap_or_else(|| {
                self.slots.push(None);
                self.slots.len() - 1
            });
            self.slots[slot] = Some(entry);
            self.index.insert(id, slot);
            let (exchange, core) = &self.exchange;
            exchange.claim(id, *core);
            return Ok(());
        }
        self.find(client).ok_or(DropReason::Gone)?.held += 1;
        Ok(())
    }

    fn release(&mut self, client: &FlowClient) {
        let FlowClient::Session(id) = client else { return };
        let Some(slot) = self.slot(*id) else { return };
        let Some(entry) = self.slots.get_mut(slot).and_then(Option::as_mut) else { return };
        entry.held -= 1;
        if entry.held > 0 {
            return;
        }
        self.slots[slot] = None;
        self.free.push(slot);
        self.index.remove(id);
        self.last = None;
        let (exchange, core) = &self.exchange;
        exchange.release(*id, *core);
    }
}

/// The sessions of a listener that closes belong to nobody.
impl Drop for SessionPackets {
    fn drop(&mut self) {
        let (exchange, core) = &self.exchange;
        #[expect(clippy::iter_over_hash_type, reason = "the order does not matter")]
        for id in self.index.keys() {
            exchange.release(*id, *core);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::net::SocketAddr;

    use adit_proto::shadowsocks::{MethodKey, PacketCodec, client_packets};

    use super::*;

    const NOW: u64 = 1_800_000_000;
    const KEY: &str = "AAECAwQFBgcICQoLDA0ODw==";

    fn key() -> adit_model::ShadowsocksKey {
        let form = adit_model::KeyForm::Password;
        let method = "2022-blake3-aes-128-gcm".parse().unwrap();
        adit_model::ShadowsocksKey::new(method, adit_model::Secret::new(KEY), form).unwrap()
    }

    fn sessions(exchange: &Arc<SessionOwners>, core: usize) -> SessionPackets {
        let key = adit_model::ShadowsocksServerKey::new(key()).unwrap().derive();
        let MethodKey::Aead2022(keys) = key.key() else { panic!("a 2022 method") };
        let packets = Aead2022ServerPackets::new(keys, key.shared_users());
        SessionPackets::new(packets, Arc::default(), (exchange.clone(), core))
    }

    fn datagram(codec: &mut dyn PacketCodec) -> Vec<u8> {
        let target = Target::new(b"192.0.2.1", 443).unwrap();
        let mut block = vec![0; 4096];
        let sealed = codec.seal(&mut block, 2000..2100, &target, NOW, &mut OsRng).unwrap();
        block[sealed].to_vec()
    }

    fn arrival(port: u16) -> Arrival {
        let at = SocketAddr::from(([192, 0, 2, 7], port));
        Arrival { peer: Peer { at, local: None }, original: None, class: 0, now: 0, unix_s: NOW }
    }

    #[test]
    fn a_session_lives_as_long_as_it_is_held() {
        let exchange = Arc::new(SessionOwners::new(2));
        let (mut server, mut other) = (sessions(&exchange, 0), sessions(&exchange, 1));
        let mut codec = client_packets(&key().derive(), &mut OsRng);
        let opened = server.open(&arrival(1), &mut datagram(&mut *codec)).unwrap().unwrap();
        let client = opened.client;
        server.hold(&client).unwrap();
        server.hold(&client).unwrap();
        // It has another address now, and is still the same client.
        let opened = server.open(&arrival(2), &mut datagram(&mut *codec)).unwrap().unwrap();
        assert_eq!((opened.client, server.peer(&client)), (client, Some(arrival(2).peer)));
        // The other core hands over what reaches it.
        assert!(other.open(&arrival(3), &mut datagram(&mut *codec)).unwrap().is_none());
        let mut moved = server.next_moved(Waker::noop()).unwrap();
        let mut bytes = std::mem::take(&mut moved.bytes);
        let opened = server.open_moved(&moved, &arrival(3), &mut bytes).unwrap();
        assert_eq!((opened.client, server.peer(&client)), (client, Some(arrival(3).peer)));
        server.release(&client);
        assert!(server.peer(&client).is_some(), "one flow still holds it");
        server.release(&client);
        assert!(server.peer(&client).is_none());
        assert!(
            other.open(&arrival(4), &mut datagram(&mut *codec)).unwrap().is_some(),
            "nobody has it any more"
        );
    }

    #[test]
    fn sessions_without_flows_cost_nothing() {
        let mut server = sessions(&Arc::new(SessionOwners::new(1)), 0);
        for port in 1..1000 {
            let mut codec = client_packets(&key().derive(), &mut OsRng);
            let opened = server.open(&arrival(port), &mut datagram(&mut *codec)).unwrap().unwrap();
            // A second datagram before its flow begins is of the same session, and no replay passes.
            let mut second = datagram(&mut *codec);
            let mut again = second.clone();
            assert!(server.open(&arrival(port), &mut second).unwrap().is_some());
            assert!(matches!(
                server.open(&arrival(port), &mut again),
                Err(DropReason::Wire(WireError::Replayed { .. }))
            ));
            assert_eq!(server.peer(&opened.client), Some(arrival(port).peer));
        }
        assert_eq!((server.index.len(), server.slots.len()), (0, 0));
    }
}
