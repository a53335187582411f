//! The rows of `[[panel]]` and `[store]`.

use std::time::Duration;

use adit_model::{InDoubt, PanelKind, Secret, StoreAway, WebUrl};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;

use super::{ALL, Row, all_quoted, any_text, chosen, exposed, flag, row, rows, span};
use crate::adit_toml::fields::Spanned;
use crate::adit_toml::keys::{TomlTable, key};
use crate::read::value::{Problem, quote, secret, text_of};

/// Longest address, token and path, in bytes.
const MAX_TEXT: usize = 2048;
/// Longest number or code of a node, in bytes.
const MAX_NODE: usize = 128;
/// Longest name of a fleet, in bytes: it is part of every key.
const MAX_FLEET: usize = 64;

pub(in crate::adit_toml) const PANEL_KINDS: &[(&str, PanelKind)] = &[
    ("uniproxy", PanelKind::UniProxy),
    ("xboard", PanelKind::Xboard),
    ("mod-mu", PanelKind::ModMu),
    ("hooks", PanelKind::Hooks),
];
const IN_DOUBTS: &[(&str, InDoubt)] =
    &[("hold", InDoubt::Hold), ("resend", InDoubt::Resend), ("drop", InDoubt::Drop)];
const AWAYS: &[(&str, StoreAway)] =
    &[("allowance", StoreAway::Allowance), ("open", StoreAway::Open), ("closed", StoreAway::Closed)];

rows! { FLEET;
    PANEL_NAME: Row<Box<str>, str> = row(key("name", "letters, digits, -, _ and .", "\"home\"")
        .at(TomlTable::Panel, ALL, "required", "name of the panel, in `panel` of inbounds; part of the key of its users' counters, so it should not change"),
        |field, report| field.parsed(report, node), quote);
    PANEL_KIND: Row<PanelKind> = row(key("kind", "uniproxy, xboard, mod-mu or hooks", "\"mod-mu\"")
        .at(TomlTable::Panel, ALL, "uniproxy", "interface of the panel: UniProxy of v2board and Xboard, version 2 of Xboard with its WebSocket, mod_mu of SSPanel, or adit's own hooks"),
        |field, report| field.choice(report, PANEL_KINDS), |kind| chosen(PANEL_KINDS, kind));
    PANEL_URL: Row<Secret> = row(key("url", "address that begins with https:// or http://", "\"https://panel.example.com\"")
        .at(TomlTable::Panel, ALL, "required", "address of the panel, without the path of the interface; http:// to loopback alone unless insecure-http is true"),
        |field, report| field.parsed(report, url), exposed);
    PANEL_TOKEN: Row<Secret> = row(key("token", "text", "\"change me\"")
        .at(TomlTable::Panel, ALL, "required without token-file", "token of the node"),
        |field, report| field.parsed(report, |text| secret(text, MAX_TEXT)), exposed);
    PANEL_TOKEN_FILE: Row<Box<str>, str> = row(key("token-file", "path of a file", "\"/etc/adit/panel.token\"")
        .at(TomlTable::Panel, ALL, "none", "file with the token on its first line, in the place of token"),
        |field, report| field.parsed(report, |text| text_of(text, MAX_TEXT)), quote);
    PANEL_NODE: Row<Box<str>, str> = row(key("node", "number or code", "\"17\"")
        .at(TomlTable::Panel, ALL, "required", "number or code of this node at the panel"),
        |field, report| field.parsed(report, node), quote);
    PANEL_TYPE: Row<Box<str>, str> = any_text(key("node-type", "text", "\"v2node\"")
        .at(TomlTable::Panel, ALL, "shadowsocks", "type of this node at the panel; empty for none"));
    PANEL_MACHINE: Row<Box<str>, str> = row(key("machine", "number", "\"3\"")
        .at(TomlTable::Panel, ALL, "none", "number of this machine at a panel of kind xboard; the token is then that of the machine, which opens its own nodes alone"),
        |field, report| field.parsed(report, number), quote);
    PANEL_WEBSOCKET: Row<Secret> = row(key("websocket", "address that begins with wss:// or ws://", "\"wss://ws.example.com/ws\"")
        .at(TomlTable::Panel, ALL, "as the panel says, on its own host", "WebSocket of a panel of kind xboard, where it is on another host than the panel; ws:// to loopback alone unless insecure-http is true"),
        |field, report| field.parsed(report, websocket), exposed);
    PANEL_PINS: Row<Vec<Spanned<[u8; 32]>>, [[u8; 32]]> = row(key("pin", "SHA-256 digest in hex, or two", "\"sha256:9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08\"")
        .at(TomlTable::Panel, ALL, "none", "takes a certificate with one of these digests alone, in the place of signatures and names"),
        |field, report| field.list(report, 2, pin), pins);
    PANEL_INSECURE: Row<bool> = flag(key("insecure-http", "true or false", "true")
        .at(TomlTable::Panel, ALL, "false", "allows http:// beyond loopback: anybody on the way reads the token and all users, and changes them"));
    PANEL_IN_DOUBT: Row<InDoubt> = row(key("in-doubt", "hold, resend or drop", "\"resend\"")
        .at(TomlTable::Panel, ALL, "hold", "counters whose request was sent and not answered clearly: kept and shown by `adit panel doubt`, sent again (they may count twice), or given up"),
        |field, report| field.choice(report, IN_DOUBTS), |policy| chosen(IN_DOUBTS, policy));
    PANEL_PULL: Row<Duration> = span(key("pull", "duration", "\"2m\"")
        .at(TomlTable::Panel, ALL, "as the panel says, or 60s", "time between two requests for the users"));
    PANEL_PUSH: Row<Duration> = span(key("push", "duration", "\"2m\"")
        .at(TomlTable::Panel, ALL, "as the panel says, or 60s", "time between two batches of counters"));

    STORE_URL: Row<Secret> = row(key("url", "redis://, rediss:// or unix:// address", "\"redis://127.0.0.1:6379\"")
        .at(TomlTable::Store, ALL, "required", "the Redis or Valkey server; user and password stand before an @"),
        |field, report| field.parsed(report, store_url), exposed);
    STORE_FLEET: Row<Box<str>, str> = row(key("fleet", "letters, digits, - and _", "\"main\"")
        .at(TomlTable::Store, ALL, "adit", "name of the fleet, part of every key"),
        |field, report| field.parsed(report, fleet), quote);
    STORE_AWAY: Row<StoreAway> = row(key("away", "allowance, open or closed", "\"closed\"")
        .at(TomlTable::Store, ALL, "allowance", "quotas while the store is away: an eighth of the rest, at most a 200th of the quota; none; or all users with a quota are refused"),
        |field, report| field.choice(report, AWAYS), |away| chosen(AWAYS, away));
    STORE_EVERY: Row<Duration> = span(key("every", "duration, 1s to 5m", "\"10s\"")
        .at(TomlTable::Store, ALL, "5s", "time between two synchronisations of users with traffic"));
    STORE_SENTINEL: Row<Box<str>, str> = row(key("sentinel", "name of a master", "\"mymaster\"")
        .at(TomlTable::Store, ALL, "none", "master that the Sentinel at `url` is asked for"),
        |field, report| field.parsed(report, |text| text_of(text, MAX_FLEET)), quote);
    STORE_USERS_KEY: Row<Secret> = row(key("users-key", "32 bytes in base64", "\"bm90IGEga2V5LCBidXQgYW4gZXhhbXBsZSBvZiBvbmU=\"")
        .at(TomlTable::Store, ALL, "none", "the store lists users, for inbounds with panel = \"store\"; this key opens their credentials, and is the same on all nodes"),
        |field, report| field.parsed(report, users_key), exposed);
    STORE_REPLAY_GROUP: Row<Box<str>, str> = row(key("replay-group", "letters, digits, - and _", "\"eu\"")
        .at(TomlTable::Store, ALL, "all", "name of the replay group, at most 16 nodes with the same keys; needs replay-key"),
        |field, report| field.parsed(report, fleet), quote);
    STORE_REPLAY_KEY: Row<Secret> = row(key("replay-key", "32 bytes in base64", "\"bm90IGEga2V5LCBidXQgYW4gZXhhbXBsZSBvZiBvbmU=\"")
        .at(TomlTable::Store, ALL, "none", "nodes of a replay group share the salts that have opened streams: a recorded connection is refused at the others after some seconds; this secret of the fingerprints is the same on all of them"),
        |field, report| field.parsed(report, users_key), exposed);
}

fn users_key(text: &str) -> Result<Secret, Problem> {
    match STANDARD.decode(text) {
        Ok(key) if key.len() == 32 => Ok(Secret::new(text)),
        _ => Err(Problem::new("not 32 bytes in base64")
            .hint("`adit key 2022-blake3-aes-256-gcm` prints a fresh key")),
    }
}

fn url(text: &str) -> Result<Secret, Problem> {
    let text = text_of(text, MAX_TEXT)?;
    match WebUrl::parse(&text) {
        Ok(url) if url.path.contains('?') => Err(Problem::new("the address must end before a `?`")),
        Ok(_) => Ok(Secret::new(text.trim_end_matches('/'))),
        Err(error) => Err(Problem::new(error.to_string())),
    }
}

/// A number as the panel gives it, at most 19 digits.
fn number(text: &str) -> Result<Box<str>, Problem> {
    match text.parse::<u64>() {
        Ok(number @ 1..) => Ok(number.to_string().into()),
        _ => Err(Problem::new("takes a number from 1 on")),
    }
}

fn websocket(text: &str) -> Result<Secret, Problem> {
    let text = text_of(text, MAX_TEXT)?;
    match WebUrl::of_websocket(&text) {
        Ok(url) if url.path.contains('?') => Err(Problem::new("the address must end before a `?`")),
        Ok(_) => Ok(Secret::new(&*text)),
        Err(error) => Err(Problem::new(error.to_string()).hint("write wss:// and a host")),
    }
}

/// A number or code that stands in a query as it is.
fn node(text: &str) -> Result<Box<str>, Problem> {
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte);
    if text.is_empty() || !text.bytes().all(is_plain) {
        return Err(Problem::new("takes letters, digits, `-`, `_` and `.` alone"));
    }
    text_of(text, MAX_NODE)
}

fn fleet(text: &str) -> Result<Box<str>, Problem> {
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-_".contains(&byte);
    if text.is_empty() || !text.bytes().all(is_plain) {
        return Err(Problem::new("takes letters, digits, `-` and `_` alone"));
    }
    text_of(text, MAX_FLEET)
}

fn store_url(text: &str) -> Result<Secret, Problem> {
    let known = ["redis://", "rediss://", "unix:///"];
    if !known.iter().any(|scheme| text.starts_with(scheme)) {
        return Err(Problem::new("must begin with redis://, rediss:// or unix:///"));
    }
    secret(text, MAX_TEXT)
}

fn pin(text: &str) -> Result<[u8; 32], Problem> {
    let digits = text.strip_prefix("sha256:").unwrap_or(text);
    super::choice::digest(digits).ok_or_else(|| Problem::new("not `sha256:` and 64 digits of hex"))
}

fn pins(all: &[[u8; 32]]) -> String {
    let texts: Vec<String> =
        all.iter().map(|digest| format!("sha256:{}", super::choice::digest_text(digest))).collect();
    all_quoted(&texts)
}
