//! Counters of a broker: the summary of a day, and Prometheus.

use std::collections::{BTreeMap, HashSet};
use std::fmt::Write as _;
use std::net::IpAddr;

use adit_proto::snowflake::messages::{Nat, ProxyType};
use adit_proto::wire::plain_date;

use super::country::{Countries, UNKNOWN};
use super::limit::{Hidden, Veil};

/// Seconds that a summary covers.
pub(super) const PERIOD_S: u64 = 86_400;
/// Addresses that are told apart within a period; others are not counted.
const MAX_ADDRESSES: usize = 1 << 20;

/// The way by which a client came.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum RendezvousMethod {
    Http,
    Amp,
}

/// The end of a client's poll.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum ClientEnd {
    Denied,
    Matched,
    Timeout,
}

impl ClientEnd {
    fn as_str(self) -> &'static str {
        match self {
            Self::Denied => "denied",
            Self::Matched => "matched",
            Self::Timeout => "timeout",
        }
    }
}

/// Labels of a sample, sorted by name, as text.
type Labels = String;

/// A family of samples: its name without the prefix, its help, its type.
type Family = (&'static str, &'static str, &'static str);

const AVAILABLE: Family =
    ("available_proxies", "The number of currently available snowflake proxies", "gauge");
const TOTAL: Family = ("proxy_total", "The number of unique snowflake IPs", "counter");
const CLIENT: Family = (
    "rounded_client_poll_total",
    "The number of snowflake client polls, rounded up to a multiple of 8",
    "counter",
);
const ANSWER: Family = (
    "rounded_proxy_answer_total",
    "The number of snowflake proxy answers, rounded up to a multiple of 8",
    "counter",
);
const POLL: Family = (
    "rounded_proxy_poll_total",
    "The number of snowflake proxy polls, rounded up to a multiple of 8",
    "counter",
);
const REJECTED: Family = (
    "rounded_proxy_poll_rejected_relay_url_extension_total",
    "The number of snowflake proxy polls rejected by Relay URL Extension, rounded up to a multiple of 8",
    "counter",
);
const WITH: Family = (
    "rounded_proxy_poll_with_relay_url_extension_total",
    "The number of snowflake proxy polls with Relay URL Extension, rounded up to a multiple of 8",
    "counter",
);
const WITHOUT: Family = (
    "rounded_proxy_poll_without_relay_url_extension_total",
    "The number of snowflake proxy polls without Relay URL Extension, rounded up to a multiple of 8",
    "counter",
);

/// All counters.
#[derive(Debug, Default)]
pub(super) struct Stats {
    /// `None` counts no addresses.
    pub(super) countries: Option<Countries>,
    veil: Veil,
    /// Addresses of the period, with the number of their aspect: 0 the address itself, then NATs, then types.
    seen: HashSet<(Hidden, u8)>,
    counts: BTreeMap<String, u64>,
    by_country: [BTreeMap<String, u64>; 3],
    families: BTreeMap<&'static str, (Family, BTreeMap<Labels, i64>)>,
}

impl Stats {
    fn add(&mut self, name: &str) {
        match self.counts.get_mut(name) {
            Some(count) => *count += 1,
            None => drop(self.counts.insert(name.to_owned(), 1)),
        }
    }

    fn sample(&mut self, family: Family, labels: Labels, more: i64) {
        let (_, samples) = self.families.entry(family.0).or_insert_with(|| (family, BTreeMap::new()));
        *samples.entry(labels).or_default() += more;
    }

    /// A poll, before its pattern is judged.
    pub(super) fn proxy_polled(&mut self, kind: ProxyType, nat: Nat, has_pattern: bool) {
        let (name, family) = match has_pattern {
            true => ("proxy-poll-with-relay-url", WITH),
            false => ("proxy-poll-without-relay-url", WITHOUT),
        };
        self.add(name);
        self.sample(family, proxy_labels(kind, nat, ""), 1);
    }

    /// A poll whose pattern was refused.
    pub(super) fn pattern_refused(&mut self, kind: ProxyType, nat: Nat) {
        self.add("proxy-poll-rejected-relay-url");
        self.sample(REJECTED, proxy_labels(kind, nat, ""), 1);
    }

    /// The address of a proxy, which is counted once a period. Nothing is counted without countries.
    pub(super) fn proxy_seen(&mut self, address: IpAddr, kind: ProxyType, nat: Nat) {
        let Some(countries) = &self.countries else { return };
        let hidden = self.veil.hide(Some(address));
        let country = countries.find(Some(address)).to_owned();
        if self.is_new((hidden, 0)) {
            self.add("proxy-total");
            *self.by_country[0].entry(country.clone()).or_default() += 1;
            let (nat, kind) = (nat.as_str(), kind.as_str());
            self.sample(TOTAL, format!("cc=\"{country}\",nat=\"{nat}\",type=\"{kind}\""), 1);
        }
        if self.is_new((hidden, 1 + nat as u8)) {
            self.add(&format!("proxy-nat-{}", nat.as_str()));
        }
        if self.is_new((hidden, 16 + kind as u8)) && kind != ProxyType::Unknown {
            self.add(&format!("proxy-{}", kind.as_str()));
        }
    }

    fn is_new(&mut self, key: (Hidden, u8)) -> bool {
        self.seen.len() < MAX_ADDRESSES && self.seen.insert(key)
    }

    /// A poll begins or ends to wait.
    pub(super) fn proxy_waits(&mut self, kind: ProxyType, nat: Nat, more: i64) {
        self.sample(AVAILABLE, proxy_labels(kind, nat, ""), more);
    }

    /// The end of a poll.
    pub(super) fn proxy_done(&mut self, kind: ProxyType, nat: Nat, is_matched: bool) {
        if !is_matched {
            self.add("proxy-idle");
        }
        let status = if is_matched { "matched" } else { "idle" };
        self.sample(POLL, proxy_labels(kind, nat, status), 1);
    }

    /// An answer; without a type its poll is not known.
    pub(super) fn answered(&mut self, kind: Option<ProxyType>) {
        let status = if kind.is_some() { "success" } else { "timeout" };
        let kind = kind.map_or("", ProxyType::as_str);
        self.sample(ANSWER, format!("status=\"{status}\",type=\"{kind}\""), 1);
    }

    /// The end of a client's poll.
    pub(super) fn client_done(
        &mut self,
        address: Option<IpAddr>,
        by: RendezvousMethod,
        nat: Nat,
        end: ClientEnd,
    ) {
        let country = self.countries.as_ref().map_or(UNKNOWN, |countries| countries.find(address)).to_owned();
        match end {
            ClientEnd::Denied => {
                self.add("client-denied");
                self.add(&match nat {
                    Nat::Restricted | Nat::Unrestricted => format!("client-{}-denied", nat.as_str()),
                    Nat::Unknown | Nat::Open | Nat::Moderate | Nat::Strict => {
                        format!("client-nat-{}-denied", nat.as_str())
                    }
                });
            }
            ClientEnd::Matched => self.add("client-match"),
            ClientEnd::Timeout => self.add("client-timeout"),
        }
        let (at, name, method) = match by {
            RendezvousMethod::Http => (1, "client-http", "http"),
            RendezvousMethod::Amp => (2, "client-ampcache", "ampcache"),
        };
        self.add(name);
        *self.by_country[at].entry(country.clone()).or_default() += 1;
        let (nat, status) = (nat.as_str(), end.as_str());
        let labels =
            format!("cc=\"{country}\",nat=\"{nat}\",rendezvous_method=\"{method}\",status=\"{status}\"");
        self.sample(CLIENT, labels, 1);
    }

    /// The text for Prometheus. Counters of polls are rounded up to a multiple of 8.
    pub(super) fn prometheus(&self) -> String {
        let mut out = String::new();
        for ((name, help, kind), samples) in self.families.values() {
            write!(out, "# HELP snowflake_{name} {help}\n# TYPE snowflake_{name} {kind}\n")
                .expect("a string");
            for (labels, count) in samples {
                let count = if name.starts_with("rounded") { (count + 7) / 8 * 8 } else { *count };
                writeln!(out, "snowflake_{name}{{{labels}}} {count}").expect("a string");
            }
        }
        out
    }

    /// The summary of the period that ends at `now_unix`; a new one begins.
    pub(super) fn take_summary(&mut self, now_unix: u64) -> String {
        let counts = std::mem::take(&mut self.counts);
        let [proxies, http, amp] = std::mem::take(&mut self.by_country);
        self.seen.clear();
        let count = |name: &str| counts.get(name).copied().unwrap_or(0);
        let rounded = |name: &str| count(name).div_ceil(8) * 8;
        let mut out = format!("snowflake-stats-end {} ({PERIOD_S} s)\n", plain_date(now_unix));
        let mut line = |name: &str, value: String| {
            writeln!(out, "{name} {value}").expect("a string");
        };
        line("snowflake-ips", countries(proxies, false));
        for kind in ProxyType::KNOWN {
            let word = kind.as_str();
            line(&format!("snowflake-ips-{word}"), count(&format!("proxy-{word}")).to_string());
        }
        line("snowflake-ips-total", count("proxy-total").to_string());
        for (name, key) in ROUNDED {
            line(name, rounded(key).to_string());
        }
        line("client-http-count", rounded("client-http").to_string());
        line("client-http-ips", countries(http, true));
        line("client-ampcache-count", rounded("client-ampcache").to_string());
        line("client-ampcache-ips", countries(amp, true));
        line("client-sqs-count", "0".into());
        line("client-sqs-ips", String::new());
        for nat in ["restricted", "unrestricted", "unknown", "strict", "moderate", "open"] {
            line(&format!("snowflake-ips-nat-{nat}"), count(&format!("proxy-nat-{nat}")).to_string());
        }
        out
    }
}

/// Lines of a summary that are rounded up to a multiple of 8, and the counters behind them.
const ROUNDED: [(&str, &str); 13] = [
    ("snowflake-idle-count", "proxy-idle"),
    ("snowflake-proxy-poll-with-relay-url-count", "proxy-poll-with-relay-url"),
    ("snowflake-proxy-poll-without-relay-url-count", "proxy-poll-without-relay-url"),
    ("snowflake-proxy-rejected-for-relay-url-count", "proxy-poll-rejected-relay-url"),
    ("client-denied-count", "client-denied"),
    ("client-restricted-denied-count", "client-restricted-denied"),
    ("client-unrestricted-denied-count", "client-unrestricted-denied"),
    ("client-nat-strict-denied-count", "client-nat-strict-denied"),
    ("client-nat-moderate-denied-count", "client-nat-moderate-denied"),
    ("client-nat-open-denied-count", "client-nat-open-denied"),
    ("client-nat-unknown-denied-count", "client-nat-unknown-denied"),
    ("client-snowflake-match-count", "client-match"),
    ("client-snowflake-timeout-count", "client-timeout"),
];

fn proxy_labels(kind: ProxyType, nat: Nat, status: &str) -> Labels {
    let (kind, nat) = (kind.as_str(), nat.as_str());
    let status = if status.is_empty() { String::new() } else { format!("status=\"{status}\",") };
    format!("nat=\"{nat}\",{status}type=\"{kind}\"")
}

/// `CC=count`, the most first.
fn countries(counts: BTreeMap<String, u64>, is_rounded: bool) -> String {
    let mut rows: Vec<(String, u64)> = counts.into_iter().collect();
    if is_rounded {
        rows.iter_mut().for_each(|(_, count)| *count = count.div_ceil(8) * 8);
    }
    rows.sort_by(|a, b| b.1.cmp(&a.1).then_with(|| a.0.cmp(&b.0)));
    let rows: Vec<String> = rows.into_iter().map(|(country, count)| format!("{country}={count}")).collect();
    rows.join(",")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_day() {
        let mut stats = Stats { countries: Some(Countries::default()), ..Stats::default() };
        for last in [1, 1, 2] {
            let address = IpAddr::from([192, 0, 2, last]);
            stats.proxy_seen(address, ProxyType::Webext, Nat::Open);
        }
        stats.proxy_seen(IpAddr::from([192, 0, 2, 2]), ProxyType::Unknown, Nat::Strict);
        for _ in 0..9 {
            stats.client_done(None, RendezvousMethod::Http, Nat::Strict, ClientEnd::Denied);
        }
        stats.client_done(None, RendezvousMethod::Amp, Nat::Unrestricted, ClientEnd::Denied);
        let text = stats.take_summary(1_795_223_529);
        for line in [
            "snowflake-stats-end 2026-11-21 01:12:09 (86400 s)",
            "snowflake-ips ??=2",
            "snowflake-ips-webext 2",
            "snowflake-ips-bloco 0",
            "snowflake-ips-total 2",
            "client-denied-count 16",
            "client-nat-strict-denied-count 16",
            "client-unrestricted-denied-count 8",
            "client-http-count 16",
            "client-http-ips ??=16",
            "client-ampcache-ips ??=8",
            "client-sqs-ips ",
            "snowflake-ips-nat-open 2",
            "snowflake-ips-nat-strict 1",
        ] {
            assert!(text.lines().any(|found| found == line), "{line:?} is missing in {text}");
        }
        assert_eq!(text.lines().count(), 33);
        assert!(stats.take_summary(0).contains("\nsnowflake-ips \n"), "a new day begins with nothing");
    }
}
