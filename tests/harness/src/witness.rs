//! A foreign process that reports whether anything signalled or changed it.

use std::os::unix::process::CommandExt;
use std::process::{Command, Stdio};

use crate::running::Running;
use crate::tare::Tare;

/// Prints every signal that it gets, and answers every line.
const WITNESS: &str =
    "for signal in HUP INT QUIT USR1 USR2 PIPE ALRM TERM CHLD CONT TSTP TTIN TTOU WINCH; do
    trap \"echo got $signal\" $signal
done
echo up
while read line; do echo here; done";

/// Starts a foreign process with this name and last argument.
pub fn stranger(tare: &Tare, name: &str, last: &str) -> Running {
    let mut command = Command::new("sh");
    command.arg0(name).args(["-c", WITNESS, last]);
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let running = tare.start_command(command);
    running.see("up");
    running
}

/// Checks that the process is alive, was not stopped and received no signal.
#[track_caller]
pub fn assert_untouched(mut stranger: Running) {
    stranger.write(b"\n");
    stranger.see("here");
    stranger.wait().ok().printed("up\nhere\n").said_nothing();
}
