//! The configuration that a command works on.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use adit_formats::adit_toml;
use adit_formats::clash::{self, ClashSetup};
use adit_formats::read::loaded::Loaded;
use adit_formats::read::source;
use adit_model::diagnostic::{Diagnostic, Diagnostics};
use clap::{Args, ValueHint};
use zeroize::Zeroizing;

use crate::load::detect::{Format, Use};
use crate::load::providers;

/// Choice of the configuration.
#[derive(Debug, Clone, Default, Args)]
pub(crate) struct FileArgs {
    /// Configuration files, `-` for standard input [default: adit.toml, else /etc/adit/adit.toml]
    ///
    /// Inbounds and outbounds of several files add up. A link is taken too, but other users see the keys of a command line:
    /// standard input hides them.
    #[arg(short, long = "config", value_name = "FILE", num_args = 1.., value_hint = ValueHint::FilePath)]
    pub(crate) config: Vec<PathBuf>,
    /// The program that they are for; it is told from the text without it.
    #[arg(skip)]
    pub(crate) format: Option<Format>,
}

impl FileArgs {
    /// These files, of any format.
    pub(crate) fn of(config: Vec<PathBuf>) -> Self {
        Self { config, format: None }
    }
}

/// Paths of a configuration when none is named, in order.
const DEFAULTS: [&str; 2] = ["adit.toml", "/etc/adit/adit.toml"];

/// The files that were asked for, else the first default that exists.
pub(crate) fn paths(args: &FileArgs) -> Result<Vec<PathBuf>, Diagnostics> {
    if !args.config.is_empty() {
        return Ok(args.config.clone());
    }
    if let Some(path) = args.format.and_then(Format::default_path) {
        return Ok(vec![path.into()]);
    }
    if let Some(format) = args.format.filter(|format| *format != Format::Native) {
        let error = Diagnostic::error(&format.name().into(), "", "no file is named");
        return Err(error.hint("write its name behind the flags").into());
    }
    let found = DEFAULTS.into_iter().find(|path| Path::new(path).exists());
    found.map(|path| vec![path.into()]).ok_or_else(|| {
        let error = Diagnostic::error(&DEFAULTS[0].into(), "", format!("no such file, nor {}", DEFAULTS[1]));
        error.hint("name a file with -c; `adit config example` prints one to begin with").into()
    })
}

/// Reads and merges the files of a command, of any format.
///
/// # Errors
/// Everything that is wrong with all of them.
pub(crate) fn load(args: &FileArgs) -> Result<Loaded, Diagnostics> {
    load_for(Use::Look, args, &mut read)
}

/// The same for running: what only the program does that a file is for is an error.
///
/// # Errors
/// Everything that is wrong with all of them.
pub(crate) fn load_to_run(args: &FileArgs) -> Result<(Loaded, Texts), Diagnostics> {
    let mut texts = Texts::new();
    let mut read = |path: &Path| {
        let found = read(path)?;
        texts.insert(path.to_owned(), found.clone());
        Ok(found)
    };
    Ok((load_for(Use::Run, args, &mut read)?, texts))
}

/// Files as they were read, by path.
pub(crate) type Texts = BTreeMap<PathBuf, (Arc<str>, Zeroizing<String>)>;

/// The configuration of the same texts, with the lists that they name as they are on disk by now.
///
/// # Errors
/// Everything that is wrong with all of them.
pub(crate) fn load_again(args: &FileArgs, texts: &Texts) -> Result<Loaded, Diagnostics> {
    load_for(Use::Run, args, &mut |path: &Path| match texts.get(path) {
        Some(found) => Ok(found.clone()),
        None => read(path),
    })
}

/// Reads a file: its name in messages, and its text.
type Read<'r> = dyn FnMut(&Path) -> Result<(Arc<str>, Zeroizing<String>), Diagnostics> + 'r;

fn load_for(purpose: Use, args: &FileArgs, read: &mut Read<'_>) -> Result<Loaded, Diagnostics> {
    let paths = paths(args)?;
    // Merging knows the settings of adit.toml alone.
    let stands_alone = |format| !matches!(format, Format::Native | Format::Clash);
    if paths.len() > 1 && args.format.is_some_and(stands_alone) {
        return Err(several().into());
    }
    let mut files = Vec::new();
    for path in &paths {
        let Opened { name, format, loaded } =
            match read(path).and_then(|(name, text)| of_text(purpose, args.format, path, name, &text)) {
                Ok(opened) => opened,
                Err(errors) => {
                    files.push(Err(errors));
                    continue;
                }
            };
        match (stands_alone(format), paths.len()) {
            (true, 1) => return Ok(loaded),
            (true, _) => return Err(several().into()),
            (false, _) => files.push(Ok((name, loaded))),
        }
    }
    load_all(files.into_iter())
}

fn several() -> Diagnostic {
    let error = Diagnostic::error(&"command line".into(), "", "several files, and not all are adit.toml");
    error.hint("a file of another program stands alone, name one with -c; `adit import` makes it adit.toml")
}

/// A file that was read.
pub(crate) struct Opened {
    /// Its name in messages.
    pub(crate) name: Arc<str>,
    /// The format that it was read as.
    pub(crate) format: Format,
    /// The configuration, and warnings.
    pub(crate) loaded: Loaded,
}

/// Reads one file, or a link in its place.
///
/// # Errors
/// Everything that is wrong with it.
pub(crate) fn open(purpose: Use, format: Option<Format>, path: &Path) -> Result<Opened, Diagnostics> {
    let (name, text) = read(path)?;
    of_text(purpose, format, path, name, &text)
}

fn of_text(
    purpose: Use,
    format: Option<Format>,
    path: &Path,
    name: Arc<str>,
    text: &str,
) -> Result<Opened, Diagnostics> {
    let (format, doubt) = match format {
        Some(format) => (format, None),
        None => Format::of(path, &name, text)?,
    };
    let mut loaded = format.load(purpose, path, &name, text)?;
    if let Some(doubt) = doubt {
        loaded.diagnostics.push(doubt);
    }
    Ok(Opened { name, format, loaded })
}

/// Whether all of these are files in the form of adit.toml, which can be written to.
pub(crate) fn are_native(args: &FileArgs, paths: &[PathBuf], texts: &Texts) -> bool {
    let is_native = |path: &PathBuf| {
        let Some((name, text)) = texts.get(path) else { return false };
        Format::of(path, name, text).is_ok_and(|(format, _)| format == Format::Native)
    };
    match args.format {
        Some(format) => format == Format::Native,
        None => paths.iter().all(is_native),
    }
}

/// Whether a path is no file but a link or an address.
pub(crate) fn is_link(path: &Path) -> bool {
    path.to_str().is_some_and(|text| text.contains("://")) && !path.exists()
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
    match adit_toml::merge(configs) {
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
pub(crate) fn clash(args: &FileArgs) -> Result<Option<ClashSetup>, Diagnostics> {
    let [path] = &*paths(args)? else { return Ok(None) };
    let (name, text) = read(path)?;
    let is_clash = match args.format {
        Some(format) => format == Format::Clash,
        None => Format::of(path, &name, &text).is_ok_and(|(format, _)| format == Format::Clash),
    };
    if is_clash { clash::load(&name, &text, home(path)).map(Some) } else { Ok(None) }
}

/// The folder of the lists that a file names.
pub(crate) fn home(path: &Path) -> &Path {
    path.parent().filter(|_| !is_link(path)).unwrap_or_else(|| Path::new(""))
}

/// The file, line and column of the inbound or outbound of that name.
pub(crate) fn place_of_part(files: &[PathBuf], name: &str) -> Option<(Arc<str>, (usize, usize))> {
    files.iter().find_map(|path| {
        let (file, text) = read(path).ok()?;
        let place = adit_toml::place_of(&file, &text, name)?;
        Some((file, place))
    })
}

/// The name in messages and the text of a file.
pub(crate) fn read(path: &Path) -> Result<(Arc<str>, Zeroizing<String>), Diagnostics> {
    if path == Path::new("-") {
        return Ok(("stdin".into(), source::read_up_to(Path::new("/dev/stdin"), adit_toml::MAX_LEN)?));
    }
    if is_link(path) {
        let link = path.to_string_lossy();
        if !["https://", "http://"].iter().any(|scheme| link.starts_with(scheme)) {
            return Ok(("link".into(), link.into_owned().into()));
        }
        return match providers::text_at(&link, adit_toml::MAX_LEN) {
            Ok(text) => Ok(("link".into(), text.into())),
            Err(problem) => {
                let error = Diagnostic::error(&"link".into(), "", format!("cannot fetch it: {problem}"));
                Err(error.hint("a program that can: curl -s URL | adit import -").into())
            }
        };
    }
    Ok((path.to_string_lossy().into(), source::read_up_to(path, adit_toml::MAX_LEN)?))
}
