//! Fallback servers: where a server sends peers that do not authenticate.

use std::fmt;
use std::str::FromStr;

use adit_proto::wire::Target;
use thiserror::Error;

use crate::rule::regex_problem;

/// Port of a fallback server that is written without one.
const HTTP_PORT: u16 = 80;
/// Longest text of an entry in bytes.
const MAX_TEXT: usize = 1024;

/// One entry of a list of fallback servers.
///
/// The first entry decides how its list is read. Without a condition: the entries without a condition are candidates,
/// and one of them is drawn by the peer's address and bytes; if the target of an entry has the port of the listener,
/// only such entries are candidates. With a condition: the first entry whose condition holds is taken.
///
/// Its text is `host[:port]` or `pattern[:port]#host[:port]`, where `*` stands for any pattern or port.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Redirect {
    /// The properties that a peer must share with the entry.
    pub when: Option<RedirectWhen>,
    /// The fallback server.
    pub target: Target,
}

/// The condition of an entry.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct RedirectWhen {
    /// Regular expression that the peer's first bytes begin with, as [`regex_problem`] accepts it; `None` for any.
    pub pattern: Option<Box<str>>,
    /// Port of the listener; `None` for any.
    pub port: Option<u16>,
}

/// Why a text is no entry of such a list.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum RedirectError {
    /// The text is longer than 1024 bytes.
    #[error("longer than {MAX_TEXT} bytes")]
    Long,
    /// The fallback server is no host with a port.
    #[error("no host[:port]: {0}")]
    Target(String),
    /// The pattern is no regular expression.
    #[error("{0}")]
    Pattern(String),
}

impl FromStr for Redirect {
    type Err = RedirectError;

    fn from_str(text: &str) -> Result<Self, RedirectError> {
        if text.len() > MAX_TEXT {
            return Err(RedirectError::Long);
        }
        let (when, target) = match text.rsplit_once('#') {
            Some((when, target)) => (Some(when.parse()?), target),
            None => (None, text),
        };
        let is_v6 = target.parse::<std::net::Ipv6Addr>().is_ok();
        let parsed: Result<Target, _> = match target.parse() {
            Ok(target) if !is_v6 => Ok(target),
            Err(error) if target.contains(':') && !is_v6 && !target.ends_with(']') => Err(error),
            _ if is_v6 => format!("[{target}]:{HTTP_PORT}").parse(),
            _ => format!("{target}:{HTTP_PORT}").parse(),
        };
        let target = parsed.map_err(|error| RedirectError::Target(error.to_string()))?;
        Ok(Self { when, target })
    }
}

impl FromStr for RedirectWhen {
    type Err = RedirectError;

    fn from_str(text: &str) -> Result<Self, RedirectError> {
        let (pattern, port) = match text.rsplit_once(':') {
            Some((pattern, "*")) => (pattern, None),
            Some((pattern, port)) => match port.parse::<u16>() {
                Ok(port) => (pattern, Some(port).filter(|port| *port != 0)),
                Err(_) => (text, None),
            },
            None => (text, None),
        };
        if pattern == "*" {
            return Ok(Self { pattern: None, port });
        }
        match regex_problem(pattern) {
            Some(problem) => Err(RedirectError::Pattern(problem)),
            None => Ok(Self { pattern: Some(pattern.into()), port }),
        }
    }
}

impl fmt::Display for Redirect {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(RedirectWhen { pattern, port }) = &self.when {
            f.write_str(pattern.as_deref().unwrap_or("*"))?;
            match port {
                Some(port) => write!(f, ":{port}#")?,
                None => f.write_str(":*#")?,
            }
        }
        write!(f, "{}", self.target)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn entries() {
        for (text, want) in [
            ("bing.com", "bing.com:80"),
            ("cloudflare.com:443", "cloudflare.com:443"),
            ("2001:db8::1", "[2001:db8::1]:80"),
            ("[2001:db8::1]:8080", "[2001:db8::1]:8080"),
            ("*#192.0.2.1:81", "*:*#192.0.2.1:81"),
            ("*:8080#a.example", "*:8080#a.example:80"),
            ("*:0#a.example", "*:*#a.example:80"),
            ("GET /[a-z]+#a.example:1", "GET /[a-z]+:*#a.example:1"),
            ("Host: a:443#b:2", "Host: a:443#b:2"),
        ] {
            let parsed: Redirect = text.parse().unwrap_or_else(|error| panic!("{text}: {error}"));
            assert_eq!(parsed.to_string(), want);
            assert_eq!(want.parse(), Ok(parsed), "{want}");
        }
        for text in ["", "#", "*#", "(#a:1", "a:70000:b", &"a".repeat(2000)] {
            assert!(text.parse::<Redirect>().is_err(), "{text:.20}");
        }
    }
}
