//! The requests that are answered, by their secret, Host and Origin.
//!
//! | | with a secret | without |
//! |---|---|---|
//! | Host | any | an address or `localhost` |
//! | Origin | any with the secret; named to pages as the file says | pages of this machine and of this interface |
//! | no Origin | any | what acts, or holds a stream: programs, and pages of this interface; what is read: links, too |
//!
//! A browser sends Origin with each request by which the script of a page reads the server of another, WebSockets included.
//! It sends none for an image, a script or a frame, whose answer the page does not see, but says where they are from in
//! `Sec-Fetch-Site`. A field of the wrong form is refused before, by the server.

use std::hint::black_box;

use adit_model::{Controller, Secret};
use adit_net::web::live::{Given, LiveRequest, LiveResponse};
use adit_net::web::{Authority, Caller};

use super::text::{message, query};

/// Methods that a page may ask for.
const METHODS: [&str; 5] = ["GET", "POST", "PUT", "PATCH", "DELETE"];
/// Fields that a page may send.
const FIELDS: [(&str, &str); 2] = [("authorization", "Authorization"), ("content-type", "Content-Type")];

/// The value that tells a page whether it may read the answer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum AllowedOrigin {
    /// The request names no page.
    None,
    /// The page may read the answer: the value of `Access-Control-Allow-Origin`.
    Allowed(String),
    /// It may not.
    Other,
}

/// The page that a request comes from.
///
/// # Errors
/// The refusal of a request from elsewhere.
pub(super) fn page(controller: &Controller, call: &LiveRequest) -> Result<AllowedOrigin, Given> {
    let origin = call.field("origin");
    if controller.secret.is_some() || call.is_unix {
        let Some(origin) = origin else { return Ok(AllowedOrigin::None) };
        return Ok(match &*controller.origins {
            [] => AllowedOrigin::Allowed("*".to_owned()),
            all if all.iter().any(|known| **known == *origin) => AllowedOrigin::Allowed(origin.to_owned()),
            _ => AllowedOrigin::Other,
        });
    }
    if !call.visit.host.as_ref().is_some_and(Authority::is_literal) {
        return Err(message(403, "name this machine by its address, or set a secret"));
    }
    match (call.visit.caller, origin) {
        (Caller::Foreign, _) => Err(elsewhere()),
        (_, Some(origin)) => Ok(AllowedOrigin::Allowed(origin.to_owned())),
        (_, None) => Ok(AllowedOrigin::None),
    }
}

/// The class of a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Reach {
    /// It reads what is for everybody.
    Public,
    /// It reads.
    Read,
    /// It changes something, sends something to others, or holds a stream.
    Act,
}

/// Lets a request through to its path.
///
/// # Errors
/// The refusal of one that a page elsewhere has sent without naming itself.
pub(super) fn admit(controller: &Controller, call: &LiveRequest, reach: Reach) -> Result<(), Given> {
    let caller = call.visit.caller;
    let may = match reach {
        Reach::Public => true,
        Reach::Read => caller.may_read(),
        Reach::Act => caller.may_act(),
    };
    if may || controller.secret.is_some() || call.is_unix { Ok(()) } else { Err(elsewhere()) }
}

fn elsewhere() -> Given {
    message(403, "pages of other sites need a secret")
}

/// The answer to a browser that asks before it sends a request.
pub(super) fn preflight(controller: &Controller, call: &LiveRequest, page: &AllowedOrigin) -> Given {
    let mut fields = vec![("Vary", "Origin, Access-Control-Request-Headers".to_owned())];
    let method = call.field("access-control-request-method").unwrap_or_default();
    let asked = call.field("access-control-request-headers").unwrap_or_default();
    let asked: Vec<&str> = asked.split(',').map(str::trim).filter(|field| !field.is_empty()).collect();
    let known = |field: &&str| FIELDS.iter().find(|(name, _)| field.eq_ignore_ascii_case(name));
    let shown: Vec<&str> = asked.iter().filter_map(known).map(|(_, shown)| *shown).collect();
    if let AllowedOrigin::Allowed(origin) = page
        && METHODS.contains(&method)
        && shown.len() == asked.len()
    {
        fields.push(("Access-Control-Allow-Origin", origin.clone()));
        fields.push(("Access-Control-Allow-Methods", method.to_owned()));
        fields.push(("Access-Control-Max-Age", "300".to_owned()));
        if !shown.is_empty() {
            fields.push(("Access-Control-Allow-Headers", shown.join(", ")));
        }
        if controller.private_network && call.field("access-control-request-private-network") == Some("true")
        {
            fields.push(("Access-Control-Allow-Private-Network", "true".to_owned()));
        }
    }
    Given::Whole(LiveResponse { status: 200, fields, body: Vec::new() })
}

/// Adds the fields that every answer has.
pub(super) fn sign(given: &mut Given, page: &AllowedOrigin) {
    let (Given::Whole(whole) | Given::Stream(whole, _)) = given;
    if !whole.fields.iter().any(|(name, _)| *name == "Vary") {
        whole.fields.push(("Vary", "Origin".to_owned()));
        if let AllowedOrigin::Allowed(origin) = page {
            whole.fields.push(("Access-Control-Allow-Origin", origin.clone()));
        }
    }
}

/// Whether a client has shown the secret, if there is one: in a field, or in the query of a WebSocket, for which pages
/// cannot set fields.
pub(super) fn is_known(controller: &Controller, call: &LiveRequest) -> bool {
    let Some(secret) = controller.secret.as_ref().filter(|_| !call.is_unix) else { return true };
    if call.field("upgrade").is_some_and(|upgrade| upgrade.eq_ignore_ascii_case("websocket"))
        && let Some(token) = query(&call.query, "token")
    {
        return is_same(secret, token.as_bytes());
    }
    let shown = call.fields.iter().find(|(name, _)| name == "authorization");
    shown.and_then(|(_, value)| value.strip_prefix(b"Bearer ")).is_some_and(|shown| is_same(secret, shown))
}

/// The time of the comparison tells no more than the length.
fn is_same(secret: &Secret, shown: &[u8]) -> bool {
    let secret = secret.expose().as_bytes();
    let differs = secret.iter().zip(shown).fold(0, |sum, (left, right)| black_box(sum | (left ^ right)));
    secret.len() == shown.len() && differs == 0
}

#[cfg(test)]
mod tests {
    use adit_net::web::{HttpVersion, Visit};

    use super::*;

    fn call(fields: &[(&str, &str)]) -> LiveRequest {
        let owned = fields.iter().map(|(name, value)| ((*name).to_owned(), value.as_bytes().to_vec()));
        let visit = Visit::read(HttpVersion::Http10, None, |name| {
            let of = fields.iter().filter(move |(known, _)| *known == name);
            of.map(|(_, value)| value.as_bytes())
        });
        LiveRequest {
            method: "GET".into(),
            fields: owned.collect(),
            visit: visit.unwrap(),
            ..LiveRequest::default()
        }
    }

    #[test]
    fn pages_without_a_secret() {
        let open = Controller::default();
        for (host, origin, allowed) in [
            ("127.0.0.1:9090", None, Some(AllowedOrigin::None)),
            ("localhost:9090", None, Some(AllowedOrigin::None)),
            ("[::1]:9090", None, Some(AllowedOrigin::None)),
            ("evil.example:9090", None, None),
            ("evil.example", Some("http://evil.example"), None),
            ("127.0.0.1:9090", Some("http://evil.example"), None),
            ("127.0.0.1:9090", Some("null"), None),
            ("127.0.0.1:9090", Some("http://127.0.0.1.evil.example"), None),
            ("127.0.0.1:9090", Some("http://localhost.evil.example:80"), None),
            ("127.0.0.1:9090", Some("file://127.0.0.1"), None),
            (
                "127.0.0.1:9090",
                Some("http://127.0.0.1:9090"),
                Some(AllowedOrigin::Allowed("http://127.0.0.1:9090".into())),
            ),
            (
                "127.0.0.1:9090",
                Some("http://localhost:5173"),
                Some(AllowedOrigin::Allowed("http://localhost:5173".into())),
            ),
            (
                "127.0.0.1:9090",
                Some("https://[::1]:1"),
                Some(AllowedOrigin::Allowed("https://[::1]:1".into())),
            ),
            (
                "192.0.2.1:9090",
                Some("http://192.0.2.1:9090"),
                Some(AllowedOrigin::Allowed("http://192.0.2.1:9090".into())),
            ),
            ("192.0.2.1:9090", Some("http://192.0.2.2:9090"), None),
        ] {
            let mut fields = vec![("host", host)];
            fields.extend(origin.map(|origin| ("origin", origin)));
            assert_eq!(page(&open, &call(&fields)).ok(), allowed, "{host} {origin:?}");
        }
    }

    #[test]
    fn pages_that_do_not_name_themselves() {
        let (open, closed) =
            (Controller::default(), Controller { secret: Some(Secret::new("s")), ..Controller::default() });
        let (navigate, document) = (("sec-fetch-mode", "navigate"), ("sec-fetch-dest", "document"));
        for (fields, admitted) in [
            (&[][..], [true, true, true]),
            (&[("sec-fetch-site", "same-origin")], [true, true, true]),
            (&[("sec-fetch-site", "none")], [true, true, true]),
            (&[("sec-fetch-site", "cross-site")], [true, false, false]),
            (&[("sec-fetch-site", "same-site")], [true, false, false]),
            (&[("sec-fetch-site", "cross-site"), navigate, document], [true, true, false]),
            (&[("referer", "http://evil.example/")], [true, false, false]),
        ] {
            let fields = [&[("host", "127.0.0.1:9090")], fields].concat();
            let call = call(&fields);
            let reaches = [Reach::Public, Reach::Read, Reach::Act];
            assert_eq!(reaches.map(|reach| admit(&open, &call, reach).is_ok()), admitted, "{fields:?}");
            assert!(reaches.iter().all(|reach| admit(&closed, &call, *reach).is_ok()), "{fields:?}");
        }
    }

    #[test]
    fn pages_with_a_secret() {
        let mut controller = Controller { secret: Some(Secret::new("s")), ..Controller::default() };
        let from = call(&[("host", "evil.example"), ("origin", "http://dash.test")]);
        assert_eq!(page(&controller, &from).ok(), Some(AllowedOrigin::Allowed("*".into())));
        controller.origins = vec!["http://dash.test".into()];
        assert_eq!(page(&controller, &from).ok(), Some(AllowedOrigin::Allowed("http://dash.test".into())));
        controller.origins = vec!["http://other.test".into()];
        assert_eq!(page(&controller, &from).ok(), Some(AllowedOrigin::Other));
    }

    #[test]
    fn secrets() {
        let controller = Controller { secret: Some(Secret::new("s3cret")), ..Controller::default() };
        for (shown, holds) in [
            ("Bearer s3cret", true),
            ("bearer s3cret", false),
            ("Bearer s3cre", false),
            ("Bearer s3cret0", false),
            ("Bearer s3creT", false),
            ("Bearer ", false),
            ("s3cret", false),
        ] {
            assert_eq!(is_known(&controller, &call(&[("authorization", shown)])), holds, "{shown}");
        }
        let with =
            |query: &str, fields: &[(&str, &str)]| LiveRequest { query: query.to_owned(), ..call(fields) };
        assert!(!is_known(&controller, &with("token=s3cret", &[])));
        assert!(is_known(&controller, &with("a=b&token=s3cret", &[("upgrade", "websocket")])));
        assert!(!is_known(&controller, &with("token=wrong", &[("upgrade", "websocket")])));
        assert!(is_known(&controller, &LiveRequest { is_unix: true, ..call(&[]) }));
        assert!(is_known(&Controller::default(), &call(&[])));
    }
}
