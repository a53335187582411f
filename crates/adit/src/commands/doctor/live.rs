//! Questions to the network: the clock, a name, a server.

use std::time::Duration;

use adit_formats::advice::server_of;
use adit_formats::share::{Host, Target};
use adit_model::{CHECK_DNS, CHECK_URL, Dial, HttpUrl};
use adit_net::clock;
use adit_net::dial::Dialer;
use adit_net::rt::{self, Cores};
use adit_net::udp::Socket;
use anyhow::Context as _;

use super::{Finding, Level, judge};
use crate::commands::test_server;
use crate::machine::Root;

/// Longest wait for one answer.
const LIMIT: Duration = Duration::from_secs(3);
/// Port of SNTP.
const SNTP: u16 = 123;
/// Differences of clocks, in milliseconds: Shadowsocks 2022 allows 30 s between both ends.
const GOOD_CLOCK_MS: u64 = 2_000;
const BAD_CLOCK_MS: u64 = 15_000;
/// Bytes of a datagram that a QUIC client sends at least.
const QUIC_DATAGRAM: usize = 1_200;

/// Clock and names.
pub(super) fn checks(root: &Root, time_server: &str) -> anyhow::Result<Vec<Finding>> {
    let server = time_target(time_server).with_context(|| format!("bad --time-server: {time_server}"))?;
    let page = HttpUrl::parse(CHECK_URL).context("page of checks")?.target;
    Cores::block_on(async { vec![clock(root, &server).await, name(&page).await] }).map_err(Into::into)
}

fn time_target(text: &str) -> anyhow::Result<Target> {
    match text.parse::<Target>() {
        Ok(target) => Ok(target),
        Err(_) => Ok(Target { host: Host::parse(text.as_bytes())?, port: SNTP }),
    }
}

async fn clock(root: &Root, server: &Target) -> Finding {
    let dialer = Dialer::new(&Dial::default(), adit_engine::resolver(&[]));
    let asked = async {
        let addrs = dialer.resolve(server).await.map_err(|error| error.to_string())?;
        let first = addrs.first().copied().ok_or("no address")?;
        clock::offset(first, LIMIT).await.map_err(|error| error.to_string())
    };
    let wanted = "within 2 s of the true time";
    let command = "timedatectl set-ntp true";
    match rt::timeout(LIMIT * 2, asked).await.unwrap_or_else(|rt::Elapsed| Err("no answer".into())) {
        Ok(offset) => judge_clock(offset).fix(command),
        Err(_) if root.has("/run/systemd/timesync/synchronized") => {
            Finding::new("clock", Level::Pass, "set by systemd-timesyncd", wanted)
        }
        Err(error) => {
            let found = format!("not compared: {}: {error}", server.host);
            Finding::new("clock", Level::Warn, found, wanted).fix(command)
        }
    }
}

/// The judgement about the difference to the true time, in milliseconds, positive for a clock that is behind.
pub(super) fn judge_clock(offset: i64) -> Finding {
    let size = offset.unsigned_abs();
    let level = if size > BAD_CLOCK_MS { Level::Fail } else { judge(size <= GOOD_CLOCK_MS, Level::Warn) };
    let side = if offset > 0 { "behind" } else { "ahead" };
    let found = format!("{}.{:03} s {side}", size / 1000, size % 1000);
    Finding::new("clock", level, found, "within 2 s of the true time")
}

async fn name(page: &Target) -> Finding {
    let dialer = Dialer::new(&Dial::default(), adit_engine::resolver(&[]));
    let begun = rt::now();
    let resolved = rt::timeout(LIMIT, dialer.resolve(page)).await;
    let ms = rt::now().saturating_duration_since(begun).as_millis();
    let (level, found) = match resolved {
        Ok(Ok(addrs)) => {
            (judge(ms < 500, Level::Warn), format!("{} addresses of {} in {ms} ms", addrs.len(), page.host))
        }
        Ok(Err(error)) => {
            let cause =
                std::error::Error::source(&error).map_or_else(String::new, |cause| format!(": {cause}"));
            (Level::Fail, format!("{}: {error}{cause}", page.host))
        }
        Err(rt::Elapsed) => (Level::Fail, format!("no answer about {} within 3 s", page.host)),
    };
    Finding::new("DNS", level, found, "an answer within 500 ms")
        .fix("cat /etc/resolv.conf  # and try another server")
}

/// The steps of `adit test`, and the path to the server.
pub(super) fn peer(what: &str) -> anyhow::Result<Vec<Finding>> {
    let url = HttpUrl::parse(CHECK_URL).context("page of checks")?;
    let mut found = Vec::new();
    for (config, outbound) in test_server::read(what)? {
        let server = server_of(&config.outbounds[outbound]).cloned();
        let limit = LIMIT;
        let plan = test_server::Plan { config, outbound, url: url.clone(), dns: CHECK_DNS, limit };
        let report = Cores::block_on(Box::pin(test_server::probe::run(&plan)))??;
        let level = judge(report.verdict == test_server::Verdict::Ok, Level::Fail);
        let (first, hint) = report.message.split_once("\n  hint: ").unwrap_or((&report.message, "adit test"));
        let finding = Finding::new("peer", level, format!("{}: {first}", report.outbound), "all steps good");
        found.push(finding.fix(hint));
        if let Some(server) = server {
            found.extend(Cores::block_on(path_mtu(&server))?);
        }
    }
    Ok(found)
}

/// The largest datagram to the server, as far as the kernel knows its path.
async fn path_mtu(server: &Target) -> Option<Finding> {
    let dialer = Dialer::new(&Dial::default(), adit_engine::resolver(&[]));
    let addrs = rt::timeout(LIMIT, dialer.resolve(server)).await.ok()?.ok()?;
    let largest = Socket::largest_payload(*addrs.first()?)?;
    let wanted = format!("at least {} bytes: QUIC, and what surrounds it", QUIC_DATAGRAM + 100);
    let finding = Finding::new(
        "path MTU",
        judge(largest >= QUIC_DATAGRAM + 100, Level::Warn),
        format!("{largest} bytes fit a datagram to {}", server.host),
        wanted,
    );
    Some(finding.fix(format!("tracepath {}", server.host)))
}
