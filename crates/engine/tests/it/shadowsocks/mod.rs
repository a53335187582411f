//! Shadowsocks over loopback: our own ends against each other, against unauthenticated peers, behind plugins, and against the
//! programs that are replaced (`--ignored`; missing ones are named and skipped).

mod answers;
mod bulk;
mod interop;
mod pairs;
mod plugins;
mod relay;
mod support;
mod unauthenticated;
