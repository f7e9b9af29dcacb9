//! `tare` under a real terminal: a pseudo-terminal of the host whose master side the test holds.

use std::fs::File;
use std::io::Write;
use std::os::fd::OwnedFd;
use std::process::{Command, Stdio};
use std::time::Instant;

use rustix::process::Signal;
use rustix::pty::{OpenptFlags, grantpt, ioctl_tiocgptpeer, openpt, unlockpt};
use rustix::termios::{LocalModes, Winsize, tcgetattr, tcsetwinsize};

use crate::capture::Capture;
use crate::running::{Output, Running};
use crate::wait::PATIENCE;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TerminalSize {
    pub rows: u16,
    pub columns: u16,
}

/// A call of `tare` with one terminal as its three streams and its controlling terminal.
#[derive(Debug)]
pub struct UnderTerminal {
    running: Running,
    master: File,
    // Keeps the terminal alive, and its settings readable, after tare has ended.
    slave: OwnedFd,
    screen: Capture,
}

impl UnderTerminal {
    #[track_caller]
    pub(crate) fn start(command: &Command, size: TerminalSize) -> Self {
        let (master, slave) = open_terminal(size);
        let mut session = in_new_session(command);
        for stream in [Command::stdin, Command::stdout, Command::stderr] {
            let copy = slave.try_clone().expect("a descriptor can be copied");
            stream(&mut session, Stdio::from(copy));
        }
        let running = Running::start(session);
        let screen = Capture::of(master.try_clone().expect("a descriptor can be copied"));
        Self { running, master: File::from(master), slave, screen }
    }

    /// Waits until this text was on the screen.
    #[track_caller]
    pub fn see(&self, needle: &str) -> &Self {
        let seen = self.screen.contains_by(needle.as_bytes(), Instant::now() + PATIENCE);
        assert!(seen, "{needle:?} was not on the screen: {:?}", self.screen.text_so_far());
        self
    }

    /// Everything that was on the screen until now.
    pub fn screen(&self) -> String {
        self.screen.text_so_far()
    }

    /// Types these bytes.
    pub fn type_bytes(&mut self, bytes: &[u8]) {
        self.master.write_all(bytes).expect("a terminal can be typed into");
    }

    pub fn resize(&self, size: TerminalSize) {
        tcsetwinsize(&self.master, winsize(size)).expect("a terminal can be resized");
    }

    pub fn signal(&self, signal: Signal) {
        self.running.signal(signal);
    }

    /// Waits for the end. What was on the screen is in [`Output::stdout`], whether
    /// the terminal was left cooked is the second value.
    #[track_caller]
    pub fn wait(self) -> (Output, bool) {
        let Self { running, master, slave, screen } = self;
        let mut output = running.wait();
        let cooked = is_cooked(&slave);
        drop(slave);
        output.stdout = screen
            .all_by(Instant::now() + PATIENCE)
            .expect("no process holds the terminal open after tare has ended");
        drop(master);
        (output, cooked)
    }
}

fn open_terminal(size: TerminalSize) -> (OwnedFd, OwnedFd) {
    let flags = OpenptFlags::RDWR | OpenptFlags::NOCTTY | OpenptFlags::CLOEXEC;
    let master = openpt(flags).expect("this host has pseudo-terminals");
    grantpt(&master).expect("a new terminal can be granted");
    unlockpt(&master).expect("a new terminal can be unlocked");
    let slave = ioctl_tiocgptpeer(&master, flags).expect("the other side can be opened");
    tcsetwinsize(&master, winsize(size)).expect("a terminal can be resized");
    (master, slave)
}

/// `setsid --ctty` (util-linux) makes standard input the controlling terminal and
/// becomes the command: a child is never a group leader, so it does not fork.
fn in_new_session(command: &Command) -> Command {
    let mut session = Command::new("setsid");
    session.arg("--ctty").arg(command.get_program());
    session.args(command.get_args());
    for (key, value) in command.get_envs() {
        match value {
            Some(value) => session.env(key, value),
            None => session.env_remove(key),
        };
    }
    session
}

/// Whether the terminal is as a shell left it: lines, echo, signals.
fn is_cooked(terminal: &OwnedFd) -> bool {
    tcgetattr(terminal)
        .expect("a terminal has settings")
        .local_modes
        .contains(LocalModes::ICANON | LocalModes::ECHO | LocalModes::ISIG)
}

fn winsize(size: TerminalSize) -> Winsize {
    Winsize { ws_row: size.rows, ws_col: size.columns, ws_xpixel: 0, ws_ypixel: 0 }
}
