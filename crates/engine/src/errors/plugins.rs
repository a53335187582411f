//! Plugins that end, as errors of their inbound or outbound.

use std::sync::Arc;

use adit_model::Tag;
use adit_model::codes;
use adit_net::plugin::Observer;
use adit_net::rt;

use super::{ConfigPart, Fault, Faults};

/// Notes the plugins of one kind of part.
pub(crate) struct PluginFaults {
    faults: Arc<Faults>,
    part: fn(Tag) -> ConfigPart,
}

impl PluginFaults {
    /// Those of the parts that `part` makes.
    pub(crate) fn new(faults: Arc<Faults>, part: fn(Tag) -> ConfigPart) -> Self {
        Self { faults, part }
    }
}

impl Observer for PluginFaults {
    fn ended(&self, name: &Tag, why: &str) {
        let fault = Fault::new(codes::PLUGIN_ENDED, why.to_owned());
        self.faults.note(&(self.part)(name.clone()), fault, rt::now());
    }

    fn started(&self, name: &Tag) {
        self.faults.clear(&(self.part)(name.clone()), &[codes::PLUGIN_ENDED], rt::now());
    }
}
