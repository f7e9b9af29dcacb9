//! The requirements of virtual machines, and whether this host meets them. Native boxes have none of them.

use std::time::{Duration, Instant};

use serde::Serialize;
use tare_engine::Error;
use tare_engine::vm::acceleration;
use tare_engine::vm::kernels::Kernel;
use tare_engine::vm::qemu::Qemu;
use tare_kernel::kvm::Kvm;

use super::{Answer, Probe, Row, missing, ok, warn};
use crate::context::Context;
use crate::error::cause_and_hint;

/// Leaves time for the other rows.
const MONITOR_WITHIN: Duration = Duration::from_secs(5);

pub const ROWS: [Row; 3] =
    [("vm monitor", monitor), ("vm acceleration", acceleration), ("vm kernel", kernel)];

/// The parts of machines that this host has.
#[derive(Debug)]
pub struct Machines {
    pub monitor: Result<Qemu, Error>,
    pub kvm: Kvm,
    /// The chosen kernel.
    pub kernel: Result<Option<Kernel>, Error>,
}

/// The object `vm` of the JSON.
#[derive(Debug, Serialize)]
pub struct Summary {
    /// The version.
    monitor: Option<String>,
    kvm: &'static str,
    /// The release of the chosen kernel.
    kernel: Option<String>,
    /// The accelerators that machines can run on here.
    accel: Vec<&'static str>,
}

impl Machines {
    /// Looks for the parts. A part that does not answer by `until` is missing.
    pub fn look(context: &Context, until: Instant) -> Self {
        Self {
            kvm: acceleration::probe(until),
            monitor: Qemu::find(context.monitor(), until.min(Instant::now() + MONITOR_WITHIN)),
            kernel: context.kernels().and_then(|kernels| kernels.chosen()),
        }
    }

    pub fn summary(&self) -> Summary {
        let monitor = self.monitor.as_ref().ok();
        let kvm = monitor.is_some_and(|it| it.has_kvm) && self.kvm == Kvm::Works;
        let tcg = monitor.is_some_and(|it| it.has_tcg);
        let accel = [("kvm", kvm), ("tcg", tcg)].into_iter().filter(|(_, works)| *works);
        Summary {
            monitor: monitor.map(|it| it.version.clone()),
            kvm: match self.kvm {
                Kvm::Works => "ok",
                Kvm::Absent => "absent",
                Kvm::Denied => "denied",
                Kvm::BootsNothing => "boots nothing",
            },
            kernel: self.kernel.as_ref().ok().and_then(|it| Some(it.as_ref()?.release.clone())),
            accel: accel.map(|(name, _)| name).collect(),
        }
    }
}

fn monitor(probe: &Probe) -> Option<Answer> {
    Some(match &probe.machines.monitor {
        Ok(monitor) => ok(format!("qemu {}", monitor.version), ""),
        Err(error) => failed(error),
    })
}

fn acceleration(probe: &Probe) -> Option<Answer> {
    Some(match acceleration::obstacle(probe.machines.kvm) {
        None => ok("/dev/kvm runs guests", ""),
        Some(why) => warn(why, "use --accel tcg to emulate"),
    })
}

fn kernel(probe: &Probe) -> Option<Answer> {
    Some(match &probe.machines.kernel {
        Ok(Some(kernel)) => {
            ok(format!("{} ({}), all parts there", kernel.release, kernel.origin.name()), "")
        }
        Ok(None) => missing("no kernel is chosen", "'tare vm kernel fetch' downloads one"),
        Err(error) => failed(error),
    })
}

fn failed(error: &Error) -> Answer {
    let (found, hint) = cause_and_hint(error);
    missing(found, hint.unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn machines(kvm: Kvm, has_kvm: bool) -> Machines {
        let monitor = Qemu { path: "/q".into(), version: "7.2.22".into(), has_kvm, has_tcg: true };
        Machines { monitor: Ok(monitor), kvm, kernel: Ok(None) }
    }

    #[test]
    fn only_what_both_the_monitor_and_the_host_can_do_is_an_acceleration() {
        assert_eq!(machines(Kvm::Works, true).summary().accel, ["kvm", "tcg"]);
        assert_eq!(machines(Kvm::Works, false).summary().accel, ["tcg"]);
        assert_eq!(machines(Kvm::BootsNothing, true).summary().accel, ["tcg"]);
        let none = Machines { monitor: Err(Error::failed("x")), ..machines(Kvm::Works, true) };
        assert!(none.summary().accel.is_empty() && none.summary().monitor.is_none());
    }
}
