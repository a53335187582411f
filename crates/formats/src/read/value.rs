//! Values that several dialects write alike.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::time::Duration;

use adit_proto::wire::{Host, Target, TargetError};

use adit_model::shown::is_hidden;
use adit_model::{DnsTransport, NameServer, Secret};

/// A problem with a value, and advice.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Problem {
    pub(crate) text: String,
    pub(crate) hint: Option<String>,
}

impl Problem {
    #[cold]
    #[inline(never)]
    pub(crate) fn new(text: impl Into<String>) -> Self {
        Self { text: text.into(), hint: None }
    }

    #[cold]
    #[inline(never)]
    pub(crate) fn hint(mut self, hint: impl Into<String>) -> Self {
        self.hint = Some(hint.into());
        self
    }
}

/// Port of a name server that is written without one.
const DNS_PORT: u16 = 53;

/// Longest duration that can be written.
pub(crate) const MAX_DURATION: Duration = Duration::from_secs(366 * 24 * 3600);

/// Most addresses that one inbound listens on.
pub(crate) const MAX_LISTEN: usize = 64;

/// Most name servers of one outbound.
pub(crate) const MAX_DNS: usize = 16;

/// Longest pre-shared key, in bytes.
const MAX_PSK: usize = 1024;

/// Longest interface name, in bytes (`IFNAMSIZ - 1`).
const MAX_INTERFACE: usize = 15;

/// `address:port`, `[v6]:port`, `v6:port` (the last colon splits), `:port` and `*:port` (every address of both
/// families), `localhost:port` (127.0.0.1).
pub(crate) fn listen(text: &str) -> Result<SocketAddr, Problem> {
    let bad = |what: &str| {
        Problem::new(format!("{what}: {}", excerpt(text)))
            .hint("write an address and a port, for instance 127.0.0.1:1080, [::]:1080 or :1080")
    };
    let (host, port) = text.trim().rsplit_once(':').ok_or_else(|| bad("port is missing"))?;
    let port = port.trim().parse().map_err(|_| bad("bad port"))?;
    let ip = match host.trim() {
        "" | "*" => IpAddr::V6(Ipv6Addr::UNSPECIFIED),
        "localhost" => IpAddr::V4(Ipv4Addr::LOCALHOST),
        host => unbracketed(host).parse().map_err(|_| bad("bad address"))?,
    };
    Ok(SocketAddr::new(ip, port))
}

/// `address` or `address:port`; IPv6 in brackets when a port follows.
pub(crate) fn name_server(text: &str) -> Result<SocketAddr, Problem> {
    let text = text.trim();
    let server = match unbracketed(text).parse::<IpAddr>() {
        Ok(ip) => Some(SocketAddr::new(ip, DNS_PORT)),
        Err(_) => text.parse().ok(),
    };
    server.filter(|addr| addr.port() != 0).ok_or_else(|| {
        Problem::new(format!("bad name server: {}", excerpt(text)))
            .hint("write an address, with a port if it is not 53: 1.1.1.1, 1.1.1.1:5353 or [2606:4700:4700::1111]:53")
    })
}

/// A name server as [`name_server`] reads it, `system` or `refused`.
pub(crate) fn plain_server(text: &str) -> Result<NameServer, Problem> {
    match text.trim() {
        NameServer::SYSTEM => Ok(NameServer::System),
        DnsTransport::REFUSED => Ok(NameServer::Refused),
        text => name_server(text).map(NameServer::At),
    }
}

/// An address of this machine's own, to send from.
pub(crate) fn bind_address(text: &str) -> Result<IpAddr, Problem> {
    let address = unbracketed(text.trim()).parse::<IpAddr>().map(|ip| ip.to_canonical()).ok();
    address.filter(|ip| !ip.is_unspecified() && !ip.is_multicast()).ok_or_else(|| {
        Problem::new(format!("no address of a machine: {}", excerpt(text)))
            .hint("write one that this machine has, for instance 192.0.2.1")
    })
}

/// A mark of the firewall or the routing rules, in decimal or, behind `0x`, in hexadecimal; 0 is none.
pub(crate) fn mark(text: &str) -> Result<Option<u32>, Problem> {
    let text = text.trim();
    let mark = match text.strip_prefix("0x") {
        Some(digits) => u32::from_str_radix(digits, 16),
        None => text.parse(),
    };
    mark.map(|mark| (mark != 0).then_some(mark)).map_err(|_| Problem::new("no number from 0 to 4294967295"))
}

/// `host:port`, where port 0 is none.
pub(crate) fn target(text: &str) -> Result<Target, Problem> {
    let hint = "write a host and a port, for instance example.com:443 or [2001:db8::1]:443";
    match text.trim().parse::<Target>() {
        Ok(target) if target.port != 0 => Ok(target),
        Ok(_) => Err(Problem::new("port 0 cannot be dialled").hint(hint)),
        Err(TargetError::BadPort(port)) => {
            Err(Problem::new(format!("bad port: {}", excerpt(&port))).hint(hint))
        }
        Err(error) => Err(Problem::new(error.to_string()).hint(hint)),
    }
}

/// The name that obfs shows: it must be fit for a `Host` header or a server name.
pub(crate) fn obfs_host(text: &str) -> Result<Box<str>, Problem> {
    match Host::parse(text.as_bytes()) {
        Ok(_) => Ok(text.into()),
        Err(error) => Err(Problem::new(error.to_string())),
    }
}

/// Whole numbers with a unit of `ms`, `s`, `m`, `h` or `d`, added up: `90s`, `1m30s`, `1m 30s`.
pub(crate) fn duration(text: &str) -> Result<Duration, Problem> {
    let bad = || {
        Problem::new(format!("bad duration: {}", excerpt(text)))
            .hint("write a whole number with a unit of ms, s, m, h or d, for instance 10s or 1h30m")
    };
    let mut rest = text.trim();
    if rest.is_empty() {
        return Err(bad());
    }
    let mut sum = Duration::ZERO;
    while !rest.is_empty() {
        let (number, tail) = split_where(rest, |c| !c.is_ascii_digit());
        let (unit, tail) = split_where(tail, |c| !c.is_ascii_alphabetic());
        let number = number.parse::<u64>().map_err(|_| bad())?;
        let millis = number.checked_mul(unit_millis(unit).ok_or_else(bad)?).ok_or_else(bad)?;
        sum = sum.saturating_add(Duration::from_millis(millis));
        rest = tail.trim_start();
    }
    if sum > MAX_DURATION {
        return Err(Problem::new(format!("duration is longer than 366d: {}", excerpt(text))));
    }
    Ok(sum)
}

fn split_where(text: &str, stop: impl Fn(char) -> bool) -> (&str, &str) {
    text.split_at(text.find(stop).unwrap_or(text.len()))
}

fn unit_millis(unit: &str) -> Option<u64> {
    Some(match unit {
        "ms" => 1,
        "s" => 1000,
        "m" => 60_000,
        "h" => 3_600_000,
        "d" => 86_400_000,
        _ => return None,
    })
}

/// A text that [`duration`] reads as `value`, cut to milliseconds: `2h4m`, `90s` as `1m30s`.
pub(crate) fn duration_text(value: Duration) -> String {
    let mut rest = value.as_millis();
    if rest == 0 {
        return "0s".to_owned();
    }
    let mut text = String::new();
    for (unit, name) in [(86_400_000, "d"), (3_600_000, "h"), (60_000, "m"), (1000, "s"), (1, "ms")] {
        if rest >= unit {
            text.push_str(&format!("{}{name}", rest / unit));
            rest %= unit;
        }
    }
    text
}

/// A number of bytes: a whole number, with a unit of `KB`, `MB`, `GB`, `TB` (powers of 1000) or `KiB` to `TiB`.
pub(crate) fn size(text: &str) -> Result<u64, Problem> {
    let bad = || {
        Problem::new(format!("bad number of bytes: {}", excerpt(text)))
            .hint("write a whole number, at least 1, with a unit, for instance 500GB or 10MiB")
    };
    let (number, unit) = split_where(text.trim(), |c| !c.is_ascii_digit());
    let unit = UNITS.iter().find(|(name, _)| *name == unit.trim_start()).ok_or_else(bad)?.1;
    let size = number.parse::<u64>().ok().and_then(|number| number.checked_mul(unit));
    size.filter(|size| (1..=MAX_SIZE).contains(size)).ok_or_else(bad)
}

const UNITS: &[(&str, u64)] = &[
    ("TB", 1_000_000_000_000),
    ("TiB", 1 << 40),
    ("GB", 1_000_000_000),
    ("GiB", 1 << 30),
    ("MB", 1_000_000),
    ("MiB", 1 << 20),
    ("KB", 1000),
    ("KiB", 1 << 10),
    ("B", 1),
    ("", 1),
];

/// More than a line of 100 Gbit/s carries in two years.
const MAX_SIZE: u64 = 1 << 60;

/// A text that [`size`] reads as `value`.
pub(crate) fn size_text(value: u64) -> String {
    let whole = UNITS.iter().find(|(_, unit)| value.is_multiple_of(*unit));
    whole.map_or_else(String::new, |(name, unit)| format!("{}{name}", value / unit))
}

/// The name of a network interface.
pub(crate) fn interface(text: &str) -> Result<Box<str>, Problem> {
    if text.contains('/') || text.contains(char::is_whitespace) {
        return Err(Problem::new("no name of an interface"));
    }
    text_of(text, MAX_INTERFACE)
}

/// A pre-shared key.
pub(crate) fn psk(text: &str) -> Result<Secret, Problem> {
    let hint = |problem: Problem| problem.hint("`adit key` prints a good one");
    secret(text, MAX_PSK).map_err(|problem| if text.is_empty() { hint(problem) } else { problem })
}

/// Longest user name and password that SOCKS5 can carry, in bytes (RFC 1929, 2), and longest client id of Snell.
pub(crate) const MAX_CREDENTIAL: usize = 255;

/// A key or password of 1 to `max` bytes.
pub(crate) fn secret(text: &str, max: usize) -> Result<Secret, Problem> {
    check_text(text, max).map(|()| Secret::new(text))
}

/// A text of 1 to `max` bytes without control characters.
pub(crate) fn text_of(text: &str, max: usize) -> Result<Box<str>, Problem> {
    check_text(text, max)?;
    if text.contains(char::is_control) {
        return Err(Problem::new("holds a control character"));
    }
    Ok(text.into())
}

fn check_text(text: &str, max: usize) -> Result<(), Problem> {
    if text.is_empty() {
        return Err(Problem::new("empty"));
    }
    if text.len() > max {
        return Err(Problem::new(format!("longer than {max} bytes")));
    }
    if text.contains(char::REPLACEMENT_CHARACTER) {
        return Err(Problem::new("holds bytes that are no UTF-8"));
    }
    Ok(())
}

/// `v6` without the brackets around it.
fn unbracketed(host: &str) -> &str {
    host.strip_prefix('[').and_then(|h| h.strip_suffix(']')).unwrap_or(host)
}

/// The beginning of a harmless value, as it may stand in a message.
///
/// It ends at the first space, equals sign or quote, none of which belongs into such a value: a forgotten line end
/// must not draw a key from the next line into a message.
pub(crate) fn excerpt(text: &str) -> String {
    const MAX: usize = 60;
    let text = text.trim();
    let foreign = |c: char| c.is_whitespace() || matches!(c, '=' | '"' | '\'' | '`');
    let end = text.char_indices().enumerate().find(|(n, (_, c))| *n == MAX || foreign(*c));
    match end {
        Some((_, (cut, _))) => format!("{}...", &text[..cut]),
        None => text.to_owned(),
    }
}

/// A text as a basic string of TOML, which is a double-quoted scalar of YAML as well.
pub(crate) fn quote(text: &str) -> String {
    use std::fmt::Write as _;

    let mut out = String::with_capacity(text.len() + 2);
    out.push('"');
    for c in text.chars() {
        match c {
            '"' | '\\' => out.extend(['\\', c]),
            c if !is_printable(c) && u32::from(c) > 0xffff => {
                write!(out, "\\U{:08x}", u32::from(c)).expect("a string takes any text");
            }
            c if !is_printable(c) => write!(out, "\\u{:04x}", u32::from(c)).expect("a string takes any text"),
            c => out.push(c),
        }
    }
    out.push('"');
    out
}

/// Whether a character means itself and is seen, in TOML and in YAML.
fn is_printable(c: char) -> bool {
    !is_hidden(c) && !matches!(c, '\u{fffe}' | '\u{ffff}')
}

/// The candidate that `word` is most likely a slip of.
pub(crate) fn closest<'a>(word: &str, candidates: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    const MAX_WORD: usize = 40;
    if word.len() > MAX_WORD {
        return None;
    }
    let word = word.to_lowercase().replace('_', "-");
    let allowed = 1 + word.len() / 4;
    let distances = candidates.into_iter().map(|c| (distance(&word, &c.to_lowercase()), c));
    distances.filter(|(d, _)| *d <= allowed).min_by_key(|(d, _)| *d).map(|(_, c)| c)
}

/// Number of insertions, deletions, substitutions and swaps of neighbours between two texts.
fn distance(a: &str, b: &str) -> usize {
    let (a, b): (Vec<char>, Vec<char>) = (a.chars().collect(), b.chars().collect());
    let mut rows = vec![vec![0; b.len() + 1]; a.len() + 1];
    for i in 0..=a.len() {
        for j in 0..=b.len() {
            rows[i][j] = if i == 0 || j == 0 {
                i + j
            } else {
                let step = (rows[i - 1][j] + 1).min(rows[i][j - 1] + 1);
                let step = step.min(rows[i - 1][j - 1] + usize::from(a[i - 1] != b[j - 1]));
                let swapped = i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1];
                if swapped { step.min(rows[i - 2][j - 2] + 1) } else { step }
            };
        }
    }
    rows[a.len()][b.len()]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn listen_addresses() {
        for (text, want) in [
            ("127.0.0.1:1080", "127.0.0.1:1080"),
            (" 0.0.0.0:2333 ", "0.0.0.0:2333"),
            (":2333", "[::]:2333"),
            ("*:2333", "[::]:2333"),
            ("::0:2333", "[::]:2333"),
            ("[::1]:2333", "[::1]:2333"),
            ("::1:80", "[::1]:80"),
            ("localhost:80", "127.0.0.1:80"),
        ] {
            assert_eq!(listen(text).map(|a| a.to_string()).as_deref(), Ok(want), "{text}");
        }
        for text in
            ["", "1080", "127.0.0.1", "::1", "a:1", "127.0.0.1:65536", "[::1:2", ":", "fe80::1%eth0:1"]
        {
            assert!(listen(text).is_err(), "{text}");
        }
    }

    #[test]
    fn name_servers() {
        for (text, want) in [
            ("1.1.1.1", "1.1.1.1:53"),
            ("8.8.8.8:5353", "8.8.8.8:5353"),
            ("2606:4700:4700::1111", "[2606:4700:4700::1111]:53"),
            ("[::1]", "[::1]:53"),
            ("[::1]:54", "[::1]:54"),
        ] {
            assert_eq!(name_server(text).map(|a| a.to_string()).as_deref(), Ok(want), "{text}");
        }
        for text in ["", "dns.google", "1.1.1.1:0", "1.1.1.1:x"] {
            assert!(name_server(text).is_err(), "{text}");
        }
    }

    #[test]
    fn durations() {
        for (text, millis) in [
            ("10s", 10_000),
            ("500ms", 500),
            ("1m30s", 90_000),
            ("1h 5m", 3_900_000),
            ("0s", 0),
            ("2d", 172_800_000),
        ] {
            assert_eq!(duration(text), Ok(Duration::from_millis(millis)), "{text}");
        }
        for text in
            ["", "10", "s", "1.5s", "-1s", "10 s", "10x", "367d", "99999999999999999999s", "9999999999999d"]
        {
            assert!(duration(text).is_err(), "{text}");
        }
        for millis in [0, 1, 999, 1000, 60_000, 90_000, 3_600_000, 86_400_000] {
            let value = Duration::from_millis(millis);
            assert_eq!(duration(&duration_text(value)), Ok(value));
        }
    }

    #[test]
    fn slips() {
        let keys = ["listen", "users", "psk", "tcp-fast-open", "obfs-host"];
        for (word, want) in [
            ("lsiten", Some("listen")),
            ("user", Some("users")),
            ("tcp_fast_open", Some("tcp-fast-open")),
            ("obfshost", Some("obfs-host")),
            ("PSK", Some("psk")),
            ("colour", None),
        ] {
            assert_eq!(closest(word, keys), want, "{word}");
        }
    }
}
