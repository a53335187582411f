//! Readers of texts: JSON, YAML, flags, and the values in them. Every format is read by these.

pub(crate) mod json;
pub(crate) mod json_fields;
pub(crate) mod kinds;
pub mod loaded;
pub(crate) mod name_servers;
pub mod source;
pub(crate) mod usage;
pub(crate) mod value;
pub(crate) mod yaml;
pub(crate) mod yaml_access;
