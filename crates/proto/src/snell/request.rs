//! The first bytes of an exchange.
//!
//! ```text
//!   request (c2s):  01 | command | idlen id[idlen] | for connect: hlen(1..255) host[hlen] port(u16 BE)
//!   reply (s2c):    00                         the tunnel's data follows
//!                   01                         pong; the server then closes
//!                   02 | code | mlen msg[mlen] error
//! ```

use crate::wire::{Host, Target, TargetError, WireError};

/// First byte of every request, in v1 to v5.
pub(super) const VERSION: u8 = 1;
const PING: u8 = 0;
pub(super) const CONNECT: u8 = 1;
const CONNECT_REUSABLE: u8 = 5;
const UDP: u8 = 6;

pub(super) const REPLY_TUNNEL: u8 = 0;
pub(super) const REPLY_PONG: u8 = 1;
pub(super) const REPLY_ERROR: u8 = 2;

/// Longest text of an error reply that is sent, in bytes; received ones may have 255.
pub const MAX_ERROR_TEXT: usize = 250;
/// Longest request: three fixed bytes, client id, host length, host, port.
pub(super) const MAX_REQUEST_LEN: usize = 3 + 255 + 1 + 255 + 2;

/// Purpose of an exchange.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum SnellCommand {
    /// Answer with a pong.
    Ping,
    /// A tunnel to a target.
    Connect {
        /// The target.
        target: Target,
        /// Whether the connection serves further exchanges afterwards (connect v2).
        reusable: bool,
    },
    /// Datagrams over this stream.
    Udp,
    /// Something that no server does: a host that is none, or a command that is unknown. A peer that seals it holds the key, so
    /// that it may have an answer.
    Invalid {
        /// The fault.
        error: WireError,
        /// Whether the connection serves further exchanges afterwards.
        reusable: bool,
    },
}

/// One request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SnellRequest {
    /// The command.
    pub command: SnellCommand,
    /// Client id: a user's key where a server has several users, otherwise empty. At most 255 bytes.
    pub client_id: Vec<u8>,
}

impl SnellRequest {
    /// A tunnel to `target`.
    pub fn connect(target: Target, reusable: bool) -> Self {
        Self { command: SnellCommand::Connect { target, reusable }, client_id: Vec::new() }
    }

    /// Appends the request's wire form to `out`. [`SnellCommand::Invalid`] becomes a request without a host.
    ///
    /// # Panics
    /// If the client id or the host is longer than 255 bytes ([`Host`] never is).
    pub fn emit(&self, out: &mut Vec<u8>) {
        let byte =
            match &self.command {
                SnellCommand::Ping => PING,
                SnellCommand::Connect { reusable: false, .. }
                | SnellCommand::Invalid { reusable: false, .. } => CONNECT,
                SnellCommand::Connect { reusable: true, .. }
                | SnellCommand::Invalid { reusable: true, .. } => CONNECT_REUSABLE,
                SnellCommand::Udp => UDP,
            };
        let id_len = u8::try_from(self.client_id.len()).expect("client id of at most 255 bytes");
        out.extend([VERSION, byte, id_len]);
        out.extend(&self.client_id);
        match &self.command {
            SnellCommand::Connect { target, .. } => {
                let host = target.host.to_string();
                out.push(u8::try_from(host.len()).expect("host of at most 255 bytes"));
                out.extend(host.as_bytes());
                out.extend(target.port.to_be_bytes());
            }
            SnellCommand::Invalid { .. } => out.push(0),
            SnellCommand::Ping | SnellCommand::Udp => {}
        }
    }

    /// Reads a request from the front of `bytes`: the request and its length, or `None` while it is incomplete. One that
    /// asks for something that does not exist is a [`SnellCommand::Invalid`].
    ///
    /// # Errors
    /// [`WireError`] for another version: answers of servers, which an attacker can send back, begin with another byte.
    pub fn parse(bytes: &[u8]) -> Result<Option<(Self, usize)>, WireError> {
        let [version, rest @ ..] = bytes else { return Ok(None) };
        if *version != VERSION {
            return Err(WireError::Malformed { what: "request version", got: (*version).into() });
        }
        let [command, rest @ ..] = rest else { return Ok(None) };
        if *command == PING {
            // Two bytes are a whole ping for some senders, three for others; nothing behind them matters.
            return Ok(Some((Self { command: SnellCommand::Ping, client_id: Vec::new() }, bytes.len())));
        }
        let Some((client_id, rest)) = counted(rest) else { return Ok(None) };
        let used = |rest: &[u8]| bytes.len() - rest.len();
        let whole = |command| Ok(Some((Self { command, client_id: client_id.to_vec() }, used(rest))));
        match *command {
            CONNECT | CONNECT_REUSABLE => {}
            UDP => return whole(SnellCommand::Udp),
            other => {
                // All commands of these versions begin with the client id, which tells whose the request is.
                let error = WireError::Unsupported { what: "command", got: other.into() };
                return whole(SnellCommand::Invalid { error, reusable: false });
            }
        }
        let reusable = *command == CONNECT_REUSABLE;
        if let [0, rest @ ..] = rest {
            let error = WireError::Malformed { what: "host length", got: 0 };
            let command = SnellCommand::Invalid { error, reusable };
            return Ok(Some((Self { command, client_id: client_id.to_vec() }, used(rest))));
        }
        let Some((host, rest)) = counted(rest) else { return Ok(None) };
        let [high, low, rest @ ..] = rest else { return Ok(None) };
        let command = match parse_host(host) {
            Ok(host) => SnellCommand::Connect {
                target: Target { host, port: u16::from_be_bytes([*high, *low]) },
                reusable,
            },
            Err(error) => SnellCommand::Invalid { error, reusable },
        };
        Ok(Some((Self { command, client_id: client_id.to_vec() }, used(rest))))
    }
}

pub(super) fn parse_host(host: &[u8]) -> Result<Host, WireError> {
    Host::parse(host).map_err(|error| WireError::Malformed {
        what: match error {
            TargetError::EmptyHost => "empty host",
            TargetError::LongHost(_) => "host length",
            TargetError::BadCharacter | TargetError::MissingPort | TargetError::BadPort(_) => "host",
        },
        got: host.len() as u64,
    })
}

/// A length byte and that many bytes; the counted bytes and what follows.
pub(super) fn counted(bytes: &[u8]) -> Option<(&[u8], &[u8])> {
    let [len, rest @ ..] = bytes else { return None };
    rest.split_at_checked(usize::from(*len))
}

/// An error reply.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ErrorReply {
    /// The failure's errno where it has one (111 refused, 110 timed out, 113 no route), otherwise 0.
    pub code: u8,
    /// Text for people; cut at [`MAX_ERROR_TEXT`] bytes when sent.
    pub message: String,
}

impl ErrorReply {
    pub(super) fn emit(&self, out: &mut Vec<u8>) {
        let mut end = self.message.len().min(MAX_ERROR_TEXT);
        while !self.message.is_char_boundary(end) {
            end -= 1;
        }
        out.extend([REPLY_ERROR, self.code, u8::try_from(end).expect("at most 250")]);
        out.extend(&self.message.as_bytes()[..end]);
    }

    /// Reads what follows the reply byte of an error: `None` while it is incomplete.
    pub(super) fn parse(bytes: &[u8]) -> Option<WireError> {
        let [code, rest @ ..] = bytes else { return None };
        let (message, _) = counted(rest)?;
        let printable = |c: char| if c.is_control() { char::REPLACEMENT_CHARACTER } else { c };
        let message: String = String::from_utf8_lossy(message).chars().map(printable).collect();
        Some(WireError::Remote { code: *code, message: message.into() })
    }
}
