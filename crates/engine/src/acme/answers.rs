//! The documents that a certificate authority answers with (RFC 8555, 7.1). The authority may be hostile: what is kept is
//! short, and words that become parts of requests, paths or log lines hold nothing but what they may.

use adit_net::acme::{is_token, word};
use serde_json::Value;

/// Names of one order, at most.
const MAX_NAMES: usize = 100;
/// Letters of a reason that reach the log, at most.
const MAX_REASON: usize = 300;

/// The addresses of an authority.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct AcmeDirectory {
    pub(super) nonce: String,
    pub(super) account: String,
    pub(super) order: String,
}

/// The state of an order, an authorization or a challenge.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Progress {
    /// Something is to be done by us.
    Open,
    /// The order can be finalized.
    Ready,
    /// The authority is at work.
    Busy,
    /// Done.
    Valid,
    /// It will never be.
    Failed,
}

/// An order.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct AcmeOrder {
    pub(super) progress: Progress,
    pub(super) authorizations: Vec<String>,
    pub(super) finalize: String,
    pub(super) certificate: Option<String>,
    /// Why it has failed.
    pub(super) reason: Option<String>,
}

/// The proof that a name is ours.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Authorization {
    pub(super) progress: Progress,
    pub(super) name: String,
    /// Address and token of the challenge by HTTP, if it is offered.
    pub(super) challenge: Option<(String, String)>,
    /// Why it has failed.
    pub(super) reason: Option<String>,
}

/// Reads a document; `None` if it is not what it should be.
pub(super) fn directory(body: &[u8]) -> Option<AcmeDirectory> {
    let value = object(body)?;
    let of = |name: &str| address(value.get(name)?);
    Some(AcmeDirectory { nonce: of("newNonce")?, account: of("newAccount")?, order: of("newOrder")? })
}

/// Reads an order.
pub(super) fn order(body: &[u8]) -> Option<AcmeOrder> {
    let value = object(body)?;
    let authorizations = value.get("authorizations")?.as_array()?;
    if authorizations.is_empty() || authorizations.len() > MAX_NAMES {
        return None;
    }
    Some(AcmeOrder {
        progress: progress(&value)?,
        authorizations: authorizations.iter().map(address).collect::<Option<_>>()?,
        finalize: address(value.get("finalize")?)?,
        certificate: value.get("certificate").map(address).unwrap_or_default(),
        reason: value.get("error").map(reason),
    })
}

/// Reads an authorization.
pub(super) fn authorization(body: &[u8]) -> Option<Authorization> {
    let value = object(body)?;
    let challenges = value.get("challenges")?.as_array()?;
    let by_http = challenges.iter().find(|challenge| challenge["type"] == "http-01");
    let challenge = by_http.and_then(|challenge| {
        let token = challenge.get("token")?.as_str().filter(|token| is_token(token))?;
        Some((address(challenge.get("url")?)?, token.to_owned()))
    });
    Some(Authorization {
        progress: progress(&value)?,
        name: plain(value["identifier"]["value"].as_str().unwrap_or("?")),
        challenge,
        reason: challenges.iter().find_map(|challenge| challenge.get("error")).map(reason),
    })
}

/// The reason of a refusal, and whether it is that a nonce is used up.
pub(super) fn refusal(status: u16, body: &[u8]) -> (String, bool) {
    let Some(value) = object(body) else { return (format!("status {status}"), false) };
    let is_nonce = value["type"].as_str().is_some_and(|kind| kind.ends_with(":badNonce"));
    (format!("status {status}, {}", reason(&value)), is_nonce)
}

fn object(body: &[u8]) -> Option<Value> {
    serde_json::from_slice(body).ok().filter(Value::is_object)
}

/// `http://` or `https://`, without what would have to be escaped.
fn address(value: &Value) -> Option<String> {
    word(value.as_str()?).filter(|text| text.starts_with("http")).map(str::to_owned)
}

fn progress(value: &Value) -> Option<Progress> {
    Some(match value.get("status")?.as_str()? {
        "pending" => Progress::Open,
        "ready" => Progress::Ready,
        "processing" => Progress::Busy,
        "valid" => Progress::Valid,
        _ => Progress::Failed,
    })
}

/// A problem (RFC 7807) in one line.
fn reason(problem: &Value) -> String {
    let word = |name: &str| problem.get(name).and_then(Value::as_str);
    let kind = word("type").map(|kind| kind.rsplit(':').next().unwrap_or(kind));
    plain(&[kind, word("detail")].into_iter().flatten().collect::<Vec<_>>().join(": "))
}

fn plain(text: &str) -> String {
    text.chars().take(MAX_REASON).map(|letter| if letter.is_control() { ' ' } else { letter }).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const ORDER: &str = r#"{"status":"pending","authorizations":["https://ca.example/z/1"],
        "finalize":"https://ca.example/f/1","identifiers":[{"type":"dns","value":"a.example"}]}"#;
    const AUTHORIZATION: &str = r#"{"status":"pending","identifier":{"type":"dns","value":"a.example"},
        "challenges":[{"type":"dns-01","url":"https://ca.example/c/0","token":"x"},
        {"type":"http-01","url":"https://ca.example/c/1","token":"abc_-9"}]}"#;

    #[test]
    fn documents_are_read() {
        let text =
            r#"{"newNonce":"https://ca/n","newAccount":"https://ca/a","newOrder":"https://ca/o","meta":{}}"#;
        let found = directory(text.as_bytes()).unwrap();
        assert_eq!(
            [&*found.nonce, &found.account, &found.order],
            ["https://ca/n", "https://ca/a", "https://ca/o"]
        );
        let found = order(ORDER.as_bytes()).unwrap();
        assert_eq!((found.progress, found.certificate), (Progress::Open, None));
        assert_eq!(found.authorizations, ["https://ca.example/z/1"]);
        let found = authorization(AUTHORIZATION.as_bytes()).unwrap();
        assert_eq!(found.challenge, Some(("https://ca.example/c/1".into(), "abc_-9".into())));
        assert_eq!((&*found.name, found.reason), ("a.example", None));
    }

    #[test]
    fn hostile_documents_are_none() {
        for token in ["../../etc/passwd", "a\\nb", "", "a b"] {
            let text = AUTHORIZATION.replace("abc_-9", token);
            assert_eq!(authorization(text.as_bytes()).unwrap().challenge, None, "{token}");
        }
        for (from, to) in [
            ("https://ca.example/f/1", "file:///etc/passwd"),
            ("https://ca.example/f/1", "https://ca.example/\\\"x"),
            ("https://ca.example/z/1", "https://ca.example/ x"),
            ("\"pending\"", "7"),
            ("[\"https://ca.example/z/1\"]", "[]"),
            ("[\"https://ca.example/z/1\"]", "[7]"),
        ] {
            assert_eq!(order(ORDER.replace(from, to).as_bytes()), None, "{to}");
        }
        let many = format!("[{}]", vec!["\"https://ca.example/z\""; 101].join(","));
        assert_eq!(order(ORDER.replace("[\"https://ca.example/z/1\"]", &many).as_bytes()), None);
        let long = ORDER.replace("/f/1", &"f".repeat(2000));
        assert_eq!(order(long.as_bytes()), None);
        for text in [ORDER, AUTHORIZATION] {
            for len in 0..text.len() {
                assert_eq!(order(&text.as_bytes()[..len]), None);
                assert_eq!(authorization(&text.as_bytes()[..len]), None);
                assert_eq!(directory(&text.as_bytes()[..len]), None);
            }
        }
        let deep = "[".repeat(100_000);
        assert_eq!(order(deep.as_bytes()), None);
    }

    #[test]
    fn reasons_are_one_short_line() {
        let text = br#"{"type":"urn:ietf:params:acme:error:badNonce","detail":"used\nup"}"#;
        assert_eq!(refusal(400, text), ("status 400, badNonce: used up".into(), true));
        assert_eq!(refusal(503, b"<html>"), ("status 503".into(), false));
        let long = format!("{{\"detail\":\"{}\"}}", "x".repeat(5000));
        assert!(refusal(400, long.as_bytes()).0.len() < 400);
    }
}
