//! The operations, and the states in which each may leave its box.

use tare_harness::scene::Fate::{self, Absent, Exited, Paused, Running};

/// The name of the box that an operation works on or creates.
pub const NAME: &str = "subject";
/// The name of the box after `rename`.
pub const OTHER_NAME: &str = "renamed";

/// Stands for the directory of the test among the arguments.
pub const HERE: &str = "HERE";
/// Stands for the cgroup below which detached boxes are made.
pub const PARENT: &str = "PARENT";
/// The content of the file that `cp` copies.
pub const CONTENT: &str = "content\n";

/// The process whose step gets the fault.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Whom {
    Tare,
    /// The keeper of the box that the operation creates or works on.
    Keeper,
}

/// The state of the box before the operation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Before {
    Nothing,
    Running,
    Paused,
    /// A detached box whose keeper was killed.
    Dead,
    /// An attached box that died with its creator.
    Abandoned,
    /// A live box without a record.
    Orphan,
}

#[derive(Debug)]
pub struct Operation {
    pub before: Before,
    pub call: &'static [&'static str],
    /// The possible states of the box after the operation reported success.
    pub done: &'static [Fate],
    /// The possible states after the operation failed or was killed.
    pub undone: &'static [Fate],
    /// The codes of its own failures.
    pub failures: &'static [i32],
}

impl Operation {
    /// The possible states of the box; a killed keeper takes its box along.
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
        "--cgroup-parent",
        PARENT,
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

/// A box in a machine. Its monitor is the one process beside its keeper.
pub const RUN_MACHINE: Operation = Operation {
    call: &[
        "run",
        "--driver",
        "vm",
        "--accel",
        "tcg",
        "--name",
        NAME,
        "-v",
        "HERE/volume:/data",
        "--",
        "true",
    ],
    ..RUN
};

pub const RUN_MACHINE_DETACHED: Operation = Operation {
    call: &[
        "run",
        "-d",
        "--driver",
        "vm",
        "--accel",
        "tcg",
        "--name",
        NAME,
        "--cgroup-parent",
        PARENT,
        "-v",
        "HERE/volume:/data",
        "--",
        "sleep",
        "1000",
    ],
    ..RUN_DETACHED
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

/// Every command finishes dead boxes on the way.
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
