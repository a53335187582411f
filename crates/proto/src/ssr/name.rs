//! Names of methods, protocols and obfs.

use std::fmt;
use std::str::FromStr;

use thiserror::Error;

use crate::crypto::stream::{BlockCipher, BlockMode, StreamAlgorithm};

/// A name that cannot be used.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum NameError {
    /// No ShadowsocksR program has it.
    #[error("unknown {kind}: {name}")]
    Unknown {
        /// "method", "protocol" or "obfs".
        kind: &'static str,
        /// The name as it was given.
        name: Box<str>,
    },
    /// Some program has it, but nothing is left that it could be checked against.
    #[error("{kind} {name} is not supported: {why}")]
    NotSpoken {
        /// "method", "protocol" or "obfs".
        kind: &'static str,
        /// The name as it was given.
        name: Box<str>,
        /// The reason, and the name to use instead.
        why: &'static str,
    },
}

/// The cipher of the stream.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum SsrMethod {
    /// Not at all. The protocol still authenticates under a key of 16 bytes.
    None,
    /// By a stream cipher.
    Stream(StreamAlgorithm),
}

const fn block(cipher: BlockCipher, mode: BlockMode) -> SsrMethod {
    SsrMethod::Stream(StreamAlgorithm::Block(cipher, mode))
}

/// Every method; the first of several names is the one that is written.
const METHODS: &[(&str, SsrMethod)] = {
    use BlockCipher::{Aes128, Aes192, Aes256, Camellia128, Camellia192, Camellia256};
    use BlockMode::{Cfb, Cfb1, Cfb8, Ctr, Ofb};
    use SsrMethod::Stream;
    &[
        ("none", SsrMethod::None),
        ("dummy", SsrMethod::None),
        ("table", Stream(StreamAlgorithm::Table)),
        ("rc4", Stream(StreamAlgorithm::Rc4)),
        ("rc4-md5", Stream(StreamAlgorithm::Rc4Md5)),
        ("rc4-md5-6", Stream(StreamAlgorithm::Rc4Md5Short)),
        ("aes-128-cfb", block(Aes128, Cfb)),
        ("aes-192-cfb", block(Aes192, Cfb)),
        ("aes-256-cfb", block(Aes256, Cfb)),
        ("aes-128-cfb1", block(Aes128, Cfb1)),
        ("aes-192-cfb1", block(Aes192, Cfb1)),
        ("aes-256-cfb1", block(Aes256, Cfb1)),
        ("aes-128-cfb8", block(Aes128, Cfb8)),
        ("aes-192-cfb8", block(Aes192, Cfb8)),
        ("aes-256-cfb8", block(Aes256, Cfb8)),
        ("aes-128-ctr", block(Aes128, Ctr)),
        ("aes-192-ctr", block(Aes192, Ctr)),
        ("aes-256-ctr", block(Aes256, Ctr)),
        ("aes-128-ofb", block(Aes128, Ofb)),
        ("aes-192-ofb", block(Aes192, Ofb)),
        ("aes-256-ofb", block(Aes256, Ofb)),
        ("camellia-128-cfb", block(Camellia128, Cfb)),
        ("camellia-192-cfb", block(Camellia192, Cfb)),
        ("camellia-256-cfb", block(Camellia256, Cfb)),
        ("bf-cfb", Stream(StreamAlgorithm::BlowfishCfb)),
        ("cast5-cfb", Stream(StreamAlgorithm::Cast5Cfb)),
        ("des-cfb", Stream(StreamAlgorithm::DesCfb)),
        ("rc2-cfb", Stream(StreamAlgorithm::Rc2Cfb)),
        ("seed-cfb", Stream(StreamAlgorithm::SeedCfb)),
        ("salsa20", Stream(StreamAlgorithm::Salsa20)),
        ("xsalsa20", Stream(StreamAlgorithm::Xsalsa20)),
        ("chacha20", Stream(StreamAlgorithm::Chacha20)),
        ("chacha20-ietf", Stream(StreamAlgorithm::Chacha20Ietf)),
        ("xchacha20", Stream(StreamAlgorithm::Xchacha20)),
    ]
};

impl SsrMethod {
    /// Every method, once.
    pub fn all() -> impl Iterator<Item = Self> {
        METHODS.iter().filter(|(name, _)| *name != "dummy").map(|(_, method)| *method)
    }

    /// Length of the key in bytes: what plugins authenticate with. Never 0.
    pub fn key_len(self) -> usize {
        match self {
            // The cipher takes no key, the plugins one of 16 bytes all the same.
            Self::None | Self::Stream(StreamAlgorithm::Table) => 16,
            Self::Stream(algorithm) => algorithm.key_len(),
        }
    }

    /// Length of the IV in bytes, 24 at most.
    pub fn iv_len(self) -> usize {
        match self {
            Self::None => 0,
            Self::Stream(algorithm) => algorithm.iv_len(),
        }
    }

    /// Whether every connection repeats the same keystream: to be refused unless somebody insists.
    pub fn repeats_keystream(self) -> bool {
        matches!(self, Self::Stream(StreamAlgorithm::Table | StreamAlgorithm::Rc4))
    }
}

/// The framing and authentication of the stream inside the cipher.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum SsrProtocol {
    /// `origin`, `plain`: not at all.
    Origin,
    /// `verify_deflate`: compressed pieces.
    VerifyDeflate,
    /// `verify_simple`: padded pieces with a CRC-32.
    VerifySimple,
    /// `verify_sha1`: the one-time authentication of old Shadowsocks, client to server only.
    VerifySha1,
    /// `auth_sha1`
    AuthSha1,
    /// `auth_sha1_v2`
    AuthSha1V2,
    /// `auth_sha1_v4`
    AuthSha1V4,
    /// `auth_aes128`: the first form, of version 3.1.2 only.
    AuthAes128,
    /// `auth_aes128_md5`
    AuthAes128Md5,
    /// `auth_aes128_sha1`
    AuthAes128Sha1,
    /// `auth_aes128_fast`: SipHash-1-3 in place of HMAC.
    AuthAes128Fast,
    /// `auth_chain_a` to `auth_chain_f`.
    AuthChain(Chain),
}

/// Rule for the lengths of the paddings of `auth_chain_*`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[expect(missing_docs, reason = "the letter is the name")]
pub enum Chain {
    A,
    B,
    C,
    D,
    E,
    F,
}

const PROTOCOLS: &[(&str, SsrProtocol)] = &[
    ("origin", SsrProtocol::Origin),
    ("plain", SsrProtocol::Origin),
    ("verify_deflate", SsrProtocol::VerifyDeflate),
    ("verify_simple", SsrProtocol::VerifySimple),
    ("verify_sha1", SsrProtocol::VerifySha1),
    ("auth_sha1", SsrProtocol::AuthSha1),
    ("auth_sha1_v2", SsrProtocol::AuthSha1V2),
    ("auth_sha1_v4", SsrProtocol::AuthSha1V4),
    ("auth_aes128", SsrProtocol::AuthAes128),
    ("auth_aes128_md5", SsrProtocol::AuthAes128Md5),
    ("auth_aes128_sha1", SsrProtocol::AuthAes128Sha1),
    ("auth_aes128_fast", SsrProtocol::AuthAes128Fast),
    ("auth_chain_a", SsrProtocol::AuthChain(Chain::A)),
    ("auth_chain_b", SsrProtocol::AuthChain(Chain::B)),
    ("auth_chain_c", SsrProtocol::AuthChain(Chain::C)),
    ("auth_chain_d", SsrProtocol::AuthChain(Chain::D)),
    ("auth_chain_e", SsrProtocol::AuthChain(Chain::E)),
    ("auth_chain_f", SsrProtocol::AuthChain(Chain::F)),
];

impl SsrProtocol {
    /// Every protocol, once.
    pub fn all() -> impl Iterator<Item = Self> {
        PROTOCOLS.iter().filter(|(name, _)| *name != "plain").map(|(_, protocol)| *protocol)
    }

    /// Bytes that it adds to a packet, as `auth_chain_*` counts them.
    pub fn overhead(self) -> u16 {
        match self {
            Self::AuthSha1V4 => 7,
            Self::AuthAes128Md5 | Self::AuthAes128Sha1 | Self::AuthAes128Fast => 9,
            Self::AuthChain(_) => 4,
            Self::Origin | Self::VerifyDeflate | Self::VerifySimple | Self::VerifySha1 => 0,
            Self::AuthSha1 | Self::AuthSha1V2 | Self::AuthAes128 => 0,
        }
    }

    /// Whether a server can tell users apart by id.
    pub fn has_users(self) -> bool {
        matches!(self, Self::AuthAes128Md5 | Self::AuthAes128Sha1 | Self::AuthAes128Fast | Self::AuthChain(_))
    }

    /// Whether a server's name may end in `_compatible`, so that clients with `origin` are served too.
    pub fn can_be_compatible(self) -> bool {
        matches!(self, Self::VerifySha1 | Self::AuthSha1 | Self::AuthSha1V2 | Self::AuthSha1V4)
    }

    /// A name as servers write it, perhaps with `_compatible` at its end: the protocol, and whether clients with
    /// `origin` are served too.
    ///
    /// # Errors
    /// [`NameError`], also for `_compatible` where no server has it.
    pub fn parse_server(text: &str) -> Result<(Self, bool), NameError> {
        parse_server(text, Self::can_be_compatible, "protocol")
    }
}

/// The shape of the stream on its way.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Obfs {
    /// `plain`, `origin`: as it is.
    Plain,
    /// `http_simple`: a GET request whose path holds the first bytes.
    HttpSimple,
    /// `http_post`: a POST request.
    HttpPost,
    /// `http_mix`: one of both.
    HttpMix,
    /// `random_head`: some random bytes first, in both directions.
    RandomHead,
    /// `tls1.2_ticket_auth`: a session resumed by ticket.
    TlsTicketAuth,
    /// `tls1.2_ticket_fastauth`: the same, without waiting for the server.
    TlsTicketFastauth,
    /// `go_quiet`: GoQuiet, whose layers are those of [`crate::goquiet`].
    GoQuiet,
}

const OBFS: &[(&str, Obfs)] = &[
    ("plain", Obfs::Plain),
    ("origin", Obfs::Plain),
    ("http_simple", Obfs::HttpSimple),
    ("http_post", Obfs::HttpPost),
    ("http_mix", Obfs::HttpMix),
    ("random_head", Obfs::RandomHead),
    ("tls1.2_ticket_auth", Obfs::TlsTicketAuth),
    ("tls1.2_ticket_fastauth", Obfs::TlsTicketFastauth),
    ("go_quiet", Obfs::GoQuiet),
];

impl Obfs {
    /// Every obfs, once.
    pub fn all() -> impl Iterator<Item = Self> {
        OBFS.iter().filter(|(name, _)| *name != "origin").map(|(_, obfs)| *obfs)
    }

    /// Bytes that it adds to a packet, as `auth_chain_*` counts them.
    pub fn overhead(self) -> u16 {
        match self {
            Self::TlsTicketAuth | Self::TlsTicketFastauth | Self::GoQuiet => 5,
            Self::Plain | Self::HttpSimple | Self::HttpPost | Self::HttpMix | Self::RandomHead => 0,
        }
    }

    /// Whether a server's name may end in `_compatible`, so that clients with `plain` are served too.
    pub fn can_be_compatible(self) -> bool {
        !matches!(self, Self::Plain | Self::GoQuiet)
    }

    /// A name as servers write it, perhaps with `_compatible` at its end: the obfs, and whether clients with `plain`
    /// are served too.
    ///
    /// # Errors
    /// [`NameError`], also for `_compatible` where no server has it.
    pub fn parse_server(text: &str) -> Result<(Self, bool), NameError> {
        parse_server(text, Self::can_be_compatible, "obfs")
    }
}

fn parse_server<T: FromStr<Err = NameError> + Copy>(
    text: &str,
    allowed: impl Fn(T) -> bool,
    kind: &'static str,
) -> Result<(T, bool), NameError> {
    match text.strip_suffix("_compatible") {
        None => Ok((text.parse()?, false)),
        Some(name) => match name.parse() {
            Ok(parsed) if allowed(parsed) => Ok((parsed, true)),
            Err(error @ NameError::NotSpoken { .. }) => Err(error),
            Ok(_) | Err(NameError::Unknown { .. }) => Err(NameError::Unknown { kind, name: text.into() }),
        },
    }
}

/// Names of some program that nothing is left to check against, and what to use instead.
const NOT_SPOKEN: &[(&str, &str, &str)] = &[
    (
        "method",
        "idea-cfb",
        "no program at hand offers it, so it cannot be checked; use another method on both ends, for instance aes-256-ctr",
    ),
    (
        "protocol",
        "auth_simple",
        "every program has removed it; use auth_aes128_md5 or auth_chain_a on both ends",
    ),
    ("obfs", "tls_simple", "its authors removed it in 2016; use tls1.2_ticket_auth on both ends"),
];

macro_rules! named {
    ($type:ident, $table:ident, $kind:literal) => {
        impl $type {
            /// The name, as clients and links write it.
            pub fn name(self) -> &'static str {
                $table.iter().find(|(_, it)| *it == self).expect("every value has a name").0
            }
        }

        /// Any case.
        impl FromStr for $type {
            type Err = NameError;

            fn from_str(text: &str) -> Result<Self, NameError> {
                if let Some((_, found)) = $table.iter().find(|(name, _)| name.eq_ignore_ascii_case(text)) {
                    return Ok(*found);
                }
                let (kind, name) = ($kind, text.into());
                let dead =
                    |(its, dead, _): &&(&str, &str, &str)| *its == kind && dead.eq_ignore_ascii_case(text);
                match NOT_SPOKEN.iter().find(dead) {
                    Some((_, _, why)) => Err(NameError::NotSpoken { kind, name, why }),
                    None => Err(NameError::Unknown { kind, name }),
                }
            }
        }

        impl fmt::Display for $type {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(self.name())
            }
        }
    };
}

named!(SsrMethod, METHODS, "method");
named!(SsrProtocol, PROTOCOLS, "protocol");
named!(Obfs, OBFS, "obfs");

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_go_both_ways() {
        for method in SsrMethod::all() {
            assert_eq!(method.name().parse(), Ok(method));
            assert!(method.iv_len() <= 24 && method.key_len() >= 8, "{method}");
        }
        for protocol in SsrProtocol::all() {
            assert_eq!(protocol.name().to_uppercase().parse(), Ok(protocol));
        }
        for obfs in Obfs::all() {
            assert_eq!(obfs.name().parse(), Ok(obfs));
        }
        assert_eq!((SsrMethod::all().count(), SsrProtocol::all().count(), Obfs::all().count()), (33, 17, 8));
        assert_eq!("plain".parse(), Ok(SsrProtocol::Origin));
        assert_eq!("origin".parse(), Ok(Obfs::Plain));
        assert_eq!("dummy".parse(), Ok(SsrMethod::None));
    }

    #[test]
    fn names_of_servers() {
        assert_eq!(SsrProtocol::parse_server("auth_sha1_v4_compatible"), Ok((SsrProtocol::AuthSha1V4, true)));
        assert_eq!(SsrProtocol::parse_server("auth_chain_a"), Ok((SsrProtocol::AuthChain(Chain::A), false)));
        assert!(SsrProtocol::parse_server("auth_aes128_md5_compatible").is_err());
        assert_eq!(Obfs::parse_server("tls1.2_ticket_auth_compatible"), Ok((Obfs::TlsTicketAuth, true)));
        assert!(Obfs::parse_server("plain_compatible").is_err());
    }

    #[test]
    fn dead_names_say_why() {
        let error = |result: Result<(), NameError>| result.unwrap_err().to_string();
        for text in [
            error("idea-cfb".parse::<SsrMethod>().map(drop)),
            error(SsrProtocol::parse_server("auth_simple_compatible").map(drop)),
            error("tls_simple".parse::<Obfs>().map(drop)),
        ] {
            assert!(text.contains("is not supported: ") && text.contains("use "), "{text}");
        }
        assert_eq!(error("auth_chain_z".parse::<SsrProtocol>().map(drop)), "unknown protocol: auth_chain_z");
    }
}
