//! Answers whole questions, as a name server for applications does.

use std::net::IpAddr;

use adit_net::rt;
use hickory_proto::op::{Edns, Message, MessageType, OpCode, Query, ResponseCode};
use hickory_proto::rr::rdata::{A, AAAA};
use hickory_proto::rr::{DNSClass, RData, Record, RecordType};

use super::cache::Outcome;
use super::message::{Body, UDP_PAYLOAD};
use super::shared::Begins;
use super::{Scope, key_of};

/// Seconds for which a client may keep an answer that has expired here (RFC 8767 section 4).
const STALE_TTL: u32 = 30;
/// Seconds for which a client may keep what a hosts file says.
const FIXED_TTL: u32 = 10;

impl Scope {
    /// The answer to a question of a client, at most `max` bytes (and 512 at least); `None` where there is nothing to be
    /// answered, because it is no question.
    pub(crate) async fn query(&self, question: &[u8], max: usize) -> Option<Vec<u8>> {
        let asked = Message::from_vec(question).ok()?;
        if asked.metadata.message_type != MessageType::Query {
            return None;
        }
        let mut answer = Message::response(asked.metadata.id, asked.metadata.op_code);
        answer.metadata.recursion_desired = asked.metadata.recursion_desired;
        answer.metadata.recursion_available = true;
        answer.add_queries(asked.queries.iter().cloned());
        answer.metadata.response_code = match &*asked.queries {
            _ if asked.metadata.op_code != OpCode::Query => ResponseCode::NotImp,
            [query] if query.query_class == DNSClass::IN => self.fill(query, &mut answer).await,
            [_] => ResponseCode::Refused,
            _ => ResponseCode::FormErr,
        };
        if asked.edns.is_some() {
            let mut edns = Edns::new();
            edns.set_max_payload(UDP_PAYLOAD).set_version(0);
            answer.set_edns(edns);
        }
        let bytes = answer.to_vec().ok()?;
        if bytes.len() <= max.max(512) { Some(bytes) } else { answer.truncate().to_vec().ok() }
    }

    async fn fill(&self, query: &Query, answer: &mut Message) -> ResponseCode {
        let (name, kind) = (key_of(&query.name), query.query_type);
        if matches!(kind, RecordType::ANY | RecordType::AXFR | RecordType::IXFR) {
            return ResponseCode::NotImp;
        }
        let now = rt::now();
        let is_address = matches!(kind, RecordType::A | RecordType::AAAA);
        if is_address && let Some(ips) = self.dns.fixed(&name, now) {
            add(answer, query, ips.iter().filter(|ip| ip.is_ipv4() == (kind == RecordType::A)), FIXED_TTL);
            return ResponseCode::NoError;
        }
        let list = self
            .list
            .unwrap_or_else(|| u32::try_from(self.dns.shared.config.list_for(&name)).unwrap_or_default());
        let (outcome, ttl) = match self.dns.begin(&name, list, kind, now) {
            Begins::Known(hit) if hit.left.is_zero() => (hit.outcome, STALE_TTL),
            Begins::Known(hit) => (hit.outcome, u32::try_from(hit.left.as_secs()).unwrap_or(u32::MAX).max(1)),
            Begins::Busy => return ResponseCode::ServFail,
            Begins::Wait(flight) => {
                let outcome = flight.wait().await;
                // The cache knows now how long it holds.
                match self.dns.begin(&name, list, kind, rt::now()) {
                    Begins::Known(hit) => {
                        (outcome, u32::try_from(hit.left.as_secs()).unwrap_or(u32::MAX).max(1))
                    }
                    Begins::Wait(_) | Begins::Busy => (outcome, 1),
                }
            }
        };
        write(outcome, answer, query, ttl)
    }
}

fn write(outcome: Outcome, answer: &mut Message, query: &Query, ttl: u32) -> ResponseCode {
    match outcome {
        Ok(Body::Addresses(ips)) => add(answer, query, ips.iter(), ttl),
        Ok(Body::NoRecord) => {}
        Ok(Body::NoName) => return ResponseCode::NXDomain,
        Ok(Body::Message(whole)) => {
            let Ok(whole) = Message::from_vec(&whole) else { return ResponseCode::ServFail };
            let aged = |mut record: Record| {
                record.ttl = record.ttl.min(ttl);
                record
            };
            answer.insert_answers(whole.answers.into_iter().map(aged).collect());
            answer.insert_authorities(whole.authorities.into_iter().map(aged).collect());
        }
        Err(_) => return ResponseCode::ServFail,
    }
    ResponseCode::NoError
}

fn add<'i>(answer: &mut Message, query: &Query, ips: impl Iterator<Item = &'i IpAddr>, ttl: u32) {
    for ip in ips {
        let data = match ip {
            IpAddr::V4(ip) => RData::A(A(*ip)),
            IpAddr::V6(ip) => RData::AAAA(AAAA(*ip)),
        };
        answer.add_answer(Record::from_rdata(query.name.clone(), ttl, data));
    }
}
