//! What takes TCP's place beneath a stream.
//!
//! A carrier's streams are [`Stream`](adit_net::rt::Stream)s like any other: the relay, every protocol and every local
//! port run over them without knowing.

pub(crate) mod kcp;

use std::sync::Arc;

use adit_config::model::{self, Config, Tag};

/// What the carriers of a configuration share over all cores, in its order.
#[derive(Debug)]
pub(crate) struct Carriers {
    /// One per inbound that has one.
    pub(crate) inbounds: Vec<Option<Arc<kcp::Shared>>>,
    outbounds: Vec<Option<Arc<kcp::Shared>>>,
    /// What all of them take from.
    pub(crate) memory: Arc<kcp::Memory>,
}

/// The counters of all carriers, in the order of the configuration.
#[derive(Debug, Default)]
pub(crate) struct CarrierMetrics {
    /// One per inbound that has one.
    pub(crate) inbounds: Vec<Option<Arc<kcp::KcpMetrics>>>,
    /// One per outbound that has one.
    pub(crate) outbounds: Vec<Option<Arc<kcp::KcpMetrics>>>,
    /// Where there is any.
    pub(crate) memory: Option<Arc<kcp::Memory>>,
}

impl Carriers {
    /// Derives the keys.
    pub(crate) fn new(config: &Config) -> Self {
        let inbounds =
            config.inbounds.iter().map(|inbound| (&inbound.name, inbound.socket.carrier.as_deref()));
        let outbounds = config.outbounds.iter().map(|outbound| {
            let carrier = outbound.dial.carrier.as_ref();
            (&outbound.name, carrier.map(|carrier| &carrier.kcp))
        });
        let shared =
            |(name, kcp): (&Tag, Option<&model::Kcp>)| kcp.map(|kcp| Arc::new(kcp::Shared::new(name, kcp)));
        let memory = Arc::new(kcp::Memory::new(config.limits.carrier_memory));
        Self { inbounds: inbounds.map(shared).collect(), outbounds: outbounds.map(shared).collect(), memory }
    }

    /// The counters.
    pub(crate) fn metrics(&self) -> CarrierMetrics {
        let metrics = |all: &[Option<Arc<kcp::Shared>>]| {
            let metrics = all.iter().map(|one| one.as_ref().map(|shared| shared.metrics.clone()));
            metrics.collect::<Vec<_>>()
        };
        let (inbounds, outbounds) = (metrics(&self.inbounds), metrics(&self.outbounds));
        let has_any = inbounds.iter().chain(&outbounds).any(Option::is_some);
        CarrierMetrics { inbounds, outbounds, memory: has_any.then(|| self.memory.clone()) }
    }

    /// The client of outbound number `at` for one of so many cores, if it has one.
    pub(crate) fn client(
        &self,
        at: usize,
        outbound: &model::Outbound,
        cores: usize,
        context: &kcp::Context,
    ) -> Option<kcp::Client> {
        let shared = self.outbounds[at].clone()?;
        let config = outbound.dial.carrier.as_ref()?;
        let egress = outbound.dial.egress.clone();
        Some(kcp::Client::new(shared, config, egress, cores, context.clone()))
    }
}
