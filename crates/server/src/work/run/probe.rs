//! The test whether this server can run a box: it runs one.

use std::time::{Duration, Instant};

use tare_engine::ExecSpec;
use tare_engine::spec::{Spec, Tenant};

use crate::admission::Caller;
use crate::error::ServiceError;
use crate::work::Service;
use crate::work::request::run::{Progress, RunRequest};
use crate::work::request::spec::BoxFields;
use crate::work::streams::output::OutputSink;

/// Less than the 10 s that are promised, so that the response arrives in time.
const PROBED_WITHIN: Duration = Duration::from_secs(8);

impl Service {
    /// Runs a box for test, and returns how long it took from its creation to its removal.
    pub async fn probe(&self, caller: Caller) -> Result<Duration, ServiceError> {
        let progress = Progress::default();
        // The test counts for no key.
        let caller = Caller { tenant: Tenant::default(), ..caller };
        let tried = self.run_one(&caller, progress.clone());
        let tried = tokio::time::timeout(PROBED_WITHIN, tried).await;
        tried.unwrap_or_else(|_late| {
            let (seconds, step) = (PROBED_WITHIN.as_secs(), progress.text());
            Err(not_ready(&format!("{seconds} s have passed while {step}")))
        })
    }

    async fn run_one(&self, caller: &Caller, progress: Progress) -> Result<Duration, ServiceError> {
        let config = self.config();
        let timeout = Some(config.limits.timeout.0);
        let exec = ExecSpec { timeout, ..ExecSpec::of(["true"]) };
        // A box as every client gets it, with the operator's root and packages. A machine would take
        // seconds of processor time at each look, and is made of a native box.
        let spec = BoxFields::default().into_spec(&config, &caller.tenant)?;
        let spec = Spec { machine: None, ..spec };
        let request = RunRequest::<()> { progress, ..RunRequest::new(spec, exec, 0) };
        let admitted = self.admit_run(caller, &request.spec).await;
        let admitted = admitted.map_err(|error| match error.code {
            "stopping" => not_ready(&error.message),
            _ => error,
        })?;
        let began = Instant::now();
        let output = self.run_admitted(caller, admitted, request, OutputSink::Keep).await;
        match output.map(|output| output.end.code()) {
            Ok(0) => Ok(began.elapsed()),
            // The box was made: only the operator's root has no such program.
            Err(error) if error.code == "command_not_found" => Ok(began.elapsed()),
            Ok(code) => Err(not_ready(&format!("true ended with {code}"))),
            Err(error) => {
                let why = not_ready(&error.message);
                Err(ServiceError { detail: error.detail, ..why })
            }
        }
    }
}

fn not_ready(why: &str) -> ServiceError {
    ServiceError::unavailable("not_ready", format!("no box can be run now: {why}"))
}
