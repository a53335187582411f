//! Obfuscation around a stream: from the model to layers.

use std::io;

use adit_model::{ObfsClient, ObfsServer};
use adit_net::rt;
use adit_proto::obfs;
use adit_proto::wire::Layer;

use crate::relay::Outer;
use crate::rng::OsRng;

/// The server side of one connection's obfuscation.
pub(crate) fn server_outer(obfs: ObfsServer) -> Outer {
    Outer::default().with(server_layer(obfs))
}

/// The same as a layer of its own; `None` for [`ObfsServer::Off`].
pub(crate) fn server_layer(obfs: ObfsServer) -> Option<Box<dyn Layer>> {
    let time = rt::unix_time();
    match obfs {
        ObfsServer::Off => None,
        ObfsServer::Http => Some(Box::new(obfs::http::HttpObfsServer::new(time, &mut OsRng))),
        ObfsServer::Tls => {
            let time = u32::try_from(time).unwrap_or(u32::MAX);
            Some(Box::new(obfs::tls::TlsObfsServer::new(time, &mut OsRng)))
        }
    }
}

/// The client side. The whole process has one identity, as a browser has.
#[derive(Debug, Clone)]
pub(crate) enum ClientObfs {
    Off,
    Http(obfs::http::HttpObfsConfig),
    Tls(Box<str>),
}

impl ClientObfs {
    /// Draws the identity.
    ///
    /// # Errors
    /// When the host name is not valid.
    pub(crate) fn new(obfs: &ObfsClient) -> io::Result<Self> {
        Ok(match obfs {
            ObfsClient::Off => Self::Off,
            ObfsClient::Http(host) => {
                let config = obfs::http::HttpObfsConfig::new(host, "/", &mut OsRng);
                Self::Http(config.map_err(|error| io::Error::new(io::ErrorKind::InvalidInput, error))?)
            }
            ObfsClient::Tls(host) => Self::Tls(host.clone()),
        })
    }

    /// The layers of one connection.
    pub(crate) fn outer(&self) -> Outer {
        Outer::default().with(self.layer())
    }

    /// The same as a layer of its own; `None` for [`ClientObfs::Off`].
    pub(crate) fn layer(&self) -> Option<Box<dyn Layer>> {
        match self {
            Self::Off => None,
            Self::Http(config) => Some(Box::new(obfs::http::HttpObfsClient::new(config, &mut OsRng))),
            Self::Tls(host) => {
                let time = u32::try_from(rt::unix_time()).unwrap_or(u32::MAX);
                Some(Box::new(obfs::tls::TlsObfsClient::new(host, time, &mut OsRng)))
            }
        }
    }
}
