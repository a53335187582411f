//! Outline's access keys API, as Outline Manager speaks it.
//!
//! Source: outline-server, src/shadowbox/server/api.yml (4f59eea). An access key is a user of the inbound, its id the user's
//! name. Limits are quotas of a calendar month (UTC), where Outline's slide over 30 days; transferred bytes slide as there.

use adit_formats::adit_toml::edit::{Edit, add_port, edit_users};
use adit_formats::share::generate_key;
use adit_model::map::Map;
use adit_model::{Inbound, Secret, User};
use adit_net::service::ServiceResponse;
use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use serde_json::{Value, json};

use super::config_edit::Refusal;
use super::state::{Ask, NOBODY, OutlineApi, limit, removal, server_of, today, told, users};
use crate::random::SystemRng;

/// The version of the interface that is spoken: clients look at it for what a server can do.
const VERSION: &str = "1.9.0";
/// Letters and digits of a new password.
const PASSWORD_LEN: usize = 22;
/// Longest names and ids, in bytes.
const MAX_NAME: usize = 255;
const MAX_ID: usize = 64;
/// Longest name of a server, in characters.
const MAX_SERVER_NAME: usize = 100;

type Answer = Result<ServiceResponse, Refusal>;

/// An error as Outline tells it.
pub(super) fn refused(Refusal(status, text): &Refusal) -> ServiceResponse {
    let code = match status {
        404 => "NotFound",
        405 => "MethodNotAllowed",
        409 => "Conflict",
        400 => "InvalidArgument",
        _ => "InternalError",
    };
    told(*status, &json!({ "code": code, "message": text }))
}

/// Answers a request.
pub(super) fn answer(desk: &mut OutlineApi, ask: &Ask, parts: &[&str]) -> Answer {
    match (&*ask.method, parts) {
        ("GET", ["server"]) => server(desk, ask),
        ("PUT", ["name"]) => rename_server(desk, ask),
        ("PUT", ["server", "hostname-for-access-keys"]) => set_hostname(desk, ask),
        ("PUT", ["server", "port-for-new-access-keys"]) => set_port(desk, ask),
        ("PUT", ["server" | "experimental", "access-key-data-limit"]) => {
            let bytes = limit_of(&ask.json()?)?.ok_or_else(|| Refusal::bad("limit.bytes is missing"))?;
            set_default(desk, Some(bytes))
        }
        ("DELETE", ["server" | "experimental", "access-key-data-limit"]) => set_default(desk, None),
        ("GET", ["access-keys"]) => list(desk, ask),
        ("POST", ["access-keys"]) => create(desk, ask, None),
        ("PUT", ["access-keys", id]) => create(desk, ask, Some(id)),
        ("GET", ["access-keys", id]) => Ok(told(200, &key(desk, ask, id)?)),
        ("DELETE", ["access-keys", id]) => remove(desk, id),
        ("PUT", ["access-keys", id, "name"]) => rename(desk, ask, id),
        ("PUT", ["access-keys", id, "data-limit"]) => {
            let bytes = limit_of(&ask.json()?)?.ok_or_else(|| Refusal::bad("limit.bytes is missing"))?;
            set_limit(desk, id, Some(bytes))
        }
        ("DELETE", ["access-keys", id, "data-limit"]) => set_limit(desk, id, None),
        ("GET", ["metrics", "transfer"]) => transfer(desk),
        ("GET", ["metrics", "enabled"]) => {
            Ok(told(200, &json!({ "metricsEnabled": desk.keeper.facts.shares_metrics })))
        }
        ("PUT", ["metrics", "enabled"]) => {
            let wanted = ask.json()?["metricsEnabled"].as_bool();
            // It is remembered for the Manager. Nothing is shared with anybody.
            desk.keeper.facts.shares_metrics =
                wanted.ok_or_else(|| Refusal::bad("metricsEnabled is no boolean"))?;
            kept(desk)
        }
        (
            _,
            ["server" | "name"]
            | ["server", "hostname-for-access-keys" | "port-for-new-access-keys"]
            | ["server" | "experimental", "access-key-data-limit"]
            | ["access-keys"]
            | ["access-keys", _]
            | ["access-keys", _, "name" | "data-limit"]
            | ["metrics", "transfer" | "enabled"],
        ) => Err(Refusal(405, "the method is not one of this address".into())),
        _ => Err(Refusal::none("no such address")),
    }
}

/// Writes the facts, and says that it is done.
fn kept(desk: &OutlineApi) -> Answer {
    desk.save()?;
    Ok(ServiceResponse::status(204))
}

fn server(desk: &OutlineApi, ask: &Ask) -> Answer {
    let config = desk.config();
    let base = desk.base(&config)?;
    let facts = &desk.keeper.facts;
    let mut value = json!({
        "name": facts.name,
        "serverId": facts.server_id,
        "metricsEnabled": facts.shares_metrics,
        "createdTimestampMs": facts.created_ms,
        "version": VERSION,
        "portForNewAccessKeys": facts.port.unwrap_or_else(|| port_of(base)),
        "hostnameForAccessKeys": host(desk, ask),
    });
    if let Some(bytes) = facts.limit {
        value["accessKeyDataLimit"] = json!({ "bytes": bytes });
    }
    Ok(told(200, &value))
}

fn rename_server(desk: &mut OutlineApi, ask: &Ask) -> Answer {
    let body = ask.json()?;
    let name = text(&body, "name", MAX_NAME)?.ok_or_else(|| Refusal::bad("name is missing"))?;
    if name.is_empty() || name.chars().count() > MAX_SERVER_NAME {
        return Err(Refusal::bad("name has 1 to 100 characters"));
    }
    desk.keeper.facts.name = name.to_owned();
    kept(desk)
}

fn set_hostname(desk: &mut OutlineApi, ask: &Ask) -> Answer {
    let body = ask.json()?;
    let name = text(&body, "hostname", MAX_NAME)?.ok_or_else(|| Refusal::bad("hostname is missing"))?;
    if !is_host(name) {
        return Err(Refusal::bad("hostname is no name or address"));
    }
    desk.keeper.facts.hostname = Some(name.to_owned());
    kept(desk)
}

fn is_host(name: &str) -> bool {
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-._".contains(&byte);
    name.parse::<std::net::IpAddr>().is_ok()
        || (1..=253).contains(&name.len()) && name.bytes().all(is_plain) && !name.starts_with(['-', '.'])
}

fn set_port(desk: &mut OutlineApi, ask: &Ask) -> Answer {
    let port = port(&ask.json()?)?.ok_or_else(|| Refusal::bad("port is missing"))?;
    inbound_at(desk, port)?;
    desk.keeper.facts.port = Some(port);
    kept(desk)
}

/// The name of the inbound with access keys on a port; it is added if there is none.
fn inbound_at(desk: &mut OutlineApi, port: u16) -> Result<String, Refusal> {
    let config = desk.config();
    if let Some(found) = desk.managed(&config)?.into_iter().find(|inbound| port_of(inbound) == port) {
        return Ok(found.name.to_string());
    }
    let taken = |inbound: &Inbound| inbound.listen.iter().any(|addr| addr.port() == port);
    if config.inbounds.iter().any(taken) {
        return Err(Refusal(409, "the port is in use".into()));
    }
    let base = desk.base(&config)?;
    let name = format!("{}-{port}", base.name);
    let key = generate_key(&mut SystemRng, PASSWORD_LEN);
    let added = desk.book.change(&base.name, |text| add_port(text, &base.name, &name, port, NOBODY, &key));
    added.map_err(|Refusal(status, text)| match status {
        // The file is a good one: the system refuses the port.
        400 => Refusal(409, format!("the port cannot be opened: {text}")),
        status => Refusal(status, text),
    })?;
    desk.keeper.facts.inbounds.insert(name.clone());
    desk.save()?;
    Ok(name)
}

fn set_default(desk: &mut OutlineApi, bytes: Option<u64>) -> Answer {
    let config = desk.config();
    let edit = Edit::Limit(limit(bytes));
    for inbound in desk.managed(&config)? {
        let Some(server) = server_of(&config, inbound) else { continue };
        let own = &desk.keeper.facts.limits;
        let edits: Vec<(&str, &Edit)> = users(server)
            .filter(|user| !own.contains_key(&*user.name))
            .map(|user| (&*user.name, &edit))
            .collect();
        if !edits.is_empty() {
            desk.book.change(&inbound.name, |text| edit_users(text, &inbound.name, &edits))?;
        }
    }
    desk.keeper.facts.limit = bytes;
    kept(desk)
}

fn list(desk: &OutlineApi, ask: &Ask) -> Answer {
    let config = desk.config();
    let mut keys = Vec::new();
    for inbound in desk.managed(&config)? {
        let Some(server) = server_of(&config, inbound) else { continue };
        let method = server.key.method().name();
        keys.extend(users(server).map(|user| shown(desk, ask, inbound, method, user)));
    }
    Ok(told(200, &json!({ "accessKeys": keys })))
}

/// An access key as JSON.
fn shown(desk: &OutlineApi, ask: &Ask, inbound: &Inbound, method: &str, user: &User) -> Value {
    let facts = &desk.keeper.facts;
    let (id, password, port) = (&*user.name, user.key.expose(), port_of(inbound));
    let secret = URL_SAFE_NO_PAD.encode(format!("{method}:{password}"));
    let host = host(desk, ask);
    let host = if host.contains(':') { format!("[{host}]") } else { host };
    let mut value = json!({
        "id": id,
        "name": facts.names.get(id).map_or("", String::as_str),
        "password": password,
        "port": port,
        "method": method,
        "accessUrl": format!("ss://{secret}@{host}:{port}/?outline=1"),
    });
    if let Some(bytes) = facts.limits.get(id) {
        value["dataLimit"] = json!({ "bytes": bytes });
    }
    value
}

/// The name of this server for clients: the one that was set, or the one that this client knows it by.
fn host(desk: &OutlineApi, ask: &Ask) -> String {
    if let Some(name) = &desk.keeper.facts.hostname {
        return name.clone();
    }
    let named = ask.host.as_deref().unwrap_or_default();
    let name = match named.strip_prefix('[') {
        Some(rest) => rest.split(']').next().unwrap_or_default(),
        None => named.split(':').next().unwrap_or_default(),
    };
    if is_host(name) { name.to_owned() } else { "localhost".to_owned() }
}

fn port_of(inbound: &Inbound) -> u16 {
    inbound.listen.first().map_or(0, std::net::SocketAddr::port)
}

/// The inbound that has a key.
fn place(desk: &OutlineApi, id: &str) -> Result<String, Refusal> {
    let config = desk.config();
    let has = |inbound: &&Inbound| {
        server_of(&config, inbound).is_some_and(|server| users(server).any(|user| *user.name == *id))
    };
    let found = desk.managed(&config)?.into_iter().find(has);
    found.map(|inbound| inbound.name.to_string()).ok_or_else(|| Refusal::none("no such access key"))
}

fn key(desk: &OutlineApi, ask: &Ask, id: &str) -> Result<Value, Refusal> {
    let (name, config) = (place(desk, id)?, desk.config());
    let gone = || Refusal::none("no such access key");
    let inbound = config.inbounds.iter().find(|inbound| *inbound.name == *name).ok_or_else(gone)?;
    let server = server_of(&config, inbound).ok_or_else(gone)?;
    let user = users(server).find(|user| *user.name == *id).ok_or_else(gone)?;
    Ok(shown(desk, ask, inbound, server.key.method().name(), user))
}

fn create(desk: &mut OutlineApi, ask: &Ask, id: Option<&str>) -> Answer {
    let body = ask.json()?;
    let name = text(&body, "name", MAX_NAME)?.unwrap_or_default();
    let own = limit_of(&body)?;
    let password = match text(&body, "password", MAX_NAME)? {
        Some("") => return Err(Refusal::bad("password is empty")),
        Some(given) => Secret::new(given),
        None => generate_key(&mut SystemRng, PASSWORD_LEN),
    };
    let config = desk.config();
    let base = desk.base(&config)?;
    let method = server_of(&config, base).map(|server| server.key.method().name());
    if let Some(wanted) = text(&body, "method", MAX_NAME)?
        && Some(wanted) != method
    {
        return Err(Refusal::bad(format!(
            "keys of this server have the method {}",
            method.unwrap_or("none")
        )));
    }
    let id = match id {
        Some(id) => free(desk, id)?,
        None => next(desk),
    };
    let wanted = port(&body)?.or(desk.keeper.facts.port).unwrap_or_else(|| port_of(base));
    let inbound = inbound_at(desk, wanted)?;
    let limits = own.or(desk.keeper.facts.limit).map(|bytes| limit(Some(bytes))).unwrap_or_default();
    let edit = Edit::Add { key: password, id: None, limits };
    desk.book.change(&inbound, |text| edit_users(text, &inbound, &[(&id, &edit)]))?;
    let facts = &mut desk.keeper.facts;
    facts.names.insert(id.clone(), name.to_owned());
    facts.limits.extend(own.map(|bytes| (id.clone(), bytes)));
    if let Ok(number) = id.parse::<u64>() {
        facts.next = facts.next.max(number.saturating_add(1));
    }
    desk.save()?;
    Ok(told(201, &key(desk, ask, &id)?))
}

/// The id that a client chooses, if it may.
fn free(desk: &OutlineApi, id: &str) -> Result<String, Refusal> {
    if id.is_empty() || id.len() > MAX_ID || id == NOBODY || id.contains('/') {
        return Err(Refusal::bad("the id cannot be taken"));
    }
    match place(desk, id) {
        Ok(_) => Err(Refusal(409, "there is an access key of that id".into())),
        Err(Refusal(404, _)) => Ok(id.to_owned()),
        Err(refusal) => Err(refusal),
    }
}

/// The next number that is not taken.
fn next(desk: &OutlineApi) -> String {
    let mut number = desk.keeper.facts.next;
    while place(desk, &number.to_string()).is_ok() {
        number = number.saturating_add(1);
    }
    number.to_string()
}

fn remove(desk: &mut OutlineApi, id: &str) -> Answer {
    let (inbound, config) = (place(desk, id)?, desk.config());
    let found = config.inbounds.iter().find(|it| *it.name == *inbound);
    let server = found.and_then(|found| server_of(&config, found));
    let edits = server.map(|server| removal(server, id)).unwrap_or_default();
    let edits: Vec<(&str, &Edit)> = edits.iter().map(|(user, edit)| (user.as_str(), edit)).collect();
    desk.book.change(&inbound, |text| edit_users(text, &inbound, &edits))?;
    desk.keeper.facts.names.remove(id);
    desk.keeper.facts.limits.remove(id);
    kept(desk)
}

fn rename(desk: &mut OutlineApi, ask: &Ask, id: &str) -> Answer {
    place(desk, id)?;
    let body = ask.json()?;
    let name = text(&body, "name", MAX_NAME)?.ok_or_else(|| Refusal::bad("name is missing"))?;
    desk.keeper.facts.names.insert(id.to_owned(), name.to_owned());
    kept(desk)
}

fn set_limit(desk: &mut OutlineApi, id: &str, bytes: Option<u64>) -> Answer {
    let inbound = place(desk, id)?;
    let edit = Edit::Limit(limit(bytes.or(desk.keeper.facts.limit)));
    desk.book.change(&inbound, |text| edit_users(text, &inbound, &[(id, &edit)]))?;
    match bytes {
        Some(bytes) => desk.keeper.facts.limits.insert(id.to_owned(), bytes),
        None => desk.keeper.facts.limits.remove(id),
    };
    kept(desk)
}

fn transfer(desk: &mut OutlineApi) -> Answer {
    desk.look();
    let (totals, day) = (desk.totals()?, today());
    let recent: Map<&str, u64> = totals
        .iter()
        .map(|(id, total)| (id.as_str(), desk.keeper.facts.recent(day, id, *total)))
        .filter(|(_, bytes)| *bytes > 0)
        .collect();
    Ok(told(200, &json!({ "bytesTransferredByUserId": recent })))
}

/// A text of a body, if it is there. Null is no text, as for Outline.
fn text<'b>(body: &'b Value, key: &str, max: usize) -> Result<Option<&'b str>, Refusal> {
    match body.get(key) {
        None => Ok(None),
        Some(Value::String(text)) if text.len() <= max && !text.contains(char::is_control) => Ok(Some(text)),
        Some(_) => Err(Refusal::bad(format!("{key} is no text of at most {max} bytes"))),
    }
}

fn port(body: &Value) -> Result<Option<u16>, Refusal> {
    let Some(value) = body.get("port") else { return Ok(None) };
    let port = value.as_u64().and_then(|port| u16::try_from(port).ok()).filter(|port| *port > 0);
    port.map(Some).ok_or_else(|| Refusal::bad("port is no number from 1 to 65535"))
}

/// The limit of a body. One that cannot be read must not mean that there is none.
fn limit_of(body: &Value) -> Result<Option<u64>, Refusal> {
    // Answers have the limit by this name, and a key that is made with it would have none.
    if body.get("dataLimit").is_some() {
        return Err(Refusal::bad("dataLimit is a name of answers: write limit"));
    }
    let Some(value) = body.get("limit") else { return Ok(None) };
    let bytes = value["bytes"].as_u64();
    bytes.map(Some).ok_or_else(|| Refusal::bad("limit.bytes is no whole number from 0"))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Values of all types, empty ones among them.
    const VALUES: [&str; 10] =
        ["\"zz\"", "\"\"", "7", "1.5", "-7", "true", "[]", "{}", "{\"bytes\": \"7\"}", "null"];

    /// The fate of a body in which `key` has this value: refused, absent or there.
    fn fate(key: &str, value: &str) -> Result<bool, u16> {
        let body = serde_json::from_str(&format!("{{\"{key}\": {value}}}")).unwrap();
        let found = match key {
            "limit" => limit_of(&body).map(|limit| limit.is_some()),
            "port" => port(&body).map(|port| port.is_some()),
            _ => text(&body, key, MAX_NAME).map(|text| text.is_some()),
        };
        found.map_err(|Refusal(status, _)| status)
    }

    #[test]
    fn a_value_of_a_wrong_type_is_refused() {
        for (key, right) in [
            ("limit", &["{\"bytes\": 7}"][..]),
            ("port", &["7"]),
            ("name", &["\"zz\"", "\"\""]),
            ("password", &["\"zz\"", "\"\""]),
            ("method", &["\"zz\"", "\"\""]),
            ("hostname", &["\"zz\"", "\"\""]),
        ] {
            for value in VALUES.iter().chain(right) {
                let want = if right.contains(value) { Ok(true) } else { Err(400) };
                assert_eq!(fate(key, value), want, "{key} = {value}");
            }
        }
        let body = json!({ "dataLimit": { "bytes": 7 } });
        assert!(matches!(limit_of(&body), Err(Refusal(400, _))));
        assert_eq!(limit_of(&json!({})).ok(), Some(None));
    }
}
