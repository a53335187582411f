//! The list of bridges: one object of JSON per line.

use std::collections::HashMap;

use adit_proto::snowflake::json::Object;
use adit_proto::snowflake::messages::Fingerprint;

/// The relay of each bridge.
#[derive(Debug)]
pub(super) struct Bridges(HashMap<Fingerprint, String>);

impl Default for Bridges {
    /// The public bridge.
    fn default() -> Self {
        let bridge = Fingerprint::parse(Fingerprint::DEFAULT).expect("forty digits");
        Self(HashMap::from([(bridge, "wss://snowflake.torproject.net/".to_owned())]))
    }
}

impl Bridges {
    /// Reads a list; the last of two lines for one bridge wins.
    ///
    /// # Errors
    /// The first line that is wrong, and why. An empty line is.
    pub(super) fn parse(text: &str) -> Result<Self, String> {
        let mut bridges = HashMap::new();
        for (at, line) in text.lines().enumerate() {
            let (bridge, relay) = entry(line).map_err(|problem| format!("line {}: {problem}", at + 1))?;
            bridges.insert(bridge, relay);
        }
        Ok(Self(bridges))
    }

    pub(super) fn relay(&self, bridge: &Fingerprint) -> Option<&str> {
        self.0.get(bridge).map(String::as_str)
    }

    pub(super) fn len(&self) -> usize {
        self.0.len()
    }
}

fn entry(line: &str) -> Result<(Fingerprint, String), String> {
    let object = Object::parse(line.as_bytes()).map_err(|error| error.to_string())?;
    if let Some(name) = object.unknown_member(&["displayName", "webSocketAddress", "fingerprint"]) {
        return Err(format!("unknown field {name:?}"));
    }
    let text = |name| object.text(name).map(Option::unwrap_or_default).map_err(|error| error.to_string());
    text("displayName")?;
    let bridge = Fingerprint::parse(text("fingerprint")?).ok_or("fingerprint is not 40 or 64 hex digits")?;
    Ok((bridge, text("webSocketAddress")?.to_owned()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists() {
        let line = |address: &str| {
            format!(
                "{{\"displayName\":\"d\", \"webSocketAddress\":\"{address}\", \"fingerprint\":\"2b280B23E1107BB62ABFC40DDCC8824814F80A72\"}}\n"
            )
        };
        let bridge = Fingerprint::parse(Fingerprint::DEFAULT).unwrap();
        let bridges = Bridges::parse(&(line("ws://a/") + &line("ws://b/"))).unwrap();
        assert_eq!((bridges.len(), bridges.relay(&bridge)), (1, Some("ws://b/")));
        assert_eq!(Bridges::default().relay(&bridge), Some("wss://snowflake.torproject.net/"));
        for (text, problem) in [
            (line("ws://a/") + "\n", "line 2: unexpected end of JSON input"),
            ("{\"x\":1}".into(), "line 1: unknown field \"x\""),
            ("{\"fingerprint\":\"00\"}".into(), "line 1: fingerprint is not 40 or 64 hex digits"),
        ] {
            assert_eq!(Bridges::parse(&text).unwrap_err(), problem);
        }
    }
}
