//! The first bytes of a client.
//!
//! ```text
//! 0 token 12 93 60 5d 27 81 75 f5 | 8 client id, 8 bytes | 16 chunks
//! ```
//!
//! Only a client sends it, on every new proxy anew; the server's stream begins with its first chunk. Any split of these
//! bytes over messages is legal.

use std::fmt;

/// The token of turbotunnel sessions.
pub const TOKEN: [u8; 8] = [0x12, 0x93, 0x60, 0x5d, 0x27, 0x81, 0x75, 0xf5];

/// Bytes of a prologue.
pub const PROLOGUE_LEN: usize = TOKEN.len() + 8;

/// The random name of a client's session. It stays the same over all proxies of the session.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ClientId(pub [u8; 8]);

impl fmt::Debug for ClientId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:016x}", u64::from_be_bytes(self.0))
    }
}

impl fmt::Display for ClientId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(self, f)
    }
}

/// The result of looking at a client's first bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Prologue {
    /// More bytes are needed; those so far are right.
    NeedMore,
    /// It is complete: [`PROLOGUE_LEN`] bytes.
    Complete(ClientId),
    /// The token is another one.
    WrongToken,
}

impl Prologue {
    /// Looks at the first bytes of a client's stream. A wrong token shows at its first wrong byte.
    pub fn parse(bytes: &[u8]) -> Self {
        let known = bytes.len().min(TOKEN.len());
        if bytes[..known] != TOKEN[..known] {
            return Self::WrongToken;
        }
        match bytes.get(TOKEN.len()..).and_then(<[u8]>::first_chunk::<8>) {
            Some(id) => Self::Complete(ClientId(*id)),
            None => Self::NeedMore,
        }
    }

    /// The bytes of a client.
    pub fn emit(id: ClientId) -> [u8; PROLOGUE_LEN] {
        let mut out = [0; PROLOGUE_LEN];
        out[..TOKEN.len()].copy_from_slice(&TOKEN);
        out[TOKEN.len()..].copy_from_slice(&id.0);
        out
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_split_and_every_wrong_byte() {
        let id = ClientId([1, 2, 3, 4, 5, 6, 7, 8]);
        let bytes = Prologue::emit(id);
        for len in 0..PROLOGUE_LEN {
            assert_eq!(Prologue::parse(&bytes[..len]), Prologue::NeedMore);
        }
        assert_eq!(Prologue::parse(&bytes), Prologue::Complete(id));
        assert_eq!(Prologue::parse(&[&bytes[..], b"more"].concat()), Prologue::Complete(id));
        for at in 0..TOKEN.len() {
            let mut wrong = bytes;
            wrong[at] ^= 1;
            assert_eq!(Prologue::parse(&wrong), Prologue::WrongToken);
            assert_eq!(Prologue::parse(&wrong[..=at]), Prologue::WrongToken);
        }
        assert_eq!(id.to_string(), "0102030405060708");
    }
}
