//! Responses of the proxy itself.

use std::io::Write;

use super::HttpVersion;
use crate::wire::ConnectFailure;

/// Statuses that the proxy makes itself.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u16)]
pub enum Status {
    /// The request cannot be understood.
    BadRequest = 400,
    /// A rule says no.
    Forbidden = 403,
    /// A request to the proxy itself for something that it does not have.
    NotFound = 404,
    /// A method that this end does not carry out.
    MethodNotAllowed = 405,
    /// Credentials are missing or wrong; the connection stays open for another try.
    ProxyAuthenticationRequired = 407,
    /// The head did not come in time.
    RequestTimeout = 408,
    /// The head is too long.
    HeadTooLarge = 431,
    /// Something that this end does not know.
    NotImplemented = 501,
    /// The target or the tunnel failed.
    BadGateway = 502,
    /// A limit is reached, or there is no server.
    ServiceUnavailable = 503,
    /// The target or the server did not answer in time.
    GatewayTimeout = 504,
    /// The request would come back to this proxy.
    LoopDetected = 508,
}

impl Status {
    /// The number.
    pub fn code(self) -> u16 {
        self as u16
    }

    fn reason(self) -> &'static str {
        match self {
            Self::BadRequest => "Bad Request",
            Self::Forbidden => "Forbidden",
            Self::NotFound => "Not Found",
            Self::MethodNotAllowed => "Method Not Allowed",
            Self::ProxyAuthenticationRequired => "Proxy Authentication Required",
            Self::RequestTimeout => "Request Timeout",
            Self::HeadTooLarge => "Request Header Fields Too Large",
            Self::NotImplemented => "Not Implemented",
            Self::BadGateway => "Bad Gateway",
            Self::ServiceUnavailable => "Service Unavailable",
            Self::GatewayTimeout => "Gateway Timeout",
            Self::LoopDetected => "Loop Detected",
        }
    }

    /// A field that this status must have.
    fn field(self) -> &'static str {
        match self {
            Self::ProxyAuthenticationRequired => {
                "Proxy-Authenticate: Basic realm=\"adit\", charset=\"UTF-8\"\r\n"
            }
            // RFC 9110, section 15.5.6 demands the field; its list may be incomplete.
            Self::MethodNotAllowed => "Allow: CONNECT, GET, HEAD, OPTIONS, POST, PUT, PATCH, DELETE\r\n",
            Self::BadRequest
            | Self::Forbidden
            | Self::NotFound
            | Self::RequestTimeout
            | Self::HeadTooLarge
            | Self::NotImplemented
            | Self::BadGateway
            | Self::ServiceUnavailable
            | Self::GatewayTimeout
            | Self::LoopDetected => "",
        }
    }
}

impl From<ConnectFailure> for Status {
    fn from(failure: ConnectFailure) -> Self {
        match failure {
            ConnectFailure::General
            | ConnectFailure::NetworkUnreachable
            | ConnectFailure::HostUnreachable
            | ConnectFailure::ConnectionRefused => Self::BadGateway,
            ConnectFailure::NotAllowed => Self::Forbidden,
            ConnectFailure::TimedOut => Self::GatewayTimeout,
            ConnectFailure::CommandNotSupported => Self::MethodNotAllowed,
            ConnectFailure::AddressNotSupported => Self::BadRequest,
            ConnectFailure::Overloaded | ConnectFailure::Unavailable => Self::ServiceUnavailable,
        }
    }
}

/// Appends the answer to a successful CONNECT. It has no body and no fields (RFC 9110, section 9.3.6), and repeats
/// the request's version, as old clients expect.
pub fn emit_established(version: HttpVersion, out: &mut Vec<u8>) {
    let version = version.text();
    write!(out, "{version} 200 Connection established\r\n\r\n").expect("writing to a vector works");
}

/// Appends a whole answer with `status`; `keep_alive` says whether the connection stays open, `head_request`
/// whether the request was a HEAD, which gets no body.
pub fn emit_error(
    status: Status,
    version: HttpVersion,
    keep_alive: bool,
    head_request: bool,
    out: &mut Vec<u8>,
) {
    let (code, reason) = (status.code(), status.reason());
    let head = format!("{code} {reason}\r\n{}Content-Type: text/plain", status.field());
    emit(&head, &format!("{code} {reason}\n"), version, keep_alive, head_request, out);
}

/// Appends a page of the proxy itself, in HTML and UTF-8, which loads nothing and is not to be kept. The rest is as in
/// [`emit_error`].
pub fn emit_page(page: &str, version: HttpVersion, keep_alive: bool, head_request: bool, out: &mut Vec<u8>) {
    let head = "200 OK\r\nCache-Control: no-store\r\nContent-Security-Policy: default-src 'none'\r\n\
        Content-Type: text/html; charset=utf-8";
    emit(head, page, version, keep_alive, head_request, out);
}

fn emit(head: &str, body: &str, version: HttpVersion, keep_alive: bool, is_head: bool, out: &mut Vec<u8>) {
    let (len, connection) = (body.len(), connection_field(version, keep_alive));
    write!(out, "HTTP/1.1 {head}\r\nContent-Length: {len}\r\n{connection}\r\n")
        .expect("writing to a vector works");
    if !is_head {
        out.extend_from_slice(body.as_bytes());
    }
}

/// The Connection field for a client that spoke `version`; none where the default says the same.
pub(super) fn connection_field(version: HttpVersion, keep_alive: bool) -> &'static str {
    match (version, keep_alive) {
        (_, false) => "Connection: close\r\n",
        (HttpVersion::Http10, true) => "Connection: keep-alive\r\n",
        (HttpVersion::Http11, true) => "",
    }
}
