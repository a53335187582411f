//! `adit config`, and `adit import` with its old name `adit convert`.

use std::path::Path;

use adit_formats::adit_toml::{self, keys};
use adit_model::diagnostic::Diagnostics;
use adit_model::shown;
use adit_model::{Config, OutboundProtocol};

use crate::commands::cli::{ConfigCommand, ImportArgs};
use crate::load::detect::{Format, Use};
use crate::load::files::{self, Opened};
use crate::print;

pub(super) fn print(command: &ConfigCommand) -> anyhow::Result<()> {
    match command {
        ConfigCommand::Example => print::data(adit_toml::EXAMPLE),
        ConfigCommand::Docs => print::data(keys::markdown()),
    }
}

/// Prints what another program has written as adit's own file; warnings go to standard error.
pub(crate) fn import(args: &ImportArgs) -> anyhow::Result<()> {
    let path = Path::new(args.source.as_deref().or(args.config.as_deref()).unwrap_or("-"));
    let form = args.form.map(|form| Format::Entries(Some(form)));
    let Opened { name, format, loaded } = files::open(Use::Convert, args.format.or(form), path)?;
    let loaded = if args.strict { loaded.strict()? } else { loaded };
    for finding in &loaded.diagnostics {
        print::remark(finding.to_string().trim_end());
    }
    if format == Format::Native {
        print::remark(format_args!("{name}: adit.toml already"));
    }
    // A file that is kept whole and is but a server needs no words.
    let is_whole_file = !(loaded.diagnostics.is_empty() && loaded.config.rules.is_empty());
    if format != Format::Native && is_whole_file {
        print::remark(format_args!("{name}: kept {}{}", kept(&loaded.config), lost(&loaded.diagnostics)));
    }
    if let Some(count) = choice(&loaded.config) {
        let used = shown::line(&loaded.config.inbounds[0].outbound);
        print::remark(format_args!("{name}: {count} servers; the local port uses {used}"));
    }
    print::data(adit_toml::to_toml(&loaded.config))
}

/// Counts of the parts that were taken over.
fn kept(config: &Config) -> String {
    let groups = config.outbounds.iter().filter(|outbound| outbound.protocol.is_group()).count();
    let counts = [
        (config.inbounds.len(), "inbound"),
        (config.outbounds.len() - groups, "outbound"),
        (groups, "group"),
        (config.rules.len(), "rule"),
        (config.sets.len(), "list"),
    ];
    let counted =
        |(count, word): &(usize, &str)| format!("{count} {word}{}", if *count == 1 { "" } else { "s" });
    counts.iter().filter(|(count, _)| *count > 0).map(counted).collect::<Vec<_>>().join(", ")
}

/// Counts of the parts that were changed or left out, whose places stand above.
fn lost(found: &Diagnostics) -> String {
    let count = |word: &str| found.iter().filter(|one| one.problem.contains(word)).count();
    let of = |(word, verb): (&str, &str)| match count(word) {
        0 => String::new(),
        count => format!("; {verb} {count}, named above"),
    };
    [("changed:", "changed"), ("left out", "left out")].map(of).concat()
}

/// The number of servers that a local port may choose from, if there are several and no rule chooses.
fn choice(config: &Config) -> Option<usize> {
    let first = config.inbounds.first()?;
    let used = config.outbounds.iter().find(|outbound| outbound.name == first.outbound)?;
    // A group chooses by itself.
    let is_local = first.protocol.as_local().is_some() && used.protocol.as_group().is_none();
    let is_server = |protocol: &OutboundProtocol| {
        !matches!(protocol, OutboundProtocol::Direct | OutboundProtocol::Reject | OutboundProtocol::Group(_))
    };
    let count = config.outbounds.iter().filter(|outbound| is_server(&outbound.protocol)).count();
    (is_local && config.rules.is_empty() && count > 1).then_some(count)
}
