//! `fallback` and `fallback-filter`: name servers for addresses that those of `nameserver` are not believed for.

use adit_model::rule::Cidr;
use adit_model::{Dns, DnsFallback, DnsPolicy, NameServer};

use super::{policy_domain, policy_set, servers};
use crate::clash::Context;
use crate::clash::geo::Reading;
use crate::read::json::JsonValue;
use crate::read::value;
use crate::read::yaml_access;

/// The country whose addresses are believed, if none is written.
const COUNTRY: &str = "cn";

/// Reads both keys. Names of the filter go into `policy`, behind the patterns that are there.
pub(super) fn read(
    context: &mut Context<'_>,
    dns: &JsonValue,
    bootstrap: &[NameServer],
    policy: &mut Vec<DnsPolicy>,
) -> Option<DnsFallback> {
    let texts = yaml_access::texts_of(dns, "fallback");
    if texts.is_empty() {
        return None;
    }
    let upstreams = servers(context, texts, "dns.fallback", bootstrap);
    let mut fallback = DnsFallback { upstreams, trusted: Vec::new(), untrusted: Vec::new() };
    let filter = yaml_access::get(dns, "fallback-filter");
    let text =
        |key| filter.and_then(|filter| yaml_access::text_of(filter, key)).filter(|text| !text.is_empty());
    if !filter.is_some_and(|filter| yaml_access::is_off(filter, "geoip")) {
        context.fallback = yaml_access::get(dns, "fallback").map(|value| value.at);
        let country = text("geoip-code").unwrap_or(COUNTRY).to_lowercase();
        fallback.trusted = vec![context.country(&country), context.country("lan")];
    }
    let Some(filter) = filter else { return Some(fallback) };
    for (text, at) in yaml_access::texts_of(filter, "ipcidr") {
        match Cidr::parse(text) {
            Some(network) => fallback.untrusted.push(network),
            None => {
                let problem = format!("no network: {}", value::excerpt(text));
                context.error(at, "dns.fallback-filter.ipcidr", problem);
            }
        }
    }
    names(context, filter, &fallback, policy);
    for member in yaml_access::members(filter) {
        let path = format!("dns.fallback-filter.{}", member.key);
        match &*member.key {
            "geoip" | "geoip-code" | "ipcidr" | "domain" => {}
            "geosite" => {
                let before = context.reading.clone();
                for (code, at) in yaml_access::texts_of(filter, "geosite") {
                    context.reading = Reading { path: path.clone(), item: None, at };
                    let domain = policy_set(&context.site_list(code));
                    let upstreams = fallback.upstreams.clone();
                    policy.push(DnsPolicy { domain, upstreams, direct: false });
                }
                context.reading = before;
            }
            _ => context.remark(member.at, path, "left out: adit does not read it", ""),
        }
    }
    Some(fallback)
}

/// Names that the fallback alone is asked for; those of a policy are not among them.
fn names(context: &mut Context<'_>, filter: &JsonValue, fallback: &DnsFallback, policy: &mut Vec<DnsPolicy>) {
    let known = Dns { policy: policy.clone(), ..Dns::default() };
    for (text, at) in yaml_access::texts_of(filter, "domain") {
        match policy_domain(text) {
            Some(domain) if known.list_for(domain.trim_start_matches('=')) > 0 => {}
            Some(domain) => {
                let upstreams = fallback.upstreams.clone();
                policy.push(DnsPolicy { domain, upstreams, direct: false });
            }
            None => {
                let problem = format!("patterns like this are not read yet: {}", value::excerpt(text));
                context.refuse(at, "dns.fallback-filter.domain", problem);
            }
        }
    }
}
