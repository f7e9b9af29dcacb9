//! The engine: boxes on one state root. Making one is made of named steps, and
//! whatever fails after the record exists goes through the one way out.
//!
//! ```text
//! record ─▶ name ─▶ uid range ─▶ cgroups ─▶ trees ─▶ keeper ─▶ plan
//!                                                      │ (makes the box)
//!                          identity on record ─▶ go ───┴─▶ command
//! ```

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::PathBuf;

use rustix::fs::{CWD, Gid, Mode, OFlags, Uid, fchown, openat};
use rustix::pipe::{PipeFlags, pipe_with};
use tare_control::Request;
use tare_kernel::cgroup::Cgroup;
use tare_kernel::spawn::Spawned;

use crate::attached::{Attached, Streams};
use crate::error::{Doing, Error, ErrorKind};
use crate::holdings::cgroup::{self, CgroupHolding};
use crate::holdings::{name, uids};
use crate::host::Host;
use crate::id::BoxId;
use crate::keeper::{self, IdMap, Inheritance, Unmade, Waiting};
use crate::layout::Layout;
use crate::plan::{self, Trees};
use crate::record::{self, KeeperIdentity, Record};
use crate::spec::{Isolation, Network, Spec, Terminal};
use crate::teardown;
use crate::trees::{self, Mapping};

/// What the command's descriptor 0 is, when it has no terminal.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Stdin {
    /// At end of file from the start.
    Empty,
    /// A pipe whose other end is in [`Streams`].
    Pipe,
}

#[derive(Debug)]
pub struct Engine {
    layout: Layout,
    host: Host,
}

impl Engine {
    /// Opens a state root, making it if need be; `None` for the default one.
    /// Boxes whose creator is gone are ended on the way.
    pub fn open(state_root: Option<PathBuf>) -> Result<Self, Error> {
        let host = Host::probe();
        let runtime = std::env::var_os("XDG_RUNTIME_DIR").map(PathBuf::from);
        let root = state_root.unwrap_or_else(|| Layout::default_root(host.uid, runtime));
        let layout = Layout::new(root);
        record::prepare_state_root(&layout)?;
        for (id, record) in record::abandoned(&layout) {
            // What cannot be ended now stays on record and is tried again.
            teardown::abandoned(&layout, &host, &id, record).ok();
        }
        Ok(Self { layout, host })
    }

    /// Makes a box whose life hangs on the returned value and on this process.
    pub fn run(&self, spec: &Spec, stdin: Stdin) -> Result<Attached, Error> {
        let id = BoxId::random();
        let reserve = Reserve::take().doing(|| "cannot reserve descriptors".into())?;
        let record = Record::create(&self.layout, &id, &self.host, spec)?;
        match self.make(spec, stdin, &id, &record) {
            Ok(made) => Ok(Attached::new(
                self.layout.clone(),
                self.host.clone(),
                id,
                record,
                made,
                reserve,
            )),
            Err(Unmade { error, keeper }) => {
                drop(reserve);
                self.unmake(&id, record, keeper.as_ref())?;
                Err(error)
            }
        }
    }

    fn unmake(&self, id: &BoxId, record: Record, keeper: Option<&Spawned>) -> Result<(), Error> {
        match keeper {
            Some(keeper) => {
                teardown::attached(&self.layout, &self.host, id, record, &keeper.process)
            }
            None => teardown::abandoned(&self.layout, &self.host, id, record),
        }
    }

    fn make(&self, spec: &Spec, stdin: Stdin, id: &BoxId, record: &Record) -> Result<Made, Unmade> {
        if let Some(wanted) = &spec.name {
            name::acquire(&self.layout, wanted, id)?;
        }
        let range = uids::acquire(&self.layout)?;
        let map = self.id_map(spec, range.first);
        let mut cgroups = cgroup::acquire(&self.host, id, &spec.limits)?;
        let trees = self.trees(spec, map)?;
        let stdio = Stdio::make(spec, stdin, owner(spec, map))
            .doing(|| "cannot make pipes for the command".into())?;
        let mounts = trees.root.iter().chain(&trees.volumes);
        let inheritance = Inheritance {
            stdio: stdio.theirs(),
            claim: range.claim.as_fd(),
            trees: mounts
                .filter_map(|tree| tree.mount.as_ref().map(AsFd::as_fd))
                .collect(),
            unified: cgroups.unified.as_ref(),
            join: &cgroups.join,
        };
        let Waiting { newborn, control } = keeper::bear(spec, &self.host, map, &inheritance)?;
        let spawned = newborn.go();
        cgroups.join.clear();
        let plan = plan::plan(spec, id, &self.host, &cgroups, &trees);
        let made = Made {
            keeper: spawned,
            control,
            notes: self.notes(spec, &cgroups),
            cgroups,
            _claim: range.claim,
            streams: stdio.ours,
            deadline_ns: plan.deadline_ns,
        };
        match keeper::send_plan(&made.control, &plan) {
            Err(error) if error.kind() == ErrorKind::BadRequest => {
                return Err(Unmade::with(error, made.keeper));
            }
            // A keeper that is gone has said why, or its death will.
            Ok(()) | Err(_) => {}
        }
        match self.commit(record, &made) {
            Ok(()) => Ok(made),
            Err(error) => Err(Unmade::with(error, made.keeper)),
        }
    }

    fn id_map(&self, spec: &Spec, first: u32) -> IdMap {
        match (spec.isolation, self.host.is_privileged()) {
            (Isolation::Full, true) => IdMap::Range { first },
            (Isolation::Contain, true) => IdMap::Host,
            (Isolation::Full, false) => IdMap::Single {
                uid: spec.user.uid,
                gid: spec.user.gid,
            },
            (Isolation::Contain, false) => IdMap::Single {
                uid: self.host.uid,
                gid: self.host.gid,
            },
        }
    }

    fn trees(&self, spec: &Spec, map: IdMap) -> Result<Trees, Error> {
        let mapping = match map {
            IdMap::Range { first } => Mapping::Range {
                first,
                user: spec.user,
            },
            IdMap::Host | IdMap::Single { .. } => Mapping::Own,
        };
        let state_root = self.layout.root();
        let root = plan::wants_root_tree(spec).map(|path| trees::root(path, state_root, mapping));
        let volumes = spec
            .volumes
            .iter()
            .map(|volume| trees::volume(volume, state_root, mapping));
        Ok(Trees {
            root: root.transpose()?,
            volumes: volumes.collect::<Result<_, _>>()?,
        })
    }

    /// The keeper makes its box meanwhile, which dies with it; the command
    /// starts only after its identity is on record.
    fn commit(&self, record: &Record, made: &Made) -> Result<(), Error> {
        let doing = || "cannot record the keeper's identity".to_owned();
        let process = &made.keeper.process;
        let cgroup_inode = made.cgroups.unified.as_ref().map(Cgroup::inode);
        let identity = KeeperIdentity {
            boot_id: self.host.boot_id.clone(),
            pid: process.pid(),
            pidfd_inode: process.inode().doing(doing)?,
            cgroup_inode: cgroup_inode.transpose().doing(doing)?,
        };
        record.write_identity(&identity).doing(doing)?;
        keeper::send_request(&made.control, &Request::Go).ok();
        Ok(())
    }

    fn notes(&self, spec: &Spec, cgroups: &CgroupHolding) -> Vec<String> {
        let mut notes = Vec::new();
        if !cgroups.memory_enforced {
            notes.push(
                "no writable cgroup here: the default limits on memory and processes hold for \
                 each process and user, not for the box as a whole"
                    .to_owned(),
            );
        }
        if spec.isolation == Isolation::Full && !self.host.is_privileged() {
            notes.push(
                "running without privileges: the box's one user is you on the host, not a range \
                 of its own"
                    .to_owned(),
            );
        }
        if spec.isolation == Isolation::Full && spec.network == Network::Host {
            notes.push(
                "the box is on the host's network: it reaches what listens on this host, and \
                 what listens in it is reached from there"
                    .to_owned(),
            );
        }
        notes
    }
}

/// Everything of a box that runs.
#[derive(Debug)]
pub struct Made {
    pub keeper: Spawned,
    pub control: std::os::unix::net::UnixStream,
    pub cgroups: CgroupHolding,
    /// Held until the box was seen gone: its uids are not reused before.
    pub _claim: OwnedFd,
    pub streams: Streams,
    /// On the boot clock, as the keeper knows it.
    pub deadline_ns: Option<u64>,
    pub notes: Vec<String>,
}

/// Descriptors for the way out, which must be open to a process that has used
/// up all of its own: as many as teardown has open at once.
#[derive(Debug)]
pub struct Reserve {
    _spare: [OwnedFd; 4],
}

impl Reserve {
    fn take() -> std::io::Result<Self> {
        Ok(Self {
            _spare: [null()?, null()?, null()?, null()?],
        })
    }
}

/// Both ends of the command's standard streams.
#[derive(Debug)]
struct Stdio {
    stdin: OwnedFd,
    stdout: OwnedFd,
    stderr: OwnedFd,
    ours: Streams,
}

impl Stdio {
    fn make(spec: &Spec, stdin: Stdin, owner: Owner) -> std::io::Result<Self> {
        if let Terminal::Pty { .. } = spec.terminal {
            return Self::nothing();
        }
        let (input, our_input) = match stdin {
            Stdin::Empty => (null()?, None),
            Stdin::Pipe => {
                let (read, write) = pipe_of(owner)?;
                (read, Some(write))
            }
        };
        let (our_output, output) = pipe_of(owner)?;
        let (our_errors, errors) = pipe_of(owner)?;
        Ok(Self {
            stdin: input,
            stdout: output,
            stderr: errors,
            ours: Streams {
                stdin: our_input,
                stdout: Some(our_output),
                stderr: Some(our_errors),
            },
        })
    }

    /// With a terminal the keeper opens the streams itself.
    fn nothing() -> std::io::Result<Self> {
        Ok(Self {
            stdin: null()?,
            stdout: null()?,
            stderr: null()?,
            ours: Streams::default(),
        })
    }

    fn theirs(&self) -> [BorrowedFd<'_>; 3] {
        [self.stdin.as_fd(), self.stdout.as_fd(), self.stderr.as_fd()]
    }
}

/// Who a pipe is given to; `None` leaves it to whoever made it.
type Owner = Option<(Uid, Gid)>;

/// The command's user on the host, where that is somebody else than we are.
fn owner(spec: &Spec, map: IdMap) -> Owner {
    match map {
        IdMap::Range { first } => Some((
            Uid::from_raw(first + spec.user.uid),
            Gid::from_raw(first + spec.user.gid),
        )),
        IdMap::Host | IdMap::Single { .. } => None,
    }
}

/// A pipe whose owner can open it again by name: programs do so with
/// `/dev/stdout`, and a pipe of root's would refuse them.
fn pipe_of(owner: Owner) -> std::io::Result<(OwnedFd, OwnedFd)> {
    let (read, write) = pipe_with(PipeFlags::CLOEXEC)?;
    if let Some((uid, gid)) = owner {
        fchown(&read, Some(uid), Some(gid))?;
    }
    Ok((read, write))
}

fn null() -> std::io::Result<OwnedFd> {
    Ok(openat(
        CWD,
        c"/dev/null",
        OFlags::RDWR | OFlags::CLOEXEC,
        Mode::empty(),
    )?)
}
