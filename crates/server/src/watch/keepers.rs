//! The ends of boxes, noticed as they happen.
//!
//! One thread waits for the keepers of all boxes at once (pidfd, epoll(7)). A keeper
//! that this server bore is its child: nobody else can reap it, and a zombie holds a
//! number of the host's for as long as this process lives.

use std::collections::HashMap;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use rustix::buffer::spare_capacity;
use rustix::event::epoll;
use tare_engine::{BoxId, Keeper};

use crate::admission::Admitted;

/// How many ends are taken at a time.
const ENDS_MAX: usize = 64;

#[derive(Debug)]
pub struct Watch {
    epoll: OwnedFd,
    watched: Mutex<Watched>,
}

#[derive(Debug, Default)]
struct Watched {
    next: u64,
    by_number: HashMap<u64, (BoxId, Keeper, Option<Admitted>)>,
    by_id: HashMap<BoxId, u64>,
}

impl Watch {
    /// `ended` is told of every end, in the thread that waits.
    pub fn start(ended: impl Fn(BoxId) + Send + 'static) -> io::Result<Arc<Self>> {
        let watch = Arc::new(Self {
            epoll: epoll::create(epoll::CreateFlags::CLOEXEC)?,
            watched: Mutex::default(),
        });
        let waiting = Arc::clone(&watch);
        let thread = std::thread::Builder::new().name("watch".into());
        thread.spawn(move || waiting.wait(&ended))?;
        Ok(watch)
    }

    /// A box that is watched already is watched once. Its right to exist is held here
    /// until it ends.
    pub fn add(&self, id: BoxId, keeper: Keeper, admitted: Option<Admitted>) -> io::Result<()> {
        let mut watched = self.watched();
        if watched.by_id.contains_key(&id) {
            return Ok(());
        }
        let number = watched.next;
        let data = epoll::EventData::new_u64(number);
        epoll::add(&self.epoll, keeper.as_fd(), data, epoll::EventFlags::IN)?;
        watched.next += 1;
        watched.by_id.insert(id.clone(), number);
        watched.by_number.insert(number, (id, keeper, admitted));
        Ok(())
    }

    pub fn has(&self, id: &BoxId) -> bool {
        self.watched().by_id.contains_key(id)
    }

    /// A box that somebody has seen end: it is told to nobody.
    pub fn forget(&self, id: &BoxId) {
        let number = self.watched().by_id.get(id).copied();
        if let Some(number) = number {
            self.take(number);
        }
    }

    fn wait(&self, ended: &impl Fn(BoxId)) {
        let mut events = Vec::with_capacity(ENDS_MAX);
        loop {
            events.clear();
            // An interrupted wait is one more look.
            epoll::wait(&self.epoll, spare_capacity(&mut events), None).ok();
            for event in &events {
                if let Some(id) = self.take(event.data.u64()) {
                    ended(id);
                }
            }
        }
    }

    /// The box whose keeper is dead. Closed, its descriptor is watched no more.
    fn take(&self, number: u64) -> Option<BoxId> {
        let mut watched = self.watched();
        let (id, keeper, _admitted) = watched.by_number.remove(&number)?;
        watched.by_id.remove(&id);
        drop(watched);
        epoll::delete(&self.epoll, keeper.as_fd()).ok();
        // Whose child it is not is somebody else's to reap.
        keeper.reap().ok();
        Some(id)
    }

    fn watched(&self) -> MutexGuard<'_, Watched> {
        self.watched.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use std::process::Command;
    use std::sync::mpsc;

    use super::*;

    #[test]
    fn the_end_of_a_keeper_is_reported_once_and_reaped() {
        let (ends, told) = mpsc::channel();
        let watch = Watch::start(move |id| ends.send(id).expect("the test listens"));
        let watch = watch.expect("a thread");
        let mut child = Command::new("cat").stdin(std::process::Stdio::piped()).spawn();
        let child = child.as_mut().expect("cat");
        let pid = i32::try_from(child.id()).expect("a pid");
        let id = BoxId::random();
        for _twice in 0..2 {
            let keeper = Keeper::open(pid).expect("it lives");
            watch.add(id.clone(), keeper, None).expect("it is watched");
        }
        assert!(watch.has(&id) && told.try_recv().is_err());
        drop(child.stdin.take());
        assert_eq!(told.recv().ok(), Some(id.clone()));
        assert!(!watch.has(&id) && told.try_recv().is_err());
        assert!(!std::path::Path::new(&format!("/proc/{pid}")).exists());
    }
}
