//! The ledger of errors: the last error of each inbound, outbound and user, with its count, in status and log.
//!
//! ```text
//!   dispatch, packets, refusals, plugins ─ note / clear ─→ Faults ─→ log: a line per minute and cause, ten in all
//!                                                            └────→ status: the last error of each part
//! ```
//!
//! A cause that goes on has one line a minute with its count. When it is over, one line says so.

mod gate;
mod plugins;
mod watch;

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use adit_model::Tag;
use adit_model::codes::{self, Code};
use adit_net::rt;
use serde::{Deserialize, Serialize};

use self::watch::Answers;

pub(crate) use self::gate::Gate;
pub(crate) use self::plugins::PluginFaults;
pub(crate) use self::watch::{Watch, Watches};

/// Pause between two lines of one part and cause.
const EVERY: Duration = Duration::from_secs(60);
/// Trouble that comes and goes by itself begins anew after this long without it.
const APART: Duration = Duration::from_secs(600);
/// Causes that are kept of one part; the oldest makes room.
const CAUSES: usize = 8;
/// Lines about what was counted and not told when the process ends.
const AT_END: usize = 10;

/// A part of the configuration that can be in trouble.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum ConfigPart {
    /// The inbound of this name.
    Inbound(Tag),
    /// The outbound of this name, or the group.
    Outbound(Tag),
}

impl ConfigPart {
    /// Whether trouble of this kind comes and goes by itself: clients that are refused, datagrams that are dropped. It is
    /// counted, and never goes on.
    fn passes_by(&self, code: Code) -> bool {
        matches!(self, Self::Inbound(_)) && code != codes::PLUGIN_ENDED
    }

    fn name(&self) -> &str {
        match self {
            Self::Inbound(name) | Self::Outbound(name) => name,
        }
    }
}

/// Stands for the server in the text of a [`Fault`]: its name and address take the place.
pub(crate) const SERVER: &str = "{server}";

/// One occurrence of trouble.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Fault {
    /// The cause.
    pub(crate) code: Code,
    /// The facts, without the name of the part. It holds no destination of a client.
    pub(crate) text: Cow<'static, str>,
}

impl Fault {
    /// With a text of its own.
    pub(crate) fn new(code: Code, text: impl Into<Cow<'static, str>>) -> Self {
        Self { code, text: text.into() }
    }
}

/// The last error of a part.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct LastError {
    /// The stable code; `adit explain` tells more.
    pub code: String,
    /// The facts, for a person.
    pub text: String,
    /// Occurrences since it began.
    pub count: u64,
    /// When it began, in seconds since 1970.
    pub since: u64,
    /// When it happened last, in seconds since 1970.
    pub last: u64,
    /// Whether it has not been over since.
    pub active: bool,
}

/// The errors of all parts of the process.
#[derive(Debug)]
pub(crate) struct Faults {
    since: Instant,
    parts: Mutex<BTreeMap<ConfigPart, State>>,
    /// Causes that are not over, so that success costs one look.
    active: AtomicUsize,
    gate: Gate,
}

/// The errors of one part.
#[derive(Debug, Default)]
struct State {
    /// The server, as messages name it.
    server: Option<Box<str>>,
    /// Of an outbound: what its server has not answered.
    answers: Arc<Answers>,
    causes: Vec<Cause>,
}

#[derive(Debug)]
struct Cause {
    fault: Fault,
    count: u64,
    /// Occurrences without a line.
    silent: u64,
    since_unix: u64,
    last_unix: u64,
    last_at: Instant,
    /// When the last line was written.
    told_at: Option<Instant>,
    /// Whether there was a line about it since it began.
    is_told: bool,
    tell: Tell,
    is_active: bool,
}

/// Severity of a line, and whether there is one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Tell {
    /// A warning: something does not work.
    Warn,
    /// A remark: somebody out there is refused, which may be a scan.
    Info,
    /// Nothing in the log: the fault has a line of its own elsewhere.
    Nothing,
}

impl Default for Faults {
    fn default() -> Self {
        let (parts, active, gate) = (Mutex::default(), AtomicUsize::new(0), Gate::default());
        Self { since: rt::now(), parts, active, gate }
    }
}

impl Faults {
    /// The doubts about an outbound. One that is no part of the configuration has them for itself.
    fn answers(&self, outbound: &Tag) -> Arc<Answers> {
        let part = ConfigPart::Outbound(outbound.clone());
        self.parts().get(&part).map(|state| state.answers.clone()).unwrap_or_default()
    }

    fn milliseconds(&self, now: Instant) -> u64 {
        u64::try_from(now.saturating_duration_since(self.since).as_millis()).unwrap_or(u64::MAX)
    }

    /// A second has passed: notes servers that do not answer, and writes what is due.
    pub(crate) fn tick(&self, now: Instant) {
        let at = self.milliseconds(now);
        let mut due = Vec::new();
        for (part, state) in &*self.parts() {
            let found = state.answers.due(at).into_iter();
            // A server that cannot be reached cannot answer.
            let is_down = state
                .causes
                .iter()
                .any(|cause| cause.is_active && cause.fault.code.id.starts_with("ADIT-NET"));
            due.extend(found.filter(|_| !is_down).map(|fault| (part.clone(), fault)));
        }
        due.into_iter().for_each(|(part, fault)| self.note(&part, fault, now));
        self.flush(now, false);
    }

    fn parts(&self) -> MutexGuard<'_, BTreeMap<ConfigPart, State>> {
        self.parts.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Names the parts of the configuration with their servers; what is known of others is forgotten.
    pub(crate) fn set_parts(&self, named: Vec<(ConfigPart, Option<String>)>) {
        let mut parts = self.parts();
        let mut old = std::mem::take(&mut *parts);
        for (part, server) in named {
            let state = old.remove(&part).unwrap_or_default();
            parts.insert(part, State { server: server.map(Into::into), ..state });
        }
        let active = parts.values().flat_map(|state| &state.causes).filter(|cause| cause.is_active).count();
        self.active.store(active, Ordering::Relaxed);
    }

    /// `part` is in trouble. Writes a line if one is due.
    pub(crate) fn note(&self, part: &ConfigPart, fault: Fault, now: Instant) {
        self.note_as(part, fault, now, Tell::Warn);
    }

    /// The same, with or without a line.
    pub(crate) fn note_as(&self, part: &ConfigPart, fault: Fault, now: Instant, tell: Tell) {
        let due = {
            let mut parts = self.parts();
            // A part that is gone has nobody to ask about it.
            let Some(state) = parts.get_mut(part) else { return };
            let fault = state.named(fault);
            let cause = state.cause(fault, now);
            let is_new = if part.passes_by(cause.fault.code) {
                cause.count > 0 && now.saturating_duration_since(cause.last_at) >= APART
            } else {
                !std::mem::replace(&mut cause.is_active, true)
            };
            if is_new {
                (cause.since_unix, cause.count, cause.is_told) = (rt::unix_time(), 0, false);
            }
            if is_new && cause.is_active {
                self.active.fetch_add(1, Ordering::Relaxed);
            }
            cause.tell = tell;
            (cause.count, cause.silent) = (cause.count + 1, cause.silent + u64::from(tell != Tell::Nothing));
            (cause.last_unix, cause.last_at) = (rt::unix_time(), now);
            let is_due = cause.told_at.is_none_or(|at| now.saturating_duration_since(at) >= EVERY);
            (tell != Tell::Nothing && is_due && self.gate.passes(now)).then(|| {
                (cause.told_at, cause.is_told) = (Some(now), true);
                (cause.fault.clone(), std::mem::take(&mut cause.silent))
            })
        };
        if let Some((fault, times)) = due {
            write(part, &fault, tell, times);
        }
    }

    /// `part` works again, as far as these causes go. A line says so if there was one about the trouble.
    pub(crate) fn clear(&self, part: &ConfigPart, codes: &[Code], now: Instant) {
        if self.active.load(Ordering::Relaxed) == 0 {
            return;
        }
        let mut lines = Vec::new();
        {
            let mut parts = self.parts();
            let Some(state) = parts.get_mut(part) else { return };
            for cause in &mut state.causes {
                if codes.contains(&cause.fault.code) && std::mem::replace(&mut cause.is_active, false) {
                    self.active.fetch_sub(1, Ordering::Relaxed);
                    if cause.is_told && self.gate.passes(now) {
                        lines.push((
                            cause.fault.code,
                            cause.count,
                            rt::unix_time().saturating_sub(cause.since_unix),
                        ));
                    }
                    (cause.silent, cause.is_told) = (0, false);
                }
            }
        }
        for (code, count, seconds) in lines {
            let (name, kind) = (part.name(), code.id);
            match part {
                ConfigPart::Inbound(_) => {
                    tracing::info!(
                        inbound = name,
                        code = kind,
                        count,
                        seconds,
                        "works again: {} no longer",
                        code.title
                    );
                }
                ConfigPart::Outbound(_) => {
                    tracing::info!(
                        outbound = name,
                        code = kind,
                        count,
                        seconds,
                        "works again: {} no longer",
                        code.title
                    );
                }
            }
        }
    }

    /// Whether anything at all is in trouble.
    pub(crate) fn any(&self) -> bool {
        self.active.load(Ordering::Relaxed) > 0
    }

    /// The newest error of a part.
    pub(crate) fn last(&self, part: &ConfigPart) -> Option<LastError> {
        let parts = self.parts();
        let causes = &parts.get(part)?.causes;
        let newest = causes.iter().max_by_key(|cause| (cause.is_active, cause.last_at))?;
        Some(LastError {
            code: newest.fault.code.id.to_owned(),
            text: newest.fault.text.clone().into_owned(),
            count: newest.count,
            since: newest.since_unix,
            last: newest.last_unix,
            active: newest.is_active,
        })
    }

    /// Writes what has no line yet: the sums of the past minute, and with `is_end` of everything.
    pub(crate) fn flush(&self, now: Instant, is_end: bool) {
        if let Some(lines) = self.gate.take_sum(now, is_end) {
            tracing::warn!(
                lines,
                "further errors in the past minute; `adit status` shows the last one of each part"
            );
        }
        let mut rest = Vec::new();
        for (part, state) in &mut *self.parts() {
            for cause in state.causes.iter_mut().filter(|cause| cause.silent > 0) {
                let is_due = cause.told_at.is_some_and(|at| now.saturating_duration_since(at) >= EVERY);
                if is_end && rest.len() < AT_END || is_due && self.gate.passes(now) {
                    cause.told_at = Some(now);
                    let silent = std::mem::take(&mut cause.silent);
                    rest.push((part.clone(), cause.fault.clone(), cause.tell, silent));
                }
            }
        }
        for (part, fault, tell, times) in rest {
            write(&part, &fault, tell, times);
        }
    }
}

impl State {
    /// The fault with the server in its text.
    fn named(&self, mut fault: Fault) -> Fault {
        if fault.text.contains(SERVER) {
            let server = self.server.as_deref().unwrap_or("the server");
            fault.text = fault.text.replace(SERVER, server).into();
        }
        fault
    }

    /// The record of a cause, with the newest text.
    fn cause(&mut self, fault: Fault, now: Instant) -> &mut Cause {
        let known = self.causes.iter().position(|cause| cause.fault.code == fault.code);
        let at = known.unwrap_or_else(|| {
            if self.causes.len() >= CAUSES {
                let oldest =
                    self.causes.iter().enumerate().min_by_key(|(_, cause)| (cause.is_active, cause.last_at));
                if let Some((oldest, _)) = oldest {
                    self.causes.swap_remove(oldest);
                }
            }
            let unix = rt::unix_time();
            self.causes.push(Cause {
                fault: fault.clone(),
                count: 0,
                silent: 0,
                since_unix: unix,
                last_unix: unix,
                last_at: now,
                told_at: None,
                is_told: false,
                tell: Tell::Nothing,
                is_active: false,
            });
            self.causes.len() - 1
        });
        self.causes[at].fault = fault;
        &mut self.causes[at]
    }
}

/// One line.
fn write(part: &ConfigPart, fault: &Fault, tell: Tell, times: u64) {
    let (code, text) = (fault.code.id, &*fault.text);
    match (part, tell) {
        (ConfigPart::Inbound(name), Tell::Warn) => tracing::warn!(inbound = &**name, code, times, "{text}"),
        (ConfigPart::Outbound(name), Tell::Warn) => tracing::warn!(outbound = &**name, code, times, "{text}"),
        (ConfigPart::Inbound(name), Tell::Info) => tracing::info!(inbound = &**name, code, times, "{text}"),
        (ConfigPart::Outbound(name), Tell::Info) => tracing::info!(outbound = &**name, code, times, "{text}"),
        (_, Tell::Nothing) => {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn faults() -> (Faults, ConfigPart) {
        let (faults, part) = (Faults::default(), ConfigPart::Outbound("home".into()));
        faults.set_parts(vec![(part.clone(), None)]);
        (faults, part)
    }

    fn refused() -> Fault {
        Fault::new(codes::NET_REFUSED, "refused")
    }

    #[test]
    fn the_newest_active_error_is_shown_with_its_count() {
        let ((faults, part), now) = (faults(), rt::now());
        assert_eq!(faults.last(&part), None);
        faults.note(&part, refused(), now);
        faults.note(&part, refused(), now);
        let last = faults.last(&part).unwrap();
        assert_eq!((&*last.code, last.count, last.active), ("ADIT-NET-01", 2, true));
        faults.clear(&part, &[codes::AUTH_SERVER], now);
        assert!(faults.any());
        faults.clear(&part, &[codes::NET_REFUSED], now);
        assert!(!faults.any() && !faults.last(&part).unwrap().active);
        faults.note(&part, refused(), now);
        assert_eq!(faults.last(&part).unwrap().count, 1, "it has begun anew");
    }

    #[test]
    fn a_server_that_comes_and_goes_has_a_line_a_minute() {
        let ((faults, part), now) = (faults(), rt::now());
        let told = |faults: &Faults| faults.parts()[&part].causes[0].is_told;
        faults.note(&part, refused(), now);
        assert!(told(&faults));
        faults.clear(&part, &[codes::NET_REFUSED], now);
        faults.note(&part, refused(), now + EVERY / 2);
        assert!(!told(&faults));
        faults.clear(&part, &[codes::NET_REFUSED], now + EVERY / 2);
        faults.note(&part, refused(), now + EVERY);
        assert!(told(&faults));
    }

    #[test]
    fn refused_clients_are_counted_and_do_not_go_on() {
        let (faults, now) = (Faults::default(), rt::now());
        let part = ConfigPart::Inbound("in".into());
        faults.set_parts(vec![(part.clone(), None)]);
        let scan = || Fault::new(codes::AUTH_CLIENT, "scan");
        faults.note_as(&part, scan(), now, Tell::Nothing);
        faults.note_as(&part, scan(), now + EVERY, Tell::Nothing);
        let last = faults.last(&part).unwrap();
        assert_eq!((last.count, last.active, faults.any()), (2, false, false));
        faults.note_as(&part, scan(), now + EVERY + APART, Tell::Nothing);
        assert_eq!(faults.last(&part).unwrap().count, 1);
    }

    #[test]
    fn a_part_that_is_gone_is_forgotten() {
        let ((faults, part), now) = (faults(), rt::now());
        faults.note(&part, refused(), now);
        faults.note(&ConfigPart::Outbound("other".into()), refused(), now);
        assert_eq!(faults.parts().len(), 1);
        faults.set_parts(Vec::new());
        assert!(!faults.any() && faults.last(&part).is_none());
    }

    #[test]
    fn causes_of_one_part_are_bounded() {
        let ((faults, part), now) = (faults(), rt::now());
        for code in codes::ALL {
            faults.note(&part, Fault::new(*code, "x"), now);
        }
        assert_eq!(faults.parts()[&part].causes.len(), CAUSES);
    }
}
