//! The one place where sockets are opened: [`listen`], [`accept`], [`dial`], [`query`], [`udp`], [`web`], [`notify`] and
//! [`messages`]; where they come from another process: [`handover`]; and where children are started: [`plugin`],
//! [`tool`] and [`guard`], all with the environment that `child` gives them.
//!
//! Everything here runs on a single-threaded runtime, one per core; its futures need not be `Send`.
//!
//! Linux comes first. Modules that are about facilities of Linux or Unix are missing elsewhere, and on Windows those of
//! `windows/` stand in for some: they fail with [`std::io::ErrorKind::Unsupported`].

#![forbid(unsafe_code)]
#![allow(clippy::disallowed_methods, reason = "clocks are read and sockets are opened here, and only here")]

pub mod accept;
pub mod acme;
#[cfg(unix)]
pub mod background;
pub mod call;
pub mod clock;
pub mod dial;
pub mod fetch;
pub mod files;
pub mod guard;
pub mod handover;
pub mod https;
pub mod listen;
#[cfg(unix)]
pub mod messages;
#[cfg(target_os = "linux")]
pub mod netlink;
#[cfg(unix)]
pub mod notify;
pub mod options;
pub mod pace;
#[cfg(target_os = "linux")]
pub mod ping;
pub mod plugin;
pub mod post;
pub mod probe;
pub mod program;
pub mod query;
pub mod race;
pub mod reach;
pub mod resolve;
pub mod rt;
#[cfg(target_os = "linux")]
pub mod rtc;
pub mod service;
pub mod steer;
#[cfg(unix)]
pub mod syslog;
pub mod tls;
pub mod tls_own;
pub mod tls_server;
pub mod tool;
#[cfg(target_os = "linux")]
pub mod tun;
#[cfg(target_os = "linux")]
pub mod udp;
pub mod usage;
pub mod web;
pub mod websocket;

mod child;
mod egress;
mod holder;
mod http_server;
mod seats;
#[cfg_attr(windows, path = "windows/unix.rs")]
mod unix;
mod wire;

#[cfg(test)]
mod testing;

pub use seats::{ConnectionSeat, share};

pub use egress::{check_mark, common_mark, set_common_mark};

pub use adit_sys::clock::local_time;
pub use adit_sys::lock::try_lock;
pub use adit_sys::process::{effective_uid, run_behind, wait_for_parent, write_no_core_files};
pub use adit_sys::user::User;

/// The number of the user of this name; see [`User`].
///
/// # Errors
/// `NotFound`, and what the user database reports.
pub fn uid_of(name: &str) -> std::io::Result<u32> {
    User::find(name).map(|user| user.uid())
}

/// The number of the group of this name.
///
/// # Errors
/// `NotFound`, and what the group database reports.
pub fn gid_of(name: &str) -> std::io::Result<u32> {
    adit_sys::user::find_group(name)
}

/// Makes a static program look names and users up by itself; see [`adit_sys::names::pin_services`].
pub fn pin_name_services() {
    adit_sys::names::pin_services();
}

/// Keeps large blocks out of the heap, where the allocator can; see [`adit_sys::alloc::keep_large_blocks_apart`].
pub fn keep_large_blocks_apart() {
    adit_sys::alloc::keep_large_blocks_apart();
}

/// Gives freed memory back to the system, where the allocator can; see [`adit_sys::alloc::trim_heap`].
pub fn trim_heap() {
    adit_sys::alloc::trim_heap();
}

/// Soft and hard limit of open descriptors; see [`adit_sys::process::fd_limit`].
///
/// # Errors
/// The error that the system reports.
pub fn fd_limit() -> std::io::Result<(u64, u64)> {
    adit_sys::process::fd_limit()
}

/// Raises the limit of open descriptors as far as the system allows; see [`adit_sys::process::raise_fd_limit`].
///
/// # Errors
/// The system's error.
pub fn raise_fd_limit() -> std::io::Result<(u64, u64)> {
    adit_sys::process::raise_fd_limit()
}
