//! The flags of the programs that also run by themselves.

use std::ffi::OsString;

use adit_model::diagnostic::{Diagnostic, Diagnostics};
use zeroize::Zeroizing;

use super::PluginProgram;
use crate::read::usage;
use crate::read::value::excerpt;

/// One flag.
struct Spec {
    name: &'static str,
    takes_value: bool,
    programs: &'static [PluginProgram],
    meaning: &'static str,
}

const CLIENTS: &[PluginProgram] = &[PluginProgram::GqClient, PluginProgram::ObfsLocal];
const SERVERS: &[PluginProgram] = &[PluginProgram::GqServer, PluginProgram::ObfsServer];
const QUIET: &[PluginProgram] = &[PluginProgram::GqClient, PluginProgram::GqServer];
const SIMPLE: &[PluginProgram] = &[PluginProgram::ObfsLocal, PluginProgram::ObfsServer];

const fn value(name: &'static str, programs: &'static [PluginProgram], meaning: &'static str) -> Spec {
    Spec { name, takes_value: true, programs, meaning }
}

const fn switch(name: &'static str, programs: &'static [PluginProgram], meaning: &'static str) -> Spec {
    Spec { name, takes_value: false, programs, meaning }
}

#[rustfmt::skip]
const SPECS: &[Spec] = &[
    value("s", CLIENTS, "host of the server"),
    value("p", CLIENTS, "port of the server (gq-client: default 443)"),
    value("b", CLIENTS, "address to listen on (default 127.0.0.1)"),
    value("l", CLIENTS, "port to listen on"),
    value("s", SERVERS, "address to listen on (default 0.0.0.0)"),
    value("p", SERVERS, "port to listen on (gq-server: default 443)"),
    value("r", SERVERS, "host:port of the Shadowsocks server"),
    value("c", QUIET, "a JSON file, or options as key=value;key=value"),
    value("obfs", SIMPLE, "http or tls"),
    value("obfs-host", &[PluginProgram::ObfsLocal], "host that the obfs names (default cloudfront.net)"),
    value("failover", &[PluginProgram::ObfsServer], "host:port that gets the connections of other clients"),
    switch("fast-open", SIMPLE, "TCP Fast Open"),
    switch("mptcp", SIMPLE, "Multipath TCP"),
    switch("v", SIMPLE, "logs more"),
    value("t", SIMPLE, "has no effect: the Shadowsocks program ends silent connections"),
    value("n", SIMPLE, "has no effect: the limit of open files is raised as far as it goes"),
];

/// The flags that a command line has given.
#[derive(Clone, Default)]
pub struct PluginFlags(Vec<(&'static str, Zeroizing<String>)>);

/// Values may hold a key.
impl std::fmt::Debug for PluginFlags {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_list().entries(self.0.iter().map(|(name, _)| name)).finish()
    }
}

/// The action that a command line asks for.
#[derive(Debug, Clone)]
pub enum PluginInvocation {
    /// To run.
    Run(PluginFlags),
    /// To print [`usage`].
    Help,
    /// To print the version.
    Version,
}

impl PluginFlags {
    pub(super) fn get(&self, name: &str) -> Option<&str> {
        self.0.iter().rev().find(|(known, _)| *known == name).map(|(_, value)| value.as_str())
    }

    /// The value of `-c`: options, or the path of a file.
    pub fn options(&self) -> &str {
        self.get("c").unwrap_or_default()
    }

    /// The flags whose names are those of options.
    pub(super) fn as_options(&self) -> impl Iterator<Item = (&'static str, &str)> {
        let is_option = |name: &str| name.len() > 1 || name == "v";
        self.0.iter().filter(move |(name, _)| is_option(name)).map(|(name, value)| (*name, value.as_str()))
    }
}

/// The flags of a program, for a person.
pub fn usage(program: PluginProgram) -> String {
    let peer = if SIMPLE.contains(&program) { "simple-obfs 0.0.5" } else { "GoQuiet" };
    let mut out = usage::head(program.name(), peer);
    for spec in SPECS.iter().filter(|spec| spec.programs.contains(&program)) {
        let dashes = if spec.name.len() == 1 { "-" } else { "--" };
        let value = if spec.takes_value { " TEXT" } else { "" };
        out.push_str(&usage::flag(&format!("{dashes}{}{value}", spec.name), spec.meaning, 22));
    }
    out.push_str(&usage::flag("-h", "prints this text", 22));
    out.push_str(&usage::flag("-V", "prints the version", 22));
    out.push('\n');
    out.push_str(&usage::paragraph(
        "A Shadowsocks program that starts it as its plugin sets SS_REMOTE_HOST and others: no flags are needed then.",
    ));
    out
}

/// Reads the arguments behind the program's name.
///
/// # Errors
/// The first that is wrong.
pub fn flags(
    program: PluginProgram,
    args: impl IntoIterator<Item = OsString>,
) -> Result<PluginInvocation, Diagnostics> {
    let wrong = |name: &str, problem: &str| {
        let key = format!("{} {}", program.name(), excerpt(name));
        Diagnostics::from(Diagnostic::error(&"command line".into(), key, problem))
    };
    let mut args = args.into_iter().map(|arg| Zeroizing::new(arg.to_string_lossy().into_owned()));
    let mut flags = PluginFlags::default();
    while let Some(arg) = args.next() {
        let body = arg.strip_prefix("--").or_else(|| arg.strip_prefix('-')).filter(|body| !body.is_empty());
        let Some(body) = body else { return Err(wrong(&arg, "not a flag")) };
        let (name, inline) = body.split_once('=').map_or((body, None), |(name, value)| (name, Some(value)));
        let spec = SPECS.iter().find(|spec| spec.name == name && spec.programs.contains(&program));
        match (spec, name) {
            (Some(spec), _) if !spec.takes_value => flags.0.push((spec.name, Zeroizing::default())),
            (Some(spec), _) => {
                let value = inline.map(|value| Zeroizing::new(value.to_owned())).or_else(|| args.next());
                let value = value.ok_or_else(|| wrong(&arg, "a value must follow"))?;
                flags.0.push((spec.name, value));
            }
            (None, "h" | "help") => return Ok(PluginInvocation::Help),
            (None, "v" | "V" | "version") => return Ok(PluginInvocation::Version),
            (None, _) => return Err(wrong(&arg, "no such flag")),
        }
    }
    Ok(PluginInvocation::Run(flags))
}
