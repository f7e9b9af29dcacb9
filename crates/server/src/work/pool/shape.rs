//! The kind of box that a request can use: everything about a box that is decided before its
//! request is known.

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use tare_engine::spec::command::Variable;
use tare_engine::spec::{Isolation, Limits, Network, Privilege, Spec, Tenant, Terminal, Volume};
use tare_engine::{DetachOptions, Stdin};

use crate::config::pool::{PoolConfig, PoolStart, PoolsConfig};
use crate::config::{Config, Key};
use crate::work::request::languages::Code;
use crate::work::request::programs::PACKAGES;
use crate::work::request::run::{RunRequest, Warm, WarmWish};

/// A pool of the configuration.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PoolName {
    Box,
    Python,
    Node,
}

impl PoolName {
    pub const ALL: [Self; 3] = [Self::Box, Self::Python, Self::Node];

    pub fn as_str(self) -> &'static str {
        match self {
            Self::Box => "box",
            Self::Python => "python",
            Self::Node => "node",
        }
    }

    pub fn config(self, pools: &PoolsConfig) -> PoolConfig {
        match self {
            Self::Box => pools.boxes.clone(),
            Self::Python => pools.python.common(),
            Self::Node => pools.node.common(),
        }
    }

    /// What a request can get from this pool.
    pub fn gives(self) -> &'static [Warm] {
        match self {
            Self::Box => &[Warm::Box],
            Self::Python => &[Warm::Clone, Warm::Fresh],
            Self::Node => &[Warm::Fresh],
        }
    }

    /// Whether the first boxes are made before the server listens, and the server needs them.
    pub fn is_required(self, pools: &PoolsConfig) -> bool {
        match self {
            Self::Box => false,
            Self::Python => pools.python.start == PoolStart::AtStart,
            Self::Node => pools.node.start == PoolStart::AtStart,
        }
    }
}

/// What all boxes of one kind in a pool have in common.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Shape {
    pub pool: PoolName,
    /// The spec of the box, without the parts that only a request decides.
    pub spec: Spec,
    pub life: Life,
    pub interpreter: Option<Interpreter>,
}

/// How long a box lives after a request has claimed it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Life {
    /// As long as the request. Its own command has this input.
    Run(Stdin),
    /// It outlives the server.
    Detached,
}

/// An interpreter that waits in a box.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Interpreter {
    pub command: Vec<OsString>,
    /// The modules that it imports.
    pub preload: Vec<String>,
    pub env: Vec<Variable>,
    /// The command of the template that the interpreter is a copy of. `None` for one that is
    /// started in its box.
    pub template: Option<Vec<OsString>>,
}

/// The programs that interpreters run while they wait.
const PYTHON: &str = concat!(include_str!("python.py"), "\n\npreload()\nlaunch()\n");
const PYTHON_TEMPLATE: &str =
    concat!(include_str!("python.py"), "\n\n", include_str!("template.py"));
/// Variables that are 1 in a template. The first four keep libraries from starting threads when
/// they are imported: a process with threads cannot be copied. With the last one, the linker
/// resolves all functions at the start, so that clones need not.
const TEMPLATE_ENV: [&str; 5] = [
    "OPENBLAS_NUM_THREADS",
    "OMP_NUM_THREADS",
    "MKL_NUM_THREADS",
    "NUMEXPR_NUM_THREADS",
    "LD_BIND_NOW",
];
const NODE: &str = include_str!("node.js");
/// Node can load a file before the program, but not a text. The file empties itself. It is in a
/// directory in which programs do not expect files of their own.
const START_NODE: &str =
    "printf %s \"$1\" > /dev/shm/.tare.js && shift && exec \"$0\" -r /dev/shm/.tare.js \"$@\"";

impl Shape {
    /// Returns the box that a request can use. `None` if it needs one of its own.
    pub fn of<T>(request: &RunRequest<T>, config: &Config) -> Option<Self> {
        let pools = &config.pool;
        let is_off = PoolName::ALL.iter().all(|pool| pool.config(pools).warm == 0);
        let is_unwanted = request.wish == WarmWish::Off;
        if is_off || is_unwanted || !can_wait(&request.spec, config) {
            return None;
        }
        let spec = Spec {
            command: Vec::new(),
            tenant: Tenant::default(),
            labels: Default::default(),
            timeout: None,
            ..request.spec.clone()
        };
        let life = Life::Run(Stdin::Empty);
        if let Some(code) = &request.code
            && let Some((pool, interpreter)) = Interpreter::of(code, pools, how(request, config))
            && !code.own_env(&request.exec.env).any(|(key, _)| interpreter.has_read(key))
        {
            let interpreter = Some(interpreter);
            return Some(Self { pool, spec, life, interpreter });
        }
        let life = if request.is_box_command() { Life::Run(request.stdin()) } else { life };
        let is_wanted = pools.boxes.warm > 0 && request.wish == WarmWish::Any;
        is_wanted.then_some(Self { pool: PoolName::Box, spec, life, interpreter: None })
    }

    /// Returns the box that a request for a detached box can use.
    pub fn of_detached(spec: &Spec, options: &DetachOptions, config: &Config) -> Option<Self> {
        if config.pool.boxes.warm == 0 || !options.can_wait() || !can_wait(spec, config) {
            return None;
        }
        let spec = Spec {
            command: Vec::new(),
            tenant: Tenant::default(),
            name: None,
            labels: Default::default(),
            env: Vec::new(),
            workdir: None,
            timeout: None,
            ..spec.clone()
        };
        Some(Self { pool: PoolName::Box, spec, life: Life::Detached, interpreter: None })
    }

    /// Returns whether requests can want this box with these pools.
    pub fn is_of(&self, pools: &PoolsConfig) -> bool {
        let Some(Interpreter { preload, template, .. }) = &self.interpreter else { return true };
        match self.pool {
            PoolName::Box => true,
            PoolName::Python => {
                *preload == pools.python.preload && !(template.is_some() && pools.python.fresh)
            }
            PoolName::Node => *preload == pools.node.preload,
        }
    }

    /// The modules that its interpreter imports.
    pub fn preload(&self) -> &[String] {
        self.interpreter.as_ref().map_or(&[], |it| &it.preload)
    }

    /// Returns the box of the template that makes boxes of this shape. Boxes with other limits have
    /// the same template: it has the default limits, whatever a client asks for.
    pub fn of_template(&self) -> Self {
        let mut of_template = self.clone();
        of_template.spec.limits = Limits::default();
        of_template
    }
}

impl Interpreter {
    /// Returns the interpreter for code, and its pool, if there is one.
    fn of(code: &Code, pools: &PoolsConfig, how: How) -> Option<(PoolName, Self)> {
        let program = code.program.as_str();
        let path = code.arguments.first()?;
        let (pool, words, preload) = match code.language.as_str() {
            "python" => (PoolName::Python, vec![program, "-c", PYTHON], &pools.python.preload),
            "node" => {
                let words = vec!["/bin/sh", "-c", START_NODE, program, NODE, path];
                (PoolName::Node, words, &pools.node.preload)
            }
            _ => return None,
        };
        let with_modules = |words: Vec<&str>| -> Vec<OsString> {
            let words = words.into_iter().chain(preload.iter().map(String::as_str));
            words.map(OsString::from).collect()
        };
        let by_clone = how == How::Clone && pool == PoolName::Python && !pools.python.fresh;
        let template = by_clone.then(|| with_modules(vec![program, "-c", PYTHON_TEMPLATE]));
        let (command, env) = (with_modules(words), code.env.clone());
        let is_default = pool == PoolName::Python && !pools.python.is_asked;
        let is_wanted = pool.config(pools).warm > 0 && !(is_default && how == How::NotCloneable);
        let preload = preload.clone();
        is_wanted.then_some((pool, Self { command, preload, env, template }))
    }

    /// Returns whether the interpreter, its C library or a module that it has imported reads this
    /// variable only when it starts.
    fn has_read(&self, key: &OsStr) -> bool {
        decides_the_start(key) || !self.preload.is_empty() && decides_an_import(key)
    }

    pub fn template_env(&self) -> Vec<Variable> {
        let one = |name: &&str| (OsString::from(name), OsString::from("1"));
        self.env.iter().cloned().chain(TEMPLATE_ENV.iter().map(one)).collect()
    }
}

/// Returns whether a box of this spec can be made before its request.
fn can_wait(spec: &Spec, config: &Config) -> bool {
    // A waiting box would hold a directory that its key may lose. Every key has the packages.
    let packages = [config.boxes.programs(), config.librechat.boxes.programs()];
    let are_packages = |volume: &Volume| {
        let is_their_source = packages.iter().any(|it| it.packages == Some(&volume.host));
        is_their_source && volume.target == Path::new(PACKAGES)
    };
    // A machine is made for its request.
    spec.machine.is_none()
        && spec.terminal == Terminal::Pipes
        && spec.volumes.iter().all(are_packages)
}

/// The least `[limits] boxes` with which a server makes a template that the operator has not asked
/// for. A template counts as a box.
const BOXES_MIN: usize = 8;

/// Returns why a server has no room for a template that the operator has not asked for.
fn missing_room(config: &Config) -> Option<String> {
    let boxes = config.limits.boxes;
    let is_missing = !config.pool.python.is_asked && boxes < BOXES_MIN;
    is_missing.then(|| {
        format!("[limits] boxes is {boxes}: with less than {BOXES_MIN}, all are left to requests")
    })
}

/// Returns why a request for Python gets no interpreter that waits, if the reason is the room.
pub fn missing_room_for<T>(request: &RunRequest<T>, config: &Config) -> Option<String> {
    let is_python = request.code.as_ref().is_some_and(|code| code.language == "python");
    let is_clone_wanted = matches!(request.wish, WarmWish::Any | WarmWish::Clone);
    missing_room(config).filter(|_| is_python && is_clone_wanted)
}

/// How a request may get an interpreter that waits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum How {
    Clone,
    /// The request or its key asks for an interpreter that was started in its box.
    Fresh,
    /// No template can make its box.
    NotCloneable,
}

fn how<T>(request: &RunRequest<T>, config: &Config) -> How {
    let spec = &request.spec;
    let is_fresh = |key: &Key| key.warm.is_some() && Tenant::from(key.name.clone()) == spec.tenant;
    let can_be_cloned = spec.isolation == Isolation::Full
        && spec.network == Network::None
        && spec.privilege == Privilege::Unprivileged;
    let has_room = missing_room(config).is_none();
    match can_be_cloned {
        _ if request.wish == WarmWish::Fresh || config.keys.iter().any(is_fresh) => How::Fresh,
        true if has_room => How::Clone,
        true | false => How::NotCloneable,
    }
}

/// Returns whether an interpreter or its C library reads this variable only when it starts.
fn decides_the_start(key: &OsStr) -> bool {
    const BEGINNINGS: [&[u8]; 8] =
        [b"PYTHON", b"NODE_", b"UV_", b"LD_", b"LC_", b"MALLOC_", b"GLIBC_", b"OPENSSL_"];
    let key = key.as_bytes();
    matches!(key, b"LANG" | b"LANGUAGE" | b"TZ" | b"PATH")
        || BEGINNINGS.iter().any(|beginning| key.starts_with(beginning))
}

/// Returns whether libraries for linear algebra or Matplotlib read this variable only when they are
/// imported.
fn decides_an_import(key: &OsStr) -> bool {
    const BEGINNINGS: [&[u8]; 6] = [b"OMP_", b"OPENBLAS_", b"GOTO_", b"MKL_", b"NUMEXPR_", b"MPL"];
    BEGINNINGS.iter().any(|beginning| key.as_bytes().starts_with(beginning))
}

#[cfg(test)]
mod tests {
    use tare_engine::ExecSpec;
    use tare_engine::spec::{Name, Network, Root};

    use super::*;
    use crate::config::pool::PythonConfig;

    fn pools(boxes: usize, python: usize) -> Config {
        let pool = PoolsConfig {
            boxes: PoolConfig { warm: boxes, ..PoolConfig::default() },
            python: PythonConfig { warm: python, ..PythonConfig::default() },
            ..PoolsConfig::default()
        };
        Config { pool, ..Config::default() }
    }

    fn code(env: &[(&str, &str)]) -> RunRequest<()> {
        let env: Vec<Variable> =
            env.iter().map(|(key, value)| ((*key).into(), (*value).into())).collect();
        let code = Code {
            language: "python".into(),
            program: "python3".into(),
            arguments: vec!["/work/main.py".into()],
            env: Vec::new(),
        };
        let exec = ExecSpec { env, ..ExecSpec::of(["python3", "/work/main.py"]) };
        let mut request = RunRequest::new(Spec::of(Vec::new()), exec, 0);
        request.code = Some(code);
        request
    }

    #[test]
    fn requests_that_differ_only_in_what_a_go_decides_have_one_shape() {
        let mut other = code(&[("A", "1")]);
        other.spec.tenant = Name::parse("ci").expect("a name").into();
        other.spec.labels.insert("a".into(), "b".into());
        let pools = pools(1, 1);
        assert_eq!(Shape::of(&code(&[]), &pools), Shape::of(&other, &pools));
        other.spec.limits.nofile = 17;
        assert_ne!(Shape::of(&code(&[]), &pools), Shape::of(&other, &pools));
    }

    #[test]
    fn network_root_and_other_packages_need_a_box_of_their_own_kind() {
        let with = |packages: &str, change: fn(&mut Spec)| {
            let mut config = pools(1, 1);
            config.boxes.packages = Some(packages.into());
            let mut request = code(&[]);
            config.boxes.programs().add_to(&mut request.spec);
            change(&mut request.spec);
            Shape::of(&request, &config)
        };
        let usual = with("/srv/a", |_| {});
        assert!(usual.is_some());
        for other in [
            with("/srv/b", |_| {}),
            with("/srv/a", |spec| spec.network = Network::Host),
            with("/srv/a", |spec| spec.root = Root::Directory("/srv/root".into())),
        ] {
            assert!(other.is_some() && other != usual, "{other:?}");
        }
        // A directory of a client is no package, wherever the box sees it.
        assert_eq!(with("/srv/a", |spec| spec.volumes[0].host = "/srv/data".into()), None);
        assert_eq!(with("/srv/a", |spec| spec.volumes[0].target = "/data".into()), None);
    }

    #[test]
    fn a_variable_that_python_reads_at_its_start_needs_a_python_of_its_own() {
        let pool = |env: &[(&str, &str)], pools: &Config| {
            Shape::of(&code(env), pools).map(|shape| shape.pool)
        };
        assert_eq!(pool(&[("A", "1")], &pools(1, 1)), Some(PoolName::Python));
        for key in ["PYTHONHASHSEED", "LD_PRELOAD", "TZ", "LANG", "LC_ALL"] {
            assert_eq!(pool(&[(key, "1")], &pools(1, 1)), Some(PoolName::Box), "{key}");
            assert_eq!(pool(&[(key, "1")], &pools(0, 1)), None, "{key}");
        }
        assert_eq!(pool(&[], &pools(0, 0)), None);
        let off = RunRequest { wish: WarmWish::Off, ..code(&[]) };
        assert_eq!(Shape::of(&off, &pools(1, 1)), None);
    }

    #[test]
    fn a_variable_that_a_module_reads_at_its_import_needs_an_interpreter_that_has_not_imported_it()
    {
        let mut pools = pools(1, 1);
        let pool = |key: &str, pools: &Config| {
            Shape::of(&code(&[(key, "2")]), pools).map(|shape| shape.pool)
        };
        let keys = [
            "OMP_NUM_THREADS",
            "OPENBLAS_CORETYPE",
            "MKL_NUM_THREADS",
            "NUMEXPR_MAX_THREADS",
            "MPLBACKEND",
        ];
        for key in keys {
            assert_eq!(pool(key, &pools), Some(PoolName::Python), "{key}");
        }
        pools.pool.python.preload = vec!["numpy".into()];
        for key in keys {
            assert_eq!(pool(key, &pools), Some(PoolName::Box), "{key}");
        }
        assert_eq!(pool("A", &pools), Some(PoolName::Python));
    }
}
