//! The operations, and the states in which each may leave its box.

use tare_harness::scene::Fate::{self, Absent, Exited, Paused, Running};

/// The box that an operation is about, or that it makes.
pub const NAME: &str = "subject";
/// What it is called after `rename`.
pub const OTHER_NAME: &str = "renamed";

/// Stands for the directory of the test among the arguments.
pub const HERE: &str = "HERE";
/// What goes in and comes out.
pub const CONTENT: &str = "content\n";

/// Who meets the step.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Whom {
    Tare,
    /// Of the box that the operation makes, or is about.
    Keeper,
}

/// How the box is before the operation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Before {
    Nothing,
    Running,
    Paused,
    /// Left to itself, and its keeper was killed.
    Dead,
    /// Its creator was killed, and it has died with it.
    Abandoned,
    /// It lives, and nothing of it is on record.
    Orphan,
}

#[derive(Debug)]
pub struct Operation {
    pub before: Before,
    pub call: &'static [&'static str],
    /// What the box may be when the operation has said that it succeeded.
    pub done: &'static [Fate],
    /// And when it has not, or nobody was left to say so.
    pub undone: &'static [Fate],
    /// The codes of its own failures.
    pub failures: &'static [i32],
}

impl Operation {
    /// What the box may be; a keeper that is killed takes it along.
    pub fn fates(&self, succeeded: bool, keeper_killed: bool) -> Vec<Fate> {
        let fates = if succeeded { self.done } else { self.undone };
        let mut fates = fates.to_vec();
        if keeper_killed && fates.iter().any(|fate| matches!(fate, Running | Paused)) {
            fates.push(Exited);
        }
        fates
    }
}

pub const RUN: Operation = Operation {
    before: Before::Nothing,
    call: &["run", "--name", NAME, "-v", "HERE/volume:/data", "--", "true"],
    done: &[Absent],
    undone: &[Absent],
    failures: &[125, 137],
};

pub const RUN_DETACHED: Operation = Operation {
    before: Before::Nothing,
    call: &[
        "run",
        "-d",
        "--name",
        NAME,
        "--keep",
        "-v",
        "HERE/volume:/data",
        "--",
        "sleep",
        "1000",
    ],
    done: &[Running],
    undone: &[Absent, Running],
    failures: &[125],
};

pub const EXEC: Operation = Operation {
    before: Before::Running,
    call: &["exec", NAME, "--", "true"],
    done: &[Running],
    // A keeper that cannot return from the namespace of an exec ends its box.
    undone: &[Running, Exited],
    failures: &[125, 137],
};

pub const STOP: Operation = Operation {
    before: Before::Running,
    call: &["stop", NAME],
    done: &[Exited],
    undone: &[Running, Exited],
    failures: &[1],
};

pub const REMOVE: Operation = Operation {
    before: Before::Running,
    call: &["rm", "-f", NAME],
    done: &[Absent],
    undone: &[Running, Exited, Absent],
    failures: &[1],
};

/// Any command does so in passing.
pub const FINISH: Operation = Operation {
    before: Before::Dead,
    call: &["ls"],
    done: &[Exited],
    undone: &[Exited],
    failures: &[1],
};

pub const REMOVE_ABANDONED: Operation = Operation {
    before: Before::Abandoned,
    call: &["ls"],
    done: &[Absent],
    undone: &[Absent],
    failures: &[1],
};

pub const SWEEP: Operation = Operation {
    before: Before::Orphan,
    call: &["sweep"],
    done: &[Absent],
    undone: &[Absent],
    failures: &[1],
};

pub const UPDATE: Operation = Operation {
    before: Before::Running,
    call: &["update", NAME, "--memory", "100m", "--pids", "50", "--lease", "1h"],
    done: &[Running],
    undone: &[Running],
    failures: &[1],
};

pub const COPY_IN: Operation = Operation {
    before: Before::Running,
    call: &["cp", "HERE/in", "subject:/tmp/in"],
    done: &[Running],
    undone: &[Running],
    failures: &[1],
};

pub const COPY_OUT: Operation = Operation {
    before: Before::Running,
    call: &["cp", "subject:/data/in", "HERE/out"],
    done: &[Running],
    undone: &[Running],
    failures: &[1],
};

pub const PAUSE: Operation = Operation {
    before: Before::Running,
    call: &["pause", NAME],
    done: &[Paused],
    undone: &[Running, Paused],
    failures: &[1],
};

pub const RESUME: Operation = Operation {
    before: Before::Paused,
    call: &["resume", NAME],
    done: &[Running],
    undone: &[Running, Paused],
    failures: &[1],
};

pub const RENAME: Operation = Operation {
    before: Before::Running,
    call: &["rename", NAME, OTHER_NAME],
    done: &[Running],
    undone: &[Running],
    failures: &[1],
};
