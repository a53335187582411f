//! Groups datagrams that may leave as one message.

use std::net::{IpAddr, SocketAddr};

use adit_sys::udp::{MAX_PAYLOAD, MAX_SEGMENTS};

/// A datagram to be sent from a block.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Outgoing {
    /// For the caller.
    pub key: u32,
    /// Destination; not looked at on a connected socket.
    pub to: SocketAddr,
    /// The source address, where the socket has several.
    pub from: Option<IpAddr>,
    /// Traffic class; 0 for the socket's own.
    pub class: u8,
    /// Its start in the block.
    pub start: usize,
    /// Its length in bytes, at most 65,535.
    pub len: usize,
}

impl Outgoing {
    /// Its bytes.
    pub(super) fn bytes<'b>(&self, block: &'b [u8]) -> &'b [u8] {
        &block[self.start..self.start + self.len]
    }

    fn goes_with(&self, other: &Self) -> bool {
        (self.to, self.from, self.class) == (other.to, other.from, other.class)
    }
}

/// Number of the first datagrams that may be one message that the kernel cuts every `len` bytes of the first: all for
/// one destination with one mark, all of one size but the last, which may be shorter, but not empty. At least 1 unless
/// there are none.
pub(super) fn group_len(datagrams: &[Outgoing], max_segment: usize) -> usize {
    let Some(first) = datagrams.first() else { return 0 };
    if first.len == 0 || first.len > max_segment {
        return 1;
    }
    let most = MAX_SEGMENTS.min(MAX_PAYLOAD / first.len).max(1);
    let mut count = 1;
    for next in datagrams[1..].iter().take(most - 1) {
        if next.len == 0 || next.len > first.len || !next.goes_with(first) {
            break;
        }
        count += 1;
        if next.len < first.len {
            break;
        }
    }
    count
}

#[cfg(test)]
mod tests {
    use super::*;

    fn datagrams(lens: &[usize]) -> Vec<Outgoing> {
        let to = SocketAddr::from(([127, 0, 0, 1], 9));
        let datagram = |len: &usize| Outgoing { key: 0, to, from: None, class: 0, start: 0, len: *len };
        lens.iter().map(datagram).collect()
    }

    #[test]
    fn groups_end_where_sizes_say() {
        for (lens, count) in [
            (&[][..], 0),
            (&[5], 1),
            (&[5, 5, 5], 3),
            (&[5, 5, 4, 5], 3),
            (&[5, 6], 1),
            (&[5, 0, 5], 1),
            (&[0, 0], 1),
            (&[1500, 1500], 1),
            (&[1200; 60][..], 54),
            (&[1; 100][..], 64),
        ] {
            assert_eq!(group_len(&datagrams(lens), 1400), count, "{lens:?}");
        }
        assert_eq!(group_len(&datagrams(&[5, 5]), 0), 1, "switched off");
    }

    #[test]
    fn groups_have_one_destination_and_one_mark() {
        let same = datagrams(&[5, 5, 5]);
        for change in [
            |d: &mut Outgoing| d.to.set_port(10),
            |d: &mut Outgoing| d.class = 1,
            |d: &mut Outgoing| d.from = Some(IpAddr::from([127, 0, 0, 2])),
        ] {
            let mut all = same.clone();
            change(&mut all[2]);
            assert_eq!(group_len(&all, 1400), 2);
        }
        let mut keys = same;
        keys[1].key = 7;
        assert_eq!(group_len(&keys, 1400), 3, "the caller's key does not matter");
    }
}
