use super::HeadError;

/// Longest head, in bytes, empty lines around it included.
pub const MAX_HEAD_LEN: usize = 65_536;
/// Most fields of a head. Browsers send about 20.
pub const MAX_FIELDS: usize = 128;

/// Finds the end of a head in a growing buffer and looks at no byte twice, however it arrives.
#[derive(Debug, Default)]
pub struct HeadScanner {
    /// Empty lines in front of the head, in bytes (RFC 9112, section 2.2: to be ignored).
    begin: usize,
    /// No blank line begins in front of this offset.
    scanned: usize,
}

impl HeadScanner {
    /// A scanner at the front of a message.
    pub fn new() -> Self {
        Self::default()
    }

    /// The length of the head at the front of `unread`, blank line included, or `None` if its end is still to
    /// come. `unread` always begins at the same byte. After a find the scanner is ready for the next message.
    ///
    /// # Errors
    /// [`HeadError::TooLong`] if [`MAX_HEAD_LEN`] bytes hold no end.
    pub fn scan(&mut self, unread: &[u8]) -> Result<Option<usize>, HeadError> {
        let window = &unread[..unread.len().min(MAX_HEAD_LEN)];
        let blank = window[self.begin..].iter().take_while(|byte| matches!(byte, b'\r' | b'\n')).count();
        if self.scanned <= self.begin {
            self.begin += blank;
            self.scanned = self.begin;
        }
        while let Some(offset) = window[self.scanned..].iter().position(|&byte| byte == b'\n') {
            let at = self.scanned + offset;
            let len = match &window[at + 1..] {
                [b'\n', ..] => at + 2,
                [b'\r', b'\n', ..] => at + 3,
                [] | [b'\r'] => {
                    self.scanned = at;
                    return self.not_yet(window.len());
                }
                _ => {
                    self.scanned = at + 1;
                    continue;
                }
            };
            *self = Self::default();
            return Ok(Some(len));
        }
        self.scanned = window.len();
        self.not_yet(window.len())
    }

    /// True if nothing but empty lines has come: the connection is idle, no request has begun.
    pub fn is_idle(&self) -> bool {
        self.scanned == self.begin
    }

    fn not_yet(&self, len: usize) -> Result<Option<usize>, HeadError> {
        if len == MAX_HEAD_LEN { Err(HeadError::TooLong) } else { Ok(None) }
    }
}
