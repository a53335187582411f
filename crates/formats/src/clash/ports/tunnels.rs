//! `tunnels`: ports that lead to one target each.

use std::net::SocketAddr;

use adit_model::{InboundProtocol, Transports};

use super::super::rules::Flat;
use super::super::{ClashSetup, Context, tables};
use super::{lead, of};
use crate::read::json::JsonValue;
use crate::read::kinds::{self, Typing, ValueKind};
use crate::read::value;
use crate::read::yaml_access;

/// One of them, as it is written: `tcp/udp,LISTEN,TARGET[,PROXY]` or a mapping.
struct Written<'a> {
    networks: Vec<&'a str>,
    address: &'a str,
    target: &'a str,
    proxy: Option<&'a str>,
}

fn written(item: &JsonValue) -> Option<Written<'_>> {
    if let Some(line) = yaml_access::text(item) {
        let mut parts = line.split(',').map(str::trim);
        let (networks, address, target) = (parts.next()?, parts.next()?, parts.next()?);
        let proxy = parts.next().filter(|name| !name.is_empty());
        return Some(Written { networks: networks.split('/').collect(), address, target, proxy });
    }
    Some(Written {
        networks: yaml_access::texts_of(item, "network").into_iter().map(|(text, _)| text).collect(),
        address: yaml_access::text_of(item, "address")?,
        target: yaml_access::text_of(item, "target")?,
        proxy: yaml_access::text_of(item, "proxy").filter(|name| !name.is_empty()),
    })
}

/// The problem with other words than those of transports.
pub(super) const NETWORK: &str = "the network of a tunnel is tcp, udp or both";

/// The transports of a list of words; `None` for another word, or none at all.
pub(super) fn transports(networks: &[&str]) -> Option<Transports> {
    let has = |word: &str| networks.iter().any(|network| network.eq_ignore_ascii_case(word));
    let is_known = |network: &&str| ["tcp", "udp"].iter().any(|word| network.eq_ignore_ascii_case(word));
    match (has("tcp"), has("udp"), networks.iter().all(is_known)) {
        (true, true, true) => Some(Transports::Both),
        (true, false, true) => Some(Transports::Tcp),
        (false, true, true) => Some(Transports::Udp),
        _ => None,
    }
}

/// Adds an inbound for each.
pub(super) fn read(context: &mut Context<'_>, root: &JsonValue, setup: &mut ClashSetup, flat: &mut Flat) {
    for (n, item) in
        yaml_access::get(root, "tunnels").map(yaml_access::items).unwrap_or_default().iter().enumerate()
    {
        let path = format!("tunnels[{n}]");
        let mut item = item.clone();
        let kind = ValueKind::Either(&[ValueKind::Text, ValueKind::Map(tables::TUNNEL)]);
        for wrong in kinds::settle(&mut item, &kind, Typing::Loose, &path) {
            context.error(wrong.at, wrong.path, wrong.problem);
        }
        let item = &item;
        let Some(Written { networks, address, target, proxy }) = written(item) else {
            let problem = "a tunnel is `tcp/udp,LISTEN,TARGET,PROXY`, or network, address, target and proxy";
            context.error(item.at, path, problem);
            continue;
        };
        let Some(transports) = transports(&networks) else {
            context.error(yaml_access::at(item, "network"), path, NETWORK);
            continue;
        };
        // Without a host it is every address, as in mihomo.
        let every = format!("[::]{address}");
        let address = if address.starts_with(':') { &every } else { address };
        let Ok(listen) = address.parse::<SocketAddr>() else {
            let at = yaml_access::at(item, "address");
            context.error(at, format!("{path}.address"), "no address with a port to listen on");
            continue;
        };
        match value::target(target) {
            Ok(target) => {
                let name = free_name(setup, n);
                let protocol = InboundProtocol::Tunnel { target, transports };
                let mut inbound = of(&name, vec![listen], protocol);
                if let Some(proxy) = proxy {
                    setup.fixed.insert(inbound.name.clone(), ("tunnel proxy", proxy.into()));
                    flat.fixed(context, &inbound.name);
                    lead(
                        context,
                        &mut inbound,
                        proxy,
                        yaml_access::at(item, "proxy"),
                        format!("{path}.proxy"),
                    );
                }
                setup.config.inbounds.push(inbound);
            }
            Err(problem) => {
                context.error(yaml_access::at(item, "target"), format!("{path}.target"), problem.text);
            }
        }
    }
}

/// A name for the tunnel of this number, which no listener has.
fn free_name(setup: &ClashSetup, n: usize) -> String {
    let mut name = format!("tunnel-{n}");
    while setup.config.inbounds.iter().any(|inbound| *inbound.name == *name) {
        name.push('-');
    }
    name
}
