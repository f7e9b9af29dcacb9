//! One box of a pool. Every function here blocks its thread.

use std::sync::Arc;

use tare_engine::spec::Spec;
use tare_engine::{BoxId, Error, ExecSpec, Keeper, Prepared, Session};
use tokio::task::AbortHandle;

use crate::admission::Admitted;
use crate::work::pool::shape::{Interpreter, Life, PoolName, Shape};
use crate::work::pool::start::{Maker, NotStarted, StartAs, give_up, start};
use crate::work::pool::template::Template;
use crate::work::request::run::Warm;

/// A box that waits.
#[derive(Debug)]
pub struct Member {
    pub waiting: Waiting,
    pub pool: PoolName,
    /// Held while the box waits: it counts as a box, without a promise.
    pub admitted: Admitted,
    pub _watch: DeathWatch,
}

/// The task that reports the death of the keeper. It ends with this value.
#[derive(Debug)]
pub struct DeathWatch(pub AbortHandle);

impl Drop for DeathWatch {
    fn drop(&mut self) {
        self.0.abort();
    }
}

/// The box of a member, before a request claims it.
#[derive(Debug)]
pub enum Waiting {
    /// Its keeper waits for the go.
    Box(Box<Prepared>),
    Interpreter(Box<Interpreting>),
}

/// A box in which an interpreter waits for its order.
#[derive(Debug)]
pub struct Interpreting {
    pub session: Session,
    pub process: Session,
    /// The template that the interpreter is a copy of. While this is held, its box lives.
    pub template: Option<Arc<Template>>,
}

/// A box that a request has claimed.
#[derive(Debug)]
pub enum Claimed {
    /// Its command was started.
    Box(Session),
    Interpreter(Box<Interpreting>),
}

impl Waiting {
    pub fn make(
        maker: &Maker,
        shape: &Shape,
        template: Option<Arc<Template>>,
    ) -> Result<Self, NotStarted> {
        let prepared = match &template {
            Some(template) => template.make_box(&maker.engine, shape)?,
            None => match shape.life {
                Life::Run(stdin) => maker.engine.warm(&shape.spec, stdin, shape.pool.as_str())?,
                Life::Detached => maker.engine.warm_detached(&shape.spec, shape.pool.as_str())?,
            },
        };
        let Some(Interpreter { command, env, .. }) = &shape.interpreter else {
            return Ok(Self::Box(Box::new(prepared)));
        };
        let mut session = prepared.go_without_command()?;
        let spec = ExecSpec { env: env.clone(), ..ExecSpec::of(command) };
        let how = match &template {
            Some(_) => StartAs::Clone,
            None => StartAs::Exec(&spec),
        };
        match start(maker, &mut session, how) {
            Ok(process) => {
                Ok(Self::Interpreter(Box::new(Interpreting { session, process, template })))
            }
            Err(error) => Err(give_up(session, error)),
        }
    }

    pub fn id(&self) -> &BoxId {
        match self {
            Self::Box(prepared) => prepared.id(),
            Self::Interpreter(it) => it.session.id(),
        }
    }

    pub fn keeper(&self) -> Result<Keeper, Error> {
        match self {
            Self::Box(prepared) => prepared.keeper(),
            Self::Interpreter(it) => it.session.keeper(),
        }
    }

    /// Returns what a request gets with this box.
    pub fn kind(&self) -> Warm {
        match self {
            Self::Box(_) => Warm::Box,
            Self::Interpreter(it) if it.template.is_some() => Warm::Clone,
            Self::Interpreter(_) => Warm::Fresh,
        }
    }

    /// Returns whether the box or its interpreter was seen dead. Does not wait.
    pub fn is_dead(&mut self) -> bool {
        match self {
            Self::Box(prepared) => prepared.is_keeper_dead(),
            Self::Interpreter(it) => {
                it.session.is_keeper_dead() || it.process.next_event().is_some()
            }
        }
    }

    /// Takes the box out of the pool. The record says so before anything runs for the request.
    pub fn claim(self, spec: &Spec) -> Result<Claimed, NotStarted> {
        match self {
            Self::Box(prepared) => Ok(prepared.claim(spec).map(Claimed::Box)?),
            Self::Interpreter(mut it) => match it.session.claim(spec) {
                Ok(()) => Ok(Claimed::Interpreter(it)),
                Err(error) => Err(give_up(it.session, error)),
            },
        }
    }

    /// Returns the session that ends the box.
    pub fn into_session(self) -> Session {
        match self {
            Self::Box(prepared) => prepared.into_session(),
            Self::Interpreter(it) => it.session,
        }
    }
}
