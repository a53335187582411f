//! The snapshot as Prometheus reads it: text format 0.0.4, or OpenMetrics 1.0.
//!
//! The number of series is bounded: names come from the configuration or from fixed lists, never from clients, targets or
//! errors. Inbounds and outbounds beyond the first [`MOST_NAMES`] are summed up as `other`.

mod histograms;

use std::fmt::{Display, Write as _};

use adit_model::map::Map;

use crate::carrier::kcp::KcpTotals;
use crate::observe::fleet::{FleetStatus, PanelStatus, StoreStatus};
use crate::observe::status::{InboundStatus, OutboundStatus, Status};

/// Most series, those of users aside.
pub const MOST_SERIES: usize = 2_000;
/// Most series of users.
const MOST_USER_SERIES: usize = 20_000;
/// Inbounds, and outbounds, with a name of their own.
const MOST_NAMES: usize = 64;
/// The name of the others.
const OTHER: &str = "other";

/// The form of the text.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Form {
    /// Prometheus's own, 0.0.4.
    #[default]
    Prometheus,
    /// OpenMetrics 1.0: counters are named without `_total`, units are named, and there is an end.
    OpenMetrics,
}

/// The text of `/metrics`.
#[derive(Debug, Default)]
pub struct Exposition {
    text: String,
    form: Form,
    series: usize,
    user_series: usize,
    dropped: u64,
}

/// Labels of a series: names and values.
pub(super) type Labels<'a> = &'a [(&'static str, &'a dyn Display)];

impl Exposition {
    /// The text for `status`, with series for each user if `per_user`, and with Outline's names too if `outline`. Those are
    /// none for OpenMetrics: its counters end with `_total`.
    pub fn render(status: &Status, form: Form, per_user: bool, outline: bool) -> String {
        let mut out = Self { form, ..Self::default() };
        let inbounds = merged(&status.inbounds, |other| other.name = OTHER.into(), add_inbound);
        let outbounds = merged(&status.outbounds, |other| other.name = OTHER.into(), add_outbound);
        out.process(status);
        out.budget(status);
        out.fleet(status);
        out.inbounds(&inbounds);
        out.outbounds(&outbounds);
        out.groups(status);
        out.carriers(&inbounds, &outbounds);
        out.histograms(status, &inbounds, &outbounds);
        if per_user {
            out.users(status);
        }
        if outline && form == Form::Prometheus {
            out.outline(status);
        }
        let dropped = out.dropped;
        out.head(
            "adit_metrics_dropped_series",
            "gauge",
            "Series that were left out since there were too many.",
        );
        out.line("adit_metrics_dropped_series", &[], dropped);
        if form == Form::OpenMetrics {
            out.text.push_str("# EOF\n");
        }
        out.text
    }

    pub(super) fn head(&mut self, name: &str, kind: &str, help: &str) {
        let is_open = self.form == Form::OpenMetrics;
        let name = name.strip_suffix("_total").filter(|_| is_open).unwrap_or(name);
        // A `String` takes everything.
        writeln!(self.text, "# HELP {name} {help}\n# TYPE {name} {kind}").ok();
        let unit = ["seconds", "bytes"].into_iter().find(|unit| name.rsplit('_').next() == Some(unit));
        if let Some(unit) = unit.filter(|_| is_open) {
            writeln!(self.text, "# UNIT {name} {unit}").ok();
        }
    }

    /// One series, if there is room for it.
    pub(super) fn put(&mut self, name: &str, labels: Labels<'_>, value: impl Display) {
        if self.series >= MOST_SERIES {
            self.dropped += 1;
            return;
        }
        self.series += 1;
        self.line(name, labels, value);
    }

    /// One series of a user, if there is room for it.
    pub(super) fn put_user(&mut self, name: &str, labels: Labels<'_>, value: impl Display) {
        if self.user_series >= MOST_USER_SERIES {
            self.dropped += 1;
            return;
        }
        self.user_series += 1;
        self.line(name, labels, value);
    }

    fn line(&mut self, name: &str, labels: Labels<'_>, value: impl Display) {
        self.text.push_str(name);
        for (at, (label, text)) in labels.iter().enumerate() {
            let lead = if at == 0 { '{' } else { ',' };
            write!(self.text, "{lead}{label}=\"{}\"", escaped(&text.to_string())).ok();
        }
        let end = if labels.is_empty() { "" } else { "}" };
        writeln!(self.text, "{end} {value}").ok();
    }

    /// A family with one series.
    pub(super) fn one(&mut self, name: &str, kind: &str, help: &str, value: impl Display) {
        self.head(name, kind, help);
        self.put(name, &[], value);
    }

    fn process(&mut self, status: &Status) {
        self.head("adit_build_info", "gauge", "The version that runs.");
        let process = &status.process;
        let labels: Labels<'_> =
            &[("version", &status.version), ("revision", &process.revision), ("target", &process.target)];
        self.put("adit_build_info", labels, 1);
        let started = status.started_unix_s;
        self.one("adit_start_time_seconds", "gauge", "Seconds from 1970 to the start.", started);
        let ready = u8::from(status.health.is_ready);
        self.one("adit_ready", "gauge", "1 while connections are accepted.", ready);
        self.one("adit_event_loops", "gauge", "Event loops.", status.cores);
        let cpu = "Processor time of the process.";
        self.one("adit_cpu_seconds_total", "counter", cpu, seconds(process.processor_us));
        let left = process.drain_remaining.unwrap_or(0);
        let help = "Connections that are left of a drain; 0 while there is none.";
        self.one("adit_drain_remaining", "gauge", help, left);
        self.head("adit_log_errors_total", "counter", "Warnings and errors of the log, by code.");
        for (code, count) in &process.log_errors {
            self.put("adit_log_errors_total", &[("code", code)], count);
        }
        let errors = status.state_file.errors;
        self.one("adit_state_errors_total", "counter", "Writes of the state file that failed.", errors);
    }

    fn inbounds(&mut self, inbounds: &[InboundStatus]) {
        self.head("adit_bytes_total", "counter", "Payload bytes from clients (up) and to them (down).");
        for inbound in inbounds {
            let tcp_up = inbound.up_bytes.saturating_sub(inbound.up_datagram_bytes);
            let tcp_down = inbound.down_bytes.saturating_sub(inbound.down_datagram_bytes);
            for (proto, dir, value) in [
                ("tcp", "up", tcp_up),
                ("tcp", "down", tcp_down),
                ("udp", "up", inbound.up_datagram_bytes),
                ("udp", "down", inbound.down_datagram_bytes),
            ] {
                let labels: Labels<'_> = &[("inbound", &inbound.name), ("proto", &proto), ("dir", &dir)];
                self.put("adit_bytes_total", labels, value);
            }
        }
        let accepted = "Connections accepted.";
        self.each(inbounds, "adit_connections_accepted_total", "counter", accepted, |of| of.accepted);
        self.each(inbounds, "adit_connections_open", "gauge", "Connections that are open.", |of| of.open);
        self.head("adit_requests_total", "counter", "Requests of clients, by result.");
        for inbound in inbounds {
            for (result, count) in &inbound.results {
                self.put("adit_requests_total", &[("inbound", &inbound.name), ("result", result)], count);
            }
        }
        self.head("adit_refused_total", "counter", "Connections refused, by cause.");
        for inbound in inbounds {
            for (reason, count) in &inbound.refused {
                self.put("adit_refused_total", &[("inbound", &inbound.name), ("reason", reason)], count);
            }
        }
        self.datagrams(inbounds);
        self.searches(inbounds);
        let users = |of: &InboundStatus| of.users.len();
        self.each(inbounds, "adit_users", "gauge", "Users of the configuration.", users);
        let over = |of: &InboundStatus| of.users.iter().filter(|user| user.limited.is_some()).count();
        self.each(inbounds, "adit_users_over_limit", "gauge", "Users that may use no more.", over);
        let online = |of: &InboundStatus| of.users.iter().filter(|user| user.is_online).count();
        let help = "Users whose bytes have moved in the last minute.";
        self.each(inbounds, "adit_users_online", "gauge", help, online);
    }

    fn datagrams(&mut self, inbounds: &[InboundStatus]) {
        let with: Vec<_> = inbounds.iter().filter_map(|of| Some((of, of.datagrams.as_ref()?))).collect();
        self.head("adit_flows_open", "gauge", "Flows of datagrams that live.");
        for (inbound, datagrams) in &with {
            self.put("adit_flows_open", &[("inbound", &inbound.name)], datagrams.flows);
        }
        self.head("adit_datagrams_total", "counter", "Datagrams passed on.");
        for (inbound, datagrams) in &with {
            for (dir, value) in [("up", datagrams.up), ("down", datagrams.down)] {
                self.put("adit_datagrams_total", &[("inbound", &inbound.name), ("dir", &dir)], value);
            }
        }
        self.head("adit_datagrams_dropped_total", "counter", "Datagrams that went no further, by cause.");
        for (inbound, datagrams) in &with {
            for (reason, count) in &datagrams.dropped {
                let labels: Labels<'_> = &[("inbound", &inbound.name), ("reason", reason)];
                self.put("adit_datagrams_dropped_total", labels, count);
            }
        }
    }

    /// A family with one series for each inbound.
    fn each<V: Display>(
        &mut self,
        inbounds: &[InboundStatus],
        name: &str,
        kind: &str,
        help: &str,
        value: impl Fn(&InboundStatus) -> V,
    ) {
        self.head(name, kind, help);
        for inbound in inbounds {
            self.put(name, &[("inbound", &inbound.name)], value(inbound));
        }
    }

    fn outbounds(&mut self, outbounds: &[OutboundStatus]) {
        self.head("adit_dials_total", "counter", "Connections made by an outbound, and those that failed.");
        for outbound in outbounds {
            for (result, value) in [("ok", outbound.dialled), ("failed", outbound.failed)] {
                self.put("adit_dials_total", &[("outbound", &outbound.name), ("result", &result)], value);
            }
        }
        let reused = "Requests over a kept connection.";
        self.each_out(outbounds, "adit_reused_total", "counter", reused, |of| of.reused);
        let idle = "Kept connections that wait for a request.";
        self.each_out(outbounds, "adit_idle_connections", "gauge", idle, |of| of.idle);
        let early = "Connections that the server closed before any reply.";
        self.each_out(outbounds, "adit_early_closes_total", "counter", early, |of| of.early_closes);
    }

    fn each_out<V: Display>(
        &mut self,
        outbounds: &[OutboundStatus],
        name: &str,
        kind: &str,
        help: &str,
        value: impl Fn(&OutboundStatus) -> V,
    ) {
        self.head(name, kind, help);
        for outbound in outbounds {
            self.put(name, &[("outbound", &outbound.name)], value(outbound));
        }
    }

    fn groups(&mut self, status: &Status) {
        let members = || {
            status.groups.iter().flat_map(|group| {
                group.members.iter().flat_map(move |member| {
                    let health = [("tcp", &member.tcp), ("udp", &member.udp)];
                    let known =
                        health.into_iter().filter_map(|(proto, health)| Some((proto, health.as_ref()?)));
                    known.map(move |(proto, health)| (group, member, proto, health))
                })
            })
        };
        self.head("adit_group_member_up", "gauge", "1 unless the member of a group is dead.");
        for (group, member, proto, health) in members() {
            let labels: Labels<'_> = &[("group", &group.name), ("member", &member.name), ("proto", &proto)];
            self.put("adit_group_member_up", labels, u8::from(health.state != "dead"));
        }
        self.head("adit_group_delay_seconds", "gauge", "Latency of the member of a group.");
        for (group, member, proto, health) in members() {
            if let Some(micros) = health.latency_us {
                let labels: Labels<'_> =
                    &[("group", &group.name), ("member", &member.name), ("proto", &proto)];
                self.put("adit_group_delay_seconds", labels, seconds(micros));
            }
        }
    }

    fn budget(&mut self, status: &Status) {
        let Some(budget) = &status.budget else { return };
        let used = budget.streams + budget.flows;
        self.one("adit_descriptors", "gauge", "Descriptors of streams and flows in use.", used);
        let most = budget.shares.descriptors;
        self.one("adit_descriptors_limit", "gauge", "Descriptors that the process may have.", most);
        self.head("adit_memory_bytes", "gauge", "Memory in use by kind, and the limit of the process.");
        let carriers = status.carrier_memory.as_ref().map_or(0, |memory| memory.used as u64);
        for (kind, bytes) in [
            ("buffers", budget.rests as u64),
            ("carriers", carriers),
            ("users", status.process.users_bytes),
            ("salts", status.process.salts_bytes),
            ("resident", status.process.resident_bytes),
            ("limit", budget.shares.memory as u64),
        ] {
            self.put("adit_memory_bytes", &[("kind", &kind)], bytes);
        }
        let evicted = "Connections that ended for want of descriptors or memory.";
        self.one("adit_evicted_total", "counter", evicted, budget.evicted);
    }

    /// Panels, the store and the clocks of others. The families are there without them too.
    fn fleet(&mut self, status: &Status) {
        let none = FleetStatus::default();
        let fleet = status.fleet.as_ref().unwrap_or(&none);
        self.panels(&fleet.panels, fleet.store.as_ref());
        self.head("adit_panel_requests_total", "counter", "Requests to a panel, by operation and result.");
        for panel in &fleet.panels {
            for (operation, result, count) in &panel.requests {
                let labels: Labels<'_> =
                    &[("panel", &panel.name), ("operation", operation), ("result", result)];
                self.put("adit_panel_requests_total", labels, count);
            }
        }
        self.store(fleet.store.as_ref());
        let skew = "Seconds by which the clock of a witness is ahead of this machine's.";
        self.head("adit_clock_skew_seconds", "gauge", skew);
        for (witness, seconds) in &fleet.skews {
            self.put("adit_clock_skew_seconds", &[("witness", witness)], seconds);
        }
        if let Some(micros) = status.process.kernel_offset_us {
            let sign = if micros < 0 { "-" } else { "" };
            let value = format!("{sign}{}", seconds(micros.unsigned_abs()));
            self.put("adit_clock_skew_seconds", &[("witness", &"kernel")], value);
        }
    }

    fn panels(&mut self, panels: &[PanelStatus], store: Option<&StoreStatus>) {
        // The store may list users in the place of a panel.
        let of_store = store.filter(|store| store.users.is_some()).map(|store| PanelStatus {
            name: "store".into(),
            age_s: store.users_age_s,
            waiting_since: store.users_wait_since,
            ..PanelStatus::default()
        });
        type Value = fn(&PanelStatus) -> Option<u64>;
        let families: [(&str, &str, Value); 5] = [
            ("adit_user_list_age_seconds", "Age of the users that a panel or the store has listed.", |of| {
                of.age_s
            }),
            (
                "adit_user_list_pending",
                "1 while a list that lost too many users waits for a second one.",
                |of| Some(of.waiting_since.is_some().into()),
            ),
            ("adit_panel_unsent_bytes", "Bytes that wait to be told to a panel.", |of| Some(of.unsent_bytes)),
            ("adit_panel_in_doubt_bytes", "Bytes that a panel may or may not have.", |of| {
                Some(of.in_doubt_bytes)
            }),
            ("adit_panel_oldest_unsent_seconds", "Age of the oldest bytes that wait to be told.", |of| {
                Some(of.oldest_unsent_s)
            }),
        ];
        for (name, help, value) in families {
            self.head(name, "gauge", help);
            let is_list = name.starts_with("adit_user_list_");
            let label = if is_list { "source" } else { "panel" };
            for panel in panels.iter().chain(of_store.iter().filter(|_| is_list)) {
                if let Some(value) = value(panel) {
                    self.put(name, &[(label, &panel.name)], value);
                }
            }
        }
    }

    fn store(&mut self, store: Option<&StoreStatus>) {
        let none = StoreStatus::default();
        let store = store.unwrap_or(&none);
        self.head("adit_store_calls_total", "counter", "Calls to the store, by operation and result.");
        for (operation, result, count) in &store.calls {
            self.put("adit_store_calls_total", &[("operation", operation), ("result", result)], count);
        }
        let age = "Age of the last synchronisation with the store.";
        self.head("adit_store_sync_age_seconds", "gauge", age);
        if let Some(age) = store.sync_age_s {
            self.put("adit_store_sync_age_seconds", &[], age);
        }
        let resyncs =
            "Times that all users of a bucket were sent again because the store had lost something.";
        self.one("adit_store_resync_total", "counter", resyncs, store.resyncs);
        self.head("adit_limit_scope", "gauge", "1 for the scope in which a limit holds.");
        for (limit, scope) in &store.scopes {
            let scope = scope.split(' ').next().unwrap_or_default();
            self.put("adit_limit_scope", &[("limit", limit), ("scope", &scope)], 1);
        }
    }

    /// Carriers beneath inbounds and outbounds.
    fn carriers(&mut self, inbounds: &[InboundStatus], outbounds: &[OutboundStatus]) {
        let of_inbounds = inbounds.iter().filter_map(|of| Some((&of.name, of.carrier.as_ref()?)));
        let of_outbounds = outbounds.iter().filter_map(|of| Some((&of.name, of.carrier.as_ref()?)));
        // An inbound and an outbound may have one name.
        let mut all = Map::<&String, KcpTotals>::new();
        for (name, of) in of_inbounds.chain(of_outbounds) {
            add_carrier(all.entry(name).or_default(), &of.totals);
        }
        self.head("adit_carrier_sessions", "gauge", "Sessions of a carrier.");
        for (name, of) in &all {
            self.put("adit_carrier_sessions", &[("carrier", name)], of.sessions);
        }
        self.head("adit_carrier_retransmitted_total", "counter", "Segments that a carrier sent again.");
        for (name, of) in &all {
            let again = of.overtaken + of.timed_out;
            self.put("adit_carrier_retransmitted_total", &[("carrier", name)], again);
        }
        self.head("adit_carrier_recovered_total", "counter", "Lost packets that parity brought back.");
        for (name, of) in &all {
            self.put("adit_carrier_recovered_total", &[("carrier", name)], of.recovered);
        }
    }

    /// Searches for users by trial.
    fn searches(&mut self, inbounds: &[InboundStatus]) {
        let all: Vec<_> = inbounds.iter().filter_map(|of| Some((&of.name, of.searches.as_ref()?))).collect();
        let help =
            "Clients whose user was known by their source (hit), and those for whom keys were tried (miss).";
        self.head("adit_trial_cache_total", "counter", help);
        for (name, of) in &all {
            for (result, count) in [("hit", of.known), ("miss", of.begun)] {
                self.put("adit_trial_cache_total", &[("inbound", name), ("result", &result)], count);
            }
        }
        self.head("adit_trial_refused_total", "counter", "Clients for whom there was no place to try keys.");
        for (name, of) in &all {
            self.put("adit_trial_refused_total", &[("inbound", name)], of.refused);
        }
        self.head("adit_trial_waiting", "gauge", "Clients whose user is being looked for.");
        for (name, of) in &all {
            self.put("adit_trial_waiting", &[("inbound", name)], of.waiting);
        }
    }

    fn users(&mut self, status: &Status) {
        let users = || {
            let all = status
                .inbounds
                .iter()
                .flat_map(|inbound| inbound.users.iter().map(move |user| (inbound, user)));
            all.filter(|(_, user)| user.requests > 0 || user.up_bytes + user.down_bytes > 0)
        };
        self.head("adit_user_bytes_total", "counter", "Payload bytes of a user, over restarts.");
        for (inbound, user) in users() {
            for (dir, value) in [("up", user.up_bytes), ("down", user.down_bytes)] {
                let labels: Labels<'_> = &[("inbound", &inbound.name), ("user", &user.name), ("dir", &dir)];
                self.put_user("adit_user_bytes_total", labels, value);
            }
        }
        self.head("adit_user_connections_open", "gauge", "Open connections of a user.");
        for (inbound, user) in users() {
            let labels: Labels<'_> = &[("inbound", &inbound.name), ("user", &user.name)];
            self.put_user("adit_user_connections_open", labels, user.open);
        }
    }
}

/// Microseconds as seconds.
fn seconds(micros: u64) -> impl Display {
    // The nearest number will do.
    #[expect(clippy::cast_precision_loss, reason = "a measure, not a count")]
    let seconds = micros as f64 / 1e6;
    seconds
}

/// A label's value, in which these three have to be escaped.
fn escaped(text: &str) -> String {
    text.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n")
}

/// The first of `parts`, and the rest of them as one, which `rename` names, added up by `add`.
fn merged<T: Clone>(parts: &[T], rename: impl Fn(&mut T), add: impl Fn(&mut T, &T)) -> Vec<T> {
    let most = if parts.len() > MOST_NAMES { MOST_NAMES - 1 } else { MOST_NAMES };
    let mut all: Vec<T> = parts.iter().take(most).cloned().collect();
    let mut rest = parts.iter().skip(most);
    if let Some(first) = rest.next() {
        let mut other = first.clone();
        rename(&mut other);
        rest.for_each(|part| add(&mut other, part));
        all.push(other);
    }
    all
}

fn add_inbound(sum: &mut InboundStatus, one: &InboundStatus) {
    sum.accepted += one.accepted;
    sum.open += one.open;
    sum.requests += one.requests;
    sum.up_bytes += one.up_bytes;
    sum.down_bytes += one.down_bytes;
    sum.up_datagram_bytes += one.up_datagram_bytes;
    sum.down_datagram_bytes += one.down_datagram_bytes;
    add_counts(&mut sum.refused, &one.refused);
    add_counts(&mut sum.results, &one.results);
    sum.connection_times.add(&one.connection_times);
    sum.first_byte_times.add(&one.first_byte_times);
    if let Some(one) = &one.searches {
        let sum = sum.searches.get_or_insert_default();
        sum.known += one.known;
        sum.begun += one.begun;
        sum.refused += one.refused;
        sum.waiting += one.waiting;
        sum.found.add(&one.found);
        sum.lost.add(&one.lost);
    }
    if let Some(one) = &one.carrier {
        add_carrier(&mut sum.carrier.get_or_insert_default().totals, &one.totals);
    }
    sum.users.extend(one.users.iter().cloned());
    if let Some(one) = &one.datagrams {
        let sum = sum.datagrams.get_or_insert_default();
        sum.flows += one.flows;
        sum.up += one.up;
        sum.down += one.down;
        add_counts(&mut sum.dropped, &one.dropped);
    }
}

fn add_carrier(sum: &mut KcpTotals, one: &KcpTotals) {
    sum.sessions += one.sessions;
    sum.overtaken += one.overtaken;
    sum.timed_out += one.timed_out;
    sum.recovered += one.recovered;
}

fn add_counts(sum: &mut Map<String, u64>, one: &Map<String, u64>) {
    for (cause, count) in one {
        *sum.entry(cause.clone()).or_default() += count;
    }
}

fn add_outbound(sum: &mut OutboundStatus, one: &OutboundStatus) {
    sum.dialled += one.dialled;
    sum.failed += one.failed;
    sum.dial_times.add(&one.dial_times);
    sum.failed_dial_times.add(&one.failed_dial_times);
    sum.reused += one.reused;
    sum.idle += one.idle;
    sum.early_closes += one.early_closes;
    if let Some(one) = &one.carrier {
        add_carrier(&mut sum.carrier.get_or_insert_default().totals, &one.totals);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SEARCHES: &str = r#"{"known":7,"begun":3,"refused":1,"waiting":2,
        "found":{"times":{"ends":[100,1000000],"counts":[0,1,2],"sum":2500000},
        "keys":{"ends":[1,10,100],"counts":[1,0,2,0],"sum":61}},
        "lost":{"times":{"ends":[100,1000000],"counts":[0,0,1],"sum":1500000},
        "keys":{"ends":[1,10,100],"counts":[0,0,0,1],"sum":900}}}"#;
    /// Times of one value.
    const TIMES: &str = r#"{"ends":[5000,1000000],"counts":[0,1,0],"sum":30000}"#;
    const CARRIER: &str = r#"{"totals":{"sessions":2,"most_sessions":0,"active_opens":0,"passive_opens":0,"sent":0,
        "received":0,"in_datagrams":0,"in_bytes":0,"out_datagrams":0,"out_bytes":0,"in_segments":0,"out_segments":0,
        "repeated":0,"overtaken":3,"timed_out":4,"unopened":0,"malformed":0,"refused":0,"full":0,"failed":0,"kernel":0,
        "parity":0,"recovered":5,"bad_parity":0},"sessions":[]}"#;

    fn status(inbounds: usize, users: usize) -> Status {
        let users: Vec<String> = (0..users)
            .map(|user| {
                format!(
                    r#"{{"name":"user-{user}","requests":1,"up_bytes":{user},"down_bytes":2,"open":1,"is_online":true}}"#
                )
            })
            .collect();
        let causes: Vec<String> = (0..9).map(|cause| format!("\"cause-{cause}\":1")).collect();
        let causes = causes.join(",");
        let inbound = |number: usize| {
            format!(
                r#"{{"name":"in-{number}","protocol":"snell","listen":[],"outbound":"x","accepted":1,"open":1,
                "requests":2,"results":{{"ok":1,"dial-failed":1,"refused":0}},"connection_times":{TIMES},
                "first_byte_times":{TIMES},"up_bytes":10,"down_bytes":20,"up_datagram_bytes":4,"down_datagram_bytes":5,
                "refused":{{{causes}}},"datagrams":{{"flows":1,"begun":1,"evicted":0,"unreachable":0,"up":3,"down":3,
                "dropped":{{{causes}}}}},"users":[{}],"searches":{},"carrier":{}}}"#,
                if number == 0 { users.join(",") } else { String::new() },
                if number == 0 { SEARCHES } else { "null" },
                if number == 0 { CARRIER } else { "null" }
            )
        };
        let inbounds: Vec<String> = (0..inbounds).map(inbound).collect();
        let text = format!(
            r#"{{"version":"1.2.3","uptime_s":61,"pid":7,"cores":2,"started_unix_s":1700000000,
            "health":{{"is_live":true,"is_ready":true}},"inbounds":[{}],
            "process":{{"revision":"abc","target":"x86_64-linux-gnu","processor_us":1500000,"resident_bytes":7000,
            "users_bytes":300,"salts_bytes":400,"drain_remaining":3,"kernel_offset_us":-1500,
            "log_errors":[["ADIT-NET-01",4]]}},"carrier_memory":{{"used":11,"peak":12,"most":13}},
            "outbounds":[{{"name":"a \"quoted\" \\ name","protocol":"direct","dialled":4,"failed":1,"reused":0,
            "idle":0,"early_closes":0,"dial_times":{TIMES},"failed_dial_times":{TIMES}}}],
            "groups":[{{"name":"all","tcp":null,"udp":null,"members":[{{"name":"a","tcp":{{"state":"dead","failure":
            "no-answer","latency_us":1250,"loss_percent":25,"failures":2,"weight":80,"score_us":9990}},"udp":null}}]}}],
            "budget":{{"shares":{{"descriptors":1024,"own":64,"streams":840,"flows":480,"unauthenticated":210,
            "unauthenticated_per_source":300,"memory":134217728,"memory_from":"cgroup-v1","blocks":13000000,
            "rests":14000000,"carriers":33554432}},"streams":17,"flows":3,"descriptors_peak":99,"rests":2500,
            "rests_peak":7000,"evicted":6}},
            "state_file":{{"writes":9,"errors":1,"times":{TIMES}}},
            "fleet":{{"panels":[{{"name":"p","age_s":5,"requests":[["users","ok",3]],
            "request_times":[["users","ok",{TIMES}]]}}],"store":{{"sync_age_s":1,"scopes":[["quota","local since 5"]],
            "calls":[["merge","ok",2]],"call_times":[["merge","ok",{TIMES}]]}},"skews":[["panel",2]]}},
            "lags":[{{"counts":[5,0,0,1,0,0,0,0,0,2],"sum_us":1500000}}]}}"#,
            inbounds.join(",")
        );
        serde_json::from_str(&text).unwrap()
    }

    /// Series with their values, as a scraper reads them.
    fn parse(text: &str) -> Map<String, f64> {
        let (mut all, mut kind) = (Map::new(), Map::new());
        for line in text.lines() {
            if let Some(rest) = line.strip_prefix("# ") {
                let mut words = rest.split(' ');
                if words.next() == Some("TYPE") {
                    let name = words.next().unwrap().to_owned();
                    assert!(
                        kind.insert(name.clone(), words.next().unwrap().to_owned()).is_none(),
                        "{name} twice"
                    );
                }
                continue;
            }
            let (series, value) = line.rsplit_once(' ').unwrap_or_else(|| panic!("{line}"));
            let name = series.split('{').next().unwrap();
            let family =
                ["_bucket", "_sum", "_count"].iter().find_map(|end| name.strip_suffix(end)).unwrap_or(name);
            let kind = kind.get(family).unwrap_or_else(|| panic!("{line} has no type"));
            // Outline's counters have names of their own.
            let is_total = name.ends_with("_total") || name.starts_with("shadowsocks_");
            assert!(kind != "counter" || is_total, "{line}");
            assert!(kind == "counter" || !name.ends_with("_total"), "{line}");
            assert!(all.insert(series.to_owned(), value.parse().unwrap()).is_none(), "{series} twice");
        }
        all
    }

    #[test]
    fn the_text_is_read_back() {
        let all = parse(&Exposition::render(&status(2, 2), Form::Prometheus, false, false));
        for (series, value) in [
            ("adit_build_info{version=\"1.2.3\",revision=\"abc\",target=\"x86_64-linux-gnu\"}", 1.0),
            ("adit_cpu_seconds_total", 1.5),
            ("adit_drain_remaining", 3.0),
            ("adit_log_errors_total{code=\"ADIT-NET-01\"}", 4.0),
            ("adit_requests_total{inbound=\"in-1\",result=\"dial-failed\"}", 1.0),
            ("adit_users_online{inbound=\"in-0\"}", 2.0),
            ("adit_connection_seconds_bucket{inbound=\"in-1\",le=\"0.005\"}", 0.0),
            ("adit_connection_seconds_bucket{inbound=\"in-1\",le=\"1.0\"}", 1.0),
            ("adit_first_byte_seconds_sum{inbound=\"in-0\"}", 0.03),
            ("adit_carrier_sessions{carrier=\"in-0\"}", 2.0),
            ("adit_carrier_retransmitted_total{carrier=\"in-0\"}", 7.0),
            ("adit_carrier_recovered_total{carrier=\"in-0\"}", 5.0),
            ("adit_memory_bytes{kind=\"resident\"}", 7000.0),
            ("adit_memory_bytes{kind=\"users\"}", 300.0),
            ("adit_memory_bytes{kind=\"salts\"}", 400.0),
            ("adit_memory_bytes{kind=\"carriers\"}", 11.0),
            ("adit_clock_skew_seconds{witness=\"panel\"}", 2.0),
            ("adit_clock_skew_seconds{witness=\"kernel\"}", -0.0015),
            ("adit_user_list_age_seconds{source=\"p\"}", 5.0),
            ("adit_panel_request_seconds_count{panel=\"p\",operation=\"users\",result=\"ok\"}", 1.0),
            ("adit_store_call_seconds_bucket{operation=\"merge\",result=\"ok\",le=\"1.0\"}", 1.0),
            ("adit_limit_scope{limit=\"quota\",scope=\"local\"}", 1.0),
            ("adit_start_time_seconds", 1.7e9),
            ("adit_ready", 1.0),
            ("adit_bytes_total{inbound=\"in-1\",proto=\"tcp\",dir=\"up\"}", 6.0),
            ("adit_bytes_total{inbound=\"in-1\",proto=\"udp\",dir=\"down\"}", 5.0),
            ("adit_refused_total{inbound=\"in-0\",reason=\"cause-3\"}", 1.0),
            ("adit_datagrams_dropped_total{inbound=\"in-0\",reason=\"cause-3\"}", 1.0),
            ("adit_dials_total{outbound=\"a \\\"quoted\\\" \\\\ name\",result=\"failed\"}", 1.0),
            ("adit_users{inbound=\"in-0\"}", 2.0),
            ("adit_group_member_up{group=\"all\",member=\"a\",proto=\"tcp\"}", 0.0),
            ("adit_group_delay_seconds{group=\"all\",member=\"a\",proto=\"tcp\"}", 0.00125),
            ("adit_descriptors", 20.0),
            ("adit_memory_bytes{kind=\"buffers\"}", 2500.0),
            ("adit_event_loop_lag_seconds_bucket{core=\"0\",le=\"0.0005\"}", 5.0),
            ("adit_event_loop_lag_seconds_bucket{core=\"0\",le=\"5.0\"}", 6.0),
            ("adit_event_loop_lag_seconds_bucket{core=\"0\",le=\"+Inf\"}", 8.0),
            ("adit_event_loop_lag_seconds_count{core=\"0\"}", 8.0),
            ("adit_event_loop_lag_seconds_sum{core=\"0\"}", 1.5),
            ("adit_trial_cache_total{inbound=\"in-0\",result=\"hit\"}", 7.0),
            ("adit_trial_cache_total{inbound=\"in-0\",result=\"miss\"}", 3.0),
            ("adit_trial_refused_total{inbound=\"in-0\"}", 1.0),
            ("adit_trial_waiting{inbound=\"in-0\"}", 2.0),
            ("adit_trial_seconds_bucket{inbound=\"in-0\",found=\"true\",le=\"1.0\"}", 1.0),
            ("adit_trial_seconds_count{inbound=\"in-0\",found=\"true\"}", 3.0),
            ("adit_trial_seconds_sum{inbound=\"in-0\",found=\"false\"}", 1.5),
            ("adit_trial_keys_bucket{inbound=\"in-0\",found=\"true\",le=\"10.0\"}", 1.0),
            ("adit_trial_keys_sum{inbound=\"in-0\",found=\"false\"}", 900.0),
            ("adit_state_errors_total", 1.0),
            ("adit_state_write_seconds_sum", 0.03),
            ("adit_dial_seconds_count{outbound=\"a \\\"quoted\\\" \\\\ name\",result=\"failed\"}", 1.0),
            ("adit_metrics_dropped_series", 0.0),
        ] {
            let found = all.get(series).unwrap_or_else(|| panic!("{series}: {all:#?}"));
            assert!((found - value).abs() < 1e-9, "{series}: {found}");
        }
        assert!(!all.keys().any(|series| series.contains("user-1")), "no users unless asked for");
    }

    /// OpenMetrics 1.0: names of counters, units, families in one piece, and the end.
    #[test]
    fn the_text_is_one_of_open_metrics() {
        let status = status(2, 2);
        let text = Exposition::render(&status, Form::OpenMetrics, true, true);
        let body = text.strip_suffix("# EOF\n").unwrap();
        assert!(!body.contains("# EOF") && !body.contains("shadowsocks_"));
        let (mut families, mut samples) = (Vec::new(), 0);
        for line in body.lines() {
            let words: Vec<&str> = line.split(' ').collect();
            match words[..] {
                ["#", "HELP", name, ..] => families.push((name, "")),
                ["#", "TYPE", name, kind] => {
                    let last = families.last_mut().unwrap();
                    assert_eq!(last.0, name);
                    last.1 = kind;
                }
                ["#", "UNIT", name, unit] => assert!(name.ends_with(&format!("_{unit}")), "{line}"),
                _ => {
                    let (name, kind) = families.last().unwrap();
                    let end = line.split(['{', ' ']).next().unwrap().strip_prefix(name).unwrap();
                    let ends: &[&str] = match *kind {
                        "counter" => &["_total"],
                        "gauge" => &[""],
                        "histogram" => &["_bucket", "_sum", "_count"],
                        "summary" => &["_sum", "_count"],
                        other => panic!("{other}"),
                    };
                    assert!(ends.contains(&end), "{line}");
                    samples += 1;
                }
            }
        }
        let names: std::collections::BTreeSet<&str> = families.iter().map(|(name, _)| *name).collect();
        assert_eq!(names.len(), families.len(), "each family is there once");
        let prometheus = parse(&Exposition::render(&status, Form::Prometheus, true, false));
        assert_eq!(samples, prometheus.len(), "the same series in both forms");
        assert!(
            body.contains("# TYPE adit_bytes counter\n# UNIT adit_bytes bytes\nadit_bytes_total{"),
            "{body}"
        );
    }

    #[test]
    fn names_of_outline_come_on_request() {
        let mut status = status(3, 3);
        assert!(!Exposition::render(&status, Form::Prometheus, true, false).contains("shadowsocks_"));
        // One key on two ports, and an inbound that Outline's server would not have.
        for (at, inbound) in status.inbounds.iter_mut().enumerate().take(2) {
            inbound.protocol = "shadowsocks".into();
            inbound.listen = vec![([127, 0, 0, 1], 443 + u16::try_from(at).unwrap()).into()];
        }
        let mut copy = status.inbounds[0].users[1].clone();
        (copy.up_bytes, copy.down_bytes) = (1000, 0);
        status.inbounds[1].users.push(copy);
        let all = parse(&Exposition::render(&status, Form::Prometheus, true, true));
        for (series, value) in [
            ("shadowsocks_build_info{version=\"1.2.3\"}", 1.0),
            ("shadowsocks_keys", 3.0),
            ("shadowsocks_ports", 2.0),
            ("shadowsocks_tcp_connections_opened", 2.0),
            ("shadowsocks_udp_nat_entries_added", 2.0),
            ("shadowsocks_udp_nat_entries_removed", 0.0),
            ("shadowsocks_data_bytes{dir=\"c>p\",access_key=\"user-1\"}", 1001.0),
            ("shadowsocks_data_bytes{dir=\"p>t\",access_key=\"user-1\"}", 1001.0),
            ("shadowsocks_data_bytes{dir=\"p<t\",access_key=\"user-1\"}", 2.0),
            ("shadowsocks_data_bytes{dir=\"c<p\",access_key=\"user-2\"}", 2.0),
        ] {
            let found = all.get(series).unwrap_or_else(|| panic!("{series}: {all:#?}"));
            assert!((found - value).abs() < 1e-9, "{series}: {found}");
        }
        // As many series of users as there may be, and no more.
        let mut many = self::status(1, 30_000);
        many.inbounds[0].protocol = "shadowsocks".into();
        let all = parse(&Exposition::render(&many, Form::Prometheus, false, true));
        let users = all.keys().filter(|series| series.starts_with("shadowsocks_data_bytes")).count();
        assert_eq!(users, MOST_USER_SERIES);
    }

    #[test]
    fn the_number_of_series_is_bounded_and_no_byte_is_lost() {
        let all = parse(&Exposition::render(&status(256, 30_000), Form::Prometheus, true, false));
        let of_user = |series: &&String| series.starts_with("adit_user_") && series.contains("user=");
        let own = all.keys().filter(|series| !of_user(series)).count();
        let users = all.len() - own;
        assert!(own <= MOST_SERIES + 1, "{own}");
        assert_eq!(users, MOST_USER_SERIES);
        assert!(all["adit_metrics_dropped_series"] > 40_000.0);
        // Histograms are whole.
        for series in all.keys().filter(|series| series.contains("le=\"+Inf\"")) {
            let count =
                series.replace("_bucket", "_count").replace(",le=\"+Inf\"", "").replace("{le=\"+Inf\"}", "");
            assert!(all.contains_key(&count), "{series}");
        }
        let bytes =
            |(series, value): (&String, &f64)| series.starts_with("adit_bytes_total").then_some(*value);
        let sum: f64 = all.iter().filter_map(bytes).sum();
        assert!((sum - 256.0 * 30.0).abs() < 1e-9, "{sum}");
        let other = "adit_connections_open{inbound=\"other\"}";
        assert!((all[other] - f64::from(256 - 63)).abs() < 1e-9, "{}", all[other]);
        assert_eq!(
            parse(&Exposition::render(&status(64, 0), Form::Prometheus, false, false))
                .keys()
                .filter(|of| of.contains("other"))
                .count(),
            0
        );
    }

    /// The dashboard and the alerts ask for nothing that is not there.
    #[test]
    fn all_names_of_the_dashboard_and_the_alerts_exist() {
        let text = Exposition::render(&status(1, 1), Form::Prometheus, true, false);
        let families: Vec<&str> =
            text.lines().filter_map(|line| line.strip_prefix("# TYPE ")?.split(' ').next()).collect();
        let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/../../contrib/");
        let mut count = 0;
        for file in ["grafana/adit.json", "prometheus/adit.rules.yml"] {
            let text = std::fs::read_to_string(format!("{folder}{file}")).unwrap();
            for name in text
                .split(|c: char| !(c.is_ascii_lowercase() || c == '_'))
                .filter(|word| word.starts_with("adit_"))
            {
                let ends = ["_bucket", "_sum", "_count"];
                let family = ends.iter().find_map(|end| name.strip_suffix(end)).unwrap_or(name);
                assert!(families.contains(&family), "{file}: {name}");
                count += 1;
            }
            if file.ends_with(".json") {
                serde_json::from_str::<serde_json::Value>(&text).unwrap();
            }
        }
        assert!(count > 40, "{count}");
    }
}
