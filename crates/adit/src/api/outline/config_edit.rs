//! Changes of the file, which the process follows before they are answered.

use std::path::{Path, PathBuf};

use adit_formats::adit_toml;
use adit_formats::adit_toml::edit::EditError;
use adit_model::diagnostic::Diagnostics;
use zeroize::Zeroizing;

use crate::load::files::{self, load_all};
use crate::replace::{Seen, replace};
use crate::run::reload::Requests;

/// Tries while others write the file.
const TRIES: usize = 5;

/// Why a request is refused: its status, and a text for people.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Refusal(pub(super) u16, pub(super) String);

impl Refusal {
    pub(super) fn bad(text: impl Into<String>) -> Self {
        Self(400, text.into())
    }

    pub(super) fn none(text: impl Into<String>) -> Self {
        Self(404, text.into())
    }

    pub(super) fn failed(text: impl Into<String>) -> Self {
        Self(500, text.into())
    }
}

impl From<EditError> for Refusal {
    fn from(error: EditError) -> Self {
        let status = match error {
            EditError::NoInbound(_) | EditError::NoUser(..) => 404,
            EditError::Taken(..) => 409,
            EditError::NoNumber(_) => 400,
            EditError::Unreadable => 500,
        };
        Self(status, error.to_string())
    }
}

/// The files of the configuration that runs.
pub(super) struct Book {
    requests: Requests,
}

impl Book {
    pub(super) fn new(requests: Requests) -> Self {
        Self { requests }
    }

    /// Changes the file that has `inbound`, and has the process follow. If it does not, the file is put back.
    ///
    /// # Errors
    /// 400 for a text that is none of a configuration, or that the process refuses; those of `edit`; 500 for files that
    /// cannot be written.
    pub(super) fn change(
        &self,
        inbound: &str,
        edit: impl Fn(&str) -> Result<Zeroizing<String>, EditError>,
    ) -> Result<(), Refusal> {
        let mut last = None;
        for _ in 0..TRIES {
            match self.try_change(inbound, &edit) {
                Err((refusal, true)) => last = Some(refusal),
                done => return done.map_err(|(refusal, _)| refusal),
            }
        }
        Err(last.unwrap_or_else(|| Refusal::failed("the file is busy")))
    }

    /// The same once; with an error, whether somebody else was writing the file.
    fn try_change(
        &self,
        inbound: &str,
        edit: impl Fn(&str) -> Result<Zeroizing<String>, EditError>,
    ) -> Result<(), (Refusal, bool)> {
        let refused = |refusal| (refusal, false);
        let failed = |error: std::io::Error| {
            let is_busy = error.kind() == std::io::ErrorKind::WouldBlock;
            (Refusal::failed(format!("the file cannot be written: {error}")), is_busy)
        };
        let path = self.file_of(inbound).map_err(refused)?;
        let seen = Seen::of(path).map_err(failed)?;
        let (_, old) = files::read(path).map_err(|found| refused(unreadable(&found)))?;
        let new = edit(&old).map_err(|error| refused(error.into()))?;
        self.check(path, &new).map_err(|found| {
            tracing::debug!("a request would make a configuration that is wrong: {found}");
            refused(Refusal::bad("the value cannot stand in the configuration"))
        })?;
        replace(path, &new, &seen).map_err(failed)?;
        if let Err(found) = self.requests.reload() {
            let back = Seen::of(path).and_then(|seen| replace(path, &old, &seen));
            if let Err(error) = back {
                tracing::error!("{} cannot be put back: {error}", path.display());
            }
            let first = found.first().and_then(|text| text.lines().next()).unwrap_or_default();
            return Err(refused(Refusal::bad(format!("the change is refused: {first}"))));
        }
        Ok(())
    }

    fn file_of(&self, inbound: &str) -> Result<&PathBuf, Refusal> {
        for path in &self.requests.files().paths {
            let (name, text) = files::read(path).map_err(|found| unreadable(&found))?;
            if path != Path::new("-") && adit_toml::place_of(&name, &text, inbound).is_some() {
                return Ok(path);
            }
        }
        Err(Refusal::none("no file has this inbound"))
    }

    /// Reads all files, one of them as it is to become.
    fn check(&self, changed: &Path, text: &str) -> Result<(), Diagnostics> {
        let parse = |path: &PathBuf| {
            let (name, old) = files::read(path)?;
            let text = if path == changed { text } else { old.as_str() };
            Ok((name.clone(), adit_toml::parse(&name, text)?))
        };
        load_all(self.requests.files().paths.iter().map(parse)).map(drop)
    }
}

fn unreadable(found: &Diagnostics) -> Refusal {
    tracing::debug!("the configuration cannot be read: {found}");
    Refusal::failed("the configuration cannot be read")
}
