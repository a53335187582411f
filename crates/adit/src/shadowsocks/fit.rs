//! From what is asked for to what this build runs.

use std::sync::Arc;

use adit_config::diagnostic::{Diagnostic, Diagnostics};
use adit_config::dialect::shadowsocks::{Control, Setup};
use adit_config::model::{
    ClientCover, Config, InboundProtocol, Outbound, OutboundProtocol, Transports, UrlError,
};

use super::online::Place;
use super::process;

/// Takes out what is not in this build and can be missed, with a warning each.
///
/// # Errors
/// What is not in this build and cannot be missed, behind the warnings.
pub(super) fn fit(program: &str, mut setup: Setup) -> Result<Setup, Diagnostics> {
    let mut fitter = Fitter { program: program.into(), found: std::mem::take(&mut setup.diagnostics) };
    if setup.acl.is_some() {
        fitter.error(
            "acl",
            "access control lists are not in this build",
            "without the list, nothing would be blocked and nothing would go past the server",
        );
    }
    if setup.control != Control::None {
        fitter.error("manager_address", "managers are not in this build", "start the server without one");
    }
    for online in &setup.online {
        match Place::of(online) {
            Ok(_) => {}
            Err(UrlError::Https) => fitter.error(
                "online_config",
                "lists of servers over https are not in this build",
                "have another program fetch the list into a file, and give the path of that",
            ),
            Err(error) => {
                fitter.error("online_config", error.to_string(), "give http:// or the path of a file")
            }
        }
    }
    if let Some(user) = setup.process.user.as_deref()
        && !process::is_user(user)
    {
        let problem = format!("becoming user {user} is not in this build");
        fitter.error("user", problem, "start it as that user, for instance with User= of a systemd unit");
    }
    let fetched = setup.online.iter().any(|online| online.transports.udp());
    fitter.datagrams(&mut setup.config, fetched);
    if fitter.found.has_errors() {
        return Err(fitter.found);
    }
    Ok(Setup { diagnostics: fitter.found, ..setup })
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

    /// A tunnel carries the datagrams that its way out carries.
    fn datagrams(&mut self, config: &mut Config, fetched: bool) {
        let Config { inbounds, outbounds, .. } = config;
        for inbound in &mut *inbounds {
            let InboundProtocol::Tunnel { transports, .. } = &mut inbound.protocol else { continue };
            if !transports.udp() || fetched || carries_datagrams(outbounds, inbound.outbound) {
                continue;
            }
            if transports.tcp() {
                *transports = Transports::Tcp;
                self.warning("mode", "the server is used for no datagrams: streams alone are carried");
            } else {
                let problem = "the server is used for no datagrams, and nothing else is asked for";
                self.error("mode", problem, "give both the same mode, and plugins tcp_only");
            }
        }
        if inbounds.is_empty() {
            self.error("local_port", "nothing is left to listen for", "give a port of protocol socks");
        }
    }
}

fn carries_datagrams(outbounds: &[Outbound], index: usize) -> bool {
    match outbounds.get(index).map(|outbound| &outbound.protocol) {
        Some(OutboundProtocol::Direct) => true,
        Some(OutboundProtocol::Shadowsocks(client)) => {
            let by_plugin = matches!(&client.cover, ClientCover::Plugin(plugin) if plugin.transports.udp());
            client.transports.udp() && !by_plugin
        }
        // No group holds another one.
        Some(OutboundProtocol::Group(group)) => {
            let mut members = group.members.iter().filter(|member| member.udp_weight > 0);
            members.any(|member| member.outbound != index && carries_datagrams(outbounds, member.outbound))
        }
        Some(OutboundProtocol::Reject | OutboundProtocol::Snell(_)) | None => false,
    }
}
