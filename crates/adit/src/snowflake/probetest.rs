//! `snowflake-probetest`.

use std::ffi::OsString;
use std::process::ExitCode;

use adit_config::dialect::snowflake::probetest;
use adit_core::{ProbeFailure, Prober};

/// Runs the program.
pub(crate) fn main(name: &'static str, args: Vec<OsString>) -> ExitCode {
    let probetest::Invocation { probe, left_out } = match probetest::flags(args) {
        Ok(invocation) => invocation,
        Err(ends) => return super::end(ends, &probetest::usage(name), name),
    };
    super::begin(None);
    for flag in left_out {
        tracing::warn!("flag -{flag} has no effect: NATs are not simulated by SOCKS5 proxies");
    }
    let ready = |at| tracing::info!("listening on {at}");
    super::status(adit_core::probe_service(&probe, Unable, ready))
}

/// A prober for a build without WebRTC.
struct Unable;

impl Prober for Unable {
    async fn answer(&self, _: String, _: bool) -> Result<String, ProbeFailure> {
        Err(ProbeFailure::Unable("this build does not speak WebRTC".into()))
    }
}
