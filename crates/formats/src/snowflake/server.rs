//! `snowflake-server`: flags, and the environment of a managed transport (version 1).

use std::ffi::OsString;
use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;

use adit_model::{SnowflakeServer, SnowflakeTarget, TlsFiles};

use super::listen::{ACME, address, cache, size, tls};
use super::snowflake_flags::{FlagValues, SnowflakeExit, SnowflakeFlag, switch, text, usage as flags_usage};

/// The version that this program reports: that of the peer.
pub const VERSION: &str = "2.14.1";
/// The transport's name.
const METHOD: &str = "snowflake";
/// Least bytes of a session, and of all sessions.
const LEAST_MEMORY: [usize; 2] = [256 << 10, 16 << 20];
/// Most state machines.
const MAX_INSTANCES: usize = 256;

const FLAGS: &[SnowflakeFlag] = &[
    ACME[0],
    ACME[1],
    text(
        &["acme-cert-cache"],
        "DIR",
        "",
        "folder of the certificates; with Tor snowflake-certificate-cache in its state (adit's own)",
    ),
    ACME[3],
    ACME[4],
    text(&["cert"], "FILE", "", "certificate (PEM; adit's own)"),
    text(&["key"], "FILE", "", "private key of the certificate (PEM; adit's own)"),
    switch(&["disable-tls"], "speak HTTP"),
    text(&["log"], "FILE", "", "file for the log; else the standard error"),
    switch(&["unsafe-logging"], "addresses in log lines"),
    switch(&["version"], "print the version"),
    text(&["listen"], "ADDRESS", "", "without Tor: address to listen on (adit's own)"),
    text(&["target"], "ADDRESS", "", "without Tor: service on TCP behind it (adit's own)"),
    text(
        &["num-turbotunnel"],
        "N",
        "1",
        "state machines of KCP, each on an event loop; as the option of torrc",
    ),
    text(&["orport-srcaddr"], "NET", "", "addresses to dial from; as the option of torrc"),
    text(&["session-memory"], "BYTES", "8M", "most that one client may hold in each direction (adit's own)"),
    text(
        &["total-memory"],
        "BYTES",
        "",
        "most that all clients may hold; a quarter of the memory (adit's own)",
    ),
    text(&["stream-buffer"], "BYTES", "", "window of a stream; grows by itself (adit's own)"),
];

/// A server's flags.
#[derive(Debug)]
pub struct SnowflakeServerFlags {
    values: FlagValues,
    tls: Option<TlsFiles>,
    /// The file of the log.
    pub log: Option<PathBuf>,
    /// Whether log lines hold addresses.
    pub shows_addresses: bool,
}

/// Why Tor is told that the program does not run; the text is the whole line.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PtError(pub String);

/// A server as Tor asked for it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Managed {
    /// Its settings; with none nothing is served.
    pub server: Option<SnowflakeServer>,
    /// The line that says where it listens.
    pub line: String,
    /// Lines for methods that are not served.
    pub errors: Vec<String>,
    /// Whether the end of standard input ends the program.
    pub ends_with_input: bool,
}

/// Reads the flags.
///
/// # Errors
/// [`SnowflakeExit`].
pub fn flags(args: Vec<OsString>) -> Result<SnowflakeServerFlags, SnowflakeExit> {
    let values = FlagValues::read(FLAGS, args)?;
    if values.is_set("version") {
        return Err(SnowflakeExit::Version);
    }
    let tls = tls(&values)?;
    let log = Some(values.get("log")).filter(|text| !text.is_empty()).map(PathBuf::from);
    let shows_addresses = values.is_set("unsafe-logging");
    Ok(SnowflakeServerFlags { values, tls, log, shows_addresses })
}

impl SnowflakeServerFlags {
    /// The settings of a server without Tor, if the flags ask for one.
    ///
    /// # Errors
    /// [`SnowflakeExit::Wrong`].
    pub fn alone(&self) -> Result<Option<SnowflakeServer>, SnowflakeExit> {
        let (listen, target) = (self.values.get("listen"), self.values.get("target"));
        if listen.is_empty() && target.is_empty() {
            return Ok(None);
        }
        let target = SnowflakeTarget::Plain(self.values.parsed("target", address)?);
        self.server(self.values.parsed("listen", address)?, target, &[])
            .map(Some)
            .map_err(SnowflakeExit::Wrong)
    }

    /// The settings of a server that Tor starts. `env` gives variables of the environment.
    ///
    /// # Errors
    /// [`PtError`].
    pub fn managed(mut self, env: impl Fn(&str) -> Option<String>) -> Result<Managed, PtError> {
        let missing = |name: &str| PtError(format!("ENV-ERROR no {name} environment variable"));
        let need = |name: &str| env(name).filter(|value| !value.is_empty()).ok_or_else(|| missing(name));
        let versions = need("TOR_PT_MANAGED_TRANSPORT_VER")?;
        if !versions.split(',').any(|version| version == "1") {
            return Err(PtError("VERSION-ERROR no-version".into()));
        }
        let (transports, binds) = (need("TOR_PT_SERVER_TRANSPORTS")?, need("TOR_PT_SERVER_BINDADDR")?);
        let options = options(&env("TOR_PT_SERVER_TRANSPORT_OPTIONS").unwrap_or_default())?;
        let target = target(&env)?;
        if let Some(files) = self.tls.as_mut().filter(|files| files.acme.is_some())
            && self.values.get("acme-cert-cache").is_empty()
        {
            let state = PathBuf::from(need("TOR_PT_STATE_LOCATION")?);
            cache(files, &state.join("snowflake-certificate-cache"));
        }
        let mut managed =
            Managed { server: None, line: String::new(), errors: Vec::new(), ends_with_input: false };
        managed.ends_with_input = env("TOR_PT_EXIT_ON_STDIN_CLOSE").as_deref() == Some("1");
        for bind in binds.split(',') {
            let wrong =
                || PtError(format!("ENV-ERROR TOR_PT_SERVER_BINDADDR: {bind:?}: doesn't contain \"-\""));
            let (method, at) = bind.split_once('-').ok_or_else(wrong)?;
            if !transports.split(',').any(|name| name == method) {
                continue;
            }
            if method != METHOD {
                managed.errors.push(format!("SMETHOD-ERROR {method} no such method"));
                continue;
            }
            let parsed = at.parse::<SocketAddr>();
            let at = parsed
                .map_err(|_| PtError(format!("ENV-ERROR TOR_PT_SERVER_BINDADDR: {bind:?}: no address")))?;
            let made =
                match at.port() {
                    0 => Err("cannot listen on port 0; configure a port using ServerTransportListenAddr"
                        .to_owned()),
                    _ => self.server(at, target.clone(), &options),
                };
            match made {
                Ok(server) => {
                    managed.line = format!("SMETHOD {METHOD} {at} ARGS:{}", self.arguments());
                    managed.server = Some(server);
                }
                Err(problem) => managed.errors.push(format!("SMETHOD-ERROR {METHOD} {problem}")),
            }
        }
        Ok(managed)
    }

    /// The arguments of the SMETHOD line.
    fn arguments(&self) -> String {
        let escape = |text: &str| text.replace('\\', "\\\\").replace('=', "\\=").replace(',', "\\,");
        if self.tls.is_none() {
            return "tls=no".into();
        }
        let names = self.values.get("acme-hostnames").split(',').filter(|name| !name.is_empty());
        let names: String = names.map(|name| format!("hostname={},", escape(name))).collect();
        names + "tls=yes"
    }

    /// The settings; an option of torrc outranks the flag of its name.
    fn server(
        &self,
        listen: SocketAddr,
        target: SnowflakeTarget,
        options: &[(String, String)],
    ) -> Result<SnowflakeServer, String> {
        let value = |name: &str| {
            let given = options.iter().find(|(key, _)| key == name).map(|(_, value)| value.as_str());
            Some(given.unwrap_or_else(|| self.values.get(name))).filter(|value| !value.is_empty())
        };
        let bytes = |name: &str, least: usize| {
            let parse = |text: &str| {
                let bytes = size(text).map_err(|problem| format!("parsing {name}: {problem}"))?;
                if bytes < least {
                    Err(format!("parsing {name}: less than {least} bytes"))
                } else {
                    Ok(bytes)
                }
            };
            value(name).map(parse).transpose()
        };
        let instances = value("num-turbotunnel").unwrap_or("1").parse::<usize>();
        let instances = instances.map_err(|_| "parsing num-turbotunnel: invalid syntax".to_owned())?;
        if instances < 1 {
            return Err("parsing num-turbotunnel: cannot be less than 1".into());
        }
        let stream_buffer = bytes("stream-buffer", 4096)?;
        let session_memory = bytes("session-memory", LEAST_MEMORY[0])?;
        Ok(SnowflakeServer {
            listen,
            tls: self.tls.clone(),
            target,
            source: value("orport-srcaddr").map(network).transpose()?,
            instances: instances.min(MAX_INSTANCES),
            session_memory: session_memory.unwrap_or(SnowflakeServer::SESSION_MEMORY),
            total_memory: bytes("total-memory", LEAST_MEMORY[1])?,
            stream_buffer: stream_buffer.map(|bytes| u32::try_from(bytes).unwrap_or(u32::MAX >> 1)),
            shows_addresses: self.shows_addresses,
        })
    }
}

/// The service that Tor names; the extended port outranks the other.
fn target(env: &impl Fn(&str) -> Option<String>) -> Result<SnowflakeTarget, PtError> {
    let wrong = |name: &str, value: &str| PtError(format!("ENV-ERROR {name}: {value:?}: no address"));
    let set = |name: &str| env(name).filter(|value| !value.is_empty());
    if let Some(port) = set("TOR_PT_EXTENDED_SERVER_PORT") {
        let cookie = set("TOR_PT_AUTH_COOKIE_FILE");
        let missing =
            || PtError("ENV-ERROR need TOR_PT_AUTH_COOKIE_FILE with TOR_PT_EXTENDED_SERVER_PORT".into());
        let at = port.parse().map_err(|_| wrong("TOR_PT_EXTENDED_SERVER_PORT", &port))?;
        return Ok(SnowflakeTarget::Extended(at, cookie.ok_or_else(missing)?.into()));
    }
    let missing =
        || PtError("ENV-ERROR need TOR_PT_ORPORT or TOR_PT_EXTENDED_SERVER_PORT environment variable".into());
    let port = set("TOR_PT_ORPORT").ok_or_else(missing)?;
    Ok(SnowflakeTarget::Plain(port.parse().map_err(|_| wrong("TOR_PT_ORPORT", &port))?))
}

/// The options of this transport: `snowflake:key=value;other:key=value`, with `\` in front of `:`, `;`, `=` and itself.
fn options(text: &str) -> Result<Vec<(String, String)>, PtError> {
    let mut out = Vec::new();
    for option in split(text, ';') {
        if option.is_empty() {
            continue;
        }
        let wrong = || PtError(format!("ENV-ERROR TOR_PT_SERVER_TRANSPORT_OPTIONS: {option:?}"));
        let [method, rest] = <[String; 2]>::try_from(split_once(&option, ':')).map_err(|_| wrong())?;
        let [key, value] = <[String; 2]>::try_from(split_once(&rest, '=')).map_err(|_| wrong())?;
        if method == METHOD {
            out.push((plain(&key), plain(&value)));
        }
    }
    Ok(out)
}

/// The parts between separators without `\` in front; escapes stay.
fn split(text: &str, separator: char) -> Vec<String> {
    let (mut parts, mut is_escaped) = (vec![String::new()], false);
    for letter in text.chars() {
        if letter == separator && !is_escaped {
            parts.push(String::new());
            continue;
        }
        is_escaped = letter == '\\' && !is_escaped;
        parts.iter_mut().next_back().expect("one at least").push(letter);
    }
    parts
}

/// The part in front of the first separator, and the rest.
fn split_once(text: &str, separator: char) -> Vec<String> {
    let mut parts = split(text, separator);
    if parts.len() > 2 {
        let rest = parts.split_off(1).join(&separator.to_string());
        parts.push(rest);
    }
    parts
}

/// A text without its escapes.
fn plain(text: &str) -> String {
    let mut letters = text.chars();
    let mut out = String::new();
    while let Some(letter) = letters.next() {
        out.extend(if letter == '\\' { letters.next() } else { Some(letter) });
    }
    out
}

/// `192.0.2.0/24`, or an address alone.
fn network(text: &str) -> Result<(IpAddr, u8), String> {
    let wrong = || format!("parsing srcaddr: {text:?} is no network");
    let (address, prefix) = text.split_once('/').unwrap_or((text, ""));
    let address: IpAddr = address.parse().map_err(|_| wrong())?;
    let most = if address.is_ipv4() { 32 } else { 128 };
    let prefix = if text.contains('/') { prefix.parse().map_err(|_| wrong())? } else { most };
    if prefix > most { Err(wrong()) } else { Ok((address, prefix)) }
}

/// The flags, for a person.
pub fn usage(name: &str) -> String {
    let closing = "Tor starts it (ServerTransportPlugin) and names port, target and options by the environment. Without Tor: \
        -listen and -target. SIGUSR1 logs what sessions hold; SIGHUP reads the certificate again. \
        Certificates that are fetched are renewed 30 days ahead.";
    flags_usage(name, "Snowflake's server 2.14.1", FLAGS, closing)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(args: &[&str]) -> Result<SnowflakeServerFlags, SnowflakeExit> {
        flags(args.iter().map(Into::into).collect())
    }

    const ENV: [(&str, &str); 5] = [
        ("TOR_PT_MANAGED_TRANSPORT_VER", "1"),
        ("TOR_PT_SERVER_TRANSPORTS", "snowflake"),
        ("TOR_PT_SERVER_BINDADDR", "snowflake-192.0.2.1:443"),
        ("TOR_PT_ORPORT", "127.0.0.1:9001"),
        ("TOR_PT_EXIT_ON_STDIN_CLOSE", "1"),
    ];

    /// The result with some variables changed; an empty one is absent.
    fn managed(args: &[&str], changed: &[(&str, &str)]) -> Result<Managed, PtError> {
        read(args).unwrap().managed(|name| {
            let all = changed.iter().chain(&ENV);
            all.clone().find(|(key, _)| *key == name).map(|(_, value)| (*value).to_owned())
        })
    }

    #[test]
    fn the_environment_of_tor() {
        let found = managed(&["-disable-tls"], &[]).unwrap();
        assert_eq!(found.line, "SMETHOD snowflake 192.0.2.1:443 ARGS:tls=no");
        let server = found.server.unwrap();
        assert_eq!(server.target, SnowflakeTarget::Plain("127.0.0.1:9001".parse().unwrap()));
        assert_eq!((server.instances, server.source, found.ends_with_input), (1, None, true));
        let options = "other:a=b;snowflake:num-turbotunnel=3;snowflake:orport-srcaddr=127.0.2.0/24;snowflake:x=a\\;b\\=c";
        let extended = [
            ("TOR_PT_SERVER_TRANSPORT_OPTIONS", options),
            ("TOR_PT_EXTENDED_SERVER_PORT", "127.0.0.1:9002"),
            ("TOR_PT_AUTH_COOKIE_FILE", "/c"),
        ];
        let args = ["-cert", "c", "-key", "k", "-acme-hostnames", "a.example,b.example"];
        let found = managed(&args, &extended).unwrap();
        let line = "SMETHOD snowflake 192.0.2.1:443 ARGS:hostname=a.example,hostname=b.example,tls=yes";
        assert_eq!(found.line, line);
        let server = found.server.unwrap();
        assert_eq!(server.target, SnowflakeTarget::Extended("127.0.0.1:9002".parse().unwrap(), "/c".into()));
        assert_eq!((server.instances, server.source), (3, Some(("127.0.2.0".parse().unwrap(), 24))));
    }

    #[test]
    fn certificates_are_kept_in_the_state_of_tor() {
        let args = ["--acme-hostnames", "a.example,B.example", "--acme-email", "me@example.org"];
        let state = ("TOR_PT_STATE_LOCATION", "/s");
        let found = managed(&args, &[state]).unwrap();
        let line = "SMETHOD snowflake 192.0.2.1:443 ARGS:hostname=a.example,hostname=B.example,tls=yes";
        assert_eq!(found.line, line);
        let files = found.server.unwrap().tls.unwrap();
        assert_eq!(files.certificate, PathBuf::from("/s/snowflake-certificate-cache/a.example"));
        assert_eq!(files.key, files.certificate);
        let acme = files.acme.unwrap();
        assert_eq!((&*acme.names[1], acme.email.as_deref()), ("b.example", Some("me@example.org")));
        assert_eq!((&*acme.directory.authority, acme.answers), ("acme-v02.api.letsencrypt.org", None));
        let missing = PtError("ENV-ERROR no TOR_PT_STATE_LOCATION environment variable".into());
        assert_eq!(managed(&args, &[("TOR_PT_STATE_LOCATION", "")]), Err(missing));
        let args = ["-acme-hostnames", "a.example", "-acme-cert-cache", "/c", "-acme-http", ":5002"];
        let files = managed(&args, &[]).unwrap().server.unwrap().tls.unwrap();
        assert_eq!(files.certificate, PathBuf::from("/c/a.example"));
        assert_eq!(files.acme.unwrap().answers, Some("[::]:5002".parse().unwrap()));
    }

    #[test]
    fn errors_for_tor() {
        for (changed, line) in [
            (
                ("TOR_PT_MANAGED_TRANSPORT_VER", ""),
                "ENV-ERROR no TOR_PT_MANAGED_TRANSPORT_VER environment variable",
            ),
            (("TOR_PT_MANAGED_TRANSPORT_VER", "2,3"), "VERSION-ERROR no-version"),
            (
                ("TOR_PT_ORPORT", ""),
                "ENV-ERROR need TOR_PT_ORPORT or TOR_PT_EXTENDED_SERVER_PORT environment variable",
            ),
            (
                ("TOR_PT_EXTENDED_SERVER_PORT", "x"),
                "ENV-ERROR TOR_PT_EXTENDED_SERVER_PORT: \"x\": no address",
            ),
            (("TOR_PT_SERVER_TRANSPORT_OPTIONS", "x"), "ENV-ERROR TOR_PT_SERVER_TRANSPORT_OPTIONS: \"x\""),
        ] {
            assert_eq!(managed(&["-disable-tls"], &[changed]), Err(PtError(line.into())));
        }
        for (changed, line) in [
            (
                ("TOR_PT_SERVER_BINDADDR", "snowflake-192.0.2.1:0"),
                "SMETHOD-ERROR snowflake cannot listen on port 0; configure a port using ServerTransportListenAddr",
            ),
            (
                ("TOR_PT_SERVER_TRANSPORT_OPTIONS", "snowflake:num-turbotunnel=0"),
                "SMETHOD-ERROR snowflake parsing num-turbotunnel: cannot be less than 1",
            ),
            (
                ("TOR_PT_SERVER_TRANSPORT_OPTIONS", "snowflake:orport-srcaddr=x"),
                "SMETHOD-ERROR snowflake parsing srcaddr: \"x\" is no network",
            ),
            (
                ("TOR_PT_SERVER_TRANSPORT_OPTIONS", "snowflake:session-memory=1K"),
                "SMETHOD-ERROR snowflake parsing session-memory: less than 262144 bytes",
            ),
        ] {
            let found = managed(&["-disable-tls"], &[changed]).unwrap();
            assert_eq!((found.server, found.errors), (None, vec![line.to_owned()]));
        }
        let others = [
            ("TOR_PT_SERVER_TRANSPORTS", "obfs4,snowflake"),
            ("TOR_PT_SERVER_BINDADDR", "obfs4-192.0.2.1:1,snowflake-192.0.2.1:2,x-192.0.2.1:3"),
        ];
        let found = managed(&["-disable-tls"], &others).unwrap();
        assert_eq!(found.errors, ["SMETHOD-ERROR obfs4 no such method"]);
        assert!(found.server.is_some());
    }

    #[test]
    fn without_tor() {
        let flags =
            read(&["-disable-tls", "-listen", ":1", "-target", "localhost:2", "-session-memory", "4M"]);
        let server = flags.unwrap().alone().unwrap().unwrap();
        assert_eq!((server.session_memory, server.total_memory), (4 << 20, None));
        assert_eq!(read(&["-disable-tls"]).unwrap().alone(), Ok(None));
        assert!(matches!(
            read(&["-disable-tls", "-listen", ":1"]).unwrap().alone(),
            Err(SnowflakeExit::Wrong(_))
        ));
        assert!(
            matches!(read(&["-acme-hostnames", "a"]), Err(SnowflakeExit::Wrong(text)) if text.contains("no name"))
        );
        assert!(matches!(read(&["-version"]), Err(SnowflakeExit::Version)));
    }
}
