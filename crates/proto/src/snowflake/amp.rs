//! Rendezvous over an AMP cache: a poll in a path, a cache's address for it, and the reply in a document.
//!
//! ```text
//! path      0 RANDOM / DATA        DATA is base64url without padding; all up to the last "/" but the first byte is ignored
//! address   https://PREFIX.CACHE/c/s/HOST/path        PREFIX is HOST with "-" as "--" and "." as "-"
//! document  boilerplate, then <pre> elements; their text without blanks is "0" and standard base64 with padding
//! ```

use std::fmt;
use std::fmt::Write as _;

use aws_lc_rs::digest::{SHA256, digest};
use base64::Engine as _;
use base64::engine::general_purpose::{STANDARD, URL_SAFE_NO_PAD};

use super::puny;

/// The one version of paths and documents.
const VERSION: u8 = b'0';
/// Characters of a line in a document.
const LINE_LEN: usize = 32;
/// Lines of an element: with their newlines and the first one at most 32768 bytes.
const LINES: usize = (MAX_ELEMENT - 1) / (LINE_LEN + 1);
/// Longest text of an element, in bytes.
const MAX_ELEMENT: usize = 32 << 10;
/// Longest label of a name.
const MAX_LABEL: usize = 63;

/// The part of a document in front of the elements (what AMP demands of a page).
const HEAD: &str = "<!doctype html>\n<html amp>\n<head>\n<meta charset=\"utf-8\">\n\
<script async src=\"https://cdn.ampproject.org/v0.js\"></script>\n<link rel=\"canonical\" href=\"#\">\n\
<meta name=\"viewport\" content=\"width=device-width\">\n\
<style amp-boilerplate>body{-webkit-animation:-amp-start 8s steps(1,end) 0s 1 normal both;\
-moz-animation:-amp-start 8s steps(1,end) 0s 1 normal both;-ms-animation:-amp-start 8s steps(1,end) 0s 1 normal both;\
animation:-amp-start 8s steps(1,end) 0s 1 normal both}\
@-webkit-keyframes -amp-start{from{visibility:hidden}to{visibility:visible}}\
@-moz-keyframes -amp-start{from{visibility:hidden}to{visibility:visible}}\
@-ms-keyframes -amp-start{from{visibility:hidden}to{visibility:visible}}\
@-o-keyframes -amp-start{from{visibility:hidden}to{visibility:visible}}\
@keyframes -amp-start{from{visibility:hidden}to{visibility:visible}}</style>\
<noscript><style amp-boilerplate>body{-webkit-animation:none;-moz-animation:none;-ms-animation:none;animation:none}</style></noscript>\n\
</head>\n<body>\n";
/// The part behind them.
const TAIL: &str = "</body>\n</html>";

/// A path, an address or a document that cannot be used.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum AmpError {
    /// There is nothing in it.
    MissingVersion,
    /// Its version is another one.
    UnknownVersion(char),
    /// A path without `/`.
    MissingData,
    /// The data is no base64.
    Base64,
    /// An element within an element, or one without an end.
    Nesting,
    /// An element whose text is too long.
    TooLong,
    /// The publisher's address has a port, and not the usual one of its scheme.
    Port {
        /// The port.
        port: String,
        /// The scheme.
        scheme: String,
    },
    /// The cache's address has a query or a fragment.
    CacheQuery,
    /// An address is none of http or https with a host.
    Address(String),
}

impl fmt::Display for AmpError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::MissingVersion => f.write_str("missing format indicator"),
            Self::UnknownVersion(version) => write!(f, "unknown format indicator {version:?}"),
            Self::MissingData => f.write_str("missing data"),
            Self::Base64 => f.write_str("illegal base64 data"),
            Self::Nesting => f.write_str("pre element within another, or without an end"),
            Self::TooLong => write!(f, "pre element of more than {MAX_ELEMENT} bytes"),
            Self::Port { port, scheme } => {
                write!(f, "publisher URL port {port:?} is not the default for scheme {scheme:?}")
            }
            Self::CacheQuery => f.write_str("cache URL must not have a query or a fragment"),
            Self::Address(url) => write!(f, "no URL of http or https: {url}"),
        }
    }
}

impl std::error::Error for AmpError {}

/// The path of a poll, behind `/amp/client/`. The random bytes keep caches from giving an old reply.
pub fn emit_path(random: &[u8; 9], data: &[u8]) -> String {
    format!("0{}/{}", URL_SAFE_NO_PAD.encode(random), URL_SAFE_NO_PAD.encode(data))
}

/// The data of a path.
///
/// # Errors
/// See [`AmpError`].
pub fn parse_path(path: &str) -> Result<Vec<u8>, AmpError> {
    let version = path.chars().next().ok_or(AmpError::MissingVersion)?;
    if version != char::from(VERSION) {
        return Err(AmpError::UnknownVersion(version));
    }
    let (_, data) = path[1..].rsplit_once('/').ok_or(AmpError::MissingData)?;
    URL_SAFE_NO_PAD.decode(data).map_err(|_| AmpError::Base64)
}

/// The document that holds `data`.
pub fn emit_document(data: &[u8]) -> String {
    let text = "0".to_owned() + &STANDARD.encode(data);
    let mut out = String::with_capacity(HEAD.len() + TAIL.len() + text.len() * 34 / 32 + 64);
    out.push_str(HEAD);
    let mut left = text.as_str();
    while !left.is_empty() {
        let (element, rest) = left.split_at(left.len().min(LINES * LINE_LEN));
        out.push_str("<pre>\n");
        let mut lines = element;
        while !lines.is_empty() {
            let (line, after) = lines.split_at(lines.len().min(LINE_LEN));
            out.extend([line, "\n"]);
            lines = after;
        }
        out.push_str("</pre>\n");
        left = rest;
    }
    out.push_str(TAIL);
    out
}

/// The data that a document holds, which a cache may have written anew.
///
/// # Errors
/// See [`AmpError`].
pub fn parse_document(document: &str) -> Result<Vec<u8>, AmpError> {
    let text = elements(document)?;
    let (version, text) = text.split_first().ok_or(AmpError::MissingVersion)?;
    if *version != VERSION {
        return Err(AmpError::UnknownVersion(char::from(*version)));
    }
    STANDARD.decode(text).map_err(|_| AmpError::Base64)
}

/// The text of all `<pre>` elements, without blanks.
fn elements(mut document: &str) -> Result<Vec<u8>, AmpError> {
    let (mut out, mut inside) = (Vec::new(), None);
    loop {
        let at = document.find('<').unwrap_or(document.len());
        if let Some(len) = &mut inside {
            *len += at;
            if *len > MAX_ELEMENT {
                return Err(AmpError::TooLong);
            }
            push_text(&mut out, &document[..at]);
        }
        document = &document[at..];
        if document.is_empty() {
            return if inside.is_none() { Ok(out) } else { Err(AmpError::Nesting) };
        }
        let (tag, rest) = tag(document);
        document = rest;
        match (tag, &mut inside) {
            (Tag::Start(name), None) if name == "pre" => inside = Some(0),
            (Tag::Start(name), Some(_)) if name == "pre" => return Err(AmpError::Nesting),
            (Tag::End(name), Some(_)) if name == "pre" => inside = None,
            (Tag::Start(name), _) if ["script", "style", "title", "textarea"].contains(&name.as_str()) => {
                document = skip_raw(document, &name);
            }
            (Tag::Text, Some(len)) => {
                *len += 1;
                out.push(b'<');
            }
            (Tag::Start(_) | Tag::End(_) | Tag::Other | Tag::Text, _) => {}
        }
    }
}

/// A piece of markup.
enum Tag {
    Start(String),
    End(String),
    /// A comment or a declaration.
    Other,
    /// A `<` that begins no markup.
    Text,
}

/// The markup that begins with the `<` here, and the rest of the document.
fn tag(document: &str) -> (Tag, &str) {
    if let Some(comment) = document.strip_prefix("<!--") {
        return (Tag::Other, comment.split_once("-->").map_or("", |(_, rest)| rest));
    }
    let inner = &document[1..];
    if inner.starts_with(['!', '?']) {
        return (Tag::Other, inner.split_once('>').map_or("", |(_, rest)| rest));
    }
    let (name, is_end) = match inner.strip_prefix('/') {
        Some(name) => (name, true),
        None => (inner, false),
    };
    if !name.starts_with(|letter: char| letter.is_ascii_alphabetic()) {
        return if is_end {
            (Tag::Other, name.split_once('>').map_or("", |(_, rest)| rest))
        } else {
            (Tag::Text, inner)
        };
    }
    let len = name.find(|c: char| c.is_ascii_whitespace() || c == '/' || c == '>').unwrap_or(name.len());
    let rest = skip_attributes(&name[len..]);
    let name = name[..len].to_ascii_lowercase();
    (if is_end { Tag::End(name) } else { Tag::Start(name) }, rest)
}

/// The document behind the `>` that ends a tag; those in quotation marks do not.
fn skip_attributes(text: &str) -> &str {
    let mut quote = None;
    for (at, letter) in text.char_indices() {
        match (quote, letter) {
            (None, '>') => return &text[at + 1..],
            (None, '"' | '\'') => quote = Some(letter),
            (Some(open), _) if open == letter => quote = None,
            _ => {}
        }
    }
    ""
}

/// The document from the end tag of an element on whose content is no markup.
fn skip_raw<'a>(document: &'a str, name: &str) -> &'a str {
    let mut rest = document;
    while let Some(at) = rest.find("</") {
        rest = &rest[at..];
        let word = rest.as_bytes().get(2..2 + name.len());
        if word.is_some_and(|word| word.eq_ignore_ascii_case(name.as_bytes())) {
            return rest;
        }
        rest = &rest[2..];
    }
    ""
}

/// Appends text without blanks, with its character references resolved: a cache may write `+` as `&#43;`.
fn push_text(out: &mut Vec<u8>, mut text: &str) {
    loop {
        let at = text.find('&').unwrap_or(text.len());
        out.extend(text[..at].bytes().filter(|byte| !byte.is_ascii_whitespace()));
        text = &text[at..];
        if text.is_empty() {
            return;
        }
        let found = text.get(1..).and_then(|inner| inner.split_once(';')).filter(|(name, _)| name.len() <= 8);
        match found.and_then(|(name, rest)| Some((reference(name)?, rest))) {
            Some((byte, rest)) => {
                if !byte.is_ascii_whitespace() {
                    out.push(byte);
                }
                text = rest;
            }
            None => {
                out.push(b'&');
                text = &text[1..];
            }
        }
    }
}

/// The character of ASCII that a reference names.
fn reference(name: &str) -> Option<u8> {
    let number = match name.strip_prefix('#') {
        Some(digits) => match digits.strip_prefix(['x', 'X']) {
            Some(digits) => u8::from_str_radix(digits, 16).ok()?,
            None => digits.parse().ok()?,
        },
        None => match name {
            "plus" => b'+',
            "sol" => b'/',
            "equals" => b'=',
            "NewLine" => b'\n',
            _ => return None,
        },
    };
    number.is_ascii().then_some(number)
}

/// The address by which a cache is asked for `publisher`.
///
/// # Errors
/// See [`AmpError`].
pub fn cache_url(publisher: &str, cache: &str) -> Result<String, AmpError> {
    let (publisher, cache) = (Url::parse(publisher)?, Url::parse(cache)?);
    if !publisher.port.is_empty() && publisher.port != publisher.default_port() {
        let (port, scheme) = (publisher.port.to_owned(), publisher.scheme.to_owned());
        return Err(AmpError::Port { port, scheme });
    }
    if cache.tail.contains(['?', '#']) {
        return Err(AmpError::CacheQuery);
    }
    let mut out = format!("{}://{}.{}", cache.scheme, prefix(publisher.host), cache.host);
    if !cache.port.is_empty() {
        write!(out, ":{}", cache.port).expect("a string takes all");
    }
    out.push_str(cache.tail.trim_end_matches('/'));
    out.push_str(if publisher.scheme == "https" { "/c/s/" } else { "/c/" });
    out.push_str(publisher.host);
    if !publisher.tail.starts_with('/') {
        out.push('/');
    }
    out.push_str(publisher.tail);
    Ok(out)
}

/// The parts of an address.
struct Url<'a> {
    scheme: &'a str,
    host: &'a str,
    /// Empty when there is none.
    port: &'a str,
    /// Path, query and fragment.
    tail: &'a str,
}

impl<'a> Url<'a> {
    fn parse(url: &'a str) -> Result<Self, AmpError> {
        let wrong = || AmpError::Address(url.to_owned());
        let (scheme, rest) = url.split_once("://").ok_or_else(wrong)?;
        let (authority, tail) = rest.split_at(rest.find(['/', '?', '#']).unwrap_or(rest.len()));
        let (host, port) = match authority.rsplit_once(':') {
            Some((host, port)) if !port.contains(']') => (host, port),
            _ => (authority, ""),
        };
        let is_port = port.bytes().all(|byte| byte.is_ascii_digit());
        let is_known = scheme == "http" || scheme == "https";
        if !is_known || host.is_empty() || host.contains('@') || !is_port {
            return Err(wrong());
        }
        Ok(Self { scheme, host, port, tail })
    }

    fn default_port(&self) -> &'static str {
        if self.scheme == "https" { "443" } else { "80" }
    }
}

/// The label of a domain at a cache.
fn prefix(domain: &str) -> String {
    let readable = puny::to_unicode(domain).map(|unicode| {
        let label = unicode.replace('-', "--").replace('.', "-");
        if label.as_bytes().get(2..4) == Some(b"--") { format!("0-{label}-0") } else { label }
    });
    let label = readable.and_then(|label| puny::to_ascii(&label));
    label.filter(|label| label.len() <= MAX_LABEL).unwrap_or_else(|| hashed(domain))
}

/// SHA-256 of a domain in base 32 without padding, in small letters.
fn hashed(domain: &str) -> String {
    let hash = digest(&SHA256, domain.as_bytes());
    let (mut out, mut bits, mut count) = (String::new(), 0_u32, 0);
    for byte in hash.as_ref() {
        bits = bits << 8 | u32::from(*byte);
        count += 8;
        while count >= 5 {
            count -= 5;
            out.push(base32(bits >> count));
        }
    }
    if count > 0 {
        out.push(base32(bits << (5 - count)));
    }
    out
}

fn base32(bits: u32) -> char {
    let digit = char::from_digit(bits & 31, 36).expect("below 32");
    // Digits: a to z, then 2 to 7.
    match bits & 31 {
        value @ 0..=25 => char::from_digit(value + 10, 36).expect("a letter"),
        value => char::from_digit(value - 24, 10).unwrap_or(digit),
    }
}

#[cfg(test)]
mod tests {
    use adit_testkit::{load, pattern, text};

    use super::*;

    #[test]
    fn paths_as_upstream_reads_them() {
        for row in load("snowflake/amp.json")["functions"]["decode_path"].as_array().unwrap() {
            let found = parse_path(text(row, "path"));
            match row["error"].as_str() {
                None => assert_eq!(found.unwrap(), text(row, "decoded").as_bytes(), "{row}"),
                Some(words) => {
                    let error = found.unwrap_err().to_string();
                    assert!(words.starts_with(&error), "{row} {error}");
                }
            }
        }
        let path = emit_path(&[0xff; 9], b"hello?");
        assert_eq!(path, "0____________/aGVsbG8_");
        assert_eq!(parse_path(&path).unwrap(), b"hello?");
    }

    #[test]
    fn addresses_as_upstream_makes_them() {
        for row in load("snowflake/amp.json")["functions"]["cache_url"].as_array().unwrap() {
            let found = cache_url(text(row, "publisher"), text(row, "cache"));
            match row["error"].as_str() {
                None => assert_eq!(found.unwrap(), text(row, "result"), "{row}"),
                Some(words) => assert_eq!(found.unwrap_err().to_string(), words, "{row}"),
            }
        }
        for (publisher, cache) in [
            ("ftp://a/", "https://b/"),
            ("https://a/", "https://b/?x"),
            ("https:///x", "https://b/"),
            ("a", "b"),
        ] {
            assert!(cache_url(publisher, cache).is_err(), "{publisher} {cache}");
        }
    }

    #[test]
    fn documents_as_upstream_writes_them() {
        let rows = load("snowflake/amp.json")["functions"]["armor"].as_array().unwrap().clone();
        for row in &rows {
            let (input, document) = (text(row, "input"), emit_document(text(row, "input").as_bytes()));
            assert!(document.ends_with(text(row, "from_body_tag")), "{row} {document}");
            assert!(row["whole_document"].is_null() || document == text(row, "whole_document"), "{document}");
            assert_eq!(parse_document(&document).unwrap(), input.as_bytes());
        }
        assert!(rows.iter().any(|row| !row["whole_document"].is_null()));
        let long = pattern(100_000);
        let document = emit_document(&long);
        assert_eq!(document.matches("<pre>").count(), 5);
        assert_eq!(parse_document(&document).unwrap(), long);
    }

    #[test]
    fn documents_of_caches() {
        let document = "<html><style>a<pre>b</style><!-- <pre> --><PRE class='>'>0\nYS&#43;\r\n/</PRE> x <pre\n>Yg==</pre><br/>";
        assert_eq!(parse_document(document), STANDARD.decode("YS+/Yg==").map_err(|_| AmpError::Base64));
        for (wrong, error) in [
            ("", AmpError::MissingVersion),
            ("<pre>0", AmpError::Nesting),
            ("<pre>0<pre></pre>", AmpError::Nesting),
            ("<pre>1</pre>", AmpError::UnknownVersion('1')),
            ("<pre>0!</pre>", AmpError::Base64),
            ("<pre>0a < b</pre>", AmpError::Base64),
            (&format!("<pre>{}</pre>", " ".repeat(MAX_ELEMENT + 1)), AmpError::TooLong),
        ] {
            assert_eq!(parse_document(wrong), Err(error), "{wrong}");
        }
    }
}
