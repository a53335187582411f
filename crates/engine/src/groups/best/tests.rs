//! The choice on a simulated clock.

use std::time::{Duration, Instant};

use adit_model::Check;
use adit_testkit::epoch;
use proptest::prelude::*;

use super::lane::{LEAST_TIMEOUT, MemberSwitch, TransportMembers};
use super::track::{CheckFailure, MemberHealth};

/// State of a simulated member at a time.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Does {
    /// It answers after so many milliseconds.
    Answer(u64),
    /// It takes connections and says nothing.
    Hang,
    /// Nobody listens there.
    Refuse,
}

use Does::{Answer, Hang, Refuse};

/// A group of simulated members, with an application that begins a connection every quarter of a second.
struct World {
    lane: TransportMembers,
    does: Vec<Does>,
    start: Instant,
    now: Instant,
    /// Checks under way: when they end, whose, and how.
    running: Vec<(Instant, usize, Result<Duration, CheckFailure>)>,
    changes: Vec<(Duration, MemberSwitch)>,
    checks: usize,
    signs: Vec<Instant>,
    /// The member whose next check gets lost.
    stray: Option<usize>,
}

const STEP: Duration = Duration::from_millis(250);

impl World {
    fn new(does: &[Does], weights: &[u8]) -> Self {
        let now = epoch();
        let mut lane = TransportMembers::new(weights.iter().copied(), &Check::default(), now);
        lane.start(None, now);
        let signs = vec![now; does.len()];
        let (running, changes) = (Vec::new(), Vec::new());
        Self { lane, does: does.to_vec(), start: now, now, running, changes, checks: 0, signs, stray: None }
    }

    fn begin_checks(&mut self) {
        while let Some((index, timeout)) = self.lane.poll_check(self.now) {
            self.checks += 1;
            let is_lost = self.stray == Some(index);
            self.stray.take_if(|_| is_lost);
            let (after, result) = match self.does[index] {
                _ if is_lost => (timeout, Err(CheckFailure::NoAnswer)),
                Answer(ms) if Duration::from_millis(ms) < timeout => {
                    let latency = Duration::from_millis(ms);
                    (latency, Ok(latency))
                }
                Answer(_) | Hang => (timeout, Err(CheckFailure::NoAnswer)),
                Refuse => (Duration::ZERO, Err(CheckFailure::NoConnection)),
            };
            self.running.push((self.now + after, index, result));
        }
    }

    fn end_checks(&mut self, until: Instant) {
        self.begin_checks();
        loop {
            let next =
                self.running.iter().map(|(at, ..)| *at).min().into_iter().chain(self.lane.next_at()).min();
            let Some(at) = next.filter(|at| *at <= until) else { break };
            self.now = self.now.max(at);
            while let Some(i) = self.running.iter().position(|(at, ..)| *at <= self.now) {
                let (_, index, result) = self.running.swap_remove(i);
                if result.is_ok() {
                    self.signs[index] = self.now;
                }
                if let Some(change) = self.lane.handle_check(index, result, self.now) {
                    self.changes.push((self.now - self.start, change));
                }
            }
            self.begin_checks();
        }
        self.now = until;
    }

    /// Lets time pass.
    fn run(&mut self, span: Duration) {
        let end = self.now + span;
        while self.now < end {
            if let Some(chosen) = self.lane.chosen()
                && self.now - self.signs[chosen] > Duration::from_secs(2)
            {
                self.lane.nudge(chosen, self.now);
            }
            self.end_checks((self.now + STEP).min(end));
        }
    }

    fn health(&self) -> Vec<Option<MemberHealth>> {
        self.lane.reports().map(|report| report.health).collect()
    }
}

fn seconds(s: u64) -> Duration {
    Duration::from_secs(s)
}

#[test]
fn the_first_look_finds_the_best() {
    for (does, weights, want) in [
        (vec![Answer(200), Answer(80), Answer(300)], vec![100, 100, 100], 1),
        (vec![Answer(80), Answer(60)], vec![100, 100], 0), // no more than the tolerance
        (vec![Answer(80), Answer(200)], vec![20, 100], 1), // 80 ms count as 400
        (vec![Answer(500), Answer(10)], vec![100, 0], 0),  // never
        (vec![Refuse, Answer(900)], vec![100, 100], 1),
        (vec![Hang, Answer(900)], vec![100, 100], 1),
        (vec![Refuse, Refuse], vec![50, 100], 1),
    ] {
        let mut world = World::new(&does, &weights);
        world.run(seconds(60));
        assert_eq!(world.lane.chosen(), Some(want), "{does:?} {weights:?}: {:?}", world.changes);
        assert!(world.changes.len() <= 1, "{does:?} {weights:?}: {:?}", world.changes);
    }
}

#[test]
fn nothing_to_choose() {
    for weights in [&[][..], &[0, 0]] {
        let mut world = World::new(&[Refuse, Refuse][..weights.len()], weights);
        world.run(seconds(60));
        assert_eq!((world.lane.chosen(), world.checks), (None, 0));
        assert!(world.lane.order().is_empty());
    }
}

#[test]
fn a_dead_server_is_left_within_five_seconds() {
    for latency in [5, 100, 400] {
        for death in [Hang, Refuse] {
            let mut world = World::new(&[Answer(latency), Answer(latency + 20)], &[100, 100]);
            world.run(seconds(47));
            assert_eq!((world.lane.chosen(), world.changes.len()), (Some(0), 0));
            world.does[0] = death;
            let died = world.now - world.start;
            world.run(seconds(60));
            assert_eq!(world.changes.len(), 1, "{latency} {death:?}: {:?}", world.changes);
            let (at, change) = &world.changes[0];
            let took = *at - died;
            assert!(took <= seconds(5), "{latency} {death:?}: {took:?}");
            assert_eq!((change.from, change.to), (Some(0), 1));
            assert!(change.why.contains("2 checks in a row"), "{}", change.why);
            assert_eq!(world.lane.order(), [1, 0]);
        }
    }
}

#[test]
fn with_all_dead_the_least_bad_is_kept_and_recovery_is_seen() {
    let mut world = World::new(&[Answer(50), Answer(60)], &[100, 100]);
    world.run(seconds(40));
    world.does = vec![Refuse, Hang];
    world.run(seconds(60));
    // One that can be connected to, at least.
    assert_eq!(world.lane.chosen(), Some(1), "{:?}", world.changes);
    assert_eq!(world.changes.len(), 1, "{:?}", world.changes);
    assert_eq!(world.health(), [Some(MemberHealth::Dead); 2]);
    world.does = vec![Refuse, Refuse];
    let checks = world.checks;
    world.run(seconds(120));
    // Both are as bad: no reason to move, and none to stop trying.
    assert_eq!((world.lane.chosen(), world.changes.len()), (Some(1), 1), "{:?}", world.changes);
    assert!(world.checks >= checks + 2 * 11);
    world.does[0] = Answer(50);
    world.run(seconds(11));
    assert_eq!(world.lane.chosen(), Some(0), "{:?}", world.changes);
}

#[test]
fn clients_without_a_connection_count_where_checks_fail_anyway() {
    let mut world = World::new(&[Hang, Hang], &[100, 100]);
    world.run(seconds(20));
    assert_eq!((world.lane.chosen(), world.changes.len()), (Some(0), 0));
    let change = world.lane.handle_refusal(0, world.now).unwrap();
    assert_eq!((change.from, change.to), (Some(0), 1));
    assert!(change.why.contains("cannot be connected to"), "{}", change.why);
    // Nor has one of which nothing is known much time.
    let mut lane = TransportMembers::new([100, 100], &Check::default(), epoch());
    lane.start(None, epoch());
    assert!(lane.poll_check(epoch()).is_some());
    assert_eq!(lane.handle_refusal(0, epoch()), None);
    assert_eq!(lane.handle_refusal(0, epoch()).map(|change| change.to), Some(1));
    // One that is alive is not left for that, but looked at.
    let mut world = World::new(&[Answer(50), Answer(60)], &[100, 100]);
    world.end_checks(epoch() + seconds(3));
    assert_eq!(world.lane.handle_refusal(0, world.now), None);
    assert_eq!(world.lane.next_at(), Some(world.now));
}

#[test]
fn a_reason_that_comes_during_a_check_is_not_lost() {
    let mut lane = TransportMembers::new([100], &Check::default(), epoch());
    lane.start(None, epoch());
    assert!(lane.poll_check(epoch()).is_some());
    let later = epoch() + seconds(3);
    assert!(!lane.nudge(0, later));
    lane.handle_check(0, Ok(seconds(3)), later);
    assert_eq!(lane.next_at(), Some(later));
}

#[test]
fn a_stray_failure_changes_nothing() {
    let mut world = World::new(&[Answer(50), Answer(60)], &[100, 100]);
    for _ in 0..5 {
        world.run(seconds(20));
        world.stray = Some(0);
    }
    world.run(seconds(5));
    assert_eq!(world.stray, None);
    assert!(world.lane.reports().next().is_some_and(|report| report.loss > 0));
    assert_eq!((world.lane.chosen(), &world.changes[..]), (Some(0), &[][..]));
}

#[test]
fn a_group_at_rest_is_checked_no_more_than_asked_for() {
    let now = epoch();
    let mut world = World::new(&[Answer(50), Answer(60)], &[100, 100]);
    world.end_checks(now + seconds(600));
    assert!((118..=124).contains(&world.checks), "{}", world.checks);
}

#[test]
fn many_members_are_checked_a_few_at_a_time() {
    let mut lane = TransportMembers::new(vec![100; 1000], &Check::default(), epoch());
    assert_eq!(lane.poll_check(epoch()), None, "not started");
    lane.start(None, epoch());
    let begun = std::iter::from_fn(|| lane.poll_check(epoch())).count();
    assert_eq!(begun, 16);
}

#[test]
fn other_members() {
    let mut world = World::new(&[Answer(50), Answer(200), Answer(210)], &[100; 3]);
    world.run(seconds(40));
    let now = world.now;
    // The choice stays under another number, with what is known of it.
    assert_eq!(world.lane.replace(&[(100, None), (100, Some(2)), (100, Some(0))], now), None);
    assert_eq!(world.lane.chosen(), Some(2));
    assert_eq!(
        world.health(),
        [Some(MemberHealth::Unknown), Some(MemberHealth::Alive), Some(MemberHealth::Alive)]
    );
    // It goes: the best of those that are known takes over.
    let change = world.lane.replace(&[(100, Some(0)), (100, Some(1))], now).unwrap();
    assert_eq!((change.from, change.to), (None, 1));
    assert!(change.why.contains("no longer listed"), "{}", change.why);
    // A check that was under way when its member went tells nothing.
    assert_eq!(world.lane.handle_check(7, Ok(seconds(1)), now), None);
    assert_eq!(world.lane.replace(&[], now), None);
    assert_eq!(world.lane.chosen(), None);
    let change = world.lane.replace(&[(100, None)], now).unwrap();
    assert_eq!((change.from, change.to), (None, 0));
}

#[test]
fn what_is_used_for_streams_is_the_first_guess_for_datagrams() {
    for (used, weights, want) in [(1, [100, 50], 1), (1, [100, 0], 0), (7, [100, 50], 0)] {
        let mut lane = TransportMembers::new(weights, &Check::default(), epoch());
        lane.start(Some(used), epoch());
        assert_eq!(lane.chosen(), Some(want), "{used} {weights:?}");
        lane.start(Some(0), epoch());
        assert_eq!(lane.chosen(), Some(want), "once");
    }
}

#[test]
fn slow_answers_of_the_one_in_use_are_not_waited_for() {
    let mut lane = TransportMembers::new([100, 100], &Check::default(), epoch());
    lane.start(None, epoch());
    let first: Vec<_> = std::iter::from_fn(|| lane.poll_check(epoch())).collect();
    assert_eq!(first, [(0, seconds(5)), (1, seconds(5))]);
    for index in 0..2 {
        lane.handle_check(index, Ok(Duration::from_millis(20)), epoch());
    }
    let later = epoch() + seconds(10);
    assert_eq!(lane.poll_check(later), Some((0, LEAST_TIMEOUT)));
    assert_eq!(lane.poll_check(later), Some((1, seconds(5))));
}

fn members() -> impl Strategy<Value = Vec<(u64, u8)>> {
    prop::collection::vec((10_u64..2000, prop::sample::select(vec![0_u8, 1, 50, 100])), 1..6)
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, cases: 64, ..ProptestConfig::default() })]

    /// Servers within 20 % of each other, whose latency wanders that far with each check.
    #[test]
    fn no_flapping(base in 20_u64..1000, wobble in prop::collection::vec(prop::collection::vec(0_u64..=20, 3), 240)) {
        let mut world = World::new(&[Answer(base); 3], &[100; 3]);
        for percents in wobble {
            for (does, percent) in world.does.iter_mut().zip(percents) {
                *does = Answer(base + base * percent / 100);
            }
            world.run(seconds(5));
        }
        let times: Vec<Duration> = world.changes.iter().map(|(at, _)| *at).collect();
        prop_assert!(times.windows(2).all(|pair| pair[1] - pair[0] >= seconds(30)), "{times:?}");
    }

    /// In every history the choice may be used, a living one is chosen if there is one that lives for long, and it
    /// is never left for a worse one.
    #[test]
    fn any_history(
        members in members(),
        history in prop::collection::vec((0_usize..6, 0_u8..4, 1_u64..40), 0..40),
    ) {
        let weights: Vec<u8> = members.iter().map(|(_, weight)| *weight).collect();
        let does: Vec<Does> = members.iter().map(|(ms, _)| Answer(*ms)).collect();
        let mut world = World::new(&does, &weights);
        for (index, what, span) in history {
            let index = index % members.len();
            world.does[index] = match what {
                0 => Hang,
                1 => Refuse,
                2 => Answer(members[index].0),
                _ => Answer(members[index].0 / 2 + 1),
            };
            world.run(seconds(span));
            match world.lane.chosen() {
                Some(chosen) => prop_assert!(weights[chosen] > 0),
                None => prop_assert!(weights.iter().all(|weight| *weight == 0)),
            }
        }
        for (_, change) in &world.changes {
            prop_assert_ne!(change.from, Some(change.to));
            prop_assert!(!change.why.is_empty());
        }
        world.run(seconds(200));
        let answers = |index: usize| matches!(world.does[index], Answer(ms) if ms < 1000);
        let usable = (0..members.len()).any(|index| weights[index] > 0 && answers(index));
        if let (true, Some(chosen)) = (usable, world.lane.chosen()) {
            prop_assert!(matches!(world.does[chosen], Answer(_)), "{:?} {:?}", world.does, world.changes);
        }
    }
}
