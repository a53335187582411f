//! `adit test` and `adit doctor` against servers that run.

use std::io::{Read as _, Write as _};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, UdpSocket};
use std::path::PathBuf;
use std::process::Command;
use std::thread;

use adit_testkit::{skipped, unused_addr};
use serde_json::Value;

use crate::support::{Dir, Running, finish};

const KEY: &str = "AAECAwQFBgcICQoLDA0ODw==";
const OTHER_KEY: &str = "EBESExQVFhcYGRobHB0eHw==";

/// A page, gone with the process of the tests.
fn page() -> SocketAddr {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let at = listener.local_addr().unwrap();
    thread::spawn(move || {
        for mut stream in listener.incoming().map_while(Result::ok) {
            thread::spawn(move || {
                let mut request = [0; 512];
                if stream.read(&mut request).is_ok_and(|len| len == 0) {
                    return;
                }
                stream.write_all(b"HTTP/1.1 204 No Content\r\n\r\n").ok();
            });
        }
    });
    at
}

/// A name server of few words: it sends each question back as its answer.
fn name_server() -> SocketAddr {
    let socket = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let at = socket.local_addr().unwrap();
    thread::spawn(move || {
        let mut bytes = [0; 512];
        while let Ok((len, from)) = socket.recv_from(&mut bytes) {
            bytes[2] |= 0x80;
            socket.send_to(&bytes[..len], from).ok();
        }
    });
    at
}

/// A server of Shadowsocks, by default with UDP.
fn server(dir: &Dir, network: &str, preload: Option<(&PathBuf, &str)>) -> (Running, SocketAddr) {
    let at = unused_addr();
    let text = format!(
        "[[inbound]]\nprotocol = \"shadowsocks\"\nlisten = \"{at}\"\nmethod = \"2022-blake3-aes-128-gcm\"\n\
         password = \"{KEY}\"\nnetwork = \"{network}\"\nallow-private = true\n"
    );
    let file = dir.file("server.toml", &text);
    let mut command = dir.adit(&["run", "-c", file.to_str().unwrap()]);
    if let Some((shim, seconds)) = preload {
        command.env("LD_PRELOAD", shim).env("CLOCK_SHIFT", seconds);
    }
    let running = Running::start(command);
    running.line("listening");
    (running, at)
}

fn link(key: &str, at: SocketAddr) -> String {
    let key = key.replace('=', "%3D").replace('+', "%2B").replace('/', "%2F");
    format!("ss://2022-blake3-aes-128-gcm:{key}@{at}")
}

fn test(dir: &Dir, what: &str) -> (i32, Value) {
    test_with(dir, what, page(), name_server())
}

fn test_with(dir: &Dir, what: &str, page: SocketAddr, dns: SocketAddr) -> (i32, Value) {
    let url = format!("http://{page}/generate_204");
    let args = ["test", what, "--json", "--timeout", "2", "--url", &url, "--dns", &dns.to_string()];
    let (status, out, err) = dir.run(&args);
    let json = serde_json::from_str(&out).unwrap_or_else(|_| panic!("{out}{err}"));
    (status, json)
}

fn state(report: &Value, step: &str) -> String {
    let steps = report["steps"].as_array().unwrap();
    let step = steps.iter().find(|found| found["step"] == step);
    step.map_or_else(String::new, |step| step["state"].as_str().unwrap().to_owned())
}

#[test]
fn a_good_server_passes_every_step() {
    let dir = Dir::new();
    let (_server, at) = server(&dir, "tcp-and-udp", None);
    let (status, report) = test(&dir, &link(KEY, at));
    assert_eq!((status, &report["verdict"]), (0, &Value::from("ok")), "{report}");
    for step in ["resolve", "connect", "handshake", "first byte", "udp"] {
        assert_eq!(state(&report, step), "ok", "{report}");
    }
    // The same as text, by an outbound's name, and from standard input.
    let client = format!(
        "[[inbound]]\nprotocol = \"mixed\"\nlisten = \"127.0.0.1:1\"\n[[outbound]]\nname = \"far\"\n\
         protocol = \"shadowsocks\"\nserver = \"{at}\"\nmethod = \"2022-blake3-aes-128-gcm\"\npassword = \"{KEY}\"\n"
    );
    dir.file("adit.toml", &client);
    let (url, dns) = (format!("http://{}/", page()), name_server().to_string());
    let flags = ["--url", &url, "--dns", &dns, "--timeout", "2"];
    let (status, out, _) = dir.run(&[&["test", "far"][..], &flags].concat());
    assert!(status == 0 && out.ends_with("ok: the server works\n") && !out.contains(KEY), "{out}");
    assert!(out.lines().skip(1).all(|line| line.chars().count() <= 80), "{out}");
    let (status, out, _) = finish(dir.adit(&[&["test", "-"][..], &flags].concat()), &link(KEY, at));
    assert_eq!(status, 0, "{out}");
    let (status, _, err) = dir.run(&["test", "near"]);
    assert!(status == 1 && err.contains("hint: there are far"), "{err}");
}

#[test]
fn a_server_that_is_down() {
    let dir = Dir::new();
    let (status, report) = test(&dir, &link(KEY, unused_addr()));
    assert_eq!((status, &report["verdict"]), (1, &Value::from("server-down")), "{report}");
    assert!(report["message"].as_str().unwrap().contains("refused"), "{report}");
    assert_eq!((state(&report, "resolve"), state(&report, "connect")), ("ok".into(), "fail".into()));
}

#[test]
fn a_wrong_key() {
    let dir = Dir::new();
    let (_server, at) = server(&dir, "tcp-and-udp", None);
    let file = "[[inbound]]\nprotocol = \"mixed\"\nlisten = \"127.0.0.1:1\"\n[[outbound]]\nname = \"far\"\n";
    // Snell where Shadowsocks listens: no clock is in question.
    let snell =
        format!("{file}protocol = \"snell\"\nserver = \"{at}\"\npsk = \"TwentyFourCharactersLong\"\n");
    dir.file("adit.toml", &snell);
    let (status, report) = test(&dir, "far");
    assert_eq!((status, &report["verdict"]), (1, &Value::from("wrong-key")), "{report}");
    assert_eq!((state(&report, "connect"), state(&report, "first byte")), ("ok".into(), "fail".into()));
}

#[test]
#[ignore = "half a minute: each clock is tried"]
fn a_wrong_key_is_no_clock_that_differs() {
    let dir = Dir::new();
    let (_server, at) = server(&dir, "tcp-and-udp", None);
    let (status, report) = test(&dir, &link(OTHER_KEY, at));
    assert_eq!((status, &report["verdict"]), (1, &Value::from("wrong-key")), "{report}");
    assert!(report["message"].as_str().unwrap().contains("the clock is not the cause"), "{report}");
}

/// A library that moves the wall clock of a program, for Linux with a C compiler; none elsewhere.
pub(crate) fn clock_shim(dir: &Dir) -> Option<PathBuf> {
    let source = dir.file(
        "clock.c",
        "#define _GNU_SOURCE\n#include <dlfcn.h>\n#include <stdlib.h>\n#include <time.h>\n\
         int clock_gettime(clockid_t id, struct timespec *t) {\n\
         static int (*real)(clockid_t, struct timespec *);\n\
         if (!real) real = (int (*)(clockid_t, struct timespec *))dlsym(RTLD_NEXT, \"clock_gettime\");\n\
         int r = real(id, t);\n\
         const char *by = getenv(\"CLOCK_SHIFT\");\n\
         if (id == CLOCK_REALTIME && by) t->tv_sec += atol(by);\n\
         return r;\n}\n",
    );
    let library = dir.path().join("clock.so");
    let built =
        Command::new("cc").args(["-shared", "-fPIC", "-o"]).arg(&library).arg(source).arg("-ldl").status();
    built.is_ok_and(|status| status.success()).then_some(library)
}

#[test]
fn a_clock_that_differs() {
    let dir = Dir::new();
    let Some(shim) = clock_shim(&dir) else { return skipped("no C compiler") };
    for (shift, word) in [("300", "behind"), ("-300", "ahead of")] {
        let (_server, at) = server(&dir, "tcp-and-udp", Some((&shim, shift)));
        let (status, report) = test(&dir, &link(KEY, at));
        assert_eq!((status, &report["verdict"]), (1, &Value::from("clock")), "{report}");
        let message = report["message"].as_str().unwrap();
        assert!(message.contains(&format!("about 300 s {word} the server")), "{message}");
    }
}

#[test]
fn blocked_datagrams() {
    let dir = Dir::new();
    let (_server, at) = server(&dir, "tcp", None);
    let (status, report) = test(&dir, &link(KEY, at));
    assert_eq!((status, &report["verdict"]), (1, &Value::from("udp-blocked")), "{report}");
    assert_eq!((state(&report, "first byte"), state(&report, "udp")), ("ok".into(), "fail".into()));
}

#[test]
fn a_page_that_is_not_there_is_no_wrong_key() {
    let dir = Dir::new();
    let (_server, at) = server(&dir, "tcp-and-udp", None);
    // The name server answers over TCP.
    let (status, report) = test_with(&dir, &link(KEY, at), unused_addr(), page());
    assert_eq!((status, &report["verdict"]), (1, &Value::from("target-unreachable")), "{report}");
}

#[test]
fn names_that_do_not_resolve() {
    let dir = Dir::new();
    let (status, report) =
        test(&dir, &format!("ss://2022-blake3-aes-128-gcm:{}@nosuch.invalid:1", KEY.replace('=', "%3D")));
    assert_eq!((status, &report["verdict"]), (1, &Value::from("name-not-found")), "{report}");
}

/// A time server that is five minutes ahead.
fn time_server() -> SocketAddr {
    let socket = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let at = socket.local_addr().unwrap();
    thread::spawn(move || {
        let mut question = [0; 64];
        while let Ok((48, from)) = socket.recv_from(&mut question) {
            let sent = u64::from_be_bytes(question[40..48].try_into().unwrap());
            let now = (sent + (300 << 32)).to_be_bytes();
            let mut answer = [0; 48];
            (answer[0], answer[1]) = (0x24, 2);
            answer[24..32].copy_from_slice(&sent.to_be_bytes());
            answer[32..40].copy_from_slice(&now);
            answer[40..].copy_from_slice(&now);
            socket.send_to(&answer, from).ok();
        }
    });
    at
}

#[test]
fn doctor_judges_this_machine_and_its_clock() {
    let dir = Dir::new();
    let file = dir.file("adit.toml", "[[inbound]]\nprotocol = \"mixed\"\nlisten = \"127.0.0.1:1080\"\n");
    std::fs::set_permissions(&file, std::os::unix::fs::PermissionsExt::from_mode(0o644)).unwrap();
    let server = time_server().to_string();
    let (status, out, err) = dir.run(&["doctor", "--json", "--time-server", &server]);
    assert_eq!((status, &*err), (1, ""), "{out}");
    let json: Value = serde_json::from_str(&out).unwrap();
    let find = |check: &str| {
        let all = json["findings"].as_array().unwrap();
        all.iter()
            .find(|finding| finding["check"] == check)
            .unwrap_or_else(|| panic!("{check}: {out}"))
            .clone()
    };
    let clock = find("clock");
    assert_eq!((&clock["level"], &clock["command"]), (&"FAIL".into(), &"timedatectl set-ntp true".into()));
    let text = clock["found"].as_str().unwrap();
    assert!(text.starts_with("300.0") || text.starts_with("299.9"), "{clock}");
    assert_eq!(find("file mode")["level"], "WARN");
    assert_eq!(find("configuration")["level"], "PASS");
    let (_, out, _) = dir.run(&["doctor", "--offline", "--all"]);
    assert!(
        out.contains("PASS configuration: no errors (wanted: no errors)") && !out.contains("clock"),
        "{out}"
    );
}
