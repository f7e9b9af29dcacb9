//! Acts on several boxes in turn. If one fails, tare prints its error, continues, and exits with 1
//! at the end.

use clap::Args;
use tare_engine::spec::shown::escaped;
use tare_engine::{BoxId, Engine, Error};

use crate::error::{print_error, print_result};
use crate::exit::{DONE, FAILED};

/// The boxes of a command that takes several.
#[derive(Debug, Args)]
pub struct Boxes {
    /// Ids, unique beginnings of ids, or names of boxes
    #[arg(required = true, value_name = "BOX")]
    pub boxes: Vec<String>,
}

/// Acts on a box. Errors call the box as the user typed it.
pub fn on_box<T>(
    engine: &Engine,
    reference: &str,
    act: impl FnOnce(&BoxId) -> Result<T, Error>,
) -> Result<T, Error> {
    let id = engine.find(reference)?;
    act(&id).map_err(|error| named(error, &id, reference))
}

/// Calls the box in `error` as the user typed it. A name may be the beginning of the box's id too.
pub fn named(error: Error, id: &BoxId, reference: &str) -> Error {
    error.naming(id.as_str(), reference)
}

/// Calls `act` for each box, and prints each box as the user typed it when it is done.
pub fn each(engine: &Engine, boxes: &[String], act: impl Fn(&BoxId) -> Result<(), Error>) -> u8 {
    in_turn(boxes, |reference| {
        on_box(engine, reference, &act)?;
        Ok(reference.to_owned())
    })
}

/// Prints the line that `act` returns for each box, as soon as it returns.
pub fn in_turn(boxes: &[String], mut act: impl FnMut(&str) -> Result<String, Error>) -> u8 {
    let (_, code) = gather(boxes, |reference| print_line(&act(reference)?));
    code
}

/// Prints one line, with control characters escaped.
pub fn print_line(line: &str) -> Result<(), Error> {
    print_result(&format!("{}\n", escaped(line)))
}

/// Returns the results of all boxes that succeeded, and the exit code.
pub fn gather<B, T>(
    boxes: impl IntoIterator<Item = B>,
    mut act: impl FnMut(B) -> Result<T, Error>,
) -> (Vec<T>, u8) {
    let mut code = DONE;
    let mut found = Vec::new();
    for one in boxes {
        match act(one) {
            Ok(value) => found.push(value),
            Err(error) => {
                print_error(&error);
                code = FAILED;
            }
        }
    }
    (found, code)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::sentence;

    #[test]
    fn errors_call_a_box_as_the_user_did() {
        let id = BoxId::parse("aaaabbbbcccc").unwrap();
        let error = || {
            let cause = Error::failed("box aaaabbbbcccc is busy").with_hint("is box aaaabbbbcccc?");
            Error::failed("cannot read /run/tare/boxes/aaaabbbbcccc of box aaaabbbbcccc")
                .caused_by(cause)
        };
        assert_eq!(
            sentence(&named(error(), &id, "web")),
            "cannot read /run/tare/boxes/aaaabbbbcccc of box web: box web is busy (is box web?)"
        );
        assert_eq!(
            sentence(&named(error(), &id, "a")),
            "cannot read /run/tare/boxes/aaaabbbbcccc of box a: box a is busy (is box a?)",
            "a name that is also the beginning of the id"
        );
    }

    #[test]
    fn other_boxes_are_done_after_one_fails_and_the_code_is_1() {
        let boxes = ["a", "bad", "c"].map(str::to_owned);
        let (found, code) = gather(&boxes, |reference| match reference.as_str() {
            "bad" => Err(Error::failed("a box of this test")),
            other => Ok(other.to_owned()),
        });
        assert_eq!((found, code), (vec!["a".to_owned(), "c".to_owned()], FAILED));
        assert_eq!(gather(&boxes, |_| Ok(())).1, DONE);
    }
}
