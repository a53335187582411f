//! A capture that runs: what was made, and taking it away again.

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::net::IpAddr;
use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, LazyLock, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use adit_config::model::{Capture, CaptureMode, Config};
use adit_net::guard::Guard;
use adit_net::netlink::nft::{Batch, Table};
use adit_net::netlink::route::links;
use adit_net::netlink::{Family, Netlink, NetlinkError};
use adit_net::rt;
use serde::{Deserialize, Serialize};

use crate::notice::Notice;

use super::leftovers::{holder, open, own_tables, remove_tables, remove_tagged, tracked};
use super::ruleset::{DIRECT, TABLE, UdpWay, Ways};
use super::{CaptureError, CaptureReport, Ruleset, host, report, ruleset};

/// Of the connections that the kernel tracks at most, so many in a hundred are worth a warning.
const NEARLY_FULL: u64 = 90;
/// Addresses with a direct way that are known at most.
const MAX_DIRECT: usize = 1 << 16;
/// Added to the life of such an address, for clocks and applications that are slow.
const MARGIN: Duration = Duration::from_secs(10);
/// `EINVAL` and `EOPNOTSUPP`: the answers of kernels that know no owners.
const NO_OWNERS: [i32; 2] = [22, 95];

const ENOENT: i32 = 2;

static WITHOUT_OWNER: AtomicBool = AtomicBool::new(false);

/// As [`super::force_without_owner`].
pub(crate) fn set_without_owner() {
    WITHOUT_OWNER.store(true, Ordering::Relaxed);
}

/// A capture that runs. Dropping it takes everything away.
#[derive(Debug)]
pub(crate) struct Active {
    shared: Arc<Mutex<Shared>>,
    routing: Netlink,
    ruleset: Ruleset,
    report: CaptureReport,
    has_owner: bool,
    /// Settings below /proc/sys as they were.
    saved: Vec<(PathBuf, String)>,
    /// The process that removes tables without an owner.
    guard: Option<Guard>,
    /// The kernel has no way for datagrams.
    refuses_datagrams: bool,
    /// It is another process's, which has it taken away or goes on with it.
    is_foreign: bool,
}

/// A capture for another process.
#[derive(Debug)]
pub(crate) struct Lent {
    /// The socket that owns the table.
    pub(crate) netlink: OwnedFd,
    /// What the other process has to know.
    pub(crate) facts: Facts,
}

/// The facts about a capture that the kernel does not tell.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Facts {
    /// Fingerprint of tables, routes, rules and settings.
    plan: u64,
    /// Settings below /proc/sys as they were before.
    saved: Vec<(PathBuf, String)>,
    /// Addresses with a direct way, with the seconds that they live.
    direct: Vec<(IpAddr, u64)>,
    refuses_datagrams: bool,
}

/// The socket that owns the table, with the addresses that were added since.
#[derive(Debug)]
struct Shared {
    netlink: Netlink,
    tables: Vec<&'static str>,
    direct: BTreeMap<IpAddr, Instant>,
}

/// The capture of this process, for the names that are looked up.
static CURRENT: Mutex<Option<Arc<Mutex<Shared>>>> = Mutex::new(None);

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Active {
    /// Makes the capture of `config`; in mode auto without datagrams, where the kernel has no way for them.
    ///
    /// # Errors
    /// Why there is none; nothing is left behind then.
    pub(crate) fn start(capture: &Capture, config: &Config, ways: &Ways) -> Result<Self, CaptureError> {
        match Self::make(capture, config, ways) {
            Err(error) if may_refuse_datagrams(capture, ways, &error) => {
                let hint = "load the kernel modules nft_tproxy and nft_socket";
                tracing::warn!(%error, hint, "datagrams cannot be captured: they are refused");
                let mut active = Self::make(capture, config, &without_datagrams(ways))?;
                active.refuses_datagrams = true;
                Ok(active)
            }
            made => made,
        }
    }

    fn make(capture: &Capture, config: &Config, ways: &Ways) -> Result<Self, CaptureError> {
        let mut netlink = open(Family::Netfilter)?;
        let mut routing = open(Family::Route)?;
        let mut present = own_tables(&mut netlink)?;
        if let Some(port) = present.iter().find_map(|table| table.owner) {
            return Err(CaptureError::Taken(holder(port)));
        }
        // Of a process that was killed.
        remove_tagged(&mut routing)?;
        let host = host::look(capture, config, !WITHOUT_OWNER.load(Ordering::Relaxed), &mut routing)?;
        let ruleset = ruleset(capture, *ways, &host);
        let shared = Shared { netlink, tables: Vec::new(), direct: BTreeMap::new() };
        let mut active = Self {
            shared: Arc::new(Mutex::new(shared)),
            routing,
            report: report(capture, ways, host.has_owners),
            has_owner: host.has_owners,
            ruleset,
            saved: Vec::new(),
            guard: None,
            refuses_datagrams: false,
            is_foreign: false,
        };
        active.add_routing()?;
        active.set_sysctls()?;
        present.retain(|table| table.owner.is_none());
        let old: Vec<&str> = present.iter().map(|table| &*table.name).collect();
        if let Err(error) = active.commit(&old) {
            if !active.has_owner || !error.errno().is_some_and(|number| NO_OWNERS.contains(&number)) {
                return Err(error.into());
            }
            tracing::info!(%error, "the kernel ends no table with its process (before 5.12): a second process does");
            active.give_up_owner(capture, ways);
            active.commit(&old)?;
        }
        active.start_guard()?;
        *lock(&CURRENT) = Some(active.shared.clone());
        warn_of_tracking();
        Ok(active)
    }

    /// The capture for another process, which has to capture the same; `None` where the kernel ends no table with its process,
    /// so that another process watches this one.
    ///
    /// # Errors
    /// When no descriptor is left.
    pub(crate) fn lend(&self) -> io::Result<Option<Lent>> {
        if !self.has_owner || self.guard.is_some() {
            return Ok(None);
        }
        let (shared, now) = (lock(&self.shared), rt::now());
        let lives = |until: &Instant| until.saturating_duration_since(now).as_secs();
        let facts = Facts {
            plan: plan(&self.ruleset),
            saved: self.saved.clone(),
            direct: shared.direct.iter().map(|(ip, until)| (*ip, lives(until))).collect(),
            refuses_datagrams: self.refuses_datagrams,
        };
        Ok(Some(Lent { netlink: shared.netlink.copy()?, facts }))
    }

    /// The capture of another process. Nothing in the kernel changes, and nothing is taken away until [`Active::own`].
    ///
    /// # Errors
    /// When `config` captures something else.
    pub(crate) fn adopt(
        lent: Lent,
        capture: &Capture,
        config: &Config,
        ways: &Ways,
    ) -> Result<Self, CaptureError> {
        let Lent { netlink, facts } = lent;
        let Facts { plan: wanted, saved, direct, refuses_datagrams } = facts;
        let failed = |source| CaptureError::System { what: "taking over the capture".to_owned(), source };
        let ways = if refuses_datagrams { without_datagrams(ways) } else { *ways };
        let mut routing = open(Family::Route)?;
        let host = host::look(capture, config, true, &mut routing)?;
        let ruleset = ruleset(capture, ways, &host);
        if plan(&ruleset) != wanted {
            let text =
                "the configuration captures something else than the process that runs: `adit reload` first";
            return Err(failed(io::Error::other(text)));
        }
        let now = rt::now();
        let lives = |(ip, seconds): (IpAddr, u64)| Some((ip, now.checked_add(Duration::from_secs(seconds))?));
        let direct = direct.into_iter().take(MAX_DIRECT).filter_map(lives).collect();
        let netlink = Netlink::adopt(netlink).map_err(failed)?;
        let tables = ruleset.tables.iter().map(|table| table.name).collect();
        Ok(Self {
            shared: Arc::new(Mutex::new(Shared { netlink, tables, direct })),
            routing,
            report: report(capture, &ways, true),
            has_owner: true,
            ruleset,
            saved,
            guard: None,
            refuses_datagrams,
            is_foreign: true,
        })
    }

    /// It is this process's from now on.
    pub(crate) fn own(&mut self) {
        if std::mem::take(&mut self.is_foreign) {
            *lock(&CURRENT) = Some(self.shared.clone());
        }
    }

    /// It is another process's from now on, and stays as it is.
    pub(crate) fn leave(mut self) {
        self.is_foreign = true;
        *lock(&CURRENT) = None;
    }

    /// Changes the capture to that of `config`, over the socket that owns the table. Connections that were captured go on.
    ///
    /// # Errors
    /// When the kernel refuses; the tables are as they were then.
    pub(crate) fn follow(
        &mut self,
        capture: &Capture,
        config: &Config,
        ways: &Ways,
    ) -> Result<(), CaptureError> {
        let is_auto = capture.mode == CaptureMode::Auto;
        let ways = &if self.refuses_datagrams && is_auto { without_datagrams(ways) } else { *ways };
        let host = host::look(capture, config, self.has_owner, &mut self.routing)?;
        let next = ruleset(capture, *ways, &host);
        if next == self.ruleset {
            return Ok(());
        }
        let before = std::mem::replace(&mut self.ruleset, next);
        let has_other_routing = before.rules != self.ruleset.rules || before.routes != self.ruleset.routes;
        if has_other_routing {
            remove_tagged(&mut self.routing)?;
            self.add_routing()?;
        }
        self.set_sysctls()?;
        let old = lock(&self.shared).tables.clone();
        if let Err(error) = self.commit(&old) {
            self.ruleset = before;
            if has_other_routing {
                remove_tagged(&mut self.routing)?;
                self.add_routing()?;
            }
            return Err(error.into());
        }
        self.report = report(capture, ways, self.has_owner);
        Ok(())
    }

    /// The capture, for a person.
    pub(crate) fn report(&self) -> &CaptureReport {
        &self.report
    }

    fn add_routing(&mut self) -> Result<(), CaptureError> {
        let links = links(&mut self.routing)?;
        for route in &self.ruleset.routes {
            route.add(&mut self.routing, &links)?;
        }
        for rule in &self.ruleset.rules {
            rule.add(&mut self.routing)?;
        }
        Ok(())
    }

    fn set_sysctls(&mut self) -> Result<(), CaptureError> {
        for (name, value) in &self.ruleset.sysctls {
            let path = PathBuf::from("/proc/sys").join(name);
            if self.saved.iter().any(|(saved, _)| *saved == path) {
                continue;
            }
            let failed = |source| CaptureError::System { what: format!("{name} = {value}"), source };
            let before = fs::read_to_string(&path).map_err(failed)?;
            fs::write(&path, value).map_err(failed)?;
            self.saved.push((path, before));
        }
        Ok(())
    }

    /// Puts the tables in the place of those that are there, all at once.
    fn commit(&self, old: &[&str]) -> Result<(), NetlinkError> {
        let shared = &mut *lock(&self.shared);
        let mut batch = Batch::new();
        old.iter().for_each(|name| batch.remove_table(name));
        self.ruleset.tables.iter().for_each(|table| batch.add_table(table));
        let now = rt::now();
        shared.direct.retain(|_, until| *until > now);
        for (ip, until) in &shared.direct {
            let lives = until.saturating_duration_since(now);
            add_direct(&mut batch, self.ruleset.tables.iter().map(|table| table.name), *ip, lives);
        }
        batch.commit(&mut shared.netlink)?;
        shared.tables = self.ruleset.tables.iter().map(|table| table.name).collect();
        Ok(())
    }

    fn give_up_owner(&mut self, capture: &Capture, ways: &Ways) {
        self.has_owner = false;
        self.report = report(capture, ways, false);
        self.ruleset.tables.iter_mut().for_each(|table: &mut Table| table.has_owner = false);
    }

    fn start_guard(&mut self) -> Result<(), CaptureError> {
        if self.has_owner || self.ruleset.tables.is_empty() {
            return Ok(());
        }
        let guard = Guard::start(&["capture", "watch"]);
        let failed =
            |source| CaptureError::System { what: "the process that removes the rules".to_owned(), source };
        self.guard = Some(guard.map_err(failed)?);
        Ok(())
    }

    fn stop(&mut self) {
        *lock(&CURRENT) = None;
        let removed = remove_tables(&mut lock(&self.shared).netlink);
        let routing = remove_tagged(&mut self.routing);
        for error in [removed, routing].into_iter().filter_map(Result::err) {
            tracing::warn!(error = %error, "a part of the capture stays: `adit capture clean` removes it");
        }
        for (path, before) in self.saved.drain(..) {
            // An interface that is gone has taken its settings along.
            drop(fs::write(path, before));
        }
        if let Some(guard) = self.guard.take() {
            guard.dismiss();
        }
    }
}

impl Drop for Active {
    fn drop(&mut self) {
        if !self.is_foreign {
            self.stop();
        }
    }
}

/// The fingerprint of what a capture puts into the kernel.
fn plan(ruleset: &Ruleset) -> u64 {
    adit_net::handover::key(&[&format!("{ruleset:?}")])
}

/// Whether datagrams are given up after this error: the mode leaves the choice, and the kernel lacks a part.
fn may_refuse_datagrams(capture: &Capture, ways: &Ways, error: &CaptureError) -> bool {
    let by_tproxy = matches!(ways.udp, Some(UdpWay::Tproxy(_)));
    capture.mode == CaptureMode::Auto && by_tproxy && error.is_missing_part()
}

fn without_datagrams(ways: &Ways) -> Ways {
    Ways { udp: ways.udp.map(|_| UdpWay::Refuse), ..*ways }
}

fn add_direct<'a>(batch: &mut Batch, tables: impl Iterator<Item = &'a str>, ip: IpAddr, lives: Duration) {
    let set = if ip.is_ipv4() { DIRECT[0] } else { DIRECT[1] };
    tables.for_each(|table| batch.add_address(table, set, ip, lives));
}

/// As [`bypass`], for the DNS service: refusals of the kernel are logged.
pub(crate) fn note_direct(ips: &[IpAddr], lives: Duration) {
    static REFUSED: LazyLock<Notice> = LazyLock::new(Notice::default);
    let addresses: Vec<_> = ips.iter().map(|ip| (*ip, lives)).collect();
    if let Err(error) = bypass(&addresses, rt::now())
        && let Some(times) = REFUSED.due(rt::now())
    {
        tracing::warn!(%error, times, "addresses of direct names do not pass by the capture");
    }
}

/// Lets traffic to these addresses pass by the capture, each for so long and a little longer. It holds when this returns: a
/// name server calls it before it answers with them. Nothing is done without a capture.
///
/// # Errors
/// The kernel's refusal.
pub fn bypass(addresses: &[(IpAddr, Duration)], now: Instant) -> Result<(), CaptureError> {
    let Some(shared) = lock(&CURRENT).clone() else { return Ok(()) };
    let shared = &mut *lock(&shared);
    shared.direct.retain(|_, until| *until > now);
    let mut fresh = Vec::new();
    for (ip, lives) in addresses {
        let (ip, lives) = (ip.to_canonical(), *lives + MARGIN);
        let known = shared.direct.get(&ip).copied();
        let is_long_enough = known.is_some_and(|known| known + MARGIN >= now + lives);
        if !is_long_enough && (known.is_some() || shared.direct.len() < MAX_DIRECT) {
            fresh.push((ip, lives, known.is_some()));
        }
    }
    if fresh.is_empty() || shared.tables.is_empty() {
        return Ok(());
    }
    let batch = |removes: bool| {
        let mut batch = Batch::new();
        for (ip, lives, is_known) in &fresh {
            if *is_known && removes {
                // The kernel keeps the end of an element that is added again.
                let set = if ip.is_ipv4() { DIRECT[0] } else { DIRECT[1] };
                shared.tables.iter().for_each(|table| batch.remove_address(table, set, *ip));
            }
            add_direct(&mut batch, shared.tables.iter().copied(), *ip, *lives);
        }
        batch
    };
    match batch(true).commit(&mut shared.netlink) {
        // One of them has ended in this moment.
        Err(error) if error.errno() == Some(ENOENT) => batch(false).commit(&mut shared.netlink)?,
        done => done?,
    }
    shared.direct.extend(fresh.into_iter().map(|(ip, lives, _)| (ip, now + lives)));
    Ok(())
}

/// Waits for the end of the process that has started this one, and removes the tables that it leaves without an owner. The
/// table that refuses traffic stays.
///
/// # Errors
/// The kernel's refusal.
pub fn watch() -> Result<(), CaptureError> {
    if Guard::wait_for_end() {
        return Ok(());
    }
    let mut netlink = open(Family::Netfilter)?;
    let left = own_tables(&mut netlink)?;
    if left.iter().any(|table| table.name == TABLE && table.owner.is_none()) {
        let mut batch = Batch::new();
        batch.remove_table(TABLE);
        batch.commit(&mut netlink)?;
    }
    remove_tagged(&mut open(Family::Route)?)
}

/// A full table of tracked connections drops new ones.
fn warn_of_tracking() {
    let Some((count, max)) = tracked() else { return };
    if count * 100 >= max * NEARLY_FULL {
        let hint = "raise the sysctl net.netfilter.nf_conntrack_max";
        tracing::warn!(
            count,
            max,
            hint,
            "the kernel's table of tracked connections is nearly full: new ones are dropped"
        );
    }
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use adit_config::dialect::native::parse;

    use super::*;
    use crate::capture::{Ports, TcpWay};

    /// Tells a test that it runs in a network of its own.
    const INSIDE: &str = "ADIT_TEST_IN_NAMESPACE";

    /// Runs the test `name` again in a network of its own, unless it does already; true if it does.
    fn is_inside(name: &str) -> bool {
        if std::env::var_os(INSIDE).is_some() {
            return true;
        }
        let program = std::env::current_exe().unwrap();
        let args = ["--exact", &format!("capture::active::tests::{name}"), "--nocapture"];
        match Command::new("unshare").arg("-n").arg(program).args(args).env(INSIDE, "1").output() {
            Ok(output) if String::from_utf8_lossy(&output.stderr).contains("unshare failed") => {
                eprintln!("SKIPPED: no right to make a network namespace");
            }
            Ok(output) => {
                let text = |bytes| String::from_utf8_lossy(bytes).into_owned();
                assert!(output.status.success(), "{}{}", text(&output.stdout), text(&output.stderr));
            }
            Err(error) => eprintln!("SKIPPED: unshare: {error}"),
        }
        false
    }

    fn config(more: &str) -> Config {
        let text = format!("[capture]\n{more}\n[[outbound]]\nprotocol = \"direct\"\n");
        parse("t.toml", &text).unwrap().config
    }

    fn listed(set: &str) -> Option<String> {
        let output = Command::new("nft").args(["list", "set", "inet", TABLE, set]).output().ok()?;
        Some(String::from_utf8(output.stdout).unwrap())
    }

    #[test]
    fn mode_auto_goes_without_datagrams_where_the_kernel_lacks_a_part() {
        let ports = Ports { v4: Some(4001), v6: None };
        let ways = Ways { tcp: TcpWay::Redirect(ports), udp: Some(UdpWay::Tproxy(ports)), dns: Some(ports) };
        let refused = |number| {
            let source = io::Error::from_raw_os_error(number);
            CaptureError::from(NetlinkError { part: "a rule".to_owned(), text: None, source })
        };
        let (auto, tproxy) = (config("").capture.unwrap(), config("mode = \"tproxy\"").capture.unwrap());
        assert!(
            may_refuse_datagrams(&auto, &ways, &refused(2))
                && may_refuse_datagrams(&auto, &ways, &refused(95))
        );
        assert!(!may_refuse_datagrams(&auto, &ways, &refused(1)), "no right");
        assert!(!may_refuse_datagrams(&auto, &ways, &refused(22)));
        assert!(!may_refuse_datagrams(&tproxy, &ways, &refused(2)), "that mode is what was asked for");
        let less = without_datagrams(&ways);
        assert_eq!((less.udp, less.tcp, less.dns), (Some(UdpWay::Refuse), ways.tcp, ways.dns));
        assert!(!may_refuse_datagrams(&auto, &less, &refused(2)), "and not a second time");
    }

    #[test]
    fn addresses_of_names_pass_by_the_capture_for_a_while() {
        if !is_inside("addresses_of_names_pass_by_the_capture_for_a_while") {
            return;
        }
        let ports = Ports { v4: Some(4001), v6: None };
        let ways = Ways { tcp: TcpWay::Redirect(ports), udp: None, dns: None };
        let (now, hour) = (rt::now(), Duration::from_secs(3600));
        let (one, two) = ("192.0.2.1".parse().unwrap(), "2001:db8::1".parse().unwrap());
        bypass(&[(one, hour)], now).unwrap();
        let first = config("");
        let mut active = Active::start(first.capture.as_ref().unwrap(), &first, &ways).unwrap();
        let Some(before) = listed("direct4") else { return eprintln!("SKIPPED: no nft") };
        assert!(!before.contains("192.0.2.1"), "it was not there yet: {before}");
        bypass(&[(one, hour), (two, Duration::from_secs(60))], now).unwrap();
        assert!(listed("direct4").unwrap().contains("192.0.2.1 timeout 1h10s"), "{:?}", listed("direct4"));
        assert!(listed("direct6").unwrap().contains("2001:db8::1 timeout 1m10s"));
        // A shorter life changes nothing, a longer one does.
        bypass(&[(one, Duration::from_secs(5)), (two, hour)], now).unwrap();
        assert!(listed("direct4").unwrap().contains("timeout 1h10s"));
        assert!(listed("direct6").unwrap().contains("timeout 1h10s"), "{:?}", listed("direct6"));
        // An element that the kernel has dropped by itself, and that is known here still.
        let mut batch = Batch::new();
        batch.remove_address(TABLE, "direct6", two);
        batch.commit(&mut lock(&active.shared).netlink).unwrap();
        bypass(&[(two, hour * 2)], now).unwrap();
        assert!(listed("direct6").unwrap().contains("timeout 2h10s"), "{:?}", listed("direct6"));
        // They stay when the rules change, and there is one owner.
        let other = config("exclude-address = \"198.51.100.0/24\"");
        active.follow(other.capture.as_ref().unwrap(), &other, &ways).unwrap();
        assert!(listed("exclude4").unwrap().contains("198.51.100.0/24"));
        assert!(listed("direct4").unwrap().contains("192.0.2.1 timeout"));
        let second = Active::start(first.capture.as_ref().unwrap(), &first, &ways);
        assert!(matches!(second, Err(CaptureError::Taken(_))), "{second:?}");
        drop(active);
        assert_eq!(listed("direct4").unwrap(), "");
        bypass(&[(one, hour)], now).unwrap();
    }
}
