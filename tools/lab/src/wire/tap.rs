//! A relay between the two halves of a subject that keeps the first bytes of each connection.

use std::io::{self, Read, Write};
use std::net::{Ipv4Addr, Shutdown, SocketAddr, TcpStream};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::Result;

use crate::probe::recording::{self, Flight};

/// Bytes that are kept of each connection: a segment of the usual size.
const OPENING: usize = 1460;
/// Connections whose first flights are kept.
const FLIGHTS: usize = 256;
/// Most connections of which something is kept.
const MOST: usize = 1_000_000;

/// A running relay. It ends with the process; once its server is gone it carries nothing.
#[derive(Debug)]
pub struct Tap {
    port: u16,
    server: SocketAddr,
    kept: Arc<Mutex<Kept>>,
}

/// The first bytes of connections.
#[derive(Debug, Default)]
struct Kept {
    openings: Vec<Vec<u8>>,
    flights: Vec<Flight>,
}

impl Tap {
    /// Relays connections to the loopback port `to`.
    ///
    /// # Errors
    /// If no port is to be had.
    pub fn start(to: u16) -> Result<Self> {
        let port = crate::subject::free_port()?;
        let listener = crate::target::listen(SocketAddr::from((Ipv4Addr::LOCALHOST, port)))?;
        let kept: Arc<Mutex<Kept>> = Arc::default();
        let keeping = Arc::clone(&kept);
        thread::Builder::new().name("tap".into()).spawn(move || {
            while let Ok((client, _)) = listener.accept() {
                let kept = Arc::clone(&keeping);
                // Connections that fail are the load generator's to notice.
                thread::spawn(move || relay(&client, to, &kept).ok());
            }
        })?;
        Ok(Self { port, server: SocketAddr::from((Ipv4Addr::LOCALHOST, to)), kept })
    }

    /// Port that it listens on.
    #[must_use]
    pub fn port(&self) -> u16 {
        self.port
    }

    /// The server behind it.
    #[must_use]
    pub fn server(&self) -> SocketAddr {
        self.server
    }

    /// The first bytes of each connection, as the first read returned them.
    #[must_use]
    pub fn openings(&self) -> Vec<Vec<u8>> {
        lock(&self.kept).openings.clone()
    }

    /// The first flights of the connections that were answered, up to some hundreds. A connection counts once it has
    /// ended: those that are about to are waited for, not for long.
    #[must_use]
    pub fn flights(&self) -> Vec<Flight> {
        let deadline = Instant::now() + Duration::from_secs(2);
        loop {
            {
                let kept = lock(&self.kept);
                if kept.flights.len() >= kept.openings.len().min(FLIGHTS) || Instant::now() >= deadline {
                    return kept.flights.clone();
                }
            }
            thread::sleep(Duration::from_millis(5));
        }
    }
}

fn lock(kept: &Mutex<Kept>) -> MutexGuard<'_, Kept> {
    kept.lock().unwrap_or_else(PoisonError::into_inner)
}

fn relay(client: &TcpStream, to: u16, kept: &Mutex<Kept>) -> io::Result<()> {
    client.set_nodelay(true)?;
    let mut first = [0; OPENING];
    let mut from = client;
    let len = from.read(&mut first)?;
    if len == 0 {
        return Ok(());
    }
    {
        let mut kept = lock(kept);
        if kept.openings.len() < MOST {
            kept.openings.push(first[..len].to_vec());
        }
    }
    let server = TcpStream::connect((Ipv4Addr::LOCALHOST, to))?;
    server.set_nodelay(true)?;
    (&server).write_all(&first[..len])?;
    let flight = Mutex::new(Flight { up: first[..len].to_vec(), down: Vec::new() });
    thread::scope(|scope| {
        scope.spawn(|| {
            pass(&server, client, &|bytes| append(&mut locked(&flight).down, bytes));
        });
        pass(client, &server, &|bytes| {
            let mut flight = locked(&flight);
            if flight.down.is_empty() {
                append(&mut flight.up, bytes);
            }
        });
    });
    let flight = flight.into_inner().unwrap_or_else(PoisonError::into_inner);
    let mut kept = lock(kept);
    if kept.flights.len() < FLIGHTS && !flight.down.is_empty() {
        kept.flights.push(flight);
    }
    Ok(())
}

fn locked(flight: &Mutex<Flight>) -> MutexGuard<'_, Flight> {
    flight.lock().unwrap_or_else(PoisonError::into_inner)
}

fn append(kept: &mut Vec<u8>, bytes: &[u8]) {
    let room = recording::MOST.saturating_sub(kept.len());
    kept.extend(&bytes[..bytes.len().min(room)]);
}

/// Passes on what comes, telling `seen` first: what is answered was seen before its answer.
fn pass(mut from: &TcpStream, mut to: &TcpStream, seen: &dyn Fn(&[u8])) {
    let mut buffer = vec![0; 16 * 1024];
    while let Ok(len @ 1..) = from.read(&mut buffer) {
        seen(&buffer[..len]);
        if to.write_all(&buffer[..len]).is_err() {
            break;
        }
    }
    to.shutdown(Shutdown::Write).ok();
}
