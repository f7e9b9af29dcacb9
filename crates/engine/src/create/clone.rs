//! A keeper made by a template: an interpreter that waits, and makes a copy of itself with each box.
//!
//! ```text
//! server ── order, descriptors ──▶ template ── clone3 in new namespaces and its cgroup ──▶ K
//!        ◀────── it is in its cgroups ──────────────────────────────────────────────── K
//!        ── id maps, go ──▶ K ── fork ──▶ W (the clone)
//!                           K executes the keeper, and the template continues
//! ```
//!
//! The template is in a box without a user namespace, so that this process can map ids for K. K is a
//! child of the template's keeper, which reaps it. When the template's box ends, every box that the
//! template made ends with it: their PID namespaces are below that of the template.

use std::ffi::CString;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, poll};
use tare_control::Channel;
use tare_kernel::clock::timespec;
use tare_kernel::fds::{open_file, read_list, send_order};
use tare_kernel::process::Process;
use tare_kernel::spawn::WaitingChild;
use tare_kernel::step::{handed_down, step};
use tare_kernel::template::{BirthAnswer, BirthHead, BirthStep};

use crate::create::birth::{self, BirthOrder, CreateFailed, WaitingKeeper, write_id_maps};
use crate::error::{Context, Error};
use crate::host::Host;

/// How long a template may take to make a box. It makes one at a time.
const MADE_WITHIN: Duration = Duration::from_secs(10);

/// The two ends of a template that concern one box.
#[derive(Debug, Clone, Copy)]
pub struct FromTemplate<'a> {
    /// The socket that the template takes orders from.
    pub template: BorrowedFd<'a>,
    /// The clone's end of the socket between it and its keeper.
    pub clone: BorrowedFd<'a>,
}

/// Has the template make a keeper. It waits for its go.
pub fn keeper(
    host: &Host,
    order: &BirthOrder<'_>,
    from: FromTemplate<'_>,
) -> Result<WaitingKeeper, CreateFailed> {
    let (ours, theirs) = step("make the keeper's socket", UnixStream::pair)
        .context(|| "cannot make a control socket".into())?;
    let (go, their_go) = step("make the go of a clone", UnixStream::pair)
        .context(|| "cannot make a socket for a clone".into())?;
    let program =
        birth::program(host, order.map).context(|| "cannot open the keeper's program".into())?;
    let cgroup = order.cgroup.ok_or_else(|| cannot("this host has no cgroup v2 for it"))?;
    let mut passed = vec![their_go.as_fd(), from.clone, cgroup];
    passed.extend(order.tasks.iter().map(AsFd::as_fd));
    passed.extend(order.descriptors(theirs.as_fd()));
    passed.push(program.as_fd());
    send_order(from.template, &message(order), &passed)
        .map_err(|error| cannot("the template is gone").caused_by(error))?;
    // Now the end of the template is the end of the go.
    drop(passed);
    drop((their_go, theirs));
    let process = await_birth(&go, cgroup)?;
    if let Err(error) = write_id_maps(host, order.map, &process) {
        let error = Error::failed("cannot map the box's user ids").caused_by(error);
        let child = WaitingChild::adopted(process, go.into()).abandon();
        return Err(CreateFailed { error, child: Some(child) });
    }
    let child = WaitingChild::adopted(process, OwnedFd::from(go));
    Ok(WaitingKeeper { child, link: Channel::new(ours.into()) })
}

fn message(order: &BirthOrder<'_>) -> Vec<u8> {
    let (namespaces, joins) = (order.namespaces.flags(), order.tasks.len() as u64);
    let mut message = BirthHead { namespaces, joins }.to_bytes();
    let mut add = |words: &[CString]| {
        words.iter().for_each(|word| message.extend(word.as_bytes_with_nul()));
        message.push(0);
    };
    add(&birth::arguments(order.of));
    add(&handed_down());
    message
}

/// Waits until K is in the box's cgroup, and returns it: the only process there. What the template
/// says about its pid would prove nothing.
fn await_birth(go: &UnixStream, cgroup: BorrowedFd<'_>) -> Result<Process, Error> {
    let mut ready = [PollFd::new(go, PollFlags::IN)];
    let polled = rustix::io::retry_on_intr(|| poll(&mut ready, Some(&timespec(MADE_WITHIN))));
    if polled.context(|| "cannot wait for a template".into())? == 0 {
        return Err(cannot(format!("it took more than {} s", MADE_WITHIN.as_secs())));
    }
    let mut answer = [0; 16];
    let length = rustix::io::retry_on_intr(|| rustix::io::read(go, &mut answer));
    let length = length.map_err(|errno| cannot(errno.to_string()))?;
    match BirthAnswer::from_bytes(&answer[..length]) {
        Some(BirthAnswer { errno: 0, .. }) => {}
        Some(BirthAnswer { step, errno }) => {
            let why = io::Error::from_raw_os_error(errno);
            let is_join = step == BirthStep::Join as u32;
            let doing = if is_join { "it cannot join a cgroup" } else { "clone3 failed" };
            return Err(cannot(format!("{doing}: {why}")));
        }
        None => return Err(cannot("the template gave up")),
    }
    only_member(cgroup).map_err(|error| cannot("its process cannot be seen").caused_by(error))
}

/// Opens the only process of a cgroup, which is the first of its PID namespace.
fn only_member(cgroup: BorrowedFd<'_>) -> io::Result<Process> {
    let member = || -> io::Result<i32> {
        let text = read_list(open_file(cgroup, c"cgroup.procs")?.as_fd())?;
        text.trim().parse().map_err(io::Error::other)
    };
    let process = Process::open(member()?)?;
    // Once more: now the pidfd pins the pid.
    if member()? == process.pid() && process.is_first_of_namespace()? {
        Ok(process)
    } else {
        Err(io::ErrorKind::InvalidData.into())
    }
}

fn cannot(why: impl Into<String>) -> Error {
    Error::failed("cannot make a box from a template").caused_by(why.into())
}
