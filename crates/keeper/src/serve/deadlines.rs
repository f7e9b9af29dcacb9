//! The times of the boot clock at which a box ends by itself.

use tare_control::Cause;

#[derive(Debug, Default)]
pub struct Deadlines {
    pub timeout_ns: Option<u64>,
    /// Applies once the box is detached: a lease that passes while the box is being made does not end
    /// it.
    pub lease_ns: Option<u64>,
    pub is_detached: bool,
    /// The end of the grace period after a request to stop.
    pub stop_ns: Option<u64>,
}

impl Deadlines {
    fn all(&self) -> [(Option<u64>, Cause); 3] {
        [
            (self.timeout_ns, Cause::Timeout),
            (self.lease_ns.filter(|_| self.is_detached), Cause::Lease),
            (self.stop_ns, Cause::Stopped),
        ]
    }

    /// Returns the earliest deadline.
    pub fn next(&self) -> Option<u64> {
        self.all().into_iter().filter_map(|(at, _)| at).min()
    }

    /// Returns the deadline that has passed, the timeout before the others.
    pub fn passed(&self, now_ns: u64) -> Option<Cause> {
        let passed = |(at, _): &(Option<u64>, Cause)| at.is_some_and(|at| at <= now_ns);
        self.all().into_iter().find(passed).map(|(_, cause)| cause)
    }

    /// Sets the end of the grace period. A second request can only shorten it.
    pub fn stop_at(&mut self, at_ns: u64) {
        self.stop_ns = Some(self.stop_ns.map_or(at_ns, |set| set.min(at_ns)));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_second_stop_can_only_shorten_the_grace() {
        let mut deadlines = Deadlines { timeout_ns: Some(30), ..Deadlines::default() };
        deadlines.stop_at(20);
        deadlines.stop_at(25);
        assert_eq!((deadlines.stop_ns, deadlines.next()), (Some(20), Some(20)));
        deadlines.stop_at(10);
        assert_eq!(deadlines.passed(10), Some(Cause::Stopped));
        assert_eq!(deadlines.passed(30), Some(Cause::Timeout));
        assert_eq!(deadlines.passed(9), None);
    }
}
