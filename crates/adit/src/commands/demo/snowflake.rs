//! `adit demo snowflake`.

use adit_demo::snowflake::{Cost, Direction, Snowflake, SnowflakeFigures};
use adit_net::rt::Cores;
use serde_json::json;

use crate::commands::cli::DemoArgs;
use crate::print;

/// Connections whose first byte is timed. Each finds a proxy of its own.
const CONNECTIONS: usize = 5;

pub(super) fn run(args: &DemoArgs) -> anyhow::Result<()> {
    let mut demo = Snowflake::start(args.listen)?;
    if !args.json {
        print::remark(
            "Snowflake's server, broker, proxy and client and a small site run on this machine; moving bytes ...",
        );
    }
    let bar = super::bar(args);
    let figures = demo.measure(&super::load(args, CONNECTIONS), &|bytes| bar.inc(bytes))?;
    bar.finish_and_clear();
    if args.json {
        let mut value = json!({ "figures": figures });
        if args.keep {
            value["proxy"] = json!(format!("socks5h://{}", demo.proxy()));
            value["site"] = json!(demo.url());
        }
        print::data(format_args!("{}\n", serde_json::to_string(&value)?))?;
    } else {
        print::data(table(&figures))?;
        print::data("\nto put these in the place of Snowflake's programs: docs/snowflake.md\n")?;
        if args.keep {
            print::data(super::kept(demo.proxy(), &demo.url()))?;
        }
    }
    if args.keep {
        Cores::block_on(super::wait(|| demo.alive()))??;
    }
    Ok(())
}

fn table(figures: &SnowflakeFigures) -> String {
    let rate = |direction: &Direction| {
        let Direction { bytes, seconds, rate, .. } = direction;
        let bytes = print::bytes(*bytes);
        format!("{:>7.1} MB/s   {bytes} in {seconds:.1} s, every byte compared", rate / 1e6)
    };
    let first = format!(
        "{:>7.1} ms     median of {} connections, each with a proxy of its own",
        figures.first_byte_ms, figures.connections
    );
    let rows = [("download", rate(&figures.down)), ("upload", rate(&figures.up)), ("first byte", first)];
    let mut out = String::from("\nthrough client, proxy and server, one connection, loopback:\n\n");
    for (name, value) in rows {
        out.push_str(&format!("  {name:<12} {value}\n"));
    }
    out.push_str("\nprocessor time, and the rate that one core would carry:\n\n");
    out.push_str(&format!("  {:<10} {:>12} {:>24}\n", "", "download", "upload"));
    let cost = |cost: &Cost| {
        let rate = cost.mb_per_cpu_s.map_or(String::new(), |rate| format!("{rate:.0} MB/s"));
        format!("{:>7.2} ms/MB {rate:>10}", cost.cpu_ms_per_mb)
    };
    for (down, up) in figures.down.roles.iter().zip(&figures.up.roles) {
        let row = format!("  {:<10} {}   {}", down.role, cost(down), cost(up));
        out.push_str(&format!("{}\n", row.trim_end()));
    }
    out.push_str("\nmemory, resident:\n\n");
    for memory in &figures.memory {
        let kib = memory.resident_kib;
        out.push_str(&format!("  {:<10} {:>5}.{} MiB\n", memory.role, kib / 1024, kib % 1024 * 10 / 1024));
    }
    out.push_str(super::slow());
    out
}
