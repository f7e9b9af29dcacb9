//! Every operation consists of steps (`kernel/src/step.rs`). At each step tare, or the keeper, is
//! killed, fails, or repeats the step. After the next command, no object is left without a box,
//! boxes that should live are unchanged, and an operation that failed has reported it.
//!
//! The tests find the number of steps by trying: the first number that is not reached ends the
//! search. So a new step is covered as soon as it exists.
//!
//! ```text
//! TARE_STEPS_ALL=1     every errno at every step, instead of one that the seed chooses. Of a machine every
//!                      third step with one errno, instead of every thirtieth
//! TARE_STEPS_SEED=N    the same choice again
//! ```
//!
//! The creation of a machine has about 90 steps of tare and 150 of its keeper, attached or detached, and each
//! trial is a boot of 4 processor seconds. With three faults, every thirtieth step is 50 boots, and every third
//! 460 boots: 16 minutes of two processors. Every step with every fault would be 5,000 boots.

mod faulty;
mod lane;
mod operations;
mod pools;
mod trials;

use operations::{
    COPY_IN, COPY_OUT, EXEC, FINISH, PAUSE, REMOVE, REMOVE_ABANDONED, RENAME, RESUME, RUN,
    RUN_DETACHED, RUN_MACHINE, RUN_MACHINE_DETACHED, STOP, SWEEP, UPDATE, Whom,
};
use pools::each_step_of_a_pool;
use trials::{each_step, some_steps_of_a_machine};

pub use faulty::tare as faulty_tare;

#[test]
fn run_survives_crash_failure_and_repeat_at_every_step() {
    each_step(&RUN, Whom::Tare);
}

#[test]
fn run_survives_crash_failure_and_repeat_of_its_keeper_at_every_step() {
    each_step(&RUN, Whom::Keeper);
}

#[test]
fn detached_run_survives_crash_failure_and_repeat_at_every_step() {
    each_step(&RUN_DETACHED, Whom::Tare);
}

#[test]
fn detached_run_survives_crash_failure_and_repeat_of_its_keeper_at_every_step() {
    each_step(&RUN_DETACHED, Whom::Keeper);
}

#[test]
fn a_machine_survives_crash_failure_and_repeat_at_any_step() {
    some_steps_of_a_machine(&RUN_MACHINE, Whom::Tare);
}

#[test]
fn a_machine_survives_crash_failure_and_repeat_of_its_keeper_at_any_step() {
    some_steps_of_a_machine(&RUN_MACHINE, Whom::Keeper);
}

#[test]
fn a_detached_machine_survives_crash_failure_and_repeat_at_any_step() {
    some_steps_of_a_machine(&RUN_MACHINE_DETACHED, Whom::Tare);
}

#[test]
fn a_detached_machine_survives_crash_failure_and_repeat_of_its_keeper_at_any_step() {
    some_steps_of_a_machine(&RUN_MACHINE_DETACHED, Whom::Keeper);
}

#[test]
fn a_pool_of_clones_survives_crash_failure_and_repeat_at_any_step() {
    each_step_of_a_pool(Whom::Tare);
}

#[test]
fn a_pool_of_clones_survives_crash_failure_and_repeat_of_its_keepers_at_any_step() {
    each_step_of_a_pool(Whom::Keeper);
}

#[test]
fn exec_survives_crash_failure_and_repeat_at_every_step() {
    each_step(&EXEC, Whom::Tare);
    each_step(&EXEC, Whom::Keeper);
}

#[test]
fn stop_survives_crash_failure_and_repeat_at_every_step() {
    each_step(&STOP, Whom::Tare);
    each_step(&STOP, Whom::Keeper);
}

#[test]
fn rm_survives_crash_failure_and_repeat_at_every_step() {
    each_step(&REMOVE, Whom::Tare);
}

#[test]
fn finishing_a_dead_box_survives_crash_failure_and_repeat_at_every_step() {
    each_step(&FINISH, Whom::Tare);
}

#[test]
fn removing_an_abandoned_box_survives_crash_failure_and_repeat_at_every_step() {
    each_step(&REMOVE_ABANDONED, Whom::Tare);
}

#[test]
fn sweep_of_an_orphan_survives_crash_failure_and_repeat_at_every_step() {
    each_step(&SWEEP, Whom::Tare);
}

#[test]
fn update_survives_crash_failure_and_repeat_at_every_step() {
    each_step(&UPDATE, Whom::Tare);
    each_step(&UPDATE, Whom::Keeper);
}

#[test]
fn cp_survives_crash_failure_and_repeat_at_every_step() {
    for operation in [&COPY_IN, &COPY_OUT] {
        each_step(operation, Whom::Tare);
        each_step(operation, Whom::Keeper);
    }
}

#[test]
fn pause_and_resume_survive_crash_failure_and_repeat_at_every_step() {
    for operation in [&PAUSE, &RESUME] {
        each_step(operation, Whom::Tare);
        each_step(operation, Whom::Keeper);
    }
}

#[test]
fn rename_survives_crash_failure_and_repeat_at_every_step() {
    each_step(&RENAME, Whom::Tare);
}
