//! The cost of capturing traffic: `adit bench run capture`.
//!
//! ```text
//!   near: the load, and the program that captures it        far: target at 10.78.0.1, server of Snell 5
//!         10.77.0.1 ───────────── a pair of interfaces ───────────── 10.77.0.2
//! ```
//!
//! Counted is the processor time of the capturing process alone, for streams in both directions and for datagrams. adit's
//! own SOCKS port and sing-box's TUN (stack `system`, `auto_route`) are what it is compared with. A bare relay, by its own port
//! and behind a rule that redirects, shows what the kernel's part of a redirect is: nobody gets below it with a read and a
//! write for each piece. All cases of a round follow each other, so that a change of the machine meets all of them.
//!
//! Both networks have the congestion control that Linux has unless told otherwise. One that paces, as BBR does, sends by timers
//! of the kernel, and their time is counted to the process that happens to run.

mod load;
mod site;

use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use comfy_table::{Table, presets};
use serde::Serialize;

use self::load::{Cost, Direction};
use self::site::Site;
use crate::stats;
use crate::subject::Helper;

/// Bytes of each transfer.
const BYTES: u64 = 256 << 20;
/// Length and number of datagrams of a flow.
const DATAGRAM: usize = 1400;
const DATAGRAMS: u64 = 60_000;
/// Longest wait for a program to be ready.
pub(crate) const READY: Duration = Duration::from_secs(20);

/// The outbound of the program that captures.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Way {
    Direct,
    Snell,
}

/// The program and the way in which it takes traffic.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Taker {
    AditSocks,
    AditRedirect,
    AditTun,
    SingBoxTun,
    SingBoxRedirect,
    BarePort,
    BareRedirect,
}

impl Taker {
    const ALL: [Self; 7] = [
        Self::AditSocks,
        Self::AditRedirect,
        Self::AditTun,
        Self::SingBoxTun,
        Self::SingBoxRedirect,
        Self::BarePort,
        Self::BareRedirect,
    ];

    fn name(self) -> &'static str {
        match self {
            Self::AditSocks => "adit, SOCKS port",
            Self::AditRedirect => "adit, redirect",
            Self::AditTun => "adit, tun",
            Self::SingBoxTun => "sing-box, tun",
            Self::SingBoxRedirect => "sing-box, redirect",
            Self::BarePort => "bare relay, port",
            Self::BareRedirect => "bare relay, redirect",
        }
    }

    fn is_sing_box(self) -> bool {
        matches!(self, Self::SingBoxTun | Self::SingBoxRedirect)
    }

    fn is_bare(self) -> bool {
        matches!(self, Self::BarePort | Self::BareRedirect)
    }

    /// The case without capture that it is compared with.
    fn port(self) -> Self {
        if self.is_bare() { Self::BarePort } else { Self::AditSocks }
    }

    /// Whether a rule of nft(8) has to bring it its connections.
    fn wants_rule(self) -> bool {
        matches!(self, Self::SingBoxRedirect | Self::BareRedirect)
    }

    /// Whether it carries datagrams that no application has asked it for.
    fn takes_datagrams(self) -> bool {
        matches!(self, Self::AditTun | Self::SingBoxTun)
    }
}

impl Way {
    fn name(self) -> &'static str {
        match self {
            Self::Direct => "direct",
            Self::Snell => "Snell 5",
        }
    }
}

/// The figures of one case: processor time by round.
#[derive(Debug, Serialize)]
struct Figures {
    way: Way,
    taker: Taker,
    /// Microseconds per KB (1,024 bytes).
    up: Vec<f64>,
    down: Vec<f64>,
    /// Microseconds per datagram that arrived, and the part of them that did.
    datagram: Vec<f64>,
    arrived: Vec<f64>,
}

/// The programs that are measured.
pub(crate) struct Programs {
    pub(crate) helper: Helper,
    pub(crate) adit: PathBuf,
    pub(crate) sing_box: Option<PathBuf>,
}

/// Measures in so many rounds, writes the table to `out` and the raw data to `json` if that is given.
///
/// # Errors
/// Without root; if a program does not run, or a transfer fails.
pub(crate) fn run(
    programs: &Programs,
    rounds: usize,
    json: Option<&Path>,
    out: &mut impl Write,
) -> Result<()> {
    ensure!(rounds > 0, "at least one round expected");
    let site = Site::new(programs)?;
    let has_nft = site::nft("list tables").is_ok();
    let mut all = Vec::new();
    for way in [Way::Direct, Way::Snell] {
        for taker in Taker::ALL {
            let is_skipped = taker.is_sing_box() && programs.sing_box.is_none()
                || taker.wants_rule() && !has_nft
                || taker.is_bare() && way != Way::Direct;
            if is_skipped {
                continue;
            }
            let (up, down, datagram, arrived) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
            all.push(Figures { way, taker, up, down, datagram, arrived });
        }
    }
    if programs.sing_box.is_none() {
        writeln!(out, "sing-box: skipped: not found (--sing-box PATH)")?;
    }
    if !has_nft {
        writeln!(out, "redirects of others: skipped: nft cannot be run")?;
    }
    for _ in 0..rounds {
        for figures in &mut all {
            measure(&site, figures)
                .with_context(|| format!("{}, {}", figures.taker.name(), figures.way.name()))?;
        }
    }
    print(&all, site.congestion, out)?;
    if let Some(path) = json {
        let text = serde_json::to_string_pretty(&all)?;
        fs::write(path, text).with_context(|| format!("cannot write {}", path.display()))?;
    }
    Ok(())
}

/// One round of one case.
fn measure(site: &Site<'_>, figures: &mut Figures) -> Result<()> {
    let taker = site.start(figures.taker, figures.way)?;
    let proxy = taker.proxy();
    let target = taker.target();
    // The first connection pays for what is made once.
    load::transfer(target, proxy, Direction::Up, 1 << 20)?;
    let per_kb = |cost: Cost| cost.micros() / (cost.units / 1024.0);
    for (direction, found) in [(Direction::Up, &mut figures.up), (Direction::Down, &mut figures.down)] {
        let cost = taker.cost_of(|| load::transfer(target, proxy, direction, BYTES))?;
        found.push(per_kb(cost));
    }
    if figures.taker.takes_datagrams() {
        let cost = taker.cost_of(|| load::datagrams(&site.target, DATAGRAM, DATAGRAMS))?;
        ensure!(cost.units > 0.0, "no datagram arrived");
        figures.datagram.push(cost.micros() / cost.units);
        #[expect(clippy::cast_precision_loss, reason = "a few thousand")]
        figures.arrived.push(cost.units / DATAGRAMS as f64);
    }
    Ok(())
}

fn print(all: &[Figures], congestion: &str, out: &mut impl Write) -> Result<()> {
    let mut table = Table::new();
    table.load_style(presets::NOTHING);
    table.set_header([
        "outbound",
        "way in",
        "up us/KB",
        "x port",
        "x sing-box's TUN",
        "down us/KB",
        "x port",
        "x sing-box's TUN",
        "UDP us",
        "x sing-box",
        "arrived",
    ]);
    for figures in all {
        let of = |taker| all.iter().find(|other| other.way == figures.way && other.taker == taker);
        let (port, peer) = (of(figures.taker.port()), of(Taker::SingBoxTun));
        let up = |other: Option<&Figures>| ratio(&figures.up, other.map(|other| &*other.up));
        let down = |other: Option<&Figures>| ratio(&figures.down, other.map(|other| &*other.down));
        table.add_row([
            figures.way.name().to_owned(),
            figures.taker.name().to_owned(),
            median(&figures.up),
            up(port),
            up(peer),
            median(&figures.down),
            down(port),
            down(peer),
            median(&figures.datagram),
            ratio(&figures.datagram, peer.map(|peer| &*peer.datagram)),
            median(&figures.arrived),
        ]);
    }
    writeln!(out, "{table}")?;
    writeln!(
        out,
        "processor time of the capturing process, medians; ratios are medians of the rounds' ratios; congestion control: {congestion}"
    )?;
    Ok(())
}

fn median(values: &[f64]) -> String {
    stats::percentile(values, 50).map_or_else(|| "-".to_owned(), |median| format!("{median:.3}"))
}

/// The median of the ratios of each round.
fn ratio(ours: &[f64], base: Option<&[f64]>) -> String {
    let ratios: Vec<f64> =
        base.unwrap_or_default().iter().zip(ours).map(|(base, ours)| ours / base).collect();
    stats::percentile(&ratios, 50).map_or_else(|| "-".to_owned(), |median| format!("{median:.2}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ratios_are_of_one_round() {
        assert_eq!(ratio(&[2.0, 30.0, 2.0], Some(&[1.0, 10.0, 4.0])), "2.00");
        assert_eq!((ratio(&[1.0], None), median(&[])), ("-".to_owned(), "-".to_owned()));
    }
}
