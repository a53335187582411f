//! Into the background, and into another user.

use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, Instant};

use adit_testkit::unused_addr;

use crate::support::{Dir, PATIENCE, Running, echo, finish, link, round_trip, signal, socks5};

/// A process that nobody waits for, ended with its test.
struct Background(u32, PathBuf);

impl Background {
    fn of(pid_file: PathBuf) -> Self {
        let text = std::fs::read_to_string(&pid_file).unwrap();
        Self(text.trim().parse().unwrap(), pid_file)
    }

    fn is_there(&self) -> bool {
        let stat = std::fs::read_to_string(format!("/proc/{}/stat", self.0)).unwrap_or_default();
        !stat.is_empty() && !stat.contains(") Z ")
    }

    fn end(self) {
        signal(self.0, "TERM");
        let deadline = Instant::now() + PATIENCE;
        while self.is_there() {
            assert!(Instant::now() < deadline, "it does not end");
            thread::sleep(Duration::from_millis(5));
        }
        assert!(!self.1.exists(), "the pid file goes with it");
    }
}

impl Drop for Background {
    fn drop(&mut self) {
        if self.is_there() {
            signal(self.0, "KILL");
        }
    }
}

#[test]
fn into_the_background_and_back() {
    let dir = Dir::new();
    for (name, rest) in
        [("ss-server", ["-f", "s.pid"].as_slice()), ("ssserver", &["-d", "--daemonize-pid", "s.pid"])]
    {
        let at = unused_addr();
        let (ip, port, whole) = (at.ip().to_string(), at.port().to_string(), at.to_string());
        let mut line = vec!["-k", "hunter2", "-m", "aes-128-gcm"];
        line.extend(if name == "ssserver" { vec!["-s", &whole] } else { vec!["-s", &ip, "-p", &port] });
        line.extend(rest);
        // Both streams are pipes to us: this only returns once nobody holds them any more.
        let (status, out, err) = finish(dir.command(link(&dir, name), &line), "");
        assert_eq!((status, &*out), (0, ""), "{err}");
        assert!(!err.contains("hunter2"), "{err}");
        let server = Background::of(dir.path().join("s.pid"));
        let stat = std::fs::read_to_string(format!("/proc/{}/stat", server.0)).unwrap();
        let session = stat.rsplit(')').next().unwrap().split_whitespace().nth(3).unwrap();
        assert_eq!(session, server.0.to_string(), "a session of its own");
        let line = ["ss-local", "-s", &ip, "-p", &port, "-l", "0", "-m", "aes-128-gcm", "-k", "hunter2"];
        let local = Running::start(dir.adit(&line));
        round_trip(&mut socks5(local.address(), "127.0.0.1", echo().port()), 10_000);
        drop(local);
        server.end();
    }
}

#[test]
fn a_start_that_fails_in_the_background_is_seen() {
    let dir = Dir::new();
    let line = ["-s", "192.0.2.1", "-p", "1", "-k", "k", "-f", "s.pid"];
    let (status, _, err) = finish(dir.command(link(&dir, "ss-server"), &line), "");
    assert_eq!(status, 255, "{err}");
    assert!(err.contains("cannot listen on 192.0.2.1:1"), "{err}");
    assert!(!dir.path().join("s.pid").exists());
}

#[test]
#[ignore = "full suite: needs root"]
fn root_becomes_another_user() {
    let dir = Dir::new();
    // The other user's process runs the program, but need not reach the folder.
    assert!(Path::new("/proc/self").exists());
    let line = ["ss-server", "-s", "127.0.0.1", "-p", "0", "-k", "k", "-m", "aes-128-gcm", "-a", "nobody"];
    let server = Running::start(dir.adit(&line));
    let port = server.address().port().to_string();
    let status = |field: &str| {
        let text = std::fs::read_to_string(format!("/proc/{}/status", server.pid())).unwrap();
        let line = text.lines().find(|line| line.starts_with(field)).unwrap().to_owned();
        line.split_whitespace().skip(1).map(str::to_owned).collect::<Vec<_>>()
    };
    assert!(status("Uid:").iter().all(|uid| uid == "65534"), "{:?}", status("Uid:"));
    assert!(status("Gid:").iter().all(|gid| gid == "65534"));
    assert!(status("CapEff:").iter().all(|caps| caps.trim_start_matches('0').is_empty()));
    for task in std::fs::read_dir(format!("/proc/{}/task", server.pid())).unwrap() {
        let text = std::fs::read_to_string(task.unwrap().path().join("status")).unwrap();
        assert!(text.contains("Uid:\t65534\t65534\t65534\t65534"), "every thread of it");
    }
    let line = ["ss-local", "-s", "127.0.0.1", "-p", &port, "-l", "0", "-m", "aes-128-gcm", "-k", "k"];
    let local = Running::start(dir.adit(&line));
    round_trip(&mut socks5(local.address(), "127.0.0.1", echo().port()), 10_000);
}
