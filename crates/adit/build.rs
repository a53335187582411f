//! Tells the program the profile that it is built with.

use std::ffi::OsStr;
use std::path::Path;

/// The profiles of the workspace, by the folders that cargo gives them.
const FOLDERS: [&str; 5] = ["debug", "release", "dist", "small", "long"];

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    // target/[TRIPLE/]FOLDER/build/adit-HASH/out
    let out = std::env::var_os("OUT_DIR").unwrap_or_default();
    let mut parents = Path::new(&out).ancestors().filter_map(Path::file_name).filter_map(OsStr::to_str);
    let folder = parents.find(|name| FOLDERS.contains(name)).unwrap_or("unknown");
    let profile = if folder == "debug" { "dev" } else { folder };
    println!("cargo::rustc-env=ADIT_PROFILE={profile}");
}
