//! Executions that run or wait for results of their client, and how many of them there may be.

use std::collections::HashMap;
use std::sync::Mutex;
use std::time::{Duration, Instant};

use prometheus_client::metrics::gauge::Gauge;

use crate::error::ServiceError;
use crate::librechat::tools::execution::Execution;
use crate::store::id::Id;
use crate::store::owner::Principal;
use crate::workers::locked;

/// The number of executions at once, and those of one user. With an API key, all users of a
/// LibreChat are one.
const EXECUTIONS_MAX: usize = 256;
const USER_EXECUTIONS_MAX: usize = 64;
/// The size limits for all executions together, and for those of one user.
const BYTES_IN_ALL_MAX: usize = 256 << 20;
const USER_BYTES_MAX: usize = 64 << 20;
/// A client that does not continue within this time has given up.
const WAITS_AT_MOST: Duration = Duration::from_secs(600);
/// When a user who has reached a limit may try again.
const RETRY_AFTER_S: u32 = 30;

/// The open executions, by their token.
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

/// The right to run one execution; dropping it ends the execution.
pub struct ExecutionLock<'a> {
    executions: &'a Executions,
    token: Id,
}

impl<'a> ExecutionLock<'a> {
    pub fn new(executions: &'a Executions, principal: &Principal) -> Result<Self, ServiceError> {
        let token = Id::random();
        executions.change(|states| {
            states.retain(|_, state| !state.is_old());
            check_room(states, principal)?;
            states.insert(token.clone(), ExecutionState::Runs { principal: principal.clone() });
            Ok::<_, ServiceError>(())
        })?;
        Ok(Self { executions, token })
    }

    /// Takes a waiting execution. Only the client that started it can continue it.
    pub fn again(
        executions: &'a Executions,
        token: &Id,
        principal: &Principal,
    ) -> Result<(Self, Box<Execution>), ServiceError> {
        let execution = executions.change(|states| {
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
        Ok((Self { executions, token: token.clone() }, execution))
    }

    /// Puts the execution back until its client sends results. An execution that there is no room
    /// for ends.
    pub fn waits(self, execution: Box<Execution>) -> Result<Id, ServiceError> {
        self.executions.change(|states| {
            check_bytes_of_all(states, &execution)?;
            let since = Instant::now();
            states.insert(self.token.clone(), ExecutionState::Waits { execution, since });
            Ok(self.token.clone())
        })
    }
}

impl Drop for ExecutionLock<'_> {
    fn drop(&mut self) {
        self.executions.change(|states| {
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
        let mut states = locked(&self.states);
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::librechat::tools::request::{Asked, Request};

    fn principal(user: &str) -> Principal {
        Principal { tenant: "t".to_owned(), user: Some(user.to_owned()) }
    }

    fn execution(user: &str, code_bytes: usize) -> Box<Execution> {
        let request = serde_json::json!({
            "code": "x".repeat(code_bytes), "tools": [{ "name": "f" }],
        });
        let request: Request = serde_json::from_value(request).expect("a request");
        let Ok(Asked::Start(start)) = request.parse() else {
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
