//! kcptun's `client` and `server`: their flags, their JSON files, their defaults, of 20210922 (as Debian names the
//! programs) and of the last version (`client_linux_amd64`, `server_linux_amd64`).
//!
//! Flags are Go's: `-x v`, `--x v`, `--x=v`, and switches alone or with `=true`. A file (`-c`) overrides flags. Its keys
//! match without regard to case, and keys that are not known are ignored, as the programs do.
//!
//! Settings that are not given are found by measurement: windows, buffers, and the amount of parity.

mod kcptun_to_model;
mod options;
mod snmp;

use std::path::PathBuf;
use std::time::Duration;

pub use self::kcptun_to_model::{fuzz_kcptun, load};
pub use self::options::{KcptunInvocation, KcptunValues, flags, usage};
pub use self::snmp::{Counters, dump, expand, header, row};
use adit_model::Config;
use adit_model::diagnostic::Diagnostics;

/// The status that the programs exit with when they cannot start.
pub const EXIT_FAILURE: u8 = 255;

/// One of the two programs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Side {
    /// Makes sessions.
    Client,
    /// Takes them.
    Server,
}

/// A version of the program.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Release {
    /// 20210922, as Debian has it.
    Debian,
    /// The last one.
    Last,
}

/// A program under one of its names.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct KcptunProgram {
    /// The program.
    pub side: Side,
    /// Its version.
    pub release: Release,
}

impl KcptunProgram {
    /// Its name.
    pub fn name(self) -> &'static str {
        match (self.side, self.release) {
            (Side::Client, Release::Debian) => "kcptun-client",
            (Side::Server, Release::Debian) => "kcptun-server",
            (Side::Client, Release::Last) => "client_linux_amd64",
            (Side::Server, Release::Last) => "server_linux_amd64",
        }
    }
}

/// The configuration of a program, and the settings of its process.
#[derive(Debug, Clone)]
pub struct KcptunSetup {
    /// The configuration.
    pub config: Config,
    /// The file that log lines are appended to.
    pub log: Option<PathBuf>,
    /// The file that counters are written to, whose last part is a layout of Go's, and how often.
    pub counters: Option<(String, Duration)>,
    /// Warnings.
    pub diagnostics: Diagnostics,
}

#[cfg(test)]
mod tests;
