//! The members that people chose, kept across restarts.
//!
//! The file is a JSON object of group and member. It is written as a whole beside its place and moved there, so that a
//! crash leaves the one before or the new one.

use std::io;
use std::path::{Path, PathBuf};

use adit_model::Tag;
use adit_model::map::Map;
use adit_net::files;

/// Choices that are kept. Groups that the configuration no longer has go first.
const MAX_KEPT: usize = 4096;
/// Longest file, in bytes.
const MAX_LEN: usize = 4 << 20;

/// The choices of one configuration.
#[derive(Debug, Default)]
pub(crate) struct Choices {
    path: Option<PathBuf>,
    kept: Map<String, String>,
}

impl Choices {
    /// Reads the file at `path`, if there is one. A damaged file counts as none, with a warning, and is replaced by the
    /// next choice.
    pub(crate) fn open(path: Option<&Path>) -> (Self, Option<String>) {
        let Some(path) = path else { return Default::default() };
        let (kept, warning) = match read(path) {
            Ok(kept) => (kept, None),
            Err(error) if error.kind() == io::ErrorKind::NotFound => (Map::new(), None),
            Err(error) => {
                let path = path.display();
                let warning = format!("cannot read choices of members from {path}: {error}; they begin anew");
                (Map::new(), Some(warning))
            }
        };
        (Self { path: Some(path.to_owned()), kept }, warning)
    }

    /// The file.
    pub(crate) fn path(&self) -> Option<&Path> {
        self.path.as_deref()
    }

    /// The member that was chosen in a group.
    pub(crate) fn find(&self, group: &str) -> Option<Tag> {
        self.kept.get(group).map(|member| Tag::from(&**member))
    }

    /// Keeps a choice, or forgets it; `is_group` tells the groups that there are.
    ///
    /// # Errors
    /// When the file cannot be written. The choice holds until the process ends.
    pub(crate) fn keep(
        &mut self,
        group: &str,
        member: Option<&str>,
        is_group: impl Fn(&str) -> bool,
    ) -> io::Result<()> {
        let before = match member {
            Some(member) => self.kept.insert(group.to_owned(), member.to_owned()),
            None => self.kept.remove(group),
        };
        if before.as_deref() == member {
            return Ok(());
        }
        if self.kept.len() > MAX_KEPT {
            self.kept.retain(|name, _| is_group(name));
        }
        while self.kept.len() > MAX_KEPT {
            self.kept.pop_last();
        }
        match &self.path {
            Some(path) => write(path, &self.kept),
            None => Ok(()),
        }
    }
}

fn read(path: &Path) -> io::Result<Map<String, String>> {
    parse(&files::read_text(path, MAX_LEN)?)
}

fn parse(text: &str) -> io::Result<Map<String, String>> {
    serde_json::from_str(text).map_err(|_| io::Error::new(io::ErrorKind::InvalidData, "the file is damaged"))
}

/// Fuzz target: `data` as the file of choices. It is written and read to the same again.
#[doc(hidden)]
pub fn fuzz_choices(data: &[u8]) {
    let Ok(kept) = parse(&String::from_utf8_lossy(data)) else { return };
    let written = serde_json::to_string_pretty(&kept).expect("texts");
    assert_eq!(parse(&written).ok().as_ref(), Some(&kept));
    let choices = Choices { path: None, kept };
    assert!(
        choices.kept.iter().all(|(group, member)| choices.find(group).is_some_and(|tag| *tag == **member))
    );
}

fn write(path: &Path, kept: &Map<String, String>) -> io::Result<()> {
    let text = serde_json::to_string_pretty(kept)? + "\n";
    files::replace(path, 0o600, text.as_bytes()).map(drop)
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    fn folder(name: &str) -> PathBuf {
        let path = std::env::temp_dir().join(format!("adit-choices-{name}-{}", std::process::id()));
        fs::create_dir_all(&path).unwrap();
        path
    }

    #[test]
    fn choices_are_kept() {
        let folder = folder("kept");
        let path = folder.join("choices");
        fs::remove_file(&path).ok();
        let (mut choices, warning) = Choices::open(Some(&path));
        assert_eq!((choices.find("g"), warning), (None, None));
        choices.keep("g", Some("a \"quoted\" 節点"), |_| true).unwrap();
        choices.keep("h", Some("b"), |_| true).unwrap();
        choices.keep("h", None, |_| true).unwrap();
        let (choices, _) = Choices::open(Some(&path));
        assert_eq!(choices.find("g").as_deref(), Some("a \"quoted\" 節点"));
        assert_eq!(choices.find("h"), None);
        let mode = std::os::unix::fs::PermissionsExt::mode(&fs::metadata(&path).unwrap().permissions());
        assert_eq!(mode & 0o777, 0o600);
        // Nothing lies beside it.
        assert_eq!(fs::read_dir(&folder).unwrap().count(), 1);
        fs::remove_dir_all(folder).unwrap();
    }

    #[test]
    fn damaged_and_endless_files() {
        let folder = folder("damaged");
        let path = folder.join("choices");
        let whole = br#"{"g":"a"}"#;
        for len in 0..whole.len() {
            fs::write(&path, &whole[..len]).unwrap();
            let (mut choices, warning) = Choices::open(Some(&path));
            assert!(warning.unwrap().contains("begin anew"), "{len}");
            choices.keep("g", Some("b"), |_| true).unwrap();
            assert_eq!(Choices::open(Some(&path)).0.find("g").as_deref(), Some("b"));
        }
        fs::write(&path, " ".repeat(MAX_LEN + 1)).unwrap();
        assert!(Choices::open(Some(&path)).1.unwrap().contains("longer than 4096 KiB"));
        fs::remove_dir_all(folder).unwrap();
    }

    #[test]
    fn choices_are_bounded() {
        let mut choices = Choices::default();
        for n in 0..=MAX_KEPT {
            choices.keep(&format!("g{n:05}"), Some("a"), |group| group.ends_with('7')).unwrap();
        }
        assert!(choices.kept.len() <= MAX_KEPT && choices.find("g00007").is_some());
        assert_eq!(choices.find("g00008"), None);
    }

    #[test]
    fn a_folder_that_cannot_be_written() {
        let path = Path::new("/nonexistent/choices");
        let (mut choices, warning) = Choices::open(Some(path));
        assert_eq!(warning, None);
        assert!(choices.keep("g", Some("a"), |_| true).is_err());
        assert_eq!(choices.find("g").as_deref(), Some("a"));
    }
}
