//! The files of an execution: new and changed ones go into the store, and the client gets a list of
//! all.
//!
//! The archive comes from inside the box and is not trusted: names are checked, sizes are limited,
//! and everything that is not a regular file is skipped.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use serde::Serialize;
use tare_archive::{Entry, Kind, Reader};
use tare_engine::Copied;
use tare_engine::spec::defaults::HOME;

use crate::error::ServiceError;
use crate::librechat::files::name::{self, NameRule};
use crate::librechat::run::inputs::{self, SessionInput, SessionInputs};
use crate::librechat::state::LibreChat;
use crate::store::id::Id;
use crate::store::owner::Owner;
use crate::store::{Meta, NewFile, Object, Origin};
use crate::work::files::BoxFiles;

/// The store for the files, and their owner.
#[derive(Debug, Clone)]
pub struct SessionOutputs {
    pub app: LibreChat,
    pub session: Id,
    pub owner: Owner,
    pub said_by: Option<String>,
    pub files_max: usize,
}

/// The files after an execution.
#[derive(Debug, Default)]
pub struct Collected {
    pub left: Vec<LeftFile>,
    /// Names of inputs that were deleted.
    pub deleted: Vec<String>,
    pub skipped: Skipped,
    /// The number of files that could not be stored: the store or the disk is full, or failed.
    pub failed: usize,
}

#[derive(Debug)]
pub enum LeftFile {
    /// An unchanged or read-only input.
    Inherited(SessionInput),
    /// A new or changed file, which a later execution can use as an input.
    Kept(SessionInput),
}

/// Files that are not outputs because of a limit. The program chooses the names, which can be as
/// long as directories are deep, so only a limited part is kept.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Skipped {
    /// The names of the first skipped files, shortened.
    pub names: Vec<String>,
    /// The number of files for each reason.
    pub reasons: BTreeMap<SkipReason, usize>,
}

/// Why a file is not an output, in the words of clients.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum SkipReason {
    /// The execution has more outputs than `output_files`.
    MaxFiles,
    /// The file is in too many directories.
    Depth,
    /// The file is larger than `file_bytes`.
    Size,
    /// The name is too long or has characters that no output may have.
    Path,
    /// The program took the right to read the file or its directory away.
    Unreadable,
}

/// Directories whose files are never outputs.
const NOT_OUTPUTS: [&str; 2] = ["__pycache__", "node_modules"];
/// A file with this name marks a directory to keep.
const DIRECTORY_KEPT: &str = ".dirkeep";
/// The number and length of reported names of skipped files.
const SKIPPED_NAMED_MAX: usize = 20;
const SKIPPED_CHARACTERS_MAX: usize = 256;

impl SessionOutputs {
    /// The files of a failed program: none is kept, which clients tell the model.
    pub fn of_failed(inputs: &SessionInputs) -> Collected {
        Collected {
            left: inputs.values().cloned().map(LeftFile::Inherited).collect(),
            ..Collected::default()
        }
    }

    /// Collects the files of the box's data directory. A program can prevent this, for example by
    /// stopping the copy process or by locking its directory. Its output is still returned, and the
    /// missing files are reported as not delivered.
    pub fn collect(&self, files: BoxFiles<'_>, inputs: &SessionInputs) -> Collected {
        let mut collected = Collected::default();
        let mut seen = BTreeSet::new();
        let received = if files.is_home_empty {
            Ok(((), Copied::Everything))
        } else {
            files.read(Path::new(HOME), |archive| {
                self.receive(archive, inputs, &mut seen, &mut collected)
            })
        };
        let unseen = inputs.values().filter(|input| !seen.contains(&input.name));
        match received {
            Ok(((), Copied::Everything)) => {
                collected.deleted = unseen.map(|input| input.name.clone()).collect();
            }
            // An input that was not seen may be in a directory that the program made unreadable.
            Ok(((), Copied::AllBut(error))) => {
                if let Some(name) = left_out(&error).filter(|name| is_wanted(name)) {
                    collected.skip(&name, SkipReason::Unreadable);
                }
                collected.left.extend(unseen.cloned().map(LeftFile::Inherited));
            }
            Err(_) => {
                collected.failed += 1;
                collected.left.extend(unseen.cloned().map(LeftFile::Inherited));
            }
        }
        collected
    }

    fn receive(
        &self,
        archive: &mut Reader<'_>,
        inputs: &SessionInputs,
        seen: &mut BTreeSet<String>,
        collected: &mut Collected,
    ) -> Result<(), tare_archive::Error> {
        while let Some(entry) = archive.next_entry()? {
            let Some((name, size)) = candidate(&entry) else {
                continue;
            };
            if let Some(reason) = refused(&entry, &name) {
                collected.skip(&name, reason);
                continue;
            }
            let input = inputs.get(&name);
            let is_unchanged = |input: &&SessionInput| {
                let same = input.object.size == size && input.mtime == Some(entry.mtime);
                same || input.object.read_only
            };
            if let Some(input) = input.filter(is_unchanged) {
                collected.left.push(LeftFile::Inherited(input.clone()));
            } else if collected.kept() >= self.files_max {
                collected.skip(&name, SkipReason::MaxFiles);
            } else {
                self.keep(archive, name.clone(), entry.mtime, input, collected)?;
            }
            if input.is_some() {
                seen.insert(name);
            }
        }
        Ok(())
    }

    /// Stores one file. A refusal of the store is reported, and the other files are still stored.
    fn keep(
        &self,
        archive: &mut Reader<'_>,
        name: String,
        mtime: i64,
        input: Option<&SessionInput>,
        collected: &mut Collected,
    ) -> Result<(), tare_archive::Error> {
        let mut incoming = self.begin();
        loop {
            let part = archive.data()?;
            if part.is_empty() {
                break;
            }
            if let Ok(file) = &mut incoming
                && let Err(refused) = file.write(part)
            {
                incoming = Err(refused);
            }
            let count = part.len();
            archive.consume(count);
        }
        let meta = Meta {
            name: name.clone(),
            said_by: self.said_by.clone(),
            read_only: false,
            modified_from: input.map(|input| Origin {
                session: input.object.session.clone(),
                id: input.object.id.clone(),
            }),
        };
        let kept = incoming.and_then(|file| file.keep(&self.session, meta));
        match kept {
            // The program wrote the same content again.
            Ok(object) if input.is_some_and(|input| input.object.sha256 == object.sha256) => {
                self.drop_copy(&object);
                let mtime = inputs::mtime_if_usable(mtime);
                let same = input.cloned().map(|input| SessionInput { mtime, ..input });
                collected.left.extend(same.map(LeftFile::Inherited));
            }
            Ok(object) => collected.left.push(LeftFile::Kept(SessionInput {
                name,
                object,
                mtime: inputs::mtime_if_usable(mtime),
            })),
            Err(error) if error.code == "file_too_large" => {
                collected.skip(&name, SkipReason::Size);
            }
            // The store is full, or the disk.
            Err(_) => collected.failed += 1,
        }
        Ok(())
    }

    fn begin(&self) -> Result<NewFile, ServiceError> {
        self.app.files.open()?.receive(&self.owner)
    }

    /// Removes a stored copy that equals its input.
    fn drop_copy(&self, object: &Object) {
        if let Ok(store) = self.app.files.open() {
            // If this fails, the file expires later.
            store.remove(object).ok();
        }
    }
}

impl Collected {
    fn kept(&self) -> usize {
        self.left.iter().filter(|left| matches!(left, LeftFile::Kept(_))).count()
    }

    fn skip(&mut self, name: &str, reason: SkipReason) {
        let skipped = &mut self.skipped;
        *skipped.reasons.entry(reason).or_default() += 1;
        if skipped.names.len() < SKIPPED_NAMED_MAX {
            let shown = name.chars().take(SKIPPED_CHARACTERS_MAX).collect();
            skipped.names.push(shown);
        }
    }
}

/// Why a name cannot be that of an output.
fn refused(entry: &Entry, name: &str) -> Option<SkipReason> {
    let is_text = std::str::from_utf8(&entry.name).is_ok();
    if is_text && name::check(name, NameRule::Nested).is_ok() {
        None
    } else if name.split('/').count() > name::DEPTH_MAX {
        Some(SkipReason::Depth)
    } else {
        Some(SkipReason::Path)
    }
}

/// The name and size of a regular file that can be an output. The answer shows the name even if it
/// is not UTF-8.
fn candidate(entry: &Entry) -> Option<(String, u64)> {
    let Kind::File { size } = entry.kind else {
        return None;
    };
    let name = String::from_utf8_lossy(&entry.name);
    let (_top, name) = name.split_once('/')?;
    is_wanted(name).then(|| (name.to_owned(), size))
}

fn is_wanted(name: &str) -> bool {
    let is_wanted = |part: &str| {
        part == DIRECTORY_KEPT || !(part.starts_with('.') || NOT_OUTPUTS.contains(&part))
    };
    name.split('/').all(is_wanted)
}

/// The first file or directory that the copy process could not read. It reports no others, and its
/// sentence quotes the name: `cannot pack "work/a.txt": Permission denied`.
fn left_out(error: &tare_engine::Error) -> Option<String> {
    let why = std::error::Error::source(error)?.to_string();
    let (_top, name) = why.split('"').nth(1)?.split_once('/')?;
    Some(name.to_owned())
}
