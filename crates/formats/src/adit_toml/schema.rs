//! Tables of which one row per key drives reading, writing and documentation.

use std::ops::RangeInclusive;
use std::path::PathBuf;
use std::time::Duration;

use adit_model::{self as model, Limits, Log, Udp};

use super::fields::{TomlFields, TomlReport};
use super::keys::{Head, TomlTable, key};
use super::rows::{ALL, FORMATS, LEVELS, ON_OFF, name_of};
use crate::read::value::{self, Problem, duration_text, quote, size_text};

/// Longest path of a file, in bytes.
const MAX_PATH: usize = 4000;

/// A key of a table that is read into a `T`.
pub(super) struct SchemaRow<T> {
    head: Head,
    /// Puts the value in its place, if the file has one.
    read: fn(&mut T, At<'_, '_, '_, '_>),
    /// The value as it stands in a file; `None` leaves the key out.
    write: fn(&T) -> Option<String>,
}

/// The place of a key in a file that is being read.
pub(super) struct At<'f, 'd, 'r, 's> {
    fields: &'f mut TomlFields<'d>,
    report: &'r mut TomlReport<'s>,
    head: &'static Head,
}

impl At<'_, '_, '_, '_> {
    fn flag(self, to: &mut bool) {
        let field = self.fields.take(self.head);
        put(to, field.and_then(|field| field.flag(self.report)));
    }

    fn number<N: TryFrom<usize>>(self, range: RangeInclusive<usize>, to: &mut N) {
        let field = self.fields.take(self.head);
        put(to, field.and_then(|field| field.number(self.report, range)));
    }

    fn choice<C: Copy>(self, choices: &[(&str, C)], to: &mut C) {
        let field = self.fields.take(self.head);
        put(to, field.and_then(|field| field.choice(self.report, choices)));
    }

    fn duration(&mut self, to: &mut Duration) {
        let field = self.fields.take(self.head);
        put(to, field.and_then(|field| field.duration(self.report)));
    }

    fn path(self, to: &mut Option<PathBuf>) {
        let path = self.fields.take(self.head).and_then(|field| {
            field.parsed(self.report, |text| value::text_of(text, MAX_PATH).map(|path| PathBuf::from(&*path)))
        });
        *to = path;
    }

    fn wrong(self, problem: Problem) {
        self.report.error(&self.fields.place(self.head), self.fields.path(self.head), problem);
    }

    /// A duration, or `off`.
    fn limit(self, to: &mut Option<Duration>) {
        let is_off = self.fields.text(self.head) == Some("off");
        let Some(field) = self.fields.take(self.head) else { return };
        if is_off {
            *to = None;
            return;
        }
        let Some(limit) = field.duration(self.report) else { return };
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

const fn row<T>(
    head: Head,
    read: fn(&mut T, At<'_, '_, '_, '_>),
    write: fn(&T) -> Option<String>,
) -> SchemaRow<T> {
    SchemaRow { head, read, write }
}

/// Reads a table; keys without a row are errors.
pub(crate) fn read<T: Default>(
    rows: &'static [SchemaRow<T>],
    mut fields: TomlFields<'_>,
    report: &mut TomlReport<'_>,
) -> T {
    let mut value = T::default();
    for row in rows {
        (row.read)(&mut value, At { fields: &mut fields, report, head: &row.head });
    }
    fields.finish(report, None);
    value
}

/// The keys of a table with their values, as they stand in a file.
pub(super) fn write<T>(rows: &[SchemaRow<T>], value: &T) -> impl Iterator<Item = (&'static str, String)> {
    rows.iter().filter_map(move |row| Some((row.head.name, (row.write)(value)?)))
}

/// The heads of all tables here.
pub(super) fn heads() -> impl Iterator<Item = &'static Head> {
    let log = LOG.iter().map(|row| &row.head);
    log.chain(LIMITS.iter().map(|row| &row.head)).chain(UDP.iter().map(|row| &row.head))
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
pub(super) static LOG: &[SchemaRow<Log>] = &{
    use TomlTable::Log;
    [
        row(key("level", "error, warn, info, debug or trace", "\"debug\"").at(Log, ALL, "info", "least severe level that is written"),
            |log, at| at.choice(LEVELS, &mut log.level), |log| text(name_of(LEVELS, &log.level))),
        row(key("format", "text or json", "\"json\"").at(Log, ALL, "text", "shape of a line"),
            |log, at| at.choice(FORMATS, &mut log.format), |log| text(name_of(FORMATS, &log.format))),
        row(key("time", "true or false", "false").at(Log, ALL, "true", "puts the time on each line; a journal adds its own"),
            |log, at| at.flag(&mut log.time), |log| shown(log.time)),
        row(key("destinations", "true or false", "true").at(Log, ALL, "false", "shows where connections go in lines of level info"),
            |log, at| at.flag(&mut log.destinations), |log| shown(log.destinations)),
        row(key("file", "path of a file", "\"/var/log/adit/adit.log\"").at(Log, ALL, "standard error", "file that lines go to; a full one is renamed to FILE.1, FILE.1 to FILE.2, and so on"),
            |log, at| at.path(&mut log.file), |log| text(&log.file.as_ref()?.to_string_lossy())),
        row(key("max-size", "number of bytes with a unit, at least 64KiB", "\"50MiB\"").at(Log, ALL, "10MiB", "length of `file` at which another one is begun"),
            read_max_size, |log| (log.max_size != model::Log::MAX_SIZE).then(|| quote(&size_text(log.max_size)))),
        row(key("keep", "0 to 100", "7").at(Log, ALL, "3", "earlier log files that are kept"),
            |log, at| at.number(0..=100, &mut log.keep), |log| (log.keep != model::Log::KEEP).then(|| log.keep.to_string())),
    ]
};

/// `[limits]`.
#[rustfmt::skip]
pub(super) static LIMITS: &[SchemaRow<Limits>] = &{
    use TomlTable::Limits;
    [
        row(key("idle", "duration, or off", "\"30m\"").at(Limits, ALL, "2h4m", "ends a connection without a byte in either direction for this long"),
            |limits, at| at.limit(&mut limits.idle), |limits| text(&limits.idle.map_or_else(|| "off".to_owned(), duration_text))),
        row(key("drain", "duration", "\"30s\"").at(Limits, ALL, "10s", "time for open connections to end after the first signal"),
            |limits, mut at| at.duration(&mut limits.drain), |limits| text(&duration_text(limits.drain))),
        row(key("half-close", "duration", "\"3s\"").at(Limits, ALL, "5s", "passes on a held end of a client's data after this long without a byte, once there was an answer"),
            |limits, mut at| at.duration(&mut limits.half_close), |limits| text(&duration_text(limits.half_close))),
        row(key("half-close-unanswered", "duration", "\"30s\"").at(Limits, ALL, "1m", "the same before there was any answer"),
            |limits, mut at| at.duration(&mut limits.half_close_unanswered), |limits| text(&duration_text(limits.half_close_unanswered))),
        row(key("unauthenticated", "number of connections", "1024").at(Limits, ALL, "4096, fewer where descriptors or memory are scarce", "most connections that have not authenticated yet, or whose request is not whole"),
            |limits, at| read_count(&mut limits.unauthenticated, at), |limits| shown(limits.unauthenticated?)),
        row(key("unauthenticated-per-source", "number of connections", "64").at(Limits, ALL, "drawn at each start, 128 to 512", "the same per IPv4 address or IPv6 /64"),
            |limits, at| read_count(&mut limits.unauthenticated_per_source, at), |limits| shown(limits.unauthenticated_per_source?)),
        row(key("carrier-memory", "number of bytes with a unit, at least 16MiB", "\"256MiB\"").at(Limits, ALL, "a quarter of the memory of the machine or cgroup", "bytes that the sessions of all carriers may hold together"),
            read_carrier_memory, |limits| text(&size_text(u64::try_from(limits.carrier_memory?).ok()?))),
    ]
};

/// `[udp]`.
#[rustfmt::skip]
pub(super) static UDP: &[SchemaRow<Udp>] = &{
    use TomlTable::Udp;
    [
        row(key("idle", "duration, from 1m", "\"30m\"").at(Udp, ALL, "5m", "forgets a flow without a datagram in either direction for this long"),
            read_udp_idle, |udp| text(&duration_text(udp.idle))),
        row(key("flows", "1 to 1048576", "16384").at(Udp, ALL, "4096", "most flows per port and event loop, each with a descriptor; the oldest makes room"),
            |udp, at| at.number(1..=1 << 20, &mut udp.flows), |udp| shown(udp.flows)),
        row(key("ecn", "true or false", "true").at(Udp, ALL, "false", "carries marks of congestion from one side to the other"),
            |udp, at| at.flag(&mut udp.ecn), |udp| switch(udp.ecn)),
        row(key("dscp", "0 to 63", "46").at(Udp, ALL, "0", "code point of the service that sealed datagrams ask of routers"),
            |udp, at| at.number(0..=63, &mut udp.dscp), |udp| shown(udp.dscp)),
        row(key("fragment", "true or false", "true").at(Udp, ALL, "false", "sends sealed datagrams that are too large for the path in fragments"),
            |udp, at| at.flag(&mut udp.fragment), |udp| switch(udp.fragment)),
        row(key("mtu", "576 to 65535 bytes", "1400").at(Udp, ALL, "as the system knows it", "drops sealed datagrams that make larger packets, headers of IP and UDP included"),
            read_mtu, |udp| shown(udp.mtu?)),
        row(key("gather", "on or off", "\"on\"").at(Udp, ALL, "off", "waits up to 0.2 ms for more datagrams while many pass: fewer wake-ups at the highest rates, more processor time below"),
            |udp, at| at.choice(ON_OFF, &mut udp.gather), |udp| text(name_of(ON_OFF, &udp.gather))),
    ]
};

fn read_max_size(log: &mut Log, at: At<'_, '_, '_, '_>) {
    let field = at.fields.take(at.head);
    put(&mut log.max_size, field.and_then(|field| field.parsed(at.report, log_size)));
}

fn log_size(text: &str) -> Result<u64, Problem> {
    let size = value::size(text)?;
    if size < Log::MIN_MAX_SIZE { Err(Problem::new("less than 64KiB")) } else { Ok(size) }
}

fn read_carrier_memory(limits: &mut Limits, at: At<'_, '_, '_, '_>) {
    let field = at.fields.take(at.head);
    limits.carrier_memory = field.and_then(|field| field.parsed(at.report, carrier_memory));
}

fn carrier_memory(text: &str) -> Result<usize, Problem> {
    let size = usize::try_from(value::size(text)?).unwrap_or(usize::MAX);
    if size < Limits::MIN_CARRIER_MEMORY {
        return Err(Problem::new("less than 16MiB"));
    }
    Ok(size)
}

fn read_udp_idle(udp: &mut Udp, mut at: At<'_, '_, '_, '_>) {
    at.duration(&mut udp.idle);
    if udp.idle < Udp::MIN_IDLE {
        at.wrong(Problem::new("less than a minute, for which packet numbers have to be remembered"));
    }
}

fn read_count(to: &mut Option<usize>, at: At<'_, '_, '_, '_>) {
    *to = at.fields.take(at.head).and_then(|field| field.number(at.report, 1..=1 << 20));
}

fn read_mtu(udp: &mut Udp, at: At<'_, '_, '_, '_>) {
    let field = at.fields.take(at.head);
    udp.mtu = field.and_then(|field| field.number(at.report, 576..=65_535));
}
