//! Snell in every version that is not the default: among ourselves, against unauthenticated peers, and with sing-box.

mod ends;
mod interop;
mod interop_old;
mod pairs;
mod unauthenticated;

use adit_model::{SnellMode, SnellVersion, SnellVersions};

use crate::common::Setup;

const V6: SnellVersion = SnellVersion::V6(SnellMode::Default);
const UNSHAPED: SnellVersion = SnellVersion::V6(SnellMode::Unshaped);
const RAW: SnellVersion = SnellVersion::V6(SnellMode::UnsafeRaw);

/// A pair of one version.
fn only(version: SnellVersion) -> Setup {
    Setup {
        versions: SnellVersions::Only(version),
        version,
        reuse: version.fixed_reuse().unwrap_or(true),
        ..Setup::default()
    }
}

/// A server that tells versions apart, and a client of one.
fn auto(version: SnellVersion) -> Setup {
    Setup { versions: SnellVersions::Auto, ..only(version) }
}
