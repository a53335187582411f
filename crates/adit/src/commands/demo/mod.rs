//! `adit demo`: a server, a client and a site on this machine, and lines for a real deployment.

mod snowflake;

use std::io::IsTerminal;
use std::net::{Ipv4Addr, SocketAddr};
use std::time::Duration;

use adit_demo::{Bulk, Demo, Figures, Load, Plan};
use adit_formats::adit_toml;
use adit_formats::share::{Deployment, Form, Host, Target, generate_key};
use adit_model::{
    Config, Dial, HalfClose, Inbound, InboundProtocol, Local, LocalProtocols, Log, LogFormat, ObfsClient,
    ObfsServer, Outbound, OutboundProtocol, Quic, Reply, Secret, SnellClient, SnellServer, SnellVersion,
    SnellVersions, SocketOptions,
};
use adit_net::rt::{self, Cores, Signal, Signals};
use anyhow::Context as _;
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use serde_json::json;

use crate::commands::cli::{DemoArgs, DemoSubject};
use crate::commands::share;
use crate::print;
use crate::random::SystemRng;

/// Connections whose first byte is timed.
const CONNECTIONS: usize = 50;
/// Stands for the reader's own server in the lines to paste.
const HOST: &str = "YOUR-SERVER";
/// Its port there.
const PORT: u16 = 6160;

pub(crate) fn run(args: &DemoArgs) -> anyhow::Result<()> {
    match args.subject {
        DemoSubject::Snell => snell(args),
        DemoSubject::Snowflake => snowflake::run(args),
    }
}

fn snell(args: &DemoArgs) -> anyhow::Result<()> {
    let psk = key();
    let client = |server: SocketAddr| adit_toml::to_toml(&client(&psk, args.listen, server));
    let plan = Plan {
        words: &["run", "-c", "-"],
        server: &adit_toml::to_toml(&server(&psk, SocketAddr::from((Ipv4Addr::LOCALHOST, 0)))),
        client: &client,
    };
    let mut demo = Demo::start(&plan)?;
    if !args.json {
        print::remark("a Snell server, a client and a small site run on this machine; moving bytes ...");
    }
    let bar = bar(args);
    let load = load(args, CONNECTIONS);
    let figures = demo.measure(&load, &|bytes| bar.inc(bytes))?;
    bar.finish_and_clear();
    let deployment = deployment()?;
    if args.json {
        print::data(format_args!("{}\n", as_json(&figures, &deployment, args.keep.then_some(&demo))?))?;
    } else {
        print::data(table(&figures))?;
        print::data(advice(&deployment))?;
        if args.keep {
            print::data(kept(demo.proxy(), &demo.url()))?;
        }
    }
    if args.keep {
        Cores::block_on(wait(|| demo.alive()))??;
    }
    Ok(())
}

fn load(args: &DemoArgs, connections: usize) -> Load {
    Load { size: args.size, limit: Duration::from_secs(args.seconds.into()), connections }
}

/// Until a signal to stop, or the end of a process.
async fn wait(mut alive: impl FnMut() -> anyhow::Result<()>) -> anyhow::Result<()> {
    let mut signals = Signals::new()?;
    loop {
        let stop = async { signals.next().await == Signal::Stop };
        let look = async {
            rt::sleep(Duration::from_secs(1)).await;
            false
        };
        if rt::race(stop, look).await {
            return Ok(());
        }
        alive()?;
    }
}

fn key() -> Secret {
    generate_key(&mut SystemRng, adit_formats::share::KEY_LEN)
}

fn config(inbound: Inbound, outbound: Outbound) -> Config {
    let log = Log { format: LogFormat::Json, ..Log::default() };
    let inbound = Inbound { outbound: outbound.name.clone(), ..inbound };
    Config { log, inbounds: vec![inbound], outbounds: vec![outbound], ..Config::default() }
}

fn inbound(name: &str, listen: SocketAddr, protocol: InboundProtocol) -> Inbound {
    let socket = SocketOptions::default();
    Inbound {
        name: name.into(),
        listen: vec![listen],
        socket,
        outbound: "direct".into(),
        allow_private: true,
        protocol,
    }
}

fn server(psk: &Secret, listen: SocketAddr) -> Config {
    let (psk, versions) = (psk.clone(), SnellVersions::default());
    let server = SnellServer { psk: psk.into(), versions, obfs: ObfsServer::Off, udp: false, quic: false };
    let direct =
        Outbound { name: "direct".into(), dial: Dial::default(), protocol: OutboundProtocol::Direct };
    config(inbound("server", listen, InboundProtocol::Snell(server)), direct)
}

fn client(psk: &Secret, listen: SocketAddr, server: SocketAddr) -> Config {
    let local =
        Local { accepts: LocalProtocols::Mixed, users: Vec::new(), reply: Reply::Early, open_to: Vec::new() };
    let client = SnellClient {
        server: Target::from(server),
        psk: psk.clone(),
        client_id: None,
        version: SnellVersion::default(),
        obfs: ObfsClient::Off,
        reuse: true,
        half_close: HalfClose::On,
        udp: false,
        quic: Quic::Off,
    };
    let snell =
        Outbound { name: "snell".into(), dial: Dial::default(), protocol: OutboundProtocol::Snell(client) };
    config(inbound("local", listen, InboundProtocol::Local(local)), snell)
}

/// A server that does not exist yet, with a key of its own.
fn deployment() -> anyhow::Result<Deployment> {
    Ok(Deployment {
        name: "home".into(),
        server: Target { host: Host::parse(HOST.as_bytes()).context("placeholder")?, port: PORT },
        psk: key(),
        client_id: None,
        obfs: ObfsClient::Off,
        reuse: true,
        version: SnellVersion::V5,
        fast_open: false,
        udp: true,
        quic: true,
    })
}

fn bar(args: &DemoArgs) -> ProgressBar {
    if args.json || !std::io::stderr().is_terminal() {
        return ProgressBar::hidden();
    }
    let bar = ProgressBar::with_draw_target(Some(args.size.saturating_mul(2)), ProgressDrawTarget::stderr());
    let template = "{bar:32} {decimal_bytes}/{decimal_total_bytes}  {decimal_bytes_per_sec}";
    match ProgressStyle::with_template(template) {
        Ok(style) => bar.with_style(style),
        Err(_) => bar,
    }
}

fn table(figures: &Figures) -> String {
    let rate = |bulk: &Bulk| {
        format!(
            "{:>7.0} MB/s   {} in {:.1} s, every byte compared",
            bulk.rate / 1e6,
            print::bytes(bulk.bytes),
            bulk.seconds
        )
    };
    let cpu = |bulk: &Bulk| format!("{:>7.2} s per GB", bulk.cpu_s_per_gb);
    let mib = |kib: u64| format!("{:>5}.{} MiB resident", kib / 1024, kib % 1024 * 10 / 1024);
    let rows = [
        ("download", rate(&figures.down)),
        ("upload", rate(&figures.up)),
        (
            "first byte",
            format!("{:>7.2} ms     median of {} connections", figures.first_byte_ms, figures.connections),
        ),
        ("processor, download", format!("{}   server and client together", cpu(&figures.down))),
        ("processor, upload", cpu(&figures.up)),
        ("memory, server", mib(figures.server_memory_kib)),
        ("memory, client", mib(figures.client_memory_kib)),
    ];
    let mut out = String::from("\nthrough client and server, one connection, loopback:\n\n");
    for (name, value) in rows {
        out.push_str(&format!("  {name:<20} {value}\n"));
    }
    out.push_str(slow());
    out
}

/// A remark on figures of a debug build.
fn slow() -> &'static str {
    if cfg!(debug_assertions) {
        "\n  (built without optimisation: a release build does better)\n"
    } else {
        ""
    }
}

/// From here to a server of one's own.
fn advice(deployment: &Deployment) -> String {
    let listen = SocketAddr::from((Ipv4Addr::UNSPECIFIED, PORT));
    let psk = deployment.psk.expose();
    let forms = share::all(deployment, &[Form::Surge, Form::Mihomo, Form::SingBox, Form::OpenSnell]);
    format!(
        "\nfor a server of your own: put this into adit.toml there, then `adit run`\n\n\
         [[inbound]]\nprotocol = \"snell\"\nlisten = \"{listen}\"\npsk = \"{psk}\"\n\n\
         and into your clients, with the server's address for {HOST}\n\
         (the key is fresh, and good to use):\n\n\
         {forms}\
         next:\n\
         \x20 adit share --host ADDRESS --qr   prints these for a file\n\
         \x20 adit check                       finds mistakes in it\n\
         \x20 adit demo --keep                 leaves this demo up for a browser\n\
         \x20 adit --help                      lists the rest\n"
    )
}

fn kept(proxy: SocketAddr, url: &str) -> String {
    format!(
        "\nstill running, until Ctrl-C:\n\n  proxy  socks5h://{proxy}\n  site   {url}\n\n  try: curl -x socks5h://{proxy} {url}\n"
    )
}

fn as_json(figures: &Figures, deployment: &Deployment, kept: Option<&Demo>) -> anyhow::Result<String> {
    let mut lines = serde_json::Map::new();
    for form in Form::ALL {
        if let Ok(shared) = adit_formats::share::share(form, deployment) {
            lines.insert(form.name().to_owned(), shared.text.into());
        }
    }
    let mut value = json!({ "figures": figures, "lines": lines });
    if let Some(demo) = kept {
        value["proxy"] = json!(format!("socks5h://{}", demo.proxy()));
        value["site"] = json!(demo.url());
    }
    Ok(serde_json::to_string(&value)?)
}
