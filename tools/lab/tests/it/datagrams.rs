//! The measures of datagrams against a bare relay, with tiny sizes and no word about speed.

use std::collections::BTreeMap;
use std::time::Duration;

use adit_lab::measure::{Measure, Sizes, Values};
use adit_lab::subject::{Helper, Programs, Subject, builtin};
use adit_lab::target::Target;
use adit_lab::udp;

fn programs() -> Programs {
    let helper = Helper { program: env!("CARGO_BIN_EXE_adit-bench").into() };
    Programs::new(helper, BTreeMap::new())
}

fn sizes() -> Sizes {
    let window = Duration::from_millis(150);
    Sizes {
        window,
        connections: 1,
        first_byte: 1,
        idle: 1,
        transfer: 100_000,
        settle: Duration::ZERO,
        counter: None,
        udp: udp::Sizes { window, rate: 400.0, low_rate: 100.0, flows: 5, idle_flows: 5, most: 500.0 },
    }
}

fn measure(subject: &Subject, name: &str) -> anyhow::Result<Values> {
    let target = Target::start(Duration::from_secs(5)).unwrap();
    name.parse::<Measure>().unwrap().run(subject, &programs(), &target, &sizes())
}

fn direct() -> Subject {
    builtin().into_iter().find(|subject| subject.name == "direct").unwrap()
}

/// A relay of this program: with a fault it alters or repeats what it relays.
fn relay(fault: &str) -> Subject {
    let text = format!(
        "name = 'relay'\nabout = ''\nentry = 'tunnel'\nudp = true\n[[process]]\nrole = 'server'\nprogram = '@lab'\n\
         args = ['datagram-floor', '--listen', '127.0.0.1:{{port:entry}}', '--to', '{{target}}', \
         '--fault', '{fault}']\nready = 'entry'\n"
    );
    Subject::parse(&text).unwrap()
}

#[test]
fn every_measure_gives_its_figures() {
    let relay = relay("none");
    for (subject, names) in [
        (&direct(), &["udp-bulk64", "udp-echo64", "udp-latency64", "busy-echo2"][..]),
        (
            &relay,
            &[
                "udp-bulk64",
                "udp-bulk1400-gso",
                "udp-low64",
                "udp-max64",
                "udp-echo1400",
                "udp-latency64",
                "udp-jitter200",
                "udp-over64",
                "udp-idle",
            ],
        ),
    ] {
        for name in names {
            let values = measure(subject, name).unwrap();
            for metric in name.parse::<Measure>().unwrap().metrics() {
                let optional = ["source_is_limit", "own_drops", "uncounted_percent", "kib_per_flow_client"];
                let cpu_without_process = subject.process.is_empty() && metric.key.starts_with("cpu");
                let present = values.get(metric.key).is_some_and(|value| value.is_finite());
                assert!(
                    present || cpu_without_process || optional.contains(&metric.key),
                    "{name} {}",
                    metric.key
                );
            }
        }
    }
}

#[test]
fn a_relay_that_alters_or_repeats_gets_no_figures() {
    for (fault, words) in [("alter", "wrong content"), ("repeat", "came twice")] {
        let error = measure(&relay(fault), "udp-bulk64").unwrap_err();
        assert!(format!("{error:#}").contains(words), "{fault}: {error:#}");
    }
}
