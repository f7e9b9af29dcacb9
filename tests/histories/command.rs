//! Commands, and random histories of them.

use std::fmt;
use std::time::Duration;

use tare_harness::Random;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verb {
    Start,
    Exec,
    Copy,
    Stop,
    Kill,
    Remove,
    RemoveByForce,
    Pause,
    Resume,
    Rename,
    Update,
    Wait,
    List,
}

/// Verbs that create a box are more frequent than those that end one.
const VERBS: [Verb; 18] = [
    Verb::Start,
    Verb::Start,
    Verb::Start,
    Verb::Start,
    Verb::Exec,
    Verb::Exec,
    Verb::Copy,
    Verb::Stop,
    Verb::Kill,
    Verb::Remove,
    Verb::Remove,
    Verb::RemoveByForce,
    Verb::Pause,
    Verb::Resume,
    Verb::Rename,
    Verb::Update,
    Verb::Wait,
    Verb::List,
];

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Command {
    pub verb: Verb,
    pub name: String,
    /// The new name, for `rename`.
    pub other: String,
}

impl Command {
    /// The arguments; `file` is one of the host's.
    pub fn arguments<'a>(&'a self, file: &'a str) -> Vec<String> {
        let name = self.name.as_str();
        let copy = format!("{name}:/work/file");
        let words = match self.verb {
            Verb::Start => vec!["run", "-d", "--name", name, "--", "sleep", "1000"],
            // Another actor may pause the box and never resume it.
            Verb::Exec => vec!["exec", "--timeout", "5s", name, "--", "true"],
            Verb::Copy => vec!["cp", file, &copy],
            Verb::Stop => vec!["stop", "-t", "1s", name],
            Verb::Kill => vec!["kill", name],
            Verb::Remove => vec!["rm", name],
            Verb::RemoveByForce => vec!["rm", "-f", name],
            Verb::Pause => vec!["pause", name],
            Verb::Resume => vec!["resume", name],
            Verb::Rename => vec!["rename", name, &self.other],
            Verb::Update => vec!["update", "--pids", "50", name],
            Verb::Wait => vec!["wait", name],
            Verb::List => vec!["ls", "-a", "--json"],
        };
        words.into_iter().map(str::to_owned).collect()
    }

    /// The exit code of a failure.
    pub fn failure(&self) -> i32 {
        match self.verb {
            Verb::Start | Verb::Exec => 125,
            Verb::Copy
            | Verb::Stop
            | Verb::Kill
            | Verb::Remove
            | Verb::RemoveByForce
            | Verb::Pause
            | Verb::Resume
            | Verb::Rename
            | Verb::Update
            | Verb::Wait
            | Verb::List => 1,
        }
    }
}

impl fmt::Display for Command {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "tare {}", self.arguments("FILE").join(" "))
    }
}

/// One step: the actor, the command, and when it is killed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Step {
    pub actor: usize,
    pub command: Command,
    pub killed_after: Option<Duration>,
}

impl fmt::Display for Step {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "actor {}: {}", self.actor, self.command)?;
        match self.killed_after {
            Some(after) => write!(f, ", killed after {} us", after.as_micros()),
            None => Ok(()),
        }
    }
}

pub const ACTORS: usize = 3;
/// The number of steps of all actors together.
const STEPS: usize = 45;
/// Boxes that one actor has for itself, and that all share.
const OWN: [&str; 2] = ["x", "y"];
pub const SHARED: [&str; 2] = ["shared-x", "shared-y"];
/// Longer than most commands last.
const KILLED_WITHIN_US: u64 = 20_000;

/// Whether all actors use this box.
pub fn is_shared(name: &str) -> bool {
    SHARED.contains(&name)
}

pub fn history(seed: u64) -> Vec<Step> {
    let mut random = Random::seeded(seed);
    (0..STEPS).map(|_| step(&mut random)).collect()
}

fn step(random: &mut Random) -> Step {
    let actor = usize::try_from(random.below(ACTORS as u64)).expect("it is small");
    let own = OWN.map(|name| format!("own-{actor}-{name}"));
    let names = if random.once_in(3) { SHARED.map(str::to_owned) } else { own };
    let verb = *random.pick(&VERBS);
    let first = usize::from(random.once_in(2));
    let kill = random.once_in(4);
    let after = Duration::from_micros(random.below(KILLED_WITHIN_US));
    Step {
        actor,
        command: Command { verb, name: names[first].clone(), other: names[1 - first].clone() },
        // What may last for ever always is.
        killed_after: (kill || verb == Verb::Wait).then_some(after),
    }
}
