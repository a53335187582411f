//! The HTTP interface: `/metrics` for Prometheus, `/live` and `/ready` for those who start and stop the process.
//!
//! A page in a browser may lead a name of its own to this address. Without a token, requests must therefore name this
//! machine by an address or as `localhost`, and pages of other sites are refused.

use std::cell::RefCell;
use std::future::pending;
use std::io;
use std::rc::Rc;
use std::sync::Arc;

use adit_model::shown;
use adit_model::{AdminHttp, Secret};
use adit_net::rt::{self, Cores};
use adit_net::web::{Authority, Web, WebAnswer, WebRequest};
use subtle::ConstantTimeEq as _;

use crate::observe::gzip::gzip;
use crate::observe::metrics::{Exposition, Form};
use crate::observe::service::{KeptSockets, OpenedService, Reconfigurable, ServiceHandle};
use crate::observe::status::CounterDirectory;
use crate::observe::unix::{ended, farewell};

/// The type of the text that Prometheus reads.
const PROMETHEUS: &str = "text/plain; version=0.0.4; charset=utf-8";
const OPEN_METRICS: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

/// The interface while it runs.
pub(crate) type HttpHandle = ServiceHandle<Option<AdminHttp>>;

/// Serves the interface on an event loop of its own, until the other loops have ended.
///
/// # Errors
/// When its address cannot be listened on.
pub(crate) fn start(
    cores: &mut Cores,
    kept: &KeptSockets,
    http: &AdminHttp,
    directory: Arc<CounterDirectory>,
) -> io::Result<HttpHandle> {
    let listens = |http: &Option<AdminHttp>| http.as_ref().map(|http| http.listen);
    ServiceHandle::start(cores, "adit-http", kept, Some(http.clone()), listens, move || {
        let seen = directory.clone();
        let over = async move {
            ended(&seen).await;
            farewell().await;
        };
        (Rc::new(Desk { directory, http: RefCell::new(None) }), over)
    })
}

impl Reconfigurable<Option<AdminHttp>> for Rc<Desk> {
    fn open(&mut self, http: &Option<AdminHttp>, beside: &Arc<[u64]>) -> io::Result<OpenedService> {
        let Some(http) = http else { return Ok((Box::pin(pending()), Vec::new())) };
        let (web, kept) = Web::listen_beside(http.listen, beside).map_err(|error| error.source)?;
        let desk = self.clone();
        let serve = web.serve(move |request| {
            let desk = desk.clone();
            async move { desk.answer(&request) }
        });
        Ok((Box::pin(serve), kept))
    }

    fn set(&mut self, http: &Option<AdminHttp>) {
        self.http.borrow_mut().clone_from(http);
    }
}

struct Desk {
    directory: Arc<CounterDirectory>,
    /// The settings of now, which hold for connections of before too.
    http: RefCell<Option<AdminHttp>>,
}

impl Desk {
    fn answer(&self, request: &WebRequest) -> WebAnswer {
        let http = self.http.borrow();
        let Some(AdminHttp { token, per_user, outline, .. }) = &*http else {
            return WebAnswer::line(503, "the interface is closed");
        };
        let visit = &request.visit;
        if token.is_none() && !visit.host.as_ref().is_none_or(Authority::is_literal) {
            return WebAnswer::line(403, "name this machine by its address");
        }
        if token.is_none() && !visit.caller.may_read() {
            return WebAnswer::line(403, "pages of other sites need a token");
        }
        if !request.is_get {
            return WebAnswer::line(405, "GET alone");
        }
        let health = || self.directory.health(rt::now());
        match request.path.as_str() {
            "/live" => verdict(health().is_live, health().reason),
            "/ready" => verdict(health().is_ready, health().reason),
            "/metrics" if !is_known(token.as_ref(), request.bearer.as_deref()) => {
                WebAnswer::line(401, "Authorization: Bearer TOKEN is missing or wrong")
            }
            "/metrics" => {
                let status = self.directory.status(rt::now());
                let (form, content_type) = match request.accepts("application/openmetrics-text") && !outline {
                    true => (Form::OpenMetrics, OPEN_METRICS),
                    false => (Form::Prometheus, PROMETHEUS),
                };
                let body = Exposition::render(&status, form, *per_user, *outline).into_bytes();
                // One scrape at a time, on a thread without connections: the text is bounded, and so is the work.
                let is_gzip = request.accepts_gzip();
                let body = if is_gzip { gzip(&body) } else { body };
                WebAnswer { status: 200, content_type, is_gzip, body }
            }
            "/" => WebAnswer::line(200, "/metrics\n/live\n/ready"),
            _ => WebAnswer::line(404, "there are /metrics, /live and /ready"),
        }
    }
}

fn verdict(holds: bool, reason: Option<String>) -> WebAnswer {
    if holds {
        WebAnswer::line(200, "ok")
    } else {
        WebAnswer::line(503, shown::line(&reason.unwrap_or_default()))
    }
}

/// Whether the client has shown the token, if there is one. The time of the comparison tells no more than the length.
fn is_known(token: Option<&Secret>, shown: Option<&[u8]>) -> bool {
    let Some(token) = token else { return true };
    shown.is_some_and(|shown| bool::from(shown.ct_eq(token.expose().as_bytes())))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tokens() {
        let token = Secret::new("0123456789abcdef");
        for (token, shown, holds) in [
            (None, None, true),
            (None, Some("x"), true),
            (Some(&token), None, false),
            (Some(&token), Some(""), false),
            (Some(&token), Some("0123456789abcdee"), false),
            (Some(&token), Some("0123456789abcde"), false),
            (Some(&token), Some("0123456789abcdef0"), false),
            (Some(&token), Some("0123456789abcdef"), true),
        ] {
            assert_eq!(is_known(token, shown.map(str::as_bytes)), holds, "{shown:?}");
        }
    }
}
