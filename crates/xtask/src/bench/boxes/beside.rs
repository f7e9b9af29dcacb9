//! What the kernel itself takes longer for, the more boxes there are: a box made
//! beside N others, and bubblewrap beside the same N.
//!
//! Some of its work is for each process or file system of the host: `pivot_root`
//! visits every process, a memory cgroup is entered with every file system. That is
//! everybody's; what grows beyond it is ours.

use crate::bench::Percentiles;
use crate::bench::launch::Starter;
use crate::bench::peers::{bwrap, is_installed};
use crate::failure::Failure;
use serde::Serialize;
use std::time::Duration;

/// How many of each are timed.
const SAMPLES: usize = 30;

/// The medians beside N boxes.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Beside {
    /// For the boxes that were created last.
    pub create_us: f64,
    /// `None` if bwrap is not installed.
    pub bwrap_us: Option<f64>,
}

impl Beside {
    /// With the boxes running whose creation took `each`.
    pub fn measure(each: &[Duration]) -> Result<Self, Failure> {
        let last = each[each.len().saturating_sub(SAMPLES)..].to_vec();
        Ok(Self {
            create_us: p50_us(last),
            bwrap_us: if is_installed("bwrap") { Some(p50_us(time_bwrap()?)) } else { None },
        })
    }

    pub fn line(&self, boxes: usize) -> String {
        let Self { create_us, .. } = self;
        let of_bwrap = match self.bwrap_us {
            Some(us) => format!("bwrap {us:.0} us: {:.2} x", create_us / us),
            None => "bwrap is not installed".to_owned(),
        };
        format!("  beside {boxes} boxes: create {create_us:.0} us, {of_bwrap}\n")
    }
}

fn p50_us(samples: Vec<Duration>) -> f64 {
    Percentiles::of(samples).map_or(f64::NAN, |it| it.p50_us)
}

fn time_bwrap() -> Result<Vec<Duration>, Failure> {
    let launch = bwrap(&["/usr".to_owned()], &["/bin/true"]);
    (0..SAMPLES).map(|_| Starter::Here.time(&launch).map_err(Failure::new)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_row_shows_which_part_of_the_growth_affects_every_program() {
        let mut beside = Beside { create_us: 6_000.0, bwrap_us: Some(8_000.0) };
        let expected = "  beside 5000 boxes: create 6000 us, bwrap 8000 us: 0.75 x\n";
        assert_eq!(beside.line(5_000), expected);
        beside.bwrap_us = None;
        assert!(beside.line(10).ends_with("bwrap is not installed\n"));
    }
}
