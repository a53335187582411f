//! `snowflake-broker`.

use std::ffi::OsString;
use std::process::ExitCode;

use adit_formats::snowflake::broker;

use crate::load::readable;
use crate::run::upgrade;

/// Runs the program.
pub(crate) fn main(name: &'static str, args: Vec<OsString>) -> ExitCode {
    let broker::BrokerInvocation { broker, left_out } = match broker::flags(args) {
        Ok(invocation) => invocation,
        Err(ends) => return super::end(ends, &broker::usage(name), name),
    };
    super::begin(None);
    readable::warn_of_key(broker.tls.as_ref());
    for flag in left_out {
        tracing::warn!("flag -{flag} has no effect: sketches of addresses are not written");
    }
    super::serve(|ready| adit_snowflake::broker_service(&broker, upgrade::succeed, ready))
}
