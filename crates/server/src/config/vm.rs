//! `[vm]`: boxes in virtual machines.

use std::path::PathBuf;

use serde::Deserialize;
use tare_engine::spec::{Accel, Driver, MachineSpec, quantity};
use tare_engine::vm::{MachinePart, MachineSettings};
use tare_engine::{Engine, Error, Hint, MACHINE_MEMORY_BYTES_MIN};

use crate::config::{ByteSize, Config, Period};

#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct VmConfig {
    /// For requests that name no accelerator.
    pub accel: Accel,
    /// The name of a kernel; `None`: the chosen one.
    pub kernel: Option<String>,
    /// The path of QEMU; `None`: the first in PATH.
    pub monitor: Option<PathBuf>,
    /// Machines at once, including those that boot.
    pub boxes: u64,
    /// How long a machine may boot; `None`: it depends on the accelerator.
    pub boot: Option<Period>,
}

impl Default for VmConfig {
    fn default() -> Self {
        Self { accel: Accel::Kvm, kernel: None, monitor: None, boxes: 64, boot: None }
    }
}

impl VmConfig {
    /// Returns the machine of a request.
    pub fn machine(&self, accel: Option<Accel>) -> MachineSpec {
        MachineSpec { accel: accel.unwrap_or(self.accel), kernel: self.kernel.clone() }
    }

    /// Returns the settings of all machines: those of the configuration, or else those of the
    /// environment.
    pub fn settings(&self, environment: &MachineSettings) -> MachineSettings {
        MachineSettings {
            kernels: environment.kernels.clone(),
            monitor: self.monitor.clone().or_else(|| environment.monitor.clone()),
            boot_within: self.boot.map(|Period(boot)| boot).or(environment.boot_within),
        }
    }
}

impl Config {
    /// Returns what runs the boxes of LibreChat.
    pub fn librechat_driver(&self) -> Driver {
        self.librechat.boxes.driver.unwrap_or(self.boxes.driver)
    }

    /// Returns whether the operator wants machines: for all boxes of an API, or for a key.
    fn asks_for_machines(&self) -> bool {
        [self.boxes.driver, self.librechat_driver()].contains(&Driver::Vm)
            || self.keys.iter().any(|key| key.vm)
    }

    /// Checks what every machine would be refused for.
    pub fn check_machines(&self) -> Result<(), Error> {
        let is_enough = |setting: &str, ByteSize(bytes): ByteSize| {
            quantity::check_memory(bytes, MACHINE_MEMORY_BYTES_MIN, |memory| {
                format!("{setting} = {memory} is too small for machines")
            })
        };
        if self.boxes.driver == Driver::Vm {
            is_enough("[limits] memory_max", self.limits.memory_max)?;
        }
        if self.librechat_driver() == Driver::Vm {
            let boxes = &self.librechat.boxes;
            is_enough("[librechat.boxes] memory", boxes.memory)?;
            if boxes.host_network {
                let message = "[librechat.boxes] host_network: machines cannot have it";
                return Err(Error::bad_request(message).with_hint("use driver = \"native\""));
            }
        }
        Ok(())
    }

    /// Checks monitor, accelerator and kernel when the server starts, so that the first machine does not
    /// fail for them.
    pub fn find_machines(&self, settings: Option<&MachineSettings>) -> Result<(), Error> {
        if !self.asks_for_machines() {
            return Ok(());
        }
        let settings = settings.ok_or_else(|| {
            let message = "cannot find the directory of the kernels of machines";
            Error::bad_request(message).with_hint("set TARE_VM_DIR")
        })?;
        Engine::check_machines(settings, &self.vm.machine(None)).map_err(|(part, error)| {
            let setting = match part {
                MachinePart::Monitor => "monitor",
                MachinePart::Accel => "accel",
                MachinePart::Kernel => "kernel",
            };
            let wrong = Error::bad_request(format!("[vm] {setting}: {}", error.in_full()));
            match error.hint() {
                Some(Hint::Emulate) => wrong.with_hint(
                    "accel = \"tcg\" emulates the processor, which is not a security boundary",
                ),
                Some(hint) => wrong.with_hint(hint.clone()),
                None => wrong,
            }
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn checked(text: &str) -> Result<(), String> {
        let config: Config = toml::from_str(text).expect(text);
        config.check().map_err(|error| error.to_string())
    }

    #[test]
    fn settings_that_no_machine_could_have_are_refused_by_name() {
        assert_eq!(checked("[boxes]\ndriver = 'vm'"), Ok(()));
        for (text, said) in [
            (
                "[boxes]\ndriver = 'vm'\n[limits]\nmemory_max = '128m'",
                "[limits] memory_max = 128 MiB is too small for machines",
            ),
            (
                "[librechat.boxes]\ndriver = 'vm'\nmemory = '128m'\nscratch = '64m'",
                "[librechat.boxes] memory = 128 MiB is too small for machines",
            ),
        ] {
            assert_eq!(checked(text), Err(said.to_owned()));
        }
        let network =
            "listen = 'unix:/run/tare.sock'\n[librechat.boxes]\ndriver = 'vm'\nhost_network = true";
        assert!(checked(network).is_err_and(|said| said.contains("host_network")));
    }

    #[test]
    fn the_boxes_of_librechat_are_machines_if_all_boxes_are() {
        let driver = |text: &str| {
            let config: Config = toml::from_str(text).expect(text);
            config.librechat_driver()
        };
        assert_eq!(driver(""), Driver::Native);
        assert_eq!(driver("[boxes]\ndriver = 'vm'"), Driver::Vm);
        assert_eq!(driver("[librechat.boxes]\ndriver = 'vm'"), Driver::Vm);
        let native = "[boxes]\ndriver = 'vm'\n[librechat.boxes]\ndriver = 'native'";
        assert_eq!(driver(native), Driver::Native);
    }
}
