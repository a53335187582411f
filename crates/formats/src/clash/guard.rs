//! The folders in which files may be named.
//!
//! mihomo calls them safe paths: the home folder and those of `SAFE_PATHS`. Links are followed here, so that a link in the
//! home folder leads no further than a path does.

use std::path::{Component, Path, PathBuf};

/// The origin of a text, and the folders in which it may name files.
#[derive(Debug, Clone, Default)]
pub struct Guard {
    /// Folders beside the home folder.
    pub folders: Vec<PathBuf>,
    /// All folders are good.
    pub is_off: bool,
    /// A client has sent the text: it names no file outside of the folders, and no program. A file that a person wrote
    /// gets a warning.
    pub is_remote: bool,
    /// Plugins that a client's text may run.
    pub plugins: Vec<String>,
}

impl Guard {
    /// Whether `path` lies in `home` or in one of the folders, wherever links lead.
    pub fn holds(&self, home: &Path, path: &Path) -> bool {
        let home = if home.as_os_str().is_empty() { Path::new(".") } else { home };
        let place = resolved(path);
        let mut folders =
            self.folders.iter().map(PathBuf::as_path).filter(|folder| !folder.as_os_str().is_empty());
        self.is_off
            || place.starts_with(resolved(home))
            || folders.any(|folder| place.starts_with(resolved(folder)))
    }
}

/// Whether both are one file, which may not be there yet.
pub(super) fn is_same(one: &Path, other: &Path) -> bool {
    resolved(one) == resolved(other)
}

/// The place of a path, with links followed as far as it exists.
fn resolved(path: &Path) -> PathBuf {
    let path = std::path::absolute(path).unwrap_or_else(|_| path.to_owned());
    let mut found = PathBuf::new();
    let mut is_there = true;
    for part in path.components() {
        if part == Component::ParentDir {
            found.pop();
        } else {
            found.push(part);
        }
        if is_there {
            match std::fs::canonicalize(&found) {
                Ok(place) => found = place,
                Err(_) => is_there = found.symlink_metadata().is_ok(),
            }
        }
    }
    found
}

#[cfg(all(test, unix))]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn paths_stay_in_their_folders() {
        let base = std::env::temp_dir().join(format!("adit-guard-{}", std::process::id()));
        let (home, safe) = (base.join("home"), base.join("safe"));
        fs::create_dir_all(home.join("sub")).unwrap();
        fs::create_dir_all(&safe).unwrap();
        for (link, to) in [("out", "/etc"), ("in", "sub"), ("dangling", "/nonexistent/x")] {
            std::os::unix::fs::symlink(to, home.join(link)).unwrap();
        }
        let guard = Guard { folders: vec![safe, PathBuf::new()], ..Guard::default() };
        for (path, want) in [
            ("a", true),
            ("sub/a/b", true),
            ("in/a", true),
            ("sub/../a", true),
            ("../home/a", true),
            ("../safe/a", true),
            ("out/passwd", false),
            ("in/../../a", false),
            ("../a", false),
            ("../home-other/a", false),
            ("/etc/passwd", false),
            ("none/../../a", false),
        ] {
            assert_eq!(guard.holds(&home, &home.join(path)), want, "{path}");
        }
        assert!(!guard.holds(Path::new("/h"), Path::new("/etc/passwd")));
        assert!(Guard { is_off: true, ..Guard::default() }.holds(&home, Path::new("/etc/passwd")));
        assert!(is_same(&home.join("in/c"), &home.join("sub/./c")));
        fs::remove_dir_all(base).unwrap();
    }
}
