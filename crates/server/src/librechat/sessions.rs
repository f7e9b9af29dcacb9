//! Sessions: whoever says the same hint reaches the same box, with its files, what is
//! installed in it and what runs in it, until nobody has used it for a while.
//!
//! A session is a box that lives on, found by its name, which derives from who asks and
//! what he says. So it outlives this server, and its lease ends it with no tare alive.
//! What this server remembers is only which files the client knows of.

use std::collections::{BTreeSet, HashMap};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use axum::http::StatusCode;
use sha2::{Digest, Sha256};
use tare_engine::spec::{Name, Spec, name};
use tare_engine::{BoxId, Changes, DetachOptions, Engine, Error, ErrorKind, Exit, State};

use super::answer::{Answer, Ran, Runtime, RuntimeStatus};
use super::exec::Task;
use super::inputs::Inputs;
use super::outputs::{Collected, Left, Outputs};
use super::owner::Principal;
use crate::api::boxes::{Asking, Created};
use crate::app::{App, Phase};
use crate::edge;
use crate::error::ApiError;
use crate::exec::{self, Fed};
use crate::guard::Caller;
use crate::oneshot::files::{self, FileIn};
use crate::quota;
use crate::relay::{Ended, Flood, Input, Output};

const HINT_BYTES_MAX: usize = 128;
/// Sessions whose files are remembered; of the others the client sends them again.
const REMEMBERED_MAX: usize = 1000;
/// What a lease is longer than the time of an execution.
const LEASE_MARGIN: Duration = Duration::from_secs(60);

/// What a client says to come to the same box.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Hint(String);

impl Hint {
    pub fn parse(text: &str) -> Result<Self, ApiError> {
        let is_known =
            |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'.' | b'_' | b':' | b'-');
        let valid = (1..=HINT_BYTES_MAX).contains(&text.len()) && text.bytes().all(is_known);
        match valid {
            true => Ok(Self(text.to_owned())),
            false => Err(ApiError::bad_request(
                "invalid_hint",
                "runtime_session_hint: it has 1 to 128 of A-Z a-z 0-9 . _ : -",
            )),
        }
    }

    /// The same for the same hint of the same principal, and for nobody else's.
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

/// Which sessions are in use, and what is known of their files.
#[derive(Debug, Default)]
pub struct Sessions(Mutex<HashMap<String, Session>>);

#[derive(Debug, Default)]
struct Session {
    is_busy: bool,
    /// Of this box.
    id: Option<BoxId>,
    known: Inputs,
}

/// The use of a session; it ends with this.
struct Turn<'a> {
    sessions: &'a Sessions,
    name: String,
}

impl Sessions {
    fn enter(&self, name: String) -> Result<Turn<'_>, ApiError> {
        let mut sessions = self.all();
        if sessions.len() >= REMEMBERED_MAX {
            sessions.retain(|_, session| session.is_busy);
        }
        let session = sessions.entry(name.clone()).or_default();
        if std::mem::replace(&mut session.is_busy, true) {
            return Err(ApiError::new(
                StatusCode::CONFLICT,
                "runtime_session_busy",
                "this session runs something already",
            ));
        }
        drop(sessions);
        Ok(Turn {
            sessions: self,
            name,
        })
    }

    fn all(&self) -> MutexGuard<'_, HashMap<String, Session>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Turn<'_> {
    /// The files of this box, as the client knows them.
    fn known(&self, id: &BoxId) -> Inputs {
        let sessions = self.sessions.all();
        let session = sessions.get(&self.name);
        let same = session.filter(|session| session.id.as_ref() == Some(id));
        same.map(|session| session.known.clone())
            .unwrap_or_default()
    }

    fn remember(&self, id: BoxId, known: Inputs) {
        let mut sessions = self.sessions.all();
        if let Some(session) = sessions.get_mut(&self.name) {
            session.id = Some(id);
            session.known = known;
        }
    }
}

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        let mut sessions = self.sessions.all();
        match sessions.get_mut(&self.name) {
            Some(session) if session.id.is_some() => session.is_busy = false,
            Some(_) => drop(sessions.remove(&self.name)),
            None => {}
        }
    }
}

/// Runs it in the box of this session, which is made if there is none.
pub async fn run(
    app: &App,
    principal: &Principal,
    caller: &Caller,
    hint: &Hint,
    task: Task,
) -> Result<Answer, ApiError> {
    if app.stopping.phase() > Phase::Serving {
        return Err(ApiError::unavailable(
            "stopping",
            "Service is shutting down",
        ));
    }
    let session = hint.session_of(principal);
    let turn = app.sessions.enter(session.clone())?;
    let (id, status) = find_or_make(app, caller, &session, task.work.spec).await?;
    let before = turn.known(&id);
    let mut known = before.clone();
    known.extend(task.inputs.clone());
    let is_there = |name: &String| {
        let ids = [&before, &task.inputs].map(|all| all.get(name).map(|input| &input.object.id));
        ids[0] == ids[1]
    };
    let missing = task.inputs.iter().filter(|(name, _)| !is_there(name));
    let changing: BTreeSet<String> = missing.clone().map(|(name, _)| name.clone()).collect();
    let inputs = missing
        .map(|(_, input)| input.file(app))
        .collect::<Vec<_>>();
    let put = inputs.into_iter().chain(task.work.code).collect();
    // Until this is over nobody knows which of the two is there.
    let mut untouched = before;
    untouched.retain(|name, _| !changing.contains(name));
    turn.remember(id.clone(), untouched);
    put_into(app, &id, put).await?;
    let killed_before = oom_kills(app, &id).await?;
    let process = exec::begin(app, id.clone(), task.work.exec, Fed::No).await?;
    let process = process.at_flood(Flood::Ends);
    let outcome = process
        .run(app, Input::default(), None, &Output::Keep)
        .await?;
    let has_worked = outcome.ended == Ended::Exited(Exit::Code(0));
    let collected = match has_worked {
        true => collect(app, &id, task.outputs.clone(), known.clone()).await?,
        false => Outputs::of_failed(&task.inputs),
    };
    if has_worked {
        known = now_known(&collected);
    }
    turn.remember(id.clone(), known);
    let ran = Ran {
        ended: outcome.ended,
        oom: oom_kills(app, &id).await? > killed_before,
        stdout: outcome.stdout,
        stderr: outcome.stderr,
        duration: outcome.duration,
    };
    renew(app, id).await?;
    let answer = ran.into_answer(task.outputs.session, collected);
    Ok(Answer {
        runtime: Some(Runtime {
            runtime_session_id: session,
            runtime_status: status,
        }),
        ..answer
    })
}

/// Whoever was left in the box has a say in it, and so does what was left there: a box
/// that takes no more code, as with a full disk, would never take any. It ends, and who
/// comes next gets another.
async fn put_into(app: &App, id: &BoxId, put: Vec<FileIn>) -> Result<(), ApiError> {
    let copied = id.clone();
    let put = app.ask_in_box(move |engine| files::put_all(engine, &copied, put));
    let Err(error) = put.await else { return Ok(()) };
    let id = id.clone();
    // One that cannot be ended now is stuck, and on record.
    app.ask(move |engine| Ok(engine.remove(&id, true).ok()))
        .await?;
    Err(error.with_hint("its session has ended; the next request begins another"))
}

async fn oom_kills(app: &App, id: &BoxId) -> Result<u64, ApiError> {
    let id = id.clone();
    app.ask(move |engine| Ok(engine.oom_kills(&id))).await
}

async fn collect(
    app: &App,
    id: &BoxId,
    outputs: Outputs,
    known: Inputs,
) -> Result<Collected, ApiError> {
    let id = id.clone();
    app.ask_in_box(move |engine| Ok(outputs.collect(engine, &id, &known)))
        .await
}

/// What the client has heard of, now.
fn now_known(collected: &Collected) -> Inputs {
    let input = |left: &Left| match left {
        Left::Inherited(input) | Left::Kept(input) => (input.name.clone(), input.clone()),
    };
    collected.left.iter().map(input).collect()
}

/// One that has ended is replaced: nothing of it is kept.
async fn find_or_make(
    app: &App,
    caller: &Caller,
    session: &str,
    mut spec: Spec,
) -> Result<(BoxId, RuntimeStatus), ApiError> {
    let name = box_name(session)?;
    let lease = lease(app);
    let wanted = name.clone();
    let found = app.ask(move |engine| reuse(engine, &wanted, lease)).await?;
    if let Some(id) = found {
        return Ok((id, RuntimeStatus::Reused));
    }
    spec.name = Some(name);
    if let Some(key) = &caller.0 {
        spec.labels.insert(quota::KEY_LABEL.to_owned(), key.clone());
    }
    let request_id = edge::current_request().unwrap_or_default();
    let memory_bytes = spec.limits.memory_bytes.value();
    let asking = Asking::new(request_id, caller.clone(), memory_bytes);
    let admitted = asking.admit(app).await?;
    let note = asking.note(app);
    let options = DetachOptions {
        lease: Some(lease),
        remove: true,
        ..DetachOptions::default()
    };
    let made = app.ask(move |engine| {
        let started = engine.start(&spec, &options)?;
        let id = started.id.clone();
        Created::watched(engine, &note, started, admitted)?;
        Ok(id)
    });
    Ok((made.await?, RuntimeStatus::New))
}

fn box_name(session: &str) -> Result<Name, ApiError> {
    Ok(name::parse(&format!("librechat-{session}"))?)
}

fn reuse(engine: &Engine, name: &Name, lease: Duration) -> Result<Option<BoxId>, Error> {
    let id = match engine.find(name.as_str()) {
        Ok(id) => id,
        Err(error) if error.kind() == ErrorKind::NoSuchBox => return Ok(None),
        Err(error) => return Err(error),
    };
    let is_usable = engine
        .status(&id)
        .is_ok_and(|status| status.state == State::Running);
    if is_usable && renew_lease(engine, &id, lease).is_ok() {
        return Ok(Some(id));
    }
    match engine.remove(&id, true) {
        Ok(_) => Ok(None),
        Err(error) if error.kind() == ErrorKind::NoSuchBox => Ok(None),
        Err(error) => Err(error),
    }
}

fn lease(app: &App) -> Duration {
    let config = app.config();
    let longest = config.limits.timeout_max + LEASE_MARGIN;
    config.librechat.boxes.session_idle.max(longest)
}

/// From now on it is not used.
async fn renew(app: &App, id: BoxId) -> Result<(), ApiError> {
    let idle = app.config().librechat.boxes.session_idle;
    // One that has ended meanwhile is replaced when somebody comes.
    app.ask(move |engine| Ok(renew_lease(engine, &id, idle).ok()))
        .await?;
    Ok(())
}

fn renew_lease(engine: &Engine, id: &BoxId, lease: Duration) -> Result<(), Error> {
    let changes = Changes {
        lease: Some(Some(lease)),
        ..Changes::default()
    };
    engine.update(id, &changes)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn principal(tenant: &str, user: &str) -> Principal {
        Principal {
            tenant: tenant.to_owned(),
            user: Some(user.to_owned()),
        }
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
        let turn = sessions.enter("a".to_owned());
        assert_eq!(
            sessions.enter("a".to_owned()).err().map(|busy| busy.code),
            Some("runtime_session_busy")
        );
        assert!(sessions.enter("b".to_owned()).is_ok());
        drop(turn);
        assert!(sessions.enter("a".to_owned()).is_ok());
    }
}
