//! `snowflake-server`, started by Tor or alone.

use std::ffi::OsString;
use std::io::Read as _;
use std::process::ExitCode;

use adit_formats::snowflake::server::{self, Managed, PtError};
use adit_model::SnowflakeServer;
use adit_net::rt;

use crate::load::readable;
use crate::print;

/// Runs the program.
pub(crate) fn main(name: &'static str, args: Vec<OsString>) -> ExitCode {
    let version = format!("snowflake-server {} (adit {})", server::VERSION, env!("CARGO_PKG_VERSION"));
    let found = server::flags(args).and_then(|flags| {
        let alone = flags.alone()?;
        Ok((flags, alone))
    });
    let (flags, alone) = match found {
        Ok(found) => found,
        Err(ends) => return super::end(ends, &server::usage(name), &version),
    };
    super::begin(flags.log.as_deref());
    tracing::info!("{version}");
    tracing::info!("starting");
    if let Some(server) = alone {
        readable::warn_of_key(server.tls.as_ref());
        tell_memory(&server);
        let ready = |at| tracing::info!("listening on {at}");
        return super::status(adit_snowflake::snowflake_server(&server, ready, std::future::pending()));
    }
    let managed = flags.managed(|name| std::env::var(name).ok());
    match managed {
        Ok(managed) => run(managed),
        Err(PtError(line)) => {
            say(&line);
            tracing::error!("error in setup: {line}");
            ExitCode::FAILURE
        }
    }
}

/// Runs as Tor asked for it.
fn run(managed: Managed) -> ExitCode {
    let Managed { server, line, errors, ends_with_input } = managed;
    say("VERSION 1");
    say(&format!("STATUS TYPE=version IMPLEMENTATION=\"snowflake-server\" VERSION=\"{}\"", server::VERSION));
    for error in &errors {
        say(error);
        tracing::warn!("{error}");
    }
    let Some(server) = server else {
        say("SMETHODS DONE");
        return ExitCode::FAILURE;
    };
    readable::warn_of_key(server.tls.as_ref());
    tell_memory(&server);
    let (sender, mut orders) = rt::orders();
    if ends_with_input {
        let watch = move || {
            let mut buffer = [0; 1024];
            let mut input = std::io::stdin().lock();
            while input.read(&mut buffer).is_ok_and(|len| len > 0) {}
            tracing::info!("synthesizing SIGTERM because of stdin close");
            sender.send(());
        };
        if let Err(error) = std::thread::Builder::new().name("input".into()).spawn(watch) {
            tracing::warn!(%error, "standard input is not watched");
        }
    }
    let ended = async move {
        // Without a sender there is no end to wait for.
        if orders.next().await.is_none() {
            std::future::pending().await
        }
    };
    let mut is_ready = false;
    let ready = |at| {
        is_ready = true;
        tracing::info!("listening on {at}");
        say(&line);
        say("SMETHODS DONE");
    };
    let result = adit_snowflake::snowflake_server(&server, ready, ended);
    if let (Err(error), false) = (&result, is_ready) {
        say(&format!("SMETHOD-ERROR snowflake {error}"));
        say("SMETHODS DONE");
    }
    super::status(result)
}

fn tell_memory(server: &SnowflakeServer) {
    let (session, total, instances) = (server.session_memory, server.total_memory, server.instances);
    tracing::info!(session_memory = session, total_memory = total, instances, "bounds of sessions");
}

/// A line for Tor. Nobody reads on if Tor is gone, and then the standard input ends too.
fn say(line: &str) {
    print::data(format_args!("{line}\n")).ok();
}
