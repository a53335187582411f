//! Pages of the program's code.

use std::ffi::{c_int, c_void};

/// Gives up the pages of code that are mapped now, of the program and of its libraries: what is still run comes back
/// from the page cache at its next use, what was run at the start alone does not. Nothing is lost, for code is never
/// written to. Returns the bytes of code that were looked at; 0 where the system has no such call.
pub fn forget_code() -> usize {
    #[cfg(target_os = "linux")]
    {
        let mut len = 0_usize;
        // SAFETY: `visit` has the signature that is asked for, and `len` outlives the call, which uses it alone.
        unsafe { libc::dl_iterate_phdr(Some(visit), (&raw mut len).cast()) };
        len
    }
    #[cfg(not(target_os = "linux"))]
    0
}

/// Called by the loader for each object.
#[cfg(target_os = "linux")]
unsafe extern "C" fn visit(info: *mut libc::dl_phdr_info, _: libc::size_t, len: *mut c_void) -> c_int {
    // SAFETY: the loader passes a valid description that outlives this call.
    let info = unsafe { &*info };
    let count = usize::from(info.dlpi_phnum);
    // SAFETY: the description has `dlpi_phnum` headers at `dlpi_phdr`.
    let headers = unsafe { std::slice::from_raw_parts(info.dlpi_phdr, count) };
    let code = headers.iter().filter(|header| {
        header.p_type == libc::PT_LOAD && header.p_flags & (libc::PF_X | libc::PF_W) == libc::PF_X
    });
    for header in code {
        let (Ok(base), Ok(at), Ok(size)) = (
            usize::try_from(info.dlpi_addr),
            usize::try_from(header.p_vaddr),
            usize::try_from(header.p_memsz),
        ) else {
            continue;
        };
        // Whole pages within the segment: its ends may share a page with something else.
        let start = base.wrapping_add(at).next_multiple_of(PAGE);
        let end = base.wrapping_add(at).wrapping_add(size) / PAGE * PAGE;
        if start < end && forget(start, end - start) {
            // SAFETY: what `forget_code` passes is its own counter.
            unsafe { *len.cast::<usize>() += end - start };
        }
    }
    0
}

/// The largest page of the systems that this runs on, so that a range of such pages is one of pages.
#[cfg(target_os = "linux")]
const PAGE: usize = 65_536;

#[cfg(target_os = "linux")]
fn forget(start: usize, len: usize) -> bool {
    let pages = std::ptr::with_exposed_provenance_mut::<c_void>(start);
    // SAFETY: the range lies within a loaded segment that is executable and not writable. Its pages are those of the
    // file, so the kernel brings back the same bytes at the next use.
    unsafe { libc::madvise(pages, len, libc::MADV_DONTNEED) == 0 }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn code_runs_on_after_it_was_forgotten() {
        for _ in 0..3 {
            let forgotten = forget_code();
            assert!(forgotten > 0 || cfg!(not(target_os = "linux")));
            assert_eq!(format!("{:?}", "7".parse::<u8>()), "Ok(7)");
        }
    }
}
