//! The engine: boxes on one state root. Every command and every server opens it. The methods of
//! [`Engine`] are the public interface; each calls a function of the folder that does the work.

use std::fs::File;
use std::os::fd::BorrowedFd;
use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use tare_kernel::process::{Process, check_proc};

use crate::actor::Actor;
use crate::audit::{self, Audit, RemovedSince};
use crate::care::sweep::{self, Swept};
use crate::care::tend;
use crate::create::detach::Started;
use crate::create::{self, Mode, NewBox, Prepared, TemplateOf, detach, machine, warm};
use crate::error::{Context, Error};
use crate::gauge::{GaugeSettings, Gauges};
use crate::history::{self, Explanation, RemovedBox};
use crate::holdings::cgroup;
use crate::host::cgroups::CgroupParent;
use crate::host::layout::{BoxAt, Layout, OnReclaimed, OpenSegment, RootAccess, StateRoot};
use crate::host::state_root;
use crate::host::tag::Tag;
use crate::host::{BOOT_ID, Host};
use crate::observe::Observation;
use crate::observe::view::{Details, End, GaugedUse, Status, Usage, no_box};
use crate::operate::change::{self, Changes};
use crate::operate::find::Scope;
use crate::operate::stop::{self, EndWatch, Looked, Stopping};
use crate::operate::{find, inspect};
use crate::receipt::Receipt;
use crate::session::attach::Attachment;
use crate::session::exec::ExecSpec;
use crate::session::files::{Copy, FileTransfer};
use crate::session::logs::Logs;
use crate::session::stdio::Stdin;
use crate::session::{Session, attach, exec, files};
use crate::spec::{BoxId, DetachOptions, Limits, MachineSpec, Name, Spec, Tenant};
use crate::teardown::OWN_WITHIN;
use crate::time::Timestamp;
use crate::vm::{CurrentSettings, MachinePart, MachineSettings};

/// How long one attempt of a server to end a box may hold a thread. A task waits for a box that takes
/// longer, and the server tries again.
const SERVED_WITHIN: Duration = Duration::from_secs(1);

/// The boxes of one state root.
#[derive(Debug)]
pub struct Engine {
    pub(crate) root: StateRoot,
    /// How long an attempt to end a box may hold the thread that makes it.
    end_within: Duration,
    /// Boxes that were removed while this was opened, or while the first box was made.
    cleaned: OnceLock<Vec<BoxId>>,
}

/// What a process does with an engine. This decides when it cleans up after other boxes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Purpose {
    /// Uses boxes: cleans up first.
    Use,
    /// Creates or ends a box: cleans up while the keeper works, or after the named box was found.
    CreateOrEnd,
    /// Reads only: makes and changes nothing. A state root that does not exist has no boxes.
    Look,
    /// Sweeps: does nothing else, and makes nothing where there is nothing to sweep.
    Sweep,
    /// Serves requests: cleans up only in sweeps, and must not wait for one box for long.
    Serve,
}

impl Engine {
    // Opening a state root; `None` is the default one.

    pub fn open(state_root: Option<PathBuf>, purpose: Purpose) -> Result<Self, Error> {
        let access = match purpose {
            Purpose::Look => RootAccess::ReadOnly,
            Purpose::Use | Purpose::CreateOrEnd | Purpose::Sweep | Purpose::Serve => {
                RootAccess::ReadWrite
            }
        };
        let mut engine = Self::new(state_root, access)?;
        match purpose {
            Purpose::Look | Purpose::Sweep => state_root::inspect(&engine.root.layout)?,
            Purpose::Use | Purpose::CreateOrEnd | Purpose::Serve => {
                state_root::prepare(&engine.root.layout)?;
            }
        }
        match purpose {
            Purpose::Use => engine.tend_once(),
            Purpose::CreateOrEnd => {}
            Purpose::Look | Purpose::Sweep | Purpose::Serve => {
                engine.cleaned = OnceLock::from(Vec::new());
            }
        }
        if purpose == Purpose::Serve {
            // Now, because a server may have no descriptor left when it first needs them.
            engine.root.host.open_cgroups.open();
            engine.end_within = SERVED_WITHIN;
            engine.root.creator = Actor::server();
        }
        Ok(engine)
    }

    /// Calls `report` for every box that was left behind and that this engine has removed. It must
    /// not wait.
    pub fn on_reclaimed(
        mut self,
        report: impl Fn(&BoxId, &[String]) + Send + Sync + 'static,
    ) -> Self {
        self.root.on_reclaimed = OnReclaimed(Some(Arc::new(report)));
        self
    }

    /// Makes boxes below this cgroup: detached ones, and attached ones that cannot have limits below
    /// the cgroup of this process. Fails if boxes cannot be made there.
    pub fn below(mut self, parent: CgroupParent) -> Result<Self, Error> {
        self.root.cgroup_parent = Some(parent);
        cgroup::check_parent(&self.root, &self.root.parents_of_detached())?;
        Ok(self)
    }

    /// Makes boxes in machines too, with these settings from now on.
    pub fn set_machines(&self, settings: MachineSettings) {
        self.root.machines.set(settings);
    }

    /// Checks that machines can be made on this host, or says which part of them cannot be used.
    pub fn check_machines(
        settings: &MachineSettings,
        wanted: &MachineSpec,
    ) -> Result<(), (MachinePart, Error)> {
        machine::check_host(settings, wanted, &Host::probe())
    }

    fn new(state_root: Option<PathBuf>, access: RootAccess) -> Result<Self, Error> {
        let host = Host::probe();
        if host.boot_id.is_empty() {
            // Without it, every box would look like one of an earlier boot, which has ended.
            let message = "cannot tell which boot of the host this is";
            let error = Error::failed(message).with_hint("is /proc mounted?");
            return Err(match File::open(BOOT_ID) {
                Err(why) => error.caused_by(why),
                Ok(_) => error,
            });
        }
        check_proc().map_err(|why| {
            Error::failed("cannot identify processes: /proc is not usable")
                .caused_by(why)
                .with_hint("mount /proc for this PID namespace: mount -t proc proc /proc")
        })?;
        let runtime = std::env::var_os("XDG_RUNTIME_DIR").map(PathBuf::from);
        let root = state_root.unwrap_or_else(|| Layout::default_root(host.uid, runtime));
        let tag = Tag::of(&root);
        Ok(Self {
            root: StateRoot {
                layout: Layout::new(root, tag),
                host,
                access,
                cgroup_parent: None,
                on_reclaimed: OnReclaimed::default(),
                creator: Actor::creator(),
                machines: CurrentSettings::default(),
                open_segment: OpenSegment::default(),
            },
            end_within: OWN_WITHIN,
            cleaned: OnceLock::new(),
        })
    }

    fn tend_once(&self) {
        self.cleaned();
    }

    /// Looks after some boxes other than `made`, which this process is making, unless it has done so
    /// before.
    fn tend_beside(&self, made: &BoxId) {
        self.cleaned.get_or_init(|| tend::tend(&self.root, Some(made)));
    }

    /// Looks after some boxes, the first time that this is called.
    fn cleaned(&self) -> &[BoxId] {
        self.cleaned.get_or_init(|| tend::tend(&self.root, None))
    }

    fn at<'a>(&'a self, id: &'a BoxId) -> BoxAt<'a> {
        self.root.at(id)
    }

    // Making boxes.

    /// Makes a box that ends with the returned session, or with this process.
    pub fn run(&self, spec: &Spec, stdin: Stdin) -> Result<Session, Error> {
        create::run(&self.root, spec, stdin, &|made| self.tend_beside(made))
    }

    /// Makes a box that waits in a pool of a server, and ends with the thread that calls this.
    pub fn warm(&self, spec: &Spec, stdin: Stdin, pool: &str) -> Result<Prepared, Error> {
        self.wait_in_pool(spec, Mode::Attached(stdin), pool)
    }

    /// Makes a box that waits in a pool of a server for a request for a detached box. It ends with the
    /// thread that calls this, until [`Self::claim_detached`].
    pub fn warm_detached(&self, spec: &Spec, pool: &str) -> Result<Prepared, Error> {
        let options = detach::with_log_in_memory(&warm::waiting_options(), spec)?;
        self.wait_in_pool(spec, Mode::Detached(&options), pool)
    }

    /// Claims a box that [`Self::warm_detached`] has made, and returns when its command runs. The spec
    /// differs from that of the box in its command, environment, working directory, name, labels,
    /// tenant and timeout at most.
    pub fn claim_detached(
        &self,
        prepared: Prepared,
        spec: &Spec,
        options: &DetachOptions,
    ) -> Result<Started, Error> {
        warm::claim_detached(&self.root, prepared, (spec, options))
    }

    /// Makes the box of a template, which waits in a pool. An interpreter that runs in it can make
    /// boxes with copies of itself. This needs root and cgroup v2.
    pub fn template(&self, spec: &Spec, pool: &str) -> Result<Prepared, Error> {
        if !self.root.host.is_privileged() {
            return Err(Error::failed("only root can have a template"));
        }
        if self.root.host.cgroups.unified.is_none() {
            return Err(Error::failed("a template needs cgroup v2"));
        }
        self.wait_in_pool(spec, Mode::Template, pool)
    }

    /// Has a template make a box that waits in a pool. Its socket is the standard input of the
    /// template's interpreter.
    pub fn clone_of(
        &self,
        template: TemplateOf<'_>,
        spec: &Spec,
        pool: &str,
    ) -> Result<Prepared, Error> {
        self.wait_in_pool(spec, Mode::Clone(template), pool)
    }

    fn wait_in_pool(&self, spec: &Spec, mode: Mode<'_>, pool: &str) -> Result<Prepared, Error> {
        warm::make(&self.root, NewBox { spec, mode }, pool, &|made| self.tend_beside(made))
    }

    /// Makes a detached box, and returns when its command runs.
    pub fn start(&self, spec: &Spec, options: &DetachOptions) -> Result<Started, Error> {
        detach::start(&self.root, (spec, options), None, &|made| self.tend_beside(made))
    }

    /// Makes a detached box, unless `given_up` is readable before its command runs: then the box is
    /// removed again.
    pub fn start_unless(
        &self,
        spec: &Spec,
        options: &DetachOptions,
        given_up: BorrowedFd<'_>,
    ) -> Result<Started, Error> {
        detach::start(&self.root, (spec, options), Some(given_up), &|made| self.tend_beside(made))
    }

    /// Makes a detached box with a chosen id. `None` when that box exists or is being made. An
    /// error when it existed and was removed, for as long as its history is kept.
    pub fn start_as(
        &self,
        id: &BoxId,
        spec: &Spec,
        options: &DetachOptions,
    ) -> Result<Option<Started>, Error> {
        detach::start_as(self.at(id), spec, options, &|made| self.tend_beside(made))
    }

    // Working in a live box.

    /// Starts another process. Whether it started comes as an event; a keeper that does not answer
    /// in time is an error.
    pub fn exec(&self, id: &BoxId, spec: &ExecSpec, stdin: Stdin) -> Result<Session, Error> {
        exec::exec(self.at(id), spec, stdin)
    }

    /// Starts another process in the box that a session owns, also while the box waits in a pool.
    pub fn exec_in(
        &self,
        owner: &Session,
        spec: &ExecSpec,
        stdin: Stdin,
    ) -> Result<Session, Error> {
        exec::exec_in(owner, spec, stdin)
    }

    /// Starts the clone that a template has put into a box of a pool, as another process.
    pub fn exec_clone(&self, owner: &Session, stdin: Stdin) -> Result<Session, Error> {
        exec::exec_clone(owner, stdin)
    }

    pub fn attach(&self, id: &BoxId) -> Result<Attachment, Error> {
        attach::attach(self.at(id))
    }

    /// Returns the log of a box, and its keeper if it lives.
    pub fn logs(&self, id: &BoxId) -> Result<(Logs, Option<Process>), Error> {
        attach::logs(self.at(id))
    }

    /// Copies the file or directory at `path` out of the box, as an archive. Of an ended box, only kept
    /// files can be copied.
    pub fn copy_out(&self, id: &BoxId, path: &Path) -> Result<Copy, Error> {
        files::copy_out(self.at(id), path)
    }

    /// Copies the readable regular files at `path` out of a live box, as an archive.
    pub fn copy_files_out(&self, id: &BoxId, path: &Path) -> Result<Copy, Error> {
        files::copy_files_out(self.at(id), path)
    }

    /// Copies an archive into the directory `path`, or into the directory that `path` is in.
    pub fn copy_in(&self, id: &BoxId, path: &Path) -> Result<Copy, Error> {
        files::copy_in(self.at(id), path)
    }

    /// Reads a regular file. Links are followed.
    pub fn read_file(&self, id: &BoxId, path: &Path) -> Result<FileTransfer, Error> {
        files::read_file(self.at(id), path)
    }

    /// Lists a directory.
    pub fn list_files(&self, id: &BoxId, path: &Path) -> Result<FileTransfer, Error> {
        files::list_files(self.at(id), path)
    }

    /// Writes a file, which replaces an existing file or link when it is complete.
    pub fn write_file(&self, id: &BoxId, path: &Path) -> Result<FileTransfer, Error> {
        files::write_file(self.at(id), path)
    }

    /// Removes a file, a link, or a directory with everything in it.
    pub fn remove_file(&self, id: &BoxId, path: &Path) -> Result<(), Error> {
        files::remove_file(self.at(id), path)
    }

    // Finding and inspecting boxes.

    /// Finds a box of any tenant by its id, its name (also as `KEY:NAME`) or the beginning of its id.
    pub fn find(&self, reference: &str) -> Result<BoxId, Error> {
        self.find_in(&Scope::All, reference)
    }

    /// Finds a box among those that a caller can see.
    pub fn find_in(&self, scope: &Scope, reference: &str) -> Result<BoxId, Error> {
        self.find_recorded(scope, reference)?.ok_or_else(|| no_box(reference))
    }

    fn find_recorded(&self, scope: &Scope, reference: &str) -> Result<Option<BoxId>, Error> {
        find::find(&self.root, scope, reference, || self.cleaned())
    }

    /// Returns the API key that a box belongs to. `None` for a box of the command line, of a server
    /// without keys, or without a readable record.
    pub fn key_of(&self, id: &BoxId) -> Option<String> {
        find::tenant_of(&self.root, id)?.key().map(str::to_owned)
    }

    /// Lists every box, the oldest first.
    pub fn list(&self) -> Result<Vec<Status>, Error> {
        find::list(&self.root)
    }

    /// Returns a live box whose machine runs this kernel.
    pub fn with_kernel(&self, kernel: &str) -> Result<Option<BoxId>, Error> {
        find::with_kernel(&self.root, kernel)
    }

    pub fn status(&self, id: &BoxId) -> Result<Status, Error> {
        Ok(inspect::status(self.at(id), &self.observe(id)?))
    }

    /// Returns the status of a box that was just started. A box that keeps nothing may have ended and
    /// been removed since.
    pub fn status_of_new(&self, id: &BoxId, spec: &Spec) -> Result<Status, Error> {
        inspect::status_of_new(self.at(id), spec)
    }

    /// Returns the status of a box that was detached, or `None` for a box that is being made.
    pub fn announced(&self, id: &BoxId) -> Result<Option<Status>, Error> {
        inspect::announced(self.at(id))
    }

    /// Returns everything that is known about a box.
    pub fn details(&self, id: &BoxId) -> Result<Details, Error> {
        inspect::details(self.at(id))
    }

    /// Returns what a live box uses.
    pub fn usage(&self, id: &BoxId) -> Result<Usage, Error> {
        self.usage_until(id, Instant::now() + inspect::ANSWERS_WITHIN)
    }

    /// Returns what a live box uses. Does not ask its keeper after `until`, so that a command about many
    /// boxes waits no longer than a command about one.
    pub fn usage_until(&self, id: &BoxId, until: Instant) -> Result<Usage, Error> {
        inspect::usage(self.at(id), until)
    }

    /// Returns the processes and the memory of a box as gauges count them; zero if it is gone.
    pub fn gauged_use(&self, id: &BoxId) -> GaugedUse {
        inspect::gauged_use(self.at(id))
    }

    /// Returns the limits of a box; `None` if it is gone or its record is damaged.
    pub fn limits(&self, id: &BoxId) -> Option<Limits> {
        inspect::limits(self.at(id))
    }

    /// Returns the processor time of a box, in microseconds.
    pub fn cpu_us(&self, id: &BoxId) -> Option<u64> {
        inspect::cpu_us(self.at(id))
    }

    /// Returns the keeper of a box, which lives as long as the box.
    pub fn keeper(&self, id: &BoxId) -> Result<Option<Process>, Error> {
        Ok(self.observe(id)?.keeper.into_alive())
    }

    fn observe(&self, id: &BoxId) -> Result<Observation, Error> {
        tend::observe_tended(self.at(id))
    }

    // Ending boxes, and waiting for their end.

    /// Passes a signal to the command of a box.
    pub fn signal(&self, id: &BoxId, signal: i32, by: &Actor) -> Result<(), Error> {
        stop::signal(self.at(id), signal, by)
    }

    /// Asks the command to stop, and does not wait for it. The box ends after the grace period, even
    /// without [`Self::end_stop`].
    pub fn begin_stop(&self, id: &BoxId, grace: Duration, by: &Actor) -> Result<Stopping, Error> {
        stop::begin_stop(self.at(id), grace, by)
    }

    /// Ends a box that has not stopped after the grace period, and returns when tare has seen that it
    /// is gone. If its record was removed because it is damaged, returns the damage.
    pub fn end_stop(&self, stopping: &Stopping) -> Result<Option<String>, Error> {
        let ended = stop::end_stop(&self.root, stopping, self.end_within);
        // Later, because cleaning up could remove the stopped box for another reason.
        self.cleaned();
        ended
    }

    /// Kills the whole box.
    pub fn kill(&self, id: &BoxId, by: &Actor) -> Result<(), Error> {
        stop::kill(self.at(id), by, self.end_within)
    }

    /// Removes a box. A box that has not ended is removed only with `force`. Returns its receipt.
    /// `None` if another process has removed the box, and kept no receipt.
    pub fn remove(&self, id: &BoxId, force: bool, by: &Actor) -> Result<Option<Receipt>, Error> {
        if self.cleaned().contains(id) {
            return Ok(stop::kept_receipt(self.at(id)));
        }
        stop::remove(self.at(id), force, by, self.end_within)
    }

    /// Returns the receipt of a removed box among those that a caller can see, while its history is
    /// kept. It is an error if the box still exists.
    pub fn receipt(&self, scope: &Scope, reference: &str) -> Result<Receipt, Error> {
        let sees = |tenant: Option<&Tenant>| scope.sees(tenant);
        match self.find_present(scope, reference)? {
            Some(id) if !self.cleaned().contains(&id) => {
                let message = format!("box {reference} is not removed, so it has no receipt");
                Err(Error::conflict(message).with_hint("a receipt is made when the box is removed"))
            }
            Some(id) => history::receipt(&self.root, id.as_str(), &sees),
            None => history::receipt(&self.root, reference, &sees),
        }
    }

    /// Waits for the end of a box.
    pub fn wait(&self, id: &BoxId) -> Result<End, Error> {
        self.await_end(&self.watch_end(id)?)
    }

    /// Prepares to learn how the box ends, also when nothing of it is left by then.
    pub fn watch_end(&self, id: &BoxId) -> Result<EndWatch, Error> {
        stop::watch_end(self.at(id))
    }

    /// Waits for the end of a watched box.
    pub fn await_end(&self, watch: &EndWatch) -> Result<End, Error> {
        stop::await_end(&self.root, watch)
    }

    /// Returns how a watched box has ended, or what to wait for. Does not wait.
    pub fn look_for_end(&self, watch: &EndWatch) -> Result<Looked, Error> {
        stop::look_for_end(&self.root, watch)
    }

    // Changing boxes.

    /// Freezes every process of a detached box. Its deadlines continue.
    pub fn pause(&self, id: &BoxId) -> Result<(), Error> {
        change::pause(self.at(id))
    }

    /// Continues the processes of a paused box.
    pub fn resume(&self, id: &BoxId) -> Result<(), Error> {
        change::resume(self.at(id))
    }

    /// Gives a box another name.
    pub fn rename(&self, id: &BoxId, wanted: &Name) -> Result<(), Error> {
        change::rename(self.at(id), wanted)
    }

    /// Gives a live box other limits, or another lease from now on.
    pub fn update(&self, id: &BoxId, changes: &Changes) -> Result<(), Error> {
        change::update(self.at(id), changes)
    }

    // Audits, sweeps, gauges and histories.

    /// Reports everything that boxes hold, and the differences between records and host.
    pub fn audit(&self) -> Result<Audit, Error> {
        audit::audit(&self.root)
    }

    /// Audits until records and host agree, for at most ten seconds.
    pub fn audit_until_clean(&self) -> Result<Audit, Error> {
        audit::audit_until_clean(&self.root)
    }

    /// Returns the boxes that were removed since this time and whose history is kept, with their
    /// receipts.
    pub fn removed_since(&self, since: Timestamp) -> Result<Vec<RemovedSince>, Error> {
        audit::removed_since(&self.root, since)
    }

    /// Returns what a sweep would do. Changes nothing.
    pub fn plan_sweep(&self) -> Result<Vec<Swept>, Error> {
        sweep::plan(&self.root)
    }

    /// Removes what an audit finds, and finishes every box that has ended.
    pub fn sweep(&self) -> Result<Vec<Swept>, Error> {
        sweep::sweep(&self.root)
    }

    /// Opens everything that gauges of this process and this state root need, and measures nothing
    /// yet.
    pub fn gauges(&self, settings: GaugeSettings) -> Result<Gauges, Error> {
        let root = self.root.layout.root().display();
        let boxes = state_root::open_boxes(&self.root.layout)
            .context(|| format!("cannot open the boxes of {root} to measure them"))?;
        Ok(Gauges::open(boxes, &self.root, settings))
    }

    /// Returns whether the record of a box stays after its end.
    pub fn is_kept(&self, id: &BoxId) -> Result<bool, Error> {
        Ok(self.observe(id)?.record.is_kept())
    }

    /// Returns how a box ended and why it was removed, while its history is kept.
    pub fn removed(&self, id: &BoxId) -> Option<RemovedBox> {
        history::removed_box(&self.root, id)
    }

    /// Explains what happened to the box with this id, this name, or an id that begins like this. An
    /// id comes before a name, also the id of a removed box. A present name comes before former ones.
    /// If several boxes had the name, the last one counts.
    pub fn explain(&self, reference: &str) -> Result<Explanation, Error> {
        self.explain_in(&Scope::All, reference)
    }

    /// Returns the actor that asked for the act that ended an exec in this way, if one did, and how long
    /// ago if it was a signal.
    pub fn asked_for_exec(&self, id: &BoxId, end: End) -> Option<(Actor, Option<Duration>)> {
        history::asked_for_exec(self.at(id), end)
    }

    /// Explains a box among those that a caller can see.
    pub fn explain_in(&self, scope: &Scope, reference: &str) -> Result<Explanation, Error> {
        let sees = |tenant: Option<&Tenant>| scope.sees(tenant);
        match self.find_present(scope, reference)? {
            Some(id) if !self.cleaned().contains(&id) => history::explain_recorded(self.at(&id)),
            Some(id) => history::explain_former(&self.root, id.as_str(), &sees),
            None => history::explain_former(&self.root, reference, &sees),
        }
    }

    /// Finds the box on record that a reference means, if the reference is not the id of a removed box:
    /// a name that looks like such an id must not hide the removed box.
    fn find_present(&self, scope: &Scope, reference: &str) -> Result<Option<BoxId>, Error> {
        let Some(found) = self.find_recorded(scope, reference)? else {
            return Ok(None);
        };
        let removed = match BoxId::parse(reference).filter(|id| *id != found) {
            Some(id) => history::removed(&self.root, &id)?,
            None => None,
        };
        let is_hidden = removed.is_some_and(|removed| scope.sees(removed.tenant()));
        Ok((!is_hidden).then_some(found))
    }

    /// Sets how large the histories of removed boxes may become, and whether they contain stderr, for
    /// every process that uses this state root. `None` leaves a setting as it is.
    pub fn set_history(&self, bytes: Option<u64>, stderr: Option<bool>) -> Result<(), Error> {
        history::set(&self.root, bytes, stderr)
    }
}
