//! Patterns of file names: `*` and `?` in a name, `**` for any number of directories.
//!
//! As in a shell, a name that begins with a dot is found only by a pattern that does so too.

use std::path::{Path, PathBuf};

use tare_engine::files::{Listed, ListedKind};

/// The name that stands for any number of directories.
const DIRECTORIES: &str = "**";

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Pattern {
    text: String,
    is_absolute: bool,
    names: Vec<String>,
}

/// What is asked for in one directory: the rest of a pattern. It is never empty.
#[derive(Debug, Clone, Copy)]
pub struct Wanted<'a>(&'a [String]);

impl Pattern {
    /// Returns `None` for a path without wildcards.
    pub fn parse(text: &str) -> Option<Self> {
        if !is_wild(text) {
            return None;
        }
        let mut names: Vec<String> = text.split('/').map(str::to_owned).collect();
        names.retain(|name| !name.is_empty() && name != ".");
        names.dedup_by(|next, name| next == DIRECTORIES && name == DIRECTORIES);
        if names.last().is_some_and(|name| name == DIRECTORIES) {
            // `out/**` has every file at any depth.
            names.push("*".to_owned());
        }
        Some(Self { text: text.to_owned(), is_absolute: text.starts_with('/'), names })
    }

    pub fn text(&self) -> &str {
        &self.text
    }

    /// The directory in which the search begins, and what is wanted there.
    pub fn start(&self) -> (PathBuf, Wanted<'_>) {
        (PathBuf::from(if self.is_absolute { "/" } else { "" }), Wanted(&self.names))
    }
}

impl<'a> Wanted<'a> {
    /// What to look at without a list of the directory: one directory in it that has no wildcard in
    /// its name. Or, after `**`, the directory itself.
    pub fn known(self, directory: &Path) -> Option<(PathBuf, Self)> {
        match self.0 {
            [first, rest @ ..] if !rest.is_empty() && first == DIRECTORIES => {
                Some((directory.to_owned(), Wanted(rest)))
            }
            [first, rest @ ..] if !rest.is_empty() && !is_wild(first) => {
                Some((directory.join(first), Wanted(rest)))
            }
            _ => None,
        }
    }

    pub fn needs_list(self) -> bool {
        self.0.len() == 1 || self.0.first().is_some_and(|name| is_wild(name))
    }

    /// Whether an entry of the directory is a file that is wanted, or a directory to look at.
    pub fn accepts(self, entry: &Listed) -> bool {
        let Ok(name) = std::str::from_utf8(&entry.name) else {
            return false;
        };
        match (entry.kind, self.0) {
            (ListedKind::File, [last]) => matches(last, name),
            (ListedKind::Directory, [first, _, ..]) => matches(first, name),
            (ListedKind::File | ListedKind::Directory, _) => false,
            (ListedKind::Symlink | ListedKind::Other, _) => false,
        }
    }

    /// What is wanted in a directory that was accepted.
    pub fn below(self) -> Self {
        match self.0 {
            [first, rest @ ..] if first != DIRECTORIES => Wanted(rest),
            all => Wanted(all),
        }
    }
}

fn is_wild(name: &str) -> bool {
    name.contains(['*', '?'])
}

/// Whether a name matches. Takes at most the product of both lengths: a `*` is extended by one
/// character each time that the rest does not match, and only the last `*` can change.
fn matches(pattern: &str, name: &str) -> bool {
    if name.starts_with('.') && !pattern.starts_with('.') {
        return false;
    }
    let (pattern, name): (Vec<char>, Vec<char>) =
        (pattern.chars().collect(), name.chars().collect());
    let (mut at, mut in_name, mut last_star) = (0, 0, None);
    while in_name < name.len() {
        match pattern.get(at) {
            Some('*') => {
                last_star = Some((at, in_name));
                at += 1;
            }
            Some(one) if *one == '?' || *one == name[in_name] => {
                at += 1;
                in_name += 1;
            }
            Some(_) | None => match &mut last_star {
                Some((star, matched)) => {
                    *matched += 1;
                    at = *star + 1;
                    in_name = *matched;
                }
                None => return false,
            },
        }
    }
    pattern[at..].iter().all(|one| *one == '*')
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;

    #[test]
    fn a_name_matches_as_in_a_shell() {
        for (pattern, name, expected) in [
            ("*.png", "a.png", true),
            ("*.png", ".png", false),
            ("*.png", "a.png.txt", false),
            ("a*b*c", "a-b-b-c", true),
            ("a*b*c", "a-c-b", false),
            ("?", "é", true),
            ("?", "", false),
            ("**", "x", true),
            (".*", ".hidden", true),
            ("*", ".hidden", false),
            (&"*a".repeat(1000), &"a".repeat(255), false),
        ] {
            assert_eq!(matches(pattern, name), expected, "{pattern} {name}");
        }
    }

    /// The files of a small tree that a pattern finds.
    fn found(text: &str) -> Vec<String> {
        let tree = ["a.png", "out/b.png", "out/c.txt", "out/deep/er/d.png", "out/.e/f.png"];
        let pattern = Pattern::parse(text).expect("a wildcard");
        let (mut files, mut places) = (Vec::new(), vec![pattern.start()]);
        while let Some((directory, wanted)) = places.pop() {
            places.extend(wanted.known(&directory));
            let prefix = directory.join("");
            let below = tree.iter().filter_map(|path| path.strip_prefix(prefix.to_str()?));
            let entries: BTreeMap<&str, ListedKind> = below
                .map(|rest| match rest.split_once('/') {
                    Some((name, _)) => (name, ListedKind::Directory),
                    None => (rest, ListedKind::File),
                })
                .collect();
            for (name, kind) in entries.into_iter().filter(|_| wanted.needs_list()) {
                let entry =
                    Listed { kind, mode: 0, size: 0, mtime: 0, name: name.as_bytes().to_vec() };
                let path = directory.join(name);
                if !wanted.accepts(&entry) {
                    continue;
                }
                if kind == ListedKind::Directory {
                    places.push((path, wanted.below()));
                } else {
                    files.push(path.to_str().expect("text").to_owned());
                }
            }
        }
        files.sort();
        files
    }

    #[test]
    fn a_pattern_finds_files_in_its_directories_only() {
        assert_eq!(found("*.png"), ["a.png"]);
        assert_eq!(found("out/*"), ["out/b.png", "out/c.txt"]);
        assert_eq!(found("out/**"), ["out/b.png", "out/c.txt", "out/deep/er/d.png"]);
        assert_eq!(found("**/*.png"), ["a.png", "out/b.png", "out/deep/er/d.png"]);
        assert_eq!(found("**/er/?.png"), ["out/deep/er/d.png"]);
        assert_eq!(found("*/c.txt"), ["out/c.txt"]);
        assert_eq!(found("out/.e/*"), ["out/.e/f.png"]);
        assert_eq!(Pattern::parse("out/c.txt"), None);
    }
}
