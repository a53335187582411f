//! The obfs of a client on its way in: an exchange of its own in front of the stream, then a layer.

use adit_proto::buf::RecvBuf;
use adit_proto::wire::Layer;
use adit_proto::{goquiet, ssr::obfs};

use super::refusals::Cause;
use crate::rng::OsRng;

/// State of the obfs that all connections share.
#[derive(Debug)]
pub(super) enum AcceptedObfsConfig {
    Obfs(obfs::SsrObfsServerConfig),
    Quiet(goquiet::GoQuietServerConfig),
}

/// The obfs of one connection.
pub(super) enum AcceptedObfs {
    Obfs(obfs::SsrObfsServer),
    Quiet(Box<goquiet::GoQuietServerStream>),
}

impl AcceptedObfsConfig {
    /// A connection that is accepted at `unix_s`.
    pub(super) fn accept(&self, unix_s: u64) -> AcceptedObfs {
        match self {
            Self::Obfs(config) => AcceptedObfs::Obfs(obfs::SsrObfsServer::new(config, unix_s, &mut OsRng)),
            Self::Quiet(config) => {
                AcceptedObfs::Quiet(Box::new(goquiet::GoQuietServerStream::new(config, unix_s, &mut OsRng)))
            }
        }
    }
}

impl AcceptedObfs {
    /// Goes on with the exchange; `out` is to be sent at once. True once the stream can begin.
    pub(super) fn handshake(&mut self, wire: &mut RecvBuf, out: &mut Vec<u8>) -> Result<bool, Cause> {
        match self {
            Self::Obfs(obfs) => {
                let shake = obfs.handshake(wire, out).map_err(Cause::Refused)?;
                Ok(shake == obfs::SsrHandshake::Done)
            }
            Self::Quiet(quiet) => {
                let shake = quiet.handshake(wire, out).map_err(Cause::Quiet)?;
                Ok(shake == goquiet::GoQuietHandshake::Done)
            }
        }
    }

    /// The layer that is left of it.
    pub(super) fn into_layer(self) -> Box<dyn Layer> {
        match self {
            Self::Obfs(obfs) => Box::new(obfs),
            Self::Quiet(quiet) => quiet,
        }
    }
}
