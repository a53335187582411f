//! The system's settings for names: its name servers, search domains and hosts file. Both files are read again when
//! they change.

use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use adit_config::model::Upstream;
use hickory_proto::rr::Name;

use super::files::{Hosts, ResolvConf, Stamp, stamp};
use super::message::{absolute, relative};
use super::shared::{lock, plain};

/// Interval at which the files are checked for changes; the resolver of Go does it at the same pace.
const CHECK_EVERY: Duration = Duration::from_secs(5);

/// The two files, with what was last read.
pub(super) struct System {
    resolv_conf: PathBuf,
    hosts: PathBuf,
    last: Mutex<Option<(Instant, Arc<Snapshot>)>>,
}

/// The files at one time.
pub(super) struct Snapshot {
    pub(super) servers: Arc<[Arc<Upstream>]>,
    pub(super) hosts: Hosts,
    search: Vec<Name>,
    ndots: usize,
    stamps: [Stamp; 2],
}

impl Default for System {
    fn default() -> Self {
        Self::new(Path::new("/etc/resolv.conf"), Path::new("/etc/hosts"))
    }
}

impl System {
    pub(super) fn new(resolv_conf: &Path, hosts: &Path) -> Self {
        Self { resolv_conf: resolv_conf.to_owned(), hosts: hosts.to_owned(), last: Mutex::default() }
    }

    /// The present content of the files.
    pub(super) fn read(&self, now: Instant) -> Arc<Snapshot> {
        let mut last = lock(&self.last);
        let stamps = || [stamp(&self.resolv_conf), stamp(&self.hosts)];
        if let Some((checked, snapshot)) = &mut *last {
            if now.saturating_duration_since(*checked) < CHECK_EVERY {
                return snapshot.clone();
            }
            *checked = now;
            if snapshot.stamps == stamps() {
                return snapshot.clone();
            }
        }
        let stamps = stamps();
        let conf = ResolvConf::read(&self.resolv_conf);
        let snapshot = Arc::new(Snapshot {
            servers: conf.servers.iter().map(|server| plain(*server)).collect(),
            hosts: Hosts::read(&self.hosts),
            search: conf.search.iter().filter_map(|domain| absolute(domain).ok()).collect(),
            ndots: conf.ndots,
            stamps,
        });
        *last = Some((now, snapshot.clone()));
        snapshot
    }
}

impl Snapshot {
    /// The names that `name` may stand for, in order. With fewer dots than `ndots` it is tried under the search domains
    /// first; others are tried as they are alone, so that no question for a missing name leaves for a search domain.
    pub(super) fn candidates(&self, name: &str, whole: Name) -> Vec<Name> {
        let is_short = !name.ends_with('.') && name.matches('.').count() < self.ndots;
        let own = relative(name).ok().filter(|_| is_short);
        let found = own.into_iter().flat_map(|own| {
            self.search.iter().filter_map(move |domain| own.clone().append_domain(domain).ok())
        });
        found.chain([whole]).collect()
    }
}
