//! The runs for which a server has boxes ready at its start.

use tare_engine::ExecSpec;
use tare_engine::spec::Tenant;
use tare_engine::spec::defaults::HOME;

use crate::config::Config;
use crate::error::ServiceError;
use crate::work::request::languages::Program;
use crate::work::request::run::RunRequest;
use crate::work::request::spec::{BoxFields, pairs, timeout, words};

/// Returns a run of a command and one of each language with a pool, without those that the
/// configuration does not allow.
pub fn usual_runs(config: &Config) -> Vec<RunRequest<()>> {
    let languages = [None, Some("python"), Some("node")];
    languages.into_iter().filter_map(|it| usual_run(config, it).ok()).collect()
}

/// Returns a run that gives nothing but code of this language, or a command if it is `None`.
fn usual_run(config: &Config, language: Option<&str>) -> Result<RunRequest<()>, ServiceError> {
    let command = language.is_none().then(|| vec!["true".to_owned()]);
    let program = Program::of(config, HOME, command, language, language.map(|_| String::new()))?;
    let exec = ExecSpec {
        env: pairs(&program.env)?,
        timeout: Some(timeout(None, &config.limits)?),
        ..ExecSpec::of(words(program.command))
    };
    let spec = BoxFields::default().into_spec(config, &Tenant::default())?;
    Ok(RunRequest {
        code: program.interpreted,
        files: program.code.into_iter().collect(),
        ..RunRequest::new(spec, exec, config.limits.output_bytes.0)
    })
}
