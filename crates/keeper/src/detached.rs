//! What the keeper of a detached box does in place of its creator: it keeps the
//! output, the way to the input, and the account of the box's life.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::fs::{CWD, Mode, OFlags, openat};
use tare_control::log::Writer;
use tare_control::{DetachedPlan, Identity, SetupStep};

use crate::inherited::Planned;
use crate::journal::Life;
use crate::make::terminal::Pair;
use crate::make::{Failing, Failure};
use crate::output::{Output, pipe_of};
use crate::process::launch::Streams;

/// The descriptors that came with the plan.
#[derive(Debug)]
pub struct Files {
    life: OwnedFd,
    log: [OwnedFd; 2],
}

impl Files {
    pub fn take(inherited: &mut Planned) -> Result<Self, Failure> {
        let mut next = || inherited.take().failing(SetupStep::ReadPlan, "log");
        Ok(Self { life: next()?, log: [next()?, next()?] })
    }
}

#[derive(Debug)]
pub struct Detached {
    pub life: Life,
    pub output: Output,
    input: Option<Input>,
}

/// The way to the command's standard input.
#[derive(Debug)]
enum Input {
    Pipe(OwnedFd),
    Terminal(OwnedFd),
}

impl Detached {
    /// With what the command's standard streams are.
    pub fn open(
        plan: &DetachedPlan,
        files: Files,
        terminal: Option<Pair>,
        owner: Option<Identity>,
    ) -> Result<(Self, Streams), Failure> {
        let ring = Writer::new(files.log, plan.log_bytes_max);
        let life = Life::new(files.life);
        let (seen, terminal) = match terminal {
            Some(Pair { master, slave }) => {
                let seen = master.try_clone().failing(SetupStep::Streams, "terminal")?;
                (Some(seen), Some((master, slave)))
            }
            None => (None, None),
        };
        let output = Output::new(ring, plan, owner, seen).failing(SetupStep::Streams, "pipes")?;
        let detached = |input| Self { life, output, input };
        match terminal {
            Some((master, slave)) => {
                let detached = detached(Some(Input::Terminal(master)));
                Ok((detached, Streams::Terminal(slave)))
            }
            None => {
                let (stdin, input) = stdin(plan, owner)?;
                let detached = detached(input);
                let streams = detached.given(stdin)?;
                Ok((detached, streams))
            }
        }
    }

    /// Streams of a process whose output belongs into the log.
    pub fn for_exec(&self) -> Result<Streams, Failure> {
        self.given(null()?)
    }

    fn given(&self, stdin: OwnedFd) -> Result<Streams, Failure> {
        let [stdout, stderr] = self.output.writers();
        let again = |fd: &OwnedFd| fd.try_clone().failing(SetupStep::Streams, "log");
        Ok(Streams::Given([stdin, again(stdout)?, again(stderr)?]))
    }

    /// The way to the command's input, and whether it is a terminal's.
    pub fn input(&self) -> Option<(BorrowedFd<'_>, bool)> {
        match self.input.as_ref()? {
            Input::Pipe(fd) => Some((fd.as_fd(), false)),
            Input::Terminal(fd) => Some((fd.as_fd(), true)),
        }
    }
}

fn stdin(
    plan: &DetachedPlan,
    owner: Option<Identity>,
) -> Result<(OwnedFd, Option<Input>), Failure> {
    if !plan.stdin {
        return Ok((null()?, None));
    }
    let (read, write) = pipe_of(owner).failing(SetupStep::Streams, "stdin")?;
    Ok((read, Some(Input::Pipe(write))))
}

fn null() -> Result<OwnedFd, Failure> {
    let flags = OFlags::RDWR | OFlags::CLOEXEC;
    openat(CWD, c"/dev/null", flags, Mode::empty()).failing(SetupStep::Streams, "/dev/null")
}
