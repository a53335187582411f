//! `mihomo`, `clash` and `clash-meta`: their flags, files and exit statuses.
//!
//! Status 0 after a signal and for a good file with `-t`, 1 for a file that is not good or a start that fails, 2 for bad
//! flags. Everything goes to standard output, as with mihomo: programs that start it wait there for certain lines.

use std::ffi::OsString;
use std::path::Path;
use std::process::ExitCode;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use adit_engine::routing::Router;
use adit_formats::clash::{self, ClashFlags, ClashInvocation, ClashSetup};
use adit_formats::read::loaded::Loaded;
use adit_formats::read::source as text;
use adit_formats::rulesets::load_sets;
use adit_model::diagnostic::{Diagnostic, Diagnostics};
use adit_model::files::{self, Trial};
use adit_model::{CapturedBy, Config, InboundProtocol, ListKind, LocalProtocols, Log, Tag};
use adit_net::rt;

use crate::load::findings;
use crate::load::providers;
use crate::log::{self, Shape};
use crate::run::overlay;
use crate::run::overlay::Overlay;
use crate::run::reload::Source;
use crate::run::{restart, upgrade};
use crate::serve::first_lines;
use crate::{print, serve};

/// Runs the program.
pub(crate) fn main(program: &'static str, args: Vec<OsString>) -> ExitCode {
    match clash::flags(args) {
        Ok(ClashInvocation::Help) => say(&clash::usage(program)),
        Ok(ClashInvocation::Version) => {
            let (os, arch) = (std::env::consts::OS, std::env::consts::ARCH);
            say(&format!("Mihomo Meta {} {os} {arch} with adit\nUse tags: \n", env!("CARGO_PKG_VERSION")))
        }
        Ok(ClashInvocation::Convert(words)) => match crate::load::convert_ruleset::convert_ruleset(&words) {
            Ok(()) => ExitCode::SUCCESS,
            Err(error) => {
                print::remark(format_args!("{error:#}"));
                ExitCode::FAILURE
            }
        },
        Ok(ClashInvocation::Run(mut flags)) => {
            flags.add_variables(|name| std::env::var_os(name));
            run(&flags)
        }
        Err(problem) => {
            print::remark(format_args!("{problem}\n{}", clash::usage(program)));
            ExitCode::from(2)
        }
    }
}

fn say(text: &str) -> ExitCode {
    print::data(text).map_or(ExitCode::FAILURE, |()| ExitCode::SUCCESS)
}

fn run(flags: &ClashFlags) -> ExitCode {
    let (home, file) = flags.paths(|name| std::env::var_os(name));
    let begun = rt::now();
    let contents = flags.text().unwrap_or_else(|| read(&file));
    let loaded =
        contents.clone().and_then(|contents| parse(flags, &home, &file, &contents, &Overlay::default()));
    let contents = contents.unwrap_or_default();
    let level = loaded.as_ref().map_or_else(|_| Log::default().level, |loaded| loaded.config.log.level);
    log::init(&Log { level, ..Log::default() }, Shape::Mihomo);
    // Sockets of a service manager do not come twice.
    let can_restart = !clash::is_input(&file) && std::env::var_os("LISTEN_FDS").is_none();
    restart::allow(can_restart);
    tracing::info!("Start initial configuration in progress");
    first_lines::announce(Some("mihomo"), std::slice::from_ref(&file));
    for flag in &flags.left_out {
        tracing::warn!("flag -{flag} has no effect: adit has no named pipe");
    }
    if loaded.is_ok() {
        let taken = rt::now().saturating_duration_since(begun).as_millis();
        tracing::info!("Initial configuration complete, total time: {taken}ms");
    }
    let result = loaded.map_err(|found| {
        findings::log_findings(&found);
        anyhow::anyhow!("Parse config error: {}", findings::first(&found))
    });
    let result = result.and_then(|Loaded { config, diagnostics }| {
        findings::log_findings(&diagnostics);
        let mut source = source(flags, &home, &file, contents);
        if flags.test { check_passing_over(&config, &mut source) } else { serve::run(config, source) }
    });
    let shown = file.display();
    match result {
        Ok(()) if flags.test => say(&format!("configuration file {shown} test is successful\n")),
        Ok(()) => {
            tracing::info!("Mihomo shutting down");
            if !restart::is_restarting() {
                return ExitCode::SUCCESS;
            }
            let error = upgrade::replace_self();
            tracing::error!("cannot start anew: {error}");
            ExitCode::FAILURE
        }
        Err(error) if !flags.test => {
            tracing::error!(fatal = true, "{error:#}");
            ExitCode::FAILURE
        }
        Err(error) => {
            tracing::error!("{error:#}");
            print::data(format_args!("configuration file {shown} test failed\n")).ok();
            ExitCode::FAILURE
        }
    }
}

/// Writes the lines of ports that are open, which programs look for, and that the lists are there. Some listen for the
/// latter only once they have seen that the control interface is open, so that they come a moment later. mihomo has
/// changed a letter of the first of them: some programs look for the one, some for the other, and those with lists wait
/// for the line of each.
pub(crate) fn say_open(config: &Config) {
    for inbound in &config.inbounds {
        let kind = match &inbound.protocol {
            InboundProtocol::Local(local) => match local.accepts {
                LocalProtocols::Mixed => "Mixed(http+socks) proxy",
                LocalProtocols::Http => "HTTP proxy",
                LocalProtocols::Socks => "SOCKS proxy",
            },
            InboundProtocol::Captured(captured) => match captured.by {
                CapturedBy::Redirect => "Redirect proxy",
                CapturedBy::Tproxy => "TProxy server",
            },
            InboundProtocol::Dns(_) => "DNS server(UDP)",
            InboundProtocol::Snell(_)
            | InboundProtocol::Shadowsocks(_)
            | InboundProtocol::Ssr(_)
            | InboundProtocol::Obfs(_)
            | InboundProtocol::Tunnel { .. }
            | InboundProtocol::Tun(_) => continue,
        };
        for address in &inbound.listen {
            tracing::info!("{kind} listening at: {address}");
        }
    }
    let lists = config.providers.iter().filter(|provider| provider.list_kind() != ListKind::Database);
    let lists: Vec<Tag> = lists.map(|provider| provider.name.clone()).collect();
    std::thread::spawn(move || {
        std::thread::sleep(std::time::Duration::from_millis(200));
        tracing::info!("Start initial Compatible provider default");
        tracing::info!("Start initial compatible provider default");
        for name in lists {
            tracing::info!("Start initial provider {name}");
        }
    });
}

/// The same file is read again at SIGHUP.
fn source(flags: &ClashFlags, home: &Path, file: &Path, contents: String) -> Source {
    let fixed = Source::fixed("what is no file cannot be read again");
    let read = Arc::new(Mutex::new(contents));
    let overlay = Overlay { home: home.to_owned(), file: file.to_owned(), ..Overlay::default() };
    let overlay = Arc::new(Mutex::new(overlay));
    let over = overlay.clone();
    if clash::is_input(file) || flags.inline.is_some() {
        let (flags, home, file) = (flags.clone(), home.to_owned(), file.to_owned());
        let contents = read.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let refresh = move || parse(&flags, &home, &file, &contents, &lock(&over));
        return Source {
            refresh: Some(Box::new(refresh)),
            overlay: Some(overlay),
            say_open: Some(say_open),
            ..fixed
        };
    }
    let (flags, home, file) = (flags.clone(), home.to_owned(), file.to_owned());
    let read_again = read.clone();
    let again = (flags.clone(), home.clone(), file.clone());
    let forgotten = overlay.clone();
    Source {
        files: vec![file.clone()],
        load: Ok(Box::new(move || {
            let contents = text::read_regular(&file, clash::MAX_LEN)?;
            let loaded = parse(&flags, &home, &file, &contents, &Overlay::default())?;
            // The file is read again: it holds alone from here on.
            let mut overlay = lock(&forgotten);
            overlay.pairs.clear();
            (overlay.text, overlay.is_remote) = (None, false);
            drop(overlay);
            contents.as_str().clone_into(&mut read.lock().unwrap_or_else(PoisonError::into_inner));
            Ok(loaded)
        })),
        refresh: Some(Box::new(move || {
            let (flags, home, file) = &again;
            let contents = read_again.lock().unwrap_or_else(PoisonError::into_inner).clone();
            parse(flags, home, file, &contents, &lock(&over))
        })),
        overlay: Some(overlay),
        say_open: Some(say_open),
        ..fixed
    }
}

/// As [`check`]. Copies of lists that cannot be used are passed over with a warning, as at a start.
fn check_passing_over(config: &Config, source: &mut Source) -> anyhow::Result<()> {
    let result = check(config);
    let (Err(error), Some(refresh)) = (&result, &mut source.refresh) else { return result };
    let copies = providers::copies(config);
    let documents = copies.iter().map(|path| (path.clone(), None)).collect();
    let mut trial = Trial { documents, ..Trial::default() };
    if copies.is_empty() || trial.run(|| check(&refresh()?.config)).is_err() {
        return result;
    }
    let problem = format!("{error:#}");
    let mut found = Diagnostics::new();
    copies.iter().for_each(|path| found.push(providers::warning_of(path, &problem, true)));
    findings::log_findings(&found);
    Ok(())
}

fn check(config: &Config) -> anyhow::Result<()> {
    // Nothing about names and networks can be wrong, and their tables take longer than all the rest.
    let sets = load_sets(config)?.without_tables();
    Router::compile(config, sets)?;
    Ok(())
}

fn read(file: &Path) -> Result<String, Diagnostics> {
    let path = if clash::is_input(file) { Path::new("/dev/stdin") } else { file };
    Ok(text::read_up_to(path, clash::MAX_LEN)?.to_string())
}

fn lock(overlay: &Mutex<Overlay>) -> MutexGuard<'_, Overlay> {
    overlay.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Reads a text, or the one that lies over it. Values of control programs outrank those of flags, and these the file.
fn parse(
    flags: &ClashFlags,
    home: &Path,
    file: &Path,
    contents: &str,
    overlay: &Overlay,
) -> Result<Loaded, Diagnostics> {
    let mut pairs: Vec<(&str, &str)> =
        flags.overlay.iter().map(|(key, value)| (*key, value.expose())).collect();
    pairs.extend(overlay.pairs.iter().map(|(key, value)| (*key, value.as_str())));
    let text = overlay.text.as_deref().unwrap_or(contents);
    let mut guard = overlay::guard();
    if overlay.is_remote {
        (guard.is_remote, guard.plugins) = (true, clash::plugins_of(contents));
    }
    // Clients take nothing off the disk.
    let is_look = flags.test || overlay.is_remote;
    let name = file.to_string_lossy();
    if overlay.text.is_some() {
        // A wrong port is an error of a text even where the running one stays.
        passing_over(is_look, || clash::load_guarded(&name, text, home, flags.geodata, &[], &guard))?;
        // The interface itself stays as it is; its facts are read where there is one.
        pairs.push(("external-controller", "127.0.0.1:1"));
    }
    let load = || clash::load_guarded(&name, text, home, flags.geodata, &pairs, &guard);
    let (setup, passed) = passing_over(is_look, load)?;
    let mut loaded = if flags.test { setup.look() } else { providers::complete(setup, load)?.run() }?;
    passed.into_iter().for_each(|warning| loaded.diagnostics.push(warning));
    Ok(loaded)
}

/// Runs `load`, without copies of lists that keep it from giving something. A trial of other copies is left alone.
fn passing_over(
    is_look: bool,
    mut load: impl FnMut() -> Result<ClashSetup, Diagnostics>,
) -> Result<(ClashSetup, Vec<Diagnostic>), Diagnostics> {
    if files::in_trial() {
        return load().map(|setup| (setup, Vec::new()));
    }
    providers::passing_over(is_look, load)
}
