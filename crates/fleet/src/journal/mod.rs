//! The journal of bytes between the accounts of this node and its panels: each byte reaches a panel once, or is shown as
//! in doubt.
//!
//! ```text
//!   account --(state file)--> total --seal--> pending --batch--> batch --sent--> done
//!                                                ^                  |--not applied (stays)
//!                                                |                  '--in doubt --(a person)--> pending | dropped
//! ```
//!
//! A batch is in the file before its request is made, and the file says `sent` before the first byte of the request
//! leaves. A start that finds `sent` puts the batch in doubt. Totals are those of the state file on disk, which is written
//! before anything is sealed: a kill never takes back bytes that are sealed.

mod archive;
mod book;
mod file;
#[cfg(test)]
mod tests;

pub use self::archive::{Archive, KEPT_DAYS};
pub use self::book::{
    BUCKET_S, Batch, Book, Decision, JournalEvent, MOST_ROWS, Rows, State, Verdict, add, sum,
};
pub use self::file::{Journal, JournalError, Opened, fuzz_journal};
