//! The native part of a template, which makes boxes and confines clones, and the orders that it
//! takes. It is a sealed file: no process can change what a template loads.

/// Compiled by `build.rs`. Here clippy checks it as it checks every other file.
#[cfg(clippy)]
mod native;
mod orders;

pub use orders::{BirthAnswer, BirthHead, BirthStep, ConfineHead, ResourceLimit};

use std::io::{self, Write};
use std::os::fd::OwnedFd;

use crate::memory_file;

/// The shared object of `native.rs`.
const NATIVE: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/template.so"));

/// Returns a file with the native part, which no process can change.
pub fn native() -> io::Result<OwnedFd> {
    let mut file = memory_file::make(c"template")?;
    file.write_all(NATIVE)?;
    memory_file::seal(&file)?;
    Ok(file.into())
}

impl BirthHead {
    pub fn to_bytes(self) -> Vec<u8> {
        [self.namespaces, self.joins].map(u64::to_ne_bytes).concat()
    }
}

impl BirthAnswer {
    /// Returns `None` for anything but a whole answer.
    pub fn from_bytes(bytes: &[u8]) -> Option<Self> {
        let (step, errno) = bytes.split_first_chunk()?;
        let (step, errno) = (u32::from_ne_bytes(*step), i32::from_ne_bytes(errno.try_into().ok()?));
        Some(Self { step, errno })
    }
}

impl ConfineHead {
    pub fn to_bytes(self) -> Vec<u8> {
        [self.uid, self.gid, self.limits, self.filter].map(u32::to_ne_bytes).concat()
    }
}

impl ResourceLimit {
    pub fn to_bytes(self) -> Vec<u8> {
        [self.resource, self.value].map(u64::to_ne_bytes).concat()
    }
}
