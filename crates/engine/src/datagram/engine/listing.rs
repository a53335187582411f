//! The flows of a listener in the list of connections.

use super::{Engine, Flow};
use crate::connections::listing::{Ask, ConnectionRoute, ConnectionStatus, Kicked, ListingPart, source_text};
use crate::datagram::table::{FlowId, FlowTick};

impl Engine {
    /// Answers a question about the flows. No datagrams may be queued.
    pub(super) fn follow_ask(&mut self, ask: Ask) {
        // Nobody may wait for the answer any more, which is no matter.
        match ask {
            Ask::List { most, parts } => drop(parts.send(self.list(most))),
            Ask::Kick { of, counts } => drop(counts.send(self.kick(&of))),
        }
    }

    fn list(&self, most: usize) -> ListingPart {
        let mut part = ListingPart::default();
        for (_, key, flow, last_at) in self.flows.entries() {
            part.push(most, || {
                let outbound = self.routes.name(key.via).map(|tag| tag.to_string());
                self.show(flow, outbound.unwrap_or_default(), last_at)
            });
        }
        part
    }

    fn show(&self, flow: &Flow, outbound: String, last_at: FlowTick) -> ConnectionStatus {
        let [up_bytes, down_bytes] = flow.moved;
        let rule = flow.why.as_ref().and_then(|why| why.rule.as_deref());
        let program = flow.why.as_ref().and_then(|why| why.program.as_ref());
        let sniffed = flow.why.as_ref().and_then(|why| why.sniffed.as_deref());
        let inner = flow.side.chain.iter().map(ToString::to_string);
        let chain: Vec<String> =
            inner.chain(Some(outbound.clone()).filter(|name| !name.is_empty())).collect();
        ConnectionStatus {
            id: flow.number,
            network: "udp".into(),
            inbound: self.name.to_string(),
            user: flow.user_name().map(str::to_owned),
            source: source_text(flow.peer.at),
            target: flow.last.as_ref().map_or_else(|| "*".into(), |(target, _)| target.to_string()),
            outbound: chain.first().cloned().unwrap_or_default(),
            up_bytes,
            down_bytes,
            age_s: self.now.wrapping_sub(flow.since).into(),
            quiet_s: self.now.wrapping_sub(last_at).into(),
            way: ConnectionRoute {
                rule: rule.map(|rule| rule.kind.to_string()).unwrap_or_default(),
                payload: rule.map(|rule| rule.payload.to_string()).unwrap_or_default(),
                chain,
                sniffed: sniffed.map(str::to_owned),
                program: program.and_then(|program| program.path.as_deref()).map(str::to_owned),
                uid: program.map(|program| program.uid),
                ..ConnectionRoute::default()
            },
        }
    }

    fn kick(&mut self, kicked: &Kicked) -> u64 {
        let all = self.flows.entries().filter(|(_, _, flow, _)| kicked.is(flow.number, flow.user_name()));
        let all: Vec<FlowId> = all.map(|(id, ..)| id).collect();
        all.iter().for_each(|id| self.end(*id));
        all.len() as u64
    }
}

impl Flow {
    /// The name of its user, if there are users.
    fn user_name(&self) -> Option<&str> {
        self.user.as_ref().map(|lease| &*lease.account().name)
    }
}
