//! ShadowsocksR: the flags and files of its C client (`ss-local`, `ss-tunnel` of the libev fork) and of its Python server
//! (`server.py`), and `ssr://` links.
//!
//! A flag counts more than the file. Comments and a comma at the end are allowed in every file. A key that no program
//! of the family knows gives a warning; keys of the others pass in silence, as one file serves several.
//!
//! | key | flag | default | becomes |
//! |---|---|---|---|
//! | `server`, `server_ipv6` | `-s` | client: required; server: `0.0.0.0` | the servers of a client, up to 10; what a server listens on |
//! | `server_port` | `-p` | client: required; server: 8388 | their port; a list for servers |
//! | `servers` | | | servers of a client with settings of their own, up to 10 |
//! | `local_address`, `local_port` | `-b`, `-l` | `127.0.0.1`, required | what a client listens on |
//! | `password` | `-k` | required | the password |
//! | `method` | `-m` | client: `rc4-md5`; server: `aes-256-cfb` | the cipher |
//! | `protocol`, `protocol_param` | `-O`, `-G` | `origin` | the protocol; its user, users or limits |
//! | `obfs`, `obfs_param` | `-o`, `-g` | `plain` | the obfs; its hosts |
//! | `mode` | `-u`, `-U` | client: `tcp_only`; server: `tcp_and_udp` | what is carried |
//! | `timeout` | `-t` | client: 60 s; server: 300 s | time to connect, at most 10 s; streams live for `max(86400 s, timeout)` |
//! | `plugin`, `plugin_opts` | `--plugin`, `--plugin-opts` | none | a SIP003 plugin beneath the obfs |
//! | `port_password`, `additional_ports` | | none | ports of a server, each with settings of its own |
//! | `redirect` | | none | fallback servers |
//! | `forbidden_ip`, `forbidden_port`, `black_hostname_list` | `--forbidden-ip` | `127.0.0.0/8,::1/128`, none, none | rules that refuse targets |
//! | `speed_limit_per_user` | | 0 | KiB/s of each user, each way |
//! | `out_bind`, `out_bindv6` | | by routing | what a server sends from |

pub(crate) mod file;
pub mod link;
pub mod mudb;
pub(crate) mod names;
pub(crate) mod server;
pub mod ssr_flags;
mod ssr_to_model;

use std::path::{Path, PathBuf};

use adit_model::diagnostic::Diagnostics;

use self::file::SsrFile;
pub use self::ssr_flags::{Daemon, SsrFlags, SsrInvocation, flags, usage};
use crate::read::source::Source;
use crate::shadowsocks::setup::ShadowsocksSetup;

/// Exit status of a program after a mistake on the command line, or when something is missing.
pub const EXIT_USAGE: u8 = 1;

/// One of the programs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SsrProgram {
    /// `ssr-local`: SOCKS.
    Local,
    /// `ssr-tunnel`: everything to one target.
    Tunnel,
    /// `ssr-redir`: connections that the firewall redirects, datagrams by TPROXY.
    Redir,
    /// `ssr-server`, the Python server.
    Server,
}

impl SsrProgram {
    /// All of them.
    pub const ALL: [Self; 4] = [Self::Local, Self::Tunnel, Self::Redir, Self::Server];

    /// Its name.
    pub fn name(self) -> &'static str {
        match self {
            Self::Local => "ssr-local",
            Self::Tunnel => "ssr-tunnel",
            Self::Redir => "ssr-redir",
            Self::Server => "ssr-server",
        }
    }

    /// The files that are tried, in order, when none is named. A client tries them only without any argument.
    pub fn default_paths(self) -> Vec<PathBuf> {
        let names: &[&str] = match self {
            Self::Local | Self::Tunnel | Self::Redir => &["/etc/shadowsocks-libev/config.json"],
            Self::Server => &["user-config.json", "config.json", "../user-config.json", "../config.json"],
        };
        names.iter().map(PathBuf::from).collect()
    }
}

/// A file: its name in messages and its text.
pub type NamedText<'a> = (&'a str, &'a str);

/// Whether a file is a database of users (`mudb.json`): a list, where settings are an object.
pub fn is_database(text: &str) -> bool {
    let mut rest = text.trim_start_matches('\u{feff}').trim_start();
    loop {
        let behind = if let Some(comment) = rest.strip_prefix("//") {
            comment.split_once('\n')
        } else if let Some(comment) = rest.strip_prefix("/*") {
            comment.split_once("*/")
        } else {
            return rest.starts_with('[');
        };
        rest = behind.map_or("", |(_, behind)| behind).trim_start();
    }
}

/// Puts flags and file together; with the file of a database and its text, users are those of the database.
///
/// # Errors
/// Everything that is wrong.
pub fn load(
    program: SsrProgram,
    flags: &SsrFlags,
    file: Option<NamedText<'_>>,
    database: Option<(&Path, &str)>,
) -> Result<ShadowsocksSetup, Diagnostics> {
    let mut found = flags.diagnostics.clone();
    let values = match file {
        Some((name, text)) => {
            let source = Source::new(name, text);
            source.check_len()?;
            let (values, of_file) = file::parse(&source)?;
            found.append(of_file);
            values
        }
        None => SsrFile::default(),
    };
    ssr_to_model::translate(program, flags, values, database, found)
}

/// Fuzz target: for any bytes, findings lie inside the text, what is accepted can be written as adit's own file and
/// read again, and a database into which traffic is written is a database with that traffic.
#[doc(hidden)]
pub fn fuzz_ssr(data: &[u8]) {
    let text = String::from_utf8_lossy(data);
    for program in SsrProgram::ALL {
        match load(program, &SsrFlags::default(), Some(("fuzz.json", &text)), None) {
            Ok(setup) => crate::shadowsocks::check_setup(&text, &setup),
            Err(found) => crate::read::loaded::assert_inside(&text, &found),
        }
    }
    if let Err(found) =
        load(SsrProgram::Server, &SsrFlags::default(), None, Some((Path::new("mudb.json"), &text)))
    {
        crate::read::loaded::assert_inside(&text, &found);
    }
    mudb::check_written(&text);
}

#[cfg(test)]
mod tests;

#[cfg(test)]
mod ssr_walk_tests;
