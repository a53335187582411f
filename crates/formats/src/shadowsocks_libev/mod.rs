//! shadowsocks-libev 3.3.5: the flags, files and defaults of `ss-local`, `ss-server`, `ss-tunnel`, `ss-manager` and
//! `ss-redir`.
//!
//! A flag counts more than the file, wherever it stands; of one flag given twice the last one counts, but every `-s`.
//! `-u` adds datagrams and `-U` leaves nothing else: the reverse of shadowsocks-rust.
//!
//! | key | flag | default | becomes |
//! |---|---|---|---|
//! | `server` | `-s` | `0.0.0.0`; required of clients | what a server listens on, or the servers of a client; up to 10, with or without a port |
//! | `server_port` | `-p` | required | their port |
//! | `local_address`, `local_port` | `-b`, `-l` | `127.0.0.1`, required | what a client listens on |
//! | `local_address`, `local_ipv4_address`, `local_ipv6_address` | `-b` | by routing | what a server sends from |
//! | `reuse_port` | `--reuse-port` | off | other processes may listen there as well |
//! | `password`, `key` | `-k` `--password`, `--key` | one of them is required | the key; `key` counts more |
//! | `method` | `-m` | `chacha20-ietf-poly1305` | the method |
//! | `mode` | `-u`, `-U` | `tcp_only` | what is carried |
//! | `timeout` | `-t` | 60 s; 600 s for `ss-redir` | time to connect, at most 10 s; streams live for `max(86400 s, timeout)` |
//! | `plugin`, `plugin_opts` | `--plugin`, `--plugin-opts` | none | the plugin; `obfs-local` and `obfs-server` are built in where they only have a mode and a host |
//! | `tcp_tproxy` | `-T` | off | connections come by TPROXY too; of `ss-redir` |
//! | `tunnel_address` | `-L` | required of `ss-tunnel` | the target |
//! | `fast_open` | `--fast-open` | off | TCP Fast Open: of a server's port, of a client's connections |
//! | | `-i` | any | interface of outgoing connections |
//! | `nameserver` | `-d` | the system's | name servers of a server |
//! | `ipv6_first` | `-6` | off | IPv6 before IPv4 |
//! | `manager_address` | `--manager-address` | `~/.ss-manager.socks` for `ss-manager` | where counters are reported to; where a manager listens |
//! | `port_password` | | none | the first servers of `ss-manager` |
//! | `acl` | `--acl` | none | access control |
//! | `user`, `nofile`, `use_syslog`, `workdir` | `-a`, `-n`, `-D` | | the process; `-f` writes a number and goes into the background |
//!
//! A key of the file that no program of the family knows gives a warning. Keys of the others pass in silence, as one
//! file serves several.

mod file;
pub mod libev_flags;
mod libev_to_model;

use std::path::{Path, PathBuf};

use adit_model::diagnostic::Diagnostics;

use self::file::LibevValues;
pub use self::libev_flags::{LibevFlags, LibevInvocation, flags, usage, version};
use crate::read::source::Source;
use crate::shadowsocks::setup::ShadowsocksSetup;

/// Exit status of a program after a mistake on the command line, or when something is missing.
pub const EXIT_USAGE: u8 = 1;

/// Exit status of a program when the file is wrong, or something fails later.
pub const EXIT_FAILURE: u8 = 255;

/// One of the programs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LibevProgram {
    /// `ss-local`: SOCKS.
    Local,
    /// `ss-server`.
    Server,
    /// `ss-tunnel`: everything to one target.
    Tunnel,
    /// `ss-manager`: servers on demand.
    Manager,
    /// `ss-redir`: connections that the firewall redirects, datagrams by TPROXY.
    Redir,
}

impl LibevProgram {
    /// All of them.
    pub const ALL: [Self; 5] = [Self::Local, Self::Server, Self::Tunnel, Self::Manager, Self::Redir];

    /// Its name.
    pub fn name(self) -> &'static str {
        match self {
            Self::Local => "ss-local",
            Self::Server => "ss-server",
            Self::Tunnel => "ss-tunnel",
            Self::Manager => "ss-manager",
            Self::Redir => "ss-redir",
        }
    }

    fn is_client(self) -> bool {
        matches!(self, Self::Local | Self::Tunnel | Self::Redir)
    }
}

/// The files that are tried, in order, when there is not one argument on the command line. `config_home` is the value
/// of `XDG_CONFIG_HOME`.
pub fn default_paths(config_home: Option<&Path>, home: Option<&Path>) -> Vec<PathBuf> {
    const FILE: &str = "shadowsocks-libev/config.json";
    let own = config_home.map(Path::to_path_buf).or_else(|| home.map(|home| home.join(".config")));
    own.map(|dir| dir.join(FILE)).into_iter().chain([Path::new("/etc").join(FILE)]).collect()
}

/// Puts flags and file together; the file is its name in messages and its text.
///
/// # Errors
/// Everything that is wrong.
pub fn load(
    program: LibevProgram,
    flags: &LibevFlags,
    file: Option<(&str, &str)>,
) -> Result<ShadowsocksSetup, Diagnostics> {
    let source = file.map(|(name, text)| Source::new(name, text));
    let mut found = flags.diagnostics.clone();
    let values = match &source {
        Some(source) => {
            source.check_len()?;
            let (values, of_file) = file::parse(source)?;
            found.append(of_file);
            values
        }
        None => LibevValues::default(),
    };
    libev_to_model::translate(program, flags, values, found)
}

/// Fuzz target: for any bytes, findings lie inside the text, and an accepted text can be written as adit's own
/// file and read again.
#[doc(hidden)]
pub fn fuzz_libev(data: &[u8]) {
    let text = String::from_utf8_lossy(data);
    for program in LibevProgram::ALL {
        match load(program, &LibevFlags::default(), Some(("fuzz.json", &text))) {
            Ok(setup) => crate::shadowsocks::check_setup(&text, &setup),
            Err(found) => crate::read::loaded::assert_inside(&text, &found),
        }
    }
}

#[cfg(test)]
mod tests;

#[cfg(test)]
mod libev_walk_tests;
