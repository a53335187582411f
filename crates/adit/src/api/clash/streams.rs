//! Streams: traffic, memory, the log, and the list of connections.

use std::cell::Cell;
use std::pin::Pin;
use std::rc::Rc;
use std::time::Duration;

use adit_model::Level;
use adit_net::web::live::{Feed, Given, LiveRequest, LiveResponse, Source};
use adit_net::{rt, usage};
use serde_json::json;

use super::state::ClashApi;
use super::text::{bad, line, message, query};
use super::views::level_name;
use crate::log::log_stream;

/// Streams at a time.
const MOST_STREAMS: usize = 64;
/// Least time between two lists of connections.
const LEAST: Duration = Duration::from_millis(100);
/// Time between two items.
const SECOND: Duration = Duration::from_secs(1);

/// A place among the streams; leaving it is dropping it.
pub(super) struct StreamSeat(Rc<Cell<usize>>);

impl StreamSeat {
    fn take(streams: &Rc<Cell<usize>>) -> Option<Self> {
        (streams.get() < MOST_STREAMS).then(|| {
            streams.set(streams.get() + 1);
            Self(streams.clone())
        })
    }
}

impl Drop for StreamSeat {
    fn drop(&mut self) {
        self.0.set(self.0.get() - 1);
    }
}

/// A stream, if there is a place for it.
fn stream<F: Future<Output = ()> + 'static>(
    desk: &Rc<ClashApi>,
    make: impl FnOnce(Feed) -> F + 'static,
) -> Given {
    let Some(place) = StreamSeat::take(&desk.streams) else {
        return message(503, "64 streams are open: close one of them first");
    };
    let source: Source = Box::new(move |feed| {
        let texts = make(feed);
        let run: Pin<Box<dyn Future<Output = ()>>> = Box::pin(async move {
            texts.await;
            drop(place);
        });
        run
    });
    let fields = vec![("Content-Type", "application/json".to_owned())];
    Given::Stream(LiveResponse { status: 200, fields, body: Vec::new() }, source)
}

/// `GET /traffic`: bytes of the last second.
pub(super) fn traffic(desk: &Rc<ClashApi>) -> Given {
    let observer = desk.observer.clone();
    stream(desk, |feed| async move {
        let mut before = observer.totals();
        loop {
            rt::sleep(SECOND).await;
            let now = observer.totals();
            let item = json!({
                "up": now.0.saturating_sub(before.0), "down": now.1.saturating_sub(before.1),
                "upTotal": now.0, "downTotal": now.1,
            });
            before = now;
            if !feed.send(line(&item).into()).await {
                return;
            }
        }
    })
}

/// `GET /memory`. The first item is 0, as dashboards know it.
pub(super) fn memory(desk: &Rc<ClashApi>) -> Given {
    stream(desk, |feed| async move {
        let mut used = 0;
        loop {
            rt::sleep(SECOND).await;
            if !feed.send(line(&json!({ "inuse": used, "oslimit": 0 })).into()).await {
                return;
            }
            used = usage::resident();
        }
    })
}

/// `GET /logs`.
pub(super) fn logs(desk: &Rc<ClashApi>, call: &LiveRequest) -> Given {
    let level = query(&call.query, "level").unwrap_or_default();
    let level = match level.to_lowercase().as_str() {
        "" | "info" => Some(Level::Info),
        "debug" => Some(Level::Debug),
        "warning" => Some(Level::Warn),
        "error" => Some(Level::Error),
        "silent" => None,
        _ => return bad(),
    };
    let is_structured = query(&call.query, "format").as_deref() == Some("structured");
    // From before the answer on: a line right behind it is not missed.
    let watch = level.map(log_stream::watch);
    stream(desk, move |feed| async move {
        let Some(mut watch) = watch else { return std::future::pending().await };
        while let Some(found) = watch.next().await {
            let name = level_name(found.level);
            let item = if is_structured {
                let (hour, minute, second) = adit_net::local_time(rt::unix_time());
                let name = if name == "warning" { "warn" } else { name };
                let time = format!("{hour:02}:{minute:02}:{second:02}");
                json!({ "time": time, "level": name, "message": &*found.text, "fields": [] })
            } else {
                json!({ "type": name, "payload": &*found.text })
            };
            if !feed.send(line(&item).into()).await {
                return;
            }
        }
    })
}

/// `GET /connections` over a WebSocket.
pub(super) fn connections(desk: &Rc<ClashApi>, call: &LiveRequest) -> Given {
    let interval = match query(&call.query, "interval").filter(|text| !text.is_empty()) {
        None => Some(SECOND),
        Some(text) => text.parse().ok().map(|ms| Duration::from_millis(ms).max(LEAST)),
    };
    let own = desk.clone();
    stream(desk, move |feed| async move {
        let Some(interval) = interval else { return };
        loop {
            let text = own.connections(interval / 2).await;
            if !feed.send(text).await {
                return;
            }
            // All streams of one interval are due together, so that one list serves them.
            rt::sleep_until(own.next_due(interval)).await;
        }
    })
}
