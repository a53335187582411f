//! The probe server: it answers a proxy's offer as a client behind a NAT would, so that the proxy learns its own.

use std::net::SocketAddr;
use std::rc::Rc;
use std::time::Duration;

use adit_model::SnowflakeProbe;
use adit_net::rt::Cores;
use adit_net::service::{ServiceRequest, ServiceResponse};
use adit_proto::snowflake::messages::{PollReply, PollStatus, ProxyAnswer};

use super::SnowflakeError;
use super::serving::{NextProcess, SnowflakeService};

/// Time that open probes have when the process is told to stop.
const DRAIN: Duration = Duration::from_secs(5);
/// Fields that let pages of any origin ask.
const CORS: [(&str, &str); 2] =
    [("access-control-allow-headers", "Origin, X-Session-ID"), ("access-control-allow-origin", "*")];

/// The side that answers offers by WebRTC.
pub trait Prober {
    /// Answers an offer, both as the text of a description. With `is_hidden` the answer names no address.
    ///
    /// # Errors
    /// The problem with the offer, or the reason why there is no answer.
    fn answer(&self, offer: String, is_hidden: bool) -> impl Future<Output = Result<String, ProbeFailure>>;
}

/// Why a probe has no answer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ProbeFailure {
    /// The offer is wrong.
    Offer(String),
    /// This program cannot answer any.
    Unable(String),
}

/// The answer to a request.
pub(super) async fn respond(asked: ServiceRequest, prober: &impl Prober) -> ServiceResponse {
    if asked.path != "/probe" {
        let fields = vec![("x-content-type-options", "nosniff")];
        return ServiceResponse { status: 404, fields, ..ServiceResponse::text("404 page not found\n") };
    }
    let told = |told: ServiceResponse| ServiceResponse { fields: CORS.to_vec(), ..told };
    if asked.method == "OPTIONS" {
        return told(ServiceResponse::status(200));
    }
    let poll = asked.body.as_deref().and_then(|body| PollReply::parse(body).ok());
    let Some(poll) = poll.filter(|poll| poll.status == PollStatus::Match) else {
        return told(ServiceResponse::status(400));
    };
    let is_hidden = asked.query.split('&').any(|pair| matches!(pair, "InCoSim=strict" | "InCoSim=moderate"));
    match prober.answer(poll.offer, is_hidden).await {
        Ok(answer) => {
            told(ServiceResponse::text(ProxyAnswer { sid: ProxyAnswer::PROBE_SID.into(), answer }.emit()))
        }
        Err(ProbeFailure::Offer(problem)) => {
            tracing::debug!(problem, "probe refused");
            told(ServiceResponse::status(400))
        }
        Err(ProbeFailure::Unable(problem)) => {
            tracing::warn!(problem, "probe not answered");
            told(ServiceResponse::status(503))
        }
    }
}

/// Runs a probe server until SIGINT or SIGTERM; `prober` answers. SIGHUP reads the files of the certificate again. SIGUSR2
/// starts the process `next`, and ends this one when its probes are done. `ready` is told the address once it listens.
///
/// # Errors
/// See [`SnowflakeError`].
pub fn probe_service(
    settings: &SnowflakeProbe,
    prober: impl Prober + 'static,
    next: NextProcess,
    ready: impl FnOnce(SocketAddr),
) -> Result<(), SnowflakeError> {
    let prober = Rc::new(prober);
    let answer = move |asked| {
        let prober = prober.clone();
        async move { respond(asked, &*prober).await }
    };
    let serving =
        SnowflakeService { listen: settings.listen, tls: settings.tls.as_ref(), drain: DRAIN, next };
    Cores::block_on(serving.run(ready, || (), answer)).map_err(SnowflakeError::Loop)?
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Fake;

    impl Prober for Fake {
        async fn answer(&self, offer: String, is_hidden: bool) -> Result<String, ProbeFailure> {
            match offer.as_str() {
                "wrong" => Err(ProbeFailure::Offer("x".into())),
                "later" => Err(ProbeFailure::Unable("x".into())),
                _ => Ok(format!("{offer} {is_hidden}")),
            }
        }
    }

    fn ask(target: &str, body: &str) -> (u16, String) {
        let (path, query) = target.split_once('?').unwrap_or((target, ""));
        let mut asked = ServiceRequest::for_tests(([192, 0, 2, 1], 1).into(), &[]);
        (asked.path, asked.query) = (path.into(), query.into());
        asked.body = Some(body.to_owned().into());
        let told = Cores::block_on(respond(asked, &Fake)).unwrap();
        (told.status, String::from_utf8(told.body.to_vec()).unwrap())
    }

    #[test]
    fn probes() {
        let poll = |offer: &str| format!("{{\"Status\":\"client match\",\"Offer\":\"{offer}\"}}");
        let answer =
            |text: &str| format!("{{\"Version\":\"1.3\",\"Sid\":\"stub-sid\",\"Answer\":\"{text}\"}}");
        assert_eq!(ask("/probe", &poll("o")), (200, answer("o false")));
        assert_eq!(ask("/probe?InCoSim=strict", &poll("o")), (200, answer("o true")));
        assert_eq!(ask("/probe?InCoSim=moderate", &poll("o")), (200, answer("o true")));
        assert_eq!(ask("/probe", &poll("wrong")).0, 400);
        assert_eq!(ask("/probe", &poll("later")).0, 503);
        for body in ["", "{", "{\"Status\":\"no match\"}", "{\"Status\":\"client match\"}"] {
            assert_eq!(ask("/probe", body).0, 400, "{body}");
        }
        assert_eq!(ask("/other", "").0, 404);
    }
}
