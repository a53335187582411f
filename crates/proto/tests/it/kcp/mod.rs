//! KCP and what rides on it: recorded sessions, and whole stacks face to face over simulated links.

mod cubic;
mod goodput;
mod sessions;
mod sim;
mod stack;
