//! The parts of captures that this machine has: of one that runs, or of one that was killed.

use std::fmt;
use std::io;

use adit_net::netlink::nft::{self, FoundTable, NftBatch};
use adit_net::netlink::route::{self, Tagged};
use adit_net::netlink::{Family, Netlink};

use super::CaptureError;
use super::missing_feature::{MissingFeature, is_forced};
use super::ruleset::{STRICT_TABLE, TABLE};

/// All that a capture has made and this machine still has.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct CaptureLeftovers {
    /// Tables, with the owner.
    tables: Vec<FoundTable>,
    /// Routes and rules of routing.
    tagged: Vec<Tagged>,
    /// Connections that the kernel tracks, and how many it tracks at most.
    pub tracked: Option<(u64, u64)>,
}

impl CaptureLeftovers {
    /// Whether there is nothing.
    pub fn is_empty(&self) -> bool {
        self.tables.is_empty() && self.tagged.is_empty()
    }

    /// The process that captures at this time, if its table has an owner.
    pub fn owner(&self) -> Option<String> {
        self.tables.iter().find_map(|table| Some(holder(table.owner?)))
    }
}

impl fmt::Display for CaptureLeftovers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for table in &self.tables {
            let kind = match (table.name.as_str(), table.owner) {
                (STRICT_TABLE, _) => "refuses what would be captured and is not",
                (_, Some(port)) => {
                    writeln!(f, "table {}: captures, of {}", table.name, holder(port))?;
                    continue;
                }
                (_, None) => "captures, without an owner",
            };
            writeln!(f, "table {}: {kind}", table.name)?;
        }
        self.tagged.iter().try_for_each(|tagged| writeln!(f, "{tagged}"))
    }
}

/// The process behind a port of netlink, which mostly is its number.
pub(super) fn holder(port: u32) -> String {
    let name = std::fs::read_to_string(format!("/proc/{port}/comm")).unwrap_or_default();
    match name.trim() {
        "" => format!("netlink port {port}"),
        name => format!("{name} (pid {port})"),
    }
}

/// The parts of captures that this machine has.
///
/// # Errors
/// When the kernel gives no answer.
pub fn status() -> Result<CaptureLeftovers, CaptureError> {
    let mut routing = open(Family::Route)?;
    Ok(CaptureLeftovers {
        tables: tables_if_any()?,
        tagged: route::tagged(&mut routing)?,
        tracked: tracked(),
    })
}

/// Removes what captures have left that do not run any more.
///
/// # Errors
/// [`CaptureError::Taken`] while one runs; the kernel's refusal.
pub fn clean() -> Result<CaptureLeftovers, CaptureError> {
    let found = status()?;
    if let Some(owner) = found.owner() {
        return Err(CaptureError::Taken(owner));
    }
    if !found.tables.is_empty() {
        remove_tables(&mut open(Family::Netfilter)?)?;
    }
    remove_tagged(&mut open(Family::Route)?)?;
    Ok(found)
}

/// The process that captures at this time.
///
/// # Errors
/// When the kernel gives no answer.
pub(super) fn owner() -> Result<Option<String>, CaptureError> {
    let tables = own_tables(&mut open(Family::Netfilter)?)?;
    Ok(tables.iter().find_map(|table| table.owner).map(holder))
}

/// `EPROTONOSUPPORT`.
const NO_PROTOCOL: i32 = 93;

pub(super) fn open(family: Family) -> Result<Netlink, CaptureError> {
    let opened = match family {
        Family::Netfilter if is_forced(MissingFeature::Tables) => {
            Err(io::Error::from_raw_os_error(NO_PROTOCOL))
        }
        Family::Netfilter | Family::Route => Netlink::open(family),
    };
    opened.map_err(|source| CaptureError::System {
        what: "no socket to the kernel (netlink)".to_owned(),
        source,
    })
}

/// The tables of captures; none on a kernel without nftables.
fn tables_if_any() -> Result<Vec<FoundTable>, CaptureError> {
    match open(Family::Netfilter).and_then(|mut netlink| own_tables(&mut netlink)) {
        Err(error) if error.is_missing_part() => Ok(Vec::new()),
        found => found,
    }
}

/// The tables of captures.
pub(super) fn own_tables(netlink: &mut Netlink) -> Result<Vec<FoundTable>, CaptureError> {
    let mut tables = nft::tables(netlink)?;
    tables.retain(|table| [TABLE, STRICT_TABLE].contains(&&*table.name));
    Ok(tables)
}

pub(super) fn remove_tables(netlink: &mut Netlink) -> Result<(), CaptureError> {
    let tables = own_tables(netlink)?;
    if tables.is_empty() {
        return Ok(());
    }
    let mut batch = NftBatch::new();
    tables.iter().for_each(|table| batch.remove_table(&table.name));
    Ok(batch.commit(netlink)?)
}

/// Removes all routes and rules of captures, and says how many there were.
pub(super) fn remove_tagged(netlink: &mut Netlink) -> Result<usize, CaptureError> {
    let all = route::tagged(netlink)?;
    for tagged in &all {
        tagged.remove(netlink)?;
    }
    Ok(all.len())
}

/// Connections that the kernel tracks, and how many at most; a new one is dropped when the table is full.
pub(super) fn tracked() -> Option<(u64, u64)> {
    let read = |name: &str| {
        let text = std::fs::read_to_string(format!("/proc/sys/net/netfilter/nf_conntrack_{name}")).ok()?;
        text.trim().parse::<u64>().ok()
    };
    Some((read("count")?, read("max")?))
}
