//! Addresses of clients, as their proxies tell them.

use std::collections::HashMap;
use std::net::{IpAddr, Ipv6Addr, SocketAddr};

use adit_proto::snowflake::ClientId;

/// Addresses that are kept, the newest ones (upstream's number).
pub(super) const CAPACITY: usize = 98_304;

/// The prefix of the addresses by which sessions know clients: unique local, never on a wire.
const PREFIX: [u8; 8] = [0xfd, 0x61, 0x64, 0x69, 0x74, 0, 0, 0];

/// The address by which a session knows a client.
pub(crate) fn address_of(client: ClientId) -> SocketAddr {
    let mut bytes = [0; 16];
    bytes[..8].copy_from_slice(&PREFIX);
    bytes[8..].copy_from_slice(&client.0);
    (Ipv6Addr::from(bytes), 1).into()
}

/// The client that a session knows by this address.
pub(super) fn client_of(address: SocketAddr) -> Option<ClientId> {
    let IpAddr::V6(address) = address.ip() else { return None };
    let octets = address.octets();
    let id = octets.strip_prefix(&PREFIX)?;
    id.try_into().ok().map(ClientId)
}

/// The address that a relay's query names: `client_ip`, unless it is absent, no address, or the unspecified one.
pub(super) fn named(target: &str) -> Option<IpAddr> {
    let (_, query) = target.split_once('?')?;
    let value = query.split('&').find_map(|pair| pair.strip_prefix("client_ip="))?;
    let plain = value.replace("%3A", ":").replace("%3a", ":");
    plain.parse::<IpAddr>().ok().filter(|address| !address.is_unspecified())
}

/// The newest address of each client, in a ring.
#[derive(Debug, Default)]
pub(super) struct Ring {
    entries: Vec<(ClientId, Option<IpAddr>)>,
    at: usize,
    newest: HashMap<ClientId, usize>,
}

impl Ring {
    /// Keeps the address of a client; the oldest entry of all goes.
    pub(super) fn set(&mut self, client: ClientId, address: Option<IpAddr>) {
        if self.entries.len() < CAPACITY {
            self.at = self.entries.len();
            self.entries.push((client, address));
        } else {
            self.at = (self.at + 1) % CAPACITY;
            let (old, _) = std::mem::replace(&mut self.entries[self.at], (client, address));
            if self.newest.get(&old) == Some(&self.at) {
                self.newest.remove(&old);
            }
        }
        self.newest.insert(client, self.at);
    }

    /// The address of a client: `None` when there is no entry, `Some(None)` when its proxy named none.
    pub(super) fn find(&self, client: ClientId) -> Option<Option<IpAddr>> {
        self.newest.get(&client).map(|at| self.entries[*at].1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn id(number: u64) -> ClientId {
        ClientId(number.to_be_bytes())
    }

    #[test]
    fn names_and_addresses() {
        assert_eq!(client_of(address_of(id(7))), Some(id(7)));
        assert_eq!(client_of("[fd00::7]:1".parse().unwrap()), None);
        for (target, want) in [
            ("/?client_ip=192.0.2.7", Some("192.0.2.7")),
            ("/x?a=b&client_ip=2001%3Adb8%3A%3a1", Some("2001:db8::1")),
            ("/?client_ip=2001:db8::1", Some("2001:db8::1")),
            ("/?client_ip=", None),
            ("/?client_ip=0.0.0.0", None),
            ("/?client_ip=%3A%3A", None),
            ("/?client_ip=example.com", None),
            ("/", None),
        ] {
            assert_eq!(named(target), want.map(|want| want.parse().unwrap()), "{target}");
        }
    }

    #[test]
    fn the_newest_entry_of_a_client_wins_and_the_oldest_goes() {
        let (mut ring, address) = (Ring::default(), |last| Some(IpAddr::from([192, 0, 2, last])));
        ring.set(id(1), address(1));
        ring.set(id(2), None);
        ring.set(id(1), address(3));
        assert_eq!(
            (ring.find(id(1)), ring.find(id(2)), ring.find(id(3))),
            (Some(address(3)), Some(None), None)
        );
        for number in 0..u64::try_from(CAPACITY).unwrap() - 3 {
            ring.set(id(10 + number), None);
        }
        assert_eq!(ring.find(id(1)), Some(address(3)));
        ring.set(id(4), None);
        assert_eq!(ring.find(id(1)), Some(address(3)), "its older entry went");
        ring.set(id(5), None);
        ring.set(id(6), None);
        assert_eq!((ring.find(id(1)), ring.find(id(2)), ring.find(id(6))), (None, None, Some(None)));
        assert_eq!((ring.entries.len(), ring.newest.len()), (CAPACITY, CAPACITY));
    }
}
