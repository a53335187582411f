//! Groups whose members are chosen, over loopback: members are SOCKS5 proxies whose answers the tests script.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, mpsc};
use std::thread;
use std::time::{Duration, Instant};

use adit_engine::{DelayError, ProxyView, Running, SelectError, start};
use adit_model::map::Map;
use adit_model::{
    Balance, Choice, Config, DelayTest, Inbound, InboundProtocol, Limits, Outbound, OutboundProtocol, Policy,
    ProxyClient, ProxyKind, Refusal, Tag, Transports,
};
use adit_testkit::unused_addr;

use crate::common::{inbound, loopback, outbound};

const PATIENCE: Duration = Duration::from_secs(120);
const PAGE: &str = "http://page.example/";

/// A SOCKS5 proxy that is target and page at once: it answers HEAD with a status, and all else with its name.
#[derive(Default)]
struct Fake {
    delay_ms: AtomicU64,
    status: AtomicU64,
    is_dead: AtomicBool,
    heads: AtomicUsize,
    open: AtomicUsize,
    most: AtomicUsize,
}

impl Fake {
    fn start(name: &'static str) -> (Arc<Self>, SocketAddr) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let at = listener.local_addr().unwrap();
        let fake = Arc::new(Self { status: AtomicU64::new(204), ..Self::default() });
        let shared = fake.clone();
        thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let fake = shared.clone();
                thread::spawn(move || fake.serve(stream, name).ok());
            }
        });
        (fake, at)
    }

    fn serve(&self, mut stream: TcpStream, name: &str) -> std::io::Result<()> {
        if self.is_dead.load(Ordering::SeqCst) {
            return Ok(());
        }
        let mut bytes = [0; 512];
        stream.read_exact(&mut bytes[..3])?;
        stream.write_all(&[5, 0])?;
        let len = stream.read(&mut bytes)?;
        assert!(len > 4 && bytes[1] == 1, "a request");
        stream.write_all(&[5, 0, 0, 1, 127, 0, 0, 1, 0, 1])?;
        loop {
            let len = stream.read(&mut bytes)?;
            if len == 0 {
                return Ok(());
            }
            if bytes.starts_with(b"HEAD ") {
                self.heads.fetch_add(1, Ordering::SeqCst);
                let open = self.open.fetch_add(1, Ordering::SeqCst) + 1;
                self.most.fetch_max(open, Ordering::SeqCst);
                thread::sleep(Duration::from_millis(self.delay_ms.load(Ordering::SeqCst)));
                self.open.fetch_sub(1, Ordering::SeqCst);
                let status = self.status.load(Ordering::SeqCst);
                stream.write_all(format!("HTTP/1.1 {status} X\r\nContent-Length: 0\r\n\r\n").as_bytes())?;
            } else {
                stream.write_all(name.as_bytes())?;
            }
        }
    }
}

fn proxy(name: &str, server: SocketAddr) -> Outbound {
    let kind = ProxyKind::Socks5 { udp: false };
    let client = ProxyClient { server: server.into(), kind, credentials: None, tls: None };
    outbound(name, OutboundProtocol::Proxy(client))
}

/// No tests by time.
fn test() -> DelayTest {
    DelayTest { url: PAGE.into(), interval: None, timeout: Duration::from_secs(5), ..DelayTest::default() }
}

fn choice(policy: Policy, members: &[&str], test: DelayTest) -> OutboundProtocol {
    let members = members.iter().map(|name| Tag::from(*name)).collect();
    OutboundProtocol::Choice(Choice {
        members,
        policy,
        test,
        udp: true,
        hidden: false,
        icon: "".into(),
        uses: None,
    })
}

/// A tunnel whose connections go to the first outbound.
fn config(outbounds: Vec<Outbound>) -> Config {
    let protocol =
        InboundProtocol::Tunnel { target: "who.example:7".parse().unwrap(), transports: Transports::Tcp };
    // The same for every configuration: a port that the system chooses stays.
    let inbound = Inbound { listen: vec![loopback()], ..inbound("in", &outbounds[0].name, protocol) };
    let limits = Limits { drain: Duration::from_millis(100), ..Limits::default() };
    Config { cores: Some(2), limits, inbounds: vec![inbound], outbounds, ..Config::default() }
}

/// The name of the member that answers; empty if the connection is refused.
fn who(running: &Running) -> String {
    let mut stream = TcpStream::connect(running.addresses()[0].1).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    let mut answer = [0; 64];
    stream.write_all(b"who").ok();
    let len = stream.read(&mut answer).unwrap_or(0);
    String::from_utf8_lossy(&answer[..len]).into_owned()
}

fn view(running: &Running, name: &str) -> ProxyView {
    running.proxies().find(name).unwrap()
}

fn now(running: &Running, group: &str) -> String {
    view(running, group).group.unwrap().now.map(|now| now.to_string()).unwrap_or_default()
}

/// Tests all members at once.
fn test_all(running: &Running, group: &str) -> Map<String, u32> {
    let (sender, result) = mpsc::channel();
    running.proxies().group_delay(group, &test(), move |found| sender.send(found).unwrap()).unwrap();
    let found = result.recv_timeout(PATIENCE).unwrap();
    found.into_iter().map(|(name, delay)| (name.to_string(), delay)).collect()
}

fn wait_for(what: &str, mut condition: impl FnMut() -> bool) {
    let begun = Instant::now();
    while !condition() {
        assert!(begun.elapsed() < PATIENCE, "still not true: {what}");
        thread::sleep(Duration::from_millis(10));
    }
}

fn folder(name: &str) -> PathBuf {
    let path = std::env::temp_dir().join(format!("adit-choice-{name}-{}", std::process::id()));
    std::fs::create_dir_all(&path).unwrap();
    path
}

#[test]
fn a_person_chooses_and_the_choice_is_kept() {
    let folder = folder("kept");
    let choices = folder.join("choices");
    let ((_, a), (_, b)) = (Fake::start("a"), Fake::start("b"));
    let all = |members: &[&str]| {
        let group = choice(Policy::Select(None), members, test());
        let outbounds = vec![outbound("group", group), proxy("a", a), proxy("b", b)];
        Config { choices: Some(choices.clone()), ..config(outbounds) }
    };
    let running = start(&all(&["a", "b"])).unwrap();
    assert_eq!((who(&running), now(&running, "group")), ("a".to_owned(), "a".to_owned()));
    let proxies = running.proxies();
    assert_eq!(proxies.select("group", "b"), Ok(()));
    assert_eq!((who(&running), now(&running, "group")), ("b".to_owned(), "b".to_owned()));
    // A name that is no member changes nothing.
    assert_eq!(proxies.select("group", "nobody"), Err(SelectError::NoMember));
    assert_eq!(proxies.select("a", "b"), Err(SelectError::Missing));
    assert_eq!(proxies.select("nothing", "b"), Err(SelectError::Missing));
    assert_eq!(proxies.unfix("group"), Err(SelectError::NotSelectable));
    assert_eq!(who(&running), "b");
    running.end();

    let running = start(&all(&["a", "b"])).unwrap();
    assert_eq!((who(&running), now(&running, "group")), ("b".to_owned(), "b".to_owned()));
    // A member that is away for a while is chosen again when it is back.
    running.apply(&all(&["a"])).unwrap();
    assert_eq!(who(&running), "a");
    let changes = running.apply(&all(&["a", "b"])).unwrap();
    assert_eq!(changes.groups_changed, [Tag::from("group")]);
    assert_eq!(who(&running), "b");
    running.end();
    std::fs::remove_dir_all(folder).unwrap();
}

/// An open connection stays with its member, with any choice and any members.
#[test]
fn open_connections_go_on() {
    let ((_, a), (_, b)) = (Fake::start("a"), Fake::start("b"));
    let group = |members: &[&str]| outbound("group", choice(Policy::Select(None), members, test()));
    let running = start(&config(vec![group(&["a", "b"]), proxy("a", a), proxy("b", b)])).unwrap();
    let mut stream = TcpStream::connect(running.addresses()[0].1).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    let mut ask = || {
        let mut answer = [0; 1];
        stream.write_all(b"who").unwrap();
        stream.read_exact(&mut answer).unwrap();
        answer[0]
    };
    assert_eq!(ask(), b'a');
    running.proxies().select("group", "b").unwrap();
    assert_eq!((ask(), who(&running)), (b'a', "b".to_owned()));
    running.apply(&config(vec![group(&["b"]), proxy("b", b)])).unwrap();
    assert_eq!((ask(), who(&running)), (b'a', "b".to_owned()));
    running.end();
}

/// Three servers with delays of their own.
type Fakes = [(Arc<Fake>, SocketAddr); 3];

/// The members that are taken, one after another, for some delays of three; `None` if a busy machine measured others.
fn taken_for_delays() -> Option<(Fakes, Running, Vec<String>)> {
    let fakes = [Fake::start("a"), Fake::start("b"), Fake::start("c")];
    let group = choice(Policy::UrlTest(Duration::from_millis(150)), &["a", "b", "c"], test());
    let mut outbounds = vec![outbound("group", group)];
    outbounds.extend(["a", "b", "c"].iter().zip(&fakes).map(|(name, (_, at))| proxy(name, *at)));
    let running = start(&config(outbounds)).unwrap();
    let mut taken = Vec::new();
    for delays in [[300, 270, 900], [300, 270, 90], [300, 270, 285], [300, 10, 320], [10, 270, 270]] {
        for ((fake, _), delay) in fakes.iter().zip(delays) {
            fake.delay_ms.store(delay, Ordering::SeqCst);
        }
        let found = test_all(&running, "group");
        for (name, delay) in ["a", "b", "c"].iter().zip(delays) {
            let measured = u64::from(found[*name]);
            assert!(measured >= delay, "{name}: {measured} for {delay}");
            if measured >= delay + 100 {
                running.end();
                return None;
            }
        }
        taken.push(now(&running, "group"));
    }
    Some((fakes, running, taken))
}

/// The members of mihomo's order for such delays and a tolerance of 50 ms.
#[test]
fn the_least_delay_with_a_tolerance() {
    let tried = (0..20).find_map(|_| taken_for_delays());
    let (fakes, running, taken) = tried.expect("delays are measured to 100 ms once in twenty times");
    assert_eq!(taken, ["b", "c", "c", "b", "a"]);
    // A fixed member is used while it is alive; when it is dead it is passed over and stays fixed.
    let proxies = running.proxies();
    proxies.select("group", "c").unwrap();
    assert_eq!(now(&running, "group"), "c");
    fakes[2].0.is_dead.store(true, Ordering::SeqCst);
    assert_eq!(proxies.delay_now("c", &test()), Err(DelayError::Failed));
    let group = view(&running, "group").group.unwrap();
    assert_eq!((group.now, group.fixed), (Some("a".into()), Some("c".into())));
    proxies.unfix("group").unwrap();
    assert_eq!(view(&running, "group").group.unwrap().fixed, None);
    running.end();
}

#[test]
fn the_first_that_is_alive() {
    let fakes = [Fake::start("a"), Fake::start("b")];
    let mut outbounds = vec![outbound("group", choice(Policy::Fallback, &["a", "b"], test()))];
    outbounds.extend(["a", "b"].iter().zip(&fakes).map(|(name, (_, at))| proxy(name, *at)));
    let running = start(&config(outbounds)).unwrap();
    assert_eq!(who(&running), "a");
    fakes[0].0.is_dead.store(true, Ordering::SeqCst);
    assert_eq!(test_all(&running, "group").len(), 1);
    assert_eq!((who(&running), now(&running, "group")), ("b".to_owned(), "b".to_owned()));
    assert!(!view(&running, "a").history.alive && view(&running, "b").history.alive);
    // A dead member that is fixed is forgotten at once.
    running.proxies().select("group", "a").unwrap();
    let group = view(&running, "group").group.unwrap();
    assert_eq!((group.now, view(&running, "group").group.unwrap().fixed), (Some("b".into()), None));
    fakes[0].0.is_dead.store(false, Ordering::SeqCst);
    test_all(&running, "group");
    assert_eq!(who(&running), "a");
    running.end();
}

/// A member that refuses connections has all members tested before their time.
#[test]
fn failed_connections_have_members_tested() {
    let (fake, b) = Fake::start("b");
    let nobody = unused_addr();
    let often = DelayTest { interval: Some(Duration::from_secs(3600)), ..test() };
    let group = outbound("group", choice(Policy::Fallback, &["a", "b"], often));
    let running = start(&config(vec![group, proxy("a", b), proxy("b", b)])).unwrap();
    wait_for("the first round", || fake.heads.load(Ordering::SeqCst) == 2);
    wait_for("both are noted", || !view(&running, "b").history.samples.is_empty());
    let often = DelayTest { interval: Some(Duration::from_secs(3600)), ..test() };
    let group = outbound("group", choice(Policy::Fallback, &["a", "b"], often));
    running.apply(&config(vec![group, proxy("a", nobody), proxy("b", b)])).unwrap();
    assert_eq!((now(&running, "group"), who(&running)), ("a".to_owned(), String::new()));
    wait_for("the members are tested again", || who(&running) == "b");
    running.end();
}

#[test]
fn turns() {
    let names = ["a", "b", "c"];
    let fakes = names.map(Fake::start);
    let start_with = |balance| {
        let group = choice(Policy::LoadBalance(balance), &names, test());
        let mut outbounds = vec![outbound("group", group)];
        outbounds.extend(names.iter().zip(&fakes).map(|(name, (_, at))| proxy(name, *at)));
        start(&config(outbounds)).unwrap()
    };
    let running = start_with(Balance::RoundRobin);
    let order: Vec<String> = (0..6).map(|_| who(&running)).collect();
    assert_eq!(order[..3], order[3..]);
    assert_eq!(order[..3].iter().map(String::as_str).collect::<std::collections::BTreeSet<_>>().len(), 3);
    assert_eq!(view(&running, "group").group.unwrap().now, None);
    assert_eq!(running.proxies().select("group", "a"), Err(SelectError::NotSelectable));
    // A dead member has no turn.
    fakes[1].0.is_dead.store(true, Ordering::SeqCst);
    test_all(&running, "group");
    let after: Vec<String> = (0..6).map(|_| who(&running)).collect();
    assert!(after.iter().all(|name| name == "a" || name == "c"), "{after:?}");
    running.end();
    fakes[1].0.is_dead.store(false, Ordering::SeqCst);
    // One target keeps its member, in the next process too.
    for balance in [Balance::Consistent, Balance::Sticky] {
        let running = start_with(balance);
        let first = who(&running);
        assert!((0..6).all(|_| who(&running) == first));
        running.end();
        if balance == Balance::Consistent {
            let again = start_with(balance);
            assert_eq!(who(&again), first);
            again.end();
        }
    }
}

#[test]
fn groups_within_groups() {
    let ((_, a), (fake, b)) = (Fake::start("a"), Fake::start("b"));
    let outbounds = vec![
        outbound("outer", choice(Policy::Select(None), &["inner", "a"], test())),
        outbound("inner", choice(Policy::Fallback, &["b", "a"], test())),
        proxy("a", a),
        proxy("b", b),
    ];
    let running = start(&config(outbounds)).unwrap();
    assert_eq!(
        (who(&running), now(&running, "outer"), now(&running, "inner")),
        ("b".into(), "inner".into(), "b".into())
    );
    // A group is tested through the member that it uses.
    assert!(running.proxies().delay_now("inner", &test()).is_ok());
    assert_eq!(view(&running, "inner").history.samples.len(), 1);
    fake.is_dead.store(true, Ordering::SeqCst);
    test_all(&running, "inner");
    assert_eq!(who(&running), "a");
    running.end();
}

/// Nothing but a refusal: never another member, never a direct connection.
#[test]
fn nothing_to_choose_from() {
    let (_, a) = Fake::start("a");
    let dead = |name: &str| {
        let refusal = Refusal::Dead { kind: "vmess".into(), why: "adit does not speak it".into(), udp: true };
        outbound(name, OutboundProtocol::Refuse(refusal))
    };
    for (policy, members) in [
        (Policy::Select(None), vec![]),
        (Policy::UrlTest(Duration::ZERO), vec![]),
        (Policy::LoadBalance(Balance::RoundRobin), vec![]),
        (Policy::Select(None), vec!["dead", "a"]),
        (Policy::UrlTest(Duration::ZERO), vec!["dead", "dead-2"]),
        (Policy::Fallback, vec!["dead"]),
        (Policy::LoadBalance(Balance::Consistent), vec!["dead", "dead-2"]),
    ] {
        let group = outbound("group", choice(policy.clone(), &members, test()));
        let running = start(&config(vec![group, dead("dead"), dead("dead-2"), proxy("a", a)])).unwrap();
        assert_eq!(who(&running), "", "{policy:?} {members:?}");
        assert!(!view(&running, "dead").history.alive);
        running.end();
    }
    // Those that test their members leave a dead one aside.
    for policy in
        [Policy::UrlTest(Duration::ZERO), Policy::Fallback, Policy::LoadBalance(Balance::RoundRobin)]
    {
        let group = outbound("group", choice(policy.clone(), &["dead", "a"], test()));
        let running = start(&config(vec![group, dead("dead"), proxy("a", a)])).unwrap();
        assert_eq!(who(&running), "a", "{policy:?}");
        running.end();
    }
}

/// Status, history, unified delay, timeouts.
#[test]
fn tests_of_delays() {
    let (fake, a) = Fake::start("a");
    let running = start(&config(vec![proxy("a", a)])).unwrap();
    let proxies = running.proxies();
    for delay in [0, 200] {
        fake.delay_ms.store(delay, Ordering::SeqCst);
        let measured = u64::from(proxies.delay_now("a", &test()).unwrap());
        assert!((delay.max(1)..delay + 60).contains(&measured), "{measured} for {delay}");
    }
    // A status that is not expected: the delay is told, and the address counts as dead.
    fake.delay_ms.store(0, Ordering::SeqCst);
    fake.status.store(500, Ordering::SeqCst);
    let picky = DelayTest { expected: vec![(200, 299)], url: "http://picky.example/".into(), ..test() };
    assert!(proxies.delay_now("a", &picky).is_ok());
    let history = view(&running, "a").history;
    assert!(history.alive);
    let (is_alive, samples) = &history.by_url["http://picky.example/"];
    assert_eq!((*is_alive, samples[0].delay_ms), (false, 0));
    assert!(proxies.delay_now("a", &test()).is_ok());
    // With a second request, that one alone is measured.
    let before = fake.heads.load(Ordering::SeqCst);
    proxies.delay_now("a", &DelayTest { unified: true, ..test() }).unwrap();
    assert_eq!(fake.heads.load(Ordering::SeqCst), before + 2);
    // Too late, nobody there, no such outbound, no address.
    fake.delay_ms.store(20_000, Ordering::SeqCst);
    let begun = Instant::now();
    let short = DelayTest { timeout: Duration::from_millis(200), ..test() };
    assert_eq!(proxies.delay_now("a", &short), Err(DelayError::Timeout));
    assert!(begun.elapsed() < Duration::from_secs(15));
    assert!(!view(&running, "a").history.alive);
    assert_eq!(proxies.delay_now("nobody", &test()), Err(DelayError::Missing));
    let bad = DelayTest { url: "ftp://x".into(), ..test() };
    assert_eq!(proxies.delay_now("a", &bad), Err(DelayError::Address));
    running.end();
}

/// One round of fifty members: ten tests at a time. A lazy group rests while nobody uses it.
#[test]
fn rounds_of_tests() {
    let (fake, at) = Fake::start("x");
    fake.delay_ms.store(50, Ordering::SeqCst);
    let names: Vec<String> = (0..50).map(|n| format!("m{n}")).collect();
    let names: Vec<&str> = names.iter().map(String::as_str).collect();
    let often = |lazy| DelayTest { interval: Some(Duration::from_secs(1)), lazy, ..test() };
    let group = outbound("group", choice(Policy::UrlTest(Duration::ZERO), &names, often(true)));
    let mut outbounds = vec![group];
    outbounds.extend(names.iter().map(|name| proxy(name, at)));
    let running = start(&config(outbounds)).unwrap();
    wait_for("the round at the start", || fake.heads.load(Ordering::SeqCst) == 50);
    assert!(fake.most.load(Ordering::SeqCst) <= 10, "{} at once", fake.most.load(Ordering::SeqCst));
    // More than two rounds of a group that is not lazy.
    thread::sleep(Duration::from_millis(2500));
    assert_eq!(fake.heads.load(Ordering::SeqCst), 50, "nobody uses it");
    assert_eq!(who(&running), "x");
    wait_for("the next round", || fake.heads.load(Ordering::SeqCst) >= 100);
    running.end();
}

/// The file of choices cannot be written: the choice holds, and the process goes on.
#[test]
fn choices_without_a_place() {
    let ((_, a), (_, b)) = (Fake::start("a"), Fake::start("b"));
    let group = outbound("group", choice(Policy::Select(None), &["a", "b"], test()));
    let config = Config {
        choices: Some(Path::new("/nonexistent/choices").into()),
        ..config(vec![group, proxy("a", a), proxy("b", b)])
    };
    let running = start(&config).unwrap();
    assert_eq!(running.proxies().select("group", "b"), Ok(()));
    assert_eq!(who(&running), "b");
    running.end();
}
