//! `adit completions` and `adit man`: of adit itself, of adit.toml, and of the programs that adit replaces.
//!
//! The flags of those programs are known from their help texts, whose lines have one shape:
//!
//! ```text
//!   -k, --password PASSWORD     what it does, on further lines
//!                               if it is long
//! ```

use std::fs;
use std::path::Path;
use std::sync::LazyLock;

use adit_formats::adit_toml::keys::{self, TableKey, TomlTable};
use adit_formats::shadowsocks::ShadowsocksMethod;
use anyhow::Context as _;
use clap::builder::PossibleValuesParser;
use clap::{Arg, ArgAction, Command, CommandFactory as _, ValueHint};

use crate::commands::cli::{Cli, CompletionsArgs, ManArgs};
use crate::{NAMES, Name, print};

/// Prints or writes completions.
pub(super) fn completions(args: &CompletionsArgs) -> anyhow::Result<()> {
    if let Some(dir) = &args.dir {
        let cannot = || format!("cannot write completions into {}", dir.display());
        clap_complete::generate_to(args.shell, &mut grammar(), "adit", dir).with_context(cannot)?;
        for known in NAMES {
            clap_complete::generate_to(args.shell, &mut command(known), known.name, dir)
                .with_context(cannot)?;
        }
        return Ok(());
    }
    let known = NAMES.iter().find(|known| Some(known.name) == args.program.as_deref());
    let (mut command, name) = match known {
        Some(known) => (command(known), known.name),
        None => (grammar(), "adit"),
    };
    let mut text = Vec::new();
    clap_complete::generate(args.shell, &mut command, name, &mut text);
    print::data(String::from_utf8_lossy(&text))
}

/// The grammar of adit, with what `adit help` takes: commands, and the programs that it replaces.
fn grammar() -> Command {
    let command = Cli::command();
    // A grammar lends its names, and holds others for as long as the process alone: which ends after this.
    let own = |known: &Command| -> &'static str { known.get_name().to_owned().leak() };
    let commands: Vec<_> = command.get_subcommands().map(own).collect();
    let pages = commands.into_iter().chain(NAMES.iter().map(|known| known.name));
    let page = Arg::new("page").value_parser(PossibleValuesParser::new(pages));
    let help = Command::new("help").about("Print the help of a command or a program").arg(page);
    command.disable_help_subcommand(true).subcommand(help)
}

/// Prints a page, or writes all of them.
pub(super) fn man(args: &ManArgs) -> anyhow::Result<()> {
    if let Some(dir) = &args.dir {
        let write = |dir: &Path| -> std::io::Result<()> {
            clap_mangen::generate_to(Cli::command(), dir)?;
            for known in NAMES {
                fs::write(dir.join(format!("{}.1", known.name)), page(command(known))?)?;
            }
            fs::write(dir.join("adit.toml.5"), reference())
        };
        return write(dir).with_context(|| format!("cannot write pages into {}", dir.display()));
    }
    if args.page == "adit.toml" {
        return print::data(reference());
    }
    let known = NAMES.iter().find(|known| known.name == args.page);
    let command = known.map_or_else(Cli::command, command);
    print::data(String::from_utf8_lossy(&page(command)?))
}

fn page(command: Command) -> std::io::Result<Vec<u8>> {
    let mut text = Vec::new();
    clap_mangen::Man::new(command).render(&mut text)?;
    Ok(text)
}

/// A flag of a help text.
#[derive(Debug, PartialEq, Eq)]
struct Flag<'t> {
    /// Its names, with their dashes.
    names: Vec<&'t str>,
    /// The name of its value; empty for a switch.
    value: &'t str,
    help: String,
}

/// The flags that a help text lists.
fn flags(usage: &str) -> Vec<Flag<'_>> {
    let mut all: Vec<Flag<'_>> = Vec::new();
    for line in usage.lines() {
        let body = line.trim();
        if line.starts_with("  -") {
            let (left, help) = body.split_once("  ").unwrap_or((body, ""));
            let mut flag = Flag { names: Vec::new(), value: "", help: help.trim().to_owned() };
            for word in left.split(", ") {
                let (name, value) = word.split_once([' ', '=']).unwrap_or((word, ""));
                flag.names.push(name);
                flag.value = if value.is_empty() { flag.value } else { value.trim() };
            }
            all.push(flag);
        } else if line.starts_with("      ")
            && let Some(last) = all.last_mut()
        {
            let gap = if last.help.is_empty() { "" } else { " " };
            last.help.push_str(gap);
            last.help.push_str(body);
        }
    }
    all
}

/// The grammar of a program, as far as completions and pages need it.
fn command(known: &'static Name) -> Command {
    /// The help texts, in the order of [`NAMES`].
    static USAGES: LazyLock<Vec<String>> =
        LazyLock::new(|| NAMES.iter().map(|known| (known.usage)()).collect());
    let mut usages = NAMES.iter().zip(&*USAGES);
    let usage = usages.find(|(other, _)| other.name == known.name).map_or("", |(_, usage)| usage);
    let about = format!("{}, as adit {} is it", known.name, env!("CARGO_PKG_VERSION"));
    let mut command = Command::new(known.name)
        .about(about)
        .disable_help_flag(true)
        .disable_version_flag(true)
        .disable_help_subcommand(true)
        .after_help("adit(1), adit.toml(5). The page `docs` of adit says what is the same and what differs.");
    for flag in flags(usage) {
        command = command.arg(arg(&flag));
    }
    if known.name == "ssservice" {
        for name in ["local", "server", "manager", "genkey"] {
            command = command.subcommand(Command::new(name));
        }
    }
    command
}

fn arg(flag: &Flag<'static>) -> Arg {
    let mut arg = Arg::new(flag.names[0]).help(flag.help.clone());
    let (mut has_short, mut has_long) = (false, false);
    for name in &flag.names {
        let bare = name.trim_start_matches('-');
        let mut letters = bare.chars();
        match (letters.next(), letters.next()) {
            (Some(letter), None) if has_short => arg = arg.visible_short_alias(letter),
            (Some(letter), None) => (arg, has_short) = (arg.short(letter), true),
            _ if has_long => arg = arg.visible_alias(bare),
            // Go's flags have one dash or two.
            _ => (arg, has_long) = (arg.long(bare), true),
        }
    }
    if flag.value.is_empty() {
        return arg.action(ArgAction::SetTrue);
    }
    let arg = arg.action(ArgAction::Set).value_name(flag.value);
    match flag.value {
        "METHOD" => {
            let methods = PossibleValuesParser::new(ShadowsocksMethod::all().map(ShadowsocksMethod::name));
            arg.value_parser(methods).hide_possible_values(true)
        }
        "FILE" | "PROGRAM" => arg.value_hint(ValueHint::FilePath),
        "DIRECTORY" | "DIR" => arg.value_hint(ValueHint::DirPath),
        "USER" => arg.value_hint(ValueHint::Username),
        _ => arg,
    }
}

/// The page adit.toml(5): every key, from the tables that reading uses.
fn reference() -> String {
    let mut out = format!(
        ".ie \\n(.g .ds Aq \\(aq\n.el .ds Aq '\n.TH adit.toml 5 \"\" \"adit {}\"\n.SH NAME\nadit.toml \\- \
         configuration of adit\n.SH DESCRIPTION\n",
        env!("CARGO_PKG_VERSION")
    );
    for text in [
        "A file in TOML. adit reads adit.toml of the working directory, else /etc/adit/adit.toml, or the files \
         that are named. Unknown keys are errors; all errors of a file are reported together.",
        "Durations are texts with a unit, as \"500ms\", \"10s\", \"1h30m\" or \"7d\". `adit config example` prints \
         a file with every key, `adit check` judges a file.",
    ] {
        out.push_str(&format!("{}\n.PP\n", escaped(text)));
    }
    for table in TomlTable::ALL {
        out.push_str(&format!(".SH \"{}\"\n", escaped(&table.header().replace('"', ""))));
        for key in keys::of(table) {
            out.push_str(&entry(key));
        }
    }
    out.push_str(".SH SEE ALSO\n.BR adit (1)\n");
    out
}

fn entry(key: &TableKey) -> String {
    let TableKey { name, value, default, example, meaning, former, protocols, .. } = key;
    let mut out = format!(".TP\n\\fB{}\\fR = {}\n{}.\n", escaped(name), escaped(value), escaped(meaning));
    let mut more = |what: &str, text: &str| {
        if !text.is_empty() {
            out.push_str(&format!(".br\n{what}: {}\n", escaped(text)));
        }
    };
    more("Of", &protocols.join(", "));
    more("Default", default);
    if !example.is_empty() {
        more("Example", &format!("{name} = {example}"));
    }
    more("Before", former.unwrap_or_default());
    out
}

/// A text that means itself in a page: no escape, no request at the start of a line.
fn escaped(text: &str) -> String {
    let text = text.replace('\\', "\\e").replace('-', "\\-").replace('\'', "\\(aq").replace('`', "");
    if text.starts_with('.') { format!("\\&{text}") } else { text }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_program_has_its_flags() {
        for known in NAMES {
            let usage = (known.usage)();
            let lines = usage.lines().filter(|line| line.starts_with("  -")).count();
            let found = flags(&usage);
            assert_eq!(found.len(), lines, "{}", known.name);
            assert!(lines > 0 || known.name == "ssservice", "{}: {usage}", known.name);
            for flag in &found {
                assert!(!flag.help.is_empty(), "{}: {flag:?}", known.name);
                assert!(flag.names.iter().all(|name| name.starts_with('-')), "{}: {flag:?}", known.name);
                let is_name = |c: char| c.is_ascii_alphanumeric() || c == '-';
                assert!(flag.names.iter().all(|name| name.chars().all(is_name)), "{}: {flag:?}", known.name);
            }
            command(known).debug_assert();
            let text = String::from_utf8(page(command(known)).unwrap()).unwrap();
            assert!(text.contains(".TH") && text.contains(known.name), "{text}");
        }
    }

    #[test]
    fn completions_offer_what_help_takes() {
        let mut text = Vec::new();
        clap_complete::generate(clap_complete::Shell::Bash, &mut grammar(), "adit", &mut text);
        let text = String::from_utf8(text).unwrap();
        let help = text.split_once("        adit__subcmd__help)");
        let help = help.map(|(_, after)| after.split("\n        adit__").next().unwrap());
        let offered = help.unwrap_or_else(|| panic!("{text}"));
        assert!(offered.contains(" ss-server ") && offered.contains(" doctor "), "{offered}");
    }

    #[test]
    fn lines_of_help() {
        let found = flags("usage: x [flags]\n\n  -k, --password TEXT   the key\n      of both\n  -u    on\n");
        let want = [
            Flag { names: vec!["-k", "--password"], value: "TEXT", help: "the key of both".to_owned() },
            Flag { names: vec!["-u"], value: "", help: "on".to_owned() },
        ];
        assert_eq!(found, want);
    }

    #[test]
    fn the_reference_has_every_key() {
        let text = reference();
        for key in keys::all() {
            assert!(text.contains(&format!("\\fB{}\\fR", escaped(key.name))), "{}", key.name);
        }
        // Requests are those written here.
        for line in text.lines().filter(|line| line.starts_with(['.', '\''])) {
            let word = line.split([' ', '\\']).next().unwrap();
            assert!([".ie", ".el", ".TH", ".SH", ".PP", ".TP", ".br", ".BR"].contains(&word), "{line}");
        }
    }
}
