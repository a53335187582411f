//! Providers of proxies and of rules.

use adit_engine::ProxyView;
use adit_model::{ListKind, Policy, Provider, ProviderKind, ProviderSource};
use serde_json::{Map, Value, json};

use super::state::ClashApi;
use super::text::time;
use super::views;

/// A time that is no time, as Go writes it.
const NEVER: &str = "0001-01-01T00:00:00Z";
/// The name of the provider of everything.
pub(super) const DEFAULT: &str = "default";

impl ClashApi {
    /// The provider that lists a proxy; empty if none does.
    pub(super) fn provider_of(providers: &[Provider], name: &str) -> String {
        let lists = |provider: &&Provider| match &provider.kind {
            ProviderKind::Outbounds { members, .. } => members.iter().any(|member| **member == *name),
            ProviderKind::Rules { .. } | ProviderKind::Database { .. } => false,
        };
        providers.iter().find(lists).map(|provider| provider.name.to_string()).unwrap_or_default()
    }

    /// All providers of proxies, by name.
    pub(super) fn proxy_providers(&self) -> Map<String, Value> {
        let (views, providers) = (self.proxies.list(), self.proxies.providers());
        let find = |name: &str| views.iter().find(|view| *view.name == *name);
        let mut out = Map::new();
        let listed: Vec<&str> = views
            .iter()
            .map(|view| &*view.name)
            .filter(|name| *name != "GLOBAL" && Self::provider_of(&providers, name).is_empty())
            .collect();
        let all: Vec<Value> = listed.iter().filter_map(|name| Some(views::proxy(find(name)?, ""))).collect();
        out.insert(DEFAULT.to_owned(), compatible(DEFAULT, all, "", "*"));
        for view in views.iter().filter(|view| *view.name != *"GLOBAL") {
            let Some(group) = &view.group else { continue };
            let own = group.all.iter().filter(|name| Self::provider_of(&providers, name).is_empty());
            let members: Vec<Value> = own.filter_map(|name| Some(views::proxy(find(name)?, ""))).collect();
            if members.is_empty() {
                continue;
            }
            let (url, expected) = test_of(view);
            out.insert(view.name.to_string(), compatible(&view.name, members, &url, &expected));
        }
        for provider in &providers {
            if let Some(shown) = self.proxy_provider(provider, &find) {
                out.insert(provider.name.to_string(), shown);
            }
        }
        out
    }

    fn proxy_provider<'v>(
        &self,
        provider: &Provider,
        find: &dyn Fn(&str) -> Option<&'v ProxyView>,
    ) -> Option<Value> {
        let ProviderKind::Outbounds { members, test } = &provider.kind else { return None };
        let proxies: Vec<Value> =
            members.iter().filter_map(|name| Some(views::proxy(find(name)?, &provider.name))).collect();
        let state = self.proxies.list_state(&provider.name, ListKind::Outbounds).unwrap_or_default();
        let mut out = json!({
            "name": &*provider.name, "type": "Proxy", "vehicleType": vehicle(provider), "proxies": proxies,
            "testUrl": test.as_ref().map_or("", |test| &*test.url),
            "expectedStatus": test.as_ref().map_or_else(|| "*".to_owned(), |test| test.expected_text()),
            "updatedAt": self.time_of(state.updated_at),
        });
        if let (Some(usage), Some(out)) = (state.usage, out.as_object_mut()) {
            let usage = json!({
                "Upload": usage.upload, "Download": usage.download, "Total": usage.total, "Expire": usage.expire,
            });
            out.insert("subscriptionInfo".to_owned(), usage);
        }
        Some(out)
    }

    /// All providers of rules, by name.
    pub(super) fn rule_providers(&self) -> Map<String, Value> {
        let config = self.proxies.config();
        let mut out = Map::new();
        for provider in &config.providers {
            let ProviderKind::Rules { behavior, format, count } = &provider.kind else { continue };
            let state = self.proxies.list_state(&provider.name, ListKind::Rules).unwrap_or_default();
            let mut shown = json!({
                "behavior": behavior_name(behavior), "format": format_name(format), "name": &*provider.name,
                "ruleCount": count, "type": "Rule", "vehicleType": vehicle(provider),
                "updatedAt": self.time_of(state.updated_at),
            });
            let payload = config.facade.as_ref().and_then(|facade| facade.payloads.get(&*provider.name));
            if let (Some(lines), Some(shown)) = (payload, shown.as_object_mut()) {
                let lines: Vec<Value> = lines.iter().map(|line| Value::from(&**line)).collect();
                shown.insert("payload".to_owned(), lines.into());
            }
            out.insert(provider.name.to_string(), shown);
        }
        out
    }

    /// The time of a file, or of the start.
    fn time_of(&self, at: Option<std::time::SystemTime>) -> String {
        let since = at.and_then(|at| at.duration_since(std::time::UNIX_EPOCH).ok());
        since.map_or_else(|| time(self.born, 0), |since| time(since.as_secs(), since.subsec_millis().into()))
    }
}

/// The test of a group, by address and expected status.
fn test_of(view: &ProxyView) -> (String, String) {
    let Some(group) = &view.group else { return Default::default() };
    let url = match group.model.policy {
        Policy::Select(_) | Policy::UrlTest(_) | Policy::Fallback | Policy::LoadBalance(_) => {
            &group.model.test.url
        }
    };
    (url.to_string(), group.model.test.expected_text())
}

fn compatible(name: &str, proxies: Vec<Value>, url: &str, expected: &str) -> Value {
    json!({
        "name": name, "type": "Proxy", "vehicleType": "Compatible", "proxies": proxies,
        "testUrl": url, "expectedStatus": expected, "updatedAt": NEVER,
    })
}

fn vehicle(provider: &Provider) -> &'static str {
    match provider.source {
        ProviderSource::Inline => "Inline",
        ProviderSource::File => "File",
        ProviderSource::Http(_) => "HTTP",
    }
}

fn behavior_name(behavior: &str) -> &'static str {
    match behavior {
        "domain" => "Domain",
        "ipcidr" => "IPCIDR",
        _ => "Classical",
    }
}

fn format_name(format: &str) -> &'static str {
    match format {
        "yaml" => "YamlRule",
        "text" => "TextRule",
        "mrs" => "MrsRule",
        _ => "",
    }
}
