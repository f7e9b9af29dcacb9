//! `POST /v1/exec/programmatic`: code that calls the client's tools.
//!
//! ```text
//! start ─▶ box ─▶ calls without a result? ── no ──▶ completed
//!           ▲            │ yes
//!           └─ continue ─┴─ tool_call_required, and nothing runs meanwhile
//! ```
//!
//! While the client computes results there is no box. With the results, the code runs again from
//! its beginning, and calls that have a result return it. A call is identified by its tool, its
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
use crate::librechat::run::box_spec::{CodeRun, code_file};
use crate::librechat::run::exec::LibreChatRun;
use crate::librechat::run::inputs::FileRef;
use crate::librechat::state::LibreChat;
use crate::librechat::tools::calls::Call;
use crate::librechat::tools::request::{Request, Start, ToolLanguage, ToolResult};
use crate::store::id::Id;
use crate::store::owner::Principal;

/// The number of executions at once, and those of one user. With an API key, all users of a
/// LibreChat are one.
const EXECUTIONS_MAX: usize = 256;
const USER_EXECUTIONS_MAX: usize = 64;
/// The size limit for code, calls and results of one execution.
const BYTES_MAX: usize = 16 << 20;
/// The size limits for all executions together, and for those of one user.
const BYTES_IN_ALL_MAX: usize = 256 << 20;
const USER_BYTES_MAX: usize = 64 << 20;
/// A client that does not continue within this time has given up.
const WAITS_AT_MOST: Duration = Duration::from_secs(600);
/// When a user who has reached a limit may try again.
const RETRY_AFTER_S: u32 = 30;

/// Executions that run or wait for results of their client, by their token.
#[derive(Debug)]
pub struct Executions {
    states: Mutex<HashMap<Id, ExecutionState>>,
    /// The metric `tare_executions_waiting`.
    count: Gauge,
}

#[derive(Debug)]
enum ExecutionState {
    Waits {
        execution: Box<Execution>,
        since: Instant,
    },
    /// The execution runs with the results so far.
    Runs {
        principal: Principal,
    },
}

/// The state of an execution between two rounds.
#[derive(Debug)]
struct Execution {
    principal: Principal,
    start: Start,
    /// The results of each call, in the order of equal calls.
    history: BTreeMap<String, Vec<ToolResult>>,
    /// The call for each id that the client was asked to answer.
    asked: BTreeMap<String, String>,
    calls_made: usize,
    bytes: usize,
}

#[derive(Debug, Serialize)]
#[serde(tag = "status", rename_all = "snake_case")]
pub enum ToolResponse {
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
) -> Result<axum::Json<ToolResponse>, ServiceError> {
    let step = step(&app, &principal, &caller, request);
    let step = cancel::unless_cancelled(&app, &principal, &headers, step).await?;
    Ok(axum::Json(step))
}

async fn step(
    app: &LibreChat,
    principal: &Principal,
    caller: &Caller,
    request: Request,
) -> Result<ToolResponse, ServiceError> {
    let (lock, execution, taken) = match request.parse()? {
        request::Asked::Start(start) => {
            let execution = Execution::new(principal.clone(), *start);
            (ExecutionLock::new(app, principal)?, execution, Vec::new())
        }
        request::Asked::Continue { token, results } => {
            let (lock, mut execution) = ExecutionLock::again(app, &token, principal)?;
            if let Err(wrong) = execution.check(&results) {
                // The execution keeps waiting for valid results.
                lock.waits(execution)?;
                return Err(wrong);
            }
            let taken = execution.take(results);
            execution.check_bytes()?;
            (lock, execution, taken)
        }
    };
    execution.run(app, caller, lock, taken).await
}

/// A call that got its result: the id that the client knows, and the key of the call.
type Taken = (String, String);

/// The right to run one execution; dropping it ends the execution.
struct ExecutionLock<'a> {
    app: &'a LibreChat,
    token: Id,
}

impl<'a> ExecutionLock<'a> {
    fn new(app: &'a LibreChat, principal: &Principal) -> Result<Self, ServiceError> {
        let token = Id::random();
        app.executions.change(|states| {
            states.retain(|_, state| !state.is_old());
            check_room(states, principal)?;
            states.insert(token.clone(), ExecutionState::Runs { principal: principal.clone() });
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
        let execution = app.executions.change(|states| {
            states.retain(|_, state| !state.is_old());
            let message = "Execution not found or expired";
            let state = states.remove(token);
            let state =
                state.ok_or_else(|| ServiceError::not_found("no_such_execution", message))?;
            let (kept, taken) = match state {
                ExecutionState::Waits { execution, .. } if execution.principal == *principal => {
                    (ExecutionState::Runs { principal: principal.clone() }, Ok(execution))
                }
                other @ ExecutionState::Waits { .. } => {
                    let message = "this execution belongs to another user";
                    (other, Err(ServiceError::forbidden("forbidden", message)))
                }
                other @ ExecutionState::Runs { .. } => {
                    let message = "Another continuation is already in flight for this execution";
                    (other, Err(ServiceError::conflict("in_flight", message)))
                }
            };
            states.insert(token.clone(), kept);
            taken
        })?;
        Ok((Self { app, token: token.clone() }, execution))
    }

    /// Puts the execution back until its client sends results. An execution that there is no room
    /// for ends.
    fn waits(self, execution: Box<Execution>) -> Result<Id, ServiceError> {
        self.app.executions.change(|states| {
            check_bytes_of_all(states, &execution)?;
            let since = Instant::now();
            states.insert(self.token.clone(), ExecutionState::Waits { execution, since });
            Ok(self.token.clone())
        })
    }
}

impl Drop for ExecutionLock<'_> {
    fn drop(&mut self) {
        self.app.executions.change(|states| {
            if let Some(ExecutionState::Runs { .. }) = states.get(&self.token) {
                states.remove(&self.token);
            }
        });
    }
}

impl Executions {
    pub fn new(count: Gauge) -> Self {
        Self { states: Mutex::default(), count }
    }

    /// Changes the executions, and counts those that wait.
    fn change<T>(&self, change: impl FnOnce(&mut HashMap<Id, ExecutionState>) -> T) -> T {
        let mut states = self.states.lock().unwrap_or_else(PoisonError::into_inner);
        let changed = change(&mut states);
        let is_waiting = |state: &&ExecutionState| matches!(state, ExecutionState::Waits { .. });
        let waiting = states.values().filter(is_waiting).count();
        self.count.set(i64::try_from(waiting).unwrap_or(i64::MAX));
        changed
    }
}

/// Refuses an execution beyond the limits, so that no user takes the room of others.
fn check_room(
    states: &HashMap<Id, ExecutionState>,
    principal: &Principal,
) -> Result<(), ServiceError> {
    if states.len() >= EXECUTIONS_MAX {
        let message = format!("server busy: {EXECUTIONS_MAX} executions with tools are open");
        return Err(ServiceError::unavailable("busy", message));
    }
    let of_user = states.values().filter(|state| state.principal() == principal).count();
    if of_user >= USER_EXECUTIONS_MAX {
        let message = format!("limit reached: {USER_EXECUTIONS_MAX} open executions with tools");
        return Err(ServiceError::limited("quota_executions", message, RETRY_AFTER_S));
    }
    Ok(())
}

fn check_bytes_of_all(
    states: &HashMap<Id, ExecutionState>,
    execution: &Execution,
) -> Result<(), ServiceError> {
    let all: usize = states.values().map(ExecutionState::bytes).sum();
    if all + execution.bytes > BYTES_IN_ALL_MAX {
        let message = "server busy: calls and results of tools have reached their limit";
        return Err(ServiceError::unavailable("busy", message));
    }
    let of_user = states.values().filter(|state| *state.principal() == execution.principal);
    if of_user.map(ExecutionState::bytes).sum::<usize>() + execution.bytes > USER_BYTES_MAX {
        let message = "limit reached: calls and results of tools are too large in total";
        return Err(ServiceError::limited("quota_executions", message, RETRY_AFTER_S));
    }
    Ok(())
}

impl ExecutionState {
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

    /// Checks that there is one result for each requested call, and no other.
    fn check(&self, results: &[ToolResult]) -> Result<(), ServiceError> {
        let wrong = |message: String| ServiceError::invalid("invalid_tool_results", message);
        let mut open: BTreeSet<&String> = self.asked.keys().collect();
        for ToolResult { call_id: id, .. } in results {
            if !open.remove(id) {
                return Err(wrong(format!("tool_results: {id:?} was not asked for")));
            }
        }
        match open.first() {
            Some(id) => Err(wrong(format!("tool_results: {id:?} is missing"))),
            None => Ok(()),
        }
    }

    /// Adds checked results to the history.
    fn take(&mut self, results: Vec<ToolResult>) -> Vec<Taken> {
        let mut taken = Vec::new();
        for result in results {
            if let Some((id, key)) = self.asked.remove_entry(&result.call_id) {
                self.bytes = self.bytes.saturating_add(result.bytes());
                self.history.entry(key.clone()).or_default().push(result);
                taken.push((id, key));
            }
        }
        taken
    }

    /// Undoes [`Self::take`]: the client is expected to send the same results again.
    fn give_back(&mut self, taken: Vec<Taken>) {
        // Equal calls share a key, and the last result is the last of its key.
        for (id, key) in taken.into_iter().rev() {
            let result = self.history.get_mut(&key).and_then(Vec::pop);
            let bytes = result.as_ref().map_or(0, ToolResult::bytes);
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
        lock: ExecutionLock<'_>,
        taken: Vec<Taken>,
    ) -> Result<ToolResponse, ServiceError> {
        let (answer, calls) = match self.execute(app, caller).await {
            Err(error) if !taken.is_empty() && error.may_work_later() => {
                self.give_back(taken);
                lock.waits(self)?;
                return Err(error);
            }
            executed => executed?,
        };
        if calls.is_empty() || answer.status.is_some() {
            return Ok(ToolResponse::of(answer, self.calls_made));
        }
        let tool_calls = self.request_results(calls)?;
        let token = lock.waits(self)?;
        Ok(ToolResponse::ToolCallRequired {
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
        let task = LibreChatRun::of(app, &self.principal, work, files, user_id).await?;
        task.run(app, caller, Some(self.start.language)).await
    }

    fn request_results(&mut self, calls: Vec<Call>) -> Result<Vec<ToolCall>, ServiceError> {
        self.calls_made += calls.len();
        // The code chooses the key of a call, and the server stores it.
        self.bytes += calls.iter().map(|call| call.key.len()).sum::<usize>();
        self.check_bytes()?;
        let request = |call: Call| {
            let id = format!("call_{}", Id::random());
            let name = self.start.tool(&call.name).ok_or_else(|| {
                ServiceError::invalid("invalid_tool", format!("there is no tool {:?}", call.name))
            })?;
            self.asked.insert(id.clone(), call.key);
            Ok(ToolCall { id, name: name.to_owned(), input: call.input })
        };
        calls.into_iter().map(request).collect()
    }

    /// The code to run, with the results so far.
    fn work(&self, app: &LibreChat) -> Result<CodeRun, ServiceError> {
        let config = app.config();
        let (language, runner) = self.start.language.runner();
        let timeout = self.start.timeout;
        let mut work = CodeRun::of(&config, language, runner.to_owned(), &[], timeout)?;
        work.code.push(code_file("calls/.keep", Vec::new()));
        let code = self.start.code.clone().into_bytes();
        match self.start.language {
            ToolLanguage::Python => work.code.extend([
                code_file("user.py", code),
                code_file("tools.json", json(&self.start.functions())),
                code_file("history.json", json(&self.history)),
            ]),
            ToolLanguage::Bash => {
                work.code.push(code_file("user.sh", code));
                work.code.push(code_file("tools.sh", self.start.shell_functions()));
                let results = self.history.iter().flat_map(|(key, results)| {
                    let numbered = results.iter().enumerate();
                    numbered.map(move |(number, result)| result.for_shell(key, number))
                });
                work.code.extend(results);
            }
        }
        Ok(work)
    }
}

fn json(value: &impl Serialize) -> Vec<u8> {
    serde_json::to_vec(value).expect("texts and JSON can be written as JSON")
}

impl ToolResponse {
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

    fn waits(user: &str, code_bytes: usize) -> (Id, ExecutionState) {
        let execution = execution(user, code_bytes);
        (Id::random(), ExecutionState::Waits { execution, since: Instant::now() })
    }

    #[test]
    fn a_user_at_a_limit_is_refused_and_others_are_not() {
        let mut states: HashMap<Id, ExecutionState> = HashMap::new();
        for _each in 0..USER_EXECUTIONS_MAX / 2 {
            states.extend([waits("ann", 1)]);
            states.insert(Id::random(), ExecutionState::Runs { principal: principal("ann") });
        }
        let code = |user| check_room(&states, &principal(user)).map_err(|error| error.code);
        assert_eq!(code("ann"), Err("quota_executions"));
        assert_eq!(code("ben"), Ok(()));
        while states.len() < EXECUTIONS_MAX {
            states.insert(Id::random(), ExecutionState::Runs { principal: principal("eve") });
        }
        let busy = check_room(&states, &principal("ben")).expect_err("no room");
        assert_eq!(busy.code, "busy");
    }

    #[test]
    fn a_user_with_too_much_to_remember_is_refused_and_others_are_not() {
        let mut large = execution("ann", 1);
        large.bytes = USER_BYTES_MAX;
        let held = ExecutionState::Waits { execution: large, since: Instant::now() };
        let states = HashMap::from([(Id::random(), held)]);
        let code = |user| check_bytes_of_all(&states, &execution(user, 1)).map_err(|it| it.code);
        assert_eq!(code("ann"), Err("quota_executions"));
        assert_eq!(code("ben"), Ok(()));
    }
}
