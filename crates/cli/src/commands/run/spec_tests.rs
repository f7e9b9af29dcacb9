//! Command lines, and the spec or the one line that they give.

use std::time::Duration;

use clap::Parser;

use super::*;
use crate::cli::{Cli, Command};
use crate::commands::run::RunArgs;
use crate::error::sentence;
use crate::usage;
use tare_engine::spec::{Access, Cpus};

fn caller() -> CallerContext {
    CallerContext {
        current_dir: Some("/home/me".into()),
        user: User { uid: 501, gid: 502 },
        window: None,
        env: [("PATH", "/my/bin"), ("HOME", "/home/me"), ("TERM", "vt220")]
            .map(|(key, value)| (key.into(), value.into()))
            .to_vec(),
    }
}

fn line<'a>(words: &[&'a str]) -> Vec<&'a str> {
    [&["tare", "run"], words, &["true"]].concat()
}

pub fn args(words: &[&str]) -> Box<RunArgs> {
    let Command::Run(args) = Cli::try_parse_from(line(words)).unwrap().command else {
        panic!("not run");
    };
    args
}

pub fn request(words: &[&str]) -> RunPlan {
    plan(&args(words), &caller()).unwrap()
}

/// Found while the line is read, or while it is understood.
fn refusal(words: &[&str]) -> String {
    let error = match Cli::try_parse_from(line(words)) {
        Ok(_) => plan(&args(words), &caller()).unwrap_err(),
        Err(error) => usage::explain(&error, &["tare".into(), "run".into()]),
    };
    assert_eq!(crate::exit::run_code(&error), 125);
    sentence(&error)
}

fn env_of(request: &RunPlan) -> Vec<String> {
    let pairs = request.spec.env.iter();
    let show = |(key, value): &command::Variable| format!("{}={}", key.display(), value.display());
    pairs.map(show).collect()
}

#[test]
fn wrong_values_are_one_line_with_the_value_and_what_is_accepted() {
    for (words, expected) in [
        (
            &["--memory", "10"][..],
            "bad value for --memory: '10' is too small, the least is 6 MiB \
             (write a size such as 64k, 512m, 1.5g or 1048576)",
        ),
        (
            &["--memory", "banana"],
            "bad value for --memory: 'banana' is not a size \
             (write a size such as 64k, 512m, 1.5g or 1048576)",
        ),
        (
            &["--memory", "-1"],
            "bad value for --memory: '-1' is not a size \
             (write a size such as 64k, 512m, 1.5g or 1048576)",
        ),
        (
            &["--cpus", "0"],
            "bad value for --cpus: '0' is too small, the least is 0.01 (write a number from 0.01 \
             to 1024 with at most three decimals, such as 0.5 or 2)",
        ),
        (
            &["--cpus", "NaN"],
            "bad value for --cpus: 'NaN' is not a number of processors (write a number from \
             0.01 to 1024 with at most three decimals, such as 0.5 or 2)",
        ),
        (
            &["--name", "../x"],
            "bad value for --name: '../x' is not a name (a name has 1 to 63 letters, digits, \
             '_', '.' or '-', and begins with a letter or digit)",
        ),
        (
            &["-e", "NOEQUALS"],
            "bad value for --env: 'NOEQUALS' is an environment variable without '=' \
             (write KEY=VALUE; the host's environment is not passed in)",
        ),
        (
            &["--pids", "0"],
            "bad value for --pids: '0' is too small, the least is 1 \
             (write a whole number from 1 to 4194303)",
        ),
        (
            &["-u", "root"],
            "bad value for --user: 'root' is not a user of a box (write UID or UID:GID in \
             digits, each from 0 to 65533; names are not looked up)",
        ),
        (
            &["-w", "tmp"],
            "bad value for --workdir: 'tmp' is not absolute \
             (name a directory of the box, such as /work)",
        ),
        (
            &["-t"],
            "--tty needs a terminal, and standard input is not one \
             (leave -t out; output then comes through pipes)",
        ),
    ] {
        assert_eq!(refusal(words), expected);
    }
}

#[test]
fn a_name_of_five_thousand_bytes_does_not_flood_the_terminal() {
    let line = refusal(&["--name", &"n".repeat(5000)]);
    assert!(line.contains("(5000 bytes) is not a name"), "{line}");
    assert!(line.len() < 300, "{line}");
}

#[test]
fn every_other_value_is_refused_by_its_option_too() {
    for (words, beginning) in [
        (&["--timeout", "0"][..], "bad value for --timeout: '0' is too small, the least is 1ms"),
        (&["--nofile", "1"], "bad value for --nofile: '1' is too small, the least is 16"),
        (&["--scratch", "1k"], "bad value for --scratch: '1k' is too small"),
        (&["--output-limit", "0"], "bad value for --output-limit: '0' is too small"),
        (&["--label", "x"], "bad value for --label: 'x' is a label without '='"),
        (&["-v", "/x"], "bad value for --volume: '/x' is not a volume"),
        (&["-v", "/:/x"], "bad value for --volume: '/:/x' would bind the host's /"),
        (&["-v", "/a:/x", "-v", "/b:/x"], "bad value for --volume: two volumes"),
        (&["--env-file", "/nope"], "bad value for --env-file: cannot read '/nope': No such"),
        (&["--env-file", "/dev/zero"], "bad value for --env-file: '/dev/zero' is too large"),
        (&["-e", "HOME=/\nroot2::0:0::/:"], "bad value for --env: 'HOME=/\\nroot2"),
    ] {
        let line = refusal(words);
        assert!(line.starts_with(beginning), "{line}");
    }
}

#[test]
fn a_command_that_is_an_empty_word_is_refused() {
    let mut args = args(&[]);
    args.process.command = vec!["".into()];
    let error = plan(&args, &caller()).unwrap_err();
    assert_eq!(sentence(&error), "the command is an empty word (name a program to run)");
}

#[test]
fn the_defaults_are_those_of_the_help() {
    let request = request(&[]);
    let spec = &request.spec;
    assert_eq!(spec.command, ["true"]);
    assert_eq!(spec.limits.memory_bytes, Limit::Default(512 << 20));
    assert_eq!(spec.limits.pids, Limit::Default(256));
    assert_eq!((spec.limits.cpus, spec.limits.nofile), (None, 1024));
    assert_eq!(spec.limits.scratch_bytes, Limit::Default(256 << 20));
    assert_eq!((spec.timeout, &spec.workdir), (None, &None));
    assert_eq!(spec.user, defaults::USER);
    assert_eq!(spec.privilege, Privilege::Unprivileged);
    assert_eq!((spec.network, spec.isolation), (Network::None, Isolation::Full));
    assert_eq!(spec.seccomp, SeccompProfile::Default);
    assert_eq!((&spec.root, spec.terminal), (&Root::HostView, Terminal::Pipes));
    assert_eq!(request.relay.output_bytes_max, 64 << 20);
    assert_eq!(request.stdin, Stdin::Pipe);
    let path = "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin:/work/.local/bin";
    assert_eq!(env_of(&request), [path, "HOME=/work", "LANG=C.UTF-8", PIP]);
}

/// Debian's pip refuses to install packages without it.
const PIP: &str = "PIP_BREAK_SYSTEM_PACKAGES=1";

#[test]
fn explicit_limits_are_marked_as_explicit() {
    let spec = request(&[
        "--memory",
        "64m",
        "--cpus",
        "1.5",
        "--pids",
        "5",
        "--nofile",
        "64",
        "--timeout",
        "1m",
        "--scratch",
        "1m",
        "--net",
        "host",
        "--seccomp",
        "strict",
        "-v",
        "data:/d:ro",
        "-w",
        "/d",
        "--rootfs",
        "img",
        "--name",
        "n",
        "--label",
        "a=b",
        "-u",
        "7",
    ])
    .spec;
    assert_eq!(spec.limits.memory_bytes, Limit::Asked(64 << 20));
    assert_eq!(spec.limits.pids, Limit::Asked(5));
    assert_eq!(spec.limits.cpus, Some(Cpus { milli: 1500 }));
    assert_eq!(spec.timeout, Some(Duration::from_secs(60)));
    assert_eq!(spec.root, Root::Directory("/home/me/img".into()));
    assert_eq!(spec.volumes[0].host, Path::new("/home/me/data"));
    assert_eq!(spec.volumes[0].access, Access::ReadOnly);
    assert_eq!(spec.workdir, Some("/d".into()));
    assert_eq!((spec.user.uid, spec.user.gid), (7, 7));
    assert_eq!((spec.network, spec.seccomp), (Network::Host, SeccompProfile::Strict));
}

#[test]
fn only_the_option_root_makes_a_box_root() {
    let zero = request(&["-u", "0"]).spec;
    assert_eq!((zero.user, zero.privilege), (defaults::BOX_ROOT, Privilege::Unprivileged));
    let root = request(&["--root"]);
    assert_eq!(root.spec.privilege, Privilege::BoxRoot);
    assert!(env_of(&root).contains(&"HOME=/work".to_owned()));
    let image = request(&["--root", "--rootfs", "/img"]);
    assert_eq!((image.spec.user, image.spec.privilege), (defaults::BOX_ROOT, Privilege::BoxRoot));
    assert!(env_of(&image).contains(&"HOME=/root".to_owned()));
}

#[test]
fn containment_takes_the_caller_as_it_is() {
    let request = request(&["--contain"]);
    let spec = &request.spec;
    assert_eq!(spec.isolation, Isolation::Contain);
    assert_eq!(spec.user, caller().user);
    assert_eq!((spec.network, spec.seccomp), (Network::Host, SeccompProfile::Unconfined));
    assert_eq!(spec.workdir, Some("/home/me".into()));
    assert_eq!(env_of(&request), ["PATH=/my/bin", "HOME=/home/me", "LANG=C.UTF-8"]);
}

#[test]
fn a_terminal_brings_its_size_and_its_name() {
    let caller = CallerContext { window: Some((40, 100)), ..caller() };
    let with_terminal = plan(&args(&["-it"]), &caller).unwrap();
    let size = Terminal::Pty { rows: 40, columns: 100 };
    assert_eq!(with_terminal.spec.terminal, size);
    assert!(env_of(&with_terminal).contains(&"TERM=vt220".to_owned()));
    assert_eq!(plan(&args(&[]), &caller).unwrap().stdin, Stdin::Empty);
    assert_eq!(plan(&args(&["-i"]), &caller).unwrap().stdin, Stdin::Pipe);
}

#[test]
fn the_command_lines_variables_win_over_those_of_files() {
    let file = std::env::temp_dir().join(format!("tare-env-{}", std::process::id()));
    std::fs::write(&file, "A=file\nB=file\nHOME=/file\n").unwrap();
    let request = request(&["-e", "A=1", "--env-file", file.to_str().unwrap(), "-e", "A=2"]);
    std::fs::remove_file(file).unwrap();
    assert_eq!(env_of(&request)[1..], ["HOME=/file", "LANG=C.UTF-8", PIP, "A=2", "B=file"]);
}
