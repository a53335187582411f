//! `random_head`: random bytes first, in both directions, each alone in a segment; then the stream as it is.
//!
//! ```text
//!   client: 4 to 99 random bytes | u32le 0xffffffff - CRC-32 of them          server: 4 to 99 random bytes
//! ```
//!
//! Nothing says where the server's bytes end: its first segment is thrown away whole, so this exchange depends on how
//! segments arrive, by design. Source: `docs/protocols/ssr.md`, 3.3.

use super::{Shake, SsrHandshake, SsrObfsServerConfig, refuse};
use crate::buf::RecvBuf;
use crate::crypto::crc32;
use crate::ssr::Refusal;
use crate::wire::Rng;

const MIN_LEN: usize = 4;
const MAX_LEN: u32 = 99;
const CRC_LEN: usize = 4;

fn draw(rng: &mut dyn Rng) -> Vec<u8> {
    let len = MIN_LEN + rng.below(MAX_LEN + 1 - 4) as usize;
    let mut bytes = vec![0; len];
    rng.fill(&mut bytes);
    bytes
}

/// The client's end.
#[derive(Debug)]
pub(super) struct HeadClient {
    head: Option<Vec<u8>>,
    is_done: bool,
}

impl HeadClient {
    pub(super) fn new(rng: &mut dyn Rng) -> Self {
        let mut head = draw(rng);
        let check = !crc32(&head);
        head.extend(check.to_le_bytes());
        Self { head: Some(head), is_done: false }
    }

    pub(super) fn handshake(&mut self, wire: &mut RecvBuf, out: &mut Vec<u8>) -> SsrHandshake {
        if let Some(head) = self.head.take() {
            out.extend(head);
        }
        if !self.is_done && wire.unread().is_empty() {
            return SsrHandshake::NeedMore(1);
        }
        if !std::mem::replace(&mut self.is_done, true) {
            wire.consume(wire.unread().len());
        }
        SsrHandshake::Done
    }
}

/// The server's end.
#[derive(Debug)]
pub(super) struct HeadServer {
    answer: Option<Vec<u8>>,
    is_compatible: bool,
}

impl HeadServer {
    pub(super) fn new(config: &SsrObfsServerConfig, rng: &mut dyn Rng) -> Self {
        Self { answer: Some(draw(rng)), is_compatible: config.is_compatible }
    }

    pub(super) fn handshake(&mut self, wire: &mut RecvBuf, out: &mut Vec<u8>) -> Result<Shake, Refusal> {
        if self.answer.is_none() {
            return Ok(Shake::Done);
        }
        let unread = wire.unread();
        if unread.len() < MIN_LEN + CRC_LEN {
            return Ok(Shake::NeedMore(MIN_LEN + CRC_LEN - unread.len()));
        }
        if crc32(unread) != u32::MAX {
            return refuse(self.is_compatible, Refusal::Obfs { what: "checksum of random_head" });
        }
        wire.consume(unread.len());
        out.extend(self.answer.take().unwrap_or_default());
        Ok(Shake::Done)
    }
}
