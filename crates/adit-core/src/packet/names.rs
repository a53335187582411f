//! Addresses of names, since a datagram cannot wait for an answer and thousands ask for the same.

use std::cell::RefCell;
use std::collections::HashMap;
use std::net::{IpAddr, SocketAddr};
use std::rc::Rc;
use std::task::Waker;

use adit_config::model::Family;
use adit_net::resolve::Resolver;
use adit_net::rt;
use adit_proto::wire::{Host, Target};

use super::table::Tick;

/// Names that are remembered or asked for at the same time; the oldest answer makes room.
const MAX_NAMES: usize = 1024;
/// Seconds that an answer is used for. The resolver keeps to the record's own time below that.
const LIFE: Tick = 60;
/// Seconds before a name without an answer is asked for again.
const FAILED_LIFE: Tick = 5;

/// What is known of a target.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Known {
    /// Its address.
    Addr(SocketAddr),
    /// It is being asked for.
    Pending,
    /// It has no address, or none of an allowed family.
    Nothing,
}

/// The names of one outbound on one core.
pub(crate) struct Names {
    resolver: Rc<Resolver>,
    family: Family,
    cache: Rc<RefCell<HashMap<Box<str>, Entry>>>,
}

enum Entry {
    Pending(Vec<Waker>),
    Answer(Option<IpAddr>, Tick),
}

impl Names {
    /// Names that `resolver` looks up; `family` says which addresses may be used.
    pub(crate) fn new(resolver: Resolver, family: Family) -> Self {
        Self { resolver: Rc::new(resolver), family, cache: Rc::default() }
    }

    /// The address of `target` as of `now`; `waker` is woken once it is known if it is not.
    pub(crate) fn find(&self, target: &Target, waker: Option<&Waker>, now: Tick) -> Known {
        let name = match &target.host {
            Host::Ip(ip) if self.allows(*ip) => return Known::Addr(SocketAddr::new(*ip, target.port)),
            Host::Ip(_) => return Known::Nothing,
            Host::Name(name) => name,
        };
        let mut cache = self.cache.borrow_mut();
        match cache.get_mut(name) {
            Some(Entry::Answer(Some(ip), at)) if now.wrapping_sub(*at) <= LIFE => {
                return Known::Addr(SocketAddr::new(*ip, target.port));
            }
            Some(Entry::Answer(None, at)) if now.wrapping_sub(*at) <= FAILED_LIFE => return Known::Nothing,
            Some(Entry::Pending(wakers)) => {
                wakers.extend(waker.cloned());
                return Known::Pending;
            }
            Some(Entry::Answer(..)) | None => {}
        }
        if cache.len() >= MAX_NAMES && !cache.contains_key(name) {
            let answers = cache.iter().filter_map(|(name, entry)| match entry {
                Entry::Answer(_, at) => Some((now.wrapping_sub(*at), name)),
                Entry::Pending(_) => None,
            });
            let Some(oldest) = answers.max().map(|(_, name)| name.clone()) else { return Known::Nothing };
            cache.remove(&oldest);
        }
        cache.insert(name.clone(), Entry::Pending(waker.cloned().into_iter().collect()));
        drop(cache);
        self.ask(name.clone(), now);
        Known::Pending
    }

    fn ask(&self, name: Box<str>, now: Tick) {
        let (resolver, cache, family) = (self.resolver.clone(), self.cache.clone(), self.family);
        rt::spawn_local(async move {
            let answer = resolver.lookup(&name, family).await;
            if let Err(error) = &answer {
                tracing::debug!(%error, "name of a datagram's target");
            }
            // There is no second attempt over the other family, so the one that is more likely to work comes first.
            let ips = answer.unwrap_or_default();
            let ip = ips.iter().find(|ip| ip.is_ipv4()).or_else(|| ips.first());
            let entry = Entry::Answer(ip.copied(), now);
            let old = cache.borrow_mut().insert(name, entry);
            if let Some(Entry::Pending(wakers)) = old {
                wakers.into_iter().for_each(Waker::wake);
            }
        });
    }

    fn allows(&self, ip: IpAddr) -> bool {
        match self.family {
            Family::Any | Family::PreferV4 => true,
            Family::V4Only => ip.is_ipv4(),
            Family::V6Only => ip.is_ipv6(),
        }
    }
}
