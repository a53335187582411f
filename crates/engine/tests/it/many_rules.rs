//! Cost of loading 100,000 rules, from the text to the tables. The bar is a second of an idle machine.

use std::fmt::Write as _;
use std::time::Instant;

use adit_engine::routing::{ClientFacts, Query, RouteOutcome, Router};
use adit_formats::adit_toml;
use adit_formats::rulesets::load_sets;
use adit_model::rule::{Network, Verdict};

const RULES: usize = 100_000;

/// Rules of each kind in turn, each about something of its own.
fn rules() -> String {
    let mut text = String::from(
        "[[inbound]]\nname = \"in\"\nprotocol = \"mixed\"\nlisten = \"127.0.0.1:0\"\n\
         [[outbound]]\nname = \"a\"\nprotocol = \"direct\"\n[[outbound]]\nname = \"b\"\nprotocol = \"direct\"\n",
    );
    for n in 0..RULES {
        let (high, low) = (n >> 8 & 0xff, n & 0xff);
        let port = 1 + n % 60_000;
        let keys = match n % 8 {
            0..=2 => format!("domain-suffix = \"n{n}.example\""),
            3 => format!("domain = [\"n{n}.example\", \"m{n}.example\"]"),
            4 => format!("ip-cidr = \"{}.{high}.{low}.0/24\"", 11 + (n >> 16)),
            5 => format!("source = \"10.{}.{high}.{low}\"\nport = [{port}, \"60001-60100\"]", n >> 16),
            6 => format!("port = {port}\nprotocol = \"tls\""),
            _ => format!(
                "or = [{{ domain = \"n{n}.example\" }}, {{ not = {{ port = \"1-{port}\" }} }}]\nuser = \"u{n}\""
            ),
        };
        writeln!(text, "[[rule]]\n{keys}\noutbound = \"b\"").unwrap();
    }
    text
}

#[test]
#[ignore = "a measurement, of use in an optimised build: --release -- --ignored --nocapture"]
fn a_hundred_thousand_rules_load() {
    let text = rules();
    let begun = Instant::now();
    let config = adit_toml::parse("t.toml", &text).unwrap_or_else(|found| panic!("{found}")).config;
    let parsed = begun.elapsed();
    assert_eq!(config.rules.len(), RULES);
    let sets = load_sets(&config).unwrap_or_else(|found| panic!("{found}"));
    let router = Router::compile(&config, sets).unwrap_or_else(|error| panic!("{error}"));
    let loaded = begun.elapsed();
    println!("{} bytes read in {parsed:?}, tables of {} bytes after {loaded:?}", text.len(), router.memory());
    let target = "n99995.example:1".parse().unwrap();
    let (source, user, protocol) = (None, None, None);
    let query = Query {
        inbound: "in",
        source,
        user,
        network: Network::Tcp,
        target: &target,
        protocol,
        known: ClientFacts::default(),
    };
    let RouteOutcome::Decided(decision) = router.decide(&query, Some(&[])) else {
        panic!("there are addresses")
    };
    assert_eq!((decision.rule, decision.verdict), (Some(99_995), &Verdict::Outbound("b".into())));
}
