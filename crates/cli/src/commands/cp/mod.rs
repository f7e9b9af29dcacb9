//! `tare cp`: files into and out of a box, as tar streams.
//!
//! ```text
//! into   host: pack ──▶ stream ──▶ box: unpack        (the keeper's side)
//! out    box: pack  ──▶ stream ──▶ host: unpack
//! ```
//!
//! Each side touches its own files only. What comes out of a box is hostile, and
//! is unpacked under the one name that was asked for.

use std::error::Error as StdError;
use std::ffi::OsString;
use std::fs::File;
use std::io;
use std::os::fd::BorrowedFd;
use std::path::Path;

use clap::Args;
use clap::builder::{OsStringValueParser, TypedValueParser};
use rustix::stdio::{stdin, stdout};
use rustix::termios::isatty;
use tare_engine::spec::shown::quoted;
use tare_engine::{Context as _, Copying, Engine, Error, Found};
use tare_kernel::signals;

use crate::commands::each::on_box;
use crate::context::{Context, Purpose};
use crate::error::{bad, print_error};
use crate::exit::{DONE, WRONG_USAGE};

mod host;
mod landing;
mod place;

use crate::commands::cp::host::{Destination, Source};
use crate::commands::cp::landing::{Landing, Subject, landing};
use crate::commands::cp::place::{Place, Route};

const EXAMPLES: &str = "\
Examples:
  tare cp data.csv web:/work            a file into a directory of the box
  tare cp web:/work/out ./results       a directory out of it, under a new name
  tare cp ./project/. web:/work         what is in a directory, not itself
  tare cp web:/work - | tar t           a tar stream
  tar c src | tare cp - web:/work

BOX:PATH is a path in a box, from its root. A path of the host that holds a
colon is written with a slash before it, as ./a:b. When DST is a directory, SRC
is copied into it; otherwise SRC is copied as DST, whose directory must exist.
Symlinks are copied as they are. Sockets, fifos and devices are refused by name;
what was copied before one of them stays. The box must be running; out of one that
has ended come the files that --keep has left.";

/// Copy files between the host and a box, or as a tar stream
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub struct CpArgs {
    /// BOX:PATH, a path of the host, or - for a tar stream from stdin
    #[arg(value_name = "SRC", value_parser = place(), allow_hyphen_values = true)]
    source: Place,

    /// BOX:PATH, a path of the host, or - for a tar stream to stdout
    #[arg(value_name = "DST", value_parser = place(), allow_hyphen_values = true)]
    destination: Place,
}

fn place() -> impl TypedValueParser<Value = Place> {
    OsStringValueParser::new().try_map(|text: OsString| place::parse(&text))
}

pub fn run(args: &CpArgs, context: &Context) -> Result<u8, Error> {
    let route = match place::route(&args.source, &args.destination) {
        Ok(route) => route,
        Err(error) => {
            print_error(&error);
            return Ok(WRONG_USAGE);
        }
    };
    signals::fail_past_file_limit();
    copy(&context.engine(Purpose::Use)?, &route)?;
    Ok(DONE)
}

/// What can be wrong on the host's side is found before the box is asked.
fn copy(engine: &Engine, route: &Route<'_>) -> Result<(), Error> {
    match *route {
        Route::Into { source, reference, path } => {
            let source = Source::open(source)?;
            let copying = on_box(engine, reference, |id| engine.copy_in(id, path))?;
            put(&source, path, copying)
        }
        Route::OutOf { reference, path, destination } => {
            let destination = Destination::look(destination)?;
            let copying = on_box(engine, reference, |id| engine.copy_out(id, path))?;
            get(path, &destination, copying)
        }
        Route::StreamInto { reference, path } => {
            stream_in(path, on_box(engine, reference, |id| engine.copy_in(id, path))?)
        }
        Route::StreamOutOf { reference, path } => {
            refuse_terminal()?;
            stream_out(on_box(engine, reference, |id| engine.copy_out(id, path))?)
        }
    }
}

fn put(source: &Source<'_>, path: &Path, copying: Copying) -> Result<(), Error> {
    let name = match landing(source.subject(), path, copying.found)? {
        Landing::Into { name } => name,
        Landing::As { becomes, .. } | Landing::Make { becomes } => becomes,
        Landing::Onto => ".".into(),
    };
    let mut stream = stream_of(&copying)?;
    let packed = source.pack(&mut stream, &name);
    drop(stream);
    both_sides(packed, copying, || {
        let (from, to) = (quoted(source.path()), quoted(path));
        format!("cannot copy {from} to {to} in the box")
    })
}

fn get(path: &Path, destination: &Destination<'_>, copying: Copying) -> Result<(), Error> {
    let subject = Subject::new(landing::name(path), copying.found == Found::Directory);
    let landing = landing(subject, destination.path(), destination.found())?;
    let mut stream = stream_of(&copying)?;
    let unpacked = destination.unpack(&mut stream, &landing)?;
    drop(stream);
    both_sides(unpacked, copying, || {
        let (from, to) = (quoted(path), quoted(destination.path()));
        format!("cannot copy {from} of the box to {to}")
    })
}

fn stream_in(path: &Path, copying: Copying) -> Result<(), Error> {
    if copying.found != Found::Directory {
        return Err(bad(
            format!("{} is not a directory of the box", quoted(path)),
            "name the directory that the stream is to be unpacked in",
        ));
    }
    let copied = caller_file(stdin()).and_then(|mut from| {
        let mut to = stream_of(&copying)?;
        Ok(io::copy(&mut from, &mut to))
    })?;
    both_sides(copied.map(drop), copying, || "cannot copy the stream into the box".to_owned())
}

fn stream_out(copying: Copying) -> Result<(), Error> {
    let copied = caller_file(stdout()).and_then(|mut to| {
        let mut from = stream_of(&copying)?;
        Ok(io::copy(&mut from, &mut to))
    })?;
    match copied {
        // Who reads only a part of it has what was wanted.
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(()),
        copied => both_sides(copied.map(drop), copying, || {
            "cannot copy the stream out of the box".to_owned()
        }),
    }
}

fn refuse_terminal() -> Result<(), Error> {
    if isatty(stdout()) {
        Err(bad(
            "a tar stream is nothing for a terminal",
            "send it into a file or a pipe, or name a directory instead of '-'",
        ))
    } else {
        Ok(())
    }
}

/// What failed: where one side only saw that the other one had stopped, the
/// other one says why.
fn both_sides<E: StdError + Send + Sync + 'static>(
    ours: Result<(), E>,
    copying: Copying,
    doing: impl FnOnce() -> String,
) -> Result<(), Error> {
    let theirs = copying.finish();
    match ours {
        Ok(()) => theirs,
        Err(error) if is_consequence(&error) && theirs.is_err() => theirs,
        Err(error) => Err(error).context(doing),
    }
}

/// The stream was closed by the other side, or ended too early.
fn is_consequence(error: &(dyn StdError + 'static)) -> bool {
    let as_archive = error.downcast_ref().map(tare_archive::Error::kind);
    let is_cut = as_archive == Some(tare_archive::ErrorKind::Malformed);
    let cause = error.source().unwrap_or(error);
    let as_io = cause.downcast_ref().map(io::Error::kind);
    is_cut || as_io == Some(io::ErrorKind::BrokenPipe)
}

/// The box's end, to be closed before [`Copying::finish`].
fn stream_of(copying: &Copying) -> Result<File, Error> {
    let stream = copying.stream.try_clone();
    stream.map(File::from).context(|| "cannot use the stream of the box".to_owned())
}

/// Without the buffer and the lines of `std::io::stdout`.
fn caller_file(fd: BorrowedFd<'_>) -> Result<File, Error> {
    let owned = fd.try_clone_to_owned();
    owned.map(File::from).context(|| "cannot use the caller's streams".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_side_that_only_saw_the_end_does_not_hide_the_cause() {
        assert!(is_consequence(&io::Error::from(io::ErrorKind::BrokenPipe)));
        assert!(!is_consequence(&io::Error::from(io::ErrorKind::StorageFull)));
    }
}
