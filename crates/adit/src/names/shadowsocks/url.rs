//! `ssurl`: from files to links and back.
//!
//! Status 0, 2 for bad flags, 78 for a file or link that is no good.

use std::ffi::OsString;
use std::path::Path;
use std::process::ExitCode;

use adit_formats::read::source;
use adit_formats::shadowsocks::sip002;
use adit_formats::shadowsocks_rust::{self, Exit, Url};
use adit_model::diagnostic::{Diagnostic, Diagnostics};
use zeroize::Zeroizing;

use crate::load::supported;
use crate::print;

const USAGE: &str = "\
usage: ssurl -e FILE [-c]
       ssurl -d LINK [-c]

  -e, --encode FILE   prints the servers of a file of shadowsocks-rust as ss://
                      links
  -d, --decode LINK   prints an ss:// link as such a file
  -c, --qrcode        and a QR code of each
  -h, --help          prints this text
";

/// The flags, for a person.
pub(crate) fn usage((): ()) -> String {
    USAGE.to_owned()
}

/// Runs it.
pub(crate) fn main((): (), args: Vec<OsString>) -> ExitCode {
    let result = match shadowsocks_rust::url(args) {
        Ok(Url::Help) => return super::say(USAGE),
        Ok(Url::Encode { file, qr }) => encode(&file, qr),
        Ok(Url::Decode { link, qr }) => decode(&link, qr),
        Err(found) => {
            print::remark(format_args!("{found}{USAGE}"));
            return ExitCode::from(Exit::Flag as u8);
        }
    };
    match result {
        Ok(out) => super::say(&out),
        Err(error) => {
            print::failure(&error);
            ExitCode::from(Exit::Config as u8)
        }
    }
}

fn encode(path: &Path, qr: bool) -> anyhow::Result<Zeroizing<String>> {
    let (name, text) = (path.to_string_lossy(), source::read(path).map_err(Diagnostics::from)?);
    let (profiles, found) = shadowsocks_rust::profiles(&name, &text, supported::outside())?;
    for finding in &found {
        print::remark(finding.to_string().trim_end());
    }
    let mut out = Zeroizing::new(String::new());
    for profile in &profiles {
        let link = sip002::emit(profile)?;
        out.push_str(&link);
        out.push('\n');
        if qr {
            // Every reader of pictures knows the older form, which has no place for plugins.
            let legacy = sip002::emit_legacy(profile);
            out.push_str(&print::qr(legacy.as_ref().unwrap_or(&link), print::Background::Auto)?);
        }
    }
    Ok(out)
}

fn decode(link: &str, qr: bool) -> anyhow::Result<Zeroizing<String>> {
    let wrong = |error: sip002::Sip002Error| Diagnostic::error(&"ssurl".into(), "-d", error.to_string());
    let profile = sip002::parse(link).map_err(|error| Diagnostics::from(wrong(error)))?;
    let mut out = shadowsocks_rust::emit(&profile);
    if qr {
        out.push_str(&print::qr(link.trim(), print::Background::Auto)?);
    }
    Ok(out)
}
