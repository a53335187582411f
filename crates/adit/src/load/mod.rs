//! From files, flags and links to a configuration, and the parts that this machine lacks for it.

pub(crate) mod convert_ruleset;
pub(crate) mod detect;
pub(crate) mod files;
pub(crate) mod findings;
pub(crate) mod missing_parts;
pub(crate) mod providers;
pub(crate) mod readable;
pub(crate) mod supported;
