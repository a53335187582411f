//! Lists that are kept up to date: members of groups, and values of rules.

use std::path::PathBuf;
use std::time::Duration;

use super::{DelayTest, Secret, Tag};

/// A list that comes from somewhere else.
#[derive(Debug, Clone, PartialEq)]
pub struct Provider {
    /// Its name, once among providers of its kind.
    pub name: Tag,
    /// Kind of its entries.
    pub kind: ProviderKind,
    /// Its origin.
    pub source: ProviderSource,
    /// The file that holds it; `None` if it stands in the configuration.
    pub path: Option<PathBuf>,
    /// Why there is nothing of it, or not all.
    pub problem: Option<Box<str>>,
}

/// The contents of a list.
#[derive(Debug, Clone, PartialEq)]
pub enum ProviderKind {
    /// Outbounds.
    Outbounds {
        /// Those that it holds, in order.
        members: Vec<Tag>,
        /// The test of their delays, if it has one of its own.
        test: Option<DelayTest>,
    },
    /// Names, networks or rules.
    Rules {
        /// `domain`, `ipcidr` or `classical`.
        behavior: &'static str,
        /// `yaml`, `text` or `mrs`; empty for a list in the configuration.
        format: &'static str,
        /// Lines that are in use.
        count: usize,
    },
}

/// The place that a list comes from.
#[derive(Debug, Clone, PartialEq)]
pub enum ProviderSource {
    /// The configuration.
    Inline,
    /// A file that somebody else writes.
    File,
    /// A server. The file is its copy.
    Http(Box<Download>),
}

/// A document that is fetched.
#[derive(Debug, Clone, PartialEq)]
pub struct Download {
    /// The address, which may hold a token.
    pub url: Secret,
    /// Time between two fetches; `None` for none by time.
    pub interval: Option<Duration>,
    /// The outbound that it is fetched through; `None` for the way that the rules say.
    pub through: Option<Tag>,
    /// Fields of the request.
    pub headers: Vec<(Box<str>, Secret)>,
    /// Longest document in bytes.
    pub max_len: usize,
}

/// Longest document of a provider in bytes, if its configuration does not say less.
pub const MAX_DOCUMENT: usize = 64 << 20;

impl Provider {
    /// Whether it lists outbounds.
    pub fn has_outbounds(&self) -> bool {
        matches!(self.kind, ProviderKind::Outbounds { .. })
    }

    /// Its document, if it is fetched.
    pub fn download(&self) -> Option<&Download> {
        match &self.source {
            ProviderSource::Http(download) => Some(download),
            ProviderSource::Inline | ProviderSource::File => None,
        }
    }
}
