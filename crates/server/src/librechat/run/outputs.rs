//! What an execution has left among its files: new ones and changed ones go into the
//! store, whoever asked learns of all that is there.
//!
//! The archive comes from inside the box and is not trusted: names are checked, sizes
//! are bounded, and whatever is no plain file is left where it is.

use std::collections::BTreeSet;
use std::io::Read;
use std::path::Path;

use tare_archive::{Entry, Kind, Reader};
use tare_engine::spec::defaults::HOME;
use tare_engine::{BoxId, Context as _, Engine, Error};

use crate::app::App;
use crate::error::ServiceError;
use crate::librechat::files::name::{self, Form};
use crate::librechat::run::inputs::{self, Input, Inputs};
use crate::store::id::Id;
use crate::store::owner::Owner;
use crate::store::{Meta, NewFile, Object, Origin};
use crate::work::pipe::Pipe;

/// Where they go, and whose they are.
#[derive(Debug, Clone)]
pub struct Outputs {
    pub app: App,
    pub session: Id,
    pub owner: Owner,
    pub said_by: Option<String>,
    pub files_max: usize,
}

/// What is there after an execution.
#[derive(Debug, Default)]
pub struct Collected {
    pub left: Vec<Left>,
    /// Names of inputs that are not there any more.
    pub deleted: Vec<String>,
    pub skipped: Skipped,
    /// What could not be kept, though it might have been.
    pub failed: usize,
}

#[derive(Debug)]
pub enum Left {
    /// As it came, or read-only.
    Inherited(Input),
    /// New or changed; the same as an input for whoever goes on with it.
    Kept(Input),
}

/// Files that are too many, too large, or have a name that cannot be. The names are the
/// program's own, and may be as long as paths can be deep: only so much is kept of them.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Skipped {
    /// The first of them, as far as they can be shown.
    pub names: Vec<String>,
    pub reasons: BTreeSet<&'static str>,
    pub count: usize,
}

/// Of files that nobody asked for.
const NOT_OUTPUTS: [&str; 2] = ["__pycache__", "node_modules"];
/// A file with this name stands for a directory that is kept.
const DIRECTORY_KEPT: &str = ".dirkeep";
/// Names that are told of those that were skipped, and what of each.
const SKIPPED_NAMED_MAX: usize = 20;
const SKIPPED_CHARACTERS_MAX: usize = 256;

impl Outputs {
    /// Of a program that failed nothing is kept: clients say so to the model.
    pub fn of_failed(inputs: &Inputs) -> Collected {
        Collected {
            left: inputs.values().cloned().map(Left::Inherited).collect(),
            ..Collected::default()
        }
    }

    /// Whatever is in the box's data. A program that is in the way of this, as one that
    /// stops what copies or shuts its own directory, has still said what it said: what
    /// could not be had is told as not delivered.
    pub fn collect(&self, engine: &Engine, id: &BoxId, inputs: &Inputs) -> Collected {
        let mut collected = Collected::default();
        let mut seen = BTreeSet::new();
        let received = self.receive_all(engine, id, inputs, &mut seen, &mut collected);
        let unseen = inputs.values().filter(|input| !seen.contains(&input.name));
        match received {
            Ok(()) => collected.deleted = unseen.map(|input| input.name.clone()).collect(),
            Err(_) => {
                collected.failed += 1;
                collected.left.extend(unseen.cloned().map(Left::Inherited));
            }
        }
        collected
    }

    fn receive_all(
        &self,
        engine: &Engine,
        id: &BoxId,
        inputs: &Inputs,
        seen: &mut BTreeSet<String>,
        collected: &mut Collected,
    ) -> Result<(), Error> {
        let copying = engine.copy_files_out(id, Path::new(HOME))?;
        let mut stream = Pipe::of(&copying.stream).context(|| "cannot receive files".into())?;
        let received = self.receive(&mut stream, inputs, seen, collected);
        drop(stream);
        // What the box says of it is more telling than a pipe that closed.
        copying.finish()?;
        received.context(|| format!("cannot read the files of box {id}"))
    }

    fn receive(
        &self,
        stream: &mut dyn Read,
        inputs: &Inputs,
        seen: &mut BTreeSet<String>,
        collected: &mut Collected,
    ) -> Result<(), tare_archive::Error> {
        let mut archive = Reader::new(stream);
        while let Some(entry) = archive.next_entry()? {
            let Some((name, size)) = candidate(&entry) else {
                continue;
            };
            let is_text = std::str::from_utf8(&entry.name).is_ok();
            if !is_text || name::check(&name, Form::Nested).is_err() {
                collected.skip(&name, "invalid_name");
                continue;
            }
            let input = inputs.get(&name);
            let is_as_it_came = |input: &&Input| {
                let same = input.object.size == size && input.mtime == Some(entry.mtime);
                same || input.object.read_only
            };
            if let Some(input) = input.filter(is_as_it_came) {
                collected.left.push(Left::Inherited(input.clone()));
            } else if collected.kept() >= self.files_max {
                collected.skip(&name, "too_many_files");
            } else {
                self.keep(&mut archive, name.clone(), entry.mtime, input, collected)?;
            }
            if input.is_some() {
                seen.insert(name);
            }
        }
        Ok(())
    }

    /// One file. What the store refuses is told; the others are kept all the same.
    fn keep(
        &self,
        archive: &mut Reader<'_>,
        name: String,
        mtime: i64,
        input: Option<&Input>,
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
            // Written again as it was.
            Ok(object) if input.is_some_and(|input| input.object.sha256 == object.sha256) => {
                self.drop_copy(&object);
                let mtime = inputs::telling(mtime);
                let same = input.cloned().map(|input| Input { mtime, ..input });
                collected.left.extend(same.map(Left::Inherited));
            }
            Ok(object) => collected.left.push(Left::Kept(Input {
                name,
                object,
                mtime: inputs::telling(mtime),
            })),
            Err(error) => match error.code {
                "file_too_large" => collected.skip(&name, "file_too_large"),
                "owner_full" | "session_full" | "store_full" => {
                    collected.skip(&name, "quota_exceeded");
                }
                _ => collected.failed += 1,
            },
        }
        Ok(())
    }

    fn begin(&self) -> Result<NewFile, ServiceError> {
        self.app.files.open()?.receive(&self.owner)
    }

    /// What is the same as before is not there twice.
    fn drop_copy(&self, object: &Object) {
        if let Ok(store) = self.app.files.open() {
            // What stays of it is over its time some day.
            store.remove(object).ok();
        }
    }
}

impl Collected {
    fn kept(&self) -> usize {
        self.left.iter().filter(|left| matches!(left, Left::Kept(_))).count()
    }

    fn skip(&mut self, name: &str, reason: &'static str) {
        let skipped = &mut self.skipped;
        skipped.count += 1;
        skipped.reasons.insert(reason);
        if skipped.names.len() < SKIPPED_NAMED_MAX {
            let shown = name.chars().take(SKIPPED_CHARACTERS_MAX).collect();
            skipped.names.push(shown);
        }
    }
}

/// The name and size of a regular file that the client may want. The answer can show the
/// name even where it is not UTF-8.
fn candidate(entry: &Entry) -> Option<(String, u64)> {
    let Kind::File { size } = entry.kind else {
        return None;
    };
    let name = String::from_utf8_lossy(&entry.name);
    let (_top, name) = name.split_once('/')?;
    let is_wanted = |part: &str| {
        part == DIRECTORY_KEPT || !(part.starts_with('.') || NOT_OUTPUTS.contains(&part))
    };
    name.split('/').all(is_wanted).then(|| (name.to_owned(), size))
}
