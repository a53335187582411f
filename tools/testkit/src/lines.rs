//! The log lines of a test.

use std::sync::{Mutex, Once, PoisonError};

use tracing::field::{Field, Visit};
use tracing::span::{Attributes, Id, Record};
use tracing::{Event, Metadata, Subscriber};

use crate::wait_for;

static LINES: Mutex<Vec<String>> = Mutex::new(Vec::new());

/// Log lines from a moment on, of all tests of the process together, from level info up.
#[derive(Debug)]
pub struct Lines(usize);

impl Lines {
    /// Those that come from now on.
    ///
    /// # Panics
    /// If something else has become the process's subscriber.
    pub fn from_here() -> Self {
        static ONCE: Once = Once::new();
        ONCE.call_once(|| tracing::subscriber::set_global_default(Recorder).expect("the only subscriber"));
        Self(LINES.lock().unwrap_or_else(PoisonError::into_inner).len())
    }

    /// Waits until one holds `part`.
    ///
    /// # Panics
    /// If none comes in time.
    pub fn wait_for(&self, part: &str) {
        wait_for(part, || {
            let lines = LINES.lock().unwrap_or_else(PoisonError::into_inner);
            lines[self.0..].iter().any(|line| line.contains(part))
        });
    }
}

struct Recorder;

impl Subscriber for Recorder {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        *metadata.level() <= tracing::Level::INFO
    }

    fn event(&self, event: &Event<'_>) {
        struct Message(String);
        impl Visit for Message {
            fn record_debug(&mut self, field: &Field, value: &dyn std::fmt::Debug) {
                if field.name() == "message" {
                    self.0 = format!("{value:?}");
                }
            }
        }
        let mut message = Message(String::new());
        event.record(&mut message);
        LINES.lock().unwrap_or_else(PoisonError::into_inner).push(message.0);
    }

    fn new_span(&self, _: &Attributes<'_>) -> Id {
        Id::from_u64(1)
    }

    fn record(&self, _: &Id, _: &Record<'_>) {}
    fn record_follows_from(&self, _: &Id, _: &Id) {}
    fn enter(&self, _: &Id) {}
    fn exit(&self, _: &Id) {}
}
