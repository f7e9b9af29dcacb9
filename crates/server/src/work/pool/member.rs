//! One box of a pool. Every function here blocks its thread.

use std::sync::Arc;
use std::time::Duration;

use tare_engine::spec::Spec;
use tare_engine::{BoxId, Context as _, Error, ExecSpec, Keeper, Prepared, Session};
use tokio::task::AbortHandle;

use crate::admission::Admitted;
use crate::work::pool::shape::{Interpreter, Life, Shape};
use crate::work::pool::start::{Maker, StartAs, give_up, start};
use crate::work::pool::template::Template;
use crate::work::request::run::Warm;

/// A box that waits.
#[derive(Debug)]
pub struct Member {
    pub waiting: Waiting,
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
    ) -> Result<Self, Error> {
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

    /// Returns whether the box and its interpreter live. Does not wait.
    pub fn is_alive(&mut self) -> bool {
        let keeper = self.keeper().and_then(|keeper| {
            keeper.wait_dead(Duration::ZERO).context(|| "cannot see the keeper".into())
        });
        let has_process = match self {
            Self::Box(_) => true,
            Self::Interpreter(it) => it.process.next_event().is_none(),
        };
        matches!(keeper, Ok(false)) && has_process
    }

    /// Takes the box out of the pool. The record says so before anything runs for the request.
    pub fn claim(self, spec: &Spec) -> Result<Claimed, Error> {
        match self {
            Self::Box(prepared) => prepared.claim(spec).map(Claimed::Box),
            Self::Interpreter(mut it) => match it.session.claim(spec) {
                Ok(()) => Ok(Claimed::Interpreter(it)),
                Err(error) => {
                    it.session.end().ok();
                    Err(error)
                }
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
