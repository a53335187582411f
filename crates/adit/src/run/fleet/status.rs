//! The fleet in the snapshot.

use std::sync::Arc;

use adit_engine::{Distribution, FleetStatus, PanelStatus, ReplayStatus, StoreStatus};
use adit_fleet::Times;
use adit_fleet::journal::Book;
use adit_fleet::panel::{PanelReport, Shared};
use adit_fleet::store::{GroupCounts, ReplayReport, StoreReport, StoreShared};
use adit_model::map::Map;
use adit_net::rt;

use super::clock_check::Witnesses;

/// Tells what is known at any time.
pub(super) fn teller(
    shared: &Arc<Shared>,
    witnesses: &Arc<Witnesses>,
    store: &Arc<StoreShared>,
) -> impl Fn() -> FleetStatus + Send + Sync + 'static {
    let (shared, witnesses, of_store) = (shared.clone(), witnesses.clone(), store.clone());
    move || {
        // One lock at a time, and the journal's may be held while a disk is slow: panels are few.
        let reports = shared.reports().clone();
        let report = of_store.report().clone();
        let has_store = !report.calls.is_empty() || report.away_since.is_some();
        let journal = shared.journal();
        let state = journal.state();
        FleetStatus {
            node: state.node.to_string(),
            boot: state.boot,
            panels: reports.iter().map(|(name, report)| panel(name, report, state.book(name))).collect(),
            store: has_store.then(|| store_of(&report)),
            skews: witnesses.skews(),
            periods_held: witnesses.is_held(),
        }
    }
}

fn store_of(report: &StoreReport) -> StoreStatus {
    let scope = match (report.away_since, report.is_clone) {
        (_, true) => "local".to_owned(),
        (Some(since), false) => format!("local since {since}"),
        (None, false) => "global".to_owned(),
    };
    let of_replay =
        report.replay.as_ref().map(|replay| ("replay".to_owned(), replay_scope(report.away_since, replay)));
    let scopes = [("quota".into(), scope.clone()), ("addresses".into(), scope)];
    let scopes = scopes.into_iter().chain(of_replay).collect();
    let now = rt::unix_time();
    let confirmed = report.list.as_ref().map(|list| list.confirmed_at).filter(|at| *at > 0);
    StoreStatus {
        users: report.list.as_ref().map(|list| list.users.len() as u64),
        users_age_s: confirmed.map(|at| now.saturating_sub(at)),
        users_wait_since: report.list_waits_since,
        sync_age_s: report.synced_at.map(|at| rt::now().saturating_duration_since(at).as_secs()),
        scopes,
        replay: report.replay.as_ref().map(replay),
        calls: report
            .calls
            .iter()
            .map(|((operation, result), count)| ((*operation).to_owned(), (*result).to_owned(), *count))
            .collect(),
        call_times: distributions(&report.times),
        resyncs: report.resyncs,
        error: report
            .error
            .clone()
            .or_else(|| report.replay.as_ref().and_then(|replay| replay.refused.clone())),
    }
}

/// The scope in which a salt is accepted once.
fn replay_scope(away_since: Option<u64>, replay: &ReplayReport) -> String {
    match (away_since, &replay.refused) {
        (Some(since), _) => format!("local since {since}"),
        (None, None) if replay.is_whole => "global".to_owned(),
        (None, _) => "local".to_owned(),
    }
}

fn replay(report: &ReplayReport) -> ReplayStatus {
    let GroupCounts { queued, dropped, refused } = report.counts;
    ReplayStatus {
        group: report.group.clone(),
        told: report.told,
        learned: report.learned,
        nodes: report.nodes,
        counts: adit_engine::GroupCounts { queued, dropped, refused },
    }
}

/// Times by operation and result.
fn distributions(times: &Map<(&'static str, &'static str), Times>) -> Vec<(String, String, Distribution)> {
    let of = |times: &Times| Distribution {
        ends: Times::ENDS_US.to_vec(),
        counts: times.counts().to_vec(),
        sum: times.sum_us(),
    };
    let all = times.iter();
    all.map(|((operation, result), times)| ((*operation).to_owned(), (*result).to_owned(), of(times)))
        .collect()
}

fn panel(name: &str, report: &PanelReport, book: &Book) -> PanelStatus {
    let now = rt::unix_time();
    let confirmed = report.list.confirmed_at;
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
        request_times: distributions(&report.times),
    }
}
