//! The loop, on a log and a keeper of the test's own.

use std::cell::RefCell;
use std::fs::File;
use std::io::{PipeReader, PipeWriter, Read, Write, pipe};
use std::process::{Child, Command, Stdio};

use rustix::process::Signal;
use tare_control::log::{FILE_NAMES, Writer};
use tare_harness::TemporaryDirectory;

use super::*;

/// A log, and a process that lives until it is told to end.
struct Attachable {
    directory: TemporaryDirectory,
    writer: Writer,
    keeper: Child,
}

impl Attachable {
    fn new() -> Self {
        let directory = TemporaryDirectory::new();
        let files = FILE_NAMES.map(|name| File::create(directory.join(name)).unwrap().into());
        Self {
            directory,
            writer: Writer::new(files, 64 << 10),
            keeper: Command::new("cat").stdin(Stdio::piped()).spawn().unwrap(),
        }
    }

    fn attachment(&self, input: Option<PipeWriter>) -> Attachment {
        let directory = File::open(self.directory.path()).unwrap();
        let process = Process::open(self.keeper.id().cast_signed()).unwrap();
        Attachment {
            logs: Logs::open(directory.as_fd()).unwrap(),
            keeper: Some(process),
            input: input.map(Into::into),
            is_terminal: false,
        }
    }

    fn write(&mut self, stream: Stream, text: &str) {
        self.writer.append_at(1, stream, text.as_bytes());
    }

    fn end(&mut self) {
        drop(self.keeper.stdin.take());
    }
}

impl Drop for Attachable {
    fn drop(&mut self) {
        self.end();
        self.keeper.wait().unwrap();
    }
}

fn caller<'a>(stdin: &'a PipeReader, stdout: &'a PipeWriter, stderr: &'a PipeWriter) -> Caller<'a> {
    Caller { stdin: stdin.as_fd(), stdout: stdout.as_fd(), stderr: stderr.as_fd() }
}

/// None of these is sent here: signals to a test would end the others too.
fn signals() -> SignalFd {
    SignalFd::open(&[]).unwrap()
}

#[test]
fn all_output_arrives_before_the_end_of_the_box_is_reported() {
    let mut attachable = Attachable::new();
    let (stdin, _typist) = pipe().unwrap();
    let ((mut out, stdout), (mut err, stderr)) = (pipe().unwrap(), pipe().unwrap());
    let attachment = attachable.attachment(None);
    for _ in 0..200 {
        attachable.write(Stream::Stdout, "out\n");
    }
    attachable.write(Stream::Stderr, "err\n");
    attachable.end();
    let mut wire = AttachLoop::new(attachment, caller(&stdin, &stdout, &stderr), None).unwrap();
    assert_eq!(wire.until_end(&signals()).unwrap(), AttachEnd::Ended);
    drop(wire);
    drop((stdout, stderr));
    let (mut shown, mut errors) = (String::new(), String::new());
    out.read_to_string(&mut shown).unwrap();
    err.read_to_string(&mut errors).unwrap();
    assert_eq!((shown, errors), ("out\n".repeat(200), "err\n".to_owned()));
}

#[test]
fn input_reaches_the_box_and_its_end_does_not_end_the_listening() {
    let mut attachable = Attachable::new();
    let (stdin, mut typist) = pipe().unwrap();
    let ((_out, stdout), (_err, stderr)) = (pipe().unwrap(), pipe().unwrap());
    let (mut box_reads, box_side) = pipe().unwrap();
    let attachment = attachable.attachment(Some(box_side));
    typist.write_all(b"question").unwrap();
    drop(typist);
    let reader = std::thread::spawn(move || {
        let mut got = String::new();
        box_reads.read_to_string(&mut got).unwrap();
        attachable.end();
        (got, attachable)
    });
    let mut wire = AttachLoop::new(attachment, caller(&stdin, &stdout, &stderr), None).unwrap();
    assert_eq!(wire.until_end(&signals()).unwrap(), AttachEnd::Ended);
    assert_eq!(reader.join().unwrap().0, "question");
}

#[test]
fn a_caller_that_no_longer_reads_leaves_the_box() {
    let attachable = Attachable::new();
    let (stdin, _typist) = pipe().unwrap();
    let ((out, stdout), (_err, stderr)) = (pipe().unwrap(), pipe().unwrap());
    let attachment = attachable.attachment(None);
    drop(out);
    let mut wire = AttachLoop::new(attachment, caller(&stdin, &stdout, &stderr), None).unwrap();
    assert_eq!(wire.until_end(&signals()).unwrap(), AttachEnd::Detached);
}

#[test]
fn a_signal_leaves_the_box() {
    let attachable = Attachable::new();
    let (stdin, _typist) = pipe().unwrap();
    let ((_out, stdout), (_err, stderr)) = (pipe().unwrap(), pipe().unwrap());
    let attachment = attachable.attachment(None);
    let mut wire = AttachLoop::new(attachment, caller(&stdin, &stdout, &stderr), None).unwrap();
    for signal in [Signal::HUP, Signal::INT, Signal::QUIT, Signal::TERM, Signal::USR1] {
        let signal = signal.as_raw();
        assert_eq!(wire.take_signal(signal), Some(AttachEnd::Interrupted(signal)));
    }
    assert_eq!(wire.take_signal(Signal::WINCH.as_raw()), None);
}

#[test]
fn the_first_signal_goes_to_the_box_and_the_second_leaves_it_if_the_caller_asks_for_that() {
    let attachable = Attachable::new();
    let (stdin, _typist) = pipe().unwrap();
    let ((_out, stdout), (_err, stderr)) = (pipe().unwrap(), pipe().unwrap());
    let told = RefCell::new(Vec::new());
    let forward = |signal| {
        told.borrow_mut().push(signal);
        Ok(())
    };
    let attachment = attachable.attachment(None);
    let caller = caller(&stdin, &stdout, &stderr);
    let mut wire = AttachLoop::new(attachment, caller, Some(&forward)).unwrap();
    for (signal, left) in [
        (Signal::USR1, None),
        (Signal::HUP, None),
        (Signal::WINCH, None),
        (Signal::TERM, Some(AttachEnd::Interrupted(15))),
    ] {
        assert_eq!(wire.take_signal(signal.as_raw()), left);
    }
    assert_eq!(*told.borrow(), [Signal::USR1.as_raw(), Signal::HUP.as_raw()]);
}
