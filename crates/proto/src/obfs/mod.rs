//! Simple obfuscation, worn around the whole stream of another protocol: [`http`] looks like a WebSocket upgrade,
//! [`tls`] like a TLS 1.2 session that is resumed by ticket. Neither encrypts nor authenticates anything.

pub mod http;
pub mod tls;
