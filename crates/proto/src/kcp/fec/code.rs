//! Reed-Solomon over GF(2^8), polynomial x^8 + x^4 + x^3 + x^2 + 1, systematic, from a Vandermonde matrix.
//!
//! ```text
//! V[r][c] = r^c, of k + m rows and k columns        M = V * inverse(top k rows of V)
//! parity[i] = sum over j of M[k + i][j] * data[j]
//! ```
//!
//! This is the matrix that klauspost/reedsolomon makes by default, and so what every kcptun speaks. Two things keep
//! this from being a crate's job. reed-solomon-erasure has the same matrix, but its vector code is C that is compiled
//! for the machine it is built on and its last release is of 2022; reed-solomon-simd has another code altogether. And
//! a parity packet is better summed up while the data packets leave than computed in one burst behind them.
//!
//! Multiplication of vectors doubles: the product by a constant is the sum of those doublings of the data that are set
//! bits of the constant. Doubling has no table, so compilers make vector code of it for any processor, and the seven
//! doublings of a block serve all parity shards at once.

/// x^8 reduced by the polynomial.
const REDUCED: u8 = 0x1d;

/// Bytes that are handled at once: large enough to keep vector units busy, small enough to stay in registers.
const BLOCK: usize = 32;

/// A block, in words: compilers make no vectors of single bytes here.
type Lanes = [u64; BLOCK / 8];

/// Most shards of a group, data and parity together: the field has no more rows.
pub(super) const MAX_SHARDS: usize = 256;

/// The parity rows of the matrix for `k` data and `m` parity shards.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Code {
    k: usize,
    /// Row after row, `k` bytes each.
    rows: Box<[u8]>,
}

impl Code {
    /// Computes the rows. `k` and `m` are at least 1 and at most [`MAX_SHARDS`] together.
    ///
    /// Row r of M holds the values at r of the polynomials that are 1 at one of the points 0 to k - 1 and 0 at the
    /// others (Lagrange), which needs no matrix to be inverted.
    pub(super) fn new(k: usize, m: usize) -> Self {
        let point = |i: usize| u8::try_from(i).expect("at most 256 shards");
        let mut rows = Vec::with_capacity(k * m);
        for r in (k..k + m).map(point) {
            for j in (0..k).map(point) {
                let others = (0..k).map(point).filter(|other| *other != j);
                rows.push(others.fold(1, |product, other| mul(product, div(r ^ other, j ^ other))));
            }
        }
        Self { k, rows: rows.into() }
    }

    /// The factor of data shard `data` in parity shard `parity`.
    pub(super) fn coefficient(&self, parity: usize, data: usize) -> u8 {
        self.rows[parity * self.k + data]
    }
}

/// Adds `data`, times its coefficient, to each row of `sums`; rows that are shorter grow by zeros first.
pub(super) fn accumulate<'a>(mut sums: impl Iterator<Item = (u8, &'a mut Vec<u8>)>, data: &[u8]) {
    loop {
        // A handful at a time, so that the doublings are shared.
        let mut few: [Option<(u8, &mut [u8])>; 4] = std::array::from_fn(|_| {
            let (factor, row) = sums.next()?;
            if row.len() < data.len() {
                row.resize(data.len(), 0);
            }
            Some((factor, &mut row[..data.len()]))
        });
        if few[0].is_none() {
            return;
        }
        accumulate_few(&mut few, data);
    }
}

fn accumulate_few(rows: &mut [Option<(u8, &mut [u8])>; 4], data: &[u8]) {
    let (blocks, tail) = data.as_chunks::<BLOCK>();
    for (number, block) in blocks.iter().enumerate() {
        let powers = doublings(load(block));
        for (factor, row) in rows.iter_mut().flatten() {
            add_scaled(&mut row.as_chunks_mut::<BLOCK>().0[number], *factor, &powers);
        }
    }
    let from = data.len() - tail.len();
    for (factor, row) in rows.iter_mut().flatten() {
        row[from..].iter_mut().zip(tail).for_each(|(sum, byte)| *sum ^= mul(*byte, *factor));
    }
}

#[inline(always)]
fn load(block: &[u8; BLOCK]) -> Lanes {
    let mut lanes = [0; BLOCK / 8];
    for (lane, bytes) in lanes.iter_mut().zip(block.as_chunks::<8>().0) {
        *lane = u64::from_ne_bytes(*bytes);
    }
    lanes
}

/// The block times 1, 2, 4, to 128.
#[inline(always)]
fn doublings(block: Lanes) -> [Lanes; 8] {
    let mut powers = [block; 8];
    let mut last = block;
    for power in &mut powers[1..] {
        last.iter_mut().for_each(|lane| *lane = double_lanes(*lane));
        *power = last;
    }
    powers
}

#[inline(always)]
fn add_scaled(row: &mut [u8; BLOCK], factor: u8, powers: &[Lanes; 8]) {
    let mut sum = load(row);
    for (bit, power) in powers.iter().enumerate() {
        if factor >> bit & 1 == 1 {
            for lane in 0..BLOCK / 8 {
                sum[lane] ^= power[lane];
            }
        }
    }
    for (bytes, lane) in row.as_chunks_mut::<8>().0.iter_mut().zip(sum) {
        *bytes = lane.to_ne_bytes();
    }
}

/// Each of eight bytes times 2.
#[inline(always)]
fn double_lanes(lanes: u64) -> u64 {
    let high = lanes & 0x8080_8080_8080_8080;
    let carry = (high << 1).wrapping_sub(high >> 7);
    (lanes << 1) & 0xfefe_fefe_fefe_fefe ^ carry & (u64::from(REDUCED) * 0x0101_0101_0101_0101)
}

/// Times 2, without a branch.
#[inline(always)]
fn double(byte: u8) -> u8 {
    let carry = 0_u8.wrapping_sub(byte >> 7);
    byte << 1 ^ (carry & REDUCED)
}

/// The product of two elements.
pub(super) fn mul(a: u8, b: u8) -> u8 {
    let mut power = a;
    let mut product = 0;
    for bit in 0..8 {
        product ^= power & 0_u8.wrapping_sub(b >> bit & 1);
        power = double(power);
    }
    product
}

/// `a / b`; `b` is not 0.
pub(super) fn div(a: u8, b: u8) -> u8 {
    // b^254 is the inverse: 254 = 2 + 4 + ... + 128.
    let mut power = b;
    let mut quotient = a;
    for _ in 1..8 {
        power = mul(power, power);
        quotient = mul(quotient, power);
    }
    quotient
}

/// Inverts a square matrix of `n` rows (Gauss and Jordan); `None` if it has no inverse.
pub(super) fn invert(matrix: &[u8], n: usize) -> Option<Vec<u8>> {
    let mut left = matrix.to_vec();
    let mut right = vec![0; n * n];
    (0..n).for_each(|i| right[i * n + i] = 1);
    for column in 0..n {
        let pivot = (column..n).find(|row| left[row * n + column] != 0)?;
        for at in 0..n {
            left.swap(pivot * n + at, column * n + at);
            right.swap(pivot * n + at, column * n + at);
        }
        let scale = div(1, left[column * n + column]);
        for matrix in [&mut left, &mut right] {
            matrix[column * n..][..n].iter_mut().for_each(|value| *value = mul(*value, scale));
        }
        for row in (0..n).filter(|row| *row != column) {
            let factor = left[row * n + column];
            for matrix in [&mut left, &mut right] {
                for at in 0..n {
                    matrix[row * n + at] ^= mul(matrix[column * n + at], factor);
                }
            }
        }
    }
    Some(right)
}

#[cfg(test)]
mod tests {
    use adit_testkit::{hex, load};

    use super::*;

    fn count(row: &serde_json::Value, key: &str) -> usize {
        usize::try_from(row[key].as_u64().unwrap()).unwrap()
    }

    fn shards(row: &serde_json::Value, key: &str) -> Vec<Vec<u8>> {
        row[key].as_array().unwrap().iter().map(|digits| hex(digits.as_str().unwrap())).collect()
    }

    #[test]
    fn field() {
        for a in 0..=255 {
            assert_eq!(double(a), mul(a, 2));
            for b in 1..=255 {
                assert_eq!(mul(div(a, b), b), a, "{a} / {b}");
            }
        }
    }

    #[test]
    fn lanes() {
        for byte in 0..=255_u8 {
            let lanes = u64::from_ne_bytes([byte, 0, 0xff, byte, 0x80, 1, byte, byte]);
            let doubled = [byte, 0, 0xff, byte, 0x80, 1, byte, byte].map(double);
            assert_eq!(double_lanes(lanes).to_ne_bytes(), doubled);
        }
    }

    #[test]
    fn recorded_parity() {
        let file = load("kcp/rs.json");
        for row in file["vectors"].as_array().unwrap() {
            let (k, m) = (count(row, "data_shards"), count(row, "parity_shards"));
            let code = Code::new(k, m);
            assert_eq!(code.rows[..], shards(row, "parity_matrix_rows_hex").concat(), "{k}/{m}");
            let mut parity = vec![Vec::new(); m];
            for (j, data) in shards(row, "data").iter().enumerate() {
                let sums = parity.iter_mut().enumerate().map(|(i, sum)| (code.coefficient(i, j), sum));
                accumulate(sums, data);
            }
            assert_eq!(parity, shards(row, "parity"), "{k}/{m}");
        }
    }

    #[test]
    fn inverse_of_every_small_corner() {
        let code = Code::new(10, 5);
        for n in 1..=5 {
            let matrix: Vec<u8> = (0..n * n).map(|at| code.coefficient(at / n, at % n)).collect();
            let inverse = invert(&matrix, n).unwrap();
            for (row, column) in (0..n * n).map(|at| (at / n, at % n)) {
                let sum = (0..n).fold(0, |sum, i| sum ^ mul(matrix[row * n + i], inverse[i * n + column]));
                assert_eq!(sum, u8::from(row == column));
            }
        }
        assert_eq!(invert(&[1, 2, 1, 2], 2), None);
    }
}
