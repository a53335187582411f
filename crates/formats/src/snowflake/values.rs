//! Values that flags and arguments share.

use adit_proto::wire::{Host, Target};

use adit_model::WebUrl;

/// Names of hellos that may be asked for, in any case.
const HELLOS: &[&str] = &[
    "hellorandomizedalpn",
    "hellorandomizednoalpn",
    "hellofirefox_auto",
    "hellofirefox_55",
    "hellofirefox_56",
    "hellofirefox_63",
    "hellofirefox_65",
    "hellochrome_auto",
    "hellochrome_58",
    "hellochrome_62",
    "hellochrome_70",
    "hellochrome_72",
    "helloios_auto",
    "helloios_11_1",
    "helloios_12_1",
];

/// A broker's address. Names of requests are resolved against it, so that it should end with a slash.
pub(crate) fn broker(text: &str) -> Result<WebUrl, String> {
    WebUrl::parse(text).map_err(|error| error.to_string())
}

/// A comma list of hosts.
pub(super) fn hosts(text: &str) -> Result<Vec<Host>, String> {
    let words = text.split(',').map(str::trim).filter(|word| !word.is_empty());
    words
        .map(|word| Host::parse(word.as_bytes()).map_err(|_| format!("\"{word}\" is no host name")))
        .collect()
}

/// A comma list of STUN servers; the scheme `turn:` is refused.
pub(super) fn stun(text: &str) -> Result<Vec<Target>, String> {
    let words = text.split(',').map(str::trim).filter(|word| !word.is_empty());
    words.map(stun_server).collect()
}

/// One STUN server.
pub(crate) fn stun_server(word: &str) -> Result<Target, String> {
    let wrong = || format!("\"{word}\" is no STUN server (stun:host:port)");
    let rest = word.strip_prefix("stun:").ok_or_else(wrong)?;
    let has_port =
        rest.rfind(':') > rest.rfind(']') && (rest.matches(':').count() == 1 || rest.contains(']'));
    let target = if has_port { rest.to_owned() } else { format!("{rest}:3478") };
    target.parse().map_err(|_| wrong())
}

/// The name of a TLS hello to imitate, in any case.
pub(crate) fn hello(text: &str) -> Result<Box<str>, String> {
    let is_known = HELLOS.contains(&text.to_ascii_lowercase().as_str());
    is_known.then(|| text.into()).ok_or_else(|| format!("unknown name \"{text}\""))
}
