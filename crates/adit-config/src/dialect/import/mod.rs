//! Servers as other clients write them down, read as a client of adit's own: the other direction of
//! [`share`](super::share).
//!
//! ```text
//! Surge        [Proxy] lines                name = snell, host, port, psk=..., version=5
//! mihomo       `proxies` of a file          or one entry, or a list of them
//! sing-box     `outbounds` of a file        or one object, or a list of them
//! links        snell://..., ss://..., ssr://...   one per line, or a subscription: base64 of such lines
//! ```
//!
//! Entries of Snell, Shadowsocks and ShadowsocksR (mihomo) are read, and of a whole file nothing else matters. A field that adit does not know
//! is an error with its place when it says something, since the connection may depend on it; what only concerns how
//! a client shows or tests a server is passed over. Entries of other protocols are left out with a warning each.

mod entry;
mod link;
mod read;
mod surge;

use std::net::SocketAddr;

use self::entry::Entry;
use super::json::{self, Grammar, Node, Value};
use super::shadowsocks::fields::Report;
use super::share::Form;
use super::value::Problem;
use super::{Loaded, yaml};
use crate::diagnostic::{Diagnostic, Diagnostics};
use crate::model::{Config, Inbound, InboundProtocol, Local, LocalProtocols, Outbound, Reply, SocketOptions};
use crate::source::Source;

/// Most servers in one text.
const MAX_SERVERS: usize = 256;

/// Port of the client's local side, as OpenSnell's has it.
const LISTEN: ([u8; 4], u16) = ([127, 0, 0, 1], 1080);

/// The program that writes servers in this form.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Dialect {
    Surge,
    Mihomo,
    SingBox,
    Link,
}

/// Reads a text; `file` is its name in messages. Without `form` the form is found by the text's shape.
///
/// # Errors
/// Everything that is wrong with it, and every field in it that adit does not know.
pub fn parse(form: Option<Form>, file: &str, text: &str) -> Result<Loaded, Diagnostics> {
    let source = Source::new(file, text);
    source.check_len()?;
    let mut report = Report::new(&source);
    let dialect = match form {
        Some(Form::Surge) => Dialect::Surge,
        Some(Form::Mihomo) => Dialect::Mihomo,
        Some(Form::SingBox) => Dialect::SingBox,
        Some(Form::Shadowrocket) => Dialect::Link,
        Some(Form::OpenSnell | Form::Adit) => {
            let problem = Problem::new("`adit convert` reads files of OpenSnell, and adit its own");
            report.error(0, "", problem);
            return Err(report.found);
        }
        None => guess(text),
    };
    let mut outbounds = Vec::new();
    match dialect {
        Dialect::Surge => {
            for (value, path) in surge::entries(&source, &mut report) {
                outbounds.extend(read::server(&mut report, dialect, &value, path));
            }
        }
        Dialect::Mihomo | Dialect::SingBox => {
            let (root, key) = root(&source, dialect)?;
            for (value, path) in entries(&root, key) {
                outbounds.extend(read::server(&mut report, dialect, value, path));
            }
        }
        Dialect::Link => outbounds.extend(link::servers(&source, &mut report)),
    }
    conclude(report, outbounds)
}

/// An entry of mihomo's `proxies` of type `ss` or `snell`, without its name.
///
/// # Errors
/// The first problem with it, or the first field in it that adit does not know.
pub(super) fn mihomo_server(source: &Source<'_>, value: &Value) -> Result<Outbound, Diagnostic> {
    let mut report = Report::new(source);
    let outbound = read::server(&mut report, Dialect::Mihomo, value, String::new());
    first_problem(source, report, outbound)
}

/// The server of one link.
///
/// # Errors
/// The first problem with it.
pub(super) fn one_link(line: &str) -> Result<Outbound, String> {
    let source = Source::new("link", line);
    let mut report = Report::new(&source);
    let found = link::servers(&source, &mut report).into_iter().next();
    first_problem(&source, report, found).map_err(|found| found.problem)
}

/// The same of type `direct`.
///
/// # Errors
/// As [`mihomo_server`].
pub(super) fn mihomo_direct(source: &Source<'_>, value: &Value) -> Result<Outbound, Diagnostic> {
    let mut report = Report::new(source);
    let outbound = read::mihomo_direct(&mut report, value);
    first_problem(source, report, outbound)
}

fn first_problem(
    source: &Source<'_>,
    report: Report<'_>,
    outbound: Option<Outbound>,
) -> Result<Outbound, Diagnostic> {
    let first = report.found.iter().next().cloned();
    match (first, outbound) {
        (None, Some(outbound)) => Ok(outbound),
        (first, _) => Err(first.unwrap_or_else(|| Diagnostic::error(&source.file, "", "it cannot be read"))),
    }
}

fn guess(text: &str) -> Dialect {
    let text = text.trim_start_matches('\u{feff}').trim_start();
    let first = text.lines().next().unwrap_or_default().trim_end();
    let is_section = first.starts_with('[') && first.ends_with(']') && !first.contains(['{', '"', ',']);
    if link::is_link(text) || link::subscription(text).is_some() {
        Dialect::Link
    } else if is_section && first.len() > 2 || text.lines().any(surge::is_entry) {
        Dialect::Surge
    } else if text.starts_with(['{', '[']) && !text.starts_with("[{name:") && !text.starts_with("{name:") {
        Dialect::SingBox
    } else {
        Dialect::Mihomo
    }
}

/// The tree of a text, and the key that servers stand under where it is a whole file.
fn root(source: &Source<'_>, dialect: Dialect) -> Result<(Value, &'static str), Diagnostics> {
    const PROXIES: &str = "proxies";
    if dialect == Dialect::SingBox {
        return Ok((json::parse(source, Grammar::Json5)?, "outbounds"));
    }
    let range = yaml::section(source.text, PROXIES).unwrap_or(0..source.text.len());
    Ok((yaml::parse(source, range)?, PROXIES))
}

/// The entries of a whole file, of a list, or the one that there is, with their paths.
fn entries<'v>(root: &'v Value, key: &str) -> Vec<(&'v Value, String)> {
    let (list, path) = match &root.node {
        Node::Object(members) => match members.iter().find(|member| member.key == key) {
            Some(member) => (&member.value, key),
            None => return vec![(root, String::new())],
        },
        Node::Null | Node::Bool(_) | Node::Number(_) | Node::Text(_) | Node::Array(_) => (root, ""),
    };
    match &list.node {
        Node::Array(values) => {
            values.iter().enumerate().map(|(n, value)| (value, format!("{path}[{n}]"))).collect()
        }
        Node::Null => Vec::new(),
        Node::Bool(_) | Node::Number(_) | Node::Text(_) | Node::Object(_) => vec![(list, path.to_owned())],
    }
}

fn conclude(mut report: Report<'_>, outbounds: Vec<Outbound>) -> Result<Loaded, Diagnostics> {
    if outbounds.is_empty() && !report.found.has_errors() {
        let problem = Problem::new("there is no server of Snell, Shadowsocks or ShadowsocksR in it");
        let hint = "a line of Surge, an entry of mihomo or sing-box, a whole file of theirs, or a link";
        report.error(0, "", problem.hint(hint));
    }
    if outbounds.len() > MAX_SERVERS {
        report.error(0, "", Problem::new(format!("more than {MAX_SERVERS} servers")));
    }
    let local = Local { accepts: LocalProtocols::Mixed, users: Vec::new(), reply: Reply::Early };
    let outbounds = distinct(outbounds);
    // Without one there is an error by now.
    let outbound = outbounds.first().map_or_else(|| "none".into(), |first| first.name.clone());
    let config = Config {
        inbounds: vec![Inbound {
            name: "local".into(),
            listen: vec![SocketAddr::from(LISTEN)],
            socket: SocketOptions::default(),
            outbound,
            allow_private: true,
            protocol: InboundProtocol::Local(local),
        }],
        outbounds,
        ..Config::default()
    };
    Loaded::conclude(config, report.found)
}

/// The same with a number behind names that are taken.
fn distinct(mut outbounds: Vec<Outbound>) -> Vec<Outbound> {
    let mut taken = std::collections::HashSet::new();
    for outbound in &mut outbounds {
        let free = |name: &str| !taken.contains(name);
        if !free(&outbound.name) {
            // Room for the number, within the longest name.
            let head: String = outbound.name.chars().take(58).collect();
            let mut numbered = (2_usize..).map(|n| format!("{head}-{n}"));
            outbound.name =
                numbered.find(|name| free(name)).expect("there are more numbers than names").into();
        }
        taken.insert(outbound.name.to_string());
    }
    outbounds
}

/// The fuzzer's entry: for any bytes, findings lie inside the text, and an accepted text can be written as adit's
/// own file and read again.
#[doc(hidden)]
pub fn fuzz_import(data: &[u8]) {
    let text = String::from_utf8_lossy(data);
    for form in [None, Some(Form::Surge), Some(Form::Mihomo), Some(Form::SingBox), Some(Form::Shadowrocket)] {
        match parse(form, "fuzz", &text) {
            Ok(loaded) => {
                super::assert_inside(&text, &loaded.diagnostics);
                let again = super::native::parse("again.toml", &super::native::to_toml(&loaded.config));
                assert_eq!(again.map(|again| again.config).as_ref(), Ok(&loaded.config));
            }
            Err(found) => super::assert_inside(&text, &found),
        }
    }
}

#[cfg(test)]
mod tests;
