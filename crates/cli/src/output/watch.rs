//! Prints a view again and again (`--watch`).

use std::time::Duration;

use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::Errno;
use rustix::process::Signal;
use rustix::stdio::stdout;
use rustix::termios::isatty;
use tare_engine::{Context as _, Error};
use tare_kernel::clock::timespec;
use tare_kernel::signals::SignalFd;

use crate::error::{Reader, print_result, print_to_reader};

const INTERVAL: Duration = Duration::from_secs(1);

/// Moves the cursor to the upper left and clears the screen (console_codes(4)).
const CLEAR: &str = "\x1b[H\x1b[J";

/// How often a view is printed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Times {
    Once,
    /// Every second, until SIGINT, until the reader of stdout is gone, or until there is nothing
    /// more to show.
    Watch,
}

impl Times {
    pub fn watch(asked: bool) -> Self {
        if asked { Self::Watch } else { Self::Once }
    }
}

/// Prints what `draw` returns; `None` ends the loop.
pub fn show(
    times: Times,
    mut draw: impl FnMut() -> Result<Option<String>, Error>,
) -> Result<(), Error> {
    match times {
        Times::Once => print_result(&draw()?.unwrap_or_default()),
        Times::Watch => watch(draw),
    }
}

fn watch(mut draw: impl FnMut() -> Result<Option<String>, Error>) -> Result<(), Error> {
    let interrupts = SignalFd::open(&[Signal::INT.as_raw()])
        .context(|| "cannot take over signals".to_owned())?;
    let clear = if isatty(stdout()) { CLEAR } else { "" };
    while let Some(picture) = draw()? {
        let reader = print_to_reader(&format!("{clear}{picture}"))?;
        if reader == Reader::Gone || is_over(&interrupts)? {
            break;
        }
    }
    Ok(())
}

/// Waits for one interval. Returns whether the view ended before.
fn is_over(interrupts: &SignalFd) -> Result<bool, Error> {
    let stdout = stdout();
    let mut fds = [
        PollFd::new(interrupts, PollFlags::IN),
        // Even without requested events, `poll` reports that the reader is gone.
        PollFd::new(&stdout, PollFlags::empty()),
    ];
    match poll(&mut fds, Some(&timespec(INTERVAL))) {
        Ok(ready) => Ok(ready > 0),
        Err(Errno::INTR) => Ok(false),
        Err(errno) => Err(errno).context(|| "cannot wait for the next turn".to_owned()),
    }
}
