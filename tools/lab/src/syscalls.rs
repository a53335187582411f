//! System calls of the subject's processes over a window of time.
//!
//! `/proc/PID/io` would be free, but its `syscr` counts `read` and `readv` only, not `recvfrom` and `recvmsg`.
//! Preferred is `perf stat` on the kernel's tracepoints, which hardly slows the subject; `strace -c` stops it
//! at each call, so that reads get larger than they are: its figures are a lower bound.

use std::fs;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde::Serialize;

const READS: &[&str] = &["read", "readv", "recvfrom", "recvmsg", "recvmmsg", "splice"];
const WRITES: &[&str] = &["write", "writev", "sendto", "sendmsg", "sendmmsg"];

/// Calls of some processes.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Calls {
    /// Calls that read, failed ones included.
    pub reads: f64,
    /// Calls that write, failed ones included.
    pub writes: f64,
    /// All calls.
    pub all: f64,
}

/// The program that counts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Counter {
    /// `perf stat`.
    Perf,
    /// `strace -c`.
    Strace,
}

impl Counter {
    /// The best that works here.
    ///
    /// # Errors
    /// If there is none.
    pub fn find() -> Result<Self> {
        let works = |program: &str, args: &[&str]| {
            let status =
                Command::new(program).args(args).stdout(Stdio::null()).stderr(Stdio::null()).status();
            status.is_ok_and(|status| status.success())
        };
        if works("perf", &["stat", "-e", "raw_syscalls:sys_enter", "true"]) {
            return Ok(Self::Perf);
        }
        if works("strace", &["-c", "-o", "/dev/null", "true"]) {
            return Ok(Self::Strace);
        }
        bail!("neither perf (with tracepoints) nor strace works here")
    }

    /// Its name for tables.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Perf => "perf",
            Self::Strace => "strace",
        }
    }

    /// Starts to count the calls of `processes`, threads and later children included, for `window`. `file` takes the result.
    ///
    /// # Errors
    /// If the program cannot be started.
    pub fn start(self, processes: &[u32], window: Duration, file: &Path) -> Result<Counting> {
        ensure!(!processes.is_empty(), "no process to count");
        let mut command;
        match self {
            Self::Perf => {
                let names = READS.iter().chain(WRITES).map(|name| format!("syscalls:sys_enter_{name}"));
                let mut events: Vec<String> = names.collect();
                events.push("raw_syscalls:sys_enter".into());
                let pids: Vec<String> = processes.iter().map(u32::to_string).collect();
                command = Command::new("perf");
                command.args(["stat", "-x", ",", "-e", &events.join(","), "-p", &pids.join(","), "-o"]);
                command.arg(file).args(["--", "sleep", &window.as_secs_f64().to_string()]);
            }
            Self::Strace => {
                command = Command::new("strace");
                command.args(["-f", "-c", "-o"]).arg(file);
                for process in processes {
                    command.args(["-p", &process.to_string()]);
                }
            }
        }
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        let child = command.spawn().with_context(|| format!("run {}", self.name()))?;
        Ok(Counting { counter: self, child, file: file.to_owned() })
    }
}

/// A count that is under way.
#[derive(Debug)]
pub struct Counting {
    counter: Counter,
    child: Child,
    file: std::path::PathBuf,
}

impl Counting {
    /// Ends the count and reads it.
    ///
    /// # Errors
    /// If the program failed or its output is not understood.
    pub fn finish(mut self) -> Result<Calls> {
        if self.counter == Counter::Strace {
            kill(Pid::from_raw(i32::try_from(self.child.id())?), Signal::SIGINT).context("stop strace")?;
        }
        self.child.wait().with_context(|| format!("wait for {}", self.counter.name()))?;
        // strace writes its table after it let go of the processes.
        thread::sleep(Duration::from_millis(20));
        let text =
            fs::read_to_string(&self.file).with_context(|| format!("cannot read {}", self.file.display()))?;
        let calls = match self.counter {
            Counter::Perf => parse_perf(&text),
            Counter::Strace => parse_strace(&text),
        };
        ensure!(calls.all > 0.0, "{} counted nothing:\n{text}", self.counter.name());
        Ok(calls)
    }
}

fn parse_perf(text: &str) -> Calls {
    let rows = text.lines().filter_map(|line| {
        let mut fields = line.split(',');
        let count = fields.next()?.parse::<f64>().ok()?;
        Some((fields.nth(1)?, count))
    });
    let mut calls = Calls::default();
    for (event, count) in rows {
        match event.strip_prefix("syscalls:sys_enter_") {
            Some(name) => calls.add(name, count),
            None if event == "raw_syscalls:sys_enter" => calls.all += count,
            None => {}
        }
    }
    calls
}

/// Columns: % time, seconds, usecs/call, calls, errors (may be empty), name.
fn parse_strace(text: &str) -> Calls {
    let mut calls = Calls::default();
    for line in text.lines() {
        let fields: Vec<&str> = line.split_whitespace().collect();
        let (Some(name), Some(Ok(count))) = (fields.last(), fields.get(3).map(|field| field.parse::<f64>()))
        else {
            continue;
        };
        if *name != "total" {
            calls.all += count;
            calls.add(name, count);
        }
    }
    calls
}

impl Calls {
    fn add(&mut self, name: &str, count: f64) {
        if READS.contains(&name) {
            self.reads += count;
        } else if WRITES.contains(&name) {
            self.writes += count;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn perf_output() {
        let text = "# started on x\n\n120,,syscalls:sys_enter_read,1,100.00,,\n30,,syscalls:sys_enter_recvfrom,1,100.00,,\n\
                    7,,syscalls:sys_enter_sendto,1,100.00,,\n200,,raw_syscalls:sys_enter,1,100.00,,\n";
        assert_eq!(parse_perf(text), Calls { reads: 150.0, writes: 7.0, all: 200.0 });
    }

    #[test]
    fn strace_output() {
        let text = "% time     seconds  usecs/call     calls    errors syscall\n------ ----------- ----------- --------- --------- ----------------\n \
                    60.00    0.000600           6       100        20 read\n 40.00    0.000400           4       100           writev\n\
                    ------ ----------- ----------- --------- --------- ----------------\n100.00    0.001000           5       200        20 total\n";
        assert_eq!(parse_strace(text), Calls { reads: 100.0, writes: 100.0, all: 200.0 });
    }
}
