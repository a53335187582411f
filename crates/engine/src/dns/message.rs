//! Questions to name servers and what their answers say.
//!
//! An answer is taken only if it belongs to the question: its id, its name (letters of either case) and its type.

#![allow(clippy::wildcard_enum_match_arm, reason = "the rest of foreign, growing enums is one case")]

use std::net::IpAddr;
use std::sync::Arc;

use adit_net::resolve::ResolveError;
use hickory_proto::op::{Edns, Message, MessageType, OpCode, Query, ResponseCode};
use hickory_proto::rr::{DNSClass, Name, RData, Record, RecordType};

/// Bytes of a datagram that fit every path without fragments; the recommendation of DNS Flag Day 2020.
pub(super) const UDP_PAYLOAD: u16 = 1232;
/// Links of a chain of aliases (CNAME) that are followed; BIND follows 16, unbound 11.
const MAX_ALIASES: usize = 16;
/// Addresses of one answer that are kept; connections try 8 of each family.
const MAX_ADDRESSES: usize = 32;
/// Seconds for which the absence of a name or record is remembered at most. RFC 2308 section 5 allows hours; a name
/// that has just been created should be seen by a proxy sooner.
const MAX_NEGATIVE_TTL: u32 = 300;
/// Bytes of a message that is kept as it came.
const MAX_KEPT: usize = 4096;

/// The answer for one name and record type.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Body {
    /// Its addresses, at least one; for A and AAAA.
    Addresses(Arc<[IpAddr]>),
    /// The name does not exist.
    NoName,
    /// It exists without a record of this type.
    NoRecord,
    /// The whole answer, with id 0; for other types.
    Message(Arc<[u8]>),
}

impl Body {
    /// Bytes that it holds on the heap.
    pub(super) fn len(&self) -> usize {
        match self {
            Self::Addresses(ips) => size_of_val(&**ips),
            Self::Message(bytes) => bytes.len(),
            Self::NoName | Self::NoRecord => 0,
        }
    }
}

/// An answer with the seconds for which it holds.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct DnsAnswer {
    pub(super) body: Body,
    pub(super) ttl: u32,
}

/// The kind of a message from a name server.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum ReplyKind {
    /// The answer.
    Answer(DnsAnswer),
    /// Only its beginning: the whole has to be fetched by TCP.
    Truncated,
    /// The server's failure, as a response code (RFC 1035 section 4.1.1).
    Failed(u16),
    /// Not the answer to this question, or no message at all.
    Foreign,
}

/// A name as it is asked for: absolute.
///
/// # Errors
/// [`ResolveError::BadName`].
pub(super) fn absolute(text: &str) -> Result<Name, ResolveError> {
    let mut name = relative(text)?;
    name.set_fqdn(true);
    Ok(name)
}

/// A name that may stand under another one.
pub(super) fn relative(text: &str) -> Result<Name, ResolveError> {
    // A backslash starts an escape in zone files; a name from a proxy request has no business with it.
    if text.is_empty() || text.contains('\\') {
        return Err(ResolveError::BadName);
    }
    let name = if text.is_ascii() { Name::from_ascii(text) } else { Name::from_utf8(text) };
    name.map_err(|_| ResolveError::BadName)
}

/// The question for the records of type `kind` of `name`, as a message.
///
/// # Errors
/// [`ResolveError::BadName`] if it cannot be written.
pub(super) fn question(name: &Name, kind: RecordType, id: u16, edns: bool) -> Result<Vec<u8>, ResolveError> {
    let mut message = Message::new(id, MessageType::Query, OpCode::Query);
    message.metadata.recursion_desired = true;
    message.add_query(Query::query(name.clone(), kind));
    if edns {
        let mut edns = Edns::new();
        edns.set_max_payload(UDP_PAYLOAD).set_version(0);
        message.set_edns(edns);
    }
    message.to_vec().map_err(|_| ResolveError::BadName)
}

/// Reads a message that has come in answer to [`question`].
pub(super) fn read_reply(bytes: &[u8], name: &Name, kind: RecordType, id: u16) -> ReplyKind {
    let Ok(message) = Message::from_vec(bytes) else { return read_broken(bytes, id) };
    let meta = &message.metadata;
    let is_ours = meta.id == id
        && meta.message_type == MessageType::Response
        && meta.op_code == OpCode::Query
        && match &*message.queries {
            [query] => query.name == *name && query.query_type == kind && query.query_class == DNSClass::IN,
            // Some servers leave the question out of a failure.
            [] => meta.response_code != ResponseCode::NoError,
            _ => false,
        };
    if !is_ours {
        return ReplyKind::Foreign;
    }
    if meta.truncation {
        return ReplyKind::Truncated;
    }
    match meta.response_code {
        ResponseCode::NXDomain => {
            ReplyKind::Answer(DnsAnswer { body: Body::NoName, ttl: negative_ttl(&message.authorities) })
        }
        ResponseCode::NoError if matches!(kind, RecordType::A | RecordType::AAAA) => {
            addresses(&message, name, kind)
        }
        ResponseCode::NoError => whole(message),
        code => ReplyKind::Failed(code.into()),
    }
}

/// A message that cannot be read may still be an answer that was cut off, or a failure (12 bytes of header).
fn read_broken(bytes: &[u8], id: u16) -> ReplyKind {
    let Some(head) = bytes.first_chunk::<12>() else { return ReplyKind::Foreign };
    let is_ours = head[..2] == id.to_be_bytes() && head[2] & 0x80 != 0;
    match (is_ours, head[2] & 2 != 0) {
        (true, true) => ReplyKind::Truncated,
        (true, false) if head[3] & 15 != 0 && bytes.len() == 12 => ReplyKind::Failed((head[3] & 15).into()),
        (true, false) | (false, _) => ReplyKind::Foreign,
    }
}

/// The addresses at the end of the chain of aliases that begins with the question.
fn addresses(message: &Message, name: &Name, kind: RecordType) -> ReplyKind {
    let (mut at, mut ttl) = (name, u32::MAX);
    for _ in 0..=MAX_ALIASES {
        let own = || message.answers.iter().filter(|record| record.name == *at);
        let (ips, least) = addresses_of(own(), kind);
        if !ips.is_empty() {
            return ReplyKind::Answer(DnsAnswer { body: Body::Addresses(ips.into()), ttl: ttl.min(least) });
        }
        let alias = own().find_map(|record| match &record.data {
            RData::CNAME(alias) => Some((&alias.0, record.ttl)),
            _ => None,
        });
        let Some((next, life)) = alias else {
            let ttl = ttl.min(negative_ttl(&message.authorities));
            return ReplyKind::Answer(DnsAnswer { body: Body::NoRecord, ttl });
        };
        (at, ttl) = (next, ttl.min(life));
    }
    ReplyKind::Failed(ResponseCode::ServFail.into())
}

fn addresses_of<'r>(records: impl Iterator<Item = &'r Record>, kind: RecordType) -> (Vec<IpAddr>, u32) {
    let (mut ips, mut ttl) = (Vec::new(), u32::MAX);
    for record in records.filter(|record| record.record_type() == kind && record.dns_class == DNSClass::IN) {
        let Some(ip) = record.data.ip_addr() else { continue };
        // An AAAA record with an IPv4-mapped address would get around a choice of family.
        if ip.to_canonical() == ip && !ips.contains(&ip) && ips.len() < MAX_ADDRESSES {
            ips.push(ip);
            ttl = ttl.min(record.ttl);
        }
    }
    (ips, ttl)
}

/// TTL of the absence in seconds, by RFC 2308 section 5. Without a SOA record the absence must not be cached.
fn negative_ttl(authorities: &[Record]) -> u32 {
    let soa = authorities.iter().find_map(|record| match &record.data {
        RData::SOA(soa) => Some(record.ttl.min(soa.minimum)),
        _ => None,
    });
    soa.unwrap_or(0).min(MAX_NEGATIVE_TTL)
}

/// An answer of another type, as it came.
fn whole(mut message: Message) -> ReplyKind {
    let least = message.answers.iter().map(|record| record.ttl).min();
    let ttl = least.unwrap_or_else(|| negative_ttl(&message.authorities));
    message.metadata.id = 0;
    message.edns = None;
    match message.to_vec() {
        Ok(bytes) => {
            let ttl = if bytes.len() > MAX_KEPT { 0 } else { ttl };
            ReplyKind::Answer(DnsAnswer { body: Body::Message(bytes.into()), ttl })
        }
        Err(_) => ReplyKind::Failed(ResponseCode::ServFail.into()),
    }
}

/// The fuzzer's entry: for any bytes of a name server the answer is bounded, and only the right question's is taken.
#[doc(hidden)]
pub fn fuzz_dns_reply(data: &[u8]) {
    let Some((head, bytes)) = data.split_first_chunk::<3>() else { return };
    let kind = match head[2] % 3 {
        0 => RecordType::A,
        1 => RecordType::AAAA,
        _ => RecordType::TXT,
    };
    let id = u16::from_be_bytes([head[0], head[1]]);
    let name = absolute("www.example.com").expect("it is a name");
    match read_reply(bytes, &name, kind, id) {
        ReplyKind::Answer(DnsAnswer { body: Body::Addresses(ips), .. }) => {
            assert!((1..=MAX_ADDRESSES).contains(&ips.len()));
            assert!(ips.iter().all(|ip| ip.is_ipv4() == (kind == RecordType::A)));
        }
        ReplyKind::Answer(
            DnsAnswer { body: Body::NoName, ttl } | DnsAnswer { body: Body::NoRecord, ttl },
        ) => {
            assert!(ttl <= MAX_NEGATIVE_TTL);
        }
        ReplyKind::Answer(DnsAnswer { body: Body::Message(whole), ttl }) => {
            assert!(kind == RecordType::TXT && (ttl == 0 || whole.len() <= MAX_KEPT));
            assert!(Message::from_vec(&whole).is_ok(), "it can be read again");
        }
        ReplyKind::Truncated | ReplyKind::Failed(_) | ReplyKind::Foreign => {}
    }
    let other = read_reply(bytes, &name, kind, id.wrapping_add(1));
    assert!(other == ReplyKind::Foreign || bytes.get(..2) == Some(&id.wrapping_add(1).to_be_bytes()));
}
