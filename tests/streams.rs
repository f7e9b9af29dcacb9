//! Standard input, output and error of a box: forwarded unchanged, at once, and in order.

use std::fs;
use std::io::Read;
use std::process::Stdio;
use std::time::Duration;

use tare_harness::{TemporaryDirectory, poll, tare};

/// A call that has nothing to wait for returns well within this, on any machine.
const SOON: Duration = Duration::from_secs(10);

#[test]
fn every_byte_value_passes_both_ways() {
    let tare = tare!();
    let all: Vec<u8> = (0..=255).collect();
    let output = tare.with_stdin(all.clone(), ["--", "cat"]).ok().said_nothing();
    assert_eq!(output.stdout, all);
}

#[test]
fn ten_megabytes_of_output_arrive_in_order() {
    let tare = tare!();
    let script = "import sys; sys.stdout.buffer.write(b''.join(i.to_bytes(8, 'big') for i in range(1310720)))";
    let output = tare.run(["--", "python3", "-c", script]).ok();
    let expected: Vec<u8> = (0..1_310_720_u64).flat_map(u64::to_be_bytes).collect();
    assert!(output.stdout == expected, "{} bytes came", output.stdout.len());
}

#[test]
fn ten_megabytes_of_input_reach_the_command() {
    let tare = tare!();
    let input: Vec<u8> = (0..1_310_720_u64).flat_map(u64::to_be_bytes).collect();
    let output = tare.with_stdin(input.clone(), ["--", "cat"]).ok();
    assert!(output.stdout == input, "{} bytes came back", output.stdout.len());
}

#[test]
fn the_two_outputs_are_not_mixed() {
    let tare = tare!();
    tare.run(["--", "sh", "-c", "echo out; echo err >&2"]).ok().printed("out\n").said(&["err"]);
}

#[test]
fn output_is_forwarded_at_once() {
    let tare = tare!();
    let mut running = tare.spawn(["--", "sh", "-c", "echo ready; read answer; echo got $answer"]);
    running.see("ready");
    running.write(b"it\n");
    running.see("got it");
    running.wait().ok();
}

#[test]
fn the_end_of_input_reaches_the_command() {
    let tare = tare!();
    tare.with_stdin("no newline", ["--", "sh", "-c", "cat; echo; echo done"])
        .ok()
        .printed("no newline\ndone\n");
}

#[test]
fn an_empty_input_ends_at_once() {
    let tare = tare!();
    tare.run(["--", "sh", "-c", "cat; echo over"]).ok().printed("over\n");
}

#[test]
fn unread_input_blocks_nothing() {
    let tare = tare!();
    let output =
        tare.with_stdin(vec![b'x'; 4 << 20], ["--", "echo", "over"]).ok().printed("over\n");
    assert!(output.lasted < SOON, "{output}");
}

#[test]
fn an_open_input_does_not_delay_the_end() {
    let tare = tare!();
    let running = tare.spawn(["--", "sh", "-c", "echo over"]);
    running.see("over");
    tare_harness::eventually("tare ends though its input is open", || running.has_ended());
    running.wait().ok();
}

#[test]
fn a_closed_input_is_empty() {
    let tare = tare!();
    tare.shell("exec \"$TARE\" run -- sh -c 'cat; echo done' <&-").ok().printed("done\n");
}

#[test]
fn closed_outputs_are_not_an_error() {
    let tare = tare!();
    tare.shell("exec \"$TARE\" run -- true >&-").ok();
    tare.shell("exec \"$TARE\" run -- true 2>&-").ok();
    tare.shell("exec \"$TARE\" run -- sh -c 'exit 3' <&- >&- 2>&-").exited(3);
}

/// A descriptor that tare opens for itself must not land on a closed 1 or 2 and
/// receive the output of the box.
#[test]
fn output_for_a_closed_stream_is_discarded() {
    let tare = tare!();
    let output = tare.shell("exec \"$TARE\" run -- sh -c 'echo lost; echo kept >&2' >&-");
    assert_eq!(output.stdout_text(), "");
    assert!(output.stderr_text().contains("kept\n"), "{output}");
}

#[test]
fn a_reader_that_goes_away_ends_the_box() {
    let tare = tare!();
    let output = tare.shell("\"$TARE\" run -- yes | head -n 1").ok().printed("y\n");
    assert!(output.lasted < SOON, "{output}");
}

#[test]
fn a_failed_write_of_output_is_an_error() {
    let tare = tare!();
    let output = tare.shell("exec \"$TARE\" run -- echo lost > /dev/full");
    assert_ne!(output.code, 0, "{output}");
    output.said(&["No space left on device"]);
}

#[test]
fn output_is_appended_to_a_redirected_file() {
    let tare = tare!();
    let directory = TemporaryDirectory::new();
    let file = directory.write("log", "first\n");
    let script = format!("exec \"$TARE\" run -- echo second >> {}", file.display());
    tare.shell(&script).ok();
    assert_eq!(fs::read_to_string(file).unwrap(), "first\nsecond\n");
}

#[test]
fn an_input_file_is_read_to_its_end() {
    let tare = tare!();
    let directory = TemporaryDirectory::new();
    let content = "line\n".repeat(100_000);
    let file = directory.write("input", &content);
    let script = format!("exec \"$TARE\" run -- cat < {}", file.display());
    let output = tare.shell(&script).ok();
    assert!(output.stdout_text() == content);
}

#[test]
fn a_background_child_that_holds_stdout_does_not_delay_the_run() {
    let tare = tare!();
    let output = tare.run(["--", "sh", "-c", "sleep 1000 & echo hi"]).ok().printed("hi\n");
    assert!(output.lasted < SOON, "{output}");
}

#[test]
fn the_last_output_of_a_command_is_not_lost() {
    let tare = tare!();
    for _ in 0..20 {
        let output = tare
            .run(["--", "sh", "-c", "sleep 1000 & head -c 60000 /dev/zero; kill -9 $$"])
            .exited(137);
        assert_eq!(output.stdout.len(), 60_000, "{output}");
    }
}

/// The caller's own descriptors keep their flags, whatever the box does to
/// the streams it was given.
#[test]
fn a_box_cannot_make_the_callers_streams_non_blocking() {
    let tare = tare!();
    let script = "import fcntl, os
for fd in (0, 1, 2):
    fcntl.fcntl(fd, fcntl.F_SETFL, fcntl.fcntl(fd, fcntl.F_GETFL) | os.O_NONBLOCK)
print(all(fcntl.fcntl(fd, fcntl.F_GETFL) & os.O_NONBLOCK for fd in (0, 1, 2)))";
    let (mut reader, writer) = std::io::pipe().unwrap();
    let mut command = tare.command(["run", "--", "python3", "-c", script]);
    command.stdin(Stdio::null()).stdout(writer.try_clone().unwrap()).stderr(Stdio::inherit());
    tare.start_command(command).wait().ok();
    let flags = rustix::fs::fcntl_getfl(&writer).unwrap();
    assert!(!flags.contains(rustix::fs::OFlags::NONBLOCK));
    drop(writer);
    let mut printed = String::new();
    reader.read_to_string(&mut printed).unwrap();
    assert_eq!(printed, "True\n");
}

#[test]
fn streams_can_be_opened_again_by_name() {
    let tare = tare!();
    let script = "echo out > /dev/stdout; echo err > /dev/stderr; cat /dev/stdin; echo more | tee /dev/stderr";
    for options in [&[][..], &["--root"], &["-u", "77:78"], &["--contain"]] {
        let mut call = options.to_vec();
        call.extend(["--", "sh", "-c", script]);
        let output = tare.with_stdin("in\n", call).ok().printed("out\nin\nmore\n");
        assert_eq!(output.stderr_text(), "err\nmore\n", "{output}");
    }
}

/// A pipe that is full: nothing more can be written into it without waiting.
fn full_pipe() -> (std::io::PipeReader, std::io::PipeWriter) {
    let (reader, writer) = std::io::pipe().expect("a pipe of our own");
    let flags = rustix::fs::fcntl_getfl(&writer).expect("a pipe of our own");
    rustix::fs::fcntl_setfl(&writer, flags | rustix::fs::OFlags::NONBLOCK)
        .expect("a pipe of our own");
    while rustix::io::write(&writer, &[0; 4096]).is_ok() {}
    rustix::fs::fcntl_setfl(&writer, flags).expect("a pipe of our own");
    (reader, writer)
}

#[test]
fn a_command_without_output_does_not_wait_for_a_full_stdout() {
    let tare = tare!();
    let (reader, writer) = full_pipe();
    let mut command = tare.command(["run", "--", "true"]);
    let mut child = command.stdin(Stdio::null()).stdout(writer).spawn().unwrap();
    drop(command);
    let ended = poll(SOON, || child.try_wait().unwrap().is_some());
    drop(reader);
    assert!(child.wait().unwrap().success() && ended, "it waited for its reader: {}", !ended);
}
