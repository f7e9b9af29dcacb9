//! The allocator of this process. Small blocks come from dlmalloc, because musl's allocator
//! often asks the kernel for pages. A large block is a mapping of its own, which returns to
//! the kernel when it is freed.
#![allow(unsafe_code)]

use std::alloc::{GlobalAlloc, Layout};
use std::ptr;
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};

use dlmalloc::Dlmalloc;

/// For `#[global_allocator]`.
#[derive(Debug)]
pub struct Allocator;

static SMALL: Mutex<Dlmalloc> = Mutex::new(Dlmalloc::new());

/// The message and the exit code for the end of memory.
static LAST_WORDS: OnceLock<(&'static str, i32)> = OnceLock::new();

/// From now on, this process writes `line` to standard error and exits with `code` if it cannot
/// get a small block. By default, Rust aborts with a message of its own. A large block that
/// cannot be had is an ordinary error.
pub fn exhausted_means(line: &'static str, code: i32) {
    // The first call wins.
    LAST_WORDS.set((line, code)).ok();
}

fn or_last_words(block: *mut u8) -> *mut u8 {
    if let (true, Some((line, code))) = (block.is_null(), LAST_WORDS.get()) {
        // SAFETY: write(2) reads `len` bytes at the pointer: the line is static and that long.
        unsafe { libc::write(2, line.as_ptr().cast(), line.len()) };
        // SAFETY: _exit(2) takes a number; nothing of this process runs afterwards.
        unsafe { libc::_exit(*code) };
    }
    block
}

/// A block of this size or more is a mapping of its own, as with other allocators.
pub const LARGE_BYTES: usize = 128 << 10;
/// Every mapping is aligned to this.
const PAGE_BYTES: usize = 4096;

/// Nothing panics while the lock is held.
fn small() -> MutexGuard<'static, Dlmalloc> {
    SMALL.lock().unwrap_or_else(PoisonError::into_inner)
}

fn is_large(layout: Layout) -> bool {
    layout.size() >= LARGE_BYTES && layout.align() <= PAGE_BYTES
}

// SAFETY: `GlobalAlloc` needs blocks of the requested size and alignment that stay valid until
// they are freed. Both dlmalloc and mmap give such blocks, and the layout of a block tells which
// of them it came from. The lock serialises all calls of dlmalloc.
unsafe impl GlobalAlloc for Allocator {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        if is_large(layout) {
            map(layout.size())
        } else {
            // SAFETY: malloc needs an alignment that is a power of two: every layout has one.
            or_last_words(unsafe { small().malloc(layout.size(), layout.align()) })
        }
    }

    unsafe fn dealloc(&self, block: *mut u8, layout: Layout) {
        if is_large(layout) {
            // SAFETY: unmap needs a mapping of this size: the caller got it from `alloc`.
            unsafe { unmap(block, layout.size()) }
        } else {
            // SAFETY: free needs a block of dlmalloc with this layout: the caller got it from
            // `alloc`.
            unsafe { small().free(block, layout.size(), layout.align()) }
        }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        if is_large(layout) {
            // New pages of the kernel are zero.
            map(layout.size())
        } else {
            // SAFETY: calloc needs what malloc needs in `alloc`.
            or_last_words(unsafe { small().calloc(layout.size(), layout.align()) })
        }
    }

    unsafe fn realloc(&self, block: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        // SAFETY: from_size_align_unchecked needs a size that is valid for this alignment: the caller
        // of `realloc` promises it.
        let wanted = unsafe { Layout::from_size_align_unchecked(size, layout.align()) };
        match (is_large(layout), is_large(wanted)) {
            // SAFETY: remap needs a mapping of this size: `block` is one, because its layout is large.
            (true, true) => unsafe { remap(block, layout.size(), size) },
            // SAFETY: dlmalloc's realloc needs a block of dlmalloc with this layout: `block` is one,
            // because its layout is not large.
            (false, false) => or_last_words(unsafe {
                small().realloc(block, layout.size(), layout.align(), size)
            }),
            // SAFETY: move_to needs a block of this allocator with this layout, as in `dealloc`.
            (true, false) | (false, true) => unsafe { self.move_to(block, layout, wanted) },
        }
    }
}

impl Allocator {
    /// # Safety
    /// The block must come from this allocator, with this layout.
    unsafe fn move_to(&self, block: *mut u8, layout: Layout, wanted: Layout) -> *mut u8 {
        // SAFETY: alloc needs a layout of at least one byte: the caller of `realloc` promises it.
        let new = unsafe { self.alloc(wanted) };
        if new.is_null() {
            return new;
        }
        let bytes = layout.size().min(wanted.size());
        // SAFETY: both blocks have `bytes` bytes, and the new one overlaps no other.
        unsafe { ptr::copy_nonoverlapping(block, new, bytes) };
        // SAFETY: dealloc needs a block of this allocator with this layout: the caller promises it.
        unsafe { self.dealloc(block, layout) };
        new
    }
}

fn map(bytes: usize) -> *mut u8 {
    let protection = libc::PROT_READ | libc::PROT_WRITE;
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
    // SAFETY: mmap without MAP_FIXED changes no existing mapping.
    let block = unsafe { libc::mmap(ptr::null_mut(), bytes, protection, flags, -1, 0) };
    or_null(block)
}

/// # Safety
/// The block must be a mapping of `bytes` bytes.
unsafe fn remap(block: *mut u8, bytes: usize, wanted: usize) -> *mut u8 {
    // SAFETY: mremap needs a mapping of this size, which it may move: the caller owns it, and
    // uses the new address.
    let block = unsafe { libc::mremap(block.cast(), bytes, wanted, libc::MREMAP_MAYMOVE) };
    or_null(block)
}

/// # Safety
/// The block must be a mapping of `bytes` bytes that is not used again.
unsafe fn unmap(block: *mut u8, bytes: usize) {
    // SAFETY: munmap needs a mapping that is not used again: the caller promises it.
    unsafe { libc::munmap(block.cast(), bytes) };
}

fn or_null(block: *mut libc::c_void) -> *mut u8 {
    if block == libc::MAP_FAILED { ptr::null_mut() } else { block.cast() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_block_keeps_its_bytes_as_it_grows_and_shrinks() {
        let sizes = [8, LARGE_BYTES - 1, LARGE_BYTES, 5 * LARGE_BYTES, 64, LARGE_BYTES + 1, 16];
        let layout = |size| Layout::from_size_align(size, 8).unwrap();
        // SAFETY: alloc_zeroed needs a layout with a size: it has 8 bytes.
        let mut block = unsafe { Allocator.alloc_zeroed(layout(sizes[0])) };
        for (from, to) in sizes.iter().zip(&sizes[1..]) {
            // SAFETY: the write needs eight aligned bytes: the block has at least these.
            unsafe { block.cast::<u64>().write(0x0123_4567_89ab_cdef) };
            // SAFETY: realloc needs a block with this layout: the last round made it so.
            block = unsafe { Allocator.realloc(block, layout(*from), *to) };
            // SAFETY: the read needs eight aligned bytes, as the write above.
            assert_eq!(unsafe { block.cast::<u64>().read() }, 0x0123_4567_89ab_cdef);
        }
        // SAFETY: dealloc needs the last layout of the block: 16 is the last size.
        unsafe { Allocator.dealloc(block, layout(16)) };
    }
}
