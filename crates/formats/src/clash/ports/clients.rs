//! `lan-allowed-ips`, `lan-disallowed-ips` and `skip-auth-prefixes`: the clients of the ports at the top of the file,
//! and of listeners that have their users from there.

use adit_model::Tag;
use adit_model::rule::{Cidr, Matcher, RejectMethod};

use crate::clash::Context;
use crate::clash::rules::Flat;
use crate::read::json::JsonValue;
use crate::read::value;
use crate::read::yaml_access;

/// A rule that refuses clients by their addresses, if any are refused; in front of all other rules.
pub(super) fn bound(context: &mut Context<'_>, root: &JsonValue, flat: &mut Flat) {
    let mut refused = Vec::new();
    if yaml_access::get(root, "lan-allowed-ips").is_some_and(yaml_access::is_list) {
        let allowed = networks(context, root, "lan-allowed-ips");
        if !allowed.iter().any(|network| is_all(*network, false))
            || !allowed.iter().any(|network| is_all(*network, true))
        {
            refused.push(Matcher::Not(Box::new(Matcher::Source(allowed))));
        }
    }
    let disallowed = networks(context, root, "lan-disallowed-ips");
    if !disallowed.is_empty() {
        refused.push(Matcher::Source(disallowed));
    }
    if refused.is_empty() {
        return;
    }
    let names = Matcher::Inbound(names(root));
    flat.refuse(context, Matcher::And(vec![names, Matcher::Or(refused)]), RejectMethod::Reset);
}

/// Networks whose clients need no password.
pub(super) fn open_to(context: &mut Context<'_>, root: &JsonValue) -> Vec<Cidr> {
    networks(context, root, "skip-auth-prefixes")
}

/// Whether a network holds every address of its family.
fn is_all(network: Cidr, is_ipv6: bool) -> bool {
    let all = if is_ipv6 { "::/0" } else { "0.0.0.0/0" };
    Cidr::parse(all) == Some(network)
}

/// The ports that these keys are about.
fn names(root: &JsonValue) -> Vec<Tag> {
    let mut names: Vec<Tag> =
        ["DEFAULT-HTTP", "DEFAULT-SOCKS", "DEFAULT-MIXED"].map(Tag::from).into_iter().collect();
    for item in yaml_access::get(root, "listeners").map(yaml_access::items).unwrap_or_default() {
        let is_local = matches!(yaml_access::text_of(item, "type"), Some("mixed" | "socks" | "http"));
        if is_local && yaml_access::get(item, "users").is_none() {
            names.extend(yaml_access::text_of(item, "name").map(Tag::from));
        }
    }
    names
}

fn networks(context: &mut Context<'_>, root: &JsonValue, key: &str) -> Vec<Cidr> {
    let mut found = Vec::new();
    for (text, at) in yaml_access::texts_of(root, key) {
        match Cidr::parse(text).filter(|_| text.contains('/')) {
            Some(network) => found.push(network),
            None => context.error(at, key, format!("no network: {}", value::excerpt(text))),
        }
    }
    found
}
