//! Metrics under the names of Outline's server (outline-ss-server, `prometheus/metrics.go` and
//! `cmd/outline-ss-server/metrics.go`, as of 2026-08), for dashboards that ask for those.
//!
//! They are of text format 0.0.4 alone: counters do not end in `_total`. Families that adit has no numbers for are left out:
//! probes, durations, locations and tunnel time. Bytes are those of payload, both protocols together, so `c>p` equals `p>t`
//! and `c<p` equals `p<t`; there is no label `proto`.

use std::collections::BTreeSet;

use adit_model::map::Map;

use crate::observe::metrics::{Exposition, Labels};
use crate::observe::status::{InboundStatus, Status};

/// The protocol whose inbounds Outline's server would have.
const PROTOCOL: &str = "shadowsocks";

impl Exposition {
    /// Adds the families of Outline.
    pub(super) fn outline(&mut self, status: &Status) {
        let inbounds = || status.inbounds.iter().filter(|inbound| inbound.protocol == PROTOCOL);
        self.head("shadowsocks_build_info", "gauge", "The version that runs.");
        self.put("shadowsocks_build_info", &[("version", &status.version)], 1);
        let names: BTreeSet<&str> =
            inbounds().flat_map(|inbound| &inbound.users).map(|user| &*user.name).collect();
        self.one("shadowsocks_keys", "gauge", "Access keys.", names.len());
        let ports: BTreeSet<u16> =
            inbounds().flat_map(|inbound| &inbound.listen).map(|at| at.port()).collect();
        self.one("shadowsocks_ports", "gauge", "Ports.", ports.len());
        let opened: u64 = inbounds().map(|inbound| inbound.accepted).sum();
        let help = "Connections accepted.";
        self.one("shadowsocks_tcp_connections_opened", "counter", help, opened);
        let flows = || inbounds().filter_map(|inbound| inbound.datagrams.as_ref());
        let begun: u64 = flows().map(|flows| flows.begun).sum();
        let live: i64 = flows().map(|flows| flows.flows).sum();
        let help = "Flows of datagrams that have begun.";
        self.one("shadowsocks_udp_nat_entries_added", "counter", help, begun);
        let removed = begun.saturating_sub(u64::try_from(live).unwrap_or(0));
        let help = "Flows of datagrams that have ended.";
        self.one("shadowsocks_udp_nat_entries_removed", "counter", help, removed);
        self.access_keys(inbounds());
    }

    fn access_keys<'s>(&mut self, inbounds: impl Iterator<Item = &'s InboundStatus>) {
        let mut keys = Map::<&str, [u64; 2]>::new();
        for user in inbounds.flat_map(|inbound| &inbound.users) {
            let [up, down] = keys.entry(&*user.name).or_default();
            (*up, *down) = (up.saturating_add(user.up_bytes), down.saturating_add(user.down_bytes));
        }
        self.head("shadowsocks_data_bytes", "counter", "Payload bytes of an access key, over restarts.");
        for (key, [up, down]) in keys.iter().filter(|(_, [up, down])| *up > 0 || *down > 0) {
            for (dir, value) in [("c>p", up), ("p>t", up), ("p<t", down), ("c<p", down)] {
                let labels: Labels<'_> = &[("dir", &dir), ("access_key", key)];
                self.put_user("shadowsocks_data_bytes", labels, value);
            }
        }
    }
}
