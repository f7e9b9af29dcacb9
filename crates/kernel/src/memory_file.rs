//! Files in memory, which the kernel frees with their last descriptor (memfd_create(2)).

use std::ffi::CStr;
use std::fs::File;

use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, memfd_create};
use rustix::io::Result;

use crate::step::step;

/// Makes an empty file, which can be sealed. The name is only for `/proc`.
pub fn make(name: &CStr) -> Result<File> {
    let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
    step("make a file in memory", || memfd_create(name, flags)).map(File::from)
}

/// Makes the content final: no process can change it any more.
pub fn seal(file: &File) -> Result<()> {
    let seals = SealFlags::WRITE | SealFlags::GROW | SealFlags::SHRINK | SealFlags::SEAL;
    fcntl_add_seals(file, seals)
}
