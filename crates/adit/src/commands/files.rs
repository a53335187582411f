//! The configuration that a command works on.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use adit_config::diagnostic::{Diagnostic, Diagnostics};
use adit_config::dialect::clash::{self, Setup};
use adit_config::dialect::{Loaded, native};
use adit_config::source;

use crate::cli::FileArgs;

/// Paths of a configuration when none is named, in order.
const DEFAULTS: [&str; 2] = ["adit.toml", "/etc/adit/adit.toml"];

/// The files that were asked for, else the first default that exists.
pub(super) fn paths(args: &FileArgs) -> Result<Vec<PathBuf>, Diagnostics> {
    if !args.config.is_empty() {
        return Ok(args.config.clone());
    }
    let found = DEFAULTS.into_iter().find(|path| Path::new(path).exists());
    found.map(|path| vec![path.into()]).ok_or_else(|| {
        let error = Diagnostic::error(&DEFAULTS[0].into(), "", format!("no such file, nor {}", DEFAULTS[1]));
        error.hint("name a file with -c; `adit config example` prints one to begin with").into()
    })
}

/// Reads and merges the files of a command.
///
/// # Errors
/// Everything that is wrong with all of them.
pub(super) fn load(args: &FileArgs) -> Result<Loaded, Diagnostics> {
    parse(&read_all(&paths(args)?)?)
}

/// A file that has been read.
#[derive(Debug, Clone)]
pub(super) struct Text {
    path: PathBuf,
    name: Arc<str>,
    text: String,
}

/// Reads files, and nothing else that they name.
///
/// # Errors
/// Those of all files that cannot be read.
pub(super) fn read_all(paths: &[PathBuf]) -> Result<Vec<Text>, Diagnostics> {
    let (mut all, mut found) = (Vec::new(), Diagnostics::new());
    for path in paths {
        match read(path) {
            Ok((name, text)) => all.push(Text { path: path.clone(), name, text: text.to_string() }),
            Err(errors) => found.append(errors),
        }
    }
    if found.has_errors() { Err(found) } else { Ok(all) }
}

/// The configuration of files that have been read, with the lists that they name as they are on disk.
///
/// # Errors
/// Everything that is wrong with all of them.
pub(super) fn parse(texts: &[Text]) -> Result<Loaded, Diagnostics> {
    let parse = |Text { path, name, text }: &Text| {
        let loaded = if clash::is_clash(text) {
            clash::load(name, text, home(path))?.run()?
        } else {
            native::parse(name, text)?
        };
        Ok((name.clone(), loaded))
    };
    load_all(texts.iter().map(parse))
}

/// Merges what was read, with the name of each file.
///
/// # Errors
/// Everything that is wrong with all of them.
pub(crate) fn load_all(
    files: impl Iterator<Item = Result<(Arc<str>, Loaded), Diagnostics>>,
) -> Result<Loaded, Diagnostics> {
    let (mut found, mut configs) = (Diagnostics::new(), Vec::new());
    for file in files {
        match file {
            Ok((name, loaded)) => {
                found.append(loaded.diagnostics);
                configs.push((name, loaded.config));
            }
            Err(errors) => found.append(errors),
        }
    }
    if found.has_errors() {
        return Err(found);
    }
    match native::merge(configs) {
        Ok(config) => Ok(Loaded { config, diagnostics: found }),
        Err(errors) => {
            found.append(errors);
            Err(found)
        }
    }
}

/// The file of a command, if it is one and of the Clash family, for explaining its rules.
///
/// # Errors
/// Everything that is wrong with it.
pub(super) fn clash(args: &FileArgs) -> Result<Option<Setup>, Diagnostics> {
    let [path] = &*paths(args)? else { return Ok(None) };
    let (name, text) = read(path)?;
    if clash::is_clash(&text) { clash::load(&name, &text, home(path)).map(Some) } else { Ok(None) }
}

/// The folder of the lists that a file names.
fn home(path: &Path) -> &Path {
    path.parent().unwrap_or_else(|| Path::new(""))
}

/// The file, line and column of the inbound or outbound of that name.
pub(crate) fn place_of_part(files: &[PathBuf], name: &str) -> Option<(Arc<str>, (usize, usize))> {
    files.iter().find_map(|path| {
        let (file, text) = read(path).ok()?;
        let place = native::place_of(&file, &text, name)?;
        Some((file, place))
    })
}

/// The name in messages and the text of a file.
pub(super) fn read(path: &Path) -> Result<(Arc<str>, impl std::ops::Deref<Target = String>), Diagnostics> {
    if path == Path::new("-") {
        return Ok(("stdin".into(), source::read_up_to(Path::new("/dev/stdin"), native::MAX_LEN)?));
    }
    Ok((path.to_string_lossy().into(), source::read_up_to(path, native::MAX_LEN)?))
}
