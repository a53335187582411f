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
use std::time::Duration;

use adit_config::model::{Config, Controller};
use adit_core::Running;
use adit_net::rt;
use adit_net::web::live::{Known, Listener};

pub(crate) use self::change::{Change, Overlay};
use self::desk::Desk;
use crate::reload::Requests;

/// Longest wait for the process before this one to leave its ports, and the pause between two tries.
const PATIENCE: Duration = Duration::from_secs(60);
const PAUSE: Duration = Duration::from_millis(100);

/// Serves the interface that `config` asks for. One that cannot be served is an error line: traffic goes on.
/// With `is_before`, the process before this one ends its interface once this one has taken over: the ports are tried until then.
pub(crate) fn open(config: &Config, running: &mut Running, requests: &Requests, is_before: bool) {
    let Some(controller) = &config.controller else { return };
    if let Err(error) = start((controller.clone(), is_before), running, requests.clone()) {
        tracing::error!(%error, "External controller listen error");
    }
}

fn start(
    (controller, is_before): (Controller, bool),
    running: &mut Running,
    requests: Requests,
) -> io::Result<()> {
    let (proxies, observer) = (running.proxies(), running.observer());
    let (ready, opened) = std::sync::mpsc::channel();
    running.start_service("adit-control", move || async move {
        let opened = if is_before {
            drop(ready.send(Ok(())));
            listen_after(&controller).await
        } else {
            listen(&controller).await
        };
        let listeners = match opened {
            Ok(listeners) => listeners,
            Err(error) if is_before => return tracing::error!(%error, "External controller listen error"),
            Err(error) => return drop(ready.send(Err(error))),
        };
        drop(ready.send(Ok(())));
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
    opened.recv().unwrap_or_else(|_| Err(io::ErrorKind::BrokenPipe.into()))
}

/// The same while the process before this one may hold the ports still.
async fn listen_after(controller: &Controller) -> io::Result<Vec<Listener>> {
    let until = rt::now() + PATIENCE;
    loop {
        match listen(controller).await {
            Err(error) if error.kind() == io::ErrorKind::AddrInUse && rt::now() < until => {
                rt::sleep(PAUSE).await;
            }
            done => return done,
        }
    }
}

async fn listen(controller: &Controller) -> io::Result<Vec<Listener>> {
    let mut listeners = Vec::new();
    if let Some(address) = controller.listen {
        let listener = Listener::tcp(address).await?;
        let address = listener.local_addr().unwrap_or(address);
        tracing::info!("RESTful API listening at: {address}");
        listeners.push(listener);
    }
    if let Some(path) = &controller.unix {
        listeners.push(Listener::unix(path)?);
        tracing::info!("RESTful API unix listening at: {}", path.display());
    }
    Ok(listeners)
}
