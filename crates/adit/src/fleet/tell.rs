//! The fleet in the snapshot.

use std::sync::Arc;

use adit_core::{FleetStatus, PanelStatus};
use adit_fleet::journal::Book;
use adit_fleet::panel::{PanelReport, Shared};
use adit_net::rt;

use super::witness::Witnesses;

/// Tells what is known at any time.
pub(super) fn teller(
    shared: &Arc<Shared>,
    witnesses: &Arc<Witnesses>,
) -> impl Fn() -> FleetStatus + Send + Sync + 'static {
    let (shared, witnesses) = (shared.clone(), witnesses.clone());
    move || {
        // One lock at a time, and the journal's may be held while a disk is slow: panels are few.
        let reports = shared.reports().clone();
        let journal = shared.journal();
        let state = journal.state();
        FleetStatus {
            node: state.node.to_string(),
            boot: state.boot,
            panels: reports.iter().map(|(name, report)| panel(name, report, state.book(name))).collect(),
            store: None,
            skews: witnesses.skews(),
            periods_held: witnesses.is_held(),
        }
    }
}

fn panel(name: &str, report: &PanelReport, book: &Book) -> PanelStatus {
    let now = rt::unix_time();
    let confirmed = report.list.confirmed_at;
    let micros = |seconds: f64| u64::try_from(std::time::Duration::from_secs_f64(seconds).as_micros());
    PanelStatus {
        name: name.to_owned(),
        users: report.list.users.len() as u64,
        confirmed_unix_s: confirmed,
        age_s: (confirmed > 0).then(|| now.saturating_sub(confirmed)),
        waiting_since: report.waiting_since,
        unsent_bytes: book.unsent_bytes(),
        oldest_unsent_s: book.oldest_unsent().map_or(0, |at| now.saturating_sub(at)),
        in_doubt_bytes: book.in_doubt_bytes(),
        doubts: book.doubts.len() as u64,
        error: report.error.clone(),
        requests: report
            .requests
            .iter()
            .map(|((operation, result), count)| ((*operation).to_owned(), (*result).to_owned(), *count))
            .collect(),
        request_us: report
            .seconds
            .iter()
            .map(|(operation, seconds)| ((*operation).to_owned(), micros(*seconds).unwrap_or(u64::MAX)))
            .collect(),
    }
}
