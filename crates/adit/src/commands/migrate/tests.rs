use std::os::unix::fs::{PermissionsExt as _, symlink};
use std::path::Path;

use super::*;

const SNELL: &str = "[Unit]\nDescription=Snell\n[Service]\nExecStart=/usr/local/bin/snell-server -c /etc/snell/snell-server.conf\n";
const LIBEV: &str = "[Service]\nEnvironmentFile=/etc/default/shadowsocks-libev\nExecStart=/usr/bin/ss-server -c $CONFFILE $DAEMON_ARGS\n";
const TEMPLATE: &str = "[Service]\nExecStart=/usr/bin/ss-server -c /etc/shadowsocks-libev/%i.json\n";
const REDIR: &str = "[Service]\nExecStart=/usr/bin/ssr-nat -s 192.0.2.1\n";
const KCPTUN: &str = "[Service]\nExecStart=/opt/server_linux_amd64 -c /etc/kcptun/server.json\n";
const SERVER: &str = "{\"server\":\"0.0.0.0\",\"server_port\":8388,\"password\":\"TwentyFourCharactersLong\",\"method\":\"aes-256-gcm\",\"bogus\":1}";

struct Tree(PathBuf);

impl Tree {
    fn new(name: &str) -> Self {
        let tree = Self(std::env::temp_dir().join(format!("adit-migrate-{name}-{}", std::process::id())));
        for (path, text) in [
            ("etc/systemd/system/snell.service", SNELL),
            ("lib/systemd/system/shadowsocks-libev.service", LIBEV),
            ("lib/systemd/system/shadowsocks-libev-server@.service", TEMPLATE),
            ("lib/systemd/system/ss-redir.service", REDIR),
            ("lib/systemd/system/kcptun.service", KCPTUN),
            ("lib/systemd/system/sshd.service", "[Service]\nExecStart=/usr/sbin/sshd -D\n"),
            (
                "etc/default/shadowsocks-libev",
                "CONFFILE=\"/etc/shadowsocks-libev/config.json\"\nDAEMON_ARGS=\n",
            ),
            ("etc/shadowsocks-libev/config.json", SERVER),
            ("etc/shadowsocks-libev/two.json", SERVER),
            (
                "etc/kcptun/server.json",
                "{\"listen\":\":29900\",\"target\":\"127.0.0.1:12948\",\"key\":\"a long enough key\",\"crypt\":\"no such\"}",
            ),
            (
                "etc/snell/snell-server.conf",
                "[snell-server]\nlisten = 0.0.0.0:6160\npsk = TwentyFourCharactersLong\n",
            ),
            ("etc/shadowsocksr/user-config.json", "{}"),
        ] {
            tree.file(path, text);
        }
        let wants = tree.0.join("etc/systemd/system/multi-user.target.wants");
        fs::create_dir_all(&wants).unwrap();
        for name in [
            "snell.service",
            "shadowsocks-libev.service",
            "shadowsocks-libev-server@two.service",
            "ss-redir.service",
            "kcptun.service",
        ] {
            symlink("/lib/systemd/system/x", wants.join(name)).unwrap();
        }
        tree
    }

    fn file(&self, path: &str, text: &str) -> PathBuf {
        let path = self.0.join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(&path, text).unwrap();
        path
    }

    fn args(&self, systemctl: Option<&Path>) -> MigrateArgs {
        MigrateArgs {
            apply: true,
            undo: false,
            json: false,
            root: Some(self.0.clone()),
            systemctl: systemctl.map(|path| path.to_str().unwrap().to_owned()),
        }
    }

    /// A stand-in for systemctl that writes its arguments into a file, and fails for `failing`.
    fn systemctl(&self, failing: &str) -> PathBuf {
        let log = self.0.join("log");
        let text =
            format!("#!/bin/sh\necho \"$@\" >> {}\ncase \"$*\" in {failing}) exit 3;; esac\n", log.display());
        let path = self.file("systemctl", &text);
        fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
        path
    }

    fn log(&self) -> String {
        fs::read_to_string(self.0.join("log")).unwrap_or_default()
    }

    fn drop_in(&self, unit: &str) -> Option<String> {
        fs::read_to_string(self.0.join(format!("etc/systemd/system/{unit}.d/adit.conf"))).ok()
    }
}

impl Drop for Tree {
    fn drop(&mut self) {
        fs::remove_dir_all(&self.0).ok();
    }
}

fn found(tree: &Tree) -> Vec<Found> {
    let root = Root::new(Some(&tree.0));
    unit::find(&root).into_iter().map(|unit| Found { judgement: judge::judge(&root, &unit), unit }).collect()
}

#[test]
fn services_are_found_and_judged() {
    let tree = Tree::new("find");
    let all = found(&tree);
    let names: Vec<&str> = all.iter().map(|found| &*found.unit.name).collect();
    assert_eq!(
        names,
        [
            "kcptun.service",
            "shadowsocks-libev-server@two.service",
            "shadowsocks-libev.service",
            "snell.service",
            "ss-redir.service"
        ]
    );
    let text = table(&all, &loose_files(&Root::new(Some(&tree.0)), &all));
    for want in [
        "snell.service: snell-server (enabled)\n  kept           file /etc/snell/snell-server.conf\n",
        "Shadowsocks on 0.0.0.0:8388, key",
        "changed        line 1: bogus: unknown key",
        "changed        line 1: crypt: no such cipher",
        "not supported  adit does not run in the place of ssr-nat",
        "/etc/shadowsocksr/user-config.json: a file without a service",
    ] {
        assert!(text.contains(want), "{want}\n{text}");
    }
    let can: Vec<bool> = all.iter().map(Found::can_move).collect();
    assert_eq!(can, [true, true, true, true, false], "{text}");
    assert!(!text.contains("TwentyFour"), "no key is shown");
}

#[test]
fn access_lists_that_are_kept_and_those_that_cannot_be() {
    let tree = Tree::new("lists");
    tree.file("etc/ss/m.acl", "[outbound_block_list]\n10.0.0.0/8\n");
    for (name, list) in [("good", "/etc/ss/m.acl"), ("bad", "/etc/ss/none.acl")] {
        let line = format!("/usr/bin/ss-manager --manager-address /run/m -m aes-128-gcm --acl {list}");
        tree.file(&format!("lib/systemd/system/{name}.service"), &format!("[Service]\nExecStart={line}\n"));
        let wants = tree.0.join("etc/systemd/system/multi-user.target.wants");
        symlink("/lib/systemd/system/x", wants.join(format!("{name}.service"))).unwrap();
    }
    let all = found(&tree);
    let of = |name: &str| &all.iter().find(|found| found.unit.name == name).unwrap().judgement;
    assert!(of("good.service").kept.contains(&"access list /etc/ss/m.acl, for every port".to_owned()));
    assert!(of("good.service").unsupported.is_empty());
    let bad = &of("bad.service").unsupported;
    assert!(bad.len() == 1 && !of("bad.service").kept.iter().any(|line| line.contains("list")), "{bad:?}");
}

#[test]
fn services_move_and_come_back() {
    let tree = Tree::new("apply");
    let systemctl = tree.systemctl("none");
    run(&tree.args(Some(&systemctl))).unwrap();
    let text = tree.drop_in("shadowsocks-libev.service").unwrap();
    let (head, line) = text.trim_end().rsplit_once('\n').unwrap();
    assert!(head.starts_with(MARK) && head.ends_with("\nExecStart="), "{text}");
    assert!(line.ends_with(" ss-server -c $CONFFILE $DAEMON_ARGS"), "{text}");
    let log = tree.log();
    assert!(
        log.starts_with("daemon-reload\nrestart ") && log.contains("is-active --quiet snell.service"),
        "{log}"
    );
    assert!(found(&tree).iter().all(|found| !found.can_move()));
    let args = MigrateArgs { apply: false, undo: true, ..tree.args(Some(&systemctl)) };
    run(&args).unwrap();
    assert_eq!(tree.drop_in("snell.service"), None);
    assert!(!tree.0.join("etc/systemd/system/snell.service.d").exists());
    assert!(tree.log().ends_with("restart snell.service\n"));
}

#[test]
fn a_failing_check_undoes_the_change() {
    let tree = Tree::new("fail");
    let systemctl = tree.systemctl("is-active*");
    let error = format!("{:#}", run(&tree.args(Some(&systemctl))).unwrap_err());
    assert!(
        error.contains("does not stay up") && error.contains("undone: the old program runs again"),
        "{error}"
    );
    assert_eq!(tree.drop_in("kcptun.service"), None);
    assert!(tree.log().ends_with("daemon-reload\nrestart kcptun.service\n"), "{}", tree.log());
}

#[test]
fn a_service_that_does_not_listen_is_given_back() {
    let tree = Tree::new("ports");
    tree.file(
        "proc/net/tcp",
        "  sl  local_address rem_address   st\n   0: 00000000:1810 00000000:0000 0A 0\n",
    );
    let root = Root::new(Some(&tree.0));
    assert_eq!(judge::silent_ports(&root, &[6160, 8388]), [8388]);
    let systemctl = tree.systemctl("none");
    let error = format!("{:#}", run(&tree.args(Some(&systemctl))).unwrap_err());
    assert!(error.contains("does not listen on port [8388]"), "{error}");
}
