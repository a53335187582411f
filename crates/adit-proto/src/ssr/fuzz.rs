//! Entry points for fuzzing, and what tests need.

/// Vectors, for tests inside the crate.
#[cfg(test)]
pub(crate) mod testing {
    use std::path::Path;

    use serde_json::Value;

    pub(crate) fn hex(text: &str) -> Vec<u8> {
        (0..text.len()).step_by(2).map(|i| u8::from_str_radix(&text[i..i + 2], 16).unwrap()).collect()
    }

    /// The rows of a file of `testdata/ssr`.
    pub(crate) fn vectors(name: &str) -> Vec<Value> {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../testdata/ssr").join(name);
        let content = std::fs::read(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
        serde_json::from_slice(&content).unwrap()
    }
}
