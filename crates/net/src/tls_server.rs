//! TLS on the server side, with a certificate from files.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::SystemTime;

use adit_model::TlsFiles;
use rustls::ServerConfig;
use rustls::client::verify_server_name;
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use rustls::server::ParsedCertificate;
use tokio::io::{AsyncRead, AsyncWrite};
pub use tokio_rustls::server::TlsStream;

use crate::files;

/// Longest file of a certificate or key, in bytes.
pub const MAX_LEN: usize = 1 << 20;

/// The private key in a text (PEM), as DER of PKCS #8, PKCS #1 or RFC 5915; `None` if there is none.
pub fn key_of_pem(text: &[u8]) -> Option<Vec<u8>> {
    PrivateKeyDer::from_pem_slice(text).ok().map(|key| key.secret_der().to_vec())
}

/// The first certificate (DER) of a chain with its key (PEM), if they belong together and it is for all `names`.
///
/// # Errors
/// When they do not fit together, or one of the names is missing.
pub fn check(text: &[u8], names: &[Box<str>]) -> io::Result<Vec<u8>> {
    config(Path::new("the certificate"), text, Path::new("the key"), text)?;
    let first = CertificateDer::from_pem_slice(text).map_err(io::Error::other)?;
    let parsed = ParsedCertificate::try_from(&first).map_err(io::Error::other)?;
    for name in names {
        let server = ServerName::try_from(&**name).map_err(io::Error::other)?;
        verify_server_name(&parsed, &server)
            .map_err(|_| io::Error::other(format!("the certificate is not for {name}")))?;
    }
    Ok(first.to_vec())
}

/// A certificate with its key, and the files that they come from. Clones share it.
#[derive(Debug, Clone)]
pub struct TlsIdentity {
    certificate: PathBuf,
    key: PathBuf,
    /// Nothing until the first certificate has been fetched.
    config: Arc<Mutex<Option<Arc<ServerConfig>>>>,
    /// When the files had been changed last as they were read.
    changed: Arc<Mutex<Changes>>,
}

/// Times of the last change of certificate and key, where the system tells them.
type Changes = [Option<SystemTime>; 2];

impl TlsIdentity {
    /// Reads a chain of certificates and a private key (PEM).
    ///
    /// # Errors
    /// When a file cannot be read, holds no PEM of its kind, or the key is another certificate's; the message names the
    /// file.
    pub fn load(certificate: &Path, key: &Path) -> io::Result<Self> {
        let changed = Arc::new(Mutex::new(changes(certificate, key)));
        let config = Arc::new(Mutex::new(Some(read(certificate, key)?)));
        Ok(Self { certificate: certificate.to_owned(), key: key.to_owned(), config, changed })
    }

    /// As [`TlsIdentity::load`]; if adit fetches the certificate itself, handshakes fail until the first one is there.
    ///
    /// # Errors
    /// As [`TlsIdentity::load`] for files that somebody else keeps.
    pub fn open(files: &TlsFiles) -> io::Result<Self> {
        let TlsFiles { certificate, key, acme } = files;
        if acme.is_none() {
            return Self::load(certificate, key);
        }
        let changed = Arc::new(Mutex::new(changes(certificate, key)));
        let config = Arc::new(Mutex::new(read(certificate, key).ok()));
        Ok(Self { certificate: certificate.to_owned(), key: key.to_owned(), config, changed })
    }

    /// Reads the files again. Connections from now on get the new certificate.
    ///
    /// # Errors
    /// As [`TlsIdentity::load`]; the old certificate stays then.
    pub fn reload(&self) -> io::Result<()> {
        let fresh = read(&self.certificate, &self.key)?;
        *self.config.lock().unwrap_or_else(PoisonError::into_inner) = Some(fresh);
        Ok(())
    }

    /// Reads the files again if they have changed since the last time.
    ///
    /// # Errors
    /// As [`TlsIdentity::load`], once for each change; the old certificate stays then.
    pub fn follow(&self) -> io::Result<()> {
        let now = changes(&self.certificate, &self.key);
        let before =
            std::mem::replace(&mut *self.changed.lock().unwrap_or_else(PoisonError::into_inner), now);
        if before == now { Ok(()) } else { self.reload() }
    }

    /// Shakes hands with a client. Sets no limit of time.
    ///
    /// # Errors
    /// The stream's, or that of a handshake that fails.
    pub async fn accept<S: AsyncRead + AsyncWrite + Unpin>(&self, stream: S) -> io::Result<TlsStream<S>> {
        let config = self.config.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let config = config.ok_or_else(|| io::Error::other("no certificate has been fetched yet"))?;
        tokio_rustls::TlsAcceptor::from(config).accept(stream).await
    }
}

fn changes(certificate: &Path, key: &Path) -> Changes {
    [certificate, key].map(|path| std::fs::metadata(path).and_then(|file| file.modified()).ok())
}

fn named(path: &Path, error: &str) -> io::Error {
    io::Error::other(format!("{}: {error}", path.display()))
}

fn read(certificate: &Path, key: &Path) -> io::Result<Arc<ServerConfig>> {
    let text = |path: &Path| files::read(path, MAX_LEN).map_err(|error| named(path, &error.to_string()));
    config(certificate, &text(certificate)?, key, &text(key)?)
}

/// TLS with the chain in `text` and the key in `secret`; the paths are for messages.
fn config(certificate: &Path, text: &[u8], key: &Path, secret: &[u8]) -> io::Result<Arc<ServerConfig>> {
    let named = |path: &Path, error: String| named(path, &error);
    let chain: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(text).collect();
    let chain = chain.map_err(|error| named(certificate, error.to_string()))?;
    if chain.is_empty() {
        return Err(named(certificate, "no certificate in it (PEM)".into()));
    }
    let secret = PrivateKeyDer::from_pem_slice(secret).map_err(|error| named(key, error.to_string()))?;
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let config = ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .map_err(io::Error::other)?
        .with_no_client_auth()
        .with_single_cert(chain, secret)
        .map_err(|error| named(certificate, error.to_string()))?;
    Ok(Arc::new(config))
}

#[cfg(test)]
mod tests {
    use base64::Engine as _;
    use base64::engine::general_purpose::STANDARD;
    use rcgen::{CertificateParams, KeyPair};
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _, duplex};

    use super::*;
    use crate::rt::Cores;
    use crate::tls::{Roots, TlsConnector};

    fn pem(kind: &str, der: &[u8]) -> String {
        let text = STANDARD.encode(der);
        let lines: Vec<&str> =
            text.as_bytes().chunks(64).map(|line| std::str::from_utf8(line).unwrap()).collect();
        format!("-----BEGIN {kind}-----\n{}\n-----END {kind}-----\n", lines.join("\n"))
    }

    fn write(folder: &Path, name: &str) -> (PathBuf, PathBuf, String) {
        let key = KeyPair::generate().unwrap();
        let certificate =
            CertificateParams::new(vec!["a.example".into()]).unwrap().self_signed(&key).unwrap();
        let paths = [folder.join(format!("{name}.crt")), folder.join(format!("{name}.key"))];
        let trusted = pem("CERTIFICATE", certificate.der());
        std::fs::write(&paths[0], &trusted).unwrap();
        std::fs::write(&paths[1], pem("PRIVATE KEY", &key.serialize_der())).unwrap();
        let [certificate_file, key_file] = paths;
        (certificate_file, key_file, trusted)
    }

    async fn greets(identity: &TlsIdentity, trusted: &str) -> bool {
        let connector = TlsConnector::new(&Roots::from_pem(trusted.as_bytes()).unwrap(), &[]).unwrap();
        let (near, far) = duplex(4096);
        let identity = identity.clone();
        crate::rt::spawn_local(async move {
            if let Ok(mut tls) = identity.accept(far).await {
                tls.write_all(b"hi").await.ok();
                tls.shutdown().await.ok();
            }
        });
        let host = adit_proto::wire::Host::Name("a.example".into());
        let Ok(mut tls) = connector.connect(&host, near).await else { return false };
        let mut text = String::new();
        tls.read_to_string(&mut text).await.is_ok() && text == "hi"
    }

    #[test]
    fn certificates_are_replaced_while_it_runs() {
        let folder = std::env::temp_dir().join(format!("adit-tls-{}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        let (certificate, key, old) = write(&folder, "a");
        let (other, other_key, new) = write(&folder, "b");
        Cores::block_on(async {
            let identity = TlsIdentity::load(&certificate, &key).unwrap();
            assert!(greets(&identity, &old).await && !greets(&identity, &new).await);
            std::fs::copy(&other, &certificate).unwrap();
            assert!(identity.reload().is_err(), "a certificate with another key");
            assert!(greets(&identity, &old).await);
            std::fs::copy(&other_key, &key).unwrap();
            identity.reload().unwrap();
            assert!(greets(&identity, &new).await && !greets(&identity, &old).await);
            // Without being told, when the files are other ones.
            identity.follow().unwrap();
            std::fs::write(&key, "nothing").unwrap();
            assert!(identity.follow().is_err() && identity.follow().is_ok(), "once for each change");
            assert!(greets(&identity, &new).await);
            std::fs::write(&key, "nothing").unwrap();
            let error = TlsIdentity::load(&certificate, &key).unwrap_err().to_string();
            assert!(error.contains("a.key"), "{error}");
        })
        .unwrap();
        std::fs::remove_dir_all(&folder).unwrap();
    }
}
