use std::collections::VecDeque;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::{Duration, Instant};

use dimpl::{Config, Dtls, Output};
use is::stun::{StunMessage, StunPacket};
use is::{Candidate as IceCandidate, IceAgent, IceAgentEvent, IceCreds, Protocol};
use thiserror::Error;

use super::certificate::Certificate;
use super::channel::{ACK_MESSAGE, Control, open_message};
use super::sctp::{Association, BINARY, DCEP, SctpEvent, TEXT};
use super::sdp::{self, SdpCandidate, SdpDescription, Setup};
use crate::wire::{Rng, WireError};

/// A path is dead when nothing authentic has come over it for this long. Checks go out twice a second, so that six of
/// them have failed then.
const SILENCE: Duration = Duration::from_secs(3);
/// Pause between two checks of a path that works, and the longest one of the others.
const CHECK: Duration = Duration::from_millis(500);
/// Pause between two checks of different paths.
const PACE: Duration = Duration::from_millis(10);
/// Paths that are tried, at most.
const MAX_PAIRS: usize = 100;
/// Packets of DTLS that wait for a path, at most: a flight of its handshake.
const MAX_EARLY: usize = 16;
/// Datagrams of SCTP that leave in one burst. A window that opens at once would overrun the other end's socket.
const BURST: usize = 64;
/// Pause after a burst.
const BURST_PAUSE: Duration = Duration::from_millis(1);
/// Longest message that is sent, in bytes.
const MAX_SEND: usize = 16 << 10;
/// Characters of credentials.
const ALPHABET: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";

/// The end of a connection that this is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PeerRole {
    /// Describes itself first, and opens the channel. It controls ICE.
    Offerer,
    /// Answers, and sends the ClientHello of DTLS.
    Answerer,
}

/// Settings of a connection.
#[derive(Debug, Clone)]
pub struct PeerSettings {
    /// Bytes of SCTP that may wait to be read.
    pub receive_window: u32,
    /// Bytes of the channel that may wait to be sent or acknowledged before [`Peer::send`] takes no more.
    pub send_buffer: usize,
    /// Whether candidates of the other end may be private or loopback addresses.
    pub allows_private: bool,
}

impl Default for PeerSettings {
    fn default() -> Self {
        Self { receive_window: 2 << 20, send_buffer: 1 << 20, allows_private: true }
    }
}

/// Why a connection is over.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum PeerFailure {
    /// The other end says nothing any more.
    #[error("nothing has come from the other end for {SILENCE:?}")]
    Silence,
    /// The certificate is not the one of the description.
    #[error("the other end's certificate is not the one that its description names")]
    Fingerprint,
    /// DTLS has failed.
    #[error("DTLS failed: {0}")]
    Dtls(String),
    /// The other end has closed the channel or the connection.
    #[error("closed by the other end")]
    ClosedByPeer,
    /// This end has.
    #[error("closed")]
    Closed,
}

/// A datagram in the block of an [`Outbox`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PeerDatagram {
    /// Its start in the block.
    pub start: usize,
    /// Its length in bytes.
    pub len: usize,
    /// The address of ours that it leaves from.
    pub from: SocketAddr,
    /// Its destination.
    pub to: SocketAddr,
}

/// Datagrams to send.
#[derive(Debug, Default)]
pub struct Outbox {
    /// The bytes.
    pub block: Vec<u8>,
    /// Their places, in the order in which they are to leave.
    pub datagrams: Vec<PeerDatagram>,
}

impl Outbox {
    /// Forgets all.
    pub fn clear(&mut self) {
        self.block.clear();
        self.datagrams.clear();
    }

    fn push(&mut self, bytes: &[u8], from: SocketAddr, to: SocketAddr) {
        let start = self.block.len();
        self.block.extend_from_slice(bytes);
        self.datagrams.push(PeerDatagram { start, len: bytes.len(), from, to });
    }
}

/// One end of a connection.
pub struct Peer {
    role: PeerRole,
    settings: PeerSettings,
    ice: IceAgent,
    /// Addresses of ours that the description names.
    shown: Vec<SdpCandidate>,
    session: u64,
    unix_time: u64,
    mid: String,
    fingerprint: [u8; 32],
    /// Our and the other end's address of the path in use.
    path: Option<(SocketAddr, SocketAddr)>,
    dtls: Dtls,
    remote_fingerprint: Option<[u8; 32]>,
    is_trusted: bool,
    scratch: Vec<u8>,
    early: VecDeque<Vec<u8>>,
    dtls_at: Option<Instant>,
    sctp: Association,
    label: String,
    channel: Option<u16>,
    is_open: bool,
    failure: Option<PeerFailure>,
    heard_at: Instant,
    is_started: bool,
    /// A packet of SCTP.
    packet: Vec<u8>,
    burst_at: Option<Instant>,
}

impl std::fmt::Debug for Peer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { role, is_open, failure, .. } = self;
        f.debug_struct("Peer")
            .field("role", role)
            .field("is_open", is_open)
            .field("failure", failure)
            .finish()
    }
}

impl Peer {
    /// A connection that has no addresses yet. `label` is the name of the channel that an offerer opens; `unix_time`,
    /// in seconds since 1970, stands in certificate and description.
    ///
    /// # Errors
    /// [`WireError::Exhausted`] if the crypto library refuses.
    pub fn new(
        role: PeerRole,
        settings: PeerSettings,
        label: &str,
        rng: &mut dyn Rng,
        now: Instant,
        unix_time: u64,
    ) -> Result<Self, WireError> {
        let certificate = Certificate::generate(rng, unix_time)?;
        let mut number = [0; 8];
        rng.fill(&mut number);
        let creds = IceCreds { ufrag: credential(rng, 16), pass: credential(rng, 32) };
        let mut ice = IceAgent::new(creds);
        rng.fill(&mut number);
        ice.set_control_tie_breaker(u64::from_ne_bytes(number));
        ice.set_controlling(role == PeerRole::Offerer);
        ice.set_timing_advance(PACE);
        ice.set_max_stun_rto(CHECK);
        ice.set_max_candidate_pairs(MAX_PAIRS);
        let config = Config::builder().build().map_err(|_| WireError::Exhausted { what: "DTLS settings" })?;
        let (config, fingerprint) = (Arc::new(config), certificate.fingerprint);
        let dtls = match role {
            // The one that comes first may speak 1.2 or 1.3.
            PeerRole::Offerer => Dtls::new_auto(config, certificate.dtls, now),
            PeerRole::Answerer => Dtls::new_12(config, certificate.dtls, now),
        };
        let sctp = Association::new(settings.receive_window as usize, settings.send_buffer, rng, now);
        Ok(Self {
            role,
            settings,
            ice,
            shown: Vec::new(),
            session: u64::from_ne_bytes(number),
            unix_time,
            mid: "0".to_owned(),
            fingerprint,
            path: None,
            dtls,
            remote_fingerprint: None,
            is_trusted: false,
            scratch: vec![0; 4096],
            early: VecDeque::new(),
            dtls_at: None,
            sctp,
            label: label.to_owned(),
            channel: None,
            is_open: false,
            failure: None,
            heard_at: now,
            is_started: false,
            packet: Vec::new(),
            burst_at: None,
        })
    }

    /// An address of this machine that datagrams may leave from; `is_shown` puts it into the description.
    pub fn add_host(&mut self, addr: SocketAddr, is_shown: bool) {
        if let Ok(candidate) = IceCandidate::host(addr, Protocol::Udp) {
            self.add_local(candidate, sdp::CandidateKind::Host, is_shown);
        }
    }

    /// The address as which a STUN server has seen `base`.
    pub fn add_reflexive(&mut self, addr: SocketAddr, base: SocketAddr) {
        if let Ok(candidate) = IceCandidate::server_reflexive(addr, base, Protocol::Udp) {
            self.add_local(candidate, sdp::CandidateKind::Reflexive, true);
        }
    }

    fn add_local(&mut self, candidate: IceCandidate, kind: sdp::CandidateKind, is_shown: bool) {
        let Some(added) = self.ice.add_local_candidate(candidate) else { return };
        let candidate = SdpCandidate { addr: added.addr(), kind, priority: added.prio() };
        let is_known = self.shown.iter().any(|shown| shown.addr == candidate.addr);
        if is_shown && !is_known && self.shown.len() < sdp::MAX_CANDIDATES {
            self.shown.push(candidate);
        }
    }

    /// Whether the description names an address.
    pub fn has_candidates(&self) -> bool {
        !self.shown.is_empty()
    }

    /// The description of this end, an offer or an answer. Of an answerer it is complete after [`Peer::set_remote`].
    pub fn describe(&self) -> String {
        let creds = self.ice.local_credentials();
        let description = SdpDescription {
            fingerprint: self.fingerprint,
            setup: if self.role == PeerRole::Offerer { Setup::ActPass } else { Setup::Active },
            ufrag: creds.ufrag.clone(),
            password: creds.pass.clone(),
            mid: self.mid.clone(),
            candidates: self.shown.clone(),
        };
        description.emit(self.session, self.unix_time)
    }

    /// Begins with the other end as it describes itself.
    ///
    /// # Errors
    /// [`WireError::Malformed`] if it has chosen a role in DTLS that it may not have.
    pub fn set_remote(&mut self, remote: &SdpDescription, now: Instant) -> Result<(), WireError> {
        let is_client = match (self.role, remote.setup) {
            (PeerRole::Offerer, Setup::Passive) | (PeerRole::Answerer, Setup::ActPass | Setup::Passive) => {
                true
            }
            (PeerRole::Offerer, Setup::Active) => false,
            (PeerRole::Offerer, Setup::ActPass) | (PeerRole::Answerer, Setup::Active) => {
                return Err(WireError::Malformed { what: "DTLS role in a description", got: 0 });
            }
        };
        self.dtls.set_active(is_client);
        self.remote_fingerprint = Some(remote.fingerprint);
        if self.role == PeerRole::Answerer {
            self.mid.clone_from(&remote.mid);
        }
        self.ice
            .set_remote_credentials(IceCreds { ufrag: remote.ufrag.clone(), pass: remote.password.clone() });
        for SdpCandidate { addr, kind, priority } in &remote.candidates {
            if !self.settings.allows_private && is_private(addr.ip()) {
                continue;
            }
            let kind = match kind {
                sdp::CandidateKind::Host => "host",
                sdp::CandidateKind::Reflexive | sdp::CandidateKind::PeerReflexive => "srflx",
                sdp::CandidateKind::Relayed => "relay",
            };
            let line = format!("candidate:1 1 udp {priority} {} {} typ {kind}", addr.ip(), addr.port());
            if let Ok(candidate) = IceCandidate::from_sdp_string(&line) {
                self.ice.add_remote_candidate(candidate);
            }
        }
        self.heard_at = now;
        self.is_started = true;
        self.handle_timeout(now);
        Ok(())
    }

    /// Whether the channel is open and messages can be sent.
    pub fn is_open(&self) -> bool {
        self.is_open && self.failure.is_none()
    }

    /// Why the connection is over, if it is. Messages that have come may still be read.
    pub fn failure(&self) -> Option<&PeerFailure> {
        self.failure.as_ref()
    }

    /// The other end's address on the path in use.
    pub fn remote_addr(&self) -> Option<SocketAddr> {
        self.path.map(|(_, to)| to)
    }

    /// Takes a datagram that has come from `from` to our address `to`.
    pub fn handle_datagram(&mut self, bytes: &[u8], from: SocketAddr, to: SocketAddr, now: Instant) {
        if !self.is_started || self.failure.is_some() {
            return;
        }
        match bytes.first() {
            Some(0..=3) => self.handle_stun(bytes, from, to, now),
            Some(20..=63) => {
                let is_known = self.path.is_some_and(|(_, peer)| peer == from);
                if is_known || self.ice.has_viable_remote_candidate(from) {
                    self.handle_dtls(bytes, now);
                }
            }
            _ => {}
        }
    }

    fn handle_stun(&mut self, bytes: &[u8], from: SocketAddr, to: SocketAddr, now: Instant) {
        let Ok(message) = StunMessage::parse(bytes) else { return };
        let packet = StunPacket { proto: Protocol::Udp, source: from, destination: to, message };
        if self.ice.handle_packet(now, packet) {
            self.heard_at = now;
        }
        self.take_ice_events();
    }

    fn take_ice_events(&mut self) {
        while let Some(event) = self.ice.poll_event() {
            if let IceAgentEvent::NominatedSend { source, destination, .. } = event {
                self.path = Some((source, destination));
            }
        }
    }

    fn handle_dtls(&mut self, bytes: &[u8], now: Instant) {
        let taken = self.dtls.handle_timeout(now).and_then(|()| self.dtls.handle_packet(bytes));
        if let Err(error) = taken {
            self.fail(PeerFailure::Dtls(error.to_string()));
        }
        self.pump_dtls(now);
    }

    /// Takes all that DTLS has to say.
    #[expect(clippy::wildcard_enum_match_arm, reason = "the library may add some that are of no use here")]
    fn pump_dtls(&mut self, now: Instant) {
        let mut scratch = std::mem::take(&mut self.scratch);
        loop {
            match self.dtls.poll_output(&mut scratch) {
                Output::Packet(packet) if self.early.len() < MAX_EARLY || self.path.is_some() => {
                    self.early.push_back(packet.to_vec());
                }
                Output::BufferTooSmall { needed } => scratch.resize(needed.max(scratch.len() * 2), 0),
                Output::Timeout(at) => {
                    self.dtls_at = Some(at);
                    break;
                }
                Output::PeerCert(certificate) => {
                    let hash = crate::crypto::sha256(&[certificate]);
                    self.is_trusted = Some(hash) == self.remote_fingerprint;
                    if !self.is_trusted {
                        self.fail(PeerFailure::Fingerprint);
                    }
                }
                Output::Connected => self.handle_secured(),
                Output::ApplicationData(data) if self.is_trusted && self.failure.is_none() => {
                    self.heard_at = now;
                    self.sctp.handle_packet(data, now);
                    self.take_sctp_events();
                }
                Output::CloseNotify => self.fail(PeerFailure::ClosedByPeer),
                // Beyond the bound, or before there is trust.
                _ => {}
            }
        }
        self.scratch = scratch;
    }

    /// DTLS is up: its client begins with SCTP. The other end may begin at the same time.
    fn handle_secured(&mut self) {
        if self.is_trusted && self.dtls.is_active() {
            self.sctp.connect();
        }
    }

    fn take_sctp_events(&mut self) {
        while let Some(event) = self.sctp.poll_event() {
            match event {
                SctpEvent::Connected => self.handle_connected(),
                SctpEvent::Ended(stream) if stream.is_none() || stream == self.channel => {
                    self.fail(PeerFailure::ClosedByPeer);
                }
                SctpEvent::Ended(_) => {}
                SctpEvent::Lost => self.fail(PeerFailure::ClosedByPeer),
            }
        }
        if self.channel.is_none() {
            self.find_channel();
        }
    }

    /// SCTP is up: the offerer opens the channel.
    fn handle_connected(&mut self) {
        if self.role == PeerRole::Answerer {
            return;
        }
        // RFC 8832, section 6: the client of DTLS uses even numbers.
        let id = u16::from(!self.dtls.is_active());
        self.is_open = self.sctp.send(id, DCEP, &open_message(&self.label));
        self.channel = Some(id);
    }

    /// Until there is a channel, messages are looked for one that opens it; others are forgotten, so that they hold nothing.
    fn find_channel(&mut self) {
        while let Some(piece) = self.sctp.pop() {
            if self.role == PeerRole::Answerer
                && piece.kind == DCEP
                && piece.is_whole
                && let Ok(Control::Open(label)) = Control::parse(&piece.data)
                && self.sctp.send(piece.stream, DCEP, &ACK_MESSAGE)
            {
                self.label = label;
                self.channel = Some(piece.stream);
                self.is_open = true;
                // The rest is for the reader.
                return;
            }
        }
    }

    /// Queues 1 to 16384 bytes, which may be joined to others and cut; false if there is no room, or no open channel.
    pub fn send(&mut self, bytes: &[u8]) -> bool {
        if !self.is_open() || self.room() == 0 || bytes.is_empty() || bytes.len() > MAX_SEND {
            return false;
        }
        self.channel.is_some_and(|id| self.sctp.send(id, BINARY, bytes))
    }

    /// Bytes that may be queued before [`Peer::send`] refuses; the last message may be longer.
    pub fn room(&self) -> usize {
        self.channel.map_or(0, |_| self.sctp.room())
    }

    /// Bytes of the channel that the other end has not acknowledged.
    pub fn buffered(&self) -> usize {
        self.sctp.buffered()
    }

    /// Appends bytes that have come to `out`, until it has `most` or none is left; true if there were any.
    pub fn recv(&mut self, out: &mut Vec<u8>, most: usize) -> bool {
        let before = out.len();
        while self.channel.is_some()
            && let Some(front) = self.sctp.front()
            && (out.len() == before || out.len() + front.data.len() <= most)
        {
            let Some(piece) = self.sctp.pop() else { break };
            if Some(piece.stream) == self.channel && matches!(piece.kind, BINARY | TEXT) {
                out.extend(piece.data);
            }
        }
        out.len() > before
    }

    /// Does what is due.
    pub fn handle_timeout(&mut self, now: Instant) {
        if !self.is_started || self.failure.is_some() {
            return;
        }
        self.ice.handle_timeout(now);
        self.take_ice_events();
        if self.path.is_some() || !self.dtls.is_active() {
            if let Err(error) = self.dtls.handle_timeout(now) {
                self.fail(PeerFailure::Dtls(error.to_string()));
            }
            self.pump_dtls(now);
        }
        self.sctp.handle_timeout(now);
        if self.path.is_some() && now.saturating_duration_since(self.heard_at) >= SILENCE {
            self.fail(PeerFailure::Silence);
        }
    }

    /// When [`Peer::handle_timeout`] has something to do.
    pub fn poll_timeout(&mut self) -> Option<Instant> {
        if !self.is_started || self.failure.is_some() {
            return None;
        }
        let ice = self.ice.poll_timeout();
        let dtls = self.dtls_at.filter(|_| self.path.is_some() || !self.dtls.is_active());
        // Nothing leaves before the next burst.
        let sctp = self.sctp.poll_timeout().map(|at| self.burst_at.map_or(at, |burst_at| at.max(burst_at)));
        let silence = self.path.map(|_| self.heard_at + SILENCE);
        [ice, dtls, sctp, silence].into_iter().flatten().min()
    }

    /// Puts the datagrams that are to leave into `out`.
    pub fn poll_transmit(&mut self, now: Instant, out: &mut Outbox) {
        while let Some(transmit) = self.ice.poll_transmit() {
            out.push(&transmit.contents, transmit.source, transmit.destination);
        }
        self.flush_early(out);
        self.seal_sctp(now, out);
        self.flush_early(out);
    }

    fn flush_early(&mut self, out: &mut Outbox) {
        let Some((from, to)) = self.path else { return };
        for packet in self.early.drain(..) {
            out.push(&packet, from, to);
        }
    }

    /// Packets of SCTP become records of DTLS, a burst at a time.
    fn seal_sctp(&mut self, now: Instant, out: &mut Outbox) {
        if self.burst_at.is_some_and(|at| now < at) {
            return;
        }
        self.burst_at = None;
        let mut packet = std::mem::take(&mut self.packet);
        let mut count = 0;
        while count < BURST && self.is_trusted && self.sctp.poll_packet(now, &mut packet) {
            count += 1;
            if let Err(error) = self.dtls.send_application_data(&packet) {
                self.fail(PeerFailure::Dtls(error.to_string()));
                break;
            }
            self.pump_dtls(now);
            self.flush_early(out);
        }
        self.packet = packet;
        if count == BURST {
            self.burst_at = Some(now + BURST_PAUSE);
        }
    }

    /// Closes the channel and the connection; the other end is told by the next [`Peer::poll_transmit`].
    pub fn close(&mut self, now: Instant) {
        if self.failure.is_some() {
            return;
        }
        // Best effort: the connection ends anyway.
        if let Some(id) = self.channel {
            self.sctp.end_stream(id);
        }
        let mut out = Outbox::default();
        self.burst_at = None;
        self.seal_sctp(now, &mut out);
        // The alert goes out behind what was queued.
        for datagram in &out.datagrams {
            self.early.push_back(out.block[datagram.start..datagram.start + datagram.len].to_vec());
        }
        if self.is_trusted {
            drop(self.dtls.close());
            self.pump_dtls(now);
        }
        self.failure.get_or_insert(PeerFailure::Closed);
    }

    fn fail(&mut self, failure: PeerFailure) {
        self.failure.get_or_insert(failure);
    }
}

fn credential(rng: &mut dyn Rng, len: usize) -> String {
    let mut bytes = vec![0; len];
    rng.fill(&mut bytes);
    bytes.into_iter().map(|byte| char::from(ALPHABET[usize::from(byte & 63)])).collect()
}

/// Whether an address is not one of the public internet's.
fn is_private(ip: IpAddr) -> bool {
    match ip.to_canonical() {
        IpAddr::V4(ip) => {
            let [a, b, ..] = ip.octets();
            ip.is_private()
                || ip.is_loopback()
                || ip.is_link_local()
                || (a == 100 && b & 0xc0 == 64)
                || a == 0
        }
        IpAddr::V6(ip) => ip.is_loopback() || ip.is_unique_local() || ip.is_unicast_link_local(),
    }
}

/// First byte: the role; the rest: pieces of a length byte and that many bytes each, which are datagrams from the path,
/// or of SCTP inside. The connection goes on or ends; it never panics, and it holds little.
#[doc(hidden)]
pub fn fuzz_peer(data: &[u8], now: Instant) {
    struct Zero(u8);
    impl Rng for Zero {
        fn fill(&mut self, out: &mut [u8]) {
            for byte in out {
                self.0 = self.0.wrapping_add(1);
                *byte = self.0;
            }
        }
    }
    let Some((&first, mut rest)) = data.split_first() else { return };
    let role = if first & 1 == 0 { PeerRole::Offerer } else { PeerRole::Answerer };
    let Ok(mut peer) = Peer::new(role, PeerSettings::default(), "fuzz", &mut Zero(first), now, 0) else {
        return;
    };
    let (ours, theirs) = (SocketAddr::from(([192, 0, 2, 2], 1)), SocketAddr::from(([192, 0, 2, 3], 2)));
    peer.add_host(ours, true);
    let remote = SdpDescription {
        fingerprint: [0; 32],
        setup: if role == PeerRole::Offerer { Setup::Active } else { Setup::ActPass },
        ufrag: "abcd".to_owned(),
        password: "x".repeat(22),
        mid: "0".to_owned(),
        candidates: vec![SdpCandidate { addr: theirs, kind: sdp::CandidateKind::Host, priority: 1 }],
    };
    if peer.set_remote(&remote, now).is_err() {
        return;
    }
    peer.path = Some((ours, theirs));
    let (mut now, mut out) = (now, Outbox::default());
    while let Some((&len, more)) = rest.split_first() {
        let (piece, after) = more.split_at(more.len().min(usize::from(len) * 4));
        rest = after;
        if first & 2 == 0 {
            peer.handle_datagram(piece, theirs, ours, now);
        } else {
            peer.sctp.handle_packet(piece, now);
            peer.take_sctp_events();
        }
        now += Duration::from_millis(len.into());
        peer.handle_timeout(now);
        peer.poll_transmit(now, &mut out);
        let mut read = Vec::new();
        peer.recv(&mut read, 1 << 16);
        assert!(out.block.len() < 1 << 20 && peer.early.len() <= 2 * MAX_EARLY);
        out.clear();
    }
    peer.close(now);
}
