//! From what is asked for to what this build runs.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use adit_formats::read::source;
use adit_formats::shadowsocks::{Control, Online, ProgramFamily, ShadowsocksSetup, acl};
use adit_formats::shadowsocks_rust::RustSurroundings;
use adit_formats::shadowsocksr::{self, SsrFlags, SsrProgram};
use adit_model::access::AccessList;
use adit_model::diagnostic::{Diagnostic, Diagnostics};
use adit_model::{self as model, Config, Outbound, OutboundProtocol, Tag, Transports, WebUrl};
use adit_net::User;
use zeroize::Zeroizing;

/// The settings beside a database.
const SETTINGS: &str = "user-config.json";

/// Takes out what is not in this build and can be missed, with a warning each.
///
/// # Errors
/// The features that the setup needs and this build lacks, after the warnings.
pub(crate) fn fit(
    program: &str,
    family: ProgramFamily,
    mut setup: ShadowsocksSetup,
) -> Result<ShadowsocksSetup, Diagnostics> {
    let mut fitter = Fitter { program: program.into(), found: std::mem::take(&mut setup.diagnostics) };
    if let Some(path) = setup.acl.take() {
        setup.config.acl = fitter.access(family, &path);
    }
    for (inbound, path) in std::mem::take(&mut setup.acl_of) {
        setup.config.acl_of.extend(fitter.access(family, &path).map(|list| (inbound, list)));
    }
    for online in &setup.online {
        if let Err(error) = ListAddress::of(online) {
            let hint = "give https://, http:// or the path of a file";
            fitter.error("online_config", error.to_string(), hint);
        }
    }
    if let Some(user) = setup.process.user.as_deref()
        && !is_user(user)
    {
        if let Err(error) = User::find(user) {
            fitter.error("user", format!("no such user: {user}: {error}"), "name one of this machine");
        } else {
            setup.config.plugin_user = Some(user.into());
        }
    }
    let fetched = setup.online.iter().any(|online| online.transports.udp());
    fitter.datagrams(
        &mut setup.config,
        fetched,
        matches!(setup.control, Control::Manage(_) | Control::Users(_)),
    );
    if fitter.found.has_errors() {
        return Err(fitter.found);
    }
    Ok(ShadowsocksSetup { diagnostics: fitter.found, ..setup })
}

struct Fitter {
    program: Arc<str>,
    found: Diagnostics,
}

impl Fitter {
    fn error(&mut self, key: &str, problem: impl Into<String>, hint: &str) {
        self.found.push(Diagnostic::error(&self.program, key, problem).hint(hint));
    }

    fn warning(&mut self, key: &str, problem: impl Into<String>) {
        self.found.push(Diagnostic::warning(&self.program, key, problem));
    }

    /// The rules of a file.
    fn access(&mut self, family: ProgramFamily, path: &Path) -> Option<AccessList> {
        let text = match source::read_up_to(path, acl::MAX_LEN) {
            Ok(text) => text,
            Err(error) => {
                self.found.push(error);
                return None;
            }
        };
        match acl::parse(family, &path.to_string_lossy(), &text) {
            Ok((acl, found)) => {
                self.found.append(found);
                Some(AccessList::new(acl))
            }
            Err(found) => {
                self.found.append(found);
                None
            }
        }
    }

    /// A tunnel carries the datagrams that its way out carries.
    fn datagrams(&mut self, config: &mut Config, fetched: bool, is_manager: bool) {
        let Config { inbounds, outbounds, .. } = config;
        for inbound in &mut *inbounds {
            let Some(transports) = inbound.protocol.led_transports() else { continue };
            if !transports.udp() || fetched || carries_datagrams(outbounds, &inbound.outbound) {
                continue;
            }
            if transports.tcp() {
                *transports = Transports::Tcp;
                self.warning("mode", "UDP is off: the server of this tunnel is used for TCP alone");
            } else {
                let problem = "UDP is asked for, and the server is used for TCP alone";
                self.error("mode", problem, "give both the same mode");
            }
        }
        if inbounds.is_empty() && !is_manager {
            self.error("local_port", "no TCP or UDP listener is left", "give a port of protocol socks");
        }
    }
}

fn carries_datagrams(outbounds: &[Outbound], name: &Tag) -> bool {
    match outbounds.iter().find(|outbound| outbound.name == *name).map(|outbound| &outbound.protocol) {
        Some(OutboundProtocol::Direct) => true,
        Some(OutboundProtocol::Shadowsocks(client)) => client.transports.udp(),
        Some(OutboundProtocol::Ssr(client)) => client.transports.udp(),
        // No group holds another one.
        Some(OutboundProtocol::Group(group)) => {
            let mut members = group.members.iter().filter(|member| member.udp_weight > 0);
            members.any(|member| member.outbound != *name && carries_datagrams(outbounds, &member.outbound))
        }
        Some(
            OutboundProtocol::Reject
            | OutboundProtocol::Snell(_)
            | OutboundProtocol::Obfs(_)
            | OutboundProtocol::Choice(_)
            | OutboundProtocol::Proxy(_)
            | OutboundProtocol::Dns { .. }
            | OutboundProtocol::Refuse(_),
        )
        | None => false,
    }
}

/// Whether this process runs as that user, by name or number.
pub(crate) fn is_user(user: &str) -> bool {
    User::find(user).is_ok_and(|user| user.is_current())
}

/// Place of a list.
#[derive(Debug)]
pub(crate) enum ListAddress {
    /// On a server, over HTTP or HTTPS.
    Url(WebUrl),
    /// In a file.
    File(PathBuf),
}

impl ListAddress {
    /// The place that `online` names.
    ///
    /// # Errors
    /// When it is nothing that can be read; the error does not show the address.
    pub(crate) fn of(online: &Online) -> Result<Self, model::UrlError> {
        let text = online.url.expose();
        match text.strip_prefix("file://").unwrap_or(text) {
            path if path.starts_with('/') => Ok(Self::File(path.into())),
            url => WebUrl::parse(url).map(Self::Url),
        }
    }
}

/// The environment and the files of this process.
pub(crate) fn outside() -> RustSurroundings<'static> {
    RustSurroundings { variable: &|name| std::env::var(name).ok().map(Zeroizing::new), file: &source::read }
}

/// Reads a file of settings, or a database and the settings beside it.
///
/// # Errors
/// Everything that is wrong.
pub(crate) fn load_ssr(
    program: SsrProgram,
    flags: &SsrFlags,
    path: &Path,
    text: &str,
) -> Result<ShadowsocksSetup, Diagnostics> {
    if program != SsrProgram::Server || !shadowsocksr::is_database(text) {
        return shadowsocksr::load(program, flags, Some((&path.to_string_lossy(), text)), None);
    }
    let settings = path.with_file_name(SETTINGS);
    if !settings.exists() {
        return shadowsocksr::load(program, flags, None, Some((path, text)));
    }
    let of_settings = source::read(&settings)?;
    shadowsocksr::load(program, flags, Some((&settings.to_string_lossy(), &of_settings)), Some((path, text)))
}
