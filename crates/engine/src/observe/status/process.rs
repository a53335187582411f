//! The process as the machine sees it, in the snapshot.

use std::fmt;
use std::sync::OnceLock;

use adit_net::usage;
use serde::{Deserialize, Serialize};

/// The use that the process makes of the machine, and its build.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct ProcessStatus {
    /// Commit that it was built from, if the build said so.
    pub revision: String,
    /// System that it was built for.
    pub target: String,
    /// Processor time in microseconds.
    pub processor_us: u64,
    /// Bytes of memory that it holds; 0 where the system does not say.
    pub resident_bytes: u64,
    /// Bytes of memory that the accounts of users take.
    pub users_bytes: u64,
    /// Bytes of memory that fingerprints of salts take.
    pub salts_bytes: u64,
    /// Connections that are left of a drain, while there is one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub drain_remaining: Option<u64>,
    /// Time in microseconds by which the source of the machine's time is ahead of its clock, where the kernel says.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub kernel_offset_us: Option<i64>,
    /// Errors that the log tells of, by code.
    pub log_errors: Vec<(String, u64)>,
}

/// The commit of the build.
const REVISION: Option<&str> = option_env!("ADIT_REVISION");
/// The triple of the build.
const TARGET: Option<&str> = option_env!("ADIT_TARGET");

impl ProcessStatus {
    /// As of this moment, without what others have to say.
    pub(super) fn now() -> Self {
        Self {
            revision: REVISION.unwrap_or("unknown").into(),
            target: TARGET.map_or_else(target, Into::into),
            processor_us: u64::try_from(usage::processor_time().as_micros()).unwrap_or(u64::MAX),
            resident_bytes: usage::resident(),
            kernel_offset_us: usage::kernel_offset_us(),
            ..Self::default()
        }
    }
}

/// The system as the compiler names its parts.
fn target() -> String {
    let libc = match () {
        () if cfg!(target_env = "gnu") => "-gnu",
        () if cfg!(target_env = "musl") => "-musl",
        () => "",
    };
    format!("{}-{}{libc}", std::env::consts::ARCH, std::env::consts::OS)
}

/// Tells the errors of the log by code.
type Teller = Box<dyn Fn() -> Vec<(&'static str, u64)> + Send + Sync>;

/// The one who tells, once somebody does.
#[derive(Default)]
pub(crate) struct LogView(OnceLock<Teller>);

impl LogView {
    /// Has `teller` tell from now on; the first one stays.
    pub(crate) fn set(&self, teller: Teller) {
        drop(self.0.set(teller));
    }

    pub(super) fn errors(&self) -> Vec<(String, u64)> {
        let all = self.0.get().map(|teller| teller()).unwrap_or_default();
        all.into_iter().map(|(code, count)| (code.to_owned(), count)).collect()
    }
}

impl fmt::Debug for LogView {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("LogView").field(&self.0.get().is_some()).finish()
    }
}
