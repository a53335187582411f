//! State of the interface, and the calls that ask the engine.

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, Instant};

use adit_engine::{DelayError, Kicked, Observer, Proxies};
use adit_model::map::Map;
use adit_model::{Controller, DelayTest, ListKind, Provider, ProviderKind};
use adit_net::rt::{self, OrderSender};
use adit_net::usage;
use adit_net::web::live::{Given, LiveRequest, Text};
use serde_json::{Value, json};

use super::text::{bad, id_of, json, line, message, missing, nothing, query, time};
use super::views::{self, Ends};
use crate::run::overlay;
use crate::run::reload::Requests;

/// Values that clients may keep here, and their size together in bytes.
const MOST_KEYS: usize = 64;
const MOST_STORED: usize = 1 << 20;
/// Tests at a time of one check.
const TESTS: usize = 10;

/// The interface.
pub(super) struct ClashApi {
    controller: RefCell<Rc<Controller>>,
    pub(super) proxies: Proxies,
    pub(super) observer: Observer,
    requests: Arc<Requests>,
    /// Streams that are open.
    pub(super) streams: Rc<Cell<usize>>,
    /// The time from which the turns of streams are counted.
    began: Instant,
    /// Seconds from 1970 to the start.
    pub(super) born: u64,
    /// The latest list of connections, which all streams share.
    latest: RefCell<Option<(Instant, Text)>>,
    /// Times at which the connections of that list began.
    starts: RefCell<Map<u64, String>>,
    /// Values that clients keep here.
    stored: RefCell<Map<String, Vec<u8>>>,
}

impl ClashApi {
    pub(crate) fn new(proxies: Proxies, observer: Observer, requests: Arc<Requests>) -> Self {
        let born = observer.status().started_unix_s;
        let (streams, latest, starts, stored) = Default::default();
        let began = rt::now();
        let controller = RefCell::default();
        Self { controller, proxies, observer, requests, streams, began, born, latest, starts, stored }
    }

    /// The settings of the interface.
    pub(super) fn controller(&self) -> Rc<Controller> {
        self.controller.borrow().clone()
    }

    /// The interface has these settings from now on.
    pub(super) fn set_controller(&self, controller: Controller) {
        *self.controller.borrow_mut() = Rc::new(controller);
    }

    /// The list of open connections, at most as old as `age`.
    pub(super) async fn connections(&self, age: Duration) -> Text {
        let now = rt::now();
        let known =
            self.latest.borrow().as_ref().filter(|(at, _)| *at + age > now).map(|(_, text)| text.clone());
        if let Some(text) = known {
            return text;
        }
        let status = self.observer.snapshot().await;
        let ends = Ends::of(&self.proxies.config());
        let unix = rt::unix_time();
        let mut starts = self.starts.borrow_mut();
        let before = std::mem::take(&mut *starts);
        let mut shown = Vec::with_capacity(status.connections.len());
        for one in &status.connections {
            let start = before.get(&one.id).cloned();
            let start = start.unwrap_or_else(|| time(unix.saturating_sub(one.age_s), 0));
            starts.insert(one.id, start.clone());
            shown.push(views::connection(one, &ends, start, self.born));
        }
        drop(starts);
        let (upload_total, download_total) = self.observer.totals();
        let connections = Some(shown).filter(|shown| !shown.is_empty());
        let list = views::List { download_total, upload_total, connections, memory: usage::resident() };
        let text: Text = line(&list).into();
        *self.latest.borrow_mut() = Some((now, text.clone()));
        text
    }

    /// The next multiple of `interval` since the interface began, at least a tenth of it away.
    pub(super) fn next_due(&self, interval: Duration) -> Instant {
        let now = rt::now();
        let since = now.saturating_duration_since(self.began).as_millis();
        let step = interval.as_millis().max(1);
        let left = step - since % step;
        let left = if left * 10 < step { left + step } else { left };
        now + Duration::from_millis(u64::try_from(left).unwrap_or(u64::MAX))
    }

    /// Ends a connection, or all.
    pub(super) async fn close(&self, id: Option<&str>) -> Given {
        match id.map(id_of) {
            None => drop(self.observer.kick(Kicked::All).await),
            Some(Some(id)) => drop(self.observer.kick(Kicked::Id(id)).await),
            Some(None) => {}
        }
        self.latest.borrow_mut().take();
        nothing()
    }

    /// The test that a query asks for, with the most that its time may be.
    fn test(call: &LiveRequest, most: u64) -> Option<DelayTest> {
        let timeout = query(&call.query, "timeout")?.parse::<u64>().ok().filter(|ms| *ms <= most)?;
        let expected = query(&call.query, "expected").unwrap_or_default();
        Some(DelayTest {
            url: query(&call.query, "url").unwrap_or_default().into(),
            timeout: Duration::from_millis(timeout),
            expected: statuses(&expected)?,
            interval: None,
            ..DelayTest::default()
        })
    }

    /// `GET /proxies/N/delay`.
    pub(super) async fn delay(&self, name: &str, call: &LiveRequest) -> Given {
        if self.proxies.find(name).is_none() {
            return missing();
        }
        // mihomo reads 16 bits with a sign.
        let Some(mut test) = Self::test(call, 32_767) else { return bad() };
        test.unified = self.is_unified();
        // An answer of another status has a delay as well; groups take the proxy for dead by its history.
        let (sender, mut replies) = rt::orders();
        self.proxies.delay(name, &test, to(sender));
        match replies.next().await {
            Some(Ok(delay)) => json(200, &json!({ "delay": delay })),
            Some(Err(DelayError::Timeout)) => message(504, "Timeout"),
            Some(Err(_)) | None => message(503, "An error occurred in the delay test"),
        }
    }

    fn is_unified(&self) -> bool {
        self.proxies.config().facade.as_ref().is_some_and(|facade| facade.unified_delay)
    }

    /// `GET /group/N/delay`.
    pub(super) async fn group_delay(&self, name: &str, call: &LiveRequest) -> Given {
        if self.proxies.find(name).is_none_or(|view| view.group.is_none()) {
            return missing();
        }
        let Some(mut test) = Self::test(call, i32::MAX as u64) else { return bad() };
        test.unified = self.is_unified();
        let (sender, mut replies) = rt::orders();
        let begun = self.proxies.group_delay(name, &test, to(sender));
        if begun.is_err() {
            return message(504, "get delay: all proxies timeout");
        }
        let found = replies.next().await.unwrap_or_default();
        if found.is_empty() {
            return message(504, "get delay: all proxies timeout");
        }
        let found = found.into_iter().map(|(name, delay)| (name.to_string(), delay.into()));
        json(200, &Value::Object(found.collect()))
    }

    /// `GET /providers/proxies/N/healthcheck`: tests all members, ten at a time.
    pub(super) async fn health_check(&self, name: &str) -> Given {
        let shown = self.proxy_providers();
        let Some(provider) = shown.get(name) else { return missing() };
        let own = self.proxies.providers().into_iter().find(|of| *of.name == *name && of.has_outbounds());
        let test = own.and_then(|of| match of.kind {
            ProviderKind::Outbounds { test, .. } => test,
            ProviderKind::Rules { .. } | ProviderKind::Database { .. } => None,
        });
        let url = provider["testUrl"].as_str().filter(|url| !url.is_empty());
        let mut test = test.unwrap_or_default();
        if let Some(url) = url {
            test.url = url.into();
        }
        let members = provider["proxies"].as_array().map(Vec::as_slice).unwrap_or_default();
        let names: Vec<&str> = members.iter().filter_map(|member| member["name"].as_str()).collect();
        for some in names.chunks(TESTS) {
            let (sender, mut replies) = rt::orders();
            for name in some {
                let sender = sender.clone();
                self.proxies.delay(name, &test, to(sender));
            }
            drop(sender);
            while replies.next().await.is_some() {}
        }
        nothing()
    }

    /// `PUT /providers/.../N`.
    pub(super) async fn update(&self, name: &str, kind: ListKind) -> Given {
        let providers = self.proxies.providers();
        if !providers.iter().any(|of| *of.name == *name && of.list_kind() == kind) {
            let is_there = kind == ListKind::Outbounds && self.proxy_providers().contains_key(name);
            return if is_there { nothing() } else { missing() };
        }
        match self.update_list(name, kind).await {
            Ok(()) => nothing(),
            Err(error) => message(503, &error),
        }
    }

    async fn update_list(&self, name: &str, kind: ListKind) -> Result<(), String> {
        let (sender, mut replies) = rt::orders();
        self.proxies.update_list(name, kind, Box::new(to(sender)));
        replies.next().await.unwrap_or_else(|| Err("the process is ending".to_owned()))
    }

    /// `POST /configs/geo`: fetches the databases that rules need, where the file says so.
    pub(super) async fn update_databases(&self) -> Given {
        let is_database = |provider: &Provider| provider.list_kind() == ListKind::Database;
        let all: Vec<Provider> = self.proxies.providers().into_iter().filter(is_database).collect();
        if all.is_empty() {
            let problem = "no rule needs a database that is fetched: write geox-url or geo-auto-update, or replace the files";
            return message(501, problem);
        }
        for provider in all {
            if let Err(error) = self.update_list(&provider.name, ListKind::Database).await {
                return message(500, &format!("{}: {error}", provider.name));
            }
        }
        nothing()
    }

    /// `PUT /proxies/N`.
    pub(super) fn select(&self, name: &str, call: &LiveRequest) -> Given {
        use adit_engine::SelectError;
        let Some(body) = body(call).filter(Value::is_object) else { return bad() };
        if !body["name"].is_string() && !body["name"].is_null() {
            return bad();
        }
        if self.proxies.find(name).is_none() {
            return missing();
        }
        let Some(member) = body.get("name").map_or(Some(""), Value::as_str) else { return bad() };
        match self.proxies.select(name, member) {
            Ok(()) => nothing(),
            Err(SelectError::NoMember) => message(400, "Selector update error: proxy not exist"),
            Err(SelectError::Missing | SelectError::NotSelectable) => message(400, "Must be a Selector"),
        }
    }

    /// `PATCH /configs`.
    pub(super) async fn patch(&self, call: &LiveRequest) -> Given {
        let Some(Value::Object(body)) = body(call) else { return bad() };
        let Some(mut pairs) = overlay::pairs(&body) else { return bad() };
        let level = match body.get("log-level").map(Value::as_str) {
            None => None,
            Some(Some("silent" | "error")) => Some(adit_model::Level::Error),
            Some(Some("warning")) => Some(adit_model::Level::Warn),
            Some(Some("info")) => Some(adit_model::Level::Info),
            Some(Some("debug")) => Some(adit_model::Level::Debug),
            Some(_) => return bad(),
        };
        let shown = views::configs(&self.proxies.config(), crate::log::log_stream::level());
        if let Some(key) = overlay::unchangeable(&body, &shown) {
            return message(400, &format!("{key} changes in the file alone: edit it, and reload"));
        }
        pairs.retain(|(key, value)| shown[*key].to_string().trim_matches('"') != value);
        if !pairs.is_empty()
            && let Err(problem) = self.change(overlay::Change::Patch(pairs)).await
        {
            return message(400, &problem);
        }
        if let Some(level) = level {
            crate::log::log_stream::set_level(level);
        }
        nothing()
    }

    /// `PUT /configs`.
    pub(crate) async fn put(&self, call: &LiveRequest) -> Given {
        let Some(Value::Object(body)) = body(call) else { return bad() };
        let (Some(path), Some(text)) = (overlay::text(&body, "path"), overlay::text(&body, "payload")) else {
            return bad();
        };
        let path = Some(path).filter(|path| !path.is_empty()).map(Into::into);
        let is_forced = query(&call.query, "force").as_deref() == Some("true");
        let change = overlay::Change::Put { text: text.to_owned(), path, is_forced };
        match self.change(change).await {
            Ok(()) => nothing(),
            Err(problem) => message(400, &problem),
        }
    }

    async fn change(&self, change: overlay::Change) -> Result<(), String> {
        let (sender, mut replies) = rt::orders();
        self.requests.change(change, Box::new(to(sender)));
        replies.next().await.unwrap_or_else(|| Err("the process is ending".to_owned()))
    }

    /// `GET /dns/query`.
    pub(super) async fn dns(&self, call: &LiveRequest) -> Given {
        let name = query(&call.query, "name").unwrap_or_default();
        let kind =
            query(&call.query, "type").filter(|kind| !kind.is_empty()).unwrap_or_else(|| "A".to_owned());
        let (sender, mut replies) = rt::orders();
        if !self.proxies.query_dns(&name, &kind, to(sender)) {
            return message(400, "invalid query type");
        }
        let Some(Some(reply)) = replies.next().await else { return message(500, "no answer") };
        let [tc, rd, ra, ad, cd] = reply.bits;
        let mut out = json!({
            "Status": reply.code, "TC": tc, "RD": rd, "RA": ra, "AD": ad, "CD": cd,
            "Question": [{ "Name": reply.name, "Qtype": reply.kind, "Qclass": 1 }],
        });
        for (key, records) in ["Answer", "Authority", "Additional"].into_iter().zip(&reply.records) {
            let record = |of: &adit_engine::DnsRecord| json!({ "name": of.name, "type": of.kind, "TTL": of.ttl, "data": of.data });
            if !records.is_empty() {
                out[key] = records.iter().map(record).collect();
            }
        }
        json(200, &out)
    }

    /// `/storage/KEY`: values that dashboards keep here, for as long as the process runs.
    pub(super) fn storage(&self, key: &str, call: &LiveRequest) -> Given {
        let mut stored = self.stored.borrow_mut();
        match call.method.as_str() {
            "PUT" => {
                let Some(body) = &call.body else { return message(413, "payload too large") };
                let others: usize =
                    stored.iter().filter(|(known, _)| *known != key).map(|(_, v)| v.len()).sum();
                if others + body.len() > MOST_STORED
                    || (stored.len() >= MOST_KEYS && !stored.contains_key(key))
                {
                    return message(413, "payload too large");
                }
                if serde_json::from_slice::<Value>(body).is_err() {
                    return bad();
                }
                stored.insert(key.to_owned(), body.clone());
                nothing()
            }
            "DELETE" => {
                stored.remove(key);
                nothing()
            }
            _ => {
                let value = stored.get(key).and_then(|bytes| serde_json::from_slice(bytes).ok());
                json(200, &value.unwrap_or(Value::Null))
            }
        }
    }
}

/// Sends a result to the one who waits for it, who may have left.
fn to<T>(sender: OrderSender<T>) -> impl FnOnce(T) {
    move |result| {
        let _is_heard: bool = sender.send(result);
    }
}

/// The body as JSON.
fn body(call: &LiveRequest) -> Option<Value> {
    serde_json::from_slice(call.body.as_deref()?).ok()
}

/// Status codes as `200/204` or `200-299`; empty for any.
fn statuses(text: &str) -> Option<Vec<(u16, u16)>> {
    let parts = text.split(['/', ',']).map(str::trim).filter(|part| !part.is_empty() && *part != "*");
    let part = |part: &str| {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        let (first, last): (u16, u16) = (first.trim().parse().ok()?, last.trim().parse().ok()?);
        Some((first.min(last), first.max(last)))
    };
    parts.map(part).collect()
}
