//! Addresses of datagrams' targets: a datagram cannot wait for an answer, so it is looked up again once that is there.

use std::net::SocketAddr;
use std::task::Waker;

use adit_net::reach::{Private, Reach};
use adit_net::resolve::is_allowed;
use adit_net::rt;
use adit_proto::wire::{Host, Target};

use crate::dns::{Scope, TargetLookup};

/// Result of looking up a target.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum FlowLookup {
    /// Its address.
    Addr(SocketAddr),
    /// It is being asked for.
    Pending,
    /// It has no address, or none of an allowed family.
    Nothing,
    /// Its address may not be used.
    Private(Private),
}

impl FlowLookup {
    /// The same, if its address lies within `reach`.
    pub(crate) fn within(self, reach: Reach) -> Self {
        match self {
            Self::Addr(addr) => reach.check(addr.ip()).map_or_else(Self::Private, |()| self),
            Self::Pending | Self::Nothing | Self::Private(_) => self,
        }
    }

    /// The address of `target` as `names` see it; `waker` is woken once it is known if it is not.
    pub(crate) fn find(names: &Scope, target: &Target, waker: Option<&Waker>) -> Self {
        let found = match &target.host {
            Host::Ip(ip) if is_allowed(*ip, names.family()) => TargetLookup::Address(*ip),
            Host::Ip(_) => TargetLookup::Nothing,
            Host::Name(name) => names.find(name, waker, rt::now()),
        };
        match found {
            TargetLookup::Address(ip) => Self::Addr(SocketAddr::new(ip, target.port)),
            TargetLookup::Pending => Self::Pending,
            TargetLookup::Nothing => Self::Nothing,
        }
    }
}
