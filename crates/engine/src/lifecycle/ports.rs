//! Inbounds that come and go by themselves, beside those of the configuration.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use adit_model as model;

use super::running::{Prepared, RunningInbound};
use super::{Engine, StartError};
use crate::counters::InboundMetrics;
use crate::observe::status::CounterDirectory;

/// Opens ports; any thread may hold one.
#[derive(Debug, Clone)]
pub struct PortOpener(pub(super) Arc<Engine>);

/// A port that is open until it is dropped.
#[derive(Debug)]
pub struct OpenPort {
    engine: Arc<Engine>,
    addresses: Vec<SocketAddr>,
    warnings: Vec<String>,
    metrics: Arc<[Arc<InboundMetrics>]>,
    held: Option<RunningInbound>,
}

/// The traffic of the configuration's own inbounds.
#[derive(Debug, Clone)]
pub struct Meter(pub(super) Arc<CounterDirectory>);

impl Meter {
    /// Port and payload bytes, both ways together, of every inbound.
    pub fn bytes(&self) -> Vec<(u16, u64)> {
        self.0.bytes()
    }
}

impl PortOpener {
    /// Opens a port. When this returns, connections are accepted.
    ///
    /// # Errors
    /// [`StartError`], also once the process is to end.
    pub fn open(&self, inbound: model::Inbound) -> Result<OpenPort, StartError> {
        let engine = &self.0;
        let mut state = engine.state();
        if engine.is_ending() {
            return Err(StartError::Ending);
        }
        if state.config.outbound(&inbound.outbound).is_none() {
            let source = std::io::Error::new(std::io::ErrorKind::NotFound, "its outbound does not exist");
            return Err(StartError::Build { name: inbound.name, source });
        }
        let place = state.config.state.clone();
        let warning = state.open_salts(&place, std::slice::from_ref(&inbound));
        let prepared =
            Prepared::new(engine, Arc::new(inbound), &state.config, &state, None, &Arc::default())?;
        let (mut warnings, addresses) = (prepared.warnings.clone(), prepared.held.addresses());
        warnings.extend(warning);
        let mut orders = engine.orders();
        let held = prepared.open(&mut orders);
        let is_open = engine.send(orders);
        let metrics = held.metrics.clone();
        engine.ports.fetch_add(1, Ordering::Relaxed);
        let port = OpenPort { engine: engine.clone(), addresses, warnings, metrics, held: Some(held) };
        if is_open { Ok(port) } else { Err(StartError::Ending) }
    }
}

impl OpenPort {
    /// The addresses that are listened on.
    pub fn addresses(&self) -> &[SocketAddr] {
        &self.addresses
    }

    /// Options that the system does not give.
    pub fn warnings(&self) -> &[String] {
        &self.warnings
    }

    /// Payload bytes since it was opened, both ways together.
    pub fn bytes(&self) -> u64 {
        self.metrics.iter().map(|core| core.traffic.up.value() + core.traffic.down.value()).sum()
    }
}

/// Ends the connections of the port. Its address is free again afterwards.
impl Drop for OpenPort {
    fn drop(&mut self) {
        if let Some(held) = self.held.take() {
            self.engine.ports.fetch_sub(1, Ordering::Relaxed);
            held.close(&self.engine);
        }
    }
}
