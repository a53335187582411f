//! A proxy's poll and answer, and the replies. A probe server takes a poll's reply and gives an answer.

use std::fmt;

use super::super::Scheme;
use super::super::description::{DescriptionError, SessionDescription};
use super::super::json::{JsonError, Object, Writer};
use super::Nat;

/// The version that is written.
const VERSION: &str = "1.3";

/// The status of a poll whose pattern is refused.
pub const RELAY_PATTERN_REFUSED: &str = "incorrect relay pattern";

/// A message that cannot be read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum MessageError {
    /// It is no JSON.
    Json(JsonError),
    /// Its version does not begin with `1.`, or is not `1`.
    Version,
    /// A member that must be there is not, or is empty.
    Missing(&'static str),
    /// The NAT is none.
    Nat,
    /// The answer is no description (not looked at in the old scheme).
    Description(DescriptionError),
    /// The other side has refused; these are its words.
    Refused(String),
}

impl fmt::Display for MessageError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Json(error) => error.fmt(f),
            Self::Version => f.write_str("using unknown version"),
            Self::Missing(member) => write!(f, "no supplied {member}"),
            Self::Nat => f.write_str("invalid NAT type"),
            Self::Description(error) => write!(f, "malformed session description: {error}"),
            Self::Refused(words) => f.write_str(words),
        }
    }
}

impl std::error::Error for MessageError {}

impl From<JsonError> for MessageError {
    fn from(error: JsonError) -> Self {
        Self::Json(error)
    }
}

/// The program that a proxy is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum ProxyType {
    /// A program of its own.
    Standalone,
    /// An extension of a browser.
    Webext,
    /// A badge in a page.
    Badge,
    /// A library on phones.
    Iptproxy,
    /// Bloco's application.
    Bloco,
    /// Another one: its poll is taken all the same.
    Unknown,
}

impl ProxyType {
    /// The types that brokers count one by one.
    pub const KNOWN: [Self; 5] = [Self::Standalone, Self::Webext, Self::Badge, Self::Iptproxy, Self::Bloco];

    /// Reads a word.
    pub fn parse(word: &str) -> Self {
        Self::KNOWN.into_iter().find(|kind| kind.as_str() == word).unwrap_or(Self::Unknown)
    }

    /// Its word.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Standalone => "standalone",
            Self::Webext => "webext",
            Self::Badge => "badge",
            Self::Iptproxy => "iptproxy",
            Self::Bloco => "bloco",
            Self::Unknown => "unknown",
        }
    }
}

/// A proxy's poll.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ProxyPoll {
    /// The proxy's name for this poll, which its answer bears. Not empty.
    pub sid: String,
    /// Its type.
    pub kind: ProxyType,
    /// The NAT in front of it.
    pub nat: Nat,
    /// Clients that it has now, rounded down to a multiple of 8. Not negative.
    pub clients: i64,
    /// The pattern of relays that it takes, if it knows of patterns.
    pub pattern: Option<String>,
}

impl ProxyPoll {
    /// Reads a poll.
    ///
    /// # Errors
    /// See [`MessageError`].
    pub fn parse(body: &[u8], scheme: Scheme) -> Result<Self, MessageError> {
        let object = Object::parse(body)?;
        let text = |name| object.text(name).map(Option::unwrap_or_default);
        let (sid, version, kind, nat) = (text("Sid")?, text("Version")?, text("Type")?, text("NAT")?);
        let clients = object.integer("Clients")?.unwrap_or(0).max(0);
        let pattern = object.optional_text("AcceptedRelayPattern")?.map(str::to_owned);
        check_version(version)?;
        if sid.is_empty() {
            return Err(MessageError::Missing("session id"));
        }
        let nat = Nat::parse(nat, scheme).ok_or(MessageError::Nat)?;
        Ok(Self { sid: sid.to_owned(), kind: ProxyType::parse(kind), nat, clients, pattern })
    }

    /// Writes it.
    pub fn emit(&self) -> String {
        let mut out = Writer::default()
            .text("Sid", &self.sid)
            .text("Version", VERSION)
            .text("Type", self.kind.as_str())
            .text("NAT", self.nat.as_str())
            .integer("Clients", self.clients);
        if let Some(pattern) = &self.pattern {
            out = out.text("AcceptedRelayPattern", pattern);
        }
        out.finish()
    }
}

fn check_version(version: &str) -> Result<(), MessageError> {
    let (major, _) = version.split_once('.').unwrap_or((version, ""));
    if major == "1" { Ok(()) } else { Err(MessageError::Version) }
}

/// The result of a poll.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PollStatus {
    /// A client waits for an answer.
    Match,
    /// Nobody came.
    NoMatch,
    /// The next poll was not due yet.
    TooSoon,
    /// The pattern is absent, or narrower than the broker's.
    Pattern,
}

impl PollStatus {
    fn as_str(self) -> &'static str {
        match self {
            Self::Match => "client match",
            Self::NoMatch => "no match",
            Self::TooSoon => "polled too soon",
            Self::Pattern => RELAY_PATTERN_REFUSED,
        }
    }
}

/// A broker's reply to a poll.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PollReply {
    /// The result.
    pub status: PollStatus,
    /// The client's offer, as the text of a [`SessionDescription`]; empty without a match.
    pub offer: String,
    /// The client's NAT; `None` without a match.
    pub nat: Option<Nat>,
    /// Time until the next poll, in milliseconds; it may be over already.
    pub next_poll_ms: i64,
    /// The relay's address; empty for the proxy's own.
    pub relay: String,
}

impl PollReply {
    /// A reply without a client.
    pub fn without_client(status: PollStatus, next_poll_ms: i64) -> Self {
        Self { status, offer: String::new(), nat: None, next_poll_ms, relay: String::new() }
    }

    /// Reads a reply.
    ///
    /// # Errors
    /// See [`MessageError`]; any unknown status is [`MessageError::Refused`].
    pub fn parse(body: &[u8]) -> Result<Self, MessageError> {
        let object = Object::parse(body)?;
        let text = |name| object.text(name).map(Option::unwrap_or_default);
        let (status, offer, nat, relay) = (text("Status")?, text("Offer")?, text("NAT")?, text("RelayURL")?);
        let next_poll_ms = object.integer("NextPoll")?.unwrap_or(0);
        let status = match status {
            "" => return Err(MessageError::Missing("status")),
            "client match" => PollStatus::Match,
            "no match" => PollStatus::NoMatch,
            "polled too soon" => PollStatus::TooSoon,
            words => return Err(MessageError::Refused(words.to_owned())),
        };
        if status != PollStatus::Match {
            return Ok(Self::without_client(status, next_poll_ms));
        }
        if offer.is_empty() {
            return Err(MessageError::Missing("offer"));
        }
        let nat = Nat::parse(nat, Scheme::Current).unwrap_or_default();
        Ok(Self { status, offer: offer.to_owned(), nat: Some(nat), next_poll_ms, relay: relay.to_owned() })
    }

    /// Writes it. The old scheme knows no time of the next poll.
    pub fn emit(&self, scheme: Scheme) -> String {
        let out = Writer::default()
            .text("Status", self.status.as_str())
            .text("Offer", &self.offer)
            .text("NAT", self.nat.map_or("", Nat::as_str));
        let out = match scheme {
            Scheme::Current => out.integer("NextPoll", self.next_poll_ms),
            Scheme::Old => out,
        };
        out.text("RelayURL", &self.relay).finish()
    }
}

/// A proxy's answer to an offer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ProxyAnswer {
    /// The name of the poll.
    pub sid: String,
    /// The text of a [`SessionDescription`].
    pub answer: String,
}

impl ProxyAnswer {
    /// The `sid` of a probe server's answers.
    pub const PROBE_SID: &'static str = "stub-sid";

    /// Reads an answer.
    ///
    /// # Errors
    /// See [`MessageError`].
    pub fn parse(body: &[u8], scheme: Scheme) -> Result<Self, MessageError> {
        let object = Object::parse(body)?;
        let text = |name| object.text(name).map(Option::unwrap_or_default);
        let (version, sid, answer) = (text("Version")?, text("Sid")?, text("Answer")?);
        check_version(version)?;
        for (member, text) in [("session id", sid), ("answer", answer)] {
            if text.is_empty() {
                return Err(MessageError::Missing(member));
            }
        }
        if scheme == Scheme::Current {
            SessionDescription::parse(answer).map_err(MessageError::Description)?;
        }
        Ok(Self { sid: sid.to_owned(), answer: answer.to_owned() })
    }

    /// Writes it.
    pub fn emit(&self) -> String {
        let out = Writer::default().text("Version", VERSION).text("Sid", &self.sid);
        out.text("Answer", &self.answer).finish()
    }
}

/// A broker's reply to an answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AnswerReply {
    /// The client has it.
    Success,
    /// The client has gone, or there was none of this name.
    ClientGone,
}

impl AnswerReply {
    /// Reads a reply.
    ///
    /// # Errors
    /// See [`MessageError`].
    pub fn parse(body: &[u8]) -> Result<Self, MessageError> {
        let object = Object::parse(body)?;
        match object.text("Status")?.unwrap_or_default() {
            "" => Err(MessageError::Missing("status")),
            "success" => Ok(Self::Success),
            "client gone" => Ok(Self::ClientGone),
            words => Err(MessageError::Refused(words.to_owned())),
        }
    }

    /// Writes it.
    pub fn emit(self) -> String {
        let status = match self {
            Self::Success => "success",
            Self::ClientGone => "client gone",
        };
        Writer::default().text("Status", status).finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn polls_round_trip_and_faults_are_found() {
        let poll = ProxyPoll {
            sid: "a".into(),
            kind: ProxyType::Webext,
            nat: Nat::Unrestricted,
            clients: 8,
            pattern: Some("x$".into()),
        };
        let text = poll.emit();
        let want = r#"{"Sid":"a","Version":"1.3","Type":"webext","NAT":"unrestricted","Clients":8,"AcceptedRelayPattern":"x$"}"#;
        assert_eq!(text, want);
        assert_eq!(ProxyPoll::parse(text.as_bytes(), Scheme::Old), Ok(poll));
        let parse = |text: &str| ProxyPoll::parse(text.as_bytes(), Scheme::Current);
        let found =
            parse(r#"{"sid":"a","version":"1.99.7","clients":-4,"type":"mine","acceptedRelayPattern":null}"#);
        let found = found.unwrap();
        assert_eq!(
            (found.kind, found.nat, found.clients, found.pattern),
            (ProxyType::Unknown, Nat::Unknown, 0, None)
        );
        assert_eq!(parse(r#"{"Sid":"a","Version":"2.0"}"#), Err(MessageError::Version));
        assert_eq!(parse(r#"{"Sid":"a","Version":"10.0"}"#), Err(MessageError::Version));
        assert_eq!(parse(r#"{"Sid":"","Version":"1"}"#), Err(MessageError::Missing("session id")));
        assert_eq!(parse(r#"{"Sid":"a","Version":"1","NAT":"x"}"#), Err(MessageError::Nat));
        assert!(parse(r#"{"Sid":"a","Version":"1","Clients":"8"}"#).is_err());
    }

    #[test]
    fn replies_round_trip() {
        let reply = PollReply {
            status: PollStatus::Match,
            offer: "<o>".into(),
            nat: Some(Nat::Restricted),
            next_poll_ms: 2494,
            relay: "ws://192.0.2.1:1/?a=1&b=2".into(),
        };
        let text = reply.emit(Scheme::Current);
        let want = "{\"Status\":\"client match\",\"Offer\":\"\\u003co\\u003e\",\"NAT\":\"restricted\",\"NextPoll\":2494,\
                    \"RelayURL\":\"ws://192.0.2.1:1/?a=1\\u0026b=2\"}";
        assert_eq!(text, want);
        assert_eq!(PollReply::parse(text.as_bytes()), Ok(reply.clone()));
        let old = PollReply::parse(reply.emit(Scheme::Old).as_bytes()).unwrap();
        assert_eq!((old.next_poll_ms, &old.offer), (0, &reply.offer));
        for status in [PollStatus::NoMatch, PollStatus::TooSoon] {
            let reply = PollReply::without_client(status, -7028);
            assert_eq!(PollReply::parse(reply.emit(Scheme::Current).as_bytes()), Ok(reply));
        }
        let refused = PollReply::without_client(PollStatus::Pattern, 3_600_000).emit(Scheme::Current);
        let want =
            r#"{"Status":"incorrect relay pattern","Offer":"","NAT":"","NextPoll":3600000,"RelayURL":""}"#;
        assert_eq!(refused, want);
        let words = MessageError::Refused(RELAY_PATTERN_REFUSED.into());
        assert_eq!(PollReply::parse(refused.as_bytes()), Err(words));
        assert!(PollReply::parse(b"{}").is_err());
        assert!(PollReply::parse(br#"{"Status":"client match"}"#).is_err());
    }

    #[test]
    fn answers_round_trip() {
        let description = "{\"type\":\"answer\",\"sdp\":\"v=0\\r\\n\"}";
        let answer = ProxyAnswer { sid: "s".into(), answer: description.into() };
        let text = answer.emit();
        assert!(text.starts_with(r#"{"Version":"1.3","Sid":"s","Answer":"{\"type\""#), "{text}");
        assert_eq!(ProxyAnswer::parse(text.as_bytes(), Scheme::Current), Ok(answer));
        let bad = br#"{"Version":"1.3","Sid":"x","Answer":"a=candidate"}"#;
        assert!(matches!(ProxyAnswer::parse(bad, Scheme::Current), Err(MessageError::Description(_))));
        assert!(ProxyAnswer::parse(bad, Scheme::Old).is_ok());
        for reply in [AnswerReply::Success, AnswerReply::ClientGone] {
            assert_eq!(AnswerReply::parse(reply.emit().as_bytes()), Ok(reply));
        }
        assert!(AnswerReply::parse(br#"{"Status":"x"}"#).is_err());
    }
}
