//! The list of flows that have something to receive.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Wake, Waker};

use super::table::FlowId;

/// The list that flows put their names on. Only the engine's own core uses it, so its lock is never waited for; it is
/// there because wakers must be `Send`.
#[derive(Debug, Default)]
pub(super) struct Ready(Arc<Mutex<List>>);

#[derive(Debug, Default)]
struct List {
    flows: Vec<FlowId>,
    /// A decision that was pending can be asked for again.
    is_decided: bool,
    engine: Option<Waker>,
}

impl Ready {
    /// Sets the waker to wake when a name is put on the list.
    pub(super) fn register(&self, engine: &Waker) {
        let mut list = lock(&self.0);
        if !list.engine.as_ref().is_some_and(|old| old.will_wake(engine)) {
            list.engine = Some(engine.clone());
        }
    }

    /// Puts a name on the list without waking anybody.
    pub(super) fn push(&self, flow: FlowId) {
        lock(&self.0).flows.push(flow);
    }

    /// Whether a name is on the list.
    pub(super) fn is_waiting(&self) -> bool {
        !lock(&self.0).flows.is_empty()
    }

    /// Exchanges the list for `empty`, whose room is used for the next names.
    pub(super) fn take(&self, empty: &mut Vec<FlowId>) {
        std::mem::swap(&mut lock(&self.0).flows, empty);
    }

    /// Whether a decision that was pending can be asked for again; false until the next one.
    pub(super) fn take_decided(&self) -> bool {
        std::mem::take(&mut lock(&self.0).is_decided)
    }

    /// Has the decisions that are pending asked for again with the next turn.
    pub(super) fn decide_again(&self) {
        lock(&self.0).is_decided = true;
    }

    /// A waker for decisions that are pending.
    pub(super) fn decision_waker(&self) -> Waker {
        Arc::new(DecisionWaker(self.0.clone())).into()
    }

    /// A waker that puts `flow` on the list.
    pub(super) fn waker(&self, flow: FlowId) -> Waker {
        Arc::new(FlowWaker { list: self.0.clone(), flow }).into()
    }
}

struct FlowWaker {
    list: Arc<Mutex<List>>,
    flow: FlowId,
}

impl Wake for FlowWaker {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        let mut list = lock(&self.list);
        list.flows.push(self.flow);
        if let Some(engine) = &list.engine {
            engine.wake_by_ref();
        }
    }
}

struct DecisionWaker(Arc<Mutex<List>>);

impl Wake for DecisionWaker {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        let mut list = lock(&self.0);
        list.is_decided = true;
        if let Some(engine) = &list.engine {
            engine.wake_by_ref();
        }
    }
}

fn lock(list: &Mutex<List>) -> MutexGuard<'_, List> {
    list.lock().unwrap_or_else(PoisonError::into_inner)
}
