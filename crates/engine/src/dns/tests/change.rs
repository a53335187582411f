//! Another configuration while questions are under way and answers are remembered.

use adit_model::DnsFallback;
use adit_model::rule::Cidr;

use super::*;

/// Takes another configuration on this core, as a reload has it.
fn follow(dns: &Rc<Dns>, config: &model::Dns) {
    dns.follow(dns.shared().change(config, rt::now()));
}

fn policy(domain: &str, server: &NameServer) -> DnsPolicy {
    DnsPolicy { domain: domain.into(), upstreams: upstreams(&[server]), direct: false }
}

fn with(server: &NameServer, ip: &str) {
    for name in ["a.test", "b.office.test"] {
        server.set_ips(name, A, &[ip]);
    }
}

#[test]
fn answers_of_servers_that_stay_are_kept() {
    let (usual, office, own) = (NameServer::start(), NameServer::start(), NameServer::start());
    with(&usual, "192.0.2.1");
    with(&office, "192.0.2.2");
    with(&own, "192.0.2.3");
    let first = config(&[&usual]);
    run(async || {
        let dns = service(&first);
        let names = dns.scope(&Dial { family: AddressFamilies::V4Only, ..Dial::default() });
        let of_own = dns.scope(&Dial {
            dns: vec![own.addr.into()],
            family: AddressFamilies::V4Only,
            ..Dial::default()
        });
        let ask = async |names: &Scope, name: &str| texts(names, name, names.family()).await.join(" ");
        for name in ["a.test", "b.office.test"] {
            assert_eq!(ask(&names, name).await, "192.0.2.1");
            assert_eq!(ask(&of_own, name).await, "192.0.2.3");
        }
        // Hosts alone.
        let hosts = vec![("c.test".into(), ips(&["192.0.2.9"]))];
        let second = model::Dns { hosts, ..first.clone() };
        follow(&dns, &second);
        assert_eq!(ask(&names, "c.test").await, "192.0.2.9");
        assert_eq!(ask(&names, "a.test").await, "192.0.2.1");
        // A policy: its names are asked for anew, the others are not.
        let third = model::Dns { policy: vec![policy("office.test", &office)], ..second.clone() };
        follow(&dns, &third);
        assert_eq!(ask(&names, "b.office.test").await, "192.0.2.2");
        assert_eq!(ask(&names, "a.test").await, "192.0.2.1");
        // The same policy behind another one, and other servers for the rest.
        let both = vec![policy("else.test", &usual), policy("office.test", &office)];
        let fourth = model::Dns { policy: both, ..config(&[&own]) };
        follow(&dns, &fourth);
        assert_eq!(ask(&names, "b.office.test").await, "192.0.2.2");
        assert_eq!(ask(&names, "a.test").await, "192.0.2.3");
        assert_eq!(ask(&of_own, "a.test").await, "192.0.2.3");
        let error = names.lookup("c.test", AddressFamilies::V4Only).await.unwrap_err();
        assert!(matches!(error, ResolveError::NotFound), "the host is gone: {error}");
        let asked = |server: &NameServer| [server.asked("a.test", A), server.asked("b.office.test", A)];
        assert_eq!((asked(&usual), asked(&office), asked(&own)), ([1, 1], [0, 1], [1, 1]));
    });
}

#[test]
fn a_question_under_way_ends_as_it_began() {
    let (old, new) = (NameServer::start(), NameServer::start());
    let (release, late) = held("192.0.2.1");
    old.set("a.test", A, late);
    new.set_ips("a.test", A, &["192.0.2.2"]);
    run(async || {
        let dns = service(&over_tcp(&old));
        let names = dns.scope(&Dial { family: AddressFamilies::V4Only, ..Dial::default() });
        let mut answers = names.start("a.test", AddressFamilies::V4Only);
        assert_eq!(names.find("a.test", None, rt::now()), TargetLookup::Pending);
        until("the question is out", async || old.asked("a.test", A) == 1).await;
        follow(&dns, &config(&[&new]));
        assert_eq!(texts(&names, "a.test", AddressFamilies::V4Only).await, ["192.0.2.2"], "a new question");
        release.send(()).unwrap();
        assert_eq!(next_answer(&mut *answers).await.unwrap(), ips(&["192.0.2.1"]), "the one from before");
        assert_eq!(names.find("a.test", None, rt::now()), TargetLookup::Address(ips(&["192.0.2.2"])[0]));
        assert_eq!((old.asked("a.test", A), new.asked("a.test", A)), (1, 1));
        assert_eq!(dns.shared.sizes().1, 0);
    });
}

#[test]
fn families_hosts_and_names_behind_addresses_follow() {
    let server = NameServer::start();
    server.set_ips("a.test", A, &["192.0.2.1"]);
    server.set_ips("a.test", AAAA, &["2001:db8::1"]);
    let first = model::Dns { reverse_map: true, ..config(&[&server]) };
    run(async || {
        let dns = service(&first);
        let names = dns.scope(&Dial::default());
        assert_eq!(texts(&names, "a.test", AddressFamilies::Any).await.len(), 2);
        assert_eq!(names.find("a.test", None, rt::now()), TargetLookup::Address(ips(&["192.0.2.1"])[0]));
        dns.note_answer("a.test", &ips(&["192.0.2.1"]), Duration::from_secs(60), rt::now());
        let behind = |dns: &Dns| dns.name_behind(ips(&["192.0.2.1"])[0], rt::now());
        assert_eq!(behind(&dns).as_deref(), Some("a.test"));
        let six = model::Dns { family: AddressFamilies::V6Only, ..first.clone() };
        follow(&dns, &six);
        assert_eq!((names.family(), behind(&dns).is_some()), (AddressFamilies::V6Only, true));
        // The dialer of an outbound asks for it each time.
        assert_eq!(Resolve::family(&names, AddressFamilies::Any), AddressFamilies::V6Only);
        assert_eq!(Resolve::family(&names, AddressFamilies::V4Only), AddressFamilies::V4Only);
        assert_eq!(names.find("a.test", None, rt::now()), TargetLookup::Address(ips(&["2001:db8::1"])[0]));
        let hosts = vec![("a.test".into(), ips(&["2001:db8::7"]))];
        follow(&dns, &model::Dns { hosts, reverse_map: false, ..six.clone() });
        assert_eq!(names.find("a.test", None, rt::now()), TargetLookup::Address(ips(&["2001:db8::7"])[0]));
        assert_eq!(behind(&dns), None);
        follow(&dns, &first);
        assert_eq!(behind(&dns), None, "it was forgotten");
        assert_eq!(server.asked("a.test", A), 1);
    });
}

/// Lists that nobody has any more are not remembered.
#[test]
fn a_thousand_changes_hold_no_more_than_one() {
    run(async || {
        let dns = service(&model::Dns::default());
        for port in 1..=1000 {
            let server = plain(SocketAddr::from(([192, 0, 2, 1], port)));
            follow(&dns, &model::Dns { upstreams: vec![server], ..model::Dns::default() });
        }
        assert!(dns.shared.lists() <= 2, "{}", dns.shared.lists());
    });
}

/// A fallback that comes, changes and goes: answers that an earlier one has believed are asked for anew.
#[test]
fn another_fallback_judges_anew() {
    let (usual, other) = (NameServer::start(), NameServer::start());
    with(&usual, "192.0.2.1");
    with(&other, "192.0.2.2");
    let first = config(&[&usual]);
    let untrusted = |network: &str| {
        let untrusted = vec![Cidr::parse(network).unwrap()];
        let fallback = DnsFallback { upstreams: upstreams(&[&other]), trusted: Vec::new(), untrusted };
        model::Dns { fallback: Some(Box::new(fallback)), ..first.clone() }
    };
    run(async || {
        let dns = service(&first);
        let names = dns.scope(&Dial { family: AddressFamilies::V4Only, ..Dial::default() });
        let ask = async || texts(&names, "a.test", AddressFamilies::V4Only).await.join(" ");
        assert_eq!(ask().await, "192.0.2.1");
        follow(&dns, &untrusted("192.0.2.0/24"));
        assert_eq!(ask().await, "192.0.2.2");
        follow(&dns, &untrusted("198.51.100.0/24"));
        assert_eq!(ask().await, "192.0.2.1");
        follow(&dns, &untrusted("192.0.2.0/24"));
        assert_eq!(ask().await, "192.0.2.2");
        follow(&dns, &first);
        assert_eq!(ask().await, "192.0.2.1");
        // The policy's servers are believed, though they are those of the usual list.
        let mut own = untrusted("192.0.2.0/24");
        own.policy = vec![policy("test", &usual)];
        follow(&dns, &own);
        assert_eq!(ask().await, "192.0.2.1");
    });
}
