//! The parts of a machine that some tests need. A test that does not find one of them says so and passes.

use std::fmt::Display;
use std::io::Write as _;
use std::net::Ipv6Addr;
use std::process::{Command, Stdio};
use std::thread;

/// Tells a test that it runs in a network namespace of its own.
const INSIDE: &str = "ADIT_TEST_IN_NAMESPACE";

/// Says that the calling test is skipped, and why. The harness does not swallow the line, as it does with all that a test
/// prints by a macro.
pub fn skipped(why: impl Display) {
    let thread = thread::current();
    let test = thread.name().unwrap_or("a test");
    writeln!(std::io::stderr(), "skipped: {test}: {why}").ok();
}

/// Whether a socket can have the address `::1`. Says so if not.
pub fn has_ipv6() -> bool {
    #[expect(clippy::disallowed_methods, reason = "this crate is below adit-net")]
    let bound = std::net::UdpSocket::bind((Ipv6Addr::LOCALHOST, 0));
    if let Err(error) = &bound {
        skipped(format_args!("no IPv6 on loopback: {error}"));
    }
    bound.is_ok()
}

/// Whether this process may make a network namespace and run a command in it. Says so if not.
pub fn may_make_networks() -> bool {
    let mut command = Command::new("unshare");
    command.args(["-n", "ip", "link", "set", "lo", "up"]).stdin(Stdio::null());
    let why = match command.output() {
        Ok(output) if output.status.success() => return true,
        Ok(output) => String::from_utf8_lossy(&output.stderr).trim().to_owned(),
        Err(error) => format!("unshare: {error}"),
    };
    skipped(format_args!("no right to make a network namespace, or no ip(8): {why}"));
    false
}

/// Whether the kernel takes rules of nftables, and nft(8) is there. Says so if not.
pub fn has_nftables() -> bool {
    let tried = try_nftables();
    if let Err(why) = &tried {
        skipped(format_args!("no nftables: {why}"));
    }
    tried.is_ok()
}

/// Makes the parts of the kernel that a capture uses, in a network namespace of their own.
fn try_nftables() -> Result<(), String> {
    let rules = "table inet t { flags owner; set s { type ipv4_addr; flags interval, timeout; }; \
        chain p { type filter hook prerouting priority mangle; ct state established accept; \
        meta l4proto udp tproxy ip to 127.0.0.1:1 meta mark set 1; }; \
        chain o { type nat hook output priority 0; meta skuid 1 return; meta l4proto tcp redirect to :1; }; }";
    let mut command = Command::new("unshare");
    let output = command.args(["-n", "nft", rules]).stdin(Stdio::null()).output();
    let output = output.map_err(|error| format!("unshare: {error}"))?;
    if output.status.success() {
        Ok(())
    } else {
        Err(String::from_utf8_lossy(&output.stderr).trim().to_owned())
    }
}

/// Whether this process can have `wanted` descriptors open; raises the soft limit to the hard one. Says so if not. The tests
/// of one program share them.
pub fn descriptors(wanted: u64) -> bool {
    let limit = adit_sys::process::raise_fd_limit().map_or(0, |(_, limit)| limit);
    if limit < wanted {
        skipped(format_args!("too few descriptors: {limit}, and it takes {wanted} (ulimit -Hn)"));
    }
    limit >= wanted
}

/// Whether the device of TUN interfaces can be opened. Says so if not.
pub fn has_tun() -> bool {
    let opened = std::fs::File::options().read(true).write(true).open("/dev/net/tun");
    if let Err(error) = &opened {
        skipped(format_args!("no TUN interfaces: /dev/net/tun: {error}"));
    }
    opened.is_ok()
}

/// Runs the test `path`, as the harness prints it, again in a network namespace of its own where nothing is up, unless it
/// runs there already; true if it does. A test calls this first and returns on false.
///
/// # Panics
/// If that run fails.
pub fn in_own_network(path: &str) -> bool {
    if std::env::var_os(INSIDE).is_some() {
        return true;
    }
    if !may_make_networks() {
        return false;
    }
    let program = std::env::current_exe().expect("the path of this program");
    let mut command = Command::new("unshare");
    command.arg("-n").arg(program).args(["--exact", path, "--nocapture", "--include-ignored"]);
    let output = command.env(INSIDE, "1").stdin(Stdio::null()).output().expect("unshare has just run");
    let text =
        [output.stdout, output.stderr].map(|bytes| String::from_utf8_lossy(&bytes).into_owned()).concat();
    assert!(output.status.success() && text.contains("running 1 test"), "{path}: {}\n{text}", output.status);
    false
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A mistake in the rules would skip every test of captures.
    #[test]
    fn the_rules_are_those_of_nft() {
        let Err(why) = try_nftables() else { return };
        let version = Command::new("nft").arg("--version").output();
        let is_old = version.is_ok_and(|output| output.stdout.starts_with(b"nftables v0."));
        assert!(is_old || !why.contains("syntax error"), "{why}");
    }

    #[test]
    fn a_test_runs_again_in_a_network_of_its_own() {
        let names = || {
            let dir = std::fs::read_to_string("/proc/net/dev").unwrap();
            dir.lines()
                .skip(2)
                .filter_map(|line| line.split(':').next())
                .map(str::trim)
                .map(str::to_owned)
                .collect::<Vec<_>>()
        };
        if in_own_network("needs::tests::a_test_runs_again_in_a_network_of_its_own") {
            assert!(names().contains(&"lo".to_owned()), "{:?}", names());
            assert!(names().iter().all(|name| name != "eth0"), "{:?}", names());
        }
    }
}
