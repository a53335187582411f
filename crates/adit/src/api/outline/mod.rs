//! The interface over which others manage users: Outline's access keys, and the Shadowsocks Server Management API.
//!
//! ```text
//!   HTTPS ─ gate: rate, secret ─→ thread "adit-manage": desk ─┬→ outline, server: routes
//!                                                             ├→ book: the file, then the reload thread
//!                                                             └→ keep: names and the like, beside the state file
//! ```
//!
//! A change is in the file, and in the engine, before it is answered.

mod access_keys;
mod auth;
mod config_edit;
mod metadata;
mod server;
mod state;

use std::cell::RefCell;
use std::future::pending;
use std::io;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::mpsc::{SyncSender, sync_channel};

use adit_engine::{OpenedService, Reconfigurable, Running, ServiceHandle};
use adit_model::{Config, Manage, Secret, StateFile};
use adit_net::files::suffixed;
use adit_net::rt::{self, OrderSender, Stopper};
use adit_net::service::{Service, ServiceRequest, ServiceResponse};
use adit_net::tls_own;
use adit_net::tls_server::TlsIdentity;
use anyhow::bail;

use self::auth::{Entry, Gate};
use self::state::{Ask, OutlineApi};
use crate::run::reload::Requests;

/// Longest body of a request, in bytes.
const MAX_BODY: usize = 1 << 20;
/// Bytes of all requests together that are not whole yet: anybody may send them.
const MAX_UNREAD: usize = 4 << 20;
/// Connections at a time.
const MAX_CONNECTIONS: usize = 64;
/// Requests that wait.
const WAITING: usize = 64;

/// A request on its way to the thread, with the place for its answer.
type Job = (Ask, OrderSender<ServiceResponse>);

/// The files of the interface, beside the state file.
#[derive(Debug)]
pub(crate) struct ManageFiles {
    pub(crate) certificate: PathBuf,
    pub(crate) key: PathBuf,
    kept: PathBuf,
}

impl ManageFiles {
    /// Those of a configuration whose state file is settled.
    ///
    /// # Errors
    /// When there is no state file.
    pub(crate) fn of(config: &Config) -> anyhow::Result<Self> {
        let state = match &config.state {
            StateFile::At(path) | StateFile::Try { path, .. } => path,
            StateFile::Usual | StateFile::Off => bail!(
                "the management interface needs a state file\n  hint: name one with `state` at the top of the file"
            ),
        };
        let suffixed = |suffix| suffixed(state, suffix);
        Ok(Self {
            certificate: suffixed(".manage.crt"),
            key: suffixed(".manage.key"),
            kept: suffixed(".manage"),
        })
    }

    /// The SHA-256 digest of the certificate, which is made if there is none.
    ///
    /// # Errors
    /// When it cannot be written or read.
    pub(crate) fn digest(&self) -> anyhow::Result<[u8; 32]> {
        Ok(tls_own::own(&self.certificate, &self.key)?)
    }
}

/// Serves the interface that `config` asks for, and has it follow later ones. One that cannot be served is an error line:
/// traffic goes on.
pub(crate) fn open(config: &Config, running: &mut Running, requests: &Requests) {
    let Some(manage) = &config.manage else { return };
    match start(config, manage, running, requests) {
        Ok(handle) => requests.tell(Box::new(move |config| {
            // The engine names the change among the others.
            handle.follow(&config.manage).map(|_| None).map_err(|error| format!("admin.manage: {error}"))
        })),
        Err(error) => tracing::error!("the management interface is not served: {error:#}"),
    }
}

fn start(
    config: &Config,
    manage: &Manage,
    running: &mut Running,
    requests: &Requests,
) -> anyhow::Result<ServiceHandle<Option<Manage>>> {
    if !requests.files().is_native {
        bail!("users are written to an adit.toml alone\n  hint: `adit convert` makes one");
    }
    let places = ManageFiles::of(config)?;
    places.digest()?;
    let identity = TlsIdentity::load(&places.certificate, &places.key)?;
    let mut desk = OutlineApi::new(requests.clone(), running, &places.kept)?;
    let (jobs, waiting) = sync_channel::<Job>(WAITING);
    std::thread::Builder::new().name("adit-manage".into()).spawn(move || {
        loop {
            match waiting.recv_timeout(state::LOOK) {
                Ok((ask, reply)) => drop(reply.send(desk.answer(&ask))),
                Err(std::sync::mpsc::RecvTimeoutError::Timeout) => desk.look(),
                Err(std::sync::mpsc::RecvTimeoutError::Disconnected) => return,
            }
        }
    })?;
    let listens = |manage: &Option<Manage>| manage.as_ref().map(|manage| manage.listen);
    Ok(running.start_service("adit-manage", Some(manage.clone()), listens, move || {
        let gate = RefCell::new(Gate::new(Secret::new("")));
        Interface { identity, front: Rc::new(Front { gate, jobs }) }
    })?)
}

/// The interface on its event loop.
struct Interface {
    identity: TlsIdentity,
    front: Rc<Front>,
}

impl Reconfigurable<Option<Manage>> for Interface {
    fn open(&mut self, manage: &Option<Manage>, beside: &Arc<[u64]>) -> io::Result<OpenedService> {
        let Some(manage) = manage else { return Ok((Box::pin(pending()), Vec::new())) };
        let (service, kept) = Service::listen_beside(manage.listen, beside).map_err(|error| error.source)?;
        Ok((Box::pin(serve(service, self.identity.clone(), manage.listen, self.front.clone())), kept))
    }

    fn set(&mut self, manage: &Option<Manage>) {
        if let Some(manage) = manage {
            *self.front.gate.borrow_mut() = Gate::new(manage.secret.clone());
        }
    }
}

async fn serve(mut service: Service, identity: TlsIdentity, listen: SocketAddr, front: Rc<Front>) {
    service.tls = Some(identity);
    service.max_body = MAX_BODY;
    service.max_connections = adit_net::share(MAX_CONNECTIONS);
    service.max_unread = MAX_UNREAD;
    let address = service.local_addr().map_or_else(|_| listen.to_string(), |at| at.to_string());
    tracing::info!(address, "users can be managed over HTTPS; `adit node outline` prints the access");
    let (_stopper, stop) = Stopper::new();
    let answer = move |asked| {
        let front = front.clone();
        async move { front.answer(asked).await }
    };
    service.serve(stop, answer).await;
}

/// The side of the event loop.
struct Front {
    gate: RefCell<Gate>,
    jobs: SyncSender<Job>,
}

impl Front {
    async fn answer(&self, asked: ServiceRequest) -> ServiceResponse {
        let path = match self.gate.borrow().enter(&asked.path, asked.peer.ip(), rt::now()) {
            Entry::Known(path) => path.to_owned(),
            Entry::Unknown => return ServiceResponse { closes: true, ..ServiceResponse::status(404) },
            Entry::TooMany => return ServiceResponse { closes: true, ..ServiceResponse::status(429) },
        };
        let Some(body) = &asked.body else {
            return ServiceResponse { closes: true, ..ServiceResponse::status(413) };
        };
        let host = asked.fields("host").next().map(str::to_owned);
        let ask = Ask { body: body.to_vec(), host, method: asked.method, path, query: asked.query };
        let (reply, mut told) = rt::orders();
        if self.jobs.try_send((ask, reply)).is_err() {
            return ServiceResponse::status(503);
        }
        told.next().await.unwrap_or_else(|| ServiceResponse::status(503))
    }
}
