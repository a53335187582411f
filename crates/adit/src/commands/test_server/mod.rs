//! `adit test`: one server, step by step, through the engine's own outbounds.
//!
//! ```text
//!   resolve, connect    to the server, with the outbound's own settings
//!   handshake           a local port of the engine says that the outbound is open
//!   first byte          of a small page, fetched through the outbound
//!   udp                 a question to a name server, sent through the outbound
//! ```

mod local;
pub(super) mod probe;

use std::io::IsTerminal as _;
use std::net::SocketAddr;
use std::process::ExitCode;
use std::time::Duration;

use adit_formats::import;
use adit_model::shown;
use adit_model::{CHECK_DNS, CHECK_URL, Config, HttpUrl, OutboundProtocol};
use adit_net::rt::Cores;
use anyhow::{Context as _, bail};
use clap::Args;
use serde::Serialize;

use crate::load::files;
use crate::load::files::FileArgs;
use crate::print;

/// Flags of `adit test`.
#[derive(Debug, Args)]
pub(crate) struct TestArgs {
    /// A link (ss://, snell://), the name of an outbound, or - for links or lines on standard input
    #[arg(value_name = "LINK|OUTBOUND|-")]
    what: String,
    #[command(flatten)]
    files: FileArgs,
    /// The page that is fetched through the server, plain HTTP; any answer counts
    #[arg(long, value_name = "URL", default_value = CHECK_URL)]
    url: String,
    /// The name server that is asked by UDP through the server; any answer counts
    #[arg(long, value_name = "ADDRESS", default_value_t = CHECK_DNS)]
    dns: SocketAddr,
    /// Longest time for each step, in seconds
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u64).range(1..=60))]
    timeout: u64,
    /// Write for a program
    #[arg(long)]
    json: bool,
}

/// The result of one step.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum State {
    Ok,
    Fail,
    Skip,
}

/// One step.
#[derive(Debug, Clone, Serialize)]
pub(super) struct Step {
    pub(super) step: &'static str,
    pub(super) state: State,
    /// Milliseconds that it took.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) ms: Option<f64>,
    pub(super) detail: String,
}

/// The cause of a failure, or none.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub(super) enum Verdict {
    Ok,
    NameNotFound,
    ServerDown,
    WrongKey,
    Clock,
    UdpBlocked,
    TargetUnreachable,
}

/// The whole result.
#[derive(Debug, Serialize)]
pub(crate) struct Report {
    pub(crate) outbound: String,
    pub(super) verdict: Verdict,
    /// The verdict in words, with the remedy.
    pub(super) message: String,
    pub(super) steps: Vec<Step>,
}

/// The parts of a test that the user chooses.
pub(super) struct Plan {
    pub(crate) config: Config,
    /// The outbound's place in the configuration.
    pub(crate) outbound: usize,
    pub(super) url: HttpUrl,
    pub(super) dns: SocketAddr,
    pub(super) limit: Duration,
}

pub(crate) fn run(args: &TestArgs) -> anyhow::Result<ExitCode> {
    let url = HttpUrl::parse(&args.url).with_context(|| format!("bad --url: {}", args.url))?;
    let mut all_good = true;
    for (config, outbound) in targets(args)? {
        let limit = Duration::from_secs(args.timeout);
        let plan = Plan { config, outbound, url: url.clone(), dns: args.dns, limit };
        if !args.json && std::io::stderr().is_terminal() {
            print::remark(format_args!("testing {} ...", shown::line(&plan.config.outbounds[outbound].name)));
        }
        let report = Cores::block_on(Box::pin(probe::run(&plan)))??;
        all_good &= report.verdict == Verdict::Ok;
        if args.json {
            print::data(format_args!("{}\n", serde_json::to_string(&report)?))?;
        } else {
            print::text(text(&report, &args.url))?;
        }
    }
    Ok(if all_good { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// The configurations, each with the outbound that is meant.
fn targets(args: &TestArgs) -> anyhow::Result<Vec<(Config, usize)>> {
    if args.what == "-" || args.what.contains("://") {
        return read(&args.what);
    }
    let config = files::load(&args.files)?.config;
    let Some(at) = config.outbounds.iter().position(|outbound| *outbound.name == *args.what) else {
        let names: Vec<_> = config.outbounds.iter().map(|outbound| shown::line(&outbound.name)).collect();
        bail!("no outbound of that name: {}\n  hint: there are {}", args.what, names.join(", "));
    };
    Ok(vec![(config, at)])
}

/// The servers of a link, or of the lines on standard input if `what` is `-`.
///
/// # Errors
/// Everything that is wrong with them.
pub(crate) fn read(what: &str) -> anyhow::Result<Vec<(Config, usize)>> {
    let loaded = if what == "-" {
        let (name, text) = files::read("-".as_ref())?;
        import::parse(None, &name, &text)?
    } else {
        import::parse(None, "link", what)?
    };
    let all = loaded.config.outbounds.iter().enumerate();
    let servers = all.filter(|(_, outbound)| !matches!(outbound.protocol, OutboundProtocol::Group(_)));
    Ok(servers.map(|(at, _)| (loaded.config.clone(), at)).collect())
}

fn text(report: &Report, url: &str) -> String {
    let mut out = format!("{} (page: {url})\n", shown::line(&report.outbound));
    for step in &report.steps {
        let state = match step.state {
            State::Ok => "ok  ",
            State::Fail => "FAIL",
            State::Skip => "skip",
        };
        let time = step.ms.map_or_else(|| " ".repeat(11), |ms| format!("{ms:>8.1} ms"));
        out.push_str(&format!("  {state} {:<10} {time}  {}\n", step.step, shown::line(&step.detail)));
    }
    out.push_str(&format!("{}\n", shown::line(&report.message)));
    out
}
