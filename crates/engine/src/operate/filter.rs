//! Which boxes a list contains: `name=web`, `label=team`, `label=team=blue`, `state=running`.

use crate::error::Error;
use crate::observe::view::{State, Status};
use crate::spec::shown::quoted;

const FORMS: &str = "write name=NAME, label=KEY, label=KEY=VALUE or state=STATE";

/// Which boxes a list contains.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct BoxFilter {
    /// Boxes that have ended, and boxes that wait in a pool, too. A condition on the state has the same effect.
    pub all: bool,
    /// A box must meet all of them.
    pub conditions: Vec<Condition>,
}

/// One condition of a [`BoxFilter`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Condition {
    Name(String),
    /// A label with this value, or with any value.
    Label(String, Option<String>),
    State(State),
}

impl BoxFilter {
    pub fn matches(&self, status: &Status) -> bool {
        let names_state = |it: &Condition| matches!(it, Condition::State(_));
        let all = self.all || self.conditions.iter().any(names_state);
        (all || !matches!(status.state, State::Exited | State::Warm))
            && self.conditions.iter().all(|it| it.matches(status))
    }
}

impl Condition {
    /// Reads a condition as `tare ls --filter` takes it.
    pub fn parse(text: &str) -> Result<Self, Error> {
        let message = || format!("{} is not a filter", quoted(text));
        let refused = || Error::bad_request(message()).with_hint(FORMS);
        match text.split_once('=') {
            None | Some((_, "")) => Err(refused()),
            Some(("name", name)) => Ok(Self::Name(name.to_owned())),
            Some(("label", label)) => Ok(Self::label(label)),
            Some(("state", state)) => state.parse().map(Self::State),
            Some((_, _)) => Err(refused()),
        }
    }

    /// `team`, or `team=blue`.
    pub fn label(text: &str) -> Self {
        match text.split_once('=') {
            Some((key, value)) => Self::Label(key.to_owned(), Some(value.to_owned())),
            None => Self::Label(text.to_owned(), None),
        }
    }

    fn matches(&self, status: &Status) -> bool {
        match self {
            Self::Name(name) => status.name.as_ref() == Some(name),
            Self::Label(key, None) => status.labels.contains_key(key),
            Self::Label(key, value) => status.labels.get(key) == value.as_ref(),
            Self::State(state) => status.state == *state,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::spec::BoxId;

    /// A running box `web` with the label `team=blue`.
    fn status() -> Status {
        Status {
            name: Some("web".to_owned()),
            state: State::Running,
            labels: [("team".to_owned(), "blue".to_owned())].into(),
            ..Status::unknown(BoxId::random())
        }
    }

    #[test]
    fn conditions_are_read_from_text() {
        let label = |value: Option<&str>| Condition::Label("a".into(), value.map(str::to_owned));
        for (text, condition) in [
            ("name=web", Condition::Name("web".into())),
            ("label=a", label(None)),
            ("label=a=", label(Some(""))),
            ("label=a=b=c", label(Some("b=c"))),
            ("state=stuck", Condition::State(State::Stuck)),
        ] {
            assert_eq!(Condition::parse(text).unwrap(), condition);
        }
    }

    #[test]
    fn other_texts_are_refused_with_the_forms() {
        for text in ["", "web", "name=", "label=", "id=x", "=x", "state=dead"] {
            assert!(Condition::parse(text).unwrap_err().hint().is_some(), "{text}");
        }
        assert_eq!(Condition::parse("x").unwrap_err().to_string(), "'x' is not a filter");
    }

    #[test]
    fn a_condition_matches_whole_names_and_values() {
        let status = status();
        for (text, matches) in [
            ("name=web", true),
            ("name=we", false),
            ("label=team", true),
            ("label=team=blue", true),
            ("label=team=b", false),
            ("label=color", false),
            ("state=running", true),
            ("state=paused", false),
        ] {
            assert_eq!(Condition::parse(text).unwrap().matches(&status), matches, "{text}");
        }
    }
}
