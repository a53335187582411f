//! Tor's extended port (ext-orport-spec): a secret of both proves that each is who it says, then the client's address and
//! the transport's name are told.
//!
//! ```text
//! Tor    types of authentication, ended by 0            we  1 | 32 random bytes
//! Tor    32 bytes of hash | 32 random bytes             we  32 bytes of hash
//! Tor    1                                              we  USERADDR, TRANSPORT, DONE
//! Tor    OKAY, and bytes are the connection's from here on
//! command  0 type u16 | 2 length u16 | 4 body           big-endian
//! ```

use aws_lc_rs::constant_time::verify_slices_are_equal;
use aws_lc_rs::hmac;

/// The type of authentication that both know (`SAFE_COOKIE`).
pub const SAFE_COOKIE: u8 = 1;
/// Bytes of a hash, and of a nonce.
pub const HASH_LEN: usize = 32;
/// Bytes of a command's header.
pub const HEADER_LEN: usize = 4;

/// Tells the client's address, as a text.
pub const USERADDR: u16 = 1;
/// Tells the transport's name.
pub const TRANSPORT: u16 = 2;
/// Ends the commands.
pub const DONE: u16 = 0;
/// Tor takes the connection.
pub const OKAY: u16 = 0x1000;
/// Tor refuses the connection.
pub const DENY: u16 = 0x1001;

/// The head of a file with a cookie.
const MAGIC: &[u8] = b"! Extended ORPort Auth Cookie !\n";

/// A secret that both have read from a file.
pub struct Cookie([u8; HASH_LEN]);

impl std::fmt::Debug for Cookie {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Cookie(..)")
    }
}

impl Cookie {
    /// Reads the content of a file: 64 bytes.
    pub fn parse(file: &[u8]) -> Option<Self> {
        file.strip_prefix(MAGIC)?.try_into().ok().map(Self)
    }

    /// Our proof.
    pub fn ours(&self, our_nonce: &[u8], their_nonce: &[u8]) -> [u8; HASH_LEN] {
        self.hash(b"ExtORPort authentication client-to-server hash", our_nonce, their_nonce)
    }

    /// Tor's proof.
    #[doc(hidden)]
    pub fn server_proof(&self, our_nonce: &[u8], their_nonce: &[u8]) -> [u8; HASH_LEN] {
        self.hash(b"ExtORPort authentication server-to-client hash", our_nonce, their_nonce)
    }

    /// Whether a proof is Tor's.
    pub fn is_theirs(&self, hash: &[u8], our_nonce: &[u8], their_nonce: &[u8]) -> bool {
        let wanted = self.server_proof(our_nonce, their_nonce);
        verify_slices_are_equal(&wanted, hash).is_ok()
    }

    fn hash(&self, words: &[u8], our_nonce: &[u8], their_nonce: &[u8]) -> [u8; HASH_LEN] {
        let key = hmac::Key::new(hmac::HMAC_SHA256, &self.0);
        let tag = hmac::sign(&key, &[words, our_nonce, their_nonce].concat());
        tag.as_ref().try_into().expect("32 bytes")
    }
}

/// Appends a command.
///
/// # Panics
/// If its body is longer than 65,535 bytes.
pub fn push_command(out: &mut Vec<u8>, kind: u16, body: &[u8]) {
    out.extend(kind.to_be_bytes());
    out.extend(u16::try_from(body.len()).expect("a short body").to_be_bytes());
    out.extend(body);
}

/// Type and length of a command.
pub fn parse_header(header: [u8; HEADER_LEN]) -> (u16, usize) {
    let [a, b, c, d] = header;
    (u16::from_be_bytes([a, b]), usize::from(u16::from_be_bytes([c, d])))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cookies_and_proofs() {
        let file = [MAGIC, &[7; 32]].concat();
        let cookie = Cookie::parse(&file).unwrap();
        for wrong in [&file[..63], &[&file[..], b"x"].concat(), &[b"x", &file[1..]].concat()] {
            assert!(Cookie::parse(wrong).is_none());
        }
        let (ours, theirs) = ([1; 32], [2; 32]);
        let hash = cookie.hash(b"ExtORPort authentication server-to-client hash", &ours, &theirs);
        assert!(cookie.is_theirs(&hash, &ours, &theirs));
        assert!(!cookie.is_theirs(&hash, &theirs, &ours) && !cookie.is_theirs(&hash[..31], &ours, &theirs));
        assert_ne!(cookie.ours(&ours, &theirs), hash);
        let mut flipped = hash;
        flipped[31] ^= 1;
        assert!(!cookie.is_theirs(&flipped, &ours, &theirs));
    }

    #[test]
    fn commands() {
        let mut out = Vec::new();
        push_command(&mut out, USERADDR, b"1.2.3.4:1");
        push_command(&mut out, DONE, b"");
        assert_eq!(out, b"\0\x01\0\x091.2.3.4:1\0\0\0\0");
        assert_eq!(parse_header([0x10, 1, 1, 2]), (DENY, 258));
    }
}
