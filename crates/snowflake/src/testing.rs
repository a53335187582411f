//! Waiting for an event in tests that run on an event loop.

use std::time::Duration;

use adit_net::rt;

/// Waits until `condition` holds, for up to two minutes, while the event loop goes on.
///
/// # Panics
/// If it does not, with `what` was waited for.
pub(crate) async fn until(what: &str, mut condition: impl AsyncFnMut() -> bool) {
    let limit = rt::now() + Duration::from_secs(120);
    while !condition().await {
        assert!(rt::now() < limit, "still not true: {what}");
        rt::sleep(Duration::from_millis(2)).await;
    }
}
