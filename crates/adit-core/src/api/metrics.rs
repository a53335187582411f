//! The snapshot as Prometheus reads it (text format 0.0.4).
//!
//! The number of series is bounded: names come from the configuration or from fixed lists, never from clients, targets or
//! errors. Inbounds and outbounds beyond the first [`MOST_NAMES`] are summed up as `other`.

use std::collections::BTreeMap;
use std::fmt::{Display, Write as _};

use crate::api::status::{InboundStatus, LagStatus, OutboundStatus, Status};

/// Most series, those of users aside.
pub const MOST_SERIES: usize = 2_000;
/// Most series of users.
const MOST_USER_SERIES: usize = 20_000;
/// Inbounds, and outbounds, with a name of their own.
const MOST_NAMES: usize = 64;
/// The name of the others.
const OTHER: &str = "other";

/// The text of `/metrics`.
#[derive(Debug, Default)]
pub struct Exposition {
    text: String,
    series: usize,
    user_series: usize,
    dropped: u64,
}

/// Labels of a series: names and values.
type Labels<'a> = &'a [(&'static str, &'a dyn Display)];

impl Exposition {
    /// The text for `status`, with series for each user if `per_user`.
    pub fn render(status: &Status, per_user: bool) -> String {
        let mut out = Self::default();
        out.process(status);
        out.inbounds(&merged(&status.inbounds, |other| other.name = OTHER.into(), add_inbound));
        out.outbounds(&merged(&status.outbounds, |other| other.name = OTHER.into(), add_outbound));
        out.groups(status);
        out.budget(status);
        out.lags(status);
        if per_user {
            out.users(status);
        }
        let dropped = out.dropped;
        out.head("adit_metrics_dropped_series", "gauge", "Series that were left out since there were too many.");
        out.line("adit_metrics_dropped_series", &[], dropped);
        out.text
    }

    fn head(&mut self, name: &str, kind: &str, help: &str) {
        // A `String` takes everything.
        writeln!(self.text, "# HELP {name} {help}\n# TYPE {name} {kind}").ok();
    }

    /// One series, if there is room for it.
    fn put(&mut self, name: &str, labels: Labels<'_>, value: impl Display) {
        if self.series >= MOST_SERIES {
            self.dropped += 1;
            return;
        }
        self.series += 1;
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
    fn one(&mut self, name: &str, kind: &str, help: &str, value: impl Display) {
        self.head(name, kind, help);
        self.put(name, &[], value);
    }

    fn process(&mut self, status: &Status) {
        self.head("adit_build_info", "gauge", "The version that runs.");
        self.put("adit_build_info", &[("version", &status.version)], 1);
        let started = status.started_unix_s;
        self.one("adit_start_time_seconds", "gauge", "Seconds from 1970 to the start.", started);
        let ready = u8::from(status.health.is_ready);
        self.one("adit_ready", "gauge", "1 while connections are accepted.", ready);
        self.one("adit_event_loops", "gauge", "Event loops.", status.cores);
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
        self.each(inbounds, "adit_requests_total", "counter", "Requests served.", |of| of.requests);
        self.head("adit_refused_total", "counter", "Connections refused, by cause.");
        for inbound in inbounds {
            for (reason, count) in &inbound.refused {
                self.put("adit_refused_total", &[("inbound", &inbound.name), ("reason", reason)], count);
            }
        }
        self.datagrams(inbounds);
        let users = |of: &InboundStatus| of.users.len();
        self.each(inbounds, "adit_users", "gauge", "Users of the configuration.", users);
        let over = |of: &InboundStatus| of.users.iter().filter(|user| user.limited.is_some()).count();
        self.each(inbounds, "adit_users_over_limit", "gauge", "Users that may use no more.", over);
        let online = |of: &InboundStatus| of.users.iter().filter(|user| user.open > 0).count();
        self.each(inbounds, "adit_users_online", "gauge", "Users with an open connection.", online);
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
                    let known = health.into_iter().filter_map(|(proto, health)| Some((proto, health.as_ref()?)));
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
        self.put("adit_memory_bytes", &[("kind", &"buffers")], budget.rests);
        self.put("adit_memory_bytes", &[("kind", &"limit")], budget.shares.memory);
        if let Some(memory) = &status.carrier_memory {
            self.put("adit_memory_bytes", &[("kind", &"carriers")], memory.used);
        }
        let evicted = "Connections that ended for want of descriptors or memory.";
        self.one("adit_evicted_total", "counter", evicted, budget.evicted);
    }

    fn lags(&mut self, status: &Status) {
        const NAME: &str = "adit_event_loop_lag_seconds";
        self.head(NAME, "histogram", "Lateness of the beat of each event loop, once a second.");
        for (core, lag) in status.lags.iter().take(MOST_NAMES).enumerate() {
            let mut count = 0;
            let ends = LagStatus::ENDS_US.iter().map(|end| seconds(*end).to_string());
            for (end, of) in ends.chain(["+Inf".to_owned()]).zip(&lag.counts) {
                count += of;
                self.put("adit_event_loop_lag_seconds_bucket", &[("core", &core), ("le", &end)], count);
            }
            self.put("adit_event_loop_lag_seconds_sum", &[("core", &core)], seconds(lag.sum_us));
            self.put("adit_event_loop_lag_seconds_count", &[("core", &core)], count);
        }
    }

    fn users(&mut self, status: &Status) {
        let users = || {
            let all = status.inbounds.iter().flat_map(|inbound| inbound.users.iter().map(move |user| (inbound, user)));
            all.filter(|(_, user)| user.requests > 0 || user.up_bytes + user.down_bytes > 0)
        };
        self.head("adit_user_bytes_total", "counter", "Payload bytes of a user, over restarts.");
        for (inbound, user) in users() {
            for (dir, value) in [("up", user.up_bytes), ("down", user.down_bytes)] {
                if self.user_series >= MOST_USER_SERIES {
                    self.dropped += 1;
                    continue;
                }
                self.user_series += 1;
                let labels: Labels<'_> = &[("inbound", &inbound.name), ("user", &user.name), ("dir", &dir)];
                self.line("adit_user_bytes_total", labels, value);
            }
        }
        self.head("adit_user_connections_open", "gauge", "Open connections of a user.");
        for (inbound, user) in users() {
            if self.user_series >= MOST_USER_SERIES {
                self.dropped += 1;
                continue;
            }
            self.user_series += 1;
            let labels: Labels<'_> = &[("inbound", &inbound.name), ("user", &user.name)];
            self.line("adit_user_connections_open", labels, user.open);
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
    sum.users.extend(one.users.iter().cloned());
    if let Some(one) = &one.datagrams {
        let sum = sum.datagrams.get_or_insert_default();
        sum.flows += one.flows;
        sum.up += one.up;
        sum.down += one.down;
        add_counts(&mut sum.dropped, &one.dropped);
    }
}

fn add_counts(sum: &mut BTreeMap<String, u64>, one: &BTreeMap<String, u64>) {
    for (cause, count) in one {
        *sum.entry(cause.clone()).or_default() += count;
    }
}

fn add_outbound(sum: &mut OutboundStatus, one: &OutboundStatus) {
    sum.dialled += one.dialled;
    sum.failed += one.failed;
    sum.reused += one.reused;
    sum.idle += one.idle;
    sum.early_closes += one.early_closes;
}
