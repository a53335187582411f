//! Rule providers: lists of names, of networks, or of rules without a target.

use std::sync::Arc;

use adit_model::entries::{Entries, Scope};
use adit_model::files;
use adit_model::map::Map;
use adit_model::rule::{Cidr, Matcher, Resolve};
use adit_model::{self as model, ProviderKind, ProviderSource, Tag};

use super::Context;
use super::rule_line::{self, Params};
use super::subscription::{ProviderFile, WrongKey, download, file_of};
use crate::read::json::JsonValue;
use crate::read::yaml_access;
use crate::rulesets::{self, domain_pattern, read_mrs};

/// Longest file of a provider, in bytes.
const MAX_FILE: usize = 64 << 20;

/// Most rules of a list that are compared one by one.
const MAX_REST: usize = 10_000;

/// A list that rules name, as conditions.
#[derive(Debug, Clone)]
pub(super) struct ProviderMatchers {
    /// Names, and addresses that have a name looked up.
    list: Tag,
    /// Addresses of rules with `no-resolve`.
    quiet: Option<Tag>,
    /// Rules of other types.
    rest: Vec<Matcher>,
    /// It has rules about the client, or rules that cannot be turned round.
    has_rest: bool,
    /// It is a list of names alone, which `src` does not change.
    has_names_alone: bool,
}

impl ProviderMatchers {
    /// A list of names and addresses.
    pub(super) fn of(list: Tag) -> Self {
        Self { list, quiet: None, rest: Vec::new(), has_rest: false, has_names_alone: false }
    }

    /// The condition of a rule that names it.
    ///
    /// # Errors
    /// `src` with a list of rules.
    pub(super) fn matcher(&self, params: Params) -> Result<Matcher, String> {
        if params.source && !self.has_names_alone {
            if self.has_rest {
                return Err("src with a list of rules of other types than IP-CIDR".to_owned());
            }
            let lists = std::iter::once(&self.list).chain(&self.quiet).cloned();
            return Ok(Matcher::SourceSet(lists.collect()));
        }
        let resolve = if params.no_resolve { Resolve::No } else { Resolve::Yes };
        let set = Matcher::Set(vec![self.list.clone()], resolve);
        if self.quiet.is_none() && self.rest.is_empty() {
            return Ok(set);
        }
        let quiet = self.quiet.iter().map(|list| Matcher::Set(vec![list.clone()], Resolve::No));
        Ok(Matcher::Or(std::iter::once(set).chain(quiet).chain(self.rest.iter().cloned()).collect()))
    }
}

/// The kind of lines of a list.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Behaviour {
    Domain,
    Address,
    Classical,
}

impl Behaviour {
    fn of(text: &str) -> Option<Self> {
        match text {
            "domain" => Some(Self::Domain),
            "ipcidr" => Some(Self::Address),
            "classical" => Some(Self::Classical),
            _ => None,
        }
    }

    fn name(self) -> &'static str {
        match self {
            Self::Domain => "domain",
            Self::Address => "ipcidr",
            Self::Classical => "classical",
        }
    }
}

/// The contents of a list.
#[derive(Default)]
struct Contents {
    entries: Entries,
    quiet: Entries,
    rest: Vec<Matcher>,
    /// Lines that are in use; of a binary list, names and networks.
    count: usize,
    /// Lines that are left out, and the first of them with its problem.
    bad: usize,
    first_bad: Option<String>,
    /// Messages do not show its lines.
    is_outside: bool,
}

/// Reads a provider; what is wrong with its contents is a remark, and the rest of it is used.
///
/// # Errors
/// The key that is wrong, and its problem.
pub(crate) fn read(
    context: &mut Context<'_>,
    name: &str,
    value: &JsonValue,
) -> Result<ProviderMatchers, WrongKey> {
    let behavior = yaml_access::text_of(value, "behavior").unwrap_or("none");
    let behaviour = Behaviour::of(behavior)
        .ok_or_else(|| ("behavior", format!("unsupported behavior type: {behavior}")))?;
    let mut contents = Contents::default();
    let (mut source, mut file, mut problem) = (ProviderSource::Inline, None, None);
    match yaml_access::text_of(value, "type") {
        Some("inline") => {
            for item in yaml_access::get(value, "payload").map(yaml_access::items).unwrap_or_default() {
                let line = yaml_access::text(item).unwrap_or_default();
                contents.add(context, behaviour, line, None);
            }
        }
        Some(kind @ ("file" | "http")) => {
            let at = format!("rule-providers.{name}");
            let ProviderFile { path, is_outside } = file_of(context, "rules", kind, value, &at)?;
            contents.is_outside = is_outside.0;
            let is_copy = kind == "http";
            source = match kind {
                "http" => ProviderSource::Http(Box::new(download(context, value, &at)?)),
                _ => ProviderSource::File,
            };
            let format = format_of(value).map_err(|problem| ("format", problem))?;
            problem = if is_copy && !files::has_copy(&path) {
                Some("there is no copy yet: it matches nothing until it has been fetched".to_owned())
            } else {
                let read = if is_copy { rulesets::read_copied } else { rulesets::read_file };
                let read = read(&path, MAX_FILE);
                let read = read.and_then(|bytes| {
                    let read = contents.read(context, behaviour, format, &bytes);
                    read.map_err(|problem| format!("{}: {}", path.display(), is_outside.shown(problem)))
                });
                read.err()
            };
            if let Some(problem) = &problem {
                context.remark(value.at, at, problem.clone(), "");
            }
            file = Some(path);
        }
        other => return Err(("type", format!("unsupported vehicle type: {}", other.unwrap_or("none")))),
    }
    if let Some(first) = &contents.first_bad {
        let problem = format!("{} lines are left out; the first: {first}", contents.bad);
        context.remark(value.at, format!("rule-providers.{name}"), problem, "");
    }
    let format = if source == ProviderSource::Inline { Ok("") } else { format_of(value) };
    let format = format.map_err(|problem| ("format", problem))?;
    let kind = ProviderKind::Rules { behavior: behaviour.name(), format, count: contents.count };
    let problem = problem.map(Into::into);
    context.listed.push(model::Provider { name: name.into(), kind, source, path: file, problem });
    let has_names_alone = behaviour == Behaviour::Domain;
    Ok(ProviderMatchers { has_names_alone, ..contents.finish(context.lists, name) })
}

fn format_of(value: &JsonValue) -> Result<&'static str, String> {
    let format = yaml_access::text_of(value, "format").unwrap_or("yaml");
    let known = ["yaml", "text", "mrs"].into_iter().find(|known| *known == format);
    known.ok_or_else(|| format!("unsupported format type: {format}"))
}

/// The number of lines of a document that are used.
///
/// # Errors
/// When it is no document of this kind.
pub(super) fn check(
    context: &mut Context<'_>,
    behavior: &str,
    format: &str,
    bytes: &[u8],
) -> Result<usize, String> {
    let behaviour = Behaviour::of(behavior).ok_or("unsupported behavior type")?;
    let mut contents = Contents::default();
    contents.read(context, behaviour, format, bytes)?;
    match contents.first_bad {
        // A page about an error is text as well.
        Some(first) if contents.count == 0 => Err(first),
        _ => Ok(contents.count),
    }
}

impl Contents {
    fn read(
        &mut self,
        context: &mut Context<'_>,
        behaviour: Behaviour,
        format: &str,
        bytes: &[u8],
    ) -> Result<(), String> {
        if format == "mrs" || bytes.starts_with(b"SRS") {
            self.entries = if format == "mrs" { read_mrs(bytes)? } else { rulesets::read_srs(bytes)? };
            self.count = self.entries.len();
            return Ok(());
        }
        let text = String::from_utf8_lossy(bytes);
        let lines: Box<dyn Iterator<Item = (usize, &str)>> = match format {
            "text" => Box::new((1..).zip(text.lines())),
            "yaml" => Box::new(payload(&text).ok_or("file must have a `payload` field")?),
            other => return Err(format!("unsupported format type: {other}")),
        };
        for (number, line) in lines {
            let line = line.trim();
            if !line.is_empty() && !line.starts_with('#') && !line.starts_with("//") {
                self.add(context, behaviour, line, Some(number));
            }
        }
        Ok(())
    }

    /// Adds a line, with its number in the file.
    fn add(&mut self, context: &mut Context<'_>, behaviour: Behaviour, line: &str, number: Option<usize>) {
        let result = match behaviour {
            Behaviour::Domain if domain_pattern(&mut self.entries, line) => Ok(()),
            Behaviour::Domain => Err("no name".to_owned()),
            Behaviour::Address => match line.contains('/').then(|| Cidr::parse(line)).flatten() {
                Some(network) => {
                    self.entries.add_range(network.range());
                    Ok(())
                }
                None => Err("no network".to_owned()),
            },
            Behaviour::Classical => self.add_rule(context, line),
        };
        self.count += usize::from(result.is_ok());
        if let Err(problem) = result {
            self.bad += 1;
            let shown: String = line.chars().take(80).collect();
            let is_outside = self.is_outside;
            self.first_bad.get_or_insert_with(|| match number {
                Some(number) if is_outside => format!("line {number}"),
                Some(_) | None => format!("{shown}: {problem}"),
            });
        }
    }

    fn add_rule(&mut self, context: &mut Context<'_>, line: &str) -> Result<(), String> {
        let kind = line.split(',').next().unwrap_or_default().trim();
        if matches!(kind, "MATCH" | "RULE-SET" | "SUB-RULE") {
            return Err(format!("unsupported rule type on rule-set: {kind}"));
        }
        let condition = if kind == "DOMAIN-REGEX" || kind.ends_with("-REGEX") {
            let payload = line.split_once(',').map_or("", |(_, payload)| payload.trim());
            rule_line::condition(context, kind, payload, Params::default(), 0)?
        } else {
            rule_line::child(context, line, 0)?
        };
        let names = |names: Vec<Box<str>>, scope, entries: &mut Entries| {
            names.iter().for_each(|name| entries.add_name(name, scope));
        };
        #[expect(
            clippy::wildcard_enum_match_arm,
            reason = "all but names and networks are compared one by one"
        )]
        match condition.matcher {
            Matcher::Domain(all) => names(all, Scope::Exact, &mut self.entries),
            Matcher::DomainSuffix(all) => names(all, Scope::Tree, &mut self.entries),
            Matcher::DomainKeyword(all) => self.entries.keywords.extend(all),
            Matcher::DomainRegex(all) => self.entries.regexes.extend(all),
            Matcher::IpCidr(all, resolve) => {
                let list = if resolve == Resolve::No { &mut self.quiet } else { &mut self.entries };
                all.iter().for_each(|network| list.add_range(network.range()));
            }
            _ if self.rest.len() >= MAX_REST => {
                return Err(format!("more than {MAX_REST} rules of other types than names and networks"));
            }
            other => self.rest.push(other),
        }
        Ok(())
    }

    fn finish(self, lists: &mut Map<Tag, Arc<Entries>>, name: &str) -> ProviderMatchers {
        let list: Tag = format!("rule-set {name}").into();
        let quiet = self.quiet.has_addresses().then(|| {
            let tag: Tag = format!("rule-set {name} no-resolve").into();
            lists.insert(tag.clone(), Arc::new(self.quiet));
            tag
        });
        let has_rest = !self.rest.is_empty() || self.entries.has_names();
        lists.insert(list.clone(), Arc::new(self.entries));
        ProviderMatchers { list, quiet, rest: self.rest, has_rest, has_names_alone: false }
    }
}

/// The items of a list under `payload:` or `rules:` with the numbers of their lines, read line by line as mihomo does.
pub(super) fn payload(text: &str) -> Option<impl Iterator<Item = (usize, &str)>> {
    let text = text.trim_start_matches('\u{feff}');
    let mut lines = (1..).zip(text.lines());
    lines.find(|(_, line)| {
        let line = line.trim_end();
        line.starts_with("payload:") || line.starts_with("rules:")
    })?;
    Some(lines.filter_map(|(number, line)| {
        let item = line.trim_start().strip_prefix('-')?.trim();
        let quoted = |quote: char| {
            let rest = item.strip_prefix(quote)?;
            rest.split(quote).next()
        };
        let plain = || item.split(" #").next().unwrap_or_default().trim_end();
        Some((number, quoted('\'').or_else(|| quoted('"')).unwrap_or_else(plain)))
    }))
}
