//! The one crate that may say `unsafe`: small safe wrappers around system calls that neither the standard library
//! nor `socket2` offers.
//!
//! Linux comes first. On other systems a function whose facility is missing returns
//! [`std::io::ErrorKind::Unsupported`], or does nothing where its documentation says so. On Windows the modules of
//! `windows/` stand in for those that are about Unix processes and users.

#![allow(unsafe_code, reason = "this crate exists to hold it")]

pub mod alloc;
#[cfg_attr(windows, path = "windows/clock.rs")]
pub mod clock;
#[cfg(target_os = "linux")]
pub mod diag;
pub mod handle;
#[cfg_attr(windows, path = "windows/lock.rs")]
pub mod lock;
pub mod names;
#[cfg(target_os = "linux")]
pub mod netlink;
#[cfg(target_os = "linux")]
pub mod packet;
#[cfg(unix)]
pub mod pass;
#[cfg(target_os = "linux")]
pub mod pipe;
#[cfg_attr(windows, path = "windows/process.rs")]
pub mod process;
pub mod rate;
#[cfg(target_os = "linux")]
pub mod raw;
#[cfg(target_os = "linux")]
pub mod route;
pub mod tcp;
#[cfg_attr(windows, path = "windows/timer.rs")]
pub mod timer;
#[cfg(target_os = "linux")]
pub mod tun;
#[cfg(target_os = "linux")]
pub mod udp;
#[cfg_attr(windows, path = "windows/user.rs")]
pub mod user;

pub use alloc::CountingAlloc;
