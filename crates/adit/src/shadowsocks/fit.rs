//! From what is asked for to what this build runs.

use std::path::Path;
use std::sync::Arc;

use adit_formats::read::source;
use adit_formats::shadowsocks::{Control, ProgramFamily, ShadowsocksSetup, acl};
use adit_model::access::AccessList;
use adit_model::diagnostic::{Diagnostic, Diagnostics};
use adit_model::{Config, InboundProtocol, Outbound, OutboundProtocol, Tag, Transports};
use adit_net::User;

use super::online::ListAddress;
use super::process;

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
        && !process::is_user(user)
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
            let transports = match &mut inbound.protocol {
                InboundProtocol::Tunnel { transports, .. } => transports,
                InboundProtocol::Captured(captured) => &mut captured.transports,
                InboundProtocol::Local(_)
                | InboundProtocol::Snell(_)
                | InboundProtocol::Shadowsocks(_)
                | InboundProtocol::Ssr(_)
                | InboundProtocol::Obfs(_)
                | InboundProtocol::Dns(_)
                | InboundProtocol::Tun(_) => continue,
            };
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
