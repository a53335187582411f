//! The replay group: salts that have opened streams here go to the store once a second, those of the other nodes come back.
//!
//! ```text
//!   adit:FLEET:salt:GROUP    stream, at most some 65,536 entries
//!     n  id of the node
//!     i  instance: a number that each process draws
//!     r  fingerprints of salts of requests that carry their time, 8 bytes each, little-endian
//!     l  those of salts without a time
//! ```
//!
//! An entry has 128 fingerprints at most, so the stream takes 85 MB at most. A process reads all of it once, its own entries
//! of before a restart among them. A store without rights for the stream is told of, and the rest of the thread goes on.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use adit_model::Store;
use adit_net::rt;
use adit_proto::crypto::Blake3Context;
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;

use super::link::StoreError;
use super::links::Request;
use super::resp::Value;
use super::sync::Sync;

/// Time between two exchanges.
const EVERY: Duration = Duration::from_secs(1);
/// Time until the next one after a refusal.
const REFUSED: Duration = Duration::from_secs(60);
/// Fingerprints of one entry.
const PER_ENTRY: usize = 128;
/// Most fingerprints that are told together; the rest follows at the next look.
const MOST_TOLD: usize = 64 * PER_ENTRY;
/// Entries of the stream, about.
const MOST_ENTRIES: &str = "65536";
/// Entries of one answer, and most answers that are read together.
const PART: usize = 128;
const MOST_PARTS: usize = 16;
/// Most other nodes that are counted, and longest id of one in bytes.
const MOST_NODES: usize = 32;
const MAX_ID: usize = 64;
/// Most nodes of a group, with this one.
const MOST_IN_GROUP: usize = 16;
/// Context of the key of the fingerprints.
const KEY: &str = "adit 2026-11 fingerprints of a replay group";

/// Fingerprints of salts.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct GroupSalts {
    /// Of requests that carry their time.
    pub recent: Vec<u64>,
    /// Of protocols without a time.
    pub lasting: Vec<u64>,
}

impl GroupSalts {
    fn len(&self) -> usize {
        self.recent.len() + self.lasting.len()
    }
}

/// Counters of the memory of salts.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct GroupCounts {
    /// Salts that wait to be told.
    pub queued: u64,
    /// Salts that were forgotten before they were told.
    pub dropped: u64,
    /// Connections that were refused because of a sibling's salt.
    pub refused: u64,
}

/// State of the replay group that others look at.
#[derive(Debug, Clone, Default)]
pub struct ReplayReport {
    /// Name of the group.
    pub group: String,
    /// Whether this node has read the whole stream, so that salts are refused over the group.
    pub is_whole: bool,
    /// Salts that were told.
    pub told: u64,
    /// Salts that were learned.
    pub learned: u64,
    /// Other nodes seen.
    pub nodes: u64,
    /// Counters of the memory.
    pub counts: GroupCounts,
    /// The refusal of the store, until it agrees.
    pub refused: Option<String>,
}

/// The key of the fingerprints of the replay group that `store` names, if it names one.
pub fn replay_key(store: &Store) -> Option<[u8; 16]> {
    let group = store.replay.as_ref()?;
    let secret = STANDARD.decode(group.key.expose()).ok()?;
    let parts: [&[u8]; 4] = [&secret, store.fleet.as_bytes(), b":", group.name.as_bytes()];
    Blake3Context::new(KEY).derive(&parts).first_chunk().copied()
}

/// The part of the thread that follows a replay group.
pub(super) struct Replay {
    key: String,
    /// The last entry that was read.
    last: Option<Id>,
    next: Instant,
    /// Salts that were taken from the memory and may not have been told.
    untold: GroupSalts,
    nodes: BTreeSet<String>,
    report: ReplayReport,
}

impl Replay {
    pub(super) fn new(store: &Store) -> Option<Self> {
        let group = store.replay.as_ref()?;
        Some(Self {
            key: format!("adit:{}:salt:{}", store.fleet, group.name),
            last: None,
            next: rt::now(),
            untold: GroupSalts::default(),
            nodes: BTreeSet::new(),
            report: ReplayReport { group: group.name.to_string(), ..ReplayReport::default() },
        })
    }

    /// The entries that tell `salts`.
    fn tell(&self, (node, instance): (&str, &str), salts: &GroupSalts) -> Vec<Request> {
        let lists = [(&b"r"[..], &salts.recent), (b"l", &salts.lasting)];
        let parts = lists
            .into_iter()
            .flat_map(|(field, prints)| prints.chunks(PER_ENTRY).map(move |part| (field, part)));
        let request = |(field, part): (&[u8], &[u64])| {
            let bytes: Vec<u8> = part.iter().flat_map(|print| print.to_le_bytes()).collect();
            Request::command(&[
                b"XADD",
                self.key.as_bytes(),
                b"MAXLEN",
                b"~",
                MOST_ENTRIES.as_bytes(),
                b"*",
                b"n",
                node.as_bytes(),
                b"i",
                instance.as_bytes(),
                field,
                &bytes,
            ])
        };
        parts.map(request).collect()
    }

    fn read(&self) -> Request {
        let from = self.last.map_or_else(|| "-".to_owned(), |last| format!("({last}"));
        let part = PART.to_string();
        Request::command(&[b"XRANGE", self.key.as_bytes(), from.as_bytes(), b"+", b"COUNT", part.as_bytes()])
    }

    /// Notes the id of an entry of this node. The store has begun anew if it is not beyond those that were read.
    fn note_own(&mut self, answer: &Value) -> Result<(), StoreError> {
        let id = answer.text().and_then(Id::parse).ok_or(StoreError::Other)?;
        if self.last.is_some_and(|last| id <= last) {
            self.last = None;
        }
        Ok(())
    }

    /// The salts of entries that other processes wrote. An entry of another form is passed over.
    fn learn(&mut self, entries: &[Value], node: &str, instance: &str) -> Result<GroupSalts, StoreError> {
        let mut salts = GroupSalts::default();
        for entry in entries {
            let Value::List(entry) = entry else { return Err(StoreError::Other) };
            let [id, Value::List(fields)] = &**entry else { return Err(StoreError::Other) };
            self.last = Some(id.text().and_then(Id::parse).ok_or(StoreError::Other)?);
            let entry = Entry::parse(fields);
            if entry.instance == instance {
                continue;
            }
            if entry.node != node && self.nodes.len() < MOST_NODES && entry.node.len() <= MAX_ID {
                self.note_node(entry.node);
            }
            salts.recent.extend(entry.recent);
            salts.lasting.extend(entry.lasting);
        }
        Ok(salts)
    }

    fn note_node(&mut self, node: &str) {
        if self.nodes.insert(node.to_owned()) && self.nodes.len() == MOST_IN_GROUP {
            let group = &*self.report.group;
            tracing::warn!(
                group,
                "more than {MOST_IN_GROUP} nodes share salts: the memory may be too short for all of them"
            );
        }
        self.report.nodes = self.nodes.len() as u64;
    }
}

impl Sync {
    /// Exchanges salts with the replay group, if it is time.
    ///
    /// # Errors
    /// [`StoreError`]; salts that were not told are told later. A refusal is shown, and is none.
    pub(super) async fn share_salts(&mut self) -> Result<(), StoreError> {
        let Some(mut replay) = self.replay.take_if(|replay| rt::now() >= replay.next) else { return Ok(()) };
        let result = self.exchange_salts(&mut replay).await;
        let result = match result {
            Ok(is_more) => {
                replay.next = if is_more { rt::now() } else { rt::now() + EVERY };
                replay.report.refused = None;
                Ok(())
            }
            Err(StoreError::Refused(why)) => {
                if replay.report.refused.is_none() {
                    tracing::warn!(error = why, "the store refuses the salts of the replay group");
                }
                replay.report.refused = Some(why);
                replay.next = rt::now() + REFUSED;
                Ok(())
            }
            Err(error) => Err(error),
        };
        self.replay = Some(replay);
        result
    }

    /// Whether there is more to tell or to read.
    async fn exchange_salts(&mut self, replay: &mut Replay) -> Result<bool, StoreError> {
        if replay.untold.len() == 0 {
            replay.untold = self.host.take_salts(MOST_TOLD);
        }
        let told = replay.untold.len();
        if told > 0 {
            let requests = replay.tell((&self.node, &self.instance), &replay.untold);
            let answers = self.call("salts", &requests).await?;
            answers.iter().try_for_each(|answer| replay.note_own(answer))?;
            replay.untold = GroupSalts::default();
            replay.report.told += told as u64;
        }
        for _ in 0..MOST_PARTS {
            let answers = self.call("salts", &[replay.read()]).await?;
            let Some(Value::List(entries)) = answers.first() else { return Err(StoreError::Other) };
            let salts = replay.learn(entries, &self.node, &self.instance)?;
            self.host.learn_salts(&salts);
            replay.report.learned += salts.len() as u64;
            if entries.len() < PART {
                replay.report.is_whole = true;
                return Ok(told >= MOST_TOLD);
            }
        }
        Ok(true)
    }

    /// Shows the replay group to others; while the store is away, too.
    pub(super) fn show_replay(&mut self) {
        let Some(replay) = &mut self.replay else { return };
        let counts = self.host.group_counts();
        if replay.report.counts.dropped == 0 && counts.dropped > 0 {
            tracing::warn!(
                "salts were forgotten before the replay group was told of them: recorded connections of this node may be served by another one"
            );
        }
        replay.report.counts = counts;
        self.shared.report().replay = Some(replay.report.clone());
    }
}

/// Id of an entry of a stream.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Id(u64, u64);

impl Id {
    fn parse(text: &str) -> Option<Self> {
        let (time, count) = text.split_once('-')?;
        Some(Self(time.parse().ok()?, count.parse().ok()?))
    }
}

impl std::fmt::Display for Id {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}-{}", self.0, self.1)
    }
}

/// The fields of an entry.
#[derive(Debug, Default, PartialEq, Eq)]
struct Entry<'a> {
    node: &'a str,
    instance: &'a str,
    recent: Vec<u64>,
    lasting: Vec<u64>,
}

impl<'a> Entry<'a> {
    /// Fields that are unknown, or of another form, are left out.
    fn parse(fields: &'a [Value]) -> Self {
        let mut entry = Self::default();
        for pair in fields.as_chunks::<2>().0 {
            let [Value::Text(name), value] = pair else { continue };
            match &**name {
                b"n" => entry.node = value.text().unwrap_or_default(),
                b"i" => entry.instance = value.text().unwrap_or_default(),
                b"r" => entry.recent = prints(value),
                b"l" => entry.lasting = prints(value),
                _ => {}
            }
        }
        entry
    }
}

fn prints(value: &Value) -> Vec<u64> {
    match value {
        Value::Text(bytes) => {
            let (whole, rest) = bytes.as_chunks::<8>();
            if rest.is_empty() {
                whole.iter().map(|print| u64::from_le_bytes(*print)).collect()
            } else {
                Vec::new()
            }
        }
        Value::Number(_) | Value::Nil | Value::List(_) | Value::Error(_) => Vec::new(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(bytes: &[u8]) -> Value {
        Value::Text(bytes.to_vec())
    }

    #[test]
    fn entries_of_other_forms_are_passed_over() {
        let two = [1_u64.to_le_bytes(), 2_u64.to_le_bytes()].concat();
        let fields = [text(b"n"), text(b"a"), text(b"i"), text(b"1"), text(b"r"), text(&two), text(b"l")];
        let entry = Entry::parse(&fields);
        assert_eq!(entry, Entry { node: "a", instance: "1", recent: vec![1, 2], lasting: vec![] });
        for len in 0..16 {
            let fields = [text(b"l"), text(&two[..len]), text(b"x"), Value::Nil, Value::Nil, text(b"y")];
            assert_eq!(Entry::parse(&fields).lasting.len(), usize::from(len == 8), "{len}");
        }
        assert_eq!(Entry::parse(&[text(b"r"), Value::Number(7)]), Entry::default());
    }

    #[test]
    fn ids_have_an_order() {
        let id = |text| Id::parse(text).unwrap();
        assert!(id("9-0") < id("10-0") && id("10-9") < id("10-10"));
        assert_eq!(id("10-9").to_string(), "10-9");
        for wrong in ["", "1", "1-", "-1", "a-1", "1-2-3", "18446744073709551616-0"] {
            assert_eq!(Id::parse(wrong), None, "{wrong}");
        }
    }
}
