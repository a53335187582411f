//! The two messages by which a data channel is opened (RFC 8832).

use crate::wire::WireError;

const OPEN: u8 = 3;
const ACK: u8 = 2;
/// Length of an open message without its label and protocol.
const OPEN_LEN: usize = 12;

/// Answer to an open message.
pub(super) const ACK_MESSAGE: [u8; 1] = [ACK];

/// The request for an ordered and reliable channel.
pub(super) fn open_message(label: &str) -> Vec<u8> {
    let len = u16::try_from(label.len()).expect("labels are short");
    // Type, reliable and ordered, priority, reliability parameter, lengths of label and protocol.
    let mut out = vec![OPEN, 0, 0, 0, 0, 0, 0, 0];
    out.extend(len.to_be_bytes());
    out.extend([0, 0]);
    out.extend(label.as_bytes());
    out
}

/// Message of a peer on the way to an open channel.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Control {
    /// It asks for a channel with this label.
    Open(String),
    /// It has taken ours.
    Ack,
}

impl Control {
    pub(super) fn parse(bytes: &[u8]) -> Result<Self, WireError> {
        let bad = |got: usize| WireError::Malformed { what: "data channel message", got: got as u64 };
        match bytes.first() {
            Some(&ACK) => Ok(Self::Ack),
            Some(&OPEN) => {
                let (head, names) = bytes.split_at_checked(OPEN_LEN).ok_or_else(|| bad(bytes.len()))?;
                let label = usize::from(u16::from_be_bytes([head[8], head[9]]));
                let label = names.get(..label).ok_or_else(|| bad(label))?;
                Ok(Self::Open(String::from_utf8_lossy(label).into_owned()))
            }
            other => Err(bad(other.copied().unwrap_or_default().into())),
        }
    }
}

/// Any bytes: a label is no longer than its message, but for characters that stand for broken ones.
#[doc(hidden)]
pub fn fuzz_dcep(data: &[u8]) {
    if let Ok(Control::Open(label)) = Control::parse(data) {
        assert!(label.len() <= 3 * data.len());
    }
}
