//! The engine: boxes on one state root. It is opened by every command and by
//! every server; what can be asked of it is in the files beside this one, one
//! subject each.

use std::fs::File;
use std::path::PathBuf;
use std::sync::OnceLock;
use std::time::Duration;

use tare_kernel::process::check_proc;

use crate::care::reclaiming::Listener;
use crate::create::Ends;
use crate::error::{Context, Error};
use crate::gauge::{GaugeSettings, Gauges};
use crate::host::layout::{BoxAt, Layout, StateRoot};
use crate::host::obstacle::{Step, explained};
use crate::host::state_root;
use crate::host::tag::Tag;
use crate::host::{BOOT_ID, Host};
use crate::record::{self, Locked};
use crate::session::stdio::Stdin;
use crate::session::{Reserve, Session};
use crate::spec::{BoxId, DetachOptions, Spec};
use crate::teardown::OWN_WITHIN;

/// A server has few threads. It waits for a box that takes longer without one, and tries
/// again.
const SERVED_WITHIN: Duration = Duration::from_secs(1);

#[derive(Debug)]
pub struct Engine {
    pub(crate) root: StateRoot,
    pub(crate) manner: Manner,
    /// How long an attempt to end a box may hold the thread that makes it.
    pub(crate) end_within: Duration,
    /// Boxes that nobody looked after, and that are gone since this was opened.
    tended: OnceLock<Vec<BoxId>>,
    pub(crate) listener: Listener,
}

/// What is done about boxes that need it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Manner {
    /// What there is to be done.
    Tending,
    /// Nothing.
    Looking,
}

impl Engine {
    /// Opens a state root, making it if need be; `None` for the default one.
    /// Boxes that somebody has to look after are looked after on the way.
    pub fn open(state_root: Option<PathBuf>) -> Result<Self, Error> {
        let engine = Self::open_to_make(state_root)?;
        engine.tended();
        Ok(engine)
    }

    /// Opens the state root for a command that makes a box or names one. It looks after other
    /// boxes later: while the new keeper works, or after the named box was found.
    pub fn open_to_make(state_root: Option<PathBuf>) -> Result<Self, Error> {
        let engine = Self::new(state_root, Manner::Tending)?;
        state_root::prepare(&engine.root.layout)?;
        Ok(engine)
    }

    /// The same for somebody who stays, and has a sweep made behind his first answers.
    pub fn open_to_serve(state_root: Option<PathBuf>) -> Result<Self, Error> {
        let engine = Self::open_to_make(state_root)?.lasting();
        // Now, because a server may have no descriptor left when it first needs them.
        engine.root.host.open_cgroups.open();
        Ok(Self { end_within: SERVED_WITHIN, ..engine })
    }

    /// For somebody who lives on: what was found on the way in is not spoken of for
    /// ever, since an id may come again ([`Self::start_as`]).
    pub fn lasting(self) -> Self {
        Self { tended: OnceLock::from(Vec::new()), ..self }
    }

    /// The same to look only: nothing is made, and nothing changed. A state root
    /// that is not there has no boxes.
    pub fn look(state_root: Option<PathBuf>) -> Result<Self, Error> {
        let engine = Self::new(state_root, Manner::Looking)?;
        state_root::inspect(&engine.root.layout)?;
        Ok(engine.lasting())
    }

    /// The same to sweep: nothing is done before it is asked for.
    pub fn open_to_sweep(state_root: Option<PathBuf>) -> Result<Self, Error> {
        let engine = Self::new(state_root, Manner::Tending)?;
        state_root::inspect(&engine.root.layout)?;
        Ok(engine.lasting())
    }

    fn new(state_root: Option<PathBuf>, manner: Manner) -> Result<Self, Error> {
        let host = Host::probe();
        if host.boot_id.is_empty() {
            // Every box would be one of an earlier boot, and over.
            let message = "cannot tell which boot of the host this is";
            let error = Error::failed(message).with_hint("is /proc mounted?");
            return Err(match File::open(BOOT_ID) {
                Err(why) => error.caused_by(why),
                Ok(_) => error,
            });
        }
        check_proc().map_err(|why| {
            let message = "cannot identify processes: /proc is not usable";
            Error::failed(message)
                .caused_by(why)
                .with_hint("mount /proc for this PID namespace: mount -t proc proc /proc")
        })?;
        let runtime = std::env::var_os("XDG_RUNTIME_DIR").map(PathBuf::from);
        let root = state_root.unwrap_or_else(|| Layout::default_root(host.uid, runtime));
        let tag = Tag::of(&root);
        Ok(Self {
            root: StateRoot { layout: Layout::new(root, tag), host },
            manner,
            end_within: OWN_WITHIN,
            tended: OnceLock::new(),
            listener: Listener::default(),
        })
    }

    /// Looks after some boxes, the first time that this is called.
    pub(crate) fn tended(&self) -> &[BoxId] {
        self.tended.get_or_init(|| self.tend_some())
    }

    /// The record of a new box. What others have left may be in its way.
    pub(crate) fn record(
        &self,
        id: &BoxId,
        spec: &Spec,
        options: Option<&DetachOptions>,
    ) -> Result<Locked, Error> {
        let made = Locked::create(&self.root.layout, id, &self.root.host, spec, options);
        made.map_err(|error| {
            self.tended();
            explained(error, Step::StateRoot)
        })
    }

    pub(crate) fn at<'a>(&'a self, id: &'a BoxId) -> BoxAt<'a> {
        self.root.at(id)
    }

    /// Makes a box whose life hangs on the returned value and on this process.
    pub fn run(&self, spec: &Spec, stdin: Stdin) -> Result<Session, Error> {
        let id = BoxId::random();
        let reserve = Reserve::take().context(|| "cannot reserve descriptors".into())?;
        let mut record = self.record(&id, spec, None)?;
        match self.make(spec, Ends::Callers(stdin), &id, &mut record) {
            Ok(made) => Ok(made.into_session(self, id, record, reserve, spec)),
            Err(unmade) => {
                drop(reserve);
                Err(self.unmake(&id, record, unmade))
            }
        }
    }

    /// Opens everything that gauges of this process and this state root need, and measures nothing
    /// yet.
    pub fn gauges(&self, settings: GaugeSettings) -> Result<Gauges, Error> {
        let root = self.root.layout.root().display();
        let boxes = record::open_all(&self.root.layout)
            .context(|| format!("cannot open the boxes of {root} to measure them"))?;
        Ok(Gauges::open(boxes, self.root.host.is_in_first_user_namespace(), settings))
    }
}
