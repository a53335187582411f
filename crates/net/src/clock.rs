//! The wall clock against a time server: one question by SNTP (RFC 4330).
//!
//! ```text
//!   0  leap, version 4, mode 3 (client) or 4 (server)      24  originate: the client's transmit time, copied
//!   1  stratum, 0 = refused                                 32  receive: arrival of the question
//!   ..                                                      40  transmit
//! ```
//!
//! A time is 32 bits of seconds since 1900 and 32 bits of fractions, big endian.

use std::io;
use std::net::SocketAddr;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use adit_model::Egress;

use crate::query::QuerySocket;
use crate::rt;

const LEN: usize = 48;
/// Version 4, client.
const QUESTION: u8 = 0x23;
/// Mode bits of a server's answer.
const SERVER: u8 = 4;
const ORIGINATE: usize = 24;
const RECEIVE: usize = 32;
const TRANSMIT: usize = 40;
/// Seconds from 1900 to 1970.
const ERA: u64 = 2_208_988_800;

/// The time of `server` minus the time of this machine, in milliseconds: positive if this clock is behind. Asks once and
/// waits at most `limit`.
///
/// # Errors
/// `TimedOut` without an answer, `InvalidData` for an answer that is none, and the system's error.
pub async fn offset(server: SocketAddr, limit: Duration) -> io::Result<i64> {
    let socket = QuerySocket::connect(server, &Egress::default())?;
    let mut question = [0; LEN];
    question[0] = QUESTION;
    let sent = stamp(SystemTime::now());
    question[TRANSMIT..].copy_from_slice(&sent.to_be_bytes());
    socket.send(&question).await?;
    let mut answer = [0; LEN];
    let len = rt::timeout(limit, socket.recv(&mut answer)).await.map_err(|_| io::ErrorKind::TimedOut)??;
    let received = stamp(SystemTime::now());
    offset_of(answer.get(..len).unwrap_or_default(), sent, received)
        .ok_or_else(|| io::Error::new(io::ErrorKind::InvalidData, "unusable answer of the time server"))
}

/// The time as SNTP writes it.
fn stamp(time: SystemTime) -> u64 {
    let since = time.duration_since(UNIX_EPOCH).unwrap_or_default();
    let seconds = since.as_secs().wrapping_add(ERA) & u64::from(u32::MAX);
    let fraction = (u64::from(since.subsec_nanos()) << 32) / 1_000_000_000;
    (seconds << 32) | fraction
}

fn offset_of(answer: &[u8], sent: u64, received: u64) -> Option<i64> {
    let at = |at: usize| Some(u64::from_be_bytes(answer.get(at..at + 8)?.try_into().ok()?));
    let (originate, arrived, left) = (at(ORIGINATE)?, at(RECEIVE)?, at(TRANSMIT)?);
    let is_server = answer[0] & 7 == SERVER && answer[1] != 0;
    if !is_server || originate != sent || left == 0 {
        return None;
    }
    let (there, back) = (difference(arrived, sent), difference(left, received));
    // Fractions of 2^-32 seconds.
    i64::try_from((i128::midpoint(there, back) * 1000) >> 32).ok()
}

/// `a - b`, across the end of an era as well.
fn difference(a: u64, b: u64) -> i128 {
    i128::from(a.wrapping_sub(b).cast_signed())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn answer(sent: u64, arrived: u64, left: u64) -> [u8; LEN] {
        let mut answer = [0; LEN];
        (answer[0], answer[1]) = (0x24, 2);
        answer[ORIGINATE..RECEIVE].copy_from_slice(&sent.to_be_bytes());
        answer[RECEIVE..TRANSMIT].copy_from_slice(&arrived.to_be_bytes());
        answer[TRANSMIT..].copy_from_slice(&left.to_be_bytes());
        answer
    }

    #[test]
    fn offsets_in_both_directions() {
        const SECOND: u64 = 1 << 32;
        let sent = 5_000 * SECOND;
        for (server, want) in [(5_300, 300_000), (4_700, -300_000), (5_000, 0)] {
            let bytes = answer(sent, server * SECOND, server * SECOND);
            assert_eq!(offset_of(&bytes, sent, sent), Some(want));
        }
        // A round trip of two seconds is no offset.
        assert_eq!(offset_of(&answer(sent, sent + SECOND, sent + SECOND), sent, sent + 2 * SECOND), Some(0));
    }

    #[test]
    fn other_answers_are_none() {
        let good = answer(7, 9, 9);
        assert!(offset_of(&good, 7, 9).is_some());
        assert_eq!(offset_of(&good, 8, 9), None, "the answer to another question");
        for len in 0..LEN {
            assert_eq!(offset_of(&good[..len], 7, 9), None, "{len} bytes");
        }
        for (at, value) in [(0, 0x23), (1, 0)] {
            let mut bad = good;
            bad[at] = value;
            assert_eq!(offset_of(&bad, 7, 9), None);
        }
    }
}
