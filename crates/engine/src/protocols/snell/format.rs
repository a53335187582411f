//! From the versions of the model to those of the protocol.

use std::sync::Arc;

use adit_model::{SnellMode, SnellVersion, SnellVersions};
use adit_proto::snell::{Accepts, Format, Profile, SnellPsk};

use crate::rng::OsRng;

/// The wire format of a client of `version`. The shape of version 6 is derived here, once for all connections.
pub(crate) fn format(version: SnellVersion, psk: &SnellPsk) -> Format {
    match version {
        SnellVersion::V1 => Format::V1,
        SnellVersion::V2 | SnellVersion::V3 => Format::V2,
        SnellVersion::V4 | SnellVersion::V5 => Format::V4,
        SnellVersion::V6(SnellMode::Default) => Format::Shaped(profile(psk)),
        SnellVersion::V6(SnellMode::Unshaped) => Format::Unshaped,
        SnellVersion::V6(SnellMode::UnsafeRaw) => Format::UnsafeRaw,
    }
}

/// The wire formats that a server of `versions` takes.
pub(crate) fn accepts(versions: SnellVersions, psk: &SnellPsk) -> Accepts {
    match versions {
        SnellVersions::Only(version) => Accepts::Only(format(version, psk)),
        SnellVersions::Auto => Accepts::Any(profile(psk)),
    }
}

fn profile(psk: &SnellPsk) -> Arc<Profile> {
    Arc::new(Profile::new(psk, &mut OsRng))
}
