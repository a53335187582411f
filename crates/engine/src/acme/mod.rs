//! A certificate that is fetched from an authority by ACME (RFC 8555, HTTP-01), and renewed while the server runs.
//!
//! ```text
//! directory ─▶ account ─▶ order ─▶ one question by HTTP for each name ─▶ request ─▶ chain ─▶ file ─▶ TLS
//! ```
//!
//! Key and chain are in one file, in the form of Go's `autocert`, and so is the account's key. A folder of upstream's was
//! not tried.

mod answers;
mod order;

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::Path;
use std::rc::Rc;
use std::time::Duration;

use adit_model::{Acme, TlsFiles};
use adit_net::acme::validity;
use adit_net::rt::{self, Stop, Stopper};
use adit_net::service::{Service, ServiceRequest, ServiceResponse};
use adit_net::tls_server::{MAX_LEN, TlsIdentity, check};
use adit_net::{files, listen};
use thiserror::Error;

use self::order::{CertificateNames, obtain};

/// A certificate is renewed so long before it ends, or a third of its time if that is less.
const AHEAD_S: u64 = 30 * 86_400;
/// Pause after the first failure; each further one is four times as long, up to the second value. Authorities count the
/// failures of an hour.
const RETRY: (Duration, Duration) = (Duration::from_secs(120), Duration::from_secs(6 * 3600));
/// Longest pause between two looks at the clock.
const LOOK: Duration = Duration::from_secs(6 * 3600);
/// Time for one certificate.
const LIMIT: Duration = Duration::from_secs(600);
/// The path of questions.
const PATH: &str = "/.well-known/acme-challenge/";
/// The port of questions.
const PORT: u16 = 80;

/// Why there is no certificate.
#[derive(Debug, Error)]
pub(crate) enum AcmeError {
    /// The port of questions cannot be had.
    #[error("no port for the questions of the certificate authority: {0}")]
    Listen(#[from] listen::ListenError),
    /// The authority is not reached.
    #[error("certificate authority: {0}")]
    Fetch(String),
    /// It refuses something.
    #[error("the certificate authority refused {what}: {why}")]
    Refused {
        /// The request.
        what: &'static str,
        /// Its words.
        why: String,
    },
    /// It did not find this server by a name.
    #[error(
        "the certificate authority does not find this server as {name}: {why} (hint: {name} must lead here, port 80 too)"
    )]
    Name {
        /// The name.
        name: String,
        /// Its words.
        why: String,
    },
    /// An answer is not one of ACME.
    #[error("the certificate authority's answer about {0} makes no sense")]
    Answer(&'static str),
    /// The certificate is of no use.
    #[error("the certificate that came is of no use: {0}")]
    Certificate(String),
    /// A file cannot be read or written.
    #[error("{0}")]
    File(String),
    /// It takes too long.
    #[error("no certificate after {LIMIT:?}")]
    Time,
}

/// Keeps the certificate of `identity` valid, for ever; does nothing if adit does not fetch it. `listen` is the address
/// of the server.
pub async fn keep_certificate(files: Option<&TlsFiles>, identity: Option<&TlsIdentity>, listen: SocketAddr) {
    let kept = files.and_then(|files| Some((files, files.acme.as_deref()?)));
    let (Some((files, acme)), Some(identity)) = (kept, identity) else { return std::future::pending().await };
    let at = acme.answers.unwrap_or_else(|| SocketAddr::new(listen.ip(), PORT));
    let mut responder = None;
    let mut pause = RETRY.0;
    loop {
        if responder.is_none() {
            responder = Responder::start(at).inspect_err(|error| tracing::warn!("{}", chain(error))).ok();
        }
        let wait = due_in(&files.certificate, &acme.names, rt::unix_time());
        if wait > Duration::ZERO {
            rt::sleep(wait.min(LOOK)).await;
            continue;
        }
        let renewed = renew(files, acme, identity, responder.as_ref());
        match rt::timeout(LIMIT, Box::pin(renewed)).await.unwrap_or(Err(AcmeError::Time)) {
            Ok(()) => {
                tracing::info!(names = acme.names.join(", "), "a new certificate is in use");
                pause = RETRY.0;
            }
            Err(error) => {
                let code = adit_model::codes::ACME.id;
                tracing::warn!(code, again_in = ?pause, "no certificate was fetched: {}", chain(&error));
                rt::sleep(pause).await;
                pause = (pause * 4).min(RETRY.1);
            }
        }
    }
}

/// The words of an error and of its causes.
fn chain(error: &AcmeError) -> String {
    let mut text = error.to_string();
    if let AcmeError::Listen(error) = error
        && let Some(hint) = error.hint()
    {
        text.push_str(&format!(" (hint: {hint})"));
    }
    text
}

/// Time until the certificate is to be renewed; none if it is of no use.
fn due_in(path: &Path, names: &CertificateNames, now: u64) -> Duration {
    let usable = || {
        let der = check(&files::read(path, MAX_LEN).ok()?, names).ok()?;
        validity(&der)
    };
    let Some((begin, end)) = usable() else { return Duration::ZERO };
    let ahead = AHEAD_S.min(end.saturating_sub(begin) / 3);
    Duration::from_secs(end.saturating_sub(ahead).saturating_sub(now))
}

/// Fetches a certificate and puts it to use.
async fn renew(
    files: &TlsFiles,
    acme: &Acme,
    identity: &TlsIdentity,
    responder: Option<&Responder>,
) -> Result<(), AcmeError> {
    let Some(responder) = responder else {
        return Err(AcmeError::Fetch("without a port for its questions nothing is asked for".into()));
    };
    let path = &files.certificate;
    let named = |error: std::io::Error| AcmeError::File(format!("{}: {error}", path.display()));
    let folder = path.parent().unwrap_or_else(|| Path::new("."));
    make_folder(folder).map_err(named)?;
    let text = Box::pin(obtain(acme, folder, responder)).await?;
    let der =
        check(text.as_bytes(), &acme.names).map_err(|error| AcmeError::Certificate(error.to_string()))?;
    let now = rt::unix_time();
    if validity(&der).is_none_or(|(_, end)| end <= now) {
        return Err(AcmeError::Certificate("its time is over (hint: check this machine's clock)".into()));
    }
    files::replace(path, 0o600, text.as_bytes()).map_err(named)?;
    identity.reload().map_err(named)
}

/// A folder that nobody else can read.
fn make_folder(folder: &Path) -> std::io::Result<()> {
    use std::os::unix::fs::DirBuilderExt as _;
    if folder.as_os_str().is_empty() {
        return Ok(());
    }
    std::fs::DirBuilder::new().recursive(true).mode(0o700).create(folder)
}

/// Answers the questions of an authority. Others get status 404.
struct Responder {
    /// Answers by their tokens.
    known: Rc<RefCell<BTreeMap<String, String>>>,
    _stopper: Stopper,
}

impl Responder {
    fn start(at: SocketAddr) -> Result<Self, AcmeError> {
        let (mut service, _) = Service::listen(at)?;
        (service.max_body, service.max_connections, service.max_unread) = (0, 256, 1 << 20);
        let (stopper, stop): (Stopper, Stop) = Stopper::new();
        let known = Rc::<RefCell<BTreeMap<String, String>>>::default();
        let answers = known.clone();
        rt::spawn_local(service.serve(stop, move |asked: ServiceRequest| {
            let token = asked.path.strip_prefix(PATH).unwrap_or_default();
            let told = answers.borrow().get(token).cloned();
            async move {
                ServiceResponse {
                    closes: true,
                    ..told.map_or_else(|| ServiceResponse::status(404), ServiceResponse::text)
                }
            }
        }));
        Ok(Self { known, _stopper: stopper })
    }

    /// Answers `token` by `text` until the result is dropped.
    fn answer(&self, token: String, text: String) -> Answered {
        self.known.borrow_mut().insert(token.clone(), text);
        Answered { known: self.known.clone(), token }
    }
}

/// An answer that is ready.
struct Answered {
    known: Rc<RefCell<BTreeMap<String, String>>>,
    token: String,
}

impl Drop for Answered {
    fn drop(&mut self) {
        self.known.borrow_mut().remove(&self.token);
    }
}

#[cfg(test)]
mod tests;
