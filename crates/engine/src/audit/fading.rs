//! What the kernel frees a little later than it tells anybody that the process is
//! gone which had it.
//!
//! None of it can be told apart by whose it was: a namespace that is dismantled has no
//! number any more, a cgroup that was removed no name. So these are facts about the
//! host, whoever made them, and no difference between records and host.

use std::net::SocketAddr;
use std::os::fd::{AsFd, BorrowedFd};
use std::time::{Duration, Instant};

use rustix::fs::{Mode, OFlags, openat};
use serde::Serialize;
use tare_kernel::cgroup_tree as tree;
use tare_kernel::procfs::Procfs;
use tare_kernel::sockets::{self, Listening};

use crate::engine::Engine;

#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Fading {
    /// Whether the kernel is dismantling network namespaces; `None` where its
    /// threads are not shown.
    pub network_namespaces: Option<bool>,
    /// Cgroups that were removed and that something still refers to; `None` where
    /// the kernel does not say.
    pub cgroups: Option<u64>,
    /// Ports of the host's network that a socket listens on which was made in a
    /// cgroup that was removed; `None` where that cannot be asked.
    pub ports: Option<Vec<FadingPort>>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct FadingPort {
    pub transport: &'static str,
    pub address: SocketAddr,
}

/// How long somebody waits at most.
const FADED_WITHIN: Duration = Duration::from_secs(10);
/// What does not get less for so long is not about to go: a cgroup stays as long as a
/// page of memory is counted for it.
const STILL_FOR: Duration = Duration::from_secs(1);
/// Between looks: the kernel tells nobody when it is done.
const LOOK_AGAIN: Duration = Duration::from_millis(10);

impl Engine {
    /// Returns when nothing fades any more, or nothing that is about to go.
    pub fn await_faded(&self) {
        let start = Instant::now();
        let mut last = self.fading();
        let mut since = Instant::now();
        while last.is_something() && start.elapsed() < FADED_WITHIN {
            let is_at_work = last.network_namespaces == Some(true);
            if !is_at_work && since.elapsed() >= STILL_FOR {
                return;
            }
            #[expect(clippy::disallowed_methods, reason = "bounded by FADED_WITHIN")]
            std::thread::sleep(LOOK_AGAIN);
            let now = self.fading();
            if now != last {
                last = now;
                since = Instant::now();
            }
        }
    }

    fn fading(&self) -> Fading {
        let listening = sockets::listening().unwrap_or_default();
        self.fading_beside(Procfs::open().ok().as_ref(), &listening)
    }

    pub(super) fn fading_beside(&self, procfs: Option<&Procfs>, listening: &[Listening]) -> Fading {
        let unified = self.root.host.open_cgroups.unified.open().ok();
        Fading {
            network_namespaces: procfs.and_then(|procfs| procfs.is_at_work("netns")),
            cgroups: unified.and_then(tree::dying),
            ports: unified.and_then(|root| ports(root, listening)),
        }
    }
}

impl Fading {
    fn is_something(&self) -> bool {
        self.network_namespaces == Some(true)
            || self.cgroups.is_some_and(|count| count > 0)
            || self.ports.as_ref().is_some_and(|ports| !ports.is_empty())
    }
}

fn ports(root: BorrowedFd<'_>, listening: &[Listening]) -> Option<Vec<FadingPort>> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let root = openat(root, c".", flags, Mode::empty()).ok()?;
    let mut fading = Vec::new();
    for port in listening {
        let Some(cgroup) = port.cgroup else { continue };
        if !tree::has_id(root.as_fd(), cgroup).ok()? {
            fading.push(FadingPort { transport: port.transport.as_str(), address: port.address });
        }
    }
    Some(fading)
}
