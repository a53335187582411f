//! From one process to the next, while both run.
//!
//! ```text
//!   old process                                  new process
//!   Hello: version, cores, labels of sockets ──→
//!   Sockets, with descriptors ─────────────────→ adopts them, reads and checks its configuration
//!                                           ←── Prepared
//!   leaves its files (counters, salts, names)
//!   Stores ────────────────────────────────────→ opens them and everything else; accepts nothing yet
//!                                           ←── Ready: the sockets that it has taken
//!   accepts no more, reads no more datagrams
//!   Go: clients of datagrams, salts, names ────→ accepts
//!                                           ←── Serving
//!   tells the service manager, Announced ───────→
//!   lets connections finish; Credits ⇄ Changes until Bye
//! ```
//!
//! Each step has a time limit. When the new process says [`Failed`](wire::SuccessorMessage::Failed), ends or is late at any step before
//! `Serving`, the old one ends it, takes its files and sockets back, and goes on as before. Connections that came meanwhile
//! wait in the queue that both share.

mod draining;
mod giving;
mod taking;
mod wire;

use std::io;

use thiserror::Error;

pub use self::giving::{Giver, HandedOver};
pub use self::taking::Taking;
pub use self::wire::fuzz_handover;

pub(super) use self::draining::DrainingProcess;

/// Why a process does not take over from another.
#[derive(Debug, Error)]
pub enum HandoverError {
    /// A part that cannot be handed over.
    #[error("{0}")]
    Unfit(String),
    /// The other process says why.
    #[error("{0}")]
    Refused(String),
    /// The other process said something else, or nothing at all.
    #[error("{step}")]
    Link {
        /// The step that was waited for.
        step: &'static str,
        /// The error of the link.
        source: io::Error,
    },
    /// A step of this process failed.
    #[error("{step}")]
    Own {
        /// The step.
        step: &'static str,
        /// The system's error.
        source: io::Error,
    },
}

impl HandoverError {
    fn link(step: &'static str) -> impl Fn(io::Error) -> Self {
        move |source| Self::Link { step, source: plain(source) }
    }

    fn own(step: &'static str) -> impl Fn(io::Error) -> Self {
        move |source| Self::Own { step, source }
    }
}

/// The errors of a link in words that say what happened.
fn plain(error: io::Error) -> io::Error {
    use io::ErrorKind::{BrokenPipe, ConnectionReset, TimedOut, UnexpectedEof};
    let kind = error.kind();
    if matches!(kind, UnexpectedEof | BrokenPipe | ConnectionReset) {
        io::Error::new(kind, "the other process has ended")
    } else if kind == TimedOut {
        io::Error::new(kind, "the other process says nothing")
    } else {
        error
    }
}

#[cfg(test)]
mod tests;
