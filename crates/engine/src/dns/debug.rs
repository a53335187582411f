//! Questions of control programs to the name servers, with answers in words.

use std::rc::Rc;
use std::str::FromStr as _;

use adit_model::Dial;
use hickory_proto::op::{Message, MessageType, OpCode, Query};
use hickory_proto::rr::{DNSClass, Name, Record, RecordType};

use super::Dns;
use super::responder::Answerer;

/// Longest answer in bytes.
const MAX: usize = 65_535;

/// An answer.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct DnsReply {
    /// The code of the response.
    pub code: u16,
    /// The name that was asked for, with the dot at its end.
    pub name: String,
    /// The number of the type.
    pub kind: u16,
    /// The bits TC, RD, RA, AD and CD.
    pub bits: [bool; 5],
    /// The records of the three parts: answer, authority and additional.
    pub records: [Vec<DnsRecord>; 3],
}

/// A record.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DnsRecord {
    /// The name.
    pub name: String,
    /// The number of the type.
    pub kind: u16,
    /// Seconds for which it may be kept.
    pub ttl: u32,
    /// The data as text.
    pub data: String,
}

/// The message that asks for the records of a name, by the name of their type in capitals; `None` if there is no such type
/// or name.
pub(crate) fn question(name: &str, kind: &str) -> Option<Vec<u8>> {
    let is_word =
        !kind.is_empty() && kind.bytes().all(|byte| byte.is_ascii_uppercase() || byte.is_ascii_digit());
    let kind = RecordType::from_str(kind).ok().filter(|_| is_word)?;
    let mut name = Name::from_utf8(name).ok()?;
    name.set_fqdn(true);
    let mut message = Message::new(1, MessageType::Query, OpCode::Query);
    message.metadata.recursion_desired = true;
    let mut query = Query::query(name, kind);
    query.set_query_class(DNSClass::IN);
    message.add_query(query);
    message.to_vec().ok()
}

/// Asks.
pub(crate) async fn ask(dns: &Rc<Dns>, question: &[u8]) -> Option<DnsReply> {
    let answerer = Answerer::plain(dns.scope(&Dial::default()));
    let bytes = answerer.query(question, MAX).await?;
    let message = Message::from_vec(&bytes).ok()?;
    let query = message.queries.first()?;
    let head = &message.metadata;
    let records = |all: &[Record]| all.iter().map(record).collect();
    Some(DnsReply {
        code: head.response_code.into(),
        name: query.name.to_ascii(),
        kind: query.query_type.into(),
        bits: [
            head.truncation,
            head.recursion_desired,
            head.recursion_available,
            head.authentic_data,
            head.checking_disabled,
        ],
        records: [records(&message.answers), records(&message.authorities), records(&message.additionals)],
    })
}

fn record(record: &Record) -> DnsRecord {
    DnsRecord {
        name: record.name.to_ascii(),
        kind: record.record_type().into(),
        ttl: record.ttl,
        data: record.data.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn questions_have_a_type_in_capitals() {
        for (name, kind, is_one) in [
            ("a.test", "A", true),
            ("a.test.", "AAAA", true),
            ("a.test", "a", false),
            ("a.test", "BOGUS", false),
            ("a.test", "", false),
            (&"a".repeat(70), "A", false),
        ] {
            let found = question(name, kind);
            assert_eq!(found.is_some(), is_one, "{name} {kind}");
            if let Some(bytes) = found {
                let message = Message::from_vec(&bytes).unwrap();
                assert_eq!(message.queries[0].name.to_ascii(), "a.test.");
            }
        }
    }
}
