//! The messages of Xboard's WebSocket (version 2 of 2026-05), and its address.

use std::sync::Arc;

use adit_model::{Panel, WebUrl};
use serde::Deserialize;
use serde::de::{Deserializer, Error, IgnoredAny, MapAccess, SeqAccess, Visitor};
use serde_json::json;

use super::answer::{PanelError, shown};
use super::loose::{MOST_ROWS, Number, Text, is_too_deep};
use super::users::Users;
use super::wire::{Online, UniConfig, UniUser, is_plain, take};

/// A message of the panel.
#[derive(Debug)]
pub(super) enum PanelEvent {
    /// The panel knows this node.
    Known,
    /// The panel wants an answer.
    Ping,
    /// Settings of the node.
    Config(Box<UniConfig>),
    /// Users have changed.
    Users(UserListChange),
    /// The panel refuses, with its words.
    Refused(String),
    /// Something that adit does not follow, or that is of another node.
    Other,
}

/// A change of the list of users.
#[derive(Debug, Clone)]
pub(super) enum UserListChange {
    /// These are all, and the number of rows that are no users.
    Whole(Users, usize),
    /// These are new, or changed, and the number of rows that are no users.
    Added(Users, usize),
    /// These are gone.
    Removed(Vec<Box<str>>),
}

impl UserListChange {
    /// Applies it to a list.
    pub(super) fn apply(&self, users: &mut Arc<Users>) {
        match self {
            Self::Whole(all, _) => *users = Arc::new(all.clone()),
            Self::Added(some, _) => {
                Arc::make_mut(users).extend(some.iter().map(|(id, of)| (id.clone(), of.clone())))
            }
            Self::Removed(some) => {
                let all = Arc::make_mut(users);
                for id in some {
                    all.remove(id);
                }
            }
        }
    }

    /// Rows of it.
    pub(super) fn len(&self) -> usize {
        match self {
            Self::Whole(users, _) | Self::Added(users, _) => users.len(),
            Self::Removed(ids) => ids.len(),
        }
    }
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Envelope {
    event: Text,
    data: Option<Data>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Data {
    node_id: Number,
    action: Text,
    message: Text,
    config: Option<UniConfig>,
    users: Rows,
}

/// Rows of users. `sync.devices` has a map of the same name, which is passed over.
#[derive(Debug, Default)]
struct Rows(Option<Vec<UniUser>>);

struct AnyRows;

impl<'de> Visitor<'de> for AnyRows {
    type Value = Rows;

    fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("a list")
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<Rows, A::Error> {
        let mut rows = Vec::new();
        while let Some(row) = seq.next_element()? {
            if rows.len() >= MOST_ROWS {
                return Err(A::Error::custom(format_args!("more than {MOST_ROWS} rows")));
            }
            rows.push(row);
        }
        Ok(Rows(Some(rows)))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Rows, A::Error> {
        while map.next_entry::<IgnoredAny, IgnoredAny>()?.is_some() {}
        Ok(Rows(None))
    }

    fn visit_unit<E: Error>(self) -> Result<Rows, E> {
        Ok(Rows(None))
    }
}

impl<'de> Deserialize<'de> for Rows {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(AnyRows)
    }
}

/// Reads a message for `node`. On the connection of a machine each message names its node.
///
/// # Errors
/// When it is none of the panel's.
pub(super) fn read(text: &str, node: u64) -> Result<PanelEvent, PanelError> {
    if is_too_deep(text.as_bytes()) {
        return Err(PanelError::Foreign("a message is nested too deep"));
    }
    let Envelope { event, data } =
        serde_json::from_str(text).map_err(|_| PanelError::Foreign("a message has other fields"))?;
    let data = data.unwrap_or_default();
    let node_id = data.node_id.known().ok_or(PanelError::Foreign("a message names no node"))?;
    if node_id.is_some_and(|of| of != node) {
        return Ok(PanelEvent::Other);
    }
    Ok(match event.as_deref() {
        Some("auth.success") => PanelEvent::Known,
        Some("ping") => PanelEvent::Ping,
        Some("error") => PanelEvent::Refused(shown(data.message.as_deref().unwrap_or("no reason"))),
        Some("sync.config") => match data.config {
            Some(config) => PanelEvent::Config(Box::new(config)),
            None => return Err(PanelError::Foreign("`sync.config` has no settings")),
        },
        Some("sync.users") => {
            let rows = data.users.0.ok_or(PanelError::Foreign("`sync.users` has no users"))?;
            let (users, left_out) = take(rows.into_iter().map(UniUser::listed));
            PanelEvent::Users(UserListChange::Whole(users, left_out))
        }
        Some("sync.user.delta") => PanelEvent::Users(delta(data)?),
        _ => PanelEvent::Other,
    })
}

fn delta(data: Data) -> Result<UserListChange, PanelError> {
    let rows = data.users.0.ok_or(PanelError::Foreign("a change has no users"))?;
    match data.action.as_deref() {
        Some("add") => {
            let (users, left_out) = take(rows.into_iter().map(UniUser::listed));
            Ok(UserListChange::Added(users, left_out))
        }
        Some("remove") => {
            // A user that goes must not stay since its name cannot be read.
            if rows.iter().any(|row| row.id.is_wrong()) {
                return Err(PanelError::Foreign("a change of users has what is no name"));
            }
            let ids = rows.into_iter().filter_map(|row| row.id.or_none()).filter(|id| is_plain(id));
            Ok(UserListChange::Removed(ids.map(Into::into).collect()))
        }
        _ => Err(PanelError::Foreign("a change of users is neither `add` nor `remove`")),
    }
}

/// The answer to a ping.
pub(super) fn pong() -> String {
    json!({ "event": "pong" }).to_string()
}

/// The addresses in use on this node; users without one are forgotten by the panel.
pub(super) fn devices(node: u64, online: &Online) -> String {
    json!({ "event": "report.devices", "data": { "node_id": node, "devices": online } }).to_string()
}

/// The state of this node: it lives, since so many seconds, with so many users.
pub(super) fn status(node: u64, uptime_s: u64, users: usize, active: usize) -> String {
    let data = json!({
        "node_id": node,
        "uptime": uptime_s,
        "total_users": users,
        "active_users": active,
        "kernel_status": true,
    });
    json!({ "event": "node.status", "data": data }).to_string()
}

/// The answer to a handshake.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Handshake {
    websocket: Place,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Place {
    enabled: Flag,
    ws_url: Text,
}

/// A truth as panels send it.
#[derive(Debug, Default)]
struct Flag(bool);

impl<'de> Deserialize<'de> for Flag {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let value = serde_json::Value::deserialize(deserializer)?;
        Ok(Self(value == true || value == 1 || value == "1" || value == "true"))
    }
}

/// The address of the WebSocket that the answer to a handshake names; `None` if there is none now. `query` says who asks,
/// with the token: it goes to the panel's own host alone, or to the place that the configuration names.
///
/// # Errors
/// When the answer is none of the panel's, or names another host, or a way without encryption where the panel has one.
pub(super) fn place(panel: &Panel, body: &[u8], query: &str) -> Result<Option<WebUrl>, PanelError> {
    let answer: Handshake =
        serde_json::from_slice(body).map_err(|_| PanelError::Foreign("its fields are others"))?;
    if !answer.websocket.enabled.0 {
        return Ok(None);
    }
    let said = answer.websocket.ws_url.or_none().unwrap_or_default();
    let mut url = match &panel.websocket {
        Some(own) => WebUrl::of_websocket(own.expose())
            .map_err(|_| PanelError::Foreign("`websocket` is no address"))?,
        None => own_place(panel, &said)?,
    };
    let mark = if url.path.contains('?') { '&' } else { '?' };
    url.path = format!("{}{mark}{query}", url.path).into();
    Ok(Some(url))
}

fn own_place(panel: &Panel, said: &str) -> Result<WebUrl, PanelError> {
    let url = WebUrl::of_websocket(said)
        .map_err(|_| PanelError::Foreign("the address of its WebSocket is none"))?;
    let own = WebUrl::parse(panel.url.expose()).map_err(|_| PanelError::Foreign("its address is none"))?;
    let host = |url: &WebUrl| url.target.host.to_string().to_ascii_lowercase();
    if host(&url) != host(&own) {
        return Err(PanelError::Foreign(
            "its WebSocket is on another host, which would read the token: name it with `websocket` if it is right",
        ));
    }
    if !own.tls || url.tls {
        return Ok(url);
    }
    // A panel behind a front that ends TLS names itself without it.
    if url.authority.eq_ignore_ascii_case(&own.authority) {
        return Ok(WebUrl { path: url.path, ..own });
    }
    Err(PanelError::Foreign("its WebSocket is not encrypted: name it with `websocket`"))
}

/// For the fuzz target of panels: `data` as a message. Users of a change can be served.
pub(super) fn fuzz(data: &[u8]) {
    if let Ok(PanelEvent::Users(change)) = read(&String::from_utf8_lossy(data), 17) {
        let mut users = Arc::default();
        change.apply(&mut users);
        assert!(users.len() <= MOST_ROWS && users.keys().all(|id| is_plain(id)));
    }
}

#[cfg(test)]
mod tests {
    use adit_model::{InDoubt, PanelKind, PanelToken, Secret};

    use super::*;

    fn users(event: Result<PanelEvent, PanelError>) -> UserListChange {
        let PanelEvent::Users(change) = event.unwrap() else { panic!("no change of users") };
        change
    }

    #[test]
    fn messages_with_their_quirks() {
        let whole = r#"{"event":"sync.users","data":{"users":[{"id":"7","uuid":"u7","speed_limit":"10","device_limit":null},{"id":5,"uuid":"u5"},{"id":6}]},"timestamp":1}"#;
        let UserListChange::Whole(all, left_out) = users(read(whole, 17)) else { panic!() };
        assert_eq!((all.len(), left_out, all["7"].rate), (2, 1, Some(1_250_000)));
        let mut list = Arc::new(all);
        let add = r#"{"event":"sync.user.delta","data":{"action":"add","node_id":"17","users":[{"id":5,"uuid":"other","device_limit":"2"}]}}"#;
        users(read(add, 17)).apply(&mut list);
        assert_eq!((&*list["5"].secret, list["5"].addresses), ("other", Some(2)));
        let remove = r#"{"event":"sync.user.delta","data":{"action":"remove","users":[{"id":7},{"id":"5"},{"id":9}]}}"#;
        users(read(remove, 17)).apply(&mut list);
        assert!(list.is_empty());
        assert!(matches!(read(add, 18).unwrap(), PanelEvent::Other), "another node of the machine");
        assert!(matches!(read(r#"{"event":"ping"}"#, 1).unwrap(), PanelEvent::Ping));
        assert!(matches!(read(r#"{"event":"auth.success","data":[]}"#, 1).unwrap(), PanelEvent::Known));
        // A map, as PHP writes one that has keys, and a list where it has none.
        for devices in [r#"{"5":["192.0.2.1"]}"#, "[]"] {
            let text = format!(r#"{{"event":"sync.devices","data":{{"users":{devices}}}}}"#);
            assert!(matches!(read(&text, 1).unwrap(), PanelEvent::Other), "{devices}");
        }
        let error = r#"{"event":"error","data":{"message":"invalid\u0007 token"}}"#;
        assert!(matches!(read(error, 1).unwrap(), PanelEvent::Refused(why) if why == "invalid token"));
        let config =
            r#"{"event":"sync.config","data":{"config":{"server_port":"443","cipher":"aes-256-gcm"}}}"#;
        let PanelEvent::Config(config) = read(config, 1).unwrap() else { panic!() };
        let mut list = super::super::UserList::default();
        config.read(&mut list).unwrap();
        assert_eq!((list.port, list.method.as_deref()), (Some(443), Some("aes-256-gcm")));
    }

    #[test]
    fn messages_that_are_none() {
        let many = "[".repeat(40);
        for text in [
            "",
            "x",
            "{",
            &many,
            r#"{"event":"sync.users","data":{}}"#,
            r#"{"event":"sync.users"}"#,
            r#"{"event":"sync.config","data":{}}"#,
            r#"{"event":"sync.user.delta","data":{"action":"drop","users":[]}}"#,
            r#"{"event":"sync.user.delta","data":{"action":"add"}}"#,
            r#"{"event":"sync.users","data":{"users":"all"}}"#,
        ] {
            assert!(read(text, 1).is_err(), "{text}");
        }
        let whole = r#"{"event":"sync.user.delta","data":{"action":"add","users":[{"id":5,"uuid":"u"}]}}"#;
        for len in 0..whole.len() {
            assert!(read(&whole[..len], 1).is_err(), "{len} bytes");
        }
    }

    #[test]
    fn the_token_goes_to_the_panels_own_host() {
        let panel = |url: &str, websocket: Option<&str>| Panel {
            name: "p".into(),
            kind: PanelKind::Xboard,
            url: Secret::new(url),
            token: PanelToken::Text(Secret::new("t")),
            node: "17".into(),
            node_type: "".into(),
            machine: None,
            websocket: websocket.map(Secret::new),
            pins: Vec::new(),
            insecure_http: false,
            in_doubt: InDoubt::Hold,
            pull: None,
            push: None,
        };
        let ask = |url: &str, own: Option<&str>, said: &str| {
            let body = format!(r#"{{"websocket":{{"enabled":true,"ws_url":"{said}"}}}}"#);
            let found = place(&panel(url, own), body.as_bytes(), "token=t");
            found.map(|url| url.map(|url| (url.tls, url.authority.to_string(), url.path.to_string()))).ok()
        };
        let at = |tls, authority: &str, path: &str| Some(Some((tls, authority.to_owned(), path.to_owned())));
        assert_eq!(
            ask("https://p.example", None, "wss://P.example/ws"),
            at(true, "P.example", "/ws?token=t")
        );
        assert_eq!(
            ask("https://p.example", None, "wss://p.example:8443/ws?a=1"),
            at(true, "p.example:8443", "/ws?a=1&token=t")
        );
        // Behind a front that ends TLS.
        assert_eq!(ask("https://p.example", None, "ws://p.example/ws"), at(true, "p.example", "/ws?token=t"));
        assert_eq!(
            ask("http://127.0.0.1:80", None, "ws://127.0.0.1:81"),
            at(false, "127.0.0.1:81", "/?token=t")
        );
        for said in [
            "ws://p.example:8076/ws",
            "wss://q.example/ws",
            "https://p.example/ws",
            "",
            "wss://p.example@q.example/",
        ] {
            assert_eq!(ask("https://p.example", None, said), None, "{said}");
        }
        let own = Some("wss://q.example/w");
        assert_eq!(ask("https://p.example", own, "ws://evil.example"), at(true, "q.example", "/w?token=t"));
        for body in
            [r#"{"websocket":{"enabled":false}}"#, "{}", r#"{"websocket":{"enabled":null,"ws_url":"x"}}"#]
        {
            assert!(
                place(&panel("https://p.example", None), body.as_bytes(), "").unwrap().is_none(),
                "{body}"
            );
        }
        assert!(place(&panel("https://p.example", None), b"[1,2", "").is_err());
    }
}
