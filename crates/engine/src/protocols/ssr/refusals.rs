//! The likely causes of refusals, for the log and for counters.

use std::fmt;

use adit_proto::goquiet::NotOurs;
use adit_proto::ssr::Refusal;
use adit_proto::wire::WireError;

use crate::log_throttle::skew;

/// The likely cause of a refusal.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Cause {
    /// Protocol, cipher or obfs say so.
    Refused(Refusal),
    /// GoQuiet says so.
    Quiet(NotOurs),
    /// Bytes behind a good beginning are wrong.
    Wire(WireError),
    /// Its bytes ended, or stayed away, in the middle of its header.
    Cut,
}

impl fmt::Display for Cause {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Refused(Refusal::Clock { offset_s, window_s }) => {
                f.write_str(&skew("the client's", *offset_s, *window_s))
            }
            Self::Refused(refusal) => refusal.fmt(f),
            Self::Quiet(reason) => reason.fmt(f),
            Self::Wire(error) => error.fmt(f),
            Self::Cut => f.write_str(
                "its bytes ended before the header was complete: another protocol or obfs, a broken connection, or a probe",
            ),
        }
    }
}

impl Cause {
    /// The same for counters.
    pub(crate) fn error(&self) -> WireError {
        match self {
            Self::Refused(refusal) => (*refusal).into(),
            Self::Quiet(NotOurs::Replay) => WireError::Replayed { what: "client hello" },
            Self::Quiet(NotOurs::NoProof) => WireError::Authentication { what: "client hello" },
            Self::Quiet(NotOurs::NotTls | NotOurs::Broken) => {
                WireError::Malformed { what: "client hello", got: 0 }
            }
            Self::Wire(error) => error.clone(),
            Self::Cut => WireError::Truncated { what: "header" },
        }
    }
}
