//! The box of an execution: its limits, environment and packages, and the command that runs in it.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::time::Duration;

use tare_engine::ExecSpec;
use tare_engine::spec::defaults::PATH;
use tare_engine::spec::{Access, Limit, Network, Root, Spec, Volume, command};

use crate::config::librechat::BoxesConfig;
use crate::config::{self, Config};
use crate::error::ServiceError;
use crate::work::files::{self, Content, InputFile};
use crate::work::languages::{Host, PACKAGE_PROGRAMS, PACKAGES};
use crate::work::spec;

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
        let host = Host {
            root: boxes.rootfs.as_deref().unwrap_or(Path::new("/")),
            packages: boxes.packages.as_deref(),
        };
        let language = config.languages.find(language, host)?;
        let exec = ExecSpec {
            env: spec::pairs(&language.env)?,
            timeout: Some(timeout(timeout_ms, &config.limits)),
            ..ExecSpec::of(language.command(CODE, arguments))
        };
        command::check(&exec.command, &exec.env)?;
        Ok(Self {
            spec: box_of(boxes),
            exec,
            code: vec![
                code_file(&language.file, code.into_bytes()),
                code_file(FIGURES.0, FIGURES.1.as_bytes().to_vec()),
            ],
        })
    }
}

/// A file in the directory of the code.
pub fn code_file(name: &str, content: Vec<u8>) -> InputFile {
    InputFile {
        path: format!("{}/{name}", CODE.trim_start_matches('/')),
        mtime: files::now(),
        content: Content::Bytes(content),
    }
}

/// Returns the requested timeout, lowered to the operator's limit.
fn timeout(asked_ms: Option<f64>, limits: &config::Limits) -> Duration {
    // The conversion saturates.
    let asked = asked_ms.map(|asked| asked as u64).filter(|asked| *asked > 0);
    let asked = asked.map(Duration::from_millis);
    asked.unwrap_or(limits.timeout.0).min(limits.timeout_max.0)
}

fn box_of(boxes: &BoxesConfig) -> Spec {
    let mut spec = Spec::of(Vec::new());
    spec.workspace = Some(PathBuf::from(DATA));
    let usual = BoxesConfig::default();
    spec.limits.memory_bytes = limit(boxes.memory.0, usual.memory.0);
    spec.limits.scratch_bytes = limit(boxes.scratch.min(boxes.memory).0, usual.scratch.0);
    spec.limits.pids = limit(boxes.pids, usual.pids);
    spec.network = if boxes.host_network { Network::Host } else { Network::None };
    if let Some(rootfs) = &boxes.rootfs {
        spec.root = Root::Directory(rootfs.clone());
    }
    if let Some(packages) = &boxes.packages {
        spec.volumes.push(Volume {
            host: packages.clone(),
            target: PathBuf::from(PACKAGES),
            access: Access::ReadOnly,
        });
    }
    let own = environment(boxes.packages.is_some());
    let own = own.into_iter().map(|(key, value)| (key.into(), value));
    spec.env = command::later_wins(spec.env.into_iter().chain(own));
    spec
}

/// A limit that the operator set must be enforced. A default holds as far as the host can
/// enforce it, and the log has a note where it cannot.
fn limit<T: PartialEq>(configured: T, usual: T) -> Limit<T> {
    if configured == usual { Limit::Default(configured) } else { Limit::Asked(configured) }
}

/// The home directory is not the data directory, so that programs leave no files of their own among
/// the user's. Python and Node find modules in the data directory.
fn environment(has_packages: bool) -> BTreeMap<&'static str, OsString> {
    let beside = |own: &[&str], name: &str| {
        let shared = has_packages.then(|| format!("{PACKAGES}/{name}"));
        let own = own.iter().map(ToString::to_string);
        OsString::from(own.chain(shared).collect::<Vec<_>>().join(":"))
    };
    let mut environment = BTreeMap::from([
        ("HOME", "/tmp".into()),
        ("PYTHONPATH", beside(&[DATA, MODULES], "python")),
        ("PYTHONDONTWRITEBYTECODE", "1".into()),
        ("NODE_PATH", beside(&["/mnt/data/node_modules", DATA], "node_modules")),
        ("MPLBACKEND", "module://tare_figures".into()),
        // Debian's pip otherwise refuses to install packages.
        ("PIP_BREAK_SYSTEM_PACKAGES", "1".into()),
        ("PIP_NO_CACHE_DIR", "1".into()),
    ]);
    if has_packages {
        let programs = [&[PATH, "/tmp/.local/bin"][..], &PACKAGE_PROGRAMS].concat();
        environment.insert("PATH", programs.join(":").into());
    }
    environment
}

#[cfg(test)]
mod tests {
    use super::*;

    fn work(config: &Config, timeout_ms: Option<f64>) -> CodeRun {
        let work = CodeRun::of(config, "bash", "true".to_owned(), &["a".to_owned()], timeout_ms);
        work.expect("there is a bash")
    }

    #[test]
    fn the_code_is_beside_the_files_and_its_arguments_are_its_own() {
        let config = Config::default();
        let CodeRun { spec, exec, code } = work(&config, None);
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

    #[test]
    fn packages_are_seen_in_one_place_and_searched_last() {
        let mut config = Config::default();
        config.librechat.boxes.packages = Some(PathBuf::from("/srv/shared"));
        let spec = work(&config, None).spec;
        assert_eq!(spec.volumes[0].access, Access::ReadOnly);
        assert_eq!(spec.volumes[0].target, Path::new("/opt/packages"));
        let value =
            |key: &str| spec.env.iter().find(|(name, _)| name == key).map(|(_, value)| value);
        assert_eq!(
            value("PYTHONPATH").expect("set"),
            "/mnt/data:/tmp/code/modules:/opt/packages/python"
        );
    }
}
