//! The few lines of SDP (RFC 8866, RFC 8841) that a peer connection with one data channel and no media needs.
//!
//! A description is read line by line. Lines that say nothing about ICE, DTLS or SCTP are passed over, and so are
//! candidates that a UDP socket cannot reach: TCP, other components, names (mDNS). The reader is bounded:
//! [`MAX_SDP_LEN`] bytes and [`MAX_CANDIDATES`] candidates.

use std::fmt::Write as _;
use std::net::{IpAddr, SocketAddr};

use thiserror::Error;

/// Longest description that is read, in bytes.
pub const MAX_SDP_LEN: usize = 100_000;
/// Candidates that are kept of a description; the first ones.
pub const MAX_CANDIDATES: usize = 32;
/// Longest user name fragment and password of ICE, in bytes (RFC 8839).
const MAX_CREDENTIAL_LEN: usize = 256;
/// Longest identification of the media section that is given back, in bytes.
const MAX_MID_LEN: usize = 32;
/// Longest message that is announced, in bytes.
const MAX_MESSAGE_LEN: u32 = 262_144;

/// The end that sends the ClientHello of DTLS, as `a=setup` tells (RFC 8842).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Setup {
    /// The other end decides: in an offer.
    ActPass,
    /// The sender of this description does.
    Active,
    /// The receiver of this description does.
    Passive,
}

/// The way in which an address was found.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CandidateKind {
    /// An address of the machine itself.
    Host,
    /// An address that a STUN server has seen.
    Reflexive,
    /// An address that a check of the other end has shown.
    PeerReflexive,
    /// An address of a TURN server.
    Relayed,
}

impl CandidateKind {
    fn name(self) -> &'static str {
        match self {
            Self::Host => "host",
            Self::Reflexive => "srflx",
            Self::PeerReflexive => "prflx",
            Self::Relayed => "relay",
        }
    }

    fn from_name(name: &str) -> Option<Self> {
        [Self::Host, Self::Reflexive, Self::PeerReflexive, Self::Relayed]
            .into_iter()
            .find(|kind| kind.name() == name)
    }
}

/// An address at which an end can be tried.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SdpCandidate {
    /// The address.
    pub addr: SocketAddr,
    /// Its origin.
    pub kind: CandidateKind,
    /// Its priority (RFC 8445, section 5.1.2).
    pub priority: u32,
}

/// Why a description cannot be used.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum SdpError {
    /// It is longer than any honest one.
    #[error("the session description has more than {MAX_SDP_LEN} bytes")]
    TooLong,
    /// A line that is needed is not there, or cannot be read.
    #[error("the session description has no usable {0}")]
    Missing(&'static str),
}

/// A description of one end: what the other one needs to reach it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SdpDescription {
    /// SHA-256 of its certificate.
    pub fingerprint: [u8; 32],
    /// The DTLS role.
    pub setup: Setup,
    /// User name fragment of ICE.
    pub ufrag: String,
    /// Password of ICE.
    pub password: String,
    /// Identification of the media section; an answer repeats the offer's.
    pub mid: String,
    /// Addresses to try.
    pub candidates: Vec<SdpCandidate>,
}

impl SdpDescription {
    /// Reads a description.
    ///
    /// # Errors
    /// [`SdpError`].
    pub fn parse(text: &str) -> Result<Self, SdpError> {
        if text.len() > MAX_SDP_LEN {
            return Err(SdpError::TooLong);
        }
        let mut read = Read::default();
        for line in text.lines() {
            read.line(line.trim_end());
        }
        if !read.has_channel {
            return Err(SdpError::Missing("data channel section"));
        }
        Ok(Self {
            fingerprint: read.fingerprint.ok_or(SdpError::Missing("SHA-256 fingerprint"))?,
            setup: read.setup.unwrap_or(Setup::ActPass),
            ufrag: read.ufrag.ok_or(SdpError::Missing("ice-ufrag"))?,
            password: read.password.ok_or(SdpError::Missing("ice-pwd"))?,
            mid: read.mid.unwrap_or_else(|| "0".to_owned()),
            candidates: read.candidates,
        })
    }

    /// Writes the description as the text of an offer or an answer. `session` is its number, and `version` the time in
    /// seconds since 1970 that stands beside it.
    pub fn emit(&self, session: u64, version: u64) -> String {
        let mut out = String::with_capacity(1024);
        let setup = match self.setup {
            Setup::ActPass => "actpass",
            Setup::Active => "active",
            Setup::Passive => "passive",
        };
        let mid = &self.mid;
        let mut line = |args: std::fmt::Arguments<'_>| {
            out.write_fmt(args).expect("a string takes everything");
            out.push_str("\r\n");
        };
        line(format_args!("v=0"));
        line(format_args!("o=- {} {version} IN IP4 0.0.0.0", session >> 1));
        line(format_args!("s=-"));
        line(format_args!("t=0 0"));
        line(format_args!("a=msid-semantic:WMS *"));
        line(format_args!("a=fingerprint:sha-256 {}", Hex(&self.fingerprint)));
        line(format_args!("a=extmap-allow-mixed"));
        line(format_args!("a=group:BUNDLE {mid}"));
        line(format_args!("m=application 9 UDP/DTLS/SCTP webrtc-datachannel"));
        line(format_args!("c=IN IP4 0.0.0.0"));
        line(format_args!("a=setup:{setup}"));
        line(format_args!("a=mid:{mid}"));
        line(format_args!("a=sendrecv"));
        line(format_args!("a=sctp-port:5000"));
        line(format_args!("a=max-message-size:{MAX_MESSAGE_LEN}"));
        line(format_args!("a=ice-ufrag:{}", self.ufrag));
        line(format_args!("a=ice-pwd:{}", self.password));
        for (at, candidate) in self.candidates.iter().enumerate() {
            let SdpCandidate { addr, kind, priority } = candidate;
            let (ip, port, kind_name) = (addr.ip(), addr.port(), kind.name());
            let foundation = at + 1;
            let related = match (kind, ip) {
                (CandidateKind::Host, _) => "",
                (_, IpAddr::V4(_)) => " raddr 0.0.0.0 rport 0",
                (_, IpAddr::V6(_)) => " raddr :: rport 0",
            };
            line(format_args!(
                "a=candidate:{foundation} 1 udp {priority} {ip} {port} typ {kind_name}{related}"
            ));
        }
        line(format_args!("a=end-of-candidates"));
        out
    }
}

/// The lines read so far.
#[derive(Default)]
struct Read {
    has_channel: bool,
    fingerprint: Option<[u8; 32]>,
    setup: Option<Setup>,
    ufrag: Option<String>,
    password: Option<String>,
    mid: Option<String>,
    candidates: Vec<SdpCandidate>,
}

impl Read {
    fn line(&mut self, line: &str) {
        if let Some(media) = line.strip_prefix("m=") {
            self.has_channel |= media.starts_with("application ") && media.contains("SCTP");
            return;
        }
        let Some(attribute) = line.strip_prefix("a=") else { return };
        let (name, value) = attribute.split_once(':').unwrap_or((attribute, ""));
        match name {
            "fingerprint" => self.fingerprint = self.fingerprint.or_else(|| parse_fingerprint(value)),
            "setup" => {
                self.setup = match value {
                    "actpass" => Some(Setup::ActPass),
                    "active" => Some(Setup::Active),
                    "passive" => Some(Setup::Passive),
                    _ => self.setup,
                }
            }
            "ice-ufrag" => keep(&mut self.ufrag, value, 4..=MAX_CREDENTIAL_LEN),
            "ice-pwd" => keep(&mut self.password, value, 22..=MAX_CREDENTIAL_LEN),
            "mid" => keep(&mut self.mid, value, 1..=MAX_MID_LEN),
            "candidate" => {
                let is_full = self.candidates.len() >= MAX_CANDIDATES;
                if let Some(candidate) = parse_candidate(value).filter(|_| !is_full)
                    && !self.candidates.iter().any(|known| known.addr == candidate.addr)
                {
                    self.candidates.push(candidate);
                }
            }
            _ => {}
        }
    }
}

/// Keeps the first value of an allowed length without characters that could end a line or a field.
fn keep(slot: &mut Option<String>, value: &str, lengths: std::ops::RangeInclusive<usize>) {
    let is_plain = value.bytes().all(|byte| byte.is_ascii_graphic());
    if slot.is_none() && is_plain && lengths.contains(&value.len()) {
        *slot = Some(value.to_owned());
    }
}

fn parse_fingerprint(value: &str) -> Option<[u8; 32]> {
    let (hash, digits) = value.split_once(' ')?;
    if !hash.eq_ignore_ascii_case("sha-256") {
        return None;
    }
    let mut out = [0; 32];
    let mut pairs = digits.trim().split(':');
    for byte in &mut out {
        let pair = pairs.next().filter(|pair| pair.len() == 2)?;
        *byte = u8::from_str_radix(pair, 16).ok()?;
    }
    pairs.next().is_none().then_some(out)
}

/// `foundation component transport priority address port typ kind ...`
fn parse_candidate(value: &str) -> Option<SdpCandidate> {
    let mut fields = value.split(' ').skip(1);
    let component = fields.next()?;
    let transport = fields.next()?;
    let priority = fields.next()?.parse().ok()?;
    let ip: IpAddr = fields.next()?.parse().ok()?;
    let port: u16 = fields.next()?.parse().ok()?;
    let is_typed = fields.next()? == "typ";
    let kind = CandidateKind::from_name(fields.next()?)?;
    let is_usable = component == "1"
        && transport.eq_ignore_ascii_case("udp")
        && is_typed
        && port != 0
        && !ip.is_unspecified()
        && !ip.is_multicast();
    is_usable.then_some(SdpCandidate { addr: SocketAddr::new(ip, port), kind, priority })
}

/// Bytes as pairs of digits with colons between them.
struct Hex<'a>(&'a [u8]);

impl std::fmt::Display for Hex<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        for (at, byte) in self.0.iter().enumerate() {
            write!(f, "{}{byte:02X}", if at == 0 { "" } else { ":" })?;
        }
        Ok(())
    }
}

/// Any text: a description that can be read can be written, and reads the same again.
#[doc(hidden)]
pub fn fuzz_sdp(data: &[u8]) {
    let Ok(text) = std::str::from_utf8(data) else { return };
    if let Ok(description) = SdpDescription::parse(text) {
        assert!(description.candidates.len() <= MAX_CANDIDATES);
        let again = SdpDescription::parse(&description.emit(1, 2));
        assert_eq!(again.as_ref(), Ok(&description));
    }
}
