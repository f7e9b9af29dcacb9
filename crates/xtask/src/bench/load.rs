//! Runs subjects in turn, in slices, and keeps the time of every call.
//!
//! A ratio is fair only if both subjects ran on the same machine at the same time. So each turn
//! runs a slice of every subject, in an order that is shuffled anew: what one subject leaves for
//! the next to pay (a network namespace is destroyed some 50 ms after its last process) is spread
//! over all. A subject that fails once is left out from then on, with the reason.

use super::statistics::Random;
use std::collections::BTreeMap;
use std::fs;
use std::sync::Barrier;
use std::thread;
use std::time::{Duration, Instant};

/// Any fixed number will do: the order differs between turns, not between runs.
const SHUFFLE_SEED: u64 = 0x7461_7265;

/// A table that needs more time than this gets fewer samples, so that a slow or busy machine
/// answers too. The table shows how many there are.
const TABLE_MAX: Duration = Duration::from_secs(180);

/// Kernel threads and pools work on after the last call of a slice. Their processor time counts.
const AFTERWARDS: Duration = Duration::from_millis(150);
/// How long the machine without a subject is observed in each turn.
const IDLE: Duration = Duration::from_millis(300);

/// Other programs use less than this of a quiet machine.
const QUIET_SHARE: f64 = 0.15;

/// The unit of /proc/stat (sysconf(_SC_CLK_TCK), 100 on every architecture of Linux).
const TICK_MS: f64 = 10.0;

/// One call: how long it took, and what the server had made before it (`"warm"` in its answer).
#[derive(Debug, Clone, PartialEq)]
pub struct Call {
    pub took: Duration,
    pub warm: Option<String>,
}

/// Measures something that has no server.
pub fn timed(run: impl FnOnce() -> Result<(), String>) -> Result<Call, String> {
    let start = Instant::now();
    run()?;
    Ok(Call { took: start.elapsed(), warm: None })
}

/// A caller: it makes one call after another, and measures each.
pub type Client<'a> = Box<dyn FnMut() -> Result<Call, String> + Send + 'a>;

/// Something that is measured.
pub struct Contender<'a> {
    pub name: String,
    caller: Box<dyn Fn() -> Result<Client<'a>, String> + Sync + 'a>,
}

impl<'a> Contender<'a> {
    /// `caller` makes a caller, for example with a connection of its own. That is not measured.
    pub fn new(name: &str, caller: impl Fn() -> Result<Client<'a>, String> + Sync + 'a) -> Self {
        Self { name: name.to_owned(), caller: Box::new(caller) }
    }

    /// A subject whose callers need no state of their own.
    pub fn of(name: &str, call: impl Fn() -> Result<Call, String> + Send + Sync + 'a) -> Self {
        let call = std::sync::Arc::new(call);
        Self::new(name, move || {
            let call = call.clone();
            Ok(Box::new(move || call()))
        })
    }
}

/// How much of a subject runs before the next one.
#[derive(Debug, Clone, Copy)]
pub enum Slice {
    /// So many calls of each caller.
    Calls(usize),
    /// Each caller begins calls for so long.
    Time(Duration),
}

#[derive(Debug, Clone, Copy)]
pub struct Plan {
    pub callers: usize,
    pub slice: Slice,
    /// At least so many calls of each subject are kept.
    pub samples: usize,
    pub turns_min: usize,
    /// Turns that fill caches and pools, and are not kept.
    pub warm_up: usize,
    /// Whether the processor time is measured.
    pub cpu: bool,
}

impl Plan {
    /// One call at a time. `calls` of one subject follow each other, as a client makes them.
    pub fn one_at_a_time(samples: usize, calls: usize) -> Self {
        let slice = Slice::Calls(calls);
        Self { callers: 1, slice, samples, turns_min: 1, warm_up: 3, cpu: false }
    }
}

/// Processor time of the whole machine, in milliseconds.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Cpu {
    pub user: f64,
    pub kernel: f64,
}

impl Cpu {
    fn now() -> Self {
        Self::parse(&fs::read_to_string("/proc/stat").unwrap_or_default())
    }

    /// Reads user, nice, system, idle, iowait, irq and softirq (proc_stat(5)).
    fn parse(stat: &str) -> Self {
        let first = stat.lines().next().unwrap_or_default();
        let ticks: Vec<f64> =
            first.split_whitespace().skip(1).filter_map(|it| it.parse().ok()).collect();
        let sum = |fields: &[usize]| fields.iter().filter_map(|it| ticks.get(*it)).sum::<f64>();
        Self { user: sum(&[0, 1]) * TICK_MS, kernel: sum(&[2, 5, 6]) * TICK_MS }
    }

    fn plus(self, other: Self, times: f64) -> Self {
        Self { user: self.user + other.user * times, kernel: self.kernel + other.kernel * times }
    }

    /// Runs something. Returns its result, the wall time in milliseconds, and the processor time
    /// that the machine used meanwhile.
    fn during<T>(run: impl FnOnce() -> T) -> (T, f64, Self) {
        let (start, before) = (Instant::now(), Self::now());
        let result = run();
        (result, milliseconds(start.elapsed()), Self::now().plus(before, -1.0))
    }
}

/// Everything that was measured of a subject. Times are in milliseconds.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Measured {
    pub calls: Vec<f64>,
    /// From the first call of a slice to the end of its last one.
    pub slices: Vec<f64>,
    /// The sum of the slices before which the machine was quiet, without what it used then.
    pub cpu: Cpu,
    /// The calls in these slices.
    pub cpu_calls: usize,
    pub warm: BTreeMap<String, usize>,
    pub failed: Option<String>,
}

impl Measured {
    fn keep(&mut self, samples: Vec<Call>, took: Duration, cpu: Option<Cpu>) {
        self.slices.push(milliseconds(took));
        if let Some(cpu) = cpu {
            self.cpu = self.cpu.plus(cpu, 1.0);
            self.cpu_calls += samples.len();
        }
        for sample in samples {
            self.calls.push(milliseconds(sample.took));
            if let Some(warm) = sample.warm {
                *self.warm.entry(warm).or_default() += 1;
            }
        }
    }
}

pub fn milliseconds(duration: Duration) -> f64 {
    duration.as_nanos() as f64 / 1e6
}

/// Runs all subjects in turn, and returns a series for each.
pub fn interleave(subjects: &[Contender<'_>], plan: &Plan) -> Vec<Measured> {
    let mut series = vec![Measured::default(); subjects.len()];
    let mut machine = Background::default();
    let mut order: Vec<usize> = (0..subjects.len()).collect();
    let mut random = Random(SHUFFLE_SEED);
    let start = Instant::now();
    for turn in 0_usize.. {
        let kept = turn.saturating_sub(plan.warm_up);
        let is_enough = |it: &Measured| it.failed.is_some() || it.calls.len() >= plan.samples;
        let is_late = kept > 0 && start.elapsed() > TABLE_MAX;
        if is_late || (kept >= plan.turns_min && series.iter().all(is_enough)) {
            break;
        }
        random.shuffle(&mut order);
        for &index in &order {
            if series[index].failed.is_some() {
                continue;
            }
            let measured = machine.observe(plan.cpu, || run(&subjects[index], plan));
            match measured {
                (Err(why), _) => series[index].failed = Some(why),
                (Ok(_), _) if turn < plan.warm_up => {}
                (Ok((samples, took)), cpu) => series[index].keep(samples, took, cpu),
            }
        }
    }
    series
}

/// What the machine uses without a subject, while it is quiet.
#[derive(Debug, Default)]
struct Background {
    wall: f64,
    cpu: Cpu,
}

impl Background {
    /// Runs a slice. Returns the processor time that it cost beyond that of the quiet machine, or
    /// `None` if other programs were busy before it.
    fn observe<T>(&mut self, is_wanted: bool, slice: impl FnOnce() -> T) -> (T, Option<Cpu>) {
        if !is_wanted {
            return (slice(), None);
        }
        let ((), wall, cpu) = Cpu::during(|| pause(IDLE));
        let processors = thread::available_parallelism().map_or(1, |it| it.get()) as f64;
        if cpu.user + cpu.kernel > wall * processors * QUIET_SHARE {
            return (slice(), None);
        }
        self.wall += wall;
        self.cpu = self.cpu.plus(cpu, 1.0);
        let slice = || {
            let result = slice();
            pause(AFTERWARDS);
            result
        };
        let (result, wall, cpu) = Cpu::during(slice);
        (result, Some(cpu.plus(self.cpu, -wall / self.wall)))
    }
}

fn pause(duration: Duration) {
    #[expect(clippy::disallowed_methods, reason = "the time is what is measured")]
    thread::sleep(duration);
}

/// Runs one slice of a subject.
fn run(subject: &Contender<'_>, plan: &Plan) -> Result<(Vec<Call>, Duration), String> {
    let mut callers = Vec::new();
    for _ in 0..plan.callers {
        callers.push((subject.caller)()?);
    }
    if let [only] = callers.as_mut_slice() {
        let start = Instant::now();
        return Ok((call(only, plan.slice, start)?, start.elapsed()));
    }
    let together = Barrier::new(plan.callers + 1);
    let (results, took) = thread::scope(|scope| {
        let threads: Vec<_> = callers
            .iter_mut()
            .map(|caller| {
                let together = &together;
                scope.spawn(move || {
                    together.wait();
                    call(caller, plan.slice, Instant::now())
                })
            })
            .collect();
        together.wait();
        let start = Instant::now();
        let joined = threads.into_iter().map(|it| it.join().expect("no caller panics"));
        (joined.collect::<Vec<_>>(), start.elapsed())
    });
    let samples: Result<Vec<_>, _> = results.into_iter().collect();
    Ok((samples?.into_iter().flatten().collect(), took))
}

fn call(caller: &mut Client<'_>, slice: Slice, start: Instant) -> Result<Vec<Call>, String> {
    let mut samples = Vec::new();
    loop {
        let goes_on = match slice {
            Slice::Calls(count) => samples.len() < count,
            Slice::Time(duration) => start.elapsed() < duration,
        };
        if !goes_on {
            return Ok(samples);
        }
        samples.push(caller()?);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Mutex;
    use std::sync::atomic::{AtomicUsize, Ordering};

    fn sample(milliseconds: u64) -> Call {
        Call { took: Duration::from_millis(milliseconds), warm: Some("clone".into()) }
    }

    fn plan(samples: usize) -> Plan {
        Plan { warm_up: 2, ..Plan::one_at_a_time(samples, 1) }
    }

    #[test]
    fn each_turn_runs_each_subject_once_in_changing_order() {
        let calls = Mutex::new(Vec::new());
        let subject = |index: usize| {
            let calls = &calls;
            Contender::of("it", move || {
                calls.lock().unwrap().push(index);
                Ok(sample(1))
            })
        };
        let series = interleave(&[subject(0), subject(1), subject(2)], &plan(40));
        let calls = calls.into_inner().unwrap();
        assert_eq!(calls.len(), 3 * 42);
        for turn in calls.chunks(3) {
            let mut sorted = turn.to_vec();
            sorted.sort_unstable();
            assert_eq!(sorted, [0, 1, 2], "a turn must have each subject once");
        }
        assert!(calls.chunks(3).any(|turn| turn != &calls[..3]), "never shuffled");
        assert!(series.iter().all(|it| it.calls == vec![1.0; 40]), "{series:?}");
        assert_eq!(series[0].warm["clone"], 40);
    }

    #[test]
    fn turns_that_warm_up_are_not_kept() {
        let calls = AtomicUsize::new(0);
        let subject = Contender::of("it", || {
            Ok(sample(if calls.fetch_add(1, Ordering::Relaxed) < 2 { 100 } else { 1 }))
        });
        let series = interleave(&[subject], &plan(10));
        assert_eq!(series[0].calls, vec![1.0; 10]);
    }

    #[test]
    fn a_subject_that_fails_once_is_left_out_with_its_reason() {
        let calls = AtomicUsize::new(0);
        let failing = Contender::of("it", || match calls.fetch_add(1, Ordering::Relaxed) {
            7 => Err("exit code 125".to_owned()),
            _ => Ok(sample(1)),
        });
        let series = interleave(&[failing, Contender::of("other", || Ok(sample(1)))], &plan(10));
        assert_eq!(calls.load(Ordering::Relaxed), 8);
        assert_eq!(series[0].failed.as_deref(), Some("exit code 125"));
        assert_eq!(series[1].calls.len(), 10);
    }

    #[test]
    fn callers_at_once_are_all_counted_and_the_slice_lasts_until_the_last_one() {
        let next = AtomicUsize::new(0);
        let subject = Contender::new("it", || {
            let longest = next.fetch_add(1, Ordering::Relaxed) == 0;
            Ok(Box::new(move || {
                timed(|| {
                    pause(Duration::from_millis(if longest { 30 } else { 1 }));
                    Ok(())
                })
            }))
        });
        let plan = Plan { callers: 5, turns_min: 1, warm_up: 0, ..plan(5) };
        let series = interleave(&[subject], &plan);
        assert_eq!((series[0].calls.len(), series[0].slices.len()), (5, 1));
        assert!(series[0].slices[0] >= 30.0, "{series:?}");
    }

    #[test]
    fn a_slice_of_time_begins_calls_until_it_is_over() {
        let subject = Contender::of("it", || {
            timed(|| {
                pause(Duration::from_millis(2));
                Ok(())
            })
        });
        let slice = Slice::Time(Duration::from_millis(20));
        let plan = Plan { callers: 2, slice, warm_up: 0, ..plan(1) };
        let series = interleave(&[subject], &plan);
        assert!(series[0].calls.len() >= 2 && series[0].slices[0] >= 18.0, "{series:?}");
    }

    #[test]
    fn processor_time_is_read_from_the_kernel_without_idle_and_steal() {
        let stat = "cpu  10 20 30 400 50 6 7 80 0 0\ncpu0 1 2 3 4 5 6 7 8 0 0\n";
        assert_eq!(Cpu::parse(stat), Cpu { user: 300.0, kernel: 430.0 });
        assert_eq!(Cpu::parse(""), Cpu::default());
        let now = Cpu::now();
        assert!(now.user > 0.0 && now.kernel > 0.0, "{now:?}");
    }
}
