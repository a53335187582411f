//! Finds the user whose key opens a client's first bytes, if each user has a key of its own.
//!
//! Keys of users who have come from the same source are tried on the spot. Any other client costs a key derivation for
//! each user, which is done on a thread that never takes more than a quarter of a core, with a short queue in front:
//! a client that finds it full meets the same silence as a client without a key.
//!
//! The thread tries users in the order of their last activity (`activity`).
//! If a client's first bytes have the shape of few keys (version 6), those keys come first: their owner costs a
//! few derivations, and the other versions of a shared port are not tried before.

use std::collections::{HashSet, VecDeque};
use std::io;
use std::net::IpAddr;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use adit_model::User;
use adit_net::rt::{self, OrderSender, Orders};
use adit_net::run_behind;
use adit_proto::snell::{Accepts, CandidateKey, Opening, SnellDirectionKey, SnellPsk};

use super::activity::Activity;
use super::known_sources::KnownSources;
use super::search_counters::Search;
use crate::admission::prefix;
use crate::rng::OsRng;

/// Clients that wait for a trial, of sources that have not failed, and as many of the others. At 10,000 users a trial
/// takes 0.6 s, so that the last of them waits for 10 s.
const WAITING: usize = 16;
/// And of one source.
const WAITING_PER_SOURCE: usize = 2;
/// Pauses between two looks whether there is a place.
const FIRST_PAUSE: Duration = Duration::from_millis(10);
const LONGEST_PAUSE: Duration = Duration::from_millis(320);
/// Keys that are tried between two rests: half a millisecond's work.
const CHUNK: usize = 32;
/// A rest is so many times as long as the work before it.
const REST: u32 = 3;
/// Sources whose failures are remembered.
const FAILED: usize = 4096;
/// Keys for answers that are kept ready for a user, once it has come.
const READY: usize = 2;
/// Users whose keys for answers wait to be derived.
const REFILLS: usize = 256;
/// The thread looks whether its owner is still there this often.
const CHECK: Duration = Duration::from_secs(5);

/// Trials of all inbounds together share a quarter of a core.
static QUARTER: Mutex<()> = Mutex::new(());

/// The keys of an inbound's users.
#[derive(Debug)]
pub(crate) struct KeySearch {
    /// In the order of the bytes that they need; with the user's number.
    candidates: Vec<(u32, CandidateKey)>,
    /// Indices into them, by user.
    of_user: Vec<Vec<u32>>,
    psks: Vec<SnellPsk>,
    activity: Arc<Activity>,
    /// Keys for answers, derived ahead of need, by user.
    ready: Vec<Mutex<Vec<SnellDirectionKey>>>,
    queue: Mutex<Queue>,
    work: Condvar,
}

#[derive(Debug, Default)]
struct Queue {
    /// Of sources that have not failed; they come first.
    fresh: VecDeque<Job>,
    doubtful: VecDeque<Job>,
    failed: HashSet<IpAddr>,
    refills: VecDeque<u32>,
}

#[derive(Debug)]
struct Job {
    source: IpAddr,
    first: Box<[u8]>,
    /// The candidates that have been tried: all before this index, and these.
    from: usize,
    skip: Vec<u32>,
    /// Gone with the client.
    alive: Weak<()>,
    answer: OrderSender<JobResult>,
}

/// Result of a trial.
#[derive(Debug)]
pub(crate) enum KeySearchResult {
    /// The first header opens with this user's key.
    Opened(usize, Opening),
    /// Nothing opens; so many candidates have been tried.
    Nothing(usize),
}

/// The result of a job, with the number of keys that it has tried.
type JobResult = (KeySearchResult, usize);

/// Progress of a job.
#[derive(Debug)]
struct Course {
    /// Candidates that the first bytes look like, to be tried first.
    likely: VecDeque<u32>,
    /// They, and what has been tried on the spot, in order.
    skip: Vec<u32>,
    /// The next of the others.
    at: usize,
    /// Candidates that have been tried in this course.
    tried: usize,
}

/// The trials of one client.
#[derive(Debug)]
pub(crate) struct Attempt<'a> {
    trial: &'a KeySearch,
    source: IpAddr,
    /// Known users of the source that are to be tried.
    known: Vec<u32>,
    /// Candidates that have been tried on the spot.
    tried: Vec<u32>,
    /// Candidates before this one have been tried by the thread.
    from: usize,
    alive: Arc<()>,
}

impl KeySearch {
    /// Starts the thread; it ends when the trial is dropped. `accepts` says what a client with a key may speak.
    ///
    /// # Errors
    /// When the thread cannot be made.
    pub(crate) fn start(
        users: &[User],
        sources: &Arc<KnownSources>,
        accepts: impl Fn(&SnellPsk) -> Accepts,
    ) -> io::Result<Arc<Self>> {
        let psks: Vec<SnellPsk> =
            users.iter().map(|user| SnellPsk::new(user.key.expose().as_bytes())).collect();
        let all = psks.iter().zip(0..).flat_map(|(psk, user)| {
            CandidateKey::all(&accepts(psk), psk).into_iter().map(move |candidate| (user, candidate))
        });
        let mut candidates: Vec<(u32, CandidateKey)> = all.collect();
        candidates.sort_by_key(|(_, candidate)| candidate.opening_len());
        let mut of_user = vec![Vec::new(); users.len()];
        for ((user, _), index) in candidates.iter().zip(0..) {
            of_user[*user as usize].push(index);
        }
        let activity = sources.activity(users.iter().map(|user| user.name.clone()).collect());
        let trial = Arc::new(Self {
            activity,
            candidates,
            of_user,
            ready: psks.iter().map(|_| Mutex::default()).collect(),
            psks,
            queue: Mutex::default(),
            work: Condvar::new(),
        });
        let weak = Arc::downgrade(&trial);
        std::thread::Builder::new().name("adit-trial".into()).spawn(move || work(&weak))?;
        Ok(trial)
    }

    /// The trials of a client from `source`.
    pub(crate) fn attempt(&self, source: IpAddr) -> Attempt<'_> {
        let known = self.activity.known(source);
        Attempt {
            trial: self,
            source: prefix(source),
            known,
            tried: Vec::new(),
            from: 0,
            alive: Arc::new(()),
        }
    }

    /// The known users of `source`, most recent first, with their keys.
    pub(crate) fn known(&self, source: IpAddr) -> Vec<(usize, SnellPsk)> {
        self.activity
            .known(source)
            .into_iter()
            .map(|user| (user as usize, self.psks[user as usize].clone()))
            .collect()
    }

    /// `user` has shown itself at `source`.
    pub(crate) fn note(&self, source: IpAddr, user: usize) {
        self.activity.note(source, user);
        self.queue().failed.remove(&prefix(source));
    }

    /// A fresh key for an answer to `user`.
    pub(crate) fn take_key(&self, user: usize) -> SnellDirectionKey {
        let key = lock(&self.ready[user]).pop();
        let mut queue = self.queue();
        if queue.refills.len() < REFILLS {
            queue.refills.push_back(number(user));
            self.work.notify_one();
        }
        drop(queue);
        key.unwrap_or_else(|| self.psks[user].derive_own(&mut OsRng))
    }

    fn queue(&self) -> MutexGuard<'_, Queue> {
        lock(&self.queue)
    }

    /// Queues a job, if there is place.
    fn submit(&self, job: Job) -> bool {
        let mut queue = self.queue();
        let Queue { fresh, doubtful, failed, .. } = &mut *queue;
        let line = if failed.contains(&job.source) { doubtful } else { fresh };
        line.retain(|other| other.alive.strong_count() > 0);
        let same = line.iter().filter(|other| other.source == job.source).count();
        if line.len() >= WAITING || same >= WAITING_PER_SOURCE {
            return false;
        }
        line.push_back(job);
        self.work.notify_one();
        true
    }

    /// The next job, once there is one; `None` after a while without.
    fn next_job(&self) -> Option<Job> {
        let queue = self.queue();
        let is_idle = |queue: &mut Queue| {
            queue.fresh.is_empty() && queue.doubtful.is_empty() && queue.refills.is_empty()
        };
        let waited = self.work.wait_timeout_while(queue, CHECK, is_idle);
        let (mut queue, _) = waited.unwrap_or_else(PoisonError::into_inner);
        queue.fresh.pop_front().or_else(|| queue.doubtful.pop_front())
    }

    /// Derives the keys for answers that are wanted.
    fn refill(&self) {
        loop {
            let Some(user) = self.queue().refills.pop_front() else { return };
            let ready = &self.ready[user as usize];
            while lock(ready).len() < READY {
                let key = self.psks[user as usize].derive_own(&mut OsRng);
                lock(ready).push(key);
            }
        }
    }

    fn run(&self, job: &Job) {
        let mut course = None;
        loop {
            self.refill();
            if job.alive.strong_count() == 0 {
                return;
            }
            let turn = lock(&QUARTER);
            let since = rt::now();
            let course = course.get_or_insert_with(|| self.course(job));
            let seen = self.try_some(job, course);
            let is_over = seen.is_some();
            if let Some(seen) = seen {
                if matches!(seen, KeySearchResult::Nothing(tried) if tried == self.candidates.len()) {
                    self.failed(job.source);
                }
                job.answer.send((seen, course.tried));
            }
            std::thread::sleep((rt::now() - since) * REST);
            drop(turn);
            if is_over {
                return;
            }
        }
    }

    fn course(&self, job: &Job) -> Course {
        let from = self.candidates[job.from..].iter().zip(number(job.from)..);
        let reached = from.take_while(|((_, candidate), _)| candidate.opening_len() <= job.first.len());
        let likely = reached
            .filter(|((_, candidate), index)| candidate.is_likely(&job.first) && !job.skip.contains(index));
        let mut likely: VecDeque<u32> = likely.map(|(_, index)| index).collect();
        let mut is_taken: HashSet<u32> = likely.iter().chain(&job.skip).copied().collect();
        let order = self.activity.order();
        let of_active = order.active().iter().flat_map(|user| &self.of_user[*user as usize]).copied();
        let fits = |index: &u32| {
            *index as usize >= job.from && self.candidates[*index as usize].1.opening_len() <= job.first.len()
        };
        likely.extend(of_active.filter(fits).filter(|index| is_taken.insert(*index)));
        let mut skip: Vec<u32> = job.skip.iter().chain(&likely).copied().collect();
        skip.sort_unstable();
        Course { likely, skip, at: job.from, tried: 0 }
    }

    /// Tries some of the candidates; `None` as long as there are more.
    fn try_some(&self, job: &Job, course: &mut Course) -> Option<KeySearchResult> {
        for _ in 0..CHUNK {
            let Some(index) = self.next_candidate(course, job.first.len()) else {
                return Some(KeySearchResult::Nothing(course.at));
            };
            let (user, candidate) = &self.candidates[index as usize];
            course.tried += 1;
            if let Some(opening) = candidate.open(&job.first) {
                return Some(KeySearchResult::Opened(*user as usize, opening));
            }
        }
        None
    }

    /// The next candidate that can be tried on `len` bytes.
    fn next_candidate(&self, course: &mut Course, len: usize) -> Option<u32> {
        if let Some(index) = course.likely.pop_front() {
            return Some(index);
        }
        while !self.needs_more(course.at, len) {
            let index = number(course.at);
            course.at += 1;
            if course.skip.binary_search(&index).is_err() {
                return Some(index);
            }
        }
        None
    }

    /// Number of candidates that a client's first bytes have tried up to the one that opens, or in vain.
    #[cfg(test)]
    pub(super) fn cost(&self, first: &[u8]) -> usize {
        let (answer, _answers) = rt::orders();
        let alive = Weak::new();
        let job = Job {
            source: IpAddr::from([0; 4]),
            first: first.into(),
            from: 0,
            skip: Vec::new(),
            alive,
            answer,
        };
        let mut course = self.course(&job);
        let mut candidates = std::iter::from_fn(|| self.next_candidate(&mut course, first.len()));
        let opens = |index: u32| self.candidates[index as usize].1.open(first).is_some();
        candidates.position(opens).map_or(course.at, |at| at + 1)
    }

    /// Whether the candidate `at` cannot be tried on `len` bytes, or is none.
    fn needs_more(&self, at: usize, len: usize) -> bool {
        self.candidates.get(at).is_none_or(|(_, candidate)| candidate.opening_len() > len)
    }

    fn failed(&self, source: IpAddr) {
        let failed = &mut self.queue().failed;
        if failed.len() >= FAILED {
            failed.clear();
        }
        failed.insert(source);
    }
}

impl Attempt<'_> {
    /// Whether the next trial on `len` bytes is one on the spot, which costs the event loop a derivation or some.
    pub(crate) fn is_warm(&self, len: usize) -> bool {
        self.warm(len).next().is_some()
    }

    fn warm(&self, len: usize) -> impl Iterator<Item = u32> {
        let all = self.known.iter().flat_map(|user| &self.trial.of_user[*user as usize]);
        all.copied().filter(move |index| {
            !self.tried.contains(index) && self.trial.candidates[*index as usize].1.opening_len() <= len
        })
    }

    /// Tries the keys of those who have come from there before, the likely ones first.
    pub(crate) fn try_known(&mut self, first: &[u8]) -> Option<(usize, Opening)> {
        let mut candidates: Vec<u32> = self.warm(first.len()).collect();
        candidates.sort_by_key(|index| !self.trial.candidates[*index as usize].1.is_likely(first));
        for index in candidates {
            let (user, candidate) = &self.trial.candidates[index as usize];
            if let Some(opening) = candidate.open(first) {
                self.trial.activity.sources().searches().note_known();
                return Some((*user as usize, opening));
            }
            self.tried.push(index);
        }
        None
    }

    /// Has everybody else's key tried, as far as `first` reaches. `None` if too many wait already.
    pub(crate) async fn try_all(&mut self, first: &[u8], search: &Search) -> Option<KeySearchResult> {
        if self.trial.needs_more(self.from, first.len()) {
            search.take_place();
            return Some(KeySearchResult::Nothing(self.from));
        }
        let (answer, mut answers): (_, Orders<JobResult>) = rt::orders();
        let job = Job {
            source: self.source,
            first: first[..first.len().min(CandidateKey::MAX_LEN)].into(),
            from: self.from,
            skip: self.tried.clone(),
            alive: Arc::downgrade(&self.alive),
            answer,
        };
        if !self.trial.submit(job) {
            return None;
        }
        search.take_place();
        let (seen, tried) = answers.next().await?;
        search.note_keys(tried);
        match seen {
            KeySearchResult::Nothing(tried) => self.from = tried,
            KeySearchResult::Opened(..) => search.note_found(),
        }
        Some(seen)
    }

    /// The same, as soon as there is a place for it: a new user may open many connections at once. `None` once another
    /// connection from the same source has shown who its user is, which is worth a try on the spot.
    pub(crate) async fn try_all_in_turn(&mut self, first: &[u8]) -> Option<KeySearchResult> {
        let search = self.trial.activity.sources().searches().begin();
        // They have been tried on the spot, in vain.
        search.note_keys(self.tried.len());
        let mut pause = FIRST_PAUSE;
        loop {
            if let Some(seen) = self.try_all(first, &search).await {
                return Some(seen);
            }
            rt::sleep(pause).await;
            pause = (pause * 2).min(LONGEST_PAUSE);
            let known = self.trial.activity.known(self.source);
            if known != self.known {
                self.known = known;
                search.take_place();
                return None;
            }
        }
    }

    /// Whether everything has been tried.
    pub(crate) fn is_exhausted(&self) -> bool {
        self.from == self.trial.candidates.len()
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Users and candidates are counted in 32 bits.
fn number(index: usize) -> u32 {
    u32::try_from(index).unwrap_or(u32::MAX)
}

fn work(trial: &Weak<KeySearch>) {
    // Event loops come first where there is not a core for each.
    run_behind();
    while let Some(trial) = trial.upgrade() {
        let job = trial.next_job();
        trial.refill();
        if let Some(job) = job {
            trial.run(&job);
        }
    }
}
