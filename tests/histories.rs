//! Random histories: several concurrent commands do random things to boxes, some are killed, and
//! their results and the host agree with a simple model.
//!
//! Each actor has its own boxes, whose state the model knows. All actors also use shared boxes, for
//! which the test requires only that every command ends, reports errors in one line, and leaves
//! complete boxes. A history that fails is shrunk and printed with its seed.

use std::path::Path;
use std::time::{Duration, Instant};

use rustix::process::Signal;
use tare_harness::random::{Random, fresh_seed, number_in};
use tare_harness::scene::{Expected, Fate, Scene};
use tare_harness::{Output, Tare, TemporaryDirectory, tare};

mod command;
mod model;
mod shrink;

use command::{ACTORS, Command, Step, Verb, history, is_shared};
use model::{Model, Outcome};

/// How long each test makes histories; longer by the environment.
const SECONDS: u64 = 20;
/// How long a failure is looked into.
const SHRINK_WITHIN: Duration = Duration::from_secs(120);
/// A history is the same each time, its moments are not.
const TRIES: usize = 5;
/// A history that is run again.
const REPETITIONS: usize = 20;

/// Exit codes of a command on a shared box that another actor ends meanwhile.
const ENDED_MEANWHILE: [i32; 2] = [137, 143];

#[test]
fn random_histories_of_several_tares_agree_with_a_simple_model() {
    histories();
}

#[test]
fn random_histories_from_another_seed_agree_with_a_simple_model() {
    histories();
}

/// Two tests share the histories, so that neither takes long.
#[track_caller]
fn histories() {
    let scene = Scene::new(tare!());
    let stage = Stage { directory: TemporaryDirectory::new(), scene };
    stage.directory.write("file", "content\n");
    if let Some(seed) = number_in("TARE_HISTORY_SEED") {
        (0..REPETITIONS).for_each(|_| stage.plays(seed));
        return;
    }
    let seconds = number_in("TARE_HISTORY_SECONDS").unwrap_or(SECONDS);
    let until = Instant::now() + Duration::from_secs(seconds);
    let mut seeds = Random::seeded(fresh_seed());
    while Instant::now() < until {
        stage.plays(seeds.below(1 << 32));
    }
}

struct Stage {
    // Dropped in this order: the scene ends with a look at all that is left.
    directory: TemporaryDirectory,
    scene: Scene,
}

impl Stage {
    /// Plays the history of this seed; fails the test with the shortest one that fails.
    #[track_caller]
    fn plays(&self, seed: u64) {
        let steps = history(seed);
        let Err(why) = self.play(&steps) else {
            return;
        };
        let until = Instant::now() + SHRINK_WITHIN;
        let mut last = why;
        let shortest = shrink::shrunk(&steps, |steps| {
            let mut tries = (0..TRIES).take_while(|_| Instant::now() < until);
            let failed = tries.find_map(|_| self.play(steps).err());
            let has_failed = failed.is_some();
            last = failed.unwrap_or_else(|| last.clone());
            has_failed
        });
        let lines: Vec<String> = shortest.iter().map(Step::to_string).collect();
        panic!(
            "{last}\n\nin this history:\n{}\n\nthe whole of it again: TARE_HISTORY_SEED={seed}",
            lines.join("\n")
        );
    }

    /// All actors at once; then what is there is what may be. Nothing is left of it.
    fn play(&self, steps: &[Step]) -> Result<(), String> {
        let file = self.directory.join("file");
        let tare = &self.scene.tare;
        let models: Vec<Result<Model, String>> = std::thread::scope(|threads| {
            let act = |actor: usize| {
                let ours = steps.iter().filter(move |step| step.actor == actor);
                let file = &file;
                threads.spawn(move || act(tare, file, ours))
            };
            let actors: Vec<_> = (0..ACTORS).map(act).collect();
            let joined = actors.into_iter().map(|actor| actor.join());
            joined.map(|it| it.unwrap_or_else(|panic| Err(message(&*panic)))).collect()
        });
        let agreed = models.into_iter().collect::<Result<Vec<_>, _>>();
        let checked = agreed.and_then(|models| self.agrees(&models));
        // Also after a failure: the next history begins with nothing.
        let cleared = caught(|| self.scene.clear());
        checked.and(cleared)
    }

    fn agrees(&self, models: &[Model]) -> Result<(), String> {
        let known = models.iter().flat_map(|model| {
            model.names().map(|name| Expected {
                name: name.clone(),
                fates: model.fates(name).into_iter().collect(),
            })
        });
        let anything = [Fate::Absent, Fate::Running, Fate::Paused, Fate::Exited];
        let shared = command::SHARED
            .map(|name| Expected { name: name.to_owned(), fates: anything.to_vec() });
        let expected: Vec<Expected> = known.chain(shared).collect();
        caught(|| self.scene.check(&expected))
    }
}

/// Runs the commands of one actor in sequence.
fn act<'a>(
    tare: &Tare,
    file: &Path,
    steps: impl Iterator<Item = &'a Step>,
) -> Result<Model, String> {
    let file = file.to_str().expect("an ASCII path");
    let mut model = Model::default();
    for step in steps {
        let running = tare.spawn_call(step.command.arguments(file));
        if let Some(after) = step.killed_after {
            tare_harness::let_pass(after);
            running.signal(Signal::KILL);
        }
        let output = running.wait();
        let agreed = if is_shared(&step.command.name) {
            behaves(&step.command, &output)
        } else {
            follows(&mut model, &step.command, &output)
        };
        agreed.map_err(|why| format!("{step}: {why}"))?;
    }
    Ok(model)
}

/// Checks that the command succeeded, was killed, or printed one line with the reason.
fn behaves(command: &Command, output: &Output) -> Result<(), String> {
    let said = output.stderr_text();
    let is_one_line = said.starts_with("tare: ") && said.lines().count() == 1;
    let is_fine = match output.code {
        0 | -9 => true,
        124 => command.verb == Verb::Exec,
        code if code == command.failure() => is_one_line,
        code => command.verb == Verb::Exec && ENDED_MEANWHILE.contains(&code),
    };
    if is_fine { Ok(()) } else { Err(output.to_string()) }
}

/// Checks the command against the model.
fn follows(model: &mut Model, command: &Command, output: &Output) -> Result<(), String> {
    behaves(command, output)?;
    match output.code {
        -9 => model.killed(command),
        0 => {
            let listed = output.stdout_text();
            if command.verb == Verb::List {
                return lists(model, &listed).map_err(|why| format!("{why}: {listed}"));
            }
            let ended = model.ended(command, Outcome::Done);
            ended.map_err(|why| format!("{why}: {output}"))?;
        }
        _ => {
            let ended = model.ended(command, Outcome::Refused);
            ended.map_err(|why| format!("{why}: {output}"))?;
        }
    }
    Ok(())
}

/// A box that lives is never said to be dead, nor one that is dead to live.
fn lists(model: &Model, text: &str) -> Result<(), String> {
    let listed: serde_json::Value = serde_json::from_str(text).map_err(|it| it.to_string())?;
    let boxes = listed.as_array().ok_or("not an array")?;
    for name in model.names() {
        let fates = model.fates(name);
        let found = boxes.iter().find(|one| one["name"] == name.as_str());
        let state = found.and_then(|one| one["state"].as_str());
        let is_settled = fates.len() == 1;
        let agrees = match state {
            None => fates.contains(&Fate::Absent),
            Some("running") => fates.contains(&Fate::Running),
            Some("paused") => fates.contains(&Fate::Paused),
            Some("exited") => fates.contains(&Fate::Exited),
            // On its way from one to the other.
            Some(_) => !is_settled,
        };
        if !agrees {
            return Err(format!("{name} may be {fates:?} and is {state:?}"));
        }
    }
    Ok(())
}

/// The message of a failed check.
fn caught(check: impl FnOnce()) -> Result<(), String> {
    let check = std::panic::AssertUnwindSafe(check);
    std::panic::catch_unwind(check).map_err(|panic| message(&*panic))
}

fn message(panic: &(dyn std::any::Any + Send)) -> String {
    let text = panic.downcast_ref::<String>().cloned();
    let text = text.or_else(|| Some((*panic.downcast_ref::<&str>()?).to_owned()));
    text.unwrap_or_else(|| "a failure without words".to_owned())
}
