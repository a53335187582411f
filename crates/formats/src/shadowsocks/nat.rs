//! `ss-nat` of shadowsocks-libev 3.3.5: rules that bring traffic to `ss-redir`. IPv4 alone.
//!
//! | flag | meaning |
//! |---|---|
//! | `-s`, `-l` | the server, and the port of `ss-redir`; required |
//! | `-S`, `-L` | the same for datagrams, with `-U` |
//! | `-i` | a file of targets that are left alone, one a line |
//! | `-I` | the interface that clients are behind (default `eth0`) |
//! | `-a` | `w` (those alone) or `b` (all but those), and addresses of clients |
//! | `-b`, `-w` | targets that are left alone, and such that are not although others say so |
//! | `-e` | options of iptables: refused, as there is no iptables |
//! | `-o` | connections of this machine too |
//! | `-u`, `-U` | datagrams too |
//! | `-f` | removes the rules |
//!
//! Targets that are nobody's on the Internet are always left alone.

use std::ffi::OsString;
use std::path::PathBuf;
use std::sync::Arc;

use adit_model::diagnostic::{Diagnostic, Diagnostics};
use adit_model::rule::Cidr;
use adit_model::{Clients, Nat};
use adit_proto::wire::Host;

use super::ProgramFamily;
use super::getopt::{self, Item, KnownOption, Opt, switch, value};
use crate::read::value::excerpt;

/// Exit status when something is missing.
pub const EXIT_USAGE: u8 = 2;

/// Addresses that are nobody's on the Internet (RFC 6890).
const NOBODYS: [&str; 16] = [
    "0.0.0.0/8",
    "10.0.0.0/8",
    "100.64.0.0/10",
    "127.0.0.0/8",
    "169.254.0.0/16",
    "172.16.0.0/12",
    "192.0.0.0/24",
    "192.0.2.0/24",
    "192.88.99.0/24",
    "192.168.0.0/16",
    "198.18.0.0/15",
    "198.51.100.0/24",
    "203.0.113.0/24",
    "224.0.0.0/4",
    "240.0.0.0/4",
    "255.255.255.255",
];

/// Longest file of targets, in bytes.
pub const MAX_LEN: usize = 8 << 20;

/// Action that a command line asks for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum NatInvocation {
    /// To print [`usage`].
    Help,
    /// To remove the rules.
    Flush,
    /// To make rules, with the targets of a file if one is named; see [`add_file`].
    Make(Box<Nat>, Option<PathBuf>),
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Flag {
    Server,
    Port,
    UdpServer,
    UdpPort,
    File,
    Interface,
    Clients,
    Bypass,
    Forward,
    Extra,
    Output,
    Udp,
    OtherUdp,
    Flush,
    Help,
}

macro_rules! known {
    ($($kind:ident($flag:expr, $short:expr), $name:literal, $what:literal;)*) => {
        const FLAGS: &[Opt<Flag>] = &[$($kind($flag, Some($short), &[])),*];
        const KNOWN: &[KnownOption<Flag, ()>] =
            &[$(KnownOption { opt: $kind($flag, Some($short), &[]), programs: &[()], usage: ($name, $what) }),*];
    };
}

known! {
    value(Flag::Server, 's'), "HOST", "server of ss-redir, which is left alone";
    value(Flag::Port, 'l'), "PORT", "port of ss-redir";
    value(Flag::UdpServer, 'S'), "HOST", "server for datagrams, with -U";
    value(Flag::UdpPort, 'L'), "PORT", "port of ss-redir for datagrams, with -U";
    value(Flag::File, 'i'), "FILE", "targets that are left alone, one a line";
    value(Flag::Interface, 'I'), "NAME", "interface of clients (default eth0)";
    value(Flag::Clients, 'a'), "LIST", "w or b, and clients: those alone, or all but those";
    value(Flag::Bypass, 'b'), "LIST", "targets that are left alone";
    value(Flag::Forward, 'w'), "LIST", "targets that are not left alone";
    value(Flag::Extra, 'e'), "OPTIONS", "refused: there is no iptables";
    switch(Flag::Output, 'o'), "", "connections of this machine too";
    switch(Flag::Udp, 'u'), "", "datagrams too, to the same port";
    switch(Flag::OtherUdp, 'U'), "", "datagrams too, to the port of -L";
    switch(Flag::Flush, 'f'), "", "removes the rules";
    switch(Flag::Help, 'h'), "", "prints this text";
}

/// The flags, for a person.
pub fn usage() -> String {
    getopt::usage(&(), "ss-nat", "shadowsocks-libev 3.3.5", KNOWN)
}

/// Reads the arguments behind the program's name.
///
/// # Errors
/// Everything that is wrong.
pub fn flags(args: impl IntoIterator<Item = OsString>) -> Result<NatInvocation, Diagnostics> {
    let (items, _, wrong) = getopt::read(ProgramFamily::Libev, FLAGS, args);
    let mut reader = Reader { items, found: Diagnostics::new() };
    if reader.has(Flag::Help) {
        return Ok(NatInvocation::Help);
    }
    if let Some(wrong) = wrong {
        return Err(error(&wrong.name, wrong.problem).into());
    }
    if reader.has(Flag::Flush) {
        return Ok(NatInvocation::Flush);
    }
    let nat = reader.nat();
    match nat.filter(|_| !reader.found.has_errors()) {
        Some(nat) => {
            let file = reader.get(Flag::File).map(|item| PathBuf::from(item.value.as_str()));
            Ok(NatInvocation::Make(Box::new(nat), file))
        }
        None => Err(reader.found),
    }
}

/// Adds the targets of a file that are left alone. A line that is no IPv4 network is passed over, as ss-nat has it.
pub fn add_file(nat: &mut Nat, text: &str) {
    nat.bypass.extend(text.lines().filter_map(|line| network(line.trim())));
}

fn error(flag: &str, problem: impl Into<String>) -> Diagnostic {
    let file: Arc<str> = "command line".into();
    Diagnostic::error(&file, format!("ss-nat {flag}"), problem.into())
}

fn network(text: &str) -> Option<Cidr> {
    Cidr::parse(text).filter(|_| !text.contains(':'))
}

struct Reader {
    items: Vec<Item<Flag>>,
    found: Diagnostics,
}

impl Reader {
    fn get(&self, flag: Flag) -> Option<&Item<Flag>> {
        self.items.iter().rfind(|item| item.id == flag)
    }

    fn has(&self, flag: Flag) -> bool {
        self.get(flag).is_some()
    }

    fn text(&self, flag: Flag) -> Option<String> {
        self.get(flag).map(|item| item.value.to_string())
    }

    fn missing(&mut self, flag: &str) {
        self.found.push(error(flag, "missing").hint("-h lists the flags"));
    }

    fn host(&mut self, flag: Flag, name: &str) -> Option<Host> {
        let Some(text) = self.text(flag) else {
            self.missing(name);
            return None;
        };
        let host = Host::parse(text.as_bytes());
        host.map_err(|problem| self.found.push(error(name, problem.to_string()))).ok()
    }

    fn port(&mut self, flag: Flag, name: &str) -> Option<u16> {
        let Some(text) = self.text(flag) else {
            self.missing(name);
            return None;
        };
        let port = text.parse().ok().filter(|port| *port != 0);
        if port.is_none() {
            self.found.push(error(name, format!("no port: {}", excerpt(&text))));
        }
        port
    }

    fn networks(&mut self, name: &str, text: &str) -> Vec<Cidr> {
        let words = text.split([',', ' ', '\t', '\n']).filter(|word| !word.is_empty());
        let mut all = Vec::new();
        for word in words {
            match network(word) {
                Some(cidr) => all.push(cidr),
                None => {
                    self.found.push(error(name, format!("no IPv4 address or network: {}", excerpt(word))))
                }
            }
        }
        all
    }

    fn nat(&mut self) -> Option<Nat> {
        let server = self.host(Flag::Server, "-s");
        let tcp = self.port(Flag::Port, "-l");
        let mut servers: Vec<Host> = server.into_iter().collect();
        let udp = if self.has(Flag::OtherUdp) {
            servers.extend(self.host(Flag::UdpServer, "-S"));
            self.port(Flag::UdpPort, "-L")
        } else if self.has(Flag::Udp) {
            tcp
        } else {
            None
        };
        if self.text(Flag::Extra).is_some_and(|text| !text.trim().is_empty()) {
            let problem = "options of iptables cannot be obeyed, as the rules are made without it";
            self.found.push(error("-e", problem).hint("leave it out, and use -I, -a, -b and -w"));
        }
        let mut bypass: Vec<Cidr> = NOBODYS.iter().filter_map(|text| Cidr::parse(text)).collect();
        if let Some(text) = self.text(Flag::Bypass) {
            bypass.extend(self.networks("-b", &text));
        }
        let forward = self.text(Flag::Forward).map(|text| self.networks("-w", &text)).unwrap_or_default();
        let clients = self.text(Flag::Clients).and_then(|text| self.clients(&text));
        let interface = self.text(Flag::Interface).unwrap_or_else(|| "eth0".to_owned());
        let interface = crate::read::value::interface(&interface);
        let interface = interface.map_err(|problem| self.found.push(error("-I", problem.text))).ok()?;
        let output = self.has(Flag::Output);
        Some(Nat { servers, tcp: tcp?, udp, interface, bypass, forward, clients, output })
    }

    fn clients(&mut self, text: &str) -> Option<Clients> {
        let (kind, rest) = text.split_at_checked(1)?;
        let list = self.networks("-a", rest);
        match kind {
            "w" | "W" => Some(Clients::Only(list)),
            "b" | "B" => Some(Clients::AllBut(list)),
            _ => {
                self.found.push(error("-a", "it begins with w (those alone) or b (all but those)"));
                None
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(line: &str) -> Result<NatInvocation, String> {
        flags(line.split('|').map(Into::into)).map_err(|found| found.to_string())
    }

    #[test]
    fn rules_for_clients_and_this_machine() {
        let Ok(NatInvocation::Make(mut nat, file)) = read(
            "-s|192.0.2.9|-l|1080|-u|-o|-I|br0|-a|w192.168.1.2 192.168.1.3|-b|198.51.100.7|-w|10.9.0.0/16|-i|f",
        ) else {
            panic!("rules")
        };
        assert_eq!((nat.tcp, nat.udp, &*nat.interface, nat.output), (1080, Some(1080), "br0", true));
        assert_eq!(nat.server_addresses().count(), 1);
        assert_eq!(nat.bypass.len(), 17);
        assert_eq!(nat.forward.len(), 1);
        assert!(matches!(&nat.clients, Some(Clients::Only(list)) if list.len() == 2));
        assert_eq!(file, Some("f".into()));
        add_file(&mut nat, "# names\n1.2.3.0/24\n\n  5.6.7.8\n2001:db8::/32\nx\n");
        assert_eq!(nat.bypass.len(), 19);
    }

    #[test]
    fn other_ports_for_datagrams() {
        let line = "-s|ss.example|-l|1|-S|192.0.2.1|-L|2|-U|-a|b10.0.0.1";
        let Ok(NatInvocation::Make(nat, None)) = read(line) else { panic!("rules") };
        assert_eq!((nat.tcp, nat.udp, nat.servers.len(), &*nat.interface), (1, Some(2), 2, "eth0"));
        assert!(matches!(nat.clients, Some(Clients::AllBut(_))));
        assert_eq!(read("-f"), Ok(NatInvocation::Flush));
        assert_eq!(read("-h"), Ok(NatInvocation::Help));
    }

    #[test]
    fn mistakes_are_named() {
        for (line, want) in [
            ("", "ss-nat -s: missing"),
            ("-s|a", "ss-nat -l: missing"),
            ("-s|a|-l|0", "ss-nat -l: no port"),
            ("-s|a|-l|1|-U", "ss-nat -S: missing"),
            ("-s|a|-l|1|-a|x1.2.3.4", "ss-nat -a: it begins with w"),
            ("-s|a|-l|1|-b|1.2.3.4/33", "ss-nat -b: no IPv4 address"),
            ("-s|a|-l|1|-e|-m multiport", "ss-nat -e: options of iptables cannot be obeyed"),
            ("-s|a|-l|1|-I|a b", "ss-nat -I: no name of an interface"),
            ("-x", "ss-nat -x"),
        ] {
            let found = read(line).unwrap_err();
            assert!(found.contains(want), "{line}: {found}");
        }
    }
}
