//! The proxy's side of the handshake.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};

use thiserror::Error;

use super::SocksCommand;
use super::address::{self, AddressError};
use crate::buf::RecvBuf;
use crate::wire::{ConnectFailure, Credentials, Host, Target, TargetError};

/// Longest unit of a handshake in bytes, that of SOCKS4a: 8 bytes, then user and name of 255 bytes with a zero each.
pub const MAX_UNIT_LEN: usize = 8 + 256 + 256;

const METHOD_NONE: u8 = 0;
const METHOD_PASSWORD: u8 = 2;
const METHOD_NOT_ACCEPTABLE: u8 = 0xff;

/// Does the listener ask for a password?
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Auth {
    /// Everyone may use it. A client that insists on sending credentials is let in with any.
    Open,
    /// Only with credentials, which the caller checks: [`SocksEvent::Credentials`].
    Required,
}

/// The version of the protocol that a client speaks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SocksVersion {
    /// SOCKS4 or 4a.
    V4,
    /// SOCKS5.
    V5,
}

/// A complete request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SocksRequest {
    /// The command.
    pub command: SocksCommand,
    /// The target.
    pub target: Target,
    /// The client's protocol, in which the answer goes out.
    pub version: SocksVersion,
    /// Port and address of a SOCKS4 request: the reply repeats them.
    echo: [u8; 6],
}

/// Result of [`SocksServer::advance`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum SocksEvent {
    /// The client has not said enough yet (or the caller has not answered [`SocksEvent::Credentials`]).
    NeedMore,
    /// Check these and call [`SocksServer::authenticate`]. SOCKS4: the user with an empty password.
    Credentials(Credentials),
    /// The handshake is over but for [`SocksRequest::emit_reply`]. Unread bytes belong to the stream.
    Request(SocksRequest),
}

/// Reason for a failed handshake. The answer to the client has been written to `out`; then the connection closes.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum SocksError {
    /// Neither 4 nor 5 where the version belongs.
    #[error("bad SOCKS version: {0}")]
    Version(u8),
    /// A sub-negotiation version other than 1 (or 5, which some clients send).
    #[error("bad version of the password message: {0}")]
    PasswordVersion(u8),
    /// No authentication method that both sides accept.
    #[error("no acceptable authentication method")]
    NoMethod,
    /// The credentials are wrong.
    #[error("authentication failed")]
    AuthenticationFailed,
    /// BIND or something unknown.
    #[error("unsupported command: {0}")]
    Command(u8),
    /// An address type other than 1, 3 and 4.
    #[error("unsupported address type: {0}")]
    AddressType(u8),
    /// The host name is none.
    #[error("bad host name")]
    Host(#[from] TargetError),
    /// A text of SOCKS4 with more than 255 bytes.
    #[error("{0} is longer than 255 bytes")]
    TooLong(&'static str),
    /// The proxy refused (seen by clients only).
    #[error("refused by the proxy: reply {0}")]
    Refused(u8),
    /// The handshake has failed before.
    #[error("handshake is over")]
    Over,
}

/// Replies of SOCKS5 (RFC 1928, section 6).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub enum ReplyCode {
    /// Succeeded.
    Succeeded = 0,
    /// General failure.
    General = 1,
    /// Not allowed by the rules.
    NotAllowed = 2,
    /// Network unreachable.
    NetworkUnreachable = 3,
    /// Host unreachable.
    HostUnreachable = 4,
    /// Connection refused.
    ConnectionRefused = 5,
    /// Command not supported.
    CommandNotSupported = 7,
    /// Address type not supported.
    AddressNotSupported = 8,
}

impl From<ConnectFailure> for ReplyCode {
    fn from(failure: ConnectFailure) -> Self {
        match failure {
            ConnectFailure::General | ConnectFailure::Overloaded | ConnectFailure::Unavailable => {
                Self::General
            }
            ConnectFailure::NotAllowed => Self::NotAllowed,
            ConnectFailure::NetworkUnreachable => Self::NetworkUnreachable,
            // Reply 6 is "TTL expired", which says something else than a dial that got no answer.
            ConnectFailure::HostUnreachable | ConnectFailure::TimedOut => Self::HostUnreachable,
            ConnectFailure::ConnectionRefused => Self::ConnectionRefused,
            ConnectFailure::CommandNotSupported => Self::CommandNotSupported,
            ConnectFailure::AddressNotSupported => Self::AddressNotSupported,
        }
    }
}

/// Codes of SOCKS4.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
enum Code4 {
    Granted = 0x5a,
    Refused = 0x5b,
    WrongUser = 0x5d,
}

impl SocksRequest {
    /// Appends the reply to `out`: success with the address that stands for the connection (for
    /// [`SocksCommand::UdpAssociate`] the relay's, which must be one that the client can reach), or the failure.
    pub fn emit_reply(&self, outcome: Result<SocketAddr, ConnectFailure>, out: &mut Vec<u8>) {
        match (self.version, outcome) {
            (SocksVersion::V4, Ok(_)) => emit_v4(Code4::Granted, self.echo, out),
            (SocksVersion::V4, Err(_)) => emit_v4(Code4::Refused, self.echo, out),
            (SocksVersion::V5, Ok(bound)) => emit_v5(ReplyCode::Succeeded, bound, out),
            (SocksVersion::V5, Err(failure)) => emit_v5_failure(failure.into(), out),
        }
    }
}

#[derive(Debug)]
enum State {
    Start,
    Password,
    Request5,
    Checking5,
    Checking4(SocksRequest),
    Checked4(SocksRequest),
    Done,
    Failed,
}

/// The proxy's handshake with one client.
///
/// Call [`SocksServer::advance`] whenever bytes have arrived, then send what it appended to `out`, also when it
/// fails. Units are consumed whole; all of them may arrive in one segment. Deadlines are the caller's.
#[derive(Debug)]
pub struct SocksServer {
    auth: Auth,
    state: State,
}

impl SocksServer {
    /// A handshake that has not begun.
    pub fn new(auth: Auth) -> Self {
        Self { auth, state: State::Start }
    }

    /// Reads on in `wire`, which must be able to hold [`MAX_UNIT_LEN`] bytes, and appends replies to `out`.
    ///
    /// # Errors
    /// [`SocksError`]: the client has been told by `out` as far as the protocol allows; close.
    pub fn advance(&mut self, wire: &mut RecvBuf, out: &mut Vec<u8>) -> Result<SocksEvent, SocksError> {
        loop {
            let step = match &self.state {
                State::Start => self.on_start(wire, out),
                State::Password => self.on_password(wire, out),
                State::Request5 => self.on_request5(wire, out),
                State::Checked4(request) => {
                    let request = request.clone();
                    self.state = State::Done;
                    Ok(Some(SocksEvent::Request(request)))
                }
                State::Checking5 | State::Checking4(_) | State::Done => Ok(Some(SocksEvent::NeedMore)),
                State::Failed => Err(SocksError::Over),
            };
            match step {
                Ok(None) => {}
                Ok(Some(event)) => return Ok(event),
                Err(error) => {
                    self.state = State::Failed;
                    return Err(error);
                }
            }
        }
    }

    /// Answers [`SocksEvent::Credentials`]; call [`SocksServer::advance`] again afterwards.
    ///
    /// # Errors
    /// [`SocksError::AuthenticationFailed`] if not `accepted`; `out` holds what the client is told.
    ///
    /// # Panics
    /// If no credentials wait for an answer.
    pub fn authenticate(&mut self, accepted: bool, out: &mut Vec<u8>) -> Result<(), SocksError> {
        let state = std::mem::replace(&mut self.state, State::Failed);
        match (state, accepted) {
            (State::Checking5, true) => {
                out.extend_from_slice(&[1, 0]);
                self.state = State::Request5;
                Ok(())
            }
            (State::Checking5, false) => {
                out.extend_from_slice(&[1, 1]);
                Err(SocksError::AuthenticationFailed)
            }
            (State::Checking4(request), true) => {
                self.state = State::Checked4(request);
                Ok(())
            }
            (State::Checking4(request), false) => {
                emit_v4(Code4::WrongUser, request.echo, out);
                Err(SocksError::AuthenticationFailed)
            }
            (state, _) => panic!("no credentials to answer for in {state:?}"),
        }
    }

    fn on_start(&mut self, wire: &mut RecvBuf, out: &mut Vec<u8>) -> Result<Option<SocksEvent>, SocksError> {
        match wire.unread().first() {
            None => Ok(Some(SocksEvent::NeedMore)),
            Some(4) => self.on_request4(wire, out),
            Some(5) => self.on_greeting(wire, out),
            Some(&other) => Err(SocksError::Version(other)),
        }
    }

    fn on_greeting(
        &mut self,
        wire: &mut RecvBuf,
        out: &mut Vec<u8>,
    ) -> Result<Option<SocksEvent>, SocksError> {
        let &[_, len, ref rest @ ..] = wire.unread() else { return Ok(Some(SocksEvent::NeedMore)) };
        let len = usize::from(len);
        let Some(methods) = rest.get(..len) else { return Ok(Some(SocksEvent::NeedMore)) };
        let (none, password) = (methods.contains(&METHOD_NONE), methods.contains(&METHOD_PASSWORD));
        let (method, next) = match self.auth {
            Auth::Open if none => (METHOD_NONE, State::Request5),
            Auth::Open | Auth::Required if password => (METHOD_PASSWORD, State::Password),
            Auth::Open | Auth::Required => (METHOD_NOT_ACCEPTABLE, State::Failed),
        };
        wire.consume(2 + len);
        out.extend_from_slice(&[5, method]);
        if method == METHOD_NOT_ACCEPTABLE {
            return Err(SocksError::NoMethod);
        }
        self.state = next;
        Ok(None)
    }

    fn on_password(
        &mut self,
        wire: &mut RecvBuf,
        out: &mut Vec<u8>,
    ) -> Result<Option<SocksEvent>, SocksError> {
        let unread = wire.unread();
        match unread.first() {
            None | Some(1 | 5) => {}
            Some(&other) => return Err(SocksError::PasswordVersion(other)),
        }
        let Some((user, rest)) = unread.get(1..).and_then(counted) else {
            return Ok(Some(SocksEvent::NeedMore));
        };
        let Some((password, _)) = counted(rest) else { return Ok(Some(SocksEvent::NeedMore)) };
        let len = 3 + user.len() + password.len();
        let credentials = Credentials::new(user, password);
        wire.consume(len);
        self.state = State::Checking5;
        match self.auth {
            Auth::Required => Ok(Some(SocksEvent::Credentials(credentials))),
            Auth::Open => self.authenticate(true, out).map(|()| None),
        }
    }

    fn on_request5(
        &mut self,
        wire: &mut RecvBuf,
        out: &mut Vec<u8>,
    ) -> Result<Option<SocksEvent>, SocksError> {
        // The reserved third byte may have any value.
        let (command, rest) = match *wire.unread() {
            [version, ..] if version != 5 => return Err(SocksError::Version(version)),
            [_, command, _, ref rest @ ..] => (command, rest),
            _ => return Ok(Some(SocksEvent::NeedMore)),
        };
        let (target, len) = match address::parse(rest) {
            Ok(Some(found)) => found,
            Ok(None) => return Ok(Some(SocksEvent::NeedMore)),
            Err(AddressError::Type(kind)) => {
                emit_v5_failure(ReplyCode::AddressNotSupported, out);
                return Err(SocksError::AddressType(kind));
            }
            Err(AddressError::Host(error)) => {
                emit_v5_failure(ReplyCode::General, out);
                return Err(error.into());
            }
        };
        let command = match command {
            1 => SocksCommand::Connect,
            3 => SocksCommand::UdpAssociate,
            other => {
                emit_v5_failure(ReplyCode::CommandNotSupported, out);
                return Err(SocksError::Command(other));
            }
        };
        wire.consume(3 + len);
        self.state = State::Done;
        Ok(Some(SocksEvent::Request(SocksRequest {
            command,
            target,
            version: SocksVersion::V5,
            echo: [0; 6],
        })))
    }

    fn on_request4(
        &mut self,
        wire: &mut RecvBuf,
        out: &mut Vec<u8>,
    ) -> Result<Option<SocksEvent>, SocksError> {
        let (request, user, len) = match parse_request4(wire.unread()) {
            Ok(None) => return Ok(Some(SocksEvent::NeedMore)),
            Ok(Some(found)) => found,
            Err((error, echo)) => {
                emit_v4(Code4::Refused, echo, out);
                return Err(error);
            }
        };
        wire.consume(len);
        match self.auth {
            Auth::Open => {
                self.state = State::Done;
                Ok(Some(SocksEvent::Request(request)))
            }
            Auth::Required => {
                self.state = State::Checking4(request);
                Ok(Some(SocksEvent::Credentials(user)))
            }
        }
    }
}

/// The request at the front of `bytes`, its user and its length; `None` if it is cut off. Errors come with the
/// port and address to repeat.
#[expect(clippy::type_complexity, reason = "used once, right above")]
fn parse_request4(bytes: &[u8]) -> Result<Option<(SocksRequest, Credentials, usize)>, (SocksError, [u8; 6])> {
    let Some((head, rest)) = bytes.split_at_checked(8) else { return Ok(None) };
    let echo: [u8; 6] = head[2..].try_into().expect("8 bytes were split off");
    let refuse = |error| (error, echo);
    let Some(user) = terminated(rest, "user").map_err(refuse)? else { return Ok(None) };
    let mut len = 8 + user.len() + 1;
    let ip = Ipv4Addr::new(head[4], head[5], head[6], head[7]);
    let host = if head[4..7] == [0; 3] && head[7] != 0 {
        let Some(name) = terminated(&bytes[len..], "host name").map_err(refuse)? else { return Ok(None) };
        len += name.len() + 1;
        Host::parse(name).map_err(|error| refuse(error.into()))?
    } else {
        Host::Ip(IpAddr::V4(ip))
    };
    if head[1] != 1 {
        return Err(refuse(SocksError::Command(head[1])));
    }
    let target = Target { host, port: u16::from_be_bytes([head[2], head[3]]) };
    let user = Credentials::new(user, b"");
    Ok(Some((
        SocksRequest { command: SocksCommand::Connect, target, version: SocksVersion::V4, echo },
        user,
        len,
    )))
}

/// The text in front of the first zero byte; `None` if that is still to come.
fn terminated<'a>(bytes: &'a [u8], what: &'static str) -> Result<Option<&'a [u8]>, SocksError> {
    let window = &bytes[..bytes.len().min(256)];
    match window.iter().position(|&byte| byte == 0) {
        Some(len) => Ok(Some(&window[..len])),
        None if window.len() == 256 => Err(SocksError::TooLong(what)),
        None => Ok(None),
    }
}

/// A field behind its one-byte length, and what follows it.
fn counted(bytes: &[u8]) -> Option<(&[u8], &[u8])> {
    let (&len, rest) = bytes.split_first()?;
    rest.split_at_checked(len.into())
}

fn emit_v5_failure(code: ReplyCode, out: &mut Vec<u8>) {
    emit_v5(code, SocketAddr::from(([0; 4], 0)), out);
}

fn emit_v5(code: ReplyCode, bound: SocketAddr, out: &mut Vec<u8>) {
    out.extend_from_slice(&[5, code as u8, 0]);
    address::emit(&bound.into(), out);
}

fn emit_v4(code: Code4, echo: [u8; 6], out: &mut Vec<u8>) {
    out.extend_from_slice(&[0, code as u8]);
    out.extend_from_slice(&echo);
}

/// Any bytes give the same transcript whole, byte by byte, and cut where the data itself says; the first byte
/// chooses authentication and the cut.
#[doc(hidden)]
pub fn fuzz_socks_server(data: &[u8]) {
    let Some((&choice, data)) = data.split_first() else { return };
    let auth = if choice & 1 == 0 { Auth::Open } else { Auth::Required };
    let accept = choice & 2 == 0;
    let cut = usize::from(choice >> 2).min(data.len());
    let whole = transcript(auth, accept, &[data]);
    let (first, second) = data.split_at(cut);
    assert_eq!(transcript(auth, accept, &[first, second]), whole, "cut at {cut}");
    let bytes: Vec<&[u8]> = data.chunks(1).collect();
    assert_eq!(transcript(auth, accept, &bytes), whole, "byte by byte");
}

/// Replies, outcome and the bytes left over of a handshake that is fed `pieces`.
fn transcript(
    auth: Auth,
    accept: bool,
    pieces: &[&[u8]],
) -> (Vec<u8>, Result<SocksEvent, SocksError>, Vec<u8>) {
    let mut server = SocksServer::new(auth);
    let mut wire = RecvBuf::with_len(pieces.iter().map(|piece| piece.len()).sum());
    let mut out = Vec::new();
    let mut outcome = Ok(SocksEvent::NeedMore);
    for piece in pieces {
        wire.extend(piece);
        while outcome == Ok(SocksEvent::NeedMore) {
            outcome = match server.advance(&mut wire, &mut out) {
                Ok(SocksEvent::Credentials(_)) => {
                    server.authenticate(accept, &mut out).map(|()| SocksEvent::NeedMore)
                }
                Ok(SocksEvent::NeedMore) => break,
                done => done,
            };
        }
    }
    let rest = if outcome.is_ok() { wire.unread().to_vec() } else { Vec::new() };
    (out, outcome, rest)
}
