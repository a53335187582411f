//! The control interface of mihomo, for dashboards and graphical clients.
//!
//! ```text
//!   request ─ guard: Host, Origin, secret ─→ routes ─→ desk ─→ views of the engine as JSON (shape)
//!                                                       └──→ streams: traffic, memory, log, connections
//! ```
//!
//! Shapes and status codes are those of mihomo (Alpha, February 2025), recorded in `testdata/clash`. It differs where that
//! lets any web page rewrite a process of this machine: without a secret, pages of this machine alone are answered.

mod auth;
mod files;
mod lists;
mod routes;
mod state;
mod streams;
mod text;
mod views;

use std::future::pending;
use std::io;
use std::rc::Rc;
use std::sync::Arc;

use adit_engine::{OpenedService, Reconfigurable, Running, ServiceHandle};
use adit_model::{Config, Controller};
use adit_net::rt;
use adit_net::web::live::{Listener, ReadsBody};

use self::state::ClashApi;
use crate::run::reload::Requests;

/// Serves the interface that `config` asks for, and has it follow later ones. One that cannot be served is an error line:
/// traffic goes on.
pub(crate) fn open(config: &Config, running: &mut Running, requests: &Requests) {
    let Some(controller) = &config.controller else { return };
    let key = crate::run::reload::key(requests.files().is_native);
    match start(controller.clone(), running, requests.clone()) {
        Ok(handle) => requests.tell(Box::new(move |config| {
            let followed = handle.follow(&config.controller);
            followed.map(|changed| changed.then_some(key)).map_err(|error| format!("{key}: {error}"))
        })),
        Err(error) => tracing::error!(%error, "External controller listen error"),
    }
}

fn start(
    controller: Controller,
    running: &mut Running,
    requests: Requests,
) -> io::Result<ServiceHandle<Option<Controller>>> {
    let (proxies, observer) = (running.proxies(), running.observer());
    let listens = |controller: &Option<Controller>| controller.as_ref().and_then(|found| found.listen);
    running.start_service("adit-control", Some(controller), listens, move || Interface {
        desk: Rc::new(ClashApi::new(proxies, observer, Arc::new(requests))),
        has_unix: false,
    })
}

/// The interface on its event loop.
struct Interface {
    desk: Rc<ClashApi>,
    /// The unix socket is open, and stays so.
    has_unix: bool,
}

impl Reconfigurable<Option<Controller>> for Interface {
    fn open(&mut self, controller: &Option<Controller>, beside: &Arc<[u64]>) -> io::Result<OpenedService> {
        let Some(controller) = controller else { return Ok((Box::pin(pending()), Vec::new())) };
        let judge = self.desk.clone();
        let known: ReadsBody = Rc::new(move |call| {
            let controller = judge.controller();
            auth::page(&controller, call).is_ok() && auth::is_known(&controller, call)
        });
        let asked = self.desk.clone();
        let answer = Rc::new(move |call| {
            let desk = asked.clone();
            async move { Box::pin(routes::answer(&desk, call)).await }
        });
        let (mut serving, mut kept): OpenedService = (Box::pin(pending()), Vec::new());
        if let Some(address) = controller.listen {
            let (listener, copies) = Listener::tcp(address, beside).map_err(|error| error.source)?;
            let address = listener.local_addr().unwrap_or(address);
            tracing::info!("RESTful API listening at: {address}");
            serving = Box::pin(listener.serve(answer.clone(), known.clone()));
            kept.extend(copies);
        }
        if let Some(path) = controller.unix.as_ref().filter(|_| !self.has_unix) {
            let opened = Listener::unix(path);
            let (listener, copy) = opened.inspect_err(|error| {
                tracing::error!("External controller unix listen error: {error}");
            })?;
            tracing::info!("RESTful API unix listening at: {}", path.display());
            rt::spawn_local(listener.serve(answer, known));
            kept.push(copy);
            self.has_unix = true;
        }
        Ok((serving, kept))
    }

    fn set(&mut self, controller: &Option<Controller>) {
        self.desk.set_controller(controller.clone().unwrap_or_default());
    }
}
