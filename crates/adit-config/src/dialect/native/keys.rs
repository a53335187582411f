//! Every key of `adit.toml`, in one table: the reader checks against it, messages and documentation quote it.

use std::fmt::Write as _;

/// Where a key stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Table {
    /// At the top of the file.
    Root,
    /// In `[log]`.
    Log,
    /// In `[admin]`.
    Admin,
    /// In `[limits]`.
    Limits,
    /// In `[udp]`.
    Udp,
    /// In an `[[inbound]]`.
    Inbound,
    /// In an entry of an inbound's `users`.
    User,
    /// In an `[[outbound]]`.
    Outbound,
    /// In an entry of an outbound's `members`.
    Member,
}

impl Table {
    /// All of them, in the order in which documentation lists them.
    pub const ALL: [Self; 9] = [
        Self::Root,
        Self::Log,
        Self::Admin,
        Self::Limits,
        Self::Udp,
        Self::Inbound,
        Self::User,
        Self::Outbound,
        Self::Member,
    ];

    /// The header, as it stands in a file.
    pub fn header(self) -> &'static str {
        match self {
            Self::Root => "top of the file",
            Self::Log => "[log]",
            Self::Admin => "[admin]",
            Self::Limits => "[limits]",
            Self::Udp => "[udp]",
            Self::Inbound => "[[inbound]]",
            Self::User => "users of an [[inbound]]",
            Self::Outbound => "[[outbound]]",
            Self::Member => "members of an [[outbound]]",
        }
    }
}

/// One key.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Key {
    /// Where it stands.
    pub table: Table,
    /// Its name.
    pub name: &'static str,
    /// The protocols of the inbound or outbound that have it; empty for all.
    pub protocols: &'static [&'static str],
    /// What may be written, with the unit.
    pub value: &'static str,
    /// What holds when it is left out; `required` when it must not be.
    pub default: &'static str,
    /// What it does.
    pub meaning: &'static str,
}

impl Key {
    /// Whether an inbound or outbound of this protocol has the key.
    pub fn applies_to(&self, protocol: &str) -> bool {
        self.protocols.is_empty() || self.protocols.contains(&protocol)
    }
}

/// The keys of one table.
pub fn of(table: Table) -> impl Iterator<Item = &'static Key> {
    KEYS.iter().filter(move |key| key.table == table)
}

/// The reference of all keys, as Markdown: one table for each of [`Table`].
pub fn markdown() -> String {
    let mut out = String::new();
    for table in Table::ALL {
        let lead = if out.is_empty() { "" } else { "\n" };
        write!(out, "{lead}### {}\n\n", table.header()).expect("a string takes any text");
        out.push_str("| key | of | value | default | meaning |\n|---|---|---|---|---|\n");
        for key in of(table) {
            let protocols =
                if key.protocols.is_empty() { "all".to_owned() } else { key.protocols.join(", ") };
            let Key { name, value, default, meaning, .. } = key;
            writeln!(out, "| `{name}` | {protocols} | {value} | {default} | {meaning} |")
                .expect("a string takes any text");
        }
    }
    out
}

const ALL: &[&str] = &[];
const LOCAL: &[&str] = &["mixed", "socks", "http"];
const USERS: &[&str] = &["mixed", "socks", "http", "snell", "shadowsocks", "ssr"];
const SNELL: &[&str] = &["snell"];
const SHADOWSOCKS: &[&str] = &["shadowsocks"];
const DISGUISED: &[&str] = &["snell", "shadowsocks"];
const SSR: &[&str] = &["ssr"];
const CIPHERED: &[&str] = &["shadowsocks", "ssr"];
const NAMED: &[&str] = &["snell", "ssr"];
const SERVERS: &[&str] = &["snell", "shadowsocks", "ssr"];
const TUNNEL: &[&str] = &["tunnel"];
const MODAL: &[&str] = &["snell", "shadowsocks", "ssr", "tunnel"];
const OPEN: &[&str] = &["mixed", "socks", "http", "snell"];
const GROUP: &[&str] = &["group"];
const DIALLING: &[&str] = &["direct", "snell", "shadowsocks", "ssr"];

const fn key(
    table: Table,
    name: &'static str,
    protocols: &'static [&'static str],
    value: &'static str,
    default: &'static str,
    meaning: &'static str,
) -> Key {
    Key { table, name, protocols, value, default, meaning }
}

/// All keys, in the order in which documentation lists them.
#[rustfmt::skip]
pub const KEYS: &[Key] = {
    use Table::{Admin, Inbound, Limits, Log, Member, Outbound, Root, Udp, User};
    &[
        key(Root, "cores", ALL, "1 to 1024", "one per processor, at most 8", "number of event loops"),
        key(Root, "state", ALL, "path of a file, or off", "a file for this configuration in the state directory", "keeps the counters of users across restarts; made when an inbound has users"),
        key(Root, "log", ALL, "table", "", "what is logged, and how"),
        key(Root, "admin", ALL, "table", "", "the control interface"),
        key(Root, "limits", ALL, "table", "", "limits of the whole process"),
        key(Root, "udp", ALL, "table", "", "how datagrams are relayed"),
        key(Root, "inbound", ALL, "tables", "required", "where connections come in"),
        key(Root, "outbound", ALL, "tables", "one of protocol direct", "where connections go out"),

        key(Log, "level", ALL, "error, warn, info, debug or trace", "info", "least severe level that is written"),
        key(Log, "format", ALL, "text or json", "text", "shape of a line"),
        key(Log, "time", ALL, "true or false", "true", "puts the time on each line; a journal adds its own"),
        key(Log, "destinations", ALL, "true or false", "false", "shows where connections go in lines of level info"),

        key(Admin, "socket", ALL, "path of a unix socket", "none: no control interface", "where the control interface listens"),

        key(Limits, "idle", ALL, "duration, or off", "2h4m", "ends a connection without a byte in either direction for this long"),
        key(Limits, "drain", ALL, "duration", "10s", "time for open connections to end after the first signal"),
        key(Limits, "unauthenticated", ALL, "number of connections", "4096", "most connections to servers that have not authenticated yet"),
        key(Limits, "unauthenticated-per-source", ALL, "number of connections", "256", "the same per IPv4 address or IPv6 /64"),
        key(Limits, "carrier-memory", ALL, "number of bytes with a unit, at least 16MiB", "a quarter of the system's memory, at least 64MiB", "what the sessions of all carriers hold together"),

        key(Udp, "idle", ALL, "duration, from 1m", "5m", "forgets a flow without a datagram in either direction for this long"),
        key(Udp, "flows", ALL, "1 to 1048576", "4096", "most flows per port and event loop, each with a descriptor; the oldest makes room"),
        key(Udp, "ecn", ALL, "true or false", "false", "carries marks of congestion from one side to the other"),
        key(Udp, "dscp", ALL, "0 to 63", "0", "code point of the service that sealed datagrams ask of routers"),
        key(Udp, "fragment", ALL, "true or false", "false", "sends sealed datagrams that are too large for the path in fragments"),
        key(Udp, "mtu", ALL, "576 to 65535 bytes", "as the system knows it", "drops sealed datagrams that make larger packets, headers of IP and UDP included"),
        key(Udp, "gather", ALL, "on or off", "on", "waits up to 0.2 ms for more datagrams while many pass, which saves processor time"),

        key(Inbound, "name", ALL, "text of 1 to 64 characters", "the protocol", "name in logs and status"),
        key(Inbound, "protocol", ALL, "mixed, socks, http, snell, shadowsocks, ssr or tunnel", "required", "what is spoken on the port"),
        key(Inbound, "listen", ALL, "address:port, or a list", "required", "where to listen; `:port` is every address of the machine"),
        key(Inbound, "outbound", ALL, "name of an outbound", "the first outbound", "where its connections go"),
        key(Inbound, "tcp-fast-open", ALL, "true or false", "false", "accepts data in the first packet"),
        key(Inbound, "tcp-keep-alive", ALL, "duration, 1s to 32767s", "15s", "silence after which the peer is asked whether it is there, and time between questions"),
        key(Inbound, "tcp-send-buffer", ALL, "1 to 1073741823 bytes", "by the system", "room for bytes that are not acknowledged, fixed (SO_SNDBUF)"),
        key(Inbound, "tcp-receive-buffer", ALL, "1 to 1073741823 bytes", "by the system", "room for bytes that are not read yet, fixed (SO_RCVBUF)"),
        key(Inbound, "tcp-multipath", ALL, "true or false", "false", "accepts Multipath TCP (RFC 8684) where the system has it"),
        key(Inbound, "interface", ALL, "name of an interface", "any", "listens on this interface alone"),
        key(Inbound, "reuse-port", ALL, "true or false", "false", "lets other processes of the same user listen there as well"),
        key(Inbound, "users", USERS, "list of { name, password }", "none", "who may use it; the keys of an entry are below"),
        key(Inbound, "allow-lan", OPEN, "true or false", "false", "lets a port without users, or snell in mode unsafe-raw, listen beyond loopback"),
        key(Inbound, "reply", LOCAL, "early or connected", "early", "reports success of tunnels at once, or when their server has been dialled; direct: always when the target has"),
        key(Inbound, "psk", SNELL, "text", "required without users", "the pre-shared key; with users either this and their passwords are client ids, or left out and their passwords are pre-shared keys"),
        key(Inbound, "version", SNELL, "1 to 6, or auto", "5", "version of the clients; 4 and 5 are alike; auto takes 4, 5 and 6"),
        key(Inbound, "obfs", DISGUISED, "off, http or tls", "off", "disguise that clients must wear"),
        key(Inbound, "udp", SNELL, "true or false", "true", "serves datagrams over streams"),
        key(Inbound, "quic", SNELL, "true or false", "true", "takes QUIC on the UDP port of the same number"),
        key(Inbound, "method", CIPHERED, "name of a method", "required", "the cipher"),
        key(Inbound, "password", CIPHERED, "text; for 2022 methods base64", "required unless method is none", "what clients must know"),
        key(Inbound, "key", SHADOWSOCKS, "base64", "none", "the key itself, in the place of password"),
        key(Inbound, "mode", MODAL, "tcp, udp or tcp-and-udp; for snell default, unshaped or unsafe-raw", "tcp; default", "what is served; for snell the mode of version 6"),
        key(Inbound, "replay", SHADOWSOCKS, "refuse, report or ignore", "refuse", "what happens to recorded connections; 2022 methods always refuse them"),
        key(Inbound, "ssr-protocol", SSR, "name of a protocol of ShadowsocksR", "origin", "framing and authentication; `_compatible` behind it serves clients with origin too"),
        key(Inbound, "ssr-obfs", SSR, "name of an obfs of ShadowsocksR", "plain", "obfs that clients must use; `_compatible` behind it serves clients with plain too"),
        key(Inbound, "ssr-obfs-param", SSR, "text", "none", "http: hosts that are accepted; tls: seconds that a client's clock may be off"),
        key(Inbound, "max-clients", SSR, "1 to 1048576", "64", "most client programs of one user at a time"),
        key(Inbound, "key-interval", SSR, "duration, in whole seconds", "24h", "time between two lists of sizes of auth_chain_f; both ends must agree"),
        key(Inbound, "plugin", SHADOWSOCKS, "program", "none", "SIP003 plugin that listens in the place of adit"),
        key(Inbound, "plugin-options", SHADOWSOCKS, "text", "none", "options of the plugin, as `key=value;flag`"),
        key(Inbound, "plugin-arguments", SHADOWSOCKS, "text, or a list", "none", "arguments of the plugin"),
        key(Inbound, "plugin-mode", SHADOWSOCKS, "tcp, udp or tcp-and-udp", "tcp", "what goes through the plugin"),
        key(Inbound, "pacing-mbps", SERVERS, "1 to 1000000 million bits/s", "none", "rate at which all connections of one client (IPv4 address, IPv6 /64) are sent to together"),
        key(Inbound, "brutal-mbps", SERVERS, "the same", "none", "the same whatever is lost, by the kernel module tcp-brutal; without it as pacing-mbps"),
        key(Inbound, "brutal-cwnd-gain", SERVERS, "5 to 80 tenths", "15", "window of brutal, by what the rate needs"),
        key(Inbound, "target", TUNNEL, "host:port", "required", "where every connection goes"),
        key(Inbound, "carrier", ALL, "tcp or kcp", "tcp", "what connections come over; kcp: streams of sessions over datagrams"),
        key(Inbound, "carrier-key", ALL, "text", "required with kcp", "what both ends of the carrier know"),
        key(Inbound, "carrier-crypt", ALL, "name of a cipher", "aes-128-gcm", "the carrier's cipher"),
        key(Inbound, "carrier-parity", ALL, "auto, off, or data/parity", "auto", "parity packets that are sent along, for instance 10/3; auto follows the loss"),
        key(Inbound, "carrier-mtu", ALL, "128 to 1500", "1350", "length of datagrams"),
        key(Inbound, "carrier-compression", ALL, "true or false", "false", "compresses; both ends must agree"),
        key(Inbound, "carrier-smux", ALL, "auto, 1 or 2", "auto", "version of the multiplexer; auto takes what clients speak"),

        key(User, "name", ALL, "text of 1 to 255 bytes", "required", "user name"),
        key(User, "password", ALL, "text of 1 to 255 bytes", "required", "password; for shadowsocks a key in base64; for snell the client id, or without `psk` the pre-shared key"),
        key(User, "id", SSR, "0 to 4294967295", "required", "number of the user, the part of protocol_param before the colon"),
        key(User, "server", SHADOWSOCKS, "host:port", "none", "passes the user on to this server, unread (SIP023); all users of an inbound, or none"),
        key(User, "quota", ALL, "number of bytes with a unit, as 500GB or 10MiB", "none", "ends the user's connections when so many bytes have passed, both ways together"),
        key(User, "reset-day", ALL, "1 to 28", "never", "day of the month on which the quota begins anew, at midnight UTC"),
        key(User, "expires", ALL, "a date, as 2030-12-31, or a date and time, as 2030-12-31T18:00:00Z", "never", "end of service; a date is the last day, which ends at midnight UTC"),
        key(User, "rate", ALL, "number of bytes with a unit", "none", "most bytes per second, each way"),
        key(User, "connections", ALL, "1 to 1048576", "none", "most connections at a time"),
        key(User, "addresses", ALL, "1 to 1048576", "none", "most source addresses (IPv4 address, IPv6 /64) at a time"),

        key(Outbound, "name", ALL, "text of 1 to 64 characters", "the protocol", "name in logs, status and in `outbound` of inbounds"),
        key(Outbound, "protocol", ALL, "direct, reject, snell, shadowsocks, ssr or group", "required", "how targets are reached"),
        key(Outbound, "server", SERVERS, "host:port", "required", "the server"),
        key(Outbound, "psk", SNELL, "text", "required", "the pre-shared key of the server"),
        key(Outbound, "user-key", NAMED, "text of 1 to 255 bytes", "none", "snell: client id, by which a server tells users of one psk apart, `userkey` of sing-box; ssr: secret of the user"),
        key(Outbound, "user-id", SSR, "0 to 4294967295", "none", "number of the user, with user-key; together the protocol_param of other programs"),
        key(Outbound, "obfs", DISGUISED, "off, http or tls", "off", "disguise that the server expects"),
        key(Outbound, "obfs-host", DISGUISED, "host name", "host of server", "host that the disguise names"),
        key(Outbound, "method", CIPHERED, "name of a method", "required", "the cipher"),
        key(Outbound, "password", CIPHERED, "text; for 2022 methods base64, identities first, between colons", "required unless method is none", "what the server expects"),
        key(Outbound, "key", SHADOWSOCKS, "base64", "none", "the key itself, in the place of password"),
        key(Outbound, "mode", SERVERS, "tcp, udp or tcp-and-udp; for snell default, unshaped or unsafe-raw", "tcp; default", "what the server is used for; for snell the mode of version 6"),
        key(Outbound, "ssr-protocol", SSR, "name of a protocol of ShadowsocksR", "origin", "framing and authentication that the server expects"),
        key(Outbound, "ssr-obfs", SSR, "name of an obfs of ShadowsocksR", "plain", "obfs that the server expects"),
        key(Outbound, "ssr-obfs-param", SSR, "text", "host of server", "host names to choose from, separated by commas; http: further lines of the head behind a #"),
        key(Outbound, "key-interval", SSR, "duration, in whole seconds", "24h", "time between two lists of sizes of auth_chain_f; both ends must agree"),
        key(Outbound, "plugin", SHADOWSOCKS, "program", "none", "SIP003 plugin that connects in the place of adit"),
        key(Outbound, "plugin-options", SHADOWSOCKS, "text", "none", "options of the plugin, as `key=value;flag`"),
        key(Outbound, "plugin-arguments", SHADOWSOCKS, "text, or a list", "none", "arguments of the plugin"),
        key(Outbound, "plugin-mode", SHADOWSOCKS, "tcp, udp or tcp-and-udp", "tcp", "what goes through the plugin"),
        key(Outbound, "reuse", SNELL, "true or false", "false; true in version 2", "keeps connections for further requests; not in versions 1 and 3"),
        key(Outbound, "half-close", SNELL, "auto, on or late", "auto", "passes on the end of local data at once, or after the answer; auto: at once to adit"),
        key(Outbound, "udp", SNELL, "true or false", "true", "carries datagrams"),
        key(Outbound, "udp-relay", SNELL, "true or false", "true", "other name of `udp`"),
        key(Outbound, "quic", SNELL, "auto, on or off", "auto", "sends QUIC to the UDP port of the server as it is; off: over the stream; auto: over the stream when nothing answers"),
        key(Outbound, "block-quic", SNELL, "auto, on or off", "auto", "on refuses QUIC, so that applications use TCP; off is short for quic = \"on\""),
        key(Outbound, "version", SNELL, "1 to 6", "5", "version of the server; 4 and 5 are alike"),
        key(Outbound, "family", DIALLING, "any, prefer-ipv4, ipv4-only or ipv6-only", "any", "which address families are used"),
        key(Outbound, "ipv6", DIALLING, "true or false", "true", "false is short for family = \"ipv4-only\""),
        key(Outbound, "interface", DIALLING, "name of an interface", "by routing", "sends through this interface"),
        key(Outbound, "egress-interface", DIALLING, "name of an interface", "by routing", "other name of `interface`"),
        key(Outbound, "bind-address", DIALLING, "address, or one of IPv4 and one of IPv6", "by routing", "sends from this address of the machine"),
        key(Outbound, "fwmark", DIALLING, "1 to 4294967295", "none", "marks what is sent for routing rules and firewalls (Linux, CAP_NET_ADMIN)"),
        key(Outbound, "dns", DIALLING, "address, address:port, or a list", "the system's resolver", "name servers; port 53 unless given"),
        key(Outbound, "tcp-fast-open", DIALLING, "true or false", "false", "sends data in the first packet"),
        key(Outbound, "tcp-keep-alive", DIALLING, "duration, 1s to 32767s", "15s", "silence after which the peer is asked whether it is there, and time between questions"),
        key(Outbound, "tcp-send-buffer", DIALLING, "1 to 1073741823 bytes", "by the system", "room for bytes that are not acknowledged, fixed (SO_SNDBUF)"),
        key(Outbound, "tcp-receive-buffer", DIALLING, "1 to 1073741823 bytes", "by the system", "room for bytes that are not read yet, fixed (SO_RCVBUF)"),
        key(Outbound, "tcp-multipath", DIALLING, "true or false", "false", "asks for Multipath TCP (RFC 8684) where the system has it"),
        key(Outbound, "timeout", DIALLING, "duration", "10s", "time for name resolution and all attempts to connect together"),
        key(Outbound, "pacing-mbps", SERVERS, "1 to 1000000 million bits/s", "none", "rate at which all connections to the server send together"),
        key(Outbound, "brutal-mbps", SERVERS, "the same", "none", "the same whatever is lost, by the kernel module tcp-brutal; without it as pacing-mbps"),
        key(Outbound, "brutal-cwnd-gain", SERVERS, "5 to 80 tenths", "15", "window of brutal, by what the rate needs"),
        key(Outbound, "members", GROUP, "list of { name }", "required", "outbounds of which the one that answers best is used"),
        key(Outbound, "check-url", GROUP, "address that begins with http://", "http://www.gstatic.com/generate_204", "what is fetched through each member to compare them"),
        key(Outbound, "check-dns", GROUP, "address of a name server", "8.8.8.8:53", "which server is asked through each member to compare them for datagrams"),
        key(Outbound, "check-interval", GROUP, "duration", "10s", "time between two checks of a member"),
        key(Outbound, "check-interval-in-use", GROUP, "duration", "check-interval", "the same for the member in use"),
        key(Outbound, "check-timeout", GROUP, "duration", "5s", "an answer that takes longer is none"),
        key(Outbound, "tolerance", GROUP, "duration", "50ms", "how much faster another member must be to take over"),
        key(Outbound, "carrier", DIALLING, "tcp or kcp", "tcp", "what connections go over; kcp: streams of a session over datagrams"),
        key(Outbound, "carrier-server", DIALLING, "host:port", "server; required for direct", "the other end of the carrier; with direct it says where streams go"),
        key(Outbound, "carrier-key", DIALLING, "text", "required with kcp", "what both ends of the carrier know"),
        key(Outbound, "carrier-crypt", DIALLING, "name of a cipher", "aes-128-gcm", "the carrier's cipher"),
        key(Outbound, "carrier-parity", DIALLING, "auto, off, or data/parity", "auto", "parity packets that are sent along, for instance 10/3; auto follows the loss"),
        key(Outbound, "carrier-mtu", DIALLING, "128 to 1500", "1350", "length of datagrams"),
        key(Outbound, "carrier-compression", DIALLING, "true or false", "false", "compresses; both ends must agree"),
        key(Outbound, "carrier-smux", DIALLING, "auto, 1 or 2", "auto", "version of the multiplexer; auto is 2"),
        key(Outbound, "carrier-sessions", DIALLING, "1 to 1024", "1", "sessions that streams are spread over; every event loop has one at least"),

        key(Member, "name", ALL, "name of an outbound", "required", "which outbound it is; not one of protocol group"),
        key(Member, "tcp-weight", ALL, "percent, 0 to 100", "100", "how much it is preferred for streams; 0 is never"),
        key(Member, "udp-weight", ALL, "percent, 0 to 100", "100", "the same for datagrams"),
    ]
};

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_unique_within_a_table() {
        for (i, key) in KEYS.iter().enumerate() {
            let twin = KEYS[..i].iter().find(|other| (other.table, other.name) == (key.table, key.name));
            assert_eq!(twin, None);
        }
    }

    #[test]
    fn the_reference_has_a_row_for_each_key() {
        let text = markdown();
        assert!(
            text.contains("\n| `method` | shadowsocks, ssr | name of a method | required | the cipher |\n"),
            "{text}"
        );
        let cells: Vec<usize> =
            text.lines().filter(|l| l.starts_with("| `")).map(|l| l.matches('|').count()).collect();
        assert_eq!(cells, vec![6; KEYS.len()]);
    }

    #[test]
    fn the_reference_page_is_current() {
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/configuration.md");
        let page = std::fs::read_to_string(path).unwrap();
        let (_, tables) = page.split_once("<!-- adit config docs -->\n\n").expect("the page has the mark");
        assert_eq!(tables, markdown(), "`adit config docs` prints what belongs behind the mark");
    }

    #[test]
    fn defaults_are_those_of_the_model() {
        use crate::dialect::value::duration;
        use crate::model::{Dial, Limits, Udp};

        let default = |table, name| of(table).find(|key| key.name == name).unwrap().default;
        let limits = Limits::default();
        assert_eq!(duration(default(Table::Limits, "idle")).ok(), limits.idle);
        assert_eq!(duration(default(Table::Limits, "drain")), Ok(limits.drain));
        assert_eq!(duration(default(Table::Outbound, "timeout")), Ok(Dial::default().timeout));
        let udp = Udp::default();
        assert_eq!(duration(default(Table::Udp, "idle")), Ok(udp.idle));
        assert_eq!(default(Table::Udp, "flows"), udp.flows.to_string());
        assert_eq!(default(Table::Limits, "unauthenticated"), limits.unauthenticated.to_string());
    }

    #[test]
    fn the_example_names_every_key() {
        for key in KEYS {
            assert!(super::super::EXAMPLE.contains(key.name), "{}", key.name);
        }
    }
}
