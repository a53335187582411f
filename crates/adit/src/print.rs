//! Output for people: data on standard output, everything else on standard error.

use std::fmt::Display;
use std::io::{self, IsTerminal, Write};
use std::process::ExitCode;
use std::sync::OnceLock;

use adit_engine::StartError;
use adit_engine::transparent::CaptureError;
use adit_model::diagnostic::Diagnostics;
use adit_model::{codes, shown};
use anyhow::Context as _;
use qrcode::QrCode;
use qrcode::render::unicode::Dense1x2;

/// Writes data to standard output as it is: JSON, a configuration, a link, a picture.
///
/// # Errors
/// When nobody reads it any more, which ends the program in silence: see [`failure`].
pub(crate) fn data(text: impl Display) -> anyhow::Result<()> {
    let mut out = io::stdout().lock();
    write!(out, "{text}")?;
    Ok(out.flush()?)
}

/// Writes a text for people to standard output, without hidden characters; see [`shown`]. A name in it has passed
/// [`shown::line`], or it could end its line.
///
/// # Errors
/// As [`data`].
pub(crate) fn text(text: impl Display) -> anyhow::Result<()> {
    data(shown::lines(&text.to_string()))
}

/// Writes a remark to standard error, as [`text`].
pub(crate) fn remark(text: impl Display) {
    // Nobody is left to be told if standard error is gone.
    writeln!(io::stderr(), "{}", shown::lines(&text.to_string())).ok();
}

/// Others who are told of a failure.
static LISTENER: OnceLock<fn(&anyhow::Error)> = OnceLock::new();

/// Has each failure told to `listener` too.
pub(crate) fn tell_failures(listener: fn(&anyhow::Error)) {
    LISTENER.set(listener).ok();
}

/// Reports an error and gives the status to exit with.
pub(crate) fn failure(error: &anyhow::Error) -> ExitCode {
    if let Some(listener) = LISTENER.get() {
        listener(error);
    }
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
    if let Some(error) = error.downcast_ref::<CaptureError>() {
        return error.hint();
    }
    match error.downcast_ref()? {
        StartError::Capture(source) => source.hint(),
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
        StartError::Http { source, .. } => (source.kind() == io::ErrorKind::AddrInUse)
            .then_some("another process listens there; name another port at [admin] http"),
        StartError::Build { .. }
        | StartError::Sets(_)
        | StartError::Rules(_)
        | StartError::Core(_)
        | StartError::Handover(_)
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

/// A number of bytes in powers of 1024: `512 KiB`, `1.5 GiB`.
fn binary_bytes(bytes: u64) -> String {
    const UNITS: [&str; 6] = ["KiB", "MiB", "GiB", "TiB", "PiB", "EiB"];
    if bytes < 1024 {
        return format!("{bytes} B");
    }
    let (mut scaled, mut unit) = (bytes, 0);
    while scaled >= 1 << 20 {
        scaled >>= 10;
        unit += 1;
    }
    let (whole, tenth) = (scaled >> 10, (scaled & 1023) * 10 / 1024);
    if whole < 10 && tenth > 0 {
        format!("{whole}.{tenth} {}", UNITS[unit])
    } else {
        format!("{whole} {}", UNITS[unit])
    }
}

/// A number of bytes in the units that `written` was written in: powers of 1024 if those give fewer digits.
pub(crate) fn bytes_like(number: u64, written: Option<u64>) -> String {
    let digits = |mut number: u64, base: u64| {
        while number >= base && number.is_multiple_of(base) {
            number /= base;
        }
        number.to_string().len()
    };
    match written {
        Some(written) if digits(written, 1024) < digits(written, 1000) => binary_bytes(number),
        _ => bytes(number),
    }
}

/// A rate in bytes a second, over a time in milliseconds.
pub(crate) fn rate(bytes: u64, millis: u64) -> String {
    let rate = u128::from(bytes) * 1000 / u128::from(millis.max(1));
    format!("{}/s", self::bytes(u64::try_from(rate).unwrap_or(u64::MAX)))
}

/// Columns of the terminal on standard output; without one there is no limit.
pub(crate) fn width() -> usize {
    if !io::stdout().is_terminal() {
        return usize::MAX;
    }
    ratatui::crossterm::terminal::size().map_or(80, |(columns, _)| usize::from(columns).max(40))
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
        for (number, written, text) in [
            (10 << 20, Some(10 << 20), "10 MiB"),
            (512 << 10, Some(10 << 20), "512 KiB"),
            (1_500_000, Some(10 << 20), "1.4 MiB"),
            (5, Some(10 << 20), "5 B"),
            (500_000_000_000, Some(500_000_000_000), "500 GB"),
            (1 << 39, Some(1 << 39), "512 GiB"),
            (10 << 20, Some(1_000_000), "10 MB"),
            (10 << 20, None, "10 MB"),
        ] {
            assert_eq!(bytes_like(number, written), text, "{number} {written:?}");
        }
        assert_eq!(
            (rate(1_500_000, 1000), rate(5000, 500), rate(7, 0)),
            ("1.5 MB/s".into(), "10 KB/s".into(), "7.0 KB/s".into())
        );
        for (number, text) in [(0, "0s"), (65, "1m 5s"), (12_000, "3h 20m"), (176_400, "2d 1h")] {
            assert_eq!(seconds(number), text);
        }
    }
}
