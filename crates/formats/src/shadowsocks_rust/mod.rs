//! shadowsocks-rust 1.25: the flags, files and defaults of `sslocal`, `ssserver`, `ssmanager`, `ssservice` and
//! `ssurl`.
//!
//! `-u` leaves nothing but datagrams and `-U` adds them: the reverse of shadowsocks-libev. Servers and local ports of
//! the command line come behind those of the file; of everything else a flag counts more.
//!
//! | key | becomes |
//! |---|---|
//! | `server`, `server_port`, `method`, `password`, `plugin`, `plugin_opts`, `plugin_args`, `plugin_mode` | a server |
//! | `servers` (`shadowsocks`) | more of them, each with `mode`, `users`, `remarks` (`name`), `tcp_weight`, `udp_weight`, `disabled`, `outbound_bind_interface`, `outbound_bind_addr`, `outbound_fwmark` |
//! | `local_address`, `local_port`, `protocol` | a local port |
//! | `locals` | more of them, each with `mode`, `forward_address`, `forward_port`, `disabled`, `socks5_auth_config_path`, `http_auth_config_path` |
//! | `mode` | what is carried where nothing else is said: `tcp_only` |
//! | `timeout`, `udp_timeout`, `udp_max_associations`, `udp_mtu` | time to connect, and how datagrams are relayed |
//! | `outbound_bind_interface`, `outbound_bind_addr`, `outbound_fwmark` | where what is sent comes from, and its mark |
//! | `balancer` | how servers are compared |
//! | `dns`, `ipv6_first`, `fast_open`, `nofile`, `acl`, `security`, `log`, `runtime` | the like |
//! | `manager_address`, `manager_port` | where a manager listens, or a server reports to |
//! | `online_config` | a list of servers that is fetched |
//!
//! A password `${NAME}` is
//! that of the environment.

mod file;
mod names;
pub mod rust_flags;
mod rust_to_model;
mod tun;

use std::path::{Path, PathBuf};

use adit_model::Secret;
use adit_model::diagnostic::{Diagnostic, Diagnostics};
use adit_proto::shadowsocks::{Generation, ShadowsocksMethod};
use adit_proto::wire::{Host, Rng, Target};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use zeroize::Zeroizing;

pub use self::rust_flags::{RustFlags, RustInvocation, Service, Url, flags, service, url, usage};
use crate::read::json;
use crate::read::json_fields::JsonReport;
use crate::read::source::Source;
use crate::read::value::Problem;
use crate::shadowsocks::ShadowsocksProfile;
use crate::shadowsocks::setup::ShadowsocksSetup;

/// One of the programs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RustProgram {
    /// `sslocal`, `ssservice local`.
    Local,
    /// `ssserver`, `ssservice server`.
    Server,
    /// `ssmanager`, `ssservice manager`.
    Manager,
}

impl RustProgram {
    /// All of them.
    pub const ALL: [Self; 3] = [Self::Local, Self::Server, Self::Manager];

    /// Its name.
    pub fn name(self) -> &'static str {
        match self {
            Self::Local => "sslocal",
            Self::Server => "ssserver",
            Self::Manager => "ssmanager",
        }
    }
}

/// Exit status of a program.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub enum Exit {
    /// A flag that is none, or does not go with another.
    Flag = 2,
    /// Something is missing on the command line (`EX_USAGE`).
    Usage = 64,
    /// Something has failed later (`EX_SOFTWARE`).
    Software = 70,
    /// The file is wrong, or one that it names (`EX_CONFIG`).
    Config = 78,
}

/// Files and variables that the configuration needs from its surroundings.
#[derive(Clone, Copy)]
pub struct RustSurroundings<'a> {
    /// A variable of the environment: those that passwords name, and `SS_SERVER_PASSWORD`.
    pub variable: &'a dyn Fn(&str) -> Option<Zeroizing<String>>,
    /// The text of a file: those that list users.
    pub file: &'a dyn Fn(&Path) -> Result<Zeroizing<String>, Diagnostic>,
}

/// Paths of a program's file if none is named, in order. The arguments are the working directory and the values of
/// `XDG_CONFIG_HOME`, `HOME` and `XDG_CONFIG_DIRS`.
pub fn default_paths(
    program: RustProgram,
    working: &Path,
    config_home: Option<&Path>,
    home: Option<&Path>,
    config_dirs: Option<&str>,
) -> Vec<PathBuf> {
    const DIRECTORY: &str = "shadowsocks-rust";
    let own = match program {
        RustProgram::Local => "local.json",
        RustProgram::Server => "server.json",
        RustProgram::Manager => "manager.json",
    };
    let config_home = config_home.map(Path::to_path_buf).or_else(|| home.map(|home| home.join(".config")));
    let shared =
        config_dirs.filter(|dirs| !dirs.is_empty()).unwrap_or("/etc/xdg").split(':').map(PathBuf::from);
    let etc = std::iter::once(PathBuf::from("/etc"));
    let below = config_home.into_iter().chain(shared).chain(etc).map(|dir| dir.join(DIRECTORY));
    let all = std::iter::once(working.to_path_buf()).chain(below);
    all.flat_map(|dir| [dir.join(own), dir.join("config.json")]).collect()
}

/// Puts flags and file together; the file is its name in messages and its text.
///
/// # Errors
/// Everything that is wrong, and what the program exits with.
pub fn load(
    program: RustProgram,
    flags: &RustFlags,
    file: Option<(&str, &str)>,
    outside: RustSurroundings<'_>,
) -> Result<ShadowsocksSetup, (Exit, Diagnostics)> {
    let (name, text) = file.unwrap_or(("command line", ""));
    let source = Source::new(name, text);
    source.check_len().map_err(|error| (Exit::Config, error.into()))?;
    rust_to_model::translate(program, flags, file.map(|_| &source), outside)
}

/// The servers of a file as links describe them, and the warnings: what `ssurl -e` reads. The file is its name in
/// messages and its text.
///
/// # Errors
/// Everything that is wrong.
pub fn profiles(
    name: &str,
    text: &str,
    outside: RustSurroundings<'_>,
) -> Result<(Vec<ShadowsocksProfile>, Diagnostics), Diagnostics> {
    let source = Source::new(name, text);
    source.check_len()?;
    let mut report = JsonReport::new(&source);
    let servers = file::read(&source, &mut report, outside).servers;
    let mut profiles = Vec::with_capacity(servers.len());
    for server in servers {
        match Host::parse(server.host.as_bytes()) {
            Ok(_) if server.port == 0 => {
                server.origin.error(&mut report, "server_port", Problem::new("missing"));
            }
            Ok(host) => profiles.push(ShadowsocksProfile {
                name: server.name,
                id: None,
                server: Target { host, port: server.port },
                key: server.key,
                plugin: server.plugin,
            }),
            Err(error) => server.origin.error(&mut report, "server", Problem::new(error.to_string())),
        }
    }
    let mut found = report.found;
    if profiles.is_empty() && !found.has_errors() {
        found.push(Diagnostic::error(&source.file, "servers", "no server is given").at((1, 1)));
    }
    found.sort();
    if found.has_errors() { Err(found) } else { Ok((profiles, found)) }
}

/// A file that says what a link says: what `ssurl -d` prints.
pub fn emit(profile: &ShadowsocksProfile) -> Zeroizing<String> {
    let mut out = Zeroizing::new(String::with_capacity(1024));
    let quote = |text: &str| Zeroizing::new(json::quote(text));
    let mut entry = |key: &str, value: &str| {
        let lead = if out.is_empty() { "{" } else { "," };
        out.push_str(lead);
        out.push_str("\n    \"");
        out.push_str(key);
        out.push_str("\": ");
        out.push_str(value);
    };
    entry("server", &quote(&profile.server.host.to_string()));
    entry("server_port", &profile.server.port.to_string());
    entry("method", &quote(profile.key.method().name()));
    entry("password", &quote(profile.key.text().expose()));
    if let Some(plugin) = &profile.plugin {
        entry("plugin", &quote(&plugin.program));
        if !plugin.options.is_empty() {
            entry("plugin_opts", &quote(&plugin.options));
        }
    }
    out.push_str("\n}\n");
    out
}

/// A key for a method, as `ssservice genkey` makes it: base64 for those of 2022, letters and digits for the others.
pub fn generate_key(method: ShadowsocksMethod, rng: &mut dyn Rng) -> Secret {
    if method.generation() != Generation::Aead2022 {
        return crate::share::generate_key(rng, crate::share::KEY_LEN);
    }
    let mut key = Zeroizing::new([0; 32]);
    let key = &mut key[..method.key_len()];
    rng.fill(key);
    Secret::new(STANDARD.encode(key))
}

/// Fuzz target: for any bytes, findings lie inside the text, and an accepted text can be written as adit's own
/// file and read again.
#[doc(hidden)]
pub fn fuzz_rust(data: &[u8]) {
    let text = String::from_utf8_lossy(data);
    let outside = RustSurroundings {
        variable: &|_| None,
        file: &|_| Ok(Zeroizing::new("{password:{users:[{user_name:'u',password:'p'}]}}".to_owned())),
    };
    for program in RustProgram::ALL {
        match load(program, &RustFlags::default(), Some(("fuzz.json", &text)), outside) {
            Ok(setup) => crate::shadowsocks::check_setup(&text, &setup),
            Err((_, found)) => crate::read::loaded::assert_inside(&text, &found),
        }
    }
}

#[cfg(test)]
mod tests;

#[cfg(test)]
mod rust_walk_tests;
