//! Connections to all servers of the store: one, or those of a Cluster.
//!
//! The server that the configuration names is asked first. A Cluster answers `MOVED slot host:port` for keys that another
//! one has; the slot is asked for there from then on. `ASK` is followed once.

use std::collections::BTreeSet;

use adit_model::map::Map;

use super::link::{Place, StoreConnection, StoreError, Words};
use super::resp::Value;
use super::script::slot;

/// Times that a request is sent elsewhere before it is given up: a Cluster that is being changed may send it back.
const MOST_MOVES: usize = 4;
/// Most requests that are sent together.
const MOST_TOGETHER: usize = 16;
/// Most servers of a Cluster, and most of them that are remembered beyond their connections.
const MOST_SERVERS: usize = 1000;
const MOST_KNOWN: usize = 16;

/// A request about one key; a script has its index.
#[derive(Debug, Clone)]
pub(super) struct Request {
    pub(super) key: String,
    pub(super) script: Option<usize>,
    pub(super) words: Words,
}

impl Request {
    /// A plain command, whose key is the word after its name.
    pub(super) fn command(words: &[&[u8]]) -> Self {
        let key = words.get(1).map(|key| String::from_utf8_lossy(key).into_owned()).unwrap_or_default();
        Self { key, script: None, words: words.iter().map(|word| word.to_vec()).collect() }
    }

    /// A script over `keys`, all of one slot.
    pub(super) fn script(script: usize, keys: &[String], words: impl IntoIterator<Item = String>) -> Self {
        let count = keys.len().to_string();
        let rest = [count].into_iter().chain(keys.iter().cloned()).chain(words);
        let key = keys.first().cloned().unwrap_or_default();
        Self { key, script: Some(script), words: rest.map(String::into_bytes).collect() }
    }

    /// The words for `link`, which has names of its own for scripts.
    fn words(&self, link: &StoreConnection) -> Words {
        let Some(script) = self.script else { return self.words.clone() };
        [b"EVALSHA".to_vec(), link.script(script).to_vec()]
            .into_iter()
            .chain(self.words.iter().cloned())
            .collect()
    }
}

/// The connections.
pub(super) struct Links {
    place: Place,
    home: Option<StoreConnection>,
    others: Map<String, StoreConnection>,
    /// Servers of slots, as `host:port`, that are not asked for at home.
    moved: Map<u16, String>,
    /// Other servers of the Cluster, asked when the one of the configuration is away.
    known: BTreeSet<String>,
}

impl Links {
    /// None yet.
    pub(super) fn new(place: Place) -> Self {
        Self { place, home: None, others: Map::new(), moved: Map::new(), known: BTreeSet::new() }
    }

    /// Whether there is a connection.
    pub(super) fn is_open(&self) -> bool {
        self.home.is_some()
    }

    /// Connects.
    ///
    /// # Errors
    /// [`StoreError`].
    pub(super) async fn open(&mut self) -> Result<(), StoreError> {
        let mut opened = StoreConnection::open(&self.place).await;
        for other in &self.known {
            if opened.is_ok() {
                break;
            }
            opened = StoreConnection::open_other(&self.place, other).await.or(opened);
        }
        self.home = Some(opened?);
        Ok(())
    }

    /// Gives up all connections.
    pub(super) fn close(&mut self) {
        let known = std::mem::take(&mut self.known);
        *self = Self { known, ..Self::new(self.place.clone()) };
    }

    /// Sends requests, and gives their answers.
    ///
    /// # Errors
    /// [`StoreError`]; the first refusal counts for all.
    pub(super) async fn call(&mut self, requests: &[Request]) -> Result<Vec<Value>, StoreError> {
        let mut answers: Vec<Option<Value>> = vec![None; requests.len()];
        for _ in 0..MOST_MOVES {
            let mut groups = Map::<Option<String>, Vec<usize>>::new();
            for (index, request) in requests.iter().enumerate().filter(|(index, _)| answers[*index].is_none())
            {
                groups.entry(self.moved.get(&slot(&request.key)).cloned()).or_default().push(index);
            }
            for (at, indexes) in &groups {
                for some in indexes.chunks(MOST_TOGETHER) {
                    self.ask(at.as_deref(), requests, some, &mut answers).await?;
                }
            }
            if answers.iter().all(Option::is_some) {
                return Ok(answers.into_iter().flatten().collect());
            }
        }
        Err(StoreError::Moved)
    }

    async fn ask(
        &mut self,
        at: Option<&str>,
        requests: &[Request],
        indexes: &[usize],
        answers: &mut [Option<Value>],
    ) -> Result<(), StoreError> {
        let link = self.link(at).await?;
        let words: Vec<Words> = indexes.iter().map(|index| requests[*index].words(link)).collect();
        let found = link.call_each(&words).await?;
        for (index, answer) in indexes.iter().zip(found) {
            let Value::Error(text) = &answer else {
                answers[*index] = Some(answer);
                continue;
            };
            match Elsewhere::parse(text) {
                Some(Elsewhere::Moved(slot, server)) if self.moved.len() < 16_384 => {
                    if self.known.len() < MOST_KNOWN {
                        self.known.insert(server.clone());
                    }
                    self.moved.insert(slot, server);
                }
                Some(Elsewhere::Asked(server)) => {
                    answers[*index] = Some(self.ask_once(&server, &requests[*index]).await?);
                }
                Some(Elsewhere::Moved(..)) | None => return Err(StoreError::Refused(text.clone())),
            }
        }
        Ok(())
    }

    /// Asks a server that is about to take a slot over.
    async fn ask_once(&mut self, server: &str, request: &Request) -> Result<Value, StoreError> {
        let link = self.link(Some(server)).await?;
        let words = request.words(link);
        let mut found = link.call_each(&[vec![b"ASKING".to_vec()], words]).await?;
        match found.pop() {
            Some(Value::Error(text)) => Err(StoreError::Refused(text)),
            Some(answer) => Ok(answer),
            None => Err(StoreError::Other),
        }
    }

    async fn link(&mut self, at: Option<&str>) -> Result<&mut StoreConnection, StoreError> {
        let Some(at) = at else { return self.home.as_mut().ok_or(StoreError::Other) };
        if !self.others.contains_key(at) {
            if self.others.len() >= MOST_SERVERS {
                return Err(StoreError::Moved);
            }
            let link = StoreConnection::open_other(&self.place, at).await?;
            self.others.insert(at.to_owned(), link);
        }
        self.others.get_mut(at).ok_or(StoreError::Other)
    }
}

/// An answer of a Cluster: another server has the key.
#[derive(Debug, PartialEq, Eq)]
enum Elsewhere {
    Moved(u16, String),
    Asked(String),
}

impl Elsewhere {
    /// `MOVED slot host:port` or `ASK slot host:port`.
    fn parse(text: &str) -> Option<Self> {
        let mut words = text.split(' ');
        let (what, slot, server) = (words.next()?, words.next()?.parse().ok()?, words.next()?.to_owned());
        match what {
            "MOVED" => Some(Self::Moved(slot, server)),
            "ASK" => Some(Self::Asked(server)),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn answers_that_name_another_server() {
        let server = || "10.0.0.2:7001".to_owned();
        assert_eq!(Elsewhere::parse("MOVED 1584 10.0.0.2:7001"), Some(Elsewhere::Moved(1584, server())));
        assert_eq!(Elsewhere::parse("ASK 1584 10.0.0.2:7001"), Some(Elsewhere::Asked(server())));
        for other in
            ["NOSCRIPT No matching script", "MOVED x 10.0.0.2:7001", "MOVED 1", "MOVED 70000 h:1", ""]
        {
            assert_eq!(Elsewhere::parse(other), None, "{other}");
        }
    }
}
