//! Work for a counter of instructions: `instructions CASE ROUNDS` does the same ROUNDS times, on fixed random bytes.
//!
//! `cargo xtask instructions` runs each case with two numbers of rounds; their difference is what a round costs.

#![expect(clippy::print_stdout, reason = "a program for people at a terminal")]

mod datagrams;
mod streams;

use std::process::ExitCode;

/// A case: its name, what a round is, and the work.
type Case = (&'static str, &'static str, fn(u32));

const CASES: &[Case] = &[
    ("snell4-connection", "connection", |rounds| streams::connections(rounds, &streams::snell4())),
    ("snell4-bulk", "64 KiB", |rounds| streams::bulk(rounds, &streams::snell4())),
    ("snell6-connection", "connection", |rounds| streams::connections(rounds, &streams::snell6())),
    ("snell6-bulk", "64 KiB", |rounds| streams::bulk(rounds, &streams::snell6())),
    ("snell6-unshaped-bulk", "64 KiB", |rounds| streams::bulk(rounds, &streams::snell6_unshaped())),
    ("ss-aes-256-ctr-bulk", "64 KiB", |rounds| streams::bulk(rounds, &streams::shadowsocks("aes-256-ctr"))),
    ("ss-aes-128-gcm-connection", "connection", |rounds| {
        streams::connections(rounds, &streams::shadowsocks("aes-128-gcm"))
    }),
    ("ss-aes-128-gcm-bulk", "64 KiB", |rounds| streams::bulk(rounds, &streams::shadowsocks("aes-128-gcm"))),
    ("ss-chacha20-poly1305-bulk", "64 KiB", |rounds| {
        streams::bulk(rounds, &streams::shadowsocks("chacha20-ietf-poly1305"))
    }),
    ("ss-2022-aes-128-gcm-connection", "connection", |rounds| {
        streams::connections(rounds, &streams::shadowsocks("2022-blake3-aes-128-gcm"))
    }),
    ("ss-2022-aes-128-gcm-bulk", "64 KiB", |rounds| {
        streams::bulk(rounds, &streams::shadowsocks("2022-blake3-aes-128-gcm"))
    }),
    ("ss-aes-128-gcm-datagram", "1200 B", |rounds| datagrams::shadowsocks(rounds, "aes-128-gcm")),
    ("ss-2022-aes-128-gcm-datagram", "1200 B", datagrams::shadowsocks_2022),
    ("obfs-http-bulk", "64 KiB", |rounds| streams::bulk(rounds, &streams::obfs_http())),
    ("obfs-tls-bulk", "64 KiB", |rounds| streams::bulk(rounds, &streams::obfs_tls())),
    ("socks5-request", "request", streams::socks),
    ("kcp-arq", "64 KiB", datagrams::kcp),
    ("kcp-fec", "10 of 1350 B", datagrams::fec),
    ("kcp-aes-128", "1350 B", datagrams::crypt),
    ("smux", "64 KiB", datagrams::smux),
];

fn main() -> ExitCode {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let args: Vec<&str> = args.iter().map(String::as_str).collect();
    match args.as_slice() {
        ["--list"] => {
            for (name, unit, _) in CASES {
                println!("{name}\t{unit}");
            }
            ExitCode::SUCCESS
        }
        [name, rounds] => {
            let case = CASES.iter().find(|case| case.0 == *name);
            let (Some(case), Ok(rounds)) = (case, rounds.parse()) else { return ExitCode::from(2) };
            (case.2)(rounds);
            ExitCode::SUCCESS
        }
        _ => ExitCode::from(2),
    }
}
