//! The messages that client, proxy and probe server exchange through a broker.
//!
//! ```text
//! client to broker   1.0 LF {"offer":D,"nat":N,"fingerprint":F}            or, older, D alone
//! broker to client   {"answer":D} or {"error":text}
//! proxy to broker    {"Sid":..,"Version":"1.3","Type":..,"NAT":N,"Clients":n,"AcceptedRelayPattern":P}
//! broker to proxy    {"Status":..,"Offer":D,"NAT":N,"NextPoll":ms,"RelayURL":U}
//! proxy to broker    {"Version":"1.3","Sid":..,"Answer":D}
//! broker to proxy    {"Status":"success"} or {"Status":"client gone"}
//! ```
//!
//! D is a description as a text, N a kind of NAT, F a fingerprint in hex. `NextPoll` came with 2.14.

mod client;
mod proxy;

use std::fmt;

pub use self::client::{
    ClientPoll, ClientPollError, ClientReply, ClientReplyError, NO_PROXIES, TIMED_OUT, UNKNOWN_BRIDGE,
};
pub use self::proxy::{
    AnswerReply, MessageError, PollReply, PollStatus, ProxyAnswer, ProxyPoll, ProxyType,
    RELAY_PATTERN_REFUSED,
};

/// The kind of NAT in front of a client or proxy, in the words of two generations.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Default)]
pub enum Nat {
    /// Not known. All programs take an absent word as this.
    #[default]
    Unknown,
    /// The older word for [`Nat::Strict`] and [`Nat::Moderate`].
    Restricted,
    /// The older word for [`Nat::Open`].
    Unrestricted,
    /// Anybody can reach it.
    Open,
    /// Its filter depends on addresses, its mapping does not.
    Moderate,
    /// Its mapping depends on addresses.
    Strict,
}

impl Nat {
    /// All kinds.
    pub const ALL: [Self; 6] =
        [Self::Unknown, Self::Restricted, Self::Unrestricted, Self::Open, Self::Moderate, Self::Strict];

    /// Reads a word; an empty one is [`Nat::Unknown`]. The three newer words are none in the old scheme.
    pub fn parse(word: &str, scheme: super::Scheme) -> Option<Self> {
        if word.is_empty() {
            return Some(Self::Unknown);
        }
        let found = Self::ALL.into_iter().find(|nat| nat.as_str() == word)?;
        let is_new = matches!(found, Self::Open | Self::Moderate | Self::Strict);
        (scheme == super::Scheme::Current || !is_new).then_some(found)
    }

    /// Its word.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Unknown => "unknown",
            Self::Restricted => "restricted",
            Self::Unrestricted => "unrestricted",
            Self::Open => "open",
            Self::Moderate => "moderate",
            Self::Strict => "strict",
        }
    }
}

/// The name of a bridge: SHA-1 of its identity key, or SHA-256 of an Ed25519 key.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Fingerprint {
    bytes: [u8; 32],
    len: usize,
}

impl Fingerprint {
    /// The bridge of clients that name none (snowflake-01).
    pub const DEFAULT: &'static str = "2B280B23E1107BB62ABFC40DDCC8824814F80A72";

    /// Reads 40 or 64 hex digits of either case.
    pub fn parse(digits: &str) -> Option<Self> {
        let digits = digits.as_bytes();
        let mut bytes = [0; 32];
        if digits.len() != 40 && digits.len() != 64 {
            return None;
        }
        for (byte, pair) in bytes.iter_mut().zip(digits.chunks(2)) {
            let digit =
                |at: usize| char::from(pair[at]).to_digit(16).and_then(|digit| u8::try_from(digit).ok());
            *byte = digit(0)? << 4 | digit(1)?;
        }
        Some(Self { bytes, len: digits.len() / 2 })
    }

    /// Its 20 or 32 bytes.
    pub fn as_bytes(&self) -> &[u8] {
        &self.bytes[..self.len]
    }
}

impl fmt::Display for Fingerprint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.as_bytes().iter().try_for_each(|byte| write!(f, "{byte:02X}"))
    }
}

impl fmt::Debug for Fingerprint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

#[cfg(test)]
mod tests {
    use super::super::Scheme;
    use super::*;

    #[test]
    fn words_of_both_generations() {
        for nat in Nat::ALL {
            assert_eq!(Nat::parse(nat.as_str(), Scheme::Current), Some(nat));
        }
        assert_eq!(Nat::parse("", Scheme::Old), Some(Nat::Unknown));
        assert_eq!(Nat::parse("restricted", Scheme::Old), Some(Nat::Restricted));
        for word in ["open", "moderate", "strict", "Open", "weird"] {
            assert_eq!(Nat::parse(word, Scheme::Old), None, "{word}");
        }
    }

    #[test]
    fn fingerprints() {
        let bridge = Fingerprint::parse(Fingerprint::DEFAULT).unwrap();
        assert_eq!(bridge.to_string(), Fingerprint::DEFAULT);
        assert_eq!(Fingerprint::parse(&Fingerprint::DEFAULT.to_lowercase()), Some(bridge));
        assert_eq!(Fingerprint::parse(&"0f".repeat(32)).unwrap().as_bytes(), [0x0f; 32]);
        for wrong in ["", "2B", &"0".repeat(39), &"0".repeat(41), &"g".repeat(40), &"é".repeat(20)] {
            assert_eq!(Fingerprint::parse(wrong), None, "{wrong}");
        }
    }
}
