//! `tare vm kernel`: kernels of machines, from real packages of Debian. A kernel is there as a whole or
//! not at all.
//!
//! `./check` downloads Debian's generic kernel to `target/kernel-package`.

use std::fs;
use std::os::unix::fs::{PermissionsExt, chown};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use rustix::process::Signal;
use serde_json::Value;
use tare_harness::skip::{has_program, is_root};
use tare_harness::{Output, Tare, TemporaryDirectory, eventually, skip, tare};

use crate::crash_steps::faulty_tare;

/// Why a call on the files of a test cannot fail.
const OURS: &str = "the files of the test can be used";
/// More steps than any of these commands has.
const STEPS_MAX: usize = 100;

fn target(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../target").join(name)
}

/// Debian's generic kernel package, and the same with the files that a machine needs, unpacked.
pub fn package() -> Option<(PathBuf, PathBuf)> {
    let directory = target("kernel-package");
    let entries = fs::read_dir(&directory).ok()?;
    let mut paths = entries.map(|entry| entry.expect(OURS).path());
    let package = paths.find(|path| path.extension().is_some_and(|it| it == "deb"))?;
    let unpacked = directory.join("unpacked");
    unpacked.exists().then_some((package, unpacked))
}

/// `tare vm kernel ARGS` on a directory of kernels.
#[track_caller]
fn kernel(tare: &Tare, directory: &TemporaryDirectory, args: &[&str]) -> Output {
    tare.start_command(command(tare, directory, args)).wait()
}

fn command(tare: &Tare, directory: &TemporaryDirectory, args: &[&str]) -> Command {
    let mut command = tare.command(["vm", "kernel"]);
    command.args(args).env("TARE_VM_DIR", directory.join("vm"));
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    command
}

#[track_caller]
fn list(tare: &Tare, directory: &TemporaryDirectory) -> Vec<Value> {
    let output = kernel(tare, directory, &["ls", "--json"]).ok().said_nothing();
    serde_json::from_str(&output.stdout_text()).expect("an array")
}

fn names(directory: &TemporaryDirectory) -> Vec<String> {
    let entries = fs::read_dir(directory.join("vm")).into_iter().flatten();
    let mut names: Vec<String> =
        entries.map(|entry| entry.expect(OURS).file_name().into_string().expect(OURS)).collect();
    names.sort();
    names
}

fn text(path: &Path) -> &str {
    path.to_str().expect("the path is ASCII")
}

#[test]
fn a_package_becomes_one_file_with_the_kernel_and_its_modules() {
    let tare = tare!();
    let Some((package, _)) = package() else {
        skip!("no target/kernel-package: ./check fetches it");
    };
    let directory = TemporaryDirectory::new();
    let added = kernel(&tare, &directory, &["use", text(&package)]).ok().said_nothing();
    let listed = list(&tare, &directory);
    let [kernel] = listed.as_slice() else {
        panic!("{listed:?}");
    };
    let name = kernel["name"].as_str().unwrap();
    assert!(text(&package).contains(name) && kernel["release"] == name, "{kernel}");
    assert!(kernel["origin"] == "debian" && kernel["chosen"] == true, "{kernel}");
    assert!(added.stdout_text().starts_with(&format!("{name}  debian  ")), "{added}");
    assert!(added.stdout_text().ends_with(" modules  chosen\n"), "{added}");
    assert_eq!(names(&directory), [".chosen", name]);
    let content = fs::read(directory.join("vm").join(name)).unwrap();
    assert!(content.starts_with(b"\x7fELF"));
    assert_eq!(kernel["bytes"], content.len());
    let modules = kernel["modules"].as_array().unwrap();
    let place = |name: &str| modules.iter().position(|it| it == name).expect(name);
    for (dependency, module) in [
        ("virtio", "virtio_mmio"),
        ("virtio_ring", "virtio_mmio"),
        ("virtio", "virtio_console"),
        ("9pnet", "9p"),
        ("9pnet", "9pnet_virtio"),
        ("netfs", "9p"),
    ] {
        assert!(place(dependency) < place(module), "{modules:?}");
    }
    assert!(
        modules.iter().any(|it| it == "overlay") && modules.iter().any(|it| it == "virtio_balloon")
    );
}

#[test]
fn a_kernel_is_added_from_a_directory_or_from_a_file_with_its_modules() {
    let tare = tare!();
    let Some((_, unpacked)) = package() else {
        skip!("no target/kernel-package: ./check fetches it");
    };
    let directory = TemporaryDirectory::new();
    kernel(&tare, &directory, &["use", text(&unpacked), "--name", "one"]).ok();
    let boot = fs::read_dir(unpacked.join("boot")).unwrap().next().unwrap().unwrap().path();
    let modules = unpacked.join("lib/modules");
    let from_file = ["use", text(&boot), "--modules", text(&modules), "--name", "two"];
    kernel(&tare, &directory, &from_file).ok();
    let [one, two] = list(&tare, &directory).try_into().expect("two kernels");
    assert_eq!(one["modules"], two["modules"]);
    assert_eq!([&one["chosen"], &two["chosen"]], [&Value::Bool(false), &Value::Bool(true)]);
    // The image of a kernel in tare is a kernel too. The drivers are not part of it.
    let image = directory.join("vm/one");
    let lacks = kernel(&tare, &directory, &["use", text(&image), "--name", "three"]).exited(1);
    lacks.said(&["lacks", "virtio_console", "9p (shared directories)", "overlay"]);
    kernel(&tare, &directory, &["choose", "one"]).ok().said_nothing();
    assert_eq!(list(&tare, &directory)[0]["chosen"], true);
    let table = kernel(&tare, &directory, &["ls"]).ok().stdout_text();
    assert!(table.starts_with("NAME  ORIGIN  SIZE"), "{table}");
    kernel(&tare, &directory, &["rm", "one"]).ok().said_nothing().printed("");
    assert_eq!(names(&directory), ["two"], "the choice is gone with its kernel");
    kernel(&tare, &directory, &["rm", "two"]).ok();
    assert!(names(&directory).is_empty() && list(&tare, &directory).is_empty());
}

#[test]
fn a_kernel_that_lacks_parts_is_refused_and_each_part_is_named() {
    let tare = tare!();
    let cloud = target("vm-cache");
    if !cloud.join("boot").exists() {
        skip!("no target/vm-cache: ./check fetches it");
    }
    let directory = TemporaryDirectory::new();
    let output = kernel(&tare, &directory, &["use", text(&cloud)]).exited(1).printed("");
    output.said(&["cloud-amd64 lacks", "9p (shared directories)", "virtio_mmio", "generic kernel"]);
    assert!(names(&directory).is_empty());
    let Some((_, unpacked)) = package() else {
        skip!("no target/kernel-package: ./check fetches it");
    };
    let boot = fs::read_dir(cloud.join("boot")).unwrap().next().unwrap().unwrap().path();
    let modules = unpacked.join("lib/modules");
    let foreign = ["use", text(&boot), "--modules", text(&modules)];
    kernel(&tare, &directory, &foreign).exited(1).said(&["was built for", "and the kernel is"]);
    assert!(names(&directory).is_empty());
}

#[test]
fn wrong_input_is_refused_in_one_sentence_and_leaves_nothing() {
    let tare = tare!();
    let directory = TemporaryDirectory::new();
    let junk = directory.write("junk.deb", "!<arch>\ndata.tar.xz");
    let elf = directory.write("elf", fs::read(tare.program()).unwrap());
    let empty = directory.join("empty");
    fs::create_dir(&empty).unwrap();
    let cases: [(&[&str], i32, &[&str]); 11] = [
        (&["use", "/nonexistent/k.deb"], 1, &["/nonexistent/k.deb", "No such file"]),
        (&["use", "/dev/null"], 1, &["/dev/null", "neither a file nor a directory"]),
        (&["use", text(&junk)], 1, &["junk.deb", "package is damaged"]),
        (&["use", text(&elf)], 1, &["not a Linux kernel", "vmlinuz"]),
        (&["use", text(&empty)], 1, &["no kernel in boot/", "linux-image"]),
        (&["use", text(&empty), "--name", "../x"], 1, &["'../x' is not a name", "63 letters"]),
        (&["choose", "banana"], 1, &["no kernel 'banana'", "tare vm kernel ls"]),
        (&["rm", ".chosen"], 1, &["is not a name of a kernel"]),
        (&["rm"], 2, &["NAME is missing"]),
        (&["banana"], 2, &["unrecognized subcommand 'banana'"]),
        (&[], 2, &["COMMAND is missing"]),
    ];
    for (args, code, mentions) in cases {
        let output = kernel(&tare, &directory, args).exited(code).printed("").said(mentions);
        assert_eq!(output.stderr_text().lines().count(), 1, "{output}");
    }
    assert!(names(&directory).is_empty());
}

#[test]
fn a_directory_of_kernels_that_others_can_write_is_refused() {
    let tare = tare!();
    let directory = TemporaryDirectory::new();
    fs::create_dir(directory.join("vm")).unwrap();
    fs::set_permissions(directory.join("vm"), fs::Permissions::from_mode(0o777)).unwrap();
    for args in [&["ls"][..], &["use", "/"], &["rm", "x"]] {
        let output = kernel(&tare, &directory, args).exited(1).printed("");
        output.said(&["owned by another user or writable by others"]);
    }
}

/// `ENOSPC`, and SIGKILL right after the step.
#[test]
fn a_command_that_dies_or_fails_at_any_step_leaves_whole_kernels() {
    let tare = tare!();
    let (Some((_, unpacked)), Some(faulty)) = (package(), faulty_tare()) else {
        skip!("no target/kernel-package, or no target/faults/tare: ./check makes both");
    };
    // Each `use` unpacks a kernel, so only `./check --long` tries every fault with every command.
    let (is_long, all) = (std::env::var_os("TARE_LONG").is_some(), &["kill", "28"][..]);
    let commands: [(&[&str], &[&str]); 4] = [
        (&["use", text(&unpacked), "--name", "new"], &["kill"]),
        (&["use", text(&unpacked), "--name", "old"], &["28"]),
        (&["choose", "other"], all),
        (&["rm", "old"], all),
    ];
    // Two kernels, of which `old` is chosen.
    let original = TemporaryDirectory::new();
    for name in ["other", "old"] {
        kernel(&tare, &original, &["use", text(&unpacked), "--name", name]).ok();
    }
    for (args, faults) in commands {
        for fault in if is_long { all } else { faults } {
            let ends_well = |step: &usize| ends_well(&tare, &faulty, &original, args, fault, *step);
            let first = (1..=STEPS_MAX).find(ends_well);
            assert!(first.is_some_and(|step| step > 2), "{args:?} with {fault}: {first:?}");
        }
    }
}

/// Carries out a command that dies or fails at a step, and checks what it left after the next one.
/// Returns whether the command succeeded.
fn ends_well(
    tare: &Tare,
    faulty: &Path,
    original: &TemporaryDirectory,
    args: &[&str],
    fault: &str,
    step: usize,
) -> bool {
    let directory = TemporaryDirectory::new();
    let (from, to) = (original.join("vm"), directory.join("vm"));
    // As links, because no command writes to a kernel that is there.
    let copied = Command::new("cp").arg("-al").args([&from, &to]).status().expect(OURS);
    assert!(copied.success());
    let mut command = Command::new(faulty);
    command.args(["vm", "kernel"]).args(args).env("TARE_VM_DIR", &to);
    command.env("TARE_FAULT", format!("{fault}@{step}"));
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    let succeeded = command.status().expect(OURS).success();
    let kernels = list(tare, &directory);
    let mut expected = Vec::new();
    for kernel in &kernels {
        let name = kernel["name"].as_str().expect(OURS);
        assert_eq!(kernel["bytes"], fs::metadata(to.join(name)).expect(OURS).len());
        assert_eq!(kernel["bytes"], kernels[0]["bytes"], "all are of one package");
        expected.push(name.to_owned());
    }
    if kernels.iter().any(|it| it["chosen"] == true) {
        expected.insert(0, ".chosen".to_owned());
    }
    assert_eq!(names(&directory), expected, "{args:?} with {fault}@{step}");
    assert!(expected.contains(&"other".to_owned()), "{args:?} with {fault}@{step}: {expected:?}");
    let replaces = args[0] == "use";
    assert!(!replaces || expected.contains(&"old".to_owned()), "{fault}@{step}: {expected:?}");
    succeeded
}

#[test]
fn the_next_command_removes_what_a_killed_one_left() {
    let tare = tare!();
    let directory = TemporaryDirectory::new();
    fs::create_dir_all(directory.join("vm/.download")).unwrap();
    directory.write("vm/.download/linux-image.deb", "a part of a package");
    directory.write("vm/.tare-0123456789abcdef", "a part of a kernel");
    directory.write("vm/notes", "of the user");
    assert!(list(&tare, &directory).is_empty());
    assert_eq!(names(&directory), ["notes"]);
}

/// A repository of apt in a directory, with the real package and one that depends on it.
fn repository(directory: &TemporaryDirectory, package: &Path) -> PathBuf {
    let file = package.file_name().expect(OURS).to_str().expect(OURS);
    let name = file.split('_').next().expect(OURS);
    fs::create_dir(directory.join("repository")).expect(OURS);
    fs::copy(package, directory.join("repository").join(file)).expect(OURS);
    let sum = Command::new("sha256sum").arg(package).output().expect(OURS).stdout;
    let sum = String::from_utf8(sum).expect(OURS);
    let (sum, bytes) =
        (sum.split(' ').next().expect(OURS), fs::metadata(package).expect(OURS).len());
    let packages = format!(
        "Package: linux-image-amd64\nVersion: 1\nArchitecture: amd64\nDepends: {name}\n\
         Filename: ./none.deb\nSize: 1\nSHA256: {sum}\n\n\
         Package: {name}\nVersion: 1\nArchitecture: amd64\nDepends: kmod\n\
         Filename: ./{file}\nSize: {bytes}\nSHA256: {sum}\n"
    );
    directory.write("repository/Packages", packages);
    let sources = format!("deb [trusted=yes] file:{} ./\n", text(&directory.join("repository")));
    let sources = directory.write("sources.list", sources);
    for name in ["lists/partial", "cache/archives/partial", "parts", "state"] {
        fs::create_dir_all(directory.join(name)).expect(OURS);
    }
    fs::write(directory.join("state/status"), "").expect(OURS);
    let path = |name: &str| text(&directory.join(name)).to_owned();
    let settings = [
        ("Dir::Etc::SourceList", text(&sources).to_owned()),
        ("Dir::Etc::SourceParts", path("parts")),
        ("Dir::Etc::PreferencesParts", path("parts")),
        ("Dir::State::Lists", path("lists")),
        ("Dir::State::status", path("state/status")),
        ("Dir::Cache", path("cache")),
        ("APT::Architecture", "amd64".to_owned()),
    ];
    let settings = settings.map(|(key, value)| format!("{key} \"{value}\";\n"));
    directory.write("apt.conf", settings.concat())
}

#[test]
fn fetch_downloads_the_newest_generic_kernel_with_apt() {
    let tare = tare!();
    let system = fs::read_to_string("/etc/os-release").unwrap_or_default();
    if !system.contains("\nID=debian\n") || !has_program("apt-get") {
        skip!("this is not a Debian with apt");
    }
    let Some((package, _)) = package() else {
        skip!("no target/kernel-package: ./check fetches it");
    };
    let directory = TemporaryDirectory::new();
    let settings = repository(&directory, &package);
    let update = Command::new("apt-get").arg("update").env("APT_CONFIG", &settings).output();
    let update = update.unwrap();
    assert!(update.status.success(), "{update:?}");
    let mut fetch = command(&tare, &directory, &["fetch"]);
    fetch.env("APT_CONFIG", &settings);
    let fetched = tare.start_command(fetch).wait().ok().said_nothing();
    assert!(fetched.stdout_text().contains("  debian  "), "{fetched}");
    let name = list(&tare, &directory)[0]["name"].as_str().unwrap().to_owned();
    assert_eq!(names(&directory), [".chosen".to_owned(), name]);
    // A repository without the package.
    fs::remove_dir_all(directory.join("repository")).unwrap();
    let mut fetch = command(&tare, &directory, &["fetch"]);
    fetch.env("APT_CONFIG", &settings);
    let failed = tare.start_command(fetch).wait().exited(1).printed("");
    failed.said(&["cannot download the kernel", "apt-get update"]);
    assert_eq!(names(&directory).len(), 2);
}

/// The download is a process of another program, which must not outlive tare.
#[test]
fn a_killed_fetch_leaves_no_download() {
    let tare = tare!();
    if !has_program("setpriv")
        || !fs::read_to_string("/etc/os-release").is_ok_and(|it| it.contains("\nID=debian\n"))
    {
        skip!("this is not a Debian with setpriv");
    }
    let directory = TemporaryDirectory::new();
    fs::create_dir(directory.join("bin")).unwrap();
    // A repository that never answers.
    let programs = [
        ("apt-get", "#!/bin/sh\necho part > part.deb\nexec sleep 1000\n"),
        ("apt-cache", "#!/bin/sh\necho 'Depends: linux-image-6.1.0-55-amd64'\n"),
    ];
    for (name, script) in programs {
        let path = directory.write(&format!("bin/{name}"), script);
        fs::set_permissions(path, fs::Permissions::from_mode(0o755)).unwrap();
    }
    let mut fetch = command(&tare, &directory, &["fetch"]);
    fetch.env("PATH", format!("{}:/usr/bin:/bin", text(&directory.join("bin"))));
    let fetch = tare.start_command(fetch);
    eventually("the download began", || directory.join("vm/.download/part.deb").exists());
    let locked = kernel(&tare, &directory, &["use", "/"]).exited(1);
    locked.said(&["cannot lock", "another 'tare vm kernel' command"]);
    assert!(list(&tare, &directory).is_empty());
    assert_eq!(names(&directory), [".download"], "ls does not touch a download that runs");
    fetch.signal(Signal::KILL);
    fetch.wait();
    assert!(list(&tare, &directory).is_empty());
    assert!(names(&directory).is_empty());
}

#[test]
fn a_user_without_privileges_has_kernels_in_the_home_directory() {
    let tare = tare!(unprivileged);
    let Some((_, unpacked)) = package() else {
        skip!("no target/kernel-package: ./check fetches it");
    };
    if !is_root() {
        skip!("only root can make a home for another user");
    }
    let home = TemporaryDirectory::new();
    chown(home.path(), Some(65533), Some(65533)).unwrap();
    // The user may not be able to reach the repository.
    let source = home.join("package");
    let copied = Command::new("cp").arg("-r").args([&unpacked, &source]).status().unwrap();
    assert!(copied.success());
    let call = |args: &[&str]| {
        let mut command = tare.command(["vm", "kernel"]);
        command.args(args).env("HOME", home.path()).env_remove("TARE_VM_DIR");
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        tare.start_command(command).wait()
    };
    call(&["use", text(&source), "--name", "mine"]).ok();
    assert!(home.join(".local/share/tare/vm/mine").exists());
    call(&["rm", "mine"]).ok();
}

/// A monitor loads what the ELF header lists, and ignores the modules behind it.
#[test]
fn a_kernel_boots_from_its_file() {
    let tare = tare!();
    let Some((_, unpacked)) = package() else {
        skip!("no target/kernel-package: ./check fetches it");
    };
    if !has_program("qemu-system-x86_64") {
        skip!("no qemu-system-x86_64 here");
    }
    let directory = TemporaryDirectory::new();
    kernel(&tare, &directory, &["use", text(&unpacked), "--name", "one"]).ok();
    let release = list(&tare, &directory)[0]["release"].as_str().unwrap().to_owned();
    // Without a root, the kernel panics, and the machine ends.
    let mut machine = Command::new("qemu-system-x86_64");
    machine.args(["-nodefaults", "-no-user-config", "-no-reboot", "-display", "none"]);
    machine.args(["-accel", "tcg", "-m", "256", "-serial", "stdio"]);
    machine.arg("-kernel").arg(directory.join("vm/one"));
    machine.args(["-append", "console=ttyS0 panic=-1"]);
    machine.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let machine = tare.start_command(machine);
    machine.see(&format!("Linux version {release} "));
    machine.see("Unable to mount root fs");
    machine.wait().ok();
}
