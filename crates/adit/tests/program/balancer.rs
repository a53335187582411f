//! Several servers, under a foreign name and in adit's own file; lists that are fetched.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener};
use std::thread;
use std::time::{Duration, Instant};

use adit_testkit::unused_addr;

use crate::support::{Dir, PATIENCE, Running, echo, link, round_trip, socks5};

const METHOD: &str = "aes-128-gcm";

/// A server that asks nobody outside this machine for names.
fn server(dir: &Dir, at: SocketAddr) -> Running {
    let text = format!(
        "{{servers: [{{server: '{}', server_port: {}, method: '{METHOD}', password: 'hunter2'}}], dns: '{}'}}",
        at.ip(),
        at.port(),
        unused_addr()
    );
    let name = format!("server-{}.json5", at.ip());
    dir.file(&name, &text);
    let running = Running::start(dir.adit(&["ssserver", "-c", &name]));
    assert_eq!(running.address(), at);
    running
}

fn listed(at: SocketAddr, name: &str) -> String {
    format!(
        "{{\"remarks\": \"{name}\", \"server\": \"{}\", \"server_port\": {}, \"method\": \"{METHOD}\", \
         \"password\": \"hunter2\"}}",
        at.ip(),
        at.port()
    )
}

fn list(servers: &[String]) -> String {
    format!("{{\"version\": 1, \"servers\": [{}]}}", servers.join(","))
}

fn comes_back(proxy: SocketAddr, target: SocketAddr) {
    round_trip(&mut socks5(proxy, "127.0.0.1", target.port()), 10_000);
}

fn stop(running: Running) -> String {
    running.signal("TERM");
    let (status, log) = running.end();
    assert_eq!(status.code(), Some(0), "{log}");
    assert!(!log.contains("hunter2"), "{log}");
    log
}

fn kill(running: Running) {
    running.signal("KILL");
    running.end();
}

#[test]
fn a_file_with_two_servers_and_a_balancer() {
    let dir = Dir::new();
    let (first, second, local, target) = (unused_addr(), unused_addr(), unused_addr(), echo());
    let servers = [server(&dir, first), server(&dir, second)];
    let text = format!(
        "{{\"servers\": [{}, {}], \"local_address\": \"{}\", \"local_port\": {},\n\
         \"balancer\": {{\"max_server_rtt\": 5, \"check_interval\": 10, \"check_best_interval\": 5}}}}",
        listed(first, "one").replace('}', ", \"tcp_weight\": 1.0}"),
        listed(second, "two").replace('}', ", \"tcp_weight\": 0.5}"),
        local.ip(),
        local.port()
    );
    dir.file("local.json", &text);
    let running = Running::start(dir.command(link(&dir, "sslocal"), &["-c", "local.json"]));
    let proxy = running.address();
    comes_back(proxy, target);
    let [one, two] = servers;
    kill(one);
    // Each connection finds the way, before and after the balancer has noticed.
    let begun = Instant::now();
    while !running.log().contains("another server") {
        assert!(begun.elapsed() < PATIENCE, "{}", running.log());
        comes_back(proxy, target);
        thread::sleep(Duration::from_millis(50));
    }
    println!("the dead server was left after {:?}", begun.elapsed());
    let line = running.line("another server");
    assert!(line.contains("from=") && line.contains("one") && line.contains("two"), "{line}");
    comes_back(proxy, target);
    stop(running);
    kill(two);
}

#[test]
#[ignore = "a server that hangs is known by its silence, which takes seconds"]
fn a_server_that_hangs_is_left() {
    let dir = Dir::new();
    let page = page("HTTP/1.1 204 No Content\r\n\r\n".into());
    let (first, second, target) = (unused_addr(), unused_addr(), echo());
    let servers = [server(&dir, first), server(&dir, second)];
    let outbound = |name: &str, at: SocketAddr| {
        format!(
            "[[outbound]]\nname = \"{name}\"\nprotocol = \"shadowsocks\"\nserver = \"{at}\"\n\
             method = \"{METHOD}\"\npassword = \"hunter2\"\n"
        )
    };
    let text = format!(
        "[[inbound]]\nprotocol = \"mixed\"\nlisten = \"127.0.0.1:0\"\n[[outbound]]\nname = \"best\"\n\
         protocol = \"group\"\nmembers = [{{ name = \"one\" }}, {{ name = \"two\" }}]\n\
         check-url = \"http://{page}/\"\ncheck-interval = \"10m\"\ntolerance = \"1m\"\n{}{}",
        outbound("one", first),
        outbound("two", second)
    );
    dir.file("adit.toml", &text);
    let running = Running::start(dir.adit(&["run", "-c", "adit.toml"]));
    let proxy = running.address();
    comes_back(proxy, target);
    servers[0].signal("STOP");
    let begun = Instant::now();
    while !running.log().contains("another server") {
        assert!(begun.elapsed() < PATIENCE, "{}", running.log());
        // The kernel takes these for the server that says nothing more.
        drop(socks5(proxy, "127.0.0.1", target.port()));
        thread::sleep(Duration::from_millis(100));
    }
    println!("the server that hangs was left after {:?}", begun.elapsed());
    comes_back(proxy, target);
    stop(running);
    servers.into_iter().for_each(kill);
}

#[test]
fn the_status_of_a_group() {
    let dir = Dir::new();
    let (first, second, page) =
        (unused_addr(), unused_addr(), page("HTTP/1.1 204 No Content\r\n\r\n".into()));
    let servers = [server(&dir, first), server(&dir, second)];
    let text = format!(
        "[admin]\nsocket = \"adit.sock\"\n[[inbound]]\nprotocol = \"mixed\"\nlisten = \"127.0.0.1:0\"\n\
         [[outbound]]\nname = \"best\"\nprotocol = \"group\"\nmembers = [{{ name = \"one\" }}, {{ name = \"two\" }}]\n\
         check-url = \"http://{page}/\"\ncheck-interval = \"1s\"\ntolerance = \"1m\"\n\
         [[outbound]]\nname = \"one\"\nprotocol = \"shadowsocks\"\nserver = \"{first}\"\nmethod = \"{METHOD}\"\n\
         password = \"hunter2\"\n\
         [[outbound]]\nname = \"two\"\nprotocol = \"shadowsocks\"\nserver = \"{second}\"\nmethod = \"{METHOD}\"\n\
         password = \"hunter2\"\n"
    );
    dir.file("adit.toml", &text);
    let running = Running::start(dir.adit(&["run", "-c", "adit.toml"]));
    running.line("listening");
    let status = || {
        let (status, out, err) = dir.run(&["status", "--socket", "adit.sock", "--json"]);
        assert_eq!(status, 0, "{err}");
        serde_json::from_str::<serde_json::Value>(&out).unwrap()["groups"][0].clone()
    };
    let wait = |what: &str, is_so: &dyn Fn(&serde_json::Value) -> bool| {
        let begun = Instant::now();
        loop {
            let group = status();
            if is_so(&group) {
                return group;
            }
            assert!(begun.elapsed() < PATIENCE, "{what}: {group}");
            thread::sleep(Duration::from_millis(20));
        }
    };
    let state = |group: &serde_json::Value, member: usize| group["members"][member]["tcp"]["state"].clone();
    let group = wait("both answer", &|group| state(group, 0) == "alive" && state(group, 1) == "alive");
    assert!(group["members"][0]["tcp"]["latency_us"].as_u64().is_some(), "{group}");
    let chosen = usize::from(group["tcp"]["member"] == "two");
    let mut servers: Vec<Running> = servers.into();
    kill(servers.remove(chosen));
    let other = ["two", "one"][chosen];
    let group = wait("the other one is used", &|group| group["tcp"]["member"] == other);
    assert!(group["tcp"]["why"].as_str().is_some_and(|why| !why.is_empty()), "{group}");
    wait("the dead one is seen", &|group| state(group, chosen) == "dead");
    let (_, text, _) = dir.run(&["status", "--socket", "adit.sock"]);
    assert!(text.contains("best") && text.contains("dead: no-connection"), "{text}");
    stop(running);
    kill(servers.remove(0));
}

/// Answers every connection with the same bytes.
fn page(answer: String) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let at = listener.local_addr().unwrap();
    thread::spawn(move || {
        for mut stream in listener.incoming().flatten() {
            let answer = answer.clone();
            thread::spawn(move || {
                if stream.read(&mut [0; 4096])? > 0 {
                    stream.write_all(answer.as_bytes())?;
                }
                std::io::Result::Ok(())
            });
        }
    });
    at
}

#[test]
fn a_list_that_is_fetched() {
    let dir = Dir::new();
    let (first, local, target) = (unused_addr(), unused_addr(), echo());
    let one = server(&dir, first);
    let document = list(&[listed(first, "one"), "{\"server\": \"h\"}".into()]);
    let at = page(format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n{document}", document.len()));
    let url = format!("http://{at}/token-hunter2");
    let (local_at, line) = (local.to_string(), ["sslocal", "-b"]);
    let line = [line[0], line[1], &local_at, "--online-config-url", &url];
    let running = Running::start(dir.adit(&line));
    running.line("list of servers is up to date");
    comes_back(running.address(), target);
    let log = stop(running);
    assert!(log.contains("servers[1].server_port") && log.contains("WARN"), "{log}");
    kill(one);
}

#[test]
fn a_list_in_a_file_that_changes() {
    let dir = Dir::new();
    let (first, second, local, target) = (unused_addr(), unused_addr(), unused_addr(), echo());
    let path = dir.file("list.json", "not yet");
    let text = format!(
        "{{online_config: {{config_url: '{}', update_interval: 1}}, local_address: '{}', local_port: {}}}",
        path.display(),
        local.ip(),
        local.port()
    );
    dir.file("local.json5", &text);
    let running = Running::start(dir.adit(&["sslocal", "-c", "local.json5"]));
    let proxy = running.address();
    let line = running.line("list of servers not updated");
    assert!(line.contains("WARN") && line.contains("online_config:1:1"), "{line}");
    let one = server(&dir, first);
    dir.file("list.json", &list(&[listed(first, "one")]));
    running.line("list of servers is up to date");
    let mut kept = socks5(proxy, "127.0.0.1", target.port());
    round_trip(&mut kept, 1000);
    // A bad document changes nothing, and is spoken of once.
    dir.file("list.json", "{\"version\": 2}");
    running.line("no whole number from 1 to 1");
    comes_back(proxy, target);
    let two = server(&dir, second);
    dir.file("list.json", &list(&[listed(second, "two")]));
    running.line("to=two");
    comes_back(proxy, target);
    // Its server is no longer listed, and it goes on.
    round_trip(&mut kept, 1000);
    kill(one);
    comes_back(proxy, target);
    drop(kept);
    let log = stop(running);
    assert_eq!(log.matches("no whole number from 1 to 1").count(), 1, "{log}");
    kill(two);
}
