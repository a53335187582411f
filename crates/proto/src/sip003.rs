//! SIP003: the option string of a plugin.
//!
//! ```text
//! options := option (';' option)*
//! option  := key ('=' value)?          an option without a value is a switch
//! ```
//!
//! In keys and values `;`, `=` and `\` are written with a `\` in front; a `\` at the very end stands for nothing
//! (simple-obfs 0.0.5). Empty options are passed over. An `=` in a value may stand bare, as everybody writes it in
//! `path=/?a=b`.

use std::fmt::Write as _;

/// Reads an option string: keys in their order, with a value unless they are switches.
pub fn parse_options(text: &str) -> Vec<(String, Option<String>)> {
    let mut options = Vec::new();
    let (mut key, mut value) = (String::new(), None::<String>);
    let mut chars = text.chars();
    loop {
        let c = chars.next();
        if c == Some('=') && value.is_none() {
            value = Some(String::new());
            continue;
        }
        let part = value.as_mut().unwrap_or(&mut key);
        match c {
            None | Some(';') => {
                let option = (std::mem::take(&mut key), value.take());
                if !option.0.is_empty() || option.1.is_some() {
                    options.push(option);
                }
                if c.is_none() {
                    return options;
                }
            }
            Some('\\') => part.extend(chars.next()),
            Some(c) => part.push(c),
        }
    }
}

/// Writes an option string that [`parse_options`] reads as these options.
pub fn emit_options<'a>(options: impl IntoIterator<Item = (&'a str, Option<&'a str>)>) -> String {
    let mut out = String::new();
    for (key, value) in options {
        if !out.is_empty() {
            out.push(';');
        }
        escape(key, &mut out);
        if let Some(value) = value {
            write!(out, "=").expect("a string takes any text");
            escape(value, &mut out);
        }
    }
    out
}

fn escape(text: &str, out: &mut String) {
    for c in text.chars() {
        if matches!(c, ';' | '=' | '\\') {
            out.push('\\');
        }
        out.push(c);
    }
}

/// Fuzz target: options that can be read can be written and read again.
#[doc(hidden)]
pub fn fuzz_options(data: &[u8]) {
    let options = parse_options(&String::from_utf8_lossy(data));
    let text = emit_options(options.iter().map(|(key, value)| (key.as_str(), value.as_deref())));
    assert_eq!(parse_options(&text), options);
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn options() {
        for (text, want) in [
            ("", &[][..]),
            ("obfs=http;obfs-host=a.b", &[("obfs", Some("http")), ("obfs-host", Some("a.b"))]),
            ("server;tls;host=h", &[("server", None), ("tls", None), ("host", Some("h"))]),
            (r"a\;b=c\=d\\;e", &[("a;b", Some(r"c=d\")), ("e", None)]),
            ("path=/?a=b;;x=", &[("path", Some("/?a=b")), ("x", Some(""))]),
            ("=v", &[("", Some("v"))]),
            ("a=b\\", &[("a", Some("b"))]),
        ] {
            let found = parse_options(text);
            let found: Vec<_> = found.iter().map(|(key, value)| (key.as_str(), value.as_deref())).collect();
            assert_eq!(found, want, "{text}");
        }
        assert_eq!(emit_options([("a;b", Some("c=d\\")), ("e", None)]), r"a\;b=c\=d\\;e");
    }

    proptest! {
        #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

        #[test]
        fn any_text(text in "[ab;=\\\\é]{0,20}") {
            fuzz_options(text.as_bytes());
        }
    }
}
