//! Signals that reach the command, and `-t`: a real terminal.

use rustix::process::Signal;
use tare_harness::{Tare, TerminalSize, tare};

const SIZE: TerminalSize = TerminalSize { rows: 33, columns: 101 };

/// Says `ready`, then each signal it gets, and ends at the one called `last`.
const LISTENER: &str = "trap 'echo caught INT; exit 3' INT; trap 'echo caught TERM; exit 4' TERM; trap 'echo caught HUP; exit 5' HUP
echo ready; while :; do sleep 0.02; done";

const STUBBORN: &str = "import os, signal
def handler(number, frame):
    os.write(1, b'ignored %d\\n' % number)
for number in (signal.SIGINT, signal.SIGTERM):
    signal.signal(number, handler)
os.write(1, b'ready\\n')
while True:
    signal.pause()";

#[test]
fn a_signal_to_tare_reaches_the_command() {
    let tare = tare!();
    for (signal, name, code) in
        [(Signal::INT, "INT", 3), (Signal::TERM, "TERM", 4), (Signal::HUP, "HUP", 5)]
    {
        let running = tare.spawn(["--", "sh", "-c", LISTENER]);
        running.see("ready").signal(signal);
        running.wait().exited(code).printed(&format!("ready\ncaught {name}\n"));
    }
}

#[test]
fn a_command_that_a_signal_kills_is_reported_as_such() {
    let tare = tare!();
    for (signal, code) in [(Signal::INT, 130), (Signal::TERM, 143)] {
        let running = tare.spawn(["--", "sh", "-c", "echo ready; exec sleep 1000"]);
        running.see("ready").signal(signal);
        running.wait().exited(code);
    }
}

#[test]
fn a_second_signal_ends_the_box() {
    let tare = tare!();
    for (signal, number) in [(Signal::INT, 2), (Signal::TERM, 15)] {
        let running = tare.spawn(["--", "python3", "-c", STUBBORN]);
        running.see("ready").signal(signal);
        running.see(&format!("ignored {number}")).signal(signal);
        let output = running.wait();
        assert!([128 + number, 137].contains(&output.code), "{output}");
    }
}

#[test]
fn a_command_gets_a_real_terminal_of_the_right_size() {
    let tare = tare!();
    let script = "tty; stty size; test -t 0 && test -t 1 && test -t 2 && echo all three";
    let session = tare.under_terminal(SIZE, ["-t", "--", "sh", "-c", script]);
    let (output, cooked) = session.wait();
    let output = output.ok();
    let screen = output.stdout_text();
    assert!(screen.contains("/dev/pts/"), "{screen:?}");
    assert!(screen.contains("33 101\r\n"), "{screen:?}");
    assert!(screen.contains("all three\r\n"), "{screen:?}");
    assert!(cooked, "the caller's terminal was not put back");
}

#[test]
fn without_t_there_is_no_terminal_inside() {
    let tare = tare!();
    let script = "test -t 0 || test -t 1 || test -t 2 || echo no terminal";
    let (output, _) = tare.under_terminal(SIZE, ["--", "sh", "-c", script]).wait();
    assert!(output.ok().stdout_text().contains("no terminal"));
}

#[test]
fn typed_input_reaches_the_command() {
    let tare = tare!();
    let mut session = tare.under_terminal(
        SIZE,
        ["-i", "-t", "--", "sh", "-c", "echo ready; read line; echo \"got <$line>\""],
    );
    session.see("ready");
    session.type_bytes(b"some words\r");
    session.see("got <some words>");
    let (output, cooked) = session.wait();
    output.ok();
    assert!(cooked);
}

#[test]
fn a_new_window_size_reaches_the_command() {
    let tare = tare!();
    let script = "trap 'stty size' WINCH; echo ready; while :; do sleep 0.02; done";
    let mut session = tare.under_terminal(SIZE, ["-i", "-t", "--", "sh", "-c", script]);
    session.see("ready");
    session.resize(TerminalSize { rows: 44, columns: 123 });
    session.see("44 123");
    session.type_bytes(b"\x03");
    let (output, cooked) = session.wait();
    output.exited(130);
    assert!(cooked);
}

#[test]
fn the_interrupt_key_ends_the_command() {
    let tare = tare!();
    let mut session =
        tare.under_terminal(SIZE, ["-i", "-t", "--", "sh", "-c", "echo ready; exec sleep 1000"]);
    session.see("ready");
    session.type_bytes(b"\x03");
    let (output, cooked) = session.wait();
    output.exited(130);
    assert!(cooked);
}

#[test]
fn the_interrupt_key_without_t_reaches_the_command() {
    let tare = tare!();
    let mut session = tare.under_terminal(SIZE, ["--", "sh", "-c", LISTENER]);
    session.see("ready");
    session.type_bytes(b"\x03");
    session.see("caught INT");
    let (output, _) = session.wait();
    output.exited(3);
}

#[test]
fn a_terminal_is_put_back_when_the_box_is_killed() {
    let tare = tare!();
    let session = tare.under_terminal(SIZE, ["-i", "-t", "--timeout", "1s", "--", "sleep", "1000"]);
    let (output, cooked) = session.wait();
    output.exited(124);
    assert!(cooked);
}

/// Runs tare under a terminal of its own, and hangs the terminal up when `ready` is on it. Prints
/// the exit code of tare.
const HANGS_UP: &str = "import os, pty, sys
pid, master = pty.fork()
if pid == 0:
    os.execv(sys.argv[1], sys.argv[1:])
seen = b''
while b'ready' not in seen:
    seen += os.read(master, 1000)
os.close(master)
print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))";

#[test]
fn a_terminal_that_hangs_up_ends_a_command_that_ignores_signals() {
    let tare = tare!();
    let ignores = "import signal
for number in (signal.SIGHUP, signal.SIGINT, signal.SIGTERM):
    signal.signal(number, signal.SIG_IGN)
print('ready', flush=True)
while True:
    signal.pause()";
    for options in [&[][..], &["-t"]] {
        let call = [
            &["-c", HANGS_UP, "TARE", "run", "--name", "hung-up"],
            options,
            &["--", "python3", "-c", ignores],
        ];
        let words: Vec<String> = call.concat().iter().map(|word| quoted(word)).collect();
        let script = format!("python3 {}", words.join(" ")).replace("'TARE'", "\"$TARE\"");
        tare.shell(&script).ok().printed("129\n");
        let explained = tare.json(["explain", "--json", "hung-up"]);
        assert_eq!(explained["cause"], "client_gone", "{explained}");
    }
    tare.nothing_left();
}

/// Answers each line, and says which signals it gets.
const ANSWERING: &str = "import signal, sys
for name in ('SIGHUP', 'SIGINT', 'SIGQUIT', 'SIGTERM', 'SIGUSR1'):
    signal.signal(getattr(signal, name), lambda number, frame: print('caught', number, flush=True))
print('ready', flush=True)
for line in sys.stdin:
    print('answer to', line.strip(), flush=True)
    if line.strip() == 'again':
        print('ready', flush=True)";

/// The command lives, has its input, and got no signal.
#[track_caller]
fn untouched(tare: &Tare, id: &str) {
    let mut attached = tare.spawn_call(["attach", id]);
    attached.write(b"still\n");
    attached.see("answer to still").signal(Signal::TERM);
    attached.wait().exited(143).said(&["left box", "keeps running"]);
    let logs = tare.call(["logs", id]).ok();
    assert!(!logs.stdout_text().contains("caught"), "{logs}");
    assert_eq!(tare.state(id), "running");
}

#[test]
fn a_box_keeps_running_when_its_attach_gets_a_signal() {
    let tare = tare!();
    for options in [&["-i"][..], &["-i", "-t"]] {
        let command = ["--", "python3", "-c", ANSWERING];
        let id = tare.detached([options, &command].concat());
        tare.logged(&id, "ready");
        for signal in [Signal::HUP, Signal::INT, Signal::QUIT, Signal::TERM, Signal::USR1] {
            let mut session = tare.call_under_terminal(SIZE, ["attach", &id]);
            session.type_bytes(b"hello\r");
            session.see("answer to hello").signal(signal);
            let (output, cooked) = session.wait();
            output.exited(128 + signal.as_raw());
            assert!(cooked, "the caller's terminal was not put back");
        }
        let mut session = tare.call_under_terminal(SIZE, ["attach", &id]);
        session.type_bytes(b"hello\r");
        session.see("answer to hello").signal(Signal::KILL);
        session.wait().0.exited(-9);
        untouched(&tare, &id);
        tare.remove(&id);
    }
}

#[test]
fn a_box_keeps_running_when_the_terminal_of_its_attach_is_closed() {
    let tare = tare!();
    for options in [&["-i"][..], &["-i", "-t"]] {
        let command = ["--", "python3", "-c", ANSWERING];
        let id = tare.detached([options, &command].concat());
        tare.logged(&id, "ready");
        let hangs_up = HANGS_UP.replace("seen = b''", "os.write(master, b'again\\r')\nseen = b''");
        let script = format!("python3 -c {} \"$TARE\" attach {id}", quoted(&hangs_up));
        let output = tare.shell(&script).ok();
        // The hang-up is seen as a signal or as a closed stdout. After a closed stdout, the signal can still
        // end tare: a shell shows that as 129 too.
        assert!(["129\n", "0\n", "-1\n"].contains(&output.stdout_text().as_str()), "{output}");
        untouched(&tare, &id);
        tare.remove(&id);
    }
}

#[test]
fn attach_passes_a_signal_on_if_it_is_asked_to() {
    let tare = tare!();
    for (signal, name, code) in
        [(Signal::INT, "INT", 3), (Signal::TERM, "TERM", 4), (Signal::HUP, "HUP", 5)]
    {
        let ticking = LISTENER.replace("do sleep", "do echo tick; sleep");
        let id = tare.detached(["--", "sh", "-c", &ticking]);
        let session = tare.call_under_terminal(SIZE, ["attach", "--forward-signals", &id]);
        session.see("tick").signal(signal);
        session.see(&format!("caught {name}"));
        session.wait().0.exited(code);
        tare.remove(&id);
    }
}

fn quoted(word: &str) -> String {
    format!("'{}'", word.replace('\'', "'\\''"))
}
