//! What a stream can be dressed up as, from the model to layers.

use std::io;

use adit_config::model::{ObfsClient, ObfsServer};
use adit_net::rt;
use adit_proto::obfs;
use adit_proto::wire::Layer;

use crate::layer::Front;
use crate::rng::OsRng;

/// A server's disguise, for one connection.
pub(crate) fn server_front(obfs: ObfsServer) -> Front {
    let time = rt::unix_time();
    let disguise: Option<Box<dyn Layer>> = match obfs {
        ObfsServer::Off => None,
        ObfsServer::Http => Some(Box::new(obfs::http::HttpServer::new(time, &mut OsRng))),
        ObfsServer::Tls => {
            let time = u32::try_from(time).unwrap_or(u32::MAX);
            Some(Box::new(obfs::tls::TlsServer::new(time, &mut OsRng)))
        }
    };
    Front::new(disguise)
}

/// A client's disguise, one for the whole process, as a browser has one identity.
#[derive(Debug, Clone)]
pub(crate) enum ClientDisguise {
    Off,
    Http(obfs::http::ClientConfig),
    Tls(Box<str>),
}

impl ClientDisguise {
    /// Draws the identity.
    ///
    /// # Errors
    /// When the host cannot be named.
    pub(crate) fn new(obfs: &ObfsClient) -> io::Result<Self> {
        Ok(match obfs {
            ObfsClient::Off => Self::Off,
            ObfsClient::Http(host) => {
                let config = obfs::http::ClientConfig::new(host, "/", &mut OsRng);
                Self::Http(config.map_err(|error| io::Error::new(io::ErrorKind::InvalidInput, error))?)
            }
            ObfsClient::Tls(host) => Self::Tls(host.clone()),
        })
    }

    /// For one connection.
    pub(crate) fn front(&self) -> Front {
        Front::new(match self {
            Self::Off => None,
            Self::Http(config) => Some(Box::new(obfs::http::HttpClient::new(config, &mut OsRng))),
            Self::Tls(host) => {
                let time = u32::try_from(rt::unix_time()).unwrap_or(u32::MAX);
                Some(Box::new(obfs::tls::TlsClient::new(host, time, &mut OsRng)))
            }
        })
    }
}
