use proptest::proptest;

use super::*;

/// A path in a few lines: packets of 1,000 bytes pass one by one at `rate` bytes per second, and each is
/// acknowledged `rtt_us` after it has passed, unless it is lost.
struct Path {
    rate: u64,
    rtt_us: u64,
    /// Every so many packets one is lost; 0 is never.
    lose: u64,
    /// No packet waits longer: it is dropped.
    most_us: u64,
    dropped: u64,
    now_us: u64,
    busy_until_us: u64,
    sent: u64,
    in_flight: u64,
    /// When the news comes, when it was sent, with how much delivered, and whether it arrived.
    news: VecDeque<(u64, u64, u64, bool)>,
    longest_queue_us: u64,
    /// This end, and the peer.
    hosts: [Host; 2],
}

/// A host that other work keeps from running: it runs for 3 ms, then not for half of `away_us` to one and a half times that.
struct Host {
    away_us: u64,
    runs_from_us: u64,
    runs_until_us: u64,
    random: u64,
}

impl Host {
    fn new(away_us: u64, seed: u64) -> Self {
        Self { away_us, runs_from_us: 0, runs_until_us: 0, random: seed }
    }

    /// When it looks at an event of `at_us`. Events are asked for in their order.
    fn looks_at(&mut self, at_us: u64) -> u64 {
        while self.away_us > 0 && at_us >= self.runs_until_us {
            self.random = self.random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            self.runs_from_us = self.runs_until_us + self.away_us / 2 + (self.random >> 33) % self.away_us;
            self.runs_until_us = self.runs_from_us + 3_000;
        }
        at_us.max(self.runs_from_us)
    }
}

impl Path {
    fn new(rate: u64, rtt_us: u64, lose: u64) -> Self {
        Self {
            rate,
            rtt_us,
            lose,
            most_us: u64::MAX,
            dropped: 0,
            now_us: 1,
            busy_until_us: 0,
            sent: 0,
            in_flight: 0,
            news: VecDeque::new(),
            longest_queue_us: 0,
            hosts: [Host::new(0, 0), Host::new(0, 0)],
        }
    }

    fn run(&mut self, model: &mut Model, seconds: u64) {
        let until_us = self.now_us + seconds * 1_000_000;
        let mut again = 0;
        while self.now_us < until_us {
            while self.in_flight < model.bound() && model.send_at(self.now_us).is_none() {
                model.handle_sent(self.now_us, 1000, self.in_flight, again > 0);
                again -= u64::from(again > 0);
                let waits_us = self.busy_until_us.saturating_sub(self.now_us);
                let fits = waits_us < self.most_us;
                if fits {
                    self.busy_until_us = self.busy_until_us.max(self.now_us) + 1_000_000_000 / self.rate;
                    self.longest_queue_us = self.longest_queue_us.max(self.busy_until_us - self.now_us);
                }
                self.sent += 1;
                self.dropped += u64::from(!fits);
                let arrives = fits && (self.lose == 0 || !self.sent.is_multiple_of(self.lose));
                let passed_us = self.hosts[1].looks_at(self.busy_until_us + self.rtt_us / 2);
                let at_us = passed_us + self.rtt_us - self.rtt_us / 2;
                self.news.push_back((at_us, self.now_us, model.delivered(), arrives));
                self.in_flight += 1000;
            }
            let news_us = self.news.front().map_or(until_us, |news| news.0);
            let next_us = news_us.min(model.send_at(self.now_us).unwrap_or(until_us)).max(self.now_us + 1);
            self.now_us = self.hosts[0].looks_at(next_us);
            while let Some(&(at_us, sent_us, delivered_at_send, arrived)) = self.news.front()
                && at_us <= self.now_us
            {
                self.news.pop_front();
                self.in_flight -= 1000;
                again += u64::from(!arrived);
                if !arrived {
                    model.handle_lost(1000, 1000);
                }
                if arrived {
                    let rtt_us = Some(self.now_us - sent_us);
                    let (now_us, in_flight) = (self.now_us, self.in_flight);
                    model.handle_ack(AckSample {
                        now_us,
                        bytes: 1000,
                        delivered_at_send,
                        sent_us: Some(sent_us),
                        rtt_us,
                        in_flight,
                    });
                }
            }
        }
    }
}

#[test]
fn finds_rate_and_round_trip() {
    for (rate, rtt_us) in [(2_500_000, 20_000), (2_500_000, 100_000), (250_000, 300_000)] {
        for lose in [0, 100, 20] {
            let mut path = Path::new(rate, rtt_us, lose);
            let mut model = Model::new(1 << 30);
            path.run(&mut model, 6);
            path.longest_queue_us = 0;
            path.run(&mut model, 6);
            let found = model.estimate();
            assert!(
                (0.85..1.1).contains(&(found.rate / to_float(rate))),
                "{rate} {rtt_us} {lose}: {found:?}"
            );
            assert!(found.min_rtt_us < rtt_us * 11 / 10 + 4_000, "{rate} {rtt_us} {lose}: {found:?}");
            // No more stands in a queue than the bound allows beyond what fits.
            assert!(path.longest_queue_us < rtt_us + 30_000, "{}", path.longest_queue_us);
        }
    }
}

/// Data that a stream beneath spaces leaves in a fifth of the turns, and no slower.
#[test]
fn batches_are_few_and_lose_no_time() {
    for (mut model, turns_wanted) in [(Model::batched(4 << 20), 150..=250), (Model::new(4 << 20), 800..=1001)]
    {
        let mut path = Path::new(6_250_000, 100_000, 0);
        path.run(&mut model, 5);
        let rate = model.pacing_rate().unwrap();
        let (mut now_us, until_us, mut turns, mut sent) = (path.now_us, path.now_us + 1_000_000, 0, 0);
        while now_us < until_us {
            turns += 1;
            while model.send_at(now_us).is_none() {
                model.handle_sent(now_us, 1000, 600_000, false);
                sent += 1000;
            }
            // Timers know milliseconds.
            now_us = model.batch_at().unwrap().div_ceil(1000) * 1000;
        }
        assert!(turns_wanted.contains(&turns), "{turns} turns");
        assert!((0.97..1.03).contains(&(to_float(sent) / rate)), "{sent} bytes at {rate}");
    }
}

#[test]
fn short_queues_are_not_flooded() {
    for (most_us, lose) in [(3_000, 0), (8_000, 0), (20_000, 0), (20_000, 100)] {
        let mut path = Path { most_us, ..Path::new(12_500_000, 100_000, lose) };
        let mut model = Model::new(1 << 30);
        path.run(&mut model, 3);
        (path.sent, path.dropped) = (0, 0);
        let before = model.delivered();
        path.run(&mut model, 20);
        let share = to_float(path.dropped) / to_float(path.sent);
        assert!(share < 0.04, "{most_us} {lose}: {share}");
        let rate = to_float(model.delivered() - before) / 20.0;
        assert!(rate > 9_500_000.0, "{most_us} {lose}: {rate}");
    }
}

/// If a late timer let through no more than [`BURST_US`], a fifth of the rate would remain in the first case.
#[test]
fn busy_hosts_keep_the_rate() {
    for (rate, rtt_us, away_us) in
        [(12_500_000, 100_000, 3_000), (12_500_000, 100_000, 10_000), (2_500_000, 40_000, 10_000)]
    {
        for lose in [0, 100, 20] {
            let hosts = [Host::new(away_us, 1), Host::new(away_us, 2)];
            let mut path = Path { hosts, most_us: 50_000, ..Path::new(rate, rtt_us, lose) };
            let mut model = Model::new(1 << 30);
            path.run(&mut model, 10);
            (path.sent, path.dropped) = (0, 0);
            let before = model.delivered();
            path.run(&mut model, 20);
            let share = to_float(model.delivered() - before) / 20.0 / to_float(rate);
            assert!(share > 0.9, "{rate} {rtt_us} {away_us} {lose}: {share}");
            let dropped = to_float(path.dropped) / to_float(path.sent);
            assert!(dropped < 0.02, "{rate} {rtt_us} {away_us} {lose}: {dropped} are dropped");
        }
    }
}

#[test]
fn what_came_slowly_is_not_taken_for_speed() {
    let mut model = Model::new(1 << 30);
    let mut path = Path::new(1_000_000, 50_000, 0);
    path.run(&mut model, 5);
    let before = model.estimate().rate;
    // After a moment with nothing under way acknowledgements come at once, of what was sent over 100 ms.
    let now_us = path.now_us + 100_000;
    model.waits.note_ack(path.now_us, 0);
    for sent in 0..100 {
        let sent_us = path.now_us + sent * 1000;
        model.handle_ack(AckSample {
            now_us: now_us + sent * 10,
            bytes: 1000,
            delivered_at_send: model.delivered().saturating_sub(50_000),
            sent_us: Some(sent_us),
            rtt_us: Some(now_us - sent_us),
            in_flight: 50_000,
        });
    }
    assert!(model.estimate().rate < before * 1.1, "{:?}, before {before}", model.estimate());
}

#[test]
fn follows_a_path_that_changes() {
    let mut path = Path::new(400_000, 50_000, 0);
    let mut model = Model::new(1 << 30);
    path.run(&mut model, 5);
    path.rate = 4_000_000;
    path.run(&mut model, 10);
    assert!(model.estimate().rate > 3_000_000.0, "{:?}", model.estimate());
    path.rate = 400_000;
    path.run(&mut model, 10);
    assert!(model.estimate().rate < 500_000.0, "{:?}", model.estimate());
    // The way has become longer: found after the old measure has aged.
    path.rtt_us = 150_000;
    path.run(&mut model, 25);
    assert!(model.estimate().min_rtt_us >= 150_000, "{:?}", model.estimate());
}

#[test]
fn little_to_send_says_little() {
    let mut path = Path::new(1_000_000, 50_000, 0);
    let mut model = Model::new(1 << 30);
    path.run(&mut model, 5);
    let before = model.estimate().rate;
    for _ in 0..200 {
        path.now_us += 100_000;
        let (now_us, delivered_at_send) = (path.now_us, model.delivered());
        model.handle_sent(now_us, 1000, 0, false);
        model.handle_idle(1000);
        let ack = AckSample {
            now_us: now_us + 50_000,
            bytes: 1000,
            delivered_at_send,
            sent_us: Some(now_us),
            rtt_us: Some(50_000),
            in_flight: 0,
        };
        model.handle_ack(ack);
    }
    assert!(model.estimate().rate >= before);
}

#[test]
fn obeys_its_cap() {
    let mut path = Path::new(2_500_000, 100_000, 0);
    let mut model = Model::new(100_000);
    path.run(&mut model, 5);
    assert!(path.in_flight <= 101_000 && model.bound() <= 100_000);
}

#[test]
fn the_least_cap_leaves_a_rate() {
    let (sent, acknowledged) = ([0, 0, 0, 0, 0], [128, 0, 0, 0, 1]);
    fuzz_model(&[&[0, 52, 0, 0, 0, 0, 0, 0, 0, 0, 0][..], &sent, &acknowledged, &sent].concat());
}

proptest! {
    #[test]
    fn any_events(data: Vec<u8>) {
        fuzz_model(&data);
    }
}
