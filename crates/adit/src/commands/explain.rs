//! `adit explain`: which way a request would take, and why. No port is opened and nothing is dialled; a name is looked
//! up only if a rule asks for its addresses.

use std::collections::HashSet;
use std::fmt::Write as _;
use std::net::{IpAddr, SocketAddr, ToSocketAddrs as _};
use std::path::Path;
use std::time::{Duration, Instant};

use adit_engine::routing::{self, Query, RouteOutcome, Router};
use adit_engine::routing::{Explanation, RouteDecision};
use adit_engine::transparent::{self, CaptureVerdict};
use adit_formats::rulesets::load_sets;
use adit_model::codes::{self, Code};
use adit_model::rule::{Network, Rule, Verdict};
use adit_model::shown;
use adit_model::{Choice, Config, Dns, Inbound, Outbound, OutboundProtocol, Policy, Tag};
use adit_net::reach::Reach;
use adit_net::rt::Cores;
use anyhow::{Context as _, bail};
use serde::Serialize;

use crate::commands::batch::{self, Batch};
use crate::commands::cli::ExplainArgs;
use crate::load::files;
use crate::load::files::FileArgs;
use crate::print;

/// Width of a terminal that everybody has.
const COLUMNS: usize = 80;

pub(crate) fn run(args: &ExplainArgs) -> anyhow::Result<()> {
    if args.codes {
        return print::data(codes::document());
    }
    if let Some(code) = args.code {
        return explain_code(code, args.json);
    }
    let begun = now();
    let given = FileArgs { format: args.format, ..args.files.clone() };
    // Standard input is read once.
    let setup = if given.config == [Path::new("-")] { None } else { files::clash(&given)? };
    if let Some(setup) = &setup {
        for found in [&setup.diagnostics, &setup.refused] {
            print::remark(format_args!("{found}"));
        }
    }
    let mut config = match &setup {
        Some(setup) => setup.config.clone(),
        None => files::load(&given)?.config,
    };
    transparent::with_inbounds(&mut config)?;
    config.outbounds.extend(routing::implied_direct(&config));
    let mut sets = load_sets(&config)?;
    let rules = routing::rules_of(&config, &mut sets);
    let router = Router::new(&rules, &sets)?.with_settings(&config);
    drop(sets);
    if let Some(requests) = &args.batch {
        return batch::run(&Batch { config: &config, router: &router, setup: setup.as_ref() }, requests);
    }
    if let Some(requests) = &args.measure {
        let loaded = begun.elapsed();
        drop(rules);
        return measure(&config, &router, loaded, requests, args.json);
    }
    let answer = answer(args, &config, &rules, &router)?;
    if args.json {
        return print::data(format_args!("{}\n", serde_json::to_string(&answer)?));
    }
    print::text(text(&answer))
}

/// Prints the meaning of a code.
fn explain_code(code: Code, is_json: bool) -> anyhow::Result<()> {
    let Code { id, title, meaning, remedy } = code;
    if is_json {
        let json = serde_json::json!({ "code": id, "title": title, "meaning": meaning, "remedy": remedy });
        return print::data(format_args!("{json}\n"));
    }
    let [meaning, remedy] = [meaning, remedy].map(|text| wrap(text, COLUMNS));
    print::data(format_args!("{id}: {title}\n\n{meaning}\nTo do:\n{remedy}"))
}

/// A text in lines of at most so many letters, where words allow it.
fn wrap(text: &str, columns: usize) -> String {
    let mut out = String::new();
    let mut len = 0;
    for word in text.split(' ') {
        let letters = word.chars().count();
        if len > 0 && len + 1 + letters > columns {
            out.push('\n');
            len = 0;
        }
        if len > 0 {
            out.push(' ');
            len += 1;
        }
        out.push_str(word);
        len += letters;
    }
    out + "\n"
}

/// The printed answer.
#[derive(Serialize)]
struct Answer {
    target: String,
    network: &'static str,
    inbound: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    from: Option<IpAddr>,
    /// The addresses of the name, if a rule asked for them.
    #[serde(skip_serializing_if = "Option::is_none")]
    addresses: Option<Vec<IpAddr>>,
    /// Why there is none.
    #[serde(skip_serializing_if = "Option::is_none")]
    lookup_error: Option<String>,
    /// Rules that did not match.
    passed: Vec<Passed>,
    /// The rule that decides; none: the inbound's outbound is the default.
    rule: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    reject: Option<&'static str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    outbound: Option<String>,
    /// Members of a group that may be taken; which one is decided by its checks.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    members: Vec<String>,
    /// The outbound carries such traffic; if not, the request is refused.
    carried: bool,
    /// The target is a private address, which the inbound does not lead to: refused, if this machine dials it.
    #[serde(skip_serializing_if = "Option::is_none")]
    private: Option<String>,
    /// The fate of such traffic of local applications, where there is a capture.
    #[serde(skip_serializing_if = "Option::is_none")]
    capture: Option<String>,
    /// The same is decided by the addresses of the name, once they are known.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    depends_on_addresses: bool,
}

#[derive(Serialize)]
struct Passed {
    rule: String,
    why: String,
}

fn answer(args: &ExplainArgs, config: &Config, rules: &[Rule], router: &Router) -> anyhow::Result<Answer> {
    let inbound = inbound(config, args.inbound.as_deref())?;
    let network = if args.udp { Network::Udp } else { Network::Tcp };
    let target = args.to.as_ref().context("no target: --to HOST:PORT names one")?;
    let query = Query {
        inbound: &inbound.name,
        source: args.from,
        user: args.user.as_deref(),
        network,
        target,
        protocol: args.protocol.as_deref(),
        known: routing::ClientFacts::default(),
    };
    let asked = |group: &Tag| config.passes(group, network);
    let given = (!args.address.is_empty()).then_some(&*args.address);
    let (mut addresses, mut lookup_error) = (None, None);
    let mut found = router.explain(rules, &query, None, &asked);
    if found.outcome == RouteOutcome::NeedsAddresses {
        let ips = match given {
            Some(ips) => ips.to_vec(),
            None => look_up(config, inbound, &target.host.to_string()).unwrap_or_else(|error| {
                lookup_error = Some(error);
                Vec::new()
            }),
        };
        found = router.explain(rules, &query, Some(&ips), &asked);
        addresses = Some(ips);
    }
    let Explanation { passed, outcome } = found;
    let RouteOutcome::Decided(decision) = outcome else { bail!("the rules ask for addresses again") };
    let place = |rule| router.place(rule).map_or_else(String::new, ToString::to_string);
    let passed = passed.into_iter().map(|step| Passed { rule: place(step.rule), why: step.why }).collect();
    let (outbound, reject) = end(config, inbound, &decision)?;
    let is_bounded = decision.rule.is_none()
        && !inbound.leads_anywhere()
        && outbound.is_some_and(|outbound| dials_targets(config, outbound));
    let known = addresses.as_deref().or(given).map(<[IpAddr]>::to_vec).or_else(|| literal(target));
    let private = if is_bounded { known.as_deref().and_then(private) } else { None };
    Ok(Answer {
        target: target.to_string(),
        network: network.name(),
        inbound: inbound.name.to_string(),
        from: args.from.map(|from| from.ip()),
        addresses,
        lookup_error,
        passed,
        rule: decision.rule.map(place),
        reject,
        outbound: outbound.map(|outbound| outbound.name.to_string()),
        members: outbound.map(|outbound| members(config, outbound, network)).unwrap_or_default(),
        carried: outbound.is_none_or(|outbound| carries(config, outbound, network)),
        private,
        capture: fate(config, target, network, known.as_deref()),
        depends_on_addresses: is_bounded && known.is_none(),
    })
}

/// The fate of such traffic of local applications, where there is a capture.
fn fate(
    config: &Config,
    target: &routing::Target,
    network: Network,
    addresses: Option<&[IpAddr]>,
) -> Option<String> {
    let address = addresses.and_then(|addresses| addresses.first().copied());
    Some(match transparent::explain(config, target, network, address)? {
        CaptureVerdict::Captured(how) => format!("captured {how}"),
        CaptureVerdict::Passed(why) => format!("not captured: {why}"),
        CaptureVerdict::Refused(why) => format!("refused: {why}"),
    })
}

/// The inbound of that name; the only one, without a name.
fn inbound<'a>(config: &'a Config, name: Option<&str>) -> anyhow::Result<&'a Inbound> {
    let names = || config.inbounds.iter().map(|inbound| &*inbound.name).collect::<Vec<_>>().join(", ");
    match (name, &*config.inbounds) {
        (Some(name), all) => {
            let found = all.iter().find(|inbound| &*inbound.name == name);
            found.with_context(|| format!("no such inbound: {name}; there are {}", names()))
        }
        (None, [one]) => Ok(one),
        (None, [first, ..]) if config.rules.is_empty() && config.acl_of.is_empty() => Ok(first),
        (None, _) => bail!("there are several inbounds: --inbound names one of {}", names()),
    }
}

/// The addresses of a name, as rules would have them: by the configuration's own service if it has one, else by the
/// system's resolver.
fn look_up(config: &Config, inbound: &Inbound, name: &str) -> Result<Vec<IpAddr>, String> {
    // The outbound whose name servers answer where rules ask for addresses.
    let outbound = config.outbound(routing::DIRECT).or_else(|| config.outbound(&inbound.outbound));
    let dial = outbound.map(|outbound| outbound.dial.clone()).unwrap_or_default();
    if config.dns == Dns::default() && dial.dns.is_empty() {
        let found = (name, 0).to_socket_addrs().map_err(|error| error.to_string())?;
        return Ok(found.map(|addr| addr.ip()).collect());
    }
    let found =
        Cores::block_on(adit_engine::lookup(&config.dns, &dial, name)).map_err(|error| error.to_string())?;
    found.map_err(|error| match config.dns.upstreams.iter().find_map(|upstream| upstream.through.as_ref()) {
        Some(through) => {
            format!(
                "{error}; name servers behind outbound {through} were not asked: --address gives an address"
            )
        }
        None => error.to_string(),
    })
}

/// The outbound that is taken, or how the request is refused.
fn end<'a>(
    config: &'a Config,
    inbound: &Inbound,
    decision: &RouteDecision<'_>,
) -> anyhow::Result<(Option<&'a Outbound>, Option<&'static str>)> {
    match decision.verdict {
        Verdict::Reject(manner) => Ok((None, Some(manner.name()))),
        Verdict::Default | Verdict::Pass(_) | Verdict::Again { .. } => {
            Ok((Some(named(config, &inbound.outbound)?), None))
        }
        Verdict::Outbound(tag)
        | Verdict::Streams { outbound: tag, .. }
        | Verdict::Ask { outbound: tag, .. } => Ok((Some(named(config, tag)?), None)),
    }
}

fn named<'a>(config: &'a Config, name: &str) -> anyhow::Result<&'a Outbound> {
    config.outbound(name).with_context(|| format!("no such outbound: {name}"))
}

/// The addresses that a target has without any name server.
fn literal(target: &routing::Target) -> Option<Vec<IpAddr>> {
    adit_net::resolve::literal(&target.host.to_string())
}

/// Why none of these addresses may be dialled, if that is so.
fn private(addresses: &[IpAddr]) -> Option<String> {
    let why: Vec<String> = addresses
        .iter()
        .map_while(|ip| Reach::Public.check(*ip).err().map(|kind| format!("{ip}: {kind}")))
        .collect();
    (!why.is_empty() && why.len() == addresses.len()).then(|| why.join(", "))
}

/// Whether this machine dials the targets of an outbound, or of a member of the group.
fn dials_targets(config: &Config, outbound: &Outbound) -> bool {
    let protocol = &outbound.protocol;
    if let Some(group) = protocol.as_group() {
        let mut members = group.members.iter().filter_map(|member| config.outbound(&member.outbound));
        return members.any(|member| dials_targets(config, member));
    }
    if let Some(choice) = protocol.as_choice() {
        let mut members = choice.members.iter().filter_map(|member| config.outbound(member));
        return members.any(|member| dials_targets(config, member));
    }
    *protocol == OutboundProtocol::Direct && outbound.dial.through.is_none()
}

/// The members of a group that may carry such traffic, in the order in which the file has them.
fn members(config: &Config, outbound: &Outbound, network: Network) -> Vec<String> {
    if let Some(choice) = outbound.protocol.as_choice() {
        if matches!(choice.policy, Policy::Select(_)) {
            // A person chooses; nobody has yet.
            return config.first_leaf(&outbound.name).map(|leaf| leaf.name.to_string()).into_iter().collect();
        }
        let able = choice.members.iter().filter_map(|member| config.outbound(member));
        return able.filter(|member| carries(config, member, network)).map(|m| m.name.to_string()).collect();
    }
    let Some(group) = outbound.protocol.as_group() else { return Vec::new() };
    let weight = |member: &adit_model::Member| match network {
        Network::Tcp => member.tcp_weight,
        Network::Udp => member.udp_weight,
    };
    let able = group.members.iter().filter(|member| weight(member) > 0);
    let able = able.filter_map(|member| config.outbound(&member.outbound));
    able.filter(|member| carries(config, member, network)).map(|member| member.name.to_string()).collect()
}

/// Whether an outbound carries such traffic.
fn carries(config: &Config, outbound: &Outbound, network: Network) -> bool {
    match (&outbound.protocol, network) {
        (_, Network::Udp) => config.carries_datagrams(&outbound.name),
        (OutboundProtocol::Group(group), Network::Tcp) => {
            let mut members = group.members.iter().filter_map(|member| config.outbound(&member.outbound));
            members.any(|member| carries(config, member, network))
        }
        (OutboundProtocol::Choice(Choice { policy: Policy::Select(_), .. }), Network::Tcp) => {
            config.first_leaf(&outbound.name).is_some_and(Outbound::carries_streams)
        }
        (OutboundProtocol::Choice(choice), Network::Tcp) => {
            let mut members = choice.members.iter().filter_map(|member| config.outbound(member));
            members.any(|member| carries(config, member, network))
        }
        (_, Network::Tcp) => outbound.carries_streams(),
    }
}

fn text(answer: &Answer) -> String {
    let mut out = String::new();
    let Answer { target, network, inbound, .. } = answer;
    let from = answer.from.map(|from| format!(", from {from}")).unwrap_or_default();
    let mut line = |text: String| writeln!(out, "{}", shown::line(&text)).expect("a string takes any text");
    line(format!("{network} to {target}, in by {inbound}{from}"));
    if let Some(fate) = &answer.capture {
        line(format!("from an application of this machine: {fate}"));
    }
    if let Some(addresses) = &answer.addresses {
        let list: Vec<String> = addresses.iter().map(ToString::to_string).collect();
        let list = match (&*list, &answer.lookup_error) {
            ([], Some(error)) => format!("none found: {error}"),
            ([], None) => "none found".to_owned(),
            (list, _) => list.join(", "),
        };
        line(format!("addresses, since a rule asks for them: {list}"));
    }
    for Passed { rule, why } in &answer.passed {
        line(format!("  {rule}: no match: {why}"));
    }
    line(match &answer.rule {
        Some(rule) => format!("  {rule}: match"),
        None => "  no rule matches: the outbound of the inbound is the default".to_owned(),
    });
    match (&answer.reject, &answer.outbound) {
        (Some(manner), _) => line(format!("refused: {manner}")),
        (None, Some(outbound)) => line(format!("outbound: {outbound}")),
        (None, None) => {}
    }
    if !answer.members.is_empty() {
        line(format!("  one of its members: {}", answer.members.join(", ")));
    }
    if let Some(private) = &answer.private {
        line(format!("refused: {private}; allow-private = true in inbound {inbound} lets clients reach it"));
    }
    if answer.depends_on_addresses {
        line("  refused if its addresses are private: --address ADDRESS tells".to_owned());
    }
    if !answer.carried {
        line(format!("refused: the outbound does not carry {network}"));
    }
    out
}

/// Figures of a measurement of decisions.
#[derive(Serialize)]
struct Figures {
    rules: usize,
    requests: usize,
    /// Of these, the requests that a rule decides.
    matched: usize,
    median_ns: u64,
    p99_ns: u64,
    /// All tables but the automata of regular expressions.
    tables_bytes: usize,
    /// From the start of reading the configuration.
    load_ms: f64,
}

/// Decides about every request of a file, `tcp|udp CLIENT:PORT HOST:PORT [ADDRESS]...` a line, and prints the time.
fn measure(
    config: &Config,
    router: &Router,
    loaded: Duration,
    path: &Path,
    json: bool,
) -> anyhow::Result<()> {
    /// Number of times that each request is decided; the caches hold what a busy process has in them.
    const ROUNDS: usize = 20;
    let file = std::fs::read_to_string(path).with_context(|| format!("cannot read {}", path.display()))?;
    let inbound = inbound(config, config.inbounds.first().map(|inbound| &*inbound.name))?;
    let requests: Vec<_> = file
        .lines()
        .enumerate()
        .map(|(n, line)| request(line).with_context(|| format!("{}:{}: bad request", path.display(), n + 1)))
        .collect::<anyhow::Result<_>>()?;
    let (mut times, mut matched) = (Vec::with_capacity(requests.len() * ROUNDS), 0);
    // A process asks its groups; here the answers are those of a fresh start.
    let passing = |network| {
        let groups = config.outbounds.iter().filter(|outbound| config.passes(&outbound.name, network));
        groups.map(|outbound| &outbound.name).collect::<HashSet<&Tag>>()
    };
    let (tcp, udp) = (passing(Network::Tcp), passing(Network::Udp));
    for round in 0..ROUNDS {
        for (network, source, target, addresses) in &requests {
            let query = Query {
                inbound: &inbound.name,
                source: Some(*source),
                user: None,
                network: *network,
                target,
                protocol: None,
                known: routing::ClientFacts::default(),
            };
            let passing = if *network == Network::Tcp { &tcp } else { &udp };
            let begun = now();
            let asked = |group: &Tag| passing.contains(group);
            let mut outcome = router.decide_with(&query, None, &asked);
            if outcome == RouteOutcome::NeedsAddresses {
                outcome = router.decide_with(&query, Some(addresses), &asked);
            }
            times.push(u64::try_from(begun.elapsed().as_nanos()).unwrap_or(u64::MAX));
            let by_rule = matches!(outcome, RouteOutcome::Decided(RouteDecision { rule: Some(_), .. }));
            matched += usize::from(by_rule && round == 0);
        }
    }
    times.sort_unstable();
    let at = |percent| times.get(times.len() * percent / 100).copied().unwrap_or_default();
    let figures = Figures {
        rules: router.len(),
        requests: requests.len(),
        matched,
        median_ns: at(50),
        p99_ns: at(99),
        tables_bytes: router.memory(),
        load_ms: loaded.as_secs_f64() * 1000.0,
    };
    if json {
        return print::data(format_args!("{}\n", serde_json::to_string(&figures)?));
    }
    let Figures { rules, requests, matched, median_ns, p99_ns, tables_bytes, load_ms } = figures;
    print::data(format_args!(
        "{requests} requests, {matched} decided by one of {rules} rules\n\
         one decision: {median_ns} ns median, {p99_ns} ns p99\n\
         tables: {tables_bytes} bytes\nloaded in {load_ms:.1} ms\n"
    ))
}

type Request = (Network, SocketAddr, routing::Target, Vec<IpAddr>);

fn request(line: &str) -> anyhow::Result<Request> {
    let mut words = line.split_whitespace();
    let mut next = |what: &'static str| words.next().context(what);
    let network = match next("no network")? {
        "tcp" => Network::Tcp,
        "udp" => Network::Udp,
        _ => bail!("neither tcp nor udp"),
    };
    let source = next("no client")?.parse().context("bad client")?;
    let target = next("no target")?.parse().context("bad target")?;
    let addresses = words.map(str::parse).collect::<Result<_, _>>().context("bad address")?;
    Ok((network, source, target, addresses))
}

#[expect(clippy::disallowed_methods, reason = "a measurement reads the clock")]
fn now() -> Instant {
    Instant::now()
}
