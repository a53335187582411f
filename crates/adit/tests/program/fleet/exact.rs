//! Checks 1, 2, 4 and 11: panels and sums, with 200 users, faults by the hundred, an absence of ten minutes, and a panel that
//! comes back from an old backup.

use std::io::Read as _;
use std::net::TcpStream;
use std::thread;
use std::time::{Duration, Instant};

use super::rig::{Bytes, Fate, Fleet, Kind, Plan, Random, Traffic, User, meter, moves, sum, users};
use super::support::{Redis, wait_for};

const USERS: usize = 200;
/// Pushes with a fate, and how many of these are refused, late and reset: 10, 10 and 5 %.
const PUSHES: usize = 120;
const REFUSED: usize = 12;
const LATE: usize = 12;
const RESET: usize = 6;

/// Check 1: the panel, the store and the generator have the same bytes, user by user.
#[test]
#[ignore = "needs redis-server and a minute"]
fn panel_store_and_generator_have_the_same_sums() {
    let redis = Redis::start();
    let head = format!("[store]\nurl = \"{}\"\nfleet = \"test\"\nevery = \"1s\"\n", redis.url());
    let fleet = Fleet::start(Plan {
        kind: Kind::Hooks,
        nodes: 3,
        users: users(0..USERS),
        driven: USERS,
        head: &head,
        keys: "pull = \"2s\"\npush = \"2s\"",
    });
    let mut traffic = Traffic::start(&fleet, 6);
    // Traffic of a minute.
    thread::sleep(Duration::from_secs(60));
    let truth = traffic.stop();
    let store = || -> Vec<u64> {
        let totals = redis.totals();
        (0..USERS).map(|user| totals.get(&format!("home/{user}")).copied().unwrap_or(0)).collect()
    };
    let both: Vec<u64> = truth.iter().map(|[up, down]| up + down).collect();
    wait_for("the panel has every byte, up and down apart", || fleet.panel.sums(USERS) == truth);
    wait_for("the store has every byte", || store() == both);
    // More than two pushes: nothing more comes.
    thread::sleep(Duration::from_secs(5));
    assert_eq!(fleet.panel.sums(USERS), truth, "and no more");
    assert_eq!(store(), both, "and no more");
    assert!(truth.iter().flatten().all(|bytes| *bytes > 0), "everybody was there");
    let pushes = fleet.panel.state().requests["usage"];
    println!(
        "{} bytes of {USERS} users over 3 nodes: the same at panel ({pushes} pushes) and store",
        sum(&truth)
    );
}

/// Check 2: a tenth of the pushes is refused, a tenth is answered too late, and a twentieth is reset.
#[test]
#[ignore = "takes four minutes"]
fn a_quarter_of_all_pushes_goes_wrong_and_no_byte_counts_twice() {
    let fleet = Fleet::start(Plan {
        kind: Kind::UniProxy,
        nodes: 3,
        users: users(0..USERS),
        driven: USERS,
        head: "",
        keys: "pull = \"10s\"\npush = \"1s\"",
    });
    let mut fates = vec![Fate::Done; PUSHES - REFUSED - LATE - RESET];
    fates.extend([Fate::Refused; REFUSED].into_iter().chain([Fate::Late; LATE]));
    fates.extend([[Fate::ResetDone; RESET / 2], [Fate::ResetLost; RESET / 2]].concat());
    let mut random = Random(1);
    (1..fates.len()).rev().for_each(|at| fates.swap(at, random.below(at + 1)));
    fleet.panel.state().fates = fates;
    let mut traffic = Traffic::start(&fleet, 3);
    let until = Instant::now() + Duration::from_secs(540);
    while !fleet.panel.state().fates.is_empty() {
        let told = fleet.panel.sums(USERS);
        let is_more = |(told, truth): (&Bytes, &Bytes)| told[0] > truth[0] || told[1] > truth[1];
        assert!(!told.iter().zip(&traffic.truth()).any(is_more), "never above the truth");
        assert!(Instant::now() < until, "{} pushes are left", fleet.panel.state().fates.len());
        thread::sleep(Duration::from_millis(500));
    }
    let truth = traffic.stop();
    let all = |name: &str| fleet.sites.iter().map(|site| site.number(name)).sum::<u64>();
    let doubtful = || fleet.panel.state().doubtful.clone();
    let bytes_of = |is_done: bool| -> u64 {
        doubtful().iter().filter(|(_, _, done)| *done == is_done).flat_map(|(_, bytes, _)| *bytes).sum()
    };
    // In doubt are the pushes without an answer, whether they were done or not; all others have arrived.
    wait_for("all is told or in doubt", || {
        let told = sum(&fleet.panel.sums(USERS));
        all("unsent_bytes") == 0
            && told + bytes_of(false) == sum(&truth)
            && all("in_doubt_bytes") == bytes_of(true) + bytes_of(false)
    });
    println!(
        "{} bytes, {} of them in doubt, {} of these lost",
        sum(&truth),
        all("in_doubt_bytes"),
        bytes_of(false)
    );
    let mut lost: Vec<(String, Bytes)> = doubtful()
        .into_iter()
        .filter(|(_, _, is_done)| !is_done)
        .map(|(node, bytes, _)| (node, bytes))
        .collect();
    let mut doubts = 0;
    for (n, site) in fleet.sites.iter().enumerate() {
        for doubt in site.run(&["panel", "doubt", "--json"]).as_array().unwrap() {
            doubts += 1;
            let bytes = ["up_bytes", "down_bytes"].map(|name| doubt[name].as_u64().unwrap());
            let found = lost.iter().position(|(node, of)| *node == (n + 1).to_string() && *of == bytes);
            let how = if found.is_some() { "--resend" } else { "--drop" };
            found.map(|at| lost.remove(at));
            site.run(&["panel", "doubt", "home", &doubt["seq"].to_string(), how]);
        }
    }
    assert_eq!((doubts, lost.len()), (LATE + RESET, 0), "each push without an answer is one in doubt");
    wait_for("the panel has every byte once", || fleet.panel.sums(USERS) == truth);
    // Nothing more comes.
    thread::sleep(Duration::from_secs(3));
    assert_eq!(fleet.panel.sums(USERS), truth);
    assert_eq!(all("in_doubt_bytes"), 0);
}

fn is_open(stream: &mut TcpStream, truth: &mut Bytes) -> bool {
    let is_open = moves(stream, [30, 20]);
    *truth = [truth[0] + 30, truth[1] + 20];
    is_open
}

/// Check 4: the panel is away for ten minutes from the start of the node.
#[test]
#[ignore = "takes eleven minutes"]
fn ten_minutes_without_the_panel_from_the_start() {
    const AWAY: Duration = Duration::from_secs(600);
    const PULL: Duration = Duration::from_secs(10);
    let mut fleet = Fleet::start(Plan {
        kind: Kind::UniProxy,
        nodes: 1,
        users: users(0..3),
        driven: 3,
        head: "",
        keys: "pull = \"10s\"\npush = \"10s\"",
    });
    let (target, mut truth) = (meter(), vec![[0; 2]; 3]);
    for (user, truth) in truth.iter_mut().enumerate() {
        assert!(is_open(&mut fleet.connect(0, user, target), truth));
    }
    wait_for("the first bytes", || fleet.panel.sums(3) == truth);
    fleet.sites[0].end("KILL");
    fleet.panel.set_away(true);
    fleet.panel.list(users(0..2));
    let since = Instant::now();
    fleet.sites[0].start();
    fleet.sites[0].listens();
    let mut held: Vec<TcpStream> = (0..3).map(|user| fleet.connect(0, user, target)).collect();
    while since.elapsed() < AWAY {
        for (user, stream) in held.iter_mut().enumerate() {
            assert!(is_open(stream, &mut truth[user]), "its copy serves");
            assert!(is_open(&mut fleet.connect(0, user, target), &mut truth[user]), "new connections too");
        }
        thread::sleep(Duration::from_secs(1));
    }
    let panel = fleet.sites[0].panel();
    assert!(panel["age_s"].as_u64().unwrap() >= AWAY.as_secs() && panel["error"].is_string(), "{panel}");
    assert!(panel["unsent_bytes"].as_u64().unwrap() > 0 && panel["in_doubt_bytes"] == 0, "{panel}");
    fleet.panel.set_away(false);
    let since = Instant::now();
    held[2].set_read_timeout(Some(2 * PULL)).unwrap();
    assert!(matches!(held[2].read(&mut [0]), Ok(0)) || since.elapsed() < 2 * PULL, "the deleted user goes");
    println!("the deleted user is gone {:?} after the panel's return", since.elapsed());
    assert!(since.elapsed() < PULL.mul_f64(1.1) + Duration::from_secs(2), "{:?}", since.elapsed());
    assert!((0..2).all(|user| is_open(&mut held[user], &mut truth[user])), "the others stay");
    wait_for("every byte has arrived", || fleet.panel.sums(3) == truth);
    // Nothing more comes.
    thread::sleep(PULL + PULL);
    assert_eq!(fleet.panel.sums(3), truth, "once");
    assert_eq!(fleet.sites[0].number("in_doubt_bytes"), 0);
}

/// Check 11: a panel is restored from an old backup; then it lists less than half of the users, then nobody.
#[test]
#[ignore = "takes two minutes"]
fn a_panel_from_an_old_backup_cuts_no_listed_user() {
    let fast = |id: usize| User { id, mbit: None };
    let slow = |id: usize| User { id, mbit: Some(8) };
    let backup: Vec<User> = (0..100).map(|id| if id == 3 { slow(id) } else { fast(id) }).collect();
    let fleet = Fleet::start(Plan {
        kind: Kind::UniProxy,
        nodes: 1,
        users: users(0..110),
        driven: 110,
        head: "",
        keys: "pull = \"2s\"\npush = \"1s\"",
    });
    let (site, target, mut truth) = (&fleet.sites[0], meter(), vec![[0; 2]; 110]);
    let mut held: Vec<TcpStream> = (0..110).map(|user| fleet.connect(0, user, target)).collect();
    let pass = |held: &mut [TcpStream], truth: &mut [Bytes], users: std::ops::Range<usize>| {
        users.into_iter().all(|user| is_open(&mut held[user], &mut truth[user]))
    };
    assert!(pass(&mut held, &mut truth, 0..110));
    // Without a limit, 4 MB take no time.
    let quick = Instant::now();
    assert!(moves(&mut held[3], [8, 4_000_000]));
    truth[3] = [truth[3][0] + 8, truth[3][1] + 4_000_000];
    let quick = quick.elapsed();
    wait_for("the panel has every byte", || fleet.panel.sums(110) == truth);
    // The backup is of before the first push, without the last ten users and with another limit.
    fleet.panel.list(backup.clone());
    fleet.panel.state().taken.clear();
    held[105].set_read_timeout(Some(Duration::from_secs(10))).unwrap();
    assert!(!matches!(held[105].read(&mut [0]), Ok(1..)), "a user that it does not list goes");
    for _ in 0..20 {
        assert!(pass(&mut held, &mut truth, 0..100), "no connection of a listed user is cut");
        thread::sleep(Duration::from_millis(200));
    }
    let since = Instant::now();
    assert!(moves(&mut held[3], [8, 4_000_000]));
    truth[3] = [truth[3][0] + 8, truth[3][1] + 4_000_000];
    println!("4 MB: {quick:?} before, {:?} with the backup's 8 Mbit/s", since.elapsed());
    assert!(since.elapsed() > Duration::from_secs(2) && quick < Duration::from_secs(2), "the limit is back");
    // The panel has the bytes of since then alone; a replay tells it those of before.
    wait_for("new bytes are told", || site.number("unsent_bytes") == 0 && fleet.panel.sums(110)[0][0] > 0);
    assert!(sum(&fleet.panel.sums(110)) < sum(&truth));
    // The replay begins in another second than the last push.
    thread::sleep(Duration::from_secs(3));
    // The replay repeats all lines of the time that it is given: the panel starts from its backup.
    fleet.panel.state().taken.clear();
    site.run(&["panel", "replay", "home", "--since", "1h"]);
    wait_for("the replay", || fleet.panel.sums(110) == truth);
    // Less than half of the users: that waits, and is applied a minute later.
    let waits = || site.panel()["waiting_since"].as_u64().is_some();
    fleet.panel.list(backup[..40].to_vec());
    let since = Instant::now();
    wait_for("a halved list waits", waits);
    while since.elapsed() < Duration::from_secs(55) {
        assert!(pass(&mut held, &mut truth, 0..100), "nobody is cut meanwhile");
        thread::sleep(Duration::from_millis(500));
    }
    held[50].set_read_timeout(Some(Duration::from_secs(30))).unwrap();
    assert!(!matches!(held[50].read(&mut [0]), Ok(1..)), "the second list counts");
    println!("the halved list is applied after {:?}", since.elapsed());
    assert!(pass(&mut held, &mut truth, 0..40), "those that it lists stay");
    // Nobody at all: that waits too, and a good list ends the wait.
    fleet.panel.list(Vec::new());
    wait_for("an empty list waits", waits);
    for _ in 0..10 {
        assert!(pass(&mut held, &mut truth, 0..40));
        thread::sleep(Duration::from_millis(500));
    }
    fleet.panel.list(backup);
    wait_for("the wait is over", || !waits());
    assert!(pass(&mut held, &mut truth, 0..40));
}
