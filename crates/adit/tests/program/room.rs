//! Room for those who may come in: every kind of port, with few descriptors, while others hold it with handshakes that they
//! do not finish.
//!
//! [`ROWS`] is the table of all ports. A kind of inbound that it does not know does not compile, and one that no row asks
//! fails.

use std::collections::{BTreeSet, VecDeque};
use std::io::{self, Read, Write};
use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::mpsc::RecvTimeoutError;
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use adit_formats::adit_toml;
use adit_model::{Config, InboundProtocol};
use adit_testkit::unused_addr;
use socket2::{Domain, SockAddr, Socket, Type};

use crate::support::{Dir, PSK, Running};

/// Within this time a client is served.
const SERVED: Duration = Duration::from_secs(1);
/// The same beside other tests, on a machine that may be busy: shorter than the time for which a port that nobody makes room
/// at is closed to all.
const SERVED_BESIDE_OTHERS: Duration = Duration::from_secs(8);
/// Clients that are served, one after the other, for each way of holding a port.
const CLIENTS: usize = 10;
/// The same beside other tests.
const CLIENTS_BESIDE_OTHERS: usize = 4;

/// The clients that are to be served, and the time within which each of them is.
#[derive(Clone, Copy)]
struct Bar {
    clients: usize,
    served: Duration,
    /// Whether a client that is turned away tries again within that time: on a busy machine others may have had all turns
    /// since it came.
    tries_again: bool,
}

const ALONE: Bar = Bar { clients: CLIENTS, served: SERVED, tries_again: false };
const BESIDE_OTHERS: Bar =
    Bar { clients: CLIENTS_BESIDE_OTHERS, served: SERVED_BESIDE_OTHERS, tries_again: true };

/// A word and a name of 255 bytes that nobody has sent all of.
const USER: &str = "name = \"ann\", password = \"long enough a word\"";

/// A place for the bytes of a handshake.
type Half = fn(&Peers) -> Vec<u8>;

/// A port.
struct Row {
    name: &'static str,
    /// The file of the program that has it, or its command line.
    site: Starts,
    /// The file of a client in front of it, for protocols that the test does not speak.
    client: Option<fn(&Peers) -> String>,
    /// The handshakes that hold it, as far as they go.
    halves: &'static [Half],
    /// One client: an error if it is not served.
    ask: fn(&Site) -> io::Result<()>,
}

enum Starts {
    /// `adit run` with this file.
    File(fn(&Peers) -> String),
    /// These words behind `adit`.
    Words(fn(&Peers) -> Vec<String>),
}

/// The addresses of a site.
struct Peers {
    /// The port that is held.
    at: SocketAddr,
    /// The port of the client in front of it.
    front: SocketAddr,
    /// A target that sends back all bytes.
    echo: SocketAddr,
    /// A target that answers requests of HTTP.
    web: SocketAddr,
    /// A target that never answers a SYN.
    silent: SocketAddr,
    /// A name server that gives 127.0.0.1 to every name, and never answers for those of `silent`.
    names: SocketAddr,
    /// A path for a unix socket.
    socket: PathBuf,
}

/// A port that runs.
struct Site {
    peers: Peers,
    dir: Dir,
    _client: Option<Running>,
    running: Running,
}

/// The kinds of inbounds, each with its pattern.
macro_rules! kinds {
    ($($name:literal $pattern:pat,)*) => {
        const KINDS: &[&str] = &[$($name),*];

        fn kind(protocol: &InboundProtocol) -> &'static str {
            match protocol {
                $($pattern => $name,)*
            }
        }
    };
}

kinds! {
    "local" InboundProtocol::Local(_),
    "snell" InboundProtocol::Snell(_),
    "shadowsocks" InboundProtocol::Shadowsocks(_),
    "ssr" InboundProtocol::Ssr(_),
    "obfs" InboundProtocol::Obfs(_),
    "captured" InboundProtocol::Captured(_),
    "tunnel" InboundProtocol::Tunnel { .. },
    "tun" InboundProtocol::Tun(_),
    "dns" InboundProtocol::Dns(_),
}

/// Kinds that only the firewall, or an interface, brings clients to: their connections take the way of `tunnel`, and their
/// questions that of `dns`. A neighbour attacks them in `adit bench run attack` (rows `LAN`).
const ELSEWHERE: [&str; 2] = ["captured", "tun"];

/// Bytes that are no handshake of anything.
const GARBAGE: Half = |_| vec![0x5a; 40];
/// Not a byte.
const NOTHING: Half = |_| Vec::new();

const LOCAL: &[Half] = &[
    NOTHING,
    |_| b"\x05".to_vec(),
    |_| b"\x05\x01".to_vec(),
    |_| b"\x05\x01\x00".to_vec(),
    |_| b"\x05\x01\x00\x05\x01\x00\x03\xff".to_vec(),
    |_| b"\x04\x01\x00\x50\x00\x00\x00\x01".to_vec(),
    |_| b"GET http://x".to_vec(),
    |_| b"CONNECT x:1 HTTP/1.1\r\nA: ".to_vec(),
];

/// Whole requests for what never answers, and for datagrams. With so few descriptors as 64 each core has room for a handful
/// of these, and who comes in is up to luck.
const LOCAL_WHOLE: &[Half] = &[
    |peers| socks4(peers.silent),
    |peers| [&b"\x05\x01\x00"[..], &socks5(peers.silent)].concat(),
    |peers| format!("CONNECT {0} HTTP/1.1\r\nHost: {0}\r\n\r\n", peers.silent).into_bytes(),
    |peers| format!("GET http://{0}/ HTTP/1.1\r\nHost: {0}\r\n\r\n", peers.silent).into_bytes(),
    |_| b"\x05\x01\x00\x05\x03\x00\x01\x00\x00\x00\x00\x00\x00".to_vec(),
];

/// Servers that wait for a greeting of TLS: parts of one, and something else.
const HELLO: &[Half] =
    &[NOTHING, |_| b"\x16".to_vec(), |_| b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03".to_vec()];
/// Greetings that such a server passes on to the one that it hides behind, which takes a second descriptor for each: as
/// with [`LOCAL_WHOLE`].
const HELLO_WHOLE: &[Half] = &[|_| b"GET / HTTP/1.1\r\nHost: x\r\n".to_vec()];

const LOCAL_WITH_USERS: &[Half] = &[
    NOTHING,
    |_| b"\x05".to_vec(),
    |_| b"\x05\x01\x02".to_vec(),
    |_| b"\x05\x01\x02\x01\xff".to_vec(),
    // Refused: no method, and a wrong password.
    |_| b"\x05\x01\x00".to_vec(),
    |_| b"\x05\x01\x02\x01\x01a\x01b".to_vec(),
    |_| b"\x04\x01\x00\x50\x00\x00\x00\x01a".to_vec(),
    |_| b"GET http://x".to_vec(),
    |_| b"GET http://x/ HTTP/1.1\r\nHost: x\r\n\r\n".to_vec(),
    |_| b"POST http://x/ HTTP/1.1\r\nHost: x\r\nContent-Length: 99999\r\n\r\n".to_vec(),
];

const SERVER: &[Half] = &[NOTHING, GARBAGE, |_| vec![0x5a; 3], |_| b"GET / HTTP/1.1\r\n".to_vec()];

/// The table of all ports.
const ROWS: &[Row] = &[
    Row {
        name: "mixed",
        site: Starts::File(|peers| format!("[[inbound]]\nprotocol = \"mixed\"\nlisten = \"{}\"\n", peers.at)),
        client: None,
        halves: LOCAL,
        ask: |site| through_socks(site.peers.at, site.peers.echo, None),
    },
    Row {
        name: "mixed with users",
        site: Starts::File(|peers| {
            format!("[[inbound]]\nprotocol = \"mixed\"\nlisten = \"{}\"\nusers = [{{ {USER} }}]\n", peers.at)
        }),
        client: None,
        halves: LOCAL_WITH_USERS,
        ask: |site| through_socks(site.peers.at, site.peers.echo, Some(("ann", "long enough a word"))),
    },
    Row {
        name: "http",
        site: Starts::File(|peers| format!("[[inbound]]\nprotocol = \"http\"\nlisten = \"{}\"\n", peers.at)),
        client: None,
        halves: &[NOTHING, |_| b"G".to_vec(), |_| b"CONNECT x:1 HTTP/1.1\r\nA: ".to_vec()],
        ask: |site| {
            let web = site.peers.web;
            http(site.peers.at, &format!("GET http://{web}/ HTTP/1.1\r\nHost: {web}\r\n\r\n"), "200")
        },
    },
    Row {
        name: "tunnel",
        site: Starts::File(|peers| {
            format!(
                "[[inbound]]\nprotocol = \"tunnel\"\nlisten = \"{}\"\ntarget = \"{}\"\n",
                peers.at, peers.echo
            )
        }),
        client: None,
        halves: &[NOTHING],
        ask: |site| round_trip(&mut connect(site.peers.at)?),
    },
    Row {
        name: "tunnel whose server wants the first bytes",
        site: Starts::File(|peers| {
            format!(
                "[[inbound]]\nprotocol = \"tunnel\"\nlisten = \"{}\"\ntarget = \"192.0.2.1:1\"\n\
                 [[outbound]]\nprotocol = \"obfs\"\nobfs = \"http\"\nobfs-host = \"x\"\nserver = \"{}\"\n",
                peers.at, peers.front
            )
        }),
        client: Some(|peers| {
            format!(
                "[[inbound]]\nprotocol = \"obfs\"\nobfs = \"http\"\nlisten = \"{}\"\ntarget = \"{}\"\n",
                peers.front, peers.echo
            )
        }),
        halves: &[NOTHING],
        ask: |site| round_trip(&mut connect(site.peers.at)?),
    },
    Row {
        name: "snell",
        site: Starts::File(|peers| server(peers, &format!("protocol = \"snell\"\npsk = \"{PSK}\"\n"))),
        client: Some(|peers| {
            client(peers, &format!("protocol = \"snell\"\npsk = \"{PSK}\"\nreuse = false\n"))
        }),
        halves: SERVER,
        ask: |site| through_socks(site.peers.front, site.peers.echo, None),
    },
    Row {
        name: "snell with obfs",
        site: Starts::File(|peers| {
            server(peers, &format!("protocol = \"snell\"\npsk = \"{PSK}\"\nobfs = \"http\"\n"))
        }),
        client: Some(|peers| {
            let keys = format!("protocol = \"snell\"\npsk = \"{PSK}\"\nobfs = \"http\"\nreuse = false\n");
            client(peers, &keys)
        }),
        halves: SERVER,
        ask: |site| through_socks(site.peers.front, site.peers.echo, None),
    },
    Row {
        name: "shadowsocks of 2022",
        site: Starts::File(|peers| server(peers, SHADOWSOCKS_2022)),
        client: Some(|peers| client(peers, SHADOWSOCKS_2022)),
        halves: SERVER,
        ask: |site| through_socks(site.peers.front, site.peers.echo, None),
    },
    Row {
        name: "shadowsocks with AEAD",
        site: Starts::File(|peers| server(peers, SHADOWSOCKS_AEAD)),
        client: Some(|peers| client(peers, SHADOWSOCKS_AEAD)),
        halves: SERVER,
        ask: |site| through_socks(site.peers.front, site.peers.echo, None),
    },
    Row {
        name: "shadowsocks with a stream cipher",
        site: Starts::File(|peers| server(peers, SHADOWSOCKS_STREAM)),
        client: Some(|peers| client(peers, SHADOWSOCKS_STREAM)),
        halves: SERVER,
        ask: |site| through_socks(site.peers.front, site.peers.echo, None),
    },
    Row {
        name: "shadowsocks without a cipher",
        site: Starts::File(|peers| server(peers, SHADOWSOCKS_NONE)),
        client: Some(|peers| client(peers, SHADOWSOCKS_NONE)),
        halves: &[NOTHING, |_| b"\x01\x7f".to_vec()],
        ask: |site| through_socks(site.peers.front, site.peers.echo, None),
    },
    Row {
        name: "ssr",
        site: Starts::File(|peers| server(peers, SSR)),
        client: Some(|peers| client(peers, SSR)),
        halves: SERVER,
        ask: |site| through_socks(site.peers.front, site.peers.echo, None),
    },
    Row {
        name: "obfs",
        site: Starts::File(|peers| {
            format!(
                "[[inbound]]\nprotocol = \"obfs\"\nobfs = \"tls\"\nlisten = \"{}\"\ntarget = \"{}\"\n",
                peers.at, peers.echo
            )
        }),
        client: Some(|peers| {
            format!(
                "[[inbound]]\nprotocol = \"tunnel\"\nlisten = \"{}\"\ntarget = \"192.0.2.1:1\"\n\
                 [[outbound]]\nprotocol = \"obfs\"\nobfs = \"tls\"\nobfs-host = \"x\"\nserver = \"{}\"\n",
                peers.front, peers.at
            )
        }),
        halves: SERVER,
        ask: |site| round_trip(&mut connect(site.peers.front)?),
    },
    Row {
        name: "obfs as GoQuiet",
        site: Starts::File(|peers| {
            format!(
                "[[inbound]]\nprotocol = \"obfs\"\nobfs = \"go_quiet\"\npassword = \"secret\"\nlisten = \"{}\"\n\
                 target = \"{}\"\n",
                peers.at, peers.echo
            )
        }),
        client: Some(go_quiet),
        halves: HELLO,
        ask: |site| round_trip(&mut connect(site.peers.front)?),
    },
    Row {
        name: "GoQuiet as a plugin",
        site: Starts::Words(|peers| {
            let (ip, port, target) =
                (peers.at.ip().to_string(), peers.at.port().to_string(), peers.echo.to_string());
            let options = format!("Key=secret;WebServerAddr={};", peers.web);
            let words = ["gq-server", "-s", &ip, "-p", &port, "-r", &target, "-c", &options];
            words.map(str::to_owned).into()
        }),
        client: Some(go_quiet),
        halves: HELLO,
        ask: |site| round_trip(&mut connect(site.peers.front)?),
    },
    Row {
        name: "mixed over KCP",
        // Those who hold it come by the client, which has the key.
        site: Starts::File(|peers| {
            format!(
                "[[inbound]]\nprotocol = \"mixed\"\nlisten = \"{}\"\ncarrier = \"kcp\"\ncarrier-key = \"k\"\n",
                peers.front
            )
        }),
        client: Some(|peers| {
            format!(
                "[[inbound]]\nprotocol = \"tunnel\"\nlisten = \"{}\"\ntarget = \"192.0.2.1:1\"\n[[outbound]]\n\
                 protocol = \"direct\"\ncarrier = \"kcp\"\ncarrier-key = \"k\"\ncarrier-server = \"{}\"\n",
                peers.at, peers.front
            )
        }),
        halves: &[|_| b"\x05".to_vec(), |_| b"GET http://x".to_vec()],
        ask: |site| through_socks(site.peers.at, site.peers.echo, None),
    },
    Row {
        name: "dns over TCP",
        site: Starts::File(|peers| dns(peers, "")),
        client: None,
        halves: &[
            NOTHING,
            |_| b"\x00".to_vec(),
            |_| b"\x00\xff\x12\x34\x01".to_vec(),
            // Whole questions: one that is answered, and one that never is.
            |_| over_tcp(&question("known.test")),
            |_| over_tcp(&question("a.silent")),
        ],
        ask: |site| {
            let mut stream = connect(site.peers.at)?;
            stream.write_all(&over_tcp(&question(&fresh())))?;
            let mut len = [0; 2];
            stream.read_exact(&mut len)?;
            let mut answer = vec![0; u16::from_be_bytes(len).into()];
            stream.read_exact(&mut answer)?;
            answered(&answer)
        },
    },
    Row {
        name: "metrics",
        site: Starts::File(|peers| admin(&format!("http = \"{}\"\n", peers.at))),
        client: None,
        halves: &[NOTHING, |_| b"GET / HTTP/1.1\r\nA: ".to_vec()],
        ask: |site| http(site.peers.at, "GET /live HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n", "200"),
    },
    Row {
        name: "clash",
        site: Starts::File(|peers| {
            admin(&format!("clash = \"{}\"\nclash-secret = \"0123456789abcdef\"\n", peers.at))
        }),
        client: None,
        halves: &[
            NOTHING,
            |_| b"GET / HTTP/1.1\r\nA: ".to_vec(),
            |_| b"PUT /configs HTTP/1.1\r\nHost: x\r\nContent-Length: 9999\r\n\r\n".to_vec(),
        ],
        ask: |site| {
            let request =
                "GET /version HTTP/1.1\r\nHost: 127.0.0.1\r\nAuthorization: Bearer 0123456789abcdef\r\n\r\n";
            http(site.peers.at, request, "200")
        },
    },
    Row {
        name: "manage",
        site: Starts::File(|peers| {
            let admin = format!("manage = \"{}\"\nmanage-secret = \"0123456789abcdefghijkl\"\n", peers.at);
            format!(
                "state = \"state\"\n[admin]\n{admin}[[inbound]]\nprotocol = \"shadowsocks\"\nlisten = \"{}\"\n\
                 method = \"aes-128-gcm\"\nusers = [{{ name = \"first\", password = \"p\" }}]\n",
                peers.front
            )
        }),
        client: None,
        halves: &[NOTHING, |_| b"\x16\x03\x01\x02\x00".to_vec()],
        ask: |site| {
            let url = format!("https://{}/0123456789abcdefghijkl/server", site.peers.at);
            let args = ["-skf", "--noproxy", "*", "--max-time", "2", "-o", "/dev/null", &url];
            let status = site.dir.command("curl", &args).status()?;
            if status.success() { Ok(()) } else { Err(io::Error::other(status.to_string())) }
        },
    },
    Row {
        name: "control socket",
        site: Starts::File(|peers| admin(&format!("socket = \"{}\"\n", peers.socket.display()))),
        client: None,
        halves: &[NOTHING, |_| b"{".to_vec()],
        ask: |site| {
            let path = site.peers.socket.to_str().unwrap();
            let output = site.dir.adit(&["status", "--socket", path]).output()?;
            if output.status.success() { Ok(()) } else { Err(io::Error::other(format!("{output:?}"))) }
        },
    },
    Row {
        name: "snowflake broker",
        site: Starts::Words(|peers| {
            let at = peers.at.to_string();
            ["snowflake-broker", "-disable-tls", "-disable-geoip", "-addr", &at].map(Into::into).into()
        }),
        client: None,
        halves: &[
            NOTHING,
            |_| b"GET / HTTP/1.1\r\nA: ".to_vec(),
            |_| b"POST /proxy HTTP/1.1\r\nHost: x\r\nContent-Length: 9999\r\n\r\n".to_vec(),
        ],
        ask: |site| http(site.peers.at, "GET /debug HTTP/1.1\r\nHost: x\r\n\r\n", "200"),
    },
    Row {
        name: "snowflake server",
        site: Starts::Words(|peers| {
            let (at, target) = (peers.at.to_string(), peers.echo.to_string());
            ["snowflake-server", "-disable-tls", "-listen", &at, "-target", &target].map(Into::into).into()
        }),
        client: None,
        halves: &[NOTHING, |_| b"GET / HTTP/1.1\r\nUpgrade: websocket\r\n".to_vec()],
        ask: |site| {
            let request = "GET / HTTP/1.1\r\nHost: x\r\nUpgrade: websocket\r\nConnection: upgrade\r\n\
                           Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n";
            http(site.peers.at, request, "101")
        },
    },
];

const SHADOWSOCKS_2022: &str = "protocol = \"shadowsocks\"\nmethod = \"2022-blake3-aes-128-gcm\"\n\
                                password = \"MDEyMzQ1Njc4OWFiY2RlZg==\"\n";
const SHADOWSOCKS_AEAD: &str = "protocol = \"shadowsocks\"\nmethod = \"aes-128-gcm\"\npassword = \"p\"\n";
const SHADOWSOCKS_STREAM: &str = "protocol = \"shadowsocks\"\nmethod = \"aes-128-ctr\"\npassword = \"p\"\n";
const SHADOWSOCKS_NONE: &str = "protocol = \"shadowsocks\"\nmethod = \"none\"\n";
const SSR: &str =
    "protocol = \"ssr\"\nmethod = \"aes-128-ctr\"\npassword = \"p\"\nssr-protocol = \"auth_aes128_md5\"\n";

/// A server with these keys.
fn server(peers: &Peers, keys: &str) -> String {
    format!("[[inbound]]\nlisten = \"{}\"\nallow-private = true\n{keys}", peers.at)
}

/// A client of it.
fn client(peers: &Peers, keys: &str) -> String {
    format!(
        "[[inbound]]\nprotocol = \"mixed\"\nlisten = \"{}\"\n[[outbound]]\nserver = \"{}\"\n{keys}",
        peers.front, peers.at
    )
}

/// A name server for applications, with these keys in `[dns]` or behind it.
fn dns(peers: &Peers, keys: &str) -> String {
    format!(
        "[dns]\n{keys}[[dns.upstream]]\nserver = \"{}\"\n[[inbound]]\nprotocol = \"dns\"\nlisten = \"{}\"\n",
        peers.names, peers.at
    )
}

/// A name that nobody has asked for.
fn fresh() -> String {
    static NEXT: AtomicUsize = AtomicUsize::new(0);
    format!("n{}.test", NEXT.fetch_add(1, Ordering::Relaxed))
}

/// The question for the address of a name.
fn question(name: &str) -> Vec<u8> {
    let mut out = vec![0x12, 0x34, 1, 0, 0, 1, 0, 0, 0, 0, 0, 0];
    for label in name.split('.') {
        out.push(u8::try_from(label.len()).unwrap());
        out.extend(label.bytes());
    }
    out.extend([0, 0, 1, 0, 1]);
    out
}

fn over_tcp(question: &[u8]) -> Vec<u8> {
    [&u16::try_from(question.len()).unwrap().to_be_bytes()[..], question].concat()
}

/// An error unless the answer has one address.
fn answered(answer: &[u8]) -> io::Result<()> {
    let (code, count) = (answer[3] & 15, answer[7]);
    if (code, count) == (0, 1) {
        Ok(())
    } else {
        Err(io::Error::other(format!("code {code}, {count} answers")))
    }
}

/// A name server that gives 127.0.0.1 to every name, and never answers for those of `silent`.
fn name_server() -> SocketAddr {
    let socket = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let at = socket.local_addr().unwrap();
    thread::spawn(move || {
        let mut buffer = [0; 1500];
        while let Ok((len, peer)) = socket.recv_from(&mut buffer) {
            let end = 12 + buffer[12..len].iter().position(|byte| *byte == 0).unwrap() + 5;
            if buffer[..end].windows(7).any(|part| part == b"\x06silent") {
                continue;
            }
            let is_address = buffer[end - 3] == 1;
            let mut answer = buffer[..end].to_vec();
            answer[2..12].copy_from_slice(&[0x81, 0x80, 0, 1, 0, is_address.into(), 0, 0, 0, 0]);
            if is_address {
                answer.extend([0xc0, 0x0c, 0, 1, 0, 1, 0, 0, 0, 60, 0, 4, 127, 0, 0, 1]);
            }
            socket.send_to(&answer, peer).ok();
        }
    });
    at
}

/// A process with these ports for those who run it.
fn admin(keys: &str) -> String {
    format!("[admin]\n{keys}[[inbound]]\nprotocol = \"mixed\"\nlisten = \"{}\"\n", unused_addr())
}

fn connect(at: SocketAddr) -> io::Result<TcpStream> {
    let stream = TcpStream::connect_timeout(&at, SERVED_BESIDE_OTHERS)?;
    stream.set_read_timeout(Some(SERVED_BESIDE_OTHERS))?;
    stream.set_nodelay(true)?;
    Ok(stream)
}

fn round_trip(stream: &mut TcpStream) -> io::Result<()> {
    stream.write_all(b"hello")?;
    let mut back = [0; 5];
    stream.read_exact(&mut back)?;
    assert_eq!(&back, b"hello");
    Ok(())
}

fn v4(at: SocketAddr) -> Vec<u8> {
    let SocketAddr::V4(at) = at else { unreachable!("tests run on 127.0.0.0/8") };
    at.ip().octets().to_vec()
}

fn socks4(to: SocketAddr) -> Vec<u8> {
    [&[4, 1][..], &to.port().to_be_bytes(), &v4(to), &[0]].concat()
}

fn socks5(to: SocketAddr) -> Vec<u8> {
    [&[5, 1, 0, 1][..], &v4(to), &to.port().to_be_bytes()].concat()
}

/// One client of a SOCKS5 port, which waits for each answer, as browsers do.
fn through_socks(at: SocketAddr, to: SocketAddr, user: Option<(&str, &str)>) -> io::Result<()> {
    let mut stream = connect(at)?;
    let mut answer = [0; 10];
    let method = if user.is_some() { 2 } else { 0 };
    stream.write_all(&[5, 1, method])?;
    stream.read_exact(&mut answer[..2])?;
    assert_eq!(answer[..2], [5, method]);
    if let Some((name, word)) = user {
        let len = |text: &str| [u8::try_from(text.len()).unwrap()];
        stream.write_all(&[&[1][..], &len(name), name.as_bytes(), &len(word), word.as_bytes()].concat())?;
        stream.read_exact(&mut answer[..2])?;
        assert_eq!(answer[..2], [1, 0]);
    }
    stream.write_all(&socks5(to))?;
    stream.read_exact(&mut answer)?;
    if answer[..2] != [5, 0] {
        return Err(io::Error::other(format!("reply {}", answer[1])));
    }
    round_trip(&mut stream)
}

/// A request of HTTP whose answer has this status.
fn http(at: SocketAddr, request: &str, status: &str) -> io::Result<()> {
    let mut stream = connect(at)?;
    stream.write_all(request.as_bytes())?;
    let mut line = [0; 12];
    stream.read_exact(&mut line)?;
    let line = String::from_utf8_lossy(&line).into_owned();
    if line.ends_with(status) { Ok(()) } else { Err(io::Error::other(line)) }
}

/// A target that sends back all bytes of any number of connections.
fn echo() -> SocketAddr {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let at = listener.local_addr().unwrap();
    let (sender, accepted) = std::sync::mpsc::channel();
    thread::spawn(move || {
        for stream in listener.incoming().map_while(Result::ok) {
            stream.set_nonblocking(true).ok();
            if sender.send(stream).is_err() {
                return;
            }
        }
    });
    thread::spawn(move || {
        let mut open: Vec<TcpStream> = Vec::new();
        let mut bytes = [0; 512];
        loop {
            let next = accepted.recv_timeout(Duration::from_millis(1));
            match next {
                Ok(stream) => open.push(stream),
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => return,
            }
            open.extend(accepted.try_iter());
            open.retain_mut(|stream| match stream.read(&mut bytes) {
                Ok(len @ 1..) => stream.write_all(&bytes[..len]).is_ok(),
                Ok(0) => false,
                Err(error) => error.kind() == io::ErrorKind::WouldBlock,
            });
        }
    });
    at
}

/// A client of GoQuiet.
fn go_quiet(peers: &Peers) -> String {
    format!(
        "[[inbound]]\nprotocol = \"tunnel\"\nlisten = \"{}\"\ntarget = \"192.0.2.1:1\"\n[[outbound]]\n\
         protocol = \"obfs\"\nobfs = \"go_quiet\"\npassword = \"secret\"\nobfs-host = \"www.example.com\"\n\
         server = \"{}\"\n",
        peers.front, peers.at
    )
}

/// A target that answers requests of HTTP.
fn web() -> SocketAddr {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let at = listener.local_addr().unwrap();
    thread::spawn(move || {
        for mut stream in listener.incoming().map_while(Result::ok) {
            thread::spawn(move || {
                let mut bytes = [0; 4096];
                while let Ok(1..) = stream.read(&mut bytes) {
                    stream.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n").ok();
                }
            });
        }
    });
    at
}

/// A target that never answers a SYN, with what keeps it so.
fn silent() -> (SocketAddr, Vec<Socket>) {
    let listener = Socket::new(Domain::IPV4, Type::STREAM, None).unwrap();
    listener.bind(&SocketAddr::from((Ipv4Addr::LOCALHOST, 0)).into()).unwrap();
    listener.listen(0).unwrap();
    let at = listener.local_addr().unwrap().as_socket().unwrap();
    let mut held = vec![listener];
    for _ in 0..4 {
        held.push(knock(&at.into(), None, b"").unwrap());
    }
    (at, held)
}

/// Connects, and sends the first bytes of a handshake, as far as the system takes all that at once.
fn knock(at: &SockAddr, source: Option<Ipv4Addr>, bytes: &[u8]) -> io::Result<Socket> {
    const IN_PROGRESS: i32 = 115;
    let socket = Socket::new(at.domain(), Type::STREAM, None)?;
    if let Some(source) = source {
        socket.bind(&SocketAddr::from((source, 0)).into())?;
    }
    socket.set_nonblocking(true)?;
    match socket.connect(at) {
        Err(error) if error.raw_os_error() != Some(IN_PROGRESS) => return Err(error),
        Ok(()) | Err(_) => {}
    }
    socket.send(bytes).ok();
    Ok(socket)
}

/// The addresses that a port is held from.
#[derive(Debug, Clone, Copy)]
enum From {
    One,
    Many,
}

/// Connections that hold a port: there are always so many, the oldest makes room for a new one, and each sends another byte
/// now and then.
struct Flood {
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Flood {
    fn new(at: SockAddr, from: From, half: Vec<u8>, count: usize) -> Self {
        let mut number = 0_u16;
        let mut open = move || {
            number = number.wrapping_add(1);
            let [high, low] = number.to_be_bytes();
            let source = matches!(from, From::Many).then(|| Ipv4Addr::new(127, 40, high, low | 1));
            let source = source.filter(|_| at.is_ipv4());
            let socket = knock(&at, source, &half).ok();
            if let Some(socket) = &socket {
                // No address is held beyond the connection.
                socket.set_linger(Some(Duration::ZERO)).ok();
            }
            (socket, half.is_empty())
        };
        let mut held: VecDeque<_> = (0..count).map(|_| open()).collect();
        let stop = Arc::new(AtomicBool::new(false));
        let is_over = stop.clone();
        // A client is quicker than as many others as there are places; nobody is with sixty descriptors and thousands.
        let pace = if count < 500 { Duration::from_millis(10) } else { Duration::from_millis(1) };
        let thread = thread::spawn(move || {
            let mut turn = 0;
            while !is_over.load(Ordering::Relaxed) {
                held.pop_front();
                held.push_back(open());
                turn = (turn + 1) % held.len();
                if let (Some(socket), false) = &held[turn] {
                    socket.send(b"a").ok();
                }
                thread::sleep(pace);
            }
        });
        Self { stop, thread: Some(thread) }
    }
}

impl Drop for Flood {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            thread.join().ok();
        }
    }
}

impl Row {
    /// The row as it runs with so many descriptors.
    fn start(&self, descriptors: usize, peers: Peers, dir: Dir) -> Site {
        let client = self.client.map(|client| {
            dir.file("client.toml", &client(&peers));
            let client = Running::start(dir.adit(&["run", "-c", "client.toml"]));
            client.line("listening");
            client
        });
        let words = match &self.site {
            Starts::File(file) => {
                dir.file("a.toml", &file(&peers));
                ["run", "-c", "a.toml"].map(Into::into).into()
            }
            Starts::Words(words) => words(&peers),
        };
        let program = env!("CARGO_BIN_EXE_adit");
        let script = format!("ulimit -n {descriptors} && exec '{program}' \"$@\"");
        let mut command = dir.command("sh", &["-c", &script, "adit"]);
        command.args(words);
        let running = Running::start(command);
        let site = Site { peers, dir, _client: client, running };
        // Other ports may be ready before this one.
        let began = Instant::now();
        while let Err(error) = (self.ask)(&site) {
            assert!(
                began.elapsed() < crate::support::PATIENCE,
                "{}: {error}\n{}",
                self.name,
                site.running.log()
            );
            thread::sleep(Duration::from_millis(10));
        }
        site
    }

    /// Requests that hold it as well, and are whole.
    fn whole(&self) -> &'static [Half] {
        match self.name {
            "mixed" => LOCAL_WHOLE,
            "GoQuiet as a plugin" | "obfs as GoQuiet" => HELLO_WHOLE,
            "shadowsocks without a cipher" => &[|peers| socks5(peers.silent)[3..].to_vec()],
            _ => &[],
        }
    }

    /// The address that is held.
    fn held(&self, peers: &Peers) -> SockAddr {
        if self.name == "control socket" { SockAddr::unix(&peers.socket).unwrap() } else { peers.at.into() }
    }

    /// Asks it while it is held by so many connections from these addresses, in each way; gives the clients that were not
    /// served.
    fn hold(&self, descriptors: usize, from: From, count: usize, bar: Bar) -> Vec<String> {
        if descriptors < 1024 && self.name.starts_with("tunnel") {
            // A connection without a byte is a whole request there: as with `LOCAL_WHOLE`.
            return Vec::new();
        }
        let dir = Dir::new();
        let (silent, _keep) = silent();
        let socket = dir.path().join("control");
        let (at, front) = (unused_addr(), unused_addr());
        let peers = Peers { at, front, echo: echo(), web: web(), silent, names: name_server(), socket };
        let site = self.start(descriptors, peers, dir);
        let mut lost = Vec::new();
        let whole = if descriptors >= 1024 { self.whole() } else { &[] };
        for (number, half) in self.halves.iter().chain(whole).enumerate() {
            // A way back and forth by KCP, and a handshake of TLS at a port with few places, take longer than hundreds of
            // others need to come.
            let is_slow = self.name.contains("KCP") || self.name == "manage";
            let count = if is_slow { count / 10 } else { count };
            let flood = Flood::new(self.held(&site.peers), from, half(&site.peers), count);
            let mut times = Vec::new();
            for _ in 0..bar.clients {
                let began = Instant::now();
                let mut result = (self.ask)(&site);
                while result.is_err() && bar.tries_again && began.elapsed() < bar.served {
                    result = (self.ask)(&site);
                }
                times.push((began.elapsed(), result.map_err(|error| error.to_string())));
            }
            drop(flood);
            let bad = times.iter().filter(|(time, result)| result.is_err() || *time > bar.served).count();
            if bad > 0 {
                lost.push(format!(
                    "{}, {descriptors} descriptors, {from:?}, way {number}: {bad} of {} not served: {times:?}",
                    self.name, bar.clients
                ));
            }
        }
        if !lost.is_empty() {
            lost.push(site.running.log());
        }
        lost
    }
}

/// Holds all ports, one after the other; gives the clients that were not served.
fn hold_all(descriptors: usize, from: From, count: usize, bar: Bar) -> Vec<String> {
    // The sockets of those who hold the ports.
    adit_net::raise_fd_limit().unwrap();
    let only = std::env::var("ADIT_ROOM").ok();
    let mut lost = Vec::new();
    for row in ROWS.iter().filter(|row| only.as_ref().is_none_or(|only| row.name.contains(only.as_str()))) {
        lost.extend(row.hold(descriptors, from, count, bar));
    }
    lost
}

fn assert_served(lost: &[String]) {
    assert!(lost.is_empty(), "{}", lost.join("\n"));
}

#[test]
fn every_kind_of_port_is_in_the_table() {
    let socket = PathBuf::from("/tmp/s");
    let [at, front, echo, web, silent, names] = std::array::from_fn(|_| unused_addr());
    let peers = Peers { at, front, echo, web, silent, names, socket };
    let mut seen: BTreeSet<&str> = ELSEWHERE.into();
    let mut admin = [false; 4];
    for row in ROWS {
        let Starts::File(file) = &row.site else { continue };
        let config: Config = adit_toml::parse("a.toml", &file(&peers)).unwrap().config;
        seen.extend(config.inbounds.iter().map(|inbound| kind(&inbound.protocol)));
        let Config { admin_http, controller, manage, .. } = &config;
        let has =
            [admin_http.is_some(), controller.is_some(), manage.is_some(), row.name == "control socket"];
        admin = std::array::from_fn(|at| admin[at] || has[at]);
    }
    assert_eq!(seen, KINDS.iter().copied().collect());
    assert_eq!(admin, [true; 4]);
}

#[test]
fn ports_with_1024_descriptors_that_one_address_holds() {
    assert_served(&hold_all(1024, From::One, 1000, BESIDE_OTHERS));
}

#[test]
fn ports_with_64_descriptors_that_many_addresses_hold() {
    assert_served(&hold_all(64, From::Many, 100, BESIDE_OTHERS));
}

/// Names of a port while others ask for what is never answered: those that are known, and those that are not.
struct Names {
    descriptors: usize,
    /// Questions a second.
    rate: u32,
    /// The address that these come from.
    from: [u8; 4],
    /// Whether the first name server never answers.
    is_silent: bool,
}

impl Names {
    /// Names that were not answered in time.
    fn lost(&self, served: Duration) -> Vec<String> {
        const ASKED: usize = 60;
        let Self { descriptors, rate, from, is_silent } = *self;
        let dead = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let dead = (is_silent, dead.local_addr().unwrap(), dead);
        let first = format!("[[dns.upstream]]\nserver = \"{}\"\n", dead.1);
        let (at, names, socket) = (unused_addr(), name_server(), PathBuf::new());
        let peers = Peers { at, front: at, echo: at, web: at, silent: at, names, socket };
        let dir = Dir::new();
        dir.file("a.toml", &dns(&peers, if is_silent { &first } else { "" }));
        let program = env!("CARGO_BIN_EXE_adit");
        let script = format!("ulimit -n {descriptors} && exec '{program}' run -c a.toml");
        let running = Running::start(dir.command("sh", &["-c", &script]));
        running.line("network=tcp+udp");
        let ask = |name: &str, limit: Duration| {
            let began = Instant::now();
            let socket = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
            socket.set_read_timeout(Some(limit.min(SERVED))).unwrap();
            let mut answer = [0; 512];
            // The kernel drops questions to a process that does not run: a client asks again.
            let result = loop {
                socket.send_to(&question(name), at).unwrap();
                let result = socket.recv(&mut answer).and_then(|_| answered(&answer));
                let is_late = |error: &io::Error| error.kind() == io::ErrorKind::WouldBlock;
                if !result.as_ref().is_err_and(is_late) || began.elapsed() >= limit {
                    break result;
                }
            };
            result.map_err(|error| format!("{name}: {error} after {:?}", began.elapsed())).err()
        };
        // Beside a silent server an answer takes a second, until the other one is known to be quicker.
        let patience = if is_silent { 2 * served } else { served };
        let known: Vec<String> = (0..ASKED).map(|_| fresh()).collect();
        for name in &known {
            let began = Instant::now();
            while ask(name, SERVED_BESIDE_OTHERS).is_some() {
                assert!(began.elapsed() < crate::support::PATIENCE, "{}", running.log());
            }
        }
        let stop = Arc::new(AtomicBool::new(false));
        let is_over = stop.clone();
        let flood = thread::spawn(move || {
            let socket = UdpSocket::bind((IpAddr::from(from), 0)).unwrap();
            let (began, mut sent) = (Instant::now(), 0_u32);
            while !is_over.load(Ordering::Relaxed) {
                // No more than a second's at once, on a busy machine too.
                let due = began.elapsed().as_millis() * u128::from(rate) / 1000;
                while u128::from(sent) < due.min(u128::from(sent) + u128::from(rate)) {
                    socket.send_to(&question(&format!("n{sent}.silent")), at).ok();
                    sent += 1;
                }
                thread::sleep(Duration::from_millis(2));
            }
        });
        // Until so many wait that there is no room for more.
        thread::sleep(Duration::from_millis(1500));
        let mut lost: Vec<String> = known.iter().filter_map(|name| ask(name, served)).collect();
        lost.extend((0..ASKED).filter_map(|_| ask(&fresh(), patience)));
        stop.store(true, Ordering::Relaxed);
        flood.join().unwrap();
        if !lost.is_empty() {
            lost.insert(0, format!("{descriptors} descriptors, {rate} a second, silent: {is_silent}"));
        }
        lost
    }
}

fn ask_for_names(served: Duration) {
    let (same, other) = ([127, 0, 0, 1], [127, 0, 0, 9]);
    // Nobody can tell the questions of one address apart: the oldest is to be answered before as many others come as wait.
    // A program that gets a fifth of a core does not even read 1500 questions a second.
    let (beside, more) = if served == SERVED { (1500, 1500) } else { (100, 500) };
    let cases = [(1024, beside, same, false), (1024, more, other, true), (64, 500, other, false)];
    let threads = cases.map(|(descriptors, rate, from, is_silent)| {
        thread::spawn(move || Names { descriptors, rate, from, is_silent }.lost(served))
    });
    let lost: Vec<String> = threads.into_iter().flat_map(|thread| thread.join().unwrap()).collect();
    assert_served(&lost);
}

#[test]
fn names_are_answered_while_others_ask_for_what_nobody_answers() {
    ask_for_names(SERVED_BESIDE_OTHERS);
}

#[test]
#[ignore = "full suite: the times are those of a machine that does nothing else"]
fn names_are_answered_within_a_second_while_others_ask() {
    ask_for_names(SERVED);
}

#[test]
#[ignore = "takes minutes"]
fn ports_that_thousands_of_connections_hold() {
    let cases = [(64, From::One), (64, From::Many), (1024, From::One), (1024, From::Many)];
    let lost = cases.map(|(descriptors, from)| hold_all(descriptors, from, 4000, ALONE));
    assert_served(&lost.concat());
}
