//! Bulk moved between two looks at the sockets, over streams in memory that are always ready. It is counted in
//! reads: a turn is one read, and that is one chunk at most.

use std::cell::Cell;
use std::future::pending;
use std::net::SocketAddr;
use std::rc::Rc;

use adit_net::rt::fair::TURNS;
use adit_net::rt::{CarrierStream, Cores};

use super::*;
use crate::connections::table::Conns;

const RELAYS: usize = 40;

/// One end in memory: it gives bytes without end, or takes all and gives none.
#[derive(Debug)]
struct Memory {
    is_source: bool,
    reads: Rc<Cell<u32>>,
}

impl CarrierStream for Memory {
    fn poll_readable(&self, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        if self.is_source { Poll::Ready(Ok(())) } else { Poll::Pending }
    }

    fn poll_recv(&self, _: &mut Context<'_>, buffer: &mut [u8]) -> Poll<io::Result<usize>> {
        if !self.is_source {
            return Poll::Pending;
        }
        self.reads.set(self.reads.get() + 1);
        Poll::Ready(Ok(buffer.len()))
    }

    fn poll_send(&self, _: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        Poll::Ready(Ok(bytes.len()))
    }

    fn shutdown_write(&self) {}

    fn abort_on_close(&self) {}

    fn peer_is_closed(&self) -> Option<bool> {
        Some(false)
    }

    fn poll_lost(&self, _: &mut Context<'_>) -> Poll<()> {
        Poll::Pending
    }

    fn peer_addr(&self) -> SocketAddr {
        SocketAddr::from(([127, 0, 0, 1], 1))
    }

    fn local_addr(&self) -> SocketAddr {
        self.peer_addr()
    }
}

/// Relays without end; each counts the reads of its source.
fn start(count: usize) -> Vec<Rc<Cell<u32>>> {
    let pool = Pool::new();
    let start_one = |_| {
        let reads = Rc::<Cell<u32>>::default();
        let end = |is_source| {
            let memory: Box<dyn CarrierStream> = Box::new(Memory { is_source, reads: reads.clone() });
            Endpoint::plain(Stream::from(memory))
        };
        let (mut near, mut far, pool) = (end(true), end(false), pool.clone());
        rt::spawn_local(async move {
            let (entry, traffic) = (Rc::new(Conns::default()).enter(), Traffic::default());
            let early = Early::default();
            Relay::new(&mut near, &mut far, early, &pool, &entry, &traffic, Policy::default()).await;
        });
        reads
    };
    (0..count).map(start_one).collect()
}

fn sum(all: &[Rc<Cell<u32>>]) -> u32 {
    all.iter().map(|one| one.get()).sum()
}

/// The runtime wakes a task that yields after it has looked at the sockets: two turns of it have one look between them.
#[test]
fn bulk_between_two_looks_is_bounded() {
    let most = Cores::block_on(async {
        let all = start(RELAYS);
        // The first turn of a relay is not bulk yet.
        while all.iter().any(|one| one.get() == 0) {
            rt::yield_now().await;
        }
        let mut most = 0;
        for _ in 0..200 {
            let before = sum(&all);
            rt::yield_now().await;
            most = most.max(sum(&all) - before);
        }
        assert!(most > 0, "nothing moved");
        most
    })
    .unwrap();
    assert!(most <= TURNS, "{most} chunks between two looks");
}

#[test]
fn bulk_has_its_turns_one_after_the_other() {
    Cores::block_on(async {
        let all = start(RELAYS);
        while all.iter().any(|one| one.get() < 50) {
            rt::yield_now().await;
        }
        let most = all.iter().map(|one| one.get()).max();
        assert!(most <= Some(52), "one has had 50 turns, and another {most:?}");
    })
    .unwrap();
}

/// A loop that ends with relays in line leaves nothing behind on its thread.
#[test]
fn the_next_loop_of_a_thread_has_a_line_of_its_own() {
    for _ in 0..3 {
        let moved = Cores::block_on(async {
            let all = start(3);
            while sum(&all) < 100 {
                rt::yield_now().await;
            }
            sum(&all)
        });
        assert!(moved.unwrap() > 0);
    }
    let quiet = Cores::block_on(rt::timeout(std::time::Duration::from_millis(1), pending::<()>()));
    assert!(quiet.unwrap().is_err());
}
