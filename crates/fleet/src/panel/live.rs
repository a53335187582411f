//! The WebSocket of a panel: changes of users hold at once, and the panel hears of addresses.
//!
//! It carries nothing that is not pulled too: changes have no numbers, so that one may be lost without a trace. The whole
//! list is pulled five times less often while it is open. It is listened to while a request waits for its answer.

use std::time::{Duration, Instant};

use adit_net::call::CallSocket;
use adit_net::rt;

use super::answer::{MAX_BODY, PanelError, body, chain};
use super::events::{self, PanelEvent, UserListChange};
use super::users::UserList;
use super::worker::{Worker, sources};
use crate::jitter::random;

/// Time to open the WebSocket, and to be known to the panel then.
const OPEN: Duration = Duration::from_secs(10);
/// Time for a message to leave.
const SEND: Duration = Duration::from_secs(10);
/// The panel sends a ping each 55 s: one that is silent for longer than two of them is gone.
const SILENCE: Duration = Duration::from_secs(120);
/// Changes that come together hold together.
const TOGETHER: Duration = Duration::from_millis(200);
/// Longest pause before the first attempt after an end; it doubles.
const PAUSE: Duration = Duration::from_secs(30);
const MAX_PAUSE: Duration = Duration::from_secs(300);
/// Most rows of changes that come while a list is pulled.
const MOST_ROWS: usize = 10_000;

/// A WebSocket that is open.
#[derive(Debug)]
struct Live {
    socket: CallSocket,
    opened_at: Instant,
    heard_at: Instant,
    /// The panel has said that it knows this node.
    is_known: bool,
}

/// The WebSocket of a panel, and what it has said.
#[derive(Debug)]
pub(super) struct Line {
    /// The number of the node; `None` if there can be no WebSocket.
    node: Option<u64>,
    live: Option<Live>,
    /// When it is to be opened.
    pub(super) next: Option<Instant>,
    pause: Duration,
    has_failed: bool,
    /// The list with the changes that hold at the time, and whether it is one that was told whole.
    draft: Option<(UserList, bool, Instant)>,
    /// Changes since a pull began.
    since_pull: Option<Vec<UserListChange>>,
    /// The whole list is wanted soon.
    pub(super) wants_pull: bool,
    started_at: Instant,
}

impl Line {
    /// The line of a node that has this number or code at the panel.
    pub(super) fn new(has_one: bool, node: &str) -> Self {
        let node = if has_one { node.parse().ok().filter(|node| *node > 0) } else { None };
        Self {
            next: node.map(|_| rt::now()),
            node,
            live: None,
            pause: PAUSE,
            has_failed: false,
            draft: None,
            since_pull: None,
            wants_pull: false,
            started_at: rt::now(),
        }
    }

    /// Whether changes come by themselves.
    pub(super) fn is_known(&self) -> bool {
        self.live.as_ref().is_some_and(|live| live.is_known)
    }

    /// A pull begins: changes from here on may be newer than its list.
    pub(super) fn begin_pull(&mut self) {
        self.since_pull = self.live.as_ref().map(|_| Vec::new());
    }

    /// A pull is over: changes that came meanwhile hold on top of its list. Those of before are in it.
    pub(super) fn end_pull(&mut self, list: &mut UserList) {
        let changes = self.since_pull.take().unwrap_or_default();
        if !changes.is_empty() {
            list.version = None;
        }
        changes.iter().for_each(|change| change.apply(&mut list.users));
        self.draft = None;
    }

    /// A pull has failed.
    pub(super) fn drop_pull(&mut self) {
        self.since_pull = None;
    }

    /// When something is due by itself.
    fn due(&self) -> Option<Instant> {
        let draft = self.draft.as_ref().map(|(_, _, at)| *at);
        let silence = self.live.as_ref().map(Live::until);
        draft.into_iter().chain(silence).min()
    }
}

impl Live {
    /// When it is given up unless something comes.
    fn until(&self) -> Instant {
        if self.is_known { self.heard_at + SILENCE } else { self.opened_at + OPEN }
    }
}

impl Worker {
    /// Opens the WebSocket if the panel has one.
    pub(super) async fn open_line(&mut self) {
        self.line.next = None;
        if self.line.live.is_some() {
            return;
        }
        match Box::pin(self.try_open()).await {
            Ok(true) => {}
            Ok(false) => self.line.next = Some(rt::now() + MAX_PAUSE.mul_f64(0.5 + random())),
            Err(error) => self.lose_line(&error),
        }
    }

    /// False if the panel has none now.
    async fn try_open(&mut self) -> Result<bool, PanelError> {
        let Some(request) = self.wire.handshake() else { return Ok(false) };
        let answer = self.call("handshake", &request, || Ok(())).await?;
        let Some(url) = events::place(self.wire.panel(), &body(&answer)?, &self.wire.query())? else {
            return Ok(false);
        };
        let opened = CallSocket::open(&self.link.dialer, &self.link.trust, &url, MAX_BODY, OPEN).await;
        self.note("socket", if opened.is_ok() { "ok" } else { "unreached" });
        let socket = opened.map_err(|error| PanelError::Call(chain(&error)))?;
        let now = rt::now();
        self.line.live = Some(Live { socket, opened_at: now, heard_at: now, is_known: false });
        Ok(true)
    }

    /// The WebSocket has ended, or there is none: it is opened again, at a time of chance, and the list is pulled.
    fn lose_line(&mut self, error: &PanelError) {
        let (panel, error) = (&*self.panel.name, error.to_string());
        if !std::mem::replace(&mut self.line.has_failed, true) {
            tracing::warn!(panel, error, "the panel's WebSocket is not there: users are pulled alone");
        }
        let was_known = self.line.is_known();
        self.line.live = None;
        self.line.wants_pull |= was_known;
        // Not sooner than lists are pulled, where that is quick.
        let pause = self.line.pause.min(self.pull_every().max(Duration::from_secs(1)));
        self.line.pause = if was_known { PAUSE } else { (self.line.pause * 2).min(MAX_PAUSE) };
        self.line.next = Some(rt::now() + pause.mul_f64(0.1 + 0.9 * random()));
    }

    /// Listens to the WebSocket until `at`.
    pub(super) async fn listen_until(&mut self, at: Instant) {
        loop {
            let due = self.line.due().map_or(at, |due| due.min(at));
            let heard = match &mut self.line.live {
                Some(live) => {
                    let wait = async {
                        rt::sleep_until(due).await;
                        None
                    };
                    rt::race(async { Some(live.socket.receive().await) }, wait).await
                }
                None => {
                    rt::sleep_until(due).await;
                    None
                }
            };
            match heard {
                Some(Ok(Some(text))) => self.hear(&text).await,
                Some(Ok(None)) => self.lose_line(&PanelError::Foreign("its WebSocket was closed")),
                Some(Err(error)) => self.lose_line(&PanelError::Call(error.to_string())),
                None => self.follow_time(),
            }
            if rt::now() >= at {
                return;
            }
        }
    }

    /// Does what is due by itself.
    fn follow_time(&mut self) {
        let now = rt::now();
        if self.line.live.as_ref().is_some_and(|live| now >= live.until()) {
            self.lose_line(&PanelError::Foreign("its WebSocket is silent"));
        }
        if let Some((list, is_whole, _)) = self.line.draft.take_if(|(_, _, at)| now >= *at) {
            self.take_live(list, is_whole);
        }
    }

    async fn hear(&mut self, text: &str) {
        let Some(node) = self.line.node else { return };
        let now = rt::now();
        if let Some(live) = &mut self.line.live {
            live.heard_at = now;
        }
        let done = match events::read(text, node) {
            Ok(PanelEvent::Known) => self.greet().await,
            Ok(PanelEvent::Ping) => self.say(events::pong()).await,
            Ok(PanelEvent::Refused(why)) => Err(PanelError::Call(why)),
            Ok(PanelEvent::Config(config)) => self.hear_config(*config),
            Ok(PanelEvent::Users(change)) => self.hear_change(change),
            Ok(PanelEvent::Other) => Ok(()),
            Err(error) => Err(error),
        };
        if let Err(error) = done {
            self.lose_line(&error);
        }
    }

    /// The panel has forgotten the addresses of this node with the last connection: it hears of them first.
    async fn greet(&mut self) -> Result<(), PanelError> {
        let Some(live) = &mut self.line.live else { return Ok(()) };
        live.is_known = true;
        self.line.pause = PAUSE;
        self.line.has_failed = false;
        tracing::info!(panel = &*self.panel.name, "changes of users come over the panel's WebSocket");
        self.tell_line().await
    }

    /// Tells addresses and the state of this node.
    async fn tell_line(&mut self) -> Result<(), PanelError> {
        let Some(node) = self.line.node else { return Ok(()) };
        let online = sources(&mut *self.host, &self.panel.name);
        let uptime = rt::now().saturating_duration_since(self.line.started_at).as_secs();
        let status = events::status(node, uptime, self.desk.current.users.len(), online.len());
        self.say(events::devices(node, &online)).await?;
        self.say(status).await
    }

    /// Whether addresses went over the WebSocket.
    pub(super) async fn has_told_line(&mut self) -> bool {
        if !self.line.is_known() {
            return false;
        }
        let told = self.tell_line().await;
        told.inspect_err(|error| self.lose_line(error)).is_ok()
    }

    async fn say(&mut self, text: String) -> Result<(), PanelError> {
        let Some(live) = &mut self.line.live else { return Ok(()) };
        live.socket.send(text, SEND).await.map_err(|error| PanelError::Call(error.to_string()))
    }

    fn hear_config(&mut self, config: super::wire::UniConfig) -> Result<(), PanelError> {
        let mut list = self.draft();
        let ignored = config.read(&mut list)?;
        self.note("settings", "ok");
        self.tell_ignored(ignored);
        let is_whole = self.line.draft.as_ref().is_some_and(|(_, is_whole, _)| *is_whole);
        self.keep_draft(list, is_whole);
        Ok(())
    }

    fn hear_change(&mut self, change: UserListChange) -> Result<(), PanelError> {
        self.note("change", "ok");
        let mut list = self.draft();
        // A version that the panel has named is no longer that of this list.
        list.version = None;
        change.apply(&mut list.users);
        if list.users.len() > super::loose::MOST_ROWS {
            return Err(PanelError::Foreign("its changes make too many users"));
        }
        if let UserListChange::Whole(_, left_out @ 1..) | UserListChange::Added(_, left_out @ 1..) = change {
            self.tell_left_out(left_out);
        }
        let before = self.line.draft.as_ref().is_some_and(|(_, is_whole, _)| *is_whole);
        let is_whole = before || matches!(change, UserListChange::Whole(..));
        self.keep_draft(list, is_whole);
        if let Some(changes) = &mut self.line.since_pull {
            let rows = changes.iter().map(UserListChange::len).sum::<usize>() + change.len();
            if matches!(change, UserListChange::Whole(..)) {
                changes.clear();
            } else if rows > MOST_ROWS {
                return Err(PanelError::Foreign("too many changes at once"));
            }
            changes.push(change);
        }
        Ok(())
    }

    /// The list with the changes so far.
    fn draft(&self) -> UserList {
        match &self.line.draft {
            Some((list, ..)) => list.clone(),
            None => (*self.desk.current).clone(),
        }
    }

    fn keep_draft(&mut self, list: UserList, is_whole: bool) {
        let at = self.line.draft.as_ref().map_or_else(|| rt::now() + TOGETHER, |(_, _, at)| *at);
        self.line.draft = Some((list, is_whole, at));
    }
}
