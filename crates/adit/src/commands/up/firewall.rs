//! The rules that let clients in, for the firewall that is active.

use crate::machine::Root;

/// A firewall that may be active.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Firewall {
    Ufw,
    Firewalld,
    Nftables,
    Iptables,
    OpenWrt,
}

/// The firewall that this machine's files show as switched on.
pub(crate) fn find(root: &Root) -> Option<Firewall> {
    let has_line = |path: &str, wanted: &str| {
        root.read(path).is_some_and(|text| text.lines().any(|line| line.trim() == wanted))
    };
    if has_line("/etc/ufw/ufw.conf", "ENABLED=yes") {
        return Some(Firewall::Ufw);
    }
    if root.has("/run/firewalld.pid") || root.has("/run/firewalld") && root.has_program("firewall-cmd") {
        return Some(Firewall::Firewalld);
    }
    if root.has("/etc/openwrt_release") {
        return Some(Firewall::OpenWrt);
    }
    if root.has("/etc/systemd/system/sysinit.target.wants/nftables.service") {
        return Some(Firewall::Nftables);
    }
    let tables = root.read("/proc/net/ip_tables_names")?;
    tables.lines().any(|line| line.trim() == "filter").then_some(Firewall::Iptables)
}

/// The commands that open `ports`, the second part of which says whether UDP is wanted as well.
pub(crate) fn rules(firewall: Firewall, ports: &[(u16, bool)]) -> Vec<String> {
    let transports = |udp: bool| if udp { &["tcp", "udp"][..] } else { &["tcp"][..] };
    let each = |rule: &dyn Fn(u16, &str) -> String| -> Vec<String> {
        let all = ports.iter().flat_map(|(port, udp)| transports(*udp).iter().map(move |t| (*port, *t)));
        all.map(|(port, transport)| rule(port, transport)).collect()
    };
    match firewall {
        Firewall::Ufw => each(&|port, transport| format!("ufw allow {port}/{transport}")),
        Firewall::Firewalld => {
            let mut rules = each(&|port, t| format!("firewall-cmd --permanent --add-port={port}/{t}"));
            rules.push("firewall-cmd --reload".into());
            rules
        }
        Firewall::Nftables => {
            each(&|port, t| format!("nft add rule inet filter input {t} dport {port} accept"))
        }
        Firewall::Iptables => each(&|port, t| format!("iptables -I INPUT -p {t} --dport {port} -j ACCEPT")),
        Firewall::OpenWrt => {
            let mut rules = each(&|port, t| {
                format!(
                    "printf 'add firewall rule\\nset firewall.@rule[-1].name=adit-{port}-{t}\\nset \
                     firewall.@rule[-1].src=wan\\nset firewall.@rule[-1].proto={t}\\nset \
                     firewall.@rule[-1].dest_port={port}\\nset firewall.@rule[-1].target=ACCEPT\\n' | uci batch"
                )
            });
            rules.push("uci commit firewall && service firewall restart".into());
            rules
        }
    }
}

/// The hint of `adit up`.
pub(crate) fn hint(root: &Root, ports: &[(u16, bool)]) -> String {
    let list: Vec<String> =
        ports.iter().map(|(port, udp)| format!("{port}/tcp{}", if *udp { "+udp" } else { "" })).collect();
    let list = list.join(", ");
    match find(root) {
        Some(firewall) => {
            let rules: String = rules(firewall, ports).iter().map(|rule| format!("  {rule}\n")).collect();
            format!("firewall: {firewall:?} is active; nothing was changed. Let clients in:\n{rules}")
        }
        None => format!(
            "firewall: none found on this machine. Clients need {list}:\n  open these ports at your provider, if it \
             filters\n"
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_firewall_is_found_and_named() {
        let ports = [(20_000, true), (30_000, false)];
        for (file, text, want) in [
            ("etc/ufw/ufw.conf", "# x\nENABLED=yes\n", Some("ufw allow 20000/udp")),
            ("etc/ufw/ufw.conf", "ENABLED=no\n", None),
            ("run/firewalld.pid", "1", Some("firewall-cmd --permanent --add-port=20000/udp")),
            ("etc/openwrt_release", "", Some("dest_port=20000")),
            (
                "proc/net/ip_tables_names",
                "filter\n",
                Some("iptables -I INPUT -p udp --dport 20000 -j ACCEPT"),
            ),
        ] {
            let dir = std::env::temp_dir().join(format!("adit-firewall-{}", std::process::id()));
            let path = dir.join(file);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(&path, text).unwrap();
            let hint = hint(&Root::new(Some(&dir)), &ports);
            std::fs::remove_dir_all(&dir).unwrap();
            match want {
                Some(want) => assert!(hint.contains(want) && !hint.contains("30000/udp"), "{file}: {hint}"),
                None => assert!(hint.contains("20000/tcp+udp, 30000/tcp:"), "{hint}"),
            }
        }
    }
}
