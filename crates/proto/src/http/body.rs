//! Finds the end of a body. The bytes pass as they are. A body in chunks is followed strictly, so nobody behind the
//! proxy finds another end in it.

use thiserror::Error;

/// Longest line in front of a chunk, in bytes.
pub const MAX_CHUNK_LINE: u32 = 4096;
/// Longest trailer section, in bytes.
pub const MAX_TRAILERS_LEN: u32 = 65_536;

/// An error in a body. The connection that it came on is of no use afterwards.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
pub enum BodyError {
    /// A byte that cannot stand there (a line break without CR, a folded line and the like).
    #[error("bad byte in {what}: {byte:#04x}")]
    BadByte {
        /// The part of the body.
        what: &'static str,
        /// The byte.
        byte: u8,
    },
    /// A chunk of 2^64 bytes or more.
    #[error("chunk size does not fit 64 bits")]
    ChunkTooLong,
    /// More than [`MAX_CHUNK_LINE`] or [`MAX_TRAILERS_LEN`] bytes.
    #[error("{0} is too long")]
    TooLong(&'static str),
    /// The connection ended in front of the end of the body.
    #[error("ended inside a body")]
    Truncated,
}

/// The part of a slice that belongs to the message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Framed {
    /// Bytes at its front that are part of the body, to be passed on.
    pub used: usize,
    /// The body is whole; what follows is another message.
    pub complete: bool,
}

/// As [`Framed`], after [`BodyFramer::decode`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Decoded {
    /// Bytes at the front of the slice that were part of the body.
    pub used: usize,
    /// Bytes of content, which have been moved to the front.
    pub len: usize,
    /// The body is whole.
    pub complete: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    Complete,
    Length(u64),
    UntilEnd,
    Chunked(Chunked),
}

/// Position in a body of chunks. `line` counts the bytes of the line or, for trailers, of all of them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Chunked {
    Size { value: u64, line: u32 },
    Padding { value: u64, line: u32 },
    Extension { value: u64, line: u32 },
    SizeLf { value: u64 },
    Data(u64),
    DataCr,
    DataLf,
    TrailerStart { total: u32 },
    TrailerName { total: u32 },
    TrailerValue { total: u32 },
    TrailerLf { total: u32 },
    LastLf,
    End,
}

/// Follows one body.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BodyFramer(State);

impl BodyFramer {
    /// No body.
    pub fn none() -> Self {
        Self(State::Complete)
    }

    /// A body of `len` bytes.
    pub fn length(len: u64) -> Self {
        Self(if len == 0 { State::Complete } else { State::Length(len) })
    }

    /// A body in chunks.
    pub fn chunked() -> Self {
        Self(State::Chunked(Chunked::Size { value: 0, line: 0 }))
    }

    /// A body that ends with the connection.
    pub fn until_end() -> Self {
        Self(State::UntilEnd)
    }

    /// The body is whole.
    pub fn is_complete(&self) -> bool {
        self.0 == State::Complete
    }

    /// The body ends with the connection.
    pub fn is_until_end(&self) -> bool {
        self.0 == State::UntilEnd
    }

    /// Counts in `bytes`, the next that have come. Once the body is complete, nothing is used any more.
    ///
    /// # Errors
    /// [`BodyError`]: bytes in front of the bad one may be passed on or not, it makes no difference.
    pub fn pass(&mut self, bytes: &[u8]) -> Result<Framed, BodyError> {
        let mut used = 0;
        while used < bytes.len() && !self.is_complete() {
            used += self.step(&bytes[used..])?.0;
        }
        Ok(Framed { used, complete: self.is_complete() })
    }

    /// As [`BodyFramer::pass`], but leaves only the content, at the front of `bytes`: for receivers that know no
    /// chunks. Trailers are lost.
    ///
    /// # Errors
    /// As [`BodyFramer::pass`].
    pub fn decode(&mut self, bytes: &mut [u8]) -> Result<Decoded, BodyError> {
        let (mut used, mut len) = (0, 0);
        while used < bytes.len() && !self.is_complete() {
            let (step, content) = self.step(&bytes[used..])?;
            if content {
                bytes.copy_within(used..used + step, len);
                len += step;
            }
            used += step;
        }
        Ok(Decoded { used, len, complete: self.is_complete() })
    }

    /// The connection has ended.
    ///
    /// # Errors
    /// [`BodyError::Truncated`] unless the body was complete, or was to end with the connection.
    pub fn handle_transport_end(&mut self) -> Result<(), BodyError> {
        match self.0 {
            State::Complete => Ok(()),
            State::UntilEnd => {
                self.0 = State::Complete;
                Ok(())
            }
            State::Length(_) | State::Chunked(_) => Err(BodyError::Truncated),
        }
    }

    /// Goes on by one piece of `bytes`, which is not empty: its length, and whether it is content.
    fn step(&mut self, bytes: &[u8]) -> Result<(usize, bool), BodyError> {
        match &mut self.0 {
            State::Complete => Ok((0, false)),
            State::UntilEnd => Ok((bytes.len(), true)),
            State::Length(left) => {
                let len = take(left, bytes);
                if *left == 0 {
                    self.0 = State::Complete;
                }
                Ok((len, true))
            }
            State::Chunked(Chunked::Data(left)) => {
                let len = take(left, bytes);
                if *left == 0 {
                    self.0 = State::Chunked(Chunked::DataCr);
                }
                Ok((len, true))
            }
            State::Chunked(chunked) => {
                *chunked = chunked.next(bytes[0])?;
                if *chunked == Chunked::End {
                    self.0 = State::Complete;
                }
                Ok((1, false))
            }
        }
    }
}

fn take(left: &mut u64, bytes: &[u8]) -> usize {
    let len = usize::try_from(*left).unwrap_or(usize::MAX).min(bytes.len());
    *left -= len as u64;
    len
}

impl Chunked {
    /// The state behind `byte`, which is no data (RFC 9112, section 7.1).
    fn next(self, byte: u8) -> Result<Self, BodyError> {
        match self {
            Self::Size { value, line } => next_in_size(value, line, byte),
            Self::Padding { value, line } => {
                let line = count(line, MAX_CHUNK_LINE, "line of a chunk")?;
                match byte {
                    b' ' | b'\t' => Ok(Self::Padding { value, line }),
                    b';' => Ok(Self::Extension { value, line }),
                    b'\r' => Ok(Self::SizeLf { value }),
                    _ => Err(BodyError::BadByte { what: "chunk size", byte }),
                }
            }
            Self::Extension { value, line } => {
                let line = count(line, MAX_CHUNK_LINE, "line of a chunk")?;
                match byte {
                    b'\r' => Ok(Self::SizeLf { value }),
                    _ if is_text(byte) => Ok(Self::Extension { value, line }),
                    _ => Err(BodyError::BadByte { what: "chunk extension", byte }),
                }
            }
            Self::SizeLf { value: 0 } => line_feed(byte, Self::TrailerStart { total: 0 }),
            Self::SizeLf { value } => line_feed(byte, Self::Data(value)),
            Self::DataCr if byte == b'\r' => Ok(Self::DataLf),
            Self::DataCr => Err(BodyError::BadByte { what: "end of a chunk", byte }),
            Self::DataLf => line_feed(byte, Self::Size { value: 0, line: 0 }),
            Self::TrailerStart { total }
            | Self::TrailerName { total }
            | Self::TrailerValue { total }
            | Self::TrailerLf { total } => {
                self.next_in_trailers(count(total, MAX_TRAILERS_LEN, "trailer section")?, byte)
            }
            Self::LastLf => line_feed(byte, Self::End),
            Self::Data(_) | Self::End => unreachable!("data is counted, and nothing follows the end"),
        }
    }

    fn next_in_trailers(self, total: u32, byte: u8) -> Result<Self, BodyError> {
        match (self, byte) {
            (Self::TrailerStart { .. }, b'\r') => Ok(Self::LastLf),
            (Self::TrailerName { .. }, b':') => Ok(Self::TrailerValue { total }),
            (Self::TrailerStart { .. } | Self::TrailerName { .. }, _) if is_token(byte) => {
                Ok(Self::TrailerName { total })
            }
            (Self::TrailerValue { .. }, b'\r') => Ok(Self::TrailerLf { total }),
            (Self::TrailerValue { .. }, _) if is_text(byte) => Ok(Self::TrailerValue { total }),
            (Self::TrailerLf { .. }, _) => line_feed(byte, Self::TrailerStart { total }),
            _ => Err(BodyError::BadByte { what: "trailer", byte }),
        }
    }
}

fn next_in_size(value: u64, line: u32, byte: u8) -> Result<Chunked, BodyError> {
    let digits = line;
    let line = count(line, MAX_CHUNK_LINE, "line of a chunk")?;
    if let Some(digit) = char::from(byte).to_digit(16) {
        let value = value.checked_mul(16).ok_or(BodyError::ChunkTooLong)? + u64::from(digit);
        return Ok(Chunked::Size { value, line });
    }
    match byte {
        b'\r' if digits > 0 => Ok(Chunked::SizeLf { value }),
        b';' if digits > 0 => Ok(Chunked::Extension { value, line }),
        b' ' | b'\t' if digits > 0 => Ok(Chunked::Padding { value, line }),
        _ => Err(BodyError::BadByte { what: "chunk size", byte }),
    }
}

fn count(len: u32, limit: u32, what: &'static str) -> Result<u32, BodyError> {
    if len < limit { Ok(len + 1) } else { Err(BodyError::TooLong(what)) }
}

fn line_feed(byte: u8, next: Chunked) -> Result<Chunked, BodyError> {
    if byte == b'\n' { Ok(next) } else { Err(BodyError::BadByte { what: "end of a line", byte }) }
}

/// Bytes of values and extensions: no control character but the tab.
fn is_text(byte: u8) -> bool {
    byte == b'\t' || (byte >= b' ' && byte != 0x7f)
}

/// Bytes of names (RFC 9110, section 5.6.2).
fn is_token(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&byte)
}

/// Any body ends at the same byte whole, cut in two and decoded; the first two bytes choose its kind and the cut.
#[doc(hidden)]
pub fn fuzz_http_body(data: &[u8]) {
    let [kind, cut, data @ ..] = data else { return };
    let make = || match kind % 4 {
        0 => BodyFramer::length((*kind).into()),
        1 => BodyFramer::until_end(),
        _ => BodyFramer::chunked(),
    };
    let whole = make().pass(data);
    let mut copy = data.to_vec();
    let decoded = make().decode(&mut copy);
    assert_eq!(decoded.map(|d| Framed { used: d.used, complete: d.complete }), whole, "decoding");
    let (first, second) = data.split_at(usize::from(*cut).min(data.len()));
    let mut framer = make();
    let parts = framer.pass(first).and_then(|head| {
        let tail = framer.pass(second)?;
        Ok(Framed { used: head.used + tail.used, complete: tail.complete })
    });
    assert_eq!(parts, whole, "cut at {}", first.len());
    let mut framer = make();
    let bytes = data.iter().try_fold(0, |used, byte| Ok(used + framer.pass(&[*byte])?.used));
    assert_eq!(bytes, whole.map(|framed| framed.used), "byte by byte");
}
