//! A box's name: a symbolic link to its id, so that taking a name and saying
//! whose it is are one step.

use rustix::fs::{CWD, readlinkat, symlinkat, unlinkat};
use rustix::io::Errno;

use crate::error::{Doing, Error, ErrorKind};
use crate::id::BoxId;
use crate::layout::Layout;
use crate::record::make_private;
use crate::spec::Name;

pub fn acquire(layout: &Layout, name: &Name, id: &BoxId) -> Result<(), Error> {
    let link = layout.names().join(name.as_str());
    let take = || symlinkat(id.as_str(), CWD, &link);
    let taken = match take() {
        Err(Errno::NOENT) => make_private(&layout.names()).and_then(|()| take()),
        other => other,
    };
    match taken {
        Err(Errno::EXIST) => Err(Error::new(
            ErrorKind::BadRequest,
            format!("the name {} is taken by another box", name.as_str()),
        )
        .with_hint("choose another --name, or let that box end first")),
        other => other.doing(|| format!("cannot take the name {}", name.as_str())),
    }
}

/// Lets go of the name if it is this box's; absent is as wanted.
pub fn release(layout: &Layout, name: &Name, id: &BoxId) -> Result<(), Error> {
    let doing = || format!("cannot release the name {}", name.as_str());
    let link = layout.names().join(name.as_str());
    match readlinkat(CWD, &link, Vec::new()) {
        Ok(holder) if holder.to_bytes() == id.as_str().as_bytes() => {
            unlinkat(CWD, &link, rustix::fs::AtFlags::empty()).doing(doing)
        }
        Ok(_) | Err(Errno::NOENT | Errno::INVAL) => Ok(()),
        Err(errno) => Err(errno).doing(doing),
    }
}
