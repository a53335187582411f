//! The counters, as the programs write them.

use super::Release;

/// The counters, in the program's own sense.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[expect(missing_docs, reason = "each is the column of its name")]
pub struct Counters {
    pub bytes_sent: u64,
    pub bytes_received: u64,
    pub max_conn: u64,
    pub active_opens: u64,
    pub passive_opens: u64,
    pub curr_estab: u64,
    pub in_errs: u64,
    pub in_csum_errors: u64,
    pub kcp_in_errors: u64,
    pub in_pkts: u64,
    pub out_pkts: u64,
    pub in_segs: u64,
    pub out_segs: u64,
    pub in_bytes: u64,
    pub out_bytes: u64,
    pub retrans_segs: u64,
    pub fast_retrans_segs: u64,
    pub early_retrans_segs: u64,
    pub lost_segs: u64,
    pub repeat_segs: u64,
    pub fec_parity_shards: u64,
    pub fec_errs: u64,
    pub fec_recovered: u64,
}

/// The columns with their values, without the time.
fn columns(release: Release, c: &Counters) -> Vec<(&'static str, u64)> {
    let mut columns = vec![
        ("BytesSent", c.bytes_sent),
        ("BytesReceived", c.bytes_received),
        ("MaxConn", c.max_conn),
        ("ActiveOpens", c.active_opens),
        ("PassiveOpens", c.passive_opens),
        ("CurrEstab", c.curr_estab),
        ("InErrs", c.in_errs),
        ("InCsumErrors", c.in_csum_errors),
        ("KCPInErrors", c.kcp_in_errors),
        ("InPkts", c.in_pkts),
        ("OutPkts", c.out_pkts),
        ("InSegs", c.in_segs),
        ("OutSegs", c.out_segs),
        ("InBytes", c.in_bytes),
        ("OutBytes", c.out_bytes),
        ("RetransSegs", c.retrans_segs),
        ("FastRetransSegs", c.fast_retrans_segs),
        ("EarlyRetransSegs", c.early_retrans_segs),
        ("LostSegs", c.lost_segs),
        ("RepeatSegs", c.repeat_segs),
    ];
    match release {
        Release::Debian => columns.extend([
            ("FECParityShards", c.fec_parity_shards),
            ("FECErrs", c.fec_errs),
            ("FECRecovered", c.fec_recovered),
            ("FECShortShards", 0),
        ]),
        Release::Last => columns.extend([
            ("FECFullShards", 0),
            ("FECParityShards", c.fec_parity_shards),
            ("FECErrs", c.fec_errs),
            ("FECRecovered", c.fec_recovered),
            ("FECShardSet", 0),
            ("FECShardMin", 0),
            ("RingBufferSndQueue", 0),
            ("RingBufferRcvQueue", 0),
            ("RingBufferSndBuffer", 0),
        ]),
    }
    columns
}

/// The first line of a file of counters.
pub fn header(release: Release) -> String {
    let names = columns(release, &Counters::default()).into_iter().map(|(name, _)| name);
    let names: Vec<_> = std::iter::once("Unix").chain(names).collect();
    names.join(",") + "\n"
}

/// A further line, of the time `unix` in seconds.
pub fn row(release: Release, unix: u64, counters: &Counters) -> String {
    let values = columns(release, counters).into_iter().map(|(_, value)| value);
    let values: Vec<_> = std::iter::once(unix).chain(values).map(|value| value.to_string()).collect();
    values.join(",") + "\n"
}

/// The text that the programs log at SIGUSR1.
pub fn dump(release: Release, counters: &Counters) -> String {
    let values = columns(release, counters).into_iter().map(|(name, value)| format!("{name}:{value}"));
    format!("KCP SNMP:&{{{}}}", values.collect::<Vec<_>>().join(" "))
}

/// The file's name at the time `unix` (UTC): Go's layout in its last part, its folders as they are.
pub fn expand(layout: &str, unix: u64) -> String {
    let (folder, name) = match layout.rfind('/') {
        Some(at) => layout.split_at(at + 1),
        None => ("", layout),
    };
    let (days, second) = (unix / 86_400, unix % 86_400);
    let (year, month, day) = civil(days);
    let parts = [
        ("2006", format!("{year:04}")),
        ("01", format!("{month:02}")),
        ("02", format!("{day:02}")),
        ("15", format!("{:02}", second / 3600)),
        ("04", format!("{:02}", second / 60 % 60)),
        ("05", format!("{:02}", second % 60)),
    ];
    let mut out = folder.to_owned();
    let mut rest = name;
    while let Some(next) = rest.chars().next() {
        match parts.iter().find(|(token, _)| rest.starts_with(token)) {
            Some((token, value)) => {
                out.push_str(value);
                rest = &rest[token.len()..];
            }
            None => {
                out.push(next);
                rest = &rest[next.len_utf8()..];
            }
        }
    }
    out
}

/// Year, month and day of a day since 1970 (the proleptic Gregorian calendar).
fn civil(days: u64) -> (u64, u64, u64) {
    let days = days + 719_468;
    let (era, of_era) = (days / 146_097, days % 146_097);
    let year = (of_era - of_era / 1460 + of_era / 36_524 - of_era / 146_096) / 365;
    let of_year = of_era - (365 * year + year / 4 - year / 100);
    let month = (5 * of_year + 2) / 153;
    let day = of_year - (153 * month + 2) / 5 + 1;
    let month = if month < 10 { month + 3 } else { month - 9 };
    (year + era * 400 + u64::from(month <= 2), month, day)
}
