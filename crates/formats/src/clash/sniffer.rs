//! `sniffer`: names of targets that are read from the first bytes of clients.

use std::sync::Arc;

use adit_model::entries::Entries;
use adit_model::rule::{Cidr, Matcher, PortRange, Resolve};
use adit_model::{SniffPorts, Sniffer, Tag};

use super::rule_line::{self, Params};
use super::{Context, tables};
use crate::read::json::JsonValue;
use crate::read::kinds;
use crate::read::yaml_access;
use crate::rulesets::domain_pattern;

/// A control program has switched it off.
const OFF: &str = "sniffing";

/// Reads `sniffer`; `None` if it is off.
pub(crate) fn read(context: &mut Context<'_>, root: &JsonValue) -> Option<Sniffer> {
    let value = yaml_access::get(root, "sniffer").filter(|value| yaml_access::is_on(value, "enable"))?;
    for member in yaml_access::members(value) {
        if kinds::find(tables::SNIFFER, &member.key).is_none() {
            context.remark(
                member.at,
                format!("sniffer.{}", member.key),
                "left out: adit does not read it",
                "",
            );
        }
    }
    let mut sniffer = Sniffer {
        tls: None,
        http: None,
        datagrams: None,
        skip: skip(context, value),
        force: names(context, value, "force-domain"),
        ignore: names(context, value, "skip-domain"),
        mapped: is_yes(value, "force-dns-mapping"),
        pure: is_yes(value, "parse-pure-ip"),
    };
    protocols(context, value, &mut sniffer);
    (!yaml_access::is_off(root, OFF)).then_some(sniffer)
}

/// Whether a key says yes, or nothing.
fn is_yes(value: &JsonValue, key: &str) -> bool {
    yaml_access::get(value, key).is_none() || yaml_access::is_on(value, key)
}

/// The protocols: under `sniff`, or in the older lists `sniffing` and `port-whitelist`.
fn protocols(context: &mut Context<'_>, value: &JsonValue, sniffer: &mut Sniffer) {
    let overrides = is_yes(value, "override-destination");
    let named = yaml_access::get(value, "sniff").map(yaml_access::members).unwrap_or_default();
    for member in named {
        let path = format!("sniffer.sniff.{}", member.key);
        let known = yaml_access::get(&member.value, "override-destination");
        let overrides =
            known.map_or(overrides, |_| yaml_access::is_on(&member.value, "override-destination"));
        let ports = ports(context, &member.value, "ports", &path);
        put(context, sniffer, &member.key, member.at, SniffPorts { ports, overrides });
    }
    if named.is_empty() {
        let ports = ports(context, value, "port-whitelist", "sniffer");
        for (name, at) in yaml_access::texts_of(value, "sniffing") {
            put(context, sniffer, name, at, SniffPorts { ports: ports.clone(), overrides });
        }
    }
}

/// Takes a protocol, with its usual port if none is written.
fn put(context: &mut Context<'_>, sniffer: &mut Sniffer, name: &str, at: usize, mut of: SniffPorts) {
    let (place, usual) = match &*name.to_uppercase() {
        "TLS" => (&mut sniffer.tls, 443),
        "HTTP" => (&mut sniffer.http, 80),
        "QUIC" => (&mut sniffer.datagrams, 443),
        _ => return context.error(at, "sniffer", format!("not find the sniffer[{name}]")),
    };
    if of.ports.is_empty() {
        of.ports.push(PortRange { first: usual, last: usual });
    }
    *place = Some(of);
}

fn ports(context: &mut Context<'_>, value: &JsonValue, key: &str, path: &str) -> Vec<PortRange> {
    let mut all = Vec::new();
    for (text, at) in yaml_access::texts_of(value, key) {
        match rule_line::ports(text) {
            Ok(ports) => all.extend(ports),
            Err(problem) => context.error(at, format!("{path}.{key}"), problem),
        }
    }
    all
}

/// A list of names: patterns, `geosite:` and `rule-set:`.
fn names(context: &mut Context<'_>, value: &JsonValue, key: &str) -> Option<Matcher> {
    let (mut entries, mut all) = (Entries::default(), Vec::new());
    for (text, at) in yaml_access::texts_of(value, key) {
        if let Some((kind, list)) = listed(text) {
            for name in list.split(',') {
                match kind {
                    "geosite" => all.push(context.site(name)),
                    "rule-set" => put_set(context, name, Params::default(), at, key, &mut all),
                    _ => context.error(at, format!("sniffer.{key}"), format!("unknown kind of list: {kind}")),
                }
            }
        } else if text.contains(' ') && text.trim() == text {
            // Some devices name something that is no host. adit takes no such text for a name.
        } else if !domain_pattern(&mut entries, text) {
            context.error(at, format!("sniffer.{key}"), format!("invalid domain: {text}"));
        }
    }
    if !entries.is_empty() {
        let tag = keep(context, key, entries);
        all.push(Matcher::Set(vec![tag], Resolve::No));
    }
    (!all.is_empty()).then_some(Matcher::Or(all))
}

/// `skip-src-address` and `skip-dst-address`: networks, `geoip:` and `rule-set:`.
fn skip(context: &mut Context<'_>, value: &JsonValue) -> Option<Matcher> {
    let mut all = Vec::new();
    for (key, source) in [("skip-src-address", true), ("skip-dst-address", false)] {
        let set = |tag: Tag| match source {
            true => Matcher::SourceSet(vec![tag]),
            false => Matcher::Set(vec![tag], Resolve::No),
        };
        let mut entries = Entries::default();
        for (text, at) in yaml_access::texts_of(value, key) {
            if let Some((kind, list)) = listed(text) {
                for name in list.split(',') {
                    match kind {
                        "geoip" => all.push(set(context.country(&name.to_lowercase()))),
                        "rule-set" => {
                            let params = Params { source, no_resolve: true, ..Params::default() };
                            put_set(context, name, params, at, key, &mut all);
                        }
                        _ => context.error(
                            at,
                            format!("sniffer.{key}"),
                            format!("unknown kind of list: {kind}"),
                        ),
                    }
                }
            } else if let Some(network) = Cidr::parse(text) {
                entries.add_range(network.range());
            } else {
                context.error(at, format!("sniffer.{key}"), format!("no network: {text}"));
            }
        }
        if !entries.is_empty() {
            let tag = keep(context, key, entries);
            all.push(set(tag));
        }
    }
    (!all.is_empty()).then_some(Matcher::Or(all))
}

/// The kind and the names of lists that stand elsewhere: `geosite:cn,us`.
fn listed(text: &str) -> Option<(&str, &str)> {
    text.split_once(':').filter(|(kind, _)| ["geosite", "geoip", "rule-set"].contains(kind))
}

fn put_set(
    context: &mut Context<'_>,
    name: &str,
    params: Params,
    at: usize,
    key: &str,
    all: &mut Vec<Matcher>,
) {
    match context.provider(name, params) {
        Ok(matcher) => all.push(matcher),
        Err(problem) => context.error(at, format!("sniffer.{key}"), problem),
    }
}

/// Keeps a list under a name of its own.
fn keep(context: &mut Context<'_>, key: &str, entries: Entries) -> Tag {
    let tag: Tag = format!("sniffer {key}").into();
    context.lists.insert(tag.clone(), Arc::new(entries));
    tag
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use crate::clash;
    use adit_model::rule::PortRange;
    use adit_model::{SniffPorts, Sniffer};

    fn load(text: &str, overlay: &[(&str, &str)]) -> Result<clash::ClashSetup, String> {
        let text = format!("mixed-port: 7000\n{text}\n");
        clash::load_over("c", &text, Path::new("/h"), false, overlay).map_err(|found| found.to_string())
    }

    fn sniffer(text: &str) -> Option<Sniffer> {
        let setup = load(text, &[]).unwrap();
        assert!(setup.refused.is_empty(), "{}", setup.refused);
        setup.config.sniffer
    }

    fn of(ports: &[(u16, u16)], overrides: bool) -> Option<SniffPorts> {
        let ports = ports.iter().map(|(first, last)| PortRange { first: *first, last: *last }).collect();
        Some(SniffPorts { ports, overrides })
    }

    #[test]
    fn protocols_with_their_ports() {
        assert_eq!(sniffer("sniffer: {sniff: {TLS: {}}}"), None, "it is off");
        let found = sniffer("sniffer: {enable: true, sniff: {TLS: {ports: [443, 8443]}, http: {ports: [80, 8080-8880], override-destination: false}, QUIC: }}").unwrap();
        assert_eq!(found.tls, of(&[(443, 443), (8443, 8443)], true));
        assert_eq!(found.http, of(&[(80, 80), (8080, 8880)], false));
        assert_eq!(found.datagrams, of(&[(443, 443)], true));
        assert!(found.mapped && found.pure && found.skip.is_none() && found.force.is_none());
        let older = "sniffer: {enable: true, override-destination: false, parse-pure-ip: false, force-dns-mapping: false, sniffing: [tls], port-whitelist: ['1000-2000', '443']}";
        let found = sniffer(older).unwrap();
        assert_eq!(found.tls, of(&[(1000, 2000), (443, 443)], false));
        assert!(!found.mapped && !found.pure && found.http.is_none() && found.datagrams.is_none());
    }

    #[test]
    fn lists_and_mistakes() {
        let sets = "rule-providers: {n: {type: inline, behavior: domain, payload: [a.test]}}\n";
        let found = sniffer(&format!("{sets}sniffer: {{enable: true, sniff: {{TLS: }}, force-domain: ['+.v2ex.com', 'rule-set:n'], skip-domain: [Mijia Cloud, '*.apple.com'], skip-src-address: [192.168.0.3/32], skip-dst-address: [192.168.0.3/32, 'geoip:lan']}}")).unwrap();
        let count = |matcher: Option<adit_model::rule::Matcher>| {
            let Some(adit_model::rule::Matcher::Or(all)) = matcher else { panic!() };
            all.len()
        };
        assert_eq!((count(found.force), count(found.ignore), count(found.skip)), (2, 1, 3));
        for (text, wants) in [
            ("sniff: {SSH: }", "2:33: sniffer: not find the sniffer[SSH]"),
            ("sniff: {TLS: {ports: [70000]}}", "2:47: sniffer.sniff.TLS.ports: no number from 0 to 65535"),
            ("force-domain: ['rule-set:none']", "sniffer.force-domain: rule set [none] not found"),
            ("skip-dst-address: [192.168.0.x]", "sniffer.skip-dst-address: no network: 192.168.0.x"),
            ("force-domain: ['a..b/c']", "sniffer.force-domain: invalid domain: a..b/c"),
        ] {
            let found = load(&format!("sniffer: {{enable: true, {text}}}"), &[]).unwrap_err();
            assert!(found.contains(wants), "{text}: {found}");
        }
        let setup = load("sniffer: {enable: true, nosuch: 1, sniff: {TLS: }}", &[]).unwrap();
        assert!(
            setup.diagnostics.to_string().contains("2:25: warning: sniffer.nosuch: left out"),
            "{}",
            setup.diagnostics
        );
        let setup = load("sniffer: {enable: true, sniff: {TLS: }}", &[("sniffing", "false")]).unwrap();
        assert_eq!(setup.config.sniffer, None, "a control program has switched it off");
    }
}
