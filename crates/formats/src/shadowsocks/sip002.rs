//! SIP002: a server as a link.
//!
//! ```text
//! link     := 'ss://' userinfo '@' host (':' port)? '/'? ('?' query)? ('#' name)?
//!           | 'ss://' base64(method ':' password '@' host ':' port) ('#' name)?         older than SIP002
//! userinfo := base64url(method ':' password)             stream and AEAD methods
//!           | percent(method) ':' percent(password)      2022 methods; read for all
//! query    := 'plugin=' percent(program (';' options)?) ('&' anything)*
//! ```
//!
//! Without a port it is 8388. Base64 is read in both alphabets, with and without padding, and as a whole may be
//! percent-encoded; a `+` never stands for a space. The output is that of `ssurl` of shadowsocks-rust 1.25:
//! every byte but letters and digits of plugin, name and 2022 password is percent-encoded.

use std::fmt::Write as _;

use adit_model::{KeyForm, Plugin, Secret, Transports};
use adit_proto::shadowsocks::Generation;
use adit_proto::wire::{Host, Target};
use base64::Engine as _;
use base64::alphabet;
use base64::engine::{DecodePaddingMode, GeneralPurpose, GeneralPurposeConfig};
use thiserror::Error;
use zeroize::Zeroizing;

use super::{MAX_TEXT, ShadowsocksProfile, key, method};

/// Longest link, in bytes: longer than any QR code.
pub const MAX_LINK: usize = 8192;

/// The port of a link that names none (shadowsocks-rust 1.25).
const DEFAULT_PORT: u16 = 8388;

const BASE64: GeneralPurpose = GeneralPurpose::new(
    &alphabet::URL_SAFE,
    GeneralPurposeConfig::new()
        .with_encode_padding(false)
        .with_decode_padding_mode(DecodePaddingMode::Indifferent)
        .with_decode_allow_trailing_bits(true),
);

/// Why a text is no link. None of it quotes the link, which holds a password.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum Sip002Error {
    /// Another scheme, or none.
    #[error("it does not begin with ss://")]
    Scheme,
    /// Longer than [`MAX_LINK`].
    #[error("longer than 8192 bytes")]
    Long,
    /// Method and password are no base64 of a text, and no plain text either.
    #[error("method and password are neither base64 nor plain text with a `:` between them")]
    UserInfo,
    /// Host or port.
    #[error("host or port: {0}")]
    Server(String),
    /// Unknown, or its name is broken.
    #[error("{0}")]
    Method(String),
    /// It does not fit the method.
    #[error("{0}")]
    Password(String),
}

/// A link cannot say this.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
pub enum Sip002Inexpressible {
    /// The key itself instead of a password.
    #[error("a link has no place for a key without a password")]
    Key,
    /// Arguments, another mode than TCP, or a name with a semicolon.
    #[error("a link has no place for arguments or the mode of a plugin, or for a name with a semicolon")]
    Plugin,
    /// Longer than [`MAX_LINK`].
    #[error("the link would be longer than 8192 bytes")]
    Long,
}

/// Reads a link.
///
/// # Errors
/// [`Sip002Error`] for anything that is none.
pub fn parse(link: &str) -> Result<ShadowsocksProfile, Sip002Error> {
    let link = link.trim();
    if link.len() > MAX_LINK {
        return Err(Sip002Error::Long);
    }
    let scheme = link.get(..5).filter(|scheme| scheme.eq_ignore_ascii_case("ss://"));
    let rest = &link[scheme.ok_or(Sip002Error::Scheme)?.len()..];
    let (rest, name) = rest.split_once('#').unwrap_or((rest, ""));
    let (body, query) = rest.split_once('?').unwrap_or((rest, ""));
    let (method_and_password, server) = match body.rsplit_once('@') {
        Some((info, server)) => (user_info(info)?, server.split('/').next().unwrap_or_default().to_owned()),
        None => legacy(body)?,
    };
    let (method, password) = method_and_password;
    let method = self::method(&method).map_err(|problem| Sip002Error::Method(problem.text))?;
    let key = key(method, password).map_err(|problem| Sip002Error::Password(problem.text))?;
    let name = decode_percent(name);
    Ok(ShadowsocksProfile {
        name: (!name.is_empty()).then(|| name.as_str().into()),
        id: None,
        server: self::server(&server)?,
        key,
        plugin: plugin(query),
    })
}

type MethodAndPassword = (String, Secret);

fn user_info(info: &str) -> Result<MethodAndPassword, Sip002Error> {
    if let Some((method, password)) = info.split_once(':') {
        return Ok((decode_percent(method).to_string(), Secret::new(decode_percent(password).as_str())));
    }
    split(&decode(&decode_percent(info)).ok_or(Sip002Error::UserInfo)?)
}

fn split(text: &str) -> Result<MethodAndPassword, Sip002Error> {
    let (method, password) = text.split_once(':').ok_or(Sip002Error::UserInfo)?;
    Ok((method.to_owned(), Secret::new(password)))
}

/// The last `@` ends the password: hosts have none.
fn legacy(body: &str) -> Result<(MethodAndPassword, String), Sip002Error> {
    let body = decode_percent(body);
    let text = decode(&body).or_else(|| decode(body.trim_end_matches('/'))).ok_or(Sip002Error::UserInfo)?;
    let (info, server) = text.rsplit_once('@').ok_or(Sip002Error::UserInfo)?;
    Ok((split(info)?, server.to_owned()))
}

/// Base64 of a text, in either alphabet.
pub(crate) fn decode(text: &str) -> Option<Zeroizing<String>> {
    let url_safe = Zeroizing::new(text.replace('+', "-").replace('/', "_"));
    let bytes = BASE64.decode(url_safe.as_bytes()).ok()?;
    String::from_utf8(bytes).ok().map(Zeroizing::new)
}

fn server(text: &str) -> Result<Target, Sip002Error> {
    let is_whole = text.is_empty() || text.ends_with(']') || !text.contains(':');
    let server = if is_whole { Target::new(text.as_bytes(), DEFAULT_PORT) } else { text.parse() };
    match server {
        Ok(server) if server.port == 0 => Err(Sip002Error::Server("port 0 cannot be dialled".to_owned())),
        Ok(server) => Ok(server),
        Err(error) => Err(Sip002Error::Server(error.to_string())),
    }
}

fn plugin(query: &str) -> Option<Plugin> {
    let mut pairs = query.split('&').filter_map(|pair| pair.split_once('='));
    let (_, plugin) = pairs.find(|(key, _)| *key == "plugin")?;
    let plugin = decode_percent(plugin);
    let (program, options) = plugin.split_once(';').unwrap_or((&plugin, ""));
    (!program.is_empty()).then(|| Plugin {
        program: program.into(),
        options: options.into(),
        args: Vec::new(),
        transports: Transports::Tcp,
    })
}

/// `%XX` as the byte; what is no such thing stays, and what is no UTF-8 then becomes U+FFFD.
pub(crate) fn decode_percent(text: &str) -> Zeroizing<String> {
    let mut bytes = Zeroizing::new(Vec::with_capacity(text.len()));
    let mut rest = text.as_bytes();
    while let Some((first, tail)) = rest.split_first() {
        let digits = tail.first_chunk::<2>().filter(|_| *first == b'%');
        let digits = digits.and_then(|digits| std::str::from_utf8(digits).ok());
        let byte = digits.filter(|d| !d.starts_with('+')).and_then(|d| u8::from_str_radix(d, 16).ok());
        bytes.push(byte.unwrap_or(*first));
        rest = if byte.is_some() { &tail[2..] } else { tail };
    }
    Zeroizing::new(String::from_utf8_lossy(&bytes).into_owned())
}

/// Writes a link; with the name, which chat programs show.
///
/// # Errors
/// [`Sip002Inexpressible`].
pub fn emit(profile: &ShadowsocksProfile) -> Result<Zeroizing<String>, Sip002Inexpressible> {
    if profile.key.form() != KeyForm::Password {
        return Err(Sip002Inexpressible::Key);
    }
    let (method, password) = (profile.key.method(), profile.key.text().expose());
    // Room for the longest, so that no copy of the password is left behind.
    let mut link = Zeroizing::new(String::with_capacity(4 * MAX_TEXT));
    link.push_str("ss://");
    if method.generation() == Generation::Aead2022 {
        link.push_str(method.name());
        link.push(':');
        encode_percent(password, &mut link);
    } else {
        let info = Zeroizing::new(format!("{}:{password}", method.name()));
        BASE64.encode_string(info.as_bytes(), &mut link);
    }
    write!(link, "@{}", profile.server).expect("a string takes any text");
    if let Some(plugin) = &profile.plugin {
        emit_plugin(plugin, &mut link)?;
    }
    if let Some(name) = &profile.name {
        link.push('#');
        encode_percent(name, &mut link);
    }
    if link.len() > MAX_LINK { Err(Sip002Inexpressible::Long) } else { Ok(link) }
}

fn emit_plugin(plugin: &Plugin, link: &mut String) -> Result<(), Sip002Inexpressible> {
    let plain = plugin.args.is_empty() && plugin.transports == Transports::Tcp;
    if !plain || plugin.program.contains(';') || plugin.program.is_empty() {
        return Err(Sip002Inexpressible::Plugin);
    }
    link.push_str("/?plugin=");
    encode_percent(&plugin.program, link);
    if !plugin.options.is_empty() {
        link.push_str("%3B");
        encode_percent(&plugin.options, link);
    }
    Ok(())
}

/// The form older than SIP002, which `ssurl` puts into QR codes: no plugin, no name.
///
/// # Errors
/// [`Sip002Inexpressible`].
pub fn emit_legacy(profile: &ShadowsocksProfile) -> Result<Zeroizing<String>, Sip002Inexpressible> {
    if profile.key.form() != KeyForm::Password {
        return Err(Sip002Inexpressible::Key);
    }
    if profile.plugin.is_some() {
        return Err(Sip002Inexpressible::Plugin);
    }
    let ShadowsocksProfile { key, server, .. } = profile;
    let inside = Zeroizing::new(format!("{}:{}@{server}", key.method().name(), key.text().expose()));
    let mut link = Zeroizing::new(String::with_capacity(8 + 2 * inside.len()));
    link.push_str("ss://");
    BASE64.encode_string(inside.as_bytes(), &mut link);
    if link.len() > MAX_LINK { Err(Sip002Inexpressible::Long) } else { Ok(link) }
}

fn encode_percent(text: &str, out: &mut String) {
    for byte in text.bytes() {
        if byte.is_ascii_alphanumeric() {
            out.push(char::from(byte));
        } else {
            write!(out, "%{byte:02X}").expect("a string takes any text");
        }
    }
}

/// Fuzz target: what is read can be written, and is then read as the same.
#[doc(hidden)]
pub fn fuzz_link(data: &[u8]) {
    let Ok(profile) = parse(&String::from_utf8_lossy(data)) else { return };
    assert_ne!(profile.server.port, 0);
    if let Host::Name(name) = &profile.server.host
        && name.contains([':', '/', '@', '?', '#'])
    {
        // Only base64 can hide such a host, and no plain link can hold it.
        return;
    }
    match emit(&profile) {
        Ok(link) => assert_eq!(parse(&link), Ok(profile)),
        Err(error) => assert_eq!(error, Sip002Inexpressible::Long),
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const VECTORS: &str = include_str!("../../../../testdata/shadowsocks/control-plane.json");

    #[test]
    fn recorded_links() {
        let vectors: serde_json::Value = serde_json::from_str(VECTORS).unwrap();
        for entry in vectors["sip002_decoded_by_ssurl_1_25_0"].as_array().unwrap() {
            let (link, want) = (entry[0].as_str().unwrap(), &entry[1]);
            let profile = match parse(link) {
                Ok(profile) => profile,
                Err(error) => panic!("{link}: {error}"),
            };
            if want.get("error").is_some() {
                assert_eq!(profile.key.method().name(), "bf-cfb", "adit has it");
                continue;
            }
            let text = |key: &str| want[key].as_str();
            assert_eq!(profile.server.host.to_string(), text("server").unwrap(), "{link}");
            assert_eq!(Some(u64::from(profile.server.port)), want["server_port"].as_u64());
            assert_eq!(profile.key.method().name(), text("method").unwrap());
            assert_eq!(profile.key.text().expose(), text("password").unwrap());
            let plugin = profile.plugin.as_ref();
            assert_eq!(plugin.map(|plugin| &*plugin.program), text("plugin"));
            assert_eq!(plugin.map(|plugin| &*plugin.options), text("plugin_opts"));
            if !link.ends_with("#old") {
                assert_eq!(profile.name.as_deref(), text("remarks"), "ssurl loses the name of a legacy link");
            }
        }
    }

    #[test]
    fn a_recorded_link_is_written_alike() {
        let vectors: serde_json::Value = serde_json::from_str(VECTORS).unwrap();
        let link = vectors["sip002_encoded_by_ssurl_1_25_0"]["url"].as_str().unwrap();
        assert_eq!(emit(&parse(link).unwrap()).unwrap().as_str(), link);
    }

    #[test]
    fn odd_links() {
        for (link, want) in [
            ("SS://YWVzLTEyOC1nY206dGVzdA==@h:1", "aes-128-gcm test h:1"),
            ("ss://YWVzLTEyOC1nY206dGVzdA%3D%3D@h:1", "aes-128-gcm test h:1"),
            ("ss://none:@[::1]", "none  [::1]:8388"),
            ("ss://aes-128-gcm:a:b@c@h:1/?x#y", "aes-128-gcm a:b@c h:1"),
            // aes-128-gcm:a@b/c?@h:1, in both alphabets
            ("ss://YWVzLTEyOC1nY206YUBiL2M/QGg6MQ", "aes-128-gcm a@b/c? h:1"),
            ("ss://YWVzLTEyOC1nY206YUBiL2M_QGg6MQ==#n", "aes-128-gcm a@b/c? h:1"),
            ("http://h", "Scheme"),
            ("ss://YWVzLTEyOC1nY20@h:1", "UserInfo"),
            ("ss://####", "UserInfo"),
            ("ss://zzz:p@h:1", "Method(\"unknown method: zzz\")"),
            ("ss://2022-blake3-aes-128-gcm:hunter2@h:1", "Password(\"key 1 is not base64\")"),
            ("ss://aes-128-gcm:hunter2@h:0", "Server(\"port 0 cannot be dialled\")"),
            ("ss://aes-128-gcm:hunter2@h:99999", "Server(\"bad port: 99999\")"),
            ("ss://aes-128-gcm:hunter2@", "Server(\"host is empty\")"),
        ] {
            let found = match parse(link) {
                Ok(ShadowsocksProfile { key, server, .. }) => {
                    format!("{} {} {server}", key.method(), key.text().expose())
                }
                Err(error) => {
                    assert!(!error.to_string().contains("hunter2"));
                    format!("{error:?}")
                }
            };
            assert_eq!(found, want, "{link}");
        }
        assert_eq!(parse(&format!("ss://{}", "a".repeat(MAX_LINK))), Err(Sip002Error::Long));
    }

    fn profile(method: &str, password: &str) -> ShadowsocksProfile {
        let key = key(method.parse().unwrap(), Secret::new(password)).unwrap();
        ShadowsocksProfile { name: None, id: None, server: "h:1".parse().unwrap(), key, plugin: None }
    }

    proptest! {
        #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

        #[test]
        fn any_link(text in "(ss://)?(YWVzLTEyOC1nY206dGVzdA|none:|aes-128-gcm:|@|h:1|%|[A-Za-z0-9+/=:@%?#;é]|/\\?plugin=a%3B|#){0,9}") {
            fuzz_link(text.as_bytes());
        }

        #[test]
        fn passwords_and_names(password in ".{1,20}", name in ".{1,10}", options in ".{0,10}") {
            let password = password.replace(char::REPLACEMENT_CHARACTER, "x");
            let mut profile = profile("aes-128-gcm", &password);
            profile.name = Some(name.into());
            let legacy = emit_legacy(&profile).unwrap();
            prop_assert_eq!(parse(&legacy).unwrap().key, profile.key.clone());
            profile.plugin = Some(Plugin {
                program: "p".into(),
                options: options.into(),
                args: Vec::new(),
                transports: Transports::Tcp,
            });
            prop_assert_eq!(parse(&emit(&profile).unwrap()), Ok(profile));
        }
    }
}
