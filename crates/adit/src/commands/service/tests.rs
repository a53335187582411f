use super::*;

fn folder() -> PathBuf {
    use std::sync::atomic::{AtomicU32, Ordering};
    static COUNT: AtomicU32 = AtomicU32::new(0);
    let count = COUNT.fetch_add(1, Ordering::Relaxed);
    let path = std::env::temp_dir().join(format!("adit-service-{}-{count}", std::process::id()));
    fs::create_dir_all(&path).unwrap();
    path
}

fn args(root: &Path) -> ServiceArgs {
    ServiceArgs { root: Some(root.to_owned()), ..ServiceArgs::default() }
}

#[test]
fn the_init_system_is_found() {
    for (path, want) in [
        ("run/systemd/system", Some(Manager::Systemd)),
        ("etc/systemd/system", Some(Manager::Systemd)),
        ("sbin/procd", Some(Manager::Procd)),
        ("sbin/openrc-run", Some(Manager::OpenRc)),
        ("tmp", None),
    ] {
        let dir = folder();
        fs::create_dir_all(dir.join(path)).unwrap();
        assert_eq!(manager(&args(&dir), &Root::new(Some(&dir))), want, "{path}");
        fs::remove_dir_all(dir).unwrap();
    }
}

#[test]
fn a_service_comes_and_goes_and_others_stay() {
    for (flag, file, link) in [
        (0, "etc/systemd/system/adit.service", "etc/systemd/system/multi-user.target.wants/adit.service"),
        (1, "etc/init.d/adit", "etc/runlevels/default/adit"),
        (2, "etc/init.d/adit", "etc/rc.d/S95adit"),
    ] {
        let dir = folder();
        let mut args = args(&dir);
        (args.systemd, args.openrc, args.procd) = (flag == 0, flag == 1, flag == 2);
        install(&args).unwrap();
        let text = fs::read_to_string(dir.join(file)).unwrap();
        assert!(text.contains(MARK) && text.contains("/etc/adit/adit.toml"), "{text}");
        let no_core = ["\nLimitCORE=0\n", "\n\tulimit -c 0 || return 1\n", " core=\"0 0\" "][flag];
        assert!(text.contains(no_core), "{text}");
        assert!(fs::symlink_metadata(dir.join(link)).unwrap().is_symlink());
        let again = install(&args).unwrap();
        assert!(again.iter().any(|line| line.starts_with("kept /etc/")), "{again:?}");
        uninstall(&args).unwrap();
        assert!(!dir.join(file).exists() && fs::symlink_metadata(dir.join(link)).is_err());
        fs::create_dir_all(dir.join(file).parent().unwrap()).unwrap();
        fs::write(dir.join(file), "somebody else's").unwrap();
        let error = install(&args).unwrap_err().to_string();
        assert!(error.contains("not from adit"), "{error}");
        uninstall(&args).unwrap();
        assert_eq!(fs::read_to_string(dir.join(file)).unwrap(), "somebody else's");
        fs::remove_dir_all(dir).unwrap();
    }
}

#[test]
fn several_services_have_files_of_their_own() {
    let dir = folder();
    let args = ServiceArgs { name: Some("two".into()), systemd: true, ..args(&dir) };
    install(&args).unwrap();
    let text = fs::read_to_string(dir.join("etc/systemd/system/adit-two.service")).unwrap();
    assert!(
        text.contains(" run -c /etc/adit/two.toml\n") && text.contains("StateDirectory=adit-two\n"),
        "{text}"
    );
    fs::remove_dir_all(dir).unwrap();
    for bad in ["", "-x", "a b", "../x", "a\nb"] {
        assert!(name(bad).is_err(), "{bad}");
    }
}

#[test]
fn the_configuration_goes_to_the_user_of_the_service_once() {
    let dir = folder();
    let me = fs::metadata(&dir).unwrap();
    fs::create_dir_all(dir.join("etc/adit")).unwrap();
    fs::write(dir.join("etc/adit/adit.toml"), "").unwrap();
    let (config, root) = (dir.join("etc/adit/adit.toml"), Root::new(Some(&dir)));
    fs::set_permissions(&config, fs::Permissions::from_mode(0o644)).unwrap();
    let unit = unit(&args(&dir), &root).unwrap();
    let mut lines = Vec::new();
    // A folder of the same user is left alone, links in it above all.
    give_config(&root, &unit, Some((me.uid(), me.gid())), &mut lines).unwrap();
    assert_eq!(fs::metadata(&config).unwrap().permissions().mode() & 0o777, 0o644);
    assert!(lines.is_empty(), "{lines:?}");
    give_config(&root, &unit, Some((me.uid() + 1, me.gid())), &mut lines).unwrap();
    assert_eq!(fs::metadata(&config).unwrap().permissions().mode() & 0o777, 0o600);
    fs::remove_dir_all(dir).unwrap();
}

#[test]
fn capabilities_follow_the_configuration() {
    let of = |text: &str| capabilities(Some(&adit_toml::parse("t", text).unwrap().config));
    let inbound = "[[inbound]]\nprotocol = \"mixed\"\nlisten = \"127.0.0.1:1\"\n";
    assert_eq!(of(inbound), ["CAP_NET_BIND_SERVICE"]);
    assert_eq!(of("[capture]\n"), ["CAP_NET_BIND_SERVICE", "CAP_NET_ADMIN"]);
    let tun = "[[inbound]]\nprotocol = \"tun\"\n";
    assert_eq!(of(tun), ["CAP_NET_BIND_SERVICE", "CAP_NET_ADMIN"]);
    let redirect = inbound.replace("mixed", "redirect");
    assert_eq!(of(&redirect), ["CAP_NET_BIND_SERVICE"], "the rules are somebody else's");
    assert_eq!(of(&format!("{redirect}network = \"udp\"\n")), ["CAP_NET_BIND_SERVICE", "CAP_NET_ADMIN"]);
    let carried = "[[inbound]]\nprotocol = \"snell\"\nlisten = \"127.0.0.1:1\"\npsk = \"p\"\n\
                   carrier = \"kcp\"\ncarrier-key = \"k\"\n";
    assert_eq!(of(carried), ["CAP_NET_BIND_SERVICE"]);
    let mut raw = adit_toml::parse("t", carried).unwrap().config;
    raw.inbounds[0].socket.carrier.as_mut().unwrap().raw_tcp = true;
    assert_eq!(capabilities(Some(&raw)), ["CAP_NET_BIND_SERVICE", "CAP_NET_RAW", "CAP_NET_ADMIN"]);
    let marked = format!("{inbound}[[outbound]]\nprotocol = \"direct\"\ninterface = \"lo\"\nfwmark = 7\n");
    assert_eq!(of(&marked), ["CAP_NET_BIND_SERVICE", "CAP_NET_RAW", "CAP_NET_ADMIN"]);
}

/// A capture makes an interface and sets sysctls of it.
#[test]
fn a_capture_may_have_its_interface() {
    let text = |capabilities: Vec<&'static str>| {
        let (name, program, config) = ("adit".into(), "/bin/true".into(), CONFIG.into());
        ServiceUnit { name, program, config, capabilities }.text(Manager::Systemd)
    };
    let plain = text(vec!["CAP_NET_BIND_SERVICE"]);
    assert!(plain.contains("\nProtectKernelTunables=yes\nPrivateDevices=yes\nPrivateTmp=yes\n"), "{plain}");
    let captures = text(vec!["CAP_NET_BIND_SERVICE", "CAP_NET_ADMIN"]);
    let devices =
        "\nProtectKernelTunables=no\nDevicePolicy=closed\nDeviceAllow=/dev/net/tun rw\nPrivateTmp=yes\n";
    assert!(captures.contains(devices) && !captures.contains("PrivateDevices"), "{captures}");
}

/// By systemd itself, where it is installed.
#[test]
fn systemd_takes_the_unit() {
    let dir = folder();
    let unit = ServiceUnit {
        name: "adit".into(),
        program: "/bin/true".into(),
        config: CONFIG.into(),
        capabilities: vec!["CAP_NET_BIND_SERVICE"],
    };
    let template = PrintArgs {
        service: ServiceArgs { systemd: true, ..args(&dir) },
        template: true,
        program: Some("/bin/true".into()),
    };
    let texts =
        [("adit.service", unit.text(Manager::Systemd)), ("adit@main.service", text(&template).unwrap())];
    for (name, text) in texts {
        let path = dir.join(name);
        fs::write(&path, text).unwrap();
        match tool::run("systemd-analyze", &["verify", "--man=no", path.to_str().unwrap()]) {
            Ok(ran) => {
                let about: Vec<&str> = ran.text.lines().filter(|line| line.contains(name)).collect();
                // It fails in a container without saying anything of the unit.
                assert!(about.is_empty(), "{}", ran.text);
            }
            Err(error) => eprintln!("not verified: systemd-analyze: {error}"),
        }
    }
    fs::remove_dir_all(dir).unwrap();
}

#[test]
fn the_program_is_found_by_the_name_that_it_was_started_by() {
    let dir = folder();
    let (bin, other) = (dir.join("bin"), dir.join("other"));
    fs::create_dir_all(bin.join("adit-folder")).unwrap();
    fs::create_dir_all(&other).unwrap();
    let program = bin.join("adit");
    fs::write(&program, "").unwrap();
    symlink(&program, other.join("snell-server")).unwrap();
    let folders = std::env::join_paths([&other, &bin]).unwrap();
    let program = program.canonicalize().unwrap();
    for name in [Path::new("adit"), Path::new("snell-server"), &bin.join("adit"), &bin.join("../bin/adit")] {
        assert_eq!(named(name, &folders).as_ref(), Some(&program), "{name:?}");
    }
    for name in [Path::new(""), Path::new("adit-folder"), Path::new("nosuch"), &bin.join("nosuch")] {
        assert_eq!(named(name, &folders), None, "{name:?}");
    }
    fs::remove_dir_all(dir).unwrap();
}

#[test]
fn the_template_runs_each_file_of_the_folder() {
    let dir = folder();
    let args = |template| PrintArgs {
        service: ServiceArgs { systemd: true, ..args(&dir) },
        template,
        program: Some("/usr/bin/adit".into()),
    };
    let (one, template) = (text(&args(false)).unwrap(), text(&args(true)).unwrap());
    fs::remove_dir_all(&dir).unwrap();
    assert!(one.contains("ExecStart=/usr/bin/adit run -c /etc/adit/adit.toml\n"), "{one}");
    for want in [
        "ExecStart=/usr/bin/adit run -c /etc/adit/%i.toml\n",
        "StartLimitIntervalSec=0\n",
        "Restart=always\nRestartSec=1\n",
        "TimeoutStopSec=45\n",
        "RuntimeDirectory=adit-%i\n",
        "StateDirectory=adit-%i\n",
        "User=adit\n",
        "systemctl edit adit@NAME",
    ] {
        assert!(
            template.contains(want) && !one.contains(want) || want == "User=adit\n",
            "{want}\n{template}"
        );
    }
    assert!(!template.contains("StartLimitBurst") && !template.contains("=adit@"), "{template}");
    let lines =
        |text: &str| text.lines().map(|line| line.split('=').next().unwrap().to_owned()).collect::<Vec<_>>();
    let all = lines(&template);
    let lost: Vec<_> = lines(&one).into_iter().skip(1).filter(|key| !all.contains(key)).collect();
    assert_eq!(lost, ["StartLimitBurst"], "the hardening is that of the single service");
}
