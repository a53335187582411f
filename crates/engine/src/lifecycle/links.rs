//! Interfaces of this machine that come and go: the capture knows of them, and those of the process itself are made again.

use std::error::Error as _;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use adit_model::Tag;
use adit_net::handover;
use adit_net::netlink::notice::{DefaultRoute, LinkWatch, News};
use adit_net::rt;

use super::running::Prepared;
use super::{Engine, StartError, State};
use crate::transparent::{self, Active};

/// Time between two tries of a server that a capture waits for, and between two looks at tables that others can remove.
const RETRY: Duration = Duration::from_secs(5);
/// Longest time in which the thread that watches interfaces does not look at the capture, and whether the engine has ended.
const LOOK: Duration = Duration::from_secs(10);

impl Engine {
    /// Tries the server once more, and captures if it can be reached by now.
    fn retry_capture(&self) {
        let config = self.state().config.clone();
        let Some(settings) = &config.capture else { return };
        if transparent::unreachable(settings, &config).is_some() {
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
        let prepared = Prepared::new(self, model, &config, state, Some(metrics), &Arc::default())?;
        let mut orders = self.orders();
        state.inbounds.insert(name.clone(), prepared.open(&mut orders));
        self.send_and_wait(orders);
        self.show(state);
        Ok(())
    }

    fn patience(&self) -> Duration {
        let is_watched = |capture: &Option<Active>| capture.as_ref().is_some_and(Active::is_unprotected);
        let is_waiting = self.capture_waits.load(Ordering::Relaxed);
        if is_waiting || is_watched(&self.state().capture) { RETRY } else { LOOK }
    }

    /// Follows the kernel's news, and looks after the capture where that `is_due`.
    fn follow_news(&self, news: &News, is_due: bool) {
        if news.has_links {
            self.remake_interfaces();
        }
        if self.capture_waits.load(Ordering::Relaxed) {
            return self.retry_capture();
        }
        let mut state = self.state();
        let Some(active) = &mut state.capture else { return };
        news.routes.iter().for_each(tell_route);
        if news.has_links || (is_due && active.follows_routes()) {
            match active.follow_links() {
                Ok(true) => tracing::info!("the capture knows of other interfaces or networks now"),
                Ok(false) => {}
                Err(error) => tracing::warn!(%error, "the capture does not know of other interfaces"),
            }
        }
        let looked = if is_due { active.look_after(rt::now()) } else { Ok(false) };
        match looked {
            Ok(true) => tracing::warn!(
                "the rules of the capture were gone, another program has removed them (nft flush ruleset): they are there again"
            ),
            Ok(false) => {}
            Err(error) => {
                tracing::error!(%error, "the rules of the capture are gone, and cannot be made again: nothing is captured");
            }
        }
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
            let mut looked = rt::now();
            loop {
                let Some(engine) = engine.upgrade() else { return };
                let patience = engine.patience();
                // Nothing is held while it waits.
                drop(engine);
                let Ok(news) = watch.wait(patience) else { return };
                let Some(engine) = ended.upgrade() else { return };
                if engine.is_ending() {
                    return;
                }
                let now = rt::now();
                let is_due = now.saturating_duration_since(looked) >= patience;
                if is_due {
                    looked = now;
                }
                // A router tells of thousands of routes, none of which matters here.
                if is_due || news != News::default() {
                    engine.follow_news(&news, is_due);
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

/// One line about a default route: captured traffic goes on, and connections of adit's own follow the route.
fn tell_route(route: &DefaultRoute) {
    let version = if route.is_v6 { "IPv6" } else { "IPv4" };
    if route.is_there {
        tracing::info!("the default route of {version} is now {route}: connections of adit's own follow it");
    } else {
        tracing::info!(
            "a default route of {version} is gone: {route}; connections of adit's own take another, or fail"
        );
    }
}
