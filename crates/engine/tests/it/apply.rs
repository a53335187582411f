//! A configuration takes the place of another one while connections and flows are open: those that it does not concern
//! do not notice.

use std::io::{Read, Write};
use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use adit_engine::{InboundStatus, Running, start};
use adit_formats::adit_toml;
use adit_formats::shadowsocks::{ProgramFamily, acl};
use adit_model::Config;
use adit_model::access::AccessList;
use adit_testkit::peer::echo;
use adit_testkit::unused_addr;

const METHOD: &str = "2022-blake3-aes-128-gcm";
const MAIN: &str = "AAAAAAAAAAAAAAAAAAAAAA==";
const ANN: &str = "AQAAAAAAAAAAAAAAAAAAAA==";
const BOB: &str = "AgAAAAAAAAAAAAAAAAAAAA==";
const TIME: Duration = Duration::from_secs(120);

/// The part of a configuration beside the parts that are held.
#[derive(Clone)]
struct Extra {
    /// Address of the inbound that comes and goes, if it is there.
    guest: Option<SocketAddr>,
    /// Timeout in seconds of the outbound that comes and goes, if it is there.
    spare: Option<u32>,
    /// Bob is a user.
    bob: bool,
    /// Connections that Ann may have. (A rate would be allowed to drop datagrams.)
    connections: u32,
    /// Members that the tunnel through a group may choose from.
    members: &'static str,
    /// The guest may not reach this.
    blocked: Option<&'static str>,
}

/// Addresses and the echo behind them.
struct Place {
    held: SocketAddr,
    chain: SocketAddr,
    grouped: SocketAddr,
    server: SocketAddr,
    bobs: SocketAddr,
    echo: SocketAddr,
}

impl Place {
    fn new() -> Self {
        let [held, chain, grouped, server, bobs] = [(); 5].map(|()| unused_addr());
        Self { held, chain, grouped, server, bobs, echo: echo() }
    }

    fn config(&self, extra: &Extra) -> Config {
        let Self { held, chain, grouped, server, bobs, echo } = self;
        let tunnel = |name: &str, at: &SocketAddr, outbound: &str| {
            format!(
                "[[inbound]]\nname = \"{name}\"\nprotocol = \"tunnel\"\nlisten = \"{at}\"\ntarget = \"{echo}\"\n\
                 network = \"tcp-and-udp\"\noutbound = \"{outbound}\"\n"
            )
        };
        let client = |name: &str, key: &str| {
            format!(
                "[[outbound]]\nname = \"{name}\"\nprotocol = \"shadowsocks\"\nserver = \"{server}\"\n\
                 method = \"{METHOD}\"\npassword = \"{MAIN}:{key}\"\nnetwork = \"tcp-and-udp\"\n"
            )
        };
        let mut text = format!(
            "cores = 2\nstate = \"off\"\n[limits]\ndrain = \"100ms\"\n{}",
            tunnel("held", held, "direct")
        );
        text += &tunnel("chain", chain, "ann");
        text += &tunnel("grouped", grouped, "group");
        text += &tunnel("bobs", bobs, "bob");
        if let Some(at) = &extra.guest {
            let outbound = if extra.spare.is_some() { "spare" } else { "direct" };
            text += &tunnel("guest", at, outbound);
        }
        let bob =
            if extra.bob { format!("{{ name = \"bob\", password = \"{BOB}\" }}, ") } else { String::new() };
        text += &format!(
            "[[inbound]]\nname = \"server\"\nprotocol = \"shadowsocks\"\nlisten = \"{server}\"\nmethod = \"{METHOD}\"\n\
             password = \"{MAIN}\"\nnetwork = \"tcp-and-udp\"\noutbound = \"direct\"\nallow-private = true\n\
             users = [{bob}{{ name = \"ann\", password = \"{ANN}\", connections = {} }}]\n",
            extra.connections
        );
        text += "[[outbound]]\nname = \"direct\"\nprotocol = \"direct\"\n";
        text += &client("ann", ANN);
        text += &client("bob", BOB);
        text += &format!(
            "[[outbound]]\nname = \"group\"\nprotocol = \"group\"\nmembers = [{}]\n\
                 check-url = \"http://127.0.0.1:1/\"\ncheck-dns = \"127.0.0.1:1\"\n",
            extra.members
        );
        if let Some(timeout) = extra.spare {
            text +=
                &format!("[[outbound]]\nname = \"spare\"\nprotocol = \"direct\"\ntimeout = \"{timeout}s\"\n");
        }
        let mut config =
            adit_toml::parse("apply.toml", &text).unwrap_or_else(|found| panic!("{found}\n{text}")).config;
        if let Some(blocked) = extra.blocked {
            let rules = format!("[proxy_all]\n[bypass_list]\n{blocked}\n");
            let list = AccessList::new(acl::parse(ProgramFamily::Rust, "rules", &rules).unwrap().0);
            config.acl_of.insert("guest".into(), list);
        }
        config
    }
}

impl Extra {
    fn none() -> Self {
        let members = "{ name = \"direct\" }";
        Self { guest: None, spare: None, bob: true, connections: 5000, members, blocked: None }
    }
}

/// Connections that are open while configurations change.
struct Held {
    streams: Vec<TcpStream>,
    flows: Vec<UdpSocket>,
    turn: u32,
}

impl Held {
    fn open(at: &[SocketAddr], streams: usize, flows: usize) -> Self {
        let stream = |i: usize| {
            let stream = TcpStream::connect(at[i % at.len()]).unwrap();
            stream.set_read_timeout(Some(TIME)).unwrap();
            stream.set_nodelay(true).unwrap();
            stream
        };
        let flow = |i: usize| {
            let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
            socket.connect(at[i % at.len()]).unwrap();
            socket.set_read_timeout(Some(TIME)).unwrap();
            socket
        };
        let mut held = Self {
            streams: (0..streams).map(stream).collect(),
            flows: (0..flows).map(flow).collect(),
            turn: 0,
        };
        held.exchange("at first");
        held
    }

    /// Every stream and every flow carries a message there and back; nothing is lost.
    fn exchange(&mut self, after: &str) {
        self.send();
        self.receive(after);
    }

    fn message(&self, i: usize) -> [u8; 8] {
        let (turn, i) = (self.turn, u32::try_from(i).unwrap());
        (u64::from(turn) << 32 | u64::from(i)).to_be_bytes()
    }

    fn send(&mut self) {
        self.turn += 1;
        for (i, mut stream) in self.streams.iter().enumerate() {
            stream.write_all(&self.message(i)).unwrap();
        }
        for (i, flow) in self.flows.iter().enumerate() {
            assert_eq!(flow.send(&self.message(i)).unwrap(), 8);
        }
    }

    fn receive(&self, after: &str) {
        self.receive_with(after, &String::new);
    }

    fn receive_with(&self, after: &str, more: &dyn Fn() -> String) {
        let mut bytes = [0; 8];
        for (i, mut stream) in self.streams.iter().enumerate() {
            stream.read_exact(&mut bytes).unwrap_or_else(|error| panic!("stream {i} {after}: {error}"));
            assert_eq!(bytes, self.message(i), "stream {i} {after}");
        }
        for (i, flow) in self.flows.iter().enumerate() {
            let len =
                flow.recv(&mut bytes).unwrap_or_else(|error| panic!("flow {i} {after}: {error} {}", more()));
            assert_eq!((len, bytes), (8, self.message(i)), "flow {i} {after}");
        }
    }

    /// Changes the configuration while messages are under way.
    fn through(&mut self, running: &Running, config: &Config, what: &str) -> adit_engine::Changes {
        self.send();
        let changes = running.apply(config).unwrap_or_else(|error| panic!("{what}: {error}"));
        self.receive_with(what, &|| format!("{:?}", Dropped(running)));
        self.exchange(what);
        changes
    }
}

/// Datagrams that were dropped, by inbound and cause.
struct Dropped<'r>(&'r Running);

impl std::fmt::Debug for Dropped<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let inbounds = self.0.status().inbounds.into_iter();
        f.debug_map().entries(inbounds.map(|inbound| (inbound.name, inbound.datagrams))).finish()
    }
}

fn works(at: SocketAddr) -> bool {
    answers_within(at, TIME)
}

fn answers_within(at: SocketAddr, time: Duration) -> bool {
    let Ok(mut stream) = TcpStream::connect(at) else { return false };
    stream.set_read_timeout(Some(time)).unwrap();
    let mut answer = [0; 5];
    stream.write_all(b"hello").is_ok() && stream.read_exact(&mut answer).is_ok() && answer == *b"hello"
}

fn names(tags: &[adit_model::Tag]) -> Vec<&str> {
    tags.iter().map(|tag| &**tag).collect()
}

fn each_kind_of_change(streams: usize, flows: usize, times: usize) {
    let place = Place::new();
    let none = Extra::none();
    let running = start(&place.config(&none)).unwrap();
    let mut held = Held::open(&[place.held, place.chain, place.grouped], streams, flows);
    let guests = [unused_addr(), unused_addr()];
    let mut bob = TcpStream::connect(place.bobs).unwrap();
    for round in 0..times {
        let [one, two] = guests;
        let mut step = |extra: &Extra, what: &str| held.through(&running, &place.config(extra), what);
        let with = Extra { guest: Some(one), ..none.clone() };
        assert_eq!(names(&step(&with, "inbound added").opened), ["guest"]);
        assert!(works(one), "round {round}");
        let moved = Extra { guest: Some(two), ..none.clone() };
        let changes = step(&moved, "inbound moved");
        assert_eq!((names(&changes.opened), names(&changes.closed)), (vec!["guest"], vec!["guest"]));
        assert!(works(two) && TcpStream::connect(one).is_err(), "round {round}");
        let spare = Extra { spare: Some(5), ..moved.clone() };
        let changes = step(&spare, "outbound added");
        assert_eq!((names(&changes.outbounds_put), names(&changes.updated)), (vec!["spare"], vec!["guest"]));
        assert!(works(two));
        assert_eq!(
            names(&step(&Extra { spare: Some(6), ..spare.clone() }, "outbound changed").outbounds_put),
            ["spare"]
        );
        assert!(works(two));
        assert_eq!(names(&step(&moved, "outbound removed").outbounds_removed), ["spare"]);
        assert!(works(two));
        let blocked = Extra { blocked: Some("10.0.0.0/8"), ..moved.clone() };
        assert!(step(&blocked, "access rule added").opened.is_empty());
        assert!(works(two));
        assert_eq!(names(&step(&none, "inbound removed").closed), ["guest"]);
        assert!(TcpStream::connect(two).is_err());
        bob.write_all(b"bob").unwrap();
        bob.read_exact(&mut [0; 3]).unwrap();
        let changes = step(&Extra { bob: false, ..none.clone() }, "user removed");
        assert_eq!((names(&changes.updated), changes.opened), (vec!["server"], vec![]));
        bob.set_read_timeout(Some(TIME)).unwrap();
        assert!(!matches!(bob.read(&mut [0; 3]), Ok(1..)), "the connection of a removed user has ended");
        // The server is silent to those it does not know.
        assert!(!answers_within(place.bobs, Duration::from_secs(2)));
        assert_eq!(names(&step(&none, "user added").updated), ["server"]);
        bob = TcpStream::connect(place.bobs).unwrap();
        bob.set_read_timeout(Some(TIME)).unwrap();
        assert_eq!(
            names(&step(&Extra { connections: 6000, ..none.clone() }, "limits changed").updated),
            ["server"]
        );
        let members = "{ name = \"direct\" }, { name = \"ann\" }";
        assert_eq!(
            names(&step(&Extra { members, ..none.clone() }, "group changed").groups_changed),
            ["group"]
        );
        step(&none, "group changed back");
        assert_eq!(running.apply(&place.config(&none)).unwrap(), adit_engine::Changes::default());
    }
    counters_add_up(&running, &held);
    running.end();
}

/// Counters go on through all changes: they show every byte and datagram that was held, and no other.
fn counters_add_up(running: &Running, held: &Held) {
    let all = held.streams.len() + held.flows.len();
    let bytes = all as u64 * u64::from(held.turn) * 8;
    let datagrams = held.flows.len() as u64 * u64::from(held.turn);
    let until = Instant::now() + TIME;
    loop {
        let status = running.status();
        let of = |name: &str| status.inbounds.iter().find(|inbound| inbound.name == name).unwrap();
        let inbounds = ["held", "chain", "grouped"].map(of);
        let sum = |of: fn(&InboundStatus) -> u64| inbounds.iter().map(|inbound| of(inbound)).sum::<u64>();
        let flows = |inbound: &InboundStatus| inbound.datagrams.clone().unwrap_or_default();
        let seen = [
            sum(|inbound| inbound.up_bytes),
            sum(|inbound| inbound.down_bytes),
            inbounds.iter().map(|inbound| flows(inbound).up).sum(),
            inbounds.iter().map(|inbound| flows(inbound).down).sum(),
            inbounds.iter().map(|inbound| flows(inbound).dropped.values().sum::<u64>()).sum(),
            // Checks of the group go over her key too, and get no answer.
            of("server").users.iter().find(|user| user.name == "ann").unwrap().down_bytes,
        ];
        let wanted = [bytes, bytes, datagrams, datagrams, 0, of("chain").down_bytes];
        let open: i64 = inbounds.iter().map(|inbound| inbound.open).sum();
        if seen == wanted && open == held.streams.len() as i64 {
            return;
        }
        assert!(Instant::now() < until, "{seen:?} in the place of {wanted:?}; {open} open");
        thread::sleep(Duration::from_millis(50));
    }
}

#[test]
fn changes_touch_their_own_connections_alone() {
    each_kind_of_change(60, 20, 2);
}

#[test]
#[ignore = "takes minutes"]
fn a_thousand_streams_and_two_hundred_flows_live_through_twenty_changes_of_each_kind() {
    if adit_testkit::descriptors(16_384) {
        each_kind_of_change(1000, 200, 20);
    }
}

/// A tunnel whose access list sends all targets straight: its outbound `direct` is in no file.
fn with_list(place: &Place, tolerance: u32, timeout: u32) -> Config {
    let Place { held, chain, echo, .. } = place;
    let tunnel = |at: &SocketAddr| {
        format!(
            "[[inbound]]\nprotocol = \"tunnel\"\nlisten = \"{at}\"\ntarget = \"{echo}\"\n\
             network = \"tcp-and-udp\"\noutbound = \"first\"\n"
        )
    };
    let text = format!(
        "cores = 1\nstate = \"off\"\n{}{}[[outbound]]\nname = \"first\"\nprotocol = \"direct\"\n\
         timeout = \"{timeout}s\"\n[[outbound]]\nname = \"group\"\nprotocol = \"group\"\nmembers = [{{ name = \"first\" }}]\n\
         check-url = \"http://127.0.0.1:1/\"\ncheck-dns = \"127.0.0.1:1\"\ntolerance = \"{tolerance}ms\"\n",
        tunnel(held),
        tunnel(chain)
    );
    let mut config = adit_toml::parse("list.toml", &text).unwrap_or_else(|found| panic!("{found}")).config;
    let rules = "[proxy_all]\n[bypass_list]\n127.0.0.0/8\n";
    config.acl = Some(AccessList::new(acl::parse(ProgramFamily::Rust, "rules", rules).unwrap().0));
    config
}

#[test]
fn the_direct_route_of_a_list_outlives_changes_of_something_else() {
    let place = Place::new();
    let running = start(&with_list(&place, 50, 10)).unwrap();
    let mut held = Held::open(&[place.held, place.chain], 6, 6);
    let ports = |held: &Held| held.flows.iter().map(sender).collect::<Vec<_>>();
    let before = ports(&held);
    for tolerance in 51..56 {
        held.through(&running, &with_list(&place, tolerance, 10), "a group");
    }
    assert_eq!(ports(&held), before, "the same flow, from the same port");
    held.through(&running, &with_list(&place, 60, 9), "options of the direct route");
    assert!(works(place.held), "new streams as well");
    running.end();
}

/// The port from which the echo gets the datagrams of this flow.
fn sender(flow: &UdpSocket) -> [u8; 2] {
    flow.send(b"?").unwrap();
    let mut port = [0; 8];
    assert_eq!(flow.recv(&mut port).unwrap(), 2);
    [port[0], port[1]]
}

#[test]
fn what_cannot_be_had_changes_nothing() {
    let place = Place::new();
    let none = Extra::none();
    let running = start(&place.config(&none)).unwrap();
    let mut held = Held::open(&[place.held, place.chain], 10, 5);
    let before = running.status();
    let taken = unused_addr();
    let holder = TcpListener::bind(taken).unwrap();
    held.send();
    let error = running
        .apply(&place.config(&Extra { guest: Some(taken), spare: Some(1), ..none.clone() }))
        .unwrap_err();
    held.receive("after an error");
    assert_eq!(error.to_string(), "inbound guest");
    let after = running.status();
    assert_eq!(after.inbounds.len(), before.inbounds.len());
    assert_eq!(after.outbounds.len(), before.outbounds.len());
    drop(holder);
    let other = Config { cores: Some(7), ..place.config(&none) };
    assert_eq!(running.apply(&other).unwrap().needs_restart, ["cores"]);
    held.exchange("after a setting that needs a restart");
    running.end();
}

/// A name server that gives this address to every name, after a while to those that begin with `late`, and tells which
/// names it was asked for.
fn name_server(ip: Ipv4Addr) -> (SocketAddr, Arc<Mutex<Vec<String>>>) {
    let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
    let at = socket.local_addr().unwrap();
    let asked: Arc<Mutex<Vec<String>>> = Arc::default();
    let noted = asked.clone();
    thread::spawn(move || {
        let mut bytes = [0; 512];
        while let Ok((_, from)) = socket.recv_from(&mut bytes) {
            let (mut labels, mut end) = (Vec::new(), 12);
            while bytes[end] > 0 {
                let next = end + 1 + usize::from(bytes[end]);
                labels.push(String::from_utf8_lossy(&bytes[end + 1..next]).into_owned());
                end = next;
            }
            let is_address = bytes[end + 2] == 1;
            let name = labels.join(".");
            if is_address {
                noted.lock().unwrap().push(name.clone());
            }
            let mut answer = bytes[..end + 5].to_vec();
            answer[2..12].copy_from_slice(&[0x81, 0x80, 0, 1, 0, u8::from(is_address), 0, 0, 0, 0]);
            if is_address {
                answer.extend([0xc0, 12, 0, 1, 0, 1, 0, 0, 14, 16, 0, 4]);
                answer.extend(ip.octets());
            }
            let (socket, is_late) = (socket.try_clone().unwrap(), name.starts_with("late"));
            let send = move || {
                if is_late {
                    thread::sleep(Duration::from_millis(300));
                }
                socket.send_to(&answer, from).unwrap();
            };
            thread::spawn(send);
        }
    });
    (at, asked)
}

/// The parts of `[dns]` that change.
#[derive(Clone)]
struct Names {
    upstream: SocketAddr,
    office: Option<SocketAddr>,
    host: IpAddr,
    cache: usize,
    filter: &'static str,
}

/// Ports whose targets are names, and one that answers questions.
struct NamedPlace {
    usual: SocketAddr,
    host: SocketAddr,
    office: SocketAddr,
    late: SocketAddr,
    questions: SocketAddr,
    echo: SocketAddr,
}

impl NamedPlace {
    fn new() -> Self {
        let [usual, host, office, late, questions] = [(); 5].map(|()| unused_addr());
        Self { usual, host, office, late, questions, echo: echo() }
    }

    fn config(&self, names: &Names) -> Config {
        let Names { upstream, office, host, cache, filter } = names;
        let port = self.echo.port();
        let tunnel = |name: &str, at: &SocketAddr, target: &str| {
            format!(
                "[[inbound]]\nname = \"{name}\"\nprotocol = \"tunnel\"\nlisten = \"{at}\"\n\
                 target = \"{target}:{port}\"\nnetwork = \"tcp-and-udp\"\n"
            )
        };
        let mut text = format!(
            "cores = 2\nstate = \"off\"\n[limits]\ndrain = \"100ms\"\n[dns]\ncache = {cache}\n\
             [[dns.upstream]]\nserver = \"{upstream}\"\n[[dns.hosts]]\nname = \"host.test\"\n\
             address = \"{host}\"\n[dns.fake]\nfilter = [\"{filter}\"]\n"
        );
        if let Some(server) = office {
            if server != upstream {
                text += &format!("[[dns.upstream]]\nserver = \"{server}\"\ndefault = false\n");
            }
            text += &format!("[[dns.policy]]\ndomain = \"office.test\"\nupstream = \"{server}\"\n");
        }
        text += &tunnel("usual", &self.usual, "usual.test");
        text += &tunnel("host", &self.host, "host.test");
        text += &tunnel("office", &self.office, "www.office.test");
        text += &tunnel("late", &self.late, "late.test");
        text += &format!(
            "[[inbound]]\nname = \"questions\"\nprotocol = \"dns\"\nlisten = \"{}\"\n\
             [[outbound]]\nname = \"direct\"\nprotocol = \"direct\"\n",
            self.questions
        );
        adit_toml::parse("names.toml", &text).unwrap_or_else(|found| panic!("{found}\n{text}")).config
    }

    /// The last octets of the address that a client is told.
    fn told(&self, name: &str) -> [u8; 4] {
        let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
        socket.set_read_timeout(Some(TIME)).unwrap();
        let mut question = vec![0, 9, 1, 0, 0, 1, 0, 0, 0, 0, 0, 0];
        for label in name.split('.') {
            question.push(u8::try_from(label.len()).unwrap());
            question.extend(label.as_bytes());
        }
        question.extend([0, 0, 1, 0, 1]);
        socket.send_to(&question, self.questions).unwrap();
        let mut answer = [0; 512];
        let len = socket.recv(&mut answer).unwrap();
        answer[len - 4..len].try_into().unwrap()
    }
}

/// `[dns]` changes twenty times, part by part, while streams and flows of datagrams to names are open.
#[test]
fn other_names_touch_nothing_that_is_open() {
    let place = NamedPlace::new();
    let IpAddr::V4(ip) = place.echo.ip() else { panic!("an address of IPv4") };
    // Nobody listens there.
    let elsewhere = unused_addr().ip();
    let servers = [name_server(ip), name_server(ip)];
    let (upstream, host) = (servers[0].0, place.echo.ip());
    let mut names = Names { upstream, office: None, host, cache: 1000, filter: "+.real.test" };
    let asked = |server: usize, name: &str| {
        servers[server].1.lock().unwrap().iter().filter(|asked| *asked == name).count()
    };
    let running = start(&place.config(&names)).unwrap();
    let mut held = Held::open(&[place.usual, place.host, place.office], 200, 50);
    let senders: Vec<_> = held.flows.iter().map(sender).collect();
    for change in 0..20 {
        let mut step = |names: &Names, what: &str| {
            let changes = held.through(&running, &place.config(names), what);
            assert_eq!(changes, adit_engine::Changes::default(), "{what}: nothing else changes");
        };
        let at = change / 5 % 2;
        match change % 5 {
            0 => {
                // A look-up is under way when the servers change.
                let (before, until) = (asked(at, "late.test"), Instant::now() + TIME);
                let late = TcpStream::connect(place.late).unwrap();
                while asked(at, "late.test") == before {
                    assert!(Instant::now() < until, "change {change}: it is asked for");
                    thread::sleep(Duration::from_millis(5));
                }
                names.upstream = servers[1 - at].0;
                step(&names, "other servers");
                late.set_read_timeout(Some(TIME)).unwrap();
                (&late).write_all(b"late").unwrap();
                (&late).read_exact(&mut [0; 4]).expect("the old server's answer counts");
                let before = asked(1 - at, "usual.test");
                assert!(works(place.usual) && asked(1 - at, "usual.test") > before, "the new one is asked");
            }
            1 => {
                let (usual, before) = (asked(1 - at, "usual.test"), asked(at, "www.office.test"));
                names.office = match names.office {
                    None => Some(servers[at].0),
                    Some(_) => None,
                };
                step(&names, "a policy");
                assert!(works(place.office) && works(place.usual));
                let is_policy = names.office.is_some();
                assert_eq!(asked(at, "www.office.test") > before, is_policy, "change {change}");
                assert_eq!(asked(1 - at, "usual.test"), usual, "the cache has the others");
            }
            2 => {
                names.host = elsewhere;
                step(&names, "hosts");
                assert!(!works(place.host));
                names.host = host;
                step(&names, "hosts as before");
                assert!(works(place.host));
            }
            3 => {
                let before = asked(1 - at, "usual.test");
                names.cache += 1;
                step(&names, "the cache's size");
                assert!(works(place.usual) && asked(1 - at, "usual.test") == before, "it keeps what it has");
            }
            _ => {
                assert_eq!(place.told("www.real.test"), ip.octets());
                names.filter = "+.other.test";
                step(&names, "a filter");
                assert_eq!(place.told("www.real.test")[..2], [198, 18]);
                names.filter = "+.real.test";
                step(&names, "a filter as before");
            }
        }
    }
    assert_eq!(held.flows.iter().map(sender).collect::<Vec<_>>(), senders, "the same flows");
    let of = |name: &str| running.status().inbounds.into_iter().find(|inbound| inbound.name == name).unwrap();
    for name in ["usual", "host", "office"] {
        let dropped = of(name).datagrams.map_or(0, |flows| flows.dropped.values().sum::<u64>());
        assert_eq!(dropped, 0, "{name}");
    }
    // Only the addresses that applications hold stay as they were.
    let mut other = place.config(&names);
    other.dns.fake.as_mut().unwrap().v4 = "10.64.0.0/16".parse().unwrap();
    assert_eq!(running.apply(&other).unwrap().needs_restart, ["dns.fake"]);
    assert_eq!(place.told("www.fake.test")[..2], [198, 18]);
    running.end();
}
