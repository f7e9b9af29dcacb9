//! Files as a tar stream: [`pack`] writes one, [`unpack`] takes one apart.
//!
//! Both run on either side of a box's wall, and both hold what they touch by
//! descriptors. A directory is entered one name at a time, with `O_NOFOLLOW`: a
//! name without a slash that is neither a symlink nor `..` leads beneath its
//! directory and nowhere else. `openat2` would say the same in one call, but a
//! box with a writable volume does not have it (`engine/src/create/seccomp`).
//!
//! What is carried: regular files, directories, symlinks (as they are, never
//! followed), permission bits and modification times in seconds. What is not:
//! owners, set-id bits, extended attributes; a hard link is packed as a copy.
//! Sockets, fifos and devices end the work with an error that names them, so
//! that nothing is left out in silence.
//!
//! Memory does not grow with the files. What does grow is small: the names of
//! the directories that are being walked (`pack`), and a few bytes for each
//! directory on the path of the current entry (`unpack`).
//!
//! ```text
//! pack   ── descent (where the walk is) ── writer ── pax, header
//! unpack ── descent (where entries go)  ── reader ── pax, header
//!            name (what an entry may be called)
//! ```

mod descent;
mod error;
mod header;
mod name;
mod pack;
mod pax;
mod reader;
mod unpack;
mod writer;

pub use error::{Error, ErrorKind};
pub use pack::{pack, pack_files};
pub use reader::{Entry, Kind, Reader};
pub use unpack::{Options, Summary, Top, unpack};
pub use writer::Writer;

/// How much of a file is held in memory at a time.
const BUFFER_BYTES: usize = 64 << 10;

/// An extended header holds one path and one link target; this is a path of
/// thousands of directories, and what libarchive allows as well.
const EXTENDED_BYTES_MAX: u64 = 1 << 20;
