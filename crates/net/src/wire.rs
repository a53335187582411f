//! Streams of any kind: HTTP and WebSockets are compiled once for all of them. The relay knows its streams by type.

use tokio::io::{AsyncRead, AsyncWrite};

/// The two directions of a stream.
pub(crate) trait Duplex: AsyncRead + AsyncWrite + Unpin {}

impl<T: AsyncRead + AsyncWrite + Unpin> Duplex for T {}

/// A stream of any kind.
pub(crate) type BoxStream<'a> = Box<dyn Duplex + 'a>;

/// One that may change its thread, which hyper asks of streams that switch to another protocol.
pub(crate) type SendWire = Box<dyn Duplex + Send>;
