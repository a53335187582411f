//! KCP and what rides on it: recorded sessions, and whole stacks face to face over simulated links.

#![expect(clippy::unwrap_used, reason = "in a test this is the assertion")]

mod cubic;
mod goodput;
mod sessions;
mod sim;
mod stack;
