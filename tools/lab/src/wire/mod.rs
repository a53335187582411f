//! Packet inspection: what a program puts on the wire, from a capture file or a live interface.

pub mod audit;
pub mod file;
pub mod flows;
pub mod live;
pub mod measure;
mod screen;
pub mod tap;

use std::cell::RefCell;
use std::fs::{self, File};
use std::io::{BufReader, BufWriter, Write};
use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use clap::Args as ClapArgs;
use comfy_table::{Cell, CellAlignment, ContentArrangement, Table, presets};
use console::Term;
use serde::Serialize;

use crate::frame::{Packet, parse};
use crate::svg;
use flows::{Direction, Flow, Flows};
use screen::Screen;

/// Points of the plot of sizes over time.
const MAX_POINTS: usize = 20_000;

/// Look at packets: sizes, empty acknowledgements, retransmissions, round trips.
#[derive(Debug, ClapArgs)]
#[command(arg_required_else_help = true)]
pub struct Args {
    #[command(flatten)]
    source: Source,
    /// Print so many flows, those with most bytes.
    #[arg(long, default_value_t = 20)]
    top: usize,
    /// Write all flows as JSON to this file.
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// Write a plot of sizes over time to this file.
    #[arg(long, value_name = "FILE")]
    svg: Option<PathBuf>,
}

/// Source of packets.
#[derive(Debug, ClapArgs)]
pub struct Source {
    /// A capture: pcap or pcapng.
    #[arg(conflicts_with = "interface")]
    file: Option<PathBuf>,
    /// Listen on this interface instead, until an interrupt or --seconds; takes CAP_NET_RAW.
    #[arg(long, value_name = "NAME")]
    interface: Option<String>,
    /// Stop listening after so many seconds.
    #[arg(long, requires = "interface")]
    seconds: Option<f64>,
    /// Only packets from or to this port.
    #[arg(long)]
    port: Option<u16>,
    /// Write what is seen on the interface as pcapng to this file.
    #[arg(long, value_name = "FILE", requires = "interface")]
    write: Option<PathBuf>,
}

impl Source {
    /// Whether there is one.
    pub(crate) fn is_given(&self) -> bool {
        self.file.is_some() || self.interface.is_some()
    }
}

/// Everything that was seen.
#[derive(Debug, Serialize)]
pub struct Seen {
    /// Frames of all kinds.
    pub frames: u64,
    /// Frames that carry neither TCP nor UDP, or have a link layer that is unknown here.
    pub others: u64,
    /// Frames that the kernel had no room for.
    pub dropped: u64,
    /// Packets of flows beyond those that are kept.
    pub beyond: u64,
    /// The flows, those with most bytes first.
    pub flows: Vec<Flow>,
}

/// Prints what `args` ask for.
///
/// # Errors
/// If the source cannot be read, or a file not be written.
pub fn run(args: &Args) -> Result<()> {
    let mut points = Points { first: None, points: Vec::new() };
    let mut note = |packet: &Packet<'_>, time: Duration| points.note(packet, time);
    let seen = see(&args.source, if args.svg.is_some() { Some(&mut note) } else { None })?;
    let terminal = Term::stdout();
    // For a file or another program it is Markdown, of any width.
    let width = terminal.is_term().then(|| usize::from(terminal.size().1));
    print(&seen, args.top, width, &mut std::io::stdout().lock())?;
    if let Some(path) = &args.json {
        let text = serde_json::to_string_pretty(&seen)?;
        fs::write(path, text).with_context(|| format!("cannot write {}", path.display()))?;
    }
    if let Some(path) = &args.svg {
        let plot = svg::scatter(
            "payload by time",
            ("s", "bytes"),
            &points.points,
            &["low to high port", "high to low"],
        );
        fs::write(path, plot).with_context(|| format!("cannot write {}", path.display()))?;
    }
    Ok(())
}

/// Payload sizes over time, the first so many.
struct Points {
    first: Option<Duration>,
    points: Vec<(f64, f64, usize)>,
}

impl Points {
    fn note(&mut self, packet: &Packet<'_>, time: Duration) {
        let first = *self.first.get_or_insert(time);
        if self.points.len() < MAX_POINTS {
            let class = usize::from(packet.from.port() > packet.to.port());
            self.points.push((time.saturating_sub(first).as_secs_f64(), packet.len as f64, class));
        }
    }
}

/// Told of every packet that counts.
type Note<'n> = &'n mut dyn FnMut(&Packet<'_>, Duration);

/// Counts what one frame carries.
#[derive(Default)]
struct Counting {
    flows: Flows,
    frames: u64,
    others: u64,
    port: Option<u16>,
}

impl Counting {
    /// Whether the frame counts.
    fn frame(&mut self, captured: &file::Captured<'_>, note: Option<&mut Note<'_>>) -> bool {
        self.frames += 1;
        let Some(packet) = captured.link.and_then(|link| parse(link, captured.bytes)) else {
            self.others += 1;
            return false;
        };
        if self.port.is_some_and(|port| packet.from.port() != port && packet.to.port() != port) {
            return false;
        }
        self.flows.note(&packet, captured.time);
        if let Some(note) = note {
            note(&packet, captured.time);
        }
        true
    }

    fn finish(self, dropped: u64) -> Seen {
        let beyond = self.flows.beyond;
        Seen { frames: self.frames, others: self.others, dropped, beyond, flows: self.flows.finish() }
    }
}

/// Reads `source` to its end.
///
/// # Errors
/// If it cannot be read.
pub fn see(source: &Source, mut note: Option<Note<'_>>) -> Result<Seen> {
    let mut counting = Counting { port: source.port, ..Counting::default() };
    if let Some(path) = &source.file {
        let open = File::open(path).with_context(|| format!("cannot read {}", path.display()))?;
        let mut reader =
            file::Reader::new(BufReader::new(open)).with_context(|| path.display().to_string())?;
        while let Some(captured) = reader.next_frame().with_context(|| path.display().to_string())? {
            counting.frame(&captured, note.as_mut());
        }
        return Ok(counting.finish(0));
    }
    let Some(interface) = &source.interface else { bail!("a file or --interface expected") };
    ensure!(source.seconds.is_none_or(|seconds| seconds > 0.0 && seconds < 1e7), "seconds out of range");
    let mut writer = match &source.write {
        Some(path) => {
            let file = File::create(path).with_context(|| format!("cannot write {}", path.display()))?;
            Some(file::Writer::new(BufWriter::new(file))?)
        }
        None => None,
    };
    let until = source.seconds.map(Duration::from_secs_f64);
    let counting = RefCell::new(counting);
    let mut screen = Screen::new(interface);
    let mut seen = |captured: &file::Captured<'_>, original: usize| {
        if counting.borrow_mut().frame(captured, note.as_mut())
            && let Some(writer) = &mut writer
        {
            writer.frame(captured.time, captured.bytes, original)?;
        }
        Ok(())
    };
    let mut tick = |time: Duration| screen.tick(&counting.borrow(), time);
    let dropped = live::listen(interface, until, &mut seen, &mut tick)?;
    drop(screen);
    if let Some(writer) = writer {
        writer.finish()?;
    }
    Ok(counting.into_inner().finish(dropped))
}

/// Writes a table of the `top` flows, or some lines for each where a terminal of `width` columns has no room for it.
///
/// # Errors
/// If `out` cannot be written.
pub fn print(seen: &Seen, top: usize, width: Option<usize>, out: &mut dyn Write) -> Result<()> {
    let table = table(seen.flows.iter().take(top)).to_string();
    let fits = |width| table.lines().all(|line| line.chars().count() <= width);
    if width.is_none_or(fits) {
        writeln!(out, "{table}")?;
    } else {
        seen.flows.iter().take(top).try_for_each(|flow| narrow(flow, out))?;
    }
    let shown = seen.flows.len().min(top);
    writeln!(
        out,
        "{} frames, {} neither TCP nor UDP; {shown} of {} flows shown",
        seen.frames,
        seen.others,
        seen.flows.len()
    )?;
    if seen.dropped > 0 {
        writeln!(out, "the kernel had no room for {} frames: counts are too low", seen.dropped)?;
    }
    if seen.beyond > 0 {
        writeln!(out, "{} packets belong to flows beyond the first {}", seen.beyond, flows::MAX_FLOWS)?;
    }
    if seen.flows.iter().any(|flow| flow.up.merged + flow.down.merged > 0) {
        writeln!(
            out,
            "merged: pieces larger than a segment, since offload is on; the wire has more segments"
        )?;
    }
    Ok(())
}

/// Two rows per flow.
fn table<'f>(flows: impl Iterator<Item = &'f Flow>) -> Table {
    let mut table = Table::new();
    table.load_style(presets::ASCII_MARKDOWN).set_content_arrangement(ContentArrangement::Disabled);
    table.set_header([
        "flow",
        "way",
        "packets",
        "data",
        "bytes",
        "B/data",
        "full",
        "of B",
        "merged",
        "empty ACKs",
        "<128",
        "<512",
        "<1024",
        "rest",
        "again",
        "RTT p50 us",
        "first payloads",
    ]);
    for flow in flows {
        let name = format!("{} {} > {}", flow.protocol, flow.client, flow.server);
        table.add_row(row(&name, "up", &flow.up, flow.full_size));
        table.add_row(row("", "down", &flow.down, flow.full_size));
    }
    table
}

/// The same figures in lines of at most 80 columns.
fn narrow(flow: &Flow, out: &mut dyn Write) -> Result<()> {
    writeln!(out, "{} {} > {}", flow.protocol, flow.client, flow.server)?;
    for (way, direction) in [("up", &flow.up), ("down", &flow.down)] {
        let Direction { packets, data, bytes, full, merged, empty_acks, retransmitted, .. } = direction;
        let mean = direction.mean();
        let [smallest, small, middle, rest] = direction.classes;
        let trip = direction.trip(50).map_or_else(|| "-".to_owned(), |trip| format!("{trip:.0} us"));
        writeln!(out, "  {way:<4} {bytes} B in {data} of {packets} packets, {mean:.0} B each")?;
        writeln!(out, "       {full} full of {} B, {merged} merged, {retransmitted} again", flow.full_size)?;
        writeln!(out, "       {empty_acks} empty ACKs, round trip p50 {trip}")?;
        writeln!(out, "       sizes <128: {smallest}, <512: {small}, <1024: {middle}, rest: {rest}")?;
        let first: Vec<String> = direction.first.iter().map(ToString::to_string).collect();
        if !first.is_empty() {
            writeln!(out, "       first payloads {}", first.join(" "))?;
        }
    }
    Ok(())
}

fn row(flow: &str, way: &str, direction: &Direction, full: usize) -> Vec<Cell> {
    let first: Vec<String> = direction.first.iter().map(ToString::to_string).collect();
    let numbers = [
        direction.packets.to_string(),
        direction.data.to_string(),
        direction.bytes.to_string(),
        format!("{:.0}", direction.mean()),
        direction.full.to_string(),
        full.to_string(),
        direction.merged.to_string(),
        direction.empty_acks.to_string(),
        direction.classes[0].to_string(),
        direction.classes[1].to_string(),
        direction.classes[2].to_string(),
        direction.classes[3].to_string(),
        direction.retransmitted.to_string(),
        direction.trip(50).map_or_else(|| "-".to_owned(), |trip| format!("{trip:.0}")),
    ];
    let mut cells = vec![Cell::new(flow), Cell::new(way)];
    cells.extend(numbers.into_iter().map(|text| Cell::new(text).set_alignment(CellAlignment::Right)));
    cells.push(Cell::new(first.join(" ")));
    cells
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::frame::Transport;

    #[test]
    fn a_terminal_without_room_gets_lines() {
        let mut flows = Flows::default();
        let (from, to) = ("[2001:db8::1:2:3:4]:50000".parse().unwrap(), "[2001:db8::5]:443".parse().unwrap());
        for n in 0..40 {
            let packet =
                Packet { from, to, transport: Transport::Udp, len: 1200, payload: b"x", fragment: false };
            flows.note(&packet, Duration::from_millis(n));
        }
        let seen = Seen { frames: 40, others: 0, dropped: 0, beyond: 0, flows: flows.finish() };
        let text = |width| {
            let mut out = Vec::new();
            print(&seen, 20, width, &mut out).unwrap();
            String::from_utf8(out).unwrap()
        };
        let narrow = text(Some(80));
        assert!(narrow.lines().all(|line| line.len() <= 80), "{narrow}");
        assert!(narrow.contains("48000 B in 40 of 40 packets, 1200 B each"), "{narrow}");
        for wide in [text(None), text(Some(400))] {
            assert!(wide.starts_with("| flow"), "{wide}");
        }
    }
}
