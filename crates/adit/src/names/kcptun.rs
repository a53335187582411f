//! kcptun's client and server: their flags, files and exit statuses, and the counters that they write.
//!
//! Status 0 after a signal and for bad flags, 255 for a bad file or a start that fails.

use std::ffi::OsString;
use std::fs::OpenOptions;
use std::io::Write as _;
use std::path::Path;
use std::process::ExitCode;
use std::time::Duration;

use adit_engine::{KcpTotals, Observer, Running};
use adit_formats::kcptun::{
    self, Counters, EXIT_FAILURE, KcptunInvocation, KcptunProgram, KcptunSetup, KcptunValues, Release,
};
use adit_formats::read::loaded::Loaded;
use adit_formats::read::source;
use adit_model::Log;
use adit_model::diagnostic::Diagnostics;
use adit_net::rt;
use anyhow::Context as _;
use zeroize::Zeroizing;

use crate::load::findings;
use crate::log::{self, Shape};
use crate::run::reload::Source;
use crate::serve::first_lines;
use crate::{print, serve};

/// Runs one of the programs.
pub(crate) fn main(program: KcptunProgram, args: Vec<OsString>) -> ExitCode {
    match kcptun::flags(program, args) {
        Ok(KcptunInvocation::Help) => say(&kcptun::usage(program)),
        Ok(KcptunInvocation::Version) => {
            say(&format!("{} (adit {})\n", program.name(), env!("CARGO_PKG_VERSION")))
        }
        Ok(KcptunInvocation::Run(flags)) => run(program, flags),
        Err(found) => {
            print::remark(format_args!("{found}{}", kcptun::usage(program)));
            ExitCode::SUCCESS
        }
    }
}

fn say(text: &str) -> ExitCode {
    match print::data(text) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => print::failure(&error),
    }
}

fn run(program: KcptunProgram, flags: KcptunValues) -> ExitCode {
    let source = source(program, &flags);
    let setup = match load(program, flags) {
        Ok(setup) => setup,
        Err(found) => {
            log::init(&Log::default(), Shape::Text);
            findings::log_findings(&found);
            return ExitCode::from(EXIT_FAILURE);
        }
    };
    if let Err(error) = start_log(setup.log.as_deref()) {
        return fail(&error);
    }
    first_lines::announce(Some(program.name()), &source.files);
    findings::log_findings(&setup.diagnostics);
    let KcptunSetup { config, counters, .. } = setup;
    let watch = |running: &Running| {
        let (release, observer) = (program.release, running.observer());
        let thread = std::thread::Builder::new().name("counters".into());
        thread.spawn(move || watch(release, &observer, counters))?;
        Ok(())
    };
    match serve::run_holding(config, source, watch) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => fail(&error),
    }
}

fn fail(error: &anyhow::Error) -> ExitCode {
    tracing::error!(code = print::code(error), hint = print::hint(error), "{error:#}");
    ExitCode::from(EXIT_FAILURE)
}

fn load(program: KcptunProgram, flags: KcptunValues) -> Result<KcptunSetup, Diagnostics> {
    let key = std::env::var("KCPTUN_KEY").ok().map(Zeroizing::new);
    let Some(path) = flags.file().map(str::to_owned) else { return kcptun::load(program, flags, key, None) };
    let text = source::read(Path::new(&path))?;
    kcptun::load(program, flags, key, Some((&path, &text)))
}

/// The file that is read again at a reload, if there is one; SIGUSR1 writes the counters of sessions.
fn source(program: KcptunProgram, flags: &KcptunValues) -> Source {
    let source = match flags.file() {
        None => Source::fixed("all settings came from the command line, which cannot change"),
        Some(file) => {
            let (files, flags) = (vec![file.into()], flags.clone());
            Source::of(files, move || {
                let KcptunSetup { config, diagnostics, .. } = load(program, flags.clone())?;
                Ok(Loaded { config, diagnostics })
            })
        }
    };
    Source { has_own_user_signal: true, ..source }
}

fn start_log(path: Option<&Path>) -> anyhow::Result<()> {
    let result = match path {
        Some(path) => {
            let file = OpenOptions::new().append(true).create(true).open(path).map(drop);
            file.with_context(|| format!("cannot write {}", path.display()))
        }
        None => Ok(()),
    };
    // As with kcptun, the file grows for as long as nobody moves it away.
    let file = path.filter(|_| result.is_ok()).map(Path::to_owned);
    log::init(&Log { file, max_size: u64::MAX, ..Log::default() }, Shape::Text);
    result
}

/// Writes a row of counters every period, and a line at SIGUSR1, until the process ends.
fn watch(release: Release, observer: &Observer, file: Option<(String, Duration)>) {
    let watched = rt::Cores::block_on(async {
        let mut signal = rt::UserSignal::new()?;
        loop {
            let period = file.as_ref().map(|(_, period)| *period);
            let row = async {
                rt::sleep(period.unwrap_or(Duration::from_secs(1 << 30))).await;
                true
            };
            let dump = async {
                signal.next().await;
                false
            };
            let is_row = rt::race(row, dump).await;
            let counters = counters(observer);
            match &file {
                Some((layout, _)) if is_row => {
                    if let Err(error) = append(release, layout, &counters) {
                        tracing::warn!(file = layout, %error, "cannot write counters");
                    }
                }
                _ if !is_row => tracing::info!("{}", kcptun::dump(release, &counters)),
                _ => {}
            }
        }
    });
    let watched: std::io::Result<()> = watched.and_then(|result| result);
    if let Err(error) = watched {
        tracing::warn!(%error, "counters cannot be written");
    }
}

fn append(release: Release, layout: &str, counters: &Counters) -> std::io::Result<()> {
    let unix = rt::unix_time();
    let mut file = OpenOptions::new().append(true).create(true).open(kcptun::expand(layout, unix))?;
    let mut text = kcptun::row(release, unix, counters);
    if file.metadata()?.len() == 0 {
        text = kcptun::header(release) + &text;
    }
    file.write_all(text.as_bytes())
}

/// The sums of all carriers.
fn counters(observer: &Observer) -> Counters {
    let status = observer.status();
    let inbounds = status.inbounds.iter().filter_map(|inbound| inbound.carrier.as_ref());
    let outbounds = status.outbounds.iter().filter_map(|outbound| outbound.carrier.as_ref());
    let mut sum = Counters::default();
    for carrier in inbounds.chain(outbounds) {
        add(&mut sum, &carrier.totals);
    }
    sum
}

fn add(sum: &mut Counters, totals: &KcpTotals) {
    sum.bytes_sent += totals.sent;
    sum.bytes_received += totals.received;
    sum.max_conn += totals.most_sessions;
    sum.active_opens += totals.active_opens;
    sum.passive_opens += totals.passive_opens;
    sum.curr_estab += u64::try_from(totals.sessions).unwrap_or_default();
    sum.in_errs += totals.refused + totals.failed;
    sum.in_csum_errors += totals.unopened;
    sum.kcp_in_errors += totals.malformed;
    sum.in_pkts += totals.in_datagrams;
    sum.out_pkts += totals.out_datagrams;
    sum.in_segs += totals.in_segments;
    sum.out_segs += totals.out_segments;
    sum.in_bytes += totals.in_bytes;
    sum.out_bytes += totals.out_bytes;
    sum.retrans_segs += totals.overtaken + totals.timed_out;
    sum.fast_retrans_segs += totals.overtaken;
    sum.lost_segs += totals.timed_out;
    sum.repeat_segs += totals.repeated;
    sum.fec_parity_shards += totals.parity;
    sum.fec_errs += totals.bad_parity;
    sum.fec_recovered += totals.recovered;
}
