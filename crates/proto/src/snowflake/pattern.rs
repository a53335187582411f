//! Patterns of host names: which relays a proxy accepts, and a broker demands.
//!
//! `^` at the front asks for the whole name, else its end is compared, without regard to dots. A rule ends with `$`.

/// A pattern.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RelayPattern {
    is_whole: bool,
    text: String,
}

impl RelayPattern {
    /// Reads a rule. One without `$` at its end works the same, but see [`RelayPattern::is_valid_rule`].
    pub fn parse(rule: &str) -> Self {
        let rule = rule.strip_suffix('$').unwrap_or(rule);
        let (is_whole, text) = match rule.strip_prefix('^') {
            Some(text) => (true, text),
            None => (false, rule),
        };
        Self { is_whole, text: text.to_owned() }
    }

    /// Whether a proxy may be started with this rule: it ends with `$`.
    pub fn is_valid_rule(rule: &str) -> bool {
        rule.ends_with('$')
    }

    /// Whether the host, without port, matches.
    pub fn matches(&self, host: &str) -> bool {
        if self.is_whole { host == self.text } else { host.ends_with(&self.text) }
    }

    /// Whether a broker of pattern `broker` takes a proxy of this one, as all programs judge it: the broker's `^` counts
    /// only when this pattern has one.
    pub fn covers(&self, broker: &Self) -> bool {
        if self.is_whole { broker == self } else { broker.text.ends_with(&self.text) }
    }
}

#[cfg(test)]
mod tests {
    use adit_testkit::{load, text};

    use super::*;

    #[test]
    fn recorded_judgements() {
        let vectors = load("snowflake/relay_patterns.json");
        let mut rows = 0;
        for row in vectors["relay_pattern_member"].as_array().unwrap() {
            let rule = text(row, "rule");
            assert_eq!(RelayPattern::is_valid_rule(rule), row["valid_rule"], "{row}");
            assert_eq!(RelayPattern::parse(rule).matches(text(row, "host")), row["is_member"], "{row}");
            rows += 1;
        }
        for row in vectors["relay_pattern_superset"].as_array().unwrap() {
            let (broker, proxy) = (text(row, "broker_pattern"), text(row, "proxy_pattern"));
            let accepted = RelayPattern::parse(proxy).covers(&RelayPattern::parse(broker));
            assert_eq!(accepted, row["proxy_accepted"], "{row}");
            rows += 1;
        }
        assert_eq!(rows, 14);
    }
}
