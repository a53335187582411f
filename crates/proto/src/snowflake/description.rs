//! A session description as messages carry it: `{"type":"offer","sdp":"v=0\r\n..."}`, itself a text of JSON.

use std::fmt;
use std::net::IpAddr;

use super::json::{JsonError, Object, Writer};

/// The kind of a description.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DescriptionKind {
    /// A client's.
    Offer,
    /// A provisional answer, which no program sends.
    Pranswer,
    /// A proxy's.
    Answer,
    /// No description, which no program sends.
    Rollback,
}

impl DescriptionKind {
    /// Its word.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Offer => "offer",
            Self::Pranswer => "pranswer",
            Self::Answer => "answer",
            Self::Rollback => "rollback",
        }
    }
}

/// A session description.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SessionDescription {
    /// Its kind.
    pub kind: DescriptionKind,
    /// The text of the Session Description Protocol, as it came.
    pub sdp: String,
}

/// A description that cannot be read. The words are upstream's, since brokers hand them to clients.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum DescriptionError {
    /// The text is no JSON.
    Json(JsonError),
    /// There is no such field.
    Missing(&'static str),
    /// The type is no text.
    TypeKind,
    /// The description is no text.
    SdpKind,
    /// There is no such type.
    UnknownType,
}

impl fmt::Display for DescriptionError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Json(error) => error.fmt(f),
            Self::Missing(field) => {
                write!(f, "cannot deserialize SessionDescription without {field} field")
            }
            Self::TypeKind => f.write_str("invalid SDP type"),
            Self::SdpKind => f.write_str("invalid SDP"),
            Self::UnknownType => f.write_str("Unknown SDP type"),
        }
    }
}

impl std::error::Error for DescriptionError {}

impl SessionDescription {
    /// Reads a description. Names of members count in this case alone.
    ///
    /// # Errors
    /// See [`DescriptionError`].
    pub fn parse(text: &str) -> Result<Self, DescriptionError> {
        let object = Object::parse(text.as_bytes()).map_err(DescriptionError::Json)?;
        let kind = object.exact_text("type").ok_or(DescriptionError::Missing("type"))?;
        let sdp = object.exact_text("sdp").ok_or(DescriptionError::Missing("sdp"))?;
        let kind = match kind.ok_or(DescriptionError::TypeKind)? {
            "offer" => Ok(DescriptionKind::Offer),
            "pranswer" => Ok(DescriptionKind::Pranswer),
            "answer" => Ok(DescriptionKind::Answer),
            "rollback" => Ok(DescriptionKind::Rollback),
            _ => Err(DescriptionError::UnknownType),
        };
        // Upstream looks at both fields before it looks at the word.
        let sdp = sdp.ok_or(DescriptionError::SdpKind)?.to_owned();
        Ok(Self { kind: kind?, sdp })
    }

    /// Writes it.
    pub fn emit(&self) -> String {
        Writer::default().text("type", self.kind.as_str()).text("sdp", &self.sdp).finish()
    }

    /// The addresses of its candidates that are no names, in order; private ones too. At most `most` of them.
    pub fn candidates(&self, most: usize) -> Vec<IpAddr> {
        let lines = self.sdp.lines().filter_map(|line| line.strip_prefix("a=candidate:"));
        lines.filter_map(|line| line.split(' ').nth(4)?.parse().ok()).take(most).collect()
    }
}

#[cfg(test)]
mod tests {
    use adit_testkit::{load, text};

    use super::*;

    #[test]
    fn recorded_descriptions_round_trip() {
        for (program, row) in load("snowflake/sdp_examples.json").as_object().unwrap() {
            for (kind, word) in [(DescriptionKind::Offer, "offer"), (DescriptionKind::Answer, "answer")] {
                let Some(sdp) = row[word]["sdp"].as_str() else { continue };
                let description = SessionDescription { kind, sdp: sdp.to_owned() };
                let written = description.emit();
                assert!(
                    written.starts_with(&format!("{{\"type\":\"{word}\",\"sdp\":\"v=0\\r\\n")),
                    "{written}"
                );
                assert_eq!(SessionDescription::parse(&written), Ok(description.clone()), "{program}");
                assert!(!description.candidates(100).is_empty(), "{program}");
                assert_eq!(text(&row[word], "type"), word);
            }
        }
    }

    #[test]
    fn errors_have_upstreams_words() {
        for (text, want) in [
            ("hello", "invalid character 'h' looking for beginning of value"),
            ("null", "cannot deserialize SessionDescription without type field"),
            ("{\"sdp\":\"\"}", "cannot deserialize SessionDescription without type field"),
            ("{\"Type\":\"offer\",\"sdp\":\"\"}", "cannot deserialize SessionDescription without type field"),
            ("{\"type\":\"offer\"}", "cannot deserialize SessionDescription without sdp field"),
            ("{\"type\":1,\"sdp\":\"\"}", "invalid SDP type"),
            ("{\"type\":\"weird\",\"sdp\":1}", "invalid SDP"),
            ("{\"type\":\"weird\",\"sdp\":\"x\"}", "Unknown SDP type"),
        ] {
            assert_eq!(SessionDescription::parse(text).unwrap_err().to_string(), want, "{text}");
        }
    }
}
