//! Sessions: executions of one user with the same hint run in the same box. Files, installed packages
//! and processes stay until the session was unused for a while.
//!
//! A session is a detached box. Its name is derived from the principal and the hint, so a later
//! server finds it, and its lease ends it even if no tare process runs. The list of files that the
//! client knows is on disk ([`Known`]).

use std::time::Duration;

use sha2::{Digest, Sha256};
use tare_engine::spec::{Name, Spec};
use tare_engine::{BoxId, DetachOptions};
use tokio_util::sync::CancellationToken;

use crate::admission::Caller;
use crate::error::ServiceError;
use crate::librechat::answer::{Answer, Runtime, RuntimeStatus};
use crate::librechat::run::inputs::SessionInputs;
use crate::librechat::run::known::Known;
use crate::librechat::run::outputs::{Collected, LeftFile, SessionOutputs};
use crate::librechat::run::queue::QueuedCall;
use crate::librechat::run::task::LibreChatRun;
use crate::librechat::state::LibreChat;
use crate::store::owner::Principal;
use crate::work::boxes::create::{CreateRequest, Created};
use crate::work::files::{BoxFiles, InputFile};
use crate::work::run::exec::ProcessInput;
use crate::work::run::outcome::RunOutput;
use crate::work::streams::output::{OutputSink, PastLimit};
use crate::work::streams::relay::Input;

const HINT_BYTES_MAX: usize = 128;
/// How much longer a lease is than an execution may take.
const LEASE_MARGIN: Duration = Duration::from_secs(60);

/// The client's name for a session.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Hint(String);

impl Hint {
    /// An empty hint is no hint.
    pub fn parse(text: &str) -> Result<Option<Self>, ServiceError> {
        let is_known =
            |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'.' | b'_' | b':' | b'-');
        if text.len() <= HINT_BYTES_MAX && text.bytes().all(is_known) {
            Ok((!text.is_empty()).then(|| Self(text.to_owned())))
        } else {
            Err(ServiceError::invalid(
                "invalid_hint",
                "runtime_session_hint: write at most 128 characters of A-Z a-z 0-9 . _ : -",
            ))
        }
    }

    /// A name that only this hint of this principal has.
    pub fn session_of(&self, principal: &Principal) -> String {
        let user = principal.user.as_deref().unwrap_or_default();
        let mut hash = Sha256::new();
        for part in [principal.tenant.as_str(), user, &self.0] {
            hash.update((part.len() as u64).to_le_bytes());
            hash.update(part);
        }
        let hex = |byte: &u8| format!("{byte:02x}");
        hash.finalize()[..16].iter().map(hex).collect()
    }
}

/// Waits for the turn of a call, and runs its code in the box of the session.
///
/// The call has its own task, which holds the turn until the last copy has ended. Dropping the
/// returned future ends the code: the client is gone.
pub async fn run(
    app: &LibreChat,
    caller: &Caller,
    turn: QueuedCall,
    run: LibreChatRun,
) -> Result<Answer, ServiceError> {
    let interrupt = app.service.shutdown.interrupt();
    let _interrupt_when_dropped = interrupt.clone().drop_guard();
    let call = SessionCall { app: app.clone(), caller: caller.clone(), turn, interrupt };
    tokio::spawn(call.run(run)).await.map_err(ServiceError::internal)?
}

/// A call that has its turn.
struct SessionCall {
    app: LibreChat,
    caller: Caller,
    turn: QueuedCall,
    /// Cancelled when the client is gone.
    interrupt: CancellationToken,
}

impl SessionCall {
    async fn run(self, run: LibreChatRun) -> Result<Answer, ServiceError> {
        let Created { status, existed, .. } = self.find_or_create(run.work.spec).await?;
        let id = status.id;
        let mut known = Known::recall(&self.app, &self.turn.session, id.clone()).await?;
        self.put(&id, &mut known, &run.inputs, run.work.code).await?;
        let process =
            self.app.service.exec(&self.caller, &id, run.work.exec, ProcessInput::None).await?;
        let process = process.with_past_limit(PastLimit::Kill);
        let relayed = process.relay(Input::default(), None, &OutputSink::Keep);
        let output = tokio::select! {
            output = relayed => output?,
            () = self.interrupt.cancelled() => return Err(ServiceError::stopping()),
        };
        let session_id = run.outputs.session.clone();
        let collected = self.collect(&id, &output, run.outputs, &run.inputs, &mut known).await?;
        // The idle time of the session begins. A box that has ended is replaced by the next call.
        let idle = self.app.service.config().librechat.boxes.session_idle.0;
        self.app.service.renew(&id, idle).await.ok();
        Ok(Answer {
            runtime: Some(Runtime {
                runtime_session_id: self.turn.session.clone(),
                runtime_status: if existed { RuntimeStatus::Reused } else { RuntimeStatus::New },
            }),
            ..Answer::new(output, session_id, collected)
        })
    }

    async fn find_or_create(&self, mut spec: Spec) -> Result<Created, ServiceError> {
        spec.name = Some(box_name(&self.turn.session)?);
        let config = self.app.service.config();
        let longest = config.limits.timeout_max.0 + LEASE_MARGIN;
        let lease = config.librechat.boxes.session_idle.0.max(longest);
        let options =
            DetachOptions { lease: Some(lease), remove: true, ..DetachOptions::default() };
        let request = CreateRequest { spec, options, may_be_warm: false, keyed: None };
        self.app.service.reuse_or_create(&self.caller, request).await
    }

    /// Puts the code into the box, and the inputs that it does not have.
    async fn put(
        &self,
        id: &BoxId,
        known: &mut Known,
        inputs: &SessionInputs,
        code: Vec<InputFile>,
    ) -> Result<(), ServiceError> {
        let missing = known.missing(inputs).await?;
        let files = missing.values().map(|input| input.file(&self.app)).chain(code).collect();
        let mut untouched = known.files().clone();
        untouched.retain(|name, _| !missing.contains_key(name));
        let mut given = untouched.clone();
        given.extend(missing);
        // During the copy the box has the old or the new file of a name.
        known.set(untouched).await?;
        if let Err(error) = self.app.service.with_files(&self.caller, id, |of| of.put(files)).await
        {
            // Processes and files that are left in a box can prevent the copy, for example with a
            // full disk. Such a box would never take code again. If it cannot be removed now, it
            // is stuck and on record.
            self.app.service.remove(&self.caller, id.to_string(), true).await.ok();
            return Err(error.with_hint("its session has ended; the next request begins another"));
        }
        known.set(given).await
    }

    async fn collect(
        &self,
        id: &BoxId,
        output: &RunOutput,
        outputs: SessionOutputs,
        inputs: &SessionInputs,
        known: &mut Known,
    ) -> Result<Collected, ServiceError> {
        if !output.end.is_success() {
            return Ok(SessionOutputs::of_failed(inputs));
        }
        let before = known.files().clone();
        let collect = move |files: BoxFiles<'_>| Ok(outputs.collect(files, &before));
        let collected = self.app.service.with_files(&self.caller, id, collect).await?;
        // The outputs are stored. The client gets them even if this cannot be written.
        known.set(now_known(&collected)).await.ok();
        Ok(collected)
    }
}

/// The files that the client knows after the execution.
fn now_known(collected: &Collected) -> SessionInputs {
    let input = |left: &LeftFile| match left {
        LeftFile::Inherited(input) | LeftFile::Kept(input) => (input.name.clone(), input.clone()),
    };
    collected.left.iter().map(input).collect()
}

fn box_name(session: &str) -> Result<Name, ServiceError> {
    Ok(Name::parse(&format!("librechat-{session}"))?)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn principal(tenant: &str, user: &str) -> Principal {
        Principal { tenant: tenant.to_owned(), user: Some(user.to_owned()) }
    }

    #[test]
    fn a_session_is_of_one_hint_of_one_user() {
        let hint = Hint::parse("v2:user:0123").expect("it is valid").expect("a hint");
        let session = hint.session_of(&principal("a", "b"));
        assert_eq!(session, hint.session_of(&principal("a", "b")));
        assert_ne!(session, hint.session_of(&principal("ab", "")));
        assert_ne!(session, hint.session_of(&principal("a", "c")));
        assert!(box_name(&session).is_ok());
        assert_eq!(Hint::parse("").expect("it is valid"), None);
        for wrong in ["a b", "a/b", "ä", &"x".repeat(129)] {
            assert!(Hint::parse(wrong).is_err(), "{wrong:?}");
        }
    }
}
