use adit_model::{InDoubt, PanelToken};
use adit_model::{Panel, PanelKind, Secret};

use super::wire::*;
use super::*;
use crate::journal::Rows;

fn wire(kind: PanelKind) -> Wire {
    let panel = Panel {
        name: "home".into(),
        kind,
        url: Secret::new("https://panel.example/sub"),
        token: PanelToken::Text(Secret::new("unused")),
        node: "17".into(),
        node_type: "shadowsocks".into(),
        machine: None,
        websocket: None,
        pins: Vec::new(),
        insecure_http: false,
        in_doubt: InDoubt::Hold,
        pull: None,
        push: None,
    };
    Wire::new(panel, Secret::new("a&b c"))
}

fn stamp() -> Stamp<'static> {
    Stamp { node: "ab", boot: 2, seq: 3 }
}

fn rows() -> Rows {
    [("5".into(), [1, 2]), ("7".into(), [3, 4])].into()
}

fn text(call: Option<adit_net::call::HttpCall>) -> (String, String) {
    let call = call.unwrap();
    let body = call.body.map(|(_, body)| String::from_utf8(body).unwrap()).unwrap_or_default();
    (call.url.path.to_string(), body)
}

#[test]
fn requests_of_each_panel() {
    let uni = wire(PanelKind::UniProxy);
    let query = "token=a%26b%20c&node_id=17&node_type=shadowsocks";
    assert_eq!(text(uni.config()).0, format!("/sub/api/v1/server/UniProxy/config?{query}"));
    let (path, body) = text(uni.push(&rows(), stamp(), None));
    assert_eq!(path, format!("/sub/api/v1/server/UniProxy/push?{query}"));
    assert_eq!(body, r#"{"5":[1,2],"7":[3,4]}"#);
    let online = [("5".into(), vec!["192.0.2.1".parse().unwrap(), "2001:db8::".parse().unwrap()])].into();
    assert_eq!(text(uni.alive(&online)).1, r#"{"5":["192.0.2.1","2001:db8::"]}"#);
    let xboard = wire(PanelKind::Xboard);
    assert_eq!(text(xboard.config()).0, "/sub/api/v2/server/config?node_id=17&token=a%26b%20c");
    assert_eq!(text(xboard.handshake()).0, "/sub/api/v2/server/handshake?node_id=17&token=a%26b%20c");
    let (path, body) = text(xboard.push(&rows(), stamp(), Some(&online)));
    assert_eq!(path, "/sub/api/v2/server/report?node_id=17&token=a%26b%20c");
    assert_eq!(body, r#"{"alive":{"5":["192.0.2.1","2001:db8::"]},"traffic":{"5":[1,2],"7":[3,4]}}"#);
    assert_eq!(text(xboard.alive(&online)).1, r#"{"alive":{"5":["192.0.2.1","2001:db8::"]}}"#);
    assert!(uni.handshake().is_none());
    let mu = wire(PanelKind::ModMu);
    assert_eq!(text(mu.config()).0, "/sub/mod_mu/nodes/17/info?key=a%26b%20c&muKey=a%26b%20c&node_id=17");
    assert_eq!(
        text(mu.push(&rows(), stamp(), None)).1,
        r#"{"data":[{"d":2,"u":1,"user_id":5},{"d":4,"u":3,"user_id":7}]}"#
    );
    let hooks = wire(PanelKind::Hooks);
    assert!(hooks.config().is_none() && hooks.alive(&online).is_none() && hooks.is_absolute());
    assert_eq!(text(hooks.users(Some("v9"))).0, "/sub/users?node=17&since=v9");
    let (path, body) = text(hooks.push(&rows(), stamp(), None));
    assert_eq!(path, "/sub/usage?node=17", "the token stands in a field");
    assert_eq!(body, r#"{"boot":2,"node":"ab","period":0,"seq":3,"users":[["5",1,2],["7",3,4]]}"#);
}

#[test]
fn users_of_uniproxy_with_its_quirks() {
    let wire = wire(PanelKind::UniProxy);
    let read = |body: &str| {
        let mut list = UserList::default();
        wire.read_users(body.as_bytes(), &mut list).map(|left_out| (list.users, left_out))
    };
    // Numbers as text, null, absent; rows in any order; a row that is none.
    let (users, left_out) = read(
        r#"{"users":[{"id":"9","uuid":"u-9","speed_limit":"100","device_limit":null,"x":[[{}]]},
           {"id":3,"uuid":"u-3","speed_limit":0,"device_limit":"2"},{"id":4},{"id":"../x","uuid":"u"},
           {"id":5,"uuid":""},{"id":6,"uuid":"a\nb"},{"id":-1,"uuid":"u"},{"id":9,"uuid":"u-99"}]}"#,
    )
    .unwrap();
    assert_eq!(users.keys().map(|id| &**id).collect::<Vec<_>>(), ["-1", "3", "9"]);
    assert_eq!(left_out, 4);
    assert_eq!((&*users["9"].secret, users["9"].rate), ("u-99", None), "the last of two counts");
    assert_eq!((users["3"].rate, users["3"].addresses), (None, Some(2)));
    let (other, _) = read(r#"{"users":[{"id":1,"uuid":"a"},{"id":2,"uuid":"b"}]}"#).unwrap();
    let (order, _) = read(r#"{"users":[{"id":2,"uuid":"b"},{"id":1,"uuid":"a"}]}"#).unwrap();
    assert_eq!(other, order);
    assert_eq!(read(r#"{"users":[]}"#).unwrap().0.len(), 0);
    for body in ["{}", "[]", r#"{"users":{}}"#, r#"{"users":[1]}"#, r#"{"message":"x"}"#, "{\"users\":["] {
        assert!(read(body).is_err(), "{body}");
    }
}

#[test]
fn settings_of_uniproxy() {
    let wire = wire(PanelKind::UniProxy);
    let mut list = UserList::default();
    let body = r#"{"server_port":"443","cipher":"2022-blake3-aes-128-gcm","server_key":"MjQ5MjBkZWNmODNmNjk2MA==",
        "base_config":{"push_interval":"30","pull_interval":45,"node_report_min_traffic":"2"},"plugin":null,
        "routes":[{"id":1,"match":["a"],"action":"block"}],"obfs":null,"custom_outbounds":[]}"#;
    assert_eq!(wire.read_config(body.as_bytes(), &mut list).unwrap(), ["routes"]);
    let UserList { method, server_key, port, pull_s, push_s, least_bytes, .. } = list;
    assert_eq!(method.as_deref(), Some("2022-blake3-aes-128-gcm"));
    assert!(server_key.is_some());
    assert_eq!((port, pull_s, push_s, least_bytes), (Some(443), Some(45), Some(30), 2000));
    assert!(wire.read_config(b"{\"message\":\"x\"}", &mut UserList::default()).is_err());
}

#[test]
fn users_of_mod_mu() {
    let wire = wire(PanelKind::ModMu);
    let mut list = UserList::default();
    let body = r#"{"ret":1,"data":[{"id":1,"node_speedlimit":10,"node_iplimit":2,"passwd":"YzAwNjdkNGFmNGU4N2YwMA==","alive_ip":1},
        {"id":2,"uuid":"u-2"},{"id":3,"passwd":"carrier","is_multi_user":2},{"id":4,"method":"x","port":1,"passwd":"p"}]}"#;
    assert_eq!(wire.read_users(body.as_bytes(), &mut list).unwrap(), 1);
    assert_eq!(list.users["1"].key.as_deref(), Some("YzAwNjdkNGFmNGU4N2YwMA=="));
    assert_eq!((list.users["1"].rate, list.users["1"].addresses), (Some(1_250_000), Some(2)));
    assert_eq!((&*list.users["2"].secret, &*list.users["4"].secret), ("u-2", "p"));
    assert!(wire.read_users(br#"{"ret":0,"msg":"no"}"#, &mut list).is_err());
    let body = br#"{"ret":1,"data":{"sort":1,"custom_config":{"method":"2022-blake3-aes-128-gcm","server_key":"k"}}}"#;
    wire.read_config(body, &mut list).unwrap();
    assert_eq!(list.method.as_deref(), Some("2022-blake3-aes-128-gcm"));
}

#[test]
fn changes_of_hooks() {
    let wire = wire(PanelKind::Hooks);
    let mut list = UserList::default();
    let mut read = |body: &str| {
        wire.read_users(body.as_bytes(), &mut list).unwrap();
        (list.version.clone(), list.users.keys().map(ToString::to_string).collect::<Vec<_>>().concat())
    };
    let users = r#""users":[{"id":"a","secret":"1","quota":"100","reset_day":3},{"id":"b","secret":"2"}]"#;
    assert_eq!(read(&format!("{{\"version\":1,{users}}}")), (Some("1".into()), "ab".into()));
    let change = r#"{"version":"2","users":[{"id":"c","secret":"3"}],"removed":["a"]}"#;
    assert_eq!(read(change), (Some("2".into()), "bc".into()));
    assert_eq!(read(r#"{"version":3,"users":[],"full":true}"#), (Some("3".into()), String::new()));
}

/// Values of all types, empty ones among them.
const VALUES: [&str; 11] =
    ["\"zz\"", "\"\"", "7", "\"7\"", "1.5", "-7", "true", "false", "[]", "{\"a\": 1}", "null"];

#[test]
fn a_limit_of_a_wrong_type_is_never_none() {
    let number = ["\"\"", "7", "\"7\"", "null"];
    let speed = ["\"\"", "7", "\"7\"", "1.5", "null"];
    let text = ["\"zz\"", "\"\"", "7", "\"7\"", "-7", "null"];
    for (kind, frame, key, right) in [
        (
            PanelKind::UniProxy,
            r#"{"users": [{"id": 1, "uuid": "u", "KEY": VALUE}]}"#,
            "speed_limit",
            &speed[..],
        ),
        (
            PanelKind::UniProxy,
            r#"{"users": [{"id": 1, "uuid": "u", "KEY": VALUE}]}"#,
            "device_limit",
            &number,
        ),
        (PanelKind::Xboard, r#"{"users": [{"id": 1, "uuid": "u", "KEY": VALUE}]}"#, "speed_limit", &speed),
        (
            PanelKind::ModMu,
            r#"{"ret": 1, "data": [{"id": 1, "uuid": "u", "KEY": VALUE}]}"#,
            "node_speedlimit",
            &speed,
        ),
        (
            PanelKind::ModMu,
            r#"{"ret": 1, "data": [{"id": 1, "uuid": "u", "KEY": VALUE}]}"#,
            "node_iplimit",
            &number,
        ),
        (PanelKind::Hooks, r#"{"users": [{"id": 1, "secret": "u", "KEY": VALUE}]}"#, "quota", &number),
        (PanelKind::Hooks, r#"{"users": [{"id": 1, "secret": "u", "KEY": VALUE}]}"#, "reset_day", &number),
        (PanelKind::Hooks, r#"{"users": [{"id": 1, "secret": "u", "KEY": VALUE}]}"#, "expires", &number),
        (PanelKind::Hooks, r#"{"users": [{"id": 1, "secret": "u", "KEY": VALUE}]}"#, "rate", &number),
        (PanelKind::Hooks, r#"{"users": [{"id": 1, "secret": "u", "KEY": VALUE}]}"#, "connections", &number),
        (PanelKind::Hooks, r#"{"users": [{"id": 1, "secret": "u", "KEY": VALUE}]}"#, "addresses", &number),
        (PanelKind::Hooks, r#"{"users": [{"id": 1, "secret": "u", "KEY": VALUE}]}"#, "key", &text),
    ] {
        for value in VALUES {
            let body = frame.replace("KEY", key).replace("VALUE", value);
            let mut list = UserList::default();
            let left_out = wire(kind).read_users(body.as_bytes(), &mut list).unwrap();
            let is_right = right.contains(&value);
            assert_eq!((list.users.len(), left_out), if is_right { (1, 0) } else { (0, 1) }, "{body}");
            let nothing = Listed { secret: "u".into(), ..Listed::default() };
            let is_limited = list.users.values().any(|user| *user != nothing);
            assert_eq!(
                is_limited,
                is_right && !matches!(value, "\"\"" | "null") || is_empty_key(key, value),
                "{body}"
            );
        }
    }
    let mut list = UserList::default();
    let body = r#"{"users": [{"id": 1, "uuid": "u", "speed_limit": 0.5}]}"#;
    assert_eq!(wire(PanelKind::UniProxy).read_users(body.as_bytes(), &mut list).unwrap(), 0);
    assert_eq!(list.users["1"].rate, Some(62_500));
}

/// An empty key is one that fits no method.
fn is_empty_key(key: &str, value: &str) -> bool {
    (key, value) == ("key", "\"\"")
}

#[test]
fn what_cannot_be_read_is_told() {
    let body = r#"{"server_port": 443, "cipher": ["aes-256-gcm"], "base_config": {"push_interval": true}}"#;
    let told = wire(PanelKind::UniProxy).read_config(body.as_bytes(), &mut UserList::default()).unwrap();
    assert_eq!(told, ["push_interval (of another type)", "cipher (of another type)"]);
    let removed = br#"{"version": 2, "users": [], "removed": [{"id": 1}]}"#;
    let mut list = UserList { version: Some("1".into()), ..UserList::default() };
    assert!(wire(PanelKind::Hooks).read_users(removed, &mut list).is_err());
}

#[test]
fn any_bytes() {
    for body in ["", "{}", "[[[]]]", r#"{"users":[{"id":{},"uuid":[]}],"data":[{"id":1}]}"#, "\u{0}"] {
        fuzz_panel_users(body.as_bytes());
    }
}
