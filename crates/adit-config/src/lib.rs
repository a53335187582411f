//! Configuration: one typed [`model`], and the dialects that translate other programs' flags, files and links to
//! and from it.
//!
//! Everything here works on texts; only [`files`] opens files. A dialect yields either
//! a [`dialect::Loaded`] (a configuration and the warnings it gave rise to) or all [`diagnostic::Diagnostics`] at
//! once.

#![forbid(unsafe_code)]

pub mod advice;
pub mod codes;
pub mod diagnostic;
pub mod dialect;
pub mod files;
pub mod map;
pub mod model;
pub mod set;
pub mod shown;
pub mod source;
