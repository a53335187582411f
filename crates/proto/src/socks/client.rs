//! The client's side of SOCKS5, for tests and for chaining to another proxy.

use super::address::{self, AddressError};
use super::{SocksCommand, SocksError};
use crate::buf::RecvBuf;
use crate::wire::{Credentials, Host, Target};

/// Result of [`SocksClient::advance`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ClientEvent {
    /// The proxy has not said enough yet.
    NeedMore,
    /// The request was granted; what follows in the buffer belongs to the stream.
    Established {
        /// The address that the proxy uses: for [`SocksCommand::UdpAssociate`] where datagrams go.
        bound: Target,
    },
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    Method,
    Password,
    Reply,
    Done,
}

/// The client's handshake: [`SocksClient::start`] once, then [`SocksClient::advance`] with what the proxy sends.
#[derive(Debug)]
pub struct SocksClient {
    state: State,
    command: SocksCommand,
    target: Target,
    credentials: Option<Credentials>,
}

impl SocksClient {
    /// A handshake that asks for `command` towards `target`. User and password are cut to 255 bytes each.
    pub fn new(command: SocksCommand, target: Target, credentials: Option<Credentials>) -> Self {
        Self { state: State::Method, command, target, credentials }
    }

    /// Appends the greeting to `out`: method 00, and 02 if there are credentials.
    pub fn start(&self, out: &mut Vec<u8>) {
        let greeting: &[u8] = if self.credentials.is_some() { &[5, 2, 0, 2] } else { &[5, 1, 0] };
        out.extend_from_slice(greeting);
    }

    /// Consumes what the proxy answered and appends to `out` what is to be sent next.
    ///
    /// # Errors
    /// [`SocksError`]; the connection is of no use afterwards.
    pub fn advance(&mut self, wire: &mut RecvBuf, out: &mut Vec<u8>) -> Result<ClientEvent, SocksError> {
        loop {
            let unread = wire.unread();
            match (self.state, unread) {
                (State::Done, _) | (State::Method | State::Password, [] | [_]) => {
                    return Ok(ClientEvent::NeedMore);
                }
                (State::Method, &[version, method, ..]) => {
                    self.on_method(version, method, out)?;
                    wire.consume(2);
                }
                (State::Password, &[_, status, ..]) => {
                    if status != 0 {
                        return Err(SocksError::AuthenticationFailed);
                    }
                    self.send_request(out);
                    wire.consume(2);
                }
                (State::Reply, _) => {
                    let Some((bound, len)) = parse_reply(unread)? else { return Ok(ClientEvent::NeedMore) };
                    self.state = State::Done;
                    wire.consume(len);
                    return Ok(ClientEvent::Established { bound });
                }
            }
        }
    }

    fn on_method(&mut self, version: u8, method: u8, out: &mut Vec<u8>) -> Result<(), SocksError> {
        if version != 5 {
            return Err(SocksError::Version(version));
        }
        match (method, &self.credentials) {
            (0, _) => self.send_request(out),
            (2, Some(credentials)) => {
                out.push(1);
                for field in [credentials.user(), credentials.password()] {
                    let len = u8::try_from(field.len()).unwrap_or(u8::MAX);
                    out.push(len);
                    out.extend_from_slice(&field[..usize::from(len)]);
                }
                self.state = State::Password;
            }
            _ => return Err(SocksError::NoMethod),
        }
        Ok(())
    }

    fn send_request(&mut self, out: &mut Vec<u8>) {
        let command = match self.command {
            SocksCommand::Connect => 1,
            SocksCommand::UdpAssociate => 3,
        };
        out.extend_from_slice(&[5, command, 0]);
        address::emit(&self.target, out);
        self.state = State::Reply;
    }
}

/// The bound address and the length of the reply at the front of `bytes`; `None` if it is cut off.
fn parse_reply(bytes: &[u8]) -> Result<Option<(Target, usize)>, SocksError> {
    let &[version, code, _, ref rest @ ..] = bytes else { return Ok(None) };
    if version != 5 {
        return Err(SocksError::Version(version));
    }
    if code != 0 {
        // Some proxies send nothing behind the code when they refuse.
        return Err(SocksError::Refused(code));
    }
    match address::parse(rest) {
        Ok(found) => Ok(found.map(|(bound, len)| (bound, 3 + len))),
        Err(AddressError::Type(kind)) => Err(SocksError::AddressType(kind)),
        Err(AddressError::Host(error)) => Err(SocksError::Host(error)),
    }
}

/// Fuzz target: any answers give the same transcript whole and byte by byte; the first byte chooses command and
/// credentials.
#[doc(hidden)]
pub fn fuzz_socks_client(data: &[u8]) {
    let Some((&choice, data)) = data.split_first() else { return };
    let command = if choice & 2 == 0 { SocksCommand::Connect } else { SocksCommand::UdpAssociate };
    let run = |pieces: &[&[u8]]| {
        let target = Target { host: Host::Ip([192, 0, 2, 1].into()), port: 443 };
        let credentials = (choice & 1 == 1).then(|| Credentials::new(b"user", b"password"));
        let mut client = SocksClient::new(command, target, credentials);
        let mut wire = RecvBuf::with_len(data.len());
        let mut out = Vec::new();
        client.start(&mut out);
        let mut outcome = Ok(ClientEvent::NeedMore);
        for piece in pieces {
            wire.extend(piece);
            if outcome == Ok(ClientEvent::NeedMore) {
                outcome = client.advance(&mut wire, &mut out);
            }
        }
        let rest = if outcome.is_ok() { wire.unread().to_vec() } else { Vec::new() };
        (out, outcome, rest)
    };
    let bytes: Vec<&[u8]> = data.chunks(1).collect();
    assert_eq!(run(&[data]), run(&bytes), "byte by byte");
}
