//! The caller's terminal: its raw mode while a box has its own terminal, and its size.

use std::os::fd::{AsFd, BorrowedFd};

use rustix::io;
use rustix::stdio::stdin;
use rustix::termios::{
    OptionalActions, Termios, isatty, tcgetattr, tcgetwinsize, tcsetattr, tcsetwinsize,
};
use tare_engine::{Context as _, Error};

/// Rows and columns of a terminal that does not know its size.
pub const WINDOW_DEFAULT: (u16, u16) = (24, 80);

/// The caller's terminal in raw mode. Dropping this restores its former mode.
#[derive(Debug)]
pub struct RawMode<'fd> {
    terminal: BorrowedFd<'fd>,
    former: Termios,
}

impl<'fd> RawMode<'fd> {
    pub fn enter(terminal: BorrowedFd<'fd>) -> io::Result<Self> {
        let former = tcgetattr(terminal)?;
        let mut raw = former.clone();
        raw.make_raw();
        tcsetattr(terminal, OptionalActions::Now, &raw)?;
        Ok(Self { terminal, former })
    }
}

impl Drop for RawMode<'_> {
    fn drop(&mut self) {
        // `Now`: waiting for output to drain could wait forever.
        let _ = tcsetattr(self.terminal, OptionalActions::Now, &self.former);
    }
}

/// Rows and columns of a terminal.
pub fn window(terminal: BorrowedFd<'_>) -> io::Result<(u16, u16)> {
    let size = tcgetwinsize(terminal)?;
    Ok(match (size.ws_row, size.ws_col) {
        (0, _) | (_, 0) => WINDOW_DEFAULT,
        known => known,
    })
}

/// The size of the terminal that standard input is, if it is one.
pub fn callers_window() -> Result<Option<(u16, u16)>, Error> {
    if isatty(stdin()) {
        window(stdin()).map(Some).context(|| "cannot read the terminal's size".to_owned())
    } else {
        Ok(None)
    }
}

/// Gives the box's terminal the size of the caller's.
pub fn pass_window(from: BorrowedFd<'_>, to: impl AsFd) -> io::Result<()> {
    tcsetwinsize(to, tcgetwinsize(from)?)
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::pty::{OpenptFlags, ioctl_tiocgptpeer, openpt, unlockpt};
    use rustix::termios::{LocalModes, Winsize};
    use std::os::fd::OwnedFd;

    fn terminal() -> (OwnedFd, OwnedFd) {
        let master = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY).unwrap();
        unlockpt(&master).unwrap();
        let flags = OpenptFlags::RDWR | OpenptFlags::NOCTTY;
        let side = ioctl_tiocgptpeer(&master, flags).unwrap();
        (master, side)
    }

    #[test]
    fn raw_mode_returns_the_terminal_as_it_was() {
        let (_master, side) = terminal();
        let modes = || tcgetattr(&side).unwrap().local_modes;
        let former = modes();
        assert!(former.contains(LocalModes::ICANON | LocalModes::ECHO));
        let raw = RawMode::enter(side.as_fd()).unwrap();
        assert!(!modes().intersects(LocalModes::ICANON | LocalModes::ECHO | LocalModes::ISIG));
        drop(raw);
        assert_eq!(modes(), former);
    }

    #[test]
    fn a_window_is_passed_on_and_a_missing_one_replaced() {
        let (from, _from_side) = terminal();
        let (to, to_side) = terminal();
        assert_eq!(window(from.as_fd()).unwrap(), (24, 80));
        let size = Winsize { ws_row: 50, ws_col: 132, ws_xpixel: 0, ws_ypixel: 0 };
        tcsetwinsize(&from, size).unwrap();
        pass_window(from.as_fd(), &to).unwrap();
        assert_eq!(window(to_side.as_fd()).unwrap(), (50, 132));
    }
}
