//! `snowflake-proxy`: flags.

use std::ffi::OsString;
use std::path::PathBuf;
use std::time::Duration;

use adit_model::{SnowflakeProxy, WebUrl};
use adit_proto::snowflake::messages::Nat;
use adit_proto::snowflake::pattern::RelayPattern;

use super::snowflake_flags::{
    FlagValues, SnowflakeExit, SnowflakeFlag, duration, switch, text, usage as flags_usage,
};
use super::values::{broker, stun};

pub use super::client::VERSION;

/// The shortest pause between polls.
const LEAST_POLL: Duration = Duration::from_secs(2);

const FLAGS: &[SnowflakeFlag] = &[
    text(&["broker"], "URL", "https://snowflake-broker.torproject.net/", "address of the broker"),
    text(
        &["relay"],
        "URL",
        "wss://snowflake.torproject.net/",
        "relay for clients to whom the broker names none",
    ),
    text(
        &["stun"],
        "URLS",
        "stun:stun.l.google.com:19302,stun:stun.voip.blackberry.com:3478",
        "comma list of STUN servers",
    ),
    text(
        &["nat-probe-server"],
        "URL",
        "https://snowflake-broker.torproject.net:8443/probe",
        "server that finds out the NAT in front",
    ),
    text(&["capacity"], "N", "0", "clients at one time; 0 for no bound"),
    text(&["poll-interval"], "TIME", "5s", "pause between polls when the broker names none, 2s or more"),
    text(
        &["allowed-relay-hostname-pattern"],
        "PATTERN",
        "snowflake.torproject.net$",
        "end of the names of relays that are allowed; ^ in front for a whole name",
    ),
    switch(&["allow-non-tls-relay"], "allow relays without TLS"),
    switch(&["allow-proxying-to-private-addresses"], "allow relays at private addresses"),
    switch(&["keep-local-addresses"], "tell clients private and loopback addresses"),
    switch(&["unsafe-logging"], "log addresses; else they become [scrubbed]"),
    switch(&["verbose"], "log everything to the standard error too"),
    text(&["log"], "FILE", "", "file for the log"),
    switch(&["log-local-time"], "local time in the log; else UTC"),
    text(&["outbound-address"], "IP", "", "address that clients are to reach"),
    text(&["ephemeral-ports-range"], "MIN:MAX", "", "UDP ports for clients"),
    text(&["nat-retest-interval"], "TIME", "24h", "pause between two looks at the NAT; 0s for one look only"),
    text(&["summary-interval"], "TIME", "1h", "period of the summary; 0s for none"),
    switch(&["disable-stats-logger"], "no summary"),
    switch(&["metrics"], "serve metrics for Prometheus"),
    text(&["metrics-address"], "HOST", "localhost", "address of the metrics"),
    text(&["metrics-port"], "PORT", "9999", "port of the metrics"),
    text(&["geoipdb"], "FILE", "/usr/share/tor/geoip", "accepted; countries of clients are not looked up"),
    text(&["geoip6db"], "FILE", "/usr/share/tor/geoip6", "as -geoipdb"),
    text(
        &["covertdtls-config"],
        "MODE",
        "randomizemimic",
        "accepted and not obeyed: the DTLS hello stays as it is",
    ),
    text(&["covertdtls-fingerprint"], "HEX", "", "accepted and not obeyed"),
    switch(&["nat-type-force-unrestricted"], "take the NAT for unrestricted, and do not look"),
    switch(&["version"], "print the version"),
];

/// A proxy to run.
#[derive(Debug, Clone)]
pub struct SnowflakeProxyInvocation {
    /// Its settings.
    pub proxy: SnowflakeProxy,
    /// The file of the log.
    pub log: Option<PathBuf>,
    /// Whether the log shows addresses.
    pub shows_addresses: bool,
    /// Whether everything is logged to the standard error too.
    pub is_verbose: bool,
    /// Whether times in the log are local.
    pub local_time: bool,
    /// Host and port of the metrics, if they are served.
    pub metrics: Option<(String, u16)>,
}

/// Reads the flags.
///
/// # Errors
/// [`SnowflakeExit`].
pub fn flags(args: Vec<OsString>) -> Result<SnowflakeProxyInvocation, SnowflakeExit> {
    let values = FlagValues::read(FLAGS, args)?;
    if values.is_set("version") {
        return Err(SnowflakeExit::Version);
    }
    let some = |name| Some(values.get(name)).filter(|text| !text.is_empty());
    let metrics = values.is_set("metrics").then(|| {
        let port =
            values.parsed("metrics-port", |text| text.parse().map_err(|_| "parse error".to_owned()))?;
        Ok((values.get("metrics-address").to_owned(), port))
    });
    Ok(SnowflakeProxyInvocation {
        proxy: proxy(&values)?,
        log: some("log").map(PathBuf::from),
        shows_addresses: values.is_set("unsafe-logging"),
        is_verbose: values.is_set("verbose"),
        local_time: values.is_set("log-local-time"),
        metrics: metrics.transpose()?,
    })
}

fn proxy(values: &FlagValues) -> Result<SnowflakeProxy, SnowflakeExit> {
    let pattern = values.get("allowed-relay-hostname-pattern");
    if !RelayPattern::is_valid_rule(pattern) {
        return Err(SnowflakeExit::Wrong(
            "invalid allowed-relay-hostname-pattern: it must end with $".to_owned(),
        ));
    }
    let keep_local = values.is_set("keep-local-addresses");
    let outbound = match values.get("outbound-address") {
        "" => None,
        _ => Some(
            values.parsed("outbound-address", |text| text.parse().map_err(|_| "no address".to_owned()))?,
        ),
    };
    if outbound.is_some() && keep_local {
        return Err(SnowflakeExit::Wrong(
            "-outbound-address and -keep-local-addresses exclude each other".to_owned(),
        ));
    }
    let poll_interval = values.parsed("poll-interval", duration)?;
    if poll_interval < LEAST_POLL {
        return Err(SnowflakeExit::Wrong("-poll-interval must be 2s or more".to_owned()));
    }
    let capacity: usize =
        values.parsed("capacity", |text| text.parse().map_err(|_| "parse error".to_owned()))?;
    let some = |time: Duration| Some(time).filter(|time| !time.is_zero());
    let summary = some(values.parsed("summary-interval", duration)?);
    let url = |text: &str| WebUrl::parse(text).map_err(|error| error.to_string());
    Ok(SnowflakeProxy {
        broker: values.parsed("broker", broker)?,
        relay: values.get("relay").into(),
        stun: values.parsed("stun", stun)?,
        probe: match values.get("nat-probe-server") {
            "" => None,
            _ => Some(values.parsed("nat-probe-server", url)?),
        },
        capacity: Some(capacity).filter(|capacity| *capacity > 0),
        poll_interval,
        pattern: RelayPattern::parse(pattern),
        pattern_text: pattern.into(),
        allows_plain: values.is_set("allow-non-tls-relay"),
        allows_private: values.is_set("allow-proxying-to-private-addresses"),
        keep_local,
        outbound,
        ports: match values.get("ephemeral-ports-range") {
            "" => None,
            _ => Some(values.parsed("ephemeral-ports-range", ports)?),
        },
        retest: some(values.parsed("nat-retest-interval", duration)?),
        summary: summary.filter(|_| !values.is_set("disable-stats-logger")),
        nat: values.is_set("nat-type-force-unrestricted").then_some(Nat::Unrestricted),
        mimics_dtls: values.get("covertdtls-config") != "disable",
    })
}

fn ports(text: &str) -> Result<std::ops::RangeInclusive<u16>, String> {
    let range = text.split_once(':').and_then(|(min, max)| Some((min.parse().ok()?, max.parse().ok()?)));
    match range {
        Some((min, max)) if min > 0 && min <= max => Ok(min..=max),
        _ => Err("not min:max from 1 to 65535".to_owned()),
    }
}

/// The flags, for a person.
pub fn usage(name: &str) -> String {
    let closing = "It takes clients from the broker, and connects each by WebSocket to the relay that the broker \
                   names, if the pattern allows that. See docs/snowflake.md.";
    flags_usage(name, &format!("snowflake-proxy {VERSION}"), FLAGS, closing)
}
