//! Protocols of adit over Snowflake's proxies: a broker, proxies, and a server and a client whose carrier they are.

use std::io::{self, BufRead as _, BufReader, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener};
use std::path::PathBuf;
use std::rc::Rc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, mpsc};
use std::thread;
use std::time::{Duration, Instant};

use adit_engine::{Extensions, Running, StartError, start_with};
use adit_formats::adit_toml;
use adit_model::{Config, SnowflakeBroker, SnowflakeProxy, WebUrl};
use adit_net::rt::{self, Cores, Stopper};
use adit_proto::snowflake::Scheme;
use adit_snowflake::{ProxyMetrics, Voice, run_snowflake_proxy};
use adit_snowflake::{SnowflakeStreams, broker_service};

use super::support::{
    addr, client_status, connect, echo, pattern, round_trip, server_status, service, wait_for,
};

/// The bridge that clients ask for if they name none.
const BRIDGE: &str = "2B280B23E1107BB62ABFC40DDCC8824814F80A72";
/// Longest that a stream may stand still when its proxy dies.
const STANDSTILL: Duration = Duration::from_secs(6);

fn parse(text: &str) -> Config {
    adit_toml::parse("snowflake.toml", text).unwrap_or_else(|found| panic!("{found}\n{text}")).config
}

fn start(config: &Config) -> Running {
    let extensions = Extensions { packet_streams: Some(Arc::new(SnowflakeStreams)), ..Extensions::default() };
    start_with(config, &extensions).unwrap()
}

/// A server whose clients proxies bring. `protocol` has the keys of the inbound beside those of its port.
fn server(protocol: &str) -> Running {
    let text = format!(
        "cores = 2\nstate = \"off\"\n[[inbound]]\nname = \"in\"\nlisten = \"127.0.0.1:0\"\noutbound = \"direct\"\n\
         carrier = \"snowflake\"\nsnowflake-tls = \"off\"\n{protocol}\n\
         [[outbound]]\nname = \"direct\"\nprotocol = \"direct\"\n"
    );
    start(&parse(&text))
}

/// Without Snowflake a file that needs it does not start, on either side of the carrier.
#[test]
fn a_program_without_streams_says_so() {
    let port = "[[inbound]]\nname = \"part\"\nlisten = \"127.0.0.1:0\"\nprotocol = \"tunnel\"\n\
                target = \"127.0.0.1:9\"\ncarrier = \"snowflake\"\nsnowflake-tls = \"off\"\n\
                [[outbound]]\nname = \"direct\"\nprotocol = \"direct\"\n";
    let client = "[[inbound]]\nname = \"in\"\nlisten = \"127.0.0.1:0\"\nprotocol = \"tunnel\"\n\
                  target = \"127.0.0.1:9\"\n[[outbound]]\nname = \"part\"\nprotocol = \"direct\"\n\
                  carrier = \"snowflake\"\nsnowflake-broker = \"http://127.0.0.1:9/\"\n";
    for text in [port, client] {
        let config = parse(&format!("cores = 1\nstate = \"off\"\n{text}"));
        let Err(StartError::Build { name, source }) = start_with(&config, &Extensions::default()) else {
            panic!("started: {text}");
        };
        assert_eq!((&*name, source.kind()), ("part", io::ErrorKind::Unsupported));
        start(&config).end();
    }
}

/// With `snowflake-tls = "acme"` the port asks the authority for its certificate as soon as it is open.
#[test]
fn a_port_asks_for_its_certificate() {
    let authority = TcpListener::bind("127.0.0.1:0").unwrap();
    let at = authority.local_addr().unwrap();
    let (sender, asked) = mpsc::channel();
    thread::spawn(move || {
        let (stream, _) = authority.accept().unwrap();
        let mut line = String::new();
        BufReader::new(stream).read_line(&mut line).unwrap();
        sender.send(line).unwrap();
    });
    let folder = std::env::temp_dir().join(format!("adit-carrier-acme-{}", std::process::id()));
    let text = format!(
        "cores = 2\nstate = \"off\"\n[[inbound]]\nname = \"in\"\nlisten = \"127.0.0.1:0\"\noutbound = \"direct\"\n\
         protocol = \"tunnel\"\ntarget = \"127.0.0.1:9\"\ncarrier = \"snowflake\"\nsnowflake-tls = \"acme\"\n\
         snowflake-acme-names = \"a.example\"\nsnowflake-acme-folder = \"{}\"\n\
         snowflake-acme-directory = \"http://{at}/dir\"\nsnowflake-acme-http = \"127.0.0.1:0\"\n\
         [[outbound]]\nname = \"direct\"\nprotocol = \"direct\"\n",
        folder.display()
    );
    let running = start(&parse(&text));
    assert_eq!(asked.recv_timeout(Duration::from_secs(60)).unwrap(), "GET /dir HTTP/1.1\r\n");
    running.end();
    std::fs::remove_dir_all(folder).ok();
}

/// A port that leads to `target` by an outbound of `protocol` through the proxies of `broker`.
fn client_config(broker: SocketAddr, protocol: &str, target: SocketAddr, more: &str) -> Config {
    parse(&format!(
        "cores = 2\nstate = \"off\"\n[[inbound]]\nname = \"in\"\nprotocol = \"tunnel\"\nlisten = \"127.0.0.1:0\"\n\
         target = \"{target}\"\noutbound = \"out\"\n[[outbound]]\nname = \"out\"\ncarrier = \"snowflake\"\n\
         snowflake-broker = \"http://{broker}/\"\nsnowflake-keep-local-addresses = true\n{protocol}\n{more}\n"
    ))
}

/// A file with this text.
fn file(text: &str) -> PathBuf {
    static COUNT: AtomicUsize = AtomicUsize::new(0);
    let number = COUNT.fetch_add(1, Ordering::Relaxed);
    let path = std::env::temp_dir().join(format!("adit-carrier-{}-{number}", std::process::id()));
    std::fs::write(&path, text).unwrap();
    path
}

/// A broker that sends clients to the bridge at `relay`, until the process ends.
fn broker(relay: SocketAddr) -> SocketAddr {
    let bridges = format!(
        "{{\"displayName\":\"t\",\"webSocketAddress\":\"ws://{relay}/\",\"fingerprint\":\"{BRIDGE}\"}}\n"
    );
    let polls =
        "{\"open_poll_interval\":50,\"moderate_poll_interval\":50,\"strict_poll_interval\":50}".to_owned();
    let files = [file(&bridges), file(&polls)];
    let [bridges, polls] = files.clone();
    let settings = SnowflakeBroker {
        listen: ([127, 0, 0, 1], 0).into(),
        tls: None,
        scheme: Scheme::Current,
        bridges: Some(bridges),
        pattern: String::new(),
        default_pattern: None,
        countries: None,
        metrics_log: None,
        poll_intervals: Some(polls),
        trusted_hops: 0,
        shows_addresses: false,
    };
    let (sender, receiver) = mpsc::channel();
    thread::spawn(move || {
        broker_service(&settings, |_| Err("no other".to_owned()), |at| sender.send(at).unwrap())
    });
    let at = receiver.recv().unwrap();
    // They have been read.
    for file in files {
        std::fs::remove_file(file).unwrap();
    }
    at
}

struct Mute;

impl Voice for Mute {
    fn log(&self, _: std::fmt::Arguments<'_>) {}

    fn tell(&self, _: &str, _: &str) {}
}

/// A proxy, which dies when it is dropped: its sockets close without a word.
struct Proxy(Option<(Stopper, thread::JoinHandle<()>)>);

impl Proxy {
    fn start(broker: SocketAddr, relay: SocketAddr) -> Self {
        let (stopper, mut stop) = Stopper::new();
        let run = move || {
            let relay = format!("ws://{relay}/").into();
            let settings =
                SnowflakeProxy::on_one_machine(WebUrl::parse(&format!("http://{broker}/")).unwrap(), relay);
            Cores::block_on(async move {
                let proxy =
                    Box::pin(run_snowflake_proxy(settings, Rc::<ProxyMetrics>::default(), Rc::new(Mute)));
                let run = async { proxy.await.unwrap() };
                rt::race(run, stop.ending()).await;
            })
            .unwrap();
        };
        Self(Some((stopper, thread::spawn(run))))
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        let Some((stopper, thread)) = self.0.take() else { return };
        stopper.end();
        thread.join().unwrap();
    }
}

/// Bytes of several lengths through a pair that speaks a protocol over proxies. All streams share one session.
fn exercise(served: &str, dialled: &str) {
    let servers = server(served);
    let broker = broker(addr(&servers));
    let _proxy = Proxy::start(broker, addr(&servers));
    let clients = start(&client_config(broker, dialled, echo(), ""));
    for len in [1, 70_000, 4_000_000] {
        round_trip(addr(&clients), len, true);
    }
    let (near, far) = (client_status(&clients).totals, server_status(&servers).totals);
    assert!(near.sent > 4_000_000 && far.sent > 4_000_000, "{near:?} {far:?}");
    assert_eq!((near.active_opens, far.passive_opens), (1, 1), "one session carries all streams");
    clients.end();
    servers.end();
}

#[test]
fn shadowsocks() {
    let key = "protocol = \"shadowsocks\"\nmethod = \"2022-blake3-aes-128-gcm\"\npassword = \"AAAAAAAAAAAAAAAAAAAAAA==\"\n";
    exercise(&format!("{key}allow-private = true"), &format!("{key}server = \"192.0.2.1:1\""));
}

#[test]
fn snell() {
    let key = "protocol = \"snell\"\npsk = \"a key above the carrier's\"\n";
    exercise(&format!("{key}allow-private = true"), &format!("{key}server = \"192.0.2.1:1\""));
}

#[test]
fn ssr() {
    let key =
        "protocol = \"ssr\"\nmethod = \"chacha20-ietf\"\npassword = \"p\"\nssr-protocol = \"auth_chain_a\"\n";
    exercise(&format!("{key}allow-private = true"), &format!("{key}server = \"192.0.2.1:1\""));
}

#[test]
fn tunnel() {
    exercise(&format!("protocol = \"tunnel\"\ntarget = \"{}\"", echo()), "protocol = \"direct\"");
}

/// The longest pause between two reads of `len` bytes, which are those of [`pattern`].
fn longest_pause(stream: &mut impl Read, len: usize, progress: impl Fn(usize)) -> Duration {
    let (wanted, mut got) = (pattern(len), 0);
    let mut block = vec![0; 64 << 10];
    let (mut last, mut longest) = (Instant::now(), Duration::ZERO);
    while got < len {
        let count = stream.read(&mut block).unwrap();
        assert!(count > 0, "the stream ended after {got} bytes");
        assert!(block[..count] == wanted[got..got + count], "bytes from {got} on differ");
        got += count;
        longest = longest.max(last.elapsed());
        last = Instant::now();
        progress(got);
    }
    longest
}

#[test]
fn a_proxy_that_dies_is_replaced() {
    const LEN: usize = 12 << 20;
    let source = service(|mut stream| {
        stream.write_all(&pattern(LEN))?;
        stream.shutdown(Shutdown::Write)
    });
    let servers = server(&format!("protocol = \"tunnel\"\ntarget = \"{source}\""));
    let broker = broker(addr(&servers));
    let first = Proxy::start(broker, addr(&servers));
    let clients = start(&client_config(broker, "protocol = \"direct\"", source, ""));
    let mut stream = connect(addr(&clients));
    let mut beginning = vec![0; 1 << 20];
    stream.read_exact(&mut beginning).unwrap();
    assert!(beginning == pattern(LEN)[..1 << 20]);
    let _second = Proxy::start(broker, addr(&servers));
    let (kill, killed) = mpsc::channel();
    let killer = thread::spawn(move || {
        killed.recv().unwrap();
        drop(first);
    });
    let whole = beginning.chain(stream);
    // The rest, from the beginning on, so that all bytes are compared.
    let mut whole = whole;
    let began = Instant::now();
    let longest = longest_pause(&mut whole, LEN, |got| {
        if got > 3 << 20 {
            kill.send(()).ok();
        }
    });
    killer.join().unwrap();
    println!("longest pause {longest:?} of {:?}", began.elapsed());
    assert!(longest <= STANDSTILL, "the stream stood still for {longest:?}");
    assert_eq!(server_status(&servers).totals.passive_opens, 1, "the session outlives its proxy");
    clients.end();
    servers.end();
}

#[test]
fn a_change_of_the_outbound_gives_back_its_proxy() {
    let servers = server(&format!("protocol = \"tunnel\"\ntarget = \"{}\"", echo()));
    let broker = broker(addr(&servers));
    let _proxy = Proxy::start(broker, addr(&servers));
    let config = |more| client_config(broker, "protocol = \"direct\"", echo(), more);
    let clients = start(&config(""));
    round_trip(addr(&clients), 100_000, true);
    assert_eq!(server_status(&servers).totals.passive_opens, 1);
    clients.apply(&config("snowflake-max = 2")).unwrap();
    round_trip(addr(&clients), 100_000, true);
    wait_for("a second session", || server_status(&servers).totals.passive_opens == 2);
    clients.end();
    servers.end();
}

/// Without a proxy nothing is lost: the request waits, and goes on with the first one.
#[test]
fn streams_wait_for_the_first_proxy() {
    let servers = server(&format!("protocol = \"tunnel\"\ntarget = \"{}\"", echo()));
    let broker = broker(addr(&servers));
    let clients = start(&client_config(broker, "protocol = \"direct\"", echo(), ""));
    let at = addr(&clients);
    let early = thread::spawn(move || round_trip(at, 200_000, true));
    wait_for("a session", || client_status(&clients).totals.active_opens == 1);
    // For a while there is no proxy.
    thread::sleep(Duration::from_secs(1));
    let _proxy = Proxy::start(broker, addr(&servers));
    early.join().unwrap();
    clients.end();
    servers.end();
}
