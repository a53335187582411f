//! The users that a panel has listed: its copy on disk, and the question whether a new list is to be believed.

use std::collections::BTreeSet;
use std::io;
use std::path::Path;
use std::sync::Arc;

use adit_model::map::Map;
use adit_model::{Expiry, PanelUser, Secret, ServerKeyOf, UserLimits};
use adit_net::files;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// A list that has lost everybody, or more than half of at least so many users, waits for a second one.
const MANY: usize = 100;
/// The second one must come so much later, in seconds.
const LATER_S: u64 = 60;
/// Longest copy on disk that is read, in bytes.
const MAX_LEN: usize = 64 << 20;

/// A user of a list.
#[derive(Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Listed {
    /// Its secret: a password or UUID.
    pub secret: Box<str>,
    /// Its key for 2022 methods, in base64.
    pub key: Option<Box<str>>,
    /// Bytes of a period.
    pub quota: Option<u64>,
    /// Day of the month on which a period begins.
    pub reset_day: Option<u8>,
    /// End of service, in seconds since 1970.
    pub expires: Option<u64>,
    /// Bytes a second, each way.
    pub rate: Option<u64>,
    /// Most connections.
    pub connections: Option<u32>,
    /// Most source addresses.
    pub addresses: Option<u32>,
}

/// Secrets are never shown.
impl std::fmt::Debug for Listed {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Listed").field("rate", &self.rate).finish_non_exhaustive()
    }
}

/// Users by id. The order of a panel's rows means nothing.
pub type Users = Map<Box<str>, Listed>;

/// A list with the settings that came with it.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct UserList {
    /// When it was confirmed last, in seconds since 1970.
    pub confirmed_at: u64,
    /// The panel's name of this version.
    pub version: Option<String>,
    /// Name of the Shadowsocks method.
    pub method: Option<String>,
    /// Key of the Shadowsocks server, in base64.
    pub server_key: Option<String>,
    /// The port that the panel tells clients.
    pub port: Option<u16>,
    /// Seconds between two pulls.
    pub pull_s: Option<u64>,
    /// Seconds between two pushes.
    pub push_s: Option<u64>,
    /// Least bytes of a user that are worth a row.
    pub least_bytes: u64,
    /// The users. A list that says the same shares them with the one before.
    #[serde(serialize_with = "emit_users", deserialize_with = "read_users")]
    pub users: Arc<Users>,
}

fn emit_users<S: Serializer>(users: &Users, serializer: S) -> Result<S::Ok, S::Error> {
    users.serialize(serializer)
}

fn read_users<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Arc<Users>, D::Error> {
    let mut users = Users::deserialize(deserializer)?;
    users.trim();
    Ok(Arc::new(users))
}

impl UserList {
    /// Reads the copy at `path`; `None` if there is none, or it is damaged.
    pub fn read(path: &Path) -> Option<Self> {
        serde_json::from_slice(&files::read(path, MAX_LEN).ok()?).ok()
    }

    /// Replaces the copy at `path`. It holds secrets: nobody else may read it.
    ///
    /// # Errors
    /// The system's error; the copy is as it was then.
    pub fn write(&self, path: &Path) -> io::Result<()> {
        files::replace(path, 0o600, &serde_json::to_vec(self)?).map(drop)
    }

    /// The settings without the users, the time and the version.
    pub(super) fn settings(&self) -> Self {
        let Self { method, server_key, port, pull_s, push_s, least_bytes, .. } = self;
        let (method, server_key) = (method.clone(), server_key.clone());
        let (port, pull_s, push_s, least_bytes) = (*port, *pull_s, *push_s, *least_bytes);
        Self { method, server_key, port, pull_s, push_s, least_bytes, ..Self::default() }
    }

    /// The users for the configuration, with their sources noted, if they are limited or not. Names that are known are
    /// used again.
    pub fn model(&self, panel: &str, known: &BTreeSet<Arc<str>>) -> Vec<PanelUser<'_>> {
        let name = |id: &str| {
            let name = format!("{panel}/{id}");
            known.get(&*name).cloned().unwrap_or_else(|| name.into())
        };
        let users = self.users.iter().map(|(id, user)| PanelUser {
            id,
            name: name(id),
            secret: &user.secret,
            key: user.key.as_deref(),
            limits: UserLimits {
                quota: user.quota,
                reset_day: user.quota.and(user.reset_day).filter(|day| (1..=28).contains(day)),
                expires: user.expires.map(Expiry::at),
                rate: user.rate.filter(|rate| *rate > 0),
                connections: user.connections.filter(|most| *most > 0),
                addresses: user.addresses.filter(|most| *most > 0).or(Some(u32::MAX)),
            },
        });
        users.collect()
    }

    /// The Shadowsocks method and key that the panel gives.
    pub fn server(&self) -> Option<ServerKeyOf> {
        let method = self.method.as_deref()?.into();
        Some(ServerKeyOf { method, key: self.server_key.as_deref().map(Secret::new) })
    }
}

/// The list in use, and one that is not believed yet.
#[derive(Debug, Default)]
pub struct Desk {
    /// The list in use, shared with those who look at it.
    pub current: Arc<UserList>,
    /// When the first list came that has lost too many users, in seconds since 1970.
    pub waiting_since: Option<u64>,
}

/// The fate of a new list.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Offer {
    /// It is the one in use.
    Same,
    /// It is in use from now on.
    Applied,
    /// It has lost too many users: another one must say so too.
    Waits,
}

impl Desk {
    /// Takes the list in use with changes that name their users. A change that names more than half of many users waits
    /// for a whole list.
    pub fn change(&mut self, list: UserList) -> Offer {
        let before = &self.current.users;
        let left = before.keys().filter(|id| list.users.contains_key(*id)).count();
        if before.len() >= MANY && left * 2 < before.len() {
            return Offer::Waits;
        }
        if self.current.settings() == list.settings() && *before == list.users {
            return Offer::Same;
        }
        // A change confirms nothing but itself: the list stays as old as it is.
        self.current = Arc::new(UserList { confirmed_at: self.current.confirmed_at, ..list });
        Offer::Applied
    }

    /// Takes a list that came at `now`, in seconds since 1970.
    pub fn offer(&mut self, list: UserList, now: u64) -> Offer {
        let (before, after) = (&self.current.users, &list.users);
        let left = before.keys().filter(|id| after.contains_key(*id)).count();
        let is_empty = after.is_empty() && !before.is_empty();
        let is_halved = before.len() >= MANY && left * 2 < before.len();
        if is_empty || is_halved {
            let since = *self.waiting_since.get_or_insert(now);
            if now < since.saturating_add(LATER_S) {
                return Offer::Waits;
            }
        }
        self.waiting_since = None;
        let mut list = UserList { confirmed_at: now, ..list };
        let is_same = self.current.settings() == list.settings() && self.current.users == list.users;
        if is_same {
            list.users = self.current.users.clone();
        } else if let Some(users) = Arc::get_mut(&mut list.users) {
            users.trim();
        }
        self.current = Arc::new(list);
        if is_same { Offer::Same } else { Offer::Applied }
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    fn list(ids: std::ops::Range<u32>) -> UserList {
        let user = |id: u32| {
            (id.to_string().into(), Listed { secret: format!("s{id}").into(), ..Listed::default() })
        };
        UserList { users: Arc::new(ids.map(user).collect()), ..UserList::default() }
    }

    #[test]
    fn a_list_that_lost_too_many_waits_for_another() {
        let mut desk = Desk::default();
        assert_eq!(desk.offer(list(0..0), 0), Offer::Same);
        assert_eq!(desk.offer(list(0..200), 1), Offer::Applied);
        assert_eq!(desk.offer(list(0..200), 2), Offer::Same);
        assert_eq!(desk.offer(list(0..99), 100), Offer::Waits);
        assert_eq!(desk.offer(list(0..0), 130), Offer::Waits);
        assert_eq!((desk.current.users.len(), desk.waiting_since), (200, Some(100)));
        // A good one in between ends the wait.
        assert_eq!(desk.offer(list(0..100), 140), Offer::Applied);
        assert_eq!(desk.offer(list(0..10), 200), Offer::Waits);
        assert_eq!(desk.offer(list(0..10), 260), Offer::Applied);
        // Few users may go at once, but not all.
        assert_eq!(desk.offer(list(0..1), 300), Offer::Applied);
        assert_eq!(desk.offer(list(0..0), 301), Offer::Waits);
        assert_eq!(desk.offer(list(0..0), 361), Offer::Applied);
        // The same number of others is a loss too.
        desk.offer(list(0..200), 400);
        assert_eq!(desk.offer(list(500..700), 401), Offer::Waits);
    }

    #[test]
    fn changes_name_their_users() {
        let mut desk = Desk::default();
        desk.offer(list(0..1), 5);
        assert_eq!(desk.change(list(0..1)), Offer::Same);
        // The last user may go: it was named.
        assert_eq!(desk.change(list(0..0)), Offer::Applied);
        assert_eq!(desk.current.confirmed_at, 5, "a change does not make a list younger");
        desk.offer(list(0..200), 6);
        assert_eq!(desk.change(list(0..99)), Offer::Waits);
        assert_eq!(desk.change(list(0..100)), Offer::Applied);
    }

    #[test]
    fn names_that_are_known_are_used_again() {
        let known = BTreeSet::from([Arc::from("p/1")]);
        let list = list(0..2);
        let names = list.model("p", &known).into_iter().map(|user| user.name).collect::<Vec<_>>();
        assert_eq!(names, [Arc::from("p/0"), Arc::from("p/1")]);
        assert!(Arc::ptr_eq(&names[1], known.first().unwrap()));
    }

    #[test]
    fn a_changed_limit_is_a_change() {
        let mut desk = Desk::default();
        desk.offer(list(0..3), 0);
        let mut other = list(0..3);
        Arc::make_mut(&mut other.users).get_mut("1").unwrap().addresses = Some(2);
        assert_eq!(desk.offer(other, 1), Offer::Applied);
    }

    #[test]
    fn the_copy_is_private_and_shows_no_secret() {
        use std::os::unix::fs::PermissionsExt as _;
        let path = std::env::temp_dir().join(format!("adit-fleet-copy-{}", std::process::id()));
        let list = list(0..3);
        list.write(&path).unwrap();
        assert_eq!(UserList::read(&path), Some(list.clone()));
        assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
        assert!(!format!("{list:?}").contains("s1"));
        fs::write(&path, "{").unwrap();
        assert_eq!(UserList::read(&path), None);
        fs::remove_file(path).unwrap();
    }
}
