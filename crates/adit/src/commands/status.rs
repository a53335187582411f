//! `adit status`: the state of a running adit, or of each of several.

use std::io::{self, IsTerminal};
use std::path::PathBuf;
use std::time::Duration;

use adit_engine::{ChoiceStatus, GroupStatus, HealthStatus, InboundStatus, LastError, MemberStatus, Status};
use adit_model::shown;

use crate::commands::cli::StatusArgs;
use crate::commands::running_process::{self, Found};
use crate::print::{self, bytes, bytes_like, rate, seconds};
use crate::table::{Grid, number, text, wrapped};

/// Users that fit a screen and the one after it.
const MOST_USERS: usize = 100;
/// Errors that are shown; the rest is in the JSON.
const MOST_ERRORS: usize = 20;

/// Interval at which `--watch` asks.
const EVERY: Duration = Duration::from_secs(1);

pub(crate) fn run(args: &StatusArgs) -> anyhow::Result<()> {
    let mut place = args.place.clone();
    place.files.config.extend_from_slice(&args.paths);
    let terminal = io::stdout().is_terminal();
    let mut before = Vec::new();
    loop {
        // Those that have ended meanwhile are left out, unless nothing is left.
        let sockets = running_process::all(&place)?;
        let all = ask_all(&sockets)?;
        if args.watch && terminal && !args.json {
            // Home, and clear what was below.
            print::data("\u{1b}[H\u{1b}[2J")?;
        }
        print::data(show(&all, &before, args)?)?;
        if !args.watch {
            return Ok(());
        }
        before = all;
        std::thread::sleep(EVERY);
    }
}

fn ask_all(sockets: &[PathBuf]) -> anyhow::Result<Vec<Found>> {
    let mut answers: Vec<_> = sockets.iter().map(|socket| running_process::ask_at(socket)).collect();
    if answers.iter().all(Result::is_err)
        && let Some(first) = answers.pop()
    {
        return first.map(|found| vec![found]);
    }
    Ok(answers.into_iter().flatten().collect())
}

fn show(all: &[Found], before: &[Found], args: &StatusArgs) -> anyhow::Result<String> {
    if args.json {
        let objects = all.iter().map(|found| serde_json::to_string(&found.status));
        return Ok(objects.map(|object| Ok(object? + "\n")).collect::<serde_json::Result<String>>()?);
    }
    let width = print::width();
    let [found] = all else {
        return Ok(running_process::list(all, width) + "\n--pid shows one of them\n");
    };
    let earlier = before.iter().find(|earlier| earlier.status.pid == found.status.pid);
    let look = Look { earlier: earlier.map(|earlier| &earlier.status), width, all_users: args.users };
    Ok(shown::lines(&render(&found.status, &look)).into_owned())
}

/// The manner in which a state is shown.
struct Look<'a> {
    /// The state before, for rates.
    earlier: Option<&'a Status>,
    /// Columns of a line.
    width: usize,
    /// Whether users without traffic are shown too.
    all_users: bool,
}

impl Look<'_> {
    /// Milliseconds since the state before.
    fn millis(&self, status: &Status) -> u64 {
        self.earlier.map_or(0, |earlier| status.uptime_ms.saturating_sub(earlier.uptime_ms))
    }

    /// The rate of a counter of this inbound, if there is a state before.
    fn rate(&self, status: &Status, inbound: &InboundStatus, count: fn(&InboundStatus) -> u64) -> String {
        let earlier =
            self.earlier.and_then(|earlier| earlier.inbounds.iter().find(|of| of.name == inbound.name));
        let moved = earlier.map(|earlier| count(inbound).saturating_sub(count(earlier)));
        moved.map_or_else(String::new, |moved| rate(moved, self.millis(status)))
    }
}

fn render(status: &Status, look: &Look<'_>) -> String {
    let health = match &status.health.reason {
        Some(reason) => format!("not ready\n{}", shown::line(reason)),
        None => "ready".to_owned(),
    };
    let Status { version, pid, cores, .. } = status;
    let up = seconds(status.uptime_s);
    let mut out = format!("adit {version}, process {pid}, up {up}, event loops: {cores}, {health}\n\n");
    out.push_str(&inbounds(status, look));
    out.push('\n');
    out.push_str(&outbounds(status, look.width));
    let parts = [budget(status), carriers(status), groups(status), users(status, look), refused(status)];
    for (part, notes) in parts {
        let part = part.render(look.width);
        let lead = if part.is_empty() && notes.is_empty() { "" } else { "\n" };
        out = out + lead + &part + &notes;
    }
    out + &errors(status, look.width)
}

fn inbounds(status: &Status, look: &Look<'_>) -> String {
    let mut columns = vec![
        text("inbound"),
        text("protocol").rank(3),
        text("listen").rank(1),
        text("outbound").rank(2),
        number("open"),
        number("accepted").rank(5),
        number("requests").rank(4),
        number("up"),
        number("down"),
    ];
    let rates = [number("up now"), number("down now")];
    if look.earlier.is_some() {
        columns.extend(rates);
    }
    let mut grid = Grid::new(&columns);
    for i in &status.inbounds {
        let listen: Vec<String> = i.listen.iter().map(ToString::to_string).collect();
        let mut row = vec![
            i.name.clone(),
            i.protocol.clone(),
            listen.join(" "),
            i.outbound.clone(),
            i.open.to_string(),
            i.accepted.to_string(),
            i.requests.to_string(),
            bytes(i.up_bytes),
            bytes(i.down_bytes),
        ];
        if look.earlier.is_some() {
            row.push(look.rate(status, i, |inbound| inbound.up_bytes));
            row.push(look.rate(status, i, |inbound| inbound.down_bytes));
        }
        grid.push(row);
    }
    grid.render(look.width)
}

fn outbounds(status: &Status, width: usize) -> String {
    let mut grid = Grid::new(&[
        text("outbound"),
        text("protocol").rank(1),
        number("dialled"),
        number("failed"),
        number("reused").rank(3),
        number("kept idle").rank(4),
        number("early closes").rank(2),
    ]);
    for o in &status.outbounds {
        let [dialled, failed, reused] = [o.dialled, o.failed, o.reused].map(|count| count.to_string());
        let (idle, early) = (o.idle.to_string(), o.early_closes.to_string());
        grid.row([o.name.clone(), o.protocol.clone(), dialled, failed, reused, idle, early]);
    }
    grid.render(width)
}

/// A table, and lines behind it.
type Part = (Grid, String);

/// The resources of the process, and how much of them is in use.
fn budget(status: &Status) -> Part {
    let mut table = Grid::new(&[text("budget"), number("in use"), number("at most")]);
    let Some(budget) = &status.budget else { return (table, String::new()) };
    let shares = &budget.shares;
    let size = |len: usize| bytes(u64::try_from(len).unwrap_or(u64::MAX));
    for (name, used, most) in [
        ("streams", budget.streams.to_string(), shares.streams.to_string()),
        ("UDP flows", budget.flows.to_string(), shares.flows.to_string()),
        ("unauthenticated", String::new(), shares.unauthenticated.to_string()),
        ("for slow readers", size(budget.rests), size(shares.rests)),
        ("blocks", String::new(), size(shares.blocks)),
        ("carriers", String::new(), size(shares.carriers)),
    ] {
        table.row([name.into(), used, most]);
    }
    let (descriptors, own) = (shares.descriptors, shares.own);
    let (memory, from) = (size(shares.memory), shares.memory_from.name());
    let notes = format!(
        "{descriptors} descriptors ({own} kept back), {memory} of memory ({from})\nended for want of them: {}\n",
        budget.evicted
    );
    (table, notes)
}

/// Sessions that carry streams, and why each sends no more than it does; nothing where there are none.
fn carriers(status: &Status) -> Part {
    let mut table = Grid::new(&[
        text("carrier"),
        text("peer"),
        text("limited by").rank(5),
        number("streams").rank(4),
        number("rtt"),
        number("rate/s"),
        number("loss"),
        number("window").rank(1),
        number("sent again").rank(2),
        number("parity").rank(3),
        number("held").rank(6),
    ]);
    let inbounds = status.inbounds.iter().map(|inbound| (&inbound.name, &inbound.carrier));
    let outbounds = status.outbounds.iter().map(|outbound| (&outbound.name, &outbound.carrier));
    let mut notes = String::new();
    for (name, carrier) in inbounds.chain(outbounds) {
        let Some(carrier) = carrier else { continue };
        if carrier.totals.unopened > 0 {
            let (name, count) = (shown::line(name), carrier.totals.unopened);
            notes +=
                &format!("{name}: {count} datagrams did not open: key or crypt differ, or somebody probes\n");
        }
        for s in &carrier.sessions {
            table.row([
                name.clone(),
                s.peer.clone(),
                s.limit.clone(),
                s.streams.to_string(),
                format!("{}.{} ms", s.rtt_us / 1000, s.rtt_us / 100 % 10),
                bytes(s.rate),
                format!("{}.{} %", s.loss_permille / 10, s.loss_permille % 10),
                format!("{}/{}", s.under_way, s.send_window),
                format!("{} of {}", s.sent_again, s.sent),
                s.parity.map_or_else(|| "off".to_owned(), |(data, parity)| format!("{data}/{parity}")),
                bytes(u64::try_from(s.held).unwrap_or(u64::MAX)),
            ]);
        }
    }
    if let Some(memory) = &status.carrier_memory {
        let [used, peak, most] =
            [memory.used, memory.peak, memory.most].map(|n| bytes(u64::try_from(n).unwrap_or(u64::MAX)));
        notes += &format!("sessions hold {used} together, {peak} at the most so far, and may hold {most}\n");
    }
    if !notes.is_empty() && !table.is_empty() {
        notes.insert(0, '\n');
    }
    (table, notes)
}

/// The members of groups, and which of them are used.
fn groups(status: &Status) -> Part {
    let mut table = Grid::new(&[
        text("group"),
        text("member"),
        text("for").rank(1),
        text("used"),
        text("state"),
        number("latency"),
        number("loss").rank(2),
        number("failed in a row").rank(5),
        number("weight").rank(4),
        number("score").rank(3),
    ]);
    let mut reasons = String::new();
    for group in &status.groups {
        for transport in ["tcp", "udp"] {
            let choice = if transport == "tcp" { &group.tcp } else { &group.udp };
            for member in &group.members {
                let health = if transport == "tcp" { &member.tcp } else { &member.udp };
                let Some(health) = health else { continue };
                let is_used = choice.as_ref().is_some_and(|choice| choice.member == member.name);
                table.row(row(group, member, transport, is_used, health));
            }
            if let Some(ChoiceStatus { member, why }) = choice {
                let reason = format!("{}, {transport}: {member}, {why}", group.name);
                reasons.push_str(&format!("\n{}", shown::line(&reason)));
            }
        }
    }
    if table.is_empty() {
        return (table, String::new());
    }
    (table, reasons + "\n")
}

fn row(
    group: &GroupStatus,
    member: &MemberStatus,
    transport: &str,
    is_used: bool,
    health: &HealthStatus,
) -> [String; 10] {
    let state = match &health.failure {
        Some(failure) => format!("{}: {failure}", health.state),
        None => health.state.clone(),
    };
    [
        group.name.clone(),
        member.name.clone(),
        transport.to_owned(),
        if is_used { "yes" } else { "" }.to_owned(),
        state,
        milliseconds(health.latency_us),
        format!("{} %", health.loss_percent),
        health.failures.to_string(),
        format!("{} %", health.weight),
        milliseconds(health.score_us),
    ]
}

fn milliseconds(micros: Option<u64>) -> String {
    let text = |micros: u64| format!("{}.{} ms", micros / 1000, micros % 1000 / 100);
    micros.map_or_else(|| "-".to_owned(), text)
}

/// Users that have done something, or all; nothing where there are none.
fn users(status: &Status, look: &Look<'_>) -> Part {
    let mut table = Grid::new(&[
        text("user"),
        text("of").rank(2),
        text("state"),
        number("open"),
        number("requests").rank(3),
        number("up"),
        number("down"),
        number("used").rank(1),
        number("quota"),
    ]);
    let (mut shown, mut quiet) = (0, 0);
    for inbound in &status.inbounds {
        for user in &inbound.users {
            if !look.all_users && (user.requests == 0 || shown == MOST_USERS) {
                quiet += 1;
                continue;
            }
            shown += 1;
            let quota = user.quota_bytes;
            table.row([
                user.name.clone(),
                inbound.name.clone(),
                user.limited.clone().unwrap_or_default(),
                user.open.to_string(),
                user.requests.to_string(),
                bytes(user.up_bytes),
                bytes(user.down_bytes),
                bytes_like(user.used_bytes, quota),
                quota.map_or_else(|| "-".to_owned(), |quota| bytes_like(quota, Some(quota))),
            ]);
        }
    }
    let rest =
        if quiet > 0 { format!("users not shown: {quiet}; --users shows all\n") } else { String::new() };
    (table, rest)
}

/// The last error of each part, those that go on first; empty if there are none.
fn errors(status: &Status, width: usize) -> String {
    let inbounds = status.inbounds.iter().map(|inbound| ("inbound", &inbound.name, &inbound.last_error));
    let outbounds =
        status.outbounds.iter().map(|outbound| ("outbound", &outbound.name, &outbound.last_error));
    let users = status.inbounds.iter().flat_map(|inbound| &inbound.users);
    let users = users.map(|user| ("user", &user.name, &user.last_error));
    let found = inbounds.chain(outbounds).chain(users);
    let mut found: Vec<_> =
        found.filter_map(|(kind, name, error)| Some((kind, name, error.as_ref()?))).collect();
    found.sort_by_key(|(_, _, error)| (!error.active, std::cmp::Reverse(error.last)));
    let now = adit_net::rt::unix_time();
    let mut out = String::new();
    for (kind, name, error) in found.iter().take(MOST_ERRORS) {
        let LastError { code, text, count, since, last, active } = error;
        let (since, last) = (seconds(now.saturating_sub(*since)), seconds(now.saturating_sub(*last)));
        let state = if *active { "goes on" } else { "not now" };
        let times = if *count == 1 {
            format!("once, {last} ago")
        } else {
            format!("{count} times since {since} ago, last {last} ago")
        };
        let lines = [format!("{kind} {name}: {text}"), format!("  {code}, {times}, {state}")];
        out.push('\n');
        lines.iter().for_each(|line| out.push_str(&wrapped(&shown::line(line), width)));
    }
    if out.is_empty() { out } else { format!("\nlast errors (adit explain CODE tells more)\n{out}") }
}

/// A table of refused connections by cause; empty if there are none.
fn refused(status: &Status) -> Part {
    let mut table = Grid::new(&[text("refused by"), text("cause"), number("connections")]);
    for inbound in &status.inbounds {
        for (cause, count) in &inbound.refused {
            table.row([inbound.name.clone(), cause.clone(), count.to_string()]);
        }
    }
    (table, String::new())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_table_of_each_kind() {
        let text = r#"{"version":"1.2.3","uptime_s":61,"pid":7,"cores":2,
            "inbounds":[{"name":"home","protocol":"snell","listen":["0.0.0.0:1"],"outbound":"direct","accepted":5,
            "open":1,"requests":4,"up_bytes":1500,"down_bytes":2000000,"refused":{"authentication":3},
            "users":[{"name":"ann","requests":9,"up_bytes":5000,"down_bytes":7000,"open":2,"used_bytes":12000,
            "quota_bytes":12000,"limited":"quota used up"},
            {"name":"bob","requests":0,"up_bytes":0,"down_bytes":0}]}],
            "outbounds":[{"name":"direct","protocol":"direct","dialled":4,"failed":1,"reused":0,"idle":0,
            "early_closes":0,"last_error":{"code":"ADIT-NET-02","text":"cannot reach it","count":5,"since":10,
            "last":75,"active":false}}],
            "groups":[{"name":"fastest","tcp":{"member":"home","why":"it is near"},"udp":null,"members":[
            {"name":"home","tcp":{"state":"dead","failure":"no-answer","latency_us":1250,"loss_percent":25,
            "failures":2,"weight":80,"score_us":9990},"udp":null}]}],
            "budget":{"shares":{"descriptors":1024,"own":64,"streams":840,"flows":480,"unauthenticated":210,
            "unauthenticated_per_source":300,"memory":134217728,"memory_from":"cgroup-v1","blocks":13000000,
            "rests":14000000,"carriers":33554432},"streams":17,"flows":3,"descriptors_peak":99,"rests":2500,
            "rests_peak":7000,"evicted":6},
            "carrier_memory":{"used":131072,"peak":5000000,"most":64000000}}"#;
        let status: Status = serde_json::from_str(text).unwrap();
        let look = Look { earlier: None, width: usize::MAX, all_users: false };
        let text = render(&status, &look);
        assert!(text.starts_with("adit 1.2.3, process 7, up 1m 1s, event loops: 2, ready\n\n"), "{text}");
        for word in [
            "home",
            "0.0.0.0:1",
            "1.5 KB",
            "2.0 MB",
            "authentication",
            "early closes",
            "yes",
            "dead: no-answer",
            "1.2 ms",
            "25 %",
            "80 %",
            "9.9 ms",
            "ann",
            "quota used up",
            "12 KB",
            "users not shown: 1",
            "\noutbound direct: cannot reach it\n  ADIT-NET-02, 5 times since ",
        ] {
            assert!(text.contains(word), "{word}: {text}");
        }
        assert!(
            text.contains("\nsessions hold 131 KB together, 5.0 MB at the most so far, and may hold 64 MB\n"),
            "{text}"
        );
        assert!(
            text.contains(
                "\n1024 descriptors (64 kept back), 134 MB of memory (cgroup v1)\nended for want of them: 6\n"
            ),
            "{text}"
        );
        assert!(text.contains("\nfastest, tcp: home, it is near\n"), "{text}");
        rates_and_users(status);
    }

    /// On 80 columns, with the state of a second before.
    fn rates_and_users(earlier: Status) {
        let mut status = earlier.clone();
        status.uptime_ms = 2_000;
        status.inbounds[0].down_bytes += 25_000_000;
        status.inbounds[0].users[0].quota_bytes = Some(10 << 20);
        let look = Look { earlier: Some(&earlier), width: 80, all_users: true };
        let text = render(&status, &look);
        assert!(text.lines().all(|line| line.chars().count() <= 80), "{text}");
        assert!(text.contains("12 MB/s") && text.contains("0 B/s"), "{text}");
        assert!(text.contains("10 MiB") && text.contains("bob") && !text.contains("not shown"), "{text}");
    }
}
