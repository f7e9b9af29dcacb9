//! Sessions: executions of one user with the same hint run in the same box. Files, installed packages
//! and processes stay until the session was unused for a while.
//!
//! A session is a detached box. Its name is derived from the principal and the hint, so a later
//! server finds it, and its lease ends it even if no tare process runs. The list of files that the
//! client knows is on disk ([`Known`]).

use std::collections::HashSet;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use sha2::{Digest, Sha256};
use tare_engine::spec::{Name, Spec};
use tare_engine::{BoxId, Changes, DetachOptions, Engine, Error, ErrorKind, Scope, State};

use crate::admission::Caller;
use crate::error::ServiceError;
use crate::librechat::answer::{Answer, Runtime, RuntimeStatus};
use crate::librechat::run::exec::LibreChatRun;
use crate::librechat::run::inputs::Inputs;
use crate::librechat::run::known::Known;
use crate::librechat::run::outputs::{Collected, OutputFile, Outputs};
use crate::librechat::state::LibreChat;
use crate::store::owner::Principal;
use crate::work::create::CreateRequest;
use crate::work::exec::Fed;
use crate::work::files::{self, InputFile};
use crate::work::output::{OutputSink, PastLimit};
use crate::work::relay::Input;

const HINT_BYTES_MAX: usize = 128;
/// How much longer a lease is than an execution may take.
const LEASE_MARGIN: Duration = Duration::from_secs(60);

/// The client's name for a session.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Hint(String);

impl Hint {
    pub fn parse(text: &str) -> Result<Self, ServiceError> {
        let is_known =
            |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'.' | b'_' | b':' | b'-');
        let valid = (1..=HINT_BYTES_MAX).contains(&text.len()) && text.bytes().all(is_known);
        if valid {
            Ok(Self(text.to_owned()))
        } else {
            Err(ServiceError::invalid(
                "invalid_hint",
                "runtime_session_hint: write 1 to 128 characters of A-Z a-z 0-9 . _ : -",
            ))
        }
    }

    /// A name that only this hint of this principal has.
    fn session_of(&self, principal: &Principal) -> String {
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

/// The sessions that run something now, by name.
#[derive(Debug, Clone, Default)]
pub struct Sessions(Arc<Mutex<HashSet<String>>>);

/// The use of a session. It ends when the request and every thread that works for it have
/// dropped this: a thread may still copy files for a client that is gone.
pub struct SessionLock {
    sessions: Sessions,
    session: String,
}

impl Sessions {
    fn lock(&self, session: String) -> Result<Arc<SessionLock>, ServiceError> {
        if !self.busy().insert(session.clone()) {
            return Err(ServiceError::conflict(
                "runtime_session_busy",
                "this session is already running code",
            ));
        }
        let sessions = self.clone();
        Ok(Arc::new(SessionLock { sessions, session }))
    }

    fn busy(&self) -> MutexGuard<'_, HashSet<String>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl SessionLock {
    pub fn session(&self) -> &str {
        &self.session
    }
}

impl Drop for SessionLock {
    fn drop(&mut self) {
        self.sessions.busy().remove(&self.session);
    }
}

/// Runs code in the box of the session, and creates the box if there is none.
pub async fn run(
    app: &LibreChat,
    principal: &Principal,
    caller: &Caller,
    hint: &Hint,
    task: LibreChatRun,
) -> Result<Answer, ServiceError> {
    app.shutdown.check_serving()?;
    let lock = app.sessions.lock(hint.session_of(principal))?;
    let (id, status) = find_or_make(app, caller, &lock, task.work.spec).await?;
    let mut known = Known::recall(app, &lock, id.clone()).await?;
    put_into(app, caller, &lock, &id, &mut known, &task.inputs, task.work.code).await?;
    let process = app.exec(caller, &id, task.work.exec, Fed::No).await?;
    let process = process.with_past_limit(PastLimit::Kill);
    let output = process.relay(Input::default(), None, &OutputSink::Keep).await?;
    let session_id = task.outputs.session.clone();
    let collected = if output.end.is_success() {
        collect(app, caller, &lock, &id, task.outputs, &mut known).await?
    } else {
        Outputs::of_failed(&task.inputs)
    };
    renew(app, &lock, id).await?;
    Ok(Answer {
        runtime: Some(Runtime {
            runtime_session_id: lock.session().to_owned(),
            runtime_status: status,
        }),
        ..Answer::new(output, session_id, collected)
    })
}

/// Puts the code into the box, and the inputs that it does not have.
async fn put_into(
    app: &LibreChat,
    caller: &Caller,
    lock: &Arc<SessionLock>,
    id: &BoxId,
    known: &mut Known,
    inputs: &Inputs,
    code: Vec<InputFile>,
) -> Result<(), ServiceError> {
    let mut missing = inputs.clone();
    missing.retain(|name, input| {
        let there = known.files().get(name);
        there.is_none_or(|there| there.object.id != input.object.id)
    });
    let files = missing.values().map(|input| input.file(app));
    let put = files.chain(code).collect();
    let mut untouched = known.files().clone();
    untouched.retain(|name, _| !missing.contains_key(name));
    let mut given = untouched.clone();
    given.extend(missing);
    // During the copy the box has the old or the new file of a name.
    known.set(untouched).await?;
    copy_into(app, caller, lock, id, put).await?;
    known.set(given).await
}

/// Processes and files that are left in a box can prevent the copy, for example with a full
/// disk. Such a box would never take code again. It ends, and the next request gets a new one.
async fn copy_into(
    app: &LibreChat,
    caller: &Caller,
    lock: &Arc<SessionLock>,
    id: &BoxId,
    put: Vec<InputFile>,
) -> Result<(), ServiceError> {
    let (of, lock) = (id.clone(), Arc::clone(lock));
    let put = app.call_in_box(caller, id, move |engine| {
        let _lock = lock;
        let put = files::put(engine, &of, put);
        // A box that cannot be ended now is stuck, and on record.
        put.inspect_err(|_| drop(engine.remove(&of, true)))
    });
    let ended = "its session has ended; the next request begins another";
    put.await.map_err(|error| error.with_hint(ended))
}

async fn collect(
    app: &LibreChat,
    caller: &Caller,
    lock: &Arc<SessionLock>,
    id: &BoxId,
    outputs: Outputs,
    known: &mut Known,
) -> Result<Collected, ServiceError> {
    let (of, lock, before) = (id.clone(), Arc::clone(lock), known.files().clone());
    let collect = app.call_in_box(caller, id, move |engine| {
        let _lock = lock;
        Ok(outputs.collect(engine, &of, &before))
    });
    let collected = collect.await?;
    // The outputs are stored. The client gets them even if this cannot be written.
    known.set(now_known(&collected)).await.ok();
    Ok(collected)
}

/// The files that the client knows after the execution.
fn now_known(collected: &Collected) -> Inputs {
    let input = |left: &OutputFile| match left {
        OutputFile::Inherited(input) | OutputFile::Kept(input) => {
            (input.name.clone(), input.clone())
        }
    };
    collected.left.iter().map(input).collect()
}

/// Replaces a box that has ended. Nothing of it is kept.
async fn find_or_make(
    app: &LibreChat,
    caller: &Caller,
    lock: &Arc<SessionLock>,
    mut spec: Spec,
) -> Result<(BoxId, RuntimeStatus), ServiceError> {
    let name = box_name(lock.session())?;
    let lease = lease(app);
    let (wanted, held) = (name.clone(), Arc::clone(lock));
    // Also for an admin, who sees other boxes with this name.
    let own = Scope::Tenant(caller.tenant.clone());
    let found = app.call(move |engine| {
        let _lock = held;
        reuse(engine, &own, &wanted, lease)
    });
    if let Some(id) = found.await? {
        return Ok((id, RuntimeStatus::Reused));
    }
    spec.name = Some(name);
    let options = DetachOptions { lease: Some(lease), remove: true, ..DetachOptions::default() };
    let request = CreateRequest { spec, options, keyed: None };
    let (service, caller, held) = (app.service.clone(), caller.clone(), Arc::clone(lock));
    // In its own task, which holds the lock until the box exists: a client that disconnects
    // must not let the next one in before.
    let creating = tokio::spawn(async move {
        let _lock = held;
        service.create(&caller, request).await
    });
    let created = creating.await.map_err(ServiceError::internal)??;
    Ok((created.status.id, RuntimeStatus::New))
}

fn box_name(session: &str) -> Result<Name, ServiceError> {
    Ok(Name::parse(&format!("librechat-{session}"))?)
}

fn reuse(
    engine: &Engine,
    own: &Scope,
    name: &Name,
    lease: Duration,
) -> Result<Option<BoxId>, Error> {
    let id = match engine.find_in(own, name.as_str()) {
        Ok(id) => id,
        Err(error) if error.kind() == ErrorKind::NoSuchBox => return Ok(None),
        Err(error) => return Err(error),
    };
    let is_usable = engine.status(&id).is_ok_and(|status| status.state == State::Running);
    if is_usable && renew_lease(engine, &id, lease).is_ok() {
        return Ok(Some(id));
    }
    match engine.remove(&id, true) {
        Ok(_) => Ok(None),
        Err(error) if error.kind() == ErrorKind::NoSuchBox => Ok(None),
        Err(error) => Err(error),
    }
}

fn lease(app: &LibreChat) -> Duration {
    let config = app.config();
    let longest = config.limits.timeout_max.0 + LEASE_MARGIN;
    config.librechat.boxes.session_idle.0.max(longest)
}

/// Starts the idle time of the session.
async fn renew(app: &LibreChat, lock: &Arc<SessionLock>, id: BoxId) -> Result<(), ServiceError> {
    let idle = app.config().librechat.boxes.session_idle.0;
    let lock = Arc::clone(lock);
    // A box that has ended meanwhile is replaced by the next request.
    let renewed = app.call(move |engine| {
        let _lock = lock;
        Ok(renew_lease(engine, &id, idle).ok())
    });
    renewed.await.map(drop)
}

fn renew_lease(engine: &Engine, id: &BoxId, lease: Duration) -> Result<(), Error> {
    let changes = Changes { lease: Some(Some(lease)), ..Changes::default() };
    engine.update(id, &changes)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn principal(tenant: &str, user: &str) -> Principal {
        Principal { tenant: tenant.to_owned(), user: Some(user.to_owned()) }
    }

    #[test]
    fn a_session_is_of_one_hint_of_one_user() {
        let hint = Hint::parse("v2:user:0123").expect("a hint");
        let session = hint.session_of(&principal("a", "b"));
        assert_eq!(session, hint.session_of(&principal("a", "b")));
        assert_ne!(session, hint.session_of(&principal("ab", "")));
        assert_ne!(session, hint.session_of(&principal("a", "c")));
        assert!(box_name(&session).is_ok());
        for wrong in ["", "a b", "a/b", "ä", &"x".repeat(129)] {
            assert!(Hint::parse(wrong).is_err(), "{wrong:?}");
        }
    }

    #[test]
    fn one_at_a_time_uses_a_session() {
        let sessions = Sessions::default();
        let lock = sessions.lock("a".to_owned());
        assert_eq!(
            sessions.lock("a".to_owned()).err().map(|busy| busy.code),
            Some("runtime_session_busy")
        );
        assert!(sessions.lock("b".to_owned()).is_ok());
        let in_a_thread = lock.as_ref().ok().cloned();
        drop(lock);
        assert!(sessions.lock("a".to_owned()).is_err(), "a thread works on");
        drop(in_a_thread);
        assert!(sessions.lock("a".to_owned()).is_ok());
    }
}
