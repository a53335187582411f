//! The side that takes sessions.

use std::io;
use std::rc::Rc;
use std::sync::Arc;

use adit_net::rt::{CarrierStream, Stream};
use adit_net::udp::divert::Switch;
use adit_proto::smux::StreamId;

use super::driver::{Accept, Driver, Handle};
use super::stream::CarriedStream;
use super::{CarrierShared, CarrierSocket, Context};
use crate::datagram::rebind::Rebind;

/// Serves the sessions that come by `link`; each stream is given to `take`, with its peer. The switch leaves the socket to
/// another process, and the sessions go on; so they do where it goes over to another socket of this process.
///
/// # Errors
/// When the socket cannot be used.
pub(crate) async fn serve(
    shared: Arc<CarrierShared>,
    context: Context,
    link: CarrierSocket,
    switch: Rc<Switch>,
    rebind: Rc<Rebind>,
    take: impl Fn(Stream, std::net::SocketAddr) + 'static,
) -> io::Result<()> {
    let accept: Accept = Box::new(move |handle: &Rc<Handle>, id: StreamId| {
        let stream: Box<dyn CarrierStream> = Box::new(CarriedStream::new(handle.clone(), id));
        take(stream.into(), handle.peer);
    });
    Driver::new(shared, context, link, Some(accept))?.passed_by(switch, rebind).run().await;
    Ok(())
}
