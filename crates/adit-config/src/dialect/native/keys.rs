//! Every key of `adit.toml`, in one table: the reader checks against it, messages and documentation quote it.

use std::fmt::Write as _;
use std::sync::LazyLock;

use super::bound;

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
    /// In `[dns]`.
    Dns,
    /// In a `[[dns.upstream]]`.
    DnsUpstream,
    /// In a `[[dns.policy]]`.
    DnsPolicy,
    /// In a `[[dns.hosts]]`.
    DnsHost,
    /// In an `[[inbound]]`.
    Inbound,
    /// In an entry of an inbound's `users`.
    User,
    /// In an `[[outbound]]`.
    Outbound,
    /// In an entry of an outbound's `members`.
    Member,
    /// In a `[[set]]`.
    Set,
    /// In a `[[rule]]`.
    Rule,
    /// In a table of a rule's `and`, `or` or `not`.
    RulePart,
}

impl Table {
    /// All of them, in the order in which documentation lists them.
    pub const ALL: [Self; 16] = [
        Self::Root,
        Self::Log,
        Self::Admin,
        Self::Limits,
        Self::Udp,
        Self::Dns,
        Self::DnsUpstream,
        Self::DnsPolicy,
        Self::DnsHost,
        Self::Inbound,
        Self::User,
        Self::Outbound,
        Self::Member,
        Self::Set,
        Self::Rule,
        Self::RulePart,
    ];

    /// The header, as it stands in a file.
    pub fn header(self) -> &'static str {
        match self {
            Self::Root => "top of the file",
            Self::Log => "[log]",
            Self::Admin => "[admin]",
            Self::Limits => "[limits]",
            Self::Udp => "[udp]",
            Self::Dns => "[dns]",
            Self::DnsUpstream => "[[dns.upstream]]",
            Self::DnsPolicy => "[[dns.policy]]",
            Self::DnsHost => "[[dns.hosts]]",
            Self::Inbound => "[[inbound]]",
            Self::User => "users of an [[inbound]]",
            Self::Outbound => "[[outbound]]",
            Self::Member => "members of an [[outbound]]",
            Self::Set => "[[set]]",
            Self::Rule => "[[rule]]",
            Self::RulePart => "and, or and not of a [[rule]]",
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
    /// The name it had; reading takes it with a warning for two releases after the change.
    pub former: Option<&'static str>,
}

impl Key {
    /// Whether an inbound or outbound of this protocol has the key.
    pub fn applies_to(&self, protocol: &str) -> bool {
        self.protocols.is_empty() || self.protocols.contains(&protocol)
    }

    /// The same key, which was called `name` before.
    const fn formerly(mut self, name: &'static str) -> Self {
        self.former = Some(name);
        self
    }
}

/// The keys of one table.
pub fn of(table: Table) -> impl Iterator<Item = &'static Key> {
    all().filter(move |key| key.table == table)
}

/// Every key there is: those of tables that one row drives altogether, and [`KEYS`].
pub fn all() -> impl Iterator<Item = &'static Key> {
    bound::keys().chain(KEYS)
}

/// The name that a key had before, if it had another.
pub(super) fn former(table: Table, name: &str) -> Option<&'static str> {
    static RENAMED: LazyLock<Vec<&Key>> =
        LazyLock::new(|| all().filter(|key| key.former.is_some()).collect());
    RENAMED.iter().find(|key| key.table == table && key.name == name)?.former
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
            let Key { name, value, default, meaning, former, .. } = key;
            let former = former.map_or_else(String::new, |old| format!("; before: `{old}`"));
            writeln!(out, "| `{name}` | {protocols} | {value} | {default} | {meaning}{former} |")
                .expect("a string takes any text");
        }
    }
    out
}

pub(super) const ALL: &[&str] = &[];
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
const CARRYING: &[&str] = &["shadowsocks", "ssr", "tunnel"];
const OPEN: &[&str] = &["mixed", "socks", "http", "snell"];
const GROUP: &[&str] = &["group"];
const DIALLING: &[&str] = &["direct", "snell", "shadowsocks", "ssr"];

pub(super) const fn key(
    table: Table,
    name: &'static str,
    protocols: &'static [&'static str],
    value: &'static str,
    default: &'static str,
    meaning: &'static str,
) -> Key {
    Key { table, name, protocols, value, default, meaning, former: None }
}

/// The keys of the other tables, in the order in which documentation lists them.
#[rustfmt::skip]
pub const KEYS: &[Key] = {
    use Table::{
        Admin, Dns, DnsHost, DnsPolicy, DnsUpstream, Inbound, Member, Outbound, Root, Rule, RulePart, Set, User,
    };
    &[
        key(Root, "cores", ALL, "1 to 1024", "one per processor, at most 8", "number of event loops"),
        key(Root, "state", ALL, "path of a file, or off", "a file for this configuration in the state directory", "keeps the counters of users across restarts; made when an inbound has users"),
        key(Root, "log", ALL, "table", "", "what is logged, and how"),
        key(Root, "admin", ALL, "table", "", "the control interface"),
        key(Root, "limits", ALL, "table", "", "limits of the whole process"),
        key(Root, "udp", ALL, "table", "", "how datagrams are relayed"),
        key(Root, "dns", ALL, "table", "the system's resolver", "how names are resolved"),
        key(Root, "inbound", ALL, "tables", "required", "where connections come in"),
        key(Root, "outbound", ALL, "tables", "one of protocol direct", "where connections go out"),
        key(Root, "rule", ALL, "tables", "none", "which requests take another outbound than that of their inbound; the first rule that matches decides"),
        key(Root, "set", ALL, "tables", "none", "files of names or addresses that rules refer to"),
        key(Root, "geoip", ALL, "path of a .mmdb file", "required if a rule names a country", "database of the countries of addresses"),

        key(Admin, "socket", ALL, "path of a unix socket", "none: no control interface", "where the control interface listens"),

        key(Dns, "upstream", ALL, "tables", "those of /etc/resolv.conf", "name servers; the next one is asked when one fails, or has no answer after a second"),
        key(Dns, "policy", ALL, "tables", "none", "names that other servers are asked for; the most specific domain counts"),
        key(Dns, "hosts", ALL, "tables", "none", "names with fixed addresses; /etc/hosts comes next"),
        key(Dns, "cache", ALL, "1 to 1048576", "4096", "answers that are remembered; an answer is about one name and record type"),
        key(Dns, "min-ttl", ALL, "duration, up to 7d", "0s", "shortest time for which an answer is remembered"),
        key(Dns, "max-ttl", ALL, "duration, up to 7d", "1d", "longest time for which an answer is remembered"),
        key(Dns, "stale", ALL, "true or false", "true", "uses an answer for 5m after its time while a new one is fetched, and for 1d when none can be had"),
        key(Dns, "family", ALL, "any, prefer-ipv4, ipv4-only or ipv6-only", "any", "address families of outbounds that do not say it"),

        key(DnsUpstream, "name", ALL, "text of 1 to 64 characters", "the text of server, without a path", "name in messages and policies"),
        key(DnsUpstream, "server", ALL, "address, or udp://, tcp://, tls:// or https:// with host, port and path", "required", "where the server is and how it is spoken to"),
        key(DnsUpstream, "address", ALL, "address", "looked up", "address of the host that server names"),
        key(DnsUpstream, "bootstrap", ALL, "address, address:port, or a list", "those of /etc/resolv.conf", "servers that are asked by UDP for the address of the host"),
        key(DnsUpstream, "through", ALL, "name of an outbound", "none: straight", "reaches the server through this outbound; one of udp:// is then asked by TCP"),
        key(DnsUpstream, "default", ALL, "true or false", "true", "false: asked for the names of policies alone"),

        key(DnsPolicy, "domain", ALL, "domain, or a list", "required", "the names: a domain and all below it; `=example.com` is one name alone"),
        key(DnsPolicy, "upstream", ALL, "name of an upstream, or a list", "required", "the servers that are asked, in this order"),

        key(DnsHost, "name", ALL, "domain", "required", "the name"),
        key(DnsHost, "address", ALL, "address, or a list", "required", "its addresses"),

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
        key(Inbound, "allow-private", SERVERS, "true or false", "false", "lets clients reach loopback, link-local and private addresses, and this machine; not enforced yet, takes effect with a coming release"),
        key(Inbound, "reply", LOCAL, "early or connected", "early", "reports success of tunnels at once, or when their server has been dialled; direct: always when the target has"),
        key(Inbound, "psk", SNELL, "text", "required without users", "the pre-shared key; with users either this and their passwords are client ids, or left out and their passwords are pre-shared keys"),
        key(Inbound, "version", SNELL, "1 to 6, or auto", "5", "version of the clients; 4 and 5 are alike; auto takes 4, 5 and 6"),
        key(Inbound, "obfs", DISGUISED, "off, http or tls", "off", "disguise that clients must wear"),
        key(Inbound, "udp", SNELL, "true or false", "true", "serves datagrams over streams"),
        key(Inbound, "quic", SNELL, "true or false", "true", "takes QUIC on the UDP port of the same number"),
        key(Inbound, "method", CIPHERED, "name of a method", "required", "the cipher"),
        key(Inbound, "password", CIPHERED, "text; for 2022 methods base64", "required unless method is none", "what clients must know"),
        key(Inbound, "key", SHADOWSOCKS, "base64", "none", "the key itself, in the place of password"),
        key(Inbound, "mode", SNELL, "default, unshaped or unsafe-raw", "default", "mode of version 6"),
        key(Inbound, "network", CARRYING, "tcp, udp or tcp-and-udp", "tcp", "what is served: streams, datagrams or both").formerly("mode"),
        key(Inbound, "replay", SHADOWSOCKS, "refuse, report or ignore", "refuse", "what happens to recorded connections; 2022 methods always refuse them"),
        key(Inbound, "ssr-protocol", SSR, "name of a protocol of ShadowsocksR", "origin", "framing and authentication; `_compatible` behind it serves clients with origin too"),
        key(Inbound, "ssr-obfs", SSR, "name of an obfs of ShadowsocksR", "plain", "obfs that clients must use; `_compatible` behind it serves clients with plain too"),
        key(Inbound, "ssr-obfs-param", SSR, "text", "none", "http: hosts that are accepted; tls: seconds that a client's clock may be off"),
        key(Inbound, "max-clients", SSR, "1 to 1048576", "64", "most client programs of one user at a time"),
        key(Inbound, "key-interval", SSR, "duration, in whole seconds", "24h", "time between two lists of sizes of auth_chain_f; both ends must agree"),
        key(Inbound, "plugin", SHADOWSOCKS, "program", "none", "SIP003 plugin that listens in the place of adit"),
        key(Inbound, "plugin-options", SHADOWSOCKS, "text", "none", "options of the plugin, as `key=value;flag`"),
        key(Inbound, "plugin-arguments", SHADOWSOCKS, "text, or a list", "none", "arguments of the plugin"),
        key(Inbound, "plugin-network", SHADOWSOCKS, "tcp, udp or tcp-and-udp", "tcp", "what goes through the plugin: streams, datagrams or both").formerly("plugin-mode"),
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
        key(Outbound, "mode", SNELL, "default, unshaped or unsafe-raw", "default", "mode of version 6"),
        key(Outbound, "network", CIPHERED, "tcp, udp or tcp-and-udp", "tcp", "what the server is used for: streams, datagrams or both").formerly("mode"),
        key(Outbound, "ssr-protocol", SSR, "name of a protocol of ShadowsocksR", "origin", "framing and authentication that the server expects"),
        key(Outbound, "ssr-obfs", SSR, "name of an obfs of ShadowsocksR", "plain", "obfs that the server expects"),
        key(Outbound, "ssr-obfs-param", SSR, "text", "host of server", "host names to choose from, separated by commas; http: further lines of the head behind a #"),
        key(Outbound, "key-interval", SSR, "duration, in whole seconds", "24h", "time between two lists of sizes of auth_chain_f; both ends must agree"),
        key(Outbound, "plugin", SHADOWSOCKS, "program", "none", "SIP003 plugin that connects in the place of adit"),
        key(Outbound, "plugin-options", SHADOWSOCKS, "text", "none", "options of the plugin, as `key=value;flag`"),
        key(Outbound, "plugin-arguments", SHADOWSOCKS, "text, or a list", "none", "arguments of the plugin"),
        key(Outbound, "plugin-network", SHADOWSOCKS, "tcp, udp or tcp-and-udp", "tcp", "what goes through the plugin: streams, datagrams or both").formerly("plugin-mode"),
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
        key(Outbound, "through", DIALLING, "name of an outbound", "none", "carries every connection of this outbound, in the place of TCP; without datagrams"),
        key(Outbound, "dns", DIALLING, "address, address:port, or a list", "those of [dns]", "name servers of this outbound alone, asked by UDP; port 53 unless given"),
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

        key(Set, "name", ALL, "text of 1 to 64 characters", "required", "name that rules use"),
        key(Set, "path", ALL, "path of a file", "required", "one name or network per line; relative to the folder of this file"),
        key(Set, "format", ALL, "any, domains or addresses", "any", "what the lines are; example.com is that name, +.example.com with all below it, .example.com all below it"),

        key(Rule, "outbound", ALL, "name of an outbound", "required without reject", "where requests go that match; all keys of a rule must match, one value of each"),
        key(Rule, "reject", ALL, "reset, drop or protocol", "none", "refuses them: by a reset, by silence, or by an answer of the inbound's protocol"),
        key(Rule, "domain", ALL, "name, or a list", "none", "the target's name is one of these"),
        key(Rule, "domain-suffix", ALL, "name, or a list", "none", "the target's name is one of these or below one of them"),
        key(Rule, "domain-keyword", ALL, "text, or a list", "none", "the target's name holds one of these"),
        key(Rule, "domain-regex", ALL, "regular expression, or a list", "none", "one of these is found in the target's name, in any case"),
        key(Rule, "ip-cidr", ALL, "address or network, or a list", "none", "an address of the target is in one of these"),
        key(Rule, "geoip", ALL, "country of two letters, or a list", "none", "an address of the target belongs to one of these"),
        key(Rule, "set", ALL, "name of a set, or a list", "none", "the name or an address of the target is in one of these"),
        key(Rule, "source", ALL, "address or network, or a list", "none", "the client's address is in one of these"),
        key(Rule, "source-port", ALL, "port or range as \"1000-2000\", or a list", "none", "the client's port is one of these"),
        key(Rule, "port", ALL, "port or range as \"1000-2000\", or a list", "none", "the target's port is one of these"),
        key(Rule, "network", ALL, "tcp or udp", "both", "kind of traffic"),
        key(Rule, "inbound", ALL, "name of an inbound, or a list", "all", "where the request came in"),
        key(Rule, "user", ALL, "user name, or a list", "all", "who the client is"),
        key(Rule, "protocol", ALL, "name of a protocol, or a list", "any", "what the client speaks to the target, as far as it is known"),
        key(Rule, "resolve", ALL, "true or false", "true", "looks names up for ip-cidr, geoip and set; false: a name whose addresses no earlier rule asked for does not match"),
        key(Rule, "and", ALL, "list of tables", "none", "all of them match; each has the keys above"),
        key(Rule, "or", ALL, "list of tables", "none", "one of them matches"),
        key(Rule, "not", ALL, "table", "none", "it does not match"),

        key(RulePart, "domain", ALL, "name, or a list", "none", "the target's name is one of these"),
        key(RulePart, "domain-suffix", ALL, "name, or a list", "none", "the target's name is one of these or below one of them"),
        key(RulePart, "domain-keyword", ALL, "text, or a list", "none", "the target's name holds one of these"),
        key(RulePart, "domain-regex", ALL, "regular expression, or a list", "none", "one of these is found in the target's name, in any case"),
        key(RulePart, "ip-cidr", ALL, "address or network, or a list", "none", "an address of the target is in one of these"),
        key(RulePart, "geoip", ALL, "country of two letters, or a list", "none", "an address of the target belongs to one of these"),
        key(RulePart, "set", ALL, "name of a set, or a list", "none", "the name or an address of the target is in one of these"),
        key(RulePart, "source", ALL, "address or network, or a list", "none", "the client's address is in one of these"),
        key(RulePart, "source-port", ALL, "port or range as \"1000-2000\", or a list", "none", "the client's port is one of these"),
        key(RulePart, "port", ALL, "port or range as \"1000-2000\", or a list", "none", "the target's port is one of these"),
        key(RulePart, "network", ALL, "tcp or udp", "both", "kind of traffic"),
        key(RulePart, "inbound", ALL, "name of an inbound, or a list", "all", "where the request came in"),
        key(RulePart, "user", ALL, "user name, or a list", "all", "who the client is"),
        key(RulePart, "protocol", ALL, "name of a protocol, or a list", "any", "what the client speaks to the target, as far as it is known"),
        key(RulePart, "resolve", ALL, "true or false", "true", "looks names up for ip-cidr, geoip and set; false: a name whose addresses no earlier rule asked for does not match"),
        key(RulePart, "and", ALL, "list of tables", "none", "all of them match; each has the keys above"),
        key(RulePart, "or", ALL, "list of tables", "none", "one of them matches"),
        key(RulePart, "not", ALL, "table", "none", "it does not match"),
    ]
};

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_unique_within_a_table() {
        for (i, key) in all().enumerate() {
            let twin = all().take(i).find(|other| (other.table, other.name) == (key.table, key.name));
            assert_eq!(twin, None);
        }
    }

    #[test]
    fn an_old_name_stands_for_one_key() {
        for key in all().filter(|key| key.former.is_some()) {
            assert_eq!(former(key.table, key.name), key.former);
            let twin = all().find(|other| {
                let shares = other.protocols.iter().any(|name| key.applies_to(name));
                other.table == key.table && Some(other.name) == key.former && shares
            });
            assert_eq!(twin, None, "{}: a file could mean either key", key.name);
        }
        assert_eq!(former(Table::Rule, "network"), None);
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
        assert_eq!(cells, vec![6; all().count()]);
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
    }

    #[test]
    fn the_example_names_every_key() {
        for key in all() {
            assert!(super::super::EXAMPLE.contains(key.name), "{}", key.name);
        }
    }
}
