//! Several outbounds of which one is used.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::time::Duration;

use super::Tag;

/// Several outbounds, of which each connection uses the one that answers best.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Group {
    /// Its members: none of them twice, none of them a group, and at least one unless the group grows.
    pub members: Vec<Member>,
    /// Whether more members are added while it runs.
    pub grows: bool,
    /// The check that finds the best member.
    pub check: Check,
}

/// One outbound of a [`Group`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Member {
    /// The one of [`Config::outbounds`](super::Config::outbounds) that it is.
    pub outbound: Tag,
    /// Preference for streams, in percent from 0 (never) to 100.
    pub tcp_weight: u8,
    /// The same for datagrams.
    pub udp_weight: u8,
}

impl Member {
    /// An outbound with full weight.
    pub fn new(outbound: impl Into<Tag>) -> Self {
        Self { outbound: outbound.into(), tcp_weight: 100, udp_weight: 100 }
    }
}

/// The check that compares the members of a [`Group`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Check {
    /// Address to fetch through each member, plain HTTP; any answer counts.
    pub url: Box<str>,
    /// The name server that is asked through each member that carries datagrams; any answer counts.
    pub dns: SocketAddr,
    /// Time between two checks of a member.
    pub interval: Duration,
    /// The same for the member in use, at most as long.
    pub interval_in_use: Duration,
    /// An answer that takes longer is none.
    pub timeout: Duration,
    /// A member must be faster by this much to take over from one that answers.
    pub tolerance: Duration,
}

/// The address that phones and browsers ask whether they are online: an empty answer, near everywhere.
pub const CHECK_URL: &str = "http://www.gstatic.com/generate_204";

/// A name server that answers everywhere.
pub const CHECK_DNS: SocketAddr = SocketAddr::new(IpAddr::V4(Ipv4Addr::new(8, 8, 8, 8)), 53);

/// Every 10 s, as shadowsocks-rust does (1.25, its longest round trip too), and the tolerance of sing-box (1.13).
impl Default for Check {
    fn default() -> Self {
        Self {
            url: CHECK_URL.into(),
            dns: CHECK_DNS,
            interval: Duration::from_secs(10),
            interval_in_use: Duration::from_secs(10),
            timeout: Duration::from_secs(5),
            tolerance: Duration::from_millis(50),
        }
    }
}
