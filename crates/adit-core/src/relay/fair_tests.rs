//! How much bulk moves between two looks at the sockets, over streams in memory that are always ready.

use std::cell::Cell;
use std::future::pending;
use std::net::SocketAddr;
use std::rc::Rc;

use adit_net::rt::fair::TURNS;
use adit_net::rt::{CHUNK_LEN, Carried, Cores};

use super::*;
use crate::conns::Conns;

const RELAYS: usize = 40;

/// One end in memory: it gives bytes without end, or takes all and gives none.
#[derive(Debug)]
struct Memory {
    is_source: bool,
    given: Rc<Cell<u64>>,
}

impl Carried for Memory {
    fn poll_readable(&self, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        if self.is_source { Poll::Ready(Ok(())) } else { Poll::Pending }
    }

    fn poll_recv(&self, _: &mut Context<'_>, buffer: &mut [u8]) -> Poll<io::Result<usize>> {
        if !self.is_source {
            return Poll::Pending;
        }
        self.given.set(self.given.get() + buffer.len() as u64);
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

    fn peer_addr(&self) -> SocketAddr {
        SocketAddr::from(([127, 0, 0, 1], 1))
    }

    fn local_addr(&self) -> SocketAddr {
        self.peer_addr()
    }
}

/// Relays without end; each adds to its counter what its source has given.
fn start(count: usize) -> Vec<Rc<Cell<u64>>> {
    let pool = Pool::new();
    let start_one = |_| {
        let given = Rc::<Cell<u64>>::default();
        let end = |is_source| {
            let memory: Box<dyn Carried> = Box::new(Memory { is_source, given: given.clone() });
            Endpoint::plain(Stream::from(memory))
        };
        let (mut near, mut far, pool) = (end(true), end(false), pool.clone());
        rt::spawn_local(async move {
            let (entry, traffic) = (Rc::new(Conns::default()).enter(), Traffic::default());
            let early = Early::default();
            Relay::new(&mut near, &mut far, early, &pool, &entry, &traffic, Policy::default()).await;
        });
        given
    };
    (0..count).map(start_one).collect()
}

fn sum(all: &[Rc<Cell<u64>>]) -> u64 {
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
    assert!(most <= u64::from(TURNS) * CHUNK_LEN as u64, "{most} bytes between two looks");
}

#[test]
fn bulk_has_its_turns_one_after_the_other() {
    Cores::block_on(async {
        let all = start(RELAYS);
        let len = CHUNK_LEN as u64;
        while sum(&all) < 50 * RELAYS as u64 * len {
            rt::yield_now().await;
        }
        let given = || all.iter().map(|one| one.get());
        let (least, most) = (given().min().unwrap(), given().max().unwrap());
        // A turn may have been slow because the machine did something else, and the reads after it shorter.
        assert!(least * 2 > most, "{least} and {most}");
    })
    .unwrap();
}

/// A loop that ends with relays in line leaves nothing behind on its thread.
#[test]
fn the_next_loop_of_a_thread_has_a_line_of_its_own() {
    for _ in 0..3 {
        let moved = Cores::block_on(async {
            let all = start(3);
            while sum(&all) < 100 * CHUNK_LEN as u64 {
                rt::yield_now().await;
            }
            sum(&all)
        });
        assert!(moved.unwrap() > 0);
    }
    let quiet = Cores::block_on(rt::timeout(std::time::Duration::from_millis(1), pending::<()>()));
    assert!(quiet.unwrap().is_err());
}
