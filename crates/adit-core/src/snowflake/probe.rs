//! The answering end of a probe: it connects to a proxy as a client would, so that the proxy learns whether clients can.

use std::net::SocketAddr;
use std::time::Duration;

use adit_net::rt;
use adit_net::rtc::{Connection, Gathering};
use adit_proto::rtc::{Role, Settings, sdp};
use adit_proto::snowflake::description::{Description, Kind};

use crate::rng::OsRng;

/// Time for gathering.
const GATHER: Duration = Duration::from_secs(10);
/// Time for the channel to open.
const OPEN: Duration = Duration::from_secs(20);
/// An open channel is left to the proxy for this long.
const KEEP: Duration = Duration::from_secs(5);

/// Answers an offer, both as the text of a description, and waits in a task of its own for the channel to open. With
/// `is_hidden` the answer names no address, so that the proxy opens no hole in its NAT by asking first.
///
/// # Errors
/// The fault of the offer, or the reason why there is no socket.
pub async fn answer_probe(offer: &str, stun: &[SocketAddr], is_hidden: bool) -> Result<String, String> {
    let offer = Description::parse(offer).map_err(|error| error.to_string())?;
    if offer.kind != Kind::Offer {
        return Err("the offer is none".to_owned());
    }
    let remote = sdp::Description::parse(&offer.sdp).map_err(|error| error.to_string())?;
    let gathering = Gathering { stun: stun.to_vec(), limit: GATHER, ..Gathering::default() };
    let settings = Settings { receive_window: 64 << 10, send_buffer: 16 << 10, ..Settings::default() };
    let made = Box::pin(Connection::new(Role::Answerer, &gathering, settings, "", &mut OsRng)).await;
    let connection = made.map_err(|error| error.to_string())?;
    connection.start(&remote).map_err(|error| error.to_string())?;
    let mut sdp = connection.describe();
    if is_hidden {
        sdp = sdp.split_inclusive("\r\n").filter(|line| !line.starts_with("a=candidate:")).collect();
    }
    rt::spawn_local(async move {
        if connection.opened(OPEN).await.is_ok() {
            rt::sleep(KEEP).await;
        }
    });
    Ok(Description { kind: Kind::Answer, sdp }.emit())
}
