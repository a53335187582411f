//! `[[panel]]` and `[store]`.

use std::collections::HashSet;
use std::time::Duration;

use adit_model::{
    InDoubt, InboundProtocol, Panel, PanelKind, PanelToken, ReplayGroup, Store, StoreAway, WebUrl,
};

use super::fields::{Spanned, TomlFields, TomlReport};
use super::inbound::RawInbound;
use super::rows::{fleet as rows, root};
use super::write::TableEntries;
use crate::read::value::{Problem, excerpt};

/// Least time between two requests of one kind.
const LEAST: Duration = Duration::from_secs(1);
/// Most time.
const MOST: Duration = Duration::from_secs(86_400);
/// Type of a node unless written.
const NODE_TYPE: &str = "shadowsocks";
/// Name of a fleet unless written.
const FLEET: &str = "adit";
/// Name of a replay group unless written.
const REPLAY_GROUP: &str = "all";

/// Name of the interface of a panel, as it stands in a file.
pub fn panel_kind(kind: PanelKind) -> &'static str {
    super::rows::name_of(rows::PANEL_KINDS, &kind)
}

/// Reads all panels.
pub(crate) fn read(root: &mut TomlFields<'_>, report: &mut TomlReport<'_>) -> Vec<Panel> {
    let tables = root.tables(report, &root::PANELS).unwrap_or_default();
    let mut taken = HashSet::new();
    tables.into_iter().filter_map(|table| read_panel(table, &mut taken, report)).collect()
}

fn read_panel(
    mut fields: TomlFields<'_>,
    taken: &mut HashSet<Box<str>>,
    report: &mut TomlReport<'_>,
) -> Option<Panel> {
    let name = fields.require(report, &rows::PANEL_NAME);
    if let Some(name) = &name
        && !taken.insert(name.clone())
    {
        let problem = Problem::new(format!("the name is taken: {}", excerpt(name)));
        fields.wrong(report, &rows::PANEL_NAME, problem);
    }
    let kind = fields.read(report, &rows::PANEL_KIND).unwrap_or(PanelKind::UniProxy);
    let url = fields.require(report, &rows::PANEL_URL);
    let token = token(&mut fields, report);
    let node = fields.require(report, &rows::PANEL_NODE);
    let node_type = fields.read(report, &rows::PANEL_TYPE).unwrap_or_else(|| NODE_TYPE.into());
    let machine = fields.read(report, &rows::PANEL_MACHINE);
    let websocket = fields.read(report, &rows::PANEL_WEBSOCKET);
    fields.warn_if_empty(report, &rows::PANEL_PINS, "any valid certificate is taken");
    let pins = fields.read(report, &rows::PANEL_PINS).unwrap_or_default();
    let insecure_http = fields.read(report, &rows::PANEL_INSECURE).unwrap_or(false);
    let in_doubt = fields.read(report, &rows::PANEL_IN_DOUBT).unwrap_or_default();
    let pull = fields.read(report, &rows::PANEL_PULL);
    let push = fields.read(report, &rows::PANEL_PUSH);
    for (row, time) in [(&rows::PANEL_PULL, pull), (&rows::PANEL_PUSH, push)] {
        if time.is_some_and(|time| !(LEAST..=MOST).contains(&time)) {
            fields.wrong(report, row, Problem::new("must be between 1s and 1d"));
        }
    }
    if let Some(url) = &url
        && !insecure_http
        && is_exposed(url.expose())
    {
        let problem = Problem::new("anybody on the way would read the token and all users");
        fields.wrong(report, &rows::PANEL_URL, problem.hint("write https://, or insecure-http = true"));
    }
    if kind != PanelKind::Xboard {
        let problem = || Problem::new("only for panels of kind xboard").hint("write kind = \"xboard\"");
        if machine.is_some() {
            fields.wrong(report, &rows::PANEL_MACHINE, problem());
        }
        if websocket.is_some() {
            fields.wrong(report, &rows::PANEL_WEBSOCKET, problem());
        }
    }
    if let Some(websocket) = &websocket
        && !insecure_http
        && WebUrl::of_websocket(websocket.expose()).is_ok_and(|url| !url.tls && !is_loopback(&url))
    {
        let problem = Problem::new("anybody on the way would read the token and all users");
        fields.wrong(report, &rows::PANEL_WEBSOCKET, problem.hint("write wss://, or insecure-http = true"));
    }
    fields.finish(report, None);
    let pins = pins.into_iter().map(|pin| pin.value).collect();
    let (name, url, token, node) = (name?, url?, token?, node?);
    let name = (&*name).into();
    Some(Panel {
        name,
        kind,
        url,
        token,
        node,
        node_type,
        machine,
        websocket,
        pins,
        insecure_http,
        in_doubt,
        pull,
        push,
    })
}

fn token(fields: &mut TomlFields<'_>, report: &mut TomlReport<'_>) -> Option<PanelToken> {
    let text = fields.read(report, &rows::PANEL_TOKEN);
    let file = fields.read(report, &rows::PANEL_TOKEN_FILE);
    match (text, file) {
        (Some(_), Some(_)) => {
            let problem = Problem::new("stands for token, which is given too").hint("keep one of them");
            fields.wrong(report, &rows::PANEL_TOKEN_FILE, problem);
            None
        }
        (Some(text), None) => Some(PanelToken::Text(text)),
        (None, Some(path)) => Some(PanelToken::File((&*path).into())),
        (None, None) => {
            if !fields.has(&rows::PANEL_TOKEN) && !fields.has(&rows::PANEL_TOKEN_FILE) {
                report.error(&fields.at, fields.path(&rows::PANEL_TOKEN), Problem::new("missing"));
            }
            None
        }
    }
}

/// Whether an address is reached without TLS, and is not of this machine.
fn is_exposed(url: &str) -> bool {
    WebUrl::parse(url).is_ok_and(|url| !url.tls && !is_loopback(&url))
}

fn is_loopback(url: &WebUrl) -> bool {
    match &url.target.host {
        adit_proto::wire::Host::Ip(ip) => ip.to_canonical().is_loopback(),
        adit_proto::wire::Host::Name(name) => name.eq_ignore_ascii_case("localhost"),
    }
}

/// Reads the store.
pub(super) fn read_store(
    mut fields: TomlFields<'_>,
    panels: &[Panel],
    report: &mut TomlReport<'_>,
) -> Option<Store> {
    let url = fields.require(report, &rows::STORE_URL);
    let fleet = fields.read(report, &rows::STORE_FLEET).unwrap_or_else(|| FLEET.into());
    let away = fields.read(report, &rows::STORE_AWAY).unwrap_or_default();
    let every = fields.read(report, &rows::STORE_EVERY).unwrap_or(Store::EVERY);
    if !(Duration::from_secs(1)..=Duration::from_secs(300)).contains(&every) {
        fields.wrong(report, &rows::STORE_EVERY, Problem::new("must be between 1s and 5m"));
    }
    let sentinel = fields.read(report, &rows::STORE_SENTINEL);
    let users_key = fields.read(report, &rows::STORE_USERS_KEY);
    if users_key.is_some() && panels.iter().any(|panel| *panel.name == *Store::PANEL) {
        let problem = Problem::new("a panel has the name of the store").hint("give the panel another name");
        fields.wrong(report, &rows::STORE_USERS_KEY, problem);
    }
    let replay = read_replay(&mut fields, report);
    fields.finish(report, None);
    Some(Store { url: url?, fleet, away, every, sentinel, users_key, replay })
}

fn read_replay(fields: &mut TomlFields<'_>, report: &mut TomlReport<'_>) -> Option<ReplayGroup> {
    let name = fields.read(report, &rows::STORE_REPLAY_GROUP);
    let key = fields.read(report, &rows::STORE_REPLAY_KEY);
    if name.is_some() && key.is_none() {
        let problem = Problem::new("a replay group needs a key").hint("add `replay-key`");
        fields.wrong(report, &rows::STORE_REPLAY_GROUP, problem);
    }
    Some(ReplayGroup { name: name.unwrap_or_else(|| REPLAY_GROUP.into()), key: key? })
}

/// Whether an inbound can serve the users that the store lists.
pub(super) fn check_store(
    raw: &RawInbound,
    wanted: &Spanned<Box<str>>,
    has_users: bool,
    report: &mut TomlReport<'_>,
) {
    if !has_users {
        let problem = Problem::new("the store lists no users").hint("add `users-key` under [store]");
        report.error(&wanted.at, format!("{}.panel", raw.path), problem);
    }
    if let Some(InboundProtocol::Shadowsocks(server)) = &raw.protocol
        && !server.key.is_each()
        && super::shadowsocks::is_of_panel(&server.key)
    {
        let problem = Problem::new("the store gives no key of the server").hint("add `password`");
        report.error(&wanted.at, format!("{}.panel", raw.path), problem);
    }
}

pub(super) fn entries(panel: &Panel) -> TableEntries {
    let mut out = TableEntries::default();
    out.put(&rows::PANEL_NAME, &panel.name);
    out.put(&rows::PANEL_KIND, &panel.kind);
    out.put(&rows::PANEL_URL, &panel.url);
    match &panel.token {
        PanelToken::Text(text) => out.put(&rows::PANEL_TOKEN, text),
        PanelToken::File(path) => out.put(&rows::PANEL_TOKEN_FILE, &path.to_string_lossy()),
    }
    out.put(&rows::PANEL_NODE, &panel.node);
    out.put_unless(&rows::PANEL_TYPE, &*panel.node_type, NODE_TYPE);
    out.put_some(&rows::PANEL_MACHINE, panel.machine.as_deref());
    out.put_some(&rows::PANEL_WEBSOCKET, panel.websocket.as_ref());
    out.put_unless(&rows::PANEL_PINS, &*panel.pins, &[]);
    out.put_unless(&rows::PANEL_INSECURE, &panel.insecure_http, &false);
    out.put_unless(&rows::PANEL_IN_DOUBT, &panel.in_doubt, &InDoubt::default());
    out.put_some(&rows::PANEL_PULL, panel.pull.as_ref());
    out.put_some(&rows::PANEL_PUSH, panel.push.as_ref());
    out
}

pub(super) fn store_entries(store: &Store) -> TableEntries {
    let mut out = TableEntries::default();
    out.put(&rows::STORE_URL, &store.url);
    out.put_unless(&rows::STORE_FLEET, &*store.fleet, FLEET);
    out.put_unless(&rows::STORE_AWAY, &store.away, &StoreAway::default());
    out.put_unless(&rows::STORE_EVERY, &store.every, &Store::EVERY);
    out.put_some(&rows::STORE_SENTINEL, store.sentinel.as_deref());
    out.put_some(&rows::STORE_USERS_KEY, store.users_key.as_ref());
    if let Some(group) = &store.replay {
        out.put_unless(&rows::STORE_REPLAY_GROUP, &*group.name, REPLAY_GROUP);
        out.put(&rows::STORE_REPLAY_KEY, &group.key);
    }
    out
}

#[cfg(test)]
mod tests {
    use crate::adit_toml::parse;

    #[test]
    fn users_of_the_store() {
        const KEY: &str = "bm90IGEga2V5LCBidXQgYW4gZXhhbXBsZSBvZiBvbmU=";
        let store = format!("[store]\nurl = \"redis://h\"\nusers-key = \"{KEY}\"\n");
        let inbound = |keys: &str| {
            let head =
                "[[inbound]]\nprotocol = \"shadowsocks\"\nlisten = \"127.0.0.1:1\"\npanel = \"store\"\n";
            format!("{head}{keys}\n")
        };
        let classic = inbound("method = \"aes-256-gcm\"");
        let modern = inbound("method = \"2022-blake3-aes-256-gcm\"");
        let with_key = inbound(&format!("method = \"2022-blake3-aes-256-gcm\"\npassword = \"{KEY}\""));
        let panel = "[[panel]]\nname = \"store\"\nnode = \"1\"\nurl = \"https://p.example\"\ntoken = \"t\"\n";
        for (text, problem) in [
            (format!("{store}{classic}"), ""),
            (format!("{store}{with_key}"), ""),
            (format!("{store}{modern}"), "inbound[0].panel: the store gives no key of the server"),
            (classic.clone(), "inbound[0].panel: the store lists no users"),
            (
                format!("[store]\nurl = \"redis://h\"\n{classic}"),
                "inbound[0].panel: the store lists no users",
            ),
            (format!("{store}{panel}{classic}"), "store.users-key: a panel has the name of the store"),
            (store.replace(KEY, "c2hvcnQ=") + &classic, "store.users-key: not 32 bytes in base64"),
        ] {
            match parse("t.toml", &text) {
                Ok(loaded) => {
                    assert_eq!(problem, "", "{text}");
                    assert_eq!(loaded.config.panel_of.values().next().map(|of| &**of), Some("store"));
                    let again = parse("t.toml", &super::super::to_toml(&loaded.config)).unwrap();
                    assert_eq!(again.config.store, loaded.config.store, "{text}");
                    assert_eq!(again.config.panel_of, loaded.config.panel_of, "{text}");
                }
                Err(found) => {
                    assert!(!problem.is_empty() && found.to_string().contains(problem), "{found}\n{text}");
                }
            }
        }
    }

    #[test]
    fn replay_groups() {
        const KEY: &str = "replay-key = \"bm90IGEga2V5LCBidXQgYW4gZXhhbXBsZSBvZiBvbmU=\"";
        for (keys, problem) in [
            (format!("replay-group = \"eu\"\n{KEY}"), ""),
            ("replay-group = \"eu\"".into(), "store.replay-group: a replay group needs a key"),
            (KEY.into(), ""),
            (format!("replay-group = \"a:b\"\n{KEY}"), "store.replay-group: "),
            (
                "replay-group = \"eu\"\nreplay-key = \"c2hvcnQ=\"".into(),
                "store.replay-key: not 32 bytes in base64",
            ),
        ] {
            let inbound = "[[inbound]]\nprotocol = \"mixed\"\nlisten = \"127.0.0.1:1\"\n";
            match parse("t.toml", &format!("[store]\nurl = \"redis://h\"\n{keys}\n{inbound}")) {
                Ok(loaded) => {
                    assert_eq!(problem, "", "{keys}");
                    let group = loaded.config.store.as_ref().and_then(|store| store.replay.as_ref());
                    let name = if keys.contains("eu") { "eu" } else { "all" };
                    assert_eq!(&*group.unwrap().name, name);
                    let again = parse("t.toml", &super::super::to_toml(&loaded.config)).unwrap();
                    assert_eq!(again.config.store, loaded.config.store, "{keys}");
                }
                Err(found) => {
                    assert!(!problem.is_empty() && found.to_string().contains(problem), "{found}\n{keys}");
                }
            }
        }
    }

    #[test]
    fn panels_that_cannot_be() {
        const INBOUND: &str = "\n[[inbound]]\nprotocol = \"mixed\"\nlisten = \"127.0.0.1:1\"\n";
        const HEAD: &str = "[[panel]]\nname = \"home\"\nnode = \"1\"\n";
        for (keys, problem) in [
            ("url = \"https://p.example\"\ntoken = \"t0ken\"", ""),
            ("url = \"http://127.0.0.1:80/sub/\"\ntoken = \"t0ken\"", ""),
            ("url = \"http://p.example\"\ninsecure-http = true\ntoken-file = \"/t\"", ""),
            ("url = \"http://p.example\"\ntoken = \"t0ken\"", "panel[0].url: anybody on the way"),
            ("url = \"https://p.example/?a=b\"\ntoken = \"t0ken\"", "panel[0].url: the address must end"),
            ("url = \"https://p.example\"", "panel[0].token: missing"),
            (
                "url = \"https://p.example\"\ntoken = \"t0ken\"\ntoken-file = \"/t\"",
                "token-file: stands for token",
            ),
            ("url = \"https://p.example\"\ntoken = \"t0ken\"\npull = \"0s\"", "pull: must be between"),
            (
                "kind = \"xboard\"\nmachine = \"3\"\nwebsocket = \"wss://w.example/ws\"\nurl = \"https://p.example\"\ntoken = \"t0ken\"",
                "",
            ),
            ("url = \"https://p.example\"\ntoken = \"t0ken\"\nmachine = \"3\"", "machine: only for panels"),
            (
                "kind = \"xboard\"\nurl = \"https://p.example\"\ntoken = \"t0ken\"\nmachine = \"x\"",
                "machine: takes a number",
            ),
            (
                "kind = \"xboard\"\nurl = \"https://p.example\"\ntoken = \"t0ken\"\nwebsocket = \"ws://w.example\"",
                "websocket: anybody on the way",
            ),
            (
                "kind = \"xboard\"\nurl = \"https://p.example\"\ntoken = \"t0ken\"\nwebsocket = \"https://w.example\"",
                "websocket: ",
            ),
            ("url = \"https://p.example\"\ntoken = \"t0ken\"\npin = \"00\"", "pin: not `sha256:`"),
        ] {
            let found = parse("x", &format!("{HEAD}{keys}{INBOUND}"));
            match found {
                Ok(_) => assert!(problem.is_empty(), "{keys}"),
                Err(found) => {
                    let found = found.to_string();
                    assert!(!problem.is_empty() && found.contains(problem), "{keys}: {found}");
                    assert!(!found.contains("t0ken"), "{found}");
                }
            }
        }
    }
}
