//! The list of open connections and flows, on request, and their end at the operator's word.
//!
//! Nothing is written down for the list while bytes move: a core is asked ([`Ask`]), looks at its own tables, and answers.

use std::net::SocketAddr;
use std::time::Instant;

use adit_model::Tag;
use adit_net::rt::OrderSender;
use serde::{Deserialize, Serialize};

/// One open connection with a request, or one flow of datagrams.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ConnectionStatus {
    /// Its number, which no other one of this process has or had.
    pub id: u64,
    /// `tcp` or `udp`.
    pub network: String,
    /// Name of the inbound.
    pub inbound: String,
    /// Name of the user, where the inbound knows its users.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub user: Option<String>,
    /// Address of the client, without a port if it came over a unix socket.
    pub source: String,
    /// The target as the client named it; `*` for datagrams to any number of targets.
    pub target: String,
    /// Name of the outbound, the member of a group for one of a group; empty if there are several.
    pub outbound: String,
    /// Payload bytes from the client, for this request.
    pub up_bytes: u64,
    /// Payload bytes to the client, for this request.
    pub down_bytes: u64,
    /// Seconds since the request was complete, or since the flow began.
    pub age_s: u64,
    /// Seconds since bytes last moved.
    pub quiet_s: u64,
    /// The way that it took.
    #[serde(default)]
    pub way: ConnectionRoute,
}

/// The way of a connection: the reason for it, and the outbounds along it.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct ConnectionRoute {
    /// Type of the rule that decided; empty if none did, or if it is not known.
    pub rule: String,
    /// Payload of that rule.
    pub payload: String,
    /// Names of the outbound at the end and of the groups that led there, outermost last.
    pub chain: Vec<String>,
    /// The protocol by which the client asked, where its port takes several.
    pub entry: String,
    /// The name that the client was told for the address of the target.
    pub name: Option<String>,
    /// The name that the client's first bytes have told.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub sniffed: Option<String>,
    /// Path of the client's program on this host, where it was sought and found.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub program: Option<String>,
    /// The user that it runs as, likewise.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub uid: Option<u32>,
}

/// Connections that are to end.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Kicked {
    /// All of the users of this name, over all inbounds.
    User(String),
    /// The one of this number.
    Id(u64),
    /// Every one.
    All,
}

impl Kicked {
    /// Whether the connection `id` of `user` is one of them.
    pub(crate) fn is(&self, id: u64, user: Option<&str>) -> bool {
        match self {
            Self::User(name) => user == Some(name),
            Self::Id(wanted) => id == *wanted && id != 0,
            Self::All => true,
        }
    }
}

/// A question to a core. A table that has answered drops its sender; the question is answered when all are gone.
#[derive(Debug, Clone)]
pub(crate) enum Ask {
    /// Each table sends a part of the list, of at most `most` entries.
    List {
        /// Entries of one part.
        most: usize,
        /// Takes parts.
        parts: OrderSender<ListingPart>,
    },
    /// Each table ends these, and sends how many.
    Kick {
        /// The connections.
        of: Kicked,
        /// Takes counts.
        counts: OrderSender<u64>,
    },
}

/// A part of the list.
#[derive(Debug, Default)]
pub(crate) struct ListingPart {
    /// Entries.
    pub(crate) connections: Vec<ConnectionStatus>,
    /// Entries that did not fit.
    pub(crate) left_out: u64,
}

impl ListingPart {
    /// Adds an entry if there is room among `most`.
    pub(crate) fn push(&mut self, most: usize, make: impl FnOnce() -> ConnectionStatus) {
        if self.connections.len() < most {
            self.connections.push(make());
        } else {
            self.left_out += 1;
        }
    }
}

/// The facts about a request that the list shows.
pub(crate) struct Description {
    /// `tcp` or `udp`.
    pub(crate) network: &'static str,
    /// Address of the client; port 0 for a unix socket.
    pub(crate) source: SocketAddr,
    /// The target.
    pub(crate) target: String,
    /// The outbound, if it is one.
    pub(crate) outbound: Option<Tag>,
    /// When the request was complete.
    pub(crate) since: Instant,
    /// The way that it took.
    pub(crate) way: ConnectionRoute,
}

/// A request that can be shown.
pub(crate) trait Describe {
    /// Its facts.
    fn describe(&self) -> Description;

    /// The first byte of the answer has come.
    fn note_answer(&self, now: Instant) {
        let _ = now;
    }
}

/// The text of a client's address.
pub(crate) fn source_text(source: SocketAddr) -> String {
    if source.port() == 0 { source.ip().to_string() } else { source.to_string() }
}
