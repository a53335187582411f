//! One probe of one connection: what is sent, and what the server does.

use std::io::{ErrorKind, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::time::{Duration, Instant};

use serde::Serialize;

/// Longest wait for a connection.
const CONNECT: Duration = Duration::from_secs(5);
/// Time between two bytes that are sent one by one: the server reads each of them alone.
const PAUSE: Duration = Duration::from_millis(5);
/// Bytes that are read of an answer; a server that sends more answers for good.
const ANSWER: u64 = 1 << 20;

/// The bytes to send over one connection.
#[derive(Debug, Clone)]
pub struct Shape {
    /// The bytes.
    pub bytes: Vec<u8>,
    /// Whether each byte goes out alone, a few milliseconds after the one before it.
    pub one_by_one: bool,
    /// Whether the prober ends its direction behind them.
    pub ends: bool,
}

impl Shape {
    /// `bytes` in one write.
    #[must_use]
    pub fn whole(bytes: Vec<u8>) -> Self {
        Self { bytes, one_by_one: false, ends: false }
    }
}

/// State of a connection when the prober had seen enough.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum End {
    /// Still open.
    Open,
    /// The server ended its direction.
    Fin,
    /// The server reset the connection.
    Rst,
    /// There was no connection.
    Refused,
}

/// The server's reaction.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Reaction {
    /// Its end.
    pub end: End,
    /// From the last byte sent until the end that the server chose, or until the prober stopped waiting.
    pub after: Duration,
    /// Bytes that were sent before the end was seen.
    pub sent: usize,
    /// Bytes that came back.
    pub received: u64,
}

/// Sends `shape` to `server` and watches for as long as `patience` behind the last byte.
#[must_use]
pub fn provoke(server: SocketAddr, shape: &Shape, patience: Duration) -> Reaction {
    let begin = Instant::now();
    let Ok(stream) = TcpStream::connect_timeout(&server, CONNECT) else {
        return Reaction { end: End::Refused, after: begin.elapsed(), sent: 0, received: 0 };
    };
    let mut probing = Probing { stream, patience, received: 0 };
    let (sent, end) = probing.send(shape);
    let begin = Instant::now();
    let end = end.unwrap_or_else(|| {
        if shape.ends {
            probing.stream.shutdown(Shutdown::Write).ok();
        }
        probing.watch(begin + patience)
    });
    Reaction { end, after: begin.elapsed(), sent, received: probing.received }
}

struct Probing {
    stream: TcpStream,
    patience: Duration,
    received: u64,
}

impl Probing {
    /// Number of bytes that were sent, and the end if it came meanwhile.
    fn send(&mut self, shape: &Shape) -> (usize, Option<End>) {
        self.stream.set_nodelay(true).ok();
        self.stream.set_write_timeout(Some(self.patience)).ok();
        if !shape.one_by_one {
            // A server that reads no more fills the buffers; one that is gone shows in the read that follows.
            self.stream.write_all(&shape.bytes).ok();
            return (shape.bytes.len(), None);
        }
        for (at, byte) in shape.bytes.iter().enumerate() {
            if self.stream.write_all(&[*byte]).is_err() {
                return (at, Some(End::Rst));
            }
            let end = self.watch(Instant::now() + PAUSE);
            if end != End::Open {
                return (at + 1, Some(end));
            }
        }
        (shape.bytes.len(), None)
    }

    /// Reads until the server ends the connection or `until` has come.
    fn watch(&mut self, until: Instant) -> End {
        let mut buffer = [0; 4096];
        loop {
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() || self.received >= ANSWER {
                return End::Open;
            }
            self.stream.set_read_timeout(Some(left)).ok();
            match self.stream.read(&mut buffer) {
                Ok(0) => return End::Fin,
                Ok(len) => self.received += len as u64,
                Err(error) => {
                    let waits = [ErrorKind::Interrupted, ErrorKind::WouldBlock, ErrorKind::TimedOut];
                    if !waits.contains(&error.kind()) {
                        return End::Rst;
                    }
                }
            }
        }
    }
}
