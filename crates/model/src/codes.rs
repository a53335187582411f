//! The codes of messages: the one table from which `adit explain CODE` and docs/errors.md are made.
//!
//! A code is stable: its meaning never changes, and a code that is gone is not given again.

use std::fmt;
use std::fmt::Write as _;

/// One cause of trouble.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Code {
    /// The name in messages, `ADIT-` and so on.
    pub id: &'static str,
    /// The cause in a few words.
    pub title: &'static str,
    /// The facts behind the message.
    pub meaning: &'static str,
    /// The remedy.
    pub remedy: &'static str,
}

impl fmt::Display for Code {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.id)
    }
}

/// Makes the constants and the table that holds all of them.
macro_rules! codes {
    ($($name:ident $id:literal $title:literal $meaning:literal $remedy:literal)+) => {
        $(
            #[doc = $title]
            pub const $name: Code = Code { id: $id, title: $title, meaning: $meaning, remedy: $remedy };
        )+

        /// Every code, in the order of the document.
        pub const ALL: &[Code] = &[$($name),+];
    };
}

codes! {
NET_REFUSED "ADIT-NET-01" "the server refuses connections"
    "The machine is there, but nothing listens on that port, or a firewall rejects the connection."
    "Check that the server runs (`adit status` or `systemctl status` there), that its port is the one in `server`, and that its firewall admits it."
NET_NAME "ADIT-NET-02" "the server's name does not resolve"
    "The name in `server` does not exist, or has no address of a family that may be used (`family`)."
    "Check the spelling. `getent hosts NAME` shows what this machine finds. An IP address in `server` needs no name."
NET_TIMEOUT "ADIT-NET-03" "the server does not answer"
    "No reply to the connection came within the time limit (`timeout`). The machine is off, its address is wrong, or a firewall drops the packets."
    "Try `adit test OUTBOUND`. Try the address from another network. Check the firewall of the server and of its provider."
NET_ROUTE "ADIT-NET-04" "there is no route to the server"
    "This machine has no way to that address: its network is down, or it has no IPv6."
    "`ip route get ADDRESS` shows the route. Without IPv6 set `family = \"ipv4\"`."
NET_SOCKET "ADIT-NET-05" "this machine gives no socket for the connection"
    "The system refused the socket: the interface or mark of the outbound does not exist, a right is missing, or descriptors have run out."
    "`ip link` lists interfaces. A mark needs CAP_NET_ADMIN. For descriptors see ADIT-SYS-01."
NET_OTHER "ADIT-NET-06" "the connection to the server failed"
    "The system or the outbound underneath reported an error, which the message holds."
    "The text after the colon is the cause. `adit test OUTBOUND` tries each step by itself."
DNS_DEAD "ADIT-DNS-01" "name servers do not answer"
    "The name servers cannot be reached or do not answer in time, so names cannot be resolved."
    "Check `dns` in the configuration and /etc/resolv.conf. `adit doctor` asks each name server."
DNS_FAILED "ADIT-DNS-02" "name servers report a failure"
    "A name server answered with an error (2 is SERVFAIL, 5 REFUSED), or with an unusable answer."
    "Ask the server by hand (`dig @SERVER NAME`), or set another one with `dns`."
TLS_CERTIFICATE "ADIT-TLS-01" "the certificate is wrong"
    "The server's TLS certificate does not fit its name, has expired, or is signed by an authority that is not trusted. Somebody may also sit in between. A clock that is off looks the same."
    "Check the server's name in the configuration and the date of this machine. Renew the certificate on the server."
AUTH_SERVER "ADIT-AUTH-01" "the server does not accept this client: key, method or protocol differ"
    "The server is reachable, but connections get no byte back, or bytes that do not open with this key. Servers do not say why: a wrong key, another method or protocol version, another obfs, a clock that is off, or a firewall that drops replies all look like this. Targets that do not answer can look like it too."
    "Compare key, method, version and obfs with the server's configuration; its log names refused clients (ADIT-AUTH-02). `adit test OUTBOUND` tells wrong keys from clocks that are off."
AUTH_CLIENT "ADIT-AUTH-02" "a client does not authenticate"
    "The first bytes of a client open with no key of this inbound. It has a wrong key, another method or protocol version, or it is a scan of the internet."
    "If the address is that of a user, compare key, method and version at both ends. Scans from unknown addresses are normal and harmless."
AUTH_REPLAY "ADIT-AUTH-03" "a replayed connection was refused"
    "A salt was seen a second time: somebody sent a recording of an earlier connection, or a device in between repeated one."
    "Nothing has to be done. If a user's own connections are refused, a middlebox repeats them: use another port or obfs."
AUTH_REQUEST "ADIT-AUTH-04" "a client's request is illegal"
    "Bytes of a client are not what the protocol says: another version or obfs, a damaged stream, or a probe."
    "If the address is that of a user, compare protocol version and obfs at both ends."
CLOCK_SERVER "ADIT-CLOCK-01" "the server's clock differs from ours"
    "The server's time stamp is outside the accepted window, so its replies are refused. The message says who is ahead, and by how much."
    "Set the clock of the side that is wrong: `timedatectl set-ntp true`. `adit doctor` compares this machine with a time server."
CLOCK_CLIENT "ADIT-CLOCK-02" "a client's clock differs from ours"
    "A client with the right key sent a time stamp outside the accepted window, or an old connection was replayed. The message says who is ahead, and by how much."
    "Set the clock of the side that is wrong: `timedatectl set-ntp true`. `adit doctor` compares this machine with a time server."
UDP_SILENT "ADIT-UDP-01" "no datagram comes back through the server"
    "Several UDP flows through the server got no answer. A firewall or provider blocks UDP, the server does not carry it, or the key differs."
    "Open the server's UDP port, and check that its `network` or `mode` includes UDP. `adit test OUTBOUND` tries UDP by itself."
UDP_TOO_BIG "ADIT-UDP-02" "datagrams are larger than the path takes (MTU)"
    "Datagrams with the server's header do not fit into one packet of the path, and are dropped."
    "Set the MTU of the application or tunnel above adit to the value in the message, or `mtu` in `[udp]` to the real size of the path; `fragment = true` lets the network cut them."
GROUP_DEAD "ADIT-GRP-01" "no member of the group can be used"
    "Every member that was tried failed. The last cause is in the message, and each member has its own."
    "`adit status` shows the state of each member."
USER_QUOTA "ADIT-USER-01" "a user's quota is used up"
    "The bytes of the period are spent. The user's connections were ended, and new ones are refused."
    "Raise it (`adit user limit NAME --quota 100GB`), or wait for the next reset."
USER_EXPIRED "ADIT-USER-02" "a user's account has expired"
    "The day in `expires` is over. The user's connections were ended, and new ones are refused."
    "Set a later day: `adit user limit NAME --expires 2030-01-01`."
USER_CONNECTIONS "ADIT-USER-03" "a user has too many connections"
    "As many connections as the user may have are open; new ones are refused."
    "Raise `connections` of the user, or ask the user what holds so many."
USER_ADDRESSES "ADIT-USER-04" "a user comes from too many addresses"
    "As many source addresses as the user may have are in use; connections from others are refused."
    "Raise `addresses` of the user. The key may have been passed on: `adit user rotate NAME` makes a new one."
PLUGIN_ENDED "ADIT-PLUG-01" "a plugin has ended"
    "The plugin's process ended. It is started again, after growing pauses. No connections of its outbound or inbound work meanwhile."
    "The last words of the plugin are in the message; its options are the usual cause."
SNOWFLAKE_PROXY "ADIT-SNOW-01" "no proxy of Snowflake was found"
    "The broker of `carrier = \"snowflake\"` cannot be reached, has no proxy that fits this machine's NAT, or the proxy that it named did not connect. Streams wait for the next one, which is looked for after 2 to 10 s."
    "The text after the colon is the cause. Check `snowflake-broker`, and that UDP leaves this machine. `snowflake-ice` names STUN servers, without which proxies behind NATs are not reached."
ACME "ADIT-ACME-01" "no certificate was fetched"
    "A program of Snowflake's was asked to fetch its certificate (`-acme-hostnames`), and the certificate authority refused, or could not be reached. The certificate before, if there is one, stays in use. adit asks again after 2 minutes, then after growing pauses of up to 6 hours."
    "The text after the colon is the cause. The name must lead to this machine, and port 80 must reach the program from everywhere: another server there, or a firewall, is the usual cause. `-acme-http` names another address if something passes port 80 on."
PLUGIN_MISSING "ADIT-PLUG-02" "a plugin cannot be started"
    "The program does not exist, or may not be run."
    "Install the package that the message names, or write the full path of the program."
SYS_DESCRIPTORS "ADIT-SYS-01" "no file descriptors are left"
    "Each connection needs one or two descriptors, and the limit of the process is reached. Connections that have proven least make room."
    "Raise the limit: `LimitNOFILE=` in the unit, or `ulimit -n`."
SYS_PORT "ADIT-SYS-02" "a port is taken"
    "Another process listens on this address already. The message names it where the system tells."
    "Stop that process, or choose another port in `listen`."
SYS_STATE_WRITE "ADIT-SYS-03" "the state file cannot be written"
    "The disk is full, a limit or a missing right stops the write. User counters are kept in memory alone, and are lost on restart."
    "Free space (`df -h`), or name another place with `state`."
SYS_STATE_READ "ADIT-SYS-04" "the state file cannot be used"
    "The file with the user counters cannot be opened, is damaged, or is used by another process."
    "Let this user read and write the file and its folder. `state` names another file."
SYS_REPLAY_WRITE "ADIT-SYS-05" "the replay file cannot be written"
    "The disk is full, or a right is missing. Salts that come from now on are forgotten on restart."
    "Free space (`df -h`), or name another place with `state`."
SYS_LISTEN "ADIT-SYS-06" "an address cannot be listened on"
    "The address is not one of this machine, the interface does not exist, or the right to use the port is missing."
    "`ip address` lists addresses. Ports below 1024 need CAP_NET_BIND_SERVICE."
}

/// The code of this name, in any case; `ADIT-` may be left out.
pub fn find(name: &str) -> Option<Code> {
    let name = name.trim().to_ascii_uppercase();
    let tail = |id: &'static str| id.strip_prefix("ADIT-").unwrap_or(id);
    ALL.iter().find(|code| code.id == name || tail(code.id) == name).copied()
}

/// The whole table as docs/errors.md.
pub fn document() -> String {
    let mut out = String::from(
        "# Codes of messages\n\nA message about trouble carries a code. `adit explain CODE` prints the same text as below. \
         This file is made by `adit explain --codes` and tested against the program.\n",
    );
    let line = "\n| code | cause |\n|---|---|\n";
    out.push_str(line);
    for Code { id, title, .. } in ALL {
        // Writing to a text cannot fail.
        writeln!(out, "| [{id}](#{}) | {title} |", id.to_ascii_lowercase()).ok();
    }
    for Code { id, title, meaning, remedy } in ALL {
        write!(out, "\n## {id}\n\n**{title}.** {meaning}\n\n{remedy}\n").ok();
    }
    out
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn codes_are_whole_and_found_by_name() {
        let ids: BTreeSet<_> = ALL.iter().map(|code| code.id).collect();
        assert_eq!(ids.len(), ALL.len());
        for code in ALL {
            assert!(code.id.starts_with("ADIT-"), "{code}");
            assert!(code.meaning.ends_with('.') && code.remedy.ends_with('.'), "{code}");
            assert!(!code.title.ends_with('.'), "{code}");
        }
        assert_eq!(find("net-02"), Some(NET_NAME));
        assert_eq!(find(" ADIT-Sys-02"), Some(SYS_PORT));
        assert_eq!(find("ADIT-NET-99"), None);
    }
}
