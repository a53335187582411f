//! Users from the store, where no panel lists them: read whole at the start, then by the log of changes.
//!
//! The log is read from the last entry that is known, that one included: when it is not there any more, the log has been
//! trimmed, or the store is another one, and all users are read anew. That happens every [`WHOLE`] too.

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use adit_model::Store;
use adit_model::map::Map;
use adit_net::rt::{self, Cores};

use super::link::{Place, StoreError};
use super::links::{Links, Request};
use super::record::{FORMAT, FleetKey, bucket_key, is_name, user_key, version};
use super::resp::Value;
use super::script::{BUCKETS, MOST_USERS};
use super::sync::Sync;
use crate::jitter::jittered;
use crate::panel::{Desk, Listed, Offer, UserList, Users};

/// Time between two looks at the log.
const EVERY: Duration = Duration::from_secs(2);
/// All users are read anew after this, should a change be missing in the log.
const WHOLE: Duration = Duration::from_secs(600);
/// A whole list that waits for another one is read anew after this: the second one must come a minute later.
const AGAIN: Duration = Duration::from_secs(61);
/// Pause after a refusal of the store, which another try at once would not change.
const REFUSED: Duration = Duration::from_secs(60);
/// Most changes of one look.
const MOST_CHANGES: usize = 1000;
/// Buckets of one call: a call has 250 ms.
const BUCKETS_OF_CALL: usize = 4;
/// Most users of a fleet.
const MOST_LISTED: usize = 200_000;
/// Entries of the log, about.
const LOGGED: &str = "100000";
/// The copy of a list that stays the same is written again after this, in seconds: a start tells its age from it.
const REWRITTEN_S: u64 = 300;

/// The users that the store lists.
pub(super) struct Roster {
    key: FleetKey,
    desk: Desk,
    copy: PathBuf,
    written_at: u64,
    /// The last entry of the log that is known, and when all users are read anew.
    last: Option<String>,
    whole: Instant,
    next: Instant,
    has_failed: bool,
}

impl Roster {
    /// The list as its copy on disk has it; `None` if the store lists no users.
    pub(super) fn new(store: &Store, copy: PathBuf) -> Option<Self> {
        let key = FleetKey::new(&store.fleet, store.users_key.as_ref()?.expose())?;
        let current = Arc::new(UserList::read(&copy).unwrap_or_default());
        let (written_at, now) = (current.confirmed_at, rt::now());
        let desk = Desk { current, waiting_since: None };
        Some(Self { key, desk, copy, written_at, last: None, whole: now, next: now, has_failed: false })
    }

    /// The list in use.
    pub(super) fn list(&self) -> Arc<UserList> {
        self.desk.current.clone()
    }

    /// The list is that of the store, as of now.
    fn confirm(&mut self) {
        let list = UserList::clone(&self.desk.current);
        self.desk.current = Arc::new(UserList { confirmed_at: rt::unix_time(), ..list });
    }

    /// The user of a record. One that does not open stays as it was.
    fn user(&self, name: &str, record: &[u8], left_out: &mut usize) -> Option<Listed> {
        let found = self.key.parse(name, record).map(|(user, _)| user);
        *left_out += usize::from(found.is_none());
        found.or_else(|| self.desk.current.users.get(name).cloned())
    }
}

/// Changes since the last look.
enum Changes {
    /// Users of these names have changed; the last entry of the log.
    Of(BTreeSet<String>, Option<String>),
    /// The log does not tell.
    Unknown,
}

impl Sync {
    /// Follows the users that the store lists, if it is time.
    ///
    /// # Errors
    /// [`StoreError`]; users stay as they are then. A refusal is told, and is none.
    pub(super) async fn follow_users(&mut self) -> Result<(), StoreError> {
        let Some(mut roster) = self.roster.take_if(|roster| rt::now() >= roster.next) else { return Ok(()) };
        let result = self.update(&mut roster).await;
        let pause = match &result {
            Ok(pause) => *pause,
            Err(StoreError::Refused(_) | StoreError::Users(_)) => REFUSED,
            Err(_) => EVERY,
        };
        roster.next = rt::now() + pause;
        let result = tell(&mut roster, result);
        self.show(&roster);
        self.roster = Some(roster);
        result
    }

    /// Shows the list to others.
    fn show(&self, roster: &Roster) {
        let mut report = self.shared.report();
        report.list = Some(roster.list());
        report.list_waits_since = roster.desk.waiting_since;
    }

    /// The time until the next look.
    async fn update(&mut self, roster: &mut Roster) -> Result<Duration, StoreError> {
        if rt::now() < roster.whole
            && let Some(last) = &roster.last
            && let Changes::Of(names, newest) = self.changes(last).await?
        {
            let offer = match self.changed(roster, names).await? {
                Some(list) => roster.desk.change(list),
                None => Offer::Same,
            };
            if offer != Offer::Waits {
                roster.last = newest.or_else(|| roster.last.take());
                roster.confirm();
                self.put_to_use(roster, offer);
                return Ok(jittered(EVERY));
            }
        }
        self.read_whole(roster).await
    }

    async fn changes(&mut self, last: &str) -> Result<Changes, StoreError> {
        let log = log_key(&self.store.fleet);
        let most = (MOST_CHANGES + 1).to_string();
        let words: [&[u8]; 6] = [b"XRANGE", log.as_bytes(), last.as_bytes(), b"+", b"COUNT", most.as_bytes()];
        let answers = self.call("users", &[Request::command(&words)]).await?;
        let Some(Value::List(entries)) = answers.first() else { return Err(StoreError::Other) };
        let entries: Vec<(&str, Option<&str>)> =
            entries.iter().map(entry).collect::<Option<_>>().ok_or(StoreError::Other)?;
        match entries.split_first() {
            Some(((first, _), rest)) if *first == last && rest.len() < MOST_CHANGES => {
                let names = rest.iter().filter_map(|(_, user)| (*user).map(str::to_owned)).collect();
                Ok(Changes::Of(names, rest.last().map(|(id, _)| (*id).to_owned())))
            }
            _ => Ok(Changes::Unknown),
        }
    }

    /// The list with the users of these names as the store has them; `None` without names.
    async fn changed(
        &mut self,
        roster: &Roster,
        names: BTreeSet<String>,
    ) -> Result<Option<UserList>, StoreError> {
        let mut buckets = Map::<String, Vec<String>>::new();
        for name in names.into_iter().filter(|name| is_name(name)) {
            buckets.entry(user_key(&self.store.fleet, &name)).or_default().push(name);
        }
        let parts: Vec<(&String, &[String])> = buckets
            .iter()
            .flat_map(|(key, names)| names.chunks(MOST_USERS).map(move |part| (key, part)))
            .collect();
        if parts.is_empty() {
            return Ok(None);
        }
        let request = |(key, names): &(&String, &[String])| {
            let words: Vec<&[u8]> = [&b"HMGET"[..], key.as_bytes()]
                .into_iter()
                .chain(names.iter().map(String::as_bytes))
                .collect();
            Request::command(&words)
        };
        let requests: Vec<Request> = parts.iter().map(request).collect();
        let answers = self.call("users", &requests).await?;
        let (mut users, mut left_out) = (Users::clone(&roster.desk.current.users), 0);
        for ((_, names), answer) in parts.iter().zip(answers) {
            let Value::List(records) = answer else { return Err(StoreError::Other) };
            for (name, record) in names.iter().zip(records) {
                let found = if let Value::Text(record) = &record {
                    roster.user(name, record, &mut left_out)
                } else {
                    None
                };
                match found {
                    Some(user) => users.insert((**name).into(), user),
                    None => users.remove(&**name),
                };
            }
        }
        tell_left_out(left_out);
        if users.len() > MOST_LISTED {
            return Err(StoreError::Users("the store lists too many users"));
        }
        Ok(Some(UserList { users: Arc::new(users), ..UserList::default() }))
    }

    /// The time until the next look.
    async fn read_whole(&mut self, roster: &mut Roster) -> Result<Duration, StoreError> {
        // Changes from here on come by the log, twice perhaps.
        let log = log_key(&self.store.fleet);
        let newest: [&[u8]; 6] = [b"XREVRANGE", log.as_bytes(), b"+", b"-", b"COUNT", b"1"];
        let answers = self.call("users", &[meta(&self.store.fleet), Request::command(&newest)]).await?;
        let [Value::List(meta), Value::List(newest)] = &*answers else { return Err(StoreError::Other) };
        check_meta(meta)?;
        let newest = newest.first().and_then(entry).map(|(id, _)| id.to_owned());
        let (users, left_out) = self.all_users(roster).await?;
        if left_out > 0 && users.is_empty() {
            return Err(StoreError::Users("users-key does not open the users of the store"));
        }
        tell_left_out(left_out);
        let list = UserList { users: Arc::new(users), ..UserList::default() };
        let offer = roster.desk.offer(list, rt::unix_time());
        if offer == Offer::Waits {
            (roster.last, roster.whole) = (None, rt::now());
            let now = roster.desk.current.users.len();
            tracing::warn!(now, "the store lists far fewer users: another reading must say so too");
            return Ok(AGAIN);
        }
        (roster.last, roster.whole) = (newest, rt::now() + jittered(WHOLE));
        self.put_to_use(roster, offer);
        Ok(jittered(EVERY))
    }

    /// All users, and the number of records that do not open.
    async fn all_users(&mut self, roster: &Roster) -> Result<(Users, usize), StoreError> {
        let (mut users, mut left_out) = (Users::new(), 0);
        let all: Vec<u16> = (0..BUCKETS).collect();
        for some in all.chunks(BUCKETS_OF_CALL) {
            let request = |bucket: &u16| {
                Request::command(&[b"HGETALL", bucket_key(&self.store.fleet, *bucket).as_bytes()])
            };
            let requests: Vec<Request> = some.iter().map(request).collect();
            for answer in self.call("users", &requests).await? {
                let Value::List(pairs) = answer else { return Err(StoreError::Other) };
                for pair in pairs.chunks_exact(2) {
                    let (Some(name), Value::Text(record)) = (pair[0].text(), &pair[1]) else { continue };
                    if let Some(user) = roster.user(name, record, &mut left_out) {
                        users.insert(name.into(), user);
                    }
                }
                if users.len() > MOST_LISTED {
                    return Err(StoreError::Users("the store lists too many users"));
                }
            }
        }
        Ok((users, left_out))
    }

    fn put_to_use(&mut self, roster: &mut Roster, offer: Offer) {
        let is_old = rt::unix_time() >= roster.written_at.saturating_add(REWRITTEN_S);
        if offer == Offer::Applied || is_old {
            match roster.desk.current.write(&roster.copy) {
                Ok(()) => roster.written_at = rt::unix_time(),
                Err(error) => {
                    tracing::error!(%error, "cannot write the copy of the store's users: a start without the store would not know them");
                }
            }
        }
        if offer == Offer::Applied {
            self.show(roster);
            tracing::info!(users = roster.desk.current.users.len(), "users of the store");
            self.host.users_changed();
        }
    }
}

/// Says a failure once. Only those of the connection stay errors.
fn tell<T>(roster: &mut Roster, result: Result<T, StoreError>) -> Result<(), StoreError> {
    match result {
        Err(error @ (StoreError::Refused(_) | StoreError::Users(_))) => {
            if !std::mem::replace(&mut roster.has_failed, true) {
                let error = error.to_string();
                tracing::error!(error, "users cannot be read from the store: they stay as they are");
            }
            Ok(())
        }
        Ok(_) => {
            roster.has_failed = false;
            Ok(())
        }
        Err(error) => Err(error),
    }
}

fn tell_left_out(left_out: usize) {
    if left_out > 0 {
        tracing::warn!(left_out, "users of the store do not open with users-key: they stay as they were");
    }
}

fn log_key(fleet: &str) -> String {
    format!("adit:{fleet}:log")
}

/// Asks for the format of a fleet.
fn meta(fleet: &str) -> Request {
    Request::command(&[b"HMGET", format!("adit:{fleet}:meta").as_bytes(), b"format", b"buckets"])
}

/// Whether the users of a fleet can be read. One that was never made lists nobody, and has lost nobody.
fn check_meta(found: &[Value]) -> Result<(), StoreError> {
    match found {
        [Value::Nil, _] => {
            Err(StoreError::Users("no user was ever put into the store, or it has lost its data"))
        }
        [format, buckets]
            if format.number() == Some(FORMAT) && buckets.number() == Some(u64::from(BUCKETS)) =>
        {
            Ok(())
        }
        _ => Err(StoreError::Users("the users of the store are of another format")),
    }
}

/// The number of an entry of the log, and the user that it names.
fn entry(entry: &Value) -> Option<(&str, Option<&str>)> {
    let Value::List(parts) = entry else { return None };
    let [id, Value::List(fields)] = &**parts else { return None };
    let user = fields.chunks_exact(2).find(|pair| pair[0].text() == Some("user"));
    Some((id.text()?, user.and_then(|pair| pair[1].text())))
}

/// A change of the users that a store lists.
#[derive(Debug, Clone)]
pub enum StoreChange {
    /// Adds a user, or replaces it.
    Put(Listed),
    /// Takes a user away.
    Remove,
}

/// Changes a user in the store; true if it was there before. For a person, who waits.
///
/// # Errors
/// A text for that person.
pub fn change(store: &Store, name: &str, change: &StoreChange) -> Result<bool, String> {
    if !is_name(name) {
        return Err("a name has 1 to 255 bytes, and no control characters".to_owned());
    }
    with_links(store, async |links, key| {
        let (fleet, user) = (&store.fleet, user_key(&store.fleet, name));
        let (meta_key, log) = (format!("adit:{fleet}:meta"), log_key(fleet));
        let (buckets, format, now) = (BUCKETS.to_string(), FORMAT.to_string(), rt::unix_time().to_string());
        let word = |field: &str, value: &str| {
            Request::command(&[b"HSETNX", meta_key.as_bytes(), field.as_bytes(), value.as_bytes()])
        };
        let made = [word("format", &format), word("buckets", &buckets), word("made-at", &now), meta(fleet)];
        let answers = links.call(&made).await?;
        let Some(Value::List(found)) = answers.get(3) else { return Err(StoreError::Other) };
        check_meta(found)?;
        let asked = Request::command(&[b"HGET", user.as_bytes(), name.as_bytes()]);
        let before = links.call(&[asked]).await?;
        let before = match before.first() {
            Some(Value::Text(record)) => Some(version(record).unwrap_or(0)),
            _ => None,
        };
        let version = before.map_or(1, |version| version.saturating_add(1));
        let (request, op) = match change {
            StoreChange::Put(listed) => {
                let record = key
                    .emit(name, listed, version)
                    .ok_or(StoreError::Users("the system has no random source"))?;
                (Request::command(&[b"HSET", user.as_bytes(), name.as_bytes(), record.as_bytes()]), "put")
            }
            StoreChange::Remove => (Request::command(&[b"HDEL", user.as_bytes(), name.as_bytes()]), "remove"),
        };
        links.call(&[request]).await?;
        let version = version.to_string();
        let logged: [&[u8]; 12] = [
            b"XADD",
            log.as_bytes(),
            b"MAXLEN",
            b"~",
            LOGGED.as_bytes(),
            b"*",
            b"user",
            name.as_bytes(),
            b"version",
            version.as_bytes(),
            b"op",
            op.as_bytes(),
        ];
        links.call(&[Request::command(&logged)]).await?;
        Ok(before.is_some())
    })
}

/// All users that a store lists; the number of those whose records do not open.
///
/// # Errors
/// A text for a person.
pub fn list(store: &Store) -> Result<(Users, usize), String> {
    with_links(store, async |links, key| {
        let (mut users, mut left_out) = (Users::new(), 0);
        for bucket in 0..BUCKETS {
            let asked = Request::command(&[b"HGETALL", bucket_key(&store.fleet, bucket).as_bytes()]);
            let answers = links.call(&[asked]).await?;
            let Some(Value::List(pairs)) = answers.first() else { return Err(StoreError::Other) };
            for pair in pairs.chunks_exact(2) {
                let (Some(name), Value::Text(record)) = (pair[0].text(), &pair[1]) else { continue };
                match key.parse(name, record) {
                    Some((user, _)) => drop(users.insert(name.into(), user)),
                    None => left_out += 1,
                }
            }
        }
        Ok((users, left_out))
    })
}

fn with_links<T>(
    store: &Store,
    ask: impl AsyncFnOnce(&mut Links, FleetKey) -> Result<T, StoreError>,
) -> Result<T, String> {
    let key = store.users_key.as_ref().and_then(|key| FleetKey::new(&store.fleet, key.expose()));
    let key = key.ok_or("the store lists no users: there is no `users-key` under [store]")?;
    let place = Place::new(store).map_err(|error| error.to_string())?;
    let asked = Cores::block_on(async {
        let mut links = Links::new(place);
        links.open().await?;
        ask(&mut links, key).await
    });
    asked.map_err(|error| error.to_string())?.map_err(|error| error.to_string())
}
