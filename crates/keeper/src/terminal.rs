//! The box's own terminal: a pair from its own devpts, whose master side goes
//! to the creator.

use std::ffi::CString;
use std::os::fd::{AsFd, OwnedFd};

use rustix::fs::{CWD, Gid, Mode, OFlags, Uid, fchown, openat};
use rustix::pty::{OpenptFlags, ioctl_tiocgptpeer, unlockpt};
use rustix::termios::{Winsize, tcsetwinsize};
use tare_control::{Identity, SetupStep, TerminalPlan};

use crate::link::Link;
use crate::setup::{Failing, Failure};

/// Opens the pair, hands the master over and returns the slave.
pub fn open(plan: TerminalPlan, owner: Option<Identity>, link: &Link) -> Result<OwnedFd, Failure> {
    let path = CString::from(c"/dev/ptmx");
    let flags = OFlags::RDWR | OFlags::NOCTTY | OFlags::CLOEXEC;
    let master = openat(CWD, path, flags, Mode::empty()).failing(SetupStep::Terminal, "ptmx")?;
    unlockpt(&master).failing(SetupStep::Terminal, "unlock")?;
    let peer = OpenptFlags::RDWR | OpenptFlags::NOCTTY | OpenptFlags::CLOEXEC;
    let slave = ioctl_tiocgptpeer(&master, peer).failing(SetupStep::Terminal, "peer")?;
    let size = Winsize {
        ws_row: plan.rows,
        ws_col: plan.columns,
        ws_xpixel: 0,
        ws_ypixel: 0,
    };
    tcsetwinsize(&master, size).failing(SetupStep::Terminal, "window size")?;
    if let Some(Identity { uid, gid }) = owner {
        fchown(&slave, Some(Uid::from_raw(uid)), Some(Gid::from_raw(gid)))
            .failing(SetupStep::Terminal, "owner")?;
    }
    link.report_terminal(master.as_fd())
        .failing(SetupStep::Terminal, "hand-over")?;
    Ok(slave)
}
