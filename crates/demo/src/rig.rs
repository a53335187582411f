//! Programs that run together in a demo, and the site behind them.

use std::net::SocketAddr;

use anyhow::{Context, Result};

use super::child::Running;
use super::site::Site;
use super::way::Way;

/// Programs and a site, which run until they are dropped.
pub struct Rig {
    /// Each by its name; the one that applications connect to comes first.
    pub(super) programs: Vec<(&'static str, Running)>,
    pub(super) site: Site,
}

impl Rig {
    /// Address that the local proxy listens on.
    #[must_use]
    pub fn proxy(&self) -> SocketAddr {
        self.programs[0].1.address
    }

    /// The address of the site, as a link.
    #[must_use]
    pub fn url(&self) -> String {
        format!("http://{}/", self.site.address)
    }

    /// Fails when one of the processes has ended.
    ///
    /// # Errors
    /// The name of a program that has ended, with its last lines.
    pub fn alive(&mut self) -> Result<()> {
        for (name, running) in &mut self.programs {
            running.alive().with_context(|| format!("the {name} ended"))?;
        }
        Ok(())
    }

    pub(super) fn pids(&self) -> Vec<u32> {
        self.programs.iter().map(|(_, running)| running.pid()).collect()
    }

    pub(super) fn way(&self) -> Way<'_> {
        Way { proxy: self.proxy(), site: &self.site }
    }
}
