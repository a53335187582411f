//! An obfs alone around a stream: no cipher, no addresses. This is how plugins of Shadowsocks connect their two ends.

use adit_proto::goquiet::{self, Browser};
use adit_proto::ssr::obfs::{self, SessionId};
use adit_proto::ssr::{Obfs, SsrKey, SsrMethod};
use adit_proto::wire::{Rng, Target};
use thiserror::Error;

use crate::{ObfsClient, ObfsServer, Redirect, Secret};

/// A server side: takes the obfs off each stream and passes the stream to one target.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ObfsInbound {
    /// The target of all streams.
    pub target: Target,
    /// The obfs that clients use.
    pub layer: ObfsServerLayer,
    /// Fallback servers: one of them gets the connection of each other client, with every byte that it sent. Empty for none.
    pub redirect: Vec<Redirect>,
}

/// The obfs of a server side.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ObfsServerLayer {
    /// That of simple-obfs; never [`ObfsServer::Off`].
    Simple(ObfsServer),
    /// GoQuiet, with its key.
    GoQuiet(Secret),
}

/// A client side: connects to a server and puts the obfs around the stream, for any target that is asked for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ObfsOutbound {
    servers: Vec<Target>,
    layer: ObfsClientLayer,
}

impl ObfsOutbound {
    /// A client of `servers`. Each connection takes one of them at random.
    ///
    /// # Errors
    /// No server, or a parameter that the obfs cannot show.
    pub fn new(servers: Vec<Target>, layer: ObfsClientLayer) -> Result<Self, ObfsError> {
        if servers.is_empty() {
            return Err(ObfsError { obfs: "any", why: "no server".to_owned() });
        }
        for server in &servers {
            layer.config(server, &mut Zeros)?;
        }
        Ok(Self { servers, layer })
    }

    /// The servers, at least one.
    pub fn servers(&self) -> &[Target] {
        &self.servers
    }

    /// The obfs that the servers expect.
    pub fn layer(&self) -> &ObfsClientLayer {
        &self.layer
    }
}

/// For checks alone.
struct Zeros;

impl Rng for Zeros {
    fn fill(&mut self, out: &mut [u8]) {
        out.fill(0);
    }
}

/// The obfs of a client side.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ObfsClientLayer {
    /// That of simple-obfs; never [`ObfsClient::Off`].
    Simple(ObfsClient),
    /// GoQuiet.
    GoQuiet(GoQuietClient),
    /// One of ShadowsocksR, but for `go_quiet`.
    Ssr {
        /// The obfs.
        obfs: Obfs,
        /// Host names to choose from, separated by commas; empty for the server's own.
        param: Box<str>,
        /// The password that `tls1.2_ticket_auth` derives its proof from.
        key: Secret,
    },
}

/// A client of GoQuiet.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GoQuietClient {
    /// The key of both ends.
    pub key: Secret,
    /// The name in the client hello; empty for the server's own.
    pub server_name: Box<str>,
    /// The browser that the client hello imitates.
    pub browser: Browser,
    /// Seconds in which the hellos of this process share a ticket, at least 1.
    pub ticket_s: u64,
}

/// Why an obfs cannot be used.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[error("obfs {obfs}: {why}")]
pub struct ObfsError {
    obfs: &'static str,
    why: String,
}

/// The state that all connections of a client share, for an obfs of ShadowsocksR or of GoQuiet.
#[derive(Debug)]
pub enum ObfsClientConfig {
    /// One of ShadowsocksR.
    Ssr(obfs::SsrObfsClientConfig),
    /// GoQuiet.
    GoQuiet(goquiet::GoQuietClientConfig),
}

impl GoQuietClient {
    /// The state that all connections to `server` share; `rng` draws the identity of this process.
    ///
    /// # Errors
    /// A server name that does not fit.
    pub fn config(
        &self,
        server: &Target,
        rng: &mut dyn Rng,
    ) -> Result<goquiet::GoQuietClientConfig, ObfsError> {
        let host = server.host.to_string();
        let name = if self.server_name.is_empty() { &*host } else { &*self.server_name };
        let key = goquiet::GoQuietKey::new(self.key.expose().as_bytes());
        goquiet::GoQuietClientConfig::new(key, self.browser, name, self.ticket_s, rng)
            .map_err(|error| ObfsError { obfs: "go_quiet", why: error.to_string() })
    }
}

impl ObfsClientLayer {
    /// The state that all connections to `server` share, for the kinds that have such a state; `rng` draws the identity
    /// of this process.
    ///
    /// # Errors
    /// A parameter that the obfs cannot show.
    pub fn config(&self, server: &Target, rng: &mut dyn Rng) -> Result<Option<ObfsClientConfig>, ObfsError> {
        match self {
            Self::Simple(_) => Ok(None),
            Self::GoQuiet(client) => client.config(server, rng).map(ObfsClientConfig::GoQuiet).map(Some),
            Self::Ssr { obfs, param, key } => {
                let session = SessionId::draw(rng).into();
                // As method `none` has it: 16 bytes.
                let key = SsrKey::from_password(SsrMethod::None, key.expose().as_bytes());
                let host = server.host.to_string();
                let config = obfs::SsrObfsClientConfig::new(*obfs, &key, param, &host, server.port, session);
                let config =
                    config.map_err(|error| ObfsError { obfs: obfs.name(), why: error.to_string() })?;
                Ok(Some(ObfsClientConfig::Ssr(config)))
            }
        }
    }
}
