//! Names of inbounds and outbounds.

use std::borrow::Borrow;
use std::fmt;
use std::ops::Deref;
use std::sync::Arc;

/// The name of an inbound or of an outbound. A clone costs one counter; it is compared by its text.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Tag(Arc<str>);

impl Tag {
    /// The text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl Deref for Tag {
    type Target = str;

    fn deref(&self) -> &str {
        &self.0
    }
}

impl Borrow<str> for Tag {
    fn borrow(&self) -> &str {
        &self.0
    }
}

impl AsRef<str> for Tag {
    fn as_ref(&self) -> &str {
        &self.0
    }
}

impl From<&str> for Tag {
    fn from(text: &str) -> Self {
        Self(text.into())
    }
}

impl From<String> for Tag {
    fn from(text: String) -> Self {
        Self(text.into())
    }
}

impl From<Arc<str>> for Tag {
    fn from(text: Arc<str>) -> Self {
        Self(text)
    }
}

impl From<Tag> for Arc<str> {
    fn from(tag: Tag) -> Self {
        tag.0
    }
}

impl PartialEq<str> for Tag {
    fn eq(&self, text: &str) -> bool {
        *self.0 == *text
    }
}

impl PartialEq<&str> for Tag {
    fn eq(&self, text: &&str) -> bool {
        *self.0 == **text
    }
}

impl fmt::Display for Tag {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&self.0)
    }
}

/// The plain text, without quotation marks.
impl fmt::Debug for Tag {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}
