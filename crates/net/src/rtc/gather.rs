//! The addresses at which this machine can be reached: its own, and those that STUN servers see.

use std::future::poll_fn;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::ops::RangeInclusive;
use std::task::{Poll, ready};
use std::time::Duration;

use adit_model::Egress;
use adit_proto::rtc::stun::{Answer, TransactionId, request};
use adit_proto::wire::Rng;
use adit_sys::netlink::Family;

use super::with_scratch;
use crate::netlink::Netlink;
use crate::netlink::route;
use crate::rt;
use crate::udp::{Outgoing, Socket};

/// Gathering ends after this unless told otherwise, even if answers are missing.
const LIMIT: Duration = Duration::from_secs(5);
/// Pause between two rounds of requests.
const AGAIN: Duration = Duration::from_millis(400);
/// Others have this long once one STUN server has answered.
const OTHERS: Duration = Duration::from_millis(800);
/// Addresses of this machine that are tried, at most.
const MAX_HOSTS: usize = 16;
/// Bytes of a socket's buffers.
const BUFFER: usize = 2 << 20;
/// Ports that are tried in a range.
const TRIES: u32 = 64;

/// Settings for gathering.
#[derive(Debug, Clone)]
pub struct Gathering {
    /// Interface, addresses and mark of the sockets.
    pub egress: Egress,
    /// STUN servers.
    pub stun: Vec<SocketAddr>,
    /// Whether private and loopback addresses are told to the other end.
    pub keep_local: bool,
    /// Ports that sockets may have; any if there is none.
    pub ports: Option<RangeInclusive<u16>>,
    /// The only address of this machine that is used, or the one that stands for it (1:1 NAT).
    pub outbound: Option<IpAddr>,
    /// Time for all.
    pub limit: Duration,
}

impl Default for Gathering {
    fn default() -> Self {
        Self {
            egress: Egress::default(),
            stun: Vec::new(),
            keep_local: false,
            ports: None,
            outbound: None,
            limit: LIMIT,
        }
    }
}

/// The usable addresses of this machine.
///
/// # Errors
/// The kernel's refusal to list them.
pub fn local_addresses() -> io::Result<Vec<IpAddr>> {
    let mut netlink = Netlink::open(Family::Route)?;
    route::addresses(&mut netlink).map_err(io::Error::other)
}

/// Whether an address says nothing to others, or more than they should know: private, loopback, link-local, shared
/// (100.64.0.0/10) and unspecified ones.
pub fn is_hidden(ip: IpAddr) -> bool {
    match ip.to_canonical() {
        IpAddr::V4(ip) => {
            let [a, b, ..] = ip.octets();
            let is_shared = a == 100 && b & 0xc0 == 64;
            is_shared || ip.is_private() || ip.is_loopback() || ip.is_link_local() || ip.is_unspecified()
        }
        IpAddr::V6(ip) => {
            ip.is_loopback() || ip.is_unspecified() || ip.is_unique_local() || ip.is_unicast_link_local()
        }
    }
}

/// Addresses that were found.
#[derive(Debug, Default)]
pub(super) struct Found {
    /// Addresses of the socket.
    pub(super) hosts: Vec<SocketAddr>,
    /// Those that STUN servers have seen, with ours.
    pub(super) reflexive: Vec<(SocketAddr, SocketAddr)>,
}

impl Gathering {
    /// A socket that takes datagrams at every address.
    pub(super) fn open(&self, rng: &mut dyn Rng) -> io::Result<Socket> {
        let socket = match &self.ports {
            None => Socket::open(&self.egress)?,
            Some(ports) => self.open_in(ports, rng)?,
        };
        socket.report_destination()?;
        // A burst of a window is not to be lost for want of room; the system may give less.
        if let Err(error) = socket.set_buffers(BUFFER) {
            tracing::debug!(%error, "buffers of a peer connection");
        }
        Ok(socket)
    }

    fn open_in(&self, ports: &RangeInclusive<u16>, rng: &mut dyn Rng) -> io::Result<Socket> {
        let count = u32::from(ports.end().saturating_sub(*ports.start())) + 1;
        let first = rng.below(count);
        let mut result = Err(io::ErrorKind::AddrInUse.into());
        for step in 0..count.min(TRIES) {
            let at = (first + step) % count;
            let port = ports.start().saturating_add(u16::try_from(at).unwrap_or(0));
            result = Socket::open_port(&self.egress, port);
            if !result.as_ref().is_err_and(|error| error.kind() == io::ErrorKind::AddrInUse) {
                break;
            }
        }
        result
    }

    /// Finds the addresses of `socket`.
    pub(super) async fn run(&self, socket: &Socket, rng: &mut dyn Rng) -> io::Result<Found> {
        let port = socket.local_addr()?.port();
        let ips = local_addresses()?;
        let is_usable = |ip: &IpAddr| {
            let is_link_local = matches!(ip, IpAddr::V6(ip) if ip.is_unicast_link_local());
            let is_chosen = self.outbound.is_none_or(|only| only == *ip || !ips.contains(&only));
            !is_link_local && is_chosen && (self.keep_local || !ip.is_loopback())
        };
        let hosts = ips.iter().filter(|ip| is_usable(ip)).take(MAX_HOSTS);
        let hosts = hosts.map(|ip| SocketAddr::new(*ip, port)).collect();
        let mut found = Found { hosts, reflexive: Vec::new() };
        if let Some(outbound) = self.outbound.filter(|only| !ips.contains(only)) {
            // The address of a NAT that passes every port on.
            let base = found.hosts.iter().find(|host| host.is_ipv4() == outbound.is_ipv4()).copied();
            found.reflexive.extend(base.map(|base| (SocketAddr::new(outbound, port), base)));
        }
        if !self.stun.is_empty() {
            self.ask(socket, &mut found, rng).await?;
        }
        Ok(found)
    }

    /// Asks the STUN servers.
    async fn ask(&self, socket: &Socket, found: &mut Found, rng: &mut dyn Rng) -> io::Result<()> {
        let mut asked: Vec<(TransactionId, SocketAddr, SocketAddr)> = Vec::new();
        for host in &found.hosts {
            for server in self.stun.iter().filter(|server| server.is_ipv4() == host.is_ipv4()) {
                // Only another machine sees what a public address does not say.
                let is_reachable = server.ip().is_loopback() || !host.ip().is_loopback();
                if is_reachable {
                    asked.push((TransactionId::draw(rng), *host, *server));
                }
            }
        }
        let (mut now, began_at) = (rt::now(), rt::now());
        let mut end = began_at + self.limit;
        while !asked.is_empty() && now < end {
            for (id, host, server) in &asked {
                send(socket, &request(*id, false), host.ip(), *server);
            }
            let again = end.min(now + AGAIN);
            while now < again && !asked.is_empty() {
                let Ok(answers) = rt::timeout(again - now, receive(socket)).await else { break };
                for answer in answers? {
                    let Some(at) = asked.iter().position(|(id, ..)| *id == answer.id) else { continue };
                    let (_, host, _) = asked.remove(at);
                    end = end.min(rt::now() + OTHERS);
                    if answer.mapped != host
                        && !found.reflexive.iter().any(|(addr, _)| *addr == answer.mapped)
                    {
                        found.reflexive.push((answer.mapped, host));
                    }
                    // One answer for each address is enough.
                    asked.retain(|(_, other, _)| *other != host);
                }
                now = rt::now();
            }
            now = rt::now();
        }
        Ok(())
    }
}

/// Sends one datagram; losses are the business of those who wait for the answer.
pub(super) fn send(socket: &Socket, bytes: &[u8], from: IpAddr, to: SocketAddr) {
    let outgoing = Outgoing {
        key: 0,
        to,
        from: Some(from).filter(|ip| !ip.is_unspecified()),
        class: 0,
        start: 0,
        len: bytes.len(),
    };
    with_scratch(|scratch| {
        socket.send_from(&mut scratch.batch, bytes, &[outgoing]);
    });
}

/// The STUN answers of one batch.
pub(super) async fn receive(socket: &Socket) -> io::Result<Vec<Answer>> {
    poll_fn(|cx| {
        with_scratch(|scratch| {
            ready!(socket.poll_receive(cx, &mut scratch.batch, &mut 0))?;
            let batch = &scratch.batch;
            let datagrams = (0..batch.len()).filter_map(|at| batch.get(at));
            let answers = datagrams.filter_map(|datagram| Answer::parse(&batch.block[datagram.range()]).ok());
            Poll::Ready(Ok(answers.collect()))
        })
    })
    .await
}
