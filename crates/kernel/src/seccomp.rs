//! Installing a seccomp filter; what is in it is someone else's decision.
#![allow(unsafe_code)]

use std::io;

/// `struct sock_filter`.
pub type Instruction = libc::sock_filter;

/// Filters this thread and all its descendants from now on. Needs no_new_privs
/// or CAP_SYS_ADMIN.
pub fn install(program: &[Instruction]) -> io::Result<()> {
    let length = u16::try_from(program.len()).map_err(|_| io::ErrorKind::InvalidInput)?;
    let header = libc::sock_fprog { len: length, filter: program.as_ptr().cast_mut() };
    // SAFETY: seccomp reads `len` instructions at `filter`, which is the live
    // slice above, and copies them; nothing is written.
    let result = unsafe {
        libc::syscall(libc::SYS_seccomp, libc::SECCOMP_SET_MODE_FILTER, 0, &raw const header)
    };
    if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}
