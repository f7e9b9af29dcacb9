//! `tare cp` against hostile boxes and hostile archives: neither can redirect a copy.

use std::ffi::OsStr;
use std::fs;
use std::process::Command;

use tare_harness::fixture::{compiled, tree};
use tare_harness::{Output, Tare, TemporaryDirectory, eventually, skip, tare};

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
fn start(tare: &Tare) -> String {
    tare.detached(["--name", "a", "--", "sleep", "1000"])
}

/// The archive itself is hostile; nothing of it may land elsewhere in the
/// box than beneath the directory that was asked for.
#[test]
fn a_hostile_archive_stays_beneath_its_directory() {
    let tare = tare!();
    let id = start(&tare);
    let script = "import io, sys, tarfile
archive = tarfile.open(fileobj=sys.stdout.buffer, mode='w|')
def add(name, kind=tarfile.REGTYPE, link=''):
    entry = tarfile.TarInfo(name)
    entry.type, entry.linkname, entry.size = kind, link, 4 if kind == tarfile.REGTYPE else 0
    archive.addfile(entry, io.BytesIO(b'evil'))
exec(sys.argv[1])
archive.close()";
    for entries in [
        "add('../evil')",
        "add('/tmp/evil')",
        "add('link', tarfile.SYMTYPE, '/tmp'); add('link/evil')",
        "add('link', tarfile.SYMTYPE, '../../tmp'); add('link/evil')",
        "add('x/../../evil')",
        "add('hard', tarfile.LNKTYPE, '/etc/passwd')",
        "add('hard', tarfile.LNKTYPE, '../../tmp/mine')",
        "add('pipe', tarfile.FIFOTYPE)",
        "add('device', tarfile.CHRTYPE)",
    ] {
        inside(&tare, "rm -rf /work/in; mkdir -p /work/in; echo mine > /tmp/mine");
        let archive = Command::new("python3").args(["-c", script, entries]).output();
        let archive = archive.expect("python is there").stdout;
        assert!(!archive.is_empty());
        let output = tare.call_with_stdin(archive, ["cp", "-", "a:/work/in"]);
        assert!([0, 1].contains(&output.code), "{entries}: {output}");
        let strays = "find / -xdev -name evil -not -path '/work/in/*' 2>/dev/null; find /work/in -links +1 -type f; find /work/in -type p -o -type c; cat /tmp/mine";
        assert_eq!(inside(&tare, &format!("{strays}; true")), "mine\n", "{entries}");
    }
    tare.remove(&id);
}

/// Links of the box mean the box's own files.
#[test]
fn cp_follows_no_symlink_of_a_box_to_the_host() {
    let tare = tare!();
    let id = start(&tare);
    let victim = TemporaryDirectory::new();
    victim.write("secret", "of the host\n");
    let before = tree(victim.path());
    let path = victim.text();
    let script = format!(
        "cd /work; ln -s {path} up; ln -s ../../../../../../../..{path} over; ln -s {path}/secret file
ln -s /proc/self/root{path} magic; ln -s /proc/1/root{path} first; ln -s {path}/new dangling"
    );
    inside(&tare, &script);
    let source = victim.write("source", "from the host\n");
    let before_all = tree(victim.path());
    assert_eq!(before_all.len(), before.len() + 1);
    let out = TemporaryDirectory::new();
    for link in ["up", "over", "magic", "first"] {
        copy(&tare, format!("a:/work/{link}/secret"), out.join("x")).exited(1);
        copy(&tare, &source, format!("a:/work/{link}/new")).exited(1);
    }
    for link in ["/proc/1/root", "/proc/self/root", "/proc/self/cwd", "/proc/1/cwd"] {
        copy(&tare, format!("a:{link}{path}/secret"), out.join("x")).exited(1);
    }
    for link in ["file", "dangling"] {
        // Whether the link is replaced or the copy refused, the host is as before.
        copy(&tare, &source, format!("a:/work/{link}"));
    }
    assert_eq!(tree(victim.path()), before_all);
    // Copied out, they are links as they were.
    copy(&tare, "a:/work", out.join("work")).ok();
    assert_eq!(fs::read_link(out.join("work/up")).unwrap(), victim.path());
    assert_eq!(tree(victim.path()), before_all);
    tare.remove(&id);
}

/// A first copy brings a link to the host, a second one a file below its name.
#[test]
fn cp_does_not_follow_a_symlink_that_an_earlier_cp_created() {
    let tare = tare!();
    let id = start(&tare);
    let victim = TemporaryDirectory::new();
    victim.write("file", "precious\n");
    let before = tree(victim.path());
    let out = TemporaryDirectory::new();
    let path = victim.text();
    inside(
        &tare,
        &format!("mkdir /work/d; ln -s {path} /work/d/link; ln -s {path}/file /work/d/file"),
    );
    copy(&tare, "a:/work/d/.", out.path()).ok();
    inside(&tare, "cd /work/d; rm link file; mkdir link; echo evil | tee link/file > file");
    // Whether the link is replaced or the copy refused, the host is as before.
    copy(&tare, "a:/work/d/.", out.path());
    assert_eq!(tree(victim.path()), before);
    tare.remove(&id);
}

/// Kills tare's side of ten copies, once it may. The box does not see these processes
/// in its /proc, but it can try all numbers.
const KILLER: &str = "import os, time
while not os.path.exists('/tmp/go'):
    time.sleep(0.01)
killed = set()
while len(killed) < 10:
    for pid in range(2, 500):
        try:
            if not os.path.exists(f'/proc/{pid}'):
                os.kill(pid, 9)
                killed.add(pid)
        except OSError:
            pass
os.remove('/tmp/go')
time.sleep(1000)";

fn start_killer(tare: &Tare) -> String {
    tare.detached(["--name", "a", "--", "python3", "-c", KILLER])
}

fn is_killing(tare: &Tare) -> bool {
    inside(tare, "ls /tmp").contains("go")
}

/// The process that packs runs as the box's user, so the box can kill it.
#[test]
fn a_cp_out_killed_by_the_box_keeps_the_old_file() {
    let tare = tare!();
    let id = start_killer(&tare);
    let out = TemporaryDirectory::new();
    let old = out.write("old", "old\n");
    inside(&tare, "truncate -s 200M /work/f; touch /tmp/go");
    for _ in 0..5 {
        copy(&tare, "a:/work/f", &old).exited(1);
        assert_eq!(fs::read(&old).unwrap(), b"old\n");
        assert_eq!(fs::read_dir(out.path()).unwrap().count(), 1);
    }
    tare.remove(&id);
}

#[test]
fn a_cp_in_killed_by_the_box_keeps_the_old_file() {
    let tare = tare!();
    let id = start_killer(&tare);
    let source = TemporaryDirectory::new();
    let new = source.join("new");
    fs::File::create_new(&new).unwrap().set_len(200 << 20).unwrap();
    inside(&tare, "echo old > /work/f; touch /tmp/go");
    for _ in 0..10 {
        copy(&tare, &new, "a:/work/f").exited(1);
    }
    eventually("the killer is done", || !is_killing(&tare));
    assert_eq!(inside(&tare, "cat /work/f; ls -A /work"), "old\nf\n");
    copy(&tare, &new, "a:/work/f").ok();
    tare.remove(&id);
}

/// Swaps a directory and a link to the host's own, as fast as it can.
const RACER: &str = "#include <fcntl.h>
#include <stdio.h>
#include <unistd.h>
#include <sys/syscall.h>
int main(void) {
    puts(\"up\"); fflush(stdout);
    for (;;) syscall(SYS_renameat2, AT_FDCWD, \"d\", AT_FDCWD, \"link\", 2);
}";

#[test]
fn a_directory_swapped_for_a_symlink_during_cp_leads_nowhere() {
    let tare = tare!();
    let victim = TemporaryDirectory::new();
    victim.write("file", "of the host\n");
    let before = tree(victim.path());
    let tools = TemporaryDirectory::new();
    if compiled(&tools, "racer", RACER).is_none() {
        skip!("gcc is not installed");
    }
    let volume = format!("{}:/tools:ro", tools.text());
    let script = format!(
        "mkdir d; echo of the box > d/file; ln -s {} link; exec /tools/racer",
        victim.text()
    );
    let id = tare.detached(["--name", "a", "-v", &volume, "--", "sh", "-c", &script]);
    tare.logged(&id, "up");
    let file = tools.write("new", "new\n");
    let out = tools.join("out");
    for _ in 0..100 {
        let output = copy(&tare, "a:/work/d/file", &out);
        if output.code == 0 {
            assert_ne!(fs::read(&out).unwrap(), b"of the host\n");
        }
        copy(&tare, &file, "a:/work/d/new");
    }
    assert_eq!(tree(victim.path()), before);
    tare.remove(&id);
}
