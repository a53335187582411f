//! The kind of NAT in front of a proxy, as a probe server sees it.

use std::time::Duration;

use adit_net::rt;
use adit_proto::rtc::{PeerRole, sdp};
use adit_proto::snowflake::Scheme;
use adit_proto::snowflake::description::{DescriptionKind, SessionDescription};
use adit_proto::snowflake::messages::{Nat, PollReply, PollStatus, ProxyAnswer};

use super::{GATHER, OPEN, Proxy};

/// Time for the probe server's answer.
const ANSWER: Duration = Duration::from_secs(15);
/// A channel that has opened is kept for this long: a server that sees it close at once takes it for a failure.
const KEEP: Duration = Duration::from_secs(1);

/// Result of one probe.
enum Probe {
    Reached,
    NotReached,
}

impl Proxy {
    /// Finds out the kind of NAT; one that is given is not looked for.
    pub(super) async fn find_nat(&self) {
        let before = self.nat.get();
        if self.settings.nat.is_none() {
            let found = self.probe_nat().await;
            // A probe server that cannot be reached says nothing about a NAT that is known.
            if found != Nat::Unknown || before == Nat::Unknown {
                self.nat.set(found);
            }
            self.say(format_args!(
                "NAT Type measurement: {} -> {}",
                before.as_str(),
                self.nat.get().as_str()
            ));
        }
        self.voice.event(format_args!("NAT type: {}", self.nat.get().as_str()));
    }

    async fn probe_nat(&self) -> Nat {
        for (simulation, nat) in [("strict", Nat::Open), ("moderate", Nat::Moderate)] {
            match Box::pin(self.probe(simulation)).await {
                Ok(Probe::Reached) => return nat,
                Ok(Probe::NotReached) => {}
                Err(why) => {
                    self.say(format_args!("error polling probe: {why}"));
                    return Nat::Unknown;
                }
            }
        }
        Nat::Strict
    }

    /// Asks the probe server to connect as a client behind a NAT of this kind would.
    async fn probe(&self, simulation: &str) -> Result<Probe, String> {
        let server = self.settings.probe.as_ref().ok_or("there is no probe server")?;
        let join = if server.path.contains('?') { '&' } else { '?' };
        let asked = format!("{}{join}InCoSim={simulation}", server.path);
        let url = server.join(&asked).map_err(|error| error.to_string())?;
        let connection = Box::pin(self.connect(PeerRole::Offerer, "test", GATHER)).await?;
        self.say(format_args!("Probetest: Created Offer"));
        let offer = SessionDescription { kind: DescriptionKind::Offer, sdp: connection.describe() }.emit();
        let question = PollReply {
            status: PollStatus::Match,
            offer,
            nat: Some(Nat::Unknown),
            next_poll_ms: 0,
            relay: String::new(),
        };
        let (status, body) = self.post_to(&url, question.emit(Scheme::Current), ANSWER).await?;
        if status != 200 {
            return Err(format!("the probe server answers with status {status}"));
        }
        let answer = ProxyAnswer::parse(&body, Scheme::Current).map_err(|error| error.to_string())?;
        let answer = SessionDescription::parse(&answer.answer).map_err(|error| error.to_string())?;
        let remote = sdp::SdpDescription::parse(&answer.sdp).map_err(|error| error.to_string())?;
        connection.start(&remote).map_err(|error| error.to_string())?;
        self.say(format_args!(
            "Waiting for a test WebRTC connection with NAT check probe server to establish..."
        ));
        Ok(match connection.opened(OPEN).await {
            Ok(()) => {
                rt::sleep(KEEP).await;
                Probe::Reached
            }
            Err(_) => Probe::NotReached,
        })
    }
}
