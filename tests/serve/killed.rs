//! The server is killed while it works, and restarted: what it has answered is still true, and
//! unfinished work is done or undone.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::{Duration, Instant};

use rustix::process::Signal;
use serde_json::{Value, json};
use tare_harness::random::{number_in, shown_seed};
use tare_harness::scene::{Expected, Fate, Scene};
use tare_harness::skip::has_program;
use tare_harness::{
    Answer, Process, Random, Server, Tare, box_processes, eventually, eventually_within, skip, tare,
};

/// How often it is killed; more by the environment.
const KILLS: u64 = 6;
/// In which a client does some things, and is in the middle of one at the end.
const KILLED_WITHIN_MS: u64 = 400;
const CLIENTS: u64 = 4;
/// The exit code of a box that ends by itself.
const CODE: u8 = 7;

#[test]
fn a_server_killed_at_any_moment_leaves_complete_boxes_or_none() {
    let mut seeds = Random::seeded(shown_seed("TARE_SERVE_SEED"));
    let kills = number_in("TARE_SERVE_KILLS").unwrap_or(KILLS);
    let scene = Scene::new(tare!());
    for kill in 0..kills {
        // Every second server has boxes that wait, and its clients get those.
        let waiting = if kill % 2 == 0 { 0 } else { CLIENTS };
        killed_once(&scene, seeds.number(), &format!("[pool.box]\nwarm = {waiting}\n"));
        scene.clear();
    }
}

fn killed_once(scene: &Scene, seed: u64, configuration: &str) {
    let server = Server::start_configured(&scene.tare, configuration);
    let address = server.address();
    let after = Random::seeded(seed).below(KILLED_WITHIN_MS);
    let known: Vec<Known> = std::thread::scope(|threads| {
        let client = |number| {
            move || {
                let client = Client::new(address, number, seed);
                client.work()
            }
        };
        let clients: Vec<_> = (0..CLIENTS).map(|it| threads.spawn(client(it))).collect();
        tare_harness::let_pass(Duration::from_millis(after));
        server.kill();
        let joined = clients.into_iter().map(|client| client.join());
        joined.flat_map(|known| known.expect("it has said why")).collect()
    });
    let server = Server::start(&scene.tare, &[]);
    eventually("it has looked at what was there", || {
        server.get("/health").json()["recovery"]["done"] == true
    });
    show_known(&known);
    for one in &known {
        one.is_still_true(scene, &server);
    }
    let fates = |one: &Known| Expected { name: one.name.clone(), fates: one.fates() };
    // It is a process of tare, and no box has one more.
    server.stop().ok();
    scene.check(&known.iter().map(fates).collect::<Vec<_>>());
}

#[expect(clippy::print_stderr, reason = "a failed test shows it")]
fn show_known(known: &[Known]) {
    eprintln!("what was said: {known:?}");
}

/// How far a client has come with a box.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Step {
    Make,
    Stop,
    Remove,
}

/// What the server answered about a box.
#[derive(Debug)]
struct Known {
    name: String,
    /// Whether it ends by itself, with [`CODE`].
    is_brief: bool,
    asked: Step,
    /// Whether there was an answer to that.
    is_answered: bool,
}

impl Known {
    fn fates(&self) -> Vec<Fate> {
        let made = if self.is_brief { Fate::Exited } else { Fate::Running };
        match (self.asked, self.is_answered) {
            (Step::Make, true) => vec![made],
            (Step::Make, false) => vec![Fate::Absent, made],
            (Step::Stop, true) => vec![Fate::Exited],
            (Step::Stop, false) => vec![made, Fate::Exited],
            (Step::Remove, true) => vec![Fate::Absent],
            // Ended, and not yet removed: that is what a box is on its way out.
            (Step::Remove, false) => vec![made, Fate::Exited, Fate::Absent],
        }
    }

    /// Checks that server and box still agree with the answer.
    #[track_caller]
    fn is_still_true(&self, scene: &Scene, server: &Server) {
        let path = format!("/v1/boxes/{}", self.name);
        let settled: &[&str] = if self.is_brief { &["exited"] } else { &["running", "exited"] };
        let mut found = server.get(&path);
        eventually(&format!("{self:?} is one or the other"), || {
            found = server.get(&path);
            found.status == 404 || settled.iter().any(|it| found.json()["state"] == *it)
        });
        if found.status == 404 {
            return assert!(self.fates().contains(&Fate::Absent), "{self:?} is gone");
        }
        let found = found.was(200).json();
        match (self.asked, self.is_brief) {
            (Step::Make, false) => drop(scene.tare.exec(&self.name, ["true"]).ok()),
            (Step::Make, true) => assert_eq!(found["exit_code"], CODE, "{self:?}: {found}"),
            // It may be on its way out.
            (Step::Stop | Step::Remove, _) => {}
        }
    }
}

/// Makes boxes, and stops or removes them, until the server is dead.
struct Client {
    address: SocketAddr,
    number: u64,
    random: Random,
    known: Vec<Known>,
}

impl Client {
    fn new(address: SocketAddr, number: u64, seed: u64) -> Self {
        Self { address, number, random: Random::seeded(seed ^ number), known: Vec::new() }
    }

    fn work(mut self) -> Vec<Known> {
        while self.next().is_some() {}
        self.known
    }

    /// `None` when there was no answer.
    fn next(&mut self) -> Option<()> {
        match self.random.below(4) {
            0 => self.one_shot(),
            1 => self.end(Step::Stop),
            2 => self.end(Step::Remove),
            _ => self.make(),
        }
    }

    fn one_shot(&mut self) -> Option<()> {
        let command = *self.random.pick(&["true", "sleep 0.05", "sleep 100 & sleep 100"]);
        let request = json!({ "command": ["sh", "-c", command], "timeout_ms": 100 });
        let answer = ask(self.address, "POST", "/v1/run", &request)?;
        answer.was(200);
        Some(())
    }

    /// One that sent an `Idempotency-Key` could ask again, and have no second box.
    fn make(&mut self) -> Option<()> {
        let is_brief = self.random.once_in(3);
        let name = format!("box-{}-{}", self.number, self.known.len());
        let script = if is_brief {
            format!("sleep 0.05; exit {CODE}")
        } else {
            "exec sleep 1000".to_owned()
        };
        let request = json!({ "name": name, "command": ["sh", "-c", script] });
        self.known.push(Known { name, is_brief, asked: Step::Make, is_answered: false });
        let answer = ask(self.address, "POST", "/v1/boxes", &request)?;
        answer.was(201);
        self.known.last_mut()?.is_answered = true;
        Some(())
    }

    /// Ends the last box of the client, if it still exists.
    fn end(&mut self, step: Step) -> Option<()> {
        let address = self.address;
        let Some(last) = self.known.last_mut() else {
            return Some(());
        };
        let is_next = match step {
            Step::Make => false,
            // One that ends by itself may have done so by now.
            Step::Stop => last.asked == Step::Make && !last.is_brief,
            Step::Remove => last.asked != Step::Remove,
        };
        if !is_next {
            return Some(());
        }
        (last.asked, last.is_answered) = (step, false);
        let path = format!("/v1/boxes/{}", last.name);
        let answer = match step {
            Step::Stop => {
                let request = json!({ "grace_ms": 20 });
                ask(address, "POST", &format!("{path}/stop"), &request)?
            }
            Step::Make | Step::Remove => {
                ask(address, "DELETE", &format!("{path}?force=true"), &Value::Null)?
            }
        };
        assert!([200, 204].contains(&answer.status), "{}", answer.text());
        last.is_answered = true;
        Some(())
    }
}

/// `None` when the server died before all of the answer was here.
fn ask(address: SocketAddr, method: &str, path: &str, request: &Value) -> Option<Answer> {
    let body = if request.is_null() { String::new() } else { request.to_string() };
    let head = format!(
        "{method} {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\
         Content-Type: application/json\r\nContent-Length: {}\r\n\r\n",
        body.len()
    );
    let mut stream = TcpStream::connect(address).ok()?;
    stream.write_all(head.as_bytes()).ok()?;
    stream.write_all(body.as_bytes()).ok()?;
    let mut bytes = Vec::new();
    stream.read_to_end(&mut bytes).ok()?;
    let head = bytes.windows(4).any(|four| four == b"\r\n\r\n");
    let answer = head.then(|| Answer::parse(&bytes))?;
    let length = answer.header("content-length").unwrap_or("0").parse().ok()?;
    (answer.body.len() >= length).then_some(answer)
}

/// Widens the moment in which several keepers wait for their go from microseconds to
/// half a second: every thread has its go pipe before any of them clones.
const SLOW_BIRTHS: &str = "inject=clone3:delay_enter=60000:delay_exit=600000";
const BIRTHS: usize = 4;

/// Keepers that waited for their go held each other's pipe open. They stayed forever, with
/// the server's port. What is left is looked for in `/proc`, not by tare.
#[test]
fn a_server_killed_while_it_creates_boxes_leaves_no_process_and_no_port() {
    let tare = tare!();
    if !has_program("strace") {
        skip!("strace is not installed");
    }
    let server = Server::start_command(&tare, slow_births(&tare));
    let address = server.address();
    let request = json!({ "command": ["sleep", "1000"] });
    for _birth in 0..BIRTHS {
        // Not waited for: its connection stays open if the server's descriptors do.
        let request = request.clone();
        std::thread::spawn(move || ask(address, "POST", "/v1/boxes", &request));
    }
    let [tracee] = &children_of(server.pid())[..] else {
        panic!("strace has one child");
    };
    eventually("several keepers wait for their go", || children_of(tracee.pid).len() >= 2);
    tracee.signal(Signal::KILL);
    let directory = format!("/proc/{}", tracee.pid);
    eventually("strace has reaped it", || !std::path::Path::new(&directory).exists());
    server.kill();
    eventually("no process of tare is left", || {
        tare.reap_orphans();
        box_processes().is_empty()
    });
    let again = ["serve", "--listen", &address.to_string()];
    let server = Server::start_command(&tare, tare.command(again));
    eventually("it has looked at what was there", || {
        server.get("/health").json()["recovery"]["done"] == true
    });
    assert_eq!(all_boxes(&server), [] as [Value; 0]);
    server.stop().ok();
    tare.call(["audit"]).ok();
}

/// A server under strace. The process that the harness knows is strace.
fn slow_births(tare: &Tare) -> std::process::Command {
    let mut command = tare.shell_command("exec strace -f -o /dev/null -e \"$@\"");
    command.args(["sh", SLOW_BIRTHS]).arg(tare.program());
    command.args(["serve", "--listen", "127.0.0.1:0"]);
    command
}

fn children_of(parent: u32) -> Vec<Process> {
    let children = box_processes().into_iter();
    children.filter(|process| process.parent == parent).collect()
}

/// Boxes that are there when a server starts; more by the environment.
const LEFTOVERS: usize = 200;
const THREADS: usize = 8;
/// The time limit for the recovery of thousands of boxes.
const RECOVERED_WITHIN: Duration = Duration::from_secs(60);

#[test]
fn a_new_server_finds_all_existing_boxes() {
    let leftovers = number_in("TARE_SERVE_LEFTOVERS").map(usize::try_from);
    let leftovers = leftovers.transpose().expect("few").unwrap_or(LEFTOVERS);
    let tare = tare!();
    let limits = "[limits]\nboxes = 100000\n";
    let server = Server::start_configured(&tare, limits);
    in_threads(leftovers, |number| {
        let script = match number % 2 {
            0 => format!("exit {CODE}"),
            _ => "exec sleep 10000".to_owned(),
        };
        let request = json!({ "command": ["sh", "-c", script] });
        server.post("/v1/boxes", &request).was(201);
    });
    server.kill();
    let started = Instant::now();
    let server = Server::start_configured(&tare, limits);
    let health = server.get("/health").was(200).json();
    let answered = started.elapsed();
    let listed = all_boxes(&server);
    show(leftovers, &health, answered, started.elapsed());
    assert_eq!(listed.len(), leftovers);
    let brief = listed.iter().filter(|one| one["exit_code"] == CODE);
    assert_eq!(brief.count(), leftovers.div_ceil(2));
    eventually_within(RECOVERED_WITHIN, "it has looked at all", || {
        server.get("/health").json()["recovery"] == json!({ "done": true, "boxes": leftovers })
    });
    in_threads(listed.len(), |number| {
        let id = listed[number]["id"].as_str().expect("an id");
        server.delete(&format!("/v1/boxes/{id}?force=true")).was(204);
    });
    server.stop().ok();
}

/// Does it for each number, some beside each other.
fn in_threads(count: usize, act: impl Fn(usize) + Sync) {
    let act = &act;
    std::thread::scope(|threads| {
        for first in 0..THREADS {
            threads.spawn(move || (first..count).step_by(THREADS).for_each(act));
        }
    });
}

fn all_boxes(server: &Server) -> Vec<Value> {
    let mut boxes = Vec::new();
    let mut after = String::new();
    loop {
        let page = server.get(&format!("/v1/boxes?all=true{after}")).was(200).json();
        boxes.extend(page["boxes"].as_array().expect("boxes").iter().cloned());
        match page["next"].as_str() {
            Some(next) => after = format!("&after={next}"),
            None => return boxes,
        }
    }
}

#[expect(clippy::print_stderr, reason = "figures for runs with more boxes")]
fn show(leftovers: usize, health: &Value, answered: Duration, listed: Duration) {
    eprintln!("{leftovers} boxes: health after {answered:?}, all after {listed:?}, {health}");
}
