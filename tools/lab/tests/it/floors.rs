//! The load generator and the integrity check against the floors, with tiny sizes.

use std::collections::BTreeMap;
use std::fs;
use std::net::{SocketAddr, TcpStream};
use std::path::PathBuf;
use std::process::{Command, Output};
use std::time::{Duration, Instant};

use adit_lab::check;
use adit_lab::measure::{Measure, Sizes, Values};
use adit_lab::probe;
use adit_lab::subject::{Helper, Programs, Running, Subject, builtin};
use adit_lab::target::Target;
use adit_lab::wire::audit;

fn programs() -> Programs {
    let helper = Helper { program: env!("CARGO_BIN_EXE_adit-bench").into() };
    Programs::new(helper, BTreeMap::new())
}

fn subject(name: &str) -> Subject {
    builtin().into_iter().find(|subject| subject.name == name).unwrap()
}

fn sizes() -> Sizes {
    Sizes {
        window: Duration::from_millis(200),
        connections: 20,
        first_byte: 20,
        idle: 10,
        transfer: 100_000,
        settle: Duration::from_millis(300),
        counter: None,
        udp: adit_lab::udp::Sizes::usual(Duration::from_millis(200)),
    }
}

fn measure(subject: &Subject, measure: &str) -> Values {
    let target = Target::start(Duration::from_secs(5)).unwrap();
    let measure = measure.parse::<Measure>().unwrap();
    let mut sizes = sizes();
    loop {
        match measure.run(subject, &programs(), &target, &sizes) {
            Ok(values) => return values,
            // A machine that stands still for the whole window spoils a try.
            Err(_) if sizes.window < Duration::from_secs(5) => sizes.window *= 2,
            Err(error) => panic!("{measure} of {}: {error:#}", subject.name),
        }
    }
}

#[test]
fn every_measure_gives_its_figures() {
    for (name, measures) in [
        (
            "direct",
            &["down1", "up1", "conn", "first-byte", "latency", "get2", "put2", "ping1", "busy-connect2"][..],
        ),
        ("floor-plain", &["down1", "up8", "conn", "conn4", "base", "get8"]),
        (
            "floor-aead",
            &["down8", "up1", "conn", "first-byte", "base", "idle", "idle20", "put1", "busy-connect1"],
        ),
    ] {
        let subject = subject(name);
        for &what in measures {
            let values = measure(&subject, what);
            for metric in what.parse::<Measure>().unwrap().metrics() {
                let cpu_without_process = subject.process.is_empty() && metric.key.starts_with("cpu");
                let value = values.get(metric.key);
                assert_eq!(value.is_none(), cpu_without_process, "{name} {what} {}", metric.key);
                assert!(value.is_none_or(|value| *value >= 0.0), "{name} {what} {}: {value:?}", metric.key);
            }
        }
    }
}

#[test]
fn idle_memory_is_seen_and_given_back() {
    let values = measure(&subject("floor-aead"), "idle");
    // Two threads per connection and relay, each with a buffer: far more than a page.
    assert!(values["kib_per_conn_server"] > 4.0, "{values:?}");
    assert_eq!(values["left_open"], 0.0);
}

/// Ciphertext is what the rule is about; the bare copy relay sends the lab's request as it is, which is mostly zeroes.
#[test]
fn the_audit_tells_ciphertext_from_plain() {
    let plain = audit::drive(&subject("floor-plain"), &programs(), 5, None).unwrap();
    assert_eq!((plain.connections, plain.not_exempt, plain.lengths), (5, 0, Some((200, 200))));
    assert_eq!(plain.exempt[&audit::Exemption::Bits], 5);
    // Keys are constants and so is the request: every connection begins alike.
    let sealed = audit::drive(&subject("floor-aead"), &programs(), 5, None).unwrap();
    assert_eq!((sealed.connections, sealed.lengths), (5, Some((218, 218))));
    assert!(audit::drive(&subject("direct"), &programs(), 1, None).is_err());
}

/// A bare relay answers every probe, and tells nothing apart.
#[test]
fn a_relay_is_probed_with_what_its_client_sent() {
    let mut plan = probe::Plan {
        connections: 2,
        patience: Duration::from_millis(300),
        lengths: vec![10, 100],
        at_once: 16,
        seed: 5,
    };
    // A machine that stands still for longer than the prober waits spoils a try.
    for _ in 0..10 {
        let finding = audit::drive(&subject("floor-plain"), &programs(), 3, Some(&plan)).unwrap();
        let probed = finding.probed.unwrap();
        assert!((1..=4).contains(&probed.recorded), "{probed:?}");
        let replay = probed.rows.iter().find(|row| row.kind == probe::Kind::Replay).unwrap();
        let reached = replay.dialled == Some(2) && replay.tally.answered == 2;
        if reached && probed.verdict()[0] == "no length of 10 to 100 random bytes made a difference: open" {
            return;
        }
        plan.patience = (plan.patience * 2).min(Duration::from_secs(10));
    }
    panic!("a replayed request did not reach the target in ten tries");
}

fn plan() -> check::Plan {
    check::Plan {
        connections: 200,
        concurrency: 16,
        seed: 3,
        max_size: 100_000,
        half_close: true,
        aborts: true,
        patience: Duration::from_secs(10),
        settle: Duration::from_secs(10),
    }
}

#[test]
fn floors_pass_the_integrity_check() {
    for name in ["direct", "floor-plain", "floor-aead"] {
        let outcome = check::run(&subject(name), &programs(), &plan(), &|| {}).unwrap();
        assert!(outcome.passed(), "{name}: {outcome:?}");
        assert_eq!(outcome.kinds.values().sum::<u64>(), 200);
        assert_eq!(outcome.kinds.len(), 4);
        assert!(outcome.bytes_down > 0);
    }
}

/// The far relay opens what the near relay never sealed, so nothing can arrive.
#[test]
fn a_broken_subject_fails_the_integrity_check() {
    let mut broken = subject("floor-aead");
    broken.process[1].args[1] = "plain".into();
    let plan = check::Plan { connections: 8, aborts: false, patience: Duration::from_secs(2), ..plan() };
    let outcome = check::run(&broken, &programs(), &plan, &|| {}).unwrap();
    assert!(!outcome.passed());
    assert_eq!(outcome.wrong + outcome.cut + outcome.stuck + outcome.failed, 8, "{outcome:?}");
    assert!(!outcome.examples.is_empty());
}

const HEAD: &str = "name = 'x'\nabout = 'x'\nentry = 'tunnel'\n[[process]]\nrole = 'server'\nready = 'entry'\ndeadline = 2\n";

fn start(process: &str) -> anyhow::Result<Running> {
    let subject = Subject::parse(&format!("{HEAD}{process}")).unwrap();
    Running::start(&subject, &programs(), SocketAddr::from(([127, 0, 0, 1], 9)))
}

#[test]
fn a_program_that_ends_is_an_error_with_its_last_words() {
    let error =
        start("program = 'sh'\nargs = ['-c', 'echo no such key: {port:entry} >&2; exit 3']").unwrap_err();
    let text = format!("{error:#}");
    assert!(text.contains("start the server of x") && text.contains("exit status: 3"), "{text}");
    assert!(text.contains("no such key: "), "{text}");
}

#[test]
fn a_program_that_opens_no_port_is_an_error() {
    let begin = Instant::now();
    let error = start("program = 'sh'\nargs = ['-c', 'sleep 60; : {port:entry}']").unwrap_err();
    assert!(format!("{error:#}").contains("is not open after"), "{error:#}");
    assert!(begin.elapsed() < Duration::from_secs(30));
}

#[test]
fn a_missing_program_is_an_error() {
    let error = start("program = 'no-such-program'\nargs = ['{port:entry}']").unwrap_err();
    assert!(format!("{error:#}").contains("no such program: no-such-program"), "{error:#}");
}

#[test]
fn a_subject_that_dies_is_noticed() {
    let mut running =
        Running::start(&subject("floor-plain"), &programs(), SocketAddr::from(([127, 0, 0, 1], 9))).unwrap();
    assert!(running.alive().is_ok());
    let pid = running.roles().unwrap()[0].1[0];
    assert!(Command::new("kill").args(["-9", &pid.to_string()]).status().unwrap().success());
    adit_testkit::wait_for("the end of the subject", || running.alive().is_err());
    let text = format!("{:#}", running.alive().unwrap_err());
    assert!(text.contains("the server of floor-plain ended"), "{text}");
}

#[test]
fn dropping_kills_and_removes() {
    let running =
        Running::start(&subject("floor-plain"), &programs(), SocketAddr::from(([127, 0, 0, 1], 9))).unwrap();
    let address = running.address;
    let pids: Vec<u32> = running.roles().unwrap().into_iter().flat_map(|(_, pids)| pids).collect();
    assert_eq!(pids.len(), 2);
    drop(running);
    assert!(TcpStream::connect_timeout(&address, Duration::from_secs(1)).is_err());
    for pid in pids {
        assert!(fs::metadata(format!("/proc/{pid}")).is_err(), "process {pid} still runs");
    }
}

fn lab(args: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_adit-bench")).args(args).output().unwrap()
}

#[test]
fn command_line_runs_skips_and_writes_json() {
    let json: PathBuf = std::env::temp_dir().join(format!("adit-lab-test-{}.json", std::process::id()));
    let html = json.with_extension("html");
    let output = lab(&[
        "run",
        "--subjects",
        "floor-plain,floor-aead,opensnell",
        "--measures",
        "down1,conn",
        "--rounds",
        "2",
        "--seconds",
        "0.1",
        "--connections",
        "10",
        "--opensnell-server",
        "/no/such/file",
        "--json",
        json.to_str().unwrap(),
        "--html",
        html.to_str().unwrap(),
    ]);
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(output.status.success(), "{text}\n{}", String::from_utf8_lossy(&output.stderr));
    assert!(text.contains("skipped: opensnell: no such program: opensnell-server"), "{text}");
    assert!(text.contains("congestion control"), "{text}");
    let report: serde_json::Value = serde_json::from_str(&fs::read_to_string(&json).unwrap()).unwrap();
    fs::remove_file(&json).unwrap();
    let page = fs::read_to_string(&html).unwrap();
    fs::remove_file(&html).unwrap();
    assert!(page.contains("<svg") && page.contains("skipped: opensnell") && page.ends_with("</html>\n"));
    for loads in [" src=", " href=", "url(", "@import"] {
        assert!(!page.contains(loads), "the page needs something else: {loads}");
    }
    let samples = report["samples"].as_array().unwrap();
    assert_eq!(samples.len(), 8);
    // Rounds are interleaved, and the first subject of a round changes.
    let order: Vec<&str> = samples.iter().map(|sample| sample["subject"].as_str().unwrap()).collect();
    assert_eq!(order[..2], ["floor-plain", "floor-aead"]);
    assert_eq!(order[4..6], ["floor-aead", "floor-plain"]);
    assert!(samples.iter().all(|sample| sample["values"].as_object().unwrap().len() > 1));
}

#[test]
fn command_line_names_what_is_wrong() {
    for (args, expected) in [
        (&["run", "--subjects", "nonsense"][..], "unknown subject: nonsense"),
        (&["run", "--measures", "sideways"], "unknown measure: sideways"),
        (&["run", "no-such-scenario"], "unknown scenario: no-such-scenario"),
        (&["run", "--subjects", "adit-snell", "--adit", "/no/such/file"], "no such program: adit"),
        (&["check", "adit-snell", "--adit", "/no/such/file"], "no such program: adit"),
    ] {
        let output = lab(args);
        let text = String::from_utf8_lossy(&output.stderr);
        assert!(!output.status.success() && text.contains(expected), "{args:?}: {text}");
    }
}
