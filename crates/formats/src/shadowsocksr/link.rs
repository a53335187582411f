//! `ssr://` links.
//!
//! ```text
//! link  := 'ssr://' b64( host ':' port ':' protocol ':' method ':' obfs ':' b64(password) ('/'? '?' query)? )
//! query := key '=' b64(value) ('&' ...)*        obfsparam, protoparam, remarks, group; the first of two counts
//! ```
//!
//! `b64` is base64 of UTF-8, written in the alphabet of URLs without padding, and read in both, with and without it. The
//! first part is split from its end, as an IPv6 host has colons of its own. A `protoparam` that is not base64 of
//! printable text is taken as it is, since some programs write it so. `uot=1` sends datagrams over streams. `udpport` has
//! no effect: datagrams go to the same port.

use adit_model::{Secret, SsrClient, Transports};
use adit_proto::ssr::protocol::DEFAULT_INTERVAL_S;
use adit_proto::wire::{Host, Target};
use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use thiserror::Error;
use zeroize::Zeroizing;

use super::names;
use crate::read::value::{MAX_CREDENTIAL, excerpt, secret, text_of};
use crate::shadowsocks::MAX_TEXT;
use crate::shadowsocks::sip002::{MAX_LINK, decode, decode_percent};

const SCHEME: &str = "ssr://";

/// A server as a link describes it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SsrProfile {
    /// The name that a person gives it.
    pub name: Option<Box<str>>,
    /// The group of servers that it belongs to.
    pub group: Option<Box<str>>,
    /// The client; never with a plugin.
    pub client: SsrClient,
}

/// Why a text is no link. None of it quotes a password or key.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum SsrLinkError {
    /// Another scheme, or none.
    #[error("it does not begin with ssr://")]
    Scheme,
    /// Longer than [`MAX_LINK`].
    #[error("longer than 8192 bytes")]
    Long,
    /// The whole is no base64 of a text.
    #[error("what stands behind ssr:// is no base64 of UTF-8 text")]
    Base64,
    /// Fewer than six parts.
    #[error("fewer than host:port:protocol:method:obfs:password")]
    Parts,
    /// Host or port.
    #[error("host or port: {0}")]
    Server(String),
    /// A name that is unknown or not spoken.
    #[error("{0}")]
    Name(String),
    /// A part that is no base64 of a text, or no text for its place.
    #[error("{part}: {why}")]
    Part {
        /// The part at fault.
        part: &'static str,
        /// The fault in it.
        why: String,
    },
}

/// A link cannot say this.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
pub enum SsrInexpressible {
    /// A plugin.
    #[error("a link has no place for a plugin")]
    Plugin,
    /// An interval of keys of its own.
    #[error("a link has no place for key-interval")]
    Interval,
    /// Longer than [`MAX_LINK`].
    #[error("the link would be longer than 8192 bytes")]
    Long,
}

/// Whether a text begins like a link.
pub fn is_link(text: &str) -> bool {
    text.get(..SCHEME.len()).is_some_and(|head| head.eq_ignore_ascii_case(SCHEME))
}

/// Reads a link.
///
/// # Errors
/// [`SsrLinkError`] for anything that is none.
pub fn parse(link: &str) -> Result<SsrProfile, SsrLinkError> {
    let link = link.trim();
    if link.len() > MAX_LINK {
        return Err(SsrLinkError::Long);
    }
    if !is_link(link) {
        return Err(SsrLinkError::Scheme);
    }
    let text = decode(&decode_percent(&link[SCHEME.len()..])).ok_or(SsrLinkError::Base64)?;
    let (body, query) = text.split_once('?').unwrap_or((&text, ""));
    let body = body.strip_suffix('/').unwrap_or(body);
    let mut parts = body.rsplitn(6, ':');
    let mut next = || parts.next().ok_or(SsrLinkError::Parts);
    let (password, obfs, method, protocol, port, host) =
        (next()?, next()?, next()?, next()?, next()?, next()?);
    let name = |problem: crate::read::value::Problem| SsrLinkError::Name(problem.text);
    let (protocol, _) = names::protocol(protocol).map_err(name)?;
    let (obfs, _) = names::obfs(obfs).map_err(name)?;
    let method = names::method(method).map_err(name)?;
    let password = decode(password).ok_or_else(|| part("password", "no base64 of UTF-8 text"))?;
    let password = secret(&password, MAX_TEXT).map_err(|problem| part("password", problem.text))?;
    let query = Query(query);
    let obfs_param = match query.param("obfsparam") {
        Some(text) if !text.is_empty() => {
            text_of(&text, MAX_TEXT).map_err(|problem| part("obfsparam", problem.text))?
        }
        Some(_) | None => Box::default(),
    };
    let param = query.param("protoparam").filter(|_| protocol.has_users());
    let user = param.map(|param| user(&param)).transpose()?.flatten();
    let client = SsrClient::new(server(host, port)?, method, password, protocol);
    let datagrams_over_tcp = query.raw("uot").is_some_and(|value| value.trim() == "1");
    let client =
        SsrClient { user, obfs, obfs_param, transports: Transports::Both, datagrams_over_tcp, ..client };
    client.check().map_err(|error| SsrLinkError::Name(error.to_string()))?;
    Ok(SsrProfile { name: query.label("remarks"), group: query.label("group"), client })
}

fn part(part: &'static str, why: impl Into<String>) -> SsrLinkError {
    SsrLinkError::Part { part, why: why.into() }
}

fn server(host: &str, port: &str) -> Result<Target, SsrLinkError> {
    let port = port.parse::<u16>().ok().filter(|port| *port != 0 && !port.to_string().is_empty());
    let port = port.ok_or_else(|| SsrLinkError::Server("no port from 1 to 65535".to_owned()))?;
    let bare = host.strip_prefix('[').and_then(|host| host.strip_suffix(']')).unwrap_or(host);
    let target =
        Target::new(bare.as_bytes(), port).map_err(|error| SsrLinkError::Server(error.to_string()))?;
    match &target.host {
        Host::Name(name)
            if name.contains([':', '/', '@', '?', '#', '[', ']']) || name.contains(char::is_whitespace) =>
        {
            Err(SsrLinkError::Server(format!("no host: {}", excerpt(name))))
        }
        Host::Name(_) | Host::Ip(_) => Ok(target),
    }
}

/// Id and key, if the text is that; another one means that there is no user.
fn user(param: &str) -> Result<Option<(u32, Secret)>, SsrLinkError> {
    let Some((id, key)) = param.split_once(':') else { return Ok(None) };
    let Ok(id) = id.trim().parse() else { return Ok(None) };
    let key = secret(key, MAX_CREDENTIAL).map_err(|problem| part("protoparam", problem.text))?;
    Ok(Some((id, key)))
}

struct Query<'a>(&'a str);

impl Query<'_> {
    fn raw(&self, key: &str) -> Option<&str> {
        let pairs = self.0.split('&').filter_map(|pair| pair.split_once('='));
        pairs.clone().find(|(name, _)| *name == key).map(|(_, value)| value)
    }

    /// Base64 of printable text or of id and key, or else the text itself.
    fn param(&self, key: &str) -> Option<Zeroizing<String>> {
        let raw = decode_percent(self.raw(key)?.trim());
        let decoded = decode(&raw).filter(|text| text.contains(':') || !text.contains(char::is_control));
        Some(decoded.unwrap_or(raw))
    }

    /// A text for a person; nothing if it is empty or cannot be read.
    fn label(&self, key: &str) -> Option<Box<str>> {
        let text = decode(&decode_percent(self.raw(key)?.trim()))?;
        text_of(&text, MAX_TEXT).ok()
    }
}

/// Writes a link, with name and group.
///
/// # Errors
/// [`SsrInexpressible`].
pub fn emit(profile: &SsrProfile) -> Result<Zeroizing<String>, SsrInexpressible> {
    let SsrProfile { name, group, client } = profile;
    if client.plugin.is_some() {
        return Err(SsrInexpressible::Plugin);
    }
    if client.key_interval_s != DEFAULT_INTERVAL_S {
        return Err(SsrInexpressible::Interval);
    }
    // Room for the longest, so that no copy of the password is left behind.
    let mut inside = Zeroizing::new(String::with_capacity(4 * MAX_TEXT));
    let Target { host, port } = &client.server;
    inside.push_str(&format!(
        "{host}:{port}:{}:{}:{}:",
        client.protocol.name(),
        client.method.name(),
        client.obfs.name()
    ));
    URL_SAFE_NO_PAD.encode_string(client.password.expose(), &mut inside);
    let user = client.user.as_ref().map(|(id, key)| Zeroizing::new(format!("{id}:{}", key.expose())));
    let params = [
        ("obfsparam", Some(&*client.obfs_param)),
        ("protoparam", user.as_ref().map(|user| user.as_str())),
        ("remarks", name.as_deref()),
        ("group", group.as_deref()),
    ];
    let mut lead = "/?";
    for (key, value) in params {
        let Some(value) = value.filter(|value| !value.is_empty()) else { continue };
        inside.push_str(lead);
        inside.push_str(key);
        inside.push('=');
        URL_SAFE_NO_PAD.encode_string(value, &mut inside);
        lead = "&";
    }
    if client.datagrams_over_tcp {
        inside.push_str(lead);
        inside.push_str("uot=1");
    }
    let mut link = Zeroizing::new(String::with_capacity(SCHEME.len() + 2 * inside.len()));
    link.push_str(SCHEME);
    URL_SAFE_NO_PAD.encode_string(inside.as_bytes(), &mut link);
    if link.len() > MAX_LINK { Err(SsrInexpressible::Long) } else { Ok(link) }
}

/// Fuzz target: what is read can be written, and is then read as the same.
#[doc(hidden)]
pub fn fuzz_link(data: &[u8]) {
    let text = String::from_utf8_lossy(data);
    let wrapped = format!("{SCHEME}{}", URL_SAFE_NO_PAD.encode(text.as_bytes()));
    for link in [&*text, &wrapped] {
        let Ok(profile) = parse(link) else { continue };
        assert_ne!(profile.client.server.port, 0);
        match emit(&profile) {
            Ok(link) => assert_eq!(parse(&link), Ok(profile)),
            Err(error) => assert_eq!(error, SsrInexpressible::Long),
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const VECTORS: &str = include_str!("../../../../testdata/ssr/links.json");

    fn wrap(text: &str) -> String {
        format!("{SCHEME}{}", URL_SAFE_NO_PAD.encode(text))
    }

    #[test]
    fn published_links() {
        let vectors: serde_json::Value = serde_json::from_str(VECTORS).unwrap();
        let vectors = vectors.as_array().unwrap();
        assert_eq!(vectors.len(), 4);
        for entry in vectors {
            let (link, want) = (entry["link"].as_str().unwrap(), &entry["fields"]);
            let SsrProfile { name, group, client } = parse(link).unwrap();
            let text = |key: &str| want[key].as_str().unwrap_or_default();
            assert_eq!(client.server.host.to_string(), text("host"));
            assert_eq!(Some(u64::from(client.server.port)), want["port"].as_u64());
            assert_eq!((client.protocol.name(), client.method.name()), (text("protocol"), text("method")));
            assert_eq!((client.obfs.name(), client.password.expose()), (text("obfs"), text("password")));
            assert_eq!(&*client.obfs_param, text("obfsparam"));
            let user = client.user.as_ref().map(|(id, key)| format!("{id}:{}", key.expose()));
            assert_eq!(user.unwrap_or_default(), text("protoparam"));
            assert_eq!(name.as_deref().unwrap_or_default(), text("remarks"));
            assert_eq!(group.as_deref().unwrap_or_default(), text("group"));
        }
        for entry in [&vectors[0], &vectors[1], &vectors[3]] {
            let link = entry["link"].as_str().unwrap();
            assert_eq!(emit(&parse(link).unwrap()).unwrap().as_str(), link, "written as others write it");
        }
    }

    #[test]
    fn odd_links() {
        let b = |text: &str| URL_SAFE_NO_PAD.encode(text);
        let head = format!("h.example:1:auth_chain_a:none:plain:{}", b("p"));
        let of = |query: &str| parse(&wrap(&format!("{head}{query}"))).map(|profile| profile.client);
        let user = |query: &str| of(query).unwrap().user.map(|(id, key)| format!("{id}:{}", key.expose()));
        assert_eq!(user("/?protoparam=1002:bob").as_deref(), Some("1002:bob"), "as it is");
        assert_eq!(user(&format!("?protoparam={}", b("7:k"))).as_deref(), Some("7:k"));
        assert_eq!(
            user(&format!("/?protoparam={}&protoparam={}", b("7:k"), b("8:l"))).as_deref(),
            Some("7:k")
        );
        assert_eq!(user("/?protoparam=abcd"), None, "no id, no user");
        assert_eq!(user("/?remarks=%ff%fe&group"), None, "names that cannot be read are left out");
        assert!(of(&format!("/?protoparam={}", b("7:"))).is_err(), "an empty key");
        let standard = base64::engine::general_purpose::STANDARD.encode(&head);
        assert_eq!(parse(&format!("SSR://{standard}")).unwrap().client, of("").unwrap());
        let compatible = wrap(&head.replace("plain", "http_simple_compatible"));
        assert_eq!(parse(&compatible).unwrap().client.obfs.name(), "http_simple");
        for (text, want) in [
            ("h:1:origin:none:plain", SsrLinkError::Parts),
            ("", SsrLinkError::Parts),
            ("h:0:origin:none:plain:cA", SsrLinkError::Server("no port from 1 to 65535".into())),
            ("h:65536:origin:none:plain:cA", SsrLinkError::Server("no port from 1 to 65535".into())),
            ("h:1:origin:none:plain:####", part("password", "no base64 of UTF-8 text")),
            ("h:1:origin:none:plain:_w", part("password", "no base64 of UTF-8 text")),
            ("h:1:origin:none:plain:", part("password", "empty")),
            ("h/i:1:origin:none:plain:cA", SsrLinkError::Server("no host: h/i".into())),
            ("h:1:zzz:none:plain:cA", SsrLinkError::Name("unknown protocol: zzz".into())),
        ] {
            assert_eq!(parse(&wrap(text)), Err(want), "{text}");
        }
        for (query, is_over_tcp) in [("/?uot=1", true), ("/?uot=0", false), ("", false)] {
            let profile = parse(&wrap(&format!("h:1:origin:none:plain:cA{query}"))).unwrap();
            assert_eq!(profile.client.datagrams_over_tcp, is_over_tcp, "{query}");
            assert_eq!(parse(&emit(&profile).unwrap()).unwrap(), profile);
        }
        assert_eq!(parse("ssr://_____w"), Err(SsrLinkError::Base64));
        assert_eq!(parse("ss://x"), Err(SsrLinkError::Scheme));
        assert_eq!(parse(&format!("ssr://{}", "a".repeat(MAX_LINK))), Err(SsrLinkError::Long));
        let error = parse(&wrap("h:1:auth_simple:none:plain:cA")).unwrap_err().to_string();
        assert!(error.contains("every program has removed it"), "{error}");
    }

    proptest! {
        #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

        #[test]
        fn any_link(text in "(\\[?2001:db8::1\\]?|h)?(:|1|origin|auth_chain_a|none|plain|http_simple|cA|/|\\?|&|obfsparam=|protoparam=|remarks=|NzprZXk|é|=|%|#){0,18}") {
            fuzz_link(text.as_bytes());
        }

        #[test]
        fn passwords_and_names(password in ".{1,20}", name in ".{1,10}", id in any::<u32>()) {
            let password = password.replace(char::REPLACEMENT_CHARACTER, "x");
            let text = format!("[::1]:9:auth_chain_a:rc4-md5:plain:{}", URL_SAFE_NO_PAD.encode(&password));
            let mut profile = parse(&wrap(&text)).unwrap();
            prop_assert_eq!(profile.client.password.expose(), &password);
            profile.name = text_of(&name, MAX_TEXT).ok();
            profile.client.user = Some((id, Secret::new(password)));
            prop_assert_eq!(parse(&emit(&profile).unwrap()), Ok(profile));
        }
    }
}
