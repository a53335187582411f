//! The HTTP/1 proxy: heads, bodies and the proxy's own answers, without I/O.
//!
//! ```text
//! CONNECT host:port HTTP/1.1 CRLF          then a tunnel: emit_established, both directions raw
//! field: value CRLF ... CRLF
//!
//! GET http://host[:port]/path HTTP/1.1     forwarded:  GET /path HTTP/1.1 CRLF
//! field: value CRLF ... CRLF                           Host: host[:port] CRLF, fields without hop-by-hop ones, CRLF
//! <body>                                               <body, byte for byte>
//!
//! body:  Content-Length bytes, or chunked:  size in hex [;extension] CRLF, data, CRLF, ..., 0 CRLF, trailers, CRLF,
//!        or (responses only) everything up to the end of the connection
//! ```
//!
//! Source: RFC 9110 and RFC 9112. One exchange of a connection goes like this:
//!
//! 1. A [`HeadScanner`] finds the end of the head in the receive buffer, [`RequestHead::parse`] reads it.
//!    Errors are answered with [`HeadError::status`] and [`emit_error`], then the connection closes.
//! 2. [`RequestHead::destination`] says where it goes: a tunnel, or a request to be forwarded, for which
//!    [`RequestHead::emit_forward`] writes the head. Its body passes through [`RequestHead::body`].
//! 3. The facts that outlive the borrowed head are an [`Exchange`]. With it [`ResponseHead::emit_forward`] writes each
//!    response head to the client and returns the next step as a [`Disposition`].
//! 4. When both bodies are complete and both sides keep their connections, the next request begins at 1, with
//!    any host it names.

mod body;
mod error;
mod fields;
mod head;
mod reply;
mod request;
mod response;
mod visit;

#[cfg(test)]
mod tests;

pub use body::{BodyError, BodyFramer, Decoded, Framed, MAX_CHUNK_LINE, MAX_TRAILERS_LEN, fuzz_http_body};
pub use error::HeadError;
pub use head::{HeadScanner, MAX_FIELDS, MAX_HEAD_LEN};
pub use reply::{Status, emit_error, emit_established, emit_page};
pub use request::{Destination, Exchange, HttpVersion, RequestHead, fuzz_http_request};
pub use response::{Disposition, ResponseHead, fuzz_http_response};
pub use visit::{Authority, Caller, Origin, Visit, VisitError, fuzz_http_visit};
