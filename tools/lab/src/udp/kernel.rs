//! The kernel's counters while datagrams pass: drops at sockets, fragments, tracked connections.

use std::collections::BTreeMap;
use std::fs;

use anyhow::Result;

use crate::measure::Values;
use crate::process;
use crate::subject::Running;

/// Counters of the networks that a subject runs in, the lab's and a far one.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub(crate) struct Kernel {
    /// Datagrams that the subject's sockets had no room for.
    socket_drops: u64,
    /// Fragments that were made, of packets of all programs.
    fragments: u64,
    /// Packets that could not be put together again.
    not_joined: u64,
    /// Entries in the table of connections, where the kernel keeps one.
    tracked: Option<u64>,
}

impl Kernel {
    /// Reads the counters.
    ///
    /// # Errors
    /// If the subject's processes cannot be listed.
    pub(crate) fn read(running: &Running) -> Result<Self> {
        let mut sum = Self::of_network();
        if let Some(site) = running.site() {
            sum = sum.plus(site.network.far.within(|| Ok(Self::of_network()))?);
        }
        for (_, processes) in running.roles()? {
            // A process may end between the listing and the look at it.
            sum.socket_drops +=
                processes.iter().filter_map(|pid| process::datagram_drops(*pid).ok()).sum::<u64>();
        }
        Ok(sum)
    }

    /// Those of the calling thread's network.
    fn of_network() -> Self {
        let snmp = fs::read_to_string("/proc/thread-self/net/snmp").unwrap_or_default();
        let ip = parse_snmp(&snmp, "Ip:");
        let tracked = fs::read_to_string("/proc/sys/net/netfilter/nf_conntrack_count");
        Self {
            socket_drops: 0,
            fragments: ip.get("FragCreates").copied().unwrap_or(0),
            not_joined: ip.get("ReasmFails").copied().unwrap_or(0),
            tracked: tracked.ok().and_then(|text| text.trim().parse().ok()),
        }
    }

    fn plus(self, other: Self) -> Self {
        Self {
            socket_drops: self.socket_drops + other.socket_drops,
            fragments: self.fragments + other.fragments,
            not_joined: self.not_joined + other.not_joined,
            tracked: self.tracked.zip(other.tracked).map(|(a, b)| a + b),
        }
    }

    /// Enters what came on top of `before`; sockets that were closed take their drops along.
    pub(crate) fn enter(self, before: Self, values: &mut Values) {
        values.insert("socket_drops".into(), self.socket_drops.saturating_sub(before.socket_drops) as f64);
        values.insert("fragments".into(), self.fragments.saturating_sub(before.fragments) as f64);
        values.insert("not_joined".into(), self.not_joined.saturating_sub(before.not_joined) as f64);
        if let (Some(after), Some(before)) = (self.tracked, before.tracked) {
            values.insert("tracked".into(), after.saturating_sub(before) as f64);
        }
    }
}

/// The counters of one protocol: a line of names and a line of numbers, both with the name `which` in front.
fn parse_snmp<'t>(text: &'t str, which: &str) -> BTreeMap<&'t str, u64> {
    let mut lines = text.lines().filter_map(|line| line.strip_prefix(which));
    let (Some(names), Some(numbers)) = (lines.next(), lines.next()) else { return BTreeMap::new() };
    let numbers = numbers.split_whitespace().map(|number| number.parse().unwrap_or(0));
    names.split_whitespace().zip(numbers).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counters_have_names() {
        let text = "Ip: Forwarding ReasmFails FragCreates\nIp: 2 3 40\nIcmp: FragCreates\nIcmp: 9\n";
        let ip = parse_snmp(text, "Ip:");
        assert_eq!((ip["ReasmFails"], ip["FragCreates"]), (3, 40));
        assert!(parse_snmp(text, "Udp:").is_empty() && parse_snmp("", "Ip:").is_empty());
    }

    #[test]
    fn only_what_came_on_top_counts() {
        let before = Kernel { socket_drops: 5, fragments: 10, not_joined: 0, tracked: Some(2) };
        let after = Kernel { socket_drops: 3, fragments: 14, not_joined: 1, tracked: Some(4) };
        let mut values = Values::new();
        after.enter(before, &mut values);
        assert_eq!((values["socket_drops"], values["fragments"], values["not_joined"]), (0.0, 4.0, 1.0));
        assert_eq!(values["tracked"], 2.0);
    }
}
