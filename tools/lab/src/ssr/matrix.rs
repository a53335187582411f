//! Pairs that understand each other: `adit bench run ssr-matrix`, adit against other programs, each in both roles.
//!
//! Each protocol goes through each obfs once with one method, and each method once with `origin` and `plain`. A pair
//! carries verified streams of up to 100 KB, and a datagram there and back. A combination that a program does not know is
//! left out where its subject says so (`methods`); elsewhere the program refuses to start, and the cell says so.

use std::io::Write;
use std::net::{Ipv4Addr, SocketAddr, UdpSocket};
use std::path::Path as FilePath;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use serde::Serialize;

use crate::check;
use crate::load;
use crate::subject::{Programs, Running, Subject};
use crate::target::datagram_echo;

const METHOD: &str = "aes-128-cfb";
const PROTOCOLS: [&str; 17] = [
    "origin",
    "verify_simple",
    "verify_deflate",
    "verify_sha1",
    "auth_sha1",
    "auth_sha1_v2",
    "auth_sha1_v4",
    "auth_aes128",
    "auth_aes128_md5",
    "auth_aes128_sha1",
    "auth_aes128_fast",
    "auth_chain_a",
    "auth_chain_b",
    "auth_chain_c",
    "auth_chain_d",
    "auth_chain_e",
    "auth_chain_f",
];
const OBFS: [&str; 6] =
    ["plain", "http_simple", "http_post", "random_head", "tls1.2_ticket_auth", "tls1.2_ticket_fastauth"];
const METHODS: [&str; 31] = [
    "none",
    "table",
    "rc4",
    "rc4-md5",
    "rc4-md5-6",
    "aes-128-cfb",
    "aes-192-cfb",
    "aes-256-cfb",
    "aes-128-ctr",
    "aes-192-ctr",
    "aes-256-ctr",
    "aes-128-ofb",
    "aes-192-ofb",
    "aes-256-ofb",
    "aes-128-cfb8",
    "aes-256-cfb8",
    "aes-128-cfb1",
    "aes-256-cfb1",
    "bf-cfb",
    "camellia-128-cfb",
    "camellia-192-cfb",
    "camellia-256-cfb",
    "cast5-cfb",
    "des-cfb",
    "rc2-cfb",
    "seed-cfb",
    "salsa20",
    "chacha20",
    "chacha20-ietf",
    "xchacha20",
    "xsalsa20",
];
/// Time for one datagram.
const PATIENCE: Duration = Duration::from_secs(1);
const TRIES: usize = 3;
const TEXT: &[u8] = b"a datagram of the lab";

/// The result of one pair with one combination.
#[derive(Debug, Serialize)]
struct Outcome {
    pair: String,
    row: String,
    /// Why streams failed.
    streams: Option<String>,
    /// Why datagrams failed.
    datagrams: Option<String>,
}

/// Tries all combinations of `pairs`, prints a line for each, and writes them to `json`.
///
/// # Errors
/// If no pair can run, or one of them failed.
pub(crate) fn run(
    pairs: &[Subject],
    programs: &Programs,
    json: Option<&FilePath>,
    out: &mut dyn Write,
) -> Result<()> {
    let echo = datagram_echo()?;
    let mut outcomes = Vec::new();
    for pair in pairs {
        for row in rows() {
            let subject = pair.with_method(&row);
            if let Some(reason) = subject.obstacle(programs) {
                writeln!(out, "{:<28} {row:<48} left out: {reason}", pair.name)?;
                continue;
            }
            let outcome = try_pair(&pair.name, &subject, programs, echo);
            let word = |error: &Option<String>| error.clone().unwrap_or_else(|| "ok".to_owned());
            let (streams, datagrams) = (word(&outcome.streams), word(&outcome.datagrams));
            writeln!(out, "{:<28} {row:<48} tcp {streams}; udp {datagrams}", pair.name)?;
            outcomes.push(outcome);
        }
    }
    if let Some(path) = json {
        let text = serde_json::to_string_pretty(&outcomes)?;
        std::fs::write(path, text).with_context(|| format!("cannot write {}", path.display()))?;
    }
    let failed = outcomes.iter().filter(|one| one.streams.is_some() || one.datagrams.is_some()).count();
    ensure!(!outcomes.is_empty(), "no pair can run: --program NAME=PATH names programs");
    ensure!(failed == 0, "{failed} of {} combinations failed", outcomes.len());
    Ok(())
}

fn rows() -> impl Iterator<Item = String> {
    let mixed = PROTOCOLS
        .iter()
        .flat_map(|protocol| OBFS.iter().map(move |obfs| format!("{METHOD}/{protocol}/{obfs}")));
    mixed.chain(METHODS.iter().map(|method| format!("{method}/origin/plain")))
}

fn try_pair(pair: &str, subject: &Subject, programs: &Programs, echo: SocketAddr) -> Outcome {
    let plan = check::Plan {
        connections: 4,
        concurrency: 2,
        seed: 1,
        max_size: 100_000,
        half_close: false,
        aborts: false,
        patience: Duration::from_secs(3),
        settle: Duration::ZERO,
    };
    let streams = match check::streams(subject, programs, &plan) {
        Ok(outcome) if outcome.has_right_bytes() => None,
        Ok(outcome) => Some(outcome.examples.first().cloned().unwrap_or_else(|| "wrong bytes".to_owned())),
        Err(error) => Some(short(&error)),
    };
    let datagrams = datagram(subject, programs, echo).err().map(|error| short(&error));
    Outcome { pair: pair.to_owned(), row: subject.method.clone().unwrap_or_default(), streams, datagrams }
}

/// The first line.
fn short(error: &anyhow::Error) -> String {
    format!("{error:#}").lines().next().unwrap_or_default().to_owned()
}

/// One datagram to `echo` and back, through an association of SOCKS5.
fn datagram(subject: &Subject, programs: &Programs, echo: SocketAddr) -> Result<()> {
    let running = Running::start(subject, programs, echo)?;
    let (_control, relay) = load::associate(running.address).context("SOCKS5")?;
    let socket = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0))?;
    socket.set_read_timeout(Some(PATIENCE))?;
    let SocketAddr::V4(to) = echo else { anyhow::bail!("the echo is not IPv4") };
    let mut packet = vec![0, 0, 0, 1];
    packet.extend(to.ip().octets());
    packet.extend(to.port().to_be_bytes());
    packet.extend(TEXT);
    let mut answer = [0; 1500];
    for _ in 0..TRIES {
        socket.send_to(&packet, relay)?;
        if let Ok(len) = socket.recv(&mut answer) {
            let answer = &answer[..len];
            // The client of shadowsocksr-native names the application's own address as the source.
            ensure!(answer == packet || !answer.ends_with(TEXT), "it came back with another source address");
            ensure!(answer == packet, "another datagram came back");
            return Ok(());
        }
    }
    anyhow::bail!("no datagram came back")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_protocol_meets_every_obfs_and_every_method_comes_once() {
        let rows: Vec<String> = rows().collect();
        assert_eq!(rows.len(), PROTOCOLS.len() * OBFS.len() + METHODS.len());
        let mut different = rows.clone();
        different.sort_unstable();
        different.dedup();
        // The one method of the mixed rows comes with origin and plain in both.
        assert_eq!(different.len(), rows.len() - 1);
    }
}
