use std::fs;

use tokio::time::{sleep, timeout};

use super::*;
use crate::testing::{A, AAAA, NameServer, Reply, in_time};

const FAMILIES: [Family; 4] = [Family::Any, Family::PreferV4, Family::V4Only, Family::V6Only];

fn resolver(servers: &[&NameServer]) -> Resolver {
    let addrs: Vec<SocketAddr> = servers.iter().map(|server| server.addr).collect();
    Resolver::with_files(&addrs, Path::new("/nonexistent"), Path::new("/nonexistent"))
}

async fn texts(resolver: &Resolver, name: &str, family: Family) -> Vec<String> {
    resolver.lookup(name, family).await.unwrap().iter().map(IpAddr::to_string).collect()
}

async fn error(resolver: &Resolver, name: &str, family: Family) -> ResolveError {
    resolver.lookup(name, family).await.unwrap_err()
}

#[tokio::test(flavor = "local")]
async fn addresses_and_localhost_ask_nobody() {
    let server = NameServer::start("127.0.0.1").await;
    let resolver = resolver(&[&server]);
    assert_eq!(texts(&resolver, "192.0.2.1", Family::Any).await, ["192.0.2.1"]);
    assert_eq!(texts(&resolver, "::ffff:192.0.2.1", Family::V4Only).await, ["192.0.2.1"]);
    assert!(matches!(error(&resolver, "192.0.2.1", Family::V6Only).await, ResolveError::NoAddress));
    assert_eq!(texts(&resolver, "localhost", Family::Any).await, ["::1", "127.0.0.1"]);
    assert_eq!(texts(&resolver, "a.LocalHost", Family::PreferV4).await, ["127.0.0.1", "::1"]);
    assert_eq!(texts(&resolver, "localhost", Family::V6Only).await, ["::1"]);
    assert!(resolver.state.borrow().is_none(), "nothing was built");
}

#[tokio::test(flavor = "local")]
async fn families_choose_records_and_order() {
    let server = NameServer::start("127.0.0.1").await;
    server.set_ips("both.test", A, &["192.0.2.1", "192.0.2.2"]);
    server.set_ips("both.test", AAAA, &["2001:db8::1"]);
    server.set_ips("six.test", AAAA, &["2001:db8::6", "::ffff:192.0.2.9"]);
    server.set("six.test", A, Reply::Empty(60));
    let resolver = resolver(&[&server]);

    assert_eq!(texts(&resolver, "Both.test", Family::Any).await, ["2001:db8::1", "192.0.2.1", "192.0.2.2"]);
    assert_eq!(texts(&resolver, "both.test", Family::PreferV4).await[0], "192.0.2.1");
    assert_eq!(texts(&resolver, "both.test", Family::V6Only).await, ["2001:db8::1"]);
    assert_eq!(texts(&resolver, "six.test", Family::Any).await, ["2001:db8::6"], "no mapped address");
    assert!(matches!(error(&resolver, "six.test", Family::V4Only).await, ResolveError::NoAddress));
}

#[tokio::test(flavor = "local")]
async fn a_family_that_is_not_used_is_not_asked_for() {
    let server = NameServer::start("127.0.0.1").await;
    server.set_ips("both.test", A, &["192.0.2.1"]);
    let resolver = resolver(&[&server]);
    texts(&resolver, "both.test", Family::V4Only).await;
    assert_eq!((server.asked("both.test", A), server.asked("both.test", AAAA)), (1, 0));
}

#[test]
fn answers_are_kept_for_their_time_to_live() {
    in_time(async || {
        let server = NameServer::start("127.0.0.1").await;
        server.set("short.test", A, Reply::Ips(vec!["192.0.2.1".parse().unwrap()], 1));
        let resolver = resolver(&[&server]);
        for _ in 0..3 {
            texts(&resolver, "short.test", Family::V4Only).await;
        }
        assert_eq!(server.asked("short.test", A), 1);
        server.set_ips("short.test", A, &["192.0.2.2"]);
        sleep(Duration::from_millis(1100)).await;
        assert_eq!(texts(&resolver, "short.test", Family::V4Only).await, ["192.0.2.2"]);
        assert_eq!(server.asked("short.test", A), 2);
    });
}

#[tokio::test(flavor = "local")]
async fn missing_names_are_remembered_too() {
    let server = NameServer::start("127.0.0.1").await;
    server.set("gone.test", A, Reply::Missing(1));
    let resolver = resolver(&[&server]);
    for _ in 0..3 {
        assert!(matches!(error(&resolver, "gone.test", Family::V4Only).await, ResolveError::NotFound));
    }
    assert_eq!(server.asked("gone.test", A), 1);
    sleep(Duration::from_millis(1100)).await;
    error(&resolver, "gone.test", Family::V4Only).await;
    assert_eq!(server.asked("gone.test", A), 2);
}

#[test]
fn a_silent_server_is_passed_over_and_then_demoted() {
    in_time(async || {
        let (first, second) = (NameServer::start("127.0.0.1").await, NameServer::start("127.0.0.1").await);
        for name in ["a.test", "b.test"] {
            first.set(name, A, Reply::Silence);
            second.set_ips(name, A, &["192.0.2.1"]);
        }
        let resolver = resolver(&[&first, &second]);
        let start = Instant::now();
        texts(&resolver, "a.test", Family::V4Only).await;
        let waited = start.elapsed();
        assert!(waited >= Duration::from_millis(990) && waited < Duration::from_secs(3), "{waited:?}");

        let start = Instant::now();
        texts(&resolver, "b.test", Family::V4Only).await;
        assert!(start.elapsed() < Duration::from_millis(500), "the second server is asked first");
        assert_eq!(first.asked("b.test", 0), 0);
    });
}

#[test]
fn a_failing_server_is_passed_over_at_once() {
    in_time(async || {
        let (first, second) = (NameServer::start("127.0.0.1").await, NameServer::start("127.0.0.1").await);
        first.set("a.test", A, Reply::Code(2));
        first.set("bad.test", A, Reply::Code(5));
        second.set_ips("a.test", A, &["192.0.2.1"]);
        second.set("bad.test", A, Reply::Code(2));
        first.set_ips("only-first.test", A, &["192.0.2.3"]);
        let resolver = resolver(&[&first, &second]);

        let start = Instant::now();
        assert_eq!(texts(&resolver, "only-first.test", Family::V4Only).await, ["192.0.2.3"]);
        assert_eq!(texts(&resolver, "a.test", Family::V4Only).await, ["192.0.2.1"]);
        assert!(matches!(error(&resolver, "bad.test", Family::V4Only).await, ResolveError::Server(_)));
        assert!(start.elapsed() < Duration::from_millis(900), "{:?}", start.elapsed());
    });
}

#[test]
fn answers_can_be_had_as_they_arrive() {
    in_time(async || {
        let server = NameServer::start("127.0.0.1").await;
        let six = Reply::Ips(vec!["2001:db8::1".parse().unwrap()], 60);
        server.set("slow.test", AAAA, Reply::Late(Duration::from_millis(200), Box::new(six)));
        server.set_ips("slow.test", A, &["192.0.2.1"]);
        let resolver = resolver(&[&server]);
        let mut answers = resolver.start("slow.test", Family::Any);
        let first = timeout(Duration::from_millis(150), answers.next()).await.unwrap().unwrap();
        assert_eq!(first, ["192.0.2.1".parse::<IpAddr>().unwrap()]);
        assert!(timeout(Duration::from_millis(10), answers.next()).await.is_err());
        assert_eq!(answers.next().await.unwrap(), ["2001:db8::1".parse::<IpAddr>().unwrap()]);
        assert_eq!(answers.next().await, None);
    });
}

#[tokio::test(flavor = "local")]
async fn names_that_are_none() {
    let server = NameServer::start("127.0.0.1").await;
    let resolver = resolver(&[&server]);
    let long_label = format!("{}.test", "a".repeat(64));
    for name in ["", "a..b", "a\\.b", long_label.as_str(), &"a.".repeat(128)] {
        assert!(matches!(error(&resolver, name, Family::Any).await, ResolveError::BadName), "{name:?}");
    }
    for (name, asked) in
        [("_srv.under_score.test", "_srv.under_score.test"), ("b\u{fc}cher.test", "xn--bcher-kva.test")]
    {
        server.set_ips(asked, A, &["192.0.2.1"]);
        assert_eq!(texts(&resolver, name, Family::V4Only).await, ["192.0.2.1"], "{name}");
    }
}

#[tokio::test(flavor = "local")]
async fn the_hosts_file_comes_first_and_is_read_again() {
    let server = NameServer::start("127.0.0.1").await;
    server.set_ips("web.test", A, &["192.0.2.1"]);
    let hosts = std::env::temp_dir().join(format!("adit-hosts-{}", std::process::id()));
    fs::write(&hosts, "192.0.2.77 web.test\n2001:db8::77 web.test\n").unwrap();
    let resolver = Resolver::with_files(&[server.addr], Path::new("/nonexistent"), &hosts);
    for family in FAMILIES {
        let first = texts(&resolver, "WEB.test", family).await.remove(0);
        assert_eq!(first.contains(':'), matches!(family, Family::Any | Family::V6Only), "{family:?}");
    }
    assert_eq!(server.asked("web.test", 0), 0);

    fs::remove_file(&hosts).unwrap();
    let state = resolver.state().unwrap();
    state.checked.set(Instant::now().checked_sub(CHECK_FILES_EVERY).unwrap());
    assert_eq!(texts(&resolver, "web.test", Family::V4Only).await, ["192.0.2.1"]);
}

#[tokio::test(flavor = "local")]
async fn short_names_are_searched_for_and_long_ones_are_not() {
    let server = NameServer::start("127.0.0.1").await;
    server.set_ips("web.lan.test", A, &["192.0.2.1"]);
    server.set_ips("bare", A, &["192.0.2.2"]);
    let state = State {
        hosts: Hosts::default(),
        servers: Servers::new(&[server.addr]).unwrap(),
        search: ["corp.test", "lan.test"].iter().map(|domain| absolute(domain).unwrap()).collect(),
        ndots: 1,
        stamps: [None, None],
        checked: Cell::new(Instant::now()),
    };
    let resolver = resolver(&[&server]);
    *resolver.state.borrow_mut() = Some(Rc::new(state));

    assert_eq!(texts(&resolver, "web", Family::Any).await, ["192.0.2.1"]);
    assert_eq!(server.asked("web.corp.test", 0), 2);
    assert_eq!(server.asked("web", 0), 0);
    assert_eq!(texts(&resolver, "bare", Family::V4Only).await, ["192.0.2.2"]);
    assert!(matches!(error(&resolver, "gone.example", Family::Any).await, ResolveError::NotFound));
    assert_eq!(server.asked("gone.example.corp.test", 0), 0);
}

#[tokio::test(flavor = "local")]
async fn all_servers_silent_is_a_timeout() {
    let server = NameServer::start("127.0.0.1").await;
    server.set("a.test", A, Reply::Silence);
    let resolver = resolver(&[&server]);
    assert!(matches!(error(&resolver, "a.test", Family::V4Only).await, ResolveError::Timeout));
}
