//! Servers with users: told apart, counted to the byte, and held to their limits.

mod interop;
mod limits;
mod pairs;
mod unauthenticated;

use std::net::SocketAddr;

use adit_engine::UserStatus;
use adit_model::{
    InboundProtocol, ObfsServer, OutboundProtocol, Secret, SnellClient, SnellKeys, SnellServer, SnellVersion,
    User, UserLimits, Users,
};
use adit_testkit::unused_addr;

use crate::common::{Proxy, Setup};

/// Users of the first letters.
fn users(names: &[(&str, UserLimits)]) -> Users {
    let user = |(name, limits): &(&str, UserLimits)| User {
        name: (*name).into(),
        key: Secret::new(key(name)),
        limits: *limits,
    };
    Users::new(names.iter().map(user).collect()).unwrap()
}

fn unlimited(names: &[&'static str]) -> Users {
    users(&names.iter().map(|name| (*name, UserLimits::default())).collect::<Vec<_>>())
}

/// The key of a user.
fn key(name: &str) -> String {
    format!("the own key of {name}")
}

/// The way in which a server identifies users.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Scheme {
    /// By client ids.
    Named,
    /// By keys of their own.
    Each,
}

const SCHEMES: [Scheme; 2] = [Scheme::Named, Scheme::Each];

fn server(setup: &Setup, scheme: Scheme, users: Users) -> Proxy {
    let psk = match scheme {
        Scheme::Named => SnellKeys::Named(Secret::new(setup.psk), users),
        Scheme::Each => SnellKeys::Each(users),
    };
    let server = SnellServer { psk, versions: setup.versions, obfs: ObfsServer::Off, udp: true, quic: false };
    let config = setup.config(InboundProtocol::Snell(server), vec![unused_addr()], OutboundProtocol::Direct);
    Proxy::start(&config)
}

/// A local port that leads to a server as one of its users.
fn client(setup: &Setup, scheme: Scheme, name: &str, server: SocketAddr) -> Proxy {
    client_from(setup, scheme, name, server, setup.local())
}

/// The same with another inbound.
fn client_from(
    setup: &Setup,
    scheme: Scheme,
    name: &str,
    server: SocketAddr,
    from: InboundProtocol,
) -> Proxy {
    let OutboundProtocol::Snell(client) = setup.snell_out(server) else { panic!("a Snell client") };
    let client = match scheme {
        Scheme::Named => SnellClient { client_id: Some(Secret::new(key(name))), ..client },
        Scheme::Each => SnellClient { psk: Secret::new(key(name)), ..client },
    };
    Proxy::start(&setup.config(from, vec![unused_addr()], OutboundProtocol::Snell(client)))
}

fn of(version: SnellVersion) -> Setup {
    Setup {
        versions: adit_model::SnellVersions::Only(version),
        version,
        reuse: version.fixed_reuse().unwrap_or(true),
        half_close: adit_model::HalfClose::On,
        ..Setup::default()
    }
}

/// Status of a user on a server.
fn status(server: &Proxy, name: &str) -> UserStatus {
    let users = server.running().status().inbounds.remove(0).users;
    users.into_iter().find(|user| user.name == name).unwrap()
}
