//! Signals as data: blocked in this thread, and read one by one from a signalfd
//! (signalfd(2)).
//!
//! The mask belongs to the thread that made the [`SignalFd`], so a `SignalFd` cannot be
//! sent to another thread. A program that is started meanwhile inherits the mask and has
//! to set its own.
#![allow(unsafe_code)]

use std::io;
use std::marker::PhantomData;
use std::os::fd::{AsFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};
use std::os::unix::process::CommandExt;
use std::process::Command;

use crate::raw::{set_signal_mask, syscall};

/// `sizeof(struct signalfd_siginfo)`; its first four bytes are the number.
const SIGINFO_BYTES: usize = size_of::<libc::signalfd_siginfo>();

/// Blocks signals while it lives. Dropping it restores the former mask.
#[derive(Debug)]
pub struct SignalFd {
    fd: OwnedFd,
    former: u64,
    /// The mask to restore is that of the thread that made this.
    _thread: PhantomData<*const ()>,
}

impl SignalFd {
    /// Blocks those of `signals` that this process does not ignore. The kernel would queue a
    /// blocked signal although it is ignored, and what `nohup` or a shell's `&` chose to
    /// ignore has to stay ignored.
    pub fn open(signals: &[i32]) -> io::Result<Self> {
        let mut set = 0;
        for signal in signals {
            let bit = bit(*signal)?;
            if !is_ignored(*signal)? {
                set |= bit;
            }
        }
        let fd = signalfd(set)?;
        Ok(Self { fd, former: block(set), _thread: PhantomData })
    }

    /// Returns the number of one signal that arrived, without waiting.
    pub fn next(&self) -> io::Result<Option<i32>> {
        let mut info = [0_u8; SIGINFO_BYTES];
        match rustix::io::retry_on_intr(|| rustix::io::read(&self.fd, &mut info)) {
            Ok(SIGINFO_BYTES) => {
                let number = [info[0], info[1], info[2], info[3]];
                Ok(Some(i32::from_ne_bytes(number)))
            }
            Ok(_) => Err(io::ErrorKind::UnexpectedEof.into()),
            Err(rustix::io::Errno::AGAIN) => Ok(None),
            Err(errno) => Err(errno.into()),
        }
    }
}

impl AsFd for SignalFd {
    /// Readable when [`Self::next`] has a signal.
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

impl Drop for SignalFd {
    fn drop(&mut self) {
        set_signal_mask(self.former);
    }
}

/// Blocks SIGCHLD for good. The descriptor is readable while one is pending.
pub fn child_signal() -> io::Result<OwnedFd> {
    let set = bit(libc::SIGCHLD)?;
    block(set);
    signalfd(set)
}

/// Keeps ended children until they are reaped. If the caller of this program ignored
/// SIGCHLD, the kernel would reap them by itself, and their pids could be used again.
pub fn keep_ended_children() {
    // SAFETY: signal(2) needs a handler that may run at any time: this sets none.
    unsafe { libc::signal(libc::SIGCHLD, libc::SIG_DFL) };
}

/// Makes a write past the limit on file sizes fail, instead of killing this program without
/// a message.
pub fn fail_past_file_limit() {
    // SAFETY: signal(2) needs a handler that may run at any time: ignoring the signal runs none.
    unsafe { libc::signal(libc::SIGXFSZ, libc::SIG_IGN) };
}

/// Starts the program of `command` with no signal blocked.
pub fn unblocked(command: &mut Command) -> &mut Command {
    let unblock = || {
        set_signal_mask(0);
        Ok(())
    };
    // SAFETY: pre_exec needs a closure that only makes async-signal-safe calls and does not
    // allocate: this one makes one system call.
    unsafe { command.pre_exec(unblock) }
}

/// The bit of a signal in a mask of the kernel. The C library uses 32 to 34 itself.
fn bit(signal: i32) -> io::Result<u64> {
    match signal {
        1..=31 | 35..=64 => Ok(1 << (signal - 1)),
        _ => Err(io::ErrorKind::InvalidInput.into()),
    }
}

fn is_ignored(signal: i32) -> io::Result<bool> {
    // The kernel's `struct sigaction`; the first word is the handler.
    let mut action = [0u64; 4];
    let args = [signal as usize, 0, action.as_mut_ptr() as usize, size_of::<u64>(), 0];
    // SAFETY: rt_sigaction changes nothing if its second argument is null, and writes four
    // words to its third one, the live `action`.
    unsafe { syscall(libc::SYS_rt_sigaction, args) }?;
    Ok(action[0] == libc::SIG_IGN as u64)
}

fn signalfd(set: u64) -> io::Result<OwnedFd> {
    let flags = (libc::SFD_NONBLOCK | libc::SFD_CLOEXEC) as usize;
    let args = [-1_isize as usize, &raw const set as usize, size_of::<u64>(), flags, 0];
    // SAFETY: signalfd4 reads 8 bytes at its second argument, the live `set`. -1 asks for a
    // new descriptor.
    let fd = unsafe { syscall(libc::SYS_signalfd4, args) }?;
    // SAFETY: from_raw_fd needs an open descriptor that nothing else owns: the call has just
    // made it.
    Ok(unsafe { OwnedFd::from_raw_fd(fd as RawFd) })
}

/// Adds `set` to the thread's mask and returns the former mask.
fn block(set: u64) -> u64 {
    let former = set_signal_mask(u64::MAX);
    set_signal_mask(former | set);
    former
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::thread;

    /// Signals this thread alone, so that tests beside this one get nothing.
    fn raise(signal: i32) {
        // SAFETY: raise(3) takes a number and fails for one that is not a signal.
        assert_eq!(unsafe { libc::raise(signal) }, 0);
    }

    fn is_blocked(signal: i32) -> bool {
        block(0) & bit(signal).unwrap() != 0
    }

    #[test]
    fn signals_are_read_one_by_one_and_do_not_act() {
        let signals = SignalFd::open(&[libc::SIGUSR1, libc::SIGTERM]).unwrap();
        assert_eq!(signals.next().unwrap(), None);
        raise(libc::SIGTERM);
        raise(libc::SIGUSR1);
        let mut read = [signals.next().unwrap(), signals.next().unwrap()];
        read.sort_unstable();
        assert_eq!(read, [Some(libc::SIGUSR1), Some(libc::SIGTERM)]);
        assert_eq!(signals.next().unwrap(), None);
    }

    #[test]
    fn the_former_mask_returns() {
        assert!(!is_blocked(libc::SIGUSR2));
        let outer = SignalFd::open(&[libc::SIGUSR2]).unwrap();
        let inner = SignalFd::open(&[libc::SIGUSR1]).unwrap();
        drop(inner);
        assert!(is_blocked(libc::SIGUSR2));
        drop(outer);
        assert!(!is_blocked(libc::SIGUSR2));
    }

    #[test]
    fn signals_that_the_caller_ignores_stay_ignored() {
        // Rust's runtime ignores SIGPIPE before main.
        let signals = SignalFd::open(&[libc::SIGPIPE]).unwrap();
        raise(libc::SIGPIPE);
        assert_eq!(signals.next().unwrap(), None);
    }

    #[test]
    fn an_invalid_signal_number_is_refused() {
        assert!(SignalFd::open(&[-1]).is_err());
        assert!(SignalFd::open(&[4096]).is_err());
    }

    #[test]
    fn a_thread_started_later_inherits_the_mask() {
        let _signals = SignalFd::open(&[libc::SIGUSR1]).unwrap();
        assert!(thread::spawn(|| is_blocked(libc::SIGUSR1)).join().unwrap());
    }
}
