//! Which state a box is in, and what whoever looks at it has to do about it:
//! pure functions of what was observed.
//!
//! ```text
//!            ┌───────────── attached: ends with its creator ─────────────┐
//! starting ──┴─▶ running ◀──▶ paused                                     │
//!     │             │ └─ stop asked ─▶ stopping ─┐                       ▼
//!     │             └─ command, lease, kill ─────┴─▶ exited ─ rm ─▶ (no record)
//!     └─ creator gone ──────────────────────────────────────────────────▶
//! Any of them is stuck while something of it cannot be ended.
//! ```

use crate::observe::view::State;

/// The keeper, as far as its recorded identity tells.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum KeeperIs {
    /// Not on record.
    Unborn,
    Alive,
    Dead,
}

/// Whose box it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Tie {
    /// Nobody's yet: its record does not say what it is to be.
    HalfMade,
    /// Its creator's, whose lock is on the record all the time.
    Attached,
    /// Its creator's still: it has not been left to itself.
    Detaching,
    /// Nobody's.
    Detached,
    /// Nobody's, and its record does not say any more what it was.
    Damaged,
}

/// What was observed of a box.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Facts {
    pub tie: Tie,
    pub keeper: KeeperIs,
    /// Somebody has the lock of its record.
    pub busy: bool,
    pub stopping: bool,
    pub frozen: bool,
    pub stuck: bool,
    /// That is so short a time ago that it is not tried again yet.
    pub tried_lately: bool,
    /// Somebody has begun to end it, and said so on record.
    pub ending: bool,
    /// Its end is on record.
    pub ended: bool,
    /// Nothing of it is to be kept after its end, or not any longer; nothing ever
    /// of a box of an earlier boot.
    pub expired: bool,
    /// It should have ended by itself.
    pub overdue: bool,
}

/// What there is to be done.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Care {
    Nothing,
    /// It is over: what is left of it goes, its record stays.
    Finish,
    /// Nobody wants it, or not any longer: all of it goes.
    Remove,
}

pub fn state(facts: &Facts) -> State {
    if facts.stuck {
        return State::Stuck;
    }
    if facts.ended {
        return State::Exited;
    }
    match (facts.tie, facts.keeper) {
        (Tie::Damaged, _) => State::Stuck,
        (Tie::HalfMade, _) | (Tie::Attached | Tie::Detaching, KeeperIs::Unborn) => State::Starting,
        (Tie::Detaching, KeeperIs::Alive) if facts.busy => State::Starting,
        // Its creator is gone and it lives: what would tell why is damaged.
        (Tie::Detaching, KeeperIs::Alive) => State::Stuck,
        (Tie::Attached | Tie::Detached, KeeperIs::Alive) if facts.stopping => State::Stopping,
        (Tie::Attached | Tie::Detached, KeeperIs::Alive) if facts.frozen => State::Paused,
        (Tie::Attached | Tie::Detached, KeeperIs::Alive) => State::Running,
        (Tie::Attached | Tie::Detaching, KeeperIs::Dead) => State::Stopping,
        // Nobody has got to writing it down yet.
        (Tie::Detached, KeeperIs::Dead | KeeperIs::Unborn) => State::Exited,
    }
}

pub fn care(facts: &Facts) -> Care {
    if facts.tried_lately {
        return Care::Nothing;
    }
    if facts.ended {
        return if facts.expired { Care::Remove } else { Care::Nothing };
    }
    // Whoever has the lock takes care.
    if facts.busy {
        return Care::Nothing;
    }
    match (facts.tie, facts.keeper) {
        // No reason to end what may live, or to lose what it has written; who
        // wants that says so.
        (Tie::Damaged, _) => Care::Nothing,
        (Tie::HalfMade | Tie::Attached, _) => Care::Remove,
        // A creator that is gone has taken it along by now.
        (Tie::Detaching, KeeperIs::Alive) if !facts.ending => Care::Nothing,
        (Tie::Detaching, KeeperIs::Alive | KeeperIs::Unborn | KeeperIs::Dead) => Care::Remove,
        // What was begun is finished, whoever was killed or failed in the middle of it.
        (Tie::Detached, KeeperIs::Alive) if !(facts.overdue || facts.ending) => Care::Nothing,
        (Tie::Detached, KeeperIs::Dead | KeeperIs::Unborn) if facts.expired => Care::Remove,
        (Tie::Detached, KeeperIs::Alive | KeeperIs::Dead | KeeperIs::Unborn) => Care::Finish,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIVE: Facts = Facts {
        tie: Tie::Detached,
        keeper: KeeperIs::Alive,
        busy: false,
        stopping: false,
        frozen: false,
        stuck: false,
        tried_lately: false,
        ending: false,
        ended: false,
        expired: false,
        overdue: false,
    };

    fn all() -> impl Iterator<Item = Facts> {
        let ties = [Tie::HalfMade, Tie::Attached, Tie::Detaching, Tie::Detached, Tie::Damaged];
        let keepers = [KeeperIs::Unborn, KeeperIs::Alive, KeeperIs::Dead];
        (0..15 * 512).map(move |number: usize| {
            let bit = |at: usize| (number / 15) & (1 << at) != 0;
            Facts {
                tie: ties[number % 5],
                keeper: keepers[number / 5 % 3],
                busy: bit(0),
                stopping: bit(1),
                frozen: bit(2),
                stuck: bit(3),
                ended: bit(4),
                expired: bit(5),
                overdue: bit(6),
                tried_lately: bit(7),
                ending: bit(8),
            }
        })
    }

    /// The failure that this product was made against: a live box that is
    /// judged dead.
    #[test]
    fn a_live_detached_box_is_never_touched_before_it_is_overdue() {
        let live = |facts: &Facts| {
            facts.tie == Tie::Detached
                && facts.keeper == KeeperIs::Alive
                && !facts.ended
                && !facts.overdue
                && !facts.ending
        };
        for facts in all().filter(live) {
            assert_eq!(care(&facts), Care::Nothing, "{facts:?}");
            assert_ne!(state(&facts), State::Exited, "{facts:?}");
        }
    }

    #[test]
    fn a_locked_box_is_left_alone() {
        for facts in all().filter(|facts| facts.busy && !facts.ended) {
            assert_eq!(care(&facts), Care::Nothing, "{facts:?}");
        }
    }

    #[test]
    fn an_incomplete_box_of_a_dead_creator_is_removed() {
        let is_due = |facts: &Facts| !facts.busy && !facts.ended && !facts.tried_lately;
        for facts in all().filter(is_due) {
            match (facts.tie, facts.keeper) {
                (Tie::Attached | Tie::HalfMade, _)
                | (Tie::Detaching, KeeperIs::Unborn | KeeperIs::Dead) => {
                    assert_eq!(care(&facts), Care::Remove, "{facts:?}");
                }
                (Tie::Detached, KeeperIs::Unborn | KeeperIs::Dead) if facts.expired => {
                    assert_eq!(care(&facts), Care::Remove, "{facts:?}");
                }
                (Tie::Detaching, KeeperIs::Alive) if facts.ending => {
                    assert_eq!(care(&facts), Care::Remove, "{facts:?}");
                }
                (Tie::Detaching, KeeperIs::Alive) | (Tie::Detached | Tie::Damaged, _) => {
                    assert_ne!(care(&facts), Care::Remove, "{facts:?}");
                }
            }
        }
    }

    #[test]
    fn an_ended_box_stays_until_it_expires() {
        for facts in all().filter(|facts| facts.ended) {
            let expected =
                if facts.expired && !facts.tried_lately { Care::Remove } else { Care::Nothing };
            assert_eq!(care(&facts), expected);
            let expected = if facts.stuck { State::Stuck } else { State::Exited };
            assert_eq!(state(&facts), expected);
        }
    }

    #[test]
    fn a_stuck_box_is_left_alone_until_its_next_retry() {
        for facts in all().filter(|facts| facts.tried_lately) {
            assert_eq!(care(&facts), Care::Nothing, "{facts:?}");
        }
    }

    #[test]
    fn every_state_is_derived_from_its_observation() {
        assert_eq!(state(&LIVE), State::Running);
        for (facts, expected) in [
            (Facts { frozen: true, ..LIVE }, State::Paused),
            (Facts { frozen: true, stopping: true, ..LIVE }, State::Stopping),
            (Facts { stuck: true, ..LIVE }, State::Stuck),
            (Facts { tie: Tie::Detaching, busy: true, ..LIVE }, State::Starting),
            (Facts { tie: Tie::Damaged, ..LIVE }, State::Stuck),
            (Facts { keeper: KeeperIs::Dead, ..LIVE }, State::Exited),
        ] {
            assert_eq!(state(&facts), expected, "{facts:?}");
        }
    }
}
