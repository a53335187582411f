//! A capture that runs: what was made, and taking it away again.

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::net::IpAddr;
use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::sync::{Arc, LazyLock, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use adit_model::{Capture, CaptureMode, Config};
use adit_net::guard::Guard;
use adit_net::netlink::nft::{FoundTable, NftBatch, Table};
use adit_net::netlink::route::{InterfaceLink, Route, RouteKind, links};
use adit_net::netlink::{Family, Netlink, NetlinkError};
use adit_net::rt;
use serde::{Deserialize, Serialize};

use crate::log_throttle::LogThrottle;

use super::missing_feature::{MissingFeature, is_forced};
use super::ruleset::{CaptureRoutes, DIRECT, TABLE, TcpWay, UdpWay};
use super::stale_rules::{holder, open, own_tables, remove_tables, remove_tagged, tracked};
use super::{CaptureError, CaptureReport, Host, Ruleset, check_selection, host, report, ruleset};

/// Of the connections that the kernel tracks at most, so many in a hundred are worth a warning.
const NEARLY_FULL: u64 = 90;
/// Addresses with a direct way that are known at most.
const MAX_DIRECT: usize = 1 << 16;
/// Added to the life of such an address, for clocks and applications that are slow.
const MARGIN: Duration = Duration::from_secs(10);
/// `EINVAL` and `EOPNOTSUPP`: the answers of kernels that know no owners.
const NO_OWNERS: [i32; 2] = [22, 95];

const ENOENT: i32 = 2;

/// A capture that runs. Dropping it takes everything away.
#[derive(Debug)]
pub(crate) struct Active {
    shared: Arc<Mutex<Shared>>,
    routing: Netlink,
    ruleset: Ruleset,
    /// The settings, the ways and the machine that the rules follow from.
    capture: Capture,
    ways: CaptureRoutes,
    host: Host,
    report: CaptureReport,
    has_owner: bool,
    /// Settings below /proc/sys as they were.
    saved: Vec<(PathBuf, String)>,
    /// The process that removes tables without an owner.
    guard: Option<Guard>,
    fallback: Fallback,
    /// It is another process's, which has it taken away or goes on with it.
    is_foreign: bool,
    /// Lines about the kernel's table of connections.
    tracking: LogThrottle,
    /// Interfaces that the settings name and that are not there, each with its key.
    absent: Vec<(&'static str, Box<str>)>,
}

/// The part of mode auto that this kernel has no way for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
enum Fallback {
    /// It has all.
    None,
    /// Datagrams are refused.
    Refuse,
    /// The interface takes everything.
    Interface,
}

impl Fallback {
    fn ways(self, ways: &CaptureRoutes) -> CaptureRoutes {
        match self {
            Self::None => *ways,
            Self::Refuse => CaptureRoutes { udp: ways.udp.map(|_| UdpWay::Refuse), ..*ways },
            Self::Interface => CaptureRoutes { tcp: TcpWay::Tun, udp: Some(UdpWay::Tun), ..*ways },
        }
    }
}

/// A capture for another process.
#[derive(Debug)]
pub(crate) struct Lent {
    /// The socket that owns the table; `None` on a kernel without nftables.
    pub(crate) netlink: Option<OwnedFd>,
    /// The facts that the other process has to know.
    pub(crate) facts: CaptureFacts,
}

/// The facts about a capture that the kernel does not tell.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct CaptureFacts {
    /// Fingerprint of tables, routes, rules and settings.
    plan: u64,
    /// Settings below /proc/sys as they were before.
    saved: Vec<(PathBuf, String)>,
    /// Addresses with a direct way, with the seconds that they live.
    direct: Vec<(IpAddr, u64)>,
    fallback: Fallback,
}

/// The socket that owns the table, with the addresses that were added since.
#[derive(Debug)]
struct Shared {
    /// `None` on a kernel without nftables.
    netlink: Option<Netlink>,
    tables: Vec<&'static str>,
    direct: BTreeMap<IpAddr, Instant>,
    /// The table of routes in which these addresses are left alone, where the firewall does not look at them, and the socket
    /// for it.
    routes: Option<(u32, Netlink)>,
}

/// The capture of this process, for the names that are looked up.
static CURRENT: Mutex<Option<Arc<Mutex<Shared>>>> = Mutex::new(None);

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Active {
    /// Makes the capture of `config`; in mode auto in another way, where the kernel lacks a part.
    ///
    /// # Errors
    /// Why there is none; nothing is left behind then.
    pub(crate) fn start(
        capture: &Capture,
        config: &Config,
        ways: &CaptureRoutes,
    ) -> Result<Self, CaptureError> {
        let error = match Self::make(capture, config, ways, Fallback::None) {
            Err(error) if capture.mode == CaptureMode::Auto && error.is_missing_part() => error,
            made => return made,
        };
        match ways.udp {
            Some(UdpWay::Tproxy(_)) => {
                let hint = "load the kernel modules nft_tproxy and nft_socket";
                tracing::warn!(%error, hint, "datagrams cannot be captured: they are refused");
                Self::make(capture, config, ways, Fallback::Refuse)
            }
            Some(UdpWay::Tun) if check_selection(capture).is_ok() => {
                let hint = "load the kernel modules nf_tables, nft_ct, nft_redir and nft_fib_inet";
                tracing::warn!(%error, hint, "connections cannot be redirected: the interface takes everything");
                Self::make(capture, config, ways, Fallback::Interface)
            }
            _ => Err(error),
        }
    }

    fn make(
        capture: &Capture,
        config: &Config,
        ways: &CaptureRoutes,
        fallback: Fallback,
    ) -> Result<Self, CaptureError> {
        let ways = fallback.ways(ways);
        let by_interface = ways.tcp == TcpWay::Tun;
        let mut netlink = match open(Family::Netfilter) {
            Err(error) if by_interface && error.is_missing_part() => None,
            opened => Some(opened?),
        };
        let mut routing = open(Family::Route)?;
        let mut present = match netlink.as_mut().map_or(Ok(Vec::new()), own_tables) {
            Err(error) if by_interface && error.is_missing_part() => {
                netlink = None;
                Vec::new()
            }
            present => present?,
        };
        if let Some(port) = present.iter().find_map(|table| table.owner) {
            return Err(CaptureError::Taken(holder(port)));
        }
        // Of a process that was killed.
        let left = remove_tagged(&mut routing)?;
        warn_of_kill(left, &present);
        let has_owner = !is_forced(MissingFeature::Owners);
        let host = host::look(capture, config, has_owner, &mut routing)?;
        let mut ruleset = ruleset(capture, ways, &host);
        if netlink.is_none() {
            ruleset.tables.clear();
            if capture.strict && host.has_v6 {
                tracing::warn!(
                    "without nftables, `strict` does not hold for IPv6 of this machine's own programs"
                );
            }
        }
        let routes = if by_interface { Some((capture.table, open(Family::Route)?)) } else { None };
        let shared = Shared { netlink, tables: Vec::new(), direct: BTreeMap::new(), routes };
        let mut active = Self {
            shared: Arc::new(Mutex::new(shared)),
            routing,
            report: report(capture, &ways, has_owner),
            capture: capture.clone(),
            ways,
            host,
            has_owner,
            ruleset,
            saved: Vec::new(),
            guard: None,
            fallback,
            is_foreign: false,
            tracking: LogThrottle::default(),
            absent: Vec::new(),
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
            active.give_up_owner();
            active.commit(&old)?;
        }
        active.start_guard()?;
        *lock(&CURRENT) = Some(active.shared.clone());
        active.warn_of_tracking(rt::now());
        active.absent = host::absent(&active.capture, &mut active.routing)?;
        active.absent.iter().for_each(|(key, name)| warn_of_absent(key, name));
        warn_of_forwarding(&active.capture);
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
        let facts = CaptureFacts {
            plan: plan(&self.ruleset),
            saved: self.saved.clone(),
            direct: shared.direct.iter().map(|(ip, until)| (*ip, lives(until))).collect(),
            fallback: self.fallback,
        };
        let netlink = shared.netlink.as_ref().map(Netlink::copy).transpose()?;
        Ok(Some(Lent { netlink, facts }))
    }

    /// The capture of another process. Nothing in the kernel changes, and nothing is taken away until [`Active::own`].
    ///
    /// # Errors
    /// When `config` captures something else.
    pub(crate) fn adopt(
        lent: Lent,
        capture: &Capture,
        config: &Config,
        ways: &CaptureRoutes,
    ) -> Result<Self, CaptureError> {
        let Lent { netlink, facts } = lent;
        let CaptureFacts { plan: wanted, saved, direct, fallback } = facts;
        let failed = |source| CaptureError::System { what: "taking over the capture".to_owned(), source };
        let ways = fallback.ways(ways);
        let mut routing = open(Family::Route)?;
        let host = host::look(capture, config, true, &mut routing)?;
        let mut ruleset = ruleset(capture, ways, &host);
        if netlink.is_none() {
            ruleset.tables.clear();
        }
        if plan(&ruleset) != wanted {
            let text =
                "the configuration captures something else than the process that runs: `adit reload` first";
            return Err(failed(io::Error::other(text)));
        }
        let now = rt::now();
        let lives = |(ip, seconds): (IpAddr, u64)| Some((ip, now.checked_add(Duration::from_secs(seconds))?));
        let direct = direct.into_iter().take(MAX_DIRECT).filter_map(lives).collect();
        let netlink = netlink.map(Netlink::adopt).transpose().map_err(failed)?;
        let tables = ruleset.tables.iter().map(|table| table.name).collect();
        let by_interface = ways.tcp == TcpWay::Tun;
        let routes = if by_interface { Some((capture.table, open(Family::Route)?)) } else { None };
        Ok(Self {
            shared: Arc::new(Mutex::new(Shared { netlink, tables, direct, routes })),
            routing,
            report: report(capture, &ways, true),
            capture: capture.clone(),
            ways,
            host,
            has_owner: true,
            ruleset,
            saved,
            guard: None,
            fallback,
            is_foreign: true,
            tracking: LogThrottle::default(),
            absent: Vec::new(),
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
        ways: &CaptureRoutes,
    ) -> Result<(), CaptureError> {
        let fallback = if capture.mode == CaptureMode::Auto { self.fallback } else { Fallback::None };
        let ways = fallback.ways(ways);
        let host = host::look(capture, config, self.has_owner, &mut self.routing)?;
        self.change(capture.clone(), ways, host)
    }

    /// Puts the routes over the capture's interface back, which was made anew.
    ///
    /// # Errors
    /// The kernel's refusal.
    pub(crate) fn follow_interface(&mut self) -> Result<(), CaptureError> {
        self.add_routing()
    }

    /// Whether another program can take the tables away.
    pub(crate) fn is_unprotected(&self) -> bool {
        !self.has_owner && !self.ruleset.tables.is_empty()
    }

    /// Puts tables back that another program has removed, which it can where they have no owner; true if any were gone.
    /// Tells of a table of connections that is full.
    ///
    /// # Errors
    /// The kernel's refusal.
    pub(crate) fn look_after(&mut self, now: Instant) -> Result<bool, CaptureError> {
        self.warn_of_tracking(now);
        if !self.is_unprotected() {
            return Ok(false);
        }
        let there = lock(&self.shared).netlink.as_mut().map_or(Ok(Vec::new()), own_tables)?;
        let is_there = |table: &Table| there.iter().any(|other| *other.name == *table.name);
        if self.ruleset.tables.iter().all(is_there) {
            return Ok(false);
        }
        let left: Vec<&str> = there.iter().map(|table| &*table.name).collect();
        self.commit(&left)?;
        Ok(true)
    }

    /// A full table of tracked connections drops new ones.
    fn warn_of_tracking(&self, now: Instant) {
        let Some((count, max)) = tracked() else { return };
        if count * 100 < max * NEARLY_FULL || self.tracking.due(now).is_none() {
            return;
        }
        let hint = "raise the sysctl net.netfilter.nf_conntrack_max";
        tracing::warn!(
            count,
            max,
            hint,
            "the kernel's table of tracked connections is nearly full: new ones are dropped"
        );
    }

    /// Has the rules know of interfaces that have come or gone; true if there are any.
    ///
    /// # Errors
    /// As [`Active::follow`].
    pub(crate) fn follow_links(&mut self) -> Result<bool, CaptureError> {
        self.tell_of_named()?;
        let links = host::link_names(&self.host.interface, &mut self.routing)?;
        let routed = host::routed(&self.capture, &self.host.interface, &mut self.routing)?;
        if links == self.host.links && routed == self.host.routed {
            return Ok(false);
        }
        let host = Host { links, routed, ..self.host.clone() };
        self.change(self.capture.clone(), self.ways, host)?;
        Ok(true)
    }

    /// Whether the rules depend on routes of others, which come and go without a change of interfaces.
    pub(crate) fn follows_routes(&self) -> bool {
        self.capture.has_any_lan()
    }

    /// Tells of interfaces that the settings name and that have come or gone.
    fn tell_of_named(&mut self) -> Result<(), CaptureError> {
        let now = host::absent(&self.capture, &mut self.routing)?;
        for (key, name) in now.iter().filter(|one| !self.absent.contains(one)) {
            warn_of_absent(key, name);
        }
        for (key, name) in self.absent.iter().filter(|one| !now.contains(one)) {
            tracing::info!("capture.{key}: interface {name} is there now");
        }
        self.absent = now;
        Ok(())
    }

    fn change(&mut self, capture: Capture, ways: CaptureRoutes, host: Host) -> Result<(), CaptureError> {
        let mut next = ruleset(&capture, ways, &host);
        let by_interface = ways.tcp == TcpWay::Tun;
        {
            let shared = &mut *lock(&self.shared);
            if shared.netlink.is_none() {
                shared.netlink = if by_interface { None } else { Some(open(Family::Netfilter)?) };
            }
            if shared.netlink.is_none() {
                next.tables.clear();
            }
            shared.routes = if by_interface { Some((capture.table, open(Family::Route)?)) } else { None };
        }
        if next == self.ruleset {
            // An interface that was made anew has lost its routes.
            (self.capture, self.ways, self.host) = (capture, ways, host);
            self.tell_of_named()?;
            return if by_interface || ways.udp == Some(UdpWay::Tun) { self.add_routing() } else { Ok(()) };
        }
        let before = std::mem::replace(&mut self.ruleset, next);
        // First the new ones, so that at no time traffic goes another way; those that are there already are left.
        self.add_routing()?;
        self.set_sysctls()?;
        let old = lock(&self.shared).tables.clone();
        if let Err(error) = self.commit(&old) {
            let wanted = std::mem::replace(&mut self.ruleset, before);
            self.add_routing()?;
            self.remove_others(&wanted)?;
            return Err(error.into());
        }
        self.remove_others(&before)?;
        self.report = report(&capture, &ways, self.has_owner);
        (self.capture, self.ways, self.host) = (capture, ways, host);
        self.tell_of_named()
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
        let shared = &mut *lock(&self.shared);
        for ip in shared.direct.keys() {
            if let Some((table, routing)) = &mut shared.routes {
                throw(*ip, *table).add(routing, &links)?;
            }
        }
        for rule in &self.ruleset.rules {
            rule.add(&mut self.routing)?;
        }
        Ok(())
    }

    /// Removes the routes and rules of another set that this one has not.
    fn remove_others(&mut self, other: &Ruleset) -> Result<(), CaptureError> {
        let links = links(&mut self.routing)?;
        for rule in other.rules.iter().filter(|rule| !self.ruleset.rules.contains(rule)) {
            rule.remove(&mut self.routing)?;
        }
        for route in other.routes.iter().filter(|route| !self.ruleset.routes.contains(route)) {
            // A route over an interface that is gone has gone with it.
            if let Err(error) = route.remove(&mut self.routing, &links)
                && error.source.kind() != io::ErrorKind::NotFound
            {
                return Err(error.into());
            }
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
        let mut batch = NftBatch::new();
        old.iter().for_each(|name| batch.remove_table(name));
        self.ruleset.tables.iter().for_each(|table| batch.add_table(table));
        let now = rt::now();
        shared.direct.retain(|_, until| *until > now);
        for (ip, until) in &shared.direct {
            let lives = until.saturating_duration_since(now);
            let with_sets = self.ruleset.tables.iter().filter(|table| !table.sets.is_empty());
            add_direct(&mut batch, with_sets.map(|table| table.name), *ip, lives);
        }
        if let Some(netlink) = &mut shared.netlink {
            batch.commit(netlink)?;
        }
        shared.tables = self.ruleset.tables.iter().map(|table| table.name).collect();
        Ok(())
    }

    fn give_up_owner(&mut self) {
        self.has_owner = false;
        self.report = report(&self.capture, &self.ways, false);
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
        let removed = lock(&self.shared).netlink.as_mut().map_or(Ok(()), remove_tables);
        let routing = remove_tagged(&mut self.routing);
        for error in [removed, routing.map(drop)].into_iter().filter_map(Result::err) {
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

fn add_direct<'a>(batch: &mut NftBatch, tables: impl Iterator<Item = &'a str>, ip: IpAddr, lives: Duration) {
    let set = if ip.is_ipv4() { DIRECT[0] } else { DIRECT[1] };
    tables.for_each(|table| batch.add_address(table, set, ip, lives));
}

/// The route by which traffic to an address is left alone.
fn throw(ip: IpAddr, table: u32) -> Route {
    Route::new((ip, if ip.is_ipv4() { 32 } else { 128 }), RouteKind::Throw, table)
}

/// As [`bypass`], for the DNS service: refusals of the kernel are logged.
pub(crate) fn note_direct(ips: &[IpAddr], lives: Duration) {
    static REFUSED: LazyLock<LogThrottle> = LazyLock::new(LogThrottle::default);
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
    shared.forget(now)?;
    let mut fresh = Vec::new();
    for (ip, lives) in addresses {
        let (ip, lives) = (ip.to_canonical(), *lives + MARGIN);
        let known = shared.direct.get(&ip).copied();
        let is_long_enough = known.is_some_and(|known| known + MARGIN >= now + lives);
        if !is_long_enough && (known.is_some() || shared.direct.len() < MAX_DIRECT) {
            fresh.push((ip, lives, known.is_some()));
        }
    }
    if fresh.is_empty() {
        return Ok(());
    }
    shared.leave_alone(&fresh)?;
    shared.direct.extend(fresh.into_iter().map(|(ip, lives, _)| (ip, now + lives)));
    Ok(())
}

impl Shared {
    /// Forgets addresses whose time is over. The kernel drops those of its sets by itself.
    fn forget(&mut self, now: Instant) -> Result<(), NetlinkError> {
        const NO_LINKS: &[InterfaceLink] = &[];
        let Self { direct, routes, .. } = self;
        let mut result = Ok(());
        direct.retain(|ip, until| {
            let stays = *until > now;
            if let (false, Some((table, routing))) = (stays, &mut *routes) {
                result = throw(*ip, *table).remove(routing, NO_LINKS);
            }
            stays
        });
        result
    }

    /// Lets traffic to addresses pass, each for so long; those that are known already have another end from now on.
    fn leave_alone(&mut self, fresh: &[(IpAddr, Duration, bool)]) -> Result<(), NetlinkError> {
        if let Some((table, routing)) = &mut self.routes {
            return fresh.iter().try_for_each(|(ip, ..)| throw(*ip, *table).add(routing, &[]));
        }
        let Some(netlink) = self.netlink.as_mut().filter(|_| !self.tables.is_empty()) else { return Ok(()) };
        let tables = &self.tables;
        let batch = |removes: bool| {
            let mut batch = NftBatch::new();
            for (ip, lives, is_known) in fresh {
                if *is_known && removes {
                    // The kernel keeps the end of an element that is added again.
                    let set = if ip.is_ipv4() { DIRECT[0] } else { DIRECT[1] };
                    tables.iter().for_each(|table| batch.remove_address(table, set, *ip));
                }
                add_direct(&mut batch, tables.iter().copied(), *ip, *lives);
            }
            batch
        };
        match batch(true).commit(netlink) {
            // One of them has ended in this moment.
            Err(error) if error.errno() == Some(ENOENT) => batch(false).commit(netlink),
            done => done,
        }
    }
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
        let mut batch = NftBatch::new();
        batch.remove_table(TABLE);
        batch.commit(&mut netlink)?;
    }
    remove_tagged(&mut open(Family::Route)?).map(drop)
}

/// Tells of an interface that the settings name and that is not there; it may come.
fn warn_of_absent(key: &str, name: &str) {
    let hint = "`ip link` lists the interfaces; the rules hold for it once it is there";
    tracing::warn!(hint, "capture.{key}: no such interface on this machine: {name}");
}

/// Tells of traffic that this machine forwards and that goes straight.
fn warn_of_forwarding(capture: &Capture) {
    if capture.lan.is_empty() && host::forwards(capture.ipv6) {
        let hint = "lan = \"*\", or the names of their interfaces, captures it";
        tracing::warn!(
            hint,
            "this machine forwards traffic of others, which is not captured: capture.lan is not set"
        );
    }
}

/// Tells of a capture that was killed, by the routes, rules and tables that it has left.
fn warn_of_kill(routes: usize, tables: &[FoundTable]) {
    if routes == 0 && tables.is_empty() {
        return;
    }
    let tables: Vec<&str> = tables.iter().map(|table| &*table.name).collect();
    tracing::warn!(
        routes,
        tables = tables.join(" "),
        "an earlier capture was killed: the routes, rules and tables that it has left are removed"
    );
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use adit_formats::adit_toml::parse;
    use adit_testkit::{has_nftables, in_own_network};

    use super::*;
    use crate::transparent::ListenedPorts;

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
        let ports = ListenedPorts { v4: Some(4001), v6: None };
        let ways = CaptureRoutes {
            tcp: TcpWay::Redirect(ports),
            udp: Some(UdpWay::Tproxy(ports)),
            dns: Some(ports),
            dns_is_hidden: false,
        };
        let refused = |number| {
            let source = io::Error::from_raw_os_error(number);
            CaptureError::from(NetlinkError { part: "a rule".to_owned(), text: None, source })
        };
        assert!(refused(2).is_missing_part() && refused(95).is_missing_part());
        assert!(!refused(1).is_missing_part(), "no right");
        assert!(!refused(22).is_missing_part());
        let less = Fallback::Refuse.ways(&ways);
        assert_eq!((less.udp, less.tcp, less.dns), (Some(UdpWay::Refuse), ways.tcp, ways.dns));
        let other = Fallback::Interface.ways(&CaptureRoutes { udp: Some(UdpWay::Tun), ..ways });
        assert_eq!((other.udp, other.tcp, other.dns), (Some(UdpWay::Tun), TcpWay::Tun, ways.dns));
    }

    #[test]
    fn addresses_of_names_pass_by_the_capture_for_a_while() {
        let name = "transparent::active::tests::addresses_of_names_pass_by_the_capture_for_a_while";
        if !has_nftables() || !in_own_network(name) {
            return;
        }
        let ports = ListenedPorts { v4: Some(4001), v6: None };
        let ways = CaptureRoutes { tcp: TcpWay::Redirect(ports), udp: None, dns: None, dns_is_hidden: false };
        let (now, hour) = (rt::now(), Duration::from_secs(3600));
        let (one, two) = ("192.0.2.1".parse().unwrap(), "2001:db8::1".parse().unwrap());
        bypass(&[(one, hour)], now).unwrap();
        let first = config("");
        let mut active = Active::start(first.capture.as_ref().unwrap(), &first, &ways).unwrap();
        let before = listed("direct4").unwrap();
        assert!(!before.contains("192.0.2.1"), "it was not there yet: {before}");
        bypass(&[(one, hour), (two, Duration::from_secs(60))], now).unwrap();
        assert!(listed("direct4").unwrap().contains("192.0.2.1 timeout 1h10s"), "{:?}", listed("direct4"));
        assert!(listed("direct6").unwrap().contains("2001:db8::1 timeout 1m10s"));
        // A shorter life changes nothing, a longer one does.
        bypass(&[(one, Duration::from_secs(5)), (two, hour)], now).unwrap();
        assert!(listed("direct4").unwrap().contains("timeout 1h10s"));
        assert!(listed("direct6").unwrap().contains("timeout 1h10s"), "{:?}", listed("direct6"));
        // An element that the kernel has dropped by itself, and that is known here still.
        let mut batch = NftBatch::new();
        batch.remove_address(TABLE, "direct6", two);
        batch.commit(lock(&active.shared).netlink.as_mut().unwrap()).unwrap();
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
