//! Tests of the entries of lists of outbounds, by time.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use adit_model::{self as model, Tag};
use adit_net::rt;

use super::{EventLoop, Stopper};
use crate::groups::choice::ChoiceShared;

impl EventLoop {
    /// Tests the entries of lists that ask for it, on one core for all. A list that is as it was goes on.
    pub(super) fn check_lists(&self) {
        if self.index != 0 {
            return;
        }
        let config = self.config.borrow().clone();
        let mut listed = self.listed.borrow_mut();
        listed.retain(|_, (list, _)| config.providers.iter().any(|other| has_same_test(other, list)));
        for list in &config.providers {
            let model::ProviderKind::Outbounds { members, test: Some(test) } = &list.kind else { continue };
            if listed.contains_key(&list.name) {
                continue;
            }
            let (stopper, mut stop) = Stopper::new();
            let (members, test, tester) = (members.clone(), test.clone(), self.tester.clone());
            let (choices, names) = (self.choices.clone(), members.iter().cloned().collect::<BTreeSet<Tag>>());
            let is_used = move |within: Duration| {
                let used = |group: &Arc<ChoiceShared>| group.is_used_within(within, rt::now());
                choices.borrow().values().any(|group| used(group) && group.has_one_of(&names))
            };
            rt::spawn_local(async move {
                let check = Box::pin(crate::groups::choice::check_list(members, test, is_used, tester));
                rt::race(stop.draining(), check).await;
            });
            listed.insert(list.name.clone(), (list.clone(), stopper));
        }
    }
}

/// Whether two lists of outbounds have the same entries and test.
fn has_same_test(a: &model::Provider, b: &model::Provider) -> bool {
    a.has_outbounds() && a.name == b.name && a.kind == b.kind
}
