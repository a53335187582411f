//! `adit upgrade` of a capture with an interface: flows go on in either process. The networks are those of `capture`.

use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::{IpAddr, SocketAddr, TcpStream, UdpSocket};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use crate::capture::{C, H, Nets, PORT, TARGETS, stop};
use crate::capture_tun::NAMES;
use crate::support::{PATIENCE, Running, signal};
use crate::upgrade::{Successors, is_alive, wait_until};

/// Tells this program its role when it is started again in one of the networks.
const INSIDE: &str = "ADIT_TEST_CAPTURE_UPGRADE";
const STREAMS: usize = 20;
const FLOWS: usize = 10;
const BLOCK: usize = 16_384;
/// Time for the last answers.
const SILENCE: Duration = Duration::from_secs(5);

/// Streams and flows of datagrams over the capture, half of them of each family, for so many seconds.
fn flows(nets: &Nets, at: usize, seconds: u64) -> Running {
    let program = std::env::current_exe().unwrap();
    let args = ["capture_upgrade::inside", "--exact", "--ignored", "--nocapture"];
    let mut command = nets.command(at, program.to_str().unwrap(), &args);
    command.env(INSIDE, seconds.to_string());
    let running = Running::start(command);
    running.line("flowing");
    running
}

/// Waits for the end of all flows: none was cut. Gives the number of datagrams without an answer.
fn lost_of(nets: &Nets, flows: &Running, when: &str) -> u64 {
    let line = format!("{} ({} dropped by the kernel)", flows.line("answer: "), dropped(nets));
    let whole = format!("{STREAMS} streams whole, {FLOWS} flows whole, ");
    assert!(line.contains(&whole), "{when}: {line}\n{}", flows.log());
    let lost = line.split(&whole).nth(1).and_then(|rest| rest.split(' ').next());
    lost.and_then(|lost| lost.parse().ok()).unwrap_or_else(|| panic!("{when}: {line}"))
}

/// Packets that the kernel has dropped because the interface's queue was full: nobody had time to read it, which happens on
/// a machine with twenty other processes at work.
fn dropped(nets: &Nets) -> u64 {
    let text = nets.sh(H, "cat /sys/class/net/adit0/statistics/tx_dropped");
    text.trim().parse().unwrap_or_else(|_| panic!("{text}"))
}

/// The interface's number: another one is another interface.
fn index(nets: &Nets) -> String {
    nets.sh(H, "cat /sys/class/net/adit0/ifindex")
}

fn upgrade(nets: &Nets, successors: &mut Successors) -> u32 {
    let (status, out) = nets.adit(&["upgrade", "-c", "host.toml", "--drain", "25s"]);
    assert_eq!(status, 0, "{out}");
    successors.note(&out)
}

fn of_interface(mode: &str, variable: &str) {
    let Some(nets) = Nets::with_peers() else { return };
    let before = nets.snapshot();
    let shown = |nets: &Nets| -> Vec<String> {
        nets.snapshot().into_iter().filter(|line| !line.contains("progname")).collect()
    };
    let mut old = nets.capture_more(&format!("mode = \"{mode}\"\nlan = \"hc\""), NAMES, variable);
    let fake = nets.tun_ask(H, "name udp 8.8.8.8:53 target.test 1");
    let (captured, interface) = (shown(&nets), index(&nets));
    let running = [flows(&nets, H, 12), flows(&nets, C, 12)];
    let mut successors = Successors::default();
    let first = upgrade(&nets, &mut successors);
    nets.assert_captured(H, &["tcp", "udp"]);
    // The second process has flows of its own, and leads those of the first.
    let more = flows(&nets, H, 6);
    let second = upgrade(&nets, &mut successors);
    for at in [H, C] {
        nets.assert_captured(at, &["tcp", "udp"]);
    }
    assert_eq!(index(&nets), interface, "the interface is another one");
    assert_eq!(nets.tun_ask(H, "name udp 8.8.8.8:53 target.test 1"), fake);
    assert!(TARGETS.contains(&&*nets.ask(H, &format!("tcp {fake} {PORT}"))));
    let flows = running.iter().chain([&more]).zip(["of the host", "of the client", "of the second process"]);
    let lost: u64 = flows.map(|(flows, when)| lost_of(&nets, flows, when)).sum();
    let dropped = dropped(&nets);
    say(&format!("{lost} datagrams without an answer, {dropped} packets dropped by the kernel"));
    assert!(lost <= dropped, "{lost} datagrams have no answer, and the kernel dropped {dropped} packets");
    assert_eq!(shown(&nets), captured, "nothing in the kernel has changed");
    wait_until("the first process ends", || !old.is_running());
    wait_until("the second process ends", || !is_alive(first));
    nets.assert_captured(H, &["tcp", "udp"]);
    signal(second, "TERM");
    wait_until("the last process ends", || !is_alive(second));
    nets.assert_as(&before, "a clean stop leaves nothing");
}

#[test]
fn an_upgrade_cuts_nothing_that_goes_by_the_interface() {
    of_interface("tun", "");
}

#[test]
fn an_upgrade_of_mode_auto_keeps_the_interface() {
    of_interface("auto", "");
}

#[test]
fn an_upgrade_without_nftables_keeps_the_interface() {
    of_interface("auto", "ADIT_TEST_WITHOUT_TABLES=1");
}

/// The process that reads the interface is killed while the one before it finishes: nobody is cut off.
#[test]
fn a_kill_behind_an_upgrade_takes_the_interface_along() {
    let Some(nets) = Nets::with_peers() else { return };
    for mode in ["tun", "auto"] {
        let old = nets.capture(&format!("mode = \"{mode}\""));
        let flows = flows(&nets, H, 20);
        let mut successors = Successors::default();
        let new = upgrade(&nets, &mut successors);
        nets.assert_captured(H, &["tcp", "udp"]);
        signal(new, "KILL");
        wait_until("the interface ends", || !nets.sh(H, "ip link").contains("adit0"));
        for network in ["tcp", "udp"] {
            assert_eq!(nets.ask(H, &format!("{network} 10.9.9.9 {PORT}")), "10.2.0.1", "{mode} {network}");
        }
        for running in [flows, old] {
            running.signal("KILL");
            running.end();
        }
    }
}

/// A file with another interface than that which is up is refused, and nothing changes.
#[test]
fn another_interface_is_no_upgrade() {
    let Some(nets) = Nets::with_peers() else { return };
    let running = nets.capture("mode = \"tun\"");
    let interface = index(&nets);
    let file = nets.dir.path().join("host.toml");
    let text = std::fs::read_to_string(&file).unwrap();
    let other = "[[inbound]]\nname = \"other\"\nprotocol = \"tun\"\ninterface = \"other0\"\n";
    std::fs::write(&file, format!("{text}{other}")).unwrap();
    let (status, out) = nets.adit(&["upgrade", "-c", "host.toml"]);
    assert!(status == 1 && out.contains("`adit reload` first"), "{out}");
    assert_eq!(index(&nets), interface);
    nets.assert_captured(H, &["tcp", "udp"]);
    stop(running);
}

#[test]
#[ignore = "a part of the tests above"]
fn inside() {
    let Some(seconds) = std::env::var_os(INSIDE) else { return };
    let until = Instant::now() + Duration::from_secs(seconds.to_str().unwrap().parse().unwrap());
    let ready = Arc::new(AtomicUsize::new(0));
    let target = |number: usize| {
        let ip: IpAddr = TARGETS[number % 2].parse().unwrap();
        SocketAddr::new(ip, PORT)
    };
    let streams: Vec<_> = (0..STREAMS)
        .map(|number| {
            let ready = ready.clone();
            thread::spawn(move || stream(target(number), number, until, &ready))
        })
        .collect();
    let flows: Vec<_> = (0..FLOWS)
        .map(|number| {
            let ready = ready.clone();
            thread::spawn(move || flow(target(number), until, &ready))
        })
        .collect();
    let limit = Instant::now() + PATIENCE;
    while ready.load(Ordering::Acquire) < STREAMS + FLOWS && Instant::now() < limit {
        thread::sleep(Duration::from_millis(10));
    }
    say("flowing");
    let (mut whole, mut lost, mut faults) = ([0, 0], 0, Vec::new());
    for (kind, all) in [streams, flows].into_iter().enumerate() {
        for flow in all {
            match flow.join().unwrap() {
                Ok(missing) => {
                    whole[kind] += 1;
                    lost += missing;
                }
                Err(error) => faults.push(error.to_string()),
            }
        }
    }
    say(&format!("answer: {} streams whole, {} flows whole, {lost} lost {faults:?}", whole[0], whole[1]));
}

fn say(line: &str) {
    std::io::stdout().write_all(format!("\n{line}\n").as_bytes()).unwrap();
}

/// The bytes of a stream from `at` on.
fn fill(block: &mut [u8], at: usize) {
    for (byte, place) in block.iter_mut().zip(at..) {
        *byte = u8::try_from((place / 7 + place / 256) % 251).unwrap();
    }
}

/// Sends bytes until the time is over and gets them back; every second stream waits between two blocks.
fn stream(target: SocketAddr, number: usize, until: Instant, ready: &AtomicUsize) -> std::io::Result<usize> {
    let stream = TcpStream::connect_timeout(&target, Duration::from_secs(5))?;
    stream.set_read_timeout(Some(Duration::from_secs(15)))?;
    let mut reader = BufReader::new(stream.try_clone()?);
    reader.read_line(&mut String::new())?;
    ready.fetch_add(1, Ordering::AcqRel);
    let mut writer = stream;
    let sending = thread::spawn(move || -> std::io::Result<usize> {
        let (mut block, mut sent) = (vec![0; BLOCK], 0);
        while Instant::now() < until {
            fill(&mut block, sent);
            writer.write_all(&block)?;
            sent += BLOCK;
            thread::sleep(Duration::from_millis(if number % 4 < 2 { 100 } else { 300 }));
        }
        writer.shutdown(std::net::Shutdown::Write)?;
        Ok(sent)
    });
    let (mut block, mut wanted, mut received) = (vec![0; BLOCK], vec![0; BLOCK], 0);
    loop {
        let len = reader.read(&mut block)?;
        if len == 0 {
            break;
        }
        fill(&mut wanted[..len], received);
        if block[..len] != wanted[..len] {
            return Err(std::io::Error::other(format!("stream {number}: other bytes at {received}")));
        }
        received += len;
    }
    let sent = sending.join().unwrap()?;
    let text = format!("stream {number}: {sent} sent, {received} received");
    if sent == received { Ok(0) } else { Err(std::io::Error::other(text)) }
}

/// Sends datagrams until the time is over, each of another length, which the answers name. Gives the number of those
/// without an answer; an answer too many, or to nothing, is an error.
fn flow(target: SocketAddr, until: Instant, ready: &AtomicUsize) -> std::io::Result<usize> {
    // Short and few, so that buffers hold them while a busy machine lets nobody read.
    const LENGTHS: usize = 150;
    let any = if target.is_ipv4() { "0.0.0.0:0" } else { "[::]:0" };
    let socket = UdpSocket::bind(any)?;
    socket.connect(target)?;
    socket.set_read_timeout(Some(SILENCE))?;
    // The first one finds the way.
    socket.send(&[0; LENGTHS + 1])?;
    socket.recv(&mut [0; 100])?;
    ready.fetch_add(1, Ordering::AcqRel);
    let sender = socket.try_clone()?;
    let sending = thread::spawn(move || -> std::io::Result<usize> {
        let mut sent = 0;
        while Instant::now() < until {
            sender.send(&[7; LENGTHS][..1 + sent % LENGTHS])?;
            sent += 1;
            thread::sleep(Duration::from_millis(100));
        }
        Ok(sent)
    });
    let (mut answer, mut lengths) = ([0; 100], Vec::new());
    // Silence alone is no end: on a busy machine both processes may stand still for longer than a read waits.
    loop {
        let len = match socket.recv(&mut answer) {
            Ok(len) => len,
            Err(_) if Instant::now() < until + SILENCE => continue,
            Err(_) => break,
        };
        let text = String::from_utf8_lossy(&answer[..len]).into_owned();
        let number = text.rsplit(' ').next().and_then(|len| len.parse::<usize>().ok());
        lengths.push(number.ok_or_else(|| std::io::Error::other(text))?);
    }
    let sent = sending.join().unwrap()?;
    let mut missing: Vec<usize> = (0..sent).map(|number| 1 + number % LENGTHS).collect();
    for len in lengths {
        let at = missing.iter().position(|sent| *sent == len);
        let text = || {
            std::io::Error::other(format!("flow to {target}: {sent} sent, one too many with {len} answered"))
        };
        missing.swap_remove(at.ok_or_else(text)?);
    }
    Ok(missing.len())
}
