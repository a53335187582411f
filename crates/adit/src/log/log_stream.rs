//! Log lines for those who watch a process: each asks for a level of its own, apart from the written one.
//!
//! While nobody watches, an event below the written level costs what it costs without this module.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use adit_model::Level;
use adit_net::rt::{OrderSender, Orders, orders};
use tracing::subscriber::Interest;
use tracing::{Event, Metadata, Subscriber};
use tracing_subscriber::Layer;
use tracing_subscriber::filter::LevelFilter;
use tracing_subscriber::layer::{Context, Filter};

use crate::log::{Fields, filters};

/// Lines that wait for one watcher; the newest are dropped beyond.
const MOST_WAITING: usize = 1024;
/// Events of connections that are opened: of level info for watchers, since these ask for them.
const OPENED: &str = "adit::opened";

/// The written level as a number, and that of the watchers; 0 for none.
static WRITTEN: AtomicUsize = AtomicUsize::new(3);
static WATCHED: AtomicUsize = AtomicUsize::new(0);
static WATCHERS: Mutex<Vec<Watcher>> = Mutex::new(Vec::new());

const LEVELS: [Level; 5] = [Level::Error, Level::Warn, Level::Info, Level::Debug, Level::Trace];

/// Lines of this level and above are written from now on.
pub(crate) fn set_level(level: Level) {
    WRITTEN.store(number(level), Ordering::Relaxed);
    tracing::callsite::rebuild_interest_cache();
}

/// The level that is written.
pub(crate) fn level() -> Level {
    LEVELS[WRITTEN.load(Ordering::Relaxed).clamp(1, 5) - 1]
}

/// A line.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Line {
    /// Its level.
    pub(crate) level: Level,
    /// Its text.
    pub(crate) text: Arc<str>,
}

struct Watcher {
    level: Level,
    waiting: Arc<AtomicUsize>,
    lines: OrderSender<Line>,
}

/// Takes lines.
pub(crate) struct Watch {
    waiting: Arc<AtomicUsize>,
    lines: Orders<Line>,
}

/// Lines of this level and above, from now on.
pub(crate) fn watch(level: Level) -> Watch {
    let (sender, lines) = orders();
    let waiting = Arc::new(AtomicUsize::new(0));
    let mut watchers = watchers();
    watchers.push(Watcher { level, waiting: waiting.clone(), lines: sender });
    settle(&watchers);
    drop(watchers);
    tracing::callsite::rebuild_interest_cache();
    Watch { waiting, lines }
}

impl Watch {
    /// The next line.
    pub(crate) async fn next(&mut self) -> Option<Line> {
        let line = self.lines.next().await;
        self.waiting.fetch_sub(1, Ordering::Relaxed);
        line
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        let mut watchers = watchers();
        watchers.retain(|watcher| !Arc::ptr_eq(&watcher.waiting, &self.waiting));
        settle(&watchers);
        drop(watchers);
        tracing::callsite::rebuild_interest_cache();
    }
}

fn watchers() -> MutexGuard<'static, Vec<Watcher>> {
    WATCHERS.lock().unwrap_or_else(PoisonError::into_inner)
}

fn settle(watchers: &[Watcher]) {
    let most = watchers.iter().map(|watcher| number(watcher.level)).max();
    WATCHED.store(most.unwrap_or(0), Ordering::Relaxed);
}

fn number(level: Level) -> usize {
    level as usize + 1
}

fn level_of(meta: &Metadata<'_>) -> Level {
    match *meta.level() {
        _ if meta.target() == OPENED => Level::Info,
        tracing::Level::ERROR => Level::Error,
        tracing::Level::WARN => Level::Warn,
        tracing::Level::INFO => Level::Info,
        tracing::Level::DEBUG => Level::Debug,
        tracing::Level::TRACE => Level::Trace,
    }
}

/// The lines that are written.
pub(crate) struct WrittenLines;

impl<S> Filter<S> for WrittenLines {
    fn enabled(&self, meta: &Metadata<'_>, _: &Context<'_, S>) -> bool {
        let (own, others) = filters(level());
        let filter = if meta.target().starts_with("adit") { own } else { others };
        *meta.level() <= filter
    }

    fn callsite_enabled(&self, meta: &'static Metadata<'static>) -> Interest {
        let (own, others) = filters(level());
        let filter = if meta.target().starts_with("adit") { own } else { others };
        if *meta.level() <= filter { Interest::always() } else { Interest::never() }
    }

    fn max_level_hint(&self) -> Option<LevelFilter> {
        Some(filters(level()).0)
    }
}

/// The lines that somebody watches.
pub(crate) struct Tapped;

fn is_watched(meta: &Metadata<'_>) -> bool {
    meta.target().starts_with("adit") && number(level_of(meta)) <= WATCHED.load(Ordering::Relaxed)
}

impl<S> Filter<S> for Tapped {
    fn enabled(&self, meta: &Metadata<'_>, _: &Context<'_, S>) -> bool {
        is_watched(meta)
    }

    fn callsite_enabled(&self, meta: &'static Metadata<'static>) -> Interest {
        if is_watched(meta) { Interest::always() } else { Interest::never() }
    }

    fn max_level_hint(&self) -> Option<LevelFilter> {
        Some(match WATCHED.load(Ordering::Relaxed) {
            0 => LevelFilter::OFF,
            1 => LevelFilter::ERROR,
            2 => LevelFilter::WARN,
            // Opened connections are events of level debug.
            3 | 4 => LevelFilter::DEBUG,
            _ => LevelFilter::TRACE,
        })
    }
}

/// Hands lines to watchers.
pub(crate) struct Tap;

impl<S: Subscriber> Layer<S> for Tap {
    fn on_event(&self, event: &Event<'_>, _: Context<'_, S>) {
        let mut fields = Fields::default();
        event.record(&mut fields);
        hand_out(&Line { level: level_of(event.metadata()), text: fields.line().into() });
    }
}

fn hand_out(line: &Line) {
    for watcher in watchers().iter().filter(|watcher| line.level <= watcher.level) {
        if watcher.waiting.load(Ordering::Relaxed) < MOST_WAITING && watcher.lines.send(line.clone()) {
            watcher.waiting.fetch_add(1, Ordering::Relaxed);
        }
    }
}

#[cfg(test)]
mod tests {
    use adit_net::rt::{self, Cores};

    use super::*;

    #[test]
    fn watchers_get_their_level_and_no_more_than_they_take() {
        let (mut errors, mut all) = (watch(Level::Error), watch(Level::Debug));
        assert!(WATCHED.load(Ordering::Relaxed) >= 4);
        for (level, text) in [(Level::Debug, "a"), (Level::Error, "b")] {
            hand_out(&Line { level, text: text.into() });
        }
        for _ in 0..2 * MOST_WAITING {
            hand_out(&Line { level: Level::Info, text: "c".into() });
        }
        Cores::block_on(async {
            assert_eq!(&*errors.next().await.unwrap().text, "b");
            let mut texts = Vec::new();
            while let Ok(Some(line)) = rt::timeout(std::time::Duration::from_millis(20), all.next()).await {
                texts.push(line.text);
            }
            assert_eq!((texts.len(), &*texts[0], &*texts[1]), (MOST_WAITING, "a", "b"));
        })
        .unwrap();
        drop((errors, all));
    }
}
