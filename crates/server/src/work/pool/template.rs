//! Templates: interpreters that wait and make boxes, each with a copy of themselves.
//!
//! A template is in a box of its own. The boxes that it makes end with that box. So the server ends
//! the box of a template that it does not need any more only after the last of them. Functions that
//! make something block their thread.

use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use tare_engine::{
    BoxId, Cause, Context as _, Engine, Error, Event, ExecSpec, Prepared, Session, TemplateOf,
};

use crate::admission::Admitted;
use crate::config::pool::PythonConfig;
use crate::work::pool::origins::Origins;
use crate::work::pool::shape::Shape;
use crate::work::pool::start::{Maker, NotStarted, StartAs, give_up, start};
use crate::workers::locked;

/// How long requests make their own boxes after one has waited too long for a clone.
const SLOW_FOR: Duration = Duration::from_secs(5);
/// A template that has made boxes is replaced after this many failures in a row.
const FAILURES_MAX: u32 = 3;

/// What the boxes of a template share. While one of them holds it, the template's box lives.
#[derive(Debug)]
pub struct Template {
    /// The box of the template.
    pub id: BoxId,
    /// The socket from which the template reads orders.
    socket: OwnedFd,
    /// The file of its record that has a byte for each clone.
    count: OwnedFd,
    made: AtomicU32,
    /// Orders that have failed since the last box that it made.
    failures: AtomicU32,
    /// The files that it was started from, as they were before the start.
    origins: Origins,
    /// Its packages have changed, or the configuration was read again.
    is_stale: AtomicBool,
    since: Instant,
    /// Requests do not wait for its clones before this time.
    slow_until: Mutex<Option<Instant>>,
}

impl Template {
    /// Makes a box with a copy of the template.
    pub fn make_box(&self, engine: &Engine, shape: &Shape) -> Result<Prepared, Error> {
        let template = TemplateOf { id: &self.id, socket: self.socket.as_fd() };
        let made = engine.clone_of(template, &shape.spec, shape.pool.as_str());
        if made.is_ok() {
            self.made.fetch_add(1, Ordering::Relaxed);
            self.failures.store(0, Ordering::Relaxed);
            // A number that `inspect` shows is not worth a failed call.
            rustix::io::write(&self.count, b".").ok();
        } else {
            self.failures.fetch_add(1, Ordering::Relaxed);
        }
        made
    }

    /// Whether it has made a box.
    pub fn is_proven(&self) -> bool {
        self.made.load(Ordering::Relaxed) > 0
    }

    /// Whether a request may wait for a clone of it.
    pub fn is_prompt(&self) -> bool {
        self.is_proven() && locked(&self.slow_until).is_none_or(|until| Instant::now() >= until)
    }

    /// Notes that a request has waited too long for a clone.
    pub fn was_slow(&self) {
        *locked(&self.slow_until) = Some(Instant::now() + SLOW_FOR);
    }

    /// Returns whether the template has failed too often. A template that has made boxes may fail a
    /// few times, because one kind of box may be impossible while others are not.
    fn has_failed(&self) -> bool {
        let most = if self.is_proven() { FAILURES_MAX } else { 1 };
        self.failures.load(Ordering::Relaxed) >= most
    }

    /// Looks whether its programs and packages have changed. May block its thread.
    pub fn look_at_origins(&self) {
        if self.origins.have_changed() {
            self.renew();
        }
    }

    /// Has another template made in its place. Its waiting clones are used up.
    pub fn renew(&self) {
        self.is_stale.store(true, Ordering::Relaxed);
    }

    /// Returns whether the template must be replaced, because its files have changed, or because of
    /// its age or number of clones: all clones have the same hash seed and address layout.
    fn is_old(&self, config: &PythonConfig) -> bool {
        self.is_stale.load(Ordering::Relaxed)
            || self.made.load(Ordering::Relaxed) >= config.clones
            || self.since.elapsed() >= config.age.0
    }

    pub fn age(&self) -> Duration {
        self.since.elapsed()
    }
}

/// How a template came to its end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Death {
    /// A command has removed its box, or killed its keeper.
    WithItsBox,
    /// Its interpreter has ended, or has failed too often.
    ByItself,
}

/// The box of a template.
#[derive(Debug)]
pub struct TemplateBox {
    /// Its own kind of box.
    of: Shape,
    pub session: Session,
    process: Session,
    /// It counts as a box, without a promise.
    pub admitted: Admitted,
    pub template: Arc<Template>,
    /// The interpreter has ended, or has failed too often.
    is_dead: bool,
}

impl TemplateBox {
    /// Starts the interpreter of a template, and waits until it is ready.
    pub fn make(
        maker: &Maker,
        of: Shape,
        origins: Origins,
        mut admitted: Admitted,
    ) -> Result<Self, NotStarted> {
        let interpreter = of.interpreter.as_ref().expect("only shapes with one have templates");
        let pool = format!("{}-template", of.pool.as_str());
        let mut session = maker.engine.template(&of.spec, &pool)?.go_without_command()?;
        admitted.box_is_made(session.id());
        let spec = ExecSpec {
            env: interpreter.template_env(),
            ..ExecSpec::of(interpreter.template.iter().flatten())
        };
        let started = start(maker, &mut session, StartAs::Template(&spec));
        let started = started.and_then(|process| {
            let socket = process.its_streams().stdin.as_ref().map(OwnedFd::try_clone);
            let socket = socket.ok_or_else(|| Error::failed("a template has no input"))?;
            let socket = socket.context(|| "cannot keep the socket of a template".into())?;
            Ok((process, socket, session.record_template(&interpreter.preload)?))
        });
        match started {
            Ok((process, socket, count)) => {
                let template = Template {
                    id: session.id().clone(),
                    socket,
                    count,
                    made: AtomicU32::default(),
                    failures: AtomicU32::default(),
                    origins,
                    is_stale: AtomicBool::default(),
                    since: Instant::now(),
                    slow_until: Mutex::default(),
                };
                let template = Arc::new(template);
                Ok(Self { of, session, process, admitted, template, is_dead: false })
            }
            Err(error) => Err(give_up(session, error)),
        }
    }

    /// Returns how the interpreter has died or failed, if it has since the last call. Does not wait.
    pub fn death(&mut self) -> Option<Death> {
        if self.is_dead {
            return None;
        }
        let event = self.process.next_event();
        let is_lost =
            |it: &Event| matches!(it, Event::Ended(end) if end.cause == Cause::KeeperLost);
        let death = match &event {
            Some(event) if is_lost(event) => Death::WithItsBox,
            Some(_) => Death::ByItself,
            None if self.template.has_failed() => Death::ByItself,
            None => return None,
        };
        self.is_dead = true;
        Some(death)
    }

    /// Returns whether another template must take its place.
    pub fn is_useless(&self, config: &PythonConfig) -> bool {
        self.is_dead || self.template.is_old(config)
    }

    /// Returns whether it can make boxes of this shape.
    pub fn serves(&self, shape: &Shape, config: &PythonConfig) -> bool {
        !self.is_useless(config) && self.of == shape.of_template()
    }

    /// Returns whether no box of the template is left, and no shelf uses it.
    pub fn is_unused(&self) -> bool {
        Arc::strong_count(&self.template) == 1
    }
}
