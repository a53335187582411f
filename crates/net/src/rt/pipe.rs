use std::cell::RefCell;
use std::io;
use std::rc::Rc;

use super::Pool;

/// Room of a pipe in bytes. One slot of 4,096 holds one piece of a received segment, be it long or short: with pieces of
/// 1,448 bytes, as network cards make them, it is one read of 256 KiB and more.
#[cfg(target_os = "linux")]
const ROOM: usize = 1024 * 1024;
/// Pipes that one core may have out at the same time. Each takes two descriptors, and a slow reader keeps one.
const MOST: usize = 32;

/// A way for bytes from one TCP socket to another without a copy through this process; Linux alone has it. Goes back to its
/// pool when dropped, if nothing is left in it.
#[derive(Debug)]
pub struct Pipe {
    #[cfg(target_os = "linux")]
    pub(super) ends: Option<adit_sys::pipe::Pipe>,
    pub(super) held: usize,
    home: Rc<RefCell<PipePool>>,
}

/// The pipes of one core.
#[derive(Debug, Default)]
pub(super) struct PipePool {
    #[cfg(target_os = "linux")]
    idle: Vec<adit_sys::pipe::Pipe>,
    lent: usize,
    /// Fewest idle pipes since the last [`PipePool::trim`].
    #[cfg(target_os = "linux")]
    spare: usize,
}

impl PipePool {
    /// Closes the pipes that nobody has needed since the last call.
    pub(super) fn trim(&mut self) {
        #[cfg(target_os = "linux")]
        {
            self.idle.drain(..self.spare.min(self.idle.len()));
            self.spare = self.idle.len();
        }
    }
}

impl Pipe {
    /// Bytes that are in the pipe.
    pub fn held(&self) -> usize {
        self.held
    }

    /// Moves up to `into.len()` bytes of the pipe to memory.
    ///
    /// # Errors
    /// As read(2).
    pub fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        #[cfg(target_os = "linux")]
        if let Some(ends) = &self.ends {
            let len = ends.read(into)?;
            self.held = self.held.saturating_sub(len);
            return Ok(len);
        }
        let _ = into;
        Err(io::ErrorKind::Unsupported.into())
    }
}

impl Drop for Pipe {
    fn drop(&mut self) {
        let mut rack = self.home.borrow_mut();
        rack.lent -= 1;
        #[cfg(target_os = "linux")]
        if let Some(ends) = self.ends.take().filter(|_| self.held == 0) {
            rack.idle.push(ends);
        }
    }
}

impl Pool {
    /// An empty pipe; `None` when too many are out, when the process has no descriptor left, or on systems without.
    pub fn take_pipe(&self) -> Option<Pipe> {
        #[cfg_attr(not(target_os = "linux"), expect(unused_mut, reason = "there are no pipes to lend"))]
        let mut rack = self.rack.borrow_mut();
        if rack.lent >= MOST {
            return None;
        }
        #[cfg(target_os = "linux")]
        {
            let ends = match rack.idle.pop() {
                Some(ends) => ends,
                None => adit_sys::pipe::Pipe::new(ROOM).ok()?,
            };
            rack.lent += 1;
            rack.spare = rack.spare.min(rack.idle.len());
            Some(Pipe { ends: Some(ends), held: 0, home: self.rack.clone() })
        }
        #[cfg(not(target_os = "linux"))]
        None
    }

    /// Whether so many pipes are out that none should be kept by a slow reader.
    pub fn are_pipes_scarce(&self) -> bool {
        self.rack.borrow().lent > MOST / 2
    }

    /// Pipes that are out.
    pub fn lent_pipes(&self) -> usize {
        self.rack.borrow().lent
    }
}

#[cfg(all(test, target_os = "linux"))]
mod tests {
    use super::*;

    #[test]
    fn pipes_are_bounded_and_come_back() {
        let pool = Pool::new();
        let mut lent: Vec<_> = std::iter::from_fn(|| pool.take_pipe()).collect();
        assert_eq!((lent.len(), pool.are_pipes_scarce()), (MOST, true));
        // Bytes of one connection never reach another: such a pipe is closed.
        lent[0].held = 1;
        drop(lent);
        assert_eq!((pool.lent_pipes(), pool.rack.borrow().idle.len()), (0, MOST - 1));
        pool.trim();
        let busy: Vec<_> = (0..3).filter_map(|_| pool.take_pipe()).collect();
        drop(busy);
        pool.trim();
        assert_eq!(pool.rack.borrow().idle.len(), 3, "three were needed");
        pool.trim();
        assert_eq!(pool.rack.borrow().idle.len(), 0);
    }
}
