//! The connections that a limit stops, and the time when it does.

use std::io::Read;
use std::net::TcpStream;
use std::time::{Duration, Instant};

use adit_model::{Reply, SnellMode, SnellVersion, UserLimits};

use super::{SCHEMES, Scheme, client, of, server, status, users};
use crate::common::{Proxy, Setup, Target, expect_pattern, send_pattern, wait_for, within};

/// The largest frame of a client, in payload bytes.
const RECORD: u64 = 16_383;

fn pair(setup: &Setup, scheme: Scheme, limits: UserLimits) -> (Proxy, Proxy) {
    let server = server(setup, scheme, users(&[("ann", limits), ("bob", UserLimits::default())]));
    let client = client(setup, scheme, "ann", server.addr);
    (server, client)
}

/// Reads until the connection breaks off or ends; how much came.
fn read_all(mut stream: &TcpStream) -> u64 {
    let (mut block, mut sum) = (vec![0; 1 << 16], 0);
    while let Ok(len @ 1..) = stream.read(&mut block) {
        sum += len as u64;
    }
    sum
}

#[test]
fn a_download_stops_at_its_quota_to_the_byte() {
    within(100, || {
        for (setup, scheme) in [
            (of(SnellVersion::V5), Scheme::Each),
            (of(SnellVersion::V6(SnellMode::Default)), Scheme::Named),
            (of(SnellVersion::V2), Scheme::Each),
        ] {
            const QUOTA: u64 = 1_234_567;
            let limits = UserLimits { quota: Some(QUOTA), ..UserLimits::default() };
            let (server, client) = pair(&setup, scheme, limits);
            let target = Target::new(|stream| drop(send_pattern(&stream, 7, 64 << 20)));
            let stream = client.tunnel(target.addr);
            assert!(read_all(&stream) <= QUOTA);
            wait_for("the quota is used up", || status(&server, "ann").used_bytes == QUOTA);
            assert_eq!(status(&server, "ann").limited.as_deref(), Some("quota used up"));
            // From then on requests are refused, and others are not concerned.
            assert_eq!(read_all(&client.tunnel(target.addr)), 0);
            assert_eq!(status(&server, "ann").used_bytes, QUOTA, "{scheme:?}");
            let other = super::client(&setup, scheme, "bob", server.addr);
            let small = Target::new(|stream| drop(send_pattern(&stream, 7, 100_000)));
            assert_eq!(read_all(&other.tunnel(small.addr)), 100_000);
            wait_for("nothing is held", || status(&server, "ann").open == 0 || setup.reuse);
        }
    });
}

#[test]
fn an_upload_stops_within_one_record_of_its_quota() {
    within(100, || {
        for scheme in SCHEMES {
            const QUOTA: u64 = 3_000_001;
            let limits = UserLimits { quota: Some(QUOTA), ..UserLimits::default() };
            let (server, client) = pair(&of(SnellVersion::V5), scheme, limits);
            let target = Target::new(|stream| _ = read_all(&stream));
            let stream = client.tunnel(target.addr);
            assert!(send_pattern(&stream, 7, 64 << 20).is_err(), "nobody takes all of it");
            wait_for("the quota is used up", || status(&server, "ann").limited.is_some());
            let used = status(&server, "ann").used_bytes;
            assert!((QUOTA..=QUOTA + RECORD).contains(&used), "{used}");
        }
    });
}

#[test]
fn two_flows_share_a_quota() {
    within(100, || {
        const QUOTA: u64 = 5_000_000;
        let limits = UserLimits { quota: Some(QUOTA), ..UserLimits::default() };
        let setup = Setup { cores: 2, ..of(SnellVersion::V5) };
        let (server, client) = pair(&setup, Scheme::Each, limits);
        let target = Target::new(|stream| drop(send_pattern(&stream, 7, 64 << 20)));
        let streams = [1, 2, 3].map(|_| client.tunnel(target.addr));
        let sum: u64 = streams.iter().map(read_all).sum();
        wait_for("the quota is used up", || status(&server, "ann").used_bytes == QUOTA);
        assert!(sum <= QUOTA, "{sum}");
    });
}

#[test]
fn an_idle_flow_ends_once_the_quota_is_used_up_elsewhere() {
    within(100, || {
        let limits = UserLimits { quota: Some(100_000), ..UserLimits::default() };
        let (_server, client) = pair(&of(SnellVersion::V5), Scheme::Each, limits);
        let silent = Target::new(|stream| _ = read_all(&stream));
        let idle = client.tunnel(silent.addr);
        send_pattern(&idle, 1, 10).unwrap();
        let target = Target::new(|stream| drop(send_pattern(&stream, 7, 1 << 20)));
        read_all(&client.tunnel(target.addr));
        assert_eq!(read_all(&idle), 0, "it ends, and is not waited for in vain");
    });
}

#[test]
fn a_rate_takes_its_time() {
    within(100, || {
        for scheme in SCHEMES {
            let limits = UserLimits { rate: Some(200_000), ..UserLimits::default() };
            let (_server, client) = pair(&of(SnellVersion::V5), scheme, limits);
            let target = Target::new(|stream| send_pattern(&stream, 7, 300_000).unwrap());
            let since = Instant::now();
            assert_eq!(read_all(&client.tunnel(target.addr)), 300_000);
            // A tenth of a second's worth may come at once.
            assert!(since.elapsed() >= Duration::from_millis(1300), "{:?}", since.elapsed());
        }
    });
}

#[test]
fn expired_users_and_too_many_connections_are_refused() {
    within(100, || {
        let setup = Setup { reuse: false, reply: Reply::Early, ..of(SnellVersion::V5) };
        let small = Target::new(|stream| drop(send_pattern(&stream, 7, 1000)));
        let expired = UserLimits { expires: "2020-01-01".parse().ok(), ..UserLimits::default() };
        let (server, client) = pair(&setup, Scheme::Each, expired);
        assert_eq!(read_all(&client.tunnel(small.addr)), 0);
        assert_eq!(status(&server, "ann").limited.as_deref(), Some("account expired"));
        let few = UserLimits { connections: Some(2), ..UserLimits::default() };
        let (server, client) = pair(&setup, Scheme::Named, few);
        let echo = Target::echo();
        let open = [1, 2].map(|_| {
            let stream = client.tunnel(echo.addr);
            send_pattern(&stream, 3, 10).unwrap();
            expect_pattern(&stream, 3, 10);
            stream
        });
        assert_eq!((status(&server, "ann").open, read_all(&client.tunnel(small.addr))), (2, 0));
        drop(open);
        wait_for("the places are free", || status(&server, "ann").open == 0);
        assert_eq!(read_all(&client.tunnel(small.addr)), 1000);
    });
}
