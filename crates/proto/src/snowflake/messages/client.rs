//! A client's poll, and the reply.

use std::fmt;

use super::super::Scheme;
use super::super::description::{DescriptionError, SessionDescription};
use super::super::json::{JsonError, Object, Writer};
use super::{Fingerprint, Nat};

/// The only version of polls.
const VERSION: &[u8] = b"1.0";

/// The error of a broker without a proxy for this client.
pub const NO_PROXIES: &str = "no snowflake proxies currently available";
/// The error of a broker whose proxy has not answered.
pub const TIMED_OUT: &str = "timed out waiting for answer!";
/// The error of a broker that has no such bridge in its list.
pub const UNKNOWN_BRIDGE: &str = "bridge with requested fingerprint is unknown to the broker";

/// A client's poll.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ClientPoll {
    /// The offer, as the text of a [`SessionDescription`].
    pub offer: String,
    /// The NAT in front of the client.
    pub nat: Nat,
    /// The bridge that it wants.
    pub fingerprint: Fingerprint,
}

/// A poll that cannot be read. The words are upstream's, since brokers hand them to clients.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ClientPollError {
    /// There is no version, or not 1.0.
    Version,
    /// It is no JSON.
    Json(JsonError),
    /// There is no offer.
    NoOffer,
    /// The offer is no description (not looked at in the old scheme).
    Description(DescriptionError),
    /// The fingerprint is none.
    Fingerprint,
    /// The NAT is none.
    Nat,
}

impl fmt::Display for ClientPollError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Version => f.write_str("unsupported message version"),
            Self::Json(error) => error.fmt(f),
            Self::NoOffer => f.write_str("no supplied offer"),
            Self::Description(error) => write!(f, "malformed session description: {error}"),
            Self::Fingerprint => f.write_str("cannot decode fingerprint"),
            Self::Nat => f.write_str("invalid NAT type"),
        }
    }
}

impl std::error::Error for ClientPollError {}

impl ClientPoll {
    /// Reads a poll with its version in front.
    ///
    /// # Errors
    /// See [`ClientPollError`]. The first thing that is wrong counts, in the order of that enum.
    pub fn parse(body: &[u8], scheme: Scheme) -> Result<Self, ClientPollError> {
        let newline = body.iter().position(|byte| *byte == b'\n').ok_or(ClientPollError::Version)?;
        if &body[..newline] != VERSION {
            return Err(ClientPollError::Version);
        }
        let object = Object::parse(&body[newline + 1..]).map_err(ClientPollError::Json)?;
        let text = |name| object.text(name).map(Option::unwrap_or_default).map_err(ClientPollError::Json);
        let (offer, nat, fingerprint) = (text("offer")?, text("nat")?, text("fingerprint")?);
        Self::of(offer, nat, fingerprint, scheme)
    }

    /// Reads a poll of the older form: the whole body is the offer, and a field of HTTP names the NAT.
    ///
    /// # Errors
    /// As [`ClientPoll::parse`].
    pub fn parse_legacy(offer: &[u8], nat: &str, scheme: Scheme) -> Result<Self, ClientPollError> {
        Self::of(&String::from_utf8_lossy(offer), nat, "", scheme)
    }

    fn of(offer: &str, nat: &str, fingerprint: &str, scheme: Scheme) -> Result<Self, ClientPollError> {
        if offer.is_empty() {
            return Err(ClientPollError::NoOffer);
        }
        if scheme == Scheme::Current {
            SessionDescription::parse(offer).map_err(ClientPollError::Description)?;
        }
        let fingerprint = if fingerprint.is_empty() { Fingerprint::DEFAULT } else { fingerprint };
        let fingerprint = Fingerprint::parse(fingerprint).ok_or(ClientPollError::Fingerprint)?;
        let nat = Nat::parse(nat, scheme).ok_or(ClientPollError::Nat)?;
        Ok(Self { offer: offer.to_owned(), nat, fingerprint })
    }

    /// Writes it, its version in front.
    pub fn emit(&self) -> String {
        let fingerprint = self.fingerprint.to_string();
        let object = Writer::default().text("offer", &self.offer).text("nat", self.nat.as_str());
        "1.0\n".to_owned() + &object.text("fingerprint", &fingerprint).finish()
    }
}

/// A broker's reply to a client.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ClientReply {
    /// The proxy's answer, as the text of a [`SessionDescription`].
    Answer(String),
    /// The reason why there is none.
    Error(String),
}

/// A reply that cannot be read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ClientReplyError {
    /// It is no JSON.
    Json(JsonError),
    /// It has neither an answer nor an error.
    Empty,
}

impl fmt::Display for ClientReplyError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Json(error) => error.fmt(f),
            Self::Empty => f.write_str("received empty broker response"),
        }
    }
}

impl std::error::Error for ClientReplyError {}

impl ClientReply {
    /// Reads a reply. An error outranks an answer.
    ///
    /// # Errors
    /// See [`ClientReplyError`].
    pub fn parse(body: &[u8]) -> Result<Self, ClientReplyError> {
        let object = Object::parse(body).map_err(ClientReplyError::Json)?;
        let text = |name| object.text(name).map(Option::unwrap_or_default).map_err(ClientReplyError::Json);
        match (text("answer")?, text("error")?) {
            ("", "") => Err(ClientReplyError::Empty),
            (answer, "") => Ok(Self::Answer(answer.to_owned())),
            (_, error) => Ok(Self::Error(error.to_owned())),
        }
    }

    /// Writes it.
    pub fn emit(&self) -> String {
        match self {
            Self::Answer(answer) => Writer::default().text_unless_empty("answer", answer).finish(),
            Self::Error(error) => Writer::default().text_unless_empty("error", error).finish(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const OFFER: &str = "{\"type\":\"offer\",\"sdp\":\"v=0\\r\\n\"}";

    fn error(body: &str, scheme: Scheme) -> String {
        ClientPoll::parse(body.as_bytes(), scheme).unwrap_err().to_string()
    }

    #[test]
    fn polls_round_trip() {
        let poll = ClientPoll {
            offer: OFFER.into(),
            nat: Nat::Restricted,
            fingerprint: Fingerprint::parse("8838024498816A039FCBBAB14E6F40A0843051FA").unwrap(),
        };
        let text = poll.emit();
        assert_eq!(
            text,
            "1.0\n{\"offer\":\"{\\\"type\\\":\\\"offer\\\",\\\"sdp\\\":\\\"v=0\\\\r\\\\n\\\"}\",\"nat\":\"restricted\",\
             \"fingerprint\":\"8838024498816A039FCBBAB14E6F40A0843051FA\"}"
        );
        for scheme in [Scheme::Current, Scheme::Old] {
            assert_eq!(ClientPoll::parse(text.as_bytes(), scheme), Ok(poll.clone()));
        }
        let legacy = ClientPoll::parse_legacy(OFFER.as_bytes(), "", Scheme::Current).unwrap();
        assert_eq!((legacy.offer.as_str(), legacy.nat), (OFFER, Nat::Unknown));
        assert_eq!(legacy.fingerprint.to_string(), Fingerprint::DEFAULT);
    }

    #[test]
    fn the_first_fault_counts() {
        for body in ["", "1.0", "2.0\n{}", "1.1\n{}", "{}", "\n"] {
            assert_eq!(error(body, Scheme::Current), "unsupported message version", "{body}");
        }
        assert_eq!(error("1.0\n{\"nat\":\"x\"}", Scheme::Current), "no supplied offer");
        let bad = "1.0\n{\"offer\":\"x\",\"nat\":\"weird\",\"fingerprint\":\"zz\"}";
        assert_eq!(
            error(bad, Scheme::Current),
            "malformed session description: invalid character 'x' looking for beginning of value"
        );
        assert_eq!(error(bad, Scheme::Old), "cannot decode fingerprint");
        assert_eq!(error("1.0\n{\"offer\":\"x\",\"nat\":\"open\"}", Scheme::Old), "invalid NAT type");
    }

    #[test]
    fn replies_round_trip() {
        for reply in [ClientReply::Answer("{}".into()), ClientReply::Error(NO_PROXIES.into())] {
            assert_eq!(ClientReply::parse(reply.emit().as_bytes()), Ok(reply));
        }
        assert_eq!(ClientReply::Error("a".into()).emit(), "{\"error\":\"a\"}");
        assert_eq!(ClientReply::parse(b"{}"), Err(ClientReplyError::Empty));
        assert!(ClientReply::parse(b"{\"answer\":1}").is_err());
    }
}
