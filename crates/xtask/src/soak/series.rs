//! The samples of one subject, which the driver sends as lines of JSON.

use super::orders::Orders;
use super::sample::Sample;
use super::subject::Kind;
use crate::failure::{Context, Failure};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// A line of the driver.
#[derive(Debug, Serialize, Deserialize)]
pub enum Event {
    /// The lane before anything was started.
    Empty(Sample),
    /// With the residents, before the first other box.
    Before(Sample),
    /// During the soak; the last one is the end.
    Sample(Sample),
    /// After the residents were removed.
    Emptied(Sample),
    Done(Done),
}

impl Event {
    pub fn from_json(line: &str) -> Result<Self, Failure> {
        serde_json::from_str(line).context(|| "cannot read what the driver said".into())
    }

    /// Prints it for the process outside of the lane.
    pub fn tell(&self) -> Result<(), Failure> {
        let line = serde_json::to_string(self).context(|| "cannot write a sample".into())?;
        println!("{line}");
        Ok(())
    }
}

/// The totals of a soak.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub struct Done {
    pub boxes: u64,
    pub execs: u64,
    pub seconds: f64,
    /// How many boxes of each kind.
    pub kinds: BTreeMap<String, u64>,
    /// Why it stopped before the last box, if it did.
    pub stopped: Option<String>,
    /// How many commands ended in another way than expected, and the first of them.
    pub surprises: u64,
    pub first_surprises: Vec<String>,
}

#[derive(Debug, Serialize)]
pub struct Series {
    pub subject: Kind,
    pub wanted: u64,
    pub empty: Option<Sample>,
    pub before: Option<Sample>,
    pub samples: Vec<Sample>,
    pub emptied: Option<Sample>,
    pub done: Option<Done>,
}

impl Series {
    pub fn new(orders: &Orders) -> Self {
        Self {
            subject: orders.subject,
            wanted: orders.boxes,
            empty: None,
            before: None,
            samples: Vec::new(),
            emptied: None,
            done: None,
        }
    }

    pub fn note(&mut self, event: Event) {
        match event {
            Event::Empty(sample) => self.empty = Some(sample),
            Event::Before(sample) => self.before = Some(sample),
            Event::Emptied(sample) => self.emptied = Some(sample),
            Event::Done(done) => self.done = Some(done),
            Event::Sample(sample) => {
                println!(
                    "{}: {} of {} boxes after {:.0} s, settled in {:.2} s",
                    self.subject.name(),
                    sample.boxes,
                    self.wanted,
                    sample.seconds,
                    sample.settled_after_seconds
                );
                self.samples.push(sample);
            }
        }
    }

    pub fn is_complete(&self) -> bool {
        self.done.is_some() && self.before.is_some() && !self.samples.is_empty()
    }
}
