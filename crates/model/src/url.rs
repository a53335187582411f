//! Addresses of what is fetched over HTTP.

use std::fmt;

use adit_proto::wire::{Target, TargetError};
use thiserror::Error;

/// An address that begins with `http://`, taken apart (RFC 3986, section 3).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HttpUrl {
    /// Target of the connection.
    pub target: Target,
    /// Value of the `Host` field.
    pub authority: Box<str>,
    /// Path and query of the request, beginning with a slash.
    pub path: Box<str>,
}

/// Why a text is no [`HttpUrl`]. It does not show the text, which may hold a token.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum UrlError {
    /// It begins with `https://`, which this place does not support.
    #[error("https is not supported here: use http://")]
    Https,
    /// Its scheme is none that is supported.
    #[error("the address must begin with http:// or, where TLS is supported, https://")]
    Scheme,
    /// It holds what cannot stand in a request: spaces, control characters, or other characters than ASCII.
    #[error("a character that cannot stand in an address")]
    Character,
    /// A user name or password stands in it.
    #[error("user names and passwords in addresses are not sent")]
    User,
    /// Its host or port is wrong.
    #[error("bad host or port")]
    Host(#[source] TargetError),
}

impl HttpUrl {
    /// Takes an address apart; a fragment is left out.
    ///
    /// # Errors
    /// [`UrlError`].
    pub fn parse(text: &str) -> Result<Self, UrlError> {
        if after(text, "https://").is_some() {
            return Err(UrlError::Https);
        }
        let WebUrl { tls: _, target, authority, path } = WebUrl::parse(text)?;
        Ok(Self { target, authority, path })
    }
}

/// An address that begins with `http://` or `https://`, taken apart (RFC 3986, section 3). Its path may hold a token, so
/// its `Debug` shows nothing.
#[derive(Clone, PartialEq, Eq)]
pub struct WebUrl {
    /// Whether TLS is used (`https://`).
    pub tls: bool,
    /// Target of the connection; the port is 443 with TLS and 80 without unless the address names one.
    pub target: Target,
    /// Value of the `Host` field.
    pub authority: Box<str>,
    /// Path and query, beginning with a slash.
    pub path: Box<str>,
}

impl WebUrl {
    /// Takes an address apart; a fragment is left out.
    ///
    /// # Errors
    /// [`UrlError`], never [`UrlError::Https`].
    pub fn parse(text: &str) -> Result<Self, UrlError> {
        let (tls, rest) = match after(text, "https://") {
            Some(rest) => (true, rest),
            None => (false, after(text, "http://").ok_or(UrlError::Scheme)?),
        };
        if !rest.bytes().all(|byte| byte.is_ascii_graphic()) {
            return Err(UrlError::Character);
        }
        let rest = rest.split_once('#').map_or(rest, |(rest, _)| rest);
        let (authority, path) = rest.split_at(rest.find(['/', '?']).unwrap_or(rest.len()));
        if authority.contains('@') {
            return Err(UrlError::User);
        }
        let path = if path.starts_with('/') { path.to_owned() } else { format!("/{path}") };
        let default = if tls { 443 } else { 80 };
        // A colon behind the last bracket is that of a port.
        let has_port = authority.rfind(':') > authority.rfind(']');
        let target = match authority.strip_suffix(':') {
            Some(host) => format!("{host}:{default}"),
            None if has_port => authority.to_owned(),
            None => format!("{authority}:{default}"),
        };
        let target = target.parse().map_err(UrlError::Host)?;
        Ok(Self { tls, target, authority: authority.into(), path: path.into() })
    }

    /// Takes the address of a WebSocket apart, which begins with `ws://` or `wss://`.
    ///
    /// # Errors
    /// [`UrlError`].
    pub fn of_websocket(text: &str) -> Result<Self, UrlError> {
        let (scheme, rest) = match after(text, "wss://") {
            Some(rest) => ("https", rest),
            None => ("http", after(text, "ws://").ok_or(UrlError::Scheme)?),
        };
        Self::parse(&format!("{scheme}://{rest}"))
    }

    /// The address that `reference` stands for in an answer from here (RFC 3986, section 4.2). Dots in paths are left
    /// to the server.
    ///
    /// # Errors
    /// [`UrlError`].
    pub fn join(&self, reference: &str) -> Result<Self, UrlError> {
        let begin = reference.split(['/', '?', '#']).next().unwrap_or_default();
        if begin.contains(':') {
            return Self::parse(reference);
        }
        let scheme = self.scheme();
        if reference.starts_with("//") {
            return Self::parse(&format!("{scheme}:{reference}"));
        }
        let authority = &self.authority;
        let own = self.path.split('?').next().unwrap_or_default();
        let folder = own.rfind('/').map_or("/", |slash| &own[..=slash]);
        match reference.as_bytes().first() {
            Some(b'/') => Self::parse(&format!("{scheme}://{authority}{reference}")),
            Some(b'?') => Self::parse(&format!("{scheme}://{authority}{own}{reference}")),
            _ => Self::parse(&format!("{scheme}://{authority}{folder}{reference}")),
        }
    }

    fn scheme(&self) -> &'static str {
        if self.tls { "https" } else { "http" }
    }
}

/// The text after `scheme`, in letters of either case.
fn after<'a>(text: &'a str, scheme: &str) -> Option<&'a str> {
    let (begin, rest) = text.split_at_checked(scheme.len())?;
    begin.eq_ignore_ascii_case(scheme).then_some(rest)
}

impl fmt::Debug for WebUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("WebUrl(..)")
    }
}

/// Fuzz target: what is read can be put together and read again, and holds nothing that would end a line of a request.
/// The first line is an address, the rest a reference from there.
#[doc(hidden)]
pub fn fuzz_http_url(data: &[u8]) {
    let text = String::from_utf8_lossy(data);
    let (text, reference) = text.split_once('\n').unwrap_or((&text, ""));
    let Ok(url) = WebUrl::parse(text) else {
        assert!(HttpUrl::parse(text).is_err());
        return;
    };
    assert_eq!(HttpUrl::parse(text).is_ok(), !url.tls);
    for url in std::iter::once(url.clone()).chain(url.join(reference).ok()) {
        assert!(url.path.starts_with('/'));
        assert!(url.authority.bytes().chain(url.path.bytes()).all(|byte| byte.is_ascii_graphic()));
        let text = format!("{}://{}{}", url.scheme(), url.authority, url.path);
        assert_eq!(WebUrl::parse(&text), Ok(url));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_with_tls() {
        for (text, want) in [
            ("https://a.example", Ok((true, "a.example:443", "/"))),
            ("HTTPS://a.example:8443/x?t=1#y", Ok((true, "a.example:8443", "/x?t=1"))),
            ("https://[::1]:", Ok((true, "[::1]:443", "/"))),
            ("http://a.example", Ok((false, "a.example:80", "/"))),
            ("https://me:pw@a.example/", Err(UrlError::User)),
            ("https://a.example/\"\nurl = x", Err(UrlError::Character)),
            ("-o/etc/passwd", Err(UrlError::Scheme)),
        ] {
            let url = WebUrl::parse(text);
            let got = url.as_ref().map(|url| (url.tls, url.target.to_string(), &*url.path));
            let got = got.as_ref().map(|(tls, target, path)| (*tls, target.as_str(), *path));
            assert_eq!(got.map_err(|error| (*error).clone()), want, "{text}");
            assert!(!format!("{url:?}").contains("a.example"));
        }
    }

    #[test]
    fn addresses() {
        for (text, target, authority, path) in [
            ("http://a.example", "a.example:80", "a.example", "/"),
            ("HTTP://a.example/x/y?z=1#there", "a.example:80", "a.example", "/x/y?z=1"),
            ("http://a.example:8080?q", "a.example:8080", "a.example:8080", "/?q"),
            ("http://192.0.2.1:", "192.0.2.1:80", "192.0.2.1:", "/"),
            ("http://[::1]/a@b", "[::1]:80", "[::1]", "/a@b"),
            ("http://[::1]:81/", "[::1]:81", "[::1]:81", "/"),
        ] {
            let url = HttpUrl::parse(text).unwrap();
            assert_eq!(
                (url.target.to_string().as_str(), &*url.authority, &*url.path),
                (target, authority, path)
            );
        }
        for (text, want) in [
            ("https://a.example", "https is not supported here: use http://"),
            ("ftp://a.example", "the address must begin with http:// or, where TLS is supported, https://"),
            ("", "the address must begin with http:// or, where TLS is supported, https://"),
            ("http://a.example/a b", "a character that cannot stand in an address"),
            ("http://a.example/\r\nx:", "a character that cannot stand in an address"),
            ("http://me:secret@a.example/", "user names and passwords in addresses are not sent"),
            ("http://", "bad host or port"),
            ("http://a:99999/", "bad host or port"),
        ] {
            assert_eq!(
                HttpUrl::parse(text).map_err(|error| error.to_string()),
                Err(want.to_owned()),
                "{text}"
            );
        }
    }

    #[test]
    fn references() {
        let url = WebUrl::parse("http://a.example:81/b/c?d=/e").unwrap();
        for (reference, want) in [
            ("http://x/y", "x:80 /y"),
            ("//x:82/y", "x:82 /y"),
            ("/y?z", "a.example:81 /y?z"),
            ("y", "a.example:81 /b/y"),
            ("?q", "a.example:81 /b/c?q"),
            ("", "a.example:81 /b/"),
            ("#f", "a.example:81 /b/"),
        ] {
            let other = url.join(reference).unwrap();
            assert_eq!(format!("{} {}", other.target, other.path), want, "{reference}");
        }
        assert!(url.join("https://x").is_ok_and(|url| url.tls));
        let secure = WebUrl::parse("https://a.example/b").unwrap();
        for (reference, want) in
            [("//x/y", "x:443 /y"), ("/y", "a.example:443 /y"), ("?q", "a.example:443 /b?q")]
        {
            let other = secure.join(reference).unwrap();
            assert_eq!(format!("{} {}", other.target, other.path), want, "{reference}");
            assert!(other.tls);
        }
        assert_eq!(url.join("mailto:x"), Err(UrlError::Scheme));
        assert_eq!(url.join("/a b"), Err(UrlError::Character));
    }
}
