//! Memory of this process: dlmalloc's, because musl's own allocator asks the
//! kernel for pages at every turn. Large blocks are the kernel's own, so that
//! nothing is left of them when they are freed.
#![allow(unsafe_code)]

use std::alloc::{GlobalAlloc, Layout};
use std::ptr;
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};

use dlmalloc::Dlmalloc;

/// For `#[global_allocator]`.
#[derive(Debug)]
pub struct Allocator;

static SMALL: Mutex<Dlmalloc> = Mutex::new(Dlmalloc::new());

/// What is said, and the exit code, when there is no memory any more.
static LAST_WORDS: OnceLock<(&'static str, i32)> = OnceLock::new();

/// From now on, when not even a small block is to be had, this process writes `line`
/// to standard error and exits with `code`. Otherwise the language ends it, in words
/// of its own and with a signal. A large block that is refused is an ordinary error.
pub fn exhausted_means(line: &'static str, code: i32) {
    // Who came first has said it.
    LAST_WORDS.set((line, code)).ok();
}

fn or_last_words(block: *mut u8) -> *mut u8 {
    if let (true, Some((line, code))) = (block.is_null(), LAST_WORDS.get()) {
        // SAFETY: the line lives for ever and has this length.
        unsafe { libc::write(2, line.as_ptr().cast(), line.len()) };
        // SAFETY: it ends this process, whatever its state; nothing of it runs then.
        unsafe { libc::_exit(*code) };
    }
    block
}

/// From here on a block is a mapping of its own, as with other allocators.
pub const LARGE_BYTES: usize = 128 << 10;
/// A mapping is aligned to this at least.
const PAGE_BYTES: usize = 4096;

/// Nothing panics while it is held; if something did, it would abort.
fn small() -> MutexGuard<'static, Dlmalloc> {
    SMALL.lock().unwrap_or_else(PoisonError::into_inner)
}

fn is_large(layout: Layout) -> bool {
    layout.size() >= LARGE_BYTES && layout.align() <= PAGE_BYTES
}

// SAFETY: dlmalloc and the kernel keep what `GlobalAlloc` asks for: blocks of the
// size and alignment that was wanted, each live until it is freed. Which of them
// has a block its layout tells. The lock makes every change of a list one step.
unsafe impl GlobalAlloc for Allocator {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        match is_large(layout) {
            true => map(layout.size()),
            // SAFETY: any size and alignment of a layout is a valid wish.
            false => or_last_words(unsafe { small().malloc(layout.size(), layout.align()) }),
        }
    }

    unsafe fn dealloc(&self, block: *mut u8, layout: Layout) {
        match is_large(layout) {
            // SAFETY: the caller got the mapping from here, with this size.
            true => unsafe { unmap(block, layout.size()) },
            // SAFETY: the caller got the block from here, with this layout.
            false => unsafe { small().free(block, layout.size(), layout.align()) },
        }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        match is_large(layout) {
            // The kernel's pages are.
            true => map(layout.size()),
            // SAFETY: as for `alloc`.
            false => or_last_words(unsafe { small().calloc(layout.size(), layout.align()) }),
        }
    }

    unsafe fn realloc(&self, block: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        // SAFETY: the caller vouches for a size that makes a layout.
        let wanted = unsafe { Layout::from_size_align_unchecked(size, layout.align()) };
        match (is_large(layout), is_large(wanted)) {
            // SAFETY: as for `dealloc`.
            (true, true) => unsafe { remap(block, layout.size(), size) },
            // SAFETY: as for `dealloc`.
            (false, false) => or_last_words(unsafe {
                small().realloc(block, layout.size(), layout.align(), size)
            }),
            // SAFETY: as for `dealloc`; both are layouts of ours.
            (true, false) | (false, true) => unsafe { self.move_to(block, layout, wanted) },
        }
    }
}

impl Allocator {
    /// # Safety
    /// The block is of this allocator, with this layout.
    unsafe fn move_to(&self, block: *mut u8, layout: Layout, wanted: Layout) -> *mut u8 {
        // SAFETY: a layout of ours.
        let new = unsafe { self.alloc(wanted) };
        if new.is_null() {
            return new;
        }
        let bytes = layout.size().min(wanted.size());
        // SAFETY: both blocks have so many bytes, and the new one is nobody else's.
        unsafe { ptr::copy_nonoverlapping(block, new, bytes) };
        // SAFETY: the caller vouches for it.
        unsafe { self.dealloc(block, layout) };
        new
    }
}

fn map(bytes: usize) -> *mut u8 {
    let protection = libc::PROT_READ | libc::PROT_WRITE;
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
    // SAFETY: a new mapping wherever there is room touches no other memory.
    let block = unsafe { libc::mmap(ptr::null_mut(), bytes, protection, flags, -1, 0) };
    or_null(block)
}

/// # Safety
/// The block is a mapping of this size.
unsafe fn remap(block: *mut u8, bytes: usize, wanted: usize) -> *mut u8 {
    // SAFETY: the caller vouches for it; whoever had the old place has the new.
    let block = unsafe { libc::mremap(block.cast(), bytes, wanted, libc::MREMAP_MAYMOVE) };
    or_null(block)
}

/// # Safety
/// The block is a mapping of this size, and nobody uses it again.
unsafe fn unmap(block: *mut u8, bytes: usize) {
    // SAFETY: the caller vouches for it.
    unsafe { libc::munmap(block.cast(), bytes) };
}

fn or_null(block: *mut libc::c_void) -> *mut u8 {
    if block == libc::MAP_FAILED { ptr::null_mut() } else { block.cast() }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Every way from one size to another keeps the bytes.
    #[test]
    fn a_block_keeps_its_bytes_as_it_grows_and_shrinks() {
        let sizes = [8, LARGE_BYTES - 1, LARGE_BYTES, 5 * LARGE_BYTES, 64, LARGE_BYTES + 1, 16];
        let layout = |size| Layout::from_size_align(size, 8).unwrap();
        // SAFETY: a layout with a size.
        let mut block = unsafe { Allocator.alloc_zeroed(layout(sizes[0])) };
        for (from, to) in sizes.iter().zip(&sizes[1..]) {
            // SAFETY: the block has at least eight bytes and this layout.
            unsafe { block.cast::<u64>().write(0x0123_4567_89ab_cdef) };
            // SAFETY: as above.
            block = unsafe { Allocator.realloc(block, layout(*from), *to) };
            // SAFETY: as above.
            assert_eq!(unsafe { block.cast::<u64>().read() }, 0x0123_4567_89ab_cdef);
        }
        // SAFETY: the last size.
        unsafe { Allocator.dealloc(block, layout(16)) };
    }
}
