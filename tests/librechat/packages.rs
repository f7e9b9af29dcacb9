//! Packages of the host: every box sees all of their files, and they cost the host nothing when the
//! box is gone.

use std::fs::{self, File};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use rustix::mount::{MountFlags, UnmountFlags, mount, unmount};
use serde_json::{Value, json};
use tare_harness::random::number_in;
use tare_harness::skip::is_root;
use tare_harness::{TemporaryDirectory, eventually, tare};

use crate::librechat::client::Chat;

/// Together 200,000, as a few large packages of Node have.
const DIRECTORIES: usize = 2_000;
const FILES_IN_EACH: usize = 100;
/// How many boxes walk over all of them; more by the environment.
const BOXES: u64 = 4;
const BOXES_VARIABLE: &str = "TARE_PACKAGES_BOXES";
/// Others on this host open files too. A descriptor for each file would be 200,000.
const HOST_NOISE: u64 = 2_000;

#[test]
fn walking_200_000_files_of_packages_leaves_no_descriptor_open() {
    let tare = tare!();
    let packages = TemporaryDirectory::new();
    let _memory = InMemory::mount(packages.path());
    make_files(packages.path());
    let config = format!("[librechat.boxes]\npackages = '{}'\n", packages.text());
    let chat = Chat::configured(&tare, "", &config);
    // Its size is asked for of each, so that the kernel has to know every file.
    let code = "find /opt/packages -type f -size 0 | wc -l";
    let walk = json!({ "lang": "bash", "code": code });
    let expected = format!("{}\n", DIRECTORIES * FILES_IN_EACH);
    let walked = || assert_eq!(chat.exec(walk.clone())["stdout"], Value::from(&*expected));
    walked();
    let before = chat.server.vitals_at_rest();
    let host_before = host_descriptors();
    for _box in 0..number_in(BOXES_VARIABLE).unwrap_or(BOXES) {
        walked();
        eventually("descriptors are where they were", || {
            chat.server.vitals().descriptors <= before.descriptors
        });
    }
    let host = host_descriptors();
    assert!(host <= host_before + HOST_NOISE, "{host_before} to {host}");
    chat.stop(&tare);
}

/// A file system in memory: on a busy disk, creating and removing so many files takes minutes.
struct InMemory(PathBuf);

impl InMemory {
    /// `None` without root: then the files are on the disk.
    fn mount(path: &Path) -> Option<Self> {
        is_root().then_some(())?;
        let flags = MountFlags::empty();
        mount("packages", path, "tmpfs", flags, c"nr_inodes=300000,mode=755").ok()?;
        Some(Self(path.to_owned()))
    }
}

impl Drop for InMemory {
    fn drop(&mut self) {
        unmount(&self.0, UnmountFlags::empty()).expect("no box uses it");
    }
}

fn make_files(root: &Path) {
    for directory in 0..DIRECTORIES {
        let directory = root.join(directory.to_string());
        fs::create_dir(&directory).expect("a fresh directory");
        for file in 0..FILES_IN_EACH {
            File::create(directory.join(file.to_string())).expect("a fresh directory");
        }
    }
}

/// Open files of the whole host, as the kernel counts them (proc_sys_fs(5)).
fn host_descriptors() -> u64 {
    let text = fs::read_to_string("/proc/sys/fs/file-nr").expect("/proc is mounted");
    let first = text.split_whitespace().next().map(str::parse);
    first.expect("three numbers").expect("a number")
}

/// The program of the language is a package that npm installed.
#[test]
fn a_language_whose_program_is_in_the_packages_is_offered() {
    let tare = tare!();
    let packages = TemporaryDirectory::new();
    let config = format!("[librechat.boxes]\npackages = '{}'\n", packages.text());
    let chat = Chat::configured(&tare, "", &config);
    let request = json!({ "lang": "ts", "code": "const x: number = 42; console.log(x)" });
    let refused = chat.server.post("/v1/exec", &request).was(400).json();
    let error = refused["error"].as_str().expect("a sentence");
    assert!(error.starts_with("Unsupported language: ts"), "{error}");
    // As esbuild does it, as far as this code goes.
    let programs = packages.join("node_modules/.bin");
    fs::create_dir_all(&programs).expect("a fresh directory");
    let script = "#!/bin/sh\nfor last in \"$@\"; do :; done\n\
                  sed 's/: number//' \"$1\" > \"${last#--outfile=}\"\n";
    let program = programs.join("esbuild");
    fs::write(&program, script).expect("a fresh directory");
    let runnable = fs::Permissions::from_mode(0o755);
    fs::set_permissions(&program, runnable).expect("it is there");
    assert_eq!(chat.exec(request)["stdout"], "42\n");
    chat.stop(&tare);
}
