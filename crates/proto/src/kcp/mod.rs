//! KCP as kcptun speaks it: a reliable byte stream over datagrams.
//!
//! ```text
//! bytes → segments (ARQ) → [FEC header, parity packets] → [nonce, checksum, cipher] → one datagram
//! ```
//!
//! Every stage is a module of its own and owns nothing of its neighbours; the driver puts them together.
//! Numbers are little-endian throughout. In comments, "old" means kcptun 20210922 (kcp-go 5.6.1), and
//! "new" kcptun of 2026-01-26 (kcp-go 5.6.64).

pub mod arq;
pub mod crypt;
pub mod fec;
