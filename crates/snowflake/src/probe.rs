//! The answering end of a probe: it connects to a proxy as a client would, so that the proxy learns whether clients can.

use std::cell::Cell;
use std::net::SocketAddr;
use std::rc::Rc;
use std::time::Duration;

use adit_engine::OsRng;
use adit_net::rt;
use adit_net::rtc::{Connection, Gathering};
use adit_proto::rtc::{PeerRole, PeerSettings, sdp};
use adit_proto::snowflake::description::{DescriptionKind, SessionDescription};

use super::probetest::ProbeFailure;

/// Time for gathering.
const GATHER: Duration = Duration::from_secs(10);
/// Time for the channel to open.
const OPEN: Duration = Duration::from_secs(20);
/// An open channel is left to the proxy for this long.
const KEEP: Duration = Duration::from_secs(5);

/// Sockets that one probe may have, as an estimate: one for each address of the machine.
const SOCKETS: u64 = 16;
/// Probes at a time, however many descriptors there are.
const MOST: usize = 1024;

/// The probes under way. Anybody may ask for one, and each holds sockets for up to half a minute.
#[derive(Debug, Clone)]
pub struct Probes {
    open: Rc<Cell<usize>>,
    most: usize,
}

impl Default for Probes {
    /// As many at a time as there are descriptors for.
    fn default() -> Self {
        let limit = adit_net::fd_limit().map_or(1024, |(soft, _)| soft);
        Self::at_most(usize::try_from(limit / SOCKETS).unwrap_or(MOST).clamp(1, MOST))
    }
}

impl Probes {
    /// At most `most` at a time.
    pub fn at_most(most: usize) -> Self {
        Self { open: Rc::default(), most }
    }

    fn begin(&self) -> Result<Probe, ProbeFailure> {
        if self.open.get() >= self.most {
            return Err(ProbeFailure::Unable(format!("{} probes are under way", self.most)));
        }
        self.open.set(self.open.get() + 1);
        Ok(Probe(self.open.clone()))
    }
}

/// A probe under way.
struct Probe(Rc<Cell<usize>>);

impl Drop for Probe {
    fn drop(&mut self) {
        self.0.set(self.0.get() - 1);
    }
}

/// Answers an offer, both as the text of a description, and waits in a task of its own for the channel to open. With
/// `is_hidden` the answer names no address, so that the proxy opens no hole in its NAT by asking first.
///
/// # Errors
/// The fault of the offer, the reason why there is no socket, or that too many `probes` are under way.
pub async fn answer_probe(
    probes: &Probes,
    offer: &str,
    stun: &[SocketAddr],
    is_hidden: bool,
) -> Result<String, ProbeFailure> {
    let wrong = |problem: String| ProbeFailure::Offer(problem);
    let offer = SessionDescription::parse(offer).map_err(|error| wrong(error.to_string()))?;
    if offer.kind != DescriptionKind::Offer {
        return Err(wrong("the offer is none".to_owned()));
    }
    let remote = sdp::SdpDescription::parse(&offer.sdp).map_err(|error| wrong(error.to_string()))?;
    let probe = probes.begin()?;
    let gathering = Gathering { stun: stun.to_vec(), limit: GATHER, ..Gathering::default() };
    let settings =
        PeerSettings { receive_window: 64 << 10, send_buffer: 16 << 10, ..PeerSettings::default() };
    let made = Box::pin(Connection::new(PeerRole::Answerer, &gathering, settings, "", &mut OsRng)).await;
    let connection = made.map_err(|error| ProbeFailure::Unable(error.to_string()))?;
    connection.start(&remote).map_err(|error| wrong(error.to_string()))?;
    let mut sdp = connection.describe();
    if is_hidden {
        sdp = sdp.split_inclusive("\r\n").filter(|line| !line.starts_with("a=candidate:")).collect();
    }
    rt::spawn_local(async move {
        if connection.opened(OPEN).await.is_ok() {
            rt::sleep(KEEP).await;
        }
        drop((connection, probe));
    });
    Ok(SessionDescription { kind: DescriptionKind::Answer, sdp }.emit())
}

#[cfg(test)]
mod tests {
    use adit_net::rt::Cores;

    use super::*;

    #[test]
    fn probes_at_a_time_are_bounded() {
        Cores::block_on(async {
            let gathering = Gathering { limit: Duration::from_secs(1), ..Gathering::default() };
            let (settings, mut rng) = (PeerSettings::default(), OsRng);
            let made = Connection::new(PeerRole::Offerer, &gathering, settings, "test", &mut rng);
            let proxy = Box::pin(made).await.unwrap();
            let offer = SessionDescription { kind: DescriptionKind::Offer, sdp: proxy.describe() }.emit();
            let probes = Probes::at_most(2);
            for _ in 0..2 {
                Box::pin(answer_probe(&probes, &offer, &[], false)).await.unwrap();
            }
            let third = Box::pin(answer_probe(&probes, &offer, &[], false)).await;
            assert_eq!(third, Err(ProbeFailure::Unable("2 probes are under way".into())));
            // An offer that is none takes no place.
            let nonsense = Box::pin(answer_probe(&Probes::at_most(0), "nonsense", &[], false)).await;
            assert!(matches!(nonsense, Err(ProbeFailure::Offer(_))), "{nonsense:?}");
            let own = Probes::at_most(1);
            drop(own.begin().unwrap());
            assert!(own.begin().is_ok(), "a probe that is over leaves its place");
        })
        .unwrap();
    }
}
