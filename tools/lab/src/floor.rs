//! The floor: the least that a pair of user space relays with blocking threads costs.
//!
//! `plain` copies bytes. `aead` seals on the way from the near to the far relay and back:
//!
//! ```text
//! 0   2                2+n            2+n+16
//! +---+----------------+--------------+   n: u16 big endian, 1 ..= 16383, not encrypted
//! | n | ciphertext (n) | tag          |   AES-128-GCM, nonce = record counter, no associated data
//! +---+----------------+--------------+
//! ```
//!
//! Keys are constants: this is a yardstick, not a protocol. One thread per direction, reads of up to 256 KiB,
//! sealed and opened in place, one write per read.

use std::io::{self, IoSlice, IoSliceMut, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::thread;
use std::time::Duration;

use anyhow::Result;
use aws_lc_rs::aead::{AES_128_GCM, Aad, LessSafeKey, Nonce, UnboundKey};
use clap::ValueEnum;

use crate::target::stream_socket;

/// Most bytes per read.
const READ: usize = 256 * 1024;
const HEADER: usize = 2;
const PAYLOAD: usize = 16_383;
const TAG: usize = 16;
const SLOT: usize = HEADER + PAYLOAD + TAG;
const SLOTS: usize = READ / PAYLOAD;
/// Most payload ranges per `writev`.
const RANGES: usize = 64;

/// The work that a floor does on the bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Kind {
    /// Copies them.
    Plain,
    /// Seals and opens them.
    Aead,
}

/// This relay's place in the pair.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Side {
    /// Accepts the load in plain.
    Near,
    /// Connects to the target in plain.
    Far,
}

/// Relays connections from `listen` to `to` for ever. A plain relay rests for `rest` after each write: what the kernel
/// does meanwhile can be seen on the wire.
///
/// # Errors
/// If the address cannot be bound.
pub fn serve(kind: Kind, side: Side, listen: SocketAddr, to: SocketAddr, rest: Duration) -> Result<()> {
    let listener = crate::target::listen(listen)?;
    loop {
        // Out of descriptors, or the peer went before it was accepted.
        let Ok((inbound, _)) = listener.accept() else {
            thread::sleep(Duration::from_millis(5));
            continue;
        };
        spawn(move || {
            // A connection that fails is the load generator's to notice.
            connection(kind, side, inbound, to, rest).ok();
        });
    }
}

fn spawn(work: impl FnOnce() + Send + 'static) {
    // When no thread is to be had the closure drops its sockets, and the load generator sees a reset.
    thread::Builder::new().stack_size(64 * 1024).spawn(work).ok();
}

fn connection(kind: Kind, side: Side, inbound: TcpStream, to: SocketAddr, rest: Duration) -> io::Result<()> {
    let outbound = stream_socket(to)?;
    outbound.connect(&to.into())?;
    let outbound = TcpStream::from(outbound);
    inbound.set_nodelay(true)?;
    outbound.set_nodelay(true)?;
    let (inbound2, outbound2) = (inbound.try_clone()?, outbound.try_clone()?);
    let (up, down): (Direction, Direction) = match (kind, side) {
        (Kind::Plain, _) => (copy, copy),
        (Kind::Aead, Side::Near) => (seal, open),
        (Kind::Aead, Side::Far) => (open, seal),
    };
    spawn(move || finish(up, &inbound, &outbound, rest));
    finish(down, &outbound2, &inbound2, rest);
    Ok(())
}

type Direction = fn(&TcpStream, &TcpStream, Duration) -> io::Result<()>;

fn finish(direction: Direction, from: &TcpStream, to: &TcpStream, rest: Duration) {
    if direction(from, to, rest).is_ok() {
        to.shutdown(Shutdown::Write).ok();
    } else {
        from.shutdown(Shutdown::Both).ok();
        to.shutdown(Shutdown::Both).ok();
    }
}

fn copy(mut from: &TcpStream, mut to: &TcpStream, rest: Duration) -> io::Result<()> {
    let mut buf = vec![0; READ];
    loop {
        let n = from.read(&mut buf)?;
        if n == 0 {
            return Ok(());
        }
        to.write_all(&buf[..n])?;
        if !rest.is_zero() {
            thread::sleep(rest);
        }
    }
}

/// A key with its record counter.
struct Cipher {
    key: LessSafeKey,
    counter: u64,
}

impl Cipher {
    fn new() -> io::Result<Self> {
        let key = UnboundKey::new(&AES_128_GCM, &[7; 16]).map_err(io::Error::other)?;
        Ok(Self { key: LessSafeKey::new(key), counter: 0 })
    }

    fn nonce(&mut self) -> Nonce {
        let mut bytes = [0; 12];
        bytes[..8].copy_from_slice(&self.counter.to_le_bytes());
        self.counter += 1;
        Nonce::assume_unique_for_key(bytes)
    }
}

/// Reads into payload places spaced by header and tag, so that the sealed records lie end to end.
fn seal(mut from: &TcpStream, mut to: &TcpStream, _rest: Duration) -> io::Result<()> {
    let mut cipher = Cipher::new()?;
    let mut buf = vec![0; SLOTS * SLOT];
    loop {
        let mut places = buf.chunks_exact_mut(SLOT);
        let mut places: [IoSliceMut<'_>; SLOTS] = std::array::from_fn(|_| {
            IoSliceMut::new(places.next().map_or(&mut [], |slot| &mut slot[HEADER..HEADER + PAYLOAD]))
        });
        let mut rest = from.read_vectored(&mut places)?;
        if rest == 0 {
            return Ok(());
        }
        let mut sealed = 0;
        for slot in buf.chunks_exact_mut(SLOT) {
            let n = rest.min(PAYLOAD);
            if n == 0 {
                break;
            }
            rest -= n;
            let header = u16::try_from(n).map_err(io::Error::other)?;
            slot[..HEADER].copy_from_slice(&header.to_be_bytes());
            let nonce = cipher.nonce();
            let (data, after) = slot[HEADER..].split_at_mut(n);
            let tag =
                cipher.key.seal_in_place_separate_tag(nonce, Aad::empty(), data).map_err(io::Error::other)?;
            after[..TAG].copy_from_slice(tag.as_ref());
            sealed += HEADER + n + TAG;
        }
        to.write_all(&buf[..sealed])?;
    }
}

/// Reads behind the partial record of the last turn, opens in place, writes all payloads at once.
fn open(mut from: &TcpStream, to: &TcpStream, _rest: Duration) -> io::Result<()> {
    let mut cipher = Cipher::new()?;
    let mut buf = vec![0; READ + SLOT];
    let mut filled = 0;
    loop {
        let n = from.read(&mut buf[filled..])?;
        if n == 0 {
            return if filled == 0 { Ok(()) } else { Err(io::ErrorKind::UnexpectedEof.into()) };
        }
        filled += n;
        let mut at = 0;
        while at < filled {
            let mut ranges = [(0, 0); RANGES];
            let mut count = 0;
            while count < RANGES {
                let Some(header) = buf[at..filled].first_chunk::<HEADER>() else { break };
                let record = usize::from(u16::from_be_bytes(*header)) + TAG;
                let start = at + HEADER;
                if filled - start < record {
                    break;
                }
                let nonce = cipher.nonce();
                let data = &mut buf[start..start + record];
                let plain = cipher.key.open_in_place(nonce, Aad::empty(), data).map_err(io::Error::other)?;
                ranges[count] = (start, plain.len());
                count += 1;
                at = start + record;
            }
            if count == 0 {
                break;
            }
            let mut slices = [IoSlice::new(&[]); RANGES];
            for (slice, &(start, len)) in slices.iter_mut().zip(&ranges[..count]) {
                *slice = IoSlice::new(&buf[start..start + len]);
            }
            write_all_vectored(to, &mut slices[..count])?;
        }
        buf.copy_within(at..filled, 0);
        filled -= at;
    }
}

fn write_all_vectored(mut to: &TcpStream, mut slices: &mut [IoSlice<'_>]) -> io::Result<()> {
    while !slices.is_empty() {
        match to.write_vectored(slices) {
            Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
            Ok(n) => IoSlice::advance_slices(&mut slices, n),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}
