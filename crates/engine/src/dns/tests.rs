mod answers;
mod change;
mod name_server;

use std::cell::RefCell;
use std::fs;
use std::net::IpAddr;
use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, mpsc};
use std::task::Wake;
use std::thread;

use adit_model::{self as model, DnsPolicy, DnsTransport, Upstream};
use adit_net::resolve::next_answer;
use adit_net::rt::Cores;
use adit_net::tls::Roots;
use adit_testkit::in_time;
use hickory_proto::op::{Message, ResponseCode};

use self::name_server::{A, AAAA, Authority, CNAME, NameServer, Reply, address, message, record};
use super::message::{DnsAnswer, ReplyKind, question, read_reply};
use super::shared::{Asker, most_flights, plain};
use super::system::System;
use super::*;
use crate::testing::until;

const NOWHERE: &str = "/nonexistent";

fn upstreams(servers: &[&NameServer]) -> Vec<Arc<Upstream>> {
    servers.iter().map(|server| plain(server.addr)).collect()
}

fn config(servers: &[&NameServer]) -> model::Dns {
    model::Dns { upstreams: upstreams(servers), ..model::Dns::default() }
}

fn shared(config: &model::Dns) -> Arc<DnsShared> {
    shared_under(config, Roots::System)
}

fn shared_under(config: &model::Dns, roots: Roots) -> Arc<DnsShared> {
    let nowhere = Path::new(NOWHERE);
    Arc::new(DnsShared::with_system(config, System::new(nowhere, nowhere), roots))
}

fn service(config: &model::Dns) -> Rc<Dns> {
    Dns::new(shared(config))
}

fn names(config: &model::Dns) -> Scope {
    service(config).scope(&Dial::default())
}

/// Runs a test on an event loop.
fn run(test: impl AsyncFnOnce()) {
    Cores::block_on(async { test().await }).unwrap();
}

async fn texts(names: &Scope, name: &str, family: AddressFamilies) -> Vec<String> {
    names.lookup(name, family).await.unwrap().iter().map(IpAddr::to_string).collect()
}

async fn error(names: &Scope, name: &str, family: AddressFamilies) -> ResolveError {
    names.lookup(name, family).await.unwrap_err()
}

fn ips(texts: &[&str]) -> Vec<IpAddr> {
    texts.iter().map(|text| text.parse().unwrap()).collect()
}

/// A reply that leaves when it is told to, or when the sender is gone.
fn held(ip: &str) -> (mpsc::Sender<()>, Reply) {
    let (release, released) = mpsc::channel();
    let (ip, released) = (ips(&[ip])[0], Mutex::new(released));
    let script = move |question: &[u8]| {
        released.lock().unwrap().recv().ok();
        vec![message(question.to_vec(), 0, &[address(&ip, 60)], &[])]
    };
    (release, Reply::Raw(Arc::new(script)))
}

/// By TCP: a question is sent once, however long its answer takes.
fn over_tcp(server: &NameServer) -> model::Dns {
    let tcp = Arc::new(Upstream { transport: DnsTransport::Tcp, ..(*plain(server.addr)).clone() });
    model::Dns { upstreams: vec![tcp], ..config(&[]) }
}

#[test]
fn families_choose_records_and_order() {
    let server = NameServer::start();
    server.set_ips("both.test", A, &["192.0.2.1", "192.0.2.2"]);
    server.set_ips("both.test", AAAA, &["2001:db8::1"]);
    server.set_ips("six.test", AAAA, &["2001:db8::6", "::ffff:192.0.2.9"]);
    server.set("six.test", A, Reply::Empty(60));
    server.set_ips("one.test", A, &["192.0.2.1"]);
    run(async || {
        let names = names(&config(&[&server]));
        assert_eq!(
            texts(&names, "Both.test", AddressFamilies::Any).await,
            ["2001:db8::1", "192.0.2.1", "192.0.2.2"]
        );
        assert_eq!(texts(&names, "both.test.", AddressFamilies::PreferV4).await[0], "192.0.2.1");
        assert_eq!(texts(&names, "both.test", AddressFamilies::V6Only).await, ["2001:db8::1"]);
        assert_eq!(
            texts(&names, "six.test", AddressFamilies::Any).await,
            ["2001:db8::6"],
            "no mapped address"
        );
        assert!(matches!(error(&names, "six.test", AddressFamilies::V4Only).await, ResolveError::NoAddress));
        texts(&names, "one.test", AddressFamilies::V4Only).await;
        assert_eq!((server.asked("one.test", A), server.asked("one.test", AAAA)), (1, 0));
        assert_eq!(server.asked("both.test", A), 1, "letters of either case, with or without a dot");

        let prefer = model::Dns { family: AddressFamilies::PreferV4, ..config(&[&server]) };
        let dns = service(&prefer);
        assert_eq!(dns.scope(&Dial::default()).family(), AddressFamilies::PreferV4);
        let own = Dial { family: AddressFamilies::V6Only, ..Dial::default() };
        assert_eq!(dns.scope(&own).family(), AddressFamilies::V6Only);
    });
}

#[test]
fn addresses_and_localhost_ask_nobody() {
    let server = NameServer::start();
    run(async || {
        let names = names(&config(&[&server]));
        assert_eq!(texts(&names, "::ffff:192.0.2.1", AddressFamilies::V4Only).await, ["192.0.2.1"]);
        assert_eq!(texts(&names, "localhost", AddressFamilies::Any).await, ["::1", "127.0.0.1"]);
        assert!(matches!(error(&names, "192.0.2.1", AddressFamilies::V6Only).await, ResolveError::NoAddress));
        assert_eq!(names.find("a.localhost", None, rt::now()), TargetLookup::Address(ips(&["127.0.0.1"])[0]));
        assert_eq!(server.asked("a.localhost", 0) + server.asked("localhost", 0), 0);
    });
}

#[test]
fn absence_is_remembered_for_its_time() {
    let server = NameServer::start();
    server.set("gone.test", A, Reply::Missing(1));
    server.set("kept.test", A, Reply::Missing(60));
    run(async || {
        let names = names(&model::Dns { stale: false, ..config(&[&server]) });
        let begun = rt::now();
        for _ in 0..3 {
            assert!(matches!(
                error(&names, "gone.test", AddressFamilies::V4Only).await,
                ResolveError::NotFound
            ));
            assert!(matches!(
                error(&names, "kept.test", AddressFamilies::V4Only).await,
                ResolveError::NotFound
            ));
        }
        until("the name is asked for again", async || {
            error(&names, "gone.test", AddressFamilies::V4Only).await;
            server.asked("gone.test", A) >= 2
        })
        .await;
        assert!(rt::now() - begun >= Duration::from_secs(1), "its second was not over");
        error(&names, "kept.test", AddressFamilies::V4Only).await;
        assert_eq!(server.asked("kept.test", A), 1);
    });
}

#[test]
fn a_stale_answer_serves_while_a_new_one_is_fetched() {
    let server = NameServer::start();
    server.set("a.test", A, Reply::Ips(ips(&["192.0.2.1"]), 1));
    run(async || {
        let dns = service(&over_tcp(&server));
        let names = dns.scope(&Dial::default());
        texts(&names, "a.test", AddressFamilies::V4Only).await;
        let (release, new) = held("192.0.2.2");
        server.set("a.test", A, new);
        // The answer was good for a second.
        rt::sleep(Duration::from_millis(1100)).await;
        for _ in 0..10 {
            assert_eq!(texts(&names, "a.test", AddressFamilies::V4Only).await, ["192.0.2.1"], "nobody waits");
        }
        release.send(()).unwrap();
        until("the new answer serves", async || {
            texts(&names, "a.test", AddressFamilies::V4Only).await == ["192.0.2.2"]
        })
        .await;
        assert_eq!(server.asked("a.test", A), 2, "one exchange refreshed it");

        server.set("b.test", A, Reply::Ips(ips(&["192.0.2.3"]), 1));
        texts(&names, "b.test", AddressFamilies::V4Only).await;
        server.set("b.test", A, Reply::Code(2));
        until("the refresh has failed", async || {
            assert_eq!(
                texts(&names, "b.test", AddressFamilies::V4Only).await,
                ["192.0.2.3"],
                "better than nothing"
            );
            server.asked("b.test", A) == 2 && dns.shared.sizes().1 == 0
        })
        .await;
        for _ in 0..3 {
            assert_eq!(
                texts(&names, "b.test", AddressFamilies::V4Only).await,
                ["192.0.2.3"],
                "better than nothing"
            );
        }
        assert_eq!(server.asked("b.test", A), 2, "a failed refresh is not repeated at once");
    });
}

#[test]
fn one_exchange_for_identical_questions_over_two_cores() {
    let server = NameServer::start();
    let reply = |ip| Reply::Late(Duration::from_millis(300), Box::new(Reply::Ips(ips(&[ip]), 60)));
    server.set("many.test", A, reply("192.0.2.1"));
    server.set("many.test", AAAA, reply("2001:db8::1"));
    let shared = shared(&config(&[&server]));
    let done = Arc::new(AtomicUsize::new(0));
    thread::scope(|scope| {
        for _ in 0..2 {
            let (shared, done) = (shared.clone(), done.clone());
            scope.spawn(move || {
                run(async || {
                    let names = Dns::new(shared).scope(&Dial::default());
                    let mut all = adit_net::race::Race::new();
                    for _ in 0..50 {
                        let names = &names;
                        all.push(async move { texts(names, "many.test", AddressFamilies::Any).await });
                    }
                    while let Some(found) = all.next().await {
                        assert_eq!(found, ["2001:db8::1", "192.0.2.1"]);
                        done.fetch_add(1, Ordering::Relaxed);
                    }
                });
            });
        }
    });
    assert_eq!(done.load(Ordering::Relaxed), 100);
    assert_eq!((server.asked("many.test", A), server.asked("many.test", AAAA)), (1, 1));
}

#[test]
fn answers_can_be_had_as_they_arrive() {
    let server = NameServer::start();
    let (release, six) = held("2001:db8::1");
    server.set("slow.test", AAAA, six);
    server.set_ips("slow.test", A, &["192.0.2.1"]);
    run(async || {
        let names = names(&config(&[&server]));
        let mut answers = names.start("slow.test", AddressFamilies::Any);
        assert_eq!(next_answer(&mut *answers).await.unwrap(), ips(&["192.0.2.1"]));
        release.send(()).unwrap();
        assert_eq!(next_answer(&mut *answers).await.unwrap(), ips(&["2001:db8::1"]));
        assert_eq!(next_answer(&mut *answers).await, None);
    });
}

#[test]
fn a_silent_server_is_passed_over_and_then_demoted() {
    in_time(|| {
        let (first, second) = (NameServer::start(), NameServer::start());
        for name in ["a.test", "b.test"] {
            first.set(name, A, Reply::Silence);
            second.set_ips(name, A, &["192.0.2.1"]);
        }
        run(async || {
            let names = names(&config(&[&first, &second]));
            let begun = rt::now();
            texts(&names, "a.test", AddressFamilies::V4Only).await;
            let waited = rt::now() - begun;
            // A server has five seconds before it counts as silent.
            assert!((990..4900).contains(&waited.as_millis()), "{waited:?}");
            texts(&names, "b.test", AddressFamilies::V4Only).await;
            assert_eq!(first.asked("b.test", 0), 0, "the second server is asked first");
        });
    });
}

#[test]
fn a_dead_or_failing_server_is_passed_over_at_once() {
    in_time(|| {
        let (first, second) = (NameServer::start(), NameServer::start());
        first.set("a.test", A, Reply::Code(2));
        first.set("bad.test", A, Reply::Code(5));
        second.set_ips("a.test", A, &["192.0.2.1"]);
        second.set("bad.test", A, Reply::Code(2));
        second.set_ips("dead.test", A, &["192.0.2.4"]);
        run(async || {
            let begun = rt::now();
            let both = names(&config(&[&first, &second]));
            assert_eq!(texts(&both, "a.test", AddressFamilies::V4Only).await, ["192.0.2.1"]);
            assert!(matches!(
                error(&both, "bad.test", AddressFamilies::V4Only).await,
                ResolveError::Server(_)
            ));
            let dead = "127.0.0.1:1".parse().unwrap();
            let with_dead = model::Dns { upstreams: vec![plain(dead), plain(second.addr)], ..config(&[]) };
            assert_eq!(texts(&names(&with_dead), "dead.test", AddressFamilies::V4Only).await, ["192.0.2.4"]);
            assert!(rt::now() - begun < Duration::from_millis(900), "{:?}", rt::now() - begun);
        });
    });
}

#[test]
fn names_that_are_none() {
    let server = NameServer::start();
    for asked in ["_srv.under_score.test", "xn--bcher-kva.test"] {
        server.set_ips(asked, A, &["192.0.2.1"]);
    }
    run(async || {
        let names = names(&config(&[&server]));
        let long_label = format!("{}.test", "a".repeat(64));
        for name in ["", "a..b", "a\\.b", long_label.as_str(), &"a.".repeat(128)] {
            assert!(
                matches!(error(&names, name, AddressFamilies::Any).await, ResolveError::BadName),
                "{name:?}"
            );
            assert_eq!(names.find(name, None, rt::now()), TargetLookup::Nothing);
        }
        for name in ["_srv.under_score.test", "b\u{fc}cher.test"] {
            assert_eq!(texts(&names, name, AddressFamilies::V4Only).await, ["192.0.2.1"], "{name}");
        }
    });
}

#[test]
fn hosts_come_first_and_the_file_is_read_again() {
    let server = NameServer::start();
    server.set_ips("web.test", A, &["192.0.2.1"]);
    let file = std::env::temp_dir().join(format!("adit-engine-hosts-{}", std::process::id()));
    fs::write(&file, "192.0.2.77 web.test\n2001:db8::77 web.test\n192.0.2.78 own.test\n").unwrap();
    let hosts = vec![("Own.test".into(), ips(&["192.0.2.99"]))];
    let config = model::Dns { hosts, ..config(&[&server]) };
    let shared =
        Arc::new(DnsShared::with_system(&config, System::new(Path::new(NOWHERE), &file), Roots::System));
    run(async || {
        let names = Dns::new(shared.clone()).scope(&Dial::default());
        assert_eq!(texts(&names, "WEB.test", AddressFamilies::Any).await, ["2001:db8::77", "192.0.2.77"]);
        assert_eq!(texts(&names, "own.test", AddressFamilies::Any).await, ["192.0.2.99"]);
        assert_eq!(server.asked("web.test", 0), 0);
        fs::remove_file(&file).unwrap();
        let later = rt::now() + Duration::from_secs(5);
        assert_eq!(names.find("web.test", None, later), TargetLookup::Pending);
        assert_eq!(texts(&names, "web.test", AddressFamilies::V4Only).await, ["192.0.2.1"]);
    });
}

#[test]
fn short_names_are_searched_for_and_long_ones_are_not() {
    let server = NameServer::start();
    server.set_ips("web.lan.test", A, &["192.0.2.1"]);
    server.set_ips("bare", A, &["192.0.2.2"]);
    let file = std::env::temp_dir().join(format!("adit-engine-resolv-{}", std::process::id()));
    fs::write(&file, "search corp.test lan.test\nnameserver 127.0.0.1\n").unwrap();
    let snapshot = System::new(&file, Path::new(NOWHERE)).read(rt::now());
    fs::remove_file(&file).unwrap();
    let candidates = |name: &str| {
        let all = snapshot.candidates(name, absolute(name).unwrap());
        all.iter().map(|name| key_of(name).into_string()).collect::<Vec<_>>()
    };
    assert_eq!(candidates("web"), ["web.corp.test", "web.lan.test", "web"]);
    assert_eq!(candidates("web."), ["web"]);
    assert_eq!(candidates("gone.example"), ["gone.example"]);
    run(async || {
        let dns = service(&config(&[&server]));
        let list = dns.settings().list_for("web").clone();
        let all = ["web.corp.test", "web.lan.test", "web"].map(|name| (name.into(), list.clone()));
        let mut answers = Lookup::new(dns.clone(), all.to_vec(), AddressFamilies::Any);
        assert_eq!(next_answer(&mut answers).await.unwrap(), ips(&["192.0.2.1"]));
        assert_eq!(next_answer(&mut answers).await, None);
        assert_eq!((server.asked("web.corp.test", 0), server.asked("web", 0)), (2, 0));
    });
}

#[test]
fn policies_choose_servers_and_outbounds_have_their_own() {
    let (usual, office, own) = (NameServer::start(), NameServer::start(), NameServer::start());
    for (server, ip) in [(&usual, "192.0.2.1"), (&office, "192.0.2.2"), (&own, "192.0.2.3")] {
        for name in ["www.office.test", "www.test"] {
            server.set_ips(name, A, &[ip]);
        }
    }
    let policy =
        vec![DnsPolicy { domain: "office.test".into(), upstreams: upstreams(&[&office]), direct: false }];
    let config = model::Dns { policy, ..config(&[&usual]) };
    run(async || {
        let dns = service(&config);
        let names = dns.scope(&Dial::default());
        assert_eq!(texts(&names, "www.office.test", AddressFamilies::V4Only).await, ["192.0.2.2"]);
        assert_eq!(texts(&names, "www.test", AddressFamilies::V4Only).await, ["192.0.2.1"]);
        let names = dns.scope(&Dial { dns: vec![own.addr.into()], ..Dial::default() });
        assert_eq!(texts(&names, "www.office.test", AddressFamilies::V4Only).await, ["192.0.2.3"]);
    });
}

#[test]
fn what_is_cut_off_is_fetched_by_tcp_over_one_connection() {
    let server = NameServer::start();
    let many: Vec<IpAddr> = (0..20).map(|last| IpAddr::from([192, 0, 2, last])).collect();
    for i in 0..20 {
        server.set(&format!("n{i}.test"), A, Reply::Cut(Box::new(Reply::Ips(many.clone(), 60))));
    }
    run(async || {
        let names = names(&config(&[&server]));
        let mut all = adit_net::race::Race::new();
        for i in 0..20 {
            let names = &names;
            all.push(async move { texts(names, &format!("n{i}.test"), AddressFamilies::V4Only).await });
        }
        while let Some(found) = all.next().await {
            assert_eq!(found.len(), 20);
        }
        assert_eq!(server.connections(), 1);
        assert_eq!(names.dns.exchanges.open_links(), 1);
    });
}

#[test]
fn a_kept_connection_that_was_closed_is_replaced() {
    let server = NameServer::start();
    server.close_after(1);
    let transport = DnsTransport::Tcp;
    let tcp = Upstream { transport, ..(*plain(server.addr)).clone() };
    let config = model::Dns { upstreams: vec![Arc::new(tcp)], ..config(&[]) };
    for name in ["a.test", "b.test", "c.test"] {
        server.set_ips(name, A, &["192.0.2.1"]);
    }
    run(async || {
        let names = names(&config);
        for name in ["a.test", "b.test", "c.test"] {
            assert_eq!(texts(&names, name, AddressFamilies::V4Only).await, ["192.0.2.1"]);
        }
        assert_eq!(server.connections(), 3);
    });
}

/// Scripts for answers that must not be believed, each with a good one behind it.
fn lies(good: &'static str) -> [(&'static str, Reply); 5] {
    let raw = |script: fn(&[u8], Vec<u8>) -> Vec<Vec<u8>>| {
        Reply::Raw(Arc::new(move |question: &[u8]| {
            let ip: IpAddr = good.parse().unwrap();
            script(question, message(question.to_vec(), 0, &[address(&ip, 60)], &[]))
        }))
    };
    [
        (
            "id.test",
            raw(|question, good| {
                let mut lie = message(question.to_vec(), 0, &[record(A, 60, &[203, 0, 113, 66])], &[]);
                lie[0] ^= 1;
                vec![lie, good]
            }),
        ),
        (
            "name.test",
            raw(|question, good| {
                let mut lie = message(question.to_vec(), 0, &[record(A, 60, &[203, 0, 113, 66])], &[]);
                lie[13] ^= 1;
                vec![lie, good]
            }),
        ),
        (
            "type.test",
            raw(|question, good| {
                let mut lie = message(question.to_vec(), 0, &[record(A, 60, &[203, 0, 113, 66])], &[]);
                let at = question.len() - 3;
                lie[at] = 28;
                vec![lie, good]
            }),
        ),
        ("noise.test", raw(|_, good| vec![vec![], vec![0; 11], vec![0xff; 600], good])),
        ("query.test", raw(|question, good| vec![question.to_vec(), good])),
    ]
}

#[test]
fn answers_to_other_questions_are_not_taken() {
    let server = NameServer::start();
    let all = lies("192.0.2.1");
    for (name, reply) in &all {
        server.set(name, A, reply.clone());
    }
    run(async || {
        let udp = names(&config(&[&server]));
        for (name, _) in &all {
            assert_eq!(texts(&udp, name, AddressFamilies::V4Only).await, ["192.0.2.1"], "{name}");
        }
    });
}

#[test]
fn endless_guesses_send_the_question_to_tcp() {
    let server = NameServer::start();
    let calls = Arc::new(AtomicUsize::new(0));
    let script = move |question: &[u8]| {
        if calls.fetch_add(1, Ordering::Relaxed) > 0 {
            return vec![message(question.to_vec(), 0, &[record(A, 60, &[192, 0, 2, 1])], &[])];
        }
        let mut lie = message(question.to_vec(), 0, &[record(A, 60, &[203, 0, 113, 66])], &[]);
        lie[0] ^= 1;
        vec![lie; 40]
    };
    server.set("a.test", A, Reply::Raw(Arc::new(script)));
    run(async || {
        let names = names(&config(&[&server]));
        assert_eq!(texts(&names, "a.test", AddressFamilies::V4Only).await, ["192.0.2.1"]);
        assert_eq!(server.connections(), 1);
    });
}

/// `example` as an alias of itself, and of a chain of `links` other names before an address.
fn aliases(head: &[u8], links: u8) -> Vec<u8> {
    let name = |link: u8| vec![1, b'a' + link, 0];
    let mut records = vec![record(CNAME, 60, &name(0))];
    for link in 0..links {
        let mut alias = record(CNAME, 50, &name(link + 1));
        alias.splice(0..2, name(link));
        records.push(alias);
    }
    let mut end = record(A, 40, &[192, 0, 2, 1]);
    end.splice(0..2, name(links));
    records.push(end);
    records.reverse();
    message(head.to_vec(), 0, &records, &[])
}

#[test]
fn chains_of_aliases_are_followed_and_bounded() {
    let name = absolute("www.example").unwrap();
    let head = question(&name, RecordType::A, 7, false).unwrap();
    for (links, is_good) in [(0, true), (1, true), (15, true), (16, false)] {
        let reply = read_reply(&aliases(&head, links), &name, RecordType::A, 7);
        let answer = DnsAnswer { body: Body::Addresses(ips(&["192.0.2.1"]).into()), ttl: 40 };
        let want = if is_good { ReplyKind::Answer(answer) } else { ReplyKind::Failed(2) };
        assert_eq!(reply, want, "{links}");
    }
    let itself = message(head.clone(), 0, &[record(CNAME, 60, &[0xc0, 0x0c])], &[]);
    assert_eq!(read_reply(&itself, &name, RecordType::A, 7), ReplyKind::Failed(2));
    let nothing = message(head, 0, &[record(CNAME, 60, &[1, b'a', 0])], &[]);
    let none = ReplyKind::Answer(DnsAnswer { body: Body::NoRecord, ttl: 0 });
    assert_eq!(read_reply(&nothing, &name, RecordType::A, 7), none);
}

#[test]
fn damaged_answers_are_refused_or_read_within_bounds() {
    let name = absolute("www.example.com").unwrap();
    let head = question(&name, RecordType::A, 0x1234, false).unwrap();
    let whole = aliases(&head, 3);
    for len in 0..whole.len() {
        let reply = read_reply(&whole[..len], &name, RecordType::A, 0x1234);
        assert_eq!(reply, ReplyKind::Foreign, "cut after {len} bytes");
    }
    for bit in 0..whole.len() * 8 {
        let mut damaged = whole.clone();
        damaged[bit / 8] ^= 1 << (bit % 8);
        // Bits of bytes count from the lowest.
        let reply = read_reply(&damaged, &name, RecordType::A, 0x1234);
        // A letter in the other case is the same name.
        let is_case = bit % 8 == 5 && damaged[bit / 8].is_ascii_alphabetic();
        let is_of_id = bit < 16;
        let is_of_question = (12 * 8..head.len() * 8).contains(&bit) && !is_case;
        if is_of_id || is_of_question {
            assert_eq!(reply, ReplyKind::Foreign, "bit {bit}");
        }
        fuzz_dns_reply(&[&[0x12, 0x34, 0], &*damaged].concat());
    }
}

#[test]
fn huge_and_slow_answers_cost_one_server() {
    let (first, second) = (NameServer::start(), NameServer::start());
    let huge = |question: &[u8]| {
        let mut all: Vec<Vec<u8>> =
            (0..4080u16).map(|i| record(A, 60, &[10, 0, i.to_be_bytes()[0], i.to_be_bytes()[1]])).collect();
        all.truncate((65_535 - question.len()) / 16);
        vec![message(question.to_vec(), 0, &all, &[])]
    };
    first.set("huge.test", A, Reply::Raw(Arc::new(huge)));
    let (_release, drip) = held("192.0.2.2");
    first.set("drip.test", A, drip);
    second.set_ips("drip.test", A, &["192.0.2.1"]);
    let mut config = over_tcp(&first);
    config.upstreams.push(plain(second.addr));
    run(async || {
        let names = names(&config);
        assert_eq!(
            texts(&names, "huge.test", AddressFamilies::V4Only).await.len(),
            32,
            "the rest is not kept"
        );
        assert_eq!(texts(&names, "drip.test", AddressFamilies::V4Only).await, ["192.0.2.1"]);
    });
}

fn secure(server: &NameServer, name: &str, is_https: bool) -> Arc<Upstream> {
    let name: Box<str> = name.into();
    let transport = if is_https {
        let authority = format!("{name}:{}", server.addr.port()).into();
        DnsTransport::Https { authority, path: "/dns-query".into(), name }
    } else {
        DnsTransport::Tls { name }
    };
    Arc::new(Upstream { transport, ..(*plain(server.addr)).clone() })
}

#[test]
fn tls_and_https_check_certificates_and_keep_connections() {
    let (authority, other) = (Authority::new(), Authority::new());
    type Start = fn(&Authority, &str) -> NameServer;
    let all: [(Start, bool); 3] =
        [(NameServer::tls, false), (NameServer::https, true), (NameServer::https2, true)];
    for (start, is_https) in all {
        let server = start(&authority, "dns.test");
        for i in 0..10 {
            server.set_ips(&format!("n{i}.test"), A, &["192.0.2.1"]);
        }
        run(async || {
            let names = |name: &str, authority: &Authority| {
                let config = model::Dns { upstreams: vec![secure(&server, name, is_https)], ..config(&[]) };
                Dns::new(shared_under(&config, authority.roots())).scope(&Dial::default())
            };
            for (name, authority) in [("else.test", &authority), ("dns.test", &other)] {
                let names = names(name, authority);
                let refused = error(&names, "n0.test", AddressFamilies::V4Only).await;
                let text = std::error::Error::source(&refused).map(ToString::to_string).unwrap_or_default();
                assert!(text.contains("certificate"), "{refused:?}");
            }
            let before = server.connections();
            assert_eq!(server.asked("n0.test", A), 0);
            let names = names("dns.test", &authority);
            for round in 0..2 {
                let mut all = adit_net::race::Race::new();
                for i in 0..10 {
                    let (names, family) = (&names, [AddressFamilies::V4Only, AddressFamilies::Any][round]);
                    all.push(async move { texts(names, &format!("n{i}.test"), family).await });
                }
                while let Some(found) = all.next().await {
                    assert_eq!(found, ["192.0.2.1"]);
                }
            }
            assert_eq!(server.connections() - before, 1, "{is_https}");
        });
    }
}

/// Opens streams straight, and notes through what and to where.
#[derive(Default)]
struct Noted(RefCell<Vec<String>>);

impl Streams for Noted {
    fn decide(&self, default: &Tag, to: &Target, _: Option<&[IpAddr]>) -> OwnRoute {
        self.0.borrow_mut().push(format!("rules {to}"));
        match &**default {
            "straight" => OwnRoute::Outbound(default.clone()),
            "refused" => OwnRoute::Refused,
            _ => OwnRoute::Outbound("home".into()),
        }
    }

    fn connect<'a>(&'a self, via: &'a str, to: &'a Target) -> OpeningStream<'a> {
        self.0.borrow_mut().push(format!("{via} {to}"));
        Box::pin(async move {
            let at = adit_net::dial::Dialer::by_system(&Dial::default());
            at.dial(to).await.map(Stream::from).map_err(io::Error::other)
        })
    }
}

#[test]
fn servers_behind_an_outbound_are_reached_through_it() {
    let (server, bootstrap) = (NameServer::start(), NameServer::start());
    server.set_ips("a.test", A, &["192.0.2.1"]);
    bootstrap.set_ips("dns.test", A, &["127.0.0.1"]);
    let port = server.addr.port();
    for (host, bootstrap, asked) in
        [("127.0.0.1", vec![], 0), ("localhost", vec![], 0), ("dns.test", vec![bootstrap.addr], 1)]
    {
        let server = format!("{host}:{port}").parse().unwrap();
        let (transport, through) = (DnsTransport::Udp, Some("home".into()));
        let bootstrap = bootstrap.iter().copied().map(Into::into).collect();
        let behind = Upstream { name: "u".into(), transport, server, bootstrap, through, by_rules: None };
        let config = model::Dns { upstreams: vec![Arc::new(behind)], ..config(&[]) };
        run(async || {
            let dns = service(&config);
            let names = dns.scope(&Dial::default());
            assert!(matches!(error(&names, "b.test", AddressFamilies::V4Only).await, ResolveError::Io(_)));
            let noted = Rc::new(Noted::default());
            dns.set_streams(noted.clone());
            assert_eq!(texts(&names, "a.test", AddressFamilies::V4Only).await, ["192.0.2.1"]);
            let host = if asked == 0 { host } else { "127.0.0.1" };
            assert_eq!(*noted.0.borrow(), [format!("home {host}:{port}")]);
        });
    }
    assert_eq!(bootstrap.asked("dns.test", A), 1);
}

#[test]
fn rules_say_how_a_server_is_reached() {
    let server = NameServer::start();
    server.set_ips("a.test", A, &["192.0.2.1"]);
    for (by_rules, is_known, wants) in [
        ("straight", true, vec![format!("rules {}", server.addr)]),
        ("other", true, vec![format!("rules {}", server.addr), "CONNECT".to_owned()]),
        ("refused", false, vec![format!("rules {}", server.addr)]),
    ] {
        let behind = Upstream { by_rules: Some(by_rules.into()), ..(*plain(server.addr)).clone() };
        let config = model::Dns { upstreams: vec![Arc::new(behind)], ..config(&[]) };
        run(async || {
            let dns = service(&config);
            let names = dns.scope(&Dial::default());
            let noted = Rc::new(Noted::default());
            dns.set_streams(noted.clone());
            let found = names.lookup("a.test", AddressFamilies::V4Only).await;
            assert_eq!(found.is_ok(), is_known, "{by_rules}: {found:?}");
            let mut said = noted.0.borrow().clone();
            said.dedup();
            let connect = format!("home {}", server.addr);
            let wants: Vec<String> = wants.iter().map(|want| want.replace("CONNECT", &connect)).collect();
            assert!(said.starts_with(&wants) && said.contains(&connect) == (by_rules == "other"), "{said:?}");
        });
    }
}

#[test]
fn policies_about_lists_hold_for_names_that_no_domain_is_about() {
    use adit_model::entries::{Entries, Scope, Sets};
    let (first, office) = (NameServer::start(), NameServer::start());
    for (server, ip) in [(&first, "192.0.2.1"), (&office, "192.0.2.2")] {
        for name in ["a.test", "b.list.test", "c.list.test", "word.test"] {
            server.set_ips(name, A, &[ip]);
        }
    }
    let policy = |domain: &str, server| DnsPolicy {
        domain: domain.into(),
        upstreams: upstreams(&[server]),
        direct: false,
    };
    let policies = vec![policy("rule-set:own", &office), policy("=c.list.test", &first)];
    let config = model::Dns { policy: policies, ..config(&[&first]) };
    let mut entries = Entries::default();
    entries.add_name("list.test", Scope::Tree);
    entries.keywords.push("word".into());
    let mut sets = Sets::default();
    sets.insert("own".into(), entries);
    run(async || {
        let dns = service(&config);
        let names = dns.scope(&Dial::default());
        assert_eq!(
            texts(&names, "word.test", AddressFamilies::V4Only).await,
            ["192.0.2.1"],
            "no list is there yet"
        );
        dns.shared().flush();
        dns.shared().set_named(vec![(1, NameList::new("own", &sets))]);
        for (name, ip) in [
            ("a.test", "192.0.2.1"),
            ("b.list.test", "192.0.2.2"),
            ("c.list.test", "192.0.2.1"),
            ("word.test", "192.0.2.2"),
        ] {
            assert_eq!(texts(&names, name, AddressFamilies::V4Only).await, [ip], "{name}");
        }
    });
}

struct Flag(AtomicUsize);

impl Wake for Flag {
    fn wake(self: Arc<Self>) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }
}

#[test]
fn datagrams_find_names_without_waiting() {
    let server = NameServer::start();
    server.set_ips("both.test", A, &["192.0.2.1"]);
    server.set_ips("both.test", AAAA, &["2001:db8::1"]);
    server.set_ips("six.test", AAAA, &["2001:db8::6"]);
    server.set(
        "late.test",
        A,
        Reply::Late(Duration::from_millis(100), Box::new(Reply::Ips(ips(&["192.0.2.9"]), 60))),
    );
    run(async || {
        let names = names(&config(&[&server]));
        let flag = Arc::new(Flag(AtomicUsize::new(0)));
        let waker = flag.clone().into();
        let settled = async |name: &str| {
            for _ in 0..6000 {
                match names.find(name, Some(&waker), rt::now()) {
                    TargetLookup::Pending => rt::sleep(Duration::from_millis(10)).await,
                    found @ (TargetLookup::Address(_) | TargetLookup::Nothing) => return found,
                }
            }
            TargetLookup::Pending
        };
        assert_eq!(names.find("both.test", Some(&waker), rt::now()), TargetLookup::Pending);
        assert_eq!(settled("both.test").await, TargetLookup::Address(ips(&["192.0.2.1"])[0]));
        assert_eq!(settled("six.test").await, TargetLookup::Address(ips(&["2001:db8::6"])[0]));
        assert_eq!(settled("gone.test").await, TargetLookup::Nothing);

        let before = flag.0.load(Ordering::Relaxed);
        for _ in 0..1000 {
            assert_eq!(names.find("late.test", Some(&waker), rt::now()), TargetLookup::Pending);
        }
        assert_eq!(settled("late.test").await, TargetLookup::Address(ips(&["192.0.2.9"])[0]));
        let woken = flag.0.load(Ordering::Relaxed) - before;
        assert!((1..=2).contains(&woken), "once for each type, however many datagrams came: {woken}");
        let asked = server.asked("both.test", 0);
        for _ in 0..1000 {
            assert!(matches!(names.find("both.test", None, rt::now()), TargetLookup::Address(_)));
        }
        assert_eq!(server.asked("both.test", 0), asked);
    });
}

#[test]
fn a_flood_of_names_is_bounded() {
    let server = NameServer::start();
    run(async || {
        let dns = service(&model::Dns { cache: 100, ..config(&[&server]) });
        let names = dns.scope(&Dial { family: AddressFamilies::V4Only, ..Dial::default() });
        // Nothing is answered meanwhile: this loop does not let the tasks run.
        for i in 0..20_000 {
            let found = names.find(&format!("n{i}.test"), None, rt::now());
            assert_eq!(found, TargetLookup::Pending, "{i}");
        }
        assert_eq!(dns.shared.sizes(), (0, most_flights()));
    });
    // The event loop is gone, and with it the questions.
    run(async || {
        let dns = service(&model::Dns { cache: 100, ..config(&[&server]) });
        for i in 0..2000 {
            let begun = dns.shared.begin(Asker::Own, &format!("n{i}.test"), 0, 1, rt::now());
            let body = Body::Addresses(ips(&["192.0.2.1"]).into());
            begun.ticket.unwrap().finish(Ok((body, 60)), rt::now());
        }
        assert_eq!(dns.shared.sizes(), (100, 0));
    });
}

/// Silence for the questions of one client costs another one nothing, and no name is remembered as one that failed.
#[test]
fn the_oldest_question_of_a_greedy_client_gives_way() {
    let server = NameServer::start();
    run(async || {
        let dns = service(&config(&[&server]));
        let list = dns.shared.system_list();
        let [greedy, other] = [1, 2].map(|n| Asker::Client(IpAddr::from([192, 0, 2, n])));
        let begin = |asker, name: &str| match dns.begin_for(asker, name, &list, RecordType::A, rt::now()) {
            Begins::Wait(flight) => flight,
            Begins::Known(_) => panic!("nothing is known"),
        };
        let (first, second) = (begin(other, "other.test"), begin(greedy, "n0.test"));
        for i in 1..2 * most_flights() {
            begin(greedy, &format!("n{i}.test"));
        }
        assert!(first.poll(None).is_none(), "it is being asked for");
        assert!(matches!(second.poll(None), Some(Err(ResolveError::Busy))));
        assert!(begin(greedy, "n0.test").poll(None).is_none(), "it is asked for once more");
        assert_eq!(dns.shared.sizes(), (0, most_flights()));
    });
}

#[test]
fn a_question_that_nobody_answers_any_more_is_over() {
    let server = NameServer::start();
    server.set("a.test", A, Reply::Silence);
    let shared = shared(&config(&[&server]));
    run(async || {
        let names = Dns::new(shared.clone()).scope(&Dial::default());
        assert_eq!(names.find("a.test", None, rt::now()), TargetLookup::Pending);
        until("the question is out", async || server.asked("a.test", 0) > 0).await;
        assert_ne!(shared.sizes().1, 0);
    });
    assert_eq!(shared.sizes().1, 0, "its event loop has ended");
}

#[test]
fn clients_can_ask_whole_questions() {
    let server = NameServer::start();
    server.set_ips("a.test", A, &["192.0.2.1", "192.0.2.2"]);
    server.set("a.test", AAAA, Reply::Empty(60));
    let text = |question: &[u8]| vec![message(question.to_vec(), 0, &[record(16, 60, b"\x05hello")], &[])];
    server.set("a.test", 16, Reply::Raw(Arc::new(text)));
    let hosts = vec![("fixed.test".into(), ips(&["192.0.2.7"]))];
    run(async || {
        let port = Answerer::plain(names(&model::Dns { hosts, ..config(&[&server]) }));
        let ask = async |name: &str, kind: RecordType| {
            let question = question(&absolute(name).unwrap(), kind, 99, true).unwrap();
            Message::from_vec(&port.query(&question, 1232).await.unwrap()).unwrap()
        };
        for round in 0..2 {
            let answer = ask("a.test", RecordType::A).await;
            assert_eq!((answer.metadata.id, answer.answers.len()), (99, 2), "{round}");
            assert!((1..=60).contains(&answer.answers[0].ttl));
            assert!(answer.metadata.recursion_available && answer.edns.is_some());
            assert!(ask("a.test", RecordType::AAAA).await.answers.is_empty());
            assert_eq!(ask("a.test", RecordType::TXT).await.answers.len(), 1);
            assert_eq!(ask("gone.test", RecordType::A).await.metadata.response_code, ResponseCode::NXDomain);
            assert_eq!(ask("fixed.test", RecordType::A).await.answers.len(), 1);
            assert_eq!(ask("a.test", RecordType::ANY).await.metadata.response_code, ResponseCode::NotImp);
        }
        assert_eq!((server.asked("a.test", A), server.asked("a.test", 16)), (1, 1));
        let one = question(&absolute("a.test").unwrap(), RecordType::A, 1, false).unwrap();
        for len in 0..one.len() {
            let answer = port.query(&one[..len], 512).await;
            let code = answer.map(|answer| Message::from_vec(&answer).unwrap().metadata.response_code);
            assert_eq!(code, (len >= 12).then_some(ResponseCode::FormErr), "{len}");
        }
    });
}
