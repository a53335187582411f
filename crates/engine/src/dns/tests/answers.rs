//! A port that answers questions: short answers, fake addresses, direct names.

use std::collections::BTreeSet;
use std::sync::Mutex;

use adit_model::entries::Sets;
use adit_model::{DnsInbound, Fake as FakeConfig, FakeStore};
use hickory_proto::rr::RData;

use super::*;
use crate::dns::{Answerer, DirectNames, FastAnswer, Filter};

/// Names below `direct.test` are direct, those below `proxy.test` are not, others by their addresses in 192.0.2.0/24.
struct Rules;

impl DirectNames for Rules {
    fn is_direct(&self, name: &str, addresses: Option<&[IpAddr]>) -> Option<bool> {
        match name {
            name if name.ends_with("direct.test") => Some(true),
            name if name.ends_with("proxy.test") => Some(false),
            _ => addresses.map(|ips| ips.iter().all(|ip| ip.to_string().starts_with("192.0.2."))),
        }
    }
}

fn with_fake(config: model::Dns, range6: Option<&str>) -> Arc<DnsShared> {
    let fake = FakeConfig {
        v6: range6.map(|text| text.parse().unwrap()),
        ttl: Duration::from_secs(7),
        store: FakeStore::Off,
        ..FakeConfig::default()
    };
    let mut shared = DnsShared::with_system(
        &model::Dns { fake: Some(fake.clone()), ..config },
        System::new(Path::new(NOWHERE), Path::new(NOWHERE)),
        Roots::System,
    );
    let (pool, warning) = Fake::open(&fake, &model::StateFile::Off);
    assert_eq!(warning, None);
    pool.set_filter(Filter::new(&fake, &Sets::default(), BTreeSet::from(["server.test".into()])));
    shared.fake = Some(Arc::new(pool));
    Arc::new(shared)
}

fn port(shared: &Arc<DnsShared>, config: &DnsInbound) -> Answerer {
    Answerer::new(&Dns::new(shared.clone()), config, Rc::new(Rules))
}

/// The answer at once, if there is one.
fn at_once(port: &Answerer, name: &str, kind: RecordType) -> Option<Message> {
    let question = question(&absolute(name).unwrap(), kind, 77, false).unwrap();
    let mut out = Vec::new();
    match port.answer(&question, rt::now(), &mut out) {
        FastAnswer::Written => {
            let answer = Message::from_vec(&out).unwrap();
            assert_eq!((answer.metadata.id, answer.queries.len()), (77, 1));
            assert!(answer.metadata.recursion_desired && answer.metadata.recursion_available);
            Some(answer)
        }
        FastAnswer::Ask(_) => None,
        FastAnswer::Nothing => panic!("a question"),
    }
}

async fn asked(port: &Answerer, name: &str, kind: RecordType) -> Vec<String> {
    let question = question(&absolute(name).unwrap(), kind, 78, false).unwrap();
    let answer = Message::from_vec(&port.query(&question, 1232).await.unwrap()).unwrap();
    answer.answers.iter().map(|record| record.data.ip_addr().unwrap().to_string()).collect()
}

/// Code, and the record as text with its lifetime.
fn summary(answer: &Message) -> (ResponseCode, Option<(String, u32)>) {
    assert!(answer.answers.len() < 2);
    let record = answer.answers.first().map(|record| {
        assert_eq!(record.name, answer.queries[0].name, "of the name as it was asked");
        (record.data.to_string(), record.ttl)
    });
    (answer.metadata.response_code, record)
}

#[test]
fn each_type_has_its_fake_answer() {
    let hosts = vec![("fixed.test".into(), ips(&["192.0.2.7"]))];
    let server = NameServer::start();
    let policy =
        vec![DnsPolicy { domain: "office.test".into(), upstreams: upstreams(&[&server]), direct: true }];
    let dns = model::Dns { hosts, policy, disable_browser_doh: true, ..config(&[]) };
    run(async || {
        let four = port(&with_fake(dns.clone(), None), &DnsInbound::default());
        let six = port(&with_fake(dns.clone(), Some("fd00:adf::/64")), &DnsInbound::default());
        let of =
            |port: &Answerer, name: &str, kind: RecordType| at_once(port, name, kind).map(|a| summary(&a));
        let good = |text: &str| Some((ResponseCode::NoError, Some((text.to_owned(), 7))));
        let empty = Some((ResponseCode::NoError, None));
        for port in [&four, &six] {
            assert_eq!(of(port, "www.Example.com", RecordType::A), good("198.18.128.16"));
            assert_eq!(of(port, "WWW.example.com", RecordType::A), good("198.18.128.16"), "in any case");
            assert_eq!(of(port, "b.example.com", RecordType::A), good("198.18.128.17"));
            assert_eq!(of(port, "www.example.com", RecordType::HTTPS), empty);
            assert_eq!(of(port, "www.example.com", RecordType::SVCB), empty);
            assert_eq!(of(port, "16.128.18.198.in-addr.arpa", RecordType::PTR), good("www.example.com."));
            let missing = Some((ResponseCode::NXDomain, None));
            assert_eq!(of(port, "99.128.18.198.in-addr.arpa", RecordType::PTR), missing);
            assert_eq!(of(port, "use-application-dns.net", RecordType::A), missing);
            // Others are asked for.
            for kind in [RecordType::TXT, RecordType::MX, RecordType::SRV, RecordType::ANY, RecordType::NS] {
                assert_eq!(of(port, "www.example.com", kind), None, "{kind}");
            }
            for name in ["fixed.test", "localhost", "x.office.test", "server.test", "nas.local", "192.0.2.1"]
            {
                assert_eq!(of(port, name, RecordType::A), None, "{name}");
            }
            assert_eq!(of(port, "1.2.0.192.in-addr.arpa", RecordType::PTR), None, "not of the pool");
        }
        assert_eq!(of(&four, "www.example.com", RecordType::AAAA), empty);
        assert_eq!(of(&six, "www.example.com", RecordType::AAAA), good("fd00:adf::10"));
        assert_eq!(of(&six, "c.example.com", RecordType::AAAA), good("fd00:adf::12"), "one number for both");
        assert_eq!(of(&six, "c.example.com", RecordType::A), good("198.18.128.18"));
        let name = "0.1.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.f.d.a.0.0.0.d.f.ip6.arpa";
        assert_eq!(of(&six, name, RecordType::PTR), good("www.example.com."));

        let real = DnsInbound { fake: false, ipv6: false, ..DnsInbound::default() };
        let real = port(&with_fake(dns, None), &real);
        assert_eq!(of(&real, "www.example.com", RecordType::A), None, "this port has real addresses");
        assert_eq!(of(&real, "www.example.com", RecordType::AAAA), empty, "and none of IPv6");
    });
}

#[test]
fn direct_names_are_told_before_the_answer_leaves() {
    let (main, office) = (NameServer::start(), NameServer::start());
    office.set_ips("a.office.test", A, &["192.0.2.1", "192.0.2.2"]);
    office.set_ips("a.office.test", AAAA, &["2001:db8::1"]);
    main.set_ips("b.test", A, &["192.0.2.3"]);
    let policy =
        |direct| vec![DnsPolicy { domain: "office.test".into(), upstreams: upstreams(&[&office]), direct }];
    run(async || {
        let dns = model::Dns { policy: policy(true), reverse_map: true, ..config(&[&main]) };
        let shared = shared(&dns);
        let told: Arc<Mutex<Vec<String>>> = Arc::default();
        let list = told.clone();
        shared.set_bypass(Arc::new(move |ips, ttl| {
            assert!((1..=60).contains(&ttl.as_secs()));
            list.lock().unwrap().extend(ips.iter().map(IpAddr::to_string));
        }));
        let port = port(&shared, &DnsInbound::default());
        for _ in 0..2 {
            assert_eq!(asked(&port, "a.office.test", RecordType::A).await, ["192.0.2.1", "192.0.2.2"]);
            assert_eq!(*told.lock().unwrap(), ["192.0.2.1", "192.0.2.2"], "from the cache as well");
            told.lock().unwrap().clear();
        }
        asked(&port, "a.office.test", RecordType::AAAA).await;
        assert_eq!(std::mem::take(&mut *told.lock().unwrap()), ["2001:db8::1"]);
        asked(&port, "b.test", RecordType::A).await;
        assert!(told.lock().unwrap().is_empty(), "no direct name");
        let behind = |ip: &str| port.scope.dns.name_behind(ips(&[ip])[0], rt::now());
        assert_eq!(behind("192.0.2.3").as_deref(), Some("b.test"));
        assert_eq!(behind("2001:db8::1").as_deref(), Some("a.office.test"));
        assert_eq!(behind("192.0.2.9"), None);
    });
}

#[test]
fn rules_choose_the_servers() {
    let (near, far) = (NameServer::start(), NameServer::start());
    for (name, here, there) in [
        ("a.direct.test", "198.51.100.1", "203.0.113.1"),
        ("a.proxy.test", "192.0.2.1", "203.0.113.1"),
        ("local.test", "192.0.2.2", "203.0.113.1"),
        ("remote.test", "198.51.100.2", "203.0.113.1"),
    ] {
        near.set_ips(name, A, &[here]);
        far.set_ips(name, A, &[there]);
    }
    far.set_ips("gone.test", A, &["203.0.113.1"]);
    run(async || {
        let inbound = DnsInbound {
            upstreams: upstreams(&[&far]),
            direct: upstreams(&[&near]),
            ..DnsInbound::default()
        };
        let port = port(&shared(&config(&[])), &inbound);
        for (name, want) in [
            ("a.direct.test", "198.51.100.1"),
            ("a.proxy.test", "203.0.113.1"),
            ("local.test", "192.0.2.2"),
            ("remote.test", "203.0.113.1"),
            ("gone.test", "203.0.113.1"),
        ] {
            assert_eq!(asked(&port, name, RecordType::A).await, [want], "{name}");
        }
        assert_eq!(near.asked("a.proxy.test", A), 0, "its name alone decides");
        assert_eq!(
            far.asked("a.direct.test", A) + far.asked("local.test", A),
            0,
            "nor does the other one see it"
        );
    });
}

#[test]
fn a_question_that_cannot_be_asked_has_failed() {
    let server = NameServer::start();
    server.set("dead.test", A, Reply::Code(2));
    run(async || {
        let port = port(&shared(&config(&[&server])), &DnsInbound::default());
        let ask = |name: &str, kind| question(&absolute(name).unwrap(), kind, 5, true).unwrap();
        let message = ask("Dead.test", RecordType::A);
        let answer = Message::from_vec(&port.query(&message, 1232).await.unwrap()).unwrap();
        assert_eq!(answer.metadata.response_code, ResponseCode::ServFail);
        assert!(answer.metadata.recursion_desired && answer.metadata.recursion_available);
        assert_eq!(answer.queries[0].name.to_ascii(), "Dead.test.", "as it was asked");
        let mut out = Vec::new();
        assert!(Answerer::write_failure(&message, &mut out));
        assert_eq!(Message::from_vec(&out).unwrap().metadata.response_code, ResponseCode::ServFail);
        // A long answer is cut to the client's size.
        let many: Vec<String> = (0..32).map(|n| format!("2001:db8::{n:x}")).collect();
        let many: Vec<&str> = many.iter().map(String::as_str).collect();
        server.set_ips("many.test", AAAA, &many);
        let message = ask("many.test", RecordType::AAAA);
        for (max, is_cut) in [(100, true), (512, true), (1232, false)] {
            let bytes = port.query(&message, max).await.unwrap();
            let answer = Message::from_vec(&bytes).unwrap();
            assert!(bytes.len() <= max.max(512) && answer.metadata.truncation == is_cut, "{max}");
            assert!(answer.answers.iter().all(|record| matches!(record.data, RData::AAAA(_))));
        }
    });
}
