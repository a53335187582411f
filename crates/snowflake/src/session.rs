//! One stream of an application, over one conversation of KCP that outlives its proxies.

use std::future::poll_fn;
use std::io::{self, IoSlice};
use std::rc::Rc;
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use adit_engine::OsRng;
use adit_model::{SNOWFLAKE_MTU, SnowflakeClient};
use adit_net::rt::{self, Stream};
use adit_proto::kcp::arq::{Arq, ArqSettings, Arrival};
use adit_proto::smux::{Mux, SmuxReceived, SmuxRole, SmuxSettings, SmuxVersion, StreamId};
use adit_proto::snowflake::ClientId;
use adit_proto::wire::Rng as _;

use super::Voice;
use super::channel::{Channel, ChannelTraffic};
use super::collection::Collection;

/// Longest pause between two turns.
const PAUSE: Duration = Duration::from_secs(20);
/// Pause between two looks for a channel that is silent, and at the time for a line of traffic.
const LOOK: Duration = Duration::from_secs(1);
/// Pause between two lines of traffic.
const TRAFFIC: Duration = Duration::from_secs(5);
/// Time for the last bytes of a session.
const LINGER: Duration = Duration::from_secs(2);
/// Time for the server to end its direction after the application has ended its own.
const HALF_OPEN: Duration = Duration::from_secs(60);
/// Bytes of one read.
const READ: usize = 64 << 10;
/// Rounds of one turn.
const ROUNDS: usize = 16;
/// Segments that may be under way, and that may wait for the reader.
const WINDOW: u16 = 4096;

/// The session of one application's stream.
pub(super) struct SnowflakeSession {
    voice: Rc<dyn Voice>,
    collection: Rc<Collection>,
    application: Option<Stream>,
    has_ended: bool,
    ended_at: Option<Instant>,
    id: ClientId,
    arq: Arq,
    mux: Mux,
    stream: StreamId,
    channel: Option<Channel>,
    /// Frames for KCP, from `frames_at` on.
    frames: Vec<u8>,
    frames_at: usize,
    packet: Vec<u8>,
    /// Bytes for the application, from `outbox_at` to `outbox_len`.
    outbox: Vec<u8>,
    outbox_at: usize,
    outbox_len: usize,
    buffer: Vec<u8>,
    traffic_at: Instant,
}

impl SnowflakeSession {
    pub(super) fn new(
        application: Stream,
        settings: &SnowflakeClient,
        collection: Rc<Collection>,
        voice: Rc<dyn Voice>,
    ) -> Self {
        let now = rt::now();
        let (mut conv, mut id) = ([0; 4], [0; 8]);
        OsRng.fill(&mut conv);
        OsRng.fill(&mut id);
        let arq = Arq::new(
            u32::from_le_bytes(conv),
            ArqSettings {
                interval: Duration::from_millis(10),
                mtu: SNOWFLAKE_MTU,
                congestion: false,
                send_window: WINDOW,
                recv_window: WINDOW,
                ..ArqSettings::default()
            },
            now,
        );
        let window = settings.stream_window;
        let mut mux = Mux::new(
            SmuxRole::Client,
            SmuxSettings {
                version: SmuxVersion::V2,
                receive_buffer: usize::try_from(window).unwrap_or(usize::MAX).max(4 << 20),
                stream_window: window,
                max_stream_window: window.max(4 << 20),
                send_buffer: 256 << 10,
                keep_alive_timeout: Duration::from_secs(600),
                signals: true,
                ..SmuxSettings::default()
            },
            now,
        );
        let stream = mux.open().expect("the first stream");
        voice.log(format_args!("---- SnowflakeConn: starting a new session ---"));
        voice.log(format_args!("---- SnowflakeConn: begin stream {} ---", stream.get()));
        Self {
            voice,
            collection,
            application: Some(application),
            has_ended: false,
            ended_at: None,
            id: ClientId(id),
            arq,
            mux,
            stream,
            channel: None,
            frames: Vec::new(),
            frames_at: 0,
            packet: Vec::new(),
            outbox: Vec::new(),
            outbox_at: 0,
            outbox_len: 0,
            buffer: vec![0; READ],
            traffic_at: now + TRAFFIC,
        }
    }

    /// Runs until either end is over.
    pub(super) async fn run(mut self) {
        let why = self.pump(None).await;
        let text = why.map_or_else(|error| error.to_string(), |()| "end of the stream".to_owned());
        self.voice.log(format_args!("copy loop ended: {text}"));
        self.application = None;
        self.mux.close(self.stream);
        drop(self.pump(Some(rt::now() + LINGER)).await);
        self.voice.log(format_args!("---- SnowflakeConn: closed stream {} ---", self.stream.get()));
        self.collection.end();
        self.voice.log(format_args!("---- SnowflakeConn: discarding finished session ---"));
    }

    /// Moves bytes; with an end, until everything has been sent.
    async fn pump(&mut self, end: Option<Instant>) -> io::Result<()> {
        loop {
            let now = rt::now();
            let is_flushed = self.frames.is_empty() && !self.mux.has_output() && self.arq.is_flushed();
            if end.is_some_and(|end| now >= end || is_flushed) {
                return Ok(());
            }
            let at = self.timer(now).min(end.unwrap_or(now + PAUSE));
            let turn = async { Some(poll_fn(|cx| self.poll_turn(cx)).await) };
            let sleep = async {
                rt::sleep_until(at).await;
                None
            };
            match rt::race(turn, sleep).await {
                Some(outcome) if end.is_none() => return outcome,
                Some(_) => rt::yield_now().await,
                None => {}
            }
            self.look();
        }
    }

    fn timer(&self, now: Instant) -> Instant {
        let is_free = self.channel.as_ref().is_some_and(Channel::is_free);
        let arq = self.arq.poll_timeout().filter(|_| is_free);
        [arq, self.mux.poll_timeout()].into_iter().flatten().min().unwrap_or(now + LOOK).min(now + LOOK)
    }

    /// Looks for what time brings.
    fn look(&mut self) {
        let now = rt::now();
        self.mux.handle_timeout(now);
        if let Some(round_trip) = self.arq.round_trip() {
            self.mux.set_round_trip(round_trip);
        }
        if let Some(why) = self.channel.as_ref().and_then(|channel| channel.staleness(now)) {
            self.voice.log(format_args!("WebRTC: {why}"));
            self.lose("stale");
        }
        if now >= self.traffic_at
            && let Some(channel) = &mut self.channel
        {
            let ChannelTraffic { bytes_in, bytes_out, messages, sends } =
                std::mem::take(&mut channel.traffic);
            self.traffic_at = now + TRAFFIC;
            if messages + sends > 0 {
                self.voice.log(format_args!(
                    "Traffic Bytes (in|out): {bytes_in} | {bytes_out} -- ({messages} OnMessages, {sends} Sends)"
                ));
            }
        }
    }

    fn lose(&mut self, why: &str) {
        if self.channel.take().is_some() {
            self.voice.log(format_args!("WebRTC: closing PeerConnection: {why}"));
            self.collection.note_loss();
        }
    }

    /// One turn; ready when the stream is over, or an error ends it.
    fn poll_turn(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let now = rt::now();
        for _ in 0..ROUNDS {
            self.poll_proxy(cx, now);
            let mut is_busy = self.poll_channel(cx, now);
            self.read_frames(now)?;
            if let Poll::Ready(over) = self.poll_write(cx, now, &mut is_busy)? {
                return Poll::Ready(over);
            }
            is_busy |= self.poll_read(cx, now)?;
            self.poll_transmit(cx, now);
            if self.mux.is_gone() {
                return Poll::Ready(Err(io::ErrorKind::TimedOut.into()));
            }
            if !is_busy {
                let is_late = self.ended_at.is_some_and(|at| now.saturating_duration_since(at) > HALF_OPEN);
                return if is_late { Poll::Ready(Ok(())) } else { Poll::Pending };
            }
        }
        cx.waker().wake_by_ref();
        Poll::Pending
    }

    /// Takes the next proxy if there is none.
    fn poll_proxy(&mut self, cx: &mut Context<'_>, now: Instant) {
        if self.channel.is_some() {
            return;
        }
        let Poll::Ready(connection) = self.collection.poll_take(cx) else { return };
        self.voice.log(format_args!("redialing on same connection"));
        self.voice.log(format_args!("---- Handler: snowflake assigned ----"));
        self.channel = Some(Channel::new(connection, self.id, now));
    }

    /// Bytes from the proxy go to KCP; true if there may be more.
    fn poll_channel(&mut self, cx: &mut Context<'_>, now: Instant) -> bool {
        let Some(channel) = &mut self.channel else { return false };
        let arq = &mut self.arq;
        let received = channel.poll_packets(cx, now, |packet| {
            // A segment that makes no sense is dropped, as any datagram would be.
            if let Err(error) = arq.handle_datagram(packet, Arrival::Received, now) {
                tracing::debug!(%error, "segment over a data channel");
            }
        });
        if let Poll::Ready(Err(why)) = &received {
            self.lose(why);
        }
        received.is_ready()
    }

    /// From KCP to smux.
    fn read_frames(&mut self, _now: Instant) -> io::Result<()> {
        loop {
            let bytes = self.arq.peek();
            if bytes.is_empty() {
                break;
            }
            let taken = self.mux.handle_input(bytes).map_err(io::Error::other)?;
            if taken == 0 {
                break;
            }
            self.arq.consume(taken);
        }
        while self.mux.poll_event().is_some() {}
        Ok(())
    }

    /// From smux to the application; ready when the server has ended the stream and everything is written.
    fn poll_write(
        &mut self,
        cx: &mut Context<'_>,
        now: Instant,
        is_busy: &mut bool,
    ) -> io::Result<Poll<io::Result<()>>> {
        let Some(application) = &self.application else { return Ok(Poll::Pending) };
        if self.outbox_at == self.outbox_len {
            self.outbox.resize(READ, 0);
            (self.outbox_at, self.outbox_len) = (0, 0);
            match self.mux.recv(self.stream, &mut self.outbox, now) {
                SmuxReceived::Bytes(len) => self.outbox_len = len,
                SmuxReceived::Empty => return Ok(Poll::Pending),
                SmuxReceived::End => {
                    application.shutdown_write()?;
                    return Ok(Poll::Ready(Ok(())));
                }
                SmuxReceived::Reset => {
                    application.abort_on_close();
                    return Ok(Poll::Ready(Err(io::ErrorKind::ConnectionReset.into())));
                }
            }
        }
        match application.poll_send(cx, &[IoSlice::new(&self.outbox[self.outbox_at..self.outbox_len])]) {
            Poll::Pending => {}
            Poll::Ready(sent) => {
                self.outbox_at += sent?;
                *is_busy = true;
            }
        }
        Ok(Poll::Pending)
    }

    /// From the application to smux; true if there may be more.
    fn poll_read(&mut self, cx: &mut Context<'_>, now: Instant) -> io::Result<bool> {
        let Some(application) = &self.application else { return Ok(false) };
        let room = self.mux.room(self.stream).min(READ);
        if self.has_ended || room == 0 {
            return Ok(false);
        }
        match application.poll_recv(cx, &mut self.buffer[..room]) {
            Poll::Pending => Ok(false),
            Poll::Ready(read) => {
                let len = read?;
                if len == 0 {
                    self.has_ended = true;
                    self.ended_at = Some(now);
                    self.mux.finish(self.stream);
                } else {
                    self.mux.send(self.stream, &self.buffer[..len]);
                }
                Ok(true)
            }
        }
    }

    /// From smux through KCP to the proxy. Without one, KCP's clock stands still: nothing is lost that was not sent.
    fn poll_transmit(&mut self, cx: &mut Context<'_>, now: Instant) {
        self.fill();
        let Some(channel) = &mut self.channel else { return };
        loop {
            match channel.poll_flush(cx) {
                Poll::Pending => return,
                Poll::Ready(Ok(())) => {}
                Poll::Ready(Err(why)) => return self.lose(&why),
            }
            self.packet.clear();
            if !self.arq.poll_transmit(now, &mut self.packet) {
                return;
            }
            channel.hold_packet(&self.packet);
            fill(&mut self.mux, &mut self.arq, &mut self.frames, &mut self.frames_at);
        }
    }

    fn fill(&mut self) {
        fill(&mut self.mux, &mut self.arq, &mut self.frames, &mut self.frames_at);
    }
}

/// Frames go to KCP as far as it has room.
fn fill(mux: &mut Mux, arq: &mut Arq, frames: &mut Vec<u8>, frames_at: &mut usize) {
    loop {
        if *frames_at == frames.len() {
            frames.clear();
            *frames_at = 0;
            if arq.room() == 0 || !mux.poll_transmit(frames, 1) {
                return;
            }
        }
        let sent = arq.send(&frames[*frames_at..]);
        *frames_at += sent;
        if sent == 0 {
            return;
        }
    }
}
