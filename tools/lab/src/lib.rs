//! Benchmarks and soak tests against real peers.
//!
//! The lab starts **subjects** (a server and a client of some program, described by data in
//! `bench/subjects`), sends load through them to its own target on the loopback interface, and reads what the
//! kernel says about their processes. Everything is repeated in interleaved rounds, because machines are noisy.
//!
//! It is no part of a proxy: it uses blocking threads and `std::net` on purpose, so that it shares nothing
//! with the code that it measures.

#![forbid(unsafe_code)]
#![expect(
    clippy::disallowed_methods,
    reason = "the lab owns its sockets and clocks: it measures from outside"
)]

mod attack;
mod bulk;
pub mod busy;
mod capture;
pub mod check;
mod clash;
mod compare;
mod ends;
pub mod exchange;
pub mod families;
pub mod floor;
pub mod frame;
mod held;
pub mod html;
pub mod link;
pub mod link_measure;
mod listing;
pub mod load;
pub mod machine;
pub mod measure;
mod methods;
mod names;
pub mod probe;
pub mod rounds;
mod route;
pub mod scenario;
mod soak;
mod ssr;
mod stun;
pub mod subject;
pub mod summaries;
pub mod svg;
pub mod syscalls;
pub mod target;
pub mod udp;
pub mod versions;
pub mod wire;

pub use adit_demo::{process, random, stats};

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::fs;
use std::io::Write;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use clap::{Args as ClapArgs, Subcommand};

use crate::link::{Network, Site, Spec};
use crate::listing::{Known, entry, measure_names, subject_names};
use crate::measure::{Measure, Sizes};
use crate::scenario::Scenario;
use crate::subject::{Helper, Programs, Subject};
use crate::syscalls::Counter;

/// Measure adit and other programs on this machine.
#[derive(Debug, ClapArgs)]
#[command(arg_required_else_help = true)]
pub struct Args {
    /// List the subjects, the measures and the ready-made scenarios.
    #[arg(long)]
    list: bool,
    #[command(subcommand)]
    command: Option<Command>,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Measure in interleaved rounds and print tables.
    Run(RunArgs),
    /// Put the raw data of two runs side by side: do their ratios agree?
    Compare {
        /// A file that `--json` wrote.
        first: PathBuf,
        /// A file that it wrote another time.
        second: PathBuf,
    },
    /// Drive one subject with mixed connections and verify every byte.
    Check(CheckArgs),
    /// Load adit with everything for a long time: do memory, descriptors or latency rise?
    Soak(soak::Args),
    /// Look at packets: sizes, empty acknowledgements, retransmissions, round trips.
    Wire(wire::Args),
    /// Judge the first packets of connections by the published rule against fully encrypted traffic.
    Audit(Box<wire::audit::Args>),
    /// Relay as a floor: the near or far half of a pair.
    #[command(hide = true)]
    Floor {
        kind: floor::Kind,
        side: floor::Side,
        #[arg(long)]
        listen: SocketAddr,
        #[arg(long)]
        to: SocketAddr,
        /// Microseconds that a plain relay rests after each write.
        #[arg(long, default_value_t = 0)]
        rest: u64,
    },
    /// Relay datagrams as a floor.
    #[command(hide = true)]
    DatagramFloor {
        #[arg(long)]
        listen: SocketAddr,
        #[arg(long)]
        to: SocketAddr,
        #[arg(long, default_value = "none")]
        fault: udp::floor::Fault,
    },
    /// Answer STUN requests at two addresses.
    #[command(hide = true)]
    Stun {
        #[arg(long)]
        listen: SocketAddr,
        #[arg(long)]
        other: SocketAddr,
    },
    /// Run a program that is killed when the caller ends.
    #[command(hide = true)]
    Guard {
        /// The network to run it in.
        #[arg(long)]
        network: Option<PathBuf>,
        #[arg(last = true, required = true)]
        words: Vec<OsString>,
    },
}

/// Paths of programs, and further subjects.
#[derive(Debug, ClapArgs)]
pub(crate) struct ProgramArgs {
    /// The adit binary [default: beside this program; else from PATH].
    #[arg(long, value_name = "PATH")]
    adit: Option<PathBuf>,
    /// The sing-box binary [default: from PATH].
    #[arg(long, value_name = "PATH")]
    sing_box: Option<PathBuf>,
    /// The OpenSnell server.
    #[arg(long, value_name = "PATH")]
    opensnell_server: Option<PathBuf>,
    /// The OpenSnell client.
    #[arg(long, value_name = "PATH")]
    opensnell_client: Option<PathBuf>,
    /// Any other program that a subject names.
    #[arg(long, value_name = "NAME=PATH", value_parser = parse_program)]
    program: Vec<(String, PathBuf)>,
    /// Write figures of an adit that was not built with the profile `dist` as well; the report says so.
    #[arg(long)]
    any_profile: bool,
    /// A file with one more subject.
    #[arg(long, value_name = "FILE")]
    subject_file: Vec<PathBuf>,
}

#[derive(Debug, ClapArgs)]
struct RunArgs {
    /// A ready-made scenario (see --list), a scenario file, `route` for the cost of one decision by rules, `clash` for a
    /// file of mihomo of real size (`clash:FOLDER` writes it there and measures nothing), `capture` for the cost of
    /// captured traffic (takes root), `ssr` for the
    /// published table of ShadowsocksR, `ssr-matrix` for other programs of ShadowsocksR, `attack` for users of a server
    /// under attack (--measures chooses by words), or `probe` for differences in the time of an end.
    #[arg(default_value = "quick")]
    scenario: String,
    /// Number of repetitions of everything.
    #[arg(long)]
    rounds: Option<usize>,
    /// Subjects, separated by commas; NAME:METHOD chooses the cipher where --list says so, CLIENT@SERVER takes halves of
    /// two.
    #[arg(long, value_delimiter = ',', value_parser = Known(subject_names), hide_possible_values = true)]
    subjects: Vec<String>,
    /// Measures, separated by commas: downN, upN, getN, putN, pingN, latency, conn, connN, first-byte, idle, idleN, calls,
    /// base, wireN, busy-connect[N], busy-echo[N], and with datagrams of N bytes udp-bulkN[-gso], udp-maxN[-gso], udp-lowN, udp-scatterN, udp-echoN,
    /// udp-latencyN, udp-jitterN, udp-overN, udp-idle; over a link path-downN, path-upN, path-ping, path-share.
    #[arg(long, value_delimiter = ',', value_parser = Known(measure_names), hide_possible_values = true)]
    measures: Vec<String>,
    /// Subjects to compare with, separated by commas; `none` for no comparison. A name without a method means
    /// that program with the method of the row.
    #[arg(long)]
    baseline: Option<String>,
    /// Seconds over which bulk bytes count.
    #[arg(long)]
    seconds: Option<f64>,
    /// Fresh connections.
    #[arg(long)]
    connections: Option<usize>,
    /// Idle connections.
    #[arg(long)]
    idle: Option<usize>,
    /// Bytes of each transfer of getN and putN.
    #[arg(long, value_name = "BYTES")]
    transfer: Option<u32>,
    /// Datagrams per second of bulk flows.
    #[arg(long)]
    udp_rate: Option<f64>,
    /// Put servers and target behind an emulated link, such as `100mbit,rtt=100ms,loss=1%,queue=1250kB`; takes root and
    /// ip(8). Several are measured one after the other. Further words: jitter=5ms, burst=8 (packets), reorder=1%,
    /// reorder-by=5ms, dup=1%, mtu=1500, seed=1. The queue holds one round trip unless given.
    #[arg(long, value_name = "LINK", conflicts_with_all = ["wire", "mtu"])]
    link: Vec<String>,
    /// Count the segments between client and server as well, with --mtu 1500 unless given.
    #[arg(long)]
    wire: bool,
    /// Put servers and target into a network behind a pair of Ethernet interfaces with this MTU and without offloads;
    /// takes root and ip(8).
    #[arg(long, value_name = "BYTES")]
    mtu: Option<u32>,
    /// Write all raw data to this file.
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// Write tables, plots and raw data as one page to this file.
    #[arg(long, value_name = "FILE")]
    html: Option<PathBuf>,
    /// Write each plot as an SVG file into this folder.
    #[arg(long, value_name = "DIR")]
    svg: Option<PathBuf>,
    #[command(flatten)]
    programs: ProgramArgs,
}

#[derive(Debug, ClapArgs)]
struct CheckArgs {
    /// The subject to drive.
    subject: String,
    /// Connections in all.
    #[arg(long, default_value_t = 10_000)]
    connections: usize,
    /// Connections at once.
    #[arg(long, default_value_t = 64)]
    concurrency: usize,
    /// Seed of everything random.
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Largest payload per direction in bytes.
    #[arg(long, default_value_t = 1 << 20)]
    max_size: u32,
    /// Leave half-closes out.
    #[arg(long)]
    no_half_close: bool,
    /// Leave resets out.
    #[arg(long)]
    no_aborts: bool,
    /// Seconds without progress after which a connection is stuck.
    #[arg(long, default_value_t = 20)]
    deadline: u64,
    /// Seconds that descriptors may take to return to what they were.
    #[arg(long, default_value_t = 20)]
    settle: u64,
    /// Write the outcome to this file.
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    #[command(flatten)]
    programs: ProgramArgs,
}

fn parse_program(text: &str) -> Result<(String, PathBuf)> {
    let (name, path) = text.split_once('=').context("NAME=PATH expected")?;
    Ok((name.to_owned(), path.into()))
}

/// Runs the lab.
///
/// # Errors
/// If a command cannot be carried out, or what it measured failed.
pub fn run(args: Args) -> Result<()> {
    let helper = helper()?;
    match args.command {
        None => list(),
        Some(Command::Run(run)) => bench(&run, helper),
        Some(Command::Compare { first, second }) => {
            compare::run(&first, &second, &mut std::io::stdout().lock())
        }
        Some(Command::Check(check)) => integrity(&check, helper),
        Some(Command::Soak(soak)) => soak::run(&soak, &adit(&soak.programs, helper)?),
        Some(Command::Wire(args)) => wire::run(&args),
        Some(Command::Audit(args)) => wire::audit::run(&args),
        Some(Command::Floor { kind, side, listen, to, rest }) => {
            floor::serve(kind, side, listen, to, Duration::from_micros(rest))
        }
        Some(Command::DatagramFloor { listen, to, fault }) => udp::floor::serve(listen, to, fault),
        Some(Command::Stun { listen, other }) => stun::serve(listen, other),
        Some(Command::Guard { network, words }) => guard(network.as_deref(), &words),
    }
}

/// This program, which subjects have as bare relays and as guards.
pub(crate) fn helper() -> Result<Helper> {
    let program = std::env::current_exe().context("path of this program")?;
    Ok(Helper { program })
}

/// Becomes the program in `words`, in that network, to be killed by the kernel when the thread that started this process
/// ends.
fn guard(network: Option<&Path>, words: &[OsString]) -> Result<()> {
    adit_demo::guard(words, || network.map_or(Ok(()), link::network::enter))
}

fn list() -> Result<()> {
    let mut out = std::io::stdout().lock();
    writeln!(out, "subjects:")?;
    for subject in subject::builtin() {
        let name = if subject.method.is_some() { format!("{}[:METHOD]", subject.name) } else { subject.name };
        entry(&mut out, &name, &subject.about)?;
    }
    writeln!(out, "measures:")?;
    let sizes = Scenario::quick().sizes()?;
    for name in measure_names() {
        entry(&mut out, name, &name.parse::<Measure>()?.about(&sizes))?;
    }
    writeln!(out, "scenarios:")?;
    for scenario in Scenario::all() {
        let (measures, subjects) = (scenario.measures.join(", "), scenario.subjects.join(", "));
        let about = format!("{} rounds of {measures} over {subjects}", scenario.rounds);
        entry(&mut out, &scenario.name, &about)?;
        for link in &scenario.links {
            entry(&mut out, "", &format!("over {link}"))?;
        }
    }
    Ok(())
}

impl ProgramArgs {
    pub(crate) fn programs(&self, helper: Helper) -> Programs {
        let mut given: BTreeMap<String, PathBuf> = self.program.iter().cloned().collect();
        let beside = helper.program.with_file_name("adit");
        if beside.is_file() {
            given.insert("adit".into(), beside);
        }
        let named = [
            ("adit", &self.adit),
            ("sing-box", &self.sing_box),
            ("opensnell-server", &self.opensnell_server),
            ("opensnell-client", &self.opensnell_client),
        ];
        for (name, path) in named {
            if let Some(path) = path {
                given.insert(name.into(), path.clone());
            }
        }
        Programs::new(helper, given)
    }

    /// Fails if `adit` was not built with the profile of packages, unless that does not matter.
    pub(crate) fn require_dist(&self, adit: &Path) -> Result<()> {
        if self.any_profile { Ok(()) } else { versions::require_dist(adit) }
    }

    /// The same for the adit of these subjects, if they have one.
    fn require_dist_of(&self, subjects: &[Subject], programs: &Programs) -> Result<()> {
        let mut processes = subjects.iter().flat_map(|subject| &subject.process);
        let adit = processes.find(|process| process.program == "adit");
        let adit = adit.and_then(|process| programs.find(&process.program));
        adit.map_or(Ok(()), |adit| self.require_dist(&adit))
    }

    pub(crate) fn subjects(&self) -> Result<Vec<Subject>> {
        let mut all = subject::builtin();
        for path in &self.subject_file {
            let text = fs::read_to_string(path).with_context(|| format!("cannot read {}", path.display()))?;
            let added = Subject::parse(&text).with_context(|| format!("subject in {}", path.display()))?;
            all.retain(|subject| subject.name != added.name);
            all.push(added);
        }
        Ok(all)
    }
}

/// The subject called `name`, `NAME:METHOD`, or `CLIENT@SERVER` for halves of two.
pub(crate) fn find(all: &[Subject], name: &str) -> Result<Subject> {
    if let Some((client, server)) = name.split_once('@') {
        return find(all, client)?.at(&find(all, server)?);
    }
    let exact = |name: &str| all.iter().find(|subject| subject.name == name);
    let with_method = || {
        let (name, method) = name.split_once(':')?;
        Some(exact(name).filter(|subject| subject.method.is_some())?.with_method(method))
    };
    exact(name).cloned().or_else(with_method).with_context(|| {
        let names: Vec<&str> = all.iter().map(|subject| subject.name.as_str()).collect();
        format!("unknown subject: {name}\nhint: {}", names.join(", "))
    })
}

/// The adit binary to measure.
fn adit(programs: &ProgramArgs, helper: Helper) -> Result<PathBuf> {
    programs.programs(helper).find("adit").context("no adit: --adit PATH names it")
}

impl RunArgs {
    /// Whether figures go to a file.
    fn writes(&self) -> bool {
        self.json.is_some() || self.html.is_some() || self.svg.is_some()
    }
}

fn bench(args: &RunArgs, helper: Helper) -> Result<()> {
    let is_of_adit = matches!(&*args.scenario, "route" | "clash" | "capture" | "attack" | "probe");
    if is_of_adit && args.writes() {
        args.programs.require_dist(&adit(&args.programs, helper.clone())?)?;
    }
    if args.scenario == "route" {
        let adit = adit(&args.programs, helper)?;
        return route::run(&adit, args.json.as_deref());
    }
    if let Some(folder) = args.scenario.strip_prefix("clash:") {
        return clash::generate(Path::new(folder));
    }
    if args.scenario == "clash" {
        let programs = args.programs.programs(helper);
        let adit = programs.find("adit").context("no adit: --adit PATH names it")?;
        return clash::run(&adit, programs.find("mihomo").as_deref(), args.json.as_deref());
    }
    if args.scenario == "capture" {
        let programs = args.programs.programs(helper.clone());
        let adit = programs.find("adit").context("no adit: --adit PATH names it")?;
        let programs = capture::Programs { helper, adit, sing_box: programs.find("sing-box") };
        let out = &mut std::io::stdout().lock();
        return capture::run(&programs, args.rounds.unwrap_or(5), args.json.as_deref(), out);
    }
    if let "ssr" | "ssr-matrix" = args.scenario.as_str() {
        return ssr_bench(args, helper);
    }
    if args.scenario == "attack" || args.scenario == "probe" {
        let adit = adit(&args.programs, helper)?;
        raise_descriptor_limit()?;
        return match &*args.scenario {
            "attack" => attack::run(&adit, &args.measures, args.json.as_deref()),
            _ => ends::run(&adit, args.connections, args.json.as_deref()),
        };
    }
    let mut scenario = Scenario::find(&args.scenario)?;
    if !args.subjects.is_empty() {
        scenario.subjects.clone_from(&args.subjects);
    }
    if !args.measures.is_empty() {
        scenario.measures.clone_from(&args.measures);
    }
    if args.wire {
        let wire = ["wire1", "wire8"].map(str::to_owned);
        scenario.measures.retain(|measure| !wire.contains(measure));
        scenario.measures.extend(wire);
    }
    scenario.rounds = args.rounds.unwrap_or(scenario.rounds);
    scenario.seconds = args.seconds.unwrap_or(scenario.seconds);
    scenario.connections = args.connections.unwrap_or(scenario.connections);
    scenario.idle = args.idle.unwrap_or(scenario.idle);
    scenario.transfer = args.transfer.unwrap_or(scenario.transfer);
    scenario.udp_rate = args.udp_rate.unwrap_or(scenario.udp_rate);
    scenario.baseline = args.baseline.clone().unwrap_or(scenario.baseline);
    if !args.link.is_empty() {
        scenario.links.clone_from(&args.link);
    }
    let measures = Measure::parse_all(&scenario.measures)?;
    let mut sizes = scenario.sizes()?;
    if measures.contains(&Measure::Calls) {
        sizes.counter = Some(Counter::find()?);
    }

    let limit = raise_descriptor_limit()?;
    let room = usize::try_from(limit).unwrap_or(usize::MAX).saturating_sub(500) / 2;
    let idle = measures.iter().map(|measure| measure.idle(&sizes)).max().unwrap_or_default();
    ensure!(idle <= room, "descriptor limit allows {room} idle connections, not {idle}");

    let links = scenario.links.iter().map(|text| text.parse()).collect::<Result<Vec<Spec>>>()?;
    let mtu = args.mtu.or_else(|| args.wire.then_some(1500));
    // Before other threads exist, for they stay where they are.
    let network = if mtu.is_some() || !links.is_empty() { Some(Arc::new(Network::enter()?)) } else { None };
    subject::clean_up_on_signals()?;
    let programs = args.programs.programs(helper);
    let mut verdicts = Vec::new();
    for number in 0..links.len().max(1) {
        let site = match (&network, links.get(number), mtu) {
            (Some(network), Some(spec), _) => Some(Site::emulated(network, spec)?),
            (Some(network), None, Some(mtu)) => Some(Site::wired(network, mtu)?),
            _ => None,
        };
        let programs = match site {
            Some(site) => programs.clone().across(Arc::new(site)),
            None => programs.clone(),
        };
        verdicts.push(bench_once(args, &scenario, &measures, &sizes, &programs, number));
    }
    verdicts.into_iter().collect()
}

/// The table of ShadowsocksR, or its matrix: `--subjects` names programs or pairs.
fn ssr_bench(args: &RunArgs, helper: Helper) -> Result<()> {
    subject::clean_up_on_signals()?;
    let programs = args.programs.programs(helper);
    let all = args.programs.subjects()?;
    let is_matrix = args.scenario == "ssr-matrix";
    let default = if is_matrix { &ssr::PAIRS[..] } else { &ssr::PROGRAMS };
    let names: Vec<&str> = match args.subjects.as_slice() {
        [] => default.to_vec(),
        given => given.iter().map(String::as_str).collect(),
    };
    let subjects = names.into_iter().map(|name| find(&all, name)).collect::<Result<Vec<Subject>>>()?;
    let out = &mut std::io::stdout().lock();
    if is_matrix {
        return ssr::matrix(&subjects, &programs, args.json.as_deref(), out);
    }
    if args.writes() {
        args.programs.require_dist_of(&subjects, &programs)?;
    }
    let quick = Scenario::quick();
    let rounds = args.rounds.unwrap_or(5);
    let scenario = Scenario { rounds, seconds: args.seconds.unwrap_or(quick.seconds), ..quick };
    let plan = ssr::Plan { subjects, rounds, sizes: scenario.sizes()? };
    ssr::run(&plan, &programs, args.json.as_deref(), out)
}

/// Measures over one link, or none; `number` counts the links.
fn bench_once(
    args: &RunArgs,
    scenario: &Scenario,
    measures: &[Measure],
    sizes: &Sizes,
    programs: &Programs,
    number: usize,
) -> Result<()> {
    let all = args.programs.subjects()?;
    let (mut subjects, mut skipped) = (Vec::new(), Vec::new());
    for name in &scenario.subjects {
        let subject = find(&all, name)?;
        match subject.obstacle(programs) {
            Some(reason) => skipped.push((name.clone(), reason)),
            None => {
                let left_out = measures.iter().filter_map(|measure| measure.obstacle(&subject));
                skipped.extend(left_out.map(|reason| (name.clone(), reason)));
                subjects.push(subject);
            }
        }
    }
    ensure!(!subjects.is_empty(), "no subject can run: {skipped:?}");
    if args.writes() {
        args.programs.require_dist_of(&subjects, programs)?;
    }
    let plan = rounds::Plan {
        baselines: baselines(&scenario.baseline, &subjects),
        subjects,
        measures: measures.to_vec(),
        rounds: scenario.rounds,
        by_method: scenario.by_method.clone(),
        families: scenario.families.iter().map(|family| scenario::names(family)).collect(),
        sizes: sizes.clone(),
    };
    let report = rounds::run(&plan, programs, skipped)?;
    report.print(&plan, &mut std::io::stdout().lock())?;
    if let Some(path) = &args.json {
        report.write_json(&numbered(path, number))?;
    }
    if let Some(path) = &args.html {
        html::write(&report, &plan, &numbered(path, number))?;
    }
    if let Some(dir) = &args.svg {
        html::write_plots(&report, &plan, &numbered(dir, number))?;
    }
    report.verdict()
}

/// The path for what belongs to the link `number`: that of the first as given, `raw-2.json` for the second of `raw.json`.
fn numbered(path: &Path, number: usize) -> PathBuf {
    let Some(stem) = path.file_stem().filter(|_| number > 0) else { return path.to_owned() };
    let mut name = stem.to_owned();
    name.push(format!("-{}", number + 1));
    if let Some(extension) = path.extension() {
        name.push(".");
        name.push(extension);
    }
    path.with_file_name(name)
}

/// The baselines among `subjects`, a name without a method standing for all of its methods.
fn baselines(wanted: &str, subjects: &[Subject]) -> Vec<String> {
    let runs = |name: &str| {
        subjects.iter().any(|subject| {
            subject.name == name || subject.name.split_once(':').is_some_and(|(base, _)| base == name)
        })
    };
    wanted.split(',').map(str::trim).filter(|name| runs(name)).map(str::to_owned).collect()
}

fn integrity(args: &CheckArgs, helper: Helper) -> Result<()> {
    ensure!(args.connections > 0 && args.concurrency > 0, "at least one connection expected");
    raise_descriptor_limit()?;
    let subject = find(&args.programs.subjects()?, &args.subject)?;
    let programs = args.programs.programs(helper);
    if let Some(reason) = subject.obstacle(&programs) {
        bail!("{reason}");
    }
    let plan = check::Plan {
        connections: args.connections,
        concurrency: args.concurrency,
        seed: args.seed,
        max_size: args.max_size,
        half_close: !args.no_half_close,
        aborts: !args.no_aborts,
        patience: Duration::from_secs(args.deadline),
        settle: Duration::from_secs(args.settle),
    };
    subject::clean_up_on_signals()?;
    let bar = indicatif::ProgressBar::new(args.connections as u64);
    if let Ok(style) = indicatif::ProgressStyle::with_template("{bar:30} {pos}/{len}  {eta} left") {
        bar.set_style(style);
    }
    let outcome = check::run(&subject, &programs, &plan, &|| bar.inc(1))?;
    bar.finish_and_clear();
    check::print(&outcome, &subject.name, &mut std::io::stdout().lock())?;
    if let Some(path) = &args.json {
        let text = serde_json::to_string_pretty(&outcome)?;
        fs::write(path, text).with_context(|| format!("cannot write {}", path.display()))?;
    }
    ensure!(outcome.passed(), "integrity check failed: {} (seed {})", subject.name, args.seed);
    Ok(())
}

/// Raises the soft limit of descriptors to the hard one, for this process and the subjects, and returns it.
fn raise_descriptor_limit() -> Result<u64> {
    let (_, now) = adit_sys::process::raise_fd_limit().context("raise the descriptor limit")?;
    Ok(now)
}

/// The sizes that the command line and the scenario agree on must make sense.
impl Scenario {
    fn sizes(&self) -> Result<Sizes> {
        ensure!(self.rounds > 0, "at least one round expected");
        ensure!(self.seconds > 0.0 && self.seconds <= 3600.0, "seconds out of range: {}", self.seconds);
        ensure!(
            (10.0..=1e7).contains(&self.udp_rate),
            "datagrams per second out of range: {}",
            self.udp_rate
        );
        ensure!(
            self.connections > 0 && self.first_byte > 0 && self.idle > 0,
            "at least one connection expected"
        );
        ensure!(self.transfer > 0, "at least one byte expected in a transfer");
        Ok(Sizes {
            window: Duration::from_secs_f64(self.seconds),
            connections: self.connections,
            first_byte: self.first_byte,
            idle: self.idle,
            transfer: self.transfer,
            settle: Duration::from_secs(self.settle),
            counter: None,
            udp: udp::Sizes {
                rate: self.udp_rate,
                ..udp::Sizes::usual(Duration::from_secs_f64(self.seconds))
            },
        })
    }
}
