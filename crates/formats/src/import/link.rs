//! Links: `ss://` of SIP002, `ssr://`, and `snell://` as Shadowrocket writes it; and subscriptions, which are base64 of
//! lines with links of any of these kinds. A first line `MAX=n` of a subscription asks for `n` of its servers; all are
//! read.
//!
//! ```text
//! link := 'snell://' base64(method ':' psk '@' host ':' port) ('?' query)? ('#' name)?      the method means nothing
//!       | 'snell://' percent(psk) '@' host ':' port ('?' query)? ('#' name)?
//! query := (key '=' percent(value)) ('&' ...)*
//! ```

use adit_model::Outbound;
use zeroize::Zeroizing;

use super::{Dialect, Servers, read};
use crate::read::json::{JsonMember, JsonValue, Node};
use crate::read::json_fields::JsonReport;
use crate::read::source::Source;
use crate::read::value::Problem;
use crate::shadowsocks::sip002::{self, decode, decode_percent};
use crate::shadowsocksr::link as ssr;

const SNELL: &str = "snell://";
const SHADOWSOCKS: &str = "ss://";

/// Longest scheme of a link, in bytes; the longest in use is `hysteria2`.
const MAX_SCHEME: usize = 20;

/// The scheme of a link: `vmess` of `vmess://...`.
pub(super) fn scheme(text: &str) -> Option<&str> {
    let (scheme, _) = text.split_once("://")?;
    let is_word = |c: char| c.is_ascii_alphanumeric() || matches!(c, '+' | '-' | '.');
    let starts = scheme.starts_with(|c: char| c.is_ascii_alphabetic());
    (starts && scheme.len() <= MAX_SCHEME && scheme.chars().all(is_word)).then_some(scheme)
}

/// Whether a text begins with a link to a server, of any protocol.
pub(super) fn is_link(text: &str) -> bool {
    scheme(text).is_some() && !is_web_address(text)
}

/// Whether a text begins with the address of a page.
pub(super) fn is_web_address(text: &str) -> bool {
    scheme(text).is_some_and(|scheme| ["http", "https"].iter().any(|web| scheme.eq_ignore_ascii_case(web)))
}

/// The lines of a subscription; `None` for any other text.
pub(super) fn subscription(text: &str) -> Option<Zeroizing<String>> {
    if text.contains([':', '{']) {
        return None;
    }
    let bare: Zeroizing<String> = Zeroizing::new(text.split_whitespace().collect());
    let lines = decode(bare.trim_start_matches('\u{feff}'))?;
    let first = lines.lines().map(str::trim).find(|line| !line.is_empty() && !is_most(line))?;
    is_link(first).then_some(lines)
}

/// `MAX=n`
fn is_most(line: &str) -> bool {
    line.strip_prefix("MAX=").is_some_and(|number| number.parse::<u32>().is_ok())
}

fn strip<'t>(text: &'t str, scheme: &str) -> Option<&'t str> {
    let head = text.get(..scheme.len())?;
    head.eq_ignore_ascii_case(scheme).then(|| &text[scheme.len()..])
}

/// The servers of a text, a link on each line.
pub(super) fn servers(source: &Source<'_>, report: &mut JsonReport<'_>, servers: &mut Servers) {
    let inside = subscription(source.text);
    let text = inside.as_ref().map_or(source.text, |inside| inside.as_str());
    let mut at = 0;
    for (n, line) in text.split_inclusive('\n').enumerate() {
        let body = line.trim_start_matches('\u{feff}').trim_start();
        // Nothing inside a subscription has a place in the text.
        let from = if inside.is_some() { 0 } else { at + (line.len() - body.len()) };
        at += line.len();
        let link = body.trim_end();
        let is_comment = link.starts_with('#') || link.starts_with("//");
        if link.is_empty() || is_comment || inside.is_some() && is_most(link) {
            continue;
        }
        servers.add(report, |report| server(report, link, from, format!("link[{n}]")));
    }
}

/// The server of a link; another protocol's is left out with a warning.
pub(super) fn server(report: &mut JsonReport<'_>, link: &str, from: usize, path: String) -> Option<Outbound> {
    if let Some(rest) = strip(link, SNELL) {
        let value = snell(report, rest, from + SNELL.len(), &path)?;
        return read::server(report, Dialect::Link, &value, path);
    }
    if ssr::is_link(link) {
        return match ssr::parse(link) {
            Ok(profile) => read::ssr_profile(report, from, &path, profile),
            Err(error) => {
                report.error(from, path, Problem::new(error.to_string()));
                None
            }
        };
    }
    if strip(link, SHADOWSOCKS).is_none()
        && let Some(scheme) = scheme(link)
    {
        let problem = format!("left out: adit speaks Snell, Shadowsocks and ShadowsocksR, not {scheme}");
        report.warning(from, path, Problem::new(problem));
        return None;
    }
    match sip002::parse(link) {
        Ok(profile) => read::profile(report, from, &path, profile),
        Err(error) => {
            report.error(from, path, Problem::new(error.to_string()));
            None
        }
    }
}

/// The fields of a link as an object.
fn snell(report: &mut JsonReport<'_>, rest: &str, from: usize, path: &str) -> Option<JsonValue> {
    let (rest, name) = rest.split_once('#').unwrap_or((rest, ""));
    let (body, query) = rest.split_once('?').unwrap_or((rest, ""));
    let Some((psk, server)) = authority(body.trim_end_matches('/')) else {
        let problem = Problem::new("neither base64 of a key and a server, nor key@host:port");
        report.error(from, path, problem);
        return None;
    };
    let name = decode_percent(name);
    let name = if name.is_empty() { server.clone() } else { name };
    let mut members = vec![
        member("type", "snell".to_owned().into(), from),
        member("name", name, from),
        member("address", server, from),
        member("psk", psk, from),
    ];
    let mut at = from + body.len() + 1;
    for pair in query.split('&') {
        let (key, value) = pair.split_once('=').unwrap_or((pair, ""));
        if !key.is_empty() {
            members.push(member(key, decode_percent(value), at));
        }
        at += pair.len() + 1;
    }
    Some(JsonValue { at: from, node: Node::Object(members) })
}

fn member(key: &str, text: Zeroizing<String>, at: usize) -> JsonMember {
    JsonMember { key: key.to_owned(), at, value: JsonValue { at, node: Node::Text(text) } }
}

/// Key and server. The last `@` ends the key: hosts have none.
fn authority(body: &str) -> Option<(Zeroizing<String>, Zeroizing<String>)> {
    if let Some((psk, server)) = body.rsplit_once('@') {
        return Some((decode_percent(psk), Zeroizing::new(server.to_owned())));
    }
    let inside = decode(&decode_percent(body))?;
    let (info, server) = inside.rsplit_once('@')?;
    let (_, psk) = info.split_once(':')?;
    Some((Zeroizing::new(psk.to_owned()), Zeroizing::new(server.to_owned())))
}
