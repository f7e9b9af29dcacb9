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

use serde::Serialize;
use serde_json::value::RawValue;

use crate::config::Config;
use crate::error::ServiceError;
use crate::librechat::run::box_spec::{CodeRun, code_file};
use crate::librechat::run::calls::{Call, ToolLanguage};
use crate::librechat::tools::request::{Start, ToolResult};
use crate::librechat::tools::stubs;
use crate::store::id::Id;
use crate::store::owner::Principal;

/// The size limit for code, calls and results of one execution.
const BYTES_MAX: usize = 40 << 20;

/// The state of an execution between two rounds.
#[derive(Debug)]
pub struct Execution {
    pub principal: Principal,
    pub start: Start,
    /// The results of each call, in the order of equal calls.
    history: BTreeMap<String, Vec<ToolResult>>,
    /// The call for each id that the client was asked to answer.
    asked: BTreeMap<String, String>,
    pub calls_made: usize,
    pub bytes: usize,
}

/// A call that the client is asked to answer.
#[derive(Debug, Serialize)]
pub struct ToolCall {
    pub id: String,
    pub name: String,
    pub input: Box<RawValue>,
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
    pub fn give_back(&mut self, taken: Vec<Taken>) {
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

    /// Returns the calls with the ids by which the client answers them.
    pub fn request_results(&mut self, calls: Vec<Call>) -> Result<Vec<ToolCall>, ServiceError> {
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
    pub(super) fn work(&self, config: &Config) -> Result<CodeRun, ServiceError> {
        let (language, runner) = self.start.language.runner();
        let timeout = self.start.timeout;
        let mut work = CodeRun::of(config, language, runner.to_owned(), &[], timeout)?;
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
