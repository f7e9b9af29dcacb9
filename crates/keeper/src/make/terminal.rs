//! Terminals of the box: pairs from its own devpts.

use std::os::fd::OwnedFd;

use rustix::fs::{CWD, Gid, Mode, OFlags, Uid, fchown, openat};
use rustix::pty::{OpenptFlags, ioctl_tiocgptpeer, unlockpt};
use rustix::termios::{Winsize, tcsetwinsize};
use tare_control::{Identity, SetupStep, TerminalPlan};

use crate::make::{Failing, Failure};

/// Both sides of a terminal.
#[derive(Debug)]
pub struct Pair {
    /// For the client.
    pub master: OwnedFd,
    /// For the process that it controls.
    pub slave: OwnedFd,
}

/// Opens a terminal for a process of this user.
pub fn open(plan: TerminalPlan, owner: Option<Identity>) -> Result<Pair, Failure> {
    let flags = OFlags::RDWR | OFlags::NOCTTY | OFlags::CLOEXEC;
    let master =
        openat(CWD, c"/dev/ptmx", flags, Mode::empty()).failing(SetupStep::Terminal, "ptmx")?;
    unlockpt(&master).failing(SetupStep::Terminal, "unlock")?;
    let peer = OpenptFlags::RDWR | OpenptFlags::NOCTTY | OpenptFlags::CLOEXEC;
    let slave = ioctl_tiocgptpeer(&master, peer).failing(SetupStep::Terminal, "peer")?;
    let size = Winsize { ws_row: plan.rows, ws_col: plan.columns, ws_xpixel: 0, ws_ypixel: 0 };
    tcsetwinsize(&master, size).failing(SetupStep::Terminal, "window size")?;
    if let Some(Identity { uid, gid }) = owner {
        fchown(&slave, Some(Uid::from_raw(uid)), Some(Gid::from_raw(gid)))
            .failing(SetupStep::Terminal, "owner")?;
    }
    Ok(Pair { master, slave })
}
