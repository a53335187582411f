//! The run of a service over HTTP: the broker's, and the probe server's.

use std::net::SocketAddr;
use std::time::Duration;

use adit_config::model::TlsFiles;
use adit_net::rt::{self, Signal, Signals, Stopper};
use adit_net::service::{Asked, Service, Told};
use adit_net::tls_server::TlsIdentity;

use super::SnowflakeError;
use crate::acme;

/// A service to run.
pub(super) struct Serving<'a> {
    pub(super) listen: SocketAddr,
    pub(super) tls: Option<&'a TlsFiles>,
    /// Time that open requests have when the process is told to stop.
    pub(super) drain: Duration,
}

impl Serving<'_> {
    /// Serves until SIGINT or SIGTERM. SIGHUP calls `reload`, and reads the files of the certificate again. `ready` is told
    /// the address once it listens.
    ///
    /// # Errors
    /// See [`SnowflakeError`].
    pub(super) async fn run<F: Future<Output = Told> + 'static>(
        self,
        ready: impl FnOnce(SocketAddr),
        reload: impl Fn(),
        answer: impl Fn(Asked) -> F + 'static,
    ) -> Result<(), SnowflakeError> {
        let mut signals = Signals::new().map_err(SnowflakeError::Loop)?;
        let tls = self.tls.map(TlsIdentity::open);
        let tls = tls.transpose().map_err(SnowflakeError::Tls)?;
        let (mut service, _) = Service::listen(self.listen)?;
        super::bound(&mut service);
        service.tls.clone_from(&tls);
        let at = service.local_addr().map_err(SnowflakeError::Loop)?;
        ready(at);
        let certificate = acme::keep(self.tls, tls.as_ref(), at);
        let (stopper, stop) = Stopper::new();
        let signalled = async {
            loop {
                match signals.next().await {
                    Signal::Stop => break,
                    Signal::User | Signal::Upgrade => {}
                    Signal::Reload => {
                        reload();
                        if let Some(Err(error)) = tls.as_ref().map(TlsIdentity::reload) {
                            tracing::warn!(%error, "not reloaded: the certificate that was read before stays");
                        }
                    }
                }
            }
            stopper.drain();
            rt::sleep(self.drain).await;
            stopper.end();
            std::future::pending().await
        };
        let served = rt::race(service.serve(stop, answer), signalled);
        rt::race(served, certificate).await;
        Ok(())
    }
}
