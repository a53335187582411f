//! Tables of which one row per key drives reading, writing and documentation.

use std::ops::RangeInclusive;
use std::time::Duration;

use super::fields::{Fields, Report};
use super::keys::{ALL, Key, Table, key};
use super::write::{FORMATS, LEVELS, ON_OFF, name_of};
use crate::dialect::value::{self, Problem, duration_text, quote, size_text};
use crate::model::{Limits, Log, Udp};

/// A key of a table that is read into a `T`.
pub(super) struct Row<T> {
    key: Key,
    /// Puts the value in its place, if the file has one.
    read: fn(&mut T, At<'_, '_, '_, '_>),
    /// The value as it stands in a file; `None` leaves the key out.
    write: fn(&T) -> Option<String>,
}

/// The place of a key in a file that is being read.
pub(super) struct At<'f, 'd, 'r, 's> {
    fields: &'f mut Fields<'d>,
    report: &'r mut Report<'s>,
    key: &'static str,
}

impl At<'_, '_, '_, '_> {
    fn flag(self, to: &mut bool) {
        put(to, self.fields.flag(self.report, self.key));
    }

    fn number<N: TryFrom<usize>>(self, range: RangeInclusive<usize>, to: &mut N) {
        put(
            to,
            self.fields.integer(self.report, self.key, range).and_then(|number| N::try_from(number).ok()),
        );
    }

    fn choice<C: Copy>(self, choices: &[(&str, C)], to: &mut C) {
        put(to, self.fields.one_of(self.report, self.key, choices));
    }

    fn duration(self, to: &mut Duration) {
        put(to, self.fields.duration(self.report, self.key));
    }

    fn wrong(self, problem: Problem) {
        self.report.error(&self.fields.place(self.key), self.fields.path(self.key), problem);
    }

    /// A duration, or `off`.
    fn limit(self, to: &mut Option<Duration>) {
        if self.fields.text(self.key) == Some("off") {
            self.fields.take(self.key);
            *to = None;
            return;
        }
        let Some(limit) = self.fields.duration(self.report, self.key) else { return };
        *to = Some(limit);
        if limit.is_zero() {
            let problem = Problem::new("ends every connection at once");
            self.wrong(problem.hint("write \"off\" to never end one"));
        }
    }
}

fn put<V>(to: &mut V, value: Option<V>) {
    if let Some(value) = value {
        *to = value;
    }
}

const fn row<T>(key: Key, read: fn(&mut T, At<'_, '_, '_, '_>), write: fn(&T) -> Option<String>) -> Row<T> {
    Row { key, read, write }
}

/// Reads a table; keys without a row are errors.
pub(super) fn read<T: Default>(rows: &[Row<T>], mut fields: Fields<'_>, report: &mut Report<'_>) -> T {
    let mut value = T::default();
    for row in rows {
        (row.read)(&mut value, At { fields: &mut fields, report, key: row.key.name });
    }
    fields.finish(report, None);
    value
}

/// The keys of a table with their values, as they stand in a file.
pub(super) fn write<T>(rows: &[Row<T>], value: &T) -> impl Iterator<Item = (&'static str, String)> {
    rows.iter().filter_map(move |row| Some((row.key.name, (row.write)(value)?)))
}

/// The keys of all tables here.
pub(super) fn keys() -> impl Iterator<Item = &'static Key> {
    let log = LOG.iter().map(|row| &row.key);
    log.chain(LIMITS.iter().map(|row| &row.key)).chain(UDP.iter().map(|row| &row.key))
}

fn shown(value: impl ToString) -> Option<String> {
    Some(value.to_string())
}

/// A switch that is off unless written.
fn switch(on: bool) -> Option<String> {
    on.then(|| on.to_string())
}

fn text(value: &str) -> Option<String> {
    Some(quote(value))
}

/// `[log]`.
#[rustfmt::skip]
pub(super) static LOG: &[Row<Log>] = &{
    use Table::Log;
    [
        row(key(Log, "level", ALL, "error, warn, info, debug or trace", "info", "least severe level that is written"),
            |log, at| at.choice(LEVELS, &mut log.level), |log| text(name_of(LEVELS, &log.level))),
        row(key(Log, "format", ALL, "text or json", "text", "shape of a line"),
            |log, at| at.choice(FORMATS, &mut log.format), |log| text(name_of(FORMATS, &log.format))),
        row(key(Log, "time", ALL, "true or false", "true", "puts the time on each line; a journal adds its own"),
            |log, at| at.flag(&mut log.time), |log| shown(log.time)),
        row(key(Log, "destinations", ALL, "true or false", "false", "shows where connections go in lines of level info"),
            |log, at| at.flag(&mut log.destinations), |log| shown(log.destinations)),
    ]
};

/// `[limits]`.
#[rustfmt::skip]
pub(super) static LIMITS: &[Row<Limits>] = &{
    use Table::Limits;
    [
        row(key(Limits, "idle", ALL, "duration, or off", "2h4m", "ends a connection without a byte in either direction for this long"),
            |limits, at| at.limit(&mut limits.idle), |limits| text(&limits.idle.map_or_else(|| "off".to_owned(), duration_text))),
        row(key(Limits, "drain", ALL, "duration", "10s", "time for open connections to end after the first signal"),
            |limits, at| at.duration(&mut limits.drain), |limits| text(&duration_text(limits.drain))),
        row(key(Limits, "unauthenticated", ALL, "number of connections", "4096, fewer where descriptors or memory are scarce", "most connections to servers that have not authenticated yet"),
            |limits, at| read_count(&mut limits.unauthenticated, at), |limits| shown(limits.unauthenticated?)),
        row(key(Limits, "unauthenticated-per-source", ALL, "number of connections", "drawn at each start, 128 to 512", "the same per IPv4 address or IPv6 /64"),
            |limits, at| read_count(&mut limits.unauthenticated_per_source, at), |limits| shown(limits.unauthenticated_per_source?)),
        row(key(Limits, "carrier-memory", ALL, "number of bytes with a unit, at least 16MiB", "a quarter of the memory of the machine or cgroup", "what the sessions of all carriers hold together"),
            read_carrier_memory, |limits| text(&size_text(u64::try_from(limits.carrier_memory?).ok()?))),
    ]
};

/// `[udp]`.
#[rustfmt::skip]
pub(super) static UDP: &[Row<Udp>] = &{
    use Table::Udp;
    [
        row(key(Udp, "idle", ALL, "duration, from 1m", "5m", "forgets a flow without a datagram in either direction for this long"),
            read_udp_idle, |udp| text(&duration_text(udp.idle))),
        row(key(Udp, "flows", ALL, "1 to 1048576", "4096", "most flows per port and event loop, each with a descriptor; the oldest makes room"),
            |udp, at| at.number(1..=1 << 20, &mut udp.flows), |udp| shown(udp.flows)),
        row(key(Udp, "ecn", ALL, "true or false", "false", "carries marks of congestion from one side to the other"),
            |udp, at| at.flag(&mut udp.ecn), |udp| switch(udp.ecn)),
        row(key(Udp, "dscp", ALL, "0 to 63", "0", "code point of the service that sealed datagrams ask of routers"),
            |udp, at| at.number(0..=63, &mut udp.dscp), |udp| shown(udp.dscp)),
        row(key(Udp, "fragment", ALL, "true or false", "false", "sends sealed datagrams that are too large for the path in fragments"),
            |udp, at| at.flag(&mut udp.fragment), |udp| switch(udp.fragment)),
        row(key(Udp, "mtu", ALL, "576 to 65535 bytes", "as the system knows it", "drops sealed datagrams that make larger packets, headers of IP and UDP included"),
            read_mtu, |udp| shown(udp.mtu?)),
        row(key(Udp, "gather", ALL, "on or off", "on", "waits up to 0.2 ms for more datagrams while many pass, which saves processor time"),
            |udp, at| at.choice(ON_OFF, &mut udp.gather), |udp| text(name_of(ON_OFF, &udp.gather))),
    ]
};

fn read_carrier_memory(limits: &mut Limits, at: At<'_, '_, '_, '_>) {
    let size = at.fields.parsed(at.report, at.key, carrier_memory);
    limits.carrier_memory = size.map(|size| size.value);
}

fn carrier_memory(text: &str) -> Result<usize, Problem> {
    let size = usize::try_from(value::size(text)?).unwrap_or(usize::MAX);
    if size < Limits::MIN_CARRIER_MEMORY {
        return Err(Problem::new("less than 16MiB"));
    }
    Ok(size)
}

fn read_udp_idle(udp: &mut Udp, at: At<'_, '_, '_, '_>) {
    put(&mut udp.idle, at.fields.duration(at.report, at.key));
    if udp.idle < Udp::MIN_IDLE {
        at.wrong(Problem::new("less than a minute, for which packet numbers have to be remembered"));
    }
}

fn read_count(to: &mut Option<usize>, at: At<'_, '_, '_, '_>) {
    *to = at.fields.integer(at.report, at.key, 1..=1 << 20);
}

fn read_mtu(udp: &mut Udp, at: At<'_, '_, '_, '_>) {
    let mtu = at.fields.integer(at.report, at.key, 576..=65_535);
    udp.mtu = mtu.and_then(|mtu| u16::try_from(mtu).ok());
}
