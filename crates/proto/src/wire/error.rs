use thiserror::Error;

/// An error in bytes that came from a peer.
///
/// The reaction (drain, reset, stay silent) is policy and does not belong here.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum WireError {
    /// A sealed part did not open under the expected key.
    #[error("authentication failed: {what}")]
    Authentication {
        /// The part, for instance "frame header".
        what: &'static str,
    },
    /// A field holds a value that the format forbids.
    #[error("bad {what}: {got}")]
    Malformed {
        /// The field.
        what: &'static str,
        /// The value found.
        got: u64,
    },
    /// The peer asks for something legal that this end does not do.
    #[error("unsupported {what}: {got}")]
    Unsupported {
        /// The kind of thing, for instance "command".
        what: &'static str,
        /// The value found.
        got: u64,
    },
    /// The stream ended inside a unit that must be whole.
    #[error("ended inside {what}")]
    Truncated {
        /// The unit that was cut.
        what: &'static str,
    },
    /// A salt or nonce that has been seen before.
    #[error("repeated {what}")]
    Replayed {
        /// The value that repeated.
        what: &'static str,
    },
    /// The sender's clock lies outside the accepted window.
    #[error("sender's clock is {offset_s} s ahead of ours, more than {window_s} s are not accepted")]
    Clock {
        /// Sender's time minus ours, in seconds; negative when the sender is behind.
        offset_s: i64,
        /// The accepted distance in seconds.
        window_s: u32,
    },
    /// The far end answered with an error of its own; it is shown, never interpreted.
    #[error("far end: {message} (code {code})")]
    Remote {
        /// The code as sent, for instance an errno of the far end's platform.
        code: u8,
        /// The text as sent, made printable and bounded by the parser.
        message: Box<str>,
    },
    /// A counter that must not repeat has run out.
    #[error("{what} exhausted")]
    Exhausted {
        /// The counter.
        what: &'static str,
    },
}
