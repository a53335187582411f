//! A certificate that a server signs itself, for clients that know it by its hash.

use std::fs::OpenOptions;
use std::io::{self, Write as _};
use std::path::Path;

use adit_proto::crypto::sha256;
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use rcgen::{CertificateParams, DistinguishedName, DnType, KeyPair, PKCS_ECDSA_P256_SHA256, date_time_ymd};
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject as _;

use crate::unix::set_mode;

/// Years of validity. Clients know the certificate by its hash: one that ended would lock them out.
const YEARS: (i32, i32) = (2025, 2125);
/// Bytes of base64 in a line (RFC 7468, 2).
const LINE_LEN: usize = 64;

/// Makes a certificate with a key (ECDSA on P-256) unless both files are there; only this user can read the key. The
/// SHA-256 digest of the certificate.
///
/// # Errors
/// When a file cannot be written or read, or one of the two is missing; the message names the file.
pub fn own(certificate: &Path, key: &Path) -> io::Result<[u8; 32]> {
    if !certificate.exists() && !key.exists() {
        make(certificate, key)?;
    }
    let named = |error: String| io::Error::other(format!("{}: {error}", certificate.display()));
    let text = crate::files::read(certificate, crate::tls_server::MAX_LEN)
        .map_err(|error| named(error.to_string()))?;
    let der = CertificateDer::from_pem_slice(&text).map_err(|error| named(error.to_string()))?;
    Ok(sha256(&[&der]))
}

fn make(certificate: &Path, key: &Path) -> io::Result<()> {
    let failed = |error: rcgen::Error| io::Error::other(format!("no certificate can be made: {error}"));
    let pair = KeyPair::generate_for(&PKCS_ECDSA_P256_SHA256).map_err(failed)?;
    let names = vec!["localhost".to_owned(), "127.0.0.1".to_owned()];
    let mut params = CertificateParams::new(names).map_err(failed)?;
    let mut name = DistinguishedName::new();
    name.push(DnType::CommonName, "localhost");
    params.distinguished_name = name;
    (params.not_before, params.not_after) = (date_time_ymd(YEARS.0, 1, 1), date_time_ymd(YEARS.1, 1, 1));
    let signed = params.self_signed(&pair).map_err(failed)?;
    write(key, "PRIVATE KEY", &pair.serialize_der(), 0o600)?;
    write(certificate, "CERTIFICATE", signed.der(), 0o644)
}

/// A new key (ECDSA on P-256, PEM), and the request for a certificate of it for `names` (PKCS #10, DER).
///
/// # Errors
/// When one of the names cannot stand in a certificate, or the system gives no randomness.
pub fn request(names: &[Box<str>]) -> io::Result<(String, Vec<u8>)> {
    let failed = |error: rcgen::Error| io::Error::other(format!("no request can be made: {error}"));
    let pair = KeyPair::generate_for(&PKCS_ECDSA_P256_SHA256).map_err(failed)?;
    let names: Vec<String> = names.iter().map(|name| name.to_string()).collect();
    let mut params = CertificateParams::new(names).map_err(failed)?;
    params.distinguished_name = DistinguishedName::new();
    let request = params.serialize_request(&pair).map_err(failed)?;
    Ok((pem("PRIVATE KEY", &pair.serialize_der()), request.der().to_vec()))
}

/// A text in PEM (RFC 7468).
pub fn pem(kind: &str, der: &[u8]) -> String {
    let mut text = format!("-----BEGIN {kind}-----\n");
    let mut base64 = &*STANDARD.encode(der);
    while !base64.is_empty() {
        let (line, rest) = base64.split_at(base64.len().min(LINE_LEN));
        text.push_str(line);
        text.push('\n');
        base64 = rest;
    }
    text.push_str(&format!("-----END {kind}-----\n"));
    text
}

fn write(path: &Path, kind: &str, der: &[u8], mode: u32) -> io::Result<()> {
    let text = pem(kind, der);
    let named = |error: io::Error| io::Error::new(error.kind(), format!("{}: {error}", path.display()));
    let mut options = OpenOptions::new();
    let options = set_mode(options.write(true).create_new(true), mode);
    let mut file = options.open(path).map_err(named)?;
    file.write_all(text.as_bytes()).and_then(|()| file.sync_all()).map_err(named)
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::MetadataExt as _;

    use super::*;
    use crate::tls_server::TlsIdentity;

    #[test]
    fn a_certificate_is_made_once_and_stays() {
        let folder = std::env::temp_dir().join(format!("adit-tls-own-{}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        let (certificate, key) = (folder.join("a.crt"), folder.join("a.key"));
        let first = own(&certificate, &key).unwrap();
        assert_eq!(own(&certificate, &key).unwrap(), first);
        assert_eq!(std::fs::metadata(&key).unwrap().mode() & 0o777, 0o600);
        TlsIdentity::load(&certificate, &key).unwrap();
        std::fs::remove_file(&certificate).unwrap();
        let error = own(&certificate, &key).unwrap_err().to_string();
        assert!(error.contains("a.crt"), "{error}");
        std::fs::remove_file(&key).unwrap();
        assert_ne!(own(&certificate, &key).unwrap(), first);
        std::fs::remove_dir_all(&folder).unwrap();
    }
}
