//! One order of a certificate, from the directory to the chain.

use std::path::Path;
use std::time::Duration;

use adit_model::{Acme, Dial, WebUrl};
use adit_net::acme::{Account, Signer, base64url};
use adit_net::dial::Dialer;
use adit_net::files;
use adit_net::post::{FrontedCall, FrontedReply};
use adit_net::rt;
use adit_net::tls::{Roots, TlsConnector};
use adit_net::tls_own::{pem, request};
use adit_net::tls_server::key_of_pem;

use super::answers::{self, AcmeDirectory, Progress};
use super::{AcmeError, Responder};

/// The names of a certificate.
pub(super) type CertificateNames = Vec<Box<str>>;

/// The account's key, as Go's `autocert` calls it.
const ACCOUNT: &str = "acme_account+key";
/// Longest document in bytes.
const MAX_BODY: usize = 64 << 10;
/// Time for one request.
const LIMIT: Duration = Duration::from_secs(30);
/// Pause between two looks at what the authority is at work on.
const LOOK: Duration = Duration::from_secs(2);
/// Looks, at most.
const LOOKS: u32 = 90;
/// Requests in a row whose nonce is used up, at most.
const MAX_NONCES: usize = 4;

/// Fetches a certificate: its key and the chain, as one text (PEM).
pub(super) async fn obtain(acme: &Acme, folder: &Path, responder: &Responder) -> Result<String, AcmeError> {
    let account = account(&folder.join(ACCOUNT))?;
    let mut authority = Authority::begin(&acme.directory, &account).await?;
    authority.enrol(acme.email.as_deref()).await?;
    let words: Vec<String> =
        acme.names.iter().map(|name| format!("{{\"type\":\"dns\",\"value\":\"{name}\"}}")).collect();
    let payload = format!("{{\"identifiers\":[{}]}}", words.join(","));
    let url = authority.directory.order.clone();
    let reply = authority.post("an order", &url, &payload).await?;
    let place = reply.location.clone().ok_or(AcmeError::Answer("an order"))?;
    let order = answers::order(&reply.body).ok_or(AcmeError::Answer("an order"))?;
    for url in &order.authorizations {
        Box::pin(authority.prove(url, responder)).await?;
    }
    let (key, csr) = request(&acme.names).map_err(|error| AcmeError::File(error.to_string()))?;
    let payload = format!("{{\"csr\":\"{}\"}}", base64url(&csr));
    authority.post("the request of a certificate", &order.finalize, &payload).await?;
    let url = authority.issued(&place).await?;
    let chain = authority.post("the certificate", &url, "").await?.body;
    let chain = String::from_utf8(chain).map_err(|_| AcmeError::Answer("the certificate"))?;
    Ok(key + &chain)
}

/// The account in a file, or a new one.
fn account(path: &Path) -> Result<Account, AcmeError> {
    let named = |why: &dyn std::fmt::Display| AcmeError::File(format!("{}: {why}", path.display()));
    match files::read(path, MAX_BODY) {
        Ok(text) => {
            if let Some(account) = key_of_pem(&text).as_deref().and_then(Account::from_der) {
                return Ok(account);
            }
            let kept = files::suffixed(path, ".damaged");
            std::fs::rename(path, &kept).map_err(|error| named(&error))?;
            let (path, kept) = (path.display(), kept.display());
            tracing::warn!(
                "{path} holds no key of ECDSA on P-256 (PEM): a new account is made, the file is kept as {kept}"
            );
        }
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => {}
        Err(error) => return Err(named(&error)),
    }
    let der = Account::generate().ok_or_else(|| named(&"no key can be made"))?;
    files::replace(path, 0o600, pem("PRIVATE KEY", &der).as_bytes()).map_err(|error| named(&error))?;
    Account::from_der(&der).ok_or_else(|| named(&"not a key of ECDSA on P-256"))
}

/// A certificate authority, and our account there.
struct Authority<'a> {
    dialer: Dialer,
    connector: TlsConnector,
    directory: AcmeDirectory,
    account: &'a Account,
    /// The account's address.
    name: Option<String>,
    nonce: Option<String>,
    tls: bool,
}

impl<'a> Authority<'a> {
    async fn begin(at: &WebUrl, account: &'a Account) -> Result<Self, AcmeError> {
        let connector = TlsConnector::new(&Roots::System, &[b"http/1.1"])
            .map_err(|error| AcmeError::Fetch(error.to_string()))?;
        let dialer = Dialer::by_system(&Dial::default());
        let call = FrontedCall { url: at, front: None, body: None, kind: None, max: MAX_BODY, limit: LIMIT };
        let reply = call.make(&dialer, &connector).await.map_err(|error| fetch_error(&error))?;
        let directory = answers::directory(&reply.body).filter(|_| reply.status == 200);
        let directory = directory.ok_or(AcmeError::Answer("its directory"))?;
        Ok(Self { dialer, connector, directory, account, name: None, nonce: None, tls: at.tls })
    }

    /// Makes the account, or finds it again.
    async fn enrol(&mut self, email: Option<&str>) -> Result<(), AcmeError> {
        let contact = email.map(|email| format!(",\"contact\":[\"mailto:{email}\"]")).unwrap_or_default();
        let url = self.directory.account.clone();
        let payload = format!("{{\"termsOfServiceAgreed\":true{contact}}}");
        let reply = self.post("an account", &url, &payload).await?;
        self.name = Some(reply.location.ok_or(AcmeError::Answer("an account"))?);
        Ok(())
    }

    /// Proves that a name is ours.
    async fn prove(&mut self, url: &str, responder: &Responder) -> Result<(), AcmeError> {
        const WHAT: &str = "a name";
        let read = |reply: &FrontedReply| answers::authorization(&reply.body).ok_or(AcmeError::Answer(WHAT));
        let found = read(&self.post(WHAT, url, "").await?)?;
        if found.progress == Progress::Valid {
            return Ok(());
        }
        let refused = |name: String, why: Option<String>| AcmeError::Name {
            name,
            why: why.unwrap_or_else(|| "no reason is given".into()),
        };
        let Some((place, token)) = found.challenge else {
            return Err(refused(found.name, Some("it does not offer to ask by HTTP".into())));
        };
        let text = self.account.answer(&token);
        let _answered = responder.answer(token, text);
        self.post(WHAT, &place, "{}").await?;
        for _ in 0..LOOKS {
            let found = read(&self.post(WHAT, url, "").await?)?;
            match found.progress {
                Progress::Valid => return Ok(()),
                Progress::Failed => return Err(refused(found.name, found.reason)),
                Progress::Open | Progress::Ready | Progress::Busy => rt::sleep(LOOK).await,
            }
        }
        Err(AcmeError::Time)
    }

    /// Waits for the certificate of an order; its address.
    async fn issued(&mut self, place: &str) -> Result<String, AcmeError> {
        const WHAT: &str = "an order";
        for _ in 0..LOOKS {
            let reply = self.post(WHAT, place, "").await?;
            let order = answers::order(&reply.body).ok_or(AcmeError::Answer(WHAT))?;
            match (order.progress, order.certificate) {
                (Progress::Valid, Some(url)) => return Ok(url),
                (Progress::Failed, _) => {
                    let why = order.reason.unwrap_or_else(|| "no reason is given".into());
                    return Err(AcmeError::Refused { what: WHAT, why });
                }
                _ => rt::sleep(LOOK).await,
            }
        }
        Err(AcmeError::Time)
    }

    /// One signed request; an empty payload asks for a document. A nonce that is used up is replaced.
    async fn post(
        &mut self,
        what: &'static str,
        url: &str,
        payload: &str,
    ) -> Result<FrontedReply, AcmeError> {
        let mut refusal = String::new();
        for _ in 0..MAX_NONCES {
            let nonce = match self.nonce.take() {
                Some(nonce) => nonce,
                None => {
                    let url = self.directory.nonce.clone();
                    let reply = self.call(&url, None).await?;
                    reply.nonce.ok_or(AcmeError::Answer("a nonce"))?
                }
            };
            let signer = self.name.as_deref().map_or(Signer::Key, Signer::Account);
            let body = self.account.sign(url, &nonce, signer, payload).ok_or(AcmeError::Answer(what))?;
            let reply = self.call(url, Some(body)).await?;
            self.nonce.clone_from(&reply.nonce);
            if reply.status < 300 {
                return Ok(reply);
            }
            let (why, is_nonce) = answers::refusal(reply.status, &reply.body);
            if !is_nonce {
                return Err(AcmeError::Refused { what, why });
            }
            refusal = why;
        }
        Err(AcmeError::Refused { what, why: refusal })
    }

    async fn call(&self, url: &str, body: Option<Vec<u8>>) -> Result<FrontedReply, AcmeError> {
        let url = WebUrl::parse(url).ok().filter(|url| url.tls || !self.tls);
        let url = url.ok_or(AcmeError::Answer("an address"))?;
        let kind = Some("application/jose+json");
        let call = FrontedCall { url: &url, front: None, body, kind, max: MAX_BODY, limit: LIMIT };
        Box::pin(call.make(&self.dialer, &self.connector)).await.map_err(|error| fetch_error(&error))
    }
}

fn fetch_error(error: &dyn std::error::Error) -> AcmeError {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        text.push_str(": ");
        text.push_str(&error.to_string());
        cause = error.source();
    }
    AcmeError::Fetch(text)
}
