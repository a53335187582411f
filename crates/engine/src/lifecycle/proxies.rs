//! Outbounds and groups for control programs: what there is, which members are chosen, and how long they take.

use std::sync::{Arc, Mutex, PoisonError, mpsc};

use adit_model::map::Map;
use adit_model::{self as model, Config, DelayTest, ListKind, OutboundProtocol, Policy, Provider, Tag};
use adit_net::fetch::{Document, FetchError, Wanted};
use adit_net::rt;
use thiserror::Error;

use super::Engine;
use super::command::LoopCommand;
use super::jobs::{FetchRoute, Job};
use crate::dns::{self, DnsReply};
use crate::groups::choice::{CheckRequest, ChoiceShared, ChoiceView, DelayError, DelayHistory, test_group};

/// Asks about outbounds and changes the choices of groups, from any thread.
#[derive(Debug, Clone)]
pub struct Proxies(pub(super) Arc<Engine>);

/// One outbound at this time.
#[derive(Debug, Clone, PartialEq)]
pub struct ProxyView {
    /// Its name.
    pub name: Tag,
    /// Its configuration.
    pub model: Arc<model::Outbound>,
    /// Whether it carries datagrams, by the word of the file; of a group: whether the member in use does.
    pub udp: bool,
    /// Results of tests.
    pub history: DelayHistory,
    /// More about a group.
    pub group: Option<ChoiceView>,
}

/// Keeps the lists of providers up to date; the program does.
pub trait ListUpdater: std::fmt::Debug + Send + Sync {
    /// Updates a list at once. `reply` gets the error, in words; it is dropped if the process ends.
    fn update(&self, name: &str, kind: ListKind, reply: ListReply);

    /// The state of a list; `None` if there is no such list.
    fn state(&self, name: &str, kind: ListKind) -> Option<ListState>;
}

/// Takes the result of an update.
pub type ListReply = Box<dyn FnOnce(Result<(), String>) + Send>;

/// The state of a list.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ListState {
    /// Traffic of a subscriber, as the server of the list tells it.
    pub usage: Option<ListUsage>,
    /// When the copy on disk was written or found to be up to date.
    pub updated_at: Option<std::time::SystemTime>,
    /// The error of the latest fetch, if it failed.
    pub error: Option<String>,
}

/// Traffic of a subscriber: bytes, and the end of the subscription in seconds since 1970; 0 where it is not told.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct ListUsage {
    /// Bytes sent.
    pub upload: u64,
    /// Bytes received.
    pub download: u64,
    /// Bytes that may be used.
    pub total: u64,
    /// The end.
    pub expire: u64,
}

/// Why a member cannot be chosen.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
pub enum SelectError {
    /// There is no group of this name.
    #[error("no such group")]
    Missing,
    /// Nobody may choose among its members.
    #[error("not a group whose members are selected")]
    NotSelectable,
    /// It is no member of the group.
    #[error("not a member of the group")]
    NoMember,
}

/// The outbounds as they were after the latest change.
#[derive(Debug, Default)]
pub(super) struct OutboundsView {
    pub(super) config: Arc<Config>,
    pub(super) outbounds: Vec<(Arc<model::Outbound>, Option<Arc<ChoiceShared>>)>,
    by_name: Map<Tag, usize>,
}

/// [`OutboundsView`] for readers that do not wait for a change that is under way.
#[derive(Debug, Default)]
pub(super) struct Showcase(Mutex<Arc<OutboundsView>>);

impl Showcase {
    pub(super) fn set(
        &self,
        config: Arc<Config>,
        outbounds: Vec<(Arc<model::Outbound>, Option<Arc<ChoiceShared>>)>,
    ) {
        let by_name = outbounds.iter().enumerate().map(|(at, (model, _))| (model.name.clone(), at)).collect();
        let shown = Arc::new(OutboundsView { config, outbounds, by_name });
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = shown;
    }

    pub(super) fn shown(&self) -> Arc<OutboundsView> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

impl OutboundsView {
    fn find(&self, name: &str) -> Option<&(Arc<model::Outbound>, Option<Arc<ChoiceShared>>)> {
        self.outbounds.get(*self.by_name.get(name)?)
    }

    fn group(&self, name: &str) -> Option<&Arc<ChoiceShared>> {
        self.find(name)?.1.as_ref()
    }

    /// Whether an outbound carries datagrams, by the members that are in use.
    fn udp(&self, name: &Tag) -> bool {
        /// Groups that are nested deeper are no file that starts.
        const MAX_DEPTH: usize = 32;
        let mut name = name.clone();
        for _ in 0..MAX_DEPTH {
            let Some((model, group)) = self.find(&name) else { return false };
            let (OutboundProtocol::Choice(choice), Some(group)) = (&model.protocol, group) else {
                return model.says_datagrams();
            };
            if !choice.udp {
                return false;
            }
            match group.view().now {
                Some(now) => name = now,
                None => return matches!(choice.policy, Policy::LoadBalance(_)),
            }
        }
        false
    }
}

impl Proxies {
    fn shown(&self) -> Arc<OutboundsView> {
        self.0.showcase.shown()
    }

    /// All outbounds, in the order of the file.
    pub fn list(&self) -> Vec<ProxyView> {
        let shown = self.shown();
        shown.outbounds.iter().map(|entry| self.view(&shown, entry)).collect()
    }

    /// The outbound of this name.
    pub fn find(&self, name: &str) -> Option<ProxyView> {
        let shown = self.shown();
        shown.find(name).map(|entry| self.view(&shown, entry))
    }

    /// The configuration after the latest change.
    pub fn config(&self) -> Arc<Config> {
        self.shown().config.clone()
    }

    /// Forgets answers of name servers.
    pub fn flush_dns(&self) {
        self.0.dns.flush();
    }

    /// Forgets fake addresses. False if there are none.
    pub fn flush_fake(&self) -> bool {
        let fake = self.0.dns.fake();
        fake.iter().for_each(|fake| fake.flush());
        fake.is_some()
    }

    /// Has name servers asked for the records of a name, by the name of their type in capitals. `reply` gets the answer on
    /// another thread, `None` where none came; it is dropped if the process ends. False if there is no such type.
    pub fn query_dns(
        &self,
        name: &str,
        kind: &str,
        reply: impl FnOnce(Option<DnsReply>) + Send + 'static,
    ) -> bool {
        let Some(question) = dns::question(name, kind) else { return false };
        self.run(Box::new(move |tools| {
            rt::spawn_local(async move { reply(Box::pin(dns::ask(&tools.dns, &question)).await) });
        }));
        true
    }

    /// The lists that the configuration keeps up to date, as they were read.
    pub fn providers(&self) -> Vec<Provider> {
        self.shown().config.providers.clone()
    }

    /// Has `lists` keep the lists of providers; the first one stays.
    pub fn set_lists(&self, lists: Box<dyn ListUpdater>) {
        self.0.lists.set(lists).ok();
    }

    /// Updates the list of a provider at once. `reply` gets the error, in words; it is dropped if the process ends or nobody
    /// keeps lists.
    pub fn update_list(&self, name: &str, kind: ListKind, reply: ListReply) {
        if let Some(lists) = self.0.lists.get() {
            lists.update(name, kind, reply);
        }
    }

    /// The state of a provider's list.
    pub fn list_state(&self, name: &str, kind: ListKind) -> Option<ListState> {
        self.0.lists.get()?.state(name, kind)
    }

    fn view(
        &self,
        shown: &OutboundsView,
        (model, group): &(Arc<model::Outbound>, Option<Arc<ChoiceShared>>),
    ) -> ProxyView {
        let mut history = self.0.board.history(&model.name);
        if matches!(model.protocol, OutboundProtocol::Refuse(model::Refusal::Dead { .. })) {
            history.alive = false;
        }
        ProxyView {
            name: model.name.clone(),
            model: model.clone(),
            udp: shown.udp(&model.name),
            history,
            group: group.as_ref().map(|group| group.view()),
        }
    }

    /// Has requests of `group` take `member` from now on, and keeps that across restarts. Open connections stay. A group
    /// that tests its members leaves a fixed one while it is dead.
    ///
    /// # Errors
    /// [`SelectError`]; nothing has changed then.
    pub fn select(&self, group: &str, member: &str) -> Result<(), SelectError> {
        let shown = self.shown();
        let found = shown.group(group).ok_or(SelectError::Missing)?;
        if !found.view().model.policy.is_selectable() {
            return Err(SelectError::NotSelectable);
        }
        if !found.fix(Some(member)) {
            return Err(SelectError::NoMember);
        }
        self.keep(&shown, group, Some(member));
        Ok(())
    }

    /// Lets a group that tests its members choose by itself again.
    ///
    /// # Errors
    /// [`SelectError::Missing`], and [`SelectError::NotSelectable`] for a group of any other kind.
    pub fn unfix(&self, group: &str) -> Result<(), SelectError> {
        let shown = self.shown();
        let found = shown.group(group).ok_or(SelectError::Missing)?;
        if !matches!(found.view().model.policy, Policy::UrlTest(_) | Policy::Fallback) {
            return Err(SelectError::NotSelectable);
        }
        found.fix(None);
        self.keep(&shown, group, None);
        Ok(())
    }

    fn keep(&self, shown: &OutboundsView, group: &str, member: Option<&str>) {
        let mut choices = self.0.choices.lock().unwrap_or_else(PoisonError::into_inner);
        let is_group = |name: &str| shown.group(name).is_some();
        if let Err(error) = choices.keep(group, member, is_group) {
            let path = choices.path().map(|path| path.display().to_string());
            tracing::warn!(group, path, %error, "the choice of a member is lost on restart: the file cannot be written");
        }
    }

    /// Tests the delay of an outbound or of the member that a group uses. `reply` gets it in milliseconds, at least 1, on
    /// another thread; the result is in the history too. `reply` is dropped if the process ends.
    pub fn delay(
        &self,
        name: &str,
        test: &DelayTest,
        reply: impl FnOnce(Result<u32, DelayError>) + Send + 'static,
    ) {
        let asked = match CheckRequest::new(test) {
            Ok(asked) => asked,
            Err(error) => return reply(Err(error)),
        };
        let name = Tag::from(name);
        self.run(Box::new(move |tools| {
            rt::spawn_local(async move { reply(Box::pin(tools.tester.test(&name, &asked)).await) });
        }));
    }

    /// As [`Proxies::delay`], and waits for the result.
    ///
    /// # Errors
    /// [`DelayError`].
    pub fn delay_now(&self, name: &str, test: &DelayTest) -> Result<u32, DelayError> {
        let (sender, result) = mpsc::channel();
        self.delay(name, test, move |result| {
            // The caller waits below.
            sender.send(result).ok();
        });
        result.recv().unwrap_or(Err(DelayError::Ending))
    }

    /// Tests all members of a group, ten at a time, and lets it choose by itself again. `reply` gets the members that
    /// responded with their delays, on another thread.
    ///
    /// # Errors
    /// When there is no such group, or the address of the test is none; `reply` is dropped then.
    pub fn group_delay(
        &self,
        group: &str,
        test: &DelayTest,
        reply: impl FnOnce(Map<Tag, u32>) + Send + 'static,
    ) -> Result<(), DelayError> {
        let asked = CheckRequest::new(test)?;
        let shared = self.shown().group(group).cloned().ok_or(DelayError::Missing)?;
        // A group of another kind has nothing fixed, or a choice that stays.
        self.unfix(group).ok();
        self.run(Box::new(move |tools| {
            rt::spawn_local(async move {
                let found = Box::pin(test_group(&tools.tester, &shared, &asked, true)).await;
                reply(found.into_iter().collect());
            });
        }));
        Ok(())
    }

    /// Fetches a document. `reply` gets it on another thread; `None` if it is still the version that the request names.
    /// `reply` is dropped if the process ends.
    pub fn fetch(
        &self,
        via: FetchRoute,
        wanted: Wanted,
        reply: impl FnOnce(Result<Option<Document>, FetchError>) + Send + 'static,
    ) {
        self.run(Box::new(move |tools| {
            rt::spawn_local(async move { reply(Box::pin(tools.download(&via, &wanted)).await) });
        }));
    }

    fn run(&self, job: Job) {
        // The first core always is; without it the process ends, and the job is dropped.
        if let Some(core) = self.0.cores.first() {
            core.send(LoopCommand { jobs: vec![job], ..LoopCommand::default() });
        }
    }
}
