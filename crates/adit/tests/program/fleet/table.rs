//! The table of metrics: each name with its type, its labels and the ends of its classes, after real traffic.

use std::collections::{BTreeMap, BTreeSet};
use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::process::Stdio;
use std::thread;
use std::time::Duration;

use super::support::{Hooks, Redis, echoed, wait_for};
use crate::support::{Dir, Running, echo, finish, socks5};

const DIAL: &str = "0.005 0.01 0.025 0.05 0.1 0.25 0.5 1.0 2.5 5.0 10.0";
const CALL: &str = "0.001 0.0025 0.005 0.01 0.025 0.05 0.1 0.25 0.5 1.0 2.5 5.0";

/// Names that a node without a store has, with type, labels, and the ends of the classes of histograms.
const TABLE: &[(&str, &str, &str, &str)] = &[
    ("adit_build_info", "gauge", "version revision target", ""),
    ("adit_start_time_seconds", "gauge", "", ""),
    ("adit_event_loop_lag_seconds", "histogram", "core", "0.0005 0.001 0.005 0.01 0.05 0.1 0.5 1.0 5.0"),
    ("adit_bytes_total", "counter", "inbound proto dir", ""),
    ("adit_datagrams_total", "counter", "inbound dir", ""),
    ("adit_datagrams_dropped_total", "counter", "inbound reason", ""),
    ("adit_connections_accepted_total", "counter", "inbound", ""),
    ("adit_connections_open", "gauge", "inbound", ""),
    ("adit_flows_open", "gauge", "inbound", ""),
    ("adit_requests_total", "counter", "inbound result", ""),
    ("adit_refused_total", "counter", "inbound reason", ""),
    ("adit_connection_seconds", "histogram", "inbound", "0.1 1.0 10.0 60.0 600.0 3600.0 86400.0"),
    ("adit_dial_seconds", "histogram", "outbound result", DIAL),
    ("adit_first_byte_seconds", "histogram", "inbound", DIAL),
    ("adit_trial_seconds", "histogram", "inbound found", "0.0001 0.001 0.01 0.05 0.1 0.25 0.5 1.0"),
    ("adit_trial_keys", "histogram", "inbound found", "1.0 10.0 100.0 1000.0 10000.0"),
    ("adit_trial_cache_total", "counter", "inbound result", ""),
    ("adit_trial_waiting", "gauge", "inbound", ""),
    ("adit_trial_refused_total", "counter", "inbound", ""),
    ("adit_users", "gauge", "inbound", ""),
    ("adit_users_online", "gauge", "inbound", ""),
    ("adit_users_over_limit", "gauge", "inbound", ""),
    ("adit_user_list_age_seconds", "gauge", "source", ""),
    ("adit_user_list_pending", "gauge", "source", ""),
    ("adit_panel_requests_total", "counter", "panel operation result", ""),
    ("adit_panel_request_seconds", "histogram", "panel operation result", CALL),
    ("adit_panel_unsent_bytes", "gauge", "panel", ""),
    ("adit_panel_in_doubt_bytes", "gauge", "panel", ""),
    ("adit_panel_oldest_unsent_seconds", "gauge", "panel", ""),
    ("adit_state_write_seconds", "histogram", "", "0.001 0.0025 0.005 0.01 0.05 0.1 0.5 1.0"),
    ("adit_state_errors_total", "counter", "", ""),
    ("adit_clock_skew_seconds", "gauge", "witness", ""),
    ("adit_memory_bytes", "gauge", "kind", ""),
    ("adit_descriptors", "gauge", "", ""),
    ("adit_descriptors_limit", "gauge", "", ""),
    ("adit_drain_remaining", "gauge", "", ""),
    ("adit_group_member_up", "gauge", "group member proto", ""),
    ("adit_group_delay_seconds", "gauge", "group member proto", ""),
    ("adit_carrier_sessions", "gauge", "carrier", ""),
    ("adit_carrier_retransmitted_total", "counter", "carrier", ""),
    ("adit_carrier_recovered_total", "counter", "carrier", ""),
    ("adit_log_errors_total", "counter", "code", ""),
];

/// Names that a store adds.
const OF_STORE: &[(&str, &str, &str, &str)] = &[
    ("adit_store_calls_total", "counter", "operation result", ""),
    ("adit_store_call_seconds", "histogram", "operation result", CALL),
    ("adit_store_sync_age_seconds", "gauge", "", ""),
    ("adit_store_resync_total", "counter", "", ""),
    ("adit_limit_scope", "gauge", "limit scope", ""),
];

/// Series that this traffic makes.
const SERIES: &[&str] = &[
    "adit_requests_total{inbound=\"entry\",result=\"ok\"}",
    "adit_requests_total{inbound=\"lost\",result=\"dial-failed\"}",
    "adit_requests_total{inbound=\"in\",result=\"refused\"}",
    "adit_refused_total{inbound=\"in\",reason=\"authentication\"}",
    "adit_refused_total{inbound=\"in\",reason=\"limit-expired\"}",
    "adit_state_write_seconds_count",
    "adit_dial_seconds_count{outbound=\"direct\",result=\"ok\"}",
    "adit_dial_seconds_count{outbound=\"dead\",result=\"failed\"}",
    "adit_first_byte_seconds_count{inbound=\"entry\"}",
    "adit_connection_seconds_count{inbound=\"in\"}",
    "adit_trial_keys_count{inbound=\"in\",found=\"true\"}",
    "adit_trial_keys_count{inbound=\"in\",found=\"false\"}",
    "adit_trial_cache_total{inbound=\"in\",result=\"hit\"}",
    "adit_users_online{inbound=\"in\"}",
    "adit_user_list_age_seconds{source=\"home\"}",
    "adit_panel_request_seconds_count{panel=\"home\",operation=\"user\",result=\"ok\"}",
    "adit_clock_skew_seconds{witness=\"panel\"}",
    "adit_memory_bytes{kind=\"buffers\"}",
    "adit_memory_bytes{kind=\"carriers\"}",
    "adit_memory_bytes{kind=\"users\"}",
    "adit_memory_bytes{kind=\"salts\"}",
    "adit_memory_bytes{kind=\"resident\"}",
    "adit_memory_bytes{kind=\"limit\"}",
    "adit_group_delay_seconds{group=\"all\",member=\"out\",proto=\"tcp\"}",
    "adit_carrier_sessions{carrier=\"carried\"}",
    "adit_log_errors_total{code=\"ADIT-NET-01\"}",
];

/// Series, and of those that have to be there and not 0 the ones that are not.
fn missing(text: &str) -> Vec<&'static str> {
    let zero =
        ["adit_memory_bytes{kind=\"buffers\"}", "adit_memory_bytes{kind=\"carriers\"}", "adit_clock_skew"];
    let is_there = |series: &&&str| {
        let value = text.lines().find_map(|line| line.strip_prefix(**series)?.trim().parse::<f64>().ok());
        let may_be_zero = zero.iter().any(|begin| series.starts_with(begin))
            || series.starts_with("adit_user_list_age")
            || series.starts_with("adit_carrier_sessions");
        value.is_some_and(|value| value != 0.0 || may_be_zero)
    };
    SERIES.iter().filter(|series| !is_there(series)).copied().collect()
}

/// The labels of each family, in any of its series, and its type. Labels of histograms are those of their counts.
fn families(text: &str) -> BTreeMap<&str, (&str, BTreeSet<Vec<&str>>)> {
    let mut all = BTreeMap::<&str, (&str, BTreeSet<Vec<&str>>)>::new();
    for line in text.lines() {
        if let Some(rest) = line.strip_prefix("# TYPE ") {
            let (name, kind) = rest.split_once(' ').unwrap();
            all.insert(name, (kind, BTreeSet::new()));
        } else if !line.starts_with('#') {
            let series = line.rsplit_once(' ').unwrap().0;
            let (name, labels) = series.split_once('{').unwrap_or((series, ""));
            let family = all.contains_key(name).then_some(name).or_else(|| name.strip_suffix("_count"));
            let Some((_, known)) = family.and_then(|family| all.get_mut(family)) else { continue };
            let names = labels.split("=\"").map(|part| part.rsplit([',', '{', '"']).next().unwrap());
            known.insert(names.filter(|name| !name.is_empty() && *name != "}").collect());
        }
    }
    all
}

/// The ends of the classes of a histogram, in the order of its first series.
fn ends<'t>(text: &'t str, name: &str) -> Vec<&'t str> {
    let bucket = format!("{name}_bucket{{");
    let all =
        text.lines().filter_map(|line| line.strip_prefix(&bucket)?.split("le=\"").nth(1)?.split('"').next());
    let mut ends: Vec<&str> = all.collect();
    let first = ends.iter().position(|end| *end == "+Inf").unwrap_or_default();
    ends.truncate(first);
    ends
}

/// Everything of `table` is there as it should be.
fn holds(text: &str, table: &[(&str, &str, &str, &str)]) {
    let all = families(text);
    for (name, kind, labels, classes) in table {
        let (found, series) = all.get(name).unwrap_or_else(|| panic!("{name} is missing: {text}"));
        assert_eq!(found, kind, "{name}");
        let labels: Vec<&str> = labels.split_whitespace().collect();
        assert_eq!(series.iter().collect::<Vec<_>>(), [&labels], "{name}: {text}");
        let classes: Vec<&str> = classes.split_whitespace().collect();
        assert_eq!(ends(text, name), classes, "{name}");
    }
}

/// A page for the checks of a group.
fn page() -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let at = listener.local_addr().unwrap();
    thread::spawn(move || {
        for mut stream in listener.incoming().map_while(Result::ok) {
            let Ok(1..) = stream.read(&mut [0; 1024]) else { continue };
            stream.write_all(b"HTTP/1.1 204 No Content\r\nContent-Length: 0\r\n\r\n").ok();
        }
    });
    at
}

/// Sends back datagrams.
fn echo_datagrams() -> SocketAddr {
    let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
    let at = socket.local_addr().unwrap();
    thread::spawn(move || {
        let mut bytes = [0; 2048];
        while let Ok((len, from)) = socket.recv_from(&mut bytes) {
            socket.send_to(&bytes[..len], from).ok();
        }
    });
    at
}

/// The answer to `GET /metrics` with these fields: its head and its body.
fn scrape(at: SocketAddr, fields: &str) -> (String, Vec<u8>) {
    let mut stream = TcpStream::connect(at).unwrap();
    write!(stream, "GET /metrics HTTP/1.1\r\nHost: {at}\r\nConnection: close\r\n{fields}\r\n").unwrap();
    let mut bytes = Vec::new();
    stream.read_to_end(&mut bytes).unwrap();
    let end = bytes.windows(4).position(|part| part == b"\r\n\r\n").unwrap();
    let body = bytes.split_off(end + 4);
    (String::from_utf8(bytes).unwrap().to_lowercase(), body)
}

fn text(at: SocketAddr) -> String {
    String::from_utf8(scrape(at, "").1).unwrap()
}

/// A node that is its own client, over a server with users who are found by trial.
struct Site {
    dir: Dir,
    http: SocketAddr,
    server: SocketAddr,
    tunnel: SocketAddr,
    running: Running,
    _panel: Hooks,
}

const METHOD: &str = "method = \"chacha20-ietf-poly1305\"\n";
/// Names and keys that no series may show.
const SECRETS: [&str; 6] =
    ["ann-of-the-table", "bob-of-the-table", "eve-of-the-table", "key-a", "key-b", "key-e"];

impl Site {
    fn start(more: &str) -> Self {
        let row = "{\"id\":\"ann-of-the-table\",\"secret\":\"MDAwMDAwMDAtMTExMS00MjIyMTIzNDU2Nzg5MDEyMzQ=\"}";
        let panel = Hooks::start(&[row.to_owned()]);
        let unused = adit_testkit::unused_addr;
        let (dir, http, server, tunnel) = (Dir::new(), unused(), unused(), unused());
        let (dead, check, datagrams) = (unused(), page(), echo_datagrams());
        let [ann, bob, eve, key_a, key_b, key_e] = SECRETS;
        let file = format!(
            "[admin]\nsocket = \"adit.sock\"\nhttp = \"{http}\"\n\
             [[panel]]\nname = \"home\"\nkind = \"hooks\"\nurl = \"http://{}\"\ntoken = \"t\"\nnode = \"17\"\n\
             pull = \"1s\"\npush = \"1s\"\n\
             [[inbound]]\nname = \"in\"\nprotocol = \"shadowsocks\"\nlisten = \"{server}\"\n{METHOD}\
             network = \"tcp-and-udp\"\noutbound = \"direct\"\n\
             users = [{{ name = \"{ann}\", password = \"{key_a}\" }}, {{ name = \"{bob}\", password = \"{key_b}\" }}, \
             {{ name = \"{eve}\", password = \"{key_e}\", expires = \"2001-01-01\" }}]\n\
             [[inbound]]\nname = \"listed\"\nprotocol = \"shadowsocks\"\nlisten = \"127.0.0.1:0\"\n\
             method = \"2022-blake3-aes-256-gcm\"\npassword = \"MDAwMDAwMDAtMTExMS00MjIyMTIzNDU2Nzg5MDEyMzQ=\"\n\
             outbound = \"direct\"\npanel = \"home\"\n\
             [[inbound]]\nname = \"carried\"\nprotocol = \"snell\"\nlisten = \"127.0.0.1:0\"\npsk = \"k\"\n\
             carrier = \"kcp\"\ncarrier-key = \"k\"\noutbound = \"direct\"\n\
             [[inbound]]\nname = \"entry\"\nprotocol = \"mixed\"\nlisten = \"127.0.0.1:0\"\noutbound = \"out\"\n\
             [[inbound]]\nname = \"late\"\nprotocol = \"mixed\"\nlisten = \"127.0.0.1:0\"\noutbound = \"expired\"\n\
             [[inbound]]\nname = \"lost\"\nprotocol = \"mixed\"\nlisten = \"127.0.0.1:0\"\noutbound = \"dead\"\n\
             [[inbound]]\nname = \"datagrams\"\nprotocol = \"tunnel\"\nlisten = \"{tunnel}\"\n\
             target = \"{datagrams}\"\nnetwork = \"tcp-and-udp\"\noutbound = \"out\"\n\
             [[outbound]]\nname = \"direct\"\nprotocol = \"direct\"\n\
             [[outbound]]\nname = \"out\"\nprotocol = \"shadowsocks\"\nserver = \"{server}\"\n{METHOD}\
             password = \"{key_b}\"\nnetwork = \"tcp-and-udp\"\n\
             [[outbound]]\nname = \"expired\"\nprotocol = \"shadowsocks\"\nserver = \"{server}\"\n{METHOD}\
             password = \"{key_e}\"\n\
             [[outbound]]\nname = \"dead\"\nprotocol = \"shadowsocks\"\nserver = \"{dead}\"\n{METHOD}password = \"x\"\n\
             [[outbound]]\nname = \"all\"\nprotocol = \"group\"\nmembers = [{{ name = \"out\" }}, {{ name = \"dead\" }}]\n\
             check-url = \"http://{check}/\"\ncheck-interval = \"1s\"\ncheck-timeout = \"1s\"\n\
             [[inbound]]\nname = \"grouped\"\nprotocol = \"mixed\"\nlisten = \"127.0.0.1:0\"\noutbound = \"all\"\n\
             [[rule]]\ninbound = \"in\"\nport = 9\nreject = \"reset\"\n\
             [[rule]]\ninbound = \"in\"\noutbound = \"direct\"\n{more}",
            panel.at
        );
        dir.file("adit.toml", &file);
        let running = Running::start(dir.adit(&["run", "-c", "adit.toml"]));
        running.line("inbound=grouped");
        Self { dir, http, server, tunnel, running, _panel: panel }
    }

    fn port(&self, inbound: &str) -> SocketAddr {
        let line = self.running.line(&format!("inbound={inbound} "));
        line.split("address=").nth(1).unwrap().split_whitespace().next().unwrap().parse().unwrap()
    }

    /// Some of everything.
    fn traffic(&self) {
        let target = echo();
        // The first one is looked for, the second one is known by its source.
        for _ in 0..2 {
            assert!(echoed(&mut socks5(self.port("entry"), "127.0.0.1", target.port()), 3000));
        }
        let ask = |inbound: &str, port: u16| {
            let mut stream = TcpStream::connect(self.port(inbound)).unwrap();
            stream.set_read_timeout(Some(Duration::from_secs(5))).unwrap();
            stream.write_all(&[5, 1, 0, 5, 1, 0, 1, 127, 0, 0, 1]).unwrap();
            stream.write_all(&port.to_be_bytes()).unwrap();
            stream.write_all(b"hello").unwrap();
            stream.read_to_end(&mut Vec::new()).ok();
        };
        ask("lost", target.port());
        ask("late", target.port());
        // A rule of the server refuses this port.
        ask("entry", 9);
        let probe = [7; 200];
        let mut stream = TcpStream::connect(self.server).unwrap();
        stream.write_all(&probe).unwrap();
        let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
        socket.send_to(&probe, self.server).unwrap();
        socket.set_read_timeout(Some(Duration::from_millis(500))).unwrap();
        wait_for("a datagram comes back", || {
            socket.send_to(b"hello", self.tunnel).unwrap();
            socket.recv(&mut [0; 100]).is_ok()
        });
    }
}

/// Every name of the table is there with its type, labels and classes; no series shows a user, a key or an address, and
/// they are few.
#[test]
fn each_name_of_the_table_is_there_after_traffic() {
    let site = Site::start("");
    site.traffic();
    wait_for("every series is there", || {
        let missing = missing(&text(site.http));
        println!("{missing:?}");
        missing.is_empty()
    });
    let text = text(site.http);
    holds(&text, TABLE);
    for hidden in SECRETS.iter().chain(&["127.0.0.1", "hello"]) {
        assert!(!text.contains(hidden), "{hidden}: {text}");
    }
    let series = text.lines().filter(|line| !line.starts_with('#')).count();
    println!("{series} series, {} bytes", text.len());
    assert!(series < 1000, "{series}");
    // The same text, compressed; counters move on meanwhile, and names do not.
    let (head, body) = scrape(site.http, "Accept-Encoding: deflate, gzip;q=0.9\r\n");
    assert!(
        head.contains("content-encoding: gzip\r\n") && !scrape(site.http, "").0.contains("gzip"),
        "{head}"
    );
    let mut child = site.dir.command("gzip", &["-dc"]);
    let mut child = child.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    child.stdin.take().unwrap().write_all(&body).unwrap();
    let out = child.wait_with_output().unwrap();
    assert!(out.status.success());
    let names = |text: &str| -> Vec<String> {
        text.lines().map(|line| line.rsplit_once(' ').unwrap().0.to_owned()).collect()
    };
    assert_eq!(names(&String::from_utf8(out.stdout).unwrap()), names(&text));
    println!("{} bytes compressed", body.len());
    assert!(body.len() < text.len() / 5, "{}", body.len());
    // OpenMetrics: the same families, with units and an end.
    let open =
        String::from_utf8(scrape(site.http, "Accept: application/openmetrics-text; version=1.0.0\r\n").1)
            .unwrap();
    assert!(open.ends_with("# EOF\n"));
    for (name, kind, ..) in TABLE {
        let name = name.strip_suffix("_total").unwrap_or(name);
        assert!(open.contains(&format!("# TYPE {name} {kind}\n")), "{name}");
        let unit = ["seconds", "bytes"].into_iter().find(|unit| name.ends_with(unit));
        let has_unit = open.contains(&format!("# UNIT {name} "));
        assert_eq!(has_unit, unit.is_some(), "{name}");
    }
    site.running.signal("TERM");
    assert!(site.running.end().0.success());
}

/// The same with a store, and Prometheus's own opinion of the text.
#[test]
#[ignore = "needs redis-server and prometheus"]
fn prometheus_and_its_tool_take_the_whole_table() {
    let redis = Redis::start();
    let site =
        Site::start(&format!("[store]\nurl = \"{}\"\nfleet = \"test\"\nevery = \"1s\"\n", redis.url()));
    site.traffic();
    wait_for("every series is there", || missing(&text(site.http)).is_empty());
    wait_for("the store has been called", || text(site.http).contains("adit_store_call_seconds_count{"));
    wait_for("limits hold over all nodes", || text(site.http).contains("scope=\"global\"} 1"));
    let text = text(site.http);
    holds(&text, TABLE);
    holds(&text, OF_STORE);
    let (code, out, err) = finish(site.dir.command("promtool", &["check", "metrics"]), &text);
    assert!(code == 0 && out.is_empty() && err.is_empty(), "{out}{err}");
    super::prometheus::takes(site.http);
}
