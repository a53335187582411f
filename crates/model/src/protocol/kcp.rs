//! The carrier of lossy paths: many streams over KCP, over datagrams.

use std::num::NonZeroU64;
use std::time::Duration;

use adit_proto::kcp::crypt::KcpMethod;
use adit_proto::kcp::fec::Shards;
use adit_proto::smux::SmuxVersion;
use adit_proto::wire::Target;

use crate::{Secret, SnowflakeClient, SnowflakePort, SnowflakeServer};

/// Bytes that one session holds at most in each direction, unless told otherwise: 500 Mbit/s over 300 ms, and half as
/// much again.
pub const KCP_MEMORY: usize = 32 << 20;

/// Datagrams no longer than this pass every path that people use; the whole payload of UDP, in bytes.
pub const KCP_MTU: usize = 1350;

/// The same between a client of Snowflake's and its proxy: with its prefix of two bytes a datagram fits one packet of
/// SCTP. Upstream's 1,400 take two.
pub const SNOWFLAKE_MTU: usize = 1198;

/// Settings of both ends of a carrier.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Kcp {
    /// The secret from which the cipher's key is derived. Both ends must agree.
    pub key: Secret,
    /// The cipher. Both ends must agree.
    pub crypt: KcpMethod,
    /// Whether the stream of frames is compressed. Both ends must agree.
    pub compression: bool,
    /// Version of the multiplexing protocol; `None` lets a server take its client's version, and is 2 for a client.
    pub version: Option<SmuxVersion>,
    /// Permutations of the additional cipher around each stream (QPP), if there is one. Both ends must agree.
    pub pads: Option<u16>,
    /// Retransmission.
    pub pace: KcpPace,
    /// Sends acknowledgements after each datagram.
    pub ack_no_delay: bool,
    /// Length of a datagram in bytes, at most 1500 and enough for some data behind the headers.
    pub mtu: usize,
    /// Segments under way at most; `None` leaves it to measurement.
    pub send_window: Option<u16>,
    /// Segments that may wait for gaps or the reader; `None` leaves it to measurement.
    pub recv_window: Option<u16>,
    /// Parity that is sent along.
    pub parity: KcpParity,
    /// Bytes that may wait for all readers of a session; `None` for [`Kcp::memory`].
    pub receive_buffer: Option<usize>,
    /// Window of each stream in bytes; `None` lets it grow as far as it is what limits the stream.
    pub stream_buffer: Option<u32>,
    /// Datagrams look like segments of TCP; a server takes those of UDP as well. It takes the right to raw sockets.
    pub raw_tcp: bool,
    /// Longest payload of a frame in bytes, at least 1.
    pub frame_len: usize,
    /// Between two signs of life; never zero.
    pub keep_alive: Duration,
    /// Without a sign of the peer for this long a session ends; at least [`Kcp::keep_alive`].
    pub timeout: Duration,
    /// Bytes per second of one session, at most.
    pub rate_limit: Option<NonZeroU64>,
    /// Traffic class of IPv4 datagrams (`IP_TOS`).
    pub class_v4: u8,
    /// Traffic class of IPv6 datagrams.
    pub class_v6: u8,
    /// Buffers of the sockets in bytes; `None` for what adit asks for by itself.
    pub socket_buffer: Option<usize>,
    /// Time that the answer of a stream may go on after its peer has ended it; `None` for no limit. Peers
    /// that know no half-close are gone by then.
    pub close_wait: Option<Duration>,
    /// Bytes that one session may hold in each direction.
    pub memory: usize,
    /// A server's packets come by the WebSockets of Snowflake's proxies, in the place of datagrams.
    pub snowflake: Option<SnowflakePort>,
    /// Packets go by streams, so that none is lost while its stream lasts.
    pub steady: bool,
}

impl Kcp {
    /// A carrier that finds everything itself.
    pub fn new(key: Secret, crypt: KcpMethod) -> Self {
        Self {
            key,
            crypt,
            compression: false,
            version: None,
            pads: None,
            pace: KcpPace::default(),
            ack_no_delay: false,
            mtu: KCP_MTU,
            send_window: None,
            recv_window: None,
            parity: KcpParity::Measured,
            receive_buffer: None,
            stream_buffer: None,
            raw_tcp: false,
            frame_len: 8192,
            keep_alive: Duration::from_secs(10),
            timeout: Duration::from_secs(30),
            rate_limit: None,
            class_v4: 0,
            class_v6: 0,
            socket_buffer: None,
            close_wait: None,
            memory: KCP_MEMORY,
            snowflake: None,
            steady: false,
        }
    }

    /// Whether packets come and go by streams, in the place of datagrams.
    pub fn has_streams(&self) -> bool {
        self.snowflake.is_some()
    }

    /// Sessions as Snowflake's programs speak them: without a cipher, since TLS and DTLS end at the proxy, and without
    /// parity, since nothing is lost between two proxies.
    pub fn for_snowflake() -> Self {
        Self {
            version: Some(SmuxVersion::V2),
            parity: KcpParity::Off,
            frame_len: 32 << 10,
            timeout: Duration::from_secs(240),
            // Upstream's clients are gone by then.
            close_wait: Some(Duration::from_secs(30)),
            memory: SnowflakeServer::SESSION_MEMORY,
            steady: true,
            ..Self::new(Secret::new(""), KcpMethod::Null)
        }
    }
}

/// Amount of parity that a sender adds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum KcpParity {
    /// None.
    Off,
    /// As many packets as the losses need, while the path has room, to peers that send parity: in groups like theirs.
    Measured,
    /// All of each group, always.
    Fixed(Shards),
}

/// When segments are sent again, and what bounds those under way.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct KcpPace {
    /// Lower and more slowly growing timeouts.
    pub nodelay: bool,
    /// Longest delay of acknowledgements, and the least margin of a timeout; 10 ms to 5 s.
    pub interval: Duration,
    /// Acknowledgements of later segments after which one is sent again; 0 is never.
    pub resend: u32,
    /// Obeys KCP's own congestion window, and no model of the path.
    pub congestion: bool,
}

impl Default for KcpPace {
    fn default() -> Self {
        Self { nodelay: false, interval: Duration::from_millis(20), resend: 2, congestion: false }
    }
}

/// The side that makes sessions.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KcpClient {
    /// Settings of both ends.
    pub kcp: Kcp,
    /// The server; its port is the first of a range.
    pub server: Target,
    /// Last port of the range, from which each session draws one; at least the first.
    pub last_port: u16,
    /// Sessions that streams are spread over, at least 1; every event loop has at least one of its own.
    pub sessions: usize,
    /// A session takes no further streams after this time; `None` for never.
    pub expire: Option<Duration>,
    /// A session that takes no further streams is ended after this time, even with open streams.
    pub linger: Duration,
    /// Whether the end of the local side's data is passed on at once to every server. Otherwise it is
    /// passed on at once to adit alone.
    pub half_close: bool,
    /// Packets go through Snowflake's proxies, in the place of datagrams; `server` is the broker then.
    pub snowflake: Option<Box<SnowflakeClient>>,
}

impl KcpClient {
    /// One session that lasts, to a server of adit's.
    pub fn new(kcp: Kcp, server: Target) -> Self {
        Self {
            kcp,
            last_port: server.port,
            server,
            sessions: 1,
            expire: None,
            linger: Duration::from_secs(600),
            half_close: false,
            snowflake: None,
        }
    }

    /// Whether packets come and go by streams, in the place of datagrams.
    pub fn has_streams(&self) -> bool {
        self.snowflake.is_some()
    }

    /// One session through the proxies that `broker` finds.
    pub fn through_snowflake(broker: Target, client: SnowflakeClient) -> Self {
        let kcp = Kcp { mtu: SNOWFLAKE_MTU, ..Kcp::for_snowflake() };
        Self { snowflake: Some(Box::new(client)), ..Self::new(kcp, broker) }
    }
}
