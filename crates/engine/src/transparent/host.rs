//! Facts about this machine that rules depend on.

use std::net::{IpAddr, SocketAddr, ToSocketAddrs as _};

use adit_model::rule::Cidr;
use adit_model::{Capture, Config, Owner};
use adit_net::netlink::Netlink;
use adit_net::netlink::route::{RoutedNetwork, links, networks};
use adit_proto::wire::{Host as TargetHost, Target};

use super::{CaptureError, Host, interface, resolvers};

/// Most networks of one family that forwarded traffic reaches without a capture; a router of the internet knows more.
const MAX_ROUTED: usize = 1 << 16;
/// Most addresses of one server that are kept.
const MAX_ADDRESSES: usize = 16;

/// Whether the system has IPv6: some interface has an address of it.
pub(super) fn has_v6() -> bool {
    std::fs::read_to_string("/proc/net/if_inet6").is_ok_and(|text| !text.trim().is_empty())
}

/// Whether this machine forwards traffic of others.
pub(super) fn forwards(with_v6: bool) -> bool {
    let is_on = |name: &str| {
        std::fs::read_to_string(format!("/proc/sys/net/{name}")).is_ok_and(|text| text.trim() == "1")
    };
    is_on("ipv4/ip_forward") || with_v6 && is_on("ipv6/conf/all/forwarding")
}

/// Looks at this machine. Names are looked up as the system does it, so this comes before the capture.
///
/// # Errors
/// When the kernel gives no answer, or a user or group is not there.
pub(super) fn look(
    capture: &Capture,
    config: &Config,
    has_owners: bool,
    netlink: &mut Netlink,
) -> Result<Host, CaptureError> {
    let tun = interface(config);
    let name = tun.map(|tun| tun.name.clone()).unwrap_or_default();
    let users = |owners: &[Owner]| numbers(owners, adit_net::uid_of);
    let groups = |owners: &[Owner]| numbers(owners, adit_net::gid_of);
    Ok(Host {
        has_v6: has_v6(),
        links: link_names(&name, netlink)?,
        interface: name,
        resolvers: resolvers::find(config),
        networks_v6: own_networks(capture, netlink)?,
        routed: routed(capture, tun.map_or("", |tun| &tun.name), netlink)?,
        fake: config
            .dns
            .fake
            .iter()
            .flat_map(|fake| [Some(fake.v4), fake.v6])
            .flatten()
            .map(|range| range.network())
            .collect(),
        servers: servers(config),
        users: [users(&capture.exclude.users)?, users(&capture.include.users)?],
        groups: [groups(&capture.exclude.groups)?, groups(&capture.include.groups)?],
        tun_v4: tun.and_then(|tun| tun.v4).map(|v4| (v4.address(), v4.prefix())),
        tun_v6: tun.and_then(|tun| tun.v6).map(|v6| (v6.address(), v6.prefix())),
        has_owners,
    })
}

/// See [`Host::networks_v6`]; none unless a set needs them.
fn own_networks(capture: &Capture, netlink: &mut Netlink) -> Result<Vec<Cidr>, CaptureError> {
    if !capture.strict || !has_v6() {
        return Ok(Vec::new());
    }
    Ok(networks(netlink, true)?.iter().filter_map(cidr).collect())
}

fn cidr(network: &RoutedNetwork) -> Option<Cidr> {
    let (ip, len) = network.prefix;
    Cidr::new(ip, len)
}

/// See [`Host::routed`]; none unless forwarded traffic of all interfaces is captured. Those behind the capture's interface
/// `own` are none of them: its prefix may be that of the fake addresses.
///
/// # Errors
/// When the kernel gives no answer.
pub(super) fn routed(capture: &Capture, own: &str, netlink: &mut Netlink) -> Result<Vec<Cidr>, CaptureError> {
    let mut all = Vec::new();
    if !capture.has_any_lan() {
        return Ok(all);
    }
    let own = links(netlink)?.into_iter().find(|link| link.name == own).map(|link| link.index);
    for is_v6 in [false, true] {
        let found = networks(netlink, is_v6)?;
        let others = found.iter().filter(|network| network.link.is_none() || network.link != own);
        all.extend(others.filter_map(cidr).take(MAX_ROUTED));
    }
    all.sort_unstable();
    all.dedup();
    Ok(all)
}

/// The interfaces that the settings name and that are not there, each with the key that names it.
///
/// # Errors
/// When the kernel gives no answer.
pub(super) fn absent(
    capture: &Capture,
    netlink: &mut Netlink,
) -> Result<Vec<(&'static str, Box<str>)>, CaptureError> {
    if capture.interfaces().next().is_none() {
        return Ok(Vec::new());
    }
    let there = links(netlink)?;
    let is_absent = |name: &str| !there.iter().any(|link| link.name == name);
    Ok(capture
        .interfaces()
        .filter(|(_, name)| is_absent(name))
        .map(|(key, name)| (key, name.into()))
        .collect())
}

/// The interfaces that are switched on, without the loopback and that of the capture.
///
/// # Errors
/// When the kernel gives no answer.
pub(super) fn link_names(own: &str, netlink: &mut Netlink) -> Result<Vec<Box<str>>, CaptureError> {
    let up = links(netlink)?.into_iter().filter(|link| link.is_up && link.name != "lo" && link.name != own);
    let mut names: Vec<Box<str>> = up.map(|link| link.name.into()).collect();
    names.sort();
    Ok(names)
}

fn numbers(owners: &[Owner], find: fn(&str) -> std::io::Result<u32>) -> Result<Vec<u32>, CaptureError> {
    let mut all = Vec::new();
    for owner in owners {
        match owner {
            Owner::Numbers(first, last) => all.extend(*first..=*last),
            Owner::Name(name) => {
                let number =
                    find(name).map_err(|source| CaptureError::Owner { name: name.clone(), source })?;
                all.push(number);
            }
        }
    }
    all.sort_unstable();
    all.dedup();
    Ok(all)
}

/// The addresses of the servers that plugins connect to: their sockets are not ours, so nothing marks them.
fn servers(config: &Config) -> Vec<IpAddr> {
    let targets = config.outbounds.iter().filter_map(|outbound| outbound.plugin_server());
    let mut all: Vec<IpAddr> = targets.flat_map(addresses).collect();
    all.sort_unstable();
    all.dedup();
    all
}

fn addresses(target: &Target) -> Vec<IpAddr> {
    match &target.host {
        TargetHost::Ip(ip) => vec![*ip],
        TargetHost::Name(name) => {
            let found = (&**name, target.port).to_socket_addrs();
            let found: Vec<SocketAddr> = found.map(Iterator::collect).unwrap_or_else(|error| {
                let server = &**name;
                tracing::warn!(server, %error, "the server of a plugin cannot be looked up: its connections may be captured");
                Vec::new()
            });
            found.into_iter().take(MAX_ADDRESSES).map(|addr| addr.ip()).collect()
        }
    }
}
