//! Requests of both interfaces, one after another, and the state that they work on.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use adit_engine::{Observer, Proxies, Running, UserStatus};
use adit_formats::adit_toml::edit::{Edit, Limit};
use adit_formats::shadowsocks_rust;
use adit_model::map::Map;
use adit_model::{Config, Inbound, InboundProtocol, ShadowsocksServer, User};
use adit_net::rt;
use adit_net::service::ServiceResponse;
use serde_json::{Value, json};

use super::config_edit::{Book, Refusal};
use super::metadata::MetadataStore;
use super::{access_keys, server};
use crate::random::SystemRng;
use crate::run::reload::Requests;

/// Interval at which a new day is looked for.
pub(super) const LOOK: Duration = Duration::from_secs(600);
/// The user that an inbound has when it has no other: nobody knows its key, and it is in no list.
pub(super) const NOBODY: &str = "manage-nobody";
/// Seconds of a day.
const DAY: u64 = 86_400;

/// A request that has shown the secret.
#[derive(Debug)]
pub(super) struct Ask {
    pub(super) method: String,
    /// The path behind the secret.
    pub(super) path: String,
    pub(super) query: String,
    pub(super) body: Vec<u8>,
    /// The field `Host`.
    pub(super) host: Option<String>,
}

impl Ask {
    /// The body as JSON; an empty one is an empty object.
    ///
    /// # Errors
    /// 400 when it is not an object.
    pub(super) fn json(&self) -> Result<Value, Refusal> {
        if self.body.iter().all(u8::is_ascii_whitespace) {
            return Ok(json!({}));
        }
        let value = serde_json::from_slice(&self.body).ok().filter(Value::is_object);
        value.ok_or_else(|| Refusal::bad("the body is no JSON object"))
    }
}

pub(super) struct OutlineApi {
    pub(super) book: Book,
    pub(super) keeper: MetadataStore,
    proxies: Proxies,
    observer: Observer,
}

impl OutlineApi {
    pub(super) fn new(requests: Requests, running: &Running, kept: &Path) -> anyhow::Result<Self> {
        Ok(Self {
            book: Book::new(requests),
            keeper: MetadataStore::open(kept)?,
            proxies: running.proxies(),
            observer: running.observer(),
        })
    }

    /// Answers a request.
    pub(super) fn answer(&mut self, ask: &Ask) -> ServiceResponse {
        let Some(parts) = ask.path.split('/').filter(|part| !part.is_empty()).map(decoded).collect() else {
            return access_keys::refused(&Refusal::bad("the path cannot be read"));
        };
        let parts: Vec<String> = parts;
        let parts: Vec<&str> = parts.iter().map(String::as_str).collect();
        match &*parts {
            ["server", inbound, "v1", rest @ ..] => {
                server::answer(self, ask, inbound, rest).unwrap_or_else(|refusal| server::refused(&refusal))
            }
            parts => {
                access_keys::answer(self, ask, parts).unwrap_or_else(|refusal| access_keys::refused(&refusal))
            }
        }
    }

    /// Takes the totals of a new day.
    pub(super) fn look(&mut self) {
        if let Ok(totals) = self.totals()
            && self.keeper.facts.sample(today(), &totals)
        {
            self.save().ok();
        }
    }

    /// The configuration that runs.
    pub(super) fn config(&self) -> Arc<Config> {
        self.proxies.config()
    }

    /// The status of an inbound.
    pub(super) fn status(&self, inbound: &str) -> Option<adit_engine::InboundStatus> {
        self.observer.status().inbounds.into_iter().find(|it| it.name == inbound)
    }

    /// Writes the facts.
    ///
    /// # Errors
    /// 500 when that fails.
    pub(super) fn save(&self) -> Result<(), Refusal> {
        self.keeper.save().map_err(|error| {
            tracing::error!(%error, "names and limits of access keys cannot be written");
            Refusal::failed("the change cannot be kept")
        })
    }

    /// The inbound of access keys.
    ///
    /// # Errors
    /// 404 when none can have them.
    pub(super) fn base<'c>(&self, config: &'c Config) -> Result<&'c Inbound, Refusal> {
        let named = config.manage.as_ref().and_then(|manage| manage.inbound.as_ref());
        let is_it = |inbound: &&Inbound| match named {
            Some(name) => *inbound.name == **name,
            None => !self.keeper.facts.inbounds.contains(&*inbound.name),
        };
        config.inbounds.iter().filter(is_it).find(|inbound| has_keys(config, inbound)).ok_or_else(|| {
            Refusal::none(
                "no Shadowsocks inbound with an AEAD method (up to SIP004) has users with a password each",
            )
        })
    }

    /// The inbounds whose users are access keys: that one, and those of other ports.
    ///
    /// # Errors
    /// 404 when there is none.
    pub(super) fn managed<'c>(&self, config: &'c Config) -> Result<Vec<&'c Inbound>, Refusal> {
        let base = self.base(config)?;
        let is_other = |inbound: &&Inbound| {
            self.keeper.facts.inbounds.contains(&*inbound.name) && has_keys(config, inbound)
        };
        Ok(std::iter::once(base).chain(config.inbounds.iter().filter(is_other)).collect())
    }

    /// Bytes of all access keys, up and down together.
    ///
    /// # Errors
    /// 404 when no inbound has any.
    pub(super) fn totals(&self) -> Result<Map<String, u64>, Refusal> {
        let config = self.config();
        let names: Vec<&str> = self.managed(&config)?.iter().map(|inbound| &*inbound.name).collect();
        let status = self.observer.status();
        let users =
            status.inbounds.into_iter().filter(|it| names.contains(&&*it.name)).flat_map(|it| it.users);
        let total = |user: UserStatus| (user.name, user.up_bytes + user.down_bytes);
        Ok(users.filter(|user| user.name != NOBODY).map(total).collect())
    }
}

/// Days since 1970.
pub(super) fn today() -> u64 {
    rt::unix_time() / DAY
}

/// Whether users of an inbound have a password each, and stand in the file.
fn has_keys(config: &Config, inbound: &Inbound) -> bool {
    server_of(config, inbound).is_some_and(|server| server.key.is_each())
}

/// The Shadowsocks server of an inbound whose users stand in the file.
pub(super) fn server_of<'c>(config: &Config, inbound: &'c Inbound) -> Option<&'c ShadowsocksServer> {
    let InboundProtocol::Shadowsocks(server) = &inbound.protocol else { return None };
    (!config.panel_of.contains_key(&inbound.name) && server.key.hops().is_empty()).then_some(server)
}

/// The users of a server that others may know of.
pub(super) fn users(server: &ShadowsocksServer) -> impl Iterator<Item = &User> {
    server.key.users().iter().filter(|user| &*user.name != NOBODY)
}

/// The changes that take a user away: the last one leaves a user that nobody is, since the inbound would be open to others.
pub(super) fn removal(server: &ShadowsocksServer, user: &str) -> Vec<(String, Edit)> {
    let mut edits = Vec::new();
    if let [only] = server.key.users()
        && *only.name == *user
    {
        let key = shadowsocks_rust::generate_key(server.key.method(), &mut SystemRng);
        edits.push((NOBODY.to_owned(), Edit::Add { key, id: None, limits: Vec::new() }));
    }
    edits.push((user.to_owned(), Edit::Remove));
    edits
}

/// A limit in bytes as the file has it: of a month, since the file knows no sliding window.
pub(super) fn limit(bytes: Option<u64>) -> Vec<Limit> {
    /// The range of a quota in the file.
    const QUOTA: std::ops::RangeInclusive<u64> = 1..=1 << 60;
    let text = bytes.map(|bytes| format!("{}B", bytes.clamp(*QUOTA.start(), *QUOTA.end())));
    vec![("reset-day", text.as_ref().map(|_| "1".to_owned())), ("quota", text)]
}

/// A text with its `%XX` read; `None` when they are no text, or hide a control character.
fn decoded(text: &str) -> Option<String> {
    let mut out = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let [first, more @ ..] = rest {
        rest = more;
        if *first != b'%' {
            out.push(*first);
            continue;
        }
        let (digits, more) = rest.split_at_checked(2)?;
        let digits = std::str::from_utf8(digits).ok().filter(|digits| !digits.starts_with('+'))?;
        out.push(u8::from_str_radix(digits, 16).ok()?);
        rest = more;
    }
    String::from_utf8(out).ok().filter(|text| !text.contains(char::is_control))
}

/// A JSON reply.
pub(super) fn told(status: u16, value: &Value) -> ServiceResponse {
    ServiceResponse {
        status,
        content_type: Some("application/json"),
        ..ServiceResponse::text(value.to_string())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_are_decoded_or_refused() {
        assert_eq!(decoded("a%20b%c3%a4"), Some("a bä".into()));
        for bad in ["%", "%4", "%+1", "%zz", "%ff", "%00", "a%0ab"] {
            assert_eq!(decoded(bad), None, "{bad}");
        }
    }

    #[test]
    fn limits_stay_in_the_range_of_quotas() {
        assert_eq!(limit(Some(0))[1], ("quota", Some("1B".into())));
        assert_eq!(limit(Some(u64::MAX))[1], ("quota", Some(format!("{}B", 1_u64 << 60))));
        assert_eq!(limit(None), [("reset-day", None), ("quota", None)]);
    }
}
