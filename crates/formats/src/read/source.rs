//! Texts that configuration comes from: bounded reading, and lines and columns of byte offsets.

use std::path::Path;
use std::sync::Arc;

use zeroize::Zeroizing;

use adit_model::diagnostic::Diagnostic;
use adit_model::files::{self, FileError};

/// Longest configuration text, in bytes: a thousand times what anybody writes by hand.
pub const MAX_LEN: usize = 1 << 20;

/// A text with the name under which findings about it are reported.
#[derive(Clone)]
pub struct Source<'a> {
    /// The name.
    pub file: Arc<str>,
    /// The text.
    pub text: &'a str,
    /// Byte offset of the start of each line.
    lines: Vec<usize>,
}

impl<'a> Source<'a> {
    /// A source with this name and text.
    pub fn new(file: &str, text: &'a str) -> Self {
        let starts = text.bytes().enumerate().filter(|(_, b)| *b == b'\n').map(|(i, _)| i + 1);
        Self { file: file.into(), text, lines: std::iter::once(0).chain(starts).collect() }
    }

    /// Line and column, both from 1, of a byte offset; one past the end stands for the end.
    pub fn locate(&self, offset: usize) -> (usize, usize) {
        let offset = offset.min(self.text.len());
        let line = self.lines.partition_point(|start| *start <= offset);
        let start = self.lines[line - 1];
        let column = self.text.as_bytes()[start..offset].iter().filter(|b| !is_continuation(**b)).count();
        (line, column + 1)
    }

    /// The byte offset of a line and a column, both from 1; `None` for a place that is none.
    pub(crate) fn offset(&self, line: usize, column: usize) -> Option<usize> {
        let start = *self.lines.get(line.checked_sub(1)?)?;
        let before = self.text[start..].chars().take(column.checked_sub(1)?);
        Some(start + before.map(char::len_utf8).sum::<usize>())
    }

    /// Refuses a text that is longer than [`MAX_LEN`].
    ///
    /// # Errors
    /// The finding about it.
    pub fn check_len(&self) -> Result<(), Diagnostic> {
        self.check_len_up_to(MAX_LEN)
    }

    /// Refuses a text that is longer than `max` bytes.
    ///
    /// # Errors
    /// The finding about it.
    pub fn check_len_up_to(&self, max: usize) -> Result<(), Diagnostic> {
        if self.text.len() > max {
            return Err(Diagnostic::error(&self.file, "", too_long(max)));
        }
        Ok(())
    }
}

/// The second and later bytes of a character in UTF-8.
fn is_continuation(byte: u8) -> bool {
    byte & 0xc0 == 0x80
}

fn too_long(max: usize) -> String {
    format!("longer than {} KiB", max >> 10)
}

/// Reads a configuration file. Bytes that are no UTF-8 become U+FFFD, which dialects refuse wherever it matters;
/// comments in another encoding do no harm.
///
/// # Errors
/// A finding when the file cannot be read or is longer than [`MAX_LEN`].
pub fn read(path: &Path) -> Result<Zeroizing<String>, Diagnostic> {
    read_up_to(path, MAX_LEN)
}

/// The same for files that may have another length, in bytes, such as lists of networks.
///
/// # Errors
/// As [`read`].
pub fn read_up_to(path: &Path, max: usize) -> Result<Zeroizing<String>, Diagnostic> {
    text(path, files::read_input(path, max))
}

/// The same for a file that nobody hands over: it is regular, and is not waited for.
///
/// # Errors
/// As [`read`].
pub fn read_regular(path: &Path, max: usize) -> Result<Zeroizing<String>, Diagnostic> {
    text(path, files::read(path, max))
}

/// The same for the copy of a document that was fetched.
///
/// # Errors
/// As [`read`].
pub fn read_copy(path: &Path, max: usize) -> Result<Zeroizing<String>, Diagnostic> {
    text(path, files::read_copy(path, max))
}

fn text(path: &Path, read: Result<Zeroizing<Vec<u8>>, FileError>) -> Result<Zeroizing<String>, Diagnostic> {
    read.map(|bytes| decoded(&bytes)).map_err(|error| {
        let problem = if let FileError::TooLong { max } = error {
            too_long(max)
        } else {
            format!("cannot read: {error}")
        };
        Diagnostic::error(&path.to_string_lossy().into(), "", problem)
    })
}

/// The text of a file: UTF-8, or UTF-16 with the mark that programs of Windows put in front.
fn decoded(bytes: &[u8]) -> Zeroizing<String> {
    let join: fn([u8; 2]) -> u16 = match bytes {
        [0xff, 0xfe, ..] => u16::from_le_bytes,
        [0xfe, 0xff, ..] => u16::from_be_bytes,
        _ => return Zeroizing::new(String::from_utf8_lossy(bytes).into_owned()),
    };
    let units = bytes[2..].chunks_exact(2).map(|pair| join([pair[0], pair[1]]));
    let chars = char::decode_utf16(units).map(|c| c.unwrap_or(char::REPLACEMENT_CHARACTER));
    // Room for all of it, so that no part is left behind in memory.
    let mut text = Zeroizing::new(String::with_capacity(bytes.len() * 2));
    text.extend(chars);
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places() {
        let source = Source::new("f", "ab\ncdé f\r\n");
        for (offset, place) in
            [(0, (1, 1)), (2, (1, 3)), (3, (2, 1)), (7, (2, 4)), (10, (2, 7)), (11, (3, 1)), (99, (3, 1))]
        {
            assert_eq!(source.locate(offset), place, "{offset}");
        }
        assert_eq!(Source::new("f", "").locate(0), (1, 1));
    }

    #[test]
    fn texts_of_windows() {
        for (bytes, text) in [
            (&b"ab\xc3\xa9"[..], "abé"),
            (b"\xff\xfea\0b\0\xe9\0\r\0", "abé\r"),
            (b"\xfe\xff\0a\0b\0\xe9\0", "abé"),
            (b"\xff\xfe\x3d\xd8\0\xde", "😀"),
            (b"\xff\xfe\x3d\xd8", "\u{fffd}"),
            (b"\xff\xfe", ""),
            (b"\xff", "\u{fffd}"),
        ] {
            assert_eq!(&*decoded(bytes), text, "{bytes:?}");
        }
    }

    #[test]
    fn missing_and_over_long_files() {
        let error = read(Path::new("/nonexistent/adit.toml")).unwrap_err();
        assert!(error.problem.starts_with("cannot read: "), "{error}");
        let error = read(Path::new("/dev/zero")).unwrap_err();
        assert_eq!(error.problem, "longer than 1024 KiB");
        let error = read_up_to(Path::new("/dev/zero"), 2048).unwrap_err();
        assert_eq!(error.problem, "longer than 2 KiB");
    }
}
