//! Matches per second of one event loop, over real connections.
//!
//! `cargo test --release -p adit-snowflake --lib broker::bench -- --ignored --nocapture`
//!
//! It fails below [`WANTED`] matches a second, and with a p99 above [`LONGEST`]; without optimisation it only prints.

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use adit_net::rt::{self, Cores, Stopper, Stream};
use adit_net::service::Service;
use adit_proto::snowflake::Scheme;

use super::tests::settings;
use super::*;

/// Matches that are measured.
const MATCHES: usize = 20_000;
/// Proxies, and as many clients.
const LANES: usize = 64;

/// Fewest matches a second of one event loop.
const WANTED: f64 = 2_000.0;
/// Longest time from an offer to its hand-over, but for one in a hundred.
const LONGEST: Duration = Duration::from_millis(20);

/// A kept connection, from which one request after the other goes.
struct Lane {
    stream: Stream,
    buffer: Vec<u8>,
}

impl Lane {
    async fn open(at: SocketAddr) -> Self {
        let dialer = adit_net::dial::Dialer::by_system(&adit_model::Dial::default());
        Self { stream: dialer.dial_addrs(&[at]).await.unwrap().into(), buffer: vec![0; 16 << 10] }
    }

    async fn send(&self, path: &str, source: usize, body: &str) {
        let [a, b, c] = [source >> 16, source >> 8, source].map(|part| part & 0xff);
        let head = format!(
            "POST {path} HTTP/1.1\r\nHost: x\r\nX-Forwarded-For: 11.{a}.{b}.{c}\r\nContent-Length: {}\r\n\r\n",
            body.len()
        );
        self.stream.send_all((head + body).as_bytes()).await.unwrap();
    }

    async fn reply(&mut self) -> String {
        let mut len = 0;
        loop {
            let more = self.stream.recv(&mut self.buffer[len..]).await.unwrap();
            assert!(more > 0, "connection closed");
            len += more;
            let text = std::str::from_utf8(&self.buffer[..len]).unwrap();
            let Some((head, body)) = text.split_once("\r\n\r\n") else { continue };
            assert!(head.starts_with("HTTP/1.1 200"), "{text}");
            let wanted = head.lines().find_map(|line| line.strip_prefix("Content-Length: ")).unwrap();
            if body.len() >= wanted.parse::<usize>().unwrap() {
                return body.to_owned();
            }
        }
    }
}

/// State that all lanes share.
struct Run {
    at: SocketAddr,
    began: Instant,
    /// Polls so far, which name sources and proxies.
    polls: Cell<usize>,
    denied: Cell<usize>,
    /// Times from an offer to its hand-over.
    times: RefCell<Vec<Duration>>,
}

/// A proxy: polls and answers, one client after the other. An offer holds the time when it was sent.
async fn proxy(run: Rc<Run>) {
    let (mut poll, mut answer) = (Lane::open(run.at).await, Lane::open(run.at).await);
    let sdp = "{\\\"type\\\":\\\"answer\\\",\\\"sdp\\\":\\\"v=0 a=candidate ".to_owned()
        + &"x".repeat(900)
        + "\\\"}";
    while run.times.borrow().len() < MATCHES {
        let number = run.polls.replace(run.polls.get() + 1);
        let body = format!(
            "{{\"Sid\":\"s{number}\",\"Version\":\"1.3\",\"Type\":\"standalone\",\"NAT\":\"unrestricted\",\"Clients\":0,\"AcceptedRelayPattern\":\"$\"}}"
        );
        poll.send("/proxy", number, &body).await;
        let reply = poll.reply().await;
        let now = run.began.elapsed();
        let (_, stamp) = reply.split_once("stamp ").expect("a match");
        let stamp = stamp.split(' ').next().unwrap().parse().unwrap();
        run.times.borrow_mut().push(now - Duration::from_nanos(stamp));
        let body = format!("{{\"Version\":\"1.3\",\"Sid\":\"s{number}\",\"Answer\":\"{sdp}\"}}");
        answer.send("/answer", number, &body).await;
        assert!(answer.reply().await.contains("success"));
    }
}

/// A client: asks until it has an answer, again and again.
async fn client(run: Rc<Run>, number: usize) {
    let mut lane = Lane::open(run.at).await;
    loop {
        let stamp = run.began.elapsed().as_nanos();
        let sdp = format!("stamp {stamp} {}", "x".repeat(900));
        let body = format!(
            "1.0\n{{\"offer\":\"{{\\\"type\\\":\\\"offer\\\",\\\"sdp\\\":\\\"{sdp}\\\"}}\",\"nat\":\"unknown\"}}"
        );
        lane.send("/client", number, &body).await;
        if !lane.reply().await.contains("answer") {
            run.denied.set(run.denied.get() + 1);
            rt::sleep(Duration::from_millis(1)).await;
        }
    }
}

#[test]
#[ignore = "measures; takes some seconds in a release build"]
fn matches_per_second() {
    let (sender, receiver) = std::sync::mpsc::channel();
    let (stopper, stop) = Stopper::new();
    let mut cores = Cores::default();
    let serve = move || async move {
        let broker = Rc::new(Broker::new(&settings(Scheme::Current)).unwrap());
        let (service, _) = Service::listen(broker.settings.listen).unwrap();
        sender.send(service.local_addr().unwrap()).unwrap();
        let serve = service.serve(stop, move |asked| {
            let broker = broker.clone();
            async move { broker.answer(asked).await }
        });
        serve.await;
    };
    cores.start("broker".into(), serve).unwrap();
    let at = receiver.recv().unwrap();
    let (took, mut times, denied) = Cores::block_on(async {
        let began = rt::now();
        let (polls, denied, times) = (Cell::new(0), Cell::new(0), RefCell::default());
        let run = Rc::new(Run { at, began, polls, denied, times });
        for number in 0..LANES {
            rt::spawn_local(proxy(run.clone()));
            rt::spawn_local(client(run.clone(), number));
        }
        while run.times.borrow().len() < MATCHES {
            rt::sleep(Duration::from_millis(5)).await;
        }
        (began.elapsed(), run.times.take(), run.denied.get())
    })
    .unwrap();
    stopper.end();
    cores.join();
    times.sort_unstable();
    let rate = times.len() as f64 / took.as_secs_f64();
    let [p50, p99] = [times.len() / 2, times.len() * 99 / 100].map(|at| times[at]);
    println!(
        "{} matches, {denied} clients denied: {rate:.0} per second; offer to hand-over p50 {p50:?}, p99 {p99:?}",
        times.len()
    );
    if !cfg!(debug_assertions) {
        assert!(rate >= WANTED, "{rate:.0} matches a second are fewer than {WANTED}");
        assert!(p99 <= LONGEST, "a p99 of {p99:?} is above {LONGEST:?}");
    }
}
