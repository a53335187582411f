use crate::wire::WireError;

/// Length of a segment's header, in bytes.
pub const SEGMENT_HEADER_LEN: usize = 24;

/// Data.
pub(super) const PUSH: u8 = 81;
/// Says that one segment has been received.
pub(super) const ACK: u8 = 82;
/// Asks for the window.
pub(super) const ASK: u8 = 83;
/// Tells the window.
pub(super) const TELL: u8 = 84;

/// A segment, read or to be written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ArqSegment<'a> {
    /// Conversation.
    pub conv: u32,
    /// Command: 81 PUSH, 82 ACK, 83 WASK, 84 WINS.
    pub cmd: u8,
    /// Fragments still to come. Nothing here sends other than 0.
    pub frg: u8,
    /// Free receive window of the sender, in segments.
    pub wnd: u16,
    /// Clock of the sender of the data, in milliseconds.
    pub ts: u32,
    /// Number of the segment that is carried or acknowledged.
    pub sn: u32,
    /// Everything below has been received.
    pub una: u32,
    /// Payload of a PUSH.
    pub data: &'a [u8],
}

impl<'a> ArqSegment<'a> {
    /// The segment at the start of `bytes`, and what follows it.
    ///
    /// # Errors
    /// [`WireError::Truncated`], and [`WireError::Malformed`] for commands that do not exist.
    pub fn parse(bytes: &'a [u8]) -> Result<(Self, &'a [u8]), WireError> {
        const CUT: WireError = WireError::Truncated { what: "kcp segment" };
        let Some((header, rest)) = bytes.split_first_chunk::<SEGMENT_HEADER_LEN>() else { return Err(CUT) };
        let word =
            |at: usize| u32::from_le_bytes([header[at], header[at + 1], header[at + 2], header[at + 3]]);
        let Some((data, rest)) = rest.split_at_checked(word(20) as usize) else { return Err(CUT) };
        let [cmd, frg, wnd_low, wnd_high] = word(4).to_le_bytes();
        if !(PUSH..=TELL).contains(&cmd) {
            return Err(WireError::Malformed { what: "kcp command", got: cmd.into() });
        }
        let wnd = u16::from_le_bytes([wnd_low, wnd_high]);
        Ok((Self { conv: word(0), cmd, frg, wnd, ts: word(8), sn: word(12), una: word(16), data }, rest))
    }

    /// Appends the segment to `out`.
    ///
    /// # Panics
    /// If the payload is longer than the field can tell.
    pub fn emit(&self, out: &mut Vec<u8>) {
        out.extend(self.conv.to_le_bytes());
        out.extend([self.cmd, self.frg]);
        out.extend(self.wnd.to_le_bytes());
        let len = u32::try_from(self.data.len()).expect("segments fit datagrams");
        for word in [self.ts, self.sn, self.una, len] {
            out.extend(word.to_le_bytes());
        }
        out.extend(self.data);
    }
}

/// `a` lies before `b` on the circle of 32 bits.
pub(super) fn before(a: u32, b: u32) -> bool {
    a.wrapping_sub(b).cast_signed() < 0
}
