//! Which boxes are listed: `name=web`, `label=team`, `label=team=blue`,
//! `state=running`.

use tare_engine::spec::shown::quoted;
use tare_engine::{Error, State, Status};

use crate::error::bad;

const FORMS: &str = "write name=NAME, label=KEY, label=KEY=VALUE or state=STATE";

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Filter {
    Name(String),
    /// With any value when there is none.
    Label(String, Option<String>),
    State(State),
}

impl Filter {
    pub fn matches(&self, status: &Status) -> bool {
        match self {
            Self::Name(name) => status.name.as_ref() == Some(name),
            Self::Label(key, None) => status.labels.contains_key(key),
            Self::Label(key, value) => status.labels.get(key) == value.as_ref(),
            Self::State(state) => status.state == *state,
        }
    }

    pub fn is_state(&self) -> bool {
        matches!(self, Self::State(_))
    }
}

pub fn parse(text: &str) -> Result<Filter, Error> {
    let refused = || bad(format!("{} is not a filter", quoted(text)), FORMS);
    match text.split_once('=') {
        None | Some((_, "")) => Err(refused()),
        Some(("name", name)) => Ok(Filter::Name(name.to_owned())),
        Some(("label", label)) => Ok(match label.split_once('=') {
            Some((key, value)) => Filter::Label(key.to_owned(), Some(value.to_owned())),
            None => Filter::Label(label.to_owned(), None),
        }),
        Some(("state", state)) => state.parse().map(Filter::State),
        Some((_, _)) => Err(refused()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::commands::ls::tests::status;

    #[test]
    fn filters_name_what_they_look_at() {
        let label = |value: Option<&str>| Filter::Label("a".into(), value.map(str::to_owned));
        for (text, filter) in [
            ("name=web", Filter::Name("web".into())),
            ("label=a", label(None)),
            ("label=a=", label(Some(""))),
            ("label=a=b=c", label(Some("b=c"))),
            ("state=stuck", Filter::State(State::Stuck)),
        ] {
            assert_eq!(parse(text).unwrap(), filter);
        }
    }

    #[test]
    fn what_is_not_a_filter_is_refused_with_what_is_one() {
        for text in ["", "web", "name=", "label=", "id=x", "=x", "state=dead"] {
            assert!(parse(text).unwrap_err().hint().is_some(), "{text}");
        }
        assert_eq!(parse("x").unwrap_err().to_string(), "'x' is not a filter");
    }

    #[test]
    fn a_filter_matches_what_it_says_and_nothing_like_it() {
        let status = status("aaaaaaaaaaaa", Some("web"), State::Running);
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
            assert_eq!(parse(text).unwrap().matches(&status), matches, "{text}");
        }
    }
}
