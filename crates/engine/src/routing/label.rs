//! Rules as control programs show them: a type, a payload and a target.

use std::fmt::Display;
use std::sync::Arc;

use adit_model::rule::{Fact, Matcher, Rule, Verdict};
use adit_model::{Config, RuleLine};

/// Values of one list that are shown.
const MOST: usize = 8;

/// The labels of the rules of a configuration, in the order in which they are asked.
pub(super) fn labels(config: &Config, rules: &[Rule]) -> Box<[Option<Arc<RuleLine>>]> {
    let Some(facade) = &config.facade else {
        return rules.iter().map(|rule| Some(Arc::new(line(rule)))).collect();
    };
    // Access lists come first.
    let before = rules.len().saturating_sub(facade.labels.len());
    let lists = rules.iter().take(before).map(|rule| Some(Arc::new(line(rule))));
    lists.chain(facade.labels.iter().cloned()).collect()
}

/// A rule in a line.
pub fn line(rule: &Rule) -> RuleLine {
    let (kind, payload) = show(&rule.matcher);
    let target = match &rule.verdict {
        Verdict::Outbound(outbound) | Verdict::Streams { outbound, .. } | Verdict::Ask { outbound, .. } => {
            outbound.to_string()
        }
        Verdict::Default => "default".to_owned(),
        Verdict::Reject(_) => "REJECT".to_owned(),
        Verdict::Pass(_) => "PASS".to_owned(),
        Verdict::Again { .. } => "rematch".to_owned(),
    };
    RuleLine { kind: kind.into(), payload: payload.into(), target: target.into() }
}

fn show(matcher: &Matcher) -> (&'static str, String) {
    match matcher {
        Matcher::Domain(all) => ("Domain", list(all)),
        Matcher::DomainSuffix(all) => ("DomainSuffix", list(all)),
        Matcher::DomainKeyword(all) => ("DomainKeyword", list(all)),
        Matcher::DomainRegex(all) => ("DomainRegex", list(all)),
        Matcher::IpCidr(all, _) => ("IPCIDR", list(all)),
        Matcher::GeoIp(all, _) => ("GeoIP", list(all)),
        Matcher::Set(all, _) => ("RuleSet", list(all)),
        Matcher::SourceSet(all) => ("RuleSet", list(all)),
        Matcher::Source(all) => ("SrcIPCIDR", list(all)),
        Matcher::SourcePort(all) => ("SrcPort", list(all)),
        Matcher::Port(all) => ("DstPort", list(all)),
        Matcher::Network(network) => ("Network", network.name().to_owned()),
        Matcher::Inbound(all) => ("InName", list(all)),
        Matcher::User(all) => ("InUser", list(all)),
        Matcher::And(all) if all.is_empty() => ("Match", String::new()),
        Matcher::And(all) => match &**all {
            [one] => show(one),
            all => ("AND", joined(all, " && ")),
        },
        Matcher::Or(all) => match &**all {
            [one] => show(one),
            all => ("OR", joined(all, " || ")),
        },
        Matcher::Not(one) => ("NOT", format!("(!{})", inner(one))),
        Matcher::Fact(Fact::ProcessName(all)) => ("ProcessName", list(all)),
        Matcher::Fact(Fact::ProcessPath(all)) => ("ProcessPath", list(all)),
        Matcher::Protocol(_) | Matcher::Unresolved | Matcher::IpSuffix(..) | Matcher::Fact(_) => {
            (matcher.key(), String::new())
        }
    }
}

fn inner(matcher: &Matcher) -> String {
    let (kind, payload) = show(matcher);
    format!("({kind},{payload})")
}

fn joined(all: &[Matcher], sign: &str) -> String {
    let shown: Vec<String> = all.iter().take(MOST).map(inner).collect();
    format!("({})", shown.join(sign))
}

fn list(all: &[impl Display]) -> String {
    let shown: Vec<String> = all.iter().take(MOST).map(ToString::to_string).collect();
    let more = if all.len() > MOST { format!("/... ({} in all)", all.len()) } else { String::new() };
    shown.join("/") + &more
}

#[cfg(test)]
mod tests {
    use adit_model::rule::{FileLine, Network, PortRange, RejectMethod};

    use super::*;

    #[test]
    fn rules_in_lines() {
        let port = || Matcher::Port(vec![PortRange { first: 1, last: 2 }]);
        let names = || Matcher::DomainSuffix(vec!["a.test".into(), "b.test".into()]);
        for (matcher, want) in [
            (Matcher::And(Vec::new()), "Match,,REJECT"),
            (Matcher::And(vec![names()]), "DomainSuffix,a.test/b.test,REJECT"),
            (
                Matcher::And(vec![names(), port()]),
                "AND,((DomainSuffix,a.test/b.test) && (DstPort,1-2)),REJECT",
            ),
            (Matcher::Not(Box::new(Matcher::Network(Network::Udp))), "NOT,(!(Network,udp)),REJECT"),
            (
                Matcher::User((0..20).map(|n| n.to_string().into()).collect()),
                "InUser,0/1/2/3/4/5/6/7/... (20 in all),REJECT",
            ),
        ] {
            let verdict = Verdict::Reject(RejectMethod::Reset);
            let RuleLine { kind, payload, target } =
                line(&Rule { matcher, verdict, at: FileLine::file("t") });
            assert_eq!(format!("{kind},{payload},{target}"), want);
        }
    }
}
