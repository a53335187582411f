use std::io::{Read, Write};
use std::net::TcpStream;
use std::os::unix::fs::PermissionsExt as _;
use std::thread;
use std::time::{Duration, Instant};

use crate::support::{Dir, PATIENCE, Running, round_trip, socks5};

/// A server with a user, and a local port that leads to it as that user.
fn config(dir: &Dir, listen: &str, state: &str) {
    let key = "the own key of ann";
    let text = format!(
        "{state}[admin]\nsocket = \"adit.sock\"\n\
         [[inbound]]\nname = \"in\"\nprotocol = \"snell\"\nlisten = \"{listen}\"\noutbound = \"direct\"\n\
         allow-private = true\n\
         users = [{{ name = \"ann\", password = \"{key}\" }}]\n\
         [[inbound]]\nname = \"local\"\nprotocol = \"mixed\"\nlisten = \"127.0.0.1:0\"\noutbound = \"home\"\n\
         [[outbound]]\nname = \"direct\"\nprotocol = \"direct\"\n\
         [[outbound]]\nname = \"home\"\nprotocol = \"snell\"\nserver = \"{listen}\"\npsk = \"{key}\"\n"
    );
    dir.file("adit.toml", &text);
}

fn start(dir: &Dir) -> Running {
    let running = Running::start(dir.adit(&["run", "-c", "adit.toml"]));
    running.line("inbound=local");
    running
}

fn local(running: &Running) -> std::net::SocketAddr {
    let line = running.line("inbound=local");
    line.split("address=").nth(1).unwrap().trim().parse().unwrap()
}

/// The user's counters, as `adit status` prints them: up, down, requests.
fn used(dir: &Dir) -> (u64, u64, u64) {
    used_at(dir, "adit.sock")
}

fn used_at(dir: &Dir, socket: &str) -> (u64, u64, u64) {
    let (status, out, err) = dir.run(&["status", "--json", "--socket", socket]);
    assert_eq!((status, &*err), (0, ""));
    let json: serde_json::Value = serde_json::from_str(&out).unwrap();
    let ann = &json["inbounds"][0]["users"][0];
    assert_eq!(ann["name"], "ann");
    assert!(!out.contains("own key"), "{out}");
    let number = |key: &str| ann[key].as_u64().unwrap();
    (number("up_bytes"), number("down_bytes"), number("requests"))
}

/// The only state file in the usual place.
fn state_file(dir: &Dir) -> std::path::PathBuf {
    let all = std::fs::read_dir(dir.path().join("adit/users")).unwrap().map(|entry| entry.unwrap().path());
    let mut all = all.filter(|path| path.extension().is_some_and(|extension| extension == "state"));
    let (one, more) = (all.next().unwrap(), all.next());
    assert_eq!(more, None);
    one
}

fn wait_for(what: &str, mut condition: impl FnMut() -> bool) {
    let until = Instant::now() + PATIENCE;
    while !condition() {
        assert!(Instant::now() < until, "still not true: {what}");
        thread::sleep(Duration::from_millis(20));
    }
}

#[test]
fn counters_outlive_an_orderly_end() {
    let dir = Dir::new();
    config(&dir, &adit_testkit::unused_addr().to_string(), "");
    let running = start(&dir);
    let target = crate::support::echo();
    round_trip(&mut socks5(local(&running), "127.0.0.1", target.port()), 123_456);
    wait_for("it is counted", || used(&dir) == (123_456, 123_456, 1));
    let (_, out, _) = dir.run(&["status", "--socket", "adit.sock"]);
    assert!(out.contains("ann") && out.contains("123 KB"), "{out}");
    running.signal("TERM");
    assert_eq!(running.end().0.code(), Some(0));
    let file = state_file(&dir);
    assert_eq!(std::fs::metadata(&file).unwrap().permissions().mode() & 0o777, 0o600);
    let running = start(&dir);
    assert_eq!(used(&dir), (123_456, 123_456, 1));
    // Another process cannot have the same file: it says so, or starts without if nobody has named the file.
    let text = std::fs::read_to_string(dir.path().join("adit.toml")).unwrap();
    dir.file("other.toml", &format!("state = \"{}\"\n{text}", file.display()));
    let (status, _, err) = dir.run(&["run", "-c", "other.toml"]);
    assert!(status != 0 && err.contains("state file") && err.contains("another process"), "{err}");
    // Another configuration has counters of its own, though the names are the same.
    config(&dir, &adit_testkit::unused_addr().to_string(), "");
    let text = std::fs::read_to_string(dir.path().join("adit.toml")).unwrap();
    dir.file("other.toml", &text.replace("adit.sock", "other.sock"));
    let other = Running::start(dir.adit(&["run", "-c", "other.toml"]));
    round_trip(&mut socks5(local(&other), "127.0.0.1", target.port()), 1000);
    wait_for("it is counted there", || used_at(&dir, "other.sock") == (1000, 1000, 1));
    assert_eq!(used(&dir), (123_456, 123_456, 1));
    other.signal("TERM");
    assert_eq!(other.end().0.code(), Some(0));
    let other = Running::start(dir.adit(&["run", "-c", "./other.toml"]));
    other.line("inbound=local");
    assert_eq!(used_at(&dir, "other.sock"), (1000, 1000, 1));
    drop(other);
    config(&dir, &adit_testkit::unused_addr().to_string(), "");
    let text = std::fs::read_to_string(dir.path().join("adit.toml")).unwrap();
    dir.file("adit.toml", &text.replace("adit.sock", "other.sock"));
    let other = start(&dir);
    other.line(
        "is used by another process with this configuration; user counters of this process will be lost",
    );
    drop(running);
}

#[test]
fn a_kill_costs_a_second_at_most_and_adds_nothing() {
    let dir = Dir::new();
    config(&dir, &adit_testkit::unused_addr().to_string(), "state = \"counters.db\"\n");
    let running = start(&dir);
    let target = crate::support::echo();
    let stream = socks5(local(&running), "127.0.0.1", target.port());
    let steady = Steady::start(&stream);
    wait_for("something is counted", || used(&dir).1 > 0);
    let before = used(&dir);
    // The file is written three times more: what was counted before is in it. It is absent until the first save, and for
    // an instant in each later one.
    let written = || std::fs::metadata(dir.path().join("counters.db")).ok()?.modified().ok();
    let mut last = written();
    for _ in 0..3 {
        wait_for("it is written", || written().is_some_and(|at| last.replace(at) != Some(at)));
    }
    let sent_at_most = steady.stop_after(|| {
        running.signal("KILL");
        running.end();
    });
    let running = start(&dir);
    let after = used(&dir);
    assert!(before.0 <= after.0 && before.1 <= after.1, "{before:?} was there, {after:?} is left");
    assert!(after.0 <= sent_at_most && after.1 <= after.0, "{after:?} of {sent_at_most}");
    assert_eq!(after.2, 1);
    drop(running);
}

/// Bytes that go back and forth, a few at a time, until there is nobody to take them.
struct Steady(thread::JoinHandle<u64>);

impl Steady {
    fn start(stream: &TcpStream) -> Self {
        let mut stream = stream.try_clone().unwrap();
        Self(thread::spawn(move || {
            let mut sent = 0;
            let mut block = [7; 1000];
            loop {
                // Counted first: what has been sent in part may be counted over there.
                sent += block.len() as u64;
                if stream.write_all(&block).is_err() || stream.read_exact(&mut block).is_err() {
                    return sent;
                }
                thread::sleep(Duration::from_millis(1));
            }
        }))
    }

    fn stop_after(self, action: impl FnOnce()) -> u64 {
        action();
        self.0.join().unwrap()
    }
}
