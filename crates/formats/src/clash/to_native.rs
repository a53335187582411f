//! A whole file as `adit.toml` has it: ports, servers, groups, rules, lists, DNS.
//!
//! A part that `adit.toml` has no words for is left out with a warning at its place: a rule costs that rule. Lists of databases
//! (`GEOSITE`, `GEOIP`, `IP-ASN`) become sets that name the database, which is not opened here.

#![expect(clippy::wildcard_enum_match_arm, reason = "each match is about a few of many conditions")]

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use adit_model::diagnostic::{Diagnostic, Diagnostics, Severity};
use adit_model::entries::Entries;
use adit_model::map::Map;
use adit_model::rule::{FileLine, Matcher, Resolve, Rule, Set, SetFormat, Verdict};
use adit_model::{
    Config, Dial, Download, Inbound, InboundProtocol, OutboundList, OutboundProtocol, Provider, ProviderKind,
    ProviderSource, Tag, Uses,
};

use super::geo::Wishes;
use super::provider::ProviderMatchers;
use super::{ClashSetup, Context, LAN, Target, conclude, proxy, read, rules, tables};
use crate::read::json::{JsonValue, Node};
use crate::read::kinds::{self, Typing, ValueKind, WrongKind};
use crate::read::loaded::Loaded;
use crate::read::source::Source;
use crate::read::yaml;
use crate::read::yaml_access;
use crate::rulesets::find_file;
use crate::{adit_toml, import};

/// Outbounds that this family has without being told, each left out where nothing leads to it. The group of all comes
/// first, since it leads to others.
const BUILT_IN: [&str; 7] =
    [proxy::GLOBAL, "COMPATIBLE", "PASS", proxy::PASS_RULE, "REJECT-DROP", proxy::REJECT, proxy::DIRECT];

/// Lines as rules of `adit.toml`, with the sets that they name.
pub(crate) struct RuleLines {
    pub(crate) rules: Vec<Rule>,
    pub(crate) sets: Vec<Set>,
    pub(crate) found: Diagnostics,
    /// The target of the line that matches everything.
    pub(crate) last: Option<Tag>,
}

/// Reads rule lines alone. `targets` are the outbounds by the names that the lines use, `named` the lists; `home` is the folder
/// of databases.
/// A line that is none, or that `adit.toml` has no words for, is left out with a warning.
pub(crate) fn rule_lines(
    source: &Source<'_>,
    path: &str,
    items: &[JsonValue],
    targets: &Map<String, Tag>,
    named: &[(String, Set)],
    home: &Path,
) -> RuleLines {
    let mut lists = Map::new();
    let mut context = Context::new(source, home, &mut lists);
    for (name, tag) in targets.iter().filter(|(name, _)| *name != proxy::REJECT) {
        let target = Target { verdict: Verdict::Outbound(tag.clone()), udp: true, leaf: None };
        context.targets.insert(name.clone(), target);
    }
    for (name, set) in named {
        context.providers.insert(name.clone(), ProviderMatchers::of(set.name.clone()));
    }
    let parsed = rules::read(&mut context, path, items);
    let mut flat = rules::Flat::default();
    flat.main(&mut context, &parsed, &rules::Lists::new());
    let sets = named_lists(&mut context);
    let mut found = left_out(context.report.found);
    let mut rules = without_wordless(flat.rules, &[], path, &mut found);
    let last = default_of(&mut rules);
    RuleLines { rules, sets, found, last }
}

/// Reads a file; `home` is the folder of its lists. The result can be written and read again.
///
/// # Errors
/// A text that is no file of this family, or the first part of it that `adit.toml` cannot hold though it should.
pub fn convert_file(file: &str, text: &str, home: &Path) -> Result<Loaded, Diagnostics> {
    let source = Source::new(file, text);
    let mut root = yaml::parse_within(&source, 0..text.len(), yaml::LARGE)?;
    if !matches!(root.node, Node::Object(_)) {
        return Err(Diagnostic::error(&source.file, "", "expected the keys of a configuration").into());
    }
    // mihomo does not start with such a file either, so that nothing says what it would do.
    let wrong = kinds::settle(&mut root, &ValueKind::Map(tables::ROOT), Typing::Loose, "");
    let mut refused = Diagnostics::new();
    for WrongKind { at, path, problem } in wrong {
        refused.push(Diagnostic::error(&source.file, path, problem).at(source.locate(at)));
    }
    if refused.has_errors() {
        return Err(refused);
    }
    let (mut config, mut found) = settings(&source, &root, home);
    let decides = ["rules", "proxy-groups"].iter().any(|key| yaml_access::get(&root, key).is_some());
    if config.inbounds.is_empty() && config.capture.is_none() && decides {
        config.inbounds = import::inbounds(&[], &proxy::DIRECT.into());
        let problem = "changed: the file has no port, so 127.0.0.1:1080 takes its place";
        found.push(Diagnostic::warning(&source.file, "mixed-port", problem));
    }
    for provider in std::mem::take(&mut config.providers) {
        let key = match &provider.kind {
            ProviderKind::Outbounds { members, .. } => {
                outbound_list(&mut config, &provider, members, &source, &root, &mut found);
                continue;
            }
            ProviderKind::Rules { behavior, .. } => match set(&provider, behavior, &root) {
                Some(set) => {
                    config.sets.push(set);
                    continue;
                }
                None => format!("rule-providers.{}", provider.name),
            },
            // Databases are not opened, and not followed.
            ProviderKind::Database { .. } => continue,
        };
        let problem = "left out: it is empty, or its server asks for more than an address";
        found.push(Diagnostic::warning(&source.file, key, problem));
    }
    config.facade = None;
    if let Some(hosts) = yaml_access::members(&root).iter().find(|member| member.key == "hosts") {
        let problem = "changed: a rule with no-resolve does not see the address of a host that stands here";
        let found_here = Diagnostic::warning(&source.file, "hosts", problem);
        found.push(found_here.at(source.locate(hosts.at)));
    }
    (config.dns.hosts_are_known, config.dns.system_hosts_are_known) = (false, false);
    let rules = std::mem::take(&mut config.rules);
    let rules = within_reach(rules, &config, &mut found);
    config.lists.clear();
    let rules = decided(rules, &config, &mut found);
    config.rules = without_wordless(rules, &config.inbounds, "rules", &mut found);
    if let Some(last) = default_of(&mut config.rules) {
        send_rest(&mut config, &last);
    }
    drop_refused(&mut config, &mut found);
    prune(&mut config);
    for outbound in &mut config.outbounds {
        if matches!(outbound.protocol, OutboundProtocol::Refuse(_)) {
            outbound.protocol = OutboundProtocol::Reject;
        }
    }
    match adit_toml::parse("adit.toml", &adit_toml::to_toml(&config)) {
        Ok(again) => remark_lost(&source, &config, &again.config, &mut found),
        Err(wrong) => {
            let first = wrong.iter().next();
            let why = first.map_or_else(String::new, |first| format!("{}: {}", first.key, first.problem));
            let problem = format!("adit.toml cannot hold all of it: {why}");
            return Err(Diagnostic::error(&source.file, "", problem).into());
        }
    }
    Loaded::conclude(config, found)
}

/// Reads the file, its databases unopened; errors become warnings about what is left out.
fn settings(source: &Source<'_>, root: &JsonValue, home: &Path) -> (Config, Diagnostics) {
    let mut lists = Map::new();
    let mut context = Context::new(source, home, &mut lists);
    context.agent = super::subscription::agent(root);
    let mut setup = read(&mut context, root);
    let sets = named_lists(&mut context);
    let fetches = ["geox-url", "geo-auto-update"];
    for member in yaml_access::members(root).iter().filter(|member| fetches.contains(&&*member.key)) {
        if yaml_access::text(&member.value) != Some("false") {
            let problem = "left out: with adit.toml no database is fetched";
            context.remark(member.at, &*member.key, problem, "replace the files by a timer of the system");
        }
    }
    let mut found = left_out(conclude(context, &mut setup));
    let ClashSetup { mut config, refused, diagnostics, .. } = setup;
    found.append(diagnostics);
    found.append(left_out(refused));
    config.lists = lists;
    config.sets.extend(sets);
    (config, found)
}

/// The same findings as warnings; an error says that its part is left out.
fn left_out(found: Diagnostics) -> Diagnostics {
    let mut all = Diagnostics::new();
    for one in &found {
        let problem = match one.severity {
            Severity::Error => format!("left out: {}", one.problem),
            Severity::Warning => one.problem.clone(),
        };
        all.push(Diagnostic { severity: Severity::Warning, problem, ..one.clone() });
    }
    all
}

/// The lists of databases that were asked for, as sets, each with the place of its database.
fn named_lists(context: &mut Context<'_>) -> Vec<Set> {
    let home = context.home;
    let place = |names: &[&str]| -> (PathBuf, bool) {
        let found = find_file(home, names);
        let is_there = found.is_some();
        (found.unwrap_or_else(|| home.join(names[0])), is_there)
    };
    let countries = ["Country.mmdb", "geoip.metadb", "geoip.db"];
    let Wishes { sites, countries: codes, numbers } = std::mem::take(&mut context.wishes);
    let mut sets = Vec::new();
    for (kind, codes, names) in [
        ("geosite", &sites, &["GeoSite.dat"][..]),
        ("geoip", &codes, &countries),
        ("asn", &numbers, &["ASN.mmdb"]),
    ] {
        let Some((first, wish)) = codes.iter().min_by_key(|(_, wish)| wish.at) else { continue };
        let (path, is_there) = place(names);
        if !is_there {
            let problem = format!("lists of {kind} ({first} and others) need {}", path.display());
            let hint = "put the database there, or change `path` of the [[set]]";
            context.remark(wish.at, wish.path.clone(), problem, hint);
        }
        for code in codes.keys() {
            let name = format!("{kind} {code}").into();
            let format = if kind == "geosite" { SetFormat::Domains } else { SetFormat::Any };
            let list = Some(code.as_str().into());
            let at = FileLine::file("adit.toml");
            let (path, entries) = (path.clone(), Vec::new());
            sets.push(Set { name, path, format, download: None, entries, list, at });
        }
    }
    let lan: Tag = "geoip lan".into();
    if context.lists.remove(&lan).is_some() {
        let entries = LAN.iter().map(|network| (*network).into()).collect();
        let (path, format, at) = (PathBuf::new(), SetFormat::Addresses, FileLine::file("adit.toml"));
        sets.push(Set { name: lan, path, format, download: None, entries, list: None, at });
    }
    sets
}

/// Follows a list of outbounds as the file does; one that stands in the file, or whose server asks for more than an address,
/// becomes the outbounds that it holds.
fn outbound_list(
    config: &mut Config,
    provider: &Provider,
    members: &[Tag],
    source: &Source<'_>,
    root: &JsonValue,
    found: &mut Diagnostics,
) {
    let key = format!("proxy-providers.{}", provider.name);
    let text = |value: Option<&JsonValue>, key: &str| -> Box<str> {
        value.and_then(|value| yaml_access::text_of(value, key)).unwrap_or_default().into()
    };
    let written =
        yaml_access::get(root, "proxy-providers").and_then(|all| yaml_access::get(all, &provider.name));
    let changes = written.and_then(|value| yaml_access::get(value, "override"));
    let known = ["additional-prefix", "dialer-proxy"];
    let is_plain = changes
        .is_none_or(|value| yaml_access::members(value).iter().all(|member| known.contains(&&*member.key)));
    let download = match &provider.source {
        ProviderSource::Inline => return,
        ProviderSource::File => None,
        ProviderSource::Http(download) => Some(download.clone()),
    };
    let is_agent = |(name, _): &(Box<str>, _)| name.eq_ignore_ascii_case("User-Agent");
    if !is_plain || !download.iter().all(|download| download.headers.iter().all(is_agent)) {
        let problem = "changed: the entries that it has now are taken over; it is not followed";
        return found.push(Diagnostic::warning(&source.file, key, problem));
    }
    let through = text(changes, "dialer-proxy");
    config.outbound_lists.push(OutboundList {
        name: provider.name.clone(),
        path: provider.path.clone(),
        download,
        links: Vec::new(),
        filter: text(written, "filter"),
        exclude: text(written, "exclude-filter"),
        prefix: text(changes, "additional-prefix"),
        dial_through: (!through.is_empty()).then(|| (&*through).into()),
        test: None,
        at: FileLine::file("adit.toml"),
    });
    let all = yaml_access::get(root, "proxy-groups").map(yaml_access::items).unwrap_or_default();
    for outbound in &mut config.outbounds {
        let OutboundProtocol::Choice(choice) = &mut outbound.protocol else { continue };
        choice.members.retain(|member| !members.contains(member));
        let group = all.iter().find(|group| yaml_access::text_of(group, "name") == Some(&*outbound.name));
        let Some(group) = group else { continue };
        let takes_all =
            yaml_access::is_on(group, "include-all") || yaml_access::is_on(group, "include-all-providers");
        let takes =
            takes_all || yaml_access::texts_of(group, "use").iter().any(|(name, _)| **name == *provider.name);
        if takes {
            let filters = || (text(Some(group), "filter"), text(Some(group), "exclude-filter"));
            let uses = choice.uses.get_or_insert_with(|| {
                let (filter, exclude) = filters();
                Box::new(Uses { lists: Vec::new(), filter, exclude })
            });
            uses.lists.push(provider.name.clone());
            if yaml_access::get(group, "exclude-type").is_some() {
                let problem = format!("changed: {} takes entries of excluded types too", outbound.name);
                found.push(Diagnostic::warning(&source.file, "proxy-groups", problem));
            }
        }
    }
    let gone: BTreeSet<&Tag> = members.iter().collect();
    config.outbounds.retain(|outbound| !gone.contains(&outbound.name));
}

/// Rules by themselves, each with the conditions of the lists of sub-rules that it stands in. Rules without effect go.
fn flat(rules: &[Rule], file: &Arc<str>, found: &mut Diagnostics) -> Vec<Rule> {
    let mut all = Vec::with_capacity(rules.len());
    let mut rest = rules.iter();
    while let Some(rule) = rest.next() {
        let Verdict::Pass(count) = rule.verdict else {
            all.push(rule.clone());
            continue;
        };
        let (inside, behind) = rest.as_slice().split_at((count as usize).min(rest.len()));
        rest = behind.iter();
        if inside.is_empty() {
            continue;
        }
        let leaves = |rule: &Rule| matches!((&rule.matcher, &rule.verdict), (matcher, Verdict::Pass(_)) if !matches!(matcher, Matcher::Not(_)));
        match &rule.matcher {
            Matcher::Not(outer) if !inside.iter().any(leaves) => {
                for inner in flat(inside, file, found) {
                    all.push(Rule { matcher: both(outer, inner.matcher), ..inner });
                }
            }
            _ => {
                let problem = "left out: a list of sub-rules with PASS in it has no counterpart";
                found.push(placed(Diagnostic::warning(file, "sub-rules", problem), &rule.at));
            }
        }
    }
    all
}

/// A condition for both.
fn both(outer: &Matcher, inner: Matcher) -> Matcher {
    match inner {
        Matcher::And(all) if all.is_empty() => outer.clone(),
        Matcher::And(mut all) => {
            all.insert(0, outer.clone());
            Matcher::And(all)
        }
        inner => Matcher::And(vec![outer.clone(), inner]),
    }
}

fn placed(diagnostic: Diagnostic, at: &FileLine) -> Diagnostic {
    diagnostic.at((at.line as usize, at.column as usize))
}

/// The rules that `adit.toml` has words for; a warning names each other one.
fn without_wordless(
    rules: Vec<Rule>,
    inbounds: &[Inbound],
    path: &str,
    found: &mut Diagnostics,
) -> Vec<Rule> {
    let Some(file) = rules.first().map(|rule| Arc::clone(&rule.at.file)) else { return rules };
    let mut is_changed = false;
    let mut all = Vec::with_capacity(rules.len());
    for mut rule in flat(&rules, &file, found) {
        match &rule.verdict {
            Verdict::Streams { outbound, .. } => {
                is_changed = true;
                rule.verdict = Verdict::Outbound(outbound.clone());
            }
            Verdict::Ask { outbound, .. } => rule.verdict = Verdict::Outbound(outbound.clone()),
            Verdict::Default => {
                if let Some(outbound) = outbound_of(&rule.matcher, inbounds) {
                    rule.verdict = Verdict::Outbound(outbound);
                } else if is_all(&rule.matcher) {
                    break;
                }
            }
            Verdict::Outbound(_) | Verdict::Reject(_) | Verdict::Pass(_) | Verdict::Again { .. } => {}
        }
        if is_all(&rule.matcher) {
            all.push(rule);
            break;
        }
        if matches!(&rule.matcher, Matcher::Or(all) if all.is_empty()) {
            continue;
        }
        let possible = possible(&rule.matcher);
        if let Some(matcher) = possible.filter(|_| adit_toml::has_words(&rule)) {
            all.push(Rule { matcher, ..rule });
        } else {
            let problem = match &rule.verdict {
                Verdict::Again { .. } => "left out: adit.toml asks its rules once".to_owned(),
                _ if adit_toml::has_words(&rule) => "left out: it never matches".to_owned(),
                _ => format!("left out: adit.toml has no key for {}", wordless(&rule.matcher)),
            };
            found.push(placed(Diagnostic::warning(&file, path, problem), &rule.at));
        }
    }
    if is_changed {
        let problem = "changed: datagrams that a rule's server does not carry are refused, where mihomo asks the next rules";
        found.push(Diagnostic::warning(&file, path, problem));
    }
    all
}

/// A condition without the parts that never match; `None` if it never matches itself.
fn possible(matcher: &Matcher) -> Option<Matcher> {
    match matcher {
        Matcher::Domain(all) | Matcher::DomainSuffix(all) if all.is_empty() => None,
        Matcher::Or(all) => {
            let all: Vec<Matcher> = all.iter().filter_map(possible).collect();
            (!all.is_empty()).then_some(Matcher::Or(all))
        }
        Matcher::And(all) => all.iter().map(possible).collect::<Option<_>>().map(Matcher::And),
        Matcher::Not(one) => possible(one).map(|one| Matcher::Not(Box::new(one))),
        other => Some(other.clone()),
    }
}

fn is_all(matcher: &Matcher) -> bool {
    matches!(matcher, Matcher::And(all) if all.is_empty())
}

/// The key of the innermost condition that has no words.
fn wordless(matcher: &Matcher) -> &'static str {
    let mut last = matcher.key();
    matcher.visit(&mut |one| {
        if !matches!(one, Matcher::And(_) | Matcher::Or(_) | Matcher::Not(_)) && !has_words(one) {
            last = one.key();
        }
    });
    last
}

fn has_words(matcher: &Matcher) -> bool {
    let at = FileLine::file("adit.toml");
    adit_toml::has_words(&Rule { matcher: matcher.clone(), verdict: Verdict::Outbound("any".into()), at })
}

/// The outbound of the inbound that a condition asks for.
fn outbound_of(matcher: &Matcher, inbounds: &[Inbound]) -> Option<Tag> {
    let parts = match matcher {
        Matcher::And(all) => all,
        one => std::slice::from_ref(one),
    };
    let name = parts.iter().find_map(|part| match part {
        Matcher::Inbound(names) => names.first().filter(|_| names.len() == 1),
        _ => None,
    })?;
    inbounds.iter().find(|inbound| inbound.name == *name).map(|inbound| inbound.outbound.clone())
}

/// The target of the rule that matches everything, if there is one. It is taken out: `adit.toml` says it as the outbound of
/// inbounds.
fn default_of(rules: &mut Vec<Rule>) -> Option<Tag> {
    let at = rules.iter().position(|rule| is_all(&rule.matcher))?;
    let target = match &rules[at].verdict {
        Verdict::Outbound(tag) => Some(tag.clone()),
        Verdict::Reject(_) => Some(proxy::REJECT.into()),
        _ => None,
    };
    rules.truncate(at);
    target
}

/// Requests that no rule decides take this outbound.
fn send_rest(config: &mut Config, last: &Tag) {
    for inbound in &mut config.inbounds {
        if !matches!(inbound.protocol, InboundProtocol::Dns(_)) {
            inbound.outbound = last.clone();
        }
    }
    if let Some(capture) = &mut config.capture {
        capture.outbound = last.clone();
    }
}

/// Takes out the rules whose values `adit.toml` refuses, as names with odd characters.
fn drop_refused(config: &mut Config, found: &mut Diagnostics) {
    let Err(wrong) = adit_toml::parse("adit.toml", &adit_toml::to_toml(config)) else { return };
    let refused: std::collections::BTreeMap<usize, &Diagnostic> = wrong
        .iter()
        .filter_map(|one| {
            let (number, _) = one.key.strip_prefix("rule[")?.split_once(']')?;
            Some((number.parse().ok()?, one))
        })
        .collect();
    for (number, why) in refused.iter().rev() {
        if *number < config.rules.len() {
            let rule = config.rules.remove(*number);
            let problem = format!("left out: {}", why.problem);
            found.push(placed(Diagnostic::warning(&rule.at.file, "rules", problem), &rule.at));
        }
    }
}

/// Takes out the outbounds that nobody wrote and nothing leads to.
fn prune(config: &mut Config) {
    let is_good = |config: &Config| adit_toml::parse("adit.toml", &adit_toml::to_toml(config)).is_ok();
    if !is_good(config) {
        return;
    }
    for name in BUILT_IN {
        let Some(at) = config.outbounds.iter().position(|outbound| *outbound.name == *name) else { continue };
        if config.outbounds[at].dial != Dial::default() {
            continue;
        }
        let is_plain = match &config.outbounds[at].protocol {
            OutboundProtocol::Direct | OutboundProtocol::Reject | OutboundProtocol::Refuse(_) => true,
            _ => name == proxy::GLOBAL,
        };
        if is_plain {
            let outbound = config.outbounds.remove(at);
            if !is_good(config) {
                config.outbounds.insert(at, outbound);
            }
        }
    }
}

/// Names the parts of which something is not the same in what was written.
fn remark_lost(source: &Source<'_>, config: &Config, again: &Config, found: &mut Diagnostics) {
    let parts = [
        ("proxies", config.outbounds == again.outbounds),
        ("rules", config.rules.len() == again.rules.len()),
        ("rule-providers", config.sets == again.sets),
        ("listeners", config.inbounds == again.inbounds),
        ("dns", config.dns == again.dns),
        ("tun", config.capture == again.capture),
        ("sniffer", config.sniffer == again.sniffer),
        ("external-controller", config.controller == again.controller),
    ];
    for (key, _) in parts.into_iter().filter(|(_, is_same)| !is_same) {
        let problem = "changed: adit.toml has no words for a part of it; `adit run` with this file obeys all";
        found.push(Diagnostic::warning(&source.file, key, problem));
    }
}

/// The rules without those whose group may pass a request on: a group of `adit.toml` decides.
fn decided(rules: Vec<Rule>, config: &Config, found: &mut Diagnostics) -> Vec<Rule> {
    let passes = |name: &Tag| matches!(&**name, "PASS" | proxy::PASS_RULE);
    let may_pass = |group: &Tag| match config.outbound(group).map(|outbound| &outbound.protocol) {
        Some(OutboundProtocol::Choice(choice)) => choice.members.iter().any(passes),
        _ => false,
    };
    let mut all = Vec::with_capacity(rules.len());
    for mut rule in rules {
        if let Verdict::Ask { outbound, .. } = &rule.verdict
            && may_pass(outbound)
        {
            let problem =
                format!("left out: {outbound} may pass a request on, which no group of adit.toml does");
            found.push(placed(Diagnostic::warning(&rule.at.file, "rules", problem), &rule.at));
            // Rules within lists of sub-rules are counted by the rule in front of them.
            rule.matcher = Matcher::Or(Vec::new());
        }
        all.push(rule);
    }
    all
}

/// Conditions about classical lists as such about one set, and rules about lists that are left out no more.
fn within_reach(rules: Vec<Rule>, config: &Config, found: &mut Diagnostics) -> Vec<Rule> {
    let known: BTreeSet<&str> = config.sets.iter().map(|set| &*set.name).collect();
    let mut all = Vec::with_capacity(rules.len());
    for mut rule in rules {
        if one_set(&mut rule.matcher, config) {
            let problem =
                "changed: lines of its list about other things than names and addresses match nothing";
            found.push(placed(Diagnostic::warning(&rule.at.file, "rules", problem), &rule.at));
        }
        let mut missing = None;
        rule.matcher.visit(&mut |matcher| {
            if let Matcher::Set(names, _) = matcher {
                missing =
                    missing.take().or_else(|| names.iter().find(|name| !known.contains(&***name)).cloned());
            }
        });
        match missing {
            None => all.push(rule),
            Some(name) => {
                let problem = format!("left out: it needs {name}");
                found.push(placed(Diagnostic::warning(&rule.at.file, "rules", problem), &rule.at));
            }
        }
    }
    all
}

/// A list of rules is a name with a condition for each kind of its lines; as a set it is one. Whether it had lines that no
/// set can hold.
fn one_set(matcher: &mut Matcher, config: &Config) -> bool {
    if let Matcher::Or(all) = matcher
        && let Some(Matcher::Set(names, resolve)) = all.first()
        && let [name] = &**names
        && let Some(set) = config.sets.iter().find(|set| set.name == *name && set.format == SetFormat::Rules)
    {
        let has_quiet = config.lists.contains_key(&*format!("{name} no-resolve"));
        let has_addresses = config.lists.get(name).is_some_and(|list: &Arc<Entries>| list.has_addresses());
        let resolve = if has_quiet && !has_addresses { Resolve::No } else { *resolve };
        let is_cut = all.iter().any(|one| !matches!(one, Matcher::Set(..)));
        *matcher = Matcher::Set(vec![set.name.clone()], resolve);
        return is_cut;
    }
    match matcher {
        Matcher::And(all) | Matcher::Or(all) => {
            let cut = all.iter_mut().map(|one| one_set(one, config)).filter(|is_cut| *is_cut);
            cut.count() > 0
        }
        Matcher::Not(one) => one_set(one, config),
        _ => false,
    }
}

/// A list; `None` for what cannot be said of its origin.
fn set(provider: &Provider, behavior: &str, root: &JsonValue) -> Option<Set> {
    let format = match behavior {
        "domain" => SetFormat::Domains,
        "ipcidr" => SetFormat::Addresses,
        _ => SetFormat::Rules,
    };
    let name: Tag = format!("rule-set {}", provider.name).into();
    let (path, entries) = match provider.source {
        ProviderSource::Inline => (PathBuf::new(), payload(root, &provider.name)?),
        ProviderSource::File | ProviderSource::Http(_) => (provider.path.clone()?, Vec::new()),
    };
    let download = match &provider.source {
        ProviderSource::Http(download) => {
            // The name of the program that asks is no part of adit.toml.
            let is_agent = |name: &str| name.eq_ignore_ascii_case("User-Agent");
            if !download.headers.iter().all(|(name, _)| is_agent(name)) {
                return None;
            }
            let (headers, max_len) = (Vec::new(), crate::rulesets::MAX_LEN);
            Some(Box::new(Download { headers, max_len, ..Download::clone(download) }))
        }
        ProviderSource::Inline | ProviderSource::File => None,
    };
    Some(Set { name, path, format, download, entries, list: None, at: FileLine::file("adit.toml") })
}

/// The lines of a list that stands in the file; `None` if there are none.
fn payload(root: &JsonValue, name: &str) -> Option<Vec<Box<str>>> {
    let list =
        yaml_access::get(yaml_access::get(yaml_access::get(root, "rule-providers")?, name)?, "payload")?;
    let text = |item: &JsonValue| match &item.node {
        Node::Text(text) => Some(text.as_str().into()),
        _ => None,
    };
    yaml_access::items(list)
        .iter()
        .map(text)
        .collect::<Option<Vec<Box<str>>>>()
        .filter(|lines| !lines.is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;

    const FILE: &str = "\
mixed-port: 7890
external-controller: 127.0.0.1:9090
dns: {enable: true, nameserver: [1.1.1.1]}
proxies:
- {name: a, type: ss, server: 127.0.0.1, port: 32100, cipher: aes-256-gcm, password: p, udp: true}
- {name: s, type: snell, server: snell.example.com, port: 32101, psk: pppppppppppp, version: 4}
- {name: v, type: vmess, server: 127.0.0.1, port: 1, uuid: x}
proxy-groups:
- {name: G, type: select, proxies: [a, T, v, DIRECT]}
- {name: T, type: url-test, proxies: [a, s], url: 'http://x.example/', interval: 300, tolerance: 50}
rule-providers:
  ads: {type: inline, behavior: domain, payload: ['+.ads.example', x.example]}
  net: {type: http, behavior: ipcidr, format: text, url: 'https://example.com/n.txt', interval: 3600, path: ./n.txt}
rules:
- DOMAIN,x.example,DIRECT
- DOMAIN-SUFFIX,z.example,G
- RULE-SET,ads,REJECT
- RULE-SET,net,G,no-resolve
- AND,((NETWORK,UDP),(DST-PORT,443)),REJECT
- MATCH,G
";

    fn convert(text: &str) -> Result<Loaded, Diagnostics> {
        convert_file("c.yaml", text, Path::new("/nowhere"))
    }

    #[test]
    fn groups_rules_lists_and_dns_are_kept() {
        let loaded = convert(FILE).unwrap();
        let toml = adit_toml::to_toml(&loaded.config);
        let again = adit_toml::parse("adit.toml", &toml).unwrap().config;
        assert_eq!(again.outbounds, loaded.config.outbounds, "{toml}");
        assert_eq!((&again.sets, &again.dns), (&loaded.config.sets, &loaded.config.dns));
        let names: Vec<&str> = again.outbounds.iter().map(|outbound| &*outbound.name).collect();
        assert_eq!(
            names,
            ["DIRECT", "a", "s", "v", "G", "T"],
            "built-in ones only where something leads to them"
        );
        assert_eq!((again.rules.len(), again.sets.len()), (5, 2));
        assert_eq!(&*again.inbounds[0].outbound, "G", "the target of the last rule");
        assert_eq!(again.sets[0].entries, ["+.ads.example".into(), "x.example".into()]);
        let download = again.sets[1].download.as_ref().unwrap();
        assert_eq!(download.interval.unwrap().as_secs(), 3600);
        assert_eq!(again.sets[1].path, Path::new("/nowhere/n.txt"));
        assert!(matches!(again.outbounds[3].protocol, OutboundProtocol::Reject), "never another way");
        assert!(again.controller.is_some() && !again.dns.upstreams.is_empty());
        let said = loaded.diagnostics.to_string();
        assert!(said.contains("vmess") && said.contains("c.yaml:7:"), "{said}");
        assert!(!said.contains("no words"), "{said}");
    }

    #[test]
    fn a_file_without_a_port() {
        let loaded = convert(&FILE.replace("mixed-port: 7890\n", "")).unwrap();
        let [inbound] = &*loaded.config.inbounds else { panic!("one port") };
        assert_eq!((inbound.listen[0].port(), &*inbound.outbound), (1080, "G"));
        assert_eq!((loaded.config.rules.len(), loaded.config.sets.len()), (5, 2));
        assert!(loaded.diagnostics.to_string().contains("mixed-port: changed: the file has no port"));
    }

    #[test]
    fn databases_and_lists_of_rules_become_sets() {
        let text = FILE.replace("- MATCH,G", "\
- GEOSITE,CN,DIRECT
- GEOIP,cn,DIRECT,no-resolve
- GEOIP,lan,DIRECT
- RULE-SET,classic,G
- MATCH,T").replace("rules:", "  classic: {type: inline, behavior: classical, payload: ['DOMAIN-SUFFIX,c.example', 'IP-CIDR,192.0.2.0/24,no-resolve', 'DST-PORT,1']}\nrules:");
        let loaded = convert(&text).unwrap();
        let names: Vec<&str> = loaded.config.sets.iter().map(|set| &*set.name).collect();
        assert_eq!(
            names,
            ["geosite cn", "geoip cn", "geoip lan", "rule-set ads", "rule-set net", "rule-set classic"]
        );
        assert_eq!(loaded.config.sets[0].list.as_deref(), Some("cn"));
        assert_eq!(loaded.config.sets[0].path, Path::new("/nowhere/GeoSite.dat"));
        let classic = Matcher::Set(vec!["rule-set classic".into()], Resolve::No);
        assert_eq!(loaded.config.rules.last().unwrap().matcher, classic);
        assert_eq!(&*loaded.config.inbounds[0].outbound, "T");
        let said = loaded.diagnostics.to_string();
        assert!(said.contains("lists of geosite (cn and others) need /nowhere/GeoSite.dat"), "{said}");
    }

    #[test]
    fn lists_of_outbounds_are_followed() {
        let text = FILE.replace("proxy-groups:\n", "proxy-providers:\n  sub: {type: http, url: 'https://example.com/s', interval: 3600, path: ./s.yaml, filter: HK}\n  own: {type: inline, payload: [{name: in, type: ss, server: a, port: 1, cipher: aes-128-gcm, password: p}]}\nproxy-groups:\n- {name: P, type: fallback, use: [own, sub], exclude-filter: old}\n");
        let loaded = convert(&text).unwrap();
        let config = adit_toml::parse("adit.toml", &adit_toml::to_toml(&loaded.config)).unwrap().config;
        let list = &config.outbound_lists[0];
        assert_eq!((&*list.name, &*list.filter, config.outbound_lists.len()), ("sub", "HK", 1));
        assert_eq!(list.download.as_ref().unwrap().interval.unwrap().as_secs(), 3600);
        let group = config.outbound("P").unwrap();
        let OutboundProtocol::Choice(choice) = &group.protocol else { panic!("a group") };
        let uses = choice.uses.as_deref().unwrap();
        assert_eq!((&choice.members, &uses.lists), (&vec!["in".into()], &vec!["sub".into()]));
        assert_eq!(&*uses.exclude, "old");
        assert!(config.outbound("in").is_some());
    }

    #[test]
    fn sub_rules_become_rules_with_both_conditions() {
        let text = FILE.replace(
            "rules:\n",
            "sub-rules:\n  s: ['DOMAIN,y.example,G', 'MATCH,REJECT']\nrules:\n- SUB-RULE,(NETWORK,tcp),s\n",
        );
        let rules = convert(&text).unwrap().config.rules;
        let tcp = Matcher::Network(adit_model::rule::Network::Tcp);
        assert_eq!(
            rules[0].matcher,
            Matcher::And(vec![tcp.clone(), Matcher::Domain(vec!["y.example".into()])])
        );
        assert_eq!((&rules[1].matcher, rules.len()), (&tcp, 7));
    }

    #[test]
    fn what_has_no_place_costs_its_rule_alone() {
        for (right, wrong, count, problem) in [
            ("- MATCH,G", "- COLOUR,red,G", 5, "left out: [COLOUR,red,G] error: unsupported rule type"),
            ("- MATCH,G", "- DSCP,1,G\n- MATCH,G", 5, "left out: adit.toml has no key for dscp"),
            (
                "type: inline, behavior: domain, payload: ['+.ads.example', x.example]",
                "type: http, behavior: domain, url: 'http://x.example/', path: ./a.txt, header: {Authorization: [x]}",
                4,
                "left out: it needs rule-set ads",
            ),
        ] {
            let loaded = convert(&FILE.replace(right, wrong)).unwrap();
            let said = loaded.diagnostics.to_string();
            assert!(said.contains(problem), "{said}");
            assert_eq!(loaded.config.rules.len(), count, "{said}");
        }
    }
}
