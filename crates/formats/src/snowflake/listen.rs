//! Values that the servers share: addresses, certificates, sizes.

use std::net::{IpAddr, Ipv6Addr, SocketAddr};
use std::path::{Path, PathBuf};

use adit_model::{Acme, TlsFiles, WebUrl};

use super::snowflake_flags::{FlagValues, SnowflakeExit, SnowflakeFlag, text};

/// Flags about certificates that are fetched.
pub(super) const ACME: [SnowflakeFlag; 5] = [
    text(&["acme-hostnames"], "NAMES", "", "fetch a certificate for these names, separated by commas"),
    text(&["acme-email"], "ADDRESS", "", "address that the certificate authority may write to"),
    text(&["acme-cert-cache"], "DIR", CACHE, "folder of the certificates that were fetched"),
    text(
        &["acme-directory"],
        "URL",
        Acme::DIRECTORY,
        "directory of the certificate authority, which -acme-hostnames asks (adit's own)",
    ),
    text(
        &["acme-http"],
        "ADDRESS",
        "",
        "address for the authority's questions; else port 80 of the program's own (adit's own)",
    ),
];

/// The folder of certificates, unless the flags name one.
const CACHE: &str = "acme-cert-cache";
/// Names of one certificate, at most (Let's Encrypt's bound).
pub(crate) const MAX_NAMES: usize = 100;

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
pub(super) fn tls(values: &FlagValues) -> Result<Option<TlsFiles>, SnowflakeExit> {
    let wrong = |text: &str| Err(SnowflakeExit::Wrong(text.to_owned()));
    let (certificate, key) = (values.get("cert"), values.get("key"));
    match (certificate.is_empty(), key.is_empty(), values.is_set("disable-tls")) {
        (true, true, true) => Ok(None),
        (false, false, false) => {
            Ok(Some(TlsFiles { certificate: certificate.into(), key: key.into(), acme: None }))
        }
        (true, true, false) if !values.get("acme-hostnames").is_empty() => acme(values).map(Some),
        (_, _, true) => wrong("the --cert and --key options are not allowed with --disable-tls"),
        _ => wrong("the --cert and --key options, --acme-hostnames, or --disable-tls are required"),
    }
}

/// A certificate that is fetched.
fn acme(values: &FlagValues) -> Result<TlsFiles, SnowflakeExit> {
    let names = values.parsed("acme-hostnames", |text| {
        let names = text.split(',').map(certificate_name).collect::<Result<Vec<_>, _>>()?;
        if names.len() > MAX_NAMES { Err(format!("more than {MAX_NAMES} names")) } else { Ok(names) }
    })?;
    let email = values.parsed("acme-email", |text| match text {
        "" => Ok(None),
        text => mail(text).map(Some),
    })?;
    let directory =
        values.parsed("acme-directory", |text| WebUrl::parse(text).map_err(|error| error.to_string()))?;
    let answers = values.parsed("acme-http", |text| match text {
        "" => Ok(None),
        text => address(text).map(Some),
    })?;
    let folder = values.get("acme-cert-cache");
    let folder = Path::new(if folder.is_empty() { CACHE } else { folder });
    Ok(fetched(Acme { names, email, directory, answers }, folder))
}

/// The name of a host that a certificate can be fetched for, in small letters.
pub(crate) fn certificate_name(text: &str) -> Result<Box<str>, String> {
    let name = text.trim().to_lowercase();
    if !is_name(&name) {
        return Err(format!("\"{name}\" is no name that a certificate can be fetched for"));
    }
    Ok(name.into())
}

/// An address of mail.
pub(crate) fn mail(text: &str) -> Result<Box<str>, String> {
    let is_one = text.len() <= 254 && text.contains('@') && text.bytes().all(is_of_mail);
    is_one.then(|| text.into()).ok_or_else(|| "not an address of mail".to_owned())
}

/// A certificate that is fetched, in `folder`.
pub(crate) fn fetched(acme: Acme, folder: &Path) -> TlsFiles {
    let acme = Some(Box::new(acme));
    let mut files = TlsFiles { certificate: PathBuf::new(), key: PathBuf::new(), acme };
    cache(&mut files, folder);
    files
}

/// Has a certificate that is fetched, and its key, in a file of `folder`. It has the name that upstream's has.
pub(super) fn cache(files: &mut TlsFiles, folder: &Path) {
    let Some(first) = files.acme.as_ref().and_then(|acme| acme.names.first()) else { return };
    files.certificate = folder.join(&**first);
    files.key.clone_from(&files.certificate);
}

/// Whether the text is the name of a host: it becomes the name of a file.
fn is_name(text: &str) -> bool {
    let is_label = |label: &str| {
        let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'-';
        (1..=63).contains(&label.len()) && label.bytes().all(is_plain) && !label.starts_with('-')
    };
    text.len() <= 253
        && text.contains('.')
        && text.split('.').all(is_label)
        && text.parse::<IpAddr>().is_err()
}

fn is_of_mail(byte: u8) -> bool {
    byte.is_ascii_graphic() && !matches!(byte, b'"' | b'\\' | b',' | b'?' | b'<' | b'>')
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
