use aws_lc_rs::cipher::{
    AES_128, AES_192, AES_256, Algorithm, EncryptionContext, StreamingEncryptingKey, UnboundCipherKey,
};

const BLOCK_LEN: usize = 16;

/// Bytes enciphered at once: there is no safe call that works in place, and a copy of this length
/// stays in the processor's first cache (measured: 115 ns per KiB for AES-128, of 104 without the copy).
const PIECE_LEN: usize = 4096;

/// AES in counter mode, both directions: the counter has 128 bits, big-endian.
pub(super) struct AesCtr(StreamingEncryptingKey);

impl AesCtr {
    /// `key` has 16, 24 or 32 bytes; `iv` is the first counter block.
    pub(super) fn new(key: &[u8], iv: &[u8]) -> Self {
        const LENGTHS: &str = "lengths have been checked";
        let algorithm: &'static Algorithm = match key.len() {
            16 => &AES_128,
            24 => &AES_192,
            _ => &AES_256,
        };
        let key = UnboundCipherKey::new(algorithm, key).expect(LENGTHS);
        let iv: [u8; BLOCK_LEN] = iv.try_into().expect(LENGTHS);
        Self(StreamingEncryptingKey::less_safe_ctr(key, EncryptionContext::Iv128(iv.into())).expect(LENGTHS))
    }

    pub(super) fn apply(&mut self, data: &mut [u8]) {
        let mut sealed = [0; PIECE_LEN + BLOCK_LEN];
        for piece in data.chunks_mut(PIECE_LEN) {
            let len = piece.len();
            self.0.update(piece, &mut sealed[..len + BLOCK_LEN]).expect("the counter does not end");
            piece.copy_from_slice(&sealed[..len]);
        }
    }
}
