//! `snowflake-probetest`: flags.

use std::ffi::OsString;

use adit_model::SnowflakeProbe;

use super::listen::{ACME, address, tls};
use super::snowflake_flags::{FlagValues, SnowflakeExit, SnowflakeFlag, switch, text, usage as flags_usage};

const FLAGS: &[SnowflakeFlag] = &[
    text(&["addr"], "ADDRESS", ":8443", "address to listen on"),
    text(&["stun"], "URLS", "stun:stun.l.google.com:19302", "comma list of STUN servers"),
    text(&["cert"], "FILE", "", "certificate (PEM)"),
    text(&["key"], "FILE", "", "private key of the certificate (PEM)"),
    switch(&["disable-tls"], "speak HTTP"),
    ACME[0],
    ACME[1],
    ACME[2],
    ACME[3],
    ACME[4],
    switch(&["unsafe-logging"], "addresses in log lines"),
    text(&["strictInteractiveConnectivitySimulationSocks5Proxy"], "URL", "", "accepted with a warning"),
    text(&["moderateInteractiveConnectivitySimulationSocks5Proxy"], "URL", "", "accepted with a warning"),
];

/// A probe server to run.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ProbetestInvocation {
    /// Its settings.
    pub probe: SnowflakeProbe,
    /// Flags that have no effect and should have, by name.
    pub left_out: Vec<&'static str>,
}

/// Reads the flags.
///
/// # Errors
/// [`SnowflakeExit`].
pub fn flags(args: Vec<OsString>) -> Result<ProbetestInvocation, SnowflakeExit> {
    let values = FlagValues::read(FLAGS, args)?;
    let probe = SnowflakeProbe {
        listen: values.parsed("addr", address)?,
        tls: tls(&values)?,
        stun: values.get("stun").split(',').filter(|word| !word.is_empty()).map(str::to_owned).collect(),
        shows_addresses: values.is_set("unsafe-logging"),
    };
    let simulations = FLAGS[FLAGS.len() - 2..].iter().map(|flag| flag.names[0]);
    let left_out = simulations.filter(|name| !values.get(name).is_empty()).collect();
    Ok(ProbetestInvocation { probe, left_out })
}

/// The flags, for a person.
pub fn usage(name: &str) -> String {
    let closing = "Answers POST /probe. A NAT in front is not simulated by SOCKS5 proxies: a probe of a strict or moderate \
        NAT leaves out the answer's candidates.";
    flags_usage(name, "Snowflake's probetest 2.14.1", FLAGS, closing)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn settings_of_a_probe_server() {
        let read = |args: &[&str]| flags(args.iter().map(Into::into).collect());
        let found = read(&["-disable-tls", "-stun", "stun:a:1,stun:b:2"]).unwrap();
        assert_eq!(found.probe.stun, ["stun:a:1", "stun:b:2"]);
        assert_eq!(found.probe.listen, "[::]:8443".parse().unwrap());
        let name = "-moderateInteractiveConnectivitySimulationSocks5Proxy";
        let found = read(&["-disable-tls", name, "socks5://127.0.0.1:1082"]).unwrap();
        assert_eq!(found.left_out, [&name[1..]]);
        assert!(matches!(read(&[]), Err(SnowflakeExit::Wrong(_))));
    }
}
