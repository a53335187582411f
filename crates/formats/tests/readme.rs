//! Checks that adit reads the examples of README.md.

use adit_formats::adit_toml;

const README: &str = include_str!("../../../README.md");

#[test]
fn every_toml_block_is_a_whole_configuration() {
    let blocks: Vec<&str> =
        README.split("```toml\n").skip(1).filter_map(|rest| rest.split("```").next()).collect();
    assert!(blocks.len() >= 2, "{blocks:?}");
    for block in blocks {
        match adit_toml::parse("README.md", block) {
            Ok(loaded) => assert!(loaded.diagnostics.is_empty(), "{}", loaded.diagnostics),
            Err(found) => panic!("{found}{block}"),
        }
    }
}
