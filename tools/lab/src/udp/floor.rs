//! A bare relay of datagrams: one blocking call to receive and one to send for each, and a thread per client for the
//! answers. As a subject it is the floor for relays that do not batch; with a fault it proves that the lab notices.

use std::collections::BTreeMap;
use std::net::{Ipv4Addr, SocketAddr, UdpSocket};
use std::sync::Arc;
use std::thread;

use adit_sys::udp::set_receive_buffer;
use anyhow::{Context, Result};
use clap::ValueEnum;

use super::flow::MAX_LEN;

/// Faults that the relay adds on purpose.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Fault {
    /// Nothing.
    None,
    /// Changes the last byte.
    Alter,
    /// Sends everything twice.
    Repeat,
}

/// Most clients at once: beyond them datagrams are dropped.
const MAX_CLIENTS: usize = 8192;

/// Relays datagrams from `listen` to `to` and back for ever. A TCP port of the same number says that it is ready.
///
/// # Errors
/// If the address cannot be bound.
pub fn serve(listen: SocketAddr, to: SocketAddr, fault: Fault) -> Result<()> {
    let near = Arc::new(UdpSocket::bind(listen).with_context(|| format!("bind {listen}"))?);
    set_receive_buffer(&near, 4 << 20)?;
    let _ready = crate::target::listen(listen)?;
    let mut clients: BTreeMap<SocketAddr, Arc<UdpSocket>> = BTreeMap::new();
    let mut bytes = [0; MAX_LEN];
    loop {
        let Ok((len, client)) = near.recv_from(&mut bytes) else { continue };
        if !clients.contains_key(&client) && clients.len() < MAX_CLIENTS {
            clients.insert(client, far(&near, client, to)?);
        }
        let Some(far) = clients.get(&client) else { continue };
        let datagram = &mut bytes[..len];
        if fault == Fault::Alter
            && let Some(last) = datagram.last_mut()
        {
            *last ^= 1;
        }
        for _ in 0..if fault == Fault::Repeat { 2 } else { 1 } {
            far.send(datagram).ok();
        }
    }
}

/// The socket of a client, with a thread that sends its answers back.
fn far(near: &Arc<UdpSocket>, client: SocketAddr, to: SocketAddr) -> Result<Arc<UdpSocket>> {
    let far = Arc::new(UdpSocket::bind((Ipv4Addr::LOCALHOST, 0))?);
    set_receive_buffer(&far, 1 << 20)?;
    far.connect(to)?;
    let (near, answers) = (Arc::clone(near), Arc::clone(&far));
    let work = move || {
        let mut bytes = [0; MAX_LEN];
        loop {
            if let Ok(len) = answers.recv(&mut bytes) {
                near.send_to(&bytes[..len], client).ok();
            }
        }
    };
    thread::Builder::new().stack_size(64 * 1024).spawn(work)?;
    Ok(far)
}
