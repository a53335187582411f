//! The text protocol of `ss-manager` and `ssmanager`: one datagram asks, one answers.
//!
//! ```text
//! request := 'add: ' json | 'remove: ' json | 'list' | 'ping' | 'stat: ' json      a line end may follow
//! ```
//!
//! | answer | shadowsocks-libev 3.3.5 | shadowsocks-rust 1.25 |
//! |---|---|---|
//! | done | `ok` | `ok`, line end |
//! | `add` with too little, or no JSON | `err` | none |
//! | `add` that does not work | `port is not available` | what went wrong, line end |
//! | `list` | one server a line, port a text | one line, port a number, no method |
//! | `ping` | `stat: {"8388":0}` | the same, line end |
//! | `stat`, and what is no request | none | none |
//!
//! A value of another type than the key's is refused by both, as by a Rust manager; a libev manager starts the server without
//! it. Null counts as not written.
//!
//! A libev manager wants a space in front of the JSON, takes ports in quotes, and reads an object up to the first
//! key that it does not know. It ignores requests of 32 KiB and more, and cuts long answers into several datagrams.

use std::fmt::Write as _;

use adit_model::Secret;

use super::ProgramFamily;
use crate::read::json::{self, Grammar, JsonMember, JsonValue, Node};
use crate::read::source::Source;

/// Longest request: half of the buffer of ss-manager.
pub const MAX_REQUEST: usize = 32_767;

/// Length in bytes from which a datagram of an answer is full.
const FULL: usize = 32_767;

/// Request of a datagram.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Request {
    /// To start a server, in the place of one that has the port.
    Add(Box<Add>),
    /// To stop the server on this port.
    Remove(u16),
    /// All servers.
    List,
    /// The counters of all servers.
    Ping,
    /// Nothing: servers report their counters, port and bytes, to a manager.
    Stat(Vec<(u16, u64)>),
}

/// A server to start; what is `None` is as the manager's defaults have it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Add {
    /// Its port, not 0.
    pub port: u16,
    /// Its password.
    pub password: Secret,
    /// Name of the method, which has not been looked at.
    pub method: Option<Box<str>>,
    /// `tcp_only`, `udp_only` or `tcp_and_udp`, which has not been looked at.
    pub mode: Option<Box<str>>,
    /// The plugin; an empty name is none.
    pub plugin: Option<Box<str>>,
    /// Its options, which may hold keys.
    pub plugin_options: Option<Secret>,
    /// Traffic that goes through it (shadowsocks-rust).
    pub plugin_mode: Option<Box<str>>,
    /// TCP Fast Open (shadowsocks-libev).
    pub fast_open: Option<bool>,
    /// `TCP_NODELAY`, which adit has always on.
    pub no_delay: Option<bool>,
    /// Users of a 2022 server (shadowsocks-rust).
    pub users: Vec<(Box<str>, Secret)>,
}

/// A datagram that is no request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Malformed {
    /// The answer to it, as the original gives it; `None` for silence.
    pub answer: Option<&'static str>,
    /// The cause, for the log: it names the parts that a request needs, and nothing of the datagram.
    pub why: &'static str,
}

/// A server in the answer to [`Request::List`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Listed {
    /// Its port.
    pub port: u16,
    /// Its password.
    pub password: Secret,
    /// Name of its method.
    pub method: Box<str>,
    /// Its users.
    pub users: Vec<(Box<str>, Secret)>,
}

/// An answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Answer<'a> {
    /// It is done.
    Done,
    /// The server could not be started, and why; only shadowsocks-rust passes the reason on.
    Failed(&'a str),
    /// To [`Request::List`].
    List(&'a [Listed]),
    /// To [`Request::Ping`]: ports and bytes, both ways together.
    Stat(&'a [(u16, u64)]),
}

impl Add {
    /// A server with a password, and all else by default.
    pub fn new(port: u16, password: Secret) -> Self {
        Self {
            port,
            password,
            method: None,
            mode: None,
            plugin: None,
            plugin_options: None,
            plugin_mode: None,
            fast_open: None,
            no_delay: None,
            users: Vec::new(),
        }
    }
}

impl Request {
    /// Reads a datagram.
    ///
    /// # Errors
    /// The answer, if there is one, to a datagram that is no request.
    pub fn parse(family: ProgramFamily, datagram: &[u8]) -> Result<Self, Malformed> {
        let silent = |why| Malformed { answer: None, why };
        if datagram.len() > MAX_REQUEST {
            return Err(silent("it is longer than any command"));
        }
        let text = std::str::from_utf8(datagram).map_err(|_| silent("it is no text in UTF-8"))?;
        let text = text.trim_end_matches('\0').trim();
        let end = text.find(|c: char| c == ':' || c.is_ascii_whitespace()).unwrap_or(text.len());
        let (action, rest) = text.split_at(end);
        let object = || object(family, rest);
        let answer = if family == ProgramFamily::Libev { Some("err") } else { None };
        let needs = |why| Malformed { answer, why };
        match action {
            "list" => Ok(Self::List),
            "ping" => Ok(Self::Ping),
            "add" => {
                let object = object().ok_or_else(|| needs(ADD_NEEDS))?;
                add(family, &object).map(|add| Self::Add(Box::new(add))).map_err(needs)
            }
            "remove" => {
                let port = object().and_then(|o| removed(family, &o)).map(Self::Remove);
                port.ok_or_else(|| needs("remove needs a JSON object with server_port"))
            }
            "stat" => {
                let counters = object().and_then(|o| counters(&o)).map(Self::Stat);
                counters.ok_or_else(|| silent("stat needs a JSON object of ports and bytes"))
            }
            _ => Err(silent("the commands are add, remove, list, ping and stat")),
        }
    }

    /// Writes a datagram, for those who talk to a manager.
    pub fn emit(&self) -> Vec<u8> {
        let text = match self {
            Self::Add(add) => format!("add: {}", emit_add(add)),
            Self::Remove(port) => format!("remove: {{\"server_port\":{port}}}"),
            Self::List => "list".to_owned(),
            Self::Ping => "ping".to_owned(),
            Self::Stat(counters) => stat(counters),
        };
        text.into_bytes()
    }
}

/// The report that a server sends to its manager: every 5 s (shadowsocks-libev) or 10 s (shadowsocks-rust).
pub fn emit_report(family: ProgramFamily, port: u16, bytes: u64) -> Vec<u8> {
    let end = if family == ProgramFamily::Libev { '\0' } else { '\n' };
    format!("{}{end}", stat(&[(port, bytes)])).into_bytes()
}

impl Answer<'_> {
    /// Writes the datagrams of the answer, at least one.
    pub fn emit(&self, family: ProgramFamily) -> Vec<Vec<u8>> {
        let texts = match (self, family) {
            (Answer::Done, ProgramFamily::Libev) => vec!["ok".to_owned()],
            (Answer::Done, ProgramFamily::Rust) => vec!["ok\n".to_owned()],
            (Answer::Failed(_), ProgramFamily::Libev) => vec!["port is not available".to_owned()],
            (Answer::Failed(why), ProgramFamily::Rust) => vec![format!("{why}\n")],
            (Answer::List(servers), ProgramFamily::Libev) => libev_list(servers),
            (Answer::List(servers), ProgramFamily::Rust) => vec![rust_list(servers)],
            (Answer::Stat(counters), ProgramFamily::Libev) => libev_stat(counters),
            (Answer::Stat(counters), ProgramFamily::Rust) => vec![format!("{}\n", stat(counters))],
        };
        texts.into_iter().map(String::into_bytes).collect()
    }
}

/// The object behind an action. In front of it stands a space: ss-manager overwrites the character behind the name
/// of the action, and reads from the one before the bracket.
fn object(family: ProgramFamily, rest: &str) -> Option<Vec<JsonMember>> {
    let json = match family {
        ProgramFamily::Libev => {
            let open = rest.find('{').filter(|open| *open > 1)?;
            rest.as_bytes()[open - 1].is_ascii_whitespace().then(|| &rest[open..])?
        }
        ProgramFamily::Rust => rest.trim_start().strip_prefix(':')?,
    };
    match json::parse(&Source::new("", json), Grammar::Lax).ok()?.node {
        Node::Object(members) => Some(members),
        Node::Null | Node::Bool(_) | Node::Number(_) | Node::Text(_) | Node::Array(_) => None,
    }
}

/// A port, which old clients write in quotes.
fn port(family: ProgramFamily, value: &JsonValue) -> Option<u16> {
    let port = match &value.node {
        Node::Number(number) => number.parse().ok(),
        Node::Text(text) if family == ProgramFamily::Libev => text.parse().ok(),
        Node::Text(_) | Node::Null | Node::Bool(_) | Node::Array(_) | Node::Object(_) => None,
    };
    port.filter(|port| *port != 0)
}

fn removed(family: ProgramFamily, members: &[JsonMember]) -> Option<u16> {
    port(family, &members.iter().find(|member| member.key == "server_port")?.value)
}

fn counters(members: &[JsonMember]) -> Option<Vec<(u16, u64)>> {
    let counter = |member: &JsonMember| match &member.value.node {
        Node::Number(bytes) => Some((member.key.parse().ok()?, bytes.parse().ok()?)),
        Node::Text(_) | Node::Null | Node::Bool(_) | Node::Array(_) | Node::Object(_) => None,
    };
    members.iter().map(counter).collect()
}

/// The cause of an `add` with too little.
const ADD_NEEDS: &str = "add needs a JSON object with server_port and password";

/// The server of an `add`, or the cause for the log: a limit, plugin or user that cannot be read must not become none.
fn add(family: ProgramFamily, members: &[JsonMember]) -> Result<Add, &'static str> {
    let mut password = None;
    let mut add = Add::new(0, Secret::new(""));
    for JsonMember { key, value, .. } in members {
        match key.as_str() {
            "server_port" => add.port = port(family, value).ok_or("server_port is no port")?,
            "password" => password = secret(value).ok_or("password is no text")?,
            "method" => add.method = text(value).ok_or("method is no text")?,
            "mode" => add.mode = text(value).ok_or("mode is no text")?,
            "plugin" => add.plugin = text(value).ok_or("plugin is no text")?,
            "plugin_opts" => add.plugin_options = secret(value).ok_or("plugin_opts is no text")?,
            "no_delay" => add.no_delay = flag(value).ok_or("no_delay is neither true nor false")?,
            "fast_open" if family == ProgramFamily::Libev => {
                add.fast_open = flag(value).ok_or("fast_open is neither true nor false")?;
            }
            "plugin_mode" if family == ProgramFamily::Rust => {
                add.plugin_mode = text(value).ok_or("plugin_mode is no text")?;
            }
            "users" if family == ProgramFamily::Rust => {
                add.users = users(value).ok_or("users is no list of names and passwords")?;
            }
            // ss-manager keeps what came before a key that it does not know, ssmanager passes over the key.
            _ if family == ProgramFamily::Libev => break,
            _ => {}
        }
    }
    add.password = password.ok_or(ADD_NEEDS)?;
    if add.port == 0 { Err(ADD_NEEDS) } else { Ok(add) }
}

/// A text, or nothing for null; `None` for another type.
fn text(value: &JsonValue) -> Option<Option<Box<str>>> {
    match &value.node {
        Node::Text(text) => Some(Some(text.as_str().into())),
        Node::Null => Some(None),
        Node::Bool(_) | Node::Number(_) | Node::Array(_) | Node::Object(_) => None,
    }
}

/// The same for a secret.
fn secret(value: &JsonValue) -> Option<Option<Secret>> {
    match &value.node {
        Node::Text(text) => Some(Some(Secret::new(text.as_str()))),
        Node::Null => Some(None),
        Node::Bool(_) | Node::Number(_) | Node::Array(_) | Node::Object(_) => None,
    }
}

/// The same for a truth value.
fn flag(value: &JsonValue) -> Option<Option<bool>> {
    match value.node {
        Node::Bool(on) => Some(Some(on)),
        Node::Null => Some(None),
        Node::Text(_) | Node::Number(_) | Node::Array(_) | Node::Object(_) => None,
    }
}

fn users(value: &JsonValue) -> Option<Vec<(Box<str>, Secret)>> {
    let Node::Array(users) = &value.node else { return matches!(value.node, Node::Null).then(Vec::new) };
    let user = |user: &JsonValue| {
        let Node::Object(members) = &user.node else { return None };
        let find = |key| members.iter().find(|member| member.key == key).map(|member| &member.value);
        Some((text(find("name")?)??, secret(find("password")?)??))
    };
    users.iter().map(user).collect()
}

fn stat(counters: &[(u16, u64)]) -> String {
    let counters: Vec<String> = counters.iter().map(|(port, bytes)| format!("\"{port}\":{bytes}")).collect();
    format!("stat: {{{}}}", counters.join(","))
}

/// Counters in as many datagrams as they need, each of which can be read on its own.
fn libev_stat(counters: &[(u16, u64)]) -> Vec<String> {
    /// `"65535":18446744073709551615,`
    const LONGEST: usize = 29;
    if counters.is_empty() {
        return vec![stat(&[])];
    }
    counters.chunks(FULL / LONGEST).map(stat).collect()
}

fn libev_list(servers: &[Listed]) -> Vec<String> {
    let mut texts = Vec::new();
    let mut text = String::from("[");
    for (i, server) in servers.iter().enumerate() {
        if text.len() > FULL {
            texts.push(std::mem::take(&mut text));
        }
        let comma = if i == 0 { "" } else { "," };
        let (password, method) = (json::quote(server.password.expose()), json::quote(&server.method));
        let port = server.port;
        write!(text, "{comma}\n\t{{\"server_port\":\"{port}\",\"password\":{password},\"method\":{method}}}")
            .expect("a string takes any text");
    }
    text.push_str("\n]");
    texts.push(text);
    texts
}

fn rust_list(servers: &[Listed]) -> String {
    let servers = servers.iter().map(|server| {
        let users = emit_users(&server.users);
        let password = json::quote(server.password.expose());
        format!("{{\"server_port\":{},\"password\":{password}{users}}}", server.port)
    });
    format!("[{}]\n", servers.collect::<Vec<_>>().join(","))
}

fn emit_users(users: &[(Box<str>, Secret)]) -> String {
    if users.is_empty() {
        return String::new();
    }
    let users = users.iter().map(|(name, password)| {
        format!("{{\"name\":{},\"password\":{}}}", json::quote(name), json::quote(password.expose()))
    });
    format!(",\"users\":[{}]", users.collect::<Vec<_>>().join(","))
}

fn emit_add(add: &Add) -> String {
    let password = json::quote(add.password.expose());
    let mut out = format!("{{\"server_port\":{},\"password\":{password}", add.port);
    let texts = [
        ("method", add.method.as_deref()),
        ("mode", add.mode.as_deref()),
        ("plugin", add.plugin.as_deref()),
        ("plugin_opts", add.plugin_options.as_ref().map(Secret::expose)),
        ("plugin_mode", add.plugin_mode.as_deref()),
    ];
    for (key, value) in texts.into_iter().filter_map(|(key, value)| Some((key, value?))) {
        write!(out, ",\"{key}\":{}", json::quote(value)).expect("a string takes any text");
    }
    for (key, on) in [("fast_open", add.fast_open), ("no_delay", add.no_delay)] {
        if let Some(on) = on {
            write!(out, ",\"{key}\":{on}").expect("a string takes any text");
        }
    }
    out + &emit_users(&add.users) + "}"
}

/// Fuzz target: a request that is read can be written, and is then read again as the same.
#[doc(hidden)]
pub fn fuzz_manager(data: &[u8]) {
    for family in [ProgramFamily::Libev, ProgramFamily::Rust] {
        let Ok(request) = Request::parse(family, data) else { continue };
        let again = request.emit();
        // A text just within the limit may be longer when everything is escaped.
        if again.len() <= MAX_REQUEST {
            assert_eq!(Request::parse(family, &again), Ok(request));
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const VECTORS: &str = include_str!("../../../../testdata/shadowsocks/control-plane.json");

    /// A manager that holds its servers in a list.
    struct Toy(ProgramFamily, Vec<Listed>);

    impl Toy {
        fn answer(&mut self, datagram: &str) -> Option<String> {
            let Self(family, servers) = self;
            let stats: Vec<(u16, u64)> = servers.iter().map(|server| (server.port, 0)).collect();
            let answer = match Request::parse(*family, datagram.as_bytes()) {
                Err(malformed) => return malformed.answer.map(str::to_owned),
                Ok(Request::Stat(_)) => return None,
                Ok(Request::List) => Answer::List(servers),
                Ok(Request::Ping) => Answer::Stat(&stats),
                Ok(Request::Remove(port)) => {
                    servers.retain(|server| server.port != port);
                    Answer::Done
                }
                Ok(Request::Add(add))
                    if add.method.as_deref() == Some("nope") && *family == ProgramFamily::Rust =>
                {
                    Answer::Failed("unrecognized method \"nope\"")
                }
                Ok(Request::Add(add)) => {
                    let method = add.method.unwrap_or_else(|| "chacha20-ietf-poly1305".into());
                    servers.push(Listed { port: add.port, password: add.password, method, users: add.users });
                    Answer::Done
                }
            };
            let answer = answer.emit(*family).concat();
            Some(String::from_utf8(answer).unwrap())
        }
    }

    #[test]
    fn recorded_exchanges() {
        let vectors: serde_json::Value = serde_json::from_str(VECTORS).unwrap();
        for (name, family) in [
            ("ss_manager_libev_3_3_5_udp", ProgramFamily::Libev),
            ("ssmanager_rust_1_25_0_udp", ProgramFamily::Rust),
        ] {
            let mut toy = Toy(family, Vec::new());
            for exchange in vectors[name]["exchanges"].as_array().unwrap() {
                let request = exchange[0].as_str().unwrap();
                assert_eq!(toy.answer(request).as_deref(), exchange[1].as_str(), "{name}: {request}");
            }
        }
    }

    #[test]
    fn reports() {
        assert_eq!(emit_report(ProgramFamily::Libev, 8388, 5), b"stat: {\"8388\":5}\0");
        assert_eq!(emit_report(ProgramFamily::Rust, 8388, 5), b"stat: {\"8388\":5}\n");
        for family in [ProgramFamily::Libev, ProgramFamily::Rust] {
            for sender in [ProgramFamily::Libev, ProgramFamily::Rust] {
                let report = Request::parse(family, &emit_report(sender, 1, u64::MAX));
                assert_eq!(report, Ok(Request::Stat(vec![(1, u64::MAX)])));
            }
        }
    }

    #[test]
    fn ports_and_unknown_keys() {
        let add = |family, json: &str| match Request::parse(family, format!("add: {json}").as_bytes()) {
            Ok(Request::Add(add)) => Some(*add),
            _ => None,
        };
        let libev =
            add(ProgramFamily::Libev, "{\"server_port\":\"1\",\"password\":\"p\",\"x\":1,\"method\":\"m\"}")
                .unwrap();
        assert_eq!((libev.port, libev.method), (1, None));
        let rust = add(
            ProgramFamily::Rust,
            "{\"server_port\":1,\"password\":\"p\",\"x\":1,\"users\":[{\"name\":\"n\",\"password\":\"k\"}]}",
        );
        assert_eq!(rust.unwrap().users, [("n".into(), Secret::new("k"))]);
        for json in ["{\"server_port\":0,\"password\":\"p\"}", "{\"server_port\":65536,\"password\":\"p\"}"] {
            assert_eq!(add(ProgramFamily::Libev, json), None);
        }
        assert!(
            !format!(
                "{libev:?}",
                libev = add(ProgramFamily::Libev, "{\"server_port\":1,\"password\":\"hunter2\"}")
            )
            .contains("hunter2")
        );
    }

    #[test]
    fn a_value_of_a_wrong_type_starts_no_server() {
        let values = ["\"zz\"", "7", "1.5", "true", "[]", "[7]", "{}", "null"];
        let keys = [
            ("server_port", "7"),
            ("password", "\"zz\""),
            ("method", "\"zz\""),
            ("mode", "\"zz\""),
            ("plugin", "\"zz\""),
            ("plugin_opts", "\"zz\""),
            ("no_delay", "true"),
            ("fast_open", "true"),
            ("plugin_mode", "\"zz\""),
            ("users", "[]"),
        ];
        for family in [ProgramFamily::Libev, ProgramFamily::Rust] {
            let others =
                if family == ProgramFamily::Libev { ["plugin_mode", "users"] } else { ["fast_open", ""] };
            for (key, right) in keys.iter().filter(|(key, _)| !others.contains(key)) {
                for value in values {
                    // A later value takes the place of an earlier one.
                    let text =
                        format!("add: {{\"server_port\": 1, \"password\": \"p\", \"{key}\": {value}}}");
                    let is_needed = matches!(*key, "server_port" | "password");
                    let is_right = value == *right || (value == "null" && !is_needed);
                    match Request::parse(family, text.as_bytes()) {
                        Ok(_) => assert!(is_right, "{family:?} {key} = {value}"),
                        Err(Malformed { why, .. }) => {
                            assert!(!is_right && why.contains(key), "{family:?} {key} = {value}: {why}");
                        }
                    }
                }
            }
        }
    }

    #[test]
    fn long_answers_come_in_pieces() {
        let server =
            |port| Listed { port, password: Secret::new("p"), method: "m".into(), users: Vec::new() };
        let servers: Vec<Listed> = (1..2000).map(server).collect();
        let pieces = Answer::List(&servers).emit(ProgramFamily::Libev);
        assert!(pieces.len() > 1 && pieces.iter().all(|piece| piece.len() < 65_507));
        let whole: serde_json::Value = serde_json::from_slice(&pieces.concat()).unwrap();
        assert_eq!(whole.as_array().unwrap().len(), servers.len());
        let stats: Vec<_> = (1..=u16::MAX).map(|port| (port, u64::MAX)).collect();
        for piece in Answer::Stat(&stats).emit(ProgramFamily::Libev) {
            assert!(matches!(Request::parse(ProgramFamily::Libev, &piece), Ok(Request::Stat(_))));
        }
        let long = Request::parse(ProgramFamily::Libev, &[b'a'; MAX_REQUEST + 1]);
        assert_eq!(long, Err(Malformed { answer: None, why: "it is longer than any command" }));
    }

    #[test]
    fn malformed_requests_name_their_cause() {
        for (datagram, family, answer, part) in [
            (
                &b"add: {\"server_port\":8388}"[..],
                ProgramFamily::Libev,
                Some("err"),
                "server_port and password",
            ),
            (b"add: {\"server_port\":8388}", ProgramFamily::Rust, None, "server_port and password"),
            (b"remove: bogus", ProgramFamily::Libev, Some("err"), "server_port"),
            (b"stat: []", ProgramFamily::Libev, None, "ports and bytes"),
            (b"bogus", ProgramFamily::Libev, None, "commands are"),
            (b"\xff", ProgramFamily::Libev, None, "UTF-8"),
        ] {
            let malformed = Request::parse(family, datagram).unwrap_err();
            assert_eq!(malformed.answer, answer, "{datagram:?}");
            assert!(malformed.why.contains(part), "{datagram:?}: {}", malformed.why);
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

        #[test]
        fn any_request(
            action in "add|remove|stat|list|ping|x",
            json in "(\\{|\\}|\"server_port\":|\"password\":|\"p\"|1|,| |:|\"1\":|\"users\":\\[|\\]|é){0,12}",
            whole in "(\"users\":\\[\\],|\"method\":\"m\",|\"no_delay\":true,|\"plugin\":\"é\",){0,3}",
        ) {
            fuzz_manager(format!("{action}: {json}").as_bytes());
            fuzz_manager(format!("{action}: {{\"server_port\":7,{whole}\"password\":\"p\"}}").as_bytes());
        }
    }
}
