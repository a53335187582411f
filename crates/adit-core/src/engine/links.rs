//! Interfaces of this machine that come and go: the capture knows of them, and those of the process itself are made again.

use std::error::Error as _;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use adit_config::model::Tag;
use adit_net::handover;
use adit_net::netlink::route::LinkWatch;

use super::held::Prepared;
use super::{Engine, StartError, State};
use crate::capture;

/// Time between two tries of a server that a capture waits for.
const RETRY: Duration = Duration::from_secs(5);
/// Longest time in which the thread that watches interfaces does not look whether the engine has ended.
const LOOK: Duration = Duration::from_secs(60);

impl Engine {
    /// Tries the server once more, and captures if it can be reached by now.
    fn retry_capture(&self) {
        let config = self.state().config.clone();
        let Some(settings) = &config.capture else { return };
        if capture::unreachable(settings, &config).is_some() {
            return;
        }
        let mut state = self.state();
        match self.follow_capture(&mut state) {
            Ok(()) => {
                if let Some(active) = &state.capture {
                    tracing::info!("capturing from now on: {}", active.report());
                }
            }
            Err(error) => {
                self.capture_waits.store(false, Ordering::Relaxed);
                let hint = error.hint().unwrap_or_default();
                tracing::error!(%error, hint, "nothing is captured");
            }
        }
    }

    /// Makes virtual interfaces anew that somebody has removed, with their listeners; the capture follows.
    fn remake_interfaces(&self) {
        let mut state = self.state();
        let state = &mut *state;
        let lost = state.inbounds.values().filter_map(|held| {
            let interface = held.lost_interface()?;
            Some((held.model.name.clone(), interface.to_owned()))
        });
        let lost: Vec<(Tag, String)> = lost.collect();
        if lost.is_empty() || self.is_ending() || handover::is_committed() {
            return;
        }
        for (name, interface) in lost {
            match self.reopen(state, &name) {
                Ok(()) => tracing::warn!(
                    "interface {interface} is gone, somebody has removed it: it is made again, and connections over it begin anew"
                ),
                Err(error) => {
                    let cause = error.source().unwrap_or(&error).to_string();
                    tracing::error!(
                        inbound = %error,
                        cause,
                        "interface {interface} is gone, and cannot be made again: what it took goes straight; restart adit"
                    );
                }
            }
        }
        if let Some(active) = &mut state.capture
            && let Err(error) = active.follow_interface()
        {
            tracing::error!(%error, "the interface has no routes: what it took goes straight; restart adit");
        }
    }

    /// Closes an inbound, and opens it again.
    fn reopen(&self, state: &mut State, name: &Tag) -> Result<(), StartError> {
        let Some(held) = state.inbounds.remove(name) else { return Ok(()) };
        let (model, metrics) = (held.model.clone(), held.metrics.clone());
        held.close(self);
        let config = state.config.clone();
        let stores = (&state.ledger(), &state.salts());
        let prepared = Prepared::new(self, model, &config, stores, Some(metrics))?;
        let mut orders = self.orders();
        state.inbounds.insert(name.clone(), prepared.open(&mut orders));
        self.send_and_wait(orders);
        self.show(state);
        Ok(())
    }

    /// Has the capture know of interfaces that come or go, and makes those anew that are the process's own, for as long as
    /// the engine lives.
    pub(super) fn watch_links(self: &Arc<Self>) {
        let waits = self.capture_waits.load(Ordering::Relaxed);
        let needs = |state: &State| {
            state.capture.is_some()
                || state.config.inbounds.iter().any(|inbound| inbound.interface_name().is_some())
        };
        if (!waits && !needs(&self.state())) || self.watches_links.swap(true, Ordering::Relaxed) {
            return;
        }
        let engine = Arc::downgrade(self);
        let ended = engine.clone();
        let watch = move || {
            let watch = match LinkWatch::open() {
                Ok(watch) => watch,
                Err(error) => return tracing::warn!(%error, "interfaces that come are known after a reload"),
            };
            loop {
                let Some(engine) = engine.upgrade() else { return };
                let patience = if engine.capture_waits.load(Ordering::Relaxed) { RETRY } else { LOOK };
                // Nothing is held while it waits.
                drop(engine);
                let Ok(has_changed) = watch.wait(patience) else { return };
                let Some(engine) = ended.upgrade() else { return };
                if engine.is_ending() {
                    return;
                }
                if has_changed {
                    engine.remake_interfaces();
                }
                if engine.capture_waits.load(Ordering::Relaxed) {
                    engine.retry_capture();
                } else if has_changed && let Some(active) = &mut engine.state().capture {
                    match active.follow_links() {
                        Ok(true) => tracing::info!("the capture knows of other interfaces now"),
                        Ok(false) => {}
                        Err(error) => tracing::warn!(%error, "the capture does not know of other interfaces"),
                    }
                }
            }
        };
        // Without the thread they are known after a reload.
        let started = std::thread::Builder::new().name("adit-links".to_owned()).spawn(watch);
        if let Err(error) = started {
            tracing::warn!(%error, "interfaces that come are known after a reload");
        }
    }
}
