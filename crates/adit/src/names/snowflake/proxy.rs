//! `snowflake-proxy`.

use std::ffi::OsString;
use std::process::ExitCode;
use std::rc::Rc;

use adit_formats::snowflake::proxy::{SnowflakeProxyInvocation, VERSION, flags, usage};
use adit_model::Dial;
use adit_net::dial::Dialer;
use adit_net::rt;
use adit_net::web::{Authority, Web, WebAnswer};
use adit_snowflake::{ProxyMetrics, Voice as _, run_snowflake_proxy};
use anyhow::Context as _;

use super::log_format::Log;
use crate::print;

/// The path of the metrics.
const METRICS: &str = "/internal/metrics";

/// Runs the proxy.
pub(crate) fn main(name: &'static str, args: Vec<OsString>) -> ExitCode {
    let invocation = match flags(args) {
        Ok(invocation) => invocation,
        Err(ends) => {
            let version = format!("snowflake-proxy {VERSION} (adit {})", env!("CARGO_PKG_VERSION"));
            return super::end(ends, &usage(name), &version);
        }
    };
    match run(invocation) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => print::failure(&error),
    }
}

fn run(invocation: SnowflakeProxyInvocation) -> anyhow::Result<()> {
    let SnowflakeProxyInvocation {
        proxy,
        log: path,
        shows_addresses,
        is_verbose,
        local_time,
        metrics: address,
    } = invocation;
    let mut log = Log::new(shows_addresses).events(true).loud(is_verbose).local(local_time);
    if let Some(path) = &path {
        log = log.with_file(path)?;
    }
    log.log(format_args!("snowflake-proxy {VERSION} (adit {})", env!("CARGO_PKG_VERSION")));
    // Each client takes two descriptors.
    adit_net::raise_fd_limit().ok();
    rt::Cores::block_on(async {
        let mut signals = rt::Signals::new()?;
        let (voice, metrics) = (Rc::new(log), Rc::new(ProxyMetrics::default()));
        if let Some((host, port)) = address {
            serve_metrics(&host, port, metrics.clone()).await?;
        }
        let serve = async {
            run_snowflake_proxy(proxy, metrics, voice).await?;
            anyhow::Ok(())
        };
        let stop = async {
            while signals.next().await != rt::Signal::Stop {}
            Ok(())
        };
        rt::race(Box::pin(serve), stop).await
    })?
}

async fn serve_metrics(host: &str, port: u16, metrics: Rc<ProxyMetrics>) -> anyhow::Result<()> {
    let target = format!("{host}:{port}").parse().with_context(|| format!("{host}:{port} is no address"))?;
    let addresses = Dialer::by_system(&Dial::default()).resolve(&target).await?;
    let address = addresses.first().with_context(|| format!("{host} has no address"))?;
    let (web, _) = Web::listen(*address).with_context(|| format!("metrics at {address}"))?;
    // Upstream's port, which has no token: a page may lead a name of its own to one that only this machine reaches.
    let is_private = address.ip().to_canonical().is_loopback();
    rt::spawn_local(web.serve(move |request| {
        let is_own = !is_private || request.visit.host.as_ref().is_none_or(Authority::is_literal);
        let answer = match request.path == METRICS {
            _ if !is_own => WebAnswer::line(403, "name this machine by its address"),
            _ if !request.visit.caller.may_read() => WebAnswer::line(403, "pages of other sites are refused"),
            true => WebAnswer {
                status: 200,
                content_type: "text/plain; version=0.0.4; charset=utf-8",
                is_gzip: false,
                body: metrics.render().into_bytes(),
            },
            false => WebAnswer::line(404, "404 page not found"),
        };
        std::future::ready(answer)
    }));
    Ok(())
}
