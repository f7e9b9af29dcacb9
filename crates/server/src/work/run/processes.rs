//! Counts the processes that this server runs in boxes, and remembers detached ones.
//!
//! Detached processes live in the server's memory. When the server exits, they are killed, and
//! the next server does not know them.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use tare_engine::spec::command;
use tare_engine::{BoxId, End, Timestamp};
use tokio::sync::mpsc;

use crate::error::ServiceError;
use crate::permits::{Permit, Permits};
use crate::work::files::transfer::TransferPermit;
use crate::work::streams::recent_output::RecentOutput;
use crate::work::streams::relay::ProcessControl;
use crate::workers::locked;

/// How many detached processes are remembered, running or ended.
const REMEMBERED_MAX: usize = 512;
const REMEMBERED_OF_ONE_BOX_MAX: usize = 64;
/// How long a process is remembered after its end.
const FORGOTTEN_AFTER: Duration = Duration::from_secs(600);

#[derive(Debug)]
pub struct Processes {
    running: Permits,
    /// The part of the permits that transfers may use.
    transfers: Permits,
    remembered: Mutex<HashMap<String, Arc<ExecProcess>>>,
}

/// A detached process.
#[derive(Debug)]
pub struct ExecProcess {
    /// Random, as the id of a box.
    pub id: String,
    pub box_id: BoxId,
    /// The beginning of the command, which may be long.
    pub command: Vec<String>,
    pub started_at: Timestamp,
    pub output: Arc<RecentOutput>,
    pub control: mpsc::Sender<ProcessControl>,
    /// `None` if it is closed.
    input: Mutex<Option<mpsc::Sender<Vec<u8>>>>,
    end: Mutex<Option<Exited>>,
}

/// A place for a detached process. The place is free again if this is dropped before the process
/// runs.
#[derive(Debug)]
pub struct ReservedPlace<'a> {
    execs: &'a Processes,
    exec: Option<Arc<ExecProcess>>,
}

impl ReservedPlace<'_> {
    /// Keeps the place, because the process runs.
    pub fn keep(mut self) {
        self.exec = None;
    }
}

impl Drop for ReservedPlace<'_> {
    fn drop(&mut self) {
        if let Some(exec) = &self.exec {
            locked(&self.execs.remembered).remove(&exec.id);
        }
    }
}

/// How a detached process ended.
#[derive(Debug, Clone, Copy)]
pub struct Exited {
    pub end: End,
    pub at: Timestamp,
    since: Instant,
}

impl Processes {
    pub fn new(running_max: usize) -> Self {
        Self {
            running: Permits::new(running_max),
            transfers: Permits::new((running_max / 2).max(1)),
            remembered: Mutex::default(),
        }
    }

    /// Returns the right to run one process.
    pub fn permit(&self) -> Result<Permit, ServiceError> {
        self.running.take().ok_or_else(|| {
            let most = self.running.most();
            busy(format!("{most} processes run in boxes, the limit set by [limits] execs"))
        })
    }

    /// Returns the right to transfer one file. Every transfer takes one, so half of the permits are
    /// left to processes, however many clients are slow.
    pub fn transfer(&self) -> Result<TransferPermit, ServiceError> {
        let transfer = self.transfers.take().ok_or_else(|| {
            let most = self.transfers.most();
            busy(format!("{most} files are being transferred, half of [limits] execs"))
        })?;
        Ok([transfer, self.permit()?])
    }

    /// Returns when no process runs.
    pub async fn idle(&self) {
        self.running.all_free().await;
    }

    pub fn running(&self) -> usize {
        self.running.taken()
    }

    /// Reserves a place for a process that is about to start. If there are too many, the process
    /// that ended first is forgotten.
    pub fn reserve(&self, exec: Arc<ExecProcess>) -> Result<ReservedPlace<'_>, ServiceError> {
        let mut remembered = locked(&self.remembered);
        forget_old(&mut remembered);
        let of_box = |one: &&Arc<ExecProcess>| one.box_id == exec.box_id;
        if remembered.values().filter(of_box).count() >= REMEMBERED_OF_ONE_BOX_MAX {
            forget_one(&mut remembered, |one| one.box_id == exec.box_id)?;
        }
        if remembered.len() >= REMEMBERED_MAX {
            forget_one(&mut remembered, |_| true)?;
        }
        remembered.insert(exec.id.clone(), Arc::clone(&exec));
        Ok(ReservedPlace { execs: self, exec: Some(exec) })
    }

    pub fn find(&self, box_id: &BoxId, id: &str) -> Result<Arc<ExecProcess>, ServiceError> {
        let remembered = locked(&self.remembered);
        let found = remembered.get(id).filter(|exec| exec.box_id == *box_id);
        found.cloned().ok_or_else(|| {
            let message = format!("box {box_id} has no such exec");
            ServiceError::not_found("no_such_exec", message).with_hint(
                "the server remembers a process for ten minutes after its end, and forgets all when it exits",
            )
        })
    }

    pub fn forget_old(&self) {
        forget_old(&mut locked(&self.remembered));
    }
}

fn forget_old(remembered: &mut HashMap<String, Arc<ExecProcess>>) {
    remembered.retain(|_, exec| {
        let end = exec.end();
        end.is_none_or(|end| end.since.elapsed() < FORGOTTEN_AFTER)
    });
}

fn forget_one(
    remembered: &mut HashMap<String, Arc<ExecProcess>>,
    among: impl Fn(&ExecProcess) -> bool,
) -> Result<(), ServiceError> {
    let ended = remembered.values().filter(|exec| among(exec));
    let ended = ended.filter_map(|exec| Some((exec.end()?.since, exec.id.clone())));
    match ended.min() {
        Some((_, id)) => {
            remembered.remove(&id);
            Ok(())
        }
        None => {
            let message =
                "server busy: it remembers no more detached processes, and all of them run";
            Err(ServiceError::unavailable("busy", message).with_hint("wait for one to end"))
        }
    }
}

impl ExecProcess {
    pub fn new(
        box_id: BoxId,
        mut command: Vec<String>,
        control: mpsc::Sender<ProcessControl>,
        input: Option<mpsc::Sender<Vec<u8>>>,
    ) -> Self {
        command::shorten(&mut command);
        Self {
            id: BoxId::random().to_string(),
            box_id,
            command,
            started_at: Timestamp::now(),
            output: Arc::default(),
            control,
            input: Mutex::new(input),
            end: Mutex::default(),
        }
    }

    pub fn end(&self) -> Option<Exited> {
        *locked(&self.end)
    }

    pub fn ended(&self, end: End) {
        let end = Exited { end, at: Timestamp::now(), since: Instant::now() };
        *locked(&self.end) = Some(end);
        self.close_input();
        self.output.end();
    }

    pub fn input(&self) -> Option<mpsc::Sender<Vec<u8>>> {
        locked(&self.input).clone()
    }

    pub fn close_input(&self) {
        let mut input = locked(&self.input);
        *input = None;
    }
}

fn busy(why: String) -> ServiceError {
    ServiceError::unavailable("busy", format!("server busy: {why}")).with_hint("try again later")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn exec(box_id: &BoxId) -> Arc<ExecProcess> {
        let (control, _) = mpsc::channel(1);
        Arc::new(ExecProcess::new(box_id.clone(), Vec::new(), control, None))
    }

    #[test]
    fn however_many_files_are_on_their_way_half_is_left_to_processes() {
        let execs = Processes::new(4);
        let transfers = [(); 2].map(|()| execs.transfer().expect("there is room"));
        assert!(execs.transfer().is_err());
        let running = [(); 2].map(|()| execs.permit().expect("there is room"));
        assert!(execs.permit().is_err());
        drop((transfers, running));
        assert!(execs.transfer().is_ok());
        assert_eq!(execs.running(), 0);
    }

    #[test]
    fn ended_processes_are_limited_and_running_ones_are_always_remembered() {
        let execs = Processes::new(1);
        let (one, other) = (BoxId::random(), BoxId::random());
        let all: Vec<_> = (0..REMEMBERED_OF_ONE_BOX_MAX).map(|_| exec(&one)).collect();
        for exec in &all {
            let place = execs.reserve(Arc::clone(exec)).expect("there is room");
            place.keep();
        }
        let refused = execs.reserve(exec(&one)).expect_err("all of them run");
        assert_eq!(refused.code, "busy");
        let another = execs.reserve(exec(&other));
        another.expect("another box has room").keep();
        all[3].ended(End::of_command(0));
        let unused = exec(&one);
        drop(execs.reserve(Arc::clone(&unused)).expect("one has ended"));
        assert!(execs.find(&one, &unused.id).is_err(), "it did not start");
        assert!(execs.find(&one, &all[3].id).is_err(), "it is forgotten");
        assert!(execs.find(&one, &all[4].id).is_ok());
        assert!(execs.find(&other, &all[4].id).is_err(), "it is not its own");
    }

    #[tokio::test]
    async fn a_process_beyond_the_limit_is_refused() {
        let execs = Processes::new(1);
        let one = execs.permit().expect("none runs");
        assert!(execs.permit().is_err());
        assert_eq!(execs.running(), 1);
        drop(one);
        execs.idle().await;
        assert_eq!(execs.running(), 0);
    }
}
