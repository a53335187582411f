//! Rules: which outbound a request takes, or that it is refused.
//!
//! Rules are asked in order and the first that matches decides. If none does, the request takes the outbound of its
//! inbound. A [`Matcher`] is a tree: all keys of one table must match, any value of one key is enough.

use std::fmt;
use std::net::IpAddr;
use std::path::PathBuf;
use std::sync::Arc;

use super::Tag;

/// One rule.
#[derive(Debug, Clone)]
pub struct Rule {
    /// The requests that it is about.
    pub matcher: Matcher,
    /// The verdict for them.
    pub verdict: Verdict,
    /// Its place in the configuration.
    pub at: FileLine,
}

/// Two rules are equal if they say the same, wherever they are written.
impl PartialEq for Rule {
    fn eq(&self, other: &Self) -> bool {
        self.matcher == other.matcher && self.verdict == other.verdict
    }
}

/// A line of a file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FileLine {
    /// The file as it was named to us.
    pub file: Arc<str>,
    /// The line, from 1; 0 for the whole file.
    pub line: u32,
    /// The column, from 1, in characters; 0 for the whole line.
    pub column: u32,
}

impl FileLine {
    /// A whole file.
    pub fn file(name: impl Into<Arc<str>>) -> Self {
        Self { file: name.into(), line: 0, column: 0 }
    }
}

/// `file:line`, or the file alone.
impl fmt::Display for FileLine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.file)?;
        if self.line > 0 {
            write!(f, ":{}", self.line)?;
        }
        Ok(())
    }
}

/// The verdict for a request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Verdict {
    /// It takes this outbound.
    Outbound(Tag),
    /// It takes the outbound of its inbound, and later rules are not asked.
    Default,
    /// It is refused.
    Reject(RejectMethod),
    /// Nothing is decided: this many of the following rules are left out, and the rule behind them is asked.
    Pass(u32),
    /// A stream takes this outbound. For a datagram nothing is decided, as with [`Verdict::Pass`].
    Streams {
        /// The outbound.
        outbound: Tag,
        /// Rules that are left out for a datagram.
        pass: u32,
    },
    /// It takes this outbound, a group, unless the member that is chosen at the time passes it on or carries no such
    /// traffic: then nothing is decided, as with [`Verdict::Pass`].
    Ask {
        /// The group.
        outbound: Tag,
        /// Rules that are left out if nothing is decided.
        pass: u32,
    },
    /// The rules are asked once more, from the one at this place in their order on; a few times at most.
    Again {
        /// The place, from 0.
        at: u32,
        /// The mark that the request has from now on, for [`Fact::Mark`]; `None` leaves the one that it has.
        mark: Option<Box<str>>,
    },
}

impl Verdict {
    /// The number of following rules that are left out; `None` if the verdict decides about such traffic. `asked` tells
    /// whether the group of [`Verdict::Ask`] passes it on.
    pub fn passes(&self, network: Network, asked: impl FnOnce(&Tag) -> bool) -> Option<u32> {
        match self {
            Self::Pass(count) => Some(*count),
            Self::Streams { pass, .. } if network == Network::Udp => Some(*pass),
            Self::Ask { outbound, pass } => asked(outbound).then_some(*pass),
            Self::Streams { .. }
            | Self::Outbound(_)
            | Self::Default
            | Self::Reject(_)
            | Self::Again { .. } => None,
        }
    }
}

/// Manner in which a request is refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RejectMethod {
    /// The connection is reset.
    Reset,
    /// The request is read and never answered.
    Drop,
    /// The inbound's protocol says that the request is refused.
    Protocol,
}

impl RejectMethod {
    /// All of them, with their names in `adit.toml`.
    pub const ALL: &'static [(&'static str, Self)] =
        &[("reset", Self::Reset), ("drop", Self::Drop), ("protocol", Self::Protocol)];

    /// The name in `adit.toml`.
    pub fn name(self) -> &'static str {
        match self {
            Self::Reset => "reset",
            Self::Drop => "drop",
            Self::Protocol => "protocol",
        }
    }
}

/// A condition of a rule. A list matches if any of its values does.
///
/// Names are in lower case and without a trailing dot. A target that is an address matches no key about names.
#[derive(Debug, Clone, PartialEq)]
pub enum Matcher {
    /// The name of the target is one of these.
    Domain(Vec<Box<str>>),
    /// The name of the target is one of these or below one of them.
    DomainSuffix(Vec<Box<str>>),
    /// The name of the target holds one of these.
    DomainKeyword(Vec<Box<str>>),
    /// One of these regular expressions is found in the name of the target, in any case.
    DomainRegex(Vec<Box<str>>),
    /// An address of the target is in one of these networks.
    IpCidr(Vec<Cidr>, Resolve),
    /// An address of the target belongs to one of these countries.
    GeoIp(Vec<Country>, Resolve),
    /// The name or an address of the target is in one of these sets.
    Set(Vec<Tag>, Resolve),
    /// The target is a name that was looked up and has no address.
    Unresolved,
    /// The client's address is in one of these networks.
    Source(Vec<Cidr>),
    /// The client's address is in one of these sets.
    SourceSet(Vec<Tag>),
    /// The client's port is in one of these ranges.
    SourcePort(Vec<PortRange>),
    /// The target's port is in one of these ranges.
    Port(Vec<PortRange>),
    /// The request is for this kind of traffic.
    Network(Network),
    /// The request came in here.
    Inbound(Vec<Tag>),
    /// The client authenticated as one of these users.
    User(Vec<Box<str>>),
    /// The protocol that the client speaks to the target is one of these, as far as it is known.
    Protocol(Vec<Box<str>>),
    /// The low bits of an address of the target are those of one of these.
    IpSuffix(Vec<Suffix>, Resolve),
    /// A fact about the client or about the port that it came to.
    Fact(Fact),
    /// All of these match; true if there is none.
    And(Vec<Self>),
    /// One of these matches; false if there is none.
    Or(Vec<Self>),
    /// This does not match.
    Not(Box<Self>),
}

/// Something about a request beside its target, its client's address and its inbound's name. A fact that is not known
/// matches nothing.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Fact {
    /// The target is a name.
    Named,
    /// The low bits of the client's address are those of one of these.
    SourceSuffix(Vec<Suffix>),
    /// The port that the client came to is in one of these ranges.
    InboundPort(Vec<PortRange>),
    /// The protocol by which the client asks is one of these words, in lower case.
    Entry(Vec<Box<str>>),
    /// The file name of the client's program is one of these, in any case.
    ProcessName(Vec<Box<str>>),
    /// The path of the client's program is one of these, in any case.
    ProcessPath(Vec<Box<str>>),
    /// This regular expression is found in the file name of the client's program, in any case.
    ProcessNameRegex(Box<str>),
    /// This regular expression is found in the path of the client's program, in any case.
    ProcessPathRegex(Box<str>),
    /// The user that the client's program runs as is in one of these ranges, both ends included.
    Uid(Vec<UidRange>),
    /// The code point of the client's packets is in one of these ranges; 0 if it is not known.
    Dscp(Vec<PortRange>),
    /// A rule that had the rules asked once more left one of these marks.
    Mark(Vec<Box<str>>),
}

impl Fact {
    /// A word for messages.
    pub fn key(&self) -> &'static str {
        match self {
            Self::Named => "name",
            Self::SourceSuffix(_) => "source suffix",
            Self::InboundPort(_) => "inbound-port",
            Self::Entry(_) => "inbound-type",
            Self::ProcessName(_) => "process",
            Self::ProcessNameRegex(_) => "process-regex",
            Self::ProcessPath(_) => "process-path",
            Self::ProcessPathRegex(_) => "process-path-regex",
            Self::Uid(_) => "uid",
            Self::Dscp(_) => "dscp",
            Self::Mark(_) => "mark",
        }
    }
}

/// Words for the ways by which clients ask, for [`Fact::Entry`].
pub const ENTRIES: [&str; 12] = [
    "http",
    "https",
    "socks4",
    "socks5",
    "snell",
    "shadowsocks",
    "shadowsocksr",
    "redir",
    "tproxy",
    "tunnel",
    "tun",
    "inner",
];

/// Numbers of users, both ends included.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct UidRange {
    /// The first.
    pub first: u32,
    /// The last.
    pub last: u32,
}

/// `1000` or `1000-1999`.
impl fmt::Display for UidRange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { first, last } = self;
        if first == last { write!(f, "{first}") } else { write!(f, "{first}-{last}") }
    }
}

/// When the program of a client on this host is sought, for rules and for the list of connections.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum FindProgram {
    /// Never: rules about programs and their users match nothing.
    Never,
    /// When a rule asks.
    #[default]
    ByRules,
    /// For every request.
    Always,
}

impl FindProgram {
    /// All, by the word of a file.
    pub const ALL: [(&'static str, Self); 3] =
        [("off", Self::Never), ("strict", Self::ByRules), ("always", Self::Always)];

    /// The word of a file.
    pub fn name(self) -> &'static str {
        Self::ALL.iter().find(|(_, known)| *known == self).map_or("strict", |(name, _)| name)
    }
}

/// Addresses of one family whose low bits are those of a given address.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Suffix {
    ip: IpAddr,
    bits: u8,
}

impl Suffix {
    /// The addresses with the `bits` low bits of `ip`; `None` for more bits than the address has.
    pub fn new(ip: IpAddr, bits: u8) -> Option<Self> {
        let ip = ip.to_canonical();
        let most = if ip.is_ipv4() { 32 } else { 128 };
        (bits <= most).then_some(Self { ip, bits })
    }

    /// Whether `ip` is one of them. An IPv4-mapped address is one of IPv4.
    pub fn holds(self, ip: IpAddr) -> bool {
        match (self.ip, ip.to_canonical()) {
            (IpAddr::V4(own), IpAddr::V4(ip)) => {
                let differing = own.to_bits() ^ ip.to_bits();
                differing & !u32::MAX.checked_shl(self.bits.into()).unwrap_or(0) == 0
            }
            (IpAddr::V6(own), IpAddr::V6(ip)) => {
                let differing = own.to_bits() ^ ip.to_bits();
                differing & !u128::MAX.checked_shl(self.bits.into()).unwrap_or(0) == 0
            }
            (IpAddr::V4(_), IpAddr::V6(_)) | (IpAddr::V6(_), IpAddr::V4(_)) => false,
        }
    }
}

/// Whether a key about addresses has the name of a target looked up.
///
/// Addresses that an earlier rule had looked up are judged either way.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Resolve {
    /// The name is looked up.
    #[default]
    Yes,
    /// A name whose addresses are not known does not match.
    No,
}

/// Kind of traffic.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Network {
    /// Streams.
    Tcp,
    /// Datagrams.
    Udp,
}

impl Network {
    /// All of them, with their names in `adit.toml`.
    pub const ALL: &'static [(&'static str, Self)] = &[("tcp", Self::Tcp), ("udp", Self::Udp)];

    /// The name in `adit.toml`.
    pub fn name(self) -> &'static str {
        match self {
            Self::Tcp => "tcp",
            Self::Udp => "udp",
        }
    }
}

/// Ports from the first to the last, both included; `first <= last`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct PortRange {
    /// The first port.
    pub first: u16,
    /// The last port.
    pub last: u16,
}

/// `443` or `1000-2000`.
impl fmt::Display for PortRange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { first, last } = self;
        if first == last { write!(f, "{first}") } else { write!(f, "{first}-{last}") }
    }
}

/// Two letters of ISO 3166-1, in lower case.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Country([u8; 2]);

impl Country {
    /// Reads two letters of any case.
    pub fn parse(text: &str) -> Option<Self> {
        let code: [u8; 2] = text.as_bytes().try_into().ok()?;
        code.iter().all(u8::is_ascii_alphabetic).then(|| Self(code.map(|letter| letter.to_ascii_lowercase())))
    }
}

impl fmt::Display for Country {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}{}", char::from(self.0[0]), char::from(self.0[1]))
    }
}

/// A network: an address whose bits behind the prefix are zero. A network of IPv4-mapped addresses is one of IPv4.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Cidr {
    ip: IpAddr,
    prefix: u8,
}

impl Cidr {
    /// The network of `ip` with this prefix; `None` if the prefix is longer than the address.
    pub fn new(ip: IpAddr, prefix: u8) -> Option<Self> {
        match ip {
            IpAddr::V4(ip) => {
                let host = 32_u32.checked_sub(prefix.into())?;
                let mask = u32::MAX.checked_shl(host).unwrap_or(0);
                Some(Self { ip: IpAddr::V4((ip.to_bits() & mask).into()), prefix })
            }
            IpAddr::V6(ip) => {
                if let (Some(ip), Some(prefix)) = (ip.to_ipv4_mapped(), prefix.checked_sub(96)) {
                    return Self::new(ip.into(), prefix);
                }
                let host = 128_u32.checked_sub(prefix.into())?;
                let mask = u128::MAX.checked_shl(host).unwrap_or(0);
                Some(Self { ip: IpAddr::V6((ip.to_bits() & mask).into()), prefix })
            }
        }
    }

    /// Reads `address` or `address/prefix`.
    pub fn parse(text: &str) -> Option<Self> {
        let Some((ip, prefix)) = text.split_once('/') else {
            let ip: IpAddr = text.parse().ok()?;
            return Self::new(ip, if ip.is_ipv4() { 32 } else { 128 });
        };
        if prefix.is_empty() || !prefix.bytes().all(|digit| digit.is_ascii_digit()) {
            return None;
        }
        Self::new(ip.parse().ok()?, prefix.parse().ok()?)
    }

    /// Whether an address is in it; one of IPv4 that is written as IPv6 counts as IPv4.
    pub fn holds(self, ip: IpAddr) -> bool {
        match (self.range(), ip.to_canonical()) {
            (AddressRange::V4(first, last), IpAddr::V4(ip)) => (first..=last).contains(&ip.to_bits()),
            (AddressRange::V6(first, last), IpAddr::V6(ip)) => (first..=last).contains(&ip.to_bits()),
            (AddressRange::V4(..), IpAddr::V6(_)) | (AddressRange::V6(..), IpAddr::V4(_)) => false,
        }
    }

    /// Its first and last address.
    pub fn range(self) -> AddressRange {
        match self.ip {
            IpAddr::V4(ip) => {
                let host = u32::MAX.checked_shr(self.prefix.into()).unwrap_or(0);
                AddressRange::V4(ip.to_bits(), ip.to_bits() | host)
            }
            IpAddr::V6(ip) => {
                let host = u128::MAX.checked_shr(self.prefix.into()).unwrap_or(0);
                AddressRange::V6(ip.to_bits(), ip.to_bits() | host)
            }
        }
    }
}

/// `address/prefix`, or the address alone where the prefix is as long.
impl fmt::Display for Cidr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { ip, prefix } = self;
        let whole = if ip.is_ipv4() { 32 } else { 128 };
        if *prefix == whole { write!(f, "{ip}") } else { write!(f, "{ip}/{prefix}") }
    }
}

/// Addresses from the first to the last, both included.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AddressRange {
    /// Of IPv4.
    V4(u32, u32),
    /// Of IPv6; never all of them IPv4-mapped.
    V6(u128, u128),
}

/// A file of names or addresses that rules refer to.
#[derive(Debug, Clone)]
pub struct Set {
    /// The name that rules use.
    pub name: Tag,
    /// The file.
    pub path: PathBuf,
    /// Format of its lines.
    pub format: SetFormat,
    /// The server that the file is a copy of, if it is one.
    pub download: Option<Box<super::Download>>,
    /// The lines themselves, in the place of a file; `path` is empty then.
    pub entries: Vec<Box<str>>,
    /// The list of a file that is a database, in lower case: a code of `GeoSite.dat` or `GeoIP.dat`, a country, or the
    /// number of an autonomous system.
    pub list: Option<Box<str>>,
    /// Its place in the configuration.
    pub at: FileLine,
}

/// Two sets are equal if they say the same, wherever they are written.
impl PartialEq for Set {
    fn eq(&self, other: &Self) -> bool {
        self.name == other.name
            && self.path == other.path
            && self.format == other.format
            && self.download == other.download
            && self.entries == other.entries
            && self.list == other.list
    }
}

/// Format of a set's lines.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum SetFormat {
    /// Names or addresses, told apart line by line.
    #[default]
    Any,
    /// Names alone.
    Domains,
    /// Addresses and networks alone.
    Addresses,
    /// Lines of rules about names and addresses, `DOMAIN-SUFFIX,example.com`; those about anything else match nothing.
    Rules,
}

impl SetFormat {
    /// All of them, with their names in `adit.toml`.
    pub const ALL: &'static [(&'static str, Self)] = &[
        ("any", Self::Any),
        ("domains", Self::Domains),
        ("addresses", Self::Addresses),
        ("rules", Self::Rules),
    ];
}

/// A database of countries (`.mmdb`).
#[derive(Debug, Clone)]
pub struct GeoFile {
    /// The file.
    pub path: PathBuf,
    /// The place that names it.
    pub at: FileLine,
}

/// Two are equal if they are one file, wherever it is named.
impl PartialEq for GeoFile {
    fn eq(&self, other: &Self) -> bool {
        self.path == other.path
    }
}

impl Matcher {
    /// Its key in `adit.toml`; for what has none there, a word for messages.
    pub fn key(&self) -> &'static str {
        match self {
            Self::Domain(_) => "domain",
            Self::DomainSuffix(_) => "domain-suffix",
            Self::DomainKeyword(_) => "domain-keyword",
            Self::DomainRegex(_) => "domain-regex",
            Self::IpCidr(..) => "ip-cidr",
            Self::GeoIp(..) => "geoip",
            Self::Set(..) => "set",
            Self::Unresolved => "unresolved",
            Self::Source(_) => "source",
            Self::SourceSet(_) => "source-set",
            Self::SourcePort(_) => "source-port",
            Self::Port(_) => "port",
            Self::Network(_) => "network",
            Self::Inbound(_) => "inbound",
            Self::User(_) => "user",
            Self::Protocol(_) => "protocol",
            Self::IpSuffix(..) => "ip-suffix",
            Self::Fact(fact) => fact.key(),
            Self::And(_) => "and",
            Self::Or(_) => "or",
            Self::Not(_) => "not",
        }
    }

    /// Calls `visit` with this matcher and all within it, outermost first.
    pub fn visit<'a>(&'a self, visit: &mut dyn FnMut(&'a Self)) {
        visit(self);
        match self {
            Self::And(all) | Self::Or(all) => all.iter().for_each(|one| one.visit(visit)),
            Self::Not(one) => one.visit(visit),
            Self::Domain(_)
            | Self::DomainSuffix(_)
            | Self::DomainKeyword(_)
            | Self::DomainRegex(_)
            | Self::IpCidr(..)
            | Self::GeoIp(..)
            | Self::Set(..)
            | Self::Unresolved
            | Self::Source(_)
            | Self::SourceSet(_)
            | Self::SourcePort(_)
            | Self::Port(_)
            | Self::Network(_)
            | Self::Inbound(_)
            | Self::User(_)
            | Self::Protocol(_)
            | Self::IpSuffix(..)
            | Self::Fact(_) => {}
        }
    }
}

/// Largest compiled regular expression, in bytes.
const MAX_REGEX_SIZE: usize = 1 << 20;

/// Steps that a regular expression with look-around or back references may take for one name before it counts as not
/// found: a name has at most 255 bytes, for which sensible expressions take some thousand.
const MAX_STEPS: usize = 100_000;

/// A regular expression with look-around or back references, in any case, with a bound on its time.
///
/// # Errors
/// The reason why it cannot be used.
pub fn backtracking_regex(text: &str) -> Result<fancy_regex::Regex, String> {
    let mut builder = fancy_regex::RegexBuilder::new(text);
    builder.case_insensitive(true).backtrack_limit(MAX_STEPS).delegate_size_limit(MAX_REGEX_SIZE);
    builder.build().map_err(|error| error.to_string())
}

/// Why a text is no regular expression that rules can use; `None` if it is one. Classes and case are those of ASCII.
pub fn regex_problem(text: &str) -> Option<String> {
    let mut builder = regex::bytes::RegexBuilder::new(text);
    let built = builder.unicode(false).case_insensitive(true).size_limit(MAX_REGEX_SIZE).build();
    match built {
        Ok(_) => None,
        Err(regex::Error::CompiledTooBig(_)) => Some("the regular expression is too large".to_owned()),
        Err(error) => {
            // The last line says what is wrong; the lines before quote the expression.
            let text = error.to_string();
            let last = text.lines().last().unwrap_or_default();
            Some(format!("bad regular expression: {}", last.trim().trim_start_matches("error: ")))
        }
    }
}

/// The name of a target as rules compare it: ASCII letters in lower case, without trailing dots.
pub fn normal_name(name: &str) -> std::borrow::Cow<'_, str> {
    let name = name.trim_end_matches('.');
    if name.bytes().any(|byte| byte.is_ascii_uppercase()) {
        name.to_ascii_lowercase().into()
    } else {
        name.into()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn networks() {
        for (text, want) in [
            ("10.1.2.3/8", Some("10.0.0.0/8")),
            ("10.1.2.3", Some("10.1.2.3")),
            ("0.0.0.0/0", Some("0.0.0.0/0")),
            ("::ffff:10.1.2.3/104", Some("10.0.0.0/8")),
            ("2001:db8::1/32", Some("2001:db8::/32")),
            ("::/0", Some("::/0")),
            ("10.0.0.0/33", None),
            ("10.0.0.0/+8", None),
            ("10.0.0.0/", None),
            ("::/129", None),
            ("a/8", None),
        ] {
            assert_eq!(Cidr::parse(text).map(|cidr| cidr.to_string()).as_deref(), want, "{text}");
        }
        assert_eq!(Cidr::parse("::/0").unwrap().range(), AddressRange::V6(0, u128::MAX));
        assert_eq!(Cidr::parse("255.255.255.255").unwrap().range(), AddressRange::V4(u32::MAX, u32::MAX));
    }

    #[test]
    fn countries() {
        assert_eq!(Country::parse("De").map(|code| code.to_string()).as_deref(), Some("de"));
        assert!(["", "d", "deu", "d1", "é"].iter().all(|text| Country::parse(text).is_none()));
    }
}
