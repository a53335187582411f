//! Descriptors run out; a process of its own, since it lowers the limit for all of it.

#![cfg(target_os = "linux")]
#![allow(clippy::disallowed_methods, reason = "the clients of this test are plain ones")]

use std::fs::File;
use std::io::Read;
use std::net::TcpStream;
use std::os::fd::AsRawFd;
use std::time::{Duration, Instant};

use adit_net::accept::Acceptor;
use adit_net::listen::{ListenOptions, listen};
use adit_sys::process::{fd_limit, set_fd_limit};

#[tokio::test(flavor = "local")]
async fn a_shortage_of_descriptors_is_waited_out_and_then_shed() {
    let (listener, _) = listen("127.0.0.1:0".parse().unwrap(), &ListenOptions::default()).unwrap();
    let mut acceptor = Acceptor::new(listener);
    let addr = acceptor.local_addr().unwrap();
    let mut clients: Vec<TcpStream> = (0..3).map(|_| TcpStream::connect(addr).unwrap()).collect();

    let (soft, _) = fd_limit().unwrap();
    // The lowest free number: with the limit there, nothing can be opened.
    let full = u64::try_from(File::open("/dev/null").unwrap().as_raw_fd()).unwrap();
    set_fd_limit(full).unwrap();
    let start = Instant::now();
    let waited = tokio::time::timeout(Duration::from_millis(1500), acceptor.accept()).await;
    set_fd_limit(soft).unwrap();

    assert!(waited.is_err(), "nothing can be accepted");
    let counters = acceptor.counters();
    assert_eq!(counters.shed, 3, "{counters:?}");
    assert!((1..30).contains(&counters.exhausted), "pauses between attempts: {counters:?}");
    for client in &mut clients {
        assert_eq!(client.read(&mut [0]).unwrap(), 0, "closed");
    }
    assert!(start.elapsed() < Duration::from_secs(30));

    let _late = TcpStream::connect(addr).unwrap();
    acceptor.accept().await.unwrap();
    assert_eq!(acceptor.counters().accepted, 1);
}
