//! The box of an execution: its limits, environment and packages, and the command that runs in it.

use std::path::PathBuf;
use std::time::Duration;

use tare_engine::ExecSpec;
use tare_engine::spec::command::{self, Variable};
use tare_engine::spec::{Driver, Isolation, Limit, Network, Spec, defaults};

use crate::config::librechat::BoxesConfig;
use crate::config::{self, Config};
use crate::error::ServiceError;
use crate::work::files::InputFile;
use crate::work::request::languages::Code;
use crate::work::request::spec;

/// The directory of the programs' input and output files.
pub const DATA: &str = "/mnt/data";
/// The directory of the code. It contains no files of users.
pub const CODE: &str = "/tmp/code";
/// The directory of modules for the code.
const MODULES: &str = "/tmp/code/modules";
/// The backend of matplotlib that saves figures as files, because a box has no screen. Python
/// imports it when the code uses matplotlib, so other code does not pay for it.
const FIGURES: (&str, &str) = ("modules/tare_figures.py", include_str!("tare_figures.py"));

/// A command, the box that it runs in, and the code.
pub struct CodeRun {
    /// The box. It has no command of its own.
    pub spec: Spec,
    pub exec: ExecSpec,
    /// What an interpreter that was started ahead runs instead of the command.
    pub interpreted: Option<Code>,
    /// The file with the code, and other files in its directory.
    pub code: Vec<InputFile>,
}

impl CodeRun {
    pub fn of(
        config: &Config,
        language: &str,
        code: String,
        arguments: &[String],
        timeout_ms: Option<f64>,
    ) -> Result<Self, ServiceError> {
        let boxes = &config.librechat.boxes;
        let language = config.languages.find(language, boxes.programs())?;
        let exec = ExecSpec {
            env: spec::pairs(&language.env)?,
            timeout: Some(timeout(timeout_ms, &config.limits)),
            ..ExecSpec::of(language.command(CODE, arguments))
        };
        command::check(&exec.command, &exec.env)?;
        Ok(Self {
            spec: box_of(config),
            exec,
            interpreted: language.code(&config.languages, CODE, arguments)?,
            code: vec![
                code_file(&language.file, code.into_bytes()),
                code_file(FIGURES.0, FIGURES.1.as_bytes().to_vec()),
            ],
        })
    }
}

/// A file in the directory of the code.
pub fn code_file(name: &str, content: Vec<u8>) -> InputFile {
    InputFile::at(CODE, name, content)
}

/// Returns the requested timeout, lowered to the operator's limit.
fn timeout(asked_ms: Option<f64>, limits: &config::Limits) -> Duration {
    // The conversion saturates.
    let asked = asked_ms.map(|asked| asked as u64).filter(|asked| *asked > 0);
    let asked = asked.map(Duration::from_millis);
    asked.unwrap_or(limits.timeout.0).min(limits.timeout_max.0)
}

fn box_of(config: &Config) -> Spec {
    let boxes = &config.librechat.boxes;
    let mut spec = Spec::of(Vec::new());
    spec.workspace = Some(PathBuf::from(DATA));
    let usual = BoxesConfig::default();
    spec.limits.memory_bytes = limit(boxes.memory.0, usual.memory.0);
    spec.limits.scratch_bytes = limit(boxes.scratch.min(boxes.memory).0, usual.scratch.0);
    spec.limits.pids = limit(boxes.pids, usual.pids);
    spec.network = if boxes.host_network { Network::Host } else { Network::None };
    if config.librechat_driver() == Driver::Vm {
        spec.machine = Some(config.vm.machine(None));
    }
    spec.env = environment();
    boxes.programs().add_to(&mut spec);
    spec
}

/// A limit that the operator set must be enforced. A default holds as far as the host can
/// enforce it, and the log has a note where it cannot.
fn limit<T: PartialEq>(configured: T, usual: T) -> Limit<T> {
    if configured == usual { Limit::Default(configured) } else { Limit::Asked(configured) }
}

/// The home directory is not the data directory, so that programs leave no files of their own among
/// the user's. Python and Node find modules in the data directory.
fn environment() -> Vec<Variable> {
    let mut environment = defaults::env("/tmp", Isolation::Full);
    let modules = [DATA, MODULES].join(":");
    let own = [
        ("PYTHONPATH", modules.as_str()),
        ("PYTHONDONTWRITEBYTECODE", "1"),
        ("NODE_PATH", "/mnt/data/node_modules:/mnt/data"),
        ("MPLBACKEND", "module://tare_figures"),
        ("PIP_NO_CACHE_DIR", "1"),
    ];
    environment.extend(own.map(|(key, value)| (key.into(), value.into())));
    environment
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;

    fn work(config: &Config, timeout_ms: Option<f64>) -> CodeRun {
        let work = CodeRun::of(config, "bash", "true".to_owned(), &["a".to_owned()], timeout_ms);
        work.expect("there is a bash")
    }

    #[test]
    fn the_code_is_beside_the_files_and_its_arguments_are_its_own() {
        let config = Config::default();
        let CodeRun { spec, exec, code, .. } = work(&config, None);
        assert_eq!(exec.command, ["bash", "/tmp/code/main.sh", "a"]);
        assert_eq!(code[0].path, "tmp/code/main.sh");
        assert_eq!(spec.workspace.as_deref(), Some(Path::new(DATA)));
        assert_eq!(exec.timeout, Some(config.limits.timeout.0));
    }

    #[test]
    fn a_requested_timeout_is_limited_to_timeout_max() {
        let config = Config::default();
        let asked = |ms| work(&config, Some(ms)).exec.timeout;
        assert_eq!(asked(5.0), Some(Duration::from_millis(5)));
        assert_eq!(asked(1e300), Some(config.limits.timeout_max.0));
        assert_eq!(asked(0.0), Some(config.limits.timeout.0));
        assert_eq!(asked(-1.0), Some(config.limits.timeout.0));
    }

    #[test]
    fn only_limits_that_the_operator_changed_must_be_enforced() {
        let mut config = Config::default();
        config.librechat.boxes.pids = 100;
        let limits = work(&config, None).spec.limits;
        assert_eq!(limits.memory_bytes, Limit::Default(1 << 30));
        assert_eq!(limits.pids, Limit::Asked(100));
    }
}
