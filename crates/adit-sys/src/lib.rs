//! The one crate that may say `unsafe`: small safe wrappers around system calls that neither the standard library
//! nor `socket2` offers.
//!
//! Linux comes first. On other Unix systems a function whose facility is missing returns
//! [`std::io::ErrorKind::Unsupported`], or does nothing where its documentation says so.

#![allow(unsafe_code, reason = "this crate exists to hold it")]

pub mod alloc;
pub mod clock;
#[cfg(target_os = "linux")]
pub mod diag;
pub mod lock;
#[cfg(target_os = "linux")]
pub mod netlink;
#[cfg(target_os = "linux")]
pub mod packet;
pub mod pass;
pub mod process;
pub mod rate;
#[cfg(target_os = "linux")]
pub mod raw;
#[cfg(target_os = "linux")]
pub mod route;
pub mod tcp;
pub mod timer;
#[cfg(target_os = "linux")]
pub mod tun;
#[cfg(target_os = "linux")]
pub mod udp;
pub mod user;

pub use alloc::CountingAlloc;
