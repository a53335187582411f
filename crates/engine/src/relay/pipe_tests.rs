//! Bulk between plain TCP sockets, which goes through pipes of the kernel.

#![cfg(target_os = "linux")]

use std::cell::Cell;
use std::rc::Rc;
use std::time::Duration;

use adit_model::Dial;
use adit_net::accept::Acceptor;
use adit_net::dial::Dialer;
use adit_net::listen::{ListenOptions, listen};
use adit_net::rt::Cores;
use adit_testkit::pattern;

use super::*;
use crate::connections::table::Conns;

/// More than the sockets on the way and a read hold while nobody reads.
const LEN: usize = 10 * 1024 * 1024;
/// More than the sockets on the way and a pipe hold.
const LONG: usize = 4 * LEN;
/// More than there are pipes on a loop.
const RELAYS: usize = 40;

/// Both ends of a TCP connection.
async fn pair() -> (Stream, Stream) {
    let (listener, _) = listen("127.0.0.1:0".parse().unwrap(), &ListenOptions::default()).unwrap();
    let mut acceptor = Acceptor::new(listener);
    let at = acceptor.local_addr().unwrap();
    let dialer = Dialer::by_system(&Dial::default());
    let dialled = dialer.dial(&at.to_string().parse().unwrap()).await.unwrap();
    (Stream::from(acceptor.accept().await.unwrap().0), Stream::from(dialled))
}

/// A relay between two applications, which are returned; `outcome` gets its end.
async fn joined(pool: &Pool, outcome: &Rc<Cell<Option<RelayOutcome>>>) -> (Stream, Stream) {
    let ((application, near), (far, target)) = (pair().await, pair().await);
    let (pool, outcome) = (pool.clone(), outcome.clone());
    rt::spawn_local(async move {
        let (mut near, mut far) = (Endpoint::plain(near), Endpoint::plain(far));
        let (entry, traffic) = (Rc::new(Conns::default()).enter(), Traffic::default());
        let policy = Policy { keep_for_replay: true, ..Policy::default() };
        let relay = Relay::new(&mut near, &mut far, Early::default(), &pool, &entry, &traffic, policy);
        outcome.set(Some(relay.await));
    });
    (application, target)
}

/// Sends `bytes` and the end; gives the number of bytes that are sent so far.
fn send(stream: Stream, bytes: &Rc<[u8]>) -> Rc<Cell<usize>> {
    let sent = Rc::new(Cell::new(0));
    let (count, bytes) = (sent.clone(), bytes.clone());
    rt::spawn_local(async move {
        for part in bytes.chunks(64 * 1024) {
            stream.send_all(part).await.unwrap();
            count.set(count.get() + part.len());
        }
        stream.shutdown_write().unwrap();
        // The other direction stays open.
        stream.recv(&mut [0]).await.ok();
    });
    sent
}

/// Compares all that comes until the end.
async fn receive(stream: &Stream, expected: &[u8]) {
    let (mut at, mut buffer) = (0, vec![0; 256 * 1024]);
    loop {
        match stream.recv(&mut buffer).await.unwrap() {
            0 => break,
            len => {
                assert!(expected.get(at..at + len) == Some(&buffer[..len]), "other bytes from {at} on");
                at += len;
            }
        }
    }
    assert_eq!(at, expected.len());
}

/// Waits until nothing moves any more.
async fn stalled(sent: &[Rc<Cell<usize>>]) {
    let sum = || sent.iter().map(|sent| sent.get()).sum::<usize>();
    let mut before = usize::MAX;
    while sum() != before {
        before = sum();
        rt::sleep(Duration::from_millis(200)).await;
    }
}

#[test]
fn bulk_between_plain_sockets_arrives_whole_and_in_order() {
    Cores::block_on(async {
        let (pool, outcome, bytes) = (Pool::new(), Rc::default(), Rc::<[u8]>::from(pattern(LONG)));
        let (application, target) = joined(&pool, &outcome).await;
        let sent = send(target, &bytes);
        stalled(std::slice::from_ref(&sent)).await;
        assert!(sent.get() < LONG, "the sockets hold it all, so nothing was tested");
        assert_eq!(pool.lent_pipes(), 1, "it did not go through a pipe");
        assert_eq!(pool.lent(), 0, "a block is kept beside the pipe");
        receive(&application, &bytes).await;
        assert_eq!(pool.lent_pipes(), 0);
        application.send_all(b"late").await.unwrap();
        application.shutdown_write().unwrap();
        drop(application);
        while outcome.take().is_none_or(|outcome| {
            assert_eq!((outcome.up, outcome.down), (4, LONG as u64));
            false
        }) {
            rt::sleep(Duration::from_millis(10)).await;
        }
    })
    .unwrap();
}

#[test]
fn slow_readers_do_not_keep_all_pipes() {
    Cores::block_on(async {
        let (pool, bytes) = (Pool::new(), Rc::<[u8]>::from(pattern(LEN)));
        let (mut applications, mut sent) = (Vec::new(), Vec::new());
        for _ in 0..RELAYS {
            let (application, target) = joined(&pool, &Rc::default()).await;
            applications.push(application);
            sent.push(send(target, &bytes));
        }
        stalled(&sent).await;
        assert!(pool.take_pipe().is_some(), "{} of {RELAYS} keep a pipe", pool.lent_pipes());
        for application in &applications {
            receive(application, &bytes).await;
        }
        assert_eq!(pool.lent_pipes(), 0);
    })
    .unwrap();
}

#[test]
fn a_reset_ends_what_a_pipe_carries() {
    Cores::block_on(async {
        let (pool, bytes) = (Pool::new(), Rc::<[u8]>::from(pattern(LEN)));
        let outcome = Rc::<Cell<Option<RelayOutcome>>>::default();
        let (application, target) = joined(&pool, &outcome).await;
        let sent = send(target, &bytes);
        stalled(std::slice::from_ref(&sent)).await;
        application.abort_on_close();
        drop(application);
        let reason = loop {
            match outcome.take() {
                Some(outcome) => break outcome.reason,
                None => rt::sleep(Duration::from_millis(10)).await,
            }
        };
        assert!(matches!(reason, EndReason::Socket(Side::Near, _)), "{reason:?}");
        assert_eq!(pool.lent_pipes(), 0);
    })
    .unwrap();
}
