//! The kind of NAT in front of this machine, as far as a STUN server with two addresses tells (RFC 5780).

use std::io;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::time::Duration;

use adit_model::Egress;
use adit_proto::rtc::stun::{Answer, TransactionId, request};
use adit_proto::wire::Rng;

use super::gather::{receive, send};
use crate::rt;
use crate::udp::Socket;

/// Time for one round trip.
const LIMIT: Duration = Duration::from_secs(10);
/// Pause between two requests.
const AGAIN: Duration = Duration::from_millis(500);

/// Kind of a NAT, by whom it lets in.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Nat {
    /// No server could tell.
    Unknown,
    /// One mapping for all, and anybody may use it.
    Open,
    /// One mapping for all, for those that have been sent to.
    Moderate,
    /// A mapping for each destination.
    Strict,
}

/// Asks `servers` in order, until one can tell.
pub async fn discover(servers: &[SocketAddr], egress: &Egress, rng: &mut dyn Rng) -> Nat {
    for server in servers.iter().filter(|server| server.is_ipv4()) {
        match ask(*server, egress, rng).await {
            Ok(Some(nat)) => return nat,
            Ok(None) => {}
            Err(error) => tracing::debug!(%error, "NAT discovery"),
        }
    }
    Nat::Unknown
}

async fn ask(server: SocketAddr, egress: &Egress, rng: &mut dyn Rng) -> io::Result<Option<Nat>> {
    let socket = Socket::open(egress)?;
    let Some(first) = exchange(&socket, server, false, rng).await? else { return Ok(None) };
    let Some(other) = first.other else { return Ok(None) };
    let Some(second) = exchange(&socket, other, false, rng).await? else { return Ok(None) };
    if first.mapped != second.mapped {
        return Ok(Some(Nat::Strict));
    }
    // A fresh mapping that has spoken to one address is asked for by the other one.
    let socket = Socket::open(egress)?;
    let reached = exchange(&socket, server, true, rng).await?.is_some();
    Ok(Some(if reached { Nat::Open } else { Nat::Moderate }))
}

/// One request and its answer; nothing if none has come in time.
async fn exchange(
    socket: &Socket,
    to: SocketAddr,
    changes: bool,
    rng: &mut dyn Rng,
) -> io::Result<Option<Answer>> {
    let id = TransactionId::draw(rng);
    let request = request(id, changes);
    let end = rt::now() + LIMIT;
    while rt::now() < end {
        send(socket, &request, IpAddr::V4(Ipv4Addr::UNSPECIFIED), to);
        let again = rt::now() + AGAIN;
        while let Ok(answers) = rt::timeout(again.saturating_duration_since(rt::now()), receive(socket)).await
        {
            if let Some(answer) = answers?.into_iter().find(|answer| answer.id == id) {
                return Ok(Some(answer));
            }
        }
    }
    Ok(None)
}
