//! A process in a box that is there already, for somebody who waits for it.
//!
//! ```text
//! begin ─▶ relay ─▶ what it left in its pipes ─▶ Outcome
//!   └────────┴── client gone, server ending: the line to its keeper closes, and the
//!                keeper ends it with everyone that it started
//! ```

use std::time::{Duration, Instant};

use tare_engine::spec::Terminal;
use tare_engine::{BoxId, ExecSpec, Session, Stdin};
use tokio::sync::mpsc;

use crate::admission::Turn;
use crate::app::{App, Phase};
use crate::error::ServiceError;
use crate::work::relay::{self, Ended, Ends, Flood, Input, Kept, Order, Output, Relayed};

/// For a keeper to start it.
const STARTED_WITHIN: Duration = Duration::from_secs(30);

/// Whether it gets any input.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fed {
    No,
    Yes,
}

/// A process that runs. Dropped, it is ended.
#[derive(Debug)]
pub struct Process {
    session: Session,
    ends: Ends,
    started: Instant,
    _permit: Turn,
}

/// What came of it.
#[derive(Debug)]
pub struct Outcome {
    pub ended: Ended,
    pub stdout: Kept,
    pub stderr: Kept,
    pub duration: Duration,
}

/// Starts it; returns when it runs.
pub async fn begin(
    app: &App,
    id: BoxId,
    spec: ExecSpec,
    fed: Fed,
) -> Result<Process, ServiceError> {
    if app.stopping.phase() > Phase::Serving {
        return Err(ServiceError::stopping());
    }
    let permit = app.execs.permit()?;
    let bytes_max = app.config().limits.output_bytes;
    let stdin = match (fed, spec.terminal) {
        (Fed::Yes, Terminal::Pipes) => Stdin::Pipe,
        (Fed::No, _) | (Fed::Yes, Terminal::Pty { .. }) => Stdin::Empty,
    };
    let started = Instant::now();
    let mut session = app.ask_in_box(move |engine| engine.exec(&id, &spec, stdin)).await?;
    let begun = tokio::time::timeout(STARTED_WITHIN, relay::started(&mut session)).await;
    let late =
        |_| ServiceError::unavailable("not_started", "the box did not start the process in time");
    let terminal = begun.map_err(late)??;
    let ends = Ends::of(session.streams(), terminal, bytes_max)?;
    Ok(Process { session, ends, started, _permit: permit })
}

impl Process {
    /// What becomes of it when it writes more than is kept.
    pub fn at_flood(self, flood: Flood) -> Self {
        Self { ends: self.ends.at_flood(flood), ..self }
    }

    /// Until it has ended. Whoever drops this ends it.
    pub async fn run(
        mut self,
        app: &App,
        input: Input,
        mut orders: Option<mpsc::Receiver<Order>>,
        output: &Output,
    ) -> Result<Outcome, ServiceError> {
        let relayed = relay::relay(&mut self.session, &mut self.ends, input, &mut orders, output);
        let relayed = tokio::select! {
            relayed = relayed => relayed?,
            () = app.stopping.reached(Phase::Ending) => return Err(ServiceError::stopping()),
        };
        let ended = match relayed {
            Relayed::Ended(ended) => ended,
            Relayed::NobodyReads => return Err(ServiceError::internal("nobody read its output")),
        };
        self.ends.left(output).await;
        let [stdout, stderr] = self.ends.into_kept();
        Ok(Outcome { ended, stdout, stderr, duration: self.started.elapsed() })
    }
}
