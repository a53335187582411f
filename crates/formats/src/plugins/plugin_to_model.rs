//! From ends and options to the model.

use std::sync::Arc;
use std::time::Duration;

use adit_model::diagnostic::{Diagnostic, Diagnostics};
use adit_model::{
    Config, Dial, GoQuietClient, Inbound, InboundProtocol, Level, Limits, Log, ObfsClient, ObfsClientLayer,
    ObfsInbound, ObfsOutbound, ObfsServer, ObfsServerLayer, Outbound, OutboundProtocol, Redirect, Secret,
    SocketOptions, TcpOptions, Transports,
};
use adit_proto::goquiet::{Browser, DEFAULT_TICKET_S};
use adit_proto::ssr::Obfs;

use super::addresses::{PluginAddresses, listen, target};
use super::options::{OptionKind, Options};
use super::{OptionsFile, PluginEnvironment, PluginFlags, PluginProgram};
use crate::read::loaded::Loaded;
use crate::read::value::{self, excerpt, obfs_host, secret, text_of};

/// The host that simple-obfs names when none is given.
const USUAL_HOST: &str = "cloudfront.net";
/// Longest key and parameter in bytes.
const MAX_TEXT: usize = 4096;
/// Longest time with one ticket: a year.
const MAX_TICKET_S: u64 = 366 * 24 * 3600;

/// The configuration of a program that a Shadowsocks program has started. `file` is that of [`PluginProgram::file`].
///
/// # Errors
/// Everything that is wrong.
pub fn load_plugin(
    program: PluginProgram,
    environment: &PluginEnvironment,
    file: Option<&OptionsFile>,
) -> Result<Loaded, Diagnostics> {
    let ends = PluginAddresses::of_plugin(program, environment)?;
    let options = match file {
        Some(file) => Options::of_file(file, known(program))?,
        None => Options::parse("SS_PLUGIN_OPTIONS", environment.options()),
    };
    let mut loaded = load(program, ends, &options)?;
    // The Shadowsocks program is on its way out too when it ends its plugin.
    loaded.config.limits.drain = Duration::ZERO;
    Ok(loaded)
}

/// The configuration of a program that was started by itself. `file` is that of [`PluginProgram::file`].
///
/// # Errors
/// Everything that is wrong.
pub fn load_flags(
    program: PluginProgram,
    flags: &PluginFlags,
    file: Option<&OptionsFile>,
) -> Result<Loaded, Diagnostics> {
    let options = match (program, file) {
        (_, Some(file)) => Options::of_file(file, known(program))?,
        (PluginProgram::GqClient | PluginProgram::GqServer, None) => {
            Options::parse("command line -c", flags.options())
        }
        (PluginProgram::SsrLocal | PluginProgram::ObfsLocal | PluginProgram::ObfsServer, None) => {
            Options::of_flags(flags.as_options())
        }
    };
    load(program, ends(program, flags)?, &options)
}

fn ends(program: PluginProgram, flags: &PluginFlags) -> Result<PluginAddresses, Diagnostics> {
    let file: Arc<str> = "command line".into();
    let missing = |name: &str| {
        let error = Diagnostic::error(&file, format!("-{name}"), "missing");
        Diagnostics::from(error.hint(format!("{} -h prints all flags", program.name())))
    };
    let get = |name: &str| flags.get(name).ok_or_else(|| missing(name));
    let port = match (flags.get("p"), program) {
        (Some(port), _) => port,
        (None, PluginProgram::GqClient | PluginProgram::GqServer) => "443",
        (None, PluginProgram::SsrLocal | PluginProgram::ObfsLocal | PluginProgram::ObfsServer) => {
            return Err(missing("p"));
        }
    };
    if program.is_server() {
        let own = listen(&file, "-s", flags.get("s").unwrap_or("0.0.0.0"), port)?;
        let to = value::target(get("r")?);
        let to = to.map_err(|problem| Diagnostics::from(Diagnostic::error(&file, "-r", problem.text)))?;
        return Ok(PluginAddresses { listen: vec![own], targets: vec![to] });
    }
    let server = target(&file, "-s", get("s")?, port)?;
    let own = listen(&file, "-l", flags.get("b").unwrap_or("127.0.0.1"), get("l")?)?;
    Ok(PluginAddresses { listen: vec![own], targets: vec![server] })
}

fn load(program: PluginProgram, ends: PluginAddresses, options: &Options) -> Result<Loaded, Diagnostics> {
    let mut reader = Reader { options, found: options.check(known(program)) };
    if reader.found.has_errors() {
        reader.found.sort();
        return Err(reader.found);
    }
    let config =
        if program.is_server() { reader.server(program, ends) } else { reader.client(program, ends) };
    let Reader { mut found, .. } = reader;
    match config {
        Some(mut config) => {
            let level = if options.is_on("v") { Level::Debug } else { Level::Info };
            config.log = Log { level, ..Log::default() };
            Loaded::conclude(config, found)
        }
        None => {
            found.sort();
            Err(found)
        }
    }
}

/// The options of a program and their kinds.
pub(super) fn known(program: PluginProgram) -> &'static [(&'static str, OptionKind)] {
    use OptionKind::{Number, Switch, Text};
    match program {
        PluginProgram::SsrLocal => &[
            ("obfs", Text),
            ("param", Text),
            ("key", Text),
            ("fast-open", Switch),
            ("mptcp", Switch),
            ("v", Switch),
        ],
        PluginProgram::ObfsLocal => &[
            ("obfs", Text),
            ("obfs-host", Text),
            ("obfs-uri", Text),
            ("http-method", Text),
            ("fast-open", Switch),
            ("mptcp", Switch),
            ("v", Switch),
        ],
        PluginProgram::ObfsServer => {
            &[("obfs", Text), ("failover", Text), ("fast-open", Switch), ("mptcp", Switch), ("v", Switch)]
        }
        PluginProgram::GqClient => &[
            ("Key", Text),
            ("ServerName", Text),
            ("Browser", Text),
            ("TicketTimeHint", Number),
            ("FastOpen", Switch),
            ("fast-open", Switch),
            ("mptcp", Switch),
            ("v", Switch),
        ],
        PluginProgram::GqServer => &[
            ("Key", Text),
            ("WebServerAddr", Text),
            ("FastOpen", Switch),
            ("fast-open", Switch),
            ("mptcp", Switch),
            ("v", Switch),
        ],
    }
}

struct Reader<'o> {
    options: &'o Options,
    found: Diagnostics,
}

impl Reader<'_> {
    fn client(
        &mut self,
        program: PluginProgram,
        PluginAddresses { listen, targets }: PluginAddresses,
    ) -> Option<Config> {
        let layer = match program {
            PluginProgram::GqClient => ObfsClientLayer::GoQuiet(self.quiet_client()?),
            PluginProgram::SsrLocal => self.ssr_client()?,
            PluginProgram::ObfsLocal | PluginProgram::ObfsServer | PluginProgram::GqServer => {
                self.simple_client()?
            }
        };
        let first = targets.first()?.clone();
        let client = match ObfsOutbound::new(targets, layer) {
            Ok(client) => client,
            Err(error) => {
                let key = match program {
                    PluginProgram::SsrLocal => "param",
                    PluginProgram::GqClient | PluginProgram::GqServer => "ServerName",
                    PluginProgram::ObfsLocal | PluginProgram::ObfsServer => "obfs-host",
                };
                self.error(key, error.to_string(), "give another name");
                return None;
            }
        };
        let dial = Dial { fast_open: self.is_fast_open(), tcp: self.tcp(), ..Dial::default() };
        Some(Config {
            // As the programs do: one event loop.
            cores: Some(1),
            inbounds: vec![Inbound {
                name: program.name().into(),
                listen,
                socket: SocketOptions::default(),
                outbound: "server".into(),
                allow_private: true,
                protocol: InboundProtocol::Tunnel { target: first, transports: Transports::Tcp },
            }],
            outbounds: vec![Outbound {
                name: "server".into(),
                dial,
                protocol: OutboundProtocol::Obfs(client),
            }],
            limits: Limits::default(),
            ..Config::default()
        })
    }

    fn server(
        &mut self,
        program: PluginProgram,
        PluginAddresses { listen, targets }: PluginAddresses,
    ) -> Option<Config> {
        let (layer, fallback) = if program == PluginProgram::GqServer {
            (ObfsServerLayer::GoQuiet(self.key("Key")?), "WebServerAddr")
        } else {
            (ObfsServerLayer::Simple(self.simple()?), "failover")
        };
        let redirect = match self.options.text(fallback).filter(|text| !text.is_empty()) {
            Some(text) => match value::target(text) {
                Ok(target) => vec![Redirect { when: None, target }],
                Err(problem) => {
                    self.error(fallback, problem.text, "write host:port, for instance 127.0.0.1:80");
                    return None;
                }
            },
            None => Vec::new(),
        };
        if redirect.is_empty() && program == PluginProgram::GqServer {
            let text = "missing: other clients get no answer, which no web server does";
            self.found
                .push(self.options.warning("WebServerAddr", text).hint("name a web server as host:port"));
        }
        let server = ObfsInbound { target: targets.first()?.clone(), layer, redirect };
        let socket =
            SocketOptions { fast_open: self.is_fast_open(), tcp: self.tcp(), ..SocketOptions::default() };
        Some(Config {
            inbounds: vec![Inbound {
                name: program.name().into(),
                listen,
                socket,
                outbound: "direct".into(),
                allow_private: true,
                protocol: InboundProtocol::Obfs(server),
            }],
            outbounds: vec![Outbound {
                name: "direct".into(),
                dial: Dial::default(),
                protocol: OutboundProtocol::Direct,
            }],
            ..Config::default()
        })
    }

    fn is_fast_open(&self) -> bool {
        self.options.is_on("fast-open") || self.options.is_on("FastOpen")
    }

    fn tcp(&self) -> TcpOptions {
        TcpOptions { multipath: self.options.is_on("mptcp"), ..TcpOptions::default() }
    }

    fn simple(&mut self) -> Option<ObfsServer> {
        match self.options.text("obfs") {
            Some("http") => Some(ObfsServer::Http),
            Some("tls") => Some(ObfsServer::Tls),
            Some(other) => {
                self.error("obfs", format!("unknown obfs: {}", excerpt(other)), "http and tls exist");
                None
            }
            None => {
                self.error("obfs", "missing", "write obfs=http or obfs=tls");
                None
            }
        }
    }

    fn simple_client(&mut self) -> Option<ObfsClientLayer> {
        let obfs = self.simple();
        for (key, usual) in [("obfs-uri", "/"), ("http-method", "GET")] {
            if self.options.text(key).is_some_and(|text| text != usual) {
                let text = format!("not supported: {usual} is sent, which servers do not look at");
                self.found.push(self.options.warning(key, text));
            }
        }
        let host = self.options.text("obfs-host").unwrap_or(USUAL_HOST);
        let host = match text_of(host, MAX_TEXT).and_then(|host| obfs_host(&host)) {
            Ok(host) => host,
            Err(problem) => {
                self.error("obfs-host", problem.text, "write a host name, for instance www.example.com");
                return None;
            }
        };
        Some(ObfsClientLayer::Simple(match obfs? {
            ObfsServer::Http | ObfsServer::Off => ObfsClient::Http(host),
            ObfsServer::Tls => ObfsClient::Tls(host),
        }))
    }

    fn quiet_client(&mut self) -> Option<GoQuietClient> {
        let key = self.key("Key");
        let server_name = self.parameter("ServerName")?;
        let browser = match self.options.text("Browser").map(str::parse::<Browser>) {
            Some(Ok(browser)) => browser,
            Some(Err(error)) => {
                self.error("Browser", error.to_string(), "");
                return None;
            }
            None => Browser::default(),
        };
        let ticket_s = match self.options.text("TicketTimeHint").map(str::parse::<u64>) {
            Some(Ok(ticket_s @ 1..=MAX_TICKET_S)) => ticket_s,
            Some(_) => {
                self.error("TicketTimeHint", "no number of seconds from 1", "3600 is usual");
                return None;
            }
            None => DEFAULT_TICKET_S,
        };
        Some(GoQuietClient { key: key?, server_name, browser, ticket_s })
    }

    fn ssr_client(&mut self) -> Option<ObfsClientLayer> {
        let name = self.options.text("obfs").unwrap_or("plain");
        let obfs = match name.parse::<Obfs>() {
            Ok(obfs) => obfs,
            Err(error) => {
                self.error("obfs", error.to_string(), "");
                return None;
            }
        };
        let param = self.parameter("param")?;
        let needs_key = matches!(obfs, Obfs::GoQuiet | Obfs::TlsTicketAuth | Obfs::TlsTicketFastauth);
        let key = match self.options.text("key") {
            None if !needs_key => Secret::new(""),
            _ => self.key("key")?,
        };
        Some(if obfs == Obfs::GoQuiet {
            ObfsClientLayer::GoQuiet(GoQuietClient {
                key,
                server_name: param,
                browser: Browser::default(),
                ticket_s: DEFAULT_TICKET_S,
            })
        } else {
            ObfsClientLayer::Ssr { obfs, param, key }
        })
    }

    fn key(&mut self, key: &'static str) -> Option<Secret> {
        let Some(text) = self.options.text(key).filter(|text| !text.is_empty()) else {
            self.error(key, "missing", "both ends must have the same key; a list of one option ends with ;");
            return None;
        };
        match secret(text, MAX_TEXT) {
            Ok(key) => Some(key),
            Err(problem) => {
                self.error(key, problem.text, problem.hint.unwrap_or_default());
                None
            }
        }
    }

    /// A text that may be missing or empty.
    fn parameter(&mut self, key: &'static str) -> Option<Box<str>> {
        let text = self.options.text(key).unwrap_or_default();
        if text.is_empty() {
            return Some(Box::default());
        }
        text_of(text, MAX_TEXT).map_err(|problem| self.error(key, problem.text, "give another text")).ok()
    }

    fn error(&mut self, key: &str, problem: impl Into<String>, hint: impl Into<String>) {
        let (error, hint) = (self.options.error(key, problem), hint.into());
        self.found.push(if hint.is_empty() { error } else { error.hint(hint) });
    }
}
