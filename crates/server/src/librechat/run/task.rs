//! Runs code with the files that it works on, in a box of its own.

use crate::admission::Caller;
use crate::error::ServiceError;
use crate::librechat::answer::Answer;
use crate::librechat::body_fields::FileRef;
use crate::librechat::run::box_spec::CodeRun;
use crate::librechat::run::calls::{self, Call, Forged, ToolLanguage};
use crate::librechat::run::inputs::{self, SessionInputs};
use crate::librechat::run::outputs::{Collected, LeftFile, SessionOutputs};
use crate::librechat::state::LibreChat;
use crate::store::id::Id;
use crate::store::owner::{Principal, Resource};
use crate::work::request::run::{Collect, RunRequest};
use crate::work::streams::output::{OutputSink, PastLimit};

/// Code to run, with its files.
pub struct LibreChatRun {
    pub work: CodeRun,
    pub inputs: SessionInputs,
    pub outputs: SessionOutputs,
    /// Whether the answer lists unchanged inputs. First-generation clients take every listed file
    /// for one that this execution made, and then look for it in the wrong session.
    lists_inherited: bool,
}

impl LibreChatRun {
    /// Finds the files that the code works on, and checks that the client may use them.
    pub async fn of(
        app: &LibreChat,
        principal: &Principal,
        work: CodeRun,
        files: Vec<FileRef>,
        user_id: Option<String>,
    ) -> Result<Self, ServiceError> {
        let lists_inherited = files.iter().all(|file| file.storage_session_id.is_some());
        let inputs = inputs::find(app, principal, files, user_id.as_deref()).await?;
        let outputs = SessionOutputs {
            app: app.clone(),
            session: Id::random(),
            owner: principal.owner(&Resource::User),
            said_by: user_id,
            files_max: app.service.config().librechat.boxes.output_files,
        };
        Ok(Self { work, inputs, outputs, lists_inherited })
    }

    /// Runs the code in a box of its own, which is removed afterwards. Code that may call tools
    /// also returns its calls without a result.
    pub async fn run(
        self,
        app: &LibreChat,
        caller: &Caller,
        language: Option<ToolLanguage>,
    ) -> Result<(Answer, Result<Vec<Call>, Forged>), ServiceError> {
        let session = self.outputs.session.clone();
        let files = self.inputs.values().map(|input| input.file(app));
        let output_bytes_max = app.service.config().limits.output_bytes.0;
        let request = RunRequest {
            files: files.chain(self.work.code).collect(),
            collect: Some(collect(self.outputs, self.inputs.clone(), language)),
            code: self.work.interpreted,
            past_limit: PastLimit::Kill,
            ..RunRequest::new(self.work.spec, self.work.exec, output_bytes_max)
        };
        let mut output = app.service.run(caller, request, OutputSink::Keep).await?;
        let nothing = || (SessionOutputs::of_failed(&self.inputs), Ok(Vec::new()));
        let (mut collected, calls) = output.collected.take().unwrap_or_else(nothing);
        if !self.lists_inherited {
            collected.left.retain(|file| matches!(file, LeftFile::Kept(_)));
        }
        Ok((Answer::new(output, session, collected), calls))
    }
}

fn collect(
    outputs: SessionOutputs,
    inputs: SessionInputs,
    language: Option<ToolLanguage>,
) -> Collect<(Collected, Result<Vec<Call>, Forged>)> {
    Box::new(move |files, end| {
        let calls = language.map_or(Ok(Vec::new()), |language| calls::collect(files, language));
        // Code with open calls runs again, and its files are collected then.
        let is_done = end.is_success() && calls.as_ref().is_ok_and(Vec::is_empty);
        let collected = if is_done {
            outputs.collect(files, &inputs)
        } else {
            SessionOutputs::of_failed(&inputs)
        };
        Ok((collected, calls))
    })
}
