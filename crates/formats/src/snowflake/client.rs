//! `snowflake-client`: flags, and the arguments of a bridge line.

use std::ffi::OsString;
use std::path::PathBuf;

use adit_model::SnowflakeClient;
use adit_proto::snowflake::messages::Fingerprint;

use super::snowflake_flags::{FlagValues, SnowflakeExit, SnowflakeFlag, switch, text, usage as flags_usage};
use super::values::{broker, hello, hosts, stun};

/// The version of the program whose place this takes.
pub const VERSION: &str = "2.14.1";

const FLAGS: &[SnowflakeFlag] = &[
    text(&["url"], "URL", "", "address of the broker"),
    text(&["front"], "HOST", "", "host to connect to in the broker's place; as -fronts"),
    text(&["fronts"], "HOSTS", "", "comma list of such hosts, of which one is drawn for each request"),
    text(&["ice"], "URLS", "", "comma list of STUN servers (stun:host:port)"),
    text(&["ampcache"], "URL", "", "AMP cache to ask in the broker's place"),
    text(&["sqsqueue"], "URL", "", "refused: there is no rendezvous by SQS"),
    text(&["sqscreds"], "TEXT", "", "as -sqsqueue"),
    text(&["max"], "N", "1", "proxies that are kept at one time"),
    text(&["log"], "FILE", "", "file for the log; without one nothing is logged"),
    switch(&["log-to-state-dir", "logToStateDir"], "-log is a path below the state directory that Tor names"),
    switch(&["keep-local-addresses", "keepLocalAddresses"], "tell proxies private and loopback addresses"),
    switch(&["unsafe-logging"], "log addresses; else they become [scrubbed]"),
    text(&["covertdtls-config"], "MODE", "disable", "accepted and not obeyed: the DTLS hello stays as it is"),
    text(&["covertdtls-fingerprint"], "HEX", "", "accepted and not obeyed"),
    text(
        &["socks"],
        "ADDRESS",
        "",
        "stand-alone: a SOCKS port here, without Tor and its environment (adit only)",
    ),
    text(
        &["stream-window"],
        "BYTES",
        "1048576",
        "bytes that the server may send before they have been read (adit only)",
    ),
    switch(&["version"], "print the version"),
];

/// A client to run.
#[derive(Debug, Clone)]
pub struct SnowflakeClientInvocation {
    /// The settings of connections that name no others.
    pub client: SnowflakeClient,
    /// The file of the log.
    pub log: Option<PathBuf>,
    /// Whether that is a path below the state directory.
    pub log_in_state: bool,
    /// Whether the log shows addresses.
    pub shows_addresses: bool,
    /// The address of a stand-alone SOCKS port, as it was written.
    pub socks: Option<String>,
}

/// Reads the flags.
///
/// # Errors
/// [`SnowflakeExit`].
pub fn flags(args: Vec<OsString>) -> Result<SnowflakeClientInvocation, SnowflakeExit> {
    let values = FlagValues::read(FLAGS, args)?;
    if values.is_set("version") {
        return Err(SnowflakeExit::Version);
    }
    let mut client = SnowflakeClient::default();
    for name in [
        "front",
        "fronts",
        "url",
        "ice",
        "ampcache",
        "sqsqueue",
        "covertdtls-config",
        "covertdtls-fingerprint",
    ] {
        let value = values.get(name);
        set(&mut client, name, value).map_err(SnowflakeExit::Wrong)?;
    }
    client.max = values.parsed("max", max)?;
    client.keep_local = values.is_set("keep-local-addresses");
    client.stream_window = values.parsed("stream-window", |text| {
        let bytes = text.parse().map_err(|_| "parse error".to_owned())?;
        if (65_536..=1 << 30).contains(&bytes) {
            Ok(bytes)
        } else {
            Err("not from 65536 to 1073741824".to_owned())
        }
    })?;
    let some = |name| Some(values.get(name)).filter(|text| !text.is_empty()).map(str::to_owned);
    Ok(SnowflakeClientInvocation {
        client,
        log: some("log").map(PathBuf::from),
        log_in_state: values.is_set("log-to-state-dir"),
        shows_addresses: values.is_set("unsafe-logging"),
        socks: some("socks"),
    })
}

fn max(text: &str) -> Result<usize, String> {
    let number: i64 = text.parse().map_err(|_| "parse error".to_owned())?;
    Ok(usize::try_from(number.clamp(1, 64)).unwrap_or(1))
}

/// Sets one value by its name, which flags and arguments share; an empty one changes nothing.
fn set(client: &mut SnowflakeClient, name: &str, value: &str) -> Result<(), String> {
    if value.is_empty() {
        return Ok(());
    }
    let wrong = |why: String| format!("{name}: {why}");
    match name {
        "url" => client.broker = Some(broker(value).map_err(wrong)?),
        "front" | "fronts" => client.fronts = hosts(value).map_err(wrong)?,
        "ice" => client.ice = stun(value).map_err(wrong)?,
        "ampcache" => client.amp_cache = Some(value.into()),
        "sqsqueue" | "sqscreds" => client.wants_queue = true,
        "max" => client.max = max(value).map_err(wrong)?,
        "fingerprint" => {
            let fingerprint = Fingerprint::parse(value);
            client.fingerprint = Some(fingerprint.ok_or_else(|| wrong("no 40 or 64 hex digits".to_owned()))?);
        }
        "utls-imitate" => {
            client.imitates = Some(hello(value).map_err(wrong)?);
        }
        "utls-nosni" => client.hides_name = matches!(value.to_ascii_lowercase().as_str(), "true" | "yes"),
        "covertdtls-config" => client.mimics_dtls = value != "disable",
        "covertdtls-fingerprint" => client.mimics_dtls = true,
        _ => {}
    }
    Ok(())
}

/// The settings of one connection: those of the flags, overruled by the arguments that came with it, `k=v;k=v` with a
/// backslash before `;`, `=` and `\` in names and values. Names that nobody knows are passed over.
///
/// # Errors
/// A text that names the wrong argument.
pub fn with_arguments(client: &SnowflakeClient, arguments: &str) -> Result<SnowflakeClient, String> {
    let mut client = client.clone();
    let pairs = pairs(arguments)?;
    let has_fronts = pairs.iter().any(|(name, value)| name == "fronts" && !value.is_empty());
    for (name, value) in &pairs {
        if name != "front" || !has_fronts {
            set(&mut client, name, value)?;
        }
    }
    Ok(client)
}

/// Names and values (pt-spec, section 3.5).
fn pairs(text: &str) -> Result<Vec<(String, String)>, String> {
    let mut pairs = Vec::new();
    let (mut name, mut value): (Option<String>, String) = (None, String::new());
    let mut chars = text.chars();
    let mut is_begun = false;
    while let Some(c) = chars.next() {
        is_begun = true;
        match c {
            '\\' => value.push(chars.next().ok_or("nothing behind the last backslash")?),
            '=' if name.is_none() => name = Some(std::mem::take(&mut value)),
            ';' => {
                let key = name.take().ok_or("no equals sign in an argument")?;
                pairs.push((key, std::mem::take(&mut value)));
                is_begun = false;
            }
            c => value.push(c),
        }
    }
    if is_begun {
        pairs.push((name.ok_or("no equals sign in an argument")?, value));
    }
    if pairs.iter().any(|(name, _)| name.is_empty()) {
        return Err("an argument has no name".to_owned());
    }
    Ok(pairs)
}

/// The flags, for a person.
pub fn usage(name: &str) -> String {
    let closing = "Tor starts it as a pluggable transport and names the port that it chose by CMETHOD. Arguments of a \
                   bridge line overrule flags: url, front, fronts, ice, ampcache, max, fingerprint, utls-imitate \
                   (accepted and not obeyed), utls-nosni. See docs/snowflake.md.";
    flags_usage(name, &format!("snowflake-client {VERSION}"), FLAGS, closing)
}
