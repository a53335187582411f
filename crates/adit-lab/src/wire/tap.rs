//! A relay between the two halves of a subject that keeps the first bytes of each connection.

use std::io::{self, Read, Write};
use std::net::{Ipv4Addr, Shutdown, SocketAddr, TcpStream};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;

use anyhow::Result;

/// Bytes that are kept of each connection: a segment of the usual size.
const OPENING: usize = 1460;
/// Most connections of which something is kept.
const MOST: usize = 1_000_000;

/// A running relay. It ends with the process; once its server is gone it carries nothing.
#[derive(Debug)]
pub struct Tap {
    port: u16,
    openings: Arc<Mutex<Vec<Vec<u8>>>>,
}

impl Tap {
    /// Relays connections to the loopback port `to`.
    ///
    /// # Errors
    /// If no port is to be had.
    pub fn start(to: u16) -> Result<Self> {
        let port = crate::subject::free_port()?;
        let listener = crate::target::listen(SocketAddr::from((Ipv4Addr::LOCALHOST, port)))?;
        let openings: Arc<Mutex<Vec<Vec<u8>>>> = Arc::default();
        let kept = Arc::clone(&openings);
        thread::Builder::new().name("tap".into()).spawn(move || {
            while let Ok((client, _)) = listener.accept() {
                let kept = Arc::clone(&kept);
                // Connections that fail are the load generator's to notice.
                thread::spawn(move || relay(&client, to, &kept).ok());
            }
        })?;
        Ok(Self { port, openings })
    }

    /// Where it listens.
    #[must_use]
    pub fn port(&self) -> u16 {
        self.port
    }

    /// What each connection began with, as the first read found it.
    #[must_use]
    pub fn openings(&self) -> Vec<Vec<u8>> {
        self.openings.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

fn relay(client: &TcpStream, to: u16, openings: &Mutex<Vec<Vec<u8>>>) -> io::Result<()> {
    client.set_nodelay(true)?;
    let mut first = [0; OPENING];
    let mut from = client;
    let len = from.read(&mut first)?;
    if len == 0 {
        return Ok(());
    }
    {
        let mut openings = openings.lock().unwrap_or_else(PoisonError::into_inner);
        if openings.len() < MOST {
            openings.push(first[..len].to_vec());
        }
    }
    let server = TcpStream::connect((Ipv4Addr::LOCALHOST, to))?;
    server.set_nodelay(true)?;
    (&server).write_all(&first[..len])?;
    thread::scope(|scope| {
        scope.spawn(|| pass(&server, client));
        pass(client, &server);
    });
    Ok(())
}

fn pass(mut from: &TcpStream, mut to: &TcpStream) {
    io::copy(&mut from, &mut to).ok();
    to.shutdown(Shutdown::Write).ok();
}
