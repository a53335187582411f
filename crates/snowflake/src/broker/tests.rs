//! The recorded requests of both brokers, against this one.

use std::net::SocketAddr;
use std::rc::Rc;
use std::time::Duration;

use adit_model::SnowflakeBroker;
use adit_net::rt::{self, Cores, Stopper, Stream};
use adit_net::service::Service;
use adit_proto::snowflake::Scheme;
use adit_testkit::load;
use serde_json::Value;

use super::*;
use crate::testing::until;

/// Relays of the recorded brokers.
const BRIDGES: &str = "\
{\"displayName\":\"a\",\"webSocketAddress\":\"ws://203.0.113.2:8082/\",\"fingerprint\":\"2B280B23E1107BB62ABFC40DDCC8824814F80A72\"}
{\"displayName\":\"b\",\"webSocketAddress\":\"ws://203.0.113.2:8083/\",\"fingerprint\":\"8838024498816A039FCBBAB14E6F40A0843051FA\"}";

pub(super) fn settings(scheme: Scheme) -> SnowflakeBroker {
    SnowflakeBroker {
        listen: ([127, 0, 0, 1], 0).into(),
        tls: None,
        scheme,
        bridges: None,
        pattern: String::new(),
        default_pattern: (scheme == Scheme::Old).then(String::new),
        countries: None,
        metrics_log: None,
        poll_intervals: None,
        trusted_hops: 1,
        shows_addresses: false,
    }
}

/// A broker as the recorded ones were: their bridges, polls each 3 s, and the pattern "".
fn start(scheme: Scheme) -> (Rc<Broker>, SocketAddr, Stopper) {
    let mut broker = Broker::new(&settings(scheme)).unwrap();
    broker.settings.bridges = Some("given".into());
    broker.bridges = RefCell::new(Bridges::parse(BRIDGES).unwrap());
    broker.limits.borrow_mut().iter_mut().for_each(|limit| limit.interval = Duration::from_secs(3));
    let broker = Rc::new(broker);
    let (service, _) = Service::listen(broker.settings.listen).unwrap();
    let (address, (stopper, stop)) = (service.local_addr().unwrap(), Stopper::new());
    let asked = broker.clone();
    rt::spawn_local(service.serve(stop, move |request| {
        let broker = asked.clone();
        async move { broker.answer(request).await }
    }));
    (broker, address, stopper)
}

async fn connect(at: SocketAddr) -> Stream {
    let dialer = adit_net::dial::Dialer::by_system(&adit_model::Dial::default());
    dialer.dial_addrs(&[at]).await.unwrap().into()
}

/// The reply to a raw request; the connection ends behind it.
async fn ask(at: SocketAddr, request: &str) -> String {
    let stream = connect(at).await;
    stream.send_all(request.replacen("\r\n", "\r\nConnection: close\r\n", 1).as_bytes()).await.unwrap();
    let (mut reply, mut buffer) = (Vec::new(), vec![0; 64 << 10]);
    while let Ok(len) = stream.recv(&mut buffer).await
        && len > 0
    {
        reply.extend(&buffer[..len]);
    }
    String::from_utf8(reply).unwrap()
}

/// Status, sorted fields but those of the moment, and body.
fn parts(reply: &str) -> (String, Vec<String>, String) {
    let (head, body) = reply.split_once("\r\n\r\n").unwrap_or((reply, ""));
    let mut lines = head.lines();
    let status = lines.next().unwrap_or_default().to_owned();
    let mut fields: Vec<String> = lines.map(str::to_owned).collect();
    fields.retain(|line| !line.starts_with("Date: ") && !line.starts_with("Connection: "));
    fields.sort();
    (status, fields, body.to_owned())
}

/// As [`parts`], with the time of the next poll and the length that depends on it taken out.
fn timeless(reply: &str) -> (String, Vec<String>, String) {
    let (status, mut fields, body) = parts(reply);
    let Some((front, rest)) = body.split_once("\"NextPoll\":") else { return (status, fields, body) };
    let rest = rest.trim_start_matches(|c: char| c == '-' || c.is_ascii_digit());
    fields.retain(|line| !line.starts_with("Content-Length: "));
    let body = format!("{front}\"NextPoll\":{rest}");
    (status, fields, body)
}

fn request(row: &Value) -> &str {
    row["request"].as_str().unwrap()
}

/// Rows of a file whose order does not matter, without those that wait.
fn one_by_one(scheme: Scheme, file: &str) {
    let rows = load(file);
    Cores::block_on(async {
        let (_broker, at, _stopper) = start(scheme);
        let mut count = 0;
        for row in rows.as_array().unwrap() {
            let name = row["name"].as_str().unwrap();
            let is_long = row["seconds"].as_f64().is_none_or(|seconds| seconds > 1.0);
            if is_long || row["sequence"].is_array() || request(row).contains("bytes in all") {
                continue;
            }
            let reply = ask(at, request(row)).await;
            let want = row["response"].as_str().unwrap();
            if want.is_empty() {
                // Upstream drops the connection; here it is an answer.
                assert!(reply.starts_with("HTTP/1.1 400 "), "{name}: {reply}");
            } else {
                assert_eq!(timeless(&reply), timeless(want), "{name}");
            }
            count += 1;
        }
        assert!(count >= 30, "{count} rows");
        let long = format!(
            "POST /client HTTP/1.1\r\nHost: x\r\nContent-Length: 100175\r\n\r\n1.0\n{}",
            "x".repeat(100_171)
        );
        assert!(ask(at, &long).await.starts_with("HTTP/1.1 400 Bad Request\r\n"));
    })
    .unwrap();
}

#[test]
fn recorded_requests_of_the_current_broker() {
    one_by_one(Scheme::Current, "snowflake/broker_http_v2.14.1.json");
}

#[test]
fn recorded_requests_of_the_old_broker() {
    one_by_one(Scheme::Old, "snowflake/broker_http_v2.5.1.json");
}

/// The three parties of each recorded match, at the recorded order.
fn matches(scheme: Scheme, file: &str) {
    let rows = load(file);
    Cores::block_on(async {
        let mut count = 0;
        for row in rows.as_array().unwrap() {
            let Some(parties) = row["sequence"].as_array() else { continue };
            let (name, of) = (row["name"].as_str().unwrap(), |who: &str| {
                parties.iter().find(|party| party["who"] == who).cloned()
            });
            let (broker, at, _stopper) = start(scheme);
            let poll = of("proxy poll").unwrap();
            let polled = Rc::new(RefCell::new(None));
            let (told, sent) = (polled.clone(), request(&poll).to_owned());
            rt::spawn_local(async move {
                let reply = ask(at, &sent).await;
                *told.borrow_mut() = Some(reply);
            });
            until("the proxy waits", async || broker.pools.borrow().iter().count() == 1).await;
            let client = of("client").unwrap();
            let (told, sent) = (Rc::new(RefCell::new(None)), request(&client).to_owned());
            let (reply, began) = (told.clone(), rt::now());
            rt::spawn_local(async move {
                let found = ask(at, &sent).await;
                *reply.borrow_mut() = Some(found);
            });
            while polled.borrow().is_none() {
                rt::sleep(Duration::from_millis(10)).await;
            }
            let got = polled.borrow().clone().unwrap();
            assert_eq!(timeless(&got), timeless(poll["response"].as_str().unwrap()), "{name}");
            if let Some(answer) = of("proxy answer") {
                let got = ask(at, request(&answer)).await;
                assert_eq!(parts(&got), parts(answer["response"].as_str().unwrap()), "{name}");
            }
            while told.borrow().is_none() {
                rt::sleep(Duration::from_millis(10)).await;
            }
            let got = told.borrow().clone().unwrap();
            assert_eq!(parts(&got), parts(client["response"].as_str().unwrap()), "{name}");
            let want = client["seconds"].as_f64().unwrap();
            let took = began.elapsed().as_secs_f64();
            assert!((want - 1.0..want + 30.0).contains(&took), "{name}: {took} s instead of {want}");
            count += 1;
        }
        assert!(count >= 4, "{count} sequences");
    })
    .unwrap();
}

#[test]
fn recorded_matches_of_the_current_broker() {
    matches(Scheme::Current, "snowflake/broker_http_v2.14.1.json");
}

#[test]
fn recorded_matches_of_the_old_broker() {
    matches(Scheme::Old, "snowflake/broker_http_v2.5.1.json");
}

#[test]
fn other_paths() {
    let rows = load("snowflake/broker_endpoints_v2.14.1.json");
    Cores::block_on(async {
        let (broker, at, _stopper) = start(Scheme::Current);
        for row in rows.as_array().unwrap() {
            let name = row["name"].as_str().unwrap();
            if ["debug-with-two-proxies", "get /prometheus", "client-denied"].contains(&name) {
                continue;
            }
            assert_eq!(parts(&ask(at, request(row)).await), parts(row["response"].as_str().unwrap()), "{name}");
        }
        let of = |name: &str| rows.as_array().unwrap().iter().find(|row| row["name"] == name).unwrap();
        let poll = |sid: &str, kind: &str, nat: &str| {
            let body = format!(
                "{{\"Sid\":\"{sid}\",\"Version\":\"1.3\",\"Type\":\"{kind}\",\"NAT\":\"{nat}\",\"Clients\":0,\"AcceptedRelayPattern\":\"$\"}}"
            );
            format!("POST /proxy HTTP/1.1\r\nHost: x\r\nContent-Length: {}\r\n\r\n{body}", body.len())
        };
        broker.limits.borrow_mut().iter_mut().for_each(|limit| limit.interval = Duration::from_secs(600));
        let mut polls = Vec::new();
        for (sid, kind, nat) in [("1", "webext", "open"), ("2", "standalone", "moderate")] {
            let stream = connect(at).await;
            stream.send_all(poll(sid, kind, nat).as_bytes()).await.unwrap();
            polls.push(stream);
        }
        let waiting = || broker.pools.borrow().iter().count();
        until("both wait", async || waiting() == 2).await;
        let row = of("debug-with-two-proxies");
        assert_eq!(parts(&ask(at, request(row)).await), parts(row["response"].as_str().unwrap()));
        let text = ask(at, request(of("get /prometheus"))).await;
        assert!(text.contains("snowflake_available_proxies{nat=\"moderate\",type=\"standalone\"} 1\n"), "{text}");
        // A description of 1 MB.
        let head = "POST /client HTTP/1.1\r\nHost: x\r\nContent-Length: 1000000\r\n\r\n";
        let reply = ask(at, &format!("{head}{}", "x".repeat(1_000_000))).await;
        assert!(reply.starts_with("HTTP/1.1 400 "), "{reply}");
        // A proxy whose connection ends waits no more.
        drop(polls);
        until("none waits", async || waiting() == 0).await;
        let text = ask(at, request(of("get /debug"))).await;
        assert!(text.contains("current snowflakes available: 0\n"), "{text}");
        let text = ask(at, request(of("get /prometheus"))).await;
        assert!(text.contains("snowflake_available_proxies{nat=\"moderate\",type=\"standalone\"} 0\n"), "{text}");
        // Too soon, for the same pool alone.
        let reply = ask(at, &poll("3", "webext", "open")).await;
        assert!(reply.contains("\"Status\":\"polled too soon\"") && !reply.contains("NextPoll\":-"), "{reply}");
    })
    .unwrap();
}

#[test]
fn a_reload_keeps_those_who_wait() {
    let folder = std::env::temp_dir().join(format!("adit-broker-{}", std::process::id()));
    std::fs::create_dir_all(&folder).unwrap();
    let list = folder.join("bridges");
    std::fs::write(&list, BRIDGES.lines().next().unwrap()).unwrap();
    let broker = Broker::new(&SnowflakeBroker { bridges: Some(list.clone()), ..settings(Scheme::Current) });
    let broker = Rc::new(broker.unwrap());
    Cores::block_on(async {
        let waiting = broker.pools.borrow_mut().enter("s".into(), ProxyType::Webext, Nat::Open, 0);
        let other = broker.clone();
        let found = Rc::new(RefCell::new(None));
        let told = found.clone();
        rt::spawn_local(async move {
            let bridge = adit_proto::snowflake::messages::Fingerprint::parse(
                adit_proto::snowflake::messages::Fingerprint::DEFAULT,
            );
            let poll = ClientPoll { offer: "o".into(), nat: Nat::Strict, fingerprint: bridge.unwrap() };
            *told.borrow_mut() = other.matched(poll, None, RendezvousMethod::Http).await.ok();
        });
        let offer = rt::timeout(Duration::from_secs(60), waiting.offer.take()).await;
        assert!(offer.is_ok(), "the proxy has its client");
        std::fs::write(&list, "{").unwrap();
        broker.reload();
        assert_eq!(broker.bridges.borrow().len(), 1, "a wrong file changes nothing");
        std::fs::write(&list, BRIDGES).unwrap();
        broker.reload();
        assert_eq!(broker.bridges.borrow().len(), 2);
        assert!(waiting.answer.put("a".into()));
        until("the client has its answer", async || found.borrow().is_some()).await;
        assert_eq!(found.borrow().as_deref(), Some("a"));
    })
    .unwrap();
    std::fs::remove_dir_all(&folder).unwrap();
}
