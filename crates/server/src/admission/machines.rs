//! How many machines there are.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::error::ServiceError;

/// Counts machines that exist or are being made. Cheap to clone.
#[derive(Debug, Clone, Default)]
pub struct Machines(Arc<AtomicU64>);

/// One machine that counts, until it is dropped.
#[derive(Debug)]
pub struct MachineHold(Machines);

impl Machines {
    /// Counts a machine that is about to be made, unless there are as many as there may be.
    pub fn hold(&self, most: u64) -> Result<MachineHold, ServiceError> {
        let one_more = |count| (count < most).then_some(count + 1);
        match self.0.fetch_update(Ordering::Relaxed, Ordering::Relaxed, one_more) {
            Ok(_) => Ok(MachineHold(self.clone())),
            Err(count) => {
                let message = format!("limit reached: {count} of {most} machines");
                Err(ServiceError::unavailable("machines_full", message)
                    .with_hint("try again, or ask the operator to raise [vm] boxes"))
            }
        }
    }

    /// Counts a machine that exists already.
    pub fn hold_existing(&self) -> MachineHold {
        self.0.fetch_add(1, Ordering::Relaxed);
        MachineHold(self.clone())
    }

    pub fn count(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

impl Drop for MachineHold {
    fn drop(&mut self) {
        self.0.0.fetch_sub(1, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn machines_beyond_the_limit_are_refused_until_one_ends() {
        let machines = Machines::default();
        let first = machines.hold(1).expect("there is room");
        let refused = machines.hold(1).expect_err("one is there");
        assert_eq!((refused.code, refused.may_work_later()), ("machines_full", true));
        let found = machines.hold_existing();
        drop(first);
        assert!(machines.hold(1).is_err());
        drop(found);
        assert!(machines.hold(1).is_ok());
        assert_eq!(machines.count(), 0);
    }
}
