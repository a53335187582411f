//! The certificate of one end: self-signed, known to the other end by its hash in the description.

use std::time::Duration;

use dimpl::DtlsCertificate;
use rcgen::{CertificateParams, DistinguishedName, DnType, KeyPair, PKCS_ECDSA_P256_SHA256, date_time_ymd};

use crate::crypto::sha256;
use crate::wire::{Rng, WireError};

/// Seconds of a day.
const DAY: u64 = 86_400;
/// Validity from the day before on, in days, as browsers have it.
const VALID_DAYS: u64 = 31;

/// A certificate with its key.
#[derive(Debug, Clone)]
pub struct Certificate {
    pub(super) dtls: DtlsCertificate,
    pub(super) fingerprint: [u8; 32],
}

impl Certificate {
    /// A fresh one with a key for ECDSA on P-256, valid around `unix_time` (seconds since 1970).
    ///
    /// # Errors
    /// [`WireError::Exhausted`] if the crypto library gives none.
    pub fn generate(rng: &mut dyn Rng, unix_time: u64) -> Result<Self, WireError> {
        let failed = |_| WireError::Exhausted { what: "certificates" };
        let key = KeyPair::generate_for(&PKCS_ECDSA_P256_SHA256).map_err(failed)?;
        let mut params = CertificateParams::new(Vec::<String>::new()).map_err(failed)?;
        let mut name = DistinguishedName::new();
        name.push(DnType::CommonName, "WebRTC");
        params.distinguished_name = name;
        // The longest time that a date takes is far away.
        let begin = unix_time.saturating_sub(DAY).min(200_000 * DAY / 10);
        params.not_before = date_time_ymd(1970, 1, 1) + Duration::from_secs(begin);
        params.not_after = params.not_before + Duration::from_secs(VALID_DAYS * DAY);
        let mut serial = [0; 8];
        rng.fill(&mut serial);
        serial[0] &= 0x7f;
        params.serial_number = Some(serial.to_vec().into());
        let certificate = params.self_signed(&key).map_err(failed)?.der().to_vec();
        let fingerprint = sha256(&[&certificate]);
        Ok(Self { dtls: DtlsCertificate { certificate, private_key: key.serialize_der() }, fingerprint })
    }
}
