//! The entries of `[[provider]]` of `adit.toml`: documents of proxies as mihomo's providers have them.

use std::collections::HashSet;

use adit_model::diagnostic::{Diagnostic, Diagnostics};
use adit_model::files;
use adit_model::map::Map;
use adit_model::{Config, OutboundList, OutboundProtocol, Provider, ProviderKind, ProviderSource, Tag, Uses};

use super::proxy::{self, ProxyEntry};
use super::subscription::{self, UniqueNames};
use crate::read::source;
use crate::rulesets::beside;

/// Most steps of an expression for one name.
const MAX_STEPS: usize = 100_000;

/// Adds the entries of all lists to the outbounds, and to the groups that use them. A list that cannot be read has none;
/// its groups go on with their other members, and refuse if they have no other.
pub(crate) fn expand(config: &mut Config) -> Diagnostics {
    let mut found = Diagnostics::new();
    let lists = std::mem::take(&mut config.outbound_lists);
    let allowed: Vec<String> = config.plugins_allowed.iter().map(ToString::to_string).collect();
    let mut taken: HashSet<Tag> = config.outbounds.iter().map(|outbound| outbound.name.clone()).collect();
    let mut names: Map<Tag, Vec<Tag>> = Map::new();
    for list in &lists {
        let (entries, problem) = read(list, &allowed);
        let mut remark = |problem: String| found.push(warning(list, problem));
        problem.iter().cloned().for_each(&mut remark);
        let entries = chosen(entries, &list.filter, &list.exclude, |entry| &entry.outbound.name);
        proxy::dead_of(&entries).into_iter().map(|(_, problem)| problem).for_each(&mut remark);
        let (members, renamed) = add(config, list, entries, &mut taken);
        renamed.into_iter().for_each(&mut remark);
        config.providers.push(provider(list, members.clone(), problem));
        names.insert(list.name.clone(), members);
    }
    for outbound in &mut config.outbounds {
        if let OutboundProtocol::Choice(choice) = &mut outbound.protocol
            && let Some(uses) = choice.uses.as_deref()
        {
            let more = members(uses, &names, &choice.members);
            choice.members.extend(more);
            if choice.members.is_empty() {
                let problem = format!("group {} has no member; it refuses every connection", outbound.name);
                let first = lists.iter().find(|list| uses.lists.contains(&list.name));
                first.into_iter().for_each(|list| found.push(warning(list, problem.clone())));
            }
        }
    }
    if let Some(problem) = super::end_loops(&mut config.outbounds)
        && let Some(list) = lists.first()
    {
        found.push(warning(list, problem));
    }
    config.outbound_lists = lists;
    found
}

fn warning(list: &OutboundList, problem: String) -> Diagnostic {
    let warning = Diagnostic::warning(&list.at.file, format!("provider {}", list.name), problem);
    warning.at((list.at.line as usize, list.at.column as usize))
}

/// The entries of a list, and the problem with it.
fn read(list: &OutboundList, allowed: &[String]) -> (Vec<ProxyEntry>, Option<String>) {
    let Some(path) = &list.path else {
        let text = list.links.iter().map(|link| link.expose()).collect::<Vec<_>>().join("\n");
        return match subscription::document(&list.name, &text, allowed) {
            Ok(found) => found,
            Err(problem) => (Vec::new(), Some(problem)),
        };
    };
    let path = beside(&list.at, path);
    let is_copy = list.download.is_some();
    if is_copy && !files::has_copy(&path) {
        let problem = "there is no copy yet: it has no members until it has been fetched";
        return (Vec::new(), Some(problem.to_owned()));
    }
    let read = if is_copy { source::read_copy } else { source::read_regular };
    let text = match read(&path, super::MAX_LEN) {
        Ok(text) => text,
        Err(found) => return (Vec::new(), Some(format!("{}: {}", path.display(), found.problem))),
    };
    match subscription::document(&path.to_string_lossy(), &text, allowed) {
        Ok(found) => found,
        Err(problem) => (Vec::new(), Some(format!("{}: {problem}", path.display()))),
    }
}

/// Those whose names the expressions keep. An expression that takes too many steps keeps nothing.
fn chosen<T>(all: Vec<T>, filter: &str, exclude: &str, name: impl Fn(&T) -> &str) -> Vec<T> {
    let (filter, exclude) = (regexes(filter), regexes(exclude));
    let is_kept = |name: &str| {
        (filter.is_empty() || filter.iter().any(|regex| regex.is_match(name).unwrap_or(false)))
            && !exclude.iter().any(|regex| regex.is_match(name).unwrap_or(true))
    };
    all.into_iter().filter(|one| is_kept(name(one))).collect()
}

/// Expressions that a backtick separates; they were checked when the file was read.
fn regexes(text: &str) -> Vec<fancy_regex::Regex> {
    let parts = text.split('`').filter(|part| !part.is_empty());
    let built = |part: &str| fancy_regex::RegexBuilder::new(part).backtrack_limit(MAX_STEPS).build().ok();
    parts.filter_map(built).collect()
}

/// Adds entries to the outbounds; a name that is taken gets that of the list behind it.
/// Gives the names, and a sentence about those that were taken.
fn add(
    config: &mut Config,
    list: &OutboundList,
    entries: Vec<ProxyEntry>,
    taken: &mut HashSet<Tag>,
) -> (Vec<Tag>, Option<String>) {
    let mut free = UniqueNames::default();
    let (mut renamed, mut first) = (0, None);
    let mut members = Vec::with_capacity(entries.len());
    for ProxyEntry { mut outbound, .. } in entries {
        let mut name = format!("{}{}", list.prefix, outbound.name);
        if taken.contains(name.as_str()) {
            let old = subscription::shown(&name);
            name = free.free(&format!("{name} ({})", list.name), |name| taken.contains(name));
            renamed += 1;
            first.get_or_insert_with(|| format!("{old} is {}", subscription::shown(&name)));
        }
        outbound.name = name.into();
        if let Some(through) = &list.dial_through {
            outbound.dial.through = Some(through.clone());
        }
        taken.insert(outbound.name.clone());
        members.push(outbound.name.clone());
        config.outbounds.push(outbound);
    }
    let text = first.map(|first| format!("names of {renamed} of its members are taken: {first}"));
    (members, text)
}

/// The entries of lists that a group has, but for those that it names itself.
fn members(uses: &Uses, lists: &Map<Tag, Vec<Tag>>, own: &[Tag]) -> Vec<Tag> {
    let mut seen: HashSet<&Tag> = own.iter().collect();
    let all = uses.lists.iter().filter_map(|name| lists.get(name)).flatten();
    let fresh: Vec<&Tag> = all.filter(|name| seen.insert(name)).collect();
    chosen(fresh, &uses.filter, &uses.exclude, |name| name).into_iter().cloned().collect()
}

fn provider(list: &OutboundList, members: Vec<Tag>, problem: Option<String>) -> Provider {
    let source = match (&list.download, &list.path) {
        (Some(download), _) => ProviderSource::Http(download.clone()),
        (None, Some(_)) => ProviderSource::File,
        (None, None) => ProviderSource::Inline,
    };
    Provider {
        name: list.name.clone(),
        kind: ProviderKind::Outbounds { members, test: list.test.clone() },
        source,
        path: list.path.as_deref().map(|path| beside(&list.at, path)),
        problem: problem.map(Into::into),
    }
}

#[cfg(test)]
mod tests {
    use crate::adit_toml;
    use adit_model::{Config, OutboundProtocol, ProviderKind};

    const LINK: &str = "ss://YWVzLTEyOC1nY206c2VjcmV0@192.0.2.1:8388";

    fn members<'c>(config: &'c Config, group: &str) -> Vec<&'c str> {
        let protocol = &config.outbound(group).unwrap().protocol;
        let OutboundProtocol::Choice(choice) = protocol else { panic!("no group: {protocol:?}") };
        choice.members.iter().map(|name| &**name).collect()
    }

    fn file(more: &str) -> String {
        format!(
            "[[inbound]]\nprotocol = \"mixed\"\nlisten = \"127.0.0.1:1\"\noutbound = \"g\"\n\
             [[outbound]]\nname = \"g\"\nprotocol = \"select\"\n{more}"
        )
    }

    #[test]
    fn links_become_members() {
        let text = file(&format!(
            "members = [\"out\"]\nuse = \"own\"\nfilter = \"HK|JP\"\nexclude = \"2$\"\n\
             [[outbound]]\nname = \"out\"\nprotocol = \"direct\"\n\
             [[outbound]]\nname = \"w HK 9\"\nprotocol = \"direct\"\n\
             [[provider]]\nname = \"own\"\nprefix = \"w \"\ndial-through = \"out\"\ntest-interval = \"30s\"\n\
             links = [\"{LINK}#HK 1\", \"{LINK}#HK 2\", \"{LINK}#US\", \"{LINK}#JP\", \"{LINK}#HK 9\"]\n"
        ));
        let loaded = adit_toml::load("adit.toml", &text).unwrap();
        let config = &loaded.config;
        assert_eq!(members(config, "g"), ["out", "w HK 1", "w JP", "w HK 9 (own)"]);
        assert_eq!(config.outbound("w JP").unwrap().dial.through.as_deref(), Some("out"));
        let ProviderKind::Outbounds { members: all, test } = &config.providers[0].kind else { panic!() };
        assert_eq!((all.len(), test.as_ref().unwrap().interval.unwrap().as_secs()), (5, 30));
        // Written and read again it is the same; the entries are not written as outbounds.
        let text = adit_toml::to_toml(config);
        assert_eq!(text.matches("[[outbound]]").count(), 3, "{text}");
        assert_eq!(adit_toml::load("adit.toml", &text).unwrap().config, *config);
    }

    #[test]
    fn lists_that_cannot_be_read_refuse() {
        for (list, want) in [
            ("path = \"/nonexistent/list\"\n", "cannot read"),
            ("path = \"/dev/zero\"\n", "longer than"),
            ("path = \"none.yaml\"\nurl = \"http://192.0.2.1/\"\n", "there is no copy yet"),
        ] {
            let text = file(&format!("use = \"l\"\n[[provider]]\nname = \"l\"\n{list}"));
            let loaded = adit_toml::load("/nonexistent/adit.toml", &text).unwrap();
            assert!(members(&loaded.config, "g").is_empty());
            let found = loaded.diagnostics.to_string();
            assert!(found.contains(want) && found.contains("refuses every connection"), "{found}");
        }
    }

    #[test]
    fn plugins_of_links_need_leave() {
        let link = format!("{LINK}?plugin=own-plugin%3Ba#p");
        let provider = format!("[[provider]]\nname = \"l\"\nlinks = \"{link}\"\n");
        let text = file(&format!("use = \"l\"\n{provider}"));
        let found = adit_toml::load("t", &text).unwrap().diagnostics.to_string();
        assert!(found.contains("neither built in nor in plugins-allowed"), "{found}");
        let allowed = format!("plugins-allowed = \"own-plugin\"\n{text}");
        assert!(adit_toml::load("t", &allowed).unwrap().diagnostics.is_empty());
    }

    #[test]
    fn wrong_tables() {
        for (more, want) in [
            ("use = \"l\"\n", "outbound[0].use: no such provider: l"),
            ("", "the group has no members"),
            ("filter = \"a\"\nmembers = \"g\"\n", "means nothing without use"),
            ("use = \"l\"\n[[provider]]\nname = \"l\"\n", "neither path nor links"),
            ("use = \"l\"\n[[provider]]\nname = \"l\"\nlinks = \"vmess://x\"\n", "provider[0].links"),
            (
                "use = \"l\"\n[[provider]]\nname = \"l\"\npath = \"a\"\nthrough = \"g\"\n",
                "means nothing without url",
            ),
            (
                "use = \"l\"\n[[provider]]\nname = \"l\"\npath = \"a\"\ndial-through = \"x\"\n",
                "no such outbound: x",
            ),
            ("use = \"l\"\n[[provider]]\nname = \"l\"\npath = \"a\"\nfilter = \"(\"\n", "provider[0].filter"),
        ] {
            let found = adit_toml::load("t", &file(more)).unwrap_err().to_string();
            assert!(found.contains(want), "{more}: {found}");
        }
    }
}
