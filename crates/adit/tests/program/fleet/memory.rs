//! The memory that users cost who only stand in a list.

use std::thread;
use std::time::Duration;

use super::support::{Hooks, Redis, program, wait_for};
use crate::support::{Dir, Running};

const USERS: u64 = 10_000;

/// Rows of so many users, each with a quota and a limit of addresses.
fn rows(users: u64) -> Vec<String> {
    let row = |n: u64| {
        let id = 100_000 + n;
        format!(
            "{{\"id\":\"{id}\",\"secret\":\"{n:08x}-1111-4222-8333-444455556666\",\"quota\":107374182400,\
             \"reset_day\":1,\"addresses\":3}}"
        )
    };
    (0..users).map(row).collect()
}

/// Private memory of a node with so many users, in kB, when it has had time to give back what it took on the way.
fn memory_kb(redis: &Redis, users: u64) -> u64 {
    let (dir, panel) = (Dir::new(), Hooks::start(&rows(users)));
    dir.file(
        "adit.toml",
        &format!(
            "[admin]\nsocket = \"adit.sock\"\n\
             [store]\nurl = \"{}\"\nfleet = \"test{users}\"\nevery = \"1s\"\n\
             [[panel]]\nname = \"home\"\nkind = \"hooks\"\nurl = \"http://{}\"\ntoken = \"t\"\nnode = \"17\"\n\
             pull = \"2s\"\npush = \"2s\"\n\
             [[inbound]]\nname = \"in\"\nprotocol = \"shadowsocks\"\nlisten = \"127.0.0.1:0\"\n\
             method = \"2022-blake3-aes-256-gcm\"\npassword = \"AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA=\"\n\
             outbound = \"direct\"\npanel = \"home\"\n\
             [[outbound]]\nname = \"direct\"\nprotocol = \"direct\"\n",
            redis.url(),
            panel.at
        ),
    );
    let running = Running::start(program(&dir, &["run", "-c", "adit.toml"]));
    wait_for("the users are served", || running.log().contains("lists are in use"));
    let beats = format!("adit:test{users}:*");
    wait_for("the store is told", || !redis.cli(&["--scan", "--pattern", &beats]).is_empty());
    // The memory of the start is given back.
    thread::sleep(Duration::from_secs(15));
    let status = std::fs::read_to_string(format!("/proc/{}/status", running.pid())).unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("RssAnon:")).unwrap();
    line.trim().trim_end_matches(" kB").parse().unwrap()
}

/// 10,000 users with keys of their own, a quota and a limit of addresses, with panel and store: what each of them takes while
/// it is not there, keys included. It was 4.4 kB before names, limits and lists were shared.
#[test]
#[ignore = "needs redis-server"]
fn a_user_in_a_list_takes_little() {
    let redis = Redis::start();
    let (few, many) = (memory_kb(&redis, 10), memory_kb(&redis, 10 + USERS));
    let each = (many - few) * 1024 / USERS;
    println!("{few} kB with 10 users, {many} kB with {USERS} more: {each} bytes each");
    assert!(each <= 1500, "{each}");
}
