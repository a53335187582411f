//! The service manager that has started this process: it is told when the process serves, and that it works.

use std::collections::BTreeSet;
use std::io;
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::sync::{Mutex, OnceLock, PoisonError};

use adit_engine::Observer;
use adit_net::handover::{self, Kept, Label};
use adit_net::notify::Notify;

static MANAGER: OnceLock<Option<Notify>> = OnceLock::new();

/// The manager, if there is one.
fn manager() -> Option<&'static Notify> {
    let find = || {
        Notify::from_environment().unwrap_or_else(|error| {
            tracing::warn!(%error, "cannot tell the service manager that the process serves");
            None
        })
    };
    MANAGER.get_or_init(find).as_ref()
}

/// The process serves, and `status` says what.
pub(crate) fn ready(status: &str) {
    if let Some(manager) = manager() {
        manager.ready(status);
    }
}

/// The process takes a new configuration; [`ready`] comes next.
pub(crate) fn reloading() {
    if let Some(manager) = manager() {
        manager.reloading();
    }
}

/// The process begins to end.
pub(crate) fn stopping() {
    if let Some(manager) = manager() {
        manager.stopping();
    }
}

/// Another process serves in the place of this one.
pub(crate) fn followed_by(pid: u32, status: &str) {
    if let Some(manager) = manager() {
        manager.is_followed_by(pid, status);
    }
}

/// Takes the sockets that the manager has kept or opened.
pub(crate) fn adopt() {
    let (adopted, warnings) = handover::from_manager();
    for warning in warnings {
        tracing::warn!("{warning}");
    }
    if adopted > 0 {
        tracing::info!(sockets = adopted, "sockets of the service manager");
    }
}

/// Closes the sockets of the manager that the configuration does not use; true if there were any.
pub(crate) fn leave_rest() -> bool {
    let (labels, others) = handover::leave_rest();
    if !labels.is_empty() || others > 0 {
        tracing::info!(
            sockets = labels.len() + others,
            "sockets of the service manager that nothing listens on any more"
        );
    }
    let has_any = !labels.is_empty() || others > 0;
    if let Some(manager) = manager() {
        labels.into_iter().for_each(|label| manager.forget(label));
    }
    has_any
}

/// Leaves copies of the listening sockets with a manager that keeps such (`FDSTORE`), and has it close those that are gone.
pub(crate) fn store(sockets: &[Kept]) {
    static STORED: Mutex<BTreeSet<Label>> = Mutex::new(BTreeSet::new());
    let is_kept = std::env::var("FDSTORE").is_ok_and(|most| most.parse().is_ok_and(|most: u64| most > 0));
    let Some(manager) = manager().filter(|_| is_kept) else { return };
    let mut stored = STORED.lock().unwrap_or_else(PoisonError::into_inner);
    let now: BTreeSet<Label> = sockets.iter().map(Kept::label).collect();
    for gone in stored.difference(&now) {
        manager.forget(*gone);
    }
    for kept in sockets.iter().filter(|kept| !stored.contains(&kept.label())) {
        if let Err(error) = manager.store(kept) {
            tracing::warn!(%error, "a socket cannot be left with the service manager: a restart closes it");
        }
    }
    *stored = now;
}

/// Tells the manager that the process works, for as long as that is so and until the answer is dropped; nothing if it does
/// not want to know.
///
/// # Errors
/// When there cannot be another thread.
pub(crate) fn watch(observer: Observer) -> io::Result<Option<Sender<()>>> {
    let Some((manager, time)) = manager().and_then(|manager| Some((manager, manager.watchdog()?))) else {
        return Ok(None);
    };
    let (end, ended) = channel::<()>();
    let watch = move || {
        // Twice in the time, as sd_watchdog_enabled(3) advises.
        while ended.recv_timeout(time / 2) == Err(RecvTimeoutError::Timeout) {
            let health = observer.health();
            if health.is_live {
                manager.alive();
            } else {
                tracing::error!(reason = health.reason, "the watchdog is not told that the process works");
            }
        }
    };
    std::thread::Builder::new().name("watchdog".into()).spawn(watch)?;
    Ok(Some(end))
}

/// The state of a process that listens on so many addresses, for the service manager.
pub(crate) fn served(addresses: usize) -> String {
    format!("listening on {addresses} address{}", if addresses == 1 { "" } else { "es" })
}
