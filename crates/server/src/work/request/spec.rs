//! Turns the fields of a request into a spec, within the operator's maxima.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::path::PathBuf;
use std::time::Duration;

use serde::Deserialize;
use tare_engine::Changes;
use tare_engine::spec::{
    Accel, Access, Cpus, Driver, Limit, MachineSpec, Name, Network, Spec, Tenant, Terminal, Volume,
    command, name, quantity, volume,
};
use utoipa::ToSchema;

use crate::config::{self, Config};
use crate::error::ServiceError;

/// The limits of a box. Each field has a default.
#[derive(Debug, Clone, Default, Deserialize, ToSchema)]
#[serde(deny_unknown_fields, default)]
pub struct LimitsRequest {
    /// Memory of the whole box, in bytes.
    #[schema(minimum = 6291456, example = 536870912)]
    pub memory_bytes: Option<u64>,
    /// Processor time, in processors, such as 0.5.
    #[schema(example = 1.0)]
    pub cpus: Option<f64>,
    /// Processes and threads.
    #[schema(minimum = 1, example = 256)]
    pub pids: Option<u32>,
    /// Open files of each process.
    #[schema(minimum = 16, example = 1024)]
    pub nofile: Option<u32>,
    /// Writable space, in bytes.
    #[schema(minimum = 65536, example = 268435456)]
    pub scratch_bytes: Option<u64>,
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize, ToSchema)]
#[serde(rename_all = "lowercase")]
pub enum NetworkRequest {
    /// Only a loopback of its own.
    #[default]
    None,
    /// The network of the host.
    Host,
}

#[derive(Debug, Clone, Copy, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct TerminalSize {
    #[schema(minimum = 1, maximum = 65535)]
    pub rows: u16,
    #[schema(minimum = 1, maximum = 65535)]
    pub columns: u16,
}

impl TerminalSize {
    pub fn into_terminal(self) -> Result<Terminal, ServiceError> {
        let Self { rows, columns } = self;
        if rows == 0 || columns == 0 {
            Err(ServiceError::invalid("invalid", "a terminal has at least one row and one column"))
        } else {
            Ok(Terminal::Pty { rows, columns })
        }
    }
}

/// A directory of the host that the operator allows, by its name.
#[derive(Debug, Clone, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct VolumeRequest {
    /// The name that the operator gave to the directory.
    #[schema(example = "datasets")]
    pub name: String,
    /// The directory of the box that shows it, an absolute path.
    #[schema(example = "/data")]
    pub target: String,
}

/// The fields that every request for a box has.
#[derive(Debug, Default)]
pub struct BoxFields {
    pub command: Vec<String>,
    pub env: BTreeMap<String, String>,
    pub workdir: Option<String>,
    pub limits: LimitsRequest,
    pub network: NetworkRequest,
    pub volumes: Vec<VolumeRequest>,
    pub driver: Option<Driver>,
    pub accel: Option<Accel>,
}

impl BoxFields {
    pub fn into_spec(self, config: &Config, tenant: &Tenant) -> Result<Spec, ServiceError> {
        let most = &config.limits;
        let machine = machine(self.driver, self.accel, config, tenant)?;
        let mut spec = Spec { machine, ..Spec::of(words(self.command)) };
        config.boxes.programs().add_to(&mut spec);
        spec.env = command::later_wins(spec.env.into_iter().chain(pairs(&self.env)?));
        command::check(&spec.command, &spec.env)?;
        spec.workdir = self.workdir.map(workdir).transpose()?;
        self.limits.apply(&mut spec, most)?;
        for asked in self.volumes {
            spec.volumes.push(asked.find(config, tenant)?);
        }
        volume::check(&spec.volumes).map_err(|error| of_field("volumes", error))?;
        spec.network = match self.network {
            NetworkRequest::None => Network::None,
            NetworkRequest::Host if most.host_network => Network::Host,
            NetworkRequest::Host => {
                return Err(ServiceError::forbidden(
                    "network_forbidden",
                    "this server does not let boxes use the host's network",
                )
                .with_hint("the operator allows it with [limits] host_network"));
            }
        };
        Ok(spec)
    }
}

/// Returns the machine of a box, if the request or the configuration asks for one, and the caller
/// may have it.
fn machine(
    driver: Option<Driver>,
    accel: Option<Accel>,
    config: &Config,
    tenant: &Tenant,
) -> Result<Option<MachineSpec>, ServiceError> {
    let forbidden = |message, hint| {
        let error: ServiceError = ServiceError::forbidden("driver_forbidden", message);
        Err(error.with_hint(hint))
    };
    let of_server = config.boxes.driver;
    if driver.unwrap_or(of_server) == Driver::Native {
        return match accel {
            _ if of_server == Driver::Vm => {
                forbidden("every box of this server is a machine", "leave 'driver' out")
            }
            Some(_) => {
                let message = "accel: it is only for boxes in machines";
                Err(ServiceError::invalid("invalid", message).with_hint("add \"driver\": \"vm\""))
            }
            None => Ok(None),
        };
    }
    let key = config.keys.iter().find(|key| Some(key.name.as_str()) == tenant.key());
    if of_server == Driver::Native && key.is_some_and(|key| !key.vm) {
        let hint = "leave 'driver' out, or ask the operator for vm = true in [[keys]]";
        return forbidden("this key may not ask for machines", hint);
    }
    // The operator chose hardware against clients that attack the host. None may choose less.
    let is_less = accel.is_some_and(|accel| accel != Accel::Kvm);
    if of_server == Driver::Vm && config.vm.accel == Accel::Kvm && is_less {
        return forbidden("this server emulates no machines", "leave 'accel' out");
    }
    Ok(Some(config.vm.machine(accel)))
}

impl VolumeRequest {
    fn find(self, config: &Config, tenant: &Tenant) -> Result<Volume, ServiceError> {
        let mut allowed = config.volumes.iter().filter(|volume| volume.allows(tenant.key()));
        let found = allowed.clone().find(|volume| volume.name.as_str() == self.name);
        let Some(found) = found else {
            let names: Vec<&str> = allowed.by_ref().map(|volume| volume.name.as_str()).collect();
            let hint = match names.as_slice() {
                [] => "the operator allows directories with [[volumes]]".to_owned(),
                names => format!("there are {}", names.join(", ")),
            };
            let message = format!("volumes: there is no volume {:?}", self.name);
            return Err(ServiceError::invalid("no_such_volume", message).with_hint(hint));
        };
        let target = volume::place(PathBuf::from(self.target));
        Ok(Volume {
            host: found.path.clone(),
            target: target.map_err(|error| of_field("volumes", error))?,
            access: if found.writable { Access::ReadWrite } else { Access::ReadOnly },
        })
    }
}

impl LimitsRequest {
    /// Uses the parsers of the command line, so that bounds and messages are the same.
    fn apply(&self, spec: &mut Spec, most: &config::Limits) -> Result<(), ServiceError> {
        let limits = &mut spec.limits;
        let at = |field: &'static str| move |error| of_field(field, error);
        if let Some(asked) = self.memory_bytes {
            let asked =
                quantity::memory_bytes(&asked.to_string()).map_err(at("limits.memory_bytes"))?;
            if asked > most.memory_max.0 {
                let message = format!(
                    "limits.memory_bytes: this server allows at most {}",
                    quantity::show_bytes(most.memory_max.0)
                );
                return Err(ServiceError::invalid("invalid", message));
            }
            limits.memory_bytes = Limit::Asked(asked);
        } else {
            let usual = limits.memory_bytes.value();
            limits.memory_bytes = Limit::Default(usual.min(most.memory_max.0));
        }
        if let Some(asked) = self.cpus {
            limits.cpus = Some(processors(asked).map_err(at("limits.cpus"))?);
        }
        if let Some(asked) = self.pids {
            let asked = quantity::pids(&asked.to_string()).map_err(at("limits.pids"))?;
            limits.pids = Limit::Asked(asked);
        }
        if let Some(asked) = self.nofile {
            limits.nofile = quantity::nofile(&asked.to_string()).map_err(at("limits.nofile"))?;
        }
        if let Some(asked) = self.scratch_bytes {
            let asked =
                quantity::scratch_bytes(&asked.to_string()).map_err(at("limits.scratch_bytes"))?;
            limits.scratch_bytes = Limit::Asked(asked);
        }
        Ok(())
    }
}

impl LimitsRequest {
    /// The changes of a box that exists. The kernel sets some limits only once, when a process starts.
    pub fn into_changes(self, most: &config::Limits) -> Result<Changes, ServiceError> {
        let fixed = [
            ("limits.nofile", self.nofile.is_some()),
            ("limits.scratch_bytes", self.scratch_bytes.is_some()),
        ];
        if let Some((field, _)) = fixed.into_iter().find(|(_, is_given)| *is_given) {
            let message = format!("{field}: this limit of a box cannot be changed");
            return Err(ServiceError::invalid("invalid", message)
                .with_hint("memory_bytes, cpus and pids can; or create another box"));
        }
        let mut spec = Spec::of(Vec::new());
        self.apply(&mut spec, most)?;
        Ok(Changes {
            memory_bytes: self.memory_bytes.map(|_| spec.limits.memory_bytes.value()),
            pids: self.pids.map(|_| spec.limits.pids.value()),
            cpus: spec.limits.cpus,
            lease: None,
        })
    }
}

fn processors(asked: f64) -> Result<Cpus, tare_engine::Error> {
    quantity::cpus(&format!("{asked:.3}"))
}

pub fn words(words: Vec<String>) -> Vec<OsString> {
    words.into_iter().map(OsString::from).collect()
}

pub fn pairs(variables: &BTreeMap<String, String>) -> Result<Vec<command::Variable>, ServiceError> {
    let parse = |(key, value): (&String, &String)| {
        let text = OsString::from(format!("{key}={value}"));
        if key.contains('=') {
            Err(ServiceError::invalid("invalid", format!("env: the name {key:?} has a '=' in it")))
        } else {
            command::variable(&text).map_err(|error| of_field("env", error))
        }
    };
    variables.iter().map(parse).collect()
}

pub fn workdir(path: String) -> Result<PathBuf, ServiceError> {
    if path.starts_with('/') && !path.contains('\0') {
        Ok(PathBuf::from(path))
    } else {
        Err(ServiceError::invalid("invalid", format!("workdir: {path:?} is not an absolute path"))
            .with_hint("name a directory of the box, such as /work"))
    }
}

pub fn box_name(text: &str) -> Result<Name, ServiceError> {
    Name::parse(text).map_err(|error| {
        let mut error = of_field("name", error);
        error.code = "invalid_name";
        error
    })
}

/// The beginning of labels that only tare sets.
const RESERVED_LABELS: &str = "tare.";

pub fn labels(asked: &BTreeMap<String, String>) -> Result<BTreeMap<String, String>, ServiceError> {
    if let Some(key) = asked.keys().find(|key| key.starts_with(RESERVED_LABELS)) {
        let message = format!("labels: {key:?} is reserved for tare");
        return Err(ServiceError::invalid("invalid", message)
            .with_hint("choose a label that does not begin with 'tare.'"));
    }
    let texts: Vec<String> = asked.iter().map(|(key, value)| format!("{key}={value}")).collect();
    let labels = name::labels(texts.iter().map(String::as_str));
    labels.map_err(|error| of_field("labels", error))
}

/// A hundred years. More is a mistake.
const MILLISECONDS_MAX: u64 = 3_155_760_000_000;

/// Checks a duration. 0 is refused: a client gets the default by leaving the field out.
pub fn milliseconds(field: &'static str, asked: u64) -> Result<Duration, ServiceError> {
    match asked {
        0 => Err(ServiceError::invalid("invalid", format!("{field}: it has to be 1 or more"))),
        MILLISECONDS_MAX.. => Err(ServiceError::invalid(
            "invalid",
            format!("{field}: it has to be less than {MILLISECONDS_MAX}"),
        )),
        asked => Ok(Duration::from_millis(asked)),
    }
}

pub fn timeout(asked: Option<u64>, limits: &config::Limits) -> Result<Duration, ServiceError> {
    match asked {
        Some(asked) => {
            at_most("timeout_ms", milliseconds("timeout_ms", asked)?, limits.timeout_max.0)
        }
        None => Ok(limits.timeout.0),
    }
}

pub fn lease(asked: Option<u64>, limits: &config::Limits) -> Result<Duration, ServiceError> {
    match asked {
        Some(asked) => at_most("lease_ms", milliseconds("lease_ms", asked)?, limits.lease_max.0),
        None => Ok(limits.lease.0),
    }
}

pub fn at_most(field: &str, asked: Duration, most: Duration) -> Result<Duration, ServiceError> {
    if asked <= most {
        return Ok(asked);
    }
    let message = format!("{field}: this server allows at most {}", most.as_millis());
    Err(ServiceError::invalid("invalid", message))
}

pub fn of_field(field: &str, error: tare_engine::Error) -> ServiceError {
    let mut error = ServiceError::from(error);
    error.message = format!("{field}: {}", error.message);
    error
}

#[cfg(test)]
mod tests {
    use utoipa::PartialSchema;

    use super::*;
    use crate::config::ByteSize;

    #[test]
    fn the_least_that_is_described_is_the_least_that_is_taken() {
        let described = serde_json::to_value(LimitsRequest::schema()).expect("JSON");
        for (field, least) in [
            ("memory_bytes", quantity::MEMORY_BYTES_MIN),
            ("nofile", quantity::NOFILE_MIN.into()),
            ("scratch_bytes", quantity::SCRATCH_BYTES_MIN),
        ] {
            let minimum = &described["properties"][field]["minimum"];
            assert_eq!(minimum.as_f64(), Some(least as f64), "{field}");
        }
    }

    fn spec(limits: LimitsRequest) -> Result<Spec, ServiceError> {
        let asked = BoxFields { command: vec!["true".into()], limits, ..BoxFields::default() };
        asked.into_spec(&Config::default(), &Tenant::default())
    }

    #[test]
    fn omitted_fields_have_the_defaults_of_the_command_line() {
        let spec = spec(LimitsRequest::default()).expect("nothing is asked for");
        assert_eq!(spec, Spec::of(vec!["true".into()]));
    }

    #[test]
    fn a_limit_out_of_range_is_refused_by_name() {
        let refusal = |limits| spec(limits).expect_err("it is out of range").message;
        let memory =
            |bytes| LimitsRequest { memory_bytes: Some(bytes), ..LimitsRequest::default() };
        for bytes in [0, 1, 4096, 1 << 40, u64::MAX] {
            assert!(refusal(memory(bytes)).starts_with("limits.memory_bytes: "), "{bytes}");
        }
        for value in [0.0, -1.0, f64::NAN, f64::INFINITY, 1e9] {
            let cpus = LimitsRequest { cpus: Some(value), ..LimitsRequest::default() };
            assert!(refusal(cpus).starts_with("limits.cpus: "), "{value}");
        }
    }

    #[test]
    fn the_default_memory_limit_does_not_exceed_the_operators_maximum() {
        let little = 64 << 20;
        let mut config = Config::default();
        config.limits.memory_max = ByteSize(little);
        let spec = BoxFields::default().into_spec(&config, &Tenant::default()).expect("a box");
        assert_eq!(spec.limits.memory_bytes, Limit::Default(little));
    }

    #[test]
    fn the_hosts_network_is_the_operators_to_give() {
        let asked = || BoxFields { network: NetworkRequest::Host, ..BoxFields::default() };
        let (mut config, tenant) = (Config::default(), Tenant::default());
        let refused = asked().into_spec(&config, &tenant).expect_err("it is not allowed");
        assert_eq!(refused.code, "network_forbidden");
        config.limits.host_network = true;
        assert!(asked().into_spec(&config, &tenant).is_ok());
    }

    #[test]
    fn no_client_gets_a_weaker_box_than_the_operator_chose() {
        let machine = |config: &Config, key: &str, driver, accel| {
            let fields = BoxFields { driver, accel, ..BoxFields::default() };
            let spec = fields.into_spec(config, &Tenant::parse(key).expect("a key"));
            spec.map(|spec| spec.machine.map(|it| it.accel)).map_err(|error| error.code)
        };
        let (native, vm) = (Some(Driver::Native), Some(Driver::Vm));
        let (kvm, tcg) = (Some(Accel::Kvm), Some(Accel::Tcg));
        let keys = ["with", "without"].map(|name| config::Key::named(name, name.as_bytes()));
        let mut config = Config { keys: keys.into(), ..Config::default() };
        config.keys[0].vm = true;
        assert_eq!(machine(&config, "with", None, None), Ok(None));
        assert_eq!(machine(&config, "with", vm, None), Ok(kvm));
        assert_eq!(machine(&config, "with", vm, tcg), Ok(tcg));
        assert_eq!(machine(&config, "with", native, tcg), Err("invalid"));
        assert_eq!(machine(&config, "without", vm, None), Err("driver_forbidden"));
        config.boxes.driver = Driver::Vm;
        for key in ["with", "without"] {
            assert_eq!(machine(&config, key, None, None), Ok(kvm));
            assert_eq!(machine(&config, key, native, None), Err("driver_forbidden"));
            assert_eq!(machine(&config, key, None, tcg), Err("driver_forbidden"));
        }
        config.vm.accel = Accel::Tcg;
        assert_eq!(machine(&config, "without", None, None), Ok(tcg));
        assert_eq!(machine(&config, "without", vm, kvm), Ok(kvm));
    }
}
