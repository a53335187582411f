//! Shadowsocks Server Management API v1, as shadowsocks-specs 2023-1 has it, at `server/NAME/v1` for the inbound NAME.
//!
//! `clear=true` moves the zero of this interface and leaves the accounts as they are. Datagrams are not counted by user.

use adit_engine::{InboundStatus, UserStatus};
use adit_formats::adit_toml::edit::{Edit, edit_users};
use adit_model::{Secret, ShadowsocksServer};
use adit_net::service::ServiceResponse;
use serde_json::{Value, json};

use super::config_edit::Refusal;
use super::state::{Ask, NOBODY, OutlineApi, removal, server_of, told, users};

/// Names of the counters, in the order of [`Counters`].
const NAMES: [&str; 6] =
    ["downlinkPackets", "downlinkBytes", "uplinkPackets", "uplinkBytes", "tcpSessions", "udpSessions"];
/// Longest names and keys, in bytes.
const MAX_TEXT: usize = 255;

type Answer = Result<ServiceResponse, Refusal>;
type Counters = [u64; 6];

/// An error as the specification tells it.
pub(super) fn refused(Refusal(status, text): &Refusal) -> ServiceResponse {
    told(*status, &json!({ "error": text }))
}

/// Answers a request about an inbound.
pub(super) fn answer(desk: &mut OutlineApi, ask: &Ask, inbound: &str, parts: &[&str]) -> Answer {
    let config = desk.config();
    let found = config.inbounds.iter().find(|it| *it.name == *inbound);
    let server = found.and_then(|found| server_of(&config, found));
    let server = server
        .ok_or_else(|| Refusal::none("no Shadowsocks inbound of that name has its users in the file"))?;
    match (&*ask.method, parts) {
        ("GET", []) => {
            let program = concat!("adit ", env!("CARGO_PKG_VERSION"));
            Ok(told(200, &json!({ "server": program, "apiVersion": "v1" })))
        }
        _ if server.key.users().is_empty() => Err(Refusal::none(
            "the inbound has one key for all clients; `adit user add --first` gives it users",
        )),
        ("GET", ["users"]) => {
            let all: Vec<Value> = users(server)
                .map(|user| json!({ "username": *user.name, "uPSK": user.key.expose() }))
                .collect();
            Ok(told(200, &json!({ "users": all })))
        }
        ("POST", ["users"]) => add(desk, ask, inbound),
        ("GET", ["users", name]) => one(desk, inbound, server, name),
        ("PATCH", ["users", name]) => {
            exists(server, name)?;
            let edit = Edit::Rotate(Secret::new(text(&ask.json()?, "uPSK")?));
            desk.book.change(inbound, |text| edit_users(text, inbound, &[(name, &edit)]))?;
            Ok(ServiceResponse::status(204))
        }
        ("DELETE", ["users", name]) => {
            exists(server, name)?;
            let edits = removal(server, name);
            let edits: Vec<(&str, &Edit)> = edits.iter().map(|(user, edit)| (user.as_str(), edit)).collect();
            desk.book.change(inbound, |text| edit_users(text, inbound, &edits))?;
            Ok(ServiceResponse::status(204))
        }
        ("GET", ["stats"]) => stats(desk, ask, inbound),
        (_, [] | ["users" | "stats"] | ["users", _]) => {
            Err(Refusal(405, "the method is not one of this address".into()))
        }
        _ => Err(Refusal::none("no such address")),
    }
}

fn exists(server: &ShadowsocksServer, name: &str) -> Result<(), Refusal> {
    let has = users(server).any(|user| *user.name == *name);
    if has { Ok(()) } else { Err(Refusal::none("no such user")) }
}

fn add(desk: &OutlineApi, ask: &Ask, inbound: &str) -> Answer {
    let body = ask.json()?;
    let (name, key) = (text(&body, "username")?, text(&body, "uPSK")?);
    if name == NOBODY || name.contains('/') {
        return Err(Refusal::bad("the name cannot be taken"));
    }
    let edit = Edit::Add { key: Secret::new(&*key), id: None, limits: Vec::new() };
    let added = desk.book.change(inbound, |text| edit_users(text, inbound, &[(&name, &edit)]));
    // The specification knows no 409.
    added.map_err(|Refusal(status, text)| Refusal(if status == 409 { 400 } else { status }, text))?;
    Ok(told(201, &json!({ "username": name, "uPSK": key })))
}

fn one(desk: &OutlineApi, inbound: &str, server: &ShadowsocksServer, name: &str) -> Answer {
    let found = users(server).find(|user| *user.name == *name);
    let user = found.ok_or_else(|| Refusal::none("no such user"))?;
    let all = desk.status(inbound).map(|status| status.users).unwrap_or_default();
    let counted = all.iter().find(|it| it.name == name).map(of_user).unwrap_or_default();
    let mut value = shown(&since(desk, &place(inbound, name), counted));
    value["username"] = json!(name);
    value["uPSK"] = json!(user.key.expose());
    Ok(told(200, &value))
}

fn stats(desk: &mut OutlineApi, ask: &Ask, inbound: &str) -> Answer {
    let gone = || Refusal::none("the inbound is gone");
    let status = desk.status(inbound).ok_or_else(gone)?;
    let total = of_inbound(&status);
    let mut value = shown(&since(desk, inbound, total));
    let known = || status.users.iter().filter(|user| user.name != NOBODY);
    let all: Vec<Value> = known()
        .map(|user| {
            let mut value = shown(&since(desk, &place(inbound, &user.name), of_user(user)));
            value["username"] = json!(user.name);
            value
        })
        .collect();
    value["users"] = json!(all);
    if ask.query.split('&').any(|pair| pair == "clear=true") {
        let cleared = &mut desk.keeper.facts.cleared;
        let of_this = format!("{inbound}/");
        cleared.retain(|key, _| *key != *inbound && !key.starts_with(&of_this));
        cleared.insert(inbound.to_owned(), total);
        cleared.extend(known().map(|user| (place(inbound, &user.name), of_user(user))));
        desk.save()?;
    }
    Ok(told(200, &value))
}

fn place(inbound: &str, user: &str) -> String {
    format!("{inbound}/{user}")
}

fn of_user(user: &UserStatus) -> Counters {
    [0, user.down_bytes, 0, user.up_bytes, user.requests, 0]
}

fn of_inbound(status: &InboundStatus) -> Counters {
    let (down, up, flows) = status.datagrams.as_ref().map_or((0, 0, 0), |it| (it.down, it.up, it.begun));
    [down, status.down_bytes, up, status.up_bytes, status.requests, flows]
}

/// Counters since they were cleared; those that have begun anew count from zero.
fn since(desk: &OutlineApi, place: &str, now: Counters) -> Counters {
    let before = desk.keeper.facts.cleared.get(place).copied().unwrap_or_default();
    let is_anew = now.iter().zip(&before).any(|(now, before)| now < before);
    if is_anew { now } else { std::array::from_fn(|n| now[n] - before[n]) }
}

fn shown(counters: &Counters) -> Value {
    Value::Object(
        NAMES.iter().zip(counters).map(|(name, value)| ((*name).to_owned(), json!(value))).collect(),
    )
}

/// A text of a body that must be there.
fn text(body: &Value, key: &str) -> Result<String, Refusal> {
    let is_text = |text: &&str| (1..=MAX_TEXT).contains(&text.len()) && !text.contains(char::is_control);
    let found = body[key].as_str().filter(is_text);
    found.map(str::to_owned).ok_or_else(|| Refusal::bad(format!("{key} is no text of 1 to {MAX_TEXT} bytes")))
}
