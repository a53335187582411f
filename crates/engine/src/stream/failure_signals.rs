//! Signs of trouble that connections give, for the ledger of errors.

use adit_model::codes::{self, Code};
use adit_net::rt;
use adit_proto::wire::{Host, WireError};

use super::{OpenedConnection, Routed};
use crate::connections::record::EndReason;
use crate::connections::table::ConnectionEntry;
use crate::errors::{ConfigPart, Fault, SERVER};
use crate::log_throttle::skew;

/// The causes that a connection rules out.
const CONNECTED: &[Code] = &[
    codes::NET_REFUSED,
    codes::NET_NAME,
    codes::NET_TIMEOUT,
    codes::NET_ROUTE,
    codes::NET_SOCKET,
    codes::NET_OTHER,
    codes::SYS_DESCRIPTORS,
    codes::GROUP_DEAD,
];
/// The causes that a connection to a name rules out.
const RESOLVED: &[Code] = &[codes::DNS_DEAD, codes::DNS_FAILED, codes::TLS_CERTIFICATE];

impl Routed {
    /// A connection was opened: its outbound works again, as far as this tells.
    pub(super) fn note_opened(&self, opened: &OpenedConnection) {
        let faults = self.request.source.origin.live.outbounds().watches().faults();
        if !faults.any() {
            return;
        }
        let now = rt::now();
        let is_tunnel = self.outbound.is_tunnel();
        let has_name = matches!(self.request.target.host, Host::Name(_));
        let names = [Some(self.outbound.name()), opened.member.as_ref().map(|member| member.name())];
        for name in names.into_iter().flatten() {
            let part = ConfigPart::Outbound(name.clone());
            faults.clear(&part, CONNECTED, now);
            if is_tunnel || has_name {
                faults.clear(&part, RESOLVED, now);
            }
        }
    }

    /// The client has sent something: an answer of the server is waited for.
    pub(super) fn watch(&self, opened: &mut OpenedConnection, entry: &ConnectionEntry) {
        if !self.outbound.is_tunnel() || opened.is_watched {
            return;
        }
        opened.is_watched = true;
        let watches = self.request.source.origin.live.outbounds().watches();
        let watch = watches.of(opened.name_of(&*self.outbound));
        watch.begin(watches.hash(&self.request.target), rt::now());
        entry.set_watch(Some(watch));
    }

    /// A connection has ended for this reason, after `up` payload bytes of the client.
    pub(super) fn note_end(&self, opened: &OpenedConnection, up: u64, has_replied: bool, reason: &EndReason) {
        if !self.outbound.is_tunnel() {
            return;
        }
        let name = opened.name_of(&*self.outbound);
        let watches = self.request.source.origin.live.outbounds().watches();
        if has_replied || matches!(reason, EndReason::Wire(WireError::Remote { .. })) {
            return watches.of(name).answered();
        }
        let fault = match reason {
            EndReason::Wire(WireError::Clock { offset_s, window_s }) => {
                let text = skew("the server's", *offset_s, *window_s);
                Some(Fault::new(codes::CLOCK_SERVER, format!("replies of {SERVER} are refused: {text}")))
            }
            EndReason::Wire(WireError::Authentication { .. } | WireError::Malformed { .. }) => {
                Some(Fault::new(
                    codes::AUTH_SERVER,
                    format!(
                        "the first bytes of {SERVER} do not open: key, method, protocol or obfs differ, or it is another server"
                    ),
                ))
            }
            EndReason::Finished
            | EndReason::Idle
            | EndReason::Crowded
            | EndReason::Kicked
            | EndReason::Stopped
            | EndReason::Limited(_)
            | EndReason::Socket(..)
            | EndReason::Wire(_) => None,
        };
        match fault {
            Some(fault) => watches.faults().note(&ConfigPart::Outbound(name.clone()), fault, rt::now()),
            None if up > 0 && !opened.is_watched => {
                watches.of(name).begin(watches.hash(&self.request.target), rt::now());
            }
            None => {}
        }
    }
}
