//! Outbounds that open nothing: requests that get no answer, that are not theirs, or that nothing here speaks for. And the
//! one whose every target is this process's own name service.

use std::net::IpAddr;
use std::rc::Rc;
use std::time::Duration;

use adit_config::model::rule::{Manner, Network};
use adit_config::model::{Dial, Refusal, Tag};
use adit_net::rt::{self, Pool, Stream};

use super::{Around, Connector, Factory};
use crate::dispatch::{Destination, Future, Leaf, OpenError, Opened, Outbound};
use crate::dns::{Answerer, Scope};
use crate::relay::{Endpoint, Outcome, Policy};

/// A request that is dropped is held this long, as long as mihomo holds it.
const SILENCE: Duration = Duration::from_secs(60);

/// An outbound that refuses in its own manner, for every core.
#[derive(Debug)]
pub(super) struct RefuseFactory(pub(super) Refusal);

impl Factory for RefuseFactory {
    fn on_core(&self, connector: Connector, _: &Around<'_>) -> Leaf {
        let outbound = Refusing { name: connector.name, refusal: self.0.clone() };
        Leaf { outbound: Rc::new(outbound), packets: None }
    }
}

struct Refusing {
    name: Tag,
    refusal: Refusal,
}

impl Outbound for Refusing {
    fn name(&self) -> &Tag {
        &self.name
    }

    fn is_tunnel(&self) -> bool {
        false
    }

    fn passes(&self, network: Network) -> bool {
        match &self.refusal {
            Refusal::Pass => true,
            Refusal::Drop => false,
            Refusal::Dead { udp, .. } => network == Network::Udp && !udp,
        }
    }

    fn connect<'a>(&'a self, _: Destination<'a>, _fresh: bool) -> Future<'a, Result<Opened, OpenError>> {
        Box::pin(async move {
            Err(match &self.refusal {
                Refusal::Drop => {
                    rt::sleep(SILENCE).await;
                    OpenError::Blocked(Manner::Drop)
                }
                Refusal::Pass => OpenError::Rejected,
                Refusal::Dead { why, .. } => OpenError::Dead { name: self.name.clone(), why: why.clone() },
            })
        })
    }

    fn release(&self, _opened: Opened, _outcome: &Outcome, _pool: &Pool) {}

    fn lookup<'a>(&'a self, _name: &'a str) -> Future<'a, Option<Vec<IpAddr>>> {
        Box::pin(std::future::ready(None))
    }
}

/// The name service as an outbound, for every core.
#[derive(Debug)]
pub(super) struct DnsFactory;

impl Factory for DnsFactory {
    fn on_core(&self, connector: Connector, around: &Around<'_>) -> Leaf {
        let names = around.dns.scope(&Dial::default());
        Leaf { outbound: Rc::new(NameService { name: connector.name, names }), packets: None }
    }
}

struct NameService {
    name: Tag,
    names: Scope,
}

impl Outbound for NameService {
    fn name(&self) -> &Tag {
        &self.name
    }

    fn is_tunnel(&self) -> bool {
        false
    }

    fn connect<'a>(&'a self, _: Destination<'a>, _fresh: bool) -> Future<'a, Result<Opened, OpenError>> {
        Box::pin(async move {
            let (ours, theirs) = Stream::pair().map_err(OpenError::Handshake)?;
            let names = Answerer::plain(self.names.clone());
            rt::spawn_local(async move { answer(&theirs, &names).await });
            Ok(Opened::new(Endpoint::plain(ours), Policy::default()))
        })
    }

    fn release(&self, _opened: Opened, _outcome: &Outcome, _pool: &Pool) {}

    fn lookup<'a>(&'a self, name: &'a str) -> Future<'a, Option<Vec<IpAddr>>> {
        Box::pin(async move { self.names.lookup(name, self.names.family()).await.ok() })
    }
}

/// Answers the questions of one stream, one after the other (RFC 1035, section 4.2.2: a length of two bytes in front of
/// each message), until it ends or sends what is no question.
async fn answer(stream: &Stream, names: &Answerer) {
    let mut question = Vec::new();
    loop {
        let mut len = [0; 2];
        if !fill(stream, &mut len).await {
            return;
        }
        question.resize(usize::from(u16::from_be_bytes(len)), 0);
        if !fill(stream, &mut question).await {
            return;
        }
        let Some(reply) = names.query(&question, usize::from(u16::MAX)).await else { return };
        let Ok(len) = u16::try_from(reply.len()) else { return };
        let message = [&len.to_be_bytes()[..], &reply].concat();
        if stream.send_all(&message).await.is_err() {
            return;
        }
    }
}

/// Receives until `bytes` is full; false if the stream ends before.
async fn fill(stream: &Stream, bytes: &mut [u8]) -> bool {
    let mut at = 0;
    while at < bytes.len() {
        match stream.recv(&mut bytes[at..]).await {
            Ok(received) if received > 0 => at += received,
            Ok(_) | Err(_) => return false,
        }
    }
    true
}
