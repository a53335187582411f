//! HTTP/3: requests and answers of a client and a server that know nothing of what is between them.

use std::future::poll_fn;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::mpsc::{Sender, channel};
use std::thread;

use adit_model::Quic;
use adit_net::rt::{self, Cores};
use bytes::{Buf, Bytes};
use h3_quinn::quinn;
use http::{Method, Request, Response, StatusCode};
use quinn_proto::crypto::rustls::{QuicClientConfig, QuicServerConfig};
use rustls::RootCertStore;
use rustls::pki_types::{CertificateDer, PrivatePkcs8KeyDer};

use super::{file, loopback_socket, through};
use crate::common::{Pattern, within};

/// Bytes of an answer, and of a request that has some.
const LEN: usize = 1 << 19;
const CHUNK: usize = 20_000;

fn endpoint(server: Option<quinn::ServerConfig>) -> quinn::Endpoint {
    let config = quinn::EndpointConfig::default();
    let runtime = Arc::new(quinn::TokioRuntime);
    quinn::Endpoint::new(config, server, loopback_socket(), runtime).unwrap()
}

fn server_config() -> quinn::ServerConfig {
    let certificate = CertificateDer::from(file("certificate.der"));
    let key = PrivatePkcs8KeyDer::from(file("key.der")).into();
    let mut tls = rustls::ServerConfig::builder_with_provider(provider())
        .with_protocol_versions(&[&rustls::version::TLS13])
        .unwrap()
        .with_no_client_auth()
        .with_single_cert(vec![certificate], key)
        .unwrap();
    tls.alpn_protocols = vec![b"h3".to_vec()];
    quinn::ServerConfig::with_crypto(Arc::new(QuicServerConfig::try_from(tls).unwrap()))
}

fn client_config() -> quinn::ClientConfig {
    let mut roots = RootCertStore::empty();
    roots.add(CertificateDer::from(file("certificate.der"))).unwrap();
    let mut tls = rustls::ClientConfig::builder_with_provider(provider())
        .with_protocol_versions(&[&rustls::version::TLS13])
        .unwrap()
        .with_root_certificates(roots)
        .with_no_client_auth();
    tls.alpn_protocols = vec![b"h3".to_vec()];
    quinn::ClientConfig::new(Arc::new(QuicClientConfig::try_from(tls).unwrap()))
}

fn provider() -> Arc<rustls::crypto::CryptoProvider> {
    Arc::new(rustls::crypto::aws_lc_rs::default_provider())
}

/// Collects what `next` yields until the end.
macro_rules! body {
    ($stream:expr) => {{
        let mut bytes = Vec::new();
        while let Some(mut chunk) = $stream.recv_data().await.unwrap() {
            bytes.extend_from_slice(&chunk.copy_to_bytes(chunk.remaining()));
        }
        bytes
    }};
}

/// A site: what is sent to it comes back; `/pattern` is made of a seed. It lives until the end of the process.
fn site() -> SocketAddr {
    let (ready, started) = channel();
    thread::spawn(move || Cores::block_on(serve(ready)));
    started.recv().unwrap()
}

async fn serve(ready: Sender<SocketAddr>) {
    let endpoint = endpoint(Some(server_config()));
    ready.send(endpoint.local_addr().unwrap()).unwrap();
    while let Some(incoming) = endpoint.accept().await {
        rt::spawn_local(async move {
            let connection = h3_quinn::Connection::new(incoming.await.unwrap());
            let mut connection = Box::pin(h3::server::Connection::new(connection)).await.unwrap();
            while let Ok(Some(resolver)) = connection.accept().await {
                let (request, mut stream) = Box::pin(resolver.resolve_request()).await.unwrap();
                let received = body!(stream);
                let seed = request.uri().path().strip_prefix("/pattern/").map(|seed| seed.parse().unwrap());
                let (status, answer) = match (request.method(), seed) {
                    (&Method::GET, Some(seed)) => (StatusCode::OK, Pattern::bytes(seed, LEN)),
                    (&Method::POST, None) => (StatusCode::CREATED, received),
                    _ => (StatusCode::NOT_FOUND, Vec::new()),
                };
                let head =
                    Response::builder().status(status).header("length", answer.len()).body(()).unwrap();
                stream.send_response(head).await.unwrap();
                for chunk in answer.chunks(CHUNK) {
                    stream.send_data(Bytes::copy_from_slice(chunk)).await.unwrap();
                }
                stream.finish().await.unwrap();
            }
        });
    }
}

/// One connection to `at`: a page, what is sent comes back, and a page that is not there.
fn check(at: SocketAddr, seed: u64) {
    Cores::block_on(visit(at, seed)).unwrap();
}

async fn visit(at: SocketAddr, seed: u64) {
    let endpoint = endpoint(None);
    let connection = endpoint.connect_with(client_config(), at, "localhost").unwrap().await.unwrap();
    let (mut driver, mut requests) =
        Box::pin(h3::client::new(h3_quinn::Connection::new(connection))).await.unwrap();
    rt::spawn_local(async move {
        poll_fn(|cx| driver.poll_close(cx)).await;
    });
    let page = format!("/pattern/{seed}");
    let posted = Pattern::bytes(seed + 100, LEN);
    for (method, path, sent, status, wanted) in [
        (Method::GET, &*page, &[][..], StatusCode::OK, &*Pattern::bytes(seed, LEN)),
        (Method::POST, "/echo", &posted, StatusCode::CREATED, &posted),
        (Method::GET, "/missing", &[], StatusCode::NOT_FOUND, &[]),
    ] {
        let request =
            Request::builder().method(method).uri(format!("https://localhost{path}")).body(()).unwrap();
        let mut stream = requests.send_request(request).await.unwrap();
        for chunk in sent.chunks(CHUNK) {
            stream.send_data(Bytes::copy_from_slice(chunk)).await.unwrap();
        }
        stream.finish().await.unwrap();
        let head = stream.recv_response().await.unwrap();
        assert_eq!(head.status(), status, "{path}");
        assert_eq!(head.headers()["length"], wanted.len().to_string(), "{path}");
        assert!(body!(stream) == wanted, "{path}");
    }
    drop(requests);
    endpoint.close(0_u8.into(), b"");
    endpoint.wait_idle().await;
}

#[test]
fn http3_as_raw_datagrams() {
    within(100, || through(Quic::On, site(), check));
}

#[test]
fn http3_over_the_stream() {
    within(100, || through(Quic::Off, site(), check));
}
