//! Access control files of shadowsocks-libev and shadowsocks-rust.
//!
//! ```text
//! # comment
//! [bypass_all]            or [reject_all]: what no rule names is direct, or refused
//! [proxy_all]             or [accept_all]: it is proxied, or accepted (the default)
//! [bypass_list]           or [black_list]: rules below are direct, or refused (the list at the start)
//! [proxy_list]            or [white_list]: rules below are proxied, or accepted
//! [outbound_block_list] [outbound_allow_list] [outbound_block_all] [outbound_allow_all]
//!                         the same four for the targets of a server
//! 10.0.0.0/8              a network
//! 2001:db8::1             an address
//! ||example.com           a name and all below it
//! |example.com            this name alone
//! (^|\.)example\.com$     anything else: a regular expression on the name, in any case, found anywhere in it
//! ```
//!
//! shadowsocks-rust has comments on lines of their own alone; shadowsocks-libev ends every line at a `#`. Lines that
//! hold other characters than ASCII are skipped (shadowsocks-rust 1.25), with a warning here.
//!
//! Of addresses the bypass list is asked first; of names too in shadowsocks-libev, the proxy list in shadowsocks-rust. Regular expressions that say no more than
//! "this name and below it" are kept as names: the expression in the example costs what `||example.com` costs.

use std::net::IpAddr;

use adit_model::access::{Acl, AclList, normal};
use adit_model::diagnostic::{Diagnostic, Diagnostics};
use regex_lite::RegexBuilder;

use super::ProgramFamily;
use crate::read::source::Source;

/// Longest file, in bytes: all networks of a large country and 200,000 names.
pub const MAX_LEN: usize = 16 << 20;

/// Most regular expressions in one list; all of them are tried on every name.
const MAX_REGEXES: usize = 10_000;

/// Largest compiled regular expression, in bytes.
const MAX_REGEX_SIZE: usize = 64 << 10;

/// shadowsocks-libev 3.3.5 reads no line of this length or more.
const LIBEV_LINE: usize = 255;

/// Reads a file's text; `file` is its name in messages.
///
/// # Errors
/// Everything that is wrong with it.
pub fn parse(family: ProgramFamily, file: &str, text: &str) -> Result<(Acl, Diagnostics), Diagnostics> {
    let source = Source::new(file, text);
    if text.len() > MAX_LEN {
        let problem = format!("longer than {} MiB", MAX_LEN >> 20);
        return Err(Diagnostic::error(&source.file, "", problem).into());
    }
    let mut reader = Reader {
        family,
        source: &source,
        acl: Acl {
            bypass_first: family == ProgramFamily::Libev,
            proxies_unknown: family == ProgramFamily::Libev,
            ..Acl::default()
        },
        list: Name::Bypass,
        found: Diagnostics::new(),
    };
    let mut at = 0;
    for line in text.split('\n') {
        reader.line(line, at);
        at += line.len() + 1;
    }
    let Reader { mut acl, found, .. } = reader;
    if found.has_errors() {
        return Err(found);
    }
    for list in [&mut acl.bypass, &mut acl.proxy, &mut acl.block, &mut acl.allow] {
        list.finish();
    }
    Ok((acl, found))
}

fn list(acl: &mut Acl, name: Name) -> &mut AclList {
    match name {
        Name::Bypass => &mut acl.bypass,
        Name::Proxy => &mut acl.proxy,
        Name::Block => &mut acl.block,
        Name::Allow => &mut acl.allow,
    }
}

fn add_network(list: &mut AclList, network: Network) {
    match network {
        Network::V4(first, last) => list.v4.0.push((first, last)),
        Network::V6(first, last) => list.v6.0.push((first, last)),
    }
}

#[derive(Clone, Copy)]
enum Name {
    Bypass,
    Proxy,
    Block,
    Allow,
}

/// First and last address.
enum Network {
    V4(u32, u32),
    V6(u128, u128),
}

/// An address, or an address and the length of its prefix; bits behind the prefix do not matter.
fn network(text: &str) -> Option<Network> {
    let (ip, prefix) = match text.split_once('/') {
        Some((ip, prefix)) if !prefix.starts_with('+') => (ip, Some(prefix.parse::<u32>().ok()?)),
        Some(_) => return None,
        None => (text, None),
    };
    match ip.parse::<IpAddr>().ok()? {
        IpAddr::V4(ip) => {
            let host = 32_u32.checked_sub(prefix.unwrap_or(32))?;
            let mask = u32::MAX.checked_shl(host).unwrap_or(0);
            Some(Network::V4(ip.to_bits() & mask, ip.to_bits() | !mask))
        }
        IpAddr::V6(ip) => {
            let host = 128_u32.checked_sub(prefix.unwrap_or(128))?;
            let mask = u128::MAX.checked_shl(host).unwrap_or(0);
            Some(canonical(ip.to_bits() & mask, ip.to_bits() | !mask))
        }
    }
}

/// A network of IPv4-mapped addresses is one of IPv4 addresses.
fn canonical(first: u128, last: u128) -> Network {
    let v4 = |bits: u128| std::net::Ipv6Addr::from_bits(bits).to_ipv4_mapped();
    match (v4(first), v4(last)) {
        (Some(first), Some(last)) => Network::V4(first.to_bits(), last.to_bits()),
        _ => Network::V6(first, last),
    }
}

/// The meaning of a regular expression that is only a name or a suffix.
enum Plain {
    Exact(String),
    Tree(String),
}

/// `^name$`, `(^|\.)name$`, `(?:^|\.)name$`, `\.name$`, `^.*\.name$` and `^.+\.name$`.
fn plain(family: ProgramFamily, regex: &str) -> Option<Plain> {
    let body = regex.strip_suffix('$')?;
    let strip = |prefixes: &[&str]| prefixes.iter().find_map(|prefix| body.strip_prefix(prefix));
    if let Some(name) = strip(&[r"(^|\.)", r"(?:^|\.)"]) {
        return literal(name).map(Plain::Tree);
    }
    if let Some(name) = strip(&[r"\.", r"^.*\.", r"^.+\."]) {
        // shadowsocks-rust 1.25 lets these stand for the name itself too.
        let dot = if family == ProgramFamily::Rust { "" } else { "." };
        return literal(name).map(|name| Plain::Tree(format!("{dot}{name}")));
    }
    literal(body.strip_prefix('^')?).map(Plain::Exact)
}

/// A name whose dots are escaped.
fn literal(regex: &str) -> Option<String> {
    let labels: Vec<&str> = regex.split(r"\.").collect();
    let is_label = |label: &&str| {
        !label.is_empty() && label.bytes().all(|b| b.is_ascii_alphanumeric() || matches!(b, b'-' | b'_'))
    };
    labels.iter().all(is_label).then(|| labels.join(".").to_ascii_lowercase())
}

struct Reader<'a> {
    family: ProgramFamily,
    source: &'a Source<'a>,
    acl: Acl,
    list: Name,
    found: Diagnostics,
}

impl Reader<'_> {
    fn line(&mut self, whole: &str, at: usize) {
        let line = match self.family {
            ProgramFamily::Libev => whole.split('#').next().unwrap_or_default(),
            ProgramFamily::Rust if whole.starts_with('#') => "",
            ProgramFamily::Rust => whole,
        };
        let line = line.trim();
        let at = at + (whole.len() - whole.trim_start().len());
        if line.is_empty() {
            return;
        }
        if self.family == ProgramFamily::Libev && whole.len() >= LIBEV_LINE {
            return self.warning(at, "lines of 255 characters or more have no effect");
        }
        if !line.is_ascii() {
            return self.warning(at, "holds characters other than ASCII, so it has no effect");
        }
        if self.header(line) {
            return;
        }
        if line.starts_with('[') && line.ends_with(']') {
            return self.warning(at, "unknown section; the rules below go into the list above");
        }
        self.rule(line, at);
    }

    fn header(&mut self, line: &str) -> bool {
        match line {
            "[bypass_all]" | "[reject_all]" => self.acl.bypass_all = true,
            "[proxy_all]" | "[accept_all]" => self.acl.bypass_all = false,
            "[outbound_block_all]" => self.acl.block_all = true,
            "[outbound_allow_all]" => self.acl.block_all = false,
            "[bypass_list]" | "[black_list]" => self.list = Name::Bypass,
            "[proxy_list]" | "[white_list]" => self.list = Name::Proxy,
            "[outbound_block_list]" => self.list = Name::Block,
            "[outbound_allow_list]" => self.list = Name::Allow,
            _ => return false,
        }
        true
    }

    fn rule(&mut self, line: &str, at: usize) {
        let family = self.family;
        let list = list(&mut self.acl, self.list);
        if let Some(name) = line.strip_prefix("||") {
            return list.trees.push(normal(name).into());
        }
        if let Some(name) = line.strip_prefix('|') {
            return list.exact.push(normal(name).into());
        }
        if let Some(network) = network(line) {
            return add_network(list, network);
        }
        match plain(family, line) {
            Some(Plain::Exact(name)) => return list.exact.push(name.into()),
            Some(Plain::Tree(name)) => return list.trees.push(name.into()),
            None => {}
        }
        if list.regexes.len() == MAX_REGEXES {
            return self.error(at, "more than 10000 regular expressions in one list");
        }
        let mut builder = RegexBuilder::new(line);
        match builder.case_insensitive(true).size_limit(MAX_REGEX_SIZE).build() {
            Ok(regex) => list.regexes.push(regex),
            Err(_) => self.error(at, "neither a network nor a name nor a regular expression that works here"),
        }
    }

    fn error(&mut self, at: usize, problem: &str) {
        let place = self.source.locate(at);
        let hint = "write a network, ||name, |name or a regular expression without look-around";
        self.found.push(Diagnostic::error(&self.source.file, "", problem).at(place).hint(hint));
    }

    fn warning(&mut self, at: usize, problem: &str) {
        if !self.found.is_full() {
            let place = self.source.locate(at);
            self.found.push(Diagnostic::warning(&self.source.file, "", problem).at(place));
        }
    }
}

/// Fuzz target: for any bytes, findings lie inside the text, names mean the same in any case,
/// and an address means the same in its IPv4-mapped form.
#[doc(hidden)]
pub fn fuzz_acl(data: &[u8]) {
    use adit_proto::wire::Host;

    let text = String::from_utf8_lossy(data);
    for family in [ProgramFamily::Libev, ProgramFamily::Rust] {
        match parse(family, "fuzz.acl", &text) {
            Ok((acl, found)) => {
                crate::read::loaded::assert_inside(&text, &found);
                for ip in [[10, 0, 0, 1], [255; 4]].map(std::net::Ipv4Addr::from) {
                    assert_eq!(acl.accepts(ip.into()), acl.accepts(ip.to_ipv6_mapped().into()));
                }
                let one = acl.proxies(&Host::Name("A.Example".into()));
                assert_eq!(one, acl.proxies(&Host::Name("a.example.".into())));
            }
            Err(found) => crate::read::loaded::assert_inside(&text, &found),
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use adit_proto::wire::Host;

    use super::*;
    use adit_model::access::AclVerdict;

    fn acl(family: ProgramFamily, text: &str) -> Acl {
        match parse(family, "t.acl", text) {
            Ok((acl, found)) => {
                assert!(found.is_empty(), "{found}");
                acl
            }
            Err(found) => panic!("{found}"),
        }
    }

    fn host(text: &str) -> Host {
        Host::parse(text.as_bytes()).unwrap()
    }

    #[test]
    fn a_client() {
        const TEXT: &str = "# c\n[proxy_all]\n\n[bypass_list]\n10.0.0.0/8\n::1\n||cn.example\n|one.example\n\
            (^|\\.)tree\\.example$\n^ads?[0-9]\n[proxy_list]\n10.1.0.0/16\n||up.cn.example\n";
        for family in [ProgramFamily::Libev, ProgramFamily::Rust] {
            let acl = acl(family, TEXT);
            let of_both = if family == ProgramFamily::Libev { AclVerdict::No } else { AclVerdict::Yes };
            for (target, want) in [
                ("10.2.3.4", AclVerdict::No),
                ("10.1.3.4", AclVerdict::No),
                ("11.0.0.0", AclVerdict::Yes),
                ("::1", AclVerdict::No),
                ("::ffff:10.0.0.1", AclVerdict::No),
                ("cn.example", AclVerdict::No),
                ("WWW.CN.Example", AclVerdict::No),
                ("xcn.example", AclVerdict::Resolve),
                ("up.cn.example", of_both),
                ("one.example", AclVerdict::No),
                ("a.one.example", AclVerdict::Resolve),
                ("a.tree.example", AclVerdict::No),
                ("ad1.example", AclVerdict::No),
                ("AD1.example", AclVerdict::No),
                ("bad1.example", AclVerdict::Resolve),
            ] {
                assert_eq!(acl.proxies(&host(target)), want, "{target}");
            }
            assert!(!acl.proxies_any(["192.0.2.1", "10.0.0.1"].map(|ip| ip.parse().unwrap())));
            assert!(acl.proxies_any(["192.0.2.1".parse().unwrap()]));
        }
    }

    #[test]
    fn the_other_default() {
        let acl = acl(ProgramFamily::Rust, "[bypass_all]\n[proxy_list]\n||a.example\n192.0.2.0/24\n");
        assert_eq!(acl.proxies(&host("a.example")), AclVerdict::Yes);
        assert_eq!(acl.proxies(&host("192.0.2.9")), AclVerdict::Yes);
        assert_eq!(acl.proxies(&host("192.0.3.9")), AclVerdict::No);
        assert_eq!(acl.proxies(&host("b.example")), AclVerdict::Resolve);
        assert!(acl.proxies_any(["192.0.2.1".parse().unwrap()]));
        assert!(!acl.proxies_any([]));
        assert!(acl.accepts("192.0.2.1".parse().unwrap()) && !acl.accepts("192.0.3.1".parse().unwrap()));
    }

    #[test]
    fn a_server() {
        let text = "[reject_all]\n[white_list]\n127.0.0.1\n[outbound_block_list]\n127.0.0.0/8\n|bad.example\n\
                    [outbound_allow_list]\n||ok.example\n";
        let acl = acl(ProgramFamily::Rust, text);
        assert!(acl.accepts("127.0.0.1".parse().unwrap()) && !acl.accepts("127.0.0.2".parse().unwrap()));
        for (target, want) in [
            ("127.0.0.1", AclVerdict::No),
            ("1.1.1.1", AclVerdict::Yes),
            ("bad.example", AclVerdict::No),
            ("x.ok.example", AclVerdict::Yes),
            ("other.example", AclVerdict::Resolve),
        ] {
            assert_eq!(acl.reaches(&host(target)), want, "{target}");
        }
        assert!(!acl.reaches_any(["127.1.1.1".parse().unwrap()]));
        let acl = self::acl(ProgramFamily::Rust, "[outbound_block_all]\n[outbound_allow_list]\n1.0.0.0/8\n");
        assert_eq!(acl.reaches(&host("2.2.2.2")), AclVerdict::No);
        assert!(acl.reaches_any(["1.2.3.4".parse().unwrap()]));
    }

    #[test]
    fn where_the_two_differ() {
        let libev = acl(ProgramFamily::Libev, "\\.a\\.example$ # comment\n");
        assert_eq!(libev.proxies(&host("a.example")), AclVerdict::Yes);
        assert_eq!(libev.proxies(&host("x.a.example")), AclVerdict::No);
        let rust = acl(ProgramFamily::Rust, "\\.a\\.example$\n");
        assert_eq!(rust.proxies(&host("a.example")), AclVerdict::No);
        assert_eq!(rust.proxies(&host("x.a.example")), AclVerdict::No);
    }

    #[test]
    fn networks_of_every_length() {
        for (text, inside, outside) in [
            ("0.0.0.0/0", "255.1.2.3", "::1"),
            ("::/0", "1.2.3.4", ""),
            ("::ffff:0:0/96", "1.2.3.4", "::1"),
            ("10.9.0.32/16", "10.9.255.255", "10.10.0.0"),
            ("2001:db8::/33", "2001:db8:7fff::", "2001:db8:8000::"),
            ("1.2.3.4/32", "1.2.3.4", "1.2.3.5"),
        ] {
            let acl = acl(ProgramFamily::Rust, &format!("1.1.1.0/25\n1.1.1.64/26\n{text}\n"));
            assert!(!acl.accepts(inside.parse().unwrap()), "{text}");
            assert!(outside.is_empty() || acl.accepts(outside.parse().unwrap()), "{text}");
        }
        assert!(
            network("1.2.3.4/33").is_none() && network("::/129").is_none() && network("1.2.3.4/+1").is_none()
        );
    }

    #[test]
    fn findings() {
        let (_, found) = parse(ProgramFamily::Rust, "t", "[proxy_al]\n  b\u{fc}cher.example\n").unwrap();
        assert_eq!(
            found.to_string(),
            "t:1:1: warning: unknown section; the rules below go into the list above\n\
             t:2:3: warning: holds characters other than ASCII, so it has no effect\n"
        );
        let found = parse(ProgramFamily::Rust, "t", "a\n(b\n").unwrap_err().to_string();
        assert!(found.starts_with("t:2:1: neither a network"), "{found}");
        let long = format!("{}\n", "a".repeat(255));
        assert_eq!(parse(ProgramFamily::Libev, "t", &long).unwrap().1.len(), 1);
    }

    /// Observed of ss-local 3.3.5: an unmatched name that has no address goes through the proxy in either mode.
    #[test]
    fn names_without_an_address() {
        let text = "[bypass_all]\n[proxy_list]\n^x$\n";
        let name = host("nosuch.example");
        let libev = acl(ProgramFamily::Libev, text);
        assert_eq!((libev.proxies(&name), libev.proxies_unknown()), (AclVerdict::Resolve, true));
        assert!(!libev.proxies_any(["192.0.2.1".parse().unwrap()]));
        assert_eq!(acl(ProgramFamily::Rust, text).proxies(&name), AclVerdict::No);
    }

    #[test]
    fn a_large_list() {
        let mut text = String::from("[bypass_all]\n[proxy_list]\n");
        for n in 0..50_000_u32 {
            let [_, high, mid, low] = (n * 2).to_be_bytes();
            text.push_str(&format!("10.{high}.{mid}.{low}\n||name{n}.example\n(^|\\.)tree{n}\\.example$\n"));
        }
        for family in [ProgramFamily::Libev, ProgramFamily::Rust] {
            let acl = acl(family, &text);
            assert!(acl.proxy.regexes.is_empty(), "all of them are names");
            for n in (0..50_000_u32).step_by(997) {
                let [_, high, mid, low] = (n * 2).to_be_bytes();
                assert_eq!(acl.proxies(&host(&format!("10.{high}.{mid}.{low}"))), AclVerdict::Yes);
                assert_eq!(acl.proxies(&host(&format!("10.{high}.{mid}.{}", low + 1))), AclVerdict::No);
                assert_eq!(acl.proxies(&host(&format!("a.b.name{n}.example"))), AclVerdict::Yes);
                assert_eq!(acl.proxies(&host(&format!("x.tree{n}.example"))), AclVerdict::Yes);
                assert_eq!(acl.proxies(&host(&format!("xname{n}.example"))), AclVerdict::Resolve);
            }
        }
    }

    /// Expressions that take other engines exponential time, or gigabytes.
    #[test]
    fn hostile_expressions() {
        let name = host(&"a".repeat(255));
        for regex in ["(a+)+b$", "(a|aa)+b$", "(a*)*b", "^(.*a){20}b"] {
            let acl = acl(ProgramFamily::Rust, &format!("{regex}\n"));
            assert_eq!(acl.proxies(&name), AclVerdict::Yes, "{regex}");
        }
        for regex in ["(a{1000}){1000}", "((a{100}){100}){100}", "a{4294967296}", "(?=a)", "(a)\\1", "["] {
            assert!(parse(ProgramFamily::Rust, "t", &format!("{regex}\n")).is_err(), "{regex}");
        }
        let many = "[0-9]x\n".repeat(MAX_REGEXES + 1);
        let found = parse(ProgramFamily::Rust, "t", &many).unwrap_err();
        assert!(found.to_string().starts_with("t:10001:1: more than 10000"), "{found}");
    }

    proptest! {
        #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

        #[test]
        fn any_text(text in "([\\[\\](|.^$*\\\\#a-c0-9/: \n]|\\[bypass_all\\]|\\|\\||\\.example|é){0,20}") {
            fuzz_acl(text.as_bytes());
        }

    }
}
