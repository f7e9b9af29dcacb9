//! The processes of the host, and those among them that have the arguments of a keeper. Only reads.

use tare_control::KEEPER_NAME;
use tare_kernel::procfs::Procfs;

use crate::host::parallel;
use crate::host::tag::Tag;
use crate::spec::BoxId;

/// The pids of all processes; none if `/proc` cannot be read.
pub fn all_pids() -> Vec<i32> {
    let pids = Procfs::open().and_then(|procfs| procfs.pids());
    pids.unwrap_or_default()
}

/// The processes among these that have the arguments of a keeper of this state root, each with
/// its box. Arguments are only a hint: any process can choose them.
pub fn keeper_candidates(pids: &[i32], tag: &Tag) -> Vec<(BoxId, i32)> {
    let Ok(procfs) = Procfs::open() else {
        return Vec::new();
    };
    let candidates = parallel::map(pids, |pid| {
        let arguments = procfs.arguments_behind(*pid, KEEPER_NAME)?;
        Some((box_of_keeper(&arguments, tag)?, *pid))
    });
    candidates.into_iter().flatten().collect()
}

/// The last two arguments of a keeper are the tag of its state root and its box.
fn box_of_keeper(cmdline: &str, tag: &Tag) -> Option<BoxId> {
    let mut words = cmdline.split_terminator('\0');
    if words.next().map(str::as_bytes) != Some(KEEPER_NAME.to_bytes()) {
        return None;
    }
    let id = BoxId::parse(words.next_back()?)?;
    (words.next_back() == Some(tag.as_str())).then_some(id)
}
