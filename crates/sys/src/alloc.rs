//! A global allocator that counts, per thread and in all, for tests and benches which assert that a path does not
//! allocate; a way to give free heap back, and one to keep large blocks out of it.

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

/// From this length on, a block has pages of its own. Blocks of relays have 296 KiB.
#[cfg(all(target_os = "linux", target_env = "gnu"))]
const LARGE: libc::c_int = 256 * 1024;

/// Keeps blocks of 256 KiB and more out of the heap for good. glibc puts them into the heap once one of them was freed:
/// small blocks then settle in the gaps between them, the next large one finds no place, and the heap grows for hours.
/// Does nothing where the C library is not glibc.
pub fn keep_large_blocks_apart() {
    #[cfg(all(target_os = "linux", target_env = "gnu"))]
    {
        // SAFETY: takes no pointers, and the setting is one of glibc's own.
        let done = unsafe { libc::mallopt(libc::M_MMAP_THRESHOLD, LARGE) };
        debug_assert_eq!(done, 1, "the length is within glibc's bounds");
    }
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

    #[cfg(all(target_os = "linux", target_env = "gnu"))]
    #[test]
    fn large_blocks_stay_apart() {
        keep_large_blocks_apart();
        // From here on glibc would put a block of the length below into the heap.
        drop(std::hint::black_box(vec![1_u8; 4 << 20]));
        let blocks: Vec<Vec<u8>> = (0..8).map(|_| std::hint::black_box(vec![1; 296 * 1024])).collect();
        // A block with pages of its own begins behind its header, at the front of a page.
        let places: Vec<usize> = blocks.iter().map(|block| block.as_ptr().addr() % 4096).collect();
        assert_eq!(places, [2 * size_of::<usize>(); 8]);
    }

    #[test]
    fn trimming_is_harmless() {
        drop(vec![1u8; 1 << 20]);
        trim_heap();
        assert_eq!(vec![7u8; 3], [7, 7, 7]);
    }
}
