//! `adit explain --batch`: the decision about each request of a file, one JSON object a line in and out.
//!
//! ```text
//! in   {"network":"tcp","inbound":{"port":7890,"name":"DEFAULT-MIXED","type":"Socks5","user":"a"},"src":"127.0.0.1",
//!       "src_port":50000,"client_uid":1000,"process":"/usr/bin/curl","host":"a.example","port":443,"dns":["192.0.2.1"]}
//! out  {"index":0,"type":"Domain","payload":"a.example","target":"Proxy","chain":"Proxy[p]"}
//! ```
//!
//! `dns` holds the addresses of the name; without it the name is looked up if a rule asks. A first line with `client` gives
//! all requests a program and a user: `{"client":{"executable":"/usr/bin/curl","uid":1000}}`. A whole file of recorded
//! decisions is read as well: an object with `cases` and `client`.

use std::future::poll_fn;
use std::net::{IpAddr, SocketAddr};
use std::path::Path;
use std::time::Duration;

use adit_engine::routing::{ClientFacts, Query, RouteDecision, RouteOutcome, Router, Target};
use adit_formats::clash::{ClashSetup, RuleOrigin};
use adit_model::map::Map;
use adit_model::rule::{Network, Verdict};
use adit_model::{Config, Tag};
use adit_net::rt;
use anyhow::{Context as _, bail};
use serde::{Deserialize, Serialize};

use crate::print;

/// Longest time for one lookup; mihomo has the same.
const PATIENCE: Duration = Duration::from_secs(5);

#[derive(Deserialize)]
struct Case {
    #[serde(default)]
    id: Option<serde_json::Value>,
    network: String,
    #[serde(default)]
    inbound: Entry,
    #[serde(default)]
    src: Option<IpAddr>,
    #[serde(default)]
    src_port: u16,
    #[serde(default)]
    client_uid: Option<u32>,
    #[serde(default)]
    process: Option<String>,
    #[serde(default)]
    dscp: u8,
    host: String,
    port: u16,
    #[serde(default)]
    dns: Option<Vec<IpAddr>>,
}

/// The port that a request came to.
#[derive(Default, Deserialize)]
#[serde(default)]
struct Entry {
    port: Option<u16>,
    name: String,
    #[serde(rename = "type")]
    kind: String,
    user: Option<String>,
}

/// The program that sent all requests.
#[derive(Default, Deserialize)]
struct Client {
    #[serde(default)]
    executable: Option<String>,
    #[serde(default)]
    uid: Option<serde_json::Value>,
}

#[derive(Deserialize)]
struct Head {
    #[serde(default)]
    client: Client,
}

#[derive(Deserialize)]
struct Recorded {
    #[serde(default)]
    client: Client,
    cases: Vec<Case>,
}

/// One line of the answer.
#[derive(Default, Serialize)]
struct Answer<'a> {
    #[serde(skip_serializing_if = "Option::is_none")]
    id: Option<&'a serde_json::Value>,
    #[serde(flatten)]
    way: Way<'a>,
}

#[derive(Serialize)]
#[serde(untagged)]
enum Way<'a> {
    Rule {
        index: usize,
        #[serde(rename = "type")]
        kind: &'a str,
        payload: &'a str,
        target: &'a str,
        chain: String,
        #[serde(skip_serializing_if = "Option::is_none")]
        sub_rule: Option<&'a str>,
        #[serde(skip_serializing_if = "Option::is_none")]
        list: Option<&'a str>,
    },
    None {
        rule: (),
        target: &'a str,
        via: &'a str,
    },
    Failed {
        error: String,
    },
}

impl Default for Way<'_> {
    fn default() -> Self {
        Self::Failed { error: String::new() }
    }
}

/// Everything that decides.
pub(super) struct Batch<'a> {
    pub(crate) config: &'a Config,
    pub(super) router: &'a Router,
    pub(crate) setup: Option<&'a ClashSetup>,
}

/// Answers all requests of a file.
pub(crate) fn run(batch: &Batch<'_>, path: &Path) -> anyhow::Result<()> {
    let text = if path == Path::new("-") {
        std::io::read_to_string(std::io::stdin()).context("cannot read standard input")?
    } else {
        std::fs::read_to_string(path).with_context(|| format!("cannot read {}", path.display()))?
    };
    let (client, cases) = cases(&text).with_context(|| format!("bad request in {}", path.display()))?;
    let mut names = Names { known: Map::new(), servers: servers(batch) };
    let mut out = String::new();
    for case in &cases {
        let way = batch
            .way(case, &client, &mut names)
            .unwrap_or_else(|error| Way::Failed { error: format!("{error:#}") });
        out.push_str(&serde_json::to_string(&Answer { id: case.id.as_ref(), way })?);
        out.push('\n');
    }
    print::data(out)
}

fn cases(text: &str) -> anyhow::Result<(Client, Vec<Case>)> {
    if let Ok(Recorded { client, cases }) = serde_json::from_str(text) {
        return Ok((client, cases));
    }
    let (mut client, mut cases) = (Client::default(), Vec::new());
    for (n, line) in text.lines().enumerate().filter(|(_, line)| !line.trim().is_empty()) {
        let value: serde_json::Value =
            serde_json::from_str(line).with_context(|| format!("line {}", n + 1))?;
        if value.get("client").is_some() && value.get("host").is_none() {
            client = serde_json::from_value::<Head>(value).with_context(|| format!("line {}", n + 1))?.client;
        } else {
            cases.push(serde_json::from_value(value).with_context(|| format!("line {}", n + 1))?);
        }
    }
    Ok((client, cases))
}

/// The name servers of the configuration that are asked without encryption.
fn servers(batch: &Batch<'_>) -> Vec<SocketAddr> {
    batch.setup.map(|setup| setup.name_servers.clone()).unwrap_or_default()
}

/// Addresses of names that were looked up.
struct Names {
    known: Map<String, Vec<IpAddr>>,
    servers: Vec<SocketAddr>,
}

impl Names {
    fn look_up(&mut self, name: &str) -> Vec<IpAddr> {
        if let Some(known) = self.known.get(name) {
            return known.clone();
        }
        let servers: Vec<_> = self.servers.iter().map(|server| (*server).into()).collect();
        let found = rt::Cores::block_on(rt::timeout(PATIENCE, async {
            let mut answers = adit_engine::resolver(&servers).start(name, adit_model::AddressFamilies::Any);
            let mut all = Vec::new();
            while let Some(ips) = poll_fn(|cx| answers.poll_next(cx)).await {
                all.extend(ips);
            }
            all
        }));
        let found = found.ok().and_then(Result::ok).unwrap_or_default();
        self.known.insert(name.to_owned(), found.clone());
        found
    }
}

/// The address of a name that rules see: one of IPv4 if there is one, as mihomo takes it.
fn preferred(all: &[IpAddr]) -> Vec<IpAddr> {
    all.iter().find(|ip| ip.is_ipv4()).or_else(|| all.first()).copied().into_iter().collect()
}

impl<'a> Batch<'a> {
    fn way(&self, case: &Case, client: &Client, names: &mut Names) -> anyhow::Result<Way<'a>> {
        let network = match &*case.network {
            "tcp" => Network::Tcp,
            "udp" => Network::Udp,
            other => bail!("neither tcp nor udp: {other}"),
        };
        let alias = self.router.alias(&case.host);
        let host = alias.unwrap_or(&case.host);
        let target = Target::new(host.as_bytes(), case.port).context("bad host")?;
        let entry = case.inbound.kind.to_lowercase();
        let uid = client.uid.as_ref().and_then(serde_json::Value::as_u64).and_then(|uid| uid.try_into().ok());
        let query = Query {
            inbound: &case.inbound.name,
            source: case.src.map(|ip| SocketAddr::new(ip, case.src_port)),
            user: case.inbound.user.as_deref(),
            network,
            target: &target,
            protocol: None,
            known: ClientFacts {
                port: case.inbound.port,
                entry: Some(&entry),
                process: case.process.as_deref().or(client.executable.as_deref()),
                uid: case.client_uid.or(uid),
                is_sought: true,
                dscp: case.dscp,
                asked_for: None,
            },
        };
        let asked = |group: &Tag| self.config.passes(group, network);
        let mut outcome = self.router.decide_with(&query, None, &asked);
        if outcome == RouteOutcome::NeedsAddresses {
            let all = match &case.dns {
                Some(given) => given.clone(),
                None => names.look_up(&target.host.to_string()),
            };
            outcome = self.router.decide_with(&query, Some(&preferred(&all)), &asked);
        }
        let RouteOutcome::Decided(decision) = outcome else {
            bail!("the rules ask for more than a request can tell")
        };
        Ok(self.answer(&decision, &case.inbound.name))
    }

    fn answer(&self, decision: &RouteDecision<'a>, inbound: &str) -> Way<'a> {
        let Some(setup) = self.setup else { return self.own_answer(decision, inbound) };
        let origin = decision.rule.and_then(|rule| setup.origins.get(rule)).and_then(Option::as_ref);
        let Some(RuleOrigin { index, kind, payload, target, sub_rule, list }) = origin else {
            let (via, target) = setup.unmatched(inbound);
            return Way::None { rule: (), target, via };
        };
        Way::Rule {
            index: *index,
            kind,
            payload,
            target,
            chain: setup.chain(target),
            sub_rule: sub_rule.as_deref(),
            list: list.as_deref(),
        }
    }

    /// The answer for a file of adit's own.
    fn own_answer(&self, decision: &RouteDecision<'a>, inbound: &str) -> Way<'a> {
        let target: &str = match decision.verdict {
            Verdict::Outbound(tag)
            | Verdict::Streams { outbound: tag, .. }
            | Verdict::Ask { outbound: tag, .. } => tag,
            Verdict::Reject(manner) => manner.name(),
            Verdict::Default | Verdict::Pass(_) | Verdict::Again { .. } => {
                let all = &self.config.inbounds;
                let named = all.iter().find(|known| *known.name == *inbound).or_else(|| all.first());
                named.map_or("", |inbound| &inbound.outbound)
            }
        };
        let Some(index) = decision.rule else {
            return Way::None { rule: (), target, via: "no rule matched" };
        };
        let (list, sub_rule) = (None, None);
        Way::Rule { index, kind: "rule", payload: "", target, chain: target.to_owned(), sub_rule, list }
    }
}
