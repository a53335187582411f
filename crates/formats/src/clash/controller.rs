//! The control interface: `external-controller` and its kin, and the facts that it shows.

use std::net::{Ipv4Addr, SocketAddr};
use std::path::PathBuf;
use std::sync::Arc;

use adit_model::map::Map;
use adit_model::{Controller, Facade, RuleLine, Secret};

use super::rules::RuleOrigin;
use super::{ClashSetup, Context};
use crate::read::json::{JsonMember, JsonValue, Node};
use crate::read::yaml_access;

/// Lines of one list that are shown.
const MAX_LINES: usize = 10_000;
/// The keys of ports.
const PORTS: [&str; 5] = ["port", "socks-port", "redir-port", "tproxy-port", "mixed-port"];

/// Puts values in the place of those of keys at the top.
pub(super) fn lay_over(root: &mut JsonValue, overlay: &[(&str, &str)]) {
    let Node::Object(members) = &mut root.node else { return };
    for (key, text) in overlay {
        let node = Node::Text((*text).to_owned().into());
        match members.iter_mut().find(|member| member.key == *key) {
            Some(member) => member.value.node = node,
            None => {
                let value = JsonValue { at: 0, node };
                members.push(JsonMember { at: 0, key: (*key).to_owned(), value });
            }
        }
    }
}

/// Reads the keys of the interface.
pub(crate) fn read(context: &mut Context<'_>, root: &JsonValue, setup: &mut ClashSetup) {
    let secret = yaml_access::text_of(root, "secret").filter(|text| !text.is_empty()).map(Secret::new);
    let listen = listen(context, root, secret.is_some());
    let text = |key| yaml_access::text_of(root, key).filter(|text| !text.is_empty());
    let unix = text("external-controller-unix").map(|path| context.home.join(path));
    if listen.is_none() && unix.is_none() {
        return;
    }
    let cors = yaml_access::get(root, "external-controller-cors");
    let origins = cors.map(|cors| yaml_access::texts_of(cors, "allow-origins")).unwrap_or_default();
    let origins = origins.into_iter().map(|(origin, _)| origin).filter(|origin| *origin != "*");
    let is_closed = cors.is_some_and(|cors| yaml_access::is_off(cors, "allow-private-network"));
    setup.config.controller = Some(Controller {
        listen,
        unix,
        secret,
        ui: ui(context, root),
        origins: origins.map(Into::into).collect(),
        private_network: !is_closed,
    });
}

fn listen(context: &mut Context<'_>, root: &JsonValue, has_secret: bool) -> Option<SocketAddr> {
    const KEY: &str = "external-controller";
    let value = yaml_access::get(root, KEY)?;
    let text = yaml_access::text(value).filter(|text| !text.is_empty())?;
    let text =
        text.strip_prefix("localhost:").map_or_else(|| text.to_owned(), |port| format!("127.0.0.1:{port}"));
    let found = match text.strip_prefix(':') {
        Some(port) => port.parse().ok().map(|port: u16| SocketAddr::from((Ipv4Addr::UNSPECIFIED, port))),
        None => text.parse().ok(),
    };
    let Some(found) = found else {
        context.error(value.at, KEY, "expected address:port");
        return None;
    };
    let (narrowed, is_other) = Controller::narrowed(found, has_secret);
    if is_other {
        let problem =
            format!("others could control adit at this address: it listens on {narrowed} in its place");
        context.remark(value.at, KEY, problem, "add the line: secret: \"...\"");
    }
    Some(narrowed)
}

/// The folder of a dashboard. Nothing is fetched for it.
fn ui(context: &mut Context<'_>, root: &JsonValue) -> Option<PathBuf> {
    let text = |key| yaml_access::text_of(root, key).filter(|text| !text.is_empty());
    let folder = match (text("external-ui"), text("external-ui-name")) {
        (None, None) => None,
        (folder, name) => Some(context.home.join(folder.unwrap_or("ui")).join(name.unwrap_or(""))),
    };
    if let Some(folder) = folder.as_deref().filter(|folder| !context.guard.holds(context.home, folder)) {
        let at = ["external-ui", "external-ui-name"].iter().find_map(|key| yaml_access::get(root, key));
        let (at, home) = (at.map_or(0, |value| value.at), context.home.display());
        if context.guard.is_remote {
            let problem = format!("path is not subpath of home directory or SAFE_PATHS: {home}");
            context.error(at, "external-ui", problem);
            return None;
        }
        let problem =
            format!("{} lies outside of the home folder: all of it can be read there", folder.display());
        context.remark(at, "external-ui", problem, "");
    }
    if let (Some(value), Some(folder)) = (yaml_access::get(root, "external-ui-url"), &folder)
        && !folder.join("index.html").exists()
    {
        let hint = format!("unpack a dashboard into {}", folder.display());
        context.remark(value.at, "external-ui-url", "adit does not fetch dashboards", &hint);
    }
    folder
}

/// Lines of rule lists that stand in the file.
pub(super) fn payloads(root: &JsonValue) -> Map<Box<str>, Vec<Box<str>>> {
    let providers = yaml_access::get(root, "rule-providers").map(yaml_access::members).unwrap_or_default();
    let inline =
        providers.iter().filter(|member| yaml_access::text_of(&member.value, "type") == Some("inline"));
    let lines = |member: &JsonMember| {
        let lines = yaml_access::texts_of(&member.value, "payload").into_iter().take(MAX_LINES);
        (member.key.as_str().into(), lines.map(|(line, _)| line.into()).collect())
    };
    inline.map(lines).collect()
}

/// The facts that the interface shows.
pub(super) fn facade(
    root: &JsonValue,
    setup: &ClashSetup,
    rules: Vec<RuleLine>,
    payloads: Map<Box<str>, Vec<Box<str>>>,
) -> Facade {
    let mode = match setup.mode.as_ref().map(|(mode, _)| *mode) {
        None => "rule",
        Some("mode global") => "global",
        Some(_) => "direct",
    };
    let port = |key| Some((key, u16::try_from(yaml_access::number_of(root, key)?).ok()?));
    let users = yaml_access::texts_of(root, "authentication").into_iter();
    let names = users.filter_map(|(text, _)| Some(text.split_once(':')?.0.into()));
    Facade {
        mode,
        ports: PORTS.into_iter().filter_map(port).collect(),
        allow_lan: yaml_access::is_on(root, "allow-lan"),
        bind_address: yaml_access::text_of(root, "bind-address").unwrap_or("*").into(),
        ipv6: !yaml_access::is_off(root, "ipv6"),
        unified_delay: yaml_access::is_on(root, "unified-delay"),
        agent: super::subscription::agent(root).into(),
        users: names.collect(),
        clients: ["lan-allowed-ips", "lan-disallowed-ips", "skip-auth-prefixes"]
            .map(|key| yaml_access::texts_of(root, key).into_iter().map(|(text, _)| text.into()).collect()),
        geo_urls: {
            let urls = yaml_access::get(root, "geox-url").map(yaml_access::members).unwrap_or_default();
            let text = |member: &JsonMember| {
                Some((member.key.as_str().into(), yaml_access::text(&member.value)?.into()))
            };
            urls.iter().filter_map(text).collect()
        },
        geo_updates: (
            yaml_access::is_on(root, "geo-auto-update"),
            yaml_access::number_of(root, "geo-update-interval").unwrap_or(24),
        ),
        egress: {
            let egress = &setup.config.dns.egress;
            (egress.interface.clone().unwrap_or_default(), egress.mark.unwrap_or(0))
        },
        rules,
        labels: labels(&setup.origins),
        payloads,
    }
}

fn labels(origins: &[Option<RuleOrigin>]) -> Vec<Option<Arc<RuleLine>>> {
    let label = |origin: &Option<RuleOrigin>| {
        let origin = origin.as_ref()?;
        let (kind, payload) = (origin.kind.into(), origin.payload.clone());
        Some(Arc::new(RuleLine { kind, payload, target: origin.target.clone() }))
    };
    origins.iter().map(label).collect()
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;
    use crate::clash;

    fn load(text: &str) -> (Option<Controller>, String) {
        let setup = clash::load("c.yaml", text, Path::new("/h")).unwrap();
        (setup.config.controller, setup.diagnostics.to_string())
    }

    #[test]
    fn addresses_secrets_and_folders() {
        for (text, want, remark) in [
            ("mixed-port: 1", None, ""),
            ("external-controller: ''", None, ""),
            ("external-controller: 127.0.0.1:9090", Some("127.0.0.1:9090"), ""),
            ("external-controller: localhost:9090", Some("127.0.0.1:9090"), ""),
            ("external-controller: :9090\nsecret: a", Some("0.0.0.0:9090"), ""),
            ("external-controller: '[::]:9090'", Some("127.0.0.1:9090"), "secret: \"...\""),
            ("external-controller: 0.0.0.0:9090", Some("127.0.0.1:9090"), "others could control"),
        ] {
            let (found, said) = load(text);
            let listen = found.and_then(|found| found.listen).map(|listen| listen.to_string());
            assert_eq!(listen.as_deref(), want, "{text}");
            assert!(
                if remark.is_empty() { said.is_empty() } else { said.contains(remark) },
                "{text}: {said}"
            );
        }
        assert!(clash::load("c", "external-controller: x", Path::new("/h")).is_err());
        let text = "external-controller-unix: a.sock\nsecret: s\nexternal-ui: web\nexternal-ui-name: z\n\
            external-ui-url: https://u.example/\n\
            external-controller-cors: {allow-origins: [http://a.example, '*'], allow-private-network: false}";
        let (found, said) = load(text);
        let want = Controller {
            listen: None,
            unix: Some("/h/a.sock".into()),
            secret: Some(Secret::new("s")),
            ui: Some("/h/web/z".into()),
            origins: vec!["http://a.example".into()],
            private_network: false,
        };
        assert_eq!(found, Some(want));
        assert!(said.contains("external-ui-url") && said.contains("unpack"), "{said}");
    }

    #[test]
    fn values_that_are_laid_over() {
        let text = "mixed-port: 7000\nmode: rule\nexternal-controller: 127.0.0.1:1\nrules: ['DOMAIN,a.test,REJECT', 'MATCH,DIRECT']";
        let overlay = [("mode", "direct"), ("socks-port", "7001"), ("mixed-port", "0")];
        let setup = clash::load_over("c", text, Path::new("/h"), false, &overlay).unwrap();
        let facade = setup.config.facade.unwrap();
        assert_eq!(facade.mode, "direct");
        assert_eq!(facade.ports, Map::from([("socks-port", 7001), ("mixed-port", 0)]));
        assert_eq!(setup.config.inbounds.len(), 1);
        assert_eq!(facade.rules.len(), 2);
        assert_eq!(facade.labels, [None]);
        let setup = clash::load("c", text, Path::new("/h")).unwrap();
        let facade = setup.config.facade.unwrap();
        let label = facade.labels[0].as_ref().unwrap();
        assert_eq!((&*label.kind, &*label.payload, &*label.target), ("Domain", "a.test", "REJECT"));
    }
}
