//! Stream modes over block ciphers, at byte granularity.
//!
//! Encryption in CFB and both ways of OFB are serial by nature; CTR and decryption in CFB know all inputs of the block
//! cipher in advance. Either way the loop runs inside the cipher's backend, over as many blocks at once as that takes,
//! so that no call stands between two blocks and vectors stay vectors. Decryption in CFB8 and CFB1 enciphers [`LANES`]
//! shifted registers at once.

use std::sync::Arc;

use aes::{Aes128Enc, Aes192Enc, Aes256Enc};
use camellia::{Camellia128, Camellia192, Camellia256};
use cipher::array::{Array, ArraySize};
use cipher::consts::U16;
use cipher::{
    BlockCipherEncBackend, BlockCipherEncClosure, BlockCipherEncrypt, BlockSizeUser, KeyInit, ParBlocks,
};

use super::{BlockCipher, BlockMode, Direction};

/// Registers that are enciphered at once: little more than a multiple of what AES-NI takes in parallel (9), since what
/// is left over goes one by one.
const LANES: usize = 64;

/// A mode over any of the 128-bit ciphers.
pub(super) enum Mode128 {
    Aes128(Box<Mode<Aes128Enc>>),
    Aes192(Box<Mode<Aes192Enc>>),
    Aes256(Box<Mode<Aes256Enc>>),
    Camellia128(Box<Mode<Camellia128>>),
    Camellia192(Box<Mode<Camellia192>>),
    Camellia256(Box<Mode<Camellia256>>),
}

impl Mode128 {
    /// `key` and `iv` have the lengths of the algorithm.
    pub(super) fn new(
        cipher: BlockCipher,
        mode: BlockMode,
        direction: Direction,
        key: &[u8],
        iv: &[u8],
    ) -> Self {
        match cipher {
            BlockCipher::Aes128 => Self::Aes128(Mode::new(mode, direction, key, iv)),
            BlockCipher::Aes192 => Self::Aes192(Mode::new(mode, direction, key, iv)),
            BlockCipher::Aes256 => Self::Aes256(Mode::new(mode, direction, key, iv)),
            BlockCipher::Camellia128 => Self::Camellia128(Mode::new(mode, direction, key, iv)),
            BlockCipher::Camellia192 => Self::Camellia192(Mode::new(mode, direction, key, iv)),
            BlockCipher::Camellia256 => Self::Camellia256(Mode::new(mode, direction, key, iv)),
        }
    }

    pub(super) fn apply(&mut self, data: &mut [u8]) {
        match self {
            Self::Aes128(mode) => mode.apply(data),
            Self::Aes192(mode) => mode.apply(data),
            Self::Aes256(mode) => mode.apply(data),
            Self::Camellia128(mode) => mode.apply(data),
            Self::Camellia192(mode) => mode.apply(data),
            Self::Camellia256(mode) => mode.apply(data),
        }
    }
}

/// A block cipher of 64-bit blocks in CFB64. The cipher is shared: Blowfish's key schedule takes 30 us and 4 KiB.
pub(super) struct Cfb64<C: BlockSizeUser> {
    cipher: Arc<C>,
    direction: Direction,
    feedback: Feedback<C::BlockSize>,
}

impl<C: BlockCipherEncrypt> Cfb64<C> {
    pub(super) fn new(cipher: Arc<C>, direction: Direction, iv: &[u8]) -> Self {
        Self { cipher, direction, feedback: Feedback::new(iv) }
    }

    pub(super) fn apply(&mut self, data: &mut [u8]) {
        match self.direction {
            Direction::Encrypt => self.feedback.cfb_encrypt(&*self.cipher, data),
            Direction::Decrypt => self.feedback.cfb_decrypt(&*self.cipher, data),
        }
    }
}

/// Enciphers one datagram in CFB of whole blocks, under a cipher that outlives it.
///
/// # Panics
/// If `iv` is not one block.
pub(crate) fn cfb_encrypt<C: BlockCipherEncrypt>(cipher: &C, iv: &[u8], data: &mut [u8]) {
    Feedback::new(iv).cfb_encrypt(cipher, data);
}

/// As [`cfb_encrypt`], the other way.
///
/// # Panics
/// If `iv` is not one block.
pub(crate) fn cfb_decrypt<C: BlockCipherEncrypt>(cipher: &C, iv: &[u8], data: &mut [u8]) {
    Feedback::new(iv).cfb_decrypt(cipher, data);
}

/// One 128-bit cipher in one mode and direction.
pub(super) struct Mode<C> {
    cipher: C,
    mode: BlockMode,
    direction: Direction,
    feedback: Feedback<U16>,
}

impl<C: BlockCipherEncrypt<BlockSize = U16> + KeyInit> Mode<C> {
    fn new(mode: BlockMode, direction: Direction, key: &[u8], iv: &[u8]) -> Box<Self> {
        let cipher = C::new_from_slice(key).expect("key of the cipher's length");
        Box::new(Self { cipher, mode, direction, feedback: Feedback::new(iv) })
    }

    fn apply(&mut self, data: &mut [u8]) {
        let feedback = &mut self.feedback;
        match (self.mode, self.direction) {
            (BlockMode::Ctr, _) => feedback.ctr(&self.cipher, data),
            (BlockMode::Ofb, _) => feedback.ofb(&self.cipher, data),
            (BlockMode::Cfb, Direction::Encrypt) => feedback.cfb_encrypt(&self.cipher, data),
            (BlockMode::Cfb, Direction::Decrypt) => feedback.cfb_decrypt(&self.cipher, data),
            (BlockMode::Cfb8, Direction::Encrypt) => feedback.cfb8_encrypt(&self.cipher, data),
            (BlockMode::Cfb8, Direction::Decrypt) => feedback.cfb8_decrypt(&self.cipher, data),
            (BlockMode::Cfb1, Direction::Encrypt) => feedback.cfb1_encrypt(&self.cipher, data),
            (BlockMode::Cfb1, Direction::Decrypt) => feedback.cfb1_decrypt(&self.cipher, data),
        }
    }
}

/// The shift register of a mode.
///
/// Invariant: `used < N`. With `used == 0` the register is the next input of the cipher. Otherwise a block is half
/// done: in CFB its first `used` bytes are ciphertext and the others keystream, in OFB all are keystream; in CTR the
/// register is the counter of the next block and `pad` holds the keystream of this one.
struct Feedback<N: ArraySize> {
    register: Array<u8, N>,
    pad: Array<u8, N>,
    used: usize,
}

impl<N: ArraySize> Feedback<N> {
    fn new(iv: &[u8]) -> Self {
        let register = Array::try_from(iv).expect("IV of one block");
        Self { register, pad: Array::default(), used: 0 }
    }

    /// Handles bytes one by one with `step(register, pad, used, byte)` until the half-done block is complete, and
    /// returns the rest of `data`.
    fn complete<'a>(&mut self, data: &'a mut [u8], step: impl Fn(&mut u8, u8, &mut u8)) -> &'a mut [u8] {
        if self.used == 0 {
            return data;
        }
        let (head, rest) = data.split_at_mut(data.len().min(N::USIZE - self.used));
        for byte in head {
            step(&mut self.register[self.used], self.pad[self.used], byte);
            self.used += 1;
        }
        self.used %= N::USIZE;
        rest
    }

    fn cfb_encrypt<C: BlockCipherEncrypt<BlockSize = N>>(&mut self, cipher: &C, data: &mut [u8]) {
        let step = |register: &mut u8, _: u8, byte: &mut u8| {
            *byte ^= *register;
            *register = *byte;
        };
        let data = self.complete(data, step);
        let (blocks, tail) = Array::slice_as_chunks_mut(data);
        cipher.encrypt_with_backend(CfbEncrypt { register: &mut self.register, blocks });
        if !tail.is_empty() {
            cipher.encrypt_block(&mut self.register);
            self.complete_tail(tail, step);
        }
    }

    fn cfb_decrypt<C: BlockCipherEncrypt<BlockSize = N>>(&mut self, cipher: &C, data: &mut [u8]) {
        let step = |register: &mut u8, _: u8, byte: &mut u8| {
            let sealed = *byte;
            *byte ^= *register;
            *register = sealed;
        };
        let data = self.complete(data, step);
        let (blocks, tail) = Array::slice_as_chunks_mut(data);
        if !blocks.is_empty() {
            cipher.encrypt_with_backend(CfbDecrypt { register: &mut self.register, blocks });
        }
        if !tail.is_empty() {
            cipher.encrypt_block(&mut self.register);
            self.complete_tail(tail, step);
        }
    }

    fn ofb<C: BlockCipherEncrypt<BlockSize = N>>(&mut self, cipher: &C, data: &mut [u8]) {
        let step = |register: &mut u8, _: u8, byte: &mut u8| *byte ^= *register;
        let data = self.complete(data, step);
        let (blocks, tail) = Array::slice_as_chunks_mut(data);
        cipher.encrypt_with_backend(Ofb { register: &mut self.register, blocks });
        if !tail.is_empty() {
            cipher.encrypt_block(&mut self.register);
            self.complete_tail(tail, step);
        }
    }

    /// As [`Feedback::complete`] for fewer bytes than a block, with the keystream of a fresh block at hand.
    fn complete_tail(&mut self, tail: &mut [u8], step: impl Fn(&mut u8, u8, &mut u8)) {
        for (used, byte) in tail.iter_mut().enumerate() {
            step(&mut self.register[used], self.pad[used], byte);
        }
        self.used = tail.len();
    }
}

impl Feedback<U16> {
    fn value(&self) -> u128 {
        u128::from_be_bytes(self.register.0)
    }

    fn ctr<C: BlockCipherEncrypt<BlockSize = U16>>(&mut self, cipher: &C, data: &mut [u8]) {
        let step = |_: &mut u8, pad: u8, byte: &mut u8| *byte ^= pad;
        let data = self.complete(data, step);
        let (blocks, tail) = Array::slice_as_chunks_mut(data);
        let mut counter = self.value();
        cipher.encrypt_with_backend(Ctr { counter: &mut counter, blocks });
        if !tail.is_empty() {
            self.pad = encrypted(cipher, counter);
            counter = counter.wrapping_add(1);
            self.complete_tail(tail, step);
        }
        self.register = Array(counter.to_be_bytes());
    }

    fn cfb8_encrypt<C: BlockCipherEncrypt<BlockSize = U16>>(&mut self, cipher: &C, data: &mut [u8]) {
        let mut value = self.value();
        for byte in data {
            *byte ^= encrypted(cipher, value)[0];
            value = value << 8 | u128::from(*byte);
        }
        self.register = Array(value.to_be_bytes());
    }

    fn cfb8_decrypt<C: BlockCipherEncrypt<BlockSize = U16>>(&mut self, cipher: &C, data: &mut [u8]) {
        let mut value = self.value();
        let mut lanes = [Array::<u8, U16>([0; 16]); LANES];
        for group in data.chunks_mut(LANES) {
            let lanes = &mut lanes[..group.len()];
            for (lane, byte) in lanes.iter_mut().zip(&*group) {
                *lane = Array(value.to_be_bytes());
                value = value << 8 | u128::from(*byte);
            }
            cipher.encrypt_blocks(lanes);
            group.iter_mut().zip(lanes).for_each(|(byte, lane)| *byte ^= lane[0]);
        }
        self.register = Array(value.to_be_bytes());
    }

    fn cfb1_encrypt<C: BlockCipherEncrypt<BlockSize = U16>>(&mut self, cipher: &C, data: &mut [u8]) {
        let mut value = self.value();
        for byte in data {
            for bit in (0..8).rev() {
                *byte ^= (encrypted(cipher, value)[0] >> 7) << bit;
                value = value << 1 | u128::from(*byte >> bit & 1);
            }
        }
        self.register = Array(value.to_be_bytes());
    }

    fn cfb1_decrypt<C: BlockCipherEncrypt<BlockSize = U16>>(&mut self, cipher: &C, data: &mut [u8]) {
        let mut value = self.value();
        let mut lanes = [Array::<u8, U16>([0; 16]); LANES];
        for group in data.chunks_mut(LANES / 8) {
            let lanes = &mut lanes[..group.len() * 8];
            for (lanes, byte) in lanes.chunks_exact_mut(8).zip(&*group) {
                for (lane, bit) in lanes.iter_mut().zip((0..8).rev()) {
                    *lane = Array(value.to_be_bytes());
                    value = value << 1 | u128::from(*byte >> bit & 1);
                }
            }
            cipher.encrypt_blocks(lanes);
            for (lanes, byte) in lanes.chunks_exact(8).zip(group) {
                for (lane, bit) in lanes.iter().zip((0..8).rev()) {
                    *byte ^= (lane[0] >> 7) << bit;
                }
            }
        }
        self.register = Array(value.to_be_bytes());
    }
}

fn encrypted<C: BlockCipherEncrypt<BlockSize = U16>>(cipher: &C, value: u128) -> Array<u8, U16> {
    let mut block = Array(value.to_be_bytes());
    cipher.encrypt_block(&mut block);
    block
}

#[inline(always)]
fn xor<N: ArraySize>(into: &mut Array<u8, N>, other: &Array<u8, N>) {
    for (into, other) in into.iter_mut().zip(other) {
        *into ^= other;
    }
}

/// CFB encryption of whole blocks, inside the backend.
struct CfbEncrypt<'a, N: ArraySize> {
    register: &'a mut Array<u8, N>,
    blocks: &'a mut [Array<u8, N>],
}

impl<N: ArraySize> BlockSizeUser for CfbEncrypt<'_, N> {
    type BlockSize = N;
}

impl<N: ArraySize> BlockCipherEncClosure for CfbEncrypt<'_, N> {
    #[inline(always)]
    fn call<B: BlockCipherEncBackend<BlockSize = N>>(self, backend: &B) {
        // A copy, so that the chain stays in a register of the processor.
        let mut register = self.register.clone();
        for block in self.blocks {
            backend.encrypt_block((&mut register).into());
            xor(&mut register, block);
            block.clone_from(&register);
        }
        *self.register = register;
    }
}

/// OFB of whole blocks, inside the backend.
struct Ofb<'a, N: ArraySize> {
    register: &'a mut Array<u8, N>,
    blocks: &'a mut [Array<u8, N>],
}

impl<N: ArraySize> BlockSizeUser for Ofb<'_, N> {
    type BlockSize = N;
}

impl<N: ArraySize> BlockCipherEncClosure for Ofb<'_, N> {
    #[inline(always)]
    fn call<B: BlockCipherEncBackend<BlockSize = N>>(self, backend: &B) {
        let mut register = self.register.clone();
        for block in self.blocks {
            backend.encrypt_block((&mut register).into());
            xor(block, &register);
        }
        *self.register = register;
    }
}

/// CFB decryption of whole blocks, of which there is at least one.
struct CfbDecrypt<'a, N: ArraySize> {
    register: &'a mut Array<u8, N>,
    blocks: &'a mut [Array<u8, N>],
}

impl<N: ArraySize> BlockSizeUser for CfbDecrypt<'_, N> {
    type BlockSize = N;
}

impl<N: ArraySize> BlockCipherEncClosure for CfbDecrypt<'_, N> {
    #[inline(always)]
    fn call<B: BlockCipherEncBackend<BlockSize = N>>(self, backend: &B) {
        let (groups, rest) = Array::<_, B::ParBlocksSize>::slice_as_chunks_mut(self.blocks);
        let mut last = self.register.clone();
        let mut keystream = last.clone();
        backend.encrypt_block((&mut keystream).into());
        for group in groups {
            let mut next = group.clone();
            backend.encrypt_par_blocks((&mut next).into());
            last.clone_from(&group[group.len() - 1]);
            for (block, next) in group.iter_mut().zip(&next) {
                xor(block, &keystream);
                keystream.clone_from(next);
            }
        }
        for block in rest {
            last.clone_from(block);
            xor(block, &keystream);
            keystream.clone_from(&last);
            backend.encrypt_block((&mut keystream).into());
        }
        *self.register = last;
    }
}

/// CTR over whole blocks.
struct Ctr<'a> {
    counter: &'a mut u128,
    blocks: &'a mut [Array<u8, U16>],
}

impl BlockSizeUser for Ctr<'_> {
    type BlockSize = U16;
}

impl BlockCipherEncClosure for Ctr<'_> {
    #[inline(always)]
    fn call<B: BlockCipherEncBackend<BlockSize = U16>>(self, backend: &B) {
        let mut counter = *self.counter;
        let (groups, rest) = Array::<_, B::ParBlocksSize>::slice_as_chunks_mut(self.blocks);
        for group in groups {
            let mut keystream = ParBlocks::<B>::default();
            for block in &mut keystream {
                *block = Array(counter.to_be_bytes());
                counter = counter.wrapping_add(1);
            }
            backend.encrypt_par_blocks((&mut keystream).into());
            for (block, keystream) in group.iter_mut().zip(&keystream) {
                xor(block, keystream);
            }
        }
        for block in rest {
            let mut keystream = Array(counter.to_be_bytes());
            counter = counter.wrapping_add(1);
            backend.encrypt_block((&mut keystream).into());
            xor(block, &keystream);
        }
        *self.counter = counter;
    }
}
