//! The control interface of mihomo, for dashboards and graphical clients.
//!
//! ```text
//!   request ─ guard: Host, Origin, secret ─→ routes ─→ desk ─→ views of the engine as JSON (shape)
//!                                                       └──→ streams: traffic, memory, log, connections
//! ```
//!
//! Shapes and status codes are those of mihomo (Alpha, February 2025), recorded in `testdata/clash`. It differs where that
//! lets any web page rewrite a process of this machine: without a secret, pages of this machine alone are answered.

mod change;
mod desk;
mod files;
mod guard;
mod lists;
mod routes;
mod shape;
mod streams;
mod text;

use std::io;
use std::rc::Rc;
use std::sync::Arc;

use adit_config::model::{Config, Controller};
use adit_core::Running;
use adit_net::handover::Kept;
use adit_net::rt;
use adit_net::web::live::{Known, Listener};

pub(crate) use self::change::{Change, Overlay};
use self::desk::Desk;
use crate::reload::Requests;

/// Serves the interface that `config` asks for. One that cannot be served is an error line: traffic goes on.
pub(crate) fn open(config: &Config, running: &mut Running, requests: &Requests) {
    let Some(controller) = &config.controller else { return };
    if let Err(error) = start(controller.clone(), running, requests.clone()) {
        tracing::error!(%error, "External controller listen error");
    }
}

fn start(controller: Controller, running: &mut Running, requests: Requests) -> io::Result<()> {
    let (proxies, observer) = (running.proxies(), running.observer());
    let (ready, opened) = std::sync::mpsc::channel();
    running.start_service("adit-control", move || async move {
        let listeners = match listen(&controller) {
            Ok((listeners, kept)) => {
                drop(ready.send(Ok(kept)));
                listeners
            }
            Err(error) => return drop(ready.send(Err(error))),
        };
        let own = controller.clone();
        let known: Known =
            Rc::new(move |call| guard::page(&own, call).is_ok() && guard::is_known(&own, call));
        let desk = Rc::new(Desk::new(controller.clone(), proxies, observer, Arc::new(requests)));
        let answer = Rc::new(move |call| {
            let desk = desk.clone();
            async move { Box::pin(routes::answer(&desk, call)).await }
        });
        for listener in listeners {
            rt::spawn_local(listener.serve(answer.clone(), known.clone()));
        }
        std::future::pending::<()>().await;
    })?;
    running.keep(opened.recv().unwrap_or_else(|_| Err(io::ErrorKind::BrokenPipe.into()))?);
    Ok(())
}

/// Listens, and gives copies of the sockets for the next process.
fn listen(controller: &Controller) -> io::Result<(Vec<Listener>, Vec<Kept>)> {
    let (mut listeners, mut kept) = (Vec::new(), Vec::new());
    if let Some(address) = controller.listen {
        let (listener, copies) = Listener::tcp(address).map_err(|error| error.source)?;
        let address = listener.local_addr().unwrap_or(address);
        tracing::info!("RESTful API listening at: {address}");
        listeners.push(listener);
        kept.extend(copies);
    }
    if let Some(path) = &controller.unix {
        let opened = Listener::unix(path);
        let (listener, copy) = opened.inspect_err(|error| {
            tracing::error!("External controller unix listen error: {error}");
        })?;
        tracing::info!("RESTful API unix listening at: {}", path.display());
        listeners.push(listener);
        kept.push(copy);
    }
    Ok((listeners, kept))
}
