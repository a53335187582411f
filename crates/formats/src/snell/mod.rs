//! OpenSnell's `snell-server` and `snell-client` (main branch): their flags, their INI files, their defaults.
//!
//! Keys that they ignore are accepted here too, with one warning each. Keys that they refuse are errors. Keys of the
//! official server and of OpenSnell's alpha branch are known, with its section `[snell-tun]` (`tun`). A file whose version, mode, key and obfs contradict each other is an error.
//!
//! | `[snell-server]` | default | becomes |
//! |---|---|---|
//! | `listen` | `0.0.0.0:2333` | addresses of the inbound; a list with commas, as the official version 6 has it |
//! | `psk` | required | its key |
//! | `obfs` | `off` | its obfs: `off`, `http` or `tls` |
//! | `udp` | `true` | datagrams over streams |
//! | `quic` | `true` | QUIC on the UDP port of the same number |
//! | `ipv6` | `true` | `false` uses IPv4 targets alone |
//! | `dns-ip-preference` | `default` | order of address families: `prefer-ipv4`, `ipv4-only` and so on |
//! | `egress-interface` | none | interface of outgoing connections; OpenSnell binds its listeners too |
//! | `dns` | the system's | name servers, a list with commas; port 53 unless given |
//! | `tfo` | `false` | TCP Fast Open on both sides |
//! | `version` | `5` | the versions served: 4 and 5 are alike, `auto` is 4, 5 and 6; 1 to 3 and 6 are served alone |
//! | `mode` | `default` | of version 6, which a file with `mode` and without `version` means |
//! | `brutal`, `brutal-mbps` | `false` | the rate at which all connections of one client are sent to together |
//! | `brutal-cwnd-gain` | 15 | window of brutal, in tenths |
//! | `pacing-mbps` | none | the same without a kernel module; a key of adit's own |
//!
//! | `[snell-client]` | default | becomes |
//! |---|---|---|
//! | `listen` | `127.0.0.1:1080` | the local port: SOCKS, and HTTP besides; `off`, `none` or `disabled` with `[snell-tun]` |
//! | `server` | required | the server |
//! | `psk` | required | its key |
//! | `obfs` | `off` | its obfs: `off`, `http` or `tls` |
//! | `obfs-host` | host of `server` | the host that obfs names |
//! | `udp` | `true` | carries datagrams; a key of adit's own |
//! | `quic` | `off` | how QUIC is carried: `auto`, `on` or `off`; a key of adit's own |
//! | `reuse` | `false` | keeps connections for further requests |
//! | `version` | `5` | the version spoken, 1 to 6 |
//! | `mode` | `default` | of version 6: `default`, `unshaped` or `unsafe-raw` |
//! | `tfo` | `false` | TCP Fast Open to the server |
//! | `brutal` and so on | | as on a server, for what is sent to it |
//!
//! A server gives a target 5 s to be reached, a client 8 s to reach the server. An idle connection through a
//! server is never ended, as there; the local port of a client keeps adit's limit, because applications that
//! vanish would otherwise leave their half behind.

mod environment;
mod ini;
mod pace;
pub mod snell_flags;
mod snell_to_model;
mod tun;
pub(crate) mod version;

pub use self::environment::SnellEnvironment;
pub use self::snell_flags::{SnellFlags, SnellInvocation, flags, usage, version};
use adit_model::Level;
use adit_model::diagnostic::Diagnostics;

use crate::read::loaded::Loaded;
use crate::read::source::Source;

/// One of the two programs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SnellProgram {
    /// `snell-server`.
    Server,
    /// `snell-client`.
    Client,
}

impl SnellProgram {
    /// The name of the program, which is that of its section too.
    pub fn name(self) -> &'static str {
        match self {
            Self::Server => "snell-server",
            Self::Client => "snell-client",
        }
    }

    /// The file that is read when none is named.
    pub fn default_path(self) -> &'static str {
        match self {
            Self::Server => "/etc/snell-server/snell-server.conf",
            Self::Client => "/etc/snell-server/snell-client.conf",
        }
    }
}

/// Reads a file's text; `file` is its name in messages, `level` comes from the flags.
///
/// # Errors
/// Everything that is wrong with it; the programs exit with status 1 then.
pub fn parse(
    program: SnellProgram,
    level: Option<Level>,
    file: &str,
    text: &str,
) -> Result<Loaded, Diagnostics> {
    parse_with(program, level, false, file, text)
}

/// The same with the flag `-tun`, if that is given.
///
/// # Errors
/// As [`parse`].
pub fn parse_with(
    program: SnellProgram,
    level: Option<Level>,
    is_captured: bool,
    file: &str,
    text: &str,
) -> Result<Loaded, Diagnostics> {
    let source = Source::new(file, text);
    source.check_len()?;
    let (ini, found) = ini::parse(&source);
    if found.has_errors() {
        return Err(found);
    }
    snell_to_model::translate(program, level, is_captured, &source, &ini, found)
}

/// The fuzzer's entry: for any bytes, findings lie inside the text, and an accepted text can be written as
/// adit's own file and read again.
#[doc(hidden)]
pub fn fuzz_ini(data: &[u8]) {
    let text = String::from_utf8_lossy(data);
    for program in [SnellProgram::Server, SnellProgram::Client] {
        match parse(program, None, "fuzz.conf", &text) {
            Ok(loaded) => {
                crate::read::loaded::assert_inside(&text, &loaded.diagnostics);
                let again = crate::adit_toml::parse("again.toml", &crate::adit_toml::to_toml(&loaded.config));
                assert_eq!(again.map(|again| again.config).as_ref(), Ok(&loaded.config));
            }
            Err(found) => crate::read::loaded::assert_inside(&text, &found),
        }
    }
}

#[cfg(test)]
mod tests;

#[cfg(test)]
mod snell_walk_tests;
