use std::path::PathBuf;

use super::*;

/// A folder of its own, removed when dropped.
pub(super) struct Folder(PathBuf);

impl Folder {
    pub(super) fn new(name: &str) -> Self {
        let path = std::env::temp_dir().join(format!("adit-{name}-{}", std::process::id()));
        std::fs::create_dir_all(&path).unwrap();
        Self(path)
    }

    pub(super) fn path(&self) -> &Path {
        &self.0
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        std::fs::remove_dir_all(&self.0).ok();
    }
}

pub(super) fn salt(n: u32) -> [u8; 16] {
    let mut salt = [0; 16];
    salt[..4].copy_from_slice(&n.to_le_bytes());
    salt
}

#[test]
fn the_last_salts_are_refused_and_older_ones_forgotten() {
    let filter = SaltFilter::new(1600);
    for n in 0..1600 {
        assert!(filter.insert(&salt(n)), "{n}");
    }
    assert!((0..1600).all(|n| !filter.insert(&salt(n))));
    for n in 1600..20_000 {
        assert!(filter.insert(&salt(n)), "{n}");
    }
    assert!((18_600..20_000).all(|n| !filter.insert(&salt(n))));
    assert!((0..1600).filter(|n| filter.insert(&salt(*n))).count() > 1590);
    assert!(filter.prints.len() <= 1600 + 20 * (6 * 8 + 16));
}

#[test]
fn one_of_many_threads_wins() {
    let salts = ReplayFilter::default();
    let wins: usize = std::thread::scope(|scope| {
        let race = || (0..1000).filter(|n| salts.insert(&salt(*n))).count();
        let threads: Vec<_> = (0..4).map(|_| scope.spawn(race)).collect();
        threads.into_iter().map(|t| t.join().unwrap()).sum()
    });
    assert_eq!(wins, 1000);
}

#[test]
fn recent_salts_last_a_minute_and_are_bounded() {
    let mut recent = Recent::default();
    assert!(recent.insert(1, 1_000));
    assert!(!recent.insert(1, 1_000));
    assert!(recent.insert(2, 1_059));
    assert!(!recent.insert(2, 1_118), "59 s later");
    assert!(recent.insert(3, 1_130));
    assert!(recent.insert(1, 1_300), "long forgotten");
    recent.newer.extend(0..RECENT as u64);
    assert!(!recent.insert(u64::MAX, 1_301), "full: refuse rather than forget");
    assert!(recent.insert(u64::MAX, 1_500), "expired");
}

#[test]
fn a_restart_forgets_nothing() {
    let dir = Folder::new("salts-restart");
    let path = salts_path(&dir.path().join("a.state"));
    let (salts, warning) = ReplayFilter::start(&path);
    assert_eq!(warning, None);
    assert!((0..1000).all(|n| salts.insert(&salt(n))));
    assert!((2000..3000).all(|n| salts.insert_recent(&salt(n))));
    // A second process does without the file, and leaves it alone.
    let (second, warning) = ReplayFilter::start(&path);
    assert!(warning.unwrap().contains("another process uses it"));
    assert!(second.insert(&salt(5000)));
    drop((salts, second));
    let (salts, warning) = ReplayFilter::start(&path);
    assert_eq!(warning, None);
    assert!((0..1000).all(|n| !salts.insert(&salt(n))));
    assert!((2000..3000).all(|n| !salts.insert_recent(&salt(n))));
    assert!(salts.insert(&salt(5000)));
}

#[test]
fn a_folder_that_cannot_be_made_is_said() {
    let dir = Folder::new("salts-refused");
    std::fs::write(dir.path().join("file"), b"").unwrap();
    let (salts, warning) = ReplayFilter::start(&dir.path().join("file/a.salts"));
    let warning = warning.unwrap();
    assert!(warning.contains("cannot use replay file"), "{warning}");
    assert!(salts.insert(&salt(1)) && !salts.insert(&salt(1)));
}

#[derive(Debug)]
struct Other(Arc<ReplayFilter>);

impl Arbiter for Other {
    fn admits(&self, print: Print) -> bool {
        let bytes = print.emit();
        assert_eq!(Print::parse(bytes), print);
        self.0.admit(Print::parse(bytes))
    }
}

/// Two processes see recorded connections, one after the other or at once.
#[test]
fn a_salt_opens_one_stream_in_two_processes() {
    let dir = Folder::new("salts-two");
    let path = dir.path().join("a.salts");
    for has_file in [true, false] {
        let start = |key| {
            if has_file {
                let (salts, warning) = ReplayFilter::start(&path);
                assert_eq!(warning, None);
                salts
            } else {
                Arc::new(ReplayFilter::with_key(key))
            }
        };
        let old = start([3; 16]);
        assert!(old.insert(&salt(1)) && old.insert_recent(&salt(2)));
        old.release().unwrap();
        assert!(old.insert(&salt(3)) && old.insert_recent(&salt(4)) && !old.insert(&salt(1)));
        let new = start(old.key());
        let missed = old.hand_over(Box::new(Other(new.clone())));
        assert!(missed.iter().all(|print| new.admit(*print)));
        for n in [1, 3] {
            assert!(!new.insert(&salt(n)), "{n}");
        }
        for n in [2, 4] {
            assert!(!new.insert_recent(&salt(n)), "{n}");
        }
        assert!(new.insert(&salt(5)) && new.insert_recent(&salt(6)));
        assert!(!old.insert(&salt(5)) && !old.insert_recent(&salt(6)));
        assert!(old.insert(&salt(7)) && !new.insert(&salt(7)));
        drop((old, new));
        if has_file {
            let (last, _) = ReplayFilter::start(&path);
            assert!([1, 3, 5, 7].iter().all(|n| !last.insert(&salt(*n))));
            assert!([2, 4, 6].iter().all(|n| !last.insert_recent(&salt(*n))));
        }
    }
}

#[test]
fn the_file_comes_back_with_the_salts_of_meanwhile() {
    let dir = Folder::new("salts-back");
    let path = dir.path().join("a.salts");
    let (old, _) = ReplayFilter::start(&path);
    assert!(old.insert(&salt(1)));
    let kept = old.path();
    old.release().unwrap();
    assert!(old.insert(&salt(2)));
    old.resume(None, &[]).unwrap();
    assert!(old.insert(&salt(3)));
    // The same behind the hand-over.
    old.release().unwrap();
    assert!(old.insert(&salt(4)));
    let other = Arc::new(ReplayFilter::with_key(old.key()));
    let missed = old.hand_over(Box::new(Other(other)));
    old.resume(kept, &missed).unwrap();
    assert!(old.insert(&salt(5)));
    drop(old);
    let (last, _) = ReplayFilter::start(&path);
    assert!((1..=5).all(|n| !last.insert(&salt(n))));
}
