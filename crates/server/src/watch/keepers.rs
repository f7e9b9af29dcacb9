//! Notices the end of each keeper, and reaps it. A keeper that this server created is its child:
//! no other process can reap it, and a zombie holds a pid of the host.
//!
//! One task waits for each keeper, on its pidfd. The runtime's own epoll instance watches all of
//! them.

use std::collections::HashMap;
use std::os::fd::AsFd;
use std::sync::{Arc, Mutex};

use tare_engine::{BoxId, Keeper};
use tokio::runtime::Handle;
use tokio::sync::mpsc;

use crate::admission::Admitted;
use crate::fd;
use crate::workers::locked;

#[derive(Debug)]
pub struct KeeperWatch {
    runtime: Handle,
    /// The boxes that run, with the guard that counts each.
    running: Mutex<HashMap<BoxId, Option<Admitted>>>,
    ended: mpsc::Sender<BoxId>,
}

impl KeeperWatch {
    /// `ended` receives every box whose keeper has ended, after it was reaped.
    pub fn new(runtime: Handle, ended: mpsc::Sender<BoxId>) -> Arc<Self> {
        Arc::new(Self { runtime, running: Mutex::default(), ended })
    }

    /// Watches a box until its keeper ends, and holds its guard until then. Does nothing if the
    /// box is watched already.
    pub fn add(self: &Arc<Self>, id: BoxId, keeper: Keeper, admitted: Option<Admitted>) {
        let mut running = locked(&self.running);
        if running.contains_key(&id) {
            return;
        }
        running.insert(id.clone(), admitted);
        drop(running);
        self.runtime.spawn(Arc::clone(self).wait(id, keeper));
    }

    async fn wait(self: Arc<Self>, id: BoxId, keeper: Keeper) {
        let dead = fd::readable(keeper.as_fd()).await;
        if dead.is_ok() {
            // This fails if the keeper is not a child of this server.
            keeper.reap().ok();
        }
        // If the pidfd could not be watched, the next look at all boxes adds the box again.
        let was_running = locked(&self.running).remove(&id).is_some();
        if dead.is_ok() && was_running {
            self.ended.send(id).await.ok();
        }
    }

    /// Calls `change` with the guard of a box that runs and counts.
    pub fn with_guard<T>(&self, id: &BoxId, change: impl FnOnce(&mut Admitted) -> T) -> Option<T> {
        locked(&self.running).get_mut(id)?.as_mut().map(change)
    }

    pub fn has(&self, id: &BoxId) -> bool {
        locked(&self.running).contains_key(id)
    }

    /// The first boxes in the order of their ids, and how many more there are. The order keeps a box
    /// in the list for as long as possible.
    pub fn first(&self, most: usize) -> (Vec<BoxId>, usize) {
        let mut ids: Vec<BoxId> = locked(&self.running).keys().cloned().collect();
        ids.sort();
        let more = ids.len().saturating_sub(most);
        ids.truncate(most);
        (ids, more)
    }

    /// Stops counting a box whose end is known already. Returns whether its end was not reported yet:
    /// it will not be.
    pub fn remove(&self, id: &BoxId) -> bool {
        locked(&self.running).remove(id).is_some()
    }
}

#[cfg(test)]
mod tests {
    use std::process::{Child, Command, Stdio};

    use super::*;

    fn child() -> (Child, Keeper) {
        let child = Command::new("cat").stdin(Stdio::piped()).spawn().expect("cat");
        let keeper = Keeper::open(i32::try_from(child.id()).expect("a pid"));
        (child, keeper.expect("it lives"))
    }

    fn runtime() -> tokio::runtime::Runtime {
        tokio::runtime::Builder::new_multi_thread().enable_all().build().expect("a runtime")
    }

    #[test]
    fn an_end_is_reported_once_and_the_child_is_reaped() {
        let runtime = runtime();
        let (ends, mut ended) = mpsc::channel(4);
        let watch = KeeperWatch::new(runtime.handle().clone(), ends);
        let (mut child, keeper) = child();
        let (id, pid) = (BoxId::random(), child.id());
        watch.add(id.clone(), keeper.try_clone().expect("a pidfd"), None);
        watch.add(id.clone(), keeper, None);
        assert!(watch.has(&id) && ended.try_recv().is_err());
        drop(child.stdin.take());
        assert_eq!(runtime.block_on(ended.recv()), Some(id.clone()));
        assert!(!watch.has(&id) && ended.try_recv().is_err());
        assert!(!std::path::Path::new(&format!("/proc/{pid}")).exists());
    }

    #[test]
    fn a_removed_box_is_not_reported_and_its_keeper_is_still_reaped() {
        let runtime = runtime();
        let (ends, mut ended) = mpsc::channel(4);
        let watch = KeeperWatch::new(runtime.handle().clone(), ends);
        let (mut child, keeper) = child();
        watch.add(BoxId::random(), keeper, None);
        let id = locked(&watch.running).keys().next().cloned().expect("a box");
        assert!(watch.remove(&id) && !watch.remove(&id));
        assert!(!watch.has(&id));
        drop(child.stdin.take());
        tare_harness::eventually("it is reaped", || {
            !std::path::Path::new(&format!("/proc/{}", child.id())).exists()
        });
        assert!(ended.try_recv().is_err());
    }
}
