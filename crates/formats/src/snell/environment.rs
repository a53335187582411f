//! The variables of OpenSnell's container image, whose first process writes them into a file for the server.
//!
//! `SNELL_LISTEN`, `SNELL_PSK`, `SNELL_OBFS`, `SNELL_UDP`, `SNELL_QUIC`, `SNELL_IPV6`, `SNELL_TFO`,
//! `SNELL_EGRESS_INTERFACE` and `SNELL_DNS` are that image's; the other keys of `[snell-server]` have variables of the same
//! form here. A value is taken as it is, without the comments and quotes that it would have in a file.

use adit_model::diagnostic::Diagnostics;
use adit_model::{Level, Secret};
use zeroize::Zeroizing;

use super::ini::{DEFAULT, Ini, IniEntry, IniSection};
use super::{SnellProgram, snell_to_model};
use crate::read::loaded::Loaded;
use crate::read::source::Source;

/// Stands for a file's name in messages.
const NAME: &str = "environment";
const PREFIX: &str = "SNELL_";

/// The keys of `[snell-server]`.
const KEYS: [&str; 16] = [
    "listen",
    "psk",
    "obfs",
    "udp",
    "quic",
    "ipv6",
    "tfo",
    "egress-interface",
    "dns",
    "dns-ip-preference",
    "version",
    "mode",
    "brutal",
    "brutal-mbps",
    "brutal-cwnd-gain",
    "pacing-mbps",
];

/// A server as variables describe it.
#[derive(Debug)]
pub struct SnellEnvironment {
    ini: Ini,
    /// Whether they say the key.
    pub has_key: bool,
}

impl SnellEnvironment {
    /// The variable that says the key.
    pub const KEY: &str = "SNELL_PSK";

    /// Reads the settings from `variable`; `None` if not one of the variables is set, or all are empty.
    pub fn read(variable: impl Fn(&str) -> Option<String>) -> Option<Self> {
        let mut section = IniSection::default();
        for key in KEYS {
            let value = Zeroizing::new(variable(&name(key)).unwrap_or_default());
            if !value.trim().is_empty() {
                let value = Zeroizing::new(value.trim().to_owned());
                section.entries.insert(key.to_owned(), IniEntry { value, ..IniEntry::default() });
            }
        }
        if section.entries.is_empty() {
            return None;
        }
        let has_key = section.entries.contains_key("psk");
        let mut ini = Ini::default();
        ini.sections.insert(DEFAULT.to_owned(), IniSection::default());
        ini.sections.insert(SnellProgram::Server.name().to_owned(), section);
        Some(Self { ini, has_key })
    }

    /// Makes `key` the key.
    pub fn set_key(&mut self, key: &Secret) {
        let section = self.ini.sections.entry(SnellProgram::Server.name().to_owned()).or_default();
        let value = Zeroizing::new(key.expose().to_owned());
        section.entries.insert("psk".to_owned(), IniEntry { value, ..IniEntry::default() });
        self.has_key = true;
    }

    /// The configuration; `level` comes from the flags.
    ///
    /// # Errors
    /// Everything that is wrong with it, by the names of the variables.
    pub fn load(&self, level: Option<Level>) -> Result<Loaded, Diagnostics> {
        let loaded = snell_to_model::translate(
            SnellProgram::Server,
            level,
            false,
            &Source::new(NAME, ""),
            &self.ini,
            Diagnostics::new(),
        );
        match loaded {
            Ok(loaded) => Ok(Loaded { diagnostics: named(&loaded.diagnostics), ..loaded }),
            Err(found) => Err(named(&found)),
        }
    }
}

/// The variable of a key.
fn name(key: &str) -> String {
    format!("{PREFIX}{}", key.to_uppercase().replace('-', "_"))
}

fn named(found: &Diagnostics) -> Diagnostics {
    let mut all = Diagnostics::new();
    for finding in found {
        let mut finding = finding.clone();
        if KEYS.contains(&finding.key.as_str()) {
            finding.key = name(&finding.key);
        }
        all.push(finding);
    }
    all
}

#[cfg(test)]
mod tests {
    use super::*;
    use adit_model::{InboundProtocol, ObfsServer};

    fn read(variables: &[(&str, &str)]) -> Option<SnellEnvironment> {
        SnellEnvironment::read(|name| {
            variables.iter().find(|(other, _)| *other == name).map(|(_, value)| (*value).to_owned())
        })
    }

    #[test]
    fn the_variables_of_the_image() {
        let environment = read(&[
            ("SNELL_LISTEN", "0.0.0.0:9,[::]:9"),
            ("SNELL_PSK", "a#b;`c"),
            ("SNELL_OBFS", "http"),
            ("SNELL_UDP", "false"),
            ("SNELL_QUIC", "no"),
            ("SNELL_IPV6", "false"),
            ("SNELL_TFO", "true"),
            ("SNELL_EGRESS_INTERFACE", "eth9"),
            ("SNELL_DNS", "1.1.1.1"),
            ("SNELL_PACING_MBPS", "10"),
            ("SNELL_CHANNEL", "another program's"),
        ]);
        let loaded = environment.unwrap().load(None).unwrap();
        let warnings = loaded.diagnostics.to_string();
        assert!(loaded.diagnostics.len() == 1 && warnings.contains("SNELL_EGRESS_INTERFACE"), "{warnings}");
        let (inbound, dial) = (&loaded.config.inbounds[0], &loaded.config.outbounds[0].dial);
        let InboundProtocol::Snell(server) = &inbound.protocol else { panic!("not snell") };
        assert_eq!((inbound.listen.len(), server.psk.common().unwrap().expose()), (2, "a#b;`c"));
        assert_eq!((server.obfs, server.udp, server.quic), (ObfsServer::Http, false, false));
        assert_eq!((inbound.socket.fast_open, dial.egress.interface.as_deref()), (true, Some("eth9")));
        assert_eq!((dial.dns.len(), dial.family), (1, adit_model::AddressFamilies::V4Only));
        assert_eq!(inbound.socket.pace.unwrap().mbps, 10);
    }

    #[test]
    fn no_variable_is_no_server() {
        assert!(read(&[]).is_none() && read(&[("SNELL_PSK", " "), ("SNELL", "x")]).is_none());
        let mut environment = read(&[("SNELL_UDP", "true")]).unwrap();
        assert!(!environment.has_key);
        assert_eq!(
            environment.load(None).unwrap_err().to_string().lines().next(),
            Some("environment: SNELL_PSK: missing")
        );
        environment.set_key(&Secret::new("made"));
        let config = environment.load(Some(Level::Debug)).unwrap().config;
        assert_eq!(
            (config.inbounds[0].listen[0].to_string().as_str(), config.log.level),
            ("0.0.0.0:2333", Level::Debug)
        );
    }

    #[test]
    fn findings_name_the_variable() {
        let found =
            read(&[("SNELL_PSK", "k"), ("SNELL_DNS", "x"), ("SNELL_UDP", "perhaps")]).unwrap().load(None);
        let found = found.unwrap_err().to_string();
        assert!(found.contains("environment: SNELL_DNS: bad name server: x\n"), "{found}");
        assert!(found.contains("environment: warning: SNELL_UDP: neither true nor false"), "{found}");
    }
}
