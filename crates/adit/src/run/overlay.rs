//! Changes of the running configuration that clients ask for. They last until the file is read again.

use std::net::IpAddr;
use std::path::{Path, PathBuf};

use adit_formats::clash::Guard;
use adit_model::Facade;
use adit_model::map::Map;
use serde_json::Value;

/// Keys of ports, which a new text keeps unless it is forced.
const PORTS: [&str; 5] = ["port", "socks-port", "redir-port", "tproxy-port", "mixed-port"];

/// A change.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Change {
    /// Other values of keys at the top of the file.
    Patch(Vec<(&'static str, String)>),
    /// Another text.
    Put {
        /// The text; without one that of the path.
        text: String,
        /// A file; without one that of the process.
        path: Option<PathBuf>,
        /// Its ports are opened, too.
        is_forced: bool,
    },
}

/// Values that lie over those of the file.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Overlay {
    /// Values of keys at the top.
    pub(crate) pairs: Map<&'static str, String>,
    /// The text in the place of that of the file.
    pub(crate) text: Option<String>,
    /// A client has sent the text, or has named its file.
    pub(crate) is_remote: bool,
    /// The folder in which files may be named, and its file.
    pub(crate) home: PathBuf,
    pub(crate) file: PathBuf,
}

impl Overlay {
    /// Takes a change; `facade` has the values that hold at this time.
    ///
    /// # Errors
    /// The problem, in a line; nothing has changed then.
    pub(crate) fn take(&mut self, change: &Change, facade: Option<&Facade>) -> Result<(), String> {
        match change {
            Change::Patch(pairs) => self.pairs.extend(pairs.iter().cloned()),
            Change::Put { text, path, is_forced } => {
                let is_remote = !text.is_empty() || path.as_deref().is_some_and(|path| !self.is_own(path));
                let text = if text.is_empty() { self.read(path.as_deref())? } else { Some(text.clone()) };
                (self.text, self.is_remote) = (text, is_remote);
                self.pairs.clear();
                if let Some(facade) = facade.filter(|_| !is_forced) {
                    for key in PORTS {
                        self.pairs.insert(key, facade.ports.get(key).copied().unwrap_or(0).to_string());
                    }
                    self.pairs.insert("allow-lan", facade.allow_lan.to_string());
                    self.pairs.insert("bind-address", facade.bind_address.to_string());
                }
            }
        }
        Ok(())
    }

    fn read(&self, path: Option<&Path>) -> Result<Option<String>, String> {
        let Some(path) = path else {
            let text = adit_formats::read::source::read_regular(&self.file, adit_formats::clash::MAX_LEN)
                .map_err(|found| found.to_string())?;
            return Ok(Some(text.to_string()));
        };
        if !path.is_absolute() {
            return Err("path is not a absolute path".to_owned());
        }
        let found = std::fs::canonicalize(path);
        let outside = || {
            let home = self.home.display();
            format!("path is not subpath of home directory or SAFE_PATHS: {home}")
        };
        let Ok(found) = found else {
            // Whether a file is there is told of the folders that may be read alone.
            let folder = path.parent().and_then(|folder| std::fs::canonicalize(folder).ok());
            return Err(match folder.is_some_and(|folder| self.may_read(&folder)) {
                true => format!("stat {}: no such file or directory", path.display()),
                false => outside(),
            });
        };
        if !self.may_read(&found) {
            return Err(outside());
        }
        let text = adit_formats::read::source::read_regular(&found, adit_formats::clash::MAX_LEN)
            .map_err(|found| found.to_string())?;
        Ok(Some(text.to_string()))
    }

    /// Whether a client may name a file: in the home folder, in one of `SAFE_PATHS`, or the process's own.
    fn may_read(&self, path: &Path) -> bool {
        self.is_own(path) || guard().holds(&self.home, path)
    }

    fn is_own(&self, path: &Path) -> bool {
        let own = std::fs::canonicalize(&self.file);
        own.is_ok_and(|own| std::fs::canonicalize(path).is_ok_and(|path| path == own))
    }
}

/// The folders in which files may be named, as the environment says.
pub(crate) fn guard() -> Guard {
    let folders = std::env::var_os("SAFE_PATHS").unwrap_or_default();
    let folders = std::env::split_paths(&folders).filter(|folder| !folder.as_os_str().is_empty()).collect();
    let is_off = std::env::var_os("SKIP_SAFE_PATH_CHECK").is_some_and(|value| value == "1");
    Guard { folders, is_off, ..Guard::default() }
}

/// A text of a body, empty if it is not there or null, as for mihomo; `None` for another type, which must not be taken for
/// an empty one: that reads the file.
pub(crate) fn text<'b>(body: &'b serde_json::Map<String, Value>, key: &str) -> Option<&'b str> {
    match body.get(key) {
        None | Some(Value::Null) => Some(""),
        Some(value) => value.as_str(),
    }
}

/// The values that a client may patch; `None` for one of the wrong type.
pub(crate) fn pairs(body: &serde_json::Map<String, Value>) -> Option<Vec<(&'static str, String)>> {
    let mut pairs = Vec::new();
    for key in PORTS {
        if let Some(value) = body.get(key) {
            pairs.push((key, u16::try_from(value.as_u64()?).ok()?.to_string()));
        }
    }
    if let Some(mode) = body.get("mode") {
        let mode = mode.as_str()?.to_lowercase();
        pairs.push(("mode", mode.clone()));
        if !["rule", "global", "direct"].contains(&mode.as_str()) {
            return None;
        }
    }
    for key in ["allow-lan", "ipv6", "sniffing"] {
        if let Some(value) = body.get(key) {
            pairs.push((key, value.as_bool()?.to_string()));
        }
    }
    if let Some(value) = body.get("bind-address") {
        let text = value.as_str()?;
        let is_address = matches!(text, "" | "*") || text.trim_matches(['[', ']']).parse::<IpAddr>().is_ok();
        pairs.push(("bind-address", is_address.then(|| text.to_owned())?));
    }
    Some(pairs)
}

/// Keys that mihomo changes at run time and adit in the file alone.
const OF_FILE: [&str; 11] = [
    "tun",
    "tuic-server",
    "ss-config",
    "vmess-config",
    "tcptun-config",
    "udptun-config",
    "skip-auth-prefixes",
    "lan-allowed-ips",
    "lan-disallowed-ips",
    "tcp-concurrent",
    "interface-name",
];

/// The first key of a body that would change, and does not at run time. `shown` has the values that hold.
pub(crate) fn unchangeable(body: &serde_json::Map<String, Value>, shown: &Value) -> Option<&'static str> {
    OF_FILE.into_iter().find(|key| body.get(*key).is_some_and(|value| !holds(value, &shown[*key])))
}

/// Whether a value says what holds already, or nothing. An object may be a part of the one that holds.
fn holds(value: &Value, shown: &Value) -> bool {
    match value {
        Value::Null => true,
        Value::Object(members) => members.iter().all(|(key, value)| holds(value, &shown[key.as_str()])),
        Value::Bool(false) if shown.is_null() => true,
        Value::String(text) if text.is_empty() && shown.is_null() => true,
        Value::Array(values) if values.is_empty() && shown.is_null() => true,
        Value::Bool(_) | Value::Number(_) | Value::String(_) | Value::Array(_) => value == shown,
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn values_of_the_wrong_type_are_refused() {
        let of = |value: Value| pairs(value.as_object().unwrap());
        assert_eq!(of(json!({})), Some(Vec::new()));
        assert_eq!(of(json!({"nosuch": 1, "mode": "Global"})), Some(vec![("mode", "global".into())]));
        assert_eq!(
            of(json!({"mixed-port": 7, "allow-lan": true})),
            Some(vec![("mixed-port", "7".into()), ("allow-lan", "true".into())])
        );
        for address in ["*", "192.0.2.1", "[2001:db8::1]", "::1"] {
            assert_eq!(of(json!({"bind-address": address})), Some(vec![("bind-address", address.into())]));
        }
        for bad in [
            json!({"mode": "bogus"}),
            json!({"mode": 1}),
            json!({"mixed-port": "x"}),
            json!({"port": 70_000}),
            json!({"port": -1}),
            json!({"allow-lan": 1}),
            json!({"bind-address": 1}),
            json!({"bind-address": "999.1.1.1"}),
            json!({"bind-address": "localhost"}),
            json!({"bind-address": "127.0.0.1:80"}),
            json!({"bind-address": "127.0.0.1\nmode: direct"}),
        ] {
            assert_eq!(of(bad.clone()), None, "{bad}");
        }
    }

    #[test]
    fn every_value_of_a_wrong_type_is_refused() {
        let values =
            [json!("zz"), json!(""), json!(7), json!(1.5), json!(true), json!([]), json!({}), json!(null)];
        let switches = ["allow-lan", "ipv6", "sniffing"].map(|key| (key, vec![json!(true)]));
        let numbers = PORTS.map(|key| (key, vec![json!(7)]));
        let texts = [("bind-address", vec![json!("")]), ("mode", Vec::new())];
        for (key, right) in switches.into_iter().chain(numbers).chain(texts) {
            for value in &values {
                let body = json!({ key: value });
                let found = pairs(body.as_object().unwrap());
                assert_eq!(found.is_some(), right.contains(value), "{body}");
            }
        }
        for (value, want) in values.iter().zip([Some("zz"), Some(""), None, None, None, None, None, Some("")])
        {
            assert_eq!(text(json!({ "payload": value }).as_object().unwrap(), "payload"), want, "{value}");
        }
        assert_eq!(text(&serde_json::Map::new(), "payload"), Some(""));
    }

    #[test]
    fn keys_that_only_the_file_changes_are_refused() {
        let shown =
            json!({ "tun": { "enable": false, "stack": "system" }, "lan-allowed-ips": ["0.0.0.0/0"] });
        let of = |body: Value| unchangeable(body.as_object().unwrap(), &shown);
        for body in [
            json!({ "mode": "rule", "nosuch": 1 }),
            json!({ "tun": null, "interface-name": "", "tcp-concurrent": false, "skip-auth-prefixes": [] }),
            json!({ "tun": { "enable": false }, "lan-allowed-ips": ["0.0.0.0/0"] }),
        ] {
            assert_eq!(of(body.clone()), None, "{body}");
        }
        assert_eq!(of(json!({ "tun": { "enable": true } })), Some("tun"));
        assert_eq!(of(json!({ "tun": 5 })), Some("tun"));
        assert_eq!(of(json!({ "lan-allowed-ips": ["10.0.0.0/8"] })), Some("lan-allowed-ips"));
        assert_eq!(of(json!({ "lan-disallowed-ips": ["10.0.0.0/8"] })), Some("lan-disallowed-ips"));
    }

    #[test]
    fn a_text_keeps_the_ports_unless_it_is_forced() {
        let facade = Facade { ports: [("mixed-port", 7)].into(), ..Facade::default() };
        let mut overlay = Overlay::default();
        let put = |is_forced| Change::Put { text: "a: b".into(), path: None, is_forced };
        overlay.take(&Change::Patch(vec![("mode", "direct".into())]), Some(&facade)).unwrap();
        overlay.take(&put(false), Some(&facade)).unwrap();
        assert_eq!(overlay.text.as_deref(), Some("a: b"));
        assert_eq!((&*overlay.pairs["mixed-port"], &*overlay.pairs["port"]), ("7", "0"));
        assert!(!overlay.pairs.contains_key("mode"));
        overlay.take(&put(true), Some(&facade)).unwrap();
        assert!(overlay.pairs.is_empty());
    }

    #[test]
    fn files_are_named_in_the_home_folder_alone() {
        let home = std::env::temp_dir().join(format!("adit-put-{}", std::process::id()));
        std::fs::create_dir_all(&home).unwrap();
        std::fs::write(home.join("a.yaml"), "rules: []").unwrap();
        std::os::unix::fs::symlink("/etc/passwd", home.join("link")).unwrap();
        let overlay = Overlay { home: home.clone(), file: home.join("none"), ..Overlay::default() };
        let read = |path: &str| overlay.read(Some(Path::new(path)));
        assert_eq!(read(home.join("a.yaml").to_str().unwrap()).unwrap().as_deref(), Some("rules: []"));
        for (path, error) in [
            ("relative.yaml".into(), "path is not a absolute path"),
            (format!("{}/none.yaml", home.display()), "stat "),
            ("/nonexistent/x.yaml".into(), "path is not subpath"),
            ("/etc/nosuch".into(), "path is not subpath"),
            ("/etc/passwd/x".into(), "path is not subpath"),
            ("/etc/passwd".into(), "path is not subpath"),
            (format!("{}/link", home.display()), "path is not subpath"),
            // However deep the folder for temporary files is.
            (format!("{}{}/etc/passwd", home.display(), "/..".repeat(20)), "path is not subpath"),
        ] {
            assert!(read(&path).unwrap_err().starts_with(error), "{path}");
        }
        std::fs::remove_dir_all(home).unwrap();
    }
}
