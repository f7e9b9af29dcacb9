//! Drives a subject through the mix, inside of the lane.
//!
//! Some workers run box after box. At every point of the [`schedule`] all of them finish their
//! box, the next ordinary command runs, and everything that is left is counted. The kernel has a
//! limited time to free objects that it frees late.

use super::commands::Caller;
use super::count::Hierarchies;
use super::librechat::{LibreChat, Places};
use super::measure::Measure;
use super::mix::Job;
use super::naive::Naive;
use super::orders::Orders;
use super::sample::{Place, Sample, Values, is_as_before};
use super::series::{Done, Event};
use super::site::Site;
use super::subject::{Kind, Subject, Surprise};
use super::tare::TareSubject;
use crate::failure::Failure;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

/// How many samples there are, evenly spread. A short soak has fewer.
const SAMPLES_MAX: u64 = 50;

/// The first of some earlier samples, each after twice as many boxes as the one before.
const FIRST_SAMPLE: u64 = 25;

/// The shortest time after which a sample is due. A soak that ends early has enough samples too.
const SAMPLE_WITHIN_MIN: Duration = Duration::from_secs(2);

const SETTLE_PAUSE: Duration = Duration::from_millis(20);

/// How long to wait for the residents, which are expected to differ from an empty lane.
const LOOK_TWICE: Duration = Duration::from_millis(400);

/// How many surprises the report contains.
const SURPRISES_KEPT: usize = 20;

pub fn drive(site: &Site) -> Result<(), Failure> {
    let orders = &site.orders;
    let tare = TareSubject::new(orders.tare.clone(), site.state_root());
    let mut subject: Box<dyn Subject> = match orders.subject {
        Kind::Tare => Box::new(tare),
        Kind::Bwrap => Box::new(Naive::default()),
        Kind::LibreChat => Box::new(LibreChat::new(tare, places(site))),
    };
    let callers = (0..orders.workers).map(|it| Caller::new(site.output().join(it.to_string())));
    let callers: Vec<Caller> = callers.collect();
    let place = Place {
        hierarchies: Hierarchies { roots: site.roots.clone() },
        state: site.state(),
        history: site.state_root().join("histories"),
        claims: site.state_root().join("claims"),
        parents: site.state_root().join("parents"),
    };
    let mut driver = Driver {
        orders,
        place,
        start: Instant::now(),
        progress: Mutex::new(Done::default()),
        before: Values::new(),
    };
    thread::spawn(|| {
        let _end = std::io::copy(&mut std::io::stdin(), &mut std::io::sink());
        ABANDONED.store(true, Ordering::Relaxed);
    });
    driver.perform(subject.as_mut(), &callers)
}

/// Set when stdin closes: the process that started the soak is gone.
static ABANDONED: AtomicBool = AtomicBool::new(false);

fn places(site: &Site) -> Places {
    Places {
        files: site.state().join("files"),
        directory: site.output(),
        packages: site.orders.packages.clone(),
    }
}

struct Driver<'a> {
    orders: &'a Orders,
    place: Place,
    start: Instant,
    progress: Mutex<Done>,
    /// The values that later ones are compared with.
    before: Values,
}

impl Driver<'_> {
    fn perform(&mut self, subject: &mut dyn Subject, callers: &[Caller]) -> Result<(), Failure> {
        let first = &callers[0];
        subject.make_ready(first).map_err(Failure::new)?;
        // The other values are not known yet.
        self.before = Values::from([(Measure::DyingCgroups, 0.0)]);
        let empty = self.sample(subject, first);
        self.before = empty.values.clone();
        Event::Empty(empty.clone()).tell()?;
        subject.start_residents(first).map_err(Failure::new)?;
        let before = self.sample_settled_by(subject, first, subject.patience().min(LOOK_TWICE));
        self.before = before.values.clone();
        Event::Before(before).tell()?;

        let mut done = 0;
        for point in schedule(self.orders.boxes, subject.boxes_between()) {
            while done < point && !self.is_to_stop(subject) {
                self.leg(subject, callers, done..point);
                done = self.boxes();
                Event::Sample(self.sample(subject, first)).tell()?;
            }
        }
        subject.end_residents(first).unwrap_or_else(|it| self.note(it));
        self.before = empty.values;
        Event::Emptied(self.sample(subject, first)).tell()?;
        Event::Done(self.finished()).tell()
    }

    /// Runs the boxes with these numbers, or fewer if it is time for a sample or to stop.
    fn leg(&self, subject: &dyn Subject, callers: &[Caller], numbers: std::ops::Range<u64>) {
        let next = AtomicU64::new(numbers.start);
        let seconds = self.orders.seconds_max / SAMPLES_MAX;
        let sample_at = Instant::now() + Duration::from_secs(seconds).max(SAMPLE_WITHIN_MIN);
        let is_over = || Instant::now() >= sample_at || self.is_to_stop(subject);
        thread::scope(|scope| {
            for caller in callers {
                scope.spawn(|| {
                    loop {
                        let number = next.fetch_add(1, Ordering::Relaxed);
                        if number >= numbers.end || is_over() {
                            return;
                        }
                        self.one(subject, caller, number);
                    }
                });
            }
        });
    }

    fn one(&self, subject: &dyn Subject, caller: &Caller, number: u64) {
        let job = Job::new(self.orders.seed, number);
        let name = subject.purpose(&job);
        let lived = subject.live(job, caller);
        let mut progress = self.progress();
        progress.boxes += 1;
        *progress.kinds.entry(name.to_owned()).or_default() += 1;
        progress.execs += lived.as_ref().copied().unwrap_or_default();
        drop(progress);
        if let Err(surprise) = lived {
            self.note(format!("box {number}: {surprise}"));
        }
    }

    fn is_to_stop(&self, subject: &dyn Subject) -> bool {
        let reason = if ABANDONED.load(Ordering::Relaxed) {
            "it was abandoned".to_owned()
        } else if self.start.elapsed() >= Duration::from_secs(self.orders.seconds_max) {
            "its time was over".to_owned()
        } else if let Some(max) = subject.processes_max()
            && self.place.hierarchies.pids().unwrap_or_default() >= max as f64
        {
            format!("{max} processes were left")
        } else {
            return self.progress().stopped.is_some();
        };
        self.progress().stopped.get_or_insert(reason);
        true
    }

    /// Takes a sample after the next command, when everything is as before or time is up.
    fn sample(&self, subject: &dyn Subject, caller: &Caller) -> Sample {
        self.sample_settled_by(subject, caller, subject.patience())
    }

    fn sample_settled_by(
        &self,
        subject: &dyn Subject,
        caller: &Caller,
        patience: Duration,
    ) -> Sample {
        let start = Instant::now();
        let mut listed = None;
        loop {
            match subject.next_command(caller) {
                Ok(count) => listed = count,
                Err(surprise) => self.note(surprise),
            }
            if self.settles(&listed, SETTLE_PAUSE * 10) || start.elapsed() >= patience {
                break;
            }
        }
        let settled = start.elapsed();
        let mut values = self.place.all();
        if let Some(listed) = listed {
            values.insert(Measure::Listed, listed as f64);
        }
        Sample {
            boxes: self.boxes(),
            seconds: self.start.elapsed().as_secs_f64(),
            settled_after_seconds: settled.as_secs_f64(),
            values,
        }
    }

    /// Returns whether everything is as before within this time. A box that still has its lease
    /// needs another command after that.
    fn settles(&self, listed: &Option<u64>, bound: Duration) -> bool {
        let start = Instant::now();
        loop {
            let mut now = self.place.counted();
            if let Some(listed) = listed {
                now.insert(Measure::Listed, *listed as f64);
            }
            if is_as_before(&self.before, &now) {
                return true;
            }
            if start.elapsed() >= bound {
                return false;
            }
            #[expect(
                clippy::disallowed_methods,
                reason = "bounded by `bound`; the kernel does not report what it frees"
            )]
            thread::sleep(SETTLE_PAUSE);
        }
    }

    fn boxes(&self) -> u64 {
        self.progress().boxes
    }

    fn note(&self, surprise: Surprise) {
        let mut progress = self.progress();
        progress.surprises += 1;
        if progress.first_surprises.len() < SURPRISES_KEPT {
            progress.first_surprises.push(surprise);
        }
    }

    fn finished(&self) -> Done {
        let mut done = self.progress().clone();
        done.seconds = self.start.elapsed().as_secs_f64();
        done
    }

    fn progress(&self) -> std::sync::MutexGuard<'_, Done> {
        self.progress.lock().expect("no worker panics")
    }
}

/// Returns the numbers of boxes after which a sample is taken.
fn schedule(boxes: u64, between: u64) -> Vec<u64> {
    let step = (boxes / SAMPLES_MAX).max(between);
    let early = std::iter::successors(Some(FIRST_SAMPLE), |it| Some(it * 2));
    let mut points: Vec<u64> = early.take_while(|it| *it < step.min(boxes)).collect();
    points.extend((1..).map(|it| it * step).take_while(|it| *it < boxes));
    points.push(boxes);
    points
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn samples_are_dense_at_first_and_end_with_the_last_box() {
        let points = schedule(100_000, 250);
        assert_eq!(points[..4], [25, 50, 100, 200]);
        assert_eq!(points.last(), Some(&100_000));
        assert!(points.is_sorted() && points.contains(&2_000));
        assert_eq!(schedule(1, 250), [1]);
        assert_eq!(schedule(300, 250), [25, 50, 100, 200, 250, 300]);
    }
}
