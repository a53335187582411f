//! Errors that the log tells of, by code: a line with `times` stands for so many.

use std::sync::atomic::{AtomicU64, Ordering};

use adit_model::codes;
use tracing::field::{Field, Visit};
use tracing::subscriber::Interest;
use tracing::{Event, Level, Metadata, Subscriber};
use tracing_subscriber::Layer;
use tracing_subscriber::filter::LevelFilter;
use tracing_subscriber::layer::{Context, Filter};

/// Errors since the start, in the order of [`codes::ALL`].
static COUNTS: [AtomicU64; codes::ALL.len()] = [const { AtomicU64::new(0) }; codes::ALL.len()];

/// The codes that have occurred, with the number of times.
pub(crate) fn all() -> Vec<(&'static str, u64)> {
    let counts = COUNTS.iter().map(|count| count.load(Ordering::Relaxed));
    codes::ALL
        .iter()
        .zip(counts)
        .map(|(code, count)| (code.id, count))
        .filter(|(_, count)| *count > 0)
        .collect()
}

/// Counts lines with a code, whether or not they are written.
pub(crate) struct ErrorCounts;

impl<S: Subscriber> Layer<S> for ErrorCounts {
    fn on_event(&self, event: &Event<'_>, _: Context<'_, S>) {
        let mut found = Found { place: None, times: 1 };
        event.record(&mut found);
        if let Some(place) = found.place {
            COUNTS[place].fetch_add(found.times.max(1), Ordering::Relaxed);
        }
    }
}

struct Found {
    /// The code, as a place in [`codes::ALL`].
    place: Option<usize>,
    times: u64,
}

impl Visit for Found {
    fn record_str(&mut self, field: &Field, value: &str) {
        if field.name() == "code" {
            self.place = codes::ALL.iter().position(|code| code.id == value);
        }
    }

    fn record_u64(&mut self, field: &Field, value: u64) {
        if field.name() == "times" {
            self.times = value;
        }
    }

    fn record_debug(&mut self, _: &Field, _: &dyn std::fmt::Debug) {}
}

/// Warnings and errors with a code.
pub(crate) struct Coded;

fn is_coded(meta: &Metadata<'_>) -> bool {
    *meta.level() <= Level::WARN && meta.target().starts_with("adit") && meta.fields().field("code").is_some()
}

impl<S> Filter<S> for Coded {
    fn enabled(&self, meta: &Metadata<'_>, _: &Context<'_, S>) -> bool {
        is_coded(meta)
    }

    fn callsite_enabled(&self, meta: &'static Metadata<'static>) -> Interest {
        if is_coded(meta) { Interest::always() } else { Interest::never() }
    }

    fn max_level_hint(&self) -> Option<LevelFilter> {
        Some(LevelFilter::WARN)
    }
}

#[cfg(test)]
mod tests {
    use tracing_subscriber::layer::SubscriberExt as _;

    use super::*;

    #[test]
    fn a_line_stands_for_as_many_errors_as_it_says() {
        let count =
            |code: &str| all().iter().find(|(known, _)| *known == code).map_or(0, |(_, count)| *count);
        let before = (count("ADIT-ACME-01"), count("ADIT-GRP-01"));
        tracing::subscriber::with_default(
            tracing_subscriber::registry().with(ErrorCounts.with_filter(Coded)),
            || {
                tracing::warn!(target: "adit::test", code = "ADIT-ACME-01", times = 7_u64, "x");
                tracing::error!(target: "adit::test", code = "ADIT-ACME-01", "x");
                tracing::info!(target: "adit::test", code = "ADIT-ACME-01", "works again");
                tracing::warn!(target: "adit::test", code = "ADIT-NOTHING-01", "x");
                tracing::warn!(target: "other", code = "ADIT-GRP-01", "x");
            },
        );
        assert_eq!((count("ADIT-ACME-01") - before.0, count("ADIT-GRP-01") - before.1), (8, 0));
    }
}
