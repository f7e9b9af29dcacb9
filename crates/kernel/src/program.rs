//! Recognises tare binaries of every version.
//!
//! Every tare binary has an ELF note (elf(5)) of the owner `tare`. Notes have a segment of
//! their own, so `strip` keeps them. The inode of the binary is no proof: an upgrade puts
//! another file in the place of the program that a running keeper was started from.
#![allow(unsafe_code)]

use std::io;
use std::os::fd::{AsFd, BorrowedFd};

use rustix::io::pread;

use crate::process::Process;

/// An ELF note: the sizes of owner and description, a type, the owner padded to four bytes.
#[repr(C, align(4))]
struct Note {
    owner_bytes: u32,
    description_bytes: u32,
    kind: u32,
    owner: [u8; 8],
}

const OWNER: [u8; 8] = *b"tare\0\0\0\0";

// SAFETY: a `.note` section may contain only notes, and this is one with the sizes that it
// states: five bytes of owner, padded to eight, and no description.
#[used]
#[unsafe(link_section = ".note.tare")]
static NOTE: Note = Note { owner_bytes: 5, description_bytes: 0, kind: 1, owner: OWNER };

/// Returns whether the process runs a tare binary. An error if the kernel does not show us its
/// program.
pub fn is_tare(process: &Process) -> io::Result<bool> {
    carries_note(process.open_program()?.as_fd())
}

/// No tare binary has more program headers. The limit bounds the work for other files.
const HEADERS_MAX: u16 = 64;
const NOTES_BYTES_MAX: u64 = 64 << 10;

const PT_NOTE: u32 = 4;
const ELF_64_LITTLE: &[u8] = b"\x7fELF\x02\x01";

fn carries_note(program: BorrowedFd<'_>) -> io::Result<bool> {
    let header: [u8; 64] = read_at(program, 0)?;
    if !header.starts_with(ELF_64_LITTLE) {
        return Ok(false);
    }
    let first = u64_at(&header, 0x20);
    let (size, count) = (u16_at(&header, 0x36), u16_at(&header, 0x38));
    for number in 0..count.min(HEADERS_MAX) {
        let at = first.saturating_add(u64::from(number) * u64::from(size));
        let segment: [u8; 56] = read_at(program, at)?;
        if u32_at(&segment, 0) == PT_NOTE {
            let (offset, bytes) = (u64_at(&segment, 0x08), u64_at(&segment, 0x20));
            let mut notes = vec![0; bytes.min(NOTES_BYTES_MAX) as usize];
            let length = pread(program, &mut notes, offset)?;
            if has_own_note(&notes[..length]) {
                return Ok(true);
            }
        }
    }
    Ok(false)
}

fn has_own_note(mut notes: &[u8]) -> bool {
    let padded = |bytes: u32| (bytes as usize).next_multiple_of(4);
    while notes.len() >= 12 {
        let (owner, description) = (u32_at(notes, 0), u32_at(notes, 4));
        let name = notes.get(12..).and_then(|rest| rest.get(..OWNER.len()));
        if owner == NOTE.owner_bytes && name == Some(&OWNER) {
            return true;
        }
        let next = 12 + padded(owner) + padded(description);
        notes = notes.get(next..).unwrap_or_default();
    }
    false
}

/// Returns zeros behind the end of the file.
fn read_at<const N: usize>(file: BorrowedFd<'_>, at: u64) -> io::Result<[u8; N]> {
    let mut bytes = [0; N];
    pread(file, &mut bytes, at)?;
    Ok(bytes)
}

fn u16_at(bytes: &[u8], at: usize) -> u16 {
    u16::from_le_bytes([bytes[at], bytes[at + 1]])
}

fn u32_at(bytes: &[u8], at: usize) -> u32 {
    u32::from(u16_at(bytes, at)) | u32::from(u16_at(bytes, at + 2)) << 16
}

fn u64_at(bytes: &[u8], at: usize) -> u64 {
    u64::from(u32_at(bytes, at)) | u64::from(u32_at(bytes, at + 4)) << 32
}

#[cfg(test)]
mod tests {
    use std::fs::File;

    use super::*;

    #[test]
    fn a_program_that_links_tare_carries_the_note_and_another_does_not() {
        let carries = |path: &str| carries_note(File::open(path).unwrap().as_fd()).unwrap();
        assert!(carries("/proc/self/exe"));
        assert!(!carries("/bin/sh"));
        assert!(!carries("/etc/passwd"));
    }

    #[test]
    fn a_note_is_found_behind_others_and_damaged_ones_end_the_search() {
        let other = [4, 0, 0, 0, 2, 0, 0, 0, 1, 0, 0, 0, b'G', b'N', b'U', 0, 7, 7, 0, 0];
        let own = [5, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0, b't', b'a', b'r', b'e', 0, 0, 0, 0];
        assert!(has_own_note(&[other, own].concat()));
        assert!(!has_own_note(&other));
        assert!(!has_own_note(&own[..16]));
        assert!(!has_own_note(&[0xff; 40]));
    }
}
