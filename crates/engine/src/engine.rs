//! The engine: boxes on one state root. It is opened by every command and by
//! every server; what can be asked of it is in the files beside this one, one
//! subject each.

use std::path::PathBuf;

use crate::attached::Attached;
use crate::create::{Ends, Reserve};
use crate::error::{Doing, Error};
use crate::host::Host;
use crate::id::BoxId;
use crate::keeper::Unmade;
use crate::layout::Layout;
use crate::reclaiming::Listener;
use crate::record::{self, Locked};
use crate::spec::Spec;
use crate::stdio::Stdin;
use crate::tag::Tag;
use crate::teardown::Site;

#[derive(Debug)]
pub struct Engine {
    pub(crate) layout: Layout,
    pub(crate) host: Host,
    pub(crate) manner: Manner,
    /// Boxes that nobody looked after, and that are gone since this was opened.
    pub(crate) tended: Vec<BoxId>,
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
        let mut engine = Self::at(state_root, Manner::Tending);
        record::prepare_state_root(&engine.layout)?;
        engine.tended = engine.tend_some();
        Ok(engine)
    }

    /// The same for somebody who stays, and has a sweep made behind his first answers.
    pub fn open_to_serve(state_root: Option<PathBuf>) -> Result<Self, Error> {
        let engine = Self::at(state_root, Manner::Tending);
        record::prepare_state_root(&engine.layout)?;
        Ok(engine)
    }

    /// For somebody who lives on: what was found on the way in is not spoken of for
    /// ever, since an id may come again ([`Self::start_as`]).
    pub fn lasting(mut self) -> Self {
        self.tended.clear();
        self
    }

    /// The same to look only: nothing is made, and nothing changed. A state root
    /// that is not there has no boxes.
    pub fn look(state_root: Option<PathBuf>) -> Result<Self, Error> {
        let engine = Self::at(state_root, Manner::Looking);
        record::inspect_state_root(&engine.layout)?;
        Ok(engine)
    }

    /// The same to sweep: nothing is done before it is asked for.
    pub fn open_to_sweep(state_root: Option<PathBuf>) -> Result<Self, Error> {
        let engine = Self::at(state_root, Manner::Tending);
        record::inspect_state_root(&engine.layout)?;
        Ok(engine)
    }

    fn at(state_root: Option<PathBuf>, manner: Manner) -> Self {
        let host = Host::probe();
        let runtime = std::env::var_os("XDG_RUNTIME_DIR").map(PathBuf::from);
        let root = state_root.unwrap_or_else(|| Layout::default_root(host.uid, runtime));
        let tag = Tag::of(&root);
        Self {
            layout: Layout::new(root, tag),
            host,
            manner,
            tended: Vec::new(),
            listener: Listener::default(),
        }
    }

    pub(crate) fn site<'a>(&'a self, id: &'a BoxId) -> Site<'a> {
        Site {
            layout: &self.layout,
            host: &self.host,
            id,
        }
    }

    /// Makes a box whose life hangs on the returned value and on this process.
    pub fn run(&self, spec: &Spec, stdin: Stdin) -> Result<Attached, Error> {
        let id = BoxId::random();
        let reserve = Reserve::take().doing(|| "cannot reserve descriptors".into())?;
        let mut record = Locked::create(&self.layout, &id, &self.host, spec, None)?;
        match self.make(spec, Ends::Callers(stdin), &id, &mut record) {
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
}
