//! A global allocator that counts, per thread and in all, for tests and benches which assert that a path does not
//! allocate; and a way to give free heap back.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::sync::atomic::{AtomicU64, Ordering};

/// The system allocator with counters. A test or bench installs it with
/// `#[global_allocator] static A: CountingAlloc = CountingAlloc;` and reads [`allocations`].
#[derive(Debug, Clone, Copy, Default)]
pub struct CountingAlloc;

/// Number of blocks that this thread has allocated or grown since it began; 0 unless [`CountingAlloc`] is installed.
pub fn allocations() -> u64 {
    CALLS.try_with(Cell::get).unwrap_or(0)
}

/// The same for all threads together: what runs on threads of its own cannot be asked otherwise.
pub fn total_allocations() -> u64 {
    TOTAL.load(Ordering::Relaxed)
}

/// Number of bytes that this thread's calls asked for in total, frees not deducted.
pub fn allocated_bytes() -> u64 {
    BYTES.try_with(Cell::get).unwrap_or(0)
}

/// Number of bytes that this thread has asked for and not freed; blocks that it has freed for others count against it.
pub fn live_bytes() -> i64 {
    let freed = FREED.try_with(Cell::get).unwrap_or(0);
    allocated_bytes().wrapping_sub(freed).cast_signed()
}

/// Gives free heap back to the system and says whether there was any. Does nothing where the C library has no such
/// call (everywhere but glibc).
pub fn trim_heap() -> bool {
    #[cfg(all(target_os = "linux", target_env = "gnu"))]
    {
        // SAFETY: takes no pointers, and glibc documents it as callable from any thread.
        let trimmed = unsafe { libc::malloc_trim(0) };
        trimmed != 0
    }
    #[cfg(not(all(target_os = "linux", target_env = "gnu")))]
    false
}

// Constant initialisers of types without a destructor: reading them never allocates.
thread_local! {
    static CALLS: Cell<u64> = const { Cell::new(0) };
    static BYTES: Cell<u64> = const { Cell::new(0) };
    static FREED: Cell<u64> = const { Cell::new(0) };
}

static TOTAL: AtomicU64 = AtomicU64::new(0);

fn count(bytes: usize) {
    TOTAL.fetch_add(1, Ordering::Relaxed);
    // Fails only while the thread is being torn down, where nobody is left to read the counter.
    let _gone = CALLS.try_with(|calls| calls.set(calls.get() + 1));
    let _gone = BYTES.try_with(|total| total.set(total.get() + bytes as u64));
}

fn count_freed(bytes: usize) {
    let _gone = FREED.try_with(|total| total.set(total.get() + bytes as u64));
}

// SAFETY: every call goes to `System` with the caller's arguments; the counters neither allocate nor unwind.
unsafe impl GlobalAlloc for CountingAlloc {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        count(layout.size());
        // SAFETY: the caller upholds the contract of `alloc`.
        unsafe { System.alloc(layout) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        count(layout.size());
        // SAFETY: the caller upholds the contract of `alloc_zeroed`.
        unsafe { System.alloc_zeroed(layout) }
    }

    unsafe fn realloc(&self, block: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        count(size);
        count_freed(layout.size());
        // SAFETY: the caller upholds the contract of `realloc`, and all blocks came from `System`.
        unsafe { System.realloc(block, layout, size) }
    }

    unsafe fn dealloc(&self, block: *mut u8, layout: Layout) {
        count_freed(layout.size());
        // SAFETY: the caller upholds the contract of `dealloc`, and all blocks came from `System`.
        unsafe { System.dealloc(block, layout) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn trimming_is_harmless() {
        drop(vec![1u8; 1 << 20]);
        trim_heap();
        assert_eq!(vec![7u8; 3], [7, 7, 7]);
    }
}
