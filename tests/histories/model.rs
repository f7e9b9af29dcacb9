//! What commands do to boxes, as a small model that knows nothing about how.
//!
//! If only one actor uses a box, its state is known after each command. If the command was killed,
//! it did everything or nothing.

use std::collections::{BTreeMap, BTreeSet};

use tare_harness::scene::Fate;

use crate::histories::command::{Command, Verb};

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Outcome {
    Done,
    Refused,
}

/// The possible states of the box under each name. Other names have no box.
#[derive(Debug, Clone, Default)]
pub struct Model {
    may_be: BTreeMap<String, BTreeSet<Fate>>,
    /// Boxes that a killed command asked to end: they may still end.
    doomed: BTreeSet<String>,
    /// Boxes whose creator or remover was killed: an unfinished box leaves nothing, and a removal that was
    /// recorded is completed by a later command.
    vanishing: BTreeSet<String>,
}

/// The outcome of a command on a box in this state, and the box's next state.
pub fn effect(verb: Verb, on: Fate) -> (Outcome, Fate) {
    use Fate::{Absent, Exited, Paused, Running};
    use Outcome::{Done, Refused};
    match (verb, on) {
        (Verb::Start, Absent) => (Done, Running),
        (Verb::Start, Running | Paused | Exited) => (Refused, on),
        (Verb::Exec | Verb::Copy, Running) => (Done, on),
        (Verb::Exec | Verb::Copy, Absent | Paused | Exited) => (Refused, on),
        (Verb::Stop, Running | Paused | Exited) => (Done, Exited),
        (Verb::Kill, Running | Paused) => (Done, Exited),
        (Verb::Kill, Exited) => (Refused, on),
        (Verb::Remove, Exited) => (Done, Absent),
        (Verb::Remove, Running | Paused) => (Refused, on),
        (Verb::RemoveByForce, Running | Paused | Exited) => (Done, Absent),
        (Verb::Pause, Running | Paused) => (Done, Paused),
        (Verb::Resume, Running | Paused) => (Done, Running),
        (Verb::Update, Running | Paused) => (Done, on),
        (Verb::Pause | Verb::Resume | Verb::Update, Exited) => (Refused, on),
        (Verb::Wait, Exited) => (Done, on),
        // It waits for ever, and is killed.
        (Verb::Wait, Running | Paused) => (Refused, on),
        // The other name is looked at elsewhere.
        (Verb::Rename, Running | Paused | Exited) => (Done, Absent),
        (Verb::List, _) => (Done, on),
        (
            Verb::Stop
            | Verb::Kill
            | Verb::Remove
            | Verb::RemoveByForce
            | Verb::Pause
            | Verb::Resume
            | Verb::Update
            | Verb::Wait
            | Verb::Rename,
            Absent,
        ) => (Refused, on),
    }
}

impl Model {
    pub fn fates(&self, name: &str) -> BTreeSet<Fate> {
        let known = self.may_be.get(name).cloned();
        known.unwrap_or_else(|| BTreeSet::from([Fate::Absent]))
    }

    pub fn names(&self) -> impl Iterator<Item = &String> {
        self.may_be.keys()
    }

    /// The command was killed: it did all that it should, or nothing.
    pub fn killed(&mut self, command: &Command) {
        let before = self.fates(&command.name);
        if command.verb == Verb::Rename {
            self.pass_on(command);
            self.allow(&command.other, before);
            self.allow(&command.name, BTreeSet::from([Fate::Absent]));
            return;
        }
        let after = before.iter().map(|on| effect(command.verb, *on).1);
        let mut after: BTreeSet<Fate> = after.collect();
        let is_end = matches!(command.verb, Verb::Stop | Verb::Kill | Verb::RemoveByForce);
        if is_end && (before.contains(&Fate::Running) || before.contains(&Fate::Paused)) {
            self.doomed.insert(command.name.clone());
            // It may have ended, and not yet been removed.
            after.insert(Fate::Exited);
        }
        let is_removal = matches!(command.verb, Verb::Remove | Verb::RemoveByForce);
        if command.verb == Verb::Start && before.contains(&Fate::Absent)
            || is_removal && before != BTreeSet::from([Fate::Absent])
        {
            self.vanishing.insert(command.name.clone());
        }
        self.allow(&command.name, after);
    }

    /// The command ended by itself; an error if it could not have ended so.
    pub fn ended(&mut self, command: &Command, outcome: Outcome) -> Result<(), String> {
        if command.verb == Verb::Rename {
            return self.renamed(command, outcome);
        }
        let before = self.fates(&command.name);
        let possible = before.iter().map(|on| effect(command.verb, *on));
        let mut after: BTreeSet<Fate> =
            possible.filter(|(expected, _)| *expected == outcome).map(|(_, fate)| fate).collect();
        if outcome == Outcome::Done && self.may_end_half_a_box(command) {
            after.insert(Fate::Absent);
        }
        if after.is_empty() {
            return Err(format!("{command} was {outcome:?} on a box that was {before:?}"));
        }
        match (before.len(), outcome) {
            // Who is refused by a box that is on its way has learned nothing.
            (2.., Outcome::Refused) => {}
            _ => {
                if command.verb == Verb::Start && outcome == Outcome::Done {
                    // This one is another, and whole.
                    self.doomed.remove(&command.name);
                    self.vanishing.remove(&command.name);
                }
                self.settle(&command.name, after);
            }
        }
        Ok(())
    }

    /// Half a box, of a creator or a remover that was killed, is removed by the command that is to end it:
    /// what was asked for is so.
    fn may_end_half_a_box(&self, command: &Command) -> bool {
        let is_end = match command.verb {
            Verb::Stop | Verb::Kill | Verb::Remove | Verb::RemoveByForce => true,
            Verb::Start
            | Verb::Exec
            | Verb::Copy
            | Verb::Pause
            | Verb::Resume
            | Verb::Update
            | Verb::Wait
            | Verb::Rename
            | Verb::List => false,
        };
        is_end && self.vanishing.contains(&command.name)
    }

    fn renamed(&mut self, command: &Command, outcome: Outcome) -> Result<(), String> {
        let (from, to) = (self.fates(&command.name), self.fates(&command.other));
        let absent = BTreeSet::from([Fate::Absent]);
        let may_be_done = from != absent && (to.contains(&Fate::Absent));
        let must_be_done = !from.contains(&Fate::Absent) && to == absent;
        match outcome {
            Outcome::Done if may_be_done => {
                let moved: BTreeSet<Fate> = from.difference(&absent).copied().collect();
                self.pass_on(command);
                self.settle(&command.other, moved);
                self.settle(&command.name, absent);
                Ok(())
            }
            Outcome::Refused if !must_be_done => Ok(()),
            Outcome::Done | Outcome::Refused => {
                Err(format!("{command} was {outcome:?} from {from:?} to {to:?}"))
            }
        }
    }

    fn allow(&mut self, name: &str, more: BTreeSet<Fate>) {
        let fates = self.fates(name).union(&more).copied().collect();
        self.may_be.insert(name.to_owned(), fates);
    }

    /// Moves the uncertainties of a box to its new name.
    fn pass_on(&mut self, rename: &Command) {
        for unsure in [&mut self.doomed, &mut self.vanishing] {
            if unsure.contains(&rename.name) {
                unsure.insert(rename.other.clone());
            }
        }
    }

    fn settle(&mut self, name: &str, mut fates: BTreeSet<Fate>) {
        if !fates.contains(&Fate::Running) && !fates.contains(&Fate::Paused) {
            self.doomed.remove(name);
        }
        if fates == BTreeSet::from([Fate::Absent]) {
            self.vanishing.remove(name);
        }
        if self.doomed.contains(name) {
            fates.insert(Fate::Exited);
        }
        if self.vanishing.contains(name) {
            fates.insert(Fate::Absent);
        }
        self.may_be.insert(name.to_owned(), fates);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn command(verb: Verb) -> Command {
        Command { verb, name: "a".into(), other: "b".into() }
    }

    #[test]
    fn a_killed_command_may_have_happened_or_not() {
        let mut model = Model::default();
        model.killed(&command(Verb::Start));
        assert_eq!(model.fates("a"), BTreeSet::from([Fate::Absent, Fate::Running]));
        model.ended(&command(Verb::Kill), Outcome::Done).unwrap();
        assert_eq!(model.fates("a"), BTreeSet::from([Fate::Absent, Fate::Exited]));
        assert!(model.ended(&command(Verb::Exec), Outcome::Done).is_err());
    }

    #[test]
    fn a_box_whose_removal_was_killed_may_vanish_later() {
        let mut model = Model::default();
        model.ended(&command(Verb::Start), Outcome::Done).unwrap();
        model.killed(&command(Verb::RemoveByForce));
        model.ended(&command(Verb::Stop), Outcome::Done).unwrap();
        assert_eq!(model.fates("a"), BTreeSet::from([Fate::Absent, Fate::Exited]));
        model.ended(&command(Verb::Start), Outcome::Done).unwrap();
        assert_eq!(model.fates("a"), BTreeSet::from([Fate::Running]));
    }

    #[test]
    fn an_impossible_outcome_is_an_error() {
        let mut model = Model::default();
        assert!(model.ended(&command(Verb::Exec), Outcome::Done).is_err());
        model.ended(&command(Verb::Start), Outcome::Done).unwrap();
        assert!(model.ended(&command(Verb::Start), Outcome::Done).is_err());
        model.ended(&command(Verb::Rename), Outcome::Done).unwrap();
        assert_eq!(model.fates("a"), BTreeSet::from([Fate::Absent]));
        assert_eq!(model.fates("b"), BTreeSet::from([Fate::Running]));
    }

    #[test]
    fn a_box_asked_to_stop_may_stop_later() {
        let mut model = Model::default();
        model.ended(&command(Verb::Start), Outcome::Done).unwrap();
        model.killed(&command(Verb::Stop));
        model.ended(&command(Verb::Exec), Outcome::Done).unwrap();
        assert!(model.fates("a").contains(&Fate::Exited));
        model.ended(&command(Verb::RemoveByForce), Outcome::Done).unwrap();
        assert_eq!(model.fates("a"), BTreeSet::from([Fate::Absent]));
    }
}
