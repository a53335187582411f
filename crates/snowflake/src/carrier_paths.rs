//! The way of an outbound's sessions: packets of the carrier go through proxies.
//!
//! ```text
//!   carrier ─ hub ─ chunks ─ data channel ─▶ proxy ─▶ server
//! ```
//!
//! A session has one name, and one proxy at a time. When that one is lost the next one takes over, and the carrier sends
//! again what did not arrive.

use adit_model::{Egress, SnowflakeClient, Tag};

use adit_engine::MakeStreamPath;

#[cfg(target_os = "linux")]
pub(crate) use self::linux::ways;

/// There is no WebRTC here.
#[cfg(not(target_os = "linux"))]
pub(crate) fn ways(_: &Tag, _: &SnowflakeClient, _: &Egress) -> MakeStreamPath {
    let text = "carrier = \"snowflake\" needs Linux";
    Box::new(move |_| Err(std::io::Error::new(std::io::ErrorKind::Unsupported, text)))
}

#[cfg(target_os = "linux")]
mod linux {
    use std::future::poll_fn;
    use std::net::SocketAddr;
    use std::rc::Rc;
    use std::sync::Arc;
    use std::task::{Context, Poll};
    use std::time::Duration;
    use std::{fmt, io, iter};

    use adit_model::codes;
    use adit_net::dial::Dialer;
    use adit_net::rt;
    use adit_proto::snowflake::ClientId;
    use adit_proto::snowflake::encapsulation::push_packet;
    use adit_proto::wire::Rng as _;

    use super::{Egress, MakeStreamPath, SnowflakeClient, Tag};
    use crate::Voice;
    use crate::channel::Channel;
    use crate::client::warn;
    use crate::collection::Collection;
    use crate::rendezvous::Rendezvous;
    use crate::server::address_of;
    use adit_engine::LogThrottle;
    use adit_engine::OsRng;
    use adit_engine::{Attachment, Hub, StreamPath};

    /// Pause between two looks for a channel that is silent.
    const LOOK: Duration = Duration::from_secs(1);
    /// Rounds of one turn.
    const ROUNDS: usize = 16;

    /// The maker of ways for the sessions of the outbound `name`. Its sockets, those for proxies too, follow `egress`.
    pub(crate) fn ways(name: &Tag, settings: &SnowflakeClient, egress: &Egress) -> MakeStreamPath {
        let voice: Rc<dyn Voice> = Rc::new(Teller { name: name.clone(), notice: LogThrottle::default() });
        let (settings, egress) = (Rc::new(settings.clone()), egress.clone());
        Box::new(move |dialer| begin(&settings, &voice, egress.clone(), dialer))
    }

    fn begin(
        settings: &Rc<SnowflakeClient>,
        voice: &Rc<dyn Voice>,
        egress: Egress,
        dialer: &Dialer,
    ) -> io::Result<StreamPath> {
        warn(settings, &**voice);
        let rendezvous = Rendezvous::new(settings.clone(), voice.clone(), dialer.clone());
        let rendezvous = rendezvous.map_err(io::Error::other)?;
        let collection = Collection::begin(settings.clone(), voice.clone(), rendezvous, egress);
        let mut id = [0; 8];
        OsRng.fill(&mut id);
        let (id, hub) = (ClientId(id), Arc::new(Hub::new(push_packet, usize::MAX)));
        let peer = address_of(id);
        let feed = Feed { id, peer, hub: hub.clone(), collection, voice: voice.clone() };
        Ok(StreamPath { peer, hub, feed: Box::pin(feed.run()) })
    }

    /// Carries the packets of one session, by one proxy after the other.
    struct Feed {
        id: ClientId,
        peer: SocketAddr,
        hub: Arc<Hub>,
        collection: Rc<Collection>,
        voice: Rc<dyn Voice>,
    }

    impl Drop for Feed {
        fn drop(&mut self) {
            self.collection.end();
        }
    }

    impl Feed {
        /// Goes on until it is dropped.
        async fn run(self) {
            // Packets wait here while there is no proxy.
            let attachment = self.hub.attach(self.peer);
            loop {
                let connection = poll_fn(|cx| self.collection.poll_take(cx)).await;
                self.voice.log(format_args!("---- Handler: snowflake assigned ----"));
                let mut channel = Channel::new(connection, self.id, rt::now());
                let why = self.carry(&mut channel, &attachment).await;
                self.voice.log(format_args!("WebRTC: closing PeerConnection: {why}"));
                self.collection.note_loss();
                attachment.renew();
            }
        }

        /// Carries packets until the proxy is lost; says why it is.
        async fn carry(&self, channel: &mut Channel, attachment: &Attachment) -> String {
            loop {
                let turn = async { Some(poll_fn(|cx| self.poll_turn(cx, channel, attachment)).await) };
                let look = async {
                    rt::sleep(LOOK).await;
                    None
                };
                if let Some(why) = rt::race(turn, look).await {
                    return why;
                }
                if let Some(why) = channel.staleness(rt::now()) {
                    return why.to_owned();
                }
            }
        }

        /// Ready once the proxy is lost.
        fn poll_turn(
            &self,
            cx: &mut Context<'_>,
            channel: &mut Channel,
            attachment: &Attachment,
        ) -> Poll<String> {
            let now = rt::now();
            for _ in 0..ROUNDS {
                let mut is_busy = false;
                if self.hub.poll_room(cx).is_ready() {
                    let take = |packet: &[u8]| self.hub.push(self.peer, iter::once(packet));
                    if let Poll::Ready(received) = channel.poll_packets(cx, now, take) {
                        if let Err(why) = received {
                            return Poll::Ready(why);
                        }
                        is_busy = true;
                    }
                }
                match channel.poll_flush(cx) {
                    Poll::Ready(Err(why)) => return Poll::Ready(why),
                    Poll::Ready(Ok(())) => {
                        if let Poll::Ready(chunks) = attachment.poll_take(cx) {
                            channel.hold_chunks(&chunks);
                            is_busy = true;
                        }
                    }
                    Poll::Pending => {}
                }
                if !is_busy {
                    return Poll::Pending;
                }
            }
            cx.waker().wake_by_ref();
            Poll::Pending
        }
    }

    /// Says what happens, to those who debug; trouble with brokers and proxies to everybody, once a minute.
    struct Teller {
        name: Tag,
        notice: LogThrottle,
    }

    impl Voice for Teller {
        fn log(&self, line: fmt::Arguments<'_>) {
            tracing::debug!(carrier = &*self.name, "{}", line.to_string().trim_start());
        }

        fn tell(&self, severity: &str, message: &str) {
            let troubles = ["broker failure ", "trying a new proxy: ", "offer creation failure "];
            let Some(trouble) = troubles.iter().find_map(|words| message.strip_prefix(words)) else {
                if severity == "warning" {
                    tracing::warn!(carrier = &*self.name, "{message}");
                }
                return;
            };
            let Some(times) = self.notice.due(rt::now()) else { return };
            let code = codes::SNOWFLAKE_PROXY.id;
            tracing::warn!(code, carrier = &*self.name, times, "no proxy of Snowflake yet: {trouble}");
        }
    }
}
