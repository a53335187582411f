use std::fmt;
use std::net::{IpAddr, Ipv6Addr, SocketAddr};
use std::str::FromStr;

use thiserror::Error;

/// The host of a [`Target`]: an address, or a name that the dialling side resolves.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Host {
    /// An address; never an IPv4-mapped IPv6 one.
    Ip(IpAddr),
    /// A name of 1 to 255 bytes without control characters, spaces, brackets or a trailing dot; never the text of
    /// an address.
    Name(Box<str>),
}

/// Target of a connection: host and port.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Target {
    /// Name or address.
    pub host: Host,
    /// Port, host byte order; 0 is kept as given, dialling it fails.
    pub port: u16,
}

/// Why a text is no [`Target`].
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum TargetError {
    /// No host.
    #[error("host is empty")]
    EmptyHost,
    /// More than 255 bytes of host.
    #[error("host is longer than 255 bytes: {0}")]
    LongHost(usize),
    /// A byte that no host name holds.
    #[error("host holds a space, a bracket, a control character or invalid UTF-8")]
    BadCharacter,
    /// No `:port` at the end.
    #[error("port is missing")]
    MissingPort,
    /// The port is no number from 0 to 65535.
    #[error("bad port: {0}")]
    BadPort(Box<str>),
}

impl Host {
    /// Reads a host as it comes over a wire: a name, or an address in text (IPv6 with or without brackets).
    /// Trailing dots are dropped.
    ///
    /// # Errors
    /// [`TargetError`] for an empty, over-long or unprintable host.
    pub fn parse(text: &[u8]) -> Result<Self, TargetError> {
        let text = std::str::from_utf8(text).map_err(|_| TargetError::BadCharacter)?;
        let name = text.trim_end_matches('.');
        let bare = name.strip_prefix('[').and_then(|t| t.strip_suffix(']')).unwrap_or(name);
        if let Ok(ip) = bare.parse::<IpAddr>() {
            return Ok(Self::Ip(ip.to_canonical()));
        }
        if name.is_empty() {
            return Err(TargetError::EmptyHost);
        }
        if name.len() > 255 {
            return Err(TargetError::LongHost(name.len()));
        }
        if name.chars().any(|c| c.is_control() || c.is_whitespace() || matches!(c, '[' | ']')) {
            return Err(TargetError::BadCharacter);
        }
        Ok(Self::Name(name.into()))
    }
}

impl fmt::Display for Host {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Ip(ip) => ip.fmt(f),
            Self::Name(name) => f.write_str(name),
        }
    }
}

impl Target {
    /// A target from a host as of [`Host::parse`] and a port.
    ///
    /// # Errors
    /// As [`Host::parse`].
    pub fn new(host: &[u8], port: u16) -> Result<Self, TargetError> {
        Ok(Self { host: Host::parse(host)?, port })
    }
}

impl From<SocketAddr> for Target {
    fn from(addr: SocketAddr) -> Self {
        Self { host: Host::Ip(addr.ip().to_canonical()), port: addr.port() }
    }
}

/// `host:port`, IPv6 in brackets.
impl FromStr for Target {
    type Err = TargetError;

    fn from_str(text: &str) -> Result<Self, TargetError> {
        let (host, port) = text.rsplit_once(':').ok_or(TargetError::MissingPort)?;
        if host.starts_with('[') != host.ends_with(']') {
            return Err(TargetError::MissingPort);
        }
        let port = port.parse().map_err(|_| TargetError::BadPort(port.into()))?;
        Self::new(host.as_bytes(), port)
    }
}

impl fmt::Display for Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.host {
            Host::Ip(IpAddr::V6(ip)) => write_v6(f, *ip, self.port),
            Host::Ip(IpAddr::V4(ip)) => write!(f, "{ip}:{}", self.port),
            Host::Name(name) => write!(f, "{name}:{}", self.port),
        }
    }
}

fn write_v6(f: &mut fmt::Formatter<'_>, ip: Ipv6Addr, port: u16) -> fmt::Result {
    write!(f, "[{ip}]:{port}")
}

/// Fuzz target: a host that is read keeps its promises, and its text reads back as the same host.
#[doc(hidden)]
pub fn fuzz_host(data: &[u8]) {
    let Ok(host) = Host::parse(data) else { return };
    match &host {
        Host::Ip(ip) => assert_eq!(*ip, ip.to_canonical()),
        Host::Name(name) => {
            assert!((1..=255).contains(&name.len()), "{} bytes", name.len());
            assert!(!name.ends_with('.'), "trailing dot: {name}");
        }
    }
    assert_eq!(Host::parse(host.to_string().as_bytes()), Ok(host));
}

/// Fuzz target: the text of a target reads back as the same target.
#[doc(hidden)]
pub fn fuzz_target(data: &[u8]) {
    let Some((port, host)) = data.split_first_chunk() else { return };
    if let Ok(target) = Target::new(host, u16::from_be_bytes(*port)) {
        assert_eq!(target.to_string().parse(), Ok(target));
    }
    let Some(target) = str::from_utf8(data).ok().and_then(|text| text.parse::<Target>().ok()) else { return };
    assert_eq!(target.to_string().parse(), Ok(target));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hosts() {
        for (text, host) in [
            ("example.com", "example.com"),
            ("example.com.", "example.com"),
            ("127.0.0.1", "127.0.0.1"),
            ("[::1]", "::1"),
            ("::1", "::1"),
            ("::ffff:1.2.3.4", "1.2.3.4"),
            ("example.com..", "example.com"),
        ] {
            assert_eq!(Host::parse(text.as_bytes()).unwrap().to_string(), host, "{text}");
        }
        // A trailing dot does not make a name of an address.
        assert_eq!(Host::parse(b"127.0.0.1."), Ok(Host::Ip(IpAddr::from([127, 0, 0, 1]))));
        assert_eq!(Host::parse(b"[a]"), Err(TargetError::BadCharacter));
        assert_eq!(Host::parse(b"[::1"), Err(TargetError::BadCharacter));
        assert_eq!(Host::parse(b""), Err(TargetError::EmptyHost));
        assert_eq!(Host::parse(b"."), Err(TargetError::EmptyHost));
        assert_eq!(Host::parse(b"a b"), Err(TargetError::BadCharacter));
        assert_eq!(Host::parse(b"a\0b"), Err(TargetError::BadCharacter));
        assert_eq!(Host::parse(&[0xff]), Err(TargetError::BadCharacter));
        assert_eq!(Host::parse(&[b'a'; 256]), Err(TargetError::LongHost(256)));
        assert!(Host::parse(&[b'a'; 255]).is_ok());
    }

    #[test]
    fn targets() {
        for text in ["example.com:80", "[::1]:443", "1.2.3.4:0"] {
            assert_eq!(text.parse::<Target>().unwrap().to_string(), text);
        }
        assert_eq!("example.com".parse::<Target>(), Err(TargetError::MissingPort));
        assert_eq!("a:65536".parse::<Target>(), Err(TargetError::BadPort("65536".into())));
        assert_eq!(":80".parse::<Target>(), Err(TargetError::EmptyHost));
    }
}
