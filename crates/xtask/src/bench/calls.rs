//! The questions about calls over HTTP: how long one takes, how many fit into a second, and what
//! each costs. The same work also runs as a plain command and in bubblewrap, without a server.

use super::answer::{BWRAP, Bound, FASTAPI, Metric, PLAIN, Table, ratio_column};
use super::launch::Launch;
use super::load::{Contender, Plan, Slice, interleave, timed};
use super::memory;
use super::servers::{Request, Server};
use super::setup::Setup;
use super::work::Work;
use crate::failure::{Context, Failure};
use serde_json::json;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

pub const TARE: &str = "tare serve";
const COLD: &str = "tare serve, cold";
const EARLIER: &str = "earlier tare serve";

/// Calls of one subject that follow each other: a pool has to be filled again meanwhile.
const CALLS_IN_A_ROW: usize = 10;
const SLICE: Duration = Duration::from_secs(1);

const PRINT: &str = "print(1)";

/// The module with a heap of 64 MiB, and code that touches 1 MiB of it. It sums up one byte of
/// each MiB, and has changed the first one.
const HEAP_MODULE: &str = "heap = bytearray(b'x') * (64 << 20)\n";
const HEAP: &str = "import bench_heap
for page in range(256): bench_heap.heap[page * 4096] = 1
print(sum(bench_heap.heap[::1 << 20]))";
const HEAP_PRINTED: &str = "7561\n";

impl Work {
    /// Measures all subjects with this work. `is_cold` adds calls that ask for a new box.
    fn measure(
        &self,
        setup: &Setup,
        title: &str,
        plan: &Plan,
        metrics: &[Metric],
        is_cold: bool,
    ) -> Result<Table, Failure> {
        eprintln!("{title}");
        let tare = self.server(setup)?;
        let packages = self.packages.as_deref();
        let fastapi = Server::fastapi(setup, packages)?;
        let earlier = setup.earlier.as_deref().map(|binary| {
            let start = |settings: &str| Server::tare(setup, binary, "earlier", packages, settings);
            // It may not know pools.
            start(&self.pool).or_else(|_| start(""))
        });
        let earlier = earlier.transpose()?;
        let run = |launch: Launch| move || timed(|| launch.prints(self.printed));
        let peer = json!({ "command": self.command });
        let mut subjects = vec![
            Contender::of(PLAIN, run(self.plain())),
            Contender::of(BWRAP, run(self.in_bwrap())),
            fastapi.subject(FASTAPI, Request { path: "/v1/run", body: peer, ..self.request() }),
            tare.subject(TARE, self.request()),
        ];
        if is_cold {
            let mut cold = self.request();
            cold.body["warm"] = json!("off");
            subjects.push(tare.subject(COLD, cold));
        }
        subjects.extend(earlier.as_ref().map(|it| it.subject(EARLIER, self.request())));
        let names = subjects.iter().map(|it| it.name.clone());
        let measured = names.zip(interleave(&subjects, plan)).collect();
        Ok(Table::compare(title, metrics, measured))
    }

    /// One call at a time.
    fn latency(&self, setup: &Setup, title: &str, is_cold: bool) -> Result<Table, Failure> {
        let plan = Plan::one_at_a_time(setup.rounds, CALLS_IN_A_ROW);
        let title = format!("{title}, one call at a time");
        self.measure(setup, &title, &plan, &[Metric::P50, Metric::P99], is_cold)
    }

    /// All calls at the same moment. The last answer counts.
    fn burst(&self, setup: &Setup, title: &str, callers: usize) -> Result<Table, Failure> {
        let plan = Plan {
            callers,
            turns_min: setup.repeats(),
            warm_up: 1,
            ..Plan::one_at_a_time(setup.rounds, 1)
        };
        let title = format!("{title}, {callers} calls at once");
        self.measure(setup, &title, &plan, &[Metric::Last, Metric::P50, Metric::P99], false)
    }
}

/// A pool with so many boxes that wait.
fn pool(name: &str, warm: usize) -> String {
    format!("[pool.{name}]\nwarm = {warm}\nmax = {}\n", warm.max(32))
}

/// Boxes that wait for calls that come one at a time.
const WARM: usize = 8;
/// The default of a pool.
const WARM_BY_DEFAULT: usize = 2;
/// Calls at once that use the heap.
const HEAP_CALLS: usize = 20;

/// `print(1)` in Python, one call at a time.
pub fn python(setup: &Setup) -> Result<Vec<Table>, Failure> {
    let work = Work::python(PRINT, "1\n", &pool("python", WARM));
    let table = work.latency(setup, "print(1) in Python over HTTP", true)?;
    let table = table.with_goal(TARE, &ratio_column(BWRAP), Bound::AtMost(0.15));
    let p99 = [TARE, "p99 ms"];
    Ok(vec![table.with_quotient(p99, [TARE, "p50 ms"], Bound::AtMost(3.0))])
}

/// The same with numpy.
pub fn numpy(setup: &Setup) -> Result<Vec<Table>, Failure> {
    let work = Work::numpy(setup, &pool("python", WARM));
    let table = work.latency(setup, "import numpy over HTTP", true)?;
    Ok(vec![table.with_goal(TARE, &ratio_column(BWRAP), Bound::AtMost(0.05))])
}

/// Runs per second with 8 and 64 clients. As many boxes wait as there are clients.
pub fn rate(setup: &Setup) -> Result<Vec<Table>, Failure> {
    let metrics = [Metric::Rate, Metric::P50, Metric::P99, Metric::Cpu];
    let mut all = Vec::new();
    for callers in [8, 64] {
        let python = pool("python", callers);
        let work = [
            ("/bin/true", Work::command(&["/bin/true"], &pool("box", callers)), 2.0),
            ("print(1) in Python", Work::python(PRINT, "1\n", &python), 4.5),
            ("import numpy", Work::numpy(setup, &python), 20.0),
        ];
        for (title, work, least) in work {
            let title = format!("{title}, {callers} at once");
            let table = work.measure(setup, &title, &loaded(setup, callers), &metrics, false)?;
            let table = table.with_goal(TARE, &ratio_column(FASTAPI), Bound::AtLeast(least));
            let p99 = [TARE, "p99 ms"];
            all.push(table.with_quotient(p99, [FASTAPI, "p99 ms"], Bound::AtMost(1.0)));
        }
    }
    Ok(all)
}

fn loaded(setup: &Setup, callers: usize) -> Plan {
    Plan {
        callers,
        slice: Slice::Time(SLICE),
        samples: setup.rounds,
        turns_min: setup.repeats(),
        warm_up: 1,
        cpu: true,
    }
}

/// Processor time of the whole machine for each call, one call at a time.
pub fn cpu(setup: &Setup) -> Result<Vec<Table>, Failure> {
    let work = [
        ("/bin/true", Work::command(&["/bin/true"], &pool("box", WARM))),
        ("print(1) in Python", Work::python(PRINT, "1\n", &pool("python", WARM))),
    ];
    let metrics = [Metric::Cpu, Metric::CpuUser, Metric::CpuKernel, Metric::P50];
    let measure = |(title, work): (&str, Work)| {
        let title = format!("{title}, processor time of a call");
        work.measure(setup, &title, &loaded(setup, 1), &metrics, true)
    };
    work.into_iter().map(measure).collect()
}

/// A hundred calls at the same moment, from a pool of its default size.
pub fn burst(setup: &Setup) -> Result<Vec<Table>, Failure> {
    let work = Work::numpy(setup, &pool("python", WARM_BY_DEFAULT));
    let table = work.burst(setup, "import numpy over HTTP", 100)?;
    Ok(vec![table.with_goal(TARE, &ratio_column(BWRAP), Bound::AtMost(0.1))])
}

/// A heap of 64 MiB, of which each call touches 1 MiB.
pub fn heap(setup: &Setup) -> Result<Vec<Table>, Failure> {
    let packages = heap_packages(setup.directory())?;
    let pool = format!("{}preload = ['bench_heap']\n", pool("python", HEAP_CALLS));
    let work = Work::python(HEAP, HEAP_PRINTED, &pool).with_packages(Some(packages));
    let title = "64 MiB of heap, 1 MiB touched";
    let one = work.latency(setup, title, false)?;
    let many = work.burst(setup, title, HEAP_CALLS)?;
    let memory = memory::measure(setup, title, &work)?;
    Ok(vec![
        one.with_goal(TARE, "p50 ms", Bound::AtMost(10.0)),
        many.with_goal(TARE, "last ms", Bound::AtMost(100.0)),
        memory,
    ])
}

fn heap_packages(directory: &Path) -> Result<PathBuf, Failure> {
    let packages = directory.join("packages");
    let python = packages.join("python");
    let doing = || format!("cannot write {}", python.display());
    fs::create_dir_all(&python).context(doing)?;
    fs::write(python.join("bench_heap.py"), HEAP_MODULE).context(doing)?;
    Ok(packages)
}

/// The memory of a clone and of its template, with numpy.
pub fn memory(setup: &Setup) -> Result<Vec<Table>, Failure> {
    let print = Work::python(PRINT, "1\n", &pool("python", WARM_BY_DEFAULT));
    let numpy = Work::numpy(setup, &pool("python", WARM_BY_DEFAULT));
    Ok(vec![
        memory::measure(setup, "print(1) in Python", &print)?,
        memory::measure(setup, "import numpy", &numpy)?,
    ])
}

/// LibreChat's request: one call at a time, in a session that exists, and four parallel calls of one
/// session. The others have no sessions, and run the same code.
pub fn librechat(setup: &Setup) -> Result<Vec<Table>, Failure> {
    let exec = |session: Option<&str>| {
        let mut body = json!({ "lang": "py", "code": PRINT });
        if let Some(session) = session {
            body["runtime_session_hint"] = json!(session);
        }
        let print = Work::python(PRINT, "1\n", &pool("python", WARM));
        Work { path: "/v1/exec", body, ..print.with_packages(Some(setup.packages.clone())) }
    };
    let of_session = exec(Some("v2:user:bench"));
    let one = exec(None).latency(setup, "LibreChat's /exec of print(1)", false)?;
    let second = of_session.latency(setup, "LibreChat's /exec in a session", false)?;
    let metrics = [Metric::Rate, Metric::P50, Metric::P99];
    let title = "LibreChat's /exec in one session, 4 at once";
    let four = of_session.measure(setup, title, &loaded(setup, 4), &metrics, false)?;
    Ok(vec![one.with_goal(TARE, &ratio_column(FASTAPI), Bound::AtMost(0.2)), second, four])
}
