//! The memory that users cost who only stand in a list.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::thread;
use std::time::Duration;

use super::support::{Redis, wait_for};
use crate::support::{Dir, Running};

const USERS: u64 = 10_000;

/// A panel of hooks that lists so many users, each with a quota and a limit of addresses.
fn panel(users: u64) -> SocketAddr {
    let rows: Vec<String> = (0..users)
        .map(|n| {
            format!(
                "{{\"id\":\"{}\",\"secret\":\"{n:08x}-1111-4222-8333-444455556666\",\"quota\":107374182400,\
                 \"reset_day\":1,\"addresses\":3}}",
                100_000 + n
            )
        })
        .collect();
    let all = format!("{{\"version\":\"1\",\"full\":true,\"users\":[{}]}}", rows.join(","));
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let at = listener.local_addr().unwrap();
    thread::spawn(move || {
        for mut stream in listener.incoming().map_while(Result::ok) {
            answer(&mut stream, &all);
        }
    });
    at
}

fn answer(stream: &mut TcpStream, all: &str) {
    let (mut request, mut bytes) = (String::new(), [0; 4096]);
    while !request.contains("\r\n\r\n") {
        let Ok(len @ 1..) = stream.read(&mut bytes) else { return };
        request += &String::from_utf8_lossy(&bytes[..len]);
    }
    let body = match () {
        () if request.contains("since=1") => "{\"version\":\"1\",\"users\":[]}",
        () if request.starts_with("GET") => all,
        () => "{\"seq\":1}",
    };
    write!(stream, "HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n{body}", body.len()).ok();
}

/// Private memory of a node with so many users, in kB, when it has had time to give back what it took on the way.
fn memory_kb(redis: &Redis, users: u64) -> u64 {
    let dir = Dir::new();
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
            panel(users)
        ),
    );
    let running = Running::start(dir.adit(&["run", "-c", "adit.toml"]));
    wait_for("the users are served", || running.log().contains("lists are in use"));
    wait_for("the store answers", || {
        let (_, out, _) = dir.run(&["status", "--json", "--socket", "adit.sock"]);
        out.contains("\"global\"")
    });
    thread::sleep(Duration::from_secs(10));
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
    assert!(each < 2200, "{each}");
}
