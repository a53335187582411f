//! Lists of servers that are fetched (SIP008), for as long as the program runs.

use std::path::Path;
use std::time::Duration;

use adit_engine::GroupHandle;
use adit_formats::read::source;
use adit_formats::shadowsocks::{Online, sip008};
use adit_model::Tag;
use adit_model::diagnostic::Diagnostics;
use adit_net::dial::Dialer;
use adit_net::fetch::fetch;
use adit_net::rt::{self, Cores, Stop, Stopper};
use adit_net::tls::Roots;
use anyhow::Context as _;

use super::beside::BackgroundLoop;
use crate::load::findings;
use crate::load::supported::ListAddress;

/// Time for one fetch: a slow line brings the longest list in it.
const LIMIT: Duration = Duration::from_secs(30);
/// Pause after a list that could not be had; it doubles up to the usual interval.
const PAUSE: Duration = Duration::from_secs(10);
/// Name of a list in findings. Its address may hold a token.
const NAME: &str = "online_config";

/// Keeps `group` up to date with a list; `taken` are the names of the servers that are there already.
///
/// # Errors
/// When no thread can be made.
pub(super) fn follow(
    online: Online,
    place: ListAddress,
    group: GroupHandle,
    taken: Vec<Tag>,
) -> std::io::Result<BackgroundLoop> {
    let (stopper, stop) = Stopper::new();
    let mut cores = Cores::default();
    cores.start("adit-online".into(), move || async move {
        let mut ending = stop.clone();
        let follower = Follower { online, place, group, taken, stop, said: String::new() };
        rt::race(ending.ending(), Box::pin(follower.run())).await;
    })?;
    Ok(BackgroundLoop::new(stopper, cores))
}

struct Follower {
    online: Online,
    place: ListAddress,
    group: GroupHandle,
    taken: Vec<Tag>,
    stop: Stop,
    /// The last complaint: the same one is not logged twice in a row.
    said: String,
}

impl Follower {
    async fn run(mut self) {
        let mut pause = PAUSE;
        loop {
            let wait = match self.update().await {
                Ok(()) => {
                    pause = PAUSE;
                    self.online.interval
                }
                Err(error) => {
                    let text = format!("{error:#}");
                    if self.is_news(&text) {
                        tracing::warn!(
                            error = text,
                            "list of servers not updated: the servers stay as they are"
                        );
                    }
                    let wait = pause.min(self.online.interval);
                    pause = pause.saturating_mul(2);
                    wait
                }
            };
            let mut stop = self.stop.clone();
            rt::race(stop.ending(), rt::sleep(wait)).await;
        }
    }

    fn is_news(&mut self, text: &str) -> bool {
        let is_news = self.said != text;
        if is_news {
            text.clone_into(&mut self.said);
        }
        is_news
    }

    async fn update(&mut self) -> anyhow::Result<()> {
        let text = match &self.place {
            ListAddress::File(path) => read(path)?,
            ListAddress::Url(url) => {
                let dialer = Dialer::new(&self.online.dial, adit_engine::resolver(&self.online.dial.dns));
                utf8(fetch(&dialer, &Roots::System, url, source::MAX_LEN, LIMIT).await?)?
            }
        };
        let allowed = self.online.allowed_plugins.as_deref();
        let (list, found) = sip008::parse(NAME, &text, allowed)?;
        let (outbounds, left_out) = self.online.outbounds(&list, &self.taken);
        anyhow::ensure!(!outbounds.is_empty(), "every server of the list needs a plugin");
        let count = outbounds.len();
        self.group.replace(outbounds.into_iter().map(|outbound| (outbound, [100, 100])).collect())?;
        tracing::info!(
            servers = count,
            bytes_used = list.bytes_used,
            bytes_remaining = list.bytes_remaining,
            "list of servers is up to date"
        );
        self.complain(&found, left_out);
        Ok(())
    }

    fn complain(&mut self, found: &Diagnostics, left_out: usize) {
        let text = format!("{found}{left_out}");
        if !self.is_news(&text) {
            return;
        }
        findings::log_findings(found);
        if left_out > 0 {
            tracing::warn!(servers = left_out, "servers of the list that need a plugin are left out");
        }
    }
}

fn utf8(bytes: Vec<u8>) -> anyhow::Result<String> {
    String::from_utf8(bytes).context("not UTF-8")
}

fn read(path: &Path) -> anyhow::Result<String> {
    Ok(source::read_regular(path, source::MAX_LEN).map_err(Diagnostics::from)?.to_string())
}
