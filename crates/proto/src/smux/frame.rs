use crate::wire::WireError;

/// Length of a frame's header, in bytes.
pub const FRAME_HEADER_LEN: usize = 8;

/// Length of the payload of UPD, in bytes.
pub(super) const UPDATE_LEN: usize = 8;

/// Version of the protocol: both ends must agree.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum SmuxVersion {
    /// Without windows per stream.
    V1,
    /// With them.
    V2,
}

impl SmuxVersion {
    fn number(self) -> u8 {
        match self {
            Self::V1 => 1,
            Self::V2 => 2,
        }
    }
}

/// Command of a frame.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SmuxCommand {
    /// Opens a stream.
    Syn,
    /// Its sender will send no more.
    Fin,
    /// Data.
    Psh,
    /// Nothing but a sign of life.
    Nop,
    /// Version 2: bytes consumed, and the window.
    Upd,
}

impl SmuxCommand {
    pub(super) const ALL: [Self; 5] = [Self::Syn, Self::Fin, Self::Psh, Self::Nop, Self::Upd];

    fn number(self) -> u8 {
        self as u8
    }
}

/// The header of a frame.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SmuxHeader {
    /// Its command.
    pub command: SmuxCommand,
    /// Length of the payload that follows.
    pub len: u16,
    /// The stream; 0 for NOP.
    pub stream: u32,
}

impl SmuxHeader {
    /// Reads a header.
    ///
    /// # Errors
    /// [`WireError::Malformed`] for another version, a command that does not exist, UPD in version 1, and lengths that
    /// the command does not have (as smux since 1.5.56).
    pub fn parse(bytes: [u8; FRAME_HEADER_LEN], version: SmuxVersion) -> Result<Self, WireError> {
        let [got, command, len_low, len_high, stream @ ..] = bytes;
        if got != version.number() {
            return Err(WireError::Malformed { what: "smux version", got: got.into() });
        }
        let known = SmuxCommand::ALL.get(usize::from(command)).copied();
        let Some(command) = known.filter(|known| *known != SmuxCommand::Upd || version == SmuxVersion::V2)
        else {
            return Err(WireError::Malformed { what: "smux command", got: command.into() });
        };
        let len = u16::from_le_bytes([len_low, len_high]);
        let legal = match command {
            SmuxCommand::Psh => true,
            SmuxCommand::Upd => usize::from(len) == UPDATE_LEN,
            SmuxCommand::Syn | SmuxCommand::Fin | SmuxCommand::Nop => len == 0,
        };
        if !legal {
            return Err(WireError::Malformed { what: "smux frame length", got: len.into() });
        }
        Ok(Self { command, len, stream: u32::from_le_bytes(stream) })
    }

    /// Appends the header to `out`.
    pub fn emit(&self, version: SmuxVersion, out: &mut Vec<u8>) {
        out.extend([version.number(), self.command.number()]);
        out.extend(self.len.to_le_bytes());
        out.extend(self.stream.to_le_bytes());
    }
}
