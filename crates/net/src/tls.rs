//! TLS on the client side, over any stream.
//!
//! rustls with AWS-LC speaks TLS 1.3 and 1.2. The server's certificate is always checked: chain, dates and name.
//! Revocation is not checked.

use std::io::{self, IoSlice};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use adit_proto::crypto::sha256;
use adit_proto::wire::Host;
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::CryptoProvider;
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::{CertificateError, ClientConfig, DigitallySignedStruct, RootCertStore, SignatureScheme};
use thiserror::Error;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
pub use tokio_rustls::client::TlsStream;

use crate::rt::{self, Stream};

/// Names of a certificate that an error shows, at most.
const MAX_NAMES: usize = 3;

/// The authorities that may sign a server's certificate.
#[derive(Debug, Clone)]
pub enum Roots {
    /// The system's: the files that `SSL_CERT_FILE` and `SSL_CERT_DIR` name, or else the usual places such as
    /// `/etc/ssl/certs`. A system without any (a router, an empty container) gets Mozilla's list as it was when this
    /// program was built; not so where one of the two variables is set.
    System,
    /// These alone.
    Only(Arc<RootCertStore>),
}

impl Roots {
    /// Only the certificates in `text` (PEM): of authorities, or of servers that signed their own.
    ///
    /// # Errors
    /// [`TlsError::Pem`] when there is none, or one of them cannot be read.
    pub fn from_pem(text: &[u8]) -> Result<Self, TlsError> {
        let mut store = RootCertStore::empty();
        for certificate in CertificateDer::pem_slice_iter(text) {
            let certificate = certificate.map_err(|_| TlsError::Pem)?;
            store.add(certificate).map_err(|_| TlsError::Pem)?;
        }
        if store.is_empty() { Err(TlsError::Pem) } else { Ok(Self::Only(Arc::new(store))) }
    }

    fn store(&self) -> Result<Arc<RootCertStore>, TlsError> {
        match self {
            Self::System => {
                let is_named =
                    ["SSL_CERT_FILE", "SSL_CERT_DIR"].map(std::env::var_os).iter().any(Option::is_some);
                let found = rustls_native_certs::load_native_certs().certs;
                system_store(found, is_named).map(Arc::new)
            }
            Self::Only(store) => Ok(Arc::clone(store)),
        }
    }
}

/// `is_named`: the environment says where the certificates are. Then a list of our own would widen what was asked for.
fn system_store(found: Vec<CertificateDer<'static>>, is_named: bool) -> Result<RootCertStore, TlsError> {
    let mut store = RootCertStore::empty();
    store.add_parsable_certificates(found);
    if store.is_empty() {
        if is_named {
            return Err(TlsError::Store);
        }
        store.extend(webpki_roots::TLS_SERVER_ROOTS.iter().cloned());
    }
    Ok(store)
}

/// Why there is no TLS connection.
#[derive(Debug, Error)]
pub enum TlsError {
    /// The environment names certificates that cannot be read.
    #[error("no certificate can be read from the places that SSL_CERT_FILE and SSL_CERT_DIR name")]
    Store,
    /// A text holds no certificates, or bad ones.
    #[error("no valid certificate in PEM format")]
    Pem,
    /// The host is neither an address nor a name that a certificate can hold.
    #[error("the server's name cannot stand in a certificate")]
    Name,
    /// The certificate's time is over.
    #[error("the server's certificate expired {} ago (hint: check this machine's clock)", days(*.0))]
    Expired(Duration),
    /// The certificate's time has not begun.
    #[error("the server's certificate becomes valid in {} (hint: check this machine's clock)", days(*.0))]
    NotYetValid(Duration),
    /// Nobody who is trusted has signed the certificate.
    #[error(
        "the server's certificate has an unknown issuer (hint: add its authority to the system's certificates)"
    )]
    UnknownIssuer,
    /// The certificate is another server's; its first names.
    #[error("the server's certificate is for another name: {}", .0.join(", "))]
    WrongName(Vec<String>),
    /// The certificate is wrong in another way.
    #[error("the server's certificate is not valid")]
    Certificate(#[source] rustls::Error),
    /// The answer is not TLS.
    #[error("the server does not speak TLS")]
    NotTls,
    /// The server has ended the handshake.
    #[error("the server refused the TLS handshake")]
    Refused(#[source] rustls::Error),
    /// The two ends do not agree.
    #[error("TLS handshake failed")]
    Handshake(#[source] rustls::Error),
    /// The connection broke.
    #[error("connection broke during the TLS handshake")]
    Io(#[source] io::Error),
}

fn days(time: Duration) -> String {
    match time.as_secs() / 86_400 {
        0 => "less than a day".to_owned(),
        1 => "1 day".to_owned(),
        days => format!("{days} days"),
    }
}

impl TlsError {
    /// Classifies a stream's error.
    fn of(error: io::Error) -> Self {
        match error.get_ref().and_then(|inner| inner.downcast_ref::<rustls::Error>()) {
            Some(inner) => Self::of_tls(inner.clone()),
            None => Self::Io(error),
        }
    }

    fn of_tls(error: rustls::Error) -> Self {
        if let rustls::Error::InvalidCertificate(error) = error {
            return Self::of_certificate(error);
        }
        if matches!(error, rustls::Error::InvalidMessage(_)) {
            return Self::NotTls;
        }
        if matches!(error, rustls::Error::AlertReceived(_)) {
            Self::Refused(error)
        } else {
            Self::Handshake(error)
        }
    }

    #[expect(
        clippy::wildcard_enum_match_arm,
        reason = "rustls may name further causes: they are shown as they are"
    )]
    fn of_certificate(error: CertificateError) -> Self {
        let since = |late: u64, early: u64| Duration::from_secs(late.saturating_sub(early));
        match error {
            CertificateError::ExpiredContext { time, not_after } => {
                Self::Expired(since(time.as_secs(), not_after.as_secs()))
            }
            CertificateError::NotValidYetContext { time, not_before } => {
                Self::NotYetValid(since(not_before.as_secs(), time.as_secs()))
            }
            CertificateError::UnknownIssuer => Self::UnknownIssuer,
            CertificateError::NotValidForNameContext { presented, .. } => {
                Self::WrongName(presented.into_iter().take(MAX_NAMES).collect())
            }
            other => Self::Certificate(rustls::Error::InvalidCertificate(other)),
        }
    }
}

/// Opens TLS connections under one configuration. Clones share it, and the sessions to resume.
#[derive(Debug, Clone)]
pub struct TlsConnector(Arc<ClientConfig>);

impl TlsConnector {
    /// Prepares connections that offer the protocols `alpn`, best first; none offers nothing. [`Roots::System`] is read
    /// here, in a few milliseconds: a connector is to be kept.
    ///
    /// # Errors
    /// [`TlsError::Store`].
    pub fn new(roots: &Roots, alpn: &[&[u8]]) -> Result<Self, TlsError> {
        let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
        let mut config = ClientConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .map_err(TlsError::Handshake)?
            .with_root_certificates(roots.store()?)
            .with_no_client_auth();
        config.alpn_protocols = alpn.iter().map(|protocol| protocol.to_vec()).collect();
        Ok(Self(Arc::new(config)))
    }

    /// The same for a server whose certificate is known by other means than a chain of signatures.
    ///
    /// # Errors
    /// [`TlsError::Handshake`] when the library lacks a protocol.
    pub fn accepting(accepts: Accepts, alpn: &[&[u8]]) -> Result<Self, TlsError> {
        let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
        let verifier = Arc::new(Verifier { accepts, provider: Arc::clone(&provider) });
        let mut config = ClientConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .map_err(TlsError::Handshake)?
            .dangerous()
            .with_custom_certificate_verifier(verifier)
            .with_no_client_auth();
        config.alpn_protocols = alpn.iter().map(|protocol| protocol.to_vec()).collect();
        Ok(Self(Arc::new(config)))
    }

    /// The same, with or without the server's name in the first message. Its certificate is checked all the same.
    #[must_use]
    pub fn naming(self, names: bool) -> Self {
        let mut config = (*self.0).clone();
        config.enable_sni = names;
        Self(Arc::new(config))
    }

    /// Shakes hands over `stream` with the server `host`, whose certificate must be valid for that name or address. The
    /// stream need not be `Send`. Sets no limit of time.
    ///
    /// # Errors
    /// [`TlsError`]; the stream is closed then.
    pub async fn connect<S>(&self, host: &Host, stream: S) -> Result<TlsStream<S>, TlsError>
    where
        S: AsyncRead + AsyncWrite + Unpin,
    {
        let name = match host {
            Host::Ip(ip) => ServerName::from(*ip),
            Host::Name(name) => ServerName::try_from(name.to_string()).map_err(|_| TlsError::Name)?,
        };
        let connector = tokio_rustls::TlsConnector::from(Arc::clone(&self.0));
        connector.connect(name, stream).await.map_err(TlsError::of)
    }
}

/// The certificate that a connector of [`TlsConnector::accepting`] takes. That the server has its key is checked.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Accepts {
    /// The one with this SHA-256 digest, with any name, dates and issuer.
    Fingerprint([u8; 32]),
    /// One with either of these, so that a certificate can be replaced.
    Either([u8; 32], [u8; 32]),
    /// Any.
    Any,
}

#[derive(Debug)]
struct Verifier {
    accepts: Accepts,
    provider: Arc<CryptoProvider>,
}

impl ServerCertVerifier for Verifier {
    fn verify_server_cert(
        &self,
        certificate: &CertificateDer<'_>,
        _: &[CertificateDer<'_>],
        _: &ServerName<'_>,
        _: &[u8],
        _: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        let is_known = match self.accepts {
            Accepts::Fingerprint(wanted) => sha256(&[certificate]) == wanted,
            Accepts::Either(first, second) => [first, second].contains(&sha256(&[certificate])),
            Accepts::Any => true,
        };
        if is_known {
            return Ok(ServerCertVerified::assertion());
        }
        Err(rustls::Error::InvalidCertificate(CertificateError::ApplicationVerificationFailure))
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        let known = &self.provider.signature_verification_algorithms;
        rustls::crypto::verify_tls12_signature(message, certificate, signed, known)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        let known = &self.provider.signature_verification_algorithms;
        rustls::crypto::verify_tls13_signature(message, certificate, signed, known)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.provider.signature_verification_algorithms.supported_schemes()
    }
}

/// A TLS connection as a stream: a task of this event loop moves its bytes through a pair of sockets.
///
/// # Errors
/// As socketpair(2).
pub fn carry(mut tls: Box<TlsStream<Stream>>) -> io::Result<Stream> {
    let (ours, mut theirs) = Stream::pair()?;
    rt::spawn_local(async move {
        if let Err(error) = tokio::io::copy_bidirectional(&mut theirs, &mut *tls).await {
            tracing::debug!(%error, "TLS connection");
        }
    });
    Ok(ours)
}

/// The protocol that both ends agreed on, if they did.
pub fn alpn<S>(stream: &TlsStream<S>) -> Option<&[u8]> {
    stream.get_ref().1.alpn_protocol()
}

/// A connection of either kind.
#[derive(Debug)]
pub enum TlsOrPlain {
    /// As it is.
    Plain(Stream),
    /// Inside TLS.
    Tls(Box<TlsStream<Stream>>),
}

impl TlsOrPlain {
    /// One read into `buffer`; 0 bytes mean the end.
    ///
    /// # Errors
    /// The connection's error.
    pub fn poll_recv(&mut self, cx: &mut Context<'_>, buffer: &mut [u8]) -> Poll<io::Result<usize>> {
        match self {
            Self::Plain(stream) => stream.poll_recv(cx, buffer),
            Self::Tls(tls) => {
                let mut buffer = ReadBuf::new(buffer);
                Pin::new(&mut **tls).poll_read(cx, &mut buffer).map_ok(|()| buffer.filled().len())
            }
        }
    }

    /// Takes the first bytes of `bytes`; returns how many.
    ///
    /// # Errors
    /// The connection's error.
    pub fn poll_send(&mut self, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        match self {
            Self::Plain(stream) => stream.poll_send(cx, &[IoSlice::new(bytes)]),
            Self::Tls(tls) => Pin::new(&mut **tls).poll_write(cx, bytes),
        }
    }

    /// Ready once everything that was taken has left.
    ///
    /// # Errors
    /// The connection's error.
    pub fn poll_flush(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self {
            Self::Plain(_) => Poll::Ready(Ok(())),
            Self::Tls(tls) => Pin::new(&mut **tls).poll_flush(cx),
        }
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use std::rc::Rc;

    use rcgen::{BasicConstraints, CertificateParams, DnType, IsCa, Issuer, KeyPair, date_time_ymd};
    use rustls::ServerConfig;
    use rustls::pki_types::PrivateKeyDer;
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _, DuplexStream, duplex};

    use super::*;
    use crate::rt::Cores;

    /// An authority for tests.
    pub(crate) struct Authority {
        issuer: Issuer<'static, KeyPair>,
        der: CertificateDer<'static>,
    }

    impl Authority {
        pub(crate) fn new(name: &str) -> Self {
            let mut params = CertificateParams::new(Vec::new()).unwrap();
            params.distinguished_name.push(DnType::CommonName, name);
            params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
            let key = KeyPair::generate().unwrap();
            let der = params.self_signed(&key).unwrap().der().clone();
            Self { issuer: Issuer::new(params, key), der }
        }

        pub(crate) fn roots(&self) -> Roots {
            let mut store = RootCertStore::empty();
            store.add(self.der.clone()).unwrap();
            Roots::Only(Arc::new(store))
        }

        /// A server for `name`, whose certificate holds from and until these years.
        pub(crate) fn server(&self, name: &str, years: [i32; 2]) -> Arc<ServerConfig> {
            let mut params = CertificateParams::new(vec![name.to_owned()]).unwrap();
            [params.not_before, params.not_after] = years.map(|year| date_time_ymd(year, 1, 1));
            let key = KeyPair::generate().unwrap();
            let der = params.signed_by(&key, &self.issuer).unwrap().der().clone();
            server(der, &key)
        }
    }

    fn server(der: CertificateDer<'static>, key: &KeyPair) -> Arc<ServerConfig> {
        let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
        let key = PrivateKeyDer::try_from(key.serialize_der()).unwrap();
        let config =
            ServerConfig::builder_with_provider(provider).with_safe_default_protocol_versions().unwrap();
        let mut config = config.with_no_client_auth().with_single_cert(vec![der], key).unwrap();
        config.alpn_protocols = vec![b"two".to_vec(), b"http/1.1".to_vec()];
        Arc::new(config)
    }

    pub(crate) const NOW: [i32; 2] = [2020, 4000];

    /// A stream that cannot leave its thread.
    struct Local(DuplexStream, #[expect(dead_code, reason = "makes it !Send")] Rc<()>);

    impl AsyncRead for Local {
        fn poll_read(
            mut self: Pin<&mut Self>,
            cx: &mut Context<'_>,
            buffer: &mut ReadBuf<'_>,
        ) -> Poll<io::Result<()>> {
            Pin::new(&mut self.0).poll_read(cx, buffer)
        }
    }

    impl AsyncWrite for Local {
        fn poll_write(
            mut self: Pin<&mut Self>,
            cx: &mut Context<'_>,
            bytes: &[u8],
        ) -> Poll<io::Result<usize>> {
            Pin::new(&mut self.0).poll_write(cx, bytes)
        }

        fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
            Pin::new(&mut self.0).poll_flush(cx)
        }

        fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
            Pin::new(&mut self.0).poll_shutdown(cx)
        }
    }

    /// Shakes hands with `server` as a client that wants `host`, and sends a word each way.
    fn shake(roots: &Roots, host: &str, server: Arc<ServerConfig>) -> Result<(), String> {
        let run = async {
            let (near, far) = duplex(1000);
            let far = async {
                let mut far = tokio_rustls::TlsAcceptor::from(server).accept(far).await.ok()?;
                let mut word = [0; 4];
                far.read_exact(&mut word).await.ok()?;
                far.write_all(&word).await.ok()
            };
            let near = async {
                let connector = TlsConnector::new(roots, &[b"one", b"two"]).unwrap();
                let host = Host::parse(host.as_bytes()).unwrap();
                let mut near = connector.connect(&host, Local(near, Rc::new(()))).await?;
                assert_eq!(alpn(&near), Some(&b"two"[..]));
                let mut word = [0; 4];
                near.write_all(b"word").await.unwrap();
                near.read_exact(&mut word).await.unwrap();
                assert_eq!(word, *b"word");
                Ok(())
            };
            tokio::join!(near, far).0
        };
        Cores::block_on(Box::pin(run)).unwrap().map_err(|error: TlsError| error.to_string())
    }

    #[test]
    fn certificates() {
        let (ours, other) = (Authority::new("ours"), Authority::new("other"));
        let roots = ours.roots();
        for (host, server, want) in [
            ("a.example", ours.server("a.example", NOW), Ok(())),
            ("b.a.example", ours.server("*.a.example", NOW), Ok(())),
            ("192.0.2.1", ours.server("192.0.2.1", NOW), Ok(())),
            ("[2001:db8::1]", ours.server("2001:db8::1", NOW), Ok(())),
            ("a.example", ours.server("b.example", NOW), Err("is for another name: ")),
            ("192.0.2.2", ours.server("192.0.2.1", NOW), Err("is for another name: ")),
            ("a.example", ours.server("a.example", [2019, 2020]), Err("expired ")),
            ("a.example", ours.server("a.example", [3999, 4000]), Err("becomes valid in ")),
            ("a.example", other.server("a.example", NOW), Err("unknown issuer")),
            // Of the same name, with another key.
            ("a.example", Authority::new("ours").server("a.example", NOW), Err("is not valid")),
        ] {
            let got = shake(&roots, host, server);
            match want {
                Ok(()) => assert_eq!(got, Ok(()), "{host}"),
                Err(want) => assert!(got.as_ref().is_err_and(|got| got.contains(want)), "{host}: {got:?}"),
            }
        }
    }

    #[test]
    fn a_server_that_signed_its_own_certificate() {
        let key = KeyPair::generate().unwrap();
        let own = CertificateParams::new(vec!["a.example".to_owned()]).unwrap().self_signed(&key).unwrap();
        let mut store = RootCertStore::empty();
        store.add(own.der().clone()).unwrap();
        let server = server(own.der().clone(), &key);
        assert_eq!(shake(&Roots::Only(Arc::new(store)), "a.example", Arc::clone(&server)), Ok(()));
        let error = shake(&Authority::new("ours").roots(), "a.example", server).unwrap_err();
        assert!(error.contains("unknown issuer"), "{error}");
    }

    /// Answers a client's first bytes with `answer`.
    fn against(answer: &'static [u8]) -> TlsError {
        let run = async {
            let (near, mut far) = duplex(4000);
            let far = async move {
                let mut hello = [0; 5];
                far.read_exact(&mut hello).await.unwrap();
                far.write_all(answer).await.unwrap();
            };
            let connector = TlsConnector::new(&Authority::new("ours").roots(), &[]).unwrap();
            let host = Host::parse(b"a.example").unwrap();
            tokio::join!(connector.connect(&host, near), far).0.map(drop)
        };
        Cores::block_on(Box::pin(run)).unwrap().unwrap_err()
    }

    #[test]
    fn servers_without_tls() {
        assert!(matches!(against(b"HTTP/1.1 400 Bad Request\r\n\r\n"), TlsError::NotTls));
        assert!(matches!(against(b"SSH-2.0-OpenSSH_9.2\r\n"), TlsError::NotTls));
        // handshake_failure (RFC 8446, section 6).
        assert!(matches!(against(&[21, 3, 3, 0, 2, 2, 40]), TlsError::Refused(_)));
        assert!(matches!(against(b""), TlsError::Io(_)));
    }

    #[test]
    fn stores() {
        let found = vec![Authority::new("ours").der];
        assert_eq!(system_store(found, true).unwrap().len(), 1);
        assert!(matches!(system_store(Vec::new(), true), Err(TlsError::Store)));
        let own = system_store(vec![CertificateDer::from(vec![1, 2, 3])], false).unwrap();
        assert_eq!(own.len(), webpki_roots::TLS_SERVER_ROOTS.len());
        assert!(matches!(Roots::from_pem(b"nothing"), Err(TlsError::Pem)));
        let bad = b"-----BEGIN CERTIFICATE-----\nAQID\n-----END CERTIFICATE-----\n";
        assert!(matches!(Roots::from_pem(bad), Err(TlsError::Pem)));
    }
}
