//! Counters of a proxy, its summary and its metrics.

use std::cell::Cell;
use std::fmt::Write as _;
use std::time::Duration;

/// Counters of a proxy. Bytes count in thousands when they are shown.
#[derive(Debug, Default)]
pub struct ProxyMetrics {
    /// Clients served until they left, since the last summary.
    connections: Cell<u64>,
    /// The same, of all time.
    all_connections: Cell<u64>,
    timeouts: Cell<u64>,
    /// Bytes from relays to clients since the last summary, and at summaries before.
    down: Cell<u64>,
    all_down: Cell<u64>,
    up: Cell<u64>,
    all_up: Cell<u64>,
}

fn add(cell: &Cell<u64>, more: u64) {
    cell.set(cell.get().saturating_add(more));
}

impl ProxyMetrics {
    pub(super) fn add_connection(&self) {
        add(&self.connections, 1);
        add(&self.all_connections, 1);
    }

    pub(super) fn add_timeout(&self) {
        add(&self.timeouts, 1);
    }

    /// Bytes from a relay to a client.
    pub(super) fn add_down(&self, bytes: usize) {
        add(&self.down, u64::try_from(bytes).unwrap_or(u64::MAX));
    }

    /// Bytes from a client to a relay.
    pub(super) fn add_up(&self, bytes: usize) {
        add(&self.up, u64::try_from(bytes).unwrap_or(u64::MAX));
    }

    /// The line for the period that ends now; the next one begins.
    pub(super) fn summarise(&self, period: Duration) -> String {
        let (down, up) = (self.down.take() / 1000, self.up.take() / 1000);
        add(&self.all_down, down);
        add(&self.all_up, up);
        let seconds = period.as_secs_f64().max(1.0);
        #[expect(clippy::cast_precision_loss, reason = "a rate needs no more than 52 bits")]
        let rate = |kilobytes: u64| kilobytes as f64 / seconds;
        format!(
            "In the last {}, there were {} completed successful connections. Traffic Relayed \u{2193} {down} KB \
             ({:.2} KB/s), \u{2191} {up} KB ({:.2} KB/s).",
            go_duration(period),
            self.connections.take(),
            rate(down),
            rate(up),
        )
    }

    /// The metrics, for Prometheus. Bytes are thousands, as of the last summary, although their names say bytes.
    pub fn render(&self) -> String {
        let mut out = String::new();
        let country = "{country=\"??\"}";
        for (name, help, label, value) in [
            (
                "connections_total",
                "The total number of successful connections handled by the snowflake proxy",
                country,
                &self.all_connections,
            ),
            (
                "connection_timeouts_total",
                "The total number of client connection attempts that failed after successful rendezvous",
                "",
                &self.timeouts,
            ),
            (
                "traffic_inbound_bytes_total",
                "The total in bound traffic by the snowflake proxy (KB)",
                "",
                &self.all_down,
            ),
            (
                "traffic_outbound_bytes_total",
                "The total out bound traffic by the snowflake proxy (KB)",
                "",
                &self.all_up,
            ),
        ] {
            let name = format!("tor_snowflake_proxy_{name}");
            writeln!(out, "# HELP {name} {help}\n# TYPE {name} counter\n{name}{label} {}", value.get())
                .expect("a string takes everything");
        }
        out
    }
}

/// A duration as Go writes it: `1h0m0s`, `1m30s`, `2.5s`.
pub fn go_duration(duration: Duration) -> String {
    let seconds = duration.as_secs();
    let (hours, minutes) = (seconds / 3600, seconds / 60 % 60);
    let rest = duration.as_secs_f64() % 60.0;
    match (hours, minutes) {
        (0, 0) => format!("{rest}s"),
        (0, _) => format!("{minutes}m{rest}s"),
        _ => format!("{hours}h{minutes}m{rest}s"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_summary_is_upstreams() {
        let metrics = ProxyMetrics::default();
        metrics.add_connection();
        metrics.add_connection();
        metrics.add_down(13_020_999);
        metrics.add_up(16_500);
        let want = "In the last 1m0s, there were 2 completed successful connections. Traffic Relayed \u{2193} 13020 KB \
                    (217.00 KB/s), \u{2191} 16 KB (0.27 KB/s).";
        assert_eq!(metrics.summarise(Duration::from_secs(60)), want);
        assert!(
            metrics.summarise(Duration::from_secs(3600)).starts_with("In the last 1h0m0s, there were 0 ")
        );
        let text = metrics.render();
        for line in [
            "tor_snowflake_proxy_connections_total{country=\"??\"} 2",
            "tor_snowflake_proxy_traffic_inbound_bytes_total 13020",
            "tor_snowflake_proxy_traffic_outbound_bytes_total 16",
            "tor_snowflake_proxy_connection_timeouts_total 0",
        ] {
            assert!(text.lines().any(|found| found == line), "{line}\n{text}");
        }
    }
}
