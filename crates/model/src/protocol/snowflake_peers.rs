//! Snowflake's client and proxy.

use std::net::IpAddr;
use std::ops::RangeInclusive;
use std::time::Duration;

use adit_proto::snowflake::messages::{Fingerprint, Nat};
use adit_proto::snowflake::pattern::RelayPattern;
use adit_proto::wire::{Host, Target};

use crate::WebUrl;

/// Bytes of a stream that a peer may send before they have been read.
pub const SNOWFLAKE_STREAM_WINDOW: u32 = 1 << 20;

/// A client: it finds proxies through a broker, and carries streams over them to a server.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SnowflakeClient {
    /// The broker; names of requests are resolved against its address.
    pub broker: Option<WebUrl>,
    /// Hosts of which one is connected to in the broker's place.
    pub fronts: Vec<Host>,
    /// An AMP cache that is asked in the broker's place, as its address was written.
    pub amp_cache: Option<Box<str>>,
    /// A rendezvous by a message queue of Amazon's was asked for, which does not exist here.
    pub wants_queue: bool,
    /// STUN servers.
    pub ice: Vec<Target>,
    /// Proxies that are kept at one time, 1 or more.
    pub max: usize,
    /// The bridge; none for the broker's usual one.
    pub fingerprint: Option<Fingerprint>,
    /// Whether proxies are told private and loopback addresses.
    pub keep_local: bool,
    /// The program whose TLS hello was to be imitated; it is not.
    pub imitates: Option<Box<str>>,
    /// Whether the name of the server is left out of TLS.
    pub hides_name: bool,
    /// Whether another DTLS hello was asked for; there is none.
    pub mimics_dtls: bool,
    /// Window of a stream, in bytes.
    pub stream_window: u32,
}

impl Default for SnowflakeClient {
    fn default() -> Self {
        Self {
            broker: None,
            fronts: Vec::new(),
            amp_cache: None,
            wants_queue: false,
            ice: Vec::new(),
            max: 1,
            fingerprint: None,
            keep_local: false,
            imitates: None,
            hides_name: false,
            mimics_dtls: false,
            stream_window: SNOWFLAKE_STREAM_WINDOW,
        }
    }
}

impl SnowflakeClient {
    /// The servers that it connects to beside the broker: hosts in the broker's place, and STUN servers.
    pub fn servers(&self) -> impl Iterator<Item = Target> {
        let fronts = self.fronts.iter().map(|host| Target { host: host.clone(), port: 443 });
        fronts.chain(self.ice.iter().cloned())
    }
}

/// A proxy: it takes clients from a broker and connects each to a relay.
#[derive(Debug, Clone)]
pub struct SnowflakeProxy {
    /// The broker; names of requests are resolved against its address.
    pub broker: WebUrl,
    /// The relay for clients to whom the broker names none.
    pub relay: Box<str>,
    /// STUN servers.
    pub stun: Vec<Target>,
    /// The server by which the NAT is found out.
    pub probe: Option<WebUrl>,
    /// Clients at one time; no bound if it is none.
    pub capacity: Option<usize>,
    /// Pause between polls when the broker names none.
    pub poll_interval: Duration,
    /// Relays that are allowed.
    pub pattern: RelayPattern,
    /// The same as it was written, for the broker.
    pub pattern_text: Box<str>,
    /// Whether relays without TLS are allowed.
    pub allows_plain: bool,
    /// Whether relays at private addresses are allowed.
    pub allows_private: bool,
    /// Whether clients are told private and loopback addresses.
    pub keep_local: bool,
    /// The address that clients are to reach.
    pub outbound: Option<IpAddr>,
    /// Ports of its sockets for clients.
    pub ports: Option<RangeInclusive<u16>>,
    /// Pause between two looks at the NAT; none for one look only.
    pub retest: Option<Duration>,
    /// Period of the summary; none for no summary.
    pub summary: Option<Duration>,
    /// The kind of NAT, if it is known and not to be found out.
    pub nat: Option<Nat>,
    /// Whether another DTLS hello was asked for; there is none.
    pub mimics_dtls: bool,
}

impl SnowflakeProxy {
    /// A proxy for a broker, a relay and clients on its own machine: it leads to any address, and tells its own.
    pub fn on_one_machine(broker: WebUrl, relay: Box<str>) -> Self {
        Self {
            broker,
            relay,
            stun: Vec::new(),
            probe: None,
            capacity: None,
            poll_interval: Duration::from_secs(2),
            pattern: RelayPattern::parse("$"),
            pattern_text: "$".into(),
            allows_plain: true,
            allows_private: true,
            keep_local: true,
            outbound: None,
            ports: None,
            retest: None,
            summary: None,
            nat: Some(Nat::Unrestricted),
            mimics_dtls: false,
        }
    }
}
