//! Work that the engine has the first core do: tests of delays and downloads through outbounds.

use std::io;
use std::rc::Rc;
use std::sync::Arc;

use adit_model::Tag;
use adit_net::fetch::{Document, FetchError, Wanted, download_through};
use adit_net::rt::Stream;
use adit_net::tls::Roots;
use adit_proto::wire::{Host, Target};

use crate::dns::{Dns, OwnRoute};
use crate::groups::choice::Tester;
use crate::outbound::way;
use crate::routing::Router;
use crate::stream::Outbounds;

/// The parts of a core that jobs use.
#[derive(Clone)]
pub(super) struct Tools {
    pub(super) outbounds: Rc<Outbounds>,
    pub(super) dns: Rc<Dns>,
    pub(super) tester: Rc<Tester>,
    pub(super) router: Arc<Router>,
}

/// Work for a core. It begins at once and spawns the rest.
pub(super) type Job = Box<dyn FnOnce(Tools) + Send>;

/// The way of a download.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum FetchRoute {
    /// Through this outbound.
    Outbound(Tag),
    /// As the rules say of a request without a client; without a matching rule through this outbound.
    Rules(Tag),
}

impl Tools {
    /// Fetches a document; `None` if it is still the version that the request names.
    pub(super) async fn download(
        &self,
        via: &FetchRoute,
        wanted: &Wanted,
    ) -> Result<Option<Document>, FetchError> {
        let connect = async |target: &Target| self.connect(via, target).await;
        Box::pin(download_through(connect, &Roots::System, wanted)).await
    }

    async fn connect(&self, via: &FetchRoute, target: &Target) -> Result<Stream, FetchError> {
        let outbound = match via {
            FetchRoute::Outbound(name) => name.clone(),
            FetchRoute::Rules(default) => self.decide(default, target).await.ok_or_else(|| {
                io::Error::new(io::ErrorKind::PermissionDenied, "a rule refuses the server of the list")
            })?,
        };
        if self.outbounds.get(&outbound).is_none() {
            let problem = format!("there is no outbound {outbound}");
            return Err(io::Error::new(io::ErrorKind::NotFound, problem).into());
        }
        Ok(self.dns.stream_through(&outbound, target).await?)
    }

    /// The outbound that the rules say; `None` if one refuses.
    async fn decide(&self, default: &Tag, target: &Target) -> Option<Tag> {
        let of = |addresses| way(&self.router, &self.outbounds, default, target, addresses);
        let mut found = of(None);
        if found == OwnRoute::NeedsAddresses {
            let ips = match (&target.host, self.outbounds.get(default)) {
                (Host::Name(name), Some(leaf)) => leaf.outbound.lookup(name).await,
                (Host::Name(_) | Host::Ip(_), _) => None,
            };
            found = of(Some(&ips.unwrap_or_default()));
        }
        if let OwnRoute::Outbound(name) = found { Some(name) } else { None }
    }
}
