use std::cell::Cell;
use std::collections::VecDeque;
use std::net::IpAddr;
use std::rc::Rc;
use std::task::{Context, Poll, Waker};

use adit_net::rt;

use super::*;

/// Shares with so many free descriptors.
pub(super) fn shares(streams: usize, flows: usize, free: usize) -> Shares {
    Shares {
        descriptors: free,
        own: 0,
        streams,
        flows,
        unauthenticated: 4,
        unauthenticated_per_source: 4,
        memory: 1 << 30,
        memory_from: MemorySource::Machine,
        blocks: 1 << 20,
        rests: 1 << 20,
        carriers: 1 << 20,
    }
}

/// Remembers whether it was told to give way.
#[derive(Default)]
struct Witness {
    told: Cell<bool>,
    at: Cell<Tick>,
    pinned: usize,
}

impl Holder for Witness {
    fn active_at(&self) -> Tick {
        self.at.get()
    }

    fn pinned(&self) -> usize {
        self.pinned
    }

    fn give_way(&self) {
        self.told.set(true);
    }
}

fn ip(n: u8) -> IpAddr {
    IpAddr::from([10, 0, 0, n])
}

#[test]
fn tcp_and_udp_keep_what_the_other_cannot_take() {
    let budget = Budget::of(shares(80, 60, 100), 1);
    let places = Places::new(budget.clone(), 0);
    let flows: Vec<_> = std::iter::from_fn(|| places.flow()).collect();
    assert_eq!(flows.len(), 60, "40 are left for streams");
    assert_eq!(budget.take_refused_flows(), 1);
    let mut streams: Vec<_> = (0..40).map(|_| places.stream()).collect();
    assert_eq!(budget.descriptors.excess(), 0);
    streams.push(places.stream());
    assert_eq!(budget.descriptors.excess(), 1);
    drop(flows);
    streams.extend((0..39).map(|_| places.stream()));
    assert_eq!(budget.descriptors.excess(), 0);
    streams.push(places.stream());
    assert_eq!(budget.descriptors.excess(), 1, "20 are left for flows");
    streams.pop();
    let flows: Vec<_> = std::iter::from_fn(|| places.flow()).collect();
    assert_eq!(flows.len(), 20);
    drop(flows);
    drop(streams);
    let status = budget.status();
    assert_eq!(
        (status.streams, status.flows, status.descriptors_peak),
        (0, 0, 101),
        "streams are counted even where there is no room"
    );
}

#[test]
fn a_stream_too_many_makes_one_give_way_and_no_more() {
    let budget = Budget::of(shares(2, 1, 3), 1);
    let places = Rc::new(Places::new(budget.clone(), 0));
    let holders: [Rc<Witness>; 3] = std::array::from_fn(|_| Rc::default());
    let [first, second, third] = &holders;
    let slots = [places.stream(), places.stream()];
    let held = [
        places.enter(EvictionRank::Answered, ip(1), first.clone()),
        places.enter(EvictionRank::Unauthenticated, ip(2), second.clone()),
    ];
    let third_slot = places.stream();
    let third_held = places.enter(EvictionRank::Unauthenticated, ip(3), third.clone());
    let told = || holders.each_ref().map(|holder| holder.told.get());
    assert_eq!(told(), [false, true, false], "the oldest that has proven nothing");
    drop(slots);
    let _slots = [places.stream(), places.stream()];
    assert_eq!(told(), [false, true, false], "its end is still under way");
    drop(held);
    let _fourth = places.stream();
    assert_eq!(told(), [false, true, true]);
    drop((third_held, third_slot));
    assert_eq!(budget.status().evicted, 2);
    assert_eq!(budget.leaving(), 0);
}

#[test]
fn a_core_with_better_holders_asks_another_one() {
    let budget = Budget::of(shares(1, 1, 3), 2);
    let cores = [0, 1].map(|core| Rc::new(Places::new(budget.clone(), core)));
    let (here, there) = (Rc::<Witness>::default(), Rc::<Witness>::default());
    let _here = cores[0].enter(EvictionRank::Answered, ip(1), here.clone());
    let there_held = cores[1].enter(EvictionRank::Unauthenticated, ip(2), there.clone());
    let mut follow = Box::pin(cores[1].clone().follow());
    let cx = &mut Context::from_waker(Waker::noop());
    assert!(follow.as_mut().poll(cx).is_pending());
    let slots = [cores[0].stream(), cores[0].stream()];
    assert!(!here.told.get() && !there.told.get());
    assert!(follow.as_mut().poll(cx).is_pending());
    assert!(!here.told.get() && there.told.get());
    drop((there_held, slots));
    assert_eq!(budget.leaving(), 0);
    // Nobody is left there.
    let _slots = [cores[0].stream(), cores[0].stream()];
    assert!(here.told.get());
}

#[test]
fn of_two_cores_the_one_with_more_holders_makes_room() {
    let budget = Budget::of(shares(1, 1, 3), 2);
    let cores = [0, 1].map(|core| Rc::new(Places::new(budget.clone(), core)));
    let (here, there) = (Rc::<Witness>::default(), [(); 3].map(|()| Rc::<Witness>::default()));
    let _here = cores[0].enter(EvictionRank::Unauthenticated, ip(1), here.clone());
    let _there =
        there.each_ref().map(|one| cores[1].enter(EvictionRank::Unauthenticated, ip(2), one.clone()));
    let mut follow = Box::pin(cores[1].clone().follow());
    let cx = &mut Context::from_waker(Waker::noop());
    let slots = [cores[0].stream(), cores[0].stream()];
    assert!(follow.as_mut().poll(cx).is_pending());
    assert_eq!((here.told.get(), there[0].told.get()), (false, true));
    drop(slots);
    // Two there and one here: none has many more.
    let _slots = [cores[0].stream(), cores[0].stream(), cores[0].stream()];
    assert!(follow.as_mut().poll(cx).is_pending());
    assert_eq!((here.told.get(), there[1].told.get()), (true, false));
}

/// Whether a listener goes on at once.
fn goes_on(places: &Places) -> bool {
    rt::Cores::block_on(async {
        let mut room = std::pin::pin!(places.room());
        room.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_ready()
    })
    .unwrap()
}

#[test]
fn a_listener_pauses_when_all_places_have_changed_hands() {
    let places = Rc::new(Places::new(Budget::of(shares(100, 10, 110), 1), 0));
    let enter = || places.enter(EvictionRank::Unauthenticated, ip(1), Rc::<Witness>::default());
    let mut held: VecDeque<HeldPlace> = (0..4).map(|_| enter()).collect();
    for round in 0..3 {
        for _ in 0..4 {
            assert!(goes_on(&places), "{round}");
            places.evict_unauthenticated(None);
            held.pop_front();
            held.push_back(enter());
        }
        assert!(!goes_on(&places), "{round}");
    }
}

#[test]
fn waiting_for_room_ends_when_there_is_some() {
    let budget = Budget::of(shares(1, 1, 2), 1);
    let places = Places::new(budget.clone(), 0);
    let mut slots = vec![places.stream(), places.stream()];
    let woken = Arc::new(Flag::default());
    budget.descriptors.wait(&woken.clone().into());
    slots.push(places.stream());
    slots.pop();
    assert!(!woken.0.load(Ordering::Relaxed));
    slots.pop();
    assert!(woken.0.load(Ordering::Relaxed));
}

#[derive(Default)]
struct Flag(std::sync::atomic::AtomicBool);

impl std::task::Wake for Flag {
    fn wake(self: Arc<Self>) {
        self.0.store(true, Ordering::Relaxed);
    }
}

#[test]
fn readers_that_stand_still_give_their_memory_back() {
    let budget = Budget::of(shares(10, 10, 20), 1);
    let places = Rc::new(Places::new(budget, 0));
    let holder = |at, pinned| Rc::new(Witness { at: Cell::new(at), pinned, ..Witness::default() });
    let all = [holder(1, 0), holder(3, 100), holder(5, 100), holder(9, 100)];
    let held: Vec<_> =
        all.iter().map(|one| places.enter(EvictionRank::Answered, ip(1), one.clone())).collect();
    let told = || all.each_ref().map(|holder| holder.told.get());
    (0..10).for_each(|_| places.tick());
    places.free_memory(50, false);
    assert_eq!(told(), [false, true, false, false], "the longest still first, and no more than needed");
    places.free_memory(500, false);
    assert_eq!(told(), [false, true, true, false], "one that moves bytes is spared");
    places.free_memory(500, true);
    assert_eq!(told(), [false, true, true, true]);
    drop(held);
}

/// The accounts are right after connections and flows have come and gone in any order.
#[test]
fn random_comings_and_goings_leave_nothing_behind() {
    let budget = Budget::of(shares(40, 30, 50), 2);
    let cores = [0, 1].map(|core| Rc::new(Places::new(budget.clone(), core)));
    let mut follows = cores.clone().map(|core| Box::pin(core.follow()));
    let mut held: Vec<(StreamSlot, HeldPlace, Rc<Witness>)> = Vec::new();
    let mut flows = Vec::new();
    let cx = &mut Context::from_waker(Waker::noop());
    let mut random = OsRng;
    for _ in 0..20_000 {
        let core = &cores[random.below(2) as usize];
        match random.below(8) {
            0..=3 => {
                let slot = core.stream();
                let rank = [EvictionRank::Unauthenticated, EvictionRank::Unanswered, EvictionRank::Answered]
                    [random.below(3) as usize];
                let witness = Rc::<Witness>::default();
                let source = ip(u8::try_from(random.below(4)).unwrap());
                let place = core.enter(rank, source, witness.clone());
                held.push((slot, place, witness));
            }
            4 => flows.extend(core.flow()),
            5 => drop(flows.pop()),
            6 => {
                if !held.is_empty() {
                    let at = random.below(u32::try_from(held.len()).unwrap()) as usize;
                    held.swap_remove(at);
                }
            }
            _ => {
                // A core whose holders have left by itself asks the other one.
                for _ in 0..2 {
                    for follow in &mut follows {
                        assert_eq!(follow.as_mut().poll(cx), Poll::Pending);
                    }
                }
                // Those who have been told end.
                held.retain(|(_, _, witness)| !witness.told.get());
                assert_eq!(budget.leaving(), 0);
                assert_eq!(budget.descriptors.excess(), 0);
            }
        }
        let status = budget.status();
        assert!(status.flows <= 30);
        assert_eq!((status.streams, status.flows), (held.len(), flows.len()));
    }
    drop((held, flows));
    assert_eq!((budget.status().streams, budget.status().flows), (0, 0));
}

/// A prober that counts how many of its connections stay open learns a number of this process, and not of the program.
#[test]
fn the_limit_per_source_is_drawn_for_each_process() {
    let drawn = || Budget::new(&Limits::default(), 1).shares().unauthenticated_per_source;
    // Other limits come and go: the number that was drawn stays the start's.
    let own = Limits { unauthenticated: Some(8), unauthenticated_per_source: Some(3), ..Limits::default() };
    let budget = Budget::new(&own, 1);
    assert_eq!(budget.bounds(), [8, 3]);
    let [_, first] = budget.follow(&Limits::default());
    assert!((128..=512).contains(&first));
    assert_eq!(budget.follow(&own), [8, 3]);
    let shown = budget.status().shares;
    assert_eq!((shown.unauthenticated, shown.unauthenticated_per_source), (8, 3));
    assert_eq!(budget.follow(&Limits::default())[1], first);
    let all: std::collections::BTreeSet<usize> = (0..40).map(|_| drawn()).collect();
    assert!(all.len() > 1 && all.iter().all(|limit| (128..=512).contains(limit)), "{all:?}");
}
