//! The service manager that has started this process: it is told when the process serves, and that it works.

use std::io;
use std::sync::OnceLock;
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};

use adit_core::Observer;
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
