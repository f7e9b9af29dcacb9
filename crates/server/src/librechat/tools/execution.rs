//! Code that calls tools, between two rounds and in one.
//!
//! ```text
//! start ─▶ box ─▶ calls without a result? ── no ──▶ completed, or error
//!           ▲            │ yes
//!           └─ continue ─┴─ tool_call_required, and nothing runs meanwhile
//! ```
//!
//! While the client computes results there is no box. With the results, the code runs again from
//! its beginning, and calls that have a result return it. A call is identified by its tool, its
//! input, and the number of equal calls before it.

use std::collections::{BTreeMap, BTreeSet};

use crate::admission::Caller;
use crate::error::ServiceError;
use crate::librechat::answer::{Answer, add_reason, without_reason};
use crate::librechat::run::box_spec::{CodeRun, code_file};
use crate::librechat::run::exec::LibreChatRun;
use crate::librechat::state::LibreChat;
use crate::librechat::tools::calls::{Call, Forged};
use crate::librechat::tools::open::ExecutionLock;
use crate::librechat::tools::request::{Start, ToolResult};
use crate::librechat::tools::response::{ToolCall, ToolResponse};
use crate::librechat::tools::stubs::{self, ToolLanguage};
use crate::store::id::Id;
use crate::store::owner::Principal;

/// The size limit for code, calls and results of one execution.
const BYTES_MAX: usize = 40 << 20;
/// The error of code that forged its calls, in a text that clients know.
const FAILED: &str = "Execution failed or timed out";

/// The state of an execution between two rounds.
#[derive(Debug)]
pub struct Execution {
    pub principal: Principal,
    start: Start,
    /// The results of each call, in the order of equal calls.
    history: BTreeMap<String, Vec<ToolResult>>,
    /// The call for each id that the client was asked to answer.
    asked: BTreeMap<String, String>,
    calls_made: usize,
    pub bytes: usize,
}

/// A call that got its result: the id that the client knows, and the key of the call.
pub type Taken = (String, String);

impl Execution {
    pub fn new(principal: Principal, start: Start) -> Box<Self> {
        let bytes = start.bytes();
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
    pub fn check(&self, results: &[ToolResult]) -> Result<(), ServiceError> {
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
    pub fn take(&mut self, results: Vec<ToolResult>) -> Vec<Taken> {
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

    pub fn check_bytes(&self) -> Result<(), ServiceError> {
        if self.bytes <= BYTES_MAX {
            Ok(())
        } else {
            Err(ServiceError::too_large(
                "too_large",
                "the calls and the results of the tools are too large",
            ))
        }
    }

    pub async fn run(
        mut self: Box<Self>,
        app: &LibreChat,
        caller: &Caller,
        lock: ExecutionLock<'_>,
        taken: Vec<Taken>,
    ) -> Result<ToolResponse, ServiceError> {
        let (mut answer, calls) = match self.execute(app, caller).await {
            Err(error) if !taken.is_empty() && error.may_work_later() => {
                self.give_back(taken);
                lock.waits(self)?;
                return Err(error);
            }
            executed => executed?,
        };
        let calls = match calls {
            Ok(calls) if !calls.is_empty() && answer.status.is_none() => calls,
            Ok(_) => return Ok(ToolResponse::of(answer, self.calls_made)),
            Err(why) => {
                add_reason(&mut answer.stderr, why);
                return Ok(ToolResponse::failed(FAILED.to_owned(), answer, self.calls_made));
            }
        };
        if let Some(call) = calls.iter().find(|call| self.start.tool(&call.name).is_none()) {
            let error = stubs::unregistered(&call.name);
            return Ok(ToolResponse::failed(error, answer, self.calls_made));
        }
        let tool_calls = self.request_results(calls)?;
        // The program for bash kills itself to wait for results, which is not a failure.
        let partial_stderr = without_reason(&answer).to_owned();
        Ok(ToolResponse::ToolCallRequired {
            continuation_token: lock.waits(self)?,
            session_id: answer.session_id,
            tool_calls,
            partial_stdout: answer.stdout,
            partial_stderr,
        })
    }

    async fn execute(
        &self,
        app: &LibreChat,
        caller: &Caller,
    ) -> Result<(Answer, Result<Vec<Call>, Forged>), ServiceError> {
        let work = self.work(app)?;
        let files = self.start.files.clone();
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
            self.asked.insert(id.clone(), call.key);
            ToolCall { id, name: call.name, input: call.input }
        };
        Ok(calls.into_iter().map(request).collect())
    }

    /// The code to run, with the results so far.
    fn work(&self, app: &LibreChat) -> Result<CodeRun, ServiceError> {
        let config = app.service.config();
        let (language, runner) = self.start.language.runner();
        let timeout = self.start.timeout;
        let mut work = CodeRun::of(&config, language, runner.to_owned(), &[], timeout)?;
        work.code.push(code_file("calls/.keep", Vec::new()));
        let code = self.start.code.clone().into_bytes();
        match self.start.language {
            ToolLanguage::Python => work.code.extend([
                code_file("user.py", code),
                code_file("tools.json", stubs::json(&self.start.tools)),
                code_file("history.json", stubs::json(&self.history)),
            ]),
            ToolLanguage::Bash => {
                work.code.push(code_file("user.sh", code));
                work.code.push(code_file("tools.sh", stubs::shell(&self.start.tools)));
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
