//! The two networks, and the programs in them.

use std::fs::{self, File};
use std::net::{Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};

use super::load::{Cost, Target, serve};
use super::{Programs, READY, Taker, Way};
use crate::link::Network;
use crate::link::network::ip;
use crate::process;

const TARGET: Ipv4Addr = Ipv4Addr::new(10, 78, 0, 1);
const NEAR: &str = "10.77.0.1";
const FAR: &str = "10.77.0.2";
/// Leads to the target by a rule alone: a relay that marks nothing connects to the target's own address.
const STAND_IN: Ipv4Addr = Ipv4Addr::new(10, 78, 0, 2);
/// The place to which a rule of nft(8) sends connections.
const REDIRECTED: u16 = 1081;
/// The mark of connections that no rule takes.
const MARK: u32 = 0x2024;
/// Linux's own choice, and the one that every network may choose.
const CONGESTION: [&str; 2] = ["cubic", "reno"];
const SNELL_PORT: u16 = 6160;
const SOCKS_PORT: u16 = 1080;
const PSK: &str = "LabLoopbackPsk0123456789abcdefgh";

/// Two networks with the target and a Snell server at the far end.
pub(super) struct Site<'p> {
    pub(super) target: Target,
    /// The congestion control of both networks.
    pub(super) congestion: &'static str,
    programs: &'p Programs,
    dir: PathBuf,
    _network: Network,
    _server: Process,
}

impl<'p> Site<'p> {
    pub(super) fn new(programs: &'p Programs) -> Result<Self> {
        let network = Network::enter()?;
        let far = network.far.path();
        let far = far.to_str().context("path of a network")?;
        ip(&["link", "add", "cap0", "type", "veth", "peer", "name", "cap0", "netns", far])?;
        ip(&["addr", "add", &format!("{NEAR}/24"), "dev", "cap0"])?;
        ip(&["link", "set", "cap0", "up"])?;
        ip(&["route", "add", "default", "via", FAR])?;
        let congestion = set_congestion()?;
        let target = network.far.within(|| {
            set_congestion()?;
            ip(&["addr", "add", &format!("{FAR}/24"), "dev", "cap0"])?;
            ip(&["link", "set", "cap0", "up"])?;
            ip(&["addr", "add", &format!("{TARGET}/32"), "dev", "lo"])?;
            serve(TARGET)
        })?;
        let dir = std::env::temp_dir().join(format!("adit-lab-capture-{}", std::process::id()));
        fs::create_dir_all(&dir).with_context(|| format!("cannot make {}", dir.display()))?;
        let text = format!(
            "[[inbound]]\nprotocol = \"snell\"\nlisten = \"{FAR}:{SNELL_PORT}\"\npsk = \"{PSK}\"\nversion = 5\nallow-private = true\n"
        );
        let file = dir.join("server.toml");
        fs::write(&file, text)?;
        let words = ["run", "-c", file.to_str().context("path")?];
        let log = dir.join("server.log");
        let network_of_server = Some(network.far.path());
        let server =
            Process::start(programs, (&programs.adit, &words), network_of_server, (&log, "listening"))?;
        Ok(Self { target, congestion, programs, dir, _network: network, _server: server })
    }

    /// Starts the program of a case.
    pub(super) fn start(&self, taker: Taker, way: Way) -> Result<Process> {
        let (program, text, name, ready) = match taker {
            Taker::SingBoxTun | Taker::SingBoxRedirect => {
                let program = self.programs.sing_box.as_ref().context("no sing-box")?;
                (program, sing_box(taker, way), "sing-box.json", "sing-box started")
            }
            Taker::AditSocks | Taker::AditRedirect | Taker::AditTun => {
                (&self.programs.adit, adit(taker, way), "client.toml", "listening")
            }
            Taker::BarePort | Taker::BareRedirect => return self.bare(taker),
        };
        let file = self.dir.join(name);
        fs::write(&file, text)?;
        let words = ["run", "-c", file.to_str().context("path")?];
        let log = self.dir.join("client.log");
        let mut process = Process::start(self.programs, (program, &words), None, (&log, ready))?;
        let port = SocketAddr::from((Ipv4Addr::LOCALHOST, SOCKS_PORT));
        process.proxy = (taker == Taker::AditSocks).then_some(port);
        process.target = self.target.streams;
        if taker == Taker::SingBoxRedirect {
            process.rule = Some(Rule::new(TARGET)?);
        }
        Ok(process)
    }

    /// A relay that does nothing but read and write, with the target as its only one.
    fn bare(&self, taker: Taker) -> Result<Process> {
        let helper = &self.programs.helper;
        let port = SocketAddr::from((Ipv4Addr::LOCALHOST, REDIRECTED));
        let (listen, to) = (port.to_string(), self.target.streams.to_string());
        let words = ["floor", "plain", "near", "--listen", &listen, "--to", &to];
        let log = self.dir.join("client.log");
        // It says nothing when it is ready.
        let mut process = Process::start(self.programs, (&helper.program, &words), None, (&log, ""))?;
        process.target = port;
        if taker == Taker::BareRedirect {
            process.rule = Some(Rule::new(STAND_IN)?);
            process.target = SocketAddr::from((STAND_IN, self.target.streams.port()));
        }
        Ok(process)
    }
}

/// Gives the calling thread's network the congestion control that Linux has unless told otherwise; one that is like it where
/// the machine keeps that to itself.
fn set_congestion() -> Result<&'static str> {
    let set = |name: &&&str| fs::write("/proc/sys/net/ipv4/tcp_congestion_control", name).is_ok();
    CONGESTION.iter().find(set).copied().context("the congestion control of a network cannot be set")
}

/// Runs nft(8) in the calling thread's network.
pub(super) fn nft(text: &str) -> Result<()> {
    let output = Command::new("nft").args(text.split(' ')).output().context("run nft")?;
    ensure!(output.status.success(), "nft {text}: {}", String::from_utf8_lossy(&output.stderr).trim());
    Ok(())
}

/// A table that redirects connections to an address, as `ss-nat` makes it. It goes when this is dropped.
struct Rule;

impl Rule {
    fn new(to: Ipv4Addr) -> Result<Self> {
        nft("add table ip capture-bench")?;
        let rule = Self;
        nft("add chain ip capture-bench out { type nat hook output priority -100 ; }")?;
        nft(&format!(
            "add rule ip capture-bench out meta mark != {MARK} ip daddr {to} tcp dport > 0 redirect to :{REDIRECTED}"
        ))?;
        Ok(rule)
    }
}

impl Drop for Rule {
    fn drop(&mut self) {
        nft("delete table ip capture-bench").ok();
    }
}

impl Drop for Site<'_> {
    fn drop(&mut self) {
        fs::remove_dir_all(&self.dir).ok();
    }
}

fn adit(taker: Taker, way: Way) -> String {
    let way_in = if taker == Taker::AditSocks {
        format!("[[inbound]]\nprotocol = \"socks\"\nlisten = \"127.0.0.1:{SOCKS_PORT}\"\n")
    } else {
        let mode = if taker == Taker::AditRedirect { "redirect" } else { "tun" };
        format!("[capture]\nmode = \"{mode}\"\n")
    };
    let outbound = match way {
        Way::Direct => "protocol = \"direct\"\n".to_owned(),
        Way::Snell => {
            format!("protocol = \"snell\"\nserver = \"{FAR}:{SNELL_PORT}\"\npsk = \"{PSK}\"\nversion = 5\n")
        }
    };
    format!("{way_in}[[outbound]]\n{outbound}")
}

fn sing_box(taker: Taker, way: Way) -> String {
    let (way_in, mark) = if taker == Taker::SingBoxTun {
        let way_in = "\"type\": \"tun\", \"interface_name\": \"sbt0\", \"address\": [\"172.19.0.1/30\"], \"auto_route\": true, \"stack\": \"system\"";
        (way_in.to_owned(), String::new())
    } else {
        let listen = format!("\"listen\": \"127.0.0.1\", \"listen_port\": {REDIRECTED}");
        (format!("\"type\": \"redirect\", {listen}"), format!(", \"routing_mark\": {MARK}"))
    };
    let outbound = match way {
        Way::Direct => "\"type\": \"direct\"".to_owned(),
        // Of version 5 it speaks the server's side alone; the two versions are alike on the wire.
        Way::Snell => format!(
            "\"type\": \"snell\", \"server\": \"{FAR}\", \"server_port\": {SNELL_PORT}, \"version\": 4, \"psk\": \"{PSK}\""
        ),
    };
    let finds_interface = taker == Taker::SingBoxTun;
    format!(
        "{{ \"log\": {{ \"level\": \"info\" }},\n \"inbounds\": [{{ {way_in} }}],\n \"outbounds\": [{{ \"tag\": \"out\", {outbound}{mark} }}],\n \"route\": {{ \"auto_detect_interface\": {finds_interface} }} }}\n"
    )
}

/// A program that ends when this is dropped.
pub(super) struct Process {
    child: Child,
    proxy: Option<SocketAddr>,
    target: SocketAddr,
    rule: Option<Rule>,
}

impl Process {
    fn start(
        programs: &Programs,
        (program, words): (&Path, &[&str]),
        network: Option<PathBuf>,
        (log, ready): (&Path, &str),
    ) -> Result<Self> {
        let output = File::create(log).with_context(|| format!("cannot create {}", log.display()))?;
        // The guard sees to it that the process dies with this thread, for any cause.
        let mut command = Command::new(&programs.helper.program);
        command.arg("guard");
        if let Some(network) = network {
            command.arg("--network").arg(network);
        }
        command.arg("--").arg(program).args(words);
        command.stdin(Stdio::null()).stdout(output.try_clone()?).stderr(output);
        let child = command.spawn().with_context(|| format!("run {}", program.display()))?;
        let target = SocketAddr::from((TARGET, 0));
        let mut process = Self { child, proxy: None, target, rule: None };
        let deadline = Instant::now() + READY;
        loop {
            let text = fs::read_to_string(log).unwrap_or_default();
            if text.contains(ready) {
                // Routes follow what the log says.
                thread::sleep(Duration::from_millis(200));
                return Ok(process);
            }
            let has_ended = process.child.try_wait()?.is_some();
            if has_ended || Instant::now() > deadline {
                bail!("{} is not ready:\n{text}", program.display());
            }
            thread::sleep(Duration::from_millis(20));
        }
    }

    /// The SOCKS port of a program that captures nothing.
    pub(super) fn proxy(&self) -> Option<SocketAddr> {
        self.proxy
    }

    /// The address that applications connect to.
    pub(super) fn target(&self) -> SocketAddr {
        self.target
    }

    /// The processor time that it takes for some work, with the units of the work.
    pub(super) fn cost_of(&self, work: impl FnOnce() -> Result<f64>) -> Result<Cost> {
        let before = process::cpu_time(self.child.id())?;
        let units = work()?;
        let time = process::cpu_time(self.child.id())?.saturating_sub(before);
        Ok(Cost { time, units })
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        drop(self.rule.take());
        // A program that has ended by itself needs no signal. Others take their routes away.
        let pid = nix::unistd::Pid::from_raw(i32::try_from(self.child.id()).unwrap_or(i32::MAX));
        nix::sys::signal::kill(pid, nix::sys::signal::Signal::SIGTERM).ok();
        let deadline = Instant::now() + Duration::from_secs(5);
        while matches!(self.child.try_wait(), Ok(None)) && Instant::now() < deadline {
            thread::sleep(Duration::from_millis(10));
        }
        self.child.kill().ok();
        self.child.wait().ok();
    }
}
