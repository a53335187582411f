//! The counting allocator, installed.

use std::hint::black_box;
use std::thread;

use adit_sys::CountingAlloc;
use adit_sys::alloc::{allocated_bytes, allocations, total_allocations};

#[global_allocator]
static ALLOC: CountingAlloc = CountingAlloc;

#[test]
fn counts_this_thread_only() {
    let (calls, bytes) = (allocations(), allocated_bytes());
    let mut block = black_box(Vec::<u8>::with_capacity(100));
    assert_eq!((allocations() - calls, allocated_bytes() - bytes), (1, 100));

    block.extend_from_slice(&[0; 100]);
    assert_eq!(allocations() - calls, 1, "filling reserved room does not allocate");
    block.reserve_exact(400);
    assert_eq!((allocations() - calls, allocated_bytes() - bytes), (2, 600));

    let total = total_allocations();
    let elsewhere = thread::spawn(|| {
        let before = allocations();
        for _ in 0..1000 {
            black_box(Box::new(0u64));
        }
        allocations() - before
    });
    assert_eq!(elsewhere.join().unwrap(), 1000);
    assert!(total_allocations() - total >= 1000, "but among all");
    assert!(allocations() - calls < 1000, "another thread's calls are not counted here");
}
