//! What `execve` will be given: the command and its environment together.

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt;

use crate::error::Error;
use crate::spec::env::Pair;
use crate::spec::received::bad;

/// The kernel gives arguments and environment a quarter of the stack's limit
/// (execve(2)): 2 MiB of the 8 MiB that a box has.
pub const ARGUMENTS_BYTES_MAX: usize = 2 << 20;
/// The kernel's `MAX_ARG_STRLEN`, its terminating NUL included.
pub const ARGUMENT_BYTES_MAX: usize = 128 << 10;
/// A string costs its NUL and a pointer too.
const OVERHEAD_BYTES: usize = 1 + size_of::<usize>();

/// That no program is an empty word, no NUL anywhere, and that it all fits.
pub fn check(command: &[OsString], env: &[Pair]) -> Result<(), Error> {
    if command.first().is_some_and(|program| program.is_empty()) {
        return Err(bad("the command is an empty word", "name a program to run"));
    }
    if command.iter().any(|word| word.as_bytes().contains(&0)) {
        return Err(bad(
            "the command has a NUL byte in it",
            "no program can be given one as an argument; pass it on standard input",
        ));
    }
    check_size(command, env)
}

fn check_size(command: &[OsString], env: &[Pair]) -> Result<(), Error> {
    let words = command.iter().map(|word| length(word));
    let pairs = env.iter().map(|(key, value)| length(key) + 1 + length(value));
    let mut total = 0_usize;
    for bytes in words.chain(pairs) {
        if bytes >= ARGUMENT_BYTES_MAX {
            return Err(too_large(format!(
                "an argument or variable of {bytes} bytes is too large, the kernel takes less than 128 KiB"
            )));
        }
        total = total.saturating_add(bytes + OVERHEAD_BYTES);
    }
    if total > ARGUMENTS_BYTES_MAX {
        return Err(too_large(format!(
            "the arguments and environment are too large: {total} bytes, the kernel takes 2 MiB"
        )));
    }
    Ok(())
}

fn too_large(message: String) -> Error {
    bad(message, "pass large values in a file or on standard input")
}

fn length(text: &OsStr) -> usize {
    text.as_bytes().len()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(words: &[&str]) -> Vec<OsString> {
        words.iter().map(OsString::from).collect()
    }

    fn refusal(command: &[OsString], env: &[Pair]) -> String {
        check(command, env).unwrap_err().to_string()
    }

    /// B034
    #[test]
    fn a_command_needs_a_program_and_no_nul() {
        assert!(refusal(&words(&["", "x"]), &[]).contains("empty word"));
        assert!(refusal(&words(&["sh", "a\0b"]), &[]).contains("NUL"));
        assert!(check(&words(&["sh", "", "$(x) 'y'"]), &[]).is_ok());
    }

    /// B034
    #[test]
    fn a_hundred_thousand_arguments_fit_or_are_refused_by_their_size() {
        let mut many = vec![OsString::from("x"); 100_000];
        assert!(check(&many, &[]).is_ok());
        many.resize(300_000, "x".into());
        assert!(refusal(&many, &[]).contains("too large"));
    }

    /// B033
    #[test]
    fn an_environment_of_three_megabytes_is_refused() {
        let value: OsString = "v".repeat(100_000).into();
        let env: Vec<Pair> = (0..30).map(|n| (format!("K{n}").into(), value.clone())).collect();
        assert!(refusal(&words(&["true"]), &env).contains("2 MiB"));
        let one = [("K".into(), "v".repeat(ARGUMENT_BYTES_MAX).into())];
        assert!(refusal(&words(&["true"]), &one).contains("128 KiB"));
    }
}
