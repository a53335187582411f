//! The traffic of a subject between its two halves during downloads of a fixed size.

use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow, ensure};

use super::flows::{Direction, Flow, Flows};
use super::live;
use crate::frame::parse;
use crate::link::INTERFACE;
use crate::load::Path;
use crate::measure::Values;
use crate::random::Stream;
use crate::subject::Running;
use crate::target::{Command, GOOD, Request};

/// Bytes of each download: what the published comparison used.
pub const LEN: u32 = 10_000_000;
const PATIENCE: Duration = Duration::from_secs(60);

/// Downloads [`LEN`] bytes over each of `count` connections at once while listening to the port that lies between the
/// processes of `running`, at the client's end if there is a network between them.
///
/// # Errors
/// If the interface cannot be opened, or a download fails.
pub fn drive(path: &Path, running: &Running, count: usize) -> Result<Values> {
    let link = running.link()?;
    let interface = match running.site() {
        Some(site) => {
            ensure!(site.emulator.is_none(), "segments cannot be counted on an emulated link");
            INTERFACE
        }
        None => "lo",
    };
    let stopped = AtomicBool::new(false);
    let listening = AtomicBool::new(false);
    let (flows, dropped) = thread::scope(|scope| {
        let capture = scope.spawn(|| {
            let mut flows = Flows::default();
            let mut seen = |captured: &super::file::Captured<'_>, _original: usize| {
                let packet = captured.link.and_then(|link| parse(link, captured.bytes));
                let packet = packet.filter(|packet| packet.from.port() == link || packet.to.port() == link);
                if let Some(packet) = packet {
                    flows.note(&packet, captured.time);
                }
                Ok(())
            };
            let mut stop = || {
                // Asked for the first time once the socket is open.
                listening.store(true, Ordering::Release);
                stopped.load(Ordering::Relaxed)
            };
            let dropped = live::capture(interface, Some(link), &mut seen, &mut stop);
            dropped.map(|dropped| (flows.finish(), dropped))
        });
        let deadline = Instant::now() + Duration::from_secs(5);
        while !listening.load(Ordering::Acquire) && !capture.is_finished() && Instant::now() < deadline {
            thread::sleep(Duration::from_millis(1));
        }
        let downloads = thread::scope(|scope| {
            let threads: Vec<_> =
                (0..count).map(|number| scope.spawn(move || download(path, number))).collect();
            threads
                .into_iter()
                .try_for_each(|thread| thread.join().map_err(|_| anyhow!("download panicked"))?)
        });
        // The last acknowledgements and the closing.
        thread::sleep(Duration::from_millis(200));
        stopped.store(true, Ordering::Relaxed);
        let captured = capture.join().map_err(|_| anyhow!("capture panicked"))??;
        downloads.map(|()| captured)
    })?;
    ensure!(dropped == 0, "the kernel had no room for {dropped} frames");
    let flows: Vec<Flow> = flows.into_iter().filter(|flow| flow.protocol == "tcp").collect();
    ensure!(
        flows.iter().any(|flow| flow.down.bytes > 0),
        "no payload from the server was seen on port {link}"
    );
    Ok(figures(&flows))
}

fn download(path: &Path, number: usize) -> Result<()> {
    let seed = number as u64 + 1;
    let request = Request { seed, down: LEN, ..Request::new(Command::Check) };
    let mut stream = path.dial(PATIENCE).context("open a download")?;
    std::io::Write::write_all(&mut stream, &request.emit())?;
    let received = Stream::new(!seed).receive(&stream, LEN.into())?;
    ensure!(received.right && received.bytes == u64::from(LEN), "a download was wrong or cut short");
    let mut verdict = [0];
    std::io::Read::read_exact(&mut stream, &mut verdict)?;
    ensure!(verdict[0] == GOOD, "the target got a wrong request");
    Ok(())
}

fn figures(flows: &[Flow]) -> Values {
    let up = |of: fn(&Direction) -> u64| flows.iter().map(|flow| of(&flow.up)).sum::<u64>() as f64;
    let down = |of: fn(&Direction) -> u64| flows.iter().map(|flow| of(&flow.down)).sum::<u64>() as f64;
    let data = down(|direction| direction.data);
    let bytes = down(|direction| direction.bytes);
    Values::from([
        ("data_down".to_owned(), data),
        ("full_down".to_owned(), down(|direction| direction.full)),
        ("merged_down".to_owned(), down(|direction| direction.merged)),
        ("bytes_down".to_owned(), bytes),
        ("bytes_per_segment".to_owned(), bytes / data.max(1.0)),
        ("empty_acks_up".to_owned(), up(|direction| direction.empty_acks)),
        ("empty_acks_down".to_owned(), down(|direction| direction.empty_acks)),
        ("data_up".to_owned(), up(|direction| direction.data)),
        ("again".to_owned(), down(|direction| direction.retransmitted)),
        ("connections".to_owned(), flows.len() as f64),
    ])
}
