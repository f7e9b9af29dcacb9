//! What a run is asked to do, and how far it has come.

use std::borrow::Cow;
use std::path::Path;
use std::sync::{Arc, Mutex};

use serde::{Deserialize, Serialize};
use tare_engine::spec::{Spec, command, name};
use tare_engine::{End, Error, ExecSpec, RUN_LABEL, Stdin};
use utoipa::ToSchema;

use crate::work::files::{BoxFiles, InputFile};
use crate::work::request::languages::Code;
use crate::work::streams::output::PastLimit;
use crate::workers::locked;

/// One command, the box it needs, and the files that go with it.
pub struct RunRequest<T> {
    /// The box, without a command.
    pub spec: Spec,
    pub exec: ExecSpec,
    /// What the command runs, if an interpreter that was started ahead can run it too.
    pub code: Option<Code>,
    pub wish: WarmWish,
    pub stdin: Option<Vec<u8>>,
    pub files: Vec<InputFile>,
    pub collect: Option<Collect<T>>,
    /// The limit for each of stdout and stderr.
    pub output_bytes_max: u64,
    pub past_limit: PastLimit,
    /// Whether the result has a receipt of the box.
    pub receipt: bool,
    pub progress: Progress,
}

/// Which pools a run may use. If no suitable box waits, the run gets a new box.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Deserialize, ToSchema)]
#[serde(rename_all = "lowercase")]
pub enum WarmWish {
    /// Whatever waits.
    #[default]
    Any,
    /// A copy of an interpreter that has started. If the server makes no copies, as `fresh`.
    Clone,
    /// An interpreter that was started in its box, and of which there is no copy.
    Fresh,
    /// Nothing that was made before the request.
    Off,
}

/// What was made before the request.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, ToSchema)]
#[serde(rename_all = "lowercase")]
pub enum Warm {
    /// The box, with a copy of an interpreter that had started.
    Clone,
    /// The box and its interpreter.
    Fresh,
    /// The box.
    Box,
    /// Nothing.
    #[default]
    Off,
}

impl Warm {
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Clone => "clone",
            Self::Fresh => "fresh",
            Self::Box => "box",
            Self::Off => "off",
        }
    }
}

/// Reads results out of the box after its command has finished. Blocks its thread.
pub type Collect<T> = Box<dyn FnOnce(BoxFiles<'_>, End) -> Result<T, Error> + Send>;

impl<T> RunRequest<T> {
    /// A request without input, files and results.
    pub fn new(spec: Spec, exec: ExecSpec, output_bytes_max: u64) -> Self {
        Self {
            spec,
            exec,
            code: None,
            wish: WarmWish::default(),
            stdin: None,
            files: Vec::new(),
            collect: None,
            output_bytes_max,
            past_limit: PastLimit::Truncate,
            receipt: false,
            progress: Progress::default(),
        }
    }

    /// Returns whether the command can be the box's own: it needs no copy in or out.
    pub fn is_box_command(&self) -> bool {
        self.files.is_empty() && self.collect.is_none()
    }

    pub fn stdin(&self) -> Stdin {
        self.stdin.as_ref().map_or(Stdin::Empty, |_| Stdin::Pipe)
    }

    /// Returns the box to make, and the stdin of its own command.
    pub fn box_spec(&self) -> (Spec, Stdin) {
        let mut spec = self.spec.clone();
        if !self.is_box_command() {
            spec.labels.extend(self.label());
            return (spec, Stdin::Empty);
        }
        spec.command.clone_from(&self.exec.command);
        spec.env = command::later_wins(spec.env.into_iter().chain(self.exec.env.clone()));
        spec.timeout = self.exec.timeout;
        (spec, self.stdin())
    }

    /// The label by which lists show the program of a run whose box has no command of its own.
    fn label(&self) -> Option<(String, String)> {
        let program = Path::new(self.exec.command.first()?).file_name()?.to_str()?;
        name::label(&format!("{RUN_LABEL}={program}")).ok()
    }
}

/// What a run is doing now, in words.
#[derive(Debug, Clone)]
pub struct Progress(Arc<Mutex<Cow<'static, str>>>);

impl Default for Progress {
    fn default() -> Self {
        Self(Arc::new(Mutex::new("waiting for its turn".into())))
    }
}

impl Progress {
    pub fn set(&self, step: impl Into<Cow<'static, str>>) {
        *locked(&self.0) = step.into();
    }

    pub fn text(&self) -> String {
        locked(&self.0).clone().into_owned()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_run_with_files_makes_a_box_without_a_command() {
        let exec = ExecSpec::of(["/bin/cat", "a.txt"]);
        let mut request = RunRequest::<()>::new(Spec::of(Vec::new()), exec, 0);
        assert_eq!(request.box_spec().0.command, ["/bin/cat", "a.txt"]);
        request.files.push(InputFile::new("a.txt", b"hello".to_vec()).expect("a path"));
        let spec = request.box_spec().0;
        assert!(spec.command.is_empty());
        assert_eq!(spec.labels[RUN_LABEL], "cat");
    }
}
