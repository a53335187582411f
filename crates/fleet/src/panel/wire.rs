//! Requests to panels and the bodies of their answers. Sources: fleet notes 1.2 to 1.8; v2board of 2026-04, Xboard of
//! 2026-05, SSPanel-UIM of 2024-03 and 2021-01.

use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use adit_model::map::Map;
use adit_model::{Panel, PanelKind, Secret, WebUrl};
use adit_net::call::HttpCall;
use serde::Deserialize;
use serde_json::json;

use super::answer::{MAX_BODY, PanelError};
use super::loose::{List, Loose, Number, Text, Thousandths};
use super::users::{Listed, UserList, Users};
use crate::journal::Rows;

/// Time for an answer. Short limits make doubts.
const LIMIT: Duration = Duration::from_secs(30);
/// Longest id of a user, in bytes: it is part of a name.
const MAX_ID: usize = 64;
/// Longest secret, in bytes.
const MAX_SECRET: usize = 255;
/// Speeds of panels are in Mbit/s of 1,000,000 bits.
const BYTES_OF_MBIT: u64 = 125_000;
/// Everything that Xboard's version 2 takes goes here.
const REPORT: &str = "/api/v2/server/report";
const JSON: &str = "application/json";

/// Sources of users by id.
pub type Online = Map<Box<str>, Vec<IpAddr>>;

/// Requests to one panel.
#[derive(Debug, Clone)]
pub struct Wire {
    panel: Panel,
    token: Secret,
}

/// The node, the start and the number of a report with absolute totals.
#[derive(Debug, Clone, Copy)]
pub struct Stamp<'a> {
    /// The node's id.
    pub node: &'a str,
    /// The number of its start.
    pub boot: u64,
    /// The number of the batch.
    pub seq: u64,
}

impl Wire {
    /// Requests with this token.
    pub fn new(panel: Panel, token: Secret) -> Self {
        Self { panel, token }
    }

    /// Whether the panel takes absolute totals in the place of differences.
    pub fn is_absolute(&self) -> bool {
        self.panel.kind == PanelKind::Hooks
    }

    /// The request for the settings of the node; `None` if there are none.
    pub fn config(&self) -> Option<HttpCall> {
        match self.panel.kind {
            PanelKind::UniProxy => self.get("/api/v1/server/UniProxy/config", "", None),
            PanelKind::Xboard => self.get("/api/v2/server/config", "", None),
            PanelKind::ModMu => {
                let path = format!("/mod_mu/nodes/{}/info", self.panel.node);
                self.get(&path, "", None)
            }
            PanelKind::Hooks => None,
        }
    }

    /// The request for the users, unless they are still those of `version`.
    pub fn users(&self, version: Option<&str>) -> Option<HttpCall> {
        match self.panel.kind {
            PanelKind::UniProxy => self.get("/api/v1/server/UniProxy/user", "", version),
            PanelKind::Xboard => self.get("/api/v2/server/user", "", version),
            PanelKind::ModMu => self.get("/mod_mu/users", "", version),
            PanelKind::Hooks => {
                let since = version.filter(|version| is_plain(version));
                let since = since.map(|version| format!("&since={version}")).unwrap_or_default();
                self.get("/users", &since, None)
            }
        }
    }

    /// The request that tells whether the panel has a WebSocket; `None` if its kind has none.
    pub fn handshake(&self) -> Option<HttpCall> {
        let has_one = self.panel.kind == PanelKind::Xboard;
        has_one.then(|| self.get("/api/v2/server/handshake", "", None)).flatten()
    }

    /// Whether addresses go with counters, in one request.
    pub(super) fn is_merged(&self) -> bool {
        self.panel.kind == PanelKind::Xboard
    }

    /// The request that takes counters: differences, or totals where the panel takes those. `online` goes with them
    /// where the panel takes both in one request.
    pub fn push(&self, rows: &Rows, stamp: Stamp<'_>, online: Option<&Online>) -> Option<HttpCall> {
        let body = match self.panel.kind {
            PanelKind::UniProxy => json!(rows),
            PanelKind::Xboard => match online {
                Some(online) => json!({ "traffic": rows, "alive": online }),
                None => json!({ "traffic": rows }),
            },
            PanelKind::ModMu => {
                let rows =
                    rows.iter().map(|(id, [up, down])| json!({ "user_id": number(id), "u": up, "d": down }));
                json!({ "data": rows.collect::<Vec<_>>() })
            }
            PanelKind::Hooks => {
                let users: Vec<_> = rows.iter().map(|(id, [up, down])| json!([id, up, down])).collect();
                let Stamp { node, boot, seq } = stamp;
                json!({ "node": node, "boot": boot, "seq": seq, "period": 0, "users": users })
            }
        };
        let path = match self.panel.kind {
            PanelKind::UniProxy => "/api/v1/server/UniProxy/push",
            PanelKind::Xboard => REPORT,
            PanelKind::ModMu => "/mod_mu/users/traffic",
            PanelKind::Hooks => "/usage",
        };
        self.post(path, &body)
    }

    /// The request that takes the addresses in use; `None` if the panel wants none. An IPv6 address is the first of its
    /// /64, so that a panel counts it once.
    pub fn alive(&self, online: &Online) -> Option<HttpCall> {
        match self.panel.kind {
            PanelKind::Xboard => self.post(REPORT, &json!({ "alive": online })),
            PanelKind::UniProxy => self.post("/api/v1/server/UniProxy/alive", &json!(online)),
            PanelKind::ModMu => {
                let rows = online.iter().flat_map(|(id, sources)| {
                    sources.iter().map(move |ip| json!({ "ip": ip, "user_id": number(id) }))
                });
                self.post("/mod_mu/users/aliveip", &json!({ "data": rows.collect::<Vec<_>>() }))
            }
            PanelKind::Hooks => None,
        }
    }

    /// Address of a request: the token and the node stand in the query, where these panels want them.
    fn url(&self, path: &str, more: &str) -> Option<WebUrl> {
        let Panel { url, .. } = &self.panel;
        WebUrl::parse(&format!("{}{path}?{}{more}", url.expose(), self.query())).ok()
    }

    /// The part of a query that says who asks.
    pub(super) fn query(&self) -> String {
        let Panel { node, node_type, kind, machine, .. } = &self.panel;
        let token = escaped(self.token.expose());
        match kind {
            PanelKind::Xboard => {
                let machine = machine.as_ref().map(|id| format!("machine_id={id}&")).unwrap_or_default();
                format!("{machine}node_id={node}&token={token}")
            }
            PanelKind::UniProxy => {
                let kind = if node_type.is_empty() {
                    String::new()
                } else {
                    format!("&node_type={}", escaped(node_type))
                };
                format!("token={token}&node_id={node}{kind}")
            }
            PanelKind::ModMu => format!("key={token}&muKey={token}&node_id={node}"),
            PanelKind::Hooks => format!("node={node}"),
        }
    }

    /// The panel.
    pub(super) fn panel(&self) -> &Panel {
        &self.panel
    }

    fn get(&self, path: &str, more: &str, version: Option<&str>) -> Option<HttpCall> {
        let mut headers = self.headers();
        headers.push(("Accept-Encoding".into(), Secret::new("gzip")));
        if let Some(version) = version {
            headers.push(("If-None-Match".into(), Secret::new(version)));
        }
        Some(HttpCall { url: self.url(path, more)?, headers, body: None, max: MAX_BODY, limit: LIMIT })
    }

    fn post(&self, path: &str, body: &serde_json::Value) -> Option<HttpCall> {
        let body = Some((JSON, serde_json::to_vec(body).ok()?));
        Some(HttpCall { url: self.url(path, "")?, headers: self.headers(), body, max: 1 << 20, limit: LIMIT })
    }

    fn headers(&self) -> Vec<(Box<str>, Secret)> {
        let mut headers = vec![
            ("Accept".into(), Secret::new(JSON)),
            ("User-Agent".into(), Secret::new(concat!("adit/", env!("CARGO_PKG_VERSION")))),
        ];
        if self.panel.kind == PanelKind::Hooks {
            headers.push(("Authorization".into(), Secret::new(format!("Bearer {}", self.token.expose()))));
        }
        headers
    }

    /// Takes the settings of the node into `list`. Settings that adit does not follow are returned, to be said once.
    ///
    /// # Errors
    /// When the body is none of the panel's.
    pub fn read_config(&self, body: &[u8], list: &mut UserList) -> Result<Vec<String>, PanelError> {
        if self.panel.kind == PanelKind::ModMu {
            let answer: Answer<MuNode> = parse(body)?;
            let node = answer.data.ok_or(PanelError::Foreign("it has no `data`"))?;
            let MuConfig { method, server_key } = node.custom_config;
            let wrong = [("method", method.is_wrong()), ("server_key", server_key.is_wrong())];
            list.method = method.or_none().filter(|method| is_plain(method));
            list.server_key = server_key.or_none();
            let wrong = wrong.into_iter().filter(|(_, is_wrong)| *is_wrong);
            return Ok(wrong.map(|(name, _)| format!("{name} (of another type)")).collect());
        }
        parse::<UniConfig>(body)?.read(list)
    }

    /// Reads the users into `list`; the number of rows that were left out, because they are none.
    ///
    /// # Errors
    /// When the body is none of the panel's.
    pub fn read_users(&self, body: &[u8], list: &mut UserList) -> Result<usize, PanelError> {
        match self.panel.kind {
            PanelKind::UniProxy | PanelKind::Xboard => {
                let answer: UniUsers = parse(body)?;
                let rows = answer.users.ok_or(PanelError::Foreign("it has no `users`"))?;
                let (users, left_out) = take(rows.0.into_iter().map(UniUser::listed));
                list.users = Arc::new(users);
                Ok(left_out)
            }
            PanelKind::ModMu => {
                let answer: Answer<List<MuUser>> = parse(body)?;
                if answer.ret.or_none() != Some(1) {
                    return Err(PanelError::Foreign("`ret` is not 1"));
                }
                let rows = answer.data.ok_or(PanelError::Foreign("it has no `data`"))?;
                let (users, left_out) = take(rows.0.into_iter().map(MuUser::listed));
                list.users = Arc::new(users);
                Ok(left_out)
            }
            PanelKind::Hooks => self.read_hook(body, list),
        }
    }

    fn read_hook(&self, body: &[u8], list: &mut UserList) -> Result<usize, PanelError> {
        let answer: HookUsers = parse(body)?;
        let version = answer.version.or_none().filter(|version| is_plain(version));
        let rows = answer.users.ok_or(PanelError::Foreign("it has no `users`"))?;
        // A user that goes must not stay since its name cannot be read.
        if answer.removed.0.iter().any(Text::is_wrong) {
            return Err(PanelError::Foreign("`removed` has what is no name"));
        }
        let (users, left_out) = take(rows.0.into_iter().map(HookUser::listed));
        // An answer to `since` holds changes, unless it says that it is whole.
        if list.version.is_none() || answer.full == Some(true) {
            list.users = Arc::new(users);
        } else if !users.is_empty() || !answer.removed.0.is_empty() {
            let all = Arc::make_mut(&mut list.users);
            all.extend(users);
            for id in answer.removed.0.into_iter().filter_map(Text::or_none) {
                all.remove(&*id);
            }
        }
        list.version = version;
        Ok(left_out)
    }
}

fn parse<'b, T: Deserialize<'b>>(body: &'b [u8]) -> Result<T, PanelError> {
    serde_json::from_slice(body).map_err(|_| PanelError::Foreign("its fields are others"))
}

fn is_nothing(value: &serde_json::Value) -> bool {
    value.is_null()
        || value.as_array().is_some_and(Vec::is_empty)
        || value.as_str().is_some_and(str::is_empty)
}

/// Whether a text may stand in names, queries and logs.
pub(super) fn is_plain(text: &str) -> bool {
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte);
    (1..=MAX_ID).contains(&text.len()) && text.bytes().all(is_plain)
}

fn number(id: &str) -> serde_json::Value {
    id.parse::<u64>().map_or_else(|_| id.into(), Into::into)
}

/// A text for a query: everything but letters, digits and `-._~` by its number (RFC 3986, 2.1).
fn escaped(text: &str) -> String {
    text.bytes().fold(String::with_capacity(text.len()), |mut out, byte| {
        if byte.is_ascii_alphanumeric() || b"-._~".contains(&byte) {
            out.push(char::from(byte));
        } else {
            out.push_str(&format!("%{byte:02X}"));
        }
        out
    })
}

/// Rows that are users, by id, and the number of the others. Of two with one id the last counts.
pub(super) fn take(rows: impl Iterator<Item = Option<(String, Listed)>>) -> (Users, usize) {
    let (mut users, mut left_out) = (Users::new(), 0);
    for row in rows {
        let fits = |(id, user): &(String, Listed)| {
            is_plain(id)
                && (1..=MAX_SECRET).contains(&user.secret.len())
                && !user.secret.bytes().any(|byte| byte.is_ascii_control())
        };
        match row.filter(fits) {
            Some((id, user)) => drop(users.insert(id.into(), user)),
            None => left_out += 1,
        }
    }
    (users, left_out)
}

/// A limit, of which 0 is none; `None` for one that cannot be read, which must not become none.
fn bounded(number: Number) -> Option<Option<u32>> {
    let bound = number.known()?.filter(|number| *number > 0);
    Some(bound.map(|number| u32::try_from(number).unwrap_or(u32::MAX)))
}

/// The same for a speed in Mbit/s, in bytes a second.
fn rate(number: Loose<Thousandths>) -> Option<Option<u64>> {
    let rate = number.known()?.filter(|mbit| mbit.0 > 0);
    Some(rate.map(|mbit| mbit.0.saturating_mul(BYTES_OF_MBIT / 1000)))
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct UniConfig {
    #[serde(rename = "server_port")]
    port: Number,
    cipher: Text,
    server_key: Text,
    base_config: UniIntervals,
    routes: Option<serde_json::Value>,
    plugin: Text,
    obfs: Text,
    custom_outbounds: Option<serde_json::Value>,
    custom_routes: Option<serde_json::Value>,
}

impl UniConfig {
    /// The settings of another type than theirs, which do not count.
    fn wrong(&self) -> Vec<String> {
        let Self { port, cipher, server_key, base_config, plugin, obfs, .. } = self;
        let UniIntervals { push_interval, pull_interval, node_report_min_traffic } = base_config;
        let numbers = [
            ("server_port", port),
            ("push_interval", push_interval),
            ("pull_interval", pull_interval),
            ("node_report_min_traffic", node_report_min_traffic),
        ];
        let texts = [("cipher", cipher), ("server_key", server_key), ("plugin", plugin), ("obfs", obfs)];
        let numbers = numbers.into_iter().filter(|(_, value)| value.is_wrong()).map(|(name, _)| name);
        let texts = texts.into_iter().filter(|(_, value)| value.is_wrong()).map(|(name, _)| name);
        numbers.chain(texts).map(|name| format!("{name} (of another type)")).collect()
    }

    /// Takes the settings of the node into `list`; those that adit does not follow.
    pub(super) fn read(self, list: &mut UserList) -> Result<Vec<String>, PanelError> {
        let config = self;
        let mut ignored = config.wrong();
        let (port, cipher) = (config.port.or_none(), config.cipher.or_none());
        if port.is_none() && cipher.is_none() {
            return Err(PanelError::Foreign("it has neither server_port nor cipher"));
        }
        list.method = cipher.filter(|method| is_plain(method));
        list.server_key = config.server_key.or_none().filter(|key| !key.is_empty());
        list.port = port.and_then(|port| u16::try_from(port).ok());
        let interval = |number: Number| number.or_none().filter(|seconds| (1..=86_400).contains(seconds));
        list.pull_s = interval(config.base_config.pull_interval);
        list.push_s = interval(config.base_config.push_interval);
        list.least_bytes =
            config.base_config.node_report_min_traffic.or_none().unwrap_or(0).saturating_mul(1000);
        for (what, is_there) in [
            ("routes", !config.routes.is_none_or(|routes| is_nothing(&routes))),
            ("plugin", config.plugin.or_none().is_some_and(|plugin| !plugin.is_empty())),
            ("obfs", config.obfs.or_none().is_some_and(|obfs| !obfs.is_empty())),
            ("custom_outbounds", !config.custom_outbounds.is_none_or(|it| is_nothing(&it))),
            ("custom_routes", !config.custom_routes.is_none_or(|it| is_nothing(&it))),
        ] {
            if is_there {
                ignored.push(what.to_owned());
            }
        }
        Ok(ignored)
    }
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct UniIntervals {
    push_interval: Number,
    pull_interval: Number,
    node_report_min_traffic: Number,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct UniUsers {
    users: Option<List<UniUser>>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct UniUser {
    pub(super) id: Text,
    uuid: Text,
    speed_limit: Loose<Thousandths>,
    device_limit: Number,
}

impl UniUser {
    pub(super) fn listed(self) -> Option<(String, Listed)> {
        let secret = self.uuid.known()??.into();
        let (rate, addresses) = (rate(self.speed_limit)?, bounded(self.device_limit)?);
        Some((self.id.known()??, Listed { secret, rate, addresses, ..Listed::default() }))
    }
}

/// Answers of `mod_mu`.
#[derive(Debug, Deserialize)]
struct Answer<T> {
    #[serde(default)]
    ret: Number,
    #[serde(default = "none")]
    data: Option<T>,
}

fn none<T>() -> Option<T> {
    None
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct MuNode {
    custom_config: MuConfig,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct MuConfig {
    method: Text,
    server_key: Text,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct MuUser {
    id: Text,
    passwd: Text,
    uuid: Text,
    node_speedlimit: Loose<Thousandths>,
    node_iplimit: Number,
    is_multi_user: Number,
}

impl MuUser {
    fn listed(self) -> Option<(String, Listed)> {
        // The carrier of a shared port is no person (SSPanel of 2021).
        if self.is_multi_user.known()?.is_some_and(|number| number != 0) {
            return None;
        }
        let (passwd, uuid) = (self.passwd.known()?, self.uuid.known()?);
        let (passwd, uuid) = (passwd.filter(|it| !it.is_empty()), uuid.filter(|it| !it.is_empty()));
        let secret = uuid.or_else(|| passwd.clone())?.into();
        let (rate, addresses) = (rate(self.node_speedlimit)?, bounded(self.node_iplimit)?);
        // Of a 2022 node `passwd` is the key itself, in base64.
        let key = passwd.filter(|text| text.len() == 24 || text.len() == 44).map(Into::into);
        Some((self.id.known()??, Listed { secret, key, rate, addresses, ..Listed::default() }))
    }
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct HookUsers {
    version: Text,
    users: Option<List<HookUser>>,
    removed: List<Text>,
    full: Option<bool>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct HookUser {
    id: Text,
    secret: Text,
    key: Text,
    quota: Number,
    reset_day: Number,
    expires: Number,
    rate: Number,
    connections: Number,
    addresses: Number,
}

impl HookUser {
    fn listed(self) -> Option<(String, Listed)> {
        let user = Listed {
            secret: self.secret.known()??.into(),
            key: self.key.known()?.map(Into::into),
            quota: self.quota.known()?,
            reset_day: self.reset_day.known()?.and_then(|day| u8::try_from(day).ok()),
            expires: self.expires.known()?,
            rate: self.rate.known()?.filter(|rate| *rate > 0),
            connections: bounded(self.connections)?,
            addresses: bounded(self.addresses)?,
        };
        Some((self.id.known()??, user))
    }
}

/// Fuzz target: any body is read or refused, and the users that come out can be served.
#[doc(hidden)]
pub fn fuzz_panel_users(data: &[u8]) {
    super::answer::fuzz(data);
    super::events::fuzz(data);
    let url = Secret::new("https://p.example");
    for kind in [PanelKind::UniProxy, PanelKind::Xboard, PanelKind::ModMu, PanelKind::Hooks] {
        let panel = Panel {
            name: "p".into(),
            kind,
            url: url.clone(),
            token: adit_model::PanelToken::Text(Secret::new("t")),
            node: "1".into(),
            node_type: "".into(),
            machine: None,
            websocket: None,
            pins: Vec::new(),
            insecure_http: false,
            in_doubt: adit_model::InDoubt::Hold,
            pull: None,
            push: None,
        };
        let wire = Wire::new(panel, Secret::new("t"));
        let mut list = UserList::default();
        drop(wire.read_config(data, &mut list));
        if wire.read_users(data, &mut list).is_ok() {
            assert!(list.users.keys().all(|id| is_plain(id)));
            assert_eq!(list.model("p", &std::collections::BTreeSet::new()).len(), list.users.len());
        }
    }
}
