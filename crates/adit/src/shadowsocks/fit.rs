//! From what is asked for to what this build runs.

use std::sync::Arc;

use adit_config::diagnostic::{Diagnostic, Diagnostics};
use adit_config::dialect::shadowsocks::{Control, Setup};
use adit_config::model::{ClientCover, Config, InboundProtocol, Outbound, OutboundProtocol, Transports};

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
    if !setup.online.is_empty() {
        let problem = "lists of servers that are fetched are not in this build";
        fitter.error("online_config", problem, "write the servers into the file");
    }
    if let Some(user) = setup.process.user.as_deref()
        && !process::is_user(user)
    {
        let problem = format!("becoming user {user} is not in this build");
        fitter.error("user", problem, "start it as that user, for instance with User= of a systemd unit");
    }
    fitter.first_server(&mut setup.config);
    fitter.datagrams(&mut setup.config);
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

    /// Of several servers of a client, the first that carries streams.
    fn first_server(&mut self, config: &mut Config) {
        let Some(Outbound { protocol: OutboundProtocol::Group(group), .. }) = config.outbounds.first() else {
            return;
        };
        let carries = |index: usize| match config.outbounds.get(index).map(|outbound| &outbound.protocol) {
            Some(OutboundProtocol::Shadowsocks(client)) => client.transports.tcp(),
            _ => false,
        };
        let count = group.members.len();
        let first = group.members.iter().find(|member| member.tcp_weight > 0 && carries(member.outbound));
        let Some(index) = first.or_else(|| group.members.first()).map(|member| member.outbound) else {
            return;
        };
        let server = config.outbounds.swap_remove(index);
        let name = &server.name;
        let problem =
            format!("the balancer is not in this build, so {name} alone is used of {count} servers");
        self.warning("server", problem);
        config.outbounds = vec![server];
    }

    /// A tunnel carries the datagrams that its way out carries.
    fn datagrams(&mut self, config: &mut Config) {
        for inbound in &mut config.inbounds {
            let InboundProtocol::Tunnel { transports, .. } = &mut inbound.protocol else { continue };
            if !transports.udp() || config.outbounds.get(inbound.outbound).is_some_and(carries_datagrams) {
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
        if config.inbounds.is_empty() {
            self.error("local_port", "nothing is left to listen for", "give a port of protocol socks");
        }
    }
}

fn carries_datagrams(outbound: &Outbound) -> bool {
    match &outbound.protocol {
        OutboundProtocol::Direct => true,
        OutboundProtocol::Shadowsocks(client) => {
            let by_plugin = matches!(&client.cover, ClientCover::Plugin(plugin) if plugin.transports.udp());
            client.transports.udp() && !by_plugin
        }
        OutboundProtocol::Reject | OutboundProtocol::Snell(_) | OutboundProtocol::Group(_) => false,
    }
}
