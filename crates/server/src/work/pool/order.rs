//! The order for an interpreter that waits: what `python.py` and `node.js` in this folder read.
//!
//! An order is its length in 16 hexadecimal digits, then words. A word is its length in decimal, a
//! newline and its bytes. A list is a word with its length, and its words.

use std::os::unix::ffi::OsStrExt;

use tare_engine::spec::command::Variable;

use crate::work::files::{Content, InputFile};

/// Files that are not larger than this together travel with the order. Every scratch space has room
/// for them.
const INLINE_BYTES_MAX: usize = 32 << 10;

/// What an interpreter is to run.
pub struct Order<'a> {
    pub has_input: bool,
    /// The path of the program, and its arguments.
    pub arguments: &'a [String],
    /// Variables in addition to those that the interpreter was started with.
    pub env: &'a [Variable],
    /// Files that the interpreter writes before it runs the program.
    pub files: &'a [InputFile],
}

/// More files than this can need more inodes than a small scratch space has.
const INLINE_FILES_MAX: usize = 8;

/// Returns whether files can travel with the order. Files that an interpreter could fail to write do not:
/// that is an error of the request, and not of its program.
pub fn are_inline(files: &[InputFile]) -> bool {
    const NAME_BYTES_MAX: usize = 255;
    // A program can write there in every box.
    let can_be_written = |file: &InputFile| {
        let mut names = file.path.split('/');
        ["work/", "mnt/data/"].iter().any(|begin| file.path.starts_with(begin))
            && names.clone().count() <= 4
            && names.all(|name| name.len() <= NAME_BYTES_MAX)
    };
    let is_directory = |file: &InputFile| {
        let below = format!("{}/", file.path);
        files.iter().any(|other| other.path.starts_with(&below))
    };
    if files.len() > INLINE_FILES_MAX
        || !files.iter().all(|it| can_be_written(it) && !is_directory(it))
    {
        return false;
    }
    let sizes = files.iter().map(|file| match &file.content {
        Content::Bytes(bytes) => bytes.len(),
        Content::File { .. } => usize::MAX,
    });
    sizes.fold(0, usize::saturating_add) <= INLINE_BYTES_MAX
}

impl Order<'_> {
    pub fn encode(&self) -> Vec<u8> {
        let mut words = Words::default();
        words.add(if self.has_input { b"1" } else { b"0" });
        words.begin_list(self.arguments.len());
        self.arguments.iter().for_each(|word| words.add(word.as_bytes()));
        words.begin_list(2 * self.env.len());
        for (key, value) in self.env {
            words.add(key.as_bytes());
            words.add(value.as_bytes());
        }
        words.begin_list(3 * self.files.len());
        for file in self.files {
            words.add(format!("/{}", file.path).as_bytes());
            words.add(file.mtime.to_string().as_bytes());
            match &file.content {
                Content::Bytes(bytes) => words.add(bytes),
                Content::File { .. } => words.add(b""),
            }
        }
        let mut order = format!("{:016x}", words.0.len()).into_bytes();
        order.extend(words.0);
        order
    }
}

#[derive(Default)]
struct Words(Vec<u8>);

impl Words {
    fn add(&mut self, word: &[u8]) {
        self.0.extend(format!("{}\n", word.len()).into_bytes());
        self.0.extend(word);
    }

    fn begin_list(&mut self, length: usize) {
        self.add(length.to_string().as_bytes());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_order_says_the_length_of_every_part() {
        let file =
            InputFile { path: "work/a".into(), mtime: 7, content: Content::Bytes(b"x\n".into()) };
        let order = Order {
            has_input: true,
            arguments: &["/work/a".to_owned()],
            env: &[("K".into(), "v=1".into())],
            files: std::slice::from_ref(&file),
        };
        let text = String::from_utf8(order.encode()).expect("a text");
        let body = "1\n11\n17\n/work/a1\n21\nK3\nv=11\n37\n/work/a1\n72\nx\n";
        assert_eq!(text, format!("{:016x}{body}", body.len()));
        assert!(are_inline(&[file]));
    }

    #[test]
    fn files_that_an_interpreter_could_fail_to_write_do_not_travel_with_the_order() {
        let file = |path: &str| {
            let content = Content::Bytes(b"x".into());
            InputFile { path: path.into(), mtime: 7, content }
        };
        assert!(are_inline(&[file("work/a"), file("mnt/data/b/c"), file("work/ab")]));
        let long = format!("work/{}", "a".repeat(256));
        for files in [vec!["work/a", "work/a/b"], vec!["usr/a"], vec![&long], vec!["work/b/c/d/e"]]
        {
            assert!(
                !are_inline(&files.iter().map(|path| file(path)).collect::<Vec<_>>()),
                "{files:?}"
            );
        }
        assert!(!are_inline(
            &(0..9).map(|number| file(&format!("work/{number}"))).collect::<Vec<_>>()
        ));
    }
}
