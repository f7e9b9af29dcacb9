//! The files that a run returns: those that its request names, by path or by pattern.
//!
//! The archive comes from inside the box and is not trusted: its size is limited, and only regular
//! files count. A file that does not fit is reported, and the rest of the result is
//! returned.

use std::collections::BTreeSet;
use std::io::{BufRead, BufReader, Read};
use std::path::{Path, PathBuf};

use tare_archive::{Kind, Reader};
use tare_engine::files::{LISTED_BYTES_MAX, Listed, ListedKind};
use tare_engine::spec::defaults::HOME;
use tare_engine::{Context as _, Copied, Error, ErrorKind};

use crate::error::ServiceError;
use crate::work::files::BoxFiles;
use crate::work::files::pattern::Pattern;
use crate::work::files::pipe::Pipe;

/// How much of files that are not returned the server reads, to find those behind them.
const SKIPPED_BYTES_MAX: u64 = 4 << 30;
/// How many files are returned or reported as omitted, together.
const RETURNED_MAX: usize = 10_000;
/// How many directories one pattern looks at, and how many files it finds. Each takes a call into
/// the box.
const LOOKS_MAX: usize = 1000;

/// A file or directory to return, or a pattern of files.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum OutputPath {
    Path(PathBuf),
    Pattern(Pattern),
}

impl OutputPath {
    pub fn parse(text: String) -> Result<Self, ServiceError> {
        let wrong = |message: String| ServiceError::invalid("invalid_path", message);
        if text.is_empty() || text.contains('\0') {
            return Err(wrong("outputs: a path is empty or has a NUL".to_owned()));
        }
        if text.contains('[') && text.contains(['*', '?']) {
            return Err(wrong(format!("outputs: {text:?} is a pattern with a '['"))
                .with_hint("a pattern has '*', '?' and '**'"));
        }
        Ok(Pattern::parse(&text).map_or_else(|| Self::Path(PathBuf::from(text)), Self::Pattern))
    }
}

/// The files that a command left.
#[derive(Debug, Default)]
pub struct RunFiles {
    pub files: Vec<OutputFile>,
    pub omitted: Vec<OmittedFile>,
    /// The requested paths and patterns for which there is no file.
    pub missing: Vec<String>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OutputFile {
    /// Relative to the working directory if it is in there, otherwise absolute.
    pub path: String,
    pub content: Vec<u8>,
}

/// A file that is not returned because it is too large.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OmittedFile {
    pub path: String,
    /// `None` for a directory or a pattern that has more files than the server looks at.
    pub size_bytes: Option<u64>,
}

impl BoxFiles<'_> {
    /// Reads the files in `paths` that exist, and that have at most `bytes_max` together.
    pub fn collect(&self, paths: &[OutputPath], bytes_max: u64) -> Result<RunFiles, Error> {
        let mut collecting = Collecting {
            outputs: RunFiles::default(),
            known: BTreeSet::new(),
            found: 0,
            left: bytes_max,
            skip: SKIPPED_BYTES_MAX,
        };
        for path in paths {
            let (found, asked) = match path {
                OutputPath::Path(path) => {
                    (self.collect_path(path, &mut collecting)?, path.to_string_lossy())
                }
                OutputPath::Pattern(pattern) => {
                    (self.collect_pattern(pattern, &mut collecting)?, pattern.text().into())
                }
            };
            match found {
                Found::All => {}
                Found::Nothing => collecting.outputs.missing.push(asked.into_owned()),
                Found::More => {
                    let more = OmittedFile { path: asked.into_owned(), size_bytes: None };
                    collecting.outputs.omitted.push(more);
                }
            }
        }
        Ok(collecting.outputs)
    }

    fn collect_path(&self, path: &Path, collecting: &mut Collecting) -> Result<Found, Error> {
        let whole = Path::new(HOME).join(path);
        let parent = whole.parent().unwrap_or(Path::new("/"));
        let before = collecting.found;
        let mut stopped_at = None;
        let read = self.read(&whole, |archive| {
            stopped_at = collecting.receive(archive, parent)?;
            Ok(())
        });
        if let Some(found) = stopped_at {
            return Ok(found);
        }
        let is_nothing = collecting.found == before;
        match read {
            // A path that is missing or not a file has nothing to collect.
            Err(error) if error.kind() == ErrorKind::BadRequest && is_nothing => Ok(Found::Nothing),
            Err(error) => Err(error),
            Ok(((), Copied::AllBut(_))) if is_nothing => Ok(Found::Nothing),
            Ok(((), Copied::AllBut(_) | Copied::Everything)) => Ok(Found::All),
        }
    }

    fn collect_pattern(
        &self,
        pattern: &Pattern,
        collecting: &mut Collecting,
    ) -> Result<Found, Error> {
        let mut found = Found::Nothing;
        let (mut looks, mut places) = (0, vec![pattern.start()]);
        while let Some((directory, wanted)) = places.pop() {
            places.extend(wanted.known(&directory));
            if !wanted.needs_list() {
                continue;
            }
            let listed = self.list(&directory, |entry| wanted.accepts(entry))?;
            looks += 1;
            for entry in listed {
                let path = directory.join(String::from_utf8_lossy(&entry.name).as_ref());
                if looks > LOOKS_MAX {
                    return Ok(Found::More);
                }
                if entry.kind == ListedKind::Directory {
                    places.push((path, wanted.below()));
                    continue;
                }
                looks += 1;
                let shown = shown(&Path::new(HOME).join(&path));
                if entry.size > collecting.left || collecting.known.contains(&shown) {
                    collecting.omit(shown, entry.size);
                    found = Found::All;
                    continue;
                }
                match self.collect_path(&path, collecting)? {
                    Found::All => found = Found::All,
                    Found::Nothing => {}
                    Found::More => return Ok(Found::More),
                }
            }
        }
        Ok(found)
    }

    /// Returns the accepted entries of a directory, at most [`LOOKS_MAX`] and one. A directory that
    /// is missing or unreadable has none.
    fn list(
        &self,
        directory: &Path,
        accepts: impl Fn(&Listed) -> bool,
    ) -> Result<Vec<Listed>, Error> {
        let opened = self.engine.list_files(self.id, &Path::new(HOME).join(directory));
        let (stream, pending) = match opened {
            Ok(transfer) => transfer.split(),
            Err(error) if error.kind() == ErrorKind::BadRequest => return Ok(Vec::new()),
            Err(error) => return Err(error),
        };
        let failed = || format!("cannot list the files of box {}", self.id);
        let mut entries = BufReader::new(Pipe::of(&stream).context(failed)?);
        drop(stream);
        let (mut found, mut bytes) = (Vec::new(), Vec::new());
        loop {
            bytes.clear();
            let most = LISTED_BYTES_MAX as u64 + 1;
            entries.by_ref().take(most).read_until(0, &mut bytes).context(failed)?;
            let Some((0, entry)) = bytes.split_last() else {
                break;
            };
            found.extend(Listed::decode(entry).filter(|entry| accepts(entry)));
            if found.len() > LOOKS_MAX {
                return Ok(found);
            }
        }
        drop(entries);
        pending.finish()?;
        Ok(found)
    }
}

/// Whether there is a file for a requested path.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Found {
    All,
    Nothing,
    /// There are more files than the server looks at.
    More,
}

#[derive(Debug)]
struct Collecting {
    outputs: RunFiles,
    /// The paths of all files that are returned or omitted. Two outputs may name one file.
    known: BTreeSet<String>,
    /// How many files the outputs name, each as often as it is named.
    found: usize,
    /// How many bytes fit.
    left: u64,
    /// How many bytes may be skipped.
    skip: u64,
}

impl Collecting {
    /// Reads the files of an archive. Returns what it found if it did not read all of them.
    fn receive(
        &mut self,
        archive: &mut Reader<'_>,
        parent: &Path,
    ) -> Result<Option<Found>, tare_archive::Error> {
        while let Some(entry) = archive.next_entry()? {
            let Kind::File { size } = entry.kind else {
                continue;
            };
            if self.known.len() >= RETURNED_MAX {
                return Ok(Some(Found::More));
            }
            self.found += 1;
            let path = shown(&parent.join(String::from_utf8_lossy(&entry.name).as_ref()));
            if self.known.contains(&path) {
                continue;
            }
            // Names cost memory, too.
            let cost = size.saturating_add(entry.name.len() as u64);
            if let Some(left) = self.left.checked_sub(cost) {
                self.left = left;
                let content = archive.content()?;
                self.known.insert(path.clone());
                self.outputs.files.push(OutputFile { path, content });
                continue;
            }
            self.omit(path, size);
            match self.skip.checked_sub(size) {
                Some(skip) => self.skip = skip,
                None if entry.name.contains(&b'/') => return Ok(Some(Found::More)),
                // This is the requested file itself: nothing is behind it.
                None => return Ok(Some(Found::All)),
            }
        }
        Ok(None)
    }

    /// Reports a file as too large, unless an earlier output has named it.
    fn omit(&mut self, path: String, size: u64) {
        if self.known.insert(path.clone()) {
            self.outputs.omitted.push(OmittedFile { path, size_bytes: Some(size) });
        }
    }
}

fn shown(path: &Path) -> String {
    path.strip_prefix(HOME).unwrap_or(path).to_string_lossy().into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_requested_output_is_a_path_or_a_pattern() {
        let parse = |text: &str| OutputPath::parse(text.to_owned());
        assert_eq!(parse("a[1].txt").ok(), Some(OutputPath::Path("a[1].txt".into())));
        assert!(matches!(parse("out/*.png"), Ok(OutputPath::Pattern(_))));
        for wrong in ["", "a\0", "[ab]*"] {
            assert_eq!(parse(wrong).map_err(|error| error.code), Err("invalid_path"), "{wrong:?}");
        }
    }
}
