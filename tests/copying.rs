//! `tare cp` copies files and directories into a box and out of it.

use std::ffi::{OsStr, OsString};
use std::fs::{self, Permissions};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
use std::process::{Command, Stdio};
use std::time::Duration;

use rustix::process::Signal;
use tare_harness::fixture::tree;
use tare_harness::{Output, Tare, TemporaryDirectory, eventually, tare};

/// A call that has nothing to wait for returns within this time on any machine.
const SOON: Duration = Duration::from_secs(10);

/// A directory with every kind of file that can be copied.
fn sample() -> TemporaryDirectory {
    let directory = TemporaryDirectory::new();
    let fresh = "the directory is fresh";
    fs::create_dir_all(directory.join("d/deep/empty")).expect(fresh);
    for (name, content, mode) in [
        ("d/one", "one\n", 0o644),
        ("d/none", "", 0o600),
        ("d/deep/program", "#!/bin/sh\necho runs\n", 0o755),
    ] {
        let path = directory.write(name, content);
        fs::set_permissions(path, Permissions::from_mode(mode)).expect(fresh);
    }
    symlink("one", directory.join("d/link")).expect(fresh);
    symlink("/nowhere/at/all", directory.join("d/broken")).expect(fresh);
    directory
}

#[track_caller]
fn copy(tare: &Tare, from: impl AsRef<OsStr>, to: impl AsRef<OsStr>) -> Output {
    tare.call([OsStr::new("cp"), from.as_ref(), to.as_ref()])
}

/// Runs a script in the box and returns its output.
#[track_caller]
fn inside(tare: &Tare, script: &str) -> String {
    tare.exec("a", ["sh", "-c", script]).ok().stdout_text()
}

#[track_caller]
fn start(tare: &Tare, options: &[&str]) -> String {
    let command = ["--name", "a", "--", "sleep", "1000"];
    tare.detached(options.iter().chain(&command))
}

#[test]
fn cp_copies_a_file_in_and_out() {
    let tare = tare!();
    let id = start(&tare, &[]);
    let directory = TemporaryDirectory::new();
    let content: Vec<u8> = (0..=255).cycle().take(300_000).collect();
    let file = directory.write("file", &content);
    copy(&tare, &file, "a:/work/named").ok().printed("").said_nothing();
    copy(&tare, &file, "a:/work").ok();
    copy(&tare, &file, "a:/work/").ok();
    assert_eq!(inside(&tare, "cd /work; cmp named file && ls; id -un"), "file\nnamed\nbox\n");
    assert_eq!(inside(&tare, "stat -c '%U %G %a' /work/named"), "box box 644\n");
    let out = directory.join("out");
    copy(&tare, "a:/work/named", &out).ok().printed("").said_nothing();
    assert_eq!(fs::read(&out).unwrap(), content);
    assert_eq!(out.metadata().unwrap().uid(), rustix::process::geteuid().as_raw());
    copy(&tare, "a:/work/named", directory.path()).ok();
    assert_eq!(fs::read(directory.join("named")).unwrap(), content);
    // A smaller one over a larger one leaves no tail.
    let small = directory.write("small", "small\n");
    copy(&tare, &small, "a:/work/named").ok();
    copy(&tare, "a:/work/named", &out).ok();
    assert_eq!(fs::read(&out).unwrap(), b"small\n");
    tare.remove(&id);
}

#[test]
fn cp_copies_a_directory_in_and_out() {
    let tare = tare!();
    let id = start(&tare, &[]);
    let sample = sample();
    let source = sample.join("d");
    // New, then into what is there, then only what is in it.
    copy(&tare, &source, "a:/work/new").ok().said_nothing();
    copy(&tare, &source, "a:/work/new").ok();
    copy(&tare, source.join("."), "a:/tmp").ok();
    assert_eq!(
        inside(&tare, "/work/new/deep/program; cat /work/new/d/link /tmp/one"),
        "runs\none\none\n"
    );
    let strangers = "find /work/new /tmp -mindepth 1 -not -user box";
    assert_eq!(inside(&tare, strangers), "");
    inside(&tare, "rm -r /work/new/d");
    let out = TemporaryDirectory::new();
    copy(&tare, "a:/work/new", out.join("new")).ok().said_nothing();
    assert_eq!(tree(&out.join("new")), tree(&source));
    copy(&tare, "a:/work/new", out.join("new")).ok();
    assert_eq!(tree(&out.join("new/new")), tree(&source));
    copy(&tare, "a:/work/new/.", out.path()).ok();
    assert_eq!(fs::read(out.join("one")).unwrap(), b"one\n");
    tare.remove(&id);
}

#[test]
fn cp_refuses_what_docker_cp_refuses() {
    let tare = tare!();
    let id = start(&tare, &[]);
    let sample = sample();
    let (file, directory) = (sample.join("d/one"), sample.join("d"));
    let refused = |from: &OsStr, to: &OsStr| {
        let output = copy(&tare, from, to).exited(1).printed("");
        assert_eq!(output.stderr_text().lines().count(), 1, "{output}");
    };
    let boxed = |text: &str| OsString::from(text);
    refused(file.as_ref(), &boxed("a:/no/such/file"));
    refused(file.as_ref(), &boxed("a:/work/new/"));
    refused(directory.as_ref(), &boxed("a:/etc/passwd"));
    refused(directory.as_ref(), &boxed("a:/no/such"));
    refused(sample.join("nothing").as_ref(), &boxed("a:/work"));
    refused(&boxed("a:/no/such"), sample.path().as_ref());
    refused(&boxed("a:/etc"), file.as_ref());
    refused(&boxed("a:/etc/passwd"), sample.join("no/such").as_ref());
    refused(&boxed("a:/etc/passwd/x"), sample.path().as_ref());
    assert_eq!(inside(&tare, "ls /work"), "");
    for (from, to) in [("/etc/passwd", "/tmp/x"), ("a:/etc", "a:/tmp"), ("-", "-"), ("", "a:/x")] {
        copy(&tare, from, to).exited(2).printed("");
    }
    tare.call(["cp", "a:/etc"]).exited(2);
    tare.remove(&id);
}

#[test]
fn cp_copies_a_tar_stream_in_and_out() {
    let tare = tare!();
    let id = start(&tare, &[]);
    let sample = sample();
    let tar = |args: &[&str]| {
        let mut command = Command::new("tar");
        command.arg("-C").arg(sample.path()).args(args);
        command.stderr(Stdio::inherit()).output().expect("tar is there")
    };
    let packed = tar(&["-c", "d"]);
    assert!(packed.status.success());
    tare.call_with_stdin(packed.stdout, ["cp", "-", "a:/work"]).ok().printed("").said_nothing();
    assert_eq!(inside(&tare, "/work/d/deep/program; stat -c %U /work/d/one"), "runs\nbox\n");
    let stream = tare.call(["cp", "a:/work/d", "-"]).ok().said_nothing();
    let archive = sample.write("out.tar", &stream.stdout);
    fs::create_dir(sample.join("out")).unwrap();
    let unpacked = tar(&["-x", "-C", "out", "--no-same-owner", "-f", archive.to_str().unwrap()]);
    assert!(unpacked.status.success());
    assert_eq!(tree(&sample.join("out/d")), tree(&sample.join("d")));
    for garbage in [&b"no archive at all"[..], b"\0", &[0xff; 2048]] {
        tare.call_with_stdin(garbage, ["cp", "-", "a:/work"]).exited(1).printed("");
    }
    tare.call_with_stdin(*b"", ["cp", "-", "a:/no/such"]).exited(1);
    tare.remove(&id);
}

#[test]
fn cp_names_special_files_and_copies_the_rest() {
    let tare = tare!();
    let id = start(&tare, &[]);
    inside(
        &tare,
        "cd /work; mkdir d; mkfifo pipe d/pipe-in-d; echo first >d/a; echo last >d/z; python3 -c 'import socket; socket.socket(socket.AF_UNIX).bind(\"sock\")'",
    );
    let out = TemporaryDirectory::new();
    for (path, name) in [
        ("/work/pipe", "pipe"),
        ("/work/sock", "sock"),
        ("/work/d", "pipe-in-d"),
        ("/dev/null", "null"),
        ("/dev/zero", "zero"),
    ] {
        let output = copy(&tare, format!("a:{path}"), out.join("x")).exited(1);
        assert!(output.lasted < SOON, "{output}");
        output.said(&[name]);
    }
    let copied = |name: &str| fs::read_to_string(out.join("x").join(name)).unwrap();
    assert_eq!((copied("a"), copied("z")), ("first\n".to_owned(), "last\n".to_owned()));
    let host = TemporaryDirectory::new();
    fs::create_dir(host.join("d")).unwrap();
    fs::write(host.join("d/a"), "first\n").unwrap();
    fs::write(host.join("d/z"), "last\n").unwrap();
    let made = Command::new("mkfifo").arg(host.join("d/pipe-of-host")).status();
    assert!(made.expect("mkfifo is there").success());
    for from in [host.join("d"), host.join("d/pipe-of-host")] {
        let output = copy(&tare, from, "a:/work/y").exited(1);
        assert!(output.lasted < SOON, "{output}");
        output.said(&["pipe-of-host"]);
    }
    let arrived = tare.call(["exec", "a", "--", "cat", "/work/y/a", "/work/y/z"]).ok();
    arrived.printed("first\nlast\n");
    tare.remove(&id);
}

#[test]
fn cp_keeps_hostile_file_names_unchanged() {
    let tare = tare!();
    let id = start(&tare, &[]);
    let source = TemporaryDirectory::new();
    fs::create_dir(source.join("d")).unwrap();
    let long = vec![b'n'; 255];
    let names: [&[u8]; 11] = [
        b"a b",
        b"-rf",
        b"new\nline",
        b"\xff\xfe",
        "é".as_bytes(),
        b"..hidden",
        b"a:b",
        b"\x1b[31m",
        b"*",
        b"~",
        &long,
    ];
    for name in names {
        fs::write(source.join("d").join(OsStr::from_bytes(name)), name).unwrap();
    }
    let mut deep = source.join("d");
    for _ in 0..12 {
        deep.push(OsStr::from_bytes(&long[..200]));
        fs::create_dir(&deep).unwrap();
    }
    fs::write(deep.join("end"), "end\n").unwrap();
    copy(&tare, source.join("d"), "a:/work/in").ok().said_nothing();
    let out = TemporaryDirectory::new();
    copy(&tare, "a:/work/in", out.join("out")).ok().said_nothing();
    assert_eq!(tree(&out.join("out")), tree(&source.join("d")));
    copy(&tare, "a:/work/in/a:b", out.join("x")).ok();
    assert_eq!(fs::read(out.join("x")).unwrap(), b"a:b");
    tare.remove(&id);
}

/// The file has 200 MiB; the box has 32 MiB of memory, including its keeper, and the caller 64 MiB
/// of address space.
#[test]
fn cp_copies_a_large_file_in_constant_memory() {
    let tare = tare!();
    let directory = TemporaryDirectory::new();
    let volume = format!("{}:/data", directory.text());
    let id = start(&tare, &["--memory", "32m", "-v", &volume]);
    let path = directory.text();
    let make = format!("seq 100000000 | head -c 200m > {path}/large");
    assert!(Command::new("sh").args(["-c", &make]).status().unwrap().success());
    let limited = |call: &str| {
        let script = format!("ulimit -v 65536; cd {path}; exec \"$TARE\" cp {call}");
        tare.spawn_script(&script).wait().ok().said_nothing();
    };
    limited("large a:/data/in");
    limited("a:/data/in out");
    for name in ["in", "out"] {
        let compared = Command::new("cmp").args(["large", name]).current_dir(path).status();
        assert!(compared.unwrap().success(), "{name} is another file");
    }
    tare.remove(&id);
}

/// A client that is killed during a copy leaves the old file and no temporary file.
#[test]
fn a_killed_cp_changes_nothing() {
    let tare = tare!();
    let id = start(&tare, &[]);
    let directory = TemporaryDirectory::new();
    let old = directory.write("old", "old\n");
    let source = TemporaryDirectory::new();
    let large = source.join("large");
    fs::File::create_new(&large).unwrap().set_len(200 << 20).unwrap();
    inside(&tare, "echo old > /work/f; truncate -s 200M /tmp/large");
    let before = tare.workload(&id).len();
    let (old_path, large_path) = (old.display().to_string(), large.display().to_string());
    for (from, to) in [("a:/tmp/large", &*old_path), (&*large_path, "a:/work/f")] {
        let client = tare.spawn_call(["cp", from, to]);
        eventually("the box copies", || tare.workload(&id).len() > before);
        client.signal(Signal::KILL);
        client.wait().exited(-9);
        eventually("the box does not copy any more", || tare.workload(&id).len() == before);
    }
    assert_eq!(fs::read(&old).unwrap(), b"old\n");
    assert_eq!(fs::read_dir(directory.path()).unwrap().count(), 1);
    assert_eq!(inside(&tare, "cat /work/f; ls -A /work"), "old\nf\n");
    tare.remove(&id);
}

#[test]
fn cp_keeps_the_old_file_when_the_new_content_does_not_fit() {
    let tare = tare!();
    let id = start(&tare, &["--scratch", "16m"]);
    let directory = TemporaryDirectory::new();
    let new = directory.write("new", vec![b'x'; 10 << 20]);
    inside(&tare, "head -c 10485760 /dev/zero > /work/f");
    copy(&tare, &new, "a:/work/f")
        .exited(1)
        .said(&["no room for it beside the old file, which is unchanged", "--scratch"]);
    let shown = "head -c 10485760 /dev/zero | cmp - /work/f && ls -A /work";
    assert_eq!(inside(&tare, shown), "f\n");
    tare.remove(&id);
}

#[test]
fn cp_names_a_destination_that_is_read_only_or_too_small() {
    let tare = tare!();
    let id = start(&tare, &["--scratch", "16m"]);
    let directory = TemporaryDirectory::new();
    let file = directory.write("file", "content\n");
    for place in ["/usr/file", "/etc/file", "/proc/file", "/file"] {
        copy(&tare, &file, format!("a:{place}")).exited(1).said(&[place]);
    }
    let refused = copy(&tare, &file, "a:/usr/file").exited(1);
    assert_eq!(
        refused.stderr_text(),
        "tare: box a did not copy: cannot write to /usr/file: Read-only file system (/work and \
         /tmp are writable)\n"
    );
    let large = directory.write("large", vec![b'x'; 32 << 20]);
    copy(&tare, large, "a:/work/large").exited(1).said(&["large", "No space left", "--scratch"]);
    assert_eq!(inside(&tare, "echo alive"), "alive\n");
    tare.remove(&id);
}

#[test]
fn cp_names_an_unknown_box() {
    let tare = tare!();
    let directory = TemporaryDirectory::new();
    let file = directory.write("file", "content\n");
    copy(&tare, &file, "nothing:/work").exited(1).said(&["there is no box 'nothing'"]);
    let id = tare.detached(["--name", "a", "--", "true"]);
    tare.ended(&id);
    copy(&tare, &file, "a:/work").exited(1).said(&["a", "ended"]);
    copy(&tare, "a:/etc/passwd", directory.path()).exited(1).said(&["a", "ended"]);
    tare.remove(&id);
}
