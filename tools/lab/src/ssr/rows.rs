//! The ten rows, with the figures that the fork's author published in its README.
//!
//! They were taken on a 2.3 GHz Core i5-6300HQ with macOS: iperf3 for ten seconds, the truncated mean of five runs, the
//! C client and the Python server compiled by nuitka. `aes-256-ctr` is 100 percent.

use super::primitive::Primitive;

/// One combination of method, protocol and obfs.
#[derive(Debug)]
pub(super) struct Row {
    pub(super) method: &'static str,
    pub(super) protocol: &'static str,
    pub(super) obfs: &'static str,
    /// Mbit/s as published.
    pub(super) published: u32,
    /// Percent of `aes-256-ctr` as published.
    pub(super) percent: u32,
    /// The work that the protocol does on every byte besides the cipher.
    pub(super) primitive: Option<Primitive>,
}

/// The table in its own order. The obfs of the first four was written `plain`, and so was the protocol, which is `origin`.
pub(super) const ROWS: [Row; 10] = [
    row(["none", "origin", "plain"], 1900, 122, None),
    row(["rc4-md5", "origin", "plain"], 1000, 64, None),
    row(["aes-128-cfb", "origin", "plain"], 925, 59, None),
    row(["aes-256-ctr", "origin", "plain"], 1560, 100, None),
    row(["aes-256-ctr", "auth_aes128_fast", "plain"], 1410, 90, Some(Primitive::SipHash)),
    row(["aes-256-ctr", "auth_sha1_v4", "plain"], 1230, 79, Some(Primitive::Adler32)),
    row(["aes-256-ctr", "auth_aes128_md5", "plain"], 697, 45, Some(Primitive::HmacMd5)),
    row(["none", "auth_chain_a", "plain"], 295, 19, Some(Primitive::Rc4HmacMd5)),
    row(["aes-256-ctr", "auth_aes128_fast", "go_quiet"], 1250, 80, Some(Primitive::SipHash)),
    row(["aes-256-ctr", "auth_aes128_fast", "tls1.2_ticket_auth"], 951, 61, Some(Primitive::SipHash)),
];

const fn row(
    [method, protocol, obfs]: [&'static str; 3],
    published: u32,
    percent: u32,
    primitive: Option<Primitive>,
) -> Row {
    Row { method, protocol, obfs, published, percent, primitive }
}

impl Row {
    /// As subjects take it.
    pub(super) fn name(&self) -> String {
        format!("{}/{}/{}", self.method, self.protocol, self.obfs)
    }

    /// The row with the same method and nothing else: what this one costs above it is protocol and obfs.
    pub(super) fn plain(&self) -> String {
        format!("{}/origin/plain", self.method)
    }
}

/// The row that is 100 percent.
pub(super) const REFERENCE: &str = "aes-256-ctr/origin/plain";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_row_has_its_plain_one() {
        let names: Vec<String> = ROWS.iter().map(Row::name).collect();
        assert!(names.contains(&REFERENCE.to_owned()));
        for row in &ROWS {
            assert!(names.contains(&row.plain()), "{}", row.name());
            assert_eq!(row.primitive.is_none(), row.name() == row.plain());
            // The author rounded the percentages from the rates.
            assert!((f64::from(row.published) / 15.6 - f64::from(row.percent)).abs() < 1.0, "{}", row.name());
        }
    }
}
