//! From lists of rule lines to the rules of the router, and back to the lines for messages.
//!
//! ```text
//! SUB-RULE,(c),l   ->  not c: pass over all of l      then the rules of l
//! listener, rule l ->  not inbound: pass over all      then the rules of l, then the outbound of the inbound
//! target PASS      ->  pass; within a list, over the rest of it
//! target without UDP -> for datagrams the same
//! ```

use adit_model::map::Map;
use adit_model::rule::{FileLine, Matcher, RejectMethod, Rule, Verdict};
use adit_model::{RuleLine, Tag};

use super::rule_line::{self, Condition, RuleFields};
use super::{Context, Target, proxy};
use crate::read::json::JsonValue;

/// The line that a rule of the router comes from, as mihomo's control interface shows it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RuleOrigin {
    /// Position in its list, from 0; of the rule of the main list where a list of sub-rules decides.
    pub index: usize,
    /// Type.
    pub kind: &'static str,
    /// Payload.
    pub payload: Box<str>,
    /// Target; of the rule within the list of sub-rules where one decides.
    pub target: Box<str>,
    /// The list of sub-rules that the rule of the main list names.
    pub sub_rule: Option<Box<str>>,
    /// The list that a listener is bound to.
    pub list: Option<Box<str>>,
}

/// A line with the condition that it stands for.
pub(super) struct Parsed {
    fields: RuleFields,
    condition: Condition,
    at: usize,
}

/// Lists of rule lines.
pub(super) type Lists = Map<String, Vec<Parsed>>;

/// The rules of the router with their lines.
#[derive(Default)]
pub(super) struct Flat {
    pub(super) rules: Vec<Rule>,
    pub(super) origins: Vec<Option<RuleOrigin>>,
    /// Rules that have a list asked, by its name.
    again: Vec<(usize, String)>,
    /// The place of the main list.
    main: u32,
}

/// Deepest nesting of lists of sub-rules.
const MAX_DEPTH: usize = 16;

/// Most rules of the router.
const MAX_RULES: usize = 1_000_000;

/// Reads the lines of a list; `path` is its name in messages.
pub(crate) fn read(context: &mut Context<'_>, path: &str, items: &[JsonValue]) -> Vec<Parsed> {
    let mut parsed = Vec::with_capacity(items.len());
    context.reading.path = path.to_owned();
    for (n, item) in items.iter().enumerate() {
        (context.reading.item, context.reading.at) = (Some(n), item.at);
        let Some(text) = crate::read::yaml_access::text(item) else {
            context.error(item.at, format!("{path}[{n}]"), "no rule: expected a text");
            continue;
        };
        match parse(context, text) {
            Ok((fields, condition)) => {
                if let Some(remark) =
                    condition.remark.or_else(|| fields.params.unknown.then_some(rule_line::UNKNOWN))
                {
                    context.remark(item.at, format!("{path}[{n}]"), remark, "");
                }
                parsed.push(Parsed { fields, condition, at: item.at });
            }
            Err(problem) => {
                context.error(item.at, format!("{path}[{n}]"), format!("[{text}] error: {problem}"))
            }
        }
    }
    parsed
}

fn parse(context: &mut Context<'_>, text: &str) -> Result<(RuleFields, Condition), String> {
    let fields = rule_line::cut(text)?;
    // The target comes first in mihomo as well. Lists of sub-rules are known once all of them are read.
    if fields.kind != "SUB-RULE" && context.target(&fields.target).is_none() {
        return Err(format!("proxy [{}] not found", fields.target));
    }
    if fields.kind != "SUB-RULE" {
        let condition = rule_line::condition(context, &fields.kind, &fields.payload, fields.params, 0)?;
        return Ok((fields, condition));
    }
    let children = rule_line::children(&fields.payload)?;
    let [one] = *children else { return Err("Sub-Rule rule must contain one rule".to_owned()) };
    let found = rule_line::child(context, one, 0)?;
    let condition = Condition { kind: "SubRules", payload: fields.payload.clone(), ..found };
    Ok((fields, condition))
}

/// The lines of a list, as control programs show them.
pub(super) fn lines(rules: &[Parsed]) -> Vec<RuleLine> {
    let line = |parsed: &Parsed| RuleLine {
        kind: parsed.condition.kind.into(),
        payload: parsed.condition.payload.as_str().into(),
        target: parsed.fields.target.as_str().into(),
    };
    rules.iter().map(line).collect()
}

/// The place of a list under a list of sub-rules or a listener.
struct Outer<'a> {
    /// Index, type and payload of the rule of the main list.
    first: Option<(usize, &'a Condition, &'a str)>,
    list: Option<&'a str>,
    depth: usize,
}

impl Flat {
    /// Adds the rules of the main list.
    pub(super) fn main(&mut self, context: &mut Context<'_>, rules: &[Parsed], lists: &Lists) {
        self.main = u32::try_from(self.rules.len()).unwrap_or(u32::MAX);
        let outer = Outer { first: None, list: None, depth: 0 };
        self.list(context, rules, lists, &outer, "rules");
    }

    /// Adds the lists of sub-rules that rematches lead to, each behind all other rules, and gives rematches their places.
    pub(super) fn rematch_lists(&mut self, context: &mut Context<'_>, lists: &Lists) {
        let mut places: Map<String, u32> = Map::from([(String::new(), self.main)]);
        let mut done = 0;
        while let Some((rule, name)) = self.again.get(done).cloned() {
            done += 1;
            if !places.contains_key(&name) {
                // No rule of the main list goes on into it.
                let end = context.place(0);
                if places.len() == 1 {
                    self.push(Matcher::And(Vec::new()), Verdict::Default, end.clone(), None);
                }
                places.insert(name.clone(), u32::try_from(self.rules.len()).unwrap_or(u32::MAX));
                let outer = Outer { first: None, list: Some(&name), depth: 0 };
                let rules = lists.get(&name).map(Vec::as_slice).unwrap_or_default();
                self.list(context, rules, lists, &outer, &format!("sub-rules[{name}]"));
                self.push(Matcher::And(Vec::new()), Verdict::Default, end, None);
            }
            if let (Verdict::Again { at, .. }, Some(place)) =
                (&mut self.rules[rule].verdict, places.get(&name))
            {
                *at = *place;
            }
        }
    }

    /// Adds the list that a listener is bound to.
    pub(super) fn listener(&mut self, context: &mut Context<'_>, inbound: &Tag, name: &str, lists: &Lists) {
        let Some(rules) = lists.get(name) else { return };
        let inside = Matcher::Inbound(vec![inbound.clone()]);
        let head = self.rules.len();
        let at = context.place(0);
        self.push(Matcher::Not(Box::new(inside)), Verdict::Pass(0), at.clone(), None);
        let outer = Outer { first: None, list: Some(name), depth: 0 };
        self.list(context, rules, lists, &outer, &format!("sub-rules[{name}]"));
        self.push(Matcher::And(Vec::new()), Verdict::Default, at, None);
        self.close(head);
    }

    /// Sends everything of a listener to its outbound.
    pub(super) fn fixed(&mut self, context: &Context<'_>, inbound: &Tag) {
        let inside = Matcher::Inbound(vec![inbound.clone()]);
        self.push(inside, Verdict::Default, context.place(0), None);
    }

    /// Refuses all that matches.
    pub(super) fn refuse(&mut self, context: &Context<'_>, matcher: Matcher, manner: RejectMethod) {
        self.push(matcher, Verdict::Reject(manner), context.place(0), None);
    }

    /// Sends everything to the outbound of the inbound.
    pub(crate) fn all(&mut self, context: &Context<'_>) {
        self.push(Matcher::And(Vec::new()), Verdict::Default, context.place(0), None);
    }

    /// Lets the rule at `head` pass over all behind it.
    fn close(&mut self, head: usize) {
        let count = u32::try_from(self.rules.len() - head - 1).unwrap_or(u32::MAX);
        self.rules[head].verdict = Verdict::Pass(count);
    }

    fn push(&mut self, matcher: Matcher, verdict: Verdict, at: FileLine, origin: Option<RuleOrigin>) {
        self.rules.push(Rule { matcher, verdict, at });
        self.origins.push(origin);
    }

    fn list(
        &mut self,
        context: &mut Context<'_>,
        rules: &[Parsed],
        lists: &Lists,
        outer: &Outer<'_>,
        path: &str,
    ) {
        for (n, parsed) in rules.iter().enumerate() {
            if self.rules.len() > MAX_RULES {
                context.error(parsed.at, path.to_owned(), format!("more than {MAX_RULES} rules"));
                return;
            }
            let path = || format!("{path}[{n}]");
            if parsed.condition.kind == "SubRules" {
                self.sub_rules(context, parsed, lists, outer, n, path());
                continue;
            }
            let target = &parsed.fields.target;
            // Lines without a known target were refused when they were read.
            let Some(found) = context.target(target).cloned() else { continue };
            let mut verdict = found.verdict();
            if let Some((list, mark)) = context.rematches.get(target).cloned() {
                if !list.is_empty() && !lists.contains_key(&list) {
                    context.error(parsed.at, path(), format!("sub-rule [{list}] not found"));
                }
                self.again.push((self.rules.len(), list));
                verdict = Verdict::Again { at: 0, mark };
            }
            let origin = origin(outer, n, parsed, target);
            self.push(parsed.condition.matcher.clone(), verdict, context.place(parsed.at), Some(origin));
        }
    }

    fn sub_rules(
        &mut self,
        context: &mut Context<'_>,
        parsed: &Parsed,
        lists: &Lists,
        outer: &Outer<'_>,
        n: usize,
        path: String,
    ) {
        let name = &parsed.fields.target;
        let Some(rules) = lists.get(name) else {
            let line = format!("SUB-RULE,{},{name}", parsed.fields.payload);
            context.error(parsed.at, path, format!("[{line}] error: sub-rule [{name}] not found"));
            return;
        };
        if outer.depth == MAX_DEPTH {
            context.error(
                parsed.at,
                path,
                "sub-rules lead to themselves, or are nested deeper than 16 lists",
            );
            return;
        }
        let head = self.rules.len();
        let outside = Matcher::Not(Box::new(parsed.condition.matcher.clone()));
        self.push(outside, Verdict::Pass(0), context.place(parsed.at), None);
        let is_first = outer.first.is_none();
        let first = outer.first.unwrap_or((n, &parsed.condition, name));
        let inner = Outer { first: Some(first), list: outer.list, depth: outer.depth + 1 };
        self.list(context, rules, lists, &inner, &format!("sub-rules[{name}]"));
        self.close(head);
        if is_first {
            // A rule within that passes leaves the whole list.
            let end = self.rules.len();
            for (at, (rule, origin)) in self.rules.iter_mut().zip(&self.origins).enumerate().skip(head + 1) {
                let left = u32::try_from(end - at - 1).unwrap_or(u32::MAX);
                // This target passes over its own rule alone.
                if origin.as_ref().is_some_and(|origin| *origin.target == *proxy::PASS_RULE) {
                    continue;
                }
                match &mut rule.verdict {
                    Verdict::Pass(count) if origin.is_some() => *count = left,
                    Verdict::Streams { pass, .. } | Verdict::Ask { pass, .. } => *pass = left,
                    Verdict::Pass(_)
                    | Verdict::Outbound(_)
                    | Verdict::Default
                    | Verdict::Reject(_)
                    | Verdict::Again { .. } => {}
                }
            }
        }
    }
}

fn origin(outer: &Outer<'_>, n: usize, parsed: &Parsed, target: &str) -> RuleOrigin {
    let (index, condition, sub_rule) = match outer.first {
        Some((index, condition, name)) => (index, condition, Some(name.into())),
        None => (n, &parsed.condition, None),
    };
    RuleOrigin {
        index,
        kind: condition.kind,
        payload: condition.payload.as_str().into(),
        target: target.into(),
        sub_rule,
        list: outer.list.map(|list| format!("sub-rules.{list}").into()),
    }
}

impl Target {
    /// The verdict of a rule with this target in the main list.
    fn verdict(&self) -> Verdict {
        match (&self.verdict, self.udp) {
            (Verdict::Outbound(outbound), false) => Verdict::Streams { outbound: outbound.clone(), pass: 0 },
            (verdict, _) => verdict.clone(),
        }
    }
}
