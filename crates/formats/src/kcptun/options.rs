//! The options, in one table for flags and files.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::sync::Arc;

use adit_model::diagnostic::{Diagnostic, Diagnostics};
use zeroize::Zeroizing;

use super::{KcptunProgram, Side};
use crate::read::json::{self, Grammar, Node};
use crate::read::source::Source;
use crate::read::usage;
use crate::read::value::{closest, excerpt};

/// Kind of a value.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    Text,
    Number,
    Switch,
}

/// One option.
#[derive(Debug, Clone, Copy)]
struct Spec {
    /// The long flag, and the key of a file unless `json` says another.
    name: &'static str,
    short: &'static str,
    json: &'static str,
    kind: Kind,
    /// The program that has it; both if `None`.
    side: Option<Side>,
    meaning: &'static str,
}

const fn spec(name: &'static str, kind: Kind, meaning: &'static str) -> Spec {
    Spec { name, short: "", json: name, kind, side: None, meaning }
}

const fn of(side: Side, short: &'static str, spec: Spec) -> Spec {
    Spec { short, side: Some(side), ..spec }
}

#[rustfmt::skip]
const SPECS: &[Spec] = {
    use Kind::{Number, Switch, Text};
    use Side::{Client, Server};
    &[
        of(Client, "l", spec("localaddr", Text, "where to listen, host:port or a unix socket (default :12948)")),
        of(Client, "r", spec("remoteaddr", Text, "the server, host:port or host:first-last (default vps:29900)")),
        of(Server, "l", spec("listen", Text, "where to listen, host:port or host:first-last (default :29900)")),
        of(Server, "t", spec("target", Text, "where streams go, host:port or a unix socket (default 127.0.0.1:12948)")),
        spec("key", Text, "what both ends know [KCPTUN_KEY]"),
        spec("crypt", Text, "the cipher (default aes)"),
        spec("mode", Text, "fast3, fast2, fast, normal or manual (default fast)"),
        Spec { json: "qpp", ..spec("QPP", Switch, "an additional cipher around each stream") },
        Spec { json: "qpp-count", ..spec("QPPCount", Number, "its permutations (default 61)") },
        of(Client, "", spec("conn", Number, "sessions that streams are spread over (default 1)")),
        of(Client, "", spec("autoexpire", Number, "seconds after which a session takes no further streams, 0 is never (default 0)")),
        of(Client, "", spec("scavengettl", Number, "seconds that such a session may go on for (default 600)")),
        spec("mtu", Number, "length of datagrams (default 1350)"),
        spec("ratelimit", Number, "bytes per second of one session (default 0, none)"),
        spec("sndwnd", Number, "segments under way at most (default: measured)"),
        spec("rcvwnd", Number, "segments that may wait here (default: measured)"),
        Spec { short: "ds", ..spec("datashard", Number, "data packets of a group with parity (default: no parity)") },
        Spec { short: "ps", ..spec("parityshard", Number, "parity packets of a group (default: no parity)") },
        spec("dscp", Number, "traffic class of datagrams (default 0)"),
        spec("nocomp", Switch, "no compression; both ends must agree"),
        spec("acknodelay", Switch, "acknowledges after each datagram"),
        spec("nodelay", Number, "mode manual: 1 for short timeouts (default 0)"),
        spec("interval", Number, "mode manual: milliseconds between flushes (default 50)"),
        spec("resend", Number, "mode manual: later acknowledgements after which a segment is sent again (default 0)"),
        spec("nc", Number, "mode manual: 1 for no congestion window (default 0)"),
        spec("sockbuf", Number, "buffers of the socket in bytes (default 4194304)"),
        spec("smuxver", Number, "version of smux, 1 or 2"),
        spec("smuxbuf", Number, "bytes that wait for all readers of a session (default: measured)"),
        spec("framesize", Number, "longest frame (default 8192)"),
        spec("streambuf", Number, "window of one stream in bytes (default: measured)"),
        spec("keepalive", Number, "seconds between signs of life (default 10)"),
        spec("closewait", Number, "server: seconds that an answer may go on after its stream was ended (default 30)"),
        spec("snmplog", Text, "file for counters, the name a layout of Go's, for instance ./snmp-20060102.log"),
        spec("snmpperiod", Number, "seconds between two rows of it (default 60)"),
        spec("log", Text, "file for log lines (default: standard error)"),
        spec("quiet", Switch, "no lines about streams"),
        spec("tcp", Switch, "packets that look like TCP, by raw sockets; a server takes UDP as well"),
        spec("pprof", Switch, "a profiler of Go's: has no effect"),
        Spec { json: "", ..spec("c", Text, "a JSON file, which overrides flags") },
    ]
};

/// A value as it was given.
#[derive(Clone, PartialEq, Eq)]
enum Value {
    Text(Zeroizing<String>),
    Number(i64),
    Switch(bool),
}

/// Values from a command line and a file.
#[derive(Clone, Default)]
pub struct KcptunValues {
    values: BTreeMap<&'static str, Value>,
    /// Line and column of those that come from the file.
    places: BTreeMap<&'static str, (usize, usize)>,
}

/// Keys are not shown.
impl std::fmt::Debug for KcptunValues {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_set().entries(self.values.keys()).finish()
    }
}

/// Action that a command line asks for.
#[derive(Debug, Clone)]
pub enum KcptunInvocation {
    /// To run.
    Run(KcptunValues),
    /// To print [`usage`].
    Help,
    /// To print the version.
    Version,
}

/// The flags of a program, for a person.
pub fn usage(program: KcptunProgram) -> String {
    let mut out = usage::head(program.name(), "kcptun");
    for spec in SPECS.iter().filter(|spec| is_of(spec, program)) {
        let short = if spec.short.is_empty() { String::new() } else { format!(", -{}", spec.short) };
        let value = match spec.kind {
            Kind::Text => " TEXT",
            Kind::Number => " NUMBER",
            Kind::Switch => "",
        };
        out.push_str(&usage::flag(&format!("-{}{short}{value}", spec.name), spec.meaning, 28));
    }
    out.push_str(&usage::flag("-h, -help", "prints this text", 28));
    out.push_str(&usage::flag("-v, -version", "prints the version", 28));
    out
}

/// The keys of files, of both programs.
#[cfg(test)]
pub(super) fn keys() -> impl Iterator<Item = &'static str> {
    SPECS.iter().map(|spec| spec.json).filter(|key| !key.is_empty())
}

fn is_of(spec: &Spec, program: KcptunProgram) -> bool {
    spec.side.is_none_or(|side| side == program.side)
}

/// Reads the arguments behind the program's name.
///
/// # Errors
/// The first that is wrong; the programs print it with their help, and exit with status 0.
pub fn flags(
    program: KcptunProgram,
    args: impl IntoIterator<Item = OsString>,
) -> Result<KcptunInvocation, Diagnostics> {
    let file: Arc<str> = "command line".into();
    let wrong = |name: &str, problem: &str| {
        let key = format!("{} -{}", program.name(), excerpt(name));
        Diagnostics::from(Diagnostic::error(&file, key, problem))
    };
    let mut args = args.into_iter();
    let mut flags = KcptunValues::default();
    while let Some(arg) = args.next() {
        let arg = arg.to_string_lossy().into_owned();
        let Some(body) = arg.strip_prefix("--").or_else(|| arg.strip_prefix('-')).filter(|b| !b.is_empty())
        else {
            return Ok(if matches!(&*arg, "help" | "h") {
                KcptunInvocation::Help
            } else {
                KcptunInvocation::Run(flags)
            });
        };
        let (name, value) = match body.split_once('=') {
            Some((name, value)) => (name, Some(value.to_owned())),
            None => (body, None),
        };
        match name {
            "h" | "help" => return Ok(KcptunInvocation::Help),
            "v" | "version" => return Ok(KcptunInvocation::Version),
            _ => {}
        }
        let known = SPECS.iter().find(|spec| {
            is_of(spec, program) && (spec.name == name || !spec.short.is_empty() && spec.short == name)
        });
        let Some(spec) = known else { return Err(wrong(name, "no such flag")) };
        let value = match value {
            None if spec.kind == Kind::Switch => "true".to_owned(),
            None => match args.next() {
                Some(next) => next.to_string_lossy().into_owned(),
                None => return Err(wrong(name, "a value must follow")),
            },
            Some(value) => value,
        };
        let value = match spec.kind {
            Kind::Text => Some(Value::Text(value.into())),
            Kind::Number => value.parse().ok().map(Value::Number),
            Kind::Switch => truth(&value).map(Value::Switch),
        };
        let Some(value) = value else {
            let kind = if spec.kind == Kind::Number { "not a number" } else { "neither true nor false" };
            return Err(wrong(name, kind));
        };
        flags.values.insert(spec.name, value);
    }
    Ok(KcptunInvocation::Run(flags))
}

fn truth(text: &str) -> Option<bool> {
    match text {
        "1" | "t" | "T" | "TRUE" | "true" | "True" => Some(true),
        "0" | "f" | "F" | "FALSE" | "false" | "False" => Some(false),
        _ => None,
    }
}

impl KcptunValues {
    /// The file that overrides flags.
    pub fn file(&self) -> Option<&str> {
        self.text("c").filter(|path| !path.is_empty())
    }

    /// The key of an option in findings, and its place in the file; a flag has none.
    pub(super) fn place(&self, name: &'static str) -> (&'static str, (usize, usize)) {
        let Some(place) = self.places.get(name) else { return (name, (0, 0)) };
        (SPECS.iter().find(|spec| spec.name == name).map_or(name, |spec| spec.json), *place)
    }

    pub(super) fn text(&self, name: &str) -> Option<&str> {
        match self.values.get(name)? {
            Value::Text(text) => Some(text),
            Value::Number(_) | Value::Switch(_) => None,
        }
    }

    pub(super) fn number(&self, name: &str) -> Option<i64> {
        match self.values.get(name)? {
            Value::Number(number) => Some(*number),
            Value::Text(_) | Value::Switch(_) => None,
        }
    }

    pub(super) fn is_on(&self, name: &str) -> bool {
        self.values.get(name) == Some(&Value::Switch(true))
    }

    /// The key comes from the environment if no flag gives it.
    pub(super) fn default_key(&mut self, key: Option<Zeroizing<String>>) {
        if let Some(key) = key {
            self.values.entry("key").or_insert(Value::Text(key));
        }
    }

    /// Lets a file override what is there. Gives warnings about keys that have no effect, as in kcptun itself.
    ///
    /// # Errors
    /// Text that is no JSON, and values of another type than the option's.
    pub(super) fn read(
        &mut self,
        program: KcptunProgram,
        source: &Source<'_>,
    ) -> Result<Diagnostics, Diagnostics> {
        source.check_len()?;
        let document = json::parse_first(source, Grammar::Lax)?;
        let Node::Object(members) = document.node else {
            let error = Diagnostic::error(&source.file, "", "no object");
            return Err(error.at(source.locate(document.at)).into());
        };
        let mut found = Diagnostics::new();
        let mut seen = std::collections::HashSet::new();
        for member in members {
            let matching = |spec: &&Spec| {
                is_of(spec, program) && !spec.json.is_empty() && spec.json.eq_ignore_ascii_case(&member.key)
            };
            let Some(spec) = SPECS.iter().find(matching) else {
                found.push(unknown_key(program, source, &member.key, member.at));
                continue;
            };
            let at = source.locate(member.value.at);
            if !seen.insert(spec.name) {
                let problem = "given twice; the last one counts";
                found.push(Diagnostic::warning(&source.file, spec.json, problem).at(at));
            }
            let value = match (spec.kind, member.value.node) {
                (_, Node::Null) => {
                    let problem = "null counts as not written";
                    found.push(Diagnostic::warning(&source.file, spec.json, problem).at(at));
                    continue;
                }
                (Kind::Text, Node::Text(text)) => Some(Value::Text(text)),
                (Kind::Number, Node::Number(number)) => number.parse().ok().map(Value::Number),
                (Kind::Switch, Node::Bool(on)) => Some(Value::Switch(on)),
                _ => None,
            };
            match value {
                Some(value) => {
                    self.values.insert(spec.name, value);
                    self.places.insert(spec.name, at);
                }
                None => {
                    let wanted = match spec.kind {
                        Kind::Text => "not a text",
                        Kind::Number => "not a whole number",
                        Kind::Switch => "neither true nor false",
                    };
                    let error = Diagnostic::error(&source.file, spec.json, wanted);
                    found.push(error.at(at));
                }
            }
        }
        if found.has_errors() { Err(found) } else { Ok(found) }
    }
}

/// The warning about a key that has no effect; its hint names the option that may be meant.
fn unknown_key(program: KcptunProgram, source: &Source<'_>, key: &str, at: usize) -> Diagnostic {
    let warning = Diagnostic::warning(&source.file, excerpt(key), "unknown key, it has no effect");
    let warning = warning.at(source.locate(at));
    let other = SPECS.iter().find(|spec| !spec.json.is_empty() && spec.json.eq_ignore_ascii_case(key));
    if other.is_some_and(|spec| !is_of(spec, program)) {
        return warning.hint("it is an option of the other end");
    }
    let known =
        SPECS.iter().filter(|spec| is_of(spec, program) && !spec.json.is_empty()).map(|spec| spec.json);
    match closest(&key.to_ascii_lowercase(), known) {
        Some(name) => warning.hint(format!("did you mean {name}?")),
        None => warning,
    }
}
