//! Running a configuration: the log lines of its start, and the wait for a signal.

pub(crate) mod first_lines;

use std::sync::Arc;
use std::time::Duration;

use adit_engine::transparent::MissingFeature;
use adit_engine::{Extensions, Running, StartError, Taking};
use adit_formats::rulesets::load_sets;
use adit_model::Config;
use adit_model::diagnostic::Diagnostics;
use adit_model::files::Trial;
use adit_net::rt::{Signal, Signals};
use adit_snowflake::SnowflakeStreams;

use crate::api::{clash, outline};
use crate::load::findings;
use crate::load::{providers, readable};
use crate::log::error_counts;
use crate::run::reload::{self, Source};
use crate::run::{fleet, socket, supervisor, upgrade};
use crate::serve::first_lines::{Start, has_rejects};

/// Runs a configuration until SIGINT or SIGTERM; `source` gives the next ones.
///
/// # Errors
/// When it cannot start.
pub(crate) fn run(config: Config, source: Source) -> anyhow::Result<()> {
    run_holding(config, source, |_| Ok(()))
}

/// The same, with something that is made once the ports are open, and dropped at the end.
///
/// # Errors
/// When it cannot start, or what is to be held cannot be made.
pub(crate) fn run_holding<T>(
    config: Config,
    source: Source,
    hold: impl FnOnce(&Running) -> anyhow::Result<T>,
) -> anyhow::Result<()> {
    let hold = |running: &Running| hold(running).map(|held| -> Box<dyn Held + '_> { Box::new(held) });
    run_to_the_end(config, source, Box::new(hold)).inspect_err(upgrade::failed)
}

/// Anything that is kept until the end.
trait Held {}

impl<T> Held for T {}

/// Makes that, once everything runs. `run_to_the_end` is long, and compiled once.
type Hold<'a> = Box<dyn FnOnce(&Running) -> anyhow::Result<Box<dyn Held + 'a>> + 'a>;

/// Time for the service manager to close a socket.
const FORGOTTEN: Duration = Duration::from_millis(300);

/// The parts of the engine that other crates implement.
pub(crate) fn extensions() -> Extensions {
    Extensions { packet_streams: Some(Arc::new(SnowflakeStreams)), load_sets }
}

/// Starts with the sockets of the process before this one, or of the service manager, or its own.
///
/// With `without_ports` a port that cannot be opened is an error line, and the rest runs.
fn start(config: &mut Config, taking: Option<&Taking>, without_ports: bool) -> anyhow::Result<Running> {
    if let Some(taking) = taking {
        return Ok(taking.start(config, &extensions())?);
    }
    supervisor::adopt();
    let started = adit_engine::start_with(config, &extensions());
    // A socket of the manager that is for something else now may be what holds an address.
    if supervisor::leave_rest() && started.is_err() {
        std::thread::sleep(FORGOTTEN);
        return Ok(adit_engine::start_with(config, &extensions())?);
    }
    let mut started = started;
    while let (true, Err(StartError::Listen { name, source })) = (without_ports, &started) {
        let before = config.inbounds.len();
        let (name, address, error) = (name.clone(), source.addr, &source.source);
        tracing::error!("Start {name} server error: listen {address}: {error}");
        config.inbounds.retain(|inbound| inbound.name != name);
        if config.inbounds.len() == before {
            break;
        }
        started = adit_engine::start_with(config, &extensions());
    }
    Ok(started?)
}

/// Starts without the copies of lists, if they are why the configuration cannot be used; they are set aside then, and
/// fetched again.
fn start_without_copies(
    config: &mut Config,
    source: &mut Source,
    error: &anyhow::Error,
    without_ports: bool,
) -> Option<Running> {
    let is_of_parts = |error: &StartError| {
        matches!(error, StartError::Rules(_) | StartError::Sets(_) | StartError::Build { .. })
    };
    if !error.downcast_ref::<StartError>().is_some_and(is_of_parts) {
        return None;
    }
    let copies = providers::copies(config);
    let refresh = source.refresh.as_mut().filter(|_| !copies.is_empty())?;
    let documents = copies.iter().map(|path| (path.clone(), None)).collect();
    let mut trial = Trial { documents, ..Trial::default() };
    let mut without = trial.run(refresh).ok()?.config;
    (without.state, without.choices) = (config.state.clone(), config.choices.clone());
    fleet::prepare(&mut without).ok()?;
    let running = trial.run(|| start(&mut without, None, without_ports)).ok()?;
    let problem = format!("{error:#}");
    let mut found = Diagnostics::new();
    copies.iter().for_each(|path| found.push(providers::warning_of(path, &problem, false)));
    findings::log_findings(&found);
    *config = without;
    Some(running)
}

fn run_to_the_end(mut config: Config, source: Source, hold: Hold<'_>) -> anyhow::Result<()> {
    Signals::keep()?;
    let taking = upgrade::taking()?;
    match adit_net::raise_fd_limit() {
        Ok((before, after)) if before < after => tracing::debug!(before, after, "descriptor limit raised"),
        Ok((limit, _)) => tracing::debug!(limit, "descriptor limit is as high as it may be"),
        Err(error) => tracing::warn!(%error, "cannot raise the limit of open files"),
    }
    if let Err(error) = adit_net::write_no_core_files() {
        tracing::debug!(%error, "cannot lower the limit of core files");
    }
    findings::log_findings(&findings::advice(&config));
    findings::log_findings(&findings::machine_findings(&config));
    findings::log_findings(&readable::at_start(&config));
    for (variable, lack) in LACKS {
        if std::env::var_os(variable).is_some() {
            adit_engine::transparent::force(lack);
        }
    }
    // A program that stands for mihomo.
    let (is_mihomo, say_open) = (source.overlay.is_some(), source.say_open);
    let rejects = has_rejects(&config);
    let mut source = source;
    let started = start(&mut config, taking.as_ref(), is_mihomo);
    let started = started.or_else(|error| {
        let fallback =
            taking.is_none().then(|| start_without_copies(&mut config, &mut source, &error, is_mihomo));
        fallback.flatten().ok_or(error)
    });
    let mut running = started?;
    Signals::keep_stops()?;
    running.tell_log_errors(error_counts::all);
    // Rules and lists have become tables.
    (config.lists, config.rules) = Default::default();
    let held = match hold(&running) {
        Ok(held) => held,
        Err(error) => {
            running.end();
            return Err(error);
        }
    };
    let requests = match reload::start(source, &config, &running) {
        Ok(requests) => requests,
        Err(error) => {
            running.end();
            return Err(error);
        }
    };
    socket::open(&config, &mut running);
    clash::open(&config, &mut running, &requests);
    outline::open(&config, &mut running, &requests);
    let watchdog = supervisor::watch(running.observer());
    let watchdog = watchdog.inspect_err(|error| tracing::warn!(%error, "the watchdog is not served"));
    if let Some(taking) = taking
        && let Err(error) = taking.finish(&running)
    {
        running.end();
        return Err(anyhow::Error::new(error).context("cannot take over"));
    }
    let addresses = running.addresses().len();
    if let Ok(sockets) = running.giver().sockets() {
        supervisor::store(&sockets);
    }
    let lines = Start::new(&config, &running, rejects);
    let ready = || {
        lines.write();
        if let Some(say_open) = say_open {
            say_open(&config);
        }
        supervisor::ready(&supervisor::served(addresses));
        adit_net::trim_heap();
    };
    let heard = |signal| match signal {
        Signal::Stop if crate::run::restart::is_restarting() => {}
        Signal::Stop => supervisor::stopping(),
        Signal::Reload | Signal::User | Signal::Upgrade => requests.heard(signal),
    };
    let result = running.run_until_signal(ready, heard);
    drop((held, watchdog));
    result?;
    tracing::info!("stopped");
    Ok(())
}

/// Make a capture work as on machines that lack a part; for tests.
const LACKS: [(&str, MissingFeature); 3] = [
    ("ADIT_TEST_WITHOUT_TABLE_OWNER", MissingFeature::Owners),
    ("ADIT_TEST_WITHOUT_TABLES", MissingFeature::Tables),
    ("ADIT_TEST_WITHOUT_INTERFACES", MissingFeature::Interfaces),
];

/// Why servers lead anywhere.
pub(crate) const LEADS_ANYWHERE: &str = "as the replaced programs do, or by allow-private";
