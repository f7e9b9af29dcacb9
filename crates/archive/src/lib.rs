//! Files as a tar stream: [`pack`] writes one, [`unpack`] reads one.
//!
//! Both run inside and outside of boxes, and work with descriptors. A directory is entered one
//! name at a time, with `O_NOFOLLOW`: a name without a slash that is neither a symlink nor `..`
//! leads beneath its directory and nowhere else. `openat2` could do this in one call, but a box
//! with a writable volume may not call it (`engine/src/create/seccomp`).
//!
//! An archive has regular files, directories, symlinks (never followed), permission bits, and
//! modification times in seconds. It has no owners, set-id bits or extended attributes. A hard
//! link is packed as a copy. A socket, a fifo or a device is left out, and an error at the end names
//! it, so that nothing is missing unnoticed.
//!
//! Memory does not grow with the size of the files. Only the names in the directories of the walk
//! (`pack`) and a few bytes for each directory on the current path (`unpack`) are kept.
//!
//! ```text
//! pack   ── directory_stack ── writer ── pax, header
//! unpack ── directory_stack ── reader ── pax, header
//! ```

mod directory_stack;
mod error;
mod header;
mod pack;
mod pax;
mod reader;
mod unpack;
mod writer;

use std::io::{self, Read};

pub use error::{Error, ErrorKind};
pub use pack::{pack, pack_files};
pub use reader::{Entry, Kind, Reader};
pub use unpack::{Options, Summary, Top, unpack};
pub use writer::Writer;

/// How much of a file is in memory at a time.
const BUFFER_BYTES: usize = 64 << 10;

/// The longest extended header, with one path and one link target. This is a path of thousands of
/// directories, and the limit of libarchive.
const EXTENDED_BYTES_MAX: u64 = 1 << 20;

/// Reads until the buffer is full or the input is at its end. Returns how much was read.
pub fn read_full(input: &mut dyn Read, buffer: &mut [u8]) -> io::Result<usize> {
    let mut count = 0;
    while count < buffer.len() {
        match input.read(&mut buffer[count..]) {
            Ok(0) => break,
            Ok(more) => count += more,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(count)
}
