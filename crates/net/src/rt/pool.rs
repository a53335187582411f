use std::cell::RefCell;
use std::ops::Range;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll, Waker};

use adit_proto::buf::RecvBuf;

use super::pipe::PipePool;

/// Payload bytes that one read may bring. 64 KiB costs 9 to 23 % more CPU per byte at bulk.
const READ_LEN: usize = 256 * 1024;
/// Length of a chunk's block: one read behind the longest partial unit, with room for what layers add.
pub const CHUNK_LEN: usize = READ_LEN + 40 * 1024;
/// Bytes that one read brings while chunks are scarce.
const SCARCE_READ_LEN: usize = 32 * 1024;
/// Bytes that one read brings while rests hold most of the memory that they may. Frames and their padding still fit.
const TIGHT_READ_LEN: usize = 8 * 1024;
/// Small vectors that a pool keeps: as many connections as are likely to be busy on one core at a time.
const KEPT_SMALL: usize = 128;
/// Small vectors above this capacity are not kept.
const SMALL_LEN: usize = 128 * 1024;
/// Chunks that may be out at the same time on one core, at most: 74 MiB. And at least, even with little memory.
const CEILING: usize = 256;
const FLOOR: usize = 4;

/// The memory of bytes that wait for slow readers, for all cores: rests of blocked writes, parts of cut frames.
/// A holder of such bytes counts them here.
#[derive(Debug)]
pub struct Buffers {
    most: usize,
    used: AtomicUsize,
    peak: AtomicUsize,
}

impl Buffers {
    /// An account for at most `most` bytes. It refuses nothing: from a half on, reads get smaller.
    pub const fn new(most: usize) -> Self {
        Self { most, used: AtomicUsize::new(0), peak: AtomicUsize::new(0) }
    }

    /// Somebody keeps `now` bytes in the place of `before`.
    pub fn change(&self, before: usize, now: usize) {
        if now > before {
            let used = self.used.fetch_add(now - before, Ordering::Relaxed) + (now - before);
            if used > self.peak.load(Ordering::Relaxed) {
                self.peak.fetch_max(used, Ordering::Relaxed);
            }
        } else if now < before {
            self.used.fetch_sub(before - now, Ordering::Relaxed);
        }
    }

    /// Bytes that are kept.
    pub fn used(&self) -> usize {
        self.used.load(Ordering::Relaxed)
    }

    /// The most that they ever were.
    pub fn peak(&self) -> usize {
        self.peak.load(Ordering::Relaxed)
    }

    /// Whether more than half is used: reads bring less.
    fn is_tight(&self) -> bool {
        self.used() > self.most / 2
    }

    /// The bytes that have to be given back, if more than three quarters are used: what is above a half.
    pub fn wanted_back(&self) -> Option<usize> {
        let used = self.used();
        (used > self.most - self.most / 4).then(|| used - self.most / 2)
    }

    /// Whether nearly all is used.
    pub fn is_exhausted(&self) -> bool {
        self.used() > self.most - self.most / 16
    }
}

/// A block of [`CHUNK_LEN`] bytes, with the list of what is to be sent from it. Goes back to its pool when dropped.
#[derive(Debug)]
pub struct Chunk {
    /// The bytes; a fresh chunk's buffer is empty.
    pub buf: RecvBuf,
    /// Parts of the block that wait to be sent, in order.
    pub out: Vec<Range<usize>>,
    home: Rc<RefCell<Shelf>>,
}

impl Chunk {
    /// Appends a part to be sent; parts that touch become one.
    pub fn push_out(&mut self, part: Range<usize>) {
        if part.is_empty() {
            return;
        }
        match self.out.last_mut() {
            Some(last) if last.end == part.start => last.end = part.end,
            _ => self.out.push(part),
        }
    }
}

impl Drop for Chunk {
    fn drop(&mut self) {
        let mut shelf = self.home.borrow_mut();
        shelf.lent -= 1;
        self.buf.reset();
        self.out.clear();
        shelf.idle.push((std::mem::take(&mut self.buf), std::mem::take(&mut self.out)));
        let waiting = std::mem::take(&mut shelf.waiting);
        drop(shelf);
        waiting.into_iter().for_each(Waker::wake);
    }
}

/// The chunks of one core: last in, first out, so that one warm block serves connection after connection.
#[derive(Debug, Clone)]
pub struct Pool {
    shelf: Rc<RefCell<Shelf>>,
    pub(super) rack: Rc<RefCell<PipePool>>,
    buffers: Arc<Buffers>,
    ceiling: usize,
}

impl Default for Pool {
    /// One that no budget bounds.
    fn default() -> Self {
        Self::bounded(usize::MAX, Arc::new(Buffers::new(usize::MAX)))
    }
}

#[derive(Debug, Default)]
struct Shelf {
    idle: Vec<(RecvBuf, Vec<Range<usize>>)>,
    lent: usize,
    /// Fewest idle blocks since the last [`Pool::trim`]: so many were not needed.
    spare: usize,
    small: Vec<Vec<u8>>,
    waiting: Vec<Waker>,
}

impl Pool {
    /// An empty pool; blocks are made when they are asked for.
    pub fn new() -> Self {
        Self::default()
    }

    /// The same, with blocks of `len` bytes together at most (a few are always had), beside what `buffers` counts.
    pub fn bounded(len: usize, buffers: Arc<Buffers>) -> Self {
        let ceiling = (len / CHUNK_LEN).clamp(FLOOR, CEILING);
        Self { shelf: Rc::default(), rack: Rc::default(), buffers, ceiling }
    }

    /// The account of bytes that wait for slow readers.
    pub fn buffers(&self) -> &Buffers {
        &self.buffers
    }

    /// A chunk, or `None` while the core's ceiling is reached.
    pub fn take(&self) -> Option<Chunk> {
        let mut shelf = self.shelf.borrow_mut();
        if shelf.lent >= self.ceiling {
            return None;
        }
        shelf.lent += 1;
        let (buf, out) =
            shelf.idle.pop().unwrap_or_else(|| (RecvBuf::with_len(CHUNK_LEN), Vec::with_capacity(64)));
        shelf.spare = shelf.spare.min(shelf.idle.len());
        drop(shelf);
        Some(Chunk { buf, out, home: self.shelf.clone() })
    }

    /// Bytes that one read should bring at most: all that a chunk holds, or no more than a slow peer may pin
    /// while chunks are scarce.
    pub fn read_len(&self) -> usize {
        if self.buffers.is_tight() {
            TIGHT_READ_LEN
        } else if self.is_scarce() {
            SCARCE_READ_LEN
        } else {
            usize::MAX
        }
    }

    /// An empty vector for a few kilobytes that outlive their chunk; give it back with [`Pool::put_small`].
    pub fn take_small(&self) -> Vec<u8> {
        self.shelf.borrow_mut().small.pop().unwrap_or_default()
    }

    /// Takes a vector back for its next user.
    pub fn put_small(&self, mut small: Vec<u8>) {
        let mut shelf = self.shelf.borrow_mut();
        let kept = KEPT_SMALL.min(self.ceiling / 2);
        if (1..=SMALL_LEN).contains(&small.capacity()) && shelf.small.len() < kept {
            small.clear();
            shelf.small.push(small);
        }
    }

    /// Gives back the blocks and pipes that nobody has needed since the last call. A busy core keeps what it works with, so
    /// that bytes in flight cost no allocation; a quiet one keeps a single block.
    pub fn trim(&self) {
        self.rack.borrow_mut().trim();
        let mut shelf = self.shelf.borrow_mut();
        let surplus = shelf.spare.min(shelf.idle.len().saturating_sub(1));
        // The ones at the bottom have been idle for longest.
        let freed: Vec<_> = shelf.idle.drain(..surplus).collect();
        shelf.spare = shelf.idle.len();
        if shelf.lent == 0 {
            shelf.small.clear();
        }
        drop(shelf);
        drop(freed);
    }

    /// Whether so many chunks are out that none should be pinned for long: at the ceiling a core stands still.
    pub fn is_scarce(&self) -> bool {
        self.shelf.borrow().lent > self.ceiling / 2 || self.buffers.is_tight()
    }

    /// Chunks that are out.
    pub fn lent(&self) -> usize {
        self.shelf.borrow().lent
    }
}

/// A chunk as soon as the core's ceiling allows.
pub fn poll_chunk(pool: &Pool, cx: &Context<'_>) -> Poll<Chunk> {
    match pool.take() {
        Some(chunk) => Poll::Ready(chunk),
        None => {
            pool.shelf.borrow_mut().waiting.push(cx.waker().clone());
            Poll::Pending
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_bounds_blocks_and_reads() {
        let buffers = Arc::new(Buffers::new(1000));
        let pool = Pool::bounded(10 * CHUNK_LEN, buffers.clone());
        let lent: Vec<_> = std::iter::from_fn(|| pool.take()).collect();
        assert_eq!(lent.len(), 10);
        drop(lent);
        assert_eq!((pool.read_len(), buffers.wanted_back()), (usize::MAX, None));
        buffers.change(0, 600);
        assert_eq!((pool.read_len(), pool.is_scarce()), (TIGHT_READ_LEN, true));
        assert_eq!(buffers.wanted_back(), None);
        buffers.change(600, 800);
        assert_eq!((buffers.wanted_back(), buffers.is_exhausted()), (Some(300), false));
        buffers.change(0, 200);
        assert!(buffers.is_exhausted());
        buffers.change(1000, 100);
        assert_eq!((buffers.used(), buffers.peak(), buffers.wanted_back()), (100, 1000, None));
        let few = Pool::bounded(0, buffers);
        assert_eq!(std::iter::from_fn(|| few.take()).take(100).collect::<Vec<_>>().len(), FLOOR);
    }

    #[test]
    fn chunks_come_back_and_are_bounded() {
        let pool = Pool::new();
        let mut lent: Vec<_> = std::iter::from_fn(|| pool.take()).collect();
        assert_eq!(lent.len(), CEILING);
        assert!(pool.is_scarce());
        let cx = Context::from_waker(Waker::noop());
        assert!(poll_chunk(&pool, &cx).is_pending());
        let mut chunk = lent.pop().unwrap();
        chunk.buf.extend(b"secret");
        chunk.push_out(0..3);
        chunk.push_out(3..6);
        assert_eq!((chunk.out.len(), chunk.out[0].clone()), (1, 0..6));
        drop(chunk);
        let Poll::Ready(chunk) = poll_chunk(&pool, &cx) else { panic!("a chunk is free") };
        assert!(chunk.buf.unread().is_empty() && chunk.out.is_empty());
        drop(chunk);
        drop(lent);
        assert!(!pool.is_scarce());
        assert_eq!((pool.lent(), pool.shelf.borrow().idle.len()), (0, CEILING));
        pool.trim();
        let busy: Vec<_> = std::iter::from_fn(|| pool.take()).take(3).collect();
        drop(busy);
        pool.trim();
        assert_eq!(pool.shelf.borrow().idle.len(), 3, "three were needed");
        pool.trim();
        assert_eq!(pool.shelf.borrow().idle.len(), 1);
    }
}
