//! One call of `tare`, observed from outside and bounded in time.

use std::fmt;
use std::io::Write;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::process::ExitStatusExt;
use std::process::{Child, ChildStdin, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};

use crate::capture::Capture;
use crate::wait::PATIENCE;

/// The longest time for a call of tare in a test. Then it is killed, and the test fails.
const CALL_MAX: Duration = Duration::from_secs(60);

/// A running call of `tare`. Dropping it kills the call.
pub struct Running {
    child: Child,
    pidfd: OwnedFd,
    stdin: Option<ChildStdin>,
    stdout: Option<Capture>,
    stderr: Option<Capture>,
    command: String,
    started: Instant,
    reaped: bool,
}

/// How a call of `tare` ended.
pub struct Output {
    /// The exit code; a signal that killed tare itself is negative.
    pub code: i32,
    pub stdout: Vec<u8>,
    pub stderr: Vec<u8>,
    /// From the start of tare to its end.
    pub lasted: Duration,
    command: String,
}

impl Running {
    /// Starts `command`, and collects its output if that is a pipe.
    #[track_caller]
    pub(crate) fn start(mut command: Command) -> Self {
        let text = format!("{command:?}");
        let started = Instant::now();
        let mut child =
            command.spawn().unwrap_or_else(|error| panic!("cannot start {text}: {error}"));
        let pidfd = pidfd_open(Pid::from_child(&child), PidfdFlags::empty())
            .expect("an unreaped child has a pidfd");
        Self {
            pidfd,
            stdin: child.stdin.take(),
            stdout: child.stdout.take().map(|pipe| Capture::of(pipe.into())),
            stderr: child.stderr.take().map(|pipe| Capture::of(pipe.into())),
            child,
            command: text,
            started,
            reaped: false,
        }
    }

    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Sends a signal to `tare` itself.
    pub fn signal(&self, signal: Signal) {
        pidfd_send_signal(&self.pidfd, signal).expect("a running tare can be signalled");
    }

    /// Waits until `needle` was written to standard output.
    #[track_caller]
    pub fn see(&self, needle: &str) -> &Self {
        self.see_in(self.stdout.as_ref(), needle)
    }

    /// Waits until `needle` was written to standard error.
    #[track_caller]
    pub fn see_error(&self, needle: &str) -> &Self {
        self.see_in(self.stderr.as_ref(), needle)
    }

    #[track_caller]
    fn see_in(&self, stream: Option<&Capture>, needle: &str) -> &Self {
        let stream = stream.expect("this stream is a pipe to the test");
        let seen = stream.contains_by(needle.as_bytes(), Instant::now() + PATIENCE);
        assert!(
            seen,
            "{needle:?} did not come from {}: {:?}\nstderr: {}",
            self.command,
            stream.text_so_far(),
            self.stderr_so_far()
        );
        self
    }

    /// Writes to the standard input of `tare`, which must be a pipe.
    #[track_caller]
    pub fn write(&mut self, bytes: &[u8]) {
        self.stdin
            .as_mut()
            .expect("standard input is a pipe from the test")
            .write_all(bytes)
            .expect("tare reads its standard input");
    }

    /// Writes `bytes` in a thread and closes the pipe. So a command that never reads does not block
    /// the test.
    pub(crate) fn feed(&mut self, bytes: Vec<u8>) {
        let mut stdin = self.stdin.take().expect("standard input is a pipe");
        std::thread::spawn(move || {
            // A command that ends early closes the pipe: not an error.
            let _ = stdin.write_all(&bytes);
        });
    }

    pub fn close_stdin(&mut self) {
        self.stdin = None;
    }

    /// Whether it has ended already.
    pub fn has_ended(&self) -> bool {
        self.ends_within(Duration::ZERO)
    }

    /// Waits for the end; standard input is closed first, as a shell would.
    #[track_caller]
    pub fn wait(self) -> Output {
        let left = CALL_MAX.saturating_sub(self.started.elapsed());
        self.wait_within(left)
    }

    /// Like `wait`, but the time limit begins now, for a call that ran long before the test ended
    /// it.
    #[track_caller]
    pub(crate) fn wait_from_now(self) -> Output {
        self.wait_within(CALL_MAX)
    }

    #[track_caller]
    fn wait_within(mut self, left: Duration) -> Output {
        self.close_stdin();
        if !self.ends_within(left) {
            let (out, err) = (self.output_so_far(), self.stderr_so_far());
            self.kill();
            panic!(
                "{} did not end within {CALL_MAX:?}\nstdout: {out}\nstderr: {err}",
                self.command
            );
        }
        let status = self.reap();
        let lasted = self.started.elapsed();
        Output {
            code: code_of(status),
            stdout: self.rest_of(self.stdout.as_ref(), "standard output"),
            stderr: self.rest_of(self.stderr.as_ref(), "standard error"),
            lasted,
            command: self.command.clone(),
        }
    }

    /// Checks that the streams end with tare: no process of a box may hold the caller's descriptors.
    #[track_caller]
    fn rest_of(&self, stream: Option<&Capture>, name: &str) -> Vec<u8> {
        let Some(stream) = stream else {
            return Vec::new();
        };
        stream
            .all_by(Instant::now() + PATIENCE)
            .unwrap_or_else(|| panic!("{name} is still held open after {} ended", self.command))
    }

    /// Returns whether the call ends within this time.
    pub fn ends_within(&self, bound: Duration) -> bool {
        let timeout = Timespec::try_from(bound).expect("the bound is small");
        let mut fds = [PollFd::from_borrowed_fd(self.pidfd.as_fd(), PollFlags::IN)];
        poll(&mut fds, Some(&timeout)).expect("a pidfd can be polled") == 1
    }

    fn reap(&mut self) -> ExitStatus {
        self.reaped = true;
        self.child.wait().expect("our own child can be waited for")
    }

    fn kill(&mut self) {
        // It may have ended meanwhile. Reaping it shows that.
        let _ = pidfd_send_signal(&self.pidfd, Signal::KILL);
        self.reap();
    }

    fn output_so_far(&self) -> String {
        self.stdout.as_ref().map(Capture::text_so_far).unwrap_or_default()
    }

    pub fn stderr_so_far(&self) -> String {
        self.stderr.as_ref().map(Capture::text_so_far).unwrap_or_default()
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        if !self.reaped {
            self.kill();
        }
    }
}

impl Output {
    pub fn stdout_text(&self) -> String {
        text(&self.stdout)
    }

    pub fn stderr_text(&self) -> String {
        text(&self.stderr)
    }

    /// Checks that the call exited with 0.
    #[track_caller]
    pub fn ok(self) -> Self {
        self.exited(0)
    }

    /// Checks the exit code.
    #[track_caller]
    pub fn exited(self, code: i32) -> Self {
        assert_eq!(self.code, code, "wrong exit code: {self}");
        self
    }

    /// Checks that standard output is exactly this.
    #[track_caller]
    pub fn printed(self, expected: &str) -> Self {
        assert_eq!(self.stdout_text(), expected, "wrong output: {self}");
        self
    }

    /// Checks that standard error is one line that contains each of these words.
    #[track_caller]
    pub fn said(self, mentions: &[&str]) -> Self {
        let line = self.stderr_text();
        assert!(
            line.ends_with('\n') && line.trim_end().lines().count() == 1,
            "not exactly one line on standard error: {self}"
        );
        for mention in mentions {
            assert!(line.contains(mention), "{mention:?} is not mentioned: {self}");
        }
        self
    }

    /// Checks that standard error is empty.
    #[track_caller]
    pub fn said_nothing(self) -> Self {
        assert!(self.stderr.is_empty(), "words on standard error: {self}");
        self
    }
}

/// Everything that a failed test prints.
impl fmt::Display for Output {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{}\nended with {} after {:?}\nstdout ({} bytes): {:?}\nstderr ({} bytes): {:?}",
            self.command,
            self.code,
            self.lasted,
            self.stdout.len(),
            excerpt(&self.stdout),
            self.stderr.len(),
            excerpt(&self.stderr),
        )
    }
}

impl fmt::Debug for Output {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl fmt::Debug for Running {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Running")
            .field("command", &self.command)
            .field("pid", &self.pid())
            .finish_non_exhaustive()
    }
}

/// Sets pipes for both outputs, and the standard input that the caller chose.
pub(crate) fn with_pipes(mut command: Command, stdin: Stdio) -> Command {
    command.stdin(stdin).stdout(Stdio::piped()).stderr(Stdio::piped());
    command
}

fn code_of(status: ExitStatus) -> i32 {
    match (status.code(), status.signal()) {
        (Some(code), _) => code,
        (None, Some(signal)) => -signal,
        (None, None) => unreachable!("a reaped child has exited or was killed"),
    }
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

fn excerpt(bytes: &[u8]) -> String {
    const SHOWN_BYTES_MAX: usize = 2000;
    text(&bytes[..bytes.len().min(SHOWN_BYTES_MAX)])
}
