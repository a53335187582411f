use std::io::{Read, Write};

use crate::run::pair;
use crate::support::{Dir, PSK, echo, round_trip, socks5};

/// A name that no resolver knows.
const NAME: &str = "canary-of-the-mine.invalid";

/// The log of server and client while connections succeed and fail.
fn logs(head: &str, flags: &[&str]) -> [(String, u16); 2] {
    let dir = Dir::new();
    let (server, client) = pair(&dir, head, flags);
    let target = echo();
    round_trip(&mut socks5(client.address(), "127.0.0.1", target.port()), 100_000);
    let mut stream = socks5(client.address(), NAME, 443);
    stream.write_all(b"hello").ok();
    stream.read_to_end(&mut Vec::new()).ok();
    [client, server].map(|running| {
        running.signal("TERM");
        let (status, log) = running.end();
        assert_eq!(status.code(), Some(0), "{log}");
        (log, target.port())
    })
}

#[test]
fn no_key_is_logged_even_at_trace() {
    for flags in [&["-vv"][..], &["-vv", "--log-format", "json"]] {
        let logs = logs("", flags);
        for (log, _) in &logs {
            assert!(log.lines().count() > 3, "{log}");
            for part in [PSK, &PSK[..8], &PSK[PSK.len() - 8..]] {
                assert!(!log.contains(part), "{log}");
            }
        }
        // At this level destinations are to be seen: the test would notice a log that is merely silent.
        assert!(logs[1].0.contains(NAME), "{}", logs[1].0);
    }
}

#[test]
fn no_destination_is_logged_at_info() {
    for (log, port) in logs("", &[]) {
        assert!(log.contains("listening") && log.contains("stopped"), "{log}");
        for text in [NAME, &format!(":{port}"), PSK] {
            assert!(!log.contains(text), "{text}: {log}");
        }
    }
    let [_, (server, port)] = logs("[log]\ndestinations = true\n", &[]);
    assert!(server.contains(&format!("127.0.0.1:{port}")), "{server}");
}
