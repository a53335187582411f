//! Lists that are kept up to date: members of groups, and values of rules.

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::time::Duration;

use super::rule::FileLine;
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
    /// Lists by their codes, of which rules name some.
    Database {
        /// Its form.
        database: DatabaseFormat,
        /// The codes that rules name, in lower case.
        lists: BTreeSet<String>,
    },
}

/// The form of a database.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DatabaseFormat {
    /// Lists of names, in V2Ray's format.
    Sites,
    /// Lists of networks, in V2Ray's format.
    Addresses,
    /// Countries and other codes of networks, in MaxMind's format.
    Countries,
    /// Numbers of autonomous systems, in MaxMind's format.
    Numbers,
}

/// The kind of the entries of a list; a name stands for one list of each.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum ListKind {
    /// Outbounds.
    Outbounds,
    /// Names, networks or rules.
    Rules,
    /// A database.
    Database,
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

/// A list of outbounds as `adit.toml` writes it. Its entries become outbounds when the configuration is put to use.
#[derive(Debug, Clone)]
pub struct OutboundList {
    /// Its name, once among such lists.
    pub name: Tag,
    /// The file, relative to the folder of the configuration; `None` if it holds its links itself.
    pub path: Option<PathBuf>,
    /// The server that the file is a copy of, if it is one.
    pub download: Option<Box<Download>>,
    /// Links of a list that stands in the configuration.
    pub links: Vec<Secret>,
    /// Expressions of which one must be found in the name of an entry, separated by backticks; empty for any name.
    pub filter: Box<str>,
    /// Expressions of which none may be found, separated by backticks; empty for none.
    pub exclude: Box<str>,
    /// Text in front of each name.
    pub prefix: Box<str>,
    /// The outbound that entries dial through.
    pub dial_through: Option<Tag>,
    /// The test of all entries by time, if there is one.
    pub test: Option<DelayTest>,
    /// Its place in the configuration.
    pub at: FileLine,
}

/// Two lists are equal if they say the same, wherever they are written.
impl PartialEq for OutboundList {
    fn eq(&self, other: &Self) -> bool {
        let own = |list: &Self| (list.name.clone(), list.path.clone(), list.dial_through.clone());
        own(self) == own(other)
            && self.download == other.download
            && self.links == other.links
            && (&self.filter, &self.exclude, &self.prefix) == (&other.filter, &other.exclude, &other.prefix)
            && self.test == other.test
    }
}

/// Longest document of a provider in bytes, if its configuration does not say less.
pub const MAX_DOCUMENT: usize = 64 << 20;

impl Provider {
    /// The kind of its entries.
    pub fn list_kind(&self) -> ListKind {
        match self.kind {
            ProviderKind::Outbounds { .. } => ListKind::Outbounds,
            ProviderKind::Rules { .. } => ListKind::Rules,
            ProviderKind::Database { .. } => ListKind::Database,
        }
    }

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
