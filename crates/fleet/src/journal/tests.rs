use std::fs;
use std::path::PathBuf;

use super::file::testing::{emit_all, parse_all};
use super::*;

const PANEL: &str = "home";
const NOW: u64 = 1_795_392_000;

struct Folder(PathBuf);

impl Folder {
    fn new(name: &str) -> Self {
        let path = std::env::temp_dir().join(format!("adit-fleet-{name}-{}", std::process::id()));
        drop(fs::remove_dir_all(&path));
        fs::create_dir_all(&path).unwrap();
        Self(path)
    }

    fn file(&self, name: &str) -> PathBuf {
        self.0.join(name)
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        drop(fs::remove_dir_all(&self.0));
    }
}

fn rows(all: &[(&str, u64, u64)]) -> Rows {
    all.iter().map(|(id, up, down)| ((*id).into(), [*up, *down])).collect()
}

/// Opens a journal. Another test that starts a process holds the lock as well, from its fork to its exec.
fn open(path: &std::path::Path) -> Opened {
    for _ in 0..1000 {
        match Journal::open(path, || "new".into()) {
            Err(JournalError::Busy { .. }) => std::thread::sleep(std::time::Duration::from_millis(5)),
            opened => return opened.unwrap(),
        }
    }
    panic!("the journal stays busy");
}

fn panel() -> Box<str> {
    PANEL.into()
}

fn sealed(state: &State, totals: &Rows) -> JournalEvent {
    state.book(PANEL).seal(PANEL, totals, 1, NOW, false).unwrap()
}

/// Bytes that the journal holds: those that the panel may be missing, and those that it has.
fn held(state: &State) -> u64 {
    let book = state.book(PANEL);
    book.unsent_bytes() + book.in_doubt_bytes() + sum(&book.recent)
}

const VERDICTS: [Verdict; 6] =
    [Verdict::Done, Verdict::InDoubt, Verdict::NotApplied, Verdict::TooLong, Verdict::Done, Verdict::InDoubt];

/// A life with every kind of event, and what each step leaves behind.
fn life() -> Vec<JournalEvent> {
    let image = State { node: "ab".into(), ..State::default() };
    let mut state = image.clone();
    let mut events = vec![JournalEvent::Image(Box::new(image))];
    let push = |events: &mut Vec<JournalEvent>, state: &mut State, event: JournalEvent| {
        state.apply(&event);
        events.push(event);
    };
    push(&mut events, &mut state, JournalEvent::Started);
    push(&mut events, &mut state, JournalEvent::Baseline { panel: panel(), totals: rows(&[("1", 5, 5)]) });
    for (round, verdict) in (1..=6_u64).zip(VERDICTS) {
        let totals = rows(&[("1", 5 + round * 10, 5 + round), ("2", round, 0), ("3", 0, round * 7)]);
        let seal = sealed(&state, &totals);
        push(&mut events, &mut state, seal);
        push(&mut events, &mut state, JournalEvent::Batched { panel: panel(), at: NOW, most: 2 });
        push(&mut events, &mut state, JournalEvent::Sent { panel: panel() });
        push(&mut events, &mut state, JournalEvent::Judged { panel: panel(), at: NOW, verdict });
    }
    push(
        &mut events,
        &mut state,
        JournalEvent::Settled { panel: panel(), seq: 2, at: NOW, how: Decision::Resend },
    );
    push(&mut events, &mut state, JournalEvent::Forgotten { panel: panel(), users: vec!["2".into()] });
    events
}

#[test]
fn a_kill_at_any_byte_leaves_a_state_that_was() {
    let events = life();
    let bytes = emit_all(&events);
    let mut states = Vec::new();
    let mut state = State::default();
    for event in &events {
        state.apply(event);
        states.push(state.clone());
    }
    for len in 0..=bytes.len() {
        match parse_all(&bytes[..len]) {
            None => assert!(len < emit_all(&events[..1]).len(), "{len} bytes hold the image"),
            Some((state, whole, total)) => {
                assert!(states.contains(&state), "{len}");
                assert!(whole <= total && total == len as u64);
            }
        }
    }
    // And with a bit that is wrong: entries before it stay.
    for at in 16..bytes.len() {
        let mut wrong = bytes.clone();
        wrong[at] ^= 0x10;
        if let Some((state, ..)) = parse_all(&wrong) {
            assert!(states.contains(&state), "byte {at}");
        }
    }
}

/// The process is killed at every byte of every write, starts again, and goes on: the journal never holds a byte twice,
/// and none is missing of those that were sealed.
#[test]
fn bytes_are_held_once_any_is_cut() {
    let folder = Folder::new("cut");
    let path = folder.file("j");
    let events = life();
    let bytes = emit_all(&events);
    let mut ends = Vec::new();
    for count in 1..=events.len() {
        ends.push(emit_all(&events[..count]).len());
    }
    let totals = rows(&[("1", 65, 11), ("2", 6, 0), ("3", 0, 42)]);
    let step = if cfg!(debug_assertions) { 41 } else { 1 };
    for len in (ends[2]..=bytes.len()).step_by(step).chain(ends[2..].iter().copied()) {
        fs::write(&path, &bytes[..len]).unwrap();
        let Opened { mut journal, is_new, .. } = open(&path);
        assert!(!is_new);
        let state = journal.state().clone();
        assert!(state.book(PANEL).batch.as_ref().is_none_or(|batch| !batch.sent), "it is in doubt");
        if let Some(event) = state.book(PANEL).seal(PANEL, &totals, 1, NOW, false) {
            journal.commit(event).unwrap();
        }
        // Up to the last step the user 2 is not forgotten.
        let forgotten =
            if state.book(PANEL).marks.contains_key("2") || len < ends[ends.len() - 1] { 0 } else { 6 };
        assert_eq!(held(journal.state()), 60 + 6 + 6 + 42 + forgotten, "cut at {len}");
        drop(journal);
        let again = open(&path);
        assert_eq!(held(again.journal.state()), 60 + 6 + 6 + 42 + forgotten);
        assert_eq!(again.cut, 0, "the cut entry is gone");
    }
}

#[test]
fn a_record_that_began_anew_counts_from_there() {
    let mut state = State::default();
    state.apply(&JournalEvent::Baseline { panel: panel(), totals: Rows::new() });
    let event = sealed(&state, &rows(&[("1", 100, 0)]));
    state.apply(&event);
    let event = sealed(&state, &rows(&[("1", 30, 0)]));
    state.apply(&event);
    assert_eq!(state.book(PANEL).unsent_bytes(), 100);
    let event = sealed(&state, &rows(&[("1", 50, 1)]));
    state.apply(&event);
    assert_eq!(state.book(PANEL).unsent_bytes(), 121);
}

#[test]
fn few_bytes_wait_for_more() {
    let book = Book::default();
    assert_eq!(book.seal(PANEL, &rows(&[("1", 5, 4)]), 10, NOW, false), None);
    assert!(book.seal(PANEL, &rows(&[("1", 5, 5)]), 10, NOW, false).is_some());
}

#[test]
fn batches_have_a_thousand_users_at_most_and_too_long_ones_are_halved() {
    let mut state = State::default();
    state.apply(&JournalEvent::Baseline { panel: panel(), totals: Rows::new() });
    let many: Rows = (0..2500).map(|n| (n.to_string().into(), [1, 0])).collect();
    let event = sealed(&state, &many);
    state.apply(&event);
    let batch = JournalEvent::Batched { panel: panel(), at: NOW, most: usize::MAX };
    state.apply(&batch);
    assert_eq!(state.book(PANEL).batch.as_ref().unwrap().rows.len(), MOST_ROWS);
    state.apply(&JournalEvent::Judged { panel: panel(), at: NOW, verdict: Verdict::TooLong });
    assert_eq!(state.book(PANEL).batch.as_ref().unwrap().rows.len(), 500);
    assert_eq!(state.book(PANEL).unsent_bytes(), 2500);
    let mut batches = 0;
    while state.book(PANEL).unsent_bytes() > 0 {
        state.apply(&batch);
        state.apply(&JournalEvent::Judged { panel: panel(), at: NOW, verdict: Verdict::Done });
        batches += 1;
    }
    assert_eq!((batches, sum(&state.book(PANEL).recent)), (3, 2500));
}

#[test]
fn the_file_stays_short_and_one_process_has_it() {
    let folder = Folder::new("short");
    let path = folder.file("j");
    let Opened { mut journal, is_new, .. } = Journal::open(&path, || "n".into()).unwrap();
    assert!(is_new && matches!(Journal::open(&path, || "m".into()), Err(JournalError::Busy { .. })));
    journal.commit(JournalEvent::Baseline { panel: panel(), totals: Rows::new() }).unwrap();
    let mut totals = Rows::new();
    for round in 0..60_u64 {
        totals.extend((0..1000).map(|n: u64| (n.to_string().into(), [round * 2 + 1, n])));
        let seal = sealed(journal.state(), &totals);
        journal.commit(seal).unwrap();
        journal.commit(JournalEvent::Batched { panel: panel(), at: NOW, most: 1000 }).unwrap();
        journal.commit(JournalEvent::Sent { panel: panel() }).unwrap();
        journal.commit(JournalEvent::Judged { panel: panel(), at: NOW, verdict: Verdict::Done }).unwrap();
    }
    let len = fs::metadata(&path).unwrap().len();
    assert!(len < 2 << 20, "{len}");
    let state = journal.state().clone();
    drop(journal);
    let again = Journal::open(&path, || "m".into()).unwrap().journal;
    assert_eq!((again.state().boot, &*again.state().node), (2, "n"));
    assert_eq!(State { boot: 1, ..again.state().clone() }, state);
}

#[test]
fn a_file_of_something_else_is_kept_aside() {
    let folder = Folder::new("aside");
    let path = folder.file("j");
    fs::write(&path, "something else").unwrap();
    assert!(Journal::open(&path, || "n".into()).unwrap().is_new);
    assert_eq!(fs::read(folder.file("j.damaged")).unwrap(), b"something else");
}

#[test]
fn an_archive_counts_a_bucket_once_and_forgets_old_ones() {
    let folder = Folder::new("archive");
    let archive = Archive::new(folder.file("a"));
    assert!(archive.since(PANEL, 0).unwrap().is_empty());
    archive.add(PANEL, NOW, &rows(&[("1", 1, 2)])).unwrap();
    archive.add(PANEL, NOW, &rows(&[("1", 1, 2)])).unwrap();
    archive.add("other", NOW, &rows(&[("1", 100, 0)])).unwrap();
    archive.add(PANEL, NOW + BUCKET_S, &rows(&[("1", 10, 0), ("2", 1, 1)])).unwrap();
    fs::write(folder.file("a"), [fs::read(folder.file("a")).unwrap(), b"{\"panel\":\"ho".to_vec()].concat())
        .unwrap();
    assert_eq!(archive.since(PANEL, NOW).unwrap(), rows(&[("1", 11, 2), ("2", 1, 1)]));
    assert_eq!(archive.since(PANEL, NOW + 1).unwrap(), rows(&[("1", 10, 0), ("2", 1, 1)]));
    archive.trim(NOW + KEPT_DAYS * 86_400 + 1).unwrap();
    assert_eq!(archive.since(PANEL, 0).unwrap(), rows(&[("1", 10, 0), ("2", 1, 1)]));
}
