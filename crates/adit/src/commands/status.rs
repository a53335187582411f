//! `adit status`: the state of a running adit.

use std::io::{self, IsTerminal};
use std::path::{Path, PathBuf};
use std::time::Duration;

use adit_core::{ChoiceStatus, GroupStatus, HealthStatus, LastError, MemberStatus, Status, ask_status};
use anyhow::Context as _;
use comfy_table::{CellAlignment, Table, presets};

use crate::cli::{FileArgs, StatusArgs};
use crate::commands::files;
use crate::print::{self, bytes, seconds};

/// The socket when neither the command line nor a configuration names one.
const DEFAULT: &str = "/run/adit/adit.sock";

/// Users that fit a screen and the one after it.
const MOST_USERS: usize = 100;
/// Errors that are shown; the rest is in the JSON.
const MOST_ERRORS: usize = 20;

/// Interval at which `--watch` asks.
const EVERY: Duration = Duration::from_secs(1);

pub(super) fn run(args: &StatusArgs) -> anyhow::Result<()> {
    let socket = socket(args.socket.as_ref(), &args.files.given())?;
    let terminal = io::stdout().is_terminal();
    loop {
        let status = ask(&socket)?;
        if args.watch && terminal && !args.json {
            // Home, and clear what was below.
            print::data("\u{1b}[H\u{1b}[2J")?;
        }
        if args.json {
            print::data(format_args!("{}\n", serde_json::to_string(&status)?))?;
        } else {
            print::data(render(&status))?;
        }
        if !args.watch {
            return Ok(());
        }
        std::thread::sleep(EVERY);
    }
}

/// The control socket that is given, else that of the configuration, else the usual one.
pub(super) fn socket(given: Option<&PathBuf>, files: &FileArgs) -> anyhow::Result<PathBuf> {
    if let Some(path) = given {
        return Ok(path.clone());
    }
    let named = !files.config.is_empty();
    match files::load(files) {
        Ok(loaded) => Ok(loaded.config.admin.unwrap_or_else(|| DEFAULT.into())),
        Err(found) if named => Err(found.into()),
        Err(_) => Ok(DEFAULT.into()),
    }
}

fn ask(socket: &Path) -> anyhow::Result<Status> {
    ask_status(socket).with_context(|| {
        format!(
            "no answer on {} (hint: [admin] socket = \"...\" in the configuration that runs, and --socket here)",
            socket.display()
        )
    })
}

fn render(status: &Status) -> String {
    let mut out = format!(
        "adit {}, process {}, up {}, event loops: {}\n\n",
        status.version,
        status.pid,
        seconds(status.uptime_s),
        status.cores
    );
    let mut table = new_table(
        &["inbound", "protocol", "listen", "outbound"],
        &["open", "accepted", "requests", "up", "down"],
    );
    for i in &status.inbounds {
        let listen: Vec<String> = i.listen.iter().map(ToString::to_string).collect();
        table.add_row([
            i.name.clone(),
            i.protocol.clone(),
            listen.join("\n"),
            i.outbound.clone(),
            i.open.to_string(),
            i.accepted.to_string(),
            i.requests.to_string(),
            bytes(i.up_bytes),
            bytes(i.down_bytes),
        ]);
    }
    out.push_str(&format!("{table}\n\n"));
    let mut table =
        new_table(&["outbound", "protocol"], &["dialled", "failed", "reused", "kept idle", "early closes"]);
    for o in &status.outbounds {
        let counts = [o.dialled, o.failed, o.reused].map(|count| count.to_string());
        let [dialled, failed, reused] = counts;
        table.add_row([
            o.name.clone(),
            o.protocol.clone(),
            dialled,
            failed,
            reused,
            o.idle.to_string(),
            o.early_closes.to_string(),
        ]);
    }
    out.push_str(&format!("{table}\n"));
    out.push_str(&budget(status));
    out.push_str(&carriers(status));
    out.push_str(&groups(status));
    out.push_str(&users(status));
    out.push_str(&refused(status));
    out.push_str(&errors(status));
    out
}

/// The resources of the process, and how much of them is in use.
fn budget(status: &Status) -> String {
    let Some(budget) = &status.budget else { return String::new() };
    let shares = &budget.shares;
    let size = |len: usize| bytes(u64::try_from(len).unwrap_or(u64::MAX));
    let mut table = new_table(&["budget"], &["in use", "at most"]);
    table.add_row(["streams", &budget.streams.to_string(), &shares.streams.to_string()]);
    table.add_row(["UDP flows", &budget.flows.to_string(), &shares.flows.to_string()]);
    table.add_row(["unauthenticated", "", &shares.unauthenticated.to_string()]);
    table.add_row(["for slow readers", &size(budget.rests), &size(shares.rests)]);
    table.add_row(["blocks", "", &size(shares.blocks)]);
    table.add_row(["carriers", "", &size(shares.carriers)]);
    let (descriptors, own) = (shares.descriptors, shares.own);
    let (memory, from) = (size(shares.memory), shares.memory_from.name());
    format!(
        "\n{table}\n{descriptors} descriptors ({own} kept back), {memory} of memory ({from}), ended for want of them: {}\n",
        budget.evicted
    )
}

/// Sessions that carry streams, and why each sends no more than it does; nothing where there are none.
fn carriers(status: &Status) -> String {
    let mut table = new_table(
        &["carrier", "peer", "limited by"],
        &["streams", "rtt", "rate/s", "loss", "window", "sent again", "parity", "held"],
    );
    let inbounds = status.inbounds.iter().map(|inbound| (&inbound.name, &inbound.carrier));
    let outbounds = status.outbounds.iter().map(|outbound| (&outbound.name, &outbound.carrier));
    let mut notes = String::new();
    for (name, carrier) in inbounds.chain(outbounds) {
        let Some(carrier) = carrier else { continue };
        if carrier.totals.unopened > 0 {
            let count = carrier.totals.unopened;
            notes +=
                &format!("{name}: {count} datagrams did not open: key or crypt differ, or somebody probes\n");
        }
        for s in &carrier.sessions {
            table.add_row([
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
    let lead = if notes.is_empty() { "" } else { "\n" };
    let sessions = if table.is_empty() { String::new() } else { format!("\n{table}\n") };
    format!("{sessions}{lead}{notes}")
}

/// The members of groups, and which of them are used.
fn groups(status: &Status) -> String {
    let mut table = new_table(
        &["group", "member", "for", "used", "state"],
        &["latency", "loss", "failed in a row", "weight", "score"],
    );
    let mut reasons = String::new();
    for group in &status.groups {
        for transport in ["tcp", "udp"] {
            let choice = if transport == "tcp" { &group.tcp } else { &group.udp };
            for member in &group.members {
                let health = if transport == "tcp" { &member.tcp } else { &member.udp };
                let Some(health) = health else { continue };
                let is_used = choice.as_ref().is_some_and(|choice| choice.member == member.name);
                table.add_row(row(group, member, transport, is_used, health));
            }
            if let Some(ChoiceStatus { member, why }) = choice {
                reasons.push_str(&format!("\n{}, {transport}: {member}, {why}", group.name));
            }
        }
    }
    if table.is_empty() { String::new() } else { format!("\n{table}\n{reasons}\n") }
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

/// Users that have done something; nothing where nobody has. All of them are in the JSON.
fn users(status: &Status) -> String {
    let mut table = new_table(&["user", "of", "state"], &["open", "requests", "up", "down", "used", "quota"]);
    let (mut shown, mut quiet) = (0, 0);
    for inbound in &status.inbounds {
        for user in &inbound.users {
            if user.requests == 0 || shown == MOST_USERS {
                quiet += 1;
                continue;
            }
            shown += 1;
            table.add_row([
                user.name.clone(),
                inbound.name.clone(),
                user.limited.clone().unwrap_or_default(),
                user.open.to_string(),
                user.requests.to_string(),
                bytes(user.up_bytes),
                bytes(user.down_bytes),
                bytes(user.used_bytes),
                user.quota_bytes.map_or_else(|| "-".to_owned(), bytes),
            ]);
        }
    }
    let rest = if quiet > 0 { format!("users not shown: {quiet}\n") } else { String::new() };
    let users = if shown == 0 { String::new() } else { format!("\n{table}\n") };
    if users.is_empty() && rest.is_empty() { String::new() } else { format!("{users}{rest}") }
}

/// The last error of each part, those that go on first; empty if there are none.
fn errors(status: &Status) -> String {
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
        out.push_str(&format!(
            "\n{kind} {name}: {text}\n  {code}, {count} times since {since} ago, last {last} ago, {state}\n"
        ));
    }
    if out.is_empty() { out } else { format!("\nlast errors (adit explain CODE tells more)\n{out}") }
}

/// A table of refused connections by cause; empty if there are none.
fn refused(status: &Status) -> String {
    let mut table = new_table(&["refused by", "cause"], &["connections"]);
    for inbound in &status.inbounds {
        for (cause, count) in &inbound.refused {
            table.add_row([inbound.name.clone(), cause.clone(), count.to_string()]);
        }
    }
    if table.is_empty() { String::new() } else { format!("\n{table}\n") }
}

/// A table without frames: columns of text, then columns of numbers.
pub(super) fn new_table(texts: &[&str], numbers: &[&str]) -> Table {
    let mut table = Table::new();
    table.load_style(presets::NOTHING).set_header(texts.iter().chain(numbers));
    for index in texts.len()..texts.len() + numbers.len() {
        if let Some(column) = table.column_mut(index) {
            column.set_cell_alignment(CellAlignment::Right);
        }
    }
    table
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
        let text = render(&serde_json::from_str(text).unwrap());
        assert!(text.starts_with("adit 1.2.3, process 7, up 1m 1s, event loops: 2\n\n"), "{text}");
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
                "\n1024 descriptors (64 kept back), 134 MB of memory (cgroup v1), ended for want of them: 6\n"
            ),
            "{text}"
        );
        assert!(text.contains("\nfastest, tcp: home, it is near\n"), "{text}");
    }
}
