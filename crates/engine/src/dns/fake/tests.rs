use std::fs;

use super::*;

fn config(path: &Path, range: &str) -> model::Fake {
    model::Fake {
        v4: range.parse().unwrap(),
        v6: "fd00:adf::/64".parse().ok(),
        store: FakeStore::At(path.to_owned()),
        ..model::Fake::default()
    }
}

/// Opens the file. A child that another test starts holds a copy of its lock until it runs its program.
fn open(path: &Path) -> Arc<Fake> {
    let mut opened = None;
    adit_testkit::wait_for("the lock is free", || {
        let (fake, warning) = Fake::open(&config(path, "198.18.128.0/17"), &StateFile::Off);
        let is_busy = warning.as_ref().is_some_and(|text| text.contains("another process uses it"));
        assert!(warning.is_none() || is_busy, "{warning:?}");
        opened = (!is_busy).then_some(fake);
        !is_busy
    });
    Arc::new(opened.unwrap())
}

fn ip(text: &str) -> IpAddr {
    text.parse().unwrap()
}

fn folder(name: &str) -> PathBuf {
    let dir = std::env::temp_dir().join(format!("adit-fakes-{name}-{}", std::process::id()));
    fs::remove_dir_all(&dir).ok();
    dir
}

#[test]
fn addresses_are_the_same_after_a_kill() {
    let dir = folder("kill");
    let path = dir.join("fake");
    let fake = open(&path);
    let numbers: Vec<u32> =
        ["a.test", "b.test", "c.test"].iter().map(|name| fake.number(name).unwrap()).collect();
    assert_eq!(numbers, [0, 1, 2]);
    assert_eq!((fake.v4(0), fake.v6(0)), ("198.18.128.16".parse().unwrap(), "fd00:adf::10".parse().ok()));
    assert_eq!(fake.number("a.test"), Some(0), "a name keeps its address");
    // Nothing is done at the end of a process that is killed: the lock ends with it, and the file is as it is.
    let bytes = fs::read(&path).unwrap();
    drop(fake);
    assert_eq!(fs::read(&path).unwrap(), bytes);
    let fake = open(&path);
    assert_eq!(fake.name_of(ip("198.18.128.17")).as_deref(), Some("b.test"));
    assert_eq!(fake.name_of(ip("fd00:adf::12")).as_deref(), Some("c.test"));
    assert_eq!((fake.number("c.test"), fake.number("new.test")), (Some(2), Some(3)));
    fake.flush();
    assert_eq!(fake.name_of(ip("198.18.128.17")), None);
    drop(fake);
    assert_eq!(open(&path).name_of(ip("198.18.128.17")), None, "the file is empty as well");
    fs::remove_dir_all(dir).unwrap();
}

#[test]
fn without_a_file_names_begin_anew() {
    let dir = folder("none");
    let path = dir.join("fake");
    let off = model::Fake { store: FakeStore::Off, ..config(&path, "198.18.128.0/17") };
    for _ in 0..2 {
        let (fake, warning) = Fake::open(&off, &StateFile::At(path.clone()));
        assert_eq!((fake.number("other.test"), warning), (Some(0), None));
        assert_eq!(fake.number("a.test"), Some(1));
    }
    assert!(!dir.exists());
    let held = open(&path);
    let (fake, warning) = Fake::open(&config(&path, "198.18.128.0/17"), &StateFile::Off);
    let warning = warning.unwrap();
    assert!(warning.contains("another process uses it") && warning.contains("other addresses"), "{warning}");
    assert_eq!(fake.number("a.test"), Some(0), "it works without");
    drop(held);
    let usual = model::Fake { store: FakeStore::Usual, ..off };
    drop(Fake::open(&usual, &StateFile::At(dir.join("users.state"))));
    assert!(dir.join("users.state.fake").exists(), "beside the state file");
    fs::remove_dir_all(dir).unwrap();
}

#[test]
fn an_address_is_a_name_or_nothing() {
    let (fake, _) = Fake::open(
        &model::Fake { store: FakeStore::Off, ..config(Path::new("x"), "10.0.0.0/27") },
        &StateFile::Off,
    );
    let fake = Arc::new(fake);
    for n in 0..15 {
        assert_eq!(fake.number(&format!("{n}.test")), Some(n));
    }
    assert_eq!(fake.v4(14), "10.0.0.30".parse::<Ipv4Addr>().unwrap(), "the last one before broadcast");
    for (text, name) in [
        ("10.0.0.16", Some("0.test")),
        ("::ffff:10.0.0.17", Some("1.test")),
        ("10.0.0.30", Some("14.test")),
        ("fd00:adf::1e", Some("14.test")),
        ("10.0.0.0", None),
        ("10.0.0.15", None),
        ("10.0.0.31", None),
        ("fd00:adf::1f", None),
        ("fd00:adf::ffff:ffff:ffff:ffff", None),
    ] {
        match fake.look(ip(text)) {
            FakeLookup::Name(found, _) => assert_eq!(Some(&*found), name, "{text}"),
            FakeLookup::Unmapped => assert_eq!(name, None, "{text}"),
            FakeLookup::Other => panic!("{text}: it is in the range"),
        }
    }
    for text in ["10.0.0.32", "9.255.255.255", "fd00:adf:0:1::10", "::1", "192.0.2.1"] {
        assert!(matches!(fake.look(ip(text)), FakeLookup::Other), "{text}");
    }
    // Flows hold all but one.
    let pins: Vec<FakeLookup> = (16..30).map(|n| fake.look(ip(&format!("10.0.0.{n}")))).collect();
    assert_eq!((fake.number("x.test"), fake.number("y.test")), (Some(14), Some(14)));
    let last = fake.look(ip("10.0.0.30"));
    assert_eq!(fake.number("z.test"), None);
    drop(pins);
    assert_eq!(fake.number("z.test"), Some(0));
    drop(last);
}

#[test]
fn only_names_of_hosts_are_faked() {
    for name in ["a", "a.b", "a-b._c.d9", "xn--r8jz45g.test"] {
        assert!(is_fakeable(name), "{name}");
    }
    let long = format!("{}.test", "a.".repeat(130));
    for name in
        ["", ".", "a.", ".a", "a..b", "A.b", "1.2.3.4", "a b", "a\u{e9}", "a/b", &long, &"a".repeat(64)]
    {
        assert!(!is_fakeable(name), "{name}");
    }
}

#[test]
fn names_keep_their_addresses_in_the_next_process() {
    let dir = std::env::temp_dir().join(format!("adit-fake-two-{}", std::process::id()));
    for path in [Some(dir.join("fake")), None] {
        let open = || match &path {
            Some(path) => open(path),
            None => {
                let config = model::Fake { store: FakeStore::Off, ..config(&dir, "198.18.128.0/17") };
                Arc::new(Fake::open(&config, &StateFile::Off).0)
            }
        };
        let old = open();
        let first = old.number("a.test");
        old.release();
        let second = old.number("b.test");
        let new = open();
        new.learn(&old.hand_over());
        assert_eq!((new.number("a.test"), new.number("b.test")), (first, second));
        assert_eq!(
            (old.number("b.test"), old.number("c.test")),
            (second, None),
            "the other one gives addresses"
        );
        let third = new.number("c.test");
        assert!(third.is_some() && third != first && third != second);
        drop(new);
        old.resume();
        assert!(old.number("d.test").is_some());
    }
    fs::remove_dir_all(&dir).ok();
}
