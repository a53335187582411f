use std::cell::Cell;
use std::os::unix::fs::PermissionsExt as _;
use std::path::PathBuf;

use adit_model::{Dial, WebUrl};
use adit_net::dial::Dialer;
use adit_net::fetch::fetch;
use adit_net::rt::Cores;
use adit_net::tls::Roots;
use adit_net::tls_own::{pem, request};
use serde_json::Value;

use super::*;

fn folder(name: &str) -> PathBuf {
    let folder = std::env::temp_dir().join(format!("adit-acme-{name}-{}", std::process::id()));
    std::fs::remove_dir_all(&folder).ok();
    folder
}

/// Text that lives as long as the test.
fn keep_text(text: String) -> &'static str {
    Box::leak(text.into_boxed_str())
}

/// A certificate authority that asks its question and then refuses the certificate, or refuses the name at once. The first
/// nonce is always used up.
struct Mock {
    at: SocketAddr,
    /// The answers to its questions.
    asked: Rc<RefCell<Vec<String>>>,
    _stopper: Stopper,
}

const TOKEN: &str = "evaGxfADs6pSRb2LAv9IZf17Dt3juxGJ";

impl Mock {
    fn start(answers: SocketAddr, refuses_names: bool) -> Self {
        let (service, _) = Service::listen(([127, 0, 0, 1], 0).into()).unwrap();
        let at = service.local_addr().unwrap();
        let (stopper, stop) = Stopper::new();
        let asked = Rc::<RefCell<Vec<String>>>::default();
        let (heard, is_fresh) = (asked.clone(), Rc::new(Cell::new(true)));
        rt::spawn_local(service.serve(stop, move |asked: ServiceRequest| {
            let (heard, is_fresh) = (heard.clone(), is_fresh.clone());
            async move {
                let base = format!("http://{at}");
                let has_name = |body: &[u8]| {
                    let body: Value = serde_json::from_slice(body).unwrap();
                    body["payload"].is_string() && body["signature"].is_string()
                };
                assert!(asked.method == "GET" || has_name(asked.body.as_deref().unwrap()));
                if asked.path == "/order" && is_fresh.replace(false) {
                    let text = r#"{"type":"urn:ietf:params:acme:error:badNonce","detail":"old"}"#;
                    return ServiceResponse { fields: vec![("replay-nonce", "n-2")], ..told(400, text.into()) };
                }
                let proven = if heard.borrow().is_empty() { "pending" } else { "valid" };
                let status = if refuses_names { "invalid" } else { proven };
                match &*asked.path {
                    "/" => told(200, format!(
                        r#"{{"newNonce":"{base}/nonce","newAccount":"{base}/account","newOrder":"{base}/order"}}"#
                    )),
                    "/nonce" => ServiceResponse { fields: vec![("replay-nonce", "n-1")], ..ServiceResponse::status(204) },
                    "/account" => located(&base, "/account/1", "{}".into()),
                    "/order" => located(&base, "/order/1", order(&base, "pending")),
                    "/order/1" | "/finalize" if proven == "valid" => told(200, order(&base, "invalid")),
                    "/proof" => told(200, format!(
                        r#"{{"status":"{status}","identifier":{{"type":"dns","value":"a.example"}},"challenges":[{{"type":"http-01",
                        "url":"{base}/question","token":"{TOKEN}","error":{{"type":"x:dns","detail":"no such name"}}}}]}}"#
                    )),
                    "/question" => {
                        let url = WebUrl::parse(&format!("http://{answers}{PATH}{TOKEN}")).unwrap();
                        let dialer = Dialer::by_system(&Dial::default());
                        let limit = Duration::from_secs(60);
                        let answer = fetch(&dialer, &Roots::System, &url, 1000, limit).await.unwrap();
                        heard.borrow_mut().push(String::from_utf8(answer).unwrap());
                        told(200, "{}".into())
                    }
                    _ => ServiceResponse::status(404),
                }
            }
        }));
        Self { at, asked, _stopper: stopper }
    }
}

fn told(status: u16, body: String) -> ServiceResponse {
    ServiceResponse { status, ..ServiceResponse::text(body) }
}

fn located(base: &str, path: &str, body: String) -> ServiceResponse {
    let place = keep_text(format!("{base}{path}"));
    ServiceResponse { fields: vec![("location", place), ("replay-nonce", "n-3")], ..told(201, body) }
}

fn order(base: &str, status: &str) -> String {
    format!(
        r#"{{"status":"{status}","authorizations":["{base}/proof"],"finalize":"{base}/finalize",
        "error":{{"type":"x:badCSR","detail":"not today"}}}}"#
    )
}

fn settings(at: SocketAddr) -> Acme {
    Acme {
        names: vec!["a.example".into()],
        email: Some("me@example.org".into()),
        directory: WebUrl::parse(&format!("http://{at}/")).unwrap(),
        answers: None,
    }
}

#[test]
fn names_are_proven_and_refusals_are_told() {
    let folder = folder("mock");
    std::fs::create_dir_all(&folder).unwrap();
    Cores::block_on(async {
        let at = adit_testkit::unused_addr();
        let responder = Responder::start(at).unwrap();
        let mock = Mock::start(at, false);
        let error = obtain(&settings(mock.at), &folder, &responder).await.unwrap_err().to_string();
        assert!(error.contains("not today") && error.contains("badCSR"), "{error}");
        let asked = mock.asked.borrow().clone();
        assert_eq!(asked.len(), 1, "{asked:?}");
        assert!(
            asked[0].starts_with(&format!("{TOKEN}.")) && asked[0].len() == TOKEN.len() + 44,
            "{asked:?}"
        );
        assert!(responder.known.borrow().is_empty(), "no answer stays");
        let mode = std::fs::metadata(folder.join("acme_account+key")).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o600);
        // The same account again, and an authority that does not find the name.
        let mock = Mock::start(at, true);
        let error = obtain(&settings(mock.at), &folder, &responder).await.unwrap_err();
        assert!(
            matches!(&error, AcmeError::Name { name, why } if name == "a.example" && why.contains("no such")),
            "{error}"
        );
        // Nobody is there, and somebody who speaks something else.
        let nobody = adit_testkit::unused_addr();
        let error = obtain(&settings(nobody), &folder, &responder).await.unwrap_err().to_string();
        assert!(error.contains("refused"), "{error}");
        let error = obtain(&settings(at), &folder, &responder).await.unwrap_err().to_string();
        assert!(error.contains("its directory"), "{error}");
    })
    .unwrap();
    std::fs::remove_dir_all(&folder).unwrap();
}

/// A certificate with its key, for `days` from `now` on, and when that was.
fn own(folder: &Path, begin: (i32, u8), end: (i32, u8)) -> PathBuf {
    let pair = rcgen::KeyPair::generate().unwrap();
    let mut params = rcgen::CertificateParams::new(vec!["a.example".into()]).unwrap();
    params.not_before = rcgen::date_time_ymd(begin.0, begin.1, 1);
    params.not_after = rcgen::date_time_ymd(end.0, end.1, 1);
    let der = params.self_signed(&pair).unwrap();
    let path = folder.join("a.example");
    let text = pem("PRIVATE KEY", &pair.serialize_der()) + &pem("CERTIFICATE", der.der());
    std::fs::write(&path, text).unwrap();
    path
}

#[test]
fn certificates_are_renewed_ahead() {
    let folder = folder("due");
    std::fs::create_dir_all(&folder).unwrap();
    let names: CertificateNames = vec!["a.example".into()];
    let days = |path: &Path, names: &CertificateNames, now: u64| due_in(path, names, now).as_secs() / 86_400;
    // From the first of January to the first of April of 2027: 90 days, of which the last 30 are for renewal.
    let begin = 1_798_761_600;
    let path = own(&folder, (2027, 1), (2027, 4));
    assert_eq!(days(&path, &names, begin), 60);
    assert_eq!(days(&path, &names, begin + 59 * 86_400), 1);
    assert_eq!(due_in(&path, &names, begin + 61 * 86_400), Duration::ZERO);
    // One of 31 days has two thirds of them.
    let path = own(&folder, (2027, 1), (2027, 2));
    assert_eq!(days(&path, &names, begin), 20);
    // Another name, a file that is cut, and none at all.
    assert_eq!(due_in(&path, &vec!["b.example".into()], begin), Duration::ZERO);
    let text = std::fs::read(&path).unwrap();
    std::fs::write(&path, &text[..text.len() / 2]).unwrap();
    assert_eq!(due_in(&path, &names, begin), Duration::ZERO);
    std::fs::remove_dir_all(&folder).unwrap();
    assert_eq!(due_in(&path, &names, begin), Duration::ZERO);
}

#[test]
fn requests_name_every_host() {
    let names: CertificateNames = vec!["a.example".into(), "b.example".into()];
    let (key, csr) = request(&names).unwrap();
    assert!(key.starts_with("-----BEGIN PRIVATE KEY-----\n"));
    for name in &names {
        assert!(csr.windows(name.len()).any(|part| part == name.as_bytes()), "{name}");
    }
}
