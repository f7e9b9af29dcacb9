//! `tare cp`: files into and out of a box, as tar streams.
//!
//! ```text
//! into   host: pack ──▶ stream ──▶ box: unpack        (the keeper's side)
//! out    box: pack  ──▶ stream ──▶ host: unpack
//! ```
//!
//! Each side touches only its own files. A stream out of a box may be hostile, so tare unpacks it only
//! under the name that the user gave.

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
use tare_archive::ErrorKind;
use tare_engine::spec::shown::quoted;
use tare_engine::{Context as _, Copied, Copy, Error, PathKind};
use tare_kernel::signals;

use crate::commands::each::on_box;
use crate::context::{Context, Purpose};
use crate::error::{bad, print_error};
use crate::exit::{DONE, WRONG_USAGE};

mod host;
mod target;

use crate::commands::cp::host::{Destination, Source};
use crate::commands::cp::target::{CopyPath, CopySource, CopyTarget, copy_target};

const EXAMPLES: &str = "\
Examples:
  tare cp data.csv web:/work            a file into a directory of the box
  tare cp web:/work/out ./results       a directory out of it, under a new name
  tare cp ./project/. web:/work         what is in a directory, not itself
  tare cp web:/work - | tar t           a tar stream
  tar c src | tare cp - web:/work

BOX:PATH is a path in a box, from its root. Write a host path with a colon as ./a:b,
and one that begins with a dash as ./-a.
If DST is a directory, SRC is copied into it. Otherwise SRC is copied as DST, whose
directory must exist. Symlinks are copied as symlinks. Sockets, fifos, devices and
unreadable files are left out: the rest is copied, and the exit code is 1. The box must
be running. Of a box that has ended, only the files that --keep has kept can be copied.";

/// Copy files between the host and a box, or as a tar stream
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub struct CpArgs {
    /// BOX:PATH, a path of the host, or - for a tar stream from stdin
    #[arg(value_name = "SRC", value_parser = place())]
    source: CopyPath,

    /// BOX:PATH, a path of the host, or - for a tar stream to stdout
    #[arg(value_name = "DST", value_parser = place())]
    destination: CopyPath,
}

fn place() -> impl TypedValueParser<Value = CopyPath> {
    OsStringValueParser::new().try_map(|text: OsString| target::parse(&text))
}

pub fn run(args: &CpArgs, context: &Context) -> Result<u8, Error> {
    signals::fail_past_file_limit();
    // Check the host's side before asking the box.
    match (&args.source, &args.destination) {
        (CopyPath::Host(source), CopyPath::Box { reference, path }) => {
            let source = Source::open(source)?;
            copy_in(context, reference, path, |copying| put(&source, path, copying))?;
        }
        (CopyPath::Stream, CopyPath::Box { reference, path }) => {
            copy_in(context, reference, path, |copying| stream_in(path, copying))?;
        }
        (CopyPath::Box { reference, path }, CopyPath::Host(destination)) => {
            let destination = Destination::look(destination)?;
            copy_out(context, reference, path, |copying| get(path, &destination, copying))?;
        }
        (CopyPath::Box { reference, path }, CopyPath::Stream) => {
            refuse_terminal()?;
            copy_out(context, reference, path, stream_out)?;
        }
        (CopyPath::Box { .. }, CopyPath::Box { .. }) => {
            let hint = "copy through a stream: tare cp A:/x - | tare cp - B:/y";
            return Ok(wrong_usage("SRC and DST are both in a box", hint));
        }
        (CopyPath::Host(_) | CopyPath::Stream, CopyPath::Host(_) | CopyPath::Stream) => {
            let hint = "write BOX:PATH for one of them, such as web:/work";
            return Ok(wrong_usage("neither SRC nor DST is in a box", hint));
        }
    }
    Ok(DONE)
}

fn wrong_usage(message: &str, hint: &str) -> u8 {
    print_error(&bad(message, hint));
    WRONG_USAGE
}

/// Copies into a box.
fn copy_in(
    context: &Context,
    reference: &str,
    path: &Path,
    copy: impl FnOnce(Copy) -> Result<(), Error>,
) -> Result<(), Error> {
    let engine = context.engine(Purpose::Use)?;
    on_box(&engine, reference, |id| copy(engine.copy_in(id, path)?))
}

/// Copies out of a box.
fn copy_out(
    context: &Context,
    reference: &str,
    path: &Path,
    copy: impl FnOnce(Copy) -> Result<(), Error>,
) -> Result<(), Error> {
    let engine = context.engine(Purpose::Use)?;
    on_box(&engine, reference, |id| copy(engine.copy_out(id, path)?))
}

fn put(source: &Source<'_>, path: &Path, copying: Copy) -> Result<(), Error> {
    let name = match copy_target(source.subject(), path, copying.found)? {
        CopyTarget::Into { name } => name,
        CopyTarget::Rename { to, .. } | CopyTarget::Make { becomes: to } => to,
        CopyTarget::Onto => ".".into(),
    };
    let mut stream = stream_of(&copying)?;
    let packed = source.pack(&mut stream, &name);
    drop(stream);
    both_sides(packed, copying, || {
        let (from, to) = (quoted(source.path()), quoted(path));
        format!("cannot copy {from} to {to} in the box")
    })
}

fn get(path: &Path, destination: &Destination<'_>, copying: Copy) -> Result<(), Error> {
    let subject = CopySource::new(target::name(path), copying.found == PathKind::Directory);
    let target = copy_target(subject, destination.path(), destination.found())?;
    let mut stream = stream_of(&copying)?;
    let unpacked = destination.unpack(&mut stream, &target)?;
    drop(stream);
    both_sides(unpacked, copying, || {
        let (from, to) = (quoted(path), quoted(destination.path()));
        format!("cannot copy {from} of the box to {to}")
    })
}

fn stream_in(path: &Path, copying: Copy) -> Result<(), Error> {
    if copying.found != PathKind::Directory {
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

fn stream_out(copying: Copy) -> Result<(), Error> {
    let copied = caller_file(stdout()).and_then(|mut to| {
        let mut from = stream_of(&copying)?;
        Ok(io::copy(&mut from, &mut to))
    })?;
    match copied {
        // A reader may close the pipe early. That is not an error.
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(()),
        copied => both_sides(copied.map(drop), copying, || {
            "cannot copy the stream out of the box".to_owned()
        }),
    }
}

fn refuse_terminal() -> Result<(), Error> {
    if isatty(stdout()) {
        Err(bad(
            "refusing to write a tar stream to a terminal",
            "send it into a file or a pipe, or name a directory instead of '-'",
        ))
    } else {
        Ok(())
    }
}

/// Picks the error to report. If one side only noticed that the other one had stopped, the error of
/// the other side says why.
fn both_sides<E: StdError + Send + Sync + 'static>(
    ours: Result<(), E>,
    copying: Copy,
    doing: impl FnOnce() -> String,
) -> Result<(), Error> {
    let theirs = copying.finish().and_then(Copied::everything);
    match ours {
        Ok(()) => theirs,
        Err(error) if is_consequence(&error) && theirs.is_err() => theirs,
        Err(error) if archive_kind(&error) == Some(ErrorKind::LeftOut) => {
            Err(error).context(doing).map_err(|error| error.with_hint("everything else was copied"))
        }
        Err(error) => Err(error).context(doing),
    }
}

/// Whether the other side closed the stream, or ended it too early.
fn is_consequence(error: &(dyn StdError + 'static)) -> bool {
    let is_cut = archive_kind(error) == Some(ErrorKind::Malformed);
    let cause = error.source().unwrap_or(error);
    let as_io = cause.downcast_ref().map(io::Error::kind);
    is_cut || as_io == Some(io::ErrorKind::BrokenPipe)
}

fn archive_kind(error: &(dyn StdError + 'static)) -> Option<ErrorKind> {
    error.downcast_ref().map(tare_archive::Error::kind)
}

/// Takes the box's end of the stream. Close it before [`Copy::finish`].
fn stream_of(copying: &Copy) -> Result<File, Error> {
    let stream = copying.stream.try_clone();
    stream.map(File::from).context(|| "cannot use the stream of the box".to_owned())
}

/// The caller's stream as an unbuffered file.
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
