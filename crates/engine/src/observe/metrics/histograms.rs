//! Histograms of the exposition. They come last, and each is there as a whole or not at all: of too many series theirs are
//! the ones that are left out. One without a value is left out too.

use std::fmt::Display;

use super::{Exposition, Labels, MOST_NAMES, MOST_SERIES, seconds};
use crate::counters::Distribution;
use crate::observe::fleet::FleetStatus;
use crate::observe::status::{InboundStatus, LagStatus, OutboundStatus, Status};

/// The unit of values that are noted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Unit {
    /// Microseconds, given as seconds.
    Microseconds,
    /// A number.
    Number,
}

impl Unit {
    /// The end of a class, as OpenMetrics writes it: a whole number with its `.0`.
    fn end(self, end: u64) -> String {
        let text = self.value(end).to_string();
        if text.contains('.') { text } else { text + ".0" }
    }

    fn value(self, value: u64) -> Box<dyn Display> {
        match self {
            Self::Microseconds => Box::new(seconds(value)),
            Self::Number => Box::new(value),
        }
    }
}

impl Exposition {
    /// Adds all histograms.
    pub(super) fn histograms(
        &mut self,
        status: &Status,
        inbounds: &[InboundStatus],
        outbounds: &[OutboundStatus],
    ) {
        self.of_process(status);
        let alone = FleetStatus::default();
        self.of_fleet(status.fleet.as_ref().unwrap_or(&alone));
        self.of_outbounds(outbounds);
        self.of_inbounds(inbounds);
    }

    fn of_process(&mut self, status: &Status) {
        let help = "Time that writes of the state file took.";
        self.head("adit_state_write_seconds", "histogram", help);
        self.histogram("adit_state_write_seconds", &[], &status.state_file.times, Unit::Microseconds);
        let help = "Lateness of the beat of each event loop, once a second.";
        self.head("adit_event_loop_lag_seconds", "histogram", help);
        for (core, lag) in status.lags.iter().take(MOST_NAMES).enumerate() {
            let (ends, counts) = (LagStatus::ENDS_US.to_vec(), lag.counts.clone());
            let lag = Distribution { ends, counts, sum: lag.sum_us };
            self.histogram("adit_event_loop_lag_seconds", &[("core", &core)], &lag, Unit::Microseconds);
        }
    }

    fn of_fleet(&mut self, fleet: &FleetStatus) {
        const PANEL: &str = "adit_panel_request_seconds";
        self.head(PANEL, "histogram", "Time that requests to a panel took.");
        for panel in &fleet.panels {
            for (operation, result, times) in &panel.request_times {
                let labels: Labels<'_> =
                    &[("panel", &panel.name), ("operation", operation), ("result", result)];
                self.histogram(PANEL, labels, times, Unit::Microseconds);
            }
        }
        const STORE: &str = "adit_store_call_seconds";
        self.head(STORE, "histogram", "Time that calls to the store took.");
        for (operation, result, times) in fleet.store.iter().flat_map(|store| &store.call_times) {
            let labels: Labels<'_> = &[("operation", operation), ("result", result)];
            self.histogram(STORE, labels, times, Unit::Microseconds);
        }
    }

    fn of_outbounds(&mut self, outbounds: &[OutboundStatus]) {
        const DIAL: &str = "adit_dial_seconds";
        self.head(DIAL, "histogram", "Time to a connection of an outbound, or to its failure.");
        for outbound in outbounds {
            for (result, times) in [("ok", &outbound.dial_times), ("failed", &outbound.failed_dial_times)] {
                let labels: Labels<'_> = &[("outbound", &outbound.name), ("result", &result)];
                self.histogram(DIAL, labels, times, Unit::Microseconds);
            }
        }
    }

    fn of_inbounds(&mut self, inbounds: &[InboundStatus]) {
        const FIRST_BYTE: &str = "adit_first_byte_seconds";
        self.head(FIRST_BYTE, "histogram", "Time from a client's request to the first byte of the answer.");
        for inbound in inbounds {
            let labels: Labels<'_> = &[("inbound", &inbound.name)];
            self.histogram(FIRST_BYTE, labels, &inbound.first_byte_times, Unit::Microseconds);
        }
        const CONNECTION: &str = "adit_connection_seconds";
        self.head(CONNECTION, "histogram", "Time from a client's request to the end of its connection.");
        for inbound in inbounds {
            let labels: Labels<'_> = &[("inbound", &inbound.name)];
            self.histogram(CONNECTION, labels, &inbound.connection_times, Unit::Microseconds);
        }
        self.of_searches(inbounds);
    }

    /// Searches for users by trial.
    fn of_searches(&mut self, inbounds: &[InboundStatus]) {
        let ended = || {
            let with = inbounds.iter().filter_map(|of| Some((&of.name, of.searches.as_ref()?)));
            with.flat_map(|(name, of)| [(name, "true", &of.found), (name, "false", &of.lost)])
        };
        const TIME: &str = "adit_trial_seconds";
        self.head(TIME, "histogram", "Time that a client's user was looked for.");
        for (name, found, of) in ended() {
            let labels: Labels<'_> = &[("inbound", name), ("found", &found)];
            self.histogram(TIME, labels, &of.times, Unit::Microseconds);
        }
        const KEYS: &str = "adit_trial_keys";
        self.head(KEYS, "histogram", "Keys that were tried to find a client's user.");
        for (name, found, of) in ended() {
            let labels: Labels<'_> = &[("inbound", name), ("found", &found)];
            self.histogram(KEYS, labels, &of.keys, Unit::Number);
        }
    }

    fn histogram(&mut self, name: &str, labels: Labels<'_>, of: &Distribution, unit: Unit) {
        if of.is_empty() {
            return;
        }
        let series = of.counts.len() + 2;
        if self.series + series > MOST_SERIES {
            self.dropped += series as u64;
            return;
        }
        let (bucket, mut count) = (format!("{name}_bucket"), 0);
        let ends = of.ends.iter().map(|end| unit.end(*end));
        for (end, of) in ends.chain(["+Inf".to_owned()]).zip(&of.counts) {
            count += of;
            let end: [(&'static str, &dyn Display); 1] = [("le", &end)];
            self.put(&bucket, &[labels, &end].concat(), count);
        }
        self.put(&format!("{name}_sum"), labels, unit.value(of.sum));
        self.put(&format!("{name}_count"), labels, count);
    }
}
