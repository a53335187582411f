//! Scenarios: which subjects, which measures, how much of them.

use std::fs;
use std::path::Path;

use anyhow::{Context, Result, bail};
use serde::Deserialize;

/// A scenario; every field may be left out of a file and is then that of [`Scenario::quick`].
#[derive(Debug, Clone, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields, default)]
pub struct Scenario {
    /// Its name.
    pub name: String,
    /// Names of the subjects, in the order of the tables.
    pub subjects: Vec<String>,
    /// Names of the measures, in the order of the tables.
    pub measures: Vec<String>,
    /// How often everything is repeated.
    pub rounds: usize,
    /// The subject to compare with, or `none`.
    pub baseline: String,
    /// Seconds over which bulk bytes count.
    pub seconds: f64,
    /// Fresh connections.
    pub connections: usize,
    /// Connections for the time to the first byte.
    pub first_byte: usize,
    /// Idle connections.
    pub idle: usize,
    /// Seconds after opening and after closing idle connections before memory is read.
    pub settle: u64,
}

impl Default for Scenario {
    fn default() -> Self {
        Self::quick()
    }
}

fn names(text: &str) -> Vec<String> {
    text.split_whitespace().map(str::to_owned).collect()
}

impl Scenario {
    /// A look that takes a minute or two.
    #[must_use]
    pub fn quick() -> Self {
        Self {
            name: "quick".into(),
            subjects: names("floor-plain floor-aead adit-snell sing-box-snell5 opensnell"),
            measures: names("down1 down8 up8 conn first-byte base"),
            rounds: 3,
            baseline: "floor-aead".into(),
            seconds: 1.0,
            connections: 1000,
            first_byte: 200,
            idle: 9000,
            settle: 5,
        }
    }

    /// Everything that the project's bars are decided by.
    #[must_use]
    pub fn full() -> Self {
        Self {
            name: "full".into(),
            subjects: names(
                "direct floor-plain floor-aead adit-snell adit-snell-reuse sing-box-snell5 sing-box-snell5-reuse \
                 sing-box-ss2022 opensnell opensnell-reuse",
            ),
            measures: names("base down1 down8 down64 up1 up8 conn conn8 first-byte calls idle"),
            rounds: 5,
            seconds: 1.5,
            connections: 2000,
            first_byte: 300,
            ..Self::quick()
        }
    }

    /// The ready-made scenario of that name, or the one in that file.
    ///
    /// # Errors
    /// If there is neither, or the file is not a scenario.
    pub fn find(name: &str) -> Result<Self> {
        match name {
            "quick" => Ok(Self::quick()),
            "full" => Ok(Self::full()),
            _ if Path::new(name).is_file() => {
                let text = fs::read_to_string(name).with_context(|| format!("read {name}"))?;
                toml_edit::de::from_str(&text).with_context(|| format!("scenario in {name}"))
            }
            _ => bail!("unknown scenario: {name}\nhint: quick, full or a file"),
        }
    }
}
