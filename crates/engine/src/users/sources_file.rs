//! The file of sources, beside the state file: one line of JSON for each, `["inbound","192.0.2.1",["ann","bob"]]`.
//!
//! It is written whole, a minute after something has changed and at the end, beside its place, and moved there. A line that
//! is none is left out: a file that is damaged costs trials, and nothing else.

use std::io::{self, BufReader, Read as _, Write as _};
use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use adit_model::map::Map;
use adit_net::files;

use super::known_sources::KnownSources;

/// Longest file that is read, in bytes.
const MAX_LEN: u64 = 64 << 20;

/// The sources of all inbounds, by the name under which their accounts are kept.
pub(super) type Books = Map<Box<str>, Arc<KnownSources>>;

/// The path of the file beside a state file.
pub(super) fn path(state: &Path) -> PathBuf {
    let mut name = state.to_owned().into_os_string();
    name.push(".sources");
    name.into()
}

/// Reads the file; nothing if there is none.
pub(super) fn read(path: &Path) -> Books {
    let Ok(file) = files::open(path) else { return Books::new() };
    read_lines(BufReader::new(file.take(MAX_LEN)))
}

fn read_lines(lines: impl io::BufRead) -> Books {
    let mut books = Books::new();
    for line in lines.split(b'\n').map_while(Result::ok) {
        let Ok((inbound, source, users)) = serde_json::from_slice::<(Box<str>, IpAddr, Vec<Box<str>>)>(&line)
        else {
            continue;
        };
        let sources = books.entry(inbound).or_default();
        for user in users.iter().rev() {
            sources.note(source, &Arc::from(&**user));
        }
        sources.take_changed();
    }
    books
}

/// Writes the file, if something has changed.
///
/// # Errors
/// The system's error; the file is as it was then.
pub(super) fn write(path: &Path, books: &Books) -> io::Result<()> {
    let changed = books.values().filter(|sources| sources.take_changed()).count();
    if changed == 0 {
        return Ok(());
    }
    files::replace(path, 0o600, &lines(books)?).map(drop)
}

fn lines(books: &Books) -> io::Result<Vec<u8>> {
    let mut out = Vec::new();
    for (inbound, sources) in books {
        for (source, users) in sources.all() {
            serde_json::to_writer(
                &mut out,
                &(inbound, source, users.iter().map(|user| &**user).collect::<Vec<_>>()),
            )?;
            out.write_all(b"\n")?;
        }
    }
    Ok(out)
}

/// Fuzz target: `data` as the file of sources. It is written and read to the same again.
#[doc(hidden)]
pub fn fuzz_sources(data: &[u8]) {
    let all =
        |books: &Books| books.iter().map(|(name, sources)| (name.clone(), sources.all())).collect::<Vec<_>>();
    let books = read_lines(data);
    let written = lines(&books).expect("memory takes everything");
    let again = read_lines(&written[..]);
    let mut expected = all(&books);
    expected.retain(|(_, sources)| !sources.is_empty());
    assert_eq!(all(&again), expected);
}

#[cfg(test)]
mod tests {
    use super::super::tests::Folder;
    use std::fs;

    use super::*;

    #[test]
    fn sources_outlive_the_process() {
        let dir = Folder::new("sources");
        let path = path(&dir.path().join("a.state"));
        let mut books = Books::new();
        let sources: &Arc<KnownSources> = books.entry("in".into()).or_default();
        let ip: IpAddr = "192.0.2.1".parse().unwrap();
        for name in ["ann", "a \"b\"\n", "bob"] {
            sources.note(ip, &name.into());
        }
        write(&path, &books).unwrap();
        let found = read(&path)["in"].find(ip);
        assert_eq!(found, ["bob".into(), "a \"b\"\n".into(), "ann".into()] as [Arc<str>; 3]);
        // Nothing new is not written.
        fs::remove_file(&path).unwrap();
        write(&path, &books).unwrap();
        assert!(!path.exists() && read(&path).is_empty());
        fs::write(&path, "[1]\n\u{0}\n[\"in\",\"192.0.2.1\",[\"x\"]]\n[\"in\",\"192.0").unwrap();
        assert_eq!(read(&path)["in"].find(ip), ["x".into()] as [Arc<str>; 1]);
    }
}
