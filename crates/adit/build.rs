//! Has the linker keep one of all functions that came out the same: 70 KB of a limit of 8,000,000 bytes.
//!
//! Only lld knows how, and rustc links with its own lld on one target alone, from 1.90 on. Everywhere else, and wherever
//! somebody has chosen a linker, the program is what it was, only larger. Nothing compares the addresses of functions.

#![forbid(unsafe_code)]

use std::env;
use std::path::Path;
use std::process::Command;

const TARGET: &str = "x86_64-unknown-linux-gnu";

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    if is_release() && is_default_linker() && has_lld().unwrap_or(false) {
        println!("cargo::rustc-link-arg-bins=-Wl,--icf=all");
    }
}

fn is_release() -> bool {
    env::var("PROFILE").is_ok_and(|profile| profile == "release")
}

fn is_default_linker() -> bool {
    let flags = env::var("CARGO_ENCODED_RUSTFLAGS").unwrap_or_default();
    env::var("TARGET").is_ok_and(|target| target == TARGET)
        && env::var_os("RUSTC_LINKER").is_none()
        && !["linker", "link-self-contained", "fuse-ld"].iter().any(|word| flags.contains(word))
}

/// Whether rustc comes with a linker of its own, and uses it.
fn has_lld() -> Option<bool> {
    let rustc = env::var_os("RUSTC")?;
    let ask = |word: &[&str]| {
        let out = Command::new(&rustc).args(word).output().ok()?;
        String::from_utf8(out.stdout).ok()
    };
    let version = ask(&["--version"])?;
    let minor = version.split('.').nth(1)?.parse::<u32>().ok()?;
    let sysroot = ask(&["--print", "sysroot"])?;
    let lld = Path::new(sysroot.trim_end()).join("lib/rustlib").join(TARGET).join("bin/gcc-ld/ld.lld");
    Some(minor >= 90 && lld.is_file())
}
