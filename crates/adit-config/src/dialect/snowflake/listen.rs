//! Values that the servers share: addresses, certificates, sizes.

use std::net::{IpAddr, Ipv6Addr, SocketAddr};

use super::flags::{Ends, Values};
use crate::model::TlsFiles;

/// Advice for those who ask for certificates of Let's Encrypt.
const NO_ACME: &str = "adit does not fetch certificates itself: give -cert and -key, for instance those that certbot \
    keeps (SIGHUP reads them again), or -disable-tls behind a reverse proxy";

/// An address as Go writes it: `:443` for all of this machine's, `host:443` for an address or localhost.
pub(super) fn address(text: &str) -> Result<SocketAddr, String> {
    let wrong = || format!("\"{text}\" is no address with a port");
    if let Ok(found) = text.parse() {
        return Ok(found);
    }
    let (host, port) = text.rsplit_once(':').ok_or_else(wrong)?;
    let port = port.parse().map_err(|_| wrong())?;
    match host {
        "" => Ok((Ipv6Addr::UNSPECIFIED, port).into()),
        "localhost" => Ok((IpAddr::from([127, 0, 0, 1]), port).into()),
        _ => Err(wrong()),
    }
}

/// The certificate that the flags name; `None` for `-disable-tls`. One of the two must be chosen.
pub(super) fn tls(values: &Values) -> Result<Option<TlsFiles>, Ends> {
    let wrong = |text: &str| Err(Ends::Wrong(text.to_owned()));
    let (certificate, key) = (values.get("cert"), values.get("key"));
    match (certificate.is_empty(), key.is_empty(), values.is_set("disable-tls")) {
        (true, true, true) => Ok(None),
        (false, false, false) => Ok(Some(TlsFiles { certificate: certificate.into(), key: key.into() })),
        (true, true, false) if !values.get("acme-hostnames").is_empty() => {
            Err(Ends::Wrong(format!("flag -acme-hostnames: {NO_ACME}")))
        }
        (_, _, true) => wrong("the --cert and --key options are not allowed with --disable-tls"),
        _ => wrong("the --cert and --key options, or --disable-tls, are required"),
    }
}

/// A number of bytes: digits, and K, M or G for powers of 1024.
pub(super) fn size(text: &str) -> Result<usize, String> {
    let (digits, shift) = match text.as_bytes().last() {
        Some(b'K' | b'k') => (&text[..text.len() - 1], 10),
        Some(b'M' | b'm') => (&text[..text.len() - 1], 20),
        Some(b'G' | b'g') => (&text[..text.len() - 1], 30),
        _ => (text, 0),
    };
    let number: usize = digits.parse().map_err(|_| "not a number of bytes, such as 8M".to_owned())?;
    number.checked_mul(1 << shift).ok_or_else(|| "too many bytes".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_and_sizes() {
        for (text, want) in [
            (":443", "[::]:443"),
            ("localhost:80", "127.0.0.1:80"),
            ("192.0.2.1:5", "192.0.2.1:5"),
            ("[2001:db8::1]:5", "[2001:db8::1]:5"),
        ] {
            assert_eq!(address(text), Ok(want.parse().unwrap()), "{text}");
        }
        for text in ["443", "a.example:443", ":x", ":70000", ""] {
            assert!(address(text).is_err(), "{text}");
        }
        assert_eq!((size("8M"), size("64k"), size("5")), (Ok(8 << 20), Ok(64 << 10), Ok(5)));
        for text in ["", "M", "-1", "1T", "99999999999999G"] {
            assert!(size(text).is_err(), "{text}");
        }
    }
}
