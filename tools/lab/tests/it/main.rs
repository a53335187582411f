//! Measures and checks against floors, with tiny sizes; the emulated links, which enter a network of their own, have a program
//! beside it.

#![allow(clippy::unwrap_used, reason = "helpers of tests are tests")]
#![allow(clippy::disallowed_methods, reason = "tests look at real time")]

mod datagrams;
mod floors;
