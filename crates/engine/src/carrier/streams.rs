//! Packets that go by streams, in the place of datagrams: what Snowflake implements, and the program hands in.

use std::any::Any;
use std::fmt::Debug;
use std::io;
use std::net::{SocketAddr, TcpListener};
use std::pin::Pin;
use std::sync::Arc;

use adit_model::{Egress, SnowflakeClient, SnowflakePort, Tag};
use adit_net::dial::Dialer;
use adit_net::rt::Stop;

use super::Hub;

/// A transport that carries the packets of sessions in streams of its own.
pub trait PacketStreams: Debug + Send + Sync {
    /// The maker of paths for the sessions of the outbound `name`. Its sockets, those for third parties too, follow
    /// `egress`.
    fn paths(&self, name: &Tag, settings: &SnowflakeClient, egress: &Egress) -> MakeStreamPath;

    /// The port of an inbound for all of `cores` event loops; `memory` is the bound of its sessions in bytes.
    ///
    /// # Errors
    /// When a certificate cannot be used.
    fn port(&self, settings: &SnowflakePort, cores: usize, memory: usize) -> io::Result<Arc<dyn PacketPort>>;
}

/// A port that takes the streams which bring the packets of sessions.
pub trait PacketPort: Debug + Send + Sync {
    /// The packets of the sessions on event loop `at`.
    fn hub(&self, at: usize) -> Arc<Hub>;

    /// The address that stands for the client of the session with `peer`.
    fn source(&self, peer: SocketAddr) -> SocketAddr;

    /// Takes streams on event loop `at` until `stop` asks to drain, and carries those that are open to their ends.
    /// Each holds what `hold` gives.
    ///
    /// # Errors
    /// The future's, when the listener is lost.
    fn serve(self: Arc<Self>, at: usize, listener: TcpListener, hold: Hold, stop: Stop) -> PortFuture;
}

/// Makes what a stream holds until its end.
pub type Hold = Box<dyn Fn() -> Box<dyn Any>>;
/// The run of a port on one event loop.
pub type PortFuture = Pin<Box<dyn Future<Output = io::Result<()>>>>;

/// The path of one session whose packets go by streams.
pub struct StreamPath {
    /// The address that stands for the server.
    pub peer: SocketAddr,
    /// The packets of the session.
    pub hub: Arc<Hub>,
    /// Carries the packets of the hub; dropped with the session.
    pub feed: Pin<Box<dyn Future<Output = ()>>>,
}

/// Makes such paths.
pub type MakeStreamPath = Box<dyn Fn(&Dialer) -> io::Result<StreamPath>>;

/// An error for a configuration that needs streams which this program was built without.
pub(super) fn missing() -> io::Error {
    io::Error::new(io::ErrorKind::Unsupported, "carrier = \"snowflake\" is not part of this program")
}
