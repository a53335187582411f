//! `snowflake-client`: a pluggable transport of version 1 that Tor starts, or a SOCKS port of its own.

use std::ffi::OsString;
use std::io::Read as _;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::ExitCode;
use std::rc::Rc;

use adit_formats::snowflake::client::{SnowflakeClientInvocation, VERSION, flags, usage, with_arguments};
use adit_net::accept::Acceptor;
use adit_net::listen::{ListenOptions, listen};
use adit_net::rt;
use adit_snowflake::{Voice as _, run_snowflake_client};
use anyhow::{Context as _, anyhow};

use super::log_format::{Log, quoted};
use crate::print;

/// Runs the client.
pub(crate) fn main(name: &'static str, args: Vec<OsString>) -> ExitCode {
    let invocation = match flags(args) {
        Ok(invocation) => invocation,
        Err(ends) => {
            let version = format!("snowflake-client {VERSION} (adit {})", env!("CARGO_PKG_VERSION"));
            return super::end(ends, &usage(name), &version);
        }
    };
    match run(invocation) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => print::failure(&error),
    }
}

fn run(invocation: SnowflakeClientInvocation) -> anyhow::Result<()> {
    let is_managed = invocation.socks.is_none();
    let log = log(&invocation).inspect_err(|error| super::tell_tor(&format!("{error:#}")))?;
    let log = log.managed(is_managed);
    log.log(format_args!("snowflake-client {VERSION} (adit {})", env!("CARGO_PKG_VERSION")));
    if invocation.client.mimics_dtls {
        log.log(format_args!("covertdtls-config is not obeyed: the DTLS hello is adit's own"));
    }
    rt::Cores::block_on(Box::pin(serve(invocation, log)))?
}

async fn serve(invocation: SnowflakeClientInvocation, log: Log) -> anyhow::Result<()> {
    let acceptor = match &invocation.socks {
        Some(address) => {
            open(address.parse().with_context(|| format!("-socks {address} is no address and port"))?)?
        }
        None => negotiate()?,
    };
    let at = acceptor.local_addr()?;
    log.log(format_args!("Started SOCKS listener at {at}."));
    if invocation.socks.is_some() {
        print::remark(format_args!("SOCKS listener at {at}"));
    } else if std::env::var("TOR_PT_EXIT_ON_STDIN_CLOSE").is_ok_and(|value| value == "1") {
        std::thread::Builder::new().name("stdin".into()).spawn(end_with_input)?;
    }
    let mut signals = rt::Signals::new()?;
    let voice = Rc::new(log);
    let serve = run_snowflake_client(acceptor, invocation.client, with_arguments, voice.clone());
    let stop = async {
        while signals.next().await != rt::Signal::Stop {}
        Ok(())
    };
    let result = rt::race(Box::pin(serve), stop).await;
    voice.log(format_args!("snowflake is done."));
    Ok(result?)
}

/// Tor closes our input when it goes, or wants us to go.
fn end_with_input() {
    let mut byte = [0; 256];
    while matches!(std::io::stdin().read(&mut byte), Ok(1..)) {}
    std::process::exit(0);
}

fn log(invocation: &SnowflakeClientInvocation) -> anyhow::Result<Log> {
    let log = Log::new(invocation.shows_addresses);
    let Some(path) = &invocation.log else { return Ok(log) };
    if !invocation.log_in_state {
        return log.with_file(path);
    }
    let state = std::env::var_os("TOR_PT_STATE_LOCATION").map(PathBuf::from);
    let state = state.context("-log-to-state-dir needs TOR_PT_STATE_LOCATION, which Tor sets")?;
    std::fs::create_dir_all(&state).with_context(|| format!("cannot make {}", state.display()))?;
    log.with_file(&state.join(path))
}

fn open(address: SocketAddr) -> anyhow::Result<Acceptor> {
    let (listener, _) = listen(address, &ListenOptions { is_near: true, ..ListenOptions::default() })?;
    Ok(Acceptor::new(listener))
}

/// Speaks with Tor, and opens the port that it is told of.
fn negotiate() -> anyhow::Result<Acceptor> {
    let failed = |line: String| -> anyhow::Result<Acceptor> {
        print::data(format_args!("{line}\n"))?;
        Err(anyhow!("{line}; Tor starts this program, or give it -socks 127.0.0.1:1080"))
    };
    let Ok(versions) = std::env::var("TOR_PT_MANAGED_TRANSPORT_VER") else {
        return failed("ENV-ERROR no TOR_PT_MANAGED_TRANSPORT_VER environment variable".to_owned());
    };
    if !versions.split(',').any(|version| version == "1") {
        return failed("VERSION-ERROR no-version".to_owned());
    }
    let Ok(transports) = std::env::var("TOR_PT_CLIENT_TRANSPORTS") else {
        return failed("ENV-ERROR no TOR_PT_CLIENT_TRANSPORTS environment variable".to_owned());
    };
    print::data("VERSION 1\n")?;
    let version = quoted(VERSION);
    print::data(format_args!("STATUS TYPE=version IMPLEMENTATION=\"snowflake-client\" VERSION={version}\n"))?;
    if std::env::var_os("TOR_PT_PROXY").is_some_and(|proxy| !proxy.is_empty()) {
        return failed("PROXY-ERROR adit does not reach the broker through a proxy".to_owned());
    }
    let mut listener = None;
    for name in transports.split(',').map(str::trim) {
        if name != "snowflake" {
            print::data(format_args!("CMETHOD-ERROR {name} no such method\n"))?;
            continue;
        }
        let opened = open(SocketAddr::from(([127, 0, 0, 1], 0)))?;
        print::data(format_args!("CMETHOD snowflake socks5 {}\n", opened.local_addr()?))?;
        listener = Some(opened);
    }
    print::data("CMETHODS DONE\n")?;
    listener.context("Tor asks for other transports than snowflake")
}
