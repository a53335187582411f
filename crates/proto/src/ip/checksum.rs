//! The Internet checksum (RFC 1071), and its change when parts of the data change (RFC 1624).

use std::net::IpAddr;

/// The sum of `bytes` as 16-bit words, big-endian; a last odd byte is the high half of a word. To be added to others, of
/// which all but the last have an even number of bytes. Sums of up to 65,536 words fit.
pub fn sum(bytes: &[u8]) -> u32 {
    let mut wide = 0_u64;
    let mut words = bytes.chunks_exact(8);
    for word in words.by_ref() {
        let Some(word) = word.first_chunk::<8>() else { continue };
        let word = u64::from_be_bytes(*word);
        wide += (word >> 32) + (word & 0xffff_ffff);
    }
    let mut rest = [0; 8];
    let left = words.remainder();
    rest[..left.len()].copy_from_slice(left);
    let rest = u64::from_be_bytes(rest);
    wide += (rest >> 32) + (rest & 0xffff_ffff);
    fold_wide(wide)
}

/// A sum of 32-bit words as one of 16-bit words.
fn fold_wide(wide: u64) -> u32 {
    let halves = (wide & 0xffff) + (wide >> 16 & 0xffff) + (wide >> 32 & 0xffff) + (wide >> 48);
    u32::try_from(halves).expect("four halves of 16 bits fit")
}

/// The sum as one word, with the carries added.
pub fn fold(mut sum: u32) -> u16 {
    while let Err(_carry) = u16::try_from(sum) {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    u16::try_from(sum).expect("it has been folded")
}

/// The checksum of data with this sum.
pub fn finish(sum: u32) -> u16 {
    !fold(sum)
}

/// The sum of two addresses of one family: the part of a pseudo header that rewriting changes.
pub fn addresses(from: IpAddr, to: IpAddr) -> u32 {
    let one = |address: IpAddr| match address {
        IpAddr::V4(v4) => sum(&v4.octets()),
        IpAddr::V6(v6) => sum(&v6.octets()),
    };
    one(from) + one(to)
}

/// The sum of a pseudo header (RFC 9293, 3.1; RFC 8200, 8.1) for `len` bytes of `protocol`.
pub fn pseudo(from: IpAddr, to: IpAddr, protocol: u8, len: usize) -> u32 {
    let len = u32::try_from(len).unwrap_or(u32::MAX);
    addresses(from, to) + u32::from(protocol) + (len >> 16) + (len & 0xffff)
}

/// The checksum `before` after words with the sum `old` have become words with the sum `new` (RFC 1624, equation 3).
pub fn adjust(before: u16, old: u32, new: u32) -> u16 {
    let sum = u32::from(!before) + u32::from(!fold(old)) + u32::from(fold(new));
    !fold(sum)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// The sum as RFC 1071 writes it, word by word.
    fn plain(bytes: &[u8]) -> u16 {
        let mut sum = 0_u64;
        for pair in bytes.chunks(2) {
            sum += u64::from(pair[0]) << 8 | pair.get(1).map_or(0, |low| u64::from(*low));
        }
        while sum > 0xffff {
            sum = (sum & 0xffff) + (sum >> 16);
        }
        u16::try_from(sum).unwrap()
    }

    #[test]
    fn the_example_of_rfc_1071() {
        // Section 3: the sum of these eight bytes is ddf2.
        assert_eq!(fold(sum(&[0x00, 0x01, 0xf2, 0x03, 0xf4, 0xf5, 0xf6, 0xf7])), 0xddf2);
    }

    #[test]
    fn the_examples_of_rfc_1624() {
        // Section 4: m = 5555 becomes 3285 in a header whose checksum is dd2f; equation 3 gives 0000, equation 2 does not.
        assert_eq!(adjust(0xdd2f, 0x5555, 0x3285), 0x0000);
    }

    #[test]
    fn the_largest_packet_fits() {
        assert_eq!(fold(sum(&vec![0xff; 65_536])), plain(&vec![0xff; 65_536]));
    }

    proptest! {
        #[test]
        fn sums_are_those_of_the_plain_loop(bytes in prop::collection::vec(any::<u8>(), 0..600)) {
            prop_assert_eq!(fold(sum(&bytes)) % 0xffff, plain(&bytes) % 0xffff);
        }

        #[test]
        fn adjusting_is_summing_again(
            mut bytes in prop::collection::vec(any::<u8>(), 8..80),
            new in any::<[u8; 4]>(),
        ) {
            let before = finish(sum(&bytes));
            let old: [u8; 4] = bytes[2..6].try_into().unwrap();
            bytes[2..6].copy_from_slice(&new);
            let after = adjust(before, sum(&old), sum(&new));
            // A receiver adds everything up and expects ones.
            prop_assert_eq!(fold(sum(&bytes) + u32::from(after)) % 0xffff, 0);
        }
    }
}
