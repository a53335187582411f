//! Panels that list users and take their counters, and the store that servers of a fleet share.

use std::collections::HashSet;
use std::fmt;
use std::hash::{BuildHasher as _, Hasher as _, RandomState};
use std::path::PathBuf;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;

use super::{
    Config, InboundProtocol, KeyForm, Secret, ShadowsocksKey, ShadowsocksServerKey, SnellKeys, SsrUsers, Tag,
    User, UserLimits, Users,
};

/// A panel.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Panel {
    /// Its name, once among panels: part of the key of accounts and of the journal.
    pub name: Tag,
    /// The interface that it has.
    pub kind: PanelKind,
    /// Its address up to the path of the interface, as `https://panel.example.com`.
    pub url: Secret,
    /// The token of the node.
    pub token: PanelToken,
    /// The number or code of this node at the panel.
    pub node: Box<str>,
    /// The type of this node at the panel; empty for none in requests.
    pub node_type: Box<str>,
    /// The number of this machine at the panel, whose token `token` is then; `None` for the token of all nodes.
    pub machine: Option<Box<str>>,
    /// The address of the panel's WebSocket, where it is on another host than the panel.
    pub websocket: Option<Secret>,
    /// SHA-256 digests of the panel's certificate, one of which it must have, in the place of signatures and names; at most
    /// two; empty for the usual check.
    pub pins: Vec<[u8; 32]>,
    /// Whether `http://` is allowed to an address that is not of loopback.
    pub insecure_http: bool,
    /// Policy for a batch of counters that the panel may or may not have.
    pub in_doubt: InDoubt,
    /// Time between two requests for the users; `None` for the panel's word, and 60 s without it.
    pub pull: Option<Duration>,
    /// Time between two batches of counters, the same.
    pub push: Option<Duration>,
}

/// The interface of a panel.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PanelKind {
    /// UniProxy of version 1: v2board and Xboard.
    UniProxy,
    /// Version 2 of Xboard: one report for everything, and changes of users at once, over a WebSocket.
    Xboard,
    /// `mod_mu` of SSPanel.
    ModMu,
    /// adit's own hooks, with absolute totals.
    Hooks,
}

/// The place of a token.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum PanelToken {
    /// In the configuration.
    Text(Secret),
    /// The first line of a file.
    File(PathBuf),
}

/// Policy for a batch of counters that the panel may or may not have applied.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum InDoubt {
    /// It is kept and shown until a person decides.
    #[default]
    Hold,
    /// It is sent again: bytes may count twice.
    Resend,
    /// It is given up: bytes may not count.
    Drop,
}

/// The store that the servers of a fleet share: Redis or Valkey.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Store {
    /// `redis://[user:password@]host:port[/database]`, `rediss://` with TLS, or `unix:///path`.
    pub url: Secret,
    /// Name of the fleet, part of every key.
    pub fleet: Box<str>,
    /// Policy for quotas while the store is away.
    pub away: StoreAway,
    /// Time between two synchronisations.
    pub every: Duration,
    /// Name of the master, where `url` is that of a Sentinel.
    pub sentinel: Option<Box<str>>,
    /// The key of the fleet, 32 bytes in base64: it opens the credentials of users that the store lists. `None` if it lists
    /// none.
    pub users_key: Option<Secret>,
    /// The nodes that this one shares salts with.
    pub replay: Option<ReplayGroup>,
}

/// Nodes behind one address with the same keys, which tell each other the salts that have opened streams.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ReplayGroup {
    /// Its name, part of a key of the store.
    pub name: Box<str>,
    /// The secret of the fingerprints, 32 bytes in base64.
    pub key: Secret,
}

impl Store {
    /// Time between two synchronisations unless written.
    pub const EVERY: Duration = Duration::from_secs(5);
    /// The name of the store as the panel of an inbound, and the first part of the names of its users.
    pub const PANEL: &str = "store";
}

/// Policy for quotas while the store is away.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum StoreAway {
    /// Users go on with an allowance.
    #[default]
    Allowance,
    /// There is no quota.
    Open,
    /// Users with a quota are refused.
    Closed,
}

/// A user as a panel lists it: borrowed, so that a long list leaves no holes in the heap.
#[derive(Clone, PartialEq, Eq)]
pub struct PanelUser<'a> {
    /// Its number or name at the panel, which stays when its secret changes.
    pub id: &'a str,
    /// Its name in accounts: the panel's name, a slash and the id. An account that is there already has the same text.
    pub name: Arc<str>,
    /// Its secret: a password or a UUID.
    pub secret: &'a str,
    /// The key for 2022 methods in base64, where the panel gives one; else it is made of the secret.
    pub key: Option<&'a str>,
    /// Its limits.
    pub limits: UserLimits,
}

/// Secrets are never shown.
impl fmt::Debug for PanelUser<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PanelUser").field("name", &self.name).finish_non_exhaustive()
    }
}

/// The cipher of a Shadowsocks node and its key, as the panel gives them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ServerKeyOf {
    /// Name of the method.
    pub method: Box<str>,
    /// The key in base64; `None` for methods that need none.
    pub key: Option<Secret>,
}

/// The user of an inbound whose panel has listed none: nobody, with `len` bytes of key in base64 that are drawn once in
/// the life of the process and never shown.
pub fn nobody(len: usize) -> User {
    static DRAWN: OnceLock<[u8; 32]> = OnceLock::new();
    let drawn = DRAWN.get_or_init(|| {
        let mut bytes = [0; 32];
        for part in bytes.chunks_exact_mut(8) {
            // Keyed with the system's randomness.
            part.copy_from_slice(&RandomState::new().build_hasher().finish().to_le_bytes());
        }
        bytes
    });
    let key = STANDARD.encode(&drawn[..len.min(drawn.len())]);
    User::from(("nobody".into(), Secret::new(key)))
}

impl Config {
    /// Gives the inbounds of a panel their users. Users that cannot be served by an inbound are left out; each problem is
    /// a text without secrets.
    pub fn set_panel_users(
        &mut self,
        panel: &str,
        users: &[PanelUser<'_>],
        server: Option<&ServerKeyOf>,
    ) -> Vec<String> {
        let mut problems = Vec::new();
        let is_of = |name: &Tag| self.panel_of.get(name).is_some_and(|of| **of == *panel);
        for inbound in self.inbounds.iter_mut().filter(|inbound| is_of(&inbound.name)) {
            let mut problem = |text: String| problems.push(format!("inbound {}: {text}", inbound.name));
            match &mut inbound.protocol {
                InboundProtocol::Snell(snell) => {
                    let own = named(panel, users, &mut problem, |user| Some(Secret::new(user.secret)));
                    let Ok(own) = Users::new(own) else { continue };
                    snell.psk = match &snell.psk {
                        SnellKeys::Common(psk) | SnellKeys::Named(psk, _) => {
                            SnellKeys::Named(psk.clone(), own)
                        }
                        SnellKeys::Each(_) => SnellKeys::Each(own),
                    };
                }
                InboundProtocol::Shadowsocks(shadowsocks) => {
                    if let Some(key) = shadowsocks_key(panel, users, server, &shadowsocks.key, &mut problem) {
                        shadowsocks.key = key;
                    }
                }
                InboundProtocol::Ssr(ssr) => {
                    let own = named(panel, users, &mut problem, |user| {
                        user.id.parse::<u32>().ok().map(|_| Secret::new(user.secret))
                    });
                    let prefix = panel.len() + 1;
                    let id = |user: &User| user.name.get(prefix..).and_then(|id| id.parse().ok());
                    let own = own.into_iter().map(|user| (id(&user).unwrap_or(u32::MAX), user)).collect();
                    match SsrUsers::new(ssr.protocol, own) {
                        Ok(users) => ssr.users = users,
                        Err(error) => problem(error.to_string()),
                    }
                }
                InboundProtocol::Local(_)
                | InboundProtocol::Obfs(_)
                | InboundProtocol::Tunnel { .. }
                | InboundProtocol::Captured(_)
                | InboundProtocol::Tun(_)
                | InboundProtocol::Dns(_) => {}
            }
        }
        problems
    }
}

/// Users with names and keys of their own; at least nobody.
fn named(
    panel: &str,
    users: &[PanelUser<'_>],
    problem: &mut dyn FnMut(String),
    key: impl Fn(&PanelUser<'_>) -> Option<Secret>,
) -> Vec<User> {
    let mut own = Vec::with_capacity(users.len());
    own.extend(users.iter().filter_map(|user| {
        let key = key(user).filter(|key| !key.expose().is_empty())?;
        Some(User { name: user.name.clone(), key, limits: user.limits })
    }));
    let are_first: Vec<bool> = {
        let (mut names, mut keys) = (HashSet::new(), HashSet::new());
        own.iter().map(|user: &User| keys.insert(user.key.expose()) && names.insert(&*user.name)).collect()
    };
    let mut are_first = are_first.into_iter();
    own.retain(|_| are_first.next().unwrap_or(false));
    let left_out = users.len() - own.len();
    if left_out > 0 {
        problem(format!(
            "{left_out} users of panel {panel} are left out: their keys do not fit, or are there twice"
        ));
    }
    if own.is_empty() {
        own.push(nobody(32));
    }
    own
}

fn shadowsocks_key(
    panel: &str,
    users: &[PanelUser<'_>],
    server: Option<&ServerKeyOf>,
    now: &ShadowsocksServerKey,
    problem: &mut dyn FnMut(String),
) -> Option<ShadowsocksServerKey> {
    let method = now.method();
    if let Some(server) = server
        && *server.method != *method.name()
    {
        problem(format!("panel {panel} says method {}, the file says {}", server.method, method.name()));
    }
    if now.is_each() {
        let fits = |user: &PanelUser<'_>| Some(Secret::new(user.secret));
        let own = named(panel, users, problem, fits);
        return ShadowsocksServerKey::each(method, own).map_err(|error| problem(error.to_string())).ok();
    }
    let given =
        server.filter(|server| *server.method == *method.name()).and_then(|server| server.key.clone());
    let key = match given {
        Some(text) => match ShadowsocksKey::new(method, text, KeyForm::Password) {
            Ok(key) => key,
            Err(error) => {
                problem(format!("the key of the server that panel {panel} gives does not fit: {error}"));
                return None;
            }
        },
        None => now.key().clone(),
    };
    let len = method.key_len();
    let mut own = named(panel, users, problem, |user| key_2022(user, len));
    if let [only] = &mut *own
        && *only.name == *"nobody"
    {
        *only = nobody(len);
    }
    let limits = own.iter().map(|user| user.limits).collect();
    let made = ShadowsocksServerKey::with_users(key, own).map(|key| key.with_limits(limits));
    made.map_err(|error| problem(error.to_string())).ok()
}

/// The key of a user for a 2022 method: base64 of the first bytes of its secret, hyphens included (v2board, Xboard and
/// V2bX as of 2026-08), or the key that the panel gives.
fn key_2022(user: &PanelUser<'_>, len: usize) -> Option<Secret> {
    if let Some(key) = user.key {
        let is_whole = STANDARD.decode(key).is_ok_and(|bytes| bytes.len() == len);
        return is_whole.then(|| Secret::new(key));
    }
    let bytes = user.secret.as_bytes().get(..len)?;
    Some(Secret::new(STANDARD.encode(bytes)))
}
