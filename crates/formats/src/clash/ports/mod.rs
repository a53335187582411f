//! Ports for applications: the ones at the top of the file, `listeners`, `tunnels` and `ss-config`.

mod clients;
mod servers;
mod tunnels;

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use adit_model::rule::{Cidr, Verdict};
use adit_model::{
    Captured, CapturedBy, Inbound, InboundProtocol, Local, LocalProtocols, Reply, Secret, SocketOptions, Tag,
    Transports, User,
};

use super::rules::{Flat, Lists};
use super::{ClashSetup, Context, proxy, rule_line};
use crate::read::json::JsonValue;
use crate::read::value;
use crate::read::yaml_access;

/// Most ports of one listener.
const MAX_PORTS: u32 = 64;

/// Reads all ports; the rules that bind a listener to a list or a proxy go in front of the others.
pub(crate) fn read(
    context: &mut Context<'_>,
    root: &JsonValue,
    setup: &mut ClashSetup,
    flat: &mut Flat,
    lists: &Lists,
) {
    let users = credentials(context, root);
    clients::bound(context, root, flat);
    let open_to = clients::open_to(context, root);
    let ip = address(context, root);
    for (key, name, accepts) in [
        ("port", "DEFAULT-HTTP", LocalProtocols::Http),
        ("socks-port", "DEFAULT-SOCKS", LocalProtocols::Socks),
        ("mixed-port", "DEFAULT-MIXED", LocalProtocols::Mixed),
    ] {
        let Some(value) = yaml_access::get(root, key) else { continue };
        match yaml_access::text(value).and_then(|text| text.parse::<u16>().ok()) {
            Some(0) => {}
            Some(port) => {
                let listen = vec![SocketAddr::new(ip, port)];
                let port = local(name, listen, accepts, users.clone(), open_to.clone());
                setup.config.inbounds.push(port);
            }
            None => context.error(value.at, key, "no port"),
        }
    }
    for (key, name, protocol) in [
        ("redir-port", "DEFAULT-REDIR", captured(CapturedBy::Redirect, Transports::Tcp)),
        ("tproxy-port", "DEFAULT-TPROXY", captured(CapturedBy::Tproxy, Transports::Both)),
    ] {
        let Some(value) = yaml_access::get(root, key) else { continue };
        match yaml_access::text(value).and_then(|text| text.parse::<u16>().ok()) {
            Some(0) => {}
            Some(port) => {
                setup.config.inbounds.push(of(name, vec![SocketAddr::new(ip, port)], protocol));
            }
            None => context.error(value.at, key, "no port"),
        }
    }
    for (n, item) in
        yaml_access::get(root, "listeners").map(yaml_access::items).unwrap_or_default().iter().enumerate()
    {
        let path = format!("listeners[{n}]");
        let Some(mut inbound) = listener(context, item, &path, &users, &open_to) else { continue };
        bind(context, item, &path, &inbound.name, setup, flat, lists);
        if let Some(tag) = yaml_access::text_of(item, "proxy") {
            lead(context, &mut inbound, tag, yaml_access::at(item, "proxy"), format!("{path}.proxy"));
        }
        setup.config.inbounds.push(inbound);
    }
    tunnels::read(context, root, setup, flat);
    servers::old(context, root, setup);
}

/// Sends everything that comes in here to the proxy of this name.
fn lead(context: &mut Context<'_>, inbound: &mut Inbound, name: &str, at: usize, path: String) {
    match context.target(name).map(|target| target.verdict.clone()) {
        Some(Verdict::Outbound(tag)) => inbound.outbound = tag,
        Some(_) => context.refuse(at, path, "a listener that is bound to a target that refuses"),
        None => context.error(at, path, format!("proxy [{name}] not found")),
    }
}

/// Binds a listener to its list of rules, or to its proxy.
fn bind(
    context: &mut Context<'_>,
    item: &JsonValue,
    path: &str,
    name: &Tag,
    setup: &mut ClashSetup,
    flat: &mut Flat,
    lists: &Lists,
) {
    if let Some(target) = yaml_access::text_of(item, "proxy") {
        setup.fixed.insert(name.clone(), ("listener proxy", target.into()));
        flat.fixed(context, name);
    } else if let Some(list) = yaml_access::text_of(item, "rule") {
        if lists.contains_key(list) {
            let why = "no rule of the listener rule list matched";
            setup.fixed.insert(name.clone(), (why, proxy::DIRECT.into()));
            flat.listener(context, name, list, lists);
        } else {
            let problem = format!("no list of sub-rules of this name: {list}; the main rules hold");
            context.remark(yaml_access::at(item, "rule"), format!("{path}.rule"), problem, "");
        }
    }
}

fn captured(by: CapturedBy, transports: Transports) -> InboundProtocol {
    InboundProtocol::Captured(Captured { by, transports })
}

/// A port with its users, and the networks whose clients are none.
fn local(
    name: &str,
    listen: Vec<SocketAddr>,
    accepts: LocalProtocols,
    users: Vec<User>,
    open_to: Vec<Cidr>,
) -> Inbound {
    of(name, listen, InboundProtocol::Local(Local { accepts, users, reply: Reply::Early, open_to }))
}

fn of(name: &str, listen: Vec<SocketAddr>, protocol: InboundProtocol) -> Inbound {
    Inbound {
        name: name.into(),
        listen,
        socket: SocketOptions::default(),
        outbound: proxy::DIRECT.into(),
        allow_private: true,
        protocol,
    }
}

/// The address that the ports at the top listen on.
fn address(context: &mut Context<'_>, root: &JsonValue) -> IpAddr {
    if !yaml_access::is_on(root, "allow-lan") {
        return Ipv4Addr::LOCALHOST.into();
    }
    let Some(value) = yaml_access::get(root, "bind-address") else { return Ipv6Addr::UNSPECIFIED.into() };
    match yaml_access::text(value).unwrap_or_default() {
        "*" | "" => Ipv6Addr::UNSPECIFIED.into(),
        text => text.trim_matches(['[', ']']).parse().unwrap_or_else(|_| {
            context.error(value.at, "bind-address", "no address");
            Ipv4Addr::LOCALHOST.into()
        }),
    }
}

fn credentials(context: &mut Context<'_>, root: &JsonValue) -> Vec<User> {
    let mut users = Vec::new();
    for (text, at) in yaml_access::texts_of(root, "authentication") {
        match text.split_once(':') {
            Some((name, password)) if !name.is_empty() && !password.is_empty() => {
                users.push(User::from((name.into(), Secret::new(password))));
            }
            _ => context.error(at, "authentication", "expected user:password"),
        }
    }
    users
}

fn listener(
    context: &mut Context<'_>,
    item: &JsonValue,
    path: &str,
    general: &[User],
    open_to: &[Cidr],
) -> Option<Inbound> {
    let (Some(name), Some(kind)) = (yaml_access::text_of(item, "name"), yaml_access::text_of(item, "type"))
    else {
        context.error(item.at, path, "a listener needs `name` and `type`");
        return None;
    };
    let accepts = match kind {
        "mixed" => Some(LocalProtocols::Mixed),
        "socks" => Some(LocalProtocols::Socks),
        "http" => Some(LocalProtocols::Http),
        "tunnel" | "redir" | "tproxy" | "shadowsocks" | "snell" => None,
        _ => {
            let problem = format!("left out: adit does not listen for {} here", value::excerpt(kind));
            context.remark(item.at, path, problem, "");
            return None;
        }
    };
    for key in ["certificate", "private-key"] {
        if yaml_access::text_of(item, key).is_some_and(|text| !text.is_empty()) {
            let problem = "the listener is left out: adit does not serve TLS here";
            context.remark(yaml_access::at(item, key), format!("{path}.{key}"), problem, "");
            return None;
        }
    }
    let listen = listen(context, item, path)?;
    let Some(accepts) = accepts else {
        let protocol = match kind {
            "redir" => Some(captured(CapturedBy::Redirect, Transports::Tcp)),
            "tproxy" => Some(captured(CapturedBy::Tproxy, servers::transports(item))),
            "shadowsocks" => servers::shadowsocks(context, item, path),
            "snell" => servers::snell(context, item, path),
            _ => tunnel(context, item, path),
        };
        return protocol.map(|protocol| of(name, listen, protocol));
    };
    let (users, open_to) = match yaml_access::get(item, "users") {
        // mihomo does not let clients into a port with users of its own without a password.
        Some(users) => (own_users(context, users, path)?, Vec::new()),
        None => (general.to_vec(), open_to.to_vec()),
    };
    Some(local(name, listen, accepts, users, open_to))
}

fn own_users(context: &mut Context<'_>, value: &JsonValue, path: &str) -> Option<Vec<User>> {
    let mut users = Vec::new();
    for item in yaml_access::items(value) {
        let (Some(name), Some(password)) =
            (yaml_access::text_of(item, "username"), yaml_access::text_of(item, "password"))
        else {
            context.error(item.at, format!("{path}.users"), "a user needs `username` and `password`");
            return None;
        };
        users.push(User::from((name.into(), Secret::new(password))));
    }
    Some(users)
}

fn listen(context: &mut Context<'_>, item: &JsonValue, path: &str) -> Option<Vec<SocketAddr>> {
    let text = yaml_access::text_of(item, "listen").unwrap_or("0.0.0.0");
    let Ok(ip) = text.trim_matches(['[', ']']).parse::<IpAddr>() else {
        context.error(yaml_access::at(item, "listen"), format!("{path}.listen"), "no address");
        return None;
    };
    let ports = rule_line::numbers(yaml_access::text_of(item, "port").unwrap_or_default(), u16::MAX.into());
    let ports = ports.ok().filter(|ports| {
        let count: u64 = ports.iter().map(|(first, last)| u64::from(last - first) + 1).sum();
        count <= MAX_PORTS.into() && ports.iter().all(|(first, _)| *first > 0)
    });
    let Some(ports) = ports else {
        let problem = format!("no port, or more than {MAX_PORTS}");
        context.error(yaml_access::at(item, "port"), format!("{path}.port"), problem);
        return None;
    };
    let all = ports.into_iter().flat_map(|(first, last)| first..=last);
    Some(all.filter_map(|port| Some(SocketAddr::new(ip, u16::try_from(port).ok()?))).collect())
}

fn tunnel(context: &mut Context<'_>, item: &JsonValue, path: &str) -> Option<InboundProtocol> {
    let target = match value::target(yaml_access::text_of(item, "target").unwrap_or_default()) {
        Ok(target) => target,
        Err(problem) => {
            context.error(yaml_access::at(item, "target"), format!("{path}.target"), problem.text);
            return None;
        }
    };
    let networks: Vec<&str> =
        yaml_access::texts_of(item, "network").into_iter().map(|(text, _)| text).collect();
    let transports =
        if networks.is_empty() { Some(Transports::Both) } else { tunnels::transports(&networks) };
    let Some(transports) = transports else {
        context.error(yaml_access::at(item, "network"), format!("{path}.network"), tunnels::NETWORK);
        return None;
    };
    Some(InboundProtocol::Tunnel { target, transports })
}
