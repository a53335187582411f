//! Notices of the kernel: interfaces and default routes that come, go or change.

use std::fmt;
use std::io;
use std::net::IpAddr;
use std::time::Duration;

use adit_sys::netlink::NetlinkSocket;

use super::route::{
    AF_INET6, DEL_ROUTE, MAIN, NEW_ROUTE, ROUTE_LEN, ROUTE_LINK, ROUTE_PRIORITY, ROUTE_TABLE, TAG, ip_of,
    links,
};
use super::{Answers, Attributes, Family, Netlink, u32_at};

const ENOBUFS: i32 = 105;
/// Bytes of notices that are read at once.
const NOTICES: usize = 32 << 10;
/// `RTA_GATEWAY` of linux/rtnetlink.h.
const ROUTE_GATEWAY: u16 = 5;

/// Waits for notices.
#[derive(Debug)]
pub struct LinkWatch(NetlinkSocket);

/// The news of some notices.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct News {
    /// Interfaces have come, gone or changed.
    pub has_links: bool,
    /// Default routes of the main table that have come or gone, in order.
    pub routes: Vec<DefaultRoute>,
}

/// A default route that has come or gone.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DefaultRoute {
    /// Whether it is one of IPv6.
    pub is_v6: bool,
    /// Whether it is there now.
    pub is_there: bool,
    /// The number of its interface; `None` if there are several.
    pub link: Option<u32>,
    /// The router, if there is one.
    pub gateway: Option<IpAddr>,
    /// Its place among several: the least one counts.
    pub metric: u32,
}

impl LinkWatch {
    /// Opens one in the network namespace of the calling thread.
    ///
    /// # Errors
    /// As socket(2).
    pub fn open() -> io::Result<Self> {
        NetlinkSocket::open_for_links().map(Self)
    }

    /// Waits for notices, so long at most.
    ///
    /// # Errors
    /// The system's error. Notices that were lost (`ENOBUFS`) count as some about interfaces.
    pub fn wait(&self, patience: Duration) -> io::Result<News> {
        self.0.set_patience(patience)?;
        let mut block = vec![0; NOTICES];
        match self.0.receive(&mut block) {
            Ok(len) => Ok(read(&block[..len])),
            Err(error) if error.raw_os_error() == Some(ENOBUFS) => {
                Ok(News { has_links: true, ..News::default() })
            }
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => Ok(News::default()),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => Ok(News::default()),
            Err(error) => Err(error),
        }
    }
}

fn read(datagram: &[u8]) -> News {
    let mut news = News::default();
    for notice in Answers::new(datagram) {
        match notice.kind {
            NEW_ROUTE | DEL_ROUTE => news.routes.extend(default_route(notice.kind, notice.body)),
            _ => news.has_links = true,
        }
    }
    news
}

/// A default route of the main table; other routes are passed over, of which a router may have a million.
fn default_route(kind: u16, body: &[u8]) -> Option<DefaultRoute> {
    // Family, length of the prefix, that of the source's, TOS, table, tag.
    let header = body.get(..ROUTE_LEN).filter(|header| header[1] == 0 && header[5] != TAG)?;
    let (is_v6, is_there) = (header[0] == AF_INET6, kind == NEW_ROUTE);
    let mut route = DefaultRoute { is_v6, is_there, link: None, gateway: None, metric: 0 };
    let mut table = u32::from(header[4]);
    for (kind, value) in Attributes::new(&body[ROUTE_LEN..]) {
        let number = (value.len() == 4).then(|| u32_at(value, 0));
        match kind {
            ROUTE_TABLE => table = number?,
            ROUTE_LINK => route.link = number,
            ROUTE_PRIORITY => route.metric = number?,
            ROUTE_GATEWAY => route.gateway = ip_of(value),
            _ => {}
        }
    }
    (table == MAIN).then_some(route)
}

impl fmt::Display for DefaultRoute {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = self.link.map(|index| name_of(index).unwrap_or_else(|| format!("interface {index}")));
        f.write_str(name.as_deref().unwrap_or("several interfaces"))?;
        if let Some(gateway) = self.gateway {
            write!(f, " via {gateway}")?;
        }
        if self.metric > 0 { write!(f, ", metric {}", self.metric) } else { Ok(()) }
    }
}

/// The name of an interface that is there.
fn name_of(index: u32) -> Option<String> {
    let all = links(&mut Netlink::open(Family::Route).ok()?).ok()?;
    all.into_iter().find(|link| link.index == index).map(|link| link.name)
}

#[cfg(test)]
mod tests {
    use super::super::Messages;
    use super::*;

    /// A notice about a route: length of its prefix, table and tag.
    fn notice(kind: u16, [len, table, tag]: [u8; 3]) -> Vec<u8> {
        let mut messages = Messages::default();
        let head = [2, len, 0, 0, table, tag, 0, 1, 0, 0, 0, 0];
        messages.message((kind, 0), "", &head, |m| {
            m.attribute(ROUTE_TABLE, &u32::from(table).to_ne_bytes());
            m.attribute(ROUTE_GATEWAY, &[10, 1, 0, 2]);
            m.attribute(ROUTE_LINK, &4_000_000_000_u32.to_ne_bytes());
            m.attribute(ROUTE_PRIORITY, &100_u32.to_ne_bytes());
        });
        messages.bytes
    }

    #[test]
    fn default_routes_are_told_from_others() {
        let route = DefaultRoute {
            is_v6: false,
            is_there: true,
            link: Some(4_000_000_000),
            gateway: Some([10, 1, 0, 2].into()),
            metric: 100,
        };
        assert_eq!(route.to_string(), "interface 4000000000 via 10.1.0.2, metric 100");
        let gone = DefaultRoute { is_there: false, ..route.clone() };
        let both = [notice(NEW_ROUTE, [0, 254, 3]), notice(DEL_ROUTE, [0, 254, 3])].concat();
        assert_eq!(read(&both), News { has_links: false, routes: vec![route, gone] });
        for other in [[24, 254, 3], [0, 100, 3], [0, 254, TAG]] {
            assert_eq!(read(&notice(NEW_ROUTE, other)), News::default(), "{other:?}");
        }
        assert!(read(&notice(16, [0, 254, 3])).has_links);
    }

    #[test]
    fn any_cut_and_any_flipped_bit_is_read() {
        let whole = notice(NEW_ROUTE, [0, 254, 3]);
        for len in 0..whole.len() {
            assert!(read(&whole[..len]).routes.is_empty(), "{len}");
        }
        for bit in 0..whole.len() * 8 {
            let mut flipped = whole.clone();
            flipped[bit / 8] ^= 1 << (bit % 8);
            let news = read(&flipped);
            assert!(news.routes.len() <= 1, "bit {bit}");
        }
    }
}
