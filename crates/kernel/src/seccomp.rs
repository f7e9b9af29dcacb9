//! Installs a seccomp filter. The caller decides what is in it.
#![allow(unsafe_code)]

use std::io;

/// `struct sock_filter`.
pub type Instruction = libc::sock_filter;

/// Filters the system calls of this thread and its descendants from now on. Needs no_new_privs
/// or CAP_SYS_ADMIN.
pub fn install(program: &[Instruction]) -> io::Result<()> {
    let length = u16::try_from(program.len()).map_err(|_| io::ErrorKind::InvalidInput)?;
    let header = libc::sock_fprog { len: length, filter: program.as_ptr().cast_mut() };
    // SAFETY: seccomp(2) reads the live `header`, and `len` instructions at `filter`: the slice
    // `program` has that many. It writes nothing.
    let result = unsafe {
        libc::syscall(libc::SYS_seccomp, libc::SECCOMP_SET_MODE_FILTER, 0, &raw const header)
    };
    if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}
