//! Outbounds that dial through another one.

use adit_model::{Config, Outbound, OutboundProtocol, Tag};

use super::fields::{Spanned, TomlReport};
use crate::read::value::{self, Problem};

/// Each outbound's table, and the name of the outbound that it dials through.
type Given = Vec<(String, Option<Spanned<Box<str>>>)>;

/// Sets the names, which must be those of other outbounds, without a loop. A group goes through its members.
pub(super) fn check(outbounds: &mut [Outbound], given: Given, report: &mut TomlReport<'_>) {
    let names: Vec<Tag> = outbounds.iter().map(|outbound| outbound.name.clone()).collect();
    for (outbound, (path, through)) in outbounds.iter_mut().zip(&given) {
        let Some(through) = through else { continue };
        let path = format!("{path}.through");
        if !names.iter().any(|name| **name == *through.value) {
            let problem = Problem::new(format!("no such outbound: {}", through.value));
            let problem = match value::closest(&through.value, names.iter().map(|name| &**name)) {
                Some(name) => problem.hint(format!("did you mean `{name}`?")),
                None => problem,
            };
            report.error(&through.at, path, problem);
            continue;
        }
        if outbound.dial.carrier.is_some() {
            let problem = Problem::new("a carrier sends datagrams, which do not go through another outbound");
            report.error(&through.at, path, problem.hint("leave out `through` or `carrier`"));
            continue;
        }
        outbound.dial.through = Some(Tag::from(&*through.value));
    }
    let Some(names) = find_loop(outbounds) else { return };
    let first = outbounds.iter().zip(&given).find(|(outbound, _)| outbound.name == names[0]);
    if let Some((_, (path, Some(through)))) = first {
        let names: Vec<&str> = names.iter().map(|name| &**name).collect();
        let problem = format!("a loop of outbounds: {}", names.join(" -> "));
        let hint = "one of them must connect directly";
        report.error(&through.at, format!("{path}.through"), Problem::new(problem).hint(hint));
    }
}

/// A loop along `through`, and from groups to their members.
fn find_loop(outbounds: &[Outbound]) -> Option<Vec<Tag>> {
    if let Some(names) = Config::through_loop(outbounds) {
        return Some(names);
    }
    let group = |name: &Tag| {
        let group = outbounds.iter().find(|outbound| outbound.name == *name)?;
        if let OutboundProtocol::Group(group) = &group.protocol { Some(group) } else { None }
    };
    // A group has no group among its members: one step more finds what leads back.
    outbounds.iter().find_map(|outbound| {
        let through = outbound.dial.through.as_ref()?;
        let is_member = |member: &adit_model::Member| member.outbound == outbound.name;
        let leads_back = group(through)?.members.iter().any(is_member);
        leads_back.then(|| vec![outbound.name.clone(), through.clone(), outbound.name.clone()])
    })
}
