//! Fake addresses that clients send datagrams to. Each has flows of its own, whose answers come from the fake address
//! again.

use std::collections::HashMap;
use std::net::{IpAddr, SocketAddr};
use std::rc::Rc;
use std::sync::Arc;

use adit_proto::wire::{Host, Target};

use super::drops::DropReason;
use crate::dns::{Fake, FakeLookup, FakePin};

/// Aliases of one listener and core, more than it has flows by default.
const MAX: usize = 8192;

/// A fake address with its name, which keeps the address while this lives.
#[derive(Debug)]
pub(crate) struct Alias {
    /// The address and port that clients send to.
    pub(crate) shown: Rc<Target>,
    /// The name in its place.
    pub(crate) name: Rc<Target>,
    /// A number that no other alias of the process has; never 0.
    pub(crate) key: u64,
    _pin: FakePin,
}

impl Alias {
    /// The source of an answer as the client is to see it: the fake address, if the answer is from the target's port.
    pub(crate) fn is_of(&self, source: &Target) -> bool {
        source.port == self.name.port
    }
}

/// The aliases that flows hold, or that were used within the last second.
#[derive(Debug, Default)]
pub(crate) struct Aliases(HashMap<SocketAddr, Rc<Alias>>);

impl Aliases {
    /// The alias of a datagram's target, if that is a fake address.
    ///
    /// # Errors
    /// When it stands for no name.
    pub(crate) fn find(
        &mut self,
        fake: &Arc<Fake>,
        target: &Target,
    ) -> Result<Option<Rc<Alias>>, DropReason> {
        let Host::Ip(ip) = target.host else { return Ok(None) };
        if !fake.holds(ip) {
            return Ok(None);
        }
        let addr = SocketAddr::new(ip, target.port);
        if let Some(known) = self.0.get(&addr) {
            return Ok(Some(known.clone()));
        }
        let FakeLookup::Name(name, pin) = fake.look(ip) else { return Err(DropReason::Unmapped) };
        if self.0.len() >= MAX {
            self.sweep();
            if self.0.len() >= MAX {
                return Err(DropReason::Backlog);
            }
        }
        let name = Target { host: Host::Name(name), port: target.port };
        let key = key(&pin, ip, target.port);
        let alias = Rc::new(Alias { shown: Rc::new(target.clone()), name: Rc::new(name), key, _pin: pin });
        self.0.insert(addr, alias.clone());
        Ok(Some(alias))
    }

    /// Forgets those that no flow holds.
    pub(crate) fn sweep(&mut self) {
        self.0.retain(|_, alias| Rc::strong_count(alias) > 1);
    }
}

/// number, family and port in one.
fn key(pin: &FakePin, ip: IpAddr, port: u16) -> u64 {
    (u64::from(pin.number()) + 1) << 17 | u64::from(ip.is_ipv6()) << 16 | u64::from(port)
}
