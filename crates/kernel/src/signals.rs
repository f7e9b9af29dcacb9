//! Signals as something to read: blocked for this thread, and handed out one
//! by one through a signalfd (signalfd(2)).
//!
//! The mask belongs to the thread that made the [`SignalFd`], which therefore
//! cannot be sent to another. What is started while it lives inherits the mask
//! and must set its own, as every program that starts programs has to.
#![allow(unsafe_code)]

use std::fmt;
use std::io;
use std::marker::PhantomData;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, FromRawFd, OwnedFd};
use std::os::unix::process::CommandExt;
use std::process::Command;
use std::ptr;

/// `sizeof(struct signalfd_siginfo)`; its first four bytes are the number.
const SIGINFO_BYTES: usize = size_of::<libc::signalfd_siginfo>();

/// Signals blocked while this lives; the former mask returns when it is dropped.
pub struct SignalFd {
    fd: OwnedFd,
    former: libc::sigset_t,
    /// The mask to restore is the making thread's.
    _thread: PhantomData<*const ()>,
}

impl SignalFd {
    /// Takes over those of `signals` that this process does not ignore. A
    /// blocked signal would be queued though it is ignored, and what `nohup`
    /// or a shell's `&` chose to ignore has to stay ignored.
    pub fn open(signals: &[i32]) -> io::Result<Self> {
        let mut set = empty_set()?;
        for signal in signals {
            if !is_ignored(*signal)? {
                add(&mut set, *signal)?;
            }
        }
        let fd = signalfd(&set)?;
        let former = block(&set)?;
        Ok(Self { fd, former, _thread: PhantomData })
    }

    /// The number of one signal that arrived, without waiting; `None` when
    /// there is none.
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

/// Children stay until they are reaped, whatever the caller of this program
/// chose: with SIGCHLD ignored the kernel would reap them by itself, and a pid
/// could be somebody else's before we are done with it.
pub fn keep_ended_children() {
    // SAFETY: sets a disposition that runs no code of ours.
    unsafe { libc::signal(libc::SIGCHLD, libc::SIG_DFL) };
}

/// A write past the caller's limit on file sizes fails, instead of ending this
/// program without a word.
pub fn fail_past_file_limit() {
    // SAFETY: sets a disposition that runs no code of ours.
    unsafe { libc::signal(libc::SIGXFSZ, libc::SIG_IGN) };
}

/// Starts the program of `command` with no signal blocked, whatever this thread blocks.
pub fn unblocked(command: &mut Command) -> io::Result<&mut Command> {
    let none = empty_set()?;
    let unblock = move || {
        // SAFETY: pthread_sigmask reads the initialised set that the closure owns, and
        // writes nothing behind a null pointer.
        match unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, &none, ptr::null_mut()) } {
            0 => Ok(()),
            errno => Err(io::Error::from_raw_os_error(errno)),
        }
    };
    // SAFETY: between fork and exec the closure may only make async-signal-safe calls:
    // it makes one, and allocates nothing.
    Ok(unsafe { command.pre_exec(unblock) })
}

impl AsFd for SignalFd {
    /// Readable when [`Self::next`] has a signal.
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

impl Drop for SignalFd {
    fn drop(&mut self) {
        // SAFETY: pthread_sigmask reads the set behind its second argument, a
        // live field that a former pthread_sigmask filled in; it may be told
        // not to write the old one by a null third argument.
        unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, &self.former, ptr::null_mut()) };
    }
}

impl fmt::Debug for SignalFd {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SignalFd").field("fd", &self.fd).finish_non_exhaustive()
    }
}

fn empty_set() -> io::Result<libc::sigset_t> {
    let mut set = MaybeUninit::uninit();
    // SAFETY: sigemptyset writes a whole sigset_t to its argument, which points
    // to memory of that size and alignment.
    succeeded(unsafe { libc::sigemptyset(set.as_mut_ptr()) })?;
    // SAFETY: the call above succeeded, so the set is initialised.
    Ok(unsafe { set.assume_init() })
}

fn add(set: &mut libc::sigset_t, signal: i32) -> io::Result<()> {
    // SAFETY: sigaddset needs an initialised set to change, which a `&mut` to
    // one is; a number that is no signal is refused with EINVAL.
    succeeded(unsafe { libc::sigaddset(set, signal) })
}

fn is_ignored(signal: i32) -> io::Result<bool> {
    let mut action = MaybeUninit::<libc::sigaction>::zeroed();
    // SAFETY: with a null new action sigaction changes nothing and writes the
    // current one to its third argument, which points to memory of that type.
    succeeded(unsafe { libc::sigaction(signal, ptr::null(), action.as_mut_ptr()) })?;
    // SAFETY: the memory was zeroed, which is a valid sigaction, and then
    // written by the call above.
    let action = unsafe { action.assume_init() };
    Ok(action.sa_sigaction == libc::SIG_IGN)
}

fn signalfd(set: &libc::sigset_t) -> io::Result<OwnedFd> {
    let flags = libc::SFD_NONBLOCK | libc::SFD_CLOEXEC;
    // SAFETY: signalfd reads the set behind its second argument, which is an
    // initialised one; -1 asks for a new descriptor.
    let fd = unsafe { libc::signalfd(-1, set, flags) };
    succeeded(fd.min(0))?;
    // SAFETY: from_raw_fd needs an open descriptor that nobody else owns; the
    // kernel made this one just now for us.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

/// Adds `set` to the thread's mask and returns what that was before.
fn block(set: &libc::sigset_t) -> io::Result<libc::sigset_t> {
    let mut former = empty_set()?;
    // SAFETY: pthread_sigmask reads the second and writes the third argument,
    // both references to initialised sets.
    match unsafe { libc::pthread_sigmask(libc::SIG_BLOCK, set, &mut former) } {
        0 => Ok(former),
        errno => Err(io::Error::from_raw_os_error(errno)),
    }
}

fn succeeded(result: i32) -> io::Result<()> {
    match result {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::thread;

    /// To this thread alone, so that tests beside this one are left in peace.
    fn raise(signal: i32) {
        // SAFETY: raise takes any number and refuses what is no signal.
        assert_eq!(unsafe { libc::raise(signal) }, 0);
    }

    fn is_blocked(signal: i32) -> bool {
        let now = block(&empty_set().unwrap()).unwrap();
        // SAFETY: sigismember reads an initialised set.
        unsafe { libc::sigismember(&now, signal) == 1 }
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
    fn what_the_caller_ignores_stays_ignored() {
        // Rust's runtime ignores SIGPIPE before main.
        let signals = SignalFd::open(&[libc::SIGPIPE]).unwrap();
        raise(libc::SIGPIPE);
        assert_eq!(signals.next().unwrap(), None);
    }

    #[test]
    fn a_number_that_is_no_signal_is_refused() {
        assert!(SignalFd::open(&[-1]).is_err());
        assert!(SignalFd::open(&[4096]).is_err());
    }

    #[test]
    fn a_thread_started_later_inherits_the_mask() {
        let _signals = SignalFd::open(&[libc::SIGUSR1]).unwrap();
        assert!(thread::spawn(|| is_blocked(libc::SIGUSR1)).join().unwrap());
    }
}
