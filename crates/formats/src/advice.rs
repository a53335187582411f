//! Warnings about a configuration that can run: weak keys, and inbounds that lead back to themselves.

use std::collections::HashSet;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use adit_proto::shadowsocks::{Generation, ShadowsocksMethod};
use adit_proto::wire::{Host, Target};

use adit_model::diagnostic::{Diagnostic, Diagnostics};
use adit_model::{
    Capture, Config, Inbound, InboundProtocol, Outbound, OutboundProtocol, Secret, SnellKeys, Store, Tag,
};

/// A server's key that is shorter than this, in bytes, can be found by trying.
const SHORT: usize = 12;

/// Texts that stand in documentation or are a program's default, in lower case and without spaces at the ends. Everybody
/// knows them.
const PLACEHOLDERS: &[&str] = &[
    "what adit key printed",
    "the output of `adit key`",
    "the same key",
    "adit key",
    "it's a secrect",
    "it's a secret",
    "password",
    "passwd",
    "your-password",
    "your_password",
    "yourpassword",
    "your psk",
    "your-psk",
    "your_psk",
    "yourpsk",
    "yourpskhere",
    "your-key",
    "mypassword",
    "my_password",
    "barfoo!",
    "foobar",
    "foobar!",
    "secret",
    "changeme",
    "change-me",
    "change me",
    "change me please",
    "change me: what both ends know",
    "change me: adit key prints a good one",
    "12345678",
    "123456789",
    "1234567890",
    "test",
    "psk",
    "key",
    "example",
    "...",
];

/// The settings of a capture that cannot have an effect.
fn without_effect(file: &Arc<str>, capture: &Capture) -> Vec<Diagnostic> {
    let mut found = Vec::new();
    if !capture.lan_exclude.is_empty() && !capture.has_any_lan() {
        let problem = "nothing to exclude: `lan` does not name all interfaces";
        found.push(Diagnostic::warning(file, "capture.exclude-lan", problem).hint("lan = \"*\""));
    }
    if !capture.local && capture.lan.is_empty() {
        let problem = "nothing is captured: neither local traffic nor any that is forwarded";
        found.push(Diagnostic::warning(file, "capture.local", problem).hint("name interfaces with `lan`"));
    }
    found
}

/// Warnings about `config`, without places in a file; `file` names it. `own` are the machine's addresses, by which it may
/// reach itself, and `unix_s` is the time in seconds since 1970.
pub fn advise(file: &str, config: &Config, own: &[IpAddr], unix_s: u64) -> Diagnostics {
    let mut found = Diagnostics::new();
    let file: Arc<str> = file.into();
    if let Some(capture) = &config.capture {
        without_effect(&file, capture).into_iter().for_each(|warning| found.push(warning));
    }
    for inbound in &config.inbounds {
        if let InboundProtocol::Shadowsocks(server) = &inbound.protocol {
            weak_method(&file, "inbound", &inbound.name, server.key.method())
                .into_iter()
                .for_each(|warning| found.push(warning));
        }
        keys(inbound, |key, problem, method| {
            let key = format!("inbound {}: {key}", inbound.name);
            let hint = format!("`adit key {method}` makes a good one");
            found.push(Diagnostic::warning(&file, key, problem).hint(hint));
        });
        for (key, problem, hint) in fleet(config, inbound) {
            let key = format!("inbound {}: {key}", inbound.name);
            found.push(Diagnostic::warning(&file, key, problem).hint(hint));
        }
        for user in inbound.protocol.users() {
            if user.limits.expires.is_some_and(|expiry| unix_s >= expiry.unix_s()) {
                let key = format!("inbound {}: user {}: expires", inbound.name, user.name);
                let warning = Diagnostic::warning(&file, key, "the account has expired: the user is refused");
                found.push(warning.hint("set a later day, or remove the user"));
            }
        }
        if let Some(path) = path_back(config, inbound, own) {
            let problem = format!("its connections come back to it: {}", path.join(" -> "));
            let warning = Diagnostic::warning(&file, format!("inbound {}", inbound.name), problem);
            found.push(warning.hint("name another server in the outbound, or another port in listen"));
        }
    }
    covered(&file, config).into_iter().for_each(|warning| found.push(warning));
    for outbound in &config.outbounds {
        if let OutboundProtocol::Shadowsocks(client) = &outbound.protocol {
            weak_method(&file, "outbound", &outbound.name, client.key.method())
                .into_iter()
                .for_each(|warning| found.push(warning));
        }
        if let Some((key, secret)) = secret_of(outbound)
            && is_placeholder(secret)
        {
            let key = format!("outbound {}: {key}", outbound.name);
            let warning = Diagnostic::warning(&file, key, "the key is a placeholder");
            found.push(warning.hint("write the key of the server"));
        }
    }
    found
}

/// Most users of a port whose keys are tried one after the other for a client from an unknown place, in version 4 and 5 at
/// 15 ms for a thousand.
const MANY_KEYS: usize = 3000;

/// Warnings about many users, and about keys that panels make: key, problem and hint.
fn fleet(config: &Config, inbound: &Inbound) -> Vec<(&'static str, String, &'static str)> {
    let mut found = Vec::new();
    if let InboundProtocol::Snell(server) = &inbound.protocol
        && let SnellKeys::Each(users) = &server.psk
        && users.all().len() > MANY_KEYS
    {
        let count = users.all().len();
        let problem = format!(
            "{count} users with a key each: finding one from an unknown place takes long, and some are refused"
        );
        found.push((
            "users",
            problem,
            "write a psk, which makes the users' keys client ids, or spread them over several ports",
        ));
    }
    if let InboundProtocol::Shadowsocks(server) = &inbound.protocol
        && config.panel_of.get(&inbound.name).is_some_and(|panel| **panel != *Store::PANEL)
        && server.key.method().key_len() == 16
        && server.key.method().generation() == Generation::Aead2022
    {
        let problem = "a panel makes 16-byte keys of UUIDs: 52 bits of them are random".to_owned();
        found.push((
            "method",
            problem,
            "2022-blake3-aes-256-gcm has 106 bits; change it in the panel and here",
        ));
    }
    found
}

/// A warning about a method that is there for old peers alone.
fn weak_method(file: &Arc<str>, end: &str, name: &Tag, method: ShadowsocksMethod) -> Option<Diagnostic> {
    let problem = match method.generation() {
        Generation::None => "encrypts nothing",
        Generation::Stream => "lets anybody on the path change the data without notice",
        Generation::Aead | Generation::Aead2022 => return None,
    };
    let warning = Diagnostic::warning(file, format!("{end} {name}: method"), format!("{method} {problem}"));
    Some(warning.hint("2022-blake3-aes-128-gcm or chacha20-ietf-poly1305 on both ends"))
}

/// A warning for each listener whose port another listener has already taken on all addresses.
fn covered(file: &Arc<str>, config: &Config) -> Vec<Diagnostic> {
    let listeners: Vec<(&Inbound, SocketAddr)> = config
        .inbounds
        .iter()
        .flat_map(|inbound| inbound.listen.iter().map(move |at| (inbound, *at)))
        .collect();
    let covers = |all: &(&Inbound, SocketAddr), one: &(&Inbound, SocketAddr)| {
        let ((wide, all), (narrow, one)) = (all, one);
        let is_wider = all.ip().is_unspecified() && !one.ip().is_unspecified();
        all.port() != 0
            && all.port() == one.port()
            && all.is_ipv4() == one.is_ipv4()
            && is_wider
            && share_transport(wide, narrow)
            && !(wide.socket.reuse_port && narrow.socket.reuse_port)
    };
    let pair = |one: &(&Inbound, SocketAddr)| {
        let (wide, all) = listeners.iter().find(|all| covers(all, one))?;
        let key = format!("inbound {}: listen", one.0.name);
        let problem = format!("{} is taken by inbound {}, which listens on {all}", one.1, wide.name);
        Some(Diagnostic::warning(file, key, problem).hint("give one of them another port"))
    };
    listeners.iter().filter_map(pair).collect()
}

/// Whether two inbounds both listen for connections, or both for datagrams of a carrier or of DNS.
fn share_transport(one: &Inbound, other: &Inbound) -> bool {
    let transports = |inbound: &Inbound| match &inbound.protocol {
        _ if inbound.socket.has_datagrams() => (false, true),
        InboundProtocol::Dns(server) => (server.transports.tcp(), server.transports.udp()),
        InboundProtocol::Tun(_) => (false, false),
        InboundProtocol::Snell(_)
        | InboundProtocol::Shadowsocks(_)
        | InboundProtocol::Ssr(_)
        | InboundProtocol::Obfs(_)
        | InboundProtocol::Local(_)
        | InboundProtocol::Captured(_)
        | InboundProtocol::Tunnel { .. } => (true, false),
    };
    let ((tcp, udp), (other_tcp, other_udp)) = (transports(one), transports(other));
    tcp && other_tcp || udp && other_udp
}

/// Reports each weak key of a server that machines other than this one reach, once per key of the file.
fn keys(inbound: &Inbound, mut report: impl FnMut(&str, &str, &str)) {
    if inbound.listen.iter().all(|addr| addr.ip().is_loopback()) {
        return;
    }
    let mut weigh = |key: &str, secret: &Secret, method: &str| {
        if let Some(problem) = weakness(secret) {
            report(key, problem, method);
        }
    };
    match &inbound.protocol {
        InboundProtocol::Snell(server) => match &server.psk {
            SnellKeys::Common(psk) | SnellKeys::Named(psk, _) => weigh("psk", psk, "snell"),
            SnellKeys::Each(_) => {
                server.psk.users().iter().for_each(|user| weigh(&user.name, &user.key, "snell"));
            }
        },
        // Keys of 2022 have their length by form, and are random or not: nobody can tell.
        InboundProtocol::Shadowsocks(server) if !server.key.method().name().starts_with("2022-") => {
            if server.key.method().key_len() > 0 {
                weigh("password", server.key.key().text(), server.key.method().name());
            }
        }
        InboundProtocol::Ssr(_)
        | InboundProtocol::Shadowsocks(_)
        | InboundProtocol::Obfs(_)
        | InboundProtocol::Local(_)
        | InboundProtocol::Captured(_)
        | InboundProtocol::Dns(_)
        | InboundProtocol::Tunnel { .. }
        | InboundProtocol::Tun(_) => {}
    }
    if let Some(kcp) = &inbound.socket.carrier
        && !kcp.has_streams()
    {
        weigh("carrier.key", &kcp.key, "kcptun");
    }
}

fn weakness(secret: &Secret) -> Option<&'static str> {
    let text = secret.expose();
    if is_placeholder(secret) {
        return Some("the key is a placeholder that everybody knows");
    }
    let mut letters = text.chars();
    let first = letters.next();
    if letters.all(|letter| Some(letter) == first) && !text.is_empty() {
        return Some("the key is one character, repeated");
    }
    (text.len() < SHORT).then_some("the key is short: below 12 characters it can be found by trying")
}

fn is_placeholder(secret: &Secret) -> bool {
    let text = secret.expose().trim().to_ascii_lowercase();
    PLACEHOLDERS.contains(&&*text)
}

fn secret_of(outbound: &Outbound) -> Option<(&'static str, &Secret)> {
    match &outbound.protocol {
        OutboundProtocol::Snell(client) => Some(("psk", &client.psk)),
        OutboundProtocol::Shadowsocks(client) => Some(("password", client.key.text())),
        OutboundProtocol::Ssr(_)
        | OutboundProtocol::Obfs(_)
        | OutboundProtocol::Direct
        | OutboundProtocol::Reject
        | OutboundProtocol::Group(_)
        | OutboundProtocol::Choice(_)
        | OutboundProtocol::Proxy(_)
        | OutboundProtocol::Dns { .. }
        | OutboundProtocol::Refuse(_) => None,
    }
}

/// The server of an outbound that is a tunnel to one.
pub fn server_of(outbound: &Outbound) -> Option<&Target> {
    if let Some(carrier) = &outbound.dial.carrier {
        return Some(&carrier.server);
    }
    match &outbound.protocol {
        OutboundProtocol::Snell(client) => Some(&client.server),
        OutboundProtocol::Shadowsocks(client) => Some(&client.server),
        OutboundProtocol::Ssr(client) => Some(&client.server),
        OutboundProtocol::Obfs(client) => client.servers().first(),
        OutboundProtocol::Proxy(client) => Some(&client.server),
        OutboundProtocol::Direct
        | OutboundProtocol::Reject
        | OutboundProtocol::Group(_)
        | OutboundProtocol::Choice(_)
        | OutboundProtocol::Dns { .. }
        | OutboundProtocol::Refuse(_) => None,
    }
}

/// The way from `start` back to it, as names, if its connections take one. Rules are left out: they are exceptions.
fn path_back(config: &Config, start: &Inbound, own: &[IpAddr]) -> Option<Vec<String>> {
    let mut seen: HashSet<Tag> = HashSet::new();
    let mut open = vec![(start, vec![start.name.to_string()])];
    while let Some((inbound, path)) = open.pop() {
        for outbound in leaves(config, &inbound.outbound) {
            let Some(server) = server_of(outbound) else { continue };
            let way = [&path[..], &[outbound.name.to_string()]].concat();
            for next in config.inbounds.iter().filter(|next| listens_at(next, outbound, server, own)) {
                let way = [&way[..], &[next.name.to_string()]].concat();
                if next.name == start.name {
                    return Some(way);
                }
                if seen.insert(next.name.clone()) {
                    open.push((next, way));
                }
            }
        }
    }
    None
}

/// The outbounds that a name leads to: itself, or the members of a group.
fn leaves<'c>(config: &'c Config, name: &Tag) -> Vec<&'c Outbound> {
    let mut found = Vec::new();
    let mut seen = HashSet::new();
    let mut open = vec![name];
    while let Some(name) = open.pop() {
        let outbound = config.outbounds.iter().find(|outbound| outbound.name == *name);
        let Some(outbound) = outbound.filter(|_| seen.insert(name.clone())) else { continue };
        if let OutboundProtocol::Group(group) = &outbound.protocol {
            open.extend(group.members.iter().map(|member| &member.outbound));
        } else if let OutboundProtocol::Choice(choice) = &outbound.protocol {
            open.extend(&choice.members);
        } else {
            found.push(outbound);
        }
    }
    found
}

fn listens_at(inbound: &Inbound, outbound: &Outbound, server: &Target, own: &[IpAddr]) -> bool {
    // A carrier is UDP, a plain connection TCP: the same port is another one.
    let by_datagrams = outbound.dial.carrier.as_ref().is_some_and(|carrier| !carrier.has_streams());
    if inbound.socket.has_datagrams() != by_datagrams {
        return false;
    }
    let reaches = |listen: &SocketAddr| {
        let is_own = |ip: IpAddr| {
            let is_here = ip.is_loopback() || ip.is_unspecified() || own.contains(&ip);
            ip == listen.ip() || listen.ip().is_unspecified() && is_here
        };
        let is_here = match &server.host {
            Host::Ip(ip) => is_own(*ip),
            Host::Name(name) => {
                name.eq_ignore_ascii_case("localhost")
                    && (listen.ip().is_loopback() || listen.ip().is_unspecified())
            }
        };
        is_here && listen.port() == server.port
    };
    server.port != 0 && inbound.listen.iter().any(reaches)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::adit_toml;

    /// 2026-11-23.
    const NOW: u64 = 1_795_392_000;

    fn warnings(text: &str) -> String {
        let loaded = adit_toml::parse("f", text).unwrap();
        advise("f", &loaded.config, &["192.0.2.7".parse().unwrap()], NOW).to_string()
    }

    fn server(psk: &str, listen: &str) -> String {
        format!("[[inbound]]\nprotocol = \"snell\"\nlisten = \"{listen}\"\npsk = \"{psk}\"\n")
    }

    #[test]
    fn settings_of_a_capture_without_an_effect() {
        let capture = |text: &str| {
            warnings(&format!("[capture]\n{text}\n[[outbound]]\nname = \"o\"\nprotocol = \"direct\"\n"))
        };
        for good in ["", "lan = \"*\"\nexclude-lan = \"wg0\"", "lan = \"br0\"\nlocal = false"] {
            assert_eq!(capture(good), "", "{good}");
        }
        assert!(
            capture("lan = \"br0\"\nexclude-lan = \"wg0\"")
                .contains("capture.exclude-lan: nothing to exclude")
        );
        assert!(capture("local = false").contains("capture.local: nothing is captured"));
    }

    #[test]
    fn many_keys_and_short_ones_of_panels() {
        let users = |count: usize| {
            let user = |n| format!("{{ name = \"u{n}\", password = \"a long enough key {n}\" }}");
            let users: Vec<String> = (0..count).map(user).collect();
            format!(
                "[[inbound]]\nprotocol = \"snell\"\nlisten = \"127.0.0.1:1\"\nusers = [{}]\n",
                users.join(", ")
            )
        };
        assert_eq!(warnings(&users(3000)), "");
        assert!(warnings(&users(3001)).contains("3001 users with a key each"));
        let node = |method: &str| {
            format!(
                "[[panel]]\nname = \"p\"\nurl = \"https://p.example\"\ntoken = \"t\"\nnode = \"1\"\n[[inbound]]\n\
                 protocol = \"shadowsocks\"\nlisten = \"127.0.0.1:1\"\nmethod = \"{method}\"\npanel = \"p\"\n"
            )
        };
        assert!(warnings(&node("2022-blake3-aes-128-gcm")).contains("52 bits"));
        assert_eq!(warnings(&node("2022-blake3-aes-256-gcm")), "");
    }

    #[test]
    fn users_that_have_expired() {
        let file = |day: &str| {
            format!(
                "[[inbound]]\nprotocol = \"mixed\"\nlisten = \"127.0.0.1:1\"\n[[inbound.users]]\nname = \"ann\"\n\
                 password = \"long enough a word\"\nexpires = \"{day}\"\n"
            )
        };
        assert!(warnings(&file("2020-01-01")).contains("user ann: expires: the account has expired"));
        assert_eq!(warnings(&file("2026-11-23")), "");
    }

    /// Somebody will run a server with the key of the first page.
    #[test]
    fn keys_of_the_first_page_are_known() {
        let keys = include_str!("../../../README.md").lines().filter_map(|line| line.strip_prefix("psk = "));
        let keys: Vec<&str> = keys.map(|key| key.trim_matches('"')).collect();
        assert_eq!(keys.len(), 2);
        for key in keys {
            assert!(warnings(&server(key, "0.0.0.0:1")).contains("placeholder"), "{key}");
        }
    }

    #[test]
    fn weak_keys() {
        for (psk, want) in [
            ("a", "repeated"),
            ("aaaaaaaaaaaaaaaaaaaa", "repeated"),
            ("What adit key printed", "placeholder"),
            ("the output of `adit key`", "placeholder"),
            ("elevenchars", "short"),
            ("twelve-chars", ""),
        ] {
            let text = warnings(&server(psk, "0.0.0.0:1"));
            assert_eq!(text.contains("adit key snell"), !want.is_empty(), "{psk}: {text}");
            assert!(text.contains(want), "{psk}: {text}");
            assert!(psk.len() < 3 || !text.contains(&format!(" {psk}")), "a key is shown: {text}");
        }
        assert_eq!(warnings(&server("a", "127.0.0.1:1")), "", "nobody else reaches it");
        let kcp = "[[inbound]]\nprotocol = \"tunnel\"\nlisten = \"0.0.0.0:1\"\ntarget = \"h:1\"\n\
                   carrier = \"kcp\"\ncarrier-key = \"it's a secrect\"\n";
        assert!(warnings(kcp).contains("placeholder"), "{}", warnings(kcp));
        let client = "[[inbound]]\nprotocol = \"mixed\"\nlisten = \"127.0.0.1:1\"\n[[outbound]]\nprotocol = \"snell\"\n\
                      server = \"h:1\"\npsk = \"what adit key printed\"\n";
        assert!(warnings(client).contains("outbound snell: psk: the key is a placeholder"));
    }

    #[test]
    fn methods_for_old_peers_alone() {
        let file = |method: &str| {
            let end = format!("method = \"{method}\"\npassword = \"long enough a word\"\n");
            format!(
                "[[inbound]]\nprotocol = \"shadowsocks\"\nlisten = \"127.0.0.1:1\"\n{end}\
                 [[outbound]]\nname = \"o\"\nprotocol = \"shadowsocks\"\nserver = \"h:1\"\n{end}"
            )
        };
        let found = warnings(&file("rc4-md5"));
        assert_eq!(found.matches("rc4-md5 lets anybody on the path").count(), 2, "{found}");
        assert!(
            found.contains("inbound shadowsocks: method") && found.contains("outbound o: method"),
            "{found}"
        );
        assert_eq!(warnings(&file("aes-256-gcm")), "");
    }

    #[test]
    fn listeners_that_cover_each_other() {
        let file = |first: &str, second: &str, more: &str| {
            let second = server("0123456789abcdeg", second).replace("listen", "name = \"two\"\nlisten");
            format!("{}{second}{more}", server("0123456789abcdef", first))
        };
        for (first, second, is_taken) in [
            ("0.0.0.0:7", "192.0.2.7:7", true),
            ("192.0.2.7:7", "0.0.0.0:7", true),
            ("[::]:7", "[2001:db8::1]:7", true),
            ("0.0.0.0:7", "192.0.2.7:8", false),
            ("0.0.0.0:7", "[2001:db8::1]:7", false),
            ("192.0.2.6:7", "192.0.2.7:7", false),
            ("0.0.0.0:0", "192.0.2.7:0", false),
        ] {
            let found = warnings(&file(first, second, ""));
            assert_eq!(found.contains("is taken by inbound"), is_taken, "{first} {second}: {found}");
        }
        let carrier = "carrier = \"kcp\"\ncarrier-key = \"0123456789abcdef\"\n";
        assert_eq!(warnings(&file("0.0.0.0:7", "192.0.2.7:7", carrier)), "", "UDP beside TCP");
    }

    #[test]
    fn loops() {
        let out = |server: &str| {
            format!(
                "{}[[outbound]]\nname = \"o\"\nprotocol = \"snell\"\nserver = \"{server}\"\npsk = \"0123456789abcdef\"\n",
                self::server("0123456789abcdef", "0.0.0.0:700")
            )
        };
        for (server, is_loop) in [
            ("127.0.0.1:700", true),
            ("192.0.2.7:700", true),
            ("localhost:700", true),
            ("127.0.0.1:701", false),
            ("192.0.2.8:700", false),
            ("example.com:700", false),
        ] {
            assert_eq!(warnings(&out(server)).contains("snell -> o -> snell"), is_loop, "{server}");
        }
        // A client before its own server is a chain and no loop.
        let chain = format!(
            "{}outbound = \"direct\"\n[[inbound]]\nprotocol = \"mixed\"\nlisten = \"127.0.0.1:1\"\noutbound = \"o\"\n\
             [[outbound]]\nname = \"o\"\nprotocol = \"snell\"\nserver = \"127.0.0.1:700\"\npsk = \"0123456789abcdef\"\n\
             [[outbound]]\nprotocol = \"direct\"\n",
            server("0123456789abcdef", "0.0.0.0:700")
        );
        assert_eq!(warnings(&chain), "");
    }
}
