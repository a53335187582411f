//! Log lines, on standard error or in a file, in one of five shapes. That of mihomo is for standard output:
//!
//! ```text
//! text     2026-01-02T03:04:05.678901Z  INFO listening inbound=home address=0.0.0.0:6160
//! logfmt   time=2026-01-02T03:04:05.678901Z level=INFO msg=listening inbound=home address=0.0.0.0:6160
//! go       2026/01/02 03:04:05 listening inbound=home address=0.0.0.0:6160
//! mihomo   time="2026-01-02T03:04:05.678901000Z" level=info msg="listening inbound=home address=0.0.0.0:6160"
//! json     {"time":"2026-01-02T03:04:05.678901Z","level":"info","message":"listening","inbound":"home"}
//! ```
//!
//! Text has the short local time on a terminal, and UTC in files and pipes. If the journal reads standard error
//! (`JOURNAL_STREAM`), lines have no time and begin with the priority, `<4>` for a warning.
//!
//! adit's own code is heard from the level asked for on; the libraries below it only at debug (their warnings) and
//! at trace (their debug lines), because what they say may name destinations.

pub(crate) mod args;
pub(crate) mod error_counts;
mod file;
pub(crate) mod log_stream;

use std::fmt::{self, Write as _};
use std::io::{self, IsTerminal as _, Write};
use std::os::fd::AsFd as _;
use std::os::unix::fs::MetadataExt as _;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering};

use adit_model::shown::{Escaped, is_hidden};
use adit_model::{Level, Log, LogFormat};
use adit_net::syslog::Syslog;
use tracing::field::{Field, Visit};
use tracing::{Event, Metadata, Subscriber};
use tracing_subscriber::Layer as _;
use tracing_subscriber::filter::LevelFilter;
use tracing_subscriber::fmt::format::Writer;
use tracing_subscriber::fmt::time::{FormatTime, SystemTime};
use tracing_subscriber::fmt::{FmtContext, FormatEvent, FormatFields, MakeWriter};
use tracing_subscriber::layer::SubscriberExt as _;
use tracing_subscriber::registry::LookupSpan;
use tracing_subscriber::util::SubscriberInitExt as _;

use crate::log::args::LogArgs;
use crate::log::error_counts::{Coded, ErrorCounts};
use crate::log::file::LogFile;
use crate::print;

/// Shape of a line.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Shape {
    /// For a person.
    Text,
    /// As programs in Go write it.
    Logfmt,
    /// One object per line.
    Json,
    /// As mihomo writes it, on standard output, where programs that start it wait for certain lines.
    Mihomo,
    /// As Go's package `log` writes it, in UTC: `2026/01/02 03:04:05 message`.
    Go,
}

impl From<LogFormat> for Shape {
    fn from(format: LogFormat) -> Self {
        match format {
            LogFormat::Text => Self::Text,
            LogFormat::Json => Self::Json,
        }
    }
}

/// Settings from the front of a command line, which outrank those of a program and its file.
static OVERRULED: OnceLock<LogArgs> = OnceLock::new();

/// Lets these settings outrank all others.
pub(crate) fn overrule(flags: LogArgs) {
    drop(OVERRULED.set(flags));
}

/// Lines of the level of `log` and above are written from now on, unless the command line has said another one.
pub(crate) fn follow(log: &Log) {
    log_stream::set_level(OVERRULED.get().map_or(log.level, |flags| flags.over(log).level));
}

/// Starts logging; called once.
pub(crate) fn init(log: &Log, shape: Shape) {
    let (log, shape) = match OVERRULED.get() {
        Some(flags) => (&flags.over(log), flags.log_format.map_or(shape, Shape::from)),
        None => (log, shape),
    };
    let broken = open_file(log).err();
    ON_OUTPUT.store(shape == Shape::Mihomo, Ordering::Relaxed);
    log_stream::set_level(log.level);
    let colour = shape == Shape::Text && FILE.get().is_none() && print::colour(&io::stderr());
    let is_journal = FILE.get().is_none()
        && shape != Shape::Mihomo
        && reads_standard_error(std::env::var("JOURNAL_STREAM").ok().as_deref());
    let is_terminal = shape == Shape::Text && FILE.get().is_none() && io::stderr().is_terminal();
    let stamp = match (log.time, is_journal, is_terminal) {
        (false, ..) | (_, true, _) => Stamp::Nothing,
        (_, _, true) => Stamp::Local,
        _ => Stamp::Utc,
    };
    let lines = Lines { shape, stamp, has_priority: is_journal, colour };
    let layer = tracing_subscriber::fmt::layer().event_format(lines).with_writer(Destination);
    // A second start of logging in one process is a no-op.
    tracing_subscriber::registry()
        .with(layer.with_filter(log_stream::WrittenLines))
        .with(log_stream::Tap.with_filter(log_stream::Tapped))
        .with(ErrorCounts.with_filter(Coded))
        .try_init()
        .ok();
    if let (Some(error), Some(path)) = (broken, &log.file) {
        let file = path.display();
        tracing::error!(%file, %error, "cannot write the log file: log lines go to standard error");
    }
}

/// Opens the file that `log` names, if it names one and there is none yet.
fn open_file(log: &Log) -> io::Result<()> {
    if let (Some(path), None) = (&log.file, FILE.get()) {
        // Nobody else sets it meanwhile.
        drop(FILE.set(LogFile::open(path, log)?));
    }
    Ok(())
}

/// Whether lines go to standard output.
static ON_OUTPUT: AtomicBool = AtomicBool::new(false);

/// The file that lines go to, if there is one.
static FILE: OnceLock<LogFile> = OnceLock::new();

/// The system's log, once lines go there.
static SYSTEM: OnceLock<Syslog> = OnceLock::new();

/// From here on lines go to the system's log, where there is one, as those of the program `name`.
pub(crate) fn to_system(name: &str) {
    match Syslog::open(name) {
        Ok(log) => drop(SYSTEM.set(log)),
        Err(error) => tracing::warn!(%error, "cannot open the system log: log lines go to standard error"),
    }
}

/// Standard error, or the system's log.
struct Destination;

/// A line on its way there; 0 (emergency) to 7 (debug).
struct LineWriter(u8);

impl<'a> MakeWriter<'a> for Destination {
    type Writer = LineWriter;

    fn make_writer(&'a self) -> LineWriter {
        LineWriter(6)
    }

    fn make_writer_for(&'a self, meta: &Metadata<'_>) -> LineWriter {
        LineWriter(priority(*meta.level()))
    }
}

impl Write for LineWriter {
    fn write(&mut self, line: &[u8]) -> io::Result<usize> {
        match SYSTEM.get() {
            Some(log) => log.write(self.0, &String::from_utf8_lossy(line)),
            None => match FILE.get() {
                Some(file) => file.write(line),
                // At once: somebody waits for it.
                None if ON_OUTPUT.load(Ordering::Relaxed) => {
                    let mut out = io::stdout().lock();
                    out.write_all(line)?;
                    out.flush()?;
                }
                None => return io::stderr().write(line),
            },
        }
        Ok(line.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        io::stderr().flush()
    }
}

/// From which level on adit itself and everything else is heard.
pub(crate) fn filters(level: Level) -> (LevelFilter, LevelFilter) {
    match level {
        Level::Error => (LevelFilter::ERROR, LevelFilter::OFF),
        Level::Warn => (LevelFilter::WARN, LevelFilter::OFF),
        Level::Info => (LevelFilter::INFO, LevelFilter::OFF),
        Level::Debug => (LevelFilter::DEBUG, LevelFilter::WARN),
        Level::Trace => (LevelFilter::TRACE, LevelFilter::DEBUG),
    }
}

/// Time at the beginning of a line.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Stamp {
    Nothing,
    /// Date and time with microseconds, in UTC.
    Utc,
    /// Hour, minute and second of this machine.
    Local,
}

/// Whether the journal is what reads standard error: `stream` is the device and inode of its socket (systemd.exec).
fn reads_standard_error(stream: Option<&str>) -> bool {
    let Some((device, inode)) = stream.and_then(|stream| stream.split_once(':')) else { return false };
    let Ok(stderr) = io::stderr().as_fd().try_clone_to_owned() else { return false };
    let Ok(meta) = std::fs::File::from(stderr).metadata() else { return false };
    device.parse() == Ok(meta.dev()) && inode.parse() == Ok(meta.ino())
}

/// The priority of a line as syslog counts: 0 (emergency) to 7 (debug).
fn priority(level: tracing::Level) -> u8 {
    match level {
        tracing::Level::ERROR => 3,
        tracing::Level::WARN => 4,
        tracing::Level::INFO => 6,
        _ => 7,
    }
}

struct Lines {
    shape: Shape,
    stamp: Stamp,
    /// Whether a line begins with its priority.
    has_priority: bool,
    colour: bool,
}

impl<S, N> FormatEvent<S, N> for Lines
where
    S: Subscriber + for<'a> LookupSpan<'a>,
    N: for<'a> FormatFields<'a> + 'static,
{
    fn format_event(&self, _: &FmtContext<'_, S, N>, mut out: Writer<'_>, event: &Event<'_>) -> fmt::Result {
        let mut fields = Fields::default();
        event.record(&mut fields);
        let mut time = String::new();
        match self.stamp {
            Stamp::Nothing => {}
            Stamp::Utc => SystemTime.format_time(&mut Writer::new(&mut time))?,
            Stamp::Local => {
                let (hour, minute, second) = adit_net::local_time(adit_net::rt::unix_time());
                write!(time, "{hour:02}:{minute:02}:{second:02}")?;
            }
        }
        if self.has_priority {
            write!(out, "<{}>", priority(*event.metadata().level()))?;
        }
        self.write(&mut out, &time, *event.metadata().level(), &fields)
    }
}

impl Lines {
    fn write(
        &self,
        out: &mut dyn fmt::Write,
        time: &str,
        level: tracing::Level,
        fields: &Fields,
    ) -> fmt::Result {
        match self.shape {
            Shape::Text => self.text(out, time, level, fields),
            Shape::Logfmt => logfmt(out, time, level, fields),
            Shape::Mihomo => mihomo(out, time, level, fields),
            Shape::Json => json(out, time, level, fields),
            Shape::Go => go(out, time, fields),
        }
    }

    fn text(
        &self,
        out: &mut dyn fmt::Write,
        time: &str,
        level: tracing::Level,
        fields: &Fields,
    ) -> fmt::Result {
        let (dim, tint, reset) =
            if self.colour { ("\u{1b}[2m", tint(level), "\u{1b}[0m") } else { ("", "", "") };
        if !time.is_empty() {
            write!(out, "{dim}{time}{reset} ")?;
        }
        write!(out, "{tint}{level:>5}{reset} {}", Escaped(&fields.message))?;
        for (name, value) in &fields.others {
            write!(out, " {dim}{name}={reset}{}", Word(value.as_text()))?;
        }
        writeln!(out)
    }
}

fn tint(level: tracing::Level) -> &'static str {
    match level {
        tracing::Level::ERROR => "\u{1b}[1;31m",
        tracing::Level::WARN => "\u{1b}[1;33m",
        tracing::Level::INFO => "\u{1b}[32m",
        _ => "\u{1b}[36m",
    }
}

fn logfmt(out: &mut dyn fmt::Write, time: &str, level: tracing::Level, fields: &Fields) -> fmt::Result {
    if !time.is_empty() {
        write!(out, "time={time} ")?;
    }
    write!(out, "level={level} msg={}", Word(&fields.message))?;
    for (name, value) in &fields.others {
        write!(out, " {name}={}", Word(value.as_text()))?;
    }
    writeln!(out)
}

/// The field by which a line says that the program ends over it.
const FATAL: &str = "fatal";

fn mihomo(out: &mut dyn fmt::Write, time: &str, level: tracing::Level, fields: &Fields) -> fmt::Result {
    let is_fatal = fields.others.iter().any(|(name, _)| *name == FATAL);
    let level = match level {
        _ if is_fatal => "fatal",
        tracing::Level::ERROR => "error",
        tracing::Level::WARN => "warning",
        tracing::Level::INFO => "info",
        _ => "debug",
    };
    if let Some(time) = time.strip_suffix('Z') {
        // Nanoseconds, of which three digits are never known.
        write!(out, "time=\"{time}000Z\" ")?;
    }
    let mut text = fields.message.clone();
    for (name, value) in fields.others.iter().filter(|(name, _)| *name != FATAL) {
        write!(text, " {name}={}", Word(value.as_text()))?;
    }
    writeln!(out, "level={level} msg={}", quoted(&text))
}

fn go(out: &mut dyn fmt::Write, time: &str, fields: &Fields) -> fmt::Result {
    if let Some((date, clock)) = time.split_once('T') {
        let clock = clock.split('.').next().unwrap_or(clock);
        write!(out, "{} {clock} ", date.replace('-', "/"))?;
    }
    write!(out, "{}", Escaped(&fields.message))?;
    for (name, value) in &fields.others {
        write!(out, " {name}={}", Word(value.as_text()))?;
    }
    writeln!(out)
}

fn json(out: &mut dyn fmt::Write, time: &str, level: tracing::Level, fields: &Fields) -> fmt::Result {
    out.write_char('{')?;
    if !time.is_empty() {
        write!(out, "\"time\":{},", quoted(time))?;
    }
    let level = level.as_str().to_ascii_lowercase();
    write!(out, "\"level\":\"{level}\",\"message\":{}", quoted(&fields.message))?;
    for (name, value) in &fields.others {
        match value {
            Value::Bare(text) => write!(out, ",{}:{text}", quoted(name))?,
            Value::Text(text) => write!(out, ",{}:{}", quoted(name), quoted(text))?,
        }
    }
    writeln!(out, "}}")
}

/// A text as a string of JSON, with the hidden characters in its escapes.
fn quoted(text: &str) -> String {
    let json = serde_json::Value::from(text).to_string();
    if !json.chars().any(is_hidden) {
        return json;
    }
    let mut out = String::with_capacity(json.len() + 16);
    for c in json.chars() {
        if is_hidden(c) {
            for unit in c.encode_utf16(&mut [0; 2]) {
                // A string takes everything.
                write!(out, "\\u{unit:04x}").ok();
            }
        } else {
            out.push(c);
        }
    }
    out
}

/// The fields of an event.
#[derive(Default)]
pub(crate) struct Fields {
    message: String,
    others: Vec<(&'static str, Value)>,
}

enum Value {
    /// A number or truth value.
    Bare(String),
    Text(String),
}

impl Value {
    fn as_text(&self) -> &str {
        match self {
            Self::Bare(text) | Self::Text(text) => text,
        }
    }
}

impl Fields {
    /// The event in one line.
    pub(crate) fn line(&self) -> String {
        let mut out = format!("{}", Escaped(&self.message));
        for (name, value) in &self.others {
            // A string takes everything.
            write!(out, " {name}={}", Word(value.as_text())).ok();
        }
        out
    }

    fn text(&mut self, field: &Field, text: String) {
        if field.name() == "message" {
            self.message = text;
        } else {
            self.others.push((field.name(), Value::Text(text)));
        }
    }
}

impl Visit for Fields {
    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        self.text(field, format!("{value:?}"));
    }

    fn record_str(&mut self, field: &Field, value: &str) {
        self.text(field, value.to_owned());
    }

    fn record_u64(&mut self, field: &Field, value: u64) {
        self.others.push((field.name(), Value::Bare(value.to_string())));
    }

    fn record_i64(&mut self, field: &Field, value: i64) {
        self.others.push((field.name(), Value::Bare(value.to_string())));
    }

    fn record_bool(&mut self, field: &Field, value: bool) {
        self.others.push((field.name(), Value::Bare(value.to_string())));
    }
}

/// A value that is one word: in quotes where it would not be otherwise.
struct Word<'a>(&'a str);

impl fmt::Display for Word<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let plain = |c: char| !c.is_whitespace() && !is_hidden(c) && !matches!(c, '"' | '=' | '\\');
        if !self.0.is_empty() && self.0.chars().all(plain) {
            f.write_str(self.0)
        } else {
            // Beyond what Rust escapes by itself, which leaves no hidden character but those that it takes for letters.
            let text = format!("{:?}", self.0);
            write!(f, "{}", Escaped(&text))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn line(shape: Shape, time: bool) -> String {
        let time = if time { "2026-01-02T03:04:05Z" } else { "" };
        let fields = Fields {
            message: "two words\u{1b}".into(),
            others: vec![
                ("n", Value::Bare("5".into())),
                ("who", Value::Text("a b\n".into())),
                ("at", Value::Text("[::1]:5".into())),
            ],
        };
        let mut out = String::new();
        let lines = Lines { shape, stamp: Stamp::Utc, has_priority: false, colour: false };
        lines.write(&mut out, time, tracing::Level::INFO, &fields).unwrap();
        out
    }

    #[test]
    fn shapes() {
        for (shape, time, want) in [
            (Shape::Text, false, " INFO two words\\u{1b} n=5 who=\"a b\\n\" at=[::1]:5\n"),
            (
                Shape::Logfmt,
                true,
                "time=2026-01-02T03:04:05Z level=INFO msg=\"two words\\u{1b}\" n=5 who=\"a b\\n\" at=[::1]:5\n",
            ),
            (
                Shape::Json,
                false,
                "{\"level\":\"info\",\"message\":\"two words\\u001b\",\"n\":5,\"who\":\"a b\\n\",\"at\":\"[::1]:5\"}\n",
            ),
        ] {
            assert_eq!(line(shape, time), want);
        }
        let want = "time=\"2026-01-02T03:04:05000Z\" level=info msg=\"two words\\u001b n=5 who=\\\"a b\\\\n\\\" at=[::1]:5\"\n";
        assert_eq!(line(Shape::Mihomo, true), want);
        assert!(line(Shape::Json, true).starts_with("{\"time\":\"2026-01-02T03:04:05Z\","));
    }

    #[test]
    fn the_journal_is_known_by_its_socket() {
        let stderr = std::fs::File::from(io::stderr().as_fd().try_clone_to_owned().unwrap());
        let (device, inode) = (stderr.metadata().unwrap().dev(), stderr.metadata().unwrap().ino());
        assert!(reads_standard_error(Some(&format!("{device}:{inode}"))));
        for other in [None, Some(""), Some("x:y"), Some(&*format!("{device}:{}", inode + 1))] {
            assert!(!reads_standard_error(other), "{other:?}");
        }
    }

    #[test]
    fn libraries_are_silent_up_to_info() {
        for level in [Level::Error, Level::Warn, Level::Info] {
            assert_eq!(filters(level).1, LevelFilter::OFF);
        }
        assert_eq!(filters(Level::Trace), (LevelFilter::TRACE, LevelFilter::DEBUG));
    }
}
