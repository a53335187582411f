//! The kind of a text, told from the text alone: the program whose file it is, a list of servers, or links.
//!
//! ```text
//! scheme://...                        links, one a line; base64 of such lines too
//! [snell-server], [snell-client]      OpenSnell, the official server
//! [Proxy], name = snell|ss, host, ... Surge
//! [[inbound]], [log] and so on        adit.toml
//! { ... }, [ ... ]                    by its keys: see `of_object`
//! proxies:, rules: and so on          mihomo, Clash
//! - name: ..., type: ...              entries of mihomo
//! ```
//!
//! The shape says only who reads the text; whether it is right is for that reader to say.

use adit_model::diagnostic::Diagnostic;

use super::clash;
use super::import;
use super::kcptun::Side;
use crate::adit_toml;
use crate::adit_toml::keys::TomlTable;
use crate::read::json::{self, Grammar, JsonMember, JsonValue, Node};
use crate::read::source::Source;
use crate::shadowsocks_libev::LibevProgram as Libev;
use crate::shadowsocks_rust::RustProgram as Rust;
use crate::shadowsocksr::SsrProgram as Ssr;
use crate::snell::SnellProgram as Snell;

/// The kind of a text.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Shape {
    /// adit.toml.
    Native,
    /// A file of OpenSnell or of the official server.
    Snell(Snell),
    /// A file of shadowsocks-libev.
    Libev(Libev),
    /// A file of shadowsocks-rust.
    Rust(Rust),
    /// A file of ShadowsocksR, or its database of users.
    Ssr(Ssr),
    /// A list of servers (SIP008).
    Servers,
    /// A file of kcptun.
    Kcptun(Side),
    /// A whole file of mihomo or another program of the Clash family.
    Clash,
    /// Servers as another client writes them: a file of Surge or sing-box, entries, links.
    Entries,
}

/// A shape, with a warning where the text fits two programs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Recognised {
    /// The kind.
    pub shape: Shape,
    /// The choice that was made, and how to make the other one.
    pub doubt: Option<Diagnostic>,
}

impl From<Shape> for Recognised {
    fn from(shape: Shape) -> Self {
        Self { shape, doubt: None }
    }
}

/// The formats, for hints.
const KNOWN: &str = "adit reads adit.toml, files of Snell, Shadowsocks, ShadowsocksR, kcptun, mihomo, Surge and \
                     sing-box, SIP008, and snell://, ss:// and ssr:// links; --as names the program";

/// Tells what a text is; `file` is its name in messages.
///
/// # Errors
/// Why it is none of the shapes, or that it is one of a program that adit does not replace.
pub fn recognise(file: &str, text: &str) -> Result<Recognised, Diagnostic> {
    let source = Source::new(file, text);
    let body = text.trim_start_matches('\u{feff}').trim_start();
    if body.is_empty() {
        // adit.toml says it best: nothing would listen.
        return Ok(Shape::Native.into());
    }
    if import::is_web_address(body) {
        let error = Diagnostic::error(&source.file, "", "the address of a page, not a configuration");
        return Err(error.hint("fetch it first: curl -s URL | adit import -"));
    }
    if import::is_links(body) {
        return Ok(Shape::Entries.into());
    }
    if let Some(shape) = snell(&source)? {
        return Ok(shape.into());
    }
    if body.starts_with(['{', '[']) && !is_header(body) && !import::is_flow_entry(body) {
        return of_json(&source);
    }
    if body.starts_with("//") || body.starts_with("/*") {
        // JSON5 begins with comments, too.
        return of_json(&source);
    }
    if is_native(text) {
        return Ok(Shape::Native.into());
    }
    if import::is_surge(text) {
        return Ok(Shape::Entries.into());
    }
    if clash::is_clash(text) {
        return Ok(Shape::Clash.into());
    }
    if import::is_mihomo_entry(text) {
        return Ok(Shape::Entries.into());
    }
    if looks_like_toml(text) {
        return Ok(Shape::Native.into());
    }
    let error = Diagnostic::error(&source.file, "", "none of the formats that adit reads");
    Err(error.at((1, 1)).hint(KNOWN))
}

/// The program whose section a text has.
fn snell(source: &Source<'_>) -> Result<Option<Shape>, Diagnostic> {
    let has = |program: Snell| {
        let header = format!("[{}]", program.name());
        source.text.lines().any(|line| line.trim_start_matches('\u{feff}').trim().starts_with(&header))
    };
    match (has(Snell::Server), has(Snell::Client)) {
        (true, false) => Ok(Some(Shape::Snell(Snell::Server))),
        (false, true) => Ok(Some(Shape::Snell(Snell::Client))),
        (false, false) => Ok(None),
        (true, true) => {
            let error = Diagnostic::error(&source.file, "", "there are sections for server and client");
            Err(error.hint("--as snell-server or --as snell-client names the one that counts"))
        }
    }
}

/// Whether the first line is a header of a section, as in TOML and INI, and no JSON.
fn is_header(body: &str) -> bool {
    let first = body.lines().next().unwrap_or_default().trim_end();
    let inside = first.trim_start_matches('[').trim_end_matches(']');
    let is_word = |c: char| c.is_alphanumeric() || matches!(c, '-' | '_' | '.' | ' ');
    first.starts_with('[') && first.ends_with(']') && inside.chars().all(is_word) && !inside.trim().is_empty()
}

/// Whether a line is a header of a table of adit.toml, with one bracket or two.
fn is_native(text: &str) -> bool {
    let names = || TomlTable::ALL.into_iter().map(TomlTable::header).filter(|header| header.starts_with('['));
    text.lines().any(|line| {
        let line = line.trim_start_matches('\u{feff}').trim_start();
        let line = line.split('#').next().unwrap_or_default().trim_end();
        line.starts_with('[') && names().any(|header| bare(header) == bare(line))
    })
}

fn bare(header: &str) -> &str {
    header.trim_matches(['[', ']'])
}

/// Whether a line is a key of the top of adit.toml, or of one of its tables, with a value.
fn looks_like_toml(text: &str) -> bool {
    text.lines().any(|line| {
        let key = line.split_once('=').map(|(key, _)| key.trim());
        key.is_some_and(|key| adit_toml::keys::all().any(|known| known.name == key))
    })
}

fn of_json(source: &Source<'_>) -> Result<Recognised, Diagnostic> {
    let root = json::parse(source, Grammar::Json5).map_err(|error| match &error.hint {
        Some(_) => error,
        None => error.hint("it looks like JSON; --as names the program whose file it is"),
    })?;
    match &root.node {
        Node::Object(members) => of_object(source, members),
        Node::Array(items) => of_list(source, items),
        Node::Null | Node::Bool(_) | Node::Number(_) | Node::Text(_) => Err(unknown(source)),
    }
}

fn unknown(source: &Source<'_>) -> Diagnostic {
    let error = Diagnostic::error(&source.file, "", "JSON, but of none of the programs that adit replaces");
    error.at((1, 1)).hint(KNOWN)
}

fn of_list(source: &Source<'_>, items: &[JsonValue]) -> Result<Recognised, Diagnostic> {
    let first = items.first().map(|item| &item.node);
    match first {
        Some(Node::Object(members)) if has(members, "passwd") => Ok(Shape::Ssr(Ssr::Server).into()),
        Some(Node::Object(members)) if has(members, "type") => Ok(Shape::Entries.into()),
        _ => Err(unknown(source)),
    }
}

fn find<'v>(members: &'v [JsonMember], key: &str) -> Option<&'v JsonValue> {
    let member = members.iter().rfind(|member| member.key == key)?;
    (member.value.node != Node::Null).then_some(&member.value)
}

fn has(members: &[JsonMember], key: &str) -> bool {
    find(members, key).is_some()
}

fn has_any(members: &[JsonMember], keys: &[&str]) -> bool {
    keys.iter().any(|key| has(members, key))
}

/// Keys that only shadowsocks-rust has.
const RUST: &[&str] = &[
    "servers",
    "shadowsocks",
    "locals",
    "balancer",
    "runtime",
    "log",
    "security",
    "online_config",
    "udp_timeout",
    "udp_max_associations",
    "outbound_fwmark",
    "outbound_bind_addr",
    "outbound_bind_interface",
    "plugin_mode",
    "manager_port",
    "keep_alive",
    "ipv6_only",
    "dns",
];

fn of_object(source: &Source<'_>, members: &[JsonMember]) -> Result<Recognised, Diagnostic> {
    if has_any(members, &["outbounds", "inbounds", "route"]) {
        return of_router(source, members);
    }
    if has_any(members, &["proxies", "proxy-groups", "proxy-providers"]) {
        return Ok(Shape::Clash.into());
    }
    if has(members, "type") && has_any(members, &["server", "tag"]) {
        return Ok(Shape::Entries.into());
    }
    if has_any(members, &["TicketTimeHint", "Browser"]) {
        let error = Diagnostic::error(&source.file, "", "a file of GoQuiet, which is a plugin");
        return Err(
            error.hint("plugin_opts of a Shadowsocks file names it; adit gq-client takes it by itself")
        );
    }
    let lower: Vec<String> = members.iter().map(|member| member.key.to_lowercase()).collect();
    let is_named = |key: &str| lower.iter().any(|name| name == key);
    if is_named("localaddr") || is_named("remoteaddr") {
        return Ok(Shape::Kcptun(Side::Client).into());
    }
    if !is_named("server") && (is_named("target") || is_named("listen") && is_named("key")) {
        return Ok(Shape::Kcptun(Side::Server).into());
    }
    if has(members, "servers") && has(members, "version") {
        return Ok(Shape::Servers.into());
    }
    let is_shadowsocks = has_any(
        members,
        &["server", "server_port", "password", "method", "port_password", "servers", "locals"],
    );
    if !is_shadowsocks {
        return Err(unknown(source));
    }
    Ok(of_shadowsocks(source, members))
}

/// sing-box, or V2Ray and Xray, which have the same words at the top.
fn of_router(source: &Source<'_>, members: &[JsonMember]) -> Result<Recognised, Diagnostic> {
    let list = find(members, "outbounds").or_else(|| find(members, "inbounds"));
    let first = match list.map(|value| &value.node) {
        Some(Node::Array(items)) => items.first().map(|item| &item.node),
        _ => None,
    };
    if let Some(Node::Object(first)) = first
        && has(first, "protocol")
        && !has(first, "type")
    {
        let error = Diagnostic::error(&source.file, "", "a file of V2Ray or Xray, which adit does not read");
        return Err(error.hint("import the ss:// link of a server, or its entry for mihomo or sing-box"));
    }
    Ok(Shape::Entries.into())
}

fn of_shadowsocks(source: &Source<'_>, members: &[JsonMember]) -> Recognised {
    let is_list = matches!(find(members, "server").map(|value| &value.node), Some(Node::Array(_)));
    let is_local = has_any(members, &["local_port", "locals"]);
    if has(members, "obfs") && has_any(members, &["protocol", "obfs_param", "protocol_param"]) {
        let many = has(members, "port_password");
        let (side, other) = side(members, is_local && !many);
        return doubtful(
            source,
            Shape::Ssr(if side == End::Client { Ssr::Local } else { Ssr::Server }),
            other.map(|side| if side == End::Client { "ssr-local" } else { "ssr-server" }),
        );
    }
    if has_any(members, RUST) && !is_list {
        let (side, other) = side(members, is_local);
        return doubtful(
            source,
            Shape::Rust(if side == End::Client { Rust::Local } else { Rust::Server }),
            other.map(|side| if side == End::Client { "sslocal" } else { "ssserver" }),
        );
    }
    if has(members, "port_password") {
        return Shape::Libev(Libev::Manager).into();
    }
    if has(members, "tunnel_address") {
        return Shape::Libev(Libev::Tunnel).into();
    }
    let (side, other) = side(members, is_local);
    doubtful(
        source,
        Shape::Libev(if side == End::Client { Libev::Local } else { Libev::Server }),
        other.map(|side| if side == End::Client { "ss-local" } else { "ss-server" }),
    )
}

/// A side of a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum End {
    Client,
    Server,
}

/// The side that a file is for, and the other one where it may as well be for that: one file often serves both.
///
/// A server's address there is one to listen on. Loopback stands for either: several such addresses are Debian's
/// server, and a single one is the local end of a tunnel.
fn side(members: &[JsonMember], is_local: bool) -> (End, Option<End>) {
    if !is_local {
        return (End::Server, None);
    }
    let hosts: Vec<&str> = match find(members, "server").map(|value| &value.node) {
        Some(Node::Text(text)) => vec![text.as_str()],
        Some(Node::Array(items)) => items.iter().filter_map(text).collect(),
        _ => Vec::new(),
    };
    let is_any = |host: &&str| matches!(*host, "0.0.0.0" | "::" | "::0" | "[::]" | "[::0]");
    let is_loopback = |host: &&str| matches!(*host, "127.0.0.1" | "::1" | "[::1]" | "localhost");
    if hosts.iter().any(is_any) {
        return (End::Server, None);
    }
    if hosts.is_empty() || !hosts.iter().all(is_loopback) {
        return (End::Client, None);
    }
    if hosts.len() > 1 { (End::Server, Some(End::Client)) } else { (End::Client, Some(End::Server)) }
}

fn text(value: &JsonValue) -> Option<&str> {
    if let Node::Text(text) = &value.node { Some(text) } else { None }
}

fn doubtful(source: &Source<'_>, shape: Shape, other: Option<&'static str>) -> Recognised {
    let doubt = other.map(|other| {
        let name = match shape {
            Shape::Libev(program) => program.name(),
            Shape::Rust(program) => program.name(),
            Shape::Ssr(program) => program.name(),
            Shape::Native
            | Shape::Snell(_)
            | Shape::Servers
            | Shape::Kcptun(_)
            | Shape::Clash
            | Shape::Entries => "",
        };
        let found = Diagnostic::warning(&source.file, "", format!("read as a file of {name}"));
        found.hint(format!("--as {other} reads it as the other side's, --as {name} ends this warning"))
    });
    Recognised { shape, doubt }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shape(text: &str) -> Shape {
        recognise("t", text).unwrap_or_else(|error| panic!("{text}\n{error}")).shape
    }

    #[test]
    fn every_format() {
        use Shape::{Clash, Entries, Kcptun, Native, Servers};

        let server = r#""server":"a.example","server_port":8388,"password":"p","method":"aes-128-gcm""#;
        for (text, want) in [
            (String::new(), Native),
            ("[[inbound]]\nprotocol = \"mixed\"\n".to_owned(), Native),
            ("# x: y\n[inbound]\n".to_owned(), Native),
            ("[log]\nlevel = \"info\"\n".to_owned(), Native),
            ("cores = 1\n".to_owned(), Native),
            ("[snell-server]\nlisten = :1\n".to_owned(), Shape::Snell(Snell::Server)),
            ("\u{feff}[snell-client]\r\n".to_owned(), Shape::Snell(Snell::Client)),
            (format!("{{{server}}}"), Shape::Libev(Libev::Server)),
            (format!("{{{server},\"local_port\":1080}}"), Shape::Libev(Libev::Local)),
            (format!("\u{feff}{{{server},\"local_port\":1080,}}"), Shape::Libev(Libev::Local)),
            (
                format!("{{{server},\"local_port\":1,\"tunnel_address\":\"a:1\"}}"),
                Shape::Libev(Libev::Tunnel),
            ),
            ("{\"port_password\":{\"1\":\"p\"}}".to_owned(), Shape::Libev(Libev::Manager)),
            (
                format!("{{{server},\"local_port\":1}}").replace("a.example", "0.0.0.0"),
                Shape::Libev(Libev::Server),
            ),
            (format!("{{servers:[{{{server}}}],locals:[{{local_port:1080}}]}}"), Shape::Rust(Rust::Local)),
            (format!("// x\n{{{server},udp_timeout:3}}"), Shape::Rust(Rust::Server)),
            (format!("{{\"version\":1,\"servers\":[{{{server}}}]}}"), Servers),
            (
                format!("{{{server},\"protocol\":\"origin\",\"obfs\":\"plain\",\"local_port\":1}}"),
                Shape::Ssr(Ssr::Local),
            ),
            (format!("{{{server},\"protocol\":\"origin\",\"obfs\":\"plain\"}}"), Shape::Ssr(Ssr::Server)),
            ("[{\"port\":1,\"passwd\":\"p\"}]".to_owned(), Shape::Ssr(Ssr::Server)),
            ("{\"LocalAddr\":\":1\",\"remoteaddr\":\"a:1\"}".to_owned(), Kcptun(Side::Client)),
            ("{\"listen\":\":1\",\"target\":\"a:1\"}".to_owned(), Kcptun(Side::Server)),
            ("mixed-port: 1\nproxies: []\n".to_owned(), Clash),
            ("{\"proxies\":[]}".to_owned(), Clash),
            ("- {name: a, type: ss, server: b}\n".to_owned(), Entries),
            ("- name: a\n  type: ss\n".to_owned(), Entries),
            ("{name: a, type: ss}".to_owned(), Entries),
            ("{\"outbounds\":[{\"type\":\"direct\"}]}".to_owned(), Entries),
            ("[{\"type\":\"snell\",\"tag\":\"a\"}]".to_owned(), Entries),
            ("[General]\nx = 1\n[Proxy]\na = snell, b, 1, psk=k\n".to_owned(), Entries),
            ("a = snell, b, 1, psk=k\n".to_owned(), Entries),
            ("ss://x\n".to_owned(), Entries),
            ("vmess://x\n".to_owned(), Entries),
            ("dm1lc3M6Ly94Cg==\n".to_owned(), Entries),
        ] {
            assert_eq!(shape(&text), want, "{text}");
        }
    }

    #[test]
    fn doubts_and_refusals() {
        let both = "{\"server\":[\"::1\",\"127.0.0.1\"],\"server_port\":1,\"local_port\":2}";
        let found = recognise("t", both).unwrap();
        assert_eq!(found.shape, Shape::Libev(Libev::Server));
        assert!(found.doubt.unwrap().to_string().contains("--as ss-local"));
        let tunnel = recognise("t", "{\"server\":\"127.0.0.1\",\"server_port\":1,\"local_port\":2}").unwrap();
        assert_eq!(tunnel.shape, Shape::Libev(Libev::Local));
        assert!(tunnel.doubt.is_some());
        for (text, want) in [
            ("garbage", "none of the formats"),
            ("https://a.example/sub?token=hunter2", "curl -s URL | adit import -"),
            ("{\"a\":1}", "JSON, but of none"),
            ("{\"a\":1,,}", "--as"),
            ("{\"outbounds\":[{\"protocol\":\"vmess\"}]}", "V2Ray or Xray"),
            ("{\"Key\":\"k\",\"TicketTimeHint\":3600}", "GoQuiet"),
            ("[snell-server]\n[snell-client]\n", "sections for server and client"),
        ] {
            let error = recognise("t", text).unwrap_err().to_string();
            assert!(error.contains(want) && !error.contains("hunter2"), "{text}\n{error}");
        }
    }
}
