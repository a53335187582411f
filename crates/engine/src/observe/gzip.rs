//! One gzip member (RFC 1952), made at once.
//!
//! ```text
//!   1F 8B | 08 deflate | 00 flags | 00 00 00 00 no time | 00 | FF system unknown | deflate ... | CRC-32 | length
//!   CRC-32 and the length of the content modulo 2^32 in little endian, 4 bytes each
//! ```

/// Fields before the content.
const HEAD: [u8; 10] = [0x1f, 0x8b, 8, 0, 0, 0, 0, 0, 0, 0xff];
/// The fastest level: the text of metrics shrinks to a tenth of it already.
const LEVEL: u8 = 1;

/// `content`, compressed.
pub(super) fn gzip(content: &[u8]) -> Vec<u8> {
    let mut out = HEAD.to_vec();
    out.extend(miniz_oxide::deflate::compress_to_vec(content, LEVEL));
    out.extend(crc32fast::hash(content).to_le_bytes());
    let len = u32::try_from(content.len() & 0xffff_ffff).unwrap_or_default();
    out.extend(len.to_le_bytes());
    out
}

#[cfg(test)]
pub(super) fn gunzip(bytes: &[u8]) -> Vec<u8> {
    let (head, rest) = bytes.split_at(HEAD.len());
    let (deflated, end) = rest.split_at(rest.len() - 8);
    assert_eq!(head, HEAD);
    let content = miniz_oxide::inflate::decompress_to_vec(deflated).unwrap();
    let len = u32::try_from(content.len()).unwrap();
    assert_eq!(end, [crc32fast::hash(&content).to_le_bytes(), len.to_le_bytes()].concat());
    content
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn content_comes_back_and_is_smaller() {
        let text = "adit_bytes_total{inbound=\"in\",proto=\"tcp\",dir=\"up\"} 12345\n".repeat(1000);
        let small = gzip(text.as_bytes());
        assert!(small.len() < text.len() / 20, "{}", small.len());
        assert_eq!(gunzip(&small), text.as_bytes());
        assert_eq!(gunzip(&gzip(b"")), b"");
    }
}
