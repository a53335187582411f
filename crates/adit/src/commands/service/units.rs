//! The files of a service.

use std::path::PathBuf;

use super::{MARK, Manager, USER};

/// Type of the systemd unit: adit tells when it serves.
const TYPE: &str = "notify";
/// Time within which adit must tell that it works.
const WATCHDOG: &str = "30s";

/// Lines of the unit for one service, and those of the template in their place.
const DIFFERENCES: &[(&str, &str)] = &[
    (
        "`systemctl edit adit@` changes it",
        "`systemctl edit adit@` changes all, `systemctl edit adit@NAME` one of them",
    ),
    ("StartLimitIntervalSec=60\nStartLimitBurst=10\n", "StartLimitIntervalSec=0\n"),
    ("Restart=on-failure\nRestartSec=2\n", "Restart=always\nRestartSec=1\n"),
    ("TimeoutStopSec=30\n", "TimeoutStopSec=45\n"),
    ("RuntimeDirectory=adit@\n", "RuntimeDirectory=adit-%i\n"),
    ("StateDirectory=adit@\n", "StateDirectory=adit-%i\n"),
];

/// One service.
#[derive(Debug, Clone)]
pub(super) struct ServiceUnit {
    /// Its name in the init system.
    pub(super) name: String,
    /// The program, as an absolute path.
    pub(super) program: PathBuf,
    /// The configuration, as an absolute path.
    pub(super) config: PathBuf,
    /// Capabilities that it needs.
    pub(super) capabilities: Vec<&'static str>,
}

impl ServiceUnit {
    /// The file that an administrator wants to see.
    pub(super) fn text(&self, manager: Manager) -> String {
        match manager {
            Manager::Systemd => self.systemd(),
            Manager::OpenRc => self.openrc(),
            Manager::Procd => self.procd(),
        }
    }

    /// All files: path, mode, text.
    pub(super) fn files(&self, manager: Manager) -> Vec<(String, u32, String)> {
        let name = &self.name;
        match manager {
            Manager::Systemd => vec![
                (format!("/etc/systemd/system/{name}.service"), 0o644, self.systemd()),
                ("/etc/sysusers.d/adit.conf".into(), 0o644, sysusers()),
            ],
            Manager::OpenRc | Manager::Procd => {
                vec![(format!("/etc/init.d/{name}"), 0o755, self.text(manager))]
            }
        }
    }

    /// Links that enable it for boot: place, target.
    pub(super) fn links(&self, manager: Manager) -> Vec<(String, String)> {
        let name = &self.name;
        match manager {
            Manager::Systemd => vec![(
                format!("/etc/systemd/system/multi-user.target.wants/{name}.service"),
                format!("/etc/systemd/system/{name}.service"),
            )],
            Manager::OpenRc => {
                vec![(format!("/etc/runlevels/default/{name}"), format!("/etc/init.d/{name}"))]
            }
            Manager::Procd => vec![
                (format!("/etc/rc.d/S95{name}"), format!("../init.d/{name}")),
                (format!("/etc/rc.d/K05{name}"), format!("../init.d/{name}")),
            ],
        }
    }

    fn systemd(&self) -> String {
        let Self { name, program, config, capabilities } = self;
        // A capture makes an interface, and sets sysctls of it.
        let devices = if capabilities.contains(&"CAP_NET_ADMIN") {
            "ProtectKernelTunables=no\nDevicePolicy=closed\nDeviceAllow=/dev/net/tun rw\n"
        } else {
            "ProtectKernelTunables=yes\nPrivateDevices=yes\n"
        };
        let (program, config, capabilities) = (program.display(), config.display(), capabilities.join(" "));
        // A configuration in somebody's home can be read, and nothing else there can be changed.
        let in_home = ["/home", "/root"]
            .iter()
            .any(|home| self.config.starts_with(home) || self.program.starts_with(home));
        let home = if in_home { "read-only" } else { "yes" };
        format!(
            "# {MARK}; `systemctl edit {name}` changes it\n\
             [Unit]\n\
             Description=adit proxy ({config})\n\
             Documentation=https://github.com/adit-proxy/adit\n\
             Wants=network-online.target\n\
             After=network-online.target nss-lookup.target\n\
             StartLimitIntervalSec=60\n\
             StartLimitBurst=10\n\
             \n\
             [Service]\n\
             Type={TYPE}\n\
             NotifyAccess=main\n\
             WatchdogSec={WATCHDOG}\n\
             ExecStart={program} run -c {config}\n\
             ExecReload={program} reload -c {config}\n\
             Restart=on-failure\n\
             RestartSec=2\n\
             TimeoutStopSec=30\n\
             FileDescriptorStoreMax=512\n\
             LimitNOFILE=1048576\n\
             LimitCORE=0\n\
             User={USER}\n\
             Group={USER}\n\
             UMask=0077\n\
             RuntimeDirectory={name}\n\
             RuntimeDirectoryMode=0750\n\
             StateDirectory={name}\n\
             StateDirectoryMode=0700\n\
             AmbientCapabilities={capabilities}\n\
             CapabilityBoundingSet={capabilities}\n\
             NoNewPrivileges=yes\n\
             ProtectSystem=strict\n\
             ReadWritePaths=-/etc/adit\n\
             ProtectHome={home}\n\
             ProtectProc=invisible\n\
             ProtectClock=yes\n\
             ProtectControlGroups=yes\n\
             ProtectHostname=yes\n\
             ProtectKernelLogs=yes\n\
             ProtectKernelModules=yes\n\
             {devices}\
             PrivateTmp=yes\n\
             RemoveIPC=yes\n\
             RestrictAddressFamilies=AF_INET AF_INET6 AF_UNIX AF_NETLINK AF_PACKET\n\
             RestrictNamespaces=yes\n\
             RestrictRealtime=yes\n\
             RestrictSUIDSGID=yes\n\
             LockPersonality=yes\n\
             MemoryDenyWriteExecute=yes\n\
             SystemCallArchitectures=native\n\
             SystemCallFilter=@system-service\n\
             SystemCallErrorNumber=EPERM\n\
             \n\
             [Install]\n\
             WantedBy=multi-user.target\n"
        )
    }

    /// The unit of which one instance runs each file of `/etc/adit`: that of [`Self::systemd`] for a fleet.
    ///
    /// An instance never gives up, since a panel may be away for hours. The user is not a dynamic one: a reload reads the
    /// file again, and `adit user` writes it, so that it needs an owner that stays.
    pub(super) fn template(&self) -> String {
        let unit = Self { name: "adit@".into(), config: "/etc/adit/%i.toml".into(), ..self.clone() };
        DIFFERENCES.iter().fold(unit.systemd(), |text, (one, other)| text.replacen(one, other, 1))
    }

    fn openrc(&self) -> String {
        let Self { name, program, config, capabilities } = self;
        let (program, config) = (program.display(), config.display());
        let capabilities: Vec<String> =
            capabilities.iter().map(|capability| format!("^{}", capability.to_lowercase())).collect();
        let capabilities = capabilities.join(",");
        format!(
            "#!/sbin/openrc-run\n\
             # {MARK}; /etc/conf.d/{name} changes it\n\
             \n\
             description=\"adit proxy\"\n\
             supervisor=supervise-daemon\n\
             command=\"{program}\"\n\
             command_args=\"run -c {config}\"\n\
             command_user=\"{USER}:{USER}\"\n\
             capabilities=\"{capabilities}\"\n\
             no_new_privs=\"yes\"\n\
             respawn_delay=2\n\
             respawn_max=10\n\
             rc_ulimit=\"-n 1048576\"\n\
             umask=0077\n\
             extra_started_commands=\"reload\"\n\
             \n\
             export STATE_DIRECTORY=\"/var/lib/{name}\"\n\
             \n\
             depend() {{\n\
             \tneed net\n\
             \tafter firewall dns\n\
             }}\n\
             \n\
             start_pre() {{\n\
             \tcheckpath -d -m 0700 -o {USER}:{USER} \"/var/lib/{name}\" || return 1\n\
             \tcheckpath -d -m 0750 -o {USER}:{USER} \"/run/{name}\" || return 1\n\
             \t# Keys are in memory: no core files.\n\
             \tulimit -c 0 || return 1\n\
             \t\"$command\" check -c \"{config}\" >/dev/null\n\
             }}\n\
             \n\
             reload() {{\n\
             \tebegin \"Reloading $RC_SVCNAME\"\n\
             \tsupervise-daemon \"$RC_SVCNAME\" --signal HUP\n\
             \teend $?\n\
             }}\n"
        )
    }

    fn procd(&self) -> String {
        let Self { name, program, config, .. } = self;
        let (program, config) = (program.display(), config.display());
        format!(
            "#!/bin/sh /etc/rc.common\n\
             # {MARK}\n\
             # It runs as root: OpenWrt has no common way to make a system user.\n\
             \n\
             USE_PROCD=1\n\
             START=95\n\
             STOP=05\n\
             \n\
             start_service() {{\n\
             \tmkdir -p -m 0700 /etc/adit/state || return 1\n\
             \tprocd_open_instance\n\
             \tprocd_set_param command {program} run -c {config}\n\
             \tprocd_set_param env STATE_DIRECTORY=/etc/adit/state\n\
             \tprocd_set_param file {config}\n\
             \tprocd_set_param limits core=\"0 0\" nofile=\"1048576 1048576\"\n\
             \tprocd_set_param no_new_privs 1\n\
             \tprocd_set_param respawn 3600 2 10\n\
             \tprocd_set_param term_timeout 30\n\
             \tprocd_set_param stderr 1\n\
             \tprocd_close_instance\n\
             }}\n\
             \n\
             reload_service() {{\n\
             \tprocd_send_signal {name}\n\
             }}\n"
        )
    }
}

fn sysusers() -> String {
    format!("# {MARK}\nu {USER} - \"adit proxy\" /var/lib/adit\n")
}
