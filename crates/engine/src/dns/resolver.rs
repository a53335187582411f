//! Answers whole questions by asking name servers, in the words of the library.

use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use adit_net::rt;
use hickory_proto::op::{Edns, Message, MessageType, OpCode, Query, ResponseCode};
use hickory_proto::rr::rdata::{A, AAAA};
use hickory_proto::rr::{DNSClass, RData, Record, RecordType};

use super::cache::QueryOutcome;
use super::key_of;
use super::message::{Body, UDP_PAYLOAD};
use super::responder::Answerer;
use super::shared::{Asker, Begins, List};

/// Seconds for which a client may keep an answer that has expired here (RFC 8767 section 4).
const STALE_TTL: u32 = 30;
/// Seconds for which a client may keep what a hosts file says.
const FIXED_TTL: u32 = 10;

impl Answerer {
    /// The answer to a question of a client, at most `max` bytes (and 512 at least); `None` where there is nothing to be
    /// answered, because it is no question.
    pub(crate) async fn query(&self, question: &[u8], max: usize) -> Option<Vec<u8>> {
        self.query_for(Asker::Own, question, max).await
    }

    /// The same for a question of a client.
    pub(crate) async fn query_from(&self, client: IpAddr, question: &[u8], max: usize) -> Option<Vec<u8>> {
        self.query_for(Asker::Client(client), question, max).await
    }

    /// The same for a question of `asker`.
    pub(super) async fn query_for(&self, asker: Asker, question: &[u8], max: usize) -> Option<Vec<u8>> {
        let Ok(asked) = Message::from_vec(question) else { return malformed(question) };
        if asked.metadata.message_type != MessageType::Query {
            return None;
        }
        let mut answer = Message::response(asked.metadata.id, asked.metadata.op_code);
        answer.metadata.recursion_desired = asked.metadata.recursion_desired;
        answer.metadata.checking_disabled = asked.metadata.checking_disabled;
        answer.metadata.recursion_available = true;
        answer.add_queries(asked.queries.iter().cloned());
        answer.metadata.response_code = match &*asked.queries {
            _ if asked.metadata.op_code != OpCode::Query => ResponseCode::NotImp,
            [query] if query.query_class == DNSClass::IN => self.fill(asker, query, &mut answer).await,
            [_] => ResponseCode::NotImp,
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

    async fn fill(&self, asker: Asker, query: &Query, answer: &mut Message) -> ResponseCode {
        let (name, kind) = (key_of(&query.name), query.query_type);
        if matches!(kind, RecordType::ANY | RecordType::AXFR | RecordType::IXFR) {
            return ResponseCode::NotImp;
        }
        let (now, dns) = (rt::now(), &self.scope.dns);
        let is_address = matches!(kind, RecordType::A | RecordType::AAAA);
        if is_address && let Some(ips) = dns.fixed(&name, now) {
            add(answer, query, ips.iter().filter(|ip| ip.is_ipv4() == (kind == RecordType::A)), FIXED_TTL);
            return ResponseCode::NoError;
        }
        let other = dns.settings().hosts.last_alias(&name).filter(|_| is_address).map(Into::into);
        let name = other.unwrap_or(name);
        let (outcome, ttl) = match self.direct_first(asker, &name, kind).await {
            Some(found) => found,
            None => self.ask(asker, &name, &self.scope.list_for(&name), kind).await,
        };
        if let Ok(Body::Addresses(ips)) = &outcome {
            dns.note_answer(&name, ips, Duration::from_secs(ttl.into()), rt::now());
        }
        write(outcome, answer, query, ttl)
    }

    /// The answer of the servers for names of the direct route, if the rules say that the name is one of these: by its
    /// text, or by the addresses that these servers know.
    async fn direct_first(&self, asker: Asker, name: &str, kind: RecordType) -> Option<(QueryOutcome, u32)> {
        let (list, ways) = self.direct.as_ref()?;
        match ways.is_direct(name, None) {
            Some(false) => None,
            Some(true) => Some(self.ask(asker, name, list, kind).await),
            None => {
                let is_address = matches!(kind, RecordType::A | RecordType::AAAA);
                let of = if is_address { kind } else { RecordType::A };
                let (outcome, ttl) = self.ask(asker, name, list, of).await;
                let Ok(Body::Addresses(ips)) = &outcome else { return None };
                if ways.is_direct(name, Some(ips)) != Some(true) {
                    return None;
                }
                if is_address { Some((outcome, ttl)) } else { Some(self.ask(asker, name, list, kind).await) }
            }
        }
    }

    /// The answer of a list of servers, with the seconds for which it holds.
    async fn ask(&self, asker: Asker, name: &str, list: &Arc<List>, kind: RecordType) -> (QueryOutcome, u32) {
        let dns = &self.scope.dns;
        let seconds = |span: Duration| u32::try_from(span.as_secs()).unwrap_or(u32::MAX).max(1);
        match dns.begin_for(asker, name, list, kind, rt::now()) {
            Begins::Known(hit) if hit.left.is_zero() => (hit.outcome, STALE_TTL),
            Begins::Known(hit) => (hit.outcome, seconds(hit.left)),
            Begins::Wait(flight) => {
                let outcome = flight.wait().await;
                if outcome.is_err() {
                    return (outcome, 1);
                }
                // The cache knows now how long it holds.
                match dns.begin_for(asker, name, list, kind, rt::now()) {
                    Begins::Known(hit) => (outcome, seconds(hit.left)),
                    Begins::Wait(_) => (outcome, 1),
                }
            }
        }
    }
}

/// The answer to a message that cannot be read, if its header can.
fn malformed(message: &[u8]) -> Option<Vec<u8>> {
    let head = message.first_chunk::<12>().filter(|head| head[2] & 0x80 == 0)?;
    let id = u16::from_be_bytes([head[0], head[1]]);
    let mut answer = Message::response(id, OpCode::Query);
    answer.metadata.recursion_desired = head[2] & 1 != 0;
    answer.metadata.recursion_available = true;
    answer.metadata.response_code = ResponseCode::FormErr;
    answer.to_vec().ok()
}

fn write(outcome: QueryOutcome, answer: &mut Message, query: &Query, ttl: u32) -> ResponseCode {
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
