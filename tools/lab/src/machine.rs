//! The machine that the figures depend on: processor, kernel, TCP settings.

use std::fs;

use serde::Serialize;

/// The machine and the kernel settings of a run.
#[derive(Debug, Clone, Serialize)]
pub struct Machine {
    /// Processor model as the kernel names it.
    pub cpu: String,
    /// Processors that this process may use.
    pub cores: usize,
    /// Kernel release.
    pub kernel: String,
    /// Default congestion control of TCP sockets.
    pub congestion_control: String,
    /// `net.ipv4.tcp_rmem`: min, default, max in bytes.
    pub tcp_rmem: String,
    /// `net.ipv4.tcp_wmem`: min, default, max in bytes.
    pub tcp_wmem: String,
    /// `net.core.rmem_max` / `net.core.wmem_max` in bytes.
    pub core_max: String,
    /// Load averages when the run began.
    pub load: String,
}

impl Machine {
    /// Reads the facts from `/proc`; what cannot be read is "?".
    #[must_use]
    pub fn read() -> Self {
        let cpuinfo = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
        let cpu = cpuinfo
            .lines()
            .find_map(|line| line.strip_prefix("model name")?.split_once(": ").map(|(_, name)| name.trim()))
            .unwrap_or("?");
        Self {
            cpu: cpu.to_owned(),
            cores: std::thread::available_parallelism().map_or(1, usize::from),
            kernel: one_line("/proc/sys/kernel/osrelease"),
            congestion_control: one_line("/proc/sys/net/ipv4/tcp_congestion_control"),
            tcp_rmem: one_line("/proc/sys/net/ipv4/tcp_rmem"),
            tcp_wmem: one_line("/proc/sys/net/ipv4/tcp_wmem"),
            core_max: format!(
                "{} / {}",
                one_line("/proc/sys/net/core/rmem_max"),
                one_line("/proc/sys/net/core/wmem_max")
            ),
            load: one_line("/proc/loadavg"),
        }
    }

    /// A few lines for people.
    #[must_use]
    pub fn text(&self) -> String {
        format!(
            "machine: {} x {}, linux {}\ntcp: congestion control {}, rmem {}, wmem {}, core max {}\nload before: {}\n",
            self.cores,
            self.cpu,
            self.kernel,
            self.congestion_control,
            self.tcp_rmem,
            self.tcp_wmem,
            self.core_max,
            self.load
        )
    }
}

fn one_line(path: &str) -> String {
    fs::read_to_string(path)
        .map_or_else(|_| "?".to_owned(), |text| text.split_whitespace().collect::<Vec<_>>().join(" "))
}
