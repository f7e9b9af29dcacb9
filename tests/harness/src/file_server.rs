//! A directory on a file server in user space, which can be stopped so that it does not answer.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use rustix::mount::{UnmountFlags, unmount};
use rustix::process::Signal;

use crate::running::Running;
use crate::skip::{has_program, is_root};
use crate::tare::Tare;
use crate::temporary::TemporaryDirectory;
use crate::wait::eventually;

/// Ends with its mount when it is dropped.
#[derive(Debug)]
pub struct FileServer {
    server: Option<Running>,
    mounted: TemporaryDirectory,
    _source: TemporaryDirectory,
}

impl FileServer {
    /// `None` if this host has no FUSE, or not for this user.
    pub fn new(tare: &Tare) -> Option<Self> {
        if !has_program("bindfs") || !is_root() || !Path::new("/dev/fuse").exists() {
            return None;
        }
        let (source, mounted) = (TemporaryDirectory::new(), TemporaryDirectory::new());
        fs::create_dir(source.path().join("below")).expect("it is ours");
        let mut bindfs = Command::new("bindfs");
        bindfs.args(["-f", source.text(), mounted.text()]);
        bindfs.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let server = tare.start_command(bindfs);
        let table = || fs::read_to_string("/proc/self/mounts").expect("/proc is mounted");
        eventually("it is mounted", || table().contains(mounted.text()));
        Some(Self { server: Some(server), mounted, _source: source })
    }

    /// A directory in the mount.
    pub fn path(&self) -> PathBuf {
        self.mounted.path().join("below")
    }

    /// Stops the server. The kernel asks it again for a name that it looked up a second ago.
    pub fn stop(&self) {
        self.signal(Signal::STOP);
    }

    /// Lets the server answer.
    pub fn go_on(&self) {
        self.signal(Signal::CONT);
    }

    fn signal(&self, signal: Signal) {
        if let Some(server) = &self.server {
            server.signal(signal);
        }
    }
}

impl Drop for FileServer {
    fn drop(&mut self) {
        self.go_on();
        unmount(self.mounted.path(), UnmountFlags::DETACH).ok();
        if let Some(server) = self.server.take() {
            server.wait();
        }
    }
}
