//! The run of a service over HTTP: the broker's, and the probe server's.

use std::io;
use std::net::SocketAddr;
use std::time::Duration;

use adit_engine::keep_certificate;
use adit_model::TlsFiles;
use adit_net::handover::Kept;
use adit_net::rt::{self, Signal, Signals, Stopper};
use adit_net::service::{Service, ServiceRequest, ServiceResponse};
use adit_net::tls_server::TlsIdentity;

use super::SnowflakeError;

/// Starts the next process with these listening sockets, and returns its number once it serves. It may take some seconds, on
/// a thread of its own.
pub type NextProcess = fn(Vec<Kept>) -> Result<u32, String>;

/// A service to run.
pub(super) struct SnowflakeService<'a> {
    pub(super) listen: SocketAddr,
    pub(super) tls: Option<&'a TlsFiles>,
    /// Time that open requests have when the process is told to stop.
    pub(super) drain: Duration,
    /// The answer to SIGUSR2.
    pub(super) next: NextProcess,
}

impl SnowflakeService<'_> {
    /// Serves until SIGINT or SIGTERM. SIGHUP calls `reload`, and reads the files of the certificate again. SIGUSR2 starts the
    /// next process; once it serves, this one ends as after SIGTERM. `ready` is told the address once it listens.
    ///
    /// # Errors
    /// See [`SnowflakeError`].
    pub(super) async fn run<F: Future<Output = ServiceResponse> + 'static>(
        self,
        ready: impl FnOnce(SocketAddr),
        reload: impl Fn(),
        answer: impl Fn(ServiceRequest) -> F + 'static,
    ) -> Result<(), SnowflakeError> {
        let mut signals = Signals::new().map_err(SnowflakeError::Loop)?;
        let tls = self.tls.map(TlsIdentity::open);
        let tls = tls.transpose().map_err(SnowflakeError::Tls)?;
        let (mut service, kept) = Service::listen(self.listen)?;
        super::bound(&mut service);
        service.tls.clone_from(&tls);
        let at = service.local_addr().map_err(SnowflakeError::Loop)?;
        ready(at);
        let certificate = keep_certificate(self.tls, tls.as_ref(), at);
        let (stopper, stop) = Stopper::new();
        let signalled = async {
            loop {
                match signals.next().await {
                    Signal::Stop => break,
                    Signal::User => {}
                    Signal::Upgrade => match follow(self.next, &kept).await {
                        Ok(pid) => {
                            let drain_s = self.drain.as_secs();
                            tracing::info!(pid, drain_s, "upgraded: the new process serves");
                            break;
                        }
                        Err(why) => tracing::warn!("not upgraded, this process goes on: {why}"),
                    },
                    Signal::Reload => {
                        reload();
                        if let Some(Err(error)) = tls.as_ref().map(TlsIdentity::reload) {
                            tracing::warn!(%error, "not reloaded: the certificate that was read before stays");
                        }
                    }
                }
            }
            // Only the next process has the port from here on.
            drop(kept);
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

/// Starts the next process, with copies of `kept`.
async fn follow(next: NextProcess, kept: &[Kept]) -> Result<u32, String> {
    let copies: io::Result<Vec<Kept>> = kept.iter().map(Kept::copy).collect();
    let copies = copies.map_err(|error| error.to_string())?;
    let (sender, mut answers) = rt::orders();
    let run = move || {
        sender.send(next(copies));
    };
    std::thread::Builder::new().name("next".into()).spawn(run).map_err(|error| error.to_string())?;
    answers.next().await.unwrap_or_else(|| Err("the start of the new process failed".to_owned()))
}
