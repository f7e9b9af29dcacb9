//! The response to code that calls tools.

use serde::Serialize;

use crate::librechat::answer::{Answer, FilesAnswer};
use crate::librechat::tools::execution::ToolCall;
use crate::store::id::Id;

/// The error of a request that its client has cancelled.
const CANCELLED: &str = "Programmatic execution request cancelled";

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
    /// The program has exited with 0.
    Completed(FinishedExecution),
    /// The program failed. Clients compare `error` with fixed texts.
    Error {
        error: String,
        #[serde(flatten)]
        finished: Option<FinishedExecution>,
    },
}

/// The result of a program that has ended.
#[derive(Debug, Serialize)]
pub struct FinishedExecution {
    session_id: Id,
    stdout: String,
    stderr: String,
    #[serde(flatten)]
    files: FilesAnswer,
    /// Why the program ended, if it did not exit by itself.
    #[serde(skip_serializing_if = "Option::is_none")]
    message: Option<String>,
    tool_calls_made: usize,
    /// In milliseconds.
    execution_time: u64,
}

impl ToolResponse {
    /// The response for a program that has ended.
    pub fn of(answer: Answer, calls_made: usize) -> Self {
        match answer.failure() {
            Some(error) => Self::failed(error, answer, calls_made),
            None => Self::Completed(FinishedExecution::new(answer, calls_made)),
        }
    }

    pub fn failed(error: String, answer: Answer, calls_made: usize) -> Self {
        Self::Error { error, finished: Some(FinishedExecution::new(answer, calls_made)) }
    }

    pub fn cancelled() -> Self {
        Self::Error { error: CANCELLED.to_owned(), finished: None }
    }
}

impl FinishedExecution {
    fn new(answer: Answer, tool_calls_made: usize) -> Self {
        Self {
            session_id: answer.session_id,
            stdout: answer.stdout,
            stderr: answer.stderr,
            files: answer.files,
            message: answer.message,
            tool_calls_made,
            execution_time: answer.wall_time,
        }
    }
}
