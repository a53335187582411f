//! The formats in which configuration is written: adit's own file ([`adit_toml`]), the flags, files and links of the
//! programs that adit replaces, and the lists that rules refer to ([`rulesets`]).
//!
//! A folder is one format or program, and [`read`] has the readers that they share. A format yields either a
//! [`Loaded`](read::loaded::Loaded) (a configuration and the warnings it gave rise to) or all
//! [`Diagnostics`](adit_model::diagnostic::Diagnostics) at once.

#![forbid(unsafe_code)]

pub mod adit_toml;
pub mod advice;
pub mod clash;
pub mod detect;
pub mod fuzz;
pub mod import;
pub mod kcptun;
pub mod plugins;
pub mod read;
pub mod rulesets;
pub mod shadowsocks;
pub mod shadowsocks_libev;
pub mod shadowsocks_rust;
pub mod shadowsocksr;
pub mod share;
pub mod snell;
pub mod snowflake;

#[cfg(test)]
mod walk;

#[cfg(test)]
mod walk_marks;
