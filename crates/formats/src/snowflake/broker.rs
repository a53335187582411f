//! `snowflake-broker`: flags of 2.14.1, those of 2.5.1 beside them.

use std::ffi::OsString;
use std::path::PathBuf;

use adit_model::SnowflakeBroker;
use adit_proto::snowflake::Scheme;

use super::listen::{ACME, address, tls};
use super::snowflake_flags::{
    FlagValues, SnowflakeExit, SnowflakeFlag, duration, switch, text, usage as flags_usage,
};

const FLAGS: &[SnowflakeFlag] = &[
    text(&["addr"], "ADDRESS", ":443", "address to listen on"),
    text(&["cert"], "FILE", "", "certificate (PEM)"),
    text(&["key"], "FILE", "", "private key of the certificate (PEM)"),
    switch(&["disable-tls"], "speak HTTP"),
    ACME[0],
    ACME[1],
    ACME[2],
    ACME[3],
    ACME[4],
    text(&["bridge-list-path"], "FILE", "", "list of bridges, one object of JSON per line"),
    text(&["allowed-relay-pattern"], "PATTERN", "", "pattern of relay names that a proxy's must cover"),
    text(
        &["default-relay-pattern"],
        "PATTERN",
        "",
        "pattern of proxies that send none (-scheme 2.5.1 alone)",
    ),
    text(&["poll-interval-filepath"], "FILE", "", "poll intervals in milliseconds (JSON)"),
    text(&["trusted-hops"], "N", "1", "reverse proxies in front, for addresses of proxies"),
    switch(&["disable-geoip"], "count no countries"),
    text(&["geoipdb"], "FILE", "/usr/share/tor/geoip", "countries of IPv4 addresses"),
    text(&["geoip6db"], "FILE", "/usr/share/tor/geoip6", "countries of IPv6 addresses"),
    text(&["metrics-log"], "FILE", "", "file for the summary of each day; else the standard output"),
    text(
        &["ip-count-prefix", "ip-count-log"],
        "PATH",
        "",
        "accepted with a warning: sketches are not written",
    ),
    text(&["ip-count-interval"], "TIME", "1h", "accepted, without effect"),
    text(&["ip-count-mask"], "KEY", "", "accepted, without effect"),
    text(&["broker-sqs-name"], "NAME", "", "refused: there is no rendezvous by SQS"),
    text(&["broker-sqs-region"], "REGION", "", "as -broker-sqs-name"),
    text(&["sqs-profiles"], "NAMES", "", "accepted, without effect"),
    switch(&["unsafe-logging"], "addresses in log lines"),
    text(&["scheme"], "VERSION", "current", "answers as this broker does: current or 2.5.1 (adit's own)"),
];

/// A broker to run.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BrokerInvocation {
    /// Its settings.
    pub broker: SnowflakeBroker,
    /// Flags that have no effect and should have, by name.
    pub left_out: Vec<&'static str>,
}

/// Reads the flags.
///
/// # Errors
/// [`SnowflakeExit`].
pub fn flags(args: Vec<OsString>) -> Result<BrokerInvocation, SnowflakeExit> {
    let values = FlagValues::read(FLAGS, args)?;
    for name in ["broker-sqs-name", "broker-sqs-region"] {
        if !values.get(name).is_empty() {
            return Err(SnowflakeExit::Wrong(format!("flag -{name}: adit has no rendezvous by SQS")));
        }
    }
    values.parsed("ip-count-interval", duration)?;
    let some = |name| Some(values.get(name)).filter(|text| !text.is_empty());
    let scheme = values.parsed("scheme", |text| match text {
        "current" => Ok(Scheme::Current),
        "2.5.1" => Ok(Scheme::Old),
        _ => Err("not current or 2.5.1".to_owned()),
    })?;
    let countries = (!values.is_set("disable-geoip"))
        .then(|| (values.get("geoipdb").into(), values.get("geoip6db").into()));
    let broker = SnowflakeBroker {
        listen: values.parsed("addr", address)?,
        tls: tls(&values)?,
        scheme,
        bridges: some("bridge-list-path").map(PathBuf::from),
        pattern: values.get("allowed-relay-pattern").to_owned(),
        default_pattern: (scheme == Scheme::Old).then(|| values.get("default-relay-pattern").to_owned()),
        countries,
        metrics_log: some("metrics-log").map(PathBuf::from),
        poll_intervals: some("poll-interval-filepath").map(PathBuf::from),
        trusted_hops: values.parsed("trusted-hops", |text| {
            let hops: i64 = text.parse().map_err(|_| "parse error".to_owned())?;
            Ok(usize::try_from(hops).unwrap_or(0))
        })?,
        shows_addresses: values.is_set("unsafe-logging"),
    };
    let left_out = some("ip-count-prefix").map(|_| "ip-count-prefix").into_iter().collect();
    Ok(BrokerInvocation { broker, left_out })
}

/// The flags, for a person.
pub fn usage(name: &str) -> String {
    let closing = "SIGHUP reads the list of bridges, countries, poll intervals and certificate again; clients and proxies \
        that wait stay. SIGTERM lets open polls finish.";
    flags_usage(name, "Snowflake's broker 2.14.1", FLAGS, closing)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(args: &[&str]) -> Result<BrokerInvocation, SnowflakeExit> {
        flags(args.iter().map(Into::into).collect())
    }

    #[test]
    fn settings_of_a_broker() {
        let found = read(&["-addr=:8080", "--disable-tls", "-disable-geoip", "-trusted-hops", "-1"]).unwrap();
        let broker = found.broker;
        assert_eq!(broker.listen, "[::]:8080".parse().unwrap());
        assert_eq!((broker.tls, broker.countries, broker.trusted_hops), (None, None, 0));
        assert_eq!((broker.scheme, broker.default_pattern), (Scheme::Current, None));
        let found = read(&["-cert", "c", "-key", "k", "-scheme", "2.5.1", "-default-relay-pattern", "x$"]);
        let broker = found.unwrap().broker;
        assert_eq!(broker.default_pattern.as_deref(), Some("x$"));
        assert!(broker.tls.is_some() && broker.countries.is_some());
        let left_out = read(&["-disable-tls", "-ip-count-prefix", "/x"]).unwrap().left_out;
        assert_eq!(left_out, ["ip-count-prefix"]);
    }

    #[test]
    fn flags_that_cannot_be_obeyed_are_refused() {
        for (args, part) in [
            (&[][..], "--disable-tls"),
            (&["-cert", "c"], "--key"),
            (&["-cert", "c", "-key", "k", "-disable-tls"], "not allowed"),
            (&["-acme-hostnames", "a.example,../x"], "\"../x\" is no name"),
            (&["-acme-hostnames", "a.example", "-acme-email", "me"], "not an address of mail"),
            (&["-acme-hostnames", "a.example", "-acme-directory", "ftp://x/"], "-acme-directory"),
            (&["-disable-tls", "-broker-sqs-name", "q"], "SQS"),
            (&["-disable-tls", "-scheme", "3"], "2.5.1"),
            (&["-disable-tls", "-addr", "a.example:1"], "-addr"),
            (&["-nonsense"], "not defined"),
        ] {
            let Err(SnowflakeExit::Wrong(text)) = read(args) else { panic!("{args:?} is taken") };
            assert!(text.contains(part), "{text}");
        }
        assert_eq!(read(&["-h"]), Err(SnowflakeExit::Help));
        assert!(usage("snowflake-broker").contains("-poll-interval-filepath FILE"));
    }
}
