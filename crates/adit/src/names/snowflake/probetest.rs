//! `snowflake-probetest`.

use std::ffi::OsString;
use std::process::ExitCode;

use adit_engine::routing::Target;
use adit_formats::snowflake::probetest;
use adit_model::Dial;
use adit_net::dial::Dialer;
use adit_snowflake::{ProbeFailure, Prober};
use adit_snowflake::{Probes, answer_probe};

use crate::run::upgrade;

/// Runs the program.
pub(crate) fn main(name: &'static str, args: Vec<OsString>) -> ExitCode {
    let probetest::ProbetestInvocation { probe, left_out } = match probetest::flags(args) {
        Ok(invocation) => invocation,
        Err(ends) => return super::end(ends, &probetest::usage(name), name),
    };
    super::begin(None);
    for flag in left_out {
        tracing::warn!("flag -{flag} has no effect: NATs are not simulated by SOCKS5 proxies");
    }
    let prober = WebRtc { stun: probe.stun.clone(), probes: Probes::default() };
    super::serve(|ready| adit_snowflake::probe_service(&probe, prober, upgrade::succeed, ready))
}

/// Answers by WebRTC.
struct WebRtc {
    /// STUN servers, as they were written.
    stun: Vec<String>,
    /// Probes under way.
    probes: Probes,
}

impl Prober for WebRtc {
    async fn answer(&self, offer: String, is_hidden: bool) -> Result<String, ProbeFailure> {
        let dialer = Dialer::by_system(&Dial::default());
        let mut servers = Vec::new();
        for server in &self.stun {
            let name = server.strip_prefix("stun:").unwrap_or(server);
            let target: Result<Target, _> = name.parse().or_else(|_| format!("{name}:3478").parse());
            let Ok(target) = target else { continue };
            match dialer.resolve(&target).await {
                Ok(addresses) => servers.extend(addresses),
                Err(error) => tracing::debug!(%error, "STUN server"),
            }
        }
        Box::pin(answer_probe(&self.probes, &offer, &servers, is_hidden)).await
    }
}
