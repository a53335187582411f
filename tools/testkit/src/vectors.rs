use std::path::Path;

use serde_json::Value;

/// Reads `path`, relative to the workspace's `testdata` directory, as JSON.
///
/// # Panics
/// If the file is missing or is no JSON: the test cannot go on.
pub fn load(path: &str) -> Value {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../testdata").join(path);
    let bytes = std::fs::read(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    serde_json::from_slice(&bytes).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// The text at `key` of a row.
///
/// # Panics
/// If there is none.
pub fn text<'a>(row: &'a Value, key: &str) -> &'a str {
    row[key].as_str().unwrap_or_else(|| panic!("no text {key} in the row"))
}

/// Bytes from hex digits; white space is skipped.
///
/// # Panics
/// If `digits` are no hex.
pub fn hex(digits: &str) -> Vec<u8> {
    let digits: Vec<u8> = digits.bytes().filter(|byte| !byte.is_ascii_whitespace()).collect();
    assert!(digits.len().is_multiple_of(2), "odd number of hex digits: {}", digits.len());
    let byte = |pair: &[u8]| {
        let text = std::str::from_utf8(pair).expect("hex digits are ASCII");
        u8::from_str_radix(text, 16).unwrap_or_else(|_| panic!("no hex digits: {text}"))
    };
    digits.chunks(2).map(byte).collect()
}

/// The pattern payload of the vectors: byte i is (7 i + i / 256) mod 256.
pub fn pattern(len: usize) -> Vec<u8> {
    (0..len).map(|i| u8::try_from((7 * i + i / 256) % 256).expect("reduced modulo 256")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn digits() {
        assert_eq!(hex("00 ff\n1a"), [0, 255, 26]);
        assert_eq!(pattern(258)[255..], [0xf9, 1, 8]);
    }
}
