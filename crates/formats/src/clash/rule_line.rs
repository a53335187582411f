//! One rule line: its fields, and the condition that it stands for.
//!
//! ```text
//! TYPE,PAYLOAD,TARGET[,param]...                       params: no-resolve, src
//! MATCH,TARGET
//! AND|OR|NOT,((T1,P1[,param]),(T2,P2)...),TARGET       SUB-RULE,(T1,P1),LIST
//! ```
//!
//! Observed of mihomo (Alpha, February 2025). A field is trimmed of spaces. Types whose payload may hold commas end with
//! the target, and have no params.

use std::net::IpAddr;

use adit_model::rule::backtracking_regex;
use adit_model::rule::{Cidr, Fact, Matcher, Network, PortRange, Resolve, Suffix, UidRange, regex_problem};

use super::Context;
use super::name::ascii_name;

/// Types whose payload may hold commas.
const COMMAS: [&str; 7] =
    ["DOMAIN-REGEX", "PROCESS-NAME-REGEX", "PROCESS-PATH-REGEX", "AND", "OR", "NOT", "SUB-RULE"];

/// Types of conditions beside logic and `MATCH`.
const KINDS: [&str; 35] = [
    "DOMAIN",
    "DOMAIN-SUFFIX",
    "DOMAIN-KEYWORD",
    "DOMAIN-REGEX",
    "DOMAIN-WILDCARD",
    "GEOSITE",
    "GEOIP",
    "SRC-GEOIP",
    "IP-ASN",
    "SRC-IP-ASN",
    "IP-CIDR",
    "IP-CIDR6",
    "SRC-IP-CIDR",
    "IP-SUFFIX",
    "SRC-IP-SUFFIX",
    "DST-PORT",
    "SRC-PORT",
    "IN-PORT",
    "IN-TYPE",
    "IN-USER",
    "IN-NAME",
    "PROCESS-NAME",
    "PROCESS-PATH",
    "PROCESS-NAME-REGEX",
    "PROCESS-PATH-REGEX",
    "PROCESS-NAME-WILDCARD",
    "PROCESS-PATH-WILDCARD",
    "UID",
    "NETWORK",
    "DSCP",
    "RULE-SET",
    "REMATCH-NAME",
    "AND",
    "OR",
    "NOT",
];

/// Deepest nesting of conditions.
const MAX_DEPTH: usize = 48;

/// The problem of most payloads, in mihomo's words.
const PAYLOAD: &str = "payloadRule error";

/// Most items of a set of numbers.
const MAX_NUMBERS: usize = 28;

/// A rule line, cut into its fields.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct RuleFields {
    /// In upper case.
    pub(super) kind: String,
    pub(super) payload: String,
    pub(super) target: String,
    pub(super) params: Params,
}

/// Words behind the target.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Params {
    pub(super) no_resolve: bool,
    pub(super) source: bool,
    /// A word that says neither.
    pub(super) unknown: bool,
}

/// The remark about such a word.
pub(super) const UNKNOWN: &str = "left out: a word behind the target is neither no-resolve nor src";

impl Params {
    fn of(words: &[&str]) -> Self {
        let source = words.contains(&"src");
        let unknown = words.iter().any(|word| !word.is_empty() && !matches!(*word, "src" | "no-resolve"));
        Self { source, no_resolve: source || words.contains(&"no-resolve"), unknown }
    }

    fn resolve(self) -> Resolve {
        if self.no_resolve { Resolve::No } else { Resolve::Yes }
    }
}

/// A condition, with the words by which the control interface names it.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Condition {
    pub(super) matcher: Matcher,
    pub(super) kind: &'static str,
    pub(super) payload: String,
    /// A remark about it, if it has no effect as it is written.
    pub(super) remark: Option<&'static str>,
}

/// Cuts a line.
///
/// # Errors
/// The problem, in mihomo's words where it has some.
pub(super) fn cut(line: &str) -> Result<RuleFields, String> {
    let fields: Vec<&str> = line.split(',').map(|field| field.trim_matches(' ')).collect();
    let kind = fields[0].to_uppercase();
    let (payload, target, params) = match &*fields {
        [_, target, ..] if kind == "MATCH" => (String::new(), *target, Params::default()),
        [_, payload @ .., target] if !payload.is_empty() && COMMAS.contains(&&*kind) => {
            (payload.join(","), *target, Params::default())
        }
        [_, payload, target, params @ ..] => ((*payload).to_owned(), *target, Params::of(params)),
        [_, target] => (String::new(), *target, Params::default()),
        _ => return Err("format invalid".to_owned()),
    };
    Ok(RuleFields { kind, payload, target: target.to_owned(), params })
}

/// The condition of a type with its payload.
///
/// # Errors
/// The problem, in mihomo's words where it has some.
pub(super) fn condition(
    context: &mut Context<'_>,
    kind: &str,
    payload: &str,
    params: Params,
    depth: usize,
) -> Result<Condition, String> {
    if depth > MAX_DEPTH {
        return Err(format!("nested deeper than {MAX_DEPTH} levels"));
    }
    match kind {
        "AND" | "OR" | "NOT" => logic(context, kind, payload, depth),
        "MATCH" => Ok(made("Match", String::new(), Matcher::And(Vec::new()))),
        _ if !KINDS.contains(&kind) => Err(format!("unsupported rule type: {kind}")),
        "RULE-SET" => {
            let matcher = context.provider(payload, params)?;
            Ok(made("RuleSet", payload.to_owned(), matcher))
        }
        // mihomo 1.19.2 lets an empty name match every address, and an empty keyword everything; 1.19.17 refuses them.
        _ if payload.is_empty() => Err(PAYLOAD.to_owned()),
        _ if kind.starts_with("DOMAIN") => domain(kind, payload),
        "GEOSITE" => {
            let matcher = context.site(payload);
            Ok(made("GeoSite", payload.to_owned(), matcher))
        }
        _ => match address(context, kind, payload, params)? {
            Some(found) => Ok(found),
            None => fact(kind, payload),
        },
    }
}

fn made(kind: &'static str, payload: String, matcher: Matcher) -> Condition {
    Condition { matcher, kind, payload, remark: None }
}

/// Conditions about the name of the target.
fn domain(kind: &str, payload: &str) -> Result<Condition, String> {
    let name = ascii_name(payload);
    let one = || vec![name.clone().into_boxed_str()];
    // Names of targets end without a dot; hardly any begins with one.
    let is_name = !name.ends_with('.');
    let remark = match (is_name, name.starts_with('.')) {
        (false, _) => Some("a name that ends with a dot never matches"),
        (true, true) => Some("a name that begins with a dot hardly ever matches"),
        (true, false) => None,
    };
    let listed = || if is_name { one() } else { Vec::new() };
    let found = match kind {
        "DOMAIN" => Condition { remark, ..made("Domain", name.clone(), Matcher::Domain(listed())) },
        "DOMAIN-SUFFIX" => {
            Condition { remark, ..made("DomainSuffix", name.clone(), Matcher::DomainSuffix(listed())) }
        }
        "DOMAIN-KEYWORD" => made("DomainKeyword", name.clone(), Matcher::DomainKeyword(one())),
        "DOMAIN-REGEX" => {
            check_regex(payload)?;
            made("DomainRegex", payload.to_owned(), Matcher::DomainRegex(vec![payload.into()]))
        }
        "DOMAIN-WILDCARD" => {
            let regex = wildcard(&name);
            made("DomainWildcard", payload.to_owned(), Matcher::DomainRegex(vec![regex.into()]))
        }
        _ => return Err(format!("unsupported rule type: {kind}")),
    };
    Ok(found)
}

/// The expression of a text with `*` for any run and `?` for one character.
fn wildcard(text: &str) -> String {
    let mut regex = String::from("^");
    for c in text.chars() {
        match c {
            '*' => regex.push_str(".*"),
            '?' => regex.push('.'),
            c => regex.push_str(&regex::escape(c.encode_utf8(&mut [0; 4]))),
        }
    }
    regex.push('$');
    regex
}

/// Refuses an expression that neither automata nor backtracking can use, or that mihomo does not read.
pub(super) fn check_regex(text: &str) -> Result<(), String> {
    if let Some(problem) = repetition_problem(text) {
        return Err(format!("bad regular expression: {problem}"));
    }
    match regex_problem(text) {
        None => Ok(()),
        Some(problem) => backtracking_regex(text).map(drop).map_err(|_| problem),
    }
}

/// The problem of a repetition of a repetition (`a**`) or of one from more to less (`a{3,1}`), which mihomo's engine refuses.
fn repetition_problem(text: &str) -> Option<&'static str> {
    let (mut is_class, mut is_repeated, mut rest) = (false, false, text);
    while let Some(c) = rest.chars().next() {
        let here = rest;
        rest = &rest[c.len_utf8()..];
        let counted = counts(here);
        match c {
            '\\' => {
                rest = rest.chars().next().map_or("", |c| &rest[c.len_utf8()..]);
                is_repeated = false;
            }
            '[' | ']' => {
                is_class = c == '[';
                is_repeated = false;
            }
            _ if is_class => {}
            '(' => {
                // The question mark of a group's kind.
                rest = rest.strip_prefix('?').unwrap_or(rest);
                is_repeated = false;
            }
            '*' | '+' | '?' | '{' if c != '{' || counted.is_some() => {
                if is_repeated {
                    return Some("a repetition of a repetition");
                }
                if let Some((first, last, len)) = counted {
                    if last < first {
                        return Some("a repetition from more to less");
                    }
                    rest = &here[len..];
                }
                rest = rest.strip_prefix('?').unwrap_or(rest);
                is_repeated = true;
            }
            _ => is_repeated = false,
        }
    }
    None
}

/// The numbers of `{2}`, `{2,}` or `{2,3}` at the beginning, and its length.
fn counts(text: &str) -> Option<(u32, u32, usize)> {
    let inner = text.strip_prefix('{')?;
    let (inner, _) = inner.split_once('}')?;
    let (first, last) = inner.split_once(',').unwrap_or((inner, inner));
    let first = first.parse().ok()?;
    let last = if last.is_empty() { u32::MAX } else { last.parse().ok()? };
    Some((first, last, inner.len() + 2))
}

/// Conditions about addresses of the target or of the client.
fn address(
    context: &mut Context<'_>,
    kind: &str,
    payload: &str,
    params: Params,
) -> Result<Option<Condition>, String> {
    let (base, source) = match kind.strip_prefix("SRC-") {
        Some(base) if base != "PORT" => (base, true),
        Some(_) | None => (kind, params.source),
    };
    let resolve = params.resolve();
    let pick = |target: &'static str, client: &'static str| if source { client } else { target };
    Ok(Some(match base {
        "IP-CIDR" | "IP-CIDR6" => {
            let bits = payload.rsplit_once('/').ok_or("payloadRule error")?.1;
            // A prefix is written without a zero in front.
            let is_plain = bits == "0" || !bits.starts_with('0');
            let network = Cidr::parse(payload).filter(|_| is_plain).ok_or("payloadRule error")?;
            let matcher =
                if source { Matcher::Source(vec![network]) } else { Matcher::IpCidr(vec![network], resolve) };
            made(pick("IPCIDR", "SrcIPCIDR"), payload.to_owned(), matcher)
        }
        "IP-SUFFIX" => {
            let suffix = suffix(payload).ok_or("payloadRule error")?;
            let matcher = if source {
                Matcher::Fact(Fact::SourceSuffix(vec![suffix]))
            } else {
                Matcher::IpSuffix(vec![suffix], resolve)
            };
            made(pick("IPSuffix", "SrcIPSuffix"), payload.to_owned(), matcher)
        }
        "IP-ASN" => {
            let kind = pick("IPASN", "SrcIPASN");
            let Some(number) = payload.parse().ok().filter(|_| is_digits(payload)) else {
                let remark = Some("a number of an autonomous system is digits alone: the rule never matches");
                let never = made(kind, payload.to_owned(), Matcher::Or(Vec::new()));
                return Ok(Some(Condition { remark, ..never }));
            };
            let list = context.number(number);
            made(kind, payload.to_owned(), of_list(list, source, resolve))
        }
        "GEOIP" => {
            let code = payload.to_lowercase();
            let list = context.country(&code);
            made(pick("GeoIP", "SrcGeoIP"), code, of_list(list, source, resolve))
        }
        _ => return Ok(None),
    }))
}

fn is_digits(text: &str) -> bool {
    text.bytes().all(|byte| byte.is_ascii_digit())
}

/// A list of addresses as a condition.
fn of_list(list: adit_model::Tag, source: bool, resolve: Resolve) -> Matcher {
    if source { Matcher::SourceSet(vec![list]) } else { Matcher::Set(vec![list], resolve) }
}

fn suffix(payload: &str) -> Option<Suffix> {
    let (ip, bits) = payload.split_once('/')?;
    Suffix::new(ip.parse::<IpAddr>().ok()?, bits.parse().ok()?)
}

/// Everything else.
fn fact(kind: &str, payload: &str) -> Result<Condition, String> {
    let numbers = |max| {
        numbers(payload, max).map_err(|problem| match problem.starts_with(PAYLOAD) {
            true => problem,
            false => format!("{PAYLOAD}: {problem}"),
        })
    };
    let ports = |max| numbers(max).map(|all| ports_of(&all));
    let words = || payload.split('/').map(str::trim).filter(|word| !word.is_empty());
    let texts = || vec![payload.into()];
    let same = payload.to_owned();
    let port = u32::from(u16::MAX);
    Ok(match kind {
        "DST-PORT" => made("DstPort", same, Matcher::Port(ports(port)?)),
        "SRC-PORT" => made("SrcPort", same, Matcher::SourcePort(ports(port)?)),
        "IN-PORT" => made("InPort", same, Matcher::Fact(Fact::InboundPort(ports(port)?))),
        "IN-TYPE" => made("InType", payload.to_uppercase(), Matcher::Fact(Fact::Entry(entries(payload)?))),
        "IN-USER" => made("InUser", same, Matcher::User(words().map(Into::into).collect())),
        "IN-NAME" => made("InName", same, Matcher::Inbound(words().map(Into::into).collect())),
        "PROCESS-NAME" => made("ProcessName", same, Matcher::Fact(Fact::ProcessName(texts()))),
        "PROCESS-PATH" => made("ProcessPath", same, Matcher::Fact(Fact::ProcessPath(texts()))),
        "PROCESS-NAME-REGEX" => {
            plain_regex(payload)?;
            made("ProcessNameRegex", same, Matcher::Fact(Fact::ProcessNameRegex(payload.into())))
        }
        "PROCESS-PATH-REGEX" => {
            plain_regex(payload)?;
            made("ProcessPathRegex", same, Matcher::Fact(Fact::ProcessPathRegex(payload.into())))
        }
        "PROCESS-NAME-WILDCARD" => {
            let regex = wildcard(payload).into();
            made("ProcessNameWildcard", same, Matcher::Fact(Fact::ProcessNameRegex(regex)))
        }
        "PROCESS-PATH-WILDCARD" => {
            let regex = wildcard(payload).into();
            made("ProcessPathWildcard", same, Matcher::Fact(Fact::ProcessPathRegex(regex)))
        }
        "UID" => {
            // 0 matches nothing in mihomo.
            let all = numbers(u32::MAX)?;
            let all = all.into_iter().filter(|(_, last)| *last > 0);
            let all = all.map(|(first, last)| UidRange { first: first.max(1), last });
            made("Uid", same, Matcher::Fact(Fact::Uid(all.collect())))
        }
        "NETWORK" => {
            let word = payload.to_lowercase();
            let network = Network::ALL.iter().find(|(name, _)| *name == word).ok_or("payloadRule error")?.1;
            made("Network", word, Matcher::Network(network))
        }
        "REMATCH-NAME" => {
            made("RematchName", same, Matcher::Fact(Fact::Mark(words().map(Into::into).collect())))
        }
        "DSCP" if payload == "*" => {
            made("DSCP", same, Matcher::Fact(Fact::Dscp(vec![PortRange { first: 0, last: 63 }])))
        }
        "DSCP" => made("DSCP", same, Matcher::Fact(Fact::Dscp(ports(63)?))),
        _ => return Err(format!("unsupported rule type: {kind}")),
    })
}

/// Expressions about programs are tried by an automaton alone.
fn plain_regex(text: &str) -> Result<(), String> {
    regex_problem(text).map_or(Ok(()), Err)
}

fn ports_of(all: &[(u32, u32)]) -> Vec<PortRange> {
    let port = |number: u32| u16::try_from(number).unwrap_or(u16::MAX);
    all.iter().map(|(first, last)| PortRange { first: port(*first), last: port(*last) }).collect()
}

/// Numbers and ranges, up to `max`. A range that is written backwards is turned round.
pub(super) fn numbers(text: &str, max: u32) -> Result<Vec<(u32, u32)>, String> {
    let items: Vec<&str> = text.split(['/', ',']).map(|item| item.trim_matches([' ', '[', ']'])).collect();
    if items.len() > MAX_NUMBERS {
        return Err(format!("too many ranges to use, maximum support {MAX_NUMBERS} ranges"));
    }
    let number = |text: &str| {
        let text = text.trim_matches([' ', '[', ']']);
        let number = text.parse::<u32>().ok().filter(|_| is_digits(text));
        number.filter(|number| *number <= max).ok_or_else(|| format!("no number from 0 to {max}: {text}"))
    };
    let mut all = Vec::new();
    for item in items.into_iter().filter(|item| !item.is_empty()) {
        let (first, last) = item.split_once('-').unwrap_or((item, item));
        let (first, last) = (number(first)?, number(last)?);
        all.push((first.min(last), first.max(last)));
    }
    if all.is_empty() { Err("payloadRule error".to_owned()) } else { Ok(all) }
}

/// A set of ports.
///
/// # Errors
/// The problem, in mihomo's words where it has some.
pub(super) fn ports(text: &str) -> Result<Vec<PortRange>, String> {
    numbers(text, u32::from(u16::MAX)).map(|all| ports_of(&all))
}

/// The words of `IN-TYPE`.
fn entries(payload: &str) -> Result<Vec<Box<str>>, String> {
    const KNOWN: [&str; 18] = [
        "http",
        "https",
        "socks4",
        "socks5",
        "shadowsocks",
        "vmess",
        "vless",
        "redir",
        "tproxy",
        "trojan",
        "tunnel",
        "tun",
        "tuic",
        "hysteria2",
        "anytls",
        "inner",
        "snell",
        "shadowsocksr",
    ];
    let mut all = Vec::new();
    for word in payload.split('/').map(|word| word.trim().to_lowercase()) {
        match &*word {
            "socks" => all.extend(["socks4".into(), "socks5".into()]),
            word if KNOWN.contains(&word) => all.push(word.into()),
            _ => return Err(format!("unknown type: {}", word.to_uppercase())),
        }
    }
    Ok(all)
}

/// `AND`, `OR` and `NOT`.
fn logic(context: &mut Context<'_>, kind: &str, payload: &str, depth: usize) -> Result<Condition, String> {
    let payload = payload.trim();
    if !payload.contains('(') || !payload.contains(')') {
        return Err("payload format error".to_owned());
    }
    let parts = match *children(payload)? {
        // Parentheses around everything.
        [all] if all.len() + 2 == payload.len() => children(all)?,
        ref parts => parts.to_vec(),
    };
    let mut found = Vec::with_capacity(parts.len());
    for part in parts {
        found.push(child(context, part, depth + 1)?);
    }
    let shown: Vec<String> = found.iter().map(|one| format!("({},{})", one.kind, one.payload)).collect();
    let remark = found.iter().find_map(|one| one.remark);
    let mut matchers = found.into_iter().map(|one| one.matcher);
    let made = match kind {
        "AND" => made("AND", format!("({})", shown.join(" && ")), Matcher::And(matchers.collect())),
        "OR" => made("OR", format!("({})", shown.join(" || ")), Matcher::Or(matchers.collect())),
        _ => match (matchers.next(), matchers.next()) {
            (Some(one), None) => made("NOT", format!("(!{})", shown.concat()), Matcher::Not(Box::new(one))),
            _ => return Err("not rule must contain one rule".to_owned()),
        },
    };
    Ok(Condition { remark, ..made })
}

/// One condition within another, without its parentheses.
pub(super) fn child(context: &mut Context<'_>, text: &str, depth: usize) -> Result<Condition, String> {
    let (kind, rest) = text.split_once(',').ok_or("payloadRule error")?;
    let kind = kind.trim();
    if matches!(kind, "MATCH" | "SUB-RULE") {
        return Err(format!("unsupported rule type on logic rule: {kind}"));
    }
    if matches!(kind, "AND" | "OR" | "NOT") {
        return condition(context, kind, rest.trim(), Params::default(), depth);
    }
    let words: Vec<&str> = rest.split(',').map(str::trim).collect();
    let (payload, params) = words.split_first().ok_or("payloadRule error")?;
    let params = Params::of(params);
    let found = condition(context, kind, payload, params, depth)?;
    let remark = found.remark.or_else(|| params.unknown.then_some(UNKNOWN));
    Ok(Condition { remark, ..found })
}

/// The texts within parentheses, side by side.
pub(super) fn children(text: &str) -> Result<Vec<&str>, String> {
    let (mut found, mut depth, mut start) = (Vec::new(), 0_usize, 0);
    for (at, byte) in text.bytes().enumerate() {
        match byte {
            b'(' => {
                depth += 1;
                if depth == 1 {
                    start = at + 1;
                }
            }
            b')' => {
                depth = depth.checked_sub(1).ok_or("missing '('")?;
                if depth == 0 {
                    found.push(&text[start..at]);
                }
            }
            _ => {}
        }
    }
    if depth > 0 { Err("missing ')'".to_owned()) } else { Ok(found) }
}
