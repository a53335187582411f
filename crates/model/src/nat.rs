//! Rules of a firewall that bring traffic to a port, made once and left there.

use std::net::IpAddr;

use adit_proto::wire::Host;

use super::rule::Cidr;

/// Rules that bring IPv4 traffic to ports of this machine.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Nat {
    /// The servers behind the ports, whose traffic is left alone.
    pub servers: Vec<Host>,
    /// The port that connections are redirected to.
    pub tcp: u16,
    /// The port that datagrams are handed to (`TPROXY`).
    pub udp: Option<u16>,
    /// The interface that the traffic comes in by.
    pub interface: Box<str>,
    /// Targets that are left alone.
    pub bypass: Vec<Cidr>,
    /// Targets among these that are brought nevertheless.
    pub forward: Vec<Cidr>,
    /// The clients that the rules are for, if not all.
    pub clients: Option<Clients>,
    /// Connections of this machine are redirected too.
    pub output: bool,
}

/// Clients by their addresses.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Clients {
    /// These alone.
    Only(Vec<Cidr>),
    /// All but these.
    AllBut(Vec<Cidr>),
}

impl Nat {
    /// The addresses of the servers that are given as such.
    pub fn server_addresses(&self) -> impl Iterator<Item = IpAddr> + '_ {
        self.servers.iter().filter_map(|host| match host {
            Host::Ip(ip) => Some(*ip),
            Host::Name(_) => None,
        })
    }
}
