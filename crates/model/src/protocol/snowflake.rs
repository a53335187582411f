//! Snowflake's servers: broker, server and probe server.

use std::net::SocketAddr;
use std::path::PathBuf;

use adit_proto::snowflake::Scheme;

use crate::WebUrl;

/// The files of a certificate (PEM).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TlsFiles {
    /// The chain of certificates.
    pub certificate: PathBuf,
    /// The private key.
    pub key: PathBuf,
    /// The way that adit keeps them, both in one file; `None` if somebody else does.
    pub acme: Option<Box<Acme>>,
}

/// Certificates from an authority that speaks ACME (RFC 8555), by HTTP-01.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Acme {
    /// The names of the certificate, one at least.
    pub names: Vec<Box<str>>,
    /// The address of mail that the authority may write to.
    pub email: Option<Box<str>>,
    /// The authority's directory.
    pub directory: WebUrl,
    /// The address that the authority's questions come to; `None` for port 80 of the server's own address.
    pub answers: Option<SocketAddr>,
}

impl Acme {
    /// The directory of Let's Encrypt.
    pub const DIRECTORY: &str = "https://acme-v02.api.letsencrypt.org/directory";
}

/// Settings of a broker.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SnowflakeBroker {
    /// The address that it listens on.
    pub listen: SocketAddr,
    /// TLS; without it HTTP is spoken.
    pub tls: Option<TlsFiles>,
    /// The generation that it answers as.
    pub scheme: Scheme,
    /// The list of bridges; without one there is the public bridge alone.
    pub bridges: Option<PathBuf>,
    /// The pattern that a proxy's must cover.
    pub pattern: String,
    /// The pattern of proxies that send none; `None` refuses them.
    pub default_pattern: Option<String>,
    /// Files of addresses and countries, IPv4 and IPv6.
    pub countries: Option<(PathBuf, PathBuf)>,
    /// The file that a summary is appended to each day; standard output without one.
    pub metrics_log: Option<PathBuf>,
    /// The file of poll intervals.
    pub poll_intervals: Option<PathBuf>,
    /// Reverse proxies in front of the broker, whose entry in `X-Forwarded-For` names a proxy's address. 0 takes the
    /// address of the connection.
    pub trusted_hops: usize,
    /// Whether log lines hold addresses.
    pub shows_addresses: bool,
}

/// Settings of a server.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SnowflakeServer {
    /// The address that it listens on.
    pub listen: SocketAddr,
    /// TLS; without it HTTP is spoken.
    pub tls: Option<TlsFiles>,
    /// The service behind it.
    pub target: SnowflakeTarget,
    /// Addresses from which the target is dialled, one drawn for each connection: network and length of its prefix.
    pub source: Option<(std::net::IpAddr, u8)>,
    /// State machines of KCP, each on an event loop of its own; at least 1.
    pub instances: usize,
    /// Bytes that the session of one client may hold in each direction.
    pub session_memory: usize,
    /// Bytes that all sessions may hold; `None` takes a quarter of the process's memory.
    pub total_memory: Option<usize>,
    /// Window of a stream in bytes; `None` lets it grow while it is what limits the stream.
    pub stream_buffer: Option<u32>,
    /// Whether log lines hold addresses.
    pub shows_addresses: bool,
}

/// The port of an inbound that proxies of Snowflake bring sessions to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SnowflakePort {
    /// TLS; without it HTTP is spoken.
    pub tls: Option<TlsFiles>,
}

/// The service behind a server.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum SnowflakeTarget {
    /// Any service on TCP (Tor's `ORPort`).
    Plain(SocketAddr),
    /// Tor's extended port, which is told the client's address, and the file of its secret.
    Extended(SocketAddr, PathBuf),
}

impl SnowflakeServer {
    /// Bytes of a session unless told otherwise: 100 Mbit/s over 500 ms, and a little more.
    pub const SESSION_MEMORY: usize = 8 << 20;
}

/// Settings of a probe server.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SnowflakeProbe {
    /// The address that it listens on.
    pub listen: SocketAddr,
    /// TLS; without it HTTP is spoken.
    pub tls: Option<TlsFiles>,
    /// Servers that tell a probe its address.
    pub stun: Vec<String>,
    /// Whether log lines hold addresses.
    pub shows_addresses: bool,
}
