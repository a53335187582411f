//! Rules over the text of files.

use std::collections::BTreeSet;

use super::Finding;
use super::crates::{UNSAFE_CRATE, UNSAFE_FOLDER};
use super::source::{Name, Role, Source};

/// Longest file and function that raise no question, in lines.
const LONG_FILE: usize = 1000;
const LONG_FUNCTION: usize = 100;

/// Folders of adit-proto that every protocol may use.
const SHARED_FOLDERS: &[&str] = &["buf", "crypto", "tune", "wire"];

/// Names that a state machine without I/O must not use: crates, paths, and types wherever they come from.
const IO_CRATES: &[&str] =
    &["getrandom", "libc", "log", "mio", "nix", "rand", "rustix", "socket2", "tokio", "tracing"];
const IO_PATHS: &[&str] = &[
    "std::env",
    "std::fs",
    "std::process",
    "std::thread",
    "Instant::now",
    "SystemTime::now",
    "aws_lc_rs::rand",
];
const IO_NAMES: &[&str] = &[
    "OsRng",
    "SystemRandom",
    "TcpListener",
    "TcpStream",
    "ToSocketAddrs",
    "UdpSocket",
    "UnixDatagram",
    "UnixListener",
    "UnixStream",
];

/// Calls that open a socket or start a child.
const OPENS: &[&str] = &[
    "TcpListener::bind",
    "TcpStream::connect",
    "TcpStream::connect_timeout",
    "UdpSocket::bind",
    "UnixDatagram::bind",
    "UnixDatagram::unbound",
    "UnixListener::bind",
    "UnixStream::connect",
    "process::Command",
];
/// The crates that leave that to adit-net. (adit-sys makes sockets for it, adit-lab drives peers.)
const OPENS_NOTHING: &[&str] = &["adit", "engine", "formats", "model", "proto", "snowflake"];

/// Keys, flags and variables of other programs: the giveaways, not a full list.
const FOREIGN_NAMES: &[&str] = &[
    "SNELL_LISTEN",
    "SNELL_PSK",
    "SS_SERVER_PASSWORD",
    "block-quic",
    "dns-ip-preference",
    "egress-interface",
    "obfs-host",
    "obfs-uri",
    "plugin_opts",
    "server_port",
];
/// The crates that must not know them. (adit-lab writes the files of the peers that it starts.)
const NO_FOREIGN_NAMES: &[&str] = &["adit", "engine", "model", "net", "proto", "snowflake", "sys"];

const LEFTOVERS: &[&str] = &["dbg", "todo", "unimplemented"];

/// The rules that look at one Rust file alone.
pub(super) fn findings(source: &Source, findings: &mut Vec<Finding>) {
    let package = package(&source.path);
    let mut report = |line, rule, what: String| findings.push(Finding::new(&source.path, line, rule, what));
    for name in source.names() {
        let path = name.segments.join("::");
        // A build script is gone when the program runs.
        let product = !source.is_test(name.line) && !source.path.ends_with("/build.rs");
        if name.contains("unsafe") && package != Some(UNSAFE_FOLDER) {
            report(name.line, "unsafe", format!("only {UNSAFE_CRATE} may say unsafe"));
        }
        if name.role == Role::Macro && LEFTOVERS.iter().any(|leftover| name.contains(leftover)) {
            report(name.line, "leftovers", format!("{path}!"));
        }
        if product && package == Some("proto") && names_io(&name) {
            report(
                name.line,
                "sans-io",
                format!("{path}: adit-proto does no I/O and takes time and randomness"),
            );
        }
        if product
            && package.is_some_and(|package| OPENS_NOTHING.contains(&package))
            && OPENS.iter().any(|opens| name.contains(opens))
        {
            report(name.line, "sockets", format!("{path}: only adit-net opens sockets and starts children"));
        }
    }
    if package.is_some_and(|package| NO_FOREIGN_NAMES.contains(&package)) {
        for (line, text) in source.literal_lines() {
            if source.is_test(line) {
                continue;
            }
            for name in FOREIGN_NAMES.iter().filter(|name| has_word(text, name)) {
                report(
                    line,
                    "foreign-names",
                    format!("{name:?}: only adit-formats knows other programs' names"),
                );
            }
        }
    }
}

/// A protocol folder uses no other protocol folder: combinations are composed in adit-engine.
pub(super) fn protocol_folders(sources: &[Source], findings: &mut Vec<Finding>) {
    let folders: BTreeSet<&str> = sources.iter().filter_map(|source| protocol(&source.path)).collect();
    for source in sources {
        let Some(own) = protocol(&source.path) else { continue };
        for name in source.names() {
            let Some(other) = crate_module(source, &name) else { continue };
            if other != own && folders.contains(other) {
                let what =
                    format!("{own} uses {other}: compose them in adit-engine, or sink what they share");
                findings.push(Finding::new(&source.path, name.line, "protocol-folders", what));
            }
        }
    }
}

/// Tracked files are read on other machines, where the paths of this one mean nothing.
pub(super) fn machine_paths(path: &str, text: &str, findings: &mut Vec<Finding>) {
    const PREFIXES: &[&str] = &[concat!("/wo", "rk/"), concat!("/ro", "ot/"), concat!("/ho", "me/")];
    for (index, line) in text.lines().enumerate() {
        for prefix in PREFIXES {
            let starts_path = |(at, _): (usize, &str)| {
                !line[..at].ends_with(|c: char| c.is_alphanumeric() || matches!(c, '.' | '_' | '-' | '}'))
            };
            if line.match_indices(prefix).any(starts_path) {
                findings.push(Finding::new(path, index + 1, "machine-paths", *prefix));
            }
        }
    }
}

/// Files and functions so long that they may be two things.
pub(super) fn questions(source: &Source, questions: &mut Vec<Finding>) {
    let lines = source.counted_lines();
    if lines > LONG_FILE {
        questions.push(Finding::new(&source.path, 1, "long-file", format!("{lines} lines")));
    }
    for function in source.functions().into_iter().filter(|function| function.lines > LONG_FUNCTION) {
        let what = format!("{} has {} lines", function.name, function.lines);
        questions.push(Finding::new(&source.path, function.line, "long-function", what));
    }
}

fn names_io(name: &Name) -> bool {
    IO_CRATES.iter().any(|io| name.goes_into(io))
        || IO_PATHS.iter().chain(IO_NAMES).any(|io| name.contains(io))
        || name.role == Role::BareMethod && name.contains("elapsed")
}

/// The module of the crate root that `name` leads to, spelled `crate::x`, `adit_proto::x` or `super::…::x`.
pub(super) fn crate_module<'a>(source: &Source, name: &'a Name) -> Option<&'a str> {
    let first = name.segments[0].as_str();
    if first == "crate" || first == "adit_proto" {
        return name.segments.get(1).map(String::as_str);
    }
    let supers = name.segments.iter().take_while(|segment| *segment == "super").count();
    // In a test module one `super` more stays inside the file.
    let depth = module_depth(&source.path) + usize::from(source.is_test(name.line));
    (supers > 0 && supers == depth).then(|| name.segments.get(supers).map(String::as_str)).flatten()
}

/// Number of `super` that lead from a file of `crates/<name>/src` to the crate root.
fn module_depth(path: &str) -> usize {
    let inside = path.split('/').skip(3);
    inside.filter(|part| !matches!(*part, "mod.rs" | "lib.rs" | "main.rs")).count()
}

/// The protocol folder (or single-file module) of adit-proto that a file belongs to.
fn protocol(path: &str) -> Option<&str> {
    let inside = path.strip_prefix("crates/proto/src/")?;
    let module = inside.split('/').next()?;
    let module = module.strip_suffix(".rs").unwrap_or(module);
    (module != "lib" && !SHARED_FOLDERS.contains(&module)).then_some(module)
}

/// The folder of the crate that a file belongs to, without `crates/` or `tools/`.
pub(super) fn package(path: &str) -> Option<&str> {
    let inside = path.strip_prefix("crates/").or_else(|| path.strip_prefix("tools/"))?;
    inside.split('/').next()
}

/// Whether `word` stands in `text` and is not part of a longer key.
fn has_word(text: &str, word: &str) -> bool {
    let part = |c: char| c.is_alphanumeric() || c == '_' || c == '-';
    text.match_indices(word)
        .any(|(at, _)| !text[..at].ends_with(part) && !text[at + word.len()..].starts_with(part))
}
