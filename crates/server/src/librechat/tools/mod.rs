//! `POST /v1/exec/programmatic`: code that calls the client's tools.
//!
//! ```text
//! start ─▶ box ─▶ calls without a reply? ── no ──▶ completed
//!           ▲            │ yes
//!           └─ continue ─┴─ tool_call_required, and nothing runs meanwhile
//! ```
//!
//! While the client computes replies there is no box. With the replies, the code runs again from
//! its beginning, and calls that have a reply return it. A call is identified by its tool, its
//! input, and the number of equal calls before it.

pub mod calls;
pub mod request;

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use axum::extract::{Extension, State};
use axum::http::HeaderMap;
use prometheus_client::metrics::gauge::Gauge;
use serde::Serialize;
use serde_json::value::RawValue;

use crate::admission::Caller;
use crate::error::ServiceError;
use crate::http::extract::Json;
use crate::librechat::answer::{Answer, FileShown};
use crate::librechat::cancel;
use crate::librechat::run::box_spec::{Work, beside_code};
use crate::librechat::run::exec::Task;
use crate::librechat::run::inputs::FileRef;
use crate::librechat::state::LibreChat;
use crate::librechat::tools::calls::Call;
use crate::librechat::tools::request::{Reply, Request, Start, Tongue};
use crate::store::id::Id;
use crate::store::owner::Principal;

/// The number of executions at once, and those of one user. With an API key, all users of a
/// LibreChat are one.
const EXECUTIONS_MAX: usize = 256;
const USER_EXECUTIONS_MAX: usize = 64;
/// The size limit for code, calls and replies of one execution.
const BYTES_MAX: usize = 16 << 20;
/// The size limits for all executions together, and for those of one user.
const BYTES_IN_ALL_MAX: usize = 256 << 20;
const USER_BYTES_MAX: usize = 64 << 20;
/// A client that does not continue within this time has given up.
const WAITS_AT_MOST: Duration = Duration::from_secs(600);
/// When a user who has reached a limit may try again.
const RETRY_AFTER_S: u32 = 30;

/// Executions that run or wait for replies of their client, by their token.
#[derive(Debug)]
pub struct Waiting {
    slots: Mutex<HashMap<Id, Slot>>,
    /// The metric `tare_executions_waiting`.
    count: Gauge,
}

#[derive(Debug)]
enum Slot {
    Waits {
        execution: Box<Execution>,
        since: Instant,
    },
    /// The execution runs with the replies so far.
    Runs {
        principal: Principal,
    },
}

/// The state of an execution between two rounds.
#[derive(Debug)]
struct Execution {
    principal: Principal,
    start: Start,
    /// The replies to each call, in the order of equal calls.
    history: BTreeMap<String, Vec<Reply>>,
    /// The call for each id that the client was asked to answer.
    asked: BTreeMap<String, String>,
    calls_made: usize,
    bytes: usize,
}

#[derive(Debug, Serialize)]
#[serde(tag = "status", rename_all = "snake_case")]
pub enum Round {
    ToolCallRequired {
        continuation_token: Id,
        session_id: Id,
        tool_calls: Vec<ToolCall>,
        partial_stdout: String,
        partial_stderr: String,
    },
    Completed {
        session_id: Id,
        stdout: String,
        stderr: String,
        files: Vec<FileShown>,
        tool_calls_made: usize,
        /// In milliseconds.
        execution_time: u64,
    },
    Error {
        session_id: Id,
        error: String,
        stdout: String,
        stderr: String,
    },
}

#[derive(Debug, Serialize)]
pub struct ToolCall {
    id: String,
    name: String,
    input: Box<RawValue>,
}

pub async fn programmatic(
    State(app): State<LibreChat>,
    Extension(principal): Extension<Principal>,
    Extension(caller): Extension<Caller>,
    headers: HeaderMap,
    Json(request): Json<Request>,
) -> Result<axum::Json<Round>, ServiceError> {
    let round = round(&app, &principal, &caller, request);
    let round = cancel::unless_cancelled(&app, &principal, &headers, round).await?;
    Ok(axum::Json(round))
}

async fn round(
    app: &LibreChat,
    principal: &Principal,
    caller: &Caller,
    request: Request,
) -> Result<Round, ServiceError> {
    let (turn, execution, taken) = match request.parse()? {
        request::Asked::Start(start) => {
            let execution = Execution::new(principal.clone(), *start);
            (Turn::new(app, principal)?, execution, Vec::new())
        }
        request::Asked::Continue { token, replies } => {
            let (turn, mut execution) = Turn::again(app, &token, principal)?;
            if let Err(wrong) = execution.check(&replies) {
                // The execution keeps waiting for valid replies.
                turn.waits(execution)?;
                return Err(wrong);
            }
            let taken = execution.take(replies);
            execution.check_bytes()?;
            (turn, execution, taken)
        }
    };
    execution.run(app, caller, turn, taken).await
}

/// A call that got its reply: the id that the client knows, and the key of the call.
type Taken = (String, String);

/// The right to run one execution; dropping it ends the execution.
struct Turn<'a> {
    app: &'a LibreChat,
    token: Id,
}

impl<'a> Turn<'a> {
    fn new(app: &'a LibreChat, principal: &Principal) -> Result<Self, ServiceError> {
        let token = Id::random();
        app.waiting.change(|slots| {
            slots.retain(|_, slot| !slot.is_old());
            check_room(slots, principal)?;
            slots.insert(token.clone(), Slot::Runs { principal: principal.clone() });
            Ok::<_, ServiceError>(())
        })?;
        Ok(Self { app, token })
    }

    /// Takes a waiting execution. Only the client that started it can continue it.
    fn again(
        app: &'a LibreChat,
        token: &Id,
        principal: &Principal,
    ) -> Result<(Self, Box<Execution>), ServiceError> {
        let execution = app.waiting.change(|slots| {
            slots.retain(|_, slot| !slot.is_old());
            let message = "Execution not found or expired";
            let slot = slots.remove(token);
            let slot = slot.ok_or_else(|| ServiceError::not_found("no_such_execution", message))?;
            let (kept, taken) = match slot {
                Slot::Waits { execution, .. } if execution.principal == *principal => {
                    (Slot::Runs { principal: principal.clone() }, Ok(execution))
                }
                other @ Slot::Waits { .. } => {
                    let message = "this execution belongs to another user";
                    (other, Err(ServiceError::forbidden("forbidden", message)))
                }
                other @ Slot::Runs { .. } => {
                    let message = "Another continuation is already in flight for this execution";
                    (other, Err(ServiceError::conflict("in_flight", message)))
                }
            };
            slots.insert(token.clone(), kept);
            taken
        })?;
        Ok((Self { app, token: token.clone() }, execution))
    }

    /// Puts the execution back until its client sends replies. An execution that there is no room
    /// for ends.
    fn waits(self, execution: Box<Execution>) -> Result<Id, ServiceError> {
        self.app.waiting.change(|slots| {
            check_bytes_of_all(slots, &execution)?;
            let since = Instant::now();
            slots.insert(self.token.clone(), Slot::Waits { execution, since });
            Ok(self.token.clone())
        })
    }
}

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        self.app.waiting.change(|slots| {
            if let Some(Slot::Runs { .. }) = slots.get(&self.token) {
                slots.remove(&self.token);
            }
        });
    }
}

impl Waiting {
    pub fn new(count: Gauge) -> Self {
        Self { slots: Mutex::default(), count }
    }

    /// Changes the executions, and counts those that wait.
    fn change<T>(&self, change: impl FnOnce(&mut HashMap<Id, Slot>) -> T) -> T {
        let mut slots = self.slots.lock().unwrap_or_else(PoisonError::into_inner);
        let changed = change(&mut slots);
        let is_waiting = |slot: &&Slot| matches!(slot, Slot::Waits { .. });
        let waiting = slots.values().filter(is_waiting).count();
        self.count.set(i64::try_from(waiting).unwrap_or(i64::MAX));
        changed
    }
}

/// Refuses an execution beyond the limits, so that no user takes the room of others.
fn check_room(slots: &HashMap<Id, Slot>, principal: &Principal) -> Result<(), ServiceError> {
    if slots.len() >= EXECUTIONS_MAX {
        let message = format!("server busy: {EXECUTIONS_MAX} executions with tools are open");
        return Err(ServiceError::unavailable("busy", message));
    }
    let of_user = slots.values().filter(|slot| slot.principal() == principal).count();
    if of_user >= USER_EXECUTIONS_MAX {
        let message = format!("limit reached: {USER_EXECUTIONS_MAX} open executions with tools");
        return Err(ServiceError::limited("quota_executions", message, RETRY_AFTER_S));
    }
    Ok(())
}

fn check_bytes_of_all(
    slots: &HashMap<Id, Slot>,
    execution: &Execution,
) -> Result<(), ServiceError> {
    let all: usize = slots.values().map(Slot::bytes).sum();
    if all + execution.bytes > BYTES_IN_ALL_MAX {
        let message = "server busy: calls and results of tools have reached their limit";
        return Err(ServiceError::unavailable("busy", message));
    }
    let of_user = slots.values().filter(|slot| *slot.principal() == execution.principal);
    if of_user.map(Slot::bytes).sum::<usize>() + execution.bytes > USER_BYTES_MAX {
        let message = "limit reached: calls and results of tools are too large in total";
        return Err(ServiceError::limited("quota_executions", message, RETRY_AFTER_S));
    }
    Ok(())
}

impl Slot {
    /// Whether the client has given up.
    fn is_old(&self) -> bool {
        matches!(self, Self::Waits { since, .. } if since.elapsed() > WAITS_AT_MOST)
    }

    fn bytes(&self) -> usize {
        match self {
            Self::Waits { execution, .. } => execution.bytes,
            Self::Runs { .. } => 0,
        }
    }

    fn principal(&self) -> &Principal {
        match self {
            Self::Waits { execution, .. } => &execution.principal,
            Self::Runs { principal } => principal,
        }
    }
}

impl Execution {
    fn new(principal: Principal, start: Start) -> Box<Self> {
        let bytes = start.code.len();
        Box::new(Self {
            principal,
            start,
            history: BTreeMap::new(),
            asked: BTreeMap::new(),
            calls_made: 0,
            bytes,
        })
    }

    /// Checks that the replies answer each requested call exactly once and nothing else.
    fn check(&self, replies: &[(String, Reply)]) -> Result<(), ServiceError> {
        let wrong = |message: String| ServiceError::invalid("invalid_tool_results", message);
        let mut open: BTreeSet<&String> = self.asked.keys().collect();
        for (id, _) in replies {
            if !open.remove(id) {
                return Err(wrong(format!("tool_results: {id:?} was not asked for")));
            }
        }
        match open.first() {
            Some(id) => Err(wrong(format!("tool_results: {id:?} is missing"))),
            None => Ok(()),
        }
    }

    /// Adds checked replies to the history.
    fn take(&mut self, replies: Vec<(String, Reply)>) -> Vec<Taken> {
        let mut taken = Vec::new();
        for (id, reply) in replies {
            if let Some(key) = self.asked.remove(&id) {
                self.bytes = self.bytes.saturating_add(reply.bytes());
                self.history.entry(key.clone()).or_default().push(reply);
                taken.push((id, key));
            }
        }
        taken
    }

    /// Undoes [`Self::take`]: the client is expected to send the same replies again.
    fn give_back(&mut self, taken: Vec<Taken>) {
        // Equal calls share a key, and the last reply is the last of its key.
        for (id, key) in taken.into_iter().rev() {
            let reply = self.history.get_mut(&key).and_then(Vec::pop);
            let bytes = reply.as_ref().map_or(0, Reply::bytes);
            self.bytes = self.bytes.saturating_sub(bytes);
            self.asked.insert(id, key);
        }
    }

    fn check_bytes(&self) -> Result<(), ServiceError> {
        if self.bytes <= BYTES_MAX {
            Ok(())
        } else {
            Err(ServiceError::too_large(
                "too_large",
                "the calls and the results of the tools are too large",
            ))
        }
    }

    async fn run(
        mut self: Box<Self>,
        app: &LibreChat,
        caller: &Caller,
        turn: Turn<'_>,
        taken: Vec<Taken>,
    ) -> Result<Round, ServiceError> {
        let (answer, calls) = match self.execute(app, caller).await {
            Err(error) if !taken.is_empty() && error.may_work_later() => {
                self.give_back(taken);
                turn.waits(self)?;
                return Err(error);
            }
            executed => executed?,
        };
        if calls.is_empty() || answer.status.is_some() {
            return Ok(Round::of(answer, self.calls_made));
        }
        let tool_calls = self.ask(calls)?;
        let token = turn.waits(self)?;
        Ok(Round::ToolCallRequired {
            continuation_token: token,
            session_id: answer.session_id,
            tool_calls,
            partial_stdout: answer.stdout,
            partial_stderr: answer.stderr,
        })
    }

    async fn execute(
        &self,
        app: &LibreChat,
        caller: &Caller,
    ) -> Result<(Answer, Vec<Call>), ServiceError> {
        let work = self.work(app)?;
        let files: Vec<FileRef> = self.start.files.clone();
        let user_id = self.start.user_id.clone();
        let task = Task::of(app, &self.principal, work, files, user_id).await?;
        task.run(app, caller, Some(self.start.tongue)).await
    }

    fn ask(&mut self, calls: Vec<Call>) -> Result<Vec<ToolCall>, ServiceError> {
        self.calls_made += calls.len();
        // The code chooses the key of a call, and the server stores it.
        self.bytes += calls.iter().map(|call| call.key.len()).sum::<usize>();
        self.check_bytes()?;
        let ask = |call: Call| {
            let id = format!("call_{}", Id::random());
            let name = self.start.tool(&call.name).ok_or_else(|| {
                ServiceError::invalid("invalid_tool", format!("there is no tool {:?}", call.name))
            })?;
            self.asked.insert(id.clone(), call.key);
            Ok(ToolCall { id, name: name.to_owned(), input: call.input })
        };
        calls.into_iter().map(ask).collect()
    }

    /// The code to run, with the replies so far.
    fn work(&self, app: &LibreChat) -> Result<Work, ServiceError> {
        let config = app.config();
        let (language, runner) = self.start.tongue.runner();
        let timeout = self.start.timeout;
        let mut work = Work::of(&config, language, runner.to_owned(), &[], timeout)?;
        work.code.push(beside_code("calls/.keep", Vec::new()));
        let code = self.start.code.clone().into_bytes();
        match self.start.tongue {
            Tongue::Python => work.code.extend([
                beside_code("user.py", code),
                beside_code("tools.json", json(&self.start.functions())),
                beside_code("history.json", json(&self.history)),
            ]),
            Tongue::Bash => {
                work.code.push(beside_code("user.sh", code));
                work.code.push(beside_code("tools.sh", self.start.shell_functions()));
                let replies = self.history.iter().flat_map(|(key, replies)| {
                    let numbered = replies.iter().enumerate();
                    numbered.map(move |(turn, reply)| reply.for_shell(key, turn))
                });
                work.code.extend(replies);
            }
        }
        Ok(work)
    }
}

fn json(value: &impl Serialize) -> Vec<u8> {
    serde_json::to_vec(value).expect("texts and JSON can be written as JSON")
}

impl Round {
    /// The answer for a completed execution.
    fn of(answer: Answer, tool_calls_made: usize) -> Self {
        match (answer.status, answer.message) {
            (Some(_), Some(error)) => Self::Error {
                session_id: answer.session_id,
                error,
                stdout: answer.stdout,
                stderr: answer.stderr,
            },
            (_, _) => Self::Completed {
                session_id: answer.session_id,
                stdout: answer.stdout,
                stderr: answer.stderr,
                files: answer.files,
                tool_calls_made,
                execution_time: answer.wall_time,
            },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn principal(user: &str) -> Principal {
        Principal { tenant: "t".to_owned(), user: Some(user.to_owned()) }
    }

    fn execution(user: &str, code_bytes: usize) -> Box<Execution> {
        let request = serde_json::json!({
            "code": "x".repeat(code_bytes), "tools": [{ "name": "f" }],
        });
        let request: Request = serde_json::from_value(request).expect("a request");
        let Ok(request::Asked::Start(start)) = request.parse() else {
            panic!("it begins something");
        };
        Execution::new(principal(user), *start)
    }

    fn waits(user: &str, code_bytes: usize) -> (Id, Slot) {
        let execution = execution(user, code_bytes);
        (Id::random(), Slot::Waits { execution, since: Instant::now() })
    }

    #[test]
    fn a_user_at_a_limit_is_refused_and_others_are_not() {
        let mut slots: HashMap<Id, Slot> = HashMap::new();
        for _each in 0..USER_EXECUTIONS_MAX / 2 {
            slots.extend([waits("ann", 1)]);
            slots.insert(Id::random(), Slot::Runs { principal: principal("ann") });
        }
        let code = |user| check_room(&slots, &principal(user)).map_err(|error| error.code);
        assert_eq!(code("ann"), Err("quota_executions"));
        assert_eq!(code("ben"), Ok(()));
        while slots.len() < EXECUTIONS_MAX {
            slots.insert(Id::random(), Slot::Runs { principal: principal("eve") });
        }
        let busy = check_room(&slots, &principal("ben")).expect_err("no room");
        assert_eq!(busy.code, "busy");
    }

    #[test]
    fn a_user_with_too_much_to_remember_is_refused_and_others_are_not() {
        let mut large = execution("ann", 1);
        large.bytes = USER_BYTES_MAX;
        let held = Slot::Waits { execution: large, since: Instant::now() };
        let slots = HashMap::from([(Id::random(), held)]);
        let code = |user| check_bytes_of_all(&slots, &execution(user, 1)).map_err(|it| it.code);
        assert_eq!(code("ann"), Err("quota_executions"));
        assert_eq!(code("ben"), Ok(()));
    }
}
