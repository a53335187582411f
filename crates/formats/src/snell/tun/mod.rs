//! `[snell-tun]` of OpenSnell's alpha branch: the traffic of the whole machine goes to the server.
//!
//! | key | default | becomes |
//! |---|---|---|
//! | `enable` | `false` | `[capture]` and what follows; the flag `-tun` sets it too |
//! | `interface` | `snell0` | name of the interface, which takes UDP and ICMP; TCP is redirected |
//! | `mtu` | 9000 | its largest packet; 0 is the default |
//! | `fake-ip-range` | `198.18.128.0/17` | fake addresses, and the interface's own: the first one |
//! | `exclude-uid` | none | users that are not captured, by number or name, a list with commas |
//! | `ipv6` | `true` | `false` refuses real addresses of IPv6 at once |
//! | `ipv6-probe-target` | `[2606:4700:4700::1111]:443` | they are refused while it does not answer through the server |
//! | `ipv6-probe-interval` | `5m` | time between two tests |
//! | `direct-ip` | none | addresses and networks that are not captured, a list with commas |
//! | `direct-domain` | none | domains whose names have their real addresses, which are not captured |
//! | `upstream-dns` | none | the name server for these; required with them |
//! | `lan` | none | interfaces whose forwarded traffic is captured too; a key of adit's own |
//!
//! Different from OpenSnell, on purpose: users are excluded exactly; TCP questions for names are answered; UDP goes to the
//! server, and is refused where that takes none; real addresses of IPv6 are allowed until the first test has failed, and the
//! test asks for an HTTP answer, since a server may take a connection before it has reached the target; forwarded traffic is
//! captured from named interfaces alone; nothing stays after a kill.

use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use adit_model::rule::{AddressRange, Cidr, FileLine, Matcher, RejectMethod, Resolve, Rule, Verdict};
use adit_model::{
    Capture, Choice, Config, DelayTest, Dial, DnsInbound, DnsPolicy, DnsTransport, Fake, FakeRange, Inbound,
    InboundProtocol, Outbound, OutboundProtocol, Owner, Policy, Selection, SocketOptions, Tag, Tun,
    TunAddress, Upstream,
};
use adit_proto::wire::{Host, Target};

use super::snell_to_model::{CLIENT, Keys};
use crate::read::value::{self, MAX_DNS, Problem};

/// The section.
pub(super) const NAME: &str = "snell-tun";

const INTERFACE: &str = "snell0";
const MTU: u16 = 9000;
const RANGE: &str = "198.18.128.0/17";
const PROBE: &str = "[2606:4700:4700::1111]:443";
const PROBE_INTERVAL: Duration = Duration::from_secs(300);
const PROBE_TIMEOUT: Duration = Duration::from_secs(4);
/// Lifetime of answers with fake addresses.
const TTL: Duration = Duration::from_secs(60);
/// The name server, asked through the Snell server, for what fake addresses do not answer.
const RESOLVER: SocketAddr = SocketAddr::new(std::net::IpAddr::V4(Ipv4Addr::new(1, 1, 1, 1)), 53);
/// Most entries of a list.
const MAX_LIST: usize = 4096;
/// The outbound that takes IPv6 while it works, and the one that refuses it.
const IPV6: &str = "ipv6";
const REJECT: &str = "reject";

/// Settings of the section.
struct Settings {
    tun: Tun,
    fake: FakeRange,
    users: Vec<Owner>,
    addresses: Vec<Cidr>,
    lan: Vec<Box<str>>,
    direct: Vec<Box<str>>,
    upstream: Option<SocketAddr>,
    ipv6: Ipv6,
}

/// The fate of real addresses of IPv6.
enum Ipv6 {
    Refused,
    Tested(Target, Duration),
}

/// Whether the section is switched on.
pub(super) fn is_enabled(keys: &mut Keys<'_>, is_forced: bool) -> bool {
    keys.flag("enable", false) || is_forced
}

/// Has the configuration of a client capture as the section says. `socks` is the inbound of applications that ask for
/// themselves, if there is one.
pub(super) fn apply(keys: &mut Keys<'_>, config: &mut Config, server: &Host, socks: Option<&Tag>) {
    let Some(settings) = read(keys) else { return };
    let Settings { tun, fake, users, addresses, lan, direct, upstream, ipv6 } = settings;
    let mut capture = Capture::new(CLIENT.into());
    capture.exclude = Selection { addresses, users, ..Selection::default() };
    capture.lan = lan;
    let interface = inbound("tun", Vec::new(), InboundProtocol::Tun(tun));
    let names = names(config, server, &direct, upstream, !capture.lan.is_empty());
    let everywhere = SocketAddr::new(Ipv6Addr::UNSPECIFIED.into(), 0);
    config.inbounds.extend([interface, inbound("dns", vec![everywhere], InboundProtocol::Dns(names))]);
    config.dns.fake = Some(Fake { v4: fake, ttl: TTL, ..Fake::default() });
    config.capture = Some(capture);
    let verdict = match ipv6 {
        Ipv6::Refused => Verdict::Reject(RejectMethod::Reset),
        Ipv6::Tested(target, interval) => {
            config.outbounds.extend(tested(&target, interval));
            Verdict::Outbound(IPV6.into())
        }
    };
    let all = Cidr::new(Ipv6Addr::UNSPECIFIED.into(), 0);
    let mut conditions = vec![Matcher::IpCidr(all.into_iter().collect(), Resolve::No)];
    let own = socks.map(|name| Matcher::Not(Box::new(Matcher::Inbound(vec![name.clone()]))));
    conditions.extend(own);
    let at = FileLine { file: keys.file(), line: 0, column: 0 };
    config.rules.push(Rule { matcher: Matcher::And(conditions), verdict, at });
}

/// Reads the keys; `None` if they contradict each other, which is told.
fn read(keys: &mut Keys<'_>) -> Option<Settings> {
    let name = keys.parsed("interface", value::interface).unwrap_or_else(|| INTERFACE.into());
    let mtu = keys.parsed("mtu", mtu).flatten().unwrap_or(MTU);
    let fake = keys.parsed("fake-ip-range", range);
    let fake = fake.or_else(|| RANGE.parse().ok())?;
    let v4 = first_host(fake)?;
    let tun = Tun { name, mtu, v4: Some(v4), ..Tun::default() };
    let users = keys.list("exclude-uid", MAX_LIST, |text| {
        let text = text.trim();
        let single = Owner::parse(text).filter(|owner| !matches!(owner, Owner::Numbers(a, b) if a != b));
        single.ok_or_else(|| Problem::new(format!("neither a number nor a user: {}", value::excerpt(text))))
    });
    let addresses = keys.list("direct-ip", MAX_LIST, |text| {
        let cidr = Cidr::parse(text.trim());
        cidr.ok_or_else(|| {
            Problem::new(format!("neither an address nor a network: {}", value::excerpt(text)))
        })
    });
    let mut direct = keys.list("direct-domain", MAX_LIST, |text| {
        let domain = text.trim().trim_matches('.').to_ascii_lowercase();
        match Host::parse(domain.as_bytes()) {
            Ok(Host::Name(name)) => Ok(name),
            _ => Err(Problem::new(format!("no domain: {}", value::excerpt(text)))),
        }
    });
    direct.sort();
    direct.dedup();
    let upstream = keys.list("upstream-dns", MAX_DNS, value::name_server);
    if upstream.len() > 1 {
        keys.wrong("upstream-dns", Problem::new("more than one name server"));
    }
    if !direct.is_empty() && upstream.is_empty() {
        let problem = Problem::new("it takes upstream-dns");
        keys.wrong(
            "direct-domain",
            problem.hint("upstream-dns = 192.0.2.53, the name server for these domains"),
        );
    }
    let lan = keys.list("lan", MAX_LIST, |text| value::interface(text.trim()));
    let probe = keys.parsed("ipv6-probe-target", value::target);
    let probe = probe.or_else(|| PROBE.parse().ok())?;
    let interval = keys.parsed("ipv6-probe-interval", go_duration);
    if interval.is_some_and(|interval| interval.is_zero()) {
        let problem = format!("not above 0, so it is {} s", PROBE_INTERVAL.as_secs());
        keys.remark("ipv6-probe-interval", Problem::new(problem));
    }
    let interval = interval.filter(|interval| !interval.is_zero()).unwrap_or(PROBE_INTERVAL);
    let ipv6 = if keys.flag("ipv6", true) { Ipv6::Tested(probe, interval) } else { Ipv6::Refused };
    Some(Settings { tun, fake, users, addresses, lan, direct, upstream: upstream.first().copied(), ipv6 })
}

fn mtu(text: &str) -> Result<Option<u16>, Problem> {
    match text.trim().parse::<u16>() {
        Ok(0) => Ok(None),
        Ok(mtu) if mtu >= Tun::MIN_MTU => Ok(Some(mtu)),
        _ => Err(Problem::new(format!("no size from {} to 65535: {}", Tun::MIN_MTU, value::excerpt(text)))),
    }
}

fn range(text: &str) -> Result<FakeRange, Problem> {
    let range = text.parse::<FakeRange>().map_err(|error| Problem::new(error.to_string()))?;
    if range.is_ipv6() {
        return Err(
            Problem::new("a range of IPv6").hint("fake addresses are of IPv4 here, as 198.18.128.0/17")
        );
    }
    Ok(range)
}

/// The first address of a range, with its prefix.
fn first_host(range: FakeRange) -> Option<TunAddress<Ipv4Addr>> {
    let AddressRange::V4(first, last) = range.network().range() else { return None };
    let prefix = u8::try_from((first ^ last).leading_zeros()).ok()?;
    TunAddress::<Ipv4Addr>::new(Ipv4Addr::from_bits(first + 1), prefix).ok()
}

/// A duration of Go: numbers with units of `ns` to `h`, added up. One that is not positive is 0.
fn go_duration(text: &str) -> Result<Duration, Problem> {
    let bad = || {
        Problem::new(format!("bad duration: {}", value::excerpt(text)))
            .hint("write numbers with a unit of ms, s, m or h, for instance 30s or 1h30m")
    };
    let text = text.trim();
    if text.starts_with('-') || text == "0" {
        return Ok(Duration::ZERO);
    }
    let mut rest = text.strip_prefix('+').unwrap_or(text);
    let mut sum = 0.0;
    while !rest.is_empty() {
        let end = rest.find(|c: char| !c.is_ascii_digit() && c != '.').ok_or_else(bad)?;
        let (number, tail) = rest.split_at(end);
        let end = tail.find(|c: char| c.is_ascii_digit() || c == '.').unwrap_or(tail.len());
        let (unit, tail) = tail.split_at(end);
        let seconds = match unit {
            "ns" => 1e-9,
            "us" | "µs" => 1e-6,
            "ms" => 1e-3,
            "s" => 1.0,
            "m" => 60.0,
            "h" => 3600.0,
            _ => return Err(bad()),
        };
        sum += number.parse::<f64>().map_err(|_| bad())? * seconds;
        rest = tail;
    }
    if text.is_empty() || sum > value::MAX_DURATION.as_secs_f64() {
        return Err(bad());
    }
    // Whole seconds: no test needs a finer beat.
    let seconds = Duration::from_secs_f64(sum).as_secs();
    Ok(Duration::from_secs(if sum > 0.0 { seconds.max(1) } else { 0 }))
}

fn inbound(name: &str, listen: Vec<SocketAddr>, protocol: InboundProtocol) -> Inbound {
    Inbound {
        name: name.into(),
        listen,
        socket: SocketOptions::default(),
        outbound: CLIENT.into(),
        allow_private: true,
        protocol,
    }
}

/// The port for questions. Questions without a fake answer go through the server. The server's own name never is: it
/// would be needed to get there.
fn names(
    config: &mut Config,
    server: &Host,
    direct: &[Box<str>],
    upstream: Option<SocketAddr>,
    has_lan: bool,
) -> DnsInbound {
    let through = |server: SocketAddr, through: Option<Tag>| {
        let transport = if through.is_some() { DnsTransport::Tcp } else { DnsTransport::Udp };
        let name = match (&transport, server.port()) {
            (DnsTransport::Tcp, _) => format!("tcp://{server}"),
            (_, 53) => server.ip().to_string(),
            _ => server.to_string(),
        };
        let (server, bootstrap) = (Target::from(server), Vec::new());
        Arc::new(Upstream { name: name.into(), transport, server, bootstrap, through, by_rules: None })
    };
    let resolver = through(RESOLVER, Some(CLIENT.into()));
    let loopback = ["127.0.0.0/8", "::1"].into_iter().filter_map(Cidr::parse);
    let allow = if has_lan { DnsInbound::private_networks() } else { loopback.collect() };
    let mut port = DnsInbound { allow, ..DnsInbound::default() };
    let Some(upstream) = upstream.filter(|_| !direct.is_empty()) else {
        port.upstreams = vec![resolver];
        return port;
    };
    let upstreams = vec![through(upstream, None)];
    config.dns.upstreams = vec![resolver];
    let policy = |domain, direct| DnsPolicy { domain, upstreams: upstreams.clone(), direct };
    config.dns.policy = direct.iter().map(|domain| policy(domain.clone(), true)).collect();
    if let Host::Name(name) = server {
        let name = name.trim_end_matches('.').to_ascii_lowercase();
        config.dns.policy.push(policy(format!("={name}").into(), false));
    }
    port
}

/// The outbounds of IPv6: the client while the test's target answers, and nothing otherwise.
fn tested(target: &Target, interval: Duration) -> [Outbound; 2] {
    let test = DelayTest {
        url: format!("http://{target}/").into(),
        interval: Some(interval),
        lazy: false,
        timeout: PROBE_TIMEOUT,
        ..DelayTest::default()
    };
    let members = vec![CLIENT.into(), REJECT.into()];
    let choice = Choice {
        members,
        policy: Policy::Fallback,
        test,
        udp: true,
        hidden: true,
        icon: Box::default(),
        uses: None,
    };
    let outbound = |name: &str, protocol| Outbound { name: name.into(), dial: Dial::default(), protocol };
    [outbound(REJECT, OutboundProtocol::Reject), outbound(IPV6, OutboundProtocol::Choice(choice))]
}

/// The words by which the local port is switched off.
pub(super) fn is_off(text: &str) -> bool {
    ["", "off", "none", "disabled"].contains(&&*text.trim().to_ascii_lowercase())
}

#[cfg(test)]
mod tests;
