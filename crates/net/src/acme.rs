//! Parts of ACME (RFC 8555): the words that an account signs (RFC 7515, ES256), and the times of a certificate.

use adit_proto::crypto::sha256;
use adit_proto::wire::days;
use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use rcgen::{KeyPair, PKCS_ECDSA_P256_SHA256, PublicKeyData as _, SigningKey as _};
use rustls::pki_types::{PrivateKeyDer, PrivatePkcs8KeyDer, PrivateSec1KeyDer};

/// Longest address, nonce or token of a certificate authority that is used, in bytes.
const MAX_WORD_LEN: usize = 1024;

/// Bytes of a number of P-256.
const NUMBER: usize = 32;

/// An account's key (ECDSA on P-256).
#[derive(Debug)]
pub struct Account {
    key: KeyPair,
}

/// The name of the signer of a request.
#[derive(Debug, Clone, Copy)]
pub enum Signer<'a> {
    /// The key itself, for the request that makes the account.
    Key,
    /// The account's address.
    Account(&'a str),
}

impl Account {
    /// A new key as DER (PKCS #8); `None` if the system gives no randomness.
    pub fn generate() -> Option<Vec<u8>> {
        Some(KeyPair::generate_for(&PKCS_ECDSA_P256_SHA256).ok()?.serialize_der())
    }

    /// The account of a key, as DER of PKCS #8 or of RFC 5915; `None` if it is no key on P-256.
    pub fn from_der(der: &[u8]) -> Option<Self> {
        let algorithm = &PKCS_ECDSA_P256_SHA256;
        let key = KeyPair::from_pkcs8_der_and_sign_algo(&PrivatePkcs8KeyDer::from(der), algorithm);
        let old = || PrivateKeyDer::Sec1(PrivateSec1KeyDer::from(der));
        Some(Self { key: key.or_else(|_| KeyPair::from_der_and_sign_algo(&old(), algorithm)).ok()? })
    }

    /// The public key as JSON, with its members in the order that the thumbprint takes (RFC 7638).
    fn public(&self) -> String {
        let point = self.key.der_bytes();
        let number = |at: usize| URL_SAFE_NO_PAD.encode(point.get(at..at + NUMBER).unwrap_or_default());
        format!(
            "{{\"crv\":\"P-256\",\"kty\":\"EC\",\"x\":\"{}\",\"y\":\"{}\"}}",
            number(1),
            number(1 + NUMBER)
        )
    }

    /// The answer to a challenge: its token, and the thumbprint of this account's key.
    pub fn answer(&self, token: &str) -> String {
        format!("{token}.{}", URL_SAFE_NO_PAD.encode(sha256(&[self.public().as_bytes()])))
    }

    /// The body of a request to `url`; an empty payload asks for a document. `None` if a word cannot stand in a request, or
    /// the system gives no randomness.
    pub fn sign(&self, url: &str, nonce: &str, signer: Signer<'_>, payload: &str) -> Option<Vec<u8>> {
        let who = match signer {
            Signer::Key => format!("\"jwk\":{}", self.public()),
            Signer::Account(address) => format!("\"kid\":\"{}\"", word(address)?),
        };
        let head =
            format!("{{\"alg\":\"ES256\",{who},\"nonce\":\"{}\",\"url\":\"{}\"}}", word(nonce)?, word(url)?);
        let (head, payload) = (URL_SAFE_NO_PAD.encode(head), URL_SAFE_NO_PAD.encode(payload));
        let signed = format!("{head}.{payload}");
        let signature = URL_SAFE_NO_PAD.encode(plain(&self.key.sign(signed.as_bytes()).ok()?)?);
        let body =
            format!("{{\"protected\":\"{head}\",\"payload\":\"{payload}\",\"signature\":\"{signature}\"}}");
        Some(body.into_bytes())
    }
}

/// The two numbers of a signature (DER, RFC 3279), one behind the other (RFC 7518, 3.4).
fn plain(signature: &[u8]) -> Option<[u8; 2 * NUMBER]> {
    let (numbers, _) = element(signature, 0x30)?;
    let (r, rest) = element(numbers, 0x02)?;
    let (s, _) = element(rest, 0x02)?;
    let mut both = [0; 2 * NUMBER];
    for (number, place) in [r, s].into_iter().zip(both.chunks_exact_mut(NUMBER)) {
        let digits = &number[number.iter().take_while(|digit| **digit == 0).count()..];
        place[NUMBER.checked_sub(digits.len())?..].copy_from_slice(digits);
    }
    Some(both)
}

/// A word that needs no escapes in JSON, of 1,024 bytes at most.
pub fn word(text: &str) -> Option<&str> {
    let is_plain = text.bytes().all(|byte| byte.is_ascii_graphic() && byte != b'"' && byte != b'\\');
    (is_plain && !text.is_empty() && text.len() <= MAX_WORD_LEN).then_some(text)
}

/// Whether `token` may be a challenge's: it becomes a part of a path (RFC 8555, 8.3).
pub fn is_token(token: &str) -> bool {
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'-' || byte == b'_';
    !token.is_empty() && token.len() <= 256 && token.bytes().all(is_plain)
}

/// Bytes in the form that ACME's documents have them in.
pub fn base64url(bytes: &[u8]) -> String {
    URL_SAFE_NO_PAD.encode(bytes)
}

/// When a certificate (DER) begins and ends to be valid, in seconds since 1970; `None` if it is none.
pub fn validity(certificate: &[u8]) -> Option<(u64, u64)> {
    const SEQUENCE: u8 = 0x30;
    const VERSION: u8 = 0xa0;
    let (certificate, _) = element(certificate, SEQUENCE)?;
    let (mut rest, _) = element(certificate, SEQUENCE)?;
    if rest.first() == Some(&VERSION) {
        rest = element(rest, VERSION)?.1;
    }
    // Number, algorithm and issuer come first.
    for kind in [0x02, SEQUENCE, SEQUENCE] {
        rest = element(rest, kind)?.1;
    }
    let (times, _) = element(rest, SEQUENCE)?;
    let (begin, rest) = time(times)?;
    let (end, _) = time(rest)?;
    Some((begin, end))
}

/// The content of the first element, if it is of that kind, and what follows it.
fn element(bytes: &[u8], kind: u8) -> Option<(&[u8], &[u8])> {
    let [found, first, rest @ ..] = bytes else { return None };
    if *found != kind {
        return None;
    }
    let (len, rest) = match first {
        0..=0x7f => (usize::from(*first), rest),
        0x81..=0x83 => {
            let (len, rest) = rest.split_at_checked(usize::from(first & 0x7f))?;
            (len.iter().fold(0, |len, byte| len << 8 | usize::from(*byte)), rest)
        }
        _ => return None,
    };
    rest.split_at_checked(len)
}

/// A time of either kind (RFC 5280, 4.1.2.5), always in UTC and with seconds.
fn time(bytes: &[u8]) -> Option<(u64, &[u8])> {
    let (text, rest, is_long) = match element(bytes, 0x17) {
        Some((text, rest)) => (text, rest, false),
        None => element(bytes, 0x18).map(|(text, rest)| (text, rest, true))?,
    };
    let digits = text.strip_suffix(b"Z")?;
    let (year, rest_of_it) = digits.split_at_checked(if is_long { 4 } else { 2 })?;
    let number = |part: &[u8]| -> Option<u64> {
        let is_number = part.iter().all(u8::is_ascii_digit);
        is_number.then(|| part.iter().fold(0, |sum, digit| sum * 10 + u64::from(digit - b'0')))
    };
    let year = match (number(year)?, is_long) {
        (year, true) => year,
        (year @ 0..50, false) => 2000 + year,
        (year, false) => 1900 + year,
    };
    let &[a, b, c, d, e, f, g, h, i, j] = rest_of_it else { return None };
    let parts = [[a, b], [c, d], [e, f], [g, h], [i, j]].map(|part| number(&part));
    let [Some(month @ 1..=12), Some(day @ 1..=31), Some(hour @ 0..24), Some(minute @ 0..60), Some(second)] =
        parts
    else {
        return None;
    };
    let seconds = days(year, month, day)? * 86_400 + hour * 3600 + minute * 60 + second;
    Some((seconds, rest))
}

#[cfg(test)]
mod tests {
    use rustls::pki_types::alg_id;

    use super::*;

    /// A signature as certificates have it, of its two numbers.
    fn der(plain: &[u8]) -> Vec<u8> {
        let number = |digits: &[u8]| {
            let digits = &digits[digits.iter().take_while(|digit| **digit == 0).count()..];
            let sign = if digits.first().is_none_or(|digit| *digit >= 0x80) { &[0][..] } else { &[] };
            let len = u8::try_from(sign.len() + digits.len()).unwrap();
            [&[2, len], sign, digits].concat()
        };
        let numbers = [number(&plain[..NUMBER]), number(&plain[NUMBER..])].concat();
        [&[0x30, u8::try_from(numbers.len()).unwrap()], &*numbers].concat()
    }

    #[test]
    fn numbers_of_a_signature() {
        for (r, s) in [([1; NUMBER], [0xff; NUMBER]), ([0; NUMBER], [7; NUMBER])] {
            let both = [r, s].concat();
            let signature = der(&both);
            assert_eq!(plain(&signature).map(|plain| plain.to_vec()), Some(both));
            for len in 0..signature.len() {
                assert_eq!(plain(&signature[..len]), None);
            }
        }
        let long = [&[0x30, 2 + 33 + 3, 2, 33][..], &[1; 33], &[2, 1, 1]].concat();
        assert_eq!(plain(&long), None);
    }

    fn verify(point: &[u8], text: &[u8], signature: &[u8]) {
        let provider = rustls::crypto::aws_lc_rs::default_provider();
        let all = provider.signature_verification_algorithms.all;
        let wanted = (alg_id::ECDSA_P256, alg_id::ECDSA_SHA256);
        let found = all.iter().find(|one| (one.public_key_alg_id(), one.signature_alg_id()) == wanted);
        found.unwrap().verify_signature(point, text, signature).unwrap();
    }

    #[test]
    fn requests_are_signed() {
        let account = Account::from_der(&Account::generate().unwrap()).unwrap();
        let url = "https://ca.example/acme/new-order";
        for (signer, part) in [
            (Signer::Key, "\"jwk\":{\"crv\":\"P-256\",\"kty\":\"EC\",\"x\":\""),
            (Signer::Account("https://ca.example/a/1"), "\"kid\":\"https://ca.example/a/1\""),
        ] {
            let body = account.sign(url, "n-1", signer, "{\"a\":1}").unwrap();
            let body: serde_json::Value = serde_json::from_slice(&body).unwrap();
            let [head, payload, signature] =
                ["protected", "payload", "signature"].map(|name| body[name].as_str().unwrap());
            let raw = |text: &str| URL_SAFE_NO_PAD.decode(text).unwrap();
            let text = String::from_utf8(raw(head)).unwrap();
            assert!(text.contains(part) && text.contains("\"nonce\":\"n-1\""), "{text}");
            assert!(serde_json::from_str::<serde_json::Value>(&text).is_ok());
            assert_eq!(raw(payload), b"{\"a\":1}");
            let text = format!("{head}.{payload}");
            verify(account.key.der_bytes(), text.as_bytes(), &der(&raw(signature)));
        }
        for (url, nonce) in
            [("https://a/\"", "n"), ("https://a/", "n\\"), ("https://a/", ""), ("https://a/\n", "n")]
        {
            assert!(account.sign(url, nonce, Signer::Key, "").is_none(), "{url} {nonce}");
        }
        assert!(account.sign(&"x".repeat(MAX_WORD_LEN + 1), "n", Signer::Key, "").is_none());
    }

    #[test]
    fn keys_of_other_kinds_are_none() {
        let der = Account::generate().unwrap();
        for len in 0..der.len() {
            assert!(Account::from_der(&der[..len]).is_none());
        }
        let answer = Account::from_der(&der).unwrap().answer("token");
        assert_eq!(answer.len(), "token.".len() + 43);
        assert_eq!(Account::from_der(&der).unwrap().answer("token"), answer);
    }

    #[test]
    fn tokens_are_words() {
        assert!(is_token("evaGxfADs6pSRb2LAv9IZf17Dt3juxGJ-PCt92wr_oA"));
        for token in ["", "../x", "a/b", "a b", "a\0", "\u{e4}", &"a".repeat(257)] {
            assert!(!is_token(token), "{token}");
        }
    }

    #[test]
    fn times_of_certificates() {
        let mut params = rcgen::CertificateParams::new(vec!["a.example".into()]).unwrap();
        params.not_before = rcgen::date_time_ymd(2024, 2, 29);
        params.not_after = rcgen::date_time_ymd(2051, 3, 1);
        let certificate = params.self_signed(&KeyPair::generate().unwrap()).unwrap();
        let der = certificate.der();
        assert_eq!(validity(der), Some((1_709_164_800, 2_561_241_600)));
        for len in 0..der.len() {
            assert_eq!(validity(&der[..len]), None);
        }
        let mut flipped = der.to_vec();
        for at in 0..der.len().min(120) * 8 {
            flipped[at / 8] ^= 1 << (at % 8);
            let _ = validity(&flipped);
            flipped[at / 8] ^= 1 << (at % 8);
        }
        assert_eq!(days(1970, 1, 1), Some(0));
        assert_eq!((days(1969, 12, 31), days(0, 1, 1)), (None, None));
    }
}
