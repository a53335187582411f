use std::time::Duration;

use adit_model::SnowflakeClient;

use super::*;

fn client(args: &[&str]) -> Result<client::SnowflakeClientInvocation, SnowflakeExit> {
    client::flags(args.iter().map(Into::into).collect())
}

fn proxy(args: &[&str]) -> Result<proxy::SnowflakeProxyInvocation, SnowflakeExit> {
    proxy::flags(args.iter().map(Into::into).collect())
}

#[test]
fn flags_are_read_as_go_reads_them() {
    let read =
        client(&["-url", "http://b.example/x/", "--max=3", "-unsafe-logging", "-log-to-state-dir=false"]);
    let read = read.unwrap();
    assert_eq!(&*read.client.broker.unwrap().path, "/x/");
    assert_eq!((read.client.max, read.shows_addresses, read.log_in_state), (3, true, false));
    let ice = client(&["-ice", "stun:a.example,stun:[2001:db8::1]:99, stun:1.2.3.4:5"]).unwrap().client.ice;
    let ice: Vec<String> = ice.iter().map(ToString::to_string).collect();
    assert_eq!(ice, ["a.example:3478", "[2001:db8::1]:99", "1.2.3.4:5"]);
    // A word that is no flag ends them.
    assert_eq!(client(&["-max", "2", "word", "-max", "3"]).unwrap().client.max, 2);
    assert_eq!(client(&["-max", "-7"]).unwrap().client.max, 1);
    assert_eq!(client(&["-h"]).unwrap_err(), SnowflakeExit::Help);
    assert_eq!(client(&["--version"]).unwrap_err(), SnowflakeExit::Version);
    for (args, why) in [
        (&["-nope"][..], "flag provided but not defined: -nope"),
        (&["-url"], "flag needs an argument: -url"),
        (&["-unsafe-logging=maybe"], "invalid boolean value \"maybe\" for -unsafe-logging: parse error"),
        (&["-max", "x"], "invalid value \"x\" for flag -max: parse error"),
        (&["-ice", "turn:a:1"], "ice: \"turn:a:1\" is no STUN server (stun:host:port)"),
        (
            &["-stream-window", "1"],
            "invalid value \"1\" for flag -stream-window: not from 65536 to 1073741824",
        ),
    ] {
        assert_eq!(client(args).unwrap_err(), SnowflakeExit::Wrong(why.to_owned()));
    }
}

#[test]
fn arguments_overrule_flags() {
    let flags = client(&["-url", "http://flag.example/", "-front", "f.example"]).unwrap().client;
    let text = "fingerprint=2B280B23E1107BB62ABFC40DDCC8824814F80A72;url=https://arg.example/;\
                fronts=a.example,b.example;front=c.example;utls-nosni=true;utls-imitate=HelloChrome_auto;max=4;x=y";
    let merged = client::with_arguments(&flags, text).unwrap();
    assert_eq!(&*merged.broker.unwrap().authority, "arg.example");
    let fronts: Vec<String> = merged.fronts.iter().map(ToString::to_string).collect();
    assert_eq!(fronts, ["a.example", "b.example"]);
    assert!(merged.hides_name && merged.imitates.is_some() && merged.fingerprint.is_some());
    assert_eq!(merged.max, 4);
    // Those of one connection are not those of the next.
    assert_eq!(&*flags.broker.unwrap().authority, "flag.example");
    let flags = SnowflakeClient::default();
    for (text, why) in [
        ("max=x", "max: parse error"),
        ("fingerprint=zz", "fingerprint: no 40 or 64 hex digits"),
        ("utls-imitate=netscape", "utls-imitate: unknown name \"netscape\""),
        ("word", "no equals sign in an argument"),
        ("=v", "an argument has no name"),
        ("a=b\\", "nothing behind the last backslash"),
    ] {
        assert_eq!(client::with_arguments(&flags, text).unwrap_err(), why);
    }
    let escaped = client::with_arguments(&flags, "ampcache=https://c.example/\\;x\\=\\\\;max=2").unwrap();
    assert_eq!((escaped.amp_cache.as_deref(), escaped.max), (Some("https://c.example/;x=\\"), 2));
    assert!(client::with_arguments(&flags, "").is_ok());
}

#[test]
fn a_proxys_flags() {
    let usual = proxy(&[]).unwrap().proxy;
    assert_eq!((usual.stun.len(), usual.capacity, usual.poll_interval), (2, None, Duration::from_secs(5)));
    assert_eq!(
        (usual.retest, usual.summary),
        (Some(Duration::from_secs(86_400)), Some(Duration::from_secs(3600)))
    );
    let given = proxy(&[
        "-capacity",
        "10",
        "-poll-interval",
        "2m30s",
        "-nat-retest-interval",
        "0s",
        "-ephemeral-ports-range",
        "2000:3000",
        "-allowed-relay-hostname-pattern",
        "^a.example$",
        "-metrics",
        "-disable-stats-logger",
    ]);
    let given = given.unwrap();
    assert_eq!(given.metrics, Some(("localhost".to_owned(), 9999)));
    let given = given.proxy;
    assert_eq!((given.capacity, given.poll_interval), (Some(10), Duration::from_secs(150)));
    assert_eq!((given.retest, given.summary, given.ports), (None, None, Some(2000..=3000)));
    assert!(given.pattern.matches("a.example") && !given.pattern.matches("b.a.example"));
    for args in [
        &["-poll-interval", "1s"][..],
        &["-poll-interval", "5"],
        &["-poll-interval", ""],
        &["-allowed-relay-hostname-pattern", "a.example"],
        &["-ephemeral-ports-range", "5:4"],
        &["-ephemeral-ports-range", "0:4"],
        &["-outbound-address", "192.0.2.1", "-keep-local-addresses"],
        &["-outbound-address", "x"],
        &["-capacity", "-1"],
        &["-broker", "ftp://x/"],
    ] {
        assert!(matches!(proxy(args), Err(SnowflakeExit::Wrong(_))), "{args:?}");
    }
}

#[test]
fn usage_fits_a_terminal() {
    for text in [client::usage("snowflake-client"), proxy::usage("snowflake-proxy")] {
        assert!(text.lines().all(|line| line.chars().count() <= 80), "{text}");
        assert!(text.contains("-unsafe-logging"));
    }
}
