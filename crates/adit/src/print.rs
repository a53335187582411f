//! Output for people: data on standard output, everything else on standard error.

use std::fmt::Display;
use std::io::{self, IsTerminal, Write};
use std::process::ExitCode;

use adit_config::codes;
use adit_config::diagnostic::Diagnostics;
use adit_core::StartError;
use anyhow::Context as _;
use qrcode::QrCode;
use qrcode::render::unicode::Dense1x2;

/// Writes data to standard output.
///
/// # Errors
/// When nobody reads it any more, which ends the program in silence: see [`failure`].
pub(crate) fn data(text: impl Display) -> anyhow::Result<()> {
    let mut out = io::stdout().lock();
    write!(out, "{text}")?;
    Ok(out.flush()?)
}

/// Writes a remark to standard error.
pub(crate) fn remark(text: impl Display) {
    // Nobody is left to be told if standard error is gone.
    writeln!(io::stderr(), "{text}").ok();
}

/// Reports an error and gives the status to exit with.
pub(crate) fn failure(error: &anyhow::Error) -> ExitCode {
    let broken = |e: &io::Error| e.kind() == io::ErrorKind::BrokenPipe;
    if error.downcast_ref::<io::Error>().is_some_and(broken) {
        return ExitCode::SUCCESS;
    }
    if let Some(found) = error.downcast_ref::<Diagnostics>() {
        write!(io::stderr(), "{}", found.render(colour(&io::stderr()))).ok();
    } else {
        remark(format_args!("error: {error:#}"));
        if let Some(hint) = hint(error) {
            remark(format_args!("  hint: {hint}"));
        }
        if let Some(code) = code(error) {
            remark(format_args!("  {code}: `adit explain {code}` tells more"));
        }
    }
    ExitCode::FAILURE
}

/// The code of an error that keeps a configuration from running.
#[allow(clippy::wildcard_enum_match_arm, reason = "the rest of a foreign, growing enum is one case")]
pub(crate) fn code(error: &anyhow::Error) -> Option<&'static str> {
    let code = match error.downcast_ref()? {
        StartError::Listen { source, .. } if source.is_taken() => codes::SYS_PORT,
        StartError::Listen { .. } => codes::SYS_LISTEN,
        StartError::State { .. } => codes::SYS_STATE_READ,
        StartError::Build { source, .. } if source.to_string().starts_with("plugin ") => {
            codes::PLUGIN_MISSING
        }
        _ => return None,
    };
    Some(code.id)
}

/// A hint on the remedy of an error.
#[allow(clippy::wildcard_enum_match_arm, reason = "the rest of a foreign, growing enum is one case")]
pub(crate) fn hint(error: &anyhow::Error) -> Option<&'static str> {
    match error.downcast_ref()? {
        StartError::Listen { source, .. } => source.hint(),
        StartError::Admin { source, .. } => Some(if source.kind() == io::ErrorKind::AddrInUse {
            "another adit uses it, or it is not a socket; set another path at [admin] socket"
        } else {
            "create its folder, and let this user write there"
        }),
        StartError::Unix { source, .. } => (source.kind() != io::ErrorKind::AddrInUse)
            .then_some("create its folder, and let this user write there"),
        StartError::State { .. } => Some(
            "create its folder, and let this user write there; state = \"...\" names another file, and \"off\" none",
        ),
        StartError::Build { .. }
        | StartError::Sets(_)
        | StartError::Rules(_)
        | StartError::Core(_)
        | StartError::Ending => None,
    }
}

/// Whether a stream takes colours: a terminal, unless `NO_COLOR` (no-color.org) is set to something.
pub(crate) fn colour(stream: &impl IsTerminal) -> bool {
    stream.is_terminal() && std::env::var_os("NO_COLOR").is_none_or(|value| value.is_empty())
}

/// Background of the place where a QR code is read.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum Background {
    /// Black on white by colours on a terminal; elsewhere as for a dark background
    Auto,
    /// Light blocks for light modules, without colours
    Dark,
    /// Dark blocks for dark modules, without colours
    Light,
}

/// Black on white, in colours that themes of terminals do not change.
const BLACK_ON_WHITE: &str = "\u{1b}[38;5;16;48;5;231m";

/// A link as a picture of half blocks.
///
/// # Errors
/// When the link is too long.
pub(crate) fn qr(link: &str, background: Background) -> anyhow::Result<String> {
    let code = QrCode::new(link).context("link is too long for a QR code")?;
    let mut picture = code.render::<Dense1x2>();
    let in_colour = background == Background::Auto && io::stdout().is_terminal();
    if !in_colour && background != Background::Light {
        picture.dark_color(Dense1x2::Light).light_color(Dense1x2::Dark);
    }
    let picture = picture.build();
    if !in_colour {
        return Ok(format!("{picture}\n"));
    }
    Ok(picture.lines().map(|line| format!("{BLACK_ON_WHITE}{line}\u{1b}[0m\n")).collect())
}

/// A number of bytes: `999 B`, `1.5 KB`, `12 MB`; powers of 1000.
pub(crate) fn bytes(bytes: u64) -> String {
    const UNITS: [&str; 6] = ["KB", "MB", "GB", "TB", "PB", "EB"];
    if bytes < 1000 {
        return format!("{bytes} B");
    }
    let (mut scaled, mut unit) = (bytes, 0);
    while scaled >= 1_000_000 {
        scaled /= 1000;
        unit += 1;
    }
    let (whole, tenth) = (scaled / 1000, scaled % 1000 / 100);
    if whole < 10 { format!("{whole}.{tenth} {}", UNITS[unit]) } else { format!("{whole} {}", UNITS[unit]) }
}

/// Seconds as the two largest units: `59s`, `1m 5s`, `3h 20m`, `2d 1h`.
pub(crate) fn seconds(seconds: u64) -> String {
    match seconds {
        0..60 => format!("{seconds}s"),
        60..3600 => format!("{}m {}s", seconds / 60, seconds % 60),
        3600..86_400 => format!("{}h {}m", seconds / 3600, seconds % 3600 / 60),
        _ => format!("{}d {}h", seconds / 86_400, seconds % 86_400 / 3600),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_and_times() {
        for (number, text) in [
            (0, "0 B"),
            (999, "999 B"),
            (1000, "1.0 KB"),
            (9999, "9.9 KB"),
            (10_000, "10 KB"),
            (999_999, "999 KB"),
            (1_000_000, "1.0 MB"),
            (u64::MAX, "18 EB"),
        ] {
            assert_eq!(bytes(number), text);
        }
        for (number, text) in [(0, "0s"), (65, "1m 5s"), (12_000, "3h 20m"), (176_400, "2d 1h")] {
            assert_eq!(seconds(number), text);
        }
    }
}
