//! Paths and methods.

use std::rc::Rc;

use adit_model::ListKind;
use adit_net::web::live::{Given, LiveRequest, LiveResponse};
use serde_json::{Map, Value, json};

use super::auth::{self, AllowedOrigin, Reach};
use super::state::ClashApi;
use super::text::{bad, decoded, json, message, missing, nothing};
use super::{files, streams, views};
use crate::log::log_stream;

/// The version whose features dashboards may expect of the core.
const COMPATIBLE: &str = "v1.19.13";

/// The answer to a request.
pub(super) async fn answer(desk: &Rc<ClashApi>, call: LiveRequest) -> Given {
    let page = match auth::page(&desk.controller(), &call) {
        Ok(page) => page,
        Err(mut refusal) => {
            auth::sign(&mut refusal, &AllowedOrigin::Other);
            return refusal;
        }
    };
    if call.method == "OPTIONS" && call.field("access-control-request-method").is_some() {
        return auth::preflight(&desk.controller(), &call, &page);
    }
    let mut given = route(desk, &call).await;
    auth::sign(&mut given, &page);
    given
}

async fn route(desk: &Rc<ClashApi>, call: &LiveRequest) -> Given {
    if let Some(given) = ui(desk, call) {
        return given;
    }
    let path = call.path.strip_suffix('/').unwrap_or(&call.path);
    let parts: Option<Vec<String>> = path.split('/').skip(1).map(decoded).collect();
    let Some(parts) = parts else { return not_found() };
    let parts: Vec<&str> = parts.iter().map(String::as_str).collect();
    let Some(methods) = methods(&parts) else { return not_found() };
    if !methods.contains(&call.method.as_str()) {
        let fields = vec![("Allow", methods.join(", "))];
        return Given::Whole(LiveResponse { status: 405, fields, body: Vec::new() });
    }
    if let Err(refusal) = auth::admit(&desk.controller(), call, reach(call, &parts)) {
        return refusal;
    }
    if !auth::is_known(&desk.controller(), call) {
        return message(401, "Unauthorized");
    }
    if call.method == "GET" { get(desk, call, &parts).await } else { act(desk, call, &parts).await }
}

/// The methods of a path; `None` if there is nothing.
fn methods(parts: &[&str]) -> Option<&'static [&'static str]> {
    Some(match parts {
        [] | ["version" | "traffic" | "memory" | "logs" | "group" | "rules"] => &["GET"],
        ["configs"] => &["GET", "PUT", "PATCH"],
        ["configs", "geo"] | ["restart" | "upgrade"] | ["upgrade", "ui" | "geo"] => &["POST"],
        ["cache", "fakeip" | "dns", "flush"] => &["POST"],
        ["proxies"] | ["proxies", _, "delay"] | ["group", _] | ["group", _, "delay"] => &["GET"],
        ["proxies", _] => &["GET", "PUT", "DELETE"],
        ["providers", "proxies" | "rules"] | ["dns", "query"] => &["GET"],
        ["providers", "proxies", _] => &["GET", "PUT"],
        ["providers", "proxies", _, _] | ["providers", "proxies", _, _, "healthcheck"] => &["GET"],
        ["providers", "rules", _] => &["PUT"],
        ["connections"] => &["GET", "DELETE"],
        ["connections", _] => &["DELETE"],
        ["storage", _] => &["GET", "PUT", "DELETE"],
        _ => return None,
    })
}

/// The class of a request to a path that is there. One that is not named here acts.
fn reach(call: &LiveRequest, parts: &[&str]) -> Reach {
    if call.method != "GET" || call.is_websocket {
        return Reach::Act;
    }
    match parts {
        [] | ["version"] => Reach::Public,
        ["providers", "proxies", _, "healthcheck"] => Reach::Act,
        ["configs" | "connections" | "group" | "proxies" | "rules"]
        | ["group" | "proxies" | "storage", _]
        | ["providers", "proxies" | "rules"]
        | ["providers", "proxies", _]
        | ["providers", "proxies", _, _] => Reach::Read,
        _ => Reach::Act,
    }
}

fn not_found() -> Given {
    let fields = vec![
        ("Content-Type", "text/plain; charset=utf-8".to_owned()),
        ("X-Content-Type-Options", "nosniff".to_owned()),
    ];
    Given::Whole(LiveResponse { status: 404, fields, body: b"404 page not found\n".to_vec() })
}

/// The dashboard, which asks for the secret itself.
fn ui(desk: &ClashApi, call: &LiveRequest) -> Option<Given> {
    let controller = desk.controller();
    let folder = controller.ui.as_deref()?;
    if !matches!(call.method.as_str(), "GET" | "HEAD") {
        return None;
    }
    if call.path == "/ui" {
        let fields = vec![("Location", "/ui/".to_owned())];
        return Some(Given::Whole(LiveResponse { status: 307, fields, body: Vec::new() }));
    }
    let path = call.path.strip_prefix("/ui/")?;
    Some(files::file(folder, path).unwrap_or_else(not_found))
}

async fn get(desk: &Rc<ClashApi>, call: &LiveRequest, parts: &[&str]) -> Given {
    match parts {
        [] => json(200, &json!({ "hello": "mihomo" })),
        ["version"] => {
            let own = env!("CARGO_PKG_VERSION");
            json(200, &json!({ "meta": true, "version": COMPATIBLE, "adit": own }))
        }
        ["traffic"] => streams::traffic(desk),
        ["memory"] => streams::memory(desk),
        ["logs"] => streams::logs(desk, call),
        ["connections"] if call.is_websocket => streams::connections(desk, call),
        ["connections"] => {
            let text = desk.connections(std::time::Duration::ZERO).await;
            let fields = vec![("Content-Type", "application/json".to_owned())];
            Given::Whole(LiveResponse { status: 200, fields, body: text.into() })
        }
        ["configs"] => json(200, &views::configs(&desk.proxies.config(), log_stream::level())),
        ["rules"] => json(200, &views::rules(&desk.proxies.config())),
        ["proxies"] => proxies(desk),
        ["proxies", name] => proxy(desk, name).map_or_else(missing, |proxy| json(200, &proxy)),
        ["proxies", name, "delay"] => desk.delay(name, call).await,
        ["group"] => groups(desk),
        ["group", name] => group(desk, name),
        ["group", name, "delay"] => desk.group_delay(name, call).await,
        ["providers", "proxies"] => json(200, &json!({ "providers": desk.proxy_providers() })),
        ["providers", "rules"] => json(200, &json!({ "providers": desk.rule_providers() })),
        ["providers", "proxies", name] => {
            desk.proxy_providers().remove(*name).map_or_else(missing, |provider| json(200, &provider))
        }
        ["providers", "proxies", name, "healthcheck"] => desk.health_check(name).await,
        ["providers", "proxies", name, member] => match member_of(desk, name, member) {
            Some(proxy) => json(200, &proxy),
            None => missing(),
        },
        ["providers", "proxies", name, member, "healthcheck"] => match member_of(desk, name, member) {
            Some(_) => desk.delay(member, call).await,
            None => missing(),
        },
        ["dns", "query"] => desk.dns(call).await,
        ["storage", key] => desk.storage(key, call),
        _ => not_found(),
    }
}

async fn act(desk: &Rc<ClashApi>, call: &LiveRequest, parts: &[&str]) -> Given {
    match (call.method.as_str(), parts) {
        ("PATCH", ["configs"]) => desk.patch(call).await,
        ("PUT", ["configs"]) => desk.put(call).await,
        ("PUT", ["proxies", name]) => desk.select(name, call),
        ("DELETE", ["proxies", name]) => match desk.proxies.find(name) {
            None => missing(),
            Some(_) if desk.proxies.unfix(name).is_ok() => nothing(),
            Some(_) => bad(),
        },
        ("PUT", ["providers", "proxies", name]) => desk.update(name, ListKind::Outbounds).await,
        ("PUT", ["providers", "rules", name]) => desk.update(name, ListKind::Rules).await,
        ("DELETE", ["connections"]) => desk.close(None).await,
        ("DELETE", ["connections", id]) => desk.close(Some(id)).await,
        ("POST", ["cache", "fakeip", "flush"]) => {
            desk.proxies.flush_fake();
            nothing()
        }
        ("POST", ["cache", "dns", "flush"]) => {
            desk.proxies.flush_dns();
            nothing()
        }
        ("POST", ["restart"]) if crate::run::restart::restart() => json(200, &json!({ "status": "ok" })),
        ("POST", ["restart"]) => {
            message(501, "adit is restarted by its service manager; PUT /configs reads a file again")
        }
        ("POST", ["upgrade", "ui"]) => {
            message(501, "adit does not fetch dashboards: unpack one into external-ui")
        }
        ("POST", ["configs" | "upgrade", "geo"]) => desk.update_databases().await,
        ("POST", ["upgrade"]) => message(501, "adit is upgraded by the package manager that installed it"),
        (_, ["storage", key]) => desk.storage(key, call),
        _ => not_found(),
    }
}

fn proxies(desk: &ClashApi) -> Given {
    let (views, providers) = (desk.proxies.list(), desk.proxies.providers());
    let mut all: Map<String, Value> = Map::new();
    for view in &views {
        let provider = ClashApi::provider_of(&providers, &view.name);
        all.insert(view.name.to_string(), views::proxy(view, &provider));
    }
    if !all.contains_key("GLOBAL") {
        all.insert("GLOBAL".to_owned(), views::global(&views));
    }
    json(200, &json!({ "proxies": all }))
}

fn proxy(desk: &ClashApi, name: &str) -> Option<Value> {
    let Some(view) = desk.proxies.find(name) else {
        return (name == "GLOBAL").then(|| views::global(&desk.proxies.list()));
    };
    Some(views::proxy(&view, &ClashApi::provider_of(&desk.proxies.providers(), name)))
}

fn groups(desk: &ClashApi) -> Given {
    let views = desk.proxies.list();
    let groups: Vec<Value> =
        views.iter().filter(|view| view.group.is_some()).map(|view| views::proxy(view, "")).collect();
    json(200, &json!({ "proxies": groups }))
}

fn group(desk: &ClashApi, name: &str) -> Given {
    let found = desk.proxies.find(name).filter(|view| view.group.is_some());
    found.map_or_else(missing, |view| json(200, &views::proxy(&view, "")))
}

fn member_of(desk: &ClashApi, provider: &str, name: &str) -> Option<Value> {
    let provider = desk.proxy_providers().remove(provider)?;
    provider["proxies"].as_array()?.iter().find(|member| member["name"] == name).cloned()
}
