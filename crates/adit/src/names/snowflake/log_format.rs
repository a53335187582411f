//! The log of Snowflake's programs, in the form that operators' scripts read.

use std::cell::RefCell;
use std::fmt;
use std::fs::File;
use std::io::Write as _;
use std::net::{IpAddr, SocketAddr};
use std::path::Path;

use adit_model::shown;
use adit_net::rt;
use adit_snowflake::Voice;
use anyhow::Context as _;

use crate::print;

/// The places that lines go to.
#[derive(Debug, Default)]
pub(crate) struct Log {
    file: Option<RefCell<File>>,
    /// To the standard error as well.
    is_loud: bool,
    /// Events go there even if the rest does not.
    shows_events: bool,
    shows_addresses: bool,
    /// Times are local.
    is_local: bool,
    /// `LOG` lines on the standard output, for Tor.
    is_managed: bool,
}

impl Log {
    /// A log that goes nowhere yet, and shows addresses if `shows_addresses`.
    pub(crate) fn new(shows_addresses: bool) -> Self {
        Self { shows_addresses, ..Self::default() }
    }

    /// Appends to a file.
    ///
    /// # Errors
    /// When it cannot be written.
    pub(crate) fn with_file(self, path: &Path) -> anyhow::Result<Self> {
        let file = File::options().append(true).create(true).open(path);
        let file = file.with_context(|| format!("cannot write the log {}", path.display()))?;
        Ok(Self { file: Some(RefCell::new(file)), ..self })
    }

    /// Writes to the standard error as well.
    pub(crate) fn loud(self, is_loud: bool) -> Self {
        Self { is_loud, ..self }
    }

    /// Writes events to the standard error even if the rest does not go there.
    pub(crate) fn events(self, shows_events: bool) -> Self {
        Self { shows_events, ..self }
    }

    /// Writes local times.
    pub(crate) fn local(self, is_local: bool) -> Self {
        Self { is_local, ..self }
    }

    /// Writes `LOG` lines for Tor.
    pub(crate) fn managed(self, is_managed: bool) -> Self {
        Self { is_managed, ..self }
    }
}

impl Log {
    fn write(&self, line: fmt::Arguments<'_>, is_loud: bool) {
        if self.file.is_none() && !is_loud {
            return;
        }
        let line = line.to_string();
        let line = if self.shows_addresses { line } else { scrub(&line) };
        let line = shown::line(&line);
        let stamp = stamp(rt::unix_time(), self.is_local);
        if let Some(file) = &self.file {
            // A full disk does not end the program.
            writeln!(file.borrow_mut(), "{stamp} {line}").ok();
        }
        if is_loud {
            print::remark(format_args!("{stamp} {line}"));
        }
    }
}

impl Voice for Log {
    fn log(&self, line: fmt::Arguments<'_>) {
        self.write(line, self.is_loud);
    }

    fn event(&self, line: fmt::Arguments<'_>) {
        self.write(line, self.is_loud || self.shows_events);
    }

    fn tell(&self, severity: &str, message: &str) {
        if !self.is_managed {
            return;
        }
        let message = if self.shows_addresses { message.to_owned() } else { scrub(message) };
        // Nobody reads on if Tor is gone, and then the standard input ends too.
        drop(print::data(format_args!("LOG SEVERITY={severity} MESSAGE={}\n", quoted(&message))));
    }
}

/// A text between quotes, as `LOG` and `STATUS` lines take it: all but printable ASCII, quotes and backslashes in octal.
pub(crate) fn quoted(text: &str) -> String {
    let mut out = String::from("\"");
    for byte in text.bytes() {
        match byte {
            b'"' | b'\\' => out.push_str(&format!("\\{byte:03o}")),
            0x20..=0x7e => out.push(char::from(byte)),
            _ => out.push_str(&format!("\\{byte:03o}")),
        }
    }
    out.push('"');
    out
}

/// The time as Go's package `log` writes it.
fn stamp(unix: u64, is_local: bool) -> String {
    let date = adit_formats::kcptun::expand("2006-01-02", unix).replace('-', "/");
    let (hour, minute, second) = if is_local {
        adit_net::local_time(unix)
    } else {
        let part = |seconds: u64| u8::try_from(seconds).unwrap_or_default();
        let second = unix % 86_400;
        (part(second / 3600), part(second / 60 % 60), part(second % 60))
    };
    format!("{date} {hour:02}:{minute:02}:{second:02}")
}

/// The line without addresses.
fn scrub(line: &str) -> String {
    let is_part = |c: char| c.is_ascii_hexdigit() || matches!(c, '.' | ':' | '[' | ']');
    let mut out = String::with_capacity(line.len());
    let mut rest = line;
    while !rest.is_empty() {
        let len = rest.find(|c: char| !is_part(c)).unwrap_or(rest.len());
        let (word, after) = rest.split_at(len);
        out.push_str(&scrub_word(word));
        let next = after.find(is_part).unwrap_or(after.len());
        out.push_str(&after[..next]);
        rest = &after[next..];
    }
    out
}

/// A run of characters that addresses are made of; letters in front may belong to another word.
fn scrub_word(word: &str) -> String {
    let is_address = |text: &str| {
        let bare = text.trim_start_matches('[').trim_end_matches(']');
        text.parse::<SocketAddr>().is_ok() || text.parse::<IpAddr>().is_ok() || bare.parse::<IpAddr>().is_ok()
    };
    let trimmed = word.trim_end_matches(['.', ':']);
    if trimmed.len() > 2 && is_address(trimmed) {
        return format!("[scrubbed]{}", &word[trimmed.len()..]);
    }
    // `c:192.0.2.1`, `e=...`: the address begins behind a colon.
    for (at, _) in word.match_indices(':') {
        let tail = word[at + 1..].trim_end_matches(['.', ':']);
        if tail.contains('.') && is_address(tail) {
            return format!("{}[scrubbed]{}", &word[..=at], &word[at + 1 + tail.len()..]);
        }
    }
    word.to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_scrubbed() {
        for (line, want) in [
            ("Target URL:  203.0.113.1:8090", "Target URL:  [scrubbed]"),
            ("url: stun:203.0.113.4:3478", "url: stun:[scrubbed]"),
            ("at [2001:db8::1]:443, 2001:db8::1.", "at [scrubbed], [scrubbed]."),
            ("a=candidate:1 1 udp 5 192.0.2.7 9 typ host", "a=candidate:1 1 udp 5 [scrubbed] 9 typ host"),
            ("http://192.0.2.1:80/x", "http://[scrubbed]/x"),
            ("sha-256 B4:EC:59:D7:0A at 01:09:17, 2.14.1", "sha-256 B4:EC:59:D7:0A at 01:09:17, 2.14.1"),
            ("dial tcp: no such host a.example: face", "dial tcp: no such host a.example: face"),
        ] {
            assert_eq!(scrub(line), want);
        }
    }

    #[test]
    fn times_and_quotes() {
        assert_eq!(stamp(1_795_223_357, false), "2026/11/21 01:09:17");
        assert_eq!(quoted("a \"b\" \\ \u{e4}\n"), "\"a \\042b\\042 \\134 \\303\\244\\012\"");
    }
}
